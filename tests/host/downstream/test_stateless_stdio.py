"""Stateless requests on the channel of one client: beside a session or instead of one, and never by another's id."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from mcp_types.methods import parse_server_notification, validate_server_result
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Consent, Isolation
from host.client_process import ClientProcess
from host.downstream.charge import VIEW_CHANGED
from host.policy.confirmations import ConfirmationAnswer as Answering
from host.source import SHARED
from tests.host.downstream.test_stdio import Client, open_stdio
from tests.kit.asgi import IO, LATEST
from tests.kit.gates import kind
from tests.kit.tasks import (
    EXTENSION,
    RELATED,
    begins,
    completes,
    extension_server,
    extension_status,
    handshake_server,
    says_status,
)
from tests.kit.world import Refusal, ScriptedServer, later

LISTEN = "subscriptions/listen"
ACK = "notifications/subscriptions/acknowledged"
UPDATED = "notifications/resources/updated"
ID = f"{IO}subscriptionId"
FORM = {"message": "Which?", "requestedSchema": {"type": "object", "properties": {}}}
FORMS: dict[str, Any] = {"elicitation": {}}
TAKES: dict[str, Any] = {"extensions": {EXTENSION: {}}}
OK: dict[str, Any] = {"content": []}
SUBSCRIBABLE = {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}}
HELLO = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}


def stating(
    method: str,
    params: Mapping[str, Any] | None = None,
    *,
    id: object = 1,
    capabilities: Mapping[str, Any] | None = None,
    **meta: Any,
) -> dict[str, Any]:
    said = {f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": capabilities or {}, **meta}
    return {"id": id, "method": method, "params": {**(params or {}), "_meta": said}}


async def result(client: Client, method: str, id: object = 1) -> dict[str, Any]:
    """The next message, which must be the result of this request, as the schema has it."""
    message = await client.hears()
    assert message["id"] == id
    assert "error" not in message, message["error"]
    validate_server_result(method, LATEST, message["result"])
    found: dict[str, Any] = message["result"]
    return found


async def error(client: Client, id: object = 1) -> dict[str, Any]:
    message = await client.hears()
    assert message["id"] == id
    found: dict[str, Any] = message["error"]
    return found


async def notice(client: Client, method: str) -> dict[str, Any]:
    message = await client.hears()
    assert message["method"] == method
    assert "id" not in message
    parse_server_notification(method, LATEST, message["params"])
    found: dict[str, Any] = message["params"]
    return found


@asynccontextmanager
async def calling(**stated: Any) -> AsyncIterator[tuple[ScriptedServer, Client, dict[str, Any]]]:
    """A call, and its params as the server has heard them."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.says(stating("tools/call", {"name": "a__x"}, **stated))
        yield server, client, await server.hears("tools/call")


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with open_stdio() as (_, opened):
        yield opened


async def test_no_handshake_is_needed(client: Client) -> None:
    await client.says(stating("server/discover", id="d"))
    found = await result(client, "server/discover", "d")
    assert found["supportedVersions"][0] == LATEST
    await client.says(stating("tools/list"))
    assert [each["name"] for each in (await result(client, "tools/list"))["tools"]] == ["a__x"]


@pytest.mark.parametrize("first", ["discover", "initialize"])
async def test_both_doors_stay_open(client: Client, first: str) -> None:
    """Whichever was used first (rule 26)."""
    if first == "discover":
        await client.says(stating("server/discover"))
        await result(client, "server/discover")
    opened = await client.shakes_hands()
    assert opened["result"]["protocolVersion"] == "2025-11-25"
    await client.says(stating("tools/list", id="a"))
    assert (await result(client, "tools/list", "a"))["resultType"] == "complete"
    await client.says({"id": "b", "method": "tools/list"})
    assert "resultType" not in (await client.hears())["result"]


async def test_initialize_opens_a_session_even_with_an_envelope(client: Client) -> None:
    await client.says(stating("initialize", HELLO, id=0))
    assert (await client.hears())["result"]["protocolVersion"] == "2025-11-25"


@pytest.mark.few(2)
@pytest.mark.parametrize(
    ("meta", "code"),
    [
        ({}, -32602),
        ({f"{IO}clientCapabilities": {}}, -32602),
        ({f"{IO}protocolVersion": LATEST}, -32602),
        ({f"{IO}protocolVersion": 1, f"{IO}clientCapabilities": {}}, -32602),
        ({f"{IO}protocolVersion": "2027-01-01", f"{IO}clientCapabilities": {}}, -32022),
        ({f"{IO}protocolVersion": "2025-11-25", f"{IO}clientCapabilities": {}}, -32022),
        ({f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": {}, f"{IO}logLevel": "loud"}, -32602),
    ],
)
async def test_a_request_says_all_of_itself(client: Client, meta: dict[str, Any], code: int) -> None:
    """Whoever says too little learns what there is (rule 12)."""
    await client.says({"id": 1, "method": "tools/list", "params": {"_meta": meta}})
    found = await error(client)
    assert found["code"] == code
    if code == -32022:
        assert found["data"]["supported"][0] == LATEST
    elif f"{IO}logLevel" not in meta and meta.get(f"{IO}protocolVersion") != 1:
        assert LATEST in found["message"]
    await client.says(stating("tools/list"))
    await result(client, "tools/list")


@pytest.mark.parametrize("method", ["ping", "logging/setLevel", "resources/subscribe", "vendor/thing"])
async def test_what_there_is_not_is_refused(client: Client, method: str) -> None:
    await client.says(stating(method, {"level": "info", "uri": "a+x://y"}))
    assert (await error(client))["code"] == -32601


async def test_an_id_in_flight_is_refused_whichever_way_it_came() -> None:
    """Both ways share their ids (rule 41)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        await client.says(stating("tools/call", {"name": "a__x"}, id=5))
        asked = await server.hears("tools/call")
        await client.says({"id": 5, "method": "tools/list"}, stating("tools/list", id=5))
        assert [(await error(client, 5))["code"] for _ in range(2)] == [-32600, -32600]
        server.says(asked["id"], OK)
        assert (await result(client, "tools/call", 5))["content"] == []
        await client.says(stating("tools/list", id=5))
        await result(client, "tools/list", 5)


async def test_a_cancel_ends_a_request_without_a_word() -> None:
    """The server is told, and what it still says is not (rules 45, 47)."""
    async with calling(id=5, progressToken=1) as (server, client, asked):
        await client.says({"method": "notifications/cancelled", "params": {"requestId": 5, "reason": "bored"}})
        cancelled = await server.hears("notifications/cancelled")
        assert cancelled["requestId"] == asked["id"]
        report = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
        await server.notifies("notifications/progress", report)
        server.says(asked["id"], OK)
        await wait_all_tasks_blocked()
        await client.says(stating("tools/list", id=6))
        await result(client, "tools/list", 6)


@pytest.mark.parametrize("id", [6, "5", None, {}])
async def test_a_cancel_of_anything_else_means_nothing(id: object) -> None:
    """(rule 47)"""
    async with calling(id=5) as (server, client, asked):
        await client.says({"method": "notifications/cancelled", "params": {"requestId": id}})
        await wait_all_tasks_blocked()
        server.hears_nothing_more()
        server.says(asked["id"], OK)
        await result(client, "tools/call", 5)


async def test_progress_and_logs_come_before_the_answer() -> None:
    """Logs only if they were asked for (rules 42, 83)."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_stdio(server) as (_, client):
        for level in (None, "warning"):
            more: dict[str, Any] = {} if level is None else {f"{IO}logLevel": level}
            await client.says(stating("tools/call", {"name": "a__x"}, progressToken="t", **more))
            asked = await server.hears("tools/call")
            report = {"progressToken": asked["_meta"]["progressToken"], "progress": 1}
            for severity in ("info", "error"):
                await server.notifies("notifications/message", {"level": severity, "data": "d"})
            await server.notifies("notifications/progress", report)
            if level is not None:
                assert (await notice(client, "notifications/message"))["level"] == "error"
            assert await notice(client, "notifications/progress") == {"progressToken": "t", "progress": 1}
            server.says(asked["id"], OK)
            await result(client, "tools/call")


async def test_a_question_ends_the_request_and_the_next_one_brings_the_answer(nursery: trio.Nursery) -> None:
    """(rule 108)"""
    async with calling(capabilities=FORMS) as (server, client, asked):
        question = later(nursery, server.asks, "elicitation/create", FORM)
        found = await result(client, "tools/call")
        ((key, inner),) = found["inputRequests"].items()
        assert inner["params"]["message"] == "[a] Which?"
        retry = {
            "name": "a__x",
            "inputResponses": {key: {"action": "decline"}},
            "requestState": found["requestState"],
        }
        await client.says(stating("tools/call", {**retry, "name": "a__y"}, id=2, capabilities=FORMS))
        assert (await error(client, 2))["code"] == -32602
        server.hears_nothing_more()
        await client.says(stating("tools/call", retry, id=3, capabilities=FORMS))
        assert await question.comes() == {"action": "decline"}
        server.says(asked["id"], OK)
        assert (await result(client, "tools/call", 3))["content"] == []


async def test_a_call_over_stdio_stays_where_addresses_lead_elsewhere(nursery: trio.Nursery) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server, process=ClientProcess()) as (world, client):
        await client.says(stating("tools/call", {"name": "a__x"}, capabilities=FORMS))
        asked = await server.hears("tools/call")
        later(nursery, server.asks, "elicitation/create", FORM)
        found = await result(client, "tools/call")
        world.memory.revoke(lambda of: VIEW_CHANGED if of == (SHARED, None) else "")  # as a client of a URL is
        answers = {key: {"action": "decline"} for key in found["inputRequests"]}
        retry = {"name": "a__x", "inputResponses": answers, "requestState": found["requestState"]}
        await client.says(stating("tools/call", retry, id=2, capabilities=FORMS))
        server.says(asked["id"], OK)
        assert (await result(client, "tools/call", 2))["content"] == []


async def test_a_cancel_of_a_retry_cancels_the_call(nursery: trio.Nursery) -> None:
    """(rules 45, 50)"""
    async with calling(capabilities=FORMS) as (server, client, asked):
        question = later(nursery, server.asks, "elicitation/create", FORM)
        found = await result(client, "tools/call")
        answers = {key: {"action": "cancel"} for key in found["inputRequests"]}
        retry = {"name": "a__x", "inputResponses": answers, "requestState": found["requestState"]}
        await client.says(stating("tools/call", retry, id=3, capabilities=FORMS))
        await question.comes()
        await client.says({"method": "notifications/cancelled", "params": {"requestId": 3}})
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_what_the_request_does_not_declare_is_not_asked(nursery: trio.Nursery) -> None:
    """(rule 74)"""
    async with calling() as (server, client, asked):
        with pytest.raises(Refusal):
            await later(nursery, server.asks, "elicitation/create", FORM).comes()
        server.refuses(asked["id"], -32603, "could not ask")
        assert await error(client) == {
            "code": -32603,
            "message": "could not ask (a asked for what this request does not declare: elicitation.form)",
        }


async def test_a_dedicated_server_is_the_clients_own() -> None:
    server = ScriptedServer("a", tools=["x"], isolation=Isolation.PER_CLIENT)
    async with open_stdio(server) as (_, client):
        for number in range(2):
            await client.says(stating("tools/call", {"name": "a__x"}, id=number))
            asked = await server.hears("tools/call")
            server.says(asked["id"], OK)
            await result(client, "tools/call", number)
        assert server.connections == 2  # the one that lists, and the one that is called


async def test_when_the_client_leaves_everything_is_called_off() -> None:
    """(rule 17)"""
    async with calling() as (server, client, asked):
        await client.to_host.aclose()
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


# Listening


def listening(id: object = 9, **wanted: Any) -> dict[str, Any]:
    return stating(LISTEN, {"notifications": wanted}, id=id)


async def test_a_subscription_is_acknowledged_and_told_of_what_it_wants() -> None:
    """Under its id, with its type (rule 86)."""
    server = ScriptedServer("a", tools=["x"], resources=["x://y"], capabilities=SUBSCRIBABLE)
    async with open_stdio(server) as (_, client):
        for id in (9, "9"):
            await client.says(listening(id, resourceSubscriptions=["a+x://y", "a+none"]))
            found = await notice(client, ACK)
            assert found["_meta"] == {ID: id}
        await server.notifies(UPDATED, {"uri": "x://y"})
        told = [await notice(client, UPDATED) for _ in range(2)]
        assert sorted((each["_meta"][ID] for each in told), key=str) in ([9, "9"], ["9", 9])
        assert {each["uri"] for each in told} == {"a+x://y"}


@pytest.mark.parametrize("notifications", [None, [], {"toolsListChanged": 1}])
async def test_a_subscription_to_nothing_that_there_is_is_refused(client: Client, notifications: object) -> None:
    await client.says(stating(LISTEN, {"notifications": notifications}))
    assert (await error(client))["code"] == -32602
    await client.says(stating("tools/list"))
    await result(client, "tools/list")


async def test_a_session_is_told_of_changes_in_its_own_way(autojump_clock: MockClock) -> None:
    """Both are told, and each once."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands()
        await client.says(listening(toolsListChanged=True))
        await notice(client, ACK)
        server.lists["tools"].append({"name": "new", "inputSchema": {"type": "object"}})
        await server.notifies("notifications/tools/list_changed")
        messages = [await client.hears() for _ in range(2)]
        assert {message["method"] for message in messages} == {"notifications/tools/list_changed"}
        tags = [message.get("params", {}).get("_meta", {}).get(ID) for message in messages]
        assert sorted(tags, key=str) == [9, None]


async def test_a_cancel_ends_a_subscription_without_a_word() -> None:
    """And its server is told (rules 46, 88)."""
    server = ScriptedServer("a", tools=["x"], resources=["x://y"], capabilities=SUBSCRIBABLE)
    async with open_stdio(server) as (_, client):
        await client.says(listening(resourceSubscriptions=["a+x://y"]))
        await notice(client, ACK)
        await client.says({"method": "notifications/cancelled", "params": {"requestId": 9}})
        with trio.fail_after(5):
            while "resources/unsubscribe" not in server.asked:
                await trio.lowlevel.checkpoint()
        await server.notifies(UPDATED, {"uri": "x://y"})
        await wait_all_tasks_blocked()
        await client.says(stating("tools/list", id=9))
        await result(client, "tools/list", 9)


async def test_nothing_comes_of_a_subscription_that_is_cancelled_and_has_not_ended_yet() -> None:
    """A change may be heard of in the same pass as the cancel, before or after it."""
    server = ScriptedServer("a", tools=["x"], resources=["x://y"], capabilities=SUBSCRIBABLE)
    async with open_stdio(server) as (_, client):
        for attempt in range(20):
            await client.says(listening(resourceSubscriptions=["a+x://y"]))
            await notice(client, ACK)
            cancel = {"method": "notifications/cancelled", "params": {"requestId": 9}}
            await client.says(cancel, {"id": 8, "method": "x"})
            assert (await client.hears())["id"] == 8, "the cancel was read"
            await server.notifies(UPDATED, {"uri": "x://y"})
            await wait_all_tasks_blocked()
            await client.says(stating("tools/list", id=f"{attempt}"))
            await result(client, "tools/list", f"{attempt}")


async def test_when_the_host_stops_a_subscription_ends_in_good_order(client: Client) -> None:
    """The result first, then the notice that some take for the end."""
    await client.says(listening(toolsListChanged=True))
    await notice(client, ACK)
    client.stop.set()
    found = await result(client, LISTEN, 9)
    assert found == {"resultType": "complete", "_meta": {ID: 9}}
    cancelled = await notice(client, "notifications/cancelled")
    assert (cancelled["requestId"], cancelled["_meta"][ID]) == (9, 9)
    with trio.fail_after(5):
        await client.over.wait()


async def test_a_client_that_listens_and_leaves_is_gone() -> None:
    server = ScriptedServer("a", tools=["x"], resources=["x://y"], capabilities=SUBSCRIBABLE)
    async with open_stdio(server) as (_, client):
        await client.says(listening(resourceSubscriptions=["a+x://y"]))
        await notice(client, ACK)
        await client.to_host.aclose()
        with trio.fail_after(5):
            await client.over.wait()


async def test_what_is_told_is_one_line_each() -> None:
    """(rule 1)"""
    async with calling() as (server, client, asked):
        server.says(asked["id"], {"content": [{"type": "text", "text": "a\nb\u2028c"}]})
        assert (await result(client, "tools/call"))["content"][0]["text"] == "a\nb\u2028c"


@pytest.mark.parametrize("first", ["stateless", "session"])
async def test_initialize_shares_the_ids_as_well(first: str) -> None:
    """Whichever of the two comes first, the other is refused (rule 41)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        hello = {"jsonrpc": "2.0", "id": 5, "method": "initialize", "params": HELLO}
        call = {"jsonrpc": "2.0", **stating("tools/call", {"name": "a__x"}, id=5)}
        lines = [json.dumps(each).encode() for each in ((hello, call) if first == "session" else (call, hello))]
        await client.says(b"\n".join(lines))
        assert await error(client, 5) == {
            "code": -32600,
            "message": "a request with this id is still in flight; use a new id",
        }
        if first == "session":
            assert (await client.hears())["result"]["protocolVersion"] == HELLO["protocolVersion"]
        else:
            server.says((await server.hears("tools/call"))["id"], OK)
            await result(client, "tools/call", 5)
        await wait_all_tasks_blocked()
        server.hears_nothing_more()


async def test_a_handshake_that_fails_is_none(client: Client) -> None:
    """What follows is told how to begin, and may begin again."""
    await client.says({"id": 0, "method": "initialize", "params": {}})
    assert (await error(client, 0))["code"] == -32602
    await client.says({"id": 1, "method": "tools/list"})
    refused = await error(client)
    assert refused["code"] == -32602
    assert LATEST in refused["message"]
    assert (await client.shakes_hands())["result"]["protocolVersion"] == HELLO["protocolVersion"]


async def test_with_one_client_it_is_certain_whom_a_server_asks(nursery: trio.Nursery) -> None:
    """But not with which of its requests, as long as there are several (rule 71)."""
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.shakes_hands(capabilities=FORMS)
        await client.says({"id": 1, "method": "tools/call", "params": {"name": "a__x"}})
        works = [await server.hears("tools/call")]
        for id in (2, 3):
            await client.says(stating("tools/call", {"name": "a__x"}, id=id, capabilities=FORMS))
            works.append(await server.hears("tools/call"))
        with pytest.raises(Refusal, match="several requests are in flight"):
            await server.asks("elicitation/create", FORM)
        for work in works[:2]:
            server.says(work["id"], {"content": []})
            await client.hears()
        question = later(nursery, server.asks, "elicitation/create", FORM)
        parked = await result(client, "tools/call", 3)
        responses = {key: {"action": "decline"} for key in parked["inputRequests"]}
        again = {"name": "a__x", "inputResponses": responses, "requestState": parked["requestState"]}
        await client.says(stating("tools/call", again, id=4, capabilities=FORMS))
        assert await question.comes() == {"action": "decline"}


async def test_a_client_that_does_not_read_does_not_keep_the_host_from_stopping(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it listens for would end in good order, if it read that."""
    # A result of more than the real limit would be checked in a thread, for which the clock does not wait.
    monkeypatch.setattr("host.wire.pipe.MAX_BACKLOG", 1000)
    server = ScriptedServer("a", tools=["x"])
    async with open_stdio(server) as (_, client):
        await client.says(listening(toolsListChanged=True))
        await notice(client, ACK)
        await client.says(stating("tools/call", {"name": "a__x"}))
        asked = await server.hears("tools/call")
        server.says(asked["id"], {"content": [{"type": "text", "text": "x" * 100_000}]})
        await trio.sleep(1)
        await wait_all_tasks_blocked()
        client.stop.set()
        with trio.fail_after(10):
            await client.over.wait()


async def test_a_subscription_that_comes_when_the_host_stops_is_not_begun(client: Client) -> None:
    await client.says(listening(toolsListChanged=True))
    await notice(client, ACK)
    for id in range(10, 60):
        await client.says(listening(id, toolsListChanged=True))
    client.stop.set()
    for id in range(60, 110):
        await client.says(listening(id, toolsListChanged=True))
    with trio.fail_after(5):
        await client.over.wait()


# Tasks


def named(method: str, task: str, id: object = 1, **params: object) -> dict[str, Any]:
    return stating(method, {"taskId": task, **params}, id=id, capabilities=TAKES)


@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_a_task_of_a_stateless_client(make: Any, autojump_clock: MockClock, nursery: trio.Nursery) -> None:
    """From the call to the result, with a question in between, and told of each."""
    server = make()
    async with open_stdio(server) as (_, client):
        await client.says(stating("tools/call", {"name": "a__x"}, capabilities={**FORMS, **TAKES}))
        await begins(server)
        made = (await client.hears())["result"]
        assert made["resultType"] == "task"
        id = made["taskId"]
        await client.says(stating(LISTEN, {"notifications": {"taskIds": [id]}}, id="l", capabilities=TAKES))
        acknowledged = (await client.hears())["params"]
        assert acknowledged == {"_meta": {ID: "l"}, "notifications": {"taskIds": [id]}}
        fetched: dict[str, Any] = {}
        if server.stateless:
            question = {"method": "elicitation/create", "params": {"mode": "form", **FORM}}
            await says_status(server, "input_required", inputRequests={"k": question})
        else:
            await says_status(server, "input_required", poll=30_000)
            fetched = await server.hears("tasks/result")
            later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        told = (await client.hears())["params"]
        assert (told["_meta"], told["status"]) == ({ID: "l"}, "input_required")
        (key,) = told["inputRequests"]
        await client.says(named("tasks/update", id, inputResponses={key: {"action": "decline"}}))
        messages = [await client.hears() for _ in range(2)]
        assert {each.get("id", each.get("method")) for each in messages} == {1, "notifications/tasks"}
        if server.stateless:
            server.says((await server.hears("tasks/update"))["id"], {"resultType": "complete"})
            await completes(server)
        else:
            server.says(fetched["id"], {"content": [{"type": "text", "text": "ok"}]})
        told = (await client.hears())["params"]
        assert (told["status"], told["result"]["content"][0]["text"]) == ("completed", "ok")
        await client.says(named("tasks/get", id, 7))
        found = (await client.hears())["result"]
        assert found["result"] == told["result"]


async def test_a_task_of_a_session_is_asked_about_in_its_own_way(
    autojump_clock: MockClock, nursery: trio.Nursery
) -> None:
    """On the same channel; what it asks names it (rule 52)."""
    server = handshake_server()
    async with open_stdio(server) as (_, client):
        await client.shakes_hands(capabilities=FORMS)
        await client.says({"id": 1, "method": "tools/call", "params": {"name": "a__x", "task": {}}})
        id = (await client.hears())["result"]["task"]["taskId"]
        await begins(server)
        await client.says({"id": 2, "method": "tasks/result", "params": {"taskId": id}})
        await says_status(server, "input_required", poll=30_000)
        fetched = await server.hears("tasks/result")
        asked = later(nursery, server.asks, "elicitation/create", {**FORM, "_meta": {RELATED: {"taskId": "t1"}}})
        told = await client.hears()
        assert (told["method"], told["params"]["status"]) == ("notifications/tasks/status", "input_required")
        question = await client.hears()
        assert question["params"]["_meta"] == {RELATED: {"taskId": id}}
        await client.says({"id": question["id"], "result": {"action": "decline"}})
        assert await asked.comes() == {"action": "decline"}
        assert (await client.hears())["params"]["status"] == "working"
        server.says(fetched["id"], {"content": []})
        messages = [await client.hears() for _ in range(2)]
        (answer,) = [each for each in messages if "id" in each]
        assert answer["result"] == {"content": [], "_meta": {RELATED: {"taskId": id}}}


@pytest.mark.parametrize("takes", [True, False])
@pytest.mark.parametrize("make", [handshake_server, extension_server])
async def test_when_the_client_leaves_its_tasks_are_called_off(
    make: Any, takes: bool, autojump_clock: MockClock
) -> None:
    """Whether it knows of them or not: there is nobody else (rule 46)."""
    server = make()
    async with open_stdio(server) as (_, client):
        await client.says(stating("tools/call", {"name": "a__x"}, capabilities=TAKES if takes else {}))
        await begins(server)
        await says_status(server)
        await trio.sleep(0.1)
        await client.to_host.aclose()
        server.says((await server.hears("tasks/cancel"))["id"], extension_status("cancelled"))
        server.hears_nothing_more()


async def test_what_is_allowed_for_the_session_is_for_all_that_comes_over_the_channel() -> None:
    """With a handshake or without one: it is one client."""

    async def ok(params: dict[str, Any]) -> object:
        return OK

    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=["x"])), answers={"tools/call": ok})
    async with open_stdio(server) as (world, client):
        with world.auto_answering(Answering.SESSION) as asked:
            for id in range(2):
                await client.says(stating("tools/call", {"name": "a__x", "arguments": {}}, id=id))
                assert (await result(client, "tools/call", id))["content"] == []
            await client.says({"id": "i", "method": "initialize", "params": HELLO})
            assert (await client.hears())["id"] == "i"
            await client.says({"method": "notifications/initialized"})
            await client.says({"id": 2, "method": "tools/call", "params": {"name": "a__x", "arguments": {}}})
            assert (await client.hears())["result"] == OK
        assert len(asked) == 1
        assert asked[0].access.subject.session is not None


async def test_what_is_allowed_for_the_session_ends_with_the_connection() -> None:
    """Also for a client that never sent `initialize`, which has no other session."""

    async def ok(params: dict[str, Any]) -> object:
        return OK

    server = ScriptedServer("a", tools=["x"], consent=Consent(tools=kind(ask=["x"])), answers={"tools/call": ok})
    async with open_stdio(server) as (world, client):
        with world.auto_answering(Answering.SESSION):
            await client.says(stating("tools/call", {"name": "a__x", "arguments": {}}, id=1))
            assert (await result(client, "tools/call", 1))["content"] == []
        assert len(world.gate.authorizer.grants.all()) == 1
        await client.to_host.aclose()
        await wait_all_tasks_blocked()
        assert world.gate.authorizer.grants.all() == []
