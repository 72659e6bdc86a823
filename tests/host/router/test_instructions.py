"""The instructions that an endpoint gives, made from those of its servers."""

from __future__ import annotations

from config.views import ALL, NameStyle, ViewNames, ViewSpec
from host.exchange import Caller
from host.source import SHARED, Endpoint
from tests.kit.world import ScriptedServer, open_world


async def test_instructions_are_merged_under_the_servers_ids() -> None:
    async with open_world(
        ScriptedServer("a", tools=["x"], instructions="Use x.", title="The A"),
        ScriptedServer("b", instructions="B" * 9000),
    ) as world:
        await world.settled()
        merged = world.router.instructions(Caller("x", SHARED))
        assert "## a (The A)\nUse x." in merged
        assert "## b\nBBB" in merged
        assert len(merged) <= 8192
        assert world.router.instructions(Caller("x", Endpoint("a"))) == "Use x."


async def test_a_view_has_the_instructions_of_its_servers_or_its_own() -> None:
    views = {
        "a": ViewSpec(servers={"a": ALL}),
        "plain": ViewSpec(names=ViewNames(NameStyle.PLAIN)),
        "own": ViewSpec(instructions="Do as the view says."),
    }
    servers = [ScriptedServer(id, tools=["x"], instructions=f"Use {id}.") for id in "ab"]
    async with open_world(*servers, views=views) as world:
        await world.settled()
        found = {view: world.router.instructions(Caller("x", Endpoint(view=view))) for view in ("", *views)}
        assert [("Use a." in found[view], "Use b." in found[view]) for view in ("", "a", "plain")] == [
            (True, True),
            (True, False),
            (True, True),
        ]
        assert [("<server>__<name>" in found[view]) for view in ("", "a", "plain")] == [True, True, False]
        assert found["own"] == "Do as the view says."
        assert world.router.instructions(Caller("x", Endpoint("a", "own"))) == "Use a."
