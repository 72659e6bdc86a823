#!/usr/bin/env bash
# Over stdio, a client asks its user in the context of whoever connected, and not of the call that the question is for.
#
# Packages: PyPI mcp 2.3.0; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0. Needs Python 3.11
# with venv, and Node 20 with npm. It listens on a free port of the loopback address.
#
# Expected: a host that serves several people keeps the one of this moment in a ContextVar, or in an AsyncLocalStorage,
# as its web framework and its tracing do. What a client calls back while a call runs sees what the call was made with.
#
# Seen on 2026-11-30: it depends on transport, revision and SDK. Over Streamable HTTP, the callback for a question sees
# the person of its call in each of them. Over stdio it sees what was set when the client connected: in 2025-11-25 in
# both SDKs, and in 2026-07-28, where the question is an answer to the call itself, still in TypeScript, and no longer in
# Python. A host that is tested over HTTP, or with the newest Python on both ends, asks nobody, or the first user for
# all, once a program is its server. The span of the call is lost in the same way. No argument of the callback names the
# call: who needs to know takes a client for each person.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
"""Serves over stdio, or over HTTP while the client that its arguments name runs, at the address in its environment."""

import os
import socket
import subprocess
import sys
import threading
from typing import Annotated

import uvicorn
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


if len(sys.argv) == 1:
    server.run()
else:
    listener = socket.create_server(("127.0.0.1", 0))
    http = uvicorn.Server(uvicorn.Config(server.streamable_http_app(), log_level="critical"))
    threading.Thread(target=http.run, kwargs={"sockets": [listener]}, daemon=True).start()
    url = f"http://127.0.0.1:{listener.getsockname()[1]}/mcp"
    sys.exit(subprocess.run(sys.argv[1:], env={**os.environ, "URL": url}, timeout=300).returncode)
PY
cat >check.py <<'PY'
import os
import sys
from contextvars import ContextVar
from typing import Any

import anyio
from mcp import Client, StdioServerParameters
from mcp_types import ElicitResult

person = ContextVar("person", default="nobody")


async def play(title: str, target: Any, mode: str) -> None:
    asked = []

    async def ask(context: Any, params: Any) -> ElicitResult:
        asked.append(person.get())
        return ElicitResult(action="accept", content={"ok": True})

    person.set("host")
    async with Client(target, mode=mode, elicitation_callback=ask) as client:
        for name in ("ann", "ben"):
            person.set(name)
            await client.call_tool("work")
        version = client.session.protocol_version
    print(f"mcp 2.3.0, {version}, {title}: calls of ann and ben, asked: {' and '.join(asked)}")


async def main() -> None:
    for mode in ("legacy", "auto"):
        await play("stdio", StdioServerParameters(command=sys.executable, args=["server.py"]), mode)
        await play("HTTP", os.environ["URL"], mode)


anyio.run(main)
PY
cat >check.mjs <<'JS'
import {AsyncLocalStorage} from 'node:async_hooks';
import {Client as One} from '@modelcontextprotocol/sdk/client/index.js';
import {StdioClientTransport as OnePipe} from '@modelcontextprotocol/sdk/client/stdio.js';
import {StreamableHTTPClientTransport as OneHttp} from '@modelcontextprotocol/sdk/client/streamableHttp.js';
import {ElicitRequestSchema} from '@modelcontextprotocol/sdk/types.js';
import {Client as Two, StreamableHTTPClientTransport as TwoHttp} from '@modelcontextprotocol/client';
import {StdioClientTransport as TwoPipe} from '@modelcontextprotocol/client/stdio';

const person = new AsyncLocalStorage();

async function play(title, client, request, transport) {
  const asked = [];
  client.setRequestHandler(request, () => {
    asked.push(person.getStore());
    return {action: 'accept', content: {ok: true}};
  });
  await person.run('host', () => client.connect(transport));
  for (const name of ['ann', 'ben']) {
    await person.run(name, () => client.callTool({name: 'work', arguments: {}}));
  }
  console.log(`${title}: calls of ann and ben, asked: ${asked.join(' and ')}`);
  await client.close();
}

const info = {name: 'client', version: '1'};
const capabilities = {elicitation: {}};
const program = {command: 'venv/bin/python', args: ['server.py']};
const url = new URL(process.env.URL);
const one = () => new One(info, {capabilities});
const two = mode => new Two(info, {capabilities, versionNegotiation: {mode}});

await play('sdk 1.32.2, 2025-11-25, stdio', one(), ElicitRequestSchema, new OnePipe(program));
await play('sdk 1.32.2, 2025-11-25, HTTP', one(), ElicitRequestSchema, new OneHttp(url));
for (const [mode, version] of [['legacy', '2025-11-25'], ['auto', '2026-07-28']]) {
  await play(`client 2.4.0, ${version}, stdio`, two(mode), 'elicitation/create', new TwoPipe(program));
  await play(`client 2.4.0, ${version}, HTTP`, two(mode), 'elicitation/create', new TwoHttp(url));
}
JS
seen=$(venv/bin/python server.py venv/bin/python check.py 2>/dev/null && venv/bin/python server.py node check.mjs 2>/dev/null)
echo "$seen"
calls='calls of ann and ben, asked:'
[ "$seen" = "mcp 2.3.0, 2025-11-25, stdio: $calls host and host
mcp 2.3.0, 2025-11-25, HTTP: $calls ann and ben
mcp 2.3.0, 2026-07-28, stdio: $calls ann and ben
mcp 2.3.0, 2026-07-28, HTTP: $calls ann and ben
sdk 1.32.2, 2025-11-25, stdio: $calls host and host
sdk 1.32.2, 2025-11-25, HTTP: $calls ann and ben
client 2.4.0, 2025-11-25, stdio: $calls host and host
client 2.4.0, 2025-11-25, HTTP: $calls ann and ben
client 2.4.0, 2026-07-28, stdio: $calls host and host
client 2.4.0, 2026-07-28, HTTP: $calls ann and ben" ]
