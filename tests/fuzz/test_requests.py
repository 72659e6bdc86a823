"""The comparison with h11, on fewer cases than `make fuzz` has; and that it can fail."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.wire import request_head
from host.wire.head import HeadLimits, HeadRefusal
from tests.fuzz import requests
from tests.fuzz.explore import seeds
from tests.fuzz.requests import FRAMING, compare, compare_many, mutated

CORPUS = [*seeds("request"), *seeds("http")]


def test_mutated_requests_are_read_as_h11_reads_them_or_refused() -> None:
    assert compare_many(2000, 1, CORPUS) == []


@pytest.mark.slow
def test_many_mutated_requests_are_read_as_h11_reads_them_or_refused() -> None:
    assert compare_many(50_000, 2, CORPUS) == []


LINES = st.sampled_from(
    [*FRAMING, b"\r\n", b"X: a\r\n", b" folded\r\n", b"5\r\nhello\r\n", b"GET / HTTP/1.1\r\nHost: a\r\n"]
)


@given(st.sampled_from(CORPUS), st.lists(LINES | st.binary(max_size=4), max_size=8))
def test_pieces_in_any_order_are_read_as_h11_reads_them_or_refused(first: bytes, pieces: list[bytes]) -> None:
    line = first.partition(b"\r\n")[0] + b"\r\nHost: a\r\n"
    compare(line + b"".join(pieces))
    compare(line + b"".join(pieces) + b"\r\n0\r\n\r\n")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_as_h11_reads_them_or_refused(data: bytes) -> None:
    compare(data)


def test_a_listener_that_accepts_more_than_h11_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """httptools by itself, without the first judge."""

    def accept(head: bytes, limits: HeadLimits) -> HeadRefusal | None:
        return None

    monkeypatch.setattr(request_head, "check_head", accept)
    faults = compare_many(3000, 1, CORPUS)
    assert any("h11 refuses it" in fault for fault in faults)


def test_a_listener_that_refuses_everything_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(head: bytes) -> HeadRefusal:
        return request_head.INVALID

    monkeypatch.setattr(requests, "parse_head", refuse)
    (fault,) = compare_many(300, 1, CORPUS)
    assert "only 0 of 300" in fault


def test_the_same_number_makes_the_same_request() -> None:
    assert mutated(7, 1, CORPUS) == mutated(7, 1, CORPUS)
    assert mutated(7, 1, CORPUS) != mutated(8, 1, CORPUS)
