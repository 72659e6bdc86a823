"""What one client knows of the lists: told of each difference once, and of nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from functools import partial

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent
from host.downstream.list_changes import SPACING, ListChanges, track_changes
from host.exchange import Caller
from host.jsonrpc.messages import Notification
from host.protocol.methods import PROMPTS_CHANGED, RESOURCES_CHANGED, TOOLS_CHANGED, Kind
from host.protocol.versions import Era
from host.source import Source
from tests.kit.gates import kind
from tests.kit.world import ScriptedServer, World, open_world, tool


class Hearer:
    """A client that hears, as long as `telling` runs."""

    def __init__(self, changes: ListChanges) -> None:
        self.heard: list[str] = []
        self.changes = changes

    async def send(self, notice: Notification) -> None:
        self.heard.append(notice.method)
        await trio.lowlevel.checkpoint()

    @asynccontextmanager
    async def telling(self, lists: Collection[str] | None = None) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(partial(self.changes.notify_changes, self.send, lists))
            await wait_all_tasks_blocked()
            yield
            nursery.cancel_scope.cancel()


async def hearing(world: World, endpoint: str | None = None) -> Hearer:
    """Who knows every list as it is now."""
    return Hearer(await track_changes(world.router, Caller("t", endpoint)))


async def offers(server: ScriptedServer, *tools: str) -> None:
    """From now on; and Colonnade has read it."""
    server.lists["tools"] = [tool(name) for name in tools]
    await server.notifies(TOOLS_CHANGED)
    await trio.sleep(2)


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
        async with trio.open_nursery() as nursery:
            for hearer, wanted in hearers.values():
                nursery.start_soon(hearer.changes.notify_changes, hearer.send, wanted)
            await wait_all_tasks_blocked()
            await offers(server, "y")
            for member, method in (("resourceTemplates", RESOURCES_CHANGED), ("prompts", PROMPTS_CHANGED)):
                server.lists[member] = []
                await server.notifies(method)
                await trio.sleep(2)
            nursery.cancel_scope.cancel()
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

        async def stuck(notice: Notification) -> None:
            await trio.sleep_forever()

        async with trio.open_nursery() as nursery:
            nursery.start_soon(hearer.changes.notify_changes, stuck)
            await offers(server, "y")
            nursery.cancel_scope.cancel()
        async with hearer.telling():
            await trio.sleep(1)
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
            assert (
                hearer.changes._known[Kind.TOOL] == (await world.router.lists.view(Caller("t", None), Kind.TOOL)).digest
            )


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
