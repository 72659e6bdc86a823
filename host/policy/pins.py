"""Pins: what of every server a person, or its trust, has approved, and what is held back until a person does.

A pinned item is a tool, a prompt, a resource, a template, a server's instructions, or what is started as the server.
It is known by its fingerprint. What may be listed and reached is what is offered exactly as it was approved last:
nothing that a server does changes that, be it that it is started anew, leaves an item out for a while, or has another
order.

This file decides and remembers, in a file that several hosts share. It shows nobody anything, and it does not know what
a definition means.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Any

import msgspec

from config import Trust
from host.policy.fingerprint import Launch, fingerprint, is_long
from host.slices import Steps, in_worker, run_inline
from host.state import Corrupt, Identity, Shared, StateError, Update

MOST_ITEMS = 20_000
"""Items kept of one server. What is beyond is held back and cannot be approved."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of names and definitions kept of one server."""

INSTRUCTIONS = "instructions"
LAUNCH = "launch"
KINDS = ("tool", "prompt", "resource", "template", INSTRUCTIONS, LAUNCH)
"""The kinds of pinned items; the name of the last two is empty."""

BY_TRUST = "trust"
BY_FIRST_SIGHT = "first sight"
BY_CONFIGURATION = "configuration"

_VERSION = 1
_BLOCK = 64 * 1024
"""Bytes of JSON text that are written at once, at the least."""
_LARGE = 256 * 1024
"""Bytes; a larger file is read and written by a worker thread."""

_NOTHING: Mapping[Any, Any] = {}


class PinStatus(Enum):
    """Where an item stands."""

    APPROVED = "approved"
    NEW = "new"
    """It was never approved, or that was taken back: it waits for a person."""
    CHANGED = "changed"
    """Another definition of it was approved than is offered now."""
    UNKNOWN = "unknown"
    """It is not offered and was never seen."""


class StaleDecision(Exception):
    """What was to be decided about is not there any more, or not as it was shown. The text is a sentence."""


class Change(msgspec.Struct, frozen=True, gc=False):
    """Something to tell. `status` is what came of it; `first`: the item was never seen before; `was` is the
    fingerprint of what was offered before, None if nothing was."""

    server: str
    kind: str
    name: str
    status: PinStatus
    first: bool
    fingerprint: str
    was: str | None


@dataclass(frozen=True)
class Held:
    """An item that waits for a person. `offered` and `approved` are definitions as JSON text, `since` is Unix time."""

    server: str
    kind: str
    name: str
    status: PinStatus
    fingerprint: str
    offered: bytes
    approved: bytes | None
    since: float
    rejected: bool


@dataclass(frozen=True)
class Pinned:
    """A definition that was approved: at what Unix time, and by whom: a BY_ word or what `approve` was told."""

    server: str
    kind: str
    name: str
    fingerprint: str
    definition: bytes | None
    at: float
    by: str


# What is in the file. None stands for a definition that was not kept. There may be many of these, and none is part of a
# cycle: the collector, which stops everything, need not look at them.


class _Approved(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    fingerprint: str
    definition: str | None
    at: float
    by: str


class _Offered(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    fingerprint: str
    definition: str | None
    since: float


class _Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    approved: _Approved | None = None
    offered: _Offered | None = None
    """What is offered, where that is not what is approved."""
    rejected: str | None = None
    """The fingerprint that a person refused."""
    closed: bool = False
    """Nothing of this item is pinned by first sight or trust: a person has refused it, or what was known is lost."""

    @property
    def is_spare(self) -> bool:
        """Whether nobody ever decided about it, so that it may be forgotten while it is not offered."""
        return self.approved is None and not self.closed

    @property
    def last(self) -> str | None:
        """The fingerprint that was offered last, as far as the file knows."""
        known = self.offered or self.approved
        return None if known is None else known.fingerprint


_Items = dict[str, _Item]


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    version: int = _VERSION
    servers: dict[str, dict[str, _Items]] = {}
    lost: list[str] = []
    """Servers whose pins were once lost with a broken file: for them there is no first sight any more."""


class _Offer(msgspec.Struct, frozen=True, gc=False):
    raw: bytes
    fingerprint: str


@dataclass(frozen=True, slots=True)
class PreparedPins:
    """What a server lists of one kind, held against what is known of it: see `Pins.prepare` and `Pins.commit`."""

    server: str
    kind: str
    offered: Mapping[str, bytes]
    trust: Trust
    before: dict[str, _Offer] | None
    """What it offered before; None if it never did."""
    offers: dict[str, _Offer]
    items: _Items
    """What is in the file once this is taken note of."""
    changes: list[Change]
    problem: str | None
    """Why nothing new could be written."""
    broken: str | None
    written: tuple[Identity | None, Identity, _Content] | None = None
    """The version of the file that was written over, the one that was written, and its content."""

    def status(self, name: str) -> PinStatus:
        """How an item that is offered stands once this is taken note of."""
        return _standing(self.items.get(name), self.offers.get(name), self.trust, broken=self.broken is not None)


class Pins:
    """The pins of the servers of one configuration.

    Args:
        file: where they are kept. It is read here.
        trusts: of each server; one that is not in it is untrusted.
        wall: Unix time.
    """

    def __init__(self, file: Shared, trusts: Mapping[str, Trust], *, wall: Callable[[], float] = time.time) -> None:
        self._file = file
        self._trusts = dict(trusts)
        self._wall = wall
        self._content = _Content()
        self._now: dict[tuple[str, str], dict[str, _Offer]] = {}
        self._raws: dict[tuple[str, str], Mapping[str, bytes]] = {}
        """What was offered when all of it was last looked at under the present trust."""
        self._moved: set[str] = set()
        self._broken: str | None = None
        self._unwritten: str | None = None
        self._kept = False
        """Whether there was a file: then it does not vanish by itself."""
        self._writing = 0
        """How many readings are being written now."""
        self._own: Identity | None = None
        """The version that was written for a reading last, which `commit` takes up."""
        loaded: list[_Loaded] = []
        _load(file, loaded)
        file.seen, content = loaded[0]
        run_inline(self._taken(content))
        self._moved.clear()

    @property
    def problem(self) -> str | None:
        """A sentence for people if the file cannot be read (then nothing is approved) or written (then nothing new is
        remembered)."""
        return self._broken or self._unwritten

    def set_trust_levels(self, trusts: Mapping[str, Trust]) -> None:
        """From now on these hold. What they approve by themselves is approved with the next `observe`."""
        self._trusts = dict(trusts)
        self._raws.clear()

    # Looking up

    def status(self, server: str, kind: str, name: str) -> PinStatus:
        """Where an item stands; what is not offered at the moment stands as it did."""
        offer = self._now.get((server, kind), _NOTHING).get(name)
        item = self._content.servers.get(server, _NOTHING).get(kind, _NOTHING).get(name)
        trust = self._trusts.get(server, Trust.UNTRUSTED)
        return _standing(item, offer, trust, broken=self._broken is not None)

    def fingerprint(self, server: str, kind: str, name: str) -> str | None:
        """Of what is offered now; None if it is not."""
        offer = self._now.get((server, kind), {}).get(name)
        return None if offer is None else offer.fingerprint

    def launch(self, server: str) -> str:
        """A digest of what is started as the server, as it was observed last; empty if it was not."""
        return self.fingerprint(server, LAUNCH, "") or ""

    def held(self) -> list[Held]:
        """All that waits for a person, and that a person can decide about."""
        return list(filter(None, self.iter_held()))

    def iter_held(self) -> Iterator[Held | None]:
        """The same one by one, with None for each item that does not wait."""
        servers = dict.fromkeys([*self._content.servers, *(server for server, _ in self._now)])
        for server, kind in [(server, kind) for server in servers for kind in KINDS]:
            items = self._content.servers.get(server, {}).get(kind, {})
            for name in {**items, **self._now.get((server, kind), {})}:
                yield self._held(server, kind, name)

    def _held(self, server: str, kind: str, name: str) -> Held | None:
        standing = self.status(server, kind, name)
        if standing in (PinStatus.APPROVED, PinStatus.UNKNOWN):
            return None
        item = self._item(server, kind, name)
        offer = self._offer(server, kind, name, item)
        if offer is None or (item is None and self._broken is None):
            return None
        item = item or _Item()
        changed = standing is PinStatus.CHANGED and item.approved is not None
        approved = _bytes(item.approved.definition) if changed and item.approved is not None else None
        since = self._wall() if item.offered is None else item.offered.since
        rejected = item.rejected == offer.fingerprint
        return Held(server, kind, name, standing, offer.fingerprint, offer.raw, approved, since, rejected)

    def held_names(self, server: str, kind: str) -> list[str]:
        """The names of a server's items of one kind that are held back."""
        items = self._content.servers.get(server, {}).get(kind, {})
        names = {**items, **self._now.get((server, kind), {})}
        open_ones = (PinStatus.APPROVED, PinStatus.UNKNOWN)
        return [name for name in names if self.status(server, kind, name) not in open_ones]

    def pinned(self) -> list[Pinned]:
        """All that is approved in the file, offered or not."""
        return [
            Pinned(server, kind, name, pin.fingerprint, _bytes(pin.definition), pin.at, pin.by)
            for server, kinds in self._content.servers.items()
            for kind, items in kinds.items()
            for name, item in items.items()
            if (pin := item.approved) is not None
        ]

    # What servers offer

    def observe(self, server: str, kind: str, offered: Mapping[str, bytes]) -> list[Change]:
        """Take note at once of all that a server offers of one kind: for what is short, and for what starts it."""
        while True:
            changes = self.commit(run_inline(self.prepare(server, kind, offered)))
            if changes is not None:
                return changes

    def prepare(self, server: str, kind: str, offered: Mapping[str, bytes]) -> Steps[PreparedPins]:
        """Find out what is to be told of all that a server offers of one kind, JSON text by name, and write it down.
        Nothing stands otherwise before `commit`.

        Writes at most once, and not at all if nothing is new. What cannot be written down is not approved by itself.
        """
        offered = dict(offered)
        yield from self._refreshed()
        key = (server, kind)
        before = self._now.get(key)
        trust, content, version, broken = self._trust(server), self._content, self._file.seen, self._broken
        items = content.servers.get(server, {}).get(kind, {})
        if before is not None and self._raws.get(key) == offered:
            return PreparedPins(server, kind, offered, trust, before, before, items, [], None, broken)
        offers = yield from _offers(offered, before or {}, items)
        after, problem, written = items, None, None
        if broken is None:
            try:
                after = yield from self._after(content, server, kind, offers)
                if after is not items:
                    kinds = {**content.servers.get(server, {}), kind: after}
                    content = _Content(servers={**content.servers, server: kinds}, lost=content.lost)
                    large = max(self._file.size, sum(map(len, offered.values()))) > _LARGE
                    there = yield from self._written(version, content, large=large)
                    written = None if there is None else (version, there, content)
            except StateError as error:
                after, problem = items, f"{error}; what servers offer anew is held back"
        reading = PreparedPins(server, kind, offered, trust, before, offers, after, [], problem, broken, written)
        stood = partial(_standing, trust=trust, broken=broken is not None)
        for name, offer in offers.items():
            yield None
            item, old = items.get(name), None if before is None else before.get(name)
            was = old.fingerprint if old is not None else None if item is None else item.last
            standing = reading.status(name)
            if was != offer.fingerprint or stood(item, old) not in (standing, PinStatus.UNKNOWN):
                reading.changes.append(Change(server, kind, name, standing, was is None, offer.fingerprint, was))
        return reading

    def _written(self, version: Identity | None, content: _Content, *, large: bool) -> Steps[Identity | None]:
        """Write the content in the place of that version: the new version; None if the file is another by now."""
        done: list[Identity | StateError | None] = []

        def write(pieces: Iterable[bytes]) -> None:
            try:
                done.append(self._file.exchange(version, pieces))
            except StateError as problem:
                done.append(problem)

        if large:
            # Not in the thread: it would take the interpreter from the loop, which gives it up at each system call.
            encoded: list[bytes] = []
            for block in _blocks(content):
                yield None
                encoded.append(block)
            self._writing += 1
            try:
                yield partial(write, encoded)
            finally:
                self._writing -= 1
        else:
            write(_blocks(content))
        (result,) = done
        if isinstance(result, StateError):
            raise result
        self._own = result
        return result

    def commit(self, reading: PreparedPins) -> list[Change] | None:
        """What was prepared holds from now on; what is to be told of it. None if what it was held against is not so
        any more (a person decided, another process wrote): then it must be prepared again. Short, however long the
        list."""
        server, kind = key = (reading.server, reading.kind)
        if reading.written is not None and self._file.seen == reading.written[0]:
            _, self._file.seen, self._content = reading.written
            self._kept = True
        items = self._content.servers.get(server, {}).get(kind, {})
        same_items = items is reading.items or items == reading.items
        same_ground = self._trust(server) is reading.trust and self._broken == reading.broken
        if not (same_items and same_ground and self._now.get(key) is reading.before):
            return None
        self._now[key] = reading.offers
        if reading.broken is None and reading.offers is not reading.before:
            self._unwritten = reading.problem
        if self.problem is None:
            self._raws[key] = reading.offered
        else:
            self._raws.pop(key, None)
        return reading.changes

    def observe_launch(self, server: str, launch: Launch) -> list[Change]:
        """Take note of what would be started as a server, or connected to.

        What the owner wrote counts as approved, and so does the first program that it comes to. The same text that
        comes to another program is a change. While it comes to none, nothing changes: nothing can be started.
        """
        self._refresh()
        item = self._item(server, LAUNCH, "")
        offer = self._offer(server, LAUNCH, "", item)
        last = None if offer is None else _launch_in(offer.raw.decode())
        if last is not None and launch.program is None and last.declared == launch.declared:
            launch = last
        # Not msgspec: the name of a file may be no UTF-8.
        written = json.dumps({"declared": launch.declared, "program": launch.program}, sort_keys=True)
        return self.observe(server, LAUNCH, {"": written.encode("ascii")})

    def reread(self) -> set[str]:
        """The servers of which something stands otherwise than when this was last asked, since another process
        decided about it. Costs next to nothing if none did."""
        return run_inline(self.reread_in_steps())

    def reread_in_steps(self) -> Steps[set[str]]:
        """The same in steps."""
        if not self._is_own():
            yield from self._refreshed()
        moved, self._moved = self._moved, set()
        return moved

    # What people decide

    def approve(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """From now on this definition, which must be the one that is offered, may be used.

        Raises:
            Moved: it is not what is offered, or it could not be kept.
            StateError: it cannot be written down; nothing changed.
        """
        self.approve_all(server, [(kind, name, fingerprint)], by)

    def approve_all(self, server: str, shown: Iterable[tuple[str, str, str]], by: str) -> None:
        """`approve` for any number of a server's items, each as (kind, name, fingerprint), or for none of them; the
        file is written once."""

        with self._deciding(server) as kinds:
            for kind, name, print_shown in shown:
                items = kinds.setdefault(kind, {})
                offer = self._shown(server, kind, name, items.get(name), print_shown)
                items[name] = _Item(approved=_Approved(offer.fingerprint, offer.raw.decode(), self._wall(), by))

    def reject(self, server: str, kind: str, name: str, fingerprint: str, by: str) -> None:
        """It stays held back, marked as refused, and no trust that is less than full lifts that. `by` is for the audit
        alone.

        Raises:
            Moved: it is not what is offered, or it could not be kept; or it is what is approved.
            StateError: it cannot be written down; nothing changed.
        """
        with self._deciding(server) as kinds:
            items = kinds.setdefault(kind, {})
            item = items.get(name, _Item())
            offer = self._shown(server, kind, name, items.get(name), fingerprint)
            approved = item.approved
            if approved is not None and approved.fingerprint == fingerprint:
                if self.status(server, kind, name) is PinStatus.APPROVED:
                    raise StaleDecision(f"{_named(server, kind, name)} is approved as it is: take that back instead")
                approved = None  # by nobody who looked at it
            offered = item.offered
            if offered is None or offered.fingerprint != fingerprint:
                offered = _Offered(fingerprint, offer.raw.decode(), self._wall())
            items[name] = _Item(approved=approved, offered=offered, rejected=fingerprint, closed=True)

    def revoke(self, server: str, kind: str, name: str) -> None:
        """Take an approval back: the item is new again, and a person must approve it, also at a standard server.

        Raises:
            Moved: nothing of that name is approved.
            StateError: it cannot be written down; nothing changed.
        """
        with self._deciding(server) as kinds:
            items = kinds.setdefault(kind, {})
            item = items.get(name, _Item())
            if item.approved is None:
                raise StaleDecision(f"{_named(server, kind, name)} is not approved")
            pin = item.approved
            offered = item.offered or _Offered(pin.fingerprint, pin.definition, self._wall())
            items[name] = _Item(offered=offered, rejected=item.rejected, closed=True)

    def _shown(self, server: str, kind: str, name: str, item: _Item | None, fingerprint: str) -> _Offer:
        """What is offered, which must be what was shown."""
        offer = self._offer(server, kind, name, item)
        if offer is None or item is None:
            raise StaleDecision(f"{_named(server, kind, name)} is not offered, or more is offered than is kept")
        if offer.fingerprint != fingerprint:
            raise StaleDecision(f"{_named(server, kind, name)} has changed since it was shown: look at it again")
        return offer

    @contextmanager
    def _deciding(self, server: str) -> Iterator[dict[str, _Items]]:
        """A server's items, by kind, to be changed as a person decided; what was written when the block ends counts."""
        self._refresh()
        with self._file.updating() as update:
            content = self._latest(update, mend=True)
            kinds = {kind: dict(items) for kind, items in content.servers.get(server, {}).items()}
            yield kinds
            content.servers[server] = kinds
            if self._broken is not None:
                update.set_aside()
            update.write(content)
        self._content = content
        self._kept = True
        if self.problem is not None:
            self._raws.clear()  # all that is offered may stand otherwise now
        self._broken = self._unwritten = None

    def _latest(self, update: Update, *, mend: bool = False) -> _Content:
        """A content to change, as the file has it now. With `mend`, a new one in the place of a broken one, in which
        all that is offered is to be decided about.

        Raises:
            Corrupt: the file is broken, and is not to be mended.
        """
        if update.moved:
            self._refresh()
        if self._broken is None:
            return _Content(servers=dict(self._content.servers), lost=self._content.lost)
        if not mend:
            raise Corrupt(self._broken)
        content = _Content(lost=sorted({*self._trusts, *(server for server, _ in self._now)}))
        for (server, kind), offers in self._now.items():
            kinds = content.servers.setdefault(server, {})
            kinds[kind] = run_inline(self._after(content, server, kind, offers))
        return content

    # How an item comes to stand where it does

    def _after(self, content: _Content, server: str, kind: str, offers: Mapping[str, _Offer]) -> Steps[_Items]:
        """The items of a kind once these are offered; the same object if they are the same."""
        kinds = content.servers.get(server, {})
        before = kinds.get(kind, {})
        found: _Items | None = None
        trust = self._trust(server)
        unseen = _Item(closed=server in content.lost and trust is not Trust.TRUSTED)
        space: _Space | None = None
        for name, offer in offers.items():
            yield None
            item = before.get(name, unseen)
            if item.approved is not None and item.approved.fingerprint == offer.fingerprint:
                if item.offered is not None:
                    found = dict(before) if found is None else found
                    found[name] = msgspec.structs.replace(item, offered=None)
                continue
            passes = _passes(kind, item, offer, trust)
            if not passes and item.offered is not None and item.offered.fingerprint == offer.fingerprint:
                continue
            found = dict(before) if found is None else found
            if space is None:
                space = yield from _space(kinds)
            if name not in found and not space.admits(name, found, offers):
                continue
            text = space.keep(offer.raw)
            if passes and text is not None:
                found[name] = _Item(approved=_Approved(offer.fingerprint, text, self._wall(), _by(kind, trust)))
            else:
                offered = _Offered(offer.fingerprint, text, self._wall())
                found[name] = msgspec.structs.replace(item, offered=offered)
        return before if found is None or found == before else found

    # What is known

    def _refresh(self) -> None:
        run_inline(self._refreshed())

    def _refreshed(self) -> Steps[None]:
        """Take up what another process has written meanwhile."""
        while self._file.changed():
            known, loaded = self._file.seen, list[_Loaded]()
            load = partial(_load, self._file, loaded)
            if self._file.size > _LARGE:
                yield load
            else:
                load()
            ((version, content),) = loaded
            if self._file.seen == known:  # else somebody else took up what was newer
                self._file.seen = version
                yield from self._taken(content)

    def _is_own(self) -> bool:
        """Whether the file is as this process wrote it, or is about to, for a reading that is not taken yet."""
        return self._writing > 0 or (self._own is not None and self._file.version() == self._own)

    def _taken(self, found: _Content | Corrupt | None) -> Steps[None]:
        """The content of the file holds from now on, in the place of what it said."""
        before, was_broken = self._content, self._broken
        expected = self._kept or self._file.was_there
        if found is None and expected:
            found = Corrupt("the file with the pins is gone")
        if isinstance(found, Corrupt):
            self._content = _Content()
            self._broken = f"{found}; nothing is approved until a person approves something anew"
        else:
            self._content = found or _Content()
            self._kept = self._kept or self._content.servers != {}
            self._broken = None
        for server in dict.fromkeys([*before.servers, *self._content.servers, *(server for server, _ in self._now)]):
            if server in self._moved:
                continue
            if (yield from self._stands_otherwise(server, before, was_broken is not None)):
                self._moved.add(server)

    def _stands_otherwise(self, server: str, before: _Content, was_broken: bool) -> Steps[bool]:
        """Whether anything of the server stands otherwise than by that content."""
        trust = self._trust(server)
        for kind in KINDS:
            former = before.servers.get(server, {}).get(kind, {})
            items = self._content.servers.get(server, {}).get(kind, {})
            offers = self._now.get((server, kind), {})
            for name in {**former, **items, **offers}:
                yield None
                was = _standing(former.get(name), offers.get(name), trust, broken=was_broken)
                if was is not _standing(items.get(name), offers.get(name), trust, broken=self._broken is not None):
                    return True
        return False

    def _trust(self, server: str) -> Trust:
        return self._trusts.get(server, Trust.UNTRUSTED)

    def _item(self, server: str, kind: str, name: str) -> _Item | None:
        return self._content.servers.get(server, {}).get(kind, {}).get(name)

    def _offer(self, server: str, kind: str, name: str, item: _Item | None) -> _Offer | None:
        """What is offered: to this process, or else what the file knows of. None if that was not kept."""
        live = self._now.get((server, kind), {}).get(name)
        stored = None if item is None else item.offered or item.approved
        if live is not None and (stored is None or stored.fingerprint != live.fingerprint):
            return live
        if stored is None or stored.definition is None:
            return None
        return live or _Offer(stored.definition.encode(), stored.fingerprint)


def _passes(kind: str, item: _Item, offer: _Offer, trust: Trust) -> bool:
    """Whether an item is approved without a person as it is offered now."""
    if kind == LAUNCH:
        was, now = _launch(item), _launch_in(offer.raw.decode())
        if was is not None and was.declared != now.declared:
            return True  # the owner edited the file
        if was is None or (item.approved is not None and was.program is None):
            return not item.closed
    return not item.closed and (trust is Trust.TRUSTED or (trust is Trust.STANDARD and item.approved is None))


def _by(kind: str, trust: Trust) -> str:
    if kind == LAUNCH:
        return BY_CONFIGURATION
    return BY_TRUST if trust is Trust.TRUSTED else BY_FIRST_SIGHT


class _Space:
    """How much more of a server may be kept, beside so many items and bytes."""

    def __init__(self, items: int, size: int) -> None:
        self._items = items
        self._bytes = size
        self._swept = False

    def admits(self, name: str, items: _Items, offers: Mapping[str, _Offer]) -> bool:
        """Whether an item more may be kept. If not, those make room that nobody ever decided about, and that are not
        offered any more: all of them, once."""
        if self._items >= MOST_ITEMS and not self._swept:
            self._swept = True
            for each in [each for each, item in items.items() if item.is_spare and each not in offers]:
                self._bytes -= _size(each, items.pop(each))
                self._items -= 1
        if self._items >= MOST_ITEMS or not _is_text(name) or self._bytes + len(name) > MOST_BYTES:
            return False
        self._items += 1
        self._bytes += len(name)
        return True

    def keep(self, raw: bytes) -> str | None:
        """The definition as it is kept; None if it is too long, or no text."""
        if self._bytes + len(raw) > MOST_BYTES:
            return None
        try:
            text = raw.decode()
        except UnicodeDecodeError:
            return None
        self._bytes += len(raw)
        return text


def _space(kinds: Mapping[str, _Items]) -> Steps[_Space]:
    count = size = 0
    for items in kinds.values():
        for name, item in items.items():
            yield None
            count += 1
            size += _size(name, item)
    return _Space(count, size)


def _size(name: str, item: _Item) -> int:
    return len(name) + sum(len(each.definition or "") for each in (item.approved, item.offered) if each is not None)


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


_Loaded = tuple[Identity | None, _Content | Corrupt | None]


def _load(file: Shared, into: list[_Loaded]) -> None:
    """The version of the file and its content, for a worker thread."""
    version, found = file.load()
    if found is None or isinstance(found, Corrupt):
        into.append((version, found))
        return
    try:
        into.append((version, _content(found)))
    except Corrupt as problem:
        into.append((version, problem))


def _content(found: object) -> _Content:
    """The content of the file. Raises Corrupt if it has another form."""
    try:
        content = msgspec.convert(found, _Content)
    except msgspec.ValidationError as problem:
        raise Corrupt(f"the file with the pins has another form: {problem}") from problem
    if content.version != _VERSION:
        raise Corrupt(f"the file with the pins is of version {content.version}, which is not known here")
    return content


def _blocks(content: _Content) -> Iterator[bytes]:
    """The content as JSON text: none so long that encoding it takes long, unless one item is, and few, since whoever
    hashes and writes them in another thread takes the interpreter for each."""
    block: list[bytes] = []
    size = 0
    for piece in _pieces(content):
        block.append(piece)
        size += len(piece)
        if size >= _BLOCK:
            yield b"".join(block)
            block, size = [], 0
    yield b"".join(block)


def _pieces(content: _Content) -> Iterator[bytes]:
    encode = msgspec.json.encode
    yield b'{"version":%d,"lost":%b,"servers":{' % (content.version, encode(content.lost))
    for server, kinds in content.servers.items():
        yield b'%b"%b":{' % (b"" if server == next(iter(content.servers)) else b",", server.encode())
        for kind, items in kinds.items():
            yield b'%b"%b":{' % (b"" if kind == next(iter(kinds)) else b",", kind.encode())
            for at, (name, item) in enumerate(items.items()):
                yield b"%b%b:%b" % (b"," if at else b"", encode(name), encode(item))
            yield b"}"
        yield b"}"
    yield b"}}"


def _standing(item: _Item | None, offer: _Offer | None, trust: Trust, *, broken: bool) -> PinStatus:
    """Where an item stands that is in the file so, and is offered so."""
    if item is None and offer is None:
        return PinStatus.UNKNOWN
    if broken:
        return PinStatus.NEW
    if trust is Trust.TRUSTED:
        return PinStatus.APPROVED
    if item is None or item.approved is None:
        return PinStatus.NEW
    if trust is Trust.UNTRUSTED and item.approved.by in (BY_TRUST, BY_FIRST_SIGHT):
        return PinStatus.NEW  # trusted more than now, it was looked at by nobody
    offered = item.last if offer is None else offer.fingerprint
    return PinStatus.APPROVED if item.approved.fingerprint == offered else PinStatus.CHANGED


def _offers(offered: Mapping[str, bytes], before: Mapping[str, _Offer], items: _Items) -> Steps[dict[str, _Offer]]:
    """The definitions offered, with fingerprints, which are only computed for those that are not known; for long ones,
    in another process."""
    found: dict[str, _Offer] = {}
    for name, raw in offered.items():
        yield None
        offer = _known(raw, before.get(name), items.get(name))
        if offer is None and is_long(raw):
            offer = _Offer(raw, (yield from in_worker(fingerprint, raw)))
        found[name] = offer or _Offer(raw, fingerprint(raw))
    return found


def _known(raw: bytes, before: _Offer | None, item: _Item | None) -> _Offer | None:
    """What is offered, if its fingerprint is known."""
    if before is not None and before.raw == raw:
        return before
    for each in () if item is None else (item.approved, item.offered):
        if each is not None and each.definition is not None and each.definition.encode() == raw:
            return _Offer(raw, each.fingerprint)
    return None


def _launch(item: _Item | None) -> Launch | None:
    """What was approved to be started, or is known to be offered."""
    known = None if item is None else item.approved or item.offered
    return None if known is None or known.definition is None else _launch_in(known.definition)


def _launch_in(definition: str) -> Launch:
    members = json.loads(definition)
    return Launch(members["declared"], members["program"])


def _bytes(definition: str | None) -> bytes | None:
    return None if definition is None else definition.encode()


def _named(server: str, kind: str, name: str) -> str:
    return f"{server}: {kind} {name!a}" if name else f"{server}: {kind}"
