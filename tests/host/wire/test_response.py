"""The bytes of responses."""

from __future__ import annotations

import pytest

from host.wire.response import MAX_SHARED, ResponseEncoder, response_head, whole_head

DATE = b"Thu, 01 Jan 2026 00:00:00 GMT"
KNOWN = [(b"content-type", b"text/plain"), (b"content-length", b"5")]
UNKNOWN = [(b"content-type", b"text/event-stream")]


def begin(response: ResponseEncoder, headers: list[tuple[bytes, bytes]], status: int = 200) -> bytes:
    return response.begin(status, headers, DATE, closes=False)


def test_an_answer_of_known_length_is_written_with_the_first_part_of_its_body() -> None:
    response = ResponseEncoder("POST", "1.1")
    assert begin(response, KNOWN) == b""
    assert (response.is_begun, response.is_unsent) == (True, True)
    assert response.add(b"he", more=True) == (
        b"HTTP/1.1 200 \r\ncontent-type: text/plain\r\ncontent-length: 5\r\ndate: " + DATE + b"\r\n\r\nhe"
    )
    assert (response.is_unsent, response.is_cut) == (False, True)
    assert response.add(b"llo", more=False) == b"llo"
    assert (response.is_complete, response.is_cut, response.closes) == (True, False, False)


@pytest.mark.parametrize(
    ("method", "version", "status"), [("POST", "1.1", 200), ("HEAD", "1.1", 200), ("GET", "1.0", 304)]
)
@pytest.mark.parametrize("closes", [False, True])
def test_a_whole_response_is_that_of_its_parts(method: str, version: str, status: int, closes: bool) -> None:
    whole, parts = ResponseEncoder(method, version), ResponseEncoder(method, version)
    written = parts.begin(status, KNOWN, DATE, closes=closes) + parts.add(b"hello", more=False)
    head, body = whole.whole(status, (("Content-Type", "text/plain"),), b"hello", DATE, closes=closes)
    assert head + body == written
    for name in ("is_begun", "is_complete", "is_unsent", "is_cut", "closes"):
        assert getattr(whole, name) == getattr(parts, name), name


@pytest.mark.parametrize("header", [("a", "b\r\nc: d"), ("a", "b\n"), ("a", "\x00"), ("Content-Length", "5")])
def test_a_whole_response_with_a_header_that_it_must_not_have_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(ValueError, match=r"line end or a NUL|not for the app"):
        ResponseEncoder("POST", "1.1").whole(200, (header,), b"hello", DATE, closes=False)


@pytest.mark.parametrize("closes", [False, True])
def test_a_whole_response_of_another_listener_is_passed_on_as_it_is(closes: bool) -> None:
    there, here, alone = (ResponseEncoder("POST", "1.1") for _ in range(3))
    response = b"".join(there.whole(200, (("a", "content-length: 9"),), b"hello\r\n\r\n", DATE, closes=False))
    size = whole_head(response)
    assert size is not None
    passed_on = here.passed_on(response, size, closes=closes)
    assert (here.is_begun, here.is_complete, here.closes) == (True, True, closes)
    assert passed_on.partition(b"\r\n\r\n")[2] == b"hello\r\n\r\n"
    expected = alone.whole(200, (("a", "content-length: 9"),), b"hello\r\n\r\n", DATE, closes=closes)[0]
    assert sorted(passed_on.partition(b"\r\n\r\n")[0].split(b"\r\n")) == sorted(expected[:-4].split(b"\r\n"))


def test_only_one_whole_response_that_says_nothing_of_its_connection_is_passed_on_as_it_is() -> None:
    parts = ResponseEncoder("POST", "1.1")
    whole = begin(parts, KNOWN) + parts.add(b"hello", more=False)
    assert whole_head(whole) == len(whole) - 5
    closing = b"".join(ResponseEncoder("POST", "1.1").whole(200, (), b"hello", DATE, closes=True))
    chunked = begin(ResponseEncoder("POST", "1.1"), UNKNOWN)
    bodiless = begin(ResponseEncoder("DELETE", "1.1"), [], 204)
    others = [b"", whole[:-1], whole + b"x", whole * 2, closing, chunked, bodiless, b"x" + whole, b"\r\n\r\n"]
    # What ends in the head, or has a second length in its body, is another response than it seems.
    others += [whole[:at] for at in range(len(whole))] + [whole.replace(b"content-length", b"x") + whole[-60:]]
    assert [whole_head(other) for other in others] == [None] * len(others)


def test_the_head_of_a_stream_is_written_at_once_and_its_parts_are_chunks() -> None:
    response = ResponseEncoder("POST", "1.1")
    assert begin(response, UNKNOWN).endswith(b"transfer-encoding: chunked\r\ndate: " + DATE + b"\r\n\r\n")
    assert not response.is_unsent
    assert response.add(b"", more=True) == b""
    assert response.add(b"x" * 17, more=True) == b"11\r\n" + b"x" * 17 + b"\r\n"
    for size in (0, 17, 17, MAX_SHARED + 1):
        assert response.part(b"x" * size) == response.add(b"x" * size, more=True)
    assert not response.is_cut, "the missing end shows by itself"
    assert response.add(b"a", more=False) == b"1\r\na\r\n0\r\n\r\n"


def test_a_client_of_http_1_0_gets_no_chunks() -> None:
    response = ResponseEncoder("GET", "1.0")
    head = begin(response, UNKNOWN)
    assert b"transfer-encoding" not in head
    assert response.add(b"a", more=True) == response.part(b"a") == b"a"
    assert (response.is_complete, response.is_cut) == (False, True)
    assert response.add(b"", more=False) == b""
    assert (response.is_complete, response.is_cut) == (True, False)


@pytest.mark.parametrize(("method", "status"), [("HEAD", 200), ("GET", 204), ("GET", 304)])
def test_a_response_without_body_has_none_whatever_the_app_sends(method: str, status: int) -> None:
    response = ResponseEncoder(method, "1.1")
    written = begin(response, KNOWN, status) + response.add(b"hello", more=False)
    assert written.endswith(b"\r\n\r\n")
    assert b"content-length: 5\r\n" in written
    assert response.is_complete


def test_the_app_closes_the_connection_by_a_header_and_decides_nothing_else_about_it() -> None:
    response = ResponseEncoder("GET", "1.1")
    headers = [*KNOWN, (b"Connection", b"Close"), (b"Transfer-Encoding", b"gzip")]
    written = begin(response, headers) + response.add(b"hello", more=False)
    assert response.closes
    assert written.count(b"connection: close") == 1
    assert b"gzip" not in written


@pytest.mark.parametrize("body", [b"too much", b"few"])
def test_a_body_of_another_length_than_announced_is_not_sent(body: bytes) -> None:
    response = ResponseEncoder("GET", "1.1")
    begin(response, KNOWN)
    with pytest.raises(ValueError, match="length"):
        response.add(body, more=False)
    assert response.is_unsent


@pytest.mark.parametrize("value", [b"a\r\nx: b", b"a\nb", b"a\rb", b"a\x00b"])
def test_a_header_that_would_be_read_as_several_lines_is_refused(value: bytes) -> None:
    response = ResponseEncoder("GET", "1.1")
    with pytest.raises(ValueError, match="line end"):
        begin(response, [(b"x", value)])
    assert not response.is_begun
    with pytest.raises(ValueError, match="line end"):
        response_head(200, [b"x: %s\r\n" % value], DATE)
