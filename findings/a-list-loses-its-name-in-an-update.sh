#!/usr/bin/env bash
# A list of a TypeScript tool is `structuredContent.result`, and after an update of its client `structuredContent`.
#
# Packages: npm @modelcontextprotocol/client, @modelcontextprotocol/server 2.4.0, zod 4.6.7; PyPI mcp 2.3.0. Needs Node
# 20 with npm, and Python 3.11 with venv.
#
# Expected: a tool has one output schema, and its result has one shape, whoever asks. In 2025-11-25 it has to be an
# object, so a list needs a member to be in; an SDK that chooses a name for it keeps to that, as what is an object is
# valid in 2026-07-28 too.
#
# Seen on 2026-11-30: the TypeScript server puts what is no object into a member `result` for a client of 2025-11-25,
# in the output schema as in the result, and sends it bare to one of 2026-07-28. Its clients take the newest revision
# that both speak, so an update of the client's SDK or of the server's alone changes the shape, and a program that reads
# `structuredContent.result` has undefined from then on, with a result that is valid by its schema. The Python server
# has the same member in both, so a program for two servers that return the same list has to look which it got.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 @modelcontextprotocol/server@2.4.0 \
    zod@4.6.7 >/dev/null

cat >server.py <<'PY'
from mcp.server import MCPServer

server = MCPServer("server", log_level="CRITICAL")


@server.tool()
def numbers() -> list[int]:
    return [1, 2]


@server.tool()
def count() -> int:
    return 2


server.run()
PY
cat >server.mjs <<'JS'
import {McpServer} from '@modelcontextprotocol/server';
import {serveStdio} from '@modelcontextprotocol/server/stdio';
import {z} from 'zod';

serveStdio(() => {
  const server = new McpServer({name: 'server', version: '1'});
  for (const [name, outputSchema, value] of [['numbers', z.array(z.int()), [1, 2]], ['count', z.int(), 2]]) {
    const content = [{type: 'text', text: JSON.stringify(value)}];
    server.registerTool(name, {inputSchema: z.object({}), outputSchema}, () => ({content, structuredContent: value}));
  }
  return server;
});
JS
cat >check.mjs <<'JS'
import {Client} from '@modelcontextprotocol/client';
import {StdioClientTransport} from '@modelcontextprotocol/client/stdio';

const programs = {TypeScript: ['node', 'server.mjs'], Python: ['venv/bin/python', 'server.py']};

for (const [language, [command, file]] of Object.entries(programs)) {
  for (const mode of ['legacy', 'auto']) {
    const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode}});
    await client.connect(new StdioClientTransport({command, args: [file], stderr: 'ignore'}));
    console.log(`${language}, ${client.getNegotiatedProtocolVersion()}`);
    for (const {name, outputSchema} of (await client.listTools()).tools) {
      const {structuredContent} = await client.callTool({name, arguments: {}});
      console.log(`  ${name}: schema of type ${outputSchema.type}; ${JSON.stringify(structuredContent)}`);
    }
    await client.close();
  }
}
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'TypeScript, 2025-11-25
  numbers: schema of type object; {"result":[1,2]}
  count: schema of type object; {"result":2}
TypeScript, 2026-07-28
  numbers: schema of type array; [1,2]
  count: schema of type integer; 2
Python, 2025-11-25
  numbers: schema of type object; {"result":[1,2]}
  count: schema of type object; {"result":2}
Python, 2026-07-28
  numbers: schema of type object; {"result":[1,2]}
  count: schema of type object; {"result":2}' ]
