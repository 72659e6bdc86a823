"""Text for terminals: escaped, and with colours only where they are wanted."""

from __future__ import annotations

import io

import pytest

from host.cli.terminal import Terminal, printable


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_colours_are_for_terminals_that_want_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(io.StringIO()).state("ready") == "ready   "
    assert Terminal(Screen()).state("ready") == "\x1b[32mready   \x1b[0m"
    assert Terminal(Screen()).faint("") == ""
    monkeypatch.setenv("NO_COLOR", "1")
    assert Terminal(Screen()).faint("x") == "x"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain é 日本", "plain é 日本"),
        ("\x1b[31mred\r", "\\x1b[31mred\\r"),
        ("a\u202eb\u200b\U000e0041", "a\\u202eb\\u200b\\U000e0041"),
        ("a\nb\tc", "a\\nb\\tc"),
        ("half \ud83d", "half \\ud83d"),
    ],
)
def test_nothing_of_a_server_moves_the_cursor(text: str, shown: str) -> None:
    assert printable(text) == shown


def test_lines_stay_lines_where_lines_are_wanted() -> None:
    assert printable("a\nb\tc\x07", lines=True) == "a\nb\tc\\x07"


PIECES = [
    {"op": "same", "text": "one\ntwo "},
    {"op": "removed", "text": "old\nolder"},
    {"op": "added", "text": "new"},
    {"op": "same", "text": "\nend"},
]


def test_a_difference_is_shown_word_by_word_with_or_without_colours(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each line has marks of its own, so that no line stands alone for something else."""
    monkeypatch.delenv("NO_COLOR", raising=False)
    assert Terminal(io.StringIO()).difference(PIECES) == ["one", "two [-old-]", "[-older-]{+new+}", "end"]
    red, green, off = "\x1b[31m", "\x1b[32m", "\x1b[0m"
    assert Terminal(Screen()).difference(PIECES) == [
        "one",
        f"two {red}[-old-]{off}",
        f"{red}[-older-]{off}{green}{{+new+}}{off}",
        "end",
    ]
    assert Terminal(io.StringIO()).difference([]) == [""]
