"""Pins: the definitions of each server that a person, or the server's trust level, has approved, and those that are
held.

A pinned item is a tool, prompt, resource, template, a server's instructions, or its launch identity. It is identified
by its fingerprint. An item may be listed and used only if it is offered exactly as it was last approved; restarting the
server, omitting an item for a while, or another order changes nothing.

A server may offer an item from several sources, such as with a handshake and stateless, and differently. These are
pinned apart, so that a change of one holds only that one. People see and decide about all of them at once: what they
approve from one source is approved from the others too.

This module decides and remembers, in a store that several hosts share. It has no user interface, and does not interpret
definitions. Functions that may have to wait for the store are steps (`host.slices`).
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, TypeVar

import msgspec

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
    as_bytes,
    column_of,
    columns_of,
    definitions_by_era,
    has_secret,
    items_after,
    launch_in,
    list_in,
    newest,
    offer_of,
    offers_of,
    status_of,
)
from host.slices import Steps, run_inline
from host.source import Source, launch_ref
from host.storage.store import (
    ApprovedDefinition,
    OfferedDefinition,
    Revisions,
    StateError,
    Store,
    StoredDefinitions,
    StoredItem,
    Transaction,
)
from host.subject import Item

_NOTHING: Mapping[Any, Any] = {}
_NO_ITEMS: dict[str, StoredItem] = {}


REPEATS_SECRET = (
    "repeats a secret that its server was given, so it cannot be approved as it is: have the server corrected, and "
    "change the secret"
)


class StaleDecision(Exception):
    """The item to decide about is not offered any more, differs from the one shown, or cannot be approved. The text is
    a sentence."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """A change to report. `status` is its result; `first`: the item was never seen before; `was`: fingerprint of the
    former offer, None if there was none."""

    item: Item
    status: PinStatus
    first: bool
    fingerprint: str
    was: str | None


@dataclass(frozen=True)
class HeldItem:
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
        return f"it {REPEATS_SECRET}" if has_secret(self.item.kind, self.offered) else ""


@dataclass(frozen=True)
class Pinned:
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
_Decide = Callable[[Mapping[ListKey, Items]], _Changed]
"""Computes the items of a server, by list, as a person's decision leaves them. Raises StaleDecision."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A decision to store, and the items that it is based on."""

    server: str
    changed: _Changed
    expected: dict[tuple[ListKey, str], StoredItem | None]
    """By list and name."""


@dataclass(frozen=True, slots=True)
class PreparedPins:
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


_UNTRUSTED = Trust.UNTRUSTED  # for speed; see RESOURCE in protocol/methods.py


class Pins:
    """The pins of the servers of one configuration.

    Args:
        store: where they are kept. The constructor reads it.
        trusts: trust level by server; a server without one is untrusted.
        on_lost: called with the reason when the approvals turn out to be lost.
        wall: clock with Unix time.
    """

    def __init__(
        self,
        store: Store,
        trusts: Mapping[str, Trust],
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
        self._lost: str | None = None
        """The reason why nothing is approved; None if the approvals are known."""
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
        run_inline(self._take(run_inline(store.read_definitions(0))))
        self._moved.clear()

    @property
    def problem(self) -> str | None:
        """A sentence for people if the approvals are lost (nothing is approved), or if new items cannot be stored (they
        are held)."""
        return self._lost or next(iter(self._unwritten.values()), None) or self._unstored

    def set_trust_levels(self, trusts: Mapping[str, Trust]) -> None:
        """Put these trust levels into effect. The next `observe` approves what they approve without a person."""
        self._trusts = dict(trusts)
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
        approved = as_bytes(stored.approved.definition) if changed and stored.approved is not None else None
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
            Pinned(Item(server, kind, name), pin.fingerprint, as_bytes(pin.definition), pin.at, pin.by)
            for server, lists in self._servers.items()
            for (_, kind), items in lists.items()
            for name, item in items.items()
            if (pin := item.approved) is not None
        ]

    # What servers offer

    def observe(
        self, source: Source, kind: PinnedKind, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> Steps[list[Change]]:
        """Prepare and commit a list: for short lists, and for launch identities."""
        while True:
            changes = self.commit((yield from self.prepare(source, kind, offered, remembered=remembered)))
            if changes is not None:
                return changes

    def prepare(
        self, source: Source, kind: PinnedKind, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> Steps[PreparedPins]:
        """Compare all that a source offers of one kind, JSON text by name, with the approvals, and store what is new.
        No offer takes effect before `commit`.

        Stores at most once, and nothing if nothing is new. An item that cannot be stored is not approved without a
        person: a definition must be known after a crash, or a changed one would pass as the first.

        Args:
            remembered: the server offered this before the host was started. Nothing is stored or reported, so nothing
                is approved that was not approved before.
        """
        offered = dict(offered)
        yield from self._refresh()
        key: ListKey = (source, kind)
        before = self._now.get(key)
        trust, lost = self._trust(source.server), self._lost
        items = known = self._items(key)
        if before is not None and self._raws.get(key) == offered:
            return PreparedPins(key, offered, trust, before, before, items, [], None, lost)
        seen = None if key in self._remembered else before
        if seen is None:
            known = self._first.setdefault(key, items)
        offers = yield from offers_of(kind, offered, before or {}, items)
        if remembered:
            offers = {name: newest(kind, offer, items.get(name)) for name, offer in offers.items()}
            return PreparedPins(key, offered, trust, before, offers, items, [], None, lost, remembered=True)
        problem = None
        if lost is None:
            try:
                while not (yield from self._store_offers(key, offers)):
                    yield from self._refresh()
            except StateError as error:
                problem = f"{error}; new offers of servers are held back"
        items = self._items(key)
        adds = before is not None and not before.keys() >= offers.keys()
        reading = PreparedPins(key, offered, trust, before, offers, items, [], problem, lost, has_additions=adds)
        for name, offer in offers.items():
            yield None
            item, old = known.get(name), None if seen is None else seen.get(name)
            was = old.fingerprint if old is not None else None if item is None else item.last
            status = reading.status(name)
            former_status = status_of(item, old, trust, lost=lost is not None)
            if was != offer.fingerprint or former_status not in (status, PinStatus.UNKNOWN):
                seen_as = Item(source.server, kind, name)
                reading.changes.append(Change(seen_as, status, was is None, offer.fingerprint, was))
        return reading

    def _store_offers(self, key: ListKey, offers: Mapping[str, Offer]) -> Steps[bool]:
        """Store the offers that are not stored; False if another process has changed the kind."""
        revision, server = self._revision, key[0].server
        lists, is_closed = self._servers.get(server, {}), server in self._closed_servers
        changed = yield from items_after(key, offers, lists, self._trust(server), self._wall(), is_closed=is_closed)
        if not changed:
            return True

        def change(transaction: Transaction) -> bool:
            if any(transaction.changed_since(revision, server, column) for column in columns_of(key)):
                return False
            transaction.put_items(server, column_of(key), changed)
            return True

        def on_commit(stored: bool, revisions: Revisions) -> None:
            if stored:
                self._put(key, changed)
                self._follow(revisions)

        return (yield from self._db.write(change, on_commit))

    def commit(self, reading: PreparedPins) -> list[Change] | None:
        """Put a prepared list into effect and return its changes. None if a decision or another process changed the
        items since `prepare`: the list must be prepared again. Short, whatever the length of the list."""
        key = reading.key
        same_ground = self._trust(key[0].server) is reading.trust and self._lost == reading.lost
        if not (self._items(key) is reading.items and same_ground and self._now.get(key) is reading.before):
            return None
        self._now[key] = reading.offers
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

    def observe_launch(self, server: str, launch: Launch) -> Steps[list[Change]]:
        """Record the launch identity from which a server would be started.

        The owner's configuration counts as approved, and so does the first program that its command resolves to.
        Another program for the same configuration is a change. While the command resolves to no file, nothing changes,
        and the server cannot be started.
        """
        yield from self._refresh()
        ref = launch_ref(server)
        key: ListKey = (ref.source, ref.kind)
        offer = self._offer(key, ref.name, self._item(key, ref.name))
        last = None if offer is None else launch_in(offer.raw.decode())
        if last is not None and launch.program is None and last.declared == launch.declared:
            launch = last
        # Not msgspec: the name of a file may not be valid UTF-8.
        written = json.dumps({"declared": launch.declared, "program": launch.program}, sort_keys=True)
        return (yield from self.observe(*key, {ref.name: written.encode("ascii")}))

    def reread(self) -> Steps[set[str]]:
        """The servers whose items have changed since the last call, because another process decided about them or the
        store became unreliable. Costs next to nothing otherwise."""
        yield from self._refresh()
        yield from self._store_unwritten()
        yield from self._store_holds()
        moved, self._moved = self._moved, set()
        return moved

    def _store_unwritten(self) -> Steps[None]:
        """Store offers that could not be stored when they were made."""
        for key in list(self._unwritten):
            before, offers = self._servers, self._now.get(key, {})
            if self._lost is None:
                try:
                    while not (yield from self._store_offers(key, offers)):
                        yield from self._refresh()
                except StateError:
                    return
            if self._now.get(key) is offers:
                self._unwritten.pop(key, None)
            yield from self._compare(key, offers, before, was_lost=False)

    def withhold(self, server: str, withheld: Withheld) -> Steps[None]:
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
            yield from self._carry_out(server, decide)

    # What people decide

    def approve(self, item: Item, fingerprint: str, by: str) -> Steps[None]:
        """Approve a definition, which must be the offered one.

        Raises:
            StaleDecision: it is not the offered one, it was too large to keep, or a secret was withheld in it.
            StateError: it cannot be stored; nothing changed.
        """
        yield from self.approve_all(item.server, [(item, fingerprint)], by)

    def approve_all(self, server: str, shown: Sequence[tuple[Item, str]], by: str) -> Steps[None]:
        """Approve several items of a server, each with the fingerprint that was shown, or none of them."""

        def decide(lists: Mapping[ListKey, Items]) -> _Changed:
            changed: _Changed = {}
            for item, shown_fingerprint in shown:
                for key, offer in self._shown(item, lists, shown_fingerprint).items():
                    if offer.has_secret:
                        raise StaleDecision(f"{_named(item)} {REPEATS_SECRET}")
                    approved = ApprovedDefinition(offer.fingerprint, offer.raw.decode(), self._wall(), by)
                    changed.setdefault(key, {})[item.name] = StoredItem(approved=approved)
            return changed

        yield from self._carry_out(server, decide)
        for item, _ in shown:
            self._unstored_holds.pop(item, None)

    def reject(self, item: Item, fingerprint: str) -> Steps[None]:
        """Reject the definition: it stays held, and only full trust lifts that. It is held in this process at once; the
        steps store the rejection.

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
                    offered = OfferedDefinition(shown, offer.raw.decode(), self._wall())
                held = StoredItem(approved=approved, offered=offered, rejected=shown, closed=True)
                changed[key] = {item.name: held}
            return changed

        return self._hold(item, decide)

    def revoke(self, item: Item) -> Steps[None]:
        """Revoke an approval: the item is new again, and a person must approve it, also on a standard server. It is
        held in this process at once; the steps store the revocation.

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

        return self._hold(item, decide)

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

    def _hold(self, item: Item, decide: _Decide) -> Steps[None]:
        plan = None
        if self._lost is None:
            with suppress(StaleDecision):  # a first answer from memory, before the store is read again
                plan = self._plan(item.server, decide)
                self._apply(plan)
        return self._store_hold(item, decide, plan)

    def _store_hold(self, item: Item, decide: _Decide, plan: _Plan | None) -> Steps[None]:
        try:
            yield from self._carry_out(item.server, decide, plan, at_once=True)
        except StateError as problem:
            self._unstored_holds[item] = decide, plan
            self._unstored = f"{problem}; what was rejected or revoked is not stored, so another host may allow it"
            raise

    def _store_holds(self) -> Steps[None]:
        """Store the rejections and revocations that could not be stored when they were made."""
        for item, (decide, plan) in list(self._unstored_holds.items()):
            try:
                yield from self._carry_out(item.server, decide, plan, at_once=True)
            except StateError:
                return
            except StaleDecision:
                pass  # the stored or the offered definition of now holds the item anyway
            self._unstored_holds.pop(item, None)
        self._unstored = None

    def _carry_out(
        self, server: str, decide: _Decide, plan: _Plan | None = None, *, at_once: bool = False
    ) -> Steps[None]:
        """Store the items that `decide` computes; compute again if the stored items have changed meanwhile. With
        `at_once`, the decision holds in this process before it is stored."""
        done = False
        while not done:
            if plan is None:
                yield from self._refresh()
                if self._lost is None:
                    plan = self._plan(server, decide)
                    if at_once:
                        self._apply(plan)
            done = yield from (self._mend(server, decide) if plan is None else self._store(plan))
            plan = None
        yield from self._refresh()
        yield from self._store_unwritten()

    def _plan(self, server: str, decide: _Decide) -> _Plan:
        lists = self._servers.get(server, {})
        changed = decide(lists)
        expected = {(key, name): lists.get(key, {}).get(name) for key, items in changed.items() for name in items}
        return _Plan(server, changed, expected)

    def _store(self, plan: _Plan) -> Steps[bool]:
        """Store the plan; False if the stored items are not those that it is based on."""

        def change(transaction: Transaction) -> dict[tuple[ListKey, str], StoredItem | None] | None:
            stored = {(key, name): transaction.item(plan.server, column_of(key), name) for key, name in plan.expected}
            if stored != plan.expected:
                return stored
            for key, items in plan.changed.items():
                transaction.put_items(plan.server, column_of(key), items)
            return None

        def on_commit(other: dict[tuple[ListKey, str], StoredItem | None] | None, revisions: Revisions) -> None:
            if other is None:
                self._apply(plan)
                self._follow(revisions)
            for (key, name), item in (other or {}).items():
                self._put(key, {name: item})

        return (yield from self._db.write(change, on_commit)) is None

    def _mend(self, server: str, decide: _Decide) -> Steps[bool]:
        """Replace lost approvals: every offered item must be decided about, and `decide` is the first decision."""
        revision = self._revision
        closed_servers = frozenset([*self._trusts, *(source.server for source, _ in self._now)])
        lists: dict[ListKey, dict[str, StoredItem | None]] = {}
        for key, offers in list(self._now.items()):
            each = key[0].server
            is_closed = each in closed_servers
            lists[key] = yield from items_after(key, offers, {}, self._trust(each), self._wall(), is_closed=is_closed)
        known = {
            key: {name: item for name, item in items.items() if item is not None}
            for key, items in lists.items()
            if key[0].server == server
        }
        for key, decided in decide(known).items():
            lists.setdefault(key, {}).update(decided)

        def change(transaction: Transaction) -> bool:
            if transaction.revision() != revision:
                return False
            transaction.clear_lost()
            transaction.close_servers(closed_servers)
            for key, items in lists.items():
                transaction.put_items(key[0].server, column_of(key), items)
            return True

        stored = yield from self._db.write(change)
        if stored:
            self._raws.clear()  # the status of every offered item may have changed
        return stored

    # What is stored

    def _refresh(self) -> Steps[None]:
        """Read the changes of other processes. If the store is locked, a worker thread waits for it, and recovers what
        a killed process left."""
        while self._db.problem is None:
            stored = self._db.poll().definitions
            was_current = self._db.is_current
            if stored == self._revision and was_current:
                break
            if not ((yield from self._read()) and was_current):
                break
        if self._db.problem is not None:
            yield from self._take_lost(self._db.problem)

    def _read(self) -> Steps[bool]:
        """Read the store; False if that fails. Then the last read items count, and decisions cannot be stored."""
        try:
            found = yield from self._db.read_definitions(self._revision)
        except StateError:
            return False
        yield from self._take(found)
        return True

    def _take(self, found: StoredDefinitions) -> Steps[None]:
        """Replace the known items by those that were read."""
        known = self._revision
        rows: dict[tuple[str, str], dict[str, StoredItem | None]] = {}
        for server, column, name, item in found.items:
            yield None
            rows.setdefault((server, column), {})[name] = item
        changed = {key: items for row, items in rows.items() if (key := list_in(*row)) is not None}
        if self._revision != known:
            return  # this process wrote meanwhile: its items are read again
        before = self._servers
        if found.complete:
            self._servers = {}
        self._revision, self._closed_servers = found.revision, found.closed_servers
        for key, items in changed.items():
            self._put(key, items)
        for held, (decide, _) in self._unstored_holds.items():
            with suppress(StaleDecision):
                self._apply(self._plan(held.server, decide))
        if found.complete or found.lost is not None or self._lost is not None:
            yield from self._take_lost(found.lost, before)
            return
        for key, items in changed.items():
            yield from self._compare(key, items, before, was_lost=False)

    def _take_lost(self, lost: str | None, before: _Servers | None = None) -> Steps[None]:
        """Record the reason why nothing is approved, or (None) that the stored approvals count again."""
        before, was_lost = self._servers if before is None else before, self._lost is not None
        if lost is not None:
            self._servers, lost = {}, f"{lost}; nothing is approved until a person approves something again"
        if lost == self._lost and before is self._servers:
            return
        self._lost = lost
        if lost is not None and not was_lost:
            self._on_lost(lost)
        for key in [
            *(key for servers in (before, self._servers) for lists in servers.values() for key in lists),
            *self._now,
        ]:
            names = {
                **before.get(key[0].server, {}).get(key, {}),
                **self._items(key),
                **self._now.get(key, {}),
            }
            yield from self._compare(key, names, before, was_lost=was_lost)

    def _compare(self, key: ListKey, names: Iterable[str], before: _Servers, *, was_lost: bool) -> Steps[None]:
        """Note the server as changed if the status of one of these items changed."""
        server = key[0].server
        if server in self._moved:
            return
        former, trust = before.get(server, {}).get(key, {}), self._trust(server)
        for name in names:
            yield None
            offer = self._now.get(key, {}).get(name)
            was = status_of(former.get(name), offer, trust, lost=was_lost)
            if was is not status_of(self._item(key, name), offer, trust, lost=self._lost is not None):
                self._moved.add(server)
                return

    def _follow(self, revisions: Revisions) -> None:
        """Record the revisions of this process's own write. Changes that other processes made before it are read next
        time."""
        if revisions.definitions == self._revision + 1:
            self._revision = revisions.definitions

    def _apply(self, plan: _Plan) -> None:
        for key, items in plan.changed.items():
            self._put(key, items)

    def _put(self, key: ListKey, changed: Mapping[str, StoredItem | None]) -> None:
        server, items = key[0].server, {**self._items(key), **changed}
        kept = {name: item for name, item in items.items() if item is not None}
        self._servers = {**self._servers, server: {**self._servers.get(server, {}), key: kept}}
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
        return live or offer_of(key[1], stored.definition.encode(), stored.fingerprint)


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


def _order(source: Source) -> tuple[str, str]:
    return source.era, source.owner


def _without(stored: _Stored, withheld: Withheld) -> _Stored:
    if stored is None or stored.definition is None:
        return stored
    before = stored.definition.encode()
    after = withheld.replaced(before) if withheld.may_be_in(before) else before
    return stored if after is before else msgspec.structs.replace(stored, definition=after.decode())


def _named(item: Item) -> str:
    return f"{item.server}: {item.kind} {item.name!a}" if item.name else f"{item.server}: {item.kind}"
