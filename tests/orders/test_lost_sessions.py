"""Servers at a URL that answer with any status and any body at any moment of a session, in each era: what may have run
is never sent twice, and whatever a server said, the next calls work again once it answers well.

What a server may say is written here from the revisions alone. `test_the_judge_…` show that both rules would notice.
"""

from __future__ import annotations

import json
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from config import HttpServer, Isolation, Secret
from host.protocol.versions import LATEST
from host.upstream.backoff import MAX_STARTS
from host.url import Url
from host.wire.http_client import HttpLink, SessionEnded, open_http
from host.wire.http_errors import CONNECTION_BROKE, Broken
from host.wire.http_pool import Headers, Pool, PooledResponse
from host.wire.http_transport import open_origin
from host.wire.link import Link
from host.wire.session_check import SessionCheck
from host.wire.sse_client import SseLink
from tests.kit.world import Refusal, ScriptedServer, open_world

PARTS, CASES = 10, 200
"""Parts of the long run, and the cases of each."""
FEW = 80
"""Cases of the short one."""
HEALED = 900.0
"""Seconds in which calls must work again: the pauses between attempts grow to five minutes while a person is needed."""
LONG = 1000
"""The call that is executed before others meet the bad answer, and answered long after."""
SOON = 5.0
"""The same after nothing happened but the loss of a session."""

ERAS = ("handshake", "old", "stateless", "both")
"""`old`: a handshake server that refuses revisions after 2025-03-26 by an error."""
MOMENTS = {
    "discover": "server/discover",
    "initialize": "initialize",
    "initialized": "notifications/initialized",
    "list": "tools/list",
    "call": "tools/call",
    "done": "tools/call",
    "ping": "ping",
    "stream": "GET",
    "any": "",
    "between": "nothing",
}
"""The moments, and the requests that are answered badly then. `done`: the call is executed before."""
STATUSES = (*(200, 202, 204, 307, 400, 401, 403, 404, 405, 406, 409, 410, 415, 421, 422, 429), *range(500, 506))
BODIES = ("nothing", "page", "broken", "session", "session of no id", "error", "error of no id", "version", "result")
LOSSES: tuple[tuple[int, str], ...] = (
    (404, "nothing"),
    (404, "session"),
    (400, "session"),
    (400, "session of no id"),
    (400, "nothing"),
)
LOSSES += (
    (403, "page"),
    (410, "nothing"),
    (422, "session"),
    (500, "error"),
    (503, "nothing"),
    (200, "session"),
    (401, "nothing"),
    (200, "page"),
    (202, "nothing"),
)
"""How servers answer requests of a session that they do not know."""


@dataclass(frozen=True)
class Case:
    era: str
    moment: str
    status: int
    body: str
    times: int
    """So many requests are answered so."""
    forgets: bool
    """All sessions are gone with the first of them."""
    loss: tuple[int, str]
    isolation: Isolation
    has_stream: bool = True
    """It has a standalone stream, whose end shows a loss before any request does."""

    @property
    def speaks(self) -> bool:
        """By the bad answer the server says that it did not process a request, because of its session."""
        return self.status == 404 or (self.status == 400 and self.body.startswith("session"))


def cases(count: int, seed: int) -> Iterator[Case]:
    order = random.Random(seed)
    for _ in range(count):
        yield Case(
            order.choice(ERAS),
            order.choice(list(MOMENTS)),
            order.choice(STATUSES),
            order.choice(BODIES),
            order.choice((1, 1, 2, 5, 20)),
            order.random() < 0.6,
            order.choice(LOSSES),
            order.choice((Isolation.SHARED, Isolation.SHARED, Isolation.PER_CLIENT)),
            order.random() < 0.6,
        )


@dataclass
class Answer(PooledResponse):
    """A response in memory; with `until` an event stream that stays open until then."""

    status: int
    kind: str = ""
    content: bytes = b""
    session: str = ""
    until: trio.Event | None = None
    has_length: bool = True

    def header(self, name: str) -> str | None:
        return {"content-type": self.kind, "mcp-session-id": self.session}.get(name) or None

    def is_repeated(self, name: str) -> bool:
        return False

    def take_whole(self) -> bytes | None:
        return None if self.until is not None else self.content

    async def read(self) -> bytes:
        if self.until is not None:
            await self.until.wait()
        return b""

    def close(self) -> None:
        pass


class Site(ScriptedServer):
    """The server of a case, at a URL."""

    def __init__(self, case: Case) -> None:
        super().__init__("a")
        spec: Any = HttpServer(id="a", url=Secret("http://a.example/mcp"), isolation=case.isolation)
        self.spec = spec
        self.case = case
        self.left = 0
        """Requests that are still answered badly."""
        self.sessions: set[str] = set()
        self.opened = 0
        self.streams: list[trio.Event] = []
        self.listened: str | None = None
        """The session of the latest standalone stream."""
        self.heard: list[tuple[str, str | None]] = []
        """Each request, and its session."""
        self.executed = Counter[int]()
        self.said: dict[int, list[tuple[bool, int, str]]] = defaultdict(list)
        """The answers to each call: whether in a session, status and body."""

    @asynccontextmanager
    async def _open(self, http_sse: bool) -> AsyncIterator[Link]:
        pool: Any = Wires(self)
        async with open_origin("http://a.example/mcp", {}, pool) as origin:
            if http_sse:
                yield SseLink(origin, lambda *_: None)
                return
            async with open_http(origin, lambda *_: None) as link:
                yield link

    def open_link_over(self, *, http_sse: bool) -> AbstractAsyncContextManager[Link]:
        return self._open(http_sse)

    def forget(self) -> None:
        self.sessions.clear()
        for stream in self.streams:
            stream.set()
        self.streams.clear()

    async def answer(self, method: str, headers: dict[str, str], content: bytes) -> Answer:
        said = json.loads(content) if content else {}
        name, id, session = said.get("method", method), said.get("id"), headers.get("mcp-session-id")
        number = said["params"]["arguments"]["n"] if name == "tools/call" else None
        self.heard.append((name, session))
        is_bad = self.left > 0 and MOMENTS[self.case.moment] in ("", name) and method != "DELETE"
        if is_bad:
            self.left -= 1
            if number is not None and self.case.moment == "done" and self._is_known(session, headers):
                self.executed[number] += 1
            if self.case.forgets:
                self.forget()
            answer = made(self.case.status, self.case.body, id)
        else:
            answer = await self._well(method, name, id, said, session, headers)
        if number is not None:
            body = self.case.body if is_bad else self.case.loss[1] if answer.status >= 400 else ""
            self.said[number].append((session is not None, answer.status, body))
        return answer

    def _is_known(self, session: str | None, headers: dict[str, str]) -> bool:
        return session in self.sessions or ("mcp-method" in headers and self.case.era in ("stateless", "both"))

    async def _well(
        self, method: str, name: str, id: Any, said: dict[str, Any], session: str | None, headers: dict[str, str]
    ) -> Answer:
        era, is_stateless = self.case.era, "mcp-method" in headers
        if is_stateless and era not in ("stateless", "both"):
            return made(200, "error", id)
        if not is_stateless and name == "initialize":
            if era == "stateless":
                return made(400, "unsupported", id)
            version = said["params"]["protocolVersion"]
            if era == "old" and version > "2025-03-26":
                return made(400, "version", id)
            self.opened += 1
            self.sessions.add(f"s{self.opened}")
            capabilities = {"tools": {}, "logging": {}, "resources": {"subscribe": True}}
            result = {"protocolVersion": version, "capabilities": capabilities, "serverInfo": {}}
            return result_of(id, result, session=f"s{self.opened}")
        if not is_stateless and session not in self.sessions:
            return made(*self.case.loss, id)
        if method == "DELETE":
            self.sessions.discard(session or "")
            return Answer(200)
        if method == "GET" and not self.case.has_stream:
            return Answer(405)
        if method == "GET":
            self.listened = session
            self.streams.append(trio.Event())
            return Answer(200, "text/event-stream", until=self.streams[-1])
        if id is None:
            return Answer(202)
        if name == "server/discover":
            return result_of(id, {"supportedVersions": [LATEST.name], "capabilities": {"tools": {}}, "ttlMs": 0})
        if name == "tools/list":
            return result_of(id, {"tools": [{"name": "x", "inputSchema": {"type": "object"}}], "ttlMs": 0})
        if name == "resources/list":
            return result_of(id, {"resources": [{"uri": "x:1", "name": "x"}]})
        if name == "tools/call":
            number = said["params"]["arguments"]["n"]
            await trio.sleep(0.01)
            self.executed[number] += 1
            await trio.sleep(3 if number == LONG else 0)
            return result_of(id, {"content": [{"type": "text", "text": "done"}]})
        return result_of(id, {})


class Wires(Pool):
    """The connections to a site."""

    def __init__(self, site: Site) -> None:
        self._site = site
        self._scopes: set[trio.CancelScope] = set()

    async def request(
        self, method: str, url: Url, headers: Headers, body: bytes | None, *, repeatable: bool = False
    ) -> Answer:
        await trio.lowlevel.checkpoint()
        found = {name.decode().lower(): value.decode() for name, value in headers}
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                return await self._site.answer(method, found, body or b"")
            finally:
                self._scopes.remove(scope)
        raise Broken(CONNECTION_BROKE)

    async def close_idle(self) -> None:
        return

    def abort(self) -> None:
        for stream in self._site.streams:
            stream.set()
        for scope in self._scopes:
            scope.cancel()


def result_of(id: Any, result: dict[str, Any], session: str = "") -> Answer:
    full = {"resultType": "complete", "cacheScope": "private", **result}
    content = json.dumps({"jsonrpc": "2.0", "id": id, "result": full}).encode()
    return Answer(200, "application/json", content, session)


def made(status: int, body: str, id: Any) -> Answer:
    """A bad answer to the request with this id."""
    if body in ("nothing", "page", "broken"):
        kind = "text/html" if body == "page" else "application/json"
        return Answer(status, kind, {"nothing": b"", "page": b"<p>Hello", "broken": b'{"id": '}[body])
    if body == "result":
        return Answer(status, "application/json", json.dumps({"jsonrpc": "2.0", "id": id, "result": {}}).encode())
    code, message, data = {
        "session": (-32000, "Bad Request: No valid session ID provided", None),
        "error": (-32603, "Internal error", None),
        "version": (-32602, "Unsupported protocol version", None),
        "unsupported": (-32022, "Unsupported protocol version", {"supported": [LATEST.name]}),
    }[body.removesuffix(" of no id")]
    error = {"code": code, "message": message, **({} if data is None else {"data": data})}
    said = {"jsonrpc": "2.0", "id": None if body.endswith("of no id") else id, "error": error}
    return Answer(status, "application/json", json.dumps(said).encode())


@dataclass
class Judgement:
    wrong: list[str] = field(default_factory=list)
    seen: Counter[str] = field(default_factory=Counter)


async def judge(case: Case, judgement: Judgement) -> None:
    """Play a case, and say what is wrong."""
    site = Site(case)
    if case.moment in ("discover", "initialize", "initialized", "list"):
        site.left = case.times
    async with open_world(site) as world:
        with trio.move_on_after(20):
            await world.upstreams["a"].main.life.settled.wait()
        client = await world.client()

        async def call(n: int) -> bool:
            try:
                found = await client.call("a__x", {"n": n})
                return [each["text"] for each in found.get("content", ())] == ["done"]
            except Refusal:
                return False

        async with trio.open_nursery() as nursery:
            if case.moment not in ("discover", "initialize", "initialized", "list"):
                await call(1)
                nursery.start_soon(call, LONG)
                await trio.sleep(0.1)
                site.left = case.times
                if case.forgets or case.moment == "between":
                    site.forget()
                if case.moment == "ping":
                    await trio.sleep(45)
                if case.moment == "stream":
                    await trio.sleep(3)
            for n in (2, 3):
                nursery.start_soon(call, n)
        await call(4)
        healed, n = trio.current_time(), 4
        site.left = 0
        if case.moment == "between":
            site.forget()
        within = SOON if case.moment == "between" else HEALED
        works = False
        while not works and trio.current_time() - healed < within:
            n += 1
            works = await call(n)
            await trio.sleep(0 if works else min(within / 50, 10.0))
        if case.moment == "between" and case.era in ("handshake", "old"):
            await trio.sleep(1)
            if case.has_stream and site.listened not in site.sessions:
                judgement.wrong.append(f"no stream of the new session: {case}")
    judgement.seen["worked again at once" if n == 5 else "worked again later"] += works
    if not works:
        judgement.wrong.append(f"dead: {case}")
    for answers in site.said.values():
        judgement.seen["sent again"] += len(answers) > 1
        is_excused = all(
            in_session and (status == 404 or (status == 400 and body.startswith("session")))
            for in_session, status, body in answers[:-1]
        )
        if len(answers) > 2 or not is_excused:
            judgement.wrong.append(f"sent again after {answers[:-1]}: {case}")
    for n, count in site.executed.items():
        if count > 1 and (n == LONG or not case.speaks):
            judgement.wrong.append(f"executed {count} times: {case}")


async def judge_all(count: int = FEW, seed: int = PARTS) -> Judgement:
    judgement = Judgement()
    await judge_until(judgement, lambda: False, count, seed)
    return judgement


async def judge_until(judgement: Judgement, is_enough: Callable[[], bool], count: int = FEW, seed: int = PARTS) -> None:
    for case in cases(count, seed):
        if is_enough():
            break
        try:
            await judge(case, judgement)
        except BaseException:
            print(case)
            raise
    print(judgement.seen)


async def notices(*faults: str) -> bool:
    """Whether the judge finds each of these, at which it stops."""
    judgement = Judgement()

    def is_enough() -> bool:
        return all(any(fault in each for each in judgement.wrong) for fault in faults)

    await judge_until(judgement, is_enough)
    return is_enough()


@pytest.mark.slow
async def test_no_answer_has_a_call_run_twice_or_ends_a_server_for_ever(autojump_clock: MockClock) -> None:
    judgement = await judge_all()
    assert judgement.wrong == []
    assert judgement.seen["sent again"] > 0
    assert judgement.seen["worked again later"] > 0


@pytest.mark.few(14)
@pytest.mark.parametrize("has_stream", [True, False])
@pytest.mark.parametrize("isolation", [Isolation.SHARED, Isolation.PER_CLIENT])
@pytest.mark.parametrize("loss", LOSSES)
async def test_a_new_session_has_what_the_lost_one_had(
    loss: tuple[int, str], isolation: Isolation, has_stream: bool, autojump_clock: MockClock
) -> None:
    """Its log level, its subscriptions and its standalone stream; and calls that meet the loss at once open one."""
    site = Site(Case("handshake", "between", 0, "", 0, False, loss, isolation, has_stream))
    async with open_world(site) as world:
        await world.settled()
        client = await world.client()
        await client.request("logging/setLevel", {"level": "debug"})
        await client.request("resources/subscribe", {"uri": "a+x:1"})
        await client.call("a__x", {"n": 1})
        lost = set(site.sessions)
        accepted = site.opened
        site.forget()

        async def call(n: int) -> None:
            with suppress(Refusal):
                await client.call("a__x", {"n": n})

        async with trio.open_nursery() as nursery:
            for n in range(2, 8):
                nursery.start_soon(call, n)
        await trio.sleep(SOON)
        assert (await client.call("a__x", {"n": 8}))["content"][0]["text"] == "done"
        await trio.sleep(SOON)
        had = {name for name, session in site.heard if session in site.sessions - lost}
        assert had >= {"logging/setLevel", "resources/subscribe", "tools/call", "GET"}
        # One for the check, unless the server goes by the letter, and one that stays.
        assert site.opened - accepted <= 2 * len(lost)
        assert len(site.sessions) <= len(lost)
    assert max(site.executed.values()) == 1


@pytest.mark.few(4)
@pytest.mark.parametrize("loss", LOSSES)
async def test_a_server_of_the_other_era_in_the_place_of_one_with_sessions_is_found_out(
    loss: tuple[int, str], autojump_clock: MockClock
) -> None:
    """It may refuse the session in any way, and opens no other one."""
    site = Site(Case("handshake", "between", 0, "", 0, False, loss, Isolation.SHARED))
    async with open_world(site) as world:
        await world.settled()
        client = await world.client()
        await client.call("a__x", {"n": 1})
        site.case = replace(site.case, era="stateless")
        site.forget()
        n, found = 1, ""
        while found != "done":
            n += 1
            await trio.sleep(5)
            with suppress(Refusal):
                found = (await client.call("a__x", {"n": n}))["content"][0]["text"]
            assert n < 30
    assert max(site.executed.values()) == 1


async def test_a_call_whose_own_instance_has_lost_its_session_is_sent_over_another_one(
    autojump_clock: MockClock,
) -> None:
    """Also where one may run at a time: the first one has ended by then."""
    site = Site(Case("handshake", "call", 404, "nothing", 1, False, (404, "nothing"), Isolation.PER_CALL))
    site.spec = replace(site.spec, max_instances=1)
    async with open_world(site) as world:
        await world.settled()
        client = await world.client()
        site.left = 1
        assert (await client.call("a__x", {"n": 1}))["content"][0]["text"] == "done"
    assert [status for _, status, _ in site.said[1]] == [404, 200]


class Forgetting(Site):
    """A server that opens any session and lists its tools, and then says of each call and ping that it does not know
    the session. It executes each call nevertheless."""

    async def answer(self, method: str, headers: dict[str, str], content: bytes) -> Answer:
        name = json.loads(content).get("method") if content else method
        self.left = int(name in ("tools/call", "ping"))
        return await super().answer(method, headers, content)


async def test_a_server_that_says_of_every_call_that_its_session_is_lost_gains_little(
    autojump_clock: MockClock,
) -> None:
    """A call goes out twice at most, as after 404, and sessions are opened no more often than a server is started."""
    site = Forgetting(Case("handshake", "any", 400, "session", 0, False, (400, "session"), Isolation.SHARED))
    minutes = 10
    async with open_world(site) as world:
        await world.settled()
        client = await world.client()
        for n in range(60 * minutes):
            with suppress(Refusal):
                await client.call("a__x", {"n": n})
            await trio.sleep(1)
    assert max(len(answers) for answers in site.said.values()) == 2
    asked = Counter(name for name, _ in site.heard)
    assert asked["tools/list"] <= MAX_STARTS * (minutes + 1)
    assert asked["initialize"] <= 2 * MAX_STARTS * (minutes + 1)
    assert asked["ping"] <= MAX_STARTS * (minutes + 1)


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize("seed", range(PARTS))
async def test_no_answer_of_many_has_a_call_run_twice_or_ends_a_server_for_ever(
    seed: int, autojump_clock: MockClock
) -> None:
    assert (await judge_all(CASES, seed)).wrong == []


async def test_the_judge_notices_a_call_that_is_sent_again_after_any_status(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def send_again(self: HttpLink, answer: Any, request: Any) -> None:
        await trio.lowlevel.checkpoint()
        raise self._exchanges.connection_lost(SessionEnded(nothing_begun=True), abort=False)

    monkeypatch.setattr(HttpLink, "_take_refusal", send_again)
    assert await notices("sent again after", "executed 2 times")


async def test_the_judge_notices_a_session_that_is_kept_though_it_is_lost(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def never(self: SessionCheck) -> bool:
        await trio.lowlevel.checkpoint()
        return False

    monkeypatch.setattr(SessionCheck, "doubt", lambda self: None)
    monkeypatch.setattr(SessionCheck, "finds_over", never)
    assert await notices("dead: ")
