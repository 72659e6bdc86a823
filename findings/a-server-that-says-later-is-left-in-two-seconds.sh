#!/usr/bin/env bash
# A client that is told to come again later comes ten times within two seconds, and then its call fails.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/client 2.4.0. Needs Python 3.11 with venv, and Node 20 with npm.
#
# Expected: a server of 2026-07-28 may answer a call with a state and no question, so that the client sends the call
# again with it (Multi Round-Trip Requests): it waits for nobody but the server. The limit of ten rounds is there for
# servers that ask without end; here nobody is asked. So the client comes again until the call has taken as long as it
# may, here a minute, as it waits for an answer that is late.
#
# Seen on 2026-12-01: both clients wait 50 ms, 100 ms, 200 ms, and 250 ms each further time, and count these rounds with
# those of questions. After ten of them, in a little more than two seconds, they give up, whatever limit the call has.
# A build that takes half a second is awaited, one that takes longer is lost: its call fails while the work goes on,
# and the host cannot tell that from a server that asks without end. No answer of the server can ask for a longer pause.
# `input_required_max_rounds`, or `inputRequired: {maxRounds}`, on the client makes it wait longer, for questions as well.
# A server that needs longer has to keep the request open, or make a task of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
import time
from typing import Any

import anyio
import mcp_types as types
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

TOOLS = [
    types.Tool(name="build", input_schema={"type": "object", "properties": {"seconds": {"type": "number"}}}),
    types.Tool(name="asked", input_schema={"type": "object"}),
]
requests = 0


async def list_tools(context: Any, params: Any) -> types.ListToolsResult:
    return types.ListToolsResult(tools=TOOLS)


async def call_tool(context: Any, params: Any) -> types.CallToolResult | types.InputRequiredResult:
    """Build in the background: the state is the time at which it will be done."""
    global requests
    if params.name == "asked":
        text, requests = f"{requests} requests", 0
        return types.CallToolResult(content=[types.TextContent(type="text", text=text)])
    requests += 1
    done = float(params.request_state or time.monotonic() + params.arguments["seconds"])
    if time.monotonic() < done:
        return types.InputRequiredResult(request_state=str(done))
    return types.CallToolResult(content=[types.TextContent(type="text", text="built")])


async def main() -> None:
    server = Server("server", on_list_tools=list_tools, on_call_tool=call_tool)
    async with stdio_server() as (read, write):
        await server.run(read, write, server.create_initialization_options())


anyio.run(main)
PY
cat >check.py <<'PY'
import sys
import time

import anyio
from mcp import Client, StdioServerParameters


async def main() -> None:
    program = StdioServerParameters(command=sys.executable, args=["server.py"])
    for rounds in (10, 100):
        async with Client(program, read_timeout_seconds=60, input_required_max_rounds=rounds) as client:
            for seconds in (0.5, 8):
                begin = time.monotonic()
                try:
                    outcome = (await client.call_tool("build", {"seconds": seconds})).content[0].text
                except Exception as error:
                    outcome = type(error).__name__
                early = "before" if time.monotonic() - begin < 7 else "when it was done"
                asked = (await client.call_tool("asked")).content[0].text
                if outcome == "built":
                    print(f"mcp 2.3.0, {rounds} rounds, {seconds} s: built")
                else:
                    print(f"mcp 2.3.0, {rounds} rounds, {seconds} s: {outcome}, {early}, after {asked}")


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {Client} from '@modelcontextprotocol/client';
import {StdioClientTransport} from '@modelcontextprotocol/client/stdio';

for (const maxRounds of [10, 100]) {
  const options = {versionNegotiation: {mode: 'auto'}, inputRequired: {maxRounds}};
  const client = new Client({name: 'client', version: '1'}, options);
  await client.connect(new StdioClientTransport({command: 'venv/bin/python', args: ['server.py']}));
  for (const seconds of [0.5, 8]) {
    const begin = performance.now();
    const call = client.callTool({name: 'build', arguments: {seconds}}, {timeout: 60000});
    const outcome = await call.then(({content}) => content[0].text, error => error.message.split(' (')[0]);
    const early = performance.now() - begin < 7000 ? 'before' : 'when it was done';
    const {content} = await client.callTool({name: 'asked', arguments: {}});
    const rest = outcome === 'built' ? '' : `, ${early}, after ${content[0].text}`;
    console.log(`client 2.4.0, ${maxRounds} rounds, ${seconds} s: ${outcome}${rest}`);
  }
  await client.close();
}
JS
seen=$(venv/bin/python check.py 2>/dev/null && node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = "mcp 2.3.0, 10 rounds, 0.5 s: built
mcp 2.3.0, 10 rounds, 8 s: InputRequiredRoundsExceededError, before, after 11 requests
mcp 2.3.0, 100 rounds, 0.5 s: built
mcp 2.3.0, 100 rounds, 8 s: built
client 2.4.0, 10 rounds, 0.5 s: built
client 2.4.0, 10 rounds, 8 s: Multi-round-trip request 'tools/call' still required input after 10 rounds, before, after 11 requests
client 2.4.0, 100 rounds, 0.5 s: built
client 2.4.0, 100 rounds, 8 s: built" ]
