"""What clients hold when the host is killed and started again: cursors, states of calls and tasks, in both eras. The
official SDK's client, whose host is killed while its user fills in forms, and one by hand for tasks, which the SDK does
not have."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import pytest
import trio
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.types import CallToolResult, ElicitRequestParams, ElicitResult

from tests.kit.ports import free_port

from .clients import PATIENCE, SDK_LEAKS, HandClient, by_hand, eventually, sdk, text_of
from .running import BARE_PYTHON, SERVERS, START, listening, serving, write_config

pytestmark = SDK_LEAKS

UPDATED, CHANGED = "notifications/resources/updated", "notifications/resources/list_changed"
LATEST = "2026-07-28"
IO = "io.modelcontextprotocol/"
ANY = [*BARE_PYTHON, str(SERVERS / "any_revision.py"), "--revision"]
TWO_PAGES = [*BARE_PYTHON, str(SERVERS / "many_pages.py"), "1", str(5 * 1024 * 1024)]


class Restarting:
    """A host that can be killed and started again, at one address. Its server `outside` goes on meanwhile."""

    def __init__(self, file: Path, hosts: ExitStack) -> None:
        self._file = file
        self._hosts = hosts
        self.start()

    def start(self) -> None:
        self._host = self._hosts.enter_context(serving(self._file, "inside", "outside", "many", stop=False))

    @property
    def url(self) -> str:
        return self._host.url

    async def stores_other_than(self, former: str) -> str:
        """What is stored of its only session, once that is there and differs from this."""
        found = former

        async def differs() -> bool:
            nonlocal found
            await trio.lowlevel.checkpoint()
            with closing(sqlite3.connect(self._file.parent / "state" / "colonnade.db")) as database:
                ((found,),) = database.execute("SELECT sealed FROM session").fetchall() or ((former,),)
            return found != former

        await eventually(differs, PATIENCE)
        return found

    async def restart(self) -> None:
        self._host.process.kill()
        self._host.process.wait()
        await trio.to_thread.run_sync(self.start)


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Restarting]:
    with listening(*ANY, LATEST, "--transport", "http", folder=tmp_path) as (_, url), ExitStack() as hosts:
        servers: dict[str, Any] = {
            "inside": {"command": [*ANY, "2025-11-25", "--transport", "stdio"]},
            "outside": {"url": url},
            "many": {"command": TWO_PAGES},
        }
        yield Restarting(write_config(tmp_path, servers, listen={"address": f"127.0.0.1:{free_port()}"}), hosts)


@pytest.mark.slow
async def test_what_clients_hold_is_honoured_or_told_as_lost_after_a_kill(host: Restarting) -> None:
    """A list is paged on. A call goes on if all that it needs is in its state; else its client hears that the tool may
    have run, and it runs no second time. A task is over (rules 80, 91, 94, 108)."""
    cursors: dict[str, tuple[str, set[str]]] = {}
    for mode in ("legacy", "auto"):
        async with Client(host.url, mode=mode, cache=None, read_timeout_seconds=PATIENCE) as client:
            page = await client.list_tools()
            assert page.next_cursor
            cursors[mode] = page.next_cursor, {tool.name for tool in page.tools}
    async with by_hand(host.url) as ours:
        made = await ours.ask("tools/call", {"name": "inside__long_chore", "arguments": {}, "task": {}})
        task = made["result"]["task"]["taskId"]

    asked: list[str] = []
    is_back = trio.Event()

    async def answer(context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        asked.append(params.message)
        if len(asked) == 2:
            await host.restart()
            is_back.set()
        await is_back.wait()
        return ElicitResult(action="accept", content={"name": "Ada"})

    results: dict[str, CallToolResult] = {}

    async def call(client: Client, server: str) -> None:
        results[server] = await client.call_tool(f"{server}__ask_form", {})

    patience = 2 * START
    client = Client(host.url, mode="auto", cache=None, read_timeout_seconds=patience, elicitation_callback=answer)
    async with client:
        assert client.protocol_version == LATEST
        async with trio.open_nursery() as nursery:
            nursery.start_soon(call, client, "inside")
            nursery.start_soon(call, client, "outside")
    assert len(asked) == 2
    assert not results["outside"].is_error
    assert "Ada" in text_of(results["outside"])
    assert results["inside"].is_error
    assert text_of(results["inside"]).startswith("Colonnade was restarted while inside worked on the call")

    for mode, (cursor, before) in cursors.items():
        async with Client(host.url, mode=mode, cache=None, read_timeout_seconds=PATIENCE) as client:
            page = await client.list_tools(cursor=cursor)
            names = {tool.name for tool in page.tools}
            assert {f"many__t0-{n}" for n in range(10)} <= before | names
            assert not before & names
            assert page.next_cursor is None

    async with by_hand(host.url) as ours:
        status = (await ours.ask("tasks/get", {"taskId": task}))["result"]
        assert (status["status"], "was restarted" in status["statusMessage"]) == ("failed", True)
        assert (await ours.ask("tasks/result", {"taskId": task}))["result"]["isError"]
        found = await stateless(ours, "tasks/get", taskId=task)
        assert (found["status"], found["result"]["isError"]) == ("completed", True)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:resources/subscribe is removed")
@pytest.mark.parametrize("server", ["inside", "outside"])
async def test_a_session_goes_on_after_a_kill(server: str, host: Restarting) -> None:
    """The official SDK's client, which does not send `initialize` again, lists and calls. Its standing stream says that
    lists and what it watches may have changed, and its subscription holds. (After a second break it opens none.)"""
    async with sdk(f"{host.url}/{server}") as client:
        opened = await host.stores_other_than("")
        await client.client.subscribe_resource("note://one")
        await host.stores_other_than(opened)
        await host.restart()
        assert "echo" in await client.names()
        assert text_of(await client.client.call_tool("echo", {"key": "still here"})) == "still here"
        await client.hears(UPDATED, PATIENCE)
        await client.hears(CHANGED, PATIENCE)
        assert text_of(await client.client.call_tool("touch", {"key": "note://one"})) == "told"
        await client.hears(UPDATED, PATIENCE, 1)
        await host.restart()
        assert text_of(await client.client.call_tool("echo", {"key": "still here"})) == "still here"
        assert client.told.count(CHANGED) == 1


async def stateless(client: HandClient, method: str, **params: Any) -> dict[str, Any]:
    """The result of one request without a session."""
    capabilities: dict[str, Any] = {"extensions": {f"{IO}tasks": {}}}
    meta = {f"{IO}protocolVersion": LATEST, f"{IO}clientCapabilities": capabilities}
    headers = {"mcp-protocol-version": LATEST, "mcp-method": method, "mcp-name": params["taskId"]}
    said = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {**params, "_meta": meta}}
    headers |= {"accept": client.headers["accept"]}
    answer = await client.http.post(client.url, json=said, headers=headers, timeout=PATIENCE)
    found: dict[str, Any] = answer.json()["result"]
    return found
