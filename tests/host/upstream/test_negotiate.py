"""How a server is found out: by its answer to the first question, by its silence, or by its end; and what is kept."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import trio
from msgspec import Raw
from msgspec.structs import replace
from msgspec.structs import replace as changed
from trio.testing import wait_all_tasks_blocked

from config import Isolation, Protocol
from host.errors import first_exception
from host.journal import ServerFailed
from host.jsonrpc.messages import ErrorBody, Failure, Id, Message, Notification, Request, Success, write
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import Peer, open_peer
from host.protocol import probe, stateless
from host.protocol.handshake import UnsupportedRevision
from host.protocol.negotiated import NegotiatedServer
from host.protocol.versions import HANDSHAKES, LATEST, LATEST_LEGACY, LEGACY, MODERN, SERVED, Revision
from host.upstream.backoff import MAX_STARTS
from host.upstream.negotiate import (
    LATE_INITIALIZE_WAIT,
    LATE_PROBE_TIMEOUT,
    MAX_ANSWER,
    PROBE_TIMEOUT,
    Dialect,
    HandshakeOnly,
    OlderOnly,
    StatelessOnly,
    negotiate,
)
from host.upstream.state import Failed, Ready
from host.wire.http_client import open_http
from host.wire.http_errors import AuthNeeded, HttpRefused, Unreachable
from host.wire.http_transport import open_origin
from host.wire.link import LinkLost, Parcel, ReceivedMessage
from tests.host.wire.http_servers import JSON, SSE, Heard, Wire, serving
from tests.kit.memory import MemoryLink, NullHandler, memory_links
from tests.kit.world import ScriptedServer, World, open_client, open_world

pytestmark = pytest.mark.virtual_time

META = "io.modelcontextprotocol/"
NEW = LATEST.name
DISCOVERY = {"resultType": "complete", "supportedVersions": [NEW], "capabilities": {"tools": {}}, "instructions": "Do."}
GREETING = {"protocolVersion": LATEST_LEGACY.name, "capabilities": {"tools": {}}, "serverInfo": {}}
HANDSHAKE_ONLY = Dialect(may_be_stateless=False)
STATELESS_ONLY = Dialect(may_be_handshake=False)


class Far:
    """The server's end of a link."""

    def __init__(self, link: MemoryLink) -> None:
        self._link = link
        self._say, self._heard = trio.open_memory_channel[Message](100)

    async def run(self) -> None:
        def deliver(arrival: ReceivedMessage) -> None:
            assert isinstance(arrival.message, Request | Notification)
            self._say.send_nowait(arrival.message)

        with suppress(LinkLost):
            await self._link.run(deliver)

    async def hears(self, method: str) -> Id:
        """The id of the next message, which is a request of this method."""
        with trio.fail_after(100):
            message = await self._heard.receive()
        assert isinstance(message, Request)
        assert message.method == method
        self.params = json.loads(bytes(message.params or b"{}"))
        return message.id

    def more(self) -> list[str]:
        """The methods of all other messages that came."""
        found: list[str] = []
        with suppress(trio.WouldBlock):
            while True:
                message = self._heard.receive_nowait()
                assert isinstance(message, Request | Notification)
                found.append(message.method)
        return found

    def says(self, id: Id, result: object) -> None:
        self._link.write_bytes(write(Success(id, Raw(json.dumps(result).encode()))))

    def refuses(self, id: Id, code: int, data: object = None) -> None:
        raw = None if data is None else Raw(json.dumps(data).encode())
        self._link.write_bytes(write(Failure(ErrorBody(code, "no", raw), id)))

    def puts(self, data: bytes) -> None:
        self._link.write_bytes(data)

    def exits(self) -> None:
        self._link.close()


class Begun:
    """What came of a beginning, once it has `ended`."""

    def __init__(self, link: MemoryLink) -> None:
        self.link = link
        self.offer: NegotiatedServer | None = None
        self.problem: BaseException | None = None
        self.ended = trio.Event()

    async def run(self, peer: Peer[Any], dialect: Dialect, exits: bool) -> None:
        try:
            self.offer = await negotiate(self.link, peer, {"roots": {}}, dialect, is_process=exits)
        except* (LinkLost, PeerError, BrokenAnswer, ValueError) as group:
            self.problem = first_exception(group)
        self.ended.set()

    async def met(self) -> NegotiatedServer:
        with trio.fail_after(100):
            await self.ended.wait()
        assert self.offer is not None, self.problem
        assert self.link.revision is self.offer.revision
        return self.offer

    async def fails(self) -> BaseException:
        with trio.fail_after(100):
            await self.ended.wait()
        assert self.problem is not None
        assert self.link.revision is None
        return self.problem


@asynccontextmanager
async def beginning(dialect: Dialect | None = None, *, exits: bool = True) -> AsyncIterator[tuple[Far, Begun]]:
    near, far = memory_links()
    server, begun = Far(far), Begun(near)
    async with open_peer(near, NullHandler()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        nursery.start_soon(begun.run, peer, dialect or Dialect(), exits)
        yield server, begun
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def greeting() -> AsyncIterator[tuple[Far, Begun, Id, Id]]:
    """A program that was asked and, since it was silent, greeted: the ids of both requests."""
    async with beginning() as (server, begun):
        yield server, begun, await server.hears("server/discover"), await server.hears("initialize")


# By its answer


@pytest.mark.parametrize("exits", [True, False])
async def test_a_server_that_knows_the_question_is_met_without_a_handshake(exits: bool) -> None:
    """(rule 11)"""
    async with beginning(exits=exits) as (server, begun):
        id = await server.hears("server/discover")
        meta = server.params["_meta"]
        assert (meta[f"{META}protocolVersion"], meta[f"{META}clientCapabilities"]) == (NEW, {"roots": {}})
        assert meta[f"{META}clientInfo"]["name"] == "colonnade"
        assert dict(begun.link.sent_headers[0][1]) == {"MCP-Protocol-Version": NEW, "Mcp-Method": "server/discover"}
        server.says(id, DISCOVERY)
        offer = await begun.met()
        assert (offer.revision, offer.instructions) == (LATEST, "Do.")
        await wait_all_tasks_blocked()
        assert server.more() == []


@pytest.mark.parametrize("code", [-32601, -32602, -32600, -32000, -32001, -32603, 0, 1])
async def test_any_error_that_is_not_of_a_stateless_revision_leads_to_the_handshake(code: int) -> None:
    """At once, and no header of a stateless request goes with it (rule 9)."""
    began = trio.current_time()
    async with beginning() as (server, begun):
        server.refuses(await server.hears("server/discover"), code)
        id = await server.hears("initialize")
        assert server.params["protocolVersion"] == LATEST_LEGACY.name
        assert "_meta" not in server.params
        server.says(id, GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY
        assert trio.current_time() == began
        await wait_all_tasks_blocked()
        assert server.more() == ["notifications/initialized"]
        assert len(begun.link.sent_headers) == 1


@pytest.mark.parametrize(
    "result",
    [
        {},
        [],
        "text",
        {"supportedVersions": [NEW]},
        {**DISCOVERY, "supportedVersions": NEW},
        {**DISCOVERY, "supportedVersions": [5]},
        {**DISCOVERY, "supportedVersions": []},
        {**DISCOVERY, "capabilities": 5},
        {**DISCOVERY, "resultType": "input_required"},
        {**DISCOVERY, "supportedVersions": [LATEST_LEGACY.name]},
        {**DISCOVERY, "supportedVersions": ["1999-01-01", next(iter(LEGACY))]},
    ],
)
async def test_an_answer_that_offers_nothing_stateless_leads_to_the_handshake(result: object) -> None:
    """(rule 9)"""
    async with beginning() as (server, begun):
        server.says(await server.hears("server/discover"), result)
        server.says(await server.hears("initialize"), GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY


@pytest.mark.parametrize(
    ("data", "handshake"),
    [
        ({"supported": list(LEGACY)}, True),
        ({"supported": [LATEST_LEGACY.name, "2099-01-01"]}, True),
        ({"supported": [NEW, LATEST_LEGACY.name]}, True),
        ({"supported": [NEW]}, False),
        ({"supported": ["2099-01-01"]}, False),
        ({"supported": []}, False),
        ({"supported": "2099-01-01"}, False),
        ({}, False),
        (None, False),
    ],
)
async def test_a_refused_version_leads_to_the_handshake_only_if_the_server_names_a_revision_that_has_one(
    data: object, handshake: bool
) -> None:
    """Where it names the very revision that it was asked in, it is asked once more (rule 9)."""
    async with beginning() as (server, begun):
        server.refuses(await server.hears("server/discover"), -32022, data)
        if isinstance(data, dict) and NEW in data.get("supported", ()):
            server.refuses(await server.hears("server/discover"), -32022, data)
        if handshake:
            server.says(await server.hears("initialize"), GREETING)
            assert (await begun.met()).revision is LATEST_LEGACY
        else:
            assert isinstance(await begun.fails(), UnsupportedRevision)
            assert server.more() == []


async def test_an_answer_that_is_too_long_is_none() -> None:
    """Neither to the question nor to the greeting."""
    long = {"instructions": "x" * MAX_ANSWER}
    async with beginning() as (server, begun):
        server.says(await server.hears("server/discover"), {**DISCOVERY, **long})
        server.says(await server.hears("initialize"), {**GREETING, **long})
        assert str(await begun.fails()) == f"the result has more than {MAX_ANSWER} bytes"


@pytest.fixture
def other(monkeypatch: pytest.MonkeyPatch) -> Revision:
    """Another stateless revision that is served."""
    made = replace(LATEST, name="2026-01-01")
    monkeypatch.setitem(MODERN, made.name, made)
    for module in (probe, stateless):
        monkeypatch.setattr(module, "SERVED", (*SERVED, made.name))
    return made


@pytest.mark.parametrize("again", [True, False])
async def test_a_server_of_another_stateless_revision_is_asked_once_more_in_that(again: bool, other: Revision) -> None:
    """Once: a server that refuses what it says it speaks is given up."""
    async with beginning() as (server, begun):
        server.refuses(await server.hears("server/discover"), -32022, {"supported": [other.name]})
        id = await server.hears("server/discover")
        assert server.params["_meta"][f"{META}protocolVersion"] == other.name
        assert begun.link.sent_headers[-1][1]["MCP-Protocol-Version"] == other.name
        if again:
            server.refuses(id, -32022, {"supported": [NEW]})
            assert f"refuses {other.name}, which it names as supported" in str(await begun.fails())
        else:
            server.says(id, {**DISCOVERY, "supportedVersions": [other.name]})
            assert (await begun.met()).revision is other
        assert server.more() == []


async def test_a_slow_program_of_another_stateless_revision_is_met_in_that(other: Revision) -> None:
    """It is greeted before it answers the second time, and refuses that (rule 114)."""
    async with beginning() as (server, begun):
        server.refuses(await server.hears("server/discover"), -32022, {"supported": [other.name]})
        asked = await server.hears("server/discover")
        server.refuses(await server.hears("initialize"), -32022, {"supported": [other.name]})
        await trio.sleep(1)
        server.says(asked, {**DISCOVERY, "supportedVersions": [other.name]})
        assert (await begun.met()).revision is other


@pytest.mark.parametrize(("code", "data"), [(-32020, None), (-32021, {"requiredCapabilities": {"sampling": {}}})])
async def test_an_error_that_only_stateless_servers_know_never_leads_to_the_handshake(code: int, data: object) -> None:
    async with beginning() as (server, begun):
        server.refuses(await server.hears("server/discover"), code, data)
        assert isinstance(await begun.fails(), UnsupportedRevision)
        assert server.more() == []


# By its end


async def test_a_program_that_exits_at_the_question_is_to_be_started_again_without_it() -> None:
    async with beginning() as (server, begun):
        await server.hears("server/discover")
        server.exits()
        assert isinstance(await begun.fails(), HandshakeOnly)
    async with beginning(HANDSHAKE_ONLY) as (server, begun):
        server.says(await server.hears("initialize"), GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY


@pytest.mark.parametrize(("dialect", "exits"), [(STATELESS_ONLY, True), (Dialect(), False), (HANDSHAKE_ONLY, True)])
async def test_whoever_cannot_be_started_without_the_question_is_just_lost(dialect: Dialect, exits: bool) -> None:
    """What is at a URL, what may not shake hands, and what was not asked."""
    async with beginning(dialect, exits=exits) as (server, begun):
        await server.hears("initialize" if dialect is HANDSHAKE_ONLY else "server/discover")
        server.exits()
        problem = await begun.fails()
        assert isinstance(problem, LinkLost)
        assert not isinstance(problem, HandshakeOnly)


OTHER = {"supported": ["2099-01-01"]}


@pytest.mark.parametrize(
    ("steps", "kind"),
    [
        ("exits", HandshakeOnly),  # it reads the question first, whenever that is
        ("answers, exits", StatelessOnly),  # its answer came before it ended, if only just
        ("answers, waits, exits", StatelessOnly),
        ("refuses the handshake, waits, answers, exits", StatelessOnly),
        ("refuses the handshake, waits, exits", LinkLost),
        ("refuses the handshake, waits, does not know", PeerError),
        ("refuses the handshake, waits, has another revision", UnsupportedRevision),
        ("has another revision, exits", UnsupportedRevision),
    ],
)
async def test_the_end_of_a_slow_program_says_how_it_is_to_be_started_again(steps: str, kind: type[Exception]) -> None:
    """It was greeted before it answered the question (rule 114)."""
    async with greeting() as (server, begun, asked, greeted):
        for step in steps.split(", "):
            if step == "waits":
                await trio.sleep(LATE_INITIALIZE_WAIT / 2)
            elif step == "exits":
                server.exits()
            elif step == "answers":
                server.says(asked, DISCOVERY)
            elif step == "refuses the handshake":
                server.refuses(greeted, -32600)
            else:
                server.refuses(asked, *((-32601,) if step == "does not know" else (-32022, OTHER)))
        assert type(await begun.fails()) is kind


# By its silence


async def test_a_silent_program_is_greeted_and_what_it_says_later_to_the_question_counts_no_more() -> None:
    """(rule 114)"""
    async with beginning() as (server, begun):
        began = trio.current_time()
        asked = await server.hears("server/discover")
        id = await server.hears("initialize")
        assert trio.current_time() - began == pytest.approx(PROBE_TIMEOUT)
        server.says(id, GREETING)
        offer = await begun.met()
        server.says(asked, DISCOVERY)
        await trio.sleep(LATE_PROBE_TIMEOUT + 1)
        assert begun.link.revision is offer.revision is LATEST_LEGACY
        assert set(server.more()) == {"notifications/initialized", "notifications/cancelled"}


@pytest.mark.parametrize("after", [False, True])
async def test_a_slow_program_that_refuses_the_handshake_is_met_by_its_late_answer(after: bool) -> None:
    """Whether that comes before or after the refusal (rule 114)."""
    async with greeting() as (server, begun, asked, greeted):
        await trio.sleep(1)
        if after:
            server.refuses(greeted, -32022, {"supported": [NEW]})
            await trio.sleep(LATE_PROBE_TIMEOUT - 1)
            assert not begun.ended.is_set()
            server.says(asked, DISCOVERY)
        else:
            server.says(asked, DISCOVERY)
            await trio.sleep(1)
            server.refuses(greeted, -32022, {"supported": [NEW]})
        assert (await begun.met()).revision is LATEST
        await wait_all_tasks_blocked()
        assert server.more() == []


async def test_a_slow_program_that_answers_both_has_shaken_hands() -> None:
    """Its answer to the question came first, but the handshake was under way (rule 114)."""
    async with greeting() as (server, begun, asked, greeted):
        await trio.sleep(3)
        server.says(asked, DISCOVERY)
        await trio.sleep(LATE_INITIALIZE_WAIT - 0.1)
        assert not begun.ended.is_set()
        server.says(greeted, GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY
        await trio.sleep(LATE_PROBE_TIMEOUT + LATE_INITIALIZE_WAIT)
        assert begun.link.revision is LATEST_LEGACY
        assert server.more() == ["notifications/initialized"]


class Stuck(MemoryLink):
    """A link that takes the end of a handshake only after a while."""

    async def send(self, parcel: Parcel) -> None:
        if isinstance(parcel.message, Notification):
            await trio.sleep(LATE_INITIALIZE_WAIT * 3)
        await super().send(parcel)


async def test_a_handshake_that_was_half_made_in_time_is_made() -> None:
    """However long its last message takes to go out: it never ends as something else (rule 114)."""
    async with greeting() as (server, begun, asked, greeted):
        begun.link.__class__ = Stuck
        server.says(asked, DISCOVERY)
        await trio.sleep(LATE_INITIALIZE_WAIT - 0.1)
        server.says(greeted, GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY
        assert server.more() == ["notifications/initialized"]


@pytest.mark.parametrize("late", [None, GREETING])
async def test_a_slow_program_that_ignores_the_handshake_is_met_by_its_late_answer(late: object) -> None:
    """The handshake is not called off; an answer to it that comes later yet counts no more (rule 114)."""
    async with greeting() as (server, begun, asked, greeted):
        await trio.sleep(20)
        assert not begun.ended.is_set()
        began = trio.current_time()
        server.says(asked, DISCOVERY)
        assert (await begun.met()).revision is LATEST
        assert trio.current_time() - began == pytest.approx(LATE_INITIALIZE_WAIT)
        if late is not None:
            server.says(greeted, late)
        await trio.sleep(10)
        assert begun.link.revision is LATEST
        assert server.more() == []


async def test_a_slow_program_that_answers_the_handshake_with_nonsense_is_met_by_its_late_answer() -> None:
    """(rule 114)"""
    async with greeting() as (server, begun, asked, greeted):
        server.says(asked, DISCOVERY)
        server.puts(json.dumps({"jsonrpc": "2.0", "id": greeted, "error": 5}).encode())
        assert (await begun.met()).revision is LATEST


async def test_a_late_refusal_of_the_question_does_not_hurry_the_handshake() -> None:
    """Only a program that is stateless has to take its greeting soon."""
    async with greeting() as (server, begun, asked, greeted):
        server.refuses(asked, -32601)
        await trio.sleep(LATE_INITIALIZE_WAIT + LATE_PROBE_TIMEOUT + 10)
        server.says(greeted, GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY


async def test_a_program_that_was_met_before_is_not_greeted_for_its_silence() -> None:
    """But it is if it says that it does not know the question: it was replaced."""
    async with beginning(Dialect(initialize_on_silence=False)) as (server, begun):
        asked = await server.hears("server/discover")
        await trio.sleep(60)
        assert server.more() == []
        server.refuses(asked, -32601)
        server.says(await server.hears("initialize"), GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY


async def test_a_program_that_refuses_the_handshake_and_says_nothing_else_in_time_is_refused() -> None:
    async with beginning() as (server, begun):
        await server.hears("server/discover")
        server.refuses(await server.hears("initialize"), -32022)
        began = trio.current_time()
        problem = await begun.fails()
        assert trio.current_time() - began == pytest.approx(LATE_PROBE_TIMEOUT)
        assert isinstance(problem, PeerError)
        assert problem.error.code == -32022


# By what the configuration says


@pytest.mark.parametrize(("dialect", "exits"), [(STATELESS_ONLY, True), (Dialect(), False)])
async def test_what_is_at_a_url_or_said_to_be_modern_is_never_greeted_for_its_silence(
    dialect: Dialect, exits: bool
) -> None:
    """It may be out of order: that says nothing of what it speaks."""
    async with beginning(dialect, exits=exits) as (server, begun):
        asked = await server.hears("server/discover")
        await trio.sleep(60)
        assert server.more() == []
        server.says(asked, DISCOVERY)
        assert (await begun.met()).revision is LATEST


async def test_a_server_that_is_said_to_be_modern_is_never_greeted() -> None:
    async with beginning(STATELESS_ONLY) as (server, begun):
        server.refuses(await server.hears("server/discover"), -32601)
        problem = await begun.fails()
        assert isinstance(problem, UnsupportedRevision)
        assert str(problem) == "it supports no stateless revision"
        assert server.more() == []


async def test_a_server_that_is_said_to_be_legacy_is_never_asked() -> None:
    async with beginning(HANDSHAKE_ONLY) as (server, begun):
        server.says(await server.hears("initialize"), GREETING)
        await begun.met()
        await wait_all_tasks_blocked()
        assert server.more() == ["notifications/initialized"]


# Over HTTP


class Answering(MemoryLink):
    """A link whose server answers the first question with `problem`, and shakes hands."""

    problem: LinkLost
    asked: list[str]

    async def send(self, parcel: Parcel) -> None:
        await trio.lowlevel.checkpoint()
        assert isinstance(parcel.message, Request | Notification)
        self.asked.append(parcel.message.method)
        if parcel.message.method == "server/discover":
            raise self.problem
        await super().send(parcel)


@asynccontextmanager
async def over_http(problem: LinkLost, dialect: Dialect | None = None) -> AsyncIterator[tuple[Far, Begun, Answering]]:
    near, far = memory_links()
    near.__class__ = Answering
    assert isinstance(near, Answering)
    near.problem, near.asked = problem, []
    server, begun = Far(far), Begun(near)
    async with open_peer(near, NullHandler()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(server.run)
        nursery.start_soon(begun.run, peer, dialect or Dialect(), False)
        yield server, begun, near
        nursery.cancel_scope.cancel()


class NoAnswer(LinkLost):
    """202, an empty body, or something else that is no JSON-RPC."""

    answered = True


@pytest.mark.parametrize("problem", [*(HttpRefused(status, "no") for status in (400, 404, 405, 406, 415)), NoAnswer()])
async def test_an_answer_over_http_that_no_stateless_server_gives_leads_to_the_handshake(problem: LinkLost) -> None:
    """(rule 9)"""
    async with over_http(problem) as (server, begun, _):
        server.says(await server.hears("initialize"), GREETING)
        assert (await begun.met()).revision is LATEST_LEGACY


@pytest.mark.parametrize(
    "problem",
    [
        AuthNeeded(401, "no"),
        *(HttpRefused(status, "no") for status in (302, 403, 429, 500, 502, 503)),
        Unreachable("no connection"),
        LinkLost("the answer broke off"),
    ],
)
async def test_an_outage_says_nothing_of_what_is_spoken(problem: LinkLost) -> None:
    """It is never taken for one that shakes hands (rule 38)."""
    async with over_http(problem) as (_, begun, link):
        assert str(await begun.fails()) == str(problem)
        assert link.asked == ["server/discover"]


async def test_a_url_that_is_said_to_be_modern_is_not_greeted_whatever_it_answers() -> None:
    async with over_http(HttpRefused(404, "no"), STATELESS_ONLY) as (_, begun, link):
        assert isinstance(await begun.fails(), UnsupportedRevision)
        assert link.asked == ["server/discover"]


def error(code: int, data: object = None, **id: object) -> bytes:
    found = {"code": code, "message": "no"} if data is None else {"code": code, "message": "no", "data": data}
    return json.dumps({"jsonrpc": "2.0", **id, "error": found}).encode()


LEGACY_ONLY = {"supported": [LATEST_LEGACY.name]}
HANDSHAKE = [
    *((status, b"", JSON) for status in (202, 400, 404, 405, 406, 415)),
    (400, b"<p>Bad Request", "text/html"),
    (400, error(-32000), JSON),
    (400, error(-32600, id=None), JSON),
    (400, error(-32602, id=1), JSON),
    (400, error(-32022, LEGACY_ONLY, id=1), JSON),
    (400, error(-32022, LEGACY_ONLY), JSON),
    (404, error(-32601, id=1), JSON),
    (500, error(-32603, id=1), JSON),
    (500, error(-32603, id=1), "text/plain; charset=utf-8"),
    (500, error(-32603, id=None), JSON),
    (501, error(-32601, id=1), JSON),
    (503, error(-32601, id=1), JSON),
    (200, b"", JSON),
    (200, b"", "text/plain"),
    (200, b"ok", JSON),
    (200, b"[]", JSON),
    (200, b"<p>Hello", "text/html"),
    (200, error(-32601, id=1), JSON),
    (200, b"data: " + error(-32602, id=1) + b"\n\n", SSE),
    (200, json.dumps({"jsonrpc": "2.0", "id": 1, "result": {}}).encode(), JSON),
]
REFUSALS = [
    (400, error(-32022, {"supported": ["2099-01-01"]}, id=1), JSON),
    (400, error(-32022, {"supported": ["2099-01-01"]}), JSON),
    (400, error(-32020, id=1), JSON),
    (200, error(-32021, id=1), JSON),
]
OUTAGES = [
    *((status, b"", JSON) for status in (401, 403, 429, 500, 502, 503)),
    (500, b'{"error": "down"}', JSON),
    (500, error(-32603, id=7), JSON),
    (500, b"<p>Internal error", "text/html"),
    (429, error(-32603, id=None), JSON),
]


@pytest.mark.parametrize(
    ("status", "body", "kind", "leads_to"),
    [
        (200, json.dumps({"jsonrpc": "2.0", "id": 1, "result": DISCOVERY}).encode(), JSON, NEW),
        *((*each, LATEST_LEGACY.name) for each in HANDSHAKE),
        *((*each, "refusal") for each in REFUSALS),
        *((*each, "outage") for each in OUTAGES),
    ],
)
async def test_what_each_answer_over_http_leads_to(status: int, body: bytes, kind: str, leads_to: str) -> None:
    """Only the first request has the headers of a stateless one (rule 9)."""

    async def script(heard: Heard, wire: Wire) -> None:
        said = json.loads(heard.body) if heard.body else {}
        if said.get("method") == "server/discover":
            await wire.say(status, body, kind)
        elif said.get("method") == "initialize":
            result = json.dumps(GREETING)
            await wire.say(200, b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (said["id"], result.encode()))
        else:
            await wire.say(202 if said else 405)

    ended: str
    async with serving(script) as server:
        try:
            async with (
                open_origin(server.url, {}) as origin,
                open_http(origin, lambda what, detail: None) as link,
                open_peer(link, NullHandler()) as peer,
            ):
                ended = (await negotiate(link, peer, {}, Dialect(), is_process=False)).revision.name
        except* UnsupportedRevision:
            ended = "refusal"
        except* HttpRefused:
            ended = "outage"
        methods = [json.loads(heard.body)["method"] for heard in server.heard if heard.method == "POST"]
        mirrored = [heard.headers.get("mcp-method") for heard in server.heard if heard.method == "POST"]
    assert ended == leads_to
    assert methods[1:] == (["initialize", "notifications/initialized"] if leads_to == LATEST_LEGACY.name else [])
    assert mirrored == ["server/discover", *(None for _ in methods[1:])]


# Which handshake revision is used

NAMES = [each.name for each in HANDSHAKES]


@pytest.mark.parametrize(
    ("code", "data", "offered"),
    [
        (-32602, None, NAMES),
        (-32602, {"supported": ["2024-11-05", "2025-03-26"]}, ["2025-11-25", "2025-03-26", "2024-11-05"]),
        (-32022, {"supported": ["2024-11-05", "1999-01-01"]}, ["2025-11-25", "2024-11-05"]),
        (-32022, {"supported": [NEW]}, ["2025-11-25"]),
        (-32022, None, ["2025-11-25"]),
        (-32602, {"supported": "2024-11-05"}, NAMES),
        (-32601, None, ["2025-11-25"]),
        (-32603, None, ["2025-11-25"]),
        (-32000, None, ["2025-11-25"]),
    ],
)
async def test_a_server_that_refuses_a_version_is_offered_the_older_ones(
    code: int, data: object, offered: list[str]
) -> None:
    """Newest first, and of those that it names as supported. The first refusal is what is told in the end."""
    async with beginning(HANDSHAKE_ONLY) as (server, begun):
        for number, name in enumerate(offered):
            id = await server.hears("initialize")
            assert server.params["protocolVersion"] == name
            server.refuses(id, code if number == 0 else -32602, data if number == 0 else None)
        problem = await begun.fails()
        assert isinstance(problem, PeerError)
        assert problem.error.code == code
        assert server.more() == []


@pytest.mark.parametrize("message", ["Unsupported protocol version: 2025-11-25", "bad version", "2025-11-25?"])
async def test_a_version_error_may_have_any_code(message: str) -> None:
    async with beginning(HANDSHAKE_ONLY) as (server, begun):
        server.puts(write(Failure(ErrorBody(7, message), await server.hears("initialize"))))
        server.says(await server.hears("initialize"), {**GREETING, "protocolVersion": "2025-03-26"})
        met = await begun.met()
        assert (met.revision.name, met.refused_newer) == ("2025-03-26", True)
        assert server.more() == ["notifications/initialized"]


async def test_a_program_that_refuses_a_version_while_it_is_probed_is_offered_an_older_one() -> None:
    async with beginning() as (server, begun):
        await server.hears("server/discover")
        server.refuses(await server.hears("initialize"), -32602)
        server.says(await server.hears("initialize"), {**GREETING, "protocolVersion": "2025-06-18"})
        assert (await begun.met()).refused_newer


async def test_a_program_that_ends_after_it_refused_a_version_begins_with_the_next_one() -> None:
    async with beginning(HANDSHAKE_ONLY) as (server, begun):
        server.puts(write(Failure(ErrorBody(-32602, "use the old one"), await server.hears("initialize"))))
        await server.hears("initialize")
        server.exits()
        problem = await begun.fails()
        assert isinstance(problem, OlderOnly)
        assert (str(problem), problem.said) == ("it refused the handshake (error -32602)", "use the old one")
        assert [each.name for each in problem.offers] == ["2025-06-18", "2025-03-26", "2024-11-05", "2025-11-25"]
    async with beginning(changed(HANDSHAKE_ONLY, offers=problem.offers)) as (server, begun):
        id = await server.hears("initialize")
        assert server.params["protocolVersion"] == "2025-06-18"
        server.says(id, {**GREETING, "protocolVersion": "2025-06-18"})
        assert (await begun.met()).refused_newer


PINNED = Dialect(may_be_stateless=False, offers=(LEGACY["2025-06-18"],))


async def test_a_revision_in_the_configuration_is_the_only_one_that_is_offered_and_used() -> None:
    async with beginning(PINNED) as (server, begun):
        id = await server.hears("initialize")
        assert server.params["protocolVersion"] == "2025-06-18"
        server.says(id, {**GREETING, "protocolVersion": "2025-06-18"})
        assert not (await begun.met()).refused_newer
    async with beginning(PINNED) as (server, begun):
        server.refuses(await server.hears("initialize"), -32602)
        assert isinstance(await begun.fails(), PeerError)
        assert server.more() == []
    async with beginning(PINNED) as (server, begun):
        server.says(await server.hears("initialize"), GREETING)
        problem = await begun.fails()
        assert isinstance(problem, UnsupportedRevision)
        assert str(problem) == "it selected 2025-11-25, but its protocol key says 2025-06-18"


def test_what_a_server_accepted_at_last_is_offered_first() -> None:
    met = NegotiatedServer(LEGACY["2025-03-26"], frozenset(), None, "x 1", False)
    assert Dialect().after(met) == Dialect()  # it selected that itself, and may select a newer one tomorrow
    known = Dialect().after(changed(met, refused_newer=True))
    assert [each.name for each in known.offers] == ["2025-03-26", "2025-11-25", "2025-06-18", "2024-11-05"]
    assert PINNED.after(changed(met, refused_newer=True)) == PINNED


@dataclass
class Old:
    """A server at a URL that refuses `initialize` with revisions after `newest` by an error status, and may refuse
    `notifications/initialized`."""

    newest: str
    refusal: bytes = b""
    initialized: int = 202
    refused_with: int = 400
    offered: list[str] = field(default_factory=list)

    async def __call__(self, heard: Heard, wire: Wire) -> None:
        said = json.loads(heard.body) if heard.body else {}
        if said.get("method") == "initialize":
            version = said["params"]["protocolVersion"]
            self.offered.append(version)
            assert "mcp-session-id" not in heard.headers
            if version > self.newest:
                body = self.refusal.replace(b'"id": 1', b'"id": %d' % said["id"])
                await wire.say(self.refused_with, body, JSON, mcp_session_id="refused")
            else:
                result = json.dumps({**GREETING, "protocolVersion": version})
                body = b'{"jsonrpc":"2.0","id":%d,"result":%s}' % (said["id"], result.encode())
                await wire.say(200, body, JSON, mcp_session_id="s")
        elif said.get("method") == "notifications/initialized":
            await wire.say(self.initialized, self.refusal, JSON)
        else:
            await wire.say(405)

    async def meet(self) -> NegotiatedServer | BaseException:
        found: NegotiatedServer | BaseException
        async with serving(self) as server:
            try:
                async with (
                    open_origin(server.url, {}) as origin,
                    open_http(origin, lambda what, detail: None) as link,
                    open_peer(link, NullHandler()) as peer,
                ):
                    found = await negotiate(link, peer, {}, HANDSHAKE_ONLY, is_process=False)
            except* (LinkLost, PeerError) as group:
                found = first_exception(group)
        return found


@pytest.mark.parametrize(
    "refusal",
    [
        b"",
        error(-32602, id=1),
        error(-32000, id=1),
        error(-32603, id=1),
        error(-32602, id=None),
        b'{"error": "unsupported"}',
    ],
)
async def test_a_server_that_refuses_a_version_by_400_is_offered_the_older_ones(refusal: bytes) -> None:
    server = Old("2025-03-26", refusal)
    met = await server.meet()
    assert isinstance(met, NegotiatedServer)
    assert (met.revision.name, met.refused_newer) == ("2025-03-26", True)
    assert server.offered == ["2025-11-25", "2025-06-18", "2025-03-26"]
    nothing = Old("", refusal)
    assert isinstance(await nothing.meet(), HttpRefused | PeerError)
    assert nothing.offered == NAMES, "each is offered once"


@pytest.mark.few(2)
@pytest.mark.parametrize("status", [400, 409, 422, 500])
@pytest.mark.parametrize("id", ["1", "null"])
async def test_an_error_that_names_the_version_may_have_any_status(status: int, id: str) -> None:
    refusal = b'{"jsonrpc":"2.0","error":{"code":1,"message":"Unsupported protocol version"},"id": %s}' % id.encode()
    server = Old("2025-06-18", refusal, refused_with=status)
    met = await server.meet()
    assert isinstance(met, NegotiatedServer)
    assert server.offered == ["2025-11-25", "2025-06-18"]


@pytest.mark.parametrize("status", [400, 404])
async def test_a_server_that_does_not_know_initialize_is_asked_once(status: int) -> None:
    server = Old("", error(-32601, id=1), refused_with=status)
    assert isinstance(await server.meet(), PeerError)
    assert server.offered == ["2025-11-25"]


async def test_an_outage_at_the_first_question_says_what_helps_a_server_that_fails_at_it() -> None:
    async with over_http(HttpRefused(500, "the server failed")) as (_, begun, _):
        problem = await begun.fails()
        assert isinstance(problem, HttpRefused)
        assert problem.with_remedy.endswith("if it fails at server/discover alone, write protocol: legacy")


@pytest.mark.parametrize("status", [400, 404, 405, 500, 503])
@pytest.mark.parametrize("newest", ["2025-11-25", "2025-06-18"])
async def test_a_refused_end_of_the_handshake_is_named(status: int, newest: str) -> None:
    """`initialize` was answered, so the server speaks this transport, and its path is right."""
    problem = await Old(newest, initialized=status).meet()
    assert isinstance(problem, HttpRefused)
    assert str(problem) == f"it accepted initialize and refused notifications/initialized (HTTP {status})"
    assert not problem.may_be_http_sse
    assert not problem.lasting


@pytest.mark.parametrize(
    ("message", "is_told"),
    [("Bad Request: Unsupported protocol version (supported versions: 2025-06-18)", True), ("no", False)],
)
async def test_a_version_that_is_refused_only_at_the_end_of_the_handshake_has_a_remedy(
    message: str, is_told: bool
) -> None:
    """As by a gateway that answers `initialize` itself."""
    refusal = json.dumps({"jsonrpc": "2.0", "id": None, "error": {"code": -32000, "message": message}}).encode()
    problem = await Old("2025-11-25", refusal, initialized=400).meet()
    assert isinstance(problem, HttpRefused)
    assert ("write an older revision" in problem.with_remedy) is is_told
    assert "older" not in str(problem)


# What is kept from one connection to the next


class Examined(ScriptedServer):
    """One that notes each question, and exits at it if it `exits`."""

    def __init__(self, id: str = "a", *, exits: bool = False, **more: Any) -> None:
        super().__init__(id, tools=["x"], **more)
        self.exits = exits
        self.answers["server/discover"] = self._discovered_now

    async def _discovered_now(self, params: dict[str, Any]) -> object:
        if self.exits:
            self.dies()
            await trio.sleep_forever()
        return self._discovery()

    def began(self) -> list[str]:
        """How all connections began."""
        return [method for method in self.asked if method in ("server/discover", "initialize")]

    def restarts(self, **changed: Any) -> None:
        self.__dict__.update(changed)
        self.dies()


def failures(world: World) -> list[str]:
    return [event.why for event in world.events if isinstance(event, ServerFailed)]


async def ready(world: World, seconds: float = 30) -> None:
    await trio.sleep(seconds)
    assert isinstance(world.upstreams.by_id["a"].main.state, Ready), world.upstreams.by_id["a"].main.state


async def test_a_program_that_exits_at_the_question_is_started_again_at_once_and_not_asked_any_more() -> None:
    """That is no failure; nor is the question put to a later one."""
    server = Examined(exits=True)
    began = trio.current_time()
    async with open_world(server) as world:
        await world.settled()
        assert trio.current_time() == began
        assert (server.connections, server.began(), failures(world)) == (2, ["server/discover", "initialize"], [])
        server.restarts()
        await ready(world)
        assert (server.connections, server.began()) == (3, ["server/discover", "initialize", "initialize"])


class Slow(Examined):
    """A stateless program that answers the question a second after it could have been greeted for its silence, at each
    start; `greeted` is what it does at a greeting, once it gets to that."""

    def __init__(self, greeted: str, **more: Any) -> None:
        super().__init__(revision=NEW, **more)
        self.greeted_so = greeted
        self.answers["initialize"] = self._greeted

    async def _discovered_now(self, params: dict[str, Any]) -> object:
        await trio.sleep(PROBE_TIMEOUT + 1)
        return self._discovery()

    async def _greeted(self, params: dict[str, Any]) -> object:
        link = self.link
        assert link is not None
        await trio.sleep(30 if self.greeted_so == "exits when it is ready" else 1.1)
        if self.greeted_so.startswith("refuses"):
            link.write_bytes(write(Failure(ErrorBody(-32022, "no"), 2)))  # the question came first
        if "exits" in self.greeted_so:
            link.close()
        await trio.sleep_forever()


@pytest.mark.parametrize("greeted", ["ignores", "refuses", "exits"])
async def test_a_slow_stateless_program_is_connected_without_a_failure(greeted: str) -> None:
    """Whatever it does when it is greeted for its silence; and a later one is not greeted (rule 114)."""
    server = Slow(greeted)
    async with open_world(server) as world:
        await ready(world)
        assert failures(world) == []
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST
        exits = greeted == "exits"
        began = ["server/discover", "initialize", *(["server/discover"] if exits else [])]
        assert (server.connections, server.began()) == (2 if exits else 1, began)
        server.restarts()
        await ready(world)
        assert server.began() == [*began, "server/discover"]
        assert len(failures(world)) == 1


@pytest.mark.parametrize("greeted", ["refuses and exits", "exits when it is ready"])
async def test_a_slow_stateless_program_that_a_greeting_ends_later_is_lost_once_at_the_most(greeted: str) -> None:
    """The next one is not greeted (rule 114)."""
    server = Slow(greeted)
    async with open_world(server) as world:
        await ready(world, 60)
        assert server.began() == ["server/discover", "initialize", "server/discover"]
        assert len(failures(world)) <= 1
        await trio.sleep(600)
        assert server.connections == 2


async def test_a_program_that_exits_though_it_is_not_greeted_any_more_waits_between_its_starts() -> None:
    """It answers the question only where that does not help: then it is greeted as anew, as often as it fails."""
    server = Slow("exits")

    async def exits_each_other_time(params: dict[str, Any]) -> object:
        link = server.link
        assert link is not None
        await trio.sleep(PROBE_TIMEOUT + 1)
        if server.connections % 2 == 0:
            link.close()
            await trio.sleep_forever()
        return server._discovery()

    server.answers["server/discover"] = exits_each_other_time
    async with open_world(server) as world:
        await trio.sleep(100)
        assert 2 <= len(failures(world)) < 15
        assert len(failures(world)) <= server.connections <= 2 * len(failures(world)) + 2
        assert server.connections <= 2 * MAX_STARTS  # in less than two minutes
        assert server.began()[:4] == ["server/discover", "initialize", "server/discover", "server/discover"]


async def test_a_stateless_program_that_is_replaced_by_a_silent_one_is_found_out_anew() -> None:
    """Not at once: the silence may be its being slow."""
    server = Examined(revision=NEW)

    async def says_nothing(params: dict[str, Any]) -> object:
        await trio.sleep_forever()

    async with open_world(server) as world:
        await world.settled()
        server.answers["server/discover"] = says_nothing
        server.restarts(revision=LATEST_LEGACY.name, stateless=False)
        await ready(world, server.spec.start_timeout + 30)
        assert server.began() == ["server/discover", "server/discover", "server/discover", "initialize"]
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST_LEGACY


async def test_a_program_that_exits_whatever_it_is_asked_waits_between_its_starts() -> None:
    server = Examined(exits=True)

    async def exits(params: dict[str, Any]) -> object:
        server.dies()
        await trio.sleep_forever()

    server.answers["initialize"] = exits
    async with open_world(server) as world:
        await trio.sleep(60)
        assert len(failures(world)) < 15
        assert server.began() == (["server/discover", "initialize"] * server.connections)[: server.connections]


async def test_a_server_that_shakes_hands_is_asked_once() -> None:
    server = Examined()
    async with open_world(server) as world:
        await world.settled()
        server.restarts()
        await ready(world)
        assert server.began() == ["server/discover", "initialize", "initialize"]


async def test_what_is_known_of_a_server_is_found_out_anew_when_it_does_not_hold() -> None:
    """It was replaced by one that knows no handshake, and that by one that knows nothing else."""
    server = Examined()
    async with open_world(server) as world:
        await world.settled()
        server.restarts(revision=NEW, stateless=True)
        await ready(world)
        assert server.began() == ["server/discover", "initialize", "initialize", "server/discover"]
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST
        server.restarts(revision=LATEST_LEGACY.name, stateless=False)
        await ready(world)
        assert server.began()[4:] == ["server/discover", "initialize"]
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST_LEGACY


@pytest.mark.parametrize(
    ("protocol", "began"), [(Protocol.LEGACY, ["initialize"]), (Protocol.MODERN, ["server/discover"])]
)
async def test_what_the_configuration_says_holds_for_every_connection(protocol: Protocol, began: list[str]) -> None:
    """Also for those that fail: the server speaks the other kind."""
    right = LATEST_LEGACY.name if protocol is Protocol.LEGACY else NEW
    wrong = NEW if protocol is Protocol.LEGACY else LATEST_LEGACY.name
    server = Examined(protocol=protocol, revision=wrong)
    async with open_world(server) as world:
        await world.settled()
        assert len(failures(world)) == 1
        await trio.sleep(20)
        assert set(server.began()) == set(began)
        server.revision, server.stateless = right, right == NEW
        await ready(world, 80)  # it is tried once a minute by now


@pytest.mark.parametrize("exits", [True, False])
async def test_an_instance_of_a_server_begins_as_its_server_did(exits: bool) -> None:
    server = Examined(exits=exits, isolation=Isolation.PER_CALL)

    async def call(params: dict[str, Any]) -> object:
        return {"content": []}

    server.answers["tools/call"] = call
    async with open_client(server) as (_, client, _):
        for _ in range(2):
            assert await client.call("a__x") == {"content": []}
        assert server.began() == ["server/discover", "initialize", "initialize", "initialize"]


async def test_an_instance_begins_well_while_its_server_is_away() -> None:
    """What was found out of the server holds until something else is."""
    server = Examined(exits=True, isolation=Isolation.PER_CALL)

    async def call(params: dict[str, Any]) -> object:
        return {"content": []}

    async def fail(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(1, "no"))

    server.answers["tools/call"] = call
    async with open_client(server) as (world, client, _):
        assert await client.call("a__x") == {"content": []}
        server.answers["initialize"] = fail
        world.upstreams["a"].main.ready_client().peer.connection_lost(LinkLost("gone"))
        await trio.sleep(100)
        assert isinstance(world.upstreams.by_id["a"].main.state, Failed)
        del server.answers["initialize"]
        for _ in range(2):
            assert await client.call("a__x") == {"content": []}
        assert isinstance(world.upstreams.by_id["a"].main.state, Failed)
