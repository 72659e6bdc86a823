"""`input_required` results and retries: each side reads what the other writes, and refuses anything else."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import mcp_types
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw
from msgspec.structs import replace
from pydantic import TypeAdapter

from host.errors import InvalidParams
from host.jsonrpc.raw import encode_object, members
from host.jsonrpc.twins import fold_name
from host.protocol.mrtr import (
    MAX_KEYS,
    RETRIABLE_METHODS,
    InputRequests,
    Retry,
    elicitation_cancelled,
    input_required,
    read_input_required,
    retry_of,
    with_retry,
)

FORM = b'{"mode":"form","message":"Who?" ,"requestedSchema":{"type":"object","properties":{}}}'


def test_three_methods_may_ask_for_more() -> None:
    """(rule 78)"""
    assert {"tools/call", "prompts/get", "resources/read"} == RETRIABLE_METHODS


# What servers ask for


def test_the_questions_of_a_server_are_read() -> None:
    """The params of each input request keep their bytes (rule 79)."""
    result = (
        b'{"resultType":"input_required","inputRequests":{"a":{"method":"elicitation/create","params":%b},'
        b'"\\u00e9":{"method":"roots/list"}},"requestState":"s\\u00e9=="}' % FORM
    )
    found = read_input_required(Raw(result))
    assert found.state == "sé=="
    assert found.has_requests
    assert list(found.requests) == ["a", "é"]
    method, asked = found.requests["a"]
    assert (method, bytes(asked or b"")) == ("elicitation/create", FORM)
    assert found.requests["é"] == ("roots/list", None)


@pytest.mark.parametrize(
    ("result", "expected"),
    [
        (b'{"requestState":"s"}', InputRequests({}, "s", has_requests=False)),
        (b'{"requestState":""}', InputRequests({}, "", has_requests=False)),
        (b'{"inputRequests":{}}', InputRequests({}, None, has_requests=True)),
        (b'{"inputRequests":{},"requestState":"s","later":1}', InputRequests({}, "s", has_requests=True)),
    ],
)
def test_a_state_alone_and_no_questions_at_all_are_not_the_same(result: bytes, expected: InputRequests) -> None:
    """(rule 79)"""
    found = read_input_required(Raw(result))
    assert replace(found, unknown={}) == expected
    assert list(found.unknown) == ["later"] * (b"later" in result)


def test_a_result_that_asks_is_not_passed_on_as_a_complete_one() -> None:
    """A client that looks for content first would show what was not made fit for it."""
    found = read_input_required(
        Raw(b'{"requestState":"s","content":[],"isError":true,"Contents":[],"messages":[],"structuredContent":{}}')
    )
    assert found == InputRequests({}, "s", has_requests=False)


@pytest.mark.parametrize(
    ("result", "why"),
    [
        (b'{"resultType":"input_required"}', "has neither inputRequests nor requestState"),
        (b"{}", "has neither inputRequests nor requestState"),
        (b'{"inputRequests":null}', "not an object of requests"),
        (b'{"inputRequests":[]}', "not an object of requests"),
        (b'{"inputRequests":{"a":null}}', "not an object of requests"),
        (b'{"inputRequests":{"a":{}}}', "not an object of requests"),
        (b'{"inputRequests":{"a":{"method":5}}}', "not an object of requests"),
        (b'{"requestState":null}', "not a string"),
        (b'{"inputRequests":{},"requestState":5}', "not a string"),
        (b'{"requestState":"\\ud83d"}', "not a string"),
        (b"[]", "expected"),
        (b"5", "expected"),
    ],
)
def test_a_result_that_asks_for_nothing_that_can_be_read_is_refused(result: bytes, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        read_input_required(Raw(result))


def test_questions_have_a_bound() -> None:
    def asking(count: int) -> Raw:
        return input_required({str(key): ("roots/list", {}) for key in range(count)}, None)

    assert len(read_input_required(asking(MAX_KEYS)).requests) == MAX_KEYS
    with pytest.raises(ValueError, match="more than 32"):
        read_input_required(asking(MAX_KEYS + 1))


# What we ask for


def test_what_our_client_is_asked_for() -> None:
    """(rule 78)"""
    result = input_required({"a": ("elicitation/create", members(FORM)), "b": ("roots/list", {})}, "s")
    assert json.loads(bytes(result)) == {
        "resultType": "input_required",
        "inputRequests": {
            "a": {"method": "elicitation/create", "params": json.loads(FORM)},
            "b": {"method": "roots/list"},
        },
        "requestState": "s",
    }
    taken = mcp_types.InputRequiredResult.model_validate_json(bytes(result), by_name=False)
    assert taken.request_state == "s"
    assert taken.input_requests is not None
    assert set(taken.input_requests) == {"a", "b"}


@pytest.mark.parametrize(
    ("requests", "state", "expected"),
    [
        ({}, "s", b'{"resultType":"input_required","requestState":"s"}'),
        (
            {"k": ("roots/list", {"_meta": Raw(b'{"a": 1.0}')})},
            None,
            b'{"resultType":"input_required",'
            b'"inputRequests":{"k":{"method":"roots/list","params":{"_meta":{"a": 1.0}}}}}',
        ),
    ],
)
def test_what_is_not_there_is_left_out(
    requests: Mapping[str, tuple[str, Mapping[str, Raw]]], state: str | None, expected: bytes
) -> None:
    assert bytes(input_required(requests, state)) == expected


PARAMS = st.dictionaries(st.text(max_size=4), st.integers().map(lambda number: Raw(str(number).encode())), max_size=3)


REQUESTS = st.lists(
    st.tuples(st.text(max_size=4), st.tuples(st.text(max_size=4), PARAMS)),
    max_size=4,
    unique_by=lambda request: fold_name(request[0]),
).map(dict)


@given(REQUESTS, st.text(max_size=6))
def test_what_we_ask_for_is_what_is_read(requests: dict[str, tuple[str, dict[str, Raw]]], state: str) -> None:
    """(rule 79)"""
    found = read_input_required(input_required(requests, state))
    assert found.state == state
    assert found.has_requests == bool(requests)
    assert list(found.requests) == list(requests)
    for key, (method, params) in requests.items():
        assert found.requests[key][0] == method
        assert members(found.requests[key][1] or Raw(b"{}")) == params


# Retries


def test_what_a_retry_brings() -> None:
    """Answers keep their bytes (rule 79)."""
    found = retry_of(members(b'{"name":"t","inputResponses":{"a":{"action": "accept"}},"requestState":"s\\u00e9"}'))
    assert found == Retry({"a": Raw(b'{"action": "accept"}')}, "sé")


@pytest.mark.parametrize(
    ("params", "expected"),
    [
        (b"{}", Retry(None, None)),
        (b'{"inputResponses":{}}', Retry({}, None)),
        (b'{"requestState":""}', Retry(None, "")),
    ],
)
def test_what_a_retry_does_not_bring_is_none(params: bytes, expected: Retry) -> None:
    assert retry_of(members(params)) == expected


@pytest.mark.parametrize(
    ("params", "why"),
    [
        (b'{"inputResponses":null}', "'inputResponses' is not an object"),
        (b'{"inputResponses":5}', "'inputResponses' is not an object"),
        (b'{"inputResponses":[{}]}', "'inputResponses' is not an object"),
        (b'{"inputResponses":{"a":{},"b":null}}', "has a response that is not an object"),
        (b'{"inputResponses":{"a":"accept"}}', "has a response that is not an object"),
        (b'{"requestState":null}', "'requestState' is not a string"),
        (b'{"requestState":{"a":1}}', "'requestState' is not a string"),
        (b'{"inputResponses":{},"requestState":"\\ud83d"}', "'requestState' is not a string"),
    ],
)
def test_a_retry_of_the_wrong_types_is_refused(params: bytes, why: str) -> None:
    with pytest.raises(InvalidParams, match=why):
        retry_of(members(params))


@pytest.mark.parametrize(
    ("answers", "state", "expected"),
    [
        (None, None, b'{"name":"t","arguments":{ "n":1.00 }}'),
        ({}, None, b'{"name":"t","arguments":{ "n":1.00 },"inputResponses":{}}'),
        (None, "", b'{"name":"t","arguments":{ "n":1.00 },"requestState":""}'),
        (
            {"a": Raw(b'{"action": "cancel"}')},
            "s",
            b'{"name":"t","arguments":{ "n":1.00 },"inputResponses":{"a":{"action": "cancel"}},"requestState":"s"}',
        ),
    ],
)
@pytest.mark.parametrize("before", [b"", b',"inputResponses":{"z":{}},"requestState":"old"'])
def test_a_retry_has_exactly_what_this_round_brings(
    answers: Mapping[str, Raw] | None, state: str | None, expected: bytes, before: bytes
) -> None:
    """Members of an earlier round are removed, all others keep their bytes (rule 79)."""
    params = members(b'{"name":"t","arguments":{ "n":1.00 }%b}' % before)
    kept = dict(params)
    made = with_retry(params, answers, state)
    assert bytes(encode_object(made)) == expected
    assert params == kept
    assert retry_of(made) == Retry(answers, state)


def test_a_user_who_went_away_has_cancelled() -> None:
    answer = bytes(elicitation_cancelled())
    assert answer == b'{"action":"cancel"}'
    adapter: TypeAdapter[Any] = TypeAdapter(mcp_types.ElicitResult)
    assert adapter.validate_json(answer).action == "cancel"
