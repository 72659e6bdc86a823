"""Where decisions go: to a running host by its admin socket, or into the database if no host of a configuration runs.

Every failure is a CommandFailed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from config import AskSpec, Channel, Config, ConfigError, load
from host.admin.decisions import PolicyAdmin
from host.admin.schema import AdminError, MalformedRequest, carry_out
from host.audit.writer import Audit
from host.cli.admin_client import RunningHost, find_hosts
from host.cli.exit_codes import UNREACHED, CommandFailed
from host.errors import ColonnadeError
from host.journal import Journal
from host.policy.confirmations import ConfirmationQueue
from host.policy.decision_log import DecisionLog
from host.policy.explain import grant_as_data, held_as_data
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.sanitize import visible
from host.slices import run_inline
from host.storage.directory import State
from host.storage.sqlite import open_store
from host.storage.store import StateError
from host.wire.descent import DescentUnknown, ancestry, refusal_reason, this_process


@contextmanager
def as_command_failures() -> Iterator[None]:
    """Turn what can go wrong with the state directory and with decisions into CommandFailed."""
    try:
        yield
    except (AdminError, MalformedRequest, StateError) as problem:
        raise CommandFailed(str(problem)) from problem
    except ColonnadeError as problem:
        raise CommandFailed(problem.message) from problem
    except BrokenPipeError:  # of standard output
        raise
    except OSError as problem:
        raise CommandFailed(f"the audit cannot be used: {problem.strerror}") from problem


class DecisionTarget(Protocol):
    """A running host, or the stored decisions of one configuration."""

    @property
    def config(self) -> str: ...

    def servers(self) -> Collection[str]:
        """The ids of its servers."""

    def state(self) -> Mapping[str, Any]:
        """The state as of the admin API; without a host only the sections that are stored."""

    def post(self, path: str, **body: object) -> Any:
        """The result of a request to the admin API."""


@dataclass(frozen=True, slots=True)
class RunningTarget:
    """A running host."""

    host: RunningHost

    @property
    def config(self) -> str:
        return self.host.config

    @property
    def pid(self) -> int:
        return self.host.pid

    @property
    def starter(self) -> str:
        """The name of the program that started the host, as a desktop host does; empty if it cannot be determined."""
        try:
            _, parent, *_ = ancestry(self.pid)
        except (DescentUnknown, ValueError):
            return ""
        return visible(parent.name)

    @property
    def process(self) -> str:
        """The process of the host, with the program that started it: it tells hosts of one configuration apart."""
        return f"process {self.pid}" + (f", started by {self.starter}" if self.starter else "")

    def servers(self) -> Collection[str]:
        return [str(server["id"]) for server in self.state()["servers"]]

    def state(self) -> Mapping[str, Any]:
        state: Mapping[str, Any] = self.host.get("state")
        return state

    def post(self, path: str, **body: object) -> Any:
        return self.host.post(path, **body)


class StoredTarget:
    """The stored decisions of one configuration, none of whose hosts runs."""

    def __init__(self, state: State, source: Path) -> None:
        self._state = state
        self._source = source

    @property
    def config(self) -> str:
        return os.path.realpath(self._source)

    def servers(self) -> Collection[str]:
        config = _config(self._source)
        return () if config is None else config.servers

    def state(self) -> Mapping[str, Any]:
        with self._gate() as gate:
            return {
                "config": self.config,
                "held": [held_as_data(gate, held) for held in gate.definitions.held()],
                "grants": [grant_as_data(gate, grant) for grant in gate.authorizer.grants.all()],
                "confirmations": [],
            }

    def post(self, path: str, **body: object) -> Any:
        caller = this_process()
        refusal = None if path == "explain" else refusal_reason(caller, self._state.hosts)
        with self._gate() as gate:
            admin = PolicyAdmin(gate)
            if refusal is not None:
                admin.record_refused_peer(caller, refusal)
                raise AdminError(refusal)
            steps = carry_out(admin, path, json.dumps(body).encode(), Channel.TERMINAL)
            return run_inline(admin.attributed_to(caller, steps))

    @contextmanager
    def _gate(self) -> Iterator[Gate]:
        config = _config(self._source)
        servers = {} if config is None else config.servers
        trusts = {server: spec.trust for server, spec in servers.items()}
        with (
            as_command_failures(),
            Audit(self._state.audit) as audit,
            open_store(self._state, self._source) as store,
        ):
            confirmations = ConfirmationQueue(Grants(store), AskSpec(), lambda what, confirmation, said: None)
            yield Gate(servers, Pins(store, trusts), confirmations, DecisionLog(audit, Journal()))


def _config(source: Path) -> Config | None:
    """The configuration; None, with a line on standard error, if it cannot be read."""
    try:
        return load(source)
    except ConfigError as error:
        if source.exists():
            why = f"{error.problems[0]}; what is held of its servers is not shown"
            print(f"colonnade: {why}", file=sys.stderr)
        return None


@dataclass(frozen=True, slots=True)
class DecisionScope:
    """Whose decisions a command is about: those of one configuration, or (None) of all."""

    state: State
    config: Path | None

    def running(self) -> list[RunningTarget]:
        """The running hosts. Problems with others are printed.

        Raises:
            CommandFailed: there is none (UNREACHED).
        """
        targets = self._running()
        if not targets:
            raise CommandFailed("no host of yours runs (colonnade serve)", UNREACHED)
        return targets

    def _running(self) -> list[RunningTarget]:
        targets: list[RunningTarget] = []
        for host in find_hosts(self.state.path):
            if host.problem is not None:
                print(f"colonnade: the host of process {host.pid}: {host.problem}", file=sys.stderr)
            elif self.config is None or host.config == os.path.realpath(self.config):
                targets.append(RunningTarget(host))
        return targets

    def all(self) -> list[DecisionTarget]:
        """For each configuration one of its running hosts; these share what is decided. If none runs, the stored
        decisions: of the selected configuration, or of all known ones."""
        by_config: dict[str, DecisionTarget] = {}
        for target in self._running():
            by_config.setdefault(target.config, target)
        if by_config:
            return list(by_config.values())
        sources = self.state.sources() if self.config is None else [self.config]
        return [StoredTarget(self.state, source) for source in sources]


def only(targets: Sequence[DecisionTarget]) -> DecisionTarget:
    """The only one of these; none is guessed.

    Raises:
        CommandFailed: there is none, or there are several.
    """
    if len(targets) != 1:
        known = "; ".join(target.config for target in targets)
        raise CommandFailed(f"say which configuration with --config FILE: {known or 'none is known'}")
    return targets[0]
