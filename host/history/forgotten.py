"""Callers that the history is to forget. The index does not name them: it can be deleted, and is built again from the
audit, which keeps its records, since nothing can be taken out of a chain."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import msgspec

NAME = "history-forgotten"
_SECONDS = 19
"""Characters of a time in a record up to its seconds."""


class Forgotten(NamedTuple):
    """By caller, the time, as in a record, up to which its calls are forgotten. A client without a name as a caller is
    meant by what the log calls it, as in a search."""

    until: Mapping[str, str]

    def covers(self, caller: str, time: str) -> bool:
        """Whether this is forgotten. Parts of a second do not count: a record may have none."""
        return time[:_SECONDS] <= self.until.get(caller, "")[:_SECONDS]

    def delete(self, database: sqlite3.Connection, file: int | None = None) -> int:
        """Delete the rows of these callers, of one file of the audit or of all; how many there were."""
        condition, more = ("", ()) if file is None else (" AND file = ?", (file,))
        return sum(
            database.execute(
                f"DELETE FROM call WHERE coalesce(nullif(caller, ''), client) = ? AND time <= ?{condition}",
                (*each, *more),
            ).rowcount
            for each in self.until.items()
        )


def read_forgotten(state: Path) -> Forgotten:
    """The callers that are to be forgotten; of lines that are none, nothing.

    Raises:
        OSError: the file cannot be read. Nothing may be shown then.
    """
    until: dict[str, str] = {}
    with suppress(FileNotFoundError):
        for line in (state / NAME).read_bytes().splitlines():
            with suppress(msgspec.MsgspecError):
                for caller, time in msgspec.json.decode(line, type=dict[str, str]).items():
                    until[caller] = max(time, until.get(caller, ""))  # a clock may have been set back
    return Forgotten(until)


def forget(state: Path, caller: str, until: str) -> None:
    """Have the calls of a caller up to this time forgotten, also by an index that is built anew.

    Raises:
        OSError: that cannot be written.
    """
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
    with open(os.open(state / NAME, flags, 0o600), "ab") as file:
        # On a line of its own, also behind one that a full disk has cut off.
        file.write(b"\n" + msgspec.json.encode({caller: until}) + b"\n")
        file.flush()
        os.fsync(file.fileno())
