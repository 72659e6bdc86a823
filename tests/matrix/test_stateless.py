"""The stateless server and the stateless clients are strict: what the revision forbids does not pass between them."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path

import httpx
import pytest
import trio

from tests.matrix.clients import Message, capabilities
from tests.matrix.expectations import R26
from tests.matrix.run import Side, server_command
from tests.matrix.stateless import Stateless
from tests.real.running import listening

IO = "io.modelcontextprotocol/"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder: Path = tmp_path_factory.mktemp("server")
    with listening(*server_command(Side(R26, "http"), folder), folder=folder) as (_, where):
        yield where


def post(
    url: str, method: str, params: Message, able: Message | None = None, headers: Mapping[str, str] | None = None
) -> tuple[int, int | None]:
    """Status and error code (or None) of a request that is right but for what is given otherwise."""
    stated = {f"{IO}protocolVersion": R26, f"{IO}clientCapabilities": able or {}}
    message = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"_meta": stated, **params}}
    usual = {"mcp-protocol-version": R26, "mcp-method": method, "mcp-name": params.get("name", "")}
    answer = httpx.post(url, json=message, headers={**usual, **(headers or {})}, trust_env=False)
    body = answer.text.removeprefix("data: ") if "event-stream" in answer.headers["content-type"] else answer.text
    return answer.status_code, json.loads(body).get("error", {}).get("code")


def test_what_is_right_is_answered(url: str) -> None:
    assert post(url, "tools/call", {"name": "echo", "arguments": {"key": "a"}}, headers={"mcp-param-key": "a"}) == (
        200,
        None,
    )


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("headers", "arguments"),
    [
        ({"mcp-method": "tools/list"}, {}),
        ({"mcp-name": "rich"}, {}),
        ({"mcp-protocol-version": "2025-11-25"}, {}),
        ({}, {"key": "a"}),
        ({"mcp-param-key": "b"}, {"key": "a"}),
    ],
)
def test_headers_must_say_what_the_body_says(url: str, headers: dict[str, str], arguments: dict[str, str]) -> None:
    params = {"name": "echo", "arguments": arguments}
    assert post(url, "tools/call", params, headers=headers) == (400, -32020)


def test_a_request_must_state_a_revision_that_is_spoken(url: str) -> None:
    assert post(url, "tools/list", {"_meta": {}}) == (400, -32602)
    other = {"_meta": {f"{IO}protocolVersion": "2025-11-25", f"{IO}clientCapabilities": {}}}
    assert post(url, "tools/list", other, headers={"mcp-protocol-version": "2025-11-25"}) == (400, -32022)


def test_methods_of_older_revisions_are_gone(url: str) -> None:
    assert [post(url, method, {}) for method in ("initialize", "ping", "logging/setLevel")] == [(404, -32601)] * 3


def test_what_a_client_cannot_do_is_not_asked_of_it(url: str) -> None:
    tools = ("ask_sampling", "ask_form", "ask_url", "ask_roots", "long_chore")
    assert [post(url, "tools/call", {"name": tool}) for tool in tools] == [(400, -32021)] * 5
    assert post(url, "tools/call", {"name": "ask_form"}, {"elicitation": {}}) == (200, None)
    assert post(url, "tools/call", {"name": "ask_url"}, {"elicitation": {}}) == (400, -32021)
    assert post(url, "tasks/get", {"taskId": "x"}, headers={"mcp-name": "x"}) == (400, -32021)


def test_a_state_belongs_to_its_call(url: str) -> None:
    params = {"name": "ask_roots", "requestState": "made up", "inputResponses": {"q": {"roots": []}}}
    assert post(url, "tools/call", params, capabilities(R26)) == (200, -32602)


class Silent(Stateless):
    """A client whose messages go nowhere."""

    async def send(self, message: Message) -> None:
        pass


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "message",
    [
        {"id": 1, "method": "roots/list"},
        {"method": "notifications/tools/list_changed"},
        {"method": "notifications/tools/list_changed", "params": {"_meta": {f"{IO}subscriptionId": "1"}}},
        {"method": "notifications/prompts/list_changed", "params": {"_meta": {f"{IO}subscriptionId": 1}}},
        {"method": "notifications/message", "params": {"level": "alert", "data": 1}},
        {"method": "notifications/progress", "params": {"progressToken": "other", "progress": 1}},
        {"id": 2, "result": {"resultType": "complete", "tools": []}},
        {"id": 2, "result": {"tools": [], "ttlMs": 0, "cacheScope": "private"}},
        {"id": 2, "result": {"resultType": "task", "taskId": "a", "ttlMs": 0, "cacheScope": "private"}},
        {"id": 3, "result": {"resultType": "complete"}},
    ],
)
async def test_clients_complain_of_what_must_not_come(message: Message, nursery: trio.Nursery) -> None:
    """1 listens for tools that change, 2 lists them."""
    client = Silent("somebody", R26, nursery)
    await client.begin("subscriptions/listen", {"notifications": {"toolsListChanged": True}})
    await client.begin("tools/list")
    tag = {"_meta": {f"{IO}subscriptionId": 1}}
    honoured = {**tag, "notifications": {"toolsListChanged": True}}
    client.take(json.dumps({"method": "notifications/subscriptions/acknowledged", "params": honoured}))
    client.take(json.dumps({"method": "notifications/tools/list_changed", "params": tag}))
    assert client.complaints == []
    client.take(json.dumps(message))
    assert len(client.complaints) == 1
