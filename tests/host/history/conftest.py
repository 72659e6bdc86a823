from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from .kit import Recorded


@pytest.fixture
def recorded(tmp_path: Path) -> Iterator[Recorded]:
    recorded = Recorded(tmp_path)
    yield recorded
    recorded.index.close()
