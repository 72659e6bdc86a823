"""Deadlines that move, under the autojump clock."""

from __future__ import annotations

import gc
import math
import weakref
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import trio
from trio.testing import MockClock

from host.wire.client_socket import ALARMS_A_SECOND, ClientSocket
from host.wire.deadlines import MAX_ALARMS, MOST_AT_ONCE, CallScope, Clock, Timed, clock_of_run


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


async def test_deadlines_of_connections_are_looked_at_together_and_none_too_soon(autojump_clock: MockClock) -> None:
    class Connection(Waiter):
        alarm_at = ClientSocket.alarm_at

    async with open_clock() as clock:
        start = trio.current_time()
        deadlines = [start + 1 + number / 1000 for number in range(1000)]
        waiters = [Connection(clock, deadline) for deadline in deadlines]
        await trio.sleep(3)
        rang = [time for each in waiters for time in each.rang]
        assert len(rang) == 1000
        assert len(set(rang)) <= ALARMS_A_SECOND + 1
        late = [time - deadline for time, deadline in zip(rang, deadlines, strict=True)]
        assert 0 <= min(late) <= max(late) <= 1 / ALARMS_A_SECOND


async def test_of_many_deadlines_that_come_together_few_are_reached_in_one_pass(autojump_clock: MockClock) -> None:
    class Passes(trio.abc.Instrument):
        count = 0

        def before_io_wait(self, timeout: float) -> None:
            self.count += 1

    class Counted(Waiter):
        def time_out(self) -> None:
            super().time_out()
            reached[passes.count] += 1

    passes, reached = Passes(), Counter[int]()
    async with open_clock() as clock:
        deadline = trio.current_time() + 1
        waiters = [Counted(clock, deadline) for _ in range(10 * MOST_AT_ONCE)]
        moved = Counted(clock, deadline)
        moved.deadline = deadline + 1
        trio.lowlevel.add_instrument(passes)
        await trio.sleep(3)
        trio.lowlevel.remove_instrument(passes)
        assert all(each.rang == [deadline] for each in waiters)
        assert moved.rang == [deadline + 1]
        assert max(reached.values()) == MOST_AT_ONCE


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


async def test_the_scope_of_calls_stays_entered_until_one_is_cancelled(autojump_clock: MockClock) -> None:
    """A call that is cancelled, or whose wait is over, ends; neither touches the next, and a cancellation that comes
    between two calls cancels none."""
    calls, ends = CallScope(stays=True), list[str]()
    for how in ("answered", "cancelled", "late", "both", "answered"):
        calls.cancel("too late for the one before")
        calls.take()
        if how in ("cancelled", "both"):
            calls.cancel(how)
        with calls:
            calls.deadline = trio.current_time() + 5
            try:
                try:
                    if how != "both":
                        await trio.sleep(1 if how == "answered" else 10)
                    else:
                        calls.time_out()
                        await trio.lowlevel.checkpoint()
                    ends.append("answered")
                except BaseException as problem:
                    if not calls.end_wait(problem):
                        raise
                    await trio.sleep(1)
                    ends.append("late")
            except trio.Cancelled as cancelled:
                ends.append(f"cancelled: {cancelled.reason}")
                raise
    await trio.sleep(100)
    assert ends == ["answered", "cancelled: cancelled", "late", "cancelled: both", "answered"]
    scope = calls._scope
    assert not scope.cancel_called
    calls.close()
    calls.close()
    await trio.lowlevel.checkpoint()


async def test_the_scope_of_calls_ends_with_what_surrounds_it(autojump_clock: MockClock) -> None:
    calls = CallScope(stays=True)
    with trio.move_on_after(5) as around:
        try:
            with calls.take():
                calls.deadline = trio.current_time() + 60
                await trio.sleep_forever()
        finally:
            calls.close()
    assert around.cancelled_caught
    await trio.sleep(100)


async def test_alarms_of_calls_that_are_over_are_dropped() -> None:
    for _ in range(3 * MAX_ALARMS):
        with CallScope() as call:
            call.deadline = trio.current_time() + 60
        del call
    assert len(clock_of_run()._alarms) <= MAX_ALARMS
