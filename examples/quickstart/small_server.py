"""The least an MCP server over stdio needs, with nothing but the standard library.

A server is an object with a dictionary of methods. Every request runs in a thread of its own, so that a long one can
report progress and be cancelled while others are answered. Revisions 2024-11-05 to 2025-11-25 ("Lifecycle", "stdio").
"""

import json
import sys
import threading

REVISIONS = ("2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05")


class Refusal(Exception):
    """Becomes the JSON-RPC error of one request."""

    def __init__(self, code, message):
        super().__init__(message)
        self.code = code


class Call:
    """One request in the works: how to report progress, and whether somebody still waits for it."""

    def __init__(self, server, token):
        self._server = server
        self._token = token
        self.cancelled = threading.Event()

    def progress(self, done, total, message):
        if self._token is not None and not self.cancelled.is_set():
            params = {"progressToken": self._token, "progress": done, "total": total, "message": message}
            self._server.notify("notifications/progress", params)


class SmallServer:
    """Serves `methods`, a dictionary from method name to a function of (params, call) that returns the result."""

    def __init__(self, name, capabilities, methods, instructions=None):
        self._info = {"name": name, "version": "1.0.0"}
        self._capabilities = capabilities
        self._instructions = instructions
        self._methods = {"initialize": self._initialize, "ping": lambda params, call: {}, **methods}
        self._writing = threading.Lock()
        self._calls = {}

    def notify(self, method, params=None):
        self._write({"jsonrpc": "2.0", "method": method, **({} if params is None else {"params": params})})

    def run(self):
        for line in sys.stdin:
            message = json.loads(line)
            if "id" in message and "method" in message:
                token = message.get("params", {}).get("_meta", {}).get("progressToken")
                call = self._calls[message["id"]] = Call(self, token)
                threading.Thread(target=self._answer, args=(message, call), daemon=True).start()
            elif message.get("method") == "notifications/cancelled":
                call = self._calls.get(message["params"].get("requestId"))
                if call is not None:
                    call.cancelled.set()

    def _answer(self, message, call):
        try:
            if message["method"] not in self._methods:
                raise Refusal(-32601, f"there is no method {message['method']}")
            answer = {"result": self._methods[message["method"]](message.get("params", {}), call)}
        except Refusal as refusal:
            answer = {"error": {"code": refusal.code, "message": str(refusal)}}
        except KeyError as problem:
            answer = {"error": {"code": -32602, "message": f"{problem.args[0]!r} is missing"}}
        except (TypeError, ValueError) as problem:
            answer = {"error": {"code": -32602, "message": f"the parameters do not fit: {problem}"}}
        del self._calls[message["id"]]
        if not call.cancelled.is_set():
            self._write({"jsonrpc": "2.0", "id": message["id"], **answer})

    def _initialize(self, params, call):
        asked = params["protocolVersion"]
        answer = {
            "protocolVersion": asked if asked in REVISIONS else REVISIONS[0],
            "capabilities": self._capabilities,
            "serverInfo": self._info,
        }
        return {**answer, "instructions": self._instructions} if self._instructions else answer

    def _write(self, message):
        with self._writing:
            sys.stdout.write(json.dumps(message) + "\n")
            sys.stdout.flush()


def text(said, *, error=False):
    """A tool's result that is one piece of text."""
    return {"content": [{"type": "text", "text": said}], "isError": error}


def tool(name, description, properties, required=()):
    """A tool's definition."""
    schema = {"type": "object", "properties": properties, "required": list(required)}
    return {"name": name, "description": description, "inputSchema": schema}
