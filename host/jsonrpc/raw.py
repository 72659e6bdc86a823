"""Undecoded JSON: look inside one level, change a member, keep every other byte.

`Raw` is a piece of JSON text, known to be UTF-8 (`messages.read` sees to it). These functions open one level of it and
leave the rest as it is: number text, escapes, member order and unknown members survive. msgspec does the work; where it
refuses what JSON allows (an escaped lone surrogate, which JavaScript writes whenever it cuts an emoji in half), the
standard library's scanner does it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from json.decoder import scanstring  # type: ignore[attr-defined]  # public in CPython, missing from typeshed
from typing import TypeVar

import msgspec
from msgspec import Raw

T = TypeVar("T")

_members = msgspec.json.Decoder(dict[str, Raw])
_items = msgspec.json.Decoder(list[Raw])
_encoder = msgspec.json.Encoder()


def _no_constant(text: str) -> object:
    raise ValueError(f"{text} is no JSON number")


# Only where a value ends is of interest, so numbers stay text: of any length, but never `NaN`.
_scan = json.JSONDecoder(parse_int=str, parse_float=str, parse_constant=_no_constant).raw_decode

EMPTY_OBJECT = Raw(b"{}")

_SPELLED_OUT = re.compile(rb"\\u00")
"""What every character of ASCII begins with as an escape."""

# What msgspec raises for text that is not JSON, not UTF-8, not of the wanted type, or nested too deep.
REFUSALS = (msgspec.DecodeError, UnicodeDecodeError, RecursionError)


def members(raw: bytes | Raw) -> dict[str, Raw]:
    """The members of a JSON object, each undecoded. ValueError if `raw` is anything else."""
    try:
        return _members.decode(raw)
    except REFUSALS:
        return dict(_scan_members(_text(raw)))


def items(raw: bytes | Raw) -> list[Raw]:
    """The items of a JSON array, each undecoded. ValueError if `raw` is anything else."""
    try:
        return _items.decode(raw)
    except REFUSALS:
        return list(_scan_items(_text(raw)))


def string(raw: bytes | Raw) -> str:
    """The text of a JSON string. ValueError if `raw` is anything else, or cannot be written as UTF-8."""
    try:
        return msgspec.json.decode(raw, type=str)
    except REFUSALS as problem:
        raise ValueError("expected a string") from problem


def value(raw: bytes | Raw) -> object:
    """Decoded whole, for small members only. ValueError if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except REFUSALS as problem:
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
    head = bytes(memoryview(raw)[:64]).lstrip(b" \t\r\n")  # a long text is not copied to look at one character
    return (head or bytes(raw).lstrip(b" \t\r\n"))[:1] == b"{"


def may_spell(raw: bytes | Raw, *words: str) -> bool:
    """Whether JSON text must be opened to know if it holds one of these words of ASCII, which stand inside names or
    strings. Any letter may be spelled with an escape, and PHP writes every `/` as `\\/`."""
    text = bytes(raw)
    for word in words:
        if word.encode() in text:
            return True
    # To look for one character costs next to nothing.
    return b"\\" in text and ("/" in "".join(words) or _SPELLED_OUT.search(text) is not None)


def one_line(data: bytes) -> bytes:
    """The same JSON without line ends. In JSON text they can only be white space between tokens."""
    if b"\n" in data or b"\r" in data:
        return data.replace(b"\n", b" ").replace(b"\r", b" ")
    return data


def _text(raw: bytes | Raw) -> str:
    try:
        return bytes(raw).decode()
    except UnicodeDecodeError as problem:
        raise ValueError("not UTF-8") from problem


def _scan_members(text: str) -> list[tuple[str, Raw]]:
    found: list[tuple[str, Raw]] = []
    at = _expect(text, _blank(text, 0), "{")
    at = _blank(text, at)
    if text[at : at + 1] == "}":
        return _ended(text, at + 1, found)
    while True:
        at = _expect(text, _blank(text, at), '"')
        key, at = scanstring(text, at, True)
        at = _blank(text, _expect(text, _blank(text, at), ":"))
        piece, at = _span(text, at)
        found.append((key, piece))
        at = _blank(text, at)
        if text[at : at + 1] == "}":
            return _ended(text, at + 1, found)
        at = _expect(text, at, ",")


def _scan_items(text: str) -> list[Raw]:
    found: list[Raw] = []
    at = _expect(text, _blank(text, 0), "[")
    at = _blank(text, at)
    if text[at : at + 1] == "]":
        return _ended(text, at + 1, found)
    while True:
        piece, at = _span(text, _blank(text, at))
        found.append(piece)
        at = _blank(text, at)
        if text[at : at + 1] == "]":
            return _ended(text, at + 1, found)
        at = _expect(text, at, ",")


def _span(text: str, at: int) -> tuple[Raw, int]:
    try:
        _, end = _scan(text, at)
    except RecursionError as problem:
        raise ValueError("nested too deep") from problem
    return Raw(text[at:end].encode()), end


def _blank(text: str, at: int) -> int:
    while text[at : at + 1] in (" ", "\t", "\n", "\r"):
        at += 1
    return at


def _expect(text: str, at: int, char: str) -> int:
    if text[at : at + 1] != char:
        raise ValueError(f"expected {char!r} at character {at}")
    return at + 1


def _ended(text: str, at: int, found: list[T]) -> list[T]:
    if _blank(text, at) != len(text):
        raise ValueError(f"more text after the end at character {at}")
    return found
