"""Runs processes that end, come back and serve together, with clients that must not notice: `make replicas`.

    .venv/bin/python -m tests.replicas [restarts …] [--size 1] [--seed N]

Exits with 1 if a call was carried out twice, or without consent; if a session was not known any more; if a call was
lost that was not in flight at a process that was killed; or if anything else came amiss. Exits with 2 if only what a
machine without a processor explains as well came amiss, twice. What each scenario does is said in its file. Real clock,
real processes, real sockets.
"""

from __future__ import annotations

import argparse
import math
import random
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import trio

from .book import MOST_SHOWN, Book
from .engine import engine
from .fleet import missing
from .kills import kills
from .logins import logins
from .programs import programs
from .questions import questions
from .restarts import restarts
from .rollout import rollout

SCENARIOS: dict[str, Callable[[float, int, Path], Awaitable[Book]]] = {
    "restarts": restarts,
    "kills": kills,
    "rollout": rollout,
    "engine": engine,
    "logins": logins,
    "programs": programs,
    "questions": questions,
}
"""Each takes its size, of which 1 is the whole, the seed, and a folder of its own."""


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.replicas")
    parser.add_argument("scenarios", nargs="*", metavar="SCENARIO", help=f"of {', '.join(SCENARIOS)}; all by default")
    parser.add_argument("--size", type=float, default=1.0, help="1 is the whole size, 0.1 a tenth")
    parser.add_argument("--seed", type=int, default=random.randrange(10**6))
    arguments = parser.parse_args()
    if unknown := set(arguments.scenarios) - SCENARIOS.keys():
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    problems = doubts = 0
    for name in arguments.scenarios or SCENARIOS:
        if name != "restarts" and (what := missing()):
            print(f"{name}: left out, since {what} cannot be found here", flush=True)
            continue
        began = time.monotonic()
        print(f"{name}, size {arguments.size:g}, seed {arguments.seed}", flush=True)
        with tempfile.TemporaryDirectory(prefix="replicas-") as folder:
            book = trio.run(SCENARIOS[name], arguments.size, arguments.seed, Path(folder))
        book.settle(lambda begun, ended: 0.0, math.inf)
        _show(name, book, time.monotonic() - began)
        problems += book.count["problems"]
        doubts += len(book.inconclusive)
    return 1 if problems else 2 if doubts else 0


def _show(name: str, book: Book, seconds: float) -> None:
    ends = ", ".join(f"{count} {end}" for end, count in book.ends().items() if count)
    print(f"{name}: {len(book.outages)} restarts, {len(book.attempts)} calls: {ends}; {seconds:.0f} s")
    for what, count in sorted(book.count.items()):
        print(f"  {what}: {count}")
    for problem in book.problems:
        print(f"  {problem}")
    for doubt in book.inconclusive[:MOST_SHOWN]:
        print(f"  inconclusive: the machine gave {doubt.text}")


if __name__ == "__main__":
    sys.exit(main())
