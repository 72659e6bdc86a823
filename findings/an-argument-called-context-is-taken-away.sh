#!/usr/bin/env bash
# A server that has its calls counted loses each argument called `context`, also that of a tool that has always had one.
#
# Packages: npm agentcat 1.0.1, @modelcontextprotocol/sdk 1.32.2, zod 4.6.7; PyPI agentcat 2.1.0, mcp 1.30.0. Needs Node
# 20 with npm, and Python 3.11 with venv. Nothing is sent: no project and no exporter is named.
#
# Expected: `track(server)` adds an argument `context` to each tool, in which the model says why it calls, and takes it
# out again before the tool runs. Where a tool has an argument of that name itself, its log says that nothing was added.
# Such an argument reaches the tool as before, and with `enableToolCallContext: false` no tool notices anything.
#
# Seen on 2026-11-30: in the TypeScript package, every `context` is taken out behind the check of the input schema
# (`addTracingToToolCallbackInternal`), whoever declared it, and with the option at false as well. The definition says
# that the argument is there, or required; the client sends it; the tool runs without it, and answers as if it had not
# been given. Neither side sees an error. A server that adds statistics in an update changes what its tools do without a
# change of their definitions, if the option is at false. The Python package of the same makers keeps it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
export HOME=$folder DISABLE_DIAGNOSTICS=true # it keeps a log there, and would send diagnostics
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check agentcat==2.1.0 mcp==1.30.0 2>/dev/null
npm install --silent --no-audit --no-fund agentcat@1.0.1 @modelcontextprotocol/sdk@1.32.2 zod@4.6.7 >/dev/null

cat >check.mjs <<'JS'
import {Client} from '@modelcontextprotocol/sdk/client/index.js';
import {InMemoryTransport} from '@modelcontextprotocol/sdk/inMemory.js';
import {McpServer} from '@modelcontextprotocol/sdk/server/mcp.js';
import {track} from 'agentcat';
import {z} from 'zod';

const plain = {exporters: {}, enableReportMissing: false};
for (const [title, options] of [
  ['alone', undefined],
  ['tracked', plain],
  ['tracked without context', {...plain, enableToolCallContext: false}],
]) {
  const server = new McpServer({name: 'server', version: '1'});
  const inputSchema = {term: z.string(), context: z.string()};
  server.registerTool('explain', {inputSchema}, async given => ({
    content: [{type: 'text', text: Object.keys(given).join(' and ')}],
  }));
  if (options) track(server, null, options);
  const client = new Client({name: 'client', version: '1'});
  const [one, other] = InMemoryTransport.createLinkedPair();
  await server.connect(one);
  await client.connect(other);
  const {tools} = await client.listTools();
  const call = {name: 'explain', arguments: {term: 'borrow', context: 'Rust'}};
  const {content} = await client.callTool(call);
  const needed = tools[0].inputSchema.required.join(' and ');
  console.log(`TypeScript, ${title}: ${needed} are required, ${content[0].text} reached the tool`);
}
process.exit();
JS
cat >check.py <<'PY'
import anyio
from agentcat import AgentCatOptions, track
from mcp.server.fastmcp import FastMCP
from mcp.shared.memory import create_connected_server_and_client_session


async def main() -> None:
    server = FastMCP("server", log_level="CRITICAL")

    @server.tool()
    def explain(term: str, context: str) -> str:
        return " and ".join(name for name, value in {"term": term, "context": context}.items() if value)

    track(server, None, AgentCatOptions(exporters={}, enable_report_missing=False))
    async with create_connected_server_and_client_session(server) as client:
        result = await client.call_tool("explain", {"term": "borrow", "context": "Rust"})
        print(f"Python, tracked: {result.content[-1].text} reached the tool")


anyio.run(main)
PY
seen=$(
    node check.mjs
    venv/bin/python check.py 2>/dev/null
)
echo "$seen"
[ "$seen" = 'TypeScript, alone: term and context are required, term and context reached the tool
TypeScript, tracked: term and context are required, term reached the tool
TypeScript, tracked without context: term and context are required, term reached the tool
Python, tracked: term and context reached the tool' ]
