"""The database: who may have it, what becomes of a damaged, deleted or foreign one, and that nobody waits for its locks
but the task whose change is stored."""

from __future__ import annotations

import fcntl
import json
import os
import resource
import signal
import sqlite3
import stat
import subprocess
import sys
import textwrap
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from host.storage.directory import open_state
from host.storage.sql import Transaction
from host.storage.sqlite import SqliteStore, open_store
from host.storage.store import (
    LOCKED_LIMIT,
    ApprovedDefinition,
    OfferedDefinition,
    RememberedServer,
    StateError,
    StoredItem,
)
from tests.host.storage.test_sql import APPROVED, changes, puts, remembers, stored
from tests.kit.awaited import awaited
from tests.kit.gates import SOURCE, locked, store_opener

Opener = Callable[[], AbstractContextManager[SqliteStore]]


@pytest.fixture
def state(tmp_path: Path) -> Path:
    return tmp_path / "state"


@pytest.fixture
def database(state: Path) -> Path:
    """Where the database is; nothing is there yet."""
    open_state(state)
    return state / "colonnade.db"


@contextmanager
def opened(state: Path) -> Iterator[SqliteStore]:
    """The store of one more host, for the block; whatever waits is done in this thread."""
    with store_opener(state) as open_one:
        yield open_one()


# Who may have it


def test_the_database_is_its_owners_alone_whatever_the_umask(state: Path, database: Path) -> None:
    former = os.umask(0)
    try:
        with opened(state) as store:
            awaited(store.write(puts("x")))
            assert {stat.S_IMODE(each.stat().st_mode) for each in (database, state / "run" / "store.lock")} == {0o600}
    finally:
        os.umask(former)


@pytest.mark.parametrize("bits", [0o604, 0o640, 0o660])
def test_a_database_that_others_can_open_is_refused_with_a_remedy(bits: int, state: Path, database: Path) -> None:
    with opened(state):
        pass
    database.chmod(bits)
    with pytest.raises(StateError, match=f"open to others .mode {bits:04o}.: `chmod 600 "), opened(state):
        pass


def test_a_link_is_not_followed(state: Path, database: Path, tmp_path: Path) -> None:
    elsewhere = tmp_path / "elsewhere"
    database.symlink_to(elsewhere)
    with pytest.raises(StateError, match="not a regular file"), opened(state):
        pass
    assert not elsewhere.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_database_of_another_user_is_refused(state: Path, database: Path) -> None:
    with opened(state):
        pass
    os.chown(database, 12345, -1)
    with pytest.raises(StateError, match="belongs to another user"), opened(state):
        pass


@pytest.mark.parametrize(
    ("pragma", "why"),
    [("user_version = 99", "newer version of Colonnade .its schema is 99"), ("application_id = 7", "another program")],
)
def test_a_database_that_is_not_for_this_version_is_refused_and_not_touched(
    pragma: str, why: str, state: Path, database: Path
) -> None:
    with opened(state) as store:
        awaited(store.write(puts("x")))
    with closing(sqlite3.connect(database)) as other:
        other.execute(f"PRAGMA {pragma}")
    before = database.read_bytes()
    with pytest.raises(StateError, match=why), opened(state):
        pass
    assert database.read_bytes() == before
    assert [each.name for each in state.glob("colonnade.db*") if each.stat().st_size] == ["colonnade.db"]


# Former schemas


def test_a_database_of_the_first_schema_is_brought_up_to_date(state: Path, database: Path) -> None:
    with opened(state) as store:
        awaited(store.write(puts("x")))
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("DROP TABLE remembered_server")
        other.execute("DROP TABLE remembered_list")
        other.execute("DROP TABLE credential")
        other.execute("DROP TABLE unconfined")
        other.execute("DROP TABLE session")
        other.execute("ALTER TABLE config DROP COLUMN credentials")
        other.execute("PRAGMA user_version = 1")
    for _ in range(2):
        with opened(state) as store:
            awaited(store.write(remembers("a", RememberedServer("id", "{}", {}))))
            assert stored(store).keys() == {"x"}


def test_what_was_approved_of_a_stateless_server_stays_approved(state: Path, database: Path) -> None:
    """Its definitions were stored like those of a server with sessions, which has none of its own then."""
    with opened(state) as store:
        for server, revisions in {"a": ["2025-11-25"], "b": ["2025-11-25", "2026-07-28"], "c": []}.items():
            awaited(store.write(puts("x", server=server)))
            for revision in revisions:
                said = RememberedServer(revision, json.dumps({"revision": revision}, separators=(",", ":")), {})
                awaited(store.write(remembers(server, said)))
        awaited(store.write(lambda transaction: transaction.put_items("b", "launch", {"": APPROVED})))
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("DROP TABLE unconfined")
        other.execute("DROP TABLE session")
        other.execute("PRAGMA user_version = 4")
    for _ in range(2):
        with opened(state) as store:
            assert {key: list(items) for key, items in store.load_definitions().items.items()} == {
                ("a", "tool"): ["x"],
                ("b", "launch"): [""],
                ("b", "stateless tool"): ["x"],
                ("c", "tool"): ["x"],
            }


def put_launch(server: str, item: StoredItem, transaction: Transaction) -> None:
    transaction.put_items(server, "launch", {"": item})


def test_launches_of_a_former_version_are_known_as_such(state: Path, database: Path) -> None:
    """It confined no untrusted program. What is approved later is no such launch."""
    offered = StoredItem(offered=OfferedDefinition("sha256:x", b"{}", 1.0))
    with opened(state) as store:
        for server, item in {"a": APPROVED, "b": APPROVED, "c": offered}.items():
            awaited(store.write(partial(put_launch, server, item)))
        assert store.load_definitions().unconfined == {}
    with closing(sqlite3.connect(database)) as other, other:
        other.execute("DROP TABLE unconfined")
        other.execute("DROP TABLE session")
        other.execute("PRAGMA user_version = 5")
    with opened(state) as store:
        awaited(store.write(partial(put_launch, "d", APPROVED)))
        assert store.load_definitions().unconfined == {"a": False, "b": False}
        awaited(store.write(lambda transaction: transaction.put_unconfined("a", True)))
        awaited(store.write(lambda transaction: transaction.put_unconfined("b", None)))
    with opened(state) as store:
        assert store.load_definitions().unconfined == {"a": True}


# What is damaged, or gone


def damage(database: Path) -> None:
    """Overwrite pages that are in use."""
    size = database.stat().st_size
    with open(database, "r+b") as file:
        file.seek(size // 2)
        file.write(os.urandom(size // 2))


def damage_head(database: Path) -> None:
    with open(database, "r+b") as file:
        file.write(b"not a database at all")


def cut(database: Path) -> None:
    os.truncate(database, database.stat().st_size // 2 // 4096 * 4096 + 100)


@pytest.mark.parametrize("how", [damage, damage_head, cut])
def test_a_damaged_database_is_kept_under_another_name_and_everything_is_lost(
    how: Callable[[Path], None], state: Path, database: Path
) -> None:
    with opened(state) as store:
        awaited(store.write(lambda transaction: [puts(f"x{n}")(transaction) for n in range(200)]))
    how(database)
    broken = database.read_bytes()
    with opened(state) as store:
        found = store.load_definitions()
        assert (found.items, found.lost) == ({}, "the database that held the approved definitions is gone")
        assert store.read_grants() == []
        awaited(store.write(puts("y")))
    (kept,) = (each for each in state.glob("colonnade.db.damaged-*") if not each.name.endswith("-journal"))
    assert kept.read_bytes() == broken
    with opened(state) as store:
        assert stored(store) == {"y": APPROVED}
        assert store.load_definitions().lost is not None, "until a person decides anew"


def test_a_damaged_database_that_another_process_has_open_stays_where_it_is(state: Path, database: Path) -> None:
    with opened(state) as store:
        awaited(store.write(puts("x")))
        damage_head(database)
        with (
            pytest.raises(StateError, match=r"is damaged .*another process has it open: stop every host"),
            opened(state),
        ):
            pass
    assert list(state.glob("colonnade.db.damaged-*")) == []


def test_nobody_opens_the_database_while_it_is_put_aside(state: Path, database: Path) -> None:
    with open(state / "run" / "store.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(StateError, match="puts a damaged database aside; try again"), opened(state):
            pass


def test_a_configuration_that_the_database_does_not_hold_any_more_is_lost(state: Path, database: Path) -> None:
    with opened(state) as store:
        awaited(store.write(puts("x")))
        assert store.load_definitions().lost is None
    database.unlink()
    with opened(state) as store:
        assert "is gone" in str(store.load_definitions().lost)
        awaited(store.write(lambda transaction: transaction.clear_lost()))
    with opened(state) as store:
        assert store.load_definitions().lost is None


def test_what_a_killed_writer_left_is_put_right(state: Path, database: Path) -> None:
    """The journal of a transaction that was cut off in the middle of its pages is played back."""
    with opened(state) as store:
        awaited(store.write(lambda transaction: [puts(f"x{n}")(transaction) for n in range(300)]))
    program = f"""
        import os, signal, sqlite3
        other = sqlite3.connect({str(database)!r}, isolation_level=None)
        other.execute("PRAGMA cache_size = 1")
        other.execute("BEGIN IMMEDIATE")
        other.execute("UPDATE item SET name = name || '-half', approved_definition = randomblob(2000)")
        os.kill(os.getpid(), signal.SIGKILL)
    """
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(program)], check=False)
    assert done.returncode == -signal.SIGKILL
    assert Path(f"{database}-journal").stat().st_size > 0, "it was in the middle"
    with opened(state) as store:
        assert stored(store) == {f"x{n}": APPROVED for n in range(300)}


def removed(database: Path) -> None:
    database.unlink()


def renamed(database: Path) -> None:
    database.rename(database.with_suffix(".moved"))


def replaced(database: Path) -> None:
    other = database.with_suffix(".other")
    other.write_bytes(database.read_bytes())
    other.chmod(0o600)
    other.rename(database)


@pytest.mark.parametrize("how", [removed, renamed, replaced])
def test_a_database_that_is_taken_away_while_it_is_open_takes_nothing_more(
    how: Callable[[Path], None], state: Path, database: Path
) -> None:
    with opened(state) as store:
        awaited(store.write(puts("x")))
        before = store.poll()
        how(database)
        with pytest.raises(StateError, match="was removed or replaced while this program ran; start it again"):
            awaited(store.write(puts("y")))
        assert store.poll() == before
        assert not store.is_reliable
        assert "start it again" in str(store.problem)


def test_a_change_that_raced_with_the_exchange_of_the_file_is_not_confirmed(state: Path, database: Path) -> None:
    confirmed: list[object] = []

    def change(transaction: Transaction) -> None:
        puts("y")(transaction)
        replaced(database)

    with opened(state) as store:
        with pytest.raises(StateError, match="removed or replaced"):
            awaited(store.write(change, lambda result, revisions: confirmed.append(result)))
        assert confirmed == []
    with opened(state) as store:
        assert stored(store) == {}


def test_an_older_copy_that_is_written_over_the_file_counts_from_then_on(state: Path, database: Path) -> None:
    """It is the same file for the operating system; nothing that it does not hold is believed any more."""
    with opened(state) as store:
        awaited(store.write(puts("x")))
        older = database.with_suffix(".older")
        older.write_bytes(database.read_bytes())
        awaited(store.write(puts("y")))
        known = store.poll().definitions
        subprocess.run(["cp", older, database], check=True)
        assert store.poll().definitions == known - 1
        found = changes(store, known)
        assert ([*found.items["a", "tool"]], found.complete) == (["x"], True)
        awaited(store.write(puts("z")))
    with opened(state) as store:
        assert set(stored(store)) == {"x", "z"}


def test_damage_that_shows_while_a_host_runs_is_a_problem_until_it_is_started_again(
    state: Path, database: Path
) -> None:
    with opened(state) as store:
        awaited(store.write(lambda transaction: [puts(f"x{n}")(transaction) for n in range(300)]))
        with opened(state) as other:
            awaited(other.write(puts("z")))  # what is cached here is not current any more
        damage(database)
        with pytest.raises(StateError):
            awaited(store.write(lambda transaction: [puts(f"x{n}", None)(transaction) for n in range(300)]))
        assert "is damaged" in str(store.problem)
        assert not store.is_reliable


# In an event loop


@contextmanager
def threaded(state: Path) -> Iterator[SqliteStore]:
    """The store as a host has it: with threads."""
    with open_store(open_state(state), SOURCE) as store:
        yield store


async def test_nobody_but_who_stores_waits_for_the_lock_of_another_process(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The task that stores gets a sentence in the end; another task does its work meanwhile, and asks what is known."""
    order: list[str] = []
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.3)
    with threaded(state) as store:
        await store.write(puts("x"))
        known = store.poll()

        async def write() -> None:
            with pytest.raises(StateError, match=r"another process has held .* for 0.3 s; end it"):
                await store.write(puts("y"))
            order.append("refused")

        with locked(state):
            async with trio.open_nursery() as nursery:
                nursery.start_soon(write)
                await wait_all_tasks_blocked()
                for _ in range(100):
                    await trio.lowlevel.checkpoint()
                    assert store.poll() == known
                order.append("others")
        assert order == ["others", "refused"]
        assert store.problem is None
        await store.write(puts("y"))
        assert set(stored(store)) == {"x", "y"}


async def test_changes_that_wait_for_the_lock_of_another_process_wait_together(
    state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whoever stores them cannot be cancelled meanwhile, so a host that ends would wait for one after the other."""
    refused: list[str] = []
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.1)
    with threaded(state) as store:
        tries: list[int] = []
        commit = store._commit

        def counted(batch: Sequence[Any]) -> None:
            tries.append(len(batch))
            commit(batch)

        monkeypatch.setattr(store, "_commit", counted)

        async def write(name: str) -> None:
            with pytest.raises(StateError, match="another process has held"):
                await store.write(puts(name))
            refused.append(name)

        with locked(state):
            async with trio.open_nursery() as nursery:
                await store._turn.acquire()
                for name in ("a", "b", "c"):
                    nursery.start_soon(write, name)
                await wait_all_tasks_blocked()
                store._turn.release()
        assert (sorted(refused), tries) == (["a", "b", "c"], [3])


async def test_reading_waits_in_a_thread_too(state: Path) -> None:
    with threaded(state) as store:
        await store.write(puts("x"))
        done = trio.Event()

        async def read() -> None:
            found = await store.read_definitions(lambda: 0)
            assert found is not None
            assert [*found.items["a", "tool"]] == ["x"]
            done.set()

        async with trio.open_nursery() as nursery:
            with locked(state):
                nursery.start_soon(read)
                await wait_all_tasks_blocked()
                assert not done.is_set()
        assert done.is_set()


def test_a_locked_database_is_relied_on_for_a_while(state: Path) -> None:
    now = [0.0]
    with store_opener(state, monotonic=lambda: now[0]) as open_one:
        store = open_one()
        awaited(store.write(puts("x")))
        known = store.poll()
        with locked(state):
            now[0] += LOCKED_LIMIT - 0.001
            assert (store.poll(), store.is_current, store.is_reliable) == (known, False, True)
            with pytest.raises(StateError, match="another process"):
                store.read_grants()
            now[0] += 0.001
            assert (store.poll(), store.is_reliable, store.problem) == (known, False, None)
        assert (store.poll(), store.is_current, store.is_reliable) == (known, True, True)


@pytest.mark.slow
def test_a_full_disk_refuses_what_would_need_to_be_remembered(state: Path) -> None:
    """And leaves what was stored before, also for what is stored once there is room again."""

    def limited() -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (256 * 1024, 256 * 1024))
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)

    program = f"""
        from pathlib import Path
        from tests.host.storage.test_sqlite import fill
        fill(Path({str(state)!r}))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], preexec_fn=limited, capture_output=True, text=True, check=True
    )
    kept = done.stdout.split()
    assert kept
    assert "the database" in done.stderr
    with opened(state) as store:
        assert sorted(stored(store)) == sorted(kept)
        awaited(store.write(puts("more")))


def fill(state: Path) -> None:
    """Print the name of each item that was stored until none can be."""
    item = StoredItem(ApprovedDefinition("sha256:1", b"x" * 20_000, 1.0, "console"))
    with opened(state) as store:
        for number in range(100):
            try:
                awaited(store.write(puts(f"x{number}", item)))
            except StateError as problem:
                print(problem, file=sys.stderr)
                return
            print(f"x{number}", flush=True)
