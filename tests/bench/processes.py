"""Starts what is measured, and reads how much processor time it took.

It knows processes and nothing of what they do. Whatever is started here has ended when its block ends.
"""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from tests.kit.processes import processor_time
from tests.real.running import pids_below

ADDRESS = re.compile(r"https?://127\.0\.0\.1:\d+\S*")
START = 60.0
"""Seconds in which a program must be ready."""
STOP = 5.0
TICK = 1 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True)
class Spent:
    """The processor time of a program and its children until one moment: of those that live, and of those that ended
    and were waited for."""

    alive: Mapping[int, float]
    ended: float

    def since(self, before: Spent) -> float:
        """The seconds between two moments. A process that ended between them is in `ended` with its whole life."""
        return self.since_start() - before.since_start()

    def since_start(self) -> float:
        return sum(self.alive.values()) + self.ended


def spent(root: int, upstream: str) -> Spent:
    """The processor time until now of a process and everything below it, but for programs whose command begins with
    `upstream`, if it is not empty."""
    alive: dict[int, float] = {}
    ended = 0.0
    for pid, command in {root: "", **pids_below(root)}.items():
        if upstream and command.startswith(upstream):
            continue
        with suppress(OSError):
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
            alive[pid] = processor_time(pid)
            ended += (int(fields[13]) + int(fields[14])) * TICK
    return Spent(alive, ended)


@dataclass
class Program:
    """A program that serves at `url`."""

    pid: int
    url: str


@contextmanager
def serving(
    command: Sequence[str], folder: Path, url: str = "", environment: Mapping[str, str] | None = None
) -> Iterator[Program]:
    """A program for the block, once it serves: it prints its URL, or `url` accepts connections.

    Raises:
        RuntimeError: it does not come up.
    """
    log = folder / "log"
    with log.open("w") as errors:
        process = subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=errors,
            stderr=subprocess.STDOUT,
            cwd=folder,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        yield Program(process.pid, _wait_for_url(process, log, url))
    finally:
        stop(process)


def _wait_for_url(process: subprocess.Popen[bytes], log: Path, url: str) -> str:
    deadline = time.monotonic() + START
    while time.monotonic() < deadline and process.poll() is None:
        if url and _accepts(int(url.rpartition(":")[2].partition("/")[0])):
            return url
        if not url and (found := ADDRESS.search(log.read_text(errors="replace"))):
            return found[0]
        pause(0.02)
    raise RuntimeError(f"{process.args!r} does not serve: {log.read_text(errors='replace')[-2000:]}")


def _accepts(port: int) -> bool:
    with suppress(OSError):
        listening = f":{port:04X} 00000000:0000 0A"
        return listening in Path("/proc/net/tcp").read_text()
    return False


def stop(process: subprocess.Popen[bytes]) -> None:
    """End it and everything below it: peers leave their children behind."""
    below = pids_below(process.pid)
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    for pid, command in below.items():
        with suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace") == command:
                os.kill(pid, signal.SIGKILL)


@dataclass(frozen=True)
class Run:
    """One run of the load generator."""

    calls: int
    errors: int
    seconds: float
    p50: float
    p99: float


class Load:
    """The load generator, ready to call."""

    def __init__(self, command: Sequence[str]) -> None:
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"{self._process.args!r} ended with status {self._process.wait()}")
        return line

    def wait_ready(self) -> None:
        assert self._line() == "ready\n"

    def run(self, seconds: float) -> Run:
        assert self._process.stdin is not None
        self._process.stdin.write(f"{seconds}\n")
        self._process.stdin.flush()
        return Run(**json.loads(self._line()))

    def close(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


@contextmanager
def loading(command: Sequence[str]) -> Iterator[Load]:
    load = Load(command)
    try:
        load.wait_ready()
        yield load
    finally:
        load.close()


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)
