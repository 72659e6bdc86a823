from __future__ import annotations

import json
from typing import Any

import pytest

from host.opening import Opening


def request(method: str, params: object = None, id: object = 1) -> dict[str, Any]:
    return {"jsonrpc": "2.0", "id": id, "method": method} | ({} if params is None else {"params": params})


def opened(**capabilities: Any) -> Opening:
    opening = Opening()
    result = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "serverInfo": {}}
    opening.on_answered(request("initialize", {"protocolVersion": "2025-11-25"}), json.dumps(result).encode())
    opening.on_notification({"jsonrpc": "2.0", "method": "notifications/initialized"})
    return opening


def test_a_client_is_opened_again_with_its_own_words() -> None:
    opening = opened(tools={})
    assert opening.initialize == request("initialize", {"protocolVersion": "2025-11-25"})
    level = request("logging/setLevel", {"level": "info"})
    watched, dropped = (request("resources/subscribe", {"uri": uri}) for uri in ("a:/b", "a:/c"))
    listed = request("tools/list")
    for each in (level, watched, dropped, request("resources/unsubscribe", {"uri": "a:/c"}), listed):
        opening.on_answered(each, b"{}")
    opening.on_answered(request("tools/call", {"name": "x"}), b"{}")
    opening.on_answered(request("tools/list", {"cursor": "x"}), b"{}")
    initialized = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    assert opening.replay() == [initialized, level, watched, listed]
    assert [each["params"] for each in opening.updates()] == [{"uri": "a:/b"}]


def test_it_is_told_of_a_list_that_is_another_one_now() -> None:
    opening = opened(tools={})
    opening.on_answered(request("resources/templates/list"), b'{"resourceTemplates":[]}')
    assert opening.changes("resources/templates/list", b'{"resourceTemplates":[]}') == []
    assert opening.changes("resources/templates/list", b"{}") == [
        {"jsonrpc": "2.0", "method": "notifications/resources/list_changed"}
    ]
    assert opening.changes("resources/templates/list", b"{}") == []


def test_a_stateless_client_is_told_at_each_subscription() -> None:
    opening = Opening()
    opening.on_answered(request("tools/list"), b"{}")
    opening.on_listening("7", request("subscriptions/listen", {}, 7))
    assert opening.changes("tools/list", b"[]") == [
        {
            "jsonrpc": "2.0",
            "method": "notifications/tools/list_changed",
            "params": {"_meta": {"io.modelcontextprotocol/subscriptionId": 7}},
        }
    ]
    assert [each["method"] for each in opening.replay()] == ["subscriptions/listen", "tools/list"]
    watching = {"notifications": {"resourceSubscriptions": ["a:/b"]}}
    opening.on_listening("8", request("subscriptions/listen", watching, 8))
    opening.on_listening("9", request("subscriptions/listen", {"notifications": {"resourceSubscriptions": 1}}, 9))
    assert [each["params"] for each in opening.updates()] == [
        {"_meta": {"io.modelcontextprotocol/subscriptionId": 8}, "uri": "a:/b"}
    ]
    for id in ("8", "9"):
        opening.on_listening(id, None)
    opening.on_listening("7", None)
    assert opening.changes("tools/list", b"{}") == []


@pytest.mark.parametrize(
    ("now", "less"),
    [
        ({"tools": {"listChanged": True}, "logging": {}}, False),
        ({"tools": {"listChanged": True}, "logging": {}, "prompts": {}}, False),
        ({"tools": {"listChanged": True}}, True),
        ({"tools": {}, "logging": {}}, True),
        ({"tools": {"listChanged": False}, "logging": {}}, True),
        (None, True),
    ],
)
def test_a_second_opening_may_not_offer_less(now: object, less: bool) -> None:
    opening = opened(tools={"listChanged": True}, logging={})
    assert opening.offers_less({"protocolVersion": "2025-11-25", "capabilities": now}) is less
    assert opening.offers_less({"protocolVersion": "2025-06-18", "capabilities": now}) is True
