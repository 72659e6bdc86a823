"""Starts the real `colonnade` as a child process, and reads what it says, for tests that look at it from outside.

It knows the command's first line, its state lines and its exit code. It owns the child: whatever the test does, the
child and everything below it has ended when the block ends.
"""

from __future__ import annotations

import json
import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any

from host.wire.descent import running_hosts
from tests.kit.processes import all_states, descendants

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
COLONNADE = str(BIN / "colonnade")
SERVERS = ROOT / "tests" / "kit" / "servers"
BARE_PYTHON = [sys.executable, "-I", "-S"]
"""A Python that starts at once: for servers that need nothing but the standard library."""

START = 30.0
"""Seconds in which servers must be ready; Python's imports take their time on a busy machine."""
STOP = 10.0
"""Seconds in which SIGTERM must have ended the host, as docs/operations.md says."""
ADDRESS = re.compile(r"https?://127\.0\.0\.1:\d+/\S*")


def recorder(log: Path) -> dict[str, Any]:
    """The configuration of `tests/kit/servers/recorder.py` as a program."""
    return {"command": [*BARE_PYTHON, str(SERVERS / "recorder.py"), str(log)]}


def sdk_server(*arguments: str) -> dict[str, Any]:
    """The configuration of `tests/kit/servers/sdk_server.py` as a program."""
    return {"command": [sys.executable, str(SERVERS / "sdk_server.py"), *arguments]}


STDIO = os.environ.get("COLONNADE_TEST_STDIO", "own")
"""The host that serves clients over stdio, unless a test chooses it: one of their `own`, or over a `relay` one in the
background, which ends a second after its last client. `make first-lists STDIO=relay` sets it."""
OVER_STDIO = ["--stdio"] if STDIO == "relay" else ["--stdio", "--own"]
"""The options of `serve` for that."""


def write_config(folder: Path, servers: Mapping[str, object], **more: Any) -> Path:
    """A configuration file (JSON is YAML) that listens at a free port. It is not watched, unless `more` says so.

    A host in the background ends soon, and so does each with calls that do not end."""
    file = folder / "colonnade.yaml"
    listen = {"address": "127.0.0.1:0", **more.pop("listen", {})}
    if STDIO == "relay":
        more = {"daemon": {"idle": "1s"}, **more}
    file.write_text(json.dumps({"listen": listen, "watch": "off", "drain": "1s", "servers": servers, **more}))
    return file


def beside(file: Path) -> dict[str, str]:
    """The environment of a host with this configuration: what it keeps stands beside the file, never with the user's
    own."""
    return {**os.environ, "COLONNADE_STATE": str(file.absolute().parent / "state")}


def host_of(file: Path) -> int:
    """The process that serves the configuration; 0 if there is none."""
    hosts = running_hosts(file.absolute().parent / "state" / "hosts")
    return hosts[0].pid if hosts else 0


def until(condition: Callable[[], Any], what: str, seconds: float = START) -> Any:
    """Poll until it holds, and give what it then is. Real time: other processes are waited for."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert time.monotonic() < deadline, f"not so within {seconds} s: {what}"
        threading.Event().wait(0.01)
    return found


class Running:
    """A host that runs. `said` is what it printed, line by line; `url` is where it serves."""

    def __init__(self, process: subprocess.Popen[str], errors: Path) -> None:
        self.process = process
        self.said: list[str] = []
        self._errors = errors
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        self.url = ""

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.said.append(line.rstrip("\n"))

    @property
    def errors(self) -> str:
        """What it wrote to standard error so far."""
        return self._errors.read_text(errors="replace")

    def wait_address(self, seconds: float = START) -> str:
        """Wait for the line with the address."""
        line = until(lambda: self.said or self.process.poll() is not None, f"an address; {self.errors}", seconds)
        assert self.said, f"it ended with status {self.process.poll()}: {self.errors}"
        found = ADDRESS.search(self.said[0])
        assert found, line
        self.url = found[0]
        return self.url

    def state_lines(self, server: str, state: str) -> list[str]:
        return [line for line in self.said[1:] if line.split()[:2] == [server, state]]

    def wait_ready(self, *servers: str) -> None:
        """Wait until each of these has said that it is ready."""
        for server in servers:
            until(partial(self._is_ready, server), f"{server} is ready")

    def _is_ready(self, server: str) -> bool:
        assert self.process.poll() is None, f"the host has ended: {self.said} {self.errors}"
        return bool(self.state_lines(server, "ready"))

    def wait_watching(self, folder: Path) -> None:
        """Wait until the kernel tells it of what changes in a folder. A thread of the host sets that up."""
        until(partial(self._watches, f" ino:{folder.stat().st_ino:x} "), f"it watches {folder}")

    def _watches(self, inode: str) -> bool:
        with suppress(OSError):  # a descriptor that is closed meanwhile
            return any(inode in each.read_text() for each in Path(f"/proc/{self.process.pid}/fdinfo").iterdir())
        return False

    def status(self) -> dict[str, dict[str, Any]]:
        """What `/status` says of each server."""
        with urllib.request.urlopen(self.url.rpartition("/")[0] + "/status", timeout=STOP) as answer:
            return {server["id"]: server for server in json.load(answer)["servers"]}

    def stop(self) -> None:
        """End it by SIGTERM, which it must follow in time and with exit code 0."""
        self.process.send_signal(signal.SIGTERM)
        status = self.process.wait(STOP)
        assert status == 0, f"exit code {status}: {self.errors}"

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self._reader.join(STOP)
        assert self.process.stdout is not None
        self.process.stdout.close()


@contextmanager
def serving(
    file: Path,
    *ready: str,
    options: Sequence[str] = (),
    cwd: Path | None = None,
    stop: bool = True,
    by: Sequence[str] = (),
    inherits: Sequence[int] = (),
    variables: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """`colonnade serve FILE`, for the block, once the servers named are ready. Then it is ended by SIGTERM.

    Args:
        options: further words of the command.
        by: a command that becomes the one that it is given.
        inherits: descriptors that the process gets.
        variables: further ones of its environment.
        stop: whether it is still there at the end of the block, to be ended.
    """
    errors = file.parent / f"{file.name}.stderr"
    with errors.open("w") as stderr:
        process = subprocess.Popen(
            [*by, COLONNADE, "serve", str(file), *options],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            text=True,
            cwd=cwd or ROOT,
            env={**beside(file), **(variables or {})},
            pass_fds=inherits,
        )
    running = Running(process, errors)
    try:
        running.wait_address()
        running.wait_ready(*ready)
        yield running
        if stop:
            running.stop()
    finally:
        running.close()


@contextmanager
def listening(*command: str, folder: Path) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """A server that runs by itself and prints its URL first, as (process, URL). It is killed at the end."""
    with (folder / f"{Path(command[-1]).name}.stderr").open("a") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=folder
        )
    with process:
        try:
            assert process.stdout is not None
            found = ADDRESS.search(process.stdout.readline())
            assert found, "it did not say where it listens"
            yield process, found[0]
        finally:
            process.kill()


def colonnade(*arguments: str, cwd: Path | None = None, **environment: str) -> subprocess.CompletedProcess[str]:
    """One run of the command to its end, which is soon. Its output is no terminal. Unless `environment` names a place
    for what it keeps, that is gone afterwards."""
    with tempfile.TemporaryDirectory() as folder:
        return _run(arguments, cwd, {"COLONNADE_STATE": f"{folder}/state", **environment})


def _run(
    arguments: Sequence[str], cwd: Path | None, environment: Mapping[str, str]
) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [COLONNADE, *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=45,
        cwd=cwd or ROOT,
        env={**os.environ, **environment},
        check=False,
    )


def heard(log: Path) -> list[bytes]:
    """The messages that a recorder got, byte for byte."""
    return log.read_bytes().splitlines() if log.exists() else []


def heard_method(log: Path, method: str) -> list[dict[str, Any]]:
    """The messages with this method that a recorder got."""
    return [message for line in heard(log) if (message := json.loads(line)).get("method") == method]


@contextmanager
def full_disk(pid: int, database: Path) -> Iterator[None]:
    """For the block, no file that the process writes to can become longer than the database is now."""
    _, most = resource.prlimit(pid, resource.RLIMIT_FSIZE)
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (database.stat().st_size, most))
    yield
    resource.prlimit(pid, resource.RLIMIT_FSIZE, (most, most))


def pids_below(pid: int) -> dict[int, str]:
    """Every process below this one, with its command line."""
    found = {}
    for child in descendants(pid, all_states()):
        with suppress(OSError):
            found[child] = command_line(child)
    return found


def processes_with(mark: str) -> dict[int, str]:
    """Every process whose words or variables hold a text, with its command line."""
    found = {}
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if os.fsencode(mark) in (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes():
                found[int(entry.name)] = command_line(int(entry.name))
    return found


def command_line(pid: int) -> str:
    return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")


def memory_of(pid: int, kind: str) -> int:
    """Bytes of one kind of the memory of a process, as /proc names them: VmRSS now, VmHWM at its peak."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (line,) = (line for line in lines if line.startswith(f"{kind}:"))
    return int(line.split()[1]) * 1024


def pid_of(host: int, mark: str) -> int:
    """The one program below the host whose command line holds `mark`."""
    (pid,) = (pid for pid, command in pids_below(host).items() if mark in command)
    return pid
