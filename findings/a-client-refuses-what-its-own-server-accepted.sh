#!/usr/bin/env bash
# A server of the TypeScript SDK accepts the result of its tool, and the client of the same SDK refuses it.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0, @modelcontextprotocol/server
# 2.4.0, zod 4.6.7. Needs Node 20 with npm.
#
# Expected: the output schema of a tool is one zod schema. The server checks each result by it, and the client by the
# JSON Schema that is made from it, so that both agree. Where zod changes a value (a default that is filled in, a
# member that is dropped, a text that becomes a number), the client gets the changed value.
#
# Seen on 2026-11-28: the server throws the value away that zod returned, and sends the one that the tool returned.
# The JSON Schema describes the value after zod: a member with a default is required, `z.object` permits no other
# member, and `z.coerce.number()` is a number. So the client refuses a missing member with a default, one member too
# many, and a number as text, in both majors. The call fails after its work is done; the server does not learn of it.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 \
    @modelcontextprotocol/server@2.4.0 zod@4.6.7 >/dev/null

cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {InMemoryTransport as OneLink} from '@modelcontextprotocol/sdk/inMemory.js';
import {McpServer as OneServer} from '@modelcontextprotocol/sdk/server/mcp.js';
import {Client as Two, InMemoryTransport as TwoLink} from '@modelcontextprotocol/client';
import {McpServer as TwoServer} from '@modelcontextprotocol/server';
import {z} from 'zod';

const tools = {
  as_declared: [{unit: z.string().default('m')}, {unit: 'km'}],
  default_left_out: [{unit: z.string().default('m')}, {}],
  one_member_more: [{height: z.number()}, {height: 1, width: 2}],
  number_as_text: [{height: z.coerce.number()}, {height: '1'}],
  wrong: [{height: z.number()}, {height: '1'}],
};

for (const [title, Client, Server, Link] of [['1.32.2', One, OneServer, OneLink], ['2.4.0', Two, TwoServer, TwoLink]]) {
  const server = new Server({name: 'server', version: '1'});
  for (const [name, [shape, structuredContent]] of Object.entries(tools)) {
    server.registerTool(name, {outputSchema: z.object(shape)}, async () => ({content: [], structuredContent}));
  }
  const client = new Client({name: 'client', version: '1'});
  const [near, far] = Link.createLinkedPair();
  let sent;
  const send = far.send.bind(far);
  far.send = (message, options) => {
    sent = message.result;
    return send(message, options);
  };
  await Promise.all([server.connect(far), client.connect(near)]);
  await client.listTools();
  for (const name of Object.keys(tools)) {
    const called = client.callTool({name, arguments: {}});
    const seen = await called.then(result => (result.isError ? 'isError' : 'accepted'), error => error.message);
    const wire = sent?.structuredContent ? JSON.stringify(sent.structuredContent) : 'an error';
    console.log(`${title} ${name}: server sent ${wire}; client: ${seen.split('schema: ').at(-1)}`);
    sent = undefined;
  }
}
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = '1.32.2 as_declared: server sent {"unit":"km"}; client: accepted
1.32.2 default_left_out: server sent {}; client: data must have required property '"'unit'"'
1.32.2 one_member_more: server sent {"height":1,"width":2}; client: data must NOT have additional properties
1.32.2 number_as_text: server sent {"height":"1"}; client: data/height must be number
1.32.2 wrong: server sent an error; client: isError
2.4.0 as_declared: server sent {"unit":"km"}; client: accepted
2.4.0 default_left_out: server sent {}; client: data must have required property '"'unit'"'
2.4.0 one_member_more: server sent {"height":1,"width":2}; client: data must NOT have additional properties
2.4.0 number_as_text: server sent {"height":"1"}; client: data/height must be number
2.4.0 wrong: server sent an error; client: isError' ]
