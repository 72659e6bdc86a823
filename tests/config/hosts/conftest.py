"""The user's folder of each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.config.hosts.kit import Home


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)
