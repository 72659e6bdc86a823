"""One session on one channel that carries messages both ways in order: standard input and output, or the one event
stream of the 2024-11-05 transport. This module takes incoming messages; the transport writes outgoing ones."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

import trio

from host.downstream.charge import NO_MEMORY_MESSAGE, RequestCharge
from host.downstream.error_answers import error_body
from host.downstream.sessions import Session
from host.downstream.stateless_stdio import StatelessStdio
from host.errors import ColonnadeError, Unavailable
from host.exchange import STDIO
from host.jsonrpc.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorBody,
    Failure,
    Malformed,
    Message,
    Notification,
    ParsedInput,
    Request,
    Success,
)
from host.memory import OverBudget, client_owner
from host.protocol.era import era_over_stdio
from host.protocol.methods import INITIALIZE
from host.protocol.stateless import has_envelope
from host.protocol.versions import Era
from host.wire.deadlines import CallScope


class DuplexSession:
    """The session's end of the channel.

    Args:
        say: puts a message on the channel without waiting; False if there is no room, or no reader.
        send: puts a message on the channel that must not be lost, waiting for its turn.
        nursery: holds a task for each request.
        stateless_stdio: answers stateless requests; None if the channel has none.
    """

    def __init__(
        self,
        session: Session,
        enqueue: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
        nursery: trio.Nursery,
        stateless_stdio: StatelessStdio | None = None,
    ) -> None:
        self._session = session
        self._stateless_stdio = stateless_stdio
        self._open_handshakes = 0
        """Handshakes in progress: a client need not wait for the response before it sends requests."""
        self._enqueue = enqueue
        self._send = send
        self._nursery = nursery

    def on_received(self, received: ParsedInput, address: str = STDIO) -> None:
        """Take one message from the client, or a batch if its revision has batches. `address`: see
        `Exchange.address`."""
        for message in self._session.messages_in(received)[0]:
            self._dispatch(message, address)

    def reject(self, why: str) -> None:
        """Answer a message that could not be parsed at all."""
        self._enqueue(Failure(ErrorBody(PARSE_ERROR, why)))

    def _dispatch(self, message: Message | Malformed, address: str) -> None:
        if isinstance(message, Request):
            self._on_request(message, address)
        elif isinstance(message, Notification):
            self._session.on_notification(message)
        elif isinstance(message, Malformed) and not message.answers:
            self._enqueue(Failure(ErrorBody(message.code, message.why), message.id))
        else:
            self._session.on_response(message)

    def _on_request(self, request: Request, address: str) -> None:
        if request.id in self._session.serving:
            why = "a request with this id is still in flight; use a new id"
            self._enqueue(Failure(ErrorBody(INVALID_REQUEST, why), request.id))
        # In a batch `initialize` cannot be the first: the revision, and with it batches, is known only afterwards.
        elif request.method == INITIALIZE and self._session.opening is None:
            self._open_handshakes += 1
            scope = self._session.begin(request)
            self._nursery.start_soon(self._open, request, scope, self._session.open(request))
        elif (refusal := self._session.check_flood(request)) is not None:
            self._enqueue(refusal)
        else:
            self._charge_and_start(request, address)

    def _charge_and_start(self, request: Request, address: str) -> None:
        charge = RequestCharge(self._session.memory, client_owner(self._session.identity))
        try:
            charge.add_request_bytes(len(request.params or b""))
            charge.begin_processing()
        except OverBudget:
            charge.release()
            self._enqueue(Failure(ErrorBody(Unavailable.code, NO_MEMORY_MESSAGE), request.id))
            return
        try:
            answerer = self._stateless_stdio if self._era_of(request) is Era.STATELESS else None
        except ColonnadeError as error:
            charge.release()
            self._enqueue(Failure(error_body(error), request.id))
            return
        scope = self._session.begin(request)
        if answerer is None:
            self._nursery.start_soon(self._answer, request, scope, charge, address)
        else:
            self._nursery.start_soon(self._answer_stateless, answerer, request, scope, charge)

    def _era_of(self, request: Request) -> Era:
        if self._stateless_stdio is None:
            return Era.SESSION
        return era_over_stdio(
            request.method, envelope=has_envelope(request.params_members), initialized=self._handshake_begun
        )

    async def _answer_stateless(
        self, answerer: StatelessStdio, request: Request, scope: CallScope, charge: RequestCharge
    ) -> None:
        with charge, trio.CancelScope() as dropping:
            charge.cancel_on_drop(dropping)
            await answerer.answer(request, scope, self._enqueue, self._send)
        if dropping.cancelled_caught:
            await self._send(charge.cancelled(request.id))

    @property
    def _handshake_begun(self) -> bool:
        return self._open_handshakes > 0 or self._session.opening is not None

    async def _open(self, request: Request, scope: CallScope, opening: Awaitable[Success | Failure]) -> None:
        try:
            answer = await opening
        finally:
            self._open_handshakes -= 1
            # Registered for its id alone; this request cannot be cancelled.
            self._session.serving.end(request.id, scope)
        await self._send(answer)

    async def _answer(self, request: Request, scope: CallScope, charge: RequestCharge, address: str) -> None:
        done = False

        def enqueue(message: Notification | Request) -> bool:
            return not done and self._enqueue(message)

        with charge:
            charge.cancel_on_drop(scope)
            answer = await self._session.answer(request, scope, enqueue, address)
            if answer is None and charge.dropped:
                answer = charge.cancelled(request.id)
        done = True
        if answer is not None:
            await self._send(answer)
