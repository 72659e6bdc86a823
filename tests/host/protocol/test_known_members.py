"""Members that readers take for one another, in what servers define and request."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any
from unicodedata import normalize

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from host.jsonrpc.messages import INVALID_PARAMS, Notification
from host.jsonrpc.raw import encode
from host.protocol.known_members import (
    ELICITATION,
    INPUT_REQUESTS,
    SAMPLING,
    URLS,
    Shape,
    twin_in,
    twin_in_notification,
    why_ambiguous,
)
from host.protocol.methods import ELICITATION_COMPLETE, LOG_MESSAGE, RESOURCE_UPDATED, Kind
from host.protocol.server_requests import ELICIT, LIST_ROOTS, SAMPLE, ServerRequestRejected, server_request_of

PAGE: dict[str, Any] = {"mode": "url", "message": "m", "url": "https://x.example/", "elicitationId": "e"}
FORM: dict[str, Any] = {"message": "m", "requestedSchema": {"type": "object", "properties": {"a": {"type": "string"}}}}
TEXT: dict[str, Any] = {"type": "text", "text": "t"}
SAMPLED: dict[str, Any] = {"messages": [{"role": "user", "content": TEXT}], "maxTokens": 9}
RELATED = "io.modelcontextprotocol/related-task"
TOOL: dict[str, Any] = {
    "name": "x",
    "description": "d",
    "annotations": {"readOnlyHint": True},
    "inputSchema": {
        "type": "object",
        "properties": {
            "path": {"type": "object", "properties": {"at": {"enum": ["a"]}}},
            "all": {"items": {"anyOf": [{}]}},
        },
        "$defs": {"one": {"type": "string"}},
        "if": {"properties": {"at": {}}},
        "dependencies": {"path": {"required": ["all"]}},
    },
    "execution": {"taskSupport": "optional"},
    "_meta": {"ui": {"resourceUri": "ui://x"}},
}


def at(place: str, base: dict[str, Any], name: str) -> dict[str, Any]:
    """A copy of the object with one more member, in the object at this place: a path of names and numbers."""
    copy: dict[str, Any] = json.loads(json.dumps(base))
    inner: Any = copy
    for step in place.split():
        inner = inner[int(step) if step.isdecimal() else step]
    inner[name] = 1
    return copy


@pytest.mark.parametrize(
    ("method", "params"),
    [
        *((ELICIT, at("", PAGE, name)) for name in ("URL", "url\0", "ｕｒｌ", "Message", "MODE", "elicitationid")),
        *((ELICIT, at("", FORM, name)) for name in ("URL", "RequestedSchema", "requeſtedSchema", "Task", "_Meta")),
        (ELICIT, at("requestedSchema", FORM, "Properties")),
        (ELICIT, at("requestedSchema properties", FORM, "A")),
        (ELICIT, at("requestedSchema properties a", FORM, "Title")),
        (ELICIT, at("requestedSchema properties a", FORM, "minlength")),
        *((SAMPLE, at("", SAMPLED, name)) for name in ("Messages", "Tools", "MaxTokens", "systemprompt")),
        (SAMPLE, at("messages 0", SAMPLED, "Content")),
        (SAMPLE, at("messages 0 content", SAMPLED, "Text")),
        (SAMPLE, {**SAMPLED, "messages": [{"role": "user", "content": [TEXT, at("", TEXT, "TYPE")]}]}),
        (SAMPLE, {**SAMPLED, "tools": [at("inputSchema properties", TOOL, "PATH")]}),
        (LIST_ROOTS, {"_Meta": {}}),
        (LIST_ROOTS, {"_meta": {"ProgressToken": 1}}),
        (LIST_ROOTS, {"_meta": {RELATED: {"TaskId": "other"}}}),
    ],
)
def test_a_request_with_a_twin_is_refused(method: str, params: dict[str, Any]) -> None:
    with pytest.raises(ServerRequestRejected, match="some readers take the member") as refused:
        server_request_of(method, encode(params), identified=False)
    assert refused.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (ELICIT, b'{"message":"m","url":"https://a.example/","url":"https://b.example/","mode":"url"}'),
        (ELICIT, b'{"message":"m","requestedSchema":{"properties":{"a":{"title":"A","\\u0074itle":"Password"}}}}'),
        (SAMPLE, b'{"messages":[{"role":"user","role":"assistant","content":{}}],"maxTokens":9}'),
    ],
)
def test_a_request_with_equal_members_is_refused(method: str, params: bytes) -> None:
    with pytest.raises(ServerRequestRejected) as refused:
        server_request_of(method, Raw(params), identified=False)
    assert refused.value.code == INVALID_PARAMS


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (ELICIT, {**PAGE, "uri": "x", "urls": [], "Vendor": 1, "messаge": "a Cyrillic letter is another one"}),
        (ELICIT, at("requestedSchema properties a", FORM, "x-Vendor")),
        (SAMPLE, {**SAMPLED, "metadata": {"a": 1, "A": 2}}),
        (SAMPLE, {**SAMPLED, "messages": [{"role": "user", "content": {**TEXT, "input": {"Name": 1, "name": 2}}}]}),
        (LIST_ROOTS, {"_meta": {"progressToken": 1, "a/b": {"A": 1, "a": 2}}}),
        (LIST_ROOTS, None),
    ],
)
def test_other_members_pass(method: str, params: dict[str, Any] | None) -> None:
    found = server_request_of(method, None if params is None else encode(params), identified=False)
    assert found is not None
    assert {name: json.loads(bytes(each)) for name, each in found[1].items()} == (params or {})


def test_a_request_that_is_nested_too_deep_is_refused() -> None:
    deep = b'{"_meta":' + b'{"a":' * 100_000 + b"1" + b"}" * 100_001
    with pytest.raises(ServerRequestRejected):
        server_request_of(LIST_ROOTS, Raw(deep))


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("", "Name"),
        ("", "DESCRIPTION"),
        ("", "inputschema"),
        ("", "Annotations"),
        ("annotations", "readonlyHint"),
        ("execution", "tasksupport"),
        ("inputSchema", "Properties"),
        ("inputSchema", "Required"),
        ("inputSchema properties", "Path"),
        ("inputSchema properties", "path\0x"),
        ("inputSchema properties path", "Description"),
        ("inputSchema properties path", "X-MCP-Header"),
        ("inputSchema properties path properties", "AT"),
        ("inputSchema properties path properties at", "Enum"),
        ("inputSchema properties all items anyOf 0", "Type"),
        ("inputSchema $defs", "ONE"),
        ("inputSchema if properties", "AT"),
        ("inputSchema dependencies path", "Required"),
        ("inputSchema", "Then"),
        ("_meta", "UI"),
        ("_meta ui", "resourceURI"),
    ],
)
def test_a_tool_with_a_twin_is_named(place: str, name: str) -> None:
    why = why_ambiguous(bytes(encode(at(place, TOOL, name))), Kind.TOOL)
    assert why == f"some readers take the member {name!a} for another one"


@pytest.mark.parametrize(
    ("kind", "definition"),
    [
        (Kind.PROMPT, {"name": "p", "arguments": [{"name": "a"}, {"name": "b", "Required": True}]}),
        (Kind.PROMPT, {"name": "p", "Arguments": []}),
        (Kind.RESOURCE, {"uri": "file:///a", "URI": "file:///b", "name": "a"}),
        (Kind.TEMPLATE, {"uriTemplate": "file:///{a}", "uritemplate": "file:///{b}", "name": "a"}),
        (Kind.RESOURCE, {"uri": "file:///a", "name": "a", "annotations": {"Priority": 1}}),
    ],
)
def test_other_entries_with_a_twin_are_named(kind: Kind, definition: dict[str, Any]) -> None:
    assert why_ambiguous(bytes(encode(definition)), kind) is not None


@pytest.mark.parametrize(
    ("place", "name"),
    [
        ("", "arguments"),
        ("", "Vendor"),
        ("annotations", "Vendor"),
        ("inputSchema", "additional"),
        ("inputSchema properties", "PATHS"),
        ("inputSchema properties path", "minlength"),
        ("inputSchema properties path", "readonly"),
        ("inputSchema properties path properties at", "At"),
    ],
)
def test_a_tool_with_another_member_has_one_meaning(place: str, name: str) -> None:
    assert why_ambiguous(bytes(encode(at(place, TOOL, name))), Kind.TOOL) is None


def test_data_in_a_definition_is_not_looked_at() -> None:
    data = {"Name": 1, "name": 2}
    tool = {**TOOL, "inputSchema": {"default": data, "enum": [data], "const": data, "examples": [data]}, "x": data}
    assert why_ambiguous(bytes(encode(tool)), Kind.TOOL) is None


@pytest.mark.parametrize(
    ("shape", "value"),
    [
        (INPUT_REQUESTS, {"a": {}, "A": {}}),
        (INPUT_REQUESTS, {"a": {"method": "roots/list", "Method": "elicitation/create"}}),
        (URLS, {"elicitations": [], "Elicitations": []}),
        (URLS, {"elicitations": [PAGE, at("", PAGE, "URL")]}),
    ],
)
def test_objects_with_requests_have_no_twins(shape: Shape, value: dict[str, Any]) -> None:
    assert twin_in(encode(value), shape) is not None


@pytest.mark.parametrize(
    ("method", "params", "twin"),
    [
        (LOG_MESSAGE, {"level": "info", "logger": "a", "Logger": "b", "data": 1}, "Logger"),
        (LOG_MESSAGE, {"level": "info", "data": {"Logger": 1, "logger": 2}, "source": 1}, None),
        (RESOURCE_UPDATED, {"uri": "file:///a", "URI": "file:///b"}, "URI"),
        (ELICITATION_COMPLETE, {"elicitationId": "a", "elicitationID": "b"}, "elicitationID"),
        ("notifications/other", {"a": 1, "A": 2}, None),
        (LOG_MESSAGE, [1], None),
    ],
)
def test_notifications_that_are_passed_on_have_no_twins(method: str, params: object, twin: str | None) -> None:
    assert twin_in_notification(Notification(method, encode(params))) == twin


NAMES = st.sampled_from(
    [*"aA", "ａ", "a\0b", "url", "URL", "ſ", "s", "S", "message", "Meſſage", "mode", "ß", "ss", "x"]
)
KNOWN = {"mode", "message", "url", "elicitationId", "requestedSchema", "task", "_meta"}


def lax(name: str) -> str:
    """The name as Go, .NET and C read it, all at once; written apart from the source."""
    return normalize("NFKC", name.split("\0")[0]).casefold()


@given(st.lists(st.tuples(NAMES, st.integers()), max_size=6))
def test_an_elicitation_is_refused_if_and_only_if_a_name_has_two_meanings(pairs: list[tuple[str, int]]) -> None:
    text = "{" + ",".join(f"{json.dumps(name)}:{each}" for name, each in pairs) + "}"
    ambiguous = any(count > 1 for count in Counter(lax(name) for name, _ in pairs).values()) or any(
        name not in KNOWN and lax(name) in {lax(each) for each in KNOWN} for name, _ in pairs
    )
    assert (twin_in(Raw(text.encode()), ELICITATION) is not None) == ambiguous


def test_a_long_sampling_request_is_read_whole() -> None:
    image = {"type": "image", "data": "A" * 1_000_000, "mimeType": "image/png", "Data": "B"}
    assert twin_in(encode({**SAMPLED, "messages": [{"role": "user", "content": image}]}), SAMPLING) == "Data"
