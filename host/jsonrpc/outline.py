"""The outline of JSON text: the same text, with its long strings left empty.

Levels, members, numbers and structural characters outside strings are those of the text. So what is asked about them
takes one look at a long text; then only its outline is searched.

An object, or an array of objects, is outlined if it is written without white space, without escapes in its names and
without duplicate names, as encoders write it: then its names and values account for each of its bytes. Any other value
is kept as it is, with all its strings.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Any, TypeAlias

import msgspec
from msgspec import Meta, Raw

from host.jsonrpc.raw import DECODE_ERRORS, encode, is_object, is_string
from host.jsonrpc.strict import LIGHT_BYTES, count_rare

LONG = 256
"""Bytes of a value beyond which it is outlined. No word of the protocol is so long."""
MAX_BYTES = 4 * 1024 * 1024
"""Bytes of a text beyond which making its outline may take more than a few milliseconds."""
MAX_OBJECTS = 10_000
"""Braces and colons of a text of more than LIGHT_BYTES, those in strings included: each may have an object made for
it."""
_SHORT = 1024
_PART = 64 * 1024
_SOUGHT = (b"{", b":")
_NEITHER = bytes(byte for byte in range(256) if byte not in b"{:")
_LOOKS = 3
"""Times that a part of a text is looked at, each time for a level or two within the one before."""

_EMPTY_STRING = Raw(b'""')
_Object: TypeAlias = dict[str, Raw]
_Short: TypeAlias = Annotated[str, Meta(max_length=LONG)]
_Levels: TypeAlias = dict[str, _Object | list[_Object] | _Short | int | bool | None]
# Params and results are such objects. Floats are not among them: msgspec may write one longer than it came.
_levels = msgspec.json.Decoder(_Levels)
_members = msgspec.json.Decoder(_Object)
_objects = msgspec.json.Decoder(list[_Object])


def outline(text: Raw, looks: int = _LOOKS) -> Raw:
    """The outline of the text; `text` itself if that is short or cannot be outlined at its first level. All of a text
    that is outlined is JSON that msgspec accepts, but it may not be UTF-8."""
    if len(text) <= LONG or not looks:
        return text
    if is_string(text):
        return _EMPTY_STRING
    opened = _opened(text)
    left_out = 0
    for found in _objects_in(opened):
        for name, value in found.items():
            if isinstance(value, Raw) and len(value) > LONG:
                found[name] = outline(value, looks - 1)
                left_out += len(value) - len(found[name])
    outlined = encode(opened)
    return outlined if left_out and len(outlined) + left_out == len(text) else text


def _opened(text: Raw) -> _Levels | _Object | list[_Object]:
    """The object or array of objects, without the last levels of it; nothing of anything else."""
    try:
        if not is_object(text):
            return _objects.decode(text)
        try:
            return _levels.decode(text)
        except msgspec.ValidationError:  # an object with other members
            return _members.decode(text)
    except DECODE_ERRORS:
        return []


def _objects_in(opened: _Levels | _Object | list[_Object]) -> Iterator[dict[str, Any]]:
    if isinstance(opened, list):
        yield from opened
        return
    yield opened
    for inner in opened.values():
        if isinstance(inner, dict):
            yield inner
        elif isinstance(inner, list):
            yield from inner


def outline_soon(text: Raw) -> Raw:
    """`outline(text)` if it saves time and takes a few milliseconds at most; otherwise `text` itself."""
    if not _SHORT < len(text) <= MAX_BYTES or (len(text) > LIGHT_BYTES and _may_hold_many(text)):
        return text
    return outline(text)


def _may_hold_many(text: Raw) -> bool:
    left = MAX_OBJECTS
    for at in range(0, len(text), _PART):  # a whole copy would be mapped anew, which takes as long as another look
        left -= count_rare(bytes(memoryview(text)[at : at + _PART]), _SOUGHT, _NEITHER)
    return left < 0
