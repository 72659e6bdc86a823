"""Confirmations of two processes over one database: each is shown at both, answered once, and lets its call go on."""

from __future__ import annotations

import threading
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack, asynccontextmanager
from typing import Any, TypeVar

import pytest
import trio
from msgspec import structs
from msgspec.structs import replace
from trio.testing import wait_all_tasks_blocked

from config import AskSpec, Channel, Trust
from host.errors import AuditUnavailable, ColonnadeError, Forbidden, Unconfirmed
from host.fleet.confirmations import LOOK, SharedConfirmations
from host.policy.confirmations import ConfirmationAnswer, ConfirmationContext, ConfirmationQueue, PendingConfirmation
from host.policy.grants import AccessRequest, Grant, Grants, Scope
from host.protocol.methods import Kind
from host.seal import Seal
from host.storage.postgres import PostgresStore, open_postgres
from host.storage.sql import Cursor, Transaction
from host.storage.store import StateError
from host.subject import Item, Subject
from tests.host.fleet.conftest import StoredFleet
from tests.kit.gates import entry
from tests.kit.postgres import needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]

KEY = bytes(32)
ACCESS = AccessRequest(
    Subject(
        Item("gh", "tool", "create"),
        caller="laptop",
        session=None,
        fingerprint="sha256:1",
        launch="sha256:2",
        rule="tools.ask: create",
        digest="sha256:3",
    ),
    arguments={"owner": "acme"},
    ref=entry("gh", Kind.TOOL, "create"),
)
OF_SESSION = replace(ACCESS, subject=structs.replace(ACCESS.subject, session="s1"))
ABOUT = ConfirmationContext(Trust.UNTRUSTED, b'{"owner":"acme"}', ("read only",), b'{"name":"create"}', says="x")
T = TypeVar("T")
ONCE, DENY, ALWAYS, TIME = (ConfirmationAnswer(each) for each in ("once", "deny", "always", "time"))


class Process:
    """One process of the fleet, as far as people's answers go."""

    def __init__(self, store: PostgresStore, present: set[str], spec: AskSpec) -> None:
        self.told: list[tuple[str, dict[str, object]]] = []
        self.store = store
        self.grants = Grants(store, wall=store.now)
        self.queue = ConfirmationQueue(self.grants, spec, lambda what, _, said: self.told.append((what, dict(said))))
        self.boot = (seal := Seal(KEY)).boot
        self.attended_elsewhere = False
        self.shared = SharedConfirmations(
            self.queue, store, seal, present.__contains__, lambda: self.attended_elsewhere
        )
        self.queue.fleet = self.shared
        self.asked: list[Asked] = []

    async def shows(self, count: int = 1) -> list[PendingConfirmation]:
        """What is shown here, once it is so many."""
        return await until(lambda: self.queue.list_all(), lambda found: len(found) == count)

    async def answers(self, answer: ConfirmationAnswer, channel: Channel = Channel.CONSOLE) -> bool:
        (shown,) = await self.shows()
        seconds = 60.0 if answer is TIME else None
        return await self.queue.answer(shown.id, answer, channel, seconds=seconds) is not None


class Asked:
    """A call that waits, and what it came to."""

    def __init__(self, nursery: trio.Nursery, process: Process, access: AccessRequest = ACCESS) -> None:
        self.grant: Grant | None = None
        self.refusal: ColonnadeError | None = None
        self.ended = trio.Event()
        self.scope = trio.CancelScope()
        nursery.start_soon(self._ask, process, access)

    async def _ask(self, process: Process, access: AccessRequest) -> None:
        try:
            with self.scope:
                self.grant = await process.queue.confirm(access, ABOUT, None)
        except ColonnadeError as refusal:
            self.refusal = refusal
        self.ended.set()

    async def ends(self) -> Grant | ColonnadeError | None:
        with trio.fail_after(10):
            await self.ended.wait()
        return self.grant or self.refusal


async def until(look: Callable[[], list[T]], holds: Callable[[list[T]], bool]) -> list[T]:
    with trio.fail_after(10):
        while not holds(found := look()):  # noqa: ASYNC110
            await trio.sleep(0.01)
    return found


class Pair:
    """Two processes."""

    def __init__(self, a: Process, b: Process, present: set[str], nursery: trio.Nursery) -> None:
        self.a, self.b, self.nursery = a, b, nursery
        self._present = present
        nursery.start_soon(b.shared.run)
        self.resume_a()

    def asks(self, process: Process, access: AccessRequest = ACCESS) -> Asked:
        return Asked(self.nursery, process, access)

    def end_a(self) -> None:
        """End the first one without a word."""
        self._of_a.cancel()
        self._present.discard(self.a.boot)

    def resume_a(self) -> None:
        """Let the first one run, perhaps after it was stopped."""
        self._present.add(self.a.boot)
        self._of_a = trio.CancelScope()
        self.nursery.start_soon(self._run_a, self._of_a)

    async def _run_a(self, scope: trio.CancelScope) -> None:
        with scope:
            await self.a.shared.run()


@asynccontextmanager
async def open_pair(fleet: StoredFleet, timeout: float = 50.0, *, attended: bool = True) -> AsyncIterator[Pair]:
    present: set[str] = set()
    spec = AskSpec((Channel.CONSOLE, Channel.CLIENT), timeout)
    with ExitStack() as stack:
        a, b = (Process(stack.enter_context(open_postgres(fleet.of_process())), present, spec) for _ in range(2))
        present |= {a.boot, b.boot}
        for each in (a, b) if attended else ():
            stack.enter_context(each.queue.attach(Channel.CONSOLE))
        async with trio.open_nursery() as nursery:
            yield Pair(a, b, present, nursery)
            nursery.cancel_scope.cancel()


async def test_a_question_is_shown_and_answered_at_another_process(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        (shown,) = await pair.b.shows()
        (own,) = pair.a.queue.list_all()
        assert (shown.id, shown.context, shown.refused) == (own.id, own.context, "")
        assert (shown.access.subject, shown.access.arguments) == (ACCESS.subject, ACCESS.arguments)
        assert await pair.b.answers(ONCE)
        grant = await asked.ends()
        assert isinstance(grant, Grant)
        assert pair.a.grants.use(grant, ACCESS)
        assert not pair.a.grants.use(grant, ACCESS)
        for each in (pair.a, pair.b):
            await each.shows(0)
        assert pair.b.grants.all() == []
        assert [what for what, _ in pair.b.told] == ["answer"]
        assert [what for what, _ in pair.a.told] == ["ask", "answer", "granted"]


async def test_an_answer_that_the_home_cannot_record_grants_nothing_and_ends_no_process(
    stored_fleet: StoredFleet,
) -> None:
    async with open_pair(stored_fleet) as pair:
        record, is_full = pair.a.queue._record, True

        def fail(what: str, confirmation: PendingConfirmation, said: dict[str, object]) -> None:
            if is_full and "grant" in said:
                raise AuditUnavailable("the disk is full")
            record(what, confirmation, said)

        pair.a.queue._record = fail
        asked = pair.asks(pair.a)
        await pair.b.shows()
        assert await pair.b.answers(ONCE)
        assert isinstance(await asked.ends(), AuditUnavailable)
        assert pair.a.grants.all() == []
        await pair.b.shows(0)
        is_full = False
        asked = pair.asks(pair.a)
        await pair.b.shows()
        assert await pair.b.answers(ONCE)
        assert isinstance(await asked.ends(), Grant)


async def test_an_answer_that_no_call_has_taken_is_a_grant_that_can_be_revoked(stored_fleet: StoredFleet) -> None:
    """At each process; once it is taken back, or a call has it, it is none."""
    async with open_pair(stored_fleet, timeout=0.2) as pair:

        async def answered() -> None:
            await pair.asks(pair.a).ends()
            await until(pair.b.queue.list_all, lambda found: [bool(each.refused) for each in found] == [True])
            assert await pair.b.answers(ONCE)
            for process in (pair.a, pair.b):
                await until(process.queue.unclaimed, lambda found: len(found) == 1)

        await answered()
        (grant,), (same,) = pair.a.queue.unclaimed(), pair.b.queue.unclaimed()
        assert (grant.id, grant.scope, grant.subject) == (same.id, Scope.ONCE, ACCESS.subject)
        assert await pair.a.shared.withdraw(grant.id)
        assert not await pair.b.shared.withdraw(grant.id)
        assert not await pair.b.shared.claim(ACCESS)
        await answered()
        assert await pair.a.shared.claim(ACCESS)
        for process in (pair.a, pair.b):
            await until(process.queue.unclaimed, lambda found: found == [])
        assert [each.scope for each in pair.a.grants.all()] == [Scope.ONCE]


async def test_of_two_answers_one_counts(stored_fleet: StoredFleet) -> None:
    """Whichever: a denial and a permission at once, at both processes, many times."""
    async with open_pair(stored_fleet) as pair:
        for attempt in range(10):
            asked = pair.asks(pair.a)
            await pair.b.shows()
            won: list[ConfirmationAnswer] = []

            async def answer(process: Process, given: ConfirmationAnswer, won: list[ConfirmationAnswer] = won) -> None:
                (shown,) = process.queue.list_all()
                if await process.queue.answer(shown.id, given, Channel.CONSOLE) is not None:
                    won.append(given)

            both = [(pair.a, DENY), (pair.b, ONCE)]
            async with trio.open_nursery() as nursery:
                for process, given in both[:: 1 if attempt % 2 else -1]:
                    nursery.start_soon(answer, process, given)
            assert len(won) == 1
            outcome = await asked.ends()
            assert isinstance(outcome, Grant if won == [ONCE] else Forbidden)
            if isinstance(outcome, Grant):
                assert pair.a.grants.use(outcome, ACCESS)
            await pair.b.shows(0)


@pytest.mark.parametrize("late", [Channel.CONSOLE, Channel.CLIENT])
async def test_an_answer_counts_no_more_once_that_of_another_process_is_being_taken_over(
    stored_fleet: StoredFleet, monkeypatch: pytest.MonkeyPatch, late: Channel
) -> None:
    """Its row is gone by then, and must not be made anew."""
    async with open_pair(stored_fleet) as pair:
        asked, said = pair.asks(pair.a), list[object]()
        (shown,) = await pair.b.shows()
        write = pair.a.store.write

        async def write_late(change: Callable[[Transaction], T]) -> T:
            is_claim = not said and any(row.given is not None for row in pair.a.shared._rows.values())
            done = await write(change)
            if is_claim:
                said.append(await pair.a.queue.answer(shown.id, ONCE, late))
            return done

        monkeypatch.setattr(pair.a.store, "write", write_late)
        assert await pair.b.answers(DENY)
        assert isinstance(await asked.ends(), Forbidden)
        for process in (pair.a, pair.b):
            await process.shows(0)
        assert said == [None]
        assert not await pair.b.shared.claim(ACCESS)
        assert pair.a.grants.all() == []


async def test_of_two_answers_at_one_process_one_counts(
    stored_fleet: StoredFleet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of the client's own and one on the console."""
    async with open_pair(stored_fleet) as pair:
        asked, said = pair.asks(pair.a), list[object]()
        (shown,) = await pair.b.shows()
        take = pair.a.shared.take

        async def take_late(confirmation: PendingConfirmation) -> bool:
            taken = await take(confirmation)
            said.append(await pair.a.queue.answer(shown.id, ALWAYS, Channel.CONSOLE))
            return taken

        monkeypatch.setattr(pair.a.shared, "take", take_late)
        assert await pair.a.queue.answer(shown.id, DENY, Channel.CLIENT) is not None
        assert isinstance(await asked.ends(), Forbidden)
        assert said == [None]
        for process in (pair.a, pair.b):
            await process.shows(0)
            assert process.grants.all() == []


@pytest.mark.parametrize("answer", [TIME, ALWAYS])
async def test_a_lasting_answer_is_stored_with_it_and_holds_at_both(
    stored_fleet: StoredFleet, answer: ConfirmationAnswer
) -> None:
    async with open_pair(stored_fleet) as pair:
        asked = [pair.asks(pair.a), pair.asks(pair.a)]
        await pair.b.shows()
        assert await pair.b.answers(answer)
        for each in asked:
            assert isinstance(await each.ends(), Grant)
        for process in (pair.a, pair.b):
            await process.shows(0)
            assert process.grants.find(ACCESS) is not None
            assert [each.scope for each in process.grants.all()] == [Scope(answer.value)]


async def test_an_answer_for_one_call_lets_one_of_two_go_on(stored_fleet: StoredFleet) -> None:
    """The other one is asked about still."""
    async with open_pair(stored_fleet) as pair:
        asked = [pair.asks(pair.a), pair.asks(pair.a)]
        await until(pair.a.queue.list_all, lambda found: len(found) == 1 and len(found[0].waiters) == 2)
        assert await pair.b.answers(ONCE)
        await until(pair.a.queue.list_all, lambda found: len(found) == 1 and len(found[0].waiters) == 1)
        await pair.b.shows()
        assert [each.ended.is_set() for each in asked].count(True) == 1
        assert await pair.b.answers(DENY)
        assert {type(await each.ends()) for each in asked} == {Grant, Forbidden}


@pytest.mark.parametrize("at", ["a", "b"])
async def test_an_answer_that_came_too_late_is_for_the_next_call_at_whichever_process(
    stored_fleet: StoredFleet, at: str
) -> None:
    """For one, in all."""
    async with open_pair(stored_fleet, timeout=0.5) as pair:
        assert isinstance(await pair.asks(pair.a).ends(), Unconfirmed)
        await until(pair.b.queue.list_all, lambda found: bool(found) and bool(found[0].refused))
        assert await pair.b.answers(ONCE)
        for process in (pair.a, pair.b):
            await process.shows(0)
        first, second = (pair.a, pair.b) if at == "a" else (pair.b, pair.a)
        assert [await process.shared.claim(OF_SESSION) for process in (first, second, first)] == [True, False, False]
        grant = first.grants.find(OF_SESSION)
        assert grant is not None
        assert first.grants.use(grant, OF_SESSION)
        assert second.grants.find(OF_SESSION) is None


async def test_what_a_process_asked_that_has_ended_can_be_answered_for_the_next_call(
    stored_fleet: StoredFleet,
) -> None:
    async with open_pair(stored_fleet) as pair:
        pair.asks(pair.a)
        await pair.b.shows()
        pair.end_a()
        assert await pair.b.answers(ONCE)
        await pair.b.shows(0)
        assert await pair.b.shared.claim(ACCESS)
        assert pair.b.grants.find(ACCESS) is not None


async def test_a_call_that_was_called_off_is_asked_about_no_more(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        await pair.b.shows()
        asked.scope.cancel()
        await pair.b.shows(0)


async def test_rows_without_the_key_are_neither_shown_nor_counted(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        await pair.b.shows()
        forged = "UPDATE colonnade.confirmation SET answer = sealed"
        stored_fleet.server.execute(
            "INSERT INTO colonnade.confirmation SELECT config, 'other', home, sealed, '', expires "
            "FROM colonnade.confirmation",
            forged,
            "UPDATE colonnade.config SET grants = grants + 1",
            "SELECT pg_notify('colonnade acme', '')",
            database=stored_fleet.database,
        )
        await until(pair.b.queue.list_all, lambda found: found == [])
        await trio.sleep(0.3)
        assert not asked.ended.is_set()
        assert not await pair.b.shared.claim(ACCESS)
        assert pair.a.grants.all() == []


async def test_while_the_database_is_away_nothing_is_answered_and_the_call_waits(stored_fleet: StoredFleet) -> None:
    """Neither here nor elsewhere; then one answer counts."""
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        (shown,) = await pair.b.shows()
        of = {"database": stored_fleet.database}
        stored_fleet.server.execute("ALTER TABLE colonnade.confirmation RENAME TO away", **of)
        for process in (pair.a, pair.b):
            with pytest.raises(StateError):
                await process.queue.answer(shown.id, ONCE, Channel.CONSOLE)
        assert not asked.ended.is_set()
        stored_fleet.server.execute("ALTER TABLE colonnade.away RENAME TO confirmation", **of)
        assert await pair.b.answers(ONCE)
        assert isinstance(await asked.ends(), Grant)


async def test_a_call_waits_if_somebody_is_at_another_process(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet, attended=False) as pair:
        assert isinstance(await pair.asks(pair.a).ends(), Unconfirmed)
        pair.a.attended_elsewhere = True
        asked = pair.asks(pair.a)
        await until(pair.b.queue.list_all, lambda found: [each.refused for each in found] == [""])
        assert await pair.b.answers(ONCE)
        assert isinstance(await asked.ends(), Grant)


async def test_a_question_that_ends_while_it_is_taken_back_ends_no_process(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        await pair.b.shows()
        (own,) = pair.a.queue.list_all()
        async with pair.a.store._turn:  # both are stored at once
            pair.nursery.start_soon(pair.a.shared.take, own)
            await wait_all_tasks_blocked()
            asked.scope.cancel()
            await wait_all_tasks_blocked()
        await pair.b.shows(0)
        pair.asks(pair.a)
        await pair.b.shows()


async def test_a_question_is_shown_again_if_it_is_not_known_whether_it_was_taken_back(
    stored_fleet: StoredFleet,
) -> None:
    async with open_pair(stored_fleet) as pair:
        pair.asks(pair.a)
        await pair.b.shows()
        (own,) = pair.a.queue.list_all()
        write = pair.a.store.write

        async def break_off(change: Callable[[Transaction], T]) -> T:
            pair.a.store.write = write  # type: ignore[method-assign]
            await write(change)
            raise StateError("the connection broke before the answer came")

        pair.a.store.write = break_off  # type: ignore[method-assign, assignment]
        with pytest.raises(StateError):
            await pair.a.shared.take(own)
        taken_back = pair.a.store.poll().grants
        await until(lambda: [pair.b.shared._seen], lambda found: found[0] >= taken_back)
        await pair.b.shows()


async def test_an_answer_waits_for_a_process_that_was_stopped_and_is_not_gone(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        await pair.b.shows()
        pair.end_a()
        assert await pair.b.answers(DENY)
        await pair.b.shows(0)
        await trio.sleep(2 * LOOK)
        pair.resume_a()
        assert isinstance(await asked.ends(), Forbidden)


async def test_an_answer_that_came_as_its_call_ended_is_for_the_next_call_at_whichever_process(
    stored_fleet: StoredFleet,
) -> None:
    """Though the process whose call it was is still there."""
    async with open_pair(stored_fleet) as pair:
        asked = pair.asks(pair.a)
        await pair.b.shows()
        pair.end_a()
        assert await pair.b.answers(ONCE)
        asked.scope.cancel()
        await asked.ended.wait()
        pair.resume_a()
        await until(lambda: list(pair.b.shared.unclaimed()), lambda found: len(found) == 1)
        assert await pair.b.shared.claim(ACCESS)
        assert not await pair.a.shared.claim(ACCESS)


async def test_a_question_is_shown_in_the_time_of_the_machine_where_it_is_shown(stored_fleet: StoredFleet) -> None:
    async with open_pair(stored_fleet) as pair:
        now = pair.b.store.now
        pair.b.store.now = lambda: now() - 500  # type: ignore[method-assign]
        pair.asks(pair.a)
        (shown,) = await pair.b.shows()
        (own,) = pair.a.queue.list_all()
        assert shown.expires_at - own.expires_at == pytest.approx(500, abs=60)


@pytest.mark.parametrize("answer", [ONCE, ALWAYS])
async def test_an_answer_counts_at_a_process_that_hears_late_what_time_it_is(
    stored_fleet: StoredFleet, answer: ConfirmationAnswer
) -> None:
    """It finds the answer as it stores something else. By then its clock is behind that of the process at which the
    answer was given, by the time that the database took to say it, or that this process did not run."""
    async with open_pair(stored_fleet) as pair:
        follower = pair.a.store._follower
        assert follower is not None
        execute, late = follower.execute, threading.Event()

        def hear_late(query: str, *rest: Any, **more: Any) -> Cursor:
            found = execute(query, *rest, **more)
            if "clock_timestamp" in query:
                late.wait(2 * LOOK)
            return found

        follower.execute = hear_late  # type: ignore[method-assign]
        asked = pair.asks(pair.a)
        await pair.b.shows()
        await until(lambda: [pair.a.store.lag], lambda found: found[0] > LOOK)
        assert await pair.b.answers(answer)
        pair.asks(pair.a, replace(ACCESS, subject=structs.replace(ACCESS.subject, digest="sha256:4")))
        grant = await asked.ends()
        assert isinstance(grant, Grant)
        assert pair.a.grants.use(grant, ACCESS)
