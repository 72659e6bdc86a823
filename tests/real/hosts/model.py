"""The model of the tests: an endpoint on loopback that calls one tool, and keeps what came of it."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import urlsplit

from tests.kit.web_server import answering

from .wires import MODEL, WIRES, Answer, Asked, Body, Tool


@dataclass(frozen=True)
class Call:
    """The tool that the model calls, by its name at its server, and a text that only a result of it holds."""

    tool: str
    arguments: Mapping[str, object]
    mark: str


SEARCHES = ("ToolSearch", "tool_search")
"""Tools of hosts that find those of servers, where these are not offered at first: Claude Code's and Qwen Code's."""
BRIDGE = "tool_call"
"""Qwen Code's tool that calls one that was found."""


@dataclass
class Turn:
    """The requests of a host while the model had one call to make.

    Attributes:
        requests: how many there were.
        offered: the tools that were offered, by the last request that offered any.
        searched: what the host's search for the tool gave, as JSON text; empty before that, None without a search.
        called: the tool that the model called, by the name that the host gave it.
        result: of the call, as JSON text.
    """

    call: Call
    requests: int = 0
    offered: Sequence[Tool] = ()
    searched: str | None = None
    called: Tool | None = None
    result: str | None = None

    def answer(self, asked: Asked) -> Answer:
        """The answer of the model: one call, as soon as the tool is offered, and then the end of the turn. If it is not
        offered, and the host has a search, one search."""
        self.requests += 1
        self.offered = asked.tools or self.offered
        if self.called:
            if asked.results:
                self.result = asked.results[-1]
            return Answer(f"answer_{self.requests}")
        if self.searched == "" and asked.results:
            self.searched = asked.results[-1]
        by_name = {tool.name: tool for tool in asked.tools}
        self.called = next((tool for tool in asked.tools if tool.name.endswith(self.call.tool)), None)
        if self.called:
            return Answer(f"answer_{self.requests}", self.called, self.call.arguments)
        if self.searched and BRIDGE in by_name and (found := re.search(rf"\w+{self.call.tool}\b", self.searched)):
            self.called = by_name[BRIDGE]
            return Answer(f"answer_{self.requests}", self.called, {"name": found[0], "arguments": self.call.arguments})
        search = next((by_name[name] for name in SEARCHES if name in by_name), None)
        if search and self.searched is None:
            self.searched = ""
            return Answer(f"answer_{self.requests}", search, {"query": self.call.tool})
        return Answer(f"answer_{self.requests}")

    @property
    def problem(self) -> str:
        """Why the call did not go through; empty if it did."""
        if not self.requests:
            return "the host asked no model"
        if not self.called:
            return "no tools were offered" if not self.offered else "the tool was not offered"
        if self.result is None:
            return "the call had no result"
        return "" if self.call.mark in self.result else f"the result was {self.result[:200]}"


class Model:
    """The endpoint, at `url`. `turn` is replaced before each start of a host."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.turn = Turn(Call("", {}, ""))
        self._lock = threading.Lock()

    def answer(self, path: str, body: Body) -> tuple[str, bytes]:
        """The media type and the bytes of the response to a POST."""
        for wire in WIRES:
            if path.endswith(wire.path):
                with self._lock:
                    answer = self.turn.answer(wire.read(body))
                if not body.get("stream") and "stream" not in path:
                    return "application/json", json.dumps(wire.whole(answer)).encode()
                return "text/event-stream", b"".join(_event(*event) for event in wire.events(answer))
        return "application/json", b'{"input_tokens": 1, "totalTokens": 1}'  # what is asked for else is a count


def _event(name: str, data: object) -> bytes:
    text = data if isinstance(data, str) else json.dumps(data)
    return (f"event: {name}\n" if name else "").encode() + f"data: {text}\n\n".encode()


@contextmanager
def model() -> Iterator[Model]:
    """The endpoint, for the block."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    made = Model(f"http://127.0.0.1:{server.server_port}")
    server.RequestHandlerClass = type("Handler", (_Handler,), {"model": made})
    with answering(server):
        yield made


class _Handler(BaseHTTPRequestHandler):
    model: Model
    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        entry = {"id": MODEL, "object": "model", "type": "model", "created": 1, "owned_by": "tests"}
        self._send("application/json", json.dumps({"object": "list", "data": [entry]}).encode())

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        path = urlsplit(self.path).path
        self._send(*self.model.answer(path, json.loads(body or b"{}")))

    def _send(self, media_type: str, body: bytes) -> None:
        self.send_response(200)
        self.send_header("Content-Type", media_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name in http.server
        """Nothing: the turn keeps what matters."""
