"""Schemas of structured content that clients can compile.

A client compiles them before it checks a result. The TypeScript SDK 1.x does so while it lists: one that it cannot
compile takes the tools of all servers away. The SDK 2.x, and the one for Python, fail each call of the tool instead,
the latter after the work was done. All were measured: Ajv 8.20 as draft-07 (1.32) and as the dialect that a schema
declares (2.4), and `jsonschema`.

A schema passes here if all of them surely compile it. A schema that only some of them compile does not.
"""

from __future__ import annotations

import re
from typing import Annotated, Any, Literal
from urllib.parse import unquote

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field

from host.jsonrpc.raw import DECODE_ERRORS
from host.protocol.json_schema import SUBSCHEMA, SUBSCHEMA_LISTS, SUBSCHEMA_MAPS, without_booleans
from host.protocol.patterns import is_portable

_Type = Literal["null", "boolean", "object", "array", "number", "string", "integer"]
_Count = Annotated[float, Meta(ge=0, multiple_of=1)]


class Schema(Struct, gc=False, rename="camel"):
    """Keywords of which all clients accept these types. In places of schemas it has no booleans. Keywords that it does
    not have are not compiled."""

    type: _Type | Annotated[tuple[_Type, ...], Meta(min_length=1)] = "object"
    enum: Annotated[tuple[Raw, ...], Meta(min_length=1)] | UnsetType = UNSET
    dialect: str = field(name="$schema", default="")
    title: str = ""
    description: str = ""
    format: str = ""
    pattern: str = ""
    ref: str = field(name="$ref", default="")
    comment: str = field(name="$comment", default="")
    vocabulary: dict[str, bool] | UnsetType = field(name="$vocabulary", default=UNSET)
    nullable: bool = False
    deprecated: bool = False
    read_only: bool = False
    write_only: bool = False
    unique_items: bool = False
    examples: tuple[Raw, ...] = ()
    required: tuple[str, ...] = ()
    dependent_required: dict[str, tuple[str, ...]] | UnsetType = UNSET
    content_encoding: str = ""
    content_media_type: str = ""
    minimum: float = 0
    maximum: float = 0
    exclusive_minimum: float = 0
    exclusive_maximum: float = 0
    multiple_of: Annotated[float, Meta(gt=0)] = 1
    min_length: _Count = 0
    max_length: _Count = 0
    min_items: _Count = 0
    max_items: _Count = 0
    min_contains: _Count = 0
    max_contains: _Count = 0
    min_properties: _Count = 0
    max_properties: _Count = 0

    properties: dict[str, Schema] | UnsetType = UNSET
    pattern_properties: dict[str, Schema] | UnsetType = UNSET
    dependent_schemas: dict[str, Schema] | UnsetType = UNSET
    dependencies: dict[str, Schema | tuple[str, ...]] | UnsetType = UNSET
    defs: dict[str, Schema] | UnsetType = field(name="$defs", default=UNSET)
    definitions: dict[str, Schema] | UnsetType = UNSET
    items: Schema | tuple[Schema, ...] = ()
    prefix_items: Annotated[tuple[Schema, ...], Meta(min_length=1)] | UnsetType = UNSET
    all_of: Annotated[tuple[Schema, ...], Meta(min_length=1)] | UnsetType = UNSET
    any_of: Annotated[tuple[Schema, ...], Meta(min_length=1)] | UnsetType = UNSET
    one_of: Annotated[tuple[Schema, ...], Meta(min_length=1)] | UnsetType = UNSET
    additional_items: Schema | bool = True
    unevaluated_items: Schema | bool = True
    additional_properties: Schema | bool = True
    unevaluated_properties: Schema | bool = True
    contains: Schema | UnsetType = UNSET
    property_names: Schema | UnsetType = UNSET
    content_schema: Schema | UnsetType = UNSET
    negated: Schema | UnsetType = field(name="not", default=UNSET)
    condition: Schema | UnsetType = field(name="if", default=UNSET)
    then: Schema | UnsetType = UNSET
    otherwise: Schema | UnsetType = field(name="else", default=UNSET)

    # These end the compilation whatever their value, or name schemas for all tools of a client.
    old_id: UnsetType = field(name="id", default=UNSET)
    id: UnsetType = field(name="$id", default=UNSET)
    anchor: UnsetType = field(name="$anchor", default=UNSET)
    asynchronous: UnsetType = field(name="$async", default=UNSET)
    dynamic_ref: UnsetType = field(name="$dynamicRef", default=UNSET)
    dynamic_anchor: UnsetType = field(name="$dynamicAnchor", default=UNSET)
    recursive_ref: UnsetType = field(name="$recursiveRef", default=UNSET)
    recursive_anchor: UnsetType = field(name="$recursiveAnchor", default=UNSET)
    format_minimum: UnsetType = UNSET
    format_maximum: UnsetType = UNSET
    format_exclusive_minimum: UnsetType = UNSET
    format_exclusive_maximum: UnsetType = UNSET


# `items` is an array only in dialects that both SDKs know by these names; without one, they take 2020-12. The SDK 2.x
# compiles no dialect but these.
_WITH_TUPLES = r"^(?:https://json-schema\.org/draft/2019-09|http://json-schema\.org/draft-0[67])/schema#?\Z"
_DIALECT = r"^(?:https?://json-schema\.org/(?:draft/(?:2020-12|2019-09)|draft-0[67])/schema#?)?\Z"


class ObjectSchema(Schema, gc=False, kw_only=True):
    """A schema for objects, at the root of a definition."""

    type: Literal["object"]
    dialect: Annotated[str, Meta(pattern=_DIALECT)] = field(name="$schema", default="")


class _Root(Schema, gc=False, kw_only=True):
    """A schema with its dialect, which only a root names. Decoding it checks the types of all its keywords."""

    dialect: Annotated[str, Meta(pattern=_DIALECT)] = field(name="$schema", default="")


_root = msgspec.json.Decoder(_Root)
_any: msgspec.json.Decoder[Any] = msgspec.json.Decoder()

_MARKS = re.compile(rb'"(?:pattern|nullable|items"[ \t\r\n]*+:[ \t\r\n]*+\[|\$(?!schema"|defs"))|\\u00')
_NAMES = frozenset(("$id", "$anchor", "$dynamicAnchor"))
"""Names of schemas, which Ajv also finds in the values of keywords that it does not know."""
_NO_SCHEMAS = frozenset(("default", "const", "enum", "examples"))
_POINTER = re.compile(r"#(?:/[^\x00- #?\\^`{|}<>\"\x7f-]*+)?")
_MAX_HOPS = 8
"""References from one to the next without anything else."""


def needs_a_look(text: bytes) -> bool:
    """Whether a text with an `ObjectSchema` may have keywords of which `is_compiled` checks more than the types."""
    return _MARKS.search(text) is not None


def is_compiled(schema: Raw) -> bool:
    """Whether all clients surely compile the schema, an object."""
    if not (_has_right_types(schema) or _has_right_types(without_booleans(schema))):
        return False
    return not needs_a_look(bytes(schema)) or is_sound(schema)


def _has_right_types(schema: Raw) -> bool:
    try:
        _root.decode(schema)
    except DECODE_ERRORS:
        return False
    return True


def is_sound(schema: Raw) -> bool:
    """Whether patterns, references and names in a schema whose keywords have the right types are those that clients
    read alike."""
    try:
        root: dict[str, Any] = _any.decode(schema)
    except DECODE_ERRORS:
        return False
    may_have_tuples = re.match(_WITH_TUPLES, root.get("$schema", "")) is not None
    refs: list[str] = []
    opened: list[tuple[Any, bool]] = [(root, True)]
    while opened:
        found, is_schema = opened.pop()
        if not isinstance(found, dict):
            continue
        if not found.keys().isdisjoint(_NAMES):
            return False
        if is_schema:
            if not _has_sound_keywords(found) or (isinstance(found.get("items"), list) and not may_have_tuples):
                return False
            refs += [found["$ref"]] if "$ref" in found else []
        for keyword, value in found.items():
            if keyword in SUBSCHEMA_MAPS and isinstance(value, dict):
                if "$id" in value and keyword != "properties":
                    return False
                opened += ((each, is_schema) for each in value.values())
            elif keyword in SUBSCHEMA_LISTS and isinstance(value, list):
                opened += ((each, is_schema) for each in value)
            elif keyword not in _NO_SCHEMAS:
                opened.append((value, is_schema and keyword in SUBSCHEMA))
    return all(_leads_to_a_schema(root, ref) for ref in refs)


def _has_sound_keywords(schema: dict[str, Any]) -> bool:
    patterns = [*schema.get("patternProperties", ()), *([schema["pattern"]] if "pattern" in schema else ())]
    if not all(map(is_portable, patterns)):
        return False
    # Ajv refuses `nullable` without a type, and false beside the type null.
    return "nullable" not in schema or ("type" in schema and (schema["nullable"] or "null" not in schema["type"]))


def _leads_to_a_schema(root: dict[str, Any], ref: str) -> bool:
    for _ in range(_MAX_HOPS):
        target = _target(root, ref)
        if not isinstance(target, dict):
            return isinstance(target, bool)
        if "$ref" not in target:
            return True
        ref = target["$ref"]
    return False


def _target(root: dict[str, Any], ref: str) -> Any:
    """The schema at a JSON pointer of the same document; None if none is there."""
    if _POINTER.fullmatch(ref) is None:
        return None
    found: Any = root
    parts = iter([unquote(each).replace("~1", "/").replace("~0", "~") for each in ref.split("/")[1:]])
    try:
        for part in parts:
            inner = found[part]
            if part in SUBSCHEMA_MAPS:
                found = inner[next(parts)]
            elif part in SUBSCHEMA_LISTS and isinstance(inner, list):
                found = inner[int(next(parts))]
            elif part in SUBSCHEMA:
                found = inner
            else:
                return None
    except (LookupError, TypeError, ValueError, StopIteration):
        return None
    return found
