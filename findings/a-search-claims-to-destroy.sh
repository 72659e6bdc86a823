#!/usr/bin/env bash
# The search of Notion's server claims to be destructive, because its request is a POST.
#
# Packages: npm @notionhq/notion-mcp-server 2.5.2. Needs Node 20 with npm. It lists its tools without a token; no tool
# is called.
#
# Expected: a server that states hints for each of its tools has thought about each of them. Searching by title and
# querying a table change nothing, so they have `readOnlyHint: true`, and what adds a page or a comment has
# `destructiveHint: false`, because the hint means more than an addition (2025-11-25, ToolAnnotations).
#
# Seen on 2026-11-28: each of the 24 tools has exactly one hint, by the method of its HTTP request alone: GET is
# `readOnlyHint: true`, everything else is `destructiveHint: true`. So the search, with which nearly all work in Notion
# begins, claims what the deletion of a block claims, and so do a query, a new page and a new comment. A host that
# permits what only reads refuses the search, or asks for it each time; its rules for what is destructive cannot tell
# the search from the deletion.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts @notionhq/notion-mcp-server@2.5.2 >/dev/null

cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {createInterface} from 'node:readline';

const env = {...process.env, HOME: process.cwd()};
const server = spawn('node_modules/.bin/notion-mcp-server', {env, stdio: ['pipe', 'pipe', 'ignore']});
const send = message => server.stdin.write(JSON.stringify({jsonrpc: '2.0', ...message}) + '\n');
const clientInfo = {name: 'client', version: '1'};
send({id: 1, method: 'initialize', params: {protocolVersion: '2025-11-25', capabilities: {}, clientInfo}});
for await (const line of createInterface({input: server.stdout})) {
  const {id, result} = JSON.parse(line);
  if (id === 1) {
    send({method: 'notifications/initialized'});
    send({id: 2, method: 'tools/list'});
  }
  if (id !== 2) continue;
  const found = {};
  for (const {name, annotations: {title, ...hints}} of result.tools) (found[JSON.stringify(hints)] ??= []).push(name);
  for (const [hints, names] of Object.entries(found).sort()) {
    console.log(`${hints}: ${names.length}`);
    console.log(`  ${names.filter(name => /search|query|delete|post-page|comment/.test(name)).sort().join(', ')}`);
  }
  server.kill();
}
JS
seen=$(node check.mjs)
echo "$seen"
[ "$seen" = '{"destructiveHint":true}: 12
  API-create-a-comment, API-delete-a-block, API-post-page, API-post-search, API-query-data-source
{"readOnlyHint":true}: 12
  API-retrieve-a-comment' ]
