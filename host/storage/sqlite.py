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
import random
import sqlite3
import stat
import threading
import time
import zlib
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Generic, Protocol, TypeVar, cast, final

import trio

from host.slices import pause, run_now
from host.storage.directory import ConfigDirectory, State
from host.storage.store import (
    LOCKED_LIMIT,
    ApprovedDefinition,
    CredentialKey,
    OfferedDefinition,
    RememberedServer,
    Revisions,
    StateError,
    Store,
    StoredCredential,
    StoredDefinitions,
    StoredGrant,
    StoredItem,
    Transaction,
)
from host.subject import Item, Subject

S = TypeVar("S")
T = TypeVar("T")

BUSY_LIMIT = 1.0
"""Seconds to wait for another process's transaction. It takes milliseconds, unless that process was stopped in it."""

APPLICATION_ID = 0x436F6C6F
SCHEMA_VERSION = 6
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
_UPGRADES = (_SCHEMA, (), _SCHEMA_3, _SCHEMA_4, _SCHEMA_5, _SCHEMA_6)
"""The statements that lead from each version of the schema to the next one, from an empty database on."""
_ITEM = "closed, rejected, approved_fingerprint, approved_at, approved_by, offered_fingerprint, offered_since"
_DEFINITIONS = "CAST(approved_definition AS BLOB), CAST(offered_definition AS BLOB)"
_GRANT = (
    "id, caller, server, kind, name, fingerprint, launch, rule, digest, conditions, scope, made, expires, made_by, "
    "retry"
)
_OF_KEY = "config = ? AND server = ? AND owner = ?"
_CREDENTIAL = "resource, issuer, sealed, revision"
_REVISIONS = "SELECT definitions, grants, credentials FROM config WHERE id = ?"
_MAX_IDENTITIES = 4
"""Identities under which a server is remembered, those that were stored last."""
_NO_CONFIG = "the database does not hold this configuration any more; start the host again"
_BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
_DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)


class RunInThread(Protocol):
    """Runs a function in a thread, and returns its result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class _Damaged(Exception):
    """The file is not a sound database. The text says what SQLite found."""


@contextmanager
def open_store(
    state: State,
    source: Path,
    *,
    run_in_thread: RunInThread = trio.to_thread.run_sync,
    monotonic: Callable[[], float] = time.monotonic,
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
            with closing(_connect(f"{path.absolute().as_uri()}?mode=ro")) as reader:
                yield SqliteStore(path, directory.id, writer, reader, run_in_thread, monotonic)


@final
class SqliteStore(Store):
    """Made by `open_store` only."""

    def __init__(
        self,
        path: Path,
        config: str,
        writer: sqlite3.Connection,
        reader: sqlite3.Connection,
        run_in_thread: RunInThread,
        monotonic: Callable[[], float],
    ) -> None:
        self._path = path
        self._config = config
        self._writer = writer
        self._writer_lock = threading.Lock()
        self._reader = reader
        self._run_in_thread = run_in_thread
        self._monotonic = monotonic
        self._opened_file = _identity(path)
        self._data_version: int | None = None
        self._revisions = Revisions()
        self._polled_at = monotonic()
        self._queue: list[_Write[Any]] = []
        self._turn = trio.Lock()
        self.poll()

    def poll(self) -> Revisions:
        if self.problem is not None:
            return self._revisions
        if _identity(self._path) != self._opened_file:
            self._fail("was removed or replaced")
            return self._revisions
        try:
            (version,) = self._reader.execute("PRAGMA data_version").fetchone()
            if version != self._data_version:
                row = self._reader.execute(_REVISIONS, (self._config,)).fetchone()
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

    async def read_definitions(self, known: Callable[[], int] = lambda: -1) -> StoredDefinitions | None:
        if self._is_at(known()):
            return None
        async with self._turn:
            if self._is_at(known()):
                return None
            if self.problem is not None:
                raise StateError(self.problem)
            return await _definitions(await self._read(_select_rows, known()))

    def _is_at(self, revision: int) -> bool:
        return self.poll().definitions == revision and self.is_current

    def load_definitions(self) -> StoredDefinitions:
        return run_now(_definitions(self._select(_select_rows, 0)))

    async def read_remembered(self, server: str, identity: str) -> RememberedServer | None:
        return await self._read(_select_remembered, (server, identity))

    async def _read(self, select: Callable[[sqlite3.Connection, str, S], T], what: S) -> T:
        """The rows that `select` finds, which may be many: a worker thread reads them."""
        return await self._run_in_thread(lambda: self._select(select, what))

    async def read_credentials(self) -> dict[CredentialKey, StoredCredential]:
        return await self._read(_select_credentials, None)

    def read_grants(self) -> list[StoredGrant]:
        try:
            return _read_grants(self._reader, self._config)
        except sqlite3.Error as problem:
            raise self._as_state_error(problem) from problem

    def load_grants(self) -> tuple[list[StoredGrant], int]:
        return self._select(_select_grants, None)

    async def write(
        self, change: Callable[[Transaction], T], on_commit: Callable[[T, Revisions], object] | None = None
    ) -> T:
        write = _Write(change, on_commit)
        self._queue.append(write)
        try:
            async with self._turn:
                if write in self._queue:  # else it was in the batch of another one
                    batch, self._queue = self._queue, []
                    with trio.CancelScope(shield=True):  # the others, who wait for their turn, take theirs for stored
                        await self._run_in_thread(lambda: self._commit_or_split(batch))
                    _announce(batch)
        finally:
            if write in self._queue:  # this was cancelled before its turn
                self._queue.remove(write)
        return write.result()

    # In a worker thread

    def _commit_or_split(self, batch: Sequence[_Write[Any]]) -> None:
        """Carry these out in one transaction; each then has its result or its error."""
        with self._writer_lock:
            try:
                self._commit(batch)
            except _UNSTORABLE as problem:
                # Each try waits up to BUSY_LIMIT, and whoever stores cannot be cancelled meanwhile.
                if len(batch) == 1 or _is_busy(problem):
                    for write in batch:
                        write.error = self._as_state_error(problem)
                    return
                for write in batch:  # what is wrong may be wrong with one of them only
                    try:
                        self._commit([write])
                    except _UNSTORABLE as own:
                        write.error = self._as_state_error(own)

    def _commit(self, batch: Sequence[_Write[Any]]) -> None:
        if self.problem is not None:
            raise StateError(self.problem)
        with _transaction(self._writer):
            for write in batch:
                self._writer.execute("SAVEPOINT change")
                transaction = _SqliteTransaction(self._writer, self._config)
                try:
                    write.value = write.change(transaction)
                    write.error = None
                except _UNSTORABLE:
                    raise
                except Exception as problem:  # noqa: BLE001 - it is raised where the change was asked for
                    write.error = problem
                    self._writer.execute("ROLLBACK TO change")
                write.revisions = transaction.revisions()
                self._writer.execute("RELEASE change")
        if _identity(self._path) != self._opened_file:
            # What was just written went to a file that nobody will find again.
            self._fail("was removed or replaced")
            raise StateError(str(self.problem))

    def _select(self, select: Callable[[sqlite3.Connection, str, S], T], what: S) -> T:
        """The rows that `select` finds, all of them as of one moment."""
        try:
            with self._writer_lock:
                return _insist(lambda: _in_one_moment(self._writer, lambda reader: select(reader, self._config, what)))
        except sqlite3.Error as problem:
            raise self._as_state_error(problem) from problem

    # Problems

    def _fail(self, what: str) -> None:
        self.problem = f"the database {self._path} {what} while this program ran; start it again"
        self.is_current = False

    def _notice(self, problem: sqlite3.Error) -> None:
        if self.problem is None and _identity(self._path) != self._opened_file:
            self._fail("was removed or replaced")  # SQLite says that it is read-only
        if self.problem is None and _code(problem) in _DAMAGE:
            self.problem = f"the database {self._path} is damaged ({problem}); stop all hosts, then start one again"

    def _as_state_error(self, problem: Exception) -> StateError:
        if isinstance(problem, StateError):
            return problem
        if isinstance(problem, sqlite3.Error):
            self._notice(problem)
        return _state_error(self._path, problem) if self.problem is None else StateError(self.problem)


_UNSTORABLE = (sqlite3.Error, UnicodeEncodeError, StateError)


@final
class _Write(Generic[T]):
    """A change that is to be stored."""

    def __init__(self, change: Callable[[Transaction], T], on_commit: Callable[[T, Revisions], object] | None) -> None:
        self.change = change
        self.on_commit = on_commit
        self.value: T | None = None
        self.error: Exception | None = None
        self.revisions = Revisions()

    def result(self) -> T:
        if self.error is not None:
            raise self.error
        return cast("T", self.value)


def _announce(batch: Sequence[_Write[Any]]) -> None:
    for write in batch:
        if write.error is None and write.on_commit is not None:
            write.on_commit(write.value, write.revisions)


_Rows = tuple[int, bool, str | None, list[str], dict[str, bool], list[tuple[Any, ...]]]


async def _definitions(found: _Rows) -> StoredDefinitions:
    revision, complete, lost, closed, unconfined, rows = found
    items: dict[tuple[str, str], dict[str, StoredItem]] = {}
    for server, kind, name, *columns in rows:  # made here, in slices: in a thread that would stop the event loop
        await pause()
        items.setdefault((server, kind), {})[name] = _item(columns)
    return StoredDefinitions(revision, complete, items, lost, frozenset(closed), unconfined)


def _in_one_moment(connection: sqlite3.Connection, select: Callable[[sqlite3.Connection], T]) -> T:
    connection.execute("BEGIN")
    try:
        return select(connection)
    finally:
        connection.execute("ROLLBACK")


def _select_rows(connection: sqlite3.Connection, config: str, since: int) -> _Rows:
    query = "SELECT definitions, removed, lost FROM config WHERE id = ?"
    row = connection.execute(query, (config,)).fetchone()
    if row is None:
        raise StateError(_NO_CONFIG)
    revision, removed, lost = row
    query = "SELECT server FROM closed_server WHERE config = ?"
    closed = [server for (server,) in connection.execute(query, (config,))]
    query = "SELECT server, chosen FROM unconfined WHERE config = ?"
    unconfined = {server: bool(chosen) for server, chosen in connection.execute(query, (config,))}
    # A revision that was never reached: a copy from before it was put in the place of the file.
    complete = since <= 0 or removed > since or since > revision
    query = f"SELECT server, kind, name, {_ITEM}, {_DEFINITIONS} FROM item WHERE config = ? AND revision > ?"
    since = 0 if complete else since
    rows = connection.execute(f"{query} ORDER BY revision, rowid", (config, since)).fetchall()
    return revision, complete, lost, closed, unconfined, rows


def _select_remembered(connection: sqlite3.Connection, config: str, sought: tuple[str, str]) -> RememberedServer | None:
    """`sought`: a server and an identity of it."""
    key, where = (config, *sought), "WHERE config = ? AND server = ? AND identity = ?"
    row = connection.execute(f"SELECT negotiated FROM remembered_server {where}", key).fetchone()
    if row is None:
        return None
    rows = connection.execute(f"SELECT kind, entries FROM remembered_list {where}", key)
    try:
        return RememberedServer(sought[1], row[0], {kind: zlib.decompress(entries) for kind, entries in rows})
    except zlib.error:
        return None


def _select_credentials(connection: sqlite3.Connection, config: str, _: None) -> dict[CredentialKey, StoredCredential]:
    query = f"SELECT server, owner, {_CREDENTIAL} FROM credential WHERE config = ? ORDER BY server, owner"
    rows = connection.execute(query, (config,))
    return {CredentialKey(server, owner): StoredCredential(*row) for server, owner, *row in rows}


def _select_grants(connection: sqlite3.Connection, config: str, _: None) -> tuple[list[StoredGrant], int]:
    row = connection.execute(_REVISIONS, (config,)).fetchone()
    if row is None:
        raise StateError(_NO_CONFIG)
    return _read_grants(connection, config), Revisions(*row).grants


def _read_grants(connection: sqlite3.Connection, config: str) -> list[StoredGrant]:
    rows = connection.execute(f"SELECT {_GRANT} FROM person_grant WHERE config = ? ORDER BY rowid", (config,))
    return [_grant(row) for row in rows]


@final
class _SqliteTransaction(Transaction):
    def __init__(self, connection: sqlite3.Connection, config: str) -> None:
        self._connection = connection
        self._config = config
        self._changes_definitions = False
        self._changes_grants = False

    def revision(self) -> int:
        return self.revisions().definitions

    def revisions(self) -> Revisions:
        row = self._connection.execute(_REVISIONS, (self._config,)).fetchone()
        if row is None:
            raise StateError(_NO_CONFIG)
        return Revisions(*row)

    def changed_since(self, revision: int, server: str, kind: str) -> bool:
        query = """SELECT removed > ? OR EXISTS (
            SELECT 1 FROM item WHERE config = config.id AND revision > ? AND server = ? AND kind = ?
        ) FROM config WHERE id = ?"""
        (changed,) = self._connection.execute(query, (revision, revision, server, kind, self._config)).fetchone()
        return bool(changed)

    def item(self, server: str, kind: str, name: str) -> StoredItem | None:
        query = f"SELECT {_ITEM}, {_DEFINITIONS} FROM item WHERE config = ? AND server = ? AND kind = ? AND name = ?"
        row = self._connection.execute(query, (self._config, server, kind, name)).fetchone()
        return None if row is None else _item(row)

    def put_items(self, server: str, kind: str, items: Mapping[str, StoredItem | None]) -> None:
        revision = self._new_revision()
        key = (self._config, server, kind)
        gone = [(*key, name) for name, item in items.items() if item is None]
        if gone:
            self._connection.execute("UPDATE config SET removed = ? WHERE id = ?", (revision, self._config))
            query = "DELETE FROM item WHERE config = ? AND server = ? AND kind = ? AND name = ?"
            self._connection.executemany(query, gone)
        rows = [(*key, name, revision, *_columns(item)) for name, item in items.items() if item is not None]
        columns = f"config, server, kind, name, revision, {_ITEM}, approved_definition, offered_definition"
        values = f"{_marks(12)}, CAST(? AS TEXT), CAST(? AS TEXT)"
        self._connection.executemany(f"INSERT OR REPLACE INTO item ({columns}) VALUES ({values})", rows)

    def clear_lost(self) -> None:
        self._new_revision()
        self._connection.execute("UPDATE config SET lost = NULL WHERE id = ?", (self._config,))

    def close_servers(self, servers: Iterable[str]) -> None:
        self._new_revision()
        query = "INSERT OR IGNORE INTO closed_server VALUES (?, ?)"
        self._connection.executemany(query, [(self._config, server) for server in servers])

    def put_unconfined(self, server: str, chosen: bool | None) -> None:
        self._new_revision()
        query = "DELETE FROM unconfined WHERE config = ? AND server = ?"
        self._connection.execute(query, (self._config, server))
        if chosen is not None:
            self._connection.execute("INSERT INTO unconfined VALUES (?, ?, ?)", (self._config, server, chosen))

    def put_remembered(self, server: str, remembered: RememberedServer) -> None:
        config, identity = self._config, remembered.identity
        query = "SELECT identity, stored FROM remembered_server WHERE config = ? AND server = ? ORDER BY stored DESC"
        known = self._connection.execute(query, (config, server)).fetchall()
        stored = known[0][1] + 1 if known else 0
        query = "INSERT OR REPLACE INTO remembered_server VALUES (?, ?, ?, ?, ?)"
        self._connection.execute(query, (config, server, identity, remembered.negotiated, stored))
        rows = [
            (config, server, identity, kind, zlib.compress(entries, 1)) for kind, entries in remembered.lists.items()
        ]
        self._connection.executemany("INSERT OR REPLACE INTO remembered_list VALUES (?, ?, ?, ?, ?)", rows)
        others = [each for each, _ in known if each != identity]
        for table in ("remembered_server", "remembered_list"):
            query = f"DELETE FROM {table} WHERE config = ? AND server = ? AND identity = ?"
            self._connection.executemany(query, [(config, server, each) for each in others[_MAX_IDENTITIES - 1 :]])

    def grants(self) -> list[StoredGrant]:
        return _read_grants(self._connection, self._config)

    def put_grant(self, grant: StoredGrant) -> None:
        self._new_grants_revision()
        query = f"INSERT OR REPLACE INTO person_grant (config, {_GRANT}) VALUES ({_marks(16)})"
        of, item = grant.subject, grant.subject.item
        subject = (of.caller, item.server, item.kind, item.name, of.fingerprint, of.launch, of.rule, of.digest)
        rest = (grant.conditions, grant.scope, grant.made, grant.expires, grant.by, grant.retry)
        self._connection.execute(query, (self._config, grant.id, *subject, *rest))

    def remove_grants(self, ids: frozenset[str], expired_at: float) -> None:
        self._new_grants_revision()
        query = "DELETE FROM person_grant WHERE config = ? AND id = ?"
        self._connection.executemany(query, [(self._config, id) for id in sorted(ids)])
        query = "DELETE FROM person_grant WHERE config = ? AND expires <= ?"
        self._connection.execute(query, (self._config, expired_at))

    def credential(self, key: CredentialKey) -> StoredCredential | None:
        query = f"SELECT {_CREDENTIAL} FROM credential WHERE {_OF_KEY}"
        row = self._connection.execute(query, (self._config, *key)).fetchone()
        return None if row is None else StoredCredential(*row)

    def put_credential(self, key: CredentialKey, credential: StoredCredential) -> StoredCredential:
        self.remove_credential(key)
        stored = credential._replace(revision=self.revisions().credentials)
        query = f"INSERT INTO credential (config, server, owner, {_CREDENTIAL}) VALUES ({_marks(7)})"
        self._connection.execute(query, (self._config, *key, *stored))
        return stored

    def remove_credential(self, key: CredentialKey) -> None:
        query = "UPDATE config SET credentials = credentials + 1 WHERE id = ?"
        self._connection.execute(query, (self._config,))
        self._connection.execute(f"DELETE FROM credential WHERE {_OF_KEY}", (self._config, *key))

    def lease_credential(self, key: CredentialKey, holder: str, now: float, until: float) -> bool:
        free = "lease_holder IS NULL OR lease_holder = ? OR lease_until <= ?"
        query = f"UPDATE credential SET lease_holder = ?, lease_until = ? WHERE {_OF_KEY} AND ({free})"
        return self._connection.execute(query, (holder, until, self._config, *key, holder, now)).rowcount == 1

    def end_lease(self, key: CredentialKey, holder: str) -> None:
        query = f"UPDATE credential SET lease_holder = NULL WHERE {_OF_KEY} AND lease_holder = ?"
        self._connection.execute(query, (self._config, *key, holder))

    def _new_revision(self) -> int:
        if not self._changes_definitions:
            self._changes_definitions = True
            self._connection.execute("UPDATE config SET definitions = definitions + 1 WHERE id = ?", (self._config,))
        return self.revision()

    def _new_grants_revision(self) -> None:
        if not self._changes_grants:
            self._changes_grants = True
            self._connection.execute("UPDATE config SET grants = grants + 1 WHERE id = ?", (self._config,))


def _marks(count: int) -> str:
    return ", ".join("?" * count)


def _columns(item: StoredItem) -> tuple[object, ...]:
    approved, offered = item.approved, item.offered
    return (
        item.closed,
        item.rejected,
        *((None,) * 3 if approved is None else (approved.fingerprint, approved.at, approved.by)),
        *((None,) * 2 if offered is None else (offered.fingerprint, offered.since)),
        None if approved is None else approved.definition,
        None if offered is None else offered.definition,
    )


def _item(columns: Sequence[Any]) -> StoredItem:
    closed, rejected, approved_fp, at, by, offered_fp, since, approved, offered = columns
    return StoredItem(
        None if approved_fp is None else ApprovedDefinition(approved_fp, approved, at, by),
        None if offered_fp is None else OfferedDefinition(offered_fp, offered, since),
        rejected,
        bool(closed),
    )


def _grant(row: Sequence[Any]) -> StoredGrant:
    id, caller, server, kind, name, fingerprint, launch, rule, digest, conditions, scope, made, expires, by, retry = row
    subject = Subject(Item(server, kind, name), caller, None, fingerprint, launch, rule, digest)
    return StoredGrant(id, subject, conditions, scope, made, expires, by, bool(retry))


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


def _connect(name: str) -> sqlite3.Connection:
    """A connection that never waits for another one: see `_insist`."""
    return sqlite3.connect(name, timeout=0.0, isolation_level=None, check_same_thread=False, uri=True)


def _insist(work: Callable[[], T]) -> T:
    """Do what another process may keep from being done for a moment, as often as needed within BUSY_LIMIT.

    SQLite's own waiting sleeps up to 0.1 s between two tries, and beside one or two processes that write without a
    pause it found no gap within a second (measured).
    """
    deadline = time.monotonic() + BUSY_LIMIT
    while True:
        try:
            return work()
        except sqlite3.OperationalError as problem:
            if _code(problem) not in _BUSY or time.monotonic() >= deadline:
                raise
        threading.Event().wait(random.uniform(0.0005, 0.002))


@contextmanager
def _transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """The right to change the database, for the block; on disk when the block ends, undone if it raises."""
    _insist(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        yield
        _insist(lambda: connection.execute("COMMIT"))  # readers hold it up
    except BaseException:
        with suppress(sqlite3.Error):  # the first problem is the one to raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise


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
        connection = _connect(path.absolute().as_uri())
        try:
            _insist(lambda: _prepare(connection, path))
        except BaseException:
            connection.close()
            raise
    except sqlite3.Error as problem:
        if _code(problem) in _DAMAGE:
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
    with _transaction(connection):
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
        with _transaction(connection):
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
        return StateError(f"another process has held {path} for {BUSY_LIMIT:g} s; end it, then try again")
    return StateError(f"the database {path} cannot be used: {problem}")


def _is_busy(problem: Exception) -> bool:
    """Whether another process holds the database."""
    return isinstance(problem, sqlite3.Error) and _code(problem) in _BUSY


def _code(problem: sqlite3.Error) -> int:
    """The primary result code (SQLite documentation, "Result and Error Codes")."""
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


def _identity(path: Path) -> tuple[int, int] | None:
    """The identity of a file (device and inode), which another file at the same path does not have."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino
