"""Parser and writer of event streams (`text/event-stream`). Pure: bytes in, events out, and back.

Source: WHATWG HTML, "Server-sent events", sections "Parsing" and "Interpreting an event stream". The meaning of the
data, of ids and of reconnecting is the caller's.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from msgspec import Struct

from host.jsonrpc.messages import Malformed
from host.jsonrpc.raw import one_line
from host.wire.framing import DiscardedMessage

MAX_EVENT = 8 * 1024 * 1024
"""Bytes of one event; for a server `limits.message` may set another number."""
MAX_FIELD = 1024
"""Bytes of an id, or of the name of an event. Both are kept as long as the stream lives and are not charged, and Python
needs four times the bytes for text with one character beyond the first plane. Longer ids are not resumed after
(http_client.py), and known names are much shorter."""

_WHOLE_EVENT = re.compile(rb"(?:event: ?+([^\r\n]*+)\r?\n)?(?:id: ?+([^\r\n\0]*+)\r?\n)?data: ?+([^\r\n]++)\r?\n\r?\n")
_BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_COLON = ord(":")
_MAX_RETRY_DIGITS = 15


class EventTooLong(ValueError):
    """The peer sent an event over the limit that cannot be assigned to a request."""


class SseEvent(Struct, frozen=True):
    data: bytes
    """The lines of data, joined by `\\n`. Not checked to be UTF-8."""
    event: str = "message"
    """The name of the event, cut to MAX_FIELD bytes."""
    id: str = ""
    """The last event id of the stream at this event; empty if there was none."""


class EventParser:
    """Parses the bytes of a stream, in pieces of any size, into events. An event without its end is never returned.

    The message of an event over the limit is discarded while it arrives; `discarding` is the current one, or None.
    """

    def __init__(self, limit: int = MAX_EVENT) -> None:
        self.last_id = ""
        """The id to resume after: that of the last complete event, with or without data; empty if there is none. An id
        of more than MAX_FIELD bytes is ignored, as the standard ignores one with NUL."""
        self.retry: float | None = None
        """Seconds to wait before connecting again, from the stream's `retry` field; None without one."""
        self.useless_count = 0
        """Number of comments, and of events without data, so far."""
        self._limit = limit
        self.restart()

    def restart(self) -> None:
        """Prepare for a new connection of the stream: forget an incomplete event; keep the last id and `retry`."""
        self._head: bytes | None = b""
        self._after_cr = False
        self._too_long = False
        self.discarding: DiscardedMessage | None = None
        self._in_data = False
        """The beginning of the current line, a data line, has been discarded."""
        self._line = bytearray()
        self._data: bytes | bytearray | None = None
        """The data lines of the current event, joined. A single one is kept as it came: it may be long."""
        self._name = ""
        self._id = self.last_id

    @property
    def pending(self) -> int:
        """Bytes of the current event that are kept."""
        return len(self._line) + self._data_size

    @property
    def _data_size(self) -> int:
        return 0 if self._data is None else len(self._data) + 1  # with the end of the last line

    def feed(self, data: bytes) -> Iterator[SseEvent | Malformed | None]:
        """Yield the events that `data` completes, and a `Malformed` for each message over the limit. None after a step
        of work: the caller may pause there too. Time is linear in the bytes, whatever their pieces.

        Raises:
            EventTooLong: the current event is over the limit, and cannot be assigned to a request or is over the limit
                many times; all events before it have been yielded.
        """
        if self._too_long:
            return
        if len(data) <= self._limit and self._is_unbegun and (found := _WHOLE_EVENT.fullmatch(data)):
            yield self._take_whole(found)
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

    @property
    def _is_unbegun(self) -> bool:
        """Whether nothing of an event has come since the end of the last one."""
        return not (
            self._head or self.pending or self._name or self._after_cr or self.discarding or self._id != self.last_id
        )

    def _take_whole(self, event: re.Match[bytes]) -> SseEvent:
        """Take an event that came in one piece, as most do, without parsing its lines one by one."""
        self._head = None
        name, id, data = event.groups()
        if id is not None and len(id) <= MAX_FIELD:
            self._id = self.last_id = id.decode(errors="replace")
        return SseEvent(data, name[:MAX_FIELD].decode(errors="replace") if name else "message", self.last_id)

    def _take(self, line: bytes) -> Iterator[None]:
        """Handle a complete line, or the end of a line whose beginning has been discarded."""
        if self._in_data and self.discarding is not None:
            self._in_data = False
            yield from self.discarding.take(line + b"\n")
            return
        if self.discarding is None and self._data_size + len(line) > self._limit:
            yield from self._discard(line)
        if self.discarding is not None and (value := _data_of(line)) is not None:
            yield from self.discarding.take(value + b"\n")
        else:
            self._field(line)

    def _take_begun(self) -> Iterator[None]:
        """Discard the received part of the current line if it belongs to a message over the limit."""
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
        """Begin to discard the current message, which `line` puts over the limit."""
        if len(line) > self._limit and _data_of(line) is None:
            raise self._problem()
        self.discarding = DiscardedMessage(self._limit, self._problem())
        kept, self._data = self._data, None
        yield from self.discarding.take(b"" if kept is None else bytes(kept) + b"\n")

    def _problem(self) -> EventTooLong:
        return EventTooLong(f"an event of more than {self._limit} bytes")

    def _lines(self, data: bytes) -> list[bytes]:
        """The lines that `data` completes, without their ends; an incomplete last line is kept."""
        if self._head is not None:
            data = self._without_mark(data)
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if not data:
            return []
        self._after_cr = data.endswith(b"\r")
        lines = data.splitlines()  # of bytes: splits at \n, \r and \r\n only, as the standard does
        rest = b"" if data.endswith((b"\n", b"\r")) else lines.pop()
        if lines and self._line:
            lines[0] = b"".join((self._line, lines[0]))
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
        return self.pending <= self._limit

    def _field(self, line: bytes) -> None:
        if line[0] == _COLON:
            self.useless_count += 1
            return
        if line.startswith(b"data:"):  # not split and stripped like the others: it may be long
            self._add_data(line[6:] if line[5:6] == b" " else line[5:])
            return
        name, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if name == b"data":
            self._add_data(value)
        elif name == b"event":
            self._name = value[:MAX_FIELD].decode(errors="replace")
        elif name == b"id":
            if len(value) <= MAX_FIELD and b"\0" not in value:
                self._id = value.decode(errors="replace")
        elif name == b"retry" and value.isdigit():
            # Cut instead of refused: any number of so many digits means "very long".
            self.retry = int(value.lstrip(b"0")[:_MAX_RETRY_DIGITS] or b"0") / 1000

    def _add_data(self, value: bytes) -> None:
        if self._data is None:
            self._data = value
            return
        if isinstance(self._data, bytes):
            self._data = bytearray(self._data)
        self._data += b"\n"
        self._data += value

    def _end(self) -> SseEvent | Malformed | None:
        self.last_id = self._id
        name, self._name = self._name, ""
        if self.discarding is not None:
            discarding, self.discarding = self.discarding, None
            return discarding.end()
        data, self._data = self._data, None
        if not data:
            self.useless_count += 1
        if data is None:
            return None
        return SseEvent(bytes(data), name or "message", self.last_id)


def _data_of(line: bytes) -> bytes | None:
    """The value of a data line, also of an incomplete one; None for any other line."""
    name, colon, value = line.partition(b":")
    return value if colon and name == b"data" else None


def format_event(data: bytes, *, id: str | None = None, event: str | None = None) -> bytes:
    """Format one event. `data` is JSON, in which line ends are white space; they become spaces.

    Raises:
        ValueError: the id or the name has a line end or NUL.
    """
    head = b"data: " if id is None else b"id: %b\ndata: " % _text(id)
    if event is not None:
        head = b"event: %b\n%b" % (_text(event), head)
    return b"".join((head, one_line(data), b"\n\n"))  # copies long data only once


def format_numbered(data: bytes, mark: bytes, number: int) -> bytes:
    """`format_event` with an id of a mark, in which there is no line end, and a number: of the events of a stream."""
    return b"".join((b"id: %b%d\ndata: " % (mark, number), one_line(data), b"\n\n"))


def format_priming(id: str, retry: int) -> bytes:
    """Format an event without data, which sets the last event id and the reconnection time in milliseconds (2025-11-25,
    "Transports / Sending Messages to the Server")."""
    return b"id: " + _text(id) + b"\nretry: %d\ndata:\n\n" % retry


def format_comment(text: str) -> bytes:
    """Format a comment, which keeps a connection alive and is ignored by clients.

    Raises:
        ValueError: the text has a line end or NUL.
    """
    return b": " + _text(text) + b"\n\n"


def _text(text: str) -> bytes:
    if not text.isprintable() and not {"\n", "\r", "\0"}.isdisjoint(text):
        raise ValueError("a field of an event must not contain a line end or NUL")
    return text.encode()
