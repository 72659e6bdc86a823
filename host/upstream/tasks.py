"""Calls that become tasks at their server: Colonnade polls the task and returns its result.

A handshake server is requested to create a task if its tool requires one, or if the client wants one; a stateless
server decides by itself. Server requests of the task go to the client as those of a call do. A task whose caller does
not wait any more is cancelled (2025-11-25, "Tasks"; the tasks extension beside 2026-07-28).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass

import trio
from msgspec import Raw
from msgspec.structs import replace

from host.errors import ColonnadeError, ProtocolViolation, ServerErrorResponse, TimedOut
from host.exchange import Exchange
from host.jsonrpc.messages import INTERNAL_ERROR, INVALID_PARAMS
from host.jsonrpc.raw import members
from host.peer.outstanding import CANCEL_SEND_GRACE
from host.protocol.negotiated import NegotiatedServer
from host.protocol.stateless import strip_hop_fields
from host.protocol.tasks import (
    TASKS_CANCEL,
    TASKS_GET,
    TASKS_RESULT,
    TASKS_UPDATE,
    Status,
    Task,
    TaskRequest,
    TaskState,
    read_created,
    read_status,
    task_params,
    task_request_of,
    update_params,
    without_related_task,
)
from host.protocol.versions import SESSION, STATELESS
from host.upstream.call import UpstreamCall
from host.upstream.mrtr import MrtrDriver
from host.upstream.server_requests import ServerMessages

TASK_TTL = 3_600_000
"""Lifetime in milliseconds that is requested for a task, at least: a call of the server may take longer."""
DEFAULT_POLL = 1.0
MIN_POLL = 0.1
MAX_POLL = 30.0
"""Seconds between two polls of a task: by default, at least, and at most."""
STATUS_TIMEOUT = 60.0
"""Seconds in which the server must return the status of a task. A call that is a task for its client has no
deadline."""

SendTaskRequest = Callable[[str, dict[str, Raw]], Awaitable[Raw]]
"""Sends a request about the task to its server, for the call; raises UpstreamError."""
_Inputs = Mapping[str, tuple[str, Raw | None]]


@dataclass(eq=False)
class TaskCall:
    """One call that became a task."""

    _server: str
    _negotiated: NegotiatedServer
    _server_messages: ServerMessages
    _call: UpstreamCall
    _send: SendTaskRequest

    def __post_init__(self) -> None:
        self._extension = self._negotiated.era is STATELESS
        """Whether the server is stateless and has the tasks extension."""
        self._is_over = False
        self._poll_now = trio.Event()
        """Set when the task should be polled at once."""
        self._requested_keys: set[str] = set()
        self._unanswered_keys: Collection[str] = ()
        """Keys of the input requests that were sent to the client, and of those without a response."""
        self._input_scope = trio.CancelScope()
        """Scope of the open input requests."""
        self._input_error: ColonnadeError | None = None
        """The reason why the task cannot get its input."""

    async def wait_for_result(self, created: Raw) -> Raw:
        """Wait for the end of the task that `created` names, and return the result of the call in the form of a
        handshake revision.

        Raises:
            UpstreamError: the task failed, or the server does not respond for it.
        """
        try:
            task = read_created(created, extension=self._extension)
        except ValueError as problem:
            raise self._unreadable(problem) from None
        if task.id in self._server_messages.task_calls:  # its server requests could not be assigned to one client
            raise ProtocolViolation(self._server, f"{self._server} gave two tasks the same id")
        exchange = self._call.exchange
        if exchange.on_task is not None:
            exchange.on_task(self._as_requested(task) if self._extension else task)
            self._call.deadline.remove()
        self._server_messages.task_calls[task.id] = self._call
        try:
            return await (self._extension_result(task) if self._extension else self._handshake_result(task))
        finally:
            del self._server_messages.task_calls[task.id]
            if self._negotiated.cancels_tasks and not self._is_over:
                with trio.move_on_after(CANCEL_SEND_GRACE, shield=True), suppress(ColonnadeError):
                    await self._send(TASKS_CANCEL, _id_params(task))

    def _as_requested(self, task: Task) -> Task:
        """The task with a lifetime within that which a handshake client requests: the extension has no such request."""
        wanted = task_requested_in(self._call.exchange)
        if wanted is None or wanted.ttl_ms is None:
            return task
        return replace(task, ttl_ms=wanted.ttl_ms if task.ttl_ms is None else min(task.ttl_ms, wanted.ttl_ms))

    async def _handshake_result(self, task: Task) -> Raw:
        """Wait for the result in the handshake dialect. `tasks/result` is sent as soon as the task needs input, so that
        the server has a stream for its server requests."""
        while task.status is Status.WORKING:
            await self._pause(task)
            task = (await self._fetch_status(task)).task
        outcome: Raw | ColonnadeError
        async with trio.open_nursery() as nursery:
            if not task.status.is_final:
                nursery.start_soon(self._poll_status, task)
            try:
                outcome = without_related_task(await self._send_for_task(TASKS_RESULT, task))
                self._is_over = True
            except ColonnadeError as problem:
                outcome = problem
            nursery.cancel_scope.cancel("the task has ended")
        if isinstance(outcome, ColonnadeError):
            raise outcome
        return outcome

    async def _poll_status(self, task: Task) -> None:
        """Poll the status while `tasks/result` is open, which extends the deadline."""
        with suppress(ColonnadeError):  # `tasks/result` fails too
            while not task.status.is_final:
                await self._pause(task)
                task = (await self._fetch_status(task)).task

    async def _extension_result(self, task: Task) -> Raw:
        """Wait for the result in the extension, where the status has it, together with input requests and error."""
        outcome: Raw | ColonnadeError | None = None
        async with trio.open_nursery() as nursery:
            try:
                outcome = await self._poll_until_over(task, nursery)
            except ColonnadeError as problem:
                outcome = problem
            nursery.cancel_scope.cancel("the task has ended")
        outcome = outcome or self._input_error
        assert outcome is not None
        if isinstance(outcome, ColonnadeError):
            raise outcome
        return outcome

    async def _poll_until_over(self, task: Task, nursery: trio.Nursery) -> Raw:
        while True:
            reported = await self._fetch_status(task)
            task = reported.task
            if task.status is Status.COMPLETED and reported.result is not None:
                return strip_hop_fields(reported.result)
            if task.status is Status.FAILED and reported.error is not None:
                raise ServerErrorResponse(
                    self._server, reported.error.code, reported.error.message, reported.error.data
                )
            if task.status.is_final:
                text = f"{self._server} has cancelled its task" + (f": {task.message}" if task.message else "")
                raise ServerErrorResponse(self._server, INTERNAL_ERROR, text[:500], None)
            self._request_inputs(task, reported.inputs, nursery)
            await self._pause(task)

    def _request_inputs(self, task: Task, inputs: _Inputs, nursery: trio.Nursery) -> None:
        """Send new input requests to the client, all at once; withdraw open ones that the server does not need any
        more."""
        if self._unanswered_keys:
            if not any(key in inputs for key in self._unanswered_keys):
                self._input_scope.cancel("the server does not need it any more")
            return
        fresh = {key: each for key, each in inputs.items() if key not in self._requested_keys}
        if fresh:
            self._requested_keys |= fresh.keys()
            self._unanswered_keys, self._input_scope = fresh.keys(), trio.CancelScope()
            nursery.start_soon(self._answer_inputs, task, fresh, nursery.cancel_scope)

    async def _answer_inputs(self, task: Task, requests: _Inputs, polling: trio.CancelScope) -> None:
        try:
            with self._input_scope:
                answers = await MrtrDriver(self._server, self._server_messages, self._call).collect_answers(requests)
            self._unanswered_keys = ()
            if not self._input_scope.cancelled_caught:
                await self._send(TASKS_UPDATE, members(update_params(task.id, answers)))
        except ColonnadeError as problem:
            self._input_error = problem
            polling.cancel("the task cannot get its input")
        self._poll_now.set()

    async def _fetch_status(self, task: Task) -> TaskState:
        answer: Raw | None = None
        with trio.move_on_after(STATUS_TIMEOUT):
            answer = await self._send_for_task(TASKS_GET, task)
        if answer is None:
            text = f"{self._server} did not return the status of its task within {STATUS_TIMEOUT:.0f} s"
            raise TimedOut(self._server, text)
        self._call.deadline.extend()
        try:
            reported = read_status(answer, extension=self._extension)
        except ValueError as problem:
            raise self._unreadable(problem) from None
        self._is_over = self._is_over or reported.task.status.is_final
        if (on_task := self._call.exchange.on_task) is not None:
            on_task(reported.task)
        return reported

    async def _send_for_task(self, method: str, task: Task) -> Raw:
        try:
            return await self._send(method, _id_params(task))
        except ServerErrorResponse as refusal:
            # The error of `tasks/result` is the outcome of the call; INVALID_PARAMS means that there is no such task.
            self._is_over = self._is_over or method == TASKS_RESULT or refusal.code == INVALID_PARAMS
            raise

    async def _pause(self, task: Task) -> None:
        """Wait until the next poll. The deadline is extended by the pause, in which no message is expected."""
        wanted = DEFAULT_POLL if task.poll_ms is None else task.poll_ms / 1000
        pause = min(max(wanted, MIN_POLL), MAX_POLL)
        self._call.deadline.extend(pause)
        with trio.move_on_after(pause):
            await self._poll_now.wait()
        self._poll_now = trio.Event()

    def _unreadable(self, problem: Exception) -> ProtocolViolation:
        return ProtocolViolation(self._server, f"{self._server} sent an invalid message about a task: {problem}")


def task_requested_in(exchange: Exchange) -> TaskRequest | None:
    """The task that a handshake client requests; None for other clients, whose requests have no such member."""
    return task_request_of(exchange.params) if exchange.caller.era is SESSION else None


def _id_params(task: Task) -> dict[str, Raw]:
    return members(task_params(task.id))
