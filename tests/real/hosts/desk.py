"""A desk: a new home with one desktop host, real servers in its file, and Colonnade in their place."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
import tomllib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from host.cli.admin_client import find_hosts
from tests.real.person import answered, at_terminal
from tests.real.running import BARE_PYTHON, BIN, COLONNADE, until

from .desktop import DesktopHost
from .model import Call, Model, Turn
from .packages import folder_of, program_of

MEMORY = "@modelcontextprotocol/server-memory@2026.8.31"
COMMIT = "The commit that only this repository has"

BACKGROUND = "host serve --daemon"
"""In the command line of a host of Colonnade that a relay has started."""

COLONNADE_SECONDS = 120
"""In which `import`, which tries servers, and the other commands must end."""
RUN_SECONDS = 90
"""In which a headless run must end."""
END_SECONDS = 15
"""In which processes must have ended after SIGTERM of the host."""


class DeskError(Exception):
    """Something before or after the starts went wrong."""


@dataclass(frozen=True)
class Start:
    """One headless run of a desktop host.

    Attributes:
        kind: `first`; else `running` or `cold`, by whether a host of Colonnade is left to run before it, and `busy` if
            it is beside loops that use all processors; at last `asked`, with a call that a person confirms.
        hosts: how many hosts of Colonnade ran before it.
        problem: why the call did not go through; empty if it did.
        seconds: that the run took.
    """

    kind: str
    hosts: int
    problem: str
    seconds: float


@dataclass
class Desk:
    """The home at `folder`, and all that runs in it."""

    host: DesktopHost
    folder: Path
    model: Model
    starts: list[Start] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._work = self.folder / "work"
        self._config = self.folder / ".config" / "colonnade" / "colonnade.yaml"
        self._state = self.folder / ".local" / "state" / "colonnade"
        self._file = self.folder / self.host.file
        self._before = self._connected = b""
        self._work.mkdir()
        (self.folder / "tmp").mkdir()

    @property
    def _environment(self) -> dict[str, str]:
        """Nothing of the tests' own environment but the search path: hosts keep what they have below HOME."""
        return {
            "HOME": str(self.folder),
            "TMPDIR": str(self.folder / "tmp"),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "LANG": "C.UTF-8",
        }

    @property
    def _calls(self) -> Sequence[Call]:
        """One of each server, in turns."""
        return (
            Call("get_current_time", {"timezone": "Etc/UTC"}, "is_dst"),
            Call("git_log", {"repo_path": str(self._work)}, COMMIT),
            Call("read_graph", {}, "entities"),
        )

    def set_up(self) -> None:
        """The host with its servers, which `import` and `connect --move` then put behind Colonnade.

        Raises:
            DeskError: a command failed, or did not do what it says.
        """
        servers = {
            "time": [str(BIN / "mcp-server-time")],
            "git": [str(BIN / "mcp-server-git"), "--repository", str(self._work)],
            "memory": [str(program_of(MEMORY, "mcp-server-memory"))],
        }
        git = ["git", "-c", "user.name=tests", "-c", "user.email=tests@localhost"]
        self._run([*git, "init", "--quiet"], cwd=self._work)
        self._run([*git, "commit", "--quiet", "--allow-empty", "--message", COMMIT], cwd=self._work)
        self.host.write(self.folder, servers, self.model.url)
        if self.host.prepare:
            self._run([str(program_of(self.host.package, self.host.program)), *self._filled(self.host.prepare)])
        self._before = self._file.read_bytes()
        self._import()
        self._run([COLONNADE, "check"])
        self._run([COLONNADE, "connect", self.host.name, "--move", "--yes"])
        self._connected = self._file.read_bytes()
        if "mcp-server-" in self._connected.decode():
            raise DeskError(f"connect --move left servers in {self.host.file}")

    def _import(self) -> None:
        """`import` as a person answers it who takes what is recommended; the file is not edited.

        Raises:
            DeskError: it failed, or asked something else.
        """
        answers = {
            r"(?:answer confirmations|it is open)\? \[y/N\] ": "n",
            r"\[1\]: ": "1",
            r"\[y/N\] ": "y",
        }
        if self._config.parent.exists():
            raise DeskError("the folder of the configuration is there before import makes it")
        command = [COLONNADE, "import", self.host.name, "-o", str(self._config)]
        code, person = answered(command, answers, self.folder, self._environment, COLONNADE_SECONDS)
        # One of the answers is to the line that is advised for the memory server.
        if code != 0 or person.typed != ["y", "y", "y", "1", "n", "n"]:
            raise DeskError(f"import: exit code {code} after {person.typed}: {person.said[-500:]}")

    def start_asked(self) -> Start:
        """One headless run, in which the model calls a tool that may change something. A person allows it in
        `colonnade ask`, which was asked about none of the calls before."""
        answers = {r"\(or nothing, to leave it\)\? ": "once"}
        with at_terminal([COLONNADE, "ask"], answers, self.folder, self._environment) as (person, _):
            until(lambda: "Waiting for" in person.said, "colonnade ask waits", END_SECONDS)
            start = self.start("asked", Call("git_create_branch", self._branch, str(self._branch["branch_name"])))
        if person.typed != ["once"]:
            problem = f"{start.problem} (the person typed {person.typed}: {person.said[-300:]})"
            self.starts[-1] = start = replace(start, problem=problem)
        return start

    @property
    def _branch(self) -> Mapping[str, object]:
        return {"repo_path": str(self._work), "branch_name": "a-confirmed-branch"}

    def start(self, kind: str, call: Call | None = None) -> Start:
        """One headless run, in which the model calls a tool; if not this one, one of the next server, which only
        reads."""
        if "cold" in kind:
            self.end_hosts()
        self.model.turn = turn = Turn(call or self._calls[len(self.starts) % len(self._calls)])
        running = len(find_hosts(self._state))
        output = self.folder / f"start-{len(self.starts)}.txt"
        begun = time.monotonic()
        with ExitStack() as stack:
            if "busy" in kind:
                stack.enter_context(busy_loops())
            said = self._headless(output)
        problem = turn.problem and f"{turn.call.tool}: {turn.problem}{said}"
        self.starts.append(Start(kind, running, problem, time.monotonic() - begun))
        return self.starts[-1]

    def _headless(self, output: Path) -> str:
        """One run of the host to its end. How it failed, if it did."""
        more = {name: value.replace("URL", self.model.url) for name, value in self.host.environment.items()}
        with output.open("wb") as stream:
            process = subprocess.Popen(
                [str(program_of(self.host.package, self.host.program)), *self._filled(self.host.arguments)],
                stdin=subprocess.DEVNULL,
                stdout=stream,
                stderr=subprocess.STDOUT,
                cwd=self._work,
                env={**self._environment, **more},
                start_new_session=True,
            )
        try:
            code = process.wait(RUN_SECONDS)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()
            return f"; it did not end within {RUN_SECONDS} s"
        last = output.read_text(errors="replace").strip()[-200:].replace("\n", " ")
        return f"; exit code {code}: {last}" if code else ""

    def give_back(self) -> str:
        """`disconnect`, after which the file must be as it was. What became of the file, in words.

        A host that keeps settings of its own in the file of its servers changes it at each start. Then what stood there
        at first must stand there again, with the same values.

        Raises:
            DeskError: the file is another one.
        """
        by_host = self._file.read_bytes() != self._connected
        self._run([COLONNADE, "disconnect", self.host.name, "--yes"])
        content = self._file.read_bytes()
        if content == self._before:
            return "same bytes"
        now = _values(self._file, content)
        if by_host and all(now.get(key) == value for key, value in _values(self._file, self._before).items()):
            return "same servers, beside what the host wrote"
        raise DeskError(f"disconnect did not give {self.host.file} back as it was")

    def end_hosts(self) -> None:
        """End the hosts of Colonnade that run in the background here by SIGTERM, also one that still starts.

        Raises:
            AssertionError: one did not end in time.
        """
        told: set[int] = set()

        def have_ended() -> bool:
            for host in find_hosts(self._state):
                if host.pid not in told:
                    told.add(host.pid)
                    os.kill(host.pid, signal.SIGTERM)
            return not any(BACKGROUND in command for command in self._processes().values())

        until(have_ended, "the hosts have ended", END_SECONDS)

    def left_behind(self) -> list[str]:
        """Kill the processes of this desk that have not ended by themselves, and give their command lines. Helpers that
        the desktop host leaves to run are killed first, and not given."""
        own = str(folder_of(self.host.package))
        self._kill(own)
        with suppress(AssertionError):
            until(lambda: not self._processes(), "the processes have ended", END_SECONDS)
        return self._kill("")

    def _kill(self, word: str) -> list[str]:
        """Kill the processes of this desk whose command lines hold a word, and give these."""
        found = {pid: command for pid, command in self._processes().items() if word in command}
        for pid in found:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return list(found.values())

    def _processes(self) -> dict[int, str]:
        """Those whose home this is, with their command lines."""
        mark = f"HOME={self.folder}".encode()
        found = {}
        for entry in Path("/proc").iterdir():
            with suppress(OSError, ValueError):
                if mark in (entry / "environ").read_bytes().split(b"\0"):
                    found[int(entry.name)] = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode().strip()
        return found

    def _filled(self, words: Sequence[str]) -> list[str]:
        return [word.replace("URL", self.model.url) for word in words]

    def _run(self, command: Sequence[str], cwd: Path | None = None) -> None:
        """A command that must succeed.

        Raises:
            DeskError: it did not.
        """
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=COLONNADE_SECONDS, check=False,
            cwd=cwd or self.folder, env=self._environment,
        )  # fmt: skip
        if done.returncode != 0:
            words = " ".join([Path(command[0]).name, *command[1:]])
            raise DeskError(f"{words}: exit code {done.returncode}: {(done.stdout + done.stderr).strip()[-500:]}")


def _values(file: Path, content: bytes) -> dict[str, Any]:
    """The values in a host's file."""
    text = content.decode()
    parsers: dict[str, Callable[[str], Any]] = {".json": json.loads, ".toml": tomllib.loads, ".yaml": yaml.safe_load}
    values: dict[str, Any] = parsers[file.suffix](text)
    return values


@contextmanager
def busy_loops() -> Iterator[None]:
    """Two programs that use all they get of a processor each."""
    loops = [subprocess.Popen([*BARE_PYTHON, "-c", "while True: pass"]) for _ in range(2)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
