"""A server whose tool `ask` says what a server on the network answers, or why it does not; `hold` keeps connections
open, and `crash` ends it at once. Each takes `host` and `port`."""

import json
import os
import socket
import sys
from typing import Any

held: list[socket.socket] = []


def ask(host: str, port: int) -> str:
    try:
        with socket.create_connection((host, port), 5) as made:
            made.sendall(b"hello")
            return made.makefile().read()
    except OSError as problem:
        return f"{type(problem).__name__}: {problem}"


def hold(host: str, port: int) -> str:
    held.extend(socket.create_connection((host, port), 5) for _ in range(20))
    return f"{len(held)} held"


def crash(host: str, port: int) -> str:
    os._exit(3)


TOOLS = {each.__name__: each for each in (ask, hold, crash)}


def answer(method: str, params: dict[str, Any]) -> object:
    if method == "initialize":
        info = {"name": "caller", "version": "1"}
        return {"protocolVersion": "2025-11-25", "capabilities": {"tools": {}}, "serverInfo": info}
    if method == "tools/list":
        return {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in TOOLS]}
    if method == "tools/call":
        text = TOOLS[params["name"]](**params["arguments"])
        return {"content": [{"type": "text", "text": text}]}
    return {}


for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        found = answer(request["method"], request.get("params", {}))
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], "result": found}), flush=True)
