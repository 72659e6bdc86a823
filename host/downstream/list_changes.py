"""The views of the lists that one client was shown, and the notifications that are due when they change."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import trio

from host.exchange import Caller
from host.jsonrpc.messages import Notification
from host.protocol.methods import LIST_METHODS, Kind
from host.router.router import Router

SPACING = 0.5
"""Seconds between two rounds of list_changed for one client; changes in between are one."""

Send = Callable[[Notification], Awaitable[None]]

_Views = dict[Kind, bytes]
"""The digest of each view."""


async def track_changes(router: Router, caller: Caller) -> ListChanges:
    """Those for a caller who knows every list as it is now, but for those that are being judged anew: it is told of
    these when that is done, and need not wait for it."""
    judged = [kind for kind in Kind if router.catalog.is_evaluated(kind, caller.endpoint)]
    return ListChanges(router, caller, {kind: (await router.lists.view(caller, kind)).digest for kind in judged})


class ListChanges:
    """Those for one caller. It is told again only when its view differs from what it has been shown or told."""

    def __init__(self, router: Router, caller: Caller, known: _Views) -> None:
        self._router = router
        self._caller = caller
        self._known = known
        self._told: set[Kind] = set()

    def mark_listed(self, kind: Kind) -> None:
        """The caller has just been shown the list as it was made last."""
        view = self._router.lists.last_view(self._caller, kind)
        if view is not None:
            self._known[kind] = view.digest
            self._told.discard(kind)

    async def notify_changes(self, send: Send, lists: Collection[str] | None = None) -> None:
        """Tell it of every list that is no longer as it knows it, until cancelled.

        Args:
            lists: the notices that it wants; None for all.
        """
        for kind in self._told:  # told on a stream that is no more, and never asked for since: perhaps it was not heard
            self._known.pop(kind, None)
        version = 0
        while True:
            version = await self._router.catalog.wait_for_change(version)
            due = await self._due(lists)
            for method, views in due.items():
                await send(Notification(method))
                self._known |= views  # only now: a client that leaves in between has not been told
                self._told |= views.keys()
            if due:
                await trio.sleep(SPACING)

    async def _due(self, lists: Collection[str] | None) -> dict[str, _Views]:
        """The notices that are due, and what the client knows once it has got them."""
        due: dict[str, _Views] = {}
        for kind, listing in LIST_METHODS.items():
            if lists is not None and listing.list_changed not in lists:
                continue
            now = (await self._router.lists.view(self._caller, kind)).digest
            if self._known.get(kind) != now:
                due.setdefault(listing.list_changed, {})[kind] = now
        return due
