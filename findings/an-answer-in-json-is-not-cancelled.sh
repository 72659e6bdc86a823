#!/usr/bin/env bash
# A Python server that answers in JSON finishes calls that were given up, in 2026-07-28 and not in 2025-11-25.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/server 2.4.0, @modelcontextprotocol/node 2.1.2, zod 4.6.7. Needs
# Python 3.11 with venv, and Node 20 with npm. It listens on free ports of the loopback address.
#
# Expected: over HTTP, a server has to take a client's disconnection for the cancellation of its request (2026-07-28,
# Cancellation, "Transport-Specific Cancellation": MUST). `json_response=True` chooses how the answer is written, by its
# documentation, and no more than that.
#
# Seen on 2026-11-30: with it, nothing watches the connection while a tool runs (`handle_modern_request`,
# mcp/server/_streamable_http_modern.py), so the tool runs to its end for nobody, and the answer is dropped. The
# revision gives the client no other way to say that it has given up. The same server cancels the tool when it may
# answer in a stream, and, by `notifications/cancelled`, for a client of 2025-11-25. The TypeScript server cancels with
# `responseMode: 'json'` as well. A host whose call has timed out, or was stopped by a person, has left it running.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund \
    @modelcontextprotocol/server@2.4.0 @modelcontextprotocol/node@2.1.2 zod@4.6.7 >/dev/null

cat >server.py <<'PY'
"""A server with one tool that works for ten seconds; it prints its port, and how the tool ends."""

import sys

import anyio
import uvicorn
from mcp.server import MCPServer

server = MCPServer("server", log_level="CRITICAL")


@server.tool()
async def work() -> str:
    print("begun", flush=True)
    try:
        await anyio.sleep(10)
    except anyio.get_cancelled_exc_class():
        print("cancelled", flush=True)
        raise
    print("finished", flush=True)
    return "done"


async def main() -> None:
    app = server.streamable_http_app(json_response=sys.argv[1] == "json")
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        print(http.servers[0].sockets[0].getsockname()[1], flush=True)


anyio.run(main)
PY
cat >server.mjs <<'JS'
import {createServer} from 'node:http';
import {setTimeout as sleep} from 'node:timers/promises';
import {toNodeHandler} from '@modelcontextprotocol/node';
import {createMcpHandler, McpServer} from '@modelcontextprotocol/server';
import {z} from 'zod';

function make() {
  const server = new McpServer({name: 'server', version: '1'});
  server.registerTool('work', {inputSchema: z.object({})}, async (_, {mcpReq}) => {
    console.log('begun');
    try {
      await sleep(10_000, undefined, {signal: mcpReq.signal});
      console.log('finished');
    } catch {
      console.log('cancelled');
    }
    return {content: []};
  });
  return server;
}

const http = createServer(toNodeHandler(createMcpHandler(make, {responseMode: process.argv[2]})));
http.listen(0, '127.0.0.1', () => console.log(http.address().port));
JS
cat >check.py <<'PY'
import subprocess
from collections.abc import AsyncIterator

import anyio
from anyio.streams.text import TextReceiveStream
from mcp import Client


async def lines(stream: TextReceiveStream) -> AsyncIterator[str]:
    rest = ""
    async for text in stream:
        *whole, rest = (rest + text).split("\n")
        for line in whole:
            yield line


async def give_up(title: str, command: list[str], mode: str) -> None:
    async with await anyio.open_process(command, stderr=subprocess.DEVNULL) as server:
        said = lines(TextReceiveStream(server.stdout))
        port = await anext(said)
        async with Client(f"http://127.0.0.1:{port}/mcp", mode=mode) as client, anyio.create_task_group() as calls:
            version = client.session.protocol_version
            calls.start_soon(client.call_tool, "work")
            assert await anext(said) == "begun"
            calls.cancel_scope.cancel()
            with anyio.CancelScope(shield=True):
                print(f"{title}, {version}: the call is given up, and the tool is {await anext(said)}")
        server.kill()


async def main() -> None:
    with anyio.fail_after(300):
        for how in ("stream", "json"):
            for mode in ("legacy", "auto"):
                await give_up(f"Python, {how}", ["venv/bin/python", "server.py", how], mode)
        await give_up("TypeScript, json", ["node", "server.mjs", "json"], "auto")


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
said='the call is given up, and the tool is'
[ "$seen" = "Python, stream, 2025-11-25: $said cancelled
Python, stream, 2026-07-28: $said cancelled
Python, json, 2025-11-25: $said cancelled
Python, json, 2026-07-28: $said finished
TypeScript, json, 2026-07-28: $said cancelled" ]
