"""The lists of a connection that is not there."""

from __future__ import annotations

import trio
from trio.testing import MockClock

from host.catalog import FreshnessHint
from host.protocol.methods import Kind
from host.protocol.stateless import Freshness
from host.protocol.versions import SESSION, STATELESS
from host.source import Source
from host.upstream.backoff import ReadingBudget
from host.upstream.source_lists import SourceLists
from host.upstream.state import Stopped
from tests.kit.world import ScriptedServer, open_world


class Nobody:
    """A connection that was never made."""

    def may_publish(self) -> bool:
        return False

    def is_alone(self) -> bool:
        return True

    def is_ready(self) -> bool:
        return False

    def offered(self) -> None:
        return None


async def test_lists_that_nobody_reads_are_neither_old_nor_changed() -> None:
    async with open_world() as world:
        lists = SourceLists(Source("a", SESSION), world.runtime, ReadingBudget(), Nobody())
        assert lists.are_read(Kind)
        assert lists.read_if_old(Kind) is None
        assert lists.problems == lists.left_out == []
        lists.refresh(Kind.TOOL)
        lists.on_announced([Kind.TOOL])
        lists.on_hearing_changed()
        lists.close()
        await lists.reread_tools()
        await lists.wait_until_read(Kind)
        await lists.wait_for_changes(Kind, 1.0)
        assert lists.tool("x") is None


async def test_a_tool_is_looked_up_among_those_of_the_same_connection() -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world:
        await world.settled()
        lists = world.upstreams.by_id["a"].main.lists
        assert lists.source == Source("a", SESSION)
        tool = lists.tool("x")
        assert tool is not None
        assert tool.ref.name == "x"
        lists.source = Source("a", STATELESS)
        assert lists.tool("x") is None


async def test_a_change_that_is_announced_before_the_lists_are_read_is_none_of_a_former_connection(
    autojump_clock: MockClock,
) -> None:
    """The caching hints of a server that was stopped hold until its lists are read."""
    async with open_world(ScriptedServer("a", tools=["x"], idle=5.0)) as world:
        await world.settled()
        main, catalog = world.upstreams["a"].main, world.runtime.catalog
        hint = FreshnessHint(Freshness(60_000, public=False), trio.current_time())
        catalog.renew_hint(main.source, Kind.TOOL, hint)
        await trio.sleep(6)
        assert isinstance(main.state, Stopped)
        main.lists.on_announced([Kind.TOOL])
        assert catalog.hint(main.source, Kind.TOOL) == hint
