"""A call that its server makes a task of: looked after until it is over, for whoever wants the result.

A server of the handshake revisions is asked for a task where its tool needs one, or where the client wants one; a
stateless server decides by itself. What the task asks for goes to the client as any question does. A task that nobody
waits for any more is called off (2025-11-25, "Tasks"; the tasks extension beside 2026-07-28).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress

import trio
from msgspec import Raw

from host.asking import CALL_OFF_GRACE
from host.errors import ColonnadeError, ProtocolViolation, ServerErrorResponse, TimedOut
from host.jsonrpc.messages import INTERNAL_ERROR, INVALID_PARAMS
from host.jsonrpc.raw import members
from host.protocol.stateless import bare
from host.protocol.tasks import (
    TASKS_CANCEL,
    TASKS_GET,
    TASKS_RESULT,
    TASKS_UPDATE,
    Progressing,
    Status,
    Task,
    read_created,
    read_status,
    task_params,
    unrelated,
    update_params,
)
from host.upstream.origin import Origin
from host.upstream.reverse import Voice
from host.upstream.rounds import Rounds

TASK_LIFE = 3_600_000
"""Milliseconds for which a task is asked to be kept, if its client does not say."""
DEFAULT_POLL = 1.0
SHORTEST_POLL = 0.1
LONGEST_POLL = 30.0
"""Seconds between two questions about a task: without a word from its server, and at the least and the most."""
STATUS_PATIENCE = 60.0
"""Seconds within which its server has to say how a task stands: one that its client takes has no deadline."""

Ask = Callable[[str, dict[str, Raw]], Awaitable[Raw]]
"""Sends a request about the task to its server, on behalf of the call; raises UpstreamError."""
_Inputs = Mapping[str, tuple[str, Raw | None]]


class TaskCall:
    """One call that became a task.

    Args:
        extension: the server is stateless, and has tasks as an extension.
        cancels: the server ends tasks that nobody wants.
    """

    def __init__(
        self, server: str, voice: Voice, origin: Origin, ask: Ask, *, extension: bool, cancels: bool = True
    ) -> None:
        self._server = server
        self._voice = voice
        self._origin = origin
        self._ask = ask
        self._extension = extension
        self._cancels = cancels
        self._over = False
        self._stirred = trio.Event()
        """Set when there is a reason to ask about it now."""
        self._asked: set[str] = set()
        self._open: Collection[str] = ()
        """Of its keys, those that were put to the client, and those that are not answered yet."""
        self._asking = trio.CancelScope()
        """Around the questions that are open."""
        self._trouble: ColonnadeError | None = None
        """Why what it asks for cannot be had."""

    async def see_through(self, created: Raw) -> Raw:
        """The result of the call, once the task that `created` names is over; in the form of the inside.

        Raises:
            UpstreamError: the task failed, or its server does not answer for it.
        """
        try:
            task = read_created(created, extension=self._extension)
        except ValueError as problem:
            raise self._broken(problem) from None
        if task.id in self._voice.tasks:  # what that one asks could be anybody's
            raise ProtocolViolation(self._server, f"{self._server} gave two tasks the same id")
        exchange = self._origin.exchange
        if exchange.on_task_created is not None:
            exchange.on_task_created()
            self._origin.patience.as_long_as_it_takes()
        self._voice.tasks[task.id] = self._origin
        try:
            return await (self._extended(task) if self._extension else self._shaken(task))
        finally:
            del self._voice.tasks[task.id]
            if self._cancels and not self._over:
                with trio.move_on_after(CALL_OFF_GRACE, shield=True), suppress(ColonnadeError):
                    await self._ask(TASKS_CANCEL, _named(task))

    async def _shaken(self, task: Task) -> Raw:
        """In the handshake dialect the result is fetched, which may be done before it is there: the server then has a
        stream for what it asks."""
        while task.status is Status.WORKING:
            await self._pause(task)
            task = (await self._status(task)).task
        outcome: Raw | ColonnadeError
        async with trio.open_nursery() as nursery:
            if not task.status.over:
                nursery.start_soon(self._watch, task)
            try:
                outcome = unrelated(await self._about(TASKS_RESULT, task))
                self._over = True
            except ColonnadeError as problem:
                outcome = problem
            nursery.cancel_scope.cancel("the task is over")
        if isinstance(outcome, ColonnadeError):
            raise outcome
        return outcome

    async def _watch(self, task: Task) -> None:
        """Have the server say now and then that it is at work, while its result is waited for."""
        with suppress(ColonnadeError):  # the result will tell
            while not task.status.over:
                await self._pause(task)
                task = (await self._status(task)).task

    async def _extended(self, task: Task) -> Raw:
        """In the extension everything is found in the status."""
        outcome: Raw | ColonnadeError | None = None
        async with trio.open_nursery() as nursery:
            try:
                outcome = await self._followed(task, nursery)
            except ColonnadeError as problem:
                outcome = problem
            nursery.cancel_scope.cancel("the task is over")
        outcome = outcome or self._trouble
        assert outcome is not None
        if isinstance(outcome, ColonnadeError):
            raise outcome
        return outcome

    async def _followed(self, task: Task, nursery: trio.Nursery) -> Raw:
        while True:
            found = await self._status(task)
            task = found.task
            if task.status is Status.COMPLETED and found.result is not None:
                return bare(found.result)
            if task.status is Status.FAILED and found.error is not None:
                raise ServerErrorResponse(self._server, found.error.code, found.error.message, found.error.data)
            if task.status.over:
                text = f"{self._server} has called its task off" + (f": {task.message}" if task.message else "")
                raise ServerErrorResponse(self._server, INTERNAL_ERROR, text[:500], None)
            self._heed(task, found.inputs, nursery)
            await self._pause(task)

    def _heed(self, task: Task, inputs: _Inputs, nursery: trio.Nursery) -> None:
        """Have the client asked what is asked for and was not, all of it at once; and no longer what is not."""
        if self._open:
            if not any(key in inputs for key in self._open):
                self._asking.cancel("the server wants it no more")
            return
        fresh = {key: each for key, each in inputs.items() if key not in self._asked}
        if fresh:
            self._asked |= fresh.keys()
            self._open, self._asking = fresh.keys(), trio.CancelScope()
            nursery.start_soon(self._answer, task, fresh, nursery.cancel_scope)

    async def _answer(self, task: Task, asked: _Inputs, following: trio.CancelScope) -> None:
        try:
            with self._asking:
                answers = await Rounds(self._server, self._voice, self._origin).answers(asked)
            self._open = ()
            if not self._asking.cancelled_caught:
                await self._ask(TASKS_UPDATE, members(update_params(task.id, answers)))
        except ColonnadeError as problem:
            self._trouble = problem
            following.cancel("what it asks for cannot be had")
        self._stirred.set()

    async def _status(self, task: Task) -> Progressing:
        answer: Raw | None = None
        with trio.move_on_after(STATUS_PATIENCE):
            answer = await self._about(TASKS_GET, task)
        if answer is None:
            text = f"{self._server} did not say within {STATUS_PATIENCE:.0f} s how its task stands"
            raise TimedOut(self._server, text)
        self._origin.patience.progressed()
        try:
            found = read_status(answer, extension=self._extension)
        except ValueError as problem:
            raise self._broken(problem) from None
        self._over = self._over or found.task.status.over
        return found

    async def _about(self, method: str, task: Task) -> Raw:
        try:
            return await self._ask(method, _named(task))
        except ServerErrorResponse as refusal:
            # The one says what became of the call, the other that there is no such task.
            self._over = self._over or method == TASKS_RESULT or refusal.code == INVALID_PARAMS
            raise

    async def _pause(self, task: Task) -> None:
        """Until it is time to ask about it again; meanwhile its server owes us no word."""
        wanted = DEFAULT_POLL if task.poll_ms is None else task.poll_ms / 1000
        pause = min(max(wanted, SHORTEST_POLL), LONGEST_POLL)
        self._origin.patience.progressed(pause)
        with trio.move_on_after(pause):
            await self._stirred.wait()
        self._stirred = trio.Event()

    def _broken(self, problem: Exception) -> ProtocolViolation:
        return ProtocolViolation(
            self._server, f"{self._server} said something of a task that cannot be read: {problem}"
        )


def _named(task: Task) -> dict[str, Raw]:
    return members(task_params(task.id))
