"""The web console over HTTP: what the page gets, and everything that does not get in."""

from __future__ import annotations

import json
import re
from collections.abc import AsyncIterator, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from hashlib import sha256
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

import host.admin
from host.admin.api import ROUTES
from host.admin.login import CODE_LIFETIME, COOKIE_PREFIX, MAX_FAILED_TRIES, MAX_SESSIONS, ConsoleSessions
from host.admin.schema import REQUESTS, HistoryList, HistoryReader
from host.admin.socket import MAX_REFUSALS_RECORDED
from host.admin.web import MAX_STREAMS, MAX_UNDER_WAY, RefuseSender, WebDoor, allowed_hosts, console_url
from host.attempts import Attempt, Reason
from host.wire.asgi import CLAIM, HEARTBEAT_INTERVAL, ASGIApp
from host.wire.descent import PeerProcess
from tests.kit.admin import FakeAdminApi, confirmation, held
from tests.kit.asgi import Connection, HeaderValue, Response

HOST = "127.0.0.1:8808"
ORIGIN = f"http://{HOST}"
API = "/api/v1/"
TOKEN = "0123456789abcdef"
EVERY_POST = [
    *(f"{API}{path}" for path in REQUESTS),
    f"{API}console-links",
    "/console/leave",
]
EVERY_GET = ["/api", f"{API}host", f"{API}state", f"{API}events"]
ONCE = {"id": "q1", "answer": "once"}


def fail(problem: Exception) -> None:
    raise AssertionError("a mistake of ours") from problem


class Page:
    """A browser's page, and what it may forget or have wrong."""

    def __init__(self, app: ASGIApp, nursery: trio.Nursery, sessions: ConsoleSessions, stop: trio.Event) -> None:
        self.connection = Connection(app, nursery)
        self.sessions = sessions
        self.stop = stop
        self.cookie = ""
        self.secret = ""
        self.number = 0
        self.attempts: list[Attempt] = []

    def another(self) -> Page:
        other = Page(self.connection.app, self.connection._nursery, self.sessions, self.stop)
        other.cookie, other.secret, other.number = self.cookie, self.secret, self.number
        return other

    async def open(self, by: Mapping[str, str] | None = None) -> None:
        answer = await self.post("/console/open", by or {"code": self.sessions.new_code()})
        assert answer.status == 200
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.secret = json.loads(answer.body)["secret"]

    async def post(
        self, path: str, body: object = None, headers: Mapping[str, HeaderValue] | None = None, **more: Any
    ) -> Response:
        self.number += 1
        given: dict[str, HeaderValue] = {"origin": ORIGIN, "x-colonnade-sequence": str(self.number), **self._own()}
        sent = body if isinstance(body, bytes) else body or {}
        return await self.connection.get("POST", path, sent, headers={**given, **(headers or {})}, **more)

    async def get(self, path: str, headers: Mapping[str, HeaderValue] | None = None) -> Response:
        return await self.connection.get("GET", path, headers={**self._own(), **(headers or {})})

    def follow(self, headers: Mapping[str, HeaderValue] | None = None) -> Response:
        return self.connection.send("GET", f"{API}events", headers={**self._own(), **(headers or {})})

    def _own(self) -> dict[str, HeaderValue]:
        own: dict[str, HeaderValue] = {"cookie": self.cookie} if self.cookie else {}
        return own | ({"x-colonnade-console": self.secret} if self.secret else {})


async def admit(*addresses: object) -> None:
    """Let everybody in."""


@asynccontextmanager
async def open_page(admin: FakeAdminApi | None = None, refuse: RefuseSender = admit) -> AsyncIterator[Page]:
    sessions, stop = ConsoleSessions(trio.current_time), trio.Event()
    attempts: list[Attempt] = []
    app = WebDoor(
        admin or FakeAdminApi(), sessions, allowed_hosts("127.0.0.1", 8808), stop, fail, attempts.append, refuse
    ).serve
    async with trio.open_nursery() as nursery:
        page = Page(app, nursery, sessions, stop)
        page.attempts = attempts
        await page.open()
        yield page
        nursery.cancel_scope.cancel()


def lines(answer: Response) -> list[dict[str, Any]]:
    return [json.loads(line) for line in answer.body.splitlines() if line]


# The page


@pytest.mark.parametrize("path", ["/console", "/console/console.js", "/console/history.js", "/console/console.css"])
async def test_the_page_is_the_same_for_everybody(path: str) -> None:
    async with open_page(FakeAdminApi(confirmations=[confirmation()])) as page:
        stranger = await page.connection.get("GET", path, headers={"host": "evil.com", "origin": "http://evil.com"})
        own = await page.connection.get("GET", path, headers={"cookie": page.cookie})
        assert own.status == stranger.status == 200
        assert own.body == stranger.body
        assert b"create_issue" not in own.body
        assert "set-cookie" not in own.headers
        assert not [name for name in own.headers if name.startswith("access-control")]
        policy = dict(rule.strip().split(" ", 1) for rule in own.headers["content-security-policy"].split(";"))
        assert (
            policy["default-src"]
            == policy["base-uri"]
            == policy["form-action"]
            == policy["frame-ancestors"]
            == "'none'"
        )
        assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
        assert policy["require-trusted-types-for"] == "'script'"
        assert own.headers["cache-control"] == "no-store"
        assert own.headers["x-content-type-options"] == "nosniff"
        assert own.headers["referrer-policy"] == "no-referrer"
        assert own.headers["cross-origin-opener-policy"] == own.headers["cross-origin-resource-policy"] == "same-origin"


def test_the_page_makes_text_of_text_and_loads_nothing_from_elsewhere() -> None:
    folder = Path(host.admin.__file__).parent / "static"
    script = "".join(path.read_text("utf-8") for path in sorted(folder.glob("*.js")))
    page, style = [(folder / name).read_text("utf-8") for name in ("index.html", "console.css")]
    banned = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|Function\(|createContextualFragment"
    assert not re.search(banned + r"|DOMParser|setHTML|srcdoc|localStorage|\.cookie", script)
    assert not re.search(
        r"https?:|//[a-z]+\.", page + style + re.sub(r"^\s*//.*$|(?<=\s)//\s.*$", "", script, flags=re.M)
    )
    assert not re.search(r"<script>|\son[a-z]+=|style=|<img|<form|url\(|@import", page + style)


@pytest.mark.parametrize("path", ["/console/", "/console/x", "/console/open/", "/console/../mcp", "/console/%6fpen"])
async def test_other_paths_are_nothing(path: str) -> None:
    async with open_page() as page:
        assert (await page.connection.get("GET", path)).status == 404
        assert (await page.connection.get("POST", path)).status == 404


async def test_the_address_alone_leads_to_the_page() -> None:
    async with open_page() as page:
        answer = await page.connection.get("GET", "/")
        assert (answer.status, answer.headers["location"]) == (303, "/console")
        assert (await page.connection.get("POST", "/")).status == 404


@pytest.mark.parametrize("method", ["HEAD", "PUT", "DELETE", "OPTIONS", "PATCH"])
@pytest.mark.parametrize("path", ["/console", "/api/v1/state", "/api/v1/confirmations/answer", "/console/open"])
async def test_other_methods_are_refused_and_no_preflight_is_granted(method: str, path: str) -> None:
    async with open_page() as page:
        headers = {"origin": ORIGIN, "access-control-request-method": "POST", **page._own()}
        answer = await page.connection.get(method, path, headers=headers)
        assert (answer.status, answer.headers["allow"]) in [(405, "GET"), (405, "POST")]
        assert not [name for name in answer.headers if name.startswith("access-control")]


# Opening


async def test_a_link_opens_once() -> None:
    async with open_page() as page:
        code = page.sessions.new_code()
        first = await page.post("/console/open", {"code": code})
        assert first.status == 200
        name, attributes = first.headers["set-cookie"].split("=", 1)
        assert re.fullmatch(COOKIE_PREFIX + "[0-9a-f]{16}", name)
        assert set(attributes.split("; ")[1:]) == {"Path=/", "Max-Age=43200", "HttpOnly", "SameSite=Strict"}
        again = await page.post("/console/open", {"code": code})
        assert again.status == 403
        assert "set-cookie" not in again.headers
        assert "colonnade console" in json.loads(again.body)["error"]


async def test_a_process_that_may_not_decide_opens_nothing_and_has_used_up_its_link() -> None:
    admin, server = FakeAdminApi(), PeerProcess(7, 1000)
    answers: Iterator[tuple[PeerProcess, str] | None] = iter([None, (server, "no server"), None])
    asked: list[object] = []

    async def refuse(*addresses: object) -> tuple[PeerProcess, str] | None:
        asked.append(addresses)
        return next(answers)

    async with open_page(admin, refuse) as page:
        link = {"code": page.sessions.new_code()}
        refused = await page.another().post("/console/open", link)
        assert refused.status == 403
        assert json.loads(refused.body) == {"error": "no server", "over": True}
        assert "set-cookie" not in refused.headers
        assert admin.refusals == [(server, "no server", 0)]
        assert (await page.another().post("/console/open", link)).status == 403
        assert asked == [(("127.0.0.1", 50_000), None)] * 2  # a code that opens nothing starts no search
        await page.another().open()


async def test_an_old_link_opens_nothing(autojump_clock: trio.testing.MockClock) -> None:
    async with open_page() as page:
        code = page.sessions.new_code()
        await trio.sleep(CODE_LIFETIME)
        late = await page.post("/console/open", {"code": code})
        never = await page.post("/console/open", {"code": "x" * 43})
        assert (late.status, late.body) == (never.status, never.body)
        assert late.status == 403


async def test_links_cannot_be_tried_out(autojump_clock: trio.testing.MockClock) -> None:
    async with open_page() as page:
        statuses = [
            (await page.post("/console/open", {"code": str(number)})).status for number in range(MAX_FAILED_TRIES + 1)
        ]
        assert statuses == [403] * MAX_FAILED_TRIES + [429]


@pytest.mark.parametrize(
    "body",
    [
        *(b"", b"[]", b"{}", b'{"code": 1}', b'{"code": "a", "more": 1}', b'{"token": 1}', b'{"token": ""}'),
        b'{"code": "a", "token": "b"}',
    ],
)
async def test_what_opens_nothing(body: bytes) -> None:
    async with open_page() as page:
        assert (await page.post("/console/open", body)).status == 400


@pytest.mark.parametrize(
    ("address", "port", "opens"),
    [("127.0.0.1", 8808, "http://127.0.0.1:8808/console#c"), ("::1", 9, "http://[::1]:9/console#c")],
)
def test_how_a_link_is_written(address: str, port: int, opens: str) -> None:
    assert console_url(address, port, "c") == opens
    assert opens.split("/")[2] in allowed_hosts(address, port)


def test_the_port_of_http_itself_need_not_be_named() -> None:
    assert allowed_hosts("127.0.0.1", 80) == {"127.0.0.1:80", "localhost:80", "127.0.0.1", "localhost"}
    assert allowed_hosts("::1", 8808) == {"[::1]:8808", "localhost:8808"}


# Who gets in

WRONG: list[dict[str, HeaderValue]] = [
    {"host": "localhost:8809", "origin": "http://localhost:8809"},
    {"host": "evil.com:8808", "origin": "http://evil.com:8808"},
    {"host": None},
    {"host": [HOST, HOST]},
    {"origin": "http://evil.com"},
    {"origin": "http://127.0.0.1:3000"},
    {"origin": "http://127.0.0.1"},
    {"origin": "http://localhost:8808"},
    {"origin": "https://127.0.0.1:8808"},
    {"origin": f"{ORIGIN}/"},
    {"origin": "null"},
    {"origin": ""},
    {"origin": [ORIGIN, ORIGIN]},
    {"sec-fetch-site": "same-site"},
    {"sec-fetch-site": "cross-site"},
    {"sec-fetch-site": "none"},
]
WRONG_POST: list[dict[str, HeaderValue]] = [
    {"origin": None},
    {"content-type": None},
    {"content-type": "text/plain"},
    {"content-type": "application/x-www-form-urlencoded"},
    {"content-type": "multipart/form-data"},
    {"content-type": ["application/json", "text/plain"]},
]


@pytest.mark.parametrize("headers", WRONG + WRONG_POST)
async def test_what_does_not_come_from_the_page_changes_nothing(headers: dict[str, HeaderValue]) -> None:
    admin = FakeAdminApi(confirmations=[confirmation()], held=[held()])
    async with open_page(admin) as page:
        for path in [*EVERY_POST, "/console/open"]:
            body = {"code": page.sessions.new_code()} if path == "/console/open" else ONCE
            answer = await page.post(path, body, headers)
            assert (answer.status, json.loads(answer.body).keys()) == (403, {"error"})
        assert admin.requests == []
        assert (await page.post(f"{API}confirmations/answer", ONCE)).status == 200


@pytest.mark.parametrize("headers", WRONG)
async def test_what_does_not_come_from_the_page_reads_nothing(headers: dict[str, HeaderValue]) -> None:
    async with open_page(FakeAdminApi(confirmations=[confirmation()])) as page:
        for path in EVERY_GET:
            answer = await page.get(path, headers)
            assert answer.status == 403
            assert b"create_issue" not in answer.body


async def test_cookie_and_secret_are_both_needed_and_nothing_says_which_is_missing() -> None:
    admin = FakeAdminApi(confirmations=[confirmation()])
    async with open_page(admin) as page:
        other = page.another()
        await other.open()
        own_name = page.cookie.partition("=")[0]
        bodies = set()
        for headers in (
            {"x-colonnade-console": None},
            {"x-colonnade-console": ""},
            {"x-colonnade-console": page.secret[:-1] + "?"},
            {"x-colonnade-console": other.secret},
            {"x-colonnade-console": [page.secret, page.secret]},
            {"x-colonnade-console": None, "authorization": f"Bearer {page.secret}"},
            {"cookie": None},
            {"cookie": f"{own_name}=x"},
            {"cookie": other.cookie},
            {"cookie": f"{page.cookie}; {page.cookie}"},
            {"cookie": None, "x-colonnade-console": None},
        ):
            for path in EVERY_POST:
                answer = await page.post(path, ONCE, headers)
                assert answer.status == 403
                bodies.add(answer.body)
            for path in EVERY_GET:
                answer = await page.get(path, headers)
                assert answer.status == 403
                bodies.add(answer.body)
        assert len(bodies) == 1
        assert admin.requests == []
        both = {"cookie": f"a=b; {page.cookie}; {other.cookie}"}  # two tabs of one browser
        assert (await page.post(f"{API}confirmations/answer", ONCE, both)).status == 200
        assert (await other.get(f"{API}state", both)).status == 200


async def test_what_is_refused_is_recorded_and_what_the_page_does_is_not() -> None:
    async with open_page() as page:
        assert (await page.get(f"{API}state")).status == 200
        assert not page.attempts
        stranger = page.another()
        stranger.secret = "another"
        assert (await stranger.get(f"{API}state")).status == 403
        assert (await page.post("/console/open", {"code": "guessed"})).status == 403
        assert page.attempts == [
            Attempt(Reason.CONSOLE, "path", path, "127.0.0.1") for path in (f"{API}state", "/console/open")
        ]


async def test_a_request_counts_once() -> None:
    admin = FakeAdminApi(confirmations=[confirmation()])
    async with open_page(admin) as page:
        assert (await page.post(f"{API}confirmations/answer", ONCE, {"x-colonnade-sequence": "10"})).status == 200
        admin.add("confirmations", confirmation())
        for number in ("10", "9", "0", "-1", "+11", "1e9", "011", "", None, ["11", "12"], str(2**53), "9" * 16):
            assert (await page.post(f"{API}confirmations/answer", ONCE, {"x-colonnade-sequence": number})).status == 403
        assert len(admin.requests) == 1
        assert (await page.post(f"{API}confirmations/answer", ONCE, {"x-colonnade-sequence": "11"})).status == 200


# Callers that see calls of the past


def with_reader(**more: Any) -> tuple[FakeAdminApi, FakeAdminApi]:
    """An admin API, and what a caller sees of the past."""
    admin, calls = FakeAdminApi(confirmations=[confirmation()], held=[held()]), FakeAdminApi()
    admin.readers[sha256(TOKEN.encode()).digest()] = HistoryReader("ann", calls, **{"sees_all": False, **more})
    return admin, calls


async def signed_in(page: Page, token: str = TOKEN) -> Page:
    """Another page, which a caller has opened."""
    other = page.another()
    await other.open({"token": token})
    return other


@pytest.mark.parametrize("sees_all", [False, True])
async def test_a_caller_sees_calls_of_the_past_and_reaches_nothing_else(sees_all: bool) -> None:
    admin, calls = with_reader(sees_all=sees_all)
    async with open_page(admin) as page:
        opened = await page.another().post("/console/open", {"token": TOKEN})
        assert opened.status == 200
        assert {**json.loads(opened.body), "secret": ""} == {"secret": "", "caller": "ann", "all": sees_all}
        caller = await signed_in(page)
        row = calls.past[0]
        found = await caller.post(f"{API}history/list", {"caller": "bob"})
        assert (found.status, json.loads(found.body)["calls"]) == (200, [row])
        shown = await caller.post(f"{API}history/call", {"id": row["id"]})
        assert (shown.status, json.loads(shown.body)["call"]) == (200, row)
        assert [each[0] for each in calls.requests] == ["past_calls", "past_call"]
        assert (await caller.post(f"{API}history/list", {"only": "bob"})).status == 400
        reached = {(route.method, route.path) for route in ROUTES if route.body in ("history/list", "history/call")}
        for route in ROUTES:
            if (route.method, route.path) not in reached:
                ask = partial(caller.post, body=ONCE) if route.method == "POST" else caller.get
                answer = await ask(route.path)
                assert answer.status == 403
                assert set(json.loads(answer.body)) == {"error"}
        assert admin.requests == []
        assert admin.present == []
        assert len(calls.requests) == 2


async def test_what_a_callers_own_page_did_not_send_reads_nothing() -> None:
    admin, calls = with_reader()
    async with open_page(admin) as page:
        caller = await signed_in(page)
        credentials: list[dict[str, HeaderValue]] = [
            {"cookie": None},
            {"cookie": page.cookie},
            {"x-colonnade-console": page.secret},
            {"x-colonnade-console": TOKEN},
            {"x-colonnade-console": None, "authorization": f"Bearer {TOKEN}"},
        ]
        for headers in (*WRONG, *WRONG_POST):
            assert (await page.another().post("/console/open", {"token": TOKEN}, headers)).status == 403
        for headers in (*WRONG, *WRONG_POST, *credentials):
            assert (await caller.post(f"{API}history/list", {}, headers)).status == 403
        assert (
            await page.another().post("/console/open", {"token": TOKEN}, {"origin": "http://evil.com"})
        ).status == 403
        assert calls.requests == []
        assert (await caller.post(f"{API}history/list")).status == 200


async def test_a_session_of_a_caller_ends_with_what_the_configuration_says() -> None:
    admin, calls = with_reader()
    async with open_page(admin) as page:
        caller = await signed_in(page)
        admin.readers.clear()
        over = await caller.post(f"{API}history/list")
        assert (over.status, json.loads(over.body)["over"]) == (403, True)
        admin.readers.update(with_reader()[0].readers)
        assert (await caller.post(f"{API}history/list")).status == 403
        assert calls.requests == []
        caller = await signed_in(page)
        assert (await caller.post("/console/leave")).status == 200
        assert (await caller.post(f"{API}history/list")).status == 403
        assert (await page.get(f"{API}state")).status == 200


async def test_a_wrong_token_is_answered_like_any_other(autojump_clock: trio.testing.MockClock) -> None:
    admin, _ = with_reader()
    async with open_page(admin) as page:
        tries = [f"{TOKEN[:-1]}é", TOKEN.upper(), "x" * 1000, *map(str, range(MAX_FAILED_TRIES - 3)), "one more"]
        answers = [await page.another().post("/console/open", json.dumps({"token": each}).encode()) for each in tries]
        assert [answer.status for answer in answers] == [403] * MAX_FAILED_TRIES + [429]
        assert len({answer.body for answer in answers[:-1]}) == 1
        assert "set-cookie" not in answers[0].headers
        await signed_in(page)


async def test_a_process_that_may_not_decide_is_no_caller_either(autojump_clock: trio.testing.MockClock) -> None:
    async def refuse(*addresses: object) -> tuple[PeerProcess, str] | None:
        return (PeerProcess(7, 1000), "no server") if refuses else None

    admin, _ = with_reader()
    refuses = False
    async with open_page(admin, refuse) as page:
        refuses = True
        answer = await page.another().post("/console/open", {"token": TOKEN})
        assert (answer.status, json.loads(answer.body)["error"]) == (403, "no server")
        assert len(admin.refusals) == 1
        # Its token is not used up, as a link would be, and may not fill the disk.
        for _ in range(MAX_REFUSALS_RECORDED + 2):
            assert (await page.another().post("/console/open", {"token": TOKEN})).status == 403
        assert len(admin.refusals) == MAX_REFUSALS_RECORDED


class SlowHistory(FakeAdminApi):
    """The calls of the past for a caller, which takes until `go_on`."""

    def __init__(self) -> None:
        super().__init__()
        self.begun, self.go_on = trio.Event(), trio.Event()

    async def past_calls(self, since: float | None, wanted: Mapping[str, Any]) -> HistoryList:
        found = await super().past_calls(since, wanted)
        self.begun.set()
        await self.go_on.wait()
        return found


def with_slow_readers(*tokens: str) -> tuple[FakeAdminApi, SlowHistory]:
    admin, slow = FakeAdminApi(), SlowHistory()
    for token in tokens:
        admin.readers[sha256(token.encode()).digest()] = HistoryReader("ann", slow, sees_all=False)
    return admin, slow


@pytest.mark.parametrize("leaves", [False, True])
async def test_callers_search_one_after_the_other_and_what_holds_is_what_holds_then(leaves: bool) -> None:
    """The owner waits for none of them."""
    admin, slow = with_slow_readers(TOKEN)
    async with open_page(admin) as page:
        one, other = await signed_in(page), await signed_in(page)
        statuses: list[int] = []

        async def search(caller: Page) -> None:
            statuses.append((await caller.post(f"{API}history/list")).status)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(search, one)
            await slow.begun.wait()
            nursery.start_soon(search, other)
            await trio.testing.wait_all_tasks_blocked()
            assert len(slow.requests) == 1
            assert (await page.post(f"{API}history/list")).status == 200
            if leaves:
                assert (await other.another().post("/console/leave")).status == 200
            else:
                admin.readers.clear()
            slow.go_on.set()
        assert sorted(statuses) == [200, 403]
        assert len(slow.requests) == 1


async def test_a_caller_has_so_many_requests_at_a_time_and_another_one_its_own(
    autojump_clock: trio.testing.MockClock,
) -> None:
    """Each waits with its connection, which nobody else gets meanwhile."""
    another = TOKEN[::-1]
    admin, slow = with_slow_readers(TOKEN, another)
    async with open_page(admin) as page:
        statuses: list[int] = []

        async def search(caller: Page) -> None:
            statuses.append((await caller.post(f"{API}history/list")).status)

        one_more = await signed_in(page)
        async with trio.open_nursery() as nursery:
            for token in (*[TOKEN] * MAX_UNDER_WAY, another):
                nursery.start_soon(search, await signed_in(page, token))
            await trio.testing.wait_all_tasks_blocked()
            for path, body in ((f"{API}history/list", {}), ("/console/open", {"token": TOKEN})):
                with trio.fail_after(5):
                    refused = await one_more.post(path, body)
                assert (refused.status, refused.headers["retry-after"]) == (503, "1")
            await signed_in(page, another)
            assert statuses == []
            slow.go_on.set()
        assert statuses == [200] * (MAX_UNDER_WAY + 1)
        assert (await one_more.post(f"{API}history/list")).status == 200


# The stream


async def test_the_stream_gives_signs_of_life(autojump_clock: trio.testing.MockClock) -> None:
    async with open_page() as page:
        stream = page.follow()
        await trio.sleep(HEARTBEAT_INTERVAL * 3.5)
        assert stream.body.count(b"\n") == 4
        assert len(lines(stream)) == 1


async def test_a_page_that_is_there_stays_open_and_one_that_went_does_not(
    autojump_clock: trio.testing.MockClock,
) -> None:
    async with open_page() as page:
        page.follow()
        await trio.sleep(13 * 3600)
        assert (await page.get(f"{API}state")).status == 200
        page.connection.leaves.set()
        page.connection = page.another().connection
        await trio.sleep(13 * 3600)
        assert (await page.get(f"{API}state")).status == 403


async def test_the_stream_ends_when_the_host_stops() -> None:
    async with open_page() as page:
        stream = page.follow()
        await _grows(stream, 1)
        page.stop.set()
        with trio.fail_after(5):
            await stream.complete.wait()


async def test_leaving_ends_the_session_and_its_streams() -> None:
    admin = FakeAdminApi()
    async with open_page(admin) as page:
        other = page.another()
        await other.open()
        streams = [page.follow(), other.follow()]
        for stream in streams:
            await _grows(stream, 1)
        answer = await page.post("/console/leave")
        assert "Max-Age=0" in answer.headers["set-cookie"]
        with trio.fail_after(5):
            await streams[0].complete.wait()
        assert admin.present == ["console"]
        assert not streams[1].complete.is_set()
        assert (await page.get(f"{API}state")).status == 403
        assert (await other.get(f"{API}state")).status == 200


async def test_a_session_that_gives_way_hears_nothing_more() -> None:
    admin = FakeAdminApi()
    async with open_page(admin) as page:
        stream = page.follow()
        await _grows(stream, 1)
        for _ in range(MAX_SESSIONS):
            await page.another().open()
        with trio.fail_after(5):
            await stream.complete.wait()


async def test_one_session_has_so_many_streams() -> None:
    async with open_page() as page:
        streams = [page.follow() for _ in range(MAX_STREAMS)]
        for stream in streams:
            await _grows(stream, 1)
        assert (await page.get(f"{API}events")).status == 429


async def _grows(answer: Response, count: int) -> None:
    await _until(lambda: len(lines(answer)) >= count)


async def _until(holds: Any) -> None:
    with trio.fail_after(5):
        while not holds():  # noqa: ASYNC110 - what is waited for has no event
            await trio.sleep(0.01)


async def test_every_request_may_use_the_slots_that_are_kept_for_the_console_and_a_session_keeps_its_own() -> None:
    told: list[Hashable] = []

    def take(owner: Hashable, *, reserved: bool) -> bool:
        assert reserved
        told.append(owner)
        return True

    async with open_page(with_reader()[0]) as page:
        page.connection.extensions[CLAIM] = take
        assert (await page.connection.get("GET", "/console")).status == 200
        assert (await page.get(f"{API}state")).status == 200
        assert (await page.post(f"{API}confirmations/answer", ONCE)).status in (200, 409)
        assert (await page.get(f"{API}state", {"x-colonnade-console": "wrong"})).status == 403
        caller = await signed_in(page)
        caller.connection.extensions[CLAIM] = take
        assert (await caller.post(f"{API}history/list")).status == 200
        unknown, person = told[0], told[2]
        assert unknown is None
        assert person is not None
        assert told == [None, None, person, None, person, None, None]  # a caller keeps none


async def test_a_full_console_says_so_before_the_body() -> None:
    async with open_page() as page:
        page.connection.extensions[CLAIM] = lambda owner, *, reserved: False
        page.connection.writes = trio.Event()
        answer = await page.post("/console/open", {"code": "x"})
        assert (answer.status, answer.headers["retry-after"]) == (503, "1")
        assert (await page.connection.get("GET", "/console")).status == 503
