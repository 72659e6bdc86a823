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

from host.errors import ServerErrorResponse, TooManyResources, UpstreamError, copy_of
from host.exchange import Caller, Exchange
from host.jsonrpc.messages import METHOD_NOT_FOUND
from host.jsonrpc.raw import encode
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import Peer
from host.policy.gate import WatchPermit
from host.protocol.methods import SUBSCRIBE, UNSUBSCRIBE
from host.slices import Steps
from host.upstream.call import CallDeadline, UpstreamCall, internal_call
from host.upstream.client import as_upstream_error, timed_out
from host.wire.link import LinkLost

NotifyWatcher = Callable[[str, dict[str, Raw]], None]
"""Takes the URI of what changed, in the server's own spelling, and the members of the notice that are passed on. Must
not wait."""

MAX_WATCHED = 10_000
"""URIs of one server that may be watched at once."""
MAX_PREFIXES = 256
"""Beginnings of a URI that changed which are looked up among those that are watched, the longest first."""
INITIAL_RETRY_DELAY = 2.0
MAX_RETRY_DELAY = 600.0
"""Seconds until a server that refused is asked again for what is still wanted: at first, and at the most."""
SEPARATORS = "/#?"
"""Between the pieces of a URI."""


class _SubscribeOutcome:
    """What became of one request to the server, for everybody who waits for it. `call` is whoever wanted it first: it
    is sent on their behalf."""

    def __init__(self, exchange: Exchange) -> None:
        self.call = UpstreamCall(exchange, CallDeadline(float("inf")))
        self.done = trio.Event()
        self.error: UpstreamError | None = None


class _Watcher:
    """One caller at one URI. It stays while a request of its for that is under way, or once one was agreed to."""

    __slots__ = ("agreed", "notify", "pending", "permit")

    def __init__(self, permit: WatchPermit, notify: NotifyWatcher) -> None:
        self.agreed = False
        self.pending = 0
        self.permit = permit
        self.notify = notify


class ResourceWatches:
    """Who watches what at one server. Outlives connections. `is_visible` says whether a URI of the server may be
    known."""

    def __init__(self, server: str, timeout: float, is_visible: Callable[[str], bool]) -> None:
        self._server = server
        self._timeout = timeout
        self._is_visible = is_visible
        self._watchers: dict[str, dict[Caller, _Watcher]] = {}
        self._lengths: Counter[int] = Counter()
        """Lengths of the URIs that are watched, with how many have each."""
        self._subscribed: set[str] = set()
        self._outcomes: dict[str, _SubscribeOutcome] = {}
        self._due: dict[str, trio.Event] = {}
        """What must be looked at, or is being: set to have it looked at again at once."""
        self._wake = trio.Event()
        self._last_requested: frozenset[str] = frozenset()
        """What was wanted when a server that is told of everything at once was last told."""
        self._stale = True

    def __len__(self) -> int:
        return len(self._watchers)

    async def watch(self, permit: WatchPermit, notify: NotifyWatcher) -> None:
        """Whoever has the permit hears of changes from now on, through `notify`. Returns once the server has agreed.

        Raises:
            ServerErrorResponse, ProtocolViolation, TimedOut, Unavailable, TooManyResources: it has not; what was agreed
            to before stays.
        """
        uri, caller = permit.target, permit.exchange.caller
        if uri not in self._watchers:
            if len(self._watchers) >= MAX_WATCHED:
                raise TooManyResources(self._server, f"{MAX_WATCHED} resources of {self._server} are watched already")
            self._watchers[uri] = {}
            self._lengths[len(uri)] += 1
        watchers = self._watchers[uri]
        watcher = watchers.setdefault(caller, _Watcher(permit, notify))
        watcher.permit, watcher.notify = permit, notify
        watcher.pending += 1
        try:
            if uri in self._subscribed:
                await trio.lowlevel.checkpoint()
            else:
                await self._wait_for_agreement(uri, permit.exchange)
            watcher.agreed = True
        finally:
            watcher.pending -= 1
            if not watcher.agreed and not watcher.pending and watchers.get(caller) is watcher:
                self.unwatch(uri, caller)

    async def _wait_for_agreement(self, uri: str, exchange: Exchange) -> None:
        outcome = self._outcomes.get(uri)
        if outcome is None:
            outcome = self._outcomes[uri] = _SubscribeOutcome(exchange)
        self._mark_due(uri)
        await outcome.done.wait()
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
            self._mark_due(uri)

    def drop_hidden(self) -> Steps[None]:
        """Judge every watch anew, and end those that would not be admitted now. Until then, nobody hears of what is
        denied: see `on_updated`."""
        for uri in list(self._watchers):
            yield None
            is_visible = self._is_visible(uri)
            for caller, watcher in list(self._watchers.get(uri, {}).items()):
                if not (is_visible and watcher.permit.holds()):
                    self.unwatch(uri, caller)

    def forget(self, caller: Caller) -> None:
        """`caller` is gone."""
        for uri in [uri for uri, watchers in self._watchers.items() if caller in watchers]:
            self.unwatch(uri, caller)

    def on_updated(self, uri: str, notice: dict[str, Raw]) -> None:
        """The server says that `uri` changed, which may be part of what is watched (2025-06-18, "Resource Updated
        Notification": it may be a sub-resource): whoever watches it or something above it is told. Where nobody does,
        everybody is. Nobody hears of what may not be known."""
        if not self._watchers or not self._is_visible(uri):  # once for all of them: it takes long beside many templates
            return
        watchers_above = self._watchers_at_or_above(uri)
        affected = {
            caller: watcher for each in watchers_above or self._watchers.values() for caller, watcher in each.items()
        }
        for watcher in affected.values():
            if watcher.permit.holds():
                watcher.notify(uri, notice)

    def _watchers_at_or_above(self, uri: str) -> list[dict[Caller, _Watcher]]:
        """The watchers of the URI and of everything that it may be part of, the longest first. Only beginnings that are
        as long as something that is watched are looked up, and not more than MAX_PREFIXES: a server may write a URI of
        nothing but `/`, and to build every beginning of it takes time that grows with the square of its length."""
        lengths = sorted((each for each in self._lengths if _is_at_separator(uri, each)), reverse=True)[:MAX_PREFIXES]
        return [self._watchers[uri[:each]] for each in lengths if uri[:each] in self._watchers]

    async def run(self, peer: Peer[UpstreamCall]) -> None:
        """Keep the server told of what is watched, until cancelled. What was watched before this connection is asked
        for again, and counts as changed once it has agreed: what it said in between was not heard."""
        self._subscribed = set()
        for uri in self._watchers:
            self._mark_due(uri)
        in_progress: set[str] = set()
        try:
            async with trio.open_nursery() as nursery:
                while True:
                    self._wake = trio.Event()
                    for uri in self._due.keys() - in_progress:
                        in_progress.add(uri)
                        nursery.start_soon(self._align, peer, uri, in_progress)
                    await self._wake.wait()
        finally:
            self._subscribed, self._due = set(), {}
            self._fail_pending(
                frozenset(self._outcomes), as_upstream_error(self._server, LinkLost("the connection ended"))
            )

    async def run_listening(self, request_listen: Callable[[frozenset[str]], Awaitable[frozenset[str]]]) -> None:
        """The same for a server that is told of everything at once, until cancelled. `request_listen` has it listen for
        these URIs and for no others, and gives those that it agreed to; it raises UpstreamError if that cannot be had
        now."""
        self._subscribed = set()
        retry_delay = INITIAL_RETRY_DELAY
        self._stale = True
        try:
            while True:
                self._wake, self._due = trio.Event(), {}
                wanted = frozenset(self._watchers)
                for uri in self._outcomes.keys() - wanted:  # whoever unwatched it meanwhile has what they wanted
                    self._settle(uri, None)
                if not self._stale and wanted == self._last_requested and not self._outcomes:
                    await self._wake.wait()
                    continue
                self._stale = False
                try:
                    agreed = wanted & await request_listen(wanted)
                except UpstreamError as error:
                    self._stale = True
                    self._fail_pending(wanted, error)
                    with trio.move_on_after(retry_delay):
                        await self._wake.wait()
                    retry_delay = min(2 * retry_delay, MAX_RETRY_DELAY)
                    continue
                retry_delay = INITIAL_RETRY_DELAY
                regained = (agreed - self._subscribed) & {uri for uri in wanted if uri not in self._outcomes}
                self._last_requested, self._subscribed = wanted, set(agreed)
                for uri in regained:
                    if uri in self._watchers:
                        self.on_updated(uri, {})
                    await trio.lowlevel.checkpoint()  # to judge one may take a millisecond, and there may be 10,000
                why = f"{self._server} does not tell of changes to this"
                for uri in wanted:
                    self._settle(
                        uri, None if uri in agreed else ServerErrorResponse(self._server, METHOD_NOT_FOUND, why, None)
                    )
        finally:
            self._subscribed, self._due = set(), {}
            self._fail_pending(
                frozenset(self._outcomes), as_upstream_error(self._server, LinkLost("the connection ended"))
            )

    def on_stream_lost(self) -> None:
        """Nothing is listened to any more, for now: see `run_listening`. What is agreed to next counts as changed."""
        self._subscribed = set()

    def mark_stale(self) -> None:
        """It is time to listen again."""
        self._stale = True
        self._wake.set()

    def _fail_pending(self, uris: frozenset[str], error: UpstreamError) -> None:
        for uri in uris & self._outcomes.keys():
            self._settle(uri, error)

    def _mark_due(self, uri: str) -> None:
        if uri in self._due:
            self._due[uri].set()
        else:
            self._due[uri] = trio.Event()
            self._wake.set()

    def _is_aligned(self, uri: str) -> bool:
        return (uri in self._watchers) == (uri in self._subscribed)

    async def _align(self, peer: Peer[UpstreamCall], uri: str, in_progress: set[str]) -> None:
        """Have the server do what is wanted for this URI; one request at a time, and again after a while if it refuses
        what somebody still wants."""
        retry_delay = INITIAL_RETRY_DELAY
        while not self._is_aligned(uri):
            self._due[uri] = trio.Event()
            if uri in self._watchers:
                outcome = self._outcomes.get(uri)
                error = await self._send(peer, SUBSCRIBE, uri, internal_call() if outcome is None else outcome.call)
                if error is None:
                    self._subscribed.add(uri)
                    if outcome is None:
                        self.on_updated(uri, {})
                self._settle(uri, error)
                if error is not None:
                    with trio.move_on_after(retry_delay):
                        await self._due[uri].wait()
                    retry_delay = min(2 * retry_delay, MAX_RETRY_DELAY)
            else:
                # Not only when it is done: whoever watches it from now on waits until it is asked for again.
                self._subscribed.discard(uri)
                await self._send(peer, UNSUBSCRIBE, uri, internal_call())
        self._settle(uri, None)  # whoever unwatched it before it was asked for has what they wanted, both times
        in_progress.discard(uri)
        self._due.pop(uri, None)

    def _settle(self, uri: str, error: UpstreamError | None) -> None:
        outcome = self._outcomes.pop(uri, None)
        if outcome is not None:
            outcome.error = error
            outcome.call.end()
            outcome.done.set()

    async def _send(self, peer: Peer[UpstreamCall], method: str, uri: str, call: UpstreamCall) -> UpstreamError | None:
        with trio.move_on_after(self._timeout):
            try:
                await peer.request(method, encode({"uri": uri}), call)
            except (PeerError, BrokenAnswer, LinkLost) as problem:
                return as_upstream_error(self._server, problem)
            return None
        return timed_out(self._server, self._timeout)


def _is_at_separator(uri: str, length: int) -> bool:
    """Whether so many characters of the URI are all of it, or it without some of its last pieces, `/` or not."""
    if not 0 < length < len(uri):
        return length == len(uri)
    return uri[length] in SEPARATORS or uri[length - 1] in SEPARATORS
