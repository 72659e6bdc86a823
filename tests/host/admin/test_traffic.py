"""What is kept of the traffic of a server."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.admin.traffic import MAX_STATES, MINUTE, MINUTES, QUARTER, QUARTERS, Traffic
from host.journal import RequestCompleted

BEGIN = 1_790_000_000 // QUARTER * QUARTER


def call(seconds: float = 0.01, outcome: str = "answered", *, tool_error: bool = False) -> RequestCompleted:
    return RequestCompleted("a", "tool", "x", "desk", "allow", outcome, seconds, 10, tool_error=tool_error)


def test_calls_are_kept_by_minutes_and_by_quarters_of_an_hour() -> None:
    traffic = Traffic()
    for minute in range(40):
        for outcome in ("answered", "failed", "error -32000", "called off"):
            traffic.add(call(outcome=outcome), BEGIN + minute * MINUTE + 1)
    now = BEGIN + 40 * MINUTE
    minutes, quarters = traffic.minutes(now), traffic.quarters(now)
    assert [each["t"] for each in minutes] == [BEGIN + minute * MINUTE for minute in range(40)]
    assert {(each["calls"], each["failed"]) for each in minutes} == {(4, 2)}
    assert [(each["t"], each["calls"]) for each in quarters] == [
        *((BEGIN, 60), (BEGIN + QUARTER, 60)),
        (BEGIN + 2 * QUARTER, 40),
    ]
    assert (traffic.calls, traffic.failed, traffic.size) == (160, 80, 1600)


def test_an_error_of_a_tool_is_no_failure_and_has_a_count_of_its_own() -> None:
    """The server did answer, and that took its time."""
    traffic = Traffic()
    for at in range(2 * QUARTER // MINUTE):
        for outcome, tool_error in (("answered", True), ("answered", False), ("failed", False)):
            traffic.add(call(outcome=outcome, tool_error=tool_error), BEGIN + at * MINUTE)
    now = BEGIN + 2 * QUARTER
    for rows, each in ((traffic.minutes(now), 1), (traffic.quarters(now), QUARTER // MINUTE)):
        told = {(row["calls"], row["failed"], row["tool_errors"]) for row in rows}
        assert told == {(3 * each, each, each)}
    assert (traffic.calls, traffic.failed, traffic.tool_errors) == (90, 30, 30)
    assert traffic.latency is not None


def test_what_a_server_asks_has_not_failed_where_the_answer_comes_with_another_request() -> None:
    traffic = Traffic()
    for outcome in ("handed on", "told"):
        traffic.add(call(outcome=outcome), BEGIN)
    (minute,) = traffic.minutes(BEGIN)
    assert (traffic.calls, traffic.failed, minute["failed"]) == (2, 0, 0)


def test_no_more_than_a_day_is_kept() -> None:
    traffic = Traffic()
    for quarter in range(3 * QUARTERS):
        traffic.add(call(), BEGIN + quarter * QUARTER)
    now = BEGIN + (3 * QUARTERS - 1) * QUARTER
    assert len(traffic.minutes(now)) == MINUTES * MINUTE / QUARTER
    assert len(traffic.quarters(now)) == QUARTERS
    later = now + 2 * QUARTERS * QUARTER
    assert (traffic.minutes(later), traffic.quarters(later), traffic.percentiles(later)) == ([], [], (None, None))
    assert traffic.calls == 3 * QUARTERS


@given(st.lists(st.floats(1e-6, 1000.0), min_size=1, max_size=50))
def test_percentiles_are_at_most_a_fifth_too_high(durations: list[float]) -> None:
    """And a microsecond, since the clock of none is more exact."""
    traffic = Traffic()
    for each in durations:
        traffic.add(call(each), BEGIN)
    ordered = sorted(durations)
    for shown, percent in zip(traffic.percentiles(BEGIN), (50, 95), strict=True):
        exact = ordered[-(-len(ordered) * percent // 100) - 1] * 1000
        assert shown is not None
        assert exact - 0.001 <= shown <= 1.2 * exact + 0.003


def test_states_that_repeat_themselves_are_one_and_old_ones_are_dropped() -> None:
    traffic = Traffic()
    for at in range(3):
        traffic.add_state("failed", "it ended", at)
    traffic.add_state("ready", "2 tools", 3)
    traffic.add_state("ready", "2 tools", 4)
    assert [(each["state"], each["count"], each["t"], each["until"]) for each in traffic.states()] == [
        ("failed", 3, 0, 2),
        ("ready", 2, 3, 4),
    ]
    assert traffic.restarts == 1
    for at in range(MAX_STATES + 10):
        traffic.add_state("failed", f"{at}", at)
    assert len(traffic.states()) == MAX_STATES


@pytest.mark.parametrize("gap", [0, MINUTE, 3 * QUARTER])
def test_a_row_is_as_of_now(gap: int) -> None:
    traffic = Traffic()
    traffic.add(call(0.1), BEGIN)
    (row,) = traffic.quarters(BEGIN + gap)
    assert (row["t"], row["calls"]) == (BEGIN, 1)
    assert row["p50_ms"] == row["p95_ms"] == pytest.approx(100, rel=0.2)
