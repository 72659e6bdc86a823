"""Commands in this process, on what a host left that does not run any more."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from config import load
from host.audit.writer import open_audit
from host.cli.command_line import run
from host.journal import Journal
from host.policy.confirmations import ConfirmationQueue, PendingConfirmation
from host.policy.decision_log import DecisionLog
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.storage.directory import State, open_state
from host.storage.sqlite import open_store
from tests.kit.gates import observe

TOOLS = {name: json.dumps({"name": name, "description": f"{name}\u202e"}).encode() for name in ("create", "get")}


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
        with open_audit(self.state.audit, full=False) as audit, open_store(self.state, self.file) as store:

            def tell(what: str, pending: PendingConfirmation, said: dict[str, object]) -> None:
                return

            pins = Pins(store, {id: spec.trust for id, spec in config.servers.items()})
            queue = ConfirmationQueue(Grants(store), config.ask, tell)
            return work(Gate(config.servers, pins, queue, DecisionLog(audit, Journal())))


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
