"""Tasks through the real program, over stdio: two servers that make tasks of calls, one of each dialect; the official
SDK's client, which takes none, and clients by hand, which take one in either."""

from __future__ import annotations

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from .clients import SDK_LEAKS, Guest, LineClient, eventually, line_client, over_stdio, text_of
from .running import BARE_PYTHON, SERVERS, START, until, write_config

pytestmark = SDK_LEAKS

SPEAKS = {"shaking": "2025-11-25", "stateless": "2026-07-28"}
TOOLS = [f"{server}__long_chore" for server in SPEAKS]
IO = "io.modelcontextprotocol/"
META = {
    f"{IO}protocolVersion": "2026-07-28",
    f"{IO}clientCapabilities": {"extensions": {f"{IO}tasks": {}}},
}


@pytest.fixture
def file(tmp_path: Path) -> Path:
    program = [*BARE_PYTHON, str(SERVERS / "any_revision.py"), "--transport", "stdio", "--revision"]
    return write_config(tmp_path, {id: {"command": [*program, revision]} for id, revision in SPEAKS.items()})


@pytest.fixture
def client(file: Path) -> Iterator[LineClient]:
    with line_client(file) as client:
        yield client
        assert client.leave() == 0


class Asking:
    """Asks over the lines, with or without an envelope."""

    def __init__(self, client: LineClient, meta: dict[str, Any]) -> None:
        self._client = client
        self._meta = meta
        self._last = 0

    def __call__(self, method: str, **params: Any) -> dict[str, Any]:
        """The whole answer."""
        self._last += 1
        if self._meta:
            params["_meta"] = self._meta
        asked = {"jsonrpc": "2.0", "id": self._last, "method": method, "params": params}
        found: dict[str, Any] = json.loads(self._client.answer(json.dumps(asked).encode()))
        assert found["id"] == self._last
        return found

    def offers_all(self) -> bool:
        return set(TOOLS) <= {each["name"] for each in self("tools/list")["result"]["tools"]}


@pytest.mark.parametrize("mode", ["legacy", "auto"])
async def test_the_sdk_gets_the_result_of_what_must_be_a_task(file: Path, mode: str) -> None:
    """It takes none (rule 90)."""
    async with Guest().at(over_stdio(file), mode) as client:

        async def listed() -> bool:
            return set(TOOLS) <= {tool.name for tool in (await client.list_tools()).tools}

        with trio.fail_after(START):
            await eventually(listed, START)
            for tool in TOOLS:
                assert text_of(await client.call_tool(tool, {"key": "k1"})) != ""


def test_a_session_gets_tasks(client: LineClient) -> None:
    client.open()
    ask = Asking(client, {})
    until(ask.offers_all, "the tools")
    for tool in TOOLS:
        task = ask("tools/call", name=tool, arguments={"key": "k1"}, task={"ttl": 60_000})["result"]["task"]
        result = ask("tasks/result", taskId=task["taskId"])["result"]
        assert result["_meta"][f"{IO}related-task"] == {"taskId": task["taskId"]}
        assert ask("tasks/get", taskId=task["taskId"])["result"]["status"] == "completed"


def test_a_stateless_client_gets_tasks(client: LineClient) -> None:
    ask = Asking(client, META)
    until(ask.offers_all, "the tools")
    for tool in TOOLS:
        made = ask("tools/call", name=tool, arguments={"key": "k1"})["result"]
        assert made["resultType"] == "task"
        get = partial(ask, "tasks/get", taskId=made["taskId"])
        until(lambda get=get: get()["result"]["status"] != "working", "the end of the task")  # type: ignore[misc]
        found = get()["result"]
        assert found["status"] == "completed"
        assert found["result"]["content"]
    assert ask("tasks/get", taskId="none")["error"]["code"] == -32602
