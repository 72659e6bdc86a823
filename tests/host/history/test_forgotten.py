"""Which callers are to be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.history.forgotten import NAME, forget, read_forgotten


def test_the_last_word_about_a_caller_counts_and_damaged_lines_do_not(tmp_path: Path) -> None:
    assert read_forgotten(tmp_path).until == {}
    forget(tmp_path, "alice", "2026")
    forget(tmp_path, "bob\n", "2026")
    with (tmp_path / NAME).open("ab") as file:
        file.write(b"{\n")
    forget(tmp_path, "alice", "2027")
    assert read_forgotten(tmp_path).until == {"alice": "2027", "bob\n": "2026"}
    assert (tmp_path / NAME).stat().st_mode & 0o777 == 0o600


def test_what_cannot_be_read_is_not_taken_for_nothing(tmp_path: Path) -> None:
    (tmp_path / NAME).mkdir()
    with pytest.raises(IsADirectoryError):
        read_forgotten(tmp_path)
