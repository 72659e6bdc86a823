"""Additional cost of a call in a host that is watched: metrics, traces of which one in a hundred is sampled, and the
history.

    .venv/bin/python -m tests.bench.telemetry           some fifteen minutes; exit code 1 if a limit does not hold
    ... --quick                                         five minutes

Hosts with and without are called in turns, as those of two commits are (against.py).
"""

from __future__ import annotations

import json
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

from tests.bench.against import OURS, measure_pair
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
from tests.real.running import free_port

SAMPLER = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"}
METRICS_LIMIT, TRACES_LIMIT, HISTORY_LIMIT = 1.03, 1.04, 1.03


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
                lane = Lane(COLONNADES[0], Upstream(HTTP, era), Calls(era), against=most)

                def sides(
                    number: int,
                    lane: Lane = lane,
                    keys: Mapping[str, Any] = keys,
                    environment: Mapping[str, str] = environment,
                ) -> tuple[Lane, Lane]:
                    without = of_checkout(lane.contender, OURS, number)
                    return replace(lane, contender=watched(without, keys, environment)), replace(
                        lane, contender=without
                    )

                pair = measure_pair(f"{name}, {era}", lane, sides, quick="--quick" in sys.argv)
                print(pair.line, flush=True)
                failed += pair.fails
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
