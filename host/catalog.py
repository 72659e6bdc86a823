"""The catalog: the entries of all servers, as an immutable snapshot per kind with a version that grows with every
change.

Visibility is decided by the policy, and watched by the transports. A server's list replaces its former list as a whole.
Entries are in the order of the configuration, then in the server's. Entries with equal outward names are all left out
of the shared endpoint; precedence would depend on timing.

A server may list over a session and over a stateless connection. A client sees the list of its own era, if it is served
in that era, otherwise the other one, so there are two snapshots of each kind: they are one object unless a server has
two lists.

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
from msgspec import Raw, Struct, structs

from host.jsonrpc.raw import encode, encode_object, members
from host.memory import Budget, Holding, OverBudget, Use
from host.memory import server_owner as owner
from host.names import outward_name, outward_uri
from host.protocol.definitions import Misfit, find_misfit
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
    stateless: bool = False
    """Whether the stateless connection of the server lists it, or its session."""
    misfit: Misfit | None = None
    """How the definition differs from what clients accept, if it does."""


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
    unfit: tuple[Entry, ...] = ()
    """The entries that clients of an era are not shown, because they would refuse the whole list."""
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


_Key = tuple[str, Kind, bool]
"""A list: its server, its kind, and whether the stateless connection of the server lists it."""
_Parts = Mapping[tuple[str, bool], ServerEntries]
"""Lists of one kind, by server and whether its stateless connection lists them."""


class Catalog:
    """Publishes snapshots, and lets tasks wait for the next one. `servers`: the order of the configuration;
    `is_visible` decides about an entry (server, kind, own name, `Entry.stateless`); `on_collision` is called once for
    each entry that is left out because of an equal outward name. Memory is charged to `memory`."""

    def __init__(
        self,
        servers: Sequence[str],
        is_visible: Callable[[str, Kind, str, bool], bool],
        on_collision: Callable[[Entry], None],
        memory: Budget | None = None,
    ) -> None:
        self.memory = memory or Budget()
        self._holdings: dict[_Key, Holding] = {}
        self._on_displaced: dict[_Key, Callable[[], None]] = {}
        self._order = tuple(servers)
        self._is_visible = is_visible
        self._on_collision = on_collision
        self._parts: dict[Kind, _Parts] = {kind: {} for kind in Kind}
        self._snapshots = {kind: (KindSnapshot(),) * 2 for kind in Kind}
        """For clients with a session, and for stateless ones."""
        self._shown_sessions: set[str] = set()
        """Servers whose session is open, or was: clients with a session see what it lists."""
        self._hints: dict[_Key, FreshnessHint] = {}
        self._changed = trio.lowlevel.ParkingLot()
        self._due: dict[_Key, object] = {}
        """Lists to evaluate again, each with a unique mark of the request."""
        self._more_due = trio.lowlevel.ParkingLot()
        self.version = 0
        self.slices = Slices()
        """For all work that grows with the lists."""

    def snapshot(self, kind: Kind, *, stateless: bool = False) -> KindSnapshot:
        """The entries that clients with a session can see, or stateless clients."""
        return self._snapshots[kind][stateless]

    def listed(self, server: str, kind: Kind, *, stateless: bool) -> tuple[Entry, ...] | None:
        """The list of one connection of the server; None if it has not listed the kind."""
        part = self._parts[kind].get((server, stateless))
        return None if part is None else part.entries

    def unfit(self, server: str, kind: Kind, *, stateless: bool) -> tuple[Entry, ...]:
        """The entries of one connection of the server that clients of an era are not shown."""
        part = self._parts[kind].get((server, stateless))
        return () if part is None else part.unfit

    def entries_of(self, server: str, kind: Kind) -> tuple[Entry, ...]:
        """The entries of a server, those of a stateless connection first. One that it lists twice counts once."""
        lists = [self._parts[kind].get((server, stateless)) for stateless in (True, False)]
        found: dict[tuple[str, str], Entry] = {}
        for part in lists:
            if part is not None:
                found = {**part.by_inward, **found} if found else dict(part.by_inward)
        return tuple(found.values())

    def entry(self, server: str, kind: Kind, name: str, *, stateless: bool) -> Entry | None:
        """The entry with this name of the server's own, as one of its connections lists it."""
        part = self._parts[kind].get((server, stateless))
        return None if part is None else part.by_inward.get((server, name))

    def has_param_headers(self, server: str | None) -> bool:
        """Whether headers must repeat arguments of any tool of the server."""
        part = self.snapshot(Kind.TOOL, stateless=True).parts.get(server or "")
        return part is not None and part.has_param_headers

    def hint(self, server: str, kind: Kind, *, stateless: bool = False) -> FreshnessHint | None:
        """Freshness of the server's list of this kind, for a client with a session or a stateless one; None if it lists
        nothing of the kind."""
        return self._hints.get((server, kind, self._side(self._parts[kind], server, stateless)))

    def expire_hint(self, server: str, kind: Kind, *, stateless: bool = False) -> None:
        """Drop the server's hint of how long its list stays fresh."""
        key = (server, kind, stateless)
        if (hint := self._hints.get(key)) is not None:
            self._hints[key] = FreshnessHint(STALE, hint.asked_at)

    def renew_hint(self, server: str, kind: Kind, hint: FreshnessHint, *, stateless: bool = False) -> bool:
        """Put the hint of a list that was read again and is the same. False if the list is not kept any more."""
        if (server, stateless) not in self._parts[kind]:
            return False
        self._hints[server, kind, stateless] = hint
        return True

    def charge(
        self,
        server: str,
        kind: Kind,
        size: int,
        on_displaced: Callable[[], None] = lambda: None,
        *,
        stateless: bool = False,
    ) -> Holding | None:
        """Charge `server` for a list of `kind` with this size. None, without effect, if there is no memory for it. A
        list whose charge was dropped must not be published.

        Args:
            displaced: called when owners that keep less need the memory; the server then lists nothing of the kind. It
                may charge nothing.
        """
        key = (server, kind, stateless)
        held = self._holdings.get(key)
        if held is None:
            drop = partial(self._displace, key)
            held = self._holdings[key] = self.memory.hold(owner(server), Use.LISTS, drop=drop, firm=True)
        try:
            held.resize(KEPT_COPIES * size)
        except OverBudget:
            return None
        self._on_displaced[key] = on_displaced
        return held

    def _displace(self, key: _Key) -> None:
        """Remove the list as if the server had never sent it; the server may list again."""
        on_displaced = self._on_displaced[key]
        self._remove(key, narrowed=False)
        on_displaced()

    def withdraw(self, server: str) -> None:
        """Remove all lists of the server, because another one has its place."""
        self._shown_sessions.discard(server)
        for kind in Kind:
            for stateless in (False, True):
                self._remove((server, kind, stateless), narrowed=True)

    def show_session(self, server: str) -> None:
        """Show clients with a session what the server's session lists, in one step: until now they saw what the
        stateless connection lists."""
        if server not in self._shown_sessions:
            self._shown_sessions.add(server)
            self._show_again()

    def hide_session(self, server: str) -> None:
        """Show clients with a session what the server's stateless connection lists, as soon as it has listed it."""
        if server in self._shown_sessions:
            self._shown_sessions.discard(server)
            self._show_again()

    def withdraw_session(self, server: str) -> None:
        """Remove the lists of the server's session: its clients see those of the stateless connection."""
        self.hide_session(server)
        for kind in Kind:
            self._remove((server, kind, False), narrowed=True)

    def _show_again(self) -> None:
        for kind, parts in self._parts.items():
            self._replace(kind, parts, changed=True, narrowed=True)
        self._notify_changed()

    def _remove(self, key: _Key, *, narrowed: bool) -> None:
        server, kind, stateless = key
        was_due = self._forget(key)
        parts = self._parts[kind]
        if (server, stateless) in parts:
            left = {each: part for each, part in parts.items() if each != (server, stateless)}
            self._replace(kind, left, changed=True, narrowed=narrowed or was_due)
            self._notify_changed()

    def _forget(self, key: _Key) -> bool:
        """Forget everything of a list but its entries; return whether it was to be evaluated again."""
        if (holding := self._holdings.pop(key, None)) is not None:
            holding.release()
        self._on_displaced.pop(key, None)
        self._hints.pop(key, None)
        return self._clear_due(key)

    def prepare_entries(
        self,
        server: str,
        kind: Kind,
        definitions: Iterable[Definition],
        is_visible: Callable[[str], bool],
        *,
        stateless: bool = False,
    ) -> Steps[ServerEntries]:
        """Prepare a server's entries of one kind for `publish`. `is_visible` takes the server's own name."""
        former = self._parts[kind].get((server, stateless))
        known = {} if former is None else former.by_inward
        entries: list[Entry] = []
        for definition in definitions:
            yield None
            entry = known.get((server, definition.name))
            if entry is None or (entry.definition, entry.may_be_task) != (definition.raw, definition.may_be_task):
                entry = yield from _entry(kind, server, definition, stateless)
            entries.append(entry)
        return (yield from _server_entries(entries, is_visible))

    def publish(
        self,
        server: str,
        kind: Kind,
        part: ServerEntries,
        hint: FreshnessHint | None = None,
        *,
        stateless: bool = False,
        alone: bool = True,
    ) -> bool:
        """Replace what a connection of `server` lists of `kind`, in one step. The entries must have been prepared under
        the present policy. `alone`: the list of the other era ends, because the server has none any more. Returns
        whether anything changed; a change wakes all waiters."""
        key, parts = (server, kind, stateless), self._parts[kind]
        was_due = self._clear_due(key)
        if hint is None:
            self._hints.pop(key, None)
        else:
            self._hints[key] = hint
        before, other = parts.get((server, stateless)), parts.get((server, not stateless))
        ends = alone and other is not None
        if not ends and before is not None and (part.entries, part.visible) == (before.entries, before.visible):
            return False
        # An empty list differs from no list, but no client sees a difference.
        changed = ends or before is not None or bool(part.entries) or other is not None
        parts = {**parts, (server, stateless): part}
        if ends:
            del parts[server, not stateless]
            was_due = self._forget((server, kind, not stateless)) or was_due
        self._replace(kind, parts, changed=changed, narrowed=(was_due or ends) and changed)
        if changed:
            self._notify_changed()
        return changed

    def reevaluate(self, servers: Iterable[str]) -> None:
        """Evaluate the visibility of these servers' entries again, and wake the waiters if it changed. Long lists are
        left to `run`: see `wait_until_evaluated`."""
        servers = tuple(servers)
        for kind, parts in self._parts.items():
            lists = [(server, stateless) for server in servers for stateless in (False, True)]
            self._due.update({(each[0], kind, each[1]): object() for each in lists if each in parts})
        sizes = (len(self._parts[kind][server, stateless].entries) for server, kind, stateless in self._due)
        if sum(sizes) <= MAX_INLINE_ENTRIES:
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
        return not any(of is kind and server in (None, each) for each, of, _ in self._due)

    async def wait_until_evaluated(self, kind: Kind, server: str | None = None) -> None:
        """Wait until `is_evaluated`. No checkpoint lies between that moment and the return."""
        while not self.is_evaluated(kind, server):
            await self._changed.park()

    def _evaluate_due(self, kind: Kind) -> Steps[None]:
        """Evaluate the marked lists of one kind and replace them in one step. Lists that are marked again meanwhile,
        because the policy changed, are evaluated again."""
        made: dict[_Key, tuple[object, ServerEntries]] = {}
        while (key := self._next_due(kind, made)) is not None:
            server, _, stateless = key
            mark, entries = self._due[key], self._parts[kind][server, stateless].entries
            is_visible = partial(self._is_visible_entry, server, kind, stateless)
            part = yield from _server_entries(entries, is_visible)
            made[key] = mark, part
        self._swap(kind, {key: part for key, (_, part) in made.items() if key in self._due})

    def _is_visible_entry(self, server: str, kind: Kind, stateless: bool, name: str) -> bool:
        return self._is_visible(server, kind, name, stateless)

    def _next_due(self, kind: Kind, made: Mapping[_Key, tuple[object, ServerEntries]]) -> _Key | None:
        """A marked list that was not evaluated since it was marked."""
        for key, mark in self._due.items():
            if key[1] is kind and (key not in made or made[key][0] is not mark):
                return key
        return None

    def _swap(self, kind: Kind, evaluated: Mapping[_Key, ServerEntries]) -> None:
        parts = self._parts[kind]
        new = {(server, stateless): part for (server, _, stateless), part in evaluated.items()}
        changed = {each: part for each, part in new.items() if part.visible != parts[each].visible}
        if changed:
            narrowed = not all(
                parts[each].by_outward.keys() <= part.by_outward.keys() for each, part in changed.items()
            )
            self._replace(kind, {**parts, **changed}, changed=True, narrowed=narrowed)
        for key in evaluated:
            self._clear_due(key)
        if changed:
            self._notify_changed()

    def _clear_due(self, key: _Key) -> bool:
        """Remove the mark; return whether there was one."""
        was_due = self._due.pop(key, None) is not None
        if was_due:
            self._changed.unpark_all()
        return was_due

    def set_servers(self, servers: Sequence[str]) -> None:
        """Take over the servers of the configuration, in this order; remove the entries of all others."""
        self._order = tuple(servers)
        self._shown_sessions &= set(servers)
        for key in [key for key in self._hints if key[0] not in self._order]:
            del self._hints[key]
        for key in [key for key in self._holdings if key[0] not in self._order]:
            self._holdings.pop(key).release()
            self._on_displaced.pop(key, None)
        for key in [key for key in self._due if key[0] not in self._order]:
            self._clear_due(key)
        for kind, parts in self._parts.items():
            kept = {each: part for each, part in parts.items() if each[0] in self._order}
            narrowed = len(kept) < len(parts)
            if narrowed or list(self._shown(kept, False)) != list(self.snapshot(kind).parts):
                self._replace(kind, kept, changed=True, narrowed=narrowed)
        self._notify_changed()

    async def wait_for_change(self, version: int) -> int:
        """Wait until the catalog is newer than `version`; changes in between are combined."""
        while self.version <= version:
            await self._changed.park()
        return self.version

    def _notify_changed(self) -> None:
        self.version += 1
        self._changed.unpark_all()

    def _replace(self, kind: Kind, parts: _Parts, *, changed: bool, narrowed: bool = False) -> None:
        """Replace all lists of a kind."""
        self._parts[kind] = parts
        of_sessions, of_stateless = (self._shown(parts, stateless) for stateless in (False, True))
        former = self._snapshots[kind]
        version = former[False].version + changed
        last_narrowed = version if narrowed else former[False].last_narrowed
        colliding = former[False].colliding | former[True].colliding
        first = second = self._build_snapshot(of_sessions, version, last_narrowed, colliding)
        if any(part is not of_stateless[server] for server, part in of_sessions.items()):
            second = self._build_snapshot(of_stateless, version, last_narrowed, colliding | first.colliding)
        self._snapshots[kind] = first, second

    def _shown(self, parts: _Parts, stateless: bool) -> dict[str, ServerEntries]:
        """The lists that clients of an era see, in order."""
        found = ((server, parts.get((server, self._side(parts, server, stateless)))) for server in self._order)
        return {server: part for server, part in found if part is not None}

    def _side(self, parts: _Parts, server: str, stateless: bool) -> bool:
        """Whether clients of an era see what the server's stateless connection lists. `parts`: the lists of a kind."""
        wanted = stateless or server not in self._shown_sessions
        return wanted if (server, wanted) in parts else not wanted

    def _build_snapshot(
        self,
        parts: Mapping[str, ServerEntries],
        version: int,
        last_narrowed: int,
        known_collisions: frozenset[tuple[str, str]],
    ) -> KindSnapshot:
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
                if key not in known_collisions:
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
            last_narrowed,
        )


def _server_entries(entries: Iterable[Entry], is_visible: Callable[[str], bool]) -> Steps[ServerEntries]:
    shown: list[Entry] = []
    by_outward: dict[str, Entry] = {}
    hidden: dict[str, Entry] = {}
    by_inward: dict[tuple[str, str], Entry] = {}
    has_param_headers = False
    unfit: list[Entry] = []
    for entry in entries:
        yield None
        by_inward[entry.server, entry.inward] = entry
        if entry.misfit is not None and any(entry.misfit):
            unfit.append(entry)
        has_param_headers = has_param_headers or bool(entry.param_headers)
        if is_visible(entry.inward):
            shown.append(entry)
            by_outward[entry.outward] = entry
        else:
            hidden[entry.outward] = entry
    return ServerEntries(
        tuple(by_inward.values()), tuple(shown), by_outward, hidden, by_inward, has_param_headers, tuple(unfit)
    )


def _entry(kind: Kind, server: str, definition: Definition, stateless: bool) -> Steps[Entry]:
    key = LIST_METHODS[kind].key
    rename = outward_name if key == "name" else outward_uri
    outward = rename(server, definition.name)
    found = members(definition.raw)
    found[key] = encode(outward)
    rename_page(found, lambda uri: outward_uri(server, uri))
    exported = bytes(encode_object(found))
    uris = (definition.name, outward) if kind is Kind.RESOURCE else ()
    misfit = yield from find_misfit(kind, definition.raw, uris)
    entry = Entry(kind, server, definition.name, outward, definition.raw, exported, stateless=stateless, misfit=misfit)
    if kind is not Kind.TOOL:
        return entry
    return structs.replace(
        entry,
        may_be_task=definition.may_be_task,
        support=task_support(definition.raw),
        param_headers=_valid_param_headers(definition.raw),
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
