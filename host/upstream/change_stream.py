"""The `subscriptions/listen` request to a stateless server, which brings its change notifications (2026-07-28,
"Subscriptions").

The filter of an open request cannot be changed: a new request is opened, and the former one is closed when the new one
is acknowledged. Over stdio one of the two counts at any moment. Over HTTP each request has a stream of its own, and
notifications that the server sent on the former stream before the acknowledgement may be read after it. The former
request therefore counts for `FORMER_GRACE` longer, so that no change is missed; a change in this time may come twice. A
broken request is opened again, and everything watched then counts as changed.
"""

from __future__ import annotations

import random
from collections.abc import Callable

import trio

from host.jsonrpc.messages import Id, Notification
from host.jsonrpc.raw import encode_object
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import InFlight
from host.protocol.methods import LIST_METHODS, Kind
from host.protocol.subscriptions import ACKNOWLEDGED, LISTEN, Filter, acknowledged, listen_params, subscription_of
from host.upstream.backoff import Backoff
from host.upstream.call import UpstreamCall, internal_call
from host.upstream.client import Client, as_upstream_error, timed_out
from host.upstream.resource_watches import ResourceWatches
from host.wire.link import LinkLost

ACKNOWLEDGE_TIMEOUT = 10.0
"""Seconds in which a server must acknowledge a request."""
FORMER_GRACE = 0.5
"""Seconds for which a request still counts after it was replaced, if its stream is independent of the new one."""


class _ListenRequest:
    """One `subscriptions/listen`. `acknowledged`: the granted filter; `error`: the reason of its end; `settled` is set
    with the first of them."""

    def __init__(self, requested: Filter) -> None:
        self.requested = requested
        self.upstream_call = internal_call(listens=True)
        self.scope = trio.CancelScope()
        self.settled = trio.Event()
        self.acknowledged: Filter | None = None
        self.error: PeerError | BrokenAnswer | LinkLost | None = None


class ChangeStream:
    """The change notifications of one connection: for the lists that the server announces, if there is an
    `on_lists_changed`, and for the resources in `watches`."""

    def __init__(
        self, client: Client, watches: ResourceWatches, on_lists_changed: Callable[[list[Kind]], None] | None
    ) -> None:
        self._client = client
        self._watches = watches
        self._on_lists_changed = on_lists_changed
        self._current: _ListenRequest | None = None
        self._pending: _ListenRequest | None = None
        """The request that replaces the current one when it is acknowledged."""
        self._former: _ListenRequest | None = None
        """The request before the current one, for `FORMER_GRACE`."""
        self._missed = True
        """Changes may have been missed, since the lists were first read or since a request broke."""
        self._backoff = Backoff()

    async def run(self) -> None:
        """Keep a request open for everything that is wanted, until cancelled."""
        async with trio.open_nursery() as nursery:
            self._nursery = nursery
            await self._watches.run_listening(self._request_listen)

    def handles(self, notice: Notification, in_flight: InFlight[UpstreamCall]) -> bool:
        """Handle an acknowledgement. Returns whether the notification is a change that came by a request that
        counts."""
        id = subscription_of(notice)
        if id is None:
            id = in_flight.about
        subject = None if id is None else in_flight.subject_of(id)
        if notice.method == ACKNOWLEDGED:
            pending = self._pending
            if pending is not None and subject is pending.upstream_call:
                pending.acknowledged = acknowledged(notice.params)
                pending.settled.set()
                self._replace(pending, overlap=FORMER_GRACE if in_flight.exact else 0)
                self._set_heard(pending.acknowledged.lists)
                self._report_missed(pending.acknowledged)
            return False
        return any(each is not None and subject is each.upstream_call for each in (self._current, self._former))

    def on_cancelled(self, id: Id, in_flight: InFlight[UpstreamCall]) -> None:
        """Handle the end of a request by `notifications/cancelled` of the server."""
        subject = in_flight.subject_of(id)
        for each in (self._current, self._pending):
            if each is not None and each.upstream_call is subject:
                each.error = LinkLost("it ended the request")
                each.scope.cancel("the server has ended it")

    @property
    def _is_open(self) -> bool:
        return self._current is not None

    def _listen_filter(self, uris: frozenset[str]) -> Filter:
        announced = self._client.negotiated.list_changed if self._on_lists_changed is not None else ()
        lists = {listing.list_changed for listing in LIST_METHODS.values() if listing.capability in announced}
        return Filter(frozenset(lists), tuple(sorted(uris)) if self._client.negotiated.has_subscriptions else (), ())

    async def _request_listen(self, uris: frozenset[str]) -> frozenset[str]:
        """Replace the request by one for these URIs; see `ResourceWatches.run_listening`."""
        wanted = self._listen_filter(uris)
        if not wanted.lists and not wanted.uris:
            self._replace(None, overlap=0)
            self._set_heard(frozenset())
            return frozenset()
        pending = self._pending = _ListenRequest(wanted)
        self._nursery.start_soon(self._run_request, pending)
        with trio.move_on_after(ACKNOWLEDGE_TIMEOUT):
            await pending.settled.wait()
        if pending.acknowledged is None:
            self._pending = None
            pending.scope.cancel("it was not acknowledged")
            problem = pending.error
            server = self._client.server
            raise timed_out(server, ACKNOWLEDGE_TIMEOUT) if problem is None else as_upstream_error(server, problem)
        return frozenset(pending.acknowledged.uris)

    def _replace(self, pending: _ListenRequest | None, *, overlap: float) -> None:
        if self._former is not None:
            self._former.scope.cancel("it was replaced twice")
        former, self._former, self._current, self._pending = self._current, None, pending, None
        if former is not None and overlap:
            self._former = former
            former.scope.deadline = trio.current_time() + overlap
        elif former is not None:
            former.scope.cancel("it was replaced")

    def _set_heard(self, lists: frozenset[str]) -> None:
        if self._on_lists_changed is not None:
            self._client.heard_lists = lists

    def _report_missed(self, granted: Filter) -> None:
        """Have the granted lists read if changes of them may have been missed."""
        kinds = [listing.kind for listing in LIST_METHODS.values() if listing.list_changed in granted.lists]
        if self._missed and self._on_lists_changed is not None:
            self._on_lists_changed(kinds)
        self._missed = False

    async def _run_request(self, request: _ListenRequest) -> None:
        """Send one request, and wait for its end."""
        began = trio.current_time()
        with request.scope:
            try:
                params = encode_object(listen_params(request.requested))
                await self._client.internal_request(LISTEN, params, request.upstream_call)
                request.error = LinkLost("it ended the request")
            except (PeerError, BrokenAnswer, LinkLost) as problem:
                request.error = problem
        request.settled.set()
        if self._former is request:
            self._former = None
        if self._current is not request:
            return
        # Changes may be missed until the next request is acknowledged.
        self._current, self._missed = None, True
        self._set_heard(frozenset())
        self._watches.on_stream_lost()
        await trio.sleep(self._backoff.on_failure(trio.current_time() - began, random.random()))
        if not self._is_open and not self._client.peer.ended.is_set():
            self._watches.mark_stale()
