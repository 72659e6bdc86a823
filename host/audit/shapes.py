"""The shape of arguments: what a record says of them without their values."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from itertools import islice
from typing import cast

from msgspec import Raw

from host.jsonrpc.numbers import WrittenFloat
from host.jsonrpc.raw import is_object, may_hold_surrogates, members, pick
from host.jsonrpc.raw import value as json_value
from host.jsonrpc.strict import may_have_more_tokens

_MEMBERS = 32
_NAME = 64
_KEPT_NAMES = 1024
"""Short names whose text is kept, since those of a tool come again and again."""
_MARKS = 5_000
_LOOKED_INTO = 1024 * 1024
"""Structural characters and bytes up to which the members of long arguments are looked at: 1 MiB takes some 10 ms."""
_DECODED = 64 * 1024
"""Bytes of one of them up to which it is decoded."""

_SIZED: dict[type, str] = {str: "str", dict: "obj", list: "arr"}
# By the very type: decoded JSON has no others.
_WORDS: dict[type, str] = {type(None): "null", bool: "bool", int: "num", float: "num", WrittenFloat: "num"}


def shape_of(arguments: object) -> object:
    """The shape of decoded arguments: `{"title": "str[42]", "labels": "arr[2]", "n": "num"}`.

    Of an object's members, the first 32, their names escaped and cut; anything else is one word.
    """
    if not isinstance(arguments, dict):
        return _word(arguments)
    shown: dict[str, str] = {}
    for name, value in arguments.items() if len(arguments) <= _MEMBERS else islice(arguments.items(), _MEMBERS):
        what = f"str[{len(value)}]" if type(value) is str else _WORDS.get(type(value)) or _word(value)
        shown[_shown_name(name) if len(name) <= _NAME else ascii(name)[1:-1][:_NAME]] = what
    return shown if len(arguments) <= _MEMBERS else {**shown, "...": f"obj[{len(arguments)}]"}


@lru_cache(_KEPT_NAMES)
def _shown_name(name: str) -> str:
    return ascii(name)[1:-1][:_NAME]


def shape_of_long(raw: Raw, opened: Mapping[str, Raw] | None = None) -> object:
    """The same of arguments that are too long to be decoded: of large members it says the bytes. `opened`: their
    members, if they are known; besides long strings, they have few structural characters."""
    if opened is not None and len(raw) <= _LOOKED_INTO:  # without a copy or another look
        return shape_of(opened)
    arguments = bytes(raw)
    if len(arguments) > _LOOKED_INTO or may_have_more_tokens(arguments, _MARKS) or not is_object(arguments):
        return _long_word(arguments)
    if len(arguments) > _DECODED and may_hold_surrogates(arguments):
        try:
            pick(arguments, frozenset())
        except ValueError:  # a lone surrogate, for which it would take long to open them
            return _long_word(arguments)
    return shape_of(members(arguments))


def _long_word(raw: bytes | Raw) -> str:
    if len(raw) > _DECODED:
        kind = {b"{": "obj", b"[": "arr", b'"': "str"}.get(bytes(memoryview(raw)[:1]), "num")
        return f"{kind}[{len(raw)} bytes]"
    try:
        return _word(json_value(raw))
    except ValueError:
        return "unreadable"


def _word(value: object) -> str:
    kind = type(value)
    if kind in _SIZED:
        return f"{_SIZED[kind]}[{len(cast(str, value))}]"
    return _long_word(value) if isinstance(value, Raw) else _WORDS.get(kind, "unreadable")
