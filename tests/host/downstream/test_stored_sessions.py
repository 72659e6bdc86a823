"""Rows of sessions: when they are written, which are, and what is asked of the store for an id."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import pytest
import trio
from msgspec.structs import replace
from trio.testing import MockClock

from host.downstream import stored_sessions as module
from host.downstream.stored_sessions import (
    BATCH,
    CHANGE_INTERVAL,
    MAX_OPENING,
    PAUSE,
    RETRY_INTERVAL,
    SessionOpening,
    StoredSessions,
)
from host.journal import Event, SessionsNotStored
from host.seal import Seal
from host.storage.sql import Transaction
from host.storage.sqlite import SqliteStore
from host.storage.store import StateError, StoredSession, TrimPlace
from tests.kit.gates import locked, store_opener

OPENING = SessionOpening("2025-11-25", "t 1", "{}")
KEY = bytes(32)
T = TypeVar("T")


class Table:
    """The sessions of one process: the opening of each, and its last use."""

    def __init__(
        self,
        store: SqliteStore,
        most: int = 10,
        key: bytes = KEY,
        former: tuple[bytes, ...] = (),
        seal: type[Seal] = Seal,
    ) -> None:
        self.open: dict[str, tuple[SessionOpening | None, float]] = {}
        self.noted: list[Event] = []
        self.store = store
        sealed_with = seal(key, trio.current_time, former)
        self.rows = StoredSessions(store, sealed_with, most, self.noted.append, trio.current_time)

    def opens(self, opening: SessionOpening | None = OPENING) -> str:
        id = self.rows.new_id()
        self.open[id] = opening, self.rows.now()
        self.rows.note(id)
        return id

    def gives_up(self, id: str) -> None:
        self.rows.give_up(id, *self.open.pop(id))

    def ends(self, id: str) -> None:
        del self.open[id]
        self.rows.end(id)

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.rows.run, self.open.get, lambda: self.open)
            yield
            nursery.cancel_scope.cancel()


async def stored() -> None:
    await trio.sleep(4 * PAUSE)


async def test_an_id_is_known_by_the_key_with_which_it_was_made(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Also after the key was changed, and before it is changed everywhere."""
    with store_opener(tmp_path) as open_store:
        table, changed = Table(open_store()), Table(open_store(), key=bytes(31) + b"1", former=(KEY,))
        async with table.running(), changed.running():
            ids = {table.opens() for _ in range(20)}
            assert (len(ids), {len(each) for each in ids}) == (20, {32})
            id, later = next(iter(ids)), changed.opens()
            await stored()
            assert await changed.rows.find(id) == OPENING
            assert await changed.rows.find(later) == OPENING
            assert await table.rows.find(later) is None
            assert not any(
                each in repr(open_store()._reader.execute("SELECT * FROM session").fetchall()) for each in ids
            )


async def test_the_cipher_is_loaded_before_it_is_used(tmp_path: Path, autojump_clock: MockClock) -> None:
    """Loading it in the event loop would hold up every client when the first session is stored."""

    class Lazy(Seal):
        is_ready = False

        async def ready(self) -> None:
            await trio.sleep(PAUSE)
            self.is_ready = True

        def seal(self, purpose: str, binding: bytes, content: bytes, lifetime: float) -> str:
            assert self.is_ready
            return super().seal(purpose, binding, content, lifetime)

        def unseal(self, purpose: str, binding: bytes, text: str) -> bytes:
            assert self.is_ready
            return super().unseal(purpose, binding, text)

    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store(), seal=Lazy), Table(open_store(), seal=Lazy)
        async with table.running():
            id = table.opens()
            await stored()
            assert await other.rows.find(id) == OPENING


async def test_many_sessions_are_few_transactions(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    written: list[int] = []
    commit = SqliteStore._commit

    def counted(store: SqliteStore, batch: list[object]) -> None:
        written.append(len(batch))
        commit(store, batch)  # type: ignore[arg-type]  # what it is given

    monkeypatch.setattr(SqliteStore, "_commit", counted)
    with store_opener(tmp_path) as open_store:
        table = Table(open_store(), most=1000)
        async with table.running():
            ids = [table.opens() for _ in range(3 * BATCH)]
            await stored()
            assert len(written) == 3
            for _ in range(100):
                table.rows.note(ids[0])
            await stored()
            assert len(written) == 4
            for _ in range(int(CHANGE_INTERVAL / PAUSE)):  # a client changes its subscriptions without end
                table.rows.note(ids[0])
                await trio.sleep(PAUSE)
            assert len(written) in (4, 5)
            late = table.opens()
            await stored()
            assert await table.rows.find(late) == OPENING, "a new session does not wait for the next changes"
            assert all([await table.rows.find(each) == OPENING for each in ids])


async def test_a_row_is_no_more_what_another_process_needs_once_its_session_has_changed(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with store_opener(tmp_path) as open_store:
        table = Table(open_store())
        async with table.running():
            id = table.opens()
            assert not table.rows.is_written(id)
            await stored()
            assert table.rows.is_written(id)
            for _ in range(2):  # the second change waits for the interval
                table.rows.note(id)
                assert not table.rows.is_written(id)
                await stored()
            assert not table.rows.is_written(id)
            await trio.sleep(CHANGE_INTERVAL)
            assert table.rows.is_written(id)


async def test_a_session_that_ends_while_it_is_written_has_no_row(tmp_path: Path, autojump_clock: MockClock) -> None:
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store()), Table(open_store())
        turn = table.store._turn._lock  # type: ignore[attr-defined]  # of `tests.kit.gates.Turn`
        await turn.acquire()
        async with table.running():
            id = table.opens()
            await trio.sleep(1)
            table.ends(id)
            turn.release()
            await stored()
            assert await other.rows.find(id) is None


async def test_a_session_that_ends_has_no_row_although_nobody_said_that_it_was_written(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The connection to the store broke after the commit, before its answer."""
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store()), Table(open_store())
        write = table.store.write

        async def breaks(change: Any) -> None:
            await write(change)
            raise StateError("no answer came")

        async with table.running():
            monkeypatch.setattr(table.store, "write", breaks)
            id = table.opens()
            await stored()
            assert await other.rows.find(id) == OPENING
            monkeypatch.undo()
            table.ends(id)
            await table.rows.wait_removed(id)
            assert await other.rows.find(id) is None


async def test_a_session_that_is_given_up_before_it_is_written_is_written(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store()), Table(open_store())
        async with table.running():
            id, ended = table.opens(), table.opens()
            table.gives_up(id)
            table.gives_up(ended)
            table.rows.end(ended)
            assert [await table.rows.find(each) for each in (id, ended)] == [OPENING, None]
            await stored()
            assert [await other.rows.find(each) for each in (id, ended)] == [OPENING, None]
            table.open[id] = OPENING, trio.current_time()
            table.rows.take_over(id)
            table.ends(id)
            await stored()
            assert await other.rows.find(id) is None


@pytest.mark.parametrize("ends", ["process", "session"])
async def test_the_last_change_is_stored_however_soon_it_is_over(
    tmp_path: Path, autojump_clock: MockClock, ends: str
) -> None:
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store()), Table(open_store())
        async with table.running():
            id = table.opens()
            await stored()
            for level in ("info", "error"):
                await stored()
                table.open[id] = replace(OPENING, level=level), table.open[id][1]
                table.rows.note(id)
            if ends == "session":
                table.gives_up(id)
                await stored()
        assert await other.rows.find(id) == replace(OPENING, level="error")


async def test_what_cannot_be_stored_is_stored_later(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.01)
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store()), Table(open_store())
        async with table.running():
            kept, ended = table.opens(), table.opens()
            await stored()
            with locked(tmp_path):
                left, new = table.opens(), table.opens()
                table.ends(ended)
                table.gives_up(left)
                await trio.sleep(3 * RETRY_INTERVAL)
                assert [type(each) for each in table.noted] == [SessionsNotStored]
            await trio.sleep(2 * RETRY_INTERVAL)
            found = [await other.rows.find(each) for each in (kept, ended, left, new)]
            assert found == [OPENING, None, OPENING, OPENING]
            with locked(tmp_path):
                table.opens()
                await trio.sleep(RETRY_INTERVAL)
            assert len(table.noted) == 2


async def test_an_opening_that_is_too_long_or_of_no_use_elsewhere_has_no_row(
    tmp_path: Path, autojump_clock: MockClock
) -> None:
    long = SessionOpening("2025-11-25", "t 1", "{}", watched=("x" * MAX_OPENING,))
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store()), Table(open_store())
        async with table.running():
            ids = [table.opens(), table.opens(), table.opens(long), table.opens(None)]
            await stored()
            for id, opening in zip(ids, (long, None, OPENING, OPENING), strict=True):
                table.open[id] = opening, trio.current_time()
                table.rows.note(id)
                before = await other.rows.find(id)
                await trio.sleep(CHANGE_INTERVAL)
                await stored()
                assert {before, await other.rows.find(id)} == {None, OPENING}


async def test_rows_expire_and_are_not_too_many(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "TRIM_INTERVAL", 0.0)
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store(), most=2), Table(open_store())
        async with table.running():
            ids = []
            for _ in range(6):
                ids.append(table.opens())
                await trio.sleep(1)
            assert [await other.rows.find(each) for each in ids] == [None] * 2 + [OPENING] * 4
            table.rows.processes = lambda: 2
            ids += [table.opens() for _ in range(5)]
            await stored()
            found = [await other.rows.find(each) for each in ids]
            assert found == [None] * 3 + [OPENING] * 8, "as many as of two processes"
            await trio.sleep(module.IDLE_TIMEOUT)
            assert [await other.rows.find(each) for each in ids] == [None] * len(ids)


async def test_rows_stay_stored_though_too_many_cannot_be_removed(tmp_path: Path, autojump_clock: MockClock) -> None:
    with store_opener(tmp_path) as open_store:
        store = open_store()
        table, other, write = Table(store), Table(open_store()), store.write

        async def write_rows(change: Callable[[Transaction], T]) -> T:
            def carry_out(transaction: Transaction) -> T:
                def trim(most: int, used_before: float, place: TrimPlace) -> TrimPlace | None:
                    raise StateError("it takes too long")

                transaction.trim_sessions = trim  # type: ignore[method-assign]
                return change(transaction)

            return await write(carry_out)

        store.write = write_rows  # type: ignore[method-assign, assignment]
        async with table.running():
            ids = [table.opens()]
            await stored()
            ids.append(table.opens())
            await stored()
            assert [await other.rows.find(each) for each in ids] == [OPENING] * 2
            assert not table.rows.is_failing


async def test_rows_are_removed_although_the_clock_was_set_back(tmp_path: Path, autojump_clock: MockClock) -> None:
    with store_opener(tmp_path) as open_store:
        table, other = Table(open_store(), most=1), Table(open_store())
        table.rows.now = lambda: trio.current_time() + 86_400
        async with table.running():
            table.opens()
            await stored()
            table.rows.now = trio.current_time
            ids = []
            for _ in range(3):
                await trio.sleep(module.TRIM_INTERVAL + 1)
                ids.append(table.opens())
                await stored()
            assert [await other.rows.find(each) for each in ids] == [None, None, OPENING]


async def test_nobody_waits_behind_many_while_the_store_cannot_be_read(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt takes a second, and the others are told of its failure."""
    told: list[float] = []
    reads = 0

    async def read(digest: str) -> StoredSession | None:
        nonlocal reads
        reads += 1
        await trio.sleep(1)
        raise StateError("locked")

    with store_opener(tmp_path) as open_store:
        rows = Table(open_store()).rows
        monkeypatch.setattr(rows._store, "read_session", read)

        async def look(id: str) -> None:
            with pytest.raises(StateError):
                await rows.find(id)
            told.append(trio.current_time())

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(500):
                nursery.start_soon(look, rows.new_id())
        assert (reads, max(told) - begun) == (module.MAX_READS, 1)
        await trio.sleep(module.READ_PAUSE)
        monkeypatch.undo()
        assert await rows.find(rows.new_id()) is None


async def test_nobody_waits_long_behind_many_while_the_store_is_slow(
    tmp_path: Path, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def read(digest: str) -> StoredSession | None:
        await trio.sleep(0.9)
        return None

    with store_opener(tmp_path) as open_store:
        rows = Table(open_store()).rows
        monkeypatch.setattr(rows._store, "read_session", read)
        refused = 0

        async def look(id: str) -> None:
            nonlocal refused
            try:
                assert await rows.find(id) is None
            except StateError:
                refused += 1

        begun = trio.current_time()
        async with trio.open_nursery() as nursery:
            for _ in range(100):
                nursery.start_soon(look, rows.new_id())
        assert refused > 80
        assert trio.current_time() - begun <= module.READ_PATIENCE + 0.9
