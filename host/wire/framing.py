"""Lines of JSON, as stdio carries them (2025-11-25, "Transports / stdio"). Pure: bytes in, lines out.

A line ends at the byte `\\n` and nowhere else: U+2028 or a lone `\\r` inside JSON text is legal.
"""

from __future__ import annotations

from collections.abc import Iterator

MAX_LINE = 8 * 1024 * 1024


class LineTooLong(ValueError):
    """The peer sent more than MAX_LINE bytes without ending the line."""


class LineSplitter:
    """Takes bytes as they come and gives whole lines, without their ends. Empty lines are left out."""

    def __init__(self, limit: int = MAX_LINE) -> None:
        self._limit = limit
        self._parts: list[bytes] = []
        self._size = 0

    def feed(self, data: bytes) -> Iterator[bytes]:
        """The lines that `data` completes, one after the other.

        Raises:
            LineTooLong: the line begun is over the limit; all lines before it have been given out.
        """
        *ends, rest = data.split(b"\n")
        for end in ends:
            self._keep(end)
            if line := self.rest():
                yield line
        self._keep(rest)

    def rest(self) -> bytes:
        """What has come since the last line end; a last line may lack its end."""
        line = b"".join(self._parts).rstrip(b"\r")
        self._parts.clear()
        self._size = 0
        return line

    def _keep(self, part: bytes) -> None:
        self._size += len(part)
        if self._size > self._limit:
            raise LineTooLong(f"a line of more than {self._limit} bytes")
        if part:
            self._parts.append(part)
