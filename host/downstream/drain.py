"""The end of a host that is told to stop while clients use it: what is under way may end, within `drain`.

    begun     `/readyz` says 503, so that balancers send nothing more; each answer over HTTP ends its connection
    noticed   balancers have seen that: no session is opened, and a call that waits for a person is given up, unsent
              in a fleet, sessions are handed over from then on (host/fleet/handover.py)
    over      what was under way has ended, or its time is up: streams end, and the listener takes nothing more

Until the last step everything else is served as before, because a client that is refused shows its user an error. What
came after `noticed` is not waited for, or a host that is busy would never end: the listener has GRACE for it.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from enum import StrEnum, auto

import trio

from host.downstream.call_store import CallStore
from host.downstream.http.security import Refusal
from host.memory import Budget, Use
from host.wire.acceptor import GRACE

NOTICE = 5.0
"""Seconds that balancers have to notice: two looks of one that looks each two seconds, and what is on its way then."""
WATCHED = 60.0
"""Seconds since somebody asked for `/readyz`, within which a balancer may be looking."""
SETTLE = 2.0
"""Seconds for a moment without any request, once what was to be waited for has ended: relays have no listener that
stops."""
FETCH = 5.0
"""Seconds before that in which clients fetch the results of tasks that ended meanwhile."""
_LOOK = 0.05
"""Seconds between two looks whether all has ended."""
STOPPING = Refusal(503, "this server is stopping; try again in a moment", {"retry-after": "5"})
"""The refusal of a new session while the host stops."""


class Stage(StrEnum):
    """The stage of a host's life."""

    STARTING = auto()
    """Its first lists are not known yet."""
    SERVING = auto()
    DRAINING = auto()


class Drain:
    """The drain of one host.

    Args:
        limit: seconds that it may take, as they are configured when it begins.
        memory: its holdings for requests are the requests that are being served.
        calls: those that may outlive their requests.
        give_up: ends what waits for a person.
    """

    def __init__(
        self, limit: Callable[[], float], memory: Budget, calls: CallStore, give_up: Callable[[], object]
    ) -> None:
        self._limit = limit
        self._memory = memory
        self.calls = calls
        self._give_up = give_up
        self._asked_at = -math.inf
        self._deadline = -math.inf
        self.ready = trio.Event()
        """The first lists are known, or their time is up."""
        self.begun = trio.Event()
        self.noticed = trio.Event()
        self.over = trio.Event()
        self.begins_elsewhere: Callable[[], bool] = lambda: False
        """Whether other processes serve what clients begin, so that all calls that are left here can be waited for."""
        self.is_handing_over: Callable[[], bool] = lambda: False
        """Whether sessions are here that other processes are to have."""

    @property
    def stage(self) -> Stage:
        if self.begun.is_set():
            return Stage.DRAINING
        return Stage.SERVING if self.ready.is_set() else Stage.STARTING

    def why_unready(self) -> str:
        """Why balancers should send no new clients now; empty if they should. Whoever asks may be one of them."""
        self._asked_at = trio.current_time()
        if self.begun.is_set():
            return "stopping"
        return "" if self.ready.is_set() else "starting: the lists of servers are not known yet"

    def rest(self) -> float:
        """Seconds that requests still have when the listener stops."""
        return max(GRACE, self._deadline - trio.current_time())

    async def run(self, *, by_person: bool) -> None:
        """Drain, and return when the host is to end.

        Args:
            by_person: at a terminal, who waits, and has no balancer in front.
        """
        self.begun.set()
        self._deadline = trio.current_time() + self._limit()
        with trio.move_on_at(self._deadline):
            if not by_person and trio.current_time() - self._asked_at < WATCHED:
                await trio.sleep(NOTICE)
            self.noticed.set()
            self._give_up()
            await self._wait_ended()
        self.noticed.set()
        self.over.set()

    async def _wait_ended(self) -> None:
        requests, calls = self._memory.holdings(Use.REQUESTS), self.calls.awaited()

        def have_ended() -> bool:
            nonlocal calls
            if self.begins_elsewhere():
                calls |= self.calls.awaited()
            is_done = all(each.dropped for each in requests) and not calls & self.calls.unfinished()
            return is_done and not self.is_handing_over()

        await _wait_until(have_ended)
        with trio.move_on_after(FETCH):
            await _wait_until(lambda: not calls & self.calls.awaited())
        with trio.move_on_after(SETTLE):
            await _wait_until(lambda: not self._memory.holdings(Use.REQUESTS))


async def _wait_until(condition: Callable[[], bool]) -> None:
    """Look again and again: an event would cost something with every request, and a host drains once."""
    while True:
        if condition():
            return
        await trio.sleep(_LOOK)
