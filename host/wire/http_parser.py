"""Strict parser for the responses of one HTTP/1.1 connection, over httptools. Pure: bytes in, responses out.

httptools (llhttp) does the work in C. It accepts some responses that another parser reads differently or not at all:
other versions, blank lines before the first one, any `Transfer-Encoding`, fields of framing among the trailers, and
chunk extensions without end. They are refused here. h11 is the measure: a response that h11 refuses is refused, and one
that is accepted says to h11 what it says here (tests/fuzz/responses.py).
"""

from __future__ import annotations

import re

import httptools

from .head import MAX_LENGTH_DIGITS

MAX_INTERIM = 16
"""Interim responses (1xx) before one response."""
MAX_INTERIM_HEAD = 16 * 1024
"""Bytes of one interim response."""
MAX_RESPONSE_HEAD = 64 * 1024
"""Bytes of the head of a response."""
MAX_HEAD_LINES = 256
"""Lines of such a head: httptools calls back for each."""
MAX_CHUNK_EXCESS = 64 * 1024
"""Bytes of a chunked body, beyond those of its data and USUAL_CHUNK for each chunk: extensions and trailers."""
USUAL_CHUNK = 12
"""Bytes around the data of a chunk: up to eight digits of its size, and two line ends."""

MAX_KNOWN_HEAD = 2048
"""Bytes of a head that is remembered, because most servers repeat theirs."""

_BEGIN = b"HTTP/1."
_STATUS_LINE = re.compile(rb"HTTP/1\.([01]) ([1-9][0-9]{2})(?: [^\x00-\x08\x0a-\x1f\x7f]*+)?\r\n")
_BARE_LINE_END = re.compile(rb"(?<!\r)\n|\r[^\n]")
_KEEP_ALIVE_TIMEOUT = re.compile(rb"(?:^|[,\s])timeout\s*=\s*([0-9]{1,9})(?:[,\s]|$)", re.IGNORECASE)
_FRAMING = (b"transfer-encoding", b"content-length")


class BadResponse(ValueError):
    """The bytes are not one clear response."""


class TooManyInterim(BadResponse):
    """The server sent too many interim responses, or one that is too long."""


class ResponseParser:
    """The parser of one connection. Call `begin` for each response, then `feed` until `complete`.

    After an exception, or if `reusable` is False, the connection must not be used for another request.
    """

    __slots__ = (
        "_body", "_excess", "_framed", "_interim", "_kept", "_known", "_parser", "complete", "fields", "head_done",
        "left", "repeated", "reusable", "started", "status",
    )  # fmt: skip

    def __init__(self) -> None:
        self._parser: httptools.HttpResponseParser | None = None
        """Not used for bodies with a length, so a new one is made after a head that it saw and a body that it did not.
        """
        self._body: list[bytes] = []
        self._known: tuple[bytes, int, dict[bytes, bytes], int] | None = None
        """The last head of a response with a length: its bytes, status and fields, and the length."""
        self.reusable = True
        """Whether another response may follow on the connection."""
        self.begin()

    def begin(self) -> None:
        """Expect a response. What was not taken of the former one is dropped."""
        self._body.clear()
        self.status = 0
        self.fields: dict[bytes, bytes] = {}
        """The header fields, by their names in lower case. Those of the same name are joined with commas."""
        self.repeated: set[bytes] = set()
        """Names of fields that came more than once."""
        self.head_done = False
        self.complete = False
        self.started = False
        """Whether a byte has come."""
        self.left = 0
        """Bytes of a body with a length that have not come."""
        self._framed = False
        self._kept = b""
        self._interim = 0
        self._excess = 0

    def feed(self, data: bytes) -> None:
        """Take the bytes that came next; never none.

        Raises:
            TooManyInterim, BadResponse: they are refused. Parts of the body before them may be taken.
        """
        begins, self.started = not self.started, True
        if begins and self._known is not None and data.startswith(self._known[0]):
            data = self._take_known(data, *self._known)
        elif not self.head_done:
            data = self._take_heads(data)
        if data:
            self._take_body(data)

    def end(self) -> bool:
        """Take the end of the connection. Returns whether the response is whole: one that says no length ends so."""
        if self.head_done and not self.has_length:
            self.complete, self.reusable = True, False
        return self.complete

    def take_body(self) -> bytes:
        """The part of the body that came since the last call."""
        body = self._body
        if not body:
            return b""
        part = body[0] if len(body) == 1 else b"".join(body)
        body.clear()
        return part

    @property
    def has_length(self) -> bool:
        """Whether the end of the body can be told from a connection that broke."""
        return self.complete or b"content-length" in self.fields or b"transfer-encoding" in self.fields

    @property
    def idle_time(self) -> float | None:
        """Seconds for which the server keeps the connection, as its `Keep-Alive` field says; None if it does not."""
        field = self.fields.get(b"keep-alive")
        found = None if field is None else _KEEP_ALIVE_TIMEOUT.search(field)
        return float(found[1]) if found else None

    def _take_known(self, data: bytes, head: bytes, status: int, fields: dict[bytes, bytes], length: int) -> bytes:
        """Take the former head, which is repeated. httptools does not see it, and need not: it expects a new response
        before and after. Returns the bytes after it."""
        self.status, self.fields, self.left = status, fields, length
        self.head_done, self.complete = True, not length
        return data[len(head) :]

    def _take_heads(self, data: bytes) -> bytes:
        """Take heads up to that of the final response. Returns the bytes after it."""
        kept = self._kept
        begin, at = 0, max(len(kept) - 3, 0)
        if kept:
            data = kept + data
        while not self.head_done:
            end = data.find(b"\r\n\r\n", at) + 4
            if end < 4:
                self._check_incomplete(data[begin:], max(len(kept) - begin - 1, 0))
                return b""
            self._take_head(data[begin:end])
            begin = at = end
        self._kept = b""
        return data[begin:]

    def _check_incomplete(self, head: bytes, checked: int) -> None:
        """Refuse the beginning of a head that no further bytes can mend. The first `checked` bytes were seen before."""
        begins = head[: len(_BEGIN)]
        if begins != _BEGIN[: len(begins)] or _BARE_LINE_END.search(head, checked):
            raise BadResponse("it is no response of HTTP/1.1")
        if head[9:10] == b"1" and len(head) > MAX_INTERIM_HEAD:
            raise TooManyInterim("an interim response is too long")
        if len(head) > MAX_RESPONSE_HEAD:
            raise BadResponse("the head is too long")
        self._kept = head

    def _take_head(self, head: bytes) -> None:
        line = _STATUS_LINE.match(head)
        if line is None or len(head) > MAX_RESPONSE_HEAD or head.count(b"\n") > MAX_HEAD_LINES:
            raise BadResponse("it is no response of HTTP/1.1, or its head is too long")
        self.status = status = int(line[2])
        if status == 101:
            raise BadResponse("another protocol, which was not asked for")
        interim = status < 200
        if interim:
            self._interim += 1
            if self._interim > MAX_INTERIM or len(head) > MAX_INTERIM_HEAD:
                raise TooManyInterim("too many interim responses")
        self._framed = False
        if self._parser is None:
            self._parser = httptools.HttpResponseParser(self)
        try:
            self._parser.feed_data(head)
        except httptools.HttpParserError as problem:
            raise BadResponse("the head is not valid") from problem
        if not self._framed:
            raise BadResponse("two parsers read the end of the head in different places")
        if interim:
            if b"transfer-encoding" in self.fields or not self.complete:  # httptools expects a body of some of them
                raise BadResponse("an interim response with a body")
            self.complete = False
            self.fields = {}
            self.repeated.clear()
            return
        self.head_done = True
        self._check_framing(status, old=line[1] == b"0")
        length = self.fields.get(b"content-length")
        if length is None:
            return
        if not self.complete:
            self._parser, self.left = None, int(length)
        if self.reusable and not (self._interim or self.repeated) and len(head) < MAX_KNOWN_HEAD:
            self._known = head, status, self.fields, int(length)

    def _check_framing(self, status: int, *, old: bool) -> None:
        fields = self.fields
        coding = fields.get(b"transfer-encoding")
        if coding is not None and (coding.lower() != b"chunked" or old):
            raise BadResponse("its Transfer-Encoding is not supported")
        if len(fields.get(b"content-length", b"")) > MAX_LENGTH_DIGITS:
            raise BadResponse("its Content-Length is too long")
        if old or (b"connection" in fields and b"close" in _tokens(fields[b"connection"])):
            self.reusable = False
        if status in (204, 304) and (coding is not None or fields.get(b"content-length", b"0") != b"0"):
            self.reusable = False

    def _take_body(self, data: bytes) -> None:
        if self.complete:
            self.reusable = False
            return
        left = self.left
        if left:
            if len(data) > left:
                data, self.reusable = data[:left], False
            self._body.append(data)
            self.left = left = left - len(data)
            self.complete = not left
            return
        assert self._parser is not None
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as problem:
            self._refuse_body(problem)
        self._excess = max(0, self._excess + len(data))
        if self._excess > MAX_CHUNK_EXCESS:
            raise BadResponse("its chunks have too long extensions")

    def _refuse_body(self, problem: Exception) -> None:
        if not self.complete:
            raise BadResponse("its body is not valid") from problem
        self.reusable = False  # something follows the response

    # Called by httptools.

    def on_message_begin(self) -> None:
        if self.complete:
            raise BadResponse("bytes after the response")

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        if self.head_done:
            if name in _FRAMING:
                raise BadResponse("a trailer that belongs into the head")
            return
        if name != b"transfer-encoding":  # httptools takes one that ends with a tab for another coding
            value = value.rstrip(b" \t")
        fields = self.fields
        if name in fields:
            self.repeated.add(name)
            value = fields[name] + b", " + value
        fields[name] = value

    def on_headers_complete(self) -> None:
        self._framed = True

    def on_body(self, data: bytes) -> None:
        self._body.append(data)
        self._excess -= len(data)

    def on_chunk_header(self) -> None:
        self._excess -= USUAL_CHUNK

    def on_message_complete(self) -> None:
        self.complete = True


def _tokens(value: bytes) -> list[bytes]:
    return [each.strip(b" \t").lower() for each in value.split(b",")]
