"""Text for terminals: escaped, and with colours only where they are wanted."""

from __future__ import annotations

import io
import os
import pty
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from host.cli.terminal import DEFAULT_WIDTH, Terminal, announced, columns, cut, printable, say_waiting, wrap


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


@pytest.mark.parametrize(("text", "width"), [("plain", 5), ("日本", 4), ("é", 1), ("e\u0301", 1), ("", 0)])
def test_the_columns_of_a_text(text: str, width: int) -> None:
    assert columns(text) == width


@pytest.mark.parametrize(
    ("text", "width", "beginning"),
    [("plain", 5, "plain"), ("plain", 4, "pla…"), ("日本語", 5, "日本…"), ("日本語", 4, "日…")],
)
def test_a_text_is_cut_to_columns(text: str, width: int, beginning: str) -> None:
    assert cut(text, width) == beginning


@pytest.mark.parametrize(
    ("text", "width", "taken", "lines"),
    [
        ("one two three", 8, 0, ["one two", "three"]),
        ("one two three", 8, 5, ["one", "two", "three"]),
        ("three", 8, 5, ["", "three"]),
        ("a abcdefghij b", 4, 0, ["a", "abcd", "efgh", "ij b"]),
        ("日本語 日本", 6, 0, ["日本語", "日本"]),
        ("", 4, 0, [""]),
    ],
)
def test_a_text_is_wrapped_at_words(text: str, width: int, taken: int, lines: list[str]) -> None:
    assert wrap(text, width, taken) == lines


@given(st.text(), st.integers(2, 30), st.integers(0, 30))
def test_wrapping_loses_nothing_and_keeps_the_width(text: str, width: int, taken: int) -> None:
    lines = wrap(text, width, taken)
    assert "".join("".join(lines).split()) == "".join(text.split())
    assert all(columns(line) <= width for line in lines)
    assert columns(lines[0]) <= max(width - taken, 0)


def test_paragraphs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    text = "word " * 20
    assert Terminal(io.StringIO()).paragraph("name  ", text, indent=6) == f"name  {text.rstrip()}"
    lines = Terminal(Screen()).paragraph("name  ", text, indent=6).split("\n")
    assert [line[:11] for line in lines] == ["name  word ", "      word "]
    narrow = Terminal(Screen()).paragraph("name" + " " * 56, text, indent=60).split("\n")
    assert narrow[:2] == ["name", "    " + ("word " * 15).rstrip()]
    assert Terminal(Screen()).paragraph("name  ", "", indent=6) == "name"


def test_a_paragraph_with_colours_has_the_same_lines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    terminal = Terminal(Screen())
    lines = terminal.paragraph(terminal.state("ready") + " ", "word " * 20, indent=9, faint=True).split("\n")
    plain = ["ready    " + ("word " * 14).rstrip(), " " * 9 + ("word " * 6).rstrip()]
    assert [line.replace("\x1b[32m", "").replace("\x1b[2m", "").replace("\x1b[0m", "") for line in lines] == plain


def test_the_width_is_that_of_the_terminal() -> None:
    assert Terminal(io.StringIO()).width is None
    assert Terminal(Screen()).width == DEFAULT_WIDTH
    ours, theirs = pty.openpty()
    with open(ours, "rb"), open(theirs, "w") as out:
        os.system(f"stty cols 57 < {os.ttyname(theirs)}")
        assert Terminal(out).width == 57


def test_a_command_says_what_takes_longer_than_a_moment(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    with announced("for nothing"):
        pass
    monkeypatch.setattr("host.cli.terminal.MOMENT", 0.0)
    said = threading.Event()

    def say(what: str) -> None:
        say_waiting(what)
        said.set()

    monkeypatch.setattr("host.cli.terminal.say_waiting", say)
    with announced("for the host"):
        assert said.wait(10)
    assert capsys.readouterr() == ("", "colonnade: waiting for the host\n")
