"""Stateless requests over HTTP (2026-07-28, "Transports / Streamable HTTP"): each POST is independent.

Headers must agree with the body, and only the body is used. Errors with an HTTP status of their own are found before
the first byte of a response. A disconnect cancels the request.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from msgspec import Raw, Struct

from host.downstream.connected_clients import ConnectedClients
from host.downstream.drain import Drain
from host.downstream.error_answers import params_of
from host.downstream.http.open_streams import OpenStream, OpenStreams, StreamKind
from host.downstream.http.replies import STREAM_DEADLINE, EventStream, Replies
from host.downstream.http.request import HttpRequest, Rejected
from host.downstream.http.security import Refusal
from host.downstream.listen_streams import Subscription, requested_filter
from host.downstream.reading import MessageReader
from host.downstream.sessions import DraftSession
from host.downstream.stateless import Stateless, StatelessClient
from host.errors import (
    AmbiguousMembers,
    ColonnadeError,
    HeaderMismatch,
    MethodNotFound,
    MissingAbility,
    UnsupportedVersion,
)
from host.exchange import Caller, ResolvedName
from host.journal import Journal
from host.jsonrpc.messages import Failure, Request, Success, write
from host.memory import Budget, OverBudget, client_owner
from host.protocol.abilities import NO_ABILITIES
from host.protocol.methods import TOOLS_CALL
from host.protocol.param_headers import check, check_params, check_version
from host.protocol.stateless import CheckedEnvelope, take_stated
from host.protocol.subscriptions import LISTEN, listen_result
from host.router.router import Router
from host.wire.asgi import NO_HEADERS

if TYPE_CHECKING:
    from host.fleet.forwarding import Forwarding  # most hosts are in no fleet

_STATUSES = {
    HeaderMismatch.code: 400,
    MissingAbility.code: 400,
    UnsupportedVersion.code: 400,
    MethodNotFound.code: 404,
}
"""HTTP statuses of the errors that have one (2026-07-28, "Error Codes"); all others are sent with 200."""


class HttpParts(Struct, frozen=True):
    """The parts that all transports over HTTP share. `forwarding`: the way to the other processes of the fleet; None
    without one."""

    router: Router
    journal: Journal
    stateless: Stateless
    replies: Replies
    streams: OpenStreams
    reader: MessageReader
    memory: Budget
    clients: ConnectedClients
    draft: DraftSession
    drain: Drain
    forwarding: Forwarding | None


class StatelessHttp:
    """Serves stateless requests."""

    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts

    async def serve(self, http_request: HttpRequest, request: Request) -> None:
        """Serve one stateless request.

        Raises:
            Rejected: it is refused with a status.
        """
        client = _client_of(http_request)
        params, stated, caller, target, through = await self._validate(http_request, request, client)
        if request.method == LISTEN:
            await self._listen(http_request, request, params, stated, client)
            return
        answer: Success | Failure | None = None
        with http_request.call_scope() as scope:
            http_request.charge.cancel_on_drop(scope)
            stream = partial(self._stream, http_request)
            reply = self._parts.replies.begin(http_request, NO_HEADERS, stream, STREAM_DEADLINE, scope)
            try:
                if stated.answers_requests:
                    # At once: a server request may end this request, and a client that has left never repeats it.
                    reply.watch_client()
                answer = await self._parts.stateless.answer(
                    request, params, stated, caller, reply.enqueue, target, http_request.address, through, scope
                )
            finally:
                self._parts.replies.end(reply)
        if answer is None and http_request.charge.dropped:
            answer = http_request.charge.cancelled(request.id)
        if answer is None:
            reply.client_gone()
            return
        finishing = reply.finish(answer, _status(answer))
        del answer  # while the client reads it, nothing else may keep the server's buffer
        await finishing

    async def _validate(
        self, http_request: HttpRequest, request: Request, client: StatelessClient
    ) -> tuple[Mapping[str, Raw], CheckedEnvelope, Caller, ResolvedName | None, str]:
        """Check a request in this order: envelope, headers, revision, and the headers of the tool's parameters. Returns
        its params, its envelope, its caller, the tool that it calls, if any, and the search tool that it comes through
        (`ToolSearch.unwrap`). Unknown methods are refused later."""
        target, through = None, ""
        header = http_request.headers.all
        try:
            said = params_of(request)
            found = take_stated(said)
            params: Mapping[str, Raw] = said
            check_version(found.version, header)
            check(request.method, params, header)
            stated = found.checked
            caller = client.caller(stated.abilities, says=found.client)
            if request.method == TOOLS_CALL.name:
                params, through = self._parts.router.tool_search.unwrap(caller, params)
                target = await self._parts.router.resolver.resolve(caller, TOOLS_CALL.name, params)
                param_headers = self._parts.router.resolver.param_headers(target, caller)
                if param_headers and not through:  # no search tool has such headers
                    check_params(params, param_headers, header)
        except ColonnadeError as error:
            raise self._refused(http_request, request, client, error) from None
        return params, stated, caller, target, through

    def _refused(
        self, http_request: HttpRequest, request: Request, client: StatelessClient, error: ColonnadeError
    ) -> Rejected:
        if isinstance(error, AmbiguousMembers):
            self._parts.router.record_ambiguous(request, client.caller(NO_ABILITIES), http_request.address)
        return Rejected(Refusal(400, error.message), error.code, request.id, error.data)

    async def _listen(
        self,
        http_request: HttpRequest,
        request: Request,
        params: Mapping[str, Raw],
        stated: CheckedEnvelope,
        client: StatelessClient,
    ) -> None:
        try:
            wanted = requested_filter(params, stated.abilities)
        except ColonnadeError as error:
            raise self._refused(http_request, request, client, error) from None
        stream = self._stream(http_request)

        def on_end() -> None:
            with suppress(OverBudget):  # the end of the stream ends the subscription as well
                stream.add(write(Success(request.id, listen_result(request.id))))
            stream.end()

        subscription = Subscription(
            self._parts.stateless,
            request.id,
            wanted,
            client,
            stated.abilities,
            stream.enqueue,
            http_request.address,
            on_end,
        )
        endpoint, identity = http_request.endpoint, http_request.identity
        try:
            place = self._parts.streams.slot(StreamKind.LISTEN, endpoint, identity, subscription.end, id=request.id)
        except Rejected:
            stream.reader_gone()
            raise
        reader = stream.reader(http_request, NO_HEADERS, -1)
        await http_request.go_on(partial(self._serve_subscription, subscription, stream, reader, place))

    async def _serve_subscription(
        self,
        subscription: Subscription,
        stream: EventStream,
        reader: Callable[[], Awaitable[None]],
        place: OpenStream,
    ) -> None:
        try:
            with place:
                self._parts.replies.start_soon(subscription.run)
                await reader()
        finally:
            subscription.close()
            stream.reader_gone()

    def _stream(self, http_request: HttpRequest) -> EventStream:
        """A stream that cannot be resumed."""
        return EventStream(None, self._parts.memory, client_owner(http_request.identity), primes=False)


def _client_of(http_request: HttpRequest) -> StatelessClient:
    """The client of a request: requests with the same token share one; a request without a token is a client of its
    own."""
    if http_request.identity is None:
        return StatelessClient("a stateless client", http_request.endpoint, None, None, object())
    return StatelessClient(
        f"{http_request.identity}, stateless",
        http_request.endpoint,
        http_request.identity,
        http_request.identity,
        (http_request.endpoint, http_request.identity),
    )


def _status(answer: Success | Failure) -> int:
    return 200 if isinstance(answer, Success) else _STATUSES.get(answer.error.code, 200)
