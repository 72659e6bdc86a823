"""Which clients are shown as connected, over each transport."""

from __future__ import annotations

import gc
import time

import trio
from trio.testing import MockClock, wait_all_tasks_blocked

from config import Auth, Listen, Secret, ViewSpec
from host.client_process import ClientProcess
from host.downstream.connected_clients import ConnectedClients
from host.downstream.sessions import Session
from host.source import SHARED, Endpoint
from tests.host.downstream.http.test_sse import OldClient
from tests.host.downstream.test_stateless_stdio import stating
from tests.host.downstream.test_stdio import open_stdio
from tests.kit.asgi import IO, LATEST, open_http_app
from tests.kit.world import ScriptedServer, open_world

TOKEN = "laptop-0123456789abcdef"


async def test_a_client_is_shown_with_what_the_kernel_knows_and_what_it_says() -> None:
    async with open_world(ScriptedServer("a", tools=["x"]), views={"v": ViewSpec()}) as world:
        clients = ConnectedClients()
        process = ClientProcess("claude", 7, "/work", {"A": "b"})
        client = await world.client(Endpoint("a", "v"), identity="laptop", process=process)
        clients.add(client.session, "relay")
        (row,) = clients.rows()
        assert row == {
            "since": row["since"],
            "says": "test 1",
            "process": {"program": "claude", "pid": 7, "folder": "/work"},
            "transport": "relay",
            "token": "laptop",
            "endpoint": "a",
            "view": "v",
            "era": "handshake",
            "revision": "2025-11-25",
        }
        assert abs(row["since"] - time.time()) < 60
        client.session.end()
        assert clients.rows() == []


async def test_a_session_is_not_kept_by_being_shown() -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        clients = ConnectedClients()
        session = Session("test", SHARED, world.router, world.journal, memory=world.memory, process=ClientProcess())
        clients.add(session, "stdio")
        assert [row["process"] for row in clients.rows()] == [None]
        del session
        gc.collect()
        assert clients.rows() == []


async def test_sessions_over_http_are_shown_until_they_end() -> None:
    async with open_http_app() as (_, connection):
        await connection.open("/mcp/a")
        old = OldClient(connection)
        await old.opens()
        rows = connection.clients.rows()
        assert [(row["transport"], row["says"], row["endpoint"], row["revision"]) for row in rows] == [
            ("http", "t 1", "a", "2025-11-25"),
            ("sse", "old 1", "", "2024-11-05"),
        ]
        assert [row["process"] for row in rows] == [None, None]
        assert (await connection.get("DELETE", "/mcp/a")).status == 204
        assert [row["transport"] for row in connection.clients.rows()] == ["sse"]
        connection.leaves.set()
        await wait_all_tasks_blocked()
        assert connection.clients.rows() == []


async def test_the_token_of_a_client_is_named() -> None:
    async with open_http_app(listen=Listen(auth=Auth({"laptop": Secret(TOKEN)}))) as (_, connection):
        connection.headers["authorization"] = f"Bearer {TOKEN}"
        await connection.open()
        assert [row["token"] for row in connection.clients.rows()] == ["laptop"]


async def test_the_client_over_stdio_is_shown_whatever_its_era() -> None:
    async with open_stdio() as (_, client):
        await wait_all_tasks_blocked()
        (row,) = client.clients.rows()
        assert (row["transport"], row["era"], row["revision"], row["says"]) == ("stdio", "", "", "")
        info = {f"{IO}clientInfo": {"name": "new\u202e", "version": "3"}}
        await client.says(stating("tools/list", **info))
        await client.hears()
        (row,) = client.clients.rows()
        assert (row["era"], row["revision"], row["says"]) == ("stateless", LATEST, "new⟨U+202E⟩ 3")
        await client.shakes_hands()
        (row,) = client.clients.rows()
        assert (row["era"], row["revision"], row["says"]) == ("handshake", "2025-11-25", "t 1")


async def test_how_long_a_session_lasted_is_told_once(autojump_clock: MockClock) -> None:
    async with open_world(ScriptedServer("a", tools=["x"])) as world:
        clients, told = ConnectedClients(), list[tuple[str, str, float]]()
        client = await world.client()
        clients.on_end = lambda *ended: told.append(ended)
        clients.add(client.session, "http")
        assert clients.count() == {"http": 1}
        await trio.sleep(5)
        client.session.end()
        client.session.end()
        assert clients.count() == {}
    assert told == [("http", "2025-11-25", 5)]
