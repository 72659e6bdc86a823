"""The states of files that are watched."""

from __future__ import annotations

import os
from collections.abc import Callable
from hashlib import sha256
from pathlib import Path

import pytest

from config import file_state as module
from config.file_state import MISSING, UNREADABLE, file_state, note_state


def test_the_state_of_a_file_is_a_digest_of_its_content(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"one")
    (tmp_path / "link").symlink_to("a")
    assert file_state(tmp_path / "a") == file_state(tmp_path / "link") == sha256(b"one").hexdigest()


def test_the_state_of_a_folder_is_another_with_other_names_in_it(tmp_path: Path) -> None:
    states = [file_state(tmp_path)]
    for change in ((tmp_path / "a").touch, (tmp_path / "b").touch, (tmp_path / "a").unlink):
        change()
        states.append(file_state(tmp_path))
    (tmp_path / "b").write_text("more")
    assert file_state(tmp_path) == states[-1]
    assert len(set(states)) == 4


@pytest.mark.parametrize(
    ("make", "name", "state"),
    [
        (lambda folder: None, "missing", MISSING),
        (lambda folder: (folder / "file").touch(), "file/below", MISSING),
        (lambda folder: (folder / "link").symlink_to("nowhere"), "link", MISSING),
        (lambda folder: (folder / "loop").symlink_to("loop"), "loop", UNREADABLE),
        (lambda folder: os.mkfifo(folder / "pipe"), "pipe", UNREADABLE),
        (lambda folder: None, "a\0b", UNREADABLE),
    ],
)
def test_the_state_of_what_is_not_there_or_cannot_be_read(
    make: Callable[[Path], object], name: str, state: str, tmp_path: Path
) -> None:
    make(tmp_path)
    assert file_state(tmp_path / name) == state


def test_a_file_that_must_not_be_read_is_not_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A restriction could be in it."""

    def refuses(*arguments: object) -> object:
        raise PermissionError

    (tmp_path / "a").touch()
    monkeypatch.setattr(os, "open", refuses)
    assert file_state(tmp_path / "a") == UNREADABLE


def test_the_state_before_the_first_reading_is_noted(tmp_path: Path) -> None:
    """A file may be read twice, and change in between."""
    states: dict[Path, str] = {}
    note_state(states, tmp_path / "a")
    (tmp_path / "a").touch()
    note_state(states, tmp_path / "a")
    assert states == {tmp_path / "a": MISSING}


def test_of_a_large_file_as_much_counts_as_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "MAX_JSON_BYTES", 3)
    (tmp_path / "a").write_bytes(b"onetwo")
    assert file_state(tmp_path / "a") == sha256(b"onet").hexdigest()
