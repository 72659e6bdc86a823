"""Errors, files and transactions of SQLite."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest

from host.storage.sqlite_file import BUSY, DAMAGE, connect, identity, primary_code, transaction


def test_errors_are_known_by_their_primary_code(tmp_path: Path) -> None:
    path = tmp_path / "a.db"
    with closing(sqlite3.connect(path, timeout=0)) as one, closing(sqlite3.connect(path, timeout=0)) as other:
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError) as busy:
            other.execute("BEGIN IMMEDIATE")
    assert primary_code(busy.value) in BUSY
    path.write_bytes(b"damaged")
    with closing(sqlite3.connect(path)) as database, pytest.raises(sqlite3.DatabaseError) as damaged:
        database.execute("SELECT 1 FROM sqlite_master")
    assert primary_code(damaged.value) in DAMAGE
    extended = sqlite3.OperationalError()
    extended.sqlite_errorcode = sqlite3.SQLITE_BUSY_SNAPSHOT
    assert primary_code(extended) == sqlite3.SQLITE_BUSY
    assert primary_code(sqlite3.ProgrammingError("of the module itself")) == 0


def test_another_file_at_the_same_path_has_another_identity(tmp_path: Path) -> None:
    path, other = tmp_path / "a.db", tmp_path / "b.db"
    assert identity(path) is None
    path.touch()
    other.touch()
    former = identity(path)
    path.write_bytes(b"grown")
    assert identity(path) == former
    other.rename(path)
    assert identity(path) not in (None, former)


def test_a_transaction_is_undone_if_its_block_raises_and_waits_for_others_a_while(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name = (tmp_path / "a.db").as_uri()
    with closing(connect(name)) as one, closing(connect(name)) as other:
        one.execute("CREATE TABLE t (x UNIQUE)")
        with transaction(one):
            one.execute("INSERT INTO t VALUES (1)")
        with pytest.raises(sqlite3.IntegrityError), transaction(one):
            one.executemany("INSERT INTO t VALUES (?)", [(2,), (1,)])
        assert other.execute("SELECT x FROM t").fetchall() == [(1,)]
        release = threading.Timer(0.05, one.execute, ("ROLLBACK",))
        one.execute("BEGIN IMMEDIATE")
        release.start()
        with transaction(other):  # raises at once without waiting
            other.execute("INSERT INTO t VALUES (3)")
        release.join()
        monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.01)
        one.execute("BEGIN IMMEDIATE")
        with pytest.raises(sqlite3.OperationalError, match="locked"), transaction(other):
            pass
