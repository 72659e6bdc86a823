"""A control process beside a scenario. It does next to nothing, at fixed times: how late it is says how long the
machine gave no processor to who wanted one, whatever the processes did that are tried.

A process that gets none for as long as its lease loses it, as it should: others adopt its sessions, and what was
forwarded to it has an unknown outcome. Clients see the same then as after a defect.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import trio

from host.fleet.members import LEASE

TICK = 0.02
"""Seconds between two turns of the control process."""
WORK = 0.001
"""Seconds of processor time of each turn: who only sleeps is let in before others."""
STARVED = LEASE / 4
"""Seconds of LEASE without a processor from which on a lease may be lost: for each renewal a process, a thread of it,
and the database have to get one, one after the other."""


class Wait(NamedTuple):
    """So many seconds without a processor, which ended at that time."""

    at: float
    seconds: float


class Waits:
    """Those of a run."""

    def __init__(self, waits: Iterable[Wait]) -> None:
        self._waits = sorted(waits)

    def longest(self, begun: float, ended: float) -> float:
        """The most of any stretch of LEASE seconds that has to do with this time."""
        most = total = 0.0
        near = [each for each in self._waits if begun - LEASE <= each.at <= ended + LEASE]
        first = 0
        for each in near:
            total += each.seconds
            while near[first].at < each.at - LEASE:
                total -= near[first].seconds
                first += 1
            most = max(most, total)
        return most


class Control:
    """The control process, which writes its waits to a file in this folder. Made inside trio."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / "control"
        self._offset = time.monotonic() - trio.current_time()
        with self._file.open("wb") as output:
            self.process = subprocess.Popen([sys.executable, "-m", "tests.replicas.control"], stdout=output)

    def waits(self) -> list[Wait]:
        """Those so far, by the clock of the run. The first one says that it runs."""
        lines = self._file.read_text().split("\n")[:-1]  # the last one may be half written
        pairs = (map(float, line.split()) for line in lines)
        return [Wait(at - self._offset, seconds) for at, seconds in pairs]


@contextmanager
def controlled(folder: Path) -> Iterator[Control]:
    """Run the control process for the block."""
    control = Control(folder)
    try:
        yield control
    finally:
        control.process.kill()
        control.process.wait()


def _take_turns() -> None:
    print(f"{time.monotonic():.4f} 0", flush=True)
    while True:
        begun, spent = time.monotonic(), time.thread_time()
        time.sleep(TICK)  # noqa: TID251 - no event loop runs here
        until = time.thread_time() + WORK
        while time.thread_time() < until:
            pass
        now = time.monotonic()
        late = now - begun - TICK - (time.thread_time() - spent)
        if late > TICK / 10:
            print(f"{now:.4f} {late:.4f}", flush=True)


if __name__ == "__main__":
    _take_turns()
