"""What passes means to other readers what was judged, in a small number of random messages. `make readers` has a
hundred thousand of each direction, and the originals of readers that are modelled here."""

from __future__ import annotations

from random import Random

import pytest

from tests.readers.messages import a_message, is_ambiguous
from tests.readers.readers import MODELS, exact
from tests.readers.run import conditions, messages

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("direction", ["client", "server"])
def test_messages_that_pass_are_read_as_they_were_judged(direction: str) -> None:
    tally = messages(Random(1), direction, 3_000, MODELS)
    assert tally.wrong == 0, tally
    assert min(tally["passed"], tally["refused"]) > 300


@pytest.mark.parametrize("direction", ["client", "server"])
def test_without_the_check_every_reader_finds_some_that_are_not(direction: str) -> None:
    tally = messages(Random(1), direction, 1_000, MODELS, looks=False)
    for name in MODELS:
        assert tally[f"read otherwise by {name}"] > 5, tally


def test_conditions_on_numbers_are_decided_as_readers_decide() -> None:
    tally = conditions(Random(1), 5_000, None)
    assert tally.wrong == 0, tally
    assert min(tally["decided"], tally["unknown"]) > 500


def test_without_the_check_readers_decide_otherwise() -> None:
    assert conditions(Random(1), 2_000, None, looks=False)["read otherwise by decimal"] > 5


def test_the_exact_reader_takes_no_other_name() -> None:
    assert exact([b'{"name":"a","Name":"b","uri\\u0000":"c"}'])[0] == ["a", *[None] * 14]
    message = a_message(Random(1), "client")
    assert isinstance(is_ambiguous(message), bool)
