"""Spans of JSON with comments."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from config.edit import CannotEdit, append, cut, get, has, insert, paste, values
from tests.config.edit.documents import json_texts
from tests.kit.examples import examples

FILE = Path("settings.json")
OURS = {"command": "/x/colonnade", "args": ["serve", "--stdio"]}


@pytest.mark.slow
@given(json_texts())
@settings(max_examples=examples(100))
def test_what_is_inserted_and_cut_out_leaves_every_byte(text: str) -> None:
    before = values(FILE, text)
    insertion = insert(FILE, text, ("servers", "colonnade"), OURS)
    after = values(FILE, insertion.text)
    assert after["servers"].pop("colonnade") == OURS
    assert after == {**before, "servers": before.get("servers", {})}
    assert text == insertion.text[: insertion.at] + insertion.text[insertion.at + len(insertion.piece) :]
    if before.get("servers"):
        assert cut(FILE, insertion.text, ("servers", "colonnade")).rest == text


@pytest.mark.slow
@given(json_texts(), st.data())
@settings(max_examples=examples(100))
def test_a_server_that_is_cut_and_put_back_has_its_values(text: str, data: st.DataObject) -> None:
    before = values(FILE, text)
    if not before.get("servers"):
        return
    path = ("servers", data.draw(st.sampled_from(sorted(before["servers"]))))
    rest, piece = cut(FILE, text, path)
    assert not has(values(FILE, rest), path)
    again = values(FILE, paste(FILE, rest, path, piece).text)
    assert again == before


def test_a_member_gets_its_own_line_and_comments_stay_where_they_are() -> None:
    text = (
        '{\n    // of all\n    "servers": { // mine\n        // about a\n        "a": {"command": "x"}, // last\n'
        "    },\n}\n"
    )
    insertion = insert(FILE, text, ("servers", "colonnade"), {"command": "c"})
    assert insertion.text == (
        '{\n    // of all\n    "servers": { // mine\n        "colonnade": {\n            "command": "c"\n        },\n'
        '        // about a\n        "a": {"command": "x"}, // last\n    },\n}\n'
    )
    rest, piece = cut(FILE, insertion.text, ("servers", "a"))
    assert piece == '{"command": "x"}'
    assert rest.endswith("        },\n        // about a\n        // last\n    },\n}\n")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "servers": {\n    "c": {\n      "url": "u"\n    }\n  }\n}\n'),
        ("{}", '{"servers": {"c": {"url": "u"}}}'),
        ('{"servers":{}}', '{"servers":{"c": {"url": "u"}}}'),
        ('{"servers":{"a":1}}', '{"servers":{"c": {"url": "u"}, "a":1}}'),
        ('{\n\t"servers": {}\n}', '{\n\t"servers": {\n\t\t"c": {\n\t\t\t"url": "u"\n\t\t}\n\t}\n}'),
        (
            '{\r\n  "x": 1\r\n}',
            '{\r\n  "servers": {\r\n    "c": {\r\n      "url": "u"\r\n    }\r\n  },\r\n  "x": 1\r\n}',
        ),
    ],
)
def test_the_style_of_the_file_is_kept(text: str, expected: str) -> None:
    assert insert(FILE, text, ("servers", "c"), {"url": "u"}).text == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            '{"s": {"a": 1, "b": 2, "c": 3}}',
            ['{"s": {"b": 2, "c": 3}}', '{"s": {"a": 1, "c": 3}}', '{"s": {"a": 1, "b": 2}}'],
        ),
        ('{"s": {\n "a": 1,\n "b": 2 // x\n}}', ['{"s": {\n "b": 2 // x\n}}', '{"s": {\n "a": 1\n // x\n}}']),
        ('{"s": { // x\n"a": 1 }}', ['{"s": { // x\n }}']),
    ],
)
def test_one_comma_and_one_line_go_with_a_member(text: str, expected: list[str]) -> None:
    for name, rest in zip("abc", expected, strict=False):
        assert cut(FILE, text, ("s", name)).rest == rest


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"servers": {"colonnade": 1}}', 'it has "colonnade" already'),
        ('{"servers": {"colonnade": null}}', "already"),
        ('{"servers": []}', 'its "servers" is no map'),
        ('{"servers": {"a": 1, "a": 2}}', 'duplicate key "a"'),
        ("[]", "no map"),
        ('{"servers": {', "not JSON"),
        ('{"password": "hunter2" oops}', "not JSON"),
    ],
)
def test_a_file_that_cannot_take_it_is_refused(text: str, problem: str) -> None:
    with pytest.raises(CannotEdit, match=problem) as refusal:
        insert(FILE, text, ("servers", "colonnade"), OURS)
    assert refusal.value.__context__ is None


def test_a_missing_member_cannot_be_cut() -> None:
    with pytest.raises(CannotEdit, match='it has no "b" where it was'):
        cut(FILE, '{"servers": {"a": 1}}', ("servers", "b"))


def test_deep_maps_are_made_on_the_way() -> None:
    text = insert(FILE, '{"mcp": {"timeout": 1}}', ("mcp", "servers", "c"), {"url": "u"}).text
    assert get(values(FILE, text), ("mcp", "servers", "c", "url")) == "u"


def test_a_number_of_any_length_stands_beside_the_servers() -> None:
    text = '{"x": %s}' % ("1" * 5000)
    assert insert(FILE, text, ("servers", "a"), {"n": 1}).text == text.replace('{"x', '{"servers": {"a": {"n": 1}}, "x')


@pytest.mark.parametrize("text", ["// mine", "// mine\n", "/* mine */\n\n", " \n// a\n/* b */"])
def test_a_file_of_comments_alone_keeps_them(text: str) -> None:
    insertion = insert(FILE, text, ("servers", "a"), OURS)
    assert insertion.text.startswith(text)
    assert values(FILE, insertion.text) == {"servers": {"a": OURS}}
    assert insertion.text.replace(insertion.piece, "") == text


def test_a_piece_keeps_its_indentation_in_an_empty_file() -> None:
    text = '{\n  "servers": {\n    "nullable": {\n      "n": null\n    }\n  }\n}\n'
    rest, piece = cut(FILE, text, path := ("servers", "nullable"))
    assert values(FILE, rest) == {"servers": {}}
    assert paste(FILE, "", path, piece).text == text


def test_null_is_replaced_by_a_map() -> None:
    text = '{"x": 1, "servers": null /* none */, "y": {}}'
    made = '{"x": 1, "servers": {"a": {"n": 1}} /* none */, "y": {}}'
    assert insert(FILE, text, ("servers", "a"), {"n": 1}).text == made
    assert paste(FILE, text, ("servers", "a"), '{"n": 1}').text == made
    deep = insert(FILE, '{"mcp": null}', ("mcp", "servers", "a"), {"n": 1}).text
    assert deep == '{"mcp": {"servers": {"a": {"n": 1}}}}'
    with pytest.raises(CannotEdit, match='it has no "a" where it was'):
        cut(FILE, text, ("servers", "a"))


def test_a_comment_of_several_lines_before_the_comma_stays_apart_from_the_one_above() -> None:
    text = '{"s": { // note\n  "a": {} /* x\n y */ ,\n"b": {}}}'
    assert values(FILE, cut(FILE, text, ("s", "a")).rest) == {"s": {"b": {}}}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", '{\n  "servers": {\n    "c": {\n      "url": "u"\n    }\n  }\n}\n'),
        ('{"servers":{}}', '{"servers":{"c": {"url": "u"}}}'),
        ('{"servers":{"a":1}}', '{"servers":{"a":1, "c": {"url": "u"}}}'),
        ('{"servers":{"a":1,}}', '{"servers":{"a":1, "c": {"url": "u"},}}'),
        ('{"servers":{"a":1 /* x */}}', '{"servers":{"a":1, "c": {"url": "u"} /* x */}}'),
        (
            '{\n "servers": {\n  "a": 1, // a\n  "b": 2 // b\n  // end\n }\n}',
            '{\n "servers": {\n  "a": 1, // a\n  "b": 2, // b\n  "c": {\n   "url": "u"\n  }\n  // end\n }\n}',
        ),
        (
            '{\r\n\t"servers": {\r\n\t\t"a": 1,\r\n\t},\r\n}',
            '{\r\n\t"servers": {\r\n\t\t"a": 1,\r\n\t\t"c": {\r\n\t\t\t"url": "u"\r\n\t\t},\r\n\t},\r\n}',
        ),
        ('{\n "servers": {"a": 1}\n}', '{\n "servers": {"a": 1, "c": {"url": "u"}}\n}'),
    ],
)
def test_a_member_that_is_added_is_the_last_one(text: str, expected: str) -> None:
    assert append(FILE, text, ("servers", "c"), {"url": "u"}, "") == expected


@settings(max_examples=examples(200))
@given(json_texts())
def test_a_member_is_added_to_any_file(text: str) -> None:
    """It is the last one, and all comments stay."""
    before = values(FILE, text)
    made = append(FILE, text, ("servers", "added"), {"url": "u"}, "")
    assert list(values(FILE, made)["servers"]) == [*before.get("servers", {}), "added"]
    assert made.count("//") == text.count("//")
    assert made.count("/*") == text.count("/*")
