"""What people see of views: what each costs, what one caller gets there, and what is left out."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from config import Config, load
from host.addresses import suffix_of
from host.admin.caller_views import CallerViews
from host.admin.decisions import PolicyAdmin
from host.admin.schema import AdminError, CallerView
from host.live_config import LiveConfig
from tests.kit.awaited import Paused
from tests.kit.openapi import conforms
from tests.kit.world import ScriptedServer, World, open_world, tool

FILE = """
listen: {auth: {tokens: {laptop: laptop-0123456789abcdef, ci: ci-0123456789abcdef, desk: desk-0123456789abcdef}}}
callers: {laptop: {token: laptop}, robot: {token: ci}}
views:
  coding:
    callers: laptop
    servers: {git: all, hub: {tools: "get_*"}}
    names: {style: plain}
    instructions: Work in small steps.
  small:
    servers: {git: {tools: [log, commit], prompts: all}}
servers:
  git:
    command: /bin/true
    consent: {tools: {ask: [{name: commit, callers: robot}]}}
  hub: {command: /bin/true}
"""


@asynccontextmanager
async def opened(folder: Path, text: str = FILE) -> AsyncIterator[tuple[World, CallerViews]]:
    """A host of this file. Its two servers have one tool of the same name."""
    file = folder / "colonnade.yaml"
    file.write_text(text)
    config: Config = load(file)
    git = ScriptedServer("git", tools=["log", "commit", "get_user"], prompts=["plan"])
    hub = ScriptedServer("hub", tools=[tool("get_user"), tool("get_issue", title="\x1b[1m", description="Reads")])
    for each in (git, hub):
        each.spec = config.servers[each.id]  # type: ignore[assignment]
    async with open_world(git, hub) as world:
        await world.settled()
        live = LiveConfig(config, world.runtime, world.upstreams, world.memory)
        await live.reload()
        yield world, CallerViews(live, world.router, world.upstreams, world.catalog, world.gate)


async def see(world: World, views: CallerViews, caller: str | None, view: str) -> CallerView:
    """What a caller sees in a view that it asks for."""
    endpoint = PolicyAdmin(world.gate).endpoint_of(caller, view)
    return await views.see(endpoint, None if caller is None else suffix_of(view))


async def test_each_view_has_a_row_with_what_it_costs(tmp_path: Path) -> None:
    async with opened(tmp_path) as (_, views):
        everything, coding, small = await views.rows()
        conforms("GET", "/api/v1/state/views", 200, {"views": [everything, coding, small]})
        assert (everything["name"], everything["is_default"], everything["left_out"]) == ("", True, [])
        assert (everything["servers"], everything["entries"]["tools"]) == (["git", "hub"], 5)
        assert (coding["callers"], coding["entries"]) == (
            ["laptop"],
            {"tools": 3, "resources": 0, "resourceTemplates": 0, "prompts": 1},
        )
        assert [(each["server"], each["name"], each["why"]) for each in coding["left_out"]] == [
            ("git", "get_user", "more than one is called get_user here"),
            ("hub", "get_user", "more than one is called get_user here"),
        ]
        assert (small["servers"], small["entries"]["prompts"], small["is_default"]) == (["git"], 1, False)
        assert everything["tokens"] > coding["tokens"] > small["tokens"] > 0


async def test_an_override_that_cannot_be_applied_is_told_of_in_each_view(tmp_path: Path) -> None:
    override = "{git: {log: {arguments: {path: hidden}}}}"
    text = FILE.replace("small:", f"small:\n    overrides: {override}")
    async with opened(tmp_path, text.replace("[log, commit]", "log")) as (_, views):
        *_, small = await views.rows()
        (left_out,) = small["left_out"]
        assert (left_out["server"], left_out["name"], small["entries"]["tools"]) == ("git", "log", 0)
        assert left_out["why"].startswith("its override cannot be applied exactly: ")


async def test_a_search_costs_its_tools_and_those_that_are_pinned(tmp_path: Path) -> None:
    costs = []
    for search in ("off", "on", "auto", "on\n    pinned: [git__log]", "auto\n    search_above: 1"):
        async with opened(tmp_path, FILE.replace("small:", f"small:\n    search: {search}", 1)) as (_, views):
            *_, small = await views.rows()
            costs.append(small["tokens"])
            assert small["search"] == search.partition("\n")[0]
    off, on, auto, pinned, above = costs
    assert off == auto < on < pinned
    assert above == on


async def test_with_a_default_view_nobody_is_in_that_of_everything(tmp_path: Path) -> None:
    async with opened(tmp_path, FILE + "default_view: small\n") as (_, views):
        coding, small = await views.rows()
        assert (coding["name"], coding["is_default"], small["name"], small["is_default"]) == (
            "coding",
            False,
            "small",
            True,
        )


async def test_a_caller_sees_what_its_view_has_and_no_other_one(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, views):
        seen = await see(world, views, "laptop", "")
        conforms("POST", "/api/v1/callers/view", 200, seen)
        assert (seen["address"], seen["view"], seen["callers"]) == ("/mcp", "coding", ["laptop", "robot"])
        assert (seen["servers"], seen["instructions"]) == (["git", "hub"], "Work in small steps.")
        names = [(each["server"], each["name"], each["outward"]) for each in seen["entries"]]
        tools = [("git", "log", "log"), ("git", "commit", "commit"), ("hub", "get_issue", "get_issue")]
        assert names == [*tools, ("git", "plan", "plan")]
        issue = seen["entries"][2]
        assert (issue["title"], issue["description"], issue["verdict"]) == ("⟨U+001B⟩[1m", "Reads", "allow")
        assert sum(each["tokens"] for each in seen["entries"]) >= seen["tokens"] > 0
        assert len(seen["left_out"]) == 2
        assert await see(world, views, "laptop", "coding") == {**seen, "address": "/mcp/@coding"}
        with pytest.raises(AdminError, match="the caller laptop does not reach the view small"):
            await see(world, views, "laptop", "small")


async def test_instructions_keep_their_lines(tmp_path: Path) -> None:
    text = FILE.replace("Work in small steps.", '"Work.\\nIn steps\\u202e."')
    async with opened(tmp_path, text) as (world, views):
        seen = await see(world, views, "laptop", "")
        assert seen["instructions"] == "Work.\nIn steps⟨U+202E⟩."


async def test_verdicts_are_those_for_the_caller(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, views):
        for caller, verdict in (("robot", "ask"), ("laptop", "allow"), ("", "allow"), (None, "allow")):
            seen = await see(world, views, caller, "")
            (commit,) = (each for each in seen["entries"] if each["name"] == "commit")
            assert commit["verdict"] == verdict, caller


async def test_over_stdio_every_view_can_be_chosen(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, views):
        seen = await see(world, views, None, "coding")
        assert (seen["address"], seen["view"], len(seen["entries"])) == ("", "coding", 4)
        assert (await see(world, views, None, ""))["view"] == ""
        with pytest.raises(AdminError, match=r"there is no view 'codin' .*did you mean coding"):
            await see(world, views, None, "codin")
        with pytest.raises(AdminError, match="there is no caller 'desk'"):
            await see(world, views, "desk", "")


async def test_a_server_that_a_reload_has_removed_meanwhile_has_no_rows(tmp_path: Path) -> None:
    async with opened(tmp_path) as (world, views):
        seeing = Paused(see(world, views, "", ""))
        next(seeing)
        world.configures(world.servers["git"])
        seen = seeing.rest()
        assert {each["server"] for each in seen["entries"]} == {"git"}
