"""Additional cost of a call in a host that is watched: metrics, traces of which one in a hundred is sampled, and the
history.

    .venv/bin/python -m tests.bench.telemetry           some half an hour; exit code 1 if a limit does not hold
    ... --quick                                         a third of that
    ... --only metrics                                  those with this word in their name

Metrics are switched on and off in one host (switched.py), since two hosts of one tree differ by some hundredths, which
is more than they cost. Traces and the history also work between the calls: a host with them and two without are called
in turns, as those of two commits are (against.py). Ratios of what does not differ show how exact the others are.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from statistics import mean
from typing import Any

from tests.bench.against import OURS, Pair, in_turns, measure_sides
from tests.bench.build import HERE
from tests.bench.contenders import (
    COLONNADES,
    HANDSHAKE,
    HTTP,
    STATELESS,
    Contender,
    Start,
    Target,
    Upstream,
    of_checkout,
)
from tests.bench.lanes import Calls, Lane
from tests.bench.rounds import WARM, Bench
from tests.bench.switched import OFF, ON
from tests.kit.ports import free_port

SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
METRICS_LIMIT, TRACES_LIMIT, HISTORY_LIMIT = 1.03, 1.04, 1.03
STARTS, ROUNDS, SECONDS = 24, 3, 0.4
"""Starts of each three hosts, rounds of each start, and seconds for which each is called twice in a round."""
QUICK_STARTS = 8
SWITCHED_STARTS, SWITCHED_ROUNDS, SWITCHED_SECONDS = 6, 60, 0.1
"""The same of a host that is switched."""
QUICK_SWITCHED_STARTS = 2
LEAST = 0.3
"""The part of the rounds of such a host that counts, of each state those in which a call cost least: what the machine
does besides, only adds to it."""
SWITCHED = [sys.executable, "-P", str(HERE / "switched.py")]


def watched(contender: Contender, keys: Mapping[str, Any], environment: Mapping[str, str]) -> Contender:
    """The same with these keys of the configuration, and an address for metrics if they are among them."""

    def start(target: Target, folder: Path) -> Start:
        start = contender.start(target, folder)
        file = folder / "colonnade.yaml"
        written = json.loads(file.read_text())
        if "metrics" in keys:
            written["listen"]["metrics"] = f"127.0.0.1:{free_port()}"
        file.write_text(json.dumps({**written, **keys}))
        return replace(start, environment={**start.environment, **environment})

    return replace(contender, start=start)


@contextmanager
def collector() -> Iterator[str]:
    """The URL of one that takes everything and keeps nothing."""

    class Taking(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.send_header("content-length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with ThreadingHTTPServer(("127.0.0.1", 0), Taking) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def measure_switched(name: str, lane: Lane, starts: int) -> Pair:
    """All starts of a lane whose host is called while metrics are on, while they are off, and once more while they are
    off; a ratio for each start.

    Raises:
        RuntimeError: the host does not serve.
    """
    found: list[float] = []
    control: list[float] = []
    states = {"on": ON, "off": OFF, "still off": OFF}
    for number in range(starts):
        with ExitStack() as stack:
            bench = Bench(stack)
            started = replace(lane, contender=of_checkout(lane.contender, SWITCHED, number))
            load = bench.load(started, stack)
            pid = bench.proxy(started.contender, started.upstream).pid
            load.run(WARM)
            costs: dict[str, list[float]] = {each: [] for each in states}
            for turn in range(SWITCHED_ROUNDS):
                for each in in_turns(turn, list(states)):
                    os.kill(pid, states[each])
                    processor, run = bench.run(started, load, SWITCHED_SECONDS)
                    if run.errors:
                        return Pair(name, lane.against, errors=run.errors)
                    costs[each].append(processor / run.calls)
        on, off, still_off = (mean(sorted(each)[: int(len(each) * LEAST)]) for each in costs.values())
        found.append(on / mean([off, still_off]))
        control.append(still_off / off)
    return Pair(name, lane.against, found, control=control)


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    failed = 0
    with collector() as url:
        sent = {**SAMPLER, "OTEL_EXPORTER_OTLP_ENDPOINT": url}
        ways: dict[str, tuple[float, dict[str, Any], dict[str, str]]] = {
            "metrics": (METRICS_LIMIT, {"metrics": {}}, {}),
            "traces, one in a hundred": (TRACES_LIMIT, {"traces": "on"}, sent),
            "history": (HISTORY_LIMIT, {"history": {}}, {}),
        }
        for way, (most, keys, environment) in ways.items():
            for era in (HANDSHAKE, STATELESS):
                name = f"{way}, {era}"
                if options.only not in name:
                    continue
                lane = Lane(COLONNADES[0], Upstream(HTTP, era), Calls(era), against=most)
                if way == "metrics":
                    switched = replace(lane, contender=watched(lane.contender, keys, environment))
                    pair = measure_switched(name, switched, QUICK_SWITCHED_STARTS if options.quick else SWITCHED_STARTS)
                else:
                    sides = partial(_sides, lane, keys, environment)
                    pair = measure_sides(name, lane, sides, QUICK_STARTS if options.quick else STARTS, ROUNDS, SECONDS)
                print(pair.line, flush=True)
                failed += pair.fails
    return int(failed > 0)


def _sides(lane: Lane, keys: Mapping[str, Any], environment: Mapping[str, str], number: int) -> list[Lane]:
    """A host with these keys and two without, of the start of this number."""
    without, control = (of_checkout(lane.contender, OURS, number) for _ in range(2))
    return [replace(lane, contender=each) for each in (watched(without, keys, environment), without, control)]


if __name__ == "__main__":
    sys.exit(main())
