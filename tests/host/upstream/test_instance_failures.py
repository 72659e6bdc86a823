"""Pauses after failed instances, without any instance."""

from __future__ import annotations

import pytest

from host.exchange import Caller
from host.source import SHARED
from host.upstream.backoff import HEALTHY_AFTER, MAX_STARTS, WINDOW
from host.upstream.instance_failures import FAILURE_TTL, InstanceFailures

ONE, OTHER = Caller("one", SHARED, identity="one"), Caller("other", SHARED, identity="other")


def fails(failures: InstanceFailures, caller: Caller, now: float, ready_for: float | None = None) -> float:
    return failures.on_failure(caller, ready_for, 0.5, now, is_misused=False)


def test_a_failed_start_makes_its_caller_wait_and_nobody_else() -> None:
    failures = InstanceFailures(4)
    assert failures.wait(ONE, 0.0) <= 0
    delays = [fails(failures, ONE, 0.0) for _ in range(3)]
    assert delays == [0.25, 1.0, 4.0]
    assert failures.wait(ONE, 0.0) == 4.0
    assert failures.wait(OTHER, 0.0) <= 0


def test_callers_without_a_token_are_told_apart_by_session() -> None:
    failures = InstanceFailures(4)
    with_session, without, like_it = Caller("a", SHARED, session=1), Caller("b", SHARED), Caller("c", SHARED)
    fails(failures, without, 0.0)
    assert failures.wait(like_it, 0.0) > 0
    assert failures.wait(with_session, 0.0) <= 0


def test_one_failure_while_connected_may_be_that_of_the_call() -> None:
    failures = InstanceFailures(4)
    fails(failures, ONE, 0.0, ready_for=1.0)
    assert failures.wait(ONE, 0.0) <= 0
    fails(failures, ONE, 0.0, ready_for=1.0)
    assert failures.wait(ONE, 0.0) == 1.0
    failures.on_failure(OTHER, 1.0, 0.5, 0.0, is_misused=True)
    assert failures.wait(OTHER, 0.0) == 0.25


@pytest.mark.parametrize("ends_series", [True, False])
def test_a_use_without_a_failure_permits_the_next_start(ends_series: bool) -> None:
    """It ends a series of failures only for instances of calls: one of a client must live for a while first."""
    failures = InstanceFailures(4)
    fails(failures, ONE, 0.0)
    failures.on_success(ONE, 0.0, ends_series=ends_series)
    assert failures.wait(ONE, 0.0) <= 0
    assert fails(failures, ONE, 0.0) == (0.25 if ends_series else 1.0)
    assert fails(failures, OTHER, 0.0) == 0.25
    assert fails(failures, OTHER, 20.0, ready_for=HEALTHY_AFTER) == 0.25


def test_a_crash_loop_is_tried_once_a_minute() -> None:
    """Also if each instance is used before it fails."""
    failures = InstanceFailures(4)
    for now in (0.0, 1.0, 2.0, 3.0, 4.0):
        failures.on_success(ONE, now, ends_series=True)
        fails(failures, ONE, now, ready_for=20.0)
    failures.on_success(ONE, 5.0, ends_series=True)
    assert failures.wait(ONE, 5.0) > WINDOW - 10
    for now in (100.0, 200.0, 300.0, 400.0, 500.0):
        fails(failures, ONE, now)
    failures.on_start(ONE, 600.0)  # one attempt shows whether it works again
    assert failures.wait(ONE, 600.0) == WINDOW


def test_starts_that_fail_for_everybody_stop_everybody_until_one_succeeds() -> None:
    failures = InstanceFailures(1)
    for number in range(MAX_STARTS):
        fails(failures, Caller("x", SHARED, identity=str(number)), 0.0)
    assert failures.wait(OTHER, 0.0) == WINDOW
    fails(failures, ONE, 30.0)
    assert failures.wait(OTHER, 30.0) == WINDOW - 30.0
    failures.on_ready()
    assert failures.wait(OTHER, 30.0) <= 0


def test_failures_of_callers_that_are_gone_are_forgotten() -> None:
    failures = InstanceFailures(4)
    for number in range(100):
        fails(failures, Caller("x", SHARED, identity=str(number)), 0.0)
    fails(failures, ONE, FAILURE_TTL + 100.0)
    assert len(failures._records) == 1
