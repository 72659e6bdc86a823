"""Turns the results into text: the table and the plot of docs/performance.md, and the lines of the checks."""

from __future__ import annotations

import math
import os
import platform
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

from tests.bench.build import ROOT, compiler
from tests.bench.contenders import COLONNADES
from tests.bench.figures import Check, Figure, Sample, ratios, spread
from tests.bench.fixed.yardstick import REFERENCE
from tests.bench.lanes import Lane
from tests.bench.rounds import SectionResults

PAGE = ROOT / "docs" / "performance.md"
PLOT = ROOT / "docs" / "pictures" / "performance.svg"
BEGIN, END = "<!-- from make bench -->", "<!-- until here -->"
"""Lines of the page between which a run writes."""


@dataclass(frozen=True)
class Report:
    """All that a run found. `fixed` is the hash of the fixed sources."""

    sections: Sequence[SectionResults]
    figures: Sequence[Figure]
    fixed: str
    minutes: float

    def checks(self) -> list[Check]:
        wrong = sum(sample.errors for sample in self._samples())
        figures = [
            Check(
                f"{figure.name}: at most {figure.most:g} {figure.unit}",
                figure.most,
                spread(figure.values),
                is_of_time=figure.unit.startswith("ms"),
            )
            for figure in self.figures
            if figure.most is not None
        ]
        return [Check("wrong answers: none", 0, spread([wrong])), *self._limits(), *figures]

    def _limits(self) -> Iterator[Check]:
        for results in self.sections:
            for limit in results.section.limits:
                taken = [results.samples.get(lane, []) for lane in limit.lanes]
                measured = spread(ratios(*taken)) if all(taken) else None
                yield Check(f"{limit.sentence} ({results.section.title})", limit.most, measured)

    def text(self) -> str:
        """The content of the page."""
        scales = [REFERENCE / sample.scale * 1000 for sample in self._samples()]
        beside = spread(scales)
        parts = [
            f"{machine()}; {self.minutes:.0f} minutes. Yardstick: {beside.median:.1f} ms ({beside.low:.1f} to "
            f"{beside.high:.1f}); microseconds are scaled to {REFERENCE * 1000:.0f} ms. Upstream and load "
            f"{'compiled' if compiler() else 'in Python'}. The fixed sources:\n`{self.fixed}`",
            *(table(results) for results in self.sections),
            figures_table(self.figures),
            "### Limits\n\n```text\n" + "\n".join(check.line for check in self.checks()) + "\n```",
        ]
        return "\n\n".join(parts)

    def _samples(self) -> Iterator[Sample]:
        for results in self.sections:
            for samples in results.samples.values():
                yield from samples

    def write(self, page: Path = PAGE, plot: Path = PLOT) -> None:
        page.write_text(with_block(page.read_text(), self.text()))
        plot.write_text(picture(self.sections[:2]))


def with_block(page: str, text: str) -> str:
    """The page with another text between the marks."""
    before, _, rest = page.partition(BEGIN)
    _, _, after = rest.partition(END)
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def machine() -> str:
    return (
        f"{os.cpu_count()} processors ({_processor()}), Linux {platform.release()}, Python {platform.python_version()}"
    )


def _processor() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def table(results: SectionResults) -> str:
    lines = [
        f"### {results.section.title}",
        "",
        "| | µs of processor time for a call | ratio | calls/s | p50 ms | p99 ms | rounds |",
        "|---|---:|---:|---:|---:|---:|---:|",
    ]
    first = results.samples.get(results.section.lanes[0], [])
    for lane in results.section.lanes:
        samples = results.samples.get(lane)
        lines.append(row(lane, samples, first) if samples else f"| {lane.name} | left out: {results.missing[lane]} |")
    return "\n".join(lines)


def row(lane: Lane, samples: Sequence[Sample], first: Sequence[Sample]) -> str:
    cost = spread([sample.cost for sample in samples])
    beside = spread(ratios(samples, first))
    errors = sum(sample.errors for sample in samples)
    cells = [
        lane.name + (f" (**{errors} wrong answers**)" if errors else ""),
        f"{short(cost.median)} ({short(cost.low)} to {short(cost.high)})",
        f"{beside.median:.2f} ({beside.low:.2f} to {beside.high:.2f})",
        f"{spread([sample.calls / sample.seconds for sample in samples]).median:,.0f}",
        f"{spread([sample.p50 / 1000 for sample in samples]).median:.1f}",
        f"{spread([sample.p99 / 1000 for sample in samples]).median:.1f}",
        str(len(samples)),
    ]
    return f"| {' | '.join(cells)} |"


def short(number: float) -> str:
    return f"{number:,.0f}" if number >= 100 else f"{number:.1f}"


def figures_table(figures: Sequence[Figure]) -> str:
    lines = ["### Starts and memory", "", "| | | | at most | samples |", "|---|---:|---|---:|---:|"]
    for figure in figures:
        took = spread(figure.values)
        most = "" if figure.most is None else f"{figure.most:g}"
        measured = f"{took.median:.3g} ({took.low:.3g} to {took.high:.3g})"
        lines.append(f"| {figure.name} | {measured} | {figure.unit} | {most} | {len(figure.values)} |")
    return "\n".join(lines)


# The plot

LEFT, RIGHT, WIDTH, ROW, HEAD = 330, 80, 860, 24, 34
"""Pixels: labels, figures behind the bars, all of it, a bar, a title."""
TITLE = "Processor time of the proxy for a call, in microseconds, on a logarithmic scale"
COLORS = {True: "#2f6f9f", False: "#9aa5ad"}


def picture(sections: Sequence[SectionResults]) -> str:
    """Bars on a logarithmic scale, from the least cost to the largest; ours are blue."""
    groups = [
        (
            results.section.title,
            [(lane, spread([each.cost for each in results.samples[lane]]).median) for lane in lanes],
        )
        for results in sections
        if (lanes := [lane for lane in results.section.lanes if lane in results.samples])
    ]
    costs = [cost for _, bars in groups for _, cost in bars]
    lowest = 10 ** math.floor(math.log10(min(costs)))
    decades = math.log10(max(costs) / lowest) or 1.0
    body: list[str] = []
    y = 20
    body.append(f'<text x="10" y="{y}" fill="#555">{TITLE}</text>')
    for title, bars in groups:
        y += HEAD
        body.append(f'<text x="10" y="{y - 8}" font-weight="bold">{escape(title)}</text>')
        for lane, cost in sorted(bars, key=lambda bar: bar[1]):
            length = math.log10(cost / lowest) / decades * (WIDTH - LEFT - RIGHT)
            ours = lane.contender in COLONNADES
            body.append(f'<text x="{LEFT - 8}" y="{y + 16}" text-anchor="end">{escape(lane.name)}</text>')
            body.append(f'<rect x="{LEFT}" y="{y + 3}" width="{length:.0f}" height="{ROW - 6}" fill="{COLORS[ours]}"/>')
            body.append(f'<text x="{LEFT + length + 6:.0f}" y="{y + 16}">{short(cost)} µs</text>')
            y += ROW
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y + 10}" font-family="sans-serif" '
        'font-size="13">',
        f"<title>{TITLE}</title>",
        f'<rect width="{WIDTH}" height="{y + 10}" fill="white"/>',
        *body,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"
