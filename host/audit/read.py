"""Reading the audit: the records of all files in the order of their time."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from threading import Event

from host.audit.records import files, parse

FOLLOW_INTERVAL = 0.2
"""Seconds between two looks at files that are followed."""


def records(
    where: Path | Iterable[Path],
    *,
    server: str | None = None,
    kind: str | None = None,
    since: float | None = None,
    caller: str | None = None,
    follow: bool = False,
) -> Iterator[dict[str, object]]:
    """The records in a folder, or in some files, in the order of their time. They are not verified.

    Args:
        since: Unix seconds.
        caller: the name of the caller, or of the client that it says it is.
        follow: go on with what comes, for ever, new files of the folder included; blocks meanwhile.
    """
    wanted = {"server": server, "kind": kind}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    after = "" if since is None else datetime.fromtimestamp(since, UTC).strftime("%Y-%m-%dT%H:%M:%S.%f")[:-3]

    def fits(record: dict[str, object]) -> bool:
        return (
            _time_of(record) >= after
            and all(record.get(name) == value for name, value in wanted.items())
            and (caller is None or caller in (record.get("principal"), record.get("client")))
        )

    tails: dict[Path, _Tail] = {}
    pause = Event()
    while True:
        for path in files(where) if isinstance(where, Path) else list(where):
            if path not in tails:
                tails[path] = _Tail(path)
        yield from filter(fits, heapq.merge(*(tail.read() for tail in tails.values()), key=_time_of))
        if not follow:
            return
        pause.wait(FOLLOW_INTERVAL)


def _time_of(record: dict[str, object]) -> str:
    return str(record["ts"])  # somebody may have written a number


class _Tail:
    """Reads on in a file from where it stopped, whole lines only."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._at = 0

    def read(self) -> Iterator[dict[str, object]]:
        try:
            file = self._path.open("rb")
        except OSError:
            return
        with file:
            file.seek(self._at)
            for line in file:
                if not line.endswith(b"\n"):
                    return
                self._at += len(line)
                if (parsed := parse(line)) is not None:
                    yield parsed.record
