"""The lists that one client has seen, and the notifications that are due when they change."""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from typing import NamedTuple

import trio

from host.exchange import Caller
from host.jsonrpc.messages import Notification
from host.protocol.methods import LIST_METHODS, Kind
from host.router.router import Router

SPACING = 0.5
"""Seconds between two rounds of list_changed for one client; changes in between are combined."""

AT_ONCE = 100
"""Clients that are notified in one pass of the event loop, in about a millisecond."""

Enqueue = Callable[[Notification], bool]
"""Puts a notification on the stream of a client without waiting; False if it is full."""

_Digests = tuple[bytes | None, ...]
"""The digest of each list, in the order of `_KINDS`; None for one that is not known."""
_KINDS = tuple(LIST_METHODS)


class _Moment:
    """The lists by audience, in one round of comparisons. Those in `shown` hold until anything else has run: a client
    may have listed newer ones by then. The newest lists of each audience in `made` are made once for the round."""

    def __init__(self) -> None:
        self.made: set[Hashable] = set()
        self.shown: dict[Hashable, _Digests] = {}
        self.last: tuple[_Digests, _Digests, frozenset[str] | None, tuple[_Due, ...]] = (), (), None, ()
        """The last arguments of `due`, and its result."""
        self._due: dict[tuple[_Digests, _Digests, frozenset[str] | None], tuple[_Due, ...]] = {}

    def due(self, known: _Digests, now: _Digests, lists: frozenset[str] | None) -> tuple[_Due, ...]:
        """The notifications for those that know these lists. Most know the same, so they are found once for all."""
        key = known, now, lists
        if (due := self._due.get(key)) is None:
            due = self._due[key] = tuple(_find_due(known, now, lists))
        self.last = known, now, lists, due
        return due


class _Due(NamedTuple):
    """A notification that is due."""

    notice: Notification
    kinds: frozenset[Kind]
    """The lists that have changed."""
    known: _Digests
    """The lists that are known with it."""


def _find_due(known: _Digests, now: _Digests, lists: frozenset[str] | None) -> Iterator[_Due]:
    for method, notice in _NOTICES.items():
        if lists is None or method in lists:
            changed = {
                at: digest
                for at, digest in enumerate(now)
                if digest not in (None, known[at]) and LIST_METHODS[_KINDS[at]].list_changed == method
            }
            if changed:
                known = tuple(changed.get(at, former) for at, former in enumerate(known))
                yield _Due(notice, frozenset(_KINDS[at] for at in changed), known)


async def track_changes(router: Router, caller: Caller) -> ListChanges:
    """Changes for a caller that knows every present list. Lists that are being evaluated again are excepted: the caller
    is notified of these afterwards, so that it need not wait now."""
    is_early = not router.upstreams.are_listed(caller)
    evaluated = [kind for kind in Kind if router.catalog.is_evaluated(kind, caller.endpoint.server)]
    shown = {kind: (await router.lists.shown(caller, kind)).digest for kind in evaluated}
    known = tuple(map(shown.get, _KINDS))
    return ListChanges(router, caller, known, is_early=is_early)


class ListChanges:
    """Pending list changes of one caller. It is notified only if its list differs from the one that it last saw or was
    notified of.

    Args:
        is_early: lists of servers are not known yet. No list is answered before they are, or are not waited for any
            more, and no change is notified before that answer: else it would be, for each server that comes.
    """

    __slots__ = ("_caller", "_is_early", "_known", "_router", "_told", "lasting")

    def __init__(self, router: Router, caller: Caller, known: _Digests, *, is_early: bool = False) -> None:
        self._router = router
        self._caller = caller
        self._known = known
        self._is_early = is_early
        self._told: frozenset[Kind] = frozenset()
        self.lasting: Hashable | None = router.lists.lasting_audience(caller)
        """`audience()` if it is always the same; else None."""

    def mark_listed(self, kind: Kind) -> None:
        """Record that the caller has just received this list."""
        shown = self._router.lists.last_shown(self._caller, kind)
        if shown is not None:
            self._know(kind, shown.digest)
            self._told -= {kind}

    def _know(self, kind: Kind, digest: bytes | None) -> None:
        self._known = tuple(digest if each is kind else known for each, known in zip(_KINDS, self._known, strict=True))

    def mark_missed(self, kinds: Iterable[Kind]) -> None:
        """Record that changes of these lists may have been missed: the caller is notified of each that it does not list
        before."""
        for kind in kinds:
            self._know(kind, None)

    async def begun(self) -> ListChanges:
        """These changes, once the caller may be notified, which listens from now on."""
        # Notified on a stream that has ended, and not listed since: the notification may have been lost
        for kind in self._told:
            self._know(kind, None)
        if self._is_early:
            await self._router.upstreams.wait_listed(self._caller)
            await trio.sleep(SPACING)
            self._is_early = False
        return self

    def audience(self) -> Hashable:
        """Equal for all callers that are shown the same lists."""
        return self.lasting or self._router.lists.audience(self._caller)

    async def complete(self, moment: _Moment) -> _Digests:
        """The lists of the caller now, which this adds to the moment."""
        while (audience := self.audience()) not in moment.made:
            for kind in LIST_METHODS:
                await self._router.lists.shown(self._caller, kind)
            moment.made.add(audience)
            moment.shown.clear()
        if (now := moment.shown.get(audience)) is None:
            newest = [self._router.lists.last_shown(self._caller, kind) for kind in _KINDS]
            now = moment.shown[audience] = tuple(None if shown is None else shown.digest for shown in newest)
        return now

    def notify(
        self, enqueue: Enqueue, lists: frozenset[str] | None, now: _Digests, moment: _Moment
    ) -> tuple[bool, bool]:
        """Notify the caller of every list that has changed: whether there were some, and whether the client has all
        notifications.

        Args:
            lists: the notifications that it subscribes to; None for all.
            now: its lists now.
        """
        known = self._known
        if now == known:
            return False, True
        was_known, was_now, were_lists, due = moment.last
        if was_known is not known or was_now is not now or were_lists != lists:
            due = moment.due(known, now, lists)
        for notice, kinds, known in due:
            if not enqueue(notice):
                return True, False
            self._known = known
            self._told = self._told | kinds if self._told else kinds  # mostly one set for all callers
        return bool(due), True


_NOTICES = {listing.list_changed: Notification(listing.list_changed) for listing in LIST_METHODS.values()}
"""Each once, and so encoded once."""


class Listener:
    """One client that is notified.

    Args:
        find: waits until it may be notified.
        enqueue: if the stream is full, the notification follows later.
        lists: the notifications that it subscribes to; None for all.
    """

    __slots__ = ("changes", "enqueue", "find", "joining", "lists")

    def __init__(
        self, find: Callable[[], Awaitable[ListChanges]], enqueue: Enqueue, lists: frozenset[str] | None = None
    ) -> None:
        self.find = find
        self.enqueue = enqueue
        self.lists = lists
        self.changes: ListChanges
        self.joining: trio.CancelScope | None = trio.CancelScope()
        """Scope around the wait until it may be notified; None afterwards."""


class Announcements:
    """Notifies all clients that listen. One task, `run`, serves all of them: in rounds, SPACING seconds apart, in which
    it compares the lists of each with those that it knows.

    Args:
        crashed: takes what was raised for one client, which is notified no more.
    """

    def __init__(self, router: Router, crashed: Callable[[Exception], None]) -> None:
        self._router = router
        self._crashed = crashed
        self._joining: deque[Listener] = deque()
        self._listeners: dict[Listener, None] = {}
        self._due: dict[Listener, None] = {}
        """Those to be compared in the next round."""
        self._moved = trio.lowlevel.ParkingLot()

    def add(self, listener: Listener) -> None:
        self._joining.append(listener)
        self._moved.unpark_all()

    def remove(self, listener: Listener) -> None:
        if listener.joining is not None:
            listener.joining.cancel()
        self._listeners.pop(listener, None)

    async def run(self) -> None:
        """Notify, until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._follow)
            while True:
                while self._joining:
                    nursery.start_soon(self._join, self._joining.popleft())
                if not self._due:
                    await self._moved.park()
                elif await self._run_round():
                    await trio.sleep(SPACING)

    async def _join(self, listener: Listener) -> None:
        scope = listener.joining
        assert scope is not None
        with scope:
            try:
                listener.changes = await listener.find()
            except Exception as problem:  # noqa: BLE001 - as below
                self._crashed(problem)
                return
        listener.joining = None
        if not scope.cancel_called:  # a client that leaves may do so before this runs
            self._listeners[listener] = self._due[listener] = None
            self._moved.unpark_all()

    async def _follow(self) -> None:
        """Have all compared after each change."""
        version = 0
        while True:
            version = await self._router.catalog.wait_for_change(version)
            self._due |= self._listeners
            self._moved.unpark_all()

    async def _run_round(self) -> bool:
        """Compare those that are due. Whether there was something to notify one of."""
        due, self._due = self._due, {}
        has_notified = False
        moment = _Moment()
        for number, listener in enumerate(due):
            if number and number % AT_ONCE == 0:
                await trio.lowlevel.checkpoint()
                moment.shown.clear()
            if listener in self._listeners:
                try:
                    changes = listener.changes
                    now = moment.shown.get(changes.lasting or changes.audience())
                    if now is None:
                        now = await changes.complete(moment)
                    had_some, has_all = changes.notify(listener.enqueue, listener.lists, now, moment)
                except Exception as problem:  # noqa: BLE001 - an error for one client must not affect any other
                    self._listeners.pop(listener, None)
                    self._crashed(problem)
                    continue
                has_notified = has_notified or had_some
                if not has_all:
                    self._due[listener] = None
        await trio.lowlevel.checkpoint()
        return has_notified
