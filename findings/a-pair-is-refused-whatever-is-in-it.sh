#!/usr/bin/env bash
# A pair in the result of a TypeScript server is refused by each TypeScript client of version 1, whatever is in it.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0, @modelcontextprotocol/server
# 2.4.0, zod 4.6.7; PyPI mcp 2.3.0. Needs Node 20 with npm, and Python 3.11 with venv.
#
# Expected: an output schema is JSON Schema 2020-12, unless it says another (2025-11-25, Tools, "Output Schema" and
# "JSON Schema Usage"), and both ends speak that revision. zod writes a tuple in that dialect, so a place with its two
# coordinates passes in each client. What a client does not know of a schema, it does not check.
#
# Seen on 2026-12-01: version 1 has one Ajv, for draft 7, and does not look at `$schema`. zod writes the two members
# into `prefixItems`, which is unknown there, and `"items": false` behind it, which in 2020-12 means no third member
# and in draft 7 none at all. So the result is refused, after the work is done, for each of its members. The same tool
# on a server of version 1, which has zod write draft 7, passes in all clients: the update of the server alone brings
# this about. pydantic bounds the length in place of `items`, so that pairs of Python servers pass. A member of its own
# for each coordinate, or `z.array(z.number()).length(2)`, helps.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 \
    @modelcontextprotocol/server@2.4.0 zod@4.6.7 >/dev/null

cat >server.py <<'PY'
from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("server", log_level="CRITICAL")


class Pair(BaseModel):
    at: tuple[float, float]


class Many(BaseModel):
    at: list[float]


@server.tool()
def pair() -> Pair:
    return Pair(at=(7.5, 45.25))


@server.tool()
def many() -> Many:
    return Many(at=[7.5, 45.25])


server.run()
PY
cat >server.mjs <<'JS'
import {McpServer as One} from '@modelcontextprotocol/sdk/server/mcp.js';
import {StdioServerTransport as OneStdio} from '@modelcontextprotocol/sdk/server/stdio.js';
import {McpServer as Two} from '@modelcontextprotocol/server';
import {StdioServerTransport as TwoStdio} from '@modelcontextprotocol/server/stdio';
import {z} from 'zod';

const [Server, Stdio] = process.argv[2] === '1' ? [One, OneStdio] : [Two, TwoStdio];
const server = new Server({name: 'server', version: '1'});
const shapes = {pair: z.tuple([z.number(), z.number()]), many: z.array(z.number()).length(2)};
for (const [name, at] of Object.entries(shapes)) {
  const result = {content: [], structuredContent: {at: [7.5, 45.25]}};
  server.registerTool(name, {outputSchema: z.object({at})}, async () => result);
}
await server.connect(new Stdio());
JS
cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OneStdio} from '@modelcontextprotocol/sdk/client/stdio.js';
import {Client as Two} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoStdio} from '@modelcontextprotocol/client/stdio';

const [title, command, ...args] = process.argv.slice(2);
for (const [version, Client, Stdio] of [['1.32.2', One, OneStdio], ['2.4.0', Two, TwoStdio]]) {
  const client = new Client({name: 'client', version: '1'});
  await client.connect(new Stdio({command, args, stderr: 'ignore'}));
  for (const {name} of (await client.listTools()).tools) {
    const called = client.callTool({name, arguments: {}});
    const seen = await called.then(({structuredContent}) => structuredContent.at.join(', '), error => error.message);
    console.log(`${title}, ${name}, TypeScript ${version}: ${seen.split('schema: ').at(-1)}`);
  }
  await client.close();
}
JS
cat >check.py <<'PY'
import sys

import anyio
from mcp import Client, StdioServerParameters


async def main(title: str, command: str, *args: str) -> None:
    async with Client(StdioServerParameters(command=command, args=list(args)), mode="legacy") as client:
        for tool in (await client.list_tools()).tools:
            at = tool.output_schema["properties"]["at"]
            words = ", ".join(sorted(set(at) & {"prefixItems", "items", "additionalItems", "minItems"}))
            pair = (await client.call_tool(tool.name)).structured_content["at"]
            print(f"{title}, {tool.name} ({words}), Python 2.3.0: {', '.join(map(str, pair))}")


anyio.run(main, *sys.argv[1:])
PY
seen=$(
    for server in "zod 2.4.0|node server.mjs 2" "zod 1.32.2|node server.mjs 1" "pydantic|venv/bin/python server.py"; do
        venv/bin/python check.py "${server%%|*}" ${server##*|} 2>/dev/null
        node check.mjs "${server%%|*}" ${server##*|} 2>/dev/null
    done
)
echo "$seen"
[ "$seen" = 'zod 2.4.0, pair (items, minItems, prefixItems), Python 2.3.0: 7.5, 45.25
zod 2.4.0, many (items, minItems), Python 2.3.0: 7.5, 45.25
zod 2.4.0, pair, TypeScript 1.32.2: data/at/0 boolean schema is false, data/at/1 boolean schema is false
zod 2.4.0, many, TypeScript 1.32.2: 7.5, 45.25
zod 2.4.0, pair, TypeScript 2.4.0: 7.5, 45.25
zod 2.4.0, many, TypeScript 2.4.0: 7.5, 45.25
zod 1.32.2, pair (additionalItems, items, minItems), Python 2.3.0: 7.5, 45.25
zod 1.32.2, many (items, minItems), Python 2.3.0: 7.5, 45.25
zod 1.32.2, pair, TypeScript 1.32.2: 7.5, 45.25
zod 1.32.2, many, TypeScript 1.32.2: 7.5, 45.25
zod 1.32.2, pair, TypeScript 2.4.0: 7.5, 45.25
zod 1.32.2, many, TypeScript 2.4.0: 7.5, 45.25
pydantic, pair (minItems, prefixItems), Python 2.3.0: 7.5, 45.25
pydantic, many (items), Python 2.3.0: 7.5, 45.25
pydantic, pair, TypeScript 1.32.2: 7.5, 45.25
pydantic, many, TypeScript 1.32.2: 7.5, 45.25
pydantic, pair, TypeScript 2.4.0: 7.5, 45.25
pydantic, many, TypeScript 2.4.0: 7.5, 45.25' ]
