"""The bare sketch over HTTP, which writes two records of the audit for each call: the decision before it is sent, and
its outcome.

    audited_sketch.py FOLDER URL

The audit is in FOLDER. What a call costs more than with fixed/sketch.py is what its records cost.
"""

from __future__ import annotations

import sys
from pathlib import Path

import trio
from msgspec import Raw

from config import Verdict
from host.audit.writer import Audit
from host.journal import Journal
from host.policy.decision_log import AuditRecord, DecisionLog, RequestRecord
from host.subject import Item, Subject
from tests.bench.fixed import sketch

SUBJECT = Subject(Item("s1", "tool", "echo"), None, "session", "sha256:f", "sha256:l", "trust: standard")


class RecordedStream:
    """The connection of a client, of whose calls records are written."""

    def __init__(self, stream: trio.SocketStream, log: DecisionLog) -> None:
        self._stream = stream
        self._log = log
        self._record: RequestRecord | None = None
        self._calls = 0

    async def receive_some(self, limit: int) -> bytes:
        data = bytes(await self._stream.receive_some(limit))
        if b'"tools/call"' in data:
            self._calls += 1
            arguments = Raw(b'{"text":"call %d","size":0}' % self._calls)
            self._record = RequestRecord(self._log)
            self._record.begin(AuditRecord(SUBJECT, "tools/call", "load 1", arguments, Verdict.ALLOW))
        return data

    async def send_all(self, data: bytes) -> None:
        if self._record is not None:
            self._record.end(size=len(data))
            self._record = None
        await self._stream.send_all(data)


def main() -> None:
    folder, url = Path(sys.argv[1]), sys.argv[2]
    plain = sketch.HttpServer.serve
    with Audit(folder) as audit:
        log = DecisionLog(audit, Journal())

        async def serve(server: sketch.HttpServer, client: trio.SocketStream) -> None:
            await plain(server, RecordedStream(client, log))  # type: ignore[arg-type]  # it has what the sketch uses

        sketch.HttpServer.serve = serve  # type: ignore[method-assign,assignment]  # which its `main` makes
        trio.run(sketch.main, "http", url)


if __name__ == "__main__":
    main()
