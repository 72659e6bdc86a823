"""The lists of one connection, as its clients and their requests see them: whether they are old or have changes, and
the readings that follow. The lists themselves are in the catalog; `catalog_sync.py` reads them while the server is
connected.

The dedicated instances of a server use the lists of its shared connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from host.catalog import Entry
from host.memory import Holding, Use, server_owner
from host.protocol.era import Era
from host.protocol.methods import Kind
from host.source import EntryRef, Source
from host.upstream.catalog_sync import CatalogSync
from host.upstream.runtime import Runtime


class SourceLists:
    """The lists of one connection. Implements `host.upstream.client.ServerLists`.

    Attributes:
        sync: reads the lists while the server is connected; None otherwise: then no list is old or has changes.
        source: what lists them: the server, over a connection of the era that was negotiated last.
    """

    def __init__(self, server: str, runtime: Runtime) -> None:
        self.sync: CatalogSync | None = None
        self.source = Source(server, Era.SESSION)
        self._catalog = runtime.catalog

    def tool(self, name: str) -> Entry | None:
        """Look a tool up by its inward name."""
        return self._catalog.entry(EntryRef(self.source, Kind.TOOL, name))

    def expire_hints(self) -> None:
        """Drop the hints of how long the lists stay fresh: changes are not heard of any more."""
        for kind in Kind:
            self._catalog.expire_hint(self.source, kind)

    def hold(self, drop: Callable[[], None]) -> Holding:
        """Charge the server for messages that it has sent."""
        return self._catalog.memory.hold(server_owner(self.source.server), Use.MESSAGES, 0, drop)

    def refresh(self, kind: Kind) -> None:
        """Have a list read again soon that may be outdated."""
        if self.sync is not None:
            self.sync.mark_changed((kind,))

    async def reread_tools(self) -> None:
        """Read the tools again now, because the server needs other headers for one."""
        if self.sync is not None:
            await self.sync.read(Kind.TOOL)

    def on_hearing_changed(self) -> None:
        """To be called when other changes of lists are heard of than before."""
        if self.sync is not None:
            self.sync.update_old_at()

    def are_read(self, kinds: Iterable[Kind]) -> bool:
        """Whether no list of these kinds is marked as changed and not read since."""
        return self.sync is None or self.sync.are_read(kinds)

    async def wait_until_read(self, kinds: Iterable[Kind]) -> None:
        """Wait until lists of these kinds that are marked as changed have been read."""
        if self.sync is not None:
            await self.sync.wait_until_read(kinds)

    async def wait_for_changes(self, kinds: Iterable[Kind], at_most: float) -> None:
        """See `CatalogSync.wait_for_changes`."""
        if self.sync is not None:
            await self.sync.wait_for_changes(kinds, at_most)

    @property
    def are_old(self) -> bool:
        """Whether a list is old whose changes the server does not announce."""
        return self.sync is not None and self.sync.has_old_lists

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        """Have old lists read; see `CatalogSync.read_if_old`."""
        return None if self.sync is None else self.sync.read_if_old(missed)

    @property
    def problems(self) -> list[str]:
        """Sentences about lists that could not be read, or have something wrong with their pages."""
        return [] if self.sync is None else self.sync.problems

    @property
    def left_out(self) -> list[str]:
        """Descriptions of the definitions that clients could not parse."""
        return [] if self.sync is None else self.sync.left_out
