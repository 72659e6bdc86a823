"""Watched resources of one server: each is subscribed to once, for all its watchers.

The wanted subscriptions are kept apart from those of the current connection, and `run` makes the latter follow the
former: with one request at a time for each URI, and all of them again after a reconnect. URIs are inward ones.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Awaitable, Callable, Set

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
from host.slices import pause
from host.upstream.call import CallDeadline, UpstreamCall, internal_call
from host.upstream.client import as_upstream_error, timed_out
from host.wire.link import LinkLost

NotifyWatcher = Callable[[str, dict[str, Raw]], None]
"""Called with the inward URI of a changed resource, and the members of the notification that are passed on. Must not
wait."""

MAX_WATCHED = 10_000
"""URIs of one server that may be watched at once."""
MAX_PREFIXES = 256
"""Prefixes of a changed URI that are looked up among the watched ones, the longest first."""
INITIAL_RETRY_DELAY = 2.0
MAX_RETRY_DELAY = 600.0
"""First and longest delay, in seconds, before a refused subscription that is still wanted is requested again."""
SEPARATORS = "/#?"
"""Characters between the segments of a URI."""


class _SubscribeOutcome:
    """The outcome of one subscription request, for all tasks that wait for it. `call`: the call for which the request
    is sent, that of the first watcher."""

    def __init__(self, exchange: Exchange) -> None:
        self.call = UpstreamCall(exchange, CallDeadline(float("inf")))
        self.done = trio.Event()
        self.error: UpstreamError | None = None


class _Watcher:
    """One caller that watches one URI. It stays while a request of the caller is pending, or after one was granted."""

    __slots__ = ("agreed", "notify", "pending", "permit")

    def __init__(self, permit: WatchPermit, notify: NotifyWatcher) -> None:
        self.agreed = False
        self.pending = 0
        self.permit = permit
        self.notify = notify


class ResourceWatches:
    """The watches of one server. Outlives connections.

    Args:
        is_visible: whether some client may know of a URI of the server, for the connection that notifies now.
    """

    def __init__(self, server: str, timeout: float, is_visible: Callable[[str], bool]) -> None:
        self._server = server
        self._timeout = timeout
        self.is_visible = is_visible
        self._watchers: dict[str, dict[Caller, _Watcher]] = {}
        self._lengths: Counter[int] = Counter()
        """Numbers of watched URIs by their lengths."""
        self._subscribed: set[str] = set()
        self._outcomes: dict[str, _SubscribeOutcome] = {}
        self._due: dict[str, trio.Event] = {}
        """URIs whose subscription must be checked or is being checked. The event interrupts a retry delay."""
        self._wake = trio.Event()
        self._last_requested: frozenset[str] = frozenset()
        """The URIs of the last `subscriptions/listen`."""
        self._stale = True

    def __len__(self) -> int:
        return len(self._watchers)

    async def watch(self, permit: WatchPermit, notify: NotifyWatcher) -> None:
        """Watch a resource for the caller of the permit. Returns when the server has granted the subscription.

        Args:
            notify: called at each change.

        Raises:
            ServerErrorResponse, ProtocolViolation, TimedOut, Unavailable, TooManyResources: the subscription was not
                granted; an earlier one of the caller stays.
        """
        uri, caller = permit.ref.name, permit.exchange.caller
        if uri not in self._watchers and len(self._watchers) >= MAX_WATCHED:
            raise TooManyResources(self._server, f"{MAX_WATCHED} resources of {self._server} are watched already")
        watchers = self._watchers_of(uri)
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
            # Not for those who join: a request under way answers them too, and if it is refused, the mark would have it
            # sent again before all of them are told.
            self._mark_due(uri)
        await outcome.done.wait()
        if outcome.error is not None:
            raise copy_of(outcome.error)

    def unwatch(self, uri: str, caller: Caller) -> None:
        """End a caller's watch. The server's subscription ends with the last watcher."""
        watchers = self._watchers.get(uri, {})
        if watchers.pop(caller, None) is not None and not watchers:
            del self._watchers[uri]
            self._lengths[len(uri)] -= 1
            if not self._lengths[len(uri)]:
                del self._lengths[len(uri)]
            self._mark_due(uri)

    def move_to(self, other: ResourceWatches) -> None:
        """Have the watchers notified by another connection of the server from now on."""
        for uri, watchers in list(self._watchers.items()):
            for caller, watcher in list(watchers.items()):
                if watcher.agreed:
                    self.unwatch(uri, caller)
                    other._watchers_of(uri).setdefault(caller, watcher)
                    other._mark_due(uri)

    def _watchers_of(self, uri: str) -> dict[Caller, _Watcher]:
        """Those of a URI that is watched from now on, if it is not yet."""
        if uri not in self._watchers:
            self._watchers[uri] = {}
            self._lengths[len(uri)] += 1
        return self._watchers[uri]

    async def drop_hidden(self) -> None:
        """Evaluate all watches again, and end those that would not be admitted now. Until this is done, `on_updated`
        already withholds notifications of denied resources."""
        for uri in list(self._watchers):
            await pause()
            is_visible = self.is_visible(uri)
            for caller, watcher in list(self._watchers.get(uri, {}).items()):
                if not (is_visible and watcher.permit.holds()):
                    self.unwatch(uri, caller)

    def forget(self, caller: Caller) -> None:
        """End all watches of a caller."""
        for uri in [uri for uri, watchers in self._watchers.items() if caller in watchers]:
            self.unwatch(uri, caller)

    def on_updated(self, uri: str, notice: dict[str, Raw]) -> None:
        """Notify the watchers of a changed resource, and of resources that it may be a part of (2025-06-18, "Resource
        Updated Notification": the URI may be that of a sub-resource). Without any such watcher, all watchers are
        notified. Changes of hidden resources are not reported."""
        if not self._watchers or not self.is_visible(uri):  # once for all watchers: slow beside many templates
            return
        watchers_above = self._watchers_at_or_above(uri)
        affected = {
            caller: watcher for each in watchers_above or self._watchers.values() for caller, watcher in each.items()
        }
        shown: dict[tuple[str, str], bool] = {}
        for watcher in affected.values():
            permit = watcher.permit
            if permit.holds():
                if (audience := permit.audience) not in shown:  # once for many watchers, as above
                    shown[audience] = permit.shows(uri)
                if shown[audience]:
                    watcher.notify(uri, notice)

    def _watchers_at_or_above(self, uri: str) -> list[dict[Caller, _Watcher]]:
        """The watchers of the URI and of all resources that it may be a part of, the longest first. Only prefixes that
        are as long as a watched URI are looked up, and at most MAX_PREFIXES: a server may send a URI that consists of
        slashes, and building all its prefixes takes time quadratic in its length."""
        lengths = sorted((each for each in self._lengths if _is_at_separator(uri, each)), reverse=True)[:MAX_PREFIXES]
        return [self._watchers[uri[:each]] for each in lengths if uri[:each] in self._watchers]

    async def run(self, peer: Peer[UpstreamCall]) -> None:
        """Keep the subscriptions of a handshake server in step with the watches, until cancelled. Resources that were
        watched before this connection are subscribed to again, and then count as changed, because notifications may
        have been missed."""
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
            self._on_ended()

    async def run_listening(self, request_listen: Callable[[frozenset[str]], Awaitable[frozenset[str]]]) -> None:
        """Keep the subscription of a stateless server in step with the watches, until cancelled.

        Args:
            request_listen: replaces the subscription by one for exactly these URIs, and returns those that were
            granted.
                Raises UpstreamError if that fails.
        """
        self._subscribed = set()
        retry_delay = INITIAL_RETRY_DELAY
        self._stale = True
        try:
            while True:
                self._wake, self._due = trio.Event(), {}
                wanted = frozenset(self._watchers)
                for uri in self._outcomes.keys() - wanted:  # unwatched meanwhile
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
                    await trio.lowlevel.checkpoint()  # `is_visible` may take a millisecond, and there may be 10,000
                why = f"{self._server} does not support subscriptions to this resource"
                for uri in wanted:
                    self._settle(
                        uri, None if uri in agreed else ServerErrorResponse(self._server, METHOD_NOT_FOUND, why, None)
                    )
        finally:
            self._on_ended()

    def on_stream_lost(self) -> None:
        """Handle the loss of the subscription of `run_listening`. Resources that are granted next count as changed."""
        self._subscribed = set()

    def mark_stale(self) -> None:
        """Have `run_listening` request a subscription again."""
        self._stale = True
        self._wake.set()

    def _on_ended(self) -> None:
        """Handle the end of the connection: nothing is subscribed to any more."""
        self._subscribed, self._due = set(), {}
        self._fail_pending(self._outcomes.keys(), as_upstream_error(self._server, LinkLost("the connection ended")))

    def _fail_pending(self, uris: Set[str], error: UpstreamError) -> None:
        for uri in uris & self._outcomes.keys():
            self._settle(uri, error)

    def _mark_due(self, uri: str) -> None:
        if uri in self._due:
            self._due[uri].set()
        else:
            self._due[uri] = trio.Event()
            self._wake.set()

    async def _align(self, peer: Peer[UpstreamCall], uri: str, in_progress: set[str]) -> None:
        """Subscribe or unsubscribe one URI, as wanted; one request at a time. A refused subscription that is still
        wanted is requested again after a delay."""
        retry_delay = INITIAL_RETRY_DELAY
        while (uri in self._watchers) != (uri in self._subscribed):
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
                # Before the request: a new watcher must wait for a new subscription.
                self._subscribed.discard(uri)
                await self._send(peer, UNSUBSCRIBE, uri, internal_call())
        self._settle(uri, None)  # for a watcher that unwatched before the request was sent
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
    """Whether the first `length` characters are the whole URI, or end at a separator (with or without it)."""
    if not 0 < length < len(uri):
        return length == len(uri)
    return uri[length] in SEPARATORS or uri[length - 1] in SEPARATORS
