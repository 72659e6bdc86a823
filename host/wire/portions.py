"""Portions of the passes of the event loop for the bodies that clients send, dealt out in the order in which they wait.

Whoever has something to read asks first, and reads no more than it is given. A part of a few bytes takes nearly as much
work as one of many KiB, so that small parts have a portion of their own: clients that send byte by byte, however many
they are, wait for each other, and nobody else waits for them.

Turns (`turns.py`) measure work after it was done, and let everybody do a little in each pass: with a thousand clients
that is too much.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import trio

PORTION = 64 * 1024
"""Bytes in PASSES passes for all that have more than SMALL to read; the last of them may get as many again."""
PASSES = 3
"""A call takes some ten passes, and not each of them shall be one in which a long body is read."""
MIN_PORTION = 8 * 1024
"""Bytes that one of them counts as at least."""
SMALL = 1024
SMALL_PARTS = 2
"""Parts in one pass of at most SMALL bytes each."""


class Portions:
    """Those of one listener."""

    def __init__(self) -> None:
        self._large = _Queue(PORTION, PASSES)
        self._small = _Queue(SMALL_PARTS, 1)

    async def acquire(self, available: Callable[[], int]) -> int:
        """How many bytes may be read in this pass, once it is the turn of this task. `available` says how many there
        are, also while the task waits; it must not raise."""
        if available() <= SMALL:
            await self._small.acquire(lambda: 1)
            return SMALL
        return await self._large.acquire(lambda: min(max(available(), MIN_PORTION), PORTION))


class _Queue:
    """Those who wait for one of the two portions, which is dealt out once in so many passes."""

    def __init__(self, portion: int, passes: int) -> None:
        self._portion = self._left = portion
        self._passes = passes
        self._waiting: dict[trio.lowlevel.Task, Callable[[], int]] = {}
        self._given: dict[trio.lowlevel.Task, int] = {}

    async def acquire(self, wanted: Callable[[], int]) -> int:
        """What has been taken of the portion, once there was something left of it: all that was wanted."""
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
        trio.lowlevel.current_trio_token().run_sync_soon(following)  # which runs it in the next pass

    def _renew(self) -> None:
        self._left = self._portion
        while self._left > 0 and self._waiting:
            task = next(iter(self._waiting))
            self._given[task] = self._take(self._waiting.pop(task))
            trio.lowlevel.reschedule(task)
