"""Strict reading: what is refused before any setting is looked at, and where it is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.problems import ConfigError
from config.yaml import Plain, is_null, read
from tests.config.kit import lines, load_text, stdio
from tests.kit.cost import assert_costs_less

ONE = "servers: {a: {command: x}}\n"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"", "1:1: the file is empty"),
        (b"# only a comment\n", "1:1: the file is empty"),
        (b"---\n...\n", "1:1: the file is empty"),
        (b"servers:\n\ta: {}\n", "2:1: tabs are not allowed for indentation in YAML; use spaces"),
        (b"servers:\n  a: {command: \xff}\n", "2:16: this is not UTF-8"),
        ("servers: {}\n".encode("utf-16"), "1:1: this is not UTF-8"),
        (b"servers: {a: {command: x}}\n---\nservers: {}\n", "2:1: a second document begins here"),
        (b"servers: \x00\n", "1:10: the character U+0000 is not allowed"),
        (b"- a\n", "1:1: expected a map"),
        (b"hello\n", "1:1: expected a map"),
        (b"servers: {a: {command: x}\n", "2:1: this is not YAML"),
        (b"servers: {a: {command: x, env: {A: ${env:B}}}}\n", "1:37: this is not YAML"),
        (b'servers: {a: {command: "\\UFFFFFFFF"}}\n', "1:27: this number is no character"),
        (b"%YAML 9.9\n---\nservers: {}\n", "1:1: this is not YAML"),
        (b"servers: {a: {command: !x!y z}}\n", "1:24: tags are not accepted"),
    ],
)
def test_unreadable_file(tmp_path: Path, text: bytes, expected: str) -> None:
    """Each is one problem at its place, and nothing else is looked at."""
    found = lines(tmp_path, text)
    assert len(found) == 1
    assert found[0].startswith(expected)


def test_unquoted_reference_in_braces_gets_a_hint(tmp_path: Path) -> None:
    """`{A: ${env:B}}` is not YAML; the remedy is a pair of quotes."""
    assert "needs quotes" in lines(tmp_path, "servers: {a: {command: x, env: {A: ${env:B}}}}")[0]


def test_file_over_one_mebibyte(tmp_path: Path) -> None:
    """A file of 10 MB is refused without being parsed."""
    assert lines(tmp_path, b"#" * 10_000_000) == ["1:1: the file cannot be read: larger than 1 MiB"]


def test_missing_file_and_folder(tmp_path: Path) -> None:
    """The system's reason is given, not a traceback."""
    with pytest.raises(ConfigError, match="No such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(ConfigError, match="Is a directory"):
        read(tmp_path)
    with pytest.raises(ConfigError, match="NUL"):
        read(Path("a\0b"))


def test_byte_order_mark_and_crlf_are_fine(tmp_path: Path) -> None:
    """A byte order mark and CRLF, as Windows editors write them, are read."""
    text = b"\xef\xbb\xbfservers:\r\n  a:\r\n    command: x\r\n"
    assert stdio(load_text(tmp_path, text), "a").program.reveal() == "x"


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


def test_anchors_aliases_merge_keys_and_tags(tmp_path: Path) -> None:
    """All are refused at once, each at its place, without follow-up complaints."""
    text = """\
servers:
  a: &base {command: x}
  b: *base
  c: {<<: *base, command: y}
  d: {command: !!python/object/apply:os.system ["true"]}
  e: {command: !!str z}
  *base : {command: x}
"""
    found = [line.split(";")[0] for line in lines(tmp_path, text)]
    assert found == [
        "2:6: anchors and aliases are not accepted",
        "3:6: anchors and aliases are not accepted",
        "4:7: merge keys are not accepted",
        "4:11: anchors and aliases are not accepted",
        "5:16: tags are not accepted",
        "6:16: tags are not accepted",
        "7:3: anchors and aliases are not accepted",
    ]


def test_alias_bomb_is_refused_quickly(tmp_path: Path) -> None:
    """Nine levels of nine aliases are 43 million leaves, none of which is built."""
    levels = ["a0: &a0 [x,x,x,x,x,x,x,x,x]"]
    levels += [f"a{n}: &a{n} [{','.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 9)]
    file = tmp_path / "c.yaml"
    file.write_text("\n".join(levels))
    assert len(read(file).problems) > 9
    assert_costs_less(lambda: read(file), 0.05)


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


@pytest.mark.parametrize(
    ("text", "place"),
    [
        ('{"a": 1} // note', "1:10"),
        ('{"a": // note\n1}', "1:7"),
        ('{"a": 1', "1:8"),
        ('{"a" 1}', "1:6"),
        ('{"a": NaN}', "1:7"),
        ('{"a": [-Infinity]}', "1:8"),
        ('{"a": 01}', "1:8"),
        ('{"a": nul}', "1:7"),
        ('{"a": "x\ny"}', "1:9"),
        ('{"a": 1, b: 2}', "1:10"),
        ('{"a": [1 2]}', "1:10"),
        ('{"a": ', "1:7"),
        ('{"servers": {"a": {"command": "x"}},}', "1:3"),  # the comma, or what follows it
        ('{\n\t"a": [1,\n\t2,]\n}', "3:"),
    ],
)
def test_broken_json(tmp_path: Path, text: str, place: str) -> None:
    """A file that begins like JSON is held to JSON, with line and column."""
    found = lines(tmp_path, text, name="c.json")
    assert len(found) == 1
    assert found[0].startswith(place)
    assert ": this is not JSON: " in found[0]
    assert found[0].endswith(
        "; a file that begins with { and a quote is read as JSON, without comments and without a comma at the end"
    )


def test_json_with_tabs(tmp_path: Path) -> None:
    """JSON indented with tabs is fine, and marks still count characters."""
    file = tmp_path / "c.json"
    file.write_text('{\n\t"a": {"b": [1, -2.5e3, true, null, "t\\u00e9"], "c": [], "d": {}},\n\t"a": 1\n}\n')
    made = read(file)
    assert [str(problem).rpartition(": ")[2] for problem in made.problems] == [
        'duplicate key "a" (first at 2:2); remove one'
    ]
    assert (made.problems[0].line, made.problems[0].column) == (3, 2)
    assert made.root == {"a": {"b": ["1", "-2.5e3", "true", "null", "té"], "c": [], "d": {}}}
    assert made.places[("a", "b", 4)].value == (2, 37)
    assert made.places[("a", "d")] == ((2, 63), (2, 58))


@pytest.mark.slow
def test_a_large_json_file_is_read_in_time(tmp_path: Path) -> None:
    """Marks in JSON cost little, also at the end of a file of a thousand kilobytes."""
    entries = ",\n".join(f'"k{n}": "value number {n}"' for n in range(25_000))
    file = tmp_path / "c.json"
    file.write_text("{" + entries + "}")
    assert len(read(file).root) == 25_000
    assert_costs_less(lambda: read(file), 2)


def test_yaml_flow_map_at_the_top_is_yaml(tmp_path: Path) -> None:
    """Only `{` followed by a quoted key is JSON."""
    assert stdio(load_text(tmp_path, "{servers: {a: {command: x}}}"), "a").id == "a"
