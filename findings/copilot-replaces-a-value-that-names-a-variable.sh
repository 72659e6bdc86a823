#!/usr/bin/env bash
# Copilot CLI replaces a value for a server that happens to be the name of a set variable by the value of that variable.
#
# Packages: npm @github/copilot 1.0.102. Needs Node 20 with npm, and pgrep.
#
# Expected: `"env": {"MODE": "debug"}` gives the server MODE=debug. References have a sign: `$NAME`, `${NAME}`. The
# vendor's notes on 0.0.340 say that values of `env` are literal without it, and the JSON Schema of 1.0.102 says that
# prompt mode (`-p`) passes them as they are.
#
# Seen on 2026-11-28: `copilot -p` replaces a value that is, as a whole, the name of a variable in its own environment:
# with `debug=1` there, the server gets MODE=1. A longer value with the name in it stays, so does a name that is not
# set, and so does a word in `args`. One file thus gives the servers of two people different values, without a sign in
# it, and a host that takes the file over reads others than Copilot CLI does. The default of a reference stays a word:
# `${unset:-debug}`, where no variable has the name `unset`.
set -euo pipefail
folder=$(mktemp -d)
leave() {
    pgrep -f "$folder/" | xargs -r kill -9 || true # none is left, unless Copilot CLI was interrupted
    rm -rf "$folder"
}
trap leave EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --cache "$folder/cache" @github/copilot@1.0.102 >/dev/null

cat >server.mjs <<'JS'
// Writes down its arguments and the variables that its file gives it.
import {writeFileSync} from 'node:fs';
import {createInterface} from 'node:readline';

const [file, word] = process.argv.slice(2);
const names = Object.keys(process.env).filter(name => name.startsWith('GIVEN_')).sort();
const variables = names.map(name => `${name}=${process.env[name]}\n`);
writeFileSync(file, `argument: ${word}\n${variables.join('')}`);
createInterface({input: process.stdin}).on('line', line => {
  const {id, method, params} = JSON.parse(line);
  const serverInfo = {name: 'server', version: '1'};
  const result = {
    initialize: {protocolVersion: params?.protocolVersion, capabilities: {tools: {}}, serverInfo},
    'tools/list': {tools: [{name: 'echo', inputSchema: {type: 'object'}}]},
  }[method];
  const answer = result ? {result} : {error: {code: -32601, message: 'Method not found'}};
  if (id !== undefined) console.log(JSON.stringify({jsonrpc: '2.0', id, ...answer}));
}).on('close', () => process.exit());
JS
cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {once} from 'node:events';
import {mkdirSync, readFileSync, writeFileSync} from 'node:fs';
import {createServer} from 'node:http';

const folder = process.cwd();
for (const name of ['home/.copilot', 'work', 'tmp']) mkdirSync(name, {recursive: true});
const env = {
  GIVEN_1_NAME: 'debug',
  GIVEN_2_REFERENCE: '${debug}',
  GIVEN_3_LONGER: 'debug,trace',
  GIVEN_4_NOT_SET: 'trace',
  GIVEN_5_DEFAULT: '${unset:-debug}',
};
const words = [`${folder}/server.mjs`, `${folder}/got`, 'debug'];
const server = {type: 'local', command: 'node', args: words, env, tools: ['*']};
writeFileSync('home/.copilot/mcp-config.json', JSON.stringify({mcpServers: {server}}));

// A model that says one word, by chat completions.
const model = createServer((request, response) => {
  const chunk = more => {
    const about = {id: 'chat', object: 'chat.completion.chunk', created: 1, model: 'model', ...more};
    response.write(`data: ${JSON.stringify(about)}\n\n`);
  };
  request.resume();
  response.writeHead(200, {'content-type': 'text/event-stream'});
  chunk({choices: [{index: 0, delta: {role: 'assistant', content: 'Yes.'}, finish_reason: null}]});
  chunk({choices: [{index: 0, delta: {}, finish_reason: 'stop'}]});
  chunk({choices: [], usage: {prompt_tokens: 1, completion_tokens: 1, total_tokens: 2}});
  response.end('data: [DONE]\n\n');
});
await once(model.listen(0, '127.0.0.1'), 'listening');

const run = spawn(`${folder}/node_modules/.bin/copilot`, ['--disable-client-telemetry', '-p', 'Are you there?'], {
  cwd: `${folder}/work`,
  env: {
    PATH: process.env.PATH,
    HOME: `${folder}/home`,
    TMPDIR: `${folder}/tmp`,
    COPILOT_PROVIDER_BASE_URL: `http://127.0.0.1:${model.address().port}/v1`,
    COPILOT_MODEL: 'model',
    COPILOT_OFFLINE: 'true',
    debug: 'a value of the person',
  },
  stdio: 'ignore',
  timeout: 120_000,
});
const [status] = await once(run, 'close');
model.close();
console.log(`copilot ended with ${status}\n${readFileSync('got', 'utf8').trim()}`);
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = 'copilot ended with 0
argument: debug
GIVEN_1_NAME=a value of the person
GIVEN_2_REFERENCE=a value of the person
GIVEN_3_LONGER=debug,trace
GIVEN_4_NOT_SET=trace
GIVEN_5_DEFAULT=debug' ]
