"""The processor time of Colonnade until its port is open, and of `colonnade --help`."""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Callable
from pathlib import Path

from tests.bench.build import made
from tests.bench.contenders import STDIO, Target, Upstream
from tests.bench.figures import Start
from tests.bench.fixed.yardstick import REFERENCE, yardstick
from tests.bench.lanes import COLONNADE
from tests.bench.processes import spent, stop
from tests.real.running import COLONNADE as PROGRAM

PORT_OPEN, HELP = 250.0, 100.0
"""Milliseconds that they may take."""


def cold_starts(count: int) -> list[Start]:
    """So many starts of each. The state is there from one start before, as it is from the second day on."""
    with tempfile.TemporaryDirectory(prefix="colonnade-bench-") as name:
        folder = Path(name)
        _port_open(folder)
        return [
            Start("port open", PORT_OPEN, [_scaled(lambda: _port_open(folder)) for _ in range(count)]),
            Start("--help", HELP, [_scaled(_help) for _ in range(count)]),
        ]


def _scaled(measure: Callable[[], float]) -> float:
    beside = yardstick()
    seconds = measure()
    return seconds * 1000 * REFERENCE * 2 / (beside + yardstick())


def _port_open(folder: Path) -> float:
    upstream = Upstream(STDIO)
    start = COLONNADE.start(Target(upstream, [*made("upstream"), *upstream.arguments]), folder)
    process = subprocess.Popen(
        start.command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, **start.environment},
    )
    assert process.stdout is not None
    with process.stdout:
        process.stdout.readline()  # it names the address, so the port is open
        seconds = spent(process.pid, "").since_start()
        stop(process)
    return seconds


def _help() -> float:
    process = subprocess.Popen([PROGRAM, "--help"], stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
    _, status, used = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    assert process.returncode == 0
    return used.ru_utime + used.ru_stime
