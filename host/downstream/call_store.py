"""The store of detached calls: starts them, attaches requests to them, and finds them again for their clients. It
limits their number, their lifetime, and the memory they hold."""

from __future__ import annotations

import math
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Hashable, Iterator, Mapping
from contextlib import asynccontextmanager
from functools import partial
from typing import Generic, TypeAlias, TypeVar

import trio
from msgspec import Raw

from host.downstream.detached import (
    REPLAY_LIFETIME,
    AttachedRequest,
    DetachedCall,
    Outcome,
    ParkedCallState,
    RequestsToClient,
    TaskOptions,
)
from host.errors import (
    INTERNAL_ERROR_MESSAGE,
    ColonnadeError,
    InvalidParams,
    TooLarge,
    TooManyRequests,
    Unavailable,
    UnknownState,
    copy_of,
)
from host.jsonrpc.messages import INTERNAL_ERROR, Id, Notification
from host.memory import Budget, OverBudget, Use, client_owner
from host.protocol.tasks import Task

MAX_PARKED = 1000
MAX_PARKED_PER_OWNER = 200
"""Calls that may wait for their clients: of all owners, and of one."""
MAX_REPLAYS = 1000
MAX_REPLAY_BYTES = 16 * 1024 * 1024
"""Delivered results that are kept for a repeated request, and their bytes; beyond that the oldest are dropped early."""
MAX_TASKS = 1000
MAX_TASKS_PER_OWNER = 200
"""Unfinished calls that are tasks or may become tasks: of all owners, and of one."""
MAX_KEPT_BYTES = 64 * 1024 * 1024
"""Bytes of all finished tasks; beyond that the oldest are dropped early."""
KEPT_OVERHEAD_BYTES = 8 * 1024
"""Bytes that a finished task counts for besides its result, which limits the number of tasks."""

T = TypeVar("T", bound=Hashable)
Work: TypeAlias = Callable[[DetachedCall], Awaitable[Raw]]


class SupersededState(InvalidParams):
    """A newer request with the same state has continued the call."""

    def __init__(self) -> None:
        super().__init__("a newer request with this requestState continues the call")


class UnknownTask(InvalidParams):
    """This owner has no task of that id."""

    def __init__(self) -> None:
        super().__init__("unknown task id; the task may have expired")


class InternalFailure(ColonnadeError):
    """Colonnade itself made a mistake: the work raised an exception that is not a response."""

    code = INTERNAL_ERROR

    def __init__(self) -> None:
        super().__init__(INTERNAL_ERROR_MESSAGE)


class MemoryNeeded(ColonnadeError):
    """The memory of a task was needed elsewhere while a server worked on it."""

    code = Unavailable.code

    def __init__(self) -> None:
        super().__init__("the task was cancelled because its memory was needed elsewhere (memory)")


class AnswerTooLarge(ColonnadeError):
    """There is no memory to keep the result until its client fetches it."""

    code = TooLarge.code

    def __init__(self) -> None:
        super().__init__("the request was carried out, but there is no memory to keep its result (memory)")


class CallStore:
    """All detached calls; see `open_call_store`.

    Args:
        nursery: where the calls run. Cancelling it ends them all.
        crashed: called with every unexpected exception of a call's work; must not wait.
    """

    def __init__(self, nursery: trio.Nursery, crashed: Callable[[Exception], None], memory: Budget) -> None:
        self._nursery = nursery
        self._crashed = crashed
        self._memory = memory
        self._parking: ByOwner[DetachedCall] = ByOwner()
        self._parked: dict[str, DetachedCall] = {}
        self._replays: KeptResults[DetachedCall] = KeptResults()
        self._working: ByOwner[DetachedCall] = ByOwner()
        self._tasks: dict[Hashable, dict[str, DetachedCall]] = {}
        self._kept: KeptResults[DetachedCall] = KeptResults()

    @property
    def parked(self) -> int:
        """Number of calls that wait for their clients or may have to, without those whose result was delivered."""
        return len(self._parking)

    @property
    def tasks(self) -> int:
        """Number of unfinished calls that are tasks or may become tasks."""
        return len(self._working)

    def unfinished(self) -> set[DetachedCall]:
        """The calls that `parked` and `tasks` count."""
        return {*self._parking, *self._working}

    def awaited(self) -> set[DetachedCall]:
        """The unfinished calls, and the tasks whose end their clients do not know yet."""
        tasks = (call for calls in self._tasks.values() for call in calls.values())
        return self.unfinished() | {call for call in tasks if call.is_found and not call.is_fetched}

    def start(
        self,
        owner: Hashable,
        work: Work,
        *,
        may_park: bool = False,
        task: TaskOptions | None = None,
        identity: str | None = None,
        over_stdio: bool = False,
        size: int = 0,
    ) -> DetachedCall:
        """Start a call of `owner`. Its work takes its first step at the next checkpoint.

        Args:
            work: run once. Its exception is the call's error; the call is its client handle.
            may_park: whether its client answers server requests by repeating the request.
            task: None if it cannot become a task.
            identity: the access token whose clients are charged for the call's memory.
            over_stdio: its client has no address, so that none can lead elsewhere (`Budget.revoke`).
            size: bytes of the request, which the work holds until its end.

        Raises:
            TooManyRequests: too many calls are unfinished, or there is no memory for this one.
        """
        if may_park and not self._parking.has_room(owner, max_total=MAX_PARKED, max_per_owner=MAX_PARKED_PER_OWNER):
            text = "too many calls whose servers may send requests are in progress; finish or cancel some first"
            raise TooManyRequests(text)
        if task is not None and not self._working.has_room(
            owner, max_total=MAX_TASKS, max_per_owner=MAX_TASKS_PER_OWNER
        ):
            raise TooManyRequests("too many tasks are in progress; finish or cancel some first")
        call = DetachedCall(owner, self._parking.drop, may_park=may_park, options=task, size=size)
        drop, of = partial(_give_way, call), None if over_stdio else owner
        try:
            if task is None:  # until the call is parked, its request is charged for the memory
                call.held = self._memory.hold(client_owner(identity), Use.PARKED, drop=drop, of=of)
            else:
                call.held = self._memory.hold(client_owner(identity), Use.TASKS, size, drop, of=of)
        except OverBudget:
            raise TooManyRequests("there is no memory for another task (memory); nothing was carried out") from None
        self._nursery.start_soon(self._run, call, work)
        if may_park:
            self._parking.add(call, owner)
        if task is not None:
            self._working.add(call, owner)
            self._tasks.setdefault(owner, {})[call.id] = call
        return call

    async def begin(
        self,
        owner: Hashable,
        work: Work,
        tell: Callable[[Notification], None],
        token: Id | None = None,
        *,
        may_park: bool = False,
        task: TaskOptions | None = None,
        identity: str | None = None,
        over_stdio: bool = False,
        size: int = 0,
    ) -> Outcome:
        """Start a call as `start` does, and `attend` it with its own request.

        Args:
            tell: takes the notifications of the call while this request is attached; must not wait.
            token: the progress token of this request; without one it gets no progress.
        """
        await trio.lowlevel.checkpoint_if_cancelled()  # a cancelled request starts nothing
        call = self.start(
            owner, work, may_park=may_park, task=task, identity=identity, over_stdio=over_stdio, size=size
        )
        return await self.attend(call, AttachedRequest(0, tell, token))

    async def resume(
        self,
        owner: Hashable,
        state: ParkedCallState,
        answers: Mapping[str, Raw],
        tell: Callable[[Notification], None],
        token: Id | None = None,
    ) -> Outcome:
        """Continue a parked call with the client's answers, by key: attach this request and wait for the result. If an
        answer is missing or is no JSON object, its server request is returned again at once, under the same key;
        answers to other keys are ignored.

        The state before the newest one returns the newest server requests again, since the response with them may be
        lost.

        Raises:
            UnknownState: the state is not valid (any more).
            Exception: as `attend` does.
        """
        await trio.lowlevel.checkpoint()
        call = self._parked.get(state.call_id)
        if call is None or call.owner != owner or not call.goes_on_at(state.round):
            raise UnknownState
        if call.delivered is not None:
            return _delivered(call)
        if call.outcome is None:
            if state.round == call.round:
                call.take(answers)  # requests that are still open are old enough to be handed over at once
            elif (again := call.hand_over_again()) is not None:
                return again
        return await self.attend(call, AttachedRequest(state.round, tell, token))

    async def attend(self, call: DetachedCall, request: AttachedRequest) -> Outcome:
        """Attach a request to a call, and wait for the result. Cancelling this cancels the call, unless it has become a
        task or a newer request is attached.

        Raises:
            SupersededState: another request came with the same state while this one waited.
            UnknownState: the call has ended because the host is stopping.
            TooManyRequests: there is no memory to park the call.
            ColonnadeError: what the work raised.
        """
        call.attach(request)
        try:
            while call.attached is request:
                if call.outcome is not None:
                    return self._deliver(call, request)
                if call.is_over:
                    raise UnknownState
                due = call.hand_over_at
                if due <= trio.current_time():
                    return self._hand_over(call)
                with trio.move_on_at(due):  # no checkpoint since the looks above, so no change is missed
                    await call.changed.wait()
            raise SupersededState
        finally:
            if call.attached is request:  # the client has left, and no other request can reach the call
                call.attached = None
                if call.is_task:
                    self._forget_state(call)
                else:
                    call.end(None)
                    call.life.cancel("the client no longer waits")

    def _hand_over(self, call: DetachedCall) -> RequestsToClient:
        """Park the call. From now on the call itself is charged for the memory of its request.

        Raises:
            TooManyRequests: there is no memory for that.
        """
        try:
            call.held.resize(call.size)
        except OverBudget:
            text = "there is no memory for calls that wait for their clients (memory); it was called off"
            raise TooManyRequests(text) from None
        if call.state_id is None:
            call.state_id = secrets.token_urlsafe(16)
            self._parked[call.state_id] = call
        return call.hand_over()

    def _deliver(self, call: DetachedCall, request: AttachedRequest) -> Raw | Task:
        call.attached = None
        self._parking.drop(call)
        if call.state_id in self._parked:  # otherwise no request can reach it again
            call.delivered = request.round
            call.expire_state_at(trio.current_time() + REPLAY_LIFETIME)
            if not call.is_task:
                size = size_of(call.result if call.error is None else call.error)
                for old in self._replays.add(call, size, max_bytes=MAX_REPLAY_BYTES, max_count=MAX_REPLAYS):
                    old.life.cancel("the results that were delivered hold too much")
        return _delivered(call)

    def find_task(self, owner: Hashable, id: str) -> DetachedCall:
        """The task of this owner and id.

        Raises:
            UnknownTask: there is none: it never existed, is gone, belongs to another owner, or is not a task yet.
        """
        call = self._tasks.get(owner, {}).get(id)
        if call is None or not call.is_found:
            raise UnknownTask
        return call

    def tasks_of(self, owner: Hashable) -> list[DetachedCall]:
        """The tasks of this owner, oldest first."""
        return [call for call in self._tasks.get(owner, {}).values() if call.is_found]

    async def _run(self, call: DetachedCall, work: Work) -> None:
        try:
            with call.life:
                with call.working:
                    await (
                        trio.lowlevel.checkpoint_if_cancelled()
                    )  # if it was cancelled before its first step, nothing is started
                    outcome: Raw | ColonnadeError
                    try:
                        outcome = await work(call)
                    except ColonnadeError as problem:
                        outcome = fit_to_keep(problem)
                    except Exception as problem:  # noqa: BLE001 - the client gets an internal error without details
                        self._crashed(problem)
                        outcome = InternalFailure()
                    call.end(self._charged(call, outcome))
                    del outcome  # there may have been no memory for it
                self._working.drop(call)
                del work  # the work holds the whole request
                if call.is_found:
                    kept = size_of(call.result if call.error is None else call.error)
                    size = KEPT_OVERHEAD_BYTES + call.told_size + kept
                    for old in self._kept.add(call, size, max_bytes=MAX_KEPT_BYTES):
                        old.life.cancel("the tasks that are over hold too much")
                if call.is_kept:  # from now on the deadline of its life limits how long it is kept
                    await trio.sleep_forever()
        finally:
            call.end(None, "its lifetime was up before it was done" if call.life.cancelled_caught else None)
            call.held.release()
            self._parking.drop(call)
            self._working.drop(call)
            self._replays.drop(call)
            self._kept.drop(call)
            self._forget_state(call)
            if call.id:
                mine = self._tasks[call.owner]
                del mine[call.id]
                if not mine:
                    del self._tasks[call.owner]

    def _charged(self, call: DetachedCall, outcome: Raw | ColonnadeError) -> Raw | ColonnadeError:
        """The outcome, if it is delivered now or there is memory to keep it; otherwise an error that says so."""
        try:
            call.held.resize(size_of(outcome) + call.told_size if call.is_kept else 0)
        except OverBudget:
            return AnswerTooLarge()
        # A kept result must not keep a receive buffer alive.
        return outcome.copy() if isinstance(outcome, Raw) and call.is_kept else outcome

    def _forget_state(self, call: DetachedCall) -> None:
        if call.state_id is not None:
            self._parked.pop(call.state_id, None)


def _delivered(call: DetachedCall) -> Raw | Task:
    outcome = call.outcome
    assert outcome is not None
    if isinstance(outcome, ColonnadeError):
        raise copy_of(outcome)  # the kept exception must not collect the stacks of all requests that got it
    return outcome


def _give_way(call: DetachedCall) -> None:
    """Give up the call's memory, which is needed elsewhere: a call that may become a task fails, any other is
    dropped. If its client is no longer served, it ends, and nobody can fetch its result."""
    call.held.release()
    if call.held.revoked:
        call.life.cancel(call.held.revoked)
    elif call.id and not call.is_over:
        call.working.cancel("its memory is needed elsewhere")
        call.end(MemoryNeeded())
    else:
        call.life.cancel("its memory is needed elsewhere")


@asynccontextmanager
async def open_call_store(crashed: Callable[[Exception], None], memory: Budget) -> AsyncIterator[CallStore]:
    """A `CallStore` for the block. At its end all calls are cancelled."""
    async with trio.open_nursery() as nursery:
        yield CallStore(nursery, crashed, memory)
        nursery.cancel_scope.cancel("the host is stopping")


class ByOwner(Generic[T]):
    """Objects, counted by owner."""

    def __init__(self) -> None:
        self._owners: dict[T, Hashable] = {}
        self._counts: dict[Hashable, int] = {}

    def __len__(self) -> int:
        return len(self._owners)

    def __iter__(self) -> Iterator[T]:
        return iter(self._owners)

    def has_room(self, owner: Hashable, *, max_total: int, max_per_owner: int) -> bool:
        """Whether this owner may have one more, within `max_total` for all owners and `max_per_owner` for each."""
        return len(self._owners) < max_total and self._counts.get(owner, 0) < max_per_owner

    def add(self, thing: T, owner: Hashable) -> None:
        self._owners[thing] = owner
        self._counts[owner] = self._counts.get(owner, 0) + 1

    def drop(self, thing: T) -> None:
        """Stop counting the object; no effect if it is not counted."""
        if thing not in self._owners:
            return
        owner = self._owners.pop(thing)
        self._counts[owner] -= 1
        if not self._counts[owner]:
            del self._counts[owner]


class KeptResults(Generic[T]):
    """Objects that hold memory until they are dropped."""

    def __init__(self) -> None:
        self._sizes: dict[T, int] = {}
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._sizes)

    def add(self, thing: T, size: int, *, max_bytes: int, max_count: float = math.inf) -> list[T]:
        """Keep one more object.

        Args:
            size: bytes that it holds.

        Returns:
            The objects that were dropped for it, oldest first. The newest is kept whatever its size; otherwise its
            client could never get it.
        """
        self._sizes[thing] = size
        self._bytes += size
        dropped: list[T] = []
        while len(self._sizes) > 1 and (len(self._sizes) > max_count or self._bytes > max_bytes):
            oldest = next(iter(self._sizes))
            self.drop(oldest)
            dropped.append(oldest)
        return dropped

    def drop(self, thing: T) -> None:
        """Stop keeping the object; no effect if it is not kept."""
        self._bytes -= self._sizes.pop(thing, 0)


def fit_to_keep(error: ColonnadeError) -> ColonnadeError:
    """A copy of the error without its stack and without the buffer of its data. Raise copies of this one."""
    fit = copy_of(error)
    if fit.data is not None:
        fit.data = fit.data.copy()
    return fit


def size_of(outcome: Raw | ColonnadeError | None) -> int:
    """Bytes that an outcome holds: a result, or the data of an error."""
    if isinstance(outcome, ColonnadeError):
        outcome = outcome.data
    return 0 if outcome is None else memoryview(outcome).nbytes
