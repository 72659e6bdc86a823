"""The return of a process that did not run for a while: stopped by a signal, or suspended with its machine.

Meanwhile the others may have taken it for gone, and told people that what they took away holds nowhere any more. What
is in its memory then counts for nothing until it has asked what is stored. That the database does not answer is another
matter (host/storage/postgres.py): the process ran, and approved definitions hold for a while.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import final

import trio

TICK = 0.25
"""Seconds between two marks that the process runs."""
ABSENT = 1.0
"""Seconds without a mark after which it was away: less than is left of a lease at any time (host/fleet/members.py), and
more than a pass of the event loop takes."""


@final
class Absence:
    """Notices at the first look that this process was away. `run` must run beside it.

    Args:
        catch_up: takes over what the others have decided.
        now: seconds of a clock that goes on while the machine is suspended.
    """

    def __init__(self, catch_up: Callable[[], Awaitable[object]], now: Callable[[], float]) -> None:
        self._catch_up = catch_up
        self._now = now
        self._ran_at = now()
        self._absences = self._caught_up = 0
        self._noticed = trio.Event()
        self._returned = trio.lowlevel.ParkingLot()

    def is_behind(self) -> bool:
        """Whether the process was away, and has not caught up with the others yet. Never waits."""
        now = self._now()
        if now - self._ran_at > ABSENT:
            self._absences += 1
            self._noticed.set()
            self._ran_at = now
        return self._absences != self._caught_up

    async def wait_returned(self) -> None:
        """Wait until the process is not behind."""
        while self.is_behind():
            await self._returned.park()

    async def run(self) -> None:
        """Watch, and catch up, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._mark)
            while True:
                await self._noticed.wait()
                self._noticed, absences = trio.Event(), self._absences
                await self._catch_up()
                self._caught_up = absences
                self._returned.unpark_all()

    async def _mark(self) -> None:
        while True:
            self.is_behind()
            self._ran_at = self._now()
            await trio.sleep(TICK)
