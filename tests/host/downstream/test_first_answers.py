from __future__ import annotations

import json
import os
import sqlite3
import threading
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing

from config import Config, Search, Secret, StdioServer, ViewSpec
from config.file_state import file_state
from host.downstream import first_answers
from host.downstream.first_answers import CHECK_INTERVAL, Recording
from host.relay_start import FIRST_ANSWERS, FirstAnswers
from host.router import lists
from host.source import SHARED, Endpoint
from host.storage.directory import open_state
from host.storage.store import Revisions
from tests.kit.asgi import open_stateless
from tests.kit.cost import counted_calls
from tests.kit.world import ScriptedServer, World, open_world, tool

HANDSHAKE = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")
ENVELOPE: dict[str, Any] = {
    "_meta": {
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientCapabilities": {},
    }
}


class Kept:
    """What is kept for a world, and the store and files that it must fit."""

    def __init__(self, folder: Path) -> None:
        self.state = open_state(folder / "state")
        self.file = folder / "colonnade.yaml"
        self.file.write_text("servers: {}")
        self.config: Config | None = self.configured()
        self.directory = self.state.for_config(self.file).path
        self.id = self.directory.name
        self.revisions = Revisions()
        with closing(sqlite3.connect(self.state.path / "colonnade.db")) as database:
            database.execute("CREATE TABLE config (id TEXT, definitions INTEGER, grants INTEGER, credentials INTEGER)")
            database.execute("INSERT INTO config VALUES (?, 0, 0, 0)", (self.id,))
            database.commit()

    def configured(self, *servers: StdioServer, own_variables: frozenset[str] = frozenset()) -> Config:
        return Config(
            servers={each.id: each for each in servers},
            files={self.file: file_state(self.file)},
            own_variables=own_variables,
        )

    def decided(self) -> None:
        with closing(sqlite3.connect(self.state.path / "colonnade.db")) as database:
            database.execute("UPDATE config SET definitions = definitions + 1")
            database.commit()
        self.revisions = self.revisions._replace(definitions=self.revisions.definitions + 1)

    def answer(self, method: str, opened: dict[str, Any] | None = None, view: str = "", **params: Any) -> Any:
        message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
        found = FirstAnswers(str(self.state.path), str(self.file), view).answer(message, opened)
        return None if found is None else json.loads(found)

    async def says(self, *tools: str) -> None:
        """Wait until these are kept. The clock jumps while a thread writes, so that is waited for as well."""
        for _ in range(1000):
            if self.tools() == [*tools]:
                return
            await trio.sleep(CHECK_INTERVAL)
            await trio.to_thread.run_sync(threading.Event().wait, 0.01)
        raise AssertionError(self.tools())

    def tools(self) -> list[str] | None:
        listed = self.answer("tools/list", {"protocolVersion": "2025-11-25"})
        return None if listed is None else [each["name"] for each in listed["tools"]]


@asynccontextmanager
async def recording(world: World, kept: Kept) -> AsyncIterator[Recording]:
    async with open_stateless(world) as stateless:
        made = Recording(
            kept.state,
            kept.file,
            stateless,
            world.memory,
            lambda: kept.revisions,
            lambda: kept.config,
        )
        yield made


async def test_each_client_is_answered_as_the_host_answers_it(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    async with open_world(ScriptedServer("a", tools=["x", "y"])) as world, recording(world, kept) as made:
        await world.settled()
        await made.write()
        for revision in HANDSHAKE:
            client = await world.client(revision=revision)
            opened = kept.answer("initialize", protocolVersion=revision, capabilities={})
            assert opened["protocolVersion"] == revision
            for method in ("tools/list", "prompts/list", "resources/list", "resources/templates/list"):
                assert kept.answer(method, opened) == await client.request(method)
        assert "2026-07-28" in kept.answer("server/discover", **ENVELOPE)["supportedVersions"]
        listed = kept.answer("tools/list", **ENVELOPE)
        assert [each["name"] for each in listed["tools"]] == ["a__x", "a__y"]
        assert listed["resultType"] == "complete"
        assert (kept.directory / "first-answers").stat().st_mode & 0o777 == 0o600


async def test_no_list_is_kept_that_depends_on_the_program_of_a_client(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    assert kept.config is not None
    views = {"auto": ViewSpec(search=Search.AUTO), "on": ViewSpec(search=Search.ON)}
    kept.config = replace(kept.config, views=views)
    async with open_world(ScriptedServer("a", tools=["x"]), views=views) as world, recording(world, kept) as made:
        await world.settled()
        made.views |= views.keys()
        await made.write()
        opened = {"protocolVersion": "2025-11-25"}
        assert kept.answer("tools/list", opened, "auto") is None
        assert kept.answer("prompts/list", opened, "auto") is not None
        assert len(kept.answer("tools/list", opened, "on")["tools"]) == 4


async def test_each_view_that_clients_had_has_answers_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """None of another view, and none where the file has the view no more."""
    kept = Kept(tmp_path)
    assert kept.config is not None
    kept.config = replace(kept.config, views={"small": ViewSpec(), "other": ViewSpec()})
    ends: list[Endpoint] = []
    record = Recording._answers_at

    async def noting(self: Recording, endpoint: Endpoint) -> dict[str, Any]:
        ends.append(endpoint)
        return await record(self, endpoint)

    monkeypatch.setattr(Recording, "_answers_at", noting)
    async with open_world(ScriptedServer("a", tools=["x"])) as world, recording(world, kept) as made:
        await world.settled()
        made.views |= {"small", "gone"}
        await made.write()
        assert set(ends) == {SHARED, Endpoint(view="small")}
        opened = {"protocolVersion": "2025-11-25"}
        assert kept.answer("tools/list", opened, "small") is not None
        assert kept.answer("tools/list", opened, "other") is None
        assert kept.answer("tools/list", opened, "gone") is None
        made.views.add("other")
        await made.write()
        assert kept.answer("tools/list", opened, "other") is not None
        kept.config = replace(kept.config, default_view="other")
        ends.clear()
        await made.write()
        assert set(ends) == {Endpoint(view="other"), Endpoint(view="small")}, "the one of the default is for all others"


async def test_all_pages_of_a_list_are_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.router.lists.PAGE_SIZE", 2)
    kept = Kept(tmp_path)
    async with open_world(ScriptedServer("a", tools=["x", "y", "z"])) as world, recording(world, kept) as made:
        await world.settled()
        await made.write()
        opened = {"protocolVersion": "2025-11-25"}
        first = kept.answer("tools/list", opened)
        rest = kept.answer("tools/list", opened, cursor=first["nextCursor"])
        assert [each["name"] for each in (*first["tools"], *rest["tools"])] == ["a__x", "a__y", "a__z"]


async def test_it_follows_changes_of_lists_and_decisions(
    tmp_path: Path, autojump_clock: trio.testing.MockClock
) -> None:
    kept, server = Kept(tmp_path), ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, recording(world, kept) as made, trio.open_nursery() as nursery:
        await world.settled()
        nursery.start_soon(made.keep)
        await kept.says("a__x")
        server.lists["tools"].append(tool("z"))
        await server.notifies("notifications/tools/list_changed")
        await kept.says("a__x", "a__z")
        kept.decided()
        assert kept.tools() is None
        await kept.says("a__x", "a__z")
        nursery.cancel_scope.cancel()


async def test_nothing_is_kept_while_the_file_is_not_what_is_in_effect(tmp_path: Path) -> None:
    kept = Kept(tmp_path)
    async with open_world(ScriptedServer("a", tools=["x"])) as world, recording(world, kept) as made:
        await world.settled()
        await made.write()
        assert kept.tools() == ["a__x"]
        kept.config = None
        await made.write()
        assert kept.tools() is None


async def test_another_program_or_value_of_a_rule_ends_what_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = Kept(tmp_path)
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "program").symlink_to("/bin/true")
    program = StdioServer(id="a", command=(Secret("program"),), cwd=tmp_path)
    kept.config = kept.configured(program, own_variables=frozenset({"RULE"}))
    monkeypatch.setenv("PATH", f"{tmp_path / 'two'}:{os.environ['PATH']}")
    async with open_world(ScriptedServer("a", tools=["x"])) as world, recording(world, kept) as made:
        await world.settled()
        await made.write()
        assert kept.tools() == ["a__x"]
        for name in ("RULE", "CODEX_HOME"):
            monkeypatch.setenv(name, "1")
            assert kept.tools() is None
            monkeypatch.delenv(name)
        monkeypatch.setenv("PATH", f"{tmp_path / 'one'}:{os.environ['PATH']}")
        assert kept.tools() == ["a__x"], "it is the same program"
        (tmp_path / "one" / "program").unlink()
        (tmp_path / "one" / "program").symlink_to("/bin/false")
        assert kept.tools() is None


async def test_lists_that_are_too_long_are_left_to_the_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = Kept(tmp_path)
    async with open_world(ScriptedServer("a", tools=["x"])) as world, recording(world, kept) as made:
        await world.settled()
        await made.write()
        assert kept.tools() == ["a__x"]
        monkeypatch.setattr(first_answers, "MAX_BYTES", 100)
        kept.decided()
        await made.write()
        assert kept.tools() is None
        assert [each.name for each in kept.directory.iterdir() if "first" in each.name] == []
        with counted_calls() as called:
            await made.write()
        assert "Recording._answers" not in called, "they are as long as before"
        kept.decided()
        monkeypatch.setattr(first_answers, "MAX_BYTES", 100_000)
        await made.write()
        assert kept.tools() == ["a__x"]


async def test_a_long_list_is_read_once_to_see_that_it_is_too_long(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The pages of a list have other cursors at each reading, so each revision adds texts of its own."""
    monkeypatch.setattr(lists, "PAGE_SIZE", 10)
    kept = Kept(tmp_path)
    tools = [f"t{number}" for number in range(25)]
    async with open_world(ScriptedServer("a", tools=tools)) as world, recording(world, kept) as made:
        await world.settled()
        await made.write()
        size = (kept.directory / FIRST_ANSWERS).stat().st_size
        for most, sessions in ((2 * size, 2 * len(HANDSHAKE) + 1), (size // 2, 1)):
            monkeypatch.setattr(first_answers, "MAX_BYTES", most)
            kept.decided()
            with counted_calls() as called:
                await made.write()
            assert called.count("_Client.__init__") == sessions
            assert (kept.tools() is None) is (sessions == 1)
