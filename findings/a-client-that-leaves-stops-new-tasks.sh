#!/usr/bin/env bash
# When one client of a shared server ends its session, no other client can start a task until somebody connects.
#
# Packages: PyPI mcp 1.30.0. Needs Python 3.11 with venv. It listens on a free port of the loopback address.
#
# Expected: a server made with `server.experimental.enable_tasks()` and served over Streamable HTTP has a session for
# each client, and each session runs in its own `Server.run()`. The end of one session changes nothing for the others.
# (That interface is experimental, and in 1.30.0 deprecated too; it is there, and works with one client.)
#
# Seen on 2026-11-28: all sessions share one object for tasks, which has a place for one task group. Each session that
# begins puts its own group there, and each that ends, whichever it is, leaves the place empty. From then on a call
# that asks for a task is answered with an error of the tool, "TaskSupport not running. Ensure Server.run() is active.",
# although the session of that call runs. The next client that connects fills the place, and new tasks of all
# sessions run in its group, until it ends. A task that runs already goes on.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 2>/dev/null

cat >check.py <<'PY'
import asyncio
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import uvicorn
from mcp import ClientSession, types
from mcp.client.streamable_http import streamable_http_client
from mcp.server.lowlevel import Server
from mcp.server.streamable_http_manager import StreamableHTTPSessionManager
from starlette.applications import Starlette
from starlette.routing import Mount

logging.disable()
server: Server[Any] = Server("server")
server.experimental.enable_tasks()
finish = asyncio.Event()


@server.call_tool()
async def call(name: str, arguments: dict[str, Any]) -> types.CreateTaskResult:
    async def work(_: Any) -> types.CallToolResult:
        await finish.wait()
        return types.CallToolResult(content=[types.TextContent(type="text", text="done")])

    return await server.request_context.experimental.run_task(work)


manager = StreamableHTTPSessionManager(server)


@asynccontextmanager
async def lifespan(_: Starlette) -> AsyncIterator[None]:
    async with manager.run():
        yield


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[ClientSession]:
    async with streamable_http_client(f"http://127.0.0.1:{port}/mcp/") as (read, write, _):
        async with ClientSession(read, write) as session:
            await session.initialize()
            yield session


async def start(title: str, session: ClientSession) -> str:
    """Starts a task, and returns its id. The answer is read in both forms: a task, or a result with an error."""
    params = types.CallToolRequestParams(name="work", arguments={}, task=types.TaskMetadata(ttl=60_000))
    result = await session.send_request(types.ClientRequest(types.CallToolRequest(params=params)), types.Result)
    answer = result.model_dump()
    print(f"{title}: {'started' if 'task' in answer else answer['content'][0]['text']}")
    return answer["task"]["taskId"] if "task" in answer else ""


async def main() -> None:
    app = Starlette(routes=[Mount("/mcp", manager.handle_request)], lifespan=lifespan)
    web = uvicorn.Server(uvicorn.Config(app, port=0))
    serving = asyncio.create_task(web.serve())
    while not web.started:
        await asyncio.sleep(0.05)
    port = web.servers[0].sockets[0].getsockname()[1]
    async with connected(port) as one:
        await start("alone", one)
        async with connected(port):
            running = await start("beside another", one)
        await asyncio.sleep(0.5)
        await start("the other has left", one)
        async with connected(port):
            await start("beside a third", one)
        await asyncio.sleep(0.5)
        await start("the third has left", one)
        finish.set()
        await asyncio.sleep(0.5)
        print(f"the second task: {(await one.experimental.get_task(running)).status}")
    web.should_exit = True
    await serving


asyncio.run(asyncio.wait_for(main(), 60))
PY
broken='TaskSupport not running. Ensure Server.run() is active.'
seen=$(venv/bin/python -W ignore check.py)
echo "$seen"
[ "$seen" = "alone: started
beside another: started
the other has left: $broken
beside a third: started
the third has left: $broken
the second task: completed" ]
