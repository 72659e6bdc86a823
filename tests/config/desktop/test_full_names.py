"""Rules for tools by their full names."""

from __future__ import annotations

import pytest

from config.desktop.full_names import cleaned, tools_allowed, tools_restricted


def test_a_name_is_cleaned_as_its_host_does() -> None:
    assert cleaned("My files.1/ü-x") == "My_files_1__-x"


@pytest.mark.parametrize(
    ("rule", "restricted", "allowed"),
    [
        ("mcp__git", {"*"}, {"*"}),
        ("mcp__git__*", {"*"}, {"*"}),
        ("mcp__git__read_all", {"read?all"}, {"read_all"}),
        ("mcp__git__r*", {"r*"}, {"r*"}),
        ("mcp__git__read(x)", {"read"}, set()),
        ("mcp__*", {"*"}, set()),
        ("mcp__*__read", {"read"}, set()),
        ("mcp__gitter__read", set(), set()),
        ("Bash", set(), set()),
    ],
)
def test_the_tools_that_a_rule_means(rule: str, restricted: set[str], allowed: set[str]) -> None:
    """A rule that permits counts only if it names the server, and has no condition."""
    assert restricted <= tools_restricted([rule], "git")
    assert bool(restricted) == bool(tools_restricted([rule], "git"))
    assert tools_allowed([rule], "git") == allowed
