"""Messages against a schema of a few definitions, in the form of the official ones."""

from __future__ import annotations

from typing import Any

import pytest

from tests.conformance.schemas import OLDEST, Receiver, Schema, Sent, hold, with_fractions, without_null

REVISION = "2025-03-26"
MESSAGE = {"jsonrpc": {"const": "2.0"}}
ID = {"id": {"type": ["string", "integer"]}}


def envelope(required: str, **members: Any) -> dict[str, Any]:
    return {"type": "object", "properties": {**MESSAGE, **members}, "required": ["jsonrpc", *required.split()]}


def request(method: str, **members: Any) -> dict[str, Any]:
    """The definition of a request with one string for each of these members of its params."""
    strings = {name: {"type": "string"} for name in members}
    params = {"type": "object", "properties": strings, "required": list(members)}
    return {"type": "object", "properties": {"method": {"const": method}, "params": params}}


DOCUMENT: dict[str, Any] = {
    "$schema": "http://json-schema.org/draft-07/schema#",
    "definitions": {
        "JSONRPCRequest": envelope("id method", **ID, params={"type": "object"}),
        "JSONRPCNotification": envelope("method", params={"type": "object"}),
        "JSONRPCResponse": envelope("id result", **ID, result={"type": "object"}),
        "JSONRPCError": envelope(
            "id error", **ID, error={"type": "object", "required": ["code", "message"], "properties": {}}
        ),
        "Result": {"type": "object"},
        "ReadResourceRequest": request("resources/read", uri=""),
        "ReadResourceResult": {
            "type": "object",
            "properties": {"contents": {"items": {"type": "string", "format": "uri"}}},
            "required": ["contents"],
        },
        "PingRequest": request("ping"),
        "ClientRequest": {
            "anyOf": [{"$ref": "#/definitions/ReadResourceRequest"}, {"$ref": "#/definitions/PingRequest"}]
        },
        "ServerRequest": {"$ref": "#/definitions/PingRequest"},
    },
}
SCHEMA = Schema(REVISION, DOCUMENT)
READ = {"jsonrpc": "2.0", "id": 1, "method": "resources/read", "params": {"uri": "a:b"}}
PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
RESULT = {"jsonrpc": "2.0", "id": 1, "result": {"contents": ["a:b"]}}
ERROR = {"jsonrpc": "2.0", "id": 1, "error": {"code": 1, "message": "no"}}


def sent(message: Any, to: Receiver = "client", answers: str | None = None) -> Sent:
    return Sent("here", REVISION, to, message, answers)


SOUND = [
    sent(READ, "server"),
    sent(PING, "server"),
    sent(PING),
    sent(RESULT, answers="resources/read"),
    sent({**RESULT, "result": {}}, answers="ping"),
    sent(ERROR),
    sent([RESULT, ERROR], answers="resources/read"),
    sent({"jsonrpc": "2.0", "method": "notifications/tasks", "params": {}}),
]


@pytest.mark.parametrize("message", SOUND)
def test_what_the_schema_has_passes(message: Sent) -> None:
    assert SCHEMA.errors(message) == []


@pytest.mark.parametrize(
    ("message", "said"),
    [
        (sent(READ), "resources/read is nothing that a client gets"),
        (sent({**READ, "params": {}}, "server"), "'uri' is a required property"),
        (sent({**PING, "jsonrpc": "1.0"}), "'2.0' was expected"),
        (sent({**PING, "method": "ping/other"}), "ping/other is nothing that a client gets"),
        (sent({**RESULT, "result": {}}, answers="resources/read"), "'contents' is a required property"),
        (sent({**RESULT, "result": {"contents": ["a b"]}}, answers="resources/read"), "'a b' is not a 'uri'"),
        (sent({**ERROR, "error": {"code": 1}}), "'message' is a required property"),
        (sent([ERROR, {**ERROR, "id": None}]), "None is not of type"),
        (sent([]), "an array"),
        (sent({"jsonrpc": "2.0", "id": 1}), "no request, notification or response"),
        (sent("words"), "no request, notification or response"),
    ],
)
def test_what_the_schema_does_not_have_is_found(message: Sent, said: str) -> None:
    assert said in " ".join(SCHEMA.errors(message))


def test_an_array_belongs_to_one_revision() -> None:
    assert Schema(OLDEST, DOCUMENT).errors(sent([ERROR])) == [f"an array in {OLDEST}"]


def test_a_run_spoils_a_message_of_each_definition() -> None:
    held = hold(SOUND, {REVISION: SCHEMA})
    assert held.is_sound, held.report()
    assert held.spoiled > len(SOUND)


def test_a_run_with_a_violation_has_failed() -> None:
    held = hold([*SOUND, sent({**ERROR, "error": {"code": 1}})], {REVISION: SCHEMA})
    assert not held.is_sound
    assert "1 violations" in held.report()


def test_a_run_whose_spoiled_messages_pass_has_failed() -> None:
    """As they would if nothing were held against the definition of what is inside."""
    definitions = {**DOCUMENT["definitions"], "JSONRPCResponse": {}, "ReadResourceResult": {"required": []}}
    held = hold(SOUND, {REVISION: Schema(REVISION, {**DOCUMENT, "definitions": definitions})})
    assert held.violations == []
    assert len(held.overlooked) == 1
    assert not held.is_sound


def test_a_run_without_messages_has_failed() -> None:
    assert not hold([], {REVISION: SCHEMA}).is_sound


def test_a_member_that_may_be_absent_may_not_be_null() -> None:
    member = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None}
    assert without_null({"properties": {"name": member}}) == {"properties": {"name": {"anyOf": [{"type": "string"}]}}}


def test_a_form_may_have_fractions() -> None:
    other = {"type": "integer"}
    kind = {"enum": ["integer", "number"], "type": "string"}
    definitions = {
        "ElicitResult": {"anyOf": [{"type": ["integer", "string"]}]},
        "NumberSchema": {"properties": {"type": kind, "default": {"type": "integer"}}},
        "Other": other,
    }
    assert with_fractions({"definitions": definitions})["definitions"] == {
        "ElicitResult": {"anyOf": [{"type": ["string", "number"]}]},
        "NumberSchema": {"properties": {"type": kind, "default": {"type": ["number"]}}},
        "Other": other,
    }
