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

import msgspec

from config import Trust
from host.policy.fingerprint import Launch, fingerprint
from host.state import Corrupt, Shared, StateError, Update

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


class Standing(Enum):
    """Where an item stands."""

    APPROVED = "approved"
    NEW = "new"
    """It was never approved, or that was taken back: it waits for a person."""
    CHANGED = "changed"
    """Another definition of it was approved than is offered now."""
    UNKNOWN = "unknown"
    """It is not offered and was never seen."""


class Moved(Exception):
    """What was to be decided about is not there any more, or not as it was shown. The text is a sentence."""


@dataclass(frozen=True)
class Change:
    """Something to tell. `standing` is what came of it; `first`: the item was never seen before; `was` is the
    fingerprint of what was offered before, None if nothing was."""

    server: str
    kind: str
    name: str
    standing: Standing
    first: bool
    fingerprint: str
    was: str | None


@dataclass(frozen=True)
class Held:
    """An item that waits for a person. `offered` and `approved` are definitions as JSON text, `since` is Unix time."""

    server: str
    kind: str
    name: str
    standing: Standing
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


# What is in the file. None stands for a definition that was not kept.


class _Approved(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: str
    definition: str | None
    at: float
    by: str


class _Offered(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    fingerprint: str
    definition: str | None
    since: float


class _Item(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    approved: _Approved | None = None
    offered: _Offered | None = None
    """What is offered, where that is not what is approved."""
    rejected: str | None = None
    """The fingerprint that a person refused."""
    closed: bool = False
    """Nothing of this item is pinned by first sight or trust: a person has refused it, or what was known is lost."""

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


@dataclass(frozen=True, slots=True)
class _Offer:
    raw: bytes
    fingerprint: str


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
        self._standings: dict[str, dict[tuple[str, str], Standing]] = {}
        self._moved: set[str] = set()
        self._broken: str | None = None
        self._unwritten: str | None = None
        self._kept = False
        """Whether there was a file: then it does not vanish by itself."""
        self._take(file.read)
        self._moved.clear()

    @property
    def problem(self) -> str | None:
        """A sentence for people if the file cannot be read (then nothing is approved) or written (then nothing new is
        remembered)."""
        return self._broken or self._unwritten

    def set_trusts(self, trusts: Mapping[str, Trust]) -> None:
        """From now on these hold. What they approve by themselves is approved with the next `observe`."""
        self._trusts = dict(trusts)
        self._raws.clear()
        self._judge_all()

    # Looking up

    def standing(self, server: str, kind: str, name: str) -> Standing:
        """Where an item stands; what is not offered at the moment stands as it did."""
        found = self._standings.get(server)
        return Standing.UNKNOWN if found is None else found.get((kind, name), Standing.UNKNOWN)

    def fingerprint(self, server: str, kind: str, name: str) -> str | None:
        """Of what is offered now; None if it is not."""
        offer = self._now.get((server, kind), {}).get(name)
        return None if offer is None else offer.fingerprint

    def launch(self, server: str) -> str:
        """A digest of what is started as the server, as it was observed last; empty if it was not."""
        return self.fingerprint(server, LAUNCH, "") or ""

    def held(self) -> list[Held]:
        """All that waits for a person, and that a person can decide about."""
        found: list[Held] = []
        waiting = (
            (server, kind, name, standing)
            for server, standings in self._standings.items()
            for (kind, name), standing in standings.items()
            if standing is not Standing.APPROVED
        )
        for server, kind, name, standing in waiting:
            item = self._item(server, kind, name)
            offer = self._offer(server, kind, name, item)
            if offer is None or (item is None and self._broken is None):
                continue
            item = item or _Item()
            changed = standing is Standing.CHANGED and item.approved is not None
            approved = _bytes(item.approved.definition) if changed and item.approved is not None else None
            since = self._wall() if item.offered is None else item.offered.since
            rejected = item.rejected == offer.fingerprint
            found.append(Held(server, kind, name, standing, offer.fingerprint, offer.raw, approved, since, rejected))
        return found

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
        """Take note of all that a server offers of one kind, JSON text by name; what is to be told of it.

        Writes at most once, and not at all if nothing is new. What cannot be written down is not approved by itself.
        """
        self._refresh()
        key = (server, kind)
        if self._raws.get(key) == offered:
            return []
        before = self._now.get(key, {})
        known = self._content.servers.get(server, {}).get(kind, {})
        self._now[key] = {name: _known(raw, before.get(name), known.get(name)) for name, raw in offered.items()}
        changes = self._settle(server, kind, before)
        if self.problem is None:
            self._raws[key] = dict(offered)
        else:
            self._raws.pop(key, None)
        return changes

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
        self._refresh()
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
                if self.standing(server, kind, name) is Standing.APPROVED:
                    raise Moved(f"{_named(server, kind, name)} is approved as it is: take that back instead")
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
                raise Moved(f"{_named(server, kind, name)} is not approved")
            pin = item.approved
            offered = item.offered or _Offered(pin.fingerprint, pin.definition, self._wall())
            items[name] = _Item(offered=offered, rejected=item.rejected, closed=True)

    def _shown(self, server: str, kind: str, name: str, item: _Item | None, fingerprint: str) -> _Offer:
        """What is offered, which must be what was shown."""
        offer = self._offer(server, kind, name, item)
        if offer is None or item is None:
            raise Moved(f"{_named(server, kind, name)} is not offered, or more is offered than is kept")
        if offer.fingerprint != fingerprint:
            raise Moved(f"{_named(server, kind, name)} has changed since it was shown: look at it again")
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
        self._judge_all()

    def _latest(self, update: Update, *, mend: bool = False) -> _Content:
        """A content to change, as the file has it now. With `mend`, a new one in the place of a broken one, in which
        all that is offered is to be decided about.

        Raises:
            Corrupt: the file is broken, and is not to be mended.
        """
        if update.moved:
            self._take(update.read)
        if self._broken is None:
            return _Content(servers=dict(self._content.servers), lost=self._content.lost)
        if not mend:
            raise Corrupt(self._broken)
        content = _Content(lost=sorted({*self._trusts, *(server for server, _ in self._now)}))
        for (server, kind), offers in self._now.items():
            kinds = content.servers.setdefault(server, {})
            kinds[kind] = self._after(content, server, kind, offers)
        return content

    # How an item comes to stand where it does

    def _settle(self, server: str, kind: str, before: Mapping[str, _Offer]) -> list[Change]:
        """Write down what has to be, and say what became of what is offered now."""
        offers = self._now[server, kind]
        items = self._content.servers.get(server, {}).get(kind, {})
        stood = {name: self.standing(server, kind, name) for name in offers}
        if self._broken is None:
            try:
                self._write_down(server, kind, offers)
                self._unwritten = None
            except Corrupt:
                pass  # `_take` has seen to it
            except StateError as problem:
                self._unwritten = f"{problem}; what servers offer anew is held back"
        self._judge_server(server)
        changes: list[Change] = []
        for name, offer in offers.items():
            item = items.get(name)
            old = before.get(name)
            was = old.fingerprint if old is not None else None if item is None else item.last
            standing = self.standing(server, kind, name)
            if was != offer.fingerprint or stood[name] not in (standing, Standing.UNKNOWN):
                changes.append(Change(server, kind, name, standing, was is None, offer.fingerprint, was))
        return changes

    def _write_down(self, server: str, kind: str, offers: Mapping[str, _Offer]) -> None:
        items = self._content.servers.get(server, {}).get(kind, {})
        if self._after(self._content, server, kind, offers) == items:
            return
        with self._file.updating() as update:
            content = self._latest(update)
            kinds = content.servers.get(server, {})
            after = self._after(content, server, kind, offers)
            if after != kinds.get(kind, {}):
                content.servers[server] = {**kinds, kind: after}
                update.write(content)
        self._content = content
        self._kept = True

    def _after(self, content: _Content, server: str, kind: str, offers: Mapping[str, _Offer]) -> _Items:
        """The items of a kind once these are offered."""
        kinds = content.servers.get(server, {})
        found = dict(kinds.get(kind, {}))
        trust = self._trusts.get(server, Trust.UNTRUSTED)
        unseen = _Item(closed=server in content.lost and trust is not Trust.TRUSTED)
        space: _Space | None = None
        for name, offer in offers.items():
            item = found.get(name, unseen)
            if item.approved is not None and item.approved.fingerprint == offer.fingerprint:
                if item.offered is not None:
                    found[name] = msgspec.structs.replace(item, offered=None)
                continue
            passes = _passes(kind, item, offer, trust)
            if not passes and item.offered is not None and item.offered.fingerprint == offer.fingerprint:
                continue
            space = space or _Space(kinds)
            if name not in found and not space.admits(name, found, offers):
                continue
            text = space.keep(offer.raw)
            if passes and text is not None:
                found[name] = _Item(approved=_Approved(offer.fingerprint, text, self._wall(), _by(kind, trust)))
            else:
                offered = _Offered(offer.fingerprint, text, self._wall())
                found[name] = msgspec.structs.replace(item, offered=offered)
        return found

    # What is known

    def _refresh(self) -> None:
        if self._file.changed():
            self._take(self._file.read)

    def _take(self, read: Callable[[], object | None]) -> None:
        """What the file says now, in the place of what it said."""
        try:
            self._content = _content(read(), self._kept)
            self._kept = self._kept or self._content.servers != {}
            self._broken = None
        except Corrupt as problem:
            self._content = _Content()
            self._broken = f"{problem}; nothing is approved until a person approves something anew"
        before = self._standings
        self._judge_all()
        servers = before.keys() | self._standings.keys()
        self._moved |= {server for server in servers if before.get(server) != self._standings.get(server)}

    def _judge_all(self) -> None:
        self._standings = {}
        for server in dict.fromkeys([*self._content.servers, *(server for server, _ in self._now)]):
            self._judge_server(server)

    def _judge_server(self, server: str) -> None:
        kinds = self._content.servers.get(server, {})
        trust = self._trusts.get(server, Trust.UNTRUSTED)
        found: dict[tuple[str, str], Standing] = {}
        for kind in KINDS:
            items, offers = kinds.get(kind, {}), self._now.get((server, kind), {})
            for name in {**items, **offers}:
                offer, item = offers.get(name), items.get(name)
                offered = offer.fingerprint if offer is not None else None if item is None else item.last
                found[kind, name] = self._judged(item, offered, trust)
        self._standings[server] = found

    def _judged(self, item: _Item | None, offered: str | None, trust: Trust) -> Standing:
        if self._broken is not None:
            return Standing.NEW
        if trust is Trust.TRUSTED:
            return Standing.APPROVED
        if item is None or item.approved is None:
            return Standing.NEW
        if trust is Trust.UNTRUSTED and item.approved.by in (BY_TRUST, BY_FIRST_SIGHT):
            return Standing.NEW  # trusted more than now, it was looked at by nobody
        return Standing.APPROVED if item.approved.fingerprint == offered else Standing.CHANGED

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
    """How much more of a server may be kept."""

    def __init__(self, kinds: Mapping[str, _Items]) -> None:
        self._items = sum(len(items) for items in kinds.values())
        self._bytes = sum(
            len(name) + sum(len(each.definition or "") for each in (item.approved, item.offered) if each is not None)
            for items in kinds.values()
            for name, item in items.items()
        )

    def admits(self, name: str, items: _Items, offers: Mapping[str, _Offer]) -> bool:
        """Whether an item more may be kept. If not, those make room that nobody ever decided about, and that are not
        offered any more."""
        if self._items >= MOST_ITEMS:
            spare = [each for each, item in items.items() if each not in offers and item.approved is None]
            for each in spare:
                if not items[each].closed:
                    del items[each]
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


def _is_text(name: str) -> bool:
    try:
        name.encode()
    except UnicodeEncodeError:
        return False
    return True


def _content(found: object | None, expected: bool) -> _Content:
    """The content of the file. Raises Corrupt if it has another form, or if there is none though one is expected."""
    if found is None:
        if expected:
            raise Corrupt("the file with the pins is gone")
        return _Content()
    try:
        content = msgspec.convert(found, _Content)
    except msgspec.ValidationError as problem:
        raise Corrupt(f"the file with the pins has another form: {problem}") from problem
    if content.version != _VERSION:
        raise Corrupt(f"the file with the pins is of version {content.version}, which is not known here")
    return content


def _known(raw: bytes, before: _Offer | None, item: _Item | None) -> _Offer:
    """What is offered, with its fingerprint, which is only computed for what is in no way known."""
    if before is not None and before.raw == raw:
        return before
    for each in () if item is None else (item.approved, item.offered):
        if each is not None and each.definition is not None and each.definition.encode() == raw:
            return _Offer(bytes(raw), each.fingerprint)
    return _Offer(bytes(raw), fingerprint(raw))


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
