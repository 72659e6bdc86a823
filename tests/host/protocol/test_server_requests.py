"""Server requests: which are recognised, which clients support them, and which of their bytes change."""

from __future__ import annotations

import json
from typing import Any

import mcp.types
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from pydantic import TypeAdapter

from host.jsonrpc.messages import INVALID_PARAMS, METHOD_NOT_FOUND, write
from host.jsonrpc.raw import encode, encode_object
from host.jsonrpc.twins import fold_name
from host.protocol.abilities import NO_ABILITIES, Abilities, abilities_of
from host.protocol.methods import ELICITATION_COMPLETE
from host.protocol.server_requests import (
    ELICIT,
    LIST_ROOTS,
    METHODS,
    SAMPLE,
    ServerRequest,
    ServerRequestRejected,
    adapt,
    adapt_url_elicitations,
    capability_of,
    completed_elicitation_id,
    elicitation_complete,
    elicitation_id,
    elicitation_params_of,
    server_request_of,
    stateless_form,
    urls_required,
    with_elicitation_id,
    without_elicitation_id,
)
from host.protocol.versions import LEGACY
from tests.kit.examples import examples

EVERYTHING = Raw(b'{"roots":{},"sampling":{"tools":{}},"elicitation":{"form":{},"url":{}}}')
LATEST, JUNE, MARCH, FIRST = (
    abilities_of(LEGACY[name], EVERYTHING) for name in ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")
)
WITHOUT_TOOLS = replace(LATEST, sampling_tools=False)
ELICITATION: TypeAdapter[Any] = TypeAdapter(mcp.types.ElicitRequestParams)


LATEST_REVISION = LEGACY["2025-11-25"]


def asked(method: str, params: bytes | None, abilities: Abilities, asker: str = "GitHub") -> bytes:
    """The params that a client gets."""
    found = server_request_of(method, None if params is None else Raw(params))
    assert found is not None
    question, opened = found
    return bytes(encode_object(adapt(question, opened, abilities, asker)))


def refusal(method: str, params: bytes | None, abilities: Abilities = LATEST) -> tuple[int, str]:
    with pytest.raises(ServerRequestRejected) as caught:
        asked(method, params, abilities)
    return caught.value.code, caught.value.why


FORM = b'{"message":"Who?","requestedSchema":{"type":"object","properties":{}}}'
PAGE = b'{"mode":"url","message":"Sign in","url":"https://x.example/","elicitationId":"e1"}'
SAMPLING = b'{"messages":[{"role":"user","content":{"type":"text","text":"Hi"}}],"maxTokens":9}'


# Recognising


@pytest.mark.parametrize(
    ("method", "params", "question"),
    [
        (SAMPLE, SAMPLING, ServerRequest.SAMPLING),
        (SAMPLE, b'{"messages":[],"maxTokens":1e2}', ServerRequest.SAMPLING),
        (ELICIT, FORM, ServerRequest.FORM),
        (ELICIT, FORM[:-1] + b',"mode":"f\\u006frm"}', ServerRequest.FORM),
        (ELICIT, PAGE, ServerRequest.URL),
        (LIST_ROOTS, None, ServerRequest.ROOTS),
        (LIST_ROOTS, b"{}", ServerRequest.ROOTS),
    ],
)
def test_a_question_is_recognised(method: str, params: bytes | None, question: ServerRequest) -> None:
    found = server_request_of(method, None if params is None else Raw(params))
    assert found is not None
    assert found[0] is question
    assert question in METHODS[method]


@pytest.mark.parametrize("method", ["ping", "tools/call", "", "roots/List", "notifications/roots/list_changed"])
def test_any_other_method_is_no_question(method: str) -> None:
    assert server_request_of(method, Raw(b"[")) is None


@pytest.mark.parametrize(
    ("method", "params"),
    [
        (SAMPLE, None),
        (SAMPLE, b"[]"),
        (SAMPLE, b'{"maxTokens":9}'),
        (SAMPLE, b'{"messages":{},"maxTokens":9}'),
        (SAMPLE, b'{"messages":[]}'),
        (SAMPLE, b'{"messages":[],"maxTokens":"9"}'),
        (ELICIT, None),
        (ELICIT, b'"form"'),
        (ELICIT, b'{"requestedSchema":{}}'),
        (ELICIT, b'{"message":1,"requestedSchema":{}}'),
        (ELICIT, b'{"message":"Who?"}'),
        (ELICIT, b'{"message":"Who?","requestedSchema":[]}'),
        (ELICIT, b'{"mode":"voice","message":"Who?","requestedSchema":{}}'),
        (ELICIT, b'{"mode":null,"message":"Who?","requestedSchema":{}}'),
        (ELICIT, b'{"mode":"url","message":"Sign in","elicitationId":"e1"}'),
        (ELICIT, b'{"mode":"url","message":"Sign in","url":"https://x.example/"}'),
        (ELICIT, b'{"mode":"url","message":"Sign in","url":"https://x.example/","elicitationId":1}'),
        (ELICIT, b'{"mode":"url","message":"Sign in","url":"https://x.example/","elicitationId":"\\ud83d"}'),
        (LIST_ROOTS, b"null"),
    ],
)
def test_params_that_the_method_cannot_use_are_the_servers_mistake(method: str, params: bytes | None) -> None:
    with pytest.raises(ServerRequestRejected) as caught:
        server_request_of(method, None if params is None else Raw(params))
    assert caught.value.code == INVALID_PARAMS


# Whom it can be put to


@pytest.mark.parametrize(
    ("method", "params", "missing"),
    [
        (SAMPLE, SAMPLING, {"sampling": False}),
        (LIST_ROOTS, None, {"roots": False}),
        (ELICIT, FORM, {"form": False, "url": False}),
        (ELICIT, PAGE, {"form": False, "url": False}),
    ],
)
def test_what_a_client_does_not_do_at_all_is_no_method(
    method: str, params: bytes | None, missing: dict[str, bool]
) -> None:
    """(rule 74)"""
    assert refusal(method, params, replace(LATEST, **missing))[0] == METHOD_NOT_FOUND
    assert refusal(method, params, NO_ABILITIES)[0] == METHOD_NOT_FOUND


def test_a_mode_that_a_client_does_not_do_is_a_wrong_parameter() -> None:
    """(rule 74)"""
    assert refusal(ELICIT, FORM, replace(LATEST, form=False)) == (
        INVALID_PARAMS,
        "the client does not support elicitation in mode form",
    )
    assert refusal(ELICIT, PAGE, replace(LATEST, url=False))[0] == INVALID_PARAMS
    assert refusal(ELICIT, PAGE, JUNE)[0] == INVALID_PARAMS


@pytest.mark.parametrize("abilities", [MARCH, FIRST])
def test_no_elicitation_before_there_was_any(abilities: Abilities) -> None:
    """(rule 74)"""
    assert refusal(ELICIT, FORM, abilities)[0] == METHOD_NOT_FOUND


def lacking(method: str, params: bytes | None, abilities: Abilities) -> dict[str, object] | None:
    with pytest.raises(ServerRequestRejected) as caught:
        asked(method, params, abilities)
    return caught.value.missing_capability


@pytest.mark.parametrize(
    ("method", "params", "lacks"),
    [
        (SAMPLE, SAMPLING, {"sampling": {}}),
        (SAMPLE, SAMPLING[:-1] + b',"tools":[]}', {"sampling": {"tools": {}}}),
        (LIST_ROOTS, None, {"roots": {}}),
        (ELICIT, FORM, {"elicitation": {"form": {}}}),
        (ELICIT, PAGE, {"elicitation": {"url": {}}}),
    ],
)
def test_a_refusal_says_what_the_client_would_have_to_declare(
    method: str, params: bytes | None, lacks: dict[str, object]
) -> None:
    """A client that declares this capability gets the request (rule 74)."""
    assert lacking(method, params, NO_ABILITIES) == lacks
    found = server_request_of(method, None if params is None else Raw(params))
    assert found is not None
    assert capability_of(*found) == lacks
    asked(method, params, abilities_of(LATEST_REVISION, Raw(json.dumps(lacks).encode())))


def test_a_mode_or_tools_that_the_client_lacks_are_named() -> None:
    """(rule 74)"""
    assert lacking(ELICIT, FORM, replace(LATEST, form=False)) == {"elicitation": {"form": {}}}
    assert lacking(ELICIT, PAGE, replace(LATEST, url=False)) == {"elicitation": {"url": {}}}
    assert lacking(SAMPLE, SAMPLING[:-1] + b',"toolChoice":{}}', WITHOUT_TOOLS) == {"sampling": {"tools": {}}}
    assert lacking(SAMPLE, sampling(TOOL_USE), WITHOUT_TOOLS) == {"sampling": {"tools": {}}}


def test_where_declaring_more_would_not_help_nothing_is_named() -> None:
    assert lacking(SAMPLE, sampling(AUDIO), FIRST) is None
    assert lacking(ELICIT, fields(field={"type": "array"}), JUNE) is None
    with pytest.raises(ServerRequestRejected) as caught:
        server_request_of(ELICIT, Raw(b"[]"))
    assert caught.value.missing_capability is None


# Sampling


def sampling(content: bytes, more: bytes = b"") -> bytes:
    return b'{"messages":[{"role":"user","content":%b}],"maxTokens":9%b}' % (content, more)


TEXT = b'{"type":"text","text":"Hi"}'
AUDIO = b'{"type":"audio","data":"AA==","mimeType":"audio/wav"}'
TOOL_USE = b'{"type":"tool_use","id":"1","name":"t","input":{}}'
TOOL_RESULT = b'{"type":"tool_result","toolUseId":"1","content":[]}'


@pytest.mark.parametrize(
    ("params", "abilities"),
    [
        (sampling(TEXT, b',"tools":[{"name":"t","inputSchema":{"type":"object"}}]'), WITHOUT_TOOLS),
        (sampling(TEXT, b',"toolChoice":{"mode":"none"}'), WITHOUT_TOOLS),
        (sampling(b"[%b]" % TEXT), JUNE),
        (sampling(b"[%b]" % TOOL_USE), WITHOUT_TOOLS),
        (sampling(TOOL_USE), WITHOUT_TOOLS),
        (sampling(TOOL_RESULT), MARCH),
        (sampling(TOOL_USE.replace(b"tool_use", b"tool\\u005fuse")), JUNE),
        (sampling(AUDIO), FIRST),
        (sampling(b"[%b,%b]" % (TEXT, AUDIO)), replace(LATEST, audio=False)),
    ],
)
def test_sampling_in_words_that_the_client_lacks_is_refused(params: bytes, abilities: Abilities) -> None:
    """(rule 74)"""
    assert refusal(SAMPLE, params, abilities)[0] == INVALID_PARAMS


@pytest.mark.parametrize(
    ("params", "abilities"),
    [
        (sampling(TEXT, b',"systemPrompt": "s" ,"temperature": 1.0'), FIRST),
        (sampling(AUDIO), MARCH),
        (sampling(b"[ %b, %b]" % (TOOL_USE, TOOL_RESULT), b',"tools":[ ],"toolChoice":{ }'), LATEST),
        (sampling(b'{"type":"image","data":"AA==","mimeType":"image/png"}'), FIRST),
        (sampling(b"1", b',"includeContext":"none"'), FIRST),
        (b'{"messages":[1,null,{"role":"user"},{"content":{"type":5}}],"maxTokens":9}', FIRST),
    ],
)
def test_sampling_that_the_client_can_read_keeps_its_bytes(params: bytes, abilities: Abilities) -> None:
    """Unusual messages too: the client decides whether they are valid (rule 77)."""
    found = asked(SAMPLE, params, abilities)
    assert json.loads(found) == json.loads(params)
    assert found.replace(b" ", b"") == params.replace(b" ", b"")
    messages = params[params.index(b'"messages":') : params.index(b',"maxTokens"')]
    assert messages in found


@pytest.mark.parametrize("context", [b'"thisServer"', b'"allServers"', b'"later"', b"null", b'"\\ud83d"'])
def test_no_server_gets_the_context_of_the_others(context: bytes) -> None:
    """(rule 74)"""
    found = asked(SAMPLE, sampling(TEXT, b',"includeContext":%b,"temperature":0.50' % context), LATEST)
    assert found == sampling(TEXT, b',"includeContext":"none","temperature":0.50')


@pytest.mark.parametrize(
    ("method", "params"), [(SAMPLE, SAMPLING), (ELICIT, FORM), (ELICIT, PAGE), (LIST_ROOTS, b'{"_meta":{}}')]
)
def test_no_task_is_asked_for(method: str, params: bytes) -> None:
    """(rule 10)"""
    with_task = params[:-1] + b',"task":{"ttl":1}}'
    assert asked(method, with_task, LATEST) == asked(method, params, LATEST)


def test_a_question_for_roots_is_as_it_came() -> None:
    assert asked(LIST_ROOTS, None, FIRST) == b"{}"
    assert asked(LIST_ROOTS, b'{"_meta":{"a": 1.0}}', FIRST) == b'{"_meta":{"a": 1.0}}'


def test_what_is_nested_too_deep_is_refused_and_nothing_breaks() -> None:
    deep = Raw(b"[" * 100_000 + b"]" * 100_000)
    params = {"messages": deep, "maxTokens": Raw(b"1")}
    with pytest.raises(ServerRequestRejected) as caught:
        adapt(ServerRequest.SAMPLING, params, FIRST, "x")
    assert caught.value.code == INVALID_PARAMS


# Elicitation


@pytest.mark.parametrize(
    ("message", "asker", "expected"),
    [
        (b'"Who?"', "GitHub", b'"[GitHub] Who?"'),
        (b'""', "GitHub", b'"[GitHub] "'),
        (b'"\\ud83d \\u00e9\\/"', "GitHub", b'"[GitHub] \\ud83d \\u00e9\\/"'),
        (b'"Who?"', 'a "b" \\', b'"[a \\"b\\" \\\\] Who?"'),
        ('"¿Quién?"'.encode(), "é", '"[é] ¿Quién?"'.encode()),
        (b' "Who?" ', "GitHub", b'"[GitHub] Who?"'),
    ],
)
def test_the_user_sees_who_is_asking(message: bytes, asker: str, expected: bytes) -> None:
    """The message itself keeps its bytes, also with a lone surrogate (rule 73)."""
    form = b'{"message":%b,"requestedSchema": { "x":1.0 } }'
    found = asked(ELICIT, form % message, LATEST, asker)
    assert found.replace(b" }", b"}") == b'{"message":%b,"requestedSchema":{ "x":1.0}}' % expected
    page = b'{"mode":"url","message":%b,"url":"https:\\/\\/x","elicitationId":"1"}'
    assert asked(ELICIT, page % message, LATEST, asker).rstrip() == page % expected


def fields(**properties: object) -> bytes:
    return json.dumps(
        {"mode": "form", "message": "?", "requestedSchema": {"type": "object", "properties": properties}}
    ).encode()


def plain(field: object) -> object:
    """The field as a client of 2025-06-18 gets it; the SDK's model must accept the whole request."""
    found = asked(ELICIT, fields(field=field), JUNE)
    ELICITATION.validate_json(found)
    return json.loads(found)["requestedSchema"]["properties"]["field"]


@pytest.mark.parametrize(
    ("field", "expected"),
    [
        (
            {
                "type": "string",
                "title": "T",
                "oneOf": [{"const": "a", "title": "A"}, {"title": "B", "const": "b", "x": 1}],
                "default": "a",
            },
            {"type": "string", "title": "T", "enum": ["a", "b"], "enumNames": ["A", "B"]},
        ),
        ({"type": "string", "oneOf": []}, {"type": "string", "enum": [], "enumNames": []}),
        (
            {"enum": ["old"], "oneOf": [{"const": "a", "title": "A"}], "type": "string", "enumNames": ["Old"]},
            {"enum": ["a"], "enumNames": ["A"], "type": "string"},
        ),
        ({"type": "string", "enum": ["a"], "default": "a"}, {"type": "string", "enum": ["a"]}),
        ({"type": "string", "default": "a", "format": "email"}, {"type": "string", "format": "email"}),
        ({"type": "number", "default": 1.5, "maximum": 2}, {"type": "number", "maximum": 2}),
        ({"type": "integer", "default": 1}, {"type": "integer"}),
    ],
)
def test_a_field_is_put_in_the_words_of_an_earlier_revision(field: object, expected: object) -> None:
    """(rule 75)"""
    found = plain(field)
    assert found == expected
    assert json.dumps(found) == json.dumps(expected), "the order of members"


@pytest.mark.parametrize(
    "field",
    [
        {"type": "boolean", "default": True},
        {"type": "string", "enum": ["a"], "enumNames": ["A"]},
        {"type": "string", "minLength": 1, "x-new": {"default": 1}},
        {"type": "number", "oneOf": [{"const": 1}]},
        {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None},
        {"type": ["string", "null"], "default": "a"},
        {"type": "object", "properties": {"a": {"type": "array"}}},
        {},
    ],
)
def test_a_field_that_needs_no_other_words_is_left_alone(field: object) -> None:
    assert plain(field) == field


@pytest.mark.parametrize(
    "field",
    [
        {"type": "array", "items": {"type": "string", "enum": ["a"]}},
        {"type": "array", "items": {"anyOf": [{"const": "a", "title": "A"}]}},
        {"type": "string", "oneOf": [{"const": "a"}]},
        {"type": "string", "oneOf": [{"title": "A"}]},
        {"type": "string", "oneOf": [{"const": 1, "title": "A"}]},
        {"type": "string", "oneOf": ["a"]},
        {"type": "string", "oneOf": {}},
    ],
)
def test_a_field_that_has_no_other_words_is_refused(field: object) -> None:
    """(rule 75)"""
    assert refusal(ELICIT, fields(field=field), JUNE)[0] == INVALID_PARAMS
    asked(ELICIT, fields(field=field), LATEST)


def test_the_mode_is_named_to_those_who_know_modes() -> None:
    assert json.loads(asked(ELICIT, fields(), LATEST))["mode"] == "form"
    assert "mode" not in json.loads(asked(ELICIT, fields(), JUNE))


def test_beside_a_changed_field_every_byte_stays() -> None:
    """(rule 75)"""
    kept = b'{"type": "string","pattern":"\\u0061\\/" , "n": 1.00}'
    form = (
        b'{"message":"?","requestedSchema":{"$schema":"x","properties":{"a":%b,"b":{"type":"integer","default":1},'
        b'"\\ud83d":%b},"required":[ "a" ],"type":"object"},"later":[ 1e400 ]}'
    )
    expected = (
        b'{"message":"[GitHub] ?","requestedSchema":{"$schema":"x","properties":{"a":%b,"b":{"type":"integer"},'
        b'"\\ud83d":%b},"required":[ "a" ],"type":"object"},"later":[ 1e400 ]}'
    )
    assert asked(ELICIT, form % (kept, kept), JUNE) == expected % (kept, kept)


@pytest.mark.parametrize(
    "schema", [b"{ }", b'{"properties":[ ]}', b'{"properties": {"a":1, "b":null}}', b'{"properties":{ "a":{"type":1}}}']
)
def test_a_schema_of_another_shape_is_the_clients_to_judge(schema: bytes) -> None:
    assert asked(ELICIT, b'{"message":"?","requestedSchema":%b}' % schema, JUNE).endswith(schema + b"}")


NAMES = st.text(max_size=4)
FIELDS = st.one_of(
    st.fixed_dictionaries({"type": st.just("boolean")}, optional={"default": st.booleans(), "title": NAMES}),
    st.fixed_dictionaries({"type": st.just("integer")}, optional={"default": st.integers(), "minimum": st.integers()}),
    st.fixed_dictionaries({"type": st.just("string")}, optional={"default": NAMES, "enum": st.lists(NAMES)}),
    st.fixed_dictionaries(
        {
            "type": st.just("string"),
            "oneOf": st.lists(st.fixed_dictionaries({"const": NAMES, "title": NAMES}), max_size=3),
        },
        optional={"default": NAMES},
    ),
)
FIELDS_BY_NAME = st.dictionaries(NAMES, FIELDS, max_size=4).filter(
    lambda found: len(set(map(fold_name, found))) == len(found)
)


def plain_by_hand(field: dict[str, Any]) -> dict[str, Any]:
    kept = {name: each for name, each in field.items() if name != "default" or field["type"] == "boolean"}
    if "oneOf" in kept:
        choices = kept.pop("oneOf")
        kept |= {"enum": [each["const"] for each in choices], "enumNames": [each["title"] for each in choices]}
    return kept


@settings(max_examples=examples(100))
@given(FIELDS_BY_NAME, st.booleans())
def test_translating_a_form_agrees_with_a_whole_parser(properties: dict[str, Any], escaped: bool) -> None:
    """(rule 75)"""
    schema = {"type": "object", "properties": properties}
    form = json.dumps({"message": "?", "requestedSchema": schema}, ensure_ascii=escaped).encode()
    expected = {name: plain_by_hand(field) for name, field in properties.items()}
    assert json.loads(asked(ELICIT, form, JUNE))["requestedSchema"]["properties"] == expected


@settings(max_examples=examples(100))
@given(FIELDS_BY_NAME, st.integers(0, 3))
def test_a_client_that_knows_the_form_gets_its_very_bytes(properties: dict[str, Any], indent: int) -> None:
    schema = json.dumps({"type": "object", "properties": properties}, indent=indent).encode()
    found = asked(ELICIT, b'{"message":"?","requestedSchema":%b}' % schema, LATEST)
    assert found == b'{"message":"[GitHub] ?","requestedSchema":%b}' % schema


# Pages


def test_a_page_is_known_by_another_id() -> None:
    """(rule 76)"""
    found = server_request_of(ELICIT, Raw(PAGE))
    assert found is not None
    params = found[1]
    assert elicitation_id(params) == "e1"
    renamed = bytes(encode_object(with_elicitation_id(params, "c9")))
    assert renamed == PAGE.replace(b'"e1"', b'"c9"')
    assert elicitation_id(params) == "e1"
    taken = ELICITATION.validate_json(renamed)
    assert isinstance(taken, mcp.types.ElicitRequestURLParams)
    assert taken.elicitation_id == "c9"


@pytest.mark.parametrize(
    ("params", "id"),
    [
        (b'{"elicitationId":"e1"}', "e1"),
        (b'{"elicitationId":1}', None),
        (b'{"elicitationId":"\\ud83d"}', None),
        (b"{}", None),
        (b"[]", None),
        (None, None),
    ],
)
def test_a_notice_names_the_page_that_is_done_or_nothing(params: bytes | None, id: str | None) -> None:
    """(rule 76)"""
    assert completed_elicitation_id(None if params is None else Raw(params)) == id


def test_a_notice_is_made_with_the_clients_id() -> None:
    """(rule 76)"""
    notice = elicitation_complete("c9")
    found = mcp.types.ElicitCompleteNotification.model_validate_json(write(notice), by_name=False)
    assert (notice.method, found.params.elicitation_id) == (ELICITATION_COMPLETE, "c9")
    more = elicitation_complete("c9", Raw(b'{"a": 1.0,"elicitationId":"e1","_meta":{ }}'))
    assert bytes(more.params or b"") == b'{"a":1.0,"elicitationId":"c9","_meta":{ }}'


def test_a_page_needs_no_id_where_there_are_none() -> None:
    """(rule 76)"""
    bare = PAGE.replace(b',"elicitationId":"e1"', b"")
    with pytest.raises(ServerRequestRejected, match="'elicitationId'"):
        server_request_of(ELICIT, Raw(bare))
    for page in (bare, PAGE, PAGE.replace(b'"e1"', b"5")):
        found = server_request_of(ELICIT, Raw(page), identified=False)
        assert found is not None
        assert found[0] is ServerRequest.URL
        assert bytes(encode_object(without_elicitation_id(found[1]))) == bare
        assert stateless_form(ELICIT, found[1]) == (ELICIT, without_elicitation_id(found[1]))
    params = {"elicitationId": encode("x")}
    assert stateless_form(SAMPLE, params) == (SAMPLE, params)
    with pytest.raises(ServerRequestRejected, match="http or https"):
        server_request_of(ELICIT, Raw(bare.replace(b"https:", b"file:")), identified=False)


REQUIRED = (
    b'{"elicitations":[%b,{"mode":"url","elicitationId":"e2","url":"http://u.2","message":"m","n": 1.00}],"more":[ ]}'
)


def test_every_page_of_a_refusal_gets_its_id() -> None:
    """Its message begins with the name of the server (rule 73, rule 76)."""
    renamed = adapt_url_elicitations(Raw(REQUIRED % PAGE), lambda id: f"c-{id}", "gh")
    assert renamed is not None
    expected = REQUIRED % PAGE.replace(b'"e1"', b'"c-e1"').replace(b'"Sign in"', b'"[gh] Sign in"')
    expected = expected.replace(b'"e2"', b'"c-e2"').replace(b'"n": ', b'"n":').replace(b'"m"', b'"[gh] m"')
    assert bytes(renamed) == expected
    taken = mcp.types.ElicitationRequiredErrorData.model_validate_json(bytes(renamed), by_name=False)
    assert [each.elicitation_id for each in taken.elicitations] == ["c-e1", "c-e2"]


NO_PAGES = [
    None,
    b"[]",
    b"{}",
    b'{"elicitations":{}}',
    b'{"elicitations":[1]}',
    b'{"elicitations":[{"url":1}]}',
    b'{"elicitations":[{"elicitationId":1}]}',
]


@pytest.mark.parametrize("data", NO_PAGES)
def test_a_refusal_of_another_shape_is_not_renamed(data: bytes | None) -> None:
    assert adapt_url_elicitations(None if data is None else Raw(data), str.upper, "gh") is None
    assert urls_required(None if data is None else Raw(data)) == []


@pytest.mark.parametrize("url", [b"javascript:alert(1)", b"file:///etc/passwd", b"", b"HTTPX://a", b"//a"])
def test_a_person_is_sent_to_pages_only(url: bytes) -> None:
    """Other schemes run programs, or read files."""
    page = PAGE.replace(b"https://x.example/", url)
    with pytest.raises(ServerRequestRejected, match="http or https"):
        server_request_of(ELICIT, Raw(page))
    assert adapt_url_elicitations(Raw(REQUIRED % page), str.upper, "gh") is None


def test_what_goes_wrong_in_naming_is_not_hidden() -> None:
    names: dict[str, str] = {}
    with pytest.raises(KeyError):
        adapt_url_elicitations(Raw(REQUIRED % PAGE), names.__getitem__, "gh")


def test_the_pages_of_a_refusal_in_prose() -> None:
    assert urls_required(Raw(REQUIRED % PAGE)) == [("Sign in", "https://x.example/"), ("m", "http://u.2")]
    assert urls_required(Raw(b'{"elicitations":[1,{"url":"u:1","message":"\\ud83d"},{"url":""}]}')) == [("", "u:1")]


def test_the_pages_of_a_refusal_as_questions() -> None:
    """The ids are left out, because 2026-07-28 has none; everything else is kept (rule 76)."""
    pages = elicitation_params_of(Raw(REQUIRED % PAGE.replace(b'"mode":"url",', b"")))
    assert pages is not None
    assert [bytes(encode_object(page)) for page in pages] == [
        b'{"mode":"url","message":"Sign in","url":"https://x.example/"}',
        b'{"mode":"url","url":"http://u.2","message":"m","n":1.00}',
    ]
    for page in pages:
        found = server_request_of(ELICIT, encode_object(page), identified=False)
        assert found is not None
        assert found[0] is ServerRequest.URL
        assert found[1] == page


@pytest.mark.parametrize(
    "data",
    [
        *NO_PAGES,
        b'{"elicitations":[]}',
        REQUIRED % FORM,
        REQUIRED % PAGE.replace(b'"url"', b'"form"'),
        REQUIRED % PAGE.replace(b"https:", b"javascript:"),
        REQUIRED % PAGE.replace(b'"Sign in"', b"5"),
    ],
)
def test_a_refusal_of_another_shape_asks_nothing(data: bytes | None) -> None:
    assert elicitation_params_of(None if data is None else Raw(data)) is None
