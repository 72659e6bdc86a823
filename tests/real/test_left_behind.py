"""A few rounds of what `make left-behind` plays many of, and a host that it must not be content with."""

from __future__ import annotations

import sys
from pathlib import Path

from tests.kit.kernel import needs_namespaces

from .left_behind import BY_KILL, BY_STOPPED_KILL, BY_TERM, KILLS, files_left, play, play_all, stand_in, summary

CARELESS = """
import json, subprocess, sys, threading
from host.wire.keeper import become_subreaper

become_subreaper()  # and then reaps nothing
for id, server in json.load(open(sys.argv[2]))["servers"].items():
    subprocess.Popen(server["command"], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    print(id, "ready", flush=True)
threading.Event().wait()
"""


async def test_the_host_leaves_no_process_behind() -> None:
    rounds = await play_all([BY_TERM, *KILLS], at_once=2)
    assert [problem for outcome in rounds for problem in outcome.problems()] == [], summary(rounds)


@needs_namespaces
async def test_the_host_leaves_nothing_of_confined_servers_behind() -> None:
    rounds = await play_all([BY_TERM, BY_KILL, BY_STOPPED_KILL], at_once=2, confined=True)
    assert [problem for outcome in rounds for problem in outcome.problems()] == [], summary(rounds)


async def test_the_host_leaves_no_container_behind() -> None:
    with stand_in() as clients:
        rounds = await play_all([BY_TERM, BY_KILL, BY_STOPPED_KILL], at_once=2, clients=clients)
    assert [problem for outcome in rounds for problem in outcome.problems()] == [], summary(rounds)


def test_a_place_of_a_mount_that_stays_is_found(tmp_path: Path) -> None:
    (place := tmp_path / "state" / "configs" / "c" / "sandbox" / "a" / "root" / "usr").mkdir(parents=True)
    assert files_left(str(tmp_path)) == [str(place)]


async def test_a_careless_host_is_found_out() -> None:
    outcome = await play(BY_TERM, [sys.executable, "-c", CARELESS])
    assert len(outcome.left) >= 3  # the stubborn one, and what two of them forked
    assert outcome.zombies > 0
    assert outcome.status != 0
    assert len(outcome.problems()) == len(outcome.left) + 2
