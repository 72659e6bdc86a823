"""The lists of one connection: read when it is opened, kept up to date while it is connected, and remembered. The lists
themselves are in the catalog.

For clients and their requests this is also the place to ask whether lists are old or have changes. The dedicated
instances of a server use the lists of its shared connection.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

import trio

from config import ServerSpec
from host.catalog import Entry, FreshnessHint
from host.journal import EntryOmitted
from host.jsonrpc.readable import LONE_SURROGATE
from host.memory import Holding, Use, server_owner
from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer
from host.protocol.stateless import STALE
from host.source import EntryRef, Source
from host.upstream.backoff import ReadingBudget
from host.upstream.catalog_sync import CatalogSync, publish_list
from host.upstream.client import Client
from host.upstream.remembered_lists import ListOwner, RememberedLists
from host.upstream.runtime import Runtime


class SourceLists:
    """The lists of one connection. Implements `host.upstream.client.ServerLists`.

    Args:
        budget: shared by all connections of the server.

    Attributes:
        source: what lists them.
        sync: reads the lists while the server is connected; None otherwise: then no list is old or has changes.
        remembered: stores them.
        is_recalled: whether it was looked what is remembered, or the lists of a former connection stay.
    """

    def __init__(self, source: Source, runtime: Runtime, budget: ReadingBudget, owner: ListOwner) -> None:
        self.source = source
        self.sync: CatalogSync | None = None
        self.remembered = RememberedLists(runtime, budget, owner)
        self.is_recalled = False
        self._runtime = runtime
        self._catalog = runtime.catalog
        self._budget = budget
        self._owner = owner
        self._opened: CatalogSync | None = None
        """`sync`, already from the beginning of the first reading on."""

    async def open(self, client: Client) -> CatalogSync:
        """Read the lists of a new connection for the first time. Returns what keeps them up to date.

        Raises:
            LinkLost: the connection ended meanwhile; NothingListed if the server refuses all lists.
        """
        runtime, server, negotiated = self._runtime, self.source.server, client.negotiated
        if negotiated.unreadable:
            text = f"its instructions are left out because clients could not parse them: {LONE_SURROGATE}"
            runtime.journal.note(EntryOmitted(server, text, "instructions"))
        await runtime.gate.definitions.observe_instructions(self.source, negotiated.instructions)
        sync = self._opened = CatalogSync(client, self.source, runtime, self._budget, self._owner, self.remembered.mark)
        await sync.read_all()
        if client.peer.ended.is_set():
            raise client.peer.lost
        sync.check_any_listed()
        sync.begin_serving()
        self.sync = sync
        return sync

    def end_sync(self) -> None:
        """End reading the lists, because the connection ends."""
        self.sync = self._opened = None

    def close(self) -> None:
        """`end_sync`, and drop the hints of how long the lists stay fresh: changes are not heard of any more."""
        self.end_sync()
        for kind in Kind:
            self._catalog.expire_hint(self.source, kind)

    def on_announced(self, kinds: list[Kind]) -> None:
        """Have lists read again whose changes the server announces."""
        if self._opened is not None:
            self._opened.mark_changed(kinds)

    async def recall(self, spec: ServerSpec, take: Callable[[NegotiatedServer], None]) -> bool:
        """Publish what is remembered, until the server lists by itself. Returns whether there is any. A list takes the
        road of one that the server sends, except that nothing is stored, reported or approved by that.

        Args:
            take: called with what is remembered of the negotiation, before any list is published.
        """
        found = await self.remembered.load(spec, self.source)
        if found is None:
            return False
        source = self.source.in_era(found.negotiated.era)
        definitions, instructions = self._runtime.gate.definitions, found.negotiated.instructions
        await definitions.observe_instructions(source, instructions, remembered=True)
        take(found.negotiated)
        for kind, listed in found.lists.items():
            hint = FreshnessHint(STALE, trio.current_time())
            await publish_list(
                self._runtime,
                source,
                kind,
                listed,
                hint,
                lambda: None,
                self._owner,
                remembered=True,
            )
        return True

    def tool(self, name: str) -> Entry | None:
        """Look a tool up by its inward name."""
        return self._catalog.entry(EntryRef(self.source, Kind.TOOL, name))

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
