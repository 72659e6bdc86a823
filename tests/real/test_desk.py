"""Desktop hosts that share a Colonnade, and kills: a short run of desk.py. Its memory is measured there alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from . import desk

KILLS = 20

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]


def test_everything_goes_where_it_belongs(tmp_path: Path) -> None:
    assert [each for each in desk.compare_memory(tmp_path) if not each.startswith("memory")] == []


def test_kills_double_no_call_and_stop_no_other_client(tmp_path: Path) -> None:
    assert desk.kill(tmp_path, KILLS, seed=KILLS) == []
