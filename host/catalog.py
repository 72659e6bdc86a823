"""What all servers together offer: an immutable shelf per kind, with a version that moves when the shelf does.

The catalog knows entries, not who may see them (policy) and not who is watching (faces). A server's list replaces its
former list whole. Order is that of the configuration, then the server's own. Two entries that would be called the same
outside are both left out of the shared endpoint: which came first decides nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import trio
from msgspec import Raw

from host.jsonrpc.raw import encode, encode_object, members
from host.memory import Budget, Holding, OverBudget, Use
from host.memory import server as owner
from host.names import outward_name, outward_uri
from host.protocol.links import rename_page
from host.protocol.methods import LISTINGS, Kind
from host.protocol.mirror import Mirror, mirrors
from host.protocol.stateless import STALE, Freshness
from host.protocol.tasks import Support, task_support

COPIES = 4
"""Copies of a definition that are kept (measured): as its server wrote it, as its pin has it, with its outward names,
and in the lists that clients are shown."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One exported tool, resource, template or prompt."""

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


@dataclass(frozen=True, slots=True)
class Definition:
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


@dataclass(frozen=True)
class Shelf:
    """All entries of one kind at one moment."""

    version: int = 0
    by_server: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    """Of all servers, in order: what may be seen, without those whose outward names collide."""
    by_outward: Mapping[str, Entry] = field(default_factory=dict)
    """Also what may not be seen, where nothing else has its name: whoever asks for it is refused by the gate."""
    by_inward: Mapping[tuple[str, str], Entry] = field(default_factory=dict)
    """By server and its own name."""


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
        self._order = tuple(servers)
        self._shows = shows
        self._collided = collided
        self._colliding: dict[Kind, set[tuple[str, str]]] = {kind: set() for kind in Kind}
        self._shelves = {kind: Shelf() for kind in Kind}
        self._hints: dict[tuple[str, Kind], Hint] = {}
        self._moved = trio.lowlevel.ParkingLot()
        self.version = 0

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

    def has_memory(self, server: str, kind: Kind, size: int) -> bool:
        """Charge so many bytes for what `server` offers of `kind` from now on. False, and all stays as it was, if there
        is no memory for them."""
        held = self._kept.get((server, kind))
        if held is None:
            held = self._kept[server, kind] = self.memory.hold(owner(server), Use.LISTS)
        try:
            held.resize(COPIES * size)
        except OverBudget:
            return False
        return True

    def publish(self, server: str, kind: Kind, definitions: Iterable[Definition], hint: Hint | None = None) -> bool:
        """Replace what `server` offers of `kind`. True if anything changed; then everybody who waits wakes up."""
        shelf = self._shelves[kind]
        if hint is None:
            self._hints.pop((server, kind), None)
        else:
            self._hints[server, kind] = hint
        before = shelf.by_server.get(server, ())
        entries = tuple(_entry(kind, server, definition) for definition in definitions)
        if entries == before:
            if server not in shelf.by_server:  # it listed nothing, which is not the same as having listed never
                self._shelves[kind] = self._shelve(kind, shelf.version, {**shelf.by_server, server: ()})
            return False
        self._shelves[kind] = self._shelve(kind, shelf.version + 1, {**shelf.by_server, server: entries})
        self._move()
        return True

    def reconsider(self, servers: Iterable[str]) -> None:
        """What may be seen of these servers may not be what it was; whoever waits wakes up if so."""
        moved = False
        for kind, shelf in self._shelves.items():
            if any(server in shelf.by_server for server in servers):
                again = self._shelve(kind, shelf.version + 1, dict(shelf.by_server))
                if (again.entries, again.by_outward) != (shelf.entries, shelf.by_outward):
                    self._shelves[kind] = again
                    moved = True
        if moved:
            self._move()

    def rearrange(self, servers: Sequence[str]) -> None:
        """The configuration names these servers now, in this order; of all others nothing is left."""
        self._order = tuple(servers)
        for key in [key for key in self._hints if key[0] not in self._order]:
            del self._hints[key]
        for key in [key for key in self._kept if key[0] not in self._order]:
            self._kept.pop(key).release()
        for kind, shelf in self._shelves.items():
            kept = {server: each for server, each in shelf.by_server.items() if server in self._order}
            self._shelves[kind] = self._shelve(kind, shelf.version + 1, kept)
        self._move()

    async def after(self, version: int) -> int:
        """Wait until the catalog is newer than `version`; many changes meanwhile are one."""
        while self.version <= version:
            await self._moved.park()
        return self.version

    def _move(self) -> None:
        self.version += 1
        self._moved.unpark_all()

    def _shelve(self, kind: Kind, version: int, by_server: dict[str, tuple[Entry, ...]]) -> Shelf:
        everything = [entry for server in self._order for entry in by_server.get(server, ())]
        # What may not be seen is in nobody's way, and is not found under a name that somebody else has.
        shown: list[Entry] = []
        hidden: dict[str, Entry] = {}
        for entry in everything:
            if self._shows(entry.server, entry.kind, entry.inward):
                shown.append(entry)
            else:
                hidden[entry.outward] = entry
        called = Counter(entry.outward for entry in shown)
        colliding = {(entry.server, entry.inward): entry for entry in shown if called[entry.outward] > 1}
        for key in colliding:
            if key not in self._colliding[kind]:
                self._collided(colliding[key])
        self._colliding[kind] = set(colliding)
        clear = tuple(entry for entry in shown if called[entry.outward] == 1)
        return Shelf(
            version,
            MappingProxyType(by_server),
            clear,
            MappingProxyType({**hidden, **{entry.outward: entry for entry in clear}}),
            MappingProxyType({(entry.server, entry.inward): entry for entry in everything}),
        )


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
