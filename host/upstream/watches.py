"""The resources of one server that somebody watches: counted here, and asked of the server once for each.

What is wanted is kept apart from what the present connection was asked for, and `run` makes the second follow the
first: one request at a time for each URI, all of them again after a reconnect. Nothing here knows names of the shared
endpoint, or what a watcher does when it is told.
"""

from __future__ import annotations

from collections.abc import Callable

import trio
from msgspec import Raw

from host.asking import BrokenAnswer, PeerError
from host.errors import BrokeProtocol, ColonnadeError, Refused, TimedOut, TooMany, Unavailable
from host.exchange import Caller, Exchange
from host.jsonrpc.raw import encode
from host.peer import Peer
from host.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from host.upstream.reverse import Origin, Patience
from host.wire.link import LinkLost

Tell = Callable[[str, dict[str, Raw]], None]
"""Takes the URI of what changed, in the server's own spelling, and all members of the notice. Must not wait."""

MAX_WATCHED = 10_000
"""URIs of one server that may be watched at once."""
_BOUNDARIES = ("/", "#", "?")


class _Outcome:
    """What became of one request to the server, for everybody who waits for it. `origin` is whoever wanted it first: it
    is sent on their behalf."""

    def __init__(self, exchange: Exchange) -> None:
        self.origin = Origin(exchange, Patience(float("inf")))
        self.known = trio.Event()
        self.error: ColonnadeError | None = None


class Watches:
    """Who watches what at one server. Outlives connections."""

    def __init__(self, server: str, timeout: float) -> None:
        self._server = server
        self._timeout = timeout
        self._watchers: dict[str, dict[Caller, Tell]] = {}
        self._asked: set[str] = set()
        self._refused: set[str] = set()
        self._busy: set[str] = set()
        self._outcomes: dict[str, _Outcome] = {}
        self._moved = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._watchers)

    async def watch(self, uri: str, exchange: Exchange, tell: Tell) -> None:
        """The exchange's caller hears of changes from now on, through `tell`. Returns once the server has agreed.

        Raises:
            Refused, BrokeProtocol, TimedOut, Unavailable, TooMany: it has not; then nothing is watched.
        """
        if uri not in self._watchers and len(self._watchers) >= MAX_WATCHED:
            raise TooMany(self._server, f"{MAX_WATCHED} resources of {self._server} are watched already")
        caller = exchange.caller
        self._watchers.setdefault(uri, {})[caller] = tell
        if uri in self._asked:
            await trio.lowlevel.checkpoint()
            return
        outcome = self._outcomes.setdefault(uri, _Outcome(exchange))
        self._refused.discard(uri)
        self._moved.unpark_all()
        try:
            await outcome.known.wait()
            if outcome.error is not None:
                raise outcome.error
        except BaseException:
            self.unwatch(uri, caller)
            raise

    def unwatch(self, uri: str, caller: Caller) -> None:
        """`caller` hears of it no more; the server is told when it was the last."""
        watchers = self._watchers.get(uri, {})
        if watchers.pop(caller, None) is not None and not watchers:
            del self._watchers[uri]
            self._moved.unpark_all()

    def forget(self, caller: Caller) -> None:
        """`caller` is gone."""
        for uri in list(self._watchers):
            self.unwatch(uri, caller)

    def updated(self, uri: str, notice: dict[str, Raw]) -> None:
        """The server says that `uri` changed, which may be part of what is watched (2025-06-18, "Resource Updated
        Notification": it may be a sub-resource). Where no watched URI contains it, everybody is told."""
        watchers = self._watchers.get(uri)
        found = [watchers] if watchers is not None else self._above(uri) or list(self._watchers.values())
        for tell in {caller: tell for each in found for caller, tell in each.items()}.values():
            tell(uri, notice)

    async def run(self, peer: Peer[Origin]) -> None:
        """Keep the server told of what is watched, until cancelled. What was watched before this connection is asked
        for again, and counts as changed: what the server said in between was not heard."""
        self._asked, self._refused = set(), set()
        missed = set(self._watchers) - self._outcomes.keys()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    for uri in self._out_of_step() - self._busy:
                        self._busy.add(uri)
                        nursery.start_soon(self._align, peer, uri)
                    for uri in missed:
                        self.updated(uri, {})
                    missed = set()
                    await self._moved.park()
        finally:
            self._asked, self._busy = set(), set()
            for uri in list(self._outcomes):
                self._settle(uri, Unavailable(self._server, f"{self._server} was lost while it worked on this"))

    def _above(self, uri: str) -> list[dict[Caller, Tell]]:
        """Whoever watches something that `uri` is part of."""
        return [
            watchers
            for watched, watchers in self._watchers.items()
            if uri.startswith(watched) and (watched.endswith(_BOUNDARIES) or uri[len(watched)] in _BOUNDARIES)
        ]

    def _out_of_step(self) -> set[str]:
        return (self._watchers.keys() - self._refused) ^ self._asked

    async def _align(self, peer: Peer[Origin], uri: str) -> None:
        try:
            while uri in self._out_of_step():
                if uri in self._watchers:
                    wanted = self._outcomes.get(uri)
                    error = await self._ask(peer, SUBSCRIBE, uri, None if wanted is None else wanted.origin)
                    (self._asked if error is None else self._refused).add(uri)
                    self._settle(uri, error)
                else:
                    # Not only when it is done: whoever watches it from now on waits until it is asked for again.
                    self._asked.discard(uri)
                    await self._ask(peer, UNSUBSCRIBE, uri, None)
        finally:
            self._busy.discard(uri)

    def _settle(self, uri: str, error: ColonnadeError | None) -> None:
        outcome = self._outcomes.pop(uri, None)
        if outcome is not None:
            outcome.error = error
            outcome.origin.end()
            outcome.known.set()

    async def _ask(self, peer: Peer[Origin], method: str, uri: str, origin: Origin | None) -> ColonnadeError | None:
        with trio.move_on_after(self._timeout):
            try:
                await peer.request(method, encode({"uri": uri}), origin)
            except PeerError as refusal:
                error = refusal.error
                return Refused(self._server, error.code, error.message, error.data)
            except BrokenAnswer as problem:
                return BrokeProtocol(self._server, f"{self._server} sent an answer that is none: {problem}")
            except LinkLost as lost:
                return Unavailable(self._server, f"{self._server} was lost while it worked on this: {lost}")
            return None
        return TimedOut(self._server, f"{self._server} did not answer within {self._timeout:.0f} s")
