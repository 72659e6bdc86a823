"""The nearest name for one that does not exist."""

from __future__ import annotations

import pytest

from host.cli.suggest import did_you_mean, name_of_words

NAMES = ["notes__add", "notes__find", "clock__now", "docs+file:///readme", "evil\u202e__x"]


@pytest.mark.parametrize(
    ("found", "remedy"),
    [
        ("notes__ad", "did you mean notes__add?"),
        ("nots__find", "did you mean notes__find?"),
        ("add", "did you mean notes__add?"),
        ("file:///readme", "did you mean docs+file:///readme?"),
        ("docs+file:///read", "did you mean docs+file:///readme?"),
        ("evil__x", "did you mean evil⟨U+202E⟩__x?"),
        ("zzz", ""),
    ],
)
def test_the_nearest_name_is_found_also_without_its_server(found: str, remedy: str) -> None:
    assert did_you_mean(found, NAMES) == remedy


def test_a_name_of_two_servers_is_not_guessed() -> None:
    assert did_you_mean("add", ["a-long-server__add", "another-server__add"]) == ""


@pytest.mark.parametrize(("word", "name"), [("git_log", "git__git_log"), ("{}", ""), ("a=b", ""), ("3", "")])
def test_a_server_and_its_entry_are_one_name(word: str, name: str) -> None:
    assert name_of_words("git", word) == name
