"""Lines of JSON, as stdio carries them (2025-11-25, "Transports / stdio"). Pure: bytes in, lines out.

A line ends at the byte `\\n` and nowhere else: U+2028 or a lone `\\r` inside JSON text is legal.

A message that is longer than its limit is discarded as it comes. Its envelope still says which request it answers, so
that this one request can fail and everything else on the connection goes on.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from host.errors import TOO_LARGE
from host.jsonrpc.envelope import STEP, EnvelopeScanner
from host.jsonrpc.messages import Malformed

MAX_LINE = 8 * 1024 * 1024
MAX_DISCARD_FACTOR = 8
"""A message over its limit is discarded up to so many times the limit; beyond that the connection ends."""
DISCARD_WINDOW = 10.0
"""Seconds in which such a message has to end."""

_BLANK_LINES = re.compile(rb"(?:\r*+\n)*+")


class LineTooLong(ValueError):
    """The peer sent a line over the limit, and nothing says what it belongs to."""


class LineSplitter:
    """Takes bytes as they come and gives whole lines, without their ends. Empty lines are left out."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, one after the other; the caller may pause between two of them.

        Raises:
            LineTooLong: the line begun is over the limit; all lines before it have been given out.
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
        """Bytes that are kept of the line begun."""
        return self._size if self._parts else 0

    def rest(self) -> bytes:
        """What has come since the last line end; a last line may lack its end."""
        line = b"".join(self._parts).rstrip(b"\r")
        self._parts.clear()
        self._size = 0
        return line

    def _part(self, data: bytes, at: int) -> tuple[int, bytes, bool]:
        """What `data` has of the present line from `at` on: where that ends, the bytes, and whether the line ends."""
        if not self._size:
            blank = _BLANK_LINES.match(data, at)
            assert blank is not None  # it matches nothing, too
            at = blank.end()
        end = data.find(b"\n", at)
        return (end + 1, data[at:end], True) if end >= 0 else (len(data), data[at:], False)

    def _keep(self, part: bytes) -> bool:
        """Add to the line begun; False if it would be over the limit."""
        if self._size + len(part) > self._limit:
            return False
        self._size += len(part)
        if part:
            self._parts.append(part)
        return True

    def _too_long(self) -> LineTooLong:
        return LineTooLong(f"a line of more than {self._limit} bytes")


class MessageSplitter(LineSplitter):
    """Takes bytes as they come and gives the text of each message, or what became of one that is over the limit.

    `discarding` is the message that is being discarded, None if there is none.
    """

    def __init__(self, limit: int = MAX_LINE) -> None:
        super().__init__(limit)
        self.discarding: DiscardedMessage | None = None

    def feed(self, data: bytes) -> Iterator[bytes | Malformed | None]:  # type: ignore[override]  # more is given out
        """The messages that `data` completes, one after the other. None means that some work was done: the caller may
        pause there, too.

        Raises:
            LineTooLong: the line begun is over the limit, and cannot be assigned to a request or is far too long.
        """
        at = 0
        while at < len(data):
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
    """One message over its limit, which is scanned and forgotten as it comes. `problem` is raised if nothing can be
    made of it."""

    def __init__(self, limit: int, problem: ValueError) -> None:
        self._limit = limit
        self._problem = problem
        self._scanner = EnvelopeScanner()
        self._size = 0

    def take(self, data: bytes) -> Iterator[None]:
        """Scan `data`, step by step. Raises `problem` once the message cannot be assigned, or is far too long."""
        self._size += len(data)
        if self._size > MAX_DISCARD_FACTOR * self._limit:
            raise self._problem
        for at in range(0, len(data), STEP):
            self._scanner.feed(data[at : at + STEP])
            if self._scanner.broken:
                raise self._problem
            yield

    def end(self) -> Malformed:
        """What is delivered instead of the message. Raises `problem` if it cannot be assigned."""
        envelope = self._scanner.envelope()
        if envelope is None:
            raise self._problem
        why = f"a message of more than {self._limit} bytes (limits.message)"
        return Malformed(TOO_LARGE, why, envelope.id, envelope.is_answer)
