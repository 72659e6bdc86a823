"""A server whose tool `x` says in which folder it runs, and in which process."""

import json
import os
import sys

ANSWERS = {
    "initialize": {
        "protocolVersion": "2025-11-25",
        "capabilities": {"tools": {}},
        "serverInfo": {"name": "folder", "version": "1"},
    },
    "ping": {},
    "tools/list": {"tools": [{"name": "x", "inputSchema": {"type": "object"}}]},
    "tools/call": {"content": [{"type": "text", "text": json.dumps([os.getcwd(), os.getpid()])}]},
}

for line in sys.stdin:
    request = json.loads(line)
    if "id" in request:
        found = ANSWERS.get(request["method"])
        answer = {"error": {"code": -32601, "message": "Method not found"}} if found is None else {"result": found}
        print(json.dumps({"jsonrpc": "2.0", "id": request["id"], **answer}), flush=True)
