"""The store: definitions and grants of one configuration, as the policy reads and changes them, in SQL that both
databases take.

A store holds definitions (of each item that a server offers: what is approved, what is offered) and grants, and the
sessions that another process may go on with. Several processes share it. A change is one function that is given a
`Transaction`: all of it is on disk when `Store.write` returns, or none of it.

The event loop never waits for the disk or for the lock of another process: what is async waits in a worker thread, and
`poll` gives up at once where it would have to wait. Only `load_definitions` and `load_grants`, with which a command or
a host begins, wait where they are called.

Statements have `?` for values. What the databases say differently, and how each is opened, locked and followed, is in
`sqlite.py` and `postgres.py`.
"""

from __future__ import annotations

import threading
import time
import zlib
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, Generic, Protocol, TypeVar, cast, final

import trio

from host.slices import pause, run_now
from host.storage.store import (
    ApprovedDefinition,
    CredentialKey,
    OfferedDefinition,
    RememberedServer,
    Revisions,
    StateError,
    StoredCredential,
    StoredDefinitions,
    StoredGrant,
    StoredItem,
    StoredSession,
    TrimPlace,
)
from host.subject import Item, Subject

S = TypeVar("S")
T = TypeVar("T")

ITEM = "closed, rejected, approved_fingerprint, approved_at, approved_by, offered_fingerprint, offered_since"
ITEM_COLUMNS = f"config, server, kind, name, revision, {ITEM}, approved_definition, offered_definition"
GRANT = (
    "id, caller, server, kind, name, fingerprint, launch, rule, digest, conditions, scope, made, expires, made_by, "
    "retry"
)
_OF_KEY = "config = ? AND server = ? AND owner = ?"
_CREDENTIAL = "resource, issuer, sealed, revision"
REVISIONS = "SELECT definitions, grants, credentials FROM config WHERE id = ?"
BEGIN_CHANGE, UNDO_CHANGE, END_CHANGE = "SAVEPOINT change", "ROLLBACK TO change", "RELEASE change"
TRIM_BATCH = 250
"""Sessions that one statement removes at most, in some tens of milliseconds with a disk that syncs: others wait for it.
One statement for 50,000 that had expired held the database of SQLite for half a second."""
TRIM_PAGE = 10_000
"""Sessions that one statement looks at, to count them."""
_MAX_IDENTITIES = 4
"""Identities under which a server is remembered, those that were stored last."""
_NO_CONFIG = "the database does not hold this configuration any more; start the host again"


class RunInThread(Protocol):
    """Runs a function in a thread, and returns its result."""

    def __call__(self, work: Callable[[], T], /) -> Awaitable[T]: ...


class Cursor(Protocol):
    """The rows of a statement; both databases' own."""

    @property
    def rowcount(self) -> int: ...
    def fetchone(self) -> Any: ...
    def fetchall(self) -> list[Any]: ...


class Database(Protocol):
    """A connection on which statements are carried out."""

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Cursor: ...
    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> object: ...


@final
class Write(Generic[T]):
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


Rows = tuple[int, bool, str | None, list[str], dict[str, bool], list[tuple[Any, ...]]]
"""The parts of `StoredDefinitions`, with the server, kind, name and columns of each item."""


class Store(ABC):
    """The store of one configuration, shared with other processes. One batch of changes after another is one
    transaction, in a worker thread.

    Attributes:
        problem: a sentence for people if the store cannot be relied on: it was removed, replaced or damaged. Then
            nothing in it holds, and every `write` is refused, until the host is started again; or, if `problem_ends`,
            until it can be read again.
        is_current: whether the last `poll` saw all that is stored. Where it could not, another process has the store
            locked, or was killed while it wrote; `read_definitions` waits for the one and puts the other right.
        trouble: the reason, as a part of a sentence, if the store is not reliable and there is no `problem`.
        lag: the most seconds by which `now` is behind the clock of the store. What another process has stored may have
            been made so much later than now, by the clock that both share.
        commits, commit_seconds: transactions of this process that were to change something, and the time that they
            took together.
    """

    problem: str | None = None
    problem_ends: bool = False
    is_current: bool = True
    trouble: str = "the database is locked by another process"
    lag: float = 0.0
    commits: int = 0
    commit_seconds: float = 0.0

    unstorable: ClassVar[tuple[type[Exception], ...]]
    """The errors of a change that cannot be stored; all others are the change's own."""
    definitions_columns: ClassVar[str]
    """The columns of an item with its two definitions as bytes, and what the store has beside them."""

    def __init__(self, config: str, run_in_thread: RunInThread) -> None:
        self._config = config
        self._run_in_thread = run_in_thread
        self._writer_lock = threading.Lock()
        self._queue: list[Write[Any]] = []
        self._turn = trio.Lock()

    async def read_definitions(self, known: Callable[[], int] = lambda: -1) -> StoredDefinitions | None:
        """The definitions that changed after the known revision; all of them without one, and after 0. None if it is
        the present one, which costs next to nothing where this process stores nothing.

        `known` is called once all that this process has stored is announced (`write`), and no more of it is until
        this has returned. So what it stores itself is not read again, if `known` follows the revisions.

        Raises:
            StateError: they cannot be read.
        """
        if self._is_at(known()):
            return None
        async with self._turn:
            if self._is_at(known()):
                return None
            return await self._definitions(await self._read_rows(known()))

    @abstractmethod
    def poll(self) -> Revisions:
        """The revisions now, or the last ones seen if they cannot be read at once. Some 10 µs; never waits."""

    @abstractmethod
    def now(self) -> float:
        """Unix time by the clock of the store, which all its processes share."""

    @property
    @abstractmethod
    def is_reliable(self) -> bool:
        """Whether what was read last still counts: False if there is a `problem`, or if no `poll` could read the store
        for `LOCKED_LIMIT` seconds."""

    @abstractmethod
    def read_grants(self) -> list[StoredGrant]:
        """All grants. Never waits.

        Raises:
            StateError: they cannot be read now.
        """

    @abstractmethod
    def _is_at(self, revision: int) -> bool:
        """Whether that revision of the definitions is the present one, as far as this can be known at once."""

    @abstractmethod
    async def _read_rows(self, since: int) -> Rows: ...

    def load_definitions(self) -> StoredDefinitions:
        """All definitions, when a command begins: this thread waits. Raises as `read_definitions` does."""
        return run_now(self._definitions(self._select(self.select_rows, 0)))

    async def read_remembered(self, server: str, identity: str) -> RememberedServer | None:
        """The lists and capabilities that are remembered of this server under this identity; None if there are none.

        Raises:
            StateError: it cannot be read.
        """
        return await self._read(_select_remembered, (server, identity))

    async def read_credentials(self) -> dict[CredentialKey, StoredCredential]:
        """All credentials.

        Raises:
            StateError: they cannot be read.
        """
        return await self._read(select_credentials, None)

    async def read_session(self, id: str) -> StoredSession | None:
        """The session with this id; None if there is none.

        Raises:
            StateError: it cannot be read.
        """
        return await self._read(select_session, id)

    def load_grants(self) -> tuple[list[StoredGrant], int]:
        """All grants and their revision, when a process begins: this thread waits.

        Raises:
            StateError: they cannot be read.
        """
        return self._select(self.select_grants, None)

    async def _read(self, select: Callable[[Database, str, S], T], what: S) -> T:
        """The rows that `select` finds, which may be many: a worker thread reads them."""
        return await self._run_in_thread(lambda: self._select(select, what))

    async def write(
        self, change: Callable[[Transaction], T], on_commit: Callable[[T, Revisions], object] | None = None
    ) -> T:
        """Carry out the change, and give what it returned once it is on disk.

        `change` may run in a worker thread. `on_commit` is called with what it returned and the revisions that it led
        to, in the order in which changes were stored, before anything else happens in the event loop.

        Raises:
            StateError: it cannot be stored; nothing has changed.
            Exception: whatever `change` raised; nothing has changed.
        """
        write = Write(change, on_commit)
        self._queue.append(write)
        try:
            async with self._turn:
                if write in self._queue:  # else it was in the batch of another one
                    batch, self._queue = self._queue, []
                    with trio.CancelScope(shield=True):  # the others, who wait for their turn, take theirs for stored
                        began = time.monotonic()
                        await self._run_in_thread(lambda: self._commit_or_split(batch))
                        self.commits += 1
                        self.commit_seconds += time.monotonic() - began
                    self._announce(batch)
        finally:
            if write in self._queue:  # this was cancelled before its turn
                self._queue.remove(write)
        return write.result()

    def _announce(self, batch: Sequence[Write[Any]]) -> None:
        for write in batch:
            if write.error is None and write.on_commit is not None:
                write.on_commit(write.value, write.revisions)

    # In a worker thread

    def _commit_or_split(self, batch: Sequence[Write[Any]]) -> None:
        """Carry these out in one transaction; each then has its result or its error."""
        with self._writer_lock:
            try:
                self._commit(batch)
            except self.unstorable as problem:
                # Each try waits up to a second, and whoever stores cannot be cancelled meanwhile.
                if len(batch) == 1 or self._hits_all(problem):
                    for write in batch:
                        write.error = self._as_state_error(problem)
                    return
                for write in batch:  # what is wrong may be wrong with one of them only
                    try:
                        self._commit([write])
                    except self.unstorable as own:
                        write.error = self._as_state_error(own)

    def _commit(self, batch: Sequence[Write[Any]]) -> None:
        if self.problem is not None:
            raise StateError(self.problem)
        with self._transaction() as database:
            for write in batch:
                database.execute(BEGIN_CHANGE)
                transaction = self._change(database)
                try:
                    write.value = write.change(transaction)
                    write.error = None
                except self.unstorable:
                    raise
                except Exception as problem:  # noqa: BLE001 - it is raised where the change was asked for
                    write.error = problem
                    database.execute(UNDO_CHANGE)
                write.revisions = self._revisions_after(transaction, database)
                database.execute(END_CHANGE)

    def _revisions_after(self, transaction: Transaction, database: Database) -> Revisions:
        """Those that a change has led to."""
        return transaction.revisions()

    @abstractmethod
    def _transaction(self) -> AbstractContextManager[Database]:
        """The right to change the database, for the block; stored when the block ends, undone if it raises."""

    @abstractmethod
    def _change(self, database: Database) -> Transaction:
        """The transaction that one change is given."""

    @abstractmethod
    def _select(self, select: Callable[[Database, str, S], T], what: S) -> T:
        """The rows that `select` finds, all of them as of one moment; raises StateError."""

    @abstractmethod
    def _hits_all(self, problem: Exception) -> bool:
        """Whether no other change could be stored either."""

    @abstractmethod
    def _as_state_error(self, problem: Exception) -> StateError: ...

    # The rows

    async def _definitions(self, found: Rows) -> StoredDefinitions:
        revision, complete, lost, closed, unconfined, rows = found
        items: dict[tuple[str, str], dict[str, StoredItem]] = {}
        for server, kind, name, *columns in rows:  # made here, in slices: in a thread that would stop the event loop
            await pause()
            items.setdefault((server, kind), {})[name] = self.make_item((server, kind, name), columns)
        return StoredDefinitions(revision, complete, items, lost, frozenset(closed), unconfined)

    def select_rows(self, database: Database, config: str, since: int) -> Rows:
        query = "SELECT definitions, removed, lost FROM config WHERE id = ?"
        row = database.execute(query, (config,)).fetchone()
        if row is None:
            raise StateError(_NO_CONFIG)
        revision, removed, lost = row
        query = "SELECT server FROM closed_server WHERE config = ?"
        closed = [server for (server,) in database.execute(query, (config,)).fetchall()]
        unconfined = self.select_unconfined(database, config)
        # A revision that was never reached: a copy from before it was put in the place of the database.
        complete = since <= 0 or removed > since or since > revision
        query = f"SELECT server, kind, name, {ITEM}, {self.definitions_columns} FROM item"
        since = 0 if complete else since
        query = f"{query} WHERE config = ? AND revision > ? ORDER BY revision, {self.order}"
        return revision, complete, lost, closed, unconfined, database.execute(query, (config, since)).fetchall()

    def select_unconfined(self, database: Database, config: str) -> dict[str, bool]:
        query = "SELECT server, chosen FROM unconfined WHERE config = ?"
        return {server: bool(chosen) for server, chosen in database.execute(query, (config,)).fetchall()}

    order: ClassVar[str]
    """The column that grows with each row that is stored."""

    def select_item(self, database: Database, config: str, key: tuple[str, str, str]) -> StoredItem | None:
        query = f"SELECT {ITEM}, {self.definitions_columns} FROM item"
        where = "WHERE config = ? AND server = ? AND kind = ? AND name = ?"
        row = database.execute(f"{query} {where}", (config, *key)).fetchone()
        return None if row is None else self.make_item(key, row)

    def make_item(self, key: tuple[str, str, str], columns: Sequence[Any]) -> StoredItem:
        """The item of a row, by its server, kind and name."""
        closed, rejected, approved_fp, at, by, offered_fp, since, approved, offered, *_ = columns
        return StoredItem(
            None if approved_fp is None else ApprovedDefinition(approved_fp, approved, at, by),
            None if offered_fp is None else OfferedDefinition(offered_fp, offered, since),
            rejected,
            bool(closed),
        )

    def select_grants(self, database: Database, config: str, _: None) -> tuple[list[StoredGrant], int]:
        row = database.execute(REVISIONS, (config,)).fetchone()
        if row is None:
            raise StateError(_NO_CONFIG)
        return self.list_grants(database, config), Revisions(*row).grants

    def list_grants(self, database: Database, config: str) -> list[StoredGrant]:
        query = f"SELECT {GRANT} FROM person_grant WHERE config = ? ORDER BY {self.order}"
        return [make_grant(row) for row in database.execute(query, (config,)).fetchall()]


def make_grant(row: Sequence[Any]) -> StoredGrant:
    """The grant of a row of `GRANT`."""
    id, caller, server, kind, name, fingerprint, launch, rule, digest, conditions, scope, made, expires, by, retry = row
    subject = Subject(Item(server, kind, name), caller, None, fingerprint, launch, rule, digest)
    return StoredGrant(id, subject, conditions, scope, made, expires, by, bool(retry))


def _select_remembered(database: Database, config: str, sought: tuple[str, str]) -> RememberedServer | None:
    """`sought`: a server and an identity of it."""
    key, where = (config, *sought), "WHERE config = ? AND server = ? AND identity = ?"
    row = database.execute(f"SELECT negotiated FROM remembered_server {where}", key).fetchone()
    if row is None:
        return None
    rows = database.execute(f"SELECT kind, entries FROM remembered_list {where}", key).fetchall()
    try:
        return RememberedServer(sought[1], row[0], {kind: zlib.decompress(entries) for kind, entries in rows})
    except zlib.error:
        return None


def select_credentials(database: Database, config: str, _: None) -> dict[CredentialKey, StoredCredential]:
    """All credentials."""
    query = f"SELECT server, owner, {_CREDENTIAL} FROM credential WHERE config = ? ORDER BY server, owner"
    rows = database.execute(query, (config,)).fetchall()
    return {CredentialKey(server, owner): StoredCredential(*row) for server, owner, *row in rows}


def select_session(database: Database, config: str, id: str) -> StoredSession | None:
    """The session with this id; None if there is none."""
    query = "SELECT id, sealed, touched FROM session WHERE config = ? AND id = ?"
    row = database.execute(query, (config, id)).fetchone()
    return None if row is None else StoredSession(*row)


class Transaction(ABC):
    """One change of `store`, in which no other process can change it. All of it is undone if its function raises."""

    def __init__(self, store: Store, database: Database, config: str) -> None:
        self._store = store
        self._database = database
        self._config = config
        self._changes_definitions = False
        self._changes_grants = False

    @abstractmethod
    def replace_items(self, rows: Sequence[tuple[Any, ...]]) -> None:
        """Store rows of `ITEM_COLUMNS`, each in the place of the one with its key."""

    @abstractmethod
    def replace_grant(self, row: tuple[Any, ...]) -> None:
        """Store a row of `config` and `GRANT` in the place of the one with its key."""

    def revision(self) -> int:
        """The revision of the definitions."""
        return self.revisions().definitions

    def revisions(self) -> Revisions:
        """All revisions."""
        row = self._database.execute(REVISIONS, (self._config,)).fetchone()
        if row is None:
            raise StateError(_NO_CONFIG)
        return Revisions(*row)

    def changed_since(self, revision: int, server: str, kind: str) -> bool:
        """Whether items of this kind were changed after that revision."""
        query = """SELECT removed > ? OR EXISTS (
            SELECT 1 FROM item WHERE config = config.id AND revision > ? AND server = ? AND kind = ?
        ) FROM config WHERE id = ?"""
        (changed,) = self._database.execute(query, (revision, revision, server, kind, self._config)).fetchone()
        return bool(changed)

    def item(self, server: str, kind: str, name: str) -> StoredItem | None:
        """One item as it is stored."""
        return self._store.select_item(self._database, self._config, (server, kind, name))

    def put_items(self, server: str, kind: str, items: Mapping[str, StoredItem | None]) -> None:
        """Store these items by their names; None takes one out."""
        revision = self._new_revision()
        key = (self._config, server, kind)
        gone = [(*key, name) for name, item in items.items() if item is None]
        if gone:
            self._database.execute("UPDATE config SET removed = ? WHERE id = ?", (revision, self._config))
            query = "DELETE FROM item WHERE config = ? AND server = ? AND kind = ? AND name = ?"
            self._database.executemany(query, gone)
        self.replace_items(
            [(*key, name, revision, *_columns(item)) for name, item in items.items() if item is not None]
        )

    def clear_lost(self) -> None:
        """Record that a person has seen that the approvals are lost, and decides again."""
        self._new_revision()
        self._database.execute("UPDATE config SET lost = NULL WHERE id = ?", (self._config,))

    def close_servers(self, servers: Iterable[str]) -> None:
        """End first sight for these servers."""
        self._new_revision()
        query = "INSERT INTO closed_server (config, server) VALUES (?, ?) ON CONFLICT DO NOTHING"
        self._database.executemany(query, [(self._config, server) for server in servers])

    def put_unconfined(self, server: str, chosen: bool | None) -> None:
        """Store whether a person chose that a server stays unconfined; None: it is not among `unconfined` any more."""
        self._new_revision()
        query = "DELETE FROM unconfined WHERE config = ? AND server = ?"
        self._database.execute(query, (self._config, server))
        if chosen is not None:
            self.add_unconfined((self._config, server, int(chosen)))

    def add_unconfined(self, row: tuple[Any, ...]) -> None:
        """Store a row of `unconfined`."""
        self._database.execute("INSERT INTO unconfined (config, server, chosen) VALUES (?, ?, ?)", row)

    def put_remembered(self, server: str, remembered: RememberedServer) -> None:
        """Store what a server said. Lists of kinds that are not among these stay as they are stored under its identity.
        Only the few identities of a server that were stored last are kept."""
        config, identity = self._config, remembered.identity
        query = "SELECT identity, stored FROM remembered_server WHERE config = ? AND server = ? ORDER BY stored DESC"
        known = self._database.execute(query, (config, server)).fetchall()
        stored = known[0][1] + 1 if known else 0
        query = """INSERT INTO remembered_server (config, server, identity, negotiated, stored) VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (config, server, identity)
            DO UPDATE SET negotiated = excluded.negotiated, stored = excluded.stored"""
        self._database.execute(query, (config, server, identity, remembered.negotiated, stored))
        rows = [
            (config, server, identity, kind, zlib.compress(entries, 1)) for kind, entries in remembered.lists.items()
        ]
        query = """INSERT INTO remembered_list (config, server, identity, kind, entries) VALUES (?, ?, ?, ?, ?)
            ON CONFLICT (config, server, identity, kind) DO UPDATE SET entries = excluded.entries"""
        self._database.executemany(query, rows)
        others = [each for each, _ in known if each != identity]
        for table in ("remembered_server", "remembered_list"):
            query = f"DELETE FROM {table} WHERE config = ? AND server = ? AND identity = ?"
            self._database.executemany(query, [(config, server, each) for each in others[_MAX_IDENTITIES - 1 :]])

    def grants(self) -> list[StoredGrant]:
        """All grants."""
        return self._store.list_grants(self._database, self._config)

    def put_grant(self, grant: StoredGrant) -> None:
        """Store this grant."""
        self._new_grants_revision()
        of, item = grant.subject, grant.subject.item
        subject = (of.caller, item.server, item.kind, item.name, of.fingerprint, of.launch, of.rule, of.digest)
        rest = (grant.conditions, grant.scope, grant.made, grant.expires, grant.by, int(grant.retry))
        self.replace_grant((self._config, grant.id, *subject, *rest))

    def remove_grants(self, ids: frozenset[str], expired_at: float) -> None:
        """Remove the grants with these ids, and those that expired before that Unix time."""
        self._new_grants_revision()
        query = "DELETE FROM person_grant WHERE config = ? AND id = ?"
        self._database.executemany(query, [(self._config, id) for id in sorted(ids)])
        query = "DELETE FROM person_grant WHERE config = ? AND expires <= ?"
        self._database.execute(query, (self._config, expired_at))

    def credential(self, key: CredentialKey) -> StoredCredential | None:
        """The credentials as they are stored."""
        query = f"SELECT {_CREDENTIAL} FROM credential WHERE {_OF_KEY}"
        row = self._database.execute(query, (self._config, *key)).fetchone()
        return None if row is None else StoredCredential(*row)

    def put_credential(self, key: CredentialKey, credential: StoredCredential) -> StoredCredential:
        """Store credentials in the place of all that this key had, without a lease; gives them with their revision."""
        self.remove_credential(key)
        stored = credential._replace(revision=self.revisions().credentials)
        query = f"INSERT INTO credential (config, server, owner, {_CREDENTIAL}) VALUES ({marks(7)})"
        self._database.execute(query, (self._config, *key, *stored))
        return stored

    def remove_credential(self, key: CredentialKey) -> None:
        """Remove the credentials of this key."""
        query = "UPDATE config SET credentials = credentials + 1 WHERE id = ?"
        self._database.execute(query, (self._config,))
        self._database.execute(f"DELETE FROM credential WHERE {_OF_KEY}", (self._config, *key))

    def lease_credential(self, key: CredentialKey, holder: str, seconds: float) -> bool:
        """Let nobody else refresh the credentials for so long, by the clock of the store. False if another holder has
        that right now, or there are no credentials."""
        now = self._store.now()
        free = "lease_holder IS NULL OR lease_holder = ? OR lease_until <= ?"
        query = f"UPDATE credential SET lease_holder = ?, lease_until = ? WHERE {_OF_KEY} AND ({free})"
        return self._database.execute(query, (holder, now + seconds, self._config, *key, holder, now)).rowcount == 1

    def end_lease(self, key: CredentialKey, holder: str) -> None:
        """Give the right back, if this holder has it."""
        query = f"UPDATE credential SET lease_holder = NULL WHERE {_OF_KEY} AND lease_holder = ?"
        self._database.execute(query, (self._config, *key, holder))

    def put_sessions(self, sessions: Iterable[StoredSession]) -> None:
        """Store these sessions, but none that is stored with a later use: another process has it by now. No revision
        grows by what becomes of sessions."""
        query = """INSERT INTO session (config, id, sealed, touched) VALUES (?, ?, ?, ?)
            ON CONFLICT (config, id) DO UPDATE SET sealed = excluded.sealed, touched = excluded.touched
            WHERE session.touched <= excluded.touched"""
        self._database.executemany(query, [(self._config, *each) for each in sessions])

    def renew_sessions(self, sessions: Iterable[StoredSession]) -> None:
        """As `put_sessions`, of those that are stored: a session that another process has removed stays removed."""
        query = "UPDATE session SET sealed = ?, touched = ? WHERE config = ? AND id = ? AND touched <= ?"
        rows = [(sealed, touched, self._config, id, touched) for id, sealed, touched in sessions]
        self._database.executemany(query, rows)

    def remove_sessions(self, ids: Iterable[str]) -> None:
        """Remove the sessions with these ids."""
        query = "DELETE FROM session WHERE config = ? AND id = ?"
        self._database.executemany(query, [(self._config, id) for id in ids])

    def trim_sessions(self, most: int, used_before: float, place: TrimPlace) -> TrimPlace | None:
        """A step of the removal of sessions that were not used since that Unix time, and of the longest unused ones
        beyond `most`: it removes and looks at a bounded number. Returns the place of the next step, which is to be
        another transaction; None after the last one. Others may store sessions meanwhile."""
        before = used_before if place.kept < most else max(used_before, place.used)
        # The time is compared twice: another process may use a session that was chosen.
        query = """DELETE FROM session WHERE config = ? AND touched < ? AND id IN (
            SELECT id FROM session WHERE config = ? AND touched < ? ORDER BY touched LIMIT ?
        )"""
        removed = self._database.execute(query, (self._config, before, self._config, before, TRIM_BATCH)).rowcount
        if removed == TRIM_BATCH:
            return place
        if place.kept >= most or (not place.kept and not self.may_have_sessions(most)):
            return None
        # Of several that were used at one time some are not counted, and so more stay.
        count = min(TRIM_PAGE, most - place.kept)
        query = "SELECT touched FROM session WHERE config = ? AND touched < ? ORDER BY touched DESC LIMIT 1 OFFSET ?"
        row = self._database.execute(query, (self._config, place.used, count - 1)).fetchone()
        return None if row is None else TrimPlace(place.kept + count, row[0])

    def may_have_sessions(self, count: int) -> bool:
        """Whether there may be more rows of sessions than these, as far as this is known without counting."""
        return True

    def _new_revision(self) -> int:
        if not self._changes_definitions:
            self._changes_definitions = True
            self._database.execute("UPDATE config SET definitions = definitions + 1 WHERE id = ?", (self._config,))
        return self.revision()

    def _new_grants_revision(self) -> None:
        if not self._changes_grants:
            self._changes_grants = True
            self._database.execute("UPDATE config SET grants = grants + 1 WHERE id = ?", (self._config,))


def marks(count: int) -> str:
    """So many places for values."""
    return ", ".join("?" * count)


def _columns(item: StoredItem) -> tuple[object, ...]:
    approved, offered = item.approved, item.offered
    return (
        int(item.closed),
        item.rejected,
        *((None,) * 3 if approved is None else (approved.fingerprint, approved.at, approved.by)),
        *((None,) * 2 if offered is None else (offered.fingerprint, offered.since)),
        None if approved is None else approved.definition,
        None if offered is None else offered.definition,
    )
