"""Numbers that every reader takes for the same one."""

from __future__ import annotations

import json
from decimal import Decimal
from math import inf

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.jsonrpc.numbers import compare, is_comparable, is_exact, read_float


@pytest.mark.parametrize(
    "text",
    [
        "0.1",
        "-0.0",
        "0e5",
        "1.50",
        "1E5",
        "1e-28",
        "1e22",
        "1e300",
        "2.5e3",
        "9007199254740992.0",
        "0.30000000000000004",
    ],
)
def test_a_number_that_all_readers_hold(text: str) -> None:
    assert is_comparable(read_float(text))
    assert read_float(text) == float(text)


@pytest.mark.parametrize(
    "text",
    [
        "0.10000000000000001",  # a float takes it for 0.1
        "0.1000000000000000055511151231257827021181583404541015625",  # what a float makes of 0.1
        "9007199254740993.0",
        "1e-400",  # a float takes it for 0
        "1e400",
        "1e-99999999999999999999",
        "0e99999999999999999999",
        "1e-29",  # .NET takes it for 0
        "0." + "1" * 29,
        "0.1" + "0" * 80,  # cut by some
    ],
)
def test_a_number_that_readers_round_differently(text: str) -> None:
    assert not is_comparable(read_float(text))


def test_integers_are_exact_as_far_as_floats_tell_them_apart() -> None:
    assert [is_exact(each) for each in (0, 2**53, -(2**53), 2**53 + 1, -(2**53) - 1, 10**20)] == [
        *(True, True, True, False, False, False)
    ]


@pytest.mark.parametrize(
    ("one", "other", "order"),
    [
        (0.1, 0.1, 0),
        (read_float("1e23"), 10**23, None),  # less for a float, equal for a decimal number
        (read_float("1e23"), 99999999999999991611392, None),
        (5, 2**53 + 1, -1),
        (2**53, 2**53 + 1, None),  # the same number for a float
        (5, 10**400, None),
        (7, 5, 1),
    ],
)
def test_a_bound_that_a_float_rounds_counts_if_all_readers_agree(one: float, other: float, order: int | None) -> None:
    assert compare(one, other) == order


@given(st.floats(allow_nan=False, allow_infinity=False), st.floats(allow_nan=False, allow_infinity=False))
def test_floats_as_programs_write_them_are_in_the_same_order_for_decimal_readers(one: float, other: float) -> None:
    decimal = (Decimal(repr(one)) > Decimal(repr(other))) - (Decimal(repr(one)) < Decimal(repr(other)))
    assert compare(one, other) == decimal
    assert is_exact(read_float(json.dumps(one))) == (is_exact(one) and one not in (inf, -inf))
