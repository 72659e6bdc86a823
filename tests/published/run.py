"""Published servers from npm and PyPI, directly and through Colonnade: what differs for the official SDK's client.

python -m tests.published.run              prints the table, fails if anything differs that is not documented, and
                                           else writes it to docs/servers.md
python -m tests.published.run --check      fails if the page says something else
python -m tests.published.run --ci         twelve of them alone, whose rows the page must have
python -m tests.published.run --only TEXT  those whose package has this text in its name, without the known servers
"""

from __future__ import annotations

import argparse
import os
import random
import secrets
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import trio
from mcp.client.stdio import StdioServerParameters

from tests.kit.ports import free_port
from tests.kit.random_overrides import Count, judge
from tests.published.differences import DIFFERENCES, expected
from tests.published.install import install
from tests.published.known import check_known
from tests.published.looks import Seen, differing, look, without_places
from tests.published.places import Place, left_behind, listening_places, wait_all_ready
from tests.published.servers import SERVERS, Server
from tests.real.running import ROOT, serving, write_config

GROUP = 8
"""Servers behind one host: all at once would need several gigabytes."""
AT_ONCE = 3
OVERRIDES = 10
"""Random overrides of each tool."""


@dataclass
class Results:
    """By id of a place and mode of the client: what was seen directly, and through."""

    direct: dict[tuple[str, str], Seen] = field(default_factory=dict)
    through: dict[tuple[str, str], Seen] = field(default_factory=dict)
    failures: list[str] = field(default_factory=list)


MODES = ("auto", "legacy")
KINDS = ("tools", "resources", "templates", "prompts")
PAGE = ROOT / "docs" / "servers.md"
INTRODUCTION = """\
# Published servers

This page shows what a client sees of published servers directly, and through Colonnade at `/mcp/<server>`. `make
published` installs them from npm and PyPI, uses each with the official Python SDK's client in both ways, and writes
this page. They run with a default configuration and without keys, and nothing that is asked of them needs a network.

The client opens a connection in the newest revision (*auto*, which falls back) and one with a handshake. It declares
roots, sampling and elicitation. It reads all lists and the first resource, calls a tool, calls it with wrong arguments,
and asks for a tool and a prompt that are not there. Then it leaves, the host is stopped, and no process may be left.
Everything must be equal but for the name in `serverInfo` of results, which is that of who answers (each hop has its
own), the revision, and the differences that the columns name:
"""
HEAD = (
    "| package | version | speaks | tools, resources, templates, prompts | stdio, auto | stdio, handshake "
    "| HTTP, auto | HTTP, handshake |",
    "|---|---|---|---|---|---|---|---|",
)


async def look_all(
    places: Sequence[Place], target: Mapping[str, str | StdioServerParameters], results: dict[tuple[str, str], Seen]
) -> list[str]:
    """Look at all places in both modes. Returns what went wrong."""
    wrong: list[str] = []
    limit = trio.CapacityLimiter(AT_ONCE)

    async def one(place: Place) -> None:
        async with limit:
            for mode in MODES:
                try:
                    seen = await look(target[place.id], mode, place.call())
                    results[place.id, mode] = without_places(seen, str(place.folder), place.port, place.server.varies)
                except BaseExceptionGroup as problems:
                    wrong.append(f"{place}, {mode}: {problems.exceptions[0]!r}")
                except Exception as problem:  # noqa: BLE001 - the run goes on, and fails
                    wrong.append(f"{place}, {mode}: {problem!r}")

    async with trio.open_nursery() as nursery:
        for place in places:
            nursery.start_soon(one, place)
    return wrong


def run_group(servers: Sequence[Server], results: Results) -> None:
    """Some servers, directly and behind one host."""
    with tempfile.TemporaryDirectory(prefix="published-") as name:
        places: list[Place] = []
        for server in servers:
            for port in (0, *([free_port()] if server.http is not None else ())):
                place = Place(server, Path(name, f"{len(places)}"), port)
                place.folder.mkdir()
                places.append(place)
        marks = {side: secrets.token_hex(8) for side in ("direct", "through", "http")}
        with listening_places(places, marks["http"]):
            targets = {each.id: each.url() if each.port else parameters(each, marks["direct"]) for each in places}
            results.failures += [f"direct: {each}" for each in trio.run(look_all, places, targets, results.direct)]
            for each in places:
                if not each.port:  # what it has written is not there for the next one
                    subprocess.run(["find", str(each.folder), "-mindepth", "1", "-delete"], check=True)
            config = Path(name, "host")
            config.mkdir()
            file = write_config(config, {each.id: _entry(each, marks["through"]) for each in places})
            with serving(file) as host:
                waiting = wait_all_ready(host, [each.id for each in places])
                results.failures += [f"through: {each} is {waiting[each.id]}" for each in places if each.id in waiting]
                urls = {each.id: f"{host.url}/{each.id}" for each in places}
                results.failures += [f"through: {each}" for each in trio.run(look_all, places, urls, results.through)]
            results.failures += [f"left behind: {each}" for each in left_behind(marks["through"])]


def parameters(place: Place, mark: str) -> StdioServerParameters:
    """The program for the SDK's client."""
    program, *args = place.words()
    env = {"PATH": os.environ["PATH"], **place.env(mark)}
    return StdioServerParameters(command=program, args=args, cwd=str(place.folder), env=env)


def _entry(place: Place, mark: str) -> dict[str, object]:
    if place.port:
        return {"url": place.url()}
    return {"command": place.words(), "cwd": str(place.folder), "env": place.env(mark), "start_timeout": "2m"}


def compare(results: Results, servers: Sequence[Server]) -> tuple[list[str], list[str]]:
    """The rows of the table, and everything that is wrong."""
    rows, wrong = [], list(results.failures)
    for server in servers:
        place = Place(server, Path())
        cells = [f"`{server.package}`", server.version]
        seen = results.direct.get((place.id, "auto"), {})
        cells.append(str(seen.get("revision", "")))
        cells.append(" ".join(str(len(seen.get(kind, {}).keys() - {""})) for kind in KINDS))
        for port in (0, 1):
            place = Place(server, Path(), port)
            for mode in MODES:
                if port and server.http is None:
                    cells.append("–")
                    continue
                direct, through = (each.get((place.id, mode)) for each in (results.direct, results.through))
                if direct is None or through is None:
                    cells.append("X")
                    wrong.append(f"{place}, {mode}: it was not seen")
                    continue
                wanted, numbers = expected(direct, mode)
                found = list(differing({**wanted, "revision": ""}, {**through, "revision": ""}))
                wrong += [f"{place}, {mode}: {each}" for each in found]
                cells.append("X" if found else " ".join(map(str, numbers)) or "=")
        rows.append(f"| {' | '.join(cells)} |")
    return rows, wrong


def judge_overrides(results: Results) -> tuple[Count, list[str]]:
    """Random overrides of all tools, by the schemas of the servers themselves: what was seen, and what is wrong."""
    count, wrong = Count(), list[str]()
    for (place, mode), seen in results.direct.items():
        for name, definition in seen["tools"].items():
            for seed in range(OVERRIDES if name and mode == MODES[0] else 0):
                try:
                    count = count.plus(judge(definition["inputSchema"], random.Random(f"{place} {name} {seed}")))
                except AssertionError as problem:
                    wrong.append(f"{place}: an override of {name}: {problem}")
    return count, wrong


def page(rows: Sequence[str]) -> str:
    """The whole of docs/servers.md."""
    numbered = [f"{number}. {each.sentence}." for number, each in enumerate(DIFFERENCES, 1)]
    return "\n".join([INTRODUCTION, *numbered, "", *HEAD, *rows, ""])


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--ci", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    servers = [each for each in SERVERS if (each.ci or not options.ci) and options.only in each.package]
    install(servers)
    results = Results()
    for at in range(0, len(servers), GROUP):
        run_group(servers[at : at + GROUP], results)
    rows, wrong = compare(results, servers)
    count, not_exact = judge_overrides(results)
    print(f"overrides of their tools: {count}")
    wrong += not_exact
    if not options.only:
        wrong += check_known([each.package for each in servers] if options.ci else None)
    print("\n".join([*HEAD, *rows]))
    if options.ci or options.check:
        there = PAGE.read_text().splitlines()
        wrong += [f"docs/servers.md does not say: {row}" for row in rows if row not in there]
    if options.check and PAGE.read_text() != page(rows):
        wrong.append("docs/servers.md is not what this run writes")
    elif not (options.check or options.ci or options.only or wrong):
        PAGE.write_text(page(rows))
    print("\n".join(wrong))
    print(f"{len(servers)} servers, {len(wrong)} differences that are not documented")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
