"""Deadlines that move, under the autojump clock."""

from __future__ import annotations

import gc
import math
import weakref
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from host.wire.deadlines import Clock, Timed


class Waiter(Timed):
    def __init__(self, clock: Clock, deadline: float) -> None:
        self.rang: list[float] = []
        super().__init__(clock, deadline)

    def time_out(self) -> None:
        self.rang.append(trio.current_time())


@asynccontextmanager
async def open_clock() -> AsyncIterator[Clock]:
    clock = Clock()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(clock.run)
        yield clock
        nursery.cancel_scope.cancel()


async def test_each_waiter_is_called_once_at_its_deadline(autojump_clock: MockClock) -> None:
    async with open_clock() as clock:
        start = trio.current_time()
        waiters = [Waiter(clock, start + seconds) for seconds in (5, 1, 3, 3)]
        await trio.sleep(10)
        assert [each.rang for each in waiters] == [[start + 5], [start + 1], [start + 3], [start + 3]]


async def test_a_deadline_that_moves_counts_where_it_is(autojump_clock: MockClock) -> None:
    async with open_clock() as clock:
        start = trio.current_time()
        later, sooner, never, again = (Waiter(clock, start + 5) for _ in range(4))
        later.deadline = start + 7
        sooner.deadline = start + 2
        never.deadline = math.inf
        again.deadline = math.inf
        await trio.sleep(6)
        again.deadline = start + 8
        await trio.sleep(6)
        assert [each.rang for each in (later, sooner, never, again)] == [[start + 7], [start + 2], [], [start + 8]]


async def test_a_deadline_that_moves_often_has_one_alarm(
    autojump_clock: MockClock,
) -> None:
    async with open_clock() as clock:
        waiter = Waiter(clock, trio.current_time() + 5)
        for _ in range(1000):
            waiter.deadline = math.inf
            waiter.deadline = trio.current_time() + 75
        assert len(clock._alarms) == 1
        await trio.sleep(80)
        assert len(waiter.rang) == 1


async def test_deadlines_that_move_to_and_fro_leave_few_alarms_behind(autojump_clock: MockClock) -> None:
    """As those of a connection whose client sends each head in two parts."""
    async with open_clock() as clock:
        waiter = Waiter(clock, trio.current_time() + 5)
        for _ in range(1000):
            waiter.deadline = trio.current_time() + 75
            await trio.sleep(1)
            waiter.deadline = trio.current_time() + 5
            await trio.sleep(0.1)
        assert len(clock._alarms) < 50
        last = trio.current_time() + 75
        waiter.deadline = last
        await trio.sleep(100)
        assert (waiter.rang, clock._alarms) == ([last], [])


async def test_the_clock_keeps_nobody_alive(autojump_clock: MockClock) -> None:
    async with open_clock() as clock:
        waiter = Waiter(clock, trio.current_time() + 5)
        gone = weakref.ref(waiter)
        gc.disable()
        try:
            del waiter
            assert gone() is None
        finally:
            gc.enable()
        await trio.sleep(10)
        assert not clock._alarms
