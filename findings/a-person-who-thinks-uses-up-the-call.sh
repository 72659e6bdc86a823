#!/usr/bin/env bash
# A call's limit in time runs on while the client waits for its own user in 2025-11-25, and not in 2026-07-28.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0. Needs Python 3.11
# with venv, and Node 20 with npm.
#
# Expected: the limit of a call is for a server that does not answer. While the client shows the server's question to
# its own user, it knows what the call waits for. Client, server, tool and limit being the same, the call ends in the
# same way in each revision that the two can speak.
#
# Seen on 2026-11-30: in 2025-11-25 the question is a request within the call, whose clock goes on: the call fails while
# the person reads, and the work that was to be confirmed is not done. In TypeScript that is after a minute if the host
# gives no limit. In 2026-07-28 the question ends one request and the answer is in the next, with a clock of its own:
# the person may think for any time, and with several rounds the call lasts several times its limit. So a limit that
# was chosen with one revision is too short, or none, in the other, and which one it is depends on the server. Both SDKs
# agree.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
from typing import Annotated

from mcp.server import MCPServer
from mcp.server.mcpserver.resolve import Elicit, Resolve
from pydantic import BaseModel

server = MCPServer("server", log_level="CRITICAL")


class Consent(BaseModel):
    ok: bool


def question() -> Elicit[Consent]:
    return Elicit("Go on?", Consent)


@server.tool()
def work(consent: Annotated[Consent, Resolve(question)]) -> str:
    return "done"


server.run()
PY
cat >check.py <<'PY'
import sys
from typing import Any

import anyio
from mcp import Client, MCPError, StdioServerParameters
from mcp_types import ElicitResult


async def main() -> None:
    program = StdioServerParameters(command=sys.executable, args=["server.py"])
    for mode in ("legacy", "auto"):
        for thinks in (0, 8):

            async def ask(context: Any, params: Any) -> ElicitResult:
                await anyio.sleep(thinks)
                return ElicitResult(action="accept", content={"ok": True})

            async with Client(program, mode=mode, elicitation_callback=ask) as client:
                try:
                    outcome = (await client.call_tool("work", read_timeout_seconds=4)).content[0].text
                except MCPError as error:
                    outcome = error.error.message
                version = client.session.protocol_version
            print(f"mcp 2.3.0, {version}, limit 4 s, the person thinks for {thinks} s: {outcome}")


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {setTimeout as sleep} from 'node:timers/promises';
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OnePipe} from '@modelcontextprotocol/sdk/client/stdio.js';
import {ElicitRequestSchema} from '@modelcontextprotocol/sdk/types.js';
import {Client as Two} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoPipe} from '@modelcontextprotocol/client/stdio';

const info = {name: 'client', version: '1'};
const capabilities = {elicitation: {}};
const program = {command: 'venv/bin/python', args: ['server.py']};
const call = {name: 'work', arguments: {}};
const limit = {timeout: 4000};

async function play(title, client, request, transport, work) {
  for (const thinks of [0, 8]) {
    const used = client();
    used.setRequestHandler(request, async () => {
      await sleep(thinks * 1000);
      return {action: 'accept', content: {ok: true}};
    });
    await used.connect(new transport(program));
    const outcome = await work(used).then(({content}) => content[0].text, error => error.message);
    console.log(`${title}, limit 4 s, the person thinks for ${thinks} s: ${outcome}`);
    await used.close();
  }
}

const one = () => new One(info, {capabilities});
await play('sdk 1.32.2, 2025-11-25', one, ElicitRequestSchema, OnePipe, used => used.callTool(call, undefined, limit));
for (const [mode, version] of [['legacy', '2025-11-25'], ['auto', '2026-07-28']]) {
  const two = () => new Two(info, {capabilities, versionNegotiation: {mode}});
  await play(`client 2.4.0, ${version}`, two, 'elicitation/create', TwoPipe, used => used.callTool(call, limit));
}
JS
seen=$(venv/bin/python check.py 2>/dev/null && node check.mjs 2>/dev/null)
echo "$seen"
limit='limit 4 s, the person thinks for'
[ "$seen" = "mcp 2.3.0, 2025-11-25, $limit 0 s: done
mcp 2.3.0, 2025-11-25, $limit 8 s: Request 'tools/call' timed out
mcp 2.3.0, 2026-07-28, $limit 0 s: done
mcp 2.3.0, 2026-07-28, $limit 8 s: done
sdk 1.32.2, 2025-11-25, $limit 0 s: done
sdk 1.32.2, 2025-11-25, $limit 8 s: MCP error -32001: Request timed out
client 2.4.0, 2025-11-25, $limit 0 s: done
client 2.4.0, 2025-11-25, $limit 8 s: Request timed out
client 2.4.0, 2026-07-28, $limit 0 s: done
client 2.4.0, 2026-07-28, $limit 8 s: done" ]
