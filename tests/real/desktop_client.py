"""A desktop host in one small program: it starts `serve --stdio` as its child and calls tools. Standard library alone.

    desktop_client.py NAME LEDGER COMMAND...

It answers forms with NAME and `roots/list` with its working folder, and starts the command again when that has ended.
Lines of standard input: `call SERVER TOOL NONCE` makes a call of `tests/kit/servers/clerk.py`, which `cancel NONCE`
cancels; `loop SEED` makes and cancels calls without end. At the end of its input it ends its child: SIGINT, with the
child's input open.

LEDGER gets what happened as lines of JSON: [event, nonce, text]. Events: `open`; `sent`, then `result`, `error`, `lost`
(the command has ended) or `cancelled`; `asked`; `ended`, with the exit status; `stuck`, a call without an answer.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import sys
import threading
from typing import IO, Any

PATIENCE = 60.0
TOOLS = ("echo", "echo", "form", "roots")
SERVERS, HANGING = 11, 7
"""The number of servers, and the first of those whose calls hang."""


class DesktopHost:
    def __init__(self, name: str, ledger: str, command: list[str]) -> None:
        self._name = name
        self._command = command
        self._ledger = os.open(ledger, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self._errors = open(f"{ledger}.stderr", "ab")  # noqa: SIM115 - of each child
        self._lock = threading.Lock()
        self._last = 0
        self._open = threading.Event()
        self._waiting: dict[int, tuple[str, threading.Event]] = {}
        self._child: subprocess.Popen[bytes] | None = None
        self._leaves = False

    def note(self, event: str, nonce: str = "", text: str = "") -> None:
        os.write(self._ledger, json.dumps([event, nonce, text]).encode() + b"\n")

    def keep_child(self) -> None:
        while not self._leaves:
            pipe = subprocess.PIPE
            with subprocess.Popen(self._command, stdin=pipe, stdout=pipe, stderr=self._errors) as child:
                self._child = child
                self._shake_hands()
                assert child.stdout is not None
                for line in child.stdout:
                    self._on_message(json.loads(line))
                self._open.clear()
                with contextlib.suppress(OSError):  # what was not written yet
                    self._input(child).close()
                status = child.wait()
            with self._lock:
                lost, self._waiting = self._waiting, {}
            for nonce, answered in lost.values():
                self.note("lost", nonce)
                answered.set()
            self.note("ended", text=str(status))

    def _shake_hands(self) -> None:
        capabilities: dict[str, Any] = {"roots": {}, "elicitation": {}}
        info = {"name": self._name, "version": "1"}
        params = {"protocolVersion": "2025-11-25", "capabilities": capabilities, "clientInfo": info}
        self._say({"id": 0, "method": "initialize", "params": params})

    @staticmethod
    def _input(child: subprocess.Popen[bytes] | None) -> IO[bytes]:
        assert child is not None
        assert child.stdin is not None
        return child.stdin

    def _say(self, message: dict[str, Any]) -> None:
        # Its end is noticed where it is read.
        with self._lock, contextlib.suppress(OSError, ValueError):
            self._input(self._child).write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            self._input(self._child).flush()

    def _on_message(self, message: dict[str, Any]) -> None:
        method, id = message.get("method"), message.get("id")
        if method == "elicitation/create":
            self.note("asked", message["params"]["message"])
            self._say({"id": id, "result": {"action": "accept", "content": {"name": self._name}}})
        elif method == "roots/list":
            self._say({"id": id, "result": {"roots": [{"uri": f"file://{os.getcwd()}"}]}})
        elif method == "ping":
            self._say({"id": id, "result": {}})
        elif method is None and id == 0:
            self._say({"method": "notifications/initialized"})
            self.note("open")
            self._open.set()
        elif method is None:
            with self._lock:
                nonce, answered = self._waiting.pop(id or 0, ("", threading.Event()))
            if "error" in message:
                self.note("error", nonce, f"{message['error']['code']} {message['error']['message']}")
            else:
                self.note("result", nonce, message["result"]["content"][0]["text"])
            answered.set()

    def call(self, server: str, tool: str, nonce: str, patience: float = PATIENCE) -> None:
        if not self._open.wait(PATIENCE):
            self.note("stuck", nonce, "no session")
            return
        answered = threading.Event()
        with self._lock:
            self._last += 1
            id = self._last
            self._waiting[id] = nonce, answered
        self.note("sent", nonce, f"{server} {tool}")
        params = {"name": f"{server}__{tool}", "arguments": {"nonce": nonce}}
        self._say({"id": id, "method": "tools/call", "params": params})
        if not answered.wait(patience) and tool != "hang":
            self.note("stuck", nonce, f"{server} {tool}")

    def cancel(self, nonce: str) -> None:
        with self._lock:
            id = next((id for id, (waiting, _) in self._waiting.items() if waiting == nonce), None)
            if id is not None:
                del self._waiting[id]
        if id is not None:
            self._say({"method": "notifications/cancelled", "params": {"requestId": id}})
            self.note("cancelled", nonce)

    def loop(self, seed: str) -> None:
        draw = random.Random(seed)
        while not self._leaves:
            # A server that is known to work on something for another client may ask nobody.
            if draw.random() < 0.8:
                self.call(f"s{draw.randrange(HANGING)}", draw.choice(TOOLS), f"{draw.getrandbits(64):016x}")
            else:
                nonce = f"{draw.getrandbits(64):016x}"
                self.call(f"s{draw.randrange(HANGING, SERVERS)}", "hang", nonce, draw.uniform(0.0, 0.3))
                self.cancel(nonce)
            threading.Event().wait(draw.uniform(0.0, 0.05))

    def leave(self) -> None:
        """SIGINT while the input is still open."""
        self._leaves = True
        if self._child is not None:
            self._child.send_signal(signal.SIGINT)
            self._child.wait(PATIENCE)


def main() -> None:
    host = DesktopHost(sys.argv[1], sys.argv[2], sys.argv[3:])
    threading.Thread(target=host.keep_child, daemon=True).start()
    for line in sys.stdin:
        word, *words = line.split()
        threading.Thread(target=getattr(host, word), args=words, daemon=True).start()
    host.leave()


if __name__ == "__main__":
    main()
