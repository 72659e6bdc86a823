"""The forms of events in a log: text, JSON, or fields in the journal of systemd."""

from __future__ import annotations

import json
import logging
import os
import re
import socket
from datetime import UTC, datetime
from typing import Any

import msgspec

from host.journal import (
    AttemptRefused,
    Event,
    InternalError,
)

TEXT = "%(asctime)s %(levelname)s %(message)s"
JOURNAL_SOCKET = "/run/systemd/journal/socket"
"""Where systemd's journal takes entries with fields (systemd, "Native Journal Protocol")."""
MAX_FIELD = 32 * 1024
"""Characters of a field for the journal: an entry must fit into one datagram."""
_PRIORITIES = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""Those of syslog, by levels of `logging`."""
_CAPITAL = re.compile(r"(?<=[a-z])(?=[A-Z])")
_FORMATTER = logging.Formatter()


def fields_of(record: logging.LogRecord) -> dict[str, Any]:
    """The fields of a log record, without empty ones: `part` and `event`, the members of the event, `held` for the
    number of others like it that are not logged, and `exception`. A record that is no event has its `logger`."""
    event: Event | None = getattr(record, "event", None)
    fields: dict[str, Any] = {}
    if event is None:
        fields["logger"] = record.name
    else:
        fields |= {"part": event.part, "event": _CAPITAL.sub("_", type(event).__name__).lower()}
        fields |= {name: value for name, value in _members(event).items() if value not in ("", (), None)}
        if held := getattr(record, "held", 0):
            fields["held"] = held
    if record.exc_info:
        fields["exception"] = _FORMATTER.formatException(record.exc_info)
    return fields


def _members(event: Event) -> dict[str, Any]:
    if isinstance(event, InternalError):
        # The exception is in `exception`.
        return {"where": event.where, "caller": event.caller, "trace_id": event.trace_id}
    members: dict[str, Any] = msgspec.to_builtins(event)
    if isinstance(event, AttemptRefused):
        members |= members.pop("attempt")
        members["caller"] = members.pop("client")
    return members


class JsonFormatter(logging.Formatter):
    """One object in each line, in ASCII: `time` (RFC 3339, UTC, milliseconds), `level`, `message` and the fields."""

    def format(self, record: logging.LogRecord) -> str:
        time = datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        line = {"time": time, "level": record.levelname.lower(), "message": record.getMessage(), **fields_of(record)}
        return _json(line)


class JournalHandler(logging.Handler):
    """Sends records to the journal of systemd, with `COLONNADE_` before the names of fields. It never waits: an entry
    that the journal does not take at once is lost."""

    def __init__(self, path: str = JOURNAL_SOCKET) -> None:
        super().__init__()
        self._path = path
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        self._socket.setblocking(False)

    def emit(self, record: logging.LogRecord) -> None:
        fields = {
            "MESSAGE": record.getMessage(),
            "PRIORITY": _PRIORITIES.get(record.levelno, 6),
            "SYSLOG_IDENTIFIER": "colonnade",
            **{f"COLONNADE_{name.upper()}": value for name, value in fields_of(record).items()},
        }
        try:
            # To the path each time: the journal may have been started again.
            self._socket.sendto(b"".join(_entry_line(name, value) for name, value in fields.items()), self._path)
        except OSError:
            return

    def close(self) -> None:
        self._socket.close()
        super().close()


def _entry_line(name: str, value: object) -> bytes:
    text = value if isinstance(value, str) else _json(value)
    data = text[:MAX_FIELD].encode(errors="backslashreplace")
    if b"\n" not in data:
        return name.encode() + b"=" + data + b"\n"
    return name.encode() + b"\n" + len(data).to_bytes(8, "little") + data + b"\n"


def _json(value: object) -> str:
    """JSON in ASCII. A line may be read on a terminal, which characters beyond can steer (U+009B, U+202E)."""
    try:
        text = msgspec.json.encode(value)
    except UnicodeEncodeError:  # a lone surrogate, which stands for a byte in the name of a file
        return json.dumps(value)
    return text.decode() if text.isascii() else json.dumps(msgspec.json.decode(text))


def is_journal(descriptor: int, stream: str | None) -> bool:
    """Whether a descriptor leads to the journal of systemd, which takes entries with fields, too.

    Args:
        stream: the value of JOURNAL_STREAM: the device and the inode of what systemd gave to the service.
    """
    try:
        found = os.fstat(descriptor)
    except OSError:
        return False
    return stream == f"{found.st_dev}:{found.st_ino}" and os.path.exists(JOURNAL_SOCKET)
