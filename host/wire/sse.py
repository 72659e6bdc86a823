"""Event streams (`text/event-stream`), read and written. Pure: bytes in, events out, and back.

Source: WHATWG HTML, "Server-sent events", sections "Parsing" and "Interpreting an event stream". This file knows lines
and fields; it does not know what an event carries, when to connect again, or what a client does with an id.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from host.jsonrpc.messages import Malformed
from host.jsonrpc.raw import one_line
from host.wire.framing import DiscardedMessage

MAX_EVENT = 8 * 1024 * 1024
MAX_FIELD = 1024
"""Bytes of an id, or of the name of an event. Both are kept for as long as the stream lives, without being charged, and
four times as large where they hold one character beyond the first plane. No id that is longer is resumed after
(http_client.py), and no name that means something is nearly as long."""

_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COLON = ord(":")
_MAX_RETRY_DIGITS = 15


class EventTooLong(ValueError):
    """The peer sent an event over the limit, and nothing says what it belongs to."""


@dataclass(frozen=True, slots=True)
class Event:
    data: bytes
    """The lines of data, joined by `\\n`. Not checked to be UTF-8."""
    event: str = "message"
    """Its name; of one that is longer than MAX_FIELD the beginning, which is no name that anybody knows either."""
    id: str = ""
    """The stream's last id when this event came; empty if it never gave one."""


class EventParser:
    """Takes the bytes of a stream as they come and gives whole events; an event cut off by the end is never given.

    The message of an event over the limit is discarded as it comes; `discarding` is the present one.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.last_id = ""
        """The id to resume after: that of the last event that ended, with data or without; empty if there is none. An
        id of more than MAX_FIELD bytes is ignored as one with NUL is: the former one stays."""
        self.retry: float | None = None
        """Seconds to wait before connecting again, as the stream asked; None if it did not."""
        self.useless_count = 0
        """Comments, and events without data, so far."""
        self._limit = limit
        self.restart()

    def restart(self) -> None:
        """A new connection follows. What was begun is forgotten; the last id and `retry` stay."""
        self._head: bytes | None = b""
        self._after_cr = False
        self._too_long = False
        self.discarding: DiscardedMessage | None = None
        self._in_data = False
        """Whether the beginning of the present line, which is one of data, has been discarded."""
        self._line = bytearray()
        self._data = bytearray()
        self._name = ""
        self._id = self.last_id

    @property
    def pending(self) -> int:
        """Bytes of the event begun."""
        return len(self._data) + len(self._line)

    def feed(self, data: bytes) -> Iterator[Event | Malformed | None]:
        """The events that `data` completes, one after the other, and what became of messages over the limit. None means
        that some work was done: the caller may pause there, too. Linear in the bytes fed, however they are cut.

        Raises:
            EventTooLong: the event begun is over the limit, and cannot be assigned to a request or is far too long; all
                events before it have been given out.
        """
        if self._too_long:
            return
        try:
            for line in self._lines(data):
                if self._in_data or line:
                    yield from self._take(line)
                elif (ended := self._end()) is not None:
                    yield ended
            yield from self._take_begun()
        except EventTooLong:
            self._too_long = True
            raise

    def _take(self, line: bytes) -> Iterator[None]:
        """Take a whole line, or the end of one whose beginning has been discarded."""
        if self._in_data and self.discarding is not None:
            self._in_data = False
            yield from self.discarding.take(line + b"\n")
            return
        if self.discarding is None and len(self._data) + len(line) > self._limit:
            yield from self._discard(line)
        if self.discarding is not None and (value := _data_of(line)) is not None:
            yield from self.discarding.take(value + b"\n")
        else:
            self._field(line)

    def _take_begun(self) -> Iterator[None]:
        """Discard what has come of the present line if it belongs to a message over the limit."""
        begun = bytes(self._line) if self.discarding is not None or not self._fits() else b""
        if not begun:
            return
        if self.discarding is None:
            yield from self._discard(begun)
        value = begun if self._in_data else _data_of(begun)
        if value is not None and self.discarding is not None:
            self._in_data = True
            self._line.clear()
            yield from self.discarding.take(value)
        elif not self._fits():
            raise self._problem()

    def _discard(self, line: bytes) -> Iterator[None]:
        """Begin to discard the present message; `line` puts it over the limit."""
        if len(line) > self._limit and _data_of(line) is None:
            raise self._problem()
        self.discarding = DiscardedMessage(self._limit, self._problem())
        kept = bytes(self._data)
        self._data.clear()
        yield from self.discarding.take(kept)

    def _problem(self) -> EventTooLong:
        return EventTooLong(f"an event of more than {self._limit} bytes")

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
        if len(head) < len(_BYTE_ORDER_MARK) and _BYTE_ORDER_MARK.startswith(head):
            self._head = head
            return b""
        self._head = None
        return head.removeprefix(_BYTE_ORDER_MARK)

    def _fits(self) -> bool:
        return len(self._data) + len(self._line) <= self._limit

    def _field(self, line: bytes) -> None:
        if line[0] == _COLON:
            self.useless_count += 1
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._data += value
            self._data += b"\n"
        elif name == b"event":
            self._name = value[:MAX_FIELD].decode(errors="replace")
        elif name == b"id":
            if len(value) <= MAX_FIELD and b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            # Cut, not refused: any number as long as this stands for "very long".
            self.retry = int(value.lstrip(b"0")[:_MAX_RETRY_DIGITS] or b"0") / 1000

    def _end(self) -> Event | Malformed | None:
        self.last_id = self._id
        name, self._name = self._name, ""
        if self.discarding is not None:
            discarding, self.discarding = self.discarding, None
            return discarding.end()
        if len(self._data) <= 1:  # a line end, if there was a line of data
            self.useless_count += 1
        if not self._data:
            return None
        del self._data[-1]
        data = bytes(self._data)
        self._data.clear()
        return Event(data, name or "message", self.last_id)


def _data_of(line: bytes) -> bytes | None:
    """The value of a line of data, also of one that has only begun; None for any other line."""
    name, colon, value = line.partition(b":")
    return value if colon and name == b"data" else None


def format_event(data: bytes, *, id: str | None = None, event: str | None = None) -> bytes:
    """One event, ready to send. `data` is JSON: line ends in it are white space and become blanks.

    Raises:
        ValueError: the id or the name of the event cannot stand in a line.
    """
    parts: list[bytes] = []
    if event is not None:
        parts.append(b"event: " + _text(event) + b"\n")
    if id is not None:
        parts.append(b"id: " + _text(id) + b"\n")
    return b"".join((*parts, b"data: ", one_line(data), b"\n\n"))  # long data are copied once


def format_priming(id: str, retry: int) -> bytes:
    """An event without data: it only gives the stream a position, and says after how many milliseconds to come back."""
    return b"id: " + _text(id) + b"\nretry: %d\ndata:\n\n" % retry


def format_comment(text: str) -> bytes:
    """A comment, ready to send: it keeps a connection alive and means nothing.

    Raises:
        ValueError: the text cannot stand in a line.
    """
    return b": " + _text(text) + b"\n\n"


def _text(text: str) -> bytes:
    if any(char in text for char in "\n\r\0"):
        raise ValueError("a line end or NUL cannot be written here")
    return text.encode()
