"""What one client knows of the lists: told of each difference once, and of nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent
from config.views import NameStyle, ViewNames, ViewServer, ViewSpec
from host.downstream.list_changes import SPACING, Announcements, ListChanges, Listener, track_changes
from host.exchange import Caller
from host.jsonrpc.messages import Notification
from host.protocol.methods import PROMPTS_CHANGED, RESOURCES_CHANGED, TOOLS_CHANGED, Kind
from host.protocol.versions import Era
from host.router.lists import ShownList
from host.source import SHARED, Endpoint, Source
from tests.kit.gates import kind
from tests.kit.world import ScriptedServer, World, announcing, open_client, open_world, tool


class Hearer:
    """A client that hears, as long as `telling` runs."""

    def __init__(self, changes: ListChanges) -> None:
        self.heard: list[str] = []
        self.is_stuck = False
        self.changes = changes

    def hear(self, notice: Notification) -> bool:
        if not self.is_stuck:
            self.heard.append(notice.method)
        return not self.is_stuck

    @asynccontextmanager
    async def telling(self, lists: frozenset[str] | None = None) -> AsyncIterator[None]:
        async with announcing(self.changes._router) as announcements:
            announcements.add(listener := Listener(self.changes.begun, self.hear, lists))
            await wait_all_tasks_blocked()
            yield
            announcements.remove(listener)


async def hearing(world: World, endpoint: str | None = None) -> Hearer:
    """Who knows every list as it is now."""
    return Hearer(await track_changes(world.router, Caller("t", Endpoint(endpoint))))


async def offers(server: ScriptedServer, *tools: str) -> None:
    """From now on; and Colonnade has read it."""
    server.lists["tools"] = [tool(name) for name in tools]
    await server.notifies(TOOLS_CHANGED)
    await trio.sleep(2)


async def test_who_comes_before_the_servers_is_told_of_those_that_its_first_list_lacks(
    autojump_clock: MockClock,
) -> None:
    """And not of each one that comes while that list waits for all."""

    def starting_after(seconds: float) -> ScriptedServer:
        async def initialize(params: dict[str, Any]) -> object:
            await trio.sleep(seconds)
            return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": {}}

        return ScriptedServer(f"after{seconds:g}", tools=["x"], answers={"initialize": initialize})

    servers = map(starting_after, (0, 1, 2, 6))
    async with open_client(*servers, start_grace=4.0, early=True) as (_, client, nursery):
        nursery.start_soon(client.listen_changes)
        assert await client.names() == ["after0__x", "after1__x", "after2__x"]
        assert trio.current_time() >= 4
        await trio.sleep(1)
        assert client.notifications_of(TOOLS_CHANGED) == []
        await trio.sleep(2)
        assert client.notifications_of(TOOLS_CHANGED) == [{}]
        nursery.cancel_scope.cancel()


async def test_what_is_known_is_not_told(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        async with hearer.telling():
            await trio.sleep(2)
            assert hearer.heard == []
            await server.notifies(TOOLS_CHANGED)  # and nothing has changed
            await trio.sleep(2)
            assert hearer.heard == []
            await offers(server, "x", "y")
            assert hearer.heard == [TOOLS_CHANGED]


async def test_a_list_that_was_being_evaluated_when_a_client_came_is_told_when_that_is_done() -> None:
    server = ScriptedServer("a", tools=["x"], prompts=["p"])
    async with open_world(server) as world:
        await world.settled()
        world.catalog._due[Kind.TOOL][Source("a", Era.SESSION)] = object()  # as of a long list
        with trio.fail_after(5):
            hearer = await hearing(world)
        async with hearer.telling():
            assert hearer.heard == []
            world.catalog.reevaluate(["a"])
            await wait_all_tasks_blocked()
            assert hearer.heard == [TOOLS_CHANGED]


async def test_what_changes_between_knowing_and_listening_is_told(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        await offers(server, "y")
        async with hearer.telling():
            await trio.sleep(1)
            assert hearer.heard == [TOOLS_CHANGED]


async def test_only_the_lists_that_are_wanted_are_told(autojump_clock: MockClock) -> None:
    """(rule 86)"""
    server = ScriptedServer("a", tools=["x"], prompts=["p"], resources=["x://y"], templates=["x://{z}"])
    async with open_world(server) as world:
        await world.settled()
        hearers = {
            wanted: (await hearing(world), wanted)
            for wanted in [(), (TOOLS_CHANGED,), (RESOURCES_CHANGED, PROMPTS_CHANGED)]
        }
        async with AsyncExitStack() as stack:
            for hearer, wanted in hearers.values():
                await stack.enter_async_context(hearer.telling(frozenset(wanted)))
            await offers(server, "y")
            for member, method in (("resourceTemplates", RESOURCES_CHANGED), ("prompts", PROMPTS_CHANGED)):
                server.lists[member] = []
                await server.notifies(method)
                await trio.sleep(2)
        assert {wanted: hearer.heard for wanted, (hearer, _) in hearers.items()} == {
            (): [],
            (TOOLS_CHANGED,): [TOOLS_CHANGED],
            (RESOURCES_CHANGED, PROMPTS_CHANGED): [RESOURCES_CHANGED, PROMPTS_CHANGED],
        }


async def test_resources_and_templates_are_one_notice(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", resources=["x://y"], templates=["x://{z}"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        server.lists["resources"] = server.lists["resourceTemplates"] = []
        await server.notifies(RESOURCES_CHANGED)
        await trio.sleep(2)
        async with hearer.telling():
            await trio.sleep(2)
        assert hearer.heard == [RESOURCES_CHANGED]


async def test_what_was_told_and_never_asked_for_is_told_again_to_whoever_listens_anew(
    autojump_clock: MockClock,
) -> None:
    """Perhaps it was not heard; what was listed since was."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        async with hearer.telling():
            await offers(server, "y")
        async with hearer.telling():
            await trio.sleep(1)
        assert hearer.heard == [TOOLS_CHANGED] * 2
        hearer.changes.mark_listed(Kind.TOOL)
        async with hearer.telling():
            await trio.sleep(1)
        assert hearer.heard == [TOOLS_CHANGED] * 2


async def test_what_could_not_be_sent_is_not_taken_as_told(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        hearer.is_stuck = True
        async with hearer.telling():
            await offers(server, "y")
        hearer.is_stuck = False
        async with hearer.telling():
            await trio.sleep(1)
        assert hearer.heard == [TOOLS_CHANGED]


async def test_a_client_that_had_no_room_is_told_once_it_has_some(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        hearer.is_stuck = True
        async with hearer.telling():
            await offers(server, "y")
            hearer.is_stuck = False
            await trio.sleep(2 * SPACING)
        assert hearer.heard == [TOOLS_CHANGED]


async def test_what_changes_in_the_meantime_is_told_after_a_pause(autojump_clock: MockClock) -> None:
    """The last change is always told (rule 85)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        hearer = await hearing(world)
        async with hearer.telling():
            for number in range(12):
                server.lists["tools"] = [tool(f"t{number}")]
                await server.notifies(TOOLS_CHANGED)
                await trio.sleep(SPACING / 3)
            during = len(hearer.heard)
            await trio.sleep(5)
            assert during <= 12 / 3 + 1
            assert hearer.heard
            now = await world.router.lists.shown(Caller("t", SHARED), Kind.TOOL)
            assert now.digest in hearer.changes._known


async def test_a_client_that_lists_anew_while_others_are_told_is_told_of_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, announcing(world.router) as announcements:
        await world.settled()
        first, other, last = [await hearing(world, endpoint) for endpoint in (None, "a", None)]
        for hearer in first, other, last:
            announcements.add(Listener(hearer.changes.begun, hearer.hear))
            await wait_all_tasks_blocked()
        lists, is_reached, may_go_on = world.router.lists, trio.Event(), trio.Event()
        shown = lists.shown

        async def shown_later(caller: Caller, kind: Kind) -> ShownList:
            if caller.endpoint == Endpoint("a"):
                is_reached.set()
                await may_go_on.wait()
            return await shown(caller, kind)

        monkeypatch.setattr(lists, "shown", shown_later)
        server.lists["tools"] = [tool("y")]
        await server.notifies(TOOLS_CHANGED)
        await is_reached.wait()
        world.catalog.withdraw_server("a")
        await shown(Caller("t", SHARED), Kind.TOOL)
        last.changes.mark_listed(Kind.TOOL)
        may_go_on.set()
        await wait_all_tasks_blocked()
        assert (first.heard, last.heard) == ([TOOLS_CHANGED], [])


async def test_what_is_hidden_changes_nothing(autojump_clock: MockClock) -> None:
    """Neither does what happens at another endpoint (rules 85, 101)."""
    consent = Consent(tools=kind(deny=("hidden*",)))
    server, other = ScriptedServer("a", tools=["x"], consent=consent), ScriptedServer("b", tools=["x"])
    async with open_world(server, other) as world:
        await world.settled()
        everywhere, at_b = await hearing(world), await hearing(world, "b")
        async with everywhere.telling(), at_b.telling():
            await offers(server, "x", "hidden1")
            assert everywhere.heard == []
            await offers(server, "x", "y")
            assert (everywhere.heard, at_b.heard) == ([TOOLS_CHANGED], [])


async def test_a_client_hears_of_its_own_view_alone(autojump_clock: MockClock) -> None:
    """Of a change by the server, and of one by a new configuration."""
    views = {
        "v": ViewSpec(servers={"a": ViewServer(tools=("x*",))}),
        "w": ViewSpec(servers={"a": ViewServer(tools=("y*",))}),
        "plain": ViewSpec(names=ViewNames(NameStyle.PLAIN)),
    }
    server, changed = ScriptedServer("a", tools=["x1", "y1"]), "notifications/tools/list_changed"
    async with open_world(server, views=views) as world, trio.open_nursery() as nursery:
        clients = {view: await world.client(Endpoint(view=view)) for view in ("", *views)}
        for client in clients.values():
            nursery.start_soon(client.listen_changes)

        async def told() -> list[str]:
            await trio.sleep(5)
            found = [view for view, client in clients.items() if client.notifications_of(changed)]
            for client in clients.values():
                client.notifications.clear()
            return found

        assert await told() == []
        server.lists["tools"] = [tool("x1"), tool("y2")]
        await server.notifies(changed)
        assert await told() == ["", "w", "plain"]
        world.configures(server, views={**views, "v": views["w"], "plain": ViewSpec()})
        assert await told() == ["v", "plain"]
        world.configures(server, views={**views, "v": views["w"], "plain": ViewSpec(), "new": ViewSpec()})
        assert await told() == []
        nursery.cancel_scope.cancel()


async def test_a_client_that_leaves_at_once_is_forgotten_and_an_error_for_one_does_not_reach_the_others(
    autojump_clock: MockClock,
) -> None:
    server, crashes = ScriptedServer("a", tools=["x"]), list[Exception]()
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        announcements = Announcements(world.router, crashes.append)
        nursery.start_soon(announcements.run)
        hearers = [await hearing(world) for _ in range(3)]

        def fail(notice: Notification) -> bool:
            raise ValueError("no such state")

        listeners = [Listener(hearer.changes.begun, hearer.hear) for hearer in hearers]
        listeners[0].enqueue = fail
        for listener in listeners:
            announcements.add(listener)
        announcements.remove(listeners[2])
        await offers(server, "y")
        assert [str(each) for each in crashes] == ["no such state"]
        assert [hearer.heard for hearer in hearers] == [[], [TOOLS_CHANGED], []]
        assert list(announcements._listeners) == [listeners[1]]
        nursery.cancel_scope.cancel()
