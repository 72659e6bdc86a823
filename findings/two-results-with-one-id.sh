#!/usr/bin/env bash
# Two tools whose output schemas have the same `$id`: the results of one are checked by the schema of the other.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0, ajv 8.20.0.
# Needs Node 20 with npm.
#
# Expected: a client checks the result of a tool by the output schema of that tool. An `$id` names a schema within its
# own document, and the tools of one list are written by authors, or come from servers, that do not know each other.
#
# Seen on 2026-11-28: both clients keep one Ajv for a connection, and ask it for a compiled schema by `$id` before
# they compile. The schema of the first tool in the list is used for every tool with that `$id`. The valid result of
# the other tool is refused, after the server has done the work. A tool whose output schema changes and keeps its
# `$id` is checked by the old one until the client connects again. The output is at the end of this file.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund \
    @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 ajv@8.20.0 >/dev/null

cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {Client as Two} from '@modelcontextprotocol/client';

const schema = (name, type) => ({
  $id: 'https://example.com/result', type: 'object', properties: {[name]: {type}}, required: [name],
});
const results = {city: {name: 'Turin'}, count: {total: 3}};
let listed = {city: schema('name', 'string'), count: schema('total', 'integer')};

function answer(message) {
  const {method, params} = message;
  if (method === 'initialize') {
    return {protocolVersion: '2025-11-25', capabilities: {tools: {}}, serverInfo: {name: 'server', version: '1'}};
  }
  if (method === 'tools/list') {
    const tool = ([name, outputSchema]) => ({name, inputSchema: {type: 'object'}, outputSchema});
    return {tools: Object.entries(listed).map(tool)};
  }
  const structuredContent = results[params.name];
  return {content: [{type: 'text', text: JSON.stringify(structuredContent)}], structuredContent};
}

async function play(title, Client, calls) {
  const client = new Client({name: 'client', version: '1'});
  await client.connect({
    async start() {},
    async close() {},
    async send(message) {
      if (message.id !== undefined) {
        queueMicrotask(() => this.onmessage({jsonrpc: '2.0', id: message.id, result: answer(message)}));
      }
    },
  });
  await client.listTools();
  for (const call of calls) {
    if (typeof call === 'function') {
      call();
      await client.listTools();
      continue;
    }
    try {
      await client.callTool({name: call, arguments: {}});
      console.log(`${title}: ${call} accepted`);
    } catch (error) {
      console.log(`${title}: ${call} refused: ${error.message.split(': ').at(-1)}`);
    }
  }
}

await play('1.32.2', One, ['count', 'city']);
await play('2.4.0', Two, ['count', 'city']);
const change = () => {
  listed = {city: schema('town', 'string')};
  results.city = {town: 'Turin'};
};
await play('1.32.2, changed', One, ['city', change, 'city']);
listed = {city: schema('name', 'string')};
results.city = {name: 'Turin'};
await play('2.4.0, changed', Two, ['city', change, 'city']);
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = "1.32.2: count refused: data must have required property 'name'
1.32.2: city accepted
2.4.0: count refused: data must have required property 'name'
2.4.0: city accepted
1.32.2, changed: city accepted
1.32.2, changed: city refused: data must have required property 'name'
2.4.0, changed: city accepted
2.4.0, changed: city refused: data must have required property 'name'" ]
