"""The index of the history, a SQLite database of its own, which is built from the lines of the audit.

    history.db           of each call its decision and its outcome, and how far each file of the audit was read
    history-forgotten    a line of JSON for each caller that is to be forgotten (forgotten.py)

Every process that has it open may read on in the audit: a host whose file has `history`, and `colonnade history`. What
is read, and up to where, is one transaction, so a crash loses nothing and doubles nothing. The place in a file is kept
with the hash of the record before it: where that is not there any more, the file is read from its beginning. A damaged
database is deleted and built again. One of the former version keeps the rows of files that are gone, and the others are
read again.

Calls are found by their time, or by their place. There is no index of their names: these are random, so that each would
be written to another page of it.

The journal is truncated, not write-ahead, for the reason in storage/sqlite.py.
"""

from __future__ import annotations

import itertools
import os
import sqlite3
import stat
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import msgspec
from msgspec import Meta, Struct

from host.audit.records import files, hash_before, is_open, parse
from host.history.forgotten import Forgotten, read_forgotten
from host.jsonrpc.raw import DECODE_ERRORS
from host.storage import sqlite_file
from host.storage.sqlite_file import BUSY, DAMAGE, connect, identity, insist, primary_code, transaction
from host.storage.store import StateError

T = TypeVar("T")

NAME = "history.db"
BATCH = 1024 * 1024
"""Bytes of the audit that are read at a time; a longer line is read whole."""
LONGEST_LINE = 80 * 1024 * 1024
"""Bytes; no record is as long, since no message is."""
QUERY_LIMIT = 5.0
"""Seconds that a search may take."""
ROWS_AT_ONCE = 40
"""Rows that are added by one statement: one by one takes a fifth longer. Some builds of SQLite take 999 values."""
DELETED_AT_ONCE = 2000
"""Rows that are deleted in one transaction."""
_APPLICATION_ID = 0x436F6C48
_SCHEMA_VERSION = 4
_SCHEMA = (
    "PRAGMA auto_vacuum = INCREMENTAL",
    """CREATE TABLE file (
        id INTEGER PRIMARY KEY, name TEXT NOT NULL UNIQUE, chain INTEGER NOT NULL, config TEXT NOT NULL,
        place INTEGER NOT NULL, last TEXT NOT NULL, unread INTEGER NOT NULL
    )""",
    """CREATE TABLE call (
        id INTEGER PRIMARY KEY, time TEXT NOT NULL, hash TEXT NOT NULL, file INTEGER NOT NULL, chain INTEGER NOT NULL,
        seq INTEGER NOT NULL, what TEXT NOT NULL, caller TEXT, client TEXT, agent TEXT, program TEXT, view TEXT,
        server TEXT, kind TEXT, item TEXT, method TEXT, verdict TEXT, rule TEXT, approver TEXT, sent INTEGER,
        outcome TEXT, micros INTEGER, received INTEGER, count INTEGER, tool_error INTEGER
    )""",
    "CREATE UNIQUE INDEX call_by_record ON call (chain, seq)",
    "CREATE INDEX call_by_time ON call (time, seq)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
DENIED = "denied"
"""The outcome of what the rules refused, as records of attempts have it (`host.attempts.Reason.DENIED`)."""
_FROM_VERSION_3 = (
    "ALTER TABLE call ADD COLUMN tool_error INTEGER",
    f"UPDATE call SET outcome = '{DENIED}' WHERE what = 'call' AND outcome IS NULL"
    " AND (verdict = 'deny' OR verdict = 'ask' AND approver = '')",
    # What that version did not take over is in the files that are there; rows of others stay.
    "UPDATE file SET last = 'to be read again'",
    f"PRAGMA user_version = {_SCHEMA_VERSION}",
)
_FULL = (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR)
_SAYS_DAMAGE = ("no such table", "Could not decode to UTF-8")
"""The beginnings of messages that have no such code: of a file that was emptied, and of a text within a sound page."""
HASH_LENGTH = 16
"""Digits of the hash of its decision by which a call is named."""


_COLUMNS = (
    *("file", "chain", "seq", "time", "hash", "what", "caller", "client", "agent", "program", "view", "server", "kind"),
    *("item", "method", "verdict", "rule", "approver", "sent", "count", "outcome", "micros", "received"),
    "tool_error",
)
_VALUES = f"({', '.join('?' * len(_COLUMNS))})"
_ADD = f"INSERT OR IGNORE INTO call ({', '.join(_COLUMNS)}) VALUES {_VALUES}"
_ADD_MANY = ", ".join((_ADD, *[_VALUES] * (ROWS_AT_ONCE - 1)))
_END = "UPDATE call SET outcome = ?, micros = ?, received = ?, tool_error = ? WHERE chain = ? AND seq = ?"
_ANSWERS = {"deny": DENIED, "none": "unanswered"}
"""The outcome of a confirmation that did not allow its call, by its answer; of others, it is the answer."""


_Integer = Annotated[int, Meta(ge=-(2**63), le=2**63 - 1)]
"""An integer of SQLite. A line with one beyond these is no record of ours."""


class _CallSize(Struct, gc=False):
    bytes: _Integer | None = None


class _ClientProgram(Struct, gc=False):
    program: str
    pid: int


class _IndexedRecord(Struct, gc=False):
    """The members of a record that the index has, of whatever kind the record is."""

    kind: str
    seq: _Integer
    ts: str
    hash: str
    principal: str | None = None
    client: str | None = None
    agent: str | None = None
    process: _ClientProgram | None = None
    view: str | None = None
    server: str | None = None
    prim: str | None = None
    item: str | None = None
    method: str | None = None
    verdict: str | None = None
    rule: str | None = None
    approver: str | None = None
    args: _CallSize | None = None
    count: _Integer | None = None
    first: str | None = None
    why: str | None = None
    answer: str | None = None
    grant: str | None = None
    outcome: str | None = None
    of: _Integer = 0
    micros: _Integer | None = None
    bytes: _Integer | None = None
    tool_error: bool | None = None
    file: str = ""


_RECORDS = msgspec.json.Decoder(_IndexedRecord)


class HistoryUnavailable(StateError):
    """The index cannot be used now. The text is a sentence for the owner, and says what becomes of the calls."""


class Bounds(NamedTuple):
    """The part of the history that is kept: `keep` in seconds, `max` in bytes of the index."""

    keep: float = 30 * 86400.0
    max: int = 1024**3


class HistoryIndex:
    """The index of a state directory. Its methods block: they are for worker threads and commands, and one at a time is
    carried out."""

    def __init__(self, state: Path, audit: Path, bounds: Bounds, *, wall: Callable[[], float] = time.time) -> None:
        self.bounds = bounds
        self._path = state / NAME
        self._audit = audit
        self._wall = wall
        self.unreadable: set[str] = set()
        """Files of the audit that cannot be read, and so are missing."""
        self.rebuilds = 0
        """The number of times that the index was damaged, and was begun anew."""
        self.openings = 0
        """The number of times that a database was opened. Another one has other places."""
        self._lock = threading.Lock()
        self._database: sqlite3.Connection | None = None
        self._identity: tuple[int, int] | None = None
        self._places: dict[str, int] = {}
        """The place up to which each file was read, as this process last knew; the database is what counts."""

    def close(self) -> None:
        """Close the database. It is opened again if it is used."""
        with self._lock:
            self._close()

    def rebuild(self) -> None:
        """Delete the index, so that it is built again from the audit.

        Raises:
            OSError: it cannot be deleted.
        """
        with self._lock:
            self._delete()

    def read_on(self) -> int:
        """Take over the next batch of the audit; the number of bytes that are still to be read.

        Raises:
            HistoryUnavailable: the index cannot be written, or the audit not be read. What is missing is read later.
        """
        return self._carry_out(self._read_batch)

    def remarks(self) -> list[str]:
        """Sentences on what of the audit is missing, as this process knows.

        Raises:
            HistoryUnavailable: as of `read_on`.
        """
        query = "SELECT name, unread FROM file WHERE unread > 0 ORDER BY name"
        rows = self.select(lambda database: database.execute(query).fetchall())
        return [
            *(f"{unread} lines of {name} are damaged, and missing" for name, unread in rows),
            *(f"{name} cannot be read, and its calls are missing" for name in sorted(self.unreadable)),
        ]

    def running(self, database: sqlite3.Connection) -> set[int]:
        """The chains of processes that may still write outcomes: a file of theirs is open, or not read to its end. For
        `select`. All chains, while a file waits to be read that may continue one."""
        indexed = {name: row for name, *row in database.execute("SELECT name, chain, place FROM file").fetchall()}
        present = {path.name: path for path in files(self._audit)}
        if present.keys() - indexed.keys() - self.unreadable:
            return {chain for chain, _ in indexed.values()}
        # Files are asked in this order: one that is closed does not get longer.
        return {
            chain
            for name, (chain, place) in indexed.items()
            if name in present and (is_open(present[name]) or self._is_behind(present[name], place))
        }

    def _is_behind(self, path: Path, place: int) -> bool:
        """Whether a file has more than was read. A part of a line at its end counts as read."""
        try:
            return path.stat().st_size > max(place, self._places.get(path.name, 0))
        except FileNotFoundError:  # deleted by its retention
            return False

    def trim(self) -> None:
        """Delete what is older than is kept, or too much; and callers that are to be forgotten.

        Raises:
            HistoryUnavailable: as of `read_on`.
        """
        self._carry_out(self._trim)

    def select(self, work: Callable[[sqlite3.Connection], T]) -> T:
        """The result of a search in the index.

        Raises:
            HistoryUnavailable: as of `read_on`; the search takes longer than QUERY_LIMIT; or the index was damaged.
        """

        def search(database: sqlite3.Connection) -> T:
            deadline = time.monotonic() + QUERY_LIMIT
            database.set_progress_handler(lambda: time.monotonic() > deadline, 100_000)
            try:
                return work(database)
            finally:
                database.set_progress_handler(None, 0)

        return self._carry_out(search, is_search=True)

    # The database

    def _carry_out(self, work: Callable[[sqlite3.Connection], T], *, is_search: bool = False) -> T:
        def attempt() -> T:
            return insist(lambda: work(self._open()))

        with self._lock:
            try:
                try:
                    return attempt()
                except sqlite3.DatabaseError as problem:
                    if not _is_damage(problem):
                        raise
                    self._delete()
                    self.rebuilds += 1
                    if is_search:  # it would find nothing
                        text = f"{NAME} was damaged, and is built again from the audit: try again in a moment"
                        raise HistoryUnavailable(text) from problem
                    return attempt()
            except sqlite3.Error as problem:
                raise HistoryUnavailable(_sentence(problem)) from problem
            except OSError as problem:
                raise HistoryUnavailable(
                    f"the history cannot be kept ({problem.strerror}); calls go on, and it is made up for later"
                ) from problem

    def _open(self) -> sqlite3.Connection:
        if self._database is not None and identity(self._path) != self._identity:
            self._close()  # somebody deleted it, or found it damaged and made another one
        if self._database is None:
            self._places.clear()
            with suppress(FileExistsError):  # SQLite itself would make it readable for others, and follow links
                os.close(os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))
            if not stat.S_ISREG(self._path.lstat().st_mode):
                self._path.unlink()
                raise HistoryUnavailable(f"{self._path} was not a regular file, and is removed; try again")
            database = connect(self._path.absolute().as_uri())
            try:
                _prepare(database)
            except BaseException:
                database.close()
                raise
            self._database, self._identity = database, identity(self._path)
            self.openings += 1
        return self._database

    def _close(self) -> None:
        if self._database is not None:
            self._database.close()
            self._database = None

    def _delete(self) -> None:
        """Delete the index. Another process that has it open finds out with its next look."""
        self._close()
        for name in (NAME, f"{NAME}-journal"):
            self._path.with_name(name).unlink(missing_ok=True)

    # Reading the audit

    def _read_batch(self, database: sqlite3.Connection) -> int:
        left, chosen = 0, None
        for path in files(self._audit):
            try:
                size = path.stat().st_size
            except FileNotFoundError:
                continue
            behind = size - self._places.get(path.name, 0)
            if behind < 0:  # it was cut off, or another one is in its place
                behind = size
            if behind and chosen is None:
                chosen = path
            left += behind
        if chosen is None:
            return 0
        forgotten = read_forgotten(self._path.parent)
        try:
            return max(0, left - self._read_file(database, chosen, forgotten))
        except FileNotFoundError:  # deleted by its retention
            return left
        except (PermissionError, IsADirectoryError):  # of another user, or not for reading: the others are read
            self.unreadable.add(chosen.name)
            self._places[chosen.name] = chosen.stat().st_size
            return left

    def _read_file(self, database: sqlite3.Connection, path: Path, forgotten: Forgotten) -> int:
        """Take over a batch of one file; the bytes by which its reading advanced."""
        before = self._places.get(path.name, 0)
        with path.open("rb") as file, transaction(database):
            row = database.execute("SELECT id, chain, place, last FROM file WHERE name = ?", (path.name,)).fetchone()
            size = os.fstat(file.fileno()).st_size
            if row is not None and not _continues(file.fileno(), row[2], row[3], size):
                database.execute("DELETE FROM call WHERE file = ?", (row[0],))
                database.execute("DELETE FROM file WHERE id = ?", (row[0],))
                row = None
            id, chain, place, last = row or self._begin(database, path.name, file.readline(BATCH))
            file.seek(place)
            text = file.read(BATCH)
            text = text[: text.rfind(b"\n") + 1]
            if not text and size > place + BATCH:  # one line is longer
                file.seek(place)
                text = file.readline(LONGEST_LINE)
                text = text if text.endswith(b"\n") else b""
            if not text:  # its process is writing the line
                self._places[path.name] = size
                return size - before
            unread = self._take_over(database, id, chain, text, forgotten)
            forgotten.delete(database, id)
            place += len(text)
            database.execute(
                "UPDATE file SET place = ?, last = ?, unread = unread + ? WHERE id = ?",
                (place, hash_before(text) or last, unread, id),
            )
        self._places[path.name] = place
        return place - before

    def _begin(self, database: sqlite3.Connection, name: str, first: bytes) -> tuple[int, int, int, str]:
        """The row of a file that is read for the first time. It belongs to the chain of the file that it follows."""
        start = parse(first)
        former = None if start is None else start.record.get("former")
        query = "SELECT chain, config FROM file WHERE name = ?"
        found = database.execute(query, (former,)).fetchone() if isinstance(former, str) else None
        chain, config = found or (0, "")
        query = "INSERT INTO file (name, chain, config, place, last, unread) VALUES (?, ?, ?, 0, '', 0)"
        id = database.execute(query, (name, chain, config)).lastrowid
        assert id is not None
        if not chain:
            database.execute("UPDATE file SET chain = id WHERE id = ?", (id,))
        return id, chain or id, 0, ""

    def _take_over(self, database: sqlite3.Connection, id: int, chain: int, text: bytes, forgotten: Forgotten) -> int:
        """Add what these lines say; the number of lines that are no records."""
        records, unread = _records(text)
        since = self._since()
        ends = {each.of: each for each in records if each.kind == "outcome"}
        rows: list[tuple[object, ...]] = []
        for each in records:
            kind = each.kind
            if kind == "decision":
                if each.ts >= since:
                    # Because of its arguments, or since nobody could confirm so long ones: what is sent after a
                    # confirmation has a grant. There is no record of an outcome.
                    if each.verdict == "deny" or (each.verdict == "ask" and each.grant == ""):
                        each.outcome = DENIED
                    rows.append(_row(each, id, chain, "call", ends.pop(each.seq, each)))
            elif kind == "attempts":
                caller, first = each.principal or each.client or "", each.first or each.ts
                if each.ts >= since and not forgotten.covers(caller, first):  # made up to a minute before
                    each.ts = min(each.ts, f"{first[:19]}.999Z")  # `first` has no parts of a second
                    each.outcome = each.why or "others"
                    each.verdict = "deny" if each.why == DENIED else None
                    rows.append(_row(each, id, chain, "attempt", each))
            elif kind == "answer":
                if each.ts >= since and not each.grant:
                    each.verdict = "ask"  # of the rules, else nobody would have been asked
                    each.outcome = _ANSWERS.get(each.answer or "", each.answer)
                    rows.append(_row(each, id, chain, "question", each))
            elif kind == "config":
                database.execute("UPDATE file SET config = ? WHERE chain = ? AND config = ''", (each.file, chain))
        many = len(rows) // ROWS_AT_ONCE * ROWS_AT_ONCE
        for at in range(0, many, ROWS_AT_ONCE):
            database.execute(_ADD_MANY, [*itertools.chain.from_iterable(rows[at : at + ROWS_AT_ONCE])])
        database.executemany(_ADD, rows[many:])
        found = [(end.outcome, end.micros, end.bytes, end.tool_error, chain, of) for of, end in ends.items()]
        database.executemany(_END, found)
        return unread

    # Bounds

    def _since(self) -> str:
        """The time before which nothing is kept, as in a record."""
        return as_time(self._wall() - self.bounds.keep)

    def _trim(self, database: sqlite3.Connection) -> None:
        forgotten = read_forgotten(self._path.parent)
        with transaction(database):
            forgotten.delete(database)
        since = self._since()
        while _delete_oldest(database, "WHERE time < ?", (since,)):
            pass
        while _used_bytes(database) > self.bounds.max and _delete_oldest(database, "", ()):
            pass
        database.executescript("PRAGMA incremental_vacuum")  # `execute` would take one step of it
        names = {path.name for path in files(self._audit)}
        gone = [
            (id,) for id, name in database.execute("SELECT id, name FROM file").fetchall() if name not in names
        ]  # of a file that rows still name, the name is kept
        with transaction(database):
            database.executemany(
                """DELETE FROM file WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM call WHERE file = ?1)
                    AND NOT EXISTS (SELECT 1 FROM file AS next WHERE next.chain = ?1 AND next.id <> ?1)""",
                gone,
            )


def _records(text: bytes) -> tuple[list[_IndexedRecord], int]:
    """The records of these lines, and the number of lines that are none."""
    try:
        return _RECORDS.decode_lines(text), 0
    except DECODE_ERRORS:  # one by one, around what is damaged
        found: list[_IndexedRecord] = []
        lines = text.splitlines()
        for line in lines:
            with suppress(*DECODE_ERRORS):
                found.append(_RECORDS.decode(line))
        return found, len(lines) - len(found)


def _row(each: _IndexedRecord, file: int, chain: int, what: str, end: _IndexedRecord) -> tuple[object, ...]:
    """A row of the index, in the order of _COLUMNS. `end`: the record that has its outcome; else the same one."""
    process, args = each.process, each.args
    program = None if process is None else f"{process.program} ({process.pid})"
    size = None if args is None else args.bytes
    return (
        file,
        chain,
        each.seq,
        each.ts,
        each.hash[7 : 7 + HASH_LENGTH],
        what,
        each.principal,
        each.client,
        each.agent,
        program,
        each.view,
        each.server,
        each.prim,
        each.item,
        each.method,
        each.verdict,
        each.rule,
        each.approver,
        size,
        each.count,
        end.outcome,
        end.micros,
        end.bytes,
        end.tool_error,
    )


def _delete_oldest(database: sqlite3.Connection, condition: str, values: Sequence[object]) -> int:
    oldest = f"SELECT id FROM call {condition} ORDER BY time LIMIT {DELETED_AT_ONCE}"
    with transaction(database):
        return database.execute(f"DELETE FROM call WHERE id IN ({oldest})", values).rowcount


def _used_bytes(database: sqlite3.Connection) -> int:
    pages, free, size = (
        database.execute(f"PRAGMA {name}").fetchone()[0] for name in ("page_count", "freelist_count", "page_size")
    )
    return int((pages - free) * size)


def _prepare(database: sqlite3.Connection) -> None:
    # A caller that is forgotten must not stay in the file.
    database.execute("PRAGMA secure_delete = ON")
    database.execute("PRAGMA synchronous = NORMAL")  # what a power cut takes is read again
    # For a file that somebody may have changed (SQLite documentation, "Defense Against The Dark Arts").
    database.execute("PRAGMA cell_size_check = ON")
    database.execute("PRAGMA trusted_schema = OFF")
    database.execute("PRAGMA journal_mode = TRUNCATE")
    (application,) = database.execute("PRAGMA application_id").fetchone()
    (tables,) = database.execute("SELECT count(*) FROM sqlite_master").fetchone()
    if (application, _version(database)) == (_APPLICATION_ID, 3):
        with transaction(database):
            if _version(database) == 3:  # no other process was faster
                for statement in _FROM_VERSION_3:
                    database.execute(statement)
    if (application, _version(database)) == (_APPLICATION_ID, _SCHEMA_VERSION):
        return
    if (application, tables) != (0, 0):  # of another version, or of another program: there is no other copy to lose
        raise _Foreign
    database.execute(_SCHEMA[0])  # not within a transaction
    with transaction(database):
        if database.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
            for statement in _SCHEMA[1:]:
                database.execute(statement)


def _version(database: sqlite3.Connection) -> int:
    return int(database.execute("PRAGMA user_version").fetchone()[0])


class _Foreign(sqlite3.DatabaseError):
    """The file is no index of this version. It is treated as a damaged one."""

    sqlite_errorcode = sqlite3.SQLITE_NOTADB


def _continues(descriptor: int, place: int, last: str, size: int) -> bool:
    """Whether a file still has, before this place, the record of this hash."""
    if not place:
        return True
    return place <= size and (hash_before(os.pread(descriptor, min(place, 4096), max(0, place - 4096))) or "") == last


def as_time(seconds: float) -> str:
    """The time as in a record, of Unix seconds."""
    return datetime.fromtimestamp(max(seconds, 0.0), UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3] + "Z"


def _sentence(problem: sqlite3.Error) -> str:
    code = primary_code(problem)
    if code in BUSY:
        return (
            f"another process has held {NAME} for {sqlite_file.BUSY_LIMIT:g} s; calls go on, and the history is made "
            "up for later"
        )
    if code in _FULL:
        return f"{NAME} cannot be written ({problem}); calls go on, and the history is made up for once there is room"
    if code == sqlite3.SQLITE_INTERRUPT:
        return f"the search took longer than {QUERY_LIMIT:g} s; narrow it, for instance to a shorter time"
    return f"{NAME} cannot be used ({problem}); calls go on, and it may be deleted: it is built again"


def _is_damage(problem: sqlite3.Error) -> bool:
    return primary_code(problem) in DAMAGE or str(problem).startswith(_SAYS_DAMAGE)
