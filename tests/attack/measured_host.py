"""The command `colonnade`, with a processor clock around each pass of its loop.

    python -m tests.attack.measured_host PASSES ARGUMENT...

`trio.run` is replaced by itself with one instrument more, before the program is loaded. The program has no place for
instruments of its own and needs none; the loop, the scheduler and everything it runs are the real ones, so this is
an addition to the program under test and no imitation of any part of it.

PASSES gets a line `END SECONDS` for each pass that took NOTED or longer: the monotonic time of its end, which all
processes of the machine share, and the processor time of the loop's thread. A pass that lasts on is reported while
it lasts. A line `END SECONDS PASSES` has the processor time and the number of all passes until then. A pass begins
when the kernel's events have been fetched and ends when the loop looks for the next ones, so it comprises one step of
each runnable task.

The host ends when its standard input ends: nothing is left behind when the judge is killed.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time
from functools import partial
from pathlib import Path
from typing import TextIO

import trio

NOTED = 0.01
"""Seconds of processor time of a pass from which on it is reported."""
FLUSH = 0.1
"""Seconds between two writes of the report."""


class PassClock(trio.abc.Instrument):
    """Measures each pass in the processor time of the loop's thread. `report` may be called in any thread."""

    def __init__(self) -> None:
        self._clock: int | None = None
        self._began: float | None = None
        self._noted: list[tuple[float, float]] = []
        self._passes, self._seconds = 0, 0.0

    def before_run(self) -> None:
        self._clock = time.pthread_getcpuclockid(threading.get_ident())
        self._began = time.clock_gettime(self._clock)

    def before_io_wait(self, timeout: float) -> None:
        if self._clock is not None and self._began is not None:
            took = time.clock_gettime(self._clock) - self._began
            self._began = None
            self._passes += 1
            self._seconds += took
            if took >= NOTED:
                self._noted.append((time.monotonic(), took))

    def after_io_wait(self, timeout: float) -> None:
        if self._clock is not None:
            self._began = time.clock_gettime(self._clock)

    def after_run(self) -> None:
        self._began = self._clock = None  # the loop's thread goes on without it, and its clock with the thread

    def report(self) -> str:
        """The lines for what was noted since the last time, for the pass that lasts now, and for all passes."""
        noted, self._noted = self._noted, []
        began, clock = self._began, self._clock
        if began is not None and clock is not None and (took := time.clock_gettime(clock) - began) >= NOTED:
            noted.append((time.monotonic(), took))
        lines = [f"{end:.6f} {took:.6f}\n" for end, took in noted]
        return f"{''.join(lines)}{time.monotonic():.6f} {self._seconds:.6f} {self._passes}\n"


def _report_for_ever(clock: PassClock, file: TextIO) -> None:
    waiting = threading.Event()
    while not waiting.wait(FLUSH):
        file.write(clock.report())


def _end_with_standard_input() -> None:
    while os.read(0, 1024):
        pass
    os.kill(os.getpid(), signal.SIGTERM)


def main() -> None:
    if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:  # a judge under `nohup`; an attack reloads by this signal
        signal.signal(signal.SIGHUP, signal.SIG_DFL)
    passes = Path(sys.argv.pop(1)).open("a", buffering=1)  # noqa: SIM115 - as long as the process lives
    clock = PassClock()
    trio.run = partial(trio.run, instruments=[clock])  # type: ignore[assignment]  # takes what the original takes
    threading.Thread(target=_report_for_ever, args=[clock, passes], daemon=True).start()
    threading.Thread(target=_end_with_standard_input, daemon=True).start()
    sys.argv[0] = "colonnade"

    from host.__main__ import main as colonnade  # after `trio.run` has been replaced, for modules that take it by name

    colonnade()


if __name__ == "__main__":
    main()
