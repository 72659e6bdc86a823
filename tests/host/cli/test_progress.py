"""The bar that shows the progress of a call."""

from __future__ import annotations

import io
from collections.abc import Callable

import pytest

from host.cli.progress import BAR_WIDTH, DRAW_INTERVAL, ProgressBar, describe_progress
from host.cli.terminal import Terminal
from host.jsonrpc.raw import members

from .test_terminal import Screen


@pytest.mark.parametrize(
    ("progress", "total", "message", "line"),
    [
        (5, 10, "half", f"[{'#' * 12:<24}]  50%  half"),
        (0, 10, "", f"[{'':24}]   0%"),
        (10, 10, "", f"[{'#' * 24}] 100%"),
        (30, 10, "", f"[{'#' * 24}] 100%"),
        (-1, 10, "", f"[{'':24}]   0%"),
        (7, None, "read", "7  read"),
        (7.5, 0, "", "7.5"),
    ],
)
def test_a_report_in_one_line(progress: float, total: float | None, message: str, line: str) -> None:
    assert BAR_WIDTH == 24
    assert describe_progress(progress, total, message) == line


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def drawn(out: io.StringIO) -> list[str]:
    return out.getvalue().split("\r\x1b[K")[1:]


def bar_on(out: io.StringIO) -> tuple[Callable[[bytes], None], ProgressBar, Clock]:
    clock = Clock()
    bar = ProgressBar(Terminal(out), clock)
    return lambda params: bar.report(members(params)), bar, clock


def test_a_bar_is_drawn_over_itself_and_removed() -> None:
    out = Screen()
    report, bar, clock = bar_on(out)
    report(b'{"progress":1,"total":4}')
    clock.now += DRAW_INTERVAL
    report(b'{"progress":2,"total":4,"message":"on"}')
    bar.close()
    bar.close()
    first, second, last = drawn(out)
    assert first.endswith(" 25%")
    assert second.endswith(" 50%  on")
    assert last == ""


def test_a_tool_that_reports_all_the_time_is_drawn_now_and_then_and_at_its_end() -> None:
    out = Screen()
    report, _, clock = bar_on(out)
    for number in range(101):
        report(b'{"progress":%d,"total":100}' % number)
        clock.now += DRAW_INTERVAL / 10.5
    assert len(drawn(out)) == 11
    assert drawn(out)[-1].endswith("100%")


def test_a_report_fits_into_its_line_and_steers_nothing() -> None:
    out = Screen()
    report, _, _ = bar_on(out)
    report(b'{"progress":1,"total":4,"message":"\\u001b[2Ja\\nb' + b"x" * 200 + b'"}')
    (line,) = drawn(out)
    assert "\\x1b[2Ja\\nbxx" in line
    assert len(line) == 79
    assert line.endswith("…")


@pytest.mark.parametrize(
    "params", [b"{}", b'{"progress":"1"}', b'{"progress":true}', b'{"progress":null,"total":1}', b'{"total":3}']
)
def test_what_is_no_progress_is_not_drawn(params: bytes) -> None:
    out = Screen()
    report, bar, _ = bar_on(out)
    report(params)
    bar.close()
    assert out.getvalue() == ""


def test_nothing_is_drawn_where_nobody_looks() -> None:
    out = io.StringIO()
    report, bar, _ = bar_on(out)
    report(b'{"progress":1,"total":4}')
    bar.close()
    assert out.getvalue() == ""
