"""What of the history is found, and the records of the audit behind it."""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from typing import Any

import pytest

from host.audit.writer import open_audit
from host.history.forgotten import forget
from host.history.search import (
    CallFilter,
    NewestCall,
    call_named,
    configurations,
    later_than,
    newest,
    present,
    records_of,
    search,
)

from .kit import Recorded, call

CALLS: tuple[dict[str, Any], ...] = (
    {"item": "a", "principal": "alice", "agent": "agent 1.2", "verdict": "allow", "tool_error": True},
    {"item": "b", "principal": "", "client": "ci, session x", "process": {"program": "code", "pid": 7}},
    {"item": "c", "principal": "bob", "agent": "agent-x", "server": "gh", "outcome": "error 504"},
    {"item": "d", "principal": "bob", "verdict": "deny", "outcome": ""},
    {"item": "e", "principal": "bob", "outcome": ""},
)


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ({}, "edcba"),
        ({"caller": "bob"}, "edc"),
        ({"caller": "ci, session x"}, "b"),
        ({"client": "agent"}, "a"),
        ({"client": "agent 1.2"}, "a"),
        ({"client": "agent 1"}, ""),
        ({"client": "code"}, "b"),
        ({"client": "c%"}, ""),
        ({"server": "gh"}, "c"),
        ({"tool": "a"}, "a"),
        ({"verdict": "deny"}, "d"),
        ({"outcome": "error"}, "c"),
        ({"outcome": "error 504"}, "c"),
        ({"outcome": "err"}, ""),
        ({"outcome": "answered"}, "ba"),
        ({"outcome": "tool error"}, "a"),
        ({"outcome": "denied"}, "d"),
        ({"outcome": "pending"}, "e"),
        ({"tool": "c"}, "c"),
        ({"tool": "gh__c"}, "c"),
        ({"tool": "github__c"}, ""),
        ({"outcome": "unknown"}, ""),
        ({"caller": "bob", "verdict": "allow"}, "ec"),
        ({"limit": 2}, "ed"),
        ({"since": "9999"}, ""),
        ({"before": "9999"}, "edcba"),
        ({"configs": ["/x/y"]}, "edcba"),
        ({"configs": ["/x"]}, ""),
        ({"configs": []}, ""),
    ],
)
def test_all_that_is_given_applies(recorded: Recorded, wanted: dict[str, Any], found: str) -> None:
    with open_audit(recorded.audit) as audit:
        audit.write("config", file="/x/y", policy="")
        for each in CALLS:
            call(audit, **each)
        rows = recorded.rows(**wanted)
        assert "".join(row["item"] for row in rows) == found
        if (outcome := wanted.get("outcome")) is not None:
            every = search(recorded.index, CallFilter())
            told = CallFilter(outcome=str(outcome))
            assert "".join(row["item"] for row in every if told.has_outcome(row)) == found
    assert configurations(recorded.index) == ["/x/y"]


def test_pages_follow_each_other_without_a_gap(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as one, open_audit(recorded.audit) as other:
        for number in range(10):
            call(one, f"a{number}")
            call(other, f"b{number}")
    every, place = [row["id"] for row in recorded.rows()], None
    paged: list[str] = []
    while rows := search(recorded.index, CallFilter(limit=3, beyond=place)):
        place = rows[-1]["place"]
        paged += [row["id"] for row in rows]
    assert paged == every
    assert len(set(every)) == 20


def test_a_caller_that_sees_its_own_calls_learns_nothing_of_others(recorded: Recorded) -> None:
    """Neither by a name that begins alike, nor by the place of a call, also of one of its name at another host."""
    with open_audit(recorded.audit) as audit, open_audit(recorded.audit) as other:
        for each, name in ((audit, "/x"), (other, "/y")):
            each.write("config", file=name, policy="")
            for number in range(4):
                call(each, f"{name}{number}", principal=("ann", "bob")[number % 2], client="ann")
        audit.write("attempts", server="s", prim="tool", item="hidden", principal="ann", why="denied", count=3)
    every = recorded.rows()
    assert len(every) == 9
    own = recorded.rows(only="ann", configs=["/x"])
    assert sorted(row["item"] for row in own) == ["/x0", "/x2"]
    assert recorded.rows(only="", configs=["/x"]) == []
    assert recorded.rows(only="ann", configs=["/x"], caller="bob") == []
    for row in every:
        is_own = row in own
        for place in (None, row["place"]):
            found = call_named(recorded.index, row["id"], place, ["/x"], "ann")
            assert found == (row if is_own else None)
        older = recorded.rows(only="ann", configs=["/x"], beyond=row["place"])
        assert older == (own[own.index(row) + 1 :] if is_own else [])


def test_what_comes_later_is_found_and_what_was_pending(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        seq = call(audit, "a", outcome="")
        recorded.read()
        place = newest(recorded.index).place
        call(audit, "b")
        audit.write("outcome", server="github", outcome="answered", of=seq, micros=1, bytes=1)
        recorded.read()
        found = later_than(recorded.index, place, [place], CallFilter(outcome="failed"))
        assert [(row["item"], row["outcome"]) for row in found] == [("a", "answered"), ("b", "answered")]


def test_what_comes_after_the_newest_calls_were_deleted_is_found(recorded: Recorded) -> None:
    """Their places are given again."""

    def later(mark: NewestCall) -> list[str]:
        return [row["item"] for row in later_than(recorded.index, mark.place, [], CallFilter())]

    with open_audit(recorded.audit) as audit:
        call(audit, "a")
        for item in ("b", "c"):
            call(audit, item, principal="bob")
        recorded.read()
        mark = newest(recorded.index)
        assert present(recorded.index, mark) == mark
        forget(recorded.state, "bob", mark.time)
        recorded.index.trim()
        assert present(recorded.index, mark).place == 1
        threading.Event().wait(0.001)  # the times of records are in milliseconds
        for item in ("d", "e"):
            call(audit, item)
        recorded.read()
        assert newest(recorded.index).place == mark.place
        assert later(present(recorded.index, mark)) == ["d", "e"]
        mark = newest(recorded.index)
        recorded.now += recorded.bounds.keep + 60
        recorded.index.trim()
        recorded.now = time.time()
        assert present(recorded.index, mark) == newest(recorded.index) == NewestCall()
        call(audit, "f")
        recorded.read()
        assert later(present(recorded.index, NewestCall())) == ["f"]


def outcomes(recorded: Recorded, **wanted: Any) -> list[tuple[str, str | None]]:
    return [(row["item"], row["outcome"]) for row in recorded.rows(**wanted)]


def test_a_call_of_a_host_that_has_ended_has_an_unknown_outcome(recorded: Recorded) -> None:
    """Only once the last of its files is closed and read; a part of a line at the end is no more to be read."""
    with open_audit(recorded.audit) as goes_on:
        call(goes_on, "there", outcome="")
        with open_audit(recorded.audit) as killed:
            seq = call(killed, "lost", outcome="")
            late = call(killed, "late", outcome="")
            assert outcomes(recorded) == [("late", None), ("lost", None), ("there", None)]
            killed.rotate()
            killed.write("outcome", server="github", outcome="answered", of=late, micros=1, bytes=1)
            assert outcomes(recorded) == [("late", "answered"), ("lost", None), ("there", None)]
            path = killed.path
        assert path is not None
        path.write_bytes(path.read_bytes()[:-20])
        fresh = [(row["item"], row["outcome"]) for row in search(recorded.index, CallFilter())]
        assert ("lost", None) in fresh
        assert outcomes(recorded, outcome="unknown") == [("lost", "unknown")]
        assert outcomes(recorded, outcome="pending") == [("there", None)]
        (row,) = recorded.rows(outcome="unknown")
        assert not row["pending"]
        assert [record["seq"] for record in records_of(recorded.audit, row)] == [seq]
        assert later_than(recorded.index, 0, [], CallFilter())[1]["outcome"] == "unknown"
        path.unlink()
        assert outcomes(recorded, outcome="unknown") == [("lost", "unknown")]


def test_nothing_is_unknown_while_a_file_waits_to_be_read(recorded: Recorded) -> None:
    """It may be of the same host."""
    with open_audit(recorded.audit) as audit:
        call(audit, "lost", outcome="")
    recorded.read()
    with open_audit(recorded.audit):
        assert [row["outcome"] for row in search(recorded.index, CallFilter())] == [None]
        recorded.read()
        assert [row["outcome"] for row in search(recorded.index, CallFilter())] == ["unknown"]


def test_a_row_leads_to_its_records(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        mark = '"of":3,"hash":"sha256:'
        call(audit, "a", rule=mark)
        call(audit, "b", outcome="")
        path = audit.path
    assert path is not None
    pending, done = recorded.rows()
    decision, outcome = records_of(recorded.audit, done)
    assert (decision["item"], decision["rule"], outcome["kind"], outcome["of"]) == ("a", mark, "outcome", 2)
    assert [record["item"] for record in records_of(recorded.audit, pending)] == ["b"]
    assert call_named(recorded.index, done["id"]) == call_named(recorded.index, done["id"][:12]) == done
    assert call_named(recorded.index, done["id"], done["place"]) == call_named(recorded.index, done["id"], 7) == done
    assert call_named(recorded.index, "") is None
    assert call_named(recorded.index, "f" * 17) is None
    path.write_bytes(b"")
    assert records_of(recorded.audit, done) == []
    path.unlink()
    assert records_of(recorded.audit, done) == []


def test_a_row_leads_to_an_outcome_in_a_later_file(recorded: Recorded) -> None:
    with open_audit(recorded.audit) as audit:
        seq = call(audit, "a", outcome="")
        audit.rotate()
        middle = audit.path
        with open_audit(recorded.audit) as other:
            call(other, "b")
        audit.rotate()
        audit.write("outcome", server="github", outcome="answered", of=seq, micros=1, bytes=1)
        (row,) = recorded.rows(tool="a")
        assert [record["kind"] for record in records_of(recorded.audit, row)] == ["decision", "outcome"]
        assert middle is not None
        middle.unlink()
        assert [record["kind"] for record in records_of(recorded.audit, row)] == ["decision"]


def test_a_search_loads_neither_the_configuration_nor_an_event_loop() -> None:
    """They would take three times as long as the rest of the command."""
    program = "import sys, host.cli.history, host.history.search; print({'config', 'trio'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
