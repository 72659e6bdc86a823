"""Limits of a server: calls per time, concurrent calls, size of results, sampling requests.

This module counts, and refuses with the time of a retry. It knows nothing of the requests it counts, and has no task: a
budget is the amount spent, minus the amount that has come back since the last look.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Protocol

import trio

from config import Limits, Rate, Trust
from host.errors import TooLarge, TooManyRequests
from host.jsonrpc.raw import encode

MAX_QUEUE = 32
"""Calls that may wait for other calls of their server to end."""
QUEUE_TIMEOUT = 30.0
"""Seconds that a call waits at most."""
PREPARATIONS = 5
"""Times that a server's request waits for one budget since another one was taken from meanwhile."""
QUEUE_RETRY = 1.0
"""Seconds after which a call that found no place may try again; the end of running calls is unknown."""
DEFAULT_SAMPLING = Rate(60, 3600.0)
"""Rate of sampling requests for a server that is not trusted, if the configuration has none."""

_ROUNDING = 1e-6


class Meter:
    """Use of the limits of one server. Must be used inside trio.

    A rate admits `count` uses at once, and restores them evenly over its time. Without a configured limit there is
    none, except for SAMPLING requests of a server that is not trusted.
    """

    def __init__(
        self, server: str, limits: Limits, trust: Trust = Trust.STANDARD, shares: Shares | None = None
    ) -> None:
        if limits.sampling is None and trust is not Trust.TRUSTED:
            limits = replace(limits, sampling=DEFAULT_SAMPLING)
        self.server = server
        self._limits = limits
        self._used = Usage(server, limits, _ALONE if shares is None else shares)

    @property
    def running(self) -> int:
        """Number of calls in progress."""
        return self._used.running

    @property
    def waiting(self) -> int:
        """Number of calls that wait for those in progress."""
        return len(self._used.queue)

    @property
    def refused(self) -> int:
        """Number of uses that a limit has refused."""
        return self._used.refused

    def take_over(self, former: Meter) -> None:
        """Take over the counts of the server's meter from before a reload: running and waiting calls and spent budgets
        count by the new limits. The former meter shares the counts from now on."""
        self._used = former._used
        self._used.change(self._limits)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Context manager around one call; see `begin_call`."""
        if (waiting := self.begin_call()) is not None:
            await waiting
        try:
            yield
        finally:
            self.end_call()

    def begin_call(self) -> Awaitable[None] | None:
        """Begin a call; `end_call` must follow. None if it has begun; otherwise await what is returned: calls wait in
        the order of arrival while the maximum of them run. A waiting call that is cancelled leaves no trace.

        Raises, here or then:
            TooManyRequests: too many calls in the time, too many waiting, or QUEUE_TIMEOUT is over. `data` says when to
                try again.
        """
        used = self._used
        calls = used.calls
        # Waiting calls have not used their turn yet, and go first.
        if calls is not None and (seconds := calls.seconds_until(len(used.queue) + 1)) > 0:
            raise self._too_many_requests(f"may be called {_per(calls.rate)}", seconds)
        if used.queue or (used.places is not None and used.full):
            if used.places is not None and not used.places.share:
                raise self._too_many_requests(
                    f"runs {used.places.count} calls at once in all, and none of them at this process of the fleet",
                    QUEUE_RETRY,
                )
            return self._wait_in_queue(used)
        used.begin()
        return None

    def end_call(self) -> None:
        """End a call; the next waiting one begins. A meter that took this one over has the same counts."""
        self._used.end()

    async def _wait_in_queue(self, used: Usage) -> None:
        if len(used.queue) >= MAX_QUEUE:
            raise self._too_many_requests(
                f"runs as many calls at once as it may, and {MAX_QUEUE} more wait already", QUEUE_RETRY
            )
        place = trio.Event()
        used.queue.append(place)
        try:
            with trio.move_on_after(QUEUE_TIMEOUT):
                await place.wait()
        except BaseException:
            if place.is_set():  # the call got its turn and was cancelled at the same moment
                used.undo()
            raise
        finally:
            if not place.is_set():
                used.queue.remove(place)
        if not place.is_set():
            raise self._too_many_requests(
                f"runs as many calls at once as it may, and none ended in {QUEUE_TIMEOUT:g} s", QUEUE_RETRY
            )

    def check_result_size(self, size: int) -> None:
        """Raise TooLarge if a result of `size` bytes is larger than the server may send."""
        limit = self._limits.result
        if limit is not None and size > limit:
            sent = f"{self.server} carried it out, but sent {size} bytes"
            raise TooLarge(self.server, f"{sent}; limits.result lets it send {limit} in one result")

    def admit_waiting(self) -> None:
        """Begin the waiting calls that may run by now."""
        self._used.admit_queued()

    async def prepare_sampling(self, max_tokens: int | None) -> None:
        """Wait until it is known whether `charge_sampling` may take so much."""
        requests, tokens = self._used.sampling, self._used.tokens
        for _ in range(PREPARATIONS):
            has_waited = False
            if tokens is not None:
                has_waited = await tokens.prepare(tokens.rate.count if max_tokens is None else max_tokens)
            if requests is not None and await requests.prepare(1):
                has_waited = True
            if not has_waited:  # so nobody has taken anything since the first one was looked at
                return

    def charge_sampling(self, max_tokens: int | None) -> None:
        """Charge one sampling request and its tokens to the budgets, or nothing to either. A request without a number
        of tokens counts as one for the whole budget.

        Raises:
            TooManyRequests: a budget is exhausted. `data` says when to try again, if a retry can succeed.
        """
        requests, tokens = self._used.sampling, self._used.tokens
        wanted = 0
        if tokens is not None:
            wanted = tokens.rate.count if max_tokens is None else max(max_tokens, 0)
            if wanted > tokens.rate.count:
                raise TooManyRequests(
                    f"{self.server} may ask models for {_per(tokens.rate, 'token')}, and wants {wanted} at once"
                )
            if (seconds := tokens.seconds_until(wanted)) > 0:
                raise self._too_many_requests(f"may ask models for {_per(tokens.rate, 'token')}", seconds)
        if requests is not None:
            if (seconds := requests.seconds_until(1)) > 0:
                raise self._too_many_requests(f"may send {_per(requests.rate, 'sampling request')}", seconds)
            requests.take(1)
        if tokens is not None:
            tokens.take(wanted)

    def _too_many_requests(self, what: str, seconds: float) -> TooManyRequests:
        self._used.refused += 1
        # Sums of floats are inexact; rounding keeps an exact second from becoming the next one.
        again = max(math.ceil(round(seconds * 1000, 3)), 1)
        return TooManyRequests(
            f"{self.server} {what}; try again in {again / 1000:g} s", data=encode({"retryAfterMs": again})
        )


def _per(rate: Rate, unit: str = "time") -> str:
    return f"{rate.count} {unit}{'' if rate.count == 1 else 's'} in {rate.seconds:g} s"


class Allowance(Protocol):
    """The part of a rate that may be used."""

    rate: Rate

    def seconds_until(self, wanted: int) -> float:
        """Seconds until the amount may be taken; 0 if it may be taken now."""

    def take(self, count: int) -> None:
        """Take so much; a negative amount was taken and not used."""

    def has_one(self) -> bool:
        """Whether a call that was let in, and waited, may begin."""

    def with_rate(self, rate: Rate | None) -> Allowance | None:
        """The same use under another rate. More than the whole new budget is not owed."""

    async def prepare(self, wanted: int) -> bool:
        """Wait until it is known whether so much may be taken. Returns whether it may, and was waited for: others may
        have taken of another budget meanwhile."""


class Places(Protocol):
    """The calls that may run at once."""

    @property
    def count(self) -> int:
        """As many as the configuration says, at all processes together."""

    @property
    def share(self) -> int:
        """The part of them that is for this process."""

    @property
    def held(self) -> int:
        """The number that it may run now, with those that run."""


class Shares(Protocol):
    """The limits that this process has: all, or a part that others may have too."""

    def budget(self, server: str, kind: str, rate: Rate) -> Allowance: ...

    def places(self, server: str, count: int, running: Callable[[], int]) -> Places:
        """The places for `count` calls at once, of which so many run here."""


class _AllPlaces:
    def __init__(self, count: int) -> None:
        self.count = self.share = self.held = count


class _Alone:
    def budget(self, server: str, kind: str, rate: Rate) -> Allowance:
        return _RateBudget(rate)

    def places(self, server: str, count: int, running: Callable[[], int]) -> Places:
        return _AllPlaces(count)


_ALONE = _Alone()


class _RateBudget:
    """The amount spent of a rate. It starts at 0 and decreases with time."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._spent = 0.0
        self._at = trio.current_time()

    def seconds_until(self, wanted: int) -> float:
        now = trio.current_time()
        self._spent = max(self._spent - (now - self._at) * self.rate.count / self.rate.seconds, 0.0)
        self._at = now
        over = self._spent + wanted - self.rate.count
        return over * self.rate.seconds / self.rate.count if over > _ROUNDING else 0.0

    def take(self, count: int) -> None:
        self.seconds_until(count)
        self._spent += count

    def has_one(self) -> bool:
        return True  # it was counted when the call came

    async def prepare(self, wanted: int) -> bool:
        return False

    def with_rate(self, rate: Rate | None) -> _RateBudget | None:
        if rate is None:
            return None
        self.seconds_until(0)
        made = _RateBudget(rate)
        made._spent = min(self._spent, float(rate.count))
        return made


class Usage:
    """Current use of the limits of one server, handed from meter to meter by reloads. The first event in `queue` is
    next; an event is set and removed when its call may run."""

    def __init__(self, server: str, limits: Limits, shares: Shares) -> None:
        self._server = server
        self._shares = shares
        self.running = self.refused = 0
        self.queue: deque[trio.Event] = deque()
        self.calls: Allowance | None = None
        self.sampling: Allowance | None = None
        self.tokens: Allowance | None = None
        self.change(limits)

    def _budget(self, kind: str, former: Allowance | None, rate: Rate | None) -> Allowance | None:
        if former is not None:
            return former.with_rate(rate)
        return None if rate is None else self._shares.budget(self._server, kind, rate)

    def change(self, limits: Limits) -> None:
        self.places = self._places(limits.concurrent)
        self.calls = self._budget("calls", self.calls, limits.calls)
        self.sampling = self._budget("sampling", self.sampling, limits.sampling)
        self.tokens = self._budget("tokens", self.tokens, limits.sampling_tokens)
        self.admit_queued()

    def _places(self, count: int | None) -> Places | None:
        return None if count is None else self._shares.places(self._server, count, lambda: self.running)

    @property
    def full(self) -> bool:
        return self.places is not None and self.running >= self.places.held

    def begin(self) -> None:
        self.running += 1
        if self.calls is not None:
            self.calls.take(1)

    def end(self) -> None:
        self.running -= 1
        if self.queue:
            self.admit_queued()

    def undo(self) -> None:
        """Undo the beginning of a call."""
        if self.calls is not None:
            self.calls.take(-1)
        self.end()

    def admit_queued(self) -> None:
        while self.queue and not self.full and (self.calls is None or self.calls.has_one()):
            self.begin()
            self.queue.popleft().set()
