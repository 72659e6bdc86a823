"""Rate limit for reading request bodies: bytes per pass of the event loop, given to connections in the order in which
they wait.

A connection acquires a number of bytes before it reads, and reads no more than that. A read of a few bytes costs nearly
as much as one of many KiB, so small reads have a limit of their own: clients that send byte by byte, however many, wait
only for each other.

Turns (`turns.py`) would not do here. They measure work after it was done and let each reader do a little in each pass,
which is too much with a thousand clients.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from .deadlines import SystemClock

PORTION = 128 * 1024
"""Bytes in PASSES passes for all connections with more than SMALL bytes to read; the last one may get as many again."""
PASSES = 3
"""Passes for one PORTION. A call takes some ten passes, and not every one of them should read a long body."""
MIN_PORTION = 8 * 1024
"""Bytes that each read of more than SMALL counts as at least."""
SMALL = 1024
"""Bytes up to which a read is small. One of a single byte takes half as long as one of 64 KiB."""
SMALL_PARTS = 2
"""Reads of at most SMALL bytes in one pass."""


class Portions:
    """The limits of one listener."""

    def __init__(self) -> None:
        count = _counter_of_passes()
        self._large = _Queue(PORTION, PASSES, count)
        self._small = _Queue(SMALL_PARTS, 1, count)

    async def acquire(self, available: Callable[[], int]) -> int:
        """Wait for the turn of this task, and return how many bytes it may read now.

        Args:
            available: number of bytes that can be read, also while the task waits. Must not raise.
        """
        if available() <= SMALL:
            await self._small.acquire(lambda: 1)
            return SMALL
        return await self._large.acquire(lambda: min(max(available(), MIN_PORTION), PORTION))


class _Queue:
    """Tasks that wait for one of the two limits. `portion` is renewed `passes` passes after the first of it was taken:
    by whoever comes then, or, if nothing is left, by a task that counts the passes. To count always, with functions of
    `run_sync_soon`, took a twentieth of a call with a long body: each of them wakes the event loop by a socket.
    """

    def __init__(self, portion: int, passes: int, count: Callable[[], int]) -> None:
        self._portion = self._left = portion
        self._passes = passes
        self._count = count
        self._begun = 0
        """The number of the pass in which the first of the portion was taken."""
        self._resting = trio.lowlevel.ParkingLot()
        self._has_task = False
        self._waiting: dict[trio.lowlevel.Task, Callable[[], int]] = {}
        self._given: dict[trio.lowlevel.Task, int] = {}

    async def acquire(self, wanted: Callable[[], int]) -> int:
        """Wait until some of the portion is left, take `wanted()` of it, and return that number."""
        if not self._waiting:
            if self._left > 0 and self._left_passes() <= 0:
                self._left = self._portion
            if self._left > 0:
                return self._take(wanted)
        task = trio.lowlevel.current_task()
        self._waiting[task] = wanted

        def give_up(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        return self._given.pop(task)

    def _left_passes(self) -> int:
        """Passes until the portion is renewed; they may be fewer."""
        return self._passes - (self._count() - self._begun)

    def _take(self, wanted: Callable[[], int]) -> int:
        if self._left == self._portion:
            self._begun = self._count()
        taken = wanted()
        self._left -= taken
        if self._left <= 0:
            self._begin_renewing()
        return taken

    def _begin_renewing(self) -> None:
        if not self._has_task:
            self._has_task = True
            trio.lowlevel.spawn_system_task(self._renew)
        else:
            self._resting.unpark()

    async def _renew(self) -> None:
        """Renew the portion whenever nothing is left of it."""
        while True:
            for _ in range(self._left_passes() - 1):  # one has passed, since the task was woken
                await trio.lowlevel.cancel_shielded_checkpoint()
            self._left = self._portion
            while self._left > 0 and self._waiting:
                task = next(iter(self._waiting))
                self._given[task] = self._take(self._waiting.pop(task))
                trio.lowlevel.reschedule(task)
            if self._left > 0:
                await self._resting.park()
            else:
                await trio.lowlevel.cancel_shielded_checkpoint()


def _counter_of_passes() -> Callable[[], int]:
    """A count of passes of this run of trio, which may be lower than that of all."""
    clock = trio.lowlevel.current_clock()
    return (lambda: clock.passes) if isinstance(clock, SystemClock) else lambda: 0
