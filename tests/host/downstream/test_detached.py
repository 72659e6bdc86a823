"""Tasks of our own: each job and each question ends once, nobody finds what is another's, and nothing outlives its
time."""

from __future__ import annotations

import gc
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
    UnknownState,
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
from host.errors import ColonnadeError, InvalidParams, ServerErrorResponse, TimedOut, TooManyRequests
from host.jsonrpc.messages import ErrorBody, Notification
from host.jsonrpc.raw import encode, items
from host.memory import Budget
from host.outstanding import PeerError
from host.protocol.tasks import Status
from host.wire.link import LinkLost
from tests.kit.scripts import Step, scripts

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
async def hosted(crashes: list[Exception]) -> AsyncIterator[CallStore]:
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
    """The work of one job, and the server behind it: asks and ends at the test's command."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._finish = trio.Event()
        self._outcome: Raw | Exception = DONE
        self.jobs: list[DetachedCall] = []
        self.unwinding = 0.0
        """Seconds that it takes to end when it is cancelled; then it has its outcome after all."""
        self.running = False
        self.was_cancelled = False

    async def __call__(self, job: DetachedCall) -> Raw:
        self.jobs.append(job)
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
        self, job: DetachedCall, params: dict[str, Raw] | None = None, scope: trio.CancelScope | None = None
    ) -> list[End]:
        """Ask in a task of its own. Gives the list that its end will be in; cancelling `scope` withdraws it."""
        ends: list[End] = []

        async def ask() -> None:
            with scope or trio.CancelScope():
                await ended(ends, lambda: job.request(ELICIT, params or {}, None))

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

    def __call__(self, job: DetachedCall) -> None:
        self.statuses.append(job.task.status)


@pytest.fixture
def told() -> Told:
    return Told()


def start_call(
    hosted: CallStore,
    owner: Hashable,
    work: Callable[[DetachedCall], Awaitable[Raw]],
    told: Callable[[DetachedCall], None],
    ttl_ms: int | None = None,
) -> DetachedCall:
    """Start what may become a task."""
    return hosted.start(owner, work, task=TaskOptions("gh", told, ttl_ms))


@pytest.fixture
def start(hosted: CallStore, server: Server, told: Told) -> Callable[[], Awaitable[DetachedCall]]:
    """Starts what becomes a task at once."""

    async def start() -> DetachedCall:
        job = start_call(hosted, ME, server, told)
        job.become_task()
        await wait_all_tasks_blocked()
        return job

    return start


Start: TypeAlias = Callable[[], Awaitable[DetachedCall]]


def request_of(tell: Callable[[Notification], None] = lambda notice: None) -> AttachedRequest:
    """The request that a call came with."""
    return AttachedRequest(0, tell, None)


def listened_to(job: DetachedCall) -> bool:
    return job.notices is not None


def only_key(job: DetachedCall) -> str:
    (key,) = job.server_requests
    return key


# A call that may become a task


async def test_a_call_that_never_becomes_a_task_is_answered_and_forgotten(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = start_call(hosted, ME, server, told)
    server.finish()
    assert await hosted.attend(job, request_of()) is DONE
    await wait_all_tasks_blocked()
    assert (told.statuses, hosted.tasks, hosted.tasks_of(ME)) == ([], 0, [])
    job.become_task()
    assert not job.is_task
    with pytest.raises(UnknownTask):
        hosted.find_task(ME, job.id)


async def test_a_call_that_fails_before_it_is_a_task_gives_its_error(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = start_call(hosted, ME, server, told)
    server.finish(TimedOut("gh", "gh did not answer within 60 s"))
    with pytest.raises(TimedOut) as raised:
        await hosted.attend(job, request_of())
    assert (raised.value.message, raised.value.server) == ("gh did not answer within 60 s", "gh")


async def test_whoever_waits_for_a_call_hears_that_it_became_a_task(
    hosted: CallStore, nursery: trio.Nursery, told: Told, autojump_clock: MockClock
) -> None:
    """Its server says so in the middle of the call; it goes on when its client has left."""
    came = trio.Event()

    async def work(job: DetachedCall) -> Raw:
        await trio.sleep(1)
        job.become_task()
        job.become_task()
        await came.wait()
        return DONE

    job = start_call(hosted, ME, work, told)
    with pytest.raises(UnknownTask):
        hosted.find_task(ME, job.id)
    assert await hosted.attend(job, request_of()) == job.task
    assert hosted.find_task(ME, job.id) is job
    assert hosted.tasks_of(ME) == [job]
    assert (job.task.status, told.statuses) == (Status.WORKING, [])
    came.set()
    await wait_all_tasks_blocked()
    assert (job.task.status, told.statuses) == (Status.COMPLETED, [Status.COMPLETED])


async def test_a_client_that_leaves_before_it_is_a_task_calls_the_work_off(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """(rule 45)"""
    job = start_call(hosted, ME, server, told)
    with trio.move_on_after(1) as waiting:
        await hosted.attend(job, request_of())
    await wait_all_tasks_blocked()
    assert waiting.cancelled_caught
    assert server.was_cancelled
    assert (job.is_over, hosted.tasks, told.statuses) == (True, 0, [])


async def test_before_it_is_a_task_it_speaks_to_its_request(
    hosted: CallStore, server: Server, told: Told, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """What it asked there and was not answered ends when it becomes a task."""
    job = hosted.start(ME, server, may_park=True, task=TaskOptions("gh", told))
    heard: list[Notification] = []
    nursery.start_soon(hosted.attend, job, request_of(heard.append))
    await wait_all_tasks_blocked()
    job.notify(LOG)
    params = {"_meta": Raw(b'{"progressToken":1}')}
    early = await server.asks(job, params)
    assert (job.server_requests, told.statuses) == ({"q1": (ELICIT, {})}, [])
    job.become_task()
    late = await server.asks(job, params)
    job.notify(LOG)
    assert (heard, job.server_requests) == ([LOG], {"q2": (ELICIT, {})})
    assert isinstance(early[0], LinkLost)
    assert (late, told.statuses) == ([], [Status.INPUT_REQUIRED])


async def test_before_it_is_a_task_and_without_a_request_nobody_hears_it(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = start_call(hosted, ME, server, told)
    job.notify(LOG)
    (end,) = await server.asks(job)
    assert isinstance(end, LinkLost)
    assert (job.server_requests, told.statuses) == ({}, [])


async def test_the_request_it_came_with_is_not_kept(
    hosted: CallStore, server: Server, told: Told, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    class Stream:
        def tell(self, notice: Notification) -> None:
            """Hears what is told, and keeps nothing."""

    job = start_call(hosted, ME, server, told)
    stream = Stream()
    kept = weakref.ref(stream)
    nursery.start_soon(hosted.attend, job, request_of(stream.tell))
    del stream
    await wait_all_tasks_blocked()
    assert kept() is not None
    job.become_task()
    await wait_all_tasks_blocked()
    gc.collect()
    assert kept() is None


async def test_a_call_that_outlived_its_lifetime_stays_a_call(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """Whoever has waited so long gets its result, and no task that is gone at once."""
    job = start_call(hosted, ME, server, told, MIN_TTL_MS)
    await trio.sleep(2)
    job.become_task()
    server.finish()
    assert await hosted.attend(job, request_of()) is DONE


# What a client sees of its task


async def test_a_task_says_how_it_stands(start: Start, server: Server, told: Told, autojump_clock: MockClock) -> None:
    job = await start()
    task = job.task
    assert (task.id, task.status, task.ttl_ms, task.poll_ms) == (job.id, Status.WORKING, DEFAULT_TTL_MS, 500)
    assert (task.created, task.message) == (task.updated, None)
    await server.finished()
    assert (job.task.status, job.result, job.error, job.task.message) == (Status.COMPLETED, DONE, None, None)
    assert told.statuses == [Status.COMPLETED]


async def test_it_is_updated_when_its_status_changes(
    start: Start, server: Server, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    begin = trio.current_time()
    monkeypatch.setattr(detached, "iso_timestamp", lambda seconds: f"{trio.current_time() - begin:.0f}")
    job = await start()
    seen = [job.task]
    for step in (server.asks(job), server.asks(job)):
        await trio.sleep(1)
        await step
        seen.append(job.task)
    for key in list(job.server_requests):
        await trio.sleep(1)
        job.answer(key, YES)
        seen.append(job.task)
    await trio.sleep(1)
    await server.finished()
    seen.append(job.task)
    assert {task.created for task in seen} == {"0"}
    assert [task.updated for task in seen] == ["0", "1", "2", "2", "4", "5"]


async def test_an_id_names_the_server_and_cannot_be_guessed(start: Start, autojump_clock: MockClock) -> None:
    """(rule 91)"""
    job = await start()
    server, entropy = job.id.split(".")
    assert (server, len(entropy)) == ("gh", 22)
    assert job.id.isascii()


async def test_a_task_is_found_by_its_owner_alone(
    hosted: CallStore, start: Start, server: Server, autojump_clock: MockClock
) -> None:
    """A stranger hears the same words as for a task that never was (rule 91, rule 93)."""
    job = await start()
    assert hosted.find_task(ME, job.id) is job
    assert (hosted.tasks_of(ME), hosted.tasks_of(STRANGER)) == ([job], [])
    words = set()
    for owner, id in ((STRANGER, job.id), (ME, "gh.other"), (ME, "")):
        with pytest.raises(InvalidParams) as refused:
            hosted.find_task(owner, id)
        words.add(refused.value.message)
    assert words == {"there is no such task (any more)"}


async def test_tasks_are_listed_oldest_first(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """Those that have not become one are not among them."""
    jobs = [start_call(hosted, ME, server, told) for _ in range(3)]
    jobs[2].become_task()
    jobs[0].become_task()
    assert hosted.tasks_of(ME) == [jobs[0], jobs[2]]
    assert hosted.tasks == 3


async def test_what_the_server_refused_is_the_error_of_the_task(
    start: Start, server: Server, crashes: list[Exception], told: Told, autojump_clock: MockClock
) -> None:
    """It is kept without the stack that it was raised in."""
    job = await start()
    await server.finished(ServerErrorResponse("gh", -32002, "no such thing", Raw(b'{"a":1}')))
    error = job.error
    assert isinstance(error, ServerErrorResponse)
    assert (error.code, error.message, error.data) == (-32002, "no such thing", Raw(b'{"a":1}'))
    assert error.__traceback__ is None
    assert (job.task.status, job.task.message, job.result) == (Status.FAILED, "no such thing", None)
    assert (crashes, told.statuses) == ([], [Status.FAILED])


async def test_what_nobody_expected_is_reported_and_not_told(
    start: Start, server: Server, crashes: list[Exception], autojump_clock: MockClock
) -> None:
    job = await start()
    fault = ZeroDivisionError("a secret")
    await server.finished(fault)
    assert crashes == [fault]
    assert isinstance(job.error, ColonnadeError)
    assert (job.error.code, job.task.message) == (-32603, "Internal error in Colonnade; its log says more")
    assert job.task.status is Status.FAILED


async def test_what_a_task_tells_goes_to_whoever_wants_it(
    start: Start, server: Server, autojump_clock: MockClock
) -> None:
    job = await start()
    job.notify(LOG)
    heard: list[Notification] = []
    job.notices = heard.append
    job.notify(LOG)
    await server.finished()
    assert not listened_to(job)
    job.notices = heard.append
    job.notify(LOG)
    assert heard == [LOG]


async def test_a_result_keeps_no_buffer_of_its_server_alive(
    start: Start, server: Server, autojump_clock: MockClock
) -> None:
    job = await start()
    (view,) = items(b'[{"content":[]}]')
    await server.finished(view)
    assert job.result == view
    assert job.result is not view


async def test_an_error_keeps_no_buffer_of_its_server_alive(
    start: Start, server: Server, autojump_clock: MockClock
) -> None:
    job = await start()
    (view,) = items(b'[{"why":"not"}]')
    await server.finished(ServerErrorResponse("gh", 1, "no", view))
    assert job.error is not None
    assert job.error.data == view
    assert job.error.data is not view


# Questions


async def test_a_question_waits_for_its_answer(
    start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """Nothing of the server's own request is in it."""
    job = await start()
    ends = await server.asks(job, {"message": Raw(b'"?"'), "_meta": Raw(b'{"progressToken":1}')})
    assert job.task.status is Status.INPUT_REQUIRED
    assert job.server_requests == {"q1": (ELICIT, {"message": Raw(b'"?"')})}
    assert job.answer("q1", YES)
    assert (job.task.status, job.server_requests) == (Status.WORKING, {})
    await wait_all_tasks_blocked()
    assert ends == [YES]
    assert not job.answer("q1", YES)
    assert told.statuses == [Status.INPUT_REQUIRED, Status.WORKING]


async def test_every_question_has_a_key_of_its_own(
    start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """Also when none is open any more. Its client is told of each, and once more when none is left."""
    job = await start()
    for _ in range(2):
        await server.asks(job)
        await server.asks(job)
        for key in list(job.server_requests):
            assert job.answer(key, YES)
    await server.asks(job)
    assert list(job.server_requests) == ["q5"]
    asking, working = Status.INPUT_REQUIRED, Status.WORKING
    assert told.statuses == [asking, asking, working, asking, asking, working, asking]


@pytest.mark.parametrize("wrong", [b"[]", b"1", b"null"])
async def test_an_answer_that_is_no_object_leaves_the_question_open(
    wrong: bytes, start: Start, server: Server, autojump_clock: MockClock
) -> None:
    job = await start()
    await server.asks(job)
    assert not job.answer(only_key(job), Raw(wrong))
    assert job.task.status is Status.INPUT_REQUIRED


async def test_one_open_question_can_be_looked_at(start: Start, server: Server, autojump_clock: MockClock) -> None:
    """All of them oldest first; what was taken before stays as it was."""
    job = await start()
    await server.asks(job, {"message": Raw(b'"?"')})
    await server.asks(job)
    before = job.server_requests
    assert list(before.items()) == [("q1", (ELICIT, {"message": Raw(b'"?"')})), ("q2", (ELICIT, {}))]
    assert job.open_request("q1") == (ELICIT, {"message": Raw(b'"?"')})
    assert job.open_request("q3") is None
    job.answer("q1", YES)
    assert job.open_request("q1") is None
    assert (list(job.server_requests), len(before)) == (["q2"], 2)


async def test_only_the_first_end_of_a_question_counts(start: Start, server: Server, autojump_clock: MockClock) -> None:
    job = await start()
    ends = await server.asks(job)
    assert job.answer("q1", YES)
    assert not job.answer("q1", Raw(b"{}"))
    job.refuse("q1", PeerError(ErrorBody(-1, "no")))
    job.cancel()
    await wait_all_tasks_blocked()
    assert ends == [YES]


async def test_an_unknown_key_answers_nothing(start: Start, server: Server, autojump_clock: MockClock) -> None:
    job = await start()
    ends = await server.asks(job)
    assert not job.answer("q2", YES)
    job.refuse("q2", PeerError(ErrorBody(-1, "no")))
    assert (list(job.server_requests), ends) == (["q1"], [])


async def test_a_client_may_refuse(start: Start, server: Server, told: Told, autojump_clock: MockClock) -> None:
    job = await start()
    ends = await server.asks(job)
    refusal = PeerError(ErrorBody(-1, "no"))
    job.refuse(only_key(job), refusal)
    await wait_all_tasks_blocked()
    (end,) = ends
    assert isinstance(end, PeerError)
    assert end.error is refusal.error
    assert refusal.__traceback__ is None, "it holds no stack of whoever asked"
    assert told.statuses == [Status.INPUT_REQUIRED, Status.WORKING]


async def test_a_question_that_is_withdrawn_can_no_longer_be_answered(
    start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = await start()
    scope = trio.CancelScope()
    ends = await server.asks(job, scope=scope)
    scope.cancel()
    await wait_all_tasks_blocked()
    assert isinstance(ends[0], trio.Cancelled)
    assert (job.server_requests, job.answer("q1", YES)) == ({}, False)
    assert told.statuses == [Status.INPUT_REQUIRED, Status.WORKING]


async def test_a_question_with_a_broken_meta_is_not_asked(
    start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = await start()
    (end,) = await server.asks(job, {"_meta": Raw(b"1")})
    assert isinstance(end, InvalidParams)
    assert (job.server_requests, told.statuses) == ({}, [])


async def test_with_the_job_its_questions_end(
    start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = await start()
    first, second = await server.asks(job), await server.asks(job)
    await server.finished()
    late = await server.asks(job)
    for (end,) in (first, second, late):
        assert isinstance(end, LinkLost)
    assert job.server_requests == {}
    assert told.statuses == [Status.INPUT_REQUIRED, Status.INPUT_REQUIRED, Status.COMPLETED]


async def test_whoever_waits_for_questions_gets_each_once(
    start: Start, server: Server, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    job = await start()
    seen: list[str | None] = []

    async def look() -> None:
        known: set[str] = set()
        while (key := await job.next_server_request(known)) is not None:
            seen.append(key)
            known.add(key)
        seen.append(None)

    await server.asks(job)
    nursery.start_soon(look)
    await wait_all_tasks_blocked()
    await server.asks(job)
    assert seen == ["q1", "q2"]
    job.answer("q1", YES)
    await server.asks(job)
    await server.finished()
    assert seen == ["q1", "q2", "q3", None]
    assert await job.next_server_request(()) is None


# Cancelling


async def test_a_cancelled_task_is_over_at_once(
    hosted: CallStore, start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """Whatever its work still does, and it can be looked at until its lifetime is up (rule 50)."""
    server.unwinding = 1.0
    job = await start()
    ends = await server.asks(job)
    assert job.cancel()
    assert (job.task.status, job.server_requests, job.is_over) == (Status.CANCELLED, {}, True)
    assert not job.cancel()
    await wait_all_tasks_blocked()
    assert isinstance(ends[0], LinkLost)
    assert (server.running, server.was_cancelled, hosted.tasks) == (True, True, 1)
    await trio.sleep(2)
    assert (server.running, hosted.tasks) == (False, 0)
    assert (job.task.status, job.result, job.error, job.task.message) == (Status.CANCELLED, None, None, None)
    assert hosted.find_task(ME, job.id) is job
    assert told.statuses == [Status.INPUT_REQUIRED, Status.CANCELLED]


async def test_what_is_over_cannot_be_cancelled(
    start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = await start()
    await server.finished()
    assert not job.cancel()
    assert (job.task.status, told.statuses) == (Status.COMPLETED, [Status.COMPLETED])


async def test_a_task_cancelled_before_its_first_step_is_not_begun(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = start_call(hosted, ME, server, told)
    job.become_task()
    job.cancel()
    await wait_all_tasks_blocked()
    assert (server.jobs, hosted.tasks, hosted.tasks_of(ME)) == ([], 0, [job])


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
    asked: int | None, given: int, hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """From its start, not from its end."""
    job = start_call(hosted, ME, server, told, asked)
    job.become_task()
    assert job.task.ttl_ms == given
    await trio.sleep(given / 2000)
    server.finish()
    await trio.sleep(given / 2000 - 0.1)
    assert hosted.find_task(ME, job.id).result == DONE
    await trio.sleep(0.2)
    with pytest.raises(UnknownTask):
        hosted.find_task(ME, job.id)
    assert told.statuses == [Status.COMPLETED]


async def test_a_task_whose_lifetime_is_up_is_called_off_and_forgotten(
    hosted: CallStore, start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    """Whoever waits for it hears that it is over, and questions end with it."""
    job = await start()
    ends = await server.asks(job)
    await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)
    assert server.was_cancelled
    assert isinstance(ends[0], LinkLost)
    assert (job.task.status, job.task.message) == (Status.CANCELLED, "its lifetime was up before it was done")
    assert told.statuses == [Status.INPUT_REQUIRED, Status.CANCELLED]
    assert (hosted.tasks, hosted.tasks_of(ME)) == (0, [])
    with pytest.raises(UnknownTask):
        hosted.find_task(ME, job.id)


async def test_the_lifetime_counts_also_while_the_work_takes_its_time_to_end(
    hosted: CallStore, start: Start, server: Server, autojump_clock: MockClock
) -> None:
    server.unwinding = 5.0
    job = await start()
    await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)
    assert (server.running, hosted.tasks) == (True, 1)
    assert hosted.tasks_of(ME) == []
    with pytest.raises(UnknownTask):
        hosted.find_task(ME, job.id)
    (end,) = await server.asks(job)
    assert isinstance(end, LinkLost)
    await trio.sleep(5)
    assert hosted.tasks == 0


async def test_a_call_that_is_no_task_has_no_lifetime(
    hosted: CallStore, server: Server, told: Told, nursery: trio.Nursery, autojump_clock: MockClock
) -> None:
    """Its own timeouts are its caller's matter."""
    job = start_call(hosted, ME, server, told, MIN_TTL_MS)
    await trio.sleep(10)
    assert server.running
    assert not job.is_over


async def test_one_owner_has_a_limit(hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock) -> None:
    """What is over does not count, nor do others."""
    jobs = [start_call(hosted, ME, server, told) for _ in range(MAX_TASKS_PER_OWNER)]
    with pytest.raises(TooManyRequests):
        start_call(hosted, ME, server, told)
    start_call(hosted, STRANGER, server, told)
    jobs[0].become_task()
    jobs[0].cancel()
    await wait_all_tasks_blocked()
    start_call(hosted, ME, server, told)
    assert (hosted.tasks, hosted.tasks_of(ME)) == (MAX_TASKS_PER_OWNER + 1, [jobs[0]])


async def test_all_owners_together_have_a_limit(
    hosted: CallStore, server: Server, told: Told, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(call_store, "MAX_TASKS", 5)
    for owner in range(5):
        start_call(hosted, owner, server, told)
    with pytest.raises(TooManyRequests):
        start_call(hosted, ME, server, told)
    await server.finished()
    start_call(hosted, ME, server, told)


def result_of(size: int) -> Raw:
    return Raw(b'"' + b"x" * (size - 2) + b'"')


async def kept(hosted: CallStore, outcomes: list[Raw | Exception], told: Told) -> list[int]:
    """Jobs with these outcomes, one after the other; the numbers of those that can be found in the end."""
    jobs = []
    for outcome in outcomes:

        async def work(job: DetachedCall, outcome: Raw | Exception = outcome) -> Raw:
            if isinstance(outcome, Exception):
                raise outcome
            return outcome

        jobs.append(start_call(hosted, ME, work, told))
        jobs[-1].become_task()
        await wait_all_tasks_blocked()
    there = hosted.tasks_of(ME)
    return [number for number, job in enumerate(jobs) if job in there]


async def test_of_what_is_over_the_oldest_goes_first(
    hosted: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """When all of it holds too much together. Memory that is let go is free again."""
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", 3 * (KEPT_OVERHEAD_BYTES + 1000))
    exact = [result_of(1000) for _ in range(5)]
    assert await kept(hosted, [*exact], told) == [2, 3, 4]
    assert await kept(hosted, [result_of(1001), result_of(999), result_of(1000)], told) == [0, 1, 2]
    assert len(told.statuses) == 8


async def test_an_error_counts_too(
    hosted: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", 2 * KEPT_OVERHEAD_BYTES + 1000)
    assert await kept(hosted, [ServerErrorResponse("gh", 1, "no", result_of(1000)), result_of(1)], told) == [1]
    assert await kept(hosted, [ServerErrorResponse("gh", 1, "no", None), TimedOut("gh", "late")], told) == [0, 1]


async def test_a_result_that_is_too_much_alone_is_kept_alone(
    hosted: CallStore, told: Told, monkeypatch: pytest.MonkeyPatch, autojump_clock: MockClock
) -> None:
    """Nobody could ever have it otherwise."""
    monkeypatch.setattr(call_store, "MAX_KEPT_BYTES", KEPT_OVERHEAD_BYTES)
    assert await kept(hosted, [result_of(10), result_of(KEPT_OVERHEAD_BYTES)], told) == [1]


async def test_what_is_forgotten_is_freed(
    hosted: CallStore, start: Start, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    job = await start()
    await server.finished()
    gone = weakref.ref(job)
    server.jobs.clear()
    del job
    await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)
    gc.collect()
    assert gone() is None


async def test_a_task_that_is_over_keeps_nothing_of_its_request(hosted: CallStore, autojump_clock: MockClock) -> None:
    """Neither what was sent with it nor who is told."""

    class Work:
        async def __call__(self, job: DetachedCall) -> Raw:
            return DONE

    work, told = Work(), Told()
    freed = weakref.ref(work), weakref.ref(told)
    job = start_call(hosted, ME, work, told)
    job.become_task()
    del work, told
    await wait_all_tasks_blocked()
    gc.collect()
    assert [one() for one in freed] == [None, None]
    assert hosted.find_task(ME, job.id).result == DONE


class Owner:
    """One that can be watched."""


@pytest.mark.slow
async def test_an_owner_without_jobs_is_not_kept(
    hosted: CallStore, server: Server, told: Told, autojump_clock: MockClock
) -> None:
    owner = Owner()
    job = start_call(hosted, owner, server, told, MIN_TTL_MS)
    job.become_task()
    await wait_all_tasks_blocked()
    server.jobs.clear()
    gone = weakref.ref(owner)
    del owner, job
    await server.finished()
    gc.collect()
    assert gone() is not None
    await trio.sleep(2)
    gc.collect()
    assert gone() is None


async def test_when_it_ends_all_jobs_are_cancelled(
    nursery: trio.Nursery, told: Told, crashes: list[Exception], autojump_clock: MockClock
) -> None:
    """Whoever waits outside of it does not wait for ever."""
    running, over = Server(nursery), Server(nursery)
    over.finish()
    answers: list[Outcome | BaseException] = []

    async with open_call_store(crashes.append, Budget(now=trio.current_time)) as hosted:
        call = start_call(hosted, ME, running, told)
        task = start_call(hosted, ME, running, told)
        done = start_call(hosted, ME, over, told)
        task.become_task()
        done.become_task()
        nursery.start_soon(ended, answers, lambda: hosted.attend(call, request_of()))
        await wait_all_tasks_blocked()
        ends = await running.asks(task)
    await wait_all_tasks_blocked()
    assert (running.running, hosted.tasks, hosted.tasks_of(ME)) == (False, 0, [])
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
        self.as_task = played.job.is_task
        self.answers = 0
        self.refused = False
        self.scope = trio.CancelScope()
        self.ends: list[End] = []


class Played:
    """One job of the machine's: its work, and all that its client hears of it."""

    def __init__(self, number: int, owner: str) -> None:
        self.number = number
        self.owner = owner
        self.job: DetachedCall
        self.runs = 0
        self.finish = trio.Event()
        self.outcome: Raw | Exception = Raw(b"[%d]" % number)
        self.statuses: list[Status] = []
        self.firsts: list[Outcome | BaseException] = []
        self.waiting = trio.CancelScope()
        self.was_cancelled = False
        self.leaves = False

    async def __call__(self, job: DetachedCall) -> Raw:
        self.runs += 1
        assert job is self.job
        await self.finish.wait()
        if isinstance(self.outcome, Exception):
            raise self.outcome
        return self.outcome

    def told(self, job: DetachedCall) -> None:
        assert job is self.job
        assert job.is_task
        self.statuses.append(job.task.status)


class Machine:
    """Plays a script against one host of tasks, and knows what may come of it."""

    def __init__(self, nursery: trio.Nursery, hosted: CallStore) -> None:
        self._nursery = nursery
        self._hosted = hosted
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
            if not played.job.is_task:  # what is no task has no deadline
                played.job.cancel()
        await trio.sleep(DEFAULT_TTL_MS / 1000 + 1)

    def look(self) -> None:
        """What is true at any moment."""
        for owner in (ME, STRANGER):
            mine = self._hosted.tasks_of(owner)
            assert [job.owner for job in mine] == [owner] * len(mine)
            numbers = [played.number for played in self.played if played.job in mine]
            assert numbers == sorted(numbers)
        for played in self.played:
            task = played.job.task
            assert (task.status is Status.INPUT_REQUIRED) == bool(played.job.server_requests)
            assert task.status.is_final == played.job.is_over
            if not played.job.is_task:
                assert played.job.server_requests == {}

    # Steps

    def start(self, one: int, two: int) -> None:
        played = Played(len(self.played), ME if one % 3 else STRANGER)
        played.job = start_call(self._hosted, played.owner, played, played.told)
        self.played.append(played)
        if two > 3:
            played.job.become_task()
        self._nursery.start_soon(self._wait, played)

    def become(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            played.job.become_task()

    def ask(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            self.asks.append(asked := Asked(played, len(self.asks)))
            self._nursery.start_soon(self._ask, asked)

    def withdraw(self, one: int, two: int) -> None:
        for asked in self._some([asked for asked in self.asks if not asked.ends], one):
            asked.scope.cancel()

    def answer(self, one: int, two: int) -> None:
        for key, asked, number in self._open(one):
            assert asked.played.job.answer(key, Raw(b'{"number":%d}' % number))
            asked.answers += 1

    def refuse(self, one: int, two: int) -> None:
        for key, asked, number in self._open(one):
            asked.refused = True
            asked.played.job.refuse(key, PeerError(ErrorBody(number, "no")))

    def stale(self, one: int, two: int) -> None:
        """An answer to what is not asked any more, or not yet."""
        for played in self._some(self.played, one):
            key = f"q{two}"
            if key not in played.job.server_requests:
                assert not played.job.answer(key, YES)

    def foreign(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            with pytest.raises(UnknownTask):
                self._hosted.find_task(ME if played.owner == STRANGER else STRANGER, played.job.id)

    def leave(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            played.leaves = True
            played.waiting.cancel()

    def cancel(self, one: int, two: int) -> None:
        for played in self._some(self.played, one):
            was_over = played.job.is_over
            assert played.job.cancel() is not was_over
            assert played.job.is_over
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
        for job in (*self._hosted.tasks_of(ME), *self._hosted.tasks_of(STRANGER)):
            for key, (_, params) in job.server_requests.items():
                asked = self.asks[int(bytes(params["number"]))]
                assert asked.played.job is job
                found.append((key, asked, asked.number))
        return self._some(found, one)

    async def _ask(self, asked: Asked) -> None:
        with asked.scope:
            params = {"number": encode(asked.number)}
            await ended(asked.ends, lambda: asked.played.job.request(ELICIT, params, None))

    async def _wait(self, played: Played) -> None:
        with played.waiting:
            await ended(played.firsts, lambda: self._hosted.attend(played.job, request_of()))

    # What must be true of any script

    def judge(self, crashes: list[Exception]) -> None:
        assert self._hosted.tasks == 0
        assert (self._hosted.tasks_of(ME), self._hosted.tasks_of(STRANGER)) == ([], [])
        assert len(crashes) == len(set(crashes))
        for played in self.played:
            self._judge_job(played, crashes)
        for asked in self.asks:
            self._judge_question(asked)

    def _judge_job(self, played: Played, crashes: list[Exception]) -> None:
        job = played.job
        assert played.runs <= 1
        assert job.is_over
        (first,) = played.firsts
        if isinstance(first, trio.Cancelled):
            assert played.leaves
        else:
            assert self._was_first(job, first)
        over = [status for status in played.statuses if status.is_final]
        assert over == played.statuses[-1:] == ([job.task.status] if job.is_task else [])
        if played.was_cancelled:
            assert job.task.status is Status.CANCELLED
        if job.task.status is Status.COMPLETED:
            assert job.result == played.outcome
        elif job.task.status is Status.FAILED and isinstance(played.outcome, TimedOut):
            assert repr(job.error) == repr(played.outcome)
        elif job.task.status is Status.FAILED:
            assert isinstance(job.error, InternalFailure)
            assert played.outcome in crashes
        else:
            assert (job.result, job.error) == (None, None)

    @staticmethod
    def _was_first(job: DetachedCall, first: Outcome | BaseException) -> bool:
        """Whether that is what the request that a job came with is answered with."""
        if job.is_task:
            return first is job.created
        if job.error is not None:
            return repr(first) == repr(job.error)
        return isinstance(first, UnknownState) if job.result is None else first is job.result

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
@settings(max_examples=150)
@given(scripts(STEPS, max_size=80))
def test_whatever_happens_each_job_and_question_ends_once(script: list[Step]) -> None:
    """No job is left when the lifetimes are up, and none was seen by another than its owner (rules 91, 108)."""

    async def play() -> None:
        crashes: list[Exception] = []
        async with trio.open_nursery() as nursery, trio.open_nursery() as jobs:
            machine = Machine(nursery, CallStore(jobs, crashes.append, Budget(now=trio.current_time)))
            await machine.play([("start", 1, 1), *script])
            assert not jobs.child_tasks
            machine.judge(crashes)

    trio.run(play, clock=MockClock(autojump_threshold=0))
