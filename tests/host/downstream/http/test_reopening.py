"""Sessions that outlive their process. A host that is still open while the next one begins stands for one that was
killed, and for one more host of the same configuration: both leave the store as it is."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack, closing
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import trio
from trio.testing import MockClock

from config import DEFAULT_CAPACITY, Auth, Isolation, Listen, Secret, ViewSpec
from host.addresses import Addresses
from host.attempts import Reason
from host.downstream.sessions import Session
from host.downstream.stored_sessions import IDLE_TIMEOUT, PAUSE, READ_PAUSE, RETRY_INTERVAL, TOUCH_INTERVAL
from host.journal import AttemptRefused, SessionsNotStored
from host.storage.sqlite import SqliteStore
from tests.kit.asgi import Connection, Response, open_http_app
from tests.kit.gates import locked
from tests.kit.world import ScriptedServer, World

PING = {"jsonrpc": "2.0", "id": 1, "method": "ping"}
LAPTOP, DESK = "laptop-0123456789abcdef", "desk-0123456789abcdef"
DECLARED = {"tools": {"listChanged": True}, "resources": {"listChanged": True, "subscribe": True}, "logging": {}}
PROMPTS, RESOURCES, TOOLS = (f"notifications/{each}/list_changed" for each in ("prompts", "resources", "tools"))
UPDATED = "notifications/resources/updated"
OpenHost = Callable[..., AbstractAsyncContextManager[tuple[World, Connection]]]


@pytest.fixture
def open_host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> OpenHost:
    """A host of one configuration, for a block, with these servers: by default `a`, with a tool and a resource."""
    monkeypatch.setattr("host.storage.sqlite_file.BUSY_LIMIT", 0.01)

    def open_one(*servers: ScriptedServer, **more: Any) -> AbstractAsyncContextManager[tuple[World, Connection]]:
        return open_http_app(*(servers or (server(),)), state=tmp_path, key=bytes(32), stores_sessions=True, **more)

    return open_one


async def done(params: dict[str, Any]) -> object:
    await trio.lowlevel.checkpoint()
    return {"content": []}


def server(**more: Any) -> ScriptedServer:
    answers = {"tools/call": done}
    return ScriptedServer("a", tools=["x"], resources=["a://x"], capabilities=DECLARED, answers=answers, **more)


def tokens(**by_name: str) -> Listen:
    return Listen(auth=Auth({name: Secret(token) for name, token in by_name.items()}))


async def stored() -> None:
    """Until what has happened is stored."""
    await trio.sleep(4 * PAUSE)


def moved(client: Connection, to: Connection) -> Connection:
    """The client, which reaches another host from now on."""
    other = to.another(client.session)
    other.headers, other.clients = dict(client.headers), to.clients
    return other


async def status(client: Connection) -> int:
    return (await client.get("POST", body=PING)).status


def only_session(client: Connection) -> Session:
    (session,) = client.clients._sessions
    return session


def methods(response: Response) -> list[str]:
    return [each["method"] for each in response.messages()]


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_session_goes_on_in_the_next_process(
    is_killed: bool, open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with AsyncExitStack() as hosts:
        _, before = await hosts.enter_async_context(open_host())
        await before.open(revision="2025-06-18", capabilities={"sampling": {}, "experimental": {"y": {}}})
        await before.request("logging/setLevel", {"level": "debug"})
        described = only_session(before).describe()
        if is_killed:
            await stored()
        else:
            await hosts.aclose()
        a = server()
        _, after = await hosts.enter_async_context(open_host(a))
        client = moved(before, after)
        assert [each["name"] for each in (await client.request("tools/list"))["result"]["tools"]] == ["a__x"]
        assert (await client.request("tools/call", {"name": "a__x"}))["result"] == {"content": []}
        assert only_session(client).describe() == described
        assert client.clients.rows()[0]["says"] == "t 1"
        other_revision = {"mcp-protocol-version": "2025-11-25"}
        assert (await client.get("POST", body=PING, headers=other_revision)).status == 400
        standing = client.send("GET")
        await standing.started.wait()
        await a.notifies("notifications/message", {"level": "debug", "data": "z"})
        assert "notifications/message" in [each["method"] for each in await standing.wait_messages(1)]


async def test_each_list_is_said_to_have_changed_once(open_host: OpenHost, autojump_clock: MockClock) -> None:
    async with open_host() as (_, before):
        await before.open()
        await stored()
        async with open_host() as (_, after):
            standing = moved(before, after).send("GET")
            await trio.sleep(10)
            assert sorted(methods(standing)) == [PROMPTS, RESOURCES, TOOLS]
        async with open_host() as (_, after):
            client = moved(before, after)
            await client.request("tools/list")
            standing = client.send("GET", headers={"last-event-id": "1-7"})
            await trio.sleep(10)
            assert sorted(methods(standing)) == [PROMPTS, RESOURCES]


@pytest.mark.slow
async def test_of_one_server_only_what_it_declares_is_said_to_have_changed(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host() as (_, before):
        await before.open("/mcp/a")
        await stored()
        async with open_host() as (_, after):
            standing = moved(before, after).send("GET", "/mcp/a")
            await trio.sleep(10)
            assert sorted(methods(standing)) == [RESOURCES, TOOLS]


async def test_subscriptions_go_on_and_what_may_have_changed_is_told(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host() as (_, before):
        await before.open()
        for uri in ("a://x", "a://y"):
            await before.request("resources/subscribe", {"uri": uri})
        await before.request("resources/unsubscribe", {"uri": "a://y"})
        await stored()
        a = server()
        async with open_host(a) as (_, after):
            client = moved(before, after)
            assert await status(client) == 200
            assert only_session(client).watched == {"a://x": None}, "also in a row that is written at once"
            await trio.sleep(1)
            assert a.asked.count("resources/subscribe") == 1
            standing = client.send("GET")
            await trio.sleep(10)
            (updated,) = (each for each in standing.messages() if each["method"] == UPDATED)
            assert updated["params"] == {"uri": "a://x"}
            await a.notifies(UPDATED, {"uri": "a://x"})
            await trio.sleep(1)
            assert methods(standing).count(UPDATED) == 2
            assert only_session(client).watched == {"a://x": None}
            await client.request("resources/unsubscribe", {"uri": "a://x"})
            await trio.sleep(1)
            assert a.asked[-1] == "resources/unsubscribe"


async def test_subscriptions_go_on_after_one_kill_after_the_other(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    """Each process stores the session before its subscriptions are granted."""
    async with AsyncExitStack() as hosts:
        _, client = await hosts.enter_async_context(open_host())
        await client.open()
        await client.request("resources/subscribe", {"uri": "a://x"})
        for _ in range(4):
            await stored()
            a = server()
            client = moved(client, (await hosts.enter_async_context(open_host(a)))[1])
            assert await status(client) == 200
            await trio.sleep(1)
            assert a.asked.count("resources/subscribe") == 1


@pytest.mark.slow
async def test_a_subscription_waits_for_its_server_and_no_call_waits_for_it(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host() as (_, before):
        await before.open()
        await before.request("resources/subscribe", {"uri": "a://x"})
        await stored()
        a, b = server(), ScriptedServer("b", tools=["y"], answers={"tools/call": done})
        slow = trio.Event()

        async def initialize(params: dict[str, Any]) -> object:
            await slow.wait()
            found = a._builtin("initialize", params)
            return found

        a.answers["initialize"] = initialize
        async with open_host(a, b, settled=False) as (_, after):
            client = moved(before, after)
            assert (await client.request("tools/call", {"name": "b__y"}))["result"] == {"content": []}
            standing = client.send("GET")
            await trio.sleep(400)
            assert UPDATED not in methods(standing)
            slow.set()
            await trio.sleep(70)
            assert a.asked.count("resources/subscribe") == 1
            assert methods(standing).count(UPDATED) == 1


async def test_a_client_that_unsubscribes_before_its_subscription_goes_on_hears_nothing(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host() as (_, before):
        await before.open()
        await before.request("resources/subscribe", {"uri": "a://x"})
        await stored()
        a, answers = server(), trio.Event()

        async def subscribe(params: dict[str, Any]) -> object:
            await answers.wait()
            return {}

        a.answers["resources/subscribe"] = subscribe
        async with open_host(a) as (_, after):
            client = moved(before, after)
            standing = client.send("GET")
            await trio.sleep(1)
            assert "result" in await client.request("resources/unsubscribe", {"uri": "a://x"})
            answers.set()
            await trio.sleep(10)
            assert only_session(client).watched == {}
            told = methods(standing).count(UPDATED)
            await a.notifies(UPDATED, {"uri": "a://x"})
            await trio.sleep(1)
            assert methods(standing).count(UPDATED) == told


async def test_requests_that_come_at_once_open_one_session(
    open_host: OpenHost, autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []
    read = SqliteStore.read_session

    async def counted(store: SqliteStore, id: str) -> object:
        reads.append(id)
        return await read(store, id)

    monkeypatch.setattr(SqliteStore, "read_session", counted)
    async with open_host() as (_, before):
        await before.open()
        await stored()
        async with open_host() as (_, after):
            client = moved(before, after)
            answers = [client.another(client.session).send("POST", body={**PING, "id": id}) for id in range(20)]
            listening = client.send("GET")
            for answer in answers:
                await answer.complete.wait()
            await listening.started.wait()
            assert {each.status for each in (*answers, listening)} == {200}
            assert (len(reads), len(client.clients.rows())) == (1, 1)
            own = client.session or ""
            first, last = ("A" if own[at] != "A" else "B" for at in (0, -1))
            for id in (own[:-1] + last, first + own[1:], "x" * 32, "x" * 31, own + "A", "\u00b2" * 32):
                client.session = id
                assert await status(client) in (400, 404)
            assert len(reads) == 1, "an id that was not made here is not looked up"


async def test_only_its_own_client_gets_it(open_host: OpenHost, autojump_clock: MockClock) -> None:
    """And a try with another's token is recorded, as while the session is open."""
    both = tokens(laptop=LAPTOP, desk=DESK)
    async with open_host(listen=both) as (_, before):
        before.headers = {"authorization": f"Bearer {LAPTOP}"}
        await before.open()
        await stored()
        async with open_host(listen=both) as (world, after):
            client = moved(before, after)
            foreign = moved(before, after)
            foreign.headers = {"authorization": f"Bearer {DESK}"}
            assert [await status(foreign), (await foreign.get("DELETE")).status] == [404, 404]
            assert (await client.get("POST", "/mcp/a", PING)).status == 404
            world.gate.decision_log.flush_attempts()
            attempts = [each.attempt for each in world.events if isinstance(each, AttemptRefused)]
            assert {(each.reason, each.name, each.principal) for each in attempts} == {
                (Reason.SESSION, "/mcp", "desk"),
                (Reason.SESSION, "/mcp/a", "laptop"),
            }
            assert await status(client) == 200


@pytest.mark.parametrize("listen", [tokens(desk=DESK), tokens(laptop="another-0123456789abcdef", desk=DESK), Listen()])
async def test_a_session_of_a_token_that_is_not_valid_any_more_is_none(
    listen: Listen, open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host(listen=tokens(laptop=LAPTOP)) as (_, before):
        before.headers = {"authorization": f"Bearer {LAPTOP}"}
        await before.open()
        await stored()
        async with open_host(listen=listen) as (_, after):
            client = moved(before, after)
            for token in (LAPTOP, DESK, "another-0123456789abcdef"):
                client.headers = {"authorization": f"Bearer {token}"}
                assert await status(client) in (401, 404)
            assert client.clients.rows() == []


async def test_a_session_of_a_view_that_is_gone_is_none(open_host: OpenHost, autojump_clock: MockClock) -> None:
    async with open_host(views={"v": ViewSpec()}) as (_, before):
        await before.open("/mcp/@v")
        await stored()
        async with open_host() as (_, after):
            client = moved(before, after)
            assert (await client.get("POST", "/mcp/@v", PING)).status == 404
            assert await status(client) == 404


async def test_a_session_that_has_ended_never_comes_back(open_host: OpenHost, autojump_clock: MockClock) -> None:
    """By its client, or with its token; the answer to DELETE comes when that is stored."""
    listen = tokens(laptop=LAPTOP, desk=DESK)
    async with open_host(listen=listen) as (_, before):
        clients = [before, before.another()]
        for client, token in zip(clients, (LAPTOP, DESK), strict=True):
            client.headers = {"authorization": f"Bearer {token}"}
            await client.open()
        await stored()
        assert (await before.get("DELETE")).status == 204
        async with open_host(listen=listen) as (_, after):
            assert await status(moved(before, after)) == 404
        before.change_access(tokens(laptop=LAPTOP), Addresses())
        await stored()
        async with open_host(listen=listen) as (_, after):
            assert [await status(moved(each, after)) for each in clients] == [404, 404]


async def test_a_session_that_could_not_be_removed_is_not_said_to_be(
    open_host: OpenHost, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_host() as (_, before):
        await before.open()
        await stored()
        with locked(tmp_path):
            assert (await before.get("DELETE")).status == 503
        assert await status(before) == 404
        await trio.sleep(2 * RETRY_INTERVAL)
        async with open_host() as (_, after):
            assert await status(moved(before, after)) == 404


async def test_a_session_with_an_instance_of_its_own_ends_with_its_process(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    """The state of that instance would be lost without a word."""
    async with open_host(server(isolation=Isolation.PER_CLIENT)) as (_, before):
        await before.open()
        other = before.another()
        await other.open()
        await stored()
        assert (await before.request("tools/call", {"name": "a__x"}))["result"] == {"content": []}
        await stored()
        async with open_host(server(isolation=Isolation.PER_CLIENT)) as (_, after):
            assert [await status(moved(each, after)) for each in (before, other)] == [404, 200]


@pytest.mark.few(1)
@pytest.mark.parametrize("changed", ["sealed = replace(sealed, 'c1.A', 'c1.B')", "sealed = other", "id = other"])
async def test_a_row_that_was_changed_without_the_key_opens_nothing(
    changed: str, open_host: OpenHost, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_host() as (_, before):
        await before.open()
        other = before.another()
        await other.open()
        await stored()
        with closing(sqlite3.connect(tmp_path / "colonnade.db")) as database, database:
            rows = database.execute("SELECT id, sealed FROM session").fetchall()
            (first, sealed), (second, _) = rows
            if changed.startswith("sealed = replace"):
                database.execute("UPDATE session SET sealed = sealed || 'A'")
            elif changed.startswith("sealed"):
                database.execute("UPDATE session SET sealed = ?", (sealed,))
            else:
                database.execute("DELETE FROM session WHERE id = ?", (first,))
                database.execute("UPDATE session SET id = ?, sealed = ? WHERE id = ?", (first, sealed, second))
        async with open_host() as (_, after):
            found = [await status(moved(each, after)) for each in (before, other)]
            assert found.count(200) == (0 if changed.startswith("sealed = replace") else 1)


@pytest.mark.slow
async def test_a_session_is_kept_as_long_as_it_is_used_and_an_hour_longer(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host() as (_, before):
        listening, busy, idle = before, before.another(), before.another()
        for client in (listening, busy, idle):
            await client.open()
        stream = listening.another(listening.session).send("GET")
        for _ in range(20):
            await trio.sleep(TOUCH_INTERVAL / 2)
            assert await status(busy) == 200
        await trio.sleep(IDLE_TIMEOUT - 20 * TOUCH_INTERVAL / 2 + 10)
        async with open_host() as (_, after):
            assert [await status(moved(each, after)) for each in (listening, busy, idle)] == [200, 200, 404]
        assert not stream.complete.is_set()


async def test_the_last_use_is_stored_at_a_stop(open_host: OpenHost, autojump_clock: MockClock) -> None:
    async with AsyncExitStack() as hosts:
        _, before = await hosts.enter_async_context(open_host())
        await before.open()
        await trio.sleep(TOUCH_INTERVAL - 10)
        assert await status(before) == 200
        await hosts.aclose()
        await trio.sleep(IDLE_TIMEOUT - TOUCH_INTERVAL / 2)
        _, after = await hosts.enter_async_context(open_host())
        assert await status(moved(before, after)) == 200


async def test_without_the_store_sessions_are_served_and_that_is_noted_once(
    open_host: OpenHost, autojump_clock: MockClock, tmp_path: Path
) -> None:
    async with open_host() as (world, before):
        with locked(tmp_path):
            await before.open()
            await trio.sleep(5 * RETRY_INTERVAL)
            assert (await before.request("tools/call", {"name": "a__x"}))["result"] == {"content": []}
            assert [type(each) for each in world.events].count(SessionsNotStored) == 1
        await trio.sleep(2 * RETRY_INTERVAL)
        async with open_host() as (_, after):
            client = moved(before, after)
            with locked(tmp_path):
                refused = await client.get("POST", body=PING)
                assert (refused.status, refused.headers["retry-after"]) == (503, "2")
            await trio.sleep(READ_PAUSE)
            assert await status(client) == 200


async def test_the_session_that_made_room_comes_back_when_it_is_used(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host(capacity=replace(DEFAULT_CAPACITY, sessions=1)) as (_, before):
        clients = [before, before.another()]
        for client in clients:
            await client.open()
        await stored()
        for client in clients * 2:
            assert await status(client) == 200
        assert len(before.clients.rows()) <= 1


async def test_a_full_host_asks_for_a_moment(open_host: OpenHost, autojump_clock: MockClock) -> None:
    listen, capacity = tokens(laptop=LAPTOP, desk=DESK), replace(DEFAULT_CAPACITY, sessions=1)
    async with open_host(listen=listen) as (_, before):
        before.headers = {"authorization": f"Bearer {LAPTOP}"}
        await before.open()
        await stored()
        async with open_host(listen=listen, capacity=capacity) as (_, after):
            busy = after.another()
            busy.headers = {"authorization": f"Bearer {DESK}"}
            await busy.open()
            stream = busy.send("GET")
            await stream.started.wait()
            refused = await moved(before, after).get("POST", body=PING)
            assert (refused.status, refused.headers["retry-after"]) == (503, "5")


@pytest.mark.slow
async def test_two_hosts_take_turns_and_none_undoes_what_the_other_has_done(
    open_host: OpenHost, autojump_clock: MockClock
) -> None:
    async with open_host() as (_, one), open_host() as (_, two):
        await one.open()
        await stored()
        client = moved(one, two)
        assert await status(client) == 200
        await client.request("logging/setLevel", {"level": "error"})
        await stored()
        assert await status(one) == 200, "the copy of the former host is there, too"
        assert (await client.get("DELETE")).status == 204
        await trio.sleep(2 * TOUCH_INTERVAL)
        await stored()
        async with open_host() as (_, third):
            assert await status(moved(one, third)) == 404, "the former host has not stored it again"
