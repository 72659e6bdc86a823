"""Async functions in tests that are not async, or that decide what happens at each pause."""

from __future__ import annotations

from collections.abc import Coroutine, Generator
from contextlib import nullcontext
from math import inf
from types import coroutine
from typing import Any, Generic, TypeVar

import trio

from host import slices
from host.slices import _Turns, run_now, run_within

T = TypeVar("T")


class _AtOnce:
    """Whether `awaited` does work inside of a loop, in which nothing may wait."""

    is_so = False


def awaited(work: Coroutine[Any, Any, T]) -> T:
    """The result of the work: in a loop of its own, or, inside of one, at once. Then it must not wait."""
    if not trio.lowlevel.in_trio_run():
        return trio.run(run_within, nullcontext, work)
    _AtOnce.is_so = True
    try:
        return run_now(work)
    finally:
        _AtOnce.is_so = False


def is_at_once() -> bool:
    return _AtOnce.is_so


async def checkpoint() -> None:
    if not is_at_once():
        await trio.lowlevel.checkpoint()


class Paused(Generic[T]):
    """Work that stands still at each pause. It must wait for nothing else."""

    def __init__(self, work: Coroutine[Any, Any, T]) -> None:
        self._work = work

    def __iter__(self) -> Paused[T]:
        return self

    def __next__(self) -> None:
        """Go on to the next pause."""
        before, slices._turns = slices._turns, _EveryPause()
        try:
            self._work.send(None)
        finally:
            slices._turns = before

    def rest(self) -> T:
        """The result of the work, which goes on without a pause."""
        return awaited(self._work)


class _EveryPause(_Turns):
    def __init__(self) -> None:
        super().__init__()
        self.end = -inf

    async def take(self, now: float) -> None:
        await _stand_still()


@coroutine
def _stand_still() -> Generator[None]:
    yield
