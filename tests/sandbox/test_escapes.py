"""Every escape of the suite, each with its control. `make sandbox` prints the table."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.host.sandbox.kit import needs_namespaces
from tests.sandbox.escapes import ESCAPES, can_be_tried, is_to_be_held
from tests.sandbox.world import MEANS, UNCONFINED, World, open_world

pytestmark = needs_namespaces


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with open_world(tmp_path_factory.mktemp("world")) as made:
        yield made


@pytest.mark.few(6)
@pytest.mark.parametrize("escape", [each for each in ESCAPES if can_be_tried(each)])
def test_it_is_held_by_each_of_the_means_and_without_them_it_succeeds(world: World, escape: str) -> None:
    assert world.run(escape, UNCONFINED) == "out"
    for means in MEANS:
        said = world.run(escape, means)
        if is_to_be_held(escape, means):
            assert said.startswith("held"), (means, said)
