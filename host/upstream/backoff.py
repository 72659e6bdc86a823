"""When to try again, as plain functions of what happened. No clock, no waiting."""

from __future__ import annotations

from dataclasses import dataclass

FIRST = 0.25
FACTOR = 2.0
LONGEST = 60.0
HEALTHY = 10.0
"""Seconds a server must have been ready for its earlier failures to be forgotten."""


@dataclass
class Backoff:
    """Counts failures in a row and says how long to wait after each: 0.25 s, doubling up to a minute.

    Jitter keeps servers that failed together from coming back together.
    """

    failures: int = 0

    def failed(self, ready_for: float, jitter: float) -> float:
        """Seconds to wait. `ready_for`: how long the server had been ready; `jitter`: from 0 to 1, by chance."""
        if ready_for >= HEALTHY:
            self.failures = 0
        delay = min(FIRST * FACTOR**self.failures, LONGEST)
        self.failures = min(self.failures + 1, 32)
        return delay * (0.8 + 0.4 * jitter)


SETTLE = 0.05
SLOWEST = 10.0


@dataclass
class Pace:
    """How long to let a list settle before it is read again: at once if the last reading was long ago, ever slower
    while a server goes on announcing changes."""

    wait: float = SETTLE

    def next(self, since_last: float) -> float:
        """Seconds to wait now. `since_last`: seconds since the list was last read."""
        quiet = since_last > 2 * self.wait + 1.0
        self.wait = SETTLE if quiet else min(self.wait * 2, SLOWEST)
        return self.wait
