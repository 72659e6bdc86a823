"""The outline of JSON text: the same text, with its long strings left empty.

Levels, members, numbers and structural characters outside strings are those of the text. So what is asked about them
takes one look at a long text; then only its outline is searched.

An object, or an array of objects, is outlined if it is written without white space, without escapes in its names and
without duplicate names, as encoders write it: then its names and values account for each of its bytes. Any other value
is kept as it is, with all its strings.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, NamedTuple, TypeAlias

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
    return _EMPTY_STRING if is_string(text) else _shorten(text, _opened(text), looks)[0]


class OutlinedObject(NamedTuple):
    """An object of which one look was taken. `members`, and those of each member that is an object itself (`inner`),
    are what `raw.members` finds; none if the object could not be outlined, and `outline` is its text."""

    outline: Raw
    members: Mapping[str, Raw]
    inner: Mapping[str, Mapping[str, Raw]]


def outline_object(text: Raw) -> OutlinedObject:
    """The outline of an object and its members, for which no other look is needed."""
    opened = _opened(text)
    members: dict[str, Raw] = {}
    inner: dict[str, Mapping[str, Raw]] = {}
    if isinstance(opened, dict):
        inner |= {name: dict(each) for name, each in opened.items() if isinstance(each, dict)}
    outlined, left_out = _shorten(text, opened, _LOOKS)
    if outlined is text:
        return OutlinedObject(text, {}, {})
    if isinstance(opened, dict):
        view, at = memoryview(text), 1
        for name, value in opened.items():  # all of them together have the length of the text, so each has its own
            at += len(encode(name)) + 1
            end = at + len(encode(value)) + left_out.get(name, 0)
            members[name] = Raw(view[at:end])
            at = end + 1
    return OutlinedObject(outlined, members, inner)


def _shorten(text: Raw, opened: _Levels | _Object | list[_Object], looks: int) -> tuple[Raw, dict[str, int]]:
    """The outline of the text, of which `opened` becomes the value, and how many bytes members of that lack."""
    left_out: dict[str, int] = {}  # a Counter takes ten times as long to make
    for member, found in _objects_in(opened):
        for name, value in found.items():
            if isinstance(value, Raw) and len(value) > LONG:
                found[name] = outline(value, looks - 1)
                left_out[member or name] = left_out.get(member or name, 0) + len(value) - len(found[name])
    outlined = encode(opened)
    is_whole = left_out and len(outlined) + sum(left_out.values()) == len(text)
    return outlined if is_whole else text, left_out


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


def _objects_in(opened: _Levels | _Object | list[_Object]) -> Iterator[tuple[str | None, dict[str, Any]]]:
    """The objects whose members were decoded, each with the name of the member that it is in, or None."""
    if isinstance(opened, list):
        for each in opened:
            yield None, each
        return
    yield None, opened
    for name, inner in opened.items():
        if isinstance(inner, dict):
            yield name, inner
        elif isinstance(inner, list):
            for each in inner:
                yield name, each


def outline_soon(text: Raw) -> Raw:
    """`outline(text)` if it saves time and takes a few milliseconds at most; otherwise `text` itself."""
    return text if len(text) <= _SHORT or takes_long(text) else outline(text)


def takes_long(text: Raw) -> bool:
    """Whether making the outline may take more than a few milliseconds."""
    return len(text) > MAX_BYTES or (len(text) > LIGHT_BYTES and _may_hold_many(text))


def _may_hold_many(text: Raw) -> bool:
    left = MAX_OBJECTS
    for at in range(0, len(text), _PART):  # a whole copy would be mapped anew, which takes as long as another look
        left -= count_rare(bytes(memoryview(text)[at : at + _PART]), _SOUGHT, _NEITHER)
    return left < 0
