"""Fair turns for reading from servers: all readers of one host together work PASS_BUDGET seconds in one pass of the
event loop.

A reader accounts for the time that each message takes, and yields to the rest of the program before its next message
once the budget of the pass is used up. Trio shuffles the tasks of each pass, so no reader is always first; each may
handle one message in a pass, however much the others used.

The beginning of a pass needs no hook in the event loop: a reader that yielded runs again in the next pass, and the
first one to do so renews the budget. A budget that was not used up in an earlier pass is not renewed, which only makes
a reader yield earlier.
"""

from __future__ import annotations

from collections.abc import Callable
from time import perf_counter

import trio

PASS_BUDGET = 0.0005
"""Seconds of each pass of the event loop. A call takes some ten passes."""


class Turns:
    """The budget of one host. `clock` returns seconds; tests replace it."""

    def __init__(self, clock: Callable[[], float] = perf_counter) -> None:
        self._clock = clock
        self.spent = 0.0
        """Seconds of this pass."""
        self._renewals = 0

    def turn(self) -> Turn:
        """A turn for one reader, to be used by one task."""
        return Turn(self, self._clock)

    async def next_pass(self) -> None:
        """Let every other task run once, and renew the budget."""
        renewals = self._renewals
        await trio.lowlevel.checkpoint()
        # Of several readers that yielded in the same pass, only the first one renews the budget.
        if self._renewals == renewals:
            self._renewals += 1
            self.spent = 0.0


class Turn:
    """The working time of one reader. Call `begin` after each wait for input and `yield_if_over` after each message."""

    __slots__ = ("_began", "_clock", "_turns")

    def __init__(self, turns: Turns, clock: Callable[[], float]) -> None:
        self._turns = turns
        self._clock = clock
        self._began = clock()

    def begin(self) -> None:
        self._began = self._clock()

    def account(self) -> None:
        """Account for the time since `begin` without yielding."""
        now = self._clock()
        self._turns.spent += now - self._began
        self._began = now

    async def wait_for_share(self) -> None:
        """Wait for a pass whose budget is not used up yet. Of many readers that do this before each message, those of
        one pass together exceed the budget by one message; at least one has its turn in each."""
        while self._turns.spent >= PASS_BUDGET:
            await self._turns.next_pass()

    async def yield_if_over(self) -> None:
        """Account for the time since `begin`; if the budget is used up, continue in the next pass."""
        self.account()
        if self._turns.spent >= PASS_BUDGET:
            await self._turns.next_pass()
            self._began = self._clock()
