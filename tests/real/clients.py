"""Clients of a real host: the official SDK's, and two written by hand that see every byte."""

from __future__ import annotations

import json
import queue
import subprocess
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
import trio
from mcp import Client
from mcp.client.session import ClientRequestContext, IncomingMessage
from mcp.client.stdio import StdioServerParameters
from mcp.types import (
    CallToolResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ServerNotification,
    TextContent,
)

from .running import BIN, COLONNADE, OVER_STDIO, beside

PATIENCE = 20.0

SDK_LEAKS = pytest.mark.filterwarnings(r"ignore:Async generator '(httpx2|httpcore2)\.:ResourceWarning")
"""For tests with the SDK's client over HTTP: it leaves event streams half read, which trio sees and complains about."""


async def eventually(condition: Callable[[], Awaitable[bool]], seconds: float) -> float:
    """Poll until it holds; how long that took. Real time: other processes are waited for."""
    began = trio.current_time()
    while not await condition():
        assert trio.current_time() - began < seconds, f"not so within {seconds} s"
        await trio.sleep(0.01)
    return trio.current_time() - began


class SdkClient:
    """The SDK's client, and the notifications it got, by method. Handshake mode."""

    def __init__(self, server: str | StdioServerParameters) -> None:
        self.told: list[str] = []
        self.client = Client(
            server, mode="legacy", message_handler=self._hear, cache=None, read_timeout_seconds=PATIENCE
        )

    async def _hear(self, message: IncomingMessage) -> None:
        if isinstance(message, ServerNotification):
            self.told.append(message.method)

    async def hears(self, method: str, seconds: float, after: int = 0) -> float:
        """Wait for a notification of this method beyond the first `after`; how long that took."""

        async def told() -> bool:
            await trio.lowlevel.checkpoint()
            return self.told.count(method) > after

        return await eventually(told, seconds)

    async def names(self) -> list[str]:
        return [tool.name for tool in (await self.client.list_tools()).tools]


@asynccontextmanager
async def sdk(server: str | StdioServerParameters) -> AsyncIterator[SdkClient]:
    """The SDK's client, connected to a URL or to a program."""
    ours = SdkClient(server)
    async with ours.client:
        yield ours


class Guest:
    """Whoever fills in the forms of `one_era.py`; remembers the questions. `declines` names one that is turned down."""

    def __init__(self, guests: int = 4, name: str = "Ada", declines: str | None = None) -> None:
        self.asked: list[str] = []
        self.may_answer: trio.Event | None = None
        self._answers: dict[str, Any] = {"guests": guests, "name": name}
        self._declines = declines

    async def answer(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        assert isinstance(params, ElicitRequestFormParams)
        self.asked.append(params.message)
        if self.may_answer is not None:
            await self.may_answer.wait()
        (key,) = params.requested_schema["properties"]
        if key == self._declines:
            return ElicitResult(action="decline")
        return ElicitResult(action="accept", content={key: self._answers[key]})

    def at(self, server: str | StdioServerParameters, mode: str) -> Client:
        """The SDK's client, whose questions this one answers: `legacy` begins with a handshake, `auto` with what the
        server turns out to speak."""
        return Client(server, mode=mode, cache=None, read_timeout_seconds=PATIENCE, elicitation_callback=self.answer)


def over_stdio(file: Path) -> StdioServerParameters:
    """`colonnade serve FILE --stdio`, as the SDK starts it."""
    return StdioServerParameters(
        command=COLONNADE, args=["serve", str(file), *OVER_STDIO], cwd=str(BIN), env=beside(file)
    )


def text_of(result: CallToolResult) -> str:
    """The text of a result that is one text."""
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


class HandClient:
    """A client over HTTP that says and sees bytes. Ids and tokens are the test's."""

    def __init__(self, http: httpx.AsyncClient, url: str, revision: str) -> None:
        self.http = http
        self.url = url
        self.revision = revision
        self.headers = {"accept": "application/json, text/event-stream", "content-type": "application/json"}

    async def open(self) -> dict[str, Any]:
        """The handshake; what the server answered to it."""
        (answer,) = await self.post(initialize(self.revision))
        if self.revision >= "2025-06-18":
            self.headers["mcp-protocol-version"] = self.revision
        assert await self.post(b'{"jsonrpc":"2.0","method":"notifications/initialized"}') == []
        result: dict[str, Any] = json.loads(answer)["result"]
        assert result["protocolVersion"] == self.revision
        return result

    async def post(self, body: bytes) -> list[bytes]:
        """Every message that came as the answer to this one."""
        answer = await self.http.post(self.url, content=body, headers=self.headers, timeout=PATIENCE)
        assert answer.status_code in (200, 202), (answer.status_code, answer.content)
        if "mcp-session-id" in answer.headers:
            self.headers["mcp-session-id"] = answer.headers["mcp-session-id"]
        if answer.headers.get("content-type") == "text/event-stream":
            lines = answer.content.split(b"\n")
            return [data for line in lines if (data := line.removeprefix(b"data:").strip()) and data[:1] == b"{"]
        return [answer.content] if answer.content else []

    async def ask(self, method: str, params: object = None, id: int | str = 1) -> Any:
        """The answer: an object with `result` or `error`."""
        said = {"jsonrpc": "2.0", "id": id, "method": method, "params": params or {}}
        return json.loads((await self.post(json.dumps(said).encode()))[-1])


@asynccontextmanager
async def by_hand(url: str, revision: str = "2025-11-25") -> AsyncIterator[HandClient]:
    """A client of our own, after its handshake. No TLS: reading the certificates takes longer than most tests."""
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(limits=limits, trust_env=False, verify=False) as http:
        client = HandClient(http, url, revision)
        await client.open()
        yield client


def initialize(revision: str, id: int = 1) -> bytes:
    params = {"protocolVersion": revision, "capabilities": {}, "clientInfo": {"name": "by hand", "version": "1"}}
    return json.dumps({"jsonrpc": "2.0", "id": id, "method": "initialize", "params": params}).encode()


class LineClient:
    """A client of `colonnade serve FILE --stdio` that says and sees lines."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self._lines: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(b"")

    def say(self, line: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + b"\n")
        self.process.stdin.flush()

    def hear(self, seconds: float = PATIENCE) -> bytes:
        """The next line; nothing at the end. Raises queue.Empty if none comes in time."""
        return self._lines.get(timeout=seconds)

    def answer(self, line: bytes) -> bytes:
        """Say it, and give the next line that is an answer."""
        self.say(line)
        while b'"method"' in (heard := self.hear()):
            pass
        return heard

    def open(self, revision: str = "2025-11-25") -> dict[str, Any]:
        result: dict[str, Any] = json.loads(self.answer(initialize(revision, id=0)))["result"]
        self.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
        return result

    def leave(self) -> int:
        """Close our end; the exit code of the host that ends then."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        return self.process.wait(PATIENCE)


@contextmanager
def line_client(file: Path, *options: str) -> Iterator[LineClient]:
    """`colonnade serve FILE` over stdio, or with other options, and its client. It is killed at the end if it is
    still there."""
    with (file.parent / "stdio.stderr").open("w") as stderr:
        process = subprocess.Popen(
            [COLONNADE, "serve", str(file), *(options or OVER_STDIO)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=beside(file),
        )
    with process:
        client = LineClient(process)
        try:
            yield client
        finally:
            process.kill()
            client._reader.join(PATIENCE)
