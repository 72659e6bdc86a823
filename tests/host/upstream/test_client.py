"""What goes to a server with a call and comes back with it: tokens, deadlines, and what becomes of errors."""

from __future__ import annotations

import json
from typing import Any

import pytest
import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from host.jsonrpc.messages import Notification
from host.jsonrpc.raw import encode
from host.upstream.client import BURST, REPORTS_A_SECOND
from tests.kit.world import Refusal, ScriptedServer, open_world


async def test_nothing_of_the_clients_hop_reaches_the_server() -> None:
    """Trace context and vendor keys do (rules 42, 51, 53, 54)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        meta = {"progressToken": "t", "io.modelcontextprotocol/clientInfo": {}, "traceparent": "00-1", "v/k": [1]}
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": meta, "vendor": 1.50})
        asked = await server.hears("tools/call")
        assert asked["_meta"] == {"progressToken": asked["_meta"]["progressToken"], "traceparent": "00-1", "v/k": [1]}
        assert asked["_meta"]["progressToken"] != "t"
        assert asked["vendor"] == 1.5
        server.says(asked["id"], {"content": []})


async def test_a_server_is_asked_for_progress_only_if_somebody_wants_it() -> None:
    """(rule 42)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.call, "a__x")
        asked = await server.hears("tools/call")
        assert "_meta" not in asked
        server.says(asked["id"], {"content": []})


@pytest.mark.parametrize("progress", [True, "1", None, [], {}, "missing"])
async def test_progress_that_is_no_number_is_dropped(progress: object) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        asked = await server.hears("tools/call")
        report = {"progressToken": asked["_meta"]["progressToken"], "progress": progress}
        if progress == "missing":
            del report["progress"]
        await server.notifies("notifications/progress", report)
        await wait_all_tasks_blocked()
        assert client.told == []
        server.says(asked["id"], {"content": []})


@pytest.mark.parametrize("result", [None, 5, "text", [], True])
async def test_a_result_that_is_no_object_is_a_broken_server(result: object) -> None:
    async def answer(params: dict[str, Any]) -> object:
        return result

    server = ScriptedServer("a", tools=["x"], prompts=["p"], answers={"tools/call": answer, "prompts/get": answer})
    async with open_world(server) as world:
        client = await world.client()
        assert "a sent a result that is not an object" in json.dumps(await client.call("a__x"))
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert refused.value.code == 502


async def test_a_prompt_that_does_not_come_is_an_error_and_called_off(autojump_clock: MockClock) -> None:
    """(rules 45, 48)"""
    server = ScriptedServer("a", prompts=["p"], timeout=2.0)
    async with open_world(server) as world:
        client = await world.client()
        with pytest.raises(Refusal) as refused:
            await client.request("prompts/get", {"name": "a__p"})
        assert (refused.value.code, refused.value.message) == (504, "a did not answer within 2 s")
        asked = await server.hears("prompts/get")
        assert (await server.hears("notifications/cancelled"))["requestId"] == asked["id"]


async def test_reports_that_come_too_fast_are_heard_less_and_still_put_the_deadline_off(
    autojump_clock: MockClock,
) -> None:
    """What is passed on only grows (rules 43, 48)."""
    server = ScriptedServer("a", tools=["x"], timeout=5.0)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.request, "tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        for n in range(1000):
            await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        await wait_all_tasks_blocked()
        assert [params["progress"] for _, params in client.told] == list(range(int(BURST)))
        for n in range(1000, 1400):
            await trio.sleep(0.01)
            await server.notifies("notifications/progress", {"progressToken": token, "progress": n})
        told = [params["progress"] for _, params in client.told]
        assert len(told) == pytest.approx(BURST + 4 * REPORTS_A_SECOND, abs=2)
        assert told == sorted(set(told))
        await trio.sleep(4)
        server.hears_nothing_more()
        await trio.sleep(1.1)
        await server.hears("notifications/cancelled")


async def test_of_reports_that_come_all_at_once_the_newest_is_heard_before_the_answer() -> None:
    """(rule 43)"""
    server = ScriptedServer("a", tools=["x"])
    heard_by_then: list[list[object]] = []
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()

        async def call() -> None:
            await client.request("tools/call", {"name": "a__x", "_meta": {"progressToken": 1}})
            heard_by_then.append([params["progress"] for _, params in client.told])

        nursery.start_soon(call)
        asked = await server.hears("tools/call")
        for n in range(300):
            server.sends(
                Notification(
                    "notifications/progress", encode({"progressToken": asked["_meta"]["progressToken"], "progress": n})
                )
            )
        server.says(asked["id"], {"content": []})
    (heard,) = heard_by_then
    assert heard == [*range(int(BURST)), 299]
    assert len(client.told) == len(heard)
