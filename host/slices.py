"""Long work in short slices: work that grows with a server's data is done a few milliseconds at a time.

The work is an async function that awaits `pause` wherever it may be interrupted. All such work of a thread together
gets one slice in each pass of the event loop, in turns.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Coroutine, Generator, Iterable
from contextlib import AbstractContextManager, contextmanager
from functools import partial
from math import inf
from time import perf_counter, thread_time
from types import coroutine
from typing import Any, TypeAlias, TypeVar

import trio

from host.worker import run_in_worker

SLICE = 0.0005
"""Seconds of work between two checkpoints."""
LONGEST = 10
"""Slices that work takes at once, at most. Other work that begins within them of it may be in the same pass."""
MAX_PASSES = 20
"""Passes that are left to others, at most, after work that took several slices at once: the process may have been
stopped meanwhile."""

S = TypeVar("S")
T = TypeVar("T")

Charge: TypeAlias = Callable[[float], None]
"""Takes processor seconds that were used."""


class _Turns(threading.local):
    """The present slice of this thread.

    Attributes:
        end: when it ends, by `perf_counter`. Until then, no work pauses.
    """

    def __init__(self) -> None:
        self.end = -inf
        self._began = -inf
        self._queue = trio.Lock()

    async def take(self, now: float) -> None:
        """Wait for a slice and begin it. Work that begins while no other is done need not wait."""
        task = trio.lowlevel.current_task()
        is_same = task.custom_sleep_data is self  # trio forgets it where the task waits: then this is other work
        if is_same or self._queue.locked() or now < self._began + LONGEST * SLICE:
            async with self._queue:  # a pass of the loop, or more
                for _ in range(min(int((now - self._began) / SLICE), MAX_PASSES) - 1 if is_same else 0):
                    await trio.lowlevel.checkpoint()
        task.custom_sleep_data, self._began = self, perf_counter()
        self.end = self._began + SLICE


_turns = _Turns()


async def pause() -> None:
    """Let other tasks run if the present slice is used up. To be awaited every few microseconds of long work."""
    now = perf_counter()
    if now >= _turns.end:
        await _turns.take(now)


def run_now(work: Coroutine[Any, Any, T]) -> T:
    """The result of short work, at once: it does not pause, and `in_worker` calls its function in this process. It must
    wait for nothing else."""
    former, _turns.end = _turns.end, inf
    try:
        work.send(None)
    except StopIteration as end:
        done: T = end.value
        return done
    finally:
        _turns.end = former
    work.close()
    raise RuntimeError("work that cannot be interrupted waits for something")


async def in_worker(function: Callable[..., T], *arguments: object) -> T:
    """The result of the function, run in another process; see `run_in_worker`."""
    if _turns.end == inf:
        return function(*arguments)
    return await run_in_worker(function, *arguments)


async def run_within(context: Callable[[], AbstractContextManager[object]], work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. A context is entered each time that it goes on, and left wherever it waits."""
    return await _run_within(context, work)


@coroutine
def _run_within(
    context: Callable[[], AbstractContextManager[object]], work: Coroutine[Any, Any, T]
) -> Generator[Any, Any, T]:
    go_on: Callable[[], Any] = partial(work.send, None)
    while True:
        try:
            with context():
                waits_for = go_on()
        except StopIteration as end:
            done: T = end.value
            return done
        try:
            go_on = partial(work.send, (yield waits_for))
        except BaseException as problem:  # noqa: BLE001 - it is raised in the work
            go_on = partial(work.throw, problem)


async def charged(charge: Charge | None, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work. `charge` is called with the processor seconds of each of its slices, not counting what
    other processes do."""
    return await (work if charge is None else _run_within(partial(_charging, charge), work))


@contextmanager
def _charging(charge: Charge) -> Generator[None]:
    used = thread_time()
    try:
        yield
    finally:
        charge(thread_time() - used)


async def map_in_slices(change: Callable[[S], T], things: Iterable[S]) -> list[T]:
    """The results of `change` for each of the present items."""
    found: list[T] = []
    for thing in list(things):
        await pause()
        found.append(change(thing))
    return found
