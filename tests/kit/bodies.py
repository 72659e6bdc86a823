"""Bodies that are legal and take long to check: what an attacker would send, none longer than a body may be."""

from __future__ import annotations

from collections.abc import Callable

LONGEST = 4 * 1024 * 1024
_ROOM = LONGEST - 1024
"""Bytes for arguments, beside any envelope."""


def _filled(piece: bytes) -> bytes:
    return b'{"a":"' + piece * (_ROOM // len(piece)) + b'"}'


def _listed(piece: bytes, times: int) -> bytes:
    times = min(times, _ROOM // (len(piece) + 1))
    return b'{"a":[' + b",".join([piece] * times) + b"]}"


ARGUMENTS: dict[str, Callable[[], bytes]] = {
    "190,000 members": lambda: b"{" + b",".join(b'"member%d":1' % n for n in range(190_000)) + b"}",
    "66,000 small objects": lambda: _listed(b'{"a":1}', 66_000),
    "900 integers of 4,200 digits": lambda: _listed(b"7" * 4200, 900),
    "4 MiB of escapes": lambda: _filled(rb"\u0041"),
    "4 MiB of short escapes": lambda: _filled(rb"\n"),
    "4 MiB of backslashes": lambda: _filled(rb"\\"),
    "199,000 numbers": lambda: _listed(b"1", 199_000),
    "199,000 strings": lambda: _listed(b'"abcdefghijklm"', 199_000),
    "99,000 empty arrays": lambda: _listed(b"[]", 99_000),
    "3,200 arrays of 60 levels": lambda: _listed(b"[" * 60 + b"]" * 60, 3200),
    "3,200 objects of 60 levels": lambda: _listed(b'{"a":' * 60 + b"1" + b"}" * 60, 3200),
    "floats of 4,000 digits": lambda: _listed(b"0." + b"123456789" * 450, 1000),
    "one float of 4 MiB": lambda: b'{"a":0.' + b"7" * _ROOM + b"}",
    "tiny exponents": lambda: _listed(b"1e-99999999", 190_000),
    "large exponents": lambda: _listed(b"1e0000300", 190_000),
    "names of 1 MB": lambda: b'{"%b":1,"%b":2,"%b":3}' % (b"n" * 1_000_000, b"m" * 1_000_000, rb"\u006f" * 160_000),
    "names with escapes": lambda: b"{" + b",".join(rb'"\u006d%d":1' % n for n in range(190_000)) + b"}",
    "190,000 lone surrogates": lambda: _listed(rb'"\ud800"', 190_000),
}
"""The arguments of a call."""


def call(arguments: bytes, name: bytes = b"a__x", id: int = 1) -> bytes:
    """A call of a tool with these arguments."""
    return b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"%b","arguments":%b}}' % (
        id,
        name,
        arguments,
    )
