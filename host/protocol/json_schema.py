"""Schemas of tools' arguments in the form that clients accept, with the same meaning.

Arguments are always an object ("Tool.inputSchema" of all revisions), so a schema for any value and one for objects
accept the same ones. A client that checks `type`, or that expects every property to be an object, refuses the whole
list for one schema that is written otherwise: measured with the official SDKs, TypeScript 1.0 to 2.4 and Python 1.2 to
2.3. The meaning is that of JSON Schema draft-04 to 2020-12. The caller limits the size and depth of the text.
"""

from __future__ import annotations

import re
from operator import is_

import msgspec
from msgspec import Raw

from host.jsonrpc.raw import DECODE_ERRORS, NULL, encode, is_object, items, members, with_members

# Keywords of JSON Schema 2020-12 and of earlier drafts whose value is one schema, a list of them, or one for each name.
SUBSCHEMA = frozenset(
    (
        *("items", "additionalItems", "unevaluatedItems", "contains", "propertyNames", "contentSchema"),
        *("additionalProperties", "unevaluatedProperties", "not", "if", "then", "else"),
    )
)
SUBSCHEMA_LISTS = frozenset(("items", "prefixItems", "allOf", "anyOf", "oneOf"))
SUBSCHEMA_MAPS = frozenset(
    ("properties", "patternProperties", "dependentSchemas", "dependencies", "$defs", "definitions")
)
_MAY_BE_BOOLEAN = frozenset(("additionalProperties", "additionalItems", "unevaluatedProperties", "unevaluatedItems"))
"""Keywords whose value is usually a boolean, which every client accepts: draft-04 permits it for the first two."""

_TYPES = frozenset(("null", "boolean", "object", "array", "number", "string", "integer"))
_OBJECT = Raw(b'"object"')
_ANY_OBJECT = Raw(b'{"type":"object"}')
_FOR_BOOLEANS = {b"true": Raw(b"{}"), b"false": Raw(b'{"not":{}}')}

EMPTY = re.compile(rb"[ \t\r\n]*+(?:null|\[[ \t\r\n]*+\]|\{[ \t\r\n]*+\})[ \t\r\n]*+")
"""A value that stands for an absent one: null, and an empty object or array, which PHP and Lua write for each other."""

_names = msgspec.json.Decoder(list[str])
_type: msgspec.json.Decoder[str | list[str] | None] = msgspec.json.Decoder(str | list[str] | None)


def object_schema(schema: Raw | None, *, booleans: bool) -> Raw:
    """The schema (None: a missing one) as an object schema that accepts the same objects; `schema` itself if it is one.

    Args:
        booleans: whether a schema inside it may be a boolean.

    Raises:
        ValueError: it accepts no object, or has no meaning; the text says why.
    """
    if schema is None or _text(schema) == b"true" or EMPTY.fullmatch(schema):
        return _ANY_OBJECT
    if _text(schema) == b"false":
        raise ValueError("it accepts no object")
    if not is_object(schema):
        raise ValueError("it is no schema")
    found = members(schema)
    mended = dict(found)
    _mend_type(mended)
    _mend_dialect(mended)
    for name, has_right_type in (("properties", is_object), ("required", _is_list_of_names)):
        if name in found and not has_right_type(found[name]):
            if not EMPTY.fullmatch(found[name]):
                raise ValueError(f"{name!r} is of a wrong type")
            del mended[name]
    if not booleans:
        if "properties" in mended:
            mended["properties"] = _with_schemas(mended["properties"])
        mended = _without_booleans_in(mended)
    return with_members(schema, found, mended)


def schema_of_any_value(schema: Raw) -> Raw:
    """The schema as an object, which may have any keyword; `schema` itself if it is one. Raises ValueError if it is
    neither an object nor a boolean."""
    if (other := _FOR_BOOLEANS.get(_text(schema))) is not None:
        return other
    found = members(schema)
    mended = dict(found)
    _mend_dialect(mended)
    return with_members(schema, found, mended)


def without_booleans(schema: Raw) -> Raw:
    """The schema with an object for each boolean schema inside it: `{}` for true, `{"not": {}}` for false. `schema`
    itself if it has none."""
    if (other := _FOR_BOOLEANS.get(_text(schema))) is not None:
        return other
    if not is_object(schema):
        return schema
    found = members(schema)
    mended = _without_booleans_in(found)
    return with_members(schema, found, mended)


def _text(raw: Raw) -> bytes:
    return bytes(raw).strip(b" \t\r\n")


def _mend_dialect(found: dict[str, Raw]) -> None:
    if "$schema" in found and not _text(found["$schema"]).startswith(b'"'):
        del found["$schema"]


def _mend_type(found: dict[str, Raw]) -> None:
    try:
        kinds = _type.decode(found.get("type", NULL))
    except DECODE_ERRORS:
        raise ValueError("'type' is of a wrong type") from None
    if kinds == "object":
        return
    named = ["object"] if kinds is None else [kinds] if isinstance(kinds, str) else kinds
    if not _TYPES.issuperset(named):
        raise ValueError("'type' names no type of JSON")
    if "object" not in named:
        raise ValueError("it accepts no object")
    found["type"] = _OBJECT


def _is_list_of_names(raw: Raw) -> bool:
    try:
        _names.decode(raw)
    except DECODE_ERRORS:
        return False
    return True


def _with_schemas(raw: Raw) -> Raw:
    """The properties, each an object or a boolean. Raises ValueError."""
    found = members(raw)
    mended = dict(found)
    for name, each in found.items():
        if is_object(each) or _text(each) in _FOR_BOOLEANS:
            continue
        if not EMPTY.fullmatch(each):
            raise ValueError(f"the property {name[:80]!a} has no schema")
        mended[name] = Raw(b"{}")
    return with_members(raw, found, mended)


def _without_booleans_in(found: dict[str, Raw]) -> dict[str, Raw]:
    return {keyword: _keyword_without_booleans_in(keyword, each) for keyword, each in found.items()}


def _keyword_without_booleans_in(keyword: str, raw: Raw) -> Raw:
    if keyword in SUBSCHEMA_MAPS and is_object(raw):
        found = members(raw)
        mended = {name: without_booleans(each) for name, each in found.items()}
        return with_members(raw, found, mended)
    if keyword in SUBSCHEMA_LISTS and _text(raw).startswith(b"["):
        before = items(raw)
        after = [without_booleans(each) for each in before]
        return raw if all(map(is_, before, after)) else encode(after)
    if keyword in SUBSCHEMA and not (keyword in _MAY_BE_BOOLEAN and _text(raw) in _FOR_BOOLEANS):
        return without_booleans(raw)
    return raw
