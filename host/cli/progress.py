"""The progress of a call, as a bar on one line of a terminal."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

from msgspec import Raw

from host.cli.terminal import CLEAR_LINE, Terminal, cut, printable
from host.jsonrpc.raw import value

BAR_WIDTH = 24
DRAW_INTERVAL = 0.1
"""Seconds between two drawings, however often the tool reports."""


class ProgressBar:
    """Draws what a tool reports, over itself. Draws nothing if `terminal` is none: then nobody looks at it."""

    def __init__(self, terminal: Terminal, clock: Callable[[], float] = time.monotonic) -> None:
        self._terminal = terminal
        self._clock = clock
        self._drawn_at: float | None = None

    def report(self, params: Mapping[str, Raw]) -> None:
        """Take the members of a progress notification. Those that are of no use are ignored."""
        now = self._clock()
        is_early = self._drawn_at is not None and now - self._drawn_at < DRAW_INTERVAL
        progress, total = _number(params.get("progress")), _number(params.get("total"))
        is_done = progress is not None and progress == total
        if self._terminal.width is None or progress is None or (is_early and not is_done):
            return
        line = describe_progress(progress, total, _text(params.get("message")))
        self._terminal.out.write(CLEAR_LINE + cut(line, self._terminal.width - 1))
        self._terminal.out.flush()
        self._drawn_at = now

    def close(self) -> None:
        """Remove the bar, if it was drawn."""
        if self._drawn_at is not None:
            self._terminal.out.write(CLEAR_LINE)
            self._terminal.out.flush()
            self._drawn_at = None


def describe_progress(progress: float, total: float | None, message: str) -> str:
    """A report in one line: a bar with the part that is done, or the number alone if the total is not known."""
    if total is None or total <= 0:
        return f"{progress:g}  {message}".rstrip()
    part = min(max(progress / total, 0.0), 1.0)
    bar = "#" * int(part * BAR_WIDTH)
    return f"[{bar:<{BAR_WIDTH}}] {part:4.0%}  {message}".rstrip()


def _number(raw: Raw | None) -> float | None:
    found = None if raw is None else value(raw)
    return float(found) if isinstance(found, int | float) and not isinstance(found, bool) else None


def _text(raw: Raw | None) -> str:
    found = "" if raw is None else value(raw)
    return printable(found) if isinstance(found, str) else ""
