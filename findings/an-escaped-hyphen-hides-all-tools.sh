#!/usr/bin/env bash
# A hyphen that `re.escape` escaped, in the pattern of one result, hides all tools of a server from a client.
#
# Packages: PyPI mcp 2.3.0, pydantic 2.14.4; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0,
# ajv 8.20.0. Needs Python 3.11 with venv, and Node 20 with npm.
#
# Expected: `re.escape("ticket-")` is safe in a pattern. pydantic compiles it and puts it into the tool's output
# schema. A client that cannot compile an output schema skips the check, or fails the calls of that tool.
#
# Seen on 2026-11-28: the escape is `\-`. Outside of brackets, a JavaScript expression with the flag `u`, which Ajv
# sets, does not allow it. 1.32.2 compiles the output schemas of a page while it lists: `listTools` throws, and a host
# that shows what it returns shows none of the server's tools, also none without an output schema. 2.4.0 lists all
# tools, and the call of that one throws before it is sent. The Python client of the server's SDK accepts it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 pydantic==2.14.4 2>/dev/null
npm install --silent --no-audit --no-fund \
    @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 ajv@8.20.0 >/dev/null

cat >server.py <<'PY'
import re

from mcp.server import MCPServer
from pydantic import BaseModel, Field


class Ticket(BaseModel):
    id: str = Field(pattern="^" + re.escape("ticket-") + r"\d+$")


server = MCPServer("tickets")


@server.tool()
def open_ticket() -> Ticket:
    return Ticket(id="ticket-7")


@server.tool()
def say_hello() -> str:
    return "hello"


if __name__ == "__main__":
    server.run()
PY
cat >check.py <<'PY'
import anyio
from mcp import Client

from server import server


async def main() -> None:
    async with Client(server) as client:
        names = [tool.name for tool in (await client.list_tools()).tools]
        result = await client.call_tool("open_ticket", {})
        print(f"Python 2.3.0: lists {', '.join(names)}; open_ticket returns {result.structured_content}")


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OneStdio} from '@modelcontextprotocol/sdk/client/stdio.js';
import {Client as Two} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoStdio} from '@modelcontextprotocol/client/stdio';

for (const [title, Client, Stdio] of [['1.32.2', One, OneStdio], ['2.4.0', Two, TwoStdio]]) {
  const client = new Client({name: 'client', version: '1'});
  await client.connect(new Stdio({command: 'venv/bin/python', args: ['server.py'], stderr: 'ignore'}));
  try {
    const {tools} = await client.listTools();
    console.log(`TypeScript ${title}: lists ${tools.map(tool => tool.name).join(', ')}`);
    const result = await client.callTool({name: 'open_ticket', arguments: {}});
    console.log(`TypeScript ${title}: open_ticket returns ${JSON.stringify(result.structuredContent)}`);
  } catch (error) {
    console.log(`TypeScript ${title}: ${error.message}`);
  }
  await client.close();
}
JS
refused='Invalid regular expression: /^ticket\-\d+$/u: Invalid escape'
seen=$(venv/bin/python check.py 2>/dev/null && node check.mjs)
echo "$seen"
[ "$seen" = "Python 2.3.0: lists open_ticket, say_hello; open_ticket returns {'id': 'ticket-7'}
TypeScript 1.32.2: $refused
TypeScript 2.4.0: lists open_ticket, say_hello
TypeScript 2.4.0: Tool 'open_ticket' has an invalid outputSchema: $refused" ]
