"""Sessions by id, and what a client is told of changes."""

from __future__ import annotations

import json

import trio
from msgspec import Raw
from trio.testing import MockClock

from host.downstream.sessions import IDLE, Sessions
from host.jsonrpc.messages import Notification, Request
from host.protocol.methods import PROMPTS_CHANGED, TOOLS_CHANGED
from host.router import PAGE
from tests.kit.world import ScriptedServer, World, open_world, tool


def opened(world: World) -> Sessions:
    return Sessions(world.router, world.journal)


async def test_ids_are_long_random_and_of_one_endpoint() -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        sessions = opened(world)
        ids = set()
        for endpoint in (None, "a") * 20:
            id, session = sessions.draft(endpoint)
            assert sessions.keep(id, session)
            assert sessions.find(id, endpoint) is session
            assert sessions.find(id, "a" if endpoint is None else None) is None
            ids.add(id)
        assert len(ids) == 40
        assert min(map(len, ids)) >= 32
        assert len(sessions) == 40


async def test_a_session_in_use_is_not_idle(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        sessions = opened(world)
        kept = {}
        for name in ("calling", "listening", "idle"):
            id, kept[name] = sessions.draft(None)
            sessions.keep(id, kept[name])
            params = {"protocolVersion": "2025-11-25", "capabilities": {}}
            await kept[name].open(Request(0, "initialize", Raw(json.dumps(params).encode())))
            if name == "listening":
                await sessions.listen(id)
        call = Request(1, "tools/call", Raw(b'{"name":"a__x"}'))
        nursery.start_soon(kept["calling"].answer, call, kept["calling"].begin(call), lambda notice: None)
        await server.hears("tools/call")
        await trio.sleep(30)
        for session in kept.values():
            session.last_used = trio.current_time() - IDLE - 1
        sessions.sweep()
        assert set(sessions) == {kept["calling"], kept["listening"]}
        nursery.cancel_scope.cancel()


async def test_a_client_that_lists_between_two_changes_is_told_of_the_second_only(autojump_clock: MockClock) -> None:
    """Also when the second change brings back what it knew at first."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        server.lists["tools"].append(tool("y"))
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        assert await client.names() == ["a__x", "a__y"]
        nursery.start_soon(client.hear_changes)
        await trio.sleep(1)
        assert client.told == []
        server.lists["tools"].pop()
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        assert [method for method, _ in client.told] == [TOOLS_CHANGED]
        nursery.cancel_scope.cancel()


async def test_a_page_of_the_past_does_not_count_as_knowing_the_present(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=[f"t{n}" for n in range(PAGE + 1)])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        cursor = (await client.request("tools/list"))["nextCursor"]
        server.lists["tools"].append(tool("new"))
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        await client.request("tools/list", {"cursor": cursor})
        nursery.start_soon(client.hear_changes)
        await trio.sleep(1)
        assert [method for method, _ in client.told] == [TOOLS_CHANGED]
        nursery.cancel_scope.cancel()


async def test_a_client_that_left_in_between_is_told_all_of_it_when_it_is_back(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"], prompts=["p"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        server.lists["tools"].append(tool("y"))
        server.lists["prompts"].append({"name": "q"})
        for kind in (TOOLS_CHANGED, PROMPTS_CHANGED):
            await server.notifies(kind)
        await trio.sleep(2)
        sent: list[str] = []

        async def hang_up_after_one(notice: Notification) -> None:
            if sent:
                scope.cancel()
            await trio.lowlevel.checkpoint()
            sent.append(notice.method)

        with trio.CancelScope() as scope:
            await client.session.tell_changes(hang_up_after_one)
        assert sent == [TOOLS_CHANGED]
        nursery.start_soon(client.hear_changes)
        await trio.sleep(1)
        assert [method for method, _ in client.told] == [TOOLS_CHANGED, PROMPTS_CHANGED]
        nursery.cancel_scope.cancel()


async def test_many_changes_in_a_moment_are_few_notices(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        client = await world.client()
        nursery.start_soon(client.hear_changes)
        for n in range(50):
            server.lists["tools"].append(tool(f"t{n}"))
            await server.notifies(TOOLS_CHANGED)
            await trio.sleep(0.02)
        await trio.sleep(30)
        assert 1 <= len(client.told) <= 4
        nursery.cancel_scope.cancel()


async def test_a_client_is_told_nothing_before_it_has_said_that_it_is_ready(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        _, session = opened(world).draft(None)
        told: list[str] = []

        async def send(notice: object) -> None:
            told.append(str(notice))
            await trio.lowlevel.checkpoint()

        nursery.start_soon(session.tell_changes, send)
        await session.open(Request(0, "initialize", Raw(b'{"protocolVersion":"2025-11-25"}')))
        server.lists["tools"].append(tool("y"))
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(5)
        assert told == []
        nursery.cancel_scope.cancel()
