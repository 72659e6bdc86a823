"""Sessions by id, and what a client is told of changes."""

from __future__ import annotations

import gc
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any
from weakref import ref

import pytest
import trio
from mcp_types.methods import validate_server_result
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Isolation, Trust
from host.downstream.sessions import (
    MAX_KEPT_NOTICES,
    OLD_STREAM_GRACE,
    Session,
    Sessions,
    StandingStream,
    _RequestHandle,
    draft_session,
)
from host.downstream.stored_sessions import IDLE_TIMEOUT
from host.jsonrpc.messages import ErrorBody, Id, Notification, Request
from host.memory import Budget, Use, client_owner
from host.peer.outstanding import PeerError
from host.protocol.methods import INITIALIZED, PROMPTS_CHANGED, RESOURCE_UPDATED, TOOLS_CHANGED
from host.protocol.versions import LATEST
from host.source import SHARED, Endpoint
from host.upstream.remembered_lists import SAVE_INTERVAL
from host.wire.deadlines import CallScope
from tests.kit.asgi import IO, Connection, open_http_app, open_stateless
from tests.kit.cost import counted_calls
from tests.kit.memory import MemoryLink
from tests.kit.world import Refusal as Refused
from tests.kit.world import ScriptedServer, World, announcing, later, open_client, open_world, tool


@asynccontextmanager
async def opened(world: World, limit: int = 1000) -> AsyncIterator[Sessions]:
    async with open_stateless(world) as stateless:
        shared = partial(draft_session, router=world.router, journal=world.journal, memory=world.memory)
        yield Sessions(partial(shared, tasks=stateless.tasks), limit)


async def test_ids_are_long_random_and_of_one_endpoint() -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world, opened(world) as sessions:
        ids = set()
        for endpoint in (SHARED, Endpoint("a")) * 20:
            id, session = sessions.draft(endpoint, "laptop")
            assert sessions.add(id, session)
            assert sessions.find(id, endpoint, "laptop") is session
            assert sessions.find(id, Endpoint("a") if endpoint is SHARED else SHARED, "laptop") is None
            assert sessions.find(id, endpoint, "desk") is None
            assert sessions.find(id, endpoint, None) is None
            ids.add(id)
        assert len(ids) == 40
        assert min(map(len, ids)) >= 32
        assert len(sessions) == 40


async def test_a_session_in_use_is_not_idle(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, opened(world) as sessions, trio.open_nursery() as nursery:
        kept = {}
        for name in ("calling", "listening", "idle"):
            id, kept[name] = sessions.draft(SHARED, None)
            sessions.add(id, kept[name])
            params = {"protocolVersion": "2025-11-25", "capabilities": {}}
            await kept[name].open(Request(0, "initialize", Raw(json.dumps(params).encode())))
            if name == "listening":
                await sessions.listen(id, trio.CancelScope())
        call = Request(1, "tools/call", Raw(b'{"name":"a__x"}'))
        nursery.start_soon(kept["calling"].answer, call, kept["calling"].begin(call), lambda message: True)
        await server.hears("tools/call")
        await trio.sleep(30)
        for session in kept.values():
            session.last_used = trio.current_time() - IDLE_TIMEOUT - 1
        sessions.sweep()
        assert set(sessions) == {kept["calling"], kept["listening"]}
        nursery.cancel_scope.cancel()


async def test_one_identitys_many_sessions_make_room_before_anothers() -> None:
    """Even if the other's is older."""
    async with open_world(ScriptedServer("a", tools=["x"])) as world, opened(world, 4) as sessions:

        def keep(identity: str) -> Session:
            id, session = sessions.draft(SHARED, identity)
            assert sessions.add(id, session)
            return session

        old = keep("desk")
        flood = [keep("laptop") for _ in range(3)]
        for session in (flood[0], flood[2]):
            session.touch()
        new = keep("desk")
        assert set(sessions) == {old, flood[0], flood[2], new}
        assert [session.ended.is_set() for session in (old, *flood)] == [False, False, True, False]
        newest = [keep("laptop") for _ in range(2)]
        assert (len(sessions), new in sessions, newest[1] in sessions) == (4, True, True)


async def test_a_session_that_has_ended_is_gone_without_the_collector_of_garbage() -> None:
    """Otherwise the memory of a full table would grow with each newcomer until then."""
    async with open_world(ScriptedServer("a", tools=["x"])) as world, opened(world, 1) as sessions:
        left: list[ref[Session]] = []
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                id, session = sessions.draft(SHARED, None)
                assert sessions.add(id, session)
                left.append(ref(session))
                params = Raw(b'{"protocolVersion":"2025-11-25"}')
                await session.open(Request(0, "initialize", params))
                session.on_notification(Notification(INITIALIZED))
                call = Request(1, "tools/list")
                await session.answer(call, session.begin(call), lambda message: True)
                del session
            assert [each() is None for each in left] == [True, True, False]
        finally:
            gc.enable()


@pytest.mark.parametrize("in_use", [False, True])
async def test_a_newcomer_to_a_full_table_costs_the_same_however_large_it_is(in_use: bool) -> None:
    costs = []
    for count in (20, 200):
        async with open_world(ScriptedServer("a", tools=["x"])) as world, opened(world, count) as sessions:
            for number in range(count):
                id, session = sessions.draft(SHARED, "laptop" if number else "desk")
                assert sessions.add(id, session)
                if in_use:
                    session.begin(Request(1, "tools/call", Raw(b'{"name":"a__x"}')))
            id, session = sessions.draft(SHARED, "desk")
            with counted_calls() as calls:
                assert sessions.add(id, session)
            costs.append(len(calls))
            assert len(sessions) == count
    assert costs[0] == costs[1]


async def test_an_identity_whose_sessions_are_all_in_use_takes_none_from_another_and_makes_room_for_it() -> None:
    """First with a session that only listens, then with the one that was used longest ago."""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, opened(world, 5) as sessions, trio.open_nursery() as nursery:

        async def keep(identity: str) -> tuple[Session, bool]:
            id, session = sessions.draft(SHARED, identity)
            kept = sessions.add(id, session)
            return session, kept

        call = Request(1, "tools/call", Raw(b'{"name":"a__x"}'))
        laptop = [(await keep("laptop"))[0] for _ in range(4)]
        for session in laptop[:3]:
            session.begin(call)
        (listens,) = (id for id, session in sessions._open.items() if session is laptop[3])
        await sessions.listen(listens, trio.CancelScope())
        desk, _ = await keep("desk")
        assert not (await keep("laptop"))[1], "it would take the only session of another"
        assert not desk.ended.is_set()
        desk.begin(call)
        second, kept = await keep("desk")
        assert kept
        assert [session.ended.is_set() for session in laptop] == [False, False, False, True]
        second.begin(call)
        assert not (await keep("desk"))[1], "three of five would be more than the other has"
        third, kept = await keep("phone")
        assert kept
        assert [session.ended.is_set() for session in laptop] == [True, False, False, True]
        third.begin(call)
        nursery.cancel_scope.cancel()


async def test_a_client_that_lists_between_two_changes_is_told_of_the_second_only(autojump_clock: MockClock) -> None:
    """Also when the second change brings back what it knew at first."""
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        server.lists["tools"].append(tool("y"))
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        assert await client.names() == ["a__x", "a__y"]
        nursery.start_soon(client.listen_changes)
        await trio.sleep(1)
        assert client.notifications == []
        server.lists["tools"].pop()
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        assert [method for method, _ in client.notifications] == [TOOLS_CHANGED]
        nursery.cancel_scope.cancel()


async def test_a_page_of_the_past_does_not_count_as_knowing_the_present(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr("host.router.lists.PAGE_SIZE", 2)
    server = ScriptedServer("a", tools=["x", "y", "z"])
    async with open_client(server) as (_, client, nursery):
        cursor = (await client.request("tools/list"))["nextCursor"]
        server.lists["tools"].append(tool("new"))
        await server.notifies(TOOLS_CHANGED)
        await trio.sleep(1)
        await client.request("tools/list", {"cursor": cursor})
        nursery.start_soon(client.listen_changes)
        await trio.sleep(1)
        assert [method for method, _ in client.notifications] == [TOOLS_CHANGED]
        nursery.cancel_scope.cancel()


async def test_a_client_that_left_in_between_is_told_all_of_it_when_it_is_back(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"], prompts=["p"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        server.lists["tools"].append(tool("y"))
        server.lists["prompts"].append({"name": "q"})
        for kind in (TOOLS_CHANGED, PROMPTS_CHANGED):
            await server.notifies(kind)
        await trio.sleep(2)
        sent: list[str] = []

        def take_one(notice: Notification | Request) -> bool:
            sent.extend([] if sent else [notice.method])
            return sent == [notice.method]

        async with announcing(world.router) as announcements:
            with client.session.listening(announcements, take_one):
                await trio.sleep(1)
        assert sent == [TOOLS_CHANGED]
        nursery.start_soon(client.listen_changes)
        await trio.sleep(1)
        assert [method for method, _ in client.notifications] == [TOOLS_CHANGED, PROMPTS_CHANGED]
        nursery.cancel_scope.cancel()


async def test_many_changes_in_a_moment_are_few_notices(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_client(server) as (_, client, nursery):
        nursery.start_soon(client.listen_changes)
        for n in range(50):
            server.lists["tools"].append(tool(f"t{n}"))
            await server.notifies(TOOLS_CHANGED)
            await trio.sleep(0.02)
        await trio.sleep(30)
        assert 1 <= len(client.notifications) <= 4
        nursery.cancel_scope.cancel()


async def test_a_client_is_told_nothing_before_it_has_said_that_it_is_ready(autojump_clock: MockClock) -> None:
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, opened(world) as sessions, announcing(world.router) as announcements:
        _, session = sessions.draft(SHARED, None)
        told: list[str] = []

        def take(notice: Notification | Request) -> bool:
            told.append(notice.method)
            return True

        with session.listening(announcements, take):
            await session.open(Request(0, "initialize", Raw(b'{"protocolVersion":"2025-11-25"}')))
            server.lists["tools"].append(tool("y"))
            await server.notifies(TOOLS_CHANGED)
            await trio.sleep(5)
            assert told == []
            session.on_notification(Notification(INITIALIZED))
            await trio.sleep(1)
            assert told == [TOOLS_CHANGED]


async def test_a_newcomer_waits_for_the_former_stream_and_only_its_heir_cuts_it_off(autojump_clock: MockClock) -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world, opened(world) as sessions:
        id, session = sessions.draft(SHARED, None)
        sessions.add(id, session)
        first = trio.CancelScope()
        assert await sessions.listen(id, first)
        assert not await sessions.listen(id, trio.CancelScope())
        assert not first.cancel_called

        async def stay() -> None:
            with first:
                await trio.sleep_forever()
            sessions.stop_listening(id)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(stay)
            began = trio.current_time()
            assert await sessions.listen(id, trio.CancelScope(), takes_over=True)
            assert trio.current_time() - began == OLD_STREAM_GRACE
        assert not await sessions.listen(id, trio.CancelScope())


def test_notices_wait_for_a_listener_the_newest_of_each() -> None:
    """Bounded, oldest first out (rule 22)."""
    budget, standing = charged()
    told: list[str] = []
    room = [3]

    def say(message: Notification | Request) -> bool:
        if not room[0]:
            return False
        room[0] -= 1
        told.append(message.method)
        return True

    for n in range(MAX_KEPT_NOTICES + 2):
        standing.notify(Notification(str(n)))
    standing.notify(Notification("5"))
    with standing.attached(say):
        assert told == ["2", "3", "4"]
        room[0] = 10_000
        standing.notify(Notification("new"))
        assert told[3:6] == ["6", "7", "8"]
        assert told[-2:] == ["5", "new"]
        assert len(told) == MAX_KEPT_NOTICES + 1
    standing.notify(Notification("late"))
    assert told[-1] == "new"
    assert not standing.enqueue(Notification("log"))
    with standing.attached(say):
        assert told[-1] == "late"
    assert budget.by_owner() == {}


def charged(total: int = 1024 * 1024) -> tuple[Budget, StandingStream]:
    budget = Budget(total)
    return budget, StandingStream(budget, client_owner("ada"))


def updated(uri: str, more: str = "") -> Notification:
    return Notification(RESOURCE_UPDATED, Raw(json.dumps({"uri": uri, "more": more}).encode()))


def heard(standing: StandingStream) -> list[str]:
    """What is said to whoever listens now: of each notice, the last word of its params."""
    told: list[str] = []

    def say(message: Notification | Request) -> bool:
        told.append(list(json.loads(bytes(message.params or b"[0]")).values())[-1])
        return True

    with standing.attached(say):
        return told


def test_of_what_was_said_of_one_resource_the_newest_waits_and_is_charged() -> None:
    """(rule 22) Each is about its resource, whatever else it says; any other is about what it says."""
    budget, standing = charged()
    for n in range(100):
        for uri in ("x://a", "x://b"):
            standing.notify(updated(uri, f"{uri} {n} " + "x" * 1000))
        if n < 3:
            standing.notify(Notification("other", Raw(json.dumps({"n": str(n)}).encode())))
        assert 2000 < budget.by_owner()[client_owner("ada")] == budget.by_use()[Use.STREAMS] < 3000
    standing.notify(updated("x://a", "the last"))
    assert 1000 < budget.used < 2000
    assert [each.rstrip("x") for each in heard(standing)] == ["0", "1", "2", "x://b 99 ", "the last"]
    assert (budget.used, budget.by_owner()) == (0, {})


def test_what_waits_is_forgotten_where_its_memory_is_needed_and_waits_again() -> None:
    budget, standing = charged(10_000)
    for n in range(5):
        standing.notify(updated(f"x://{n}", "x" * 1000))
    assert budget.used > 5_000
    with budget.hold(client_owner("bob"), Use.REQUESTS, 4_900, lambda: None):
        assert budget.by_owner() == {client_owner("bob"): 4_900}
        assert heard(standing) == []
        standing.notify(updated("x://5", "again"))
        assert heard(standing) == ["again"]
    assert budget.by_owner() == {}


def test_where_there_is_no_memory_for_the_newest_the_former_of_the_same_stays() -> None:
    budget, standing = charged(10_000)
    standing.notify(updated("x://a", "former"))
    with budget.hold(client_owner("bob"), Use.REQUESTS, 2_000):  # cannot be dropped
        standing.notify(updated("x://a", "x" * 10_000))
        assert heard(standing) == ["former"]


def test_a_notice_that_makes_the_others_give_way_as_it_is_said_is_said() -> None:
    """A stream is charged with what it is to say."""
    budget, standing = charged(10_000)
    for n in range(3):
        standing.notify(updated(f"x://{n}", "x" * 3000))
    said = []

    def say(message: Notification | Request) -> bool:
        said.append(message)
        budget.hold(client_owner("ada"), Use.STREAMS, 1_000, lambda: None)
        return True

    with standing.attached(say):
        assert said == [updated("x://0", "x" * 3000)]
    assert budget.by_owner() == {client_owner("ada"): 1_000}


async def test_nothing_waits_for_a_client_that_is_gone() -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        session = (await world.client()).session
        session.standing.notify(updated("x://a"))
        assert world.memory.by_use()["streams"] > 0
        session.end()
        assert world.memory.by_use()["streams"] == 0
        session.standing.notify(updated("x://a"))
        assert world.memory.by_use()["streams"] == 0


def test_who_listens_last_is_told_and_stays_so_when_the_former_ends() -> None:
    _, standing = charged()
    told: list[str] = []

    def say(who: str, message: Notification | Request) -> bool:
        told.append(who)
        return True

    with standing.attached(partial(say, "first")):
        second = standing.attached(partial(say, "second"))
        second.__enter__()
    standing.notify(Notification("x"))
    assert told == ["second"]
    second.__exit__(None, None, None)
    assert not standing.enqueue(Notification("x"))


async def test_without_a_level_a_client_hears_logs_of_its_own_calls_from_info_up() -> None:
    """And of nothing else; with a level, what it asked for, wherever it comes from."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}})
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        nursery.start_soon(client.call, "a__x")
        asked = await server.hears("tools/call")
        for level, about in (("debug", asked["id"]), ("info", asked["id"]), ("emergency", None)):
            params = Raw(json.dumps({"level": level, "data": [level, about]}).encode())
            server.sends(Notification("notifications/message", params), about=about)
        await wait_all_tasks_blocked()
        assert [each["level"] for each in client.notifications_of("notifications/message")] == ["info", "emergency"]
        await client.request("logging/setLevel", {"level": "error"})
        server.says(asked["id"], {"content": []})
        await wait_all_tasks_blocked()
        for level in ("warning", "error"):
            await server.notifies("notifications/message", {"level": level, "data": 1})
        await wait_all_tasks_blocked()
        assert [each["level"] for each in client.notifications_of("notifications/message")][2:] == ["error"]
        nursery.cancel_scope.cancel()


async def test_a_session_that_ended_asks_nobody(autojump_clock: MockClock) -> None:
    """(rule 109)"""
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client(capabilities={"roots": {}})
        nursery.start_soon(client.call, "a__x")
        asked = await server.hears("tools/call")
        question = later(nursery, lambda: server.asks("roots/list", about=asked["id"]))
        await client.is_asked("roots/list")
        client.session.end()
        with pytest.raises(Refused):
            await question.comes()
        assert client.session.ended.is_set()
        client.replies(client.server_requests[0].id, {"roots": []})


async def test_without_a_level_a_client_hears_no_logs_that_belong_to_no_call(autojump_clock: MockClock) -> None:
    """Not even from a server that serves it alone."""
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, "logging": {}}, isolation=Isolation.PER_CLIENT)
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        nursery.start_soon(client.listen_changes)
        nursery.start_soon(client.call, "a__x")
        server.says((await server.hears("tools/call"))["id"], {"content": []})
        await wait_all_tasks_blocked()
        await server.notifies("notifications/message", {"level": "emergency", "data": 1})
        await wait_all_tasks_blocked()
        assert client.notifications == []
        await client.request("logging/setLevel", {"level": "debug"})
        await server.notifies("notifications/message", {"level": "debug", "data": 2})
        await wait_all_tasks_blocked()
        assert [each["data"] for each in client.notifications_of("notifications/message")] == [2]
        nursery.cancel_scope.cancel()


async def test_while_a_call_is_being_called_off_its_progress_is_not_told(
    monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """The server is slow to take the cancel (rule 47)."""

    async def slowly(link: MemoryLink, id: Id, notice: Notification) -> None:
        await trio.sleep(1)

    monkeypatch.setattr(MemoryLink, "send_cancel", slowly)
    server = ScriptedServer("a", tools=["x"])
    async with open_world(server) as world, trio.open_nursery() as nursery:
        await world.settled()
        client = await world.client()
        params = {"name": "a__x", "_meta": {"progressToken": "t"}}
        nursery.start_soon(client.request, "tools/call", params, 5)
        token = (await server.hears("tools/call"))["_meta"]["progressToken"]
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 1})
        await wait_all_tasks_blocked()
        client.notifies("notifications/cancelled", {"requestId": 5})
        await trio.sleep(0.5)
        await server.notifies("notifications/progress", {"progressToken": token, "progress": 2})
        await trio.sleep(1)
        assert [each["progress"] for each in client.notifications_of("notifications/progress")] == [1]


async def test_a_question_that_never_went_out_is_not_called_off() -> None:
    """There was no room for it, and then it was withdrawn."""
    tried: list[object] = []

    def say(message: Notification | Request) -> bool:
        tried.append(type(message))
        return False

    async with open_client(ScriptedServer("a", tools=["x"])) as (_, client, _):
        handle = _RequestHandle(client.session, say, CallScope())
        with trio.CancelScope() as withdrawn:
            withdrawn.cancel()
            await handle.request("roots/list", {}, None)
        assert Notification not in tried


# Declared capabilities

EVERYTHING = {
    "tools": {"listChanged": True},
    "resources": {"listChanged": True, "subscribe": True},
    "prompts": {"listChanged": True},
    "completions": {},
    "logging": {},
}
HAS = {"tools": {}, "resources": {"subscribe": True}, "logging": {}}
INFO = {"name": "g\u200bh", "version": "3", "icons": []}


def declaring(revision: str, seconds: float = 0.0) -> ScriptedServer:
    """A server that says after so many seconds what it has."""

    async def initialize(params: dict[str, Any]) -> object:
        await trio.sleep(seconds)
        return {"protocolVersion": revision, "capabilities": HAS, "serverInfo": INFO}

    async def discover(params: dict[str, Any]) -> object:
        if revision != LATEST.name:
            raise PeerError(ErrorBody(-32601, "Method not found"))
        await trio.sleep(seconds)
        meta = {"io.modelcontextprotocol/serverInfo": INFO}
        return {
            "resultType": "complete",
            "supportedVersions": [revision],
            "capabilities": HAS,
            "ttlMs": 0,
            "cacheScope": "private",
            "_meta": meta,
        }

    answers = {"server/discover": discover}
    if revision != LATEST.name:
        answers["initialize"] = initialize
    return ScriptedServer("a", tools=["x"], revision=revision, answers=answers)


async def declared(connection: Connection, path: str, *, stateless: bool) -> tuple[dict[str, Any], Any]:
    """The capabilities of the endpoint, and what its server calls itself."""
    if stateless:
        found = await connection.result("server/discover", path=path)
        validate_server_result("server/discover", LATEST.name, found)
        assert found["_meta"][f"{IO}serverInfo"]["name"] == "colonnade"
    else:
        (message,) = (await connection.another().open(path)).messages()
        found = message["result"]
        validate_server_result("initialize", "2025-11-25", found)
        assert found["serverInfo"]["name"] == "colonnade"
    return found["capabilities"], found.get("_meta", {}).get("colonnade/serverInfo")


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("revision", ["2025-11-25", LATEST.name])
async def test_at_its_own_endpoint_a_server_declares_what_it_has(
    revision: str, stateless: bool, autojump_clock: MockClock
) -> None:
    """At the endpoint of all servers everything is declared, since any may come."""
    pages: dict[str, Any] = {"extensions": {f"{IO}ui": {}}}
    async with open_http_app(declaring(revision, 2.9)) as (_, connection):
        everything, nothing = await declared(connection, "/mcp", stateless=stateless)
        assert {name: each for name, each in everything.items() if name in EVERYTHING} == EVERYTHING
        assert nothing is None
        capabilities, info = await declared(connection, "/mcp/a", stateless=stateless)
        assert capabilities == {**HAS, **(pages if stateless else {})}
        assert info == {"name": "gh", "version": "3"}


@pytest.mark.parametrize("path", ["/mcp", "/mcp/a"])
@pytest.mark.parametrize("stateless", [False, True])
async def test_what_is_not_known_of_a_server_is_declared_all_the_same(
    stateless: bool, path: str, autojump_clock: MockClock
) -> None:
    """No server is waited for, but by the first list. A client gets the capabilities only once, and the server may have
    them when it comes."""
    async with open_http_app(declaring("2025-11-25", 2.9), settled=False) as (_, connection):
        capabilities, info = await declared(connection, path, stateless=stateless)
        assert trio.current_time() < 0.1
        assert {name: each for name, each in capabilities.items() if name in EVERYTHING} == EVERYTHING
        assert info is None
        tools = (await connection.result("tools/list", path=path))["tools"]
        assert [each["name"] for each in tools] == ["x" if path == "/mcp/a" else "a__x"]
        assert trio.current_time() == pytest.approx(2.9, abs=0.1)


@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("trust", [Trust.STANDARD, Trust.UNTRUSTED])
async def test_tasks_and_pages_are_declared_for_a_server_that_has_them(
    trust: Trust, stateless: bool, autojump_clock: MockClock
) -> None:
    tasks: dict[str, Any] = {"tasks": {"cancel": {}, "requests": {"tools": {"call": {}}}}}
    server = ScriptedServer("a", tools=["x"], capabilities={"tools": {}, **tasks}, trust=trust)
    async with open_http_app(server) as (_, connection):
        capabilities, _ = await declared(connection, "/mcp/a", stateless=stateless)
        named = capabilities.get("extensions", {})
        assert (f"{IO}ui" in named) is (stateless and trust is Trust.STANDARD)
        assert (f"{IO}tasks" in named, "tasks" in capabilities) == (stateless, not stateless)


async def test_what_is_remembered_of_a_server_is_declared_at_once(tmp_path: Path, autojump_clock: MockClock) -> None:
    async with open_world(declaring("2025-11-25"), state=tmp_path) as world:
        await world.settled()
        await trio.sleep(SAVE_INTERVAL)
        began = trio.current_time()
    async with open_client(declaring("2025-11-25", 100), state=tmp_path, endpoint="a") as (_, client, _):
        assert trio.current_time() - began < 1
        assert client.opened["capabilities"] == HAS  # type: ignore[attr-defined]
        assert client.opened["_meta"] == {"colonnade/serverInfo": {"name": "gh", "version": "3"}}  # type: ignore[attr-defined]


UNDECLARED: dict[str, dict[str, Any]] = {
    "logging/setLevel": {"level": "info"},
    "prompts/list": {},
    "resources/list": {},
    "resources/templates/list": {},
    "completion/complete": {"ref": {"type": "ref/prompt", "name": "p"}, "argument": {"name": "a", "value": ""}},
}


@pytest.mark.parametrize("stateless", [False, True])
async def test_what_the_only_server_does_not_declare_is_no_method_there(stateless: bool) -> None:
    """As a client that talks to it directly is told. All servers together declare everything."""
    async with open_http_app(ScriptedServer("a", tools=["x"], capabilities={"tools": {}})) as (world, connection):
        clients = {path: await world.client(path) for path in ("a", None)}

        async def ask(path: str | None, method: str) -> dict[str, Any]:
            if stateless:
                return await connection.result(method, UNDECLARED[method], path="/mcp/a" if path else "/mcp")
            return dict(await clients[path].request(method, UNDECLARED[method]))

        for method in UNDECLARED:
            with pytest.raises(Refused) as refused:
                await ask("a", method)
            assert (refused.value.code, refused.value.message) == (-32601, "Method not found")
            if method in ("completion/complete", "logging/setLevel"):
                continue  # no such prompt; a method that stateless clients do not have
            assert (await ask(None, method)).popitem()
        assert (await clients[None].request("logging/setLevel", {"level": "info"})) == {}


async def test_what_was_declared_to_a_client_stays_a_method_for_it(autojump_clock: MockClock) -> None:
    """The server was not known then, so everything was declared."""
    async with open_world(declaring("2025-11-25", 2.9)) as world:
        client = await world.client("a", early=True)
        await world.settled()
        assert (await client.request("prompts/list", {}))["prompts"] == []
        with pytest.raises(Refused) as refused:
            await (await world.client("a")).request("prompts/list", {})
        assert refused.value.code == -32601


async def test_a_server_that_turns_out_not_to_complete_says_so_at_its_own_endpoint() -> None:
    """2024-11-05 has no capability for it."""

    async def refuse(params: dict[str, Any]) -> object:
        raise PeerError(ErrorBody(-32601, "Method not found"))

    server = ScriptedServer("a", prompts=["p"], revision="2024-11-05", answers={"completion/complete": refuse})
    async with open_world(server) as world:
        for endpoint, name in ((None, "a__p"), ("a", "p")):
            client = await world.client(endpoint)
            params = {"ref": {"type": "ref/prompt", "name": name}, "argument": {"name": "a", "value": ""}}
            if endpoint is None:
                assert (await client.request("completion/complete", params))["completion"]["values"] == []
            else:
                with pytest.raises(Refused) as refused:
                    await client.request("completion/complete", params)
                assert refused.value.code == -32601


BESIDE: dict[str, Any] = {
    "vendor": {"a": 1.5},
    "_meta": {"vendor/b": "x", "progressToken": 1, "colonnade/serverInfo": "mine", f"{IO}logLevel": "debug"},
    "ProtocolVersion": "1",
    "SupportedVersions": ["1"],
}
PASSED = {"vendor": {"a": 1.5}, "_meta": {"vendor/b": "x"}}


@pytest.mark.few(2)
@pytest.mark.parametrize("stateless", [False, True])
@pytest.mark.parametrize("revision", ["2025-11-25", LATEST.name])
async def test_what_a_server_says_beside_is_passed_on_at_its_own_endpoint(revision: str, stateless: bool) -> None:
    """In the first result and in its lists; not what belongs to its connection, or is Colonnade's to say."""

    def saying(trust: Trust) -> ScriptedServer:
        server = declaring(revision)
        server.spec = replace(server.spec, trust=trust)
        first = "server/discover" if revision == LATEST.name else "initialize"
        said = server.answers[first]

        async def answer(params: dict[str, Any]) -> object:
            found: Any = await said(params)
            return {**BESIDE, **found, "_meta": {**BESIDE["_meta"], **found.get("_meta", {})}}

        async def list_tools(params: dict[str, Any]) -> object:
            return {**PASSED, "_meta": BESIDE["_meta"], "resultType": "complete", "tools": [tool("x")]}

        server.answers |= {first: answer, "tools/list": list_tools}
        return server

    async def heard(server: ScriptedServer, path: str) -> list[dict[str, Any]]:
        async with open_http_app(server) as (_, connection):
            if stateless:
                first = await connection.result("server/discover", path=path)
                listed = await connection.result("tools/list", path=path)
            else:
                client = connection.another()
                (opened,) = (await client.open(path)).messages()
                first, listed = opened["result"], (await client.request("tools/list", path=path))["result"]
            own = {*PASSED, *BESIDE}
            results = [{name: each for name, each in found.items() if name in own} for found in (first, listed)]
            for found in results:
                for name in ("colonnade/serverInfo", f"{IO}serverInfo"):
                    assert found.get("_meta", {}).pop(name, None) != "mine"
                if not found.get("_meta"):
                    found.pop("_meta", None)
            return results

    assert await heard(saying(Trust.STANDARD), "/mcp/a") == [PASSED, PASSED]
    assert await heard(saying(Trust.STANDARD), "/mcp") == [{}, {}]
    assert await heard(saying(Trust.UNTRUSTED), "/mcp/a") == [{}, {}]
