#!/usr/bin/env bash
# Of an argument that has one of two shapes, LangChain's adapter lets the model give the second one alone.
#
# Packages: npm @langchain/mcp-adapters 1.1.4, @langchain/core 1.4.0, @langchain/langgraph 1.7.3,
# @modelcontextprotocol/sdk 1.32.2; PyPI mcp 2.3.0. Needs Node 20 with npm, and Python 3.11 with venv.
#
# Expected: the model gets the input schema that the server wrote, and what is valid by it reaches the server. pydantic
# writes a union of models as `anyOf`, and tells its members apart by a `const`. Where a provider does not take such a
# schema, a simpler one permits more, and the server still checks.
#
# Seen on 2026-11-30: the adapter simplifies each schema for models that take no `anyOf`, and checks the arguments by
# the result. Of a union it puts the properties of all members into one object, in which a later member replaces an
# equal property of an earlier: `kind` is `"url"` alone. A `file` is refused before it is sent, though the description
# speaks of both: "Received tool input did not match expected schema". A union with members that are no objects has no
# type left at all: `int | None`, which is each optional number of a Python server, permits a text, which the server
# then refuses. No option of the adapter keeps the schema.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @langchain/mcp-adapters@1.1.4 @langchain/core@1.4.0 \
    @langchain/langgraph@1.7.3 @modelcontextprotocol/sdk@1.32.2 >/dev/null

cat >server.py <<'PY'
from typing import Literal

from mcp.server import MCPServer
from pydantic import BaseModel

server = MCPServer("server", log_level="CRITICAL")


class File(BaseModel):
    kind: Literal["file"]
    path: str


class Url(BaseModel):
    kind: Literal["url"]
    url: str


@server.tool()
def read(source: File | Url, limit: int | None = None) -> str:
    """Read a file or a URL."""
    return f"read a {source.kind}"


server.run()
PY
cat >check.mjs <<'JS'
import {MultiServerMCPClient} from '@langchain/mcp-adapters';
import {Client} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport} from '@modelcontextprotocol/sdk/client/stdio.js';

const program = {command: 'venv/bin/python', args: ['server.py']};
const inputs = [
  {source: {kind: 'file', path: 'notes'}, limit: 3},
  {source: {kind: 'url', url: 'https://example.com'}, limit: 3},
];

const client = new Client({name: 'client', version: '1'});
await client.connect(new StdioClientTransport(program));
for (const input of inputs) {
  const {content} = await client.callTool({name: 'read', arguments: input});
  console.log(`sdk, ${input.source.kind}: ${content[0].text}`);
}
await client.close();

const adapter = new MultiServerMCPClient({mcpServers: {server: program}});
const [tool] = await adapter.getTools();
const {source, limit} = tool.schema.properties;
console.log(`adapter, kind: ${JSON.stringify(source.properties.kind.const)}; limit: type ${limit.type}`);
for (const input of inputs) {
  const outcome = await tool.invoke(input).then(({text}) => text, error => error.message.split('\n')[0]);
  console.log(`adapter, ${input.source.kind}: ${outcome}`);
}
await adapter.close();
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'sdk, file: read a file
sdk, url: read a url
adapter, kind: "url"; limit: type undefined
adapter, file: Received tool input did not match expected schema
adapter, url: read a url' ]
