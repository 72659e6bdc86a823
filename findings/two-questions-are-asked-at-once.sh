#!/usr/bin/env bash
# A tool that asks two things asks one after the other in 2025-11-25, and both at once in 2026-07-28.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0. Needs Python 3.11
# with venv, and Node 20 with npm.
#
# Expected: a person is asked one thing after the other, as the tool has its questions one after the other. A host with
# one terminal, or one dialog, needs no queue for a single call.
#
# Seen on 2026-11-30: in 2025-11-25 the server of the Python SDK sends its second question when the first is answered.
# In 2026-07-28 it sends both in one answer, as an object, and the clients of both SDKs run the host's callback for all
# members at once. So the callback is entered again while it waits: two prompts share one terminal, and what is typed
# goes to either. No option makes a client ask one thing after the other, unless its host drives the rounds itself. As
# the revision is the newest that both ends speak, an update of the server alone brings this about. A lock in the
# callback helps.
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


class Choice(BaseModel):
    value: str


def size() -> Elicit[Choice]:
    return Elicit("Which size?", Choice)


def colour() -> Elicit[Choice]:
    return Elicit("Which colour?", Choice)


@server.tool()
def order(first: Annotated[Choice, Resolve(size)], second: Annotated[Choice, Resolve(colour)]) -> str:
    return f"{first.value}, {second.value}"


server.run()
PY
cat >check.py <<'PY'
import sys
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult


async def main() -> None:
    program = StdioServerParameters(command=sys.executable, args=["server.py"])
    for mode in ("legacy", "auto"):
        open_now = most = total = 0

        async def ask(context: Any, params: Any) -> ElicitResult:
            nonlocal open_now, most, total
            open_now, total = open_now + 1, total + 1
            most = max(most, open_now)
            await anyio.sleep(2)
            open_now -= 1
            return ElicitResult(action="accept", content={"value": params.message})

        async with Client(program, mode=mode, elicitation_callback=ask) as client:
            outcome = (await client.call_tool("order")).content[0].text
            version = client.session.protocol_version
        print(f"mcp 2.3.0, {version}: {total} questions, {most} at once: {outcome}")


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {setTimeout as sleep} from 'node:timers/promises';
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OnePipe} from '@modelcontextprotocol/sdk/client/stdio.js';
import {ElicitRequestSchema} from '@modelcontextprotocol/sdk/types.js';
import {Client as Two} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoPipe} from '@modelcontextprotocol/client/stdio';

async function play(title, Client, request, transport, mode) {
  let open = 0;
  let most = 0;
  let total = 0;
  const options = {capabilities: {elicitation: {}}, versionNegotiation: {mode}};
  const client = new Client({name: 'client', version: '1'}, options);
  client.setRequestHandler(request, async ({params}) => {
    most = Math.max(most, ++open);
    total++;
    await sleep(2000);
    open--;
    return {action: 'accept', content: {value: params.message}};
  });
  await client.connect(new transport({command: 'venv/bin/python', args: ['server.py']}));
  const {content} = await client.callTool({name: 'order', arguments: {}});
  console.log(`${title}: ${total} questions, ${most} at once: ${content[0].text}`);
  await client.close();
}

await play('sdk 1.32.2, 2025-11-25', One, ElicitRequestSchema, OnePipe);
await play('client 2.4.0, 2025-11-25', Two, 'elicitation/create', TwoPipe, 'legacy');
await play('client 2.4.0, 2026-07-28', Two, 'elicitation/create', TwoPipe, 'auto');
JS
seen=$(venv/bin/python check.py 2>/dev/null && node check.mjs 2>/dev/null)
echo "$seen"
[ "$seen" = 'mcp 2.3.0, 2025-11-25: 2 questions, 1 at once: Which size?, Which colour?
mcp 2.3.0, 2026-07-28: 2 questions, 2 at once: Which size?, Which colour?
sdk 1.32.2, 2025-11-25: 2 questions, 1 at once: Which size?, Which colour?
client 2.4.0, 2025-11-25: 2 questions, 1 at once: Which size?, Which colour?
client 2.4.0, 2026-07-28: 2 questions, 2 at once: Which size?, Which colour?' ]
