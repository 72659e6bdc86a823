"""Rate limits for messages of one connection that nobody needs, and for comments and useless events of one event
stream.

Useless messages are text that is not JSON-RPC, unknown methods, responses to no request, and requests that are answered
without a client. A program that writes its banner or its log to standard output sends some hundred of them at once and
then few. Each costs some ten microseconds, a request that is answered some fifty, and a long one counts as several, so
the limit is a few percent of a processor.

Needless messages are legal, but come faster than anybody can use them: late progress, log messages beyond their limit,
and notifications of changes. Their limit is ten times as high, and holds for five seconds, since a server may register
thousands of entries with a notification each. Progress of a call under way is not counted: its caller wants it, and it
ends with the call. A connection beyond a limit is ended.
"""

from __future__ import annotations

from host.wire.link import LinkLost

MAX_USELESS_PER_SECOND = 1000
"""Useless messages of one connection per second, and at once after a second without any."""
MAX_NEEDLESS_PER_SECOND = 10_000
NEEDLESS_SECONDS = 5
"""Needless messages of one connection per second, and seconds for so many of them at once."""


class TooManyUselessMessages(LinkLost):
    """The server exceeded a limit."""

    misused = True

    def __init__(self, limit: str = f"{MAX_USELESS_PER_SECOND} useless messages in one second") -> None:
        super().__init__(f"it sent more than {limit}")


class UselessMessages:
    """Counter for a limit, a token bucket. The caller passes the time."""

    def __init__(self, now: float, rate: int = MAX_USELESS_PER_SECOND, seconds: int = 1) -> None:
        self._rate = rate
        self._most = self._left = float(rate * seconds)
        self._counted = now

    def add(self, now: float, count: int = 1) -> bool:
        """Count messages; False if the limit is exceeded."""
        self._left = min(self._left + (now - self._counted) * self._rate, self._most) - count
        self._counted = now
        return self._left >= 0
