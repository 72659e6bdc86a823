"""Both eras at one HTTP endpoint and on one channel: whatever is sent in whatever order, each request is answered once,
or never if it was called off, and by the era that it is of. A model that knows no code of the host says which.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import pytest
import trio
from hypothesis import example, given, settings
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream.duplex import DuplexSession
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless
from host.downstream.stateless_stdio import StatelessStdio
from host.journal import InternalError
from host.jsonrpc.messages import Message, receive, write
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.source import SHARED
from tests.kit.asgi import IO, Connection, HeaderValue, Response, open_http_app, open_stateless
from tests.kit.examples import examples
from tests.kit.scripts import Step, scripts
from tests.kit.world import ScriptedServer, World, open_world

OLD, NEW, UNKNOWN = LATEST_LEGACY.name, LATEST.name, "2099-01-01"
MISMATCH, UNSERVED, NO_METHOD, BAD_PARAMS, BAD_REQUEST = -32020, -32022, -32601, -32602, -32600
Verdict: TypeAlias = str | int | None
"""`session` or `stateless`: a result of that era; a number: an error with that code; None: no answer at all."""

METHODS = ["ping", "tools/list", "tools/call", "server/discover", "what/ever", "initialize"]


class Slow(ScriptedServer):
    """Its calls wait until they are let go, by the number in their arguments."""

    def __init__(self) -> None:
        super().__init__("a", tools=["x"], answers={"tools/call": self._work})
        self.doors: dict[int, trio.Event] = {}
        self.heard: list[int] = []

    async def _work(self, params: dict[str, Any]) -> object:
        number = params["arguments"]["n"]
        self.heard.append(number)
        await self.doors.setdefault(number, trio.Event()).wait()
        return {"content": []}

    def let_go(self, number: int) -> None:
        self.doors.setdefault(number, trio.Event()).set()


def body(method: str, id: object, number: int, envelope: str | None, *, whole: bool = True) -> dict[str, Any]:
    """A request, which unless `whole` lacks something that it must say. With an envelope it says of which revision it
    is."""
    params: dict[str, Any] = {}
    if method == "tools/call":
        params = {"name": "a__x", "arguments": {"n": number}}
    elif method == "initialize":
        client = {"name": "t", "version": "1"}
        params = {"protocolVersion": OLD, "capabilities": {}, "clientInfo": client} if whole else {}
    if envelope is not None:
        params["_meta"] = {f"{IO}protocolVersion": envelope}
        if whole:
            params["_meta"][f"{IO}clientCapabilities"] = {}
    return {"jsonrpc": "2.0", "id": id, "method": method, "params": params}


def verdict_on(messages: Sequence[dict[str, Any]]) -> Verdict:
    """The answers to a request: one at most."""
    if not messages:
        return None
    (message,) = messages
    if "error" in message:
        return int(message["error"]["code"])
    result = message["result"]
    return "stateless" if "resultType" in result else "session"


# One channel


@dataclass(eq=False)
class Said:
    """One request on the channel, and what the model says of it."""

    id: object
    number: int
    method: str
    expected: Verdict
    flies: bool
    """Whether its id is taken: until everything has settled, or its call is let go."""
    opens: bool = False
    """Whether it is the handshake, which is never called off."""
    waits: bool = False

    def is_called(self, id: object) -> bool:
        return self.flies and (type(self.id), self.id) == (type(id), id)


class OneChannel:
    """Plays a script to a channel."""

    ids: tuple[object, ...] = (1, 2, "1", 1.5)

    def __init__(self, world: World, server: Slow, stateless: Stateless, nursery: trio.Nursery) -> None:
        self.heard: list[dict[str, Any]] = []
        self.said: list[Said] = []
        self._server = server
        self._greeted = self._opened = self._fails = False
        self._number = 0
        session = Session("test", SHARED, world.router, world.journal, memory=world.memory)
        both = StatelessStdio(stateless, session, trio.Event())
        nursery.start_soon(both.run)
        self._channel = DuplexSession(session, self._say, self._send, nursery, both)

    def _say(self, message: Message) -> bool:
        self.heard.append(json.loads(write(message)))
        return True

    async def _send(self, message: Message) -> None:
        await trio.lowlevel.checkpoint()
        self._say(message)

    async def play(self, script: list[Step]) -> None:
        for name, one, two in script:
            getattr(self, name)(one, two)
            if name == "finish" or two % 2:
                await self._settle()
        await self._settle()
        while any(said.waits for said in self.said):
            self.finish(0, 0)
            await self._settle()

    async def _settle(self) -> None:
        await wait_all_tasks_blocked()
        self._greeted = self._opened = self._greeted and not self._fails
        self._fails = False
        for said in self.said:
            said.flies = said.flies and said.waits
        due = [said for said in self.said if not said.waits]
        self.said = [said for said in self.said if said.waits]
        heard, self.heard = self.heard, []
        answers = sorted((json.dumps(each.get("id")), str(verdict_on([each]))) for each in heard)
        expected = sorted((json.dumps(each.id), str(each.expected)) for each in due if each.expected is not None)
        assert answers == expected

    # Steps

    def ask(self, one: int, two: int) -> None:
        envelope = (None, NEW, NEW, UNKNOWN)[two % 4]
        self._ask(METHODS[one % len(METHODS)], self.ids[(one + two) % 3], envelope)

    def ask_in_part(self, one: int, two: int) -> None:
        self._ask(METHODS[one % 5], self.ids[two % 3], NEW, whole=False)

    def open(self, one: int, two: int) -> None:
        """A failed handshake is none: there may be another."""
        self._ask("initialize", self.ids[one % 3], None, whole=two % 5 > 0)
        if two % 3:
            self._channel.on_received(receive(b'{"jsonrpc":"2.0","method":"notifications/initialized"}'))

    def cancel(self, one: int, two: int) -> None:
        id = self.ids[one % len(self.ids)]
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
        self._channel.on_received(receive(json.dumps(notice).encode()))
        for said in self.said:
            if said.is_called(id) and not said.opens:
                said.expected = None
                said.waits = False

    def finish(self, one: int, two: int) -> None:
        waiting = [said for said in self.said if said.waits]
        if waiting:
            said = waiting[one % len(waiting)]
            self._server.let_go(said.number)
            said.waits = False

    def babble(self, one: int, two: int) -> None:
        """What is no message at all is refused under no id; an answer that nobody waits for means nothing."""
        if two % 2:
            self._channel.on_received(receive(b'{"jsonrpc":"2.0","id":77,"result":{}}'))
        else:
            self._channel.on_received(receive(b"{"))
            self.said.append(Said(None, -1, "", -32700, flies=False))

    # The model

    def _ask(self, method: str, id: object, envelope: str | None, *, whole: bool = True) -> None:
        if method == "initialize" and self._greeted and not self._opened:
            method = "ping"  # of two at once, one opens the session, and nobody can say which
        self._number += 1
        number = self._number
        taken = any(said.is_called(id) for said in self.said)
        said = Said(id, number, method, None, flies=not taken)
        if taken:
            said.expected = BAD_REQUEST
        elif method == "initialize":
            said.opens = not self._opened
            said.expected = BAD_REQUEST if self._opened else "session" if whole else BAD_PARAMS
            self._greeted, self._fails = True, not self._opened and not whole
        elif envelope is not None:
            said.expected = self._stateless(method, envelope, whole)
        elif self._greeted or method == "ping":
            known = NO_METHOD if method not in METHODS[:3] else "session"
            said.expected = BAD_REQUEST if self._fails and method != "ping" else known
        else:
            said.expected, said.flies = BAD_PARAMS, False
        said.waits = method == "tools/call" and said.expected in ("session", "stateless")
        self.said.append(said)
        self._channel.on_received(receive(json.dumps(body(method, id, number, envelope, whole=whole)).encode()))

    def _stateless(self, method: str, envelope: str, whole: bool) -> Verdict:
        if not whole:
            return BAD_PARAMS
        if envelope != NEW:
            return UNSERVED
        return "stateless" if method in ("tools/list", "tools/call", "server/discover") else NO_METHOD


# One endpoint


@dataclass(eq=False)
class Posted:
    """One request over HTTP, and what the model says of it."""

    id: object
    number: int
    session: str | None
    connection: Connection
    answer: Response
    expected: Verdict
    status: int
    waits: bool
    left: bool = False

    def is_of(self, session: str) -> bool:
        """Whether it is under way in that session; to a stateless one the header means nothing."""
        return self.waits and self.expected == "session" and self.session == session


class OneEndpoint:
    """Plays a script to the HTTP face."""

    def __init__(self, client: Connection, server: Slow) -> None:
        self._client = client
        self._server = server
        self.posted: list[Posted] = []
        self._sessions: list[str] = []
        self._gone: list[str] = ["never-was"]
        self._number = 0

    async def play(self, script: list[Step]) -> None:
        for name, one, two in script:
            if name == "open":
                await self._open()
            elif name == "delete":
                await self._delete(one)
            else:
                getattr(self, name)(one, two)
                await wait_all_tasks_blocked()
            self.check()
        while any(each.waits for each in self.posted):
            self.finish(0, 0)
            await wait_all_tasks_blocked()
            self.check()

    async def _open(self) -> None:
        answer = await self._client.another().open(revision=OLD)
        self._sessions.append(answer.headers["mcp-session-id"])

    async def _delete(self, which: int) -> None:
        if not self._sessions:
            return
        session = self._sessions.pop(which % len(self._sessions))
        self._gone.append(session)
        gone = self._client.another(session)
        assert (await gone.get("DELETE", headers={"content-type": None})).status == 204
        for each in self.posted:
            if each.is_of(session):
                each.waits, each.expected, each.status = False, None, 200
        await wait_all_tasks_blocked()

    # Steps

    def post(self, one: int, two: int) -> None:
        """A request of any method, with headers and a body that agree or do not."""
        method = METHODS[one % len(METHODS)]
        versions = ([], [NEW], [NEW], [OLD], [OLD], [UNKNOWN], [NEW, OLD])[one // 6 % 7]
        envelope = (None, None, NEW, NEW, OLD, UNKNOWN)[two % 6]
        self._post(method, versions, envelope, session=two // 6 % 4, repeats=(one + two) % 5)

    def stateless(self, one: int, two: int) -> None:
        """One that is as it must be."""
        self._post(METHODS[one % 5], [NEW], NEW, session=two % 3, repeats=3)

    def in_session(self, one: int, two: int) -> None:
        self._post(METHODS[one % 6], [OLD] if two % 2 else [], None, session=2, repeats=0)

    def tell(self, one: int, two: int) -> None:
        """A notification: a stateless one means nothing."""
        self._cancel(f"{two % 2}", None, [NEW])

    def cancel(self, one: int, two: int) -> None:
        """In a session; an id that is in flight twice names nobody."""
        if not self._sessions:
            return
        session = self._sessions[one % len(self._sessions)]
        id = two % 2
        meant = [each for each in self.posted if each.is_of(session) and each.id == id]
        self._cancel(id, session, [OLD])
        if len(meant) == 1:
            meant[0].waits, meant[0].expected, meant[0].status = False, None, 200

    def _cancel(self, id: object, session: str | None, versions: list[str]) -> None:
        notice = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": id}}
        headers = {"mcp-protocol-version": versions}
        answer = self._client.another(session).send("POST", body=notice, headers=headers)
        self.posted.append(Posted(None, 0, session, self._client, answer, None, 202, waits=False))

    def leave(self, one: int, two: int) -> None:
        """A stateless client has called its request off; one of a session has not."""
        waiting = [each for each in self.posted if each.waits and not each.left]
        if waiting:
            waiting[one % len(waiting)].left = True
            waiting[one % len(waiting)].connection.leaves.set()

    def finish(self, one: int, two: int) -> None:
        waiting = [each for each in self.posted if each.waits]
        if waiting:
            waiting[one % len(waiting)].waits = False
            self._server.let_go(waiting[one % len(waiting)].number)

    # The model

    def _post(self, method: str, versions: list[str], envelope: str | None, *, session: int, repeats: int) -> None:
        """`repeats`: how many of the headers that repeat the body are there; 4 is one that says something else."""
        self._number += 1
        id = self._number % 2
        found = self._gone[-1] if session == 3 else None
        if session == 2 and self._sessions:
            found = self._sessions[-1]
        headers: dict[str, HeaderValue] = {"mcp-protocol-version": versions}
        if repeats:
            headers["mcp-method"] = "tools/list" if repeats == 4 and method != "tools/list" else method
        if method == "tools/call" and repeats >= 2:
            headers["mcp-name"] = "a__y" if repeats == 4 else "a__x"
        enough = 2 if method == "tools/call" else 1
        right = enough <= repeats < 4 or (repeats == 4 and method == "tools/list")
        status, expected = self._way(method, versions, envelope, found, bool(repeats), right)
        connection = self._client.another(found)
        answer = connection.send("POST", body=body(method, id, self._number, envelope), headers=headers)
        waits = method == "tools/call" and expected in ("session", "stateless")
        self.posted.append(Posted(id, self._number, found, connection, answer, expected, status, waits))

    def _way(
        self, method: str, versions: list[str], envelope: str | None, session: str | None, named: bool, right: bool
    ) -> tuple[int, Verdict]:
        greets = method == "initialize" and envelope is None
        if len(versions) > 1:
            return 400, MISMATCH
        if not versions:
            alone = session is None and not greets and (envelope is not None or named)
            return (400, MISMATCH) if alone else self._in_session(method, versions, session)
        (version,) = versions
        if version == NEW:
            if greets:
                return self._in_session(method, versions, session)
            return self._stateless(method, envelope, right)
        if envelope not in (None, version):
            return 400, MISMATCH
        return (400, UNSERVED) if version == UNKNOWN else self._in_session(method, versions, session)

    def _in_session(self, method: str, versions: list[str], session: str | None) -> tuple[int, Verdict]:
        if session is None:
            return (200, "session") if method == "initialize" else (400, BAD_REQUEST)
        if session not in self._sessions:
            return 404, BAD_REQUEST
        if versions not in ([], [OLD]):
            return 400, BAD_REQUEST
        if method == "initialize":
            return 200, BAD_REQUEST
        return 200, "session" if method in METHODS[:3] else NO_METHOD

    def _stateless(self, method: str, envelope: str | None, right: bool) -> tuple[int, Verdict]:
        if envelope is None:
            return 400, BAD_PARAMS
        if envelope != NEW or not right:
            return 400, MISMATCH
        return (200, "stateless") if method in ("tools/list", "tools/call", "server/discover") else (404, NO_METHOD)

    def check(self) -> None:
        """Whatever can be answered is, as it was foreseen."""
        for each in self.posted:
            if each.left:
                continue
            assert each.answer.complete.is_set() == (not each.waits)
            if not each.waits:
                verdict = verdict_on(each.answer.messages())
                assert (each.answer.status, verdict) == (each.status, each.expected)
                assert each.session is not None or verdict != "stateless" or "mcp-session-id" not in each.answer.headers
        self.posted = [each for each in self.posted if each.waits]


CHANNEL_STEPS = {"ask": 10, "ask_in_part": 1, "open": 1, "cancel": 3, "finish": 2, "babble": 1}
ENDPOINT_STEPS = {
    "post": 8,
    "stateless": 4,
    "in_session": 4,
    "open": 2,
    "delete": 1,
    "cancel": 2,
    "tell": 1,
    "leave": 1,
    "finish": 2,
}


BEHIND_THE_HANDSHAKE = [("open", 0, 8), ("ask", 1, 4)]
CALLED_OFF_AT_ONCE = [("ask", 13, 14), ("cancel", 0, 0)]


@pytest.mark.slow
@settings(max_examples=examples(120))
@example(BEHIND_THE_HANDSHAKE)
@example(CALLED_OFF_AT_ONCE)
@given(scripts(CHANNEL_STEPS, first=23, second=23, min_size=1, max_size=40))
def test_on_a_channel_every_request_is_answered_once_by_its_era(script: list[Step]) -> None:
    """(rules 12, 13, 16, 47)"""

    async def play() -> None:
        server = Slow()
        async with trio.open_nursery() as nursery, open_world(server) as world:
            await world.settled()
            async with open_stateless(world) as stateless:
                await OneChannel(world, server, stateless, nursery).play(script)
                assert not [event for event in world.events if isinstance(event, InternalError)]
            nursery.cancel_scope.cancel()

    trio.run(play, clock=MockClock(autojump_threshold=0))


@pytest.mark.slow
@settings(max_examples=examples(120))
@given(scripts(ENDPOINT_STEPS, first=41, second=41, min_size=1, max_size=40))
def test_over_http_every_request_is_answered_once_by_its_era(script: list[Step]) -> None:
    """(rules 13, 20, 21, 24, 26, 27)"""

    async def play() -> None:
        server = Slow()
        async with open_http_app(server) as (world, client):
            await OneEndpoint(client, server).play(script)
            assert len(server.heard) == len(set(server.heard))
            assert not [event for event in world.events if isinstance(event, InternalError)]

    trio.run(play, clock=MockClock(autojump_threshold=0))
