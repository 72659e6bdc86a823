#!/usr/bin/env bash
# One refusal while it connects, with 503 or 429, and a Python client works with a session for as long as it lives.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/client 2.4.0. Needs Python 3.11 with venv, and Node 20 with npm.
# It listens on a free port of the loopback address.
#
# Expected: a client that does not know the revision of a server asks by `server/discover`, and falls back to the
# handshake if the answer is one of an older server. 503 and 429 with `Retry-After` come from a balancer or from a
# limit, and say nothing of the server: the client waits and asks again, or its connection fails. The Python SDK says
# of itself that an outage is never a verdict on the era (mcp/client/_probe.py).
#
# Seen on 2026-11-30: the Python client makes an error of JSON-RPC of each status from 400 on whose body has none, and
# takes each such error for an older server. It does not wait, sends `initialize` at once, and has a session of
# 2025-11-25 with a server that speaks 2026-07-28, as long as it lives, without a word. `listen()` raises then. Behind a
# balancer that sends a request to any process, as a stateless server permits, its calls fail: the session is at another
# process. The TypeScript client fails to connect at 503, and falls back at 429. A client that is given the revision
# (`mode="2026-07-28"`) does not ask: one call has the error, and all others go through.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 >/dev/null

cat >check.mjs <<'JS'
import {Client, StreamableHTTPClientTransport} from '@modelcontextprotocol/client';

const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode: 'auto'}});
try {
  await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
  console.log(client.getNegotiatedProtocolVersion());
  await client.close();
} catch (error) {
  console.log(error.message);
}
JS
cat >check.py <<'PY'
import asyncio
import logging
import socket
import subprocess
from contextlib import AsyncExitStack
from typing import Any

import uvicorn
from mcp import Client
from mcp.server import MCPServer

logging.disable(logging.CRITICAL)


def add(a: int, b: int) -> int:
    return a + b


def process() -> Any:
    server = MCPServer("server")
    server.tool()(add)
    return server.streamable_http_app()


class Balancer:
    """Sends requests to the process `now` of two. The next request gets the status `refusal`, if that is not 0."""

    def __init__(self) -> None:
        self.processes = [process(), process()]
        self.now = 0
        self.refusal = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if not self.refusal:
            await self.processes[self.now](scope, receive, send)
            return
        headers = [(b"content-type", b"text/plain"), (b"retry-after", b"1")]
        await send({"type": "http.response.start", "status": self.refusal, "headers": headers})
        await send({"type": "http.response.body", "body": b"busy"})
        self.refusal = 0


async def outcome(client: Client) -> str:
    try:
        return (await client.call_tool("add", {"a": 1, "b": 2})).content[0].text
    except Exception as error:
        return str(error)


async def listening(client: Client) -> str:
    try:
        async with client.listen(tools_list_changed=True):
            return "listens"
    except Exception as error:
        return type(error).__name__


async def play(balancer: Balancer, address: str) -> None:
    for mode, status in (("auto", 0), ("auto", 503), ("auto", 429), ("2026-07-28", 503)):
        balancer.refusal, balancer.now = status, 0
        async with Client(address, mode=mode) as client:
            print(f"Python, mode {mode}, at first {status or 'no refusal'}: {client.protocol_version}", end="")
            print(f"; first call: {await outcome(client)}", end="")
            balancer.now = 1
            print(f"; at the other process: {await outcome(client)}; {await listening(client)}", flush=True)
    for status in (0, 503, 429):
        balancer.refusal, balancer.now = status, 0
        print(f"TypeScript, at first {status or 'no refusal'}: ", end="", flush=True)
        await asyncio.to_thread(subprocess.run, ["node", "check.mjs", address], check=True)


async def main() -> None:
    balancer = Balancer()
    running = uvicorn.Server(uvicorn.Config(balancer, log_config=None, lifespan="off"))
    place = socket.create_server(("127.0.0.1", 0))
    async with AsyncExitStack() as stack:
        for app in balancer.processes:
            await stack.enter_async_context(app.router.lifespan_context(app))
        task = asyncio.create_task(running.serve([place]))
        while not running.started:
            await asyncio.sleep(0.05)
        await play(balancer, f"http://127.0.0.1:{place.getsockname()[1]}/mcp")
        running.should_exit = True
        await task


asyncio.run(main())
PY
seen=$(venv/bin/python check.py)
echo "$seen"
[ "$seen" = 'Python, mode auto, at first no refusal: 2026-07-28; first call: 3; at the other process: 3; listens
Python, mode auto, at first 503: 2025-11-25; first call: 3; at the other process: Session not found; ListenNotSupportedError
Python, mode auto, at first 429: 2025-11-25; first call: 3; at the other process: Session not found; ListenNotSupportedError
Python, mode 2026-07-28, at first 503: 2026-07-28; first call: Server returned an error response; at the other process: 3; listens
TypeScript, at first no refusal: 2026-07-28
TypeScript, at first 503: Version negotiation failed: the server answered the probe with HTTP 503
TypeScript, at first 429: 2025-11-25' ]
