"""Pins: the definitions of each server that a person, or the server's trust level, has approved, and those that are
held.

A pinned item is a tool, prompt, resource, template, a server's instructions, or its launch identity. It is identified
by its fingerprint. An item may be listed and used only if it is offered exactly as it was last approved; restarting the
server, omitting an item for a while, or another order changes nothing.

A server may offer an item with a handshake and stateless, and differently. These two sides of it are pinned apart, so
that a change of one holds only that one. People see and decide about both at once: what they approve on one side is
approved on the other too.

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
    LAUNCH,
    SIDES,
    Items,
    Offer,
    PinStatus,
    as_bytes,
    both_sides,
    has_secret,
    items_after,
    kind_of,
    launch_in,
    newest,
    offer_of,
    offers_of,
    sides_of,
    status_of,
)
from host.slices import Steps, run_inline
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

    server: str
    kind: str
    name: str
    status: PinStatus
    first: bool
    fingerprint: str
    was: str | None


@dataclass(frozen=True)
class Held:
    """An item that waits for a person. `offered` and `approved` are definitions as JSON text, `since` is Unix time. If
    both sides of it wait, with different definitions, they are objects with a member for each side."""

    server: str
    kind: str
    name: str
    status: PinStatus
    fingerprint: str
    offered: bytes
    approved: bytes | None
    since: float
    rejected: bool

    @property
    def problem(self) -> str:
        """The reason why it cannot be approved, in words; empty if it can."""
        return f"it {REPEATS_SECRET}" if has_secret(self.kind, self.offered) else ""


@dataclass(frozen=True)
class Pinned:
    """An approved definition: when (Unix time), and by whom: a BY_ word or the `by` of `approve`."""

    server: str
    kind: str
    name: str
    fingerprint: str
    definition: bytes | None
    at: float
    by: str


_Stored = TypeVar("_Stored", ApprovedDefinition | None, OfferedDefinition | None)
_Servers = dict[str, dict[str, Items]]
_Changed = dict[str, dict[str, StoredItem]]
"""Items to store, by kind and name."""
_Decide = Callable[[Mapping[str, Items]], _Changed]
"""Computes the items of a server, by kind, as a person's decision leaves them. Raises StaleDecision."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """A decision to store, and the items that it is based on."""

    server: str
    changed: _Changed
    expected: dict[tuple[str, str], StoredItem | None]
    """By kind and name."""


@dataclass(frozen=True, slots=True)
class PreparedPins:
    """The items of one kind that a server lists, compared with what is stored: see `Pins.prepare` and `Pins.commit`."""

    server: str
    kind: str
    offered: Mapping[str, bytes]
    trust: Trust
    before: dict[str, Offer] | None
    """The former offers; None if there were none in this process."""
    offers: dict[str, Offer]
    items: Items
    """The stored items of the kind."""
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
        """The stored items by server and kind, as of `_revision`."""
        self._closed_servers: frozenset[str] = frozenset()
        self._lost: str | None = None
        """The reason why nothing is approved; None if the approvals are known."""
        self._revision = 0
        self._now: dict[tuple[str, str], dict[str, Offer]] = {}
        self._remembered: set[tuple[str, str]] = set()
        """Kinds of servers whose offers are those of an earlier process."""
        self._raws: dict[tuple[str, str], Mapping[str, bytes]] = {}
        """Definitions of the last complete comparison under the present trust level."""
        self._first: dict[tuple[str, str], Items] = {}
        """Stored items of a kind when this process first saw its list, until that list is committed."""
        self._moved: set[str] = set()
        self._unwritten: dict[tuple[str, str], str] = {}
        """By server and kind, the reason why new offers are not stored; nobody can decide about them until they are."""
        self._unstored_holds: dict[tuple[str, str, str], tuple[_Decide, _Plan | None]] = {}
        """By server, kind and name, rejections and revocations that hold in memory only."""
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

    def status(self, server: str, kind: str, name: str) -> PinStatus:
        """Status of an item. An item that is not offered at the moment keeps its status."""
        offer = self._now.get((server, kind), _NOTHING).get(name)
        item = self._servers.get(server, _NOTHING).get(kind, _NOTHING).get(name)
        trust = self._trusts.get(server, _UNTRUSTED)
        return status_of(item, offer, trust, lost=self._lost is not None)

    def fingerprint(self, server: str, kind: str, name: str) -> str | None:
        """Fingerprint of the present offer; None if the item is not offered."""
        offer = self._now.get((server, kind), {}).get(name)
        return None if offer is None else offer.fingerprint

    def approved_names(self, server: str, kind: str) -> Iterator[str]:
        """Names of the approved items of one kind, offered or not."""
        return (name for name in self._items(server, kind) if self.status(server, kind, name) is PinStatus.APPROVED)

    def offered_definition(self, server: str, kind: str, name: str) -> bytes | None:
        """The present offer as the server wrote it; None if the item is not offered."""
        offer = self._now.get((server, kind), {}).get(name)
        return None if offer is None else offer.raw

    def is_remembered(self, server: str, kind: str) -> bool:
        """Whether the present offers of the kind are those of an earlier process."""
        return (server, kind) in self._remembered

    def launch(self, server: str) -> str:
        """Digest of the server's launch identity as last observed; empty if it was not observed."""
        return self.fingerprint(server, LAUNCH, "") or ""

    def held(self) -> list[Held]:
        """All items that wait for a person and can be decided about."""
        return list(filter(None, self.iter_held()))

    def iter_held(self) -> Iterator[Held | None]:
        """Like `held`, one by one, with None for each item that does not wait."""
        servers = dict.fromkeys([*self._servers, *(server for server, _ in self._now)])
        for server, kind in [(server, kind) for server in servers for kind in KINDS]:
            sides = sides_of(kind)
            for name in {name: None for side in sides for name in self._known_names(server, side)}:
                yield self._held(server, kind, name)

    def _known_names(self, server: str, side: str) -> Iterable[str]:
        return {**self._items(server, side), **self._now.get((server, side), {})}

    def _held(self, server: str, kind: str, name: str) -> Held | None:
        """The item that waits as a person sees it: one of its sides, or both."""
        waiting = self._held_sides(server, kind, name)
        first = next(iter(waiting.values()), None)
        if first is None or len({(each.fingerprint, each.approved) for each in waiting.values()}) == 1:
            return first
        offered = both_sides({side: each.offered for side, each in waiting.items()})
        approved = {side: each.approved for side, each in waiting.items() if each.approved is not None}
        return Held(
            server,
            kind,
            name,
            PinStatus.CHANGED if approved else PinStatus.NEW,
            fingerprint(offered),
            offered,
            both_sides(approved) if approved else None,
            min(each.since for each in waiting.values()),
            all(each.rejected for each in waiting.values()),
        )

    def _held_sides(self, server: str, kind: str, name: str) -> dict[str, Held]:
        found = {side: self._held_side(server, side, name) for side in sides_of(kind)}
        return {side: held for side, held in found.items() if held is not None}

    def _held_side(self, server: str, kind: str, name: str) -> Held | None:
        standing = self.status(server, kind, name)
        if standing in (PinStatus.APPROVED, PinStatus.UNKNOWN):
            return None
        item = self._item(server, kind, name)
        offer = self._offer(server, kind, name, item)
        if offer is None or (item is None and self._lost is None):
            return None
        item = item or StoredItem()
        changed = standing is PinStatus.CHANGED and item.approved is not None
        approved = as_bytes(item.approved.definition) if changed and item.approved is not None else None
        since = self._wall() if item.offered is None else item.offered.since
        rejected = item.rejected == offer.fingerprint
        plain = kind_of(kind)
        return Held(server, plain, name, standing, offer.fingerprint, offer.raw, approved, since, rejected)

    def held_names(self, server: str, kind: str) -> list[str]:
        """Names of a server's held items of one kind."""
        open_ones = (PinStatus.APPROVED, PinStatus.UNKNOWN)
        return [name for name in self._known_names(server, kind) if self.status(server, kind, name) not in open_ones]

    def names(self, server: str, kind: str) -> set[str]:
        """Names of all known items of one kind, on either side: of those offered at the moment, and of the stored
        ones."""
        return {name for side in sides_of(kind) for name in self._known_names(server, side)}

    def pinned(self) -> list[Pinned]:
        """All stored approvals, whether offered or not."""
        return [
            Pinned(server, kind_of(kind), name, pin.fingerprint, as_bytes(pin.definition), pin.at, pin.by)
            for server, kinds in self._servers.items()
            for kind, items in kinds.items()
            for name, item in items.items()
            if (pin := item.approved) is not None
        ]

    # What servers offer

    def observe(
        self, server: str, kind: str, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> Steps[list[Change]]:
        """Prepare and commit a list: for short lists, and for launch identities."""
        while True:
            changes = self.commit((yield from self.prepare(server, kind, offered, remembered=remembered)))
            if changes is not None:
                return changes

    def prepare(
        self, server: str, kind: str, offered: Mapping[str, bytes], *, remembered: bool = False
    ) -> Steps[PreparedPins]:
        """Compare all that a server offers of one kind, JSON text by name, with the approvals, and store what is new.
        No offer takes effect before `commit`.

        Stores at most once, and nothing if nothing is new. An item that cannot be stored is not approved without a
        person: a definition must be known after a crash, or a changed one would pass as the first.

        Args:
            remembered: the server offered this before the host was started. Nothing is stored or reported, so nothing
                is approved that was not approved before.
        """
        offered = dict(offered)
        yield from self._refresh()
        key = (server, kind)
        before = self._now.get(key)
        trust, lost = self._trust(server), self._lost
        items = known = self._items(server, kind)
        if before is not None and self._raws.get(key) == offered:
            return PreparedPins(server, kind, offered, trust, before, before, items, [], None, lost)
        seen = None if key in self._remembered else before
        if seen is None:
            known = self._first.setdefault(key, items)
        offers = yield from offers_of(kind, offered, before or {}, items)
        if remembered:
            offers = {name: newest(kind, offer, items.get(name)) for name, offer in offers.items()}
            return PreparedPins(server, kind, offered, trust, before, offers, items, [], None, lost, remembered=True)
        problem = None
        if lost is None:
            try:
                while not (yield from self._store_offers(server, kind, offers)):
                    yield from self._refresh()
            except StateError as error:
                problem = f"{error}; new offers of servers are held back"
        items = self._items(server, kind)
        adds = before is not None and not before.keys() >= offers.keys()
        reading = PreparedPins(
            server, kind, offered, trust, before, offers, items, [], problem, lost, has_additions=adds
        )
        for name, offer in offers.items():
            yield None
            item, old = known.get(name), None if seen is None else seen.get(name)
            was = old.fingerprint if old is not None else None if item is None else item.last
            status = reading.status(name)
            former_status = status_of(item, old, trust, lost=lost is not None)
            if was != offer.fingerprint or former_status not in (status, PinStatus.UNKNOWN):
                plain = kind_of(kind)
                reading.changes.append(Change(server, plain, name, status, was is None, offer.fingerprint, was))
        return reading

    def _store_offers(self, server: str, kind: str, offers: Mapping[str, Offer]) -> Steps[bool]:
        """Store the offers that are not stored; False if another process has changed the kind."""
        revision = self._revision
        kinds, is_closed = self._servers.get(server, {}), server in self._closed_servers
        changed = yield from items_after(kind, offers, kinds, self._trust(server), self._wall(), is_closed=is_closed)
        if not changed:
            return True

        def change(transaction: Transaction) -> bool:
            sides = sides_of(kind_of(kind))
            if any(transaction.changed_since(revision, server, side) for side in sides):
                return False
            transaction.put_items(server, kind, changed)
            return True

        def on_commit(stored: bool, revisions: Revisions) -> None:
            if stored:
                self._put(server, kind, changed)
                self._follow(revisions)

        return (yield from self._db.write(change, on_commit))

    def commit(self, reading: PreparedPins) -> list[Change] | None:
        """Put a prepared list into effect and return its changes. None if a decision or another process changed the
        items since `prepare`: the list must be prepared again. Short, whatever the length of the list."""
        server, kind = key = (reading.server, reading.kind)
        same_ground = self._trust(server) is reading.trust and self._lost == reading.lost
        if not (self._items(server, kind) is reading.items and same_ground and self._now.get(key) is reading.before):
            return None
        self._now[key] = reading.offers
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
        item = self._item(server, LAUNCH, "")
        offer = self._offer(server, LAUNCH, "", item)
        last = None if offer is None else launch_in(offer.raw.decode())
        if last is not None and launch.program is None and last.declared == launch.declared:
            launch = last
        # Not msgspec: the name of a file may not be valid UTF-8.
        written = json.dumps({"declared": launch.declared, "program": launch.program}, sort_keys=True)
        return (yield from self.observe(server, LAUNCH, {"": written.encode("ascii")}))

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
        for server, kind in list(self._unwritten):
            before, offers = self._servers, self._now.get((server, kind), {})
            if self._lost is None:
                try:
                    while not (yield from self._store_offers(server, kind, offers)):
                        yield from self._refresh()
                except StateError:
                    return
            if self._now.get((server, kind)) is offers:
                self._unwritten.pop((server, kind), None)
            yield from self._compare(server, kind, offers, before, was_lost=False)

    def withhold(self, server: str, withheld: Withheld) -> Steps[None]:
        """Replace these texts in the stored definitions of a server. Their fingerprints stay, so no other definition
        gets approved.

        Raises:
            StateError: it cannot be stored; nothing changed.
        """

        def decide(kinds: Mapping[str, Items]) -> _Changed:
            changed: _Changed = {}
            for kind, items in kinds.items():
                for name, item in items.items():
                    cleaned = msgspec.structs.replace(
                        item, approved=_without(item.approved, withheld), offered=_without(item.offered, withheld)
                    )
                    if cleaned != item:
                        changed.setdefault(kind, {})[name] = cleaned
            return changed

        if self._lost is None and decide(self._servers.get(server, {})):
            yield from self._carry_out(server, decide)

    # What people decide

    def approve(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> Steps[None]:
        """Approve a definition, which must be the offered one.

        Raises:
            StaleDecision: it is not the offered one, it was too large to keep, or a secret was withheld in it.
            StateError: it cannot be stored; nothing changed.
        """
        yield from self.approve_all(server, [(kind, name, fingerprint)], by)

    def approve_all(self, server: str, shown: Sequence[tuple[str, str, str]], by: str) -> Steps[None]:
        """Approve several items of a server, each as (kind, name, fingerprint), or none of them."""

        def decide(kinds: Mapping[str, Items]) -> _Changed:
            changed: _Changed = {}
            for kind, name, shown_fingerprint in shown:
                for side, offer in self._shown(server, kind, name, kinds, shown_fingerprint).items():
                    if offer.has_secret:
                        raise StaleDecision(f"{_named(server, kind, name)} {REPEATS_SECRET}")
                    approved = ApprovedDefinition(offer.fingerprint, offer.raw.decode(), self._wall(), by)
                    changed.setdefault(side, {})[name] = StoredItem(approved=approved)
            return changed

        yield from self._carry_out(server, decide)
        for kind, name, _ in shown:
            self._unstored_holds.pop((server, kind, name), None)

    def reject(self, server: str, kind: str, name: str, fingerprint: str) -> Steps[None]:
        """Reject the definition: it stays held, and only full trust lifts that. It is held in this process at once; the
        steps store the rejection.

        Raises:
            StaleDecision: it is not the offered one, was too large to keep, or is the approved one.
            StateError: it cannot be stored: it holds in this process only, until the process ends.
        """

        def decide(kinds: Mapping[str, Items]) -> _Changed:
            changed: _Changed = {}
            for side, offer in self._shown(server, kind, name, kinds, fingerprint).items():
                item = kinds.get(side, {}).get(name) or StoredItem()
                shown, approved, offered = offer.fingerprint, item.approved, item.offered
                if approved is not None and approved.fingerprint == shown:
                    if self.status(server, side, name) is PinStatus.APPROVED:
                        text = f"{_named(server, kind, name)} is approved as it is: take that back instead"
                        raise StaleDecision(text)
                    approved = None  # approved by trust, not by a person
                if offered is None or offered.fingerprint != shown:
                    offered = OfferedDefinition(shown, offer.raw.decode(), self._wall())
                changed[side] = {name: StoredItem(approved=approved, offered=offered, rejected=shown, closed=True)}
            return changed

        return self._hold(server, kind, name, decide)

    def revoke(self, server: str, kind: str, name: str) -> Steps[None]:
        """Revoke an approval: the item is new again, and a person must approve it, also on a standard server. It is
        held in this process at once; the steps store the revocation.

        Raises:
            StaleDecision: no item of that name is approved.
            StateError: as for `reject`.
        """

        def decide(kinds: Mapping[str, Items]) -> _Changed:
            changed: _Changed = {}
            for side in sides_of(kind):
                item = kinds.get(side, {}).get(name)
                if item is not None and (pin := item.approved) is not None:
                    offered = item.offered or OfferedDefinition(pin.fingerprint, pin.definition, self._wall())
                    changed[side] = {name: StoredItem(offered=offered, rejected=item.rejected, closed=True)}
            if not changed:
                raise StaleDecision(f"{_named(server, kind, name)} is not approved")
            return changed

        return self._hold(server, kind, name, decide)

    def _shown(
        self, server: str, kind: str, name: str, kinds: Mapping[str, Items], fingerprint: str
    ) -> dict[str, Offer]:
        """The present offers that were shown, by side; raises StaleDecision if what was shown is not offered now."""
        items = {side: kinds.get(side, {}).get(name) for side in sides_of(kind)}
        found = {side: self._offer(server, side, name, item) for side, item in items.items() if item is not None}
        offers = {side: offer for side, offer in found.items() if offer is not None}
        if not offers:
            raise StaleDecision(f"{_named(server, kind, name)} is not offered, or more is offered than is kept")
        held = self._held(server, kind, name)
        if held is not None and held.fingerprint == fingerprint:
            return {side: offers[side] for side in self._held_sides(server, kind, name) if side in offers}
        offers = {side: offer for side, offer in offers.items() if offer.fingerprint == fingerprint}
        if not offers:
            raise StaleDecision(f"{_named(server, kind, name)} has changed since it was shown: look at it again")
        return offers

    def _hold(self, server: str, kind: str, name: str, decide: _Decide) -> Steps[None]:
        plan = None
        if self._lost is None:
            with suppress(StaleDecision):  # a first answer from memory, before the store is read again
                plan = self._plan(server, decide)
                self._apply(plan)
        return self._store_hold((server, kind, name), decide, plan)

    def _store_hold(self, key: tuple[str, str, str], decide: _Decide, plan: _Plan | None) -> Steps[None]:
        try:
            yield from self._carry_out(key[0], decide, plan, at_once=True)
        except StateError as problem:
            self._unstored_holds[key] = decide, plan
            self._unstored = f"{problem}; what was rejected or revoked is not stored, so another host may allow it"
            raise

    def _store_holds(self) -> Steps[None]:
        """Store the rejections and revocations that could not be stored when they were made."""
        for key, (decide, plan) in list(self._unstored_holds.items()):
            try:
                yield from self._carry_out(key[0], decide, plan, at_once=True)
            except StateError:
                return
            except StaleDecision:
                pass  # the stored or the offered definition of now holds the item anyway
            self._unstored_holds.pop(key, None)
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
        kinds = self._servers.get(server, {})
        changed = decide(kinds)
        expected = {(kind, name): kinds.get(kind, {}).get(name) for kind, items in changed.items() for name in items}
        return _Plan(server, changed, expected)

    def _store(self, plan: _Plan) -> Steps[bool]:
        """Store the plan; False if the stored items are not those that it is based on."""

        def change(transaction: Transaction) -> dict[tuple[str, str], StoredItem | None] | None:
            stored = {key: transaction.item(plan.server, *key) for key in plan.expected}
            if stored != plan.expected:
                return stored
            for kind, items in plan.changed.items():
                transaction.put_items(plan.server, kind, items)
            return None

        def on_commit(other: dict[tuple[str, str], StoredItem | None] | None, revisions: Revisions) -> None:
            if other is None:
                self._apply(plan)
                self._follow(revisions)
            for (kind, name), item in (other or {}).items():
                self._put(plan.server, kind, {name: item})

        return (yield from self._db.write(change, on_commit)) is None

    def _mend(self, server: str, decide: _Decide) -> Steps[bool]:
        """Replace lost approvals: every offered item must be decided about, and `decide` is the first decision."""
        revision, closed_servers = self._revision, frozenset([*self._trusts, *(server for server, _ in self._now)])
        servers: dict[str, dict[str, dict[str, StoredItem | None]]] = {}
        for (each, kind), offers in list(self._now.items()):
            is_closed = each in closed_servers
            changed = yield from items_after(kind, offers, {}, self._trust(each), self._wall(), is_closed=is_closed)
            servers.setdefault(each, {})[kind] = changed
        kinds = servers.setdefault(server, {})
        known = {
            kind: {name: item for name, item in items.items() if item is not None} for kind, items in kinds.items()
        }
        for kind, decided in decide(known).items():
            kinds.setdefault(kind, {}).update(decided)

        def change(transaction: Transaction) -> bool:
            if transaction.revision() != revision:
                return False
            transaction.clear_lost()
            transaction.close_servers(closed_servers)
            for each, its_kinds in servers.items():
                for kind, items in its_kinds.items():
                    transaction.put_items(each, kind, items)
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
        changed: dict[tuple[str, str], dict[str, StoredItem | None]] = {}
        for server, kind, name, item in found.items:
            yield None
            changed.setdefault((server, kind), {})[name] = item
        if self._revision != known:
            return  # this process wrote meanwhile: its items are read again
        before = self._servers
        if found.complete:
            self._servers = {}
        self._revision, self._closed_servers = found.revision, found.closed_servers
        for (server, kind), items in changed.items():
            self._put(server, kind, items)
        for (server, _, _), (decide, _) in self._unstored_holds.items():
            with suppress(StaleDecision):
                self._apply(self._plan(server, decide))
        if found.complete or found.lost is not None or self._lost is not None:
            yield from self._take_lost(found.lost, before)
            return
        for (server, kind), items in changed.items():
            yield from self._compare(server, kind, items, before, was_lost=False)

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
        for server, kind in [
            *((server, side) for servers in (before, self._servers) for server in servers for side in SIDES),
            *self._now,
        ]:
            names = {
                **before.get(server, {}).get(kind, {}),
                **self._items(server, kind),
                **self._now.get((server, kind), {}),
            }
            yield from self._compare(server, kind, names, before, was_lost=was_lost)

    def _compare(
        self, server: str, kind: str, names: Iterable[str], before: _Servers, *, was_lost: bool
    ) -> Steps[None]:
        """Note the server as changed if the status of one of these items changed."""
        if server in self._moved:
            return
        former, trust = before.get(server, {}).get(kind, {}), self._trust(server)
        for name in names:
            yield None
            offer = self._now.get((server, kind), {}).get(name)
            was = status_of(former.get(name), offer, trust, lost=was_lost)
            if was is not status_of(self._item(server, kind, name), offer, trust, lost=self._lost is not None):
                self._moved.add(server)
                return

    def _follow(self, revisions: Revisions) -> None:
        """Record the revisions of this process's own write. Changes that other processes made before it are read next
        time."""
        if revisions.definitions == self._revision + 1:
            self._revision = revisions.definitions

    def _apply(self, plan: _Plan) -> None:
        for kind, items in plan.changed.items():
            self._put(plan.server, kind, items)

    def _put(self, server: str, kind: str, changed: Mapping[str, StoredItem | None]) -> None:
        items = {**self._items(server, kind), **changed}
        kept = {name: item for name, item in items.items() if item is not None}
        self._servers = {**self._servers, server: {**self._servers.get(server, {}), kind: kept}}

    def _trust(self, server: str) -> Trust:
        return self._trusts.get(server, Trust.UNTRUSTED)

    def _items(self, server: str, kind: str) -> Items:
        return self._servers.get(server, _NOTHING).get(kind, _NO_ITEMS)

    def _item(self, server: str, kind: str, name: str) -> StoredItem | None:
        return self._items(server, kind).get(name)

    def _offer(self, server: str, kind: str, name: str, item: StoredItem | None) -> Offer | None:
        """The present offer in this process, or the stored one; None if its definition was not kept."""
        live = self._now.get((server, kind), {}).get(name)
        stored = None if item is None else item.offered or item.approved
        if live is not None and (stored is None or stored.fingerprint != live.fingerprint):
            return live
        if stored is None or stored.definition is None:
            return None
        return live or offer_of(kind, stored.definition.encode(), stored.fingerprint)


def _without(stored: _Stored, withheld: Withheld) -> _Stored:
    if stored is None or stored.definition is None:
        return stored
    before = stored.definition.encode()
    after = withheld.replaced(before) if withheld.may_be_in(before) else before
    return stored if after is before else msgspec.structs.replace(stored, definition=after.decode())


def _named(server: str, kind: str, name: str) -> str:
    return f"{server}: {kind} {name!a}" if name else f"{server}: {kind}"
