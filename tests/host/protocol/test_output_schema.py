"""Schemas of structured content: what passes is compiled by `jsonschema` here, and by the Ajv of the official SDKs in
`make eras`."""

from __future__ import annotations

import json
import warnings
from contextlib import suppress
from datetime import datetime
from decimal import Decimal
from typing import Annotated, Any, Literal

import jsonschema  # type: ignore[import-untyped]
import pytest
from msgspec import Raw
from pydantic import BaseModel, Field

from host.protocol.definitions import adapted, misfit_of
from host.protocol.methods import Kind
from host.protocol.output_schema import is_compiled
from host.protocol.versions import SESSION, STATELESS
from tests.kit.output_schemas import NAMES, OutputSchemas

OBJECT = {"type": "object"}
OLD = "http://json-schema.org/draft-07/schema#"
NEW = "https://json-schema.org/draft/2020-12/schema"
TUPLE = {"properties": {"a": {"items": [{"type": "string"}], "additionalItems": False}}}


def tool(schema: dict[str, Any]) -> bytes:
    return json.dumps({"name": "t", "inputSchema": OBJECT, "outputSchema": OBJECT | schema}).encode()


def shown(schema: dict[str, Any]) -> list[Any]:
    """The output schemas that clients of the two eras are shown; None for none."""
    raw = tool(schema)
    return [json.loads(adapted(Kind.TOOL, raw, era)).get("outputSchema") for era in (SESSION, STATELESS)]


@pytest.mark.parametrize(
    "schema",
    [
        {},
        {"$schema": NEW},
        {"$schema": f"{NEW}#"},
        {"$schema": OLD, **TUPLE},
        {"$schema": OLD.removesuffix("#")},
        {"$schema": "https://json-schema.org/draft/2019-09/schema"},
        {"properties": {"a": {"prefixItems": [{}, {}], "minItems": 2, "items": {}}}},
        {"properties": {"a": {"pattern": r"^[\w.-]+$", "format": "of its own"}}, "patternProperties": {"^x-": {}}},
        {"properties": {"a": {"type": ["string", "null"], "default": None, "enum": ["x", None], "x-kept": [None]}}},
        {"properties": {"a": {"type": "integer", "minimum": 0.0, "maximum": 10**30, "multipleOf": 0.5}}},
        {"properties": {"a": {"type": "string", "nullable": True}, "b": {"type": ["null"], "nullable": True}}},
        {
            "properties": {"a": {"oneOf": [{"$ref": "#/$defs/a"}], "discriminator": {"propertyName": "b"}}},
            "$defs": {"a": {}},
        },
        {"properties": {"a": {"$ref": "#"}, "b": {"items": {"$ref": "#/properties/c/items"}}, "c": {"items": {}}}},
        {
            "properties": {"a": {"$ref": "#/$defs/P%3CI%3E"}, "b": {"$ref": "#/$defs/a~1b"}},
            "$defs": {"P<I>": {}, "a/b": {}},
        },
        {"properties": {"a": {"$ref": "#/definitions/a"}}, "definitions": {"a": {"$ref": "#/definitions/b"}, "b": {}}},
        {"properties": {"a": {"$ref": "#/anyOf/1"}}, "anyOf": [{}, {"required": ["a"]}]},
        {"properties": {name: {"type": "string"} for name in ("$ref", "$id", "id", "pattern", "$anchor", "nullable")}},
        {
            "properties": {
                "a": {"default": {"$id": "a", "pattern": "("}, "const": {"$ref": "b"}, "enum": [{"$ref": "c"}]}
            }
        },
    ],
)
def test_what_all_clients_compile_keeps_every_byte(schema: dict[str, Any]) -> None:
    assert misfit_of(Kind.TOOL, tool(schema)) is None


class Node(BaseModel):
    kind: Literal["node"] = "node"
    price: Decimal = Field(gt=0)
    size: tuple[int, str] | None = None
    seen: datetime
    inner: list[Node] = []


class Leaf(BaseModel):
    kind: Literal["leaf"]
    code: str = Field(pattern=r"^[A-Z]{2}-\d+$", examples=["AB-1"])
    more: dict[str, Any] = {}


class Tree(BaseModel):
    root: Annotated[Node | Leaf, Field(discriminator="kind")]


ZOD = """{"$schema":"http://json-schema.org/draft-07/schema#","type":"object","properties":{"v":{"type":"string",
"format":"email","pattern":"^(?:[A-Za-z0-9_'+\\\\-]+\\\\.)*[A-Za-z0-9_'+\\\\-]*[A-Za-z0-9_+-]@(?:[A-Za-z0-9][A-Za-z0-9\\\\-]*\\\\.)+[A-Za-z]{2,}$"},
"pair":{"type":"array","items":[{"type":"string"},{"type":"number"}]},"next":{"$ref":"#/properties/v"}},
"required":["v"],"additionalProperties":false}"""
SCHEMARS = """{"$schema":"https://json-schema.org/draft/2020-12/schema","title":"Out","type":"object","properties":{
"n":{"type":["integer","null"],"format":"uint32","minimum":0},"k":{"$ref":"#/$defs/Kind"}},"required":["k"],"$defs":{
"Kind":{"oneOf":[{"type":"string","const":"a","description":"A"},{"type":"object","properties":{"b":{"type":"number",
"format":"double"}},"required":["b"],"additionalProperties":false}]}}}"""


@pytest.mark.parametrize("text", [ZOD, SCHEMARS, *(json.dumps(each.model_json_schema()) for each in (Tree, Node))])
def test_what_libraries_write_keeps_every_byte(text: str) -> None:
    schema = json.loads(text)
    assert misfit_of(Kind.TOOL, tool(schema)) is None


@pytest.mark.parametrize(
    "schema",
    [
        # Keywords of a wrong type
        {"type": "strng"},
        {"type": []},
        {"type": None},
        {"required": True},
        {"minimum": "1"},
        {"minimum": None},
        {"exclusiveMinimum": True, "minimum": 1},
        {"multipleOf": 0},
        {"minLength": -1},
        {"enum": {}},
        {"enum": []},
        {"anyOf": []},
        {"anyOf": {}},
        {"properties": []},
        {"properties": {"b": 5}},
        {"additionalProperties": "no"},
        {"uniqueItems": "yes"},
        {"dependentRequired": {"a": "b"}},
        {"items": []},
        {"items": [{"type": "string"}]},
        {"format": 5},
        {"title": 5},
        # Patterns
        {"pattern": r"ticket\-"},
        {"pattern": 5},
        {"patternProperties": {r"[\w-.]": {}}},
        {"propertyNames": {"pattern": "(?P<a>b)"}},
        {"not": {"anyOf": [{"pattern": r"\Z"}]}},
        # References and names
        {"$ref": "#/$defs/missing"},
        {"$ref": "#/x"},
        {"$ref": "#/properties"},
        {"$ref": "#/properties/a"},
        {"$ref": "#name"},
        {"$ref": "other.json"},
        {"$ref": "https://example.com/schema"},
        {"$ref": "#/$defs/%"},
        {"$ref": 5},
        {"$dynamicRef": "#node"},
        {"$recursiveRef": "#"},
        {"$id": "item"},
        {"$anchor": "a"},
        {"$dynamicAnchor": "a"},
        {"id": "item"},
        {"x-more": {"$id": "item"}},
        # Others that Ajv refuses
        {"nullable": True},
        {"nullable": False, "type": ["string", "null"]},
        {"nullable": "yes", "type": "string"},
        {"$async": True},
        {"format": "date", "formatMinimum": "2025-01-01"},
    ],
)
@pytest.mark.parametrize("place", ["properties", "$defs"])
def test_what_a_client_does_not_compile_is_left_out(schema: dict[str, Any], place: str) -> None:
    assert shown({place: {"a": schema}}) == [None, None]


def test_a_keyword_is_known_in_any_spelling() -> None:
    raw = tool({"items": {"pattern": "("}}).replace(b"pattern", b"p\\u0061ttern")
    assert b"outputSchema" not in adapted(Kind.TOOL, raw, SESSION)


@pytest.mark.parametrize(
    "dialect", ["http://json-schema.org/draft-04/schema#", "http://json-schema.org/schema#", "other", f"{NEW}\n"]
)
def test_a_schema_of_an_unknown_dialect_is_left_out(dialect: str) -> None:
    assert shown({"$schema": dialect}) == [None, None]


def test_the_name_of_a_root_is_left_out() -> None:
    """Clients would check the results of another tool, or those after a change, by the first schema of that name."""
    schema = {"$id": "https://example.com/result", "properties": {"a": {"$ref": "#/$defs/a"}}, "$defs": {"a": {}}}
    without = OBJECT | {name: each for name, each in schema.items() if name != "$id"}
    assert shown(schema) == [without, without]
    assert shown({"$id": "a", "properties": {"a": {"$ref": "a"}}}) == [None, None]


def test_a_schema_that_is_no_object_is_left_out_alike() -> None:
    for schema, kept in (({"type": "array", "items": {"pattern": "a"}}, True), ({"items": {"pattern": "("}}, False)):
        raw = json.dumps({"name": "t", "inputSchema": OBJECT, "outputSchema": schema}).encode()
        assert (adapted(Kind.TOOL, raw, STATELESS) == raw) is kept


def test_jsonschema_compiles_every_generated_schema_that_passes() -> None:
    values = [{}, *(dict.fromkeys(NAMES, value) for value in ("x", 1, {"a": 1}, [1, "a"]))]
    schemas = OutputSchemas(1)
    passed = 0
    for _ in range(500):
        schema = schemas.root()
        if is_compiled(Raw(json.dumps(schema).encode())):
            passed += 1
            with warnings.catch_warnings(), suppress(RecursionError):
                warnings.simplefilter("ignore")  # it does not know each name of a dialect
                judge = jsonschema.validators.validator_for(schema)
                judge.check_schema(schema)
                for value in values:
                    list(judge(schema).iter_errors(value))
    assert 100 < passed < 400


def test_a_deep_or_wide_schema_is_looked_at_once() -> None:
    inner: dict[str, Any] = {"pattern": "a"}
    for _ in range(60):
        inner = {"items": inner}
    wide = {f"p{each}": {"$ref": "#/$defs/a"} for each in range(3000)}
    assert is_compiled(Raw(json.dumps(OBJECT | {"properties": wide | {"q": inner}, "$defs": {"a": {}}}).encode()))
