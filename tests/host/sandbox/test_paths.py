"""Paths below others, and paths in messages."""

from __future__ import annotations

import pytest

from host.sandbox.paths import folders_to_hold, in_quotes, is_below_any


@pytest.mark.parametrize(
    ("path", "folders", "is_below"),
    [
        ("/a", ["/a"], True),
        ("/a/b", ["/x", "/a"], True),
        ("/ab", ["/a"], False),
        ("/a", ["/a/b"], False),
        ("/a", ["/"], True),
        ("/a", [], False),
    ],
)
def test_what_is_below(path: str, folders: list[str], is_below: bool) -> None:
    assert is_below_any(path, folders) is is_below


@pytest.mark.parametrize(
    ("write", "held"),
    [
        ([], []),
        (["/a"], ["/a/b", "/a/b/c"]),
        (["/a/b", "/x"], ["/a/b/c"]),
        (["/a/b/c"], []),
        (["/a/b/c/state", "/a/bb"], []),
    ],
)
def test_the_folders_that_could_be_moved_away_with_a_hidden_one(write: list[str], held: list[str]) -> None:
    assert folders_to_hold("/a/b/c/state", write) == held


def test_a_path_in_a_message_has_no_quotes_and_no_lines_of_its_own() -> None:
    assert in_quotes("/a b/\"c'`\n") == '"/a b/?c???"'
