"""The admin API over HTTP, behind both of its doors: routes, answers, and the stream of the state."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, Protocol

import pytest
import trio
import trio.testing

from config import Channel
from host.admin.api import MAX_REQUEST, ROUTES, StateFeed, encode
from host.admin.paths import EVENTS_PATH, PREFIX
from host.admin.schema import SECTIONS, AdminError
from host.admin.socket import SocketDoor
from host.wire.asgi import BODY_TIMEOUT, PEER
from host.wire.descent import this_process
from tests.host.admin.test_web import open_page
from tests.kit.admin import FakeAdminApi, caller_view, confirmation, grant, held, server, view
from tests.kit.asgi import Connection, Response
from tests.kit.openapi import conforms

ANSWER = f"{PREFIX}confirmations/answer"
DECISION = {"server": "github", "kind": "tool", "name": "get_issue", "fingerprint": "sha256:get_issue"}


def full() -> FakeAdminApi:
    admin = FakeAdminApi(
        views=[view()],
        servers=[server()],
        confirmations=[confirmation()],
        held=[held(), held("b")],
        grants=[grant("g1")],
        activity=[
            {
                "t": 1.0,
                "kind": "ServerReady",
                "server": "github",
                "text": "ready",
                "level": "info",
                "first": 1_790_000_000.0,
                "count": 1,
            }
        ],
        problems=["the audit cannot be written"],
    )
    admin.caller_views["laptop"] = caller_view()
    return admin


class Door(Protocol):
    @property
    def connection(self) -> Connection: ...

    async def ask(self, method: str, path: str, body: object = None) -> Response: ...


class WebPage:
    def __init__(self, page: Any) -> None:
        self._page = page
        self.connection: Connection = page.connection

    async def ask(self, method: str, path: str, body: object = None) -> Response:
        if method == "POST":
            found: Response = await self._page.post(path, body)
        else:
            found = await self.connection.get(method, path, headers=self._page._own())
        return found


class Terminal:
    def __init__(self, connection: Connection) -> None:
        self.connection = connection

    async def ask(self, method: str, path: str, body: object = None) -> Response:
        sent = body if isinstance(body, bytes) else body or {}
        return await self.connection.get(method, path, sent if method == "POST" else b"")


@asynccontextmanager
async def open_door(which: str, admin: FakeAdminApi, hosts: Path) -> AsyncIterator[Door]:
    if which == "web":
        async with open_page(admin) as page:
            yield WebPage(page)
        return
    crashes: list[Exception] = []
    async with trio.open_nursery() as nursery:
        connection = Connection(SocketDoor(admin, hosts, crashes.append).serve, nursery)
        connection.extensions[PEER] = this_process
        yield Terminal(connection)
        nursery.cancel_scope.cancel()
    assert crashes == []


DOORS = ("web", "socket")
both_doors = pytest.mark.parametrize("door", DOORS)

LOGIN = f"{PREFIX}servers/login"
REQUESTS: list[tuple[str, str, Any, int]] = [
    ("GET", "/api", None, 200),
    ("GET", f"{PREFIX}host", None, 200),
    ("GET", f"{PREFIX}status", None, 200),
    ("GET", f"{PREFIX}clients", None, 200),
    ("GET", f"{PREFIX}state", None, 200),
    *(("GET", f"{PREFIX}state/{name}", None, 200) for name in SECTIONS),
    ("GET", f"{PREFIX}state/nothing", None, 404),
    ("POST", ANSWER, {"id": "q1", "answer": "always"}, 200),
    ("POST", ANSWER, {"id": "gone", "answer": "once"}, 409),
    ("POST", ANSWER, {"id": "q1"}, 400),
    ("POST", ANSWER, {"id": "q1", "answer": "time"}, 400),
    ("POST", ANSWER, b"not JSON", 400),
    ("POST", ANSWER, b" " * (MAX_REQUEST + 1), 413),
    ("POST", f"{PREFIX}definitions/decide", {**DECISION, "decision": "approve"}, 200),
    ("POST", f"{PREFIX}definitions/decide", {**DECISION, "decision": "allow"}, 400),
    ("POST", f"{PREFIX}definitions/decide", {**DECISION, "fingerprint": "x", "decision": "approve"}, 409),
    ("POST", f"{PREFIX}definitions/decide-all", {"server": "github", "fingerprints": ["sha256:b"]}, 200),
    ("POST", f"{PREFIX}definitions/decide-all", {"server": "github", "fingerprints": []}, 400),
    ("POST", f"{PREFIX}servers/sandbox", {"server": "github", "sandbox": "strict"}, 200),
    ("POST", f"{PREFIX}servers/sandbox", {"server": "github", "sandbox": "all"}, 400),
    ("POST", f"{PREFIX}grants/revoke", {"id": "g1"}, 200),
    ("POST", f"{PREFIX}grants/revoke", {"id": "g9"}, 409),
    ("POST", f"{PREFIX}explain", {"server": "github", "kind": "tool", "name": "x", "arguments": {"a": 1}}, 200),
    ("POST", f"{PREFIX}explain", {"server": "github"}, 400),
    ("POST", f"{PREFIX}definitions/list", {"server": "time"}, 200),
    ("POST", f"{PREFIX}callers/view", {"caller": "laptop"}, 200),
    ("POST", f"{PREFIX}callers/view", {"caller": "laptop", "view": "review"}, 409),
    ("POST", f"{PREFIX}callers/view", {"caller": 1}, 400),
    ("POST", f"{PREFIX}servers/log", {"server": "time", "after": 7}, 200),
    ("POST", f"{PREFIX}servers/traffic", {"server": "time"}, 200),
    ("POST", f"{PREFIX}history/list", {"since": 1.5, "client": "agent", "outcome": "error", "limit": 5}, 200),
    ("POST", f"{PREFIX}history/list", {"limit": 501}, 400),
    ("POST", f"{PREFIX}history/call", {"id": f"{1:016x}"}, 200),
    ("POST", f"{PREFIX}history/call", {"id": "0" * 16}, 409),
    ("POST", f"{PREFIX}history/call", {"id": "0' OR 1=1"}, 400),
    ("POST", f"{PREFIX}servers/control", {"server": "time", "action": "restart"}, 200),
    ("POST", f"{PREFIX}servers/control", {"server": "none", "action": "restart"}, 409),
    ("POST", f"{PREFIX}servers/control", {"server": "time", "action": "start"}, 400),
    ("POST", f"{PREFIX}configuration/reload", {}, 200),
    ("POST", f"{PREFIX}confirmations/deny-all", {"server": "github", "ids": ["q1"]}, 200),
    ("POST", f"{PREFIX}confirmations/deny-all", {"server": "github", "ids": ["q9"]}, 409),
    ("GET", ANSWER, None, 405),
    ("POST", f"{PREFIX}state", {}, 405),
    ("PUT", f"{PREFIX}state", None, 405),
    ("GET", f"{PREFIX}nothing", None, 404),
    ("GET", "/api/v2/state", None, 404),
    ("POST", f"{PREFIX}answer", {}, 404),
]
"""Requests with the status of their answer."""


@pytest.mark.parametrize(("method", "path", "body", "status"), REQUESTS)
async def test_both_doors_answer_the_same_and_as_it_is_described(
    method: str, path: str, body: Any, status: int, tmp_path: Path
) -> None:
    found = []
    for door in DOORS:
        async with open_door(door, full(), tmp_path) as opened:
            answer = await opened.ask(method, path, body)
            found.append((answer.status, answer.headers, json.loads(answer.body)))
    assert found[0] == found[1]
    assert found[0][0] == status
    if status == 405:
        assert found[0][1]["allow"] == ("POST" if path == ANSWER else "GET")
    elif status != 404:
        conforms(method, path, status, found[0][2])


def test_every_route_is_requested_here() -> None:
    requested = {(method, path) for method, path, _, status in REQUESTS if status == 200}
    apart = {("GET", EVENTS_PATH), ("POST", f"{PREFIX}console-links"), ("POST", LOGIN)}
    assert requested | apart == {(route.method, route.path) for route in ROUTES}


@both_doors
async def test_the_stream_has_everything_then_what_changes(door: str, tmp_path: Path) -> None:
    admin = full()
    async with open_door(door, admin, tmp_path) as opened:
        headers = opened._page._own() if isinstance(opened, WebPage) else {}
        stream = opened.connection.send("GET", EVENTS_PATH, headers=headers)
        await _grows(stream, 1)
        assert admin.present == ["console" if door == "web" else "terminal"]
        admin.add("confirmations", confirmation("q2"))
        await _grows(stream, 2)
        first, second = (json.loads(line) for line in stream.body.splitlines())
        assert set(SECTIONS) < set(first)
        assert second.keys() == {"confirmations"}
        for line in (first, second):
            conforms("GET", EVENTS_PATH, 200, line)
        assert stream.headers["content-type"] == "application/x-ndjson"
        opened.connection.leaves.set()
        with trio.fail_after(5):
            while admin.present:  # noqa: ASYNC110 - what is waited for has no event
                await trio.sleep(0.01)


async def _grows(answer: Response, count: int) -> None:
    with trio.fail_after(5):
        while answer.body.count(b"\n") < count:  # noqa: ASYNC110 - as above
            await trio.sleep(0.01)


async def test_only_the_command_line_gets_links_to_the_console(tmp_path: Path) -> None:
    path = f"{PREFIX}console-links"
    async with open_door("socket", full(), tmp_path) as terminal:
        answer = await terminal.ask("POST", path)
        assert (answer.status, json.loads(answer.body)) == (200, {"link": "http://127.0.0.1:1/console#1"})
        conforms("POST", path, 200, json.loads(answer.body))
    async with open_door("web", full(), tmp_path) as page:
        answer = await page.ask("POST", path)
        assert answer.status == 403
        conforms("POST", path, 403, json.loads(answer.body))


async def test_only_the_page_opens_logins(tmp_path: Path) -> None:
    """The command line has a login of its own."""
    admin = full()
    admin.proposals["notes"] = {
        "server": "notes",
        "issuer": "https://login.example",
        "page": "",
        "resource": "https://notes.example/mcp",
        "scopes": ["read"],
        "redirect": "http://127.0.0.1:4711/oauth/callback",
        "former_issuer": "",
        "link": "http://127.0.0.1:4711/oauth/start/x",
        "until": 1_790_000_900.0,
    }
    async with open_door("web", admin, tmp_path) as page:
        for server, status in (("notes", 200), ("other", 409)):
            answer = await page.ask("POST", LOGIN, {"server": server})
            assert answer.status == status
            conforms("POST", LOGIN, status, json.loads(answer.body))
        assert (await page.ask("POST", LOGIN, {"server": "notes", "url": "https://evil.example"})).status == 400
        assert admin.requests == [("login", "notes", "console"), ("login", "other", "console")]
    async with open_door("socket", admin, tmp_path) as terminal:
        answer = await terminal.ask("POST", LOGIN, {"server": "notes"})
        assert (answer.status, json.loads(answer.body)) == (403, {"error": "only the console may ask for this"})
        conforms("POST", LOGIN, 403, json.loads(answer.body))
        assert len(admin.requests) == 2


class NoConsole(FakeAdminApi):
    def console_url(self) -> str:
        raise AdminError("this host has no web console (console: off)")


async def test_a_host_without_a_console_says_so(tmp_path: Path) -> None:
    async with open_door("socket", NoConsole(), tmp_path) as terminal:
        answer = await terminal.ask("POST", f"{PREFIX}console-links")
        assert (answer.status, "console: off" in json.loads(answer.body)["error"]) == (409, True)
        conforms("POST", f"{PREFIX}console-links", 409, json.loads(answer.body))


@both_doors
async def test_a_body_that_does_not_come_is_not_waited_for(
    door: str, tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    admin = full()
    async with open_door(door, admin, tmp_path) as opened:
        opened.connection.writes = trio.Event()
        began = trio.current_time()
        answer = await opened.ask("POST", ANSWER, {"id": "q1", "answer": "once"})
        assert (answer.status, trio.current_time() - began) == (408, BODY_TIMEOUT)
        conforms("POST", ANSWER, 408, json.loads(answer.body))
        assert admin.requests == []


async def test_the_door_is_the_channel_of_an_answer(tmp_path: Path) -> None:
    for door, channel in zip(DOORS, (Channel.CONSOLE, Channel.TERMINAL), strict=True):
        admin = full()
        async with open_door(door, admin, tmp_path) as opened:
            await opened.ask("POST", ANSWER, {"id": "q1", "answer": "once"})
        assert admin.requests == [("answer", "q1", "once", None, "exact", channel.value)]


async def test_an_onlooker_hears_everything_then_what_changes(autojump_clock: trio.testing.MockClock) -> None:
    admin = FakeAdminApi()
    feed = StateFeed(admin)
    first = await feed.next()
    assert set(SECTIONS) < set(first)
    admin.add("confirmations", confirmation())
    admin.add("problems", "the audit cannot be written")
    heard = await feed.next()
    assert heard.keys() == {"confirmations", "problems"}
    assert [each["id"] for each in heard["confirmations"]] == ["q1"]


async def test_news_is_not_lost_by_whoever_stops_waiting(autojump_clock: trio.testing.MockClock) -> None:
    admin = FakeAdminApi()
    feed = StateFeed(admin)
    await feed.next()
    with trio.move_on_after(60) as waiting:
        await feed.next()
    assert waiting.cancelled_caught
    admin.add("grants", {"id": "g"})
    assert (await feed.next()).keys() == {"grants"}


def test_text_that_is_no_unicode_goes_out_all_the_same() -> None:
    assert json.loads(encode({"a": "half \ud800"})) == {"a": "half \ud800"}
    assert encode({"a": "é", "b": [1, None, True]}) == '{"a":"é","b":[1,null,true]}'.encode()
