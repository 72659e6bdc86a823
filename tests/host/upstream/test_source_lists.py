"""The lists of a connection that is not there."""

from __future__ import annotations

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from host.protocol.methods import Kind
from host.protocol.versions import SESSION, STATELESS
from host.source import Source
from host.upstream.backoff import ReadingBudget
from host.upstream.source_lists import SourceLists
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


@pytest.mark.parametrize("idle", [None, 5.0])
async def test_changes_that_are_announced_before_the_lists_are_read_are_not_those_of_a_former_connection(
    idle: float | None, autojump_clock: MockClock
) -> None:
    server = ScriptedServer("a", tools=["x"], idle=idle)
    async with open_world(server) as world:
        await world.settled()
        lists = world.upstreams["a"].main.lists
        former = lists.sync
        assert former is not None
        if idle is None:
            server.dies()
            await wait_all_tasks_blocked()
        else:
            await trio.sleep(idle + 1)
        lists.on_announced([Kind.TOOL])
        assert former.are_read([Kind.TOOL])
