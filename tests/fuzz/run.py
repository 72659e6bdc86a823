"""`make fuzz MINUTES=10`: half of the time for mutated connections, half for searching in the parsers.

Prints a line for each part and `N passed, N failed` at the end; the exit status is 1 if a promise was broken. 200,000
requests and as many responses are compared with h11, whatever the time. Ten minutes are meant for at least 200,000
connections; a shorter run tries fewer.
"""

from __future__ import annotations

import argparse
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import SystemRandom

from tests.fuzz import requests, responses
from tests.fuzz.connections import Outcome, attack_http, attack_stdio
from tests.fuzz.explore import CORPUS, explore, seeds
from tests.fuzz.responses import Compared

CONNECTIONS_A_MINUTE = 20_000
LINES_A_MINUTE = 20_000
COMPARED = 200_000
"""Requests, and responses, that are compared with h11, whatever the time: less than a minute for each."""
CORES = 2


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=SystemRandom().getrandbits(32))
    parser.add_argument("--first", type=int, default=0, help="the number of the first connection")
    parser.add_argument("--connections", type=int, help="so many connections, and nothing else")
    parser.add_argument("--http2", action="store_true", help="to the address of HTTP/2")
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}", flush=True)
    if arguments.connections is not None:
        return _judge(
            [
                _told(
                    "http",
                    attack_http(arguments.connections, 3600, arguments.seed, arguments.first, http2=arguments.http2),
                )
            ]
        )
    seconds = arguments.minutes * 60
    began = time.monotonic()
    contradictions = requests.compare_many(COMPARED, arguments.seed, [*seeds("request"), *seeds("http")])
    passed = [
        _told("requests", Outcome(COMPARED, time.monotonic() - began, contradictions[:5])),
        _told("responses", responses.compare_many(COMPARED, arguments.seed)),
    ]
    wanted = int(CONNECTIONS_A_MINUTE * arguments.minutes)
    lines = int(LINES_A_MINUTE * arguments.minutes)
    passed += [
        *(
            _told(name, attack_http(wanted // 2, seconds / 2, arguments.seed, arguments.first, http2=name == "http/2"))
            for name in ("http/1.1", "http/2")
        ),
        _told("stdio", attack_stdio(lines, seconds / 10, arguments.seed)),
    ]
    targets = sorted(folder.name for folder in CORPUS.iterdir() if folder.name != "http")
    each = max(5, int(seconds / 2 * CORES / len(targets)))
    with ThreadPoolExecutor(CORES) as pool:
        for target, (held, tried) in zip(targets, pool.map(partial(explore, seconds=each), targets), strict=True):
            print(
                f"{target:12} {tried:9,} inputs in {each} s: {'held' if held else 'BROKEN, see build/fuzz'}", flush=True
            )
            passed.append(held)
    return _judge(passed)


def _told(name: str, outcome: Outcome | Compared) -> bool:
    print(f"{name:14} {outcome.tried:9,} inputs in {outcome.seconds:.0f} s: {'BROKEN' if outcome.faults else 'held'}")
    for fault in outcome.faults:
        print(f"  {fault}")
    sys.stdout.flush()
    return not outcome.faults


def _judge(passed: list[bool]) -> int:
    print(f"{sum(passed)} passed, {len(passed) - sum(passed)} failed")
    return 0 if all(passed) else 1


if __name__ == "__main__":
    sys.exit(main())
