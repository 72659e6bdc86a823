"""The shape of arguments: what a record says of them without their values."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from typing import TypeVar

from msgspec import Raw

from host.jsonrpc.raw import is_object, members, pick
from host.jsonrpc.raw import value as json_value
from host.jsonrpc.strict import count_tokens

_MEMBERS = 32
_NAME = 64
_MARKS = 5_000
_LOOKED_INTO = 1024 * 1024
"""Structural characters and bytes up to which the members of long arguments are looked at: 1 MiB takes some 10 ms."""
_DECODED = 64 * 1024
"""Bytes of one of them up to which it is decoded."""

T = TypeVar("T")


def shape_of(arguments: object) -> object:
    """The shape of decoded arguments: `{"title": "str[42]", "labels": "arr[2]", "n": "num"}`.

    Of an object's members, the first 32, their names escaped and cut; anything else is one word.
    """
    return _shape(arguments, _word) if isinstance(arguments, dict) else _word(arguments)


def shape_of_long(arguments: bytes) -> object:
    """The same of arguments that are too long to be decoded: of large members it says the bytes."""
    if len(arguments) > _LOOKED_INTO or count_tokens(arguments) > _MARKS or not is_object(arguments):
        return _long_word(arguments)
    if len(arguments) > _DECODED and (rb"\ud" in arguments or rb"\uD" in arguments):
        try:
            pick(arguments, frozenset())
        except ValueError:  # a lone surrogate, for which it would take long to open them
            return _long_word(arguments)
    return _shape(members(arguments), _long_word)


def _shape(found: Mapping[str, T], word: Callable[[T], str]) -> dict[str, str]:
    shown = {ascii(name)[1:-1][:_NAME]: word(value) for name, value in islice(found.items(), _MEMBERS)}
    return shown if len(found) <= _MEMBERS else {**shown, "...": f"obj[{len(found)}]"}


def _long_word(raw: bytes | Raw) -> str:
    if len(raw) > _DECODED:
        kind = {b"{": "obj", b"[": "arr", b'"': "str"}.get(bytes(memoryview(raw)[:1]), "num")
        return f"{kind}[{len(raw)} bytes]"
    try:
        return _word(json_value(raw))
    except ValueError:
        return "unreadable"


def _word(value: object) -> str:
    match value:
        case str():
            return f"str[{len(value)}]"
        case None:
            return "null"
        case bool():
            return "bool"
        case int() | float():
            return "num"
        case dict():
            return f"obj[{len(value)}]"
        case list():
            return f"arr[{len(value)}]"
        case _:
            return "unreadable"
