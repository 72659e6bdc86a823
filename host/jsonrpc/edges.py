"""The first and last bytes of a long message: its short members (`jsonrpc`, `id`, `method`) stand before or after its
long one (`params`, `result` or `error`), as every library writes them.

The text between is unknown until it was decoded. If that is one value, the message is one object with these
members and no others.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from msgspec import Raw

VERSION = b'"2.0"'
"""The text of `jsonrpc`."""
_LONGEST = 256
"""Bytes of a short member: as many as an id may have (`messages.MAX_ID_BYTES`)."""
_NEAR_END, END = 64, 512
"""Bytes of the end that are looked at first, and those of the beginning and of the end that are looked at."""

_SPACE = rb"[ \t\r\n]*+"
_PAIR = rb'"(jsonrpc|id|method)"%b:%b("[^"\\]{0,%d}+"|-?[0-9]{1,19}+)' % (_SPACE, _SPACE, _LONGEST)
_PAIRS = re.compile(_PAIR)
_UNNAMED = _PAIR.replace(b"(", b"(?:")
_OPENING = re.compile(
    rb'%b\{%b((?:%b%b,%b)*+)"(params|result|error)"%b:%b' % (_SPACE, _SPACE, _UNNAMED, _SPACE, _SPACE, _SPACE, _SPACE)
)
# In valid JSON this cannot begin inside a string: its first quote would end the string, before a name. The bracket ends
# the long member: otherwise a short one that is not understood, such as an id with an escape, would be overlooked.
_CLOSING = re.compile(rb"[\]}]%b(?:,%b%b%b)*+\}%b\Z" % (_SPACE, _SPACE, _UNNAMED, _SPACE, _SPACE))


class MessageStart(NamedTuple):
    """The beginning of a message: the name of its long member, the texts of the short ones before it, and the place of
    its value."""

    name: bytes
    short: dict[bytes, bytes]
    at: int


class LongObject(NamedTuple):
    """A message whose long member is an object: the name of the member, all short ones, and its text, which is not
    decoded."""

    name: bytes
    short: dict[bytes, bytes]
    value: Raw


def opening(text: bytes) -> MessageStart | None:
    """None if a message does not begin so."""
    found = _OPENING.match(text, 0, END)
    return None if found is None else MessageStart(found[2], dict(_PAIRS.findall(found[1])), found.end())


def closing(text: bytes, at: int) -> re.Match[bytes] | None:
    """The end of a message, from the last byte of its long member, which begins at `at`."""
    # Nearly all end within a few bytes, and looking at each takes 7 ns.
    found = _CLOSING.search(text, max(at, len(text) - _NEAR_END))
    return found or _CLOSING.search(text, max(at, len(text) - END))


def members_after(end: re.Match[bytes]) -> dict[bytes, bytes]:
    """The texts of the short members in the end of a message."""
    return dict(_PAIRS.findall(end[0]))


def long_object(text: bytes) -> LongObject | None:
    """The parts of a message, if what is between its ends is an object; the caller decodes that. None if a message does
    not begin and end so."""
    begin = opening(text)
    if begin is None or not text.startswith(b"{", begin.at) or (end := closing(text, begin.at)) is None:
        return None
    value = Raw(memoryview(text)[begin.at : end.start() + 1])
    return LongObject(begin.name, begin.short | members_after(end), value)
