from __future__ import annotations

import subprocess
from contextlib import ExitStack
from dataclasses import replace

import pytest

from tests.bench.against import OURS, Pair, checkout, in_turns, lanes_of
from tests.bench.build import NotInstalled
from tests.bench.contenders import COMPARED, CONDITIONED, SKETCH, of_checkout
from tests.bench.lanes import EXAMINED, SECTIONS
from tests.bench.rounds import Bench

LANES = [lane for section in SECTIONS for lane in section.lanes]


def test_a_pair_fails_if_the_better_quartile_of_its_ratio_is_over_the_limit() -> None:
    close = Pair("plain", 1.03, ratios=[1.02, 1.04, 1.05])
    assert (close.fails, close.line.split()[:4]) == (False, ["close", "1.030", "1.040", "1.045"])
    assert Pair("plain", 1.03, ratios=[1.04, 1.04, 1.05]).fails
    assert not Pair("plain", 1.05, ratios=[1.04, 1.04, 1.05]).fails


def test_a_wrong_answer_of_ours_fails_and_a_lane_that_the_other_lacks_is_told() -> None:
    assert Pair("plain", 1.03, errors=2).fails
    lacks = Pair("plain", 1.03, missing="the other commit: unknown key")
    assert (lacks.fails, lacks.line) == (False, "left out  plain: the other commit: unknown key")


def test_each_side_has_the_same_places_in_two_rounds() -> None:
    one, other = LANES[0], LANES[1]
    rounds = [in_turns(number, [one, other]) for number in (0, 1)]
    assert rounds == [[one, other, other, one], [other, one, one, other]]


def test_every_lane_of_colonnade_is_compared_once() -> None:
    compared = lanes_of(SECTIONS, quick=False).values()
    cells = [(lane.contender, replace(lane.upstream, copy=0), lane.calls) for lane in compared]
    assert len(set(cells)) == len(cells)
    assert {lane.contender for lane in compared} == set(COMPARED)


def test_a_quick_comparison_has_what_limits_hold_for_and_what_is_examined() -> None:
    quick = lanes_of(SECTIONS, quick=True).values()
    limits = [limit for section in SECTIONS for limit in section.limits]
    expected = {limit.lane for limit in limits if limit.lane.contender in COMPARED}
    assert {lane.name for lane in expected} <= {lane.name for lane in quick}
    examined = {lane for section in SECTIONS if section.title == EXAMINED for lane in section.lanes}
    assert examined <= set(quick)
    assert {lane.against for lane in quick} == {1.03, 1.05}
    assert SKETCH not in {lane.contender for lane in quick}


@pytest.mark.slow
def test_a_commit_runs_its_own_source_also_in_isolated_workers() -> None:
    python, script = checkout("HEAD")
    found = subprocess.run(
        [python, "-I", "-c", "import host; print(host.__file__)"], capture_output=True, text=True, check=True
    )
    assert found.stdout.strip() == script.replace("colonnade.py", "tree/host/__init__.py")
    subprocess.run([python, script, "--version"], check=True)


@pytest.mark.slow
def test_a_commit_that_is_not_there_is_said() -> None:
    with pytest.raises(NotInstalled):
        checkout("no-such-commit")


@pytest.mark.slow
@pytest.mark.parametrize(("argument", "passes"), [(100 * 1024, True), (0, False)])
def test_the_condition_judges_the_large_argument(argument: int, passes: bool) -> None:
    lane = next(lane for lane in LANES if lane.contender == CONDITIONED)
    lane = replace(lane, calls=replace(lane.calls, argument=argument), contender=of_checkout(CONDITIONED, OURS, 1))
    with ExitStack() as stack:
        bench = Bench(stack)
        load = bench.load(lane, stack)
        _, run = bench.run(lane, load, 0.2)
    assert (run.errors == 0, run.calls > 0) == (passes, passes)
