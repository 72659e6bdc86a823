"""The official SDK's client in front of the real host, with servers that write down what they hear."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest
import trio
from mcp.shared.exceptions import MCPError

from .clients import SDK_LEAKS, by_hand, eventually, over_stdio, sdk, text_of
from .running import Running, heard_method, pid_of, pids_below, recorder, serving, write_config

pytestmark = SDK_LEAKS

TOOLS_CHANGED = "notifications/tools/list_changed"


@dataclass
class Setting:
    """The running host and what its servers `a` and `b` write down."""

    host: Running
    folder: Path

    def log(self, server: str) -> Path:
        return self.folder / f"{server}.log"

    @property
    def url(self) -> str:
        return self.host.url


@pytest.fixture(scope="module")
def here(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    folder = tmp_path_factory.mktemp("sdk-client")
    ruled = {"consent": {"tools": {"default": "allow"}}}
    servers = {"a": recorder(folder / "a.log"), "b": {**recorder(folder / "b.log"), **ruled}}
    file = write_config(folder, servers, views={"found": {"servers": {"b": "all"}, "search": "on"}})
    with serving(file, "a", "b") as host:
        yield Setting(host, folder)


async def test_it_lists_and_calls_what_all_servers_offer(here: Setting) -> None:
    """Every server's tools are in one list under its prefix, and a call reaches the one server it names."""
    async with sdk(here.url) as client:
        names = await client.names()
        assert {"a__echo", "b__echo"} < set(names)
        assert '"name":"echo"' in text_of(await client.client.call_tool("b__echo", {"to": "b"}))
    assert [call["params"]["name"] for call in heard_method(here.log("b"), "tools/call")][-1:] == ["echo"]
    assert not any(call["params"]["arguments"] == {"to": "b"} for call in heard_method(here.log("a"), "tools/call"))


async def test_a_failing_tool_and_an_unknown_one_are_told_apart(here: Setting) -> None:
    """What a tool says of its failure comes as a result, an unknown name as an error that names it."""
    async with sdk(here.url) as client:
        assert (await client.client.call_tool("a__fail")).is_error
        with pytest.raises(MCPError, match="Unknown tool: a__nothing") as refusal:
            await client.client.call_tool("a__nothing")
        assert refusal.value.error.code == -32602


async def test_it_finds_and_calls_a_tool_in_a_view_with_search(here: Setting) -> None:
    """The SDK validates what is found against the schemas that the list has."""
    async with sdk(f"{here.url}/@found") as client:
        assert await client.names() == ["search_tools", "describe_tools", "read_tool", "call_tool"]
        found = await client.client.call_tool("search_tools", {"query": "echo"})
        assert found.structured_content is not None
        names = [tool["name"] for tool in found.structured_content["tools"]]
        assert "b__echo" in names
        assert not any(name.startswith("a__") for name in names)
        described = await client.client.call_tool("describe_tools", {"names": ["b__echo", "a__echo"]})
        assert described.structured_content is not None
        assert [tool["name"] for tool in described.structured_content["tools"]] == ["b__echo"]
        called = await client.client.call_tool("call_tool", {"name": "b__echo", "arguments": {"to": "found"}})
        assert '"to":"found"' in text_of(called).replace(" ", "")


async def test_progress_arrives_while_the_call_runs(here: Setting) -> None:
    """A call that never ends by itself still reports, so its report cannot have waited for the end."""
    reported = trio.Event()
    notes: list[str | None] = []

    async def report(progress: float, total: float | None, message: str | None) -> None:
        notes.append(message)
        reported.set()

    async with sdk(here.url) as client, trio.open_nursery() as nursery:
        nursery.start_soon(client.client.call_tool, "a__hang", {}, None, report)
        with trio.fail_after(5):
            await reported.wait()
        nursery.cancel_scope.cancel()
    assert notes == ["waiting"]


async def test_a_cancel_is_seen_by_the_one_server_that_works(here: Setting) -> None:
    """The server whose call is cancelled hears that, in the id it knows; the other one hears nothing and works on."""
    began = {server: trio.Event() for server in "ab"}

    async def hang(server: str, scope: trio.CancelScope) -> None:
        async def report(progress: float, total: float | None, message: str | None) -> None:
            began[server].set()

        with scope:
            await client.client.call_tool(f"{server}__hang", {"mark": server}, progress_callback=report)

    def hanging(server: str) -> object:
        calls = heard_method(here.log(server), "tools/call")
        return [call["id"] for call in calls if call["params"]["name"] == "hang"][-1]

    def is_cancelled(server: str, id: object) -> bool:
        cancelled = heard_method(here.log(server), "notifications/cancelled")
        return id in [notice["params"]["requestId"] for notice in cancelled]

    async def heard_at_a() -> bool:
        await trio.lowlevel.checkpoint()
        return is_cancelled("a", hanging("a"))

    async with sdk(here.url) as client, trio.open_nursery() as nursery:
        scopes = {server: trio.CancelScope() for server in "ab"}
        for server, scope in scopes.items():
            nursery.start_soon(hang, server, scope)
        with trio.fail_after(5):
            await began["a"].wait()
            await began["b"].wait()
        scopes["a"].cancel()
        await eventually(heard_at_a, 5)
        await client.client.call_tool("b__echo")  # whatever had been sent to it before would be there now
        assert not is_cancelled("b", hanging("b"))
        scopes["b"].cancel()


async def test_a_tool_added_at_run_time_is_seen_soon(here: Setting) -> None:
    """A connected client is told that the list changed, and the new tool is in it and can be called."""
    async with sdk(here.url) as client:
        assert "a__late" not in await client.names()
        await client.client.call_tool("a__grow", {"name": "late"})
        await client.hears(TOOLS_CHANGED, seconds=5)
        assert "a__late" in await client.names()
        assert "late" in text_of(await client.client.call_tool("a__late"))


async def test_a_killed_server_comes_back_and_the_others_notice_nothing(here: Setting) -> None:
    """SIGKILL for one child: a call at another server goes on, the entries stay listed, calls fail with the reason,
    and then it can be called again."""
    reported = trio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async def hang() -> None:
        await client.client.call_tool("b__hang", {}, progress_callback=report)
        raise AssertionError("the call at b ended")

    async with sdk(here.url) as client, trio.open_nursery() as nursery:
        nursery.start_soon(hang)
        with trio.fail_after(5):
            await reported.wait()
        a, b = (pid_of(here.host.process.pid, str(here.log(server))) for server in "ab")
        os.kill(a, signal.SIGKILL)
        reasons: list[str] = []
        while (answer := await client.client.call_tool("a__echo")).is_error:
            reasons.append(text_of(answer))
            assert "a__echo" in await client.names()
            await trio.sleep(0.02)
        assert all(reason.startswith(("the connection to a was lost", "a is unavailable: ")) for reason in reasons), (
            reasons
        )
        assert any("ended by signal 9" in reason for reason in reasons), reasons
        assert {"a__echo", "b__echo"} < set(await client.names())
        assert b in pids_below(here.host.process.pid)
        assert here.host.status()["b"]["attempts"] == 1
        nursery.cancel_scope.cancel()


async def test_a_mount_serves_one_server_alone(here: Setting) -> None:
    """Below the name of a server are its own entries under its own names, with instructions and changes of its own."""
    async with sdk(f"{here.url}/b") as client, sdk(f"{here.url}/a") as other:
        names = await client.names()
        assert "echo" in names
        assert not any("__" in name for name in names)
        assert '"name":"echo"' in text_of(await client.client.call_tool("echo"))
        with pytest.raises(MCPError, match="Unknown tool"):
            await client.client.call_tool("b__echo")
        await client.client.call_tool("grow", {"name": "alone"})
        await client.hears(TOOLS_CHANGED, seconds=2)
        assert "alone" in await client.names()
        assert TOOLS_CHANGED not in other.told


async def test_a_session_belongs_to_its_endpoint(here: Setting) -> None:
    """The id of a session at one endpoint is as good as none at another."""
    async with by_hand(f"{here.url}/b") as client:
        assert "result" in await client.ask("tools/list")
        async with httpx.AsyncClient(trust_env=False, verify=False) as http:
            listing = {"jsonrpc": "2.0", "id": 1, "method": "tools/list"}
            for url in (here.url, f"{here.url}/a"):
                assert (await http.post(url, json=listing, headers=client.headers)).status_code == 404
            assert (await http.post(f"{here.url}/c", json=listing, headers=client.headers)).status_code == 404


async def test_over_stdio(tmp_path: Path) -> None:
    """The same host on standard input and output: lists, calls, progress, a cancel, and a new tool."""
    log = tmp_path / "a.log"
    file = write_config(tmp_path, {"a": recorder(log)})
    reported = trio.Event()

    async def report(progress: float, total: float | None, message: str | None) -> None:
        reported.set()

    async def called_off() -> bool:
        await trio.lowlevel.checkpoint()
        return bool(heard_method(log, "notifications/cancelled"))

    async with sdk(over_stdio(file)) as client:
        assert "a__echo" in await client.names()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(client.client.call_tool, "a__hang", {}, None, report)
            with trio.fail_after(5):
                await reported.wait()
            nursery.cancel_scope.cancel()
        await eventually(called_off, 5)
        await client.client.call_tool("a__grow", {"name": "late"})
        await client.hears(TOOLS_CHANGED, seconds=1)
        assert "late" in text_of(await client.client.call_tool("a__late"))
