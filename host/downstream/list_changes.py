"""The list views that one client has seen, and the notifications that are due when they change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import trio

from host.exchange import Caller
from host.jsonrpc.messages import Notification
from host.protocol.methods import LIST_METHODS, Kind
from host.router.router import Router

SPACING = 0.5
"""Seconds between two rounds of list_changed for one client; changes in between are combined."""

Send = Callable[[Notification], Awaitable[None]]

_Views = dict[Kind, bytes]
"""The digest of each view."""


async def track_changes(router: Router, caller: Caller) -> ListChanges:
    """Changes for a caller that knows every present list. Lists that are being evaluated again are excepted: the caller
    is notified of these afterwards, so that it need not wait now."""
    evaluated = [kind for kind in Kind if router.catalog.is_evaluated(kind, caller.endpoint)]
    return ListChanges(router, caller, {kind: (await router.lists.view(caller, kind)).digest for kind in evaluated})


class ListChanges:
    """Pending list changes of one caller. It is notified only if its view differs from the one that it last saw or was
    notified of."""

    def __init__(self, router: Router, caller: Caller, known: _Views) -> None:
        self._router = router
        self._caller = caller
        self._known = known
        self._told: set[Kind] = set()

    def mark_listed(self, kind: Kind) -> None:
        """Record that the caller has just received this list."""
        view = self._router.lists.last_view(self._caller, kind)
        if view is not None:
            self._known[kind] = view.digest
            self._told.discard(kind)

    async def notify_changes(self, send: Send, lists: Collection[str] | None = None) -> None:
        """Notify the caller of every changed list, until cancelled.

        Args:
            lists: the notifications that it subscribes to; None for all.
        """
        # Notified on a stream that has ended, and not listed since: the notification may have been lost
        for kind in self._told:
            self._known.pop(kind, None)
        version = 0
        while True:
            version = await self._router.catalog.wait_for_change(version)
            due = await self._due(lists)
            for method, views in due.items():
                await send(Notification(method))
                self._known |= views  # only now: a client that leaves in between was not notified
                self._told |= views.keys()
            if due:
                await trio.sleep(SPACING)

    async def _due(self, lists: Collection[str] | None) -> dict[str, _Views]:
        """The notifications that are due, and the views that the client knows after them."""
        due: dict[str, _Views] = {}
        for kind, listing in LIST_METHODS.items():
            if lists is not None and listing.list_changed not in lists:
                continue
            now = (await self._router.lists.view(self._caller, kind)).digest
            if self._known.get(kind) != now:
                due.setdefault(listing.list_changed, {})[kind] = now
        return due
