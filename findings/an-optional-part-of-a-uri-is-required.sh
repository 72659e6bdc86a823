#!/usr/bin/env bash
# A TypeScript server does not find the resource whose URI was made from its own template, if a part may be left out.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0, @modelcontextprotocol/server
# 2.4.0; PyPI mcp 2.3.0. Needs Node 20 with npm, and Python 3.11 with venv.
#
# Expected: a template of a resource is one of RFC 6570 (2025-11-25 and 2026-07-28, ResourceTemplate). There, a variable
# without a value is left out (3.2.1), `{?where,limit}` of nothing is nothing (3.2.8), and `{/path*}` of a list is one
# segment for each (3.2.6). What the SDK's `UriTemplate` expands, its server matches again.
#
# Seen on 2026-11-30: `expand` follows the RFC, and `match` does not. It wants each variable of a query, all of them
# and in their order, and takes one segment for `{/path*}`. The client expands the template that it has listed, and
# reading the URI fails: -32602, not found. So the server answers the calls in which all is given, as they are in its
# tests, and for the others it says that the resource does not exist. Both majors do so. The Python server matches all
# of these URIs. Two templates in place of one, with and without the query, help.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 \
    @modelcontextprotocol/server@2.4.0 >/dev/null

cat >check.mjs <<'JS'
import {Client as OneClient} from '@modelcontextprotocol/sdk/client/index.js';
import {InMemoryTransport as OneLink} from '@modelcontextprotocol/sdk/inMemory.js';
import {McpServer as OneServer, ResourceTemplate as OneResource} from '@modelcontextprotocol/sdk/server/mcp.js';
import {UriTemplate as OneTemplate} from '@modelcontextprotocol/sdk/shared/uriTemplate.js';
import {Client as TwoClient, InMemoryTransport as TwoLink, UriTemplate as TwoTemplate} from '@modelcontextprotocol/client';
import {McpServer as TwoServer, ResourceTemplate as TwoResource} from '@modelcontextprotocol/server';

const values = {
  'db://rows{?where,limit}': [{where: 'paid', limit: '5'}, {where: 'paid'}, {limit: '5'}, {}],
  'repo://files{/path*}': [{path: ['docs']}, {path: ['docs', 'index']}],
};

async function play(version, Server, Resource, Client, Template, Link) {
  const server = new Server({name: 'server', version: '1'});
  for (const template of Object.keys(values)) {
    const read = (uri, variables) => ({contents: [{uri: uri.href, text: JSON.stringify(variables)}]});
    server.registerResource(template, new Resource(template, {list: undefined}), {}, read);
  }
  const [near, far] = Link.createLinkedPair();
  const client = new Client({name: 'client', version: '1'});
  await server.connect(far);
  await client.connect(near);
  for (const {uriTemplate} of (await client.listResourceTemplates()).resourceTemplates) {
    for (const variables of values[uriTemplate]) {
      const uri = new Template(uriTemplate).expand(variables);
      const answer = await client.readResource({uri}).then(({contents}) => contents[0].text, error => error.code);
      console.log(`server ${version}: ${uri} ${answer}`);
    }
  }
}

await play('1.32.2', OneServer, OneResource, OneClient, OneTemplate, OneLink);
await play('2.4.0', TwoServer, TwoResource, TwoClient, TwoTemplate, TwoLink);
JS
cat >check.py <<'PY'
import json

import anyio
from mcp import Client
from mcp.server import MCPServer

server = MCPServer("server")


@server.resource("db://rows{?where,limit}")
def rows(where: str = "", limit: str = "") -> str:
    return json.dumps({"where": where, "limit": limit})


@server.resource("repo://files{/path*}")
def files(path: list[str]) -> str:
    return json.dumps({"path": path})


async def main() -> None:
    async with Client(server) as client:
        for end in ("?where=paid&limit=5", "?where=paid", "?limit=5", ""):
            print(f"Python: db://rows{end}", (await client.read_resource(f"db://rows{end}")).contents[0].text)
        for end in ("docs", "docs/index"):
            print(f"Python: repo://files/{end}", (await client.read_resource(f"repo://files/{end}")).contents[0].text)


anyio.run(main)
PY
seen=$(node check.mjs && venv/bin/python check.py 2>/dev/null)
echo "$seen"
[ "$seen" = 'server 1.32.2: db://rows?where=paid&limit=5 {"where":"paid","limit":"5"}
server 1.32.2: db://rows?where=paid -32602
server 1.32.2: db://rows?limit=5 -32602
server 1.32.2: db://rows -32602
server 1.32.2: repo://files/docs {"path":"docs"}
server 1.32.2: repo://files/docs/index -32602
server 2.4.0: db://rows?where=paid&limit=5 {"where":"paid","limit":"5"}
server 2.4.0: db://rows?where=paid -32602
server 2.4.0: db://rows?limit=5 -32602
server 2.4.0: db://rows -32602
server 2.4.0: repo://files/docs {"path":"docs"}
server 2.4.0: repo://files/docs/index -32602
Python: db://rows?where=paid&limit=5 {"where": "paid", "limit": "5"}
Python: db://rows?where=paid {"where": "paid", "limit": ""}
Python: db://rows?limit=5 {"where": "", "limit": "5"}
Python: db://rows {"where": "", "limit": ""}
Python: repo://files/docs {"path": ["docs"]}
Python: repo://files/docs/index {"path": ["docs", "index"]}' ]
