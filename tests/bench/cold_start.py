"""The processor time of Colonnade until its port is open, and of `colonnade --help`."""

from __future__ import annotations

import os
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from tests.bench.build import made
from tests.bench.contenders import STDIO, Target, Upstream
from tests.bench.figures import Figure
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.bench.lanes import COLONNADE
from tests.bench.processes import stop
from tests.kit.ports import answers_at, free_port
from tests.kit.processes import processor_time
from tests.real.running import COLONNADE as PROGRAM

PORT_OPEN, HELP = 250.0, 100.0
"""Milliseconds that they may take."""


UNIT = "ms of processor time"


def cold_starts(count: int) -> list[Figure]:
    """So many starts of each. The state is there from one start before, as it is from the second day on."""
    with tempfile.TemporaryDirectory(prefix="colonnade-bench-") as name:
        folder = Path(name)
        _start(folder, serves=True)
        return [
            Figure("port open", UNIT, PORT_OPEN, [_scaled(lambda: _start(folder, serves=False)) for _ in range(count)]),
            Figure(
                "serve, until it serves",
                UNIT,
                None,
                [_scaled(lambda: _start(folder, serves=True)) for _ in range(count)],
            ),
            Figure("--help", UNIT, HELP, [_scaled(_help) for _ in range(count)]),
        ]


def _scaled(measure: Callable[[], float]) -> float:
    beside = yardstick()
    seconds = measure()
    return seconds * 1000 * REFERENCE * 2 / (beside + yardstick())


def _start(folder: Path, *, serves: bool) -> float:
    """Seconds until the port takes connections, or if it `serves`, until the host says so."""
    upstream, port = Upstream(STDIO), free_port()
    start = COLONNADE.start(Target(upstream, [*made("upstream"), *upstream.arguments]), folder)
    process = subprocess.Popen(
        [*start.command, "--port", str(port)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **start.environment},
    )
    assert process.stdout is not None
    with process.stdout:
        if serves:
            process.stdout.readline()
        else:
            while not answers_at(port):
                time.sleep(0.001)  # noqa: TID251 - no event loop runs here
        seconds = processor_time(process.pid)  # at once, as it goes on importing; no server runs yet
        stop(process)
    return seconds


def _help() -> float:
    process = subprocess.Popen([PROGRAM, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
