"""The file of a SQLite database, its transactions, and the codes of its errors: for the store, and for the index of the
history."""

from __future__ import annotations

import os
import random
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar

T = TypeVar("T")

BUSY_LIMIT = 1.0
"""Seconds to wait for another process's transaction. It takes milliseconds, unless that process was stopped in it."""
BUSY = (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED)
"""Another process holds the database."""
DAMAGE = (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB)
"""The file is no sound database."""


def primary_code(problem: sqlite3.Error) -> int:
    """The primary result code (SQLite documentation, "Result and Error Codes")."""
    return getattr(problem, "sqlite_errorcode", 0) & 0xFF


def identity(path: Path) -> tuple[int, int] | None:
    """The identity of a file (device and inode), which another file at the same path does not have; None without a
    file."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


def connect(name: str) -> sqlite3.Connection:
    """A connection that never waits for another one: see `insist`. `name`: a URI."""
    return sqlite3.connect(name, timeout=0.0, isolation_level=None, check_same_thread=False, uri=True)


def insist(work: Callable[[], T]) -> T:
    """Do what another process may keep from being done for a moment, as often as needed within BUSY_LIMIT.

    SQLite's own waiting sleeps up to 0.1 s between two tries, and beside one or two processes that write without a
    pause it found no gap within a second (measured).
    """
    deadline = time.monotonic() + BUSY_LIMIT
    while True:
        try:
            return work()
        except sqlite3.OperationalError as problem:
            if primary_code(problem) not in BUSY or time.monotonic() >= deadline:
                raise
        threading.Event().wait(random.uniform(0.0005, 0.002))


@contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """The right to change the database, for the block; on disk when the block ends, undone if it raises."""
    insist(lambda: connection.execute("BEGIN IMMEDIATE"))
    try:
        yield
        insist(lambda: connection.execute("COMMIT"))  # readers hold it up
    except BaseException:
        with suppress(sqlite3.Error):  # the first problem is the one to raise
            if connection.in_transaction:
                connection.execute("ROLLBACK")
        raise
