"""Schemas that clients accept: the same meaning, and every byte where nothing is to be changed."""

from __future__ import annotations

import json

import pytest
from msgspec import Raw

from host.protocol.json_schema import object_schema, schema_of_any_value

ANY = b'{"type":"object"}'


def written(schema: bytes | None, *, booleans: bool = False) -> bytes:
    return bytes(object_schema(None if schema is None else Raw(schema), booleans=booleans))


@pytest.mark.parametrize("schema", [None, b"null", b"{}", b"{ }", b"true", b" true", b"[]", b'{"type":null}'])
@pytest.mark.parametrize("booleans", [True, False])
def test_a_schema_of_anything_is_one_of_any_object(schema: bytes | None, booleans: bool) -> None:
    assert written(schema, booleans=booleans) == ANY


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (b'{"properties":{"a":{"const": 1.0}}}', b'{"properties":{"a":{"const": 1.0}},"type":"object"}'),
        (b'{"type":["object","null"],"required":["a"]}', b'{"type":"object","required":["a"]}'),
        (b'{"$ref":"#/$defs/a","$defs":{"a":{}}}', b'{"$ref":"#/$defs/a","$defs":{"a":{}},"type":"object"}'),
        (b'{"type":"object","properties":null,"required":null,"$schema":null}', ANY),
        (b'{"type":"object","properties":[],"required":{},"$schema":4}', ANY),
        (b'{"type":"object","properties":{},"required":[] }', None),
        (b'{ "type":"object", "minimum": 1.0, "minimum2":18446744073709551616}', None),
    ],
)
@pytest.mark.parametrize("booleans", [True, False])
def test_the_root_is_of_type_object(schema: bytes, expected: bytes | None, booleans: bool) -> None:
    assert written(schema, booleans=booleans) == (expected or schema)


@pytest.mark.parametrize(
    "schema",
    [
        b"false",
        b"5",
        b'"object"',
        b"[1]",
        b'{"type":"string"}',
        b'{"type":["string","null"]}',
        b'{"type":"Object"}',
        b'{"type":["object","any"]}',
        b'{"type":5}',
        b'{"type":"object","properties":5}',
        b'{"type":"object","properties":["a"]}',
        b'{"type":"object","required":true}',
        b'{"type":"object","required":[5]}',
    ],
)
@pytest.mark.parametrize("booleans", [True, False])
def test_a_schema_of_no_object_or_of_no_meaning_has_no_such_form(schema: bytes, booleans: bool) -> None:
    with pytest.raises(ValueError, match=r"it accepts no object|it is no schema|'(type|properties|required)' "):
        written(schema, booleans=booleans)


@pytest.mark.parametrize(
    ("inside", "expected"),
    [
        (b'"properties":{"a":true,"b":false}', b'"properties":{"a":{},"b":{"not":{}}}'),
        (b'"properties":{"a":null,"b":[]}', b'"properties":{"a":{},"b":{}}'),
        (b'"properties":{"a":{"properties":{"b":true}}}', b'"properties":{"a":{"properties":{"b":{}}}}'),
        (b'"properties":{"properties":true}', b'"properties":{"properties":{}}'),
        (b'"items":{"items":false}', b'"items":{"items":{"not":{}}}'),
        (b'"items":[true,{"not":true}]', b'"items":[{},{"not":{}}]'),
        (b'"prefixItems":[true],"contains":false', b'"prefixItems":[{}],"contains":{"not":{}}'),
        (b'"anyOf":[false],"allOf":[true],"oneOf":[true]', b'"anyOf":[{"not":{}}],"allOf":[{}],"oneOf":[{}]'),
        (b'"$defs":{"a":true},"definitions":{"a":false}', b'"$defs":{"a":{}},"definitions":{"a":{"not":{}}}'),
        (b'"if":true,"then":false,"else":true', b'"if":{},"then":{"not":{}},"else":{}'),
        (b'"patternProperties":{"^a":false}', b'"patternProperties":{"^a":{"not":{}}}'),
        (b'"dependencies":{"a":true,"b":["c"]}', b'"dependencies":{"a":{},"b":["c"]}'),
        (b'"dependentSchemas":{"a":true},"propertyNames":true', b'"dependentSchemas":{"a":{}},"propertyNames":{}'),
        (b'"additionalProperties":{"not":false}', b'"additionalProperties":{"not":{"not":{}}}'),
    ],
)
def test_a_boolean_schema_becomes_an_object_at_any_depth(inside: bytes, expected: bytes) -> None:
    assert written(b'{"type":"object",%b}' % inside) == b'{"type":"object",%b}' % expected


@pytest.mark.parametrize(
    "inside",
    [
        b'"additionalProperties": false, "unevaluatedProperties": true',
        b'"additionalItems": false, "unevaluatedItems": false',
        b'"properties":{"additionalProperties":{"default": true}}',
        b'"default":{"items":true},"const": false,"enum":[true,{"not":true}],"examples":[{"anyOf":[true]}]',
        b'"properties":{"a":{"required": true, "exclusiveMinimum": true, "uniqueItems": true, "x-items": true}}',
        b'"properties":{"a":{"items":null,"properties":5,"anyOf":true,"type":7}}',
        b'"dependentRequired":{"a":["b"]},"$anchor":"a", "description":"\\u0061 \\ud83d\\ude00"',
    ],
)
def test_whatever_is_no_boolean_schema_keeps_every_byte(inside: bytes) -> None:
    schema = b'{ "type":"object", %b }' % inside
    assert written(schema) == schema


def test_booleans_stay_where_clients_accept_them() -> None:
    schema = b'{"type":"object", "properties":{"a":true,"b":5},"not":false}'
    assert written(schema, booleans=True) == schema
    with pytest.raises(ValueError, match="the property 'b' has no schema"):
        written(schema)


def test_a_schema_as_deep_as_a_definition_may_be_is_written() -> None:
    schema = b'{"type":"object","not":' + b'{"not":' * 60 + b"true" + b"}" * 61
    assert json.loads(written(schema)) == json.loads(schema.replace(b"true", b"{}"))


@pytest.mark.parametrize(
    ("schema", "expected"),
    [
        (b"true", b"{}"),
        (b"false", b'{"not":{}}'),
        (b'{ "type":"array", "items":true}', b'{ "type":"array", "items":true}'),
        (b'{"$schema":5,"type":"array"}', b'{"type":"array"}'),
    ],
)
def test_a_schema_of_any_value_is_an_object(schema: bytes, expected: bytes) -> None:
    assert bytes(schema_of_any_value(Raw(schema))) == expected


@pytest.mark.parametrize("schema", [b"null", b"[]", b"5"])
def test_what_is_no_schema_of_any_value_is_refused(schema: bytes) -> None:
    with pytest.raises(ValueError, match="expected an object"):
        schema_of_any_value(Raw(schema))
