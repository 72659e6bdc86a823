"""Reads a server's lists into the catalog: all at the start, and again whenever the server says that one changed.

A mark is synchronous and ten marks are one. Every page is walked to the end, within limits; what is cut off or cannot
be exported is left out whole and named in the journal.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable

import trio
from msgspec import Raw

from host.asking import BrokenAnswer, PeerError
from host.catalog import Catalog, Definition
from host.journal import Journal, LeftOut, sample
from host.jsonrpc.messages import METHOD_NOT_FOUND
from host.jsonrpc.raw import encode, items, members, one_line, string
from host.peer import Peer
from host.protocol.handshake import ServerOffer
from host.protocol.methods import LISTINGS, Kind, Listing
from host.upstream.backoff import Pace
from host.upstream.origin import Origin
from host.wire.link import LinkLost

MAX_PAGES = 100
MAX_ENTRIES = 10_000
MAX_DEFINITION = 1024 * 1024
MAX_SECONDS = 30.0
FIRST_AGAIN = 2.0
LAST_AGAIN = 60.0
"""Seconds until a list that could not be read is tried again: at first, and at the most."""


class Lister:
    """Keeps the lists of one connected server in the catalog."""

    def __init__(self, server: str, peer: Peer[Origin], offer: ServerOffer, catalog: Catalog, journal: Journal) -> None:
        self._server = server
        self._peer = peer
        self._offer = offer
        self._catalog = catalog
        self._journal = journal
        self._marked: set[Kind] = set()
        self._unread: set[Kind] = set()
        self._wake = trio.Event()
        self._pace = Pace()

    def mark(self, kinds: Iterable[Kind]) -> None:
        """These lists may have changed: they are read again soon."""
        self._marked.update(kind for kind in kinds if self._offer.offers(kind))
        if self._marked:
            self._wake.set()

    async def read_all(self) -> None:
        """Read every list once, side by side."""
        async with trio.open_nursery() as nursery:
            for kind in Kind:
                nursery.start_soon(self._refresh, kind)

    async def run(self) -> None:
        """Read again what was marked, and what could not be read, until cancelled."""
        last = trio.current_time()
        patience = FIRST_AGAIN
        while True:
            with trio.move_on_after(patience if self._unread else math.inf):
                await self._wake.wait()
            await trio.sleep(self._pace.next(trio.current_time() - last))
            self._wake = trio.Event()
            again, due = bool(self._unread), self._marked | self._unread
            self._marked, self._unread = set(), set()
            for kind in sorted(due, key=lambda kind: kind.value):
                await self._refresh(kind)
            patience = min(2 * patience, LAST_AGAIN) if again and self._unread else FIRST_AGAIN
            last = trio.current_time()

    async def _refresh(self, kind: Kind) -> None:
        """Publish what the server lists now. If it cannot be read, what was listed stays, and it is tried again."""
        if not await self._read(kind):
            self._unread.add(kind)

    async def _read(self, kind: Kind) -> bool:
        listing = LISTINGS[kind]
        if not self._offer.offers(kind):
            self._catalog.publish(self._server, kind, ())
            return True
        found: list[Raw] = []
        try:
            with trio.fail_after(MAX_SECONDS):
                await read_list(self._peer.request, listing, found, self._complain)
        except PeerError as refusal:
            if refusal.error.code != METHOD_NOT_FOUND:
                self._complain(f"{listing.method} failed: {sample(refusal.error.message)}")
                return False
        except (BrokenAnswer, ValueError) as problem:
            self._complain(f"{listing.method} gave no list: {problem}")
            return False
        except trio.TooSlowError:
            self._complain(f"{listing.method} took longer than {MAX_SECONDS:.0f} s; {len(found)} entries were read")
            if not found:
                return False
        except LinkLost as lost:
            if not self._peer.ended.is_set():  # over HTTP one exchange may break by itself
                self._complain(f"{listing.method} failed: {lost}")
            return False
        self._catalog.publish(self._server, kind, self._usable(listing, found))
        return True

    def _usable(self, listing: Listing, found: list[Raw]) -> list[Definition]:
        definitions: list[Definition] = []
        for raw in found:
            try:
                name = string(members(raw)[listing.key])
            except (ValueError, KeyError):
                self._complain(f"a {listing.kind.value} without a {listing.key} is left out: {sample(bytes(raw))}")
                continue
            if not name or len(raw) > MAX_DEFINITION:
                self._complain(f"the {listing.kind.value} {sample(name)!r} is left out: it has no name or is too long")
                continue
            definitions.append(Definition(name, one_line(bytes(raw))))
        named = Counter(definition.name for definition in definitions)
        for name, count in named.items():
            if count > 1:
                self._complain(f"{count} entries are called {sample(name)!r}; all of them are left out")
        return [definition for definition in definitions if named[definition.name] == 1]

    def _complain(self, what: str) -> None:
        self._journal.note(LeftOut(self._server, what))


Ask = Callable[[str, Raw | None], Awaitable[Raw]]
"""Sends a request with its params and gives the result."""


async def read_list(ask: Ask, listing: Listing, found: list[Raw], complain: Callable[[str], None]) -> None:
    """Append every definition of the list to `found`, page after page.

    Raises:
        ValueError: a page is not what the method must be answered with.
    """
    seen: set[bytes] = set()
    params: Raw | None = None
    for _ in range(MAX_PAGES):
        page = members(await ask(listing.method, params))
        found.extend(items(page[listing.member]) if listing.member in page else ())
        cursor = bytes(page.get("nextCursor", Raw(b"null")))
        # An empty cursor of a handshake server means the end, like a missing one.
        if cursor in (b"null", b'""'):
            return
        if cursor in seen:
            complain(f"{listing.method} gave the same cursor twice; reading stopped there")
            return
        if len(found) > MAX_ENTRIES:
            break
        seen.add(cursor)
        params = encode({"cursor": Raw(cursor)})
    complain(f"{listing.method} goes on after {MAX_PAGES} pages or {MAX_ENTRIES} entries; the rest is left out")
    del found[MAX_ENTRIES:]
