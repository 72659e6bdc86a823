"""Splitting bytes into lines: the pieces in which they arrive do not matter."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.jsonrpc.envelope import STEP
from host.jsonrpc.messages import Id, Malformed
from host.wire.framing import MAX_LINE, LineSplitter, LineTooLong, MessageSplitter
from tests.kit.cost import assert_costs_less, cost
from tests.kit.examples import examples


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
    """Other line ends of Unicode are text (rule 2)."""
    assert lines(data) == (found, rest)


@settings(max_examples=examples(120))
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
    pieces = [*[b"x" * 64] * 100_000, b"\n"]
    assert len(lines(*pieces)[0][0]) == 6_400_000
    assert_costs_less(lambda: lines(*pieces), 1)


def messages(*pieces: bytes, limit: int) -> list[bytes | Malformed]:
    splitter = MessageSplitter(limit)
    return [each for piece in pieces for each in splitter.feed(piece) if each is not None]


def long(size: int, head: bytes = b'{"id":7,"result":"', tail: bytes = b'"}') -> bytes:
    return head + b"x" * (size - len(head) - len(tail)) + tail


@pytest.mark.parametrize("pad", [-1, 0, 1])
@pytest.mark.parametrize("cut", [1, 7, 64, 100, 1000])
def test_a_message_over_the_limit_is_discarded_and_the_next_one_is_not(pad: int, cut: int) -> None:
    """Only the request that it answers fails (rule 5)."""
    data = long(100 + pad) + b"\n{}\n"
    found = messages(*(data[at : at + cut] for at in range(0, len(data), cut)), limit=100)
    assert found[1] == b"{}"
    if pad <= 0:
        assert found[0] == data[: 100 + pad]
    else:
        why = "the message has more than 100 bytes (limits.message)"
        assert found[0] == Malformed(413, why, 7, answers=True, size=101)


@pytest.mark.parametrize(
    ("head", "tail", "id", "answers"),
    [
        (b'{"result":{"id":1,"x":"', b'"},"id":"a"}', "a", True),
        (b'{"id":3,"error":{"code":1,"message":"', b'"}}', 3, True),
        (b'{"id":3,"method":"x","params":["', b'"]}', 3, False),
        (b'{"method":"x","params":["', b'"]}', None, False),
    ],
)
def test_a_discarded_message_says_whose_it_is(head: bytes, tail: bytes, id: Id | None, answers: bool) -> None:
    (found,) = messages(long(101, head, tail) + b"\n", limit=100)
    assert isinstance(found, Malformed)
    assert (found.id, found.answers) == (id, answers)


@pytest.mark.parametrize(
    "line",
    [
        long(101, b'{"result":{"id":1,"x":"', b'"}}'),
        long(101, b'{"id":1,"id":1,"result":"'),
        long(101, b'[{"id":1,"result":"', b'"}]'),
        b"x" * 101,
    ],
)
def test_a_line_that_cannot_be_assigned_ends_it(line: bytes) -> None:
    with pytest.raises(LineTooLong, match="more than 100 bytes"):
        messages(line + b"\n", limit=100)


@pytest.mark.parametrize(("size", "fits"), [(799, True), (800, True), (801, False)])
def test_a_line_may_not_be_eight_times_too_long(size: int, fits: bool) -> None:
    data = long(size) + b"\n"
    if fits:
        assert len(messages(data, limit=100)) == 1
    else:
        with pytest.raises(LineTooLong):
            messages(data, limit=100)


def test_nothing_is_kept_of_a_discarded_message_and_it_is_scanned_in_steps() -> None:
    limit = 1024 * 1024
    splitter = MessageSplitter(limit)
    pieces = [long(4 * limit)[at : at + 65536] for at in range(0, 4 * limit, 65536)]
    steps = 0
    for piece in pieces:
        before = steps
        steps += sum(1 for _ in splitter.feed(piece))
        assert sum(map(len, splitter._parts)) <= limit
        if splitter.discarding is not None and before:
            assert not splitter._parts
    assert steps >= 4 * limit // STEP
    assert [each for each in splitter.feed(b"\n{}\n") if each is not None][1] == b"{}"


def test_a_chunk_is_taken_apart_as_it_is_asked_for() -> None:
    """A caller that pauses after a line has done that line's work alone."""
    feed = LineSplitter().feed(b"a\n" * 30_000)
    assert next(feed) == b"a"
    of_others = cost(lambda: sum(1 for _ in feed))
    assert_costs_less(lambda: next(LineSplitter().feed(b"a\n" * 30_000)), of_others / 10)
    assert list(LineSplitter().feed(b"\n\r\n" * 20_000 + b"a\n")) == [b"a"]
