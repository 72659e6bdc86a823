"""Recent traffic of a server: its calls by the minute and by the quarter of an hour, and its states."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterable, Mapping
from math import log2

from host.admin.schema import StateRow, TrafficRow
from host.journal import RequestCompleted

MINUTE = 60
QUARTER = 15 * MINUTE
MINUTES = 60
"""Minutes that are kept apart: an hour of them."""
QUARTERS = 96
"""Quarters of an hour: a day of them."""
MAX_STATES = 100
"""States of a server that are kept."""
PARTS_OF_DOUBLE = 4
"""Classes of durations between one and its double, so that a percentile is at most 19 % too high."""


class _Span:
    """The calls that ended within some time from `begin`, a number of seconds of Unix time. `times` counts those that
    were answered by the class of their duration."""

    __slots__ = ("begin", "calls", "failed", "times", "tool_errors")

    def __init__(self, begin: int) -> None:
        self.begin = begin
        self.calls = 0
        self.failed = 0
        self.tool_errors = 0
        self.times: dict[int, int] = {}

    def add(self, other: _Span) -> None:
        self.calls += other.calls
        self.failed += other.failed
        self.tool_errors += other.tool_errors
        for each, count in other.times.items():
            self.times[each] = self.times.get(each, 0) + count

    def row(self) -> TrafficRow:
        p50, p95 = percentiles(self.times)
        return {
            "t": self.begin,
            "calls": self.calls,
            "failed": self.failed,
            "tool_errors": self.tool_errors,
            "p50_ms": p50,
            "p95_ms": p95,
        }


class Traffic:
    """The traffic of one server since the host started, of which the last day is kept in parts.

    Attributes:
        calls, failed: requests that ended, and those of them that failed, with an error of the server or otherwise.
        tool_errors: those that were answered with the result of a tool which says that the call failed.
        size: bytes of results.
        latency: seconds, a moving average over some ten answered calls; None before the first.
        restarts: how often the server became ready again.
    """

    def __init__(self) -> None:
        self.calls = 0
        self.failed = 0
        self.tool_errors = 0
        self.size = 0
        self.latency: float | None = None
        self.restarts = 0
        self._was_ready = False
        self._span = _Span(0)
        """The present minute."""
        self._minutes: deque[_Span] = deque(maxlen=MINUTES)
        self._quarters: deque[_Span] = deque(maxlen=QUARTERS)
        """Minutes that are over; an entry for each quarter with a call."""
        self._states: deque[StateRow] = deque(maxlen=MAX_STATES)

    def add(self, event: RequestCompleted, now: float) -> None:
        """Count a request that has ended at this Unix time."""
        span = self._span
        if now >= span.begin + MINUTE:
            span = self._begin(now)
        self.calls += 1
        span.calls += 1
        self.size += event.size
        if event.outcome == "answered":
            seconds = event.seconds
            self.latency = seconds if self.latency is None else 0.9 * self.latency + 0.1 * seconds
            each = int(PARTS_OF_DOUBLE * log2(1 + seconds * 1e6))
            span.times[each] = span.times.get(each, 0) + 1
            if event.tool_error:
                self.tool_errors += 1
                span.tool_errors += 1
        elif event.outcome == "failed" or event.outcome.startswith("error "):
            self.failed += 1
            span.failed += 1

    def _begin(self, now: float) -> _Span:
        """Keep the minute that is over, and begin the one of this time."""
        former, self._span = self._span, _Span(int(now) // MINUTE * MINUTE)
        if former.calls:
            self._minutes.append(former)
            quarter = former.begin // QUARTER * QUARTER
            if not self._quarters or self._quarters[-1].begin != quarter:
                self._quarters.append(_Span(quarter))
            self._quarters[-1].add(former)
        return self._span

    def add_state(self, state: str, text: str, now: float) -> None:
        """Note a state that the server has come into, `text` says why."""
        if state == "ready":
            self.restarts += self._was_ready
            self._was_ready = True
        last = self._states[-1] if self._states else None
        if last is not None and (last["state"], last["text"]) == (state, text):
            last["count"] += 1
            last["until"] = now
        else:
            self._states.append({"t": now, "until": now, "state": state, "text": text, "count": 1})

    def percentiles(self, now: float) -> tuple[float | None, float | None]:
        """The 50th and 95th percentile of the durations of the last hour, in milliseconds; see `percentiles`."""
        times: Counter[int] = Counter()
        for span in self._last_hour(now):
            times.update(span.times)
        return percentiles(times)

    def minutes(self, now: float) -> list[TrafficRow]:
        """The last hour, without minutes in which no call ended."""
        return [span.row() for span in self._last_hour(now) if span.calls]

    def _last_hour(self, now: float) -> list[_Span]:
        since = now - MINUTES * MINUTE
        return [span for span in (*self._minutes, self._span) if span.begin > since]

    def quarters(self, now: float) -> list[TrafficRow]:
        """The last day, without quarters of an hour in which no call ended."""
        if now >= self._span.begin + MINUTE:
            self._begin(now)
        since = now - QUARTERS * QUARTER
        present = _Span(self._span.begin // QUARTER * QUARTER)
        rows = [span for span in self._quarters if span.begin > since]
        if rows and rows[-1].begin == present.begin:
            present.add(rows.pop())
        present.add(self._span)
        return [span.row() for span in (*rows, present) if span.calls]

    def states(self) -> list[StateRow]:
        """The last states, oldest first."""
        return [{**state} for state in self._states]


def percentiles(times: Mapping[int, int]) -> tuple[float | None, float | None]:
    """The durations in milliseconds that 50 and 95 percent of the calls do not exceed, rounded up to those of their
    classes; None without a call."""
    total = sum(times.values())
    if not total:
        return None, None
    ordered = sorted(times.items())
    return _at(ordered, total * 0.5), _at(ordered, total * 0.95)


def _at(ordered: Iterable[tuple[int, int]], rank: float) -> float:
    seen = last = 0
    for last, count in ordered:  # noqa: B007 - it is used behind the loop
        seen += count
        if seen >= rank:
            break
    return round((2 ** ((last + 1) / PARTS_OF_DOUBLE) - 1) / 1000, 3)
