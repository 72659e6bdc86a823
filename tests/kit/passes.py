"""The time for which the loop is held: the processor time of each pass, of the loop's own thread, or with what it was
blocked for."""

from __future__ import annotations

import gc
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager

import trio

from tests.kit.cost import slowness


class LoopPasses(trio.abc.Instrument):
    """`longest` and `total` are seconds, `count` is how many passes there were. A pass is all that runs between two
    looks for what happened outside."""

    def __init__(self) -> None:
        self.longest = self.total = 0.0
        self.count = 0
        self._began = time.thread_time()

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.thread_time()

    def before_io_wait(self, timeout: float) -> None:
        took = time.thread_time() - self._began
        self.longest = max(self.longest, took)
        self.total += took
        self.count += 1


ATTEMPTS = 3


async def assert_loop_responsive(work: Callable[[], Awaitable[object]], seconds: float) -> None:
    """Do the work without a pass of that many seconds, on a machine for which limits are stated (`slowness`). Where
    there was one, the work is done again: what holds the loop does so each time, and what else the machine does, which
    a virtual machine counts as ours, does not. Only such a machine needs the control."""
    with measure_passes() as found:
        await work()
    if found.longest < seconds:
        return
    longest = [found.longest]
    for _ in range(ATTEMPTS):
        before = slowness()
        with measure_passes() as found:
            await work()
        longest.append(found.longest)
        if found.longest < seconds * max(before, slowness()):
            return
    raise AssertionError(f"passes of {', '.join(f'{each:.3f}' for each in longest)} s")


@contextmanager
def measure_passes() -> Iterator[LoopPasses]:
    """Measure the passes of the block. The collector leaves out objects that the tests have made before."""
    gc.collect()
    gc.freeze()
    found = LoopPasses()
    trio.lowlevel.add_instrument(found)
    try:
        yield found
    finally:
        trio.lowlevel.remove_instrument(found)
        gc.unfreeze()


class LoopHolds(trio.abc.Instrument):
    """`longest` is the pass of the loop that took longest, in seconds by the clock: what it computed, what it was
    blocked for, and the time in the queue of a processor. The kernel counts that queue too (`schedstat`), but Linux
    6.18 has counted a whole sleep as queue, so nothing is taken off."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._began = time.monotonic()

    def after_io_wait(self, timeout: float) -> None:
        self._began = time.monotonic()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, time.monotonic() - self._began)


@contextmanager
def measure_holds() -> Iterator[LoopHolds]:
    """Measure the passes of the block."""
    found = LoopHolds()
    trio.lowlevel.add_instrument(found)
    try:
        yield found
    finally:
        trio.lowlevel.remove_instrument(found)
