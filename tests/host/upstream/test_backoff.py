"""When to try again: plain arithmetic."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from host.upstream.backoff import (
    AWAITED_SHARE,
    HEALTHY_AFTER,
    INITIAL_DELAY,
    MAX_DELAY,
    MAX_STARTS,
    MIN_SPACING,
    READ_CREDIT,
    READ_SHARE,
    WINDOW,
    Backoff,
    ReadingBudget,
    Restarts,
)
from tests.kit.examples import examples

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


@settings(max_examples=examples(100))
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


@settings(max_examples=examples(100))
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


HOUR = 3600.0


def listed_once(cost: float = 0.0) -> ReadingBudget:
    """A budget of a server whose lists were read once, at time 0."""
    budget = ReadingBudget()
    read(budget, 0.0, cost)
    return budget


def read(budget: ReadingBudget, now: float, cost: float) -> None:
    """Read lists that cost so many processor seconds; the reading takes no time."""
    budget.begin(now)
    budget.charge(now, cost)
    budget.end(now)


def flap(every: float, cost: float, seconds: float) -> list[float]:
    """The times at which lists are read whose change is announced that often."""
    budget, times, now = listed_once(cost), list[float](), 0.0
    while now < seconds:
        now += every
        now = budget.free_at(now)
        read(budget, now, cost)
        times.append(now)
    return times


def test_lists_that_cost_little_are_read_at_each_change_however_many_there_are() -> None:
    times = flap(every=1.0, cost=READ_SHARE, seconds=HOUR)
    assert times == [float(number) for number in range(1, int(HOUR) + 1)]


@given(st.floats(0.01, 30.0), st.floats(0.001, 10.0))
def test_whatever_a_list_costs_and_however_often_it_changes_its_share_is_limited(every: float, cost: float) -> None:
    times = flap(every, cost, 600.0)
    assert len(times) * cost <= times[-1] * READ_SHARE + READ_CREDIT + cost + 1e-6


def test_lists_of_any_length_are_read_once_for_nothing() -> None:
    assert listed_once(cost=5.0).free_at(0.0) == 0.0


def test_after_a_change_that_costs_much_the_next_one_waits_for_its_share() -> None:
    budget = listed_once()
    read(budget, 10.0, READ_CREDIT + 1.0)
    assert budget.free_at(10.0) == pytest.approx(10.0 + 1.0 / READ_SHARE)
    assert budget.interval == pytest.approx((READ_CREDIT + 1.0) / READ_SHARE)
    assert budget.free_at(1000.0) == 1000.0


def test_the_time_between_two_readings_is_not_shorter_than_that_between_two_looks() -> None:
    assert listed_once().interval == MIN_SPACING


def test_a_call_waits_shorter_and_what_it_costs_is_not_made_up_for_later() -> None:
    budget, now = listed_once(), 0.0
    for _ in range(100):
        read(budget, now, 1.0)
        now = budget.free_at(now, awaited=True)
    assert now == pytest.approx(100 * 1.0 / AWAITED_SHARE, rel=0.1)
    assert budget.free_at(now) - now <= 1.0 / READ_SHARE


def test_connections_of_one_server_share_its_budget() -> None:
    """Whichever of them began: what the other one reads meanwhile is charged as well."""
    budget = listed_once()
    budget.begin(10.0)
    budget.charge(10.0, 0.5)
    budget.charge(10.0, 0.5)
    assert budget.free_at(10.0) == pytest.approx(10.0 + (1.0 - READ_CREDIT) / READ_SHARE)
