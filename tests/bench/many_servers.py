"""Starts of a host with many servers: its processor time, the longest pass of its loop, and its peak of memory.

    .venv/bin/python -m tests.bench.many_servers [--servers 200] [--rounds 3]

A round begins with an empty state directory and has two starts: one that sees each definition for the first time, and
one that remembers all. A start lasts until the host rests: the first answers for relays are written by then. Times are
scaled by the median of the yardstick in each second of it. The least value of all rounds counts, since whatever else
the machine does only adds to it. It exits with 1 if one is over its limit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from tests.attack.figures import read_passes
from tests.bench.build import HERE, made
from tests.bench.contenders import HANDSHAKE, HTTP
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.bench.processes import pause, serving
from tests.kit.processes import processor_time
from tests.real.running import memory_of

TOOLS = 50
"""Of each server."""
RESTING = 5
"""Seconds with hardly any processor time after which a host rests: more than it waits for lists to settle."""
HARDLY = 0.04
"""Seconds of processor time in one second: 1,000 sessions and streams of servers need some."""
LONGEST = 180
"""Seconds after which a start counts as it is."""
MIB = 1024 * 1024


class Cost(NamedTuple):
    """What one start took; seconds are of processor time, and scaled."""

    processor: float
    longest_pass: float
    memory: float


MOST = Cost(processor=5.0, longest_pass=0.020, memory=130 * MIB)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.many_servers")
    parser.add_argument("--servers", type=int, default=200)
    parser.add_argument("--rounds", type=int, default=3)
    given = parser.parse_args()
    found: dict[str, list[Cost]] = {"first start": [], "later start": []}
    with tempfile.TemporaryDirectory(prefix="colonnade-bench-") as name:
        (servers := Path(name) / "servers").mkdir()
        with serving([*made("upstream"), HANDSHAKE, HTTP, str(TOOLS)], servers) as upstream:
            for number in range(given.rounds):
                (folder := Path(name) / str(number)).mkdir()
                file = folder / "colonnade.yaml"
                urls = {f"s{server}": {"url": upstream.url} for server in range(given.servers)}
                file.write_text(json.dumps({"listen": {"address": "127.0.0.1:0"}, "servers": urls}))
                for start, costs in found.items():
                    costs.append(_start(file, folder / start.replace(" ", "-")))
                    print(f"{start}: {_shown(costs[-1])}", flush=True)
    exceeded = False
    for start, costs in found.items():
        least = Cost(*map(min, zip(*costs, strict=True)))
        exceeded |= any(value > most for value, most in zip(least, MOST, strict=True))
        print(f"least of each {start}: {_shown(least)}")
    print(f"at most: {_shown(MOST)}")
    return int(exceeded)


def _shown(cost: Cost) -> str:
    return f"{cost.processor:.2f} s, longest pass {cost.longest_pass * 1000:.1f} ms, {cost.memory / MIB:.1f} MiB"


def _start(file: Path, passes: Path) -> Cost:
    with _host(file, passes) as pid:
        scale = REFERENCE / statistics.median(_seconds_until_it_rests(pid))
        processor, memory = processor_time(pid), memory_of(pid, "VmHWM")
        longest = read_passes(passes.read_text().splitlines(), 0, time.monotonic()).longest
    return Cost(processor * scale, longest * scale, memory)


@contextmanager
def _host(file: Path, passes: Path) -> Iterator[int]:
    root = HERE.parents[1]
    host = subprocess.Popen(
        [sys.executable, "-m", "tests.attack.measured_host", str(passes), "serve", str(file)],
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        cwd=root,
        env={**os.environ, "COLONNADE_STATE": str(file.parent / "state"), "PYTHONPATH": str(root)},
    )
    try:
        yield host.pid
    finally:
        host.communicate()  # the end of its input ends it


def _seconds_until_it_rests(pid: int) -> Iterator[float]:
    """The yardstick in each second until then."""
    used, quiet = 0.0, 0
    for _ in range(LONGEST):
        pause(1.0)
        yield yardstick()
        before, used = used, processor_time(pid)
        quiet = quiet + 1 if used - before < HARDLY else 0
        if quiet == RESTING:
            return


if __name__ == "__main__":
    sys.exit(main())
