"""The rules of pins: which definitions are approved without a person, what is kept of them, and which status an item
has. Nothing here is stored; only fingerprints of long definitions need a worker process.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from enum import Enum

import msgspec

from config import Trust
from host.jsonrpc.raw import members
from host.jsonrpc.withheld import is_withheld_in
from host.policy.fingerprint import Launch, fingerprint, is_long
from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.slices import in_worker, pause
from host.source import Aspect, AspectRef, EntryRef, Source
from host.storage.store import ApprovedDefinition, OfferedDefinition, StoredItem

MOST_ITEMS = 20_000
"""Items of one server that are kept. Further ones are held and cannot be approved."""
MOST_BYTES = 64 * 1024 * 1024
"""Bytes of names and definitions of one server that are kept."""

PinnedKind = Kind | Aspect
Pinnable = EntryRef | AspectRef
ListKey = tuple[Source, PinnedKind]
"""All that a source offers of one kind: it is pinned and compared together."""
KINDS: tuple[PinnedKind, ...] = (Kind.TOOL, Kind.PROMPT, Kind.RESOURCE, Kind.TEMPLATE, *Aspect)
"""Kinds of what is pinned, in the order in which people see them."""

BY_TRUST = "trust"
BY_FIRST_SIGHT = "first sight"
FIRST_SIGHT_FOR = 3600.0
"""Seconds after the first sight of a definition in one era, in which a different one of the other is first seen too."""
BY_CONFIGURATION = "configuration"
AUTOMATIC = (BY_TRUST, BY_FIRST_SIGHT, BY_CONFIGURATION)
"""Approvals that no person gave."""

Items = dict[str, StoredItem]
"""Stored items by name."""

# The store has one column for the kind and the era of a list: "tool" with a session, "stateless tool" without.
_COLUMNS: dict[tuple[Era, PinnedKind], str] = {
    (era, kind): kind.value if era is Era.SESSION else f"stateless {kind}"
    for kind in KINDS
    for era in Era
    if kind is not Aspect.LAUNCH or era is Era.SESSION
}
_LISTS = {column: each for each, column in _COLUMNS.items()}


def column_of(key: ListKey) -> str:
    """The `kind` under which the store keeps a list."""
    return _COLUMNS[key[0].era, key[1]]


def list_in(server: str, column: str) -> ListKey | None:
    """The list that the store keeps under this `kind`; None if this version does not know it."""
    if column not in _LISTS:
        return None
    era, kind = _LISTS[column]
    return Source(server, era), kind


def columns_of(key: ListKey) -> tuple[str, ...]:
    """The columns in which the definitions are that a list is compared with (`items_after`), its own included."""
    return tuple(column for column, (_, kind) in _LISTS.items() if kind is key[1])


class PinStatus(Enum):
    """Status of an item."""

    APPROVED = "approved"
    NEW = "new"
    """Never approved, or the approval was revoked: the item waits for a person."""
    CHANGED = "changed"
    """The offered definition differs from the approved one."""
    UNKNOWN = "unknown"
    """Not offered and never seen."""


# For speed; see RESOURCE in protocol/methods.py.
_TRUSTED, _UNTRUSTED, _APPROVED = Trust.TRUSTED, Trust.UNTRUSTED, PinStatus.APPROVED


class Offer(msgspec.Struct, frozen=True, gc=False):
    """An offered definition. `has_secret`: a secret of the server was withheld in it, so it is held until the server
    offers another one."""

    raw: bytes
    fingerprint: str
    has_secret: bool = False


def offer_of(kind: PinnedKind, raw: bytes, fingerprint: str) -> Offer:
    return Offer(raw, fingerprint, has_secret(kind, raw))


def has_secret(kind: str, raw: bytes) -> bool:
    """Whether a secret was withheld in the definition. Instructions are passed on without it."""
    return is_withheld_in(raw) and kind != Aspect.INSTRUCTIONS


async def items_after(
    key: ListKey,
    offers: Mapping[str, Offer],
    lists: Mapping[ListKey, Items],
    trust: Trust,
    wall: float,
    *,
    is_closed: bool,
) -> dict[str, StoredItem | None]:
    """The items of a list to store after these offers; None for an item to remove.

    Args:
        lists: the stored items of the server.
        wall: the present Unix time.
        is_closed: whether nothing unknown of the server is approved without a person, unless it is trusted.
    """
    kind = key[1]
    before = lists.get(key, {})
    others = [items for each, items in lists.items() if each[1] is kind and each != key]
    changed: dict[str, StoredItem | None] = {}
    unseen = StoredItem(closed=is_closed and trust is not Trust.TRUSTED)
    space: _Space | None = None
    for name, offer in offers.items():
        await pause()
        item, known = before.get(name, unseen), [items[name] for items in others if name in items]
        if item.approved is not None and item.approved.fingerprint == offer.fingerprint:
            if item.offered is not None:
                changed[name] = msgspec.structs.replace(item, offered=None)
            continue
        passes = _passes(kind, item, offer, trust, known, wall)
        if not passes and item.offered is not None and item.offered.fingerprint == offer.fingerprint:
            continue
        if space is None:
            space = await _space_left(lists)
        if name not in before and not space.admits(name, before, offers, changed):
            continue
        kept = offer.raw if space.keeps(offer.raw) else None
        if passes and kept is not None:
            by = _approved_as(known, offer) or _approver(kind, trust)
            changed[name] = StoredItem(approved=ApprovedDefinition(offer.fingerprint, kept, wall, by))
        else:
            changed[name] = msgspec.structs.replace(item, offered=OfferedDefinition(offer.fingerprint, kept, wall))
    return changed


def _passes(
    kind: PinnedKind, item: StoredItem, offer: Offer, trust: Trust, others: Sequence[StoredItem], wall: float
) -> bool:
    """Whether the offered item is approved without a person, or by what is approved of the same name from `others`,
    the server's other sources. Never if a secret was withheld in it.

    The sources may differ from the beginning, so a first sight is one of this source. But what is held from another
    one is not first seen here, nor what a person decided about there, or what is known there for longer than
    FIRST_SIGHT_FOR: a server could otherwise change a definition unseen by taking up another era.
    """
    if kind is Aspect.LAUNCH:
        was, now = _launch(item), launch_in(offer.raw)
        if now.installs and trust is not Trust.TRUSTED:
            return False  # a person approves what is installed, whoever edited the file
        if now.installed and was is not None and trust is not Trust.TRUSTED:
            if was.installed:
                return was.installed == now.installed and was.declared != now.declared
            if was.installs:  # what came of the installation that a person approved
                return item.approved is not None and was.declared == now.declared
        if was is not None and was.declared != now.declared:
            return True  # the owner edited the configuration
        if was is None or (item.approved is not None and was.program is None):
            return not item.closed
    if item.closed or offer.has_secret:
        return False
    if trust is Trust.TRUSTED or _approved_as(others, offer) is not None:
        return True
    if trust is not Trust.STANDARD or item.approved is not None:
        return False
    return all(_was_just_seen(each, wall) for each in others)


def _was_just_seen(item: StoredItem, wall: float) -> bool:
    if item.closed or item.offered is not None:
        return False
    known = item.approved
    return known is None or (known.by == BY_FIRST_SIGHT and wall - known.at <= FIRST_SIGHT_FOR)


def _approved_as(others: Sequence[StoredItem], offer: Offer) -> str | None:
    """The approver of this definition from another source; None if it has none."""
    for other in others:
        if other.approved is not None and other.approved.fingerprint == offer.fingerprint:
            return other.approved.by
    return None


def _approver(kind: PinnedKind, trust: Trust) -> str:
    if kind is Aspect.LAUNCH:
        return BY_CONFIGURATION
    return BY_TRUST if trust is Trust.TRUSTED else BY_FIRST_SIGHT


class _Space:
    """Remaining space for items of a server, given the number and bytes of the kept ones."""

    def __init__(self, items: int, size: int) -> None:
        self._items = items
        self._bytes = size
        self._swept = False

    def admits(
        self, name: str, items: Items, offers: Mapping[str, Offer], changed: dict[str, StoredItem | None]
    ) -> bool:
        """Whether one more item fits. If not, items that are not offered any more and that nobody decided about are
        removed, all of them, once."""
        if self._items >= MOST_ITEMS and not self._swept:
            self._swept = True
            for each in [each for each, item in items.items() if item.is_spare and each not in offers]:
                self._bytes -= _size(each, items[each])
                self._items -= 1
                changed[each] = None
        if self._items >= MOST_ITEMS or not _is_text(name) or self._bytes + len(name) > MOST_BYTES:
            return False
        self._items += 1
        self._bytes += len(name)
        return True

    def keeps(self, raw: bytes) -> bool:
        """Whether a definition is kept: not one that is too long, or not text."""
        if self._bytes + len(raw) > MOST_BYTES or not _is_text(raw):
            return False
        self._bytes += len(raw)
        return True


async def _space_left(lists: Mapping[ListKey, Items]) -> _Space:
    count = size = 0
    for items in lists.values():
        for name, item in items.items():
            await pause()
            count += 1
            size += _size(name, item)
    return _Space(count, size)


def _size(name: str, item: StoredItem) -> int:
    return len(name) + sum(len(each.definition or b"") for each in (item.approved, item.offered) if each is not None)


def _is_text(text: str | bytes) -> bool:
    """Whether it is Unicode, which a name may not be and bytes may not encode."""
    try:
        text.encode() if isinstance(text, str) else text.decode()
    except UnicodeError:
        return False
    return True


def status_of(item: StoredItem | None, offer: Offer | None, trust: Trust, *, lost: bool) -> PinStatus:
    """Status of an item, from its stored state and its present offer."""
    if item is None and offer is None:
        return PinStatus.UNKNOWN
    if lost:
        return PinStatus.NEW
    if offer is not None and offer.has_secret:
        return PinStatus.NEW if item is None or item.approved is None else PinStatus.CHANGED
    if trust is _TRUSTED:
        return _APPROVED
    if item is None or item.approved is None:
        return PinStatus.NEW
    if trust is _UNTRUSTED and item.approved.by in (BY_TRUST, BY_FIRST_SIGHT):
        return PinStatus.NEW  # approved under a higher trust level, not by a person
    offered = item.last if offer is None else offer.fingerprint
    return _APPROVED if item.approved.fingerprint == offered else PinStatus.CHANGED


def is_vouched(status: PinStatus, item: StoredItem | None, trust: Trust) -> bool:
    """Whether a person approved an item of this status as it is offered, or fully trusts the server: then its claims
    count."""
    if status is not _APPROVED:
        return False
    if trust is _TRUSTED:
        return True
    return item is not None and item.approved is not None and item.approved.by not in AUTOMATIC


async def offers_of(
    kind: PinnedKind, offered: Mapping[str, bytes], before: Mapping[str, Offer], items: Items
) -> dict[str, Offer]:
    """The offered definitions with fingerprints. Only unknown fingerprints are computed, those of long definitions in a
    worker process. A definition that equals a former or stored one is that object: most are, and each is once in memory
    then."""
    found: dict[str, Offer] = {}
    for name, raw in offered.items():
        await pause()
        offer = _known(kind, raw, before.get(name), items.get(name))
        if offer is None and is_long(raw):
            offer = offer_of(kind, raw, (await in_worker(fingerprint, raw)))
        found[name] = offer or offer_of(kind, raw, fingerprint(raw))
    return found


def newest(kind: PinnedKind, offer: Offer, item: StoredItem | None) -> Offer:
    """The last definition that was offered: a held one is stored at once, lists are remembered a little later."""
    held = None if item is None else item.offered
    if held is None or held.fingerprint == offer.fingerprint:
        return offer
    return offer_of(kind, held.definition or offer.raw, held.fingerprint)


def _known(kind: PinnedKind, raw: bytes, before: Offer | None, item: StoredItem | None) -> Offer | None:
    """The offer with its fingerprint, if that is already known."""
    if before is not None and before.raw == raw:
        return before
    for each in () if item is None else (item.approved, item.offered):
        if each is not None and each.definition == raw:
            return offer_of(kind, each.definition, each.fingerprint)
    return None


def _launch(item: StoredItem | None) -> Launch | None:
    """The approved launch identity, or else the offered one."""
    known = None if item is None else item.approved or item.offered
    return None if known is None or known.definition is None else launch_in(known.definition)


def launch_in(definition: bytes) -> Launch:
    members = json.loads(definition)
    return Launch(**members)


_ERA_WORDS = {Era.SESSION: "with a session", Era.STATELESS: "without a session"}


def definitions_by_era(definitions: Mapping[Source, bytes]) -> bytes:
    """The definitions of several sources in one JSON text, with words that people know for their eras."""
    found = (b'"%b":%b' % (_ERA_WORDS[source.era].encode(), raw) for source, raw in definitions.items())
    return b"{%b}" % b",".join(found)


def definitions_in(text: bytes) -> list[bytes]:
    """The definitions in a text of `definitions_by_era`; a definition alone, which always has other members, as it
    is."""
    try:
        found = members(text)
    except ValueError:
        return [text]
    if not found or not found.keys() <= set(_ERA_WORDS.values()):
        return [text]
    return [bytes(each) for each in found.values()]
