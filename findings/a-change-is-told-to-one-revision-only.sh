#!/usr/bin/env bash
# A server announces a change in one of two ways, and each way reaches the clients of some revisions only.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/client, @modelcontextprotocol/server 2.4.0,
# @modelcontextprotocol/node 2.1.2, zod 4.6.7. Needs Python 3.11 with venv, and Node 20 with npm. It listens on free
# ports of the loopback address.
#
# Expected: a tool that changes what is in a list says so once, and the SDK tells each client in the way of its
# revision: in 2025-11-25 in its session, and in 2026-07-28 on the stream of its `subscriptions/listen`, if it has asked
# for that kind of change and the server has acknowledged it.
#
# Seen on 2026-11-30: in Python, `ctx.session.send_tool_list_changed()` reaches clients of 2025-11-25 alone, and
# `ctx.notify_tools_changed()` those of 2026-07-28 alone; so a server needs both. In TypeScript, the first,
# `server.sendToolListChanged()`, reaches all clients over stdio, and nobody over HTTP, where each request has a server
# of its own; `handler.notify.toolsChanged()` reaches those of 2026-07-28 there. Whoever listens is told
# `toolsListChanged: true` in each case, and the call that reaches nobody raises nothing. A server that was written
# before 2026-07-28, and got the new SDK, announces to nobody as soon as its clients speak that. The same holds for
# prompts and resources.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 @modelcontextprotocol/server@2.4.0 \
    @modelcontextprotocol/node@2.1.2 zod@4.6.7 >/dev/null

cat >server.py <<'PY'
"""A server over stdio or, with the argument http, at a URL, whose port it prints. Its tools announce a changed list."""

import logging
import socket
import sys

import uvicorn
from mcp.server import MCPServer
from mcp.server.mcpserver import Context

logging.disable(logging.CRITICAL)
server = MCPServer("server", log_level="CRITICAL")


@server.tool()
async def first(ctx: Context) -> str:
    await ctx.session.send_tool_list_changed()
    return "done"


@server.tool()
async def second(ctx: Context) -> str:
    await ctx.notify_tools_changed()
    return "done"


if "http" in sys.argv:
    place = socket.create_server(("127.0.0.1", 0))
    print(place.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_config=None)).run([place])
else:
    server.run()
PY
cat >server.mjs <<'JS'
// The same in TypeScript. `second` is there at a URL alone.
import {createServer} from 'node:http';
import {toNodeHandler} from '@modelcontextprotocol/node';
import {createMcpHandler, McpServer} from '@modelcontextprotocol/server';
import {serveStdio} from '@modelcontextprotocol/server/stdio';
import {z} from 'zod';

let handler;
function create() {
  const server = new McpServer({name: 'server', version: '1'}, {capabilities: {tools: {listChanged: true}}});
  const done = {content: [{type: 'text', text: 'done'}]};
  server.registerTool('first', {inputSchema: z.object({})}, async () => {
    server.sendToolListChanged();
    return done;
  });
  if (handler !== undefined) {
    server.registerTool('second', {inputSchema: z.object({})}, async () => {
      handler.notify.toolsChanged();
      return done;
    });
  }
  return server;
}

if (process.argv[2] === 'http') {
  handler = createMcpHandler(create);
  const listener = createServer(toNodeHandler(handler));
  listener.listen(0, '127.0.0.1', () => console.log(listener.address().port));
} else {
  serveStdio(create);
}
JS
cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {setTimeout as pause} from 'node:timers/promises';
import {Client, StreamableHTTPClientTransport} from '@modelcontextprotocol/client';
import {StdioClientTransport} from '@modelcontextprotocol/client/stdio';

const programs = {Python: ['venv/bin/python', 'server.py'], TypeScript: ['node', 'server.mjs']};

for (const [language, [command, file]] of Object.entries(programs)) {
  for (const transport of ['stdio', 'http']) {
    let program;
    let url;
    if (transport === 'http') {
      program = spawn(command, [file, 'http'], {stdio: ['ignore', 'pipe', 'ignore']});
      const [port] = await once(program.stdout, 'data');
      url = new URL(`http://127.0.0.1:${String(port).trim()}/mcp`);
    }
    for (const mode of ['legacy', 'auto']) {
      const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode}});
      let heard;
      client.setNotificationHandler('notifications/tools/list_changed', () => {
        heard = true;
      });
      const link = url ? new StreamableHTTPClientTransport(url) : new StdioClientTransport({command, args: [file]});
      await client.connect(link);
      let told = '';
      if (mode === 'auto') {
        const {honoredFilter} = await client.listen({toolsListChanged: true});
        told = `, told toolsListChanged: ${honoredFilter.toolsListChanged}`;
      }
      await pause(500); // the session's stream is opened beside the handshake
      const seen = [];
      const {tools} = await client.listTools();
      for (const {name} of tools) {
        heard = false;
        await client.callTool({name, arguments: {}});
        await pause(500); // what is not there by then is not sent
        seen.push(`${name} ${heard ? 'is heard' : 'reaches nobody'}`);
      }
      console.log(`${language}, ${transport}, ${client.getNegotiatedProtocolVersion()}${told}: ${seen.join(', ')}`);
      await client.close();
    }
    program?.kill();
  }
}
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'Python, stdio, 2025-11-25: first is heard, second reaches nobody
Python, stdio, 2026-07-28, told toolsListChanged: true: first reaches nobody, second is heard
Python, http, 2025-11-25: first is heard, second reaches nobody
Python, http, 2026-07-28, told toolsListChanged: true: first reaches nobody, second is heard
TypeScript, stdio, 2025-11-25: first is heard
TypeScript, stdio, 2026-07-28, told toolsListChanged: true: first is heard
TypeScript, http, 2025-11-25: first reaches nobody, second reaches nobody
TypeScript, http, 2026-07-28, told toolsListChanged: true: first reaches nobody, second is heard' ]
