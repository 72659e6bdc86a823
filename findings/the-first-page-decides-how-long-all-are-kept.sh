#!/usr/bin/env bash
# A TypeScript client keeps all pages of a list for as long as the first one may be kept, whatever the others say.
#
# Packages: npm @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0. Needs Node 20 with npm, and Python 3.11 with venv.
#
# Expected: a page is an answer of its own, with its own cursor in the key and its own `ttlMs` (2026-07-28, Caching).
# `ttlMs: 0` is stale at once. Whoever joins the pages into one list may keep it for the shortest time of them: a gateway
# has the tools of a server that never change on one page, and those of one that changes on the next.
#
# Seen on 2026-11-30: `listTools()` joins all pages, and takes the hints of the first. With an hour there and 0 on the
# second page, the next calls ask for neither, and a tool that came to the second page is not seen for that hour. The
# other way round, all pages are asked for each time. The joined answer shows the first page's `ttlMs` as its own, so
# the host cannot tell. So with prompts, resources and templates. The Python client keeps the first page only, and asks
# for each further one.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 >/dev/null

cat >check.mjs <<'JS'
import {Client} from '@modelcontextprotocol/client';

const hour = 3_600_000;

async function play(first, second) {
  const pages = {first: ['alpha'], second: ['beta']};
  let asked = [];
  const transport = {
    async start() {},
    async close() {},
    async send({id, method, params}) {
      if (id === undefined) {
        return;
      }
      let result = {supportedVersions: ['2026-07-28'], capabilities: {tools: {}}, ttlMs: 0};
      if (method === 'tools/list') {
        const page = params.cursor ?? 'first';
        asked.push(page);
        const tools = pages[page].map(name => ({name, inputSchema: {type: 'object'}}));
        result = page === 'first' ? {tools, nextCursor: 'second', ttlMs: first} : {tools, ttlMs: second};
      }
      result = {resultType: 'complete', cacheScope: 'private', ...result};
      queueMicrotask(() => this.onmessage({jsonrpc: '2.0', id, result}));
    },
  };
  const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode: 'auto'}});
  await client.connect(transport);
  console.log(`client 2.4.0, ttlMs ${first} and ${second}`);
  for (let round = 0; round < 2; round++) {
    asked = [];
    const {tools, ttlMs} = await client.listTools();
    console.log(`  ${tools.map(({name}) => name).join(', ')}; ttlMs ${ttlMs}; asked for: ${asked.join(', ') || 'nothing'}`);
    pages.second.push('gamma');
  }
  await client.close();
}

await play(hour, 0);
await play(0, hour);
JS
cat >check.py <<'PY'
from typing import Any

import anyio
from mcp import Client
from mcp.server.lowlevel import Server
from mcp_types import ListToolsResult, Tool

pages = {"first": ["alpha"], "second": ["beta"]}
asked: list[str] = []


async def page(context: Any, params: Any) -> ListToolsResult:
    name = (params and params.cursor) or "first"
    asked.append(name)
    tools = [Tool(name=each, input_schema={"type": "object"}) for each in pages[name]]
    first = name == "first"
    return ListToolsResult(tools=tools, next_cursor="second" if first else None, ttl_ms=3_600_000 if first else 0)


async def main() -> None:
    async with Client(Server("server", on_list_tools=page)) as client:
        print("mcp 2.3.0, ttlMs 3600000 and 0")
        for _ in range(2):
            asked.clear()
            names: list[str] = []
            cursor: str | None = None
            while True:
                answer = await client.list_tools(cursor=cursor)
                names += [each.name for each in answer.tools]
                if (cursor := answer.next_cursor) is None:
                    break
            print(f"  {', '.join(names)}; asked for: {', '.join(asked)}")
            pages["second"].append("gamma")


anyio.run(main)
PY
seen=$(node check.mjs && venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = 'client 2.4.0, ttlMs 3600000 and 0
  alpha, beta; ttlMs 3600000; asked for: first, second
  alpha, beta; ttlMs 3600000; asked for: nothing
client 2.4.0, ttlMs 0 and 3600000
  alpha, beta; ttlMs 0; asked for: first, second
  alpha, beta, gamma; ttlMs 0; asked for: first, second
mcp 2.3.0, ttlMs 3600000 and 0
  alpha, beta; asked for: first, second
  alpha, beta, gamma; asked for: second' ]
