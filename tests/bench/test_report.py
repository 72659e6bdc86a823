from __future__ import annotations

from pathlib import Path
from xml.etree import ElementTree

from tests.bench.build import fixed_hash
from tests.bench.figures import Figure, Sample, Spread
from tests.bench.lanes import SECTIONS
from tests.bench.report import BEGIN, END, PAGE, PLOT, Report, figures_table, picture, table, with_block
from tests.bench.rounds import SectionResults

SECTION = SECTIONS[0]


def results(errors: int = 0) -> SectionResults:
    """Each lane costs 10 µs more than the one before it; the last one is not there."""
    *lanes, last = SECTION.lanes
    found = {
        lane: [Sample(place * 1e-2, 1000, errors, 1.0, 1500.0, 9000.0, scale=1.0)] * lane.rounds
        for place, lane in enumerate(lanes, 1)
    }
    return SectionResults(SECTION, found, {last: "there is no such package"})


def test_the_page_keeps_what_is_written_by_hand() -> None:
    assert with_block(f"a\n{BEGIN}\nold\n{END}\nb\n", "new") == f"a\n{BEGIN}\n\nnew\n\n{END}\nb\n"


def test_a_row_has_the_cost_and_its_ratio_to_the_first() -> None:
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in table(results()).splitlines()]
    assert ["bare sketch", "10.0 (10.0 to 10.0)", "1.00 (1.00 to 1.00)", "1,000", "1.5", "9.0", "15"] in rows
    assert rows[5][1:3] == ["20.0 (20.0 to 20.0)", "2.00 (2.00 to 2.00)"]
    assert rows[-1][1] == "left out: there is no such package"


def test_wrong_answers_are_seen_and_fail() -> None:
    report = Report([results(errors=1)], [], "hash", 1.0)
    assert "wrong answers" in table(results(errors=1))
    assert report.checks()[0].fails
    assert Report([results()], [], "hash", 1.0).checks()[0].holds


def test_every_limit_is_checked_and_so_are_the_figures() -> None:
    checks = Report([results()], [Figure("--help", "ms", 100.0, [40.0, 120.0, 130.0])], "hash", 1.0).checks()
    assert len(checks) == 1 + len(SECTION.limits) + 1
    first, *_, last = checks[1:]
    assert (first.measured, first.holds) == (Spread(2.0, 2.0, 2.0), True)
    assert (last.measured, last.holds) == (Spread(120.0, 80.0, 125.0), False)
    assert [check for check in checks if check.is_of_time] == [last]


def test_a_figure_is_in_the_table_and_checked_if_it_has_a_limit() -> None:
    figures = [Figure("relay", "times python", 4.0, [2.0, 4.5, 5.0]), Figure("own", "times python", None, [46.0])]
    checks = Report([], figures, "hash", 1.0).checks()[1:]
    assert [(check.sentence, check.holds) for check in checks] == [("relay: at most 4 times python", False)]
    rows = figures_table(figures).splitlines()[-2:]
    assert rows == [
        "| relay | 4.5 (3.25 to 4.75) | times python | 4 | 3 |",
        "| own | 46 (46 to 46) | times python |  | 1 |",
    ]


def test_the_plot_has_a_bar_for_each_proxy_that_was_measured() -> None:
    root = ElementTree.fromstring(picture([results()]))
    bars = [each for each in root.iter("{http://www.w3.org/2000/svg}rect") if each.get("x")]
    assert len(bars) == len(SECTION.lanes) - 1
    widths = [int(bar.get("width", "")) for bar in bars]
    assert widths == sorted(widths)
    assert max(widths) < 860


def test_a_report_writes_page_and_plot(tmp_path: Path) -> None:
    page, plot = tmp_path / "page.md", tmp_path / "plot.svg"
    page.write_text(f"by hand\n{BEGIN}\n{END}\nalso\n")
    Report([results()], [Figure("--help", "ms", 100.0, [40.0])], "0123", 1.0).write(page, plot)
    assert page.read_text().startswith("by hand\n")
    assert page.read_text().endswith("also\n")
    assert "`0123`" in page.read_text()
    assert plot.read_text().startswith("<svg")


def test_the_figures_on_the_page_are_of_the_fixed_sources() -> None:
    """A change of the upstream, the load or the sketch needs a new measurement: `make bench`."""
    assert f"`{fixed_hash()}`" in PAGE.read_text()
    assert PLOT.exists()
