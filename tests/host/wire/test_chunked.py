"""Bodies in chunks: their content, their end, and what is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.wire.chunked import MAX_LINE, MAX_TRAILERS, BadChunk, ChunkedBody


def decode(*pieces: bytes) -> tuple[bytes, bytes, bool]:
    """The content, the rest, and whether the body has ended."""
    body, content, rest = ChunkedBody(), b"", b""
    for piece in pieces:
        part, rest = body.take(rest + piece)
        content += part
    return content, rest, body.ended


def encode(parts: list[bytes]) -> bytes:
    return b"".join(b"%x\r\n%b\r\n" % (len(part), part) for part in parts if part) + b"0\r\n\r\n"


@given(st.lists(st.binary(max_size=40), max_size=5), st.binary(max_size=20), st.data())
def test_any_split_of_the_bytes_gives_the_same_content_and_the_same_rest(
    parts: list[bytes], after: bytes, data: st.DataObject
) -> None:
    encoded = encode(parts) + after
    cuts = sorted(data.draw(st.lists(st.integers(0, len(encoded)), max_size=6)))
    pieces = [encoded[start:end] for start, end in zip([0, *cuts], [*cuts, len(encoded)], strict=True)]
    assert decode(*pieces) == (b"".join(parts), after, True)


@pytest.mark.parametrize(
    "encoded",
    [
        b"5\r\nhello\r\n0\r\n\r\n",
        b"005\r\nhello\r\n000\r\n\r\n",
        b"5;name=value;other\r\nhello\r\n0;last\r\n\r\n",
        b'5;a="quoted; \xe9"\r\nhello\r\n0\r\n\r\n',
        b"5\r\nhello\r\n0\r\nX-Sum: 1\r\nX-Empty:\r\n\r\n",
    ],
)
def test_extensions_and_trailers_are_dropped(encoded: bytes) -> None:
    assert decode(encoded) == (b"hello", b"", True)


@pytest.mark.few(8)
@pytest.mark.parametrize(
    "encoded",
    [
        b"zz\r\n",
        b"\r\n",
        b"+5\r\n",
        b"-1\r\n",
        b"0x5\r\n",
        b" 5\r\n",
        b"5 \r\n",
        b"5 ;a\r\n",
        b"5,5\r\n",
        b"f" * 17 + b"\r\n",
        b"5\nhello",
        b"5\rhello\r\n",
        b"5;a\nb\r\nhello",
        b"5;a\x00b\r\nhello",
        b"5\r\nhelloX",
        b"5\r\nhello\n0\r\n\r\n",
        b"5\r\nhello\r\r\n",
        b"0\r\nX\r\n\r\n",
        b"0\r\n X: a\r\n\r\n",
        b"0\r\nX : a\r\n\r\n",
        b"0\r\nX: a\x00\r\n\r\n",
        b"0\r\nX: a\nY: b\r\n\r\n",
        b"0\r\nX: a\r\n folded\r\n\r\n",
        b"0\r\nContent-Length: 5\r\n\r\n",
        b"0\r\ntransfer-encoding: chunked\r\n\r\n",
        b"0\r\nHost: other\r\n\r\n",
        b"5;" + b"a" * MAX_LINE + b"\r\n",
        b"5;" + b"a" * MAX_LINE,
        b"0\r\nX: " + b"a" * MAX_TRAILERS + b"\r\n\r\n",
        b"0\r\nX: " + b"a" * MAX_TRAILERS,
        b"0\r\n" + b"X: a\r\n" * (MAX_TRAILERS // 4) + b"\r\n",
    ],
)
def test_a_malformed_body_is_refused_however_it_comes(encoded: bytes) -> None:
    with pytest.raises(BadChunk):
        decode(encoded)
    with pytest.raises(BadChunk):
        decode(*(encoded[at : at + 1] for at in range(len(encoded))))


@pytest.mark.parametrize("encoded", [b"", b"5", b"5\r", b"5\r\n", b"5\r\nhel", b"5\r\nhello\r", b"0\r\n", b"0\r\nX: a"])
def test_an_incomplete_body_has_not_ended(encoded: bytes) -> None:
    content, _, ended = decode(encoded)
    assert b"hello".startswith(content)
    assert not ended
