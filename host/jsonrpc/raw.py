"""Undecoded JSON: look inside one level, change a member, keep every other byte.

`Raw` is a piece of JSON text, known to be UTF-8 (`messages.read` sees to it). These functions open one level of it and
leave the rest as it is: number text, escapes, member order and unknown members survive. msgspec does the work. It
refuses one thing that JSON allows: an escaped lone surrogate, which JavaScript writes whenever it cuts an emoji in
half. Such escapes are replaced for it (`_SurrogateMask`, `without_surrogates`), and what it gives holds them again.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping
from functools import lru_cache
from typing import Any

import msgspec
from msgspec import Raw

_any = msgspec.json.Decoder(Raw)
_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_encoder = msgspec.json.Encoder()


EMPTY_OBJECT = Raw(b"{}")

_ASCII_ESCAPE = re.compile(rb"\\u00")
"""What every character of ASCII begins with as an escape."""

_NO_SURROGATES = bytes.maketrans(b"dD", b"cC")
"""Turns JSON into other JSON, and text that is none into text that is none: outside strings neither letter can stand,
and inside escapes both are nothing but digits."""

# What msgspec raises for text that is not JSON, not UTF-8, not of the wanted type, or nested too deep.
DECODE_ERRORS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


class _SurrogateMask:
    """JSON text in which no escape of a surrogate is left: `\\ud83d` stands there as a token and `\\u083d`, so that its
    digits are still checked. The token is random, since nobody must be able to write it. It begins with no digit, since
    it may stand behind an escape that is cut off."""

    def __init__(self, text: bytes) -> None:
        token = b"~" + secrets.token_hex(8).encode()
        while token in text:
            token = b"~" + secrets.token_hex(8).encode()
        self._token = token.decode()
        self._lower, self._upper, self._pair = token + b"l", token + b"u", token + b"b"
        text = text.replace(rb"\\", self._pair)  # else the end of one would look like the beginning of an escape
        self.text = text.replace(rb"\ud", self._lower + rb"\u0").replace(rb"\uD", self._upper + rb"\u0")
        self._name = re.compile(f"{self._token}(?:b|[lu](.))", re.DOTALL)

    def unmasked(self, piece: Raw) -> Raw:
        """A piece of the text, as it was."""
        text = bytes(piece).replace(self._lower + rb"\u0", rb"\ud").replace(self._upper + rb"\u0", rb"\uD")
        return Raw(text.replace(self._pair, rb"\\"))

    def unmasked_name(self, name: str) -> str:
        """The decoded name of a member, as it would be without the veil."""
        if self._token not in name:
            return name
        found = self._name.sub(lambda match: "\\" if match[1] is None else chr(0xD000 + ord(match[1])), name)
        return found.encode("utf-16", "surrogatepass").decode("utf-16", "surrogatepass")


def _surrogate_mask(text: bytes | Raw) -> _SurrogateMask | None:
    """None if there is nothing in the text that only msgspec refuses."""
    found = bytes(text)
    return _SurrogateMask(found) if may_hold_surrogates(found) else None


def may_hold_surrogates(text: bytes) -> bool:
    """Whether JSON text may hold escapes of surrogates, alone or in pairs."""
    return rb"\ud" in text or rb"\uD" in text


def is_json(text: bytes) -> bool:
    """Whether UTF-8 text is JSON. RecursionError if it is nested too deep for that to be said."""
    try:
        _any.decode(without_surrogates(text))
    except msgspec.DecodeError:
        return False
    return True


def without_surrogates(text: bytes) -> bytes:
    """Other JSON of the same structure, in which no escape stands for a surrogate: each `d` in it is a `c`."""
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
        veil = _surrogate_mask(raw) if is_object(raw) else None
        if veil is None:
            raise refusal from problem
    try:
        found = _members.decode(veil.text)
    except DECODE_ERRORS as problem:
        raise refusal from problem
    return {veil.unmasked_name(name): veil.unmasked(piece) for name, piece in found.items()}


def pick(raw: bytes | Raw, names: frozenset[str]) -> dict[str, Raw]:
    """Those of the members that have one of these names. The others are passed over without making objects of them: a
    hundred times faster than `members` where there are many. ValueError if `raw` is no object, or holds anywhere an
    escaped lone surrogate."""
    try:
        if not all(map(_is_field_name, names)):
            return {name: each for name, each in _members.decode(raw).items() if name in names}
        found = msgspec.structs.asdict(_picker(names).decode(raw))
    except DECODE_ERRORS as problem:
        raise ValueError("expected an object without lone surrogates") from problem
    return {name: found[field] for name, field in zip(sorted(names), found, strict=True) if len(found[field])}


_ABSENT = Raw(b"")
"""Of no length, as no JSON is."""


def has_only(raw: bytes | Raw, names: frozenset[str]) -> bool:
    """Whether `raw` is an object whose members have none but these names; not if it holds an escaped lone surrogate."""
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
    other = without_surrogates(text)  # it is as long, so an item stands at the same place in both
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
        return msgspec.json.decode(raw, type=str)
    except DECODE_ERRORS as problem:
        raise ValueError("expected a string") from problem


def value(raw: bytes | Raw) -> object:
    """Decoded whole, for small members only. ValueError if it is not JSON."""
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


def is_object(raw: bytes | Raw) -> bool:
    return _first(raw) == b"{"


def is_array(raw: bytes | Raw) -> bool:
    return _first(raw) == b"["


def _first(raw: bytes | Raw) -> bytes:
    """The first character that is no blank."""
    head = bytes(memoryview(raw)[:64]).lstrip(b" \t\r\n")  # a long text is not copied to look at one character
    return (head or bytes(raw).lstrip(b" \t\r\n"))[:1]


def may_contain_word(raw: bytes | Raw, *words: str) -> bool:
    """Whether JSON text must be opened to know if it holds one of these words of ASCII, which stand inside names or
    strings. Any letter may be spelled with an escape, and PHP writes every `/` as `\\/`."""
    text = bytes(raw)
    for word in words:
        if word.encode() in text:
            return True
    # To look for one character costs next to nothing.
    return b"\\" in text and ("/" in "".join(words) or _ASCII_ESCAPE.search(text) is not None)


def one_line(data: bytes) -> bytes:
    """The same JSON without line ends. In JSON text they can only be white space between tokens."""
    if b"\n" in data or b"\r" in data:
        return data.replace(b"\n", b" ").replace(b"\r", b" ")
    return data
