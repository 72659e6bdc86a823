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
from functools import partial

import trio

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
        self._large = _Queue(PORTION, PASSES)
        self._small = _Queue(SMALL_PARTS, 1)

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
    """Tasks that wait for one of the two limits. `portion` is renewed once in `passes` passes."""

    def __init__(self, portion: int, passes: int) -> None:
        self._portion = self._left = portion
        self._passes = passes
        self._waiting: dict[trio.lowlevel.Task, Callable[[], int]] = {}
        self._given: dict[trio.lowlevel.Task, int] = {}

    async def acquire(self, wanted: Callable[[], int]) -> int:
        """Wait until some of the portion is left, take `wanted()` of it, and return that number."""
        if self._left > 0 and not self._waiting:
            return self._take(wanted)
        task = trio.lowlevel.current_task()
        self._waiting[task] = wanted

        def give_up(_: object) -> trio.lowlevel.Abort:
            del self._waiting[task]
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(give_up)
        return self._given.pop(task)

    def _take(self, wanted: Callable[[], int]) -> int:
        if self._left == self._portion:
            self._wait_passes(self._passes)
        taken = wanted()
        self._left -= taken
        return taken

    def _wait_passes(self, count: int) -> None:
        following = partial(self._wait_passes, count - 1) if count > 1 else self._renew
        trio.lowlevel.current_trio_token().run_sync_soon(following)  # runs in the next pass

    def _renew(self) -> None:
        self._left = self._portion
        while self._left > 0 and self._waiting:
            task = next(iter(self._waiting))
            self._given[task] = self._take(self._waiting.pop(task))
            trio.lowlevel.reschedule(task)
