"""Splitting of a byte stream into lines of JSON (2025-11-25, "Transports / stdio"). Pure: bytes in, lines out.

A line ends at the byte `\\n` only: U+2028 and a lone `\\r` are legal inside JSON text.

A message over the limit is discarded while it arrives. Its envelope is scanned, so that only the request that it
answers fails and everything else on the connection continues.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from host.errors import TOO_LARGE
from host.jsonrpc.envelope import STEP, EnvelopeScanner
from host.jsonrpc.messages import Malformed

MAX_LINE = 8 * 1024 * 1024
"""Bytes of one message; for a server `limits.message` may set another number."""
MAX_DISCARD_FACTOR = 8
"""A message over the limit is discarded up to this many times the limit; beyond that the connection ends."""
DISCARD_WINDOW = 10.0
"""Seconds in which a message that is being discarded must end."""

_BLANK_LINES = re.compile(rb"(?:\r*+\n)*+")


class LineTooLong(ValueError):
    """The peer sent a line over the limit that cannot be assigned to a request."""


class LineSplitter:
    """Splits bytes, in pieces of any size, into lines without their ends. Empty lines are left out."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Yield the lines that `data` completes; the caller may pause between two of them.

        Raises:
            LineTooLong: the current line is over the limit; all lines before it have been yielded.
        """
        at = 0
        while at < len(data):
            at, part, ended = self._part(data, at)
            if not self._keep(part):
                raise self._too_long()
            if ended and (line := self.rest()):
                yield line

    @property
    def pending(self) -> int:
        """Bytes of the current line that are kept."""
        return self._size if self._parts else 0

    def rest(self) -> bytes:
        """Return the bytes since the last line end, and forget them: the last line may lack its end."""
        line = b"".join(self._parts).rstrip(b"\r")
        self._parts.clear()
        self._size = 0
        return line

    def _part(self, data: bytes, at: int) -> tuple[int, bytes, bool]:
        """The next part of the current line in `data`: the offset after it, its bytes, and whether the line ends."""
        if not self._size:
            blank = _BLANK_LINES.match(data, at)
            assert blank is not None  # the pattern also matches the empty text
            at = blank.end()
        end = data.find(b"\n", at)
        return (end + 1, data[at:end], True) if end >= 0 else (len(data), data[at:], False)

    def _keep(self, part: bytes) -> bool:
        """Add a part to the current line; False if the line would be over the limit."""
        if self._size + len(part) > self._limit:
            return False
        self._size += len(part)
        if part:
            self._parts.append(part)
        return True

    def _too_long(self) -> LineTooLong:
        return LineTooLong(f"a line of more than {self._limit} bytes")


class MessageSplitter(LineSplitter):
    """Splits bytes, in pieces of any size, into the texts of messages. A message over the limit becomes a `Malformed`.

    `discarding`: the message that is being discarded, or None.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        super().__init__(limit)
        self.discarding: DiscardedMessage | None = None

    def feed(self, data: bytes) -> Iterator[bytes | Malformed | None]:  # type: ignore[override]  # more is given out
        """Yield the messages that `data` completes. None after a step of work: the caller may pause there too.

        Raises:
            LineTooLong: the current line is over the limit, and cannot be assigned to a request or is over the limit
                MAX_DISCARD_FACTOR times.
        """
        at = 0
        while at < len(data):
            if not self._size and self.discarding is None:
                end = data.find(b"\n", at)
                if 0 < end <= at + self._limit and (line := data[at:end].rstrip(b"\r")):  # a whole one, as most are
                    at = end + 1
                    yield line
                    continue
            at, part, ended = self._part(data, at)
            if self.discarding is None and not self._keep(part):
                self.discarding = DiscardedMessage(self._limit, self._too_long())
                parts, self._parts = self._parts, []
                for kept in parts:
                    yield from self.discarding.take(kept)
            if self.discarding is not None:
                yield from self.discarding.take(part)
                if ended:
                    discarding, self.discarding, self._size = self.discarding, None, 0
                    yield discarding.end()
            elif ended and (line := self.rest()):
                yield line


class DiscardedMessage:
    """A message over its limit, which is scanned and discarded while it arrives. `problem`: raised if the message
    cannot be assigned to a request."""

    def __init__(self, limit: int, problem: ValueError) -> None:
        self._limit = limit
        self._problem = problem
        self._scanner = EnvelopeScanner()
        self._size = 0

    def take(self, data: bytes) -> Iterator[None]:
        """Scan `data` in steps. Raises `problem` once the message cannot be assigned, or is over the limit
        MAX_DISCARD_FACTOR times."""
        self._size += len(data)
        if self._size > MAX_DISCARD_FACTOR * self._limit:
            raise self._problem
        for at in range(0, len(data), STEP):
            self._scanner.feed(data[at : at + STEP])
            if self._scanner.broken:
                raise self._problem
            yield

    def end(self) -> Malformed:
        """The `Malformed` to deliver instead of the message. Raises `problem` if it cannot be assigned."""
        envelope = self._scanner.envelope()
        if envelope is None:
            raise self._problem
        why = f"the message has more than {self._limit} bytes (limits.message)"
        return Malformed(TOO_LARGE, why, envelope.id, envelope.is_answer, self._size)
