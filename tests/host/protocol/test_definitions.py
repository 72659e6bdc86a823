"""Definitions as clients accept them: by the official schemas of all revisions, with the meaning of the server's."""

from __future__ import annotations

import json
import random
from collections import Counter
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema  # type: ignore[import-untyped]
import pytest

from host import catalog
from host.jsonrpc.raw import EMPTY_OBJECT
from host.protocol.abilities import abilities_of
from host.protocol.definitions import (
    Misfit,
    Unfit,
    adapted,
    describe_unfit,
    is_short,
    misfit_of,
    model_tokens,
)
from host.protocol.downgrade import downgrade_definition
from host.protocol.methods import Kind
from host.protocol.versions import LEGACY, MODERN, SESSION, STATELESS, Era
from tests.kit.awaited import awaited

REVISIONS = {**LEGACY, **MODERN}
OFFICIAL = json.loads((Path(__file__).parents[2] / "kit" / "official_definitions.json").read_text())
"""The definitions of entries in the official schemas, by revision, without their descriptions."""
NAMES = {Kind.TOOL: "Tool", Kind.RESOURCE: "Resource", Kind.TEMPLATE: "ResourceTemplate", Kind.PROMPT: "Prompt"}
OBJECT = {"type": "object"}

Definition = dict[str, Any]


@cache
def official(revision: str, kind: Kind) -> Any:
    document = OFFICIAL[revision]
    key = "$defs" if "$defs" in document else "definitions"
    schema = {"$schema": document["$schema"], "$ref": f"#/{key}/{NAMES[kind]}", key: document[key]}
    return jsonschema.validators.validator_for(schema)(schema)


def shown(kind: Kind, definition: bytes, revision: str, uris: tuple[str, ...] = ()) -> bytes | None:
    """The definition for clients of this revision; None if they are not shown it."""
    abilities = abilities_of(REVISIONS[revision], EMPTY_OBJECT)
    misfit = misfit_of(kind, definition, uris)
    if misfit is not None:
        if (misfit.stateless if abilities.retries else misfit.handshake) is not None:
            return None
        definition = adapted(kind, definition, STATELESS if abilities.retries else SESSION)
    if kind is not Kind.TOOL:
        return downgrade_definition(definition, icons=abilities.icons)
    return downgrade_definition(
        definition, icons=abilities.icons, structured=abilities.structured_content, tasks=abilities.tasks
    )


def as_shown(kind: Kind, definition: Definition, revision: str) -> Definition | None:
    found = shown(kind, json.dumps(definition).encode(), revision)
    return None if found is None else dict(json.loads(found))


TOOL = {"name": "t", "inputSchema": OBJECT}


def properties(count: int, schema: object) -> Definition:
    return {"name": "t", "inputSchema": {**OBJECT, "properties": {f"p{each}": schema for each in range(count)}}}


RESOURCE = {"uri": "file:///a", "name": "r"}
TEMPLATE = {"uriTemplate": "file:///{a}", "name": "r"}
PROMPT = {"name": "p"}
ICON = {"src": "https://x/y.png"}
WHOLE: dict[Kind, Definition] = {
    Kind.TOOL: {
        **TOOL,
        "title": "T",
        "description": "d",
        "icons": [{**ICON, "mimeType": "image/png", "sizes": ["48x48", "any"], "theme": "dark"}],
        "annotations": {"title": "T", "readOnlyHint": True, "destructiveHint": False, "x": 5},
        "execution": {"taskSupport": "optional"},
        "outputSchema": {"type": "object", "properties": {"a": {"type": ["string", "null"]}}},
        "inputSchema": {
            "$schema": "https://json-schema.org/draft/2020-12/schema",
            "type": "object",
            "properties": {"a": {"items": {"anyOf": [{"const": True}]}, "default": False}, "b": {"$ref": "#/$defs/b"}},
            "required": ["a"],
            "additionalProperties": False,
            "$defs": {"b": {"type": "integer", "maximum": 10**30}},
        },
        "_meta": {"v/k": 1},
        "more": [None],
    },
    Kind.RESOURCE: {
        **RESOURCE,
        "description": "d",
        "mimeType": "text/plain; charset=utf-8",
        "size": 5,
        "annotations": {
            "audience": ["user", "assistant"],
            "priority": 0.5,
            "lastModified": "2025-01-12T15:00:58.5+02:00",
        },
        "icons": [ICON],
        "_meta": {},
    },
    Kind.TEMPLATE: {**TEMPLATE, "mimeType": "", "annotations": {"priority": 1}, "title": ""},
    Kind.PROMPT: {
        **PROMPT,
        "arguments": [{"name": "a", "title": "A", "description": "d", "required": True}, {"name": "b", "more": None}],
    },
}


@pytest.mark.parametrize("kind", list(Kind))
@pytest.mark.parametrize("escaped", [True, False])
def test_a_definition_that_all_clients_accept_keeps_every_byte(kind: Kind, escaped: bool) -> None:
    text = json.dumps({**WHOLE[kind], "title": "\u00e9\U0001f600"}, ensure_ascii=escaped, indent=1).encode()
    assert misfit_of(kind, text, ("file:///a", "s+file:///a") if kind is Kind.RESOURCE else ()) is None


PLAIN: dict[Kind, Definition] = {Kind.TOOL: TOOL, Kind.RESOURCE: RESOURCE, Kind.TEMPLATE: TEMPLATE, Kind.PROMPT: PROMPT}
WRONG: dict[Kind, dict[str, list[Any]]] = {
    Kind.TOOL: {"annotations": [[], None], "execution": [5], "outputSchema": [None, [], 5]},
    Kind.RESOURCE: {"mimeType": [None], "size": ["5", 5.5, None], "annotations": ["x"]},
    Kind.TEMPLATE: {"mimeType": [5], "annotations": [[]]},
    Kind.PROMPT: {"arguments": [None, {}]},
}
WRONG_IN_ALL: dict[str, list[Any]] = {
    "title": [5, None],
    "description": [["d"], None],
    "icons": [None, {}, [{}], [5]],
    "_meta": [[], None, 5],
}


@pytest.mark.parametrize(("kind", "name"), [(kind, name) for kind in Kind for name in WRONG_IN_ALL | WRONG[kind]])
def test_an_optional_member_of_a_wrong_type_is_left_out(kind: Kind, name: str) -> None:
    for value in (WRONG_IN_ALL | WRONG[kind])[name]:
        shown = {revision: as_shown(kind, {**PLAIN[kind], name: value}, revision) for revision in REVISIONS}
        assert shown == dict.fromkeys(REVISIONS, PLAIN[kind]), value


@pytest.mark.parametrize(
    ("kind", "definition", "expected"),
    [
        (Kind.TOOL, {**TOOL, "annotations": {"readOnlyHint": "true", "title": "T"}}, {"annotations": {"title": "T"}}),
        (Kind.TOOL, {**TOOL, "execution": {"taskSupport": "maybe", "x": 1}}, {"execution": {"x": 1}}),
        (Kind.TOOL, {**TOOL, "icons": [{**ICON, "sizes": "48x48"}, ICON]}, {"icons": [ICON, ICON]}),
        (Kind.TOOL, {**TOOL, "icons": [{**ICON, "theme": "blue", "mimeType": None}]}, {"icons": [ICON]}),
        (
            Kind.RESOURCE,
            {**RESOURCE, "annotations": {"audience": "user", "priority": 2, "lastModified": "2025-01-12", "x": 1}},
            {"annotations": {"x": 1}},
        ),
        (
            Kind.RESOURCE,
            {**RESOURCE, "annotations": {"audience": ["system"], "priority": 0}},
            {"annotations": {"priority": 0}},
        ),
        (
            Kind.PROMPT,
            {**PROMPT, "arguments": [{"name": "a", "required": "true"}, {"name": "b", "description": None}]},
            {"arguments": [{"name": "a"}, {"name": "b"}]},
        ),
    ],
)
def test_so_is_one_inside_a_member(kind: Kind, definition: Definition, expected: Definition) -> None:
    assert as_shown(kind, definition, "2025-11-25") == {**definition, **expected}


def test_the_rest_of_a_mended_definition_keeps_its_bytes() -> None:
    raw = b'{ "name":"t","description":null,"x": 1.50,"inputSchema":{"type": "object","y" : "\\u00e9"}}'
    expected = b'{"name":"t","x":1.50,"inputSchema":{"type": "object","y" : "\\u00e9"}}'
    assert adapted(Kind.TOOL, raw, STATELESS) == expected


@pytest.mark.parametrize(
    ("kind", "definition", "reason"),
    [
        (Kind.TOOL, {**TOOL, "inputSchema": {"type": "string"}}, "its inputSchema: it accepts no object"),
        (Kind.TOOL, {**TOOL, "inputSchema": 5}, "its inputSchema: it is no schema"),
        (Kind.RESOURCE, {"uri": "x:1"}, "it has no name"),
        (Kind.RESOURCE, {"uri": "x:1", "name": None}, "its name: of a wrong type"),
        (Kind.TEMPLATE, {"uriTemplate": "x:{a}"}, "it has no name"),
        (Kind.PROMPT, {**PROMPT, "arguments": "a"}, "its arguments: expected an array"),
        (Kind.PROMPT, {**PROMPT, "arguments": ["a"]}, "its arguments: expected an object"),
        (Kind.PROMPT, {**PROMPT, "arguments": [{"description": "a"}]}, "its arguments: it has no name"),
    ],
)
def test_a_definition_that_has_no_such_form_is_unfit(kind: Kind, definition: Definition, reason: str) -> None:
    raw = json.dumps(definition).encode()
    assert misfit_of(kind, raw) == Misfit(reason, reason)
    assert describe_unfit("it", Misfit(reason, reason)) == f"it ({reason}; a call by its name reaches it)"
    for era in Era:
        with pytest.raises(Unfit, match=reason):
            adapted(kind, raw, era)


def test_a_definition_may_be_unfit_for_one_era() -> None:
    raw = json.dumps({**TOOL, "inputSchema": {"type": "object", "properties": {"a": 5}}}).encode()
    reason = "its inputSchema: the property 'a' has no schema"
    assert misfit_of(Kind.TOOL, raw) == Misfit(reason, None)
    assert shown(Kind.TOOL, raw, "2026-07-28") == raw
    assert (
        describe_unfit("it", Misfit(reason, None))
        == f"it, for handshake clients ({reason}; a call by its name reaches it)"
    )
    assert describe_unfit("it", Misfit(None, "x")) == "it, for stateless clients (x; a call by its name reaches it)"
    assert describe_unfit("it", Misfit("x", "y")) == "it (x; a call by its name reaches it)"


@pytest.mark.parametrize(
    ("uri", "expected"),
    [
        ("foo", ("its URI has no scheme",) * 2),
        ("/etc/x", ("its URI has no scheme",) * 2),
        ("custom:// x", ("its URI is not valid", None)),
        ("http://", ("its URI is not valid", None)),
        ("file:///a b", None),
        ("memo:x", None),
        ("greeting://\u00e9/{", None),
    ],
)
def test_a_uri_is_one_that_clients_can_read(uri: str, expected: tuple[str | None, str | None] | None) -> None:
    raw = json.dumps({"uri": uri, "name": "r"}).encode()
    assert misfit_of(Kind.RESOURCE, raw, (uri, f"s+{uri}")) == expected


def promising(count: int, schema: Definition) -> Definition:
    """A tool with so many properties in its output schema."""
    return {**TOOL, "outputSchema": {**OBJECT, "properties": {f"p{each}": schema for each in range(count)}}}


def nested(depth: int, text: str) -> Definition:
    """A schema with a boolean, and a text, inside so many others."""
    return {"not": nested(depth - 1, text)} if depth else {"not": True, "description": text}


@pytest.mark.parametrize(
    ("kind", "definition", "elsewhere"),
    [
        pytest.param(Kind.TOOL, properties(600, {}), False, id="large and plain"),
        pytest.param(Kind.TOOL, properties(600, True), True, id="many schemas"),
        pytest.param(Kind.TOOL, {"name": "t", "inputSchema": nested(40, "x" * 20_000)}, True, id="a long text, deep"),
        pytest.param(Kind.RESOURCE, {"uri": f"http://{'1.' * 10_000}", "name": "r"}, True, id="a long URI"),
        pytest.param(Kind.TOOL, promising(600, {"type": "string"}), False, id="a large promise"),
        pytest.param(Kind.TOOL, promising(600, {"pattern": "a"}), True, id="many patterns"),
        pytest.param(Kind.TOOL, {**TOOL, "title": None}, False, id="small"),
    ],
)
def test_only_a_large_definition_that_is_no_plain_one_is_left_to_another_process(
    kind: Kind, definition: Definition, elsewhere: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, uris = json.dumps(definition).encode(), (definition["uri"],) if kind is Kind.RESOURCE else ()
    ordered: list[object] = []

    async def in_worker(function: Callable[..., object], *arguments: object) -> object:
        ordered.append(function)
        return function(*arguments)

    monkeypatch.setattr(catalog, "in_worker", in_worker)
    assert awaited(catalog._find_misfit(kind, raw, uris)) == misfit_of(kind, raw, uris)
    assert ordered == ([misfit_of] if elsewhere else [])
    assert not (elsewhere and is_short(raw))


def output(schema: bytes) -> bytes:
    return b'{"name":"t","outputSchema": %b,"inputSchema":{"type": "object"}}' % schema


@pytest.mark.parametrize(
    "schema", [b"true", b"{}", b'{"type":"array"}', b'{"type":["object"]}', b'{"anyOf":[{"type":"object"}]}', b"null"]
)
def test_a_tool_promises_objects_to_those_who_know_nothing_else(schema: bytes) -> None:
    """(rule 62)"""
    without = b'{"name":"t","inputSchema":{"type": "object"}}'
    for raw in (output(schema), output(schema).replace(b'"output', b'"\\u006futput')):
        assert shown(Kind.TOOL, raw, "2025-11-25") == without
    if schema.startswith(b"{"):
        assert shown(Kind.TOOL, output(schema), "2026-07-28") == output(schema)


@pytest.mark.parametrize("schema", [b'{"type": "object"}', b'{"x":[],"type":"\\u006fbject"}'])
def test_a_promise_of_objects_is_kept(schema: bytes) -> None:
    """(rule 62)"""
    assert misfit_of(Kind.TOOL, output(schema)) is None


def test_a_promise_is_written_as_arguments_are() -> None:
    promised = output(b'{"type":"object","properties":{"a":true},"required":null}')
    assert shown(Kind.TOOL, promised, "2025-11-25") == (
        b'{"name":"t","outputSchema":{"type":"object","properties":{"a":{}}},"inputSchema":{"type": "object"}}'
    )
    assert shown(Kind.TOOL, promised, "2026-07-28") == (
        b'{"name":"t","outputSchema":{"type":"object","properties":{"a":true}},"inputSchema":{"type": "object"}}'
    )
    assert shown(Kind.TOOL, output(b"false"), "2026-07-28") == output(b"false").replace(b" false", b'{"not":{}}')


# Generated tools. The judges are the official schemas, and the validators of `jsonschema` for the meaning.


class Generator:
    """Definitions of tools, right and wrong, and objects as arguments; the same for the same seed."""

    def __init__(self, seed: int) -> None:
        self._random = random.Random(seed)
        self.modern = self._random.random() < 0.5
        """Whether the schemas are of draft 2020-12, not of draft-07."""
        draft = jsonschema.Draft202012Validator if self.modern else jsonschema.Draft7Validator
        self._dialect: str = draft.META_SCHEMA["$schema"]
        self._has_definitions = False

    def _one_of(self, *choices: Any) -> Any:
        return self._random.choice(choices)

    def _some(self, share: float) -> bool:
        return self._random.random() < share

    def tool(self) -> Definition:
        found: Definition = {"name": "t"}
        if (schema := self._root()) != "missing":
            found["inputSchema"] = schema
        if self._some(0.2):
            found["outputSchema"] = self._root()
        for name, right, wrong in (
            ("title", "T", 5),
            ("description", "d", None),
            ("annotations", {"readOnlyHint": True}, {"readOnlyHint": "x"}),
            ("icons", [ICON], [{"src": 5}]),
            ("execution", {"taskSupport": "optional"}, []),
            ("_meta", {"a": 1}, []),
        ):
            if self._some(0.1):
                found[name] = self._one_of(right, wrong)
        return found

    def _root(self) -> Any:
        if self._some(0.1):
            return self._one_of("missing", None, True, False, {}, [], 5, "text", [1])
        self._has_definitions = self._some(0.4)
        found: Definition = {}
        if self._some(0.4):
            found["$schema"] = self._dialect if self._some(0.9) else self._one_of(None, 5)
        if self._has_definitions:
            self._has_definitions = False  # they do not refer to each other
            found["$defs"] = {name: self._schema(2) for name in "xy"}
            self._has_definitions = True
        if self._some(0.7):
            found["type"] = "object"
        elif self._some(0.5):
            found["type"] = self._one_of(["object", "null"], ["object"], None, "string", ["array", "null"], 5, "Object")
        if self._some(0.8):
            names = self._random.sample("abcd", self._random.randint(0, 3))
            found["properties"] = {name: self._schema(2) for name in names}
            if names and self._some(0.05):
                found["properties"][names[0]] = self._one_of(None, [], 5, "string")
        elif self._some(0.3):
            found["properties"] = self._one_of(None, [], 5)
        if self._some(0.5):
            found["required"] = self._random.sample("abcd", self._random.randint(0, 2))
        elif self._some(0.2):
            found["required"] = self._one_of(None, {}, True, [5], "a")
        return self._with_keywords(found, 2)

    def _schema(self, depth: int) -> Any:
        if self._some(0.2):
            return self._some(0.6)
        return self._with_keywords({}, depth)

    def _with_keywords(self, found: Definition, depth: int) -> Definition:
        for _ in range(self._random.randint(0, 2)):
            found.update(self._keywords(depth))
        if not isinstance(found.get("items"), list):
            found.pop("additionalItems", None)  # it has no meaning then, and the judge fails on it
        return found

    def _keywords(self, depth: int) -> Definition:
        sub = self._schema
        simple: list[Definition] = [
            {"type": self._one_of("string", "integer", "boolean", "array", "object", "null", ["string", "null"])},
            {"const": self._value(1)},
            {"enum": [self._value(1), True, {"not": True}]},
            {"minimum": 2},
            {"maxLength": 1},
            {"default": True, "examples": [{"items": True}]},
            {"required": ["a"]},
            {"$ref": f"#/$defs/{self._one_of('x', 'y')}"} if self._has_definitions else {"title": "x"},
        ]
        if depth == 0 or self._some(0.4):
            return self._random.choice(simple)
        less = depth - 1
        deep: list[Any] = [
            lambda: {"properties": {name: sub(less) for name in self._random.sample("abcd", 2)}},
            lambda: {"patternProperties": {"^[ab]": sub(less)}},
            lambda: {"additionalProperties": sub(less)},
            lambda: {"propertyNames": sub(less)},
            lambda: {"items": sub(less)},
            lambda: {"contains": sub(less)},
            lambda: {self._one_of("anyOf", "oneOf", "allOf"): [sub(less), sub(less)]},
            lambda: {"not": sub(less)},
            lambda: {"if": sub(less), "then": sub(less), "else": sub(less)},
            (lambda: {"prefixItems": [sub(less)], "items": sub(less)})
            if self.modern
            else (lambda: {"items": [sub(less)], "additionalItems": sub(less)}),
            (lambda: {"dependentSchemas": {"a": sub(less)}, "unevaluatedProperties": self._some(0.5)})
            if self.modern
            else (lambda: {"dependencies": {"a": sub(less), "b": ["c"]}}),
        ]
        made: Definition = self._one_of(*deep)()
        return made

    def arguments(self) -> Definition:
        return {name: self._value(2) for name in self._random.sample("abcde", self._random.randint(0, 4))}

    def _value(self, depth: int) -> Any:
        if depth and self._some(0.3):
            inner = [self._value(depth - 1) for _ in range(self._random.randint(0, 2))]
            return inner if self._some(0.5) else dict(zip("ab", inner, strict=False))
        return self._one_of(None, True, False, 1, 3, 2.5, "", "x", "xyz")


def meaning_of(schema: Any) -> Any:
    """The schema as JSON Schema reads it, without what is absent but for the way in which it is written."""
    if schema in (None, []) or schema is True:
        return True
    if not isinstance(schema, dict):
        return schema
    found = dict(schema)
    if not isinstance(found.get("$schema", ""), str):
        del found["$schema"]
    for name, absent in (("type", [None]), ("properties", [None, []]), ("required", [None, {}])):
        if name in found and found[name] in absent:
            del found[name]
    if isinstance(found.get("properties"), dict):
        found["properties"] = {
            name: {} if each is None or each == [] else each for name, each in found["properties"].items()
        }
    return found


def is_schema(schema: Any) -> bool:
    """Whether the root of a schema, as far as it is generated, has a meaning."""
    if not isinstance(schema, dict):
        return isinstance(schema, bool)
    kinds, properties, required = schema.get("type", []), schema.get("properties", {}), schema.get("required", [])
    if not (isinstance(kinds, str | list) and isinstance(properties, dict) and isinstance(required, list)):
        return False
    kinds = [kinds] if isinstance(kinds, str) else kinds
    return (
        {"object", "array", "string", "null"}.issuperset(kinds)
        and all(isinstance(each, dict | bool) for each in properties.values())
        and all(isinstance(each, str) for each in required)
    )


def check_generated(seeds: range) -> Counter[str]:
    """Hold tools against the official schema of each revision, and their schemas against the server's own."""
    counts: Counter[str] = Counter()
    for seed in seeds:
        generator = Generator(seed)
        tool = generator.tool()
        raw = json.dumps(tool).encode()
        judge = jsonschema.Draft202012Validator if generator.modern else jsonschema.Draft7Validator
        own = meaning_of(tool.get("inputSchema"))
        arguments = [generator.arguments() for _ in range(20)]
        expected = [judge(own).is_valid(each) for each in arguments] if is_schema(own) else None
        judged = {json.dumps(own)}
        promised: set[str] = set()
        for revision in REVISIONS:
            found = shown(Kind.TOOL, raw, revision)
            if found is None:
                # Draft-07 ignores a type beside a reference; such a tool is left out by its type all the same.
                ignored = not generator.modern and isinstance(own, dict) and "$ref" in own
                assert expected is None or ignored or not any(expected), (seed, revision, tool)
                counts["unfit"] += 1
                continue
            definition = json.loads(found)
            problems = [each.message for each in official(revision, Kind.TOOL).iter_errors(definition)]
            assert not problems, (seed, revision, tool, problems)
            counts["mended"] += found != raw and not official(revision, Kind.TOOL).is_valid(tool)
            if "outputSchema" in definition and (text := json.dumps(definition["outputSchema"])) not in promised:
                promised.add(text)
                counts["promised"] += 1
                client = jsonschema.validators.validator_for(definition["outputSchema"])
                client.check_schema(definition["outputSchema"])
                list(client(definition["outputSchema"]).iter_errors({"a": "x"}))
            schema = definition["inputSchema"]
            if revision in LEGACY:
                assert not list(boolean_schemas(schema)), (seed, revision, tool)
            if expected is not None and (text := json.dumps(schema)) not in judged:
                judged.add(text)
                given = [judge(meaning_of(schema)).is_valid(each) for each in arguments]
                assert given == expected, (seed, revision, tool)
                counts.update(accepted=sum(given), refused=20 - sum(given))
    return counts


def boolean_schemas(schema: Any) -> Any:
    """Boolean schemas inside a schema, except for the keywords that usually have one."""
    if isinstance(schema, bool):
        yield schema
    if not isinstance(schema, dict):
        return
    for keyword, inner in schema.items():
        if keyword in ("properties", "patternProperties", "$defs", "dependentSchemas", "dependencies"):
            for each in inner.values() if isinstance(inner, dict) else ():
                yield from boolean_schemas(each)
        elif keyword in ("items", "prefixItems", "anyOf", "oneOf", "allOf") and isinstance(inner, list):
            for each in inner:
                yield from boolean_schemas(each)
        elif keyword in ("additionalProperties", "additionalItems", "unevaluatedProperties"):
            yield from boolean_schemas({} if isinstance(inner, bool) else inner)
        elif keyword in ("items", "contains", "propertyNames", "not", "if", "then", "else"):
            yield from boolean_schemas(inner)


def test_generated_tools_are_shown_as_their_revision_has_them_with_the_same_meaning() -> None:
    counts = check_generated(range(30))
    assert counts["promised"] >= 2, counts
    assert min(counts[each] for each in ("unfit", "mended", "accepted", "refused")) >= 10, counts


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_so_are_twenty_thousand(part: int) -> None:
    counts = check_generated(range(1000 * part, 1000 * (part + 1)))
    assert min(counts[each] for each in ("unfit", "mended", "accepted", "refused", "promised")) > 100, counts


@pytest.mark.parametrize(("size", "tokens"), [(0, 0), (1, 1), (4, 1), (5, 2), (400, 100)])
def test_tokens_of_a_model_are_a_quarter_of_the_bytes(size: int, tokens: int) -> None:
    assert model_tokens(size) == tokens
