"""A server at all paths of one address, in a thread of the test, that counts what comes: as many servers as a file has
paths."""

from __future__ import annotations

import json
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kit.servers.recorder import Handler, Recorder, Say, Server


class _Described(Recorder):
    """Its tools have descriptions of so many bytes."""

    def __init__(self, log: Path, described: int) -> None:
        super().__init__(log)
        self._described = described

    def take(self, raw: bytes, say: Say) -> None:
        message = json.loads(raw)
        if message.get("method") != "tools/list" or not self._described:
            super().take(raw, say)
            return
        text = "x" * self._described
        tools = [{"name": name, "description": text, "inputSchema": {"type": "object"}} for name in self._tools]
        self._answer(message, say, {"tools": tools})


class Counting(Server):
    """`connections` and `requests`, by path, are what came since `taken` was last called."""

    def __init__(self, log: Path, described: int) -> None:
        super().__init__(("127.0.0.1", 0), _CountingHandler)
        self.recorder = _Described(log, described)
        self.connections = 0
        self.requests = Counter[str]()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"

    def taken(self) -> tuple[int, Counter[str]]:
        found = self.connections, self.requests
        self.connections, self.requests = 0, Counter()
        return found

    def server_close(self) -> None:
        super().server_close()
        self.recorder._log.close()


class _CountingHandler(Handler):
    server: Counting

    def setup(self) -> None:
        self.server.connections += 1
        super().setup()

    def do_POST(self) -> None:  # noqa: N802 - as http.server calls it
        self.server.requests[self.path] += 1
        super().do_POST()


@contextmanager
def counting(log: Path, described: int = 0) -> Iterator[Counting]:
    """The server, for the block. `described`: the bytes of the description of each of its ten tools."""
    with Counting(log, described) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()
