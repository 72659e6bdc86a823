"""Stateless requests over stdio (2026-07-28, "Transports / stdio"), beside a session or instead of one.

There is one client, whichever way it speaks; ids are of one space for both. A cancel ends a request without a word,
and whoever only listens is told when that is over.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping

import trio
from msgspec import Raw

from host.downstream.guard import as_it_is, params_of
from host.downstream.listening import listen
from host.downstream.sessions import Session
from host.downstream.stateless import Comer, Stateless
from host.downstream.tasks import refuse_undeclared
from host.errors import ColonnadeError
from host.exchange import Caller
from host.jsonrpc.conversation import cancelled
from host.jsonrpc.messages import Failure, Message, Notification, Request, Success
from host.protocol.stateless import Envelope, envelope, stated
from host.protocol.subscriptions import LISTEN, farewell, filter_of, tagged
from host.router import Router

FAREWELLS = 2.0
"""Seconds for telling whoever listens that it is over."""


class StatelessStdio:
    """The stateless requests of the one client; `session` is what it is where it shakes hands."""

    def __init__(self, router: Router, stateless: Stateless, session: Session, stop: trio.Event) -> None:
        self._router = router
        self._stateless = stateless
        self._session = session
        self._stop = stop
        self._listeners: trio.Nursery | None = None
        self._met = False
        self._comer = Comer("stdio, stateless", None, None, session, session.mark)

    async def run(self) -> None:
        """Hold what only listens, until `stop` is set and all of it has been told so, if its client reads that."""
        async with trio.open_nursery() as self._listeners:
            await self._stop.wait()
            self._listeners.cancel_scope.deadline = trio.current_time() + FAREWELLS

    async def answer(
        self,
        request: Request,
        scope: trio.CancelScope,
        say: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        """Answer a request that the session has begun (`Session.begin`); nothing if its client calls it off.

        Args:
            say: puts a message on the channel without waiting; False if there is no room.
            send: the same for what must not be lost.
        """
        self._meet()
        listens = False
        try:
            if scope.cancel_called:
                return  # called off before anything was begun: what needs no wait would be answered all the same
            params = params_of(request)
            said = envelope(stated(params))
            if request.method == LISTEN and self._listeners is not None:
                if filter_of(params).tasks:
                    refuse_undeclared(said.abilities)
                if self._stop.is_set():
                    return  # it would end before it begins
                listens = True
                self._listeners.start_soon(self._listen, request, params, said, scope, say, send)
                return
            done = False

            def tell(notice: Notification) -> None:
                if not done and not scope.cancel_called:
                    say(notice)

            answer: Success | Failure | None = None
            with scope:
                answer = await self._stateless.answer(request, params, said, self._comer, tell)
            done = True
        except ColonnadeError as error:
            answer = Failure(as_it_is(error), request.id)
        finally:
            if not listens:
                self._session.serving.end(request.id, scope)
        if answer is not None:
            await send(answer)

    async def _listen(
        self,
        request: Request,
        params: Mapping[str, Raw],
        said: Envelope,
        scope: trio.CancelScope,
        say: Callable[[Message], bool],
        send: Callable[[Message], Awaitable[None]],
    ) -> None:
        wanted = filter_of(params)
        try:
            with scope:
                tasks = self._stateless.tasks
                await listen(self._router, tasks, request.id, wanted, self._comer, said.abilities, say, self._stop)
        finally:
            self._session.serving.end(request.id, scope)
        if not scope.cancelled_caught:
            # Some clients take the one for the end, some the other; the result must come first.
            await send(Success(request.id, farewell(request.id)))
            await send(tagged(cancelled(request.id, "the subscription has ended"), request.id))

    def _meet(self) -> None:
        """The client is there: it is the only one there can be."""
        if not self._met and self._session.opening is None:
            self._router.serve_only(Caller("stdio, stateless", None, mark=self._session.mark))
        self._met = True
