"""The store on disk: one SQLite database for all configurations of a state directory.

    colonnade.db     the database; every host and command of the user works on it at the same time
    run/store.lock   locked (shared) by every process that has the database open

There are two connections: the writer, used in a worker thread, carries out one batch of changes after another and
waits up to BUSY_LIMIT for other processes; the reader, used in the event loop, is for what is small and never waits.

The journal is truncated, and synced in full, at the end of each transaction. Write-ahead logging would gain nothing,
since what is read comes from memory, and before SQLite 3.51.3 several processes can lose a write with it (see its
release notes, "WAL-reset bug").

The file is never opened but by SQLite once a connection exists: closing another descriptor of it would drop the locks
of this process (SQLite documentation, "How To Corrupt An SQLite Database File", 2.2).
"""

from __future__ import annotations

import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, final

import trio

from host.storage import sqlite_file
from host.storage.directory import ConfigDirectory, State
from host.storage.sql import (
    GRANT,
    ITEM_COLUMNS,
    REVISIONS,
    Database,
    Rows,
    RunInThread,
    Store,
    Transaction,
    Write,
    marks,
)
from host.storage.sqlite_file import BUSY, DAMAGE, connect, identity, insist, primary_code, transaction
from host.storage.store import (
    LOCKED_LIMIT,
    Revisions,
    StateError,
    StoredGrant,
    uptime,
)

S = TypeVar("S")
T = TypeVar("T")

APPLICATION_ID = 0x436F6C6F
SCHEMA_VERSION = 7
_SCHEMA = (
    """CREATE TABLE config (
        id TEXT PRIMARY KEY, definitions INTEGER NOT NULL, grants INTEGER NOT NULL, removed INTEGER NOT NULL, lost TEXT
    ) WITHOUT ROWID""",
    "CREATE TABLE closed_server (config TEXT, server TEXT, PRIMARY KEY (config, server)) WITHOUT ROWID",
    """CREATE TABLE item (
        config TEXT NOT NULL, server TEXT NOT NULL, kind TEXT NOT NULL, name TEXT NOT NULL, revision INTEGER NOT NULL,
        closed INTEGER NOT NULL, rejected TEXT,
        approved_fingerprint TEXT, approved_at REAL, approved_by TEXT,
        offered_fingerprint TEXT, offered_since REAL,
        approved_definition TEXT, offered_definition TEXT,
        PRIMARY KEY (config, server, kind, name)
    )""",
    "CREATE INDEX item_by_revision ON item (config, revision)",
    """CREATE TABLE person_grant (
        config TEXT NOT NULL, id TEXT NOT NULL, caller TEXT, server TEXT NOT NULL, kind TEXT NOT NULL,
        name TEXT NOT NULL, fingerprint TEXT NOT NULL, launch TEXT NOT NULL, rule TEXT NOT NULL, digest TEXT,
        conditions TEXT NOT NULL, scope TEXT NOT NULL, made REAL NOT NULL, expires REAL, made_by TEXT NOT NULL,
        retry INTEGER NOT NULL,
        PRIMARY KEY (config, id)
    )""",
)
_SCHEMA_3 = (  # what was remembered so far is found out again
    "DROP TABLE IF EXISTS remembered_server",
    "DROP TABLE IF EXISTS remembered_list",
    """CREATE TABLE remembered_server (
        config TEXT NOT NULL, server TEXT NOT NULL, identity TEXT NOT NULL, negotiated TEXT NOT NULL,
        stored INTEGER NOT NULL, PRIMARY KEY (config, server, identity)
    )""",
    """CREATE TABLE remembered_list (
        config TEXT NOT NULL, server TEXT NOT NULL, identity TEXT NOT NULL, kind TEXT NOT NULL, entries BLOB NOT NULL,
        PRIMARY KEY (config, server, identity, kind)
    )""",
)
_SCHEMA_4 = (
    "ALTER TABLE config ADD COLUMN credentials INTEGER NOT NULL DEFAULT 0",
    """CREATE TABLE credential (
        config TEXT NOT NULL, server TEXT NOT NULL, owner TEXT NOT NULL, resource TEXT NOT NULL, issuer TEXT NOT NULL,
        revision INTEGER NOT NULL, sealed TEXT NOT NULL, lease_holder TEXT, lease_until REAL,
        PRIMARY KEY (config, server, owner, resource, issuer)
    )""",
)
_SCHEMA_5 = (  # definitions of a stateless connection have kinds of their own: see `host.policy.pin_rules.column_of`
    """UPDATE item SET kind = 'stateless ' || kind WHERE kind <> 'launch' AND (
        SELECT negotiated LIKE '%"revision":"2026%' FROM remembered_server AS last
        WHERE last.config = item.config AND last.server = item.server ORDER BY stored DESC LIMIT 1
    )""",
)
_SCHEMA_6 = (  # those that are approved by now ran unconfined: see `host.policy.confinement`
    """CREATE TABLE unconfined (
        config TEXT NOT NULL, server TEXT NOT NULL, chosen INTEGER NOT NULL, PRIMARY KEY (config, server)
    ) WITHOUT ROWID""",
    """INSERT INTO unconfined SELECT config, server, 0 FROM item
        WHERE kind = 'launch' AND approved_fingerprint IS NOT NULL""",
)
_SCHEMA_7 = (
    """CREATE TABLE session (
        config TEXT NOT NULL, id TEXT NOT NULL, sealed TEXT NOT NULL, touched REAL NOT NULL, PRIMARY KEY (config, id)
    )""",
    "CREATE INDEX session_by_touched ON session (config, touched)",
)
_UPGRADES = (_SCHEMA, (), _SCHEMA_3, _SCHEMA_4, _SCHEMA_5, _SCHEMA_6, _SCHEMA_7)
"""The statements that lead from each version of the schema to the next one, from an empty database on."""


class _Damaged(Exception):
    """The file is not a sound database. The text says what SQLite found."""


@contextmanager
def open_store(
    state: State,
    source: Path,
    *,
    run_in_thread: RunInThread = trio.to_thread.run_sync,
    monotonic: Callable[[], float] = uptime,
    wall: Callable[[], float] = time.time,
) -> Iterator[SqliteStore]:
    """The store of the configuration file `source`, for the block. Made if it is not there.

    Raises:
        StateError: it cannot be opened, or was made by a newer version.
    """
    directory = state.for_config(source)
    with _hold_lock(state.run / "store.lock") as lock:
        path = state.path / "colonnade.db"
        try:
            writer = _open_database(path)
        except _Damaged as problem:
            _set_aside(path, lock, problem)
            writer = _open_database(path)
        with closing(writer):
            _adopt(writer, directory)
            with closing(connect(f"{path.absolute().as_uri()}?mode=ro")) as reader:
                yield SqliteStore(path, directory.id, writer, reader, run_in_thread, monotonic, wall)


@final
class SqliteStore(Store):
    """Made by `open_store` only."""

    unstorable = (sqlite3.Error, UnicodeEncodeError, StateError)
    definitions_columns = "CAST(approved_definition AS BLOB), CAST(offered_definition AS BLOB)"
    order = "rowid"

    def __init__(
        self,
        path: Path,
        config: str,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        run_in_thread: RunInThread,
        monotonic: Callable[[], float],
        wall: Callable[[], float],
    ) -> None:
        super().__init__(config, run_in_thread)
        self._path = path
        self._writer = writer
        self._reader = reader
        self._monotonic = monotonic
        self._wall = wall
        self._opened_file = identity(path)
        self._data_version: int | None = None
        self._revisions = Revisions()
        self._polled_at = monotonic()
        self.poll()

    def poll(self) -> Revisions:
        if self.problem is not None:
            return self._revisions
        if identity(self._path) != self._opened_file:
            self._fail("was removed or replaced")
            return self._revisions
        try:
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
            if version != self._data_version:
                row = self._reader.execute(REVISIONS, (self._config,)).fetchone()
                if row is None:
                    self._fail("does not hold this configuration any more")
                    return self._revisions
                self._data_version, self._revisions = version, Revisions(*row)
            self._polled_at, self.is_current = self._monotonic(), True
        except sqlite3.Error as problem:
            self.is_current = False
            self._notice(problem)
        return self._revisions

    @property
    def is_reliable(self) -> bool:
        return self.problem is None and (self.is_current or self._monotonic() - self._polled_at < LOCKED_LIMIT)

    def now(self) -> float:
        return self._wall()

    def _is_at(self, revision: int) -> bool:
        return self.poll().definitions == revision and self.is_current

    async def _read_rows(self, since: int) -> Rows:
        if self.problem is not None:
            raise StateError(self.problem)
        return await self._read(self.select_rows, since)

    def read_grants(self) -> list[StoredGrant]:
        try:
            return self.list_grants(self._reader, self._config)
        except sqlite3.Error as problem:
            raise self._as_state_error(problem) from problem

    # In a worker thread

    def _commit(self, batch: Sequence[Write[Any]]) -> None:
        super()._commit(batch)
        if identity(self._path) != self._opened_file:
            # What was just written went to a file that nobody will find again.
            self._fail("was removed or replaced")
            raise StateError(str(self.problem))

    @contextmanager
    def _transaction(self) -> Iterator[Database]:
        with transaction(self._writer):
            yield self._writer

    def _change(self, database: Database) -> Transaction:
        return _SqliteTransaction(self, database, self._config)

    def _select(self, select: Callable[[Database, str, S], T], what: S) -> T:
        try:
            with self._writer_lock:
                return insist(lambda: _in_one_moment(self._writer, lambda reader: select(reader, self._config, what)))
        except sqlite3.Error as problem:
            raise self._as_state_error(problem) from problem

    # Problems

    def _fail(self, what: str) -> None:
        self.problem = f"the database {self._path} {what} while this program ran; start it again"
        self.is_current = False

    def _notice(self, problem: sqlite3.Error) -> None:
        if self.problem is None and identity(self._path) != self._opened_file:
            self._fail("was removed or replaced")  # SQLite says that it is read-only
        if self.problem is None and primary_code(problem) in DAMAGE:
            self.problem = f"the database {self._path} is damaged ({problem}); stop all hosts, then start one again"

    def _hits_all(self, problem: Exception) -> bool:
        return _is_busy(problem)

    def _as_state_error(self, problem: Exception) -> StateError:
        if isinstance(problem, StateError):
            return problem
        if isinstance(problem, sqlite3.Error):
            self._notice(problem)
        return _state_error(self._path, problem) if self.problem is None else StateError(self.problem)


@final
class _SqliteTransaction(Transaction):
    def replace_items(self, rows: Sequence[tuple[Any, ...]]) -> None:
        values = f"{marks(12)}, CAST(? AS TEXT), CAST(? AS TEXT)"
        self._database.executemany(f"INSERT OR REPLACE INTO item ({ITEM_COLUMNS}) VALUES ({values})", rows)

    def replace_grant(self, row: tuple[Any, ...]) -> None:
        query = f"INSERT OR REPLACE INTO person_grant (config, {GRANT}) VALUES ({marks(16)})"
        self._database.execute(query, row)


def _in_one_moment(connection: sqlite3.Connection, select: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN")
    try:
        return select(connection)
    finally:
        connection.execute("ROLLBACK")


# Opening


@contextmanager
def _hold_lock(path: Path) -> Iterator[int]:
    """The lock file's descriptor; others may hold the lock too, but nobody can set the database aside."""
    try:
        lock = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise StateError(f"{path} cannot be opened: {problem.strerror}") from problem
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            text = f"another process holds {path}, since it puts a damaged database aside; try again in a moment"
            raise StateError(text) from None
        yield lock
    finally:
        os.close(lock)


def _open_database(path: Path) -> sqlite3.Connection:
    """The connection that writes, to a database that is sound and of this schema.

    Raises:
        _Damaged: it is not sound.
        StateError: it cannot be opened, or is not for this version.
    """
    try:
        with suppress(FileExistsError):  # SQLite itself would make it readable for others, and follow links
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
        found = path.lstat()
    except OSError as problem:
        raise StateError(f"the database {path} cannot be opened: {problem.strerror}") from problem
    if not stat.S_ISREG(found.st_mode):
        raise StateError(f"{path} is not a regular file, so it cannot be the database")
    if found.st_uid != os.geteuid():
        raise StateError(f"the database {path} belongs to another user ({found.st_uid})")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise StateError(f"the database {path} is open to others (mode {mode:04o}): `chmod 600 {path}`")
    try:
        connection = connect(path.absolute().as_uri())
        try:
            insist(lambda: _prepare(connection, path))
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as problem:
        if primary_code(problem) in DAMAGE:
            raise _Damaged(str(problem)) from problem
        raise _state_error(path, problem) from problem
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    connection.execute("PRAGMA synchronous = FULL")
    # A text that is replaced because it holds a secret must not stay in the file.
    connection.execute("PRAGMA secure_delete = ON")
    # For a file that somebody may have damaged or changed (SQLite documentation, "Defense Against The Dark Arts"), as
    # `quick_check` below.
    connection.execute("PRAGMA cell_size_check = ON")
    connection.execute("PRAGMA trusted_schema = OFF")
    connection.execute("PRAGMA journal_mode = TRUNCATE")
    with transaction(connection):
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
        (tables,) = connection.execute("SELECT count(*) FROM sqlite_master").fetchone()
        if (application, version, tables) == (0, 0, 0):
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        elif application != APPLICATION_ID:
            raise StateError(f"{path} is a database of another program; move it away")
        elif version > SCHEMA_VERSION:
            raise StateError(
                f"{path} was written by a newer version of Colonnade (its schema is {version}, this version knows "
                f"{SCHEMA_VERSION}): run that version, or name another state directory with COLONNADE_STATE"
            )
        if version < SCHEMA_VERSION:
            for statements in _UPGRADES[version:]:
                for statement in statements:
                    connection.execute(statement)
            connection.execute(f"PRAGMA user_version = {SCHEMA_VERSION}")
    (check,) = connection.execute("PRAGMA quick_check(1)").fetchone()
    if check != "ok":
        raise _Damaged(check)


def _set_aside(path: Path, lock: int, damage: _Damaged) -> None:
    """Keep a damaged database under another name, if no other process has it open."""
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        text = (
            f"the database {path} is damaged ({damage}), and another process has it open: stop every host and command "
            f"of Colonnade, then start one again"
        )
        raise StateError(text) from damage
    try:
        kept = path.with_name(f"{path.name}.damaged-{datetime.now(UTC):%Y%m%dT%H%M%S%fZ}")
        os.rename(path, kept)
        with suppress(FileNotFoundError):  # left behind, a journal would be played back into the next database
            os.rename(f"{path}-journal", f"{kept}-journal")
    except OSError as problem:
        raise StateError(f"the database {path} is damaged and cannot be renamed: {problem.strerror}") from problem
    finally:
        fcntl.flock(lock, fcntl.LOCK_SH)


def _adopt(connection: sqlite3.Connection, directory: ConfigDirectory) -> None:
    """Make the configuration known to the database."""
    try:
        with transaction(connection):
            query = "SELECT 1 FROM config WHERE id = ?"
            if connection.execute(query, (directory.id,)).fetchone() is None:
                lost = "the database that held the approved definitions is gone" if directory.was_stored else None
                query = "INSERT INTO config (id, definitions, grants, removed, lost) VALUES (?, 0, 0, 0, ?)"
                connection.execute(query, (directory.id, lost))
        directory.set_stored()  # afterwards: the mark without a row means that the database was deleted
    except sqlite3.Error as problem:
        raise _state_error(directory.path, problem) from problem
    except OSError as problem:
        raise StateError(f"the state directory {directory.path} cannot be used: {problem.strerror}") from problem


def _state_error(path: Path, problem: Exception) -> StateError:
    if _is_busy(problem):
        return StateError(f"another process has held {path} for {sqlite_file.BUSY_LIMIT:g} s; end it, then try again")
    return StateError(f"the database {path} cannot be used: {problem}")


def _is_busy(problem: Exception) -> bool:
    """Whether another process holds the database."""
    return isinstance(problem, sqlite3.Error) and primary_code(problem) in BUSY
