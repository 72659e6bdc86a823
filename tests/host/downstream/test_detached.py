"""Detached calls as tasks: each call and each question ends once, nobody finds what is another's, and nothing outlives
its time."""

from __future__ import annotations

import gc
import itertools
import weakref
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from typing import TypeAlias, TypeVar

import pytest
import trio
from hypothesis import given, settings
from msgspec import Raw
from trio.testing import MockClock, wait_all_tasks_blocked

from host.downstream import call_store, detached
from host.downstream.call_store import (
    KEPT_OVERHEAD_BYTES,
    MAX_TASKS_PER_OWNER,
    CallStore,
    InternalFailure,
    UnknownTask,
    open_call_store,
)
from host.downstream.detached import (
    DEFAULT_TTL_MS,
    MAX_TTL_MS,
    MIN_TTL_MS,
    AttachedRequest,
    DetachedCall,
    Outcome,
    TaskOptions,
)
from host.errors import ColonnadeError, InvalidParams, ServerErrorResponse, TimedOut, TooManyRequests, UnknownState
from host.jsonrpc.messages import ErrorBody, Notification
from host.jsonrpc.raw import encode, items
from host.memory import Budget
from host.peer.outstanding import PeerError
from host.protocol.tasks import Status, Task
from host.wire.link import LinkLost
from tests.kit.examples import examples
from tests.kit.scripts import Step, scripts

ids = itertools.count()
pytestmark = pytest.mark.virtual_time

DONE = Raw(b'{"content":[]}')
YES = Raw(b'{"action":"accept"}')
ELICIT = "elicitation/create"
ME, STRANGER = "me", "stranger"
LOG = Notification("notifications/message", Raw(b"{}"))

T = TypeVar("T")
End: TypeAlias = Outcome | BaseException


@pytest.fixture
def crashes() -> list[Exception]:
    return []


@pytest.fixture
async def store(crashes: list[Exception]) -> AsyncIterator[CallStore]:
    async with open_call_store(crashes.append, Budget(now=trio.current_time)) as opened:
        yield opened


async def ended(ends: list[End], run: Callable[[], Awaitable[Outcome]]) -> None:
    """Run it, and note how it ended."""
    try:
        ends.append(await run())
    except trio.Cancelled as cancelled:
        ends.append(cancelled)
        raise
    except Exception as problem:  # noqa: BLE001 - the test looks at it
        ends.append(problem)


class Server:
    """The work of one call, and the server behind it: asks and ends at the test's command."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._finish = trio.Event()
        self._outcome: Raw | Exception = DONE
        self.calls: list[DetachedCall] = []
        self.unwinding = 0.0
        """Seconds that it takes to end when it is cancelled; then it has its outcome after all."""
        self.running = False
        self.was_cancelled = False

    async def __call__(self, call: DetachedCall) -> Raw:
        self.calls.append(call)
        self.running = True
        try:
            await self._finish.wait()
        except trio.Cancelled:
            self.was_cancelled = True
            if not self.unwinding:
                raise
            with trio.CancelScope(shield=True):
                await trio.sleep(self.unwinding)
        finally:
            self.running = False
        if isinstance(self._outcome, Exception):
            raise self._outcome
        return self._outcome

    def finish(self, outcome: Raw | Exception = DONE) -> None:
        self._outcome = outcome
        self._finish.set()

    async def finished(self, outcome: Raw | Exception = DONE) -> None:
        self.finish(outcome)
        await wait_all_tasks_blocked()

    async def asks(
        self, call: DetachedCall, params: dict[str, Raw] | None = None, scope: trio.CancelScope | None = None
    ) -> list[End]:
        """Ask in a task of its own. Gives the list that its end will be in; cancelling `scope` withdraws it."""
        ends: list[End] = []

        async def ask() -> None:
            with scope or trio.CancelScope():
                await ended(ends, lambda: call.request(ELICIT, params or {}, None))

        self._nursery.start_soon(ask)
        await wait_all_tasks_blocked()
        return ends


@pytest.fixture
def server(nursery: trio.Nursery) -> Server:
    return Server(nursery)


class Told:
    """What the client would have been told: the status at each call."""

    def __init__(self) -> None:
        self.statuses: list[Status] = []

    def __call__(self, call: DetachedCall) -> None:
        self.statuses.append(call.task.status)


@pytest.fixture
def told() -> Told:
    return Told()


def start_call(
    store: CallStore,
    owner: Hashable,
    work: Callable[[DetachedCall], Awaitable[Raw]],
    told: Callable[[DetachedCall], None],
    ttl_ms: int | None = None,
) -> DetachedCall:
    """Start what may become a task."""
    return store.start(owner, work, task=TaskOptions(f"gh.{next(ids)}", told, ttl_ms))


@pytest.fixture
def start(store: CallStore, server: Server, told: Told) -> Callable[[], Awaitable[DetachedCall]]:
    """Starts what becomes a task at once."""

    async def start() -> DetachedCall:
        call = start_call(store, ME, server, told)
        call.become_task()
        await wait_all_tasks_blocked()
        return call

    return start


Start: TypeAlias = Callable[[], Awaitable[DetachedCall]]


def request_of(tell: Callable[[Notification], None] = lambda notice: None) -> AttachedRequest:
    """The request that a call came with."""
    return AttachedRequest(0, tell, None)


def listened_to(call: DetachedCall) -> bool:
    return call.notices is not None


def only_key(call: DetachedCall) -> str:
    (key,) = call.server_requests
    return key


# A call that may become a task


async def test_a_call_that_never_becomes_a_task_is_answered_and_forgotten(
    store: CallStore, server: Server, told: Told
) -> None:
    call = start_call(store, ME, server, told)
    server.finish()
    assert await store.attend(call, request_of()) is DONE
    await wait_all_tasks_blocked()
    assert (told.statuses, store.tasks, store.tasks_of(ME)) == ([], 0, [])
    call.become_task()
    assert not call.is_task
    with pytest.raises(UnknownTask):
        store.find_task(ME, call.id)


async def test_whoever_waits_for_a_call_hears_that_it_became_a_task(
    store: CallStore, nursery: trio.Nursery, told: Told
) -> None:
    """Its server says so in the middle of the call; it goes on when its client has left."""
    came = trio.Event()

    async def work(call: DetachedCall) -> Raw:
        await trio.sleep(1)
        call.become_task()
        call.become_task()
        await came.wait()
        return DONE

    call = start_call(store, ME, work, told)
    with pytest.raises(UnknownTask):
        store.find_task(ME, call.id)
    assert await store.attend(call, request_of()) == call.task
    assert store.find_task(ME, call.id) is call
    assert store.tasks_of(ME) == [call]
    assert (call.task.status, told.statuses) == (Status.WORKING, [])
    came.set()
    await wait_all_tasks_blocked()
    assert (call.task.status, told.statuses) == (Status.COMPLETED, [Status.COMPLETED])


async def test_a_client_that_leaves_before_it_is_a_task_calls_the_work_off(
    store: CallStore, server: Server, told: Told
) -> None:
    """(rule 45)"""
    call = start_call(store, ME, server, told)
    with trio.move_on_after(1) as waiting:
        await store.attend(call, request_of())
    await wait_all_tasks_blocked()
    assert waiting.cancelled_caught
    assert server.was_cancelled
    assert (call.is_over, store.tasks, told.statuses) == (True, 0, [])


async def test_before_it_is_a_task_it_speaks_to_its_request(
    store: CallStore, server: Server, told: Told, nursery: trio.Nursery
) -> None:
    """What it asked there and was not answered ends when it becomes a task."""
    call = store.start(ME, server, may_park=True, task=TaskOptions(f"gh.{next(ids)}", told))
    heard: list[Notification] = []
    nursery.start_soon(store.attend, call, request_of(heard.append))
    await wait_all_tasks_blocked()
    call.notify(LOG)
    params = {"_meta": Raw(b'{"progressToken":1}')}
    early = await server.asks(call, params)
    assert (call.server_requests, told.statuses) == ({"q1": (ELICIT, {})}, [])
    call.become_task()
    late = await server.asks(call, params)
    call.notify(LOG)
    assert (heard, call.server_requests) == ([LOG], {"q2": (ELICIT, {})})
    assert isinstance(early[0], LinkLost)
    assert (late, told.statuses) == ([], [Status.INPUT_REQUIRED])


async def test_before_it_is_a_task_and_without_a_request_nobody_hears_it(
    store: CallStore, server: Server, told: Told
) -> None:
    call = start_call(store, ME, server, told)
    call.notify(LOG)
    (end,) = await server.asks(call)
    assert isinstance(end, LinkLost)
    assert (call.server_requests, told.statuses) == ({}, [])


async def test_the_request_it_came_with_is_not_kept(
    store: CallStore, server: Server, told: Told, nursery: trio.Nursery
) -> None:
    class Stream:
        def tell(self, notice: Notification) -> None:
            """Hears what is told, and keeps nothing."""

    call = start_call(store, ME, server, told)
    stream = Stream()
    kept = weakref.ref(stream)
    nursery.start_soon(store.attend, call, request_of(stream.tell))
    del stream
    await wait_all_tasks_blocked()
    assert kept() is not None
    call.become_task()
    await wait_all_tasks_blocked()
    gc.collect()
    assert kept() is None


async def test_a_call_that_outlived_its_lifetime_stays_a_call(store: CallStore, server: Server, told: Told) -> None:
    """Whoever has waited so long gets its result, and no task that is gone at once."""
    call = start_call(store, ME, server, told, MIN_TTL_MS)
    await trio.sleep(2)
    call.become_task()
    server.finish()
    assert await store.attend(call, request_of()) is DONE


# What a client sees of its task


async def test_a_task_says_how_it_stands(start: Start, server: Server, told: Told) -> None:
    call = await start()
    task = call.task
    assert (task.id, task.status, task.ttl_ms, task.poll_ms) == (call.id, Status.WORKING, DEFAULT_TTL_MS, 500)
    assert (task.created, task.message) == (task.updated, None)
    await server.finished()
    assert (call.task.status, call.result, call.error, call.task.message) == (Status.COMPLETED, DONE, None, None)
    assert told.statuses == [Status.COMPLETED]


async def test_it_is_updated_when_its_status_changes(
    start: Start, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin = trio.current_time()
    monkeypatch.setattr(detached, "iso_timestamp", lambda seconds: f"{trio.current_time() - begin:.0f}")
    call = await start()
    seen = [call.task]
    for step in (server.asks(call), server.asks(call)):
        await trio.sleep(1)
        await step
        seen.append(call.task)
    for key in list(call.server_requests):
        await trio.sleep(1)
        call.answer(key, YES)
        seen.append(call.task)
    await trio.sleep(1)
    await server.finished()
    seen.append(call.task)
    assert {task.created for task in seen} == {"0"}
    assert [task.updated for task in seen] == ["0", "1", "2", "2", "4", "5"]


async def test_a_task_is_found_by_its_owner_alone(store: CallStore, start: Start, server: Server) -> None:
    """A stranger hears the same words as for a task that never was (rule 91, rule 93)."""
    call = await start()
    assert store.find_task(ME, call.id) is call
    assert (store.tasks_of(ME), store.tasks_of(STRANGER)) == ([call], [])
    words = set()
    for owner, id in ((STRANGER, call.id), (ME, "gh.other"), (ME, "")):
        with pytest.raises(InvalidParams) as refused:
            store.find_task(owner, id)
        words.add(refused.value.message)
    assert words == {"unknown task id; the task may have expired"}


async def test_tasks_are_listed_oldest_first(store: CallStore, server: Server, told: Told) -> None:
    """Those that have not become one are not among them."""
    calls = [start_call(store, ME, server, told) for _ in range(3)]
    calls[2].become_task()
    calls[0].become_task()
    assert store.tasks_of(ME) == [calls[0], calls[2]]
    assert store.tasks == 3


async def test_what_the_server_refused_is_the_error_of_the_task(
    start: Start, server: Server, crashes: list[Exception], told: Told
) -> None:
    """It is kept without the stack that it was raised in."""
    call = await start()
    await server.finished(ServerErrorResponse("gh", -32002, "no such thing", Raw(b'{"a":1}')))
    error = call.error
    assert isinstance(error, ServerErrorResponse)
    assert (error.code, error.message, error.data) == (-32002, "no such thing", Raw(b'{"a":1}'))
    assert error.__traceback__ is None
    assert (call.task.status, call.task.message, call.result) == (Status.FAILED, "no such thing", None)
    assert (crashes, told.statuses) == ([], [Status.FAILED])


async def test_what_nobody_expected_is_reported_and_not_told(
    start: Start, server: Server, crashes: list[Exception]
) -> None:
    call = await start()
    fault = ZeroDivisionError("a secret")
    await server.finished(fault)
    assert crashes == [fault]
    assert isinstance(call.error, ColonnadeError)
    assert (call.error.code, call.task.message) == (-32603, "Internal error in Colonnade; its log says more")
    assert call.task.status is Status.FAILED


async def test_what_a_task_tells_goes_to_whoever_wants_it(start: Start, server: Server) -> None:
    call = await start()
    call.notify(LOG)
    heard: list[Notification] = []
    call.notices = heard.append
    call.notify(LOG)
    await server.finished()
    assert not listened_to(call)
    call.notices = heard.append
    call.notify(LOG)
    assert heard == [LOG]


async def test_a_result_keeps_no_buffer_of_its_server_alive(start: Start, server: Server) -> None:
    call = await start()
    (view,) = items(b'[{"content":[]}]')
    await server.finished(view)
    assert call.result == view
    assert call.result is not view


# Questions


async def test_a_question_waits_for_its_answer(start: Start, server: Server, told: Told) -> None:
    """Nothing of the server's own request is in it."""
    call = await start()
    ends = await server.asks(call, {"message": Raw(b'"?"'), "_meta": Raw(b'{"progressToken":1}')})
    assert call.task.status is Status.INPUT_REQUIRED
    assert call.server_requests == {"q1": (ELICIT, {"message": Raw(b'"?"')})}
    assert call.answer("q1", YES)
    assert (call.task.status, call.server_requests) == (Status.WORKING, {})
    await wait_all_tasks_blocked()
    assert ends == [YES]
    assert not call.answer("q1", YES)
    assert told.statuses == [Status.INPUT_REQUIRED, Status.WORKING]


async def test_every_question_has_a_key_of_its_own(start: Start, server: Server, told: Told) -> None:
    """Also when none is open any more. Its client is told of each, and once more when none is left."""
    call = await start()
    for _ in range(2):
        await server.asks(call)
        await server.asks(call)
        for key in list(call.server_requests):
            assert call.answer(key, YES)
    await server.asks(call)
    assert list(call.server_requests) == ["q5"]
    asking, working = Status.INPUT_REQUIRED, Status.WORKING
    assert told.statuses == [asking, asking, working, asking, asking, working, asking]


@pytest.mark.parametrize("wrong", [b"[]", b"1", b"null"])
async def test_an_answer_that_is_no_object_leaves_the_question_open(wrong: bytes, start: Start, server: Server) -> None:
    call = await start()
    await server.asks(call)
    assert not call.answer(only_key(call), Raw(wrong))
    assert call.task.status is Status.INPUT_REQUIRED


async def test_one_open_question_can_be_looked_at(start: Start, server: Server) -> None:
    """All of them oldest first; what was taken before stays as it was."""
    call = await start()
    await server.asks(call, {"message": Raw(b'"?"')})
    await server.asks(call)
    before = call.server_requests
    assert list(before.items()) == [("q1", (ELICIT, {"message": Raw(b'"?"')})), ("q2", (ELICIT, {}))]
    assert call.open_request("q1") == (ELICIT, {"message": Raw(b'"?"')})
    assert call.open_request("q3") is None
    call.answer("q1", YES)
    assert call.open_request("q1") is None
    assert (list(call.server_requests), len(before)) == (["q2"], 2)


async def test_only_the_first_end_of_a_question_counts(start: Start, server: Server) -> None:
    call = await start()
    ends = await server.asks(call)
    assert call.answer("q1", YES)
    assert not call.answer("q1", Raw(b"{}"))
    call.refuse("q1", PeerError(ErrorBody(-1, "no")))
    call.cancel()
    await wait_all_tasks_blocked()
    assert ends == [YES]


async def test_an_unknown_key_answers_nothing(start: Start, server: Server) -> None:
    call = await start()
    ends = await server.asks(call)
    assert not call.answer("q2", YES)
    call.refuse("q2", PeerError(ErrorBody(-1, "no")))
    assert (list(call.server_requests), ends) == (["q1"], [])


async def test_a_client_may_refuse(start: Start, server: Server, told: Told) -> None:
    call = await start()
    ends = await server.asks(call)
    refusal = PeerError(ErrorBody(-1, "no"))
    call.refuse(only_key(call), refusal)
    await wait_all_tasks_blocked()
    (end,) = ends
    assert isinstance(end, PeerError)
    assert end.error is refusal.error
    assert refusal.__traceback__ is None, "it holds no stack of whoever asked"
    assert told.statuses == [Status.INPUT_REQUIRED, Status.WORKING]


async def test_a_question_that_is_withdrawn_can_no_longer_be_answered(start: Start, server: Server, told: Told) -> None:
    call = await start()
    scope = trio.CancelScope()
    ends = await server.asks(call, scope=scope)
    scope.cancel()
    await wait_all_tasks_blocked()
    assert isinstance(ends[0], trio.Cancelled)
    assert (call.server_requests, call.answer("q1", YES)) == ({}, False)
    assert told.statuses == [Status.INPUT_REQUIRED, Status.WORKING]


async def test_a_question_with_a_broken_meta_is_not_asked(start: Start, server: Server, told: Told) -> None:
    call = await start()
    (end,) = await server.asks(call, {"_meta": Raw(b"1")})
    assert isinstance(end, InvalidParams)
    assert (call.server_requests, told.statuses) == ({}, [])


async def test_with_the_call_its_questions_end(start: Start, server: Server, told: Told) -> None:
    call = await start()
    first, second = await server.asks(call), await server.asks(call)
    await server.finished()
    late = await server.asks(call)
    for (end,) in (first, second, late):
        assert isinstance(end, LinkLost)
    assert "over" in str(late[0])
    assert call.server_requests == {}
    assert told.statuses == [Status.INPUT_REQUIRED, Status.INPUT_REQUIRED, Status.COMPLETED]


async def test_whoever_waits_for_questions_gets_each_once(start: Start, server: Server, nursery: trio.Nursery) -> None:
    call = await start()
    seen: list[str | None] = []

    async def look() -> None:
        known: set[str] = set()
        while (key := await call.next_server_request(known)) is not None:
            seen.append(key)
            known.add(key)
        seen.append(None)

    await server.asks(call)
    nursery.start_soon(look)
    await wait_all_tasks_blocked()
    await server.asks(call)
    assert seen == ["q1", "q2"]
    call.answer("q1", YES)
    await server.asks(call)
    await server.finished()
    assert seen == ["q1", "q2", "q3", None]
    assert await call.next_server_request(()) is None


# Cancelling


async def test_a_cancelled_task_is_over_at_once(store: CallStore, start: Start, server: Server, told: Told) -> None:
    """Whatever its work still does, and it can be looked at until its lifetime is up (rule 50)."""
    server.unwinding = 1.0
    call = await start()
    ends = await server.asks(call)
    assert call.cancel()
    assert (call.task.status, call.server_requests, call.is_over) == (Status.CANCELLED, {}, True)
    assert not call.cancel()
    await wait_all_tasks_blocked()
    assert isinstance(ends[0], LinkLost)
    assert (server.running, server.was_cancelled, store.tasks) == (True, True, 1)
    await trio.sleep(2)
    assert (server.running, store.tasks) == (False, 0)
    assert (call.task.status, call.result, call.error, call.task.message) == (Status.CANCELLED, None, None, None)
    assert store.find_task(ME, call.id) is call
    assert told.statuses == [Status.INPUT_REQUIRED, Status.CANCELLED]


async def test_what_is_over_cannot_be_cancelled(start: Start, server: Server, told: Told) -> None:
    call = await start()
    await server.finished()
    assert not call.cancel()
    assert (call.task.status, told.statuses) == (Status.COMPLETED, [Status.COMPLETED])


async def test_a_task_cancelled_before_its_first_step_is_not_begun(
    store: CallStore, server: Server, told: Told
) -> None:
    call = start_call(store, ME, server, told)
    call.become_task()
    call.cancel()
    await wait_all_tasks_blocked()
    assert (server.calls, store.tasks, store.tasks_of(ME)) == ([], 0, [call])


# Lifetimes and limits


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        (None, DEFAULT_TTL_MS),
        (0, MIN_TTL_MS),
        (999, MIN_TTL_MS),
        (1_000, MIN_TTL_MS),
        (60_000, 60_000),
        (86_400_000, MAX_TTL_MS),
        (2**53, MAX_TTL_MS),
    ],
)
async def test_a_task_lives_as_long_as_it_says(
    asked: int | None, given: int, store: CallStore, server: Server, told: Told
) -> None:
    """From its start, not from its end."""
    call = start_call(store, ME, server, told, asked)
    call.become_task()
    assert call.task.ttl_ms == given
    await trio.sleep(given / 2000)
    server.finish()
    await trio.sleep(given / 2000 - 0.1)
    assert store.find_task(ME, call.id).result == DONE
    await trio.sleep(0.2)
    with pytest.raises(UnknownTask):
        store.find_task(ME, call.id)
    assert told.statuses == [Status.COMPLETED]


async def test_a_task_whose_lifetime_is_up_is_called_off_and_forgotten(
    store: CallStore, start: Start, server: Server, told: Told
) -> None:
    """Whoever waits for it hears that it is over, and questions end with it."""
    call = await start()
    ends = await server.asks(call)
    await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)
    assert server.was_cancelled
    assert isinstance(ends[0], LinkLost)
    assert (call.task.status, call.task.message) == (Status.CANCELLED, "its lifetime was up before it was done")
    assert told.statuses == [Status.INPUT_REQUIRED, Status.CANCELLED]
    assert (store.tasks, store.tasks_of(ME)) == (0, [])
    with pytest.raises(UnknownTask):
        store.find_task(ME, call.id)


async def test_the_lifetime_counts_also_while_the_work_takes_its_time_to_end(
    store: CallStore, start: Start, server: Server
) -> None:
    server.unwinding = 5.0
    call = await start()
    await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)
    assert (server.running, store.tasks) == (True, 1)
    assert store.tasks_of(ME) == []
    with pytest.raises(UnknownTask):
        store.find_task(ME, call.id)
    (end,) = await server.asks(call)
    assert isinstance(end, LinkLost)
    await trio.sleep(5)
    assert store.tasks == 0


async def test_a_call_that_is_no_task_has_no_lifetime(
    store: CallStore, server: Server, told: Told, nursery: trio.Nursery
) -> None:
    """Its own timeouts are its caller's matter."""
    call = start_call(store, ME, server, told, MIN_TTL_MS)
    await trio.sleep(10)
    assert server.running
    assert not call.is_over


async def test_one_owner_has_a_limit(store: CallStore, server: Server, told: Told) -> None:
    """What is over does not count, nor do others."""
    calls = [start_call(store, ME, server, told) for _ in range(MAX_TASKS_PER_OWNER)]
    with pytest.raises(TooManyRequests):
        start_call(store, ME, server, told)
    start_call(store, STRANGER, server, told)
    calls[0].become_task()
    calls[0].cancel()
    await wait_all_tasks_blocked()
    start_call(store, ME, server, told)
    assert (store.tasks, store.tasks_of(ME)) == (MAX_TASKS_PER_OWNER + 1, [calls[0]])


async def test_all_owners_together_have_a_limit(
    store: CallStore, server: Server, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(call_store, "MAX_TASKS", 5)
    for owner in range(5):
        start_call(store, owner, server, told)
    with pytest.raises(TooManyRequests):
        start_call(store, ME, server, told)
    await server.finished()
    start_call(store, ME, server, told)


def result_of(size: int) -> Raw:
    return Raw(b'"' + b"x" * (size - 2) + b'"')


async def kept(store: CallStore, outcomes: list[Raw | Exception], told: Told) -> list[int]:
    """Jobs with these outcomes, one after the other; the numbers of those that can be found in the end."""
    calls = []
    for outcome in outcomes:

        async def work(call: DetachedCall, outcome: Raw | Exception = outcome) -> Raw:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        calls.append(start_call(store, ME, work, told))
        calls[-1].become_task()
        await wait_all_tasks_blocked()
    there = store.tasks_of(ME)
    return [number for number, call in enumerate(calls) if call in there]


async def test_of_what_is_over_the_oldest_goes_first(
    store: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """When all of it holds too much together. Memory that is let go is free again."""
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", 3 * (KEPT_OVERHEAD_BYTES + 1000))
    exact = [result_of(1000) for _ in range(5)]
    assert await kept(store, [*exact], told) == [2, 3, 4]
    assert await kept(store, [result_of(1001), result_of(999), result_of(1000)], told) == [0, 1, 2]
    assert len(told.statuses) == 8


async def test_an_error_counts_too(store: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", 2 * KEPT_OVERHEAD_BYTES + 1000)
    assert await kept(store, [ServerErrorResponse("gh", 1, "no", result_of(1000)), result_of(1)], told) == [1]
    assert await kept(store, [ServerErrorResponse("gh", 1, "no", None), TimedOut("gh", "late")], told) == [0, 1]


async def test_a_result_that_is_too_much_alone_is_kept_alone(
    store: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody could ever have it otherwise."""
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", KEPT_OVERHEAD_BYTES)
    assert await kept(store, [result_of(10), result_of(KEPT_OVERHEAD_BYTES)], told) == [1]


async def test_what_is_forgotten_is_freed(store: CallStore, start: Start, server: Server, told: Told) -> None:
    call = await start()
    await server.finished()
    gone = weakref.ref(call)
    server.calls.clear()
    del call
    await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)
    gc.collect()
    assert gone() is None


async def test_a_task_that_is_over_keeps_nothing_of_its_request(store: CallStore) -> None:
    """Neither what was sent with it nor who is told."""

    class Work:
        async def __call__(self, call: DetachedCall) -> Raw:
            return DONE

    work, told = Work(), Told()
    freed = weakref.ref(work), weakref.ref(told)
    call = start_call(store, ME, work, told)
    call.become_task()
    del work, told
    await wait_all_tasks_blocked()
    gc.collect()
    assert [one() for one in freed] == [None, None]
    assert store.find_task(ME, call.id).result == DONE


class Owner:
    """One that can be watched."""


@pytest.mark.slow
async def test_an_owner_without_calls_is_not_kept(store: CallStore, server: Server, told: Told) -> None:
    owner = Owner()
    call = start_call(store, owner, server, told, MIN_TTL_MS)
    call.become_task()
    await wait_all_tasks_blocked()
    server.calls.clear()
    gone = weakref.ref(owner)
    del owner, call
    await server.finished()
    gc.collect()
    assert gone() is not None
    await trio.sleep(2)
    gc.collect()
    assert gone() is None


async def test_when_it_ends_all_calls_are_cancelled(
    nursery: trio.Nursery, told: Told, crashes: list[Exception]
) -> None:
    """Whoever waits outside of it does not wait for ever."""
    running, over = Server(nursery), Server(nursery)
    over.finish()
    answers: list[Outcome | BaseException] = []

    async with open_call_store(crashes.append, Budget(now=trio.current_time)) as store:
        call = start_call(store, ME, running, told)
        task = start_call(store, ME, running, told)
        done = start_call(store, ME, over, told)
        task.become_task()
        done.become_task()
        nursery.start_soon(ended, answers, lambda: store.attend(call, request_of()))
        await wait_all_tasks_blocked()
        ends = await running.asks(task)
    await wait_all_tasks_blocked()
    assert (running.running, store.tasks, store.tasks_of(ME)) == (False, 0, [])
    assert isinstance(answers[0], UnknownState)
    assert (task.task.status, done.task.status) == (Status.CANCELLED, Status.COMPLETED)
    assert isinstance(ends[0], LinkLost)
    assert crashes == []


# Any order of events


class Asked:
    """One question of the machine's: its number, and every way in which it ended."""

    def __init__(self, played: Played, number: int) -> None:
        self.played = played
        self.number = number
        self.as_task = played.call.is_task
        self.answers = 0
        self.refused = False
        self.scope = trio.CancelScope()
        self.ends: list[End] = []


class Played:
    """One call of the machine's: its work, and all that its client hears of it."""

    def __init__(self, number: int, owner: str) -> None:
        self.number = number
        self.owner = owner
        self.call: DetachedCall
        self.runs = 0
        self.finish = trio.Event()
        self.outcome: Raw | Exception = Raw(b"[%d]" % number)
        self.statuses: list[Status] = []
        self.firsts: list[Outcome | BaseException] = []
        self.waiting = trio.CancelScope()
        self.was_cancelled = False
        self.leaves = False

    async def __call__(self, call: DetachedCall) -> Raw:
        self.runs += 1
        assert call is self.call
        await self.finish.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def told(self, call: DetachedCall) -> None:
        assert call is self.call
        assert call.is_task
        self.statuses.append(call.task.status)


class Machine:
    """Plays a script against one host of tasks, and knows what may come of it."""

    def __init__(self, nursery: trio.Nursery, store: CallStore) -> None:
        self._nursery = nursery
        self._store = store
        self.played: list[Played] = []
        self.asks: list[Asked] = []

    async def play(self, script: list[Step]) -> None:
        for name, one, two in script:
            getattr(self, name)(one, two)
            if name == "tick":
                await trio.sleep(one * DEFAULT_TTL_MS / 1000 / 10)
            elif two % 2:  # otherwise the next step comes before anybody has moved
                await wait_all_tasks_blocked()
            self.look()
        for played in self.played:
            if not played.call.is_task:  # what is no task has no deadline
                played.call.cancel()
        await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)

    def look(self) -> None:
        """What is true at any moment."""
        for owner in (ME, STRANGER):
            mine = self._store.tasks_of(owner)
            assert [call.owner for call in mine] == [owner] * len(mine)
            numbers = [played.number for played in self.played if played.call in mine]
            assert numbers == sorted(numbers)
        for played in self.played:
            task = played.call.task
            assert (task.status is Status.INPUT_REQUIRED) == bool(played.call.server_requests)
            assert task.status.is_final == played.call.is_over
            if not played.call.is_task:
                assert played.call.server_requests == {}

    # Steps

    def start(self, one: int, two: int) -> None:
        played = Played(len(self.played), ME if one % 3 else STRANGER)
        played.call = start_call(self._store, played.owner, played, played.told)
        self.played.append(played)
        if two > 3:
            played.call.become_task()
        self._nursery.start_soon(self._wait, played)

    def become(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            played.call.become_task()

    def ask(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            self.asks.append(asked := Asked(played, len(self.asks)))
            self._nursery.start_soon(self._ask, asked)

    def withdraw(self, one: int, two: int) -> None:
        for asked in self._some([asked for asked in self.asks if not asked.ends], one):
            asked.scope.cancel()

    def answer(self, one: int, two: int) -> None:
        for key, asked, number in self._open(one):
            assert asked.played.call.answer(key, Raw(b'{"number":%d}' % number))
            asked.answers += 1

    def refuse(self, one: int, two: int) -> None:
        for key, asked, number in self._open(one):
            asked.refused = True
            asked.played.call.refuse(key, PeerError(ErrorBody(number, "no")))

    def stale(self, one: int, two: int) -> None:
        """An answer to what is not asked any more, or not yet."""
        for played in self._some(self.played, one):
            key = f"q{two}"
            if key not in played.call.server_requests:
                assert not played.call.answer(key, YES)

    def foreign(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            with pytest.raises(UnknownTask):
                self._store.find_task(ME if played.owner == STRANGER else STRANGER, played.call.id)

    def leave(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            played.leaves = True
            played.waiting.cancel()

    def cancel(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            was_over = played.call.is_over
            assert played.call.cancel() is not was_over
            assert played.call.is_over
            if not was_over:
                played.was_cancelled = True

    def finish(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            played.finish.set()

    def fail(self, one: int, two: int) -> None:
        for played in self._some([played for played in self.played if not played.finish.is_set()], one):
            played.outcome = TimedOut("s", str(played.number)) if two % 2 else ZeroDivisionError(str(played.number))
            played.finish.set()

    def tick(self, one: int, two: int) -> None:
        """Time passes; the clock is `play`'s."""

    # What they do

    @staticmethod
    def _some(things: list[T], index: int) -> list[T]:
        """One of them, if there is any."""
        return [things[index % len(things)]] if things else []

    def _open(self, one: int) -> list[tuple[str, Asked, int]]:
        """One open question, as a client finds it."""
        found = []
        for call in (*self._store.tasks_of(ME), *self._store.tasks_of(STRANGER)):
            for key, (_, params) in call.server_requests.items():
                asked = self.asks[int(bytes(params["number"]))]
                assert asked.played.call is call
                found.append((key, asked, asked.number))
        return self._some(found, one)

    async def _ask(self, asked: Asked) -> None:
        with asked.scope:
            params = {"number": encode(asked.number)}
            await ended(asked.ends, lambda: asked.played.call.request(ELICIT, params, None))

    async def _wait(self, played: Played) -> None:
        with played.waiting:
            await ended(played.firsts, lambda: self._store.attend(played.call, request_of()))

    # What must be true of any script

    def judge(self, crashes: list[Exception]) -> None:
        assert self._store.tasks == 0
        assert (self._store.tasks_of(ME), self._store.tasks_of(STRANGER)) == ([], [])
        assert len(crashes) == len(set(crashes))
        for played in self.played:
            self._judge_call(played, crashes)
        for asked in self.asks:
            self._judge_question(asked)

    def _judge_call(self, played: Played, crashes: list[Exception]) -> None:
        call = played.call
        assert played.runs <= 1
        assert call.is_over
        (first,) = played.firsts
        if isinstance(first, trio.Cancelled):
            assert played.leaves
        else:
            assert self._was_first(call, first)
        over = [status for status in played.statuses if status.is_final]
        assert over == played.statuses[-1:] == ([call.task.status] if call.is_task else [])
        if played.was_cancelled:
            assert call.task.status is Status.CANCELLED
        if call.task.status is Status.COMPLETED:
            assert call.result == played.outcome
        elif call.task.status is Status.FAILED and isinstance(played.outcome, TimedOut):
            assert repr(call.error) == repr(played.outcome)
        elif call.task.status is Status.FAILED:
            assert isinstance(call.error, InternalFailure)
            assert played.outcome in crashes
        else:
            assert (call.result, call.error) == (None, None)

    @staticmethod
    def _was_first(call: DetachedCall, first: Outcome | BaseException) -> bool:
        """Whether that is what the request that a call came with is answered with."""
        if call.is_task:
            return first is call.created
        if call.error is not None:
            return repr(first) == repr(call.error)
        return isinstance(first, UnknownState) if call.result is None else first is call.result

    @staticmethod
    def _judge_question(asked: Asked) -> None:
        (end,) = asked.ends
        assert asked.answers + asked.refused <= 1
        if isinstance(end, Raw):
            assert (bytes(end), asked.answers) == (b'{"number":%d}' % asked.number, 1)
        elif isinstance(end, PeerError):
            assert (end.error.code, asked.refused) == (asked.number, True)
        elif isinstance(end, trio.Cancelled):
            assert asked.scope.cancel_called
        else:
            assert isinstance(end, LinkLost)


STEPS = {
    "start": 4,
    "become": 4,
    "ask": 8,
    "withdraw": 2,
    "answer": 6,
    "refuse": 2,
    "stale": 1,
    "foreign": 1,
    "leave": 1,
    "cancel": 1,
    "finish": 2,
    "fail": 1,
    "tick": 3,
}


@pytest.mark.slow
@settings(max_examples=examples(150))
@given(scripts(STEPS, max_size=80))
def test_whatever_happens_each_call_and_question_ends_once(script: list[Step]) -> None:
    """No call is left when the lifetimes are up, and none was seen by another than its owner (rules 91, 108)."""

    async def play() -> None:
        crashes: list[Exception] = []
        async with trio.open_nursery() as nursery, trio.open_nursery() as calls:
            machine = Machine(nursery, CallStore(calls, crashes.append, Budget(now=trio.current_time)))
            await machine.play([("start", 1, 1), *script])
            assert not calls.child_tasks
            machine.judge(crashes)

    trio.run(play, clock=MockClock(autojump_threshold=0))


async def test_what_a_server_says_of_its_task_counts_too(
    store: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As long as the task is kept."""
    meta, long = Raw(b'{"v":"%b"}' % (b"x" * 4000)), "y" * 1000
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", 2 * KEPT_OVERHEAD_BYTES + len(meta) + 4 * len(long) + 20)

    async def work(call: DetachedCall) -> Raw:
        call.follow(Task("t", Status.WORKING, "", "", None, None, long, meta))
        return result_of(10)

    for _ in range(2):
        start_call(store, ME, work, told)
        await wait_all_tasks_blocked()
        (call,) = store.tasks_of(ME)
        assert call.held.size == 10 + call.told_size == 10 + len(meta) + 4 * len(long)
