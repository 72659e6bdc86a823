"""Delays before the next connection attempt or the next reading of lists. Pure: the caller passes the time."""

from __future__ import annotations

import math
from collections import deque

from msgspec import Struct, field

INITIAL_DELAY = 0.25
FACTOR = 2.0
MAX_DELAY = 60.0
HEALTHY_AFTER = 10.0
"""Seconds that a server must have been ready until its earlier failures do not count any more."""


class Backoff(Struct):
    """Exponential backoff: the delay after failures in a row, from 0.25 s, doubling up to a minute.

    Jitter keeps servers that failed together from being connected together.
    """

    failures: int = 0

    def on_failure(self, ready_for: float, jitter: float) -> float:
        """Count a failure, and return the seconds to wait.

        Args:
            ready_for: seconds that the server had been ready.
            jitter: random number from 0 to 1.
        """
        if ready_for >= HEALTHY_AFTER:
            self.failures = 0
        delay = min(INITIAL_DELAY * FACTOR**self.failures, MAX_DELAY)
        self.failures = min(self.failures + 1, 32)
        return delay * (0.8 + 0.4 * jitter)


MAX_STARTS = 5
WINDOW = 60.0
"""Restart intensity: at most MAX_STARTS starts within WINDOW seconds. If more are needed, another start does not help.
"""
RESTART_FACTOR = 4.0
"""Starts are further apart than other attempts, so that five of them cover an ordinary outage."""


class Restarts(Struct):
    """Delays between the starts of one server: after failures in a row 0.25 s, 1 s, 4 s and 16 s, then a minute. Never
    more than MAX_STARTS within WINDOW, however long the server was ready in between."""

    failures: int = 0
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STARTS))
    """Times of the last starts."""

    def on_start(self, now: float) -> None:
        """Count a start."""
        self.starts.append(now)

    def within_intensity(self, now: float) -> bool:
        """Whether fewer than MAX_STARTS starts were made within WINDOW."""
        return len(self.starts) < MAX_STARTS or now - self.starts[0] >= WINDOW

    def may_start(self, now: float) -> bool:
        """Whether the server may be started again at once: the intensity permits it, and fewer than MAX_STARTS failures
        in a row came before."""
        return self.failures < MAX_STARTS and self.within_intensity(now)

    def on_failure(self, ready_for: float, jitter: float, now: float) -> float:
        """Seconds to wait before the next start; see `Backoff.on_failure`."""
        if ready_for >= HEALTHY_AFTER:
            self.failures = 0
        delay = min(INITIAL_DELAY * RESTART_FACTOR**self.failures, MAX_DELAY) * (0.8 + 0.4 * jitter)
        self.failures = min(self.failures + 1, MAX_STARTS)
        return delay if self.may_start(now + delay) else MAX_DELAY * (1.0 + 0.2 * jitter)


READ_SHARE = 0.02
"""Processor seconds that reading the lists of one server may take in a second. What is not charged (storing, rendering
for each kind of client, notifying, collecting garbage) takes nearly as long; all of it stays below a twentieth of a
processor."""
READ_CREDIT = 0.2
"""Processor seconds that readings may take beyond that at once. Lists of some hundred tools take 0.01 s to read, so a
server may change them many times in a row."""
AWAITED_SHARE = 0.2
MAX_AWAITED_PAUSE = 10.0
"""Share for readings that a call waits for, and longest wait, in seconds, since the reading before began."""
MIN_SPACING = 0.25
"""Seconds between the beginnings of two readings of announced lists."""


class ReadingBudget(Struct):
    """Processor time for reading and comparing the lists of one server. A server may change its lists as often as it
    likes: the work is limited, so lists that cost little are read at each change. One object for all connections of the
    server: otherwise a server could end its connection, or change its era, to be read at once."""

    owed: float = 0.0
    """Processor seconds above the share, at the time `counted_at`."""
    counted_at: float = 0.0
    cost: float = 0.0
    """Processor seconds of the reading in progress, or of the last one."""
    began: float = -math.inf
    """Time at which it began."""
    is_first: bool = True
    """No reading has ended yet: a server may be listed once, however long its lists are."""

    def charge(self, now: float, seconds: float) -> None:
        """Charge processor time."""
        self.owed, self.counted_at = self._owed(now) + seconds, now
        self.cost += seconds

    def begin(self, now: float) -> None:
        """Begin a reading. One that is begun before `free_at`, because a call waits for it, is not made up for later:
        calls could otherwise keep lists from being read for hours."""
        self.owed, self.counted_at = min(self._owed(now), READ_CREDIT), now
        self.cost, self.began = 0.0, now

    def end(self, now: float) -> None:
        """End a reading."""
        if self.is_first:
            self.owed, self.counted_at, self.is_first = 0.0, now, False

    def free_at(self, now: float, *, awaited: bool = False) -> float:
        """The time, not before `now`, from which on lists may be read again. `awaited`: a call waits for them."""
        at = now + max(self._owed(now) - READ_CREDIT, 0.0) / READ_SHARE
        pause = min(self.cost / AWAITED_SHARE, MAX_AWAITED_PAUSE)
        return max(now, min(at, self.began + pause)) if awaited else at

    @property
    def interval(self) -> float:
        """Seconds between two readings that cost as much as the last one, if its lists change all the time."""
        return max(self.cost / READ_SHARE, MIN_SPACING)

    def _owed(self, now: float) -> float:
        return max(self.owed - (now - self.counted_at) * READ_SHARE, 0.0)
