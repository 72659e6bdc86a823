"""The nearest name for one that does not exist."""

from __future__ import annotations

import pytest

from config.hosts import HOSTS
from host.cli.suggest import did_you_mean, meant_hosts

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


@pytest.mark.parametrize(
    ("found", "meant"),
    [
        ("claude", "claude-desktop or claude-code"),
        ("claude_desktop", "claude-desktop"),
        ("Claude Code", "claude-code"),
        ("code", "claude-code or vscode or roo or codex or opencode"),
        ("vs-code", "vscode"),
        ("gemini-cli", "gemini"),
        ("lmstudio", "lm-studio"),
        ("curser", "cursor"),
    ],
)
def test_the_hosts_that_a_word_may_mean(found: str, meant: str) -> None:
    assert meant_hosts(found, HOSTS).replace('"', "") == f"did you mean {meant}?"


def test_all_hosts_are_named_if_none_is_similar() -> None:
    assert meant_hosts("zzz", HOSTS).startswith("known are claude-desktop, claude-code, ")
    assert meant_hosts("a", HOSTS).startswith("known are ")
