"""A server that offers what a file says, and says so when the file says something else.

    python3 -I -S offering.py FILE     over standard input and output

The file is JSON, written by `offer` below. `tools`, `prompts`, `resources` and `resourceTemplates` are lists of
definitions; `instructions` and `info` (more of `serverInfo`) are what it says of itself. `calls` says for each tool
what comes of a call: members of the answer (`result` or `error`); `first`, messages that are sent before it; and
`waits`, with which it never comes. A tool that has no such entry answers with its arguments.

Nothing but the standard library.
"""

from __future__ import annotations

import json
import sys
import threading
from pathlib import Path
from typing import Any

LISTS = {
    "tools/list": "tools",
    "prompts/list": "prompts",
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
}
LOOK_EVERY = 0.05


def offer(file: Path, **script: Any) -> None:
    """Offer this from now on. The file is exchanged as a whole, so that nobody reads half of it."""
    coming = file.with_suffix(".new")
    coming.write_text(json.dumps(script))
    coming.rename(file)


class Offering:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._text = file.read_text()
        self._script: dict[str, Any] = json.loads(self._text)
        self._lock = threading.Lock()

    def say(self, message: dict[str, Any]) -> None:
        with self._lock:
            sys.stdout.buffer.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            sys.stdout.buffer.flush()

    def watch(self) -> None:
        """Follow the file."""
        pause = threading.Event()
        while not pause.wait(LOOK_EVERY):
            text = self._file.read_text()
            if text != self._text:
                self._text, self._script = text, json.loads(text)
                self.say({"method": "notifications/tools/list_changed"})

    def take(self, message: dict[str, Any]) -> None:
        """One message of the client."""
        method, params = message.get("method"), message.get("params", {})
        if method is None or "id" not in message:
            return
        if method == "initialize":
            self._answer(message, self._introduction(params["protocolVersion"]))
        elif method == "ping" or method == "logging/setLevel":
            self._answer(message, {})
        elif method in LISTS:
            self._answer(message, {LISTS[method]: self._script.get(LISTS[method], [])})
        elif method == "tools/call":
            self._call(message, params)
        else:
            self.say({"id": message["id"], "error": {"code": -32601, "message": "Method not found"}})

    def _introduction(self, revision: str) -> dict[str, Any]:
        changing = {"listChanged": True}
        told = {
            "protocolVersion": revision,
            "capabilities": {"tools": changing, "prompts": changing, "resources": changing, "logging": {}},
            "serverInfo": {"name": "offering", "version": "1", **self._script.get("info", {})},
        }
        if "instructions" in self._script:
            told["instructions"] = self._script["instructions"]
        return told

    def _call(self, message: dict[str, Any], params: dict[str, Any]) -> None:
        script = self._script.get("calls", {}).get(params["name"], {})
        for first in script.get("first", []):
            self.say(first)
        if script.get("waits"):
            return
        if "error" in script:
            self.say({"id": message["id"], "error": script["error"]})
            return
        text = json.dumps(params.get("arguments", {}))
        self._answer(message, script.get("result", {"content": [{"type": "text", "text": text}]}))

    def _answer(self, message: dict[str, Any], result: object) -> None:
        self.say({"id": message["id"], "result": result})


if __name__ == "__main__":
    offering = Offering(Path(sys.argv[1]))
    threading.Thread(target=offering.watch, daemon=True).start()
    for line in sys.stdin.buffer:
        offering.take(json.loads(line))
