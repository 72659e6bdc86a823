"""Request heads that are refused by their bytes alone."""

from __future__ import annotations

import pytest

from host.wire.head import MAX_FIELDS, MAX_HEAD, check_head, head_end

HOST = b"Host: localhost\r\n"


def head(*fields: bytes, line: bytes = b"POST /mcp HTTP/1.1", host: bytes = HOST) -> bytes:
    return line + b"\r\n" + host + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def status(refused: bytes) -> int | None:
    refusal = check_head(refused)
    return None if refusal is None else refusal.status


@pytest.mark.parametrize(
    "accepted",
    [
        head(),
        head(b"Content-Length: 12"),
        head(b"Transfer-Encoding: chunked"),
        head(b"content-length:0"),
        head(b"Content-Length: 00000000000000000003"),
        head(b"Connection: keep-alive", b"X-Note: caf\xc3\xa9", b"X-Empty:"),
        head(line=b"GET / HTTP/1.0"),
        head(line=b"GET /a%20b?c=http://d/ HTTP/1.1"),
    ],
)
def test_a_plain_head_is_served(accepted: bytes) -> None:
    assert check_head(accepted) is None


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        (head(b"Content-Length: 3", b"Transfer-Encoding: chunked"), 400),
        (head(b"Content-Length: 3", b"Content-Length: 3"), 400),
        (head(b"Content-Length: 5,5"), 400),
        (head(b"Content-Length: +5"), 400),
        (head(b"Content-Length: -1"), 400),
        (head(b"Content-Length:"), 400),
        (head(b"Content-Length: 000000000000000000003"), 400),
        (head(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"), 400),
        (head(host=b""), 400),
        (head(line=b"GET / HTTP/1.0", host=b""), 400),
        (head(b"host: other"), 400),
        (head(b"X-Fold: a", b" b"), 400),
        (head(b"X-Fold: a", b"\tb"), 400),
        (b"GET / HTTP/1.1\nHost: a\n\n", 400),
        (b"GET / HTTP/1.1\r\nHost: a\n\r\n", 400),
        (head(b"X: a\rb"), 400),
        (head(line=b"GET http://localhost/mcp HTTP/1.1"), 400),
        (head(line=b"CONNECT localhost:80 HTTP/1.1"), 400),
        (head(line=b"CONNECT / HTTP/1.1"), 400),
        (head(line=b"OPTIONS * HTTP/1.1"), 400),
        (head(line=b"head / HTTP/1.1"), 400),
        (head(line=b"GET /mcp%00 HTTP/1.1"), 400),
        (head(line=b"GET /mcp#a HTTP/1.1"), 400),
        (head(line=b"GET /"), 400),
        (head(line=b"GET  / HTTP/1.1"), 400),
        (head(line=b""), 400),
        (b"\r\n\r\n", 400),
        (head(line=b"PRI * HTTP/2.0", host=b""), 505),
        (head(line=b"GET / HTTP/1.2"), 505),
        (head(b"Upgrade: h2c"), 426),
        (head(b"UPGRADE: websocket", b"Connection: upgrade"), 426),
        (head(b"Upgrade: anything"), 426),
    ],
)
def test_an_ambiguous_or_unserved_head_is_refused(refused: bytes, expected: int) -> None:
    assert status(refused) == expected


def test_the_limits_are_exact() -> None:
    room = MAX_HEAD - len(head(b"X: "))
    assert status(head(b"X: " + b"a" * room)) is None
    assert status(head(b"X: " + b"a" * (room + 1))) == 431
    others = MAX_FIELDS - 1
    assert status(head(*[b"X: a"] * others)) is None
    assert status(head(*[b"X: a"] * (others + 1))) == 431


def test_the_head_ends_with_its_empty_line() -> None:
    assert head_end(head() + b"body\r\n\r\n") == len(head())
    assert head_end(head()[:-1]) is None
    assert head_end(b"") is None
    assert head_end(b"GET / HTTP/1.1\nHost: a\n\nbody") == len(b"GET / HTTP/1.1\nHost: a\n\n")
