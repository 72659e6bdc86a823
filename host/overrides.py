"""Overrides: a tool or prompt as clients see it, in other words and with fewer arguments than its server has.

`edit` changes a definition. It is exact: each call that the edited schema accepts is one that the server's own schema
accepts, once `ArgumentEdit.apply` has put in what the file says. An override for which this is not certain is not
applied at all, for a reason that people are told.

The proof is simple where every schema that looks at an argument must hold in any case: the root, and what it combines
with `allOf`. A schema that may hold or not (`anyOf`, `if`, `not`, …), or that others refer to, is left as it is, so it
may not depend on a changed argument. Pure functions of values. The meaning is that of JSON Schema draft-06 to 2020-12.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any, Final, NamedTuple

import msgspec
from msgspec import Raw, Struct

from config.views import ArgumentOverride, Override
from host.errors import InvalidParams
from host.jsonrpc.raw import (
    DECODE_ERRORS,
    EMPTY_OBJECT,
    NULL,
    encode,
    encode_object,
    is_object,
    is_string,
    items,
    members,
    respelled,
    string,
)
from host.jsonrpc.twins import describe_twin, fold_name
from host.protocol.definitions import is_short
from host.protocol.methods import Kind
from host.protocol.schema_value import SchemaDocument, Undecided, accepts, matches
from host.slices import in_worker

Schema = dict[str, Any]
Changes = Mapping[str, ArgumentOverride]

_TRUE: Final = Raw(b"true")
_FALSE: Final = Raw(b"false")
_LISTS: Final = ("anyOf", "oneOf")
_SINGLE: Final = ("not", "if", "then", "else")
_DEPENDENT: Final = ("dependentRequired", "dependentSchemas", "dependencies")
_WHOLE: Final = ("const", "enum", "minProperties", "maxProperties")
"""Keywords of a schema for an object that look at all of its members together."""
_ELSEWHERE: Final = ("$dynamicRef", "$recursiveRef")


class Inapplicable(ValueError):
    """An override cannot be applied exactly; the text says why, for people."""


class ArgumentEdit(Struct, frozen=True, gc=False):
    """The change of the arguments of a call."""

    values: Mapping[str, Raw]
    """Arguments that the server always gets."""
    defaults: Mapping[str, Raw]
    """Arguments that it gets where the client sends none."""
    taken_out: frozenset[str]
    """The arguments that clients may not send: those with a value, and hidden ones."""
    known: frozenset[str]
    """The arguments that clients may send, as far as the definition names them."""
    folds: frozenset[str]
    """The folded names of all of the arguments above but `known`."""

    def apply(self, arguments: Raw | None) -> Raw | None:
        """The arguments that the server gets; None if there are none. Members that are not changed keep their bytes.

        Raises:
            InvalidParams: the client sends an argument that was taken out, or one that some readers take for a changed
                one, or no object.
        """
        try:
            # Some servers take null for no arguments, and would run without the values.
            found = {} if arguments is None or arguments == NULL else members(arguments)
        except ValueError:
            raise InvalidParams("the arguments are not an object") from None
        for name in found:
            self.check_name(name)
        added = {name: each for name, each in self.defaults.items() if name not in found} | dict(self.values)
        return encode_object({**found, **added}) if added else arguments

    def call(self, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """The params of `tools/call` or `prompts/get` as the server gets them. Raises as `apply` does."""
        arguments = self.apply(params.get("arguments"))
        return params if arguments is None else {**params, "arguments": arguments}

    def completion(self, params: Mapping[str, Raw]) -> Mapping[str, Raw]:
        """The params of `completion/complete` as the server gets them: the values are among the arguments that are
        resolved already (2025-06-18, "Completion / Completion Context").

        Raises:
            InvalidParams: as `apply` does, also for the argument that is to be completed.
        """
        try:
            name = string(members(params["argument"])["name"])
            context = members(params.get("context", EMPTY_OBJECT))
            resolved = members(context.get("arguments", EMPTY_OBJECT))
        except (KeyError, ValueError):
            raise InvalidParams("the argument or the context cannot be read") from None
        for each in (name, *resolved):
            self.check_name(each)
        if not self.values:
            return params
        context["arguments"] = encode_object({**resolved, **self.values})
        return {**params, "context": encode_object(context)}

    def check_name(self, name: str) -> None:
        """Refuse the name of an argument that clients may not send; see `apply`."""
        if name in self.taken_out:
            raise InvalidParams(f"unknown argument: {name[:80]!a}")
        if name not in self.known and fold_name(name) in self.folds:
            raise InvalidParams(describe_twin(name))


class Edited(NamedTuple):
    """A definition as clients get it, and what becomes of the arguments of a call; None: they stay as they are."""

    definition: bytes
    arguments: ArgumentEdit | None


def edit(kind: Kind, definition: bytes, override: Override) -> Edited:
    """Change the definition of a tool or prompt.

    Raises:
        Inapplicable: this cannot be done exactly.
    """
    found = members(definition)
    for word in ("name", "title", "description"):
        if (text := getattr(override, word)) is not None:
            found[word] = encode(text)
    if override.title is not None and is_object(found.get("annotations", NULL)):
        annotations = members(found["annotations"])
        if "title" in annotations:  # the title of older revisions
            found["annotations"] = encode_object({**annotations, "title": found["title"]})
    if not override.arguments:
        return Edited(_edited(definition, found), None)
    edit_arguments = _edit_tool if kind is Kind.TOOL else _edit_prompt
    known = edit_arguments(found, override.arguments)
    return Edited(_edited(definition, found), _argument_edit(override.arguments, known))


def _edited(definition: bytes, found: dict[str, Raw]) -> bytes:
    """The definition with these members, or as it was if they say the same: of long definitions, lists are compared by
    their bytes."""
    edited = bytes(encode_object(found))
    return definition if respelled(edited) == respelled(definition) else edited


async def edit_off_loop(kind: Kind, definition: bytes, override: Override) -> Edited:
    """`edit`, in another process if it may take more than a few milliseconds."""
    if is_short(definition):
        return edit(kind, definition, override)
    plain = replace(override, arguments=dict(override.arguments))  # which can be sent there
    return await in_worker(edit, kind, definition, plain)


def _argument_edit(changes: Changes, known: frozenset[str]) -> ArgumentEdit | None:
    values = {name: Raw(each.value) for name, each in changes.items() if each.value is not None}
    defaults = {name: Raw(each.default) for name, each in changes.items() if each.default is not None}
    taken_out = frozenset(name for name, each in changes.items() if each.is_taken_out)
    if not taken_out and not defaults:
        return None
    folds = frozenset(map(fold_name, (*taken_out, *defaults)))
    return ArgumentEdit(values, defaults, taken_out, known - taken_out, folds)


# Prompts: 2025-11-25, "PromptArgument". A call has texts for them.


def _edit_prompt(found: dict[str, Raw], changes: Changes) -> frozenset[str]:
    """Edit the definition of a prompt, in place. Returns the names of its arguments. Raises Inapplicable."""
    try:
        before = [members(each) for each in items(found.get("arguments", Raw(b"[]")))]
        names = [string(each["name"]) for each in before]
        texts = [string(each["description"]) if is_string(each.get("description", NULL)) else "" for each in before]
    except (ValueError, KeyError):
        raise Inapplicable("its arguments cannot be read") from None
    for name, change in changes.items():
        if names.count(name) != 1:
            raise Inapplicable(f"the argument {_quoted(name)}: the prompt does not declare it")
        at = names.index(name)
        argument, text = before[at], texts[at] if change.description is None else change.description
        if change.hidden and argument.get("required") == _TRUE:
            raise Inapplicable(f"the argument {_quoted(name)}: it is required, so it cannot be hidden")
        if change.description is not None:
            argument["description"] = encode(change.description)
        if change.default is not None:  # for which the protocol has no member
            argument.pop("required", None)
            argument["description"] = encode(f"{text} (default: {string(change.default)})".lstrip())
    taken_out = {name for name, change in changes.items() if change.is_taken_out}
    shown = [encode_object(each) for name, each in zip(names, before, strict=True) if name not in taken_out]
    found["arguments"] = encode(shown)
    return frozenset(names)


# Tools


def _edit_tool(found: dict[str, Raw], changes: Changes) -> frozenset[str]:
    """Edit the definition of a tool, in place. Returns the names of its arguments. Raises Inapplicable."""
    raw = found.get("inputSchema", NULL)
    try:
        schema = _Arguments(msgspec.json.decode(raw))
    except DECODE_ERRORS:
        raise Inapplicable("the schema of its arguments cannot be read") from None
    for name, change in changes.items():
        try:
            reason = schema.why_not(name, change)
        except Undecided as problem:
            reason = str(problem)
        if reason is not None:
            raise Inapplicable(f"the argument {_quoted(name)}: {reason}")
    found["inputSchema"] = _edited_schema(raw, changes)
    return frozenset(name for each in schema.certain for name in each.get("properties", ()))


def _quoted(name: str) -> str:
    return f"{name[:80]!a}"


class _Arguments:
    """The schema of a tool's arguments, decoded. Raises Inapplicable if it has no such form."""

    def __init__(self, root: object) -> None:
        self._document = SchemaDocument(root)
        self.certain = list(_certain(root))
        """The schemas that all arguments must fit in any case."""
        self._others = [each for schema in self.certain for each in _others(schema)]
        """The schemas beside them that may look at the same object, with the keyword of each."""

    def why_not(self, name: str, change: ArgumentOverride) -> str | None:
        """The reason why this change of an argument cannot be exact, or None. Raises Undecided."""
        is_declared = any(name in schema.get("properties", ()) for schema in self.certain)
        is_put_in = change.value is not None or change.default is not None
        if not is_declared and (not change.is_taken_out or not self._takes_others(name)):
            return "the schema does not declare it"
        if change.hidden and any(name in schema.get("required", ()) for schema in self.certain):
            return "it is required, so it cannot be hidden"
        if not change.is_taken_out and not is_put_in:
            return None
        for schema in self.certain:
            if (word := _dependent_on(schema, name)) is not None:
                return f"it is named in {word}"
        for word, other in self._others:
            if (inner := self._dependence(other, name, is_put_in)) is not None:
                return f"{word} of the schema depends on it ({inner})"
        for text in (change.value, change.default):
            if text is not None and (reason := self._why_no_value(name, msgspec.json.decode(text))) is not None:
                return reason
        return None

    def _takes_others(self, name: str) -> bool:
        """Whether the schema says that there are arguments which it does not name, and this is one. That it says
        nothing is not enough: an argument may have got another name."""
        for schema in self.certain:
            if schema.get("additionalProperties", False) is not False:
                return True
            if any(matches(pattern, name) for pattern in schema.get("patternProperties", ())):
                return True
        return False

    def _why_no_value(self, name: str, value: object) -> str | None:
        """The reason why the server always, or sometimes, gets this value in vain."""
        for schema in self.certain:
            for word in (*_WHOLE, *_ELSEWHERE):
                if word in schema:
                    return f"the schema has {word}, which depends on all arguments"
            if not accepts(schema.get("propertyNames", True), name, self._document):
                return "the schema does not accept its name"
            declared = schema.get("properties", {})
            judging = [declared[name]] if name in declared else []
            judging += [each for pattern, each in schema.get("patternProperties", {}).items() if matches(pattern, name)]
            if not judging and "additionalProperties" in schema:
                judging = [schema["additionalProperties"]]
            elif not judging and not _is_anything(schema.get("unevaluatedProperties", True)):
                judging = [each["properties"][name] for each in _certain(schema) if name in each.get("properties", ())]
                if not judging:
                    return "unevaluatedProperties of the schema may refuse it"
            if not all(accepts(each, value, self._document) for each in judging):
                return "the schema does not accept the value"
        return None

    def _dependence(self, schema: object, name: str, is_put_in: bool) -> str | None:
        """The keyword by which a schema, or one that it applies to the same object, depends on an argument: on whether
        it is there, and on its value, if it is put in; else on its name alone, which would still be shown."""
        waiting, seen = [schema], set[int]()
        while waiting:
            each = waiting.pop()
            if not isinstance(each, dict) or id(each) in seen:
                continue
            seen.add(id(each))
            for word in ("properties", "required"):
                if name in _names_in(each.get(word)):
                    return word
            if (dependent := _dependent_on(each, name)) is not None:
                return dependent
            if is_put_in and (counting := _counting(each)) is not None:
                return counting
            waiting += [inner for _, inner in _others(each)]
            waiting += each["allOf"] if isinstance(each.get("allOf"), list) else ()
            if "$ref" in each:
                waiting.append(self._document.resolve(each["$ref"]))
        return None


def _certain(schema: object) -> Iterator[Schema]:
    """The schema, and all that it combines with `allOf`. Raises Inapplicable."""
    if schema is True:
        return
    if not isinstance(schema, dict):
        raise Inapplicable("the schema of its arguments is no object")
    for word, kind in (("properties", dict), ("required", list), ("patternProperties", dict), ("allOf", list)):
        if not isinstance(schema.get(word, kind()), kind):
            raise Inapplicable(f"{word} of the schema of its arguments is of a wrong type")
    if not all(isinstance(each, str) for each in schema.get("required", ())):
        raise Inapplicable("required of the schema of its arguments is of a wrong type")
    yield schema
    for each in schema.get("allOf", ()):
        yield from _certain(each)


def _others(schema: Schema) -> Iterator[tuple[str, object]]:
    """The schemas that this one applies to the same object, but for `allOf`, with their keywords. A reference counts as
    the schema that has it alone."""
    for word in _LISTS:
        if isinstance(schema.get(word), list):
            yield from ((word, each) for each in schema[word])
    for word in _SINGLE:
        if word in schema:
            yield word, schema[word]
    for word in _DEPENDENT:
        if isinstance(schema.get(word), dict):
            yield from ((word, each) for each in schema[word].values())
    if "$ref" in schema:
        yield "$ref", {"$ref": schema["$ref"]}


def _names_in(found: object) -> Any:
    return found if isinstance(found, dict | list) else ()


def _dependent_on(schema: Schema, name: str) -> str | None:
    """The keyword that names the argument as one on which others depend, or the reverse."""
    for word in _DEPENDENT:
        found = schema.get(word)
        if isinstance(found, dict) and (name in found or any(name in _names_in(each) for each in found.values())):
            return word
    return None


def _counting(schema: Schema) -> str | None:
    """The keyword by which a schema may depend on any argument."""
    for word in (*_WHOLE, *_ELSEWHERE, "propertyNames", "patternProperties"):
        if word in schema:
            return word
    for word in ("additionalProperties", "unevaluatedProperties"):
        if not _is_anything(schema.get(word, True)):
            return word
    return None


def _is_anything(schema: object) -> bool:
    return schema is True or schema == {}


def _edited_schema(raw: Raw, changes: Changes) -> Raw:
    """The schema with the changes of its arguments, also in `allOf`. All other members keep their bytes."""
    if not is_object(raw):
        return raw
    found = members(raw)
    if "properties" in found:
        properties = members(found["properties"])
        for name, change in changes.items():
            if name in properties:
                if change.is_taken_out:
                    del properties[name]
                else:
                    properties[name] = _edited_property(properties[name], change)
        found["properties"] = encode_object(properties)
    if "required" in found:
        not_required = {name for name, each in changes.items() if each.is_taken_out or each.default is not None}
        required = [each for each in msgspec.json.decode(found["required"]) if each not in not_required]
        found["required"] = encode(required)
        if not required:  # draft-04 has no empty list
            del found["required"]
    if "allOf" in found:
        found["allOf"] = encode([_edited_schema(each, changes) for each in items(found["allOf"])])
    return encode_object(found)


def _edited_property(raw: Raw, change: ArgumentOverride) -> Raw:
    if raw == _FALSE:
        return raw
    found = members(raw) if is_object(raw) else {}  # true is a schema of any value
    if change.description is not None:
        found["description"] = encode(change.description)
    if change.default is not None:
        found["default"] = Raw(change.default)
    return encode_object(found)
