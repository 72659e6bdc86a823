"""All servers side by side: who is waited for, and for how long."""

from __future__ import annotations

from typing import Any

import pytest
import trio
from trio.testing import MockClock

from host.errors import Unavailable
from tests.kit.world import ScriptedServer, open_world


def starting_after(seconds: float) -> Any:
    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        return {"protocolVersion": params["protocolVersion"], "capabilities": {}, "serverInfo": {}}

    return {"initialize": initialize}


@pytest.mark.parametrize(
    ("asked", "waited"),
    [("quick", 0.0), ("slow", 2.0), ("slower", 3.0), ("off", 0.0), (None, 3.0)],
)
async def test_the_first_answers_wait_for_whom_they_need_within_the_grace(
    asked: str | None, waited: float, autojump_clock: MockClock
) -> None:
    servers = (
        ScriptedServer("quick", tools=["x"]),
        ScriptedServer("slow", answers=starting_after(2)),
        ScriptedServer("slower", answers=starting_after(30)),
        ScriptedServer("off", disabled=True),
    )
    async with open_world(*servers) as world:
        began = trio.current_time()
        await world.roster.wait_settled(asked)
        assert trio.current_time() - began == pytest.approx(waited, abs=0.01)


async def test_after_the_grace_nobody_waits(autojump_clock: MockClock) -> None:
    async with open_world(ScriptedServer("slow", answers=starting_after(30))) as world:
        await trio.sleep(4)
        began = trio.current_time()
        await world.roster.wait_settled(None)
        assert trio.current_time() == began


async def test_all_are_connected_at_once_and_keep_their_order(autojump_clock: MockClock) -> None:
    servers = [ScriptedServer(f"s{n}", answers=starting_after(1)) for n in range(50)]
    async with open_world(*servers) as world:
        began = trio.current_time()
        await world.settled()
        assert trio.current_time() - began == pytest.approx(1, abs=0.1)
        assert list(world.roster.upstreams) == [server.id for server in servers]
        assert "s49" in world.roster
        assert "s50" not in world.roster


async def test_a_server_that_is_off_is_never_connected(autojump_clock: MockClock) -> None:
    server = ScriptedServer("off", tools=["x"], disabled=True)
    async with open_world(server) as world:
        await trio.sleep(1000)
        assert server.connections == 0
        with pytest.raises(Unavailable):
            world.roster.ready("off")
