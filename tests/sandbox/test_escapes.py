"""Every escape of the suite, each with its control. `make sandbox` prints the table."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.kit.kernel import NOT_HERE
from tests.sandbox.escapes import ESCAPES, MAY_BE_REFUSED, can_be_tried, is_to_be_held
from tests.sandbox.stated import state_with
from tests.sandbox.world import LANDLOCK_ALONE, MEANS, UNCONFINED, World, open_world, to_be_had


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.few(6)
@pytest.mark.parametrize("escape", [each for each in ESCAPES if can_be_tried(each)])
def test_it_is_held_by_each_of_the_means_and_without_them_it_succeeds(world: World, escape: str) -> None:
    control = world.run(escape, UNCONFINED)
    if control != "out" and escape in MAY_BE_REFUSED:
        pytest.skip(f"{NOT_HERE}{MAY_BE_REFUSED[escape]}")
    assert control == "out"
    for means in to_be_had():
        said = world.run(escape, means)
        if is_to_be_held(escape, means):
            assert said.startswith("held"), (means, said)


def test_what_is_permitted_is_reached_past_the_names(world: World) -> None:
    """Also by the proxy. Landlock alone knows no names, so nothing is started."""
    for means in to_be_had():
        said = world.run("what_is_permitted", means)
        assert said == ("held: not started, a network of its own" if means == LANDLOCK_ALONE else "out")


@pytest.mark.parametrize("means", MEANS)
async def test_means_that_are_not_to_be_had_are_why_a_program_does_not_start(tmp_path: Path, means: str) -> None:
    said, is_as_stated = await state_with(tmp_path, means)
    assert is_as_stated, said
