"""The resources of one server that somebody watches: counted here, and asked of the server once for each.

What is wanted is kept apart from what the present connection was asked for, and `run` makes the second follow the
first: one request at a time for each URI, all of them again after a reconnect. Nothing here knows names of the shared
endpoint, or what a watcher does when it is told.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable

import trio
from msgspec import Raw

from host.asking import BrokenAnswer, PeerError
from host.errors import ServerErrorResponse, TooManyResources, UpstreamError, copy_of
from host.exchange import Caller, Exchange
from host.jsonrpc.messages import METHOD_NOT_FOUND
from host.jsonrpc.raw import encode
from host.peer import Peer
from host.policy.permits import CallPermit
from host.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from host.slices import Steps
from host.upstream.client import failure, too_late
from host.upstream.origin import Origin, Patience, our_own
from host.wire.link import LinkLost

Tell = Callable[[str, dict[str, Raw]], None]
"""Takes the URI of what changed, in the server's own spelling, and the members of the notice that are passed on. Must
not wait."""

MAX_WATCHED = 10_000
"""URIs of one server that may be watched at once."""
MAX_ABOVE = 256
"""Beginnings of a URI that changed which are looked up among those that are watched, the longest first."""
FIRST_AGAIN = 2.0
LAST_AGAIN = 600.0
"""Seconds until a server that refused is asked again for what is still wanted: at first, and at the most."""
SEPARATORS = "/#?"
"""Between the pieces of a URI."""


class _Outcome:
    """What became of one request to the server, for everybody who waits for it. `origin` is whoever wanted it first: it
    is sent on their behalf."""

    def __init__(self, exchange: Exchange) -> None:
        self.origin = Origin(exchange, Patience(float("inf")))
        self.known = trio.Event()
        self.error: UpstreamError | None = None


class _Watcher:
    """One caller at one URI. It stays while a request of its for that is under way, or once one was agreed to."""

    __slots__ = ("agreed", "asking", "tell")

    def __init__(self) -> None:
        self.agreed = False
        self.asking = 0
        self.tell: Tell = _too_early


class Watches:
    """Who watches what at one server. Outlives connections. `shows` says whether a URI of the server may be known."""

    def __init__(self, server: str, timeout: float, shows: Callable[[str], bool]) -> None:
        self._server = server
        self._timeout = timeout
        self._shows = shows
        self._watchers: dict[str, dict[Caller, _Watcher]] = {}
        self._lengths: Counter[int] = Counter()
        """Lengths of the URIs that are watched, with how many have each."""
        self._asked: set[str] = set()
        self._outcomes: dict[str, _Outcome] = {}
        self._due: dict[str, trio.Event] = {}
        """What must be looked at, or is being: set to have it looked at again at once."""
        self._some = trio.Event()
        self._heard: frozenset[str] = frozenset()
        """What was wanted when a server that is told of everything at once was last told."""
        self._stale = True

    def __len__(self) -> int:
        return len(self._watchers)

    async def watch(self, permit: CallPermit, tell: Tell) -> None:
        """Whoever has the permit hears of changes from now on, through `tell`. Returns once the server has agreed.

        Raises:
            Refused, BrokeProtocol, TimedOut, Unavailable, TooMany: it has not; what was agreed to before stays.
        """
        uri, caller = permit.target, permit.exchange.caller
        if uri not in self._watchers:
            if len(self._watchers) >= MAX_WATCHED:
                raise TooManyResources(self._server, f"{MAX_WATCHED} resources of {self._server} are watched already")
            self._watchers[uri] = {}
            self._lengths[len(uri)] += 1
        watchers = self._watchers[uri]
        watcher = watchers.setdefault(caller, _Watcher())
        watcher.tell = tell
        watcher.asking += 1
        try:
            if uri in self._asked:
                await trio.lowlevel.checkpoint()
            else:
                await self._agreement(uri, permit.exchange)
            watcher.agreed = True
        finally:
            watcher.asking -= 1
            if not watcher.agreed and not watcher.asking and watchers.get(caller) is watcher:
                self.unwatch(uri, caller)

    async def _agreement(self, uri: str, exchange: Exchange) -> None:
        outcome = self._outcomes.get(uri)
        if outcome is None:
            outcome = self._outcomes[uri] = _Outcome(exchange)
        self._look_at(uri)
        await outcome.known.wait()
        if outcome.error is not None:
            raise copy_of(outcome.error)

    def unwatch(self, uri: str, caller: Caller) -> None:
        """`caller` hears of it no more; the server is told when it was the last."""
        watchers = self._watchers.get(uri, {})
        if watchers.pop(caller, None) is not None and not watchers:
            del self._watchers[uri]
            self._lengths[len(uri)] -= 1
            if not self._lengths[len(uri)]:
                del self._lengths[len(uri)]
            self._look_at(uri)

    def keep_shown(self) -> Steps[None]:
        """Have nobody watch what may not be known any more. Until then, nobody hears of it: see `updated`."""
        for uri in list(self._watchers):
            yield None
            if not self._shows(uri):
                for caller in list(self._watchers.get(uri, ())):
                    self.unwatch(uri, caller)

    def forget(self, caller: Caller) -> None:
        """`caller` is gone."""
        for uri in [uri for uri, watchers in self._watchers.items() if caller in watchers]:
            self.unwatch(uri, caller)

    def updated(self, uri: str, notice: dict[str, Raw]) -> None:
        """The server says that `uri` changed, which may be part of what is watched (2025-06-18, "Resource Updated
        Notification": it may be a sub-resource): whoever watches it or something above it is told. Where nobody does,
        everybody is. Nobody hears of what may not be known."""
        if not self._watchers or not self._shows(uri):  # once for all of them: it takes long beside many templates
            return
        found = self._of_it_and_above(uri)
        told = {caller: watcher for each in found or self._watchers.values() for caller, watcher in each.items()}
        for watcher in told.values():
            watcher.tell(uri, notice)

    def _of_it_and_above(self, uri: str) -> list[dict[Caller, _Watcher]]:
        """The watchers of the URI and of everything that it may be part of, the longest first. Only beginnings that are
        as long as something that is watched are looked up, and not more than MAX_ABOVE: a server may write a URI of
        nothing but `/`, and to build every beginning of it takes time that grows with the square of its length."""
        lengths = sorted((each for each in self._lengths if _ends_a_piece(uri, each)), reverse=True)[:MAX_ABOVE]
        return [self._watchers[uri[:each]] for each in lengths if uri[:each] in self._watchers]

    async def run(self, peer: Peer[Origin]) -> None:
        """Keep the server told of what is watched, until cancelled. What was watched before this connection is asked
        for again, and counts as changed once it has agreed: what it said in between was not heard."""
        self._asked = set()
        for uri in self._watchers:
            self._look_at(uri)
        begun: set[str] = set()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._some = trio.Event()
                    for uri in self._due.keys() - begun:
                        begun.add(uri)
                        nursery.start_soon(self._align, peer, uri, begun)
                    await self._some.wait()
        finally:
            self._asked, self._due = set(), {}
            self._end_all(frozenset(self._outcomes), failure(self._server, LinkLost("the connection ended")))

    async def follow(self, agree: Callable[[frozenset[str]], Awaitable[frozenset[str]]]) -> None:
        """The same for a server that is told of everything at once, until cancelled. `agree` has it listen for these
        URIs and for no others, and gives those that it agreed to; it raises UpstreamError if that cannot be had now."""
        self._asked = set()
        pause = FIRST_AGAIN
        self._stale = True
        try:
            while True:
                self._some, self._due = trio.Event(), {}
                wanted = frozenset(self._watchers)
                for uri in self._outcomes.keys() - wanted:  # whoever unwatched it meanwhile has what they wanted
                    self._settle(uri, None)
                if not self._stale and wanted == self._heard and not self._outcomes:
                    await self._some.wait()
                    continue
                self._stale = False
                try:
                    agreed = wanted & await agree(wanted)
                except UpstreamError as error:
                    self._stale = True
                    self._end_all(wanted, error)
                    with trio.move_on_after(pause):
                        await self._some.wait()
                    pause = min(2 * pause, LAST_AGAIN)
                    continue
                pause = FIRST_AGAIN
                regained = (agreed - self._asked) & {uri for uri in wanted if uri not in self._outcomes}
                self._heard, self._asked = wanted, set(agreed)
                for uri in regained:
                    if uri in self._watchers:
                        self.updated(uri, {})
                    await trio.lowlevel.checkpoint()  # to judge one may take a millisecond, and there may be 10,000
                why = f"{self._server} does not tell of changes to this"
                for uri in wanted:
                    self._settle(
                        uri, None if uri in agreed else ServerErrorResponse(self._server, METHOD_NOT_FOUND, why, None)
                    )
        finally:
            self._asked, self._due = set(), {}
            self._end_all(frozenset(self._outcomes), failure(self._server, LinkLost("the connection ended")))

    def unheard(self) -> None:
        """Nothing is listened to any more, for now: see `follow`. What is agreed to next counts as changed."""
        self._asked = set()

    def listen_again(self) -> None:
        """It is time to listen again."""
        self._stale = True
        self._some.set()

    def _end_all(self, uris: frozenset[str], error: UpstreamError) -> None:
        for uri in uris & self._outcomes.keys():
            self._settle(uri, error)

    def _look_at(self, uri: str) -> None:
        if uri in self._due:
            self._due[uri].set()
        else:
            self._due[uri] = trio.Event()
            self._some.set()

    def _in_step(self, uri: str) -> bool:
        return (uri in self._watchers) == (uri in self._asked)

    async def _align(self, peer: Peer[Origin], uri: str, begun: set[str]) -> None:
        """Have the server do what is wanted for this URI; one request at a time, and again after a while if it refuses
        what somebody still wants."""
        pause = FIRST_AGAIN
        while not self._in_step(uri):
            self._due[uri] = trio.Event()
            if uri in self._watchers:
                wanted = self._outcomes.get(uri)
                error = await self._ask(peer, SUBSCRIBE, uri, our_own() if wanted is None else wanted.origin)
                if error is None:
                    self._asked.add(uri)
                    if wanted is None:
                        self.updated(uri, {})
                self._settle(uri, error)
                if error is not None:
                    with trio.move_on_after(pause):
                        await self._due[uri].wait()
                    pause = min(2 * pause, LAST_AGAIN)
            else:
                # Not only when it is done: whoever watches it from now on waits until it is asked for again.
                self._asked.discard(uri)
                await self._ask(peer, UNSUBSCRIBE, uri, our_own())
        self._settle(uri, None)  # whoever unwatched it before it was asked for has what they wanted, both times
        begun.discard(uri)
        self._due.pop(uri, None)

    def _settle(self, uri: str, error: UpstreamError | None) -> None:
        outcome = self._outcomes.pop(uri, None)
        if outcome is not None:
            outcome.error = error
            outcome.origin.end()
            outcome.known.set()

    async def _ask(self, peer: Peer[Origin], method: str, uri: str, origin: Origin) -> UpstreamError | None:
        with trio.move_on_after(self._timeout):
            try:
                await peer.request(method, encode({"uri": uri}), origin)
            except (PeerError, BrokenAnswer, LinkLost) as problem:
                return failure(self._server, problem)
            return None
        return too_late(self._server, self._timeout)


def _too_early(uri: str, notice: dict[str, Raw]) -> None:
    raise AssertionError("a watcher is told who hears of changes before anything else")


def _ends_a_piece(uri: str, length: int) -> bool:
    """Whether so many characters of the URI are all of it, or it without some of its last pieces, `/` or not."""
    if not 0 < length < len(uri):
        return length == len(uri)
    return uri[length] in SEPARATORS or uri[length - 1] in SEPARATORS
