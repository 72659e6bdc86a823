"""Long work in short slices: work that grows with a server's data is done a few milliseconds at a time.

The work is a generator that yields wherever it may be interrupted: None, or an object to wait for, such as the disk or
a long function that runs in another process (`in_worker`). The generator does not wait itself, so it also runs without
an event loop.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable
from typing import Generic, TypeAlias, TypeVar, cast

import trio

from host.worker import run_in_worker

SLICE = 0.0005
"""Seconds of work between two checkpoints."""

S = TypeVar("S")
T = TypeVar("T")


class Waiting(ABC):
    """An object that the steps wait for."""

    @abstractmethod
    async def wait(self) -> None:
        """Wait in an event loop."""

    @abstractmethod
    def block(self) -> None:
        """Wait without an event loop."""


class WorkerCall(Waiting, Generic[T]):
    """A module's function with arguments, to run in another process; without an event loop, in this one."""

    def __init__(self, function: Callable[..., T], arguments: tuple[object, ...]) -> None:
        self.function = function
        self.arguments = arguments
        self.result: T | None = None

    async def wait(self) -> None:
        self.result = await run_in_worker(self.function, *self.arguments)

    def block(self) -> None:
        self.result = self.function(*self.arguments)


Steps: TypeAlias = Generator[Waiting | None, None, T]
Charge: TypeAlias = Callable[[float], None]
"""Takes processor seconds that were used."""


class Slices:
    """Runs sliced work of any number of tasks. All of it together gets one slice in each pass of the loop, in turns.
    Work that took several slices at once is followed by as many passes without one."""

    def __init__(self) -> None:
        self._turn = trio.Lock()

    async def run(self, steps: Steps[T], charge: Charge | None = None) -> T:
        """Run the work to its end and return its result. No checkpoint lies between its end and the return.

        Args:
            charge: called with the processor seconds of each slice, not counting what other processes do.
        """
        while True:
            async with self._turn:
                began, used = time.perf_counter(), time.thread_time() if charge is not None else 0.0
                try:
                    while (waiting := next(steps)) is None and time.perf_counter() < began + SLICE:
                        pass
                except StopIteration as end:
                    done: T = end.value
                    return done
                finally:
                    if charge is not None:
                        charge(time.thread_time() - used)
                for _ in range(int((time.perf_counter() - began) / SLICE) - 1):
                    await trio.lowlevel.checkpoint()
            if waiting is not None:
                await waiting.wait()


async def complete(steps: Steps[T]) -> T:
    """Run short work to its end in an event loop. Other tasks run only while it waits."""
    while True:
        try:
            waiting = next(steps)
        except StopIteration as end:
            done: T = end.value
            return done
        if waiting is not None:
            await waiting.wait()


def in_worker(function: Callable[..., T], *arguments: object) -> Steps[T]:
    """The result of the function, run in another process; see `run_in_worker`."""
    work = WorkerCall(function, arguments)
    yield work
    return cast("T", work.result)


def map_in_steps(change: Callable[[S], T], things: Iterable[S]) -> Steps[list[T]]:
    """The results of `change` for each of the present items."""
    found: list[T] = []
    for thing in list(things):
        yield None
        found.append(change(thing))
    return found


def run_inline(steps: Steps[T]) -> T:
    """Run the work to its end without an event loop and without a pause."""
    while True:
        try:
            waiting = next(steps)
        except StopIteration as end:
            done: T = end.value
            return done
        if waiting is not None:
            waiting.block()
