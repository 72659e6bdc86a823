"""Bodies of requests in chunks (RFC 9112, "Chunked Transfer Coding"). Pure: bytes in, bytes out.

Stricter than the standard where two readers could disagree about the end of a body: lines end with CR LF, and nothing
stands between the size and its extension or the end of the line. Extensions and trailers are checked and dropped.
"""

from __future__ import annotations

import re

MAX_LINE = 1024
"""Bytes of the line that begins a chunk, with its extensions."""
MAX_TRAILERS = 16 * 1024
"""Bytes of all lines after the last chunk."""

_SIZE = re.compile(rb"([0-9A-Fa-f]{1,16})(?:;[^\x00-\x08\x0a-\x1f\x7f]*)?")
_TRAILER = re.compile(rb"([-!#$%&'*+.^_`|~0-9A-Za-z]+):[^\x00-\x08\x0a-\x1f\x7f]*")
_NO_TRAILERS = (b"content-length", b"transfer-encoding", b"host")
"""Headers that another reader of the request could take from its end."""


class BadChunk(Exception):
    """The bytes are no body in chunks."""


class ChunkedBody:
    """The decoder of one body. `ended` is true when all of it has come."""

    def __init__(self) -> None:
        self.ended = False
        self._left = 0  # bytes of the current chunk
        self._after_chunk = False  # the CR LF that ends a chunk is due
        self._trailers = -1  # bytes of trailers so far; -1 before the last chunk

    def take(self, received: bytes) -> tuple[bytes, bytes]:
        """The content in these bytes, and the rest, which is to be given again in front of what follows: the beginning
        of a line, or, after the end, of the next request.

        Raises:
            BadChunk: the body is malformed, or a line of it is too long.
        """
        parts: list[bytes] = []
        at = 0
        while not self.ended:
            if self._left:
                part = received[at : at + self._left]
                parts.append(part)
                at += len(part)
                self._left -= len(part)
                if self._left:
                    break
                self._after_chunk = True
            if self._after_chunk:
                end = received[at : at + 2]
                if not b"\r\n".startswith(end):
                    raise BadChunk
                if len(end) < 2:
                    break
                at += 2
                self._after_chunk = False
            end_of_line = received.find(b"\r\n", at)
            if end_of_line == -1:
                self._check_unfinished(received[at:])
                break
            self._take_line(received[at:end_of_line])
            at = end_of_line + 2
        return b"".join(parts), received[at:]

    def _check_unfinished(self, line: bytes) -> None:
        if len(line) > (MAX_LINE if self._trailers < 0 else MAX_TRAILERS) or b"\n" in line:
            raise BadChunk

    def _take_line(self, line: bytes) -> None:
        if self._trailers < 0:
            size = _SIZE.fullmatch(line) if len(line) <= MAX_LINE else None
            if size is None:
                raise BadChunk
            self._left = int(size[1], 16)
            if not self._left:
                self._trailers = 0
        elif line:
            self._trailers += len(line) + 2
            trailer = _TRAILER.fullmatch(line) if self._trailers <= MAX_TRAILERS else None
            if trailer is None or trailer[1].lower() in _NO_TRAILERS:
                raise BadChunk
        else:
            self.ended = True
