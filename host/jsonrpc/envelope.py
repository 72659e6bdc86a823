"""Incremental scanner for the top level of a JSON-RPC message that is too long to be kept: finds its id, and whether
it is a request or a response, so that the right request fails.

The text is scanned in pieces and discarded. Depth and strings are tracked, so that only members of the outermost object
count, whatever nested values and strings contain. Nothing else is validated: a peer chooses the ids that it sends, and
text that is not JSON can only fail requests of this peer. Time is linear in the bytes, memory is constant.
"""

from __future__ import annotations

import re
import sys
from enum import Enum, auto

from msgspec import Struct

from host.jsonrpc.messages import MAX_ID_BYTES, Id, read_id
from host.jsonrpc.raw import string

STEP = 4096
"""Bytes to pass to one call of `feed`: the most expensive text then takes about two milliseconds."""

_SHORT = 64
"""Bytes of a string that are matched with a regular expression; the rest is searched (`_length_of_string`)."""
_COLLAPSES = 6
"""Levels of nested brackets that are removed as pairs before the remaining brackets are counted."""
_LONGEST_KEY = 6 * len("method")
"""Raw bytes: each character may be written as an escape of six bytes."""
_LONGEST_ID = 6 * MAX_ID_BYTES

_WHITE = re.compile(rb"[ \t\r\n]*+")
_STRING = re.compile(rb'(?:[^"\\]++|\\.)*+', re.DOTALL)
_SCALAR = re.compile(rb"[^ \t\r\n,\]}]*+")
# Complete members with other names and a string or a scalar as value, with the commas after them: skipped at once.
_OTHERS = re.compile(
    rb'(?:[ \t\r\n]*+"(?!(?:id|method|result|error)")[^"\\]*+"[ \t\r\n]*+:'
    rb'[ \t\r\n]*+(?:"[^"\\]*+"|[-+.0-9A-Za-z]++)[ \t\r\n]*+,)*+'
)
_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
# Brackets outside strings. A string that does not end in this piece matches as its opening quote alone.
_NESTED = re.compile(rb'"(?:[^"\\]++|\\.)*+"|["\[\]{}]', re.DOTALL)


class Envelope(Struct, frozen=True):
    """The top level of a message. `is_answer`: a response to the request `id`. Otherwise a request or, if `id` is
    None, a notification."""

    id: Id | None
    is_answer: bool
    method: str = ""
    """Empty for a response, and where it is not looked for."""


class _Expected(Enum):
    """State of the scanner: the token of the outermost object that it expects next, or is in the middle of."""

    START = auto()
    KEY = auto()
    COLON = auto()
    VALUE = auto()
    SCALAR = auto()
    NESTED = auto()
    COMMA = auto()
    END = auto()
    BROKEN = auto()


class EnvelopeScanner:
    """Scans the bytes of one message in pieces of any size. `broken` is True once they cannot be an object with at most
    one id."""

    def __init__(self) -> None:
        self._at = _Expected.START
        self._depth = 0
        self._in_string = False
        self._escaped = False
        """The last piece ended with a backslash inside a string."""
        self._kept: bytearray | None = None
        """Raw text of the key or id that is being read; None if the value does not matter or is too long."""
        self._longest = 0
        self._key = ""
        self._ids = 0
        self._id: Id | None = None
        self._has_method = False
        self._has_answer = False
        self._looked_beyond = False
        """Whether it was computed of the current piece if a nested value continues after it; once, since it takes the
        time of the whole piece."""

    @property
    def broken(self) -> bool:
        return self._at is _Expected.BROKEN or self._ids > 1

    def envelope(self) -> Envelope | None:
        """The result, once the message has ended. None if the text is not a complete object, has several ids or an
        invalid one, or is a response without an id."""
        is_answer = self._has_answer or not self._has_method
        if self._at is not _Expected.END or self.broken or (self._id is None and (is_answer or self._ids)):
            return None
        return Envelope(self._id, is_answer)

    def feed(self, data: bytes) -> None:
        at, end = 0, len(data)
        self._looked_beyond = False
        while at < end:
            if self._in_string:
                at = self._string(data, at)
            elif self._at is _Expected.NESTED:
                at = self._nested(data, at)
            elif self._at is _Expected.SCALAR:
                at = self._scalar(data, at)
            elif self.broken:
                return
            else:
                if self._at is _Expected.KEY:
                    at = _end(_OTHERS, data, at)
                at = _end(_WHITE, data, at)
                if at < end:
                    at = self._token(data, at)

    def _token(self, data: bytes, at: int) -> int:
        """Consume one structural character of the outermost object."""
        char = data[at : at + 1]
        match self._at, char:
            case _Expected.START, b"{":
                self._at = _Expected.KEY
            case _Expected.KEY, b'"':
                self._begin_string(bytearray(), _LONGEST_KEY)
            case _Expected.COLON, b":":
                self._at = _Expected.VALUE
            case _Expected.VALUE, b'"':
                self._begin_string(bytearray() if self._key == "id" else None, _LONGEST_ID)
            case _Expected.VALUE, b"{" | b"[":
                self._at, self._depth = _Expected.NESTED, 1
            case _Expected.VALUE, _:
                self._at, self._longest = _Expected.SCALAR, _LONGEST_ID
                self._kept = bytearray() if self._key == "id" else None
                return at
            case _Expected.COMMA, b",":
                self._at = _Expected.KEY
            case ((_Expected.KEY | _Expected.COMMA), b"}"):
                self._at = _Expected.END
            case _:
                self._at = _Expected.BROKEN
        return at + 1

    def _begin_string(self, kept: bytearray | None, longest: int) -> None:
        self._in_string, self._kept, self._longest = True, kept, longest

    def _string(self, data: bytes, at: int) -> int:
        """Consume the part of a string that is in this piece, up to its closing quote."""
        if self._escaped:
            self._escaped = False
            self._keep(data[at : at + 1])
            at += 1
        end = _end(_STRING, data, at, at + _SHORT)
        if data[end : end + 1] != b'"':
            end += _length_of_string(data[end:])
        self._keep(data[at:end] if self._kept is not None else b"")
        if data[end : end + 1] == b'"':
            self._in_string = False
            self._string_ended()
        elif end < len(data):  # a backslash whose second half is in the next piece
            self._escaped = True
            self._keep(b"\\")
        return end + 1

    def _string_ended(self) -> None:
        if self._at is _Expected.KEY:
            self._key = self._read_key()
            self._at = _Expected.COLON
        elif self._at is _Expected.VALUE:
            if self._key == "id":
                self._take_id(b'"%s"' % self._kept if self._kept is not None else None)
            self._at = _Expected.COMMA

    def _read_key(self) -> str:
        try:
            key = string(b'"%s"' % self._kept) if self._kept is not None else ""
        except ValueError:
            key = ""
        self._has_method = self._has_method or key == "method"
        self._has_answer = self._has_answer or key in ("result", "error")
        return key

    def _scalar(self, data: bytes, at: int) -> int:
        end = _end(_SCALAR, data, at)
        self._keep(data[at:end] if self._kept is not None else b"")
        if end < len(data):
            if self._key == "id":
                self._take_id(bytes(self._kept) if self._kept is not None else None)
            self._at = _Expected.COMMA
        return end

    def _continues_beyond(self, data: bytes) -> bool:
        """Whether the nested value continues after this piece. If so, the new depth is computed from the number of
        brackets, without a look at each of them."""
        outside, rest = _outside_strings(data)
        brackets = outside.translate(_ONE_KIND, _NO_BRACKETS)
        for _ in range(_COLLAPSES):
            brackets = brackets.replace(b"[]", b"")
        closed = brackets.count(b"]")
        if closed >= self._depth:
            return False
        self._depth += len(brackets) - 2 * closed
        if rest is not None:
            self._begin_string(None, 0)
            self._escaped = rest.endswith(b"\\")
        return True

    def _nested(self, data: bytes, at: int) -> int:
        """Skip the part of an object or array that is in this piece."""
        depth = self._depth
        if not self._looked_beyond:
            self._looked_beyond = True
            if self._continues_beyond(data[at:]):
                return len(data)
        for token in _NESTED.finditer(data, at):
            start = token.start()
            char = data[start]
            if char in b"{[":
                depth += 1
            elif char in b"}]":
                depth -= 1
                if not depth:
                    if self._key == "id":
                        self._take_id(None)
                    self._at = _Expected.COMMA
                    return start + 1
            elif token.end() == start + 1:
                self._depth = depth
                self._begin_string(None, 0)
                return start + 1
        self._depth = depth
        return len(data)

    def _keep(self, piece: bytes) -> None:
        if self._kept is not None:
            self._kept += piece
            if len(self._kept) > self._longest:
                self._kept = None

    def _take_id(self, raw: bytes | None) -> None:
        self._ids += 1
        self._id = None if raw is None else read_id(raw)


def _outside_strings(data: bytes) -> tuple[bytes, bytes | None]:
    """The text outside strings, in text that begins outside of them, and the part of a string that does not end in it:
    with escaped characters replaced, so that a backslash at its end is one whose second half is missing."""
    if b"\\" in data:
        data = data.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    parts = data.split(b'"')
    rest = parts.pop() if len(parts) % 2 == 0 else None
    return b"".join(parts[::2]), rest


def _length_of_string(data: bytes) -> int:
    """Length of the rest of a string in text that begins inside it: up to the closing quote, or the whole text except a
    final backslash whose second half is missing. A hundred times faster than a regular expression."""
    if b"\\" in data:
        data = data.replace(rb"\\", b"  ").replace(rb"\"", b"  ")
    end = data.find(b'"')
    return end if end >= 0 else len(data) - data.endswith(b"\\")


def _end(pattern: re.Pattern[bytes], data: bytes, at: int, limit: int = sys.maxsize) -> int:
    """End of the match at this position, for a pattern that also matches the empty text."""
    found = pattern.match(data, at, limit)
    assert found is not None
    return found.end()
