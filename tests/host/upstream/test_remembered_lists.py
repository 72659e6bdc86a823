"""When the lists of a connection are stored, and what a host finds of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from host.journal import DefinitionChanged
from host.protocol.methods import Kind
from host.upstream.remembered_lists import SAVE_INTERVAL
from tests.host.upstream.test_remembered import EVERYTHING, SLOW, listed, server
from tests.kit.world import open_world

pytestmark = pytest.mark.virtual_time


@pytest.mark.parametrize(
    ("before", "after"), [(SAVE_INTERVAL, SAVE_INTERVAL + 1), (1, 1)], ids=["while it runs", "just before it stops"]
)
async def test_what_is_remembered_changes_with_what_is_offered(tmp_path: Path, before: float, after: float) -> None:
    """Also a list that is empty now, and one that changed just before the host stops."""
    first = server()
    async with open_world(first, state=tmp_path) as world:
        await world.settled()
        await trio.sleep(before)
        first.lists["prompts"].clear()
        world.upstreams.by_id["a"].main.lists.refresh(Kind.PROMPT)
        await trio.sleep(after)
    async with open_world(server(starts_in=SLOW), state=tmp_path) as world:
        await wait_all_tasks_blocked()
        assert sorted(listed(world)) == sorted(EVERYTHING[:3])


async def test_a_change_that_an_earlier_host_reported_is_not_reported_again(tmp_path: Path) -> None:
    """Though the list that is remembered may be older than the stored definitions."""
    first = server()
    async with open_world(first, state=tmp_path) as world:
        await world.settled()
        await trio.sleep(0.5)
        first.lists["tools"][0]["description"] = "another one"
        world.upstreams.by_id["a"].main.lists.refresh(Kind.TOOL)
        await trio.sleep(0.5)  # the change is stored, and the list is not
        assert len([each for each in world.events if isinstance(each, DefinitionChanged)]) == 1
    async with open_world(server(description="another one"), state=tmp_path) as world:
        await world.settled()
        await trio.sleep(1)
        assert not [each for each in world.events if isinstance(each, DefinitionChanged) and each.kind == "tool"]
        assert "a__x" not in listed(world)


async def test_a_server_that_ends_as_soon_as_it_has_listed_is_remembered(tmp_path: Path) -> None:
    first = server()

    async def prompts(params: dict[str, Any]) -> object:
        nursery.start_soon(end)
        return {"prompts": first.lists["prompts"]}

    async def end() -> None:
        await wait_all_tasks_blocked()
        first.dies()

    first.answers["prompts/list"] = prompts
    async with trio.open_nursery() as nursery, open_world(first, state=tmp_path) as world:
        await world.settled()
        await trio.sleep(1)
    async with open_world(server(starts_in=SLOW), state=tmp_path) as world:
        await wait_all_tasks_blocked()
        assert sorted(listed(world)) == sorted(EVERYTHING)


async def test_a_host_that_stops_as_soon_as_it_has_the_first_lists_remembers_them(tmp_path: Path) -> None:
    async with open_world(server(), state=tmp_path) as world:
        await world.settled()
    async with open_world(server(starts_in=SLOW), state=tmp_path) as world:
        await wait_all_tasks_blocked()
        assert sorted(listed(world)) == sorted(EVERYTHING)
