"""One `colonnade serve` at a port that stays, which is ended and started again beside its clients; the server and the
person behind it."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import trio

from host.cli.admin_client import AdminClientError, find_hosts
from tests.kit.ports import free_port
from tests.real.running import BARE_PYTHON, COLONNADE, ROOT, SERVERS, beside, listening, write_config

from .book import Book, Ending

START = 60.0
"""Seconds in which it must be ready."""
END = 40.0
"""Seconds in which SIGTERM must have ended it."""
PAUSE = 0.02
NEXT = [
    sys.executable,
    "-c",
    "from host.storage import postgres; postgres.SCHEMA_VERSION += 1; from host.__main__ import main; main()",
]
"""The next version of Colonnade, as far as its database can tell."""


async def until(condition: Callable[[], bool], what: str, seconds: float) -> None:
    """Poll until it holds: other processes are waited for."""
    with trio.move_on_after(seconds):
        while True:
            if condition():
                return
            await trio.sleep(PAUSE)
    raise AssertionError(f"not so within {seconds:g} s: {what}")


class Served:
    """A configuration that is served, by one process after the other. Its state stays in `folder`."""

    def __init__(self, folder: Path, servers: Mapping[str, object], **more: Any) -> None:
        self.port = free_port()
        self.base = f"http://127.0.0.1:{self.port}"
        self.url = f"{self.base}/mcp"
        self.file = write_config(folder, servers, listen={"address": f"127.0.0.1:{self.port}"}, **more)
        self.state = folder / "state"
        self._errors = folder / "host.stderr"
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def errors(self) -> str:
        """What all processes wrote to standard error."""
        return self._errors.read_text(errors="replace")

    def start(self, *, is_next: bool = False) -> None:
        """Start it. `is_next`: as the next version of Colonnade, which needs the next schema."""
        with self._errors.open("a") as stderr:
            self._process = subprocess.Popen(
                [*(NEXT if is_next else [COLONNADE]), "serve", str(self.file)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                cwd=ROOT,
                env=beside(self.file),
            )

    async def wait_listening(self) -> None:
        with trio.fail_after(START):
            while True:
                with suppress(OSError):
                    (await trio.open_tcp_stream("127.0.0.1", self.port)).socket.close()
                    return
                assert self._process is not None
                assert self._process.poll() is None, f"it has ended: {self.errors[-2000:]}"
                await trio.sleep(PAUSE)

    async def end(self, how: Ending) -> int:
        """End it; its exit code."""
        process = self._process
        assert process is not None
        process.send_signal(signal.SIGKILL if how is Ending.KILLED else signal.SIGTERM)
        await until(lambda: process.poll() is not None, f"it has ended by {how}", END)
        return process.returncode

    def close(self) -> None:
        if self._process is not None and self._process.poll() is None:
            self._process.kill()
            self._process.wait()


@contextmanager
def ledger(folder: Path) -> Iterator[dict[str, Any]]:
    """The configuration of a ledger that listens for the block. A person must allow its tool `confirmed`."""
    command = [*BARE_PYTHON, str(SERVERS / "ledger.py"), str(folder / "ledger"), "0"]
    consent = {"tools": {"ask": ["confirmed"], "default": "allow"}, "resources": "allow"}
    with listening(*command, folder=folder) as (_, url):
        yield {"url": url, "consent": consent}


def judge(book: Book, folder: Path) -> None:
    """Hold the book against the ledger in this folder."""
    book.judge((folder / "ledger").read_text().split())


@contextmanager
def person(state: Path, book: Book) -> Iterator[None]:
    """A person, for the block, who allows each call at once and once, at whichever host serves."""
    leaves = threading.Event()

    def sit() -> None:
        while not leaves.wait(0.05):
            for host in find_hosts(state):
                with suppress(AdminClientError, OSError):
                    for told in host.follow():
                        if leaves.is_set():
                            return
                        for asked in told.get("confirmations", ()):
                            if asked["state"] == "waiting":
                                book.answered.add(json.loads(asked["arguments"])["id"])
                                host.post("confirmations/answer", id=asked["id"], answer="once")

    thread = threading.Thread(target=sit, daemon=True)
    thread.start()
    try:
        yield
    finally:
        leaves.set()
