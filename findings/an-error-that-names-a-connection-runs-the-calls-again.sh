#!/usr/bin/env bash
# A tool whose error has "ECONNREFUSED" in its text makes Mastra start the server again, and run all open calls twice.
#
# Packages: npm @mastra/mcp 2.0.0, @mastra/core 1.71.0, @modelcontextprotocol/sdk 1.32.2. Needs Node 20 with npm.
#
# Expected: a connection that is lost is made again. An answer with an error has come over a connection that works, and
# it is the outcome of its call: the agent gets it, and no other call notices. The comment of `isReconnectableMCPError`
# says that errors of JSON-RPC are never a reason to reconnect.
#
# Seen on 2026-11-30: the reason is looked for in the text of any error, the server's own included: `econnrefused`,
# `connection refused`, `connection closed`, `not connected`, `fetch failed`, `http 400`, `http 404` and a few more. A
# server whose database is away writes that into the message of its error. Mastra then ends the process, starts another,
# and sends the call again. The other calls that were open lose their server, their errors say "Connection closed", and
# they are sent again too. One error makes each of them run twice, with what it had done before, whatever their
# annotations say, and what the server kept in memory is gone. The agent learns of none of it. An error in the result
# of the tool, `isError`, runs once, and so does one of JSON-RPC with another text.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund \
    @mastra/mcp@2.0.0 @mastra/core@1.71.0 @modelcontextprotocol/sdk@1.32.2 >/dev/null

cat >server.mjs <<'JS'
import {appendFileSync} from 'node:fs';
import {setTimeout as sleep} from 'node:timers/promises';
import {Server} from '@modelcontextprotocol/sdk/server/index.js';
import {StdioServerTransport} from '@modelcontextprotocol/sdk/server/stdio.js';
import {CallToolRequestSchema, ListToolsRequestSchema} from '@modelcontextprotocol/sdk/types.js';

const server = new Server({name: 'server', version: '1'}, {capabilities: {tools: {}}});
server.setRequestHandler(ListToolsRequestSchema, () => {
  return {tools: ['store', 'report', 'send'].map(name => ({name, inputSchema: {type: 'object'}}))};
});
server.setRequestHandler(CallToolRequestSchema, async ({params: {name, arguments: {message}}}) => {
  appendFileSync('calls', `${name}\n`);
  if (name === 'store') {
    throw new Error(message);
  }
  if (name === 'report') {
    return {content: [{type: 'text', text: message}], isError: true};
  }
  await sleep(3000);
  return {content: [{type: 'text', text: 'sent'}]};
});
await server.connect(new StdioServerTransport());
JS
cat >check.mjs <<'JS'
import {readFileSync, writeFileSync} from 'node:fs';
import {setTimeout as sleep} from 'node:timers/promises';
import {MCPClient} from '@mastra/mcp';

async function play(name, message) {
  writeFileSync('calls', '');
  const client = new MCPClient({id: `${name} ${message}`, servers: {server: {command: 'node', args: ['server.mjs']}}});
  const tools = await client.listTools();
  const send = tools.server_send.execute({}, {});
  await sleep(500);
  const error = await tools[`server_${name}`].execute({message}, {}).catch(error => error.message);
  const sent = (await send).content[0].text;
  const calls = readFileSync('calls', 'utf8').split('\n').filter(Boolean);
  const times = each => calls.filter(call => call === each).length;
  console.log(`${name}: "${error}"; ${name} ran ${times(name)} times, send ran ${times('send')} times: ${sent}`);
  await client.disconnect();
}

for (const [name, message] of [
  ['store', 'the table is full'],
  ['store', 'connect ECONNREFUSED 192.0.2.1:5432'],
  ['report', 'connect ECONNREFUSED 192.0.2.1:5432'],
]) {
  await play(name, message);
}
process.exit();
JS
seen=$(node check.mjs 2>/dev/null | grep '^[a-z]*: "')
echo "$seen"
[ "$seen" = 'store: "the table is full"; store ran 1 times, send ran 1 times: sent
store: "connect ECONNREFUSED 192.0.2.1:5432"; store ran 2 times, send ran 2 times: sent
report: "connect ECONNREFUSED 192.0.2.1:5432"; report ran 1 times, send ran 1 times: sent' ]
