"""Additional cost of a call in a host that is watched: metrics, traces of which one in a hundred is sampled, and the
history.

    .venv/bin/python -m tests.bench.telemetry           some half an hour; exit code 1 if a limit does not hold
    ... --quick                                         a third of that
    ... --only metrics                                  those with this word in their name

A host with and two without are called in turns, as those of two commits are (against.py). What the two differ by shows
how exact the figures are. Each host is started many times, since two processes of one tree differ by some hundredths.
"""

from __future__ import annotations

import json
import sys
import threading
from argparse import ArgumentParser, RawDescriptionHelpFormatter
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.bench.against import OURS, measure_sides
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
from tests.kit.ports import free_port

SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
METRICS_LIMIT, TRACES_LIMIT, HISTORY_LIMIT = 1.03, 1.04, 1.03
STARTS, ROUNDS, SECONDS = 24, 3, 0.4
"""Starts of each three hosts, rounds of each start, and seconds for which each is called twice in a round."""
QUICK_STARTS = 8


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


def main() -> int:
    parser = ArgumentParser(description=__doc__, formatter_class=RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--only", default="")
    options = parser.parse_args()
    starts = QUICK_STARTS if options.quick else STARTS
    failed = 0
    with collector() as url:
        ways: dict[str, tuple[float, dict[str, Any], dict[str, str]]] = {
            "metrics": (METRICS_LIMIT, {"metrics": {}}, {}),
            "traces, one in a hundred": (
                TRACES_LIMIT,
                {"traces": "on"},
                {**SAMPLER, "OTEL_EXPORTER_OTLP_ENDPOINT": url},
            ),
            "history": (HISTORY_LIMIT, {"history": {}}, {}),
        }
        for name, (most, keys, environment) in ways.items():
            for era in (HANDSHAKE, STATELESS):
                if options.only not in f"{name}, {era}":
                    continue
                lane = Lane(COLONNADES[0], Upstream(HTTP, era), Calls(era), against=most)

                def sides(
                    number: int,
                    lane: Lane = lane,
                    keys: Mapping[str, Any] = keys,
                    environment: Mapping[str, str] = environment,
                ) -> list[Lane]:
                    without, control = (of_checkout(lane.contender, OURS, number) for _ in range(2))
                    contenders = watched(without, keys, environment), without, control
                    return [replace(lane, contender=each) for each in contenders]

                pair = measure_sides(f"{name}, {era}", lane, sides, starts, ROUNDS, SECONDS)
                print(pair.line, flush=True)
                failed += pair.fails
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
