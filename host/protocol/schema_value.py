"""Whether the schema of an argument accepts a value that a person wrote.

This decides about the keywords that schemas of arguments have, in the meaning that is common to JSON Schema draft-06 to
2020-12, and to the validators of servers written in JavaScript and in Python. Where these differ, or a schema uses
more, the answer is `Undecided`. The time is bounded: patterns come from servers, and are tried by an engine whose time
is linear.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import cached_property, lru_cache
from typing import Any, Final
from urllib.parse import unquote

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema

from host.protocol.patterns import is_portable

MAX_CHECKS = 10_000
"""Schemas that are compared with one value: they may combine one another again and again."""

Schema = Mapping[str, Any]

_BEYOND: Final = {
    "array": ("prefixItems", "additionalItems", "unevaluatedItems", "contains", "minContains", "maxContains"),
    "object": (
        *("patternProperties", "minProperties", "maxProperties", "unevaluatedProperties"),
        *("dependentRequired", "dependentSchemas", "dependencies"),
    ),
}
"""Keywords that are not decided, by the type of the values that they concern."""
_BEYOND_ALL: Final = ("if", "then", "else", "$dynamicRef", "$recursiveRef", "extends", "disallow")
_APPLYING: Final = ("properties", "additionalProperties", "propertyNames", "items")
_SPECIAL_IN_CLASSES = re.compile(r"\[[^\]]*\[|&&|--|~~")
"""Text that the linear engine may read as an operation on classes of characters."""


class Undecided(ValueError):
    """Whether the schema accepts the value cannot be told; the text says why."""


class SchemaDocument:
    """A whole schema, decoded, to which the references inside it lead."""

    def __init__(self, root: object) -> None:
        self.root = root

    def resolve(self, reference: object) -> object:
        """The schema that a `$ref` names by a JSON pointer.

        Raises:
            Undecided: it names anything else, or nothing.
        """
        if not isinstance(reference, str) or not reference.startswith("#") or self._has_other_base:
            raise Undecided("a reference of the schema leads out of it")
        found: Any = self.root
        first, *tokens = unquote(reference[1:]).split("/")
        for token in tokens:
            name = token.replace("~1", "/").replace("~0", "~")
            if isinstance(found, dict) and name in found:
                found = found[name]
            elif isinstance(found, list) and name.isdecimal() and int(name) < len(found):
                found = found[int(name)]
            else:
                raise Undecided("a reference of the schema leads nowhere")
        if first or not isinstance(found, dict | bool):
            raise Undecided("a reference of the schema leads to no schema")
        return found

    @cached_property
    def _has_other_base(self) -> bool:
        """Whether any object but the root may have an `$id`, to which the references inside it are relative."""
        waiting = list(self.root.values()) if isinstance(self.root, dict) else []
        while waiting:
            each = waiting.pop()
            if isinstance(each, dict):
                if isinstance(each.get("$id"), str) or isinstance(each.get("id"), str):
                    return True
                waiting += each.values()
            elif isinstance(each, list):
                waiting += each
        return False


def accepts(schema: object, value: object, document: SchemaDocument) -> bool:
    """Whether a schema inside the document accepts the value, both decoded.

    Raises:
        Undecided: validators may disagree, or it is too complex.
    """
    try:
        return _Check(document).accepts(schema, value)
    except RecursionError:
        raise Undecided("the schema is too complex") from None


@lru_cache(maxsize=64)
def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def matches(pattern: object, text: str) -> bool:
    """Whether a pattern of a schema matches anywhere in the text. Raises Undecided."""
    if not isinstance(pattern, str) or not is_portable(pattern) or _SPECIAL_IN_CLASSES.search(pattern):
        raise Undecided("a pattern of the schema is not one that all readers read alike")
    if not (text.isascii() and text.isprintable()):
        raise Undecided("a pattern of the schema applies to text that is not plain ASCII")
    try:
        _compiled(pattern).validate_python(text)
    except ValidationError:
        return False
    except SchemaError:
        raise Undecided("a pattern of the schema is too complex") from None
    return True


class _Check:
    """The check of one value."""

    def __init__(self, document: SchemaDocument) -> None:
        self._document = document
        self._left = MAX_CHECKS

    def accepts(self, schema: object, value: object) -> bool:
        if isinstance(schema, bool):
            return schema
        if not isinstance(schema, dict):
            raise Undecided("the schema is malformed")
        self._left -= 1
        if self._left < 0:
            raise Undecided("the schema is too complex")
        kind = type_of(value)
        for word in (*_BEYOND_ALL, *_BEYOND.get(kind, ())):
            if word in schema:
                raise Undecided(f"the schema has {word}")
        if "$ref" in schema:
            if any(word in schema for word in (*_ASSERTIONS, *_COMBINING, *_APPLYING)):
                raise Undecided("the schema has more beside a reference")  # which counts only from 2019-09 on
            return self.accepts(self._document.resolve(schema["$ref"]), value)
        return all(self._verdicts(schema, value))

    def _verdicts(self, schema: Schema, value: object) -> Iterator[bool]:
        yield from (check(schema[word], value) for word, check in _ASSERTIONS.items() if word in schema)
        yield from (check(self, schema[word], value) for word, check in _COMBINING.items() if word in schema)
        if isinstance(value, dict):
            declared, others = schema.get("properties", {}), schema.get("additionalProperties", True)
            if not isinstance(declared, dict):
                raise Undecided("the schema is malformed")
            yield from (self.accepts(declared.get(name, others), each) for name, each in value.items())
            yield from (self.accepts(schema.get("propertyNames", True), name) for name in value)
        elif isinstance(value, list) and "items" in schema:
            if isinstance(schema["items"], list):
                raise Undecided("the schema has a list of items")
            yield from (self.accepts(schema["items"], each) for each in value)

    def all_of(self, schemas: object, value: object) -> bool:
        return all(self._each(schemas, value))

    def any_of(self, schemas: object, value: object) -> bool:
        return any(self._each(schemas, value))

    def one_of(self, schemas: object, value: object) -> bool:
        return sum(self._each(schemas, value)) == 1

    def negated(self, schema: object, value: object) -> bool:
        return not self.accepts(schema, value)

    def _each(self, schemas: object, value: object) -> Iterator[bool]:
        if not isinstance(schemas, list):
            raise Undecided("the schema is malformed")
        return (self.accepts(each, value) for each in schemas)


_COMBINING: Final[dict[str, Callable[[_Check, Any, object], bool]]] = {
    "allOf": _Check.all_of,
    "anyOf": _Check.any_of,
    "oneOf": _Check.one_of,
    "not": _Check.negated,
}


def type_of(value: object) -> str:
    """The JSON type; "number" for all numbers."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    return "string" if isinstance(value, str) else "array" if isinstance(value, list) else "object"


def _has_type(wanted: object, value: object) -> bool:
    names = wanted if isinstance(wanted, list) else [wanted]
    kind = type_of(value)
    if kind == "number" and "integer" in names and "number" not in names:
        if isinstance(value, float) and value.is_integer():
            raise Undecided("validators disagree whether this number is an integer")
        return isinstance(value, int)
    return kind in names


def equal(one: object, other: object) -> bool:
    """Whether two values are the same JSON value: 1 is 1.0, and is not true."""
    if isinstance(one, list) and isinstance(other, list):
        return len(one) == len(other) and all(map(equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(equal(each, other[name]) for name, each in one.items())
    return type_of(one) == type_of(other) and one == other


def _in_enum(values: object, value: object) -> bool:
    if not isinstance(values, list):
        raise Undecided("the schema is malformed")
    return any(equal(each, value) for each in values)


def _limit(holds: Callable[[Any, Any], bool]) -> Callable[[object, object], bool]:
    def check(limit: object, value: object) -> bool:
        if type_of(value) != "number":
            return True
        if type_of(limit) != "number":
            raise Undecided("the schema is malformed")
        return holds(value, limit)

    return check


def _length(kind: str, holds: Callable[[int, Any], bool]) -> Callable[[object, object], bool]:
    def check(limit: object, value: Any) -> bool:
        if type_of(value) != kind:
            return True
        if type_of(limit) != "number":
            raise Undecided("the schema is malformed")
        return holds(len(value), limit)

    return check


def _is_multiple(factor: object, value: object) -> bool:
    if type_of(value) != "number":
        return True
    if not (isinstance(factor, int) and isinstance(value, int) and factor > 0):
        raise Undecided("validators disagree whether this number is a multiple")
    return value % factor == 0


def _fits(pattern: object, value: object) -> bool:
    return not isinstance(value, str) or matches(pattern, value)


def _has_required(names: object, value: object) -> bool:
    if not isinstance(value, dict):
        return True
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise Undecided("the schema is malformed")
    return all(name in value for name in names)


def _is_unique(wanted: object, value: object) -> bool:
    if not isinstance(value, list) or wanted is not True:
        return True
    return not any(equal(one, other) for at, one in enumerate(value) for other in value[:at])


_ASSERTIONS: Final[dict[str, Callable[[Any, object], bool]]] = {
    "type": _has_type,
    "enum": _in_enum,
    "const": equal,
    "minimum": _limit(lambda value, limit: value >= limit),
    "maximum": _limit(lambda value, limit: value <= limit),
    "exclusiveMinimum": _limit(lambda value, limit: value > limit),
    "exclusiveMaximum": _limit(lambda value, limit: value < limit),
    "multipleOf": _is_multiple,
    "minLength": _length("string", lambda length, limit: length >= limit),
    "maxLength": _length("string", lambda length, limit: length <= limit),
    "pattern": _fits,
    "minItems": _length("array", lambda length, limit: length >= limit),
    "maxItems": _length("array", lambda length, limit: length <= limit),
    "uniqueItems": _is_unique,
    "required": _has_required,
}
