"""The plan of the benchmark: that it is complete, and that it ends in time."""

from __future__ import annotations

from collections.abc import Sequence

from tests.bench.contenders import (
    COLONNADES,
    FASTMCP_TUNED,
    HTTP,
    MCP_PROXY_DEFAULT,
    SEARCHED,
    SKETCH,
    STDIO,
)
from tests.bench.lanes import DECIDING, ERAS, QUICK, SECTIONS, Section
from tests.bench.rounds import SETTLE

BESIDE = 0.15
"""Seconds besides each sample: two yardsticks and the reading of processor times on a busy machine."""
READY = 60.0
"""Seconds in which everything is started and installed."""


def minutes(sections: Sequence[Section]) -> float:
    each = [lane.rounds * (lane.seconds + SETTLE + BESIDE) for section in sections for lane in section.lanes]
    return (sum(each) + READY) / 60


def quick_sections() -> list[Section]:
    return [quick for section in SECTIONS if (quick := section.quick()) is not None]


def test_a_run_ends_in_time() -> None:
    assert minutes(SECTIONS) < 25
    assert minutes(quick_sections()) < 5


def test_no_lane_stands_for_two() -> None:
    for section in SECTIONS:
        assert len(set(section.lanes)) == len(section.lanes)
        assert len({lane.name for lane in section.lanes}) == len(section.lanes)


def test_limits_compare_lanes_of_their_section_in_as_many_rounds() -> None:
    for section in [*SECTIONS, *quick_sections()]:
        for limit in section.limits:
            assert set(limit.lanes) <= set(section.lanes)
            assert len({lane.rounds for lane in limit.lanes}) == 1


def test_a_quick_run_decides_the_same_limits() -> None:
    full = [limit.sentence for section in SECTIONS for limit in section.limits]
    assert [limit.sentence for section in quick_sections() for limit in section.limits] == full
    assert {lane.rounds for section in quick_sections() for lane in section.lanes} == {QUICK}


def test_every_colonnade_stands_before_every_kind_of_server() -> None:
    lanes = [lane for section in SECTIONS for lane in section.lanes if lane.calls.connections == 16]
    seen = {(lane.contender, lane.upstream.transport, lane.calls.era, lane.upstream.era) for lane in lanes}
    for transport in (HTTP, STDIO):
        for contender in COLONNADES:
            for client in ERAS:
                for server in ERAS:
                    assert (contender, transport, client, server) in seen


def test_the_limits_are_held_against_the_sketch_and_the_peers() -> None:
    bases = {limit.base.contender for section in SECTIONS for limit in section.limits}
    assert bases == {SKETCH, COLONNADES[0], FASTMCP_TUNED, MCP_PROXY_DEFAULT, SEARCHED}
    assert {lane.rounds for section in SECTIONS for limit in section.limits for lane in limit.lanes} == {DECIDING}
