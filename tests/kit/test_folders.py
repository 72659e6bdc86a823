"""Where folders of tests are."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from tests.kit.folders import folder


def _flags(flags: int, real: Callable[[str], Any], path: str) -> os.statvfs_result:
    values = list(real(path))
    values[8] = flags
    return os.statvfs_result(values)


def test_programs_are_kept_where_they_may_be_started(monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.statvfs
    with folder() as usual:
        pass
    monkeypatch.setattr(os, "statvfs", partial(_flags, os.ST_NOEXEC, real))
    with folder(of_programs=True) as made, folder() as other:
        assert not made.is_relative_to("/dev/shm")
        assert other.parent == usual.parent
    monkeypatch.setattr(os, "statvfs", partial(_flags, 0, real))
    with folder(of_programs=True) as made:
        assert made.parent == usual.parent
