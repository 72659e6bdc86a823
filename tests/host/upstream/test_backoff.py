"""When to try again: plain arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.upstream.backoff import (
    CALM_AFTER,
    HALF_LIFE,
    HEALTHY_AFTER,
    INITIAL_DELAY,
    MAX_DELAY,
    MAX_PAUSE,
    MAX_STARTS,
    MIN_PAUSE,
    READ_SHARE,
    WINDOW,
    Backoff,
    Pace,
    Restarts,
)

MIDDLE = 0.5
"""The jitter that changes nothing."""
MOST = MAX_DELAY * 1.2 + 1e-9
"""The longest wait with the most jitter, and what floats may add."""


def test_the_wait_doubles_up_to_a_minute() -> None:
    backoff = Backoff()
    waits = [backoff.on_failure(0, MIDDLE) for _ in range(12)]
    assert waits == pytest.approx([0.25, 0.5, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60])


def test_jitter_is_a_fifth_either_way() -> None:
    assert Backoff().on_failure(0, 0) == pytest.approx(INITIAL_DELAY * 0.8)
    assert Backoff().on_failure(0, 1) == pytest.approx(INITIAL_DELAY * 1.2)


def test_whoever_was_ready_long_enough_begins_anew() -> None:
    backoff = Backoff(failures=9)
    assert backoff.on_failure(HEALTHY_AFTER, MIDDLE) == pytest.approx(INITIAL_DELAY)
    assert backoff.failures == 1


def test_whoever_was_ready_too_shortly_does_not() -> None:
    backoff = Backoff(failures=3)
    assert backoff.on_failure(HEALTHY_AFTER - 0.01, MIDDLE) == pytest.approx(2)
    assert backoff.failures == 4


def test_failing_for_ever_neither_overflows_nor_waits_longer() -> None:
    backoff = Backoff()
    for _ in range(5000):
        assert backoff.on_failure(0, 1) <= MOST
    assert backoff.failures <= 32


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 1e6), st.floats(0, 1))))
def test_every_wait_is_within_bounds(failures: list[tuple[float, float]]) -> None:
    backoff = Backoff()
    for ready_for, jitter in failures:
        assert INITIAL_DELAY * 0.8 <= backoff.on_failure(ready_for, jitter) <= MOST


# Restarts


def test_five_starts_are_spread_over_half_a_minute_and_then_there_is_one_a_minute() -> None:
    restarts, now, starts = Restarts(), 0.0, []
    for _ in range(8):
        starts.append(now)
        restarts.on_start(now)
        now += restarts.on_failure(0, MIDDLE, now)
    assert starts[:5] == pytest.approx([0, 0.25, 1.25, 5.25, 21.25])
    assert all(MAX_DELAY <= later - former <= 1.2 * MAX_DELAY for former, later in pairwise(starts[4:]))


@settings(max_examples=100)
@given(st.lists(st.tuples(st.floats(0, 40), st.floats(0, 1)), min_size=6, max_size=60))
def test_no_minute_sees_more_than_five_starts_however_long_each_lasts(lives: list[tuple[float, float]]) -> None:
    restarts, now, starts = Restarts(), 0.0, []
    for life, jitter in lives:
        starts.append(now)
        restarts.on_start(now)
        now += life + restarts.on_failure(life, jitter, now + life)
    for at in range(len(starts) - MAX_STARTS):
        assert starts[at + MAX_STARTS] - starts[at] >= WINDOW - 1e-6


def test_a_server_that_was_ready_for_a_while_is_started_again_soon() -> None:
    restarts = Restarts(failures=5)
    restarts.on_start(0)
    assert restarts.on_failure(HEALTHY_AFTER, MIDDLE, HEALTHY_AFTER) == pytest.approx(INITIAL_DELAY)


@pytest.mark.parametrize(("starts", "since", "may"), [(4, 1.0, True), (5, WINDOW - 0.1, False), (5, WINDOW, True)])
def test_what_is_at_once_is_within_the_intensity_too(starts: int, since: float, may: bool) -> None:
    restarts = Restarts()
    for _ in range(starts):
        restarts.on_start(0)
    assert restarts.may_start(since) is may


def waits(pace: Pace, now: float = 1e6, *, since_last: float, took: float = 0.0) -> float:
    pace.last_read = now - since_last
    return pace.next_waits(now, read_seconds=took)[1]


def test_a_first_change_is_read_almost_at_once() -> None:
    assert waits(Pace(), since_last=1e9) == MIN_PAUSE
    assert waits(Pace(), since_last=1.2) == MIN_PAUSE


def test_a_server_that_goes_on_announcing_is_read_ever_slower() -> None:
    pace = Pace()
    waited = [waits(pace, since_last=0) for _ in range(12)]
    assert waited[:3] == pytest.approx([0.1, 0.2, 0.4])
    assert waited == sorted(waited)
    assert waited[-1] == MAX_PAUSE


def test_quiet_is_longer_the_slower_the_pace() -> None:
    pace = Pace(wait=MAX_PAUSE)
    assert waits(pace, since_last=2 * MAX_PAUSE + 1.0) == MAX_PAUSE
    assert waits(pace, since_last=2 * MAX_PAUSE + 1.1) == MIN_PAUSE


@pytest.mark.parametrize("every", [0.1, 1.2, 10.0, 60.0])
def test_a_list_that_flaps_for_ever_is_read_some_thirty_times_an_hour(every: float) -> None:
    """However the server times it; and once it is quiet, it is read at once again."""
    pace, now, read = Pace(), 0.0, 0
    while now < 10 * 3600:
        now += every  # the next change is announced
        now += pace.next_waits(now, read_seconds=0.0)[1]
        read += 1
        pace.on_read(now, changed=True)
    assert read <= 10 * 35 + 20
    assert waits(pace, now + 3 * HALF_LIFE, since_last=3 * HALF_LIFE) == MIN_PAUSE


def test_a_few_changes_in_a_row_wait_for_nothing() -> None:
    pace = Pace()
    for number in range(int(CALM_AFTER)):
        assert waits(pace, now=2.0 * number, since_last=2.0) == MIN_PAUSE
        assert pace.flapping_pause(2.0 * number) <= 0
        pace.on_read(2.0 * number, changed=True)


def test_only_what_changed_is_counted_and_the_first_reading_is_no_change() -> None:
    pace = Pace()
    pace.on_read(0.0, changed=True)
    assert pace.changes == 0
    pace.on_read(1.0, changed=False)
    assert pace.changes == 0
    pace.on_read(2.0, changed=True)
    assert pace.changes == 1


def test_a_list_that_takes_long_to_read_is_left_alone_for_longer_whoever_waits() -> None:
    assert Pace(last_read=0.0).next_waits(0.0, read_seconds=0.0)[0] == MIN_PAUSE
    least, wait = Pace(last_read=0.0).next_waits(0.0, read_seconds=2.0)
    assert least == wait == 2.0 * READ_SHARE
    assert Pace(last_read=0.0).next_waits(0.0, read_seconds=1000.0)[0] == MAX_PAUSE


def test_the_time_since_a_list_was_read_counts_as_time_that_it_was_left_alone() -> None:
    assert Pace(last_read=0.0).next_waits(3.0, read_seconds=2.0)[0] == 2.0 * READ_SHARE - 3.0
    assert Pace(last_read=0.0).next_waits(25.0, read_seconds=2.0) == (MIN_PAUSE, MIN_PAUSE)
    assert Pace(last_read=0.0).next_waits(MAX_PAUSE, read_seconds=1000.0)[0] == MIN_PAUSE
