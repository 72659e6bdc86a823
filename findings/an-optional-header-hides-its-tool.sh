#!/usr/bin/env bash
# An argument that may be left out, and that becomes a header, hides its tool from clients of 2026-07-28.
#
# Packages: PyPI fastmcp 4.2.3, mcp 2.3.0; npm @modelcontextprotocol/client 2.4.0. Needs Python 3.11 with venv, and
# Node 20 with npm. It listens on a free port of the loopback address.
#
# Expected: the header of `region: str | None = None` is sent when the argument is, as that of one with the default
# "eu" is. A server that starts with an annotation that no client can follow says so.
#
# Seen on 2026-11-29: pydantic writes `anyOf` with `null` for it, and no `type`. The revision permits the annotation on
# string, integer and boolean alone, and clients leave out a tool that breaks this. FastMCP serves it without a word,
# so both clients list the tool in 2025-11-25, and neither does in 2026-07-28: after an update of the client it
# is missing, and the reason is in the log of the client alone. A call by name still works. MCPServer of the Python SDK
# refuses to register the same function. With the default "eu" in place of None, all see the tool.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 >/dev/null

cat >check.mjs <<'JS'
import {Client, StreamableHTTPClientTransport} from '@modelcontextprotocol/client';

for (const mode of ['legacy', 'auto']) {
  const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode}});
  await client.connect(new StreamableHTTPClientTransport(new URL(process.argv[2])));
  const {tools} = await client.listTools();
  const {content} = await client.callTool({name: 'optional', arguments: {region: 'us'}});
  const names = tools.map(({name}) => name).join(', ');
  console.log(`TypeScript 2.4.0, ${client.getNegotiatedProtocolVersion()}: ${names}; called: ${content[0].text}`);
  await client.close();
}
JS
cat >check.py <<'PY'
import asyncio
import logging
import socket
from typing import Annotated

import uvicorn
from fastmcp import FastMCP
from mcp import Client
from mcp.server import MCPServer
from pydantic import Field

logging.disable(logging.CRITICAL)
Header = Field(json_schema_extra={"x-mcp-header": "Region"})


def required(region: Annotated[str, Header]) -> str:
    return region


def default(region: Annotated[str, Header] = "eu") -> str:
    return region


def optional(region: Annotated[str | None, Header] = None) -> str:
    return str(region)


async def main() -> None:
    server = FastMCP("server")
    for function in (required, default, optional):
        server.tool(function)
    place = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(server.http_app(), log_config=None))
    task = asyncio.create_task(running.serve([place]))
    while not running.started:
        await asyncio.sleep(0.05)
    address = f"http://127.0.0.1:{place.getsockname()[1]}/mcp"
    for mode in ("legacy", "auto"):
        async with Client(address, mode=mode) as client:
            names = ", ".join(tool.name for tool in (await client.list_tools()).tools)
            called = (await client.call_tool("optional", {"region": "us"})).content[0].text
            print(f"Python 2.3.0, {client.protocol_version}: {names}; called: {called}", flush=True)
    node = await asyncio.create_subprocess_exec("node", "check.mjs", address, stderr=asyncio.subprocess.DEVNULL)
    await node.wait()
    running.should_exit = True
    await task
    for function in (required, default, optional):
        try:
            MCPServer("server").tool()(function)
        except Exception as error:
            print(f"MCPServer, {function.__name__}: {type(error).__name__}")
        else:
            print(f"MCPServer, {function.__name__}: accepted")


asyncio.run(main())
PY
seen=$(venv/bin/python check.py)
echo "$seen"
[ "$seen" = 'Python 2.3.0, 2025-11-25: required, default, optional; called: us
Python 2.3.0, 2026-07-28: required, default; called: us
TypeScript 2.4.0, 2025-11-25: required, default, optional; called: us
TypeScript 2.4.0, 2026-07-28: required, default; called: us
MCPServer, required: accepted
MCPServer, default: accepted
MCPServer, optional: InvalidSignature' ]
