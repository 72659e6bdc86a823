"""The server of upstream.c in Python, for machines without a compiler. It costs more, but that is not what is measured.

upstream.py handshake|stateless http|stdio [TOOLS]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import httptools
import trio

STATELESS = sys.argv[1] == "stateless"
INFO = {"name": "bench", "version": "1"}
CAPABILITIES: dict[str, Any] = {"tools": {}}
FRESH = {"ttlMs": 0, "cacheScope": "private"} if STATELESS else {}
COMPLETE = {"resultType": "complete"} if STATELESS else {}


def make_tools(count: int) -> list[dict[str, Any]]:
    text, size = {"type": "string"}, {"type": "integer"}
    echo = {"type": "object", "properties": {"text": text, "size": size}, "required": ["text"]}
    query = {"type": "string", "description": "Words that must all be there."}
    limit = {"type": "integer", "minimum": 1, "maximum": 100, "default": 20}
    schema = {"type": "object", "properties": {"query": query, "limit": limit}, "required": ["query"]}
    description = "Looks for the records that match a query, in the order in which they were changed."
    return [{"name": "echo", "description": "Gives back its text.", "inputSchema": echo}] + [
        {"name": f"tool_{number:03}", "description": description, "inputSchema": schema} for number in range(1, count)
    ]


TOOLS = make_tools(int(sys.argv[3]) if len(sys.argv) > 3 else 1)


def answer(raw: bytes) -> tuple[int, bytes]:
    """The HTTP status and the answer to a message; 202 without one for a notification."""
    message = json.loads(raw)
    if "id" not in message or "method" not in message:
        return 202, b""
    result = result_of(message["method"], message.get("params", {}))
    body: dict[str, Any] = {"jsonrpc": "2.0", "id": message["id"]}
    if result is None:
        body["error"] = {"code": -32601, "message": "Method not found"}
    else:
        body["result"] = result
    return 404 if result is None and STATELESS else 200, json.dumps(body, separators=(",", ":")).encode()


def result_of(method: str, params: dict[str, Any]) -> dict[str, Any] | None:
    if method == "tools/call":
        arguments = params["arguments"]
        text = arguments["text"] + "x" * arguments.get("size", 0)
        return {**COMPLETE, "content": [{"type": "text", "text": text}]}
    if method == "tools/list":
        return {**COMPLETE, "tools": TOOLS, **FRESH}
    if method == "ping" and not STATELESS:
        return {}
    if method == "initialize" and not STATELESS:
        return {"protocolVersion": params["protocolVersion"], "capabilities": CAPABILITIES, "serverInfo": INFO}
    if method == "server/discover" and STATELESS:
        named = {"io.modelcontextprotocol/serverInfo": INFO}
        return {**COMPLETE, "supportedVersions": ["2026-07-28"], "capabilities": CAPABILITIES, **FRESH, "_meta": named}
    return None


def serve_stdio() -> None:
    for line in sys.stdin.buffer:
        status, body = answer(line)
        if status != 202:
            sys.stdout.buffer.write(body + b"\n")
            sys.stdout.buffer.flush()


class Requests:
    """The requests of one connection, answered as they are complete."""

    def __init__(self) -> None:
        self.parser = httptools.HttpRequestParser(self)
        self.body = b""
        self.answers: list[bytes] = []

    def on_body(self, data: bytes) -> None:
        self.body += data

    def on_message_complete(self) -> None:
        method = self.parser.get_method()
        status, body = answer(self.body) if method == b"POST" else (200 if method == b"DELETE" else 405, b"")
        session = b"" if STATELESS else b"Mcp-Session-Id: 6f1c0a52-bench\r\n"
        head = b"HTTP/1.1 %d OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n"
        self.answers += [head % (status, len(body), session), body]
        self.body = b""


async def serve_client(client: trio.SocketStream) -> None:
    requests = Requests()
    while data := await client.receive_some(65536):
        requests.parser.feed_data(data)
        if requests.answers:
            await client.send_all(b"".join(requests.answers))
            requests.answers.clear()


async def serve_http() -> None:
    (listener,) = await trio.open_tcp_listeners(0, host="127.0.0.1", backlog=4096)
    print(f"http://127.0.0.1:{listener.socket.getsockname()[1]}/mcp", flush=True)
    await trio.serve_listeners(serve_client, [listener])


if __name__ == "__main__":
    if sys.argv[2] == "stdio":
        serve_stdio()
    else:
        trio.run(serve_http)
