"""Stateless requests over HTTP (2026-07-28, "Transports / Streamable HTTP"): each POST stands for itself.

What the headers say must be what the body says; only the body counts. Everything that has a status of its own is
refused before the first byte of an answer. A client that leaves has called its request off.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import trio
from msgspec import Raw

from host.downstream.charge import memory_cancelled
from host.downstream.error_answers import params_of
from host.downstream.http.open_streams import OpenStreams, Transport
from host.downstream.http.replies import STREAM_DEADLINE, STREAM_HEADERS, EventStream, Replies, start_response
from host.downstream.http.request import HttpRequest, Rejected, cancel_when_gone, until_gone
from host.downstream.http.security import Refusal
from host.downstream.listen_streams import listen, requested_filter
from host.downstream.stateless import Stateless, StatelessClient, can_answer_requests
from host.errors import ColonnadeError, HeaderMismatch, MethodNotFound, MissingAbility, UnsupportedVersion
from host.exchange import ResolvedName
from host.jsonrpc.messages import Failure, Request, Success, write
from host.memory import Budget, OverBudget, client_owner
from host.protocol.methods import CALL
from host.protocol.param_headers import check, check_params, check_version
from host.protocol.stateless import Envelope, envelope, read_stated
from host.protocol.subscriptions import LISTEN, Filter, farewell
from host.router import Router

_STATUSES = {
    HeaderMismatch.code: 400,
    MissingAbility.code: 400,
    UnsupportedVersion.code: 400,
    MethodNotFound.code: 404,
}
"""Of errors that have one (2026-07-28, "Error Codes"); every other is an answer like any."""


class StatelessHttp:
    """Serves them. When `stop` is set, whoever only listens is told that it is over."""

    def __init__(
        self,
        router: Router,
        stateless: Stateless,
        replies: Replies,
        stop: trio.Event,
        streams: OpenStreams,
        memory: Budget,
    ) -> None:
        self._memory = memory
        self._router = router
        self._stateless = stateless
        self._replies = replies
        self._stop = stop
        self._streams = streams

    async def serve(self, visit: HttpRequest, request: Request) -> None:
        """One request, which says that it is stateless.

        Raises:
            Rejected: it is refused with a status.
        """
        comer = _client_of(visit)
        params, said, target = await self._judged(visit, request, comer)
        if request.method == LISTEN:
            await self._listen(visit, request, params, said, comer)
        else:
            await self._answer(visit, request, params, said, comer, target)

    async def _judged(
        self, visit: HttpRequest, request: Request, comer: StatelessClient
    ) -> tuple[Mapping[str, Raw], Envelope, ResolvedName | None]:
        """What the request says of itself, once everything that may be wrong with it has been looked for, in this
        order: the envelope, the headers, the revision, the headers of a tool's own. A method that there is not is
        refused by whoever answers. And the tool that it calls, if it calls one."""
        target = None
        try:
            params = params_of(request)
            found = read_stated(params)
            check_version(found.version, visit.headers.all)
            check(request.method, params, visit.headers.all)
            said = envelope(found)
            if request.method == CALL.name:
                target = await self._router.resolve(comer.endpoint, CALL.name, params)
                check_params(params, self._router.param_headers(target), visit.headers.all)
        except ColonnadeError as error:
            raise Rejected(Refusal(400, error.message), error.code, request.id, error.data) from None
        return params, said, target

    async def _answer(
        self,
        visit: HttpRequest,
        request: Request,
        params: Mapping[str, Raw],
        said: Envelope,
        comer: StatelessClient,
        target: ResolvedName | None,
    ) -> None:
        scope = trio.CancelScope()
        leaving = partial(cancel_when_gone, visit.receive, scope)
        reply = self._replies.begin(visit.send, visit.allowed, partial(self._stream, visit), STREAM_DEADLINE, leaving)
        if can_answer_requests(said.abilities):
            reply.watch_client()  # at once: a question may end the request, and whoever has left would never come back
        answer: Success | Failure | None = None
        try:
            with scope, visit.charge.droppable() as dropping:
                answer = await self._stateless.answer(request, params, said, comer, reply.enqueue, target)
        finally:
            self._replies.end(reply)
        if answer is None and dropping.cancelled_caught:
            answer = memory_cancelled(request.id)
        if answer is None:
            reply.client_gone()
            return
        finishing = reply.finish(answer, visit.charge, _status(answer))
        del answer  # while its client takes it, nothing else may keep what the server sent
        await finishing

    async def _listen(
        self, visit: HttpRequest, request: Request, params: Mapping[str, Raw], said: Envelope, comer: StatelessClient
    ) -> None:
        try:
            wanted = requested_filter(params, said.abilities)
        except ColonnadeError as error:
            raise Rejected(Refusal(400, error.message), error.code, request.id, error.data) from None
        ending = trio.CancelScope()
        with self._streams.slot(Transport.LISTEN, visit.identity, ending.cancel, id=request.id):
            async with until_gone(visit.receive) as nursery:
                stream = self._stream(visit)
                try:
                    await start_response(visit.send, 200, {**visit.allowed, **STREAM_HEADERS})
                    nursery.start_soon(self._tell, request, wanted, said, comer, stream, ending)
                    await stream.write_events(visit.send, -1)
                finally:
                    stream.reader_gone()

    async def _tell(
        self,
        request: Request,
        wanted: Filter,
        said: Envelope,
        comer: StatelessClient,
        stream: EventStream,
        ending: trio.CancelScope,
    ) -> None:
        tasks = self._stateless.tasks
        with ending:
            await listen(self._router, tasks, request.id, wanted, comer, said.abilities, stream.enqueue, self._stop)
        with suppress(OverBudget):
            stream.add(write(Success(request.id, farewell(request.id))))
        stream.end()

    def _stream(self, visit: HttpRequest) -> EventStream:
        """Such a stream cannot be resumed."""
        return EventStream(None, self._memory, client_owner(visit.identity), primes=False)


def _client_of(visit: HttpRequest) -> StatelessClient:
    """Whoever has a token is one client, wherever it comes from; of those who have none, each request is one."""
    if visit.identity is None:
        return StatelessClient("a stateless client", visit.endpoint, None, None, object())
    return StatelessClient(
        f"{visit.identity}, stateless", visit.endpoint, visit.identity, visit.identity, (visit.endpoint, visit.identity)
    )


def _status(answer: Success | Failure) -> int:
    return 200 if isinstance(answer, Success) else _STATUSES.get(answer.error.code, 200)
