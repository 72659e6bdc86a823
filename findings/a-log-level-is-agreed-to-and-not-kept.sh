#!/usr/bin/env bash
# A client that wants errors only gets every debug message: from Python servers, and from TypeScript ones at a URL.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/server 2.4.0, @modelcontextprotocol/node 2.1.2;
# PyPI mcp 2.3.0, mcp 1.30.0, fastmcp 4.2.3. Needs Node 20 with npm, and Python 3.11 with venv. It listens on free ports
# of the loopback address.
#
# Expected: a server that sends log messages declares `logging`, and after `logging/setLevel` sends what is of that
# level or above (2025-11-25, Logging: MUST declare, "Setting Log Level"). `ctx.info()` and `sendLoggingMessage()` see
# to that.
#
# Seen on 2026-11-30: the official Python servers declare nothing, answer -32601, and send all messages down to debug. A
# TypeScript server agrees to the level, and keeps it over stdio. Over HTTP it keeps the level under the id of the
# session, and looks for it without one, unless the tool hands that id on as a second argument, which is documented as
# optional. In 2.4.0 its handler for both revisions has a server for each request, and that one was told nothing.
# FastMCP keeps the level. In 2026-07-28, where the level is in the request, all of them keep it. A host that turns the
# noise down at the server pays for it still, and a gateway has to filter by itself.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv 1.30.0
1.30.0/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 2>/dev/null
python3 -m venv 2.3.0
2.3.0/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 fastmcp==4.2.3 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 \
    @modelcontextprotocol/server@2.4.0 @modelcontextprotocol/node@2.1.2 >/dev/null

cat >server.py <<'PY'
"""Serves one tool that logs at three levels; its arguments: the package, and `stdio` or `HTTP`. It prints its port."""

import logging
import sys

import anyio
import uvicorn

package, transport = sys.argv[1:]
logging.disable(logging.CRITICAL)
if package == "mcp-1":
    from mcp.server.fastmcp import Context, FastMCP

    server = FastMCP("server", log_level="CRITICAL")
elif package == "mcp-2":
    from mcp.server import MCPServer
    from mcp.server.mcpserver import Context

    server = MCPServer("server", log_level="CRITICAL")
else:
    from fastmcp import Context, FastMCP

    server = FastMCP("server")


@server.tool()
async def work(ctx: Context) -> str:
    await ctx.debug("debug")
    await ctx.info("info")
    await ctx.error("error")
    return "done"


async def main() -> None:
    app = server.http_app() if package == "fastmcp" else server.streamable_http_app()
    http = uvicorn.Server(uvicorn.Config(app, port=0, log_level="critical"))
    async with anyio.create_task_group() as tasks:
        tasks.start_soon(http.serve)
        while not http.started:
            await anyio.sleep(0.05)
        print(http.servers[0].sockets[0].getsockname()[1], flush=True)


if transport == "HTTP":
    anyio.run(main)
elif package == "fastmcp":
    server.run(show_banner=False)
else:
    server.run()
PY
cat >server.mjs <<'JS'
import {randomUUID} from 'node:crypto';
import {createServer} from 'node:http';
import {toNodeHandler} from '@modelcontextprotocol/node';
import {createMcpHandler, McpServer as McpServer2} from '@modelcontextprotocol/server';
import {McpServer} from '@modelcontextprotocol/sdk/server/mcp.js';
import {StdioServerTransport} from '@modelcontextprotocol/sdk/server/stdio.js';
import {StreamableHTTPServerTransport} from '@modelcontextprotocol/sdk/server/streamableHttp.js';

const [major, transport, id] = process.argv.slice(2);

function make() {
  const server = new (major === '1' ? McpServer : McpServer2)(
    {name: 'server', version: '1'}, {capabilities: {logging: {}}});
  server.registerTool('work', {}, async context => {
    for (const level of ['debug', 'info', 'error']) {
      if (major === '2') await context.mcpReq.log(level, level);
      else if (id) await server.sendLoggingMessage({level, data: level}, context.sessionId);
      else await server.sendLoggingMessage({level, data: level});
    }
    return {content: []};
  });
  return server;
}

const sessions = new Map();

async function serve(request, response) {
  let session = sessions.get(request.headers['mcp-session-id']);
  if (!session) {
    session = new StreamableHTTPServerTransport({
      sessionIdGenerator: randomUUID,
      onsessioninitialized: made => sessions.set(made, session),
    });
    await make().connect(session);
  }
  await session.handleRequest(request, response);
}

if (transport === 'stdio') {
  await make().connect(new StdioServerTransport());
} else {
  const http = createServer(major === '1' ? serve : toNodeHandler(createMcpHandler(make)));
  http.listen(0, '127.0.0.1', () => console.log(http.address().port));
}
JS
cat >check.py <<'PY'
import contextlib
import subprocess
import warnings

import anyio
from mcp import Client, MCPError, StdioServerParameters

warnings.simplefilter("ignore")
PYTHON = {"mcp-1": ("1.30.0", "mcp 1.30.0"), "mcp-2": ("2.3.0", "mcp 2.3.0"), "fastmcp": ("2.3.0", "fastmcp 4.2.3")}


async def ask(title: str, transport: str, command: list[str], mode: str) -> None:
    logged: list[str] = []

    async def log(message: object) -> None:
        logged.append(message.level)

    with contextlib.ExitStack() as stack:
        server: str | StdioServerParameters = StdioServerParameters(command=command[0], args=command[1:])
        if transport == "HTTP":
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL))
            stack.callback(process.kill)
            server = f"http://127.0.0.1:{int(process.stdout.readline())}/mcp"
        async with Client(server, mode=mode, logging_callback=log) as client:
            version = client.session.protocol_version
            meta = None
            if version == "2026-07-28":
                meta = {"io.modelcontextprotocol/logLevel": "error"}
                answer = "it is in the request"
            else:
                try:
                    await client.set_logging_level("error")
                    answer = "accepted"
                except MCPError as error:
                    answer = f"error {error.error.code}"
            await client.call_tool("work", {}, meta=meta)
            with anyio.move_on_after(5):
                while "error" not in logged:
                    await anyio.sleep(0.05)
            print(f"{title}, {transport}, {version}: level error: {answer}; logged: {', '.join(logged)}")


async def main() -> None:
    for transport in ("stdio", "HTTP"):
        for package, (folder, title) in PYTHON.items():
            for mode in ("legacy",) if package == "mcp-1" else ("legacy", "auto"):
                await ask(title, transport, [f"{folder}/bin/python", "server.py", package, transport], mode)
        await ask("TypeScript 1.32.2", transport, ["node", "server.mjs", "1", transport], "legacy")
    await ask("TypeScript 1.32.2 with the id", "HTTP", ["node", "server.mjs", "1", "HTTP", "id"], "legacy")
    for mode in ("legacy", "auto"):
        await ask("TypeScript 2.4.0", "HTTP", ["node", "server.mjs", "2", "HTTP"], mode)


anyio.run(main)
PY
seen=$(2.3.0/bin/python check.py 2>/dev/null)
echo "$seen"
all='debug, info, error'
asked='level error: it is in the request; logged: error'
[ "$seen" = "mcp 1.30.0, stdio, 2025-11-25: level error: error -32601; logged: $all
mcp 2.3.0, stdio, 2025-11-25: level error: error -32601; logged: $all
mcp 2.3.0, stdio, 2026-07-28: $asked
fastmcp 4.2.3, stdio, 2025-11-25: level error: accepted; logged: error
fastmcp 4.2.3, stdio, 2026-07-28: $asked
TypeScript 1.32.2, stdio, 2025-11-25: level error: accepted; logged: error
mcp 1.30.0, HTTP, 2025-11-25: level error: error -32601; logged: $all
mcp 2.3.0, HTTP, 2025-11-25: level error: error -32601; logged: $all
mcp 2.3.0, HTTP, 2026-07-28: $asked
fastmcp 4.2.3, HTTP, 2025-11-25: level error: accepted; logged: error
fastmcp 4.2.3, HTTP, 2026-07-28: $asked
TypeScript 1.32.2, HTTP, 2025-11-25: level error: accepted; logged: $all
TypeScript 1.32.2 with the id, HTTP, 2025-11-25: level error: accepted; logged: error
TypeScript 2.4.0, HTTP, 2025-11-25: level error: accepted; logged: $all
TypeScript 2.4.0, HTTP, 2026-07-28: $asked" ]
