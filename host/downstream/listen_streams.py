"""One `subscriptions/listen` stream, from its acknowledgement to its end (2026-07-28, "Subscriptions"). The transport
sends its messages and decides when it ends."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping

import trio
from msgspec import Raw

from host.downstream.list_changes import SPACING, Enqueue, Listener, track_changes
from host.downstream.stateless import Stateless, StatelessClient
from host.downstream.tasks import check_declared
from host.errors import ColonnadeError
from host.exchange import Caller, Exchange, NoClient, ProgressCallback
from host.jsonrpc.messages import Id, Notification, Request
from host.jsonrpc.raw import encode, encode_object
from host.protocol.abilities import Abilities
from host.protocol.methods import RESOURCE_UPDATED, SUBSCRIBE
from host.protocol.subscriptions import Filter, acknowledgement, filter_of, with_subscription_id
from host.router.router import Router
from host.wire.link import LinkLost

AGREEMENT_TIMEOUT = 0.5
"""Seconds in which servers may accept resource subscriptions before the acknowledgement is sent without them."""

INITIAL_RETRY_DELAY = 1.0
MAX_RETRY_DELAY = 60.0
"""First and longest delay, in seconds, before resources that could not be watched are tried again. A change of any list
has them tried at once."""


class Subscription:
    """One subscription, from its acknowledgement to its end. Its notifications are tagged with the id of the request
    that opened it. Implements `host.exchange.ClientHandle`, but takes no requests.

    Args:
        enqueue: puts a notification on its stream.
        address: see `Exchange.address`.
        on_end: called once it has ended in order: by `end`, or because its client reads too slowly. The client must
            then list again to find missed changes. `serve` has one of its own.
    """

    def __init__(
        self,
        stateless: Stateless,
        id: Id,
        requested: Filter,
        client: StatelessClient,
        abilities: Abilities,
        enqueue: Enqueue,
        address: str = "",
        on_end: Callable[[], object] = lambda: None,
    ) -> None:
        self._id = id
        self._router = stateless.router
        self._tasks = stateless.tasks
        self._announcements = stateless.announcements
        self._requested = requested
        self._enqueue = enqueue
        self._on_end = on_end
        self._address = address
        self._caller = client.caller(abilities, self)
        self._scope = trio.CancelScope()
        self._waiting = trio.CancelScope()
        self._early: list[Notification] | None = []
        self._has_ended = False
        self._watched_tasks: tuple[str, ...] = ()
        self._listener: Listener | None = None

    async def run(self) -> None:
        """Send the acknowledgement, and subscribe. While servers start, this waits for them as lists do. Resources that
        cannot be watched then are added to the stream when they can, until `close`."""
        with self._scope:
            changes = await track_changes(self._router, self._caller)
            await trio.lowlevel.checkpoint_if_cancelled()  # by `close`, in the step that ended the wait
            self._watched_tasks = self._tasks.watch(self._caller, self._requested.tasks, self.forward)
            watches = _StreamWatches(self._router, self._caller, self._requested.uris, self, self._address)
            async with trio.open_nursery() as nursery:
                with self._waiting:
                    if self._requested.uris:
                        await self._router.upstreams.wait_listed(self._caller)
                        nursery.start_soon(watches.run)
                        with trio.move_on_after(AGREEMENT_TIMEOUT):
                            await watches.settled.wait()
                await trio.lowlevel.checkpoint_if_cancelled()  # as above
                self._acknowledge(Filter(self._requested.lists, watches.grant(), self._watched_tasks))
                self._listener = Listener(changes.begun, self._enqueue_tagged, self._requested.lists)
                self._announcements.add(self._listener)

    async def serve(self, stop: trio.Event) -> None:
        """Run it until `stop` is set or its client reads too slowly, and close it. Cancelling this ends it without a
        final message."""
        ended = trio.Event()
        self._on_end = ended.set

        async def end_when_stopped() -> None:
            await stop.wait()
            self.end()

        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self.run)
                nursery.start_soon(end_when_stopped)
                await ended.wait()
                nursery.cancel_scope.cancel()
        finally:
            self.close()

    def end(self) -> None:
        """End it in order, after the acknowledgement."""
        self._waiting.cancel()
        if not self._has_ended:
            self._has_ended = True
            if self._early is None:
                self._on_end()

    def close(self) -> None:
        """Send nothing more."""
        self._scope.cancel()
        if self._listener is not None:
            self._announcements.remove(self._listener)
        self._tasks.unwatch(self._watched_tasks, self.forward)
        self._router.upstreams.release(self._caller)

    def _acknowledge(self, granted: Filter) -> None:
        """Send the acknowledgement, before which no notification may be sent."""
        early, self._early = self._early or [], None
        if not self._enqueue(acknowledgement(self._id, granted)):
            self._has_ended = True
        for notice in early:
            self.forward(notice)
        if self._has_ended:
            self._on_end()

    def notify(self, notice: Notification) -> None:
        if notice.method == RESOURCE_UPDATED:  # other notifications of its servers belong to no subscription
            self.forward(notice)

    def forward(self, notice: Notification) -> None:
        if self._early is not None:
            self._early.append(notice)
        elif not self._enqueue_tagged(notice):
            self.end()

    def _enqueue_tagged(self, notice: Notification) -> bool:
        return not self._has_ended and self._enqueue(with_subscription_id(notice, self._id))

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        raise LinkLost("the client can be asked nothing here")


def requested_filter(params: Mapping[str, Raw], abilities: Abilities) -> Filter:
    """The filter that a subscription requests.

    Raises:
        InvalidParams: it is missing or malformed.
        MissingAbility: it names tasks, and the request does not declare the extension.
    """
    requested = filter_of(params)
    if requested.tasks:
        check_declared(abilities)
    return requested


class _StreamWatches:
    """The resources that one subscription names, each subscribed at its server, as soon as that is possible."""

    def __init__(
        self, router: Router, caller: Caller, uris: tuple[str, ...], listener: Subscription, address: str
    ) -> None:
        self._address = address
        self._router = router
        self._caller = caller
        self._listener = listener
        self._agreed: dict[str, bool | None] = dict.fromkeys(uris)
        self._granted = frozenset(uris)
        """Resources whose changes the client expects: all before the acknowledgement, then those that it names."""
        self.settled = trio.Event()

    async def run(self) -> None:
        """Subscribe to all resources, and again to those that were refused or hidden meanwhile, until cancelled."""
        version = self._router.catalog.version
        await self._watch_all(self._agreed)
        self.settled.set()
        delay = INITIAL_RETRY_DELAY
        while self._agreed:
            with trio.move_on_after(math.inf if all(self._agreed.values()) else delay):
                version = await self._router.catalog.wait_for_change(version)
            delay = min(2 * delay, MAX_RETRY_DELAY)
            await self._watch_all([uri for uri in self._agreed if await self._is_due(uri)])
            await trio.sleep(SPACING)

    async def _is_due(self, uri: str) -> bool:
        """Whether a resource that is not watched can be watched by now."""
        await trio.lowlevel.checkpoint()  # each is a pass of its own: there may be many
        is_watchable = self._router.is_watchable(self._exchange(uri))
        if self._agreed[uri] and not is_watchable:  # the watch may have been dropped
            self._agreed[uri], self._granted = False, self._granted - {uri}
        return is_watchable and not self._agreed[uri]

    def grant(self) -> tuple[str, ...]:
        """The resources to be acknowledged: those whose server has accepted, or has not answered yet but declares that
        it supports subscriptions."""
        granted = tuple(
            uri
            for uri, agreed in self._agreed.items()
            if agreed or (agreed is None and self._router.is_watchable(self._exchange(uri)))
        )
        self._granted = frozenset(granted)
        return granted

    async def _watch_all(self, uris: Iterable[str]) -> None:
        async with trio.open_nursery() as nursery:
            for uri in uris:
                nursery.start_soon(self._watch, uri)

    async def _watch(self, uri: str) -> None:
        try:
            await self._router.answer(self._exchange(uri))
        except ColonnadeError:
            self._agreed[uri] = False
            return
        self._agreed[uri] = True
        if uri not in self._granted:  # changes of it were not notified until now
            self._granted |= {uri}
            self._listener.notify(Notification(RESOURCE_UPDATED, encode_object({"uri": encode(uri)})))

    def _exchange(self, uri: str) -> Exchange:
        return Exchange(Request(0, SUBSCRIBE), {"uri": encode(uri)}, self._caller, NoClient(), address=self._address)
