"""The good client: calls at a steady rate, each timed from the moment at which it was due; a script.

    python3 -I -S good_client.py URL TOOL [--token T] [--fresh] [--listen]

For each line `{"calls": N, "rate": R, "limit": S, "timeout": T}` on standard input it makes N calls of TOOL, R a
second, on WORKERS connections (`--fresh`: on a new connection each), and answers with a line `{"latencies": […],
"errors": […]}`. After S seconds no further call is begun: each that was due by then counts with the time it has waited.
`--listen`: every LISTENS-th call also opens a session and its standing stream, which must be granted.
"""

from __future__ import annotations

import argparse
import http.client
import json
import sys
import threading
import time
from typing import Any
from urllib.parse import urlsplit

WORKERS = 4
LISTENS = 20
REVISION = "2025-11-25"
Message = dict[str, Any]
WAIT = threading.Event().wait


class Wrong(Exception):
    """An answer that a client of a sound host does not get."""


class Client:
    """One session, on one connection at a time."""

    def __init__(self, url: str, tool: str, token: str | None, *, fresh: bool) -> None:
        place = urlsplit(url)
        self._netloc, self._path = place.netloc, place.path
        self._tool = tool
        self._fresh = fresh
        self._base = {"Accept": "application/json, text/event-stream", "Content-Type": "application/json"}
        if token is not None:
            self._base["Authorization"] = f"Bearer {token}"
        self._session: dict[str, str] = {}
        self._connection: http.client.HTTPConnection | None = None
        self._id = 0

    def open(self, timeout: float) -> None:
        """The handshake, if there is no session."""
        if self._session:
            return
        info = {"name": "good client", "version": "1"}
        params = {"protocolVersion": REVISION, "capabilities": {}, "clientInfo": info}
        answer, _ = self._post({"id": 0, "method": "initialize", "params": params}, timeout)
        session = answer.getheader("Mcp-Session-Id")
        if session is None:
            raise Wrong("initialize was answered without a session")
        self._session = {"Mcp-Session-Id": session, "MCP-Protocol-Version": REVISION}
        self._post({"method": "notifications/initialized"}, timeout)

    def call(self, timeout: float) -> None:
        """One call, whose answer must be its own."""
        self.open(timeout)
        self._id += 1
        params = {"name": self._tool, "arguments": {"n": self._id}}
        _, body = self._post({"id": self._id, "method": "tools/call", "params": params}, timeout)
        answer = json.loads(body)
        if answer.get("id") != self._id:
            raise Wrong(f"the answer has the id {answer.get('id')!r}, not {self._id}")
        if "result" not in answer:
            raise Wrong(f"error {answer['error'].get('code')}: {answer['error'].get('message')}")
        if answer["result"]["content"] != [{"type": "text", "text": str(self._id)}]:
            raise Wrong(f"result {json.dumps(answer['result'])[:200]}")

    def listen(self, timeout: float) -> None:
        """A session and its standing stream, for a moment."""
        self._session = {}
        self.open(timeout)
        connection = http.client.HTTPConnection(self._netloc, timeout=timeout)
        try:
            connection.request("GET", self._path, headers={**self._base, **self._session})
            status = connection.getresponse().status
        finally:
            connection.close()
        if status != 200:
            raise Wrong(f"status {status} for the standing stream")

    def drop(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None

    def _post(self, message: Message, timeout: float) -> tuple[http.client.HTTPResponse, bytes]:
        if self._connection is None:
            self._connection = http.client.HTTPConnection(self._netloc, timeout=timeout)
        self._connection.timeout = timeout
        if self._connection.sock is not None:
            self._connection.sock.settimeout(timeout)
        body = json.dumps({"jsonrpc": "2.0", **message})
        self._connection.request("POST", self._path, body, {**self._base, **self._session})
        answer = self._connection.getresponse()
        data = answer.read()
        if answer.status not in (200, 202):
            if answer.status == 404:
                self._session = {}
            raise Wrong(f"status {answer.status}: {data[:200]!r}")
        if answer.getheader("Content-Type") == "text/event-stream":
            data = [line for line in data.split(b"\n") if line.startswith(b"data: {")][-1].removeprefix(b"data: ")
        if self._fresh or answer.getheader("Connection") == "close":
            self.drop()
        return answer, data


class Phase:
    """The calls of one phase. `latencies` and `errors` are filled by several threads."""

    def __init__(self, calls: int, rate: float, limit: float, timeout: float, *, listen: bool) -> None:
        self.latencies: list[float] = []
        self.errors: list[str] = []
        self._calls, self._rate, self._timeout, self._listen = calls, rate, timeout, listen
        self._began = time.monotonic() + 0.01
        self._end = self._began + limit

    def work(self, client: Client, first: int) -> None:
        for number in range(first, self._calls, WORKERS):
            due = self._began + number / self._rate
            while (now := time.monotonic()) < due:
                WAIT(due - now)
            if now >= self._end:
                if due < self._end:
                    self.latencies.append(now - due)
                continue
            try:
                if self._listen and number % LISTENS == 0:
                    client.listen(self._timeout)
                client.call(self._timeout)
            except (OSError, http.client.HTTPException, ValueError, IndexError, KeyError, Wrong) as problem:
                self.errors.append(f"{type(problem).__name__}: {problem}")
                client.drop()
            self.latencies.append(time.monotonic() - due)
        client.drop()  # the host may close a connection that is idle between two phases


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("url")
    parser.add_argument("tool")
    parser.add_argument("--token")
    parser.add_argument("--fresh", action="store_true")
    parser.add_argument("--listen", action="store_true")
    arguments = parser.parse_args()
    clients = [Client(arguments.url, arguments.tool, arguments.token, fresh=arguments.fresh) for _ in range(WORKERS)]
    for line in sys.stdin:
        phase = Phase(**json.loads(line), listen=arguments.listen)
        threads = [
            threading.Thread(target=phase.work, args=(client, n), daemon=True) for n, client in enumerate(clients)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        print(json.dumps({"latencies": phase.latencies, "errors": phase.errors}), flush=True)


if __name__ == "__main__":
    main()
