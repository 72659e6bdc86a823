#!/usr/bin/env bash
# Pydantic AI sees a new tool of a server of 2025-11-25, and none of the same server once that speaks 2026-07-28.
#
# Packages: PyPI pydantic-ai-slim 2.68.0 (extra mcp), fastmcp-slim 4.2.3, mcp 2.3.0; mcp 1.30.0 for the older server.
# Needs Python 3.11 with venv.
#
# Expected: by the documentation of `MCPToolset.cache_tools`, tools are cached until the server sends
# `notifications/tools/list_changed`, and `False` is for servers that change without it. A server that declares
# `tools.listChanged`, and announces each change, needs no setting, whatever revision it speaks.
#
# Seen on 2026-11-30: in 2026-07-28 a server tells of changes only to who has opened `subscriptions/listen` (2026-07-28,
# Subscriptions), and neither Pydantic AI nor the client of FastMCP below it opens one. Nothing is sent, so the cache is
# never dropped: the agent has the tools of its start until it disconnects, without an error. As the client takes the
# newest revision that the server has, the update of the server alone brings this about. The SDK's own client, which
# listens, is told of the change by the same server. `cache_tools=False` helps. A gateway's list changes with each
# server that comes or goes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv one
one/bin/pip install --quiet --disable-pip-version-check mcp==1.30.0 2>/dev/null
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check \
    "pydantic-ai-slim[mcp]==2.68.0" fastmcp-slim==4.2.3 mcp==2.3.0 2>/dev/null

cat >server.py <<'PY'
"""A server over stdio whose tool `grow` adds the tool `late` and announces it, for either version of the SDK."""

from importlib.metadata import version


def late() -> str:
    return "late"


if version("mcp").startswith("1."):
    from mcp.server.fastmcp import Context, FastMCP

    server = FastMCP("growing")

    @server.tool()
    async def grow(ctx: Context) -> str:
        server.add_tool(late)
        await ctx.session.send_tool_list_changed()
        return "grown"
else:
    from mcp.server.mcpserver import Context, MCPServer

    server = MCPServer("growing")

    @server.tool()
    async def grow(ctx: Context) -> str:
        server.add_tool(late)
        await ctx.notify_tools_changed()
        return "grown"


server.run()
PY
cat >check.py <<'PY'
import anyio
from fastmcp.client.transports import StdioTransport
from mcp import Client, StdioServerParameters
from pydantic_ai.mcp import MCPToolset


async def agent(title: str, python: str, cache: bool) -> None:
    toolset = MCPToolset(StdioTransport(python, ["server.py"]), cache_tools=cache, init_timeout=120)
    async with toolset:
        before = [tool.name for tool in await toolset.list_tools()]
        await toolset.direct_call_tool("grow", {})
        after = before
        with anyio.move_on_after(10):
            while after == before:
                await anyio.sleep(0.1)
                after = [tool.name for tool in await toolset.list_tools()]
        version = toolset.client.session.protocol_version
        print(f"{title}, {version}: {', '.join(before)}; after the change: {', '.join(after)}")


async def listener() -> None:
    server = StdioServerParameters(command="venv/bin/python", args=["server.py"])
    async with Client(server) as client, client.listen(tools_list_changed=True) as events:
        await client.call_tool("grow")
        print(f"mcp 2.3.0, who listens: {type(await anext(events)).__name__}")


async def main() -> None:
    with anyio.fail_after(300):
        await agent("mcp 1.30.0", "one/bin/python", cache=True)
        await agent("mcp 2.3.0", "venv/bin/python", cache=True)
        await agent("mcp 2.3.0, cache_tools=False", "venv/bin/python", cache=False)
        await listener()


anyio.run(main)
PY
seen=$(venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = 'mcp 1.30.0, 2025-11-25: grow; after the change: grow, late
mcp 2.3.0, 2026-07-28: grow; after the change: grow
mcp 2.3.0, cache_tools=False, 2026-07-28: grow; after the change: grow, late
mcp 2.3.0, who listens: ToolsListChanged' ]
