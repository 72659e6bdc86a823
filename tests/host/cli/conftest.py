"""Commands in this process, on what a host left that does not run any more."""

from __future__ import annotations

import io
import json
import logging
import os
import pty
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TextIO

import pytest
import trio

from config import Config, load
from host.audit.writer import open_audit
from host.cli.command_line import run
from host.cli.common import LOGGER_PARTS
from host.journal import Journal
from host.policy.confirmations import ConfirmationQueue, PendingConfirmation
from host.policy.decision_log import DecisionLog
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.storage.directory import State, open_state
from host.storage.sqlite import open_store
from host.trial import Trial
from tests.host.admin.test_socket import RunningHost, running_host
from tests.kit.gates import observe
from tests.real.person import Person

TOOLS = {name: json.dumps({"name": name, "description": f"{name}\u202e"}).encode() for name in ("create", "get")}


@dataclass
class Trials:
    """The trials of servers. Those without an outcome are known, and so are not tried."""

    outcomes: dict[str, Trial] = field(default_factory=dict)
    tried: list[str] = field(default_factory=list)

    def expect(self, *outcomes: Trial) -> None:
        self.outcomes |= {outcome.server: outcome for outcome in outcomes}

    async def try_servers(
        self,
        config: Config,
        state: State,
        journal: Journal,
        servers: Iterable[str],
        may_try: Callable[[list[str]], bool],
        tell: Callable[[Trial], object],
        folder: str,
    ) -> None:
        await trio.lowlevel.checkpoint()
        assert folder == os.getcwd()
        unknown = [id for id in servers if id in self.outcomes]
        if unknown and may_try(unknown):
            self.tried += unknown
            for id in unknown:
                tell(self.outcomes[id])


@pytest.fixture(autouse=True)
def trials(monkeypatch: pytest.MonkeyPatch) -> Trials:
    """No command in this process starts a server."""
    trials = Trials()
    monkeypatch.setattr("host.trial.try_servers", trials.try_servers)
    return trials


@pytest.fixture(autouse=True)
def levels_of_the_log() -> Iterator[None]:
    """A command sets them for its whole process, where other tests look for warnings later."""
    loggers = [logging.getLogger(name) for name in ("", "colonnade", *(f"colonnade.{part}" for part in LOGGER_PARTS))]
    before = [logger.level for logger in loggers]
    yield
    for logger, level in zip(loggers, before, strict=True):
        logger.setLevel(level)


class TypedText(io.StringIO):
    """What somebody types at a terminal."""

    def isatty(self) -> bool:
        return True


Types = Callable[[str], None]


@pytest.fixture
def types(monkeypatch: pytest.MonkeyPatch) -> Types:
    """Sit at a terminal and type."""
    return lambda text: monkeypatch.setattr("sys.stdin", TypedText(text))


@contextmanager
def host_at(state: str) -> Iterator[RunningHost]:
    """A host with this state directory, for the block."""
    folder = Path(state, "run")
    Path(state).mkdir(0o700)
    folder.mkdir(0o700)
    with running_host(folder) as running:
        yield running


@dataclass
class Terminal:
    """The terminal from which this process reads, and to which it writes once somebody sits there."""

    ours: int
    stdout: TextIO
    monkeypatch: pytest.MonkeyPatch
    readers: list[threading.Thread] = field(default_factory=list)

    def type(self, text: str) -> None:
        """Type it, and wait until the terminal has it, which it shows by its echo."""
        os.write(self.ours, text.encode())
        echo = text.replace("\n", "\r\n")
        said = ""
        while echo not in said:
            said += os.read(self.ours, 4096).decode()

    def seat(self, answers: Mapping[str, str]) -> Person:
        """Somebody who reads from now on and answers questions, by the patterns of what was printed last."""
        self.monkeypatch.setattr("sys.stdout", self.stdout)
        person = Person(self.ours, answers)
        self.readers.append(threading.Thread(target=person.sit, daemon=True))
        self.readers[-1].start()
        return person


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Iterator[Terminal]:
    """A real one."""
    ours, theirs = pty.openpty()
    with open(theirs) as stdin, open(os.dup(theirs), "w") as stdout:
        monkeypatch.setattr("sys.stdin", stdin)
        terminal = Terminal(ours, stdout, monkeypatch)
        yield terminal
    for reader in terminal.readers:  # they would read on from whatever has the number of this descriptor next
        reader.join()
    os.close(ours)


@dataclass(frozen=True)
class Stopped:
    """A configuration none of whose hosts runs, and the commands about it."""

    file: Path
    state: State

    def run(self, *arguments: str) -> int:
        """The exit code of a command about this configuration."""
        return run([*arguments, "--config", str(self.file), "--state", str(self.state.path)])

    def audit(self, *arguments: str) -> int:
        return run(["audit", *arguments, "--state", str(self.state.path)])

    def inside(self, work: Callable[[Gate], object]) -> object:
        """Do it as a host of this file would, which then ends."""
        config = load(self.file)
        with open_audit(self.state.audit) as audit, open_store(self.state, self.file) as store:

            def tell(what: str, pending: PendingConfirmation, said: dict[str, object]) -> None:
                return

            pins = Pins(store, {id: spec.trust for id, spec in config.servers.items()})
            queue = ConfirmationQueue(Grants(store), config.ask, tell)
            return work(Gate(config.servers, config.callers, pins, queue, DecisionLog(audit, Journal())))


@pytest.fixture
def stopped(tmp_path: Path) -> Stopped:
    """A host left two definitions that wait for a person."""
    path = tmp_path / "colonnade.yaml"
    servers = {
        "gh": {
            "url": "http://127.0.0.1:9/mcp",
            "trust": "untrusted",
            "consent": {"tools": {"allow": ["get"], "ask": ["create"], "deny": ["wipe"]}},
        }
    }
    path.write_text(json.dumps({"servers": servers}))
    stopped = Stopped(path, open_state(tmp_path / "state"))
    stopped.inside(lambda gate: observe(gate, "gh", Kind.TOOL, TOOLS))
    return stopped
