#!/usr/bin/env bash
# A tool of LangChain that is called on another connection than it was listed on is refused, if an argument is a header.
#
# Packages: PyPI langchain 1.5.2, fastmcp 4.2.3, mcp 2.3.0. Needs Python 3.11 with venv. It listens on a free port of the
# loopback address.
#
# Expected: `MCPAdapter.list_tools()` gives tools that "stay callable after this adapter's context exits", as their
# definitions are in them. A server of 2026-07-28 has no session, so that a connection is worth nothing. Where the
# server finds that a header is missing (-32020), a client reads its tools again and calls once more (2026-07-28,
# Streamable HTTP, "Custom Headers from Tool Parameters": SHOULD), as the one of the Python SDK does.
#
# Seen on 2026-12-01: the names of the headers are in the connection and not in the tool. A tool that is called outside
# of `async with` opens a connection of its own, in which nothing was listed; the argument is sent without its header,
# and the server has to refuse the call. LangChain calls by the client of FastMCP, which goes past the `Client` of the
# SDK, where the repetition is, to the session below, which has none. So each tool with such an argument fails, also
# within a later `async with`, and the others work. In 2025-11-25 all work: an update of the server, or an annotation in
# it that is no part of the arguments, brings this about. Listing again on the same connection helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check langchain==1.5.2 fastmcp==4.2.3 mcp==2.3.0 2>/dev/null

cat >check.py <<'PY'
import asyncio
import logging
import socket
from collections.abc import Awaitable
from typing import Annotated, Any

import uvicorn
from fastmcp import Client
from langchain.mcp import MCPAdapter
from mcp import Client as ClientOfSDK
from mcp.server import MCPServer
from pydantic import Field

logging.disable(logging.CRITICAL)
server = MCPServer("server", log_level="CRITICAL")


@server.tool()
def close(issue: int) -> str:
    """Close an issue."""
    return f"closed {issue}"


@server.tool()
def write(owner: Annotated[str, Field(json_schema_extra={"x-mcp-header": "Owner"})], title: str) -> str:
    """Write an issue."""
    return f"wrote {title} for {owner}"


CALLS: dict[str, dict[str, Any]] = {"close": {"issue": 7}, "write": {"owner": "ann", "title": "Rain"}}


async def outcome(call: Awaitable[Any]) -> str:
    try:
        result = await call
    except Exception as error:
        return str(error)
    return result[0]["text"] if isinstance(result, list) else result.content[0].text


async def main() -> None:
    place = socket.create_server(("127.0.0.1", 0))
    running = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_config=None))
    task = asyncio.create_task(running.serve([place]))
    while not running.started:
        await asyncio.sleep(0.05)
    address = f"http://127.0.0.1:{place.getsockname()[1]}/mcp"
    for name, arguments in CALLS.items():
        async with ClientOfSDK(address) as client:
            print(f"mcp, not listed, {name}: {await outcome(client.call_tool(name, arguments))}")
        async with Client(address) as client:
            print(f"fastmcp, not listed, {name}: {await outcome(client.call_tool(name, arguments))}")
    for mode in ("legacy", "auto"):
        adapter = MCPAdapter(Client(address, mode=mode))
        kept = {tool.name: tool for tool in await adapter.list_tools()}
        for name, arguments in CALLS.items():
            print(f"langchain, {mode}, {name}: {await outcome(kept[name].ainvoke(arguments))}")
            async with adapter:
                print(f"  in a later block: {await outcome(kept[name].ainvoke(arguments))}")
                await adapter.list_tools()
                print(f"  listed there again: {await outcome(kept[name].ainvoke(arguments))}")
    running.should_exit = True
    await task


asyncio.run(main())
PY
seen=$(venv/bin/python -W ignore check.py 2>/dev/null)
echo "$seen"
refused="Mcp-Param-Owner header is missing but the request body's 'owner' argument is present"
[ "$seen" = "mcp, not listed, close: closed 7
fastmcp, not listed, close: closed 7
mcp, not listed, write: wrote Rain for ann
fastmcp, not listed, write: $refused
langchain, legacy, close: closed 7
  in a later block: closed 7
  listed there again: closed 7
langchain, legacy, write: wrote Rain for ann
  in a later block: wrote Rain for ann
  listed there again: wrote Rain for ann
langchain, auto, close: closed 7
  in a later block: closed 7
  listed there again: closed 7
langchain, auto, write: $refused
  in a later block: $refused
  listed there again: wrote Rain for ann" ]
