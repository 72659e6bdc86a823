"""Request heads as the default listener reads them. tests/fuzz compares it with h11 on random bytes."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.wire.head import MAX_HEAD, OF_CLIENTS, OF_MEMBERS, HeadLimits, HeadRefusal, too_long
from host.wire.request_head import INVALID, KnownHead, RequestHead, SharedHeads, find_head, parse_head

HOST = b"Host: localhost\r\n"


def head(*fields: bytes, line: bytes = b"POST /mcp HTTP/1.1") -> bytes:
    return line + b"\r\n" + HOST + b"".join(field + b"\r\n" for field in fields) + b"\r\n"


def accepted(data: bytes) -> RequestHead:
    parsed = parse_head(data)
    assert isinstance(parsed, RequestHead), parsed
    return parsed


def status(data: bytes) -> int:
    refusal = parse_head(data)
    assert isinstance(refusal, HeadRefusal), refusal
    return refusal.status


def test_a_head_is_read_as_it_was_sent() -> None:
    parsed = accepted(head(b"X-A:  caf\xe9 \t", b"X-a:", b"Content-Length: 12", line=b"GET /a%2Fb?c=d?e HTTP/1.1"))
    assert (parsed.method, parsed.http_version) == ("GET", "1.1")
    assert (parsed.raw_path, parsed.path, parsed.query) == (b"/a%2Fb", "/a/b", b"c=d?e")
    assert parsed.headers == [
        (b"host", b"localhost"), (b"x-a", b"caf\xe9"), (b"x-a", b""), (b"content-length", b"12")
    ]  # fmt: skip
    assert parsed.length == 12


@pytest.mark.parametrize(
    ("fields", "length"),
    [((), 0), ((b"Content-Length: 0",), 0), ((b"Content-Length: 007",), 7), ((b"Transfer-Encoding: Chunked",), None)],
)
def test_the_length_of_the_body_is_known_or_it_comes_in_chunks(fields: tuple[bytes, ...], length: int | None) -> None:
    assert accepted(head(*fields)).length == length


@pytest.mark.parametrize(
    ("line", "fields", "keeps_alive"),
    [
        (b"GET / HTTP/1.1", (), True),
        (b"GET / HTTP/1.1", (b"Connection: keep-alive",), True),
        (b"GET / HTTP/1.1", (b"Connection: TE , Close",), False),
        (b"GET / HTTP/1.1", (b"Connection: keep-alive", b"Connection: close"), False),
        (b"GET / HTTP/1.0", (b"Connection: keep-alive",), False),
    ],
)
def test_the_connection_stays_open_unless_the_client_says_otherwise(
    line: bytes, fields: tuple[bytes, ...], keeps_alive: bool
) -> None:
    assert accepted(head(*fields, line=line)).keeps_alive is keeps_alive


@pytest.mark.parametrize(("line", "waits"), [(b"POST / HTTP/1.1", True), (b"POST / HTTP/1.0", False)])
def test_only_a_client_of_http_1_1_waits_for_leave_to_send_its_body(line: bytes, waits: bool) -> None:
    assert accepted(head(b"Expect: 100-Continue", b"Content-Length: 1", line=line)).expects_continue is waits


@pytest.mark.parametrize(
    ("refused", "expected"),
    [
        # These httptools accepts.
        (head(b"Host: other"), 400),
        (b"GET / HTTP/1.1\r\n\r\n", 400),
        (head(b"X: " + b"a" * MAX_HEAD), 431),
        (head(*[b"X: a"] * 101), 431),
        (head(b"Transfer-Encoding: gzip, chunked"), 501),
        (head(b"Transfer-Encoding: chunked", b"Transfer-Encoding: chunked"), 501),
        (head(b"Transfer-Encoding: chunked", line=b"POST / HTTP/1.0"), 400),
        (head(line=b"DESCRIBE / RTSP/1.0"), 400),
        (head(line=b"PROPFIND / HTTP/1.1"), 400),
        (head(line=b"GET http://localhost/ HTTP/1.1"), 400),
        (head(line=b"CONNECT localhost:80 HTTP/1.1"), 400),
        (head(b"Upgrade: websocket", b"Connection: Upgrade", b"Content-Length: 3"), 426),
        (head(line=b"GET / HTTP/2.0"), 505),
        # These head.py accepts.
        (head(b"X : a"), 400),
        (head(b": a"), 400),
        (head(b"X"), 400),
        (head(b"X(): a"), 400),
        (head(b"X-\xff: a"), 400),
        (head(b"X: a\x00b"), 400),
        (head(b"X: a\x01b"), 400),
        (head(b"Content-Length: " + b"9" * 30), 400),
        (head(line=b"GET /caf\xc3\xa9 HTTP/1.1"), 400),
        (head(line=b"GET /a b HTTP/1.1"), 400),
        (head(line=b"GET /\x7f HTTP/1.1"), 400),
    ],
)
def test_a_head_that_either_judge_refuses_is_refused(refused: bytes, expected: int) -> None:
    assert status(refused) == expected


def test_the_end_of_a_head_is_found_as_it_comes_in_parts() -> None:
    whole = head(b"X: a")
    for cut in range(1, len(whole)):
        assert find_head(whole[:cut], 0) is None
        assert find_head(whole + b"more", cut) == len(whole)


@pytest.mark.parametrize(
    ("received", "refusal"),
    [
        (bytes.fromhex("16030100c8"), INVALID),
        (b"\r\nGET / HTTP/1.1\r\n", INVALID),
        (b" GET / HTTP/1.1\r\n", INVALID),
        (b"G" * (MAX_HEAD + 1), too_long(OF_CLIENTS)),
    ],
)
def test_bytes_that_cannot_become_a_head_are_refused_before_its_end(received: bytes, refusal: HeadRefusal) -> None:
    assert find_head(received, 0) == refusal


# Heads that are repeated

LENGTHS = st.sampled_from([b"0", b"7", b"007", b"12", b"999999", b"1000000", b"", b"-1", b"1e1", b"1 2", b"12,12"])
NAMES = st.sampled_from([b"Content-Length: ", b"content-length:", b"CONTENT-LENGTH:\t", b"X: a\r\nContent-length:  "])
AFTER = st.sampled_from(
    [b"", b" ", b"\r\nX: b", b"\r\nContent-Length: 5", b"\r\nTransfer-Encoding: chunked", b"\r\n y"]
)
HEADS = st.builds(lambda name, length, after: head(name + length + after), NAMES, LENGTHS, AFTER)


@given(HEADS, st.lists(HEADS, min_size=1), st.binary(max_size=8))
def test_a_known_head_is_what_it_would_be_if_it_were_read_again(first: bytes, later: list[bytes], more: bytes) -> None:
    parsed = parse_head(first)
    if isinstance(parsed, HeadRefusal):
        return
    known = KnownHead(first, parsed)
    for each in [first, *later, first]:
        found = known.take(each + more)
        if found is not None:
            assert found == (parse_head(each), len(each))
            assert found[0].findings is parsed.findings
        for cut in range(1, len(each)):
            assert known.take(each[:cut]) is None


@given(st.lists(HEADS, min_size=1))
def test_shared_heads_are_what_they_would_be_if_they_were_read_again(heads: list[bytes]) -> None:
    shared = SharedHeads()
    for each in [*heads, *heads]:
        assert shared.parse(each) == parse_head(each)


@pytest.mark.parametrize(
    ("limits", "read"), [(OF_CLIENTS, parse_head), (OF_MEMBERS, SharedHeads().parse)], ids=["clients", "members"]
)
def test_a_head_is_read_up_to_the_limits_of_its_sender(
    limits: HeadLimits, read: Callable[[bytes], RequestHead | HeadRefusal]
) -> None:
    others, room = len(head().split(b"\r\n")) - 3, limits.size - len(head(b"X: "))
    assert isinstance(read(head(*[b"X: a"] * (limits.fields - others))), RequestHead)
    assert isinstance(read(head(b"X: " + b"a" * room)), RequestHead)
    for refused in head(*[b"X: a"] * (limits.fields - others + 1)), head(b"X: " + b"a" * (room + 1)):
        found = read(refused)
        assert isinstance(found, HeadRefusal)
        assert found.status == 431


def test_a_shared_head_is_found_again_whatever_length_it_announces() -> None:
    shared = SharedHeads()
    first, other = (head(b"X: a", b"content-length: %d" % length) for length in (5, 123456))
    found = [shared.parse(each) for each in (first, other, first)]
    assert found == [accepted(each) for each in (first, other, first)]
    assert len({id(each.findings) for each in found if isinstance(each, RequestHead)}) == 1


def test_what_ends_otherwise_than_a_shared_head_is_refused_as_ever() -> None:
    """One reader would see a length of 12 there, and another one of 1234."""
    shared, first = SharedHeads(), head(b"X: a", b"content-length: 12")
    assert shared.parse(first) == accepted(first)
    for end in (b"1234\n\n", b"123\n\r\n", b"12 \r\r\n", b"12\n\r\n\n"):
        each = first.removesuffix(b"12\r\n\r\n") + end
        assert shared.parse(each) == parse_head(each)
        assert isinstance(shared.parse(each), HeadRefusal)


def test_a_known_head_is_recognized_whatever_length_it_announces() -> None:
    first, other = (head(b"Content-Length: %b" % length, b"X: a") for length in (b"5", b"123456"))
    known = KnownHead(first, accepted(first))
    for each in (first, other, other, first):
        assert known.take(each + each) == (accepted(each), len(each))
    for unlike in (head(b"Content-Length: 1234567", b"X: a"), head(b"Content-Length: 5", b"X: b"), head(b"X: a")):
        assert known.take(unlike) is None
    without = head(b"X: a")
    assert KnownHead(without, accepted(without)).take(without) == (accepted(without), len(without))
    assert KnownHead(without, accepted(without)).take(first) is None
