"""Records are found by what a person looks for."""

from __future__ import annotations

import threading
import time
from pathlib import Path

import pytest

from host.audit.read import records
from host.audit.writer import open_audit
from tests.host.audit.kit import written


def test_records_by_what_one_looks_for(folder: Path) -> None:
    with open_audit(folder) as one, open_audit(folder) as other:
        one.write("decision", server="a", principal="alice", client="x")
        other.write("decision", server="b", principal="bob", client="x")
        one.write("outcome", server="a", of=2)
        middle = time.time() + 0.002
        time.sleep(0.005)  # noqa: TID251 - no loop is held up
        other.write("outcome", server="b", of=2)
    everything = list(records(folder))
    assert len(everything) == 8
    assert [record["ts"] for record in everything] == sorted(str(record["ts"]) for record in everything)

    def found(**filters: str) -> list[tuple[object, object]]:
        return [(record.get("server"), record["kind"]) for record in records(folder, **filters)]  # type: ignore[arg-type]

    assert found(server="a") == [("a", "decision"), ("a", "outcome")]
    assert found(kind="outcome") == [("a", "outcome"), ("b", "outcome")]
    assert found(caller="bob") == [("b", "decision")]
    assert len(found(caller="x")) == 2
    assert found(caller="x", server="a", kind="decision") == [("a", "decision")]
    since = sorted(str(record["kind"]) for record in records(folder, since=middle))  # of one millisecond in any order
    assert since == ["outcome", "stop", "stop"]
    assert one.path is not None
    assert {record["server"] for record in records([one.path], kind="decision")} == {"a"}
    assert list(records(folder / "nowhere")) == []


@pytest.mark.slow
def test_following_sees_what_comes(folder: Path) -> None:
    with open_audit(folder) as audit:
        audit.write("decision", number=1)
        following = records(folder, kind="decision", follow=True)
        assert next(following)["number"] == 1
        later = threading.Timer(0.3, lambda: written(folder, 1))
        later.start()
        assert next(following)["number"] == 0  # of another file
        later.join()
        audit.write("decision", number=2)
        assert next(following)["number"] == 2
