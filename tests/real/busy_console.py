"""The web console of a busy host in a real browser.

    .venv/bin/python -m tests.real.busy_console [--seconds 600] [--rate 100] [--tell]

50 servers offer 100 tools each, and `rate` calls are sent a second. Three pages are open: one as it opens, one with the
plots and the calls of a server, one with the whole catalog of a server and a search. Of each, the longest task and the
growth of its heap must stay below a limit, its first paint and its height too. axe-core (npm) must find nothing in
either colour scheme. Exits with 1 otherwise; with --tell, only if axe-core finds something or a page is too high: other
figures hold for a machine that does nothing else. A fourth page, which shows nothing and does the same little work each
second, tells how far that is so.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Literal

import trio
from playwright.sync_api import Browser, Page

from host.cli.admin_client import find_hosts
from tests.bench.build import from_npm, made
from tests.bench.contenders import HANDSHAKE, HTTP
from tests.bench.processes import serving as serving_program

from .clients import by_hand
from .running import beside, serving
from .test_console import browsing

SERVERS, TOOLS, CLIENTS = 50, 100, 10
AXE = "axe-core@4.14.1"
LONGEST_TASK = 100.0
"""Milliseconds."""
FIRST_PAINT = 300.0
"""Milliseconds."""
SCREENS = 10
"""Heights of the window that a page may take."""
GROWTH = 1.2
"""Times as much memory at the end as after a fifth of the time."""
_WATCH = """
window.longest = 0;
new PerformanceObserver((list) => {
  for (const each of list.getEntries()) window.longest = Math.max(window.longest, each.duration);
}).observe({ type: "longtask", buffered: true });
"""
_CONTROL = """() => {
  window.took = [];
  setInterval(() => {
    const began = performance.now();
    for (let at = 0, sum = 0; at < 1e7; at++) sum += at % 7;
    took.push(performance.now() - began);
  }, 1000);
}"""
_SCHEMES: tuple[Literal["light", "dark"], ...] = ("light", "dark")
_PAINT = "() => (performance.getEntriesByName('first-contentful-paint')[0] || {}).startTime || 0"
_SCREENS = "() => document.documentElement.scrollHeight / innerHeight"
_AXE = """() => axe.run(document, { resultTypes: ["violations"] }).then(({ violations }) =>
  violations.map((each) => `${each.id}: ${each.nodes.map((node) => node.target.join(" ")).join(", ")}`))"""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.real.busy_console")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--rate", type=float, default=100)
    parser.add_argument("--tell", action="store_true")
    given = parser.parse_args()
    axe = (from_npm(AXE) / "axe-core" / "axe.min.js").read_text("utf-8")
    with tempfile.TemporaryDirectory(prefix="colonnade-console-") as name:
        folder = Path(name)
        with serving_program([*made("upstream"), HANDSHAKE, HTTP, str(TOOLS)], folder) as upstream:
            file = folder / "colonnade.yaml"
            urls = {f"s{at}": {"url": upstream.url, "trust": "trusted"} for at in range(SERVERS)}
            file.write_text(json.dumps({"listen": {"address": "127.0.0.1:0"}, "servers": urls}))
            with serving(file, *urls) as host:
                state = Path(beside(file)["COLONNADE_STATE"])
                return trio.run(_run, host.url, state, axe, given.seconds, given.rate, given.tell)


async def _run(url: str, state: Path, axe: str, seconds: float, rate: float, only_tells: bool) -> int:
    (host,) = find_hosts(state)
    sent, began = [0], trio.current_time()
    async with trio.open_nursery() as nursery:
        for at in range(CLIENTS):
            nursery.start_soon(_call, url, at, CLIENTS / rate, sent)
        link = partial(lambda: str(host.post("console-links")["link"]))
        wrong, told = await trio.to_thread.run_sync(_look, link, axe, seconds)
        nursery.cancel_scope.cancel()
    print(f"{sent[0]} calls in {trio.current_time() - began:.0f} s")
    for line in (*wrong, *told):
        print(line)
    return int(bool(wrong or (told and not only_tells)))


async def _call(url: str, client: int, every: float, sent: list[int]) -> None:
    async with by_hand(url) as hand:
        names = [each["name"] for each in (await hand.ask("tools/list"))["result"]["tools"]]
        due = trio.current_time()
        while True:
            name = names[(client * 7919 + sent[0] * 101) % len(names)]
            await hand.ask("tools/call", {"name": name, "arguments": {}})
            sent[0] += 1
            due += every
            await trio.sleep_until(due)


def _look(link: Callable[[], str], axe: str, seconds: float) -> tuple[list[str], list[str]]:
    """What is wrong, and what is too slow for a machine that does nothing else."""
    with browsing() as browser:
        pages = [_open(browser, link()) for _ in range(3)]
        for page in pages:
            page.locator("#server-rows tr").nth(SERVERS - 1).wait_for()
        _unfold(pages[1], "s1")
        pages[2].locator("#filter-text").fill("s2")
        pages[2].locator("#catalog-list summary").first.click()
        control = browser.new_page()
        control.evaluate(_CONTROL)
        _idle([*pages, control], seconds / 5)
        before = [_heap(page) for page in pages]
        _idle([*pages, control], seconds * 4 / 5)
        took = list[float](control.evaluate("() => window.took"))
        print(f"the same work {len(took)} times: {median(took):.0f} ms in the median, {max(took):.0f} at most")
        wrong, told = [], []
        for name, page, heap in zip(("plain", "plots", "catalog"), pages, before, strict=True):
            longest, paint = float(page.evaluate("() => window.longest")), float(page.evaluate(_PAINT))
            growth, screens = _heap(page) / heap, float(page.evaluate(_SCREENS))
            print(
                f"{name}: longest task {longest:.0f} ms, first paint {paint:.0f} ms, {screens:.1f} screens, heap "
                f"{heap / 1e6:.1f} MB and {growth:.2f} times that"
            )
            if longest >= LONGEST_TASK or paint >= FIRST_PAINT or growth >= GROWTH:
                told.append(f"{name}: above {LONGEST_TASK:.0f} ms, {FIRST_PAINT:.0f} ms or {GROWTH}")
            if screens > SCREENS:
                wrong.append(f"{name}: {screens:.1f} screens of {SCREENS}")
            for scheme in _SCHEMES:
                page.emulate_media(color_scheme=scheme)
                page.wait_for_timeout(500)  # colours change slowly
                page.evaluate(axe)
                wrong += [f"{name}, {scheme}: {each}" for each in page.evaluate(_AXE)]
    return wrong, told


def _open(browser: Browser, link: str) -> Page:
    page = browser.new_context(viewport={"width": 1280, "height": 900}).new_page()
    page.add_init_script(_WATCH)
    page.goto(link)
    return page


def _unfold(page: Page, server: str) -> None:
    page.get_by_role("button", name=server, exact=True).click()
    shown = page.locator("#server-list > .row:visible").first
    for text in ("Its last hour and day", "Its last calls"):
        shown.get_by_text(text).click()


def _idle(pages: list[Page], seconds: float) -> None:
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        for page in pages:
            page.wait_for_timeout(100)


def _heap(page: Page) -> float:
    """Bytes of its heap behind a collection."""
    session = page.context.new_cdp_session(page)
    session.send("HeapProfiler.collectGarbage")
    used = float(session.send("Runtime.getHeapUsage")["usedSize"])
    session.detach()
    return used


if __name__ == "__main__":
    sys.exit(main())
