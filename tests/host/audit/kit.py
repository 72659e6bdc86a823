"""Files of an audit for its tests."""

from __future__ import annotations

import json
import threading
from pathlib import Path

from host.audit.verify import Integrity, Verification, verify_all
from host.audit.writer import open_audit

FIELDS: dict[str, object] = {
    "server": "github",
    "prim": "tool",
    "item": "create_issue",
    "item_fp": "sha256:" + 64 * "a",
    "principal": "alice",
    "client": "a client",
    "args": {"digest": "sha256:" + 64 * "b", "shape": {"title": "str[42]", "labels": "arr[2]"}},
    "verdict": "ask",
    "rule": "tools.ask: create_*",
}


def written(folder: Path, count: int = 5) -> Path:
    """A file with `count` decisions in it, and its start and stop, which is newer than those before."""
    threading.Event().wait(0.001)  # the times of records are in milliseconds
    with open_audit(folder) as audit:
        for number in range(count):
            audit.write("decision", number=number, **FIELDS)
            if audit.is_full:
                audit.rotate()
        path = audit.path
    assert path is not None
    return path


def lines_of(path: Path) -> list[bytes]:
    return path.read_bytes().splitlines(keepends=True)


def decoded(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in lines_of(path)]


def verify(path: Path) -> Verification:
    """What the verification of its folder says of one file, without a key."""
    (found,) = (each for each in verify_all(path.parent).verified if each.path == path)
    return found


def is_broken(path: Path, seq: int, why: str) -> None:
    """`seq`: the first record that is not as it was written."""
    found = verify(path)
    assert (found.integrity, found.seq + 1) == (Integrity.BROKEN, seq)
    assert why in found.why


def is_incomplete(path: Path, why: str) -> None:
    found = verify(path)
    assert found.integrity is Integrity.INCOMPLETE
    assert why in found.why


def is_unfinished(path: Path, seq: int, why: str) -> None:
    found = verify(path)
    assert (found.integrity, found.seq) == (Integrity.UNFINISHED, seq)
    assert found.integrity.is_sound
    assert why in found.why
