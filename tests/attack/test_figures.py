"""The judge of the attacks: what it computes, and that each criterion can fail."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from .figures import HEADER, MIB, Calls, Memory, Outcome, Passes, percentile, read_passes, row, summary, verdict

STEADY = [0.004] * 950 + [0.010] * 50
SOUND = Outcome(
    "sound",
    1000,
    alone=Calls(STEADY),
    elsewhere=Calls(STEADY),
    beside=Calls([0.010] * 950 + [0.030] * 50),
    passes=Passes(0.1, 1000, 2.0),
    memory=Memory(60 * MIB, 395 * MIB, 100 * MIB),
)
"""Exactly at every limit."""


@given(st.lists(st.floats(0, 60), min_size=1, max_size=300), st.sampled_from([0.5, 0.99, 1.0]))
def test_a_percentile_is_the_smallest_value_that_enough_values_do_not_exceed(values: list[float], share: float) -> None:
    found = percentile(values, share)
    assert found in values
    assert sum(value <= found for value in values) >= share * len(values)
    assert sum(value < found for value in values) < share * len(values)


def test_percentiles_of_known_values() -> None:
    assert percentile([float(value) for value in range(1, 1001)], 0.99) == 990
    assert percentile([float(value) for value in range(1, 1001)], 0.50) == 500
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3
    assert math.isnan(percentile([], 0.99))


def test_what_is_at_its_limits_passes() -> None:
    assert SOUND.failures() == []
    assert SOUND.ratio == pytest.approx(3.0)
    assert verdict(SOUND) == "  passed"


@pytest.mark.parametrize(
    ("outcome", "why"),
    [
        (replace(SOUND, exits=["the host has ended with status 1"]), "the host has ended with status 1"),
        (replace(SOUND, crossed=["5 tools that nobody approved"]), "5 tools that nobody approved"),
        (replace(SOUND, broken=["the attack could not be carried out"]), "the attack could not be carried out"),
        (replace(SOUND, tracebacks=1), "1 tracebacks in the log"),
        (replace(SOUND, beside=Calls(STEADY, ["timed out"])), "beside: 1 errors of the good client (timed out)"),
        (replace(SOUND, alone=Calls(STEADY, ["timed out"])), "alone: 1 errors of the good client (timed out)"),
        (replace(SOUND, beside=Calls([0.0301] * 1000)), "p99 is 3.0 times that beside busy processes, at most 3"),
        (replace(SOUND, beside=Calls(STEADY[:899])), "beside: only 899 of 1000 calls were due"),
        (replace(SOUND, passes=Passes(0.1001)), "a pass of the loop took 100.1 ms, at most 100.0"),
        (replace(SOUND, memory=Memory(60 * MIB, 396 * MIB, 60 * MIB)), "memory: peak 396 MiB, at most 395 MiB"),
        (replace(SOUND, memory=Memory(60 * MIB, 60 * MIB, 101 * MIB)), "memory: 101 MiB after the attack, 60 MiB"),
        (replace(SOUND, memory=Memory(200 * MIB, 300 * MIB, 261 * MIB)), "memory: 261 MiB after the attack, 200 MiB"),
    ],
)
def test_each_criterion_fails_just_beyond_its_limit(outcome: Outcome, why: str) -> None:
    (failure,) = outcome.failures()
    assert failure.startswith(why)
    assert verdict(outcome).startswith("  FAILED")
    assert summary([SOUND, outcome]) == "1 passed, 1 failed"


def test_a_client_without_a_single_answer_fails() -> None:
    """A ratio that is no number is not taken for a good one."""
    assert replace(SOUND, beside=Calls([])).failures() != []


def test_only_timing_is_measured_again() -> None:
    assert replace(SOUND, passes=Passes(0.2)).timing_failures() != []
    assert replace(SOUND, crossed=["crossed"], exits=["ended"], broken=["broken"], tracebacks=1).timing_failures() == []
    assert replace(SOUND, beside=Calls(STEADY, ["timed out"])).timing_failures() == []


def test_a_second_measurement_is_said_to_be_one() -> None:
    assert "second measurement" in verdict(replace(SOUND, again=True))
    assert "second measurement" in verdict(replace(SOUND, again=True, tracebacks=1))


@pytest.mark.parametrize(
    ("lines", "passes"),
    [
        ([], Passes()),
        (["9.9 0.5", "20.1 0.7"], Passes()),
        (["10.0 0.02", "15.0 0.3", "20.0 0.04"], Passes(0.3)),
        (["10.5 1.0 100", "11.0 0.05", "12.0 1.5 600", "25.0 9.0 900"], Passes(0.05, 500, 0.5)),
        (["15.0 0.02", "16.0"], Passes(0.02)),  # the last line is being written
    ],
)
def test_passes_of_a_span_of_time(lines: Sequence[str], passes: Passes) -> None:
    assert read_passes(lines, 10.0, 20.0) == passes


def test_the_row_fits_its_header() -> None:
    bare = Outcome("boundary", 100, beside=Calls(STEADY), crossed=["crossed"])
    lines = HEADER.splitlines()[-1], row(SOUND), row(bare), row(replace(SOUND, exits=["status 1"]))
    assert len({len(line) for line in lines}) == 1
    assert row(SOUND).split() == [
        *("sound", "4.0", "10.0", "4.0", "10.0", "10.0", "30.0", "3.0", "100.0", "60", "395", "100", "0/0/0", "alive"),
    ]
