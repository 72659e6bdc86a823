"""Retention of the audit: files that are done with are deleted once they are too old, or all together too large.

Before a file is deleted, the audit gets a record `deleted` with its name, its last record and its hash. A file that its
process has open is never deleted.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

from host.audit.records import files, is_open, last_of

DELETED = "deleted"
RETENTION_INTERVAL = 3600.0
"""Seconds between two looks at the files."""


class Retention(NamedTuple):
    """How much is kept: `keep` in seconds after the last record, `max` in bytes of all files together."""

    keep: float
    max: int


class Expired(NamedTuple):
    """A file that is to be deleted; `seq` and `hash` are of its last record."""

    path: Path
    why: str
    seq: int
    hash: str

    def fields(self) -> dict[str, object]:
        """Those of the record `deleted`."""
        return {"file": self.path.name, "why": self.why, "last": self.seq, "last_hash": self.hash}


def find_expired(folder: Path, retention: Retention, now: float) -> list[Expired]:
    """The files to delete, oldest first. For a worker thread.

    Args:
        now: Unix time.

    Raises:
        OSError: they cannot be read.
    """
    known = list(_with_status(files(folder)))
    total = sum(status.st_size for _, status in known)
    found: list[Expired] = []
    for path, status in known:
        why = "age" if now - status.st_mtime > retention.keep else "size" if total > retention.max else ""
        if not why or is_open(path):
            continue
        try:
            seq, digest = last_of(path)
        except FileNotFoundError:
            continue
        found.append(Expired(path, why, seq, digest))
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
