"""Every escape, each with its control, with the sets of means that programs are started with. `make sandbox` prints the
table, with each means alone and with all but each, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from _pytest.mark.structures import ParameterSet

from config.sandbox import Means
from host.wire.process import open_keeper
from tests.kit.kernel import NOT_HERE
from tests.sandbox.escapes import ESCAPES, MAY_BE_REFUSED, NOT_PROMISED_WITHOUT_NAMESPACES, can_be_tried
from tests.sandbox.means import BY_THE_KEEPER, NAMESPACES, REAL, SETS, Set, source_with
from tests.sandbox.stated import state_with
from tests.sandbox.world import NOT_STARTED, World, open_world

pytestmark = pytest.mark.disk


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("world")) as made:
        yield made


def _if_had(each: Set) -> ParameterSet:
    return pytest.param(
        each, id=each.label, marks=pytest.mark.skipif(bool(each.lacks()), reason=f"{NOT_HERE}{each.label}")
    )


@pytest.fixture
def control(world: World, escape: str) -> None:
    """The escape succeeds without a sandbox."""
    said = world.run_unconfined(escape)
    if said != "out" and escape in MAY_BE_REFUSED:
        pytest.skip(f"{NOT_HERE}{MAY_BE_REFUSED[escape]}")
    assert said == "out"


@pytest.mark.few(6)
@pytest.mark.usefixtures("control")
@pytest.mark.parametrize("escape", [each for each in ESCAPES if can_be_tried(each)])
async def test_it_is_held_by_the_means_in_force_and_without_them_it_succeeds(
    world: World, escape: str, tmp_path: Path
) -> None:
    for each in REAL:
        if each.lacks():
            continue
        with source_with(each.means, tmp_path / each.label):
            async with open_keeper() as keeper:
                said = await world.run(keeper, escape, each.accept)
        if escape in each.promises() or escape in BY_THE_KEEPER:
            assert said.startswith("held"), (each.label, said)


@pytest.mark.parametrize("each", [_if_had(each) for each in REAL])
async def test_what_is_permitted_is_reached_past_the_names(world: World, each: Set, tmp_path: Path) -> None:
    """Also by the proxy. Other means than namespaces of our own know no names, so nothing is started."""
    with source_with(each.means, tmp_path):
        async with open_keeper() as keeper:
            said = await world.run(keeper, "what_is_permitted", each.accept)
    assert said == "out" if NAMESPACES in each.means else said.startswith(NOT_STARTED)


@pytest.mark.parametrize("each", REAL, ids=[each.label for each in REAL])
def test_each_escape_is_promised_to_be_held(each: Set) -> None:
    """But for those of which it is said why they are not."""
    promised = {*each.promises(), *BY_THE_KEEPER}
    assert {escape for escape in ESCAPES if escape not in promised} == (
        set() if each.is_separate else set(NOT_PROMISED_WITHOUT_NAMESPACES)
    )


def test_every_promise_is_about_an_escape() -> None:
    assert {escape for each in SETS for escape in each.promises()} <= set(ESCAPES)


@pytest.mark.parametrize("accept", Means)
async def test_means_that_are_not_to_be_had_are_why_a_program_does_not_start(tmp_path: Path, accept: Means) -> None:
    said, is_as_stated = await state_with(tmp_path, accept)
    assert is_as_stated, said
