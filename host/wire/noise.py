"""The budget of one connection for messages that mean nothing: no JSON-RPC, methods nobody knows, answers to nothing;
and that of one event stream for comments and for events without data.

A program that writes its banner or its log to standard output sends some hundred of them at once and then few. Each
costs some ten microseconds, so the budget is about one percent of a processor; who goes on beyond it is not meant to be
connected here. Progress, log messages and `list_changed` that come too late or too often are lawful and not counted.
"""

from __future__ import annotations

from host.wire.link import LinkLost

MAX_USELESS_PER_SECOND = 1000
"""Useless messages of one connection in one second, and at once after a quiet one."""


class TooManyUselessMessages(LinkLost):
    """The server used up the budget."""

    misused = True

    def __init__(self) -> None:
        super().__init__(f"it sent more than {MAX_USELESS_PER_SECOND} messages in one second that mean nothing")


class UselessMessages:
    """What is left of the budget. Plain state: the caller gives the time."""

    def __init__(self, now: float) -> None:
        self._left = float(MAX_USELESS_PER_SECOND)
        self._counted = now

    def add(self, now: float, count: int = 1) -> bool:
        """Count useless messages; False if they are too many."""
        refill = (now - self._counted) * MAX_USELESS_PER_SECOND
        self._left = min(self._left + refill, float(MAX_USELESS_PER_SECOND)) - count
        self._counted = now
        return self._left >= 0
