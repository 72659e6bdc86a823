"""What one client knows of the lists, and the notices that are due when they are no longer so."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection

import trio

from host.exchange import Caller
from host.jsonrpc.messages import Notification
from host.protocol.methods import LISTINGS, Kind
from host.router import Router

SPACING = 0.5
"""Seconds between two rounds of list_changed for one client; changes in between are one."""

Send = Callable[[Notification], Awaitable[None]]

_Views = dict[Kind, tuple[bytes, ...]]


class Changes:
    """Those for one caller, who knows every list as it is now."""

    def __init__(self, router: Router, caller: Caller) -> None:
        self._router = router
        self._caller = caller
        # It is told again only when its view differs from what it has been shown or told.
        self._known: _Views = {kind: self._view(kind) for kind in Kind}
        self._told: set[Kind] = set()

    def listed(self, kind: Kind) -> None:
        """The caller has just been shown the list as it is now."""
        self._known[kind] = self._view(kind)
        self._told.discard(kind)

    async def tell(self, send: Send, lists: Collection[str] | None = None) -> None:
        """Tell it of every list that is no longer as it knows it, until cancelled.

        Args:
            lists: the notices that it wants; None for all.
        """
        for kind in self._told:  # told on a stream that is no more, and never asked for since: perhaps it was not heard
            self._known.pop(kind, None)
        version = 0
        while True:
            version = await self._router.catalog.after(version)
            due = self._due(lists)
            for method, views in due.items():
                await send(Notification(method))
                self._known |= views  # only now: a client that leaves in between has not been told
                self._told |= views.keys()
            if due:
                await trio.sleep(SPACING)

    def _due(self, lists: Collection[str] | None) -> dict[str, _Views]:
        """The notices that are due, and what the client knows once it has got them."""
        due: dict[str, _Views] = {}
        for kind, listing in LISTINGS.items():
            if lists is not None and listing.changed not in lists:
                continue
            now = self._view(kind)
            if self._known.get(kind) != now:
                due.setdefault(listing.changed, {})[kind] = now
        return due

    def _view(self, kind: Kind) -> tuple[bytes, ...]:
        return self._router.view(self._caller, kind).definitions
