"""Event streams: every way to cut one gives the same events, and what is written can be read."""

from __future__ import annotations

import time
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.wire.sse import Event, EventParser, EventTooLong, comment, event


def read_whole(data: bytes) -> list[Event]:
    return EventParser().feed(data)


def read_in_pieces(data: bytes, cuts: list[int], parser: EventParser | None = None) -> list[Event]:
    parser = parser or EventParser()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[Event] = []
    for start, end in pairwise(edges):
        found += parser.feed(data[start:end])
    return found


# Bytes that look like a stream more often than chance would have it.
pieces = st.sampled_from(
    [
        *(b"data", b"event", b"id", b"retry", b":", b": ", b" ", b"\n", b"\r", b"\r\n", b"\n\n"),
        *(b"\xef\xbb\xbf", b"\0", b"x", b"17", "\u2028\u0085é".encode(), b"\xff", b"data: a\n\n", b"id: 7\n"),
    ]
)
streams = st.lists(pieces, max_size=40).map(b"".join)
lines = st.text(st.characters(exclude_characters="\r\n\0", codec="utf-8"), max_size=20)


@given(streams, st.lists(st.integers(0, 400), max_size=20))
def test_any_cut_gives_the_same_events(data: bytes, cuts: list[int]) -> None:
    whole = EventParser()
    expected = whole.feed(data)
    pieces = EventParser()
    assert read_in_pieces(data, cuts, pieces) == expected
    assert (pieces.last_id, pieces.retry) == (whole.last_id, whole.retry)


@given(streams)
def test_byte_by_byte_gives_the_same_events(data: bytes) -> None:
    assert read_in_pieces(data, list(range(len(data)))) == read_whole(data)


@given(streams, st.lists(st.integers(0, 400), max_size=20))
def test_any_cut_finds_the_same_event_too_long(data: bytes, cuts: list[int]) -> None:
    def outcome(cuts: list[int]) -> tuple[list[Event], bool]:
        parser, found = EventParser(limit=12), list[Event]()
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        try:
            for start, end in pairwise(edges):
                found += parser.feed(data[start:end])
            parser.feed(b"")
        except EventTooLong:
            return found, True
        return found, False

    assert outcome(cuts) == outcome([])


@given(st.binary(max_size=60), lines, st.none() | lines, st.lists(st.integers(0, 400), max_size=5))
def test_what_is_written_can_be_read(data: bytes, name: str, id: str | None, cuts: list[int]) -> None:
    written = comment(name) + event(data, id=id, event=name)
    flat = data.replace(b"\n", b" ").replace(b"\r", b" ")
    assert read_in_pieces(written, cuts) == [Event(flat, name or "message", id or "")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_at_each_of_the_three_line_ends(end: bytes) -> None:
    """And at nothing else (rule 2)."""
    stream = end.join([b"event: a", b"data: 1", b"data: 2", b"", b"data:3", b"", b""])
    assert read_whole(stream) == [Event(b"1\n2", "a"), Event(b"3")]


def test_a_line_end_of_two_bytes_may_be_cut_in_two() -> None:
    parser = EventParser()
    assert parser.feed(b"data: 1\r") == []
    assert parser.feed(b"\n\r") == [Event(b"1")]
    assert parser.feed(b"\ndata: 2\r\n\r\n") == [Event(b"2")]


def test_an_event_is_given_out_at_a_lone_carriage_return_without_waiting_for_more() -> None:
    assert read_whole(b"data: 1\r\r") == [Event(b"1")]


def test_other_separators_of_unicode_do_not_end_a_line() -> None:
    """They are text (rule 2)."""
    data = "a\u2028b\u2029c\u0085d\u000be\u000cf".encode()
    assert read_whole(b"data: " + data + b"\n\n") == [Event(data)]


def test_a_mark_at_the_start_is_skipped_and_only_there() -> None:
    assert read_whole(b"\xef\xbb\xbfdata: 1\n\n") == [Event(b"1")]
    assert read_whole(b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\n") == []
    assert read_in_pieces(b"\xef\xbb\xbfdata: 1\n\n", [1, 2]) == [Event(b"1")]


def test_one_blank_after_the_colon_belongs_to_the_field() -> None:
    assert read_whole(b"data:1\n\ndata: 1\n\ndata:  1\n\n") == [Event(b"1"), Event(b"1"), Event(b" 1")]


def test_a_field_without_a_colon_is_empty() -> None:
    assert read_whole(b"data\n\ndata\ndata\n\ndata:") == [Event(b""), Event(b"\n")]


def test_an_event_without_data_is_not_given_but_its_id_counts() -> None:
    parser = EventParser()
    assert parser.feed(b"id: 7\nevent: a\n\n") == []
    assert parser.last_id == "7"
    assert parser.feed(b"data: 1\n\n") == [Event(b"1", "message", "7")]


def test_an_id_counts_only_once_its_event_has_ended() -> None:
    parser = EventParser()
    parser.feed(b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert parser.last_id == "1"


def test_an_id_with_nul_is_ignored_and_an_empty_one_takes_the_last_back() -> None:
    parser = EventParser()
    parser.feed(b"id: 1\nid: 2\0\n\n")
    assert parser.last_id == "1"
    parser.feed(b"id\n\n")
    assert parser.last_id == ""


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("1500", 1.5), ("-1", None), ("1.5", None), ("", None), ("1e3", None), ("٣", None), ("0" * 9999, 0.0)],
)
def test_retry_is_digits_only(value: str, seconds: float | None) -> None:
    parser = EventParser()
    parser.feed(f"retry: {value}\n".encode())
    assert parser.retry == seconds


def test_a_retry_of_thousands_of_digits_is_just_very_long() -> None:
    parser = EventParser()
    parser.feed(b"retry: " + b"9" * 10_000 + b"\n")
    assert parser.retry is not None
    assert parser.retry > 1e9


def test_comments_and_unknown_fields_mean_nothing() -> None:
    assert read_whole(b": hello\n:\nfoo: bar\ndata: 1\nData: 2\n\n") == [Event(b"1")]


def test_an_event_without_its_blank_line_is_never_given() -> None:
    assert read_whole(b"data: 1\n") == []


def test_a_new_connection_forgets_what_was_begun_and_keeps_the_position() -> None:
    parser = EventParser()
    parser.feed(b"retry: 20\nid: 1\ndata: a\n\nid: 2\ndata: b\nda")
    parser.restart()
    assert parser.feed(b"\xef\xbb\xbfdata: c\n\n") == [Event(b"c", "message", "1")]
    assert parser.retry == 0.02


def test_events_before_one_that_is_too_long_are_given_out() -> None:
    parser = EventParser(limit=10)
    assert parser.feed(b"data: 1\n\ndata: 234567890") == [Event(b"1")]
    with pytest.raises(EventTooLong):
        parser.feed(b"")


def test_the_limit_counts_lines_of_data_together_and_comments_not_at_all() -> None:
    """An event is bounded (rule 5)."""
    parser = EventParser(limit=20)
    for _ in range(100):
        parser.feed(b": a comment\n")
    parser.feed(b"data: 12345\ndata: 12345\n")
    with pytest.raises(EventTooLong):
        parser.feed(b"data: 12345\n")


def test_many_small_chunks_take_linear_time() -> None:
    def took(size: int) -> float:
        parser, began = EventParser(), time.process_time()
        parser.feed(b"data: ")
        for _ in range(size):
            parser.feed(b"x")
        assert len(parser.feed(b"\n\n")[0].data) == size
        return time.process_time() - began

    few = min(took(10_000) for _ in range(3))
    assert took(160_000) < 16 * few * 4  # four times more than linear is still far from quadratic


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b"])
def test_what_cannot_stand_in_a_line_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="cannot be written"):
        event(b"{}", id=bad)
    with pytest.raises(ValueError, match="cannot be written"):
        event(b"{}", event=bad)
    with pytest.raises(ValueError, match="cannot be written"):
        comment(bad)


def test_the_shape_of_what_is_written() -> None:
    assert event(b'{\n"a":1}', id="7", event="message") == b'event: message\nid: 7\ndata: { "a":1}\n\n'
    assert comment("ping") == b": ping\n\n"
