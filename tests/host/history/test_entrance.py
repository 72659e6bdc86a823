"""A host keeps a history while its configuration says so."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import trio

from config import Config, HistorySpec, load
from host.audit.writer import open_audit
from host.history.entrance import HostHistory
from host.journal import Journal
from host.storage.directory import State, open_state
from host.storage.store import StateError

from .kit import call


@pytest.fixture
def state(tmp_path: Path) -> State:
    return open_state(tmp_path / "state")


@pytest.fixture
def config(tmp_path: Path) -> Config:
    path = tmp_path / "colonnade.yaml"
    path.write_text("servers: {a: {command: [x]}}")
    return load(path)


async def calls(history: HostHistory, count: int) -> list[str]:
    """The names of the calls of /x, once there are so many."""
    while True:
        found, _ = await history.calls("/x", None, {"limit": 10})
        if len(found) >= count:
            return [each["item"] for each in found]
        await trio.sleep(0.01)


async def test_it_is_switched_on_and_off_by_the_configuration(state: State, config: Config) -> None:
    with open_audit(state.audit) as audit:
        audit.write("config", file="/x", policy="")
        call(audit, "one")
        async with trio.open_nursery() as nursery:
            history = HostHistory(state, Journal(), nursery, has_files=True)
            history.follow(config)
            with pytest.raises(StateError, match=r"keeps no history: write history: \{\} in its file"):
                await history.calls("/x", None, {})
            on = replace(config, history=HistorySpec())
            history.follow(on)
            assert await calls(history, 1) == ["one"]
            call(audit, "two")
            history.follow(replace(config, history=HistorySpec(keep=7200.0)))
            assert await calls(history, 2) == ["two", "one"]
            (row, _), _ = await history.calls("/x", 0.0, {"limit": 10})
            found, records = await history.call("/x", row["id"])
            assert (found, [each["kind"] for each in records]) == (row, ["decision", "outcome"])
            for config_name, id in (("/x", "0" * 16), ("/y", row["id"])):
                with pytest.raises(StateError, match="has no call"):
                    await history.call(config_name, id)
            assert await history.calls("/y", None, {}) == ([], [])
            history.follow(config)
            history.follow(on)
            assert await calls(history, 2) == ["two", "one"]
            history.follow(config)
            assert history.problem == ""


async def test_there_is_none_where_the_audit_is_a_stream(state: State, config: Config) -> None:
    async with trio.open_nursery() as nursery:
        history = HostHistory(state, Journal(), nursery, has_files=False)
        history.follow(replace(config, history=HistorySpec()))
        with pytest.raises(StateError, match=r"there is no history: the audit goes to standard output"):
            await history.call("/x", "0" * 16)
