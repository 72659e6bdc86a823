"""Event streams (`text/event-stream`), read and written. Pure: bytes in, events out, and back.

Source: WHATWG HTML, "Server-sent events", sections "Parsing" and "Interpreting an event stream". This file knows lines
and fields; it does not know what an event carries, when to connect again, or what a client does with an id.
"""

from __future__ import annotations

from dataclasses import dataclass

from host.jsonrpc.raw import one_line

MAX_EVENT = 8 * 1024 * 1024

_MARK = b"\xef\xbb\xbf"
_COLON = ord(":")
_MAX_RETRY_DIGITS = 15


class EventTooLong(ValueError):
    """The peer sent more than MAX_EVENT bytes without ending the event."""


@dataclass(frozen=True, slots=True)
class Event:
    data: bytes
    """The lines of data, joined by `\\n`. Not checked to be UTF-8."""
    event: str = "message"
    id: str = ""
    """The stream's last id when this event came; empty if it never gave one."""


class EventParser:
    """Takes the bytes of a stream as they come and gives whole events; an event cut off by the end is never given."""

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.last_id = ""
        """The id to resume after: that of the last event that ended, with data or without; empty if there is none."""
        self.retry: float | None = None
        """Seconds to wait before connecting again, as the stream asked; None if it did not."""
        self._limit = limit
        self.restart()

    def restart(self) -> None:
        """A new connection follows. What was begun is forgotten; the last id and `retry` stay."""
        self._head: bytes | None = b""
        self._after_cr = False
        self._too_long = False
        self._line = bytearray()
        self._data = bytearray()
        self._name = ""
        self._id = self.last_id

    def feed(self, data: bytes) -> list[Event]:
        """The events that `data` completes. Linear in the bytes fed, however they are cut.

        Raises:
            EventTooLong: the event begun is over the limit; all events before it have been given out.
        """
        events: list[Event] = []
        for line in () if self._too_long else self._lines(data):
            if not line:
                if (event := self._end()) is not None:
                    events.append(event)
            elif self._fits(line):
                self._field(line)
            else:
                break
        if not self._fits(self._line) and not events:
            raise EventTooLong(f"an event of more than {self._limit} bytes")
        return events

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that `data` ends, without their ends; the line it only begins is kept."""
        if self._head is not None:
            data = self._without_mark(data)
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()  # on bytes: at \n, \r and \r\n only
        rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        if lines and self._line:
            lines[0] = bytes(self._line) + lines[0]
            self._line.clear()
        self._line += rest
        return lines

    def _without_mark(self, data: bytes) -> bytes:
        head = (self._head or b"") + data
        if len(head) < len(_MARK) and _MARK.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_MARK)

    def _fits(self, line: bytes | bytearray) -> bool:
        """Whether the event begun may still have this; once it may not, never again."""
        self._too_long = self._too_long or len(self._data) + len(line) > self._limit
        return not self._too_long

    def _field(self, line: bytes) -> None:
        if line[0] == _COLON:
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._name = value.decode(errors="replace")
        elif name == b"id":
            if b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            # Cut, not refused: any number as long as this stands for "very long".
            self.retry = int(value.lstrip(b"0")[:_MAX_RETRY_DIGITS] or b"0") / 1000

    def _end(self) -> Event | None:
        self.last_id = self._id
        name, self._name = self._name, ""
        if not self._data:
            return None
        del self._data[-1]
        data = bytes(self._data)
        self._data.clear()
        return Event(data, name or "message", self.last_id)


def event(data: bytes, *, id: str | None = None, event: str | None = None) -> bytes:
    """One event, ready to send. `data` is JSON: line ends in it are white space and become blanks.

    Raises:
        ValueError: the id or the name of the event cannot stand in a line.
    """
    parts: list[bytes] = []
    if event is not None:
        parts.append(b"event: " + _text(event) + b"\n")
    if id is not None:
        parts.append(b"id: " + _text(id) + b"\n")
    parts.append(b"data: " + one_line(data) + b"\n\n")
    return b"".join(parts)


def priming(id: str, retry: int) -> bytes:
    """An event without data: it only gives the stream a position, and says after how many milliseconds to come back."""
    return b"id: " + _text(id) + b"\nretry: %d\ndata:\n\n" % retry


def comment(text: str) -> bytes:
    """A comment, ready to send: it keeps a connection alive and means nothing.

    Raises:
        ValueError: the text cannot stand in a line.
    """
    return b": " + _text(text) + b"\n\n"


def _text(text: str) -> bytes:
    if any(char in text for char in "\n\r\0"):
        raise ValueError("a line end or NUL cannot be written here")
    return text.encode()
