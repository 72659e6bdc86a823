"""The index is a copy of the audit, whatever becomes of it, and of the audit's files."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
import time
from contextlib import closing, suppress
from pathlib import Path
from typing import Any

import pytest

from host.attempts import Reason
from host.audit.records import HistoryCall
from host.audit.writer import open_audit
from host.history import index as module
from host.history.forgotten import forget
from host.history.index import Bounds, HistoryIndex, HistoryUnavailable, as_time
from host.history.search import CallFilter, search

from .kit import Recorded, call, end


def items(rows: list[HistoryCall]) -> list[str]:
    return [row["item"] for row in rows]


def test_a_call_has_its_decision_and_its_outcome(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        audit.write("config", file="/x/colonnade.yaml", policy="")
        told: dict[str, Any] = {
            "view": "work",
            "agent": "agent 1.2",
            "process": {"program": "code", "pid": 7},
            "approver": "console",
        }
        call(audit, args={"bytes": 27, "digest": "sha256:1", "shape": {}}, method="tools/call", **told)
        (row,) = recorded.rows()
        assert audit.path is not None
        file = audit.path.name
    assert (row["file"], row["seq"], row["config"], row["what"]) == (file, 3, "/x/colonnade.yaml", "call")
    assert (row["caller"], row["client"], row["agent"], row["program"]) == (
        "alice",
        "a client",
        "agent 1.2",
        "code (7)",
    )
    assert (row["view"], row["server"], row["kind"], row["item"]) == ("work", "github", "tool", "create_issue")
    assert (row["method"], row["verdict"], row["rule"], row["approver"]) == (
        *("tools/call", "allow", "tools.ask: create_*", "console"),
    )
    assert (row["outcome"], row["seconds"], row["sent"], row["received"], row["count"]) == (
        "answered",
        0.0125,
        27,
        99,
        1,
    )
    assert recorded.index.remarks() == []


def test_an_outcome_comes_later_also_in_the_next_file(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        seq = call(audit, outcome="")
        assert [row["pending"] for row in recorded.rows()] == [True]
        audit.rotate()
        audit.write("outcome", server="github", outcome="error 504", of=seq, micros=1, bytes=0)
        audit.write("outcome", server="github", outcome="answered", of=seq + 1000, micros=1, bytes=0)
        assert [row["outcome"] for row in recorded.rows()] == ["error 504"]


def test_processes_number_their_records_each_for_itself(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as one, open_audit(recorded.audit) as other:
        call(one, "a", outcome="failed")
        call(other, "b", outcome="called off")
    assert {(row["item"], row["outcome"]) for row in recorded.rows()} == {("a", "failed"), ("b", "called off")}


def test_what_was_not_sent_is_there_too(recorded: Recorded) -> None:
    """Refused attempts, questions that nobody allowed, and calls that were denied by their arguments."""
    with open_audit(recorded.audit) as audit:
        audit.write("attempts", server="gh", prim="tool", item="gh__wipe", principal="ci", why=Reason.DENIED, count=214)
        audit.write("attempts", server="gh", prim="tool", item="gh__x", principal="ci", why=Reason.MISSING, count=1)
        audit.write("attempts", others={"wrong token": 160}, count=160)
        said = {"server": "gh", "prim": "tool", "item": "create", "principal": "ci", "rule": "tools.ask: create"}
        audit.write("answer", **said, answer="deny", by="console")
        audit.write("answer", **said, answer="once", by="console", grant="g")
        audit.write("answer", **said, answer="none", why="timeout")
        call(audit, outcome="", verdict="deny")
    rows = recorded.rows()[::-1]
    assert [(row["what"], row["verdict"], row["outcome"], row["count"], row["pending"]) for row in rows] == [
        ("attempt", "deny", "denied", 214, False),
        ("attempt", "", "missing", 1, False),
        ("attempt", "", "others", 160, False),
        ("question", "ask", "denied", 1, False),
        ("question", "ask", "unanswered", 1, False),
        ("call", "deny", "denied", 1, False),
    ]


def test_it_goes_on_where_it_stopped_and_takes_nothing_twice(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Batches of a few lines, lines that are longer than a batch, and a line of which only a part is written."""
    monkeypatch.setattr(module, "BATCH", 2000)
    with open_audit(recorded.audit) as audit:
        for number in range(12):
            call(audit, f"tool{number}")
        call(audit, "long", args={"json": "x" * 5000})
        call(audit, "last")
        left = recorded.index.read_on()
        assert left > 0
        recorded.index.close()
        recorded.index = recorded.open()
        assert recorded.index.read_on() < left
        assert items(recorded.rows()) == ["last", "long", *(f"tool{number}" for number in reversed(range(12)))]
        path = audit.path
    assert path is not None
    whole = path.read_bytes()
    path.write_bytes(whole[:-20])
    assert recorded.index.read_on() == 0
    path.write_bytes(whole + whole.splitlines(keepends=True)[1])
    assert recorded.index.read_on() == 0
    assert len(recorded.rows()) == 14


def test_a_file_in_the_place_of_another_is_read_from_its_beginning(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
        path = audit.path
    assert path is not None
    assert items(recorded.rows()) == ["one"]
    with open_audit(recorded.state / "other") as audit:
        call(audit, "two")
        call(audit, "three")
        other = audit.path
    assert other is not None
    os.replace(other, path)
    assert items(recorded.rows()) == ["three", "two"]
    path.write_bytes(path.read_bytes()[:700])
    assert items(recorded.rows()) == []


def test_damaged_lines_are_counted_and_the_others_are_read(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        for name in ("one", "two", "three", "four"):
            call(audit, name)
        path = audit.path
    assert path is not None
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"kind":"decision",\xff\n'
    lines[3] = b'{"kind":"decision"\n'
    lines.insert(4, b'{"kind":"decision","ts":"9999"}\n[]\n7\n\n')
    lines.insert(4, b'{"kind":"decision","x":' + b"[" * 10_000 + b"]" * 10_000 + b"}\n")
    lines.insert(4, lines[2].replace(b'"seq":', b'"count":18446744073709551616,"seq":'))
    path.write_bytes(b"".join(lines))
    assert items(recorded.rows()) == ["four", "three"]
    assert recorded.index.remarks() == [f"8 lines of {path.name} are damaged, and missing"]


@pytest.mark.parametrize("problem", [PermissionError(13, "Permission denied"), IsADirectoryError(21, "Is a directory")])
def test_what_cannot_be_read_is_said(recorded: Recorded, monkeypatch: pytest.MonkeyPatch, problem: OSError) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
    with open_audit(recorded.audit) as audit:
        call(audit, "two")
        path = audit.path
    assert path is not None
    path_open = Path.open

    def refuse(self: Path, mode: str = "r") -> object:
        if self == path:
            raise problem
        return path_open(self, mode)

    monkeypatch.setattr(Path, "open", refuse)
    assert items(recorded.rows()) == ["one"]
    assert recorded.index.remarks() == [f"{path.name} cannot be read, and its calls are missing"]


@pytest.mark.parametrize("damage", [b"", b"no database", b"SQLite format 3\0" + bytes(4096)])
def test_a_damaged_index_is_built_again(recorded: Recorded, damage: bytes) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
    assert items(recorded.rows()) == ["one"]
    (recorded.state / "history.db").write_bytes(damage)
    with pytest.raises(HistoryUnavailable, match=r"was damaged, and is built again from the audit: try again"):
        recorded.rows()
    assert items(recorded.rows()) == ["one"]
    (recorded.state / "history.db").write_bytes(damage)
    recorded.index.trim()
    assert items(recorded.rows()) == ["one"]
    assert recorded.index.rebuilds == 2
    assert (recorded.state / "history.db").stat().st_mode & 0o777 == 0o600


def test_an_index_that_is_damaged_in_the_middle_is_built_again(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        for number in range(300):
            call(audit, f"tool{number}")
    recorded.read()
    with (recorded.state / "history.db").open("r+b") as file:
        rest = file.seek(0, os.SEEK_END) - 4096
        file.seek(4096)
        file.write(os.urandom(rest))
    recorded.index.close()
    with suppress(HistoryUnavailable):  # it is found by the reading or by the search
        recorded.rows()
    assert len(recorded.rows(limit=500)) == 300


def test_a_text_that_is_damaged_within_a_sound_page_is_read_again(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
    recorded.read()
    path = recorded.state / "history.db"
    path.write_bytes(path.read_bytes().replace(b"alice", b"\xff\xff\xff\xff\xff"))
    recorded.index.close()
    with pytest.raises(HistoryUnavailable, match="is built again"):
        recorded.rows()
    assert [row["caller"] for row in recorded.rows()] == ["alice"]


def test_an_index_of_another_version_is_built_again_and_a_link_is_not_followed(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
    with closing(sqlite3.connect(recorded.state / "history.db")) as database:
        database.execute("CREATE TABLE call (x)")
        database.commit()
    assert items(recorded.rows()) == ["one"]
    recorded.index.close()
    target = recorded.state / "target"
    target.write_bytes(b"")
    (recorded.state / "history.db").unlink()
    (recorded.state / "history.db").symlink_to(target)
    with pytest.raises(HistoryUnavailable, match="was not a regular file, and is removed; try again"):
        recorded.rows()
    assert items(recorded.rows()) == ["one"]
    assert target.read_bytes() == b""


def test_an_index_of_the_former_version_is_taken_over(recorded: Recorded) -> None:
    """It says of no call that its tool failed, whatever the audit says, which is read again. Rows stay whose file is
    gone."""
    with open_audit(recorded.audit) as audit:
        call(audit, "gone")
        call(audit, "denied", verdict="deny", outcome="")
        call(audit, "long", verdict="ask", outcome="", grant="", approver="")
        path = audit.path
    with open_audit(recorded.audit) as audit:
        call(audit, "fails", tool_error=True)
        late = call(audit, "late", outcome="")
        audit.rotate()
        end(audit, late, tool_error=True)
        call(audit, "last")
    assert len(recorded.rows()) == 6
    assert path is not None
    path.unlink()
    recorded.index.close()
    with closing(sqlite3.connect(recorded.state / "history.db")) as former:
        former.execute("ALTER TABLE call DROP COLUMN tool_error")
        former.execute("UPDATE call SET outcome = NULL WHERE verdict <> 'allow'")
        former.execute("PRAGMA user_version = 3")
        former.commit()
    other = recorded.open()
    for index in (recorded.index, other):
        while index.read_on():
            pass
        index.trim()
        rows = {row["item"]: (row["outcome"], row["tool_error"]) for row in search(index, CallFilter())}
        assert rows == {
            "gone": ("answered", False),
            "denied": ("denied", False),
            "long": ("denied", False),
            "fails": ("answered", True),
            "late": ("answered", True),
            "last": ("answered", False),
        }
        assert index.rebuilds == 0
    other.close()


def test_a_call_was_denied_that_was_too_long_to_be_confirmed(recorded: Recorded) -> None:
    """Its record has the verdict of the rules. What is sent after a confirmation has a grant."""
    with open_audit(recorded.audit) as audit:
        for item, grant in (("long", ""), ("sent", "g1")):
            call(audit, item, verdict="ask", outcome="", grant=grant)
        rows = recorded.rows()
    assert {row["item"]: (row["outcome"], row["pending"]) for row in rows} == {
        "long": ("denied", False),
        "sent": (None, True),
    }


def test_two_processes_keep_one_index(recorded: Recorded) -> None:
    """Also when one of them deletes it."""
    other = recorded.open()
    with open_audit(recorded.audit) as audit:
        for number in range(3):
            call(audit, f"tool{number}")
            assert other.read_on() == 0
            assert recorded.index.read_on() == 0
        (recorded.state / "history.db").unlink()
        call(audit, "last")
        assert len(recorded.rows()) == 4
        assert len(search(other, CallFilter())) == 4
    other.close()


def test_a_foreign_lock_is_said_and_waited_for(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.0)
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
        recorded.read()
        call(audit, "two")
        with closing(sqlite3.connect(recorded.state / "history.db", isolation_level=None)) as holder:
            holder.execute("BEGIN IMMEDIATE")
            recorded.index.close()
            with pytest.raises(HistoryUnavailable, match=r"another process has held history\.db"):
                recorded.read()
            assert items(search(recorded.index, CallFilter())) == ["one"]
        assert items(recorded.rows()) == ["two", "one"]


def test_a_full_disk_is_said_and_made_up_for(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
        recorded.read()
        for number in range(100):
            call(audit, f"tool{number}")

        def fill(database: sqlite3.Connection, pages: int) -> None:
            database.execute(f"PRAGMA max_page_count = {pages}").fetchone()

        recorded.index.select(lambda database: fill(database, 1))
        with pytest.raises(
            HistoryUnavailable, match=r"cannot be written .*full.*; calls go on, and the history is made"
        ):
            recorded.read()
        assert items(search(recorded.index, CallFilter())) == ["one"]
        recorded.index.select(lambda database: fill(database, 100_000))
        assert len(recorded.rows(limit=500)) == 101


KILLED = """
import os, signal, sys
from pathlib import Path
from host.history import index
from host.history.index import Bounds, HistoryIndex

index.BATCH = 1500
state, left = Path(sys.argv[1]), int(sys.argv[2])
made = HistoryIndex(state, state / "audit", Bounds())

def note(statement):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)

made.select(lambda database: database.set_trace_callback(note))
while made.read_on():
    pass
"""


@pytest.mark.slow
@pytest.mark.parametrize("at", [2, 9, 14, 21, 40])
def test_a_killed_process_leaves_nothing_half_done(recorded: Recorded, at: int) -> None:
    with open_audit(recorded.audit) as audit:
        for number in range(30):
            call(audit, f"tool{number}")
    done = subprocess.run([sys.executable, "-c", KILLED, str(recorded.state), str(at)], check=False)
    assert done.returncode == -signal.SIGKILL
    rows = recorded.rows(limit=500)
    assert items(rows) == [f"tool{number}" for number in reversed(range(30))]
    assert {row["outcome"] for row in rows} == {"answered"}


def test_old_calls_are_deleted_and_not_read_again(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
    assert items(recorded.rows()) == ["one"]
    recorded.now += recorded.bounds.keep + 60
    recorded.index.trim()
    assert recorded.rows() == []
    (recorded.state / "history.db").unlink()
    assert recorded.rows() == []


def test_the_oldest_calls_are_deleted_when_they_take_too_much(
    recorded: Recorded, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DELETED_AT_ONCE", 50)
    recorded.index.bounds = Bounds(max=50_000)
    with open_audit(recorded.audit) as audit:
        for number in range(200):
            call(audit, f"tool{number}")
        recorded.read()
        before = (recorded.state / "history.db").stat().st_size
        recorded.index.trim()
        assert (recorded.state / "history.db").stat().st_size <= 50_000 < before
        rows = recorded.rows(limit=500)
        assert 50 <= len(rows) < 200
        assert rows[0]["item"] == "tool199"


def test_a_file_that_is_gone_keeps_its_name_as_long_as_its_calls_are_there(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
        path = audit.path
    assert path is not None
    recorded.read()
    path.unlink()
    recorded.index.trim()
    assert [row["file"] for row in recorded.rows()] == [path.name]
    recorded.now += recorded.bounds.keep + 60
    recorded.index.trim()
    assert recorded.index.select(lambda database: database.execute("SELECT name FROM file").fetchall()) == []


def test_a_caller_is_forgotten_also_by_an_index_that_is_built_anew(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one")
        call(audit, "two", principal="bob")
        recorded.read()
        forget(recorded.state, "alice", as_time(recorded.now + 60))
        recorded.index.trim()
        assert items(recorded.rows()) == ["two"]
        assert b"alice" not in (recorded.state / "history.db").read_bytes()
        (recorded.state / "history.db").unlink()
        assert items(recorded.rows()) == ["two"]


def test_a_client_without_a_token_is_forgotten_by_what_the_log_calls_it(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        call(audit, "one", principal="", client="desk 1.0")
        call(audit, "one", principal=None, client="desk 1.0")
        call(audit, "two", client="desk 1.0")
        recorded.read()
    forget(recorded.state, "desk 1.0", as_time(recorded.now + 60))
    recorded.index.trim()
    assert items(recorded.rows()) == ["two"]


def test_attempts_of_the_minute_in_which_a_caller_is_forgotten_are_forgotten(recorded: Recorded) -> None:
    """They are recorded at its end."""
    forget(recorded.state, "ci", as_time(recorded.now - 30))
    with open_audit(recorded.audit) as audit:
        for caller, before in (("ci", 31), ("ci", 30), ("ci", 29), ("ann", 31)):
            first = f"{as_time(recorded.now - before)[:19]}Z"
            audit.write("attempts", principal=caller, why="denied", item=f"{caller} {before}", count=2, first=first)
        audit.write("attempts", others={"denied": 3}, count=3)
    assert items(recorded.rows()) == ["", "ci 29", "ann 31"]


def test_attempts_have_the_time_of_the_first_one(recorded: Recorded) -> None:
    """Their record is written up to a minute later. One of attempts without names has no time but its own."""
    first = as_time(recorded.now - 40)[:19]
    with open_audit(recorded.audit) as audit:
        call(audit, "between")
        audit.write("attempts", principal="ci", why="denied", item="old", count=2, first=f"{first}Z")
        audit.write("attempts", others={"denied": 3}, count=3)
        second = as_time(time.time())[:19]
        audit.write("attempts", principal="ci", why="denied", item="new", count=1, first=f"{second}Z")
    rows = recorded.rows()
    assert items(rows) == ["new", "", "between", "old"]
    assert rows[-1]["time"] == f"{first}.999Z"
    assert rows[0]["time"] <= as_time(time.time()), "no attempt is in the future"


def test_a_search_ends(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "QUERY_LIMIT", -1.0)
    endless = "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM n) SELECT max(x) FROM n"
    with pytest.raises(HistoryUnavailable, match="narrow it"):
        recorded.index.select(lambda database: database.execute(endless).fetchall())


def test_hostile_text_is_data(recorded: Recorded) -> None:
    name = "x'); DROP TABLE call; --\"\\\n\x1b[31m\u202e\ud800"
    with open_audit(recorded.audit) as audit:
        call(audit, name, server="</script>")
    (row,) = recorded.rows()
    assert "DROP TABLE" in row["item"]
    assert row["item"].isprintable()
    assert row["server"] == "</script>"
    assert json.loads(json.dumps(row["item"])) == row["item"]


def test_nothing_is_read_where_nothing_is(tmp_path: Path) -> None:
    with closing(HistoryIndex(tmp_path, tmp_path / "audit", Bounds())) as index:
        assert index.read_on() == 0
        index.trim()
        assert search(index, CallFilter()) == []
