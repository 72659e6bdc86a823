"""The exit codes: docs/operations.md lists the same."""

from __future__ import annotations

import re

from host.cli import exit_codes
from tests.real.running import ROOT


def test_the_documented_exit_codes_are_these() -> None:
    codes = {value for name, value in vars(exit_codes).items() if name.isupper()}
    section = (ROOT / "docs" / "operations.md").read_text("utf-8").partition("## Exit codes\n")[2].partition("\n## ")[0]
    listed = {int(code) for row in re.findall(r"^\| ([0-9, ]+) \|", section, re.MULTILINE) for code in row.split(",")}
    assert listed == codes
