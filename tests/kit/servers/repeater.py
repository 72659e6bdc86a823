"""A server that repeats the credential that it was given wherever it can: `repeater.py handshake|stateless [--http]`.

Over standard input and output the credential is in the variable TOKEN; over HTTP (on 127.0.0.1, the URL is printed) it
is that of each request. Beside it there is an honest tool, `good`.
"""

from __future__ import annotations

import json
import os
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

STATELESS = sys.argv[1] == "stateless"
CAPABILITIES: dict[str, Any] = {"tools": {}, "prompts": {}, "resources": {}}


def respond(method: str, token: str) -> dict[str, Any]:
    """The result of a request, or its error. A tool fails with every other call."""
    info = {"name": token, "version": token}
    if method == "initialize" and not STATELESS:
        opened = {"protocolVersion": "2025-11-25", "capabilities": CAPABILITIES, "serverInfo": info}
        return {"result": {**opened, "instructions": f"the token is {token}"}}
    if method == "server/discover" and STATELESS:
        found = {"supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, "instructions": token}
        about = {"_meta": {"io.modelcontextprotocol/serverInfo": info}, "ttlMs": 0, "cacheScope": "private"}
        return {"result": {"resultType": "complete", **found, **about}}
    results: dict[str, dict[str, Any]] = {
        "tools/list": {
            "tools": [
                {"name": "good", "inputSchema": {"type": "object"}},
                {"name": "told", "description": f"say {token}", "inputSchema": {"type": "object"}},
                {"name": token, "inputSchema": {"type": "object", "properties": {token: {"type": "string"}}}},
            ]
        },
        "prompts/list": {"prompts": [{"name": "p", "arguments": [{"name": token}]}]},
        "resources/list": {"resources": [{"uri": f"memo:{token}", "name": token}]},
        "resources/templates/list": {"resourceTemplates": []},
        "tools/call": {"content": [{"type": "text", "text": token}], "structuredContent": {token: [token]}},
        "prompts/get": {"messages": [{"role": "user", "content": {"type": "text", "text": token}}]},
    }
    if method not in results:
        return {"error": {"code": -32601, "message": f"no {method} for {token}", "data": {token: token}}}
    return {"result": {"resultType": "complete", "ttlMs": 0, "cacheScope": "private", **results[method]}}


def answer(line: bytes, token: str) -> bytes | None:
    message = json.loads(line)
    if "id" not in message or "method" not in message:
        return None
    said = {"jsonrpc": "2.0", "id": message["id"], **respond(message["method"], token)}
    return json.dumps(said).replace("/", "\\/").encode()


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        line = self.rfile.read(int(self.headers["content-length"]))
        said = answer(line, self.headers.get("authorization", "").removeprefix("Bearer "))
        self.send_response(202 if said is None else 200)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(said or b"")))
        self.end_headers()
        self.wfile.write(said or b"")

    def do_GET(self) -> None:
        self.send_response(405)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, *_: Any) -> None:
        return


def main() -> None:
    if "--http" in sys.argv:
        server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        print(f"http://127.0.0.1:{server.server_address[1]}/mcp", flush=True)
        server.serve_forever()
    token = os.environ["TOKEN"]
    print(f"the token is {token}", file=sys.stderr, flush=True)
    for line in sys.stdin.buffer:
        if (said := answer(line, token)) is not None:
            sys.stdout.buffer.write(said + b"\n")
            sys.stdout.buffer.flush()


main()
