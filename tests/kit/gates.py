"""A gate as a host has it, over real files: in memory where the machine has such a place, since nobody looks at them
again."""

from __future__ import annotations

import os
import sqlite3
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

import trio
from msgspec import structs

from config import AskSpec, Channel, KindConsent, Rule, ServerSpec, Verdict
from host.audit.writer import Audit
from host.journal import Journal
from host.policy.confirmations import ConfirmationAnswer, ConfirmationQueue, PendingConfirmation
from host.policy.decision_log import AuditRecord, DecisionLog
from host.policy.gate import Gate
from host.policy.grants import AccessRequest, Grant, Grants
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.slices import run_inline
from host.source import EntryRef, Source
from host.storage.directory import open_state
from host.storage.sqlite import SqliteStore, open_store
from host.subject import Item, Subject

_IN_MEMORY = "/dev/shm"
_Bound = TypeVar("_Bound", AccessRequest, Grant, AuditRecord)
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


def altered(of: _Bound, **changes: Any) -> _Bound:
    """The same access request, grant or record, but for these fields of its own, of its subject or of its item."""
    its = [{name: changes.pop(name) for name in kind.__struct_fields__ if name in changes} for kind in (Item, Subject)]
    subject = structs.replace(of.subject, item=structs.replace(of.subject.item, **its[0]), **its[1])
    if isinstance(of, AuditRecord):
        return structs.replace(of, subject=subject, **changes)
    return replace(of, subject=subject, **changes)


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
    source: Path = SOURCE,
    full: bool = False,
) -> Iterator[Gate]:
    """A gate for the block. `state` is where decisions are kept; two gates over the same one are as two hosts, or as
    one after a restart. `source` is the configuration file, which is not read."""
    with folder() as made:
        opened = open_state(state or made / "state")
        with (
            Audit(opened.audit, full=full) as audit,
            open_store(opened, source, run_in_thread=run_here) as store,
        ):
            decision_log = DecisionLog(audit, journal or Journal())
            confirmations = ConfirmationQueue(Grants(store), ask or AskSpec(), decision_log.record_confirmation)
            trusts = {server: spec.trust for server, spec in servers.items()}
            yield Gate(servers, Pins(store, trusts), confirmations, decision_log)


@contextmanager
def store_opener(
    state: Path, *, monotonic: Callable[[], float] = time.monotonic
) -> Iterator[Callable[[], SqliteStore]]:
    """For the block, what opens the store of a state directory as one host more: without threads."""
    opened = open_state(state)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(open_store(opened, SOURCE, run_in_thread=run_here, monotonic=monotonic))


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """For the block, another process writes to the store of this state directory, and does not come to an end."""
    with closing(sqlite3.connect(state / "colonnade.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def run_here(work: Callable[[], None]) -> None:
    """Run it without a thread, for which a clock that jumps would not wait."""
    work()
    await trio.lowlevel.checkpoint()


def entry(server: str, kind: Kind, name: str, era: Era = Era.SESSION) -> EntryRef:
    """What a server offers, over a session if nothing else is said."""
    return EntryRef(Source(server, era), kind, name)


def observe(gate: Gate, server: str, kind: Kind, offered: Mapping[str, bytes], era: Era = Era.SESSION) -> None:
    """The server lists this now, over a session if nothing else is said."""
    assert gate.definitions.commit(run_inline(gate.definitions.prepare(Source(server, era), kind, offered)))


def approve_all(gate: Gate) -> None:
    """A person approves of all that is held back now."""
    for each in gate.definitions.pins.held():
        run_inline(gate.definitions.approve(each.item, each.fingerprint, Channel.CONSOLE.value))


@contextmanager
def auto_answering(
    gate: Gate, answer: ConfirmationAnswer = ConfirmationAnswer.ONCE
) -> Iterator[list[PendingConfirmation]]:
    """For the block a person is there who gives every question this answer at once; the questions so far."""
    asked: list[PendingConfirmation] = []

    confirmations, is_there = gate.authorizer.confirmations, True

    def look() -> None:
        for confirmation in confirmations.list_all() if is_there else ():
            if confirmation.waiters:
                asked.append(confirmation)
                run_inline(confirmations.answer(confirmation.id, answer, Channel.CONSOLE, seconds=60.0))

    confirmations.subscribe(look)
    try:
        with confirmations.attach(Channel.CONSOLE):
            yield asked
    finally:
        is_there = False
