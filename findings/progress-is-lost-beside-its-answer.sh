#!/usr/bin/env bash
# Progress that arrives together with the answer of its call is lost, over stdio in TypeScript clients.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0. Needs Node 20
# with npm, and Python 3.11 with venv.
#
# Expected: a client handles the messages of a pipe in their order. Progress that was written before the answer
# reaches `onprogress` before the promise of the call is settled, however the bytes are divided.
#
# Seen on 2026-11-28: both clients hand notifications to a later microtask and answers to their caller at once. The
# answer removes the handler of its token. If one read of the pipe has both, all progress in it is reported to
# `onerror`, as "for an unknown token", and none to `onprogress`. Messages that arrive apart are all seen, and so are
# the same messages in one write over Streamable HTTP. The Python client sees them in all cases. The progress of a
# server that gathers its writes, or that answers right after it, is therefore often not seen.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.mjs <<'JS'
// The argument is the transport, `pipe` or `http`. The answer to `together` is one write, that to `apart` four.
import {createServer} from 'node:http';
import {createInterface} from 'node:readline';
import {setTimeout as sleep} from 'node:timers/promises';

function* answers({id, method, params}) {
  const result = {
    initialize: {protocolVersion: '2025-11-25', capabilities: {tools: {}}, serverInfo: {name: 'server', version: '1'}},
    'tools/list': {tools: ['together', 'apart'].map(name => ({name, inputSchema: {type: 'object'}}))},
    'tools/call': {content: []},
  }[method];
  if (method === 'tools/call') {
    for (const progress of [1, 2, 3]) {
      const about = {progressToken: params._meta.progressToken, progress, total: 3};
      yield JSON.stringify({jsonrpc: '2.0', method: 'notifications/progress', params: about});
    }
  }
  const answer = result ? {result} : {error: {code: -32601, message: 'Method not found'}};
  yield JSON.stringify({jsonrpc: '2.0', id, ...answer});
}

async function write(stream, message, framed) {
  const parts = [...answers(message)].map(framed);
  if (message.params?.name !== 'apart') return stream.write(parts.join(''));
  for (const part of parts) {
    stream.write(part);
    await sleep(100);
  }
}

if (process.argv[2] === 'pipe') {
  createInterface({input: process.stdin}).on('line', line => {
    const message = JSON.parse(line);
    if (message.id !== undefined) write(process.stdout, message, text => text + '\n');
  });
} else {
  const server = createServer(async (request, response) => {
    let body = '';
    for await (const part of request) body += part;
    const message = request.method === 'POST' ? JSON.parse(body) : {};
    if (message.id === undefined) return response.writeHead(request.method === 'POST' ? 202 : 405).end();
    response.writeHead(200, {'content-type': 'text/event-stream'});
    await write(response, message, text => `data: ${text}\n\n`);
    response.end();
  });
  server.listen(0, '127.0.0.1', () => console.log(server.address().port));
  process.stdin.on('end', () => process.exit()).resume();
}
JS
cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OneStdio} from '@modelcontextprotocol/sdk/client/stdio.js';
import {StreamableHTTPClientTransport as OneHttp} from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {Client as Two, StreamableHTTPClientTransport as TwoHttp} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoStdio} from '@modelcontextprotocol/client/stdio';

const server = spawn('node', ['server.mjs', 'http'], {stdio: ['pipe', 'pipe', 'inherit']});
const [port] = await once(server.stdout, 'data');
const address = new URL(`http://127.0.0.1:${String(port).trim()}/mcp`);
const program = {command: 'node', args: ['server.mjs', 'pipe']};

async function play(title, Client, transport, call) {
  const client = new Client({name: 'client', version: '1'});
  let unknown = 0;
  client.onerror = error => { unknown += error.message.includes('unknown token'); };
  await client.connect(transport);
  for (const name of ['together', 'apart']) {
    const seen = [];
    unknown = 0;
    await call(client, {name, arguments: {}}, {onprogress: ({progress}) => seen.push(progress)});
    console.log(`${title}, ${name}: onprogress saw [${seen}], onerror saw ${unknown}`);
  }
  await client.close();
}

const one = (client, params, options) => client.callTool(params, undefined, options);
const two = (client, params, options) => client.callTool(params, options);
await play('TypeScript 1.32.2, stdio', One, new OneStdio(program), one);
await play('TypeScript 2.4.0, stdio', Two, new TwoStdio(program), two);
await play('TypeScript 1.32.2, HTTP', One, new OneHttp(address), one);
await play('TypeScript 2.4.0, HTTP', Two, new TwoHttp(address), two);
server.stdin.end();
JS
cat >check.py <<'PY'
import anyio
from mcp import Client, StdioServerParameters


async def main() -> None:
    async with Client(StdioServerParameters(command="node", args=["server.mjs", "pipe"]), mode="legacy") as client:
        for name in ("together", "apart"):
            seen: list[int] = []

            async def note(progress: float, total: float | None, message: str | None) -> None:
                seen.append(int(progress))

            await client.call_tool(name, {}, progress_callback=note)
            print(f"Python 2.3.0, stdio, {name}: saw {seen}")


anyio.run(main)
PY
seen=$(node check.mjs && venv/bin/python check.py)
echo "$seen"
[ "$seen" = 'TypeScript 1.32.2, stdio, together: onprogress saw [], onerror saw 3
TypeScript 1.32.2, stdio, apart: onprogress saw [1,2,3], onerror saw 0
TypeScript 2.4.0, stdio, together: onprogress saw [], onerror saw 3
TypeScript 2.4.0, stdio, apart: onprogress saw [1,2,3], onerror saw 0
TypeScript 1.32.2, HTTP, together: onprogress saw [1,2,3], onerror saw 0
TypeScript 1.32.2, HTTP, apart: onprogress saw [1,2,3], onerror saw 0
TypeScript 2.4.0, HTTP, together: onprogress saw [1,2,3], onerror saw 0
TypeScript 2.4.0, HTTP, apart: onprogress saw [1,2,3], onerror saw 0
Python 2.3.0, stdio, together: saw [1, 2, 3]
Python 2.3.0, stdio, apart: saw [1, 2, 3]' ]
