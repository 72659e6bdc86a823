"""Where decisions go: to a running host by its admin socket, or into the database if no host of a configuration runs.

Every failure is a CommandFailed.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import trio

from config import AskSpec, Channel, Config, ConfigError, load
from host.admin.decisions import PolicyAdmin
from host.admin.schema import STORED_REQUESTS, AdminError, MalformedRequest, read_request
from host.audit.writer import Audit
from host.cli.admin_client import RunningHost, find_hosts, socket_paths
from host.cli.exit_codes import UNREACHED, CommandFailed
from host.errors import ColonnadeError
from host.journal import Journal
from host.policy.confinement import settled_servers
from host.policy.confirmations import ConfirmationQueue
from host.policy.decision_log import DecisionLog
from host.policy.explain import count_uncounted, grant_as_data, held_as_data
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.slices import run_within
from host.storage.choice import open_chosen_store
from host.storage.directory import State
from host.storage.store import StateError
from host.subject import Item
from host.views import EVERYTHING, View
from host.wire.descent import refusal_reason, this_process


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

    def servers(self) -> Mapping[str, str]:
        """The ids of its servers, each with the prefix of its names."""

    def state(self) -> Mapping[str, Any]:
        """The state as of the admin API; without a host only the sections that are stored."""

    def post(self, path: str, **body: object) -> Any:
        """The result of a request to the admin API."""


class StoredTarget:
    """The stored decisions of one configuration, none of whose hosts runs."""

    def __init__(self, state: State, source: Path) -> None:
        self._state = state
        self._source = source
        self._told = ""

    @property
    def config(self) -> str:
        return os.path.realpath(self._source)

    def servers(self) -> Mapping[str, str]:
        config = self._config()
        return {} if config is None else {id: spec.outward_prefix for id, spec in config.servers.items()}

    def state(self) -> Mapping[str, Any]:
        with self._gate() as gate:
            return trio.run(self._state_of, gate)

    async def _state_of(self, gate: Gate) -> Mapping[str, Any]:
        return {
            "config": self.config,
            "servers": [{"id": id, "uncounted": await _count_uncounted(gate, id)} for id in gate.policies.servers()],
            "held": [held_as_data(gate, held) for held in await gate.definitions.held()],
            "grants": [grant_as_data(gate, grant) for grant in gate.authorizer.grants.all()],
            "confirmations": [],
            "catalog": _renamed(gate.policies.views.view(EVERYTHING), gate.policies.servers()),
        }

    def post(self, path: str, **body: object) -> Any:
        caller = this_process()
        refusal = None if path == "explain" else refusal_reason(caller, self._state.hosts)
        with self._gate() as gate:
            admin = PolicyAdmin(gate)
            if refusal is not None:
                admin.record_refused_peer(caller, refusal)
                raise AdminError(refusal)
            request = read_request(STORED_REQUESTS, path, json.dumps(body).encode())
            return trio.run(run_within, partial(admin.attributing, caller), request.carry_out(admin, Channel.TERMINAL))

    def _config(self) -> Config | None:
        """The configuration; None, with a line on standard error the first time, if it cannot be read."""
        try:
            return load(self._source)
        except ConfigError as error:
            why = f"{error.problems[0]}; what is held of its servers is not shown"
            if self._source.exists() and why != self._told:
                print(f"colonnade: {why}", file=sys.stderr)
                self._told = why
            return None

    @contextmanager
    def _gate(self) -> Iterator[Gate]:
        config = self._config()
        servers, callers = ({}, {}) if config is None else (config.servers, config.callers)
        trusts = {server: spec.trust for server, spec in servers.items()}
        with (
            as_command_failures(),
            Audit(self._state.audit) as audit,
            open_chosen_store(None if config is None else config.fleet, self._state, self._source) as store,
        ):
            confirmations = ConfirmationQueue(
                Grants(store, wall=store.now), AskSpec(), lambda what, confirmation, said: None
            )
            pins = Pins(store, trusts, wall=store.now)
            servers = settled_servers(servers, pins)
            gate = Gate(servers, callers, pins, confirmations, DecisionLog(audit, Journal()))
            if config is not None:
                gate.policies.views.replace(config)
            yield gate


def _renamed(view: View, servers: Iterable[str]) -> list[dict[str, str]]:
    """The entries to which an override gives another name; all others show their own."""
    return [
        {"server": id, "kind": kind, "name": own, "outward": view.names.outward_name(id, override.name)}
        for id in servers
        for kind in (Kind.TOOL, Kind.PROMPT)
        for own, override in view.overrides(id, kind).items()
        if override.name is not None
    ]


async def _count_uncounted(gate: Gate, server: str) -> int:
    """`count_uncounted` of what the server offered last."""
    definitions = gate.definitions
    items = (Item(server, Kind.TOOL.value, name) for name in definitions.pins.names(server, Kind.TOOL))
    return await count_uncounted(gate, server, map(definitions.ref_of, items))


@dataclass(frozen=True, slots=True)
class DecisionScope:
    """Whose decisions a command is about: those of one configuration, or (None) of all."""

    state: State
    config: Path | None

    def running(self) -> list[RunningHost]:
        """The running hosts. Problems with others are printed.

        Raises:
            CommandFailed: there is none (UNREACHED).
        """
        targets = self.find()
        if not targets:
            raise CommandFailed(
                "no host of yours runs: it starts with its first client, or by colonnade serve", UNREACHED
            )
        return targets

    def find(self) -> list[RunningHost]:
        """The running hosts, perhaps none. Problems with others are printed."""
        targets: list[RunningHost] = []
        for host in find_hosts(self.state.path):
            if host.problem is not None:
                print(f"colonnade: the host of process {host.pid}: {host.problem}", file=sys.stderr)
            elif self.config is None or host.config == os.path.realpath(self.config):
                targets.append(host)
        return targets

    def sockets(self) -> set[Path]:
        """The sockets at which hosts may be found. No host is asked."""
        return socket_paths(self.state.path)

    def all(self) -> list[DecisionTarget]:
        """For each configuration one of its running hosts; these share what is decided. If none runs, the stored
        decisions: of the selected configuration, or of all known ones."""
        by_config: dict[str, DecisionTarget] = {}
        for target in self.find():
            by_config.setdefault(target.config, target)
        if by_config:
            return list(by_config.values())
        sources = self.state.sources() if self.config is None else [self.config]
        return [StoredTarget(self.state, source) for source in sources]


def only(targets: Sequence[DecisionTarget], server: str | None = None) -> DecisionTarget:
    """The only one of these, or of those with this server if there are such; none is guessed.

    Raises:
        CommandFailed: there is none, or there are several.
    """
    if server is not None:
        targets = [target for target in targets if server in target.servers()] or targets
    if len(targets) != 1:
        known = "; ".join(target.config for target in targets)
        raise CommandFailed(f"say which configuration with --config FILE: {known or 'none is known'}")
    return targets[0]
