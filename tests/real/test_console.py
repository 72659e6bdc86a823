"""The web console in a real browser, over a real listener, in front of an admin API that is small and real.

The browser is Debian's Chromium. These tests are run by `make browser`, which needs it.
"""

from __future__ import annotations

import http.client
import json
import re
import shutil
import socket
import time
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any, cast

import pytest
import trio
from playwright.sync_api import Browser, Page, Route, expect, sync_playwright

from config import Channel
from host.admin.login import ConsoleSessions
from host.admin.schema import HistoryList, HistoryReader, LoginProposal, StateRow, TrafficRow
from host.admin.web import WebDoor, allowed_hosts, console_url
from host.notify.notices import page_to
from host.wire.asgi import Receive, Scope, Send
from host.wire.listener import serve_http
from host.wire.port import bind
from host.wire.tcp_peer import refuse_sender
from tests.kit.admin import (
    FakeAdminApi,
    arguments,
    caller_view,
    change,
    client,
    confirmation,
    entry,
    grant,
    happened,
    held,
    left_out,
    offered,
    past_call,
    server,
    view,
)

from .running import until

CHROMIUM = shutil.which("chromium")
SWITCHES = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # It tries [::1] first. Where nobody listens at that port, a connection to it may meet itself, and read what it
    # wrote.
    "--host-resolver-rules=MAP localhost 127.0.0.1",
]
EVIL = "<img src=x onerror=\"document.title='run'\"><script>document.title='run'</script>\u202e${1}{{1}}"
EVIL_LONG = EVIL + "a" * 3000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.timeout(120),
]


def fail(problem: Exception) -> None:
    raise AssertionError("a mistake of ours") from problem


class Host:
    """The console's own listener, which the browser reaches at `port`, if that is another. `link` and `do` are for
    other threads than trio's."""

    def __init__(self, admin: FakeAdminApi, port: int | None = None) -> None:
        self.bound = bind("127.0.0.1", 0)
        self.port: int = port or self.bound.getsockname()[1]
        self.admin = admin
        self.sessions = ConsoleSessions(trio.current_time)
        self.stop = trio.Event()
        names = allowed_hosts("127.0.0.1", self.port)
        refuse = partial(trio.to_thread.run_sync, partial(refuse_sender, hosts=Path("/nonexistent")))
        self.app = WebDoor(admin, self.sessions, names, self.stop, fail, lambda _: None, refuse).serve

    @property
    def origin(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def link(self) -> str:
        return console_url("127.0.0.1", self.port, trio.from_thread.run_sync(self.sessions.new_code))

    def do(self, act: Callable[..., Any], *args: Any) -> Any:
        """Something with the admin, in its own thread."""
        return trio.from_thread.run_sync(partial(act, *args))


@asynccontextmanager
async def serving(admin: FakeAdminApi, port: int | None = None) -> AsyncIterator[Host]:
    host = Host(admin, port)
    async with trio.open_nursery() as nursery:
        await nursery.start(partial(serve_http, host.app, host.bound, stop=host.stop))
        yield host
        nursery.cancel_scope.cancel()


@contextmanager
def browsing() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=SWITCHES)
        yield browser
        browser.close()


async def in_browser(host: Host, act: Callable[[Host, Browser], None]) -> None:
    def run() -> None:
        with browsing() as browser:
            act(host, browser)

    await trio.to_thread.run_sync(run)


async def test_calls_of_the_past_are_searched_and_their_text_is_text() -> None:
    admin = FakeAdminApi()
    admin.past = [
        past_call(number, item=EVIL, caller=EVIL, agent=EVIL, server=EVIL, rule=EVIL, outcome=EVIL, file=EVIL)
        for number in range(60, 0, -1)
    ]
    admin.past[1] = past_call(59, tool_error=True)
    admin.past_missing = [EVIL]

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        page.locator("#past-caller").fill("laptop")
        page.locator("#past-outcome").select_option("tool error")
        page.locator("#past-caller").press("Enter")
        rows = page.locator("#history-list tbody > tr:not(.explain)")
        expect(rows).to_have_count(50)
        expect(rows.first).to_contain_text("<img src=x")
        expect(rows.nth(1).locator("td[data-label=Outcome]")).to_have_text("tool error")
        expect(page.locator("#history-list > .warn")).to_contain_text("<img src=x")
        page.get_by_role("button", name="Older calls").click()
        expect(rows).to_have_count(60)
        expect(page.get_by_role("button", name="Older calls")).to_have_count(0)
        rows.first.get_by_text("Record").click()
        boxes = page.locator("#history-list .explain pre")
        expect(boxes).to_have_count(4)
        expect(page.get_by_role("region", name="Arguments, redacted")).to_contain_text("<img src=x")
        expect(page.get_by_role("region", name="Result, left out")).to_have_text("longer than 32 KiB")
        expect(boxes.nth(2)).to_contain_text('"kind": "decision"')
        assert page.locator("img, #history-list script").count() == 0
        expect(page).to_have_title("Colonnade")
        page.locator("#leave").click()
        expect(page.locator("#closed")).to_be_visible()
        assert page.locator("#history-list > *").count() == 0

    async with serving(admin) as host:
        await in_browser(host, act)
    wanted = {"caller": "laptop", "outcome": "tool error", "limit": 50}
    assert [each[2] for each in admin.requests if each[0] == "past_calls"] == [wanted, {**wanted, "beyond": 11}]


async def test_a_caller_signs_in_with_its_token_and_sees_calls_of_the_past_alone() -> None:
    admin, calls, token = full(), FakeAdminApi(), "0123456789abcdef"
    calls.past = [past_call(1, item=EVIL, caller=EVIL, file="", seq=0)]
    digest = sha256(token.encode()).digest()

    def lets_see(all_of_them: bool) -> None:
        admin.readers[digest] = HistoryReader(EVIL, calls, sees_all=all_of_them)

    def sign_in(page: Page, by: str = token) -> None:
        page.get_by_label("Access token", exact=True).fill(by)
        page.get_by_label("Access token", exact=True).press("Enter")

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(f"{host.origin}/console")
        sign_in(page, "no such token at all")
        expect(page.locator("#closed-why")).to_contain_text("This is no access token whose caller sees calls")
        expect(page.get_by_label("Access token", exact=True)).to_have_value("")
        sign_in(page)
        expect(page.locator("#host")).to_contain_text("sees its own calls")
        expect(page.locator("#host")).to_contain_text("<img src=x")
        assert page.get_by_role("heading").locator("visible=true").all_inner_texts() == [
            "Colonnade",
            "Calls of the past",
        ]
        expect(page.locator("#past-caller")).to_be_hidden()
        page.get_by_role("button", name="Search").click()
        page.locator("#history-list").get_by_role("button", name="The record of").click()
        expect(page.locator("#history-list .explain p").first).to_have_text(f"Call {1:016x}")
        assert page.locator("img").count() == 0
        page.reload()
        expect(page.locator("#host")).to_contain_text("sees its own calls")
        assert not [each for each in host.admin.requests if each[0].startswith("past")]
        assert host.admin.present == []
        fields = "[...document.querySelectorAll('input')].map((each) => each.value)"
        kept = page.evaluate(f"JSON.stringify([sessionStorage, document.cookie, {fields}])")
        assert token not in kept
        # A link for the owner in the same tab leaves nothing of what the caller was shown, and the other way round.
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#history-list tbody tr")).to_have_count(2)
        page.goto(host.link())
        expect(page.get_by_role("heading", name="Servers", exact=True)).to_be_visible()
        assert page.locator("#history-list > *").count() == 0
        expect(page.locator("#past-caller")).to_be_visible()
        page.get_by_role("button", name="Sign out").click()
        host.do(lets_see, True)
        sign_in(page)
        expect(page.locator("#host")).to_contain_text("sees all calls")
        expect(page.locator("#past-caller")).to_be_visible()
        assert page.locator("#servers, #grants, #confirmations article, .jump").locator("visible=true").count() == 0
        host.do(admin.readers.clear)
        page.get_by_role("button", name="Search").click()
        expect(page.locator("#closed-why")).to_have_text("The session of this page is over.")

    lets_see(False)
    async with serving(admin) as host:
        await in_browser(host, act)


async def test_older_calls_are_those_of_the_search_that_is_shown() -> None:
    """Not of what the person types while its answer is on the way."""
    admin = FakeAdminApi()
    admin.past = [past_call(number) for number in range(60, 0, -1)]

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        page.locator("#past-caller").fill("laptop")
        page.locator("#past-search").evaluate(
            "(it) => { it.click(); document.getElementById('past-caller').value += 2; }"
        )
        page.get_by_role("button", name="Older calls").click()
        expect(page.locator("#history-list tbody > tr:not(.explain)")).to_have_count(60)

    async with serving(admin) as host:
        await in_browser(host, act)
    assert [each[2]["caller"] for each in admin.requests if each[0] == "past_calls"] == ["laptop", "laptop"]


def full() -> FakeAdminApi:
    return FakeAdminApi(
        servers=[server(warnings=["It runs unconfined."], unmatched=["tools.allow: foo_*"]), server("notes")],
        catalog=[entry("list_issues"), entry("create_issue", verdict="ask", rule="tools.ask: create_*")],
        confirmations=[confirmation()],
        held=[held(), held("new_tool", standing="new", diff=[], text='{"name": "new_tool"}')],
        grants=[grant("g1", name="list_issues")],
        activity=[
            {
                "t": 1_790_000_000.0,
                "kind": "call",
                "server": "github",
                "text": "answered",
                "level": "info",
                "first": 1_790_000_000.0,
                "count": 1,
            }
        ],
        problems=["The audit cannot be written."],
    )


async def test_many_servers_are_a_table_whose_rows_lead_to_their_pages() -> None:
    """Those that need a person are open. A page has plots, each with a table, the states over time, and calls."""
    admin = FakeAdminApi(
        servers=[
            *(server(f"s{at}", calls=at, p50_ms=None, tokens=10 - at) for at in range(9)),
            server("locked", state="needs login", detail="the server wants a login"),
        ],
        activity=[
            happened(f"{id}: a call", server=id, kind=event)
            for id, event in (("s3", "RequestCompleted"), ("s3", "ServerReady"), ("s4", "RequestCompleted"))
        ],
    )
    row: TrafficRow = {"t": 1_790_000_040, "calls": 3, "failed": 1, "tool_errors": 2, "p50_ms": 4.2, "p95_ms": 40.0}
    state: StateRow = {"t": 1.0, "until": 2.0, "state": EVIL, "text": EVIL, "count": 7}
    admin.traffic = {"now": 1_790_000_100.0, "minutes": [row], "quarters": [row], "states": [state]}

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        rows = page.locator("#server-rows tr")
        expect(rows).to_have_count(10)
        headings = page.locator("#server-list").get_by_role("heading", level=3)
        expect(headings.locator("visible=true")).to_have_text(["locked"])
        page.get_by_role("button", name="Calls", exact=True).click()
        expect(rows.first).to_contain_text("locked")
        expect(rows.nth(1)).to_contain_text("s8")
        page.get_by_role("button", name="Calls", exact=True).click()
        expect(rows.first).to_contain_text("s0")
        page.get_by_role("button", name="Calls", exact=True).click()
        expect(rows.nth(9)).to_contain_text("locked")
        page.get_by_role("button", name="s3", exact=True).click()
        expect(headings.locator("visible=true")).to_have_text(["s3", "locked"])
        expect(page.get_by_role("article", name="s3")).to_contain_text(
            "Settings: https://example.com/mcp · timeout: 60s"
        )
        page.locator("#server-list > .row:visible").first.get_by_text("Its last hour and day").click()
        plots = page.get_by_role("img")
        expect(plots).to_have_count(2)
        assert "3 calls, 1 failed, 2 tool errors; at most 3 at a time, p95 at most 40 ms" in (
            plots.first.get_attribute("aria-label") or ""
        )
        page.get_by_text("As a table").first.click()
        expect(page.locator("figure td")).to_have_text(["3", "1", "2", "4.2 ms", "40 ms"])
        states = page.get_by_role("list", name="The last states of s3")
        expect(states).to_contain_text("<img src=x")
        expect(states).to_contain_text("7 times")
        page.locator("#server-list > .row:visible").first.get_by_text("Its last calls").click()
        expect(page.locator(".calls-of:visible li")).to_have_text([re.compile("s3 a call$")])
        page.get_by_role("button", name="s3", exact=True).click()
        expect(headings.locator("visible=true")).to_have_text(["locked"])

    async with serving(admin) as host:
        await in_browser(host, act)


async def test_what_changes_is_built_and_nothing_else() -> None:
    """With 5,000 entries of 50 servers, the page holds what is on the screen; a call changes some texts of its server's
    row, and adds its own. While nobody can see the page, only what can be answered is shown."""
    servers = [server(f"s{at}", calls=0) for at in range(50)]
    catalog = [entry(f"tool_{at}", server=f"s{at % 50}") for at in range(5000)]
    events = [happened(f"call {at}", kind="RequestCompleted") for at in range(150)]
    admin = FakeAdminApi(servers=servers, catalog=catalog, activity=events)
    count = """
        window.made = 0;
        const real = document.createElement;
        document.createElement = function (...given) { made += 1; return real.apply(this, given); };
        let visibility = "visible";
        Object.defineProperty(document, "visibilityState", { get: () => visibility });
        window.turn_page = (now) => { visibility = now; document.dispatchEvent(new Event("visibilitychange")); };
    """

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.add_init_script(count)
        page.goto(host.link())
        activity, calls = page.locator("#activity-list li"), page.locator('#server-rows td[data-label="Calls"]')
        expect(activity).to_have_count(150)
        expect(page.locator("#catalog-list details")).to_have_count(50)
        assert page.evaluate("made") < 4000

        row = page.locator("#server-rows tr").nth(7).element_handle()
        before = page.evaluate("made")
        host.do(admin.replace, "servers", [server(f"s{at}", calls=int(at == 7)) for at in range(50)])
        expect(calls.nth(7)).to_have_text("1")
        assert page.evaluate("made") == before
        assert row is not None
        assert row.evaluate("(row) => row.isConnected")
        host.do(admin.add, "activity", happened("the newest", kind="RequestCompleted"))
        expect(activity.first).to_contain_text("the newest")
        assert page.evaluate("made") - before < 15
        page.evaluate("turn_page('hidden')")
        host.do(admin.replace, "servers", [server(f"s{at}", calls=2) for at in range(50)])
        host.do(admin.add, "confirmations", confirmation())
        expect(page.locator("#confirmations article")).to_have_count(1)
        expect(calls.nth(7)).to_have_text("1")
        page.evaluate("turn_page('visible')")
        expect(calls).to_have_text(["2"] * 50)

    async with serving(admin) as host:
        await in_browser(host, act)


async def test_a_section_that_cannot_be_shown_keeps_no_other_from_being_shown() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        faults: list[str] = []
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(host.link())
        expect(page.locator("#activity-list li")).to_have_count(1)
        assert page.locator("#grant-list > *").count() == 0
        assert len(faults) == 1

    async with serving(FakeAdminApi(grants=[grant("g1", made="never")], activity=[happened("one")])) as host:
        await in_browser(host, act)


async def test_a_confirmation_appears_by_itself_and_is_answered() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
        assert "#" not in page.url
        assert host.admin.present == ["console"]
        host.do(host.admin.add, "confirmations", confirmation())
        card = page.get_by_role("article", name="create_issue")
        expect(card).to_contain_text("laptop wants to call a tool of the server github")
        expect(card).to_contain_text('"title": "The login page is slow"')
        expect(card).to_contain_text("untrusted")
        expect(card.get_by_text("Program", exact=True)).to_have_count(0)
        known = {"caller": "a client without a token", "says": "claude-code 2.1", "process": client()["process"]}
        defaulted = {"rule": "tools.default", "origin": "defaults.consent"}
        host.do(host.admin.add, "confirmations", confirmation("q2", name="other", **known, **defaulted))
        other = page.get_by_role("article", name="other")
        expect(other).to_contain_text("Programclaude (process 4712) in /home/me/work")
        expect(other).to_contain_text(
            "claude-code 2.1 (so it calls itself; program claude, process 4712, without a token) wants to call a tool"
        )
        expect(other).to_contain_text("tools.default (from defaults.consent)")
        other.get_by_role("button", name="Deny", exact=True).click()
        expect(other).to_have_count(0)
        host.admin.requests.clear()
        expect(page).to_have_title("(1) Colonnade")
        card.get_by_role("button", name="Allow once").click()
        expect(card).to_have_count(0)
        expect(page).to_have_title("Colonnade")
        assert host.admin.requests == [("answer", "q1", "once", None, "exact", "console")]

    async with serving(FakeAdminApi()) as host:
        await in_browser(host, act)


WRITE = arguments(path="/srv/notes.md", content="".join(f"line {at}\n" for at in range(40)), mode="w")
EDIT = arguments(
    path="a.py",
    edits=[
        {"oldText": "".join(f"same {at}\n" for at in range(12)) + "x = 1", "newText": "same 0\nx = 2"},
        {"oldText": "a\nb", "newText": "a\n<b>\u202e"},
    ],
)
PATCH = arguments(patch="--- a/x\n+++ b/x\n@@ -1 +1 @@\n-old\n+new\n")


async def test_long_texts_are_shown_as_text_and_all_of_it_can_be_seen() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        card = page.get_by_role("article", name="create_issue")
        outline = card.get_by_role("region", name="Arguments: an outline")
        expect(outline).to_have_text('{ "content": text 1, "mode": "w", "path": "/srv/notes.md" }')
        assert outline.locator(".mark").all_inner_texts() == ["text 1"]
        text = card.get_by_role("group", name="text 1")
        expect(text.locator(".label")).to_have_text("text 1 content · 40 lines")
        expect(text.get_by_text("line 15", exact=True)).to_be_visible()
        expect(text.get_by_text("line 16", exact=True)).to_have_count(0)
        text.get_by_text("24 lines more").click()
        host.do(host.admin.replace, "confirmations", [confirmation(waiting=2, **WRITE)])  # what was opened stays open
        expect(card).to_contain_text("2 calls wait")
        assert text.locator(".whole").all_inner_texts() == [*(f"line {at}" for at in range(40)), ""]
        whole = card.get_by_role("region", name="As JSON")
        expect(whole).to_have_count(0)
        card.get_by_text("The same arguments, as JSON").click()
        expect(whole).to_contain_text('"content": "line 0\\nline 1\\n')

    async with serving(FakeAdminApi(confirmations=[confirmation(**WRITE)])) as host:
        await in_browser(host, act)


async def test_edits_are_shown_as_differences_in_words_too() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        edits = page.get_by_role("article", name="edit_file")
        expect(edits.locator(".args .mark")).to_have_text(
            [f"edit {number}: {side}" for number in (1, 2) for side in ("added", "removed")]
        )
        first, second = (edits.get_by_role("group", name=f"edit {number}") for number in (1, 2))
        expect(first.locator(".label")).to_have_text("edit 1 oldText, newText · 12 lines removed (−), 1 added (+)")
        expect(second.locator("del")).to_have_text("removed: b")
        expect(second.locator("ins")).to_have_text(["added: <b>⟨U+202E⟩"])
        sign = "getComputedStyle(document.querySelector('.signed ins'), '::before').content"
        assert page.evaluate(sign) == '"+"'
        patch = page.get_by_role("group", name="patch 1")
        expect(patch.locator("del")).to_have_text("removed: -old")
        expect(patch.locator("div.whole").nth(1)).to_have_text("+++ b/x")
        assert (
            page.evaluate("getComputedStyle(document.querySelector('.argument:not(.signed) ins'), '::before').content")
            == "none"
        )

    waiting = [confirmation(name="edit_file", **EDIT), confirmation("q2", name="apply_patch", **PATCH)]
    async with serving(FakeAdminApi(confirmations=waiting)) as host:
        await in_browser(host, act)


async def test_on_a_phone_the_answers_stand_above_the_details_also_for_the_keyboard() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page(viewport={"width": 390, "height": 844})
        page.goto(host.link())
        card = page.get_by_role("article", name="create_issue")
        deny = card.get_by_role("button", name="Deny", exact=True)
        expect(deny).to_be_enabled()
        expect(card.get_by_role("button", name="Allow this tool")).to_be_in_viewport(ratio=1)
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        seen = tab_until(page, "Allow once")
        assert not any(each.startswith("{") for each in seen), "the arguments come later"
        page.set_viewport_size({"width": 1280, "height": 844})
        assert focused(page) == "Allow once"
        page.keyboard.press("Shift+Tab")
        page.keyboard.press("Shift+Tab")
        assert focused(page) == "Its definition, with the schema of its arguments"
        tops = "[...document.querySelectorAll('.theirs, .decide')].map((each) => each.getBoundingClientRect().top)"
        theirs, answers = page.evaluate(tops)
        assert theirs < answers

    async with serving(FakeAdminApi(confirmations=[confirmation(**WRITE)])) as host:
        await in_browser(host, act)


async def test_a_link_to_a_confirmation_shows_it_now_or_when_it_comes() -> None:
    def act(host: Host, browser: Browser) -> None:
        context = browser.new_context(viewport={"width": 390, "height": 500}, reduced_motion="reduce")
        page = context.new_page()
        page.goto(f"{host.link()}&confirmation=q2")
        assert "#" not in page.url
        second = page.get_by_role("article", name="second")
        expect(second.get_by_role("heading")).to_be_focused()
        expect(second).to_be_in_viewport()
        page.evaluate("location.hash = '#confirmation=q3'")
        gone = page.get_by_text("The confirmation that you were led to is not here: it was answered or ended")
        expect(gone).to_be_visible()
        host.do(host.admin.add, "confirmations", confirmation("q3", name="third", state="refused", why="late"))
        expect(page.get_by_role("article", name="third").get_by_role("heading")).to_be_focused()
        expect(gone).to_be_hidden()
        assert "#" not in page.url
        # Another tab has no session: it says so, and the one that has shows it.
        other = context.new_page()
        other.goto(f"{host.origin}/console#confirmation=q1")
        expect(other.get_by_text("It is open in another tab of this browser")).to_be_visible()
        expect(page.get_by_role("article", name="create_issue").get_by_role("heading")).to_be_focused()
        assert other.evaluate("sessionStorage.length") == 0

    async with serving(FakeAdminApi(confirmations=[confirmation(), confirmation("q2", name="second")])) as host:
        await in_browser(host, act)


async def test_what_lasts_says_what_it_is_for() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        card = page.get_by_role("article", name="create_issue")
        card.get_by_text("Allow for longer").click()
        expect(card.get_by_label("exactly these arguments")).to_be_checked()
        card.get_by_label("any arguments").check()
        expect(card.get_by_text("What will be stored")).to_contain_text(
            "laptop may call create_issue of github with any"
        )
        card.get_by_label("How long").select_option("1 hour")
        host.do(host.admin.replace, "confirmations", [confirmation(waiting=2)])  # what was chosen outlives a change
        expect(card).to_contain_text("2 calls wait")
        expect(card.get_by_label("any arguments")).to_be_checked()
        card.get_by_role("button", name="Allow for").click()
        expect(card).to_have_count(0)
        assert host.admin.requests == [("answer", "q1", "time", 3600, "any", "console")]
        granted = page.locator("#grants").get_by_text("may call")
        expect(granted).to_contain_text("create_issue")
        page.get_by_role("button", name="Revoke the grant for create_issue").click()
        expect(granted).to_have_count(0)

    async with serving(FakeAdminApi(confirmations=[confirmation()])) as host:
        await in_browser(host, act)


async def test_the_words_of_the_server_are_shown_as_its_words() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        short = page.get_by_role("article", name="create_issue").locator(".theirs")
        expect(short).to_contain_text("In the words of the server, which nobody has checked")
        expect(short.get_by_text("Opens a new issue.")).to_be_visible()
        expect(short.get_by_text("readOnlyHint: true")).to_be_visible()
        expect(short.get_by_role("region", name="The definition")).to_have_count(0)
        short.get_by_text("Its definition").click()
        expect(short.get_by_role("region", name="The definition")).to_contain_text('"name": "create_issue"')
        long = page.get_by_role("article", name="other").locator(".theirs")
        expect(long.get_by_text("word word")).to_be_hidden()
        long.get_by_text("Its description (5000 characters)").click()
        expect(long.get_by_text("word word")).to_be_visible()

    waiting = [
        confirmation(claims=["readOnlyHint: true"]),
        confirmation("q2", name="other", description="word " * 1000),
    ]
    async with serving(FakeAdminApi(confirmations=waiting)) as host:
        await in_browser(host, act)


async def test_a_tool_is_allowed_for_the_session_in_one_step_and_of_an_untrusted_server_in_two() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        trusted = page.get_by_role("article", name="create_issue")
        trusted.get_by_role("button", name="Allow this tool for this session").click()
        expect(trusted).to_have_count(0)
        shady = page.get_by_role("article", name="shady")
        shady.get_by_role("button", name="Allow this tool for this session").click()
        expect(shady).to_contain_text("You do not trust this server. Allow shady with any arguments")
        assert len(host.admin.requests) == 1
        shady.get_by_role("button", name="Allow it").click()
        expect(shady).to_have_count(0)
        by_arguments = page.get_by_role("article", name="by_arguments")
        expect(by_arguments.get_by_role("button", name="Allow once")).to_be_visible()
        expect(by_arguments.get_by_role("button", name="Allow this tool")).to_have_count(0)
        by_token = page.get_by_role("article", name="by_token")
        expect(by_token.get_by_role("button", name="Allow this tool for this session")).to_have_count(0)
        by_token.get_by_role("button", name="Allow this tool for 15 minutes").click()
        by_token.get_by_role("button", name="Allow this tool for an hour").click()
        expect(by_token.locator(".sure:visible")).to_contain_text("with any arguments for an hour?")
        by_token.get_by_role("button", name="Allow it").click()
        expect(by_token).to_have_count(0)
        allowed = [("answer", id, "session", None, "any", "console") for id in ("q1", "q2")]
        assert host.admin.requests == [*allowed, ("answer", "q4", "time", 3600, "any", "console")]

    waiting = [
        confirmation(trust="standard"),
        confirmation("q2", name="shady"),
        confirmation("q3", name="by_arguments", whole_session=False),
        confirmation("q4", name="by_token", whole_session=False, whole_time=True, session=False),
    ]
    async with serving(FakeAdminApi(confirmations=waiting)) as host:
        await in_browser(host, act)


async def test_a_file_leads_the_browser_to_a_confirmation(tmp_path: Path) -> None:
    """As a press on the notification of the desktop has it open one."""

    def act(host: Host, browser: Browser) -> None:
        file = tmp_path / "open.html"
        file.write_text(page_to(f"{host.link()}&confirmation=a2"))
        page = browser.new_page()
        page.goto(file.as_uri())
        expect(page.get_by_role("heading", name="second")).to_be_focused()
        assert page.url == f"{host.origin}/console"

    waiting = [confirmation("a1", name="first"), confirmation("a2", name="second")]
    async with serving(FakeAdminApi(confirmations=waiting)) as host:
        await in_browser(host, act)


async def test_all_that_waits_of_a_server_is_denied_and_nothing_of_another() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        first, other = (page.get_by_role("article", name=name, exact=True) for name in ("a", "other"))
        expect(other.get_by_role("button", name="Deny all")).to_have_count(0)
        host.do(host.admin.add, "confirmations", confirmation("q4", name="c"))  # the count follows
        first.get_by_role("button", name="Deny all 3 of this server").click()
        expect(page.locator("#confirmations article")).to_have_count(1)
        assert host.admin.requests == [("deny_all", "github", ["q1", "q2", "q4"], "console")]

    waiting = [
        confirmation("q1", name="a"),
        confirmation("q2", name="b"),
        confirmation("q3", name="other", server="notes"),
        confirmation("q5", name="late", state="refused", why="nobody answered"),
    ]
    async with serving(FakeAdminApi(confirmations=waiting)) as host:
        await in_browser(host, act)


async def test_a_refused_call_is_one_line_that_opens() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        line = page.locator("#refused details.line")
        expect(line).to_contain_text("create_issue")
        assert page.evaluate("document.querySelector('#refused details').offsetHeight") < 60
        expect(page).to_have_title("Colonnade")
        expect(line.get_by_role("article")).to_have_count(0)
        line.locator("summary").first.click()
        expect(line).to_contain_text('"title": "The login page is slow"')
        expect(line).to_contain_text("exactly these arguments and this definition")
        line.get_by_role("button", name="Allow the next identical call once").click()
        expect(line).to_have_count(0)
        assert host.admin.requests == [("answer", "q1", "once", None, "exact", "console")]

    late = confirmation(state="refused", why="nobody answered within 50 s")
    async with serving(FakeAdminApi(confirmations=[late])) as host:
        await in_browser(host, act)


def many() -> FakeAdminApi:
    """A page that is longer than the window."""
    return FakeAdminApi(catalog=[entry(f"tool_{number}") for number in range(40)], servers=[server()])


async def test_what_arrives_is_brought_into_view_and_takes_nothing_from_who_writes() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page(reduced_motion="reduce")
        page.goto(host.link())
        words = page.get_by_label("Name or words")
        words.fill("tool")
        words.scroll_into_view_if_needed()
        page.evaluate("scrollTo(0, document.body.scrollHeight)")
        at = page.evaluate("scrollY")
        assert at > 500
        host.do(host.admin.add, "confirmations", confirmation())
        elsewhere = page.get_by_role("button", name="create_issue of github waits for you")
        expect(elsewhere).to_be_visible()
        assert page.evaluate("document.activeElement.id") == "filter-text"
        card = page.get_by_role("article", name="create_issue")
        expect(card).not_to_be_in_viewport()
        page.keyboard.type("_1")
        expect(words).to_have_value("tool_1")
        elsewhere.click()
        expect(card).to_be_in_viewport()
        expect(elsewhere).to_be_hidden()
        assert page.evaluate("document.activeElement.tagName") == "H3"
        host.do(host.admin.replace, "confirmations", [])
        page.evaluate("document.activeElement.blur(); scrollTo(0, document.body.scrollHeight)")
        host.do(host.admin.add, "confirmations", confirmation("q2", name="second"))
        expect(page.get_by_role("article", name="second")).to_be_in_viewport()
        assert page.evaluate("document.activeElement === document.body")

    async with serving(many()) as host:
        await in_browser(host, act)


# The page gets a browser's notifications that a person has not been asked about, and whether it is in front.
NOTIFICATIONS = """
  window.shown = []; window.inFront = false; window.asked = 0;
  window.Notification = class {
    static permission = "default";
    static async requestPermission() { window.asked++; return (this.permission = "granted"); }
    constructor(title, options) { Object.assign(this, options, { title, closed: false }); window.shown.push(this); }
    close() { this.closed = true; }
  };
  document.hasFocus = () => window.inFront;
"""


async def test_a_person_is_notified_where_the_page_is_not_in_front_and_asked_once() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.add_init_script(NOTIFICATIONS)
        page.goto(host.link())
        host.do(host.admin.add, "confirmations", confirmation("q0", name="before"))
        expect(page.get_by_role("article", name="before")).to_be_visible()
        assert page.evaluate("[shown.length, asked]") == [0, 0]  # nothing is asked without a press
        page.get_by_role("button", name="Turn on notifications").click()
        expect(page.get_by_role("button", name="Turn on notifications")).to_be_hidden()
        host.do(host.admin.add, "confirmations", confirmation())
        until(lambda: page.evaluate("shown.length === 1"), "it is notified")
        told = page.evaluate("({ title: shown[0].title, body: shown[0].body })")
        assert told == {"title": "A call waits for you", "body": "create_issue of github, for laptop"}
        host.do(host.admin.replace, "confirmations", [])
        until(lambda: page.evaluate("shown[0].closed"), "it is taken back")
        page.evaluate("inFront = true")
        host.do(host.admin.add, "confirmations", confirmation("q2", name="second"))
        expect(page.get_by_role("article", name="second")).to_be_visible()
        assert page.evaluate("[shown.length, asked]") == [1, 1]
        page.evaluate("Notification.permission = 'default'")
        page.reload()
        expect(page.get_by_role("article", name="second")).to_be_visible()
        expect(page.get_by_role("button", name="Turn on notifications")).to_be_hidden()

    async with serving(FakeAdminApi()) as host:
        await in_browser(host, act)


async def test_who_wants_no_notifications_is_not_asked_again() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.add_init_script(NOTIFICATIONS)
        page.goto(host.link())
        page.locator("#notify").get_by_role("button", name="No", exact=True).click()
        expect(page.locator("#notify")).to_be_hidden()
        page.reload()
        expect(page.get_by_text("Nothing waits for you.")).to_be_visible()
        expect(page.locator("#notify")).to_be_hidden()
        assert page.evaluate("asked") == 0

    async with serving(FakeAdminApi()) as host:
        await in_browser(host, act)


async def test_many_definitions_are_rows_that_open_and_can_be_searched() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        rows = page.locator("#held details.definition")
        expect(rows).to_have_count(200)
        assert page.evaluate("document.getElementById('held').scrollHeight") < 200 * 60
        expect(page.locator("#held article")).to_have_count(0)
        page.locator("#held-text").fill("tool_19")
        expect(rows).to_have_count(11)  # tool_19 and tool_190 to tool_199
        expect(page.get_by_text("11 of 200 definitions")).to_be_visible()
        page.locator("#held-standing").select_option("changed")
        expect(page.get_by_text("Nothing matches.")).to_be_visible()
        page.locator("#held-standing").select_option("new")
        rows.first.locator("summary").first.click()
        expect(page.get_by_role("article", name="tool_19", exact=True)).to_contain_text("says 19.")
        page.get_by_role("button", name="Approve all 11 shown").click()
        page.get_by_role("button", name="Approve them").click()
        page.locator("#held-text").fill("")
        page.locator("#held-standing").select_option("")
        expect(rows).to_have_count(189)
        assert len(host.admin.requests[0][2]) == 11

    news = [held(f"tool_{at}", standing="new", diff=[], text=f'{{"description": "says {at}."}}') for at in range(200)]
    async with serving(FakeAdminApi(held=news)) as host:
        await in_browser(host, act)


async def test_a_change_of_the_configuration_is_shown_and_applied_as_it_was_shown() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        expect(page.locator("#configuration")).to_be_hidden()
        host.do(host.admin.replace, "configuration", [change(), change("", widens=["audit has changed"], diff=[])])
        card = page.get_by_role("article", name="Changes of the configuration")
        expect(card.get_by_role("region", name="The change of github").locator("ins")).to_contain_text('"new.py"')
        expect(card.locator("del")).to_contain_text('"old.py"')
        expect(card).to_contain_text("command has changed")
        expect(card).to_contain_text("The host itself")
        card.get_by_role("button", name="Apply these changes").click()
        expect(page.locator("#configuration")).to_be_hidden()
        assert host.admin.requests == [("reload", True, "c1")]

    async with serving(FakeAdminApi()) as host:
        await in_browser(host, act)


async def test_the_card_of_a_program_that_runs_as_before_has_the_choice() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        page.get_by_role("link", name="Servers").click()
        asking, other = (page.get_by_role("article", name=name, exact=True) for name in ("former", "time"))
        expect(asking).to_contain_text("Sandbox: off: it runs as your user, as before")
        expect(other).to_contain_text("Sandbox: its own files")
        expect(other.get_by_role("button")).to_have_count(0)
        host.admin.requests.clear()
        asking.get_by_role("button", name="Keep it unconfined: former").click()
        expect(page.locator("#toast")).to_contain_text("former: off.")
        asking.get_by_role("button", name="Confine it: former").click()
        expect(page.locator("#toast")).to_contain_text("former: strict.")
        assert host.admin.requests == [
            ("choose_sandbox", "former", "off", "console"),
            ("choose_sandbox", "former", "strict", "console"),
        ]

    former = server("former", sandbox="off: it runs as your user, as before", sandbox_open=True)
    async with serving(FakeAdminApi(servers=[former, server("time", sandbox="its own files")])) as host:
        await in_browser(host, act)


async def test_the_log_of_a_server_is_shown_on_demand_and_stays_while_its_row_changes() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        expect(page.get_by_text("it said: no API key")).to_be_visible()
        log = page.get_by_role("log", name="The log of time")
        assert host.admin.requests == []
        page.locator("#servers").get_by_text("Its log").click()
        expect(log).to_contain_text("stderr: no API key given")
        expect(log).to_contain_text("stdout: bye")
        expect(log.locator("div")).to_have_count(2)
        host.do(host.admin.replace, "servers", [server("time", state="failed", detail="it said: another")])
        expect(page.get_by_text("it said: another")).to_be_visible()
        expect(log.locator("div")).to_have_count(2)
        page.get_by_role("button", name="Restart time").click()
        expect(page.locator("#toast")).to_contain_text("time: restart")
        assert host.admin.requests[0] == ("server_log", "time", 0)

    failed = server("time", state="failed", detail="it said: no API key")
    async with serving(FakeAdminApi(servers=[failed])) as host:
        await in_browser(host, act)


async def test_a_log_that_is_closed_and_opened_again_shows_each_line_once() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        waiting: list[Route] = []
        page.route("**/api/v1/servers/log", lambda route: waiting.append(route), times=1)
        page.goto(host.link())
        summary = page.locator("#servers").get_by_text("Its log")
        for _ in range(3):
            summary.click()
        until(lambda: page.evaluate("1") and waiting, "it is asked for")
        waiting[0].continue_()  # while it is asked for again
        log = page.get_by_role("log", name="The log of time")
        expect(log).to_contain_text("bye")
        until(lambda: page.evaluate("1") and len(host.admin.requests) > 2, "it goes on")
        expect(log.locator("div")).to_have_count(2)

    async with serving(FakeAdminApi(servers=[server("time")])) as host:
        await in_browser(host, act)


async def test_a_whole_list_is_approved_as_it_was_shown_with_what_its_tools_claim() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        page.locator("#servers").get_by_text("Its definitions, and who approved them").click()
        rows = page.locator(".offered details.line")
        expect(rows).to_have_count(3)
        expect(rows.first).to_contain_text("claims: only reads")
        expect(rows.first).to_contain_text("approved automatically when first seen")
        expect(rows.nth(1)).to_contain_text("claims: may destroy, open world")
        expect(rows.nth(2)).to_contain_text("approved by a person (terminal)")
        expect(rows.first.get_by_text("Reads an issue.")).to_have_count(0)
        rows.first.locator("summary").click()
        expect(rows.first.get_by_text("Reads an issue.")).to_be_visible()
        rows.first.get_by_text("Its definition, with the schema").click()
        expect(rows.first.get_by_role("region", name="The definition")).to_contain_text('"name": "get_issue"')
        shown = [*host.admin.definition_rows]
        host.do(host.admin.definition_rows.append, offered("later"))  # this one was not shown
        page.get_by_role("button", name="Approve all 2 as shown").click()
        page.get_by_role("button", name="Approve them").click()
        expect(rows.first).to_contain_text("approved by a person (console)")
        expect(page.get_by_text("4 definitions, 1 of them approved automatically.")).to_be_visible()
        expect(rows.first.get_by_text("Reads an issue.")).to_be_visible()
        (decided,) = (each for each in host.admin.requests if each[0] == "decide_all")
        assert decided == ("decide_all", "github", [each["fingerprint"] for each in shown[:2]], "approve", "console")

    admin = FakeAdminApi(servers=[server()])
    admin.definition_rows += [
        offered(),
        offered("delete_issue", claims=["destructive", "open-world"]),
        offered("list", by="terminal", counts=True),
    ]
    async with serving(admin) as host:
        await in_browser(host, act)


async def test_definitions_are_shown_with_their_difference_and_decided() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        region = page.get_by_role("region", name="The difference")
        expect(region.locator("ins")).to_have_text("and sends it on", use_inner_text=True)
        expect(region.locator("del")).to_have_text("by number", use_inner_text=True)
        expect(page.get_by_text('{"name": "new_tool"}')).to_be_visible()
        page.get_by_role("button", name="Approve get_issue").click()
        expect(region).to_have_count(0)
        expect(page.locator("#catalog")).to_contain_text("get_issue")
        host.do(host.admin.add, "held", held("x", order="only the order differs; do this"))
        expect(page.get_by_role("article", name="x")).to_contain_text("Only the order differs; do this.")
        page.get_by_role("button", name="Approve all 2 shown").click()
        page.get_by_role("button", name="Approve them").click()
        expect(page.get_by_text("held back: not listed")).to_have_count(0)
        expect(page.locator("#held")).to_contain_text("No definition is held back.")
        expect(page.locator("#held")).to_contain_text("a standard or trusted server newly offers is listed at once")
        assert [each[0] for each in host.admin.requests] == ["decide", "decide_all"]
        assert sorted(host.admin.requests[1][2]) == ["sha256:new_tool", "sha256:x"]

    async with serving(full()) as host:
        await in_browser(host, act)


async def test_the_catalog_is_filtered_and_explained() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        rows = page.locator("#catalog tbody tr:visible")
        expect(rows).to_have_count(2)
        page.get_by_label("Name or words").fill("CREATE")
        expect(rows).to_have_count(1)
        expect(page.get_by_text("1 of 2 entries")).to_be_visible()
        page.get_by_role("button", name="Explain create_issue").click()
        expect(page.get_by_text("a person is asked")).to_be_visible()
        page.get_by_label("Who calls create_issue").select_option("ci")
        until(lambda: host.admin.requests[-1][-1] == "ci", "it is explained for that caller")
        page.get_by_label("Who calls create_issue").select_option("you")
        page.get_by_label("Arguments of create_issue as JSON").fill('{"owner": "acme"}')
        page.get_by_role("button", name="Explain with these arguments").click()
        page.locator("#catalog").get_by_label("Verdict", exact=True).select_option("deny")
        expect(page.get_by_text("Nothing matches.")).to_be_visible()
        assert host.admin.requests[-1] == ("explain", "github", "tool", "create_issue", {"owner": "acme"})

    async with serving(full()) as host:
        await in_browser(host, act)


async def test_a_caller_and_a_view_are_chosen_and_what_it_sees_is_shown() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        expect(page.locator("#view-list li")).to_have_text(
            ["coding for laptop · 5 entries · ~1,234 tokens", "review for all others · 5 entries · ~1,234 tokens"]
        )
        page.locator("#see").click()
        shown = page.locator("#seen")
        expect(shown).to_contain_text(
            "At /mcp, in the view coding: 2 entries; the lists cost a model some 1,234 tokens."
        )
        expect(shown).to_contain_text("search (tool of github): more than one is called search here")
        expect(shown.locator("tbody tr:visible")).to_have_count(2)
        expect(shown.locator("tbody tr").last).to_contain_text("github__create_issue")
        page.get_by_label("View", exact=True).select_option("review")
        expect(shown).to_contain_text("/mcp/@review does not exist for laptop")
        page.get_by_label("View", exact=True).select_option("")
        page.locator("#callers").get_by_label("Caller", exact=True).select_option("over stdio")
        expect(shown).to_contain_text("Over stdio, without a view: 0 entries")
        host.do(host.admin.replace, "views", [view("review")])
        expect(page.locator("#view-list li")).to_have_count(1)
        expect(shown).to_contain_text("Over stdio")
        asked = [each[1:] for each in host.admin.requests]
        assert list(dict.fromkeys(asked)) == [("laptop", ""), ("laptop", "review"), (None, "")]

    admin = full()
    admin.add("views", view("", callers=[]), view(), view("review", callers=[], is_default=True))
    admin.caller_views = {"laptop": caller_view(), None: caller_view("", address="", entries=[], left_out=[])}
    async with serving(admin) as host:
        await in_browser(host, act)


async def test_everything_works_with_the_keyboard() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        card = page.get_by_role("article", name="create_issue")
        expect(card).to_be_visible()
        expect(card.get_by_role("button", name="Deny")).to_be_enabled()
        seen = tab_until(page, "Deny")
        assert "To what waits for you" in seen
        assert page.evaluate("getComputedStyle(document.activeElement).outlineStyle") == "solid"
        page.keyboard.press("Tab")
        assert focused(page) == "Allow once"
        page.keyboard.press("Enter")
        expect(card).to_have_count(0)
        expect(page.get_by_role("button", name="Approve get_issue")).to_be_enabled()
        tab_until(page, "Approve get_issue")
        page.keyboard.press("Space")
        expect(page.locator("#held")).not_to_contain_text("get_issue")
        assert [each[0] for each in host.admin.requests] == ["answer", "decide"]
        last = tab_until(page, "Revoke the grant for list_issues of github")  # no trap on the way to the end
        assert "Explain list_issues" in last

    async with serving(full()) as host:
        await in_browser(host, act)


def focused(page: Page) -> str:
    name: str = page.evaluate(
        "(document.activeElement.getAttribute('aria-label') || document.activeElement.textContent).trim()"
    )
    return name


def tab_until(page: Page, name: str) -> list[str]:
    seen: list[str] = []
    while focused(page) != name:
        seen.append(focused(page))
        assert len(seen) < 100, seen
        page.keyboard.press("Tab")
    return seen


async def test_a_press_that_was_meant_for_another_confirmation_does_not_count() -> None:
    """When the cards move, their buttons rest for a moment."""

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        allow = page.get_by_role("article", name="other").get_by_role("button", name="Allow once")
        expect(allow).to_be_enabled()
        host.do(host.admin.replace, "confirmations", [confirmation("q2", name="other")])
        expect(page.get_by_role("article", name="create_issue")).to_have_count(0)
        allow.dispatch_event("click")
        assert host.admin.requests == []
        expect(allow).to_be_enabled()
        host.do(host.admin.add, "problems", "The audit cannot be written.")  # above the cards
        expect(page.locator("#problems li")).to_have_count(1)
        allow.dispatch_event("click")
        assert host.admin.requests == []
        allow.click()  # waits until it may be pressed
        expect(allow).to_have_count(0)
        assert len(host.admin.requests) == 1

    async with serving(FakeAdminApi(confirmations=[confirmation(), confirmation("q2", name="other")])) as host:
        await in_browser(host, act)


async def test_a_card_built_again_while_the_buttons_rest_takes_no_answer_either() -> None:
    """A card is built again when its text changes. Its new buttons rest as long as the others."""

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.clock.install()
        page.goto(host.link())
        allow = page.get_by_role("article", name="other").get_by_role("button", name="Allow once")
        expect(allow).to_be_enabled()
        page.clock.pause_at(page.evaluate("Date.now()") / 1000 + 5)
        host.do(host.admin.replace, "confirmations", [confirmation("q2", name="other")])
        expect(allow).to_be_disabled()
        host.do(host.admin.replace, "confirmations", [confirmation("q2", name="other", waiting=2)])
        expect(page.get_by_role("article", name="other")).to_contain_text("2 calls wait")
        assert not allow.is_enabled()
        page.clock.resume()
        expect(allow).to_be_enabled()

    async with serving(FakeAdminApi(confirmations=[confirmation(), confirmation("q2", name="other")])) as host:
        await in_browser(host, act)


@pytest.mark.parametrize("theme", ["light", "dark"])
async def test_a_phone_shows_all_of_it_in_either_theme(theme: str) -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page(viewport={"width": 360, "height": 740}, color_scheme=theme)  # type: ignore[arg-type]
        page.goto(host.link())
        expect(page.get_by_role("article", name="create_issue")).to_be_visible()
        page.locator("#servers").get_by_text("Its definitions, and who approved them").first.click()
        page.locator(".offered summary").first.click()
        expect(page.get_by_role("button", name="Approve all 2 as shown")).to_be_enabled()
        page.locator("#see").click()
        expect(page.locator("#seen .left-out")).to_be_visible()
        assert page.evaluate("document.documentElement.scrollWidth") == 360
        low = page.evaluate(CONTRASTS)
        assert low == [], "text that is hard to read"
        paper = page.evaluate("getComputedStyle(document.body).backgroundColor")
        assert (luminance(paper) < 0.1) is (theme == "dark")

    admin = full()
    admin.add("confirmations", confirmation("q4", name="edit_file", **EDIT), confirmation("q5", name="patch", **PATCH))
    admin.definition_rows += [offered(claims=["destructive"]), offered(EVIL_LONG, standing="new"), offered("n" * 300)]
    admin.add("catalog", entry(EVIL_LONG, description=EVIL_LONG))
    admin.add("views", view(callers=["n" * 128]))
    admin.caller_views["n" * 128] = caller_view(instructions=EVIL_LONG, left_out=[left_out(EVIL_LONG)])
    admin.add(
        "confirmations", confirmation("q2", name="n" * 300, arguments="x" * 4000, rule="r" * 300, caller="c" * 300)
    )
    async with serving(admin) as host:
        await in_browser(host, act)


# Every visible text must have a contrast of 4.5 to what is painted behind it (WCAG 2.2, 1.4.3).
CONTRASTS = """() => {
  const parse = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const shine = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const behind = (node) => {
    for (; node; node = node.parentElement) {
      const paint = parse(getComputedStyle(node).backgroundColor);
      if (paint.length < 4 || paint[3] === 1) return paint;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const each of document.querySelectorAll("main *, header *")) {
    const speaks = [...each.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!each.checkVisibility() || !speaks || each.closest("[aria-disabled=true]")) continue;
    const both = [shine(parse(getComputedStyle(each).color)), shine(behind(each))].sort((a, b) => b - a);
    const ratio = (both[0] + 0.05) / (both[1] + 0.05);
    if (ratio < 4.5) found.push(`${each.tagName}.${each.className} ${ratio} ${each.textContent.slice(0, 40)}`);
  }
  return found;
}"""


def luminance(color: str) -> float:
    return sum(int(part) for part in color.removeprefix("rgb(").removesuffix(")").split(",")) / (3 * 255)


async def test_hostile_text_is_text() -> None:
    """Whatever a server says, no script runs and nothing is asked of anybody but the host."""

    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        asked: list[str] = []
        page.on("request", lambda request: asked.append(request.url))
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(host.link())
        expect(page.get_by_role("article", name="<img")).to_have_count(4)
        page.get_by_role("button", name="Explain").first.click()
        page.get_by_role("button", name="Deny").first.click()
        expect(page.locator("#toast")).to_contain_text("<img src=x")
        page.locator("#servers").get_by_text("Its definitions, and who approved them").click()
        page.locator(".offered summary").click()
        expect(page.locator(".offered .words")).to_contain_text("<img src=x")
        page.locator("#see").click()
        expect(page.locator("#seen tbody")).to_contain_text("<img src=x")
        expect(page.locator("#seen .left-out")).to_contain_text("<img src=x")
        expect(page).to_have_title("Colonnade")
        assert page.locator("img, iframe, object, embed, link[rel=icon]").count() == 0
        assert page.locator("script").count() == 2
        assert page.locator("[onerror], [style]").count() == 0
        page_paths = {f"/console{path}" for path in ("", "/console.css", "/console.js", "/history.js", "/open")}
        api_paths = {
            f"/api/v1/{path}"
            for path in ("events", "explain", "confirmations/answer", "definitions/list", "callers/view")
        }
        assert {url.partition("#")[0] for url in asked} == {f"{host.origin}{path}" for path in page_paths | api_paths}
        assert faults == []

    definition = {"server": EVIL, "kind": EVIL, "name": EVIL, "fingerprint": EVIL}
    admin = FakeAdminApi(
        servers=[
            server(EVIL, title=EVIL, transport=EVIL, state=EVIL, detail=EVIL, trust=EVIL, isolation=EVIL, revision=EVIL)
            | {"unmatched": [EVIL], "warnings": [EVIL], "list_problems": [EVIL], "entries": {EVIL: 2}}
        ],
        catalog=[entry("x") | definition | {"title": EVIL, "description": EVIL, "rule": EVIL}],
        confirmations=[
            confirmation(EVIL_ID, server=EVIL, trust=EVIL, name=EVIL, summary=EVIL, caller=EVIL, rule=EVIL)
            | arguments(**{EVIL: f"{EVIL}\n{EVIL}", "oldText": EVIL, "newText": f"{EVIL}\n"})
            | {"process": {"program": EVIL, "pid": 1, "folder": EVIL}}
            | {"claims": [EVIL], "why": EVIL, "description": EVIL, "definition": EVIL},
            confirmation("late", state="refused", server=EVIL, name=EVIL, caller=EVIL, why=EVIL, description=EVIL),
        ],
        configuration=[change(EVIL, widens=[EVIL], diff=[{"op": "added", "text": EVIL}])],
        held=[
            held(**definition)
            | {"text": EVIL, "diff": [{"op": "added", "text": EVIL}, {"op": "removed", "text": EVIL}]},
            held() | definition | {"standing": "new", "text": EVIL, "server": "b"},
        ],
        grants=[
            grant("g", caller=EVIL, server=EVIL, name=EVIL, scope=EVIL, arguments=EVIL, by=EVIL, why=EVIL, live=False)
        ],
        activity=[{"t": 1.0, "kind": EVIL, "server": EVIL, "text": EVIL, "level": EVIL, "first": 1.0, "count": 2}],
        problems=[EVIL],
    )
    seen = {"server": EVIL, "kind": EVIL, "name": EVIL, "outward": EVIL, "title": EVIL, "description": EVIL}
    admin.add("views", view(EVIL, callers=[EVIL], search=EVIL))
    admin.caller_views[EVIL] = caller_view(
        EVIL,
        address=EVIL,
        callers=[EVIL],
        search=EVIL,
        instructions=EVIL,
        entries=[{**seen, "verdict": EVIL, "tokens": 1}],
        left_out=[left_out(EVIL, server=EVIL, kind=EVIL, why=EVIL)],
    )
    evil = {"server": EVIL, "kind": EVIL, "by": EVIL, "claims": [EVIL], "text": EVIL, "problem": EVIL}
    admin.definition_rows.append(offered(EVIL, description=EVIL, **evil))
    async with serving(admin) as host:
        await in_browser(host, act)


EVIL_ID = '"><img src=x onerror=1>'


async def test_a_link_works_once_and_a_new_one_opens_the_same_page() -> None:
    def act(host: Host, browser: Browser) -> None:
        used = host.link()
        first = browser.new_context().new_page()
        first.goto(used)
        expect(first.get_by_text("create_issue").first).to_be_visible()
        first.reload()  # the tab keeps its secret
        expect(first.get_by_text("create_issue").first).to_be_visible()
        second = browser.new_page()
        second.goto(used)
        expect(second.get_by_text("This link was used already")).to_be_visible()
        expect(second.get_by_text("colonnade console", exact=True)).to_be_visible()
        assert second.get_by_text("create_issue").count() == 0
        used = host.link()
        second.evaluate(
            "([a, b]) => { location.hash = a; setTimeout(() => (location.hash = b)); }",
            [each.partition("#")[2] for each in (used, host.link())],
        )
        expect(second.get_by_text("create_issue").first).to_be_visible()
        second.goto(host.link())  # only what is behind the # is new: the page is not loaded again
        expect(second.get_by_text("create_issue").first).to_be_visible()
        third = first.context.new_page()  # the same browser's cookie, in a tab without the secret
        third.goto(f"{host.origin}/console")
        expect(third.get_by_text("It opens with a link that works once.")).to_be_visible()
        first.get_by_role("button", name="Sign out").click()
        expect(first.get_by_text("You have signed out.")).to_be_visible()
        assert first.get_by_text("create_issue").count() == 0
        first.reload()
        expect(first.get_by_text("This console is not open")).to_be_visible()

    async with serving(full()) as host:
        await in_browser(host, act)


async def test_a_page_of_another_origin_or_port_can_neither_read_nor_approve() -> None:
    """Also with the cookie, which the browser sends to other ports of the host, and from them."""

    async def bare(scope: Scope, receive: Receive, send: Send) -> None:
        head = {"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]}
        await send(head)
        await send({"type": "http.response.body", "body": b"<!doctype html><title>other</title>"})

    def act(host: Host, browser: Browser, port: int) -> None:
        context = browser.new_context()
        page = context.new_page()
        page.goto(host.link())
        expect(page.get_by_text("create_issue").first).to_be_visible()
        secret = page.evaluate("JSON.parse(sessionStorage.getItem('colonnade-console')).secret")
        for origin in (f"http://127.0.0.1:{port}", f"http://localhost:{port}"):
            other = context.new_page()
            other.goto(origin)
            assert other.evaluate("sessionStorage.getItem('colonnade-console')") is None
            tried = other.evaluate(ATTACKS, [host.origin, secret])
            assert tried == ["failed"] * 8
            expect(other.locator("iframe")).to_be_visible()
            expect_empty_frame(other)
            # A form is sent, and its answer shown: it must be a no.
            other.evaluate(FORM, host.origin)
            expect(other.locator("body")).to_contain_text("the console takes requests of its own page only")
        cookies = {cookie["name"]: cookie for cookie in context.cookies()}
        assert all(cookie["httpOnly"] and cookie["sameSite"] == "Strict" for cookie in cookies.values())
        cookie = "; ".join(f"{name}={each['value']}" for name, each in cookies.items())
        assert agent(host, {"cookie": cookie}) == 403
        assert agent(host, {"cookie": cookie, "origin": host.origin}) == 403
        assert agent(host, {"origin": host.origin, "x-colonnade-console": secret}) == 403
        assert host.admin.requests == []
        expect(page.get_by_text("create_issue").first).to_be_visible()

    admin = full()
    bound = bind("127.0.0.1", 0)
    port: int = bound.getsockname()[1]
    async with serving(admin) as host, trio.open_nursery() as nursery:
        await nursery.start(serve_http, bare, bound)
        await in_browser(host, partial(_with_port, act, port))
        nursery.cancel_scope.cancel()


def _with_port(act: Callable[[Host, Browser, int], None], port: int, host: Host, browser: Browser) -> None:
    act(host, browser, port)


def expect_empty_frame(page: Page) -> None:
    """The page has one frame, in which the browser shows nothing: the console may not be framed."""

    def is_empty() -> bool:
        page.evaluate("0")  # what the browser has to say is heard meanwhile
        return [frame.url for frame in page.frames[1:]] == ["chrome-error://chromewebdata/"]

    until(is_empty, "the frame stays empty")


# Everything that a page elsewhere can try, with the secret too, should it have it. "failed" is what it sees.
ATTACKS = """async ([origin, secret]) => {
  const body = JSON.stringify({ id: "q1", answer: "always" });
  const headers = {
    "X-Colonnade-Console": secret, "X-Colonnade-Sequence": String(Date.now() + 1e6), "Content-Type": "application/json",
  };
  const script = (url) => new Promise((done, fail) => {
    const made = document.createElement("script");
    made.src = url; made.onload = done; made.onerror = fail;
    document.head.append(made);
  });
  const tries = [
    fetch(origin + "/api/v1/state", { credentials: "include" }),
    fetch(origin + "/api/v1/state", { credentials: "include", headers }),
    fetch(origin + "/api/v1/events", { credentials: "include", headers }),
    fetch(origin + "/api/v1/confirmations/answer", { method: "POST", credentials: "include", headers, body }),
    fetch(origin + "/api/v1/confirmations/answer", { method: "POST", credentials: "include", body }),
    fetch(origin + "/console/open", { method: "POST", credentials: "include", body: "{}" }),
    fetch(origin + "/api/v1/confirmations/answer", { method: "POST", mode: "no-cors", credentials: "include", body }),
    script(origin + "/console/console.js"),
  ];
  navigator.sendBeacon(origin + "/api/v1/confirmations/answer", body);
  const frame = document.createElement("iframe");
  frame.src = origin + "/console";
  document.body.append(frame);
  return (await Promise.allSettled(tries)).map((each) => each.status === "fulfilled" ? "worked" : "failed");
}"""
FORM = """(origin) => {
  const form = document.createElement("form");
  form.method = "POST"; form.action = origin + "/api/v1/confirmations/answer"; form.enctype = "text/plain";
  const field = document.createElement("input");
  field.name = '{"id": "q1", "answer": "always", "x": "'; field.value = '"}';
  form.append(field); document.body.append(form); form.submit();
}"""


def agent(host: Host, headers: dict[str, str]) -> int:
    """An HTTP client without a browser."""
    connection = http.client.HTTPConnection("127.0.0.1", host.port, timeout=10)
    body = json.dumps({"id": "q1", "answer": "always"})
    given = {"content-type": "application/json", "x-colonnade-sequence": str(2**50), **headers}
    connection.request("POST", "/api/v1/confirmations/answer", body, given)
    status = connection.getresponse().status
    connection.close()
    return status


async def test_a_lost_connection_is_said_and_mended() -> None:
    def act(host: Host, browser: Browser, cuts: Callable[[bool], None]) -> None:
        page = browser.new_page()
        page.goto(host.link())
        expect(page.get_by_text("live", exact=True)).to_be_visible()
        cuts(True)
        expect(page.get_by_text("The connection to the host is lost.")).to_be_visible()
        host.do(host.admin.add, "confirmations", confirmation("q7", name="later"))
        cuts(False)
        expect(page.get_by_role("article", name="later")).to_be_visible(timeout=20_000)
        expect(page.get_by_text("The connection to the host is lost.")).to_be_hidden()

    front = bind("127.0.0.1", 0)
    async with serving(full(), front.getsockname()[1]) as host, trio.open_nursery() as nursery:
        wire = Wire(front, host.bound.getsockname()[1])
        await nursery.start(wire.run)
        await in_browser(host, lambda host, browser: act(host, browser, wire.cut))
        nursery.cancel_scope.cancel()


class Wire:
    """Carries bytes between the browser and the host, until it is cut."""

    def __init__(self, front: socket.socket, behind: int) -> None:
        self._front = front
        self._behind = behind
        self._open: set[trio.CancelScope] = set()
        self._is_cut = False

    async def run(self, task_status: trio.TaskStatus[None]) -> None:
        listener = trio.SocketListener(trio.socket.from_stdlib_socket(self._front))
        async with listener, trio.open_nursery() as nursery:
            task_status.started()
            while True:
                nursery.start_soon(self._carry, await listener.accept())

    async def _carry(self, near: trio.SocketStream) -> None:
        if self._is_cut:
            await near.aclose()
            return
        far = await trio.open_tcp_stream("127.0.0.1", self._behind)
        with trio.CancelScope() as scope:
            self._open.add(scope)
            async with near, far, trio.open_nursery() as nursery:
                for source, target in ((near, far), (far, near)):
                    nursery.start_soon(self._pump, source, target, scope)
        self._open.discard(scope)

    async def _pump(self, source: trio.SocketStream, target: trio.SocketStream, scope: trio.CancelScope) -> None:
        try:
            async for data in source:
                await target.send_all(data)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            pass
        scope.cancel()

    def cut(self, cut: bool) -> None:
        trio.from_thread.run_sync(self._cut, cut)

    def _cut(self, cut: bool) -> None:
        self._is_cut = cut
        if cut:
            for scope in self._open:
                scope.cancel()


# Logins


def proposal(**more: Any) -> LoginProposal:
    """A login that can be opened."""
    made: dict[str, Any] = {
        "server": "notes",
        "issuer": "https://login.example",
        "page": "",
        "resource": "https://notes.example/mcp",
        "scopes": ["read", "write"],
        "redirect": "http://127.0.0.1:4711/oauth/callback",
        "former_issuer": "",
        "link": "http://127.0.0.1:4711/oauth/start/n0nce",
        "until": time.time() + 900,
        **more,
    }
    return cast(LoginProposal, made)


def needing(**more: Any) -> dict[str, Any]:
    """A server that needs a login."""
    return server("notes", state="needs login", detail="the server wants a login: colonnade login notes", **more)


async def test_a_login_shows_what_it_is_for_before_anything_leaves() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        page.get_by_role("button", name="Connect notes").click()
        card = page.get_by_role("region", name="Login for notes")
        for text in ("https://login.example", "https://notes.example/mcp", "read write", "127.0.0.1:4711/oauth"):
            expect(card).to_contain_text(text)
        expect(card).not_to_contain_text("another issuer")
        link = card.get_by_role("link", name="Go on to the issuer")
        assert link.get_attribute("href") == "http://127.0.0.1:4711/oauth/start/n0nce"
        assert (link.get_attribute("target"), link.get_attribute("rel")) == ("_blank", "noopener noreferrer")
        assert host.admin.requests == [("login", "notes", "console")]
        host.do(host.admin.replace, "servers", [needing(calls=13)])  # the card outlives a change of the row
        expect(page.get_by_text("13", exact=True)).to_be_visible()
        expect(link).to_be_visible()
        card.get_by_role("button", name="Not now").click()
        expect(card).to_have_count(0)
        page.get_by_role("button", name="Connect notes").click()
        expect(card).to_be_visible()
        host.do(host.admin.replace, "servers", [server("notes")])
        expect(card).to_have_count(0)
        expect(page.get_by_role("button", name="Connect notes")).to_have_count(0)

    admin = FakeAdminApi(servers=[needing()])
    admin.proposals["notes"] = proposal()
    async with serving(admin) as host:
        await in_browser(host, act)


async def test_a_login_that_comes_after_the_server_is_ready_is_not_shown() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        requests: list[Route] = []
        page.route("**/api/v1/servers/login", lambda route: requests.append(route))
        page.goto(host.link())
        with page.expect_request("**/api/v1/servers/login"):
            page.get_by_role("button", name="Connect notes").click()
        host.do(host.admin.replace, "servers", [server("notes")])
        expect(page.get_by_role("button", name="Connect notes")).to_have_count(0)
        with page.expect_response("**/api/v1/servers/login"):
            requests[0].continue_()  # answered only now
        expect(page.locator("#say")).to_have_text("notes needs no login any more.")
        expect(page.get_by_role("region", name="Login for notes")).to_have_count(0)

    admin = FakeAdminApi(servers=[needing()])
    admin.proposals["notes"] = proposal()
    async with serving(admin) as host:
        await in_browser(host, act)


async def test_a_login_that_came_to_nothing_says_why() -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        page.get_by_role("button", name="Connect notes").click()
        expect(page.locator("#toast")).to_have_text("notes: the issuer has no PKCE (S256)")
        host.do(
            host.admin.proposals.__setitem__,
            "notes",
            proposal(former_issuer=EVIL, scopes=[], issuer=EVIL, page="https://p.example"),
        )
        page.get_by_role("button", name="Connect notes").click()
        card = page.get_by_role("region", name="Login for notes")
        expect(card).to_contain_text("The last login was at another issuer")
        expect(card).to_contain_text("those that the issuer gives by itself")
        expect(card).to_contain_text("Its login page is athttps://p.example")
        host.do(host.admin.replace, "servers", [needing(login_failed="the login was denied")])
        expect(card).to_have_count(0)
        expect(page.get_by_text("The last login came to nothing: the login was denied")).to_be_visible()
        assert page.title() == "Colonnade"

    async with serving(FakeAdminApi(servers=[needing()])) as host:
        await in_browser(host, act)


@pytest.mark.parametrize("press", ["Connect notes", "Search"])
async def test_a_login_or_a_search_that_takes_long_holds_up_no_answer(press: str) -> None:
    def act(host: Host, browser: Browser) -> None:
        page = browser.new_page()
        page.goto(host.link())
        expect(page.locator("#confirmations button[aria-disabled]")).to_have_count(0)
        page.get_by_role("button", name=press).click()
        page.get_by_role("button", name="Allow once").click()
        expect(page.get_by_role("article", name="create_issue")).to_have_count(0)
        assert ("answer", "q1", "once", None, "exact", "console") in host.admin.requests

    class Slow(FakeAdminApi):
        async def login(self, server: str, channel: Channel) -> LoginProposal:
            await trio.sleep_forever()
            raise AssertionError

        async def past_calls(self, since: float | None, wanted: Mapping[str, Any]) -> HistoryList:
            await trio.sleep_forever()
            raise AssertionError

    admin = Slow(servers=[needing()], confirmations=[confirmation()])
    admin.proposals["notes"] = proposal()
    async with serving(admin) as host:
        await in_browser(host, act)
