"""Lines out of bytes: however they are cut, the same lines come out."""

from __future__ import annotations

import time

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.wire.framing import MAX_LINE, LineSplitter, LineTooLong


def lines(*pieces: bytes, limit: int = MAX_LINE) -> tuple[list[bytes], bytes]:
    """The lines that the pieces make, and what is left."""
    splitter = LineSplitter(limit)
    found = [line for piece in pieces for line in splitter.feed(piece)]
    return found, splitter.rest()


@pytest.mark.parametrize(
    ("data", "found", "rest"),
    [
        (b"", [], b""),
        (b"a\nb\n", [b"a", b"b"], b""),
        (b"a\nb", [b"a"], b"b"),
        (b"\n\n\r\na\n\n", [b"a"], b""),
        (b"a\r\nb\r\n", [b"a", b"b"], b""),
        (b"a\rb\n", [b"a\rb"], b""),
        (b" a \n", [b" a "], b""),
        ('"\u2028\u2029\u0085"\x0b\x0c\x1c\x1d\n'.encode(), ['"\u2028\u2029\u0085"\x0b\x0c\x1c\x1d'.encode()], b""),
        (b"\x00\xff\n", [b"\x00\xff"], b""),
    ],
)
def test_a_line_ends_at_a_line_feed_and_nowhere_else(data: bytes, found: list[bytes], rest: bytes) -> None:
    """Whatever else is called a line end somewhere (rule 2)."""
    assert lines(data) == (found, rest)


@settings(deadline=None, max_examples=120)
@given(st.data(), st.lists(st.sampled_from([b"\n", b"\r", b"\r\n", b"a", b"\xe2\x80\xa8", b"{}"])).map(b"".join))
def test_any_cuts_give_the_same_lines(data: st.DataObject, text: bytes) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)))))
    pieces = [text[start:end] for start, end in zip([0, *cuts], [*cuts, len(text)], strict=True)]
    assert lines(*pieces) == lines(text)
    *whole, rest = text.split(b"\n")
    assert lines(text) == ([line for each in whole if (line := each.rstrip(b"\r"))], rest.rstrip(b"\r"))


@pytest.mark.parametrize("cut", range(1, 9))
def test_the_limit_holds_for_a_line_however_it_comes(cut: int) -> None:
    """A line is bounded (rule 5)."""
    assert lines(b"x" * cut, b"x" * (8 - cut) + b"\n", limit=8) == ([b"x" * 8], b"")
    with pytest.raises(LineTooLong, match="8 bytes"):
        lines(b"x" * cut, b"x" * (9 - cut), limit=8)


def test_each_line_has_the_limit_to_itself() -> None:
    assert lines(b"xxx\nxxx\nxxx", limit=3) == ([b"xxx", b"xxx"], b"xxx")


def test_the_lines_before_one_that_is_too_long_are_given_out() -> None:
    splitter = LineSplitter(3)
    feed = splitter.feed(b"a\nb\nxxxx")
    assert [next(feed), next(feed)] == [b"a", b"b"]
    with pytest.raises(LineTooLong):
        next(feed)


def test_a_long_line_in_small_pieces_takes_time_in_proportion() -> None:
    begun = time.process_time()
    found, _ = lines(*[b"x" * 64] * 100_000, b"\n")
    assert len(found[0]) == 6_400_000
    assert time.process_time() - begun < 1
