"""The catalog: the entries of all servers, as an immutable snapshot per kind with a version that grows with every
change.

Visibility is decided by the policy, and watched by the transports. The list of a source replaces its former list as a
whole. Entries are in the order of the configuration, then in the server's. Entries with equal outward names are all
left out of the shared endpoint; precedence would depend on timing.

A server may have several sources (`host/source.py`), each with its own lists. Of each server, a client sees the lists
of one source, which `Catalog._seen` chooses by the viewer that the client is, and nothing else does. So there is a
snapshot of each kind for each viewer; they are one object where the clients see the same.

When the policy changes, visibility is evaluated again, for long lists in steps; only requests for lists wait for it.
Calls do not, because the gate decides about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Hashable, Iterable, Mapping, Sequence
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
from host.protocol.methods import LIST_METHODS, RESOURCE, Kind
from host.protocol.param_headers import ParamHeader, param_headers_of
from host.protocol.stateless import STALE, Freshness
from host.protocol.tasks import Support, task_support
from host.protocol.versions import Era
from host.slices import Slices, Steps, run_inline
from host.source import VIEWERS, EntryRef, Source, Viewer

KEPT_COPIES = 4
"""Copies of a definition that are kept (measured): as the server wrote it, in its pin, with its outward names, and in
the lists for clients."""
MAX_INLINE_ENTRIES = 100
"""Entries whose visibility is evaluated without a pause."""


class Entry(Struct, frozen=True, gc=False):
    """One exported tool, resource, template or prompt. Entries are part of no reference cycle, so the garbage
    collector, which stops everything, can ignore them."""

    ref: EntryRef
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
    """The entries of one kind that one source lists, and the visible ones among them. Lists rendered from them are
    cached in `rendered`."""

    source: Source
    entries: tuple[Entry, ...]
    visible: tuple[Entry, ...]
    by_outward: Mapping[str, Entry]
    """Visible entries, by outward name."""
    hidden: Mapping[str, Entry]
    """Hidden entries, by outward name."""
    by_name: Mapping[str, Entry]
    """All entries, by the server's own name."""
    has_param_headers: bool = False
    """Whether headers must repeat arguments of any of them, hidden ones included."""
    unfit: tuple[Entry, ...] = ()
    """The entries that are hidden from clients of one era, because they would refuse the whole list."""
    rendered: dict[Hashable, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class KindSnapshot:
    """All entries of one kind at one moment, as one viewer sees them."""

    version: int = 0
    parts: Mapping[str, ServerEntries] = field(default_factory=dict)
    """By server, in order: the list of the source that these clients see."""
    colliding: frozenset[EntryRef] = frozenset()
    """The entries that are left out because of an equal outward name."""
    entries: tuple[Entry, ...] = ()
    """Visible entries of all servers, in order, without those whose outward names collide."""
    by_outward: Mapping[str, Entry] = field(default_factory=dict)
    """Includes hidden entries whose outward name no other entry has; the gate refuses requests for them."""
    last_narrowed: int = 0
    """Snapshots before this version show entries that are hidden now."""

    def entry(self, server: str, name: str) -> Entry | None:
        """The entry with this name of the server's own, visible or hidden."""
        part = self.parts.get(server)
        return None if part is None else part.by_name.get(name)


@dataclass(eq=False, slots=True)
class _List:
    """The list of one kind of one source, with all that is kept beside it."""

    part: ServerEntries | None = None
    """None if the source has not listed the kind."""
    is_unlisted: bool = False
    """Whether it has no `part` while its connection serves: see `Catalog.mark_unlisted`."""
    hint: FreshnessHint | None = None
    remembered: bool = False
    """Whether an earlier process listed it, and this one has not yet."""
    holding: Holding | None = None
    on_displaced: Callable[[], None] = lambda: None


class Catalog:
    """Publishes snapshots, and lets tasks wait for the next one. `servers`: the order of the configuration;
    `is_visible` decides about an entry; `on_collision` is called once for each entry that is left out because of an
    equal outward name. Memory is charged to `memory`."""

    def __init__(
        self,
        servers: Sequence[str],
        is_visible: Callable[[EntryRef], bool],
        on_collision: Callable[[Entry], None],
        memory: Budget | None = None,
    ) -> None:
        self.memory = memory or Budget()
        self._order = tuple(servers)
        self._is_visible = is_visible
        self._on_collision = on_collision
        self._lists: dict[Kind, dict[Source, _List]] = {kind: {} for kind in Kind}
        self._shown: set[Source] = set()
        """Sources whose lists clients of the same era see first; see `_seen`."""
        self._snapshots = {kind: dict.fromkeys(VIEWERS.values(), KindSnapshot()) for kind in Kind}
        """For each viewer."""
        self._changed = trio.lowlevel.ParkingLot()
        self._due: dict[Kind, dict[Source, object]] = {kind: {} for kind in Kind}
        """Lists to evaluate again, each with a unique mark of the request."""
        self._more_due = trio.lowlevel.ParkingLot()
        self.version = 0
        self.slices = Slices()
        """For all work that grows with the lists."""

    # The views of clients

    def snapshot(self, kind: Kind, viewer: Viewer) -> KindSnapshot:
        """The entries that a viewer can see."""
        return self._snapshots[kind][viewer]

    def _seen(self, kind: Kind, viewer: Viewer) -> dict[str, ServerEntries]:
        """The rule of which lists a viewer sees, by server in order.

        Clients with a session see the list of the session once that is shown (`show`), which happens when all its
        lists are known, so that they change in one step. Else a client sees the list of the stateless source, or that
        of the session if no other has listed the kind. A source that could not list the kind (`mark_unlisted`) keeps
        its place: its clients are served over its connection, where they could not call what another source lists.
        """
        best: dict[str, tuple[tuple[bool, bool], ServerEntries | None]] = {}
        for source, each in self._lists[kind].items():
            if each.part is not None or each.is_unlisted:
                rank = source.era is viewer.era and source in self._shown, source.era is Era.STATELESS
                if source.server not in best or rank > best[source.server][0]:
                    best[source.server] = rank, each.part
        seen = ((server, best[server][1]) for server in self._order if server in best)
        return {server: part for server, part in seen if part is not None}

    def show(self, source: Source) -> None:
        """Show the lists of a source to the clients of its era, in one step."""
        if source not in self._shown:
            self._shown.add(source)
            self._show_again()

    def hide(self, source: Source) -> None:
        """Undo `show`: the clients of the era see the lists of another source, as soon as that has listed."""
        if source in self._shown:
            self._shown.discard(source)
            self._show_again()

    def _show_again(self) -> None:
        for kind in Kind:
            self._update_snapshots(kind, changed=True, narrowed=True)
        self._notify_changed()

    def withdraw(self, source: Source) -> None:
        """Remove all lists of a source: clients see those of another one."""
        self._withdraw((source,))

    def withdraw_server(self, server: str) -> None:
        """Remove all lists of the server, because another one has its place."""
        sources = self._shown.union(*self._lists.values())
        self._withdraw([source for source in sources if source.server == server])

    def _withdraw(self, sources: Collection[Source]) -> None:
        # In one step: between two, clients would see a list that none saw before, and its collisions would be reported.
        self._shown.difference_update(sources)
        for kind in Kind:
            self._remove(sources, kind, narrowed=True)

    # The lists of one source

    def listed(self, source: Source, kind: Kind) -> tuple[Entry, ...] | None:
        """The list of a source; None if it has not listed the kind."""
        part = self._part(source, kind)
        return None if part is None else part.entries

    def unfit(self, source: Source, kind: Kind) -> tuple[Entry, ...]:
        """The entries of a source that are hidden from clients of one era."""
        part = self._part(source, kind)
        return () if part is None else part.unfit

    def entry(self, ref: EntryRef) -> Entry | None:
        """The entry, visible or hidden; None if its source does not list it."""
        part = self._part(ref.source, ref.kind)
        return None if part is None else part.by_name.get(ref.name)

    def is_remembered(self, ref: EntryRef) -> bool:
        """Whether the list that would have the entry is the one of an earlier process. A resource may also be one of a
        template."""
        return self._is_remembered(ref.source, ref.kind) or (
            ref.kind is RESOURCE and self._is_remembered(ref.source, Kind.TEMPLATE)
        )

    def _is_remembered(self, source: Source, kind: Kind) -> bool:
        found = self._lists[kind].get(source)
        return found is not None and found.remembered

    def _part(self, source: Source, kind: Kind) -> ServerEntries | None:
        found = self._lists[kind].get(source)
        return None if found is None else found.part

    def entries_of(self, server: str, kind: Kind) -> tuple[Entry, ...]:
        """The entries of all sources of a server, those of a stateless one first. A name that several list counts
        once."""
        sources = [source for source in self._lists[kind] if source.server == server]
        sources.sort(key=lambda source: source.era is not Era.STATELESS)
        found: dict[str, Entry] = {}
        for source in sources:
            if (part := self._part(source, kind)) is not None:
                found = {**part.by_name, **found} if found else dict(part.by_name)
        return tuple(found.values())

    def has_param_headers(self, server: str | None, viewer: Viewer) -> bool:
        """Whether headers must repeat arguments of any tool of the server that the viewer sees."""
        part = self.snapshot(Kind.TOOL, viewer).parts.get(server or "")
        return part is not None and part.has_param_headers

    def hint(self, source: Source, kind: Kind) -> FreshnessHint | None:
        """Freshness of the source's list of this kind; None if it lists nothing of the kind."""
        found = self._lists[kind].get(source)
        return None if found is None else found.hint

    def expire_hint(self, source: Source, kind: Kind) -> None:
        """Drop the hint of how long the list stays fresh."""
        if (hint := self.hint(source, kind)) is not None:
            self._lists[kind][source].hint = FreshnessHint(STALE, hint.asked_at)

    def renew_hint(self, source: Source, kind: Kind, hint: FreshnessHint) -> bool:
        """Put the hint of a list that was read again and is the same. False if the list is not kept any more."""
        if self._part(source, kind) is None:
            return False
        self._lists[kind][source].hint = hint
        return True

    def charge(
        self, source: Source, kind: Kind, size: int, on_displaced: Callable[[], None] = lambda: None
    ) -> Holding | None:
        """Charge the server for a list of this size. None, without effect, if there is no memory for it. If the
        charge is dropped before `publish`, do not publish.

        Args:
            on_displaced: called when owners that keep less need the memory; the source then lists nothing of the kind.
                It may charge nothing.
        """
        kept = self._lists[kind].setdefault(source, _List())
        if kept.holding is None:
            drop = partial(self._displace, source, kind)
            kept.holding = self.memory.hold(owner(source.server), Use.LISTS, drop=drop, firm=True)
        try:
            kept.holding.resize(KEPT_COPIES * size)
        except OverBudget:
            return None
        kept.on_displaced = on_displaced
        return kept.holding

    def _displace(self, source: Source, kind: Kind) -> None:
        """Remove the list, because its memory is needed. Its source may list again."""
        former = self._lists[kind][source]
        was_due = self._forget(source, kind)
        self._lists[kind][source] = _List(is_unlisted=True)
        if former.part is not None or self._is_outdated(kind):
            self._update_snapshots(kind, changed=True, narrowed=was_due)
            self._notify_changed()
        former.on_displaced()

    def mark_unlisted(self, source: Source, kind: Kind, *, alone: bool) -> None:
        """Note that a list could not be read over the connection that serves the clients of the source. What it listed
        before stays; if that is nothing, they see nothing. `alone`: see `publish`."""
        kept = self._lists[kind].setdefault(source, _List())
        kept.is_unlisted = kept.part is None
        if alone:
            for each in self._others(source, kind):
                self._forget(each, kind)
        if self._is_outdated(kind):
            self._update_snapshots(kind, changed=True, narrowed=True)
            self._notify_changed()

    def _others(self, source: Source, kind: Kind) -> list[Source]:
        """The other sources of the server and login that have listed the kind, or could not."""
        return [
            each
            for each, kept in self._lists[kind].items()
            if each != source
            and (each.server, each.owner) == (source.server, source.owner)
            and (kept.part is not None or kept.is_unlisted)
        ]

    def _remove(self, sources: Collection[Source], kind: Kind, *, narrowed: bool) -> None:
        was_listed = any(self._part(source, kind) is not None for source in sources)
        was_due = [self._forget(source, kind) for source in sources]
        if was_listed or self._is_outdated(kind):
            self._update_snapshots(kind, changed=True, narrowed=narrowed or any(was_due))
            self._notify_changed()

    def _forget(self, source: Source, kind: Kind) -> bool:
        """Forget a list, and return whether it was to be evaluated again. The snapshots stay."""
        kept = self._lists[kind].pop(source, None)
        if kept is not None and kept.holding is not None:
            kept.holding.release()
        return self._clear_due(source, kind)

    def prepare_entries(
        self, source: Source, kind: Kind, definitions: Iterable[Definition], is_visible: Callable[[EntryRef], bool]
    ) -> Steps[ServerEntries]:
        """Prepare the entries of one kind of a source for `publish`."""
        former = self._part(source, kind)
        known = {} if former is None else former.by_name
        entries: list[Entry] = []
        for definition in definitions:
            yield None
            entry = known.get(definition.name)
            if entry is None or (entry.definition, entry.may_be_task) != (definition.raw, definition.may_be_task):
                entry = yield from _entry(EntryRef(source, kind, definition.name), definition)
            entries.append(entry)
        return (yield from _server_entries(source, entries, is_visible))

    def publish(
        self,
        kind: Kind,
        part: ServerEntries,
        hint: FreshnessHint | None = None,
        *,
        alone: bool = True,
        remembered: bool = False,
    ) -> bool:
        """Replace what a source lists of `kind`, in one step. The entries must have been prepared under the present
        policy. `alone`: the list of the other era ends, because the server has none with this login any more.
        `remembered`: see `is_remembered`. Returns whether anything changed; a change wakes all waiters."""
        source, lists = part.source, self._lists[kind]
        was_due = self._clear_due(source, kind)
        kept = lists.setdefault(source, _List())
        before, kept.part, kept.hint, kept.remembered = kept.part, part, hint, remembered
        kept.is_unlisted = False
        has_others = any(
            each.server == source.server and each != source and other.part is not None for each, other in lists.items()
        )
        ended = self._others(source, kind) if alone else []
        if not ended and before is not None and (part.entries, part.visible) == (before.entries, before.visible):
            kept.part = before  # with what was rendered from it
            return False
        # An empty list differs from no list, but no client sees a difference.
        changed = before is not None or has_others or bool(part.entries)
        for each in ended:
            was_due = self._forget(each, kind) or was_due
        self._update_snapshots(kind, changed=changed, narrowed=(was_due or bool(ended)) and changed)
        if changed:
            self._notify_changed()
        return changed

    # Visibility

    def reevaluate(self, servers: Iterable[str]) -> None:
        """Evaluate the visibility of these servers' entries again, and wake the waiters if it changed. Long lists are
        left to `run`: see `wait_until_evaluated`."""
        wanted = frozenset(servers)
        for kind, lists in self._lists.items():
            marked = [source for source, each in lists.items() if each.part is not None and source.server in wanted]
            self._due[kind].update({source: object() for source in marked})
        sizes = (len(self.listed(source, kind) or ()) for kind, due in self._due.items() for source in due)
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
        """Whether the snapshots show no hidden entry of this server (None: of any server)."""
        return not any(server in (None, source.server) for source in self._due[kind])

    async def wait_until_evaluated(self, kind: Kind, server: str | None = None) -> None:
        """Wait until `is_evaluated`. No checkpoint lies between that moment and the return."""
        while not self.is_evaluated(kind, server):
            await self._changed.park()

    def _evaluate_due(self, kind: Kind) -> Steps[None]:
        """Evaluate the marked lists of one kind and replace them in one step. Lists that are marked again meanwhile,
        because the policy changed, are evaluated again."""
        made: dict[Source, tuple[object, ServerEntries]] = {}
        while (source := self._next_due(kind, made)) is not None:
            mark, entries = self._due[kind][source], self.listed(source, kind) or ()
            part = yield from _server_entries(source, entries, self._is_visible)
            made[source] = mark, part
        self._swap(kind, [part for source, (_, part) in made.items() if source in self._due[kind]])

    def _next_due(self, kind: Kind, made: Mapping[Source, tuple[object, ServerEntries]]) -> Source | None:
        """The source of a marked list that was not evaluated since it was marked."""
        for source, mark in self._due[kind].items():
            if source not in made or made[source][0] is not mark:
                return source
        return None

    def _swap(self, kind: Kind, evaluated: Sequence[ServerEntries]) -> None:
        lists = self._lists[kind]
        changed, narrowed = False, False
        for part in evaluated:
            before = lists[part.source].part
            self._clear_due(part.source, kind)
            if before is not None and part.visible != before.visible:
                lists[part.source].part = part
                changed, narrowed = True, narrowed or not before.by_outward.keys() <= part.by_outward.keys()
        if changed:
            self._update_snapshots(kind, changed=True, narrowed=narrowed)
            self._notify_changed()

    def _clear_due(self, source: Source, kind: Kind) -> bool:
        """Remove the mark; return whether there was one."""
        was_due = self._due[kind].pop(source, None) is not None
        if was_due:
            self._changed.unpark_all()
        return was_due

    # Changes

    def set_servers(self, servers: Sequence[str]) -> None:
        """Take over the servers of the configuration, in this order; remove the entries of all others."""
        self._order = tuple(servers)
        self._shown = {source for source in self._shown if source.server in self._order}
        for kind, lists in self._lists.items():
            gone = [source for source in lists if source.server not in self._order]
            narrowed = any(self._part(source, kind) is not None for source in gone)
            for source in gone:
                self._forget(source, kind)
            shown = self._snapshots[kind].items()
            # Compared as lists, since the order of the servers may be a new one.
            if narrowed or any(list(self._seen(kind, viewer)) != list(each.parts) for viewer, each in shown):
                self._update_snapshots(kind, changed=True, narrowed=narrowed)
        self._notify_changed()

    async def wait_for_change(self, version: int) -> int:
        """Wait until the catalog is newer than `version`; changes in between are combined."""
        while self.version <= version:
            await self._changed.park()
        return self.version

    def _notify_changed(self) -> None:
        self.version += 1
        self._changed.unpark_all()

    def _is_outdated(self, kind: Kind) -> bool:
        """Whether some clients are to see other lists than the snapshots have."""
        return any(self._seen(kind, viewer) != each.parts for viewer, each in self._snapshots[kind].items())

    def _update_snapshots(self, kind: Kind, *, changed: bool, narrowed: bool = False) -> None:
        """Make the snapshots of a kind of its present lists."""
        former = self._snapshots[kind]
        colliding: frozenset[EntryRef] = frozenset().union(*(each.colliding for each in former.values()))
        snapshots: dict[Viewer, KindSnapshot] = {}
        for viewer, before in former.items():
            parts = self._seen(kind, viewer)
            same = [each for each in snapshots.values() if each.parts == parts]
            snapshots[viewer] = same[0] if same else self._build_snapshot(parts, before, colliding, changed, narrowed)
            colliding |= snapshots[viewer].colliding
        self._snapshots[kind] = snapshots

    def _build_snapshot(
        self,
        parts: Mapping[str, ServerEntries],
        former: KindSnapshot,
        known_collisions: frozenset[EntryRef],
        changed: bool,
        narrowed: bool,
    ) -> KindSnapshot:
        # A hidden entry does not collide with others, and is not found under a name that another entry has.
        clear: dict[str, Entry] = {}
        for part in parts.values():
            clear |= part.by_outward
        colliding: frozenset[EntryRef] = frozenset()
        if len(clear) < sum(len(part.visible) for part in parts.values()):
            shown = [entry for part in parts.values() for entry in part.visible]
            called = Counter(entry.outward for entry in shown)
            twice = {entry.ref: entry for entry in shown if called[entry.outward] > 1}
            known = {(ref.server, ref.name) for ref in known_collisions}  # one report for all sources of a server
            for ref, entry in twice.items():
                if (ref.server, ref.name) not in known:
                    self._on_collision(entry)
            clear = {name: entry for name, entry in clear.items() if called[name] == 1}
            colliding = frozenset(twice)
        by_outward: dict[str, Entry] = {}
        for part in parts.values():
            by_outward |= part.hidden
        version = former.version + changed
        return KindSnapshot(
            version,
            MappingProxyType(parts),
            colliding,
            tuple(clear.values()),
            MappingProxyType(by_outward | clear),
            version if narrowed else former.last_narrowed,
        )


def _server_entries(
    source: Source, entries: Iterable[Entry], is_visible: Callable[[EntryRef], bool]
) -> Steps[ServerEntries]:
    shown: list[Entry] = []
    by_outward: dict[str, Entry] = {}
    hidden: dict[str, Entry] = {}
    by_name: dict[str, Entry] = {}
    has_param_headers = False
    unfit: list[Entry] = []
    for entry in entries:
        yield None
        by_name[entry.ref.name] = entry
        if entry.misfit is not None and any(entry.misfit):
            unfit.append(entry)
        has_param_headers = has_param_headers or bool(entry.param_headers)
        if is_visible(entry.ref):
            shown.append(entry)
            by_outward[entry.outward] = entry
        else:
            hidden[entry.outward] = entry
    return ServerEntries(
        source, tuple(by_name.values()), tuple(shown), by_outward, hidden, by_name, has_param_headers, tuple(unfit)
    )


def _entry(ref: EntryRef, definition: Definition) -> Steps[Entry]:
    server, kind = ref.server, ref.kind
    key = LIST_METHODS[kind].key
    rename = outward_name if key == "name" else outward_uri
    outward = rename(server, ref.name)
    found = members(definition.raw)
    found[key] = encode(outward)
    rename_page(found, lambda uri: outward_uri(server, uri))
    exported = bytes(encode_object(found))
    uris = (ref.name, outward) if kind is Kind.RESOURCE else ()
    misfit = yield from find_misfit(kind, definition.raw, uris)
    entry = Entry(ref, outward, definition.raw, exported, misfit=misfit)
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
