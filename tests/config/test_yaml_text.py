"""Values written as YAML are read as the same values."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.document import Builder, Document, Plain
from config.yaml import YamlEvents
from config.yaml_text import LINE, comment, commented_out, entries, scalar

texts = st.text(max_size=30).filter(
    lambda text: not any("\ud800" <= char <= "\udfff" for char in text)
) | st.sampled_from(
    [
        "no",
        "~",
        "null",
        "1.10",
        "12:30:45",
        "a: b",
        "- x",
        "#",
        "a #b",
        "&a",
        "*a",
        "!x",
        "%",
        "@a",
        "`",
        "'",
        '"',
        "\\",
    ]
)
values: st.SearchStrategy[Any] = st.recursive(
    texts | st.sampled_from([Plain("true"), Plain("3"), Plain("60s"), Plain("ask")]),
    lambda below: st.lists(below, max_size=4) | st.dictionaries(texts, below, max_size=4),
    max_leaves=12,
)


def read(text: str) -> object:
    document = Document("x")
    value = Builder(YamlEvents(text, document).tokens(document), document).build()
    assert not document.problems
    return value


@given(st.dictionaries(texts, values, min_size=1, max_size=4))
def test_values_are_read_as_they_were(value: dict[str, object]) -> None:
    assert read(entries(value)) == value


@pytest.mark.parametrize("word", ["true", "3", "1.5", "60s", "8MiB", "ask"])
def test_a_plain_scalar_stays_plain(word: str) -> None:
    assert scalar(Plain(word)) == word


@pytest.mark.parametrize(
    "text", ["true", "no", "Null", "3", "~", "", "x y", "a,b", "1.5", "=", "-", "a\u2028", "é\x7f"]
)
def test_text_that_could_be_something_else_has_quotes(text: str) -> None:
    made = scalar(text)
    assert made[0] == made[-1] == '"'
    assert made.isprintable()


@pytest.mark.parametrize("text", ["uvx", "--repository", "-y", "/srv/a b"[:6], "mcp-server-time", "a.b", "get_x"])
def test_plain_words_have_none(text: str) -> None:
    assert scalar(text) == text


def test_short_lists_stay_on_a_line_and_long_ones_do_not() -> None:
    value = {"a": {"command": ["x", "z"], "env": {"A": "1"}, "consent": {"tools": {"allow": ["a"], "deny": ["b"]}}}}
    assert entries(value) == ('a:\n  command: [x, z]\n  env: {A: "1"}\n  consent: {tools: {allow: [a], deny: [b]}}\n')
    long = {"command": ["word"] * 40}
    assert entries(long).count("\n") == 41
    assert all(len(line) <= LINE for line in entries(long).splitlines())


def test_comments_are_broken_between_words_and_hold_no_line_end() -> None:
    made = comment("a word " * 40 + "\nservers: x\x1b", "  ")
    assert all(line.startswith("  # ") and len(line) <= 120 for line in made.splitlines())
    assert read(made + "a: b\n") == {"a": "b"}


def test_a_commented_entry_is_the_entry_without_the_signs() -> None:
    lines = entries({"a": {"b": ["c"] * 50}}, "  ")
    made = commented_out(lines, "  ")
    assert all(line.startswith("  # ") for line in made.splitlines())
    assert made.replace("  # ", "  ") == lines
