"""Random changes of bytes, for inputs that are close to valid ones. The same random numbers give the same bytes."""

from __future__ import annotations

from collections.abc import Sequence
from random import Random

TOKENS = (
    b"\r\n",
    b"\n",
    b"\r",
    b"\r\n\r\n",
    b"\n\n",
    b"\x00",
    b"\xff\xfe",
    b"\xef\xbb\xbf",
    b"\xed\xa0\x80",
    b" ",
    b"\t",
    b":",
    b"/",
    b"/../",
    b"%2e%2e%2f",
    b"%00",
    b"%",
    b"?",
    b"#",
    b"\\",
    b"{",
    b"}",
    b"[" * 80,
    b'{"a":' * 80,
    b'"',
    b"\\ud800",
    b"\\u0000",
    b"9" * 400,
    b"-1",
    b"1e400",
    b"NaN",
    b"null",
    b"true",
    b'"id":1',
    b'"method":"tools/call"',
    b"Content-Length: 5\r\n",
    b"Content-Length: 99999999999999999999\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Transfer-Encoding: gzip, chunked\r\n",
    b"Expect: 100-continue\r\n",
    b"Connection: close\r\n",
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMA\r\n",
    b"Upgrade: websocket\r\nSec-WebSocket-Key: x\r\nSec-WebSocket-Version: 13\r\n",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
    b"Host: localhost\r\n",
    b"Host: a/?x=\r\n",
    b"Mcp-Session-Id: " + b"a" * 300 + b"\r\n",
    b"Last-Event-ID: 1-1\r\n",
    b"0\r\n\r\n",
    b"ffffffffffffffff\r\n",
    b"data: {}\n\n",
    b"retry: 1\n",
    b"id: \x00\n",
    b"- &a [*a]\n",
    b"!!python/object:os.system\n",
    b"${env:HOME}",
    b"<<: *x\n",
)
"""Byte strings with a meaning to one of the parsers."""


def mutate(data: bytes, random: Random, others: Sequence[bytes] = (), most: int = 6) -> bytes:
    """Return `data` after one to `most` random changes; `others` are inputs whose parts may be spliced in."""
    changed = bytearray(data)
    for _ in range(random.randint(1, most)):
        _change(changed, random, others)
    return bytes(changed)


def _change(data: bytearray, random: Random, others: Sequence[bytes]) -> None:
    at = random.randint(0, len(data))
    until = min(len(data), at + random.choice((1, 1, 2, 4, 16, 64)))
    action = random.randrange(8)
    if action == 0 and at < len(data):
        data[at] ^= 1 << random.randrange(8)
    elif action == 1:
        del data[at:until]
    elif action == 2:
        data[at:at] = random.randbytes(random.choice((1, 1, 2, 8)))
    elif action == 3:
        data[at:at] = data[at:until] * random.choice((1, 2, 30))
    elif action == 4:
        del data[at:]
    elif action == 5 and others:
        other = random.choice(others)
        start = random.randint(0, len(other))
        data[at:until] = other[start : start + random.choice((4, 32, 256))]
    elif action == 6 and at < len(data):
        data[at] = random.randrange(256)
    else:
        data[at:at] = random.choice(TOKENS)
