"""Folding of refused attempts."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from host.attempts import (
    LONGEST_NAME,
    MAX_ROWS,
    MAX_ROWS_OF_CALLER,
    MAX_ROWS_OF_STRANGERS,
    SENTENCES,
    Attempt,
    Attempts,
    Reason,
    cut,
)


def attempt(name: str = "gh__x", principal: str = "", address: str = "10.0.0.7", **more: str) -> Attempt:
    return Attempt(Reason(more.pop("reason", "denied")), "tool", name, address, principal, **more)


def test_equal_attempts_are_one_row_with_their_number_and_the_first_time() -> None:
    attempts = Attempts()
    assert not attempts
    for now in (5.0, 6.0, 7.0):
        attempts.add(attempt(), now)
    attempts.add(attempt(client="another"), 8.0)
    assert attempts.fresh == [attempt(), attempt(client="another")]
    assert attempts.take() == ([(attempt(), 3, 5.0), (attempt(client="another"), 1, 8.0)], {})
    assert not attempts
    assert attempts.take() == ([], {})


@pytest.mark.parametrize(
    ("made", "rows"),
    [
        ([attempt(str(n)) for n in range(1000)], MAX_ROWS_OF_CALLER),
        ([attempt(str(n), "laptop", f"10.0.0.{n % 9}") for n in range(1000)], MAX_ROWS_OF_CALLER),
        ([attempt(address=str(n)) for n in range(1000)], MAX_ROWS),
        ([attempt(address=str(n), reason="wrong token") for n in range(1000)], MAX_ROWS_OF_STRANGERS),
    ],
    ids=["one address", "one token", "many addresses", "strangers"],
)
def test_rows_are_bounded_and_the_others_counted(made: list[Attempt], rows: int) -> None:
    attempts = Attempts()
    for each in made:
        attempts.add(each, 0.0)
    found, others = attempts.take()
    assert len(found) == rows
    assert others == {made[0].reason.value: 1000 - rows}


def test_strangers_take_no_place_of_callers_and_the_other_way_round() -> None:
    attempts = Attempts()
    for n in range(1000):
        attempts.add(attempt(address=str(n), reason="no token"), 0.0)
    for n in range(1000):
        attempts.add(attempt(address=str(n)), 0.0)
    attempts.take()
    for n in range(1000):
        attempts.add(attempt(address=str(n)), 0.0)
    attempts.add(attempt(reason="no token"), 0.0)
    found, others = attempts.take()
    assert len(found) == MAX_ROWS + 1
    assert others == {"denied": 1000 - MAX_ROWS}


def test_no_attempt_is_lost() -> None:
    """Whatever comes in whatever order: each is in a row or among the others of its reason."""
    random.seed(1)
    attempts, made = Attempts(), Counter[str]()
    for _ in range(20_000):
        reason = random.choice(list(Reason))
        attempts.add(attempt(str(random.randrange(50)), random.choice(["", "a", "b"]), reason=reason.value), 0.0)
        made[reason.value] += 1
    found, others = attempts.take()
    told = Counter(others)
    for each, times, _ in found:
        told[each.reason.value] += times
    assert told == made
    assert len(found) <= MAX_ROWS + MAX_ROWS_OF_STRANGERS


def test_a_long_name_is_cut_and_is_no_short_one() -> None:
    assert cut("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    assert len(cut("x" * 4_000_000)) < LONGEST_NAME + 40
    assert len({cut("x" * LONGEST_NAME), cut("x" * (LONGEST_NAME + 1)), cut("x" * (LONGEST_NAME + 2))}) == 3


def test_each_reason_has_words() -> None:
    assert set(SENTENCES) == set(Reason)
