"""A gate as a host has it, over real files."""

from __future__ import annotations

import os
import sqlite3
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, TypeVar

import trio
from msgspec import structs
from msgspec.structs import replace

from config import AskSpec, CallerSpec, Channel, KindConsent, Rule, ServerSpec, Verdict
from host.audit.writer import Audit
from host.journal import Journal
from host.policy.confirmations import ConfirmationAnswer, ConfirmationQueue, PendingConfirmation
from host.policy.decision_log import AuditRecord, DecisionLog
from host.policy.gate import Gate
from host.policy.grants import AccessRequest, Grant, Grants
from host.policy.pins import Pins
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.source import EntryRef, Source
from host.storage.directory import State, open_state
from host.storage.sqlite import SqliteStore, open_store
from host.subject import Item, Subject
from tests.kit.awaited import awaited, checkpoint, is_at_once
from tests.kit.folders import folder

T = TypeVar("T")

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
def open_gate(
    servers: Mapping[str, ServerSpec],
    journal: Journal | None = None,
    *,
    ask: AskSpec | None = None,
    state: Path | None = None,
    source: Path = SOURCE,
    callers: Mapping[str, CallerSpec] | None = None,
) -> Iterator[Gate]:
    """A gate for the block. `state` is where decisions are kept; two gates over the same one are as two hosts, or as
    one after a restart. `source` is the configuration file, which is not read."""
    with folder() as made:
        opened = open_state(state or made / "state")
        if state is None:
            _copy_empty_store(opened)
        with (
            Audit(opened.audit) as audit,
            open_store_here(opened, source) as store,
        ):
            decision_log = DecisionLog(audit, journal or Journal())
            confirmations = ConfirmationQueue(Grants(store), ask or AskSpec(), decision_log.record_confirmation)
            trusts = {server: spec.trust for server, spec in servers.items()}
            yield Gate(servers, callers or {}, Pins(store, trusts), confirmations, decision_log)


@cache
def _empty_store() -> bytes:
    """The database of a state directory that was opened once, by nobody's configuration yet."""
    with folder() as made:
        opened = open_state(made / "state")
        with open_store(opened, SOURCE, run_in_thread=run_here):
            pass
        with closing(sqlite3.connect(opened.path / "colonnade.db", isolation_level=None)) as database:
            database.execute("DELETE FROM config")
        return (opened.path / "colonnade.db").read_bytes()


def _copy_empty_store(state: State) -> None:
    """Put a database with its tables into a new state directory: to make them anew takes longer than most tests."""
    with open(os.open(state.path / "colonnade.db", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as copy:
        copy.write(_empty_store())


@contextmanager
def store_opener(
    state: Path, *, monotonic: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
) -> Iterator[Callable[[], SqliteStore]]:
    """For the block, what opens the store of a state directory as one host more: without threads."""
    opened = open_state(state)
    with ExitStack() as stack:
        yield lambda: stack.enter_context(open_store_here(opened, SOURCE, monotonic, wall))


@contextmanager
def locked(state: Path) -> Iterator[None]:
    """For the block, another process writes to the store of this state directory, and does not come to an end."""
    with closing(sqlite3.connect(state / "colonnade.db", isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        yield


async def run_here(work: Callable[[], T], /) -> T:
    """Run it without a thread, for which a clock that jumps would not wait."""
    result = work()
    await checkpoint()
    return result


class Turn:
    """The lock of a store, which holds up nothing that is done at once: who has it only waits for a checkpoint."""

    def __init__(self) -> None:
        self._lock = trio.Lock()

    async def __aenter__(self) -> None:
        if not is_at_once():
            await self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        if not is_at_once():
            self._lock.release()


@contextmanager
def open_store_here(
    state: State,
    source: Path,
    monotonic: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
) -> Iterator[SqliteStore]:
    """A store without threads; with COLONNADE_TEST_STORE=postgres that of a fleet, which looks at the database at each
    `poll`, since no test waits for notices."""
    if os.environ.get("COLONNADE_TEST_STORE") == "postgres":
        from tests.kit.fleet_gates import open_fleet_here

        with open_fleet_here(state.path, source, monotonic, wall) as fleet:
            yield fleet  # type: ignore[misc]  # what tests know of a store is common to both
        return
    with open_store(state, source, run_in_thread=run_here, monotonic=monotonic, wall=wall) as store:
        store._turn = Turn()  # type: ignore[assignment]  # no lock of trio can be taken without a checkpoint
        yield store


def entry(server: str, kind: Kind, name: str, era: Era = Era.SESSION) -> EntryRef:
    """What a server offers, over a session if nothing else is said."""
    return EntryRef(Source(server, era), kind, name)


def observe(gate: Gate, server: str, kind: Kind, offered: Mapping[str, bytes], era: Era = Era.SESSION) -> None:
    """The server lists this now, over a session if nothing else is said."""
    assert gate.definitions.commit(awaited(gate.definitions.prepare(Source(server, era), kind, offered)))


def approve_all(gate: Gate) -> None:
    """A person approves of all that is held back now."""
    for each in gate.definitions.pins.held():
        awaited(gate.definitions.approve(each.item, each.fingerprint, Channel.CONSOLE.value))


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
                awaited(confirmations.answer(confirmation.id, answer, Channel.CONSOLE, seconds=60.0))

    confirmations.subscribe(look)
    try:
        with confirmations.attach(Channel.CONSOLE):
            yield asked
    finally:
        is_there = False
