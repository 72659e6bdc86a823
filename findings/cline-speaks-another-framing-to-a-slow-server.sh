#!/usr/bin/env bash
# Cline starts a slow server a second time, and then writes to it in the framing of language servers.
#
# Packages: npm cline 3.0.65. Needs Node 20 with npm, and pgrep.
#
# Expected: over stdio, a message of MCP is one line of JSON, and nothing else is written to a server (2025-11-25,
# Transports, stdio). A client that has waited long enough for the answer to `initialize` ends the process.
#
# Seen on 2026-11-28: after two to three seconds without an answer, Cline closes the pipe, starts the program again, and
# writes `Content-Length: N`, an empty line and the request, with no newline behind it. A server that reads lines gets
# two that are no JSON, and never the request. As long after that, Cline goes on without the server, and its output
# does not say so. With `timeout` in the entry, it waits for the same server, in lines. To the server, the second
# process looks like a client of another protocol; it is the same client, whose first wait was too short.
set -euo pipefail
folder=$(mktemp -d)
leave() {
    pgrep -f "$folder/" | xargs -r kill -9 || true # Cline may leave a process behind, --cline-hub-daemon
    rm -rf "$folder"
}
trap leave EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --cache "$folder/cache" cline@3.0.65 >/dev/null

cat >server.mjs <<'JS'
// Answers `initialize` after ten seconds, and writes down what it gets.
import {appendFileSync} from 'node:fs';
import {createInterface} from 'node:readline';
import {setTimeout as sleep} from 'node:timers/promises';

const [name] = process.argv.slice(2);
const file = `${name}.${Date.now()}`; // of this process
process.stdin.on('data', bytes => appendFileSync(file, bytes));
createInterface({input: process.stdin}).on('line', async line => {
  let message = {};
  try { message = JSON.parse(line); } catch {}
  const {id, method, params} = message;
  const serverInfo = {name, version: '1'};
  const result = {
    initialize: {protocolVersion: params?.protocolVersion, capabilities: {tools: {}}, serverInfo},
    'tools/list': {tools: [{name: 'echo', inputSchema: {type: 'object'}}]},
  }[method];
  if (method === 'initialize') await sleep(10_000);
  if (id !== undefined && result) console.log(JSON.stringify({jsonrpc: '2.0', id, result}));
}).on('close', () => process.exit());
JS
cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {mkdirSync, readdirSync, readFileSync, writeFileSync} from 'node:fs';
import {createServer} from 'node:http';

const folder = process.cwd();
const settings = `${folder}/home/.cline/data/settings`;
for (const name of [settings, `${folder}/work`, `${folder}/tmp`]) mkdirSync(name, {recursive: true});
const entry = name => ({command: 'node', args: [`${folder}/server.mjs`, `${folder}/${name}`]});
const mcpServers = {slow: entry('slow'), patient: {...entry('patient'), timeout: 60}};
writeFileSync(`${settings}/cline_mcp_settings.json`, JSON.stringify({mcpServers}));
writeFileSync(`${settings}/global-settings.json`, '{"telemetryOptOut": true, "autoUpdateEnabled": false}');

// A model that says one word, by chat completions. It keeps the tools that it is offered.
let offered = [];
const model = createServer(async (request, response) => {
  let body = '';
  for await (const part of request) body += part;
  const names = (JSON.parse(body || '{}').tools ?? []).map(tool => tool.function.name);
  offered = names.filter(name => name.includes('echo'));
  const chunk = more => {
    const about = {id: 'chat', object: 'chat.completion.chunk', created: 1, model: 'model', ...more};
    response.write(`data: ${JSON.stringify(about)}\n\n`);
  };
  response.writeHead(200, {'content-type': 'text/event-stream'});
  chunk({choices: [{index: 0, delta: {role: 'assistant', content: 'Yes.'}, finish_reason: null}]});
  chunk({choices: [{index: 0, delta: {}, finish_reason: 'stop'}]});
  chunk({choices: [], usage: {prompt_tokens: 1, completion_tokens: 1, total_tokens: 2}});
  response.end('data: [DONE]\n\n');
});
await once(model.listen(0, '127.0.0.1'), 'listening');

async function cline(...words) {
  const env = {PATH: process.env.PATH, HOME: `${folder}/home`, TMPDIR: `${folder}/tmp`};
  env.CLINE_SESSION_BACKEND_MODE = 'local'; // else a process stays that serves later runs
  const run = spawn(`${folder}/node_modules/.bin/cline`, words, {cwd: `${folder}/work`, env, timeout: 120_000});
  run.stdin.end();
  let said = '';
  for (const stream of [run.stdout, run.stderr]) stream.on('data', text => { said += text; });
  const [status] = await once(run, 'close');
  return {status, said};
}
const url = `http://127.0.0.1:${model.address().port}/v1`;
await cline('auth', '-p', 'openai', '-k', 'none', '-m', 'model', '-b', url);
const {status, said} = await cline('--json', '--auto-approve', 'true', 'Are you there?');
model.close();

// The messages of the bytes that a process got.
function* messages(bytes) { // all in ASCII
  while (bytes.length) {
    const header = /^Content-Length: (\d+)\r\n\r\n/.exec(bytes);
    const end = header ? header[0].length + Number(header[1]) : bytes.indexOf('\n') + 1;
    const {method} = JSON.parse(bytes.slice(header ? header[0].length : 0, end));
    yield `${method} ${header ? 'behind Content-Length' : 'as a line'}`;
    bytes = bytes.slice(end);
  }
}
for (const name of ['patient', 'slow']) {
  const files = readdirSync('.').filter(file => file.startsWith(`${name}.`)).sort();
  for (const [index, file] of files.entries()) {
    console.log(`${name}, process ${index + 1} got: ${[...messages(readFileSync(file, 'ascii'))].join(', ')}`);
  }
}
const named = said.includes('slow');
console.log(`Cline offered ${offered} to the model, ended with ${status}, named the slow server: ${named}`);
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = 'patient, process 1 got: initialize as a line, notifications/initialized as a line, tools/list as a line
slow, process 1 got: initialize as a line
slow, process 2 got: initialize behind Content-Length
Cline offered patient__echo to the model, ended with 0, named the slow server: false' ]
