"""Tasks of our own: calls that are carried out here, whoever waits for them, while their clients ask how they stand.

A `HostedTask` is such a call. It runs as a task of the nursery from its first step. It may begin as a call that nobody
sees as a task yet: then whoever started it waits for it, and what it says goes to the request that it came with. Once
it has become a task, its client knows it by its id, finds its questions there, and gets what came of it until its
lifetime is up; from then on there is no such task. Where memory runs short, those that ended first are forgotten first.

This file knows jobs, questions and lifetimes. It knows no dialect of tasks, no transport and no servers. (2025-11-25,
"Tasks"; the tasks extension beside 2026-07-28)
"""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Collection, Hashable, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import TypeAlias

import trio
from msgspec import Raw

from host.downstream.kept import (
    AnswerTooLarge,
    ByOwner,
    KeptResults,
    MethodAndParams,
    OpenServerRequests,
    fit_to_keep,
    size_of,
)
from host.errors import INTERNAL_ERROR_MESSAGE, ColonnadeError, InvalidParams, TooManyRequests, Unavailable
from host.exchange import ClientHandle, ProgressCallback
from host.jsonrpc.messages import INTERNAL_ERROR, Notification
from host.memory import Budget, Holding, OverBudget, Use, client_owner
from host.protocol.meta import without_hop_fields
from host.protocol.tasks import Status, Task, iso_timestamp
from host.wire.link import LinkLost

MAX_TASKS = 1000
MAX_PER_OWNER = 200
"""Jobs whose work has not ended, of all owners and of one."""
MIN_TTL_MS = 1_000
MAX_TTL_MS = 86_400_000
DEFAULT_TTL_MS = 3_600_000
"""Milliseconds: the least and the most that a client gets, and what it gets if it does not say."""
POLL_INTERVAL_MS = 500
"""Milliseconds that a client should let pass between two questions about its task."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""What the tasks that are over may hold together; beyond that the oldest are forgotten before their time."""
KEPT_OVERHEAD_BYTES = 8 * 1024
"""Bytes that a task that is over counts for besides its result: so there is a most of them, too."""


class UnknownTask(InvalidParams):
    """Nothing that is a task of this owner has that id, or not any more."""

    def __init__(self) -> None:
        super().__init__("there is no such task (any more)")


class InternalFailure(ColonnadeError):
    """The work broke in a way that no answer describes."""

    code = INTERNAL_ERROR

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR_MESSAGE)


def _unheard(job: HostedTask) -> None:
    """Takes what nobody is told any more."""


class HostedTask:
    """One call that is, or may become, a task. It is the outlet of its own work.

    Args:
        id: what its client knows it by.
        ttl_ms: its lifetime, in milliseconds from now.
        told: called when it is a task and its status changes, or it asks something more; must not wait.
    """

    def __init__(self, owner: Hashable, server: str, id: str, ttl_ms: int, told: Callable[[HostedTask], None]) -> None:
        self.owner = owner
        self.server = server
        self.id = id
        self.held: Holding | None = None
        """What it is charged with: its request until it is over, then what came of it."""
        self.is_task = False
        self.is_over = False
        self.result: Raw | None = None
        """Of its work. Where it is over with neither result nor error, it was cancelled."""
        self.error: ColonnadeError | None = None
        """What its work raised; whoever raises it more than once raises it `again`."""
        self.before_task: ClientHandle | None = None
        """Where its work tells and asks until it is a task; nowhere if None."""
        self.notices: Callable[[Notification], None] | None = None
        """Takes what its work tells while it is a task; must not wait. None if nobody wants that."""
        self.life = trio.CancelScope()
        """Around everything that is done for it. A task has its deadline there."""
        self.working = trio.CancelScope()
        """Around its work."""
        self._ttl_ms = ttl_ms
        self._until = trio.current_time() + ttl_ms / 1000
        self._created = self._updated = iso_timestamp(time.time())
        self._message: str | None = None
        self._told = told
        self._open = OpenServerRequests()
        self._stirred = trio.Event()

    # For its client

    @property
    def task(self) -> Task:
        """How it stands now. COMPLETED is whatever has a result: what kind of result, the dialects judge by."""
        return Task(
            self.id, self._status(), self._created, self._updated, self._ttl_ms, POLL_INTERVAL_MS, self._message
        )

    @property
    def server_requests(self) -> Mapping[str, MethodAndParams]:
        """What it asks for now: method and params by key, oldest first. A key is never used twice in one job."""
        return self._open.by_key()

    def open_request(self, key: str) -> MethodAndParams | None:
        """Method and params of this open question; None if there is none of that key (any more)."""
        question = self._open.get(key)
        return None if question is None else question.asked

    def become_task(self) -> None:
        """From now on it is a task for its client; nothing happens if it is one, or is over. Where its lifetime is up
        it stays a plain call: whoever waits for that gets its result."""
        if self.is_task or self.is_over or trio.current_time() >= self._until:
            return
        self.is_task = True
        self.life.deadline = self._until
        self.before_task = None  # its request ends now: nothing of it is kept
        self._stir()

    async def wait_first_answer(self) -> bool:
        """Wait for what its client is answered with: True if it has become a task. False if it is over and never was
        one: then its result or its error is the answer, and it is forgotten. Cancelling this before that calls the
        work off."""
        try:
            await trio.lowlevel.checkpoint()
            while not (self.is_task or self.is_over):
                await self._stirred.wait()
            return self.is_task
        finally:
            if not self.is_task:
                self.cancel()

    async def next_server_request(self, known: Collection[str]) -> str | None:
        """Wait for an open question that is not among `known`: the oldest one's key; None if the job is over."""
        await trio.lowlevel.checkpoint()
        while not self.is_over:
            for question in self._open:
                if question.key not in known:
                    return question.key
            await self._stirred.wait()
        return None

    async def wait_withdrawn(self, key: str) -> None:
        """Wait until this question is open no more: it was answered, or withdrawn."""
        await trio.lowlevel.checkpoint()
        while key in self._open:
            await self._stirred.wait()

    def answer(self, key: str, answer: Raw) -> bool:
        """Answer an open question. False if there is none of that key, or the answer is no object; then it stays."""
        return self._one_less(self._open.answer(key, answer))

    def refuse(self, key: str, problem: Exception) -> None:
        """Have an open question raise `problem`; nothing happens if there is none of that key.

        Args:
            problem: PeerError or BrokenAnswer, as `ClientHandle.request` raises it.
        """
        self._one_less(self._open.end(key, problem))

    def cancel(self) -> bool:
        """Call the work off: the job is over at once, while the work may take a moment to end. False if it was over."""
        if self.is_over:
            return False
        self.working.cancel("nobody wants its result any more")
        self.end(None)
        return True

    # For its work

    def notify(self, notice: Notification) -> None:
        if self.is_over:
            return
        if not self.is_task:
            if self.before_task is not None:
                self.before_task.notify(notice)
        elif self.notices is not None:
            self.notices(notice)

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        """As of any outlet. What is asked before it is a task stays where it was asked. What a task asks waits for its
        client to look; it has no progress: `report` hears nothing.

        Raises:
            InvalidParams: `_meta` is no object.
        """
        await trio.lowlevel.checkpoint_if_cancelled()
        if self.is_over or self.life.cancel_called:
            raise LinkLost("the task that this belongs to is over")
        if self.is_task:
            return await self._ask_as_task(method, without_hop_fields(params))
        if self.before_task is None:
            raise LinkLost("the client cannot be asked")
        return await self.before_task.request(method, params, report)

    async def _ask_as_task(self, method: str, params: dict[str, Raw]) -> Raw:
        question = self._open.add(method, params)
        try:
            self._news()
            return await question.answer()
        finally:
            self._one_less(self._open.end(question.key))  # if it still is open, it is withdrawn

    # For both

    def end(self, outcome: Raw | ColonnadeError | None, message: str | None = None) -> None:
        """It is over: nothing more is told or asked. Once is enough; of later outcomes none counts.

        Args:
            outcome: None if it was cancelled.
            message: says why, for people.
        """
        if self.is_over:
            return
        self.is_over = True
        self._message = message
        if isinstance(outcome, ColonnadeError):
            self.error = outcome
            self._message = outcome.message
        else:
            self.result = outcome
        self._open.end_all()
        self._news()
        self.before_task = self.notices = None  # what is kept from here on keeps nothing of its client alive
        self._told = _unheard

    def _status(self) -> Status:
        if not self.is_over:
            return Status.INPUT_REQUIRED if self._open else Status.WORKING
        if self.error is not None:
            return Status.FAILED
        return Status.CANCELLED if self.result is None else Status.COMPLETED

    def _one_less(self, ended: bool) -> bool:
        """Have everybody hear of it, if a question has ended."""
        if ended and self._open:
            self._stir()
        elif ended:
            self._news()
        return ended

    def _news(self) -> None:
        self._updated = iso_timestamp(time.time())
        self._stir()
        if self.is_task:
            self._told(self)

    def _stir(self) -> None:
        """Whoever waits looks again."""
        self._stirred.set()
        self._stirred = trio.Event()


Work: TypeAlias = Callable[[HostedTask], Awaitable[Raw]]


class TaskStore:
    """All jobs; see `open_task_store`.

    Args:
        nursery: where they run. Cancelling it ends them all.
        crashed: told of every exception that is not an answer; must not wait.
    """

    def __init__(self, nursery: trio.Nursery, crashed: Callable[[Exception], None], memory: Budget) -> None:
        self._memory = memory
        self._nursery = nursery
        self._crashed = crashed
        self._jobs: dict[Hashable, dict[str, HostedTask]] = {}
        self._working: ByOwner[HostedTask] = ByOwner()
        self._kept: KeptResults[HostedTask] = KeptResults()

    def __len__(self) -> int:
        """The jobs whose work has not ended, tasks or not."""
        return len(self._working)

    def start(
        self,
        owner: Hashable,
        server: str,
        work: Work,
        *,
        ttl_ms: int | None,
        told: Callable[[HostedTask], None],
        identity: str | None = None,
        size: int = 0,
    ) -> HostedTask:
        """Have a call of `owner` carried out. Its outlets can be set before it takes its first step, at the next
        checkpoint.

        Args:
            server: id of the server that it is for, fit for a header.
            work: run once. What it raises becomes the job's error; cancelling it is calling it off.
            ttl_ms: how long its client would like to have it kept, counted from now; None if it does not say.
            told: see `HostedTask`.
            identity: the access token whose clients are charged with what it holds.
            size: bytes of the request, which the work holds until its end.

        Raises:
            TooManyRequests: too many jobs are unfinished, or there is no memory for this one.
        """
        if not self._working.has_room(owner, max_total=MAX_TASKS, max_per_owner=MAX_PER_OWNER):
            raise TooManyRequests("too many tasks are in progress; finish or cancel some first")
        life = DEFAULT_TTL_MS if ttl_ms is None else min(max(ttl_ms, MIN_TTL_MS), MAX_TTL_MS)
        job = HostedTask(owner, server, f"{server}.{secrets.token_urlsafe(16)}", life, told)
        try:
            job.held = self._memory.hold(client_owner(identity), Use.TASKS, size, partial(_give_way, job))
        except OverBudget:
            raise TooManyRequests("there is no memory for another task (memory); nothing was carried out") from None
        self._nursery.start_soon(self._run, job, work)
        self._jobs.setdefault(owner, {})[job.id] = job
        self._working.add(job, owner)
        return job

    def find(self, owner: Hashable, id: str) -> HostedTask:
        """The task of this owner and id.

        Raises:
            InvalidParams: there is none, whether there was one, it is another's, or it is no task yet.
        """
        job = self._jobs.get(owner, {}).get(id)
        if job is None or not _is_there(job):
            raise UnknownTask
        return job

    def of_owner(self, owner: Hashable) -> list[HostedTask]:
        """The tasks of this owner, oldest first."""
        return [job for job in self._jobs.get(owner, {}).values() if _is_there(job)]

    async def _run(self, job: HostedTask, work: Work) -> None:
        try:
            with job.life:
                with job.working:
                    await trio.lowlevel.checkpoint_if_cancelled()
                    job.end(self._charged(job, await self._outcome(job, work)))
                self._working.drop(job)
                del work  # it holds the whole request
                if _is_there(job):  # from here on its deadline says how long it is kept
                    self._keep(job)
                    await trio.sleep_forever()
        finally:
            job.end(None, "its lifetime was up before it was done" if job.life.cancelled_caught else None)
            self._working.drop(job)
            self._forget(job)

    def _charged(self, job: HostedTask, outcome: Raw | ColonnadeError) -> Raw | ColonnadeError:
        """The outcome, if it is the answer to a request, or there is memory to keep it; else the error that says so."""
        assert job.held is not None
        try:
            job.held.resize(size_of(outcome) if job.is_task else 0)
        except OverBudget:
            return AnswerTooLarge()
        return outcome

    async def _outcome(self, job: HostedTask, work: Work) -> Raw | ColonnadeError:
        try:
            result = await work(job)
        except ColonnadeError as problem:
            return fit_to_keep(problem)
        except Exception as problem:  # noqa: BLE001 - its client hears that it failed
            self._crashed(problem)
            return InternalFailure()
        return result.copy() if job.is_task else result  # one that is kept keeps no buffer of its server alive

    def _keep(self, job: HostedTask) -> None:
        size = KEPT_OVERHEAD_BYTES + size_of(job.result if job.error is None else job.error)
        for old in self._kept.add(job, size, max_bytes=MAX_KEPT_BYTES):
            old.life.cancel("the tasks that are over hold too much")

    def _forget(self, job: HostedTask) -> None:
        self._kept.drop(job)
        assert job.held is not None
        job.held.release()
        mine = self._jobs[job.owner]
        del mine[job.id]
        if not mine:
            del self._jobs[job.owner]


def _give_way(job: HostedTask) -> None:
    """Its memory is needed elsewhere: it is called off, or, if it is over, forgotten."""
    assert job.held is not None
    job.held.release()
    if not job.is_over:
        job.working.cancel("its memory is needed elsewhere")
        job.end(MemoryNeeded())
    else:
        job.life.cancel("its memory is needed elsewhere")


class MemoryNeeded(ColonnadeError):
    """The memory of a task was needed elsewhere while a server worked on it."""

    code = Unavailable.code

    def __init__(self) -> None:
        super().__init__("the task was called off since its memory was needed elsewhere (memory)")


def _is_there(job: HostedTask) -> bool:
    """Whether its client can find it. Its deadline counts from its moment on, even where nothing has noticed yet."""
    return job.is_task and not job.life.cancel_called


@asynccontextmanager
async def open_task_store(crashed: Callable[[Exception], None], memory: Budget) -> AsyncIterator[TaskStore]:
    """The jobs of the block; see `TaskStore`. When it ends, they are cancelled."""
    async with trio.open_nursery() as nursery:
        yield TaskStore(nursery, crashed, memory)
        nursery.cancel_scope.cancel("the host is stopping")
