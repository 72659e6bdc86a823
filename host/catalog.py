"""What all servers together offer: an immutable shelf per kind, with a version that moves when the shelf does.

The catalog knows entries, not who may see them (policy) and not who is watching (faces). A server's list replaces its
former list whole. Order is that of the configuration, then the server's own. Two entries that would be called the same
outside are both left out of the shared endpoint: which came first decides nothing.

When the policy moves, what may be seen is judged anew: of long lists in steps, so that nobody waits for it but who
wants to be shown a list. What may be reached is the gate's to say, and does not wait for this.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from types import MappingProxyType
from typing import Any

import trio
from msgspec import Raw, Struct

from host.jsonrpc.raw import encode, encode_object, members
from host.memory import Budget, Holding, OverBudget, Use
from host.memory import server as owner
from host.names import outward_name, outward_uri
from host.protocol.links import rename_page
from host.protocol.methods import LISTINGS, Kind
from host.protocol.mirror import Mirror, mirrors
from host.protocol.stateless import STALE, Freshness
from host.protocol.tasks import Support, task_support
from host.slices import Slices, Steps, at_once

COPIES = 4
"""Copies of a definition that are kept (measured): as its server wrote it, as its pin has it, with its outward names,
and in the lists that clients are shown."""
AT_ONCE = 100
"""Entries that are judged anew without a pause."""


class Entry(Struct, frozen=True, gc=False):
    """One exported tool, resource, template or prompt. None is part of a cycle, so the collector, which stops
    everything, need not look at them, however many there are."""

    kind: Kind
    server: str
    inward: str
    """Its name or URI at the server."""
    outward: str
    """Its name or URI at the shared endpoint."""
    definition: bytes
    """As the server wrote it, on one line."""
    exported: bytes
    """The same with its outward names."""
    may_be_task: bool = False
    """Whether a call of it may become a task."""
    support: Support = Support.FORBIDDEN
    """What it says itself of being called as a task."""
    mirrors: tuple[Mirror, ...] | None = ()
    """What headers repeat of its arguments; None if its schema says that in a way that is not allowed, so that no
    stateless client may call it over HTTP."""


class Definition(Struct, frozen=True, gc=False):
    """One entry as a server listed it."""

    name: str
    raw: bytes
    may_be_task: bool = False


@dataclass(frozen=True, slots=True)
class Hint:
    """How fresh a server's list was, and when it was asked for: a time of this process, in seconds."""

    freshness: Freshness
    asked_at: float

    def now(self, time: float) -> Freshness:
        """What is left of it."""
        left = self.freshness.ttl_ms - int((time - self.asked_at) * 1000)
        return Freshness(max(left, 0), self.freshness.public)


@dataclass(frozen=True, eq=False)
class Part:
    """What one server offers of one kind, with what may be seen of it. Whoever makes lists of it may keep them in
    `lists`: they go when it goes."""

    entries: tuple[Entry, ...]
    shown: tuple[Entry, ...]
    by_outward: Mapping[str, Entry]
    """Those that are shown."""
    hidden: Mapping[str, Entry]
    """The others, by outward name."""
    by_inward: Mapping[tuple[str, str], Entry]
    lists: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shelf:
    """All entries of one kind at one moment."""

    version: int = 0
    parts: Mapping[str, Part] = field(default_factory=dict)
    """By server, in order."""
    colliding: frozenset[tuple[str, str]] = frozenset()
    """By server and its own name: what is left out because another is called the same."""
    by_server: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    """Of all servers, in order: what may be seen, without those whose outward names collide."""
    by_outward: Mapping[str, Entry] = field(default_factory=dict)
    """Also what may not be seen, where nothing else has its name: whoever asks for it is refused by the gate."""
    by_inward: Mapping[tuple[str, str], Entry] = field(default_factory=dict)
    """By server and its own name."""
    narrowed: int = 0
    """Shelves before this version show what may not be seen any more."""


class Catalog:
    """Publishes shelves and lets others wait for the next one. `servers` is the order of the configuration; `shows`
    says what may be seen (server, kind, its own name); `collided` is told once of each entry that is left out because
    another is called the same. What is kept is charged to `memory`."""

    def __init__(
        self,
        servers: Sequence[str],
        shows: Callable[[str, Kind, str], bool],
        collided: Callable[[Entry], None],
        memory: Budget | None = None,
    ) -> None:
        self.memory = memory or Budget()
        self._kept: dict[tuple[str, Kind], Holding] = {}
        self._displaced: dict[tuple[str, Kind], Callable[[], None]] = {}
        self._order = tuple(servers)
        self._shows = shows
        self._collided = collided
        self._shelves = {kind: Shelf() for kind in Kind}
        self._hints: dict[tuple[str, Kind], Hint] = {}
        self._moved = trio.lowlevel.ParkingLot()
        self._due: dict[tuple[str, Kind], object] = {}
        """Lists to be judged anew, each with a mark that is another each time."""
        self._more_due = trio.lowlevel.ParkingLot()
        self.version = 0
        self.slices = Slices()
        """For all work that grows with the lists."""

    def shelf(self, kind: Kind) -> Shelf:
        return self._shelves[kind]

    def tool(self, server: str, name: str) -> Entry | None:
        """The tool that the server lists under its own name."""
        return self._shelves[Kind.TOOL].by_inward.get((server, name))

    def hint(self, server: str, kind: Kind) -> Hint | None:
        """How fresh what the server offers of this kind is; None if it offers nothing of the kind."""
        return self._hints.get((server, kind))

    def lapse(self, server: str, kind: Kind) -> None:
        """What the server said of how long its list stays true holds no more."""
        hint = self._hints.get((server, kind))
        if hint is not None:
            self._hints[server, kind] = Hint(STALE, hint.asked_at)

    def charge(
        self, server: str, kind: Kind, size: int, displaced: Callable[[], None] = lambda: None
    ) -> Holding | None:
        """Charge so many bytes for what `server` offers of `kind` from now on. None, and all stays as it was, if there
        is no memory for them. What is dropped must not be published any more.

        Args:
            displaced: called when others who keep less need the memory, so that the server lists nothing of the kind
                by then. It may charge nothing.
        """
        key = (server, kind)
        held = self._kept.get(key)
        if held is None:
            drop = partial(self._displace, server, kind)
            held = self._kept[key] = self.memory.hold(owner(server), Use.LISTS, drop=drop, firm=True)
        try:
            held.resize(COPIES * size)
        except OverBudget:
            return None
        self._displaced[key] = displaced
        return held

    def _displace(self, server: str, kind: Kind) -> None:
        """From now on it is as if the server had never listed anything of the kind: it may yet come to list it."""
        key = (server, kind)
        self._kept.pop(key).release()
        self._hints.pop(key, None)
        was_due = self._no_more_due(key)
        shelf = self._shelves[kind]
        if server in shelf.parts:
            left = {each: part for each, part in shelf.parts.items() if each != server}
            self._shelves[kind] = self._shelve(kind, shelf.version + 1, left, narrowed=was_due)
            self._move()
        self._displaced.pop(key)()

    def part(
        self, server: str, kind: Kind, definitions: Iterable[Definition], shows: Callable[[str], bool]
    ) -> Steps[Part]:
        """What `server` offers of `kind`, for `publish`; `shows` says what may be seen by its own name."""
        former = self._shelves[kind].parts.get(server)
        known = {} if former is None else former.by_inward
        entries: list[Entry] = []
        for definition in definitions:
            yield None
            entry = known.get((server, definition.name))
            if entry is None or (entry.definition, entry.may_be_task) != (definition.raw, definition.may_be_task):
                entry = _entry(kind, server, definition)
            entries.append(entry)
        return (yield from _part(entries, shows))

    def publish(self, server: str, kind: Kind, part: Part, hint: Hint | None = None) -> bool:
        """Replace what `server` offers of `kind`, in one step; the part was made under the policy of this moment. True
        if anything changed; then everybody who waits wakes up."""
        shelf = self._shelves[kind]
        was_due = self._no_more_due((server, kind))
        if hint is None:
            self._hints.pop((server, kind), None)
        else:
            self._hints[server, kind] = hint
        before = shelf.parts.get(server)
        if before is not None and (part.entries, part.shown) == (before.entries, before.shown):
            return False
        # To list nothing is not the same as to have listed never, but nobody sees a difference.
        changed = before is not None or bool(part.entries)
        parts = {**shelf.parts, server: part}
        self._shelves[kind] = self._shelve(kind, shelf.version + changed, parts, narrowed=was_due and changed)
        if changed:
            self._move()
        return changed

    def reconsider(self, servers: Iterable[str]) -> None:
        """Judge anew which entries of these servers may be seen; all who wait wake up if others may. `run` does so for
        long lists: see `judged`."""
        for kind, shelf in self._shelves.items():
            self._due.update({(server, kind): object() for server in servers if server in shelf.parts})
        if sum(len(self._shelves[kind].parts[server].entries) for server, kind in self._due) <= AT_ONCE:
            for kind in Kind:
                at_once(self._judging(kind))
        else:
            self._more_due.unpark_all()

    async def run(self) -> None:
        """Judge anew what is to be, until cancelled: each kind beside the others, so that no list waits for a longer
        one of another kind."""
        async with trio.open_nursery() as nursery:
            for kind in Kind:
                nursery.start_soon(self._judge, kind)

    async def _judge(self, kind: Kind) -> None:
        while True:
            while self.is_judged(kind):
                await self._more_due.park()
            await self.slices.run(self._judging(kind))

    def is_judged(self, kind: Kind, server: str | None = None) -> bool:
        """Whether the shelf shows nothing of this server (None: of any) that may not be seen."""
        return not any(of is kind and server in (None, each) for each, of in self._due)

    async def judged(self, kind: Kind, server: str | None = None) -> None:
        """Wait until that is so. Nothing waits between that moment and the return."""
        while not self.is_judged(kind, server):
            await self._moved.park()

    def _judging(self, kind: Kind) -> Steps[None]:
        """Judge anew what is due. The lists of one kind are swapped in one step, none of them made under a policy that
        is another by then: what was marked again is made again."""
        made: dict[str, tuple[object, Part]] = {}
        while (server := self._next_due(kind, made)) is not None:
            mark, entries = self._due[server, kind], self._shelves[kind].parts[server].entries
            part = yield from _part(entries, partial(self._shows, server, kind))
            made[server] = mark, part
        self._swap(kind, {server: part for server, (_, part) in made.items() if (server, kind) in self._due})

    def _next_due(self, kind: Kind, made: Mapping[str, tuple[object, Part]]) -> str | None:
        """A server whose list is due and was not made since it was marked."""
        for (server, each), mark in self._due.items():
            if each is kind and (server not in made or made[server][0] is not mark):
                return server
        return None

    def _swap(self, kind: Kind, parts: Mapping[str, Part]) -> None:
        shelf = self._shelves[kind]
        changed = {server: part for server, part in parts.items() if part.shown != shelf.parts[server].shown}
        if changed:
            narrowed = not all(
                shelf.parts[each].by_outward.keys() <= part.by_outward.keys() for each, part in changed.items()
            )
            all_parts = {**shelf.parts, **changed}
            self._shelves[kind] = self._shelve(kind, shelf.version + 1, all_parts, narrowed=narrowed)
        for server in parts:
            self._no_more_due((server, kind))
        if changed:
            self._move()

    def _no_more_due(self, key: tuple[str, Kind]) -> bool:
        """Whether it was."""
        was_due = self._due.pop(key, None) is not None
        if was_due:
            self._moved.unpark_all()
        return was_due

    def rearrange(self, servers: Sequence[str]) -> None:
        """The configuration names these servers now, in this order; of all others nothing is left."""
        self._order = tuple(servers)
        for key in [key for key in self._hints if key[0] not in self._order]:
            del self._hints[key]
        for key in [key for key in self._kept if key[0] not in self._order]:
            self._kept.pop(key).release()
            self._displaced.pop(key, None)
        for key in [key for key in self._due if key[0] not in self._order]:
            self._no_more_due(key)
        for kind, shelf in self._shelves.items():
            kept = {server: shelf.parts[server] for server in self._order if server in shelf.parts}
            if list(kept) != list(shelf.parts):
                narrowed = len(kept) < len(shelf.parts)
                self._shelves[kind] = self._shelve(kind, shelf.version + 1, kept, narrowed=narrowed)
        self._move()

    async def after(self, version: int) -> int:
        """Wait until the catalog is newer than `version`; many changes meanwhile are one."""
        while self.version <= version:
            await self._moved.park()
        return self.version

    def _move(self) -> None:
        self.version += 1
        self._moved.unpark_all()

    def _shelve(self, kind: Kind, version: int, parts: Mapping[str, Part], *, narrowed: bool = False) -> Shelf:
        parts = {server: parts[server] for server in self._order if server in parts}
        # What may not be seen is in nobody's way, and is not found under a name that somebody else has.
        clear: dict[str, Entry] = {}
        for part in parts.values():
            clear |= part.by_outward
        colliding: frozenset[tuple[str, str]] = frozenset()
        if len(clear) < sum(len(part.shown) for part in parts.values()):
            shown = [entry for part in parts.values() for entry in part.shown]
            called = Counter(entry.outward for entry in shown)
            twice = {(entry.server, entry.inward): entry for entry in shown if called[entry.outward] > 1}
            for key, entry in twice.items():
                if key not in self._shelves[kind].colliding:
                    self._collided(entry)
            clear = {name: entry for name, entry in clear.items() if called[name] == 1}
            colliding = frozenset(twice)
        by_outward: dict[str, Entry] = {}
        by_inward: dict[tuple[str, str], Entry] = {}
        for part in parts.values():
            by_outward |= part.hidden
            by_inward |= part.by_inward
        return Shelf(
            version,
            MappingProxyType(parts),
            colliding,
            MappingProxyType({server: part.entries for server, part in parts.items()}),
            tuple(clear.values()),
            MappingProxyType(by_outward | clear),
            MappingProxyType(by_inward),
            version if narrowed else self._shelves[kind].narrowed,
        )


def _part(entries: Iterable[Entry], shows: Callable[[str], bool]) -> Steps[Part]:
    shown: list[Entry] = []
    by_outward: dict[str, Entry] = {}
    hidden: dict[str, Entry] = {}
    by_inward: dict[tuple[str, str], Entry] = {}
    for entry in entries:
        yield None
        by_inward[entry.server, entry.inward] = entry
        if shows(entry.inward):
            shown.append(entry)
            by_outward[entry.outward] = entry
        else:
            hidden[entry.outward] = entry
    return Part(tuple(by_inward.values()), tuple(shown), by_outward, hidden, by_inward)


def _entry(kind: Kind, server: str, definition: Definition) -> Entry:
    key = LISTINGS[kind].key
    rename = outward_name if key == "name" else outward_uri
    outward = rename(server, definition.name)
    found = members(definition.raw)
    found[key] = encode(outward)
    rename_page(found, lambda uri: outward_uri(server, uri))
    exported = bytes(encode_object(found))
    if kind is not Kind.TOOL:
        return Entry(kind, server, definition.name, outward, definition.raw, exported)
    return Entry(
        kind,
        server,
        definition.name,
        outward,
        definition.raw,
        exported,
        definition.may_be_task,
        task_support(definition.raw),
        _mirrors_in(definition.raw),
    )


def _mirrors_in(definition: bytes) -> tuple[Mirror, ...] | None:
    try:
        return mirrors_in(definition)
    except ValueError:
        return None


def mirrors_in(definition: bytes | Raw) -> tuple[Mirror, ...]:
    """What headers repeat of the arguments of a tool (2026-07-28, "Custom Headers from Tool Parameters").

    Raises:
        ValueError: the schema says that in a way that is not allowed; says which.
    """
    if b"x-mcp-header" not in bytes(definition) and b"\\u" not in bytes(definition):
        return ()
    schema = members(definition).get("inputSchema")
    return () if schema is None else mirrors(schema)
