"""Tasks of clients, in both dialects. Each is a task of Colonnade's own, whether or not the server has one for it.

A handshake client requests a task, and gets it at once; server requests reach it while it waits for the result
(2025-11-25, "Tasks"). A stateless client declares that it accepts tasks, and gets one if the server makes one of the
call; its server requests are part of the status (the tasks extension beside 2026-07-28).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping

import msgspec
import trio
from msgspec import Raw, structs
from msgspec.structs import replace

from host.downstream.call_store import CallStore, UnknownTask
from host.downstream.charge import COPIES
from host.downstream.detached import MAX_TTL_MS, DetachedCall, TaskOptions, lost_task
from host.errors import Interrupted, InvalidParams, InvalidRequest, MethodNotFound, MissingAbility, copy_of
from host.exchange import Answered, Caller, ClientHandle, Exchange, ResolvedName
from host.jsonrpc.messages import ErrorBody, Notification, Request
from host.jsonrpc.raw import encode
from host.peer.outstanding import BrokenAnswer, PeerError
from host.protocol.abilities import TASKS_EXTENSION, Abilities
from host.protocol.codes import as_stateless_error
from host.protocol.methods import TOOLS_CALL
from host.protocol.server_requests import stateless_form
from host.protocol.tasks import (
    ACKNOWLEDGEMENT,
    TASKS_CANCEL,
    TASKS_GET,
    TASKS_LIST,
    TASKS_RESULT,
    TASKS_UPDATE,
    Status,
    Task,
    created_in_handshake,
    input_responses_of,
    notification_in_extension,
    notification_in_handshake,
    status_in_extension,
    status_in_handshake,
    status_of_result,
    task_id_of,
    task_list,
    task_request_of,
    with_related_task,
)
from host.router.router import Router, failed_call
from host.seal import InvalidSeal, Seal
from host.wire.link import LinkLost

IN_HANDSHAKE = frozenset({TASKS_GET, TASKS_RESULT, TASKS_CANCEL, TASKS_LIST})
IN_EXTENSION = frozenset({TASKS_GET, TASKS_UPDATE, TASKS_CANCEL})

CREATION_TIMEOUT = 1.0
"""Seconds that a handshake client waits for the server to make its task. A call that waits for a person takes longer;
its task is then Colonnade's alone, until the server has made one."""

LOST = "Colonnade was restarted, and the task ended with it; its outcome is unknown, the tool may have run"
"""The message of a task that ended with a former process."""

Tell = Callable[[Notification], None]
_Asked = Mapping[str, tuple[str, Mapping[str, Raw]]]


class Tasks:
    """All tasks. A task belongs to its creator, by endpoint and token, who alone knows its id. The id is sealed, so
    that its owner is told of a task that ended with a former process."""

    def __init__(self, router: Router, calls: CallStore, seal: Seal) -> None:
        self._router = router
        self._calls = calls
        self._seal = seal
        self._watchers: dict[str, set[Tell]] = {}

    # Handshake clients

    async def start_if_requested(self, exchange: Exchange) -> Raw | None:
        """The task that the client requests, as the response to its call, if the tool supports tasks. None if the call
        is to be answered without a task.

        The task is told as the server has made it, if it does so within CREATION_TIMEOUT.

        Raises:
            ColonnadeError: the call failed before the server made a task.
        """
        caller, target = exchange.caller, exchange.target
        if exchange.request.method != TOOLS_CALL.name or not caller.abilities.tasks or target is None:
            return None
        wanted = task_request_of(exchange.params)
        server = None
        if wanted is not None:
            server = self._router.resolver.task_server(target, caller, declared=bool(exchange.through))
        if wanted is None or server is None:
            return None

        async def work(call: DetachedCall) -> Raw:
            answer = await self._router.answer(
                structs.replace(exchange, client=call, on_task=call.follow, scope=None, on_sent=call.note_sent)
            )
            assert isinstance(answer, Answered)
            return answer.result

        is_announced = False

        def on_status(call: DetachedCall) -> None:
            if is_announced:  # until then its id means nothing to the client
                caller.client.notify(notification_in_handshake(_in_handshake(call)))

        call = self._calls.start(
            caller.owner,
            work,
            task=self._options(caller, server, on_status, wanted.ttl_ms),
            identity=caller.identity,
            over_stdio=caller.process is not None,
            size=COPIES * len(exchange.request.params or b""),
        )
        call.client = caller.key
        call.notices = caller.client.notify
        call.become_task()
        try:
            with trio.move_on_after(min(CREATION_TIMEOUT, (call.task.ttl_ms or 0) / 2000)):
                await call.wait_begun()
            if call.error is not None:
                raise copy_of(call.error)
            is_announced = True
        finally:
            if not is_announced:
                call.life.cancel("its client does not know it")
        # "Tasks MUST begin in the working status when created" (2025-11-25, "Task Status Lifecycle").
        return created_in_handshake(replace(call.task, status=Status.WORKING))

    async def answer_in_handshake(self, exchange: Exchange) -> Raw:
        """The response to a request of IN_HANDSHAKE.

        Raises:
            InvalidParams: this caller has no such task, or it is over and cannot be cancelled.
            ColonnadeError: the task's own error.
        """
        method, caller = exchange.request.method, exchange.caller
        if method == TASKS_LIST:
            if caller.identity is None:  # without an identity the owner of a task is unknown
                raise MethodNotFound("tasks are listed only for clients that have a token")
            return task_list([_in_handshake(call) for call in self._calls.tasks_of(caller.owner)])
        call = self._find(caller, method, exchange.params)
        if method == TASKS_RESULT:
            return await self._result(call, exchange.client)
        if method == TASKS_CANCEL and not call.cancel():
            raise InvalidParams("the task is already over")
        return status_in_handshake(_in_handshake(call))

    def _find(self, caller: Caller, method: str, params: Mapping[str, Raw]) -> DetachedCall:
        """The task that a request names.

        Raises:
            InvalidParams: this caller has no such task.
            MethodNotFound: it has none, and the only server of its endpoint runs no tasks.
        """
        try:
            return self._task(caller, task_id_of(params))
        except InvalidParams:
            server = self._router.server_for(caller)
            if server is not None and not server.runs_tasks:
                raise MethodNotFound.of_method(method) from None
            raise

    def _options(
        self, caller: Caller, server: str, on_status: Callable[[DetachedCall], None], ttl_ms: int | None = None
    ) -> TaskOptions:
        created = time.time()
        content = encode([self._seal.boot, server, created])
        id = self._seal.seal("task", _owner(caller), bytes(content), MAX_TTL_MS / 1000)
        return TaskOptions(id, on_status, ttl_ms, created)

    def _task(self, caller: Caller, id: str) -> DetachedCall:
        """The caller's task of this id; one of a former process is over.

        Raises:
            InvalidParams: this caller has no such task.
        """
        try:
            return self._calls.find_task(caller.owner, id)
        except UnknownTask:
            lost = self._lost(caller, id)
            if lost is None:
                raise
            return lost

    def _lost(self, caller: Caller, id: str) -> DetachedCall | None:
        """The task of this caller and id that ended with a former process, over with a failed result: clients that poll
        end at its status, and their models read what is known. None if there was none."""
        try:
            content = self._seal.unseal("task", _owner(caller), id)
        except InvalidSeal:
            return None
        boot, server, created = msgspec.json.decode(content, type=tuple[str, str, float])
        if not self._seal.has_ended(boot):
            return None
        options = TaskOptions(id, lambda call: None, MAX_TTL_MS, created)
        return lost_task(caller.owner, options, failed_call(Interrupted(server, LOST)).result, LOST)

    async def _result(self, call: DetachedCall, handle: ClientHandle) -> Raw:
        """Wait for the result of the task. Until then its server requests are forwarded to the client."""
        seen: set[str] = set()
        async with trio.open_nursery() as nursery:
            while (key := await call.next_server_request(seen)) is not None:
                seen.add(key)
                nursery.start_soon(self._forward, call, key, handle)
            nursery.cancel_scope.cancel("the task is over")
        call.is_fetched = True
        if call.error is not None:
            raise copy_of(call.error)
        if call.result is None:
            raise InvalidRequest("the task was cancelled")
        return with_related_task(call.result, call.id)

    async def _forward(self, call: DetachedCall, key: str, handle: ClientHandle) -> None:
        """Forward one server request of the task to the client, while it is open."""
        server_request = call.open_request(key)
        if server_request is None:
            return  # its server has withdrawn it
        method, params = server_request
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_cancel_when_withdrawn, call, key, nursery.cancel_scope)
            try:
                if not call.answer(key, await handle.request(method, dict(params), None)):
                    call.refuse(key, BrokenAnswer("it is not an object"))
            except (PeerError, BrokenAnswer) as refusal:
                call.refuse(key, refusal)
            except LinkLost:
                pass  # it stays open for the next request that waits for the result
            nursery.cancel_scope.cancel()

    # Stateless clients

    def options(self, caller: Caller, method: str, target: ResolvedName) -> TaskOptions | None:
        """The settings of a call that may become a task: it calls a tool, its caller accepts tasks, and its server
        makes some. None for any other call."""
        if method != TOOLS_CALL.name or not caller.abilities.tasks:
            return None
        server = self._router.resolver.task_server(target, caller)
        return None if server is None else self._options(caller, server, self._notify_watchers)

    def answer_in_extension(self, request: Request, params: Mapping[str, Raw], caller: Caller) -> Raw:
        """The response to a request of IN_EXTENSION, without Colonnade's own `_meta`.

        Raises:
            MissingAbility: the request does not declare the extension.
            InvalidParams: this caller has no such task.
        """
        check_declared(caller.abilities)
        call = self._find(caller, request.method, params)
        if request.method == TASKS_GET:
            call.is_fetched = call.is_over
            return status_in_extension(call.task, inputs=_inputs(call), result=call.result, error=_error(call))
        if request.method == TASKS_UPDATE:
            for key, answer in input_responses_of(params).items():
                call.answer(key, answer)
        else:
            call.cancel()
        return ACKNOWLEDGEMENT

    def watch(self, caller: Caller, ids: tuple[str, ...], tell: Tell) -> tuple[str, ...]:
        """Subscribe `tell` to these tasks until `unwatch`; returns those that belong to the caller."""
        found: list[str] = []
        for id in ids:
            try:
                self._task(caller, id)
            except InvalidParams:
                continue
            found.append(id)
            self._watchers.setdefault(id, set()).add(tell)
        return tuple(found)

    def unwatch(self, ids: tuple[str, ...], tell: Tell) -> None:
        for id in ids:
            watchers = self._watchers.get(id, set())
            watchers.discard(tell)
            if not watchers:
                self._watchers.pop(id, None)

    def _notify_watchers(self, call: DetachedCall) -> None:
        watchers = self._watchers.get(call.id)
        if watchers:
            notice = notification_in_extension(call.task, inputs=_inputs(call), result=call.result, error=_error(call))
            for tell in list(watchers):
                tell(notice)


def _owner(caller: Caller) -> bytes:
    """The binding of the ids of the caller's tasks: `Caller.owner`."""
    return bytes(encode(caller.owner))


async def _cancel_when_withdrawn(call: DetachedCall, key: str, asking: trio.CancelScope) -> None:
    await call.wait_withdrawn(key)
    asking.cancel("the server request is no longer open")


def check_declared(abilities: Abilities) -> None:
    """Refuse a request that needs the tasks extension.

    Raises:
        MissingAbility: the request does not declare it.
    """
    if not abilities.tasks:
        data = encode({"requiredCapabilities": {"extensions": {TASKS_EXTENSION: {}}}})
        raise MissingAbility("the request does not declare the tasks extension", data=data)


def _in_handshake(call: DetachedCall) -> Task:
    """The task in the handshake dialect, where a result with `isError` is a failed task."""
    if call.result is None:
        return call.task
    return replace(call.task, status=status_of_result(call.result, extension=False))


def _inputs(call: DetachedCall) -> _Asked | None:
    """The server requests of a task, in the stateless form."""
    if call.task.status is not Status.INPUT_REQUIRED:
        return None
    return {key: stateless_form(*each) for key, each in call.server_requests.items()}


def _error(call: DetachedCall) -> ErrorBody | None:
    return None if call.error is None else as_stateless_error(call.error)
