"""The instructions that an endpoint gives, made from those of its servers."""

from __future__ import annotations

from host.exchange import Caller
from tests.kit.world import ScriptedServer, open_world


async def test_instructions_are_merged_under_the_servers_ids() -> None:
    async with open_world(
        ScriptedServer("a", tools=["x"], instructions="Use x.", title="The A"),
        ScriptedServer("b", instructions="B" * 9000),
    ) as world:
        await world.settled()
        merged = world.router.instructions(Caller("x", None))
        assert "## a (The A)\nUse x." in merged
        assert "## b\nBBB" in merged
        assert len(merged) <= 8192
        assert world.router.instructions(Caller("x", "a")) == "Use x."
