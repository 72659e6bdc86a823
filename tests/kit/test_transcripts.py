"""Transcripts: what is the same passes, whatever else is shown."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.kit.transcripts import Transcript, differences, keep, names


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "transcripts.json"
    keep([{"one": ["a", "b"], "two": ["c", "d"]}, {"one": ["a", "b"], "two": ["c", "e", "d"]}], path)
    return path


@pytest.mark.parametrize(
    ("transcript", "shown"),
    [
        (["a", "b"], []),
        (["a"], ["one\n- b"]),
        (["a", "b", "x"], ["one\n+ x"]),
        (["b", "a"], ["one\nthe same lines in another order, or another number of times"]),
        (["a", "a", "b"], ["one\nthe same lines in another order, or another number of times"]),
    ],
)
def test_what_was_kept_in_one_form_has_this_form(file: Path, transcript: Transcript, shown: list[str]) -> None:
    assert differences({"one": transcript}, file) == shown


@pytest.mark.parametrize(
    ("transcript", "shown"),
    [
        (["c", "d"], []),
        (["c", "e", "d"], []),
        (["d", "e", "c"], []),
        (["c"], ["two\n- d"]),
        (["c", "d", "x"], ["two\n+ x"]),
    ],
)
def test_what_was_kept_in_several_forms_has_what_all_have(file: Path, transcript: Transcript, shown: list[str]) -> None:
    assert differences({"two": transcript}, file) == shown


def test_what_was_not_kept_is_new(file: Path) -> None:
    assert names(file) == {"one", "two"}
    assert differences({"three": ["a"]}, file) == ["three\n+ a"]
