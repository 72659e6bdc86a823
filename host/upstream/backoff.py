"""When to try again, as plain functions of what happened. No clock, no waiting."""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

INITIAL_DELAY = 0.25
FACTOR = 2.0
MAX_DELAY = 60.0
HEALTHY_AFTER = 10.0
"""Seconds a server must have been ready for its earlier failures to be forgotten."""


@dataclass
class Backoff:
    """Counts failures in a row and says how long to wait after each: 0.25 s, doubling up to a minute.

    Jitter keeps servers that failed together from coming back together.
    """

    failures: int = 0

    def on_failure(self, ready_for: float, jitter: float) -> float:
        """Seconds to wait. `ready_for`: how long the server had been ready; `jitter`: from 0 to 1, by chance."""
        if ready_for >= HEALTHY_AFTER:
            self.failures = 0
        delay = min(INITIAL_DELAY * FACTOR**self.failures, MAX_DELAY)
        self.failures = min(self.failures + 1, 32)
        return delay * (0.8 + 0.4 * jitter)


MAX_STARTS = 5
WINDOW = 60.0
"""The restart intensity: so many starts are made within so many seconds. With more, something is broken that another
start does not mend."""
RESTART_FACTOR = 4.0
"""Starts are further apart than other attempts: five of them shall last as long as an ordinary outage."""


@dataclass
class Restarts:
    """The starts of one server: after failures in a row 0.25 s, 1 s, 4 s and 16 s later, then once a minute. Never more
    than MAX_STARTS within WINDOW, however long the server was ready in between."""

    failures: int = 0
    starts: deque[float] = field(default_factory=lambda: deque(maxlen=MAX_STARTS))
    """The times of the last ones."""

    def on_start(self, now: float) -> None:
        """Count a start."""
        self.starts.append(now)

    def within_intensity(self, now: float) -> bool:
        """Whether fewer than MAX_STARTS were made within WINDOW."""
        return len(self.starts) < MAX_STARTS or now - self.starts[0] >= WINDOW

    def may_start(self, now: float) -> bool:
        """Whether one more start is within the intensity. Of a server that failed again and again, only the one each
        minute is."""
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
"""Seconds to wait at the most while a server goes on announcing changes of a list that does not change."""
READ_SHARE = 4.0
"""Once it was read, a list is left alone for so many times as long as that took."""
CALM_AFTER = 5.0
"""Changes that cost no waiting."""
MAX_FLAPPING_PAUSE = 300.0
"""Seconds to wait at the most while a list goes on changing."""
HALF_LIFE = 900.0
"""Seconds after which half of the changes are forgotten."""


@dataclass
class Pace:
    """How long to let the lists of a server settle before they are read again: at once if the last reading was long
    ago, ever slower while the server goes on announcing changes. Lists that changed more than a few times wait twice as
    long with each change that is not forgotten: those that flap for ever are read some thirty times an hour. It is the
    server's, not the connection's: otherwise a server would only have to end to be read at once again."""

    wait: float = MIN_PAUSE
    changes: float = 0.0
    counted_at: float = 0.0
    last_read: float = -math.inf
    """When they were read last."""

    def next_waits(self, now: float, *, read_seconds: float) -> tuple[float, float]:
        """Seconds to wait now: at the least, where somebody waits for the lists, and otherwise. `read_seconds`: how
        long it took to read them last."""
        quiet = now - self.last_read > 2 * self.wait + 1.0
        self.wait = MIN_PAUSE if quiet else min(self.wait * 2, MAX_PAUSE)
        min_wait = max(MIN_PAUSE, min(read_seconds * READ_SHARE, MAX_PAUSE) - (now - self.last_read))
        return min_wait, max(self.wait, self.flapping_pause(now), min_wait)

    def flapping_pause(self, now: float) -> float:
        """Seconds for which lists that flap are to be left alone from now on; none, or less than that, if they may be
        read at once."""
        changes = self._decayed_changes(now)
        if changes <= CALM_AFTER:
            return 0.0
        flapping: float = min(2.0 ** (changes - CALM_AFTER), MAX_FLAPPING_PAUSE)
        return flapping - (now - self.last_read)

    def on_read(self, now: float, *, changed: bool) -> None:
        """They were read just now; `changed` if they are not what they were. The first reading of all is no change."""
        if changed and self.last_read > -math.inf:
            self.changes, self.counted_at = self._decayed_changes(now) + 1.0, now
        self.last_read = now

    def _decayed_changes(self, now: float) -> float:
        forgotten: float = 0.5 ** ((now - self.counted_at) / HALF_LIFE)
        return min(self.changes, 64.0) * forgotten
