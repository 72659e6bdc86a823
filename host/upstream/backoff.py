"""Delays before the next connection attempt or the next reading of lists. Pure: the caller passes the time."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

INITIAL_DELAY = 0.25
FACTOR = 2.0
MAX_DELAY = 60.0
HEALTHY_AFTER = 10.0
"""Seconds that a server must have been ready until its earlier failures do not count any more."""


@dataclass
class Backoff:
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


@dataclass
class Restarts:
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


MIN_PAUSE = 0.05
MAX_PAUSE = 10.0
"""Longest wait, in seconds, while a server keeps announcing changes of lists that do not change."""
READ_SHARE = 4.0
"""After a reading, the next one waits so many times as long as the reading took."""
CALM_AFTER = 5.0
"""Changes that do not delay the next reading."""
MAX_FLAPPING_PAUSE = 300.0
"""Longest wait, in seconds, while lists keep changing."""
HALF_LIFE = 900.0
"""Seconds after which a change counts half."""


@dataclass
class Pace:
    """Rate of reading the lists of one server: at once if the last reading was long ago, ever slower while the server
    keeps announcing changes. After CALM_AFTER changes the wait doubles with each change; lists that keep changing are
    read some thirty times an hour. One object for all connections of the server: otherwise a server could end its
    connection to be read at once."""

    wait: float = MIN_PAUSE
    changes: float = 0.0
    counted_at: float = 0.0
    last_read: float = -math.inf
    """Time of the last reading."""

    def next_waits(self, now: float, *, read_seconds: float) -> tuple[float, float]:
        """Seconds to wait before the next reading: if a request waits for the lists, and otherwise.

        Args:
            read_seconds: duration of the last reading.
        """
        quiet = now - self.last_read > 2 * self.wait + 1.0
        self.wait = MIN_PAUSE if quiet else min(self.wait * 2, MAX_PAUSE)
        min_wait = max(MIN_PAUSE, min(read_seconds * READ_SHARE, MAX_PAUSE) - (now - self.last_read))
        return min_wait, max(self.wait, self.flapping_pause(now), min_wait)

    def flapping_pause(self, now: float) -> float:
        """Seconds until lists that keep changing may be read again; 0 or less if they may be read now."""
        changes = self._decayed_changes(now)
        if changes <= CALM_AFTER:
            return 0.0
        flapping: float = min(2.0 ** (changes - CALM_AFTER), MAX_FLAPPING_PAUSE)
        return flapping - (now - self.last_read)

    def on_read(self, now: float, *, changed: bool) -> None:
        """Record a reading. `changed`: the lists differ from the last reading; ignored for the first one."""
        if changed and self.last_read > -math.inf:
            self.changes, self.counted_at = self._decayed_changes(now) + 1.0, now
        self.last_read = now

    def _decayed_changes(self, now: float) -> float:
        forgotten: float = 0.5 ** ((now - self.counted_at) / HALF_LIFE)
        return min(self.changes, 64.0) * forgotten
