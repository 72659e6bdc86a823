"""Connection slots of one listener: how many connections are open, and which one is closed to make room for another.

Regular slots are for all connections. When all are taken, a few *extra* connections are accepted, to read one request
head each, because only the head tells the owner of a request. The listener closes them after one response. *Reserved*
slots are for requests that the app marks, so that a person reaches the console of a full host.

Pure: connections are keys that can be closed, owners are any hashable values (None: anonymous), and the caller passes
the time.

The order in which connections are closed, each time the one that has waited longest:
  1. one whose last response has been sent, and which only discards input;
  2. one that has had `INCOMPLETE_TIMEOUT` seconds for a request head;
  3. an idle one, after `QUIET_AFTER` seconds unless a complete request needs its slot;
  4. one that has had `INCOMPLETE_TIMEOUT` seconds for a request body, and is not being answered.
Anonymous connections are closed before all others. Connections of a named owner are closed only for the same owner, or
for one that has fewer connections even with the new one: first those of the owner with the most connections, and none
that was used within `RECENT_WINDOW` seconds. A connection whose request is being answered is never closed, nor one with
unread input, unless that is a further part of a head."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable, Iterable, Iterator
from enum import IntEnum, auto
from typing import Generic, Protocol, TypeVar

from msgspec import Struct

EXTRA = 32
"""Connections beyond the regular ones that are accepted to read a request head."""
SERVED_EXTRA = 16
"""Extra connections that may be served, if their owners hold less than their share; the rest keep reading heads."""
RESERVED = 16
"""Connections beyond all others for requests that the app marks: the console's pages and their requests."""
QUIET_AFTER = 0.1
"""Seconds that a client has for its first byte while others wait to be accepted, so that no connection is closed as
soon as it is made."""
INCOMPLETE_TIMEOUT = 1.0
"""Seconds that a client has for an incomplete request while others wait for its slot, or for a head while more than
MANY_HEADS are incomplete."""
MANY_HEADS = 64
RECENT_WINDOW = 5.0
"""Seconds after its last use in which a connection of a named owner is not closed for another one."""
NEARLY_FULL = 0.9
"""Share of the regular slots beyond which no anonymous connection is kept open for another request."""


class Phase(IntEnum):  # of integers, because they are keys: hashing members of Enum is slow
    IDLE = auto()
    """Between two requests, or before the first byte."""
    HEAD = auto()
    """Part of a request head has been received."""
    REQUEST = auto()
    """A request is being received or answered; an open stream is a response."""
    ENDING = auto()
    """The last response has been sent."""


class ClosableConnection(Protocol):
    def waits_for_client(self) -> bool:
        """Whether the connection continues only if its client sends something: it is open, no request is being
        answered, and no received byte is unread, except those of a head that comes in parts."""
        ...

    def close(self) -> None: ...


C = TypeVar("C", bound=ClosableConnection)


class _Kind(IntEnum):
    REGULAR = auto()
    EXTRA = auto()
    RESERVED = auto()


_REGULAR, _EXTRA = _Kind.REGULAR, _Kind.EXTRA  # for speed; see RESOURCE in protocol/methods.py


class _Slot(Struct):
    kind: _Kind
    since: float
    phase: Phase = Phase.IDLE
    owner: Hashable = None


class Slots(Generic[C]):
    """The open connections. A connection that is closed to make room is removed at once."""

    def __init__(self, regular: int) -> None:
        self._regular = regular
        self._slots: dict[C, _Slot] = {}
        # Ordered sets: in `_kinds`, the connection that took its slot first is first; in `_phases`, the one that has
        # been longest in its phase. So the victim is found without a look at all connections. (Not a dict: finding its
        # first key takes a look at all that were removed before it.)
        self._kinds: dict[_Kind, OrderedDict[C, None]] = {kind: OrderedDict() for kind in _Kind}
        self._phases: dict[Hashable, dict[Phase, OrderedDict[C, None]]] = {}

    def __iter__(self) -> Iterator[C]:
        return iter(list(self._slots))

    def __len__(self) -> int:
        return len(self._slots)

    @property
    def incomplete_heads(self) -> int:
        """Number of connections that have sent a part of a request head."""
        return sum(len(phases[Phase.HEAD]) for phases in self._phases.values())

    def idle_since(self, time: float) -> bool:
        """Whether a connection is idle, and has not been for longer than since then."""
        newest = (next(reversed(phases[Phase.IDLE]), None) for phases in self._phases.values())
        return any(each is not None and self._slots[each].since > time for each in newest)

    @property
    def full(self) -> bool:
        """Whether a connection must be closed before another one is accepted."""
        return len(self._kinds[_Kind.EXTRA]) >= EXTRA

    def make_room(self, now: float) -> bool:
        """Close one anonymous connection, for one that waits to be accepted. False if none may be closed."""
        victim = self._victim(None, (_Kind.REGULAR, _Kind.EXTRA), now, QUIET_AFTER)
        if victim is None:
            return False
        victim.close()
        self.remove(victim)
        return True

    def add(self, connection: C, now: float) -> None:
        """Give a slot to a connection that was just accepted: a regular one if possible."""
        regular = len(self._kinds[_Kind.REGULAR]) < self._regular or self._free_regular([None], now, QUIET_AFTER)
        slot = self._slots[connection] = _Slot(_Kind.REGULAR if regular else _Kind.EXTRA, now)
        self._kinds[slot.kind][connection] = None
        self._enter(connection, slot)

    def set_phase(self, connection: C, phase: Phase, now: float) -> None:
        """Set the phase of a connection. The same phase again changes nothing."""
        slot = self._slots.get(connection)
        if slot is not None and slot.phase is not phase:
            phases = self._phases[slot.owner]
            del phases[slot.phase][connection]
            phases[phase][connection] = None
            slot.phase, slot.since = phase, now

    def claim(self, connection: C, owner: Hashable, now: float, *, reserved: bool) -> bool:
        """Set the owner of the request on a connection. False if there is no slot in which the request may be served.

        An extra connection gets a regular slot if one can be freed. Otherwise a marked request gets a reserved slot,
        and one of a named owner is served in its extra slot, unless the owner already has the share of one owner.
        """
        slot = self._slots.get(connection)
        if slot is None:
            return False
        if slot.owner != owner:
            self._set_owner(connection, slot, owner)
        if slot.kind is not _EXTRA:
            return True
        if self._free_regular([None], now, 0.0) or self._free_regular(self._yielding_to(owner), now, RECENT_WINDOW):
            self._move(connection, slot, _Kind.REGULAR)
        elif reserved and self._free_reserved():
            self._move(connection, slot, _Kind.RESERVED)
        elif not self._deserves_extra(owner):
            self._set_owner(connection, slot, None)  # a refused request does not count for its owner
            return False
        return True

    def ends_after_answer(self, connection: C) -> bool:
        """Whether the connection is closed after the current response, even if its next request has arrived: otherwise
        pipelined requests would keep an anonymous connection open for any time."""
        slot = self._slots.get(connection)
        if slot is None or slot.kind is not _REGULAR:
            return True
        nearly_full = len(self._kinds[_REGULAR]) > NEARLY_FULL * self._regular
        return nearly_full and slot.owner is None

    def remove(self, connection: C) -> None:
        """Free the slot; the extra connection that has waited longest gets it. Does nothing if it is already free."""
        slot = self._drop(connection)
        if slot is None or slot.kind is not _Kind.REGULAR:
            return
        for kind in (_Kind.EXTRA, _Kind.RESERVED):
            for promoted in self._kinds[kind]:
                self._move(promoted, self._slots[promoted], _Kind.REGULAR)
                return

    def _yielding_to(self, owner: Hashable) -> list[Hashable]:
        """The named owners whose connections may be closed for the new one of this owner, which is already counted. An
        owner with the same number does not count: two such owners would close each other's connections in turn."""
        if owner is None:
            return []
        return [each for each in self._named() if each == owner or self._count_of(each) > self._count_of(owner)]

    def _named(self) -> list[Hashable]:
        """The named owners, with the most connections first."""
        return sorted((owner for owner in self._phases if owner is not None), key=self._count_of, reverse=True)

    def _count_of(self, owner: Hashable) -> int:
        return sum(map(len, self._phases[owner].values()))

    def _deserves_extra(self, owner: Hashable) -> bool:
        if owner is None:
            return False
        served = sum(self._slots[each].owner is not None for each in self._kinds[_Kind.EXTRA])
        return served <= SERVED_EXTRA and self._count_of(owner) <= self._regular / len(self._named())

    def _free_regular(self, owners: Iterable[Hashable], now: float, quiet: float) -> bool:
        """Close a regular connection of the first of these owners that has one to close. False if none has."""
        for owner in owners:
            victim = self._victim(owner, (_Kind.REGULAR,), now, quiet)
            if victim is not None:
                victim.close()
                self._drop(victim)
                return True
        return False

    def _free_reserved(self) -> bool:
        """Make sure that a reserved slot is free; False if it cannot be. An anonymous connection loses its slot to the
        next one even in the middle of a request: otherwise a few incomplete requests would keep all reserved slots."""
        held = self._kinds[_Kind.RESERVED]
        if len(held) < RESERVED:
            return True
        victim = next((each for each in held if self._slots[each].owner is None), None)
        if victim is None:
            return False
        victim.close()
        self._drop(victim)
        return True

    def _victim(self, owner: Hashable, kinds: tuple[_Kind, ...], now: float, quiet: float) -> C | None:
        phases = self._phases.get(owner)
        if phases is None:
            return None
        slow = max(INCOMPLETE_TIMEOUT, quiet)
        for phase, age in ((Phase.ENDING, 0.0), (Phase.HEAD, slow), (Phase.IDLE, quiet), (Phase.REQUEST, slow)):
            for connection in phases[phase]:
                slot = self._slots[connection]
                if now - slot.since < age:
                    break
                if slot.kind in kinds and connection.waits_for_client():
                    return connection
        return None

    def _set_owner(self, connection: C, slot: _Slot, owner: Hashable) -> None:
        self._leave(connection, slot)
        slot.owner = owner
        self._enter(connection, slot)

    def _move(self, connection: C, slot: _Slot, kind: _Kind) -> None:
        del self._kinds[slot.kind][connection]
        slot.kind = kind
        self._kinds[kind][connection] = None

    def _drop(self, connection: C) -> _Slot | None:
        slot = self._slots.pop(connection, None)
        if slot is not None:
            del self._kinds[slot.kind][connection]
            self._leave(connection, slot)
        return slot

    def _enter(self, connection: C, slot: _Slot) -> None:
        phases = self._phases.get(slot.owner)
        if phases is None:
            phases = self._phases[slot.owner] = {phase: OrderedDict() for phase in Phase}
        phases[slot.phase][connection] = None

    def _leave(self, connection: C, slot: _Slot) -> None:
        phases = self._phases[slot.owner]
        del phases[slot.phase][connection]
        if not any(phases.values()):
            del self._phases[slot.owner]
