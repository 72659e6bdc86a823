"""The time for which the loop is held: the processor time of each pass, of the loop's own thread, or with what it was
blocked for."""

from __future__ import annotations

import gc
import os
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
    """`longest` is the pass of the loop that took longest, in seconds, without the time that its thread waited in the
    queue of a processor: what it computed, and what it was blocked for. Where a group of processes has a share of the
    processors, it is also the time for which the group had used that up."""

    def __init__(self) -> None:
        self.longest = 0.0
        self._waits = os.open("/proc/thread-self/schedstat", os.O_RDONLY)
        self._began = self._now()

    def close(self) -> None:
        os.close(self._waits)

    def _now(self) -> float:
        return time.monotonic() - int(os.pread(self._waits, 100, 0).split()[1]) / 1e9

    def after_io_wait(self, timeout: float) -> None:
        self._began = self._now()

    def before_io_wait(self, timeout: float) -> None:
        self.longest = max(self.longest, self._now() - self._began)


@contextmanager
def measure_holds() -> Iterator[LoopHolds]:
    """Measure the passes of the block."""
    found = LoopHolds()
    trio.lowlevel.add_instrument(found)
    try:
        yield found
    finally:
        trio.lowlevel.remove_instrument(found)
        found.close()
