#!/usr/bin/env bash
# Calls of the reference memory server that are sent at once all report what they created, and most of it is not kept.
#
# Packages: npm @modelcontextprotocol/server-memory 2026.8.31. Needs Node 20 with npm.
#
# Expected: a client may send a request before the last one is answered, and hosts do so when a model calls several
# tools in one turn. A call of `create_entities` answers with the entities that were created; once all are answered,
# `read_graph` has all of them.
#
# Seen on 2026-11-28: each call reads the file, adds its own, and writes all of it, and nothing makes one wait for
# another. Calls that are sent together read the same file, and the last to write wins. Ten calls over one connection
# are all answered with success and the entity they created, and the graph has fewer than ten, often one. One after
# another, all are kept. Besides, `serverInfo.version` is 0.6.3 in this package: a host cannot tell by it what it runs.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts @modelcontextprotocol/server-memory@2026.8.31 >/dev/null

cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {createInterface} from 'node:readline';

const calls = 10;

async function play(title, atOnce) {
  const env = {...process.env, MEMORY_FILE_PATH: `${process.cwd()}/${atOnce}.jsonl`};
  const server = spawn('node_modules/.bin/mcp-server-memory', {env, stdio: ['pipe', 'pipe', 'ignore']});
  const waiting = new Map();
  createInterface({input: server.stdout}).on('line', line => {
    const {id, result} = JSON.parse(line);
    waiting.get(id)?.(result);
  });
  const send = message => server.stdin.write(JSON.stringify({jsonrpc: '2.0', ...message}) + '\n');
  const request = (method, params) => new Promise(resolve => {
    waiting.set(waiting.size, resolve);
    send({id: waiting.size - 1, method, params});
  });
  const clientInfo = {name: 'client', version: '1'};
  const {serverInfo} = await request('initialize', {protocolVersion: '2025-11-25', capabilities: {}, clientInfo});
  send({method: 'notifications/initialized'});
  const call = async (name, args) => (await request('tools/call', {name, arguments: args})).structuredContent.entities;
  const create = number => call('create_entities', {
    entities: [{name: `entity ${number}`, entityType: 'thing', observations: []}],
  });
  const created = [];
  for (let number = 0; number < calls; number++) {
    created.push(create(number));
    if (!atOnce) await created.at(-1);
  }
  const reported = (await Promise.all(created)).flat().length;
  const kept = (await call('read_graph', {})).length;
  console.log(`${title}: version ${serverInfo.version}, reported ${reported}, kept ${kept < calls ? 'fewer' : kept}`);
  server.kill();
}

await play('one after another', false);
await play('at once', true);
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = "one after another: version 0.6.3, reported 10, kept 10
at once: version 0.6.3, reported 10, kept fewer" ]
