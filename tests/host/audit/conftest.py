"""Fixtures of the tests of the audit."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.audit.seal import begin_chain, new_key


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "audit"


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files are followed by others after some twenty records."""
    monkeypatch.setattr("host.audit.writer.ROTATE_AT", 4000)


@pytest.fixture
def key(folder: Path) -> bytes:
    """The verification key of a chain that was begun."""
    folder.mkdir(mode=0o700)
    key = new_key()
    begin_chain(folder, key, again=False)
    return key
