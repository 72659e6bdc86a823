"""A server that writes down each call by its id, so that a judge can count what was carried out.

    python3 -I -S ledger.py LOG PORT      over HTTP on 127.0.0.1 (port 0: a free one); prints its URL

It outlives the hosts in front of it. Its tools `note` and `confirmed` append the argument `id` to LOG, and answer with
it after `seconds`. Its resources can be subscribed to: `POST /touch` says that all of them were updated. Nothing but
the standard library.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

RESOURCES = 4
TOOLS = ("note", "confirmed", *(f"tool{n}" for n in range(300)))
"""So many that a host gives the list in pages."""
SCHEMA = {"type": "object", "properties": {"id": {"type": "string"}, "seconds": {"type": "number"}}}


class Ledger:
    def __init__(self, log: str) -> None:
        self._log = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._lock = threading.Lock()
        self._streams: set[queue.SimpleQueue[bytes | None]] = set()

    def result_of(self, method: str, params: Mapping[str, Any]) -> object:
        """The result of a request; None if there is no such method."""
        if method == "initialize":
            capabilities = {"tools": {}, "resources": {"subscribe": True}}
            version = min(params["protocolVersion"], "2025-11-25")
            info = {"name": "ledger", "version": "1"}
            return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}
        if method in ("ping", "resources/subscribe", "resources/unsubscribe"):
            return {}
        if method == "tools/list":
            return {"tools": [{"name": name, "inputSchema": SCHEMA} for name in TOOLS]}
        if method == "resources/list":
            return {"resources": [{"uri": f"memo://{n}", "name": f"memo {n}"} for n in range(RESOURCES)]}
        if method == "resources/read":
            return {"contents": [{"uri": params["uri"], "text": "as it was"}]}
        if method == "tools/call":
            arguments = params["arguments"]
            os.write(self._log, f"{arguments['id']}\n".encode())
            threading.Event().wait(arguments.get("seconds", 0))
            return {"content": [{"type": "text", "text": arguments["id"]}]}
        return None

    def touch(self) -> None:
        for n in range(RESOURCES):
            self.tell("notifications/resources/updated", {"uri": f"memo://{n}"})

    def tell(self, method: str, params: object) -> None:
        with self._lock:
            for stream in self._streams:
                stream.put(json.dumps({"jsonrpc": "2.0", "method": method, "params": params}).encode())

    def follow(self, stream: queue.SimpleQueue[bytes | None]) -> None:
        with self._lock:
            self._streams.add(stream)

    def leave(self, stream: queue.SimpleQueue[bytes | None]) -> None:
        with self._lock:
            self._streams.discard(stream)


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    ledger: Ledger


class Handler(BaseHTTPRequestHandler):
    """Without sessions: what it keeps is in its log."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        stream: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.server.ledger.follow(stream)
        try:
            self.wfile.write(b": here\n\n")
            while True:
                try:
                    message = stream.get(timeout=1)
                    self.wfile.write(b"data: %s\n\n" % message)
                except queue.Empty:
                    self.wfile.write(b": still here\n\n")  # so that an end of the client is noticed
        except OSError:
            self.close_connection = True
        finally:
            self.server.ledger.leave(stream)

    def do_DELETE(self) -> None:
        self._send(405, b"")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        if self.path == "/touch":
            self.server.ledger.touch()
            self._send(202, b"")
            return
        message = json.loads(raw)
        if "id" not in message or "method" not in message:
            self._send(202, b"")
            return
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        result = self.server.ledger.result_of(message["method"], message.get("params", {}))
        if result is None:
            self._send(200, json.dumps({**answer, "error": {"code": -32601, "message": "Method not found"}}).encode())
        else:
            self._send(200, json.dumps({**answer, "result": result}).encode())

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """It says enough in its log."""


if __name__ == "__main__":
    with Server(("127.0.0.1", int(sys.argv[2])), Handler) as server:
        server.ledger = Ledger(sys.argv[1])
        print(f"http://127.0.0.1:{server.server_address[1]}/mcp", flush=True)
        server.serve_forever()
