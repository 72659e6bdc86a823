#!/usr/bin/env bash
# A request whose connection is refused, or breaks before the head of its response, ends the Python SDK's client as a
# whole, with its session and all other requests.
#
# Packages: PyPI mcp 2.3.0. Needs Python 3.11 with venv.
#
# Expected: the call fails, as one whose response stream breaks does (`SSE stream ended without a response`), and the
# client can send the next one: the session is still valid (2025-11-25, "Session Management"), and servers restart.
#
# Seen on 2026-11-29: the task that sends a request does not catch the error of its HTTP library, so it leaves the task
# group of the transport (`StreamableHTTPTransport.post_writer`, mcp/client/streamable_http.py). `Client` ends with an
# exception group around the ConnectError or RemoteProtocolError; `except` around the call sees a cancellation only. An
# `httpx2.AsyncHTTPTransport(retries=…)` in the client helps where no connection can be made, and not where one breaks.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
cd "$folder"
python3 -m venv venv
venv/bin/pip install --quiet --disable-pip-version-check mcp==2.3.0 2>/dev/null

cat >check.py <<'PY'
"""Three calls of one client. The server closes the connection of the second, or refuses it, and serves the third."""

import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import anyio
from mcp import Client

HOW = sys.argv[1]
calls: list[str] = []


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        self.answer(405, b"")

    do_DELETE = do_GET

    def do_POST(self) -> None:
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "id" not in message:
            return self.answer(202, b"")
        method, result = message["method"], {}
        if method == "initialize":
            version = message["params"]["protocolVersion"]
            result = {"protocolVersion": version, "capabilities": {}, "serverInfo": {"name": "s", "version": "1"}}
        elif method == "tools/list":
            result = {"tools": []}
        elif method == "tools/call":
            calls.append(message["params"]["name"])
            if calls[-1] == "two" and HOW == "broken":
                self.close_connection = True
                return None
            result = {"content": []}
        self.answer(200, json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        if HOW == "refused":
            self.send_header("Connection", "close")
            self.close_connection = True
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None: ...


class Server(ThreadingHTTPServer):
    daemon_threads = True


def serve(port: int = 0) -> Server:
    server = Server(("127.0.0.1", port), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


async def main() -> None:
    server = serve()
    port = server.server_address[1]
    async with Client(f"http://127.0.0.1:{port}/mcp", mode="legacy", read_timeout_seconds=10) as client:
        for name in ("one", "two", "three"):
            if name == "two" and HOW == "refused":
                server.shutdown()
                server.server_close()
            try:
                await client.call_tool(name)
                print(f"{HOW}: {name} was answered")
            except Exception as problem:
                print(f"{HOW}: {name} failed: {type(problem).__name__}")
            if name == "two" and HOW == "refused":
                server = serve(port)


try:
    anyio.run(main)
except BaseException as problem:
    while isinstance(problem, BaseExceptionGroup):
        problem = problem.exceptions[0]
    print(f"{HOW}: the client has ended: {type(problem).__name__}")
PY
seen=$(for how in broken refused; do venv/bin/python check.py $how 2>/dev/null; done)
echo "$seen"
[ "$seen" = 'broken: one was answered
broken: the client has ended: RemoteProtocolError
refused: one was answered
refused: the client has ended: ConnectError' ]
