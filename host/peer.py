"""A conversation running on a link: `request`, `notify`, and a handler for what the other side sends.

This file waits and does not decide. Its reader hands every message to the pure state and wakes a waiter, starts a task
or calls the handler; it waits for nobody. Here is the one place that catches `trio.Cancelled`: whoever stops waiting
for an answer, for whatever reason, thereby calls the request off at the other side, in the other side's id.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Protocol

import trio
from msgspec import Raw

from host.errors import LIMITED
from host.jsonrpc.conversation import CANCELLED, Asked, Serving, cancelled_reason
from host.jsonrpc.messages import INVALID_REQUEST, ErrorBody, Failure, Id, Malformed, Notification, Request, Success
from host.jsonrpc.raw import members, value
from host.protocol.meta import TOKEN
from host.protocol.methods import INITIALIZE, PROGRESS
from host.wire.link import Arrival, Link, LinkLost, Parcel

CALL_OFF_GRACE = 2.0
MAX_SERVED = 8
"""Requests of the other side that are served at once; more are refused, and more than as many refusals are dropped."""


class PeerError(Exception):
    """The other side answered a request with a JSON-RPC error."""

    def __init__(self, error: ErrorBody) -> None:
        super().__init__(error.message)
        self.error = error


class BrokenAnswer(Exception):
    """The other side answered a request with something that is no answer."""


class Handler(Protocol):
    async def answer(self, request: Request, about: Id | None) -> Raw:
        """The result of the other side's request. Raise PeerError to refuse it."""

    def told(self, notice: Notification, about: Id | None) -> None:
        """A notification came (progress and cancels are not handed on). Must not wait."""

    def dropped(self, what: str, detail: str) -> None:
        """A message was no message, or nobody waited for it. Must not wait."""


class _Waiter:
    __slots__ = ("arrived", "outcome")

    def __init__(self) -> None:
        self.arrived = trio.Event()
        self.outcome: Raw | Exception | None = None

    def end(self, outcome: Raw | Exception) -> None:
        self.outcome = outcome
        self.arrived.set()


class Peer:
    """See `open_peer`. `ended` is set once the link is gone, `lost` then says why."""

    def __init__(self, link: Link, handler: Handler, nursery: trio.Nursery) -> None:
        self._link = link
        self._handler = handler
        self._nursery = nursery
        self._asked: Asked[_Waiter] = Asked()
        self._serving: Serving[trio.CancelScope] = Serving()
        self._progress: dict[int, Callable[[dict[str, Raw]], None]] = {}
        self._last_token = 0
        self._refusing = 0
        self.ended = trio.Event()
        self.lost = LinkLost("the connection was closed")
        self.last_heard = trio.current_time()

    @property
    def in_flight(self) -> int:
        """How many of our requests wait for their answer."""
        return len(self._asked)

    async def request(self, method: str, params: Raw | None = None) -> Raw:
        """Ask, and wait for the result. Cancelling this calls the request off at the other side.

        Raises:
            PeerError: the other side refused.
            BrokenAnswer: it answered with something that is no answer.
            LinkLost: the link was, or is now, gone. Whether the request was carried out is then unknown.
        """
        if self.ended.is_set():
            raise LinkLost(str(self.lost))
        waiter = _Waiter()
        request = self._asked.ask(method, params, waiter)
        try:
            await self._link.send(Parcel(request))
            await waiter.arrived.wait()
        except trio.Cancelled as cancelled:
            notice = self._asked.abandon(request.id, cancelled.reason or "the caller no longer waits")
            # initialize must not be called off (2025-11-25, "Cancellation"): whoever gives up on it leaves altogether.
            if notice is not None and method != INITIALIZE and not self.ended.is_set():
                with trio.move_on_after(CALL_OFF_GRACE, shield=True):
                    await self._link.call_off(request.id, notice)
            raise
        except LinkLost:
            # The answer may have come before the exchange broke: then it counts.
            if waiter.outcome is None:
                self._asked.abandon(request.id, None)
                raise
        outcome = waiter.outcome
        if isinstance(outcome, Exception):
            raise outcome
        assert outcome is not None
        return outcome

    async def notify(self, method: str, params: Raw | None = None, about: Id | None = None) -> None:
        """Send a notification.

        Raises:
            LinkLost: it could not be sent.
        """
        await self._link.send(Parcel(Notification(method, params), about))

    @contextmanager
    def progress(self, report: Callable[[dict[str, Raw]], None]) -> Iterator[int]:
        """A token under which the other side may report progress while the block runs; `report` gets the members of
        each report and must not wait."""
        self._last_token += 1
        token = self._last_token
        self._progress[token] = report
        try:
            yield token
        finally:
            del self._progress[token]

    async def run(self) -> None:
        """Hear the other side until the link ends."""
        try:
            await self._link.run(self._take)
        except LinkLost as lost:
            self.lose(lost)
        finally:
            self.lose(self.lost)  # also when the owner of this peer has had enough of it

    def lose(self, lost: LinkLost) -> None:
        """The other side is gone, or as good as gone: nobody waits for it any more."""
        if not self.ended.is_set():
            self.lost = lost
            self.ended.set()
            for waiter in self._asked.drain():
                waiter.end(LinkLost(str(lost)))  # each its own: an exception collects the stacks it is raised in

    def _take(self, arrival: Arrival) -> None:
        self.last_heard = trio.current_time()
        message = arrival.message
        if isinstance(message, Success | Failure):
            self._answered(message)
        elif isinstance(message, Notification):
            self._told(message, arrival.about)
        elif isinstance(message, Request):
            self._called(message, arrival.about)
        else:
            self._malformed(message)

    def _answered(self, message: Success | Failure) -> None:
        waiter = self._asked.answer(message)
        if waiter is None:
            self._handler.dropped("unknown id", f"an answer to {message.id!r:.80}, which nobody waits for")
        elif isinstance(message, Success):
            waiter.end(message.result)
        else:
            waiter.end(PeerError(message.error))

    def _malformed(self, message: Malformed) -> None:
        self._handler.dropped("invalid message", message.why)
        waiter = self._asked.answer(message) if message.answers else None
        if waiter is not None:
            waiter.end(BrokenAnswer(message.why))

    def _told(self, notice: Notification, about: Id | None) -> None:
        if notice.method == PROGRESS:
            self._progressed(notice)
        elif notice.method == CANCELLED:
            scope = self._serving.named_by(notice)
            if scope is not None:
                scope.cancel(cancelled_reason(notice))
        else:
            self._handler.told(notice, about)

    def _progressed(self, notice: Notification) -> None:
        try:
            found = members(notice.params or b"")
            token = value(found[TOKEN])
        except (ValueError, KeyError):
            self._handler.dropped("invalid message", "a progress notification without a token")
            return
        report = self._progress.get(token) if type(token) is int else None
        if report is None:
            self._handler.dropped("unknown progress token", f"{token!r:.80}")
        else:
            report(found)

    def _called(self, request: Request, about: Id | None) -> None:
        if self._refusing >= MAX_SERVED:
            self._handler.dropped("too many requests", f"{request.method:.80}")
        elif request.id in self._serving:
            self._refuse_soon(request, INVALID_REQUEST, "this id is in flight already")
        elif len(self._serving) >= MAX_SERVED:
            self._refuse_soon(request, LIMITED, f"more than {MAX_SERVED} requests at once")
        else:
            scope = trio.CancelScope()
            self._serving.begin(request.id, scope)
            self._nursery.start_soon(self._serve, request, about, scope)

    async def _serve(self, request: Request, about: Id | None, scope: trio.CancelScope) -> None:
        try:
            with scope:
                try:
                    answer: Success | Failure = Success(request.id, await self._handler.answer(request, about))
                except PeerError as refusal:
                    answer = Failure(refusal.error, request.id)
                await self._reply(answer, about)
        finally:
            self._serving.end(request.id, scope)

    def _refuse_soon(self, request: Request, code: int, why: str) -> None:
        self._refusing += 1
        self._nursery.start_soon(self._refuse, Failure(ErrorBody(code, why), request.id))

    async def _refuse(self, refusal: Failure) -> None:
        try:
            await self._reply(refusal, None)
        finally:
            self._refusing -= 1

    async def _reply(self, answer: Success | Failure, about: Id | None) -> None:
        try:
            await self._link.send(Parcel(answer, about))
        except LinkLost:
            return  # whoever asked is gone; the link itself reports its end


@asynccontextmanager
async def open_peer(link: Link, handler: Handler) -> AsyncIterator[Peer]:
    """A peer for the block. The link's reader and the tasks that serve the other side's requests live exactly as long
    as the block; they outlive its body, so that the body's own clean-up can still talk."""
    async with trio.open_nursery() as nursery:
        peer = Peer(link, handler, nursery)
        nursery.start_soon(peer.run)
        try:
            yield peer
        finally:
            nursery.cancel_scope.cancel()
