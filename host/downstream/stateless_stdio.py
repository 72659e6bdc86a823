"""Stateless requests over stdio (2026-07-28, "Transports / stdio"), beside a session or instead of one.

There is one client with one space of request ids, whatever era its requests have. A cancelled request gets no response;
a `subscriptions/listen` gets a final message when it ends.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Raw

from host.downstream.error_answers import error_body, params_of
from host.downstream.listen_streams import Subscription, requested_filter
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless, StatelessClient
from host.errors import AmbiguousMembers, ColonnadeError
from host.exchange import STDIO
from host.jsonrpc.conversation import cancel_notification
from host.jsonrpc.messages import Failure, Id, Message, Notification, Request, Success
from host.protocol.abilities import NO_ABILITIES, Abilities
from host.protocol.stateless import CheckedEnvelope, take_stated
from host.protocol.subscriptions import LISTEN, Filter, listen_result, with_subscription_id
from host.wire.deadlines import CallScope

LISTEN_END_TIMEOUT = 2.0
"""Seconds for the final messages of open subscriptions."""


class StatelessStdio:
    """The stateless requests of the one client. `session` serves its handshake requests."""

    def __init__(self, stateless: Stateless, session: Session, stop: trio.Event) -> None:
        self._router = stateless.router
        self._stateless = stateless
        self._session = session
        self._stop = stop
        self._listeners: trio.Nursery | None = None
        self._met = False
        self.announcements = stateless.announcements
        # A command ends with its call: an answer for the rest of its session would be one for nothing.
        lasts = session.process is None or not session.process.is_command
        self._client = StatelessClient(
            session.name,
            session.endpoint,
            None,
            session,
            session.mark,
            session.mark if lasts else None,
            session.process,
        )

    async def run(self) -> None:
        """Hold the open subscriptions, until `stop` is set and each has got its final message, if its client reads."""
        async with trio.open_nursery() as self._listeners:
            await self._stop.wait()
            self._listeners.cancel_scope.deadline = trio.current_time() + LISTEN_END_TIMEOUT

    def end(self) -> None:
        """Forget the client, which is gone, with what was allowed for its session: the connection is that session."""
        self._router.forget(self._client.caller(NO_ABILITIES))

    async def answer(
        self,
        request: Request,
        scope: CallScope,
        say: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer a request that the session has begun (`Session.begin`); no response if its client cancels it.

        Args:
            say: puts a message on the channel without waiting; False if there is no room.
            send: puts a message on the channel that must not be lost.
        """
        self._meet()
        if scope.cancel_called:  # cancelled before it began: a response without a wait would be sent all the same
            self._session.serving.end(request.id, scope)
            return
        try:
            params = params_of(request)
            self._session.stated = take_stated(params)
            stated = self._session.stated.checked
            wanted = requested_filter(params, stated.abilities) if request.method == LISTEN else None
        except ColonnadeError as error:
            if isinstance(error, AmbiguousMembers):
                self._router.record_ambiguous(request, self._client.caller(NO_ABILITIES), STDIO)
            self._session.serving.end(request.id, scope)
            await send(Failure(error_body(error), request.id))
            return
        if wanted is None:
            await self._carry_out(request, params, stated, scope, say, send)
        elif self._listeners is None or self._stop.is_set():  # it would end before it begins
            self._session.serving.end(request.id, scope)
        else:
            self._listeners.start_soon(self._listen, request.id, wanted, stated.abilities, scope, say, send)

    async def _carry_out(
        self,
        request: Request,
        params: Mapping[str, Raw],
        stated: CheckedEnvelope,
        scope: CallScope,
        say: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        done = False

        def tell(notice: Notification) -> None:
            if not done and not scope.cancel_called:
                say(notice)

        answer: Success | Failure | None = None
        try:
            with scope:
                says = "" if self._session.stated is None else self._session.stated.client
                caller = self._client.caller(stated.abilities, says=says)
                answer = await self._stateless.answer(request, params, stated, caller, tell, address=STDIO, scope=scope)
        finally:
            done = True
            self._session.serving.end(request.id, scope)
        if answer is not None:
            await send(answer)

    async def _listen(
        self,
        id: Id,
        wanted: Filter,
        abilities: Abilities,
        scope: CallScope,
        say: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        def tell(message: Message) -> bool:  # a change may come after the cancel, before the task of this has ended
            return not scope.cancel_called and say(message)

        try:
            with scope:
                subscription = Subscription(self._stateless, id, wanted, self._client, abilities, tell, STDIO)
                await subscription.serve(self._stop)
        finally:
            self._session.serving.end(id, scope)
        if not scope.cancel_called:
            # Some clients take the one message for the end, some the other; the result must come first.
            await send(Success(id, listen_result(id)))
            await send(with_subscription_id(cancel_notification(id, "the subscription has ended"), id))

    def _meet(self) -> None:
        """Record that the only client is there."""
        if self._session.is_sole and not self._met and self._session.opening is None:
            self._router.upstreams.serve_only(self._client.caller(NO_ABILITIES))
        self._met = True
