"""Confirmations of all processes of a fleet: shown at each, and answered once.

A process stores what its calls ask (`home`), and shows what the others ask. An answer is one conditional change of the
store, in whose transaction the grant is stored if it lasts: of two answers one counts. Each process hears of it by the
revision of the grants. The home takes the answer out of the store, which one process can do, and lets its call go on:
so a grant for one call is in the memory of one process.

An answer for one call that no call waits for stays in the store: the next equal call takes it, at whichever process.
That is so after the time of a call was over, and if its home is gone. Other answers are for the home alone, which may
have been stopped for a while and not be gone; if it is, they are forgotten in time.

Nothing in the store can be read, changed or made without the key of the fleet. Whoever can write the database can
remove a question, or bring an old row back within REFUSED_LIFE, as he can with grants.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TypeVar, cast

import msgspec
import trio
from msgspec import Raw, Struct, structs
from msgspec.structs import replace

from host.errors import AuditUnavailable
from host.jsonrpc.raw import value
from host.policy.confirmations import (
    REFUSED_LIFE,
    ConfirmationAnswer,
    ConfirmationContext,
    ConfirmationQueue,
    GivenAnswer,
    PendingConfirmation,
    is_equal,
)
from host.policy.grants import AccessRequest, Grant, stored_form
from host.seal import InvalidSeal, Seal
from host.source import EntryRef
from host.storage.postgres import FleetTransaction, PostgresStore
from host.storage.sql import Transaction
from host.storage.store import StateError, StoredConfirmation
from host.subject import Subject

T = TypeVar("T")

LOOK = 0.5
"""Seconds between two looks whether a process is gone, or the time of a question is over; of the rest it is told."""
RETRY = 0.5
"""Seconds before the store is tried again after it did not answer."""


class _Question(Struct, frozen=True):
    """The sealed part of a confirmation."""

    subject: Subject
    is_of_session: bool
    retry: bool
    ref: EntryRef | None
    through: str
    context: ConfirmationContext
    created_at: float
    expires_at: float
    refused: str


class _Row(Struct, eq=False):
    """A confirmation in the store, as this process can read it. `answer`: the answer as it is stored."""

    home: str
    confirmation: PendingConfirmation
    given: GivenAnswer | None
    answer: str


class SharedConfirmations:
    """Implements `host.policy.confirmations.FleetAnswers`. `run` must run beside it.

    Args:
        is_present: whether the fleet has the process of this id.
        attended_elsewhere: whether somebody is at another process who can answer.
    """

    def __init__(
        self,
        queue: ConfirmationQueue,
        store: PostgresStore,
        seal: Seal,
        is_present: Callable[[str], bool],
        attended_elsewhere: Callable[[], bool],
    ) -> None:
        self._queue = queue
        self._store = store
        self._seal = seal
        self._is_present = is_present
        self.is_attended = attended_elsewhere
        self._rows: dict[str, _Row] = {}
        self._published: dict[str, str] = {}
        """The confirmations of this process in the store: why each was refused, by id."""
        self._seen = -1
        self._woken = trio.Event()
        queue.subscribe(self._wake)
        store.subscribe(self._wake)

    def _wake(self) -> None:
        self._woken.set()

    async def run(self) -> None:
        """Store the confirmations of this process, and follow those of the others, until cancelled."""
        while True:
            self._woken = trio.Event()
            pause = LOOK
            try:
                await self._publish()
                await self._follow()
            except StateError:
                pause = RETRY  # the revision may not have moved, so that what was missed is read again
                self._seen = -1
            with trio.move_on_after(pause):
                await self._woken.wait()

    def others(self) -> Sequence[PendingConfirmation]:
        own, now = self._own(), time.time()
        return [
            row.confirmation
            for id, row in self._rows.items()
            if row.given is None and id not in own and row.home != self._seal.boot and now < row.confirmation.expires_at
        ]

    async def answer(self, confirmation: PendingConfirmation, given: GivenAnswer, grant: Grant | None) -> bool:
        id, home, row = confirmation.id, self._seal.boot, None
        is_own = id in self._own()
        if not is_own:
            row = self._rows.get(id)
            if row is None:
                return False
            home = row.home
        sealed = self._seal.seal("answer", _binding(id, home), msgspec.msgpack.encode(given), REFUSED_LIFE)

        def change(transaction: FleetTransaction) -> bool:
            if is_own:  # it may not be there yet
                transaction.put_confirmation(self._stored(confirmation))
            if not transaction.answer_confirmation(id, sealed):
                return False
            if grant is not None:
                transaction.put_grant(stored_form(grant))
            return True

        answered = await self._write(change)
        if answered and row is not None:
            row.given = given  # it is not shown any more
        self._wake()
        return answered

    async def take(self, confirmation: PendingConfirmation) -> bool:
        id = confirmation.id

        def change(transaction: FleetTransaction) -> bool:
            transaction.put_confirmation(self._stored(confirmation))
            return transaction.withdraw_confirmation(id)

        try:
            return await self._write(change)
        finally:  # whatever became of it: other calls may wait for an answer still
            self._published.pop(id, None)

    async def claim(self, access: AccessRequest) -> bool:
        for confirmation, given in self.unclaimed():
            if not is_equal(access, confirmation.access):
                continue
            id = confirmation.id
            try:
                with self._answering(id):
                    if await self._claim(id):
                        await self._queue.apply(confirmation, given)
                        return True
            except StateError:
                return False
            finally:
                self._wake()
        return False

    def unclaimed(self) -> Sequence[tuple[PendingConfirmation, GivenAnswer]]:
        return [
            (row.confirmation, row.given)
            for row in self._rows.values()
            if row.given is not None and row.given.answer is ConfirmationAnswer.ONCE and not self._is_awaited(row)
        ]

    async def withdraw(self, id: str) -> bool:
        withdrawn = await self._claim(id)
        self._rows.pop(id, None)
        self._wake()
        return withdrawn

    async def _write(self, change: Callable[[FleetTransaction], T]) -> T:
        """Store a change; the transactions of this store are those of a fleet."""
        return await self._store.write(cast("Callable[[Transaction], T]", change))

    async def _claim(self, id: str) -> bool:
        return await self._write(lambda transaction: transaction.claim_confirmation(id))

    def _answering(self, id: str) -> AbstractContextManager[None]:
        """While an answer to a confirmation is taken out of the store, and applied: one of this process would make its
        row anew."""
        own = self._own().get(id)
        return nullcontext() if own is None else own.answering()

    def _is_awaited(self, row: _Row) -> bool:
        """Whether a call at its home waits for it."""
        own = self._own().get(row.confirmation.id)
        if own is not None:
            return bool(own.waiters)
        here = row.home == self._seal.boot
        return not here and not row.confirmation.refused and self._is_present(row.home)

    # Questions of this process

    async def _publish(self) -> None:
        own = self._own()
        changed = [each for id, each in own.items() if self._published.get(id) != each.refused]
        gone = [id for id in self._published if id not in own]
        if not changed and not gone:
            return

        def change(transaction: FleetTransaction) -> None:
            for each in changed:
                transaction.put_confirmation(self._stored(each))
            for id in gone:
                transaction.withdraw_confirmation(id)

        # Noted before: what is taken back meanwhile (`take`) is to be stored again.
        self._published |= {each.id: each.refused for each in changed}
        try:
            await self._write(change)
        except StateError:
            for each in changed:
                self._published.pop(each.id, None)
            raise
        for id in gone:
            self._published.pop(id, None)

    def _own(self) -> dict[str, PendingConfirmation]:
        return {each.id: each for each in self._queue.own()}

    def _stored(self, confirmation: PendingConfirmation) -> StoredConfirmation:
        access, context = confirmation.access, confirmation.context
        question = _Question(
            structs.replace(access.subject, session=None),
            access.subject.session is not None,
            access.retry,
            access.ref,
            access.through,
            replace(context, process=None),  # the program of the client is one of this machine
            confirmation.created_at + self._ahead(),
            confirmation.expires_at + self._ahead(),
            confirmation.refused,
        )
        # A question of a process that is gone can be answered for the next call.
        left = confirmation.expires_at - time.time() + (0 if confirmation.refused else REFUSED_LIFE)
        binding = _binding(confirmation.id, self._seal.boot)
        sealed = self._seal.seal("confirmation", binding, msgspec.msgpack.encode(question), left)
        return StoredConfirmation(confirmation.id, self._seal.boot, sealed, "", self._store.now() + left)

    def _ahead(self) -> float:
        """Seconds by which the clock of the store is ahead of that of this machine. Questions are stored in the time of
        the store, since the clocks of two machines differ."""
        return self._store.now() - time.time()

    # Questions of all

    async def _follow(self) -> None:
        revision = self._store.poll().grants
        if revision != self._seen:
            rows = await self._write(FleetTransaction.confirmations)
            self._rows = {row.id: read for row in rows if (read := self._opened(row)) is not None}
            self._seen = revision
            self._queue.release_covered()
            self._queue.changed()
        for id, row in list(self._rows.items()):
            if row.given is not None:
                await self._apply(id, row, row.given)

    async def _apply(self, id: str, row: _Row, given: GivenAnswer) -> None:
        """Let the call of this process go on that waits for this answer."""
        if row.home != self._seal.boot:
            return
        own = self._own().get(id)
        if given.answer is ConfirmationAnswer.ONCE and (own is None or not own.waiters):
            if own is not None:
                self._queue.settle(own)
            if not row.confirmation.refused:
                await self._free(id, row)
            return
        with self._answering(id):
            if await self._claim(id):
                self._published.pop(id, None)
                own = self._own().get(id)  # an equal call may have taken the place of the one that waited
                if own is not None and not given.is_lasting:
                    try:
                        await self._queue.apply(own, given)
                    except AuditUnavailable as problem:  # so nothing is granted
                        self._queue.fail(own, problem)
                elif own is not None:
                    self._queue.settle(own)
        self._rows.pop(id, None)

    async def _free(self, id: str, row: _Row) -> None:
        """Say of an answer that came as its call ended that the next equal call takes it, at whichever process: the
        others take this one for the one that waits for it."""
        freed = replace(row.confirmation, refused="its call has ended", expires_at=time.time() + REFUSED_LIFE)

        def change(transaction: FleetTransaction) -> None:
            if transaction.claim_confirmation(id):
                transaction.put_confirmation(self._stored(freed))
                transaction.answer_confirmation(id, row.answer)

        await self._write(change)

    def _opened(self, row: StoredConfirmation) -> _Row | None:
        """The row; None if it was not made with the key, or by a version whose questions this one cannot read."""
        binding = _binding(row.id, row.home)
        try:
            question = msgspec.msgpack.decode(self._seal.unseal("confirmation", binding, row.sealed), type=_Question)
            given = None
            if row.answer:
                given = msgspec.msgpack.decode(self._seal.unseal("answer", binding, row.answer), type=GivenAnswer)
        except (InvalidSeal, msgspec.DecodeError):
            return None
        subject, raw = question.subject, question.context.raw_arguments
        if question.is_of_session:
            subject = structs.replace(subject, session=row.home)
        arguments = value(Raw(raw)) if raw else None
        access = AccessRequest(subject, arguments, question.retry, question.ref, question.through)
        refused = question.refused
        created_at, expires_at = question.created_at - self._ahead(), question.expires_at - self._ahead()
        if not refused and row.home != self._seal.boot and not self._is_present(row.home):
            refused, expires_at = "the process that asked has ended", expires_at + REFUSED_LIFE
        confirmation = PendingConfirmation(row.id, access, question.context, created_at, expires_at, refused=refused)
        return _Row(row.home, confirmation, given, row.answer)


def _binding(id: str, home: str) -> bytes:
    return f"{id} {home}".encode()
