"""Pins: the definitions of each server that a person, or the server's trust level, has approved, and those that are
held.

A pinned item is a tool, prompt, resource, template, a server's instructions, or its launch identity. It is identified
by its fingerprint. An item may be listed and used only if it is offered exactly as it was last approved; restarting the
server, omitting an item for a while, or another order changes nothing.

A server may offer an item from several sources, such as with a handshake and stateless, and differently. These are
pinned apart, so that a change of one holds only that one. People see and decide about all of them at once: what they
approve from one source is approved from the others too.

This module decides and remembers, in a store that several hosts share. It has no user interface, and does not interpret
definitions.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

import msgspec
import trio
from msgspec import Struct

from config import Trust
from host.jsonrpc.withheld import Withheld
from host.policy.fingerprint import Launch, fingerprint
from host.policy.pin_rules import (
    KINDS,
    Items,
    ListKey,
    Offer,
    Pinnable,
    PinnedKind,
    PinStatus,
    column_of,
    columns_of,
    definitions_by_era,
    has_secret,
    is_vouched,
    items_after,
    launch_in,
    list_in,
    newest,
    offer_of,
    offers_of,
    status_of,
)
from host.policy.word_order import is_reordered
from host.slices import pause
from host.source import Aspect, Source, launch_ref
from host.storage.sql import Store, Transaction
from host.storage.store import (
    ApprovedDefinition,
    OfferedDefinition,
    Revisions,
    StateError,
    StoredDefinitions,
    StoredItem,
)
from host.subject import Item

_NOTHING: Mapping[Any, Any] = {}
_NO_ITEMS: dict[str, StoredItem] = {}


REPEATS_SECRET = (
    "repeats a secret that its server was given, so it cannot be approved as it is: have the server corrected, and "
    "change the secret"
)

MOST_COMPARED = 100
"""Changed definitions of one reading whose order is compared; of the others it is not said that only that differs."""


class StaleDecision(Exception):
    """The item to decide about is not offered any more, differs from the one shown, or cannot be approved. The text is
    a sentence."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change to report. `status` is its result; `first`: the item was never seen before; `was`: fingerprint of the
    former offer, None if there was none. `reordered`: it is held, and only its order differs from the approved one."""

    item: Item
    status: PinStatus
    first: bool
    fingerprint: str
    was: str | None
    reordered: bool = False


class HeldItem(Struct, frozen=True):
    """An item that waits for a person. `offered` and `approved` are definitions as JSON text, `since` is Unix time. If
    it waits from several sources, with different definitions, they are objects with a member for each source."""

    item: Item
    status: PinStatus
    fingerprint: str
    offered: bytes
    approved: bytes | None
    since: float
    rejected: bool

    @property
    def problem(self) -> str:
        """The reason why it cannot be approved, in words; empty if it can."""
        return _problem(self.item, self.offered)


class ListedItem(Struct, frozen=True):
    """An item as it is offered now, or was last. `by`: who approved it, as in `Pinned`; empty if it is held."""

    item: Item
    status: PinStatus
    fingerprint: str
    offered: bytes
    by: str
    is_vouched: bool
    """Whether a person approved it, or fully trusts its server: what it claims counts."""

    @property
    def problem(self) -> str:
        """As of `HeldItem`."""
        return _problem(self.item, self.offered)


class Pinned(Struct, frozen=True):
    """An approved definition: when (Unix time), and by whom: a BY_ word or the `by` of `approve`."""

    item: Item
    fingerprint: str
    definition: bytes | None
    at: float
    by: str


_Stored = TypeVar("_Stored", ApprovedDefinition | None, OfferedDefinition | None)
_Servers = dict[str, dict[ListKey, Items]]
_Changed = dict[ListKey, dict[str, StoredItem]]
"""Items to store, by list and name."""
_Expected = dict[tuple[ListKey, str], StoredItem | None]
"""Stored items by list and name."""
_Decide = Callable[[Mapping[ListKey, Items]], _Changed]
"""Computes the items of a server, by list, as a person's decision leaves them. Raises StaleDecision."""


class _Plan(Struct, frozen=True):
    """Items to store, None for one to remove, and the stored items that they are based on.

    Attributes:
        is_current: whether what is stored is otherwise as it was, too.
        closes: the approvals were lost, and this replaces them: of these servers, nothing unknown is approved without a
            person.
    """

    changed: Mapping[ListKey, Mapping[str, StoredItem | None]]
    expected: _Expected
    is_current: Callable[[Transaction], bool] = lambda transaction: True
    closes: frozenset[str] | None = None


class PreparedPins(Struct, frozen=True):
    """The items of one kind that a source lists, compared with what is stored: see `Pins.prepare` and `Pins.commit`."""

    key: ListKey
    offered: Mapping[str, bytes]
    trust: Trust
    before: dict[str, Offer] | None
    """The former offers; None if there were none in this process."""
    offers: dict[str, Offer]
    items: Items
    """The stored items of the list."""
    changes: list[Change]
    problem: str | None
    """The reason why new items could not be stored."""
    lost: str | None
    remembered: bool = False
    has_additions: bool = False
    """Whether an item is offered that is not among the former offers."""

    def status(self, name: str) -> PinStatus:
        """Status of an offered item after the commit."""
        return status_of(self.items.get(name), self.offers.get(name), self.trust, lost=self.lost is not None)

    def is_vouched(self, name: str) -> bool:
        """`Pins.is_vouched` after the commit."""
        return is_vouched(self.status(name), self.items.get(name), self.trust)


_UNTRUSTED = Trust.UNTRUSTED  # for speed; see RESOURCE in protocol/methods.py


class Pins:
    """The pins of the servers of one configuration.

    Args:
        trusts: trust level by server; a server without one is untrusted.
        found: all definitions of the store; None to read them here, for which the thread waits.
        on_lost: called with the reason when the approvals turn out to be lost.
        wall: clock with Unix time.
    """

    def __init__(
        self,
        store: Store,
        trusts: Mapping[str, Trust],
        found: StoredDefinitions | None = None,
        *,
        on_lost: Callable[[str], object] = lambda why: None,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._db = store
        self._on_lost = on_lost
        self._trusts = dict(trusts)
        self._wall = wall
        self._servers: _Servers = {}
        """The stored items by server and list, as of `_revision`."""
        self._lists: dict[tuple[str, str], list[ListKey]] = {}
        """The known lists by server and kind, those of a session first."""
        self._closed_servers: frozenset[str] = frozenset()
        self._unconfined: Mapping[str, bool] = {}
        """As in `StoredDefinitions`."""
        self._lost: str | None = None
        """The reason why nothing is approved; None if the approvals are known."""
        self.changes = 0
        """Number of changes of what statuses depend on: while it is the same, each status is."""
        self._revision = 0
        self._now: dict[ListKey, dict[str, Offer]] = {}
        self._remembered: set[ListKey] = set()
        """Lists whose offers are those of an earlier process."""
        self._raws: dict[ListKey, Mapping[str, bytes]] = {}
        """Definitions of the last complete comparison under the present trust level."""
        self._first: dict[ListKey, Items] = {}
        """Stored items of a list when this process first saw it, until it is committed."""
        self._moved: set[str] = set()
        self._unwritten: dict[ListKey, str] = {}
        """By list, the reason why new offers are not stored; nobody can decide about them until they are."""
        self._unstored_holds: dict[Item, tuple[_Decide, _Plan | None]] = {}
        """Rejections and revocations that hold in memory only."""
        self._unstored: str | None = None
        """The reason why they are not stored."""
        found = found or store.load_definitions()
        self._accept(found)
        self._set_lost(found.lost)

    @property
    def revision(self) -> int:
        """The revision of the stored definitions that are known here."""
        return self._revision

    @property
    def problem(self) -> str | None:
        """A sentence for people if the approvals are lost (nothing is approved), or if new items cannot be stored (they
        are held)."""
        return self._lost or next(iter(self._unwritten.values()), None) or self._unstored

    def set_trust_levels(self, trusts: Mapping[str, Trust]) -> None:
        """Put these trust levels into effect. The next `observe` approves what they approve without a person."""
        self._trusts = dict(trusts)
        self.changes += 1
        self._raws.clear()

    # Looking up

    def status(self, ref: Pinnable) -> PinStatus:
        """Status of an item. An item that is not offered at the moment keeps its status."""
        return self._status((ref.source, ref.kind), ref.name)

    def _status(self, key: ListKey, name: str) -> PinStatus:
        server = key[0].server
        offer = self._now.get(key, _NOTHING).get(name)
        item = self._servers.get(server, _NOTHING).get(key, _NOTHING).get(name)
        trust = self._trusts.get(server, _UNTRUSTED)
        return status_of(item, offer, trust, lost=self._lost is not None)

    def is_vouched(self, ref: Pinnable) -> bool:
        """Whether a person approved the item as it is offered, or fully trusts its server."""
        item = self._item((ref.source, ref.kind), ref.name)
        return is_vouched(self.status(ref), item, self._trust(ref.source.server))

    def approver(self, ref: Pinnable) -> str:
        """Who approved the item as it is offered, as in `Pinned`; empty if nobody did."""
        item = self._item((ref.source, ref.kind), ref.name)
        if item is None or item.approved is None or self.status(ref) is not PinStatus.APPROVED:
            return ""
        return item.approved.by

    def approved_definition(self, ref: Pinnable) -> bytes | None:
        """The approved definition as the server wrote it; None if there is none, or it was too long to keep."""
        item = self._item((ref.source, ref.kind), ref.name)
        return None if item is None or item.approved is None else item.approved.definition

    def fingerprint(self, ref: Pinnable) -> str | None:
        """Fingerprint of the present offer; None if the item is not offered."""
        offer = self._now.get((ref.source, ref.kind), _NOTHING).get(ref.name)
        return None if offer is None else offer.fingerprint

    def offered_definition(self, ref: Pinnable) -> bytes | None:
        """The present offer as the server wrote it; None if the item is not offered."""
        offer = self._now.get((ref.source, ref.kind), _NOTHING).get(ref.name)
        return None if offer is None else offer.raw

    def sources(self, server: str, *kinds: PinnedKind) -> list[Source]:
        """The sources that offer or offered items of these kinds, those of a session first."""
        return sorted({source for kind in kinds for source, _ in self._lists.get((server, kind), ())}, key=_order)

    def approved_names(self, source: Source, kind: PinnedKind) -> Iterator[str]:
        """Names of the approved items of one kind, from any source of the same server and login, offered or not."""
        for key in self._lists.get((source.server, kind), ()):
            if key[0].owner == source.owner:
                yield from (name for name in self._items(key) if self._status(key, name) is PinStatus.APPROVED)

    def launch(self, server: str) -> str:
        """Digest of the server's launch identity as last observed; empty if it was not observed."""
        return self.fingerprint(launch_ref(server)) or ""

    def held(self) -> list[HeldItem]:
        """All items that wait for a person and can be decided about."""
        return list(filter(None, self.iter_held()))

    def iter_held(self) -> Iterator[HeldItem | None]:
        """Like `held`, one by one, with None for each item that does not wait. An item is one for people, from
        whatever sources with the same login it waits."""
        servers = dict.fromkeys([*self._servers, *(source.server for source, _ in self._now)])
        for server, kind in [(server, kind) for server in servers for kind in KINDS]:
            for name in self.names(server, kind):
                waiting = self._held_lists(Item(server, kind, name))
                yield from map(_as_one, waiting) if waiting else (None,)

    def iter_listed(self, server: str) -> Iterator[ListedItem | None]:
        """The definitions that a server offers, one by one, with a None for each name: held items as `iter_held` has
        them, and approved ones, once for each definition with which they are offered. A launch identity only if it is
        held."""
        for kind in KINDS:
            for name in self.names(server, kind):
                yield None
                item = Item(server, kind, name)
                held = [_as_one(each) for each in self._held_lists(item)]
                yield from (
                    ListedItem(item, each.status, each.fingerprint, each.offered, "", is_vouched=False) for each in held
                )
                if kind is not Aspect.LAUNCH:
                    yield from {each.fingerprint: each for each in self._approved_items(item)}.values()

    def _approved_items(self, item: Item) -> Iterator[ListedItem]:
        for key in self._lists.get((item.server, item.kind), ()):
            stored, now = self._item(key, item.name), self._now.get(key)
            offer = self._offer(key, item.name, stored)
            if offer is None or (now is not None and item.name not in now):
                continue
            trust = self._trust(item.server)
            status = status_of(stored, offer, trust, lost=self._lost is not None)
            if status is PinStatus.APPROVED:
                by = "" if stored is None or stored.approved is None else stored.approved.by
                yield ListedItem(item, status, offer.fingerprint, offer.raw, by, is_vouched(status, stored, trust))

    def _known_names(self, key: ListKey) -> Iterable[str]:
        return {**self._items(key), **self._now.get(key, {})}

    def _held_lists(self, item: Item) -> list[dict[ListKey, HeldItem]]:
        """The item as it waits from each source; together from those with the same login, which a person sees as
        one."""
        found: dict[str, dict[ListKey, HeldItem]] = {}
        for key in self._lists.get((item.server, item.kind), ()):
            if (held := self._held_from(key, item)) is not None:
                found.setdefault(key[0].owner, {})[key] = held
        return list(found.values())

    def _held_from(self, key: ListKey, item: Item) -> HeldItem | None:
        standing = self._status(key, item.name)
        if standing in (PinStatus.APPROVED, PinStatus.UNKNOWN):
            return None
        stored = self._item(key, item.name)
        offer = self._offer(key, item.name, stored)
        if offer is None or (stored is None and self._lost is None):
            return None
        stored = stored or StoredItem()
        changed = standing is PinStatus.CHANGED and stored.approved is not None
        approved = stored.approved.definition if changed and stored.approved is not None else None
        since = self._wall() if stored.offered is None else stored.offered.since
        rejected = stored.rejected == offer.fingerprint
        return HeldItem(item, standing, offer.fingerprint, offer.raw, approved, since, rejected)

    def held_names(self, source: Source, kind: PinnedKind) -> list[str]:
        """Names of a source's held items of one kind."""
        key, open_ones = (source, kind), (PinStatus.APPROVED, PinStatus.UNKNOWN)
        return [name for name in self._known_names(key) if self._status(key, name) not in open_ones]

    def names(self, server: str, kind: PinnedKind) -> dict[str, None]:
        """Names of all known items of one kind, from any source: of those offered at the moment, and of the stored
        ones."""
        return {name: None for key in self._lists.get((server, kind), ()) for name in self._known_names(key)}

    def pinned(self) -> list[Pinned]:
        """All stored approvals, whether offered or not."""
        return [
            Pinned(Item(server, kind, name), pin.fingerprint, pin.definition, pin.at, pin.by)
            for server, lists in self._servers.items()
            for (_, kind), items in lists.items()
            for name, item in items.items()
            if (pin := item.approved) is not None
        ]

    # What servers offer

    async def observe(
        self, source: Source, kind: PinnedKind, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> list[Change]:
        """Prepare and commit a list: for short lists, and for launch identities."""
        while True:
            changes = self.commit(await self.prepare(source, kind, offered, remembered=remembered))
            if changes is not None:
                return changes

    async def prepare(
        self, source: Source, kind: PinnedKind, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> PreparedPins:
        """Compare all that a source offers of one kind, JSON text by name, with the approvals, and store what is new.
        No offer takes effect before `commit`.

        Stores at most once, and nothing if nothing is new. An item that cannot be stored is not approved without a
        person: a definition must be known after a crash, or a changed one would pass as the first.

        Args:
            remembered: the server offered this before the host was started. Nothing is stored or reported, so nothing
                is approved that was not approved before.
        """
        offered = dict(offered)
        await self._refresh()
        key: ListKey = (source, kind)
        before = self._now.get(key)
        trust, lost = self._trust(source.server), self._lost
        items = known = self._items(key)
        if before is not None and (kept := self._raws.get(key)) == offered:
            return PreparedPins(key, kept, trust, before, before, items, [], None, lost)
        seen = None if key in self._remembered else before
        if seen is None:
            known = self._first.setdefault(key, items)
        offers = await offers_of(kind, offered, before or {}, items)
        offered = {name: offer.raw for name, offer in offers.items()}  # the equal bytes that are kept already
        if remembered:
            offers = {name: newest(kind, offer, items.get(name)) for name, offer in offers.items()}
            return PreparedPins(key, offered, trust, before, offers, items, [], None, lost, remembered=True)
        problem = None
        if lost is None:
            try:
                await self._store_offers(key, offers)
            except StateError as error:
                problem = f"{error}; new offers of servers are held back"
        items = self._items(key)
        adds = before is not None and not before.keys() >= offers.keys()
        reading = PreparedPins(key, offered, trust, before, offers, items, [], problem, lost, has_additions=adds)
        compared = 0
        for name, offer in offers.items():
            await pause()
            item, old = known.get(name), None if seen is None else seen.get(name)
            was = old.fingerprint if old is not None else None if item is None else item.last
            status = reading.status(name)
            former_status = status_of(item, old, trust, lost=lost is not None)
            if was != offer.fingerprint or former_status not in (status, PinStatus.UNKNOWN):
                seen_as, pin = Item(source.server, kind, name), items[name].approved if name in items else None
                reordered = False
                if status is PinStatus.CHANGED and pin is not None and compared < MOST_COMPARED:
                    compared += 1
                    reordered = kind is not Aspect.LAUNCH and is_reordered(pin.definition, offer.raw)
                reading.changes.append(Change(seen_as, status, was is None, offer.fingerprint, was, reordered))
        return reading

    async def _store_offers(self, key: ListKey, offers: Mapping[str, Offer]) -> None:
        """Store the offers that are not stored.

        Raises:
            StateError: they cannot be stored.
        """
        server = key[0].server
        while True:
            revision, lists, is_closed = self._revision, self._servers.get(server, {}), server in self._closed_servers
            changed = await items_after(key, offers, lists, self._trust(server), self._wall(), is_closed=is_closed)

            def is_current(transaction: Transaction, since: int = revision) -> bool:
                return not any(transaction.changed_since(since, server, column) for column in columns_of(key))

            if not changed or await self._store(_Plan({key: changed}, {}, is_current)):
                return
            await self._refresh()

    def commit(self, reading: PreparedPins) -> list[Change] | None:
        """Put a prepared list into effect and return its changes. None if a decision or another process changed the
        items since `prepare`: the list must be prepared again. Short, whatever the length of the list."""
        key = reading.key
        same_ground = self._trust(key[0].server) is reading.trust and self._lost == reading.lost
        if not (self._items(key) is reading.items and same_ground and self._now.get(key) is reading.before):
            return None
        self._now[key] = reading.offers
        self.changes += 1
        self._index(key)
        if reading.remembered:
            self._remembered.add(key)
            return []
        self._remembered.discard(key)
        self._first.pop(key, None)
        if reading.lost is None and reading.offers is not reading.before:
            if reading.problem is None:
                self._unwritten.pop(key, None)
            else:
                self._unwritten[key] = reading.problem
        if self.problem is None:
            self._raws[key] = reading.offered
        else:
            self._raws.pop(key, None)
        return reading.changes

    async def observe_launch(self, server: str, launch: Launch) -> list[Change]:
        """Record the launch identity from which a server would be started.

        The owner's configuration counts as approved, and so does the first program that its command resolves to.
        Another program for the same configuration is a change. While the command resolves to no file, nothing changes,
        and the server cannot be started.
        """
        await self._refresh()
        ref = launch_ref(server)
        key: ListKey = (ref.source, ref.kind)
        offer = self._offer(key, ref.name, self._item(key, ref.name))
        last = None if offer is None else launch_in(offer.raw)
        if last is not None and launch.program is None and last.declared == launch.declared:
            launch = last
        # Not msgspec: the name of a file may not be valid UTF-8.
        parts = {"declared": launch.declared, "program": launch.program}
        # Without what is empty, a launch is as it was approved when there was no such member.
        more = {"sandbox": launch.sandbox, "installs": launch.installs, "installed": launch.installed}
        written = json.dumps(parts | {name: text for name, text in more.items() if text}, sort_keys=True)
        return await self.observe(*key, {ref.name: written.encode("ascii")})

    def is_kept_unconfined(self, server: str, declared: str) -> bool | None:
        """Whether a person chose that the program of a server stays unconfined, as it was before untrusted ones were
        confined; False: nobody has chosen yet. None if it was not approved then, or is another launch by now."""
        ref = launch_ref(server)
        item = self._item((ref.source, ref.kind), ref.name)
        approved = None if item is None else item.approved
        if server not in self._unconfined or approved is None or approved.definition is None:
            return None
        launch = launch_in(approved.definition)
        return self._unconfined[server] if launch.declared == declared and not launch.sandbox else None

    async def set_unconfined(self, server: str, chosen: bool | None) -> None:
        """Store what a person chose; None: the server is confined from now on, or what it was before does not matter
        any more.

        Raises:
            StateError: it cannot be stored; nothing changed.
        """
        if self._lost is None and self._unconfined.get(server) is not chosen:
            await self._db.write(lambda transaction: transaction.put_unconfined(server, chosen))
            await self._refresh()

    async def reread(self) -> set[str]:
        """The servers whose items have changed since the last call, because another process decided about them or the
        store became unreliable. Costs next to nothing otherwise."""
        await self._refresh()
        await self._store_unwritten()
        await self._store_holds()
        moved, self._moved = self._moved, set()
        return moved

    async def _store_unwritten(self) -> None:
        """Store offers that could not be stored when they were made."""
        for key in list(self._unwritten):
            before, offers = dict(self._servers), self._now.get(key, {})
            if self._lost is None:
                try:
                    await self._store_offers(key, offers)
                except StateError:
                    return
            if self._now.get(key) is offers:
                self._unwritten.pop(key, None)
            await self._compare(key, offers, before, was_lost=False)

    async def withhold(self, server: str, withheld: Withheld) -> None:
        """Replace these texts in the stored definitions of a server. Their fingerprints stay, so no other definition
        gets approved.

        Raises:
            StateError: it cannot be stored; nothing changed.
        """

        def decide(lists: Mapping[ListKey, Items]) -> _Changed:
            changed: _Changed = {}
            for key, items in lists.items():
                for name, item in items.items():
                    cleaned = msgspec.structs.replace(
                        item, approved=_without(item.approved, withheld), offered=_without(item.offered, withheld)
                    )
                    if cleaned != item:
                        changed.setdefault(key, {})[name] = cleaned
            return changed

        if self._lost is None and decide(self._servers.get(server, {})):
            await self._decide(server, decide)

    # What people decide

    async def approve(self, item: Item, fingerprint: str, by: str) -> None:
        """Approve a definition, which must be the offered one.

        Raises:
            StaleDecision: it is not the offered one, it was too large to keep, or a secret was withheld in it.
            StateError: it cannot be stored; nothing changed.
        """
        await self.approve_all(item.server, [(item, fingerprint)], by)

    async def approve_all(self, server: str, shown: Sequence[tuple[Item, str]], by: str) -> None:
        """Approve several items of a server, each with the fingerprint that was shown, or none of them."""

        def decide(lists: Mapping[ListKey, Items]) -> _Changed:
            changed: _Changed = {}
            for item, shown_fingerprint in shown:
                for key, offer in self._shown(item, lists, shown_fingerprint).items():
                    if offer.has_secret:
                        raise StaleDecision(f"{_named(item)} {REPEATS_SECRET}")
                    approved = ApprovedDefinition(offer.fingerprint, offer.raw, self._wall(), by)
                    changed.setdefault(key, {})[item.name] = StoredItem(approved=approved)
            return changed

        await self._decide(server, decide)
        for item, _ in shown:
            self._unstored_holds.pop(item, None)

    async def reject(self, item: Item, fingerprint: str, on_held: Callable[[], object] = lambda: None) -> None:
        """Reject the definition: it stays held, and only full trust lifts that. It is held in this process at once;
        then `on_held` is called, and the rejection stored.

        Raises:
            StaleDecision: it is not the offered one, was too large to keep, or is the approved one.
            StateError: it cannot be stored: it holds in this process only, until the process ends.
        """

        def decide(lists: Mapping[ListKey, Items]) -> _Changed:
            changed: _Changed = {}
            for key, offer in self._shown(item, lists, fingerprint).items():
                stored = lists.get(key, {}).get(item.name) or StoredItem()
                shown, approved, offered = offer.fingerprint, stored.approved, stored.offered
                if approved is not None and approved.fingerprint == shown:
                    if self._status(key, item.name) is PinStatus.APPROVED:
                        text = f"{_named(item)} is approved as it is: take that back instead"
                        raise StaleDecision(text)
                    approved = None  # approved by trust, not by a person
                if offered is None or offered.fingerprint != shown:
                    offered = OfferedDefinition(shown, offer.raw, self._wall())
                held = StoredItem(approved=approved, offered=offered, rejected=shown, closed=True)
                changed[key] = {item.name: held}
            return changed

        await self._hold(item, decide, on_held)

    async def revoke(self, item: Item, on_held: Callable[[], object] = lambda: None) -> None:
        """Revoke an approval: the item is new again, and a person must approve it, also on a standard server. It is
        held in this process at once; then `on_held` is called, and the revocation stored.

        Raises:
            StaleDecision: no item of that name is approved.
            StateError: as for `reject`.
        """

        def decide(lists: Mapping[ListKey, Items]) -> _Changed:
            changed: _Changed = {}
            for key in self._lists.get((item.server, item.kind), ()):
                stored = lists.get(key, {}).get(item.name)
                if stored is not None and (pin := stored.approved) is not None:
                    offered = stored.offered or OfferedDefinition(pin.fingerprint, pin.definition, self._wall())
                    changed[key] = {item.name: StoredItem(offered=offered, rejected=stored.rejected, closed=True)}
            if not changed:
                raise StaleDecision(f"{_named(item)} is not approved")
            return changed

        await self._hold(item, decide, on_held)

    def _shown(self, item: Item, lists: Mapping[ListKey, Items], fingerprint: str) -> dict[ListKey, Offer]:
        """The present offers that were shown; raises StaleDecision if what was shown is not offered now."""
        known = self._lists.get((item.server, item.kind), ())
        stored = {key: lists.get(key, {}).get(item.name) for key in known}
        found = {key: self._offer(key, item.name, each) for key, each in stored.items() if each is not None}
        offers = {key: offer for key, offer in found.items() if offer is not None}
        if not offers:
            raise StaleDecision(f"{_named(item)} is not offered, or more is offered than is kept")
        if held := [each for each in self._held_lists(item) if _as_one(each).fingerprint == fingerprint]:
            return {key: offers[key] for waiting in held for key in waiting if key in offers}
        offers = {key: offer for key, offer in offers.items() if offer.fingerprint == fingerprint}
        if not offers:
            raise StaleDecision(f"{_named(item)} has changed since it was shown: look at it again")
        return offers

    async def _hold(self, item: Item, decide: _Decide, on_held: Callable[[], object]) -> None:
        """A decision that holds in this process before it is stored, and also if it cannot be."""
        plan = None
        if self._lost is None:
            with suppress(StaleDecision):  # a first answer from memory, before the store is read again
                plan = self._plan(item.server, decide)
                self._apply(plan)
        on_held()
        try:
            await self._decide(item.server, decide, plan, at_once=True)
        except StateError as problem:
            self._unstored_holds[item] = decide, plan
            self._unstored = f"{problem}; what was rejected or revoked is not stored, so another host may allow it"
            raise

    async def _store_holds(self) -> None:
        """Store the rejections and revocations that could not be stored when they were made."""
        for item, (decide, plan) in list(self._unstored_holds.items()):
            try:
                await self._decide(item.server, decide, plan, at_once=True)
            except StateError:
                return
            except StaleDecision:
                pass  # the stored or the offered definition of now holds the item anyway
            self._unstored_holds.pop(item, None)
        self._unstored = None

    async def _decide(self, server: str, decide: _Decide, plan: _Plan | None = None, *, at_once: bool = False) -> None:
        """Store what a person decides; decide again if the stored items have changed meanwhile.

        Args:
            plan: the decision from memory, which is tried first.
            at_once: whether a decision holds in this process before it is stored.
        """
        is_stored = False
        while not is_stored:
            if plan is None:
                await self._refresh()
                plan = self._plan(server, decide) if self._lost is None else await self._plan_mending(server, decide)
                if at_once and plan.closes is None:
                    self._apply(plan)
            is_stored, plan = await self._store(plan), None
        await self._refresh()
        await self._store_unwritten()

    def _plan(self, server: str, decide: _Decide) -> _Plan:
        lists = self._servers.get(server, {})
        changed = decide(lists)
        expected = {(key, name): lists.get(key, {}).get(name) for key, items in changed.items() for name in items}
        return _Plan(changed, expected)

    async def _plan_mending(self, server: str, decide: _Decide) -> _Plan:
        """Replace lost approvals: every offered item must be decided about, and `decide` is the first decision."""
        revision = self._revision
        closes = frozenset([*self._trusts, *(source.server for source, _ in self._now)])
        lists: dict[ListKey, dict[str, StoredItem | None]] = {}
        for key, offers in list(self._now.items()):
            each = key[0].server
            lists[key] = await items_after(key, offers, {}, self._trust(each), self._wall(), is_closed=each in closes)
        known = {
            key: {name: item for name, item in items.items() if item is not None}
            for key, items in lists.items()
            if key[0].server == server
        }
        for key, decided in decide(known).items():
            lists.setdefault(key, {}).update(decided)
        return _Plan(lists, {}, lambda transaction: transaction.revision() == revision, closes)

    async def _store(self, plan: _Plan) -> bool:
        """Store the plan; False if the stored items are not those that it is based on."""

        def change(transaction: Transaction) -> tuple[_Expected | None, int]:
            began = transaction.revision()
            stored = {(key, name): transaction.item(key[0].server, column_of(key), name) for key, name in plan.expected}
            if stored != plan.expected or not plan.is_current(transaction):
                return stored, began
            if plan.closes is not None:
                transaction.clear_lost()
                transaction.close_servers(plan.closes)
            for key, items in plan.changed.items():
                transaction.put_items(key[0].server, column_of(key), items)
            return None, began

        def on_commit(done: tuple[_Expected | None, int], revisions: Revisions) -> None:
            other, began = done
            if other is None and plan.closes is None:
                self._apply(plan)
                if began == self._revision:  # else other processes made changes before it, which are read next time
                    self._revision = revisions.definitions
            for (key, name), item in (other or {}).items():
                self._put(key, {name: item})

        is_stored = (await self._db.write(change, on_commit))[0] is None
        if is_stored and plan.closes is not None:
            self._raws.clear()  # the status of every offered item may have changed
        return is_stored

    # What is stored

    async def _refresh(self) -> None:
        """Read the changes of other processes. If the store is locked, a worker thread waits for it, and recovers what
        a killed process left. If it cannot be read, the last read items count, and decisions cannot be stored."""
        with suppress(StateError):
            found = await self._db.read_definitions(lambda: self._revision)
            if found is not None:
                await self._take(found)
        if self._db.problem is not None:
            await self._take_lost(self._db.problem)

    async def _take(self, found: StoredDefinitions) -> None:
        """Put the items that were read in the place of the known ones."""
        before = dict(self._servers)
        changed = self._accept(found)
        for held, (decide, _) in self._unstored_holds.items():
            with suppress(StaleDecision):
                self._apply(self._plan(held.server, decide))
        if found.complete or found.lost is not None or self._lost is not None:
            await self._take_lost(found.lost, before)
            return
        for key, items in changed.items():
            await self._compare(key, items, before, was_lost=False)

    def _accept(self, found: StoredDefinitions) -> dict[ListKey, Items]:
        """Put the items that were read in the place of the known ones, and return them by list."""
        self.changes += 1
        if found.complete:
            self._servers = {}
        self._revision, self._closed_servers = found.revision, found.closed_servers
        before, self._unconfined = self._unconfined, found.unconfined
        self._moved |= {server for server, _ in before.items() ^ found.unconfined.items()}
        changed = {key: items for row, items in found.items.items() if (key := list_in(*row)) is not None}
        for key, items in changed.items():
            self._put(key, items)
        return changed

    async def _take_lost(self, lost: str | None, before: _Servers | None = None) -> None:
        """Record the reason why nothing is approved, or (None) that the stored approvals count again."""
        was_lost, is_same = self._lost, before is None
        before = dict(self._servers) if before is None else before
        self._set_lost(lost)
        if self._lost == was_lost and is_same:
            return
        for key in [
            *(key for servers in (before, self._servers) for lists in servers.values() for key in lists),
            *self._now,
        ]:
            names = {
                **before.get(key[0].server, {}).get(key, {}),
                **self._items(key),
                **self._now.get(key, {}),
            }
            await self._compare(key, names, before, was_lost=was_lost is not None)

    def _set_lost(self, lost: str | None) -> None:
        was_lost = self._lost is not None
        if lost is not None:
            self._servers = {}
            if not (self._db.problem_ends and lost == self._db.problem):
                lost = f"{lost}; nothing is approved until a person approves something again"
        self._lost = lost
        self.changes += 1
        if lost is not None and not was_lost:
            self._on_lost(lost)

    async def _compare(self, key: ListKey, names: Iterable[str], before: _Servers, *, was_lost: bool) -> None:
        """Note the server as changed if the status of one of these items changed, or whether its claims count."""
        server = key[0].server
        if server in self._moved:
            return
        former, trust = before.get(server, {}).get(key, {}), self._trust(server)
        with trio.CancelScope(shield=True):  # what was read counts already, and nobody compares it again
            for name in names:
                await pause()
                offer = self._now.get(key, {}).get(name)
                item, old = self._item(key, name), former.get(name)
                was = status_of(old, offer, trust, lost=was_lost)
                now = status_of(item, offer, trust, lost=self._lost is not None)
                if was is not now or is_vouched(was, old, trust) is not is_vouched(now, item, trust):
                    self._moved.add(server)
                    return

    def _apply(self, plan: _Plan) -> None:
        for key, items in plan.changed.items():
            self._put(key, items)

    def _put(self, key: ListKey, changed: Mapping[str, StoredItem | None]) -> None:
        server, items = key[0].server, {**self._items(key), **changed}
        kept = {name: item for name, item in items.items() if item is not None}
        self._servers[server] = {**self._servers.get(server, {}), key: kept}
        self.changes += 1
        self._index(key)

    def _index(self, key: ListKey) -> None:
        source, kind = key
        known = self._lists.setdefault((source.server, kind), [])
        if key not in known:
            known.append(key)
            known.sort(key=lambda each: _order(each[0]))

    def _trust(self, server: str) -> Trust:
        return self._trusts.get(server, Trust.UNTRUSTED)

    def _items(self, key: ListKey) -> Items:
        return self._servers.get(key[0].server, _NOTHING).get(key, _NO_ITEMS)

    def _item(self, key: ListKey, name: str) -> StoredItem | None:
        return self._items(key).get(name)

    def _offer(self, key: ListKey, name: str, item: StoredItem | None) -> Offer | None:
        """The present offer in this process, or the stored one; None if its definition was not kept."""
        live = self._now.get(key, {}).get(name)
        stored = None if item is None else item.offered or item.approved
        if live is not None and (stored is None or stored.fingerprint != live.fingerprint):
            return live
        if stored is None or stored.definition is None:
            return None
        return live or offer_of(key[1], stored.definition, stored.fingerprint)


def _as_one(waiting: Mapping[ListKey, HeldItem]) -> HeldItem:
    """An item that waits, from one source or several, as a person sees it."""
    first = next(iter(waiting.values()))
    if len({(each.fingerprint, each.approved) for each in waiting.values()}) == 1:
        return first
    offered = definitions_by_era({key[0]: each.offered for key, each in waiting.items()})
    approved = {key[0]: each.approved for key, each in waiting.items() if each.approved is not None}
    return HeldItem(
        first.item,
        PinStatus.CHANGED if approved else PinStatus.NEW,
        fingerprint(offered),
        offered,
        definitions_by_era(approved) if approved else None,
        min(each.since for each in waiting.values()),
        all(each.rejected for each in waiting.values()),
    )


def _problem(item: Item, offered: bytes) -> str:
    return f"it {REPEATS_SECRET}" if has_secret(item.kind, offered) else ""


def _order(source: Source) -> tuple[str, str]:
    return source.era, source.owner


def _without(stored: _Stored, withheld: Withheld) -> _Stored:
    if stored is None or stored.definition is None:
        return stored
    before = stored.definition
    after = withheld.replaced(before) if withheld.may_be_in(before) else before
    return stored if after is before else msgspec.structs.replace(stored, definition=after)


def _named(item: Item) -> str:
    return f"{item.server}: {item.kind} {item.name!a}" if item.name else f"{item.server}: {item.kind}"
