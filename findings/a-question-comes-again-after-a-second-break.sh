#!/usr/bin/env bash
# When the stream of a call breaks a second time, the Python client asks for what it has had: a person is asked again.
#
# Packages: PyPI mcp 2.3.0, mcp 1.30.0; npm @modelcontextprotocol/sdk 1.32.2, @modelcontextprotocol/client 2.4.0. Needs
# Python 3.11 with venv, and Node 20 with npm. It listens on free ports of the loopback address.
#
# Expected: a client that resumes a stream names the last event that it has received (2025-11-25, Transports,
# "Resumability and Redelivery"), however often the stream breaks. The server sends what came after that one, and
# nothing twice.
#
# Seen on 2026-11-30: the Python client resumes from the last event once. If the resumed stream ends in order, it goes
# on from there. If it breaks, as one behind a proxy does when its time is up, the client forgets the events of the
# resumed stream, and names the event of the first break again (`_handle_reconnection`, mcp/client/streamable_http.py).
# A correct server sends them again: a question, or a request for sampling, that was answered is put once more, with the
# same id, to a person who sees no reason for it, and the server gets two answers to one request. The TypeScript clients
# go on from the last event in this case.
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
"""A server of 2025-11-25 whose only call asks a question; its arguments: how the resumed stream ends, the client.

The stream of the call has event 1, and ends in order. The first that resumes it has event 2, the question, and ends in
order or breaks. The next has all after the event that the client names: event 3 is the result.
"""

import json
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

HOW, *CLIENT = sys.argv[1:]
QUESTION = {
    "jsonrpc": "2.0",
    "id": "question",
    "method": "elicitation/create",
    "params": {"mode": "form", "message": "Delete all?", "requestedSchema": {"type": "object", "properties": {}}},
}
resumed: list[str] = []
answers: list[object] = []
events: dict[int, object] = {}


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        last = self.headers["Last-Event-ID"]
        if last is None:
            return self.answer(405)
        resumed.append(last)
        left = [number for number in events if number > int(last)]
        if len(resumed) == 1:
            return self.stream(left[:1], whole=HOW == "ends in order")
        self.stream(left, whole=True)

    def do_DELETE(self) -> None:
        self.answer(405)

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "method" not in message:
            answers.append(message["id"])
        if "id" not in message or "method" not in message:
            return self.answer(202)
        result: dict[str, object] = {}
        if message["method"] == "initialize":
            version, server = message["params"]["protocolVersion"], {"name": "server", "version": "1"}
            result = {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": server}
        elif message["method"] == "tools/list":
            result = {"tools": [{"name": "delete", "inputSchema": {"type": "object"}}]}
        elif message["method"] == "tools/call":
            final = {"jsonrpc": "2.0", "id": message["id"], "result": {"content": []}}
            events.update({1: None, 2: QUESTION, 3: final})
            return self.stream([1], whole=True)
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}))

    def stream(self, numbers: list[int], whole: bool) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Transfer-Encoding", "chunked")
        self.send_header("Connection", "close")
        self.end_headers()
        for number in numbers:
            data = json.dumps(events[number]) if events[number] else ""
            event = f"id: {number}\nretry: 100\ndata: {data}\n\n".encode()
            self.wfile.write(b"%x\r\n%s\r\n" % (len(event), event))
        if whole:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True

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
asked = client.stdout.count("Delete all?")
print(f"the stream {HOW}: resumed after {', '.join(resumed)}; asked {asked}, answered {len(answers)}")
PY
cat >client2.py <<'PY'
import sys

import anyio
from mcp import Client
from mcp.types import ElicitResult


async def ask(_: object, question: object) -> ElicitResult:
    print(question.message)
    return ElicitResult(action="decline")


async def main() -> None:
    async with Client(sys.argv[1], mode="legacy", elicitation_callback=ask) as client:
        await client.call_tool("delete")


anyio.run(main)
PY
cat >client1.py <<'PY'
import sys

import anyio
from mcp import ClientSession
from mcp.client.streamable_http import streamable_http_client
from mcp.types import ElicitResult


async def ask(_: object, question: object) -> ElicitResult:
    print(question.message)
    return ElicitResult(action="decline")


async def main() -> None:
    async with (
        streamable_http_client(sys.argv[1]) as (read, write, _),
        ClientSession(read, write, elicitation_callback=ask) as session,
    ):
        await session.initialize()
        await session.call_tool("delete")


anyio.run(main)
PY
cat >client.mjs <<'JS'
const [major, url] = process.argv.slice(2);
const one = '@modelcontextprotocol/sdk';
const [{Client}, {StreamableHTTPClientTransport}] = major === '1'
  ? [await import(`${one}/client/index.js`), await import(`${one}/client/streamableHttp.js`)]
  : Array(2).fill(await import('@modelcontextprotocol/client'));
const {ElicitRequestSchema} = await import(`${one}/types.js`);

const client = new Client({name: 'client', version: '1'}, {capabilities: {elicitation: {form: {}}}});
client.setRequestHandler(major === '1' ? ElicitRequestSchema : 'elicitation/create', ({params}) => {
  console.log(params.message);
  return {action: 'decline'};
});
await client.connect(new StreamableHTTPClientTransport(new URL(url)));
await client.callTool({name: 'delete', arguments: {}});
await client.close();
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
[ "$seen" = 'Python 1.30.0, the stream ends in order: resumed after 1, 2; asked 1, answered 1
Python 2.3.0, the stream ends in order: resumed after 1, 2; asked 1, answered 1
TypeScript 1.32.2, the stream ends in order: resumed after 1, 2; asked 1, answered 1
TypeScript 2.4.0, the stream ends in order: resumed after 1, 2; asked 1, answered 1
Python 1.30.0, the stream breaks: resumed after 1, 1; asked 2, answered 2
Python 2.3.0, the stream breaks: resumed after 1, 1; asked 2, answered 2
TypeScript 1.32.2, the stream breaks: resumed after 1, 2; asked 1, answered 1
TypeScript 2.4.0, the stream breaks: resumed after 1, 2; asked 1, answered 1' ]
