"""The growth of a host over many calls while its table of sessions is full.

    .venv/bin/python -m tests.bench.growth [--calls 300000]

Sessions that nobody ends fill the table first, so each new one displaces another. Then sixteen connections call; after
each tenth of the calls, a hundred sessions are opened. It prints the memory of the host after each tenth, and exits
with 1 if it grew by more than GROWTH in the second half of the calls.
"""

from __future__ import annotations

import argparse
import sys
from contextlib import ExitStack

from tests.bench.contenders import HTTP, Upstream
from tests.bench.lanes import COLONNADE, KIB, Calls, Lane
from tests.bench.processes import pause
from tests.bench.rounds import Bench
from tests.real.running import memory_of

SESSIONS = 1000
"""The table of a host with the defaults (`capacity`)."""
GROWTH = 2 * KIB
"""KiB in half of the calls: what the heap of a C library gains and gives back between two samples."""
TENTHS = 10
STEP = 5.0
"""Seconds of calls between two looks at how many there were."""
REST = 3.0
"""Seconds in which a host gives back what it does not use any more."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.growth")
    parser.add_argument("--calls", type=int, default=300_000)
    most = parser.parse_args().calls
    lane = Lane(COLONNADE, Upstream(HTTP), Calls())
    opening = Lane(COLONNADE, Upstream(HTTP), Calls(connections=100))
    sizes: list[float] = []
    with ExitStack() as stack:
        bench = Bench(stack)
        host = bench.proxy(lane.contender, lane.upstream).pid
        load = bench.load(lane, stack)
        calls = errors = 0
        for tenth in range(1, TENTHS + 1):
            for _ in range(SESSIONS // 100 if tenth == 1 else 1):
                with ExitStack() as opened:  # its clients leave without a word, so their sessions stay
                    bench.load(opening, opened)
            while calls < most * tenth / TENTHS:
                run = load.run(STEP)
                calls, errors = calls + run.calls, errors + run.errors
            pause(REST)
            sizes.append(memory_of(host, "RssAnon") / KIB)
            print(f"{calls:>7} calls, {errors} wrong answers, {sizes[-1]:>8,.0f} KiB", flush=True)
    grown = sizes[-1] - sizes[TENTHS // 2 - 1]
    print(f"{grown:+,.0f} KiB in the second half of the calls, at most {GROWTH:,}")
    return int(grown > GROWTH or errors > 0)


if __name__ == "__main__":
    sys.exit(main())
