"""An MCP server over stdio that writes down calls and cancellations, and asks its client. Standard library alone.

    clerk.py LEDGER

LEDGER is a file that several servers may share; each line is a word and the nonce of a call: `called`, `cancelled`.
Tools, each with the argument `nonce`: `echo` answers with it, `hang` never answers, `form` asks for a form with the
nonce as its message, and `roots` asks for the roots; both answer with what they got, as JSON.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

FORM = {"type": "object", "properties": {"name": {"type": "string"}}}


def main() -> None:
    ledger = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    calls: dict[object, str] = {}
    asked: dict[object, object] = {}

    def note(word: str, nonce: str) -> None:
        os.write(ledger, f"{word} {nonce}\n".encode())  # one write: several processes have one ledger

    for line in sys.stdin.buffer:
        message = json.loads(line)
        method, id = message.get("method"), message.get("id")
        if method == "tools/call":
            nonce, tool = message["params"]["arguments"]["nonce"], message["params"]["name"]
            note("called", nonce)
            calls[id] = nonce
            if tool == "echo":
                answer(id, nonce)
            elif tool != "hang":
                asked[f"{tool} {nonce}"] = id
                params = {"mode": "form", "message": nonce, "requestedSchema": FORM} if tool == "form" else {}
                way = "elicitation/create" if tool == "form" else "roots/list"
                say({"id": f"{tool} {nonce}", "method": way, "params": params})
        elif method == "notifications/cancelled":
            note("cancelled", calls.get(message["params"]["requestId"], "unknown"))
        elif method is None and id in asked:
            answer(asked.pop(id), json.dumps(message.get("result", message.get("error"))))
        elif method is not None and id is not None:
            say({"id": id, **reply(message)})


def reply(message: dict[str, Any]) -> dict[str, Any]:
    if message["method"] == "initialize":
        info = {"name": "clerk", "version": "1"}
        version = message["params"]["protocolVersion"]
        return {"result": {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}}
    if message["method"] == "tools/list":
        tools = ("echo", "hang", "form", "roots")
        return {"result": {"tools": [{"name": name, "inputSchema": {"type": "object"}} for name in tools]}}
    return {"result": {}} if message["method"] == "ping" else {"error": {"code": -32601, "message": "no such method"}}


def answer(id: object, text: str) -> None:
    say({"id": id, "result": {"content": [{"type": "text", "text": text}]}})


def say(message: dict[str, Any]) -> None:
    sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
