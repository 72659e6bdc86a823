"""The catalog: the entries of all servers, as an immutable snapshot per kind with a version that grows with every
change.

Visibility is decided by the policy, and watched by the transports. A server's list replaces its former list as a whole.
Entries are in the order of the configuration, then in the server's. Entries with equal outward names are all left out
of the shared endpoint; precedence would depend on timing.

When the policy changes, visibility is evaluated again, for long lists in steps; only requests for lists wait for it.
Calls do not, because the gate decides about them.
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
from host.memory import server_owner as owner
from host.names import outward_name, outward_uri
from host.protocol.links import rename_page
from host.protocol.methods import LIST_METHODS, Kind
from host.protocol.param_headers import ParamHeader, param_headers_of
from host.protocol.stateless import STALE, Freshness
from host.protocol.tasks import Support, task_support
from host.slices import Slices, Steps, run_inline

KEPT_COPIES = 4
"""Copies of a definition that are kept (measured): as the server wrote it, in its pin, with its outward names, and in
the lists for clients."""
MAX_INLINE_ENTRIES = 100
"""Entries whose visibility is evaluated without a pause."""


class Entry(Struct, frozen=True, gc=False):
    """One exported tool, resource, template or prompt. Entries are part of no reference cycle, so the garbage
    collector, which stops everything, can ignore them."""

    kind: Kind
    server: str
    inward: str
    """Its name or URI at the server."""
    outward: str
    """Its name or URI at the shared endpoint."""
    definition: bytes
    """The definition as the server wrote it, on one line."""
    exported: bytes
    """The definition with its outward names."""
    may_be_task: bool = False
    """Whether a call of it may become a task."""
    support: Support = Support.FORBIDDEN
    """The tool's own `taskSupport`."""
    param_headers: tuple[ParamHeader, ...] | None = ()
    """The arguments that headers repeat; None if the schema declares them invalidly, so that no stateless client may
    call it over HTTP."""


class Definition(Struct, frozen=True, gc=False):
    """One entry as a server listed it."""

    name: str
    raw: bytes
    may_be_task: bool = False


@dataclass(frozen=True, slots=True)
class FreshnessHint:
    """The freshness of a server's list when it was requested, at a time of this process in seconds."""

    freshness: Freshness
    asked_at: float

    def remaining(self, time: float) -> Freshness:
        """The remaining freshness."""
        left = self.freshness.ttl_ms - int((time - self.asked_at) * 1000)
        return Freshness(max(left, 0), self.freshness.public)


@dataclass(frozen=True, eq=False)
class ServerEntries:
    """The entries of one kind that one server lists, and the visible ones among them. Lists rendered from them are
    cached in `rendered`."""

    entries: tuple[Entry, ...]
    visible: tuple[Entry, ...]
    by_outward: Mapping[str, Entry]
    """Visible entries, by outward name."""
    hidden: Mapping[str, Entry]
    """Hidden entries, by outward name."""
    by_inward: Mapping[tuple[str, str], Entry]
    has_param_headers: bool = False
    """Whether headers must repeat arguments of any of them, hidden ones included."""
    rendered: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KindSnapshot:
    """All entries of one kind at one moment."""

    version: int = 0
    parts: Mapping[str, ServerEntries] = field(default_factory=dict)
    """By server, in order."""
    colliding: frozenset[tuple[str, str]] = frozenset()
    """Server and own name of each entry that is left out because of an equal outward name."""
    by_server: Mapping[str, tuple[Entry, ...]] = field(default_factory=dict)
    entries: tuple[Entry, ...] = ()
    """Visible entries of all servers, in order, without those whose outward names collide."""
    by_outward: Mapping[str, Entry] = field(default_factory=dict)
    """Includes hidden entries whose outward name no other entry has; the gate refuses requests for them."""
    by_inward: Mapping[tuple[str, str], Entry] = field(default_factory=dict)
    """By server and own name."""
    last_narrowed: int = 0
    """Snapshots before this version show entries that are hidden now."""


class Catalog:
    """Publishes snapshots, and lets tasks wait for the next one. `servers`: the order of the configuration;
    `is_visible` decides about an entry (server, kind, own name); `on_collision` is called once for each entry that is
    left out because of an equal outward name. Memory is charged to `memory`."""

    def __init__(
        self,
        servers: Sequence[str],
        is_visible: Callable[[str, Kind, str], bool],
        on_collision: Callable[[Entry], None],
        memory: Budget | None = None,
    ) -> None:
        self.memory = memory or Budget()
        self._holdings: dict[tuple[str, Kind], Holding] = {}
        self._on_displaced: dict[tuple[str, Kind], Callable[[], None]] = {}
        self._order = tuple(servers)
        self._is_visible = is_visible
        self._on_collision = on_collision
        self._snapshots = {kind: KindSnapshot() for kind in Kind}
        self._hints: dict[tuple[str, Kind], FreshnessHint] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._due: dict[tuple[str, Kind], object] = {}
        """Lists to evaluate again, each with a unique mark of the request."""
        self._more_due = trio.lowlevel.ParkingLot()
        self.version = 0
        self.slices = Slices()
        """For all work that grows with the lists."""

    def snapshot(self, kind: Kind) -> KindSnapshot:
        return self._snapshots[kind]

    def tool(self, server: str, name: str) -> Entry | None:
        """The tool with this name of the server's own."""
        return self._snapshots[Kind.TOOL].by_inward.get((server, name))

    def has_param_headers(self, server: str | None) -> bool:
        """Whether headers must repeat arguments of any tool of the server."""
        part = self._snapshots[Kind.TOOL].parts.get(server or "")
        return part is not None and part.has_param_headers

    def hint(self, server: str, kind: Kind) -> FreshnessHint | None:
        """Freshness of the server's list of this kind; None if it lists nothing of the kind."""
        return self._hints.get((server, kind))

    def expire_hint(self, server: str, kind: Kind) -> None:
        """Drop the server's hint of how long its list stays fresh."""
        hint = self._hints.get((server, kind))
        if hint is not None:
            self._hints[server, kind] = FreshnessHint(STALE, hint.asked_at)

    def renew_hint(self, server: str, kind: Kind, hint: FreshnessHint) -> bool:
        """Put the hint of a list that was read again and is the same. False if the list is not kept any more."""
        if server not in self._snapshots[kind].parts:
            return False
        self._hints[server, kind] = hint
        return True

    def charge(
        self, server: str, kind: Kind, size: int, on_displaced: Callable[[], None] = lambda: None
    ) -> Holding | None:
        """Charge `server` for a list of `kind` with this size. None, without effect, if there is no memory for it. A
        list whose charge was dropped must not be published.

        Args:
            displaced: called when owners that keep less need the memory; the server then lists nothing of the kind. It
                may charge nothing.
        """
        key = (server, kind)
        held = self._holdings.get(key)
        if held is None:
            drop = partial(self._displace, server, kind)
            held = self._holdings[key] = self.memory.hold(owner(server), Use.LISTS, drop=drop, firm=True)
        try:
            held.resize(KEPT_COPIES * size)
        except OverBudget:
            return None
        self._on_displaced[key] = on_displaced
        return held

    def _displace(self, server: str, kind: Kind) -> None:
        """Remove the list as if the server had never sent it; the server may list again."""
        on_displaced = self._on_displaced[server, kind]
        self._remove(server, kind, narrowed=False)
        on_displaced()

    def withdraw(self, server: str) -> None:
        """Remove all lists of the server, because another one has its place."""
        for kind in Kind:
            self._remove(server, kind, narrowed=True)

    def _remove(self, server: str, kind: Kind, *, narrowed: bool) -> None:
        key = (server, kind)
        if (holding := self._holdings.pop(key, None)) is not None:
            holding.release()
        self._on_displaced.pop(key, None)
        self._hints.pop(key, None)
        was_due = self._clear_due(key)
        snapshot = self._snapshots[kind]
        if server in snapshot.parts:
            left = {each: part for each, part in snapshot.parts.items() if each != server}
            narrowed = narrowed or was_due
            self._snapshots[kind] = self._build_snapshot(kind, snapshot.version + 1, left, narrowed=narrowed)
            self._notify_changed()

    def prepare_entries(
        self, server: str, kind: Kind, definitions: Iterable[Definition], is_visible: Callable[[str], bool]
    ) -> Steps[ServerEntries]:
        """Prepare a server's entries of one kind for `publish`. `is_visible` takes the server's own name."""
        former = self._snapshots[kind].parts.get(server)
        known = {} if former is None else former.by_inward
        entries: list[Entry] = []
        for definition in definitions:
            yield None
            entry = known.get((server, definition.name))
            if entry is None or (entry.definition, entry.may_be_task) != (definition.raw, definition.may_be_task):
                entry = _entry(kind, server, definition)
            entries.append(entry)
        return (yield from _server_entries(entries, is_visible))

    def publish(self, server: str, kind: Kind, part: ServerEntries, hint: FreshnessHint | None = None) -> bool:
        """Replace what `server` lists of `kind`, in one step. The entries must have been prepared under the present
        policy. Returns whether anything changed; a change wakes all waiters."""
        snapshot = self._snapshots[kind]
        was_due = self._clear_due((server, kind))
        if hint is None:
            self._hints.pop((server, kind), None)
        else:
            self._hints[server, kind] = hint
        before = snapshot.parts.get(server)
        if before is not None and (part.entries, part.visible) == (before.entries, before.visible):
            return False
        # An empty list differs from no list, but no client sees a difference.
        changed = before is not None or bool(part.entries)
        parts = {**snapshot.parts, server: part}
        self._snapshots[kind] = self._build_snapshot(
            kind, snapshot.version + changed, parts, narrowed=was_due and changed
        )
        if changed:
            self._notify_changed()
        return changed

    def reevaluate(self, servers: Iterable[str]) -> None:
        """Evaluate the visibility of these servers' entries again, and wake the waiters if it changed. Long lists are
        left to `run`: see `wait_until_evaluated`."""
        for kind, snapshot in self._snapshots.items():
            self._due.update({(server, kind): object() for server in servers if server in snapshot.parts})
        if sum(len(self._snapshots[kind].parts[server].entries) for server, kind in self._due) <= MAX_INLINE_ENTRIES:
            for kind in Kind:
                run_inline(self._evaluate_due(kind))
        else:
            self._more_due.unpark_all()

    async def run(self) -> None:
        """Evaluate marked lists, until cancelled. Kinds run concurrently, so that no list waits for a longer one of
        another kind."""
        async with trio.open_nursery() as nursery:
            for kind in Kind:
                nursery.start_soon(self._reevaluate_kind, kind)

    async def _reevaluate_kind(self, kind: Kind) -> None:
        while True:
            while self.is_evaluated(kind):
                await self._more_due.park()
            await self.slices.run(self._evaluate_due(kind))

    def is_evaluated(self, kind: Kind, server: str | None = None) -> bool:
        """Whether the snapshot shows no hidden entry of this server (None: of any server)."""
        return not any(of is kind and server in (None, each) for each, of in self._due)

    async def wait_until_evaluated(self, kind: Kind, server: str | None = None) -> None:
        """Wait until `is_evaluated`. No checkpoint lies between that moment and the return."""
        while not self.is_evaluated(kind, server):
            await self._changed.park()

    def _evaluate_due(self, kind: Kind) -> Steps[None]:
        """Evaluate the marked lists of one kind and replace them in one step. Lists that are marked again meanwhile,
        because the policy changed, are evaluated again."""
        made: dict[str, tuple[object, ServerEntries]] = {}
        while (server := self._next_due(kind, made)) is not None:
            mark, entries = self._due[server, kind], self._snapshots[kind].parts[server].entries
            part = yield from _server_entries(entries, partial(self._is_visible, server, kind))
            made[server] = mark, part
        self._swap(kind, {server: part for server, (_, part) in made.items() if (server, kind) in self._due})

    def _next_due(self, kind: Kind, made: Mapping[str, tuple[object, ServerEntries]]) -> str | None:
        """A server whose marked list was not evaluated since it was marked."""
        for (server, each), mark in self._due.items():
            if each is kind and (server not in made or made[server][0] is not mark):
                return server
        return None

    def _swap(self, kind: Kind, parts: Mapping[str, ServerEntries]) -> None:
        snapshot = self._snapshots[kind]
        changed = {server: part for server, part in parts.items() if part.visible != snapshot.parts[server].visible}
        if changed:
            narrowed = not all(
                snapshot.parts[each].by_outward.keys() <= part.by_outward.keys() for each, part in changed.items()
            )
            all_parts = {**snapshot.parts, **changed}
            self._snapshots[kind] = self._build_snapshot(kind, snapshot.version + 1, all_parts, narrowed=narrowed)
        for server in parts:
            self._clear_due((server, kind))
        if changed:
            self._notify_changed()

    def _clear_due(self, key: tuple[str, Kind]) -> bool:
        """Remove the mark; return whether there was one."""
        was_due = self._due.pop(key, None) is not None
        if was_due:
            self._changed.unpark_all()
        return was_due

    def set_servers(self, servers: Sequence[str]) -> None:
        """Take over the servers of the configuration, in this order; remove the entries of all others."""
        self._order = tuple(servers)
        for key in [key for key in self._hints if key[0] not in self._order]:
            del self._hints[key]
        for key in [key for key in self._holdings if key[0] not in self._order]:
            self._holdings.pop(key).release()
            self._on_displaced.pop(key, None)
        for key in [key for key in self._due if key[0] not in self._order]:
            self._clear_due(key)
        for kind, snapshot in self._snapshots.items():
            kept = {server: snapshot.parts[server] for server in self._order if server in snapshot.parts}
            if list(kept) != list(snapshot.parts):
                narrowed = len(kept) < len(snapshot.parts)
                self._snapshots[kind] = self._build_snapshot(kind, snapshot.version + 1, kept, narrowed=narrowed)
        self._notify_changed()

    async def wait_for_change(self, version: int) -> int:
        """Wait until the catalog is newer than `version`; changes in between are combined."""
        while self.version <= version:
            await self._changed.park()
        return self.version

    def _notify_changed(self) -> None:
        self.version += 1
        self._changed.unpark_all()

    def _build_snapshot(
        self, kind: Kind, version: int, parts: Mapping[str, ServerEntries], *, narrowed: bool = False
    ) -> KindSnapshot:
        parts = {server: parts[server] for server in self._order if server in parts}
        # A hidden entry does not collide with others, and is not found under a name that another entry has.
        clear: dict[str, Entry] = {}
        for part in parts.values():
            clear |= part.by_outward
        colliding: frozenset[tuple[str, str]] = frozenset()
        if len(clear) < sum(len(part.visible) for part in parts.values()):
            shown = [entry for part in parts.values() for entry in part.visible]
            called = Counter(entry.outward for entry in shown)
            twice = {(entry.server, entry.inward): entry for entry in shown if called[entry.outward] > 1}
            for key, entry in twice.items():
                if key not in self._snapshots[kind].colliding:
                    self._on_collision(entry)
            clear = {name: entry for name, entry in clear.items() if called[name] == 1}
            colliding = frozenset(twice)
        by_outward: dict[str, Entry] = {}
        by_inward: dict[tuple[str, str], Entry] = {}
        for part in parts.values():
            by_outward |= part.hidden
            by_inward |= part.by_inward
        return KindSnapshot(
            version,
            MappingProxyType(parts),
            colliding,
            MappingProxyType({server: part.entries for server, part in parts.items()}),
            tuple(clear.values()),
            MappingProxyType(by_outward | clear),
            MappingProxyType(by_inward),
            version if narrowed else self._snapshots[kind].last_narrowed,
        )


def _server_entries(entries: Iterable[Entry], is_visible: Callable[[str], bool]) -> Steps[ServerEntries]:
    shown: list[Entry] = []
    by_outward: dict[str, Entry] = {}
    hidden: dict[str, Entry] = {}
    by_inward: dict[tuple[str, str], Entry] = {}
    has_param_headers = False
    for entry in entries:
        yield None
        by_inward[entry.server, entry.inward] = entry
        has_param_headers = has_param_headers or bool(entry.param_headers)
        if is_visible(entry.inward):
            shown.append(entry)
            by_outward[entry.outward] = entry
        else:
            hidden[entry.outward] = entry
    return ServerEntries(tuple(by_inward.values()), tuple(shown), by_outward, hidden, by_inward, has_param_headers)


def _entry(kind: Kind, server: str, definition: Definition) -> Entry:
    key = LIST_METHODS[kind].key
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
        _valid_param_headers(definition.raw),
    )


def _valid_param_headers(definition: bytes) -> tuple[ParamHeader, ...] | None:
    try:
        return param_headers_in(definition)
    except ValueError:
        return None


def param_headers_in(definition: bytes | Raw) -> tuple[ParamHeader, ...]:
    """The arguments of a tool that headers repeat (2026-07-28, "Custom Headers from Tool Parameters").

    Raises:
        ValueError: the schema declares them invalidly; the message says how.
    """
    if b"x-mcp-header" not in bytes(definition) and b"\\u" not in bytes(definition):
        return ()
    schema = members(definition).get("inputSchema")
    return () if schema is None else param_headers_of(schema)
