"""Questions that a published server asks (`@modelcontextprotocol/server-everything`), answered by the official SDK's
client: every transport on one side with every transport on the other, the one of 2024-11-05 included."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator
from contextlib import AbstractAsyncContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp.client.session import ClientRequestContext
from mcp.client.sse import sse_client
from mcp.types import (
    CreateMessageRequestParams,
    CreateMessageResult,
    ElicitRequestFormParams,
    ElicitRequestParams,
    ElicitResult,
    ListRootsResult,
    Root,
    TextContent,
)

from tests.kit.ports import free_port

from .clients import PATIENCE, SDK_LEAKS, eventually, over_stdio
from .running import START, Running, serving, until, write_config
from .test_published_servers import install_everything

pytestmark = [pytest.mark.timeout(150), SDK_LEAKS]
UPSTREAM = ("stdio", "streamableHttp", "sse")
DOWNSTREAM = ("stdio", "http", "sse")
PORT = re.compile(r"port (\d+)")


@dataclass
class Setting:
    running: Running
    file: Path


@contextmanager
def everything_at_a_url(script: Path, transport: str, folder: Path) -> Iterator[str]:
    """The published server over one of its two HTTP transports; its URL."""
    errors = folder / f"{transport}.err"
    path = "/sse" if transport == "sse" else "/mcp"
    port = free_port()
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            ["node", str(script), transport], stderr=stderr, stdout=stderr, env={**os.environ, "PORT": str(port)}
        )
    try:
        until(lambda: PORT.search(errors.read_text()), f"{transport} listens")
        yield f"http://127.0.0.1:{port}{path}"
    finally:
        process.kill()
        process.wait()


@pytest.fixture(scope="module")
def script() -> Path:
    found = install_everything()
    if isinstance(found, str):
        pytest.skip(f"server-everything: {found}")
    return found


@pytest.fixture(scope="module", params=UPSTREAM)
def host(request: pytest.FixtureRequest, script: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Setting]:
    """A host with the server as `own`, an instance for each client, and as `all`, which its clients share."""
    folder = tmp_path_factory.mktemp(request.param)
    if request.param == "stdio":
        with serving_everything({"command": ["node", str(script), "stdio"]}, folder) as host:
            yield host
    else:
        with (
            everything_at_a_url(script, request.param, folder) as url,
            serving_everything({"url": url}, folder) as host,
        ):
            yield host


@contextmanager
def serving_everything(server: dict[str, Any], folder: Path) -> Iterator[Setting]:
    servers = {
        "own": {**server, "trust": "trusted", "isolation": "per-client", "title": "The Server"},
        "all": {**server, "trust": "trusted"},
        "standard": server,
        "modest": {**server, "consent": {"sampling": "deny"}},
    }
    file = write_config(folder, servers)
    with serving(file, *servers) as host:
        yield Setting(host, file)


class Person:
    """Answers whatever is asked, and remembers what it was."""

    def __init__(self) -> None:
        self.asked: list[str] = []

    async def sample(self, context: ClientRequestContext, params: CreateMessageRequestParams) -> CreateMessageResult:
        self.asked.append("sampling")
        content = TextContent(type="text", text="a model's words")
        return CreateMessageResult(role="assistant", content=content, model="none", stop_reason="endTurn")

    async def elicit(self, context: ClientRequestContext, params: ElicitRequestParams) -> ElicitResult:
        self.asked.append(params.message)
        if isinstance(params, ElicitRequestFormParams):
            return ElicitResult(action="accept", content={"name": "Ada", "check": True})
        return ElicitResult(action="accept")

    async def roots(self, context: ClientRequestContext) -> ListRootsResult:
        self.asked.append("roots")
        return ListRootsResult(roots=[Root(uri="file:///home/ada/engine", name="engine")])  # type: ignore[arg-type]


def connected(host: Setting, transport: str, person: Person) -> AbstractAsyncContextManager[Client]:
    """The SDK's client at the host, over one of the transports that a host is reached by."""
    at: Any = host.running.url
    if transport == "stdio":
        at = over_stdio(host.file)
    elif transport == "sse":
        at = sse_client(host.running.url.removesuffix("/mcp") + "/sse")
    return Client(
        at,
        mode="legacy",
        cache=None,
        read_timeout_seconds=PATIENCE,
        sampling_callback=person.sample,
        elicitation_callback=person.elicit,
        list_roots_callback=person.roots,
    )


def said(result: Any) -> str:
    return " ".join(block.text for block in result.content if isinstance(block, TextContent))


async def is_offered(client: Client, name: str) -> None:
    """Wait for the tool: a host that was started just now may still be connecting."""

    async def listed() -> bool:
        return name in [tool.name for tool in (await client.list_tools()).tools]

    await eventually(listed, START)


@pytest.mark.parametrize("transport", DOWNSTREAM)
async def test_whatever_a_server_asks_is_answered_by_its_client(host: Setting, transport: str) -> None:
    """A model, a form, a page and roots; by a server of its own, and by a shared one (rule 71, rule 73, rule 76)."""
    person = Person()
    async with connected(host, transport, person) as client:
        for server in ("own", "all"):
            await is_offered(client, f"{server}__trigger-sampling-request")
            result = await client.call_tool(f"{server}__trigger-sampling-request", {"prompt": "Say something"})
            assert "a model's words" in said(result)
        result = await client.call_tool("own__trigger-elicitation-request", {})
        assert "Ada" in said(result)
        assert "[The Server] Please provide inputs for the following fields:" in person.asked
        page = {"url": "https://example.com/consent", "message": "Please agree"}
        assert "accept" in said(await client.call_tool("own__trigger-url-elicitation", page))
        assert "[The Server] Please agree" in person.asked
        assert "file:///home/ada/engine" in said(await client.call_tool("own__get-roots-list", {}))
    assert person.asked.count("sampling") == 2


async def test_a_server_that_is_not_trusted_gets_no_model_unless_a_person_lets_it(host: Setting) -> None:
    """It is told that there may be one, so that it offers the tool; nobody is there who could agree (rule 10)."""
    person = Person()
    async with connected(host, "http", person) as client:
        await is_offered(client, "standard__trigger-sampling-request")
        result = await client.call_tool("standard__trigger-sampling-request", {"prompt": "hello", "maxTokens": 5})
    assert "needs a person's consent, and nobody is there" in said(result)
    assert person.asked == []


async def test_a_server_that_may_not_ask_for_a_model_is_not_told_of_one(host: Setting) -> None:
    """So that it does not even offer the tool (rule 10)."""
    async with connected(host, "http", Person()) as client:
        for server in ("own", "modest"):
            await is_offered(client, f"{server}__trigger-elicitation-request")
        names = [tool.name for tool in (await client.list_tools()).tools]
    assert "modest__trigger-sampling-request" not in names
    assert "own__trigger-sampling-request" in names
