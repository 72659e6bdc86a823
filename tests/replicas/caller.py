"""A client of the official Python SDK, 1.x or 2.x, that calls a tool for each line of its input.

    python caller.py URL 1|legacy|auto TOOL RESOURCE

A line is the `id` that the tool gets. It prints lines of JSON: what came of each call, and whatever else it did and
heard (tests/replicas/programs.py). The SDK is the one of its Python path; HTTP is left as the SDK has it.
"""

from __future__ import annotations

import json
import sys
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import anyio

URL, MODE, TOOL, RESOURCE = sys.argv[1:]
Call = Callable[[str], Awaitable[Any]]


def say(**line: object) -> None:
    print(json.dumps(line), flush=True)


async def on_request(request: Any) -> None:
    if request.method == "POST" and b'"initialize"' in request.content:
        say(opens=True)


async def on_response(response: Any) -> None:
    if response.status_code >= 400:
        say(status=response.status_code, to=response.request.method)


HOOKS: Any = {"request": [on_request], "response": [on_response]}


async def hear(message: Any) -> None:
    if isinstance(message, Exception):
        say(complains=repr(message))
    else:
        found = getattr(message, "root", message)
        say(hears=getattr(found, "method", repr(found)[:80]))


@asynccontextmanager
async def open_one() -> AsyncIterator[Call]:
    from mcp import ClientSession
    from mcp.client.streamable_http import streamablehttp_client  # type: ignore[attr-defined]
    from mcp.shared._httpx_utils import create_mcp_http_client

    def factory(*args: Any, **more: Any) -> Any:
        made = create_mcp_http_client(*args, **more)
        made.event_hooks = HOOKS
        return made

    async with (
        streamablehttp_client(URL, httpx_client_factory=factory) as (read, write, _),
        ClientSession(read, write, message_handler=hear) as session,
    ):
        await session.initialize()
        await session.subscribe_resource(RESOURCE)
        yield lambda id: session.call_tool(TOOL, {"id": id, "seconds": 0.05})


@asynccontextmanager
async def open_two() -> AsyncIterator[Call]:
    import httpx2
    from mcp import Client
    from mcp.client.streamable_http import streamable_http_client

    async with httpx2.AsyncClient(timeout=httpx2.Timeout(30, read=300), event_hooks=HOOKS) as http:
        async with Client(streamable_http_client(URL, http_client=http), mode=MODE, message_handler=hear) as client:
            if MODE == "legacy":
                await client.subscribe_resource(RESOURCE)
            yield lambda id: client.call_tool(TOOL, {"id": id, "seconds": 0.05})


async def main() -> None:
    async with (open_one if MODE == "1" else open_two)() as call, anyio.create_task_group() as group:

        async def call_once(id: str) -> None:
            try:
                result = await call(id)
            except Exception as problem:  # noqa: BLE001 - whatever it makes of that is what an application sees
                say(id=id, error=repr(problem))
                return
            failed = bool(getattr(result, "isError", getattr(result, "is_error", False)))
            say(id=id, text=result.content[0].text, failed=failed)

        say(ready=True)
        async for line in anyio.wrap_file(sys.stdin):
            group.start_soon(call_once, line.strip())


if __name__ == "__main__":
    anyio.run(main)
