"""The client of one server, from the handshake to the end of the connection: what is asked of it goes through `call`,
and only with a permit."""

from __future__ import annotations

from collections.abc import Callable

import trio
from msgspec import Raw

from host.errors import BrokeProtocol, Refused, TimedOut, Unavailable
from host.journal import Dropped, Journal, sample
from host.jsonrpc.messages import METHOD_NOT_FOUND, ErrorBody, Id, Notification, Request
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, value
from host.peer import BrokenAnswer, Peer, PeerError
from host.policy.gate import Permit
from host.protocol.handshake import ServerOffer, greeting, offer
from host.protocol.meta import TOKEN, for_next_hop, progress_token
from host.protocol.methods import INITIALIZE, INITIALIZED, LISTINGS, PING, PROGRESS, Kind, with_target
from host.version import VERSION
from host.wire.link import Link, LinkLost

CEILING = 600.0
"""Seconds after which a call ends even while it reports progress."""


class Voice:
    """Hears what the server says of itself: notices that a list changed, pings, and what is not for us."""

    def __init__(self, server: str, journal: Journal) -> None:
        self._server = server
        self._journal = journal
        self.changed: Callable[[list[Kind]], None] | None = None

    async def answer(self, request: Request, about: Id | None) -> Raw:
        if request.method == PING:
            return EMPTY_OBJECT
        raise PeerError(ErrorBody(METHOD_NOT_FOUND, "this client does not offer that method"))

    def told(self, notice: Notification, about: Id | None) -> None:
        kinds = [listing.kind for listing in LISTINGS.values() if listing.changed == notice.method]
        if not kinds or self.changed is None:
            self.dropped("unexpected notification", sample(notice.method))
        else:
            self.changed(kinds)

    def dropped(self, what: str, detail: str) -> None:
        self._journal.note(Dropped(self._server, what, detail))


async def shake_hands(link: Link, peer: Peer) -> ServerOffer:
    """Open the conversation as its client (2025-11-25, "Lifecycle / Initialization").

    Raises:
        PeerError, BrokenAnswer, LinkLost: the server refused, or is gone.
        WrongRevision, ValueError: it answered with a revision we do not speak, or with something else.
    """
    offered = offer(await peer.request(INITIALIZE, greeting(VERSION)))
    link.settle(offered.revision.name if offered.revision.names_itself_in_http else None)
    await peer.notify(INITIALIZED)
    return offered


class Client:
    """One connected server."""

    def __init__(self, server: str, peer: Peer, offer: ServerOffer, timeout: float) -> None:
        self.server = server
        self.offer = offer
        self._peer = peer
        self._timeout = timeout

    async def call(self, permit: Permit) -> Raw:
        """Have the server carry out the permitted exchange, and give its result as it came: a JSON object.

        Progress goes to the exchange while the call runs and puts the deadline off. Cancelling this, and the deadline,
        call the request off at the server.

        Raises:
            Refused, BrokeProtocol, TimedOut, Unavailable: what became of it; see host/errors.py.
            InvalidParams: the progress token or `_meta` is of the wrong type.
        """
        exchange = permit.exchange
        params = with_target(exchange.request.method, exchange.params, permit.target)
        token = progress_token(params)
        started = trio.current_time()
        with trio.move_on_after(self._timeout) as deadline:
            if token is None:
                for_next_hop(params, None)
                return await self._request(exchange.request.method, params)
            relay = _Relay(token, exchange.tell, deadline, self._timeout)
            with self._peer.progress(relay.report) as ours:
                for_next_hop(params, ours)
                return await self._request(exchange.request.method, params)
        waited = trio.current_time() - started
        raise TimedOut(self.server, f"{self.server} did not answer within {waited:.0f} s")

    async def _request(self, method: str, params: dict[str, Raw]) -> Raw:
        try:
            result = await self._peer.request(method, encode_object(params))
        except PeerError as refusal:
            error = refusal.error
            raise Refused(self.server, error.code, error.message, error.data) from None
        except BrokenAnswer as problem:
            raise BrokeProtocol(self.server, f"{self.server} sent an answer that is none: {problem}") from None
        except LinkLost as lost:
            raise Unavailable(self.server, f"{self.server} was lost while it worked on this: {lost}") from None
        if not is_object(result):
            raise BrokeProtocol(self.server, f"{self.server} sent a result that is not an object")
        return result


class _Relay:
    """Hands a call's progress to whoever asked, under their own token, and puts the call's deadline off."""

    def __init__(
        self, token: Id, tell: Callable[[Notification], None], deadline: trio.CancelScope, patience: float
    ) -> None:
        self._token = encode(token)
        self._tell = tell
        self._deadline = deadline
        self._patience = patience
        self._ceiling = trio.current_time() + CEILING
        self._last: float | None = None

    def report(self, found: dict[str, Raw]) -> None:
        """One report. Those that do not increase are dropped (2025-11-25, "Progress Flow": the value MUST increase)."""
        try:
            progress = value(found["progress"])
        except (ValueError, KeyError):
            return
        if isinstance(progress, bool) or not isinstance(progress, int | float):
            return
        if self._last is not None and progress <= self._last:
            return
        self._last = progress
        self._deadline.deadline = min(trio.current_time() + self._patience, self._ceiling)
        self._tell(Notification(PROGRESS, encode_object({**found, TOKEN: self._token})))
