"""JSON with comments: what is accepted, what is passed over, and where the entries of a map stand."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.json_text import is_blank, looks_like_json, members, strict
from config.read import read
from tests.config.kit import lines, load_text, stdio
from tests.kit.cost import assert_costs_less


@pytest.mark.parametrize(
    ("text", "place"),
    [
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
        ('{"a": [,]}', "1:8"),
        ('{"a": [1,,]}', "1:10"),
        ('{"a": 1} / note', "1:10"),
    ],
)
def test_broken_json(tmp_path: Path, text: str, place: str) -> None:
    """A file that begins like JSON is held to JSON, with line and column."""
    found = lines(tmp_path, text, name="c.json")
    assert len(found) == 1
    assert found[0].startswith(place)
    assert ": this is not JSON: " in found[0]
    assert found[0].endswith("; a file that begins with { and a quote is read as JSON")


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


def test_comments_and_final_commas_keep_their_places(tmp_path: Path) -> None:
    text = """\
// of the team, see https://example.com
{
  "servers": { /* one
  only */ "a": {
    "command": "x // y", // not a comment within
    "env": {"A": "/* kept */", "B": ",]",},
  },
}
}
"""
    made = load_text(tmp_path, text, name="c.json")
    assert [word.reveal() for word in stdio(made, "a").command] == ["x", "//", "y"]
    assert {name: value.reveal() for name, value in stdio(made, "a").env.items()} == {"A": "/* kept */", "B": ",]"}
    assert read(tmp_path / "c.json").places[("servers", "a", "env", "B")].value == (6, 37)


_TEXT = st.text('a"/*,]} \\\n', max_size=6)
_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | _TEXT,
    lambda below: st.lists(below, max_size=3) | st.dictionaries(_TEXT, below, max_size=3),
    max_leaves=8,
)


@given(_VALUES)
def test_standard_json_stays_as_it_is(value: object) -> None:
    """Whatever its strings look like."""
    text = json.dumps(value, indent=1)
    assert strict(text) == text


@given(st.lists(_VALUES, min_size=1, max_size=3))
def test_comments_change_no_value(values: list[object]) -> None:
    text = "[" + ", /* ] */".join(map(json.dumps, values)) + " , // ,]\n]"
    assert json.loads(strict(text)) == values
    assert len(strict(text)) == len(text)


def test_spaces_cost_little() -> None:
    assert_costs_less(lambda: strict('{"a": 1' + " " * 300_000 + "}//"), 0.2)


def test_entries_of_a_map_by_their_offsets() -> None:
    text = '{"a": [1, {"b": 2}], "c" : "d", "e": {}}'
    found = members(text, 0)
    assert {name: (text[each.key_start :][:3], text[each.value_start : each.end]) for name, each in found.items()} == {
        "a": ('"a"', '[1, {"b": 2}]'),
        "c": ('"c"', '"d"'),
        "e": ('"e"', "{}"),
    }
    with pytest.raises(ValueError, match='duplicate key "a"'):
        members('{"a": 1, "a": 2}', 0)


@pytest.mark.slow
def test_megabytes_beside_the_servers_cost_little(tmp_path: Path) -> None:
    """A host keeps its history in the same file; a host's file is read as far as it means something here."""
    file = tmp_path / "settings.json"
    root = {"mcpServers": {"a": {"command": "x"}}, "history": [{"text": "x" * 90, "n": n} for n in range(40_000)]}
    file.write_text(json.dumps(root, indent=1))
    assert file.stat().st_size > 4_000_000
    made = read(file, lambda root: lambda path: path[0] == "mcpServers")
    assert made.root["mcpServers"] == {"a": {"command": "x"}}
    assert_costs_less(lambda: read(file, lambda root: lambda path: path[0] == "mcpServers"), 0.5)


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "text",
    [
        "/" * 100_000,
        "/**/ " * 20_000 + "x",
        "{ " + "/" * 100_000 + "\n mcpServers: {}}",
        "/*" * 50_000,
        '{"' + '\\"' * 50_000,
        '{"a": ' + "//\n" * 50_000 + "x",
        " " * 100_000 + ", ," * 1000,
    ],
    ids=range(7),
)
def test_a_text_that_is_not_json_costs_little(text: str) -> None:
    """Each of these is in a repository that somebody cloned."""
    assert_costs_less(lambda: (looks_like_json(text), strict(text)), 0.2)


def test_a_comment_without_an_end_is_none() -> None:
    assert strict('{"a": 1 /*') == '{"a": 1 /*'
    assert strict('{"a": 1 /*/') == '{"a": 1 /*/'
    assert strict('{"a": 1 /* x}') == '{"a": 1 /* x}'
    assert strict('{"a": 1, /***/}') == '{"a": 1       }'


def test_numbers_of_any_length_beside_the_servers(tmp_path: Path) -> None:
    file = tmp_path / "settings.json"
    file.write_text('{"x": %s, "mcpServers": {"a": {"command": "x"}}}' % ("1" * 5000))
    assert read(file, lambda root: lambda path: path[0] == "mcpServers").root["mcpServers"] == {"a": {"command": "x"}}
    assert set(members(file.read_text(), 0)) == {"x", "mcpServers"}


@pytest.mark.parametrize("end", ["\r", "\v", "\f", "\x85", "\u2028", "\u2029"])
def test_no_key_hides_behind_a_line_end_that_not_every_host_knows(tmp_path: Path, end: str) -> None:
    """For one host it is within the comment, for another behind it."""
    for text in (
        f'{{"servers": {{"a": {{"command": "x" // hi{end} ,"disabled": true\n}}}}}}',
        f'{{"a": 1}} // hi{end} {{}}',
        f'// hi{end} {{"a": 1}}\n{{}}',
    ):
        assert strict(text) == text
        assert not is_blank(text)
    assert lines(tmp_path, f'{{"a": 1 // hi{end} ,"b": 2\n}}', name="c.json") == [
        "1:9: this is not JSON: programs differ in where this comment ends; end its line with a line feed; a file that "
        "begins with { and a quote is read as JSON"
    ]
    assert json.loads(strict(f'{{"a": 1 // hi{end}\n}} // {end}')) == {"a": 1}
    assert is_blank(f"// hi{end} \n")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": “x”}', '1:7: this is not JSON: a typographic quote stands here; write straight ones (")'),
        (r'{"a": "C:\Users"}', r"1:10: this is not JSON: invalid \escape; in a text, a backslash is written twice"),
    ],
)
def test_what_is_often_pasted(tmp_path: Path, text: str, said: str) -> None:
    """Text of a word processor, and paths of Windows."""
    assert lines(tmp_path, text, name="c.json")[0].startswith(said)
