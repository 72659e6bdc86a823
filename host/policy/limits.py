"""Limits of a server: calls per time, concurrent calls, the size of results, sampling requests.

This file counts, and says no with the time when to try again. It refuses to know what is counted. It keeps no clock and
no task of its own: a budget is what was spent, less what has come back since somebody last looked.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace

import trio

from config import Limits, Rate, Trust
from host.errors import TooLarge, TooManyRequests
from host.jsonrpc.raw import encode

MAX_QUEUE = 32
"""So many calls may wait for others of their server to end."""
QUEUE_TIMEOUT = 30.0
"""Seconds that one of them waits at the most."""
QUEUE_RETRY = 1.0
"""After so many seconds a call that found no place may try again; nobody knows when calls end."""
DEFAULT_SAMPLING = Rate(60, 3600.0)
"""The rate of sampling requests for a server that is not trusted, if the configuration has none."""

_ROUNDING = 1e-6


class Meter:
    """The use that one server makes of its limits. Must be used inside trio.

    A rate lets `count` uses come at once, and gives them back evenly over its time. Without a limit in the
    configuration there is none, except that a server which is not trusted may send SAMPLING requests.
    """

    def __init__(self, server: str, limits: Limits, trust: Trust = Trust.STANDARD) -> None:
        if limits.sampling is None and trust is not Trust.TRUSTED:
            limits = replace(limits, sampling=DEFAULT_SAMPLING)
        self.server = server
        self._limits = limits
        self._used = _Usage(limits)

    @property
    def running(self) -> int:
        """How many calls are in progress."""
        return self._used.running

    @property
    def waiting(self) -> int:
        """How many calls wait for those in progress."""
        return len(self._used.queue)

    def take_over(self, former: Meter) -> None:
        """Goes on where the meter of the same server before a reload stands: what is in progress, waits and was spent
        counts here, by the new limits. The former meter counts together with this one from now on."""
        self._used = former._used
        self._used.change(self._limits)

    @asynccontextmanager
    async def slot(self) -> AsyncIterator[None]:
        """Around one call. Waits, in the order of coming, while as many calls run as may; a call that waits and is
        cancelled was never there.

        Raises:
            TooManyRequests: too many calls in the time, too many waiting, or QUEUE_TIME is over. `data` says when to
            try again.
        """
        used = self._used
        calls = used.calls
        # Those who wait have not used theirs yet, and are first.
        if calls is not None and (seconds := calls.seconds_until(len(used.queue) + 1)) > 0:
            raise self._too_many_requests(f"may be called {_per(calls.rate)}", seconds)
        if used.full or used.queue:
            await self._wait_in_queue(used)
        else:
            used.begin()
        try:
            yield
        finally:
            used.end()

    async def _wait_in_queue(self, used: _Usage) -> None:
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
            if place.is_set():  # called up and cancelled at the same moment
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
        """Raises TooLarge if a result of so many bytes is more than the server may send."""
        limit = self._limits.result
        if limit is not None and size > limit:
            sent = f"{self.server} carried it out, but sent {size} bytes"
            raise TooLarge(self.server, f"{sent}; limits.result lets it send {limit} in one result")

    def charge_sampling(self, max_tokens: int | None) -> None:
        """Take one sampling request, and the tokens that it asks for, from the budgets; or nothing from either. A
        request that does not say how many tokens it wants is taken to want the whole budget of them.

        Raises:
            TooManyRequests: one of the budgets does not have it. `data` says when to try again, if that is of use.
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
        again = max(math.ceil(round(seconds * 1000, 3)), 1)  # sums of floats end in dust
        return TooManyRequests(
            f"{self.server} {what}; try again in {again / 1000:g} s", data=encode({"retryAfterMs": again})
        )


def _per(rate: Rate, unit: str = "time") -> str:
    return f"{rate.count} {unit}{'' if rate.count == 1 else 's'} in {rate.seconds:g} s"


class _RateBudget:
    """The amount spent of a rate. It starts at 0 and decreases with time."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._spent = 0.0
        self._at = trio.current_time()

    def seconds_until(self, wanted: int) -> float:
        """Seconds until so much may be taken; 0 if it may now."""
        now = trio.current_time()
        self._spent = max(self._spent - (now - self._at) * self.rate.count / self.rate.seconds, 0.0)
        self._at = now
        over = self._spent + wanted - self.rate.count
        return over * self.rate.seconds / self.rate.count if over > _ROUNDING else 0.0

    def take(self, count: int) -> None:
        self.seconds_until(count)
        self._spent += count

    def with_rate(self, rate: Rate | None) -> _RateBudget | None:
        """The same by another rate. More than all of it is not owed."""
        if rate is None:
            return None
        self.seconds_until(0)
        made = _RateBudget(rate)
        made._spent = min(self._spent, float(rate.count))
        return made


class _Usage:
    """The current use of the limits; a reload hands it on from meter to meter. In `queue`, who is next is first, and an
    event is set and gone from it when the call may run."""

    def __init__(self, limits: Limits) -> None:
        self.running = 0
        self.queue: deque[trio.Event] = deque()
        self.concurrent = limits.concurrent
        self.calls = _RateBudget(limits.calls) if limits.calls else None
        self.sampling = _RateBudget(limits.sampling) if limits.sampling else None
        self.tokens = _RateBudget(limits.sampling_tokens) if limits.sampling_tokens else None

    def change(self, limits: Limits) -> None:
        fresh = _Usage(limits)
        self.concurrent = limits.concurrent
        self.calls = self.calls.with_rate(limits.calls) if self.calls else fresh.calls
        self.sampling = self.sampling.with_rate(limits.sampling) if self.sampling else fresh.sampling
        self.tokens = self.tokens.with_rate(limits.sampling_tokens) if self.tokens else fresh.tokens
        self._admit_queued()

    @property
    def full(self) -> bool:
        return self.concurrent is not None and self.running >= self.concurrent

    def begin(self) -> None:
        self.running += 1
        if self.calls is not None:
            self.calls.take(1)

    def end(self) -> None:
        self.running -= 1
        self._admit_queued()

    def undo(self) -> None:
        """A call that began a moment ago ends as if it had not."""
        if self.calls is not None:
            self.calls.take(-1)
        self.end()

    def _admit_queued(self) -> None:
        while self.queue and not self.full:
            self.begin()
            self.queue.popleft().set()
