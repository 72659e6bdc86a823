"""The host, the good client and the hostile clients as child processes, and what is measured of the host from outside.

Each process ends when its standard input ends, so none outlives the judge; besides, each is ended where its block ends.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tests.kit.processes import is_running, processor_time
from tests.real.running import BARE_PYTHON, ROOT, Running, pids_below, write_config

from .figures import Calls, Memory, Passes, read_passes

HERE = Path(__file__).parent
SERVER = str(HERE / "server.py")
NOBODY = 65534
AS_NOBODY = (
    *("setpriv", "--reuid", str(NOBODY), "--regid", str(NOBODY), "--clear-groups"),
    *("--inh-caps", "+dac_read_search", "--ambient-caps", "+dac_read_search"),
)
"""Runs a command as another user, who may still read the files of the program, which may be below root's home. That
right opens no other process's memory and environment, which are up to ptrace(2), "Ptrace access mode checking"."""
STOP = 15.0
"""Seconds in which SIGTERM must have ended the host: more than docs/operations.md promises, for a busy machine."""
START = 60.0
SAMPLE = 0.02
CALM_SPAN, CALM_SHARE = 0.2, 0.1
"""A host is at rest if it needed no more than this share of a processor for so many seconds."""
RESET_PEAK = "5"
"""The value for /proc/PID/clear_refs that sets the peak of resident memory back to what there is
(proc_pid_clear_refs(5))."""


class Host:
    """A real host on a configuration of its own. `folder` holds the file, the state, the log and the report of passes.

    Args:
        unprivileged: it runs as a user that is not root, if the judge is root.
        state: the directory of another host, if both share one.
    """

    def __init__(
        self,
        folder: Path,
        servers: Mapping[str, object],
        *,
        environment: Mapping[str, str] | None = None,
        unprivileged: bool = False,
        state: Path | None = None,
        file: Path | None = None,
        **more: object,
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.folder = folder
        self.state = state or folder / "state"
        self.control = folder / "control"
        self.file = file or write_config(folder, servers, console="off", **more)
        self._servers = [name for name, server in servers.items() if "disabled" not in server]  # type: ignore[operator]
        self._environment = {**os.environ, **(environment or {}), "COLONNADE_STATE": str(self.state)}
        self._unprivileged = unprivileged and os.geteuid() == 0
        self.ended: list[str] = []
        self.running: Running
        self._seen: set[int] = set()

    def start(self) -> None:
        """Start it. `wait_ready` says when it serves."""
        command = [sys.executable, "-m", "tests.attack.measured_host", str(self.folder / "passes"), "serve"]
        if self._unprivileged:
            for path in (self.folder, self.file):
                shutil.chown(path, NOBODY, NOBODY)
            command = [*AS_NOBODY, *command]
        with self.log.open("a") as log:
            process = subprocess.Popen(
                [*command, str(self.file)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env={**self._environment, "PYTHONPATH": str(ROOT)},
            )
        self.running = Running(process, self.log)

    def wait_ready(self) -> None:
        self.running.wait_address(START)
        self.running.wait_ready(*self._servers)

    @property
    def log(self) -> Path:
        return self.folder / "log"

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def pid(self) -> int:
        return self.running.process.pid

    @property
    def is_alive(self) -> bool:
        return self.running.process.poll() is None

    def tracebacks(self) -> int:
        return self.log.read_text(errors="replace").count("Traceback (most recent call last)")

    def passes(self, since: float, until: float) -> Passes:
        """The passes of the loop that ended, or were under way, between two moments."""
        file = self.folder / "passes"
        return read_passes(file.read_text().splitlines() if file.exists() else [], since, until)

    def resident(self) -> tuple[int, int]:
        """Resident bytes now, and at their peak; zeros if it is gone."""
        values = {"VmRSS": 0, "VmHWM": 0}
        with suppress(OSError):
            for line in Path(f"/proc/{self.pid}/status").read_text().splitlines():
                name, _, value = line.partition(":")
                if name in values:
                    values[name] = int(value.split()[0]) * 1024
        return values["VmRSS"], values["VmHWM"]

    def wait_calm(self, seconds: float) -> bool:
        """Wait until it does hardly anything, at most so long; whether it came to that."""
        deadline = time.monotonic() + seconds
        try:
            while time.monotonic() < deadline:
                before = processor_time(self.pid)
                time_passes(CALM_SPAN)
                if processor_time(self.pid) - before <= CALM_SHARE * CALM_SPAN:
                    return True
        except OSError:  # it is gone
            return True
        return False

    def notes(self, since: float = 0) -> list[tuple[str, float, str]]:
        """Notes of its hostile servers since that moment: name, monotonic time, text."""
        file = Path(f"{self.control}.notes")
        lines = file.read_text().splitlines() if file.exists() else []
        found = [(parts[0], float(parts[1]), parts[2]) for line in lines if len(parts := line.split(" ", 2)) == 3]
        return [note for note in found if note[1] >= since]

    def noted(self, text: str, since: float = 0) -> int:
        """How many notes begin so."""
        return sum(1 for _, _, line in self.notes(since) if line.startswith(text))

    def status(self) -> dict[str, dict[str, Any]]:
        """The rows of `/status`, by server."""
        return self.running.status()

    @contextmanager
    def ordered(self, orders: Mapping[str, object]) -> Iterator[None]:
        """Its hostile servers attack for the block."""
        new = self.control.with_suffix(".new")
        new.write_text(json.dumps(orders))
        new.chmod(0o644)
        new.rename(self.control)
        try:
            yield
        finally:
            self.control.unlink()

    def stop(self) -> int | None:
        """End it by SIGTERM; its exit status, None if it had to be killed. Nothing of it is left."""
        process = self.running.process
        self._seen |= pids_below(process.pid).keys()
        with suppress(ProcessLookupError):
            process.send_signal(signal.SIGTERM)
        try:
            return process.wait(STOP)
        except subprocess.TimeoutExpired:
            return None
        finally:
            self.kill()

    def kill(self) -> None:
        """Leave nothing of it, however it stands."""
        process = self.running.process
        self._seen |= pids_below(process.pid).keys()
        self.running.close()
        assert process.stdin is not None
        with suppress(OSError):
            process.stdin.close()
        deadline = time.monotonic() + 5
        while time.monotonic() < deadline and any(map(_is_ours, self._seen)):
            time_passes(0.02)
        for pid in filter(_is_ours, self._seen):
            with suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _is_ours(pid: int) -> bool:
    """Whether a process that was below a host still runs (and is no other process of the same number)."""
    try:
        command = Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
    return is_running(pid) and (b"host.wire.keeper" in command or b"tests/attack" in command)


def time_passes(seconds: float) -> None:
    threading.Event().wait(seconds)


class MemoryWatch:
    """Resident memory of a host from now on, against what it had at rest `before`."""

    def __init__(self, host: Host, before: int) -> None:
        self._host = host
        self.before = before
        try:
            Path(f"/proc/{host.pid}/clear_refs").write_text(RESET_PEAK)
            self._resets = True
        except OSError:  # another user's process, or no such kernel: the samples have to do
            self._resets = False
        self._highest, _ = host.resident()
        self._over = threading.Event()
        self._sampling = threading.Thread(target=self._sample, daemon=True)
        self._sampling.start()

    def _sample(self) -> None:
        while not self._over.wait(SAMPLE):
            now, peak = self._host.resident()
            self._highest = max(self._highest, peak if self._resets else now)

    def finish(self, patience: float) -> Memory:
        """Wait until the memory has come back, at most so many seconds, and give what was seen."""
        deadline = time.monotonic() + patience
        while True:
            after, _ = self._host.resident()
            if Memory.has_returned(self.before, after) or time.monotonic() > deadline:
                break
            time_passes(0.1)
        self._over.set()
        self._sampling.join()
        return Memory(self.before, self._highest, after)


class Script:
    """A script of ours that runs until its standard input ends. `isolated`: the standard library is all it needs."""

    def __init__(self, name: str, *arguments: str, isolated: bool = True) -> None:
        self.process = subprocess.Popen(
            [*(BARE_PYTHON if isolated else [sys.executable]), str(HERE / name), *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            cwd=ROOT,
        )

    def read(self, seconds: float) -> str:
        """The next line.

        Raises:
            TimeoutError: it did not come.
        """
        assert self.process.stdout is not None
        line: list[str] = []
        reading = threading.Thread(
            target=lambda out: line.append(out.readline()), args=[self.process.stdout], daemon=True
        )
        reading.start()
        reading.join(seconds)
        if not line:
            raise TimeoutError(f"no line within {seconds:g} s: {self.process.args!r}")
        return line[0]

    def write(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


class GoodClient(Script):
    """Steady calls of one tool. Use: `calls = client.phase(…)`."""

    def __init__(self, url: str, tool: str, *options: str) -> None:
        super().__init__("good_client.py", url, tool, *options)

    def phase(self, calls: int, rate: float, limit: float, timeout: float) -> Calls:
        """So many calls, so many a second. For the arguments see good_client.py."""
        self.write(json.dumps({"calls": calls, "rate": rate, "limit": limit, "timeout": timeout}))
        answer = json.loads(self.read(limit + 4 * timeout + 10))
        return Calls(answer["latencies"], answer["errors"])


@contextmanager
def hostile_client(attack: str, url: str, counted: dict[str, int], **options: Any) -> Iterator[None]:
    """An attack of hostile_client.py for the block, once it is in force; what it did is added to `counted`."""
    script = Script("hostile_client.py", attack, url, json.dumps(options))
    try:
        line = script.read(START)
        assert line == "in force\n", f"the attack {attack} said {line!r}"
        yield
        assert script.process.stdin is not None
        script.process.stdin.close()
        for name, count in json.loads(script.read(10)).items():
            counted[name] = counted.get(name, 0) + count
    finally:
        script.close()


@contextmanager
def web_server(host_folder: Path) -> Iterator[str]:
    """The server over HTTP of server.py for the block; its URL."""
    host_folder.mkdir(parents=True, exist_ok=True)
    command = [*BARE_PYTHON, SERVER, "web", "--name", "web", "--control", str(host_folder / "control")]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield process.stdout.readline().strip()
        finally:
            process.kill()
