"""Event streams: the pieces in which they arrive do not matter, and what is written can be read."""

from __future__ import annotations

import tracemalloc
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.jsonrpc.messages import Malformed
from host.wire import sse
from host.wire.sse import MAX_FIELD, EventParser, EventTooLong, SseEvent, format_comment, format_event
from tests.kit.cost import assert_costs_less, least_cost


def fed(parser: EventParser, data: bytes) -> list[SseEvent]:
    return [each for each in parser.feed(data) if isinstance(each, SseEvent)]


def read_whole(data: bytes) -> list[SseEvent]:
    return fed(EventParser(), data)


def read_in_pieces(data: bytes, cuts: list[int], parser: EventParser | None = None) -> list[SseEvent]:
    parser = parser or EventParser()
    edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    found: list[SseEvent] = []
    for start, end in pairwise(edges):
        found += fed(parser, data[start:end])
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
    expected = fed(whole, data)
    pieces = EventParser()
    assert read_in_pieces(data, cuts, pieces) == expected
    assert (pieces.last_id, pieces.retry) == (whole.last_id, whole.retry)


@given(streams)
def test_byte_by_byte_gives_the_same_events(data: bytes) -> None:
    assert read_in_pieces(data, list(range(len(data)))) == read_whole(data)


@given(streams, st.lists(st.integers(0, 400), max_size=20))
def test_any_cut_finds_the_same_event_too_long(data: bytes, cuts: list[int]) -> None:
    def outcome(cuts: list[int]) -> tuple[list[SseEvent], bool]:
        parser, found = EventParser(limit=12), list[SseEvent]()
        edges = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
        try:
            for start, end in pairwise(edges):
                for each in parser.feed(data[start:end]):
                    found += [each] if isinstance(each, SseEvent) else []
        except EventTooLong:
            return found, True
        return found, False

    assert outcome(cuts) == outcome([])


@given(st.binary(max_size=60), lines, st.none() | lines, st.lists(st.integers(0, 400), max_size=5))
def test_what_is_written_can_be_read(data: bytes, name: str, id: str | None, cuts: list[int]) -> None:
    written = format_comment(name) + format_event(data, id=id, event=name)
    flat = data.replace(b"\n", b" ").replace(b"\r", b" ")
    assert read_in_pieces(written, cuts) == [SseEvent(flat, name or "message", id or "")]


@pytest.mark.parametrize("end", [b"\n", b"\r", b"\r\n"])
def test_lines_end_at_each_of_the_three_line_ends(end: bytes) -> None:
    """Lines end at no other character (rule 2)."""
    stream = end.join([b"event: a", b"data: 1", b"data: 2", b"", b"data:3", b"", b""])
    assert read_whole(stream) == [SseEvent(b"1\n2", "a"), SseEvent(b"3")]


def test_a_line_end_of_two_bytes_may_be_cut_in_two() -> None:
    parser = EventParser()
    assert fed(parser, b"data: 1\r") == []
    assert fed(parser, b"\n\r") == [SseEvent(b"1")]
    assert fed(parser, b"\ndata: 2\r\n\r\n") == [SseEvent(b"2")]


def test_an_event_is_given_out_at_a_lone_carriage_return_without_waiting_for_more() -> None:
    assert read_whole(b"data: 1\r\r") == [SseEvent(b"1")]


def test_other_separators_of_unicode_do_not_end_a_line() -> None:
    """They are text (rule 2)."""
    data = "a\u2028b\u2029c\u0085d\u000be\u000cf".encode()
    assert read_whole(b"data: " + data + b"\n\n") == [SseEvent(data)]


def test_a_mark_at_the_start_is_skipped_and_only_there() -> None:
    assert read_whole(b"\xef\xbb\xbfdata: 1\n\n") == [SseEvent(b"1")]
    assert read_whole(b"\xef\xbb\xbf\xef\xbb\xbfdata: 1\n\n") == []
    assert read_in_pieces(b"\xef\xbb\xbfdata: 1\n\n", [1, 2]) == [SseEvent(b"1")]


def test_one_blank_after_the_colon_belongs_to_the_field() -> None:
    assert read_whole(b"data:1\n\ndata: 1\n\ndata:  1\n\n") == [SseEvent(b"1"), SseEvent(b"1"), SseEvent(b" 1")]


def test_a_field_without_a_colon_is_empty() -> None:
    assert read_whole(b"data\n\ndata\ndata\n\ndata:") == [SseEvent(b""), SseEvent(b"\n")]


def test_an_event_without_data_is_not_given_but_its_id_counts() -> None:
    parser = EventParser()
    assert fed(parser, b"id: 7\nevent: a\n\n") == []
    assert parser.last_id == "7"
    assert fed(parser, b"data: 1\n\n") == [SseEvent(b"1", "message", "7")]


def test_an_id_counts_only_once_its_event_has_ended() -> None:
    parser = EventParser()
    fed(parser, b"id: 1\ndata: a\n\nid: 2\ndata: b\n")
    assert parser.last_id == "1"


def test_an_id_with_nul_is_ignored_and_an_empty_one_takes_the_last_back() -> None:
    parser = EventParser()
    fed(parser, b"id: 1\nid: 2\0\n\n")
    assert parser.last_id == "1"
    fed(parser, b"id\n\n")
    assert parser.last_id == ""


def test_an_id_that_is_too_long_is_ignored_and_one_at_the_limit_is_not() -> None:
    parser = EventParser()
    longest = "x" * MAX_FIELD
    assert fed(parser, f"id: {longest}\ndata: a\n\n".encode()) == [SseEvent(b"a", "message", longest)]
    assert fed(parser, b"id: 7\ndata: b\n\n") == [SseEvent(b"b", "message", "7")]
    assert fed(parser, f"id: {longest}x\ndata: c\n\n".encode()) == [SseEvent(b"c", "message", "7")]
    assert fed(parser, f"id: 8\nid: {longest}x\n\n".encode()) == []
    assert parser.last_id == "8"


def test_of_a_name_that_is_too_long_the_beginning_is_given() -> None:
    name = "message" * MAX_FIELD
    parser = EventParser()
    assert fed(parser, f"event: {name}\ndata: a\n\ndata: b\n\n".encode()) == [
        SseEvent(b"a", name[:MAX_FIELD]),
        SseEvent(b"b"),
    ]


@pytest.mark.parametrize("field", [b"id", b"event"])
@pytest.mark.parametrize("end", [b"\n", b"\n\n"])
def test_no_long_field_is_held_once_its_line_has_ended(field: bytes, end: bytes) -> None:
    """Only the kept bytes of the current event are charged; ids and names are not (rule 5)."""
    parser = EventParser()
    line = b"%b: \xf0\x9f\x98\x80%b%b" % (field, b"x" * 4_000_000, end)
    tracemalloc.start()
    try:
        assert fed(parser, line[:2_000_000]) == []
        assert parser.pending == 2_000_000
        assert _held_by_parsers() > 2_000_000
        assert fed(parser, line[2_000_000:]) == []
        assert parser.pending == 0
        assert _held_by_parsers() < 50_000
    finally:
        tracemalloc.stop()


def _held_by_parsers() -> int:
    """The traced bytes that the module has allocated, and nothing else that goes on in this process."""
    snapshot = tracemalloc.take_snapshot().filter_traces(
        [tracemalloc.Filter(inclusive=True, filename_pattern=sse.__file__)]
    )
    return sum(trace.size for trace in snapshot.traces)


@pytest.mark.parametrize(
    ("value", "seconds"),
    [("0", 0.0), ("1500", 1.5), ("-1", None), ("1.5", None), ("", None), ("1e3", None), ("٣", None), ("0" * 9999, 0.0)],
)
def test_retry_is_digits_only(value: str, seconds: float | None) -> None:
    parser = EventParser()
    fed(parser, f"retry: {value}\n".encode())
    assert parser.retry == seconds


def test_a_retry_of_thousands_of_digits_is_just_very_long() -> None:
    parser = EventParser()
    fed(parser, b"retry: " + b"9" * 10_000 + b"\n")
    assert parser.retry is not None
    assert parser.retry > 1e9


def test_comments_and_unknown_fields_mean_nothing() -> None:
    assert read_whole(b": hello\n:\nfoo: bar\ndata: 1\nData: 2\n\n") == [SseEvent(b"1")]


def test_an_event_without_its_blank_line_is_never_given() -> None:
    assert read_whole(b"data: 1\n") == []


def test_a_new_connection_forgets_what_was_begun_and_keeps_the_position() -> None:
    parser = EventParser()
    fed(parser, b"retry: 20\nid: 1\ndata: a\n\nid: 2\ndata: b\nda")
    parser.restart()
    assert fed(parser, b"\xef\xbb\xbfdata: c\n\n") == [SseEvent(b"c", "message", "1")]
    assert parser.retry == 0.02


def test_events_before_one_that_is_too_long_are_given_out() -> None:
    feed = EventParser(limit=10).feed(b"data: 1\n\ndata: 234567890")
    assert next(feed) == SseEvent(b"1")
    with pytest.raises(EventTooLong):
        list(feed)


def test_the_limit_counts_lines_of_data_together_and_comments_not_at_all() -> None:
    """An event is bounded (rule 5)."""
    parser = EventParser(limit=20)
    for _ in range(100):
        fed(parser, b": a comment\n")
    fed(parser, b"data: 12345\ndata: 12345\n")
    with pytest.raises(EventTooLong, match="more than 20 bytes"):
        fed(parser, b"data: 12345\n")


@pytest.mark.slow
def test_many_small_chunks_take_linear_time() -> None:
    def read(size: int) -> None:
        parser = EventParser()
        fed(parser, b"data: ")
        for _ in range(size):
            fed(parser, b"x")
        assert len(fed(parser, b"\n\n")[0].data) == size

    few = least_cost(lambda: read(10_000))
    assert_costs_less(lambda: read(160_000), 16 * few * 4)  # four times more than linear is still far from quadratic


@pytest.mark.parametrize("bad", ["a\nb", "a\rb", "a\0b"])
def test_what_cannot_stand_in_a_line_is_refused(bad: str) -> None:
    with pytest.raises(ValueError, match="must not contain a line end or NUL"):
        format_event(b"{}", id=bad)
    with pytest.raises(ValueError, match="must not contain a line end or NUL"):
        format_event(b"{}", event=bad)
    with pytest.raises(ValueError, match="must not contain a line end or NUL"):
        format_comment(bad)


def test_the_shape_of_what_is_written() -> None:
    assert format_event(b'{\n"a":1}', id="7", event="message") == b'event: message\nid: 7\ndata: { "a":1}\n\n'
    assert format_comment("ping") == b": ping\n\n"


def received(*pieces: bytes, limit: int = 100) -> list[SseEvent | Malformed]:
    parser = EventParser(limit)
    return [each for piece in pieces for each in parser.feed(piece) if each is not None]


@pytest.mark.parametrize("cut", [1, 5, 64, 1000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\r"])
@pytest.mark.parametrize(
    ("head", "tail", "id", "answers"),
    [
        (b'{"id":7,"result":"', b'"}', 7, True),
        (b'{"result":{"id":1,"x":"', b'"},"id":"a"}', "a", True),
        (b'{"id":7,"method":"x","params":["', b'"]}', 7, False),
        (b'{"method":"x","params":["', b'"]}', None, False),
    ],
)
def test_a_message_over_the_limit_is_discarded_and_the_next_event_is_not(
    cut: int, end: bytes, head: bytes, tail: bytes, id: int | str | None, answers: bool
) -> None:
    """Other fields of the event, and the division of its data into lines, do not matter (rule 5)."""
    lines = [b": note", b"id: 5", b"data: " + head + b"x" * 200 + tail, b"event: message", b"", b"data: {}", b"", b""]
    data = end.join(lines)
    found = received(*(data[at : at + cut] for at in range(0, len(data), cut)))
    why = "the message has more than 100 bytes (limits.message)"
    size = len(head) + 200 + len(tail) + 2  # the name of the field may count, and the end of a line
    assert found == [Malformed(413, why, id, answers, size), SseEvent(b"{}", "message", "5")]


def test_a_message_over_the_limit_may_be_many_lines_of_data() -> None:
    ends = [b"data: {}],", b'data:"id":', b"data: 1", b"data: }", b"", b""]
    lines = [b'data: {"result":[', *[b"data: {},"] * 100, *ends]
    data = b"\n".join(lines)
    for cut in (1, 7, 5000):
        (found,) = received(*(data[at : at + cut] for at in range(0, len(data), cut)))
        assert isinstance(found, Malformed)
        assert (found.id, found.answers) == (1, True)


@pytest.mark.parametrize(("size", "limit", "fits"), [(99, 99, True), (100, 99, False), (98, 99, True)])
def test_an_event_at_the_limit_is_whole(size: int, limit: int, fits: bool) -> None:
    """The line counts with the name of its field."""
    message = b'{"id":7,"result":"%s"}' % (b"x" * (size - len('data:{"id":7,"result":""}')))
    (found,) = received(b"data:" + message + b"\n\n", limit=limit)
    assert isinstance(found, SseEvent) == fits


@pytest.mark.parametrize(
    "lines",
    [
        [b"data: " + b"x" * 101],
        [b'data: {"result":{"id":1,"x":"' + b"x" * 101 + b'"}}'],
        [b'data: {"id":1,"id":1,"result":"' + b"x" * 101 + b'"}'],
        [b'data: {"id":1,"result":"' + b"x" * 800 + b'"}'],
        [b"id: " + b"x" * 101, b"data: {}"],
        [b": " + b"x" * 101, b"data: {}"],
    ],
)
@pytest.mark.parametrize("cut", [3, 1000])
def test_an_event_over_the_limit_that_cannot_be_assigned_ends_the_stream(lines: list[bytes], cut: int) -> None:
    data = b"\n".join([*lines, b"", b""])
    parser = EventParser(limit=100)

    def feed() -> None:
        for at in range(0, len(data), cut):
            list(parser.feed(data[at : at + cut]))

    with pytest.raises(EventTooLong, match="more than 100 bytes"):
        feed()
    assert list(parser.feed(b"data: 1\n\n")) == []


@pytest.mark.parametrize(
    ("text", "count"),
    [
        (b": ping\n\n", 2),
        (b":\n:\n", 2),
        (b"data:\n\n", 1),
        (b"id: 1\nretry: 5\ndata:\n\n", 1),
        (b"data: x\n\n", 0),
        (b"data: x\n\n\n\n", 2),
    ],
)
def test_comments_and_events_without_data_are_counted(text: bytes, count: int) -> None:
    parser = EventParser()
    for _ in range(3):
        for _ in parser.feed(text):
            pass
    assert parser.useless_count == 3 * count
