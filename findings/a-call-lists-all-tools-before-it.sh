#!/usr/bin/env bash
# A Python server lists its tools, page after page, before each call that a client of 2026-07-28 makes over HTTP.
#
# Packages: PyPI mcp 2.3.0. Needs Python 3.11 with venv. It listens on a free port of the loopback address.
#
# Expected: a server made with the low-level `Server` has a function for lists and one for calls, and `tools/call` runs
# the second. A server that stands before others, as a gateway does, asks them for their lists in the first, and hands
# a call on in the second.
#
# Seen on 2026-11-30: over HTTP in 2026-07-28, each call with arguments runs the function for lists first, and
# again for each cursor up to the page that has the tool, to compare `Mcp-Param-*` headers with the arguments
# (`_tool_input_schema`, mcp/server/_streamable_http_modern.py). It does so although no tool has such a header, and
# keeps nothing for the next call. A call to a tool on the last of five pages costs five lists and their time; a gateway
# asks all its servers in each. What counts or logs lists sees many that no client has sent. In 2025-11-25 and over
# stdio, a call is a call. `get_tool_input_schema=` of `Server` gives the schema without a list. `MCPServer` sets it,
# and so does FastMCP.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null

cat >server.py <<'PY'
"""A server with 250 tools in pages of 50, over stdio or, with the argument http, at a URL, whose port it prints.

It writes each run of its two functions to stderr. With the argument schema, it can tell a schema without a list."""

import logging
import socket
import sys
from typing import Any

import anyio
import uvicorn
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server
from mcp_types import CallToolResult, ListToolsResult, TextContent, Tool

logging.disable(logging.CRITICAL)
tools = [Tool(name=f"tool-{number}", input_schema={"type": "object"}) for number in range(250)]


async def page(context: Any, params: Any) -> ListToolsResult:
    first = int((params and params.cursor) or 0)
    print(f"list from {first}", file=sys.stderr, flush=True)
    return ListToolsResult(tools=tools[first : first + 50], next_cursor=str(first + 50) if first < 200 else None)


async def call(context: Any, params: Any) -> CallToolResult:
    print("call", file=sys.stderr, flush=True)
    return CallToolResult(content=[TextContent(text="done")])


def schema_of(name: str) -> dict[str, Any] | None:
    return next((tool.input_schema for tool in tools if tool.name == name), None)


knows = schema_of if "schema" in sys.argv else None
server = Server("server", on_list_tools=page, on_call_tool=call, get_tool_input_schema=knows)


async def over_stdio() -> None:
    async with stdio_server() as (reading, writing):
        await server.run(reading, writing, server.create_initialization_options())


if "http" in sys.argv:
    place = socket.create_server(("127.0.0.1", 0))
    print(place.getsockname()[1], flush=True)
    uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_config=None)).run([place])
else:
    anyio.run(over_stdio)
PY
cat >check.py <<'PY'
import subprocess
import sys
import tempfile

import anyio
from mcp import Client, StdioServerParameters
from mcp.client.stdio import stdio_client


async def play(mode: str, transport: str, *further: str) -> None:
    with tempfile.TemporaryFile("w+") as log:
        process = None
        if transport == "http":
            command = [sys.executable, "server.py", "http", *further]
            process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
            target = f"http://127.0.0.1:{process.stdout.readline().strip()}/mcp"
        else:
            parameters = StdioServerParameters(command=sys.executable, args=["server.py", *further])
            target = stdio_client(parameters, errlog=log)
        async with Client(target, mode=mode) as client:
            cursor = None
            while (cursor := (await client.list_tools(cursor=cursor)).next_cursor) is not None:
                pass
            print(f"{transport}, {client.protocol_version}{', its schema is known' if further else ''}")
            for arguments in (None, {"number": 1}, {"number": 2}):
                before = log.tell()
                await client.call_tool("tool-220", arguments)
                log.seek(before)
                print(f"  a call {'with' if arguments else 'without'} arguments: {', '.join(log.read().splitlines())}")
        if process is not None:
            process.terminate()
            process.wait()


async def main() -> None:
    await play("legacy", "http")
    await play("auto", "stdio")
    await play("auto", "http")
    await play("auto", "http", "schema")


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = 'http, 2025-11-25
  a call without arguments: call
  a call with arguments: call
  a call with arguments: call
stdio, 2026-07-28
  a call without arguments: call
  a call with arguments: call
  a call with arguments: call
http, 2026-07-28
  a call without arguments: call
  a call with arguments: list from 0, list from 50, list from 100, list from 150, list from 200, call
  a call with arguments: list from 0, list from 50, list from 100, list from 150, list from 200, call
http, 2026-07-28, its schema is known
  a call without arguments: call
  a call with arguments: call
  a call with arguments: call' ]
