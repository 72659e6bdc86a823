#!/usr/bin/env bash
# A TypeScript client that is told that a list has changed hands its host the first page of it, as the whole list.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0. Needs Node 20 with npm.
#
# Expected: `listChanged: {tools: {onChanged}}` reads a list again when the server says that it has changed, and calls
# `onChanged(error, tools)` with what the server has now. The host replaces what it knew by that.
#
# Seen on 2026-11-29: 1.32.2 reads one page. `onChanged` gets an array, so it learns neither that there is more nor the
# cursor of the rest, and `error` is null. A host that has followed all cursors at its start loses what is on later
# pages with the first change, also if nothing there has changed, and never gets it back; so with prompts and
# resources. 2.4.0 follows the cursors. In 1.32.2, `autoRefresh: false` leaves the reading to the host. Behind a
# gateway a list is long enough to have pages, and it changes with each server that comes or goes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >check.mjs <<'JS'
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {Client as Two} from '@modelcontextprotocol/client';

const entry = {
  tools: name => ({name, inputSchema: {type: 'object'}}),
  prompts: name => ({name}),
  resources: name => ({name, uri: `file:///${name}`}),
};

async function play(title, Client, kind) {
  const read = {tools: 'listTools', prompts: 'listPrompts', resources: 'listResources'}[kind];
  const pages = [['alpha', 'beta'], ['gamma']];
  const names = entries => entries.map(({name}) => name).join(', ');
  let changed;
  const seen = new Promise(resolve => { changed = (error, entries) => resolve(error?.message ?? names(entries)); });

  function answer({method, params}) {
    if (method === 'initialize') {
      const capabilities = {[kind]: {listChanged: true}};
      return {protocolVersion: '2025-11-25', capabilities, serverInfo: {name: 'server', version: '1'}};
    }
    const place = Number(params?.cursor ?? 0);
    return {[kind]: pages[place].map(entry[kind]), ...(pages[place + 1] && {nextCursor: String(place + 1)})};
  }
  const transport = {
    async start() {},
    async close() {},
    async send(message) {
      if (message.id !== undefined) {
        queueMicrotask(() => this.onmessage({jsonrpc: '2.0', id: message.id, result: answer(message)}));
      }
    },
  };
  const client = new Client({name: 'client', version: '1'}, {listChanged: {[kind]: {onChanged: changed}}});
  await client.connect(transport);

  const all = [];
  let cursor;
  do {
    const page = await client[read](cursor && {cursor});
    all.push(...page[kind]);
    cursor = page.nextCursor;
  } while (cursor);
  console.log(`${title}, ${kind}, at the start: ${names(all)}`);
  pages[0].push('delta');
  transport.onmessage({jsonrpc: '2.0', method: `notifications/${kind}/list_changed`});
  console.log(`${title}, ${kind}, onChanged: ${await seen}`);
}

for (const kind of ['tools', 'prompts', 'resources']) {
  await play('1.32.2', One, kind);
  await play('2.4.0', Two, kind);
}
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = '1.32.2, tools, at the start: alpha, beta, gamma
1.32.2, tools, onChanged: alpha, beta, delta
2.4.0, tools, at the start: alpha, beta, gamma
2.4.0, tools, onChanged: alpha, beta, delta, gamma
1.32.2, prompts, at the start: alpha, beta, gamma
1.32.2, prompts, onChanged: alpha, beta, delta
2.4.0, prompts, at the start: alpha, beta, gamma
2.4.0, prompts, onChanged: alpha, beta, delta, gamma
1.32.2, resources, at the start: alpha, beta, gamma
1.32.2, resources, onChanged: alpha, beta, delta
2.4.0, resources, at the start: alpha, beta, gamma
2.4.0, resources, onChanged: alpha, beta, delta, gamma' ]
