"""Responses of HTTP/1.1: what is read of them and what is refused. tests/fuzz/responses.py compares with h11."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.wire import http_parser
from host.wire.http_parser import (
    MAX_CHUNK_EXCESS,
    MAX_HEAD_LINES,
    MAX_INTERIM,
    MAX_INTERIM_HEAD,
    MAX_KNOWN_HEAD,
    MAX_RESPONSE_HEAD,
    BadResponse,
    ResponseParser,
    TooManyInterim,
)
from tests.fuzz.responses import compare, compare_many

OK = b"HTTP/1.1 200 OK\r\n"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\n\r\n"
CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


def read(data: bytes, step: int | None = None) -> tuple[ResponseParser, bytes]:
    parser, body = ResponseParser(), b""
    for at in range(0, len(data), step or len(data)):
        parser.feed(data[at : at + (step or len(data))])
        body += parser.take_body()
    return parser, body


@pytest.mark.parametrize("step", [None, 1, 7])
@pytest.mark.parametrize(
    ("data", "status", "body"),
    [
        (OK + b"Content-Length: 3\r\n\r\nabc", 200, b"abc"),
        (OK + b"content-length:3 \t\r\n\r\nabc", 200, b"abc"),
        (b"HTTP/1.1 202\r\nContent-Length: 0\r\n\r\n", 202, b""),
        (b"HTTP/1.1 404 caf\xe9\tx\r\nContent-Length: 1\r\n\r\na", 404, b"a"),
        (b"HTTP/1.1 204 No Content\r\n\r\n", 204, b""),
        (b"HTTP/1.1 304 X\r\n\r\n", 304, b""),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\nabc", 200, b"abc"),
        (CHUNKED + b'3\r\nabc\r\n000A;x=y;z="q"\r\n0123456789\r\n0\r\nX-Trailer: t\r\n\r\n', 200, b"abc0123456789"),
        (OK + b"transfer-encoding: Chunked\r\n\r\n0\r\n\r\n", 200, b""),
        (CONTINUE * MAX_INTERIM + OK + b"Content-Length: 1\r\n\r\na", 200, b"a"),
        (b"HTTP/1.1 103 Early Hints\r\nContent-Length: 0\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", 200, b"a"),
    ],
)
def test_what_is_read(data: bytes, status: int, body: bytes, step: int | None) -> None:
    parser, found = read(data, step)
    assert (parser.status, found, parser.complete, parser.has_length) == (status, body, True, True)
    assert b"x-trailer" not in parser.fields


REFUSED = {
    "a switch to another protocol": b"HTTP/1.1 101 X\r\nUpgrade: x\r\n\r\nbytes of x",
    "another protocol": b"SSH-2.0-OpenSSH_9.2\r\n",
    "an HTML page": b"<html>",
    "HTTP/2": b"HTTP/2.0 200 OK\r\n\r\n",
    "HTTP/1.2": b"HTTP/1.2 200 OK\r\n\r\n",
    "ICE": b"ICE/1.0 200 OK\r\n\r\n",
    "a blank line before": b"\r\n" + OK + b"Content-Length: 0\r\n\r\n",
    "status 099": b"HTTP/1.1 099 X\r\nContent-Length: 0\r\n\r\n",
    "four digits": b"HTTP/1.1 2000 X\r\nContent-Length: 0\r\n\r\n",
    "NUL in the reason": b"HTTP/1.1 200 \0\r\nContent-Length: 0\r\n\r\n",
    "lines that end with LF": b"HTTP/1.1 200 OK\nContent-Length: 0\n\n",
    "one line that ends with LF": OK + b"A: b\nContent-Length: 0\r\n\r\n",
    "lines that end with CR": b"HTTP/1.1 200 OK\rContent-Length: 0\r\r",
    "a folded header": OK + b"A: b\r\n c\r\nContent-Length: 0\r\n\r\n",
    "a space before the colon": OK + b"A : b\r\nContent-Length: 0\r\n\r\n",
    "a header without a name": OK + b": b\r\nContent-Length: 0\r\n\r\n",
    "a header without a colon": OK + b"A\r\nContent-Length: 0\r\n\r\n",
    "NUL in a header": OK + b"A: \0\r\nContent-Length: 0\r\n\r\n",
    "another control character": OK + b"A: \x01\r\nContent-Length: 0\r\n\r\n",
    "two lengths": OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabc",
    "the same length twice": OK + b"Content-Length: 3\r\nContent-Length: 3\r\n\r\nabc",
    "a list of lengths": OK + b"Content-Length: 3, 3\r\n\r\nabc",
    "a negative length": OK + b"Content-Length: -1\r\n\r\n",
    "no length": OK + b"Content-Length: \r\n\r\n",
    "a length with a sign": OK + b"Content-Length: +3\r\n\r\nabc",
    "a length with zeros": OK + b"Content-Length: %021d\r\n\r\nabc" % 3,
    "a length beyond 64 bits": OK + b"Content-Length: 99999999999999999999\r\n\r\nabc",
    "a length and chunks": OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "another coding": OK + b"Transfer-Encoding: gzip\r\n\r\nabc",
    "another coding before": OK + b"Transfer-Encoding: gzip, chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunks twice": OK + b"Transfer-Encoding: chunked\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "a coding that ends with a tab": OK + b"Transfer-Encoding: chunked\t\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "an empty coding": OK + b"Transfer-Encoding: \r\n\r\nabc",
    "chunks in HTTP/1.0": b"HTTP/1.0 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n",
    "chunks of an interim response": b"HTTP/1.1 103 X\r\nTransfer-Encoding: chunked\r\n\r\n" + OK + b"\r\n",
    "the length of an interim response": b"HTTP/1.1 199 X\r\nContent-Length: 5\r\n\r\n"
    + (OK + b"Content-Length: 3\r\n\r\nabc"),
    "a chunk size with a sign": CHUNKED + b"+3\r\nabc\r\n0\r\n\r\n",
    "a chunk size with 0x": CHUNKED + b"0x3\r\nabc\r\n0\r\n\r\n",
    "a chunk size after a space": CHUNKED + b" 3\r\nabc\r\n0\r\n\r\n",
    "an empty chunk size": CHUNKED + b"\r\nabc\r\n0\r\n\r\n",
    "a chunk size beyond 64 bits": CHUNKED + b"fffffffffffffffff\r\nabc\r\n",
    "a chunk line that ends with LF": CHUNKED + b"3\nabc\n0\n\n",
    "a chunk longer than its size": CHUNKED + b"3\r\nabcd\r\n0\r\n\r\n",
    "a chunk without its end": CHUNKED + b"3\r\nabc0\r\n\r\n",
    "a trailer with a coding": CHUNKED + b"0\r\nTransfer-Encoding: gzip\r\n\r\n",
    "a trailer with a length": CHUNKED + b"0\r\nContent-Length: 3\r\n\r\n",
    "a trailer that is none": CHUNKED + b"0\r\nX\r\n\r\n",
    "a trailer that ends with LF": CHUNKED + b"0\r\nX: y\n\r\n",
    "a head of many lines": OK + b"A: b\r\n" * MAX_HEAD_LINES + b"\r\n",
    "a long head": OK + b"A: " + b"b" * MAX_RESPONSE_HEAD + b"\r\n\r\n",
    "extensions without end": CHUNKED + b"3;" + b"x" * (MAX_CHUNK_EXCESS + 100),
    "many extensions": CHUNKED + (b"1;" + b"x" * 1000 + b"\r\na\r\n") * 70,
    "trailers without end": CHUNKED + b"0\r\n" + b"A: b\r\n" * (MAX_CHUNK_EXCESS // 6 + 10),
}


@pytest.mark.parametrize("step", [None, 1000])
@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(name: str, step: int | None) -> None:
    with pytest.raises(BadResponse):
        read(REFUSED[name], step)
    compare(REFUSED[name])


@pytest.mark.parametrize("data", [b"HTTP/1.1 200 OK\n", b"x", b"HTTP/2", b"HTTP/1.1 200 OK\r\nA: b\rc"])
def test_a_head_that_nothing_can_mend_is_refused_before_its_end(data: bytes) -> None:
    """Otherwise the client would wait for an empty line that another protocol does not have."""
    with pytest.raises(BadResponse):
        read(data)


@pytest.mark.parametrize(
    "data",
    [
        CONTINUE * (MAX_INTERIM + 1),
        b"HTTP/1.1 103 X\r\nA: " + b"b" * MAX_INTERIM_HEAD,
        b"HTTP/1.1 103 X\r\nA: " + b"b" * MAX_INTERIM_HEAD + b"\r\n\r\n",
    ],
)
def test_interim_responses_are_limited(data: bytes) -> None:
    with pytest.raises(TooManyInterim):
        read(data)
    with pytest.raises(TooManyInterim):
        read(data, 1000)


def test_a_response_may_follow_a_response() -> None:
    """With limits of its own, and nothing of the former one."""
    parser = ResponseParser()
    for _ in range(3):
        parser.begin()
        assert not parser.started
        parser.feed(CONTINUE * MAX_INTERIM + OK + b"Content-Length: 3\r\nA: b\r\nA: c\r\n\r\nabc")
        assert (parser.take_body(), parser.fields[b"a"], parser.repeated) == (b"abc", b"b, c", {b"a"})
        parser.begin()
        parser.feed(CHUNKED + b"1\r\na\r\n0\r\n\r\n")
        assert (parser.take_body(), parser.complete, parser.reusable) == (b"a", True, True)
        assert parser.repeated == set()


def test_a_body_that_nobody_took_is_not_the_next_one() -> None:
    parser = ResponseParser()
    parser.feed(OK + b"Content-Length: 3\r\n\r\nabc")
    assert parser.reusable
    parser.begin()
    parser.feed(OK + b"Content-Length: 3\r\n\r\nxyz")
    assert parser.take_body() == b"xyz"


HEADS = (
    OK + b"Content-Length: 3\r\n\r\n",
    OK + b"Content-Length: 4\r\n\r\n",
    b"HTTP/1.1 404 X\r\nContent-Length: 3\r\nSet-Cookie: a\r\n\r\n",
    OK + b"Set-Cookie: a\r\nSet-Cookie: b\r\nContent-Length: 3\r\n\r\n",
    OK + b"Connection: close\r\nContent-Length: 3\r\n\r\n",
    OK + b"Content-Length: 3\r\nX: " + MAX_KNOWN_HEAD * b"x" + b"\r\n\r\n",
    b"HTTP/1.0 200 OK\r\nContent-Length: 3\r\n\r\n",
    b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n",
    OK + b"Content-Length: 0\r\n\r\n",
    CONTINUE + OK + b"Content-Length: 3\r\n\r\n",
    CHUNKED,
    OK + b"\r\n",
)


def outcome(parser: ResponseParser, data: bytes, step: int) -> tuple[object, ...]:
    parser.begin()
    failure = ""
    try:
        for at in range(0, len(data), step):
            parser.feed(data[at : at + step])
    except BadResponse as problem:
        failure = str(problem)
    body = parser.take_body()
    return failure, parser.status, parser.fields, parser.repeated, body, parser.complete, parser.reusable


@given(
    st.lists(
        st.tuples(
            st.sampled_from(HEADS),
            st.sampled_from((b"", b"abc", b"abcd", b"1\r\nx\r\n0\r\n\r\n")),
            st.sampled_from((1, 30, 9999)),
        ),
        max_size=8,
    )
)
def test_a_response_says_the_same_whatever_came_before_it(responses: list[tuple[bytes, bytes, int]]) -> None:
    parser = ResponseParser()
    for head, body, step in responses:
        found = outcome(parser, head + body, step)
        assert found == outcome(ResponseParser(), head + body, step)
        if found[0] or not (parser.complete and parser.reusable):
            return


def test_a_head_that_is_repeated_is_not_read_again() -> None:
    parser = ResponseParser()
    first = outcome(parser, HEADS[0] + b"abc", 9999)
    again = outcome(parser, HEADS[0] + b"xyz", 9999)
    assert again[4] == b"xyz"
    assert again[2] is first[2]
    assert outcome(parser, HEADS[0] + b"xyz", 30)[2] is not first[2]


@pytest.mark.parametrize(
    ("data", "reusable"),
    [
        (OK + b"Content-Length: 1\r\n\r\na", True),
        (OK + b"Content-Length: 1\r\nConnection: keep-alive\r\n\r\na", True),
        (OK + b"Content-Length: 1\r\nConnection: x, Close\r\n\r\na", False),
        (OK + b"Content-Length: 1\r\nConnection: x\r\nConnection: close\r\n\r\na", False),
        (b"HTTP/1.0 200 OK\r\nContent-Length: 1\r\nConnection: keep-alive\r\n\r\na", False),
        (OK + b"Content-Length: 1\r\n\r\nab", False),
        (OK + b"Content-Length: 1\r\n\r\na" + OK + b"Content-Length: 1\r\n\r\na", False),
        (CHUNKED + b"0\r\n\r\nx", False),
        (b"HTTP/1.1 204 X\r\n\r\n", True),
        (b"HTTP/1.1 204 X\r\nContent-Length: 0\r\n\r\n", True),
        (b"HTTP/1.1 204 X\r\nContent-Length: 1\r\n\r\n", False),
        (b"HTTP/1.1 204 X\r\n\r\nbody", False),
        (b"HTTP/1.1 304 X\r\nContent-Length: 1\r\n\r\n", False),
        (b"HTTP/1.1 304 X\r\nTransfer-Encoding: chunked\r\n\r\n", False),
    ],
)
def test_when_another_request_may_follow(data: bytes, reusable: bool) -> None:
    """Not after bytes that belong to no response, nor after a response that should have no body and has one."""
    parser, _ = read(data)
    assert (parser.complete, parser.reusable) == (True, reusable)


def test_a_body_without_length_ends_with_the_connection_and_not_before() -> None:
    parser, body = read(OK + b"Content-Type: text/event-stream\r\n\r\ndata: a\n\n")
    assert (body, parser.complete, parser.has_length) == (b"data: a\n\n", False, False)
    assert parser.end()
    assert (parser.complete, parser.reusable) == (True, False)


@pytest.mark.parametrize(
    "data",
    [
        OK,
        OK + b"Content-Length: 2\r\n\r\n{",
        OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
        b"HTTP/1.1 100 X\r\n\r\n",
    ],
)
def test_no_other_response_ends_with_the_connection(data: bytes) -> None:
    parser, _ = read(data)
    assert not parser.end()
    assert not parser.complete


@pytest.mark.parametrize(
    ("said", "seconds"),
    [
        (b"Keep-Alive: timeout=5, max=100\r\n", 5.0),
        (b"Keep-Alive: max=9,timeout = 30\r\n", 30.0),
        (b"keep-alive: TIMEOUT=0\r\n", 0.0),
        (b"Keep-Alive: timeout=x\r\n", None),
        (b"Keep-Alive: mytimeout=1\r\n", None),
        (b"Keep-Alive: timeout=-1\r\n", None),
        (b"", None),
    ],
)
def test_the_time_for_which_a_server_keeps_a_connection(said: bytes, seconds: float | None) -> None:
    parser, _ = read(OK + said + b"Content-Length: 0\r\n\r\n")
    assert parser.idle_time == seconds


@given(st.lists(st.binary(min_size=1, max_size=40), max_size=6), st.integers(1, 50))
def test_the_same_body_comes_in_any_pieces(chunks: list[bytes], step: int) -> None:
    whole = b"".join(chunks)
    chunked = CHUNKED + b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
    for data in (chunked, OK + b"Content-Length: %d\r\n\r\n%b" % (len(whole), whole)):
        parser, body = read(data, step)
        assert (body, parser.complete, parser.reusable) == (whole, True, True)


def test_a_few_hundred_mutated_responses_say_the_same_to_h11() -> None:
    """`make fuzz` compares 200,000."""
    outcome = compare_many(400, seed=1)
    assert not outcome.faults
    assert outcome.accepted > 10


def test_the_comparison_with_h11_finds_what_it_is_for(monkeypatch: pytest.MonkeyPatch) -> None:
    data = REFUSED["another coding before"]
    compare(data)
    monkeypatch.setattr(http_parser.ResponseParser, "_check_framing", lambda *_, **__: None)
    with pytest.raises(AssertionError, match="h11 refuses"):
        compare(data)
