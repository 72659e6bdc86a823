"""The folders of each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.desktop import desktop_host
from tests.config.desktop.kit import Home


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Home:
    home = Home(tmp_path)
    monkeypatch.setattr(desktop_host, "SYSTEM", home.system)
    return home
