"""Deadlines of many waiters that are moved with every request and hardly ever reached, and the cancel scopes of calls.

A cancel scope around each wait would cost more than the wait. Here a deadline that moves later costs an assignment:
the clock of all looks at it when the former one has come. The scope of a task's calls stays entered between them.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from heapq import heapify, heappop, heappush
from itertools import count
from weakref import ref

import trio

MAX_ALARMS = 1000
"""Alarms beyond which those of what is gone are dropped."""
MOST_AT_ONCE = 32
"""Waiters that time out in one pass of the event loop. Many deadlines are looked at together, and to close a thousand
connections in one pass held up everything else for 30 ms."""


class Timed(ABC):
    """Something with a deadline. It is not kept alive by its clock."""

    __slots__ = ("__weakref__", "_alarm", "_clock", "_deadline")

    def __init__(self, clock: Clock, deadline: float) -> None:
        self._clock = clock
        self._alarm = math.inf
        self._deadline = deadline
        self.deadline = deadline

    @property
    def deadline(self) -> float:
        return self._deadline

    @deadline.setter
    def deadline(self, deadline: float) -> None:
        self._deadline = deadline
        if deadline < self._alarm and (alarm := self.alarm_at(deadline)) < self._alarm:
            self._alarm = alarm
            self._clock.wake_at(alarm, self)

    def alarm_at(self, deadline: float) -> float:
        """The time at which the deadline is looked at, no sooner than it comes."""
        return deadline

    def ring(self, alarm: float, now: float) -> bool:
        """Called by the clock at the time of an alarm, which was a deadline. Returns whether it still is."""
        if alarm != self._alarm:  # an earlier one was set after it, and rang: setting this one again would add to them
            return False
        self._alarm = math.inf
        is_over = self._deadline <= now
        if is_over:
            self._deadline = math.inf
            self.time_out()
        else:
            self.deadline = self._deadline
        return is_over

    @abstractmethod
    def time_out(self) -> None:
        """Called when the deadline is reached."""


class CallScope(Timed):
    """The cancel scope of one call, with the deadline of what the call waits for, which is inf between two of these.

    With `stays`, it is the scope of all calls that one task makes in turn, since to enter and leave one for each costs
    a twentieth of a call: it stays entered until a call is cancelled. It must be taken for each, and closed at the end
    of the task. While it is entered, it must be the innermost scope of its task wherever a call begins or ends.
    """

    __slots__ = ("_is_entered", "_is_late", "_is_taken", "_scope", "_stays", "cancel_called")

    def __init__(self, *, stays: bool = False) -> None:
        super().__init__(clock_of_run(), math.inf)
        self._stays, self._is_taken, self._is_entered = stays, not stays, False
        self._scope = trio.CancelScope()
        self._is_late = self.cancel_called = False

    def take(self) -> CallScope:
        """Begin a call: from now until the end of its block, it can be cancelled."""
        self._is_taken = True
        return self

    def cancel(self, reason: str | None = None) -> None:
        """Cancel the call; see `trio.CancelScope.cancel`."""
        if self._is_taken:
            self.cancel_called = True
            self._scope.cancel(reason)

    def time_out(self) -> None:
        self._is_late = True
        self._scope.cancel()

    def __enter__(self) -> CallScope:
        if not self._is_entered:
            self._is_entered = True
            self._scope.__enter__()
        return self

    def __exit__(self, kind: type[BaseException] | None, problem: BaseException | None, trace: object) -> bool:
        self._deadline = math.inf  # which needs no alarm
        if not self._stays:
            return self._leave(problem)
        self._is_taken = False
        if not (self.cancel_called or self._is_late):
            return False
        self.cancel_called = False
        return self._leave(problem)

    def end_wait(self, problem: BaseException | None) -> bool:
        """End what the deadline was for; `problem` ended it. Returns whether that was the deadline: what follows is not
        cancelled then."""
        self._deadline = math.inf  # which needs no alarm
        if not self._is_late or self.cancel_called:
            return False
        try:
            return self._leave(problem)
        finally:
            self.__enter__()

    def close(self) -> None:
        """Leave a scope that stays; it must not be used after that."""
        if self._is_entered:
            self._leave(None)

    def _leave(self, problem: BaseException | None) -> bool:
        former, self._scope = self._scope, trio.CancelScope()
        self._is_entered = self._is_late = False
        return former.__exit__(None if problem is None else type(problem), problem, None)


class SystemClock(trio.abc.Clock):
    """The clock of a host. trio's own runs Python for each look, of which a call takes a dozen."""

    current_time = staticmethod(time.monotonic)

    def __init__(self) -> None:
        self.passes = 0
        """Passes of the event loop, without those that began when some task could already run."""

    def start_clock(self) -> None:
        return

    def deadline_to_sleep_time(self, deadline: float) -> float:
        self.passes += 1  # trio asks once in each pass in which it may sleep
        return deadline - time.monotonic()


class Clock:
    """The clock of many deadlines. `run` must run beside them."""

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, ref[Timed]]] = []
        self._most = MAX_ALARMS
        self._order = count()
        self._sleep = trio.CancelScope()

    def wake_at(self, time: float, timed: Timed) -> None:
        heappush(self._alarms, (time, next(self._order), ref(timed)))
        if len(self._alarms) > self._most:
            self._alarms = [alarm for alarm in self._alarms if alarm[2]() is not None]
            heapify(self._alarms)
            self._most = max(2 * len(self._alarms), MAX_ALARMS)
        if time < self._sleep.deadline:
            self._sleep.deadline = time

    async def run(self) -> None:
        """Ring at each deadline, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._alarms[0][0] if self._alarms else math.inf) as self._sleep:
                await trio.sleep_forever()
            now, left = trio.current_time(), MOST_AT_ONCE
            while left and self._alarms and self._alarms[0][0] <= now:
                alarm, _, found = heappop(self._alarms)
                timed = found()
                if timed is not None and timed.ring(alarm, now):
                    left -= 1


_CLOCK: trio.lowlevel.RunVar[Clock] = trio.lowlevel.RunVar("clock of deadlines")


def clock_of_run() -> Clock:
    """The clock of this run of trio, which begins with its first use."""
    try:
        return _CLOCK.get()
    except LookupError:
        clock = Clock()
        _CLOCK.set(clock)
        trio.lowlevel.spawn_system_task(clock.run)
        return clock
