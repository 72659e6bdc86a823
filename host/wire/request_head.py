"""Request heads as the default listener reads them: two judges, head.py and then the parser httptools. Pure.

Either may refuse. httptools alone accepts much that must not be served: several Host headers or none, any size,
`Transfer-Encoding: gzip, chunked`, absolute targets. So head.py comes first, and the bytes are counted before both.
"""

from __future__ import annotations

import re
from typing import Any
from urllib.parse import unquote

from httptools import HttpParserError, HttpParserUpgrade, HttpRequestParser
from msgspec import Struct, field
from msgspec.structs import replace

from .head import OF_CLIENTS, OF_MEMBERS, HeadLimits, HeadRefusal, check_head, head_end, too_long

INVALID = HeadRefusal(400, "the request is not valid HTTP/1.1")
"""The refusal of everything that is no HTTP at all."""

LONGEST_KNOWN = 2048
"""Bytes of a head that is remembered, because most clients repeat theirs."""
MAX_SHARED = 2048
"""Heads that a listener remembers for all of its connections, in some ten megabytes."""

_FIRST_VISIBLE = 0x21
_DIGITS = re.compile(rb"[0-9]{1,6}")
_LENGTH_AT_END = b"\r\ncontent-length: "
_LENGTH = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,6})(?=[ \t]*\r\n)", re.IGNORECASE)


class RequestHead(Struct, frozen=True):
    """The head of a request that both judges accept."""

    method: str
    raw_path: bytes
    path: str
    query: bytes
    http_version: str
    headers: list[tuple[bytes, bytes]]
    """In their order, with lower-case names."""
    length: int | None
    """Bytes of the body; None if it comes in chunks."""
    keeps_alive: bool
    """Whether another request may follow on the connection."""
    expects_continue: bool
    """Whether the client waits for 100 (Continue) before it sends the body."""
    findings: dict[object, Any] = field(default_factory=dict)
    """Findings of the app about it; see `asgi.of_head`."""


class KnownHead:
    """A head that its client may send again, perhaps with another Content-Length: a client's requests hardly ever
    differ in anything else. Only lengths of up to six digits are exchanged, which no app refuses."""

    def __init__(self, head: bytes, parsed: RequestHead) -> None:
        self._head = head
        self._parsed = parsed
        length = _LENGTH.search(head)
        self._before, self._after = (b"", b"") if length is None else (head[: length.start(1)], head[length.end(1) :])
        self._at = 0 if length is None else [name for name, _ in parsed.headers].index(b"content-length")

    def take(self, received: bytes) -> tuple[RequestHead, int] | None:
        """This head and its number of bytes, if `received` begins with it."""
        if not received.startswith(self._head):
            if not self._before or not received.startswith(self._before):
                return None
            digits = _DIGITS.match(received, len(self._before))
            if digits is None or not received.startswith(self._after, digits.end()):
                return None
            headers = self._parsed.headers.copy()
            headers[self._at] = b"content-length", digits[0]
            self._parsed = replace(self._parsed, headers=headers, length=int(digits[0]))
            self._head = received[: digits.end() + len(self._after)]
        return self._parsed, len(self._head)


class SharedHeads:
    """Heads of all connections of a listener whose clients end each with its Content-Length: other processes of a fleet
    (host/fleet/forwarding.py), over whose connections the heads of many clients come in turns."""

    limits = OF_MEMBERS

    def __init__(self) -> None:
        self._known: dict[bytes, KnownHead] = {}
        """By what comes before the length."""

    def parse(self, head: bytes) -> RequestHead | HeadRefusal:
        """`parse_head`, or what that said of an equal head, perhaps with another length."""
        before = head.rpartition(_LENGTH_AT_END)[0]
        known = self._known.get(before)
        if known is not None and (taken := known.take(head)) is not None:
            return taken[0]
        parsed = parse_head(head, self.limits)
        if before and isinstance(parsed, RequestHead) and len(head) <= LONGEST_KNOWN:
            if len(self._known) >= MAX_SHARED:
                self._known.clear()
            self._known[before] = KnownHead(head, parsed)
        return parsed


def find_head(received: bytes, searched: int, limits: HeadLimits = OF_CLIENTS) -> int | HeadRefusal | None:
    """The number of bytes of the head at the start of `received`; None while it is not complete; or why it is refused
    already. The first `searched` bytes were searched before."""
    end = head_end(received, searched)
    if end is None and len(received) > limits.size:
        return too_long(limits)
    if end is None and received[0] < _FIRST_VISIBLE:  # such as TLS, whose client waits for an answer
        return INVALID
    return end


def parse_head(head: bytes, limits: HeadLimits = OF_CLIENTS) -> RequestHead | HeadRefusal:
    """Parse a complete head, including its empty line."""
    refusal = check_head(head, limits)
    if refusal is not None:
        return refusal
    parsed = _Parsed()
    parser = HttpRequestParser(parsed)
    try:
        parser.feed_data(head)
    except (HttpParserError, HttpParserUpgrade):
        return INVALID
    # The number of headers is the third opinion: a reader that sees more or fewer lines than another is deceived.
    if not parsed.complete or not parsed.target.isascii() or len(parsed.headers) != head.count(b"\r\n") - 2:
        return INVALID
    raw_path, _, query = parsed.target.partition(b"?")
    version = parser.get_http_version()
    found = dict(parsed.headers)
    length = found.get(b"content-length")
    return RequestHead(
        parser.get_method().decode(),
        raw_path,
        unquote(raw_path.decode()),
        query,
        version,
        parsed.headers,
        None if b"transfer-encoding" in found else int(length or b"0"),
        version == "1.1" and not _closes(parsed.headers),
        version == "1.1" and found.get(b"expect", b"").lower() == b"100-continue",
    )


def _closes(headers: list[tuple[bytes, bytes]]) -> bool:
    return any(
        option.strip().lower() == b"close"
        for name, value in headers
        if name == b"connection"
        for option in value.split(b",")
    )


class _Parsed:
    """The report of httptools on one head."""

    def __init__(self) -> None:
        self.target = b""
        self.headers: list[tuple[bytes, bytes]] = []
        self.complete = False

    def on_url(self, part: bytes) -> None:
        self.target += part

    def on_header(self, name: bytes, value: bytes) -> None:
        self.headers.append((name.lower(), value.strip(b" \t")))

    def on_headers_complete(self) -> None:
        self.complete = True
