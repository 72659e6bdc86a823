"""YAML: what is refused before any setting is looked at, and where it is said to be."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.problems import ConfigError
from config.read import read
from tests.config.kit import lines, load_text, stdio
from tests.kit.cost import assert_costs_less


def test_unquoted_reference_in_braces_gets_a_hint(tmp_path: Path) -> None:
    """`{A: ${env:B}}` is not YAML; the remedy is a pair of quotes."""
    assert "needs quotes" in lines(tmp_path, "servers: {a: {command: x, env: {A: ${env:B}}}}")[0]


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


def test_yaml_flow_map_at_the_top_is_yaml(tmp_path: Path) -> None:
    """Only `{` followed by a quoted key is JSON."""
    assert stdio(load_text(tmp_path, "{servers: {a: {command: x}}}"), "a").id == "a"


def test_in_a_hosts_file_an_alias_is_the_value_that_it_stands_for(tmp_path: Path) -> None:
    """Only in the parts that are wanted; elsewhere anything may stand."""
    file = tmp_path / "c.yaml"
    file.write_text(
        """\
models: [&m {name: !x a, name: b}, {<<: *m}]
&k k: 1
servers:
  - &a {command: x, env: &e {A: "1"}}
  - {command: y, env: *e, <<: *a}
  - &a [z]
  - *a
"""
    )
    made = read(file, lambda root: lambda path: path[0] == "servers")
    assert made.problems == []
    first = {"command": "x", "env": {"A": "1"}}
    assert made.root["servers"] == [first, {"command": "y", "env": {"A": "1"}, "<<": first}, ["z"], ["z"]]
    assert set(made.root) == {"models", "k", "servers"}
    assert read(file).problems  # a file of ours


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("servers: *a", "this alias stands for nothing"),
        ("servers: &a [*a]", "nested deeper"),
        ("other: *a\nservers: []", "this alias stands for nothing"),
        ("a: &a [x,x,x,x,x,x,x,x]\nservers: [" + "*a, " * 2000 + "]", "aliases repeat more"),
        ("servers: []\n--- \nservers: []", "a second document"),
        ("servers: [", "this is not YAML"),
    ],
)
def test_a_hosts_file_with_mistakes_is_refused(tmp_path: Path, text: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=said):
        read(file, lambda root: lambda path: path[0] == "servers")


@pytest.mark.parametrize(
    ("text", "place", "said"),
    [
        ("a:\n  b: c\n d: e\n", "3:2", "indented by 1, and the block that it would belong to (from line 1) by 0"),
        ("a:\n  - b\n - c\n", "3:2", "indented by 1, and the block that it would belong to (from line 1) by 0"),
        ("  a: b\nc: d\n", "2:1", "indented by 0, and the first one by 2"),
        ("a:\n  - b\n  c: d\n", "3:3", "this key stands among the items of the list that begins in line 2"),
        ("a:\n  b: c\n    d: e\n", "3:6", '": " is missing in the line above, or this line is indented too far'),
        ("a:\n  b:c\n  d: e\n", "3:4", '": " is missing in the line above, or this line is indented too far'),
        ("a:\n  b: c\n  d\ne: f\n", "4:1", '": " is missing in line 3, which should be a key and its value'),
        ("a: b: c\n", "1:5", 'a value with ": " in it needs quotes'),
        ("a:\n  b: [c, d\n  e: f\n", "3:4", 'the "[" in line 2 is not closed, or a comma is missing before this'),
        ('a: {\n  "b": "c"\n  "d": "e"\n}\n', "3:3", 'the "{" in line 1 is not closed, or a comma is missing'),
        ("a: {b: [c, {d: e}\n", "2:1", 'the "[" in line 1 is not closed'),
        ("a: {b: [c, d]\n\n", "3:1", 'the "{" in line 1 is not closed'),
        ("a: [", "1:5", 'the "[" in line 1 is not closed'),
        ('a:\n  b: "c\n  d: [e]\n', "4:1", "the quote in line 2 is not closed"),
        ("a: ['b, c]\n", "2:1", "the quote in line 1 is not closed"),
        (
            'a: "b\nc: "d"\n',
            "2:5",
            'the quoted text from line 1 ends before this; check its quotes (inside it, write " as',
        ),
        (
            "a: 'it's'\n",
            "1:8",
            "the quoted text from line 1 ends before this; check its quotes (inside it, write ' as '')",
        ),
        # The parser's own words
        ("a: |\n  b\n c\n", "3:2", "expected <block end>, but found '<scalar>'"),
        ("a: [b, c}\n", "1:9", "expected ',' or ']', but got '}'"),
        ("a: [\n  @b\n]\n", "2:3", "found character '@' that cannot start any token"),
        ("a: {\n  b: ${c}\n}\n", "2:7", "but got '{'; inside {...} or [...] a value with ${...} needs quotes"),
    ],
)
def test_the_usual_mistakes_are_explained(tmp_path: Path, text: str, place: str, said: str) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read(file)
    (problem,) = caught.value.problems
    assert f"{problem.line}:{problem.column}" == place
    assert said in problem.text
