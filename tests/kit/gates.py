"""A gate as a host has it, over real files: in memory where the machine has such a place, since nobody looks at them
again."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from config import AskSpec, Channel, KindConsent, Rule, ServerSpec, Verdict
from host.journal import Journal
from host.policy.audit import Audit
from host.policy.confirmations import ConfirmationAnswer, ConfirmationQueue, PendingConfirmation
from host.policy.decision_log import DecisionLog
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.slices import run_inline
from host.state import open_state

_IN_MEMORY = "/dev/shm"
SOURCE = Path("/nowhere/colonnade.yaml")


def kind(
    *, allow: Sequence[str] | None = None, ask: Sequence[str] = (), deny: Sequence[str] = (), default: str | None = None
) -> KindConsent:
    """The consent for one kind, by patterns alone."""
    return KindConsent(
        None if allow is None else tuple(map(Rule, allow)),
        tuple(map(Rule, ask)),
        tuple(map(Rule, deny)),
        None if default is None else Verdict(default),
    )


@contextmanager
def folder() -> Iterator[Path]:
    """An empty folder for the block."""
    with tempfile.TemporaryDirectory(dir=_IN_MEMORY if os.access(_IN_MEMORY, os.W_OK) else None) as made:
        yield Path(made)


@contextmanager
def open_gate(
    servers: Mapping[str, ServerSpec],
    journal: Journal | None = None,
    *,
    ask: AskSpec | None = None,
    state: Path | None = None,
    full: bool = False,
) -> Iterator[Gate]:
    """A gate for the block. `state` is where decisions are kept; two gates over the same one are as two hosts, or as
    one after a restart."""
    with folder() as made:
        opened = open_state(state or made / "state")
        kept = opened.for_config(SOURCE)
        with Audit(opened.audit, full=full) as audit:
            decision_log = DecisionLog(audit, journal or Journal())
            desk = ConfirmationQueue(
                Grants(kept.file("grants.json")), ask or AskSpec(), decision_log.record_confirmation
            )
            trusts = {server: spec.trust for server, spec in servers.items()}
            gate = Gate(servers, Pins(kept.file("pins.json"), trusts), desk, decision_log)
            yield gate


def observe(gate: Gate, server: str, kind: Kind, offered: Mapping[str, bytes]) -> None:
    """The server lists this now."""
    assert gate.definitions.commit(run_inline(gate.definitions.prepare(server, kind, offered)))


def approve_all(gate: Gate) -> None:
    """A person approves of all that is held back now."""
    for each in gate.definitions.pins.held():
        gate.definitions.approve(each.server, each.kind, each.name, each.fingerprint, Channel.CONSOLE.value)


@contextmanager
def auto_answering(
    gate: Gate, answer: ConfirmationAnswer = ConfirmationAnswer.ONCE
) -> Iterator[list[PendingConfirmation]]:
    """For the block a person is there who gives every question this answer at once; the questions so far."""
    asked: list[PendingConfirmation] = []

    def look() -> None:
        for confirmation in gate.authorizer.confirmations.list_all():
            if confirmation.waiters:
                asked.append(confirmation)
                gate.authorizer.confirmations.answer(confirmation.id, answer, Channel.CONSOLE, seconds=60.0)

    former, gate.authorizer.confirmations.on_change = gate.authorizer.confirmations.on_change, look
    try:
        with gate.authorizer.confirmations.attach(Channel.CONSOLE):
            yield asked
    finally:
        gate.authorizer.confirmations.on_change = former
