"""Values of arguments: what is decided is what `jsonschema` says."""

from __future__ import annotations

import random
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from host.protocol.schema_value import SchemaDocument, Undecided, accepts, equal, matches

VALUES: tuple[object, ...] = (
    *(None, True, False, 0, 1, -1, 3, 2.5, 1e20, "", "a", "abc", "aaaa", "1.0"),
    *([], [1], ["a", "a"], [1, 1.5, True], [[1], [1.0]], {}, {"a": 1}, {"a": "x", "b": None}, {"a": {"a": []}}),
)


def random_schema(pick: random.Random, depth: int = 0) -> Any:
    if pick.randrange(12) == 0:
        return pick.choice([True, False])
    if pick.randrange(12) == 0:
        return {"$ref": pick.choice(["#/$defs/text", "#/$defs/list/items", "#/$defs/any~1thing"]), "title": "x"}
    words: dict[str, Any] = {
        "type": pick.choice(["string", "number", "integer", "null", "array", "object", ["boolean", "integer"]]),
        "enum": pick.sample(VALUES, 5),
        "const": pick.choice(VALUES),
        "minimum": pick.randrange(-2, 3),
        "exclusiveMaximum": pick.randrange(4),
        "multipleOf": pick.choice([1, 2, 3]),
        "minLength": pick.randrange(4),
        "maxLength": pick.randrange(4),
        "pattern": pick.choice(["^a", "a$", "^a{2,3}$", "[^a]", "b|c", r"^\d\.\d$"]),
        "minItems": pick.randrange(3),
        "maxItems": pick.randrange(3),
        "uniqueItems": True,
        "required": pick.choice([[], ["a"], ["a", "b"]]),
        "format": "uri",
        "x-hint": {"type": "null"},
    }
    if depth < 3:
        inner = [random_schema(pick, depth + 1) for _ in range(4)]
        words |= {"allOf": inner[:2], "anyOf": inner[:2], "oneOf": inner, "not": inner[0], "items": inner[0]}
        words |= {"properties": {"a": inner[0]}, "additionalProperties": inner[1]}
        words |= {"propertyNames": inner[2]}
    return {word: words[word] for word in pick.sample(sorted(words), pick.randrange(4))}


def test_what_is_decided_is_what_a_validator_says() -> None:
    pick = random.Random(1)
    decided = {True: 0, False: 0}
    for _ in range(400):
        root = {"$defs": {"text": {"type": "string"}, "list": {"items": random_schema(pick, 1)}, "any/thing": True}}
        schema = {**root, **random_schema_object(pick)}
        judge = jsonschema.Draft202012Validator(schema)
        for value in pick.sample(VALUES, 6):
            try:
                found = accepts(schema, value, SchemaDocument(schema))
            except Undecided:
                continue
            assert found is judge.is_valid(value), (schema, value)
            decided[found] += 1
    assert min(decided.values()) > 300, decided


def random_schema_object(pick: random.Random) -> dict[str, Any]:
    while not isinstance(found := random_schema(pick), dict):
        pass
    return found


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"if": {}, "then": False}, 1),
        ({"$dynamicRef": "#x"}, 1),
        ({"contains": {}}, [1]),
        ({"items": [{}]}, [1]),
        ({"minProperties": 1}, {}),
        ({"dependentRequired": {}}, {}),
        ({"type": "integer"}, 1.0),
        ({"multipleOf": 0.1}, 0.3),
        ({"exclusiveMinimum": True, "minimum": 1}, 1),
        ({"pattern": "(?=a)"}, "a"),
        ({"pattern": "(?<n>a)"}, "a"),
        ({"pattern": "[a&&b]"}, "a"),
        ({"pattern": "[[a]"}, "a"),
        ({"pattern": "a"}, "é"),
        ({"pattern": "a$"}, "a\n"),
        ({"pattern": 1}, "a"),
        ({"$ref": "#/$defs/x"}, 1),
        ({"$ref": "other#/x"}, 1),
        ({"$ref": "#x"}, 1),
        ({"$ref": "#/enum", "enum": [1]}, 1),
        ({"$ref": "#", "type": "string"}, 1),
        ({"$ref": "#/x/1", "x": [True]}, 1),
        ({"$ref": "#/$defs/x", "$defs": {"x": {"$id": "https://x.test"}}}, 1),
        ({"$ref": "#"}, 1),
        ({"allOf": {}}, 1),
        ({"enum": {}}, 1),
        ({"required": {}}, {}),
        ({"maxLength": "1"}, "a"),
        ({"maximum": "1"}, 1),
        ({"properties": []}, {}),
        (1, 1),
    ],
)
def test_what_validators_may_read_differently_is_not_decided(schema: object, value: object) -> None:
    with pytest.raises(Undecided):
        accepts(schema, value, SchemaDocument(schema))


@pytest.mark.parametrize(
    "schema",
    [{"contains": False}, {"minProperties": 5}, {"pattern": "(?=a)"}, {"minItems": "x"}, {"exclusiveMinimum": True}],
)
def test_keywords_for_other_types_do_not_count(schema: object) -> None:
    assert accepts(schema, None, SchemaDocument(schema))


def test_a_reference_leads_through_lists_and_escapes() -> None:
    schema = {"$ref": "#/x/1/a~1b%20c", "x": [0, {"a/b c": {"type": "null"}}]}
    assert accepts(schema, None, SchemaDocument(schema))
    assert not accepts(schema, 1, SchemaDocument(schema))


def test_a_schema_that_combines_itself_again_and_again_is_not_decided() -> None:
    doubled = {f"d{at}": {"allOf": [{"$ref": f"#/$defs/d{at + 1}"}] * 2} for at in range(40)}
    schema = {"$ref": "#/$defs/d0", "$defs": {**doubled, "d40": {}}}
    with pytest.raises(Undecided, match="too complex"):
        accepts(schema, 1, SchemaDocument(schema))


def test_a_pattern_is_tried_in_linear_time() -> None:
    assert not matches("^(a+)+$", "a" * 5000 + "!")
    with pytest.raises(Undecided, match="too complex"):
        matches("((a{0,1000}){0,1000}){0,1000}", "a")


def test_equal_values_are_equal_in_json() -> None:
    assert equal([1, {"a": 2.0}], [1.0, {"a": 2}])
    assert not equal(1, True)
    assert not equal([0], [False])
    assert not equal({"a": 1}, {"a": 1, "b": 1})
