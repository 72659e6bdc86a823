#!/usr/bin/env bash
# A tool of FastMCP that asks its user fails as soon as server and client both speak 2026-07-28.
#
# Packages: PyPI fastmcp 3.4.2 and 4.2.3 for the server, mcp 2.3.0 for the client. Needs Python 3.11 with venv.
#
# Expected: `ctx.elicit()` asks the client that the tool works for, whatever revision the two have agreed on: both have
# elicitation, and the client declares it. A server offers the revisions in which its tools work.
#
# Seen on 2026-11-30: FastMCP 4 offers 2026-07-28 for every server, and the client takes the newest that both have. In
# that revision a server cannot request anything while a call is open, and `ctx.elicit()` raises: the tool answers with
# an error, after whatever it has done before. So the update from FastMCP 3 of the server alone brings this about, with
# no change in the tool, and so does that of a client. Nothing says so when the server starts or lists the tool. A tool
# that returns `InputRequiredResult` works in the newer revision, one that calls `ctx.elicit()` in the older ones.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv three
three/bin/pip install --quiet --disable-pip-version-check fastmcp==3.4.2 2>/dev/null
python3 -m venv four
four/bin/pip install --quiet --disable-pip-version-check fastmcp==4.2.3 mcp==2.3.0 2>/dev/null

cat >server.py <<'PY'
from fastmcp import Context, FastMCP

server = FastMCP("server")


@server.tool
async def order(ctx: Context) -> str:
    answer = await ctx.elicit("Which size?", response_type=str)
    return f"{answer.action} {answer.data}"


server.run(show_banner=False)
PY
cat >check.py <<'PY'
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult


async def ask(context: Any, params: Any) -> ElicitResult:
    return ElicitResult(action="accept", content={"value": "L"})


async def main() -> None:
    for title, python in ("fastmcp 3.4.2", "three/bin/python"), ("fastmcp 4.2.3", "four/bin/python"):
        for mode in ("legacy", "auto"):
            program = StdioServerParameters(command=python, args=["server.py"])
            async with Client(program, mode=mode, elicitation_callback=ask) as client:
                result = await client.call_tool("order")
                version = client.session.protocol_version
            print(f"{title}, {mode}, {version}: {'error: ' if result.is_error else ''}{result.content[0].text}")


anyio.run(main)
PY
seen=$(four/bin/python check.py 2>/dev/null)
echo "$seen"
missing='elicitation via server-initiated requests is unavailable on 2026-07-28 connections.'
[ "$seen" = "fastmcp 3.4.2, legacy, 2025-11-25: accept L
fastmcp 3.4.2, auto, 2025-11-25: accept L
fastmcp 4.2.3, legacy, 2025-11-25: accept L
fastmcp 4.2.3, auto, 2026-07-28: error: $missing" ]
