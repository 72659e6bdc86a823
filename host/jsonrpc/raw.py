"""Undecoded JSON: open one level, replace a member, keep every other byte.

`Raw` is a piece of JSON text, known to be UTF-8 (`messages.read` checks it). These functions open one level and leave
the rest unchanged: number text, escapes, member order and unknown members survive. msgspec decodes. It refuses one
thing that JSON allows: an escaped lone surrogate, which JavaScript writes whenever it cuts an emoji in half. Such
escapes are masked before decoding and restored in the result (`_SurrogateMask`, `without_surrogates`).
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Callable, Mapping
from functools import lru_cache
from operator import is_
from typing import Any

import msgspec
from msgspec import Raw

_any = msgspec.json.Decoder(Raw)
_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_string = msgspec.json.Decoder(str)
_encoder = msgspec.json.Encoder()


EMPTY_OBJECT = Raw(b"{}")
NULL, TRUE = Raw(b"null"), Raw(b"true")
"""For comparisons without a copy: members have no white space around their values."""

_BACKSLASH, _LF, _CR = b"\\\n\r"
"""As numbers: a search for `bytes` by `in` makes and drops an exception first, and takes ten times as long."""

_ASCII_ESCAPE = re.compile(rb"\\u00")
"""Prefix of the escape of any ASCII character."""

_NO_SURROGATES = bytes.maketrans(b"dD", b"cC")
"""Maps valid JSON to valid JSON and invalid to invalid: in valid JSON the letter d or D stands only in strings, where
it may be a hexadecimal digit of an escape, and so may c and C."""

# Raised by msgspec for text that is not JSON, not UTF-8, not of the wanted type, or nested too deep.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _SurrogateMask:
    """JSON text whose escapes of surrogates are masked: `\\ud83d` becomes a token and `\\u083d`, so that its digits are
    still checked. The token is random, so that no peer can write it. It does not begin with a hexadecimal digit,
    because it could complete an escape that is cut off before it."""

    def __init__(self, text: bytes) -> None:
        token = b"~" + secrets.token_hex(8).encode()
        while token in text:
            token = b"~" + secrets.token_hex(8).encode()
        self._token = token.decode()
        self._lower, self._upper, self._pair = token + b"l", token + b"u", token + b"b"
        text = text.replace(rb"\\", self._pair)  # else the second backslash would look like the start of an escape
        self.text = text.replace(rb"\ud", self._lower + rb"\u0").replace(rb"\uD", self._upper + rb"\u0")
        self._name = re.compile(f"{self._token}(?:b|[lu](.))", re.DOTALL)

    def unmasked(self, piece: Raw) -> Raw:
        """A piece of the masked text, with its original bytes."""
        text = bytes(piece).replace(self._lower + rb"\u0", rb"\ud").replace(self._upper + rb"\u0", rb"\uD")
        return Raw(text.replace(self._pair, rb"\\"))

    def unmasked_name(self, name: str) -> str:
        """The decoded name of a member, as it would be without the mask."""
        if self._token not in name:
            return name
        found = self._name.sub(lambda match: "\\" if match[1] is None else chr(0xD000 + ord(match[1])), name)
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _surrogate_mask(text: bytes | Raw) -> _SurrogateMask | None:
    """The mask for this text, or None if it has no escaped surrogate."""
    data = bytes(text)
    return _SurrogateMask(data) if may_hold_surrogates(data) else None


def may_hold_surrogates(text: bytes) -> bool:
    """Whether JSON text may hold escapes of surrogates, alone or in pairs."""
    return _BACKSLASH in text and (rb"\ud" in text or rb"\uD" in text)


def is_json(text: bytes) -> bool:
    """Whether UTF-8 text is JSON. RecursionError if it is nested too deep to tell."""
    try:
        _any.decode(without_surrogates(text))
    except msgspec.DecodeError:
        return False
    return True


def is_accepted(text: bytes | Raw) -> bool:
    """Whether text is JSON that msgspec reads: without escapes of lone surrogates. It may not be UTF-8."""
    try:
        _any.decode(text)
    except DECODE_ERRORS:
        return False
    return True


def without_surrogates(text: bytes) -> bytes:
    """Text of the same length and structure without escaped surrogates: each `d` is replaced by `c`."""
    return text.translate(_NO_SURROGATES)


def has_no_lone_surrogate(found: Mapping[str, Raw]) -> bool:
    """Whether no name and no value holds an escaped lone surrogate."""
    try:
        _any.decode(_encoder.encode(found))
    except (UnicodeEncodeError, *DECODE_ERRORS):
        return False
    return True


def members(raw: bytes | Raw) -> dict[str, Raw]:
    """The members of a JSON object, each undecoded. ValueError if `raw` is anything else."""
    try:
        return _members.decode(raw)
    except DECODE_ERRORS as problem:
        refusal = ValueError("expected an object")
        mask = _surrogate_mask(raw) if is_object(raw) else None
        if mask is None:
            raise refusal from problem
    try:
        found = _members.decode(mask.text)
    except DECODE_ERRORS as problem:
        raise refusal from problem
    return {mask.unmasked_name(name): mask.unmasked(piece) for name, piece in found.items()}


def members_if_object(raw: bytes | Raw | None) -> dict[str, Raw]:
    """The members of a JSON object; none for any other value, and for None. Never raises."""
    try:
        return {} if raw is None else members(raw)
    except ValueError:
        return {}


def pick(raw: bytes | Raw, names: frozenset[str]) -> dict[str, Raw]:
    """The members of a JSON object with these names. No objects are made for other members: a hundred times faster than
    `members` for an object with many. ValueError if `raw` is not an object, or has an escaped lone surrogate anywhere.
    """
    try:
        if not all(map(_is_field_name, names)):
            return {name: each for name, each in _members.decode(raw).items() if name in names}
        found = msgspec.structs.asdict(_picker(names).decode(raw))
    except DECODE_ERRORS as problem:
        raise ValueError("expected an object without lone surrogates") from problem
    return {name: found[field] for name, field in zip(sorted(names), found, strict=True) if len(found[field])}


_ABSENT = Raw(b"")
"""Marks a missing member: no JSON text is empty."""


def has_only(raw: bytes | Raw, names: frozenset[str]) -> bool:
    """Whether `raw` is an object without members of other names. False if it has an escaped lone surrogate."""
    try:
        if not all(map(_is_field_name, names)):
            return _members.decode(raw).keys() <= names
        _picker(names, exactly=True).decode(raw)
    except DECODE_ERRORS:
        return False
    return True


def _is_field_name(name: str) -> bool:
    """Whether the name can be that of a field of a `Struct`."""
    return name.isprintable() and '"' not in name and "\\" not in name


@lru_cache(maxsize=256)
def _picker(names: frozenset[str], *, exactly: bool = False) -> msgspec.json.Decoder[Any]:
    fields = [f"field{at}" for at in range(len(names))]
    rename = dict(zip(fields, sorted(names), strict=True))
    picked = [(each, Raw, _ABSENT) for each in fields]
    return msgspec.json.Decoder(msgspec.defstruct("Picked", picked, rename=rename, forbid_unknown_fields=exactly))


def items(raw: bytes | Raw) -> list[Raw]:
    """The items of a JSON array, each undecoded. ValueError if `raw` is anything else."""
    try:
        return _items.decode(raw)
    except DECODE_ERRORS as problem:
        refusal = ValueError("expected an array")
        if not is_array(raw):
            raise refusal from problem
    text = bytes(raw)
    other = without_surrogates(text)  # of the same length, so each item has the same offsets in both
    try:
        pieces = _items.decode(other)
    except DECODE_ERRORS as problem:
        raise refusal from problem
    found: list[Raw] = []
    end = 0
    for piece in pieces:
        start = other.index(bytes(piece), end)
        end = start + len(piece)
        found.append(Raw(text[start:end]))
    return found


def string(raw: bytes | Raw) -> str:
    """The text of a JSON string. ValueError if `raw` is anything else, or cannot be written as UTF-8."""
    try:
        return _string.decode(raw)
    except DECODE_ERRORS as problem:
        raise ValueError("expected a string") from problem


def text_at(found: Mapping[str, Raw], name: str) -> str | None:
    """The text of a member; None if it is missing, or `string` takes it for none."""
    raw = found.get(name)
    try:
        return None if raw is None else string(raw)
    except ValueError:
        return None


def text_below(raw: bytes | Raw | None, *path: str) -> str | None:
    """The text that these names lead to, from one object to the next; None if `text_at` finds none there. Never
    raises."""
    *outer, name = path
    for each in outer:
        raw = members_if_object(raw).get(each)
    return text_at(members_if_object(raw), name)


def value(raw: bytes | Raw) -> object:
    """Decode a whole value; for small members only. ValueError if `raw` is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except DECODE_ERRORS as problem:
        raise ValueError("not JSON") from problem


def encode(thing: object) -> Raw:
    """Any value as JSON text; `Raw` inside it is kept as it is."""
    return Raw(_encoder.encode(thing))


def encode_object(found: Mapping[str, Raw]) -> Raw:
    try:
        return Raw(_encoder.encode(found))
    except UnicodeEncodeError:  # a lone surrogate in the name of a member, which only an escape can spell
        return Raw(b"{" + b",".join(json.dumps(name).encode() + b":" + bytes(found[name]) for name in found) + b"}")


def with_members(raw: Raw, found: Mapping[str, Raw], changed: Mapping[str, Raw]) -> Raw:
    """An object with changed members. `raw` itself, not a copy, if they are those that were `found` in it."""
    is_same = len(changed) == len(found) and all(changed.get(name) is each for name, each in found.items())
    return raw if is_same else encode_object(changed)


def change_at(raw: Raw, place: tuple[str, ...], change: Callable[[Raw], Raw]) -> Raw:
    """`raw` with the value at `place` changed, where `*` stands for each item of an array; `raw` itself, not a copy, if
    nothing changed or the place is not there."""
    if not place:
        return change(raw)
    head, rest = place[0], place[1:]
    if head == "*":
        try:
            before = items(raw)
        except ValueError:
            return raw
        after = [change_at(item, rest, change) for item in before]
        return raw if all(map(is_, before, after)) else encode(after)
    found = members_if_object(raw)
    if head not in found:
        return raw
    inner = change_at(found[head], rest, change)
    if inner is found[head]:
        return raw
    found[head] = inner
    return encode_object(found)


def respelled(data: bytes) -> bytes:
    """JSON without spaces and needless escapes, so that what says the same is equal; as it is where it cannot be
    decoded whole: a lone surrogate, or a number beyond a double. Objects would not do: to Python, true is 1 and 1.0."""
    try:
        return msgspec.json.encode(msgspec.json.decode(data))
    except (*DECODE_ERRORS, UnicodeEncodeError):
        return data


def is_object(raw: bytes | Raw) -> bool:
    return _OBJECT.match(raw) is not None


def is_array(raw: bytes | Raw) -> bool:
    return _ARRAY.match(raw) is not None


def is_string(raw: bytes | Raw) -> bool:
    return _STRING.match(raw) is not None


def unless_null(raw: Raw | None) -> Raw | None:
    """The value of an optional member for which null says the same as no member: None for both."""
    return None if raw == NULL else raw


# A long text is not copied to look at one character.
_OBJECT = re.compile(rb"[ \t\r\n]*+\{")
_ARRAY = re.compile(rb"[ \t\r\n]*+\[")
_STRING = re.compile(rb'[ \t\r\n]*+"')


def may_contain_word(raw: bytes | Raw, *words: str) -> bool:
    """Whether JSON text may hold one of these ASCII words inside a name or a string, so that it must be decoded. A word
    may be hidden by escapes: any letter can be written as one, and PHP writes every `/` as `\\/`."""
    text = bytes(raw)
    for word in words:
        if text.find(word.encode()) >= 0:  # faster than `in`; see _BACKSLASH
            return True
    # The search for one character comes first because it costs next to nothing.
    return _BACKSLASH in text and ("/" in "".join(words) or _ASCII_ESCAPE.search(text) is not None)


def one_line(data: bytes) -> bytes:
    """The same JSON without line ends, which in JSON text can only be white space between tokens."""
    if _LF in data or _CR in data:
        return data.replace(b"\n", b" ").replace(b"\r", b" ")
    return data
