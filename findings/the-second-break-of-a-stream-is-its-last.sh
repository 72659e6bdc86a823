#!/usr/bin/env bash
# A Python client whose stream for notifications has broken twice hears nothing more, however long it stays connected.
#
# Packages: PyPI mcp 2.3.0, mcp 1.30.0; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0. Needs
# Python 3.11 with venv, and Node 20 with npm. It listens on free ports of the loopback address.
#
# Expected: a stream may break at any time (2025-11-25, Transports, "Sending Messages to the Server"), and the client
# opens this one again. It gives up after two attempts that fail in a row (`MAX_RECONNECTION_ATTEMPTS`): a stream that
# was open and brought messages was no failed attempt.
#
# Seen on 2026-11-30: the Python client counts each break as a failed attempt, and sets the count back only when the
# server ends the stream in order (`handle_get_stream`, mcp/client/streamable_http.py). Two breaks are the end of it,
# whatever came in between. A proxy that starts again, or cuts an idle stream, and the client's own limit of five
# minutes without a byte are breaks. Calls go on to work, the log has a line of level debug, and the host is told
# nothing: it keeps the list of tools that it has, because no change reaches it. The TypeScript clients open the stream
# again each time.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
for version in 1.30.0 2.3.0; do
    python3 -m venv "$version"
    "$version/bin/pip" install --quiet --disable-pip-version-check "mcp==$version" 2>/dev/null
done
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
"""A server of 2025-11-25 that announces a change on each stream for notifications, and then ends or breaks it.

Its arguments: how the stream ends, the client. The client runs until it has heard of five changes, or for ten seconds.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOW, *CLIENT = sys.argv[1:]
CHANGED = {"jsonrpc": "2.0", "method": "notifications/tools/list_changed"}
opened: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        opened.append(self.path)
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        event = f"id: {len(opened)}\nretry: 100\ndata: {json.dumps(CHANGED)}\n\n".encode()
        self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        if HOW == "ends in order":
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def do_DELETE(self) -> None:
        self.answer(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            return self.answer(202)
        result: dict[str, object] = {}
        if message["method"] == "initialize":
            version, server = message["params"]["protocolVersion"], {"name": "server", "version": "1"}
            able = {"tools": {"listChanged": True}}
            result = {"protocolVersion": version, "capabilities": able, "serverInfo": server}
        elif message["method"] == "tools/list":
            result = {"tools": []}
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    def answer(self, status: int, body: str = "") -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Mcp-Session-Id", "session")
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
client = subprocess.run([*CLIENT, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300, text=True)
heard, still = client.stdout.split()
print(f"the stream {HOW}: {heard} of 5 changes heard of, and calls {still}")
PY
cat >client2.py <<'PY'
import sys

import anyio
from mcp import Client


async def main() -> None:
    heard: list[object] = []

    async def hear(message: object) -> None:
        heard.append(message)

    async with Client(sys.argv[1], mode="legacy", message_handler=hear) as client:
        with anyio.move_on_after(10):
            while len(heard) < 5:
                await anyio.sleep(0.05)
        await client.list_tools()
        print(min(len(heard), 5), "work")


anyio.run(main)
PY
cat >client1.py <<'PY'
import sys

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client


async def main() -> None:
    heard: list[object] = []

    async def hear(message: object) -> None:
        heard.append(message)

    async with (
        streamable_http_client(sys.argv[1]) as (read, write, _),
        ClientSession(read, write, message_handler=hear) as session,
    ):
        await session.initialize()
        with anyio.move_on_after(10):
            while len(heard) < 5:
                await anyio.sleep(0.05)
        await session.list_tools()
        print(min(len(heard), 5), "work")


anyio.run(main)
PY
cat >client.mjs <<'JS'
import {setTimeout as sleep} from 'node:timers/promises';

const [major, url] = process.argv.slice(2);
const one = '@modelcontextprotocol/sdk';
const [{Client}, {StreamableHTTPClientTransport}] = major === '1'
  ? [await import(`${one}/client/index.js`), await import(`${one}/client/streamableHttp.js`)]
  : Array(2).fill(await import('@modelcontextprotocol/client'));

const client = new Client({name: 'client', version: '1'});
let heard = 0;
client.fallbackNotificationHandler = async () => {
  heard += 1;
};
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
for (let round = 0; heard < 5 && round < 200; round += 1) {
  await sleep(50);
}
await client.listTools();
console.log(Math.min(heard, 5), 'work');
process.exit();
JS
seen=$(
    for how in 'ends in order' breaks; do
        for version in 1.30.0 2.3.0; do
            printf 'Python %s, ' "$version"
            2.3.0/bin/python server.py "$how" "$version/bin/python" "client${version%%.*}.py"
        done
        for version in 1.32.2 2.4.0; do
            printf 'TypeScript %s, ' "$version"
            2.3.0/bin/python server.py "$how" node client.mjs "${version%%.*}"
        done
    done
)
echo "$seen"
[ "$seen" = 'Python 1.30.0, the stream ends in order: 5 of 5 changes heard of, and calls work
Python 2.3.0, the stream ends in order: 5 of 5 changes heard of, and calls work
TypeScript 1.32.2, the stream ends in order: 5 of 5 changes heard of, and calls work
TypeScript 2.4.0, the stream ends in order: 5 of 5 changes heard of, and calls work
Python 1.30.0, the stream breaks: 2 of 5 changes heard of, and calls work
Python 2.3.0, the stream breaks: 2 of 5 changes heard of, and calls work
TypeScript 1.32.2, the stream breaks: 5 of 5 changes heard of, and calls work
TypeScript 2.4.0, the stream breaks: 5 of 5 changes heard of, and calls work' ]
