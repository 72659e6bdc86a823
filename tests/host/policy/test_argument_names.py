"""Twins among arguments: found where the definition declares names or a condition names them, and nowhere else."""

from __future__ import annotations

import json
from typing import Any

import pytest
from msgspec import Raw

from host.policy.argument_names import MAX_DEFINITION, MAX_PARSED, find_twin, hide_parsed
from host.policy.conditions import LONGEST_DECODED, UNREADABLE, LongArguments, decode_arguments

NESTED = {
    "type": "object",
    "properties": {
        "path": {"type": "string"},
        "options": {"type": "object", "properties": {"mode": True, "deep": {"$ref": "#/$defs/node"}}},
        "list": {"type": "array", "items": {"properties": {"uri": {}}}},
        "pair": {"prefixItems": [{"properties": {"first": {}}}, {}], "items": {"properties": {"more": {}}}},
        "old": {"items": [{"properties": {"first": {}}}], "additionalItems": {"properties": {"more": {}}}},
        "map": {"additionalProperties": {"properties": {"url": {}}}},
        "either": {"anyOf": [{"properties": {"a": {}}}, {"allOf": [{"properties": {"b": {}}}]}]},
        "free": {"type": "object"},
        "plain": True,
        "needs": {"type": "object", "required": ["key", 5]},
        "again": {"$recursiveRef": "#"},
        "escaped": {"$ref": "#/$defs/a%20%3Cb~1c%3E"},
        "anchored": {"$ref": "#here"},
        "twice": {"$ref": "#there"},
        "by_id": {"$ref": "node.json"},
        "below_id": {"$ref": "https://e.example/all#/$defs/node"},
        "foreign": {"$ref": "https://e.example/other#/$defs/node"},
    },
    "$id": "https://e.example/all",
    "$defs": {
        "node": {"properties": {"name": {}, "next": {"$ref": "#/$defs/missing"}}},
        "a <b/c>": {"properties": {"name": {}}},
        "named": {"$anchor": "here", "$id": "node.json", "properties": {"name": {}}},
        "one": {"$anchor": "there", "properties": {"name": {}}},
        "two": {"$dynamicAnchor": "there", "properties": {"other": {}}},
    },
}


def tool(schema: object) -> bytes:
    return json.dumps({"name": "x", "inputSchema": schema}).encode()


def twin(arguments: object, schema: object = NESTED, *paths: str) -> str | None:
    return find_twin(json.dumps(arguments).encode(), tool(schema), frozenset(paths))


@pytest.mark.parametrize(
    ("arguments", "found"),
    [
        ({"path": "/a", "Path": "/b"}, "Path"),
        ({"path\0": "/b"}, "path\0"),
        ({"a": 1, "A": 2}, "A"),  # the object that is judged has only one of each
        ({"options": {"Mode": 1}}, "Mode"),
        ({"options": {"mode": 1, "x": 1, "X": 1}}, "X"),
        ({"options": {"deep": {"Name": 1}}}, "Name"),
        ({"list": [{"uri": 1}, {"uri": 1, "URI": 2}]}, "URI"),
        ({"pair": [{"First": 1}]}, "First"),
        ({"pair": [{}, {"First": 1}]}, None),
        ({"pair": [{}, {}, {"MORE": 1}]}, "MORE"),
        ({"old": [{"first": 1}, {"More": 1}]}, "More"),
        ({"map": {"k": {"Url": 1}}}, "Url"),
        ({"map": {"k": 1, "K": 2}}, None),  # keys of a map are not declared
        ({"either": {"A": 1}}, "A"),
        ({"either": {"b": 1, "B": 1}}, "B"),
        ({"free": {"a": 1, "A": 2}}, None),
        ({"plain": {"a": 1, "A": 2}}, None),
        ({"other": {"a": 1, "A": 2, "Path": 3}}, None),
        ({"needs": {"KEY": 1}}, "KEY"),
        ({"needs": {"key": 1}}, None),
        ({"again": {"Path": 1}}, "Path"),
        ({"escaped": {"Name": 1}}, "Name"),
        ({"anchored": {"Name": 1}}, "Name"),
        ({"twice": {"Name": 1}}, "Name"),
        ({"twice": {"OTHER": 1}}, "OTHER"),
        ({"by_id": {"Name": 1}}, "Name"),
        ({"below_id": {"Name": 1}}, "Name"),
        ({"foreign": {"Name": 1}}, None),
        ({"path": {"a": 1, "A": 2}}, None),
        ({"path": "/a", "paths": 1, "p\u0430th": 1}, None),  # with a Cyrillic a
        ({}, None),
    ],
)
def test_declared_names(arguments: object, found: str | None) -> None:
    assert twin(arguments) == found


@pytest.mark.parametrize(
    ("paths", "arguments", "found"),
    [
        (["/owner"], {"Owner": 1}, "Owner"),
        (["/opt/deep"], {"opt": {"Deep": 1}}, "Deep"),
        (["/opt/deep"], {"opt": {"deep": {"a": 1, "A": 2}}}, None),
        (["/list/0/n"], {"list": [{"N": 1}]}, "N"),
        (["/list/0/n"], {"list": [{"n": 1}, {"N": 1}]}, None),
        (["/a~1b"], {"A/B": 1}, "A/B"),
        (["owner"], {"OWNER": 1}, "OWNER"),
        ([], {"Owner": 1, "x": {"a": 1, "A": 1}}, None),
        ([], {"owner": 1, "Owner": 1}, "Owner"),
    ],
)
def test_names_of_conditions(paths: list[str], arguments: object, found: str | None) -> None:
    assert find_twin(json.dumps(arguments).encode(), b"", frozenset(paths)) == found


def test_a_schema_and_a_condition_are_looked_at_together() -> None:
    schema: dict[str, Any] = {"properties": {"options": {"properties": {"mode": {}}}}}
    assert twin({"options": {"Mode": 1}}, schema, "/options/depth") == "Mode"
    assert twin({"options": {"Depth": 1}}, schema, "/options/depth") == "Depth"
    assert twin({"options": {"mode": 1, "depth": 2}}, schema, "/options/depth") is None


def test_names_that_a_schema_declares_twice_may_each_be_there_alone() -> None:
    schema: dict[str, Any] = {"properties": {"id": {}, "ID": {}}}
    assert twin({"id": 1}, schema) is None
    assert twin({"ID": 1}, schema) is None
    assert twin({"id": 1, "ID": 2}, schema) == "ID"
    assert twin({"Id": 1}, schema) == "Id"


def test_a_prompt_declares_the_names_of_its_arguments() -> None:
    prompt = b'{"name":"p","arguments":[{"name":"topic"},{"name":5},7]}'
    assert find_twin(b'{"Topic":"x"}', prompt, frozenset()) == "Topic"
    assert find_twin(b'{"topic":"x","other":"y"}', prompt, frozenset()) is None


def test_escapes_and_halves_of_pairs_are_names_like_others() -> None:
    assert find_twin(b'{"\\u0050ath":1}', tool(NESTED), frozenset()) == "Path"
    assert find_twin(b'{"path":"\\ud800","Path":1}', tool(NESTED), frozenset()) == "Path"
    assert find_twin(b'{"\\ud800":1,"\\ud801":2}', tool(NESTED), frozenset()) is None


@pytest.mark.parametrize("given", [b"[]", b"null", b"5", b'"x"'])
def test_what_is_no_object_has_no_members(given: bytes) -> None:
    assert find_twin(given, tool(NESTED), frozenset(("/path",))) is None


@pytest.mark.parametrize("definition", [b"", b"[]", b"not JSON", b'{"inputSchema":5}', b'{"inputSchema":{"$ref":5}}'])
def test_a_definition_that_declares_nothing_leaves_the_conditions(definition: bytes) -> None:
    assert find_twin(b'{"Path":1}', definition, frozenset(("/path",))) == "Path"
    assert find_twin(b'{"Path":1}', definition, frozenset()) is None


def test_schemas_that_refer_to_themselves_are_read_once() -> None:
    loop: dict[str, Any] = {
        "properties": {"child": {"$ref": "#"}, "all": {"$ref": "#/properties/all"}},
        "allOf": [{"$ref": "#"}],
    }
    deep: dict[str, Any] = {"CHILD": 1}
    for _ in range(50):
        deep = {"child": deep}
    assert twin(deep, loop) == "CHILD"
    assert twin(deep["child"], {"properties": {"child": {"$ref": "other.json#"}}}) is None


def test_reading_a_definition_is_bounded() -> None:
    many = {"anyOf": [{"$ref": "#/$defs/all"}] * 200}
    schema = {"properties": {f"p{at}": many for at in range(300)}, "$defs": {"all": {"anyOf": [many] * 200}}}
    assert twin({f"p{at}": {"x": 1} for at in range(300)}, schema) is None
    long = tool({"properties": {"path": {}}, "description": "x" * MAX_DEFINITION})
    assert find_twin(b'{"Path":1}', long, frozenset()) is None
    assert find_twin(b'{"Path":1}', long, frozenset(("/path",))) == "Path"


TEXT, LIST, OBJECT, NULL = ({"type": name} for name in ("string", "array", "object", "null"))


def is_hidden(text: str, definition: bytes, fill: int = 0) -> bool:
    """Whether conditions cannot tell anything of an argument with this text."""
    given = {"p": text, "fill": "x" * fill}
    raw = json.dumps(given).encode()
    found = hide_parsed(decode_arguments(Raw(raw)), definition)
    assert isinstance(found, LongArguments) == (len(raw) > LONGEST_DECODED)
    if isinstance(found, LongArguments):
        assert (found.at(("p", "deep")) is UNREADABLE) == (found.at(("p",)) is UNREADABLE)
        return found.at(("p",)) is UNREADABLE
    assert isinstance(found, dict)
    return found["p"] is UNREADABLE


@pytest.mark.parametrize("fill", [0, LONGEST_DECODED, 200 * 1024])
@pytest.mark.parametrize(
    ("schema", "array", "object_", "null"),
    [
        (TEXT, False, False, False),
        (LIST, True, False, False),
        ({"type": ["string", "object"]}, False, True, False),
        ({"anyOf": [TEXT, NULL]}, False, False, True),
        ({"anyOf": [TEXT, LIST]}, True, False, False),
        ({"oneOf": [TEXT, {"$ref": "#/$defs/list"}]}, True, False, False),
        ({"anyOf": [TEXT, {}]}, True, True, True),
        ({"type": "string", "allOf": [{"minLength": 3}]}, False, False, False),
        ({"allOf": [{"type": ["array", "null"]}, {"type": ["array", "string"]}]}, True, False, False),
        ({"enum": ["a", None, "null"]}, False, False, True),
        ({"const": []}, True, False, False),
        ({"const": "[]"}, False, False, False),
        ({"$ref": "#/$defs/loop"}, True, True, True),
        ({"$ref": "#/$defs/missing"}, True, True, True),
        ({"minLength": 1}, True, True, True),
        ({"type": 5}, True, True, True),
        (True, True, True, True),
        (False, True, True, True),
    ],
)
def test_a_text_that_a_server_may_parse(schema: object, array: bool, object_: bool, null: bool, fill: int) -> None:
    """By what the tool takes there: of a plain text, nothing is parsed."""
    defined = {"list": LIST, "loop": {"anyOf": [TEXT, {"$ref": "#/$defs/loop"}]}}
    definition = tool({"properties": {"p": schema}, "$defs": defined})
    for text, expected in (('["/a"]', array), (' \n{"a": 1}', object_), ("null ", null)):
        assert is_hidden(text, definition, fill) is expected, text
    for text in ("/a", "[1", "[a]", "{}x", "nulls", "5", '"x"', "true", ""):
        assert not is_hidden(text, definition, fill), text


def test_a_text_for_what_the_definition_does_not_mention() -> None:
    for definition in (b"", tool({"type": "object"}), b'{"name":"p","arguments":[{"name":"p"}]}'):
        assert is_hidden("[1]", definition)
    assert not is_hidden("[1]", tool({"properties": {"q": {}}, "additionalProperties": TEXT}))


def test_a_text_that_would_be_long_or_deep_to_parse_counts_as_parsed() -> None:
    assert is_hidden("[" + "x" * MAX_PARSED, tool({"properties": {"p": LIST}}))
    assert is_hidden("[" * 50_000, tool({"properties": {"p": LIST}}))
    assert not is_hidden("[" + "x" * MAX_PARSED, tool({"properties": {"p": TEXT}}))


def test_schemas_that_combine_one_another_without_end_admit_everything() -> None:
    deep = {f"d{at}": {"anyOf": [{"$ref": f"#/$defs/d{at + 1}"}]} for at in range(5_000)}
    assert is_hidden("[1]", tool({"properties": {"p": {"$ref": "#/$defs/d0"}}, "$defs": deep}))
