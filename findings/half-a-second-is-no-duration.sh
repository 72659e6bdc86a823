#!/usr/bin/env bash
# A result with a duration of five seconds is accepted, one of half a second is refused; so is a time without a zone.
#
# Packages: PyPI mcp 2.3.0, pydantic 2.14.4; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0,
# @modelcontextprotocol/server 2.4.0, ajv-formats 3.0.1, zod 4.6.7. Needs Python 3.11 with venv, and Node 20 with npm.
#
# Expected: pydantic and zod write `"format": "duration"` and `"format": "date-time"` into the output schema of a
# tool, so that what they write as such a value passes in each client. ISO 8601 permits PT0.5S.
#
# Seen on 2026-11-28: JSON Schema takes the grammar of RFC 3339 instead: no fraction and no sign in a duration, and a
# zone in each date-time. The TypeScript clients check formats (ajv-formats), the Python client does not. So a tool
# works with one client and not with the other, and with TypeScript only while its values are whole and positive. The
# result is refused after the work is done. A server of TypeScript is refused by the client of its own SDK.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 pydantic==2.14.4 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 \
    @modelcontextprotocol/server@2.4.0 ajv-formats@3.0.1 zod@4.6.7 >/dev/null

cat >server.py <<'PY'
from datetime import UTC, datetime, timedelta

from mcp.server import MCPServer
from pydantic import BaseModel


class Took(BaseModel):
    took: timedelta


class Seen(BaseModel):
    at: datetime


server = MCPServer("clock")


@server.tool()
def five_seconds() -> Took:
    return Took(took=timedelta(seconds=5))


@server.tool()
def half_a_second() -> Took:
    return Took(took=timedelta(seconds=0.5))


@server.tool()
def too_early() -> Took:
    return Took(took=timedelta(seconds=-5))


@server.tool()
def with_zone() -> Seen:
    return Seen(at=datetime(2026, 11, 28, 12, tzinfo=UTC))


@server.tool()
def without_zone() -> Seen:
    return Seen(at=datetime(2026, 11, 28, 12))


if __name__ == "__main__":
    server.run()
PY
cat >server.mjs <<'JS'
import {McpServer} from '@modelcontextprotocol/server';
import {StdioServerTransport} from '@modelcontextprotocol/server/stdio';
import {z} from 'zod';

const server = new McpServer({name: 'clock', version: '1'});
for (const [name, took] of [['five_seconds', 'PT5S'], ['half_a_second', 'PT0.5S']]) {
  const outputSchema = z.object({took: z.iso.duration()});
  server.registerTool(name, {outputSchema}, async () => ({content: [], structuredContent: {took}}));
}
await server.connect(new StdioServerTransport());
JS
cat >check.py <<'PY'
import anyio
from mcp import Client

from server import server


async def main() -> None:
    async with Client(server) as client:
        for tool in (await client.list_tools()).tools:
            result = await client.call_tool(tool.name, {})
            print(f"mcp, Python 2.3.0, {tool.name}: {' '.join(result.structured_content.values())}")


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OneStdio} from '@modelcontextprotocol/sdk/client/stdio.js';
import {Client as Two} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoStdio} from '@modelcontextprotocol/client/stdio';

const servers = [['mcp', 'venv/bin/python', 'server.py'], ['zod', 'node', 'server.mjs']];
for (const [library, command, file] of servers) {
  for (const [title, Client, Stdio] of [['1.32.2', One, OneStdio], ['2.4.0', Two, TwoStdio]]) {
    const client = new Client({name: 'client', version: '1'});
    await client.connect(new Stdio({command, args: [file], stderr: 'ignore'}));
    for (const {name} of (await client.listTools()).tools) {
      const called = client.callTool({name, arguments: {}});
      const seen = await called.then(result => Object.values(result.structuredContent), error => error.message);
      console.log(`${library}, TypeScript ${title}, ${name}: ${String(seen).split('schema: ').at(-1)}`);
    }
    await client.close();
  }
}
JS
seen=$(venv/bin/python check.py 2>/dev/null && node check.mjs)
echo "$seen"
[ "$seen" = 'mcp, Python 2.3.0, five_seconds: PT5S
mcp, Python 2.3.0, half_a_second: PT0.5S
mcp, Python 2.3.0, too_early: -PT5S
mcp, Python 2.3.0, with_zone: 2026-11-28T12:00:00Z
mcp, Python 2.3.0, without_zone: 2026-11-28T12:00:00
mcp, TypeScript 1.32.2, five_seconds: PT5S
mcp, TypeScript 1.32.2, half_a_second: data/took must match format "duration"
mcp, TypeScript 1.32.2, too_early: data/took must match format "duration"
mcp, TypeScript 1.32.2, with_zone: 2026-11-28T12:00:00Z
mcp, TypeScript 1.32.2, without_zone: data/at must match format "date-time"
mcp, TypeScript 2.4.0, five_seconds: PT5S
mcp, TypeScript 2.4.0, half_a_second: data/took must match format "duration"
mcp, TypeScript 2.4.0, too_early: data/took must match format "duration"
mcp, TypeScript 2.4.0, with_zone: 2026-11-28T12:00:00Z
mcp, TypeScript 2.4.0, without_zone: data/at must match format "date-time"
zod, TypeScript 1.32.2, five_seconds: PT5S
zod, TypeScript 1.32.2, half_a_second: data/took must match format "duration"
zod, TypeScript 2.4.0, five_seconds: PT5S
zod, TypeScript 2.4.0, half_a_second: data/took must match format "duration"' ]
