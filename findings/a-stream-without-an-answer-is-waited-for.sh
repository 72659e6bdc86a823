#!/usr/bin/env bash
# A TypeScript client goes on waiting for an answer when the stream that the answer would have come in has ended.
#
# Packages: npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0; PyPI mcp 2.3.0. Needs Node 20 with
# npm, and Python 3.11 with venv. It listens on free ports of the loopback address.
#
# Expected: the answer of a request comes in its own stream (2025-11-25, Transports, "Sending Messages to the Server";
# 2026-07-28, Streamable HTTP, "Receiving Messages"). Once that has ended without one, and no event in it had an id by
# which it could be resumed, no answer can come: the call fails, as it does at once if the server is not there, or a
# proxy answers with 504. In 2026-07-28 its host may send it anew then, under another id, if it knows of that.
#
# Seen on 2026-11-30: no matter whether the stream ends in order or breaks, the call of a TypeScript client stays open
# until its own limit (here six seconds; one minute by default, and hosts with slow tools set many). `onerror` is not
# called either. So a restart of a server, or a proxy that ends what is silent for some time, shows itself to the user
# as an agent that does nothing, and to the log as a timeout. The Python client says at once that the stream has ended.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null
npm install --silent --no-audit --no-fund @modelcontextprotocol/sdk@1.32.2 @modelcontextprotocol/client@2.4.0 >/dev/null

cat >server.py <<'PY'
"""A server that begins a stream for its only call and ends it without an answer; its arguments: how, the client."""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOW, *CLIENT = sys.argv[1:]
ABOUT = {"capabilities": {"tools": {}}, "serverInfo": {"name": "server", "version": "1"}}
NOW = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"}
TOOLS = [{"name": "work", "inputSchema": {"type": "object"}}]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(405)

    def do_DELETE(self) -> None:
        self.answer(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            return self.answer(202)
        result: dict[str, object] = {}
        if message["method"] == "initialize":
            result = {"protocolVersion": message["params"]["protocolVersion"], **ABOUT}
        elif message["method"] == "server/discover":
            result = {"supportedVersions": ["2026-07-28"], **ABOUT, **NOW}
        elif message["method"] == "tools/list":
            result = {"tools": TOOLS, **NOW}
        elif HOW == "is a 504 of a proxy":
            return self.answer(504, "<html><body>504 Gateway Time-out</body></html>", "text/html")
        else:
            return self.stream()
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    def stream(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        comment = b": still at work\n\n"
        self.wfile.write(b"%x\r\n%s\r\n" % (len(comment), comment))
        if HOW == "ends in order":
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

    def answer(self, status: int, body: str = "", kind: str = "application/json") -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body.encode())

    def log_message(self, *_: object) -> None: ...


server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
url = f"http://127.0.0.1:{server.server_address[1]}/mcp"
client = subprocess.run([*CLIENT, url], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, timeout=300, text=True)
print(f"the answer {HOW}: {client.stdout.strip()}")
PY
cat >client.py <<'PY'
import sys
import time

import anyio
from mcp import Client

mode, url = sys.argv[1:]


async def main() -> None:
    async with Client(url, mode=mode) as client:
        begun = time.monotonic()
        try:
            await client.call_tool("work", read_timeout_seconds=6)
        except Exception:
            waited = "its own limit" if time.monotonic() - begun > 5.9 else "nothing"
            print(f"{client.session.protocol_version}, the call fails, and waits for {waited}")


anyio.run(main)
PY
cat >client.mjs <<'JS'
const [major, mode, url] = process.argv.slice(2);
const one = '@modelcontextprotocol/sdk';
const [{Client}, {StreamableHTTPClientTransport}] = major === '1'
  ? [await import(`${one}/client/index.js`), await import(`${one}/client/streamableHttp.js`)]
  : Array(2).fill(await import('@modelcontextprotocol/client'));

const client = new Client({name: 'client', version: '1'}, {versionNegotiation: {mode}});
const errors = [];
client.onerror = error => errors.push(error);
const transport = new StreamableHTTPClientTransport(new URL(url));
await client.connect(transport);
const call = {name: 'work', arguments: {}};
const limit = {timeout: 6000};
const begun = performance.now();
try {
  await (major === '1' ? client.callTool(call, undefined, limit) : client.callTool(call, limit));
} catch {
  const waited = performance.now() - begun > 5900 ? 'its own limit' : 'nothing';
  const told = errors.length ? '' : ', without an error';
  console.log(`${transport.protocolVersion}, the call fails, and waits for ${waited}${told}`);
}
process.exit();
JS
seen=$(
    for how in 'ends in order' breaks 'is a 504 of a proxy'; do
        for mode in legacy auto; do
            printf 'Python 2.3.0, '
            venv/bin/python server.py "$how" venv/bin/python client.py "$mode"
        done
        printf 'TypeScript 1.32.2, '
        venv/bin/python server.py "$how" node client.mjs 1 legacy
        for mode in legacy auto; do
            printf 'TypeScript 2.4.0, '
            venv/bin/python server.py "$how" node client.mjs 2 "$mode"
        done
    done
)
echo "$seen"
now='the call fails, and waits for nothing'
late='the call fails, and waits for its own limit, without an error'
[ "$seen" = "Python 2.3.0, the answer ends in order: 2025-11-25, $now
Python 2.3.0, the answer ends in order: 2026-07-28, $now
TypeScript 1.32.2, the answer ends in order: 2025-11-25, $late
TypeScript 2.4.0, the answer ends in order: 2025-11-25, $late
TypeScript 2.4.0, the answer ends in order: 2026-07-28, $late
Python 2.3.0, the answer breaks: 2025-11-25, $now
Python 2.3.0, the answer breaks: 2026-07-28, $now
TypeScript 1.32.2, the answer breaks: 2025-11-25, $late
TypeScript 2.4.0, the answer breaks: 2025-11-25, $late
TypeScript 2.4.0, the answer breaks: 2026-07-28, $late
Python 2.3.0, the answer is a 504 of a proxy: 2025-11-25, $now
Python 2.3.0, the answer is a 504 of a proxy: 2026-07-28, $now
TypeScript 1.32.2, the answer is a 504 of a proxy: 2025-11-25, $now
TypeScript 2.4.0, the answer is a 504 of a proxy: 2025-11-25, $now
TypeScript 2.4.0, the answer is a 504 of a proxy: 2026-07-28, $now" ]
