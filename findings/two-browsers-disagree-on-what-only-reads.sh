#!/usr/bin/env bash
# A snapshot that is saved to a file only reads, says one server for browsers; it does not, says the other.
#
# Packages: npm @playwright/mcp 0.0.83, chrome-devtools-mcp 1.11.0. Needs Node 20 with npm. No browser is started, and
# no tool is called.
#
# Expected: `readOnlyHint: true` says that a tool does not modify its environment (2025-11-25, ToolAnnotations). Two
# well-kept servers for the same work claim the same of the same deeds: a snapshot reads, and what writes a file where
# the caller says is no reading, or is a tool of its own.
#
# Seen on 2026-11-28: Playwright's server claims it for six tools that, by their own input schemas, save to the file
# that their caller names; its screenshot is saved even if none is named. Chrome's server claims it for no tool with
# such an argument, and so not for its snapshot, its screenshot and the details of one network request, which it
# returns as text or image without the argument. A hint belongs to the tool and not to the call, so that each server
# had to choose. With a rule that permits what only reads, one server writes files, and the other shows neither snapshot
# nor screenshot.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
npm install --silent --no-audit --no-fund --ignore-scripts @playwright/mcp@0.0.83 chrome-devtools-mcp@1.11.0 >/dev/null

cat >check.mjs <<'JS'
import {spawn} from 'node:child_process';
import {createInterface} from 'node:readline';

async function list(program, ...args) {
  const env = {...process.env, HOME: process.cwd(), CHROME_DEVTOOLS_MCP_NO_UPDATE_CHECKS: 'true'};
  const server = spawn(`node_modules/.bin/${program}`, args, {env, stdio: ['pipe', 'pipe', 'ignore']});
  const send = message => server.stdin.write(JSON.stringify({jsonrpc: '2.0', ...message}) + '\n');
  const clientInfo = {name: 'client', version: '1'};
  send({id: 1, method: 'initialize', params: {protocolVersion: '2025-11-25', capabilities: {}, clientInfo}});
  for await (const line of createInterface({input: server.stdout})) {
    const {id, result} = JSON.parse(line);
    if (id === 1) {
      send({method: 'notifications/initialized'});
      send({id: 2, method: 'tools/list'});
    }
    if (id === 2) {
      server.kill();
      return result.tools;
    }
  }
}

const saves = ({inputSchema}) => Object.values(inputSchema.properties).some(({description}) =>
  /^save .* to a file|(file|path)\b.* to save/i.test(description ?? ''));
for (const [title, ...command] of [
  ['Playwright', 'playwright-mcp'], ['Chrome', 'chrome-devtools-mcp', '--no-usage-statistics'],
]) {
  const tools = (await list(...command)).filter(saves);
  for (const claim of [true, false]) {
    const names = tools.filter(({annotations}) => annotations.readOnlyHint === claim).map(({name}) => name).sort();
    console.log(`${title}, can save to a named file, readOnlyHint ${claim}: ${names.join(', ') || 'none'}`);
  }
  const always = tools.filter(tool => /if not specified.* is saved/i.test(JSON.stringify(tool.inputSchema)));
  console.log(`${title}, saves without a name too: ${always.map(({name}) => name).join(', ') || 'none'}`);
}
JS
seen=$(node check.mjs)
echo "$seen"
reads='browser_console_messages, browser_find, browser_network_request, browser_network_requests, browser_snapshot'
others='evaluate_script, get_network_request, performance_start_trace, performance_stop_trace, take_heapsnapshot'
[ "$seen" = "Playwright, can save to a named file, readOnlyHint true: $reads, browser_take_screenshot
Playwright, can save to a named file, readOnlyHint false: browser_evaluate
Playwright, saves without a name too: browser_take_screenshot
Chrome, can save to a named file, readOnlyHint true: none
Chrome, can save to a named file, readOnlyHint false: $others, take_screenshot, take_snapshot
Chrome, saves without a name too: none" ]
