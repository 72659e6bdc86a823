"""Overrides: what a call that clients may send becomes is a call that the server takes. `jsonschema` is the judge."""

from __future__ import annotations

import json
import random
import re
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import pytest
import trio
from msgspec import Raw
from trio.testing import wait_all_tasks_blocked

from config import Channel, Check, Condition, Config, Consent, KindConsent, Rule, Trust
from config.views import ArgumentOverride, Override, OverrideKind, Search, ViewSpec
from host.errors import HeaderMismatch, InvalidParams
from host.journal import EntryOmitted
from host.jsonrpc import strict
from host.overrides import Edited, Inapplicable, edit, edit_off_loop
from host.policy.confirmations import ConfirmationAnswer
from host.protocol.methods import Kind
from host.protocol.versions import LATEST, Era
from host.source import Endpoint, viewer_of
from tests.host.router.shared import echo
from tests.kit.asgi import open_http_app, open_session
from tests.kit.awaited import awaited
from tests.kit.random_overrides import HIDDEN, VALUES, Count, applied, default, edit_schema, judge, schema_of, value
from tests.kit.tasks import handshake_server, status
from tests.kit.world import Refusal, ScriptedServer, World, later, open_client, open_world, tool


def edit_arguments(schema: object, **arguments: ArgumentOverride) -> Edited:
    return edit_schema(schema, arguments)


def why_not(schema: object, **arguments: ArgumentOverride) -> str:
    with pytest.raises(Inapplicable) as caught:
        edit_arguments(schema, **arguments)
    return str(caught.value)


ISSUE: dict[str, Any] = {
    "type": "object",
    "properties": {
        "owner": {"type": "string"},
        "title": {"type": "string", "description": "What it is about"},
        "limit": {"type": "integer", "minimum": 1, "maximum": 100},
        "labels": {"type": "array", "items": {"$ref": "#/$defs/label"}},
    },
    "required": ["owner", "title", "limit"],
    "$defs": {"label": {"enum": ["bug", "feature"]}},
}


# The words of a definition


def test_name_title_and_description_take_the_place_of_the_servers() -> None:
    definition = b'{"name":"create_issue","title":"Create","x":1.50,"annotations":{"title":"C","readOnlyHint":false}}'
    made = edit(Kind.TOOL, definition, Override(name="new_issue", title="New issue", description="Open one at Acme."))
    assert made == Edited(
        b'{"name":"new_issue","title":"New issue","x":1.50,'
        b'"annotations":{"title":"New issue","readOnlyHint":false},"description":"Open one at Acme."}',
        None,
    )


def test_all_other_bytes_of_a_definition_stay() -> None:
    schema = b'{ "type":"object", "properties":{"a":{"default":1.50},"b":{"const":"\\u00e9"}}, "x":[ 1 ] }'
    made = edit(Kind.TOOL, b'{"name":"t","inputSchema":%b}' % schema, Override(arguments={"b": HIDDEN}))
    assert made.definition == (
        b'{"name":"t","inputSchema":{"type":"object","properties":{"a":{"default":1.50}},"x":[ 1 ]}}'
    )


@pytest.mark.parametrize(
    ("change", "is_same"),
    [
        (Override(description="d"), True),
        (Override(description="e"), False),
        (Override(arguments=MappingProxyType({"x": ArgumentOverride(description="says")})), True),
        (Override(arguments=MappingProxyType({"x": ArgumentOverride(default=b"1")})), True),
        (Override(arguments=MappingProxyType({"x": ArgumentOverride(default=b"1.0")})), False),
        (Override(arguments=MappingProxyType({"x": ArgumentOverride(default=b"true")})), False),
    ],
)
def test_what_says_the_same_keeps_its_bytes(change: Override, is_same: bool) -> None:
    """Else clients would be told that their list has changed, and would find no change in it."""
    definition = (
        b'{"name": "t", "description":"d", "inputSchema": {"properties": {"x": {"description": "says", "default": 1}}}}'
    )
    assert (edit(Kind.TOOL, definition, change).definition == definition) is is_same


@pytest.mark.slow
def test_a_long_definition_is_edited_in_another_process() -> None:
    definition = json.dumps({"name": "t", "inputSchema": {"properties": {"a": {}}}, "x": "y" * 20_000}).encode()
    change = Override(arguments=MappingProxyType({"a": value(1)}))
    assert awaited(edit_off_loop(Kind.TOOL, definition, change)) == edit(Kind.TOOL, definition, change)
    with pytest.raises(Inapplicable, match="does not declare it"):
        awaited(edit_off_loop(Kind.TOOL, definition, Override(arguments={"b": value(1)})))


@pytest.mark.slow
async def test_a_long_definition_is_edited_while_the_host_serves() -> None:
    own = {**OWN, "_meta": {"x": "y" * 20_000}}
    for override, names in ((OVERRIDE, ["gh__new_issue"]), (Override(arguments={"no": HIDDEN}), [])):
        async with open_client(github(override, own=own)) as (_, client, _):
            assert await client.names() == [*names, "gh__other"]


# Arguments of tools


@pytest.mark.parametrize("odd", [b"1e400", b'"\\ud800"', b"1" * 40, b"[" * 600 + b"]" * 600])
def test_what_cannot_be_decoded_whole_is_edited_all_the_same(odd: bytes) -> None:
    definition = b'{"name": "t", "x": %b}' % odd
    assert edit(Kind.TOOL, definition, Override(name="t")).definition in (definition, b'{"name":"t","x":%b}' % odd)
    assert edit(Kind.TOOL, definition, Override(name="u")).definition == b'{"name":"u","x":%b}' % odd


def test_a_value_takes_the_argument_out_and_is_always_sent() -> None:
    edited = edit_arguments(ISSUE, owner=value("acme"))
    assert "owner" not in schema_of(edited)["properties"]
    assert schema_of(edited)["required"] == ["title", "limit"]
    assert applied(edited, {"title": "x"}) == {"title": "x", "owner": "acme"}
    with pytest.raises(InvalidParams, match="unknown argument: 'owner'") as caught:
        applied(edited, {"title": "x", "owner": "acme"})
    assert caught.value.code == -32602


def test_a_default_makes_the_argument_optional_and_is_said() -> None:
    edited = edit_arguments(ISSUE, limit=default(20, "How many"))
    assert schema_of(edited)["properties"]["limit"] == {
        "type": "integer",
        "minimum": 1,
        "maximum": 100,
        "description": "How many",
        "default": 20,
    }
    assert schema_of(edited)["required"] == ["owner", "title"]
    assert applied(edited, {}) == {"limit": 20}
    assert applied(edited, {"limit": 3}) == {"limit": 3}


def test_a_hidden_argument_is_never_sent() -> None:
    edited = edit_arguments(ISSUE, labels=HIDDEN)
    assert "labels" not in schema_of(edited)["properties"]
    assert schema_of(edited)["$defs"] == ISSUE["$defs"]
    assert applied(edited, {"title": "x"}) == {"title": "x"}
    with pytest.raises(InvalidParams):
        applied(edited, {"labels": []})


def test_a_description_alone_changes_no_call() -> None:
    edited = edit_arguments(ISSUE, title=ArgumentOverride(description="The headline"))
    assert schema_of(edited)["properties"]["title"] == {"type": "string", "description": "The headline"}
    assert edited.arguments is None


def test_arguments_are_taken_out_of_all_of_too() -> None:
    schema = {
        "allOf": [
            {"properties": {"a": {"type": "string"}}, "required": ["a"]},
            True,
            {"allOf": [{"required": ["a", "b"]}]},
        ],
        "properties": {"b": True},
    }
    edited = edit_arguments(schema, a=value("x"), b=default(None))
    assert schema_of(edited) == {
        "allOf": [{"properties": {}}, True, {"allOf": [{}]}],
        "properties": {"b": {"default": None}},
    }
    assert applied(edited, {}) == {"b": None, "a": "x"}


def test_the_bytes_of_what_the_client_sends_stay() -> None:
    made = edit_arguments(ISSUE, owner=value("acme"), limit=default(20)).arguments
    assert made is not None
    assert made.apply(Raw(b'{"n": 1.0e1, "title":"\\ud83d", "limit":7}')) == Raw(
        b'{"n":1.0e1,"title":"\\ud83d","limit":7,"owner":"acme"}'
    )
    hiding = edit_arguments(ISSUE, labels=HIDDEN).arguments
    assert hiding is not None
    same = Raw(b'{ "title":"x" }')
    assert hiding.apply(same) is same
    assert hiding.apply(None) is None


def test_no_arguments_and_null_get_the_values_too() -> None:
    made = edit_arguments(ISSUE, owner=value("acme")).arguments
    assert made is not None
    assert made.apply(None) == made.apply(Raw(b"null")) == Raw(b'{"owner":"acme"}')
    for other in (b"[]", b'"{}"', b"1"):
        with pytest.raises(InvalidParams, match="not an object"):
            made.apply(Raw(other))


@pytest.mark.parametrize(
    "spelling",
    [
        b'{"owner":"x"}',
        b'{"\\u006fwner":"x"}',
        b'{"\\u006F\\u0077ner":"x"}',
        b'{"title":"\\ud83d","owner":"x"}',
        b'{"title":"\\ud83d","o\\u0077ner":"x"}',
    ],
)
def test_every_spelling_of_a_name_is_that_name(spelling: bytes) -> None:
    made = edit_arguments(ISSUE, owner=value("acme")).arguments
    assert made is not None
    assert strict.flaw(spelling) is None
    with pytest.raises(InvalidParams, match="unknown argument"):
        made.apply(Raw(spelling))


@pytest.mark.parametrize("spelling", [b'{"a":1,"owner":"x","owner":"y"}', b'{"owner":"x","\\u006fwner":"y"}'])
def test_a_name_that_is_there_twice_never_gets_here(spelling: bytes) -> None:
    assert "duplicate member" in (strict.flaw(spelling) or "")


@pytest.mark.parametrize("name", ["Owner", "OWNER", "ｏwner", "owner\0x", "Limit"])
def test_names_that_some_readers_take_for_a_changed_one_are_refused(name: str) -> None:
    edited = edit_arguments(ISSUE, owner=value("acme"), limit=default(20))
    with pytest.raises(InvalidParams, match="some readers take"):
        applied(edited, {name: "x"})


def test_a_declared_argument_may_be_sent_whatever_it_resembles() -> None:
    edited = edit_arguments({"properties": {"owner": {}, "Owner": {}}}, owner=HIDDEN)
    assert applied(edited, {"Owner": 1}) == {"Owner": 1}


# What cannot be exact

CLOSED = {"properties": {"a": {"type": "integer"}, "b": {}}, "additionalProperties": False}
A: dict[str, Any] = {"properties": {"a": {}, "b": {}}}


@pytest.mark.parametrize(
    ("schema", "change", "reason"),
    [
        (CLOSED, {"c": value(1)}, "'c': the schema does not declare it"),
        (A, {"c": value(1)}, "does not declare it"),
        (A, {"c": HIDDEN}, "does not declare it"),
        ({**A, "additionalProperties": True}, {"c": default(1)}, "does not declare it"),
        ({**A, "additionalProperties": {"type": "string"}}, {"c": value(1)}, "does not accept the value"),
        (CLOSED, {"a": value("x")}, "does not accept the value"),
        (CLOSED, {"a": default(1.5)}, "does not accept the value"),
        ({**A, "required": ["a"]}, {"a": HIDDEN}, "required, so it cannot be hidden"),
        ({**A, "allOf": [{"allOf": [{"required": ["a"]}]}]}, {"a": HIDDEN}, "required, so it cannot be hidden"),
        ({**A, "dependentRequired": {"a": ["b"]}}, {"a": value(1)}, "named in dependentRequired"),
        ({**A, "dependentRequired": {"b": ["a"]}}, {"a": HIDDEN}, "named in dependentRequired"),
        ({**A, "dependencies": {"b": ["a"]}}, {"a": default(1)}, "named in dependencies"),
        ({**A, "dependentSchemas": {"b": {"required": ["a"]}}}, {"a": value(1)}, r"dependentSchemas .* \(required\)"),
        ({**A, "if": {"properties": {"a": {"const": 1}}}}, {"a": value(1)}, r"if of the schema .* \(properties\)"),
        ({**A, "then": {"allOf": [{"required": ["a"]}]}}, {"a": value(1)}, r"then .* \(required\)"),
        ({**A, "anyOf": [{"required": ["a"]}, {"required": ["b"]}]}, {"a": HIDDEN}, r"anyOf .* \(required\)"),
        ({**A, "oneOf": [{"not": {"required": ["a"]}}]}, {"a": value(1)}, r"oneOf .* \(required\)"),
        ({**A, "not": {"properties": {"b": {}}, "additionalProperties": False}}, {"a": value(1)}, "additionalProp"),
        ({**A, "anyOf": [{"minProperties": 2}]}, {"a": value(1)}, "minProperties"),
        ({**A, "minProperties": 1}, {"a": value(1)}, "minProperties, which depends on all"),
        ({**A, "maxProperties": 1}, {"a": default(1)}, "maxProperties, which depends on all"),
        ({**A, "enum": [{"a": 1}]}, {"a": value(1)}, "enum, which depends on all"),
        ({**A, "propertyNames": {"maxLength": 0}}, {"a": value(1)}, "does not accept its name"),
        ({**A, "patternProperties": {"^a": {"type": "string"}}}, {"a": value(1)}, "does not accept the value"),
        ({**A, "patternProperties": {"(?<x>a)": {}}}, {"a": value(1)}, "a pattern of the schema is not one"),
        ({"$ref": "#/$defs/x", "$defs": {"x": A}}, {"a": value(1)}, "does not declare it"),
        ({**A, "$ref": "#/$defs/x", "$defs": {"x": A}}, {"a": value(1)}, r"\$ref of the schema .* \(properties\)"),
        ({**A, "$ref": "https://x.test/s"}, {"a": value(1)}, "leads out of it"),
        ({**A, "$dynamicRef": "#x"}, {"a": value(1)}, "dynamicRef"),
        ({**A, "unevaluatedProperties": False, "additionalProperties": True}, {"c": default(1)}, "does not declare"),
        (
            {
                "unevaluatedProperties": False,
                "patternProperties": {"^x": {}},
                "allOf": [{"patternProperties": {"c": {}}}],
            },
            {"c": value(1)},
            "unevaluatedProperties",
        ),
        ({"properties": {"a": {"if": {}}}}, {"a": value(1)}, "the schema has if"),
        ({"properties": []}, {"a": value(1)}, "of a wrong type"),
        (True, {"a": value(1)}, "does not declare it"),
        (None, {"a": value(1)}, "no object"),
    ],
)
def test_why_an_override_is_not_applied(schema: object, change: dict[str, ArgumentOverride], reason: str) -> None:
    assert re.search(reason, why_not(schema, **change)), why_not(schema, **change)


@pytest.mark.parametrize(
    ("schema", "change"),
    [
        ({**A, "anyOf": [{"required": ["b"]}, {"properties": {"c": {}}}]}, {"a": value(1)}),
        ({**A, "not": {"additionalProperties": False}}, {"a": HIDDEN}),
        ({**A, "minProperties": 1}, {"a": HIDDEN}),
        ({**A, "additionalProperties": True}, {"c": value(1)}),
        ({**A, "additionalProperties": True}, {"c": HIDDEN}),
        ({**A, "patternProperties": {"^x-": {}}}, {"x-c": value(1)}),
        ({**A, "unevaluatedProperties": False}, {"a": value(1)}),
        ({"allOf": [A], "unevaluatedProperties": False}, {"a": value(1)}),
        ({**A, "$ref": "#/$defs/x", "$defs": {"x": {"type": "object", "$ref": "#/$defs/x"}}}, {"a": value(1)}),
        ({**A, "if": {"required": ["a"]}}, {"a": ArgumentOverride(description="x")}),
        ({"properties": {"a": False}}, {"a": ArgumentOverride(description="x")}),
    ],
)
def test_what_does_not_depend_on_a_changed_argument_may_stand_beside_it(
    schema: object, change: dict[str, ArgumentOverride]
) -> None:
    edit_arguments(schema, **change)


def test_a_schema_that_accepts_nothing_gets_no_description() -> None:
    edited = edit_arguments({"properties": {"a": False}}, a=ArgumentOverride(description="x"))
    assert schema_of(edited) == {"properties": {"a": False}}


def test_an_unreadable_schema_is_a_reason() -> None:
    for schema in (b'{"properties":{"a":{"description":"\\ud83d"}}}', b"[]"):
        with pytest.raises(Inapplicable):
            edit(Kind.TOOL, b'{"name":"t","inputSchema":%b}' % schema, Override(arguments={"a": HIDDEN}))
    with pytest.raises(Inapplicable):
        edit(Kind.TOOL, b'{"name":"t"}', Override(arguments={"a": HIDDEN}))


ODD: tuple[object, ...] = (
    *(None, True, False, 0, 1.5, "", "a", [], ["a"], [[]], [{}], [1]),
    *({}, {"a": []}, {"a": {"a": 1}}, {"a": 1}),
)
WORDS = (
    *("properties", "required", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$dynamicRef", "$id"),
    *("additionalProperties", "unevaluatedProperties", "patternProperties", "propertyNames", "dependentRequired"),
    *("dependentSchemas", "dependencies", "minProperties", "const", "enum", "type", "items", "pattern", "minLength"),
    *("minimum", "multipleOf", "uniqueItems", "minItems", "title", "default", "$defs", "$schema"),
)


@pytest.mark.few(8)
@pytest.mark.parametrize("word", WORDS)
def test_a_malformed_schema_is_a_reason_or_counts_for_nothing(word: str) -> None:
    changes = HIDDEN, value("x"), value({"a": [1]}), value([2]), value(3), default(None), default({}, "words")
    for odd in ODD:
        bad = {word: odd}
        for schema in (
            bad,
            {"properties": {"a": True}, **bad},
            {"properties": {"a": bad}},
            {"properties": {"a": {"anyOf": [bad, {}], "items": bad, "additionalProperties": bad}}},
            {**A, "allOf": [bad]},
            {**A, "anyOf": [bad]},
            {**A, "not": bad},
            {**A, "dependentSchemas": {"c": bad}},
        ):
            for change in changes:
                with suppress(Inapplicable):
                    edited = edit_arguments(schema, a=change)
                    assert edited.arguments is not None
                    with suppress(InvalidParams):
                        edited.arguments.apply(Raw(b'{"a":1}'))


# Prompts

PROMPT = {
    "name": "review",
    "arguments": [
        {"name": "code", "required": True},
        {"name": "style", "description": "How", "required": True},
        {"name": "depth"},
    ],
}


def edit_prompt(**arguments: ArgumentOverride) -> Edited:
    return edit(Kind.PROMPT, json.dumps(PROMPT).encode(), Override(OverrideKind.PROMPT, arguments=arguments))


def test_arguments_of_a_prompt_are_taken_out_and_described() -> None:
    edited = edit_prompt(code=ArgumentOverride(description="The program"), style=default("short"), depth=value("3"))
    assert json.loads(edited.definition)["arguments"] == [
        {"name": "code", "required": True, "description": "The program"},
        {"name": "style", "description": "How (default: short)"},
    ]
    assert applied(edited, {"code": "x"}) == {"code": "x", "style": "short", "depth": "3"}
    with pytest.raises(InvalidParams):
        applied(edited, {"code": "x", "depth": "4"})


def test_why_an_override_of_a_prompt_is_not_applied() -> None:
    with pytest.raises(Inapplicable, match="'code': it is required, so it cannot be hidden"):
        edit_prompt(code=HIDDEN)
    with pytest.raises(Inapplicable, match="'other': the prompt does not declare it"):
        edit_prompt(other=value("x"))
    with pytest.raises(Inapplicable, match="cannot be read"):
        edit(Kind.PROMPT, b'{"name":"x","arguments":[1]}', Override(arguments={"a": HIDDEN}))


# Random schemas and overrides

NAMES = ("a", "b", "c", "d", "long_name")


class Schemas:
    """Random schemas of arguments, and calls that often fit them."""

    def __init__(self, seed: int) -> None:
        self.pick = random.Random(seed)

    def chance(self, of_ten: int) -> bool:
        return self.pick.randrange(10) < of_ten

    def some(self, things: tuple[Any, ...]) -> list[Any]:
        return [each for each in things if self.chance(5)]

    def leaf(self, depth: int = 0) -> Any:
        choose = self.pick.randrange(12)
        if choose == 0:
            return True
        if choose == 1:
            return {"$ref": self.pick.choice(["#/$defs/word", "#/$defs/count"])}
        if choose == 2:
            return {"type": "integer", "minimum": self.pick.choice([-1, 0, 1])}
        if choose == 3:
            return {"type": "string", "minLength": self.pick.randrange(3), "pattern": self.pick.choice(["^x", "b", ""])}
        if choose == 4:
            return {"enum": self.pick.sample(list(VALUES), 4)}
        if choose == 5:
            return {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
        if choose == 6:
            return {"type": "array", "items": self.leaf(depth + 1), "maxItems": 2}
        if choose == 7 and depth < 2:
            return {"type": "object", "properties": {"a": self.leaf(depth + 1)}, "required": self.some(("a", "b"))}
        if choose == 8:
            return {"not": {"type": self.pick.choice(["string", "number", "null"])}}
        if choose == 9:
            return {"oneOf": [{"type": "string", "maxLength": 2}, {"type": "boolean"}, {"const": "x"}]}
        return {"type": self.pick.choice(["string", "number", "boolean", ["integer", "null"]])}

    def object(self, depth: int = 0) -> dict[str, Any]:
        schema: dict[str, Any] = {}
        if self.chance(9 if depth == 0 else 6):
            schema["properties"] = {name: self.leaf() for name in self.some(NAMES)}
        if self.chance(5):
            schema["required"] = self.some(NAMES)[:2]
        if self.chance(3 if depth == 0 else 1):
            schema["additionalProperties"] = self.pick.choice([False, True, {"type": "string"}, {}])
        odd = self.pick.randrange(20 if depth < 2 else 6)
        if odd == 0:
            schema["patternProperties"] = {self.pick.choice(["^a", "c", "^long_", "[b-d]"]): self.leaf()}
        elif odd == 1:
            schema["dependentRequired"] = {self.pick.choice(NAMES): self.some(NAMES)[:1]}
        elif odd == 2:
            schema[self.pick.choice(["minProperties", "maxProperties"])] = self.pick.randrange(4)
        elif odd == 3:
            schema["propertyNames"] = {"maxLength": self.pick.choice([1, 20])}
        elif odd == 4:
            schema["unevaluatedProperties"] = self.pick.choice([False, True, {"type": "string"}])
        elif odd == 5:
            schema["type"] = "object"
        elif odd == 6:
            schema["allOf"] = [self.object(depth + 1) for _ in range(self.few())]
        elif odd == 7:
            schema[self.pick.choice(["anyOf", "oneOf"])] = [self.object(depth + 2), self.object(depth + 2)]
        elif odd == 8:
            schema |= {word: self.object(depth + 2) for word in ("if", "then", "else") if self.chance(7)}
        elif odd == 9:
            schema["not"] = self.object(depth + 2)
        elif odd == 10:
            schema["dependentSchemas"] = {self.pick.choice(NAMES): self.object(depth + 2)}
        elif odd == 11:
            schema["$ref"] = "#/$defs/base"
        return schema

    def root(self) -> dict[str, Any]:
        definitions = {"word": {"type": "string"}, "count": {"type": "integer"}, "base": self.object(1)}
        if "$ref" in definitions["base"]:
            del definitions["base"]["$ref"]
        dialect = {"$schema": "http://json-schema.org/draft-07/schema#"} if self.chance(2) else {}
        return {**dialect, **self.object(), "$defs": definitions}

    def few(self) -> int:
        return 1 + self.pick.randrange(2)


def run(seeds: range) -> Count:
    """Judge random overrides of random schemas."""
    count = Count()
    for seed in seeds:
        schemas = Schemas(seed)
        count = count.plus(judge(schemas.root(), schemas.pick))
    return count


def test_calls_that_an_edited_schema_accepts_are_accepted_by_the_servers_own() -> None:
    count = run(range(300))
    assert min(count) >= 10, count


@pytest.mark.slow
def test_calls_that_two_thousand_edited_schemas_accept() -> None:
    count = run(range(2000))
    assert min(count) >= 100, count
    assert count.applied >= 800, count


# Calls, over every way in

OWN: dict[str, Any] = tool(
    "create_issue",
    title="Create",
    description="Creates an issue.",
    inputSchema={
        **ISSUE,
        "properties": {
            **ISSUE["properties"],
            "owner": {"type": "string", "x-mcp-header": "Owner"},
            "title": {"type": "string", "x-mcp-header": "Title"},
        },
    },
)
OVERRIDE = Override(
    name="new_issue",
    description="Open an issue at Acme.",
    arguments={"owner": value("acme"), "limit": default(20), "labels": HIDDEN},
)
SENT = {"title": "x", "limit": 20, "owner": "acme"}
FORM = {"mode": "form", "message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}


def github(override: Override = OVERRIDE, *, own: dict[str, Any] = OWN, **more: Any) -> ScriptedServer:
    answers = {"tools/call": echo, **more.pop("answers", {})}
    tools = [own, *more.pop("tools", ("other",))]
    return ScriptedServer("gh", tools=tools, answers=answers, overrides={own["name"]: override}, **more)


def sent(result: Any) -> Any:
    """The name and the arguments that the server has got."""
    return result["_meta"]["saw"], json.loads(result["content"][0]["text"])


@pytest.mark.parametrize(("endpoint", "prefix"), [(None, "gh__"), ("gh", "")])
async def test_clients_see_and_call_the_edited_tool(endpoint: str | None, prefix: str) -> None:
    async with open_client(github(), endpoint=endpoint) as (_, client, _):
        shown, other = (await client.request("tools/list"))["tools"]
        assert (shown["name"], other["name"]) == (f"{prefix}new_issue", f"{prefix}other")
        assert (shown["title"], shown["description"]) == ("Create", "Open an issue at Acme.")
        assert list(shown["inputSchema"]["properties"]) == ["title", "limit"]
        assert shown["inputSchema"]["required"] == ["title"]
        assert sent(await client.call(f"{prefix}new_issue", {"title": "x"})) == ("create_issue", SENT)
        assert sent(await client.call(f"{prefix}other", {"owner": "x"})) == ("other", {"owner": "x"})
        for name in ("owner", "labels"):
            with pytest.raises(Refusal, match=f"-32602 unknown argument: '{name}'"):
                await client.call(f"{prefix}new_issue", {"title": "x", name: "acme"})
        with pytest.raises(Refusal, match=f"-32602 Unknown tool: {prefix}create_issue"):
            await client.call(f"{prefix}create_issue", {"title": "x"})


async def test_rules_people_and_records_see_the_call_as_the_server_gets_it() -> None:
    of_acme = Rule("create_issue", when=(Condition("owner", (Check("eq", "acme"),)),))
    few = Rule("create_issue", when=(Condition("limit", (Check("range", (0, 50)),)),))
    for rules, limits in ((KindConsent(allow=(of_acme,)), ()), (KindConsent(ask=(few,)), (20,))):
        async with open_client(github(consent=Consent(tools=rules))) as (world, client, _):
            with world.auto_answering() as asked:
                assert sent(await client.call("gh__new_issue", {"title": "x"})) == ("create_issue", SENT)
            assert [json.loads(each.context.raw_arguments)["limit"] for each in asked] == list(limits)
            assert [each.access.subject.item.name for each in asked] == ["create_issue"] * len(limits)


async def never(params: dict[str, Any]) -> object:
    raise AssertionError("a call has reached the server")


async def test_an_edited_tool_that_is_denied_does_not_exist() -> None:
    """Whatever is sent: what an override takes out tells nothing about it."""
    async with open_client(github(consent=Consent(tools=KindConsent(deny=(Rule("create_*"),))))) as (world, client, _):
        assert await client.names() == ["gh__other"]
        world.servers["gh"].answers["tools/call"] = never
        for name in ("new_issue", "old_issue"):
            for arguments in ({}, {"owner": "x"}, {"Owner": "x"}):
                with pytest.raises(Refusal, match=f"-32602 Unknown tool: gh__{name}"):
                    await client.call(f"gh__{name}", arguments)


async def test_an_override_approves_nothing_and_changes_no_pin() -> None:
    async with open_client(github(trust=Trust.UNTRUSTED)) as (world, client, _):
        assert await client.names() == []
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("gh__new_issue", {"owner": "x"})
        (held,) = [each for each in awaited(world.gate.definitions.held()) if each.item.name == "create_issue"]
        assert json.loads(held.offered or b"")["description"] == "Creates an issue."
        world.approves()
        assert await client.names() == ["gh__new_issue", "gh__other"]
        with world.auto_answering():
            assert sent(await client.call("gh__new_issue", {"title": "x"})) == ("create_issue", SENT)


async def test_a_tool_whose_override_cannot_be_applied_is_left_out_with_the_reason() -> None:
    async with open_world(github(trust=Trust.TRUSTED, capabilities={"tools": {"listChanged": True}})) as world:
        client = await world.client()
        server = world.servers["gh"]
        server.lists["tools"][0] = {**OWN, "inputSchema": {**ISSUE, "required": ["labels"]}}
        await server.notifies("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        assert await client.names() == ["gh__other"]
        for name in ("gh__new_issue", "gh__create_issue"):
            with pytest.raises(Refusal, match="Unknown tool"):
                await client.call(name, {"title": "x"})
        reason = "the argument 'labels': it is required, so it cannot be hidden"
        assert [event.what for event in world.events if isinstance(event, EntryOmitted)] == [reason]
        server.lists["tools"][0] = OWN
        await server.notifies("notifications/tools/list_changed")
        await wait_all_tasks_blocked()
        assert await client.names() == ["gh__new_issue", "gh__other"]


@pytest.mark.parametrize("endpoint", [None, "gh"])
async def test_a_name_that_another_entry_has_is_a_collision(endpoint: str | None) -> None:
    async with open_client(github(replace(OVERRIDE, name="other")), endpoint=endpoint) as (_, client, _):
        assert await client.names() == []
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("other" if endpoint else "gh__other")


async def test_a_session_a_batch_and_a_request_alone_get_the_values() -> None:
    params = {"name": "gh__new_issue", "arguments": {"title": "x"}}
    body = {"jsonrpc": "2.0", "method": "tools/call", "params": params}
    wrong = {**body, "params": {**params, "arguments": {"labels": []}}}
    async with open_http_app(github()) as (_, connection):
        batching = connection.another()
        await batching.open(revision="2025-03-26")
        answer = await batching.get("POST", body=[{**body, "id": 1}, {**wrong, "id": 2}])
        found = {each["id"]: each for each in answer.messages()}
        assert sent(found[1]["result"]) == ("create_issue", SENT)
        assert found[2]["error"]["code"] == -32602
        message = await connection.get("POST", "/message", {**body, "id": 1})
        assert sent(message.messages()[0]["result"]) == ("create_issue", SENT)


async def test_headers_follow_the_edited_schema_towards_us_and_the_final_arguments_towards_the_server() -> None:
    async with open_http_app(github(revision=LATEST.name)) as (world, connection):
        params = {"name": "gh__new_issue", "arguments": {"title": "x"}}
        await connection.result("tools/call", params, headers={"mcp-param-title": "x"})
        headers = dict(world.servers["gh"].sent_headers)["tools/call"]
        assert {name: each for name, each in headers.items() if name.startswith("Mcp-")} == {
            "Mcp-Method": "tools/call",
            "Mcp-Name": "create_issue",
            "Mcp-Param-Title": "x",
            "Mcp-Param-Owner": "acme",
        }
        with pytest.raises(Refusal) as refused:
            await connection.result("tools/call", params)
        assert refused.value.code == HeaderMismatch.code
        sending = {**params, "arguments": {"title": "x", "owner": "y"}}
        with pytest.raises(Refusal, match="unknown argument"):
            await connection.result("tools/call", sending, headers={"mcp-param-title": "x", "mcp-param-owner": "y"})


async def test_each_round_of_a_call_has_the_values() -> None:
    got: list[Any] = []

    async def ask_first(params: dict[str, Any]) -> object:
        got.append(params["arguments"])
        if "inputResponses" in params:
            return await echo(params)
        asks = {"k": {"method": "elicitation/create", "params": FORM}}
        return {"resultType": "input_required", "inputRequests": asks, "requestState": "theirs"}

    can = {"capabilities": {"elicitation": {"form": {}}}, "headers": {"mcp-param-title": "x"}}
    params = {"name": "gh__new_issue", "arguments": {"title": "x"}}
    async with open_http_app(github(revision=LATEST.name, answers={"tools/call": ask_first})) as (_, connection):
        asked = await connection.result("tools/call", params, **can)
        answer = {"requestState": asked["requestState"], "inputResponses": {"k": {"action": "decline"}}}
        assert sent(await connection.result("tools/call", {**params, **answer}, **can)) == ("create_issue", SENT)
        assert got == [SENT, SENT]
        with pytest.raises(Refusal, match="unknown argument"):
            await connection.result("tools/call", {**params, "arguments": {"title": "x", "labels": []}}, **can)


@pytest.mark.virtual_time
async def test_a_task_has_the_values() -> None:
    server = handshake_server("optional", overrides={"x": Override(arguments={"a": value(1)})})
    server.lists["tools"][0]["inputSchema"] = {"properties": {"a": {}}}
    async with open_session(server) as (_, connection):
        call = {"name": "a__x", "task": {}}
        body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": call}
        answer = connection.send("POST", body=body)
        asked = await server.hears("tools/call")
        assert asked["arguments"] == {"a": 1}
        server.says(asked["id"], {"task": status()})
        await answer.complete.wait()
        assert "task" in answer.messages()[0]["result"]


async def test_arguments_of_prompts_and_their_completion() -> None:
    override = Override(OverrideKind.PROMPT, "look", arguments={"style": default("short"), "depth": value("3")})
    got: list[dict[str, Any]] = []

    async def take(params: dict[str, Any]) -> object:
        got.append({name: each for name, each in params.items() if name != "_meta"})
        return {"messages": [], "completion": {"values": []}}

    server = ScriptedServer(
        "a",
        prompts=["review"],
        capabilities={"prompts": {}, "completions": {}},
        answers={"prompts/get": take, "completion/complete": take},
        overrides={"review": override},
    )
    server.lists["prompts"][0] = PROMPT
    async with open_client(server) as (_, client, _):
        (shown,) = (await client.request("prompts/list"))["prompts"]
        assert (shown["name"], [each["name"] for each in shown["arguments"]]) == ("a__look", ["code", "style"])
        await client.request("prompts/get", {"name": "a__look", "arguments": {"code": "x"}})
        assert got.pop() == {"name": "review", "arguments": {"code": "x", "style": "short", "depth": "3"}}
        with pytest.raises(Refusal, match="-32602 unknown argument: 'depth'"):
            await client.request("prompts/get", {"name": "a__look", "arguments": {"depth": "4"}})
        completing = {"ref": {"type": "ref/prompt", "name": "a__look"}, "argument": {"name": "code", "value": "x"}}
        await client.request("completion/complete", completing)
        assert got.pop() == {
            "ref": {"type": "ref/prompt", "name": "review"},
            "argument": {"name": "code", "value": "x"},
            "context": {"arguments": {"depth": "3"}},
        }
        for wrong in ({"argument": {"name": "depth", "value": ""}}, {"context": {"arguments": {"depth": "1"}}}):
            with pytest.raises(Refusal, match="-32602 unknown argument: 'depth'"):
                await client.request("completion/complete", {**completing, **wrong})
        with pytest.raises(Refusal, match="-32602"):
            await client.request("completion/complete", {**completing, "argument": {}})
        assert got == []


# Views, and other overrides while the host runs


def views_of(world: World, overrides: Mapping[str, Mapping[str, Override]], view: ViewSpec | None = None) -> None:
    """Put other overrides of the servers into effect, and a view."""
    servers = {id: replace(server.spec, overrides=overrides.get(id, {})) for id, server in world.servers.items()}
    views = world.gate.policies.views
    views.replace(Config(servers=servers, views={} if view is None else {"v": view}))
    world.catalog.set_views(views, views.audiences())


async def test_a_view_has_its_overrides_on_top() -> None:
    async with open_world(github()) as world:
        on_top = Override(name="ask_acme", arguments={"limit": value(5), "labels": value([])})
        views_of(world, {"gh": {"create_issue": OVERRIDE}}, ViewSpec(overrides={"gh": {"create_issue": on_top}}))
        everybody, ours = await world.client(), await world.client(Endpoint(view="v"))
        own = await world.client(Endpoint("gh", "v"))
        assert await everybody.names() == ["gh__new_issue", "gh__other"]
        assert await ours.names() == ["gh__ask_acme", "gh__other"]
        assert await own.names() == ["ask_acme", "other"]
        (shown, _) = (await ours.request("tools/list"))["tools"]
        assert shown["description"] == "Open an issue at Acme."
        assert list(shown["inputSchema"]["properties"]) == ["title"]
        wanted = {"title": "x", "limit": 5, "labels": [], "owner": "acme"}
        assert sent(await ours.call("gh__ask_acme", {"title": "x"})) == ("create_issue", wanted)
        assert sent(await own.call("ask_acme", {"title": "x"})) == ("create_issue", wanted)
        assert sent(await everybody.call("gh__new_issue", {"title": "x"})) == ("create_issue", SENT)
        with pytest.raises(Refusal, match="unknown argument: 'limit'"):
            await ours.call("gh__ask_acme", {"title": "x", "limit": 1})
        for client, name in ((ours, "gh__new_issue"), (own, "new_issue"), (everybody, "gh__ask_acme")):
            with pytest.raises(Refusal, match="Unknown tool"):
                await client.call(name, {"title": "x"})


async def test_other_overrides_hold_at_once_and_the_list_is_not_read_again() -> None:
    async with open_client(github()) as (world, client, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.listen_changes)
            await wait_all_tasks_blocked()
            before = world.catalog.snapshot(Kind.TOOL, viewer_of(Era.SESSION)).find("gh__other", "gh")
            reads = world.servers["gh"].asked_in.count(("handshake", "tools/list"))
            views_of(world, {"gh": {"create_issue": Override(name="report")}})
            await wait_all_tasks_blocked()
            assert len(client.notifications_of("notifications/tools/list_changed")) == 1
            nursery.cancel_scope.cancel()
        assert await client.names() == ["gh__report", "gh__other"]
        assert world.servers["gh"].asked_in.count(("handshake", "tools/list")) == reads
        assert sent(await client.call("gh__report", {"owner": "me", "title": "x"}))[1] == {"owner": "me", "title": "x"}
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("gh__new_issue", {"title": "x"})
        after = world.catalog.snapshot(Kind.TOOL, viewer_of(Era.SESSION)).find("gh__other", "gh")
        assert after is before is not None
        views_of(world, {})
        assert await client.names() == ["gh__create_issue", "gh__other"]


async def test_an_override_that_a_view_cannot_apply_leaves_the_tool_out_of_it_alone() -> None:
    async with open_world(github()) as world:
        wrong = {"gh": {"create_issue": Override(arguments={"limit": value("many")})}}
        views_of(world, {"gh": {"create_issue": OVERRIDE}}, ViewSpec(overrides=wrong))
        assert await (await world.client()).names() == ["gh__new_issue", "gh__other"]
        client = await world.client(Endpoint(view="v"))
        assert await client.names() == ["gh__other"]
        with pytest.raises(Refusal, match="Unknown tool"):
            await client.call("gh__new_issue", {"title": "x"})
        reason = "the argument 'limit': the schema does not accept the value"
        assert [event.what for event in world.events if isinstance(event, EntryOmitted)] == [reason]


@pytest.mark.parametrize("before", [OVERRIDE, Override(title="T")])
@pytest.mark.parametrize(
    "after", [Override(arguments={"owner": value("else")}), Override(arguments={"limit": value("many")})]
)
async def test_a_call_that_was_confirmed_is_not_sent_if_an_override_would_change_it_now(
    before: Override, after: Override
) -> None:
    ask = Consent(tools=KindConsent(ask=(Rule("*"),)))
    async with open_world(github(before, consent=ask)) as world, trio.open_nursery() as nursery:
        world.servers["gh"].answers["tools/call"] = never
        client = await world.client()
        confirmations = world.gate.authorizer.confirmations
        with confirmations.attach(Channel.CONSOLE):
            arguments = {"title": "x"} if before is OVERRIDE else SENT
            name = before.name or "create_issue"
            call = later(nursery, client.call, f"gh__{name}", arguments)
            await wait_all_tasks_blocked()
            (pending,) = confirmations.list_all()
            views_of(world, {"gh": {"create_issue": after}})
            awaited(confirmations.answer(pending.id, ConfirmationAnswer.ONCE, Channel.CONSOLE))
            result = await call.comes()
        assert result["isError"] is True
        assert "has changed meanwhile; try again" in result["content"][0]["text"]


async def test_a_search_finds_and_calls_the_edited_tool() -> None:
    view = ViewSpec(search=Search.ON, overrides={"gh": {"create_issue": Override(name="ask_acme")}})
    async with open_world(github(), views={"v": view}) as world:
        client = await world.client(Endpoint(view="v"))

        async def use(tool: str, **arguments: Any) -> str:
            result = await client.call(tool, arguments)
            text: str = json.dumps(result["content"])
            return text

        found = await use("search_tools", query="open an issue at acme")
        assert "gh__ask_acme" in found
        assert "gh__create_issue" not in found
        described = await use("describe_tools", names=["gh__ask_acme"])
        assert "title" in described
        assert "owner" not in described
        assert "gh__create_issue" in await use("describe_tools", names=["gh__create_issue"])  # as one that is unknown
        with world.auto_answering():
            called = await client.call("call_tool", {"name": "gh__ask_acme", "arguments": {"title": "x"}})
            assert sent(called) == ("create_issue", SENT)
            with pytest.raises(Refusal, match="unknown argument: 'owner'"):
                await client.call("call_tool", {"name": "gh__ask_acme", "arguments": {"title": "x", "owner": "y"}})
            for name in ("gh__create_issue", "gh__new_issue"):
                with pytest.raises(Refusal, match="Unknown tool"):
                    await client.call("call_tool", {"name": name, "arguments": {"title": "x"}})
