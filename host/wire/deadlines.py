"""Deadlines of many waiters that are moved with every request and hardly ever reached.

A cancel scope around each wait would cost more than the wait. Here a deadline that moves later costs an assignment:
the clock of all looks at it when the former one has come.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from heapq import heappop, heappush
from itertools import count
from weakref import ref

import trio


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
        if deadline < self._alarm:
            self._alarm = deadline
            self._clock.wake_at(deadline, self)

    def ring(self, alarm: float, now: float) -> None:
        """Called by the clock at the time of an alarm, which was a deadline, and may still be."""
        if alarm != self._alarm:  # an earlier one was set after it, and rang: setting this one again would add to them
            return
        self._alarm = math.inf
        if self._deadline <= now:
            self._deadline = math.inf
            self.time_out()
        else:
            self.deadline = self._deadline

    @abstractmethod
    def time_out(self) -> None:
        """Called when the deadline is reached."""


class Clock:
    """The clock of many deadlines. `run` must run beside them."""

    def __init__(self) -> None:
        self._alarms: list[tuple[float, int, ref[Timed]]] = []
        self._order = count()
        self._sleep = trio.CancelScope()

    def wake_at(self, time: float, timed: Timed) -> None:
        heappush(self._alarms, (time, next(self._order), ref(timed)))
        if time < self._sleep.deadline:
            self._sleep.deadline = time

    async def run(self) -> None:
        """Ring at each deadline, until cancelled."""
        while True:
            with trio.CancelScope(deadline=self._alarms[0][0] if self._alarms else math.inf) as self._sleep:
                await trio.sleep_forever()
            now = trio.current_time()
            while self._alarms and self._alarms[0][0] <= now:
                alarm, _, found = heappop(self._alarms)
                timed = found()
                if timed is not None:
                    timed.ring(alarm, now)
