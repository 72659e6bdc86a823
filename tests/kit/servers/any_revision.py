"""A server that speaks exactly one revision of the protocol, over any transport.

    python3 -I -S any_revision.py --revision R --transport stdio
    python3 -I -S any_revision.py --revision R --transport http [--port 0]     prints its URL first
    python3 -I -S any_revision.py --revision R --transport sse  [--port 0]     prints its URL first

It offers what its revision knows and is strict about what it gets. Its tools are named after what they do; those that
ask the client something give back what came, as JSON text. Everything it remembers belongs to one session. Nothing but
the standard library, since it is started by the dozen.
"""

from __future__ import annotations

import argparse
import base64
import itertools
import json
import queue
import secrets
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, ClassVar

AUDIO_SINCE = COMPLETIONS_SINCE = PROGRESS_MESSAGE_SINCE = "2025-03-26"
LINKS_SINCE = STRUCTURED_SINCE = HEADER_SINCE = "2025-06-18"
CHOICES_SINCE = URL_SINCE = PRIMING_SINCE = "2025-11-25"
REVISIONS = ("2024-11-05", "2025-03-26", "2025-06-18", "2025-11-25")

LEVELS = ("debug", "info", "notice", "warning", "error", "critical", "alert", "emergency")
PATIENCE = 10.0
"""Seconds for which an answer to a question is waited for."""
HEARTBEAT = 15.0
BLOB = base64.b64encode(b"matrix").decode()
PEOPLE = ("albert", "alice", "bob")
TOOLS = (
    *("echo", "rich", "progress", "wait", "was_cancelled", "grow", "shrink", "touch", "log", "level"),
    *("ask_sampling", "ask_form", "ask_url", "ask_roots", "need_url"),
)

Message = dict[str, Any]
Say = Callable[[Message | None], None]
"""Sends a message to whoever sent the request; None is the end, when no answer will come."""


class Refusal(Exception):
    """The request is answered with this error."""

    def __init__(self, code: int, message: str, data: object = None) -> None:
        super().__init__(message)
        self.body = {"code": code, "message": message} | ({} if data is None else {"data": data})


class Session:
    """One client. `unasked` carries what belongs to no request."""

    def __init__(self, revision: str, unasked: Say) -> None:
        self._revision = revision
        self._unasked = unasked
        self._initialized = False
        self._grown: list[str] = []
        self._subscribed: set[str] = set()
        self._level = LEVELS[0]
        self._waiting: dict[object, tuple[str, Say]] = {}
        self._cancelled: set[str] = set()
        self._ids = itertools.count(1)
        self._asked: dict[object, queue.SimpleQueue[Message]] = {}

    def take(self, message: Message, say: Say) -> None:
        """One message. What is said to it, now or later, goes to `say`. Never waits: a call has its own thread."""
        if "method" not in message:
            asked = self._asked.pop(message.get("id"), None)
            if asked is not None:
                asked.put(message)
        elif "id" not in message:
            self._told(message["method"], message.get("params", {}))
        elif message["method"] == "tools/call":
            threading.Thread(target=self._answer, args=(message, say), daemon=True).start()
        else:
            self._answer(message, say)

    def _told(self, method: str, params: Message) -> None:
        if method == "notifications/initialized":
            self._initialized = True
        elif method == "notifications/cancelled" and params.get("requestId") in self._waiting:
            key, say = self._waiting.pop(params["requestId"])
            self._cancelled.add(key)
            say(None)

    def _answer(self, message: Message, say: Say) -> None:
        answer = {"jsonrpc": "2.0", "id": message["id"]}
        method, params = message["method"], message.get("params", {})
        try:
            if not self._initialized and method not in ("initialize", "ping"):
                raise Refusal(-32600, "notifications/initialized has not come yet")
            called = method == "tools/call"
            result = self._call(message["id"], params, say) if called else self._other(method, params)
        except Refusal as refusal:
            say({**answer, "error": refusal.body})
            return
        if result is not None:
            say({**answer, "result": result})

    def _other(self, method: str, params: Message) -> Message:
        """Everything but a call."""
        if method == "initialize":
            return self._opening()
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [self._tool(name) for name in (*TOOLS, *self._grown)]}
        if method == "resources/list":
            return {"resources": [{"uri": "note://one", "name": "one"}]}
        if method == "resources/templates/list":
            return {"resourceTemplates": [{"uriTemplate": "note://{name}", "name": "notes"}]}
        if method == "resources/read":
            uri = params["uri"]
            return {"contents": [{"uri": uri, "mimeType": "text/plain", "text": f"what {uri} says"}]}
        if method in ("resources/subscribe", "resources/unsubscribe"):
            (self._subscribed.add if method == "resources/subscribe" else self._subscribed.discard)(params["uri"])
            return {}
        if method == "prompts/list":
            return {"prompts": [{"name": "letter", "arguments": [{"name": "to", "required": True}]}]}
        if method == "prompts/get":
            said = [{"type": "text", "text": f"Dear {params['arguments']['to']}"}, *self._blocks()]
            return {"messages": [{"role": "user", "content": block} for block in said]}
        if method == "completion/complete":
            return self._completion(params)
        if method == "logging/setLevel":
            if params.get("level") not in LEVELS:
                raise Refusal(-32602, "no such level")
            self._level = params["level"]
            return {}
        raise Refusal(-32601, "Method not found")

    def _opening(self) -> Message:
        capabilities: Message = {
            "tools": {"listChanged": True},
            "resources": {"subscribe": True},
            "prompts": {},
            "logging": {},
        }
        if self._revision >= COMPLETIONS_SINCE:
            capabilities["completions"] = {}
        info = {"name": "any revision", "version": "1"}
        return {"protocolVersion": self._revision, "capabilities": capabilities, "serverInfo": info}

    def _tool(self, name: str) -> Message:
        tool: Message = {"name": name, "inputSchema": {"type": "object"}}
        if name == "rich" and self._revision >= STRUCTURED_SINCE:
            tool["outputSchema"] = {"type": "object", "properties": {"price": {"type": "number"}}}
        return tool

    def _completion(self, params: Message) -> Message:
        ref = params["ref"]
        expected = {"ref/prompt": ("name", "letter", "to"), "ref/resource": ("uri", "note://{name}", "name")}
        member, target, argument = expected.get(ref.get("type"), ("", "", ""))
        if not member or ref.get(member) != target or params["argument"]["name"] != argument:
            raise Refusal(-32602, "nothing like that is completed here")
        values = [name for name in PEOPLE if name.startswith(params["argument"]["value"])]
        return {"completion": {"values": values, "total": len(values), "hasMore": False}}

    def _blocks(self) -> list[Message]:
        """One content block of every kind that the revision knows, but text."""
        blocks: list[Message] = [
            {"type": "image", "data": BLOB, "mimeType": "image/png"},
            {"type": "resource", "resource": {"uri": "note://one", "mimeType": "text/plain", "text": "a note"}},
        ]
        if self._revision >= AUDIO_SINCE:
            blocks.append({"type": "audio", "data": BLOB, "mimeType": "audio/wav"})
        if self._revision >= LINKS_SINCE:
            blocks.append({"type": "resource_link", "uri": "note://two", "name": "two", "mimeType": "text/plain"})
        return blocks

    def _call(self, id: object, params: Message, say: Say) -> Message | None:
        name, arguments = params["name"], params.get("arguments", {})
        if name not in (*TOOLS, *self._grown):
            raise Refusal(-32602, f"Unknown tool: {name}")
        key = str(arguments.get("key", ""))
        if name == "wait":
            self._waiting[id] = (key, say)
            return None
        if name == "rich":
            return self._rich(key)
        if name == "progress":
            self._progress(params.get("_meta", {}), say)
            return text("done")
        if name == "need_url":
            needed = {"mode": "url", "elicitationId": key, "url": f"https://example.com/{key}", "message": "Sign in"}
            raise Refusal(-32042, "Sign in first", {"elicitations": [needed]})
        if name.startswith("ask_"):
            came = getattr(self, f"_{name}")(say, key, arguments.get("variant", "plain"))
            return text(json.dumps(came))
        return text(self._do(name, key, say))

    def _do(self, name: str, key: str, say: Say) -> str:
        """The tools that are done at once."""
        if name == "echo":
            return key
        if name == "was_cancelled":
            waiting = key in [waiting for waiting, _ in self._waiting.values()]
            return "waiting" if waiting else "cancelled" if key in self._cancelled else "unknown"
        if name in ("grow", "shrink"):
            (self._grown.append if name == "grow" else self._grown.remove)(key)
            self._notify(self._unasked, "notifications/tools/list_changed")
            return "done"
        if name == "touch":
            if key not in self._subscribed:
                return "nobody has subscribed"
            self._notify(self._unasked, "notifications/resources/updated", {"uri": key})
            return "told"
        if name == "log":
            for level in LEVELS[LEVELS.index(self._level) :]:
                self._notify(say, "notifications/message", {"level": level, "logger": "matrix", "data": {"key": key}})
            return "done"
        return self._level if name == "level" else f"{name} is new here"

    def _rich(self, key: str) -> Message:
        result: Message = {"content": [{"type": "text", "text": key}, *self._blocks()]}
        if self._revision >= STRUCTURED_SINCE:
            result["structuredContent"] = {"price": 1.5}
        return result

    def _progress(self, meta: Message, say: Say) -> None:
        if "progressToken" not in meta:
            return
        for step in (1, 2, 3):
            report = {"progressToken": meta["progressToken"], "progress": step, "total": 3}
            more = {"message": f"step {step}"} if self._revision >= PROGRESS_MESSAGE_SINCE else {}
            self._notify(say, "notifications/progress", report | more)

    def _ask_sampling(self, say: Say, key: str, variant: str) -> Message:
        content: Message = {"type": "text", "text": key}
        if variant == "audio":
            content = {"type": "audio", "data": BLOB, "mimeType": "audio/wav"}
        messages = [{"role": "user", "content": content}]
        params: Message = {"messages": messages, "maxTokens": 10, "systemPrompt": f"This is for {key}"}
        if variant == "context":
            params["includeContext"] = "allServers"
        if variant == "tools":
            params |= {"tools": [{"name": "dig", "inputSchema": {"type": "object"}}], "toolChoice": {"mode": "auto"}}
        return self._ask(say, "sampling/createMessage", params)

    def _ask_form(self, say: Say, key: str, variant: str) -> Message:
        choice: Message = {"type": "string", "enum": ["r", "g"], "enumNames": ["Red", "Green"]}
        name: Message = {"type": "string"}
        if self._revision >= CHOICES_SINCE:
            titles = [{"const": "r", "title": "Red"}, {"const": "g", "title": "Green"}]
            choice = {"type": "string", "oneOf": titles, "default": "r"}
            name["default"] = "Ann"
        properties = {"name": name, "sure": {"type": "boolean", "default": True}, "colour": choice}
        if variant == "many":
            properties = {"colours": {"type": "array", "items": {"type": "string", "enum": ["r", "g"]}}}
        schema = {"type": "object", "properties": properties, "required": list(properties)[:1]}
        return self._ask(say, "elicitation/create", {"message": f"Fill in {key}", "requestedSchema": schema})

    def _ask_url(self, say: Say, key: str, variant: str) -> Message:
        where = {"elicitationId": key, "url": f"https://example.com/{key}"}
        came = self._ask(say, "elicitation/create", {"mode": "url", "message": f"Sign in for {key}", **where})
        if "result" in came:
            self._notify(self._unasked, "notifications/elicitation/complete", {"elicitationId": key})
        return came

    def _ask_roots(self, say: Say, key: str, variant: str) -> Message:
        return self._ask(say, "roots/list", {})

    def _ask(self, say: Say, method: str, params: Message) -> Message:
        """What came back: an object with `result`, `error` or, if nothing did, `silence`."""
        id = f"question {next(self._ids)}"
        answers = self._asked[id] = queue.SimpleQueue()
        say({"jsonrpc": "2.0", "id": id, "method": method, "params": params})
        try:
            came = answers.get(timeout=PATIENCE)
        except queue.Empty:
            return {"silence": PATIENCE}
        return {member: came[member] for member in ("result", "error") if member in came}

    def _notify(self, say: Say, method: str, params: Message | None = None) -> None:
        say({"jsonrpc": "2.0", "method": method} | ({} if params is None else {"params": params}))


def text(said: str) -> Message:
    return {"content": [{"type": "text", "text": said}]}


def serve_stdio(revision: str) -> None:
    lock = threading.Lock()

    def say(message: Message | None) -> None:
        if message is not None:
            with lock:
                sys.stdout.buffer.write(json.dumps(message).encode() + b"\n")
                sys.stdout.buffer.flush()

    session = Session(revision, say)
    for line in sys.stdin.buffer:
        session.take(json.loads(line), say)


class Handler(BaseHTTPRequestHandler):
    """What both HTTP transports share. No two sessions meet but in `sessions`."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    revision: ClassVar[str]
    sessions: ClassVar[dict[str, tuple[Session, queue.SimpleQueue[Message | None]]]] = {}

    def log_request(self, code: object = "-", size: object = "-") -> None:
        pass

    def _body(self) -> Message:
        body: Message = json.loads(self.rfile.read(int(self.headers["content-length"])))
        return body

    def _plain(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        if body:
            self.wfile.write(body)

    def _open_stream(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()

    def _event(self, data: str) -> None:
        chunk = data.encode() + b"\n\n"
        self.wfile.write(b"%x\r\n%b\r\n" % (len(chunk), chunk))

    def _stand(self, unasked: queue.SimpleQueue[Message | None]) -> None:
        """Pour what is said unasked until the client leaves or, at None, the session ends."""
        try:
            while True:
                try:
                    message = unasked.get(timeout=HEARTBEAT)
                except queue.Empty:
                    self._event(": still here")
                    continue
                if message is None:
                    break
                self._event(f"event: message\ndata: {json.dumps(message)}")
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True

    def _begin(self) -> tuple[str, Session, queue.SimpleQueue[Message | None]]:
        id = secrets.token_hex(16)
        unasked: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        session = Session(self.revision, unasked.put)
        self.sessions[id] = (session, unasked)
        return id, session, unasked


class StreamableHandler(Handler):
    """Streamable HTTP: calls are answered with an event stream, everything else with JSON."""

    def do_POST(self) -> None:
        message = self._body()
        if message.get("method") == "initialize":
            id, session, _ = self._begin()
            session.take(message, lambda answer: self._json(answer, mcp_session_id=id))
            return
        found = self._session()
        if found is None:
            return
        session, _ = found
        if "method" not in message or "id" not in message:
            session.take(message, lambda _: None)
            self._plain(202)
        elif message["method"] == "tools/call":
            self._pour_answer(session, message)
        else:
            session.take(message, self._json)

    def do_GET(self) -> None:
        found = self._session()
        if found is not None:
            self._open_stream()
            self._stand(found[1])

    def do_DELETE(self) -> None:
        found = self._session()
        if found is not None:
            del self.sessions[self.headers["mcp-session-id"]]
            found[1].put(None)
            self._plain(204)

    def _json(self, answer: Message | None, **headers: str) -> None:
        self._plain(200, json.dumps(answer).encode(), content_type="application/json", **headers)

    def _session(self) -> tuple[Session, queue.SimpleQueue[Message | None]] | None:
        """The session that the request names; if there is none, that has been answered."""
        if self.revision >= HEADER_SINCE and self.headers.get("mcp-protocol-version") != self.revision:
            self._plain(400, b"expected this revision in MCP-Protocol-Version")
            return None
        id = self.headers.get("mcp-session-id")
        if id is None:
            self._plain(400, b"expected Mcp-Session-Id")
        elif id not in self.sessions:
            self._plain(404, b"no such session")
        else:
            return self.sessions[id]
        return None

    def _pour_answer(self, session: Session, message: Message) -> None:
        said: queue.SimpleQueue[Message | None] = queue.SimpleQueue()
        self._open_stream()
        try:
            if self.revision >= PRIMING_SINCE:
                self._event(f"id: {secrets.token_hex(8)}\nretry: 1000\ndata: ")
            session.take(message, said.put)
            while (each := said.get()) is not None:
                self._event(f"data: {json.dumps(each)}")
                if each.get("id") == message["id"] and "method" not in each:
                    break
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True


class EventsHandler(Handler):
    """HTTP+SSE as 2024-11-05 has it: one stream carries everything, and its end is the end of the session."""

    def do_GET(self) -> None:
        if self.path != "/sse":
            self._plain(404)
            return
        id, _, unasked = self._begin()
        self._open_stream()
        self._event(f"event: endpoint\ndata: /message?session_id={id}")
        self._stand(unasked)
        self.sessions.pop(id, None)

    def do_POST(self) -> None:
        message = self._body()
        path, _, id = self.path.partition("?session_id=")
        if path != "/message":
            self._plain(405, allow="GET")
        elif id not in self.sessions:
            self._plain(404)
        else:
            session, stream = self.sessions[id]
            self._plain(202)
            session.take(message, lambda said: None if said is None else stream.put(said))


class Server(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--revision", choices=REVISIONS, required=True)
    parser.add_argument("--transport", choices=("stdio", "http", "sse"), required=True)
    parser.add_argument("--port", type=int, default=0)
    chosen = parser.parse_args()
    if chosen.transport == "stdio":
        serve_stdio(chosen.revision)
        return
    Handler.revision = chosen.revision
    handler, path = (StreamableHandler, "/mcp") if chosen.transport == "http" else (EventsHandler, "/sse")
    server = Server(("127.0.0.1", chosen.port), handler)
    print(f"http://127.0.0.1:{server.server_address[1]}{path}", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
