"""What every connection has in common: its end in words, signs of life; and how the transport of old is found."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from trio.testing import wait_all_tasks_blocked

from config import Consent, HttpServer, ServerSpec, StdioServer
from config.references import Secret
from host.catalog import Catalog
from host.errors import Unavailable
from host.exchange import Answered
from host.journal import Event, Journal, RequestFailed, ServerFailed
from host.jsonrpc.messages import ErrorBody, Request
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import open_peer
from host.protocol.handshake import UnsupportedRevision
from host.protocol.stateless import STALE
from host.protocol.versions import LATEST, LATEST_LEGACY
from host.telemetry.traces import Traces
from host.upstream.connection import PING_INTERVAL, PING_TIMEOUT, failure_reason, keep_alive
from host.upstream.runtime import Runtime
from host.upstream.state import Connecting, Failed, Ready, describe_for_people, describe_state
from host.upstream.upstreams import Upstreams, open_upstreams
from host.views import Views
from host.wire.http_errors import AuthNeeded, HttpRefused, Unreachable
from host.wire.link import Link, LinkLost, Parcel
from tests.kit.gates import open_gate
from tests.kit.memory import MemoryLink, NullHandler, memory_links
from tests.kit.world import Refusal, ScriptedServer, later, open_client, open_world

pytestmark = pytest.mark.virtual_time

SECRET = "tok-123456"
CHILD = StdioServer(id="a", command=(Secret("x"),), cwd=Path("/"), env={"TOKEN": Secret(SECRET)})


@pytest.mark.parametrize(
    ("problem", "said"),
    [
        (LinkLost("it exited with status 3"), "it exited with status 3"),
        (LinkLost(f"HTTP 500: {SECRET} is wrong"), "HTTP 500: *** is wrong"),
        (
            UnsupportedRevision("it selected 1999-01-01"),
            "no protocol revision in common: it selected 1999-01-01: update the server",
        ),
        (
            UnsupportedRevision("it selected 2999-01-01, Colonnade supports only 2025-11-25"),
            "no protocol revision in common: it selected 2999-01-01, Colonnade supports only 2025-11-25: "
            "update Colonnade",
        ),
        (trio.TooSlowError(), "it did not finish its start within 60 s: if it needs longer, raise start_timeout"),
        (Unreachable("it cannot be reached", "start it"), "it cannot be reached: start it"),
        (PeerError(ErrorBody(-1, f"bad {SECRET}\n")), "it refused the handshake (error -1)"),
        (BrokenAnswer("no result"), "its response to the handshake is invalid: no result"),
        (ValueError("no object"), "its response to the handshake is invalid: no object"),
    ],
)
def test_the_end_of_a_connection_in_words_without_secrets(problem: Exception, said: str) -> None:
    group = ExceptionGroup("", [ExceptionGroup("", [problem]), LinkLost("another")])
    assert failure_reason(CHILD, group) == said


@pytest.mark.parametrize(
    "answer", [b'"result":{}', b'"error":{"code":-32601,"message":"no"}', b'"result":{},"error":5']
)
async def test_any_answer_is_a_sign_of_life(answer: bytes) -> None:
    """(rule 16)"""
    near, far = memory_links()
    async with open_peer(near, NullHandler()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive, peer)
        for number in range(1, 4):
            data, _ = await far._incoming.receive()
            assert b'"ping"' in data
            assert trio.current_time() >= number * PING_INTERVAL - 1
            far.write_bytes(b'{"jsonrpc":"2.0","id":%d,%b}' % (number, answer))
        await trio.sleep(PING_TIMEOUT + 1)
        assert not peer.ended.is_set()
        nursery.cancel_scope.cancel()


async def test_whoever_says_anything_at_all_is_not_asked() -> None:
    """(rule 16)"""
    near, far = memory_links()
    async with open_peer(near, NullHandler()) as peer, trio.open_nursery() as nursery:
        nursery.start_soon(keep_alive, peer)
        for _ in range(10):
            await trio.sleep(PING_INTERVAL - 1)
            far.write_bytes(b'{"jsonrpc":"2.0","method":"notifications/x"}')
        with pytest.raises(trio.WouldBlock):
            far._incoming.receive_nowait()
        nursery.cancel_scope.cancel()


async def test_without_a_sign_of_life_the_connection_is_given_up() -> None:
    """(rule 16)"""
    near, _far = memory_links()
    async with open_peer(near, NullHandler()) as peer:
        began = trio.current_time()
        await keep_alive(peer)
        assert trio.current_time() - began == pytest.approx(PING_INTERVAL + PING_TIMEOUT)
        assert str(peer.lost) == "it did not respond to a ping within 10 s"


RESTART_HINT = "; then colonnade restart a"


# The transport of old


class Refusing(MemoryLink):
    """A link over which `initialize` is refused."""

    problem: LinkLost

    async def send(self, parcel: Parcel) -> None:
        await trio.lowlevel.checkpoint()
        raise self.problem


class TwoTransports:
    """A server at a URL. Over Streamable HTTP it refuses with `problem`, if there is one; over HTTP+SSE with
    `http_sse`. `tried` are the attempts: whether each was over the transport of old."""

    def __init__(self, problem: LinkLost | None, older: LinkLost | None = None) -> None:
        self.server = ScriptedServer("a", tools=["x"])
        self.problems = {False: problem, True: older}
        self.tried: list[bool] = []
        self.spec = HttpServer(id="a", url=Secret("https://a.example/mcp"), consent=Consent())
        self.events: list[Event] = []

    def open_link(self, spec: ServerSpec, http_sse: bool) -> AbstractAsyncContextManager[Link]:
        self.tried.append(http_sse)
        problem = self.problems[http_sse]
        return self.server.open_link() if problem is None else self._refuse(problem)

    @asynccontextmanager
    async def _refuse(self, problem: LinkLost) -> AsyncIterator[Link]:
        near, _far = memory_links()
        near.__class__ = Refusing
        near.problem = problem  # type: ignore[attr-defined]
        yield near

    @property
    def failures(self) -> list[str]:
        return [event.why for event in self.events if isinstance(event, ServerFailed)]


@asynccontextmanager
async def open_both(server: TwoTransports) -> AsyncIterator[Upstreams]:
    journal = Journal()
    journal.subscribe(server.events.append)
    specs = {"a": server.spec}
    with open_gate(specs, journal) as gate:
        catalog = Catalog(["a"], gate.definitions.is_visible, lambda entry, view: None, views=Views())
        async with open_upstreams(specs, 3.0, Runtime(catalog, gate, journal, server.open_link)) as upstreams:
            await upstreams.by_id["a"].main.life.settled.wait()
            yield upstreams


@pytest.mark.parametrize("status", [400, 404, 405, 406, 415])
async def test_a_server_that_refuses_the_handshake_is_tried_by_the_transport_of_old_at_once(status: int) -> None:
    """(rule 9)"""
    server = TwoTransports(HttpRefused(status, "no"))
    began = trio.current_time()
    async with open_both(server) as upstreams:
        assert isinstance(upstreams.by_id["a"].main.state, Ready)
        assert trio.current_time() == began
        assert (server.tried, server.failures) == ([False, True], [])
        assert upstreams.by_id["a"].main.dialect.http_sse


@pytest.mark.parametrize(
    "problem",
    [
        AuthNeeded(401, "no"),
        HttpRefused(403, "no"),
        HttpRefused(429, "no"),
        HttpRefused(500, "no"),
        HttpRefused(302, "no"),
        Unreachable("no connection"),
        LinkLost("broken"),
    ],
)
async def test_other_trouble_says_nothing_about_the_transport(problem: LinkLost) -> None:
    server = TwoTransports(problem)
    async with open_both(server) as upstreams:
        assert server.tried == [False]
        remedy = f": {problem.remedy}" if problem.remedy else ""
        assert server.failures == [f"{problem}{remedy}" + (RESTART_HINT if problem.lasting else "")]
        await trio.sleep(20)
        assert set(server.tried) == {False}
        assert not upstreams.by_id["a"].main.dialect.http_sse


FORBIDDEN = f"Ask \x1b[2Jadmin@a.example for access, {SECRET}-not. " + "x" * 300


def forbidden() -> AuthNeeded:
    refused = AuthNeeded(403, "the server refuses access", "look")
    refused.said = FORBIDDEN
    return refused


async def test_what_a_server_says_about_its_refusal_is_for_people_only() -> None:
    server = TwoTransports(forbidden())
    server.spec = replace(server.spec, headers={"x-key": Secret(SECRET)})
    async with open_both(server) as upstreams:
        main = upstreams.by_id["a"].main
        for _ in range(2):  # also while it is tried again
            shown = describe_for_people(main.state)
            assert f'; the server says: "Ask admin@a.example for access, ***-not. {"x" * 100}' in shown
            assert len(shown) < 400
            assert "the server says" not in describe_state(main.state)
            with pytest.raises(Unavailable) as told:
                main.ready_client()
            assert "admin" not in told.value.message
            main.life.state = Connecting(0.0, "no", main.state.said) if isinstance(main.state, Failed) else main.state
        (failure,) = server.failures
        assert failure.startswith("the server refuses access (HTTP 403): look; then colonnade restart a; the server ")


async def test_what_a_server_says_about_a_refused_handshake_is_for_people_only() -> None:
    class Refuses(ScriptedServer):
        async def _answer(self, request: Request) -> Raw:
            raise PeerError(ErrorBody(-32600, f"Ask admin for access, {SECRET}"))

    server = Refuses("a", tools=["x"])
    server.spec = replace(server.spec, env={"KEY": Secret(SECRET)})
    async with open_world(server) as world:
        await trio.sleep(5)
        state = world.upstreams["a"].main.state
        assert "it refused the handshake (error -32600)" in describe_for_people(state)
        assert 'the server says: "Ask admin for access, ***"' in describe_for_people(state)
        client = await world.client()
        told = json.dumps(await client.call("a__x"))
        assert "error -32600" in told
        assert "admin" not in told


async def test_what_a_server_says_about_a_refused_call_is_told_to_people_only() -> None:
    class Refuses(MemoryLink):
        async def send(self, parcel: Parcel) -> None:
            if getattr(parcel.message, "method", "") == "tools/call":
                raise forbidden()
            await super().send(parcel)

    class Server(ScriptedServer):
        @asynccontextmanager
        async def open_link(self) -> AsyncIterator[Link]:
            async with super().open_link() as link:
                link.__class__ = Refuses
                yield link

    server = Server("a", tools=["x"])
    server.spec = replace(server.spec, env={"KEY": Secret(SECRET)})
    traces = Traces(exporter=InMemorySpanExporter())
    parent = "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-00"
    async with open_client(server, observer=traces) as (world, client, _):
        told = json.dumps(await client.call("a__x", _meta={"traceparent": parent}))
        assert "HTTP 403" in told
        assert "admin" not in told
        (event,) = (event for event in world.events if isinstance(event, RequestFailed))
        assert str(event).startswith(
            'a: a request for test failed: the server refuses access (HTTP 403); the server says: "Ask a'
        )
        assert (event.caller, event.trace_id) == ("test", parent.split("-")[1])
        assert SECRET not in str(event)
    await traces.close()


async def test_what_only_a_person_can_mend_is_tried_again_after_minutes() -> None:
    """The failure names the command that tries at once."""
    server = TwoTransports(AuthNeeded(401, "no"))
    async with open_both(server) as upstreams:
        await trio.sleep(1200)
        count = len(server.tried)
        assert 5 <= count <= 7
        upstreams.apply({"a": server.spec}, {"a"})
        await wait_all_tasks_blocked()
        assert len(server.tried) == count + 1


async def test_a_server_that_speaks_the_present_transport_is_never_tried_by_the_old_one() -> None:
    """Not even if it refuses later: then it knows us."""
    server = TwoTransports(None)
    async with open_both(server) as upstreams:
        peer = upstreams["a"].main.ready_client().peer
        peer.connection_lost(HttpRefused(404, "gone"))
        await trio.sleep(2)
        assert server.tried == [False, False]


@pytest.mark.parametrize(
    ("first", "second", "told"),
    [
        (HttpRefused(405, "no"), HttpRefused(404, "not that either"), "no (HTTP 405)" + RESTART_HINT),
        (HttpRefused(404, "no"), HttpRefused(400, "it lacks a key"), "it lacks a key (HTTP 400)"),
        (HttpRefused(400, "it lacks a key"), HttpRefused(405, "no"), "it lacks a key (HTTP 400)"),
        (HttpRefused(400, "it lacks a key"), HttpRefused(400, "no"), "it lacks a key (HTTP 400)"),
        (HttpRefused(400, "no"), AuthNeeded(401, "credentials"), "credentials (HTTP 401)" + RESTART_HINT),
        (HttpRefused(405, "no"), LinkLost("its stream ended"), "its stream ended"),
    ],
)
async def test_where_both_transports_fail_the_reason_is_that_of_the_one_that_came_furthest(
    first: LinkLost, second: LinkLost, told: str
) -> None:
    server = TwoTransports(first, second)
    async with open_both(server):
        assert server.failures == [told]
        assert server.tried == [False, True]


async def test_where_both_transports_fail_both_are_tried_again() -> None:
    server = TwoTransports(HttpRefused(405, "no"), HttpRefused(404, "not that either"))
    async with open_both(server) as upstreams:
        assert server.tried == [False, True]
        await trio.sleep(20)
        count = len(server.tried)
        assert count < 20
        assert server.tried == ([False, True] * count)[:count]
        server.problems[False] = None
        await trio.sleep(400)  # by now it is tried every five minutes
        assert isinstance(upstreams.by_id["a"].main.state, Ready)
        assert not upstreams.by_id["a"].main.dialect.http_sse


async def test_after_a_connection_of_old_has_ended_the_present_transport_is_tried_first() -> None:
    server = TwoTransports(HttpRefused(404, "no"))
    async with open_both(server) as upstreams:
        server.server.dies()
        await trio.sleep(2)
        assert server.tried == [False, True, False, True]
        assert len(server.failures) == 1
        server.problems[False] = None
        server.server.dies()
        await trio.sleep(5)
        assert isinstance(upstreams.by_id["a"].main.state, Ready)
        assert not upstreams.by_id["a"].main.dialect.http_sse


@pytest.mark.parametrize("code", [-32000, -32001, -32600, -32022])
async def test_a_stateless_server_that_was_replaced_is_met_anew(code: int) -> None:
    """What it then says to a call raises the doubt; the call itself fails once (rule 15)."""
    server = ScriptedServer("a", tools=["x"], revision=LATEST.name)
    async with open_client(server) as (world, client, nursery):
        call = later(nursery, client.call, "a__x")
        asked = await server.hears("tools/call")
        server.stateless, server.revision = False, LATEST_LEGACY.name
        server.refuses(asked["id"], code, "Server not initialized")
        with pytest.raises(Refusal):
            await call.comes()
        await trio.sleep(2)
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST_LEGACY
        assert server.connections == 2


async def test_a_stateless_server_that_only_refuses_a_call_is_not_lost() -> None:
    server = ScriptedServer("a", tools=["x"], revision=LATEST.name)
    async with open_client(server) as (_, client, nursery):
        for _ in range(3):
            call = later(nursery, client.call, "a__x")
            server.refuses((await server.hears("tools/call"))["id"], -32000, "not now")
            with pytest.raises(Refusal):
                await call.comes()
            await trio.sleep(20)
        assert server.connections == 1


@pytest.mark.parametrize("code", [-32022, -32020])
async def test_a_handshake_server_that_was_replaced_is_met_anew(code: int) -> None:
    """By one that has no handshake: that says so in words that only such servers have, and to a ping as well."""

    async def ping(params: dict[str, Any]) -> object:
        if server.stateless:
            raise PeerError(ErrorBody(code, "Unsupported protocol version"))
        return {}

    server = ScriptedServer("a", tools=["x"], answers={"ping": ping})
    async with open_client(server) as (world, client, nursery):
        call = later(nursery, client.call, "a__x")
        asked = await server.hears("tools/call")
        server.stateless, server.revision = True, LATEST.name
        server.refuses(asked["id"], code, "Unsupported protocol version")
        with pytest.raises(Refusal):
            await call.comes()
        await trio.sleep(5)
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST


@pytest.mark.parametrize("code", [-32022, -32020])
async def test_the_answer_to_one_call_does_not_end_the_connection_of_everybody(code: int) -> None:
    """A tool may use the code for something else: only what the server answers to a ping says who it is."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        first, second = await world.client(), await world.client()
        pending = later(nursery, second.call, "a__x")
        asked = await server.hears("tools/call")
        for _ in range(20):
            call = later(nursery, first.call, "a__x")
            server.refuses((await server.hears("tools/call"))["id"], code, "header mismatch")
            with pytest.raises(Refusal, match="header mismatch"):
                await call.comes()
            await trio.sleep(1)
        server.says(asked["id"], {"content": []})
        assert await pending.comes() == {"content": []}
        assert server.connections == 1
        assert 1 <= server.asked.count("ping") <= 5  # one in DOUBT_PAUSE at the most


async def test_an_idle_handshake_server_that_was_replaced_is_found_out_by_a_ping() -> None:
    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32022, "Unsupported protocol version"))

    server = ScriptedServer("a", tools=["x"], answers={"ping": refuse})
    async with open_world(server) as world:
        await world.settled()
        server.stateless, server.revision = True, LATEST.name
        await trio.sleep(60)
        assert world.upstreams["a"].main.ready_client().negotiated.revision is LATEST


async def test_a_tool_that_its_server_does_not_know_has_the_list_read_again() -> None:
    server = ScriptedServer("a", tools=["x"], revision=LATEST.name)
    async with open_client(server) as (_, client, nursery):
        await trio.sleep(5)
        before = server.asked.count("tools/list")
        call = later(nursery, client.call, "a__x")
        asked = await server.hears("tools/call")
        server.lists["tools"] = []
        server.refuses(asked["id"], -32602, "Unknown tool: x")
        with pytest.raises(Refusal):
            await call.comes()
        await trio.sleep(5)
        assert server.asked.count("tools/list") == before + 1
        assert await client.names() == []


async def test_a_list_is_not_fresh_from_the_moment_that_it_changed() -> None:
    """Also while it is being read again, and when that fails (rule 97)."""
    server = ScriptedServer("a", tools=["x"], revision=LATEST.name)
    server.ttl_ms, server.scope = 60_000, "public"
    async with open_world(server) as world:
        await world.settled()
        await trio.sleep(1)
        fresh = await world.mrtr_round("tools/list", {})
        assert isinstance(fresh, Answered)
        assert fresh.freshness.ttl_ms > 50_000

        async def refuse(params: dict[str, Any]) -> object:
            raise PeerError(ErrorBody(-32603, "out of order"))

        server.answers["tools/list"] = refuse
        await server.tells("notifications/tools/list_changed")
        for seconds in (0, 10):
            await trio.sleep(seconds)
            await wait_all_tasks_blocked()
            stale = await world.mrtr_round("tools/list", {})
            assert isinstance(stale, Answered)
            assert stale.freshness == STALE
