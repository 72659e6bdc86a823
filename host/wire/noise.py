"""Rate limit for useless messages of one connection (text that is not JSON-RPC, unknown methods, responses to no
request, requests that are answered without a client), and for comments and useless events of one event stream.

A program that writes its banner or its log to standard output sends some hundred of them at once and then few. Each
costs some ten microseconds, a request that is answered some fifty, and a long one counts as several, so the limit is a
few percent of a processor; a connection beyond it is ended. Late or frequent progress, log messages and `list_changed`
are legal and not counted.
"""

from __future__ import annotations

from host.wire.link import LinkLost

MAX_USELESS_PER_SECOND = 1000
"""Useless messages of one connection per second, and at once after a second without any."""


class TooManyUselessMessages(LinkLost):
    """The server exceeded the limit."""

    misused = True

    def __init__(self) -> None:
        super().__init__(f"it sent more than {MAX_USELESS_PER_SECOND} useless messages in one second")


class UselessMessages:
    """Counter for the limit, a token bucket. The caller passes the time."""

    def __init__(self, now: float) -> None:
        self._left = float(MAX_USELESS_PER_SECOND)
        self._counted = now

    def add(self, now: float, count: int = 1) -> bool:
        """Count useless messages; False if the limit is exceeded."""
        refill = (now - self._counted) * MAX_USELESS_PER_SECOND
        self._left = min(self._left + refill, float(MAX_USELESS_PER_SECOND)) - count
        self._counted = now
        return self._left >= 0
