#!/usr/bin/env bash
# Stopped by its `abortSignal`, a call of the AI SDK goes on in the server, but for one of the four ways to call it.
#
# Packages: npm @ai-sdk/mcp 2.0.99, @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0. Needs Node 20 with npm, and
# Python 3.11 with venv. It listens on a free port of the loopback address.
#
# Expected: who stops an answer stops the tools that work for it. The SDK hands its `abortSignal` to the tools, and that
# of an MCP server passes it on to `callTool`, so the server is told in the way of its transport and its revision:
# `notifications/cancelled`, and over HTTP in 2026-07-28 the end of the request (Cancellation in 2025-11-25 and
# 2026-07-28).
#
# Seen on 2026-11-30: the client never sends the notification. It drops the promise, and over HTTP the request. That is
# the whole of a cancellation in 2026-07-28 over HTTP, and none in 2025-11-25, where a connection may break at any time,
# nor over stdio in either revision, where nothing is sent at all. The tool works on, books or writes, for nobody. So a
# server that learns the newer revision stops as it should, and the same one as a program of its user does not. The
# client of the TypeScript SDK cancels in all four.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @ai-sdk/mcp@2.0.99 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
"""A server over stdio or, with the argument http, at a URL, whose port it prints. Its tool writes how it ends."""

import sys
from pathlib import Path

import anyio
import uvicorn
from mcp.server import MCPServer

server = MCPServer("server", log_level="CRITICAL")
state = Path("state")


@server.tool()
async def work() -> str:
    state.write_text("begun")
    try:
        await anyio.sleep(4)
    except anyio.get_cancelled_exc_class():
        state.write_text("cancelled")
        raise
    state.write_text("finished")
    return "done"


async def serve() -> None:
    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        print(http.servers[0].sockets[0].getsockname()[1], flush=True)


if sys.argv[1:] == ["http"]:
    anyio.run(serve)
else:
    server.run()
PY
cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {readFileSync, writeFileSync} from 'node:fs';
import {setTimeout as sleep} from 'node:timers/promises';
import {createMCPClient} from '@ai-sdk/mcp';
import {Experimental_StdioMCPTransport as AiPipe} from '@ai-sdk/mcp/mcp-stdio';
import {Client, StreamableHTTPClientTransport} from '@modelcontextprotocol/client';
import {StdioClientTransport} from '@modelcontextprotocol/client/stdio';

const python = 'venv/bin/python';
const program = {command: python, args: ['server.py']};
const patient = {waitsForProtocolVersionDiscovery: true}; // else it gives a server a second to start and to answer
const state = () => readFileSync('state', 'utf8');

async function giveUp(title, version, call, close) {
  writeFileSync('state', '');
  const stop = new AbortController();
  const outcome = call(stop.signal).catch(() => {});
  while (state() !== 'begun') {
    await sleep(50);
  }
  stop.abort();
  await outcome;
  while (state() === 'begun') {
    await sleep(50);
  }
  console.log(`${title}, ${version}: the call is given up, and the tool is ${state()}`);
  await close();
}

async function ai(where, transport, protocolVersionDiscovery) {
  const client = await createMCPClient({transport, protocolVersionDiscovery});
  const {work} = await client.tools();
  const call = abortSignal => work.execute({}, {abortSignal, toolCallId: '1', messages: []});
  await giveUp(`AI SDK, ${where}`, client.initializeResult.protocolVersion, call, () => client.close());
}

async function sdk(where, transport, mode) {
  const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode}});
  await client.connect(transport);
  const call = signal => client.callTool({name: 'work', arguments: {}}, {signal});
  const version = client.getNegotiatedProtocolVersion();
  await giveUp(`client 2.4.0, ${where}`, version, call, () => client.close());
}

const server = spawn(python, ['server.py', 'http'], {stdio: ['ignore', 'pipe', 'ignore']});
const [port] = await once(server.stdout, 'data');
const url = `http://127.0.0.1:${Number(port)}/mcp`;
for (const [mode, discovery] of [['legacy', false], ['auto', true]]) {
  await ai('stdio', Object.assign(new AiPipe(program), patient), discovery);
  await ai('HTTP', {type: 'http', url}, discovery);
  await sdk('stdio', new StdioClientTransport(program), mode);
  await sdk('HTTP', new StreamableHTTPClientTransport(new URL(url)), mode);
}
server.kill();
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
said='the call is given up, and the tool is'
[ "$seen" = "AI SDK, stdio, 2025-11-25: $said finished
AI SDK, HTTP, 2025-11-25: $said finished
client 2.4.0, stdio, 2025-11-25: $said cancelled
client 2.4.0, HTTP, 2025-11-25: $said cancelled
AI SDK, stdio, 2026-07-28: $said finished
AI SDK, HTTP, 2026-07-28: $said cancelled
client 2.4.0, stdio, 2026-07-28: $said cancelled
client 2.4.0, HTTP, 2026-07-28: $said cancelled" ]
