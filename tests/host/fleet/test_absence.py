"""A process that did not run for a while: nothing passes until it has caught up."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from host.fleet.absence import ABSENT, TICK, Absence

pytestmark = pytest.mark.virtual_time


class Stopped:
    """A process whose clock can go on without it."""

    def __init__(self) -> None:
        self._more = 0.0
        self.catching_up = trio.Event()
        self.asked = 0
        self.absence = Absence(self._catch_up, lambda: trio.current_time() + self._more)

    def stops(self, seconds: float) -> None:
        self._more += seconds

    async def _catch_up(self) -> None:
        self.asked += 1
        await self.catching_up.wait()

    async def returns(self) -> None:
        await self.absence.wait_returned()


@asynccontextmanager
async def running() -> AsyncIterator[tuple[Stopped, trio.Nursery]]:
    process = Stopped()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(process.absence.run)
        await trio.sleep(10 * TICK)
        yield process, nursery
        nursery.cancel_scope.cancel()


async def test_a_process_that_runs_is_not_behind_however_little_it_has_to_do() -> None:
    async with running() as (process, _):
        process.stops(ABSENT - TICK)
        assert not process.absence.is_behind()
        await trio.sleep(60)
        await process.absence.wait_returned()
        assert process.asked == 0


async def test_the_first_look_after_an_absence_shows_it_and_others_wait() -> None:
    """Whichever task runs first."""
    async with running() as (process, nursery):
        process.stops(ABSENT + TICK)
        assert process.absence.is_behind()
        waiting = trio.Event()

        async def wait() -> None:
            await process.absence.wait_returned()
            waiting.set()

        nursery.start_soon(wait)
        await trio.sleep(60)
        assert (waiting.is_set(), process.absence.is_behind(), process.asked) == (False, True, 1)
        process.catching_up.set()
        await waiting.wait()
        assert not process.absence.is_behind()


async def test_an_absence_while_it_catches_up_is_another_one() -> None:
    async with running() as (process, _):
        process.stops(60)
        assert process.absence.is_behind()
        await wait_all_tasks_blocked()
        process.stops(60)
        assert process.absence.is_behind()
        process.catching_up.set()
        await process.absence.wait_returned()
        assert process.asked == 2


async def test_an_absence_that_nobody_looked_at_is_noticed_too() -> None:
    async with running() as (process, _):
        process.stops(60)
        await trio.sleep(2 * TICK)
        assert (process.absence.is_behind(), process.asked) == (True, 1)
