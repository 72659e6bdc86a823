"""Values with their places, whatever the file is written in."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.document import Marks, Plain, is_null
from config.read import read
from tests.config.kit import lines


def test_duplicate_keys_at_every_level(tmp_path: Path) -> None:
    """The first one would silently lose in most parsers; here each second one is named with its line."""
    text = """\
servers:
  a:
    command: x
    command: y
    env: {A: 1, "A": 2}
  a: {command: z}
servers: {}
"""
    assert lines(tmp_path, text) == [
        '4:5: duplicate key "command" (first at 3:5); remove one',
        '5:17: duplicate key "A" (first at 5:11); remove one',
        '6:3: duplicate key "a" (first at 2:3); remove one',
        '7:1: duplicate key "servers" (first at 1:1); remove one',
    ]


@pytest.mark.few(2)
@pytest.mark.parametrize("text", ["[" * 100_000, "a: " + "{a: " * 100_000, '{"a":' * 100_000, "- " * 100_000])
def test_deep_nesting_is_a_problem_not_a_crash(tmp_path: Path, text: str) -> None:
    """Depth never becomes recursion."""
    assert "nested deeper than 32 levels" in lines(tmp_path, text)[0]


def test_map_as_key(tmp_path: Path) -> None:
    """A key must be a word; its value is skipped and the rest is looked at."""
    found = lines(tmp_path, "servers:\n  ? {a: b}\n  : {command: x}\n  B: {command: x}\n")
    assert found[0] == "2:5: expected a key of one word, found a map"
    assert found[1].startswith("4:3: servers.B: a server id")


def test_half_a_surrogate_pair(tmp_path: Path) -> None:
    """Escapes can write what no UTF-8 can hold."""
    assert "surrogate" in lines(tmp_path, 'servers: {a: {command: "\\ud800"}}')[0]
    assert "surrogate" in lines(tmp_path, '{"servers": {"a": {"command": "\\ud800"}}}')[0]


def test_scalars_keep_their_text(tmp_path: Path) -> None:
    """Scalars that other parsers take for numbers, times or booleans stay as written."""
    file = tmp_path / "c.yaml"
    file.write_text("a: no\nb: 1.10\nc: 12:30:45\nd: 012\ne: 'null'\nf: ~\ng: 2001-01-01\nh: 0x1F\ni: |\n  no\n")
    values = read(file).root
    written = ["no", "1.10", "12:30:45", "012", "null", "~", "2001-01-01", "0x1F", "no\n"]
    assert values == dict(zip("abcdefghi", written, strict=True))
    assert [name for name, value in values.items() if not isinstance(value, Plain)] == ["e", "i"]
    assert [name for name, value in values.items() if is_null(value)] == ["f"]


def test_marks_count_lines_and_characters_from_one() -> None:
    marks = Marks("ab\n\ncé d")
    assert [marks.at(offset) for offset in (0, 2, 3, 4, 7)] == [(1, 1), (1, 3), (2, 1), (3, 1), (3, 4)]
