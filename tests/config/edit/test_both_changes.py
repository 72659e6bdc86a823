"""Two changes of one text made together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.edit.both_changes import both_changes


@pytest.mark.parametrize(
    ("text", "first", "second", "both"),
    [
        ("a\nb\nc\n", "a\nB\nc\n", "a\nb\nC\n", "a\nB\nC\n"),
        ("one two", "One two", "one twO", "One twO"),
        ("x\n", "a\nx\n", "b\nx\n", "a\nb\nx\n"),
        ("a\nx\nb\n", "a\nb\n", "a\nx!\nb\n", None),
        ("a\nx\nb\n", "a\nx, y\nb\n", "new\na\nx\nb\nend\n", "new\na\nx, y\nb\nend\n"),
        ("a", "a", "b", "b"),
        ("", "a", "", "a"),
    ],
)
def test_changes_of_different_places_are_made_together(text: str, first: str, second: str, both: str | None) -> None:
    assert both_changes(text, first, second) == both


@given(st.text("ab\n", max_size=12), st.text("ab\n", max_size=12))
def test_no_other_change_gives_the_first(text: str, first: str) -> None:
    assert both_changes(text, first, text) == first
    assert both_changes(text, text, first) == first


def test_a_text_of_many_lines_takes_one_change_of_each_side() -> None:
    lines = [f"{n}\n" for n in range(6000)]
    first, second = ["x\n", *lines], [*lines[:-1], "y\n"]
    assert both_changes(*map("".join, (lines, first, second))) == "".join(["x\n", *lines[:-1], "y\n"])
