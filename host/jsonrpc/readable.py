"""Checks that clients can parse the definitions and results of servers. A client that refuses a message loses all of
it.

A list is one message with the definitions of all servers, so definitions must keep the limits for messages from
clients. A result belongs to one call and is refused only for what makes common parsers refuse a whole message.
Measured: the parser of the official Python SDK (jiter) refuses more than 200 levels, integers of more than 4,300
digits, and lone surrogates; serde_json (Rust) refuses 128 levels. For long text, call these functions in a worker
thread or another process (`host/worker.py`).
"""

from __future__ import annotations

from msgspec import Raw

from host.jsonrpc.raw import is_accepted, may_hold_surrogates
from host.jsonrpc.strict import MAX_DIGITS, flaw, pieces

MAX_RESULT_DEPTH = 100
"""Levels of a result. The message around it has some more, and not every parser reads 128."""
LONE_SURROGATE = "an escape stands for half a surrogate pair, which is not a character"

_BACKSLASH = ord("\\")
_ALIKE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(byte for byte in range(256) if byte not in b"{}[]")
_ZEROS = bytes.maketrans(b"123456789", b"000000000")
_TOO_LONG = b"0" * (MAX_DIGITS + 1)


def why_unreadable(definition: bytes) -> str | None:
    """The reason why clients could not parse a list with this definition, or None."""
    return flaw(definition) or _lone_surrogate(definition)


def why_unreadable_result(result: bytes | Raw) -> str | None:
    """The reason why clients could not parse a response with this result (valid JSON), or None."""
    data = bytes(result)
    if data.count(b"{") + data.count(b"[") > MAX_RESULT_DEPTH and _is_deeper(data, MAX_RESULT_DEPTH):
        return f"nested deeper than {MAX_RESULT_DEPTH} levels"
    if len(data) > MAX_DIGITS and _TOO_LONG in data.translate(_ZEROS) and _has_long_number(data):
        return f"a number has more than {MAX_DIGITS} digits"
    return _lone_surrogate(data) if _BACKSLASH in data else None


def _is_deeper(data: bytes, levels: int) -> bool:
    outside = (b"".join(texts).translate(_ALIKE, _NO_BRACKETS) for texts, _ in pieces(data))
    brackets = b"".join(outside)
    for _ in range(levels):  # each round removes the innermost pairs
        brackets = brackets.replace(b"[]", b"")
    return bool(brackets)


def _has_long_number(data: bytes) -> bool:
    return any(_TOO_LONG in b" ".join(texts).translate(_ZEROS) for texts, _ in pieces(data))


def _lone_surrogate(data: bytes) -> str | None:
    return LONE_SURROGATE if may_hold_surrogates(data) and not is_accepted(data) else None
