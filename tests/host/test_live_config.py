"""What a reload takes over, what it lets wait for a person, and what stays when the file is wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from config import Listen, load
from host.journal import ConfigReloaded, Event
from host.live_config import LiveConfig
from tests.kit.world import ScriptedServer, World, open_world

HEAD = "servers:\n"
PROGRAM = "  gh:\n    command: [/bin/true]\n"
ONE_TOOL = "    consent: {tools: {allow: [one]}}\n"
BOTH = "    consent: {tools: {allow: [one, two]}}\n"


def save(file: Path, text: str) -> None:
    file.write_text(text)


@asynccontextmanager
async def opened(file: Path, text: str) -> AsyncIterator[tuple[World, LiveConfig]]:
    """A host of the file, whose server `gh` offers the tools `one` and `two`."""
    save(file, text)
    config = load(file)
    scripted = ScriptedServer("gh", tools=["one", "two"])
    scripted.spec = replace(scripted.spec, consent=config.servers["gh"].consent)
    async with open_world(scripted) as world:
        await world.settled()
        yield world, LiveConfig(config, world.runtime, world.upstreams, world.memory, stdio=True)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "colonnade.yaml"


async def shown(world: World) -> list[str]:
    return await (await world.client()).names()


async def test_a_person_has_other_rules_taken_over_without_a_restart(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        assert await shown(world) == ["gh__one"]
        save(file, HEAD + PROGRAM + BOTH)
        outcome = await live.reload()
        assert (str(outcome), outcome.failed) == ("configuration read again: gh has new rules or limits", False)
        assert await shown(world) == ["gh__one", "gh__two"]
        assert (world.servers["gh"].connections, live.config, live.waiting_changes) == (1, load(file), [])


async def test_a_file_with_a_mistake_changes_nothing_until_it_is_right_again(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        before = live.config
        save(file, HEAD + "  gh: {}\n")
        assert (await live.reload()).failed
        assert "gh" in live.file_problem
        assert live.config is before
        assert await live.compare() is not None
        save(file, HEAD + PROGRAM + ONE_TOOL)
        assert not (await live.reload(by_person=False)).failed
        assert live.file_problem == ""
        assert await shown(world) == ["gh__one"]


async def test_what_widens_in_a_saved_file_waits_for_the_person_who_has_seen_it(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        save(file, HEAD + PROGRAM + BOTH)
        outcome = await live.reload(by_person=False)
        assert len(outcome.waiting) == 1
        assert await shown(world) == ["gh__one"]
        (change,) = live.waiting_changes
        assert change["server"] == "gh"
        again = await live.reload(by_person=False)
        assert (again.changes, live.waiting_changes) == ("nothing has changed", [change])
        save(file, HEAD + PROGRAM + BOTH + "    timeout: 7s\n")
        assert "not the one whose changes were shown" in str(await live.reload(shown=change["id"]))
        assert await shown(world) == ["gh__one"]
        (other,) = live.waiting_changes
        assert not (await live.reload(shown=other["id"])).failed
        assert await shown(world) == ["gh__one", "gh__two"]
        assert live.waiting_changes == []


async def test_to_compare_shows_what_waits_and_changes_nothing(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        save(file, HEAD + PROGRAM + BOTH)
        assert await live.compare() is None
        assert [each["server"] for each in live.waiting_changes] == ["gh"]
        assert await shown(world) == ["gh__one"]


async def test_a_server_is_left_out_until_a_person_has_the_file_read_again(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        live.set_disabled("gh", disabled=True)
        assert await shown(world) == []
        assert live.config.servers["gh"].disabled
        save(file, HEAD + PROGRAM + ONE_TOOL + "# saved\n")
        await live.reload(by_person=False)
        assert live.config.servers["gh"].disabled, "to take it in again widens"
        await live.reload()
        await world.settled()
        assert await shown(world) == ["gh__one"]
        assert world.servers["gh"].connections == 2
        live.restart("gh")
        await world.settled()
        assert world.servers["gh"].connections == 3


async def test_the_endpoint_hears_which_tokens_hold_now_and_later(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (_, live):
        heard: list[Listen] = []
        live.follow_listen(heard.append)
        save(file, HEAD + PROGRAM + BOTH)
        await live.reload()
        assert heard == [Listen(), Listen()]


async def test_each_reload_that_read_the_file_is_in_the_journal(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (world, live):
        events: list[Event] = []
        world.journal.subscribe(events.append)
        outcome = await live.reload()
        save(file, "servers: 1\n")
        rejected = await live.reload()
        assert [each for each in events if isinstance(each, ConfigReloaded)] == [outcome, rejected]


async def test_who_shows_what_waits_hears_of_it_each_time_it_is_set_and_of_other_mistakes(file: Path) -> None:
    async with opened(file, HEAD + PROGRAM + ONE_TOOL) as (_, live):
        heard: list[str] = []
        live.subscribe(lambda: heard.append("changes"), lambda: heard.append("problem"))
        wanted: list[str] = []

        async def after(text: str, *more: str) -> None:
            save(file, text)
            await live.reload(by_person=False)
            wanted.extend(more)
            assert heard == wanted

        await after(HEAD + PROGRAM + BOTH, "changes")
        await after(HEAD + PROGRAM + BOTH + "# a comment\n")
        await after("servers: 1\n", "problem")
        await after("servers: 1\n")
        await after(HEAD + PROGRAM + BOTH, "problem", "changes")
        await live.compare()
        assert heard == [*wanted, "changes"]
