"""A server that writes down what it hears, byte for byte, and whose tools are named after what they do.

    python3 -I -S recorder.py LOG                  over standard input and output
    python3 -I -S recorder.py LOG --http PORT      over HTTP on 127.0.0.1; prints its URL (port 0: a free one)

Nothing but the standard library, and no thread but HTTP's own. A tool that waits holds up nothing.
"""

from __future__ import annotations

import json
import os
import queue
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

# Everything a number, a string or a member can be that a decoder and an encoder would not give back.
ODD = (
    b'{"content":[{"type":"text","text":"\\ud83d\\ude00 cut, \\u00e9 and \xc3\xa9, \\/ and /"}],'
    b'"structuredContent": {"price":1.10,"huge":1E400,"long":12345678901234567890123,"less":-0.0,"tiny":1e-400},'
    b'"vendor/unknown":[ null,{"b":1,"a":2.50 } ],"_meta":{"io.example/trace":"\\ud83d\\ude00"}}'
)
LINKED = (
    b'{"content":[{"type":"resource_link","uri":"memo://1","name":"one","size":1.0,"unknown":"\\ud83d\\ude00"}],'
    b'"structuredContent":{"uri":"memo://1","n":12345678901234567890123}}'
)

Say = Callable[[bytes | None], None]
"""Sends a message to whoever sent the request; None is the end, when no answer will come."""


class Recorder:
    def __init__(self, log: Path) -> None:
        self._log = log.open("ab", buffering=0)
        self._lock = threading.Lock()
        self._tools = ["echo", "odd", "linked", "hang", "steps", "together", "grow", "much", "fail", "exit"]
        self._hanging: dict[object, Say] = {}
        self._waiting: list[tuple[Any, Say, str]] = []

    def take(self, raw: bytes, say: Say) -> None:
        """One message, whatever it is. What is said to it, now or later, goes to `say`."""
        with self._lock:
            self._log.write(raw + b"\n")
            message = json.loads(raw)
            if "id" in message and "method" in message:
                self._called(message, raw, say)
            elif message.get("method") == "notifications/cancelled":
                waiting = self._hanging.pop(message["params"]["requestId"], None)
                if waiting is not None:
                    waiting(None)

    def _called(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        method, params = message["method"], message.get("params", {})
        if method == "initialize":
            capabilities = {"tools": {"listChanged": True}}
            info = {"name": "recorder", "version": "1"}
            version = params["protocolVersion"]
            self._answer(message, say, {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info})
        elif method == "ping":
            self._answer(message, say, {})
        elif method == "tools/list":
            tools = [{"name": name, "inputSchema": {"type": "object"}} for name in self._tools]
            self._answer(message, say, {"tools": tools})
        elif method == "tools/call":
            getattr(self, f"_{params['name']}")(message, raw, say)
        else:
            error = {"code": -32601, "message": "Method not found"}
            say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "error": error}).encode())

    def _answer(self, message: dict[str, Any], say: Say, result: object) -> None:
        say(json.dumps({"jsonrpc": "2.0", "id": message["id"], "result": result}).encode())

    def _text(self, message: dict[str, Any], say: Say, text: str, **more: object) -> None:
        self._answer(message, say, {"content": [{"type": "text", "text": text}], **more})

    def _progress(self, message: dict[str, Any], say: Say, progress: int, note: str) -> None:
        token = message["params"].get("_meta", {}).get("progressToken")
        if token is not None:
            params = {"progressToken": token, "progress": progress, "message": note}
            say(json.dumps({"jsonrpc": "2.0", "method": "notifications/progress", "params": params}).encode())

    # The tools

    def _echo(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        """The request itself, as it came."""
        self._text(message, say, raw.decode())

    def _odd(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        say(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], ODD))

    def _linked(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        say(b'{"jsonrpc":"2.0","id":%d,"result":%b}' % (message["id"], LINKED))

    def _hang(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        """Reports progress once, and never answers."""
        self._hanging[message["id"]] = say
        self._progress(message, say, 1, "waiting")

    def _steps(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        arguments = message["params"]["arguments"]
        for step in range(1, arguments["count"] + 1):
            self._progress(message, say, step, arguments["note"])
        self._text(message, say, arguments["note"])

    def _together(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        """Answers once `of` such calls are waiting, the last one first; each gets its own note back."""
        arguments = message["params"]["arguments"]
        self._progress(message, say, 1, arguments["note"])
        self._waiting.append((message, say, arguments["note"]))
        if len(self._waiting) == arguments["of"]:
            for waiting, say_to, note in reversed(self._waiting):
                self._progress(waiting, say_to, 2, note)
                self._text(waiting, say_to, note)
            self._waiting.clear()

    def _grow(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        """One more tool, which does what `echo` does."""
        name = message["params"]["arguments"]["name"]
        self._tools.append(name)
        setattr(self, f"_{name}", self._echo)
        self._text(message, say, f"{name} is new")
        say(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')

    def _much(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        self._text(message, say, "m" * message["params"]["arguments"]["size"])

    def _fail(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        self._text(message, say, "It did not work.\n\x1b[31mred\x1b[0m", isError=True)

    def _exit(self, message: dict[str, Any], raw: bytes, say: Say) -> None:
        os._exit(message["params"]["arguments"]["status"])


def serve_stdio(recorder: Recorder) -> None:
    def say(message: bytes | None) -> None:
        if message is not None:
            sys.stdout.buffer.write(message + b"\n")
            sys.stdout.buffer.flush()

    for line in sys.stdin.buffer:
        recorder.take(line.rstrip(b"\n"), say)


class Server(ThreadingHTTPServer):
    request_queue_size = 256
    daemon_threads = True
    recorder: Recorder


class Handler(BaseHTTPRequestHandler):
    """Without sessions and without a standing stream, both of which a server may do without."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Server

    def do_GET(self) -> None:
        self._send(405, b"")

    def do_DELETE(self) -> None:
        self._send(405, b"")

    def do_POST(self) -> None:
        raw = self.rfile.read(int(self.headers["Content-Length"]))
        said: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self.server.recorder.take(raw, said.put)
        if "id" not in json.loads(raw):
            self._send(202, b"")
            return
        first = said.get()
        if first is not None and b'"method"' not in first:
            self._send(200, first)
            return
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        message = first
        while message is not None:
            self.wfile.write(b"data: " + message + b"\n\n")
            message = said.get() if b'"method"' in message else None
        self.close_connection = True

    def _send(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """It says enough in its log."""


def serve_http(recorder: Recorder, port: int) -> None:
    with Server(("127.0.0.1", port), Handler) as server:
        server.recorder = recorder
        print(f"http://127.0.0.1:{server.server_address[1]}/mcp", flush=True)
        server.serve_forever()


if __name__ == "__main__":
    if "--http" in sys.argv:
        serve_http(Recorder(Path(sys.argv[1])), int(sys.argv[-1]))
    else:
        serve_stdio(Recorder(Path(sys.argv[1])))
