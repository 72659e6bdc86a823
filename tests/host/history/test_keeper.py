"""The task that keeps the index says what fails, once, and goes on."""

from __future__ import annotations

import sqlite3
from contextlib import closing, suppress
from pathlib import Path

import pytest
import trio

from config import HistorySpec
from host.audit.records import HistoryCall
from host.audit.writer import open_audit
from host.history import index, keeper
from host.history.index import HistoryUnavailable
from host.history.keeper import MAX_PAUSE, MISTAKE, READ_INTERVAL, HistoryKeeper
from host.history.search import CallFilter
from host.journal import Event, HistoryFailed, InternalError
from host.storage.directory import open_state

from .kit import call


async def found(kept: HistoryKeeper, *items: str) -> list[str]:
    """What is said to be missing once these calls are there."""
    while True:
        rows: list[HistoryCall] = []
        with suppress(HistoryUnavailable):  # the search finds the damage first
            rows, missing = await kept.calls(CallFilter())
        if [row["item"] for row in rows] == [*items]:
            return missing
        await trio.sleep(0.01)


async def test_a_lock_of_another_process_is_said_once_and_made_up_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.0)
    monkeypatch.setattr(keeper, "READ_INTERVAL", 0.01)
    state, told = open_state(tmp_path / "state"), list[Event]()
    kept = HistoryKeeper(state, HistorySpec(), told.append)
    with open_audit(state.audit) as audit:
        call(audit, "one")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.run)
            await found(kept, "one")
            with closing(sqlite3.connect(state.path / "history.db", isolation_level=None)) as holder:
                holder.execute("BEGIN IMMEDIATE")
                call(audit, "two")
                with trio.fail_after(10):
                    missing: list[str] = []
                    while not missing or not kept.problem:
                        missing = await found(kept, "one")
                assert "another process has held history.db" in missing[0]
            with trio.fail_after(10):
                while missing:
                    missing = await found(kept, "two", "one")
            (state.path / "history.db").write_bytes(b"damaged")
            call(audit, "three")
            with trio.fail_after(10):
                while len(told) < 2:  # noqa: ASYNC110 - a list tells nobody
                    await trio.sleep(0.01)
            await found(kept, "three", "two", "one")
            kept.stop()
    assert [str(event) for event in told if isinstance(event, HistoryFailed)] == [
        "history: another process has held history.db for 0 s; calls go on, and the history is made up for later",
        "history: its index was damaged, and is built again from the audit",
    ]


async def test_a_search_reads_on_so_a_damaged_index_is_not_searched_half_built(tmp_path: Path) -> None:
    state = open_state(tmp_path / "state")
    kept = HistoryKeeper(state, HistorySpec(), list[Event]().append)
    with open_audit(state.audit) as audit:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.run)
            for count, damage in enumerate((b"", b"damaged", bytes(9000)), 1):
                call(audit)
                (state.path / "history.db").write_bytes(damage)
                rows, missing = await kept.calls(CallFilter())
                assert (len(rows), missing) == (count, [])
            kept.stop()


async def test_what_the_index_holds_ends_no_host_and_is_built_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "MAX_PAUSE", 0.01)
    state, told = open_state(tmp_path / "state"), list[Event]()
    kept = HistoryKeeper(state, HistorySpec(), told.append)
    with open_audit(state.audit) as audit:
        call(audit, "one")
        await kept.look()
        with closing(sqlite3.connect(state.path / "history.db", isolation_level=None)) as somebody:
            somebody.execute("UPDATE file SET place = 'far'")
        call(audit, "two")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(kept.run)
            with trio.fail_after(10):
                while kept.problem or not told:  # noqa: ASYNC110 - a list tells nobody
                    await trio.sleep(0.01)
                await found(kept, "two", "one")
            kept.stop()
    assert [(type(event), str(event)[:29]) for event in told] == [(InternalError, "the history: internal error: ")]


async def test_a_mistake_that_stays_is_said_once_and_tried_again_ever_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state, told = open_state(tmp_path / "state"), list[Event]()
    kept = HistoryKeeper(state, HistorySpec(), told.append)
    with open_audit(state.audit) as audit:
        call(audit, "one")
        with monkeypatch.context() as broken:
            broken.setattr(index, "_RECORDS", None)
            pauses = [await kept.look() for _ in range(12)]
            assert pauses[:3] == [2 * READ_INTERVAL, 4 * READ_INTERVAL, 8 * READ_INTERVAL]
            assert pauses == sorted(pauses)
            assert pauses[-1] == MAX_PAUSE
            assert (kept.problem, len(told)) == (MISTAKE, 1)
        await kept.look()
        assert await kept.look() == READ_INTERVAL
        assert (kept.problem, len(told)) == ("", 1)
        await found(kept, "one")
