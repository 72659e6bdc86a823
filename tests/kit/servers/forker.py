"""A small MCP server over stdio that is hard to get rid of. Standard library alone, any legacy revision.

    forker.py [fork] [stubborn] [WORD ...]

fork      starts a process in a session of its own, forked twice so that its parent is gone, which holds on to the pipes
          and goes on making orphans that end at once (whoever adopts them has to reap them)
stubborn  heeds neither the end of its input nor SIGTERM, and neither does what it starts

Other words mean nothing to it: they are marks by which a test finds it. Everything it starts has the same command line.
It offers one tool, `pid`, which answers with its process number.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Mapping

PING = {"name": "pid", "description": "Tells the process number.", "inputSchema": {"type": "object"}}


def main() -> None:
    words = sys.argv[1:]
    if "stubborn" in words:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if "fork" in words:
        _daemonise()
    for line in sys.stdin.buffer:
        answer = _answer(json.loads(line))
        if answer is not None:
            print(json.dumps(answer), flush=True)
    while "stubborn" in words:
        signal.pause()


def _daemonise() -> None:
    child = os.fork()
    if child == 0:
        os.setsid()
        if os.fork() == 0:
            _make_orphans()
        os._exit(0)
    os.waitpid(child, 0)


def _make_orphans() -> None:
    while True:
        child = os.fork()
        if child == 0:
            if os.fork() == 0:
                time.sleep(0.01)  # noqa: TID251 - a process of its own, without a loop
            os._exit(0)
        os.waitpid(child, 0)
        time.sleep(0.1)  # noqa: TID251 - as above


def _answer(message: Mapping[str, object]) -> dict[str, object] | None:
    if "id" not in message or "method" not in message:
        return None
    answer: dict[str, object] = {"jsonrpc": "2.0", "id": message["id"]}
    params = message.get("params")
    match message["method"]:
        case "initialize":
            answer["result"] = {
                "protocolVersion": params["protocolVersion"] if isinstance(params, dict) else "2025-11-25",
                "capabilities": {"tools": {}},
                "serverInfo": {"name": "forker", "version": "1"},
            }
        case "ping":
            answer["result"] = {}
        case "tools/list":
            answer["result"] = {"tools": [PING]}
        case "tools/call":
            answer["result"] = {"content": [{"type": "text", "text": str(os.getpid())}]}
        case _:
            answer["error"] = {"code": -32601, "message": "no such method"}
    return answer


if __name__ == "__main__":
    main()
