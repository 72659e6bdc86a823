"""The client of one connected server, from the handshake to the end of the connection: what is asked of it goes through
`call`, and only with a permit."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import TypeVar

import trio
from msgspec import Raw

from host.asking import BrokenAnswer, PeerError
from host.errors import BrokeProtocol, Refused, TimedOut, Unavailable, UpstreamError
from host.exchange import Outlet
from host.jsonrpc.messages import Id, Notification
from host.jsonrpc.raw import encode, encode_object, is_object, value
from host.peer import Peer
from host.policy.gate import Permit
from host.protocol.handshake import ServerOffer, WrongRevision, greeting, offer
from host.protocol.meta import TOKEN, for_next_hop, progress_token
from host.protocol.methods import INITIALIZE, INITIALIZED, PROGRESS, with_target
from host.protocol.questions import URL_REQUIRED, fit_elicitations
from host.upstream.origin import Origin, Patience
from host.upstream.reverse import Voice
from host.version import VERSION
from host.wire.link import Link, LinkLost

T = TypeVar("T")

REPORTS_A_SECOND = 20.0
"""Progress reports that are passed on for one call, after the first BURST; a server that sends more is heard less."""
BURST = 100.0


async def shake_hands(link: Link, peer: Peer[T], asks: Mapping[str, object]) -> ServerOffer:
    """Open the conversation as its client, which may be asked for `asks` (2025-11-25, "Lifecycle / Initialization").

    Raises:
        PeerError, BrokenAnswer, LinkLost: the server refused, answered with something else, or is gone.
        WrongRevision: it answered with a revision that we do not speak.
    """
    result = await peer.request(INITIALIZE, greeting(VERSION, asks))
    try:
        offered = offer(result)
    except WrongRevision:
        raise
    except ValueError as problem:
        raise BrokenAnswer(str(problem)) from None
    link.settle(offered.revision)
    await peer.notify(INITIALIZED)
    return offered


class Client:
    """One connected server."""

    def __init__(self, server: str, peer: Peer[Origin], offer: ServerOffer, timeout: float, voice: Voice) -> None:
        self.server = server
        self.offer = offer
        self.peer = peer
        self._timeout = timeout
        self._voice = voice

    async def call(self, permit: Permit) -> Raw:
        """Have the server carry out the permitted exchange, and give its result as it came: a JSON object.

        Progress, log messages and questions go to the exchange while the call runs; progress puts the deadline off, and
        a question stops it. Cancelling this, and the deadline, call the request off at the server.

        Raises:
            Refused, BrokeProtocol, TimedOut, Unavailable: what became of it; see host/errors.py.
            InvalidParams: the progress token or `_meta` is of the wrong type.
        """
        exchange = permit.exchange
        params = with_target(exchange.request.method, exchange.params, permit.target)
        token = progress_token(params)
        started = trio.current_time()
        origin = Origin(exchange, Patience(self._timeout))
        try:
            with origin.patience.scope:
                if token is None:
                    for_next_hop(params, None)
                    return await self._request(exchange.request.method, params, origin)
                relay = _Relay(token, exchange.outlet, origin.patience)
                with self.peer.progress(relay.report) as ours:
                    for_next_hop(params, ours)
                    result = await self._request(exchange.request.method, params, origin)
                relay.flush()
                return result
        finally:
            origin.end()
        raise too_late(self.server, trio.current_time() - started)

    async def _request(self, method: str, params: dict[str, Raw], origin: Origin) -> Raw:
        try:
            result = await self.peer.request(method, encode_object(params), origin)
        except (PeerError, BrokenAnswer, LinkLost) as problem:
            failed = failure(self.server, problem)
            if failed.code == URL_REQUIRED:
                caller = origin.exchange.caller
                mint = partial(self._voice.elicitations.mint, caller)
                failed.data = fit_elicitations(failed.data, mint, self._voice.title)
            raise failed from None
        if not is_object(result):
            raise BrokeProtocol(self.server, f"{self.server} sent a result that is not an object")
        return result


def failure(server: str, problem: PeerError | BrokenAnswer | LinkLost) -> UpstreamError:
    """What became of a request to a server, for whoever asked."""
    if isinstance(problem, PeerError):
        return Refused(server, problem.error.code, problem.error.message, problem.error.data)
    if isinstance(problem, BrokenAnswer):
        return BrokeProtocol(server, f"{server} sent an answer that is none: {problem}")
    return Unavailable(server, f"{server} was lost while it worked on this: {problem}")


def too_late(server: str, seconds: float) -> TimedOut:
    return TimedOut(server, f"{server} did not answer within {seconds:.0f} s")


class _Relay:
    """Hands a call's progress to whoever asked, under their own token, and puts the call's deadline off."""

    def __init__(self, token: Id, outlet: Outlet, patience: Patience) -> None:
        self._token = encode(token)
        self._outlet = outlet
        self._patience = patience
        self._last: float | None = None
        self._held: dict[str, Raw] | None = None
        self._allowance = BURST
        self._counted = trio.current_time()

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
        self._patience.progressed()
        now = trio.current_time()
        self._allowance = min(self._allowance + (now - self._counted) * REPORTS_A_SECOND, BURST)
        self._counted = now
        self._held = found
        if self._allowance >= 1:
            self._allowance -= 1
            self.flush()

    def flush(self) -> None:
        """Pass on the newest report, if it was held back."""
        if self._held is not None:
            self._outlet.tell(Notification(PROGRESS, encode_object({**self._held, TOKEN: self._token})))
            self._held = None
