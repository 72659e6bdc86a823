"""The names that the shim puts before requests and takes from responses."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.conformance.shim import Shim

SHIM = Shim("http://127.0.0.1:1/mcp", "a")


def asked(method: str, params: object) -> Any:
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": params}
    return json.loads(SHIM.asked(json.dumps(message).encode()))["params"]


def answered(**message: object) -> Any:
    return json.loads(SHIM.answered(json.dumps(message).encode()))


@pytest.mark.parametrize(
    ("method", "params", "expected"),
    [
        ("tools/call", {"name": "x", "arguments": {"name": "y"}}, {"name": "a__x", "arguments": {"name": "y"}}),
        ("resources/read", {"uri": "m://1"}, {"uri": "a+m://1"}),
        ("completion/complete", {"ref": {"name": "p"}}, {"ref": {"name": "a__p"}}),
        (
            "subscriptions/listen",
            {"notifications": {"resourceSubscriptions": ["m://1"]}},
            {"notifications": {"resourceSubscriptions": ["a+m://1"]}},
        ),
        ("initialize", {"name": "x"}, {"name": "x"}),
    ],
)
def test_requests_get_the_prefix_of_the_server(method: str, params: object, expected: object) -> None:
    assert asked(method, params) == expected


def test_lists_lose_the_prefix_and_what_is_of_others() -> None:
    tools = [{"name": "a__x"}, {"name": "b__x"}]
    assert answered(result={"tools": tools}) == {"result": {"tools": [{"name": "x"}]}}
    resources = [{"uri": "a+m://1", "name": "one"}, {"uri": "b+m://1", "name": "one"}]
    assert answered(result={"resources": resources}) == {"result": {"resources": [{"uri": "m://1", "name": "one"}]}}


def test_names_in_results_errors_and_notifications_lose_it_too() -> None:
    assert answered(error={"data": {"uri": "a+m://1"}}) == {"error": {"data": {"uri": "m://1"}}}
    assert answered(method="n", params={"uri": "a+m://1"}) == {"method": "n", "params": {"uri": "m://1"}}
    block = {"type": "text", "text": "a+m://1 stays"}
    assert answered(result={"content": [block]}) == {"result": {"content": [block]}}


def test_what_is_no_message_stays() -> None:
    assert SHIM.asked(b"{n") == b"{n"
    assert SHIM.answered(b"") == b""


def test_with_a_search_tools_are_called_through_call_tool() -> None:
    shim = Shim("http://127.0.0.1:1/mcp", "a", searching=True)
    params = {"name": "x", "arguments": {"n": 1}, "_meta": {"progressToken": 1}}
    message = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}
    inner = {"name": "a__x", "arguments": {"n": 1}}
    sent = json.loads(shim.asked(json.dumps(message).encode()))["params"]
    assert sent == {"name": "call_tool", "arguments": inner, "_meta": {"progressToken": 1}}
    prompt = {"jsonrpc": "2.0", "id": 1, "method": "prompts/get", "params": {"name": "x"}}
    assert json.loads(shim.asked(json.dumps(prompt).encode()))["params"] == {"name": "a__x"}
