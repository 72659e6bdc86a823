#!/usr/bin/env bash
# A tool of mcp-framework reports its progress to whoever called it last, and no call of it learns of a cancellation.
#
# Packages: npm mcp-framework 0.2.22, zod 3.25.76, @modelcontextprotocol/sdk 1.32.2. Needs Node 20 with npm.
#
# Expected: a call has a progress token of its own, and a signal of its own, as in the SDK below the framework. A client
# may send a call before the last one is answered, and a server behind a gateway has calls of several clients at once.
#
# Seen on 2026-11-30: a tool is one object for all calls, and the framework writes the token into it when a call begins.
# `this.reportProgress()` uses the token that is there now. With a second call the first falls silent, and the second
# gets the progress of both, which counts up and down. When one of them is answered the token is gone, and the other
# reports nothing more. `this.abortSignal` has the same place, and does not even work for a call that is alone: the
# framework puts a handler of its own for `notifications/cancelled` in place of the SDK's, which looks into a map that
# nothing is written into (`_inFlightAbortControllers`, core/MCPServer.js). A tool that asks for the signal after each
# step, as the comment there shows, runs to its end for nobody.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund \
    mcp-framework@0.2.22 zod@3.25.76 @modelcontextprotocol/sdk@1.32.2 >/dev/null
mkdir -p dist/tools
echo '{"type": "module"}' >dist/package.json

cat >dist/tools/WorkTool.js <<'JS'
import {appendFileSync} from 'node:fs';
import {setTimeout as sleep} from 'node:timers/promises';
import {MCPTool} from 'mcp-framework';
import {z} from 'zod';

export default class WorkTool extends MCPTool {
  name = 'work';
  description = 'Work in steps.';
  schema = z.object({who: z.string().describe('who calls'), steps: z.number().describe('how many steps')});

  async execute({who, steps}) {
    for (let step = 1; step <= steps; step++) {
      if (this.abortSignal?.aborted) {
        appendFileSync('ends', `${who} was cancelled\n`);
        return who;
      }
      await this.reportProgress(step, steps, who);
      await sleep(500);
    }
    appendFileSync('ends', `${who} went to its end\n`);
    return who;
  }
}
JS
cat >dist/index.js <<'JS'
import {MCPServer} from 'mcp-framework';

await new MCPServer({name: 'server', version: '1'}).start();
JS
cat >check.mjs <<'JS'
import {readFileSync, writeFileSync} from 'node:fs';
import {setTimeout as sleep} from 'node:timers/promises';
import {Client} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport} from '@modelcontextprotocol/sdk/client/stdio.js';

const client = new Client({name: 'client', version: '1'});
await client.connect(new StdioClientTransport({command: 'node', args: ['dist/index.js'], stderr: 'ignore'}));

async function call(who, steps, signal) {
  const heard = {};
  const onprogress = ({message}) => {
    heard[message] = (heard[message] ?? 0) + 1;
  };
  await client.callTool({name: 'work', arguments: {who, steps}}, undefined, {signal, onprogress}).catch(() => {});
  return Object.entries(heard).map(([whose, times]) => `${times} of ${whose}`).join(', ') || 'nothing';
}

console.log(`alone: first heard ${await call('first', 4)}`);

const first = call('first', 6);
await sleep(750);
const second = call('second', 2);
console.log(`both: first heard ${await first}; second heard ${await second}`);

writeFileSync('ends', '');
const giveUp = new AbortController();
const third = call('third', 6, giveUp.signal);
await sleep(750);
giveUp.abort();
await third;
await sleep(4000);
console.log(`given up: ${readFileSync('ends', 'utf8').trim()}`);
await client.close();
JS
seen=$(node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'alone: first heard 4 of first
both: first heard 2 of first; second heard 2 of second, 2 of first
given up: third went to its end' ]
