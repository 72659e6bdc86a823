"""Arguments that other readers take for others: members that some take for one another, and texts that some parse.

Arguments that a condition judges, or that a person confirms, must mean the same to every reader (`host/jsonrpc/twins`).
Known are the names that the entry's definition declares and those that the paths of the conditions name, each at its
depth. Objects beyond these are not looked at, and values are not decoded.

Servers made with the official SDK for Python parse an argument that is a text, if it is the JSON of an array, an object
or null and the tool takes more than texts there (`FuncMetadata.pre_parse_json`, read in versions 1.30 and 2.3): a
condition on the text would judge another value than the tool gets.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache, partial
from typing import Any, Final
from urllib.parse import unquote

import msgspec
from msgspec import Raw

from host.jsonrpc.raw import DECODE_ERRORS, is_array, is_object, items, members
from host.jsonrpc.twins import NO_NAMES, KnownNames
from host.policy.conditions import UNREADABLE, LongArguments, pointer_tokens

MAX_DEFINITION = 256 * 1024
"""Bytes of a definition from which declared names are read."""
MAX_SCHEMAS = 20_000
"""Schemas that are read for one definition, some 10 ms: they may combine one another again and again. Places in the
arguments beyond these count as not declared."""
_CACHED = 32 * 1024
"""Bytes of a definition whose names are kept."""

_COMBINED: Final = ("allOf", "anyOf", "oneOf")
_APPLIED: Final = ("if", "then", "else", "not")
_NAMING: Final = ("$anchor", "$dynamicAnchor", "$id", "id")
_OF_OTHERS: Final = ("patternProperties", "additionalProperties", "unevaluatedProperties")
"""Schemas of members that are not declared by name."""
_INNER: Final = ("properties", "items", "prefixItems", "additionalItems", "unevaluatedItems", "contains", *_OF_OTHERS)
"""Schemas of what is inside a value."""

MAX_PARSED = 64 * 1024
"""Characters of a text that is parsed to find out whether it is JSON; a longer one counts as such."""
_MAY_BE_JSON = re.compile(r"[ \t\r\n]*+(?:(\[)|(\{)|null[ \t\r\n]*+\Z)")
_PARSED: Final = frozenset(("array", "object", "null"))
"""Types of the values that servers take from a text."""
_TYPE_NAMES: Final = {list: "array", dict: "object", type(None): "null"}

Schema = dict[str, Any]
_ANY: Final[Schema] = {}
"""For a name that is declared without a schema."""
_Path = tuple[str, ...]


def find_twin(
    raw_arguments: bytes | Raw, definition: bytes, paths: frozenset[str], found: Mapping[str, Raw] | None = None
) -> str | None:
    """The first member of the arguments that some readers take for another one; None if there is none.

    Args:
        definition: of the tool or prompt; empty if it has none.
        paths: JSON pointers of the conditions on the arguments.
        found: the members of the arguments, if they were decoded before.
    """
    try:
        return _twin(members(raw_arguments) if found is None else found, _root_of(definition, paths))
    except (ValueError, RecursionError):
        return None  # the arguments are not an object, or too deep to be read by any condition


def hide_parsed(arguments: object, definition: bytes) -> object:
    """The decoded arguments, with UNREADABLE instead of each text that a server may parse: the definition admits the
    value that it is the JSON of, or says nothing about it."""
    is_parsed = partial(_is_parsed, definition)
    if isinstance(arguments, LongArguments):
        arguments.is_parsed = is_parsed
    elif isinstance(arguments, dict):
        texts = [name for name, text in arguments.items() if isinstance(text, str) and _MAY_BE_JSON.match(text)]
        hidden = [name for name in texts if is_parsed(name, arguments[name])]
        return {**arguments, **dict.fromkeys(hidden, UNREADABLE)} if hidden else arguments
    return arguments


def _is_parsed(definition: bytes, name: str, text: str) -> bool:
    found = _MAY_BE_JSON.match(text)
    if found is None:
        return False
    wanted = "array" if found[1] else "object" if found[2] else "null"
    try:
        if wanted not in _root_of(definition, frozenset()).member(name).parsed_types():
            return False
        if len(text) <= MAX_PARSED:
            json.loads(text)
    except ValueError:
        return False
    except RecursionError:
        pass  # some reader may have room for it
    return True


class _Place:
    """A place in the arguments: the schemas of its value, and what the conditions name in it."""

    def __init__(self, schemas: list[Schema], paths: list[_Path], definition: _Definition) -> None:
        self._declaring = schemas
        self._schemas = definition.combined(schemas)
        self._paths = [path for path in paths if path]
        self._definition = definition
        self._inner: dict[str | None, _Place] = {}
        self._deep: dict[str, _Place] | None = None
        """The known members that are not plain; None before they were looked for."""
        self._declared: dict[str, list[Schema]] = {}
        for schema in self._schemas:
            for name, inner in _members(schema, "properties"):
                self._declared.setdefault(name, []).append(inner)
        self._named = {path[0] for path in self._paths}
        declares = any(isinstance(schema.get("properties"), dict) for schema in self._schemas)
        names = self._declared.keys() | self._named | {name for schema in self._schemas for name in _required(schema)}
        self.known = KnownNames.declared(names) if declares or names else None
        """None if nothing is known of the names in an object here."""
        words = {word for schema in self._schemas for word in schema if isinstance(schema[word], dict | list)}
        self.is_plain = self.known is None and not self._paths and words.isdisjoint(_INNER)
        """Whether nothing is known here, at any depth."""
        self._takes_others = not words.isdisjoint(_OF_OTHERS)

    def inner_of(self, found: Mapping[str, Raw]) -> list[tuple[Raw, _Place]]:
        """The members of an object here that have places with known names."""
        if self._takes_others:
            places = self._deep_of(found)
        else:
            if self._deep is None:
                self._deep = self._deep_of((*self._declared, *self._named))
            places = self._deep
        return [(found[name], place) for name, place in places.items() if name in found]

    def _deep_of(self, names: Iterable[str]) -> dict[str, _Place]:
        """Those of the members that are not plain."""
        return {name: place for name in names if not (place := self.member(name)).is_plain}

    def member(self, name: str) -> _Place:
        """The place of a member of an object."""
        key = name if name in self._declared or name in self._named else None
        if key not in self._inner:
            schemas = list(self._declared.get(name, ()))
            for schema in self._schemas:
                schemas += [inner for _, inner in _members(schema, "patternProperties")]
                if name not in self._declared:
                    schemas += _schemas(schema.get("additionalProperties"))
                    schemas += _schemas(schema.get("unevaluatedProperties"))
            self._inner[key] = self._below(schemas, name)
        return self._inner[key]

    def item(self, index: int) -> _Place:
        """The place of an item of an array."""
        most = max((len(_first_items(schema)) for schema in self._schemas), default=0)
        name = str(index)
        key = name if index < most or name in self._named else None
        if key not in self._inner:
            schemas: list[Schema] = []
            for schema in self._schemas:
                first = _first_items(schema)
                if index < len(first):
                    schemas += _schemas(first[index])
                else:
                    rest = "additionalItems" if isinstance(schema.get("items"), list) else "items"
                    schemas += _schemas(schema.get(rest)) + _schemas(schema.get("unevaluatedItems"))
                schemas += _schemas(schema.get("contains"))
            self._inner[key] = self._below(schemas, name)
        return self._inner[key]

    def parsed_types(self) -> frozenset[str]:
        """Those of _PARSED that one of the schemas admits; all, if there is no schema."""
        return _PARSED if not self._declaring else _union(map(self._definition.parsed_types, self._declaring))

    def _below(self, schemas: list[Schema], name: str) -> _Place:
        return self._definition.place(schemas, [path[1:] for path in self._paths if path[0] == name])


class _Definition:
    """A schema with what it refers to, and the places in the arguments that were looked at."""

    def __init__(self, root: object) -> None:
        self._root = root
        self._left = MAX_SCHEMAS
        self._places: dict[object, _Place] = {}
        self._parsed_types: dict[int, frozenset[str]] = {}
        self._by_name: dict[str, Schema] | None = None

    def place(self, schemas: list[Schema], paths: list[_Path]) -> _Place:
        """The place of these schemas. Recursive schemas have finitely many."""
        key = (frozenset(map(id, schemas)), tuple(paths))
        if key not in self._places:
            self._places[key] = _Place(schemas, paths, self)
        return self._places[key]

    def combined(self, schemas: list[Schema]) -> list[Schema]:
        """The schemas, and all that they combine or refer to for the same value, each once."""
        found: dict[int, Schema] = {}
        waiting = list(schemas)
        while waiting and self._left:
            self._left -= 1
            schema = waiting.pop()
            if id(schema) in found:
                continue
            found[id(schema)] = schema
            for word in _COMBINED:
                some = schema.get(word)
                waiting += [inner for each in some for inner in _schemas(each)] if isinstance(some, list) else []
            for word in _APPLIED:
                waiting += _schemas(schema.get(word))
            for word in ("dependentSchemas", "dependencies"):
                waiting += [inner for _, inner in _members(schema, word)]
            for word in ("$ref", "$dynamicRef", "$recursiveRef"):
                waiting += _schemas(self._referred(schema.get(word)))
        return list(found.values())

    def parsed_types(self, schema: object) -> frozenset[str]:
        """Those of _PARSED that the schema admits."""
        if not isinstance(schema, dict):
            return frozenset() if schema is False else _PARSED
        if id(schema) not in self._parsed_types:
            self._parsed_types[id(schema)] = _PARSED  # as far as it refers to itself
            self._parsed_types[id(schema)] = self._find_parsed_types(schema)
        return self._parsed_types[id(schema)]

    def _find_parsed_types(self, schema: Schema) -> frozenset[str]:
        found = _PARSED
        declared = schema.get("type")
        if isinstance(declared, str | list):
            found &= {declared} if isinstance(declared, str) else {each for each in declared if isinstance(each, str)}
        if "const" in schema or isinstance(schema.get("enum"), list):
            values = schema.get("enum", ()) if "const" not in schema else (schema["const"],)
            found &= {_TYPE_NAMES[type(each)] for each in values if type(each) in _TYPE_NAMES}
        for word in ("anyOf", "oneOf"):
            if isinstance(schema.get(word), list):
                found &= _union(map(self.parsed_types, schema[word]))
        for each in schema["allOf"] if isinstance(schema.get("allOf"), list) else ():
            found &= self.parsed_types(each)
        if (referred := self._referred(schema.get("$ref"))) is not None:
            found &= self.parsed_types(referred)
        return found

    def _named(self) -> Mapping[str, Schema]:
        """The schemas that have names, by their anchors and ids."""
        if self._by_name is None:
            found: dict[str, list[Schema]] = {}
            waiting = [self._root]
            while waiting and self._left:
                self._left -= 1
                each = waiting.pop()
                if isinstance(each, dict):
                    for name in {name for word in _NAMING if isinstance(name := each.get(word), str)}:
                        found.setdefault(name.removesuffix("#"), []).append(each)
                    waiting += each.values()
                elif isinstance(each, list):
                    waiting += each
            self._by_name = {name: some[0] if len(some) == 1 else {"anyOf": some} for name, some in found.items()}
        return self._by_name

    def _referred(self, reference: object) -> object:
        """The value at a reference within the definition, by a JSON pointer or by a name; None for any other
        reference. Without base URIs: several schemas of one name count together, as those that `anyOf` combines."""
        if not isinstance(reference, str):
            return None
        base, _, fragment = reference.partition("#")
        fragment = unquote(fragment)
        if fragment and not fragment.startswith("/"):
            return self._named().get(fragment)
        found: Any = self._named().get(base) if base else self._root
        for token in pointer_tokens(fragment):
            if isinstance(found, dict):
                found = found.get(token)
            elif isinstance(found, list) and token.isdecimal() and int(token) < len(found):
                found = found[int(token)]
            else:
                return None
        return found


def _union(found: Iterable[frozenset[str]]) -> frozenset[str]:
    return frozenset().union(*found)


def _twin(arguments: Mapping[str, Raw], root: _Place) -> str | None:
    """The first twin in the arguments, or in an object that they hold at a place with known names."""
    twin = (root.known or NO_NAMES).twin_in(arguments)
    if twin is not None:
        return twin
    waiting = list(root.inner_of(arguments))
    while waiting:
        raw, place = waiting.pop()
        if is_object(raw):
            found = members(raw)
            twin = None if place.known is None else place.known.twin_in(found)
            if twin is not None:
                return twin
            waiting += place.inner_of(found)
        elif is_array(raw):
            waiting += [(each, inner) for at, each in enumerate(items(raw)) if not (inner := place.item(at)).is_plain]
    return None


def _root(definition: bytes, paths: frozenset[str]) -> _Place:
    schema = _schema_of(definition)
    return _Definition(schema).place(_schemas(schema), [pointer_tokens(path) for path in sorted(paths)])


_cached_root = lru_cache(maxsize=256)(_root)


def _root_of(definition: bytes, paths: frozenset[str]) -> _Place:
    """The place of the arguments themselves."""
    return (_root if len(definition) > _CACHED else _cached_root)(definition, paths)


def _schema_of(definition: bytes) -> object:
    """The schema of the arguments that a definition declares; None if it declares none."""
    if not definition or len(definition) > MAX_DEFINITION:
        return None
    try:
        found = msgspec.json.decode(definition)
    except DECODE_ERRORS:
        return None
    if not isinstance(found, dict):
        return None
    arguments = found.get("arguments")
    if isinstance(arguments, list):  # of a prompt: 2025-11-25, "PromptArgument"
        names = [each["name"] for each in arguments if isinstance(each, dict) and isinstance(each.get("name"), str)]
        return {"properties": dict.fromkeys(names, True)}
    return found.get("inputSchema")


def _required(schema: Schema) -> Iterator[str]:
    found = schema.get("required")
    return (each for each in found if isinstance(each, str)) if isinstance(found, list) else iter(())


def _schemas(each: object) -> list[Schema]:
    return [each] if isinstance(each, dict) else []


def _members(schema: Schema, word: str) -> Iterator[tuple[str, Schema]]:
    """The members of `schema[word]`; one that is no schema declares its name alone."""
    found = schema.get(word)
    if isinstance(found, dict):
        for name, each in found.items():
            yield name, each if isinstance(each, dict) else _ANY


def _first_items(schema: Schema) -> list[object]:
    """The schemas of the first items of an array, one by one."""
    for word in ("prefixItems", "items"):
        found = schema.get(word)
        if isinstance(found, list):
            return found
    return []
