"""The table of the metrics, and the page that has it."""

from __future__ import annotations

import re
from pathlib import Path

from host.telemetry.names import CONVENTIONS, METRICS, table

PAGE = Path(__file__).parents[3] / "docs" / "metrics.md"


def test_the_page_has_the_table() -> None:
    """`python -c "from host.telemetry.names import table; print(table())"` prints it."""
    page = PAGE.read_text("utf-8")
    assert table() in page
    assert CONVENTIONS in page


def test_names_are_as_prometheus_wants_them() -> None:
    names = [each.name for each in METRICS]
    assert len(set(names)) == len(names) > 20
    for each in METRICS:
        assert re.fullmatch(r"(mcp|colonnade)_[a-z_]+", each.name)
        assert not each.name.endswith("_total")
        assert each.help.endswith(".")
        assert each.may_name_tools <= (each.labels[-1:] == ("gen_ai_tool_name",))
