"""Which callers are to be forgotten."""

from __future__ import annotations

from pathlib import Path

import pytest

from host.history.forgotten import NAME, forget, read_forgotten


def test_the_latest_time_of_a_caller_counts_and_damaged_lines_do_not(tmp_path: Path) -> None:
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


def test_what_was_forgotten_stays_so_when_the_clock_is_set_back(tmp_path: Path) -> None:
    for until in ("2026", "2027", "2026-06"):
        forget(tmp_path, "alice", until)
    assert read_forgotten(tmp_path).until == {"alice": "2027"}


def test_a_line_that_a_full_disk_cut_off_does_not_take_the_next_one_with_it(tmp_path: Path) -> None:
    forget(tmp_path, "alice", "2026")
    with (tmp_path / NAME).open("ab") as file:
        file.write(b'{"bob": "20')
    forget(tmp_path, "carol", "2027")
    assert read_forgotten(tmp_path).until == {"alice": "2026", "carol": "2027"}
