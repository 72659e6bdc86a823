"""The store of a fleet: one PostgreSQL database, in which each fleet has rows of its own.

Each process has two connections. The writer, used in worker threads, carries out one batch of changes after another.
The follower belongs to a thread: it listens for notices of changes, asks for the revisions each HEARTBEAT, and keeps a
copy of the grants. So `poll` and `read_grants` look at memory alone, and the event loop never waits for the database.

What another process took away holds here until its notice was read, some milliseconds later. What was read last holds
for LOCKED_LIMIT after the begin of the last question that was answered, by the clock of this process; then stored
grants do not hold. What was approved holds for GRACE, then nothing that is stored does (`problem`), until the database
answers again.

A transaction is READ COMMITTED and first locks the row of its fleet: changes of one fleet are serial, and revisions
grow in the order of commits. Sessions need no such lock. A notice is the last statement before the commit, and only of
changes that move a revision: PostgreSQL commits one notifying transaction at a time.

Rows that allow something have a MAC of the fleet's key. Whoever can write the database and does not know the key can
take away, and not give. That rows are deleted, or older ones restored, is not detected.

`colonnade migrate` makes the tables and the fleet's row (`migrate.py`): the role that a host has need not change the
schema, and a database that was replaced by an empty one is not taken for a new fleet.
"""

from __future__ import annotations

import hashlib
import hmac
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cache, partial
from typing import Any, TypeVar, final

import msgspec
import psycopg
import trio
from psycopg.abc import Buffer
from psycopg.adapt import Loader
from psycopg.conninfo import conninfo_to_dict
from psycopg.pq import Format, TransactionStatus
from psycopg.types.string import StrDumper

from config import Fleet
from host.seal import fleet_keys
from host.storage.sql import (
    BEGIN_CHANGE,
    END_CHANGE,
    GRANT,
    ITEM,
    ITEM_COLUMNS,
    REVISIONS,
    UNDO_CHANGE,
    Cursor,
    Database,
    Rows,
    RunInThread,
    Store,
    Transaction,
    make_grant,
    marks,
    select_credentials,
    select_session,
)
from host.storage.store import (
    LOCKED_LIMIT,
    CredentialKey,
    Revisions,
    StateError,
    StoredConfirmation,
    StoredCredential,
    StoredGrant,
    StoredItem,
    StoredSession,
    TrimPlace,
    uptime,
)

S = TypeVar("S")
T = TypeVar("T")

SCHEMA_VERSION = 5
"""A host works with each schema that says that it serves this version: see `migrate.py`."""
HEARTBEAT = 0.5
"""Seconds between two questions for the revisions. A lost notice, and a lost connection, show after so long."""
GRACE = 75.0
"""Seconds for which what was approved holds without an answer of the database: a minute, and the time to be connected
again after it."""
ANSWER_LIMIT = 1.0
"""Seconds for a statement; a backend that does not answer (stopped, behind a network that drops everything) is left."""
COMMIT_LIMIT = 2.0
LOAD_LIMIT = 30.0
"""Seconds for reading all rows of a kind."""
TURN_LIMIT = 2.0
"""Seconds that the reading of one session waits for what this process reads or stores right now: a client waits for it,
and is told to try again."""
ROW_LIMIT = 0.005
"""Seconds more for each row of a statement with many."""
CONNECT_LIMIT = 2
"""Whole seconds, and not less: libpq."""
LOCK_LIMIT = 0.8
"""Seconds to wait for another process's transaction, less than ANSWER_LIMIT, so that there is an answer."""
IDLE_LIMIT = 3.0
"""Seconds after which the database ends a transaction whose process was stopped in it."""
PROBE_LIMIT = 3.0
"""Seconds for a notice from one connection of this process to the other."""
_PAUSES = (0.1, 0.2, 0.5, 1.0, 2.0)
"""Seconds before each further attempt to connect."""
_TRIED = 100
"""Definitions with which the keys are tried at a start: several, since some may be of a key that was taken out."""
_LONE = "the database does not hold the fleet {} any more; start the host again once it does"
_AWAY = "the fleet's database does not answer"
_LOOK = (
    "SELECT definitions, grants, credentials, extract(epoch FROM clock_timestamp())::float8 FROM config WHERE id = ?"
)
_CONFIRMATION = "id, home, sealed, answer, expires"
_SETTINGS = """SELECT set_config('search_path', 'colonnade, pg_temp', false),
    set_config('lock_timeout', %s, false), set_config('idle_in_transaction_session_timeout', %s, false),
    set_config('synchronous_commit', CASE current_setting('synchronous_commit')
        WHEN 'off' THEN 'on' WHEN 'local' THEN 'on' WHEN 'remote_write' THEN 'on'
        ELSE current_setting('synchronous_commit') END, false),
    current_setting('server_encoding')"""


@contextmanager
def open_postgres(
    fleet: Fleet,
    *,
    run_in_thread: RunInThread = trio.to_thread.run_sync,
    monotonic: Callable[[], float] = uptime,
) -> Iterator[PostgresStore]:
    """The store of a fleet, for the block. This thread waits for the database.

    Raises:
        StateError: it cannot be reached, does not hold the fleet, has a schema that is not for this version, is behind
            a pooler that passes on no notices, or holds definitions that were signed with none of the fleet's keys.
    """
    watchdog = Watchdog()
    links: list[StoreConnection] = []
    try:
        with as_state_errors(fleet):
            links += [connect(fleet, watchdog) for _ in range(2)]
            check_schema(links[0], fleet.name)
            store = PostgresStore(fleet, watchdog, links[0], links[1], run_in_thread, monotonic)
            store.check_keys(links[0])
            store.begin()
        try:
            yield store
        finally:
            store.end()
    finally:
        watchdog.end()
        for link in links:
            link.close()


@final
class PostgresStore(Store):
    """Made by `open_postgres` only."""

    unstorable = (psycopg.Error, UnicodeEncodeError, StateError)
    definitions_columns = "approved_definition, offered_definition, mac"
    order = "place"
    trouble = _AWAY
    problem_ends = True
    is_current = False
    """A change of another process may be known only a moment later."""

    def __init__(
        self,
        fleet: Fleet,
        watchdog: Watchdog,
        writer: StoreConnection,
        follower: StoreConnection,
        run_in_thread: RunInThread,
        monotonic: Callable[[], float],
    ) -> None:
        super().__init__(fleet.name, run_in_thread)
        self._fleet = fleet
        self.macs = Macs(fleet)
        self._watchdog = watchdog
        self._writer: StoreConnection | None = writer
        self._follower: StoreConnection | None = follower
        self._monotonic = monotonic
        self._channel = f"colonnade {fleet.name}"
        self._lock = threading.Lock()
        """Held for moments, by whoever reads or changes the following."""
        self._revisions = Revisions()
        self._grants: list[StoredGrant] = []
        """As of the revision of the grants in `_revisions`."""
        self._commits = 0
        """Those of this process so far. What the follower read before one of them is not taken over after it."""
        self._answered = monotonic()
        """When the last question began that was answered."""
        self._clock = (time.time(), monotonic())
        """The Unix time of the database at a time of this process's own clock."""
        self._read_at = monotonic()
        """When the definitions were read last."""
        self._problem: str | None = None
        self._readers: list[tuple[trio.lowlevel.TrioToken, Callable[[], object]]] = []
        self._is_gone = False
        self.has_lease: Callable[[], bool] = lambda: True
        """Whether the other processes take this one for there: whoever revokes a grant waits for those that are."""
        self._retry_writer_at = 0.0
        self._failures = 0
        self._ending = threading.Event()
        self._thread = threading.Thread(target=self._follow, name="colonnade store", daemon=True)

    def begin(self) -> None:
        """Follow the database from now on."""
        assert self._follower is not None
        self._follower.listen(self._channel)
        self._probe(self._follower)
        self.look()
        self._thread.start()

    def end(self) -> None:
        self._ending.set()
        follower = self._follower
        if follower is not None:
            follower.shut()
        if self._thread.ident is not None:
            self._thread.join()
        for link in (self._writer, self._follower):
            if link is not None:
                link.close()

    def _probe(self, follower: StoreConnection) -> None:
        """Have the writer send a notice to the follower: a pooler that gives its connections to whoever has a
        transaction takes LISTEN, and passes on nothing."""
        said = os.urandom(8).hex()
        assert self._writer is not None
        self._writer.execute("SELECT pg_notify(?, ?)", (self._channel, said))
        for notice in follower.notices(PROBE_LIMIT):
            if notice.payload == said:
                return
        raise StateError(
            "the fleet's database passes on no notices (LISTEN): a pooler in the mode of transactions stands before "
            "it; write the address of the database itself in fleet.store"
        )

    # In the event loop

    def poll(self) -> Revisions:
        return self._revisions

    def subscribe(self, reader: Callable[[], object]) -> None:
        """`reader` is called in this event loop once `poll` has something new, or there is a `problem`; it must not
        wait and must not raise."""
        self._readers.append((trio.lowlevel.current_trio_token(), reader))

    def _tell(self) -> None:
        """From any thread."""
        for token, reader in self._readers:
            with suppress(trio.RunFinishedError):
                token.run_sync_soon(reader, idempotent=True)

    @property
    def problem(self) -> str | None:
        # By the clock, and not by an attempt in vain: a process that was stopped for so long has made none.
        if self._problem is None and self._monotonic() - max(self._answered, self._read_at) >= GRACE:
            self._problem = f"{_AWAY} for {GRACE:g} s; nothing that it holds counts until it does"
        return self._problem

    @problem.setter
    def problem(self, why: str | None) -> None:
        self._problem = why

    @property
    def is_reliable(self) -> bool:
        return self.problem is None and self._monotonic() - self._answered < LOCKED_LIMIT and self.has_lease()

    def now(self) -> float:
        there, here = self._clock
        return there + self._monotonic() - here

    def _is_at(self, revision: int) -> bool:
        return self.poll().definitions == revision and self.is_reliable

    async def _read_rows(self, since: int) -> Rows:
        if not self._is_gone and self.problem is not None:  # whoever reads has forgotten everything
            since = 0
        begun = self._monotonic()
        rows = await self._run_in_thread(lambda: self._select(self.select_rows, since, LOAD_LIMIT))
        if not self._is_gone:
            self._read_at, self.problem = begun, None
        return rows

    async def read_session(self, id: str) -> StoredSession | None:
        return await self._run_in_thread(lambda: self._select(select_session, id, ANSWER_LIMIT, TURN_LIMIT))

    def read_grants(self) -> list[StoredGrant]:
        return self._grants

    # In the thread of the follower

    def _follow(self) -> None:
        attempts = 0
        while not self._ending.is_set():
            try:
                if self._follower is None:
                    self._follower = connect(self._fleet, self._watchdog)
                    self._follower.listen(self._channel)
                self.look()
                attempts = 0
                self._follower.wait(HEARTBEAT)
            except (psycopg.Error, OSError, StateError):
                if self._follower is not None:
                    self._follower.close()
                    self._follower = None
                if self.problem is not None:
                    self._tell()
                self._ending.wait(_PAUSES[min(attempts, len(_PAUSES) - 1)])
                attempts += 1

    def look(self) -> None:
        """Take over what other processes have stored."""
        follower = self._follower
        if follower is None:
            raise StateError(_AWAY)
        is_new = False
        while True:
            with self._lock:
                commits, known = self._commits, self._revisions.grants
            began = self._monotonic()
            row = follower.execute(_LOOK, (self._config,)).fetchone()
            if row is None:
                self._is_gone, self.problem = True, _LONE.format(self._config)
                raise StateError(self._problem)
            *found, there = row
            revisions, grants = Revisions(*found), None
            if revisions.grants != known:
                grants, revision = follower.in_one_moment(lambda: self.select_grants(follower, self._config, None))
                revisions = revisions._replace(grants=revision)
            with self._lock:
                self._answered, self._clock = began, (there, self._monotonic())
                self.lag = self._clock[1] - began  # the clock was read at any time meanwhile
                self._retry_writer_at = 0.0
                if self._commits == commits:
                    is_new, self._revisions = revisions != self._revisions, revisions
                    if grants is not None:
                        self._grants = grants
                    break
        if is_new:
            self._tell()

    # In a worker thread

    def _link(self) -> StoreConnection:
        """The writer's connection, made again if it was lost. Raises StateError at once after a failure, for a moment:
        others wait behind whoever tries."""
        if self._writer is None:
            if self._monotonic() < self._retry_writer_at:
                raise StateError(_AWAY)
            try:
                self._writer = connect(self._fleet, self._watchdog)
            except (psycopg.Error, OSError):
                pause = _PAUSES[min(self._failures, len(_PAUSES) - 1)]
                self._failures, self._retry_writer_at = self._failures + 1, self._monotonic() + pause
                raise
            self._failures = 0
        return self._writer

    @contextmanager
    def _transaction(self) -> Iterator[Database]:
        with self._use() as link:
            link.execute("BEGIN")
            changes = _Changes(link, self._config, self._channel)
            yield changes
            grants = None
            if changes.is_locked:
                revisions = changes.revisions()
                if revisions.grants > self._revisions.grants:  # perhaps by a change of another process
                    grants = self.list_grants(link, self._config)
                if revisions != changes.before:
                    link.execute("SELECT pg_notify(?, '')", (self._channel,))
            else:
                revisions = None
                link.execute("SET LOCAL synchronous_commit TO off")
            link.execute("COMMIT", limit=COMMIT_LIMIT)
        if revisions is None:
            return
        with self._lock:
            self._commits += 1
            if grants is not None and revisions.grants > self._revisions.grants:
                self._grants = grants
            self._revisions = Revisions(*map(max, self._revisions, revisions))
        self._tell()

    @contextmanager
    def _use(self) -> Iterator[StoreConnection]:
        """The writer's connection; given up if it cannot be used afterwards."""
        link = self._link()
        try:
            yield link
        except BaseException:
            if not link.roll_back():
                link.close()
                self._writer = None
            raise

    def _change(self, database: Database) -> Transaction:
        assert isinstance(database, _Changes)
        return FleetTransaction(self, database, self._config)

    def _revisions_after(self, transaction: Transaction, database: Database) -> Revisions:
        assert isinstance(database, _Changes)
        return transaction.revisions() if database.is_locked else self._revisions  # sessions move none

    def _select(
        self, select: Callable[[Database, str, S], T], what: S, limit: float = LOAD_LIMIT, turn: float = -1
    ) -> T:
        """As in `Store`.

        Args:
            limit: seconds for each statement.
            turn: seconds to wait for the connection, at most; as long as it takes if negative.
        """
        try:
            with self._turn_within(turn), self._use() as link:
                return link.in_one_moment(lambda: select(link, self._config, what), limit)
        except (psycopg.Error, OSError, StateError) as problem:
            raise self._as_state_error(problem) from None

    @contextmanager
    def _turn_within(self, seconds: float) -> Iterator[None]:
        if not self._writer_lock.acquire(timeout=seconds):
            raise StateError(f"the fleet's database has been in use by this process for {seconds:g} s; try again")
        try:
            yield
        finally:
            self._writer_lock.release()

    def _hits_all(self, problem: Exception) -> bool:
        return isinstance(problem, StateError | psycopg.errors.LockNotAvailable) or (
            isinstance(problem, psycopg.OperationalError) and self._writer is None
        )

    def _as_state_error(self, problem: Exception) -> StateError:
        return state_error(self._fleet, problem)

    # The rows

    async def sign_anew(self, reseal: Callable[[CredentialKey, StoredCredential], StoredCredential | None]) -> int:
        """Sign with the first key of the fleet what another one of its keys has signed, and encrypt the logins with it:
        then the others can be taken out. No decision changes, so no revision grows. The number of rows.

        Args:
            reseal: encrypts a login with the first key; None if it cannot be read, or is so already.

        Raises:
            StateError: it cannot be stored; nothing changed.
        """
        return await self.write(partial(self._sign_anew, reseal))

    def _sign_anew(
        self, reseal: Callable[[CredentialKey, StoredCredential], StoredCredential | None], transaction: Transaction
    ) -> int:
        assert isinstance(transaction, FleetTransaction)
        database, count = transaction.locked(), 0
        item = f"server, kind, name, {ITEM}, {self.definitions_columns}"
        tables = ("item", item, 3), ("person_grant", f"{GRANT}, mac", 1), ("unconfined", "server, chosen, mac", 1)
        for table, columns, keys in tables:
            kind = table.removeprefix("person_")
            named = columns.split(", ")[:keys]
            query = f"UPDATE {table} SET mac = ? WHERE config = ? AND {' AND '.join(f'{each} = ?' for each in named)}"
            rows = database.execute(f"SELECT {columns} FROM {table} WHERE config = ?", (self._config,)).fetchall()
            for *values, mac in rows:
                signed = (self._config, *values)
                if self.macs.is_right(kind, signed, mac) and (made := self.macs.make(kind, signed)) != mac:
                    database.execute(query, (made, self._config, *values[:keys]))
                    count += 1
        for key, stored in select_credentials(database, self._config, None).items():
            if (sealed := reseal(key, stored)) is not None:
                query = "UPDATE credential SET sealed = ? WHERE config = ? AND sealed = ?"
                database.execute(query, (sealed.sealed, self._config, stored.sealed))  # its lease stays
                count += 1
        return count

    def check_keys(self, link: StoreConnection) -> None:
        """Refuse keys with which none of the definitions was signed: a process that has them would take all of them for
        forged, and store that they are held, at all processes.

        Raises:
            StateError: see above.
        """
        query = (
            f"SELECT server, kind, name, {ITEM}, {self.definitions_columns} FROM item WHERE config = ? LIMIT {_TRIED}"
        )
        rows = link.execute(query, (self._config,)).fetchall()
        if rows and not any(self.macs.is_right("item", (self._config, *row), mac) for *row, mac in rows):
            raise StateError(
                f"fleet.keys: with none of them the definitions of fleet {self._config} in its database were signed; "
                "write the keys that its other processes have, or, as long as it has served nothing, run colonnade "
                "migrate with these. If those are lost, what was approved is lost, too: give the fleet another name, "
                "and run colonnade migrate"
            )

    def make_item(self, key: tuple[str, str, str], columns: Sequence[Any]) -> StoredItem:
        *signed, mac = columns
        item = super().make_item(key, signed)
        if self.macs.is_right("item", (self._config, *key, *signed), mac):
            return item
        # It was written without the key: nothing of it allows anything, and no person is shown a text that is not that
        # of its fingerprint.
        return StoredItem(None, None, item.rejected, closed=True)

    def select_unconfined(self, database: Database, config: str) -> dict[str, bool]:
        query = "SELECT server, chosen, mac FROM unconfined WHERE config = ?"
        rows = database.execute(query, (config,)).fetchall()
        return {row[0]: bool(row[1]) for *row, mac in rows if self.macs.is_right("unconfined", (config, *row), mac)}

    def list_grants(self, database: Database, config: str) -> list[StoredGrant]:
        query = f"SELECT {GRANT}, mac FROM person_grant WHERE config = ? ORDER BY place"
        rows = database.execute(query, (config,)).fetchall()
        return [make_grant(row) for *row, mac in rows if self.macs.is_right("grant", (config, *row), mac)]


@final
class FleetTransaction(Transaction):
    """With the questions to people that the processes of a fleet share. What becomes of them moves the revision of the
    grants, so that each process hears of it."""

    _store: PostgresStore
    _database: _Changes

    def locked(self) -> Database:
        """The tables, which nobody else changes until the end of the transaction."""
        self._database.lock()
        return self._database

    def replace_items(self, rows: Sequence[tuple[Any, ...]]) -> None:
        signed = [
            (*row, self._store.macs.make("item", (*row[:4], *row[5:])))
            for row in rows  # the revision is not signed
        ]
        replaced = _replaced(ITEM_COLUMNS, 4)
        query = f"""INSERT INTO item ({ITEM_COLUMNS}, mac) VALUES ({marks(15)})
            ON CONFLICT (config, server, kind, name) DO UPDATE SET {replaced}"""
        self._database.executemany(query, signed)

    def replace_grant(self, row: tuple[Any, ...]) -> None:
        query = f"""INSERT INTO person_grant (config, {GRANT}, mac) VALUES ({marks(17)})
            ON CONFLICT (config, id) DO UPDATE SET {_replaced(f"config, {GRANT}", 2)}"""
        self._database.execute(query, (*row, self._store.macs.make("grant", row)))

    def add_unconfined(self, row: tuple[Any, ...]) -> None:
        query = "INSERT INTO unconfined (config, server, chosen, mac) VALUES (?, ?, ?, ?)"
        self._database.execute(query, (*row, self._store.macs.make("unconfined", row)))

    def lease_credential(self, key: CredentialKey, holder: str, seconds: float) -> bool:
        free = "lease_holder IS NULL OR lease_holder = ? OR lease_until <= extract(epoch FROM clock_timestamp())"
        query = f"""UPDATE credential SET lease_holder = ?, lease_until = extract(epoch FROM clock_timestamp()) + ?
            WHERE config = ? AND server = ? AND owner = ? AND ({free})"""
        return self._database.execute(query, (holder, seconds, self._config, *key, holder)).rowcount == 1

    def put_confirmation(self, confirmation: StoredConfirmation) -> None:
        """Store a question in the place of that with its id; without effect if this has an answer."""
        self._new_grants_revision()
        query = f"""INSERT INTO confirmation (config, {_CONFIRMATION}) VALUES ({marks(6)})
            ON CONFLICT (config, id) DO UPDATE SET home = excluded.home, sealed = excluded.sealed,
            expires = excluded.expires WHERE confirmation.answer = ''"""
        self._database.execute(query, (self._config, *confirmation))

    def answer_confirmation(self, id: str, answer: str) -> bool:
        """Answer a question. False if it has an answer, or is gone: of two answers one counts."""
        query = "UPDATE confirmation SET answer = ? WHERE config = ? AND id = ? AND answer = ''"
        return self._changed(query, (answer, self._config, id))

    def claim_confirmation(self, id: str) -> bool:
        """Remove a question that has an answer, which is then this process's to apply. False if another one has it."""
        return self._changed(
            "DELETE FROM confirmation WHERE config = ? AND id = ? AND answer <> ''", (self._config, id)
        )

    def withdraw_confirmation(self, id: str) -> bool:
        """Remove a question that has no answer. False if it has one, or is gone."""
        return self._changed("DELETE FROM confirmation WHERE config = ? AND id = ? AND answer = ''", (self._config, id))

    def _changed(self, query: str, values: Sequence[Any]) -> bool:
        """Whether the statement, of one question, has changed it."""
        if self._database.execute(query, values).rowcount != 1:
            return False
        self._new_grants_revision()
        return True

    def confirmations(self) -> list[StoredConfirmation]:
        """All questions. Those that are to be forgotten are removed."""
        expired = "DELETE FROM confirmation WHERE config = ? AND expires < extract(epoch FROM clock_timestamp())"
        self._database.execute(expired, (self._config,))
        query = f"SELECT {_CONFIRMATION} FROM confirmation WHERE config = ? ORDER BY expires, id"
        return [StoredConfirmation(*row) for row in self._database.execute(query, (self._config,)).fetchall()]

    # Sessions are not decisions: they wait for no other process.

    def put_sessions(self, sessions: Iterable[StoredSession]) -> None:
        with self._database.unlocked():
            super().put_sessions(sessions)

    def renew_sessions(self, sessions: Iterable[StoredSession]) -> None:
        with self._database.unlocked():
            super().renew_sessions(sessions)

    def remove_sessions(self, ids: Iterable[str]) -> None:
        with self._database.unlocked():
            super().remove_sessions(ids)

    def trim_sessions(self, most: int, used_before: float, place: TrimPlace) -> TrimPlace | None:
        with self._database.unlocked():
            return super().trim_sessions(most, used_before, place)

    def may_have_sessions(self, count: int) -> bool:
        # It takes seconds to count a million, as often as each process trims.
        query = "SELECT reltuples FROM pg_class WHERE oid = 'session'::regclass"
        (estimate,) = self._database.execute(query).fetchone()
        return not 0 < estimate < count


def _replaced(columns: str, keys: int) -> str:
    named = [*columns.split(", ")[keys:], "mac"]
    return ", ".join((*(f"{name} = excluded.{name}" for name in named), "place = DEFAULT"))


@final
class _Changes:
    """The writer's connection within a transaction, which locks the fleet's row before the first statement that needs
    it."""

    def __init__(self, link: StoreConnection, config: str, channel: str) -> None:
        self._link = link
        self._config = config
        self._needs_lock = True
        self.is_locked = self._was_locked = False
        self.before = Revisions()

    def execute(self, query: str, values: Sequence[Any] = (), /) -> Cursor:
        self._lock(query)
        return self._link.execute(query, values)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        self._lock(query)
        self._link.executemany(query, rows)

    def revisions(self) -> Revisions:
        return Revisions(*self._link.execute(REVISIONS, (self._config,)).fetchone())

    @contextmanager
    def unlocked(self) -> Iterator[None]:
        self._needs_lock = False
        try:
            yield
        finally:
            self._needs_lock = True

    def _lock(self, query: str) -> None:
        if query in (BEGIN_CHANGE, UNDO_CHANGE, END_CHANGE):
            if query == UNDO_CHANGE:  # a lock ends with the savepoint after which it was taken
                self.is_locked = self._was_locked
            self._was_locked = self.is_locked
            return
        if not self.is_locked and self._needs_lock:
            self.lock()

    def lock(self) -> None:
        row = self._link.execute(f"{REVISIONS} FOR UPDATE", (self._config,)).fetchone()
        if row is None:
            raise StateError(_LONE.format(self._config))
        self.is_locked, self.before = True, Revisions(*row)


# The rows that allow


@final
class Macs:
    """Codes that only holders of a fleet's key can make."""

    def __init__(self, fleet: Fleet) -> None:
        self._keys = fleet_keys(b"decisions", fleet)

    def make(self, kind: str, values: Sequence[Any]) -> bytes:
        return _mac(self._keys[0], kind, values)

    def is_right(self, kind: str, values: Sequence[Any], mac: bytes) -> bool:
        return any(hmac.compare_digest(_mac(key, kind, values), mac) for key in self._keys)


def _mac(key: bytes, kind: str, values: Sequence[Any]) -> bytes:
    content = msgspec.msgpack.encode((kind, *values))  # each value with its type and length
    return hashlib.blake2b(content, key=key, digest_size=32, person=b"colonnade row").digest()


# Connections


@final
class _TextDumper(StrDumper):
    """Any text but half a surrogate pair. PostgreSQL takes no NUL in a text."""

    def dump(self, obj: str) -> Buffer | None:
        return super().dump(obj.replace("\x10", "\x10p").replace("\0", "\x100") if _SPECIAL.search(obj) else obj)


@final
class _TextLoader(Loader):
    format = Format.BINARY

    def load(self, data: Buffer) -> str:
        text = bytes(data).decode()
        return _ESCAPED.sub(lambda found: "\x10" if found[1] == "p" else "\0", text) if "\x10" in text else text


_SPECIAL = re.compile("[\0\x10]")
_ESCAPED = re.compile("\x10([p0])")


@final
class StoreConnection:
    """A connection whose statements end in time: a thread would wait for a stopped backend without end."""

    def __init__(self, connection: psycopg.Connection[Any], watchdog: Watchdog) -> None:
        self._connection = connection
        self._watchdog = watchdog
        self._cursor = connection.cursor(binary=True)
        self._poll = select.poll()
        self._poll.register(connection.fileno(), select.POLLIN)
        self._limit = ANSWER_LIMIT

    def execute(self, query: str, values: Sequence[Any] = (), /, *, limit: float | None = None) -> Cursor:
        with self._watchdog.limit(self, limit or self._limit):
            return self._connection.execute(_translated(query), values, binary=True)

    def executemany(self, query: str, rows: Iterable[Sequence[Any]], /) -> None:
        several = list(rows)
        if several:
            with self._watchdog.limit(self, self._limit + ROW_LIMIT * len(several)):
                self._cursor.executemany(_translated(query), several)

    def in_one_moment(self, select: Callable[[], T], limit: float = LOAD_LIMIT) -> T:
        """The rows that `select` finds, all of them as of one moment."""
        self.execute("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY")
        self._limit = limit
        try:
            return select()
        finally:
            self._limit = ANSWER_LIMIT
            self.roll_back()

    def roll_back(self) -> bool:
        """End the transaction, if any; False if the connection cannot be used any more."""
        with suppress(psycopg.Error):
            if self._connection.info.transaction_status is not TransactionStatus.IDLE:
                self.execute("ROLLBACK")
        return self._connection.info.transaction_status is TransactionStatus.IDLE

    def listen(self, channel: str) -> None:
        self.execute(psycopg.sql.SQL("LISTEN {}").format(psycopg.sql.Identifier(channel)).as_string())

    def notices(self, seconds: float) -> Iterator[psycopg.Notify]:
        return self._connection.notifies(timeout=seconds)

    def wait(self, seconds: float) -> None:
        """Wait for a notice, for so long at most. Notices that came with the last answer count."""
        if not any(self.notices(0)):
            self._poll.poll(seconds * 1000)
            for _ in self.notices(0):
                pass

    def shut(self) -> None:
        """From any thread: whoever waits for an answer gets an error."""
        with suppress(OSError, psycopg.Error):
            with socket.socket(fileno=os.dup(self._connection.fileno())) as twin:
                twin.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._connection.close()


@cache
def _translated(query: str) -> str:
    return query.replace("?", "%s")


def connect(fleet: Fleet, watchdog: Watchdog) -> StoreConnection:
    """Raises psycopg.Error, whose text may hold parts of the URL (`state_error`)."""
    connection = psycopg.connect(
        fleet.store.reveal(), autocommit=True, connect_timeout=CONNECT_LIMIT, application_name="colonnade"
    )
    try:
        connection.adapters.register_dumper(str, _TextDumper)
        connection.adapters.register_loader("text", _TextLoader)
        link = StoreConnection(connection, watchdog)
        settings = (f"{LOCK_LIMIT * 1000:.0f}ms", f"{IDLE_LIMIT * 1000:.0f}ms")
        *_, encoding = link.execute(_SETTINGS, settings).fetchone()
        if encoding != "UTF8":
            raise StateError(f"the fleet's database has the encoding {encoding}; make one with UTF8")
    except BaseException:
        connection.close()
        raise
    return link


def check_schema(link: StoreConnection, name: str) -> None:
    """Refuse a database that `colonnade migrate` has not made ready for this version and fleet."""
    remedy = "run colonnade migrate with the role that may change it"
    row = link.execute("SELECT to_regclass('colonnade.schema_version')::text").fetchone()
    if row is None or row[0] is None:
        raise StateError(f"the fleet's database has no tables of Colonnade; {remedy}")
    version, serves = link.execute("SELECT version, serves FROM schema_version").fetchone()
    if version < SCHEMA_VERSION:
        raise StateError(
            f"the fleet's database has schema {version}, and this version of Colonnade needs {SCHEMA_VERSION}; {remedy}"
        )
    if serves > SCHEMA_VERSION:
        raise StateError(
            f"the fleet's database has schema {version}, which serves versions of Colonnade with schema {serves} or "
            f"newer; this one knows {SCHEMA_VERSION}: run a newer version"
        )
    if link.execute("SELECT 1 FROM config WHERE id = ?", (name,)).fetchone() is None:
        raise StateError(
            f"the fleet's database holds no fleet {name}; colonnade migrate makes it. If it did hold it, what was "
            "approved is gone: restore the database first"
        )


@contextmanager
def as_state_errors(fleet: Fleet, place: str = "fleet.store") -> Iterator[None]:
    """Raise what goes wrong with the database as StateError, without the URL's secrets. `place`: where that stands."""
    try:
        yield
    except (psycopg.Error, OSError) as problem:
        raise state_error(fleet, problem, place) from None


def state_error(fleet: Fleet, problem: Exception, place: str = "fleet.store") -> StateError:
    if isinstance(problem, StateError):
        return problem
    if isinstance(problem, psycopg.ProgrammingError) and problem.sqlstate is None:  # of the URL, parts of which it says
        return StateError(f"{place} is not a URL that PostgreSQL's own library understands")
    if isinstance(problem, psycopg.errors.LockNotAvailable):
        return StateError(f"another process of the fleet has held its database for {LOCK_LIMIT:g} s; try again")
    said = " ".join(str(problem).split())
    with suppress(psycopg.Error):
        password = conninfo_to_dict(fleet.store.reveal()).get("password")
        said = said.replace(str(password), "***") if password else said
    return StateError(f"the fleet's database cannot be used: {said}")


@final
class Watchdog:
    """A thread that shuts connections whose statements take too long."""

    def __init__(self) -> None:
        self._changed = threading.Condition()
        self._until: dict[StoreConnection, float] = {}
        self._sleeps_until: float | None = None
        """None while it sleeps until it is woken."""
        self._is_over = False
        self._thread = threading.Thread(target=self._watch, name="colonnade watchdog", daemon=True)
        self._thread.start()

    @contextmanager
    def limit(self, link: StoreConnection, seconds: float) -> Iterator[None]:
        """Shut the connection if the block takes longer."""
        until = time.monotonic() + seconds
        with self._changed:
            self._until[link] = until
            if self._sleeps_until is None or until < self._sleeps_until:
                self._changed.notify()
        try:
            yield
        finally:
            with self._changed:
                self._until.pop(link, None)

    def end(self) -> None:
        with self._changed:
            self._is_over = True
            self._changed.notify()
        self._thread.join()

    def _watch(self) -> None:
        with self._changed:
            while not self._is_over:
                now = time.monotonic()
                for link in [link for link, until in self._until.items() if until <= now]:
                    del self._until[link]
                    link.shut()
                self._sleeps_until = min(self._until.values(), default=None)
                self._changed.wait(None if self._sleeps_until is None else max(0.0, self._sleeps_until - now))
