"""The bytes of one response (RFC 9112). Pure.

The head of an answer of known length is held until the first part of its body, so that a short answer is one write. Any
other head is written at once: the client of a stream waits for it, and the first event may be far away.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from enum import Enum, auto
from functools import lru_cache

MAX_KEPT = 1024
"""Lists of headers that are kept as bytes, because most responses of a session have the same."""

MAX_SHARED = 1024
"""Bytes of a part that many streams may get in turn."""

_WITHOUT_BODY = (204, 304)
_LENGTH_AND_DATE = re.compile(rb"\r\ncontent-length: ([0-9]{1,9})\r\ndate: [^\r\n]*\r\n\r\n")
_DECIDED_HERE = frozenset(("connection", "content-length", "transfer-encoding"))


class _Framing(Enum):
    LENGTH = auto()
    """The body has the announced number of bytes."""
    CHUNKED = auto()
    UNTIL_CLOSE = auto()
    """The body ends with the connection, for clients of HTTP/1.0."""
    NONE = auto()
    """The response has no body, whatever the app sends."""


_LENGTH, _CHUNKED = _Framing.LENGTH, _Framing.CHUNKED  # for speed; see RESOURCE in protocol/methods.py
_UNTIL_CLOSE, _NONE = _Framing.UNTIL_CLOSE, _Framing.NONE


class ResponseEncoder:
    """The response to one request.

    Args:
        method, http_version: those of the request.
    """

    __slots__ = ("_framing", "_held", "_http_version", "_left", "_method", "closes", "is_begun", "is_complete")

    def __init__(self, method: str, http_version: str) -> None:
        self._method = method
        self._http_version = http_version
        self._framing = _NONE
        self._held = b""
        self._left = 0
        self.closes = False
        """Whether its head says that the connection is closed after it."""
        self.is_begun = False
        self.is_complete = False

    @property
    def is_unsent(self) -> bool:
        """Whether no byte of it was returned."""
        return not self.is_begun or bool(self._held)

    @property
    def is_cut(self) -> bool:
        """Whether its end is missing although a client could take it for complete: the connection must be reset."""
        return not self.is_complete and self._framing in (_LENGTH, _UNTIL_CLOSE)

    def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]], date: bytes, *, closes: bool) -> bytes:
        """Begin with these headers, but for those that concern the connection, which are decided here. Returns the
        bytes to write now.

        Args:
            closes: the connection is closed after the response; for a client of HTTP/1.0 it must be. The app can also
                have it closed, by the header `Connection: close`.

        Raises:
            ValueError: a header would be read as several lines.
        """
        length = None
        lines = []
        for name, value in headers:
            name = name.lower()
            if name == b"content-length":
                length = int(value)
            elif name == b"connection":
                closes = closes or value.lower() == b"close"
                continue
            elif name == b"transfer-encoding":
                continue
            lines.append(b"%s: %s\r\n" % (name, value))
        without_body = self._method == "HEAD" or status in _WITHOUT_BODY
        if length is None and status not in _WITHOUT_BODY and self._http_version != "1.0":
            lines.append(b"transfer-encoding: chunked\r\n")
        if without_body:
            self._framing = _NONE
        elif length is not None:
            self._framing, self._left = _LENGTH, length
        else:
            self._framing = _UNTIL_CLOSE if self._http_version == "1.0" else _CHUNKED
        head = response_head(status, lines, date, b"close" if closes else b"")
        self.is_begun, self.closes = True, closes
        if length is None:
            return head
        self._held = head
        return b""

    def whole(
        self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, date: bytes, *, closes: bool
    ) -> tuple[bytes, bytes]:
        """The head and the body of a whole response, as they are sent. For `closes` see `begin`.

        Args:
            headers: without those of the length and the connection.

        Raises:
            ValueError: there are such ones, or a header would be read as several lines.
        """
        length = len(body)
        if self._method == "HEAD" or status in _WITHOUT_BODY:
            body = b""
        connection = b"connection: close\r\n" if closes else b""
        fields = _fields(headers)
        self.is_begun, self.is_complete, self.closes = True, True, closes
        head = b"HTTP/1.1 %d \r\n%bcontent-length: %d\r\n%bdate: %b\r\n\r\n" % (
            status,
            fields,
            length,
            connection,
            date,
        )
        return head, body

    def passed_on(self, response: bytes, size: int, *, closes: bool) -> bytes:
        """A whole response that another encoder made, as it is sent here; its head has `size` bytes and no header of
        the connection. For `closes` see `begin`."""
        self.is_begun, self.is_complete, self.closes = True, True, closes
        if not closes:
            return response
        return b"%bconnection: close\r\n%b" % (response[: size - 2], response[size - 2 :])

    def add(self, body: bytes, *, more: bool) -> bytes:
        """Add a part of the body, the last one unless there is more. Returns the bytes to write.

        Raises:
            ValueError: the body is longer or shorter than announced.
        """
        framing = self._framing
        if framing is _CHUNKED:
            if body:
                body = _chunk(body)
            if not more:
                body += b"0\r\n\r\n"
        elif framing is _NONE:
            body = b""
        elif framing is _LENGTH:
            if len(body) > self._left or (len(body) < self._left and not more):
                raise ValueError("the body of the response has not the length that its head announced")
            self._left -= len(body)
        if self._held:
            self._held, body = b"", self._held + body
        self.is_complete = not more
        return body

    def part(self, body: bytes) -> bytes:
        """`add` of a part that is not the last. A short one is framed once for all streams that get it in turn."""
        if self._framing is _CHUNKED and 0 < len(body) <= MAX_SHARED:
            return _same_chunk(body)
        return self.add(body, more=True)


def _chunk(body: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(body), body)


_same_chunk = lru_cache(1)(_chunk)


def whole_head(data: bytes) -> int | None:
    """The number of bytes of the head, if the data is one whole response as a `ResponseEncoder` writes it, with a
    length and without a header of the connection. None for everything else."""
    end = data.find(b"\r\n\r\n")
    found = _LENGTH_AND_DATE.fullmatch(data, data.rfind(b"\r\ncontent-length: ", 0, end), end + 4) if end > 0 else None
    if found is None or not data.startswith(b"HTTP/1.1 ") or end + 4 + int(found[1]) != len(data):
        return None
    return end + 4


def response_head(status: int, lines: list[bytes], date: bytes, connection: bytes = b"") -> bytes:
    """The head of a response. Each of the lines is a header with its CR LF; `connection` is the value of Connection.

    Raises:
        ValueError: a header would be read as several lines.
    """
    if connection:
        lines.append(b"connection: %s\r\n" % connection)
    head = b"HTTP/1.1 %d \r\n%bdate: %s\r\n\r\n" % (status, b"".join(lines), date)
    ends = len(lines) + 3
    if head.count(b"\n") != ends or head.count(b"\r") != ends or b"\x00" in head:
        raise ValueError("a header of the response has a line end or a NUL")
    return head


@lru_cache(MAX_KEPT)
def _fields(headers: tuple[tuple[str, str], ...]) -> bytes:
    """The headers of a whole response as bytes; raises as `ResponseEncoder.whole` does."""
    fields = "".join([f"{name.lower()}: {value}\r\n" for name, value in headers]).encode("latin-1")
    if fields.count(b"\n") != len(headers) or fields.count(b"\r") != len(headers) or b"\x00" in fields:
        raise ValueError("a header of the response has a line end or a NUL")
    if not _DECIDED_HERE.isdisjoint(name.lower() for name, _ in headers):
        raise ValueError("the length of the response and its connection are not for the app to decide")
    return fields
