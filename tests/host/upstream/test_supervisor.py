"""Which connection of a server serves whom: in each era, and over instances."""

from __future__ import annotations

from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from operator import attrgetter
from pathlib import Path
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from config import Consent, Eras, HttpServer, Isolation, Start, StdioServer, Trust
from config.references import Secret
from config.sandbox import Sandbox
from host.admin.status import server_status
from host.downstream.list_changes import SPACING
from host.errors import Unavailable, UnknownEntry
from host.exchange import Answered, Caller
from host.journal import Event, ServerFailed, ServerHeld, SessionClosed, SessionFailed, SessionOpened
from host.jsonrpc.messages import ErrorBody, Notification, Request
from host.jsonrpc.raw import encode, value
from host.peer.outstanding import PeerError
from host.policy.explain import explain
from host.protocol.methods import Kind
from host.protocol.versions import LATEST, LATEST_LEGACY, SESSION, STATELESS
from host.source import SHARED, EntryRef, Source
from host.upstream.lifecycle import ABSENT_FOR
from host.upstream.state import Disabled, Held, Ready, Stopped, describe_session, describe_state
from host.upstream.supervisor import SESSION_IDLE, SESSION_START_TIMEOUT
from host.upstream.upstreams import DRAIN_TIMEOUT, REREAD_WAIT
from host.wire.http_errors import Unreachable
from host.wire.link import Link, LinkLost
from tests.host.upstream.test_upstreams import text
from tests.kit.awaited import awaited
from tests.kit.gates import kind
from tests.kit.memory import MemoryLink
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client, open_world, says_revision, tool

pytestmark = pytest.mark.virtual_time

OK: dict[str, Any] = {"content": []}
IN_SESSION, WITHOUT = Caller("a", SHARED, era=SESSION), Caller("b", SHARED, era=STATELESS)
ALLOWED = Consent(tools=kind(allow=["*"]))


async def result_in_an_era(params: dict[str, Any]) -> object:
    return {"resultType": "complete", **OK} if says_revision(params) else OK


def both(id: str = "a", **more: Any) -> ScriptedServer:
    given = {"eras": Eras.BOTH, "revision": LATEST.name, "session_revision": LATEST_LEGACY.name, **more}
    return ScriptedServer(id, tools=["x"], answers={"tools/call": result_in_an_era}, **given)


def accepting_after(seconds: float) -> Any:
    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        return {"protocolVersion": LATEST_LEGACY.name, "capabilities": {"tools": {}}, "serverInfo": {}}

    return {"initialize": initialize}


async def call_statelessly(world: World, name: str) -> object:
    answer = await world.mrtr_round("tools/call", {"name": name, "arguments": {}})
    assert isinstance(answer, Answered)
    return value(answer.result)


def calls(server: ScriptedServer) -> list[str]:
    return [era for era, method in server.asked_in if method == "tools/call"]


async def test_each_client_is_served_in_its_own_era() -> None:
    """The session is opened when the first client needs it, and both connections stay."""
    server = both()
    async with open_world(server) as world:
        await world.settled()
        assert await call_statelessly(world, "a__x") == OK
        assert server.connections == 1
        client = await world.client()
        assert await client.call("a__x") == OK
        assert await call_statelessly(world, "a__x") == OK
        assert await client.call("a__x") == OK
        assert calls(server) == ["stateless", "handshake", "stateless", "handshake"]
        assert (server.connections, server.live) == (2, 2)
        assert SessionOpened("a", LATEST_LEGACY.name) in world.events
        row = server_status(world.upstreams.by_id["a"], world.catalog, world.journal)
        assert (row["revision"], row["session_revision"]) == (LATEST.name, LATEST_LEGACY.name)


@pytest.mark.parametrize("eras", [None, Eras.ONE])
async def test_a_program_that_speaks_both_is_spoken_to_in_one_era(eras: Eras | None) -> None:
    """Unless the file says otherwise: `initialize` would end what its process does for others."""
    server = both(eras=eras)
    async with open_world(server) as world:
        assert await (await world.client()).call("a__x") == OK
        assert await call_statelessly(world, "a__x") == OK
        assert (server.connections, calls(server)) == (1, ["stateless", "stateless"])


async def test_a_session_that_is_not_used_is_closed_and_opened_again() -> None:
    server = both()
    async with open_client(server) as (world, client, _):
        assert await client.call("a__x") == OK
        await trio.sleep(SESSION_IDLE + 2)
        assert (server.connections, server.live) == (2, 1)
        assert SessionClosed("a", SESSION_IDLE) in world.events
        assert await client.call("a__x") == OK
        assert (server.connections, server.live) == (3, 2)
        assert calls(server) == ["handshake", "handshake"]


async def test_a_session_that_does_not_open_in_time_names_a_remedy_that_helps() -> None:
    """Not `start_timeout`, which cannot give it more time."""
    server = at_url(both())
    server.answers["initialize"] = hang
    async with open_world(server, start_grace=20.0) as world:
        assert await (await world.client()).names() == ["a__x"]
        session = world.upstreams.by_id["a"].session
        assert session is not None
        assert "its session failed: it was not open within 10 s; with eras: one, none is opened" in str(
            describe_session(session.state)
        )


async def test_no_client_lists_what_a_session_listed_before_it_was_closed(tmp_path: Path) -> None:
    """A list opens it again and waits for it, for a second at most."""
    server = at_url(both())
    with_lists(server, stateless=[tool("late")], session=[tool("early")])
    async with open_client(server, state=tmp_path) as (world, client, nursery):
        assert await client.names() == ["a__early"]
        await trio.sleep(SESSION_IDLE + 2)
        assert server.live == 1
        with_lists(server, stateless=[tool("late")], session=[tool("new")])
        asked = [later(nursery, client.names) for _ in range(3)]
        assert [await each.comes() for each in asked] == [["a__new"]] * 3
        await trio.sleep(SESSION_IDLE + 2)
        assert (server.live, server.asked.count("initialize")) == (1, 2)
        with_lists(server, stateless=[tool("late")], session=[tool("newer")])
        server.answers |= accepting_after(5)
        began = trio.current_time()
        assert await client.names() == ["a__new"]
        assert trio.current_time() == began + REREAD_WAIT
        await trio.sleep(5)
        assert await client.names() == ["a__newer"]
    with_lists(server, stateless=[tool("late")], session=[tool("newest")])
    del server.answers["initialize"]
    async with open_world(server, state=tmp_path) as world:
        await world.settled()  # the session was open, but for the former host
        assert await (await world.client()).names() == ["a__newest"]


async def test_changes_announced_while_a_session_is_closed_reach_its_clients() -> None:
    server = at_url(both())
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.listen_changes)
        assert await client.names() == ["a__x"]
        await trio.sleep(SESSION_IDLE + 2)
        assert server.live == 1
        with_lists(server, stateless=[tool("x"), tool("y")], session=[tool("x"), tool("y")])
        await server.tells("notifications/tools/list_changed")
        await trio.sleep(1)
        assert client.notifications_of("notifications/tools/list_changed") == [{}]
        nursery.cancel_scope.cancel()


async def test_a_server_without_sessions_serves_all_clients_over_one_connection() -> None:
    """It is asked once, and the next client after a while makes it be asked again, without waiting."""
    server = both(session_revision=None)
    async with open_client(server) as (_, client, _):
        for _ in range(3):
            assert await client.call("a__x") == OK
        assert server.asked.count("initialize") == 1
        await trio.sleep(ABSENT_FOR)
        held = trio.Event()

        async def initialize(params: dict[str, Any]) -> object:
            await held.wait()
            return {"protocolVersion": LATEST_LEGACY.name, "capabilities": {"tools": {}}, "serverInfo": {}}

        server.session_revision, server.answers["initialize"] = LATEST_LEGACY.name, initialize
        assert await client.call("a__x") == OK
        assert calls(server) == ["stateless"] * 4
        held.set()
        await wait_all_tasks_blocked()
        assert await client.call("a__x") == OK
        assert calls(server) == ["stateless"] * 4 + ["handshake"]


async def test_a_session_that_ends_is_opened_again() -> None:
    """At once, and calls wait for it."""
    server = both()
    async with open_client(server) as (world, client, _):
        assert await client.call("a__x") == OK
        assert server.session is not None
        server.session.close()
        await wait_all_tasks_blocked()
        assert await call_statelessly(world, "a__x") == OK
        assert await client.call("a__x") == OK
        assert calls(server) == ["handshake", "stateless", "handshake"]
        assert [str(event) for event in world.events if isinstance(event, SessionFailed)] == [
            "a: its session failed (the other end was closed); it is opened again"
        ]


def at_url(server: ScriptedServer) -> ScriptedServer:
    """The server, configured as one at a URL."""
    server.spec = HttpServer(id=server.id, url=Secret("http://127.0.0.1:1/mcp"), consent=server.spec.consent)  # type: ignore[assignment]
    return server


class Flapping(ScriptedServer):
    """Speaks both eras. Each session ends `lasts` seconds after `initialize`: with 0 at the request that follows, as
    behind a balancer that sends it elsewhere."""

    lasts = 0.0

    async def _answer(self, request: Request) -> Raw:
        link = self._answering
        if self.lasts == 0 and link in self._sessions and link is not None:
            link.close()
        answer = await super()._answer(request)
        if request.method == "initialize" and self.lasts and self.session is not None:
            trio.lowlevel.spawn_system_task(self._end, self.session)
        return answer

    async def _end(self, link: MemoryLink) -> None:
        await trio.sleep(self.lasts)
        link.close()


def flapping(lasts: float = 0.0, **more: Any) -> Flapping:
    given = {"eras": Eras.BOTH, "revision": LATEST.name, "session_revision": LATEST_LEGACY.name, **more}
    server = Flapping("a", tools=["x"], answers={"tools/call": result_in_an_era}, **given)
    server.lasts = lasts
    with_lists(server, stateless=[tool("x"), tool("late")], session=[tool("x"), tool("early")])
    return server


async def test_a_session_that_cannot_be_kept_costs_no_client_its_server() -> None:
    """Calls and lists are those of the stateless connection, and it is tried again once in a minute, while a client
    uses it."""
    server = at_url(flapping())
    async with open_client(server) as (world, client, _):
        began = trio.current_time()
        for _ in range(60):
            assert await client.names() == ["a__x", "a__late"]
            assert await client.call("a__late") == OK
            await trio.sleep(10)
        tried = server.asked.count("initialize")
        assert 0.8 <= tried / ((trio.current_time() - began) / ABSENT_FOR + 1) <= 1
        assert set(calls(server)) == {"stateless"}
        (failed,) = (str(event) for event in world.events if isinstance(event, SessionFailed | ServerFailed))
        assert failed.startswith("a: its session failed (the other end was closed); handshake clients use ")
        await trio.sleep(3600)
        assert await call_statelessly(world, "a__x") == OK
        assert server.asked.count("initialize") == tried


async def refuse(params: dict[str, Any]) -> object:
    raise PeerError(ErrorBody(-32601, "no"))


async def lose(params: dict[str, Any]) -> object:
    raise AssertionError("set by the test")


async def answer_nonsense(params: dict[str, Any]) -> object:
    return []


async def select_unknown(params: dict[str, Any]) -> object:
    return {"protocolVersion": "1999-01-01", "capabilities": {}, "serverInfo": {}}


async def hang(params: dict[str, Any]) -> object:
    await trio.sleep_forever()


@pytest.mark.few(2)
@pytest.mark.parametrize("initialize", [refuse, lose, answer_nonsense, select_unknown, hang])
@pytest.mark.parametrize("was_open", [False, True])
async def test_however_a_session_fails_its_clients_get_the_stateless_connection(
    initialize: Any, was_open: bool
) -> None:
    """And are told where the lists differ; when it can be had again, they are told and get it back."""
    server = at_url(both())
    with_lists(server, stateless=[tool("x"), tool("late")], session=[tool("x"), tool("early")])

    async def lose_session(params: dict[str, Any]) -> object:
        assert server.session is not None
        server.session.close()
        return {}

    failing = lose_session if initialize is lose else initialize
    if not was_open:
        server.answers["initialize"] = failing
    async with open_client(server, start_grace=20.0) as (world, client, nursery):
        nursery.start_soon(client.listen_changes)
        if was_open:
            assert await client.names() == ["a__x", "a__early"]
            await trio.sleep(2 * SPACING)  # then it has the first lists, and is notified at once
            server.answers["initialize"] = failing
            assert server.session is not None
            server.session.close()
            await wait_all_tasks_blocked()
        await world.settled()
        began = trio.current_time()
        assert await client.call("a__x") == OK
        assert trio.current_time() - began <= SESSION_START_TIMEOUT
        assert await client.names() == ["a__x", "a__late"]
        assert await client.call("a__late") == OK
        assert calls(server) == ["stateless"] * 2
        later = trio.current_time()
        other = await world.client()
        assert await other.names() == ["a__x", "a__late"]
        assert await other.call("a__x") == OK
        assert trio.current_time() == later
        await trio.sleep(1)
        told = client.notifications_of("notifications/tools/list_changed")
        assert len(told) == was_open
        del server.answers["initialize"]
        await trio.sleep(ABSENT_FOR)
        assert await client.call("a__x") == OK
        await trio.sleep(1)
        assert await client.names() == ["a__x", "a__early"]
        assert await client.call("a__early") == OK
        assert calls(server)[-2:] == ["stateless", "handshake"]
        assert len(client.notifications_of("notifications/tools/list_changed")) == len(told) + 1
        nursery.cancel_scope.cancel()


async def test_lists_of_a_session_are_shown_when_it_serves() -> None:
    """Not before, while it is tried again: lists and calls are of one side."""
    server = at_url(both(session_revision=None))
    async with open_client(server) as (_, client, _):
        assert await client.names() == ["a__x"]
        await trio.sleep(ABSENT_FOR)
        with_lists(server, stateless=[tool("x")], session=[tool("early")])
        server.lists["prompts"] = server.session_lists["prompts"] = [{"name": "p"}]
        server.session_revision, held = LATEST_LEGACY.name, trio.Event()

        async def list_prompts(params: dict[str, Any]) -> object:
            if server._answering in server._sessions:
                await held.wait()
            return {"prompts": []}

        server.answers["prompts/list"] = list_prompts
        for _ in range(3):
            assert await client.names() == ["a__x"]
            assert await client.call("a__x") == OK
            await trio.sleep(1)
        assert "tools/list" in [method for era, method in server.asked_in if era == "handshake"]
        held.set()
        await trio.sleep(1)
        assert await client.names() == ["a__early"]
        assert calls(server) == ["stateless"] * 3


@pytest.mark.parametrize("lasts", [1.5, 11.5])
async def test_a_session_that_ends_again_and_again_does_not_delay_the_stateless_connection(lasts: float) -> None:
    server = at_url(flapping(lasts))
    async with open_client(server) as (world, client, _):
        for _ in range(120):
            await wait_all_tasks_blocked()
            assert await client.call("a__x") == OK
            await trio.sleep(1)
        assert ServerFailed not in map(type, world.events)
        world.upstreams["a"].main.ready_client().peer.connection_lost(LinkLost("gone"))
        await trio.sleep(1)
        assert await call_statelessly(world, "a__x") == OK
        # Sessions that end nobody uses any more are not opened again.
        tried = server.asked.count("initialize")
        await trio.sleep(3600)
        assert server.asked.count("initialize") <= tried + 1


async def test_the_connections_of_a_program_share_its_restarts() -> None:
    for server in (both(), at_url(both())):
        async with open_world(server) as world:
            upstream = world.upstreams.by_id["a"]
            assert upstream.session is not None
            is_program = isinstance(server.spec, StdioServer)
            restarts = attrgetter("role.restarts")
            assert (restarts(upstream.session) is restarts(upstream.main)) == is_program


class RefusedConnection(AbstractAsyncContextManager[Link]):
    async def __aenter__(self) -> Link:
        raise Unreachable("connection refused")

    async def __aexit__(self, *_: object) -> None:
        return


async def test_a_server_that_was_away_is_served_over_a_session_again() -> None:
    """At once when the stateless connection is made anew: the session could not be had because of the server."""
    server = at_url(both())
    async with open_client(server) as (_, client, _):
        assert await client.call("a__x") == OK
        await trio.sleep(20)
        open_link = server.open_link
        server.open_link = RefusedConnection  # type: ignore[method-assign, assignment]
        for link in list(server.open_links):
            link.close()
        await trio.sleep(2)
        assert "unavailable" in await text(client, "a__x")
        server.open_link = open_link  # type: ignore[method-assign]
        await trio.sleep(5)
        assert await client.call("a__x") == OK
        assert calls(server) == ["handshake", "handshake"]


async def test_a_server_that_turns_to_sessions_only_serves_all_over_them() -> None:
    server = both()
    async with open_client(server) as (world, client, _):
        assert await client.call("a__x") == OK
        server.stateless, server.revision = False, LATEST_LEGACY.name
        world.upstreams["a"].main.ready_client().peer.connection_lost(LinkLost("gone"))
        await trio.sleep(1)
        assert await call_statelessly(world, "a__x") == OK
        assert await client.call("a__x") == OK
        assert calls(server) == ["handshake", "handshake", "handshake"]
        assert world.upstreams["a"].serving(IN_SESSION).ready_client() is world.upstreams["a"].main.ready_client()


async def test_a_session_that_opened_while_its_server_had_only_sessions_is_shown_when_it_serves() -> None:
    server = at_url(both())
    with_lists(server, stateless=[tool("x"), tool("late")], session=[tool("x"), tool("early")])
    delays = iter([5.0])

    async def initialize(params: dict[str, Any]) -> object:
        return await accepting_after(next(delays, 0.0))["initialize"](params)

    server.answers["initialize"] = initialize
    async with open_world(server, start_grace=0.0) as world:
        await world.settled()
        upstream, client = world.upstreams["a"], await world.client()
        await client.names()
        server.revision, server.stateless = LATEST_LEGACY.name, False
        upstream.main.ready_client().peer.connection_lost(LinkLost("gone"))
        await trio.sleep(10)
        assert upstream.session is not None
        assert (isinstance(upstream.session.state, Ready), upstream.main.is_stateless) == (True, False)
        server.revision, server.stateless, server.answers["initialize"] = LATEST.name, True, refuse
        upstream.main.ready_client().peer.connection_lost(LinkLost("gone"))
        await trio.sleep(100)
        assert (upstream.for_sessions is upstream.session, upstream.main.is_stateless) == (True, True)
        assert await client.names() == ["a__x", "a__early"]
        assert await client.call("a__early") == OK


async def test_both_connections_of_a_server_end_with_it() -> None:
    server = both()
    async with open_client(server) as (world, client, _):
        assert await client.call("a__x") == OK
        world.upstreams.apply({"a": server.spec}, {"a"})
        assert await client.call("a__x") == OK
        assert (server.connections, server.live) == (4, 2)
        world.upstreams.apply({}, set())
        await trio.sleep(DRAIN_TIMEOUT)
        assert server.live == 0


async def test_a_subscription_is_made_in_the_era_of_its_client() -> None:
    capabilities = {"tools": {}, "resources": {"subscribe": True}}
    server = both(resources=["memo:1"], capabilities=capabilities)
    async with open_client(server) as (_, client, _):
        assert await client.request("resources/subscribe", {"uri": "a+memo:1"}) == {}
        assert ("handshake", "resources/subscribe") in server.asked_in
        await trio.sleep(2 * SESSION_IDLE)
        assert server.live == 2
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen_changes)
            await wait_all_tasks_blocked()
            changed = Notification("notifications/resources/updated", encode({"uri": "memo:1"}))
            server.sends(changed, link=server.session)
            await wait_all_tasks_blocked()
            nursery.cancel_scope.cancel()
        assert client.notifications_of("notifications/resources/updated") == [{"uri": "a+memo:1"}]


async def listed_statelessly(world: World, method: str = "tools/list") -> list[str]:
    answer = await world.mrtr_round(method, {})
    assert isinstance(answer, Answered)
    found: Any = value(answer.result)
    return [each["name"] for each in found["tools"]]


def with_lists(server: ScriptedServer, *, stateless: list[dict[str, Any]], session: list[dict[str, Any]]) -> None:
    server.lists = {**server.lists, "tools": stateless}
    server.session_lists = {**server.lists, "tools": session}


async def test_each_client_sees_the_lists_of_its_own_era() -> None:
    """An entry of one side only is shown to clients of that side, and the other side's is no change of it."""
    server = both()
    ours, theirs = tool("x", description="Over a session."), tool("x", description="Without one.")
    with_lists(server, stateless=[theirs, tool("late")], session=[ours, tool("early")])
    async with open_client(server) as (world, client, _):
        assert await client.names() == ["a__x", "a__early"]
        assert await listed_statelessly(world) == ["a__x", "a__late"]
        assert (await client.request("tools/list"))["tools"][0]["description"] == "Over a session."
        for name in ("a__x", "a__early"):
            assert await client.call(name) == OK
        for name in ("a__x", "a__late"):
            assert await call_statelessly(world, name) == OK
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("a__late")
        with pytest.raises(UnknownEntry):
            await call_statelessly(world, "a__early")
        assert calls(server) == ["handshake", "handshake", "stateless", "stateless"]
        assert not awaited(world.gate.definitions.held())


async def test_a_change_on_one_side_holds_only_that_side() -> None:
    """And the person who approves of it sees that side."""
    server = both()
    async with open_client(server) as (world, client, _):
        assert await client.names() == ["a__x"]
        changed = tool("x", description="Something else.")
        with_lists(server, stateless=[tool("x")], session=[changed])
        await server.notifies("notifications/tools/list_changed", link=server.session)
        await trio.sleep(1)
        assert await client.names() == []
        assert "is not the one that was approved" in await text(client, "a__x")
        assert await listed_statelessly(world) == ["a__x"]
        assert await call_statelessly(world, "a__x") == OK
        (held,) = awaited(world.gate.definitions.held())
        assert (held.item.kind, held.item.name, value(held.offered)) == ("tool", "x", changed)
        world.approves()
        assert await client.call("a__x") == OK


async def test_one_answer_of_a_person_is_for_both_sides() -> None:
    server = both(trust=Trust.UNTRUSTED, consent=ALLOWED)
    ours, theirs = tool("x", description="Over a session."), tool("x")
    with_lists(server, stateless=[theirs, tool("same")], session=[ours, tool("same")])
    async with open_client(server) as (world, client, _):
        assert await client.names() == await listed_statelessly(world) == []
        by_name = {held.item.name: held for held in awaited(world.gate.definitions.held())}
        assert value(by_name["same"].offered) == tool("same")
        assert value(by_name["x"].offered) == {"with a session": ours, "without a session": theirs}
        world.approves()
        assert await client.names() == await listed_statelessly(world) == ["a__x", "a__same"]
        for name in ("a__x", "a__same"):
            assert await client.call(name) == OK
            assert await call_statelessly(world, name) == OK


async def test_what_a_person_approved_needs_no_second_answer_when_the_other_side_comes() -> None:
    server = both(trust=Trust.UNTRUSTED, consent=ALLOWED)
    async with open_world(server) as world:
        await world.settled()
        world.approves()
        client = await world.client()
        assert await client.names() == ["a__x"]
        assert await client.call("a__x") == OK
        assert calls(server) == ["handshake"]


async def test_what_a_server_lists_over_a_session_is_remembered_apart(tmp_path: Path) -> None:
    def server(**more: Any) -> ScriptedServer:
        made = both(**more)
        with_lists(made, stateless=[tool("x"), tool("late")], session=[tool("x"), tool("early")])
        return made

    async with open_world(server(), state=tmp_path) as world:
        assert await (await world.client()).names() == ["a__x", "a__early"]
        await trio.sleep(1)
    slow = server()
    slow.answers |= accepting_after(5)
    async with open_world(slow, state=tmp_path) as world:
        began = trio.current_time()
        assert await (await world.client()).names() == ["a__x", "a__early"]
        assert await listed_statelessly(world) == ["a__x", "a__late"]
        assert trio.current_time() == began


async def test_what_is_remembered_of_the_stateless_connection_is_shown_until_a_session_is_open(tmp_path: Path) -> None:
    """A server that is slow to come up delays nothing but calls."""

    def server() -> ScriptedServer:
        made = at_url(both())
        with_lists(made, stateless=[tool("x"), tool("late")], session=[tool("x"), tool("early")])
        return made

    async with open_world(server(), state=tmp_path, start_grace=20.0) as world:
        assert await listed_statelessly(world) == ["a__x", "a__late"]
        await trio.sleep(1)
    slow = server()

    async def discover_late(params: dict[str, Any]) -> object:
        await trio.sleep(5)
        return slow._discovery()

    slow.answers["server/discover"] = discover_late
    async with open_world(slow, state=tmp_path, start_grace=20.0) as world, trio.open_nursery() as nursery:
        began = trio.current_time()
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        assert await client.names() == ["a__x", "a__late"]
        assert trio.current_time() == began
        assert await client.call("a__x") == OK
        assert trio.current_time() == began + 5
        assert calls(slow) == ["handshake"]
        await trio.sleep(1)
        assert client.notifications_of("notifications/tools/list_changed") == [{}]
        assert await client.names() == ["a__x", "a__early"]
        nursery.cancel_scope.cancel()


async def test_lists_wait_for_a_session_that_was_never_open() -> None:
    """Within the grace, which begins when the first client comes; then its clients see the other side's."""
    server = both()
    with_lists(server, stateless=[tool("late")], session=[tool("early")])
    server.answers |= accepting_after(5)
    async with open_world(server, start_grace=3.0) as world:
        await trio.sleep(100)
        await world.upstreams.wait_listed(WITHOUT, "a")
        assert server.connections == 1
        client = await world.client()
        assert await client.names() == ["a__late"]
        assert trio.current_time() == pytest.approx(103)
        await trio.sleep(10)
        assert await client.names() == ["a__early"]


async def test_what_is_watched_over_a_session_is_watched_on_when_the_server_has_none_any_more() -> None:
    capabilities = {"tools": {}, "resources": {"subscribe": True}}
    server = both(resources=["memo:1"], capabilities=capabilities)
    async with open_client(server) as (_, client, nursery):
        assert await client.request("resources/subscribe", {"uri": "a+memo:1"}) == {}
        nursery.start_soon(client.listen_changes)
        assert server.session is not None
        server.session_revision = None
        server.session.close()
        await trio.sleep(10)
        assert any("memo:1" in each["notifications"].get("resourceSubscriptions", ()) for each in server.listens)
        told = len(client.notifications_of("notifications/resources/updated"))
        await server.tells("notifications/resources/updated", {"uri": "memo:1"})
        await wait_all_tasks_blocked()
        assert client.notifications_of("notifications/resources/updated")[told:] == [{"uri": "a+memo:1"}]
        assert await client.request("resources/unsubscribe", {"uri": "a+memo:1"}) == {}
        await trio.sleep(1)
        assert server.listens[-1]["ended"]
        nursery.cancel_scope.cancel()


@pytest.mark.parametrize("isolation", [Isolation.PER_CLIENT, Isolation.PER_CALL])
async def test_dedicated_instances_are_of_the_era_of_their_client(isolation: Isolation) -> None:
    server = both(isolation=isolation)
    async with open_world(server) as world:
        client, other = await world.client(), await world.client()
        for each in (client, other, client):
            assert await each.call("a__x") == OK
        assert await call_statelessly(world, "a__x") == OK
        assert calls(server) == ["handshake"] * 3 + ["stateless"]
        per_client = isolation is Isolation.PER_CLIENT
        # Two connections list, one for each era. A stateless caller without a token has an instance for each call.
        assert server.connections == 2 + (2 if per_client else 3) + 1
        world.upstreams.forget(client.session._caller)
        world.upstreams.forget(other.session._caller)
        await wait_all_tasks_blocked()
        assert len(world.instances("a")) == 0


async def test_a_server_of_one_era_serves_all_callers_over_its_connection() -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        await world.settled()
        server = world.upstreams.by_id["a"]
        assert server.session is None
        assert server.connection(IN_SESSION) is server.connection(WITHOUT) is server.main
        assert server.main.source == Source("a", SESSION)
        assert server.connections == (server.main,)
        assert server.instances is None


async def test_a_stateless_server_of_both_eras_has_a_session_for_those_who_have_one() -> None:
    async with open_world(both()) as world:
        await world.settled()
        server = world.upstreams.by_id["a"]
        assert server.session is not None
        states = [type(server.session.state)]
        assert server.connection(IN_SESSION) is server.session
        assert server.connection(WITHOUT) is server.main
        assert server.main.source == Source("a", STATELESS)
        assert server.begin(IN_SESSION) is server.session  # a list of a client opens it
        await server.session.life.wait_started()
        states.append(type(server.session.state))
        assert states == [Stopped, Ready]
        assert server.session.source == Source("a", SESSION)


async def test_a_server_that_has_to_go_has_nobody_wait_for_it() -> None:
    async with open_world(both()) as world:
        await world.settled()
        server = world.upstreams.by_id["a"]
        server.give_way()
        assert isinstance(server.main.state, Ready)
        assert server.session is not None
        assert isinstance(server.session.state, Disabled)


async def test_only_a_server_that_is_not_shared_has_instances() -> None:
    one = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CALL)
    async with open_world(one) as world:
        assert world.upstreams.by_id["a"].instances is not None


# A command that resolves to another program than the approved one: its server is held


class Programs:
    """Two programs, and a command that is the first of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        for name in ("one", "two"):
            (folder / name).touch(0o755)
        self.is_now("one")

    def is_now(self, name: str) -> None:
        (self._folder / "command").unlink(missing_ok=True)
        (self._folder / "command").symlink_to(name)

    def server(self, trust: Trust = Trust.STANDARD) -> ScriptedServer:
        made = ScriptedServer("a", tools=["x"], answers={"tools/call": result_in_an_era}, trust=trust)
        made.spec = replace(made.spec, command=(Secret(str(self._folder / "command")),))
        return made


def present(world: World) -> type:
    """What kind of state the server is in."""
    return type(world.upstreams.by_id["a"].main.state)


async def test_a_server_whose_command_is_another_program_now_is_not_started_before_a_person_approves(
    tmp_path: Path,
) -> None:
    """It is not listed meanwhile, and a caller is told why (rule 102)."""
    programs = Programs(tmp_path)
    server = programs.server()
    async with open_client(server) as (world, client, _):
        assert await client.names() == ["a__x"]
        programs.is_now("two")
        await trio.sleep(60)
        assert present(world) is Ready  # what runs is what was approved
        server.dies()
        await trio.sleep(60)
        assert present(world) is Held
        assert "another program" in describe_state(world.upstreams.by_id["a"].main.state)
        assert server.connections == 1
        assert await client.names() == []
        result = await client.call("a__x")
        assert result["isError"]
        assert "resolves to another program" in result["content"][0]["text"]
        with pytest.raises(Unavailable, match="colonnade definitions"):
            world.upstreams["a"].main.ready_client()
        (held,) = world.gate.definitions.pins.held()
        awaited(world.gate.definitions.reject(held.item, held.fingerprint, "console"))
        await trio.sleep(60)
        assert server.connections == 1
        world.approves()
        await trio.sleep(1)
        assert present(world) is Ready
        assert server.connections == 2
        assert await client.names() == ["a__x"]
        assert await client.call("a__x") == {"content": []}


async def test_of_a_confined_server_it_is_said_that_its_files_are_others(tmp_path: Path) -> None:
    """Its program may be the approved one: then it would be untrue that it is another one."""
    programs = Programs(tmp_path)
    (data := tmp_path / "data").touch()
    server = programs.server()
    server.spec = replace(server.spec, command=(*server.spec.command, Secret(str(data))), sandbox=Sandbox())
    said: list[Event] = []
    async with open_client(server) as (world, client, _):
        world.journal.subscribe(said.append)
        data.unlink()
        server.dies()
        await trio.sleep(60)
        others = "starts with other files than the approved ones"
        state = world.upstreams.by_id["a"].main.state
        assert describe_state(state) == f"its command {others}; see colonnade definitions"
        assert f"the command of a {others}, so it is not started" in str(await client.call("a__x"))
        explained = explain(world.gate, EntryRef(Source("a", SESSION), Kind.TOOL, "x"), None)
        assert explained["sentence"].endswith(f"cannot be reached: the command of the server {others}.")
        (held,) = (each for each in said if isinstance(each, ServerHeld))
        assert f"its command starts {tmp_path}/one with other files than the approved ones: " in held.why


async def test_another_start_of_the_host_starts_no_other_program(tmp_path: Path) -> None:
    """Nobody waits for it, either; with the program of before it is started."""
    programs = Programs(tmp_path)
    state = tmp_path / "state"
    for name, connections in (("one", 1), ("two", 0), ("one", 1)):
        programs.is_now(name)
        server = programs.server()
        async with open_world(server, state=state) as world:
            began = trio.current_time()
            await world.settled()
            assert trio.current_time() - began < 1
            assert present(world) is (Ready if connections else Held)
            assert server.connections == connections


async def test_a_lazy_server_is_not_started_as_another_program_than_when_its_host_began(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    state = tmp_path / "state"
    async with open_world(programs.server(), state=state) as world:
        await world.settled()
    lazy = programs.server()
    lazy.spec = replace(lazy.spec, start=Start.LAZY)
    async with open_client(lazy, state=state) as (world, client, _):
        assert present(world) is Stopped
        programs.is_now("two")
        assert "resolves to another program" in str(await client.call("a__x"))
        assert (present(world), lazy.connections) == (Held, 0)
        world.approves()
        await trio.sleep(1)
        assert present(world) is Ready


async def test_whatever_a_trusted_servers_command_is_is_started(tmp_path: Path) -> None:
    programs = Programs(tmp_path)
    server = programs.server(Trust.TRUSTED)
    async with open_world(server) as world:
        await world.settled()
        programs.is_now("two")
        server.dies()
        await trio.sleep(60)
        assert isinstance(world.upstreams.by_id["a"].main.state, Ready)
        assert server.connections == 2
