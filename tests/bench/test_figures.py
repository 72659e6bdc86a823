from __future__ import annotations

import pytest

from tests.bench.figures import Check, Sample, Spread, ratios, spread


def sample(processor: float, calls: int, scale: float = 1.0) -> Sample:
    return Sample(processor, calls, errors=0, seconds=1.0, p50=1.0, p99=2.0, scale=scale)


def test_a_spread_has_the_median_and_the_quartiles() -> None:
    assert spread([5.0, 1.0, 2.0, 4.0, 3.0]) == Spread(3.0, 2.0, 4.0)


def test_one_value_is_its_own_spread() -> None:
    assert spread([2.0]) == Spread(2.0, 2.0, 2.0)


def test_a_cost_is_microseconds_for_a_call_on_the_machine_of_the_yardstick() -> None:
    assert sample(0.5, 1000).cost == pytest.approx(500)
    assert sample(0.5, 1000, scale=0.5).cost == pytest.approx(250)


def test_ratios_compare_one_round_with_the_same_round_of_the_other() -> None:
    """A machine that was slow in the second round was slow for both."""
    ours, theirs = [sample(2.0, 1000), sample(4.0, 1000)], [sample(1.0, 1000), sample(2.0, 1000)]
    assert ratios(ours, theirs) == [2.0, 2.0]


def test_ratios_end_with_the_rounds_that_both_have() -> None:
    assert ratios([sample(2.0, 1000)], [sample(1.0, 500), sample(9.0, 1)]) == [1.0]


def test_what_a_call_costs_more_than_another_is_compared_too() -> None:
    assert ratios([sample(5.0, 1000)], [sample(1.0, 1000)], [sample(3.0, 1000)]) == pytest.approx([2.0])


def test_a_check_holds_up_to_its_limit() -> None:
    assert Check("cheap", 7.0, spread([7.0])).holds
    assert not Check("cheap", 7.0, spread([7.01])).holds
    assert Check("cheap", 7.0, spread([45.678])).line.split() == ["FAILS", "45.7", "cheap"]
    assert Check("cheaper", 0.1, spread([0.5])).line.split() == ["FAILS", "1/2", "cheaper"]


def test_a_check_fails_if_the_better_quartile_is_over_its_limit() -> None:
    close = Check("cheap", 7.0, Spread(7.1, 7.0, 7.2))
    assert (close.holds, close.fails, close.line.split()[0]) == (False, False, "close")
    missed = Check("cheap", 7.0, Spread(7.1, 7.01, 7.2))
    assert (missed.holds, missed.fails, missed.line.split()[0]) == (False, True, "FAILS")


def test_a_check_without_a_measurement_fails() -> None:
    check = Check("cheap", 7.0, None)
    assert not check.holds
    assert check.fails
    assert "not measured" in check.line
