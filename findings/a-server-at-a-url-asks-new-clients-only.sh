#!/usr/bin/env bash
# A TypeScript server at a URL cannot ask a client of 2025-11-25 anything, and tells it that it has not declared it.
#
# Packages: npm @modelcontextprotocol/client, @modelcontextprotocol/server 2.4.0, @modelcontextprotocol/node 2.1.2, zod
# 4.6.7. Needs Node 20 with npm. It listens on a free port of the loopback address.
#
# Expected: a tool that returns `inputRequired(…)` asks in 2026-07-28 in its result, and in 2025-11-25 by a request,
# as it does over stdio. `createMcpHandler`, which serves the same factory at a URL, serves both revisions by default;
# its documentation says of this that the two can never drift apart.
#
# Seen on 2026-11-30: for 2025-11-25 it opens no session: each POST gets a server of its own, which has not seen the
# handshake, and there is no stream for requests. A client that declares forms, and answers this one over stdio, gets a
# failed result: it "did not declare the required capability", with the true reason in brackets behind. So each client
# of 2025-11-25, which most hosts are, loses each question, and the model reads that its host is at fault. A server that
# is to ask them has to find their requests by `isLegacyRequest()`, and give them to a transport with sessions.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund @modelcontextprotocol/client@2.4.0 @modelcontextprotocol/server@2.4.0 \
    @modelcontextprotocol/node@2.1.2 zod@4.6.7 >/dev/null

cat >server.mjs <<'JS'
// Serves a tool that asks for a name, over stdio or, with the argument http, at a URL, whose port it prints.
import {createServer} from 'node:http';
import {toNodeHandler} from '@modelcontextprotocol/node';
import {createMcpHandler, inputRequired, McpServer} from '@modelcontextprotocol/server';
import {serveStdio} from '@modelcontextprotocol/server/stdio';
import {z} from 'zod';

const requestedSchema = {type: 'object', properties: {name: {type: 'string'}}, required: ['name']};

function create() {
  const server = new McpServer({name: 'server', version: '1'});
  server.registerTool('greet', {inputSchema: z.object({})}, async (input, context) => {
    const answer = context.mcpReq.inputResponses?.who;
    if (answer === undefined) {
      return inputRequired({inputRequests: {who: inputRequired.elicit({message: 'Who are you?', requestedSchema})}});
    }
    return {content: [{type: 'text', text: `hello ${answer.content.name}`}]};
  });
  return server;
}

if (process.argv[2] === 'http') {
  const listener = createServer(toNodeHandler(createMcpHandler(create)));
  listener.listen(0, '127.0.0.1', () => console.log(listener.address().port));
} else {
  serveStdio(create);
}
JS
cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {Client, StreamableHTTPClientTransport} from '@modelcontextprotocol/client';
import {StdioClientTransport} from '@modelcontextprotocol/client/stdio';

const program = spawn('node', ['server.mjs', 'http'], {stdio: ['ignore', 'pipe', 'ignore']});
const [port] = await once(program.stdout, 'data');
const url = new URL(`http://127.0.0.1:${String(port).trim()}/mcp`);
const links = {
  stdio: () => new StdioClientTransport({command: 'node', args: ['server.mjs']}),
  http: () => new StreamableHTTPClientTransport(url),
};

for (const [transport, open] of Object.entries(links)) {
  for (const mode of ['legacy', 'auto']) {
    const capabilities = {elicitation: {form: {}}};
    const client = new Client({name: 'client', version: '1'}, {capabilities, versionNegotiation: {mode}});
    let asked = 0;
    client.setRequestHandler('elicitation/create', async () => {
      asked++;
      return {action: 'accept', content: {name: 'Ann'}};
    });
    await client.connect(open());
    const {content} = await client.callTool({name: 'greet', arguments: {}});
    const [text] = content[0].text.match(/hello .*|the client .* required capability/);
    console.log(`${transport}, ${client.getNegotiatedProtocolVersion()}: asked ${asked} times; ${text}`);
    await client.close();
  }
}
program.kill();
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'stdio, 2025-11-25: asked 1 times; hello Ann
stdio, 2026-07-28: asked 1 times; hello Ann
http, 2025-11-25: asked 0 times; the client on this 2025-era connection did not declare the required capability
http, 2026-07-28: asked 1 times; hello Ann' ]
