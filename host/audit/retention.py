"""Retention of the audit: files that are done with are deleted once they are too old, or all together too large.

Before a file is deleted, the audit gets a record `deleted` with its name, its last record and its hash, so that
verification still closes. A file that its process has open is never deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from host.audit.records import files, first_of, index_in, is_open, last_of
from host.audit.seal import locked, read_state, with_index, write_state

DELETED = "deleted"
RETENTION_INTERVAL = 3600.0
"""Seconds between two looks at the files."""


class Retention(NamedTuple):
    """How much is kept: `keep` in seconds after the last record, `max` in bytes of all files together."""

    keep: float
    max: int


class Expired(NamedTuple):
    """A file that is to be deleted; `seq` and `hash` are of its last record, `place` is its index in the chain."""

    path: Path
    why: str
    seq: int
    hash: str
    place: int | None
    ranges: tuple[tuple[int, int], ...]
    """Indexes of all files of the chain that are deleted then."""

    def fields(self) -> dict[str, object]:
        """Those of the record `deleted`."""
        found: dict[str, object] = {"file": self.path.name, "why": self.why, "last": self.seq, "last_hash": self.hash}
        if self.place is not None:
            found |= {"index": self.place, "deleted": [list(each) for each in self.ranges]}
        return found


def find_expired(folder: Path, retention: Retention, now: float) -> list[Expired]:
    """The files to delete, oldest first. For a worker thread.

    Args:
        now: Unix time.

    Raises:
        OSError: they cannot be read.
    """
    known = list(_with_status(files(folder)))
    total = sum(status.st_size for _, status in known)
    state = read_state(folder)
    ranges = () if state is None else state.deleted
    found: list[Expired] = []
    for path, status in known:
        why = "age" if now - status.st_mtime > retention.keep else "size" if total > retention.max else ""
        if not why or is_open(path):
            continue
        try:
            first, last = first_of(path), last_of(path)
        except FileNotFoundError:
            continue
        index = (
            None
            if first is None or state is None or first.record.get("chain") != state.chain
            else index_in(first.record)
        )
        if index is not None:
            ranges = with_index(ranges, index)
        seq, digest = (0, "") if last is None else (int(str(last.record["seq"])), last.hash)
        found.append(Expired(path, why, seq, digest, index, ranges))
        total -= status.st_size
    return found


def _with_status(paths: Iterable[Path]) -> Iterator[tuple[Path, os.stat_result]]:
    for path in paths:
        with suppress(FileNotFoundError):  # another host was faster
            yield path, path.stat()


def remove(folder: Path, expired: Expired) -> None:
    """Delete the file, and note its last record in `deleted` beside the files, since the record of the deletion may be
    deleted before the file that follows this one. For a worker thread.

    Raises:
        OSError: that is not possible.
    """
    if expired.place is not None:
        with locked(folder):
            state = read_state(folder)
            if state is not None:
                deleted = with_index(state.deleted, expired.place)
                write_state(folder, msgspec.structs.replace(state, deleted=deleted))
    note = msgspec.json.encode({"file": expired.path.name, "last": expired.seq, "last_hash": expired.hash}) + b"\n"
    descriptor = os.open(folder / DELETED, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "ab") as file:
        file.write(note)
        file.flush()
        os.fsync(file.fileno())
    with suppress(FileNotFoundError):
        expired.path.unlink()
    with suppress(FileNotFoundError):  # beside files of former versions
        expired.path.with_name(expired.path.name + ".head").unlink()
