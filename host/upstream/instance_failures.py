"""Failures of the dedicated instances of one server, and the pauses that follow. The caller passes the time.

Failures are counted for each caller, because a start that fails for one may work for another. Too many failed starts,
for any callers, make all of them wait.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Hashable

from host.exchange import Caller
from host.upstream.backoff import MAX_STARTS, WINDOW, Restarts

FAILURE_TTL = 120.0
"""Seconds after which failed starts do not count any more."""


class _Record:
    """Failures of the instances of one caller. Only instances that failed count as starts, because `per-call` starts
    one for each call."""

    def __init__(self, now: float) -> None:
        self.restarts = Restarts()
        self.blocked_until = now


class InstanceFailures:
    """The failures of the instances of one server.

    Args:
        max_instances: so many instances may run at once.
    """

    def __init__(self, max_instances: int) -> None:
        self._records: dict[Hashable | None, _Record] = {}
        """By `_blamed_key`."""
        self._failed_starts: deque[float] = deque(maxlen=MAX_STARTS * max_instances)
        """Times of failed starts, for any caller, since the last successful start."""

    def _record(self, caller: Caller, now: float) -> _Record:
        blamed = _blamed_key(caller)
        if blamed not in self._records:
            self._records = {key: each for key, each in self._records.items() if each.blocked_until + FAILURE_TTL > now}
            self._records[blamed] = _Record(now)
        return self._records[blamed]

    def wait(self, caller: Caller, now: float) -> float:
        """Seconds until an instance may be started for this caller; 0 or less if it may now."""
        # Later failures do not count for all: a call may have caused them, and one caller must not stop the others.
        is_full = len(self._failed_starts) == self._failed_starts.maxlen
        all_until = self._failed_starts[0] + WINDOW if is_full else 0.0
        return max(self._record(caller, now).blocked_until, all_until) - now

    def on_start(self, caller: Caller, now: float) -> None:
        """Count a start. After too many failures in a row, one attempt shows whether it works again."""
        record = self._record(caller, now)
        if record.restarts.failures >= MAX_STARTS:
            record.blocked_until = now + WINDOW

    def on_ready(self) -> None:
        """Note that a start was successful."""
        self._failed_starts.clear()

    def on_success(self, caller: Caller, now: float, *, ends_series: bool) -> None:
        """Permit the next start after an instance was used and did not fail, unless too many failed within WINDOW.

        Args:
            ends_series: failures in a row end with this. An instance of a client must live for a while first.
        """
        record = self._record(caller, now)
        if ends_series:
            record.restarts.failures = 0
        if record.restarts.within_intensity(now):
            record.blocked_until = now

    def on_failure(
        self, caller: Caller, ready_for: float | None, jitter: float, now: float, *, is_misused: bool
    ) -> float:
        """Count a failure. Returns the seconds to wait before the next start.

        Args:
            ready_for: seconds that the instance was connected; None if it never was.
            jitter: random number from 0 to 1.
            is_misused: another instance would end in the same way.
        """
        record = self._record(caller, now)
        record.restarts.on_start(now)
        if ready_for is None:
            self._failed_starts.append(now)
        delay = record.restarts.on_failure(ready_for or 0.0, jitter, now)
        # A single failure of a connected instance may be caused by its call; the next call is another one.
        is_crash_loop = record.restarts.failures > 1 or not record.restarts.within_intensity(now)
        if ready_for is None or is_misused or is_crash_loop:
            record.blocked_until = now + delay
        return delay


def _blamed_key(caller: Caller) -> Hashable | None:
    """The key under which the failures for a caller are counted: its access token, because a token may have any number
    of sessions; without a token its session; all callers without a session count together."""
    return caller.session if caller.identity is None else caller.identity
