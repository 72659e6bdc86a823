"""The catalog: the entries of all servers, as an immutable snapshot per kind with a version that grows with every
change.

Visibility is decided by the policy, and watched by the transports. The list of a source replaces its former list as a
whole. Entries are in the order of the configuration, then in the server's. Entries with equal outward names are all
left out of the shared endpoint; precedence would depend on timing.

A server may have several sources (`host/source.py`), each with its own lists. Of each server, a client sees the lists
of one source, which `Catalog._seen` chooses by the viewer that the client is, and nothing else does. A list has a part
for each audience: a view and a caller that rules name. So there is a snapshot of each kind for each viewer. Parts and
snapshots are one object where the clients see the same, and an entry is another one in a view only if it is called
otherwise there.

When the policy or a view changes, lists are evaluated again, long ones in slices; requests for lists wait for it. Calls
wait only if a view has changed, until when it has nothing of these lists: the gate decides about them.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Container, Hashable, Iterable, Mapping, Sequence
from functools import cached_property, partial
from types import MappingProxyType
from typing import Any, Protocol

import trio
from msgspec import Raw, Struct, field, structs

from config.views import Override
from host.jsonrpc.raw import encode, encode_object, members
from host.jsonrpc.strict import is_heavy
from host.memory import Budget, Holding, OverBudget, Use
from host.memory import server_owner as owner
from host.names import Names, is_web
from host.overrides import ArgumentEdit, Edited, Inapplicable, edit_off_loop
from host.protocol.definitions import Misfit, is_plain, is_short, misfit_of
from host.protocol.links import rename_page
from host.protocol.methods import LIST_METHODS, RESOURCE, Kind
from host.protocol.param_headers import ParamHeader, param_headers_of
from host.protocol.stateless import STALE, Freshness
from host.protocol.tasks import Support, task_support
from host.protocol.versions import Era
from host.slices import in_worker, pause, run_now
from host.source import EntryRef, Source, Viewer, viewer_of

KEPT_COPIES = 4
"""Copies of a definition that are kept (measured): as the server wrote it, in its pin, with its outward names, and in
the lists for clients."""
COPIES_IN_VIEW = 2
"""Further copies in a view with names of its own: with these names, and in the lists for its clients."""
MAX_INLINE_ENTRIES = 100
"""Entries whose visibility is evaluated without a pause, for one audience."""

IsVisible = Callable[[EntryRef, str], bool]
"""Whether clients of a caller see an entry; "" for those that no rule names."""
SHORT_LOOKS = 50
"""Entries that are looked at between two pauses, if each takes a microsecond."""
Audience = tuple[str, str]
"""The clients that see the same of a source: the names of their view and of their caller (`Viewer`)."""
_Narrowed = bool | Container[Audience]
EVERYBODY: Audience = ("", "")
"""Clients without a view that no rule names."""


class Entry(Struct, frozen=True, gc=False):
    """One exported tool, resource, template or prompt. Entries are part of no reference cycle, so the garbage
    collector, which stops everything, can ignore them."""

    ref: EntryRef
    local: str
    """Its name or URI at the endpoint of its server: the server's own, if no override gives another."""
    outward: str
    """Its name or URI at the shared endpoint."""
    definition: bytes
    """The definition as the server wrote it, on one line."""
    edited: bytes
    """The definition as an override changes it; `definition` itself without one."""
    exported: bytes
    """The edited definition with its outward names."""
    arguments: ArgumentEdit | None = None
    """The change of the arguments of a call by the override, if there is one."""
    left_out: str = ""
    """The reason why its override cannot be applied, for which nobody is offered the entry."""
    may_be_task: bool = False
    """Whether a call of it may become a task."""
    support: Support = Support.FORBIDDEN
    """The tool's own `taskSupport`."""
    param_headers: tuple[ParamHeader, ...] | None = ()
    """The arguments that headers to the server repeat; None if its schema declares them invalidly."""
    client_headers: tuple[ParamHeader, ...] | None = ()
    """Those that headers of clients repeat, by the edited schema; None if it declares them invalidly, so that no
    stateless client may call the tool over HTTP."""
    misfit: Misfit | None = None
    """How the definition differs from what clients accept, if it does."""


class Definition(Struct, frozen=True, gc=False):
    """One entry as a server listed it."""

    name: str
    raw: bytes
    may_be_task: bool = False


class FreshnessHint(Struct, frozen=True):
    """The freshness of a server's list when it was requested, at a time of this process in seconds."""

    freshness: Freshness
    asked_at: float
    beside: Mapping[str, Raw] = field(default_factory=dict)
    """The members of the list's result that clients of its server alone get with it, if they are shown all entries."""

    def remaining(self, time: float) -> Freshness:
        """The remaining freshness."""
        left = self.freshness.ttl_ms - int((time - self.asked_at) * 1000)
        return Freshness(max(left, 0), self.freshness.public)


class CatalogView(Protocol):
    """A view, as the catalog needs it; see `host.views.View`."""

    @property
    def name(self) -> str: ...
    @property
    def names(self) -> Names: ...
    @property
    def reserved(self) -> frozenset[str]: ...
    @property
    def renames(self) -> bool: ...
    def has_server(self, server: str) -> bool: ...
    def offers_all(self, server: str, kind: Kind) -> bool: ...
    def offers_listed(self, server: str, kind: Kind, name: str) -> bool: ...
    def treats_alike(self, server: str, other: Any) -> bool: ...
    def overrides(self, server: str, kind: Kind) -> Mapping[str, Override]: ...


class ServerEntries(Struct, frozen=True, eq=False):
    """The entries of one kind that one source offers to one audience, and the visible ones among them. Lists rendered
    from them are cached in `rendered`."""

    source: Source
    visible: tuple[Entry, ...]
    by_outward: Mapping[str, Entry]
    """Visible entries, by outward name."""
    hidden: Mapping[str, Entry]
    """Hidden entries, by outward name."""
    by_name: Mapping[str, Entry]
    """All entries in the view, by the server's own name."""
    by_local: Mapping[str, Entry]
    """The same by the name at the endpoint of the server, without visible entries of one such name."""
    is_whole: bool
    """Whether all that the source lists is visible, as the source lists it."""
    shared_names: frozenset[str]
    """Those of the outward names of visible entries that an entry of another server may have too."""
    left_out: tuple[Entry, ...] = ()
    """Visible entries that are in no list of all servers, because of an equal or a reserved outward name."""
    inapplicable: tuple[Entry, ...] = ()
    """Entries that are left out because their override cannot be applied."""
    has_param_headers: bool = False
    """Whether headers must repeat arguments of any of them, hidden ones included."""
    rendered: dict[Hashable, Any] = field(default_factory=dict)
    definitions: dict[Hashable, dict[int, tuple[bytes, bytes]]] | None = None
    """Rendered definitions, and the digest of each, by the identity of their entry, for all parts of a list; None if it
    has one part."""

    @property
    def may_collide(self) -> bool:
        """Whether an entry is left out of lists, or may be because of an entry of another server."""
        return bool(self.shared_names or self.left_out or self.inapplicable)

    def is_like(self, other: ServerEntries) -> bool:
        """Whether clients see no difference."""
        mine, others = ((each.visible, each.hidden, each.inapplicable, each.is_whole) for each in (self, other))
        return mine == others


class SourceEntries(Struct, frozen=True, eq=False):
    """The entries of one kind that one source lists, with a part for each audience."""

    source: Source
    entries: tuple[Entry, ...]
    """As they are called without a view."""
    by_name: Mapping[str, Entry]
    """By the server's own name."""
    parts: Mapping[Audience, ServerEntries]
    """Those of present audiences that see nothing of the source, or are to be evaluated yet, have none."""
    views: Mapping[str, CatalogView]
    """The views that the parts were made for."""
    unfit: tuple[Entry, ...] = ()
    """The entries that are hidden from clients of one era, because they would refuse the whole list."""

    def without(self, audiences: Container[Audience]) -> SourceEntries:
        """The same without the parts of these audiences."""
        return structs.replace(self, parts={each: part for each, part in self.parts.items() if each not in audiences})


_ByServer = Mapping[str, ServerEntries | None]
_WITH_TEMPLATES = (RESOURCE, Kind.TEMPLATE)


class KindSnapshot(Struct, frozen=True, eq=False, dict=True):
    """All entries of one kind at one moment, as one viewer sees them."""

    version: int = 0
    by_server: _ByServer = field(default_factory=dict)
    """By server, in order: the list of the source that these clients see; None if they see none."""
    colliding: Mapping[EntryRef, Entry] = field(default_factory=dict)
    """The visible entries that are in no list of all servers, because of an equal or a reserved outward name."""
    last_narrowed: int = 0
    """Snapshots before this version show entries that are hidden now."""
    resolved: dict[Hashable, tuple[object, Any]] = field(default_factory=dict)
    """Names of visible entries that the router has resolved, with the view that they were resolved for. By the server
    whose own endpoint was asked, if any, and the name: at most two for each entry."""

    @cached_property
    def parts(self) -> Mapping[str, ServerEntries]:
        """By server, in order: the lists that these clients see."""
        return MappingProxyType({server: part for server, part in self.by_server.items() if part is not None})

    @property
    def entries(self) -> tuple[Entry, ...]:
        """Visible entries of all servers, in order, without those that are left out."""
        return tuple(each for part in self.parts.values() for each in part.visible if each.ref not in self.colliding)

    def left_out(self) -> dict[tuple[str, str, str], Entry]:
        """The entries that are in no list of all servers, by server, own name, and why their override cannot be
        applied; empty for an equal or a reserved name."""
        found = [*self.colliding.values(), *(each for part in self.parts.values() for each in part.inapplicable)]
        return {(each.ref.server, each.ref.name, each.left_out): each for each in found}

    def entry(self, server: str, name: str) -> Entry | None:
        """The entry with this name at the endpoint of the server, visible or hidden."""
        part = self.by_server.get(server)
        return None if part is None else part.by_local.get(name)

    def find(self, outward: str, server: str) -> Entry | None:
        """The entry of the server with this outward name at the shared endpoint, visible or hidden. The gate refuses
        requests for a hidden one."""
        part = self.by_server.get(server)
        if part is None:
            return None
        found = part.by_outward.get(outward)
        if found is None:
            return part.hidden.get(outward)
        return None if found.ref in self.colliding else found


class _List(Struct, eq=False):
    """The list of one kind of one source, with all that is kept beside it."""

    listed: SourceEntries | None = None
    """None if the source has not listed the kind."""
    is_unlisted: bool = False
    """Whether it has no entries while its connection serves: see `Catalog.mark_unlisted`."""
    hint: FreshnessHint | None = None
    remembered: bool = False
    """Whether an earlier process listed it, and this one has not yet."""
    holding: Holding | None = None
    on_displaced: Callable[[], None] = lambda: None


class Catalog:
    """Publishes snapshots, and lets tasks wait for the next one.

    Args:
        servers: the order of the configuration.
        is_visible: whether clients of this caller see an entry.
        on_left_out: called once for each entry that is left out because of an equal outward name, or since its
            override cannot be applied (`Entry.left_out`), with the name of the view.
        memory: what lists are charged to.
        views: the views, that of everything first.
        audiences: see `set_views`.
    """

    def __init__(
        self,
        servers: Sequence[str],
        is_visible: IsVisible,
        on_left_out: Callable[[Entry, str], None],
        memory: Budget | None = None,
        *,
        views: Iterable[CatalogView],
        audiences: Iterable[Audience] = (EVERYBODY,),
    ) -> None:
        self.memory = memory or Budget()
        self._order = dict.fromkeys(servers)
        self._is_visible = is_visible
        self._on_left_out = on_left_out
        self._lists: dict[Kind, dict[str, dict[Source, _List]]] = {kind: {} for kind in Kind}
        """By server, then by source."""
        self._shown: set[Source] = set()
        """Sources whose lists clients of the same era see first; see `_seen`."""
        self._views: dict[str, CatalogView] = {}
        self._audiences: tuple[Audience, ...] = ()
        self._copies = KEPT_COPIES
        self._snapshots: dict[Kind, dict[Viewer, KindSnapshot]] = {kind: {} for kind in Kind}
        """For each viewer."""
        self._former: list[ServerEntries] = []
        """Parts that were replaced; see `free_former`."""
        self._versions = Counter[Kind]()
        """The versions of the newest snapshots."""
        self._changed = trio.lowlevel.ParkingLot()
        self._due: dict[Kind, dict[Source, object]] = {kind: {} for kind in Kind}
        """Lists to evaluate again, each with a unique mark of the request."""
        self._more_due = trio.lowlevel.ParkingLot()
        self.version = 0
        self._take_views(views, audiences)

    # The views of clients

    def set_views(self, views: Iterable[CatalogView], audiences: Iterable[Audience]) -> None:
        """Take over the views and audiences of the configuration, in one step. What a view has changed of is in none of
        its lists until it is evaluated: see `wait_until_evaluated`.

        Args:
            audiences: those that clients may be part of, EVERYBODY first.
        """
        former, before = self._views, self._audiences
        self._take_views(views, audiences)
        if (former, before) == (self._views, self._audiences):
            return
        keeping: dict[str, set[Audience]] = {}
        wanting: dict[str, set[Audience]] = {}
        for kind, lists in self._lists.items():
            lost: set[Audience] = set()
            self._due[kind] = {source: object() for source in self._due[kind]}  # what is being made is outdated
            for source, each in [pair for of_server in lists.values() for pair in of_server.items()]:
                if each.listed is None:
                    continue
                if source.server not in keeping:
                    keeping[source.server] = self._keeping(source.server, former)
                    wanting[source.server] = self._wanting(source.server)
                if stale := each.listed.parts.keys() - keeping[source.server]:
                    lost |= stale
                    self._former += each.listed.parts.values()
                    each.listed = each.listed.without(stale)
                if wanting[source.server] - each.listed.parts.keys():
                    self._due[kind][source] = object()
            self._update_snapshots(kind, changed=True, narrowed=lost)
        self._notify_changed()
        self._begin_evaluation()

    def _take_views(self, views: Iterable[CatalogView], audiences: Iterable[Audience]) -> None:
        self._views, self._audiences = {view.name: view for view in views}, tuple(audiences)
        renaming = sum(view.renames for view in self._views.values())
        before, self._copies = self._copies, KEPT_COPIES + COPIES_IN_VIEW * renaming
        for lists in self._lists.values() if before != self._copies else ():
            for each in [each for of_server in lists.values() for each in of_server.values()]:
                if (holding := each.holding) is not None:
                    _resize(holding, holding.size // before * self._copies)
        viewers = dict.fromkeys(viewer_of(era, *audience) for audience in self._audiences for era in Era)
        for kind, former in self._snapshots.items():
            # Higher than all that were shown to clients of a view that is no more, who may come back to another one.
            self._versions[kind] += any(viewer not in viewers for viewer in former)
            nothing = self._nothing(kind)
            self._snapshots[kind] = {viewer: former.get(viewer, nothing) for viewer in viewers}

    def _nothing(self, kind: Kind) -> KindSnapshot:
        """The snapshot for a viewer that was shown nothing yet, or is none any more."""
        return KindSnapshot(self._versions[kind], last_narrowed=self._versions[kind])

    def _keeping(self, server: str, former: Mapping[str, CatalogView]) -> set[Audience]:
        """The audiences whose part of a list of the server is as it was with these views."""
        alike = {
            name for name, view in self._views.items() if name in former and view.treats_alike(server, former[name])
        }
        return {audience for audience in self._audiences if audience[0] in alike}

    def _wanting(self, server: str) -> set[Audience]:
        """The audiences that are to have a part of each list of the server."""
        having = {name for name, view in self._views.items() if view.has_server(server)}
        return {audience for audience in self._audiences if audience[0] in having}

    def has_viewer(self, viewer: Viewer) -> bool:
        """Whether there is a snapshot for the viewer: its view is one of the configuration, and its caller one that
        reaches it."""
        return viewer in self._snapshots[Kind.TOOL]

    def snapshot(self, kind: Kind, viewer: Viewer) -> KindSnapshot:
        """The entries that a viewer can see: none in a view that is no more."""
        found = self._snapshots[kind].get(viewer)
        return self._nothing(kind) if found is None else found

    def _seen(self, kind: Kind, era: Era, server: str) -> Mapping[Audience, ServerEntries]:
        """The rule of which list of a server the clients of an era see; by audience, empty if they see none.

        Clients with a session see the list of the session once that is shown (`show`), which happens when all its
        lists are known, so that they change in one step. Else a client sees the list of the stateless source, or that
        of the session if no other has listed the kind. A source that could not list the kind (`mark_unlisted`) keeps
        its place: its clients are served over its connection, where they could not call what another source lists.
        """
        best: tuple[bool, ...] = ()
        seen: SourceEntries | None = None
        for source, each in self._lists[kind].get(server, {}).items():
            rank = source.era is era and source in self._shown, source.era is Era.STATELESS
            if (each.listed is not None or each.is_unlisted) and rank > best:
                best, seen = rank, each.listed
        return {} if seen is None else seen.parts

    def show(self, source: Source) -> None:
        """Show the lists of a source to the clients of its era, in one step."""
        if source not in self._shown:
            self._shown.add(source)
            self._show_again(source.server)

    def hide(self, source: Source) -> None:
        """Undo `show`: the clients of the era see the lists of another source, as soon as that has listed."""
        if source in self._shown:
            self._shown.discard(source)
            self._show_again(source.server)

    def _show_again(self, server: str) -> None:
        for kind in Kind:
            self._update_snapshots(kind, (server,), changed=True, narrowed=True)
        self._notify_changed()

    def withdraw(self, source: Source) -> None:
        """Remove all lists of a source: clients see those of another one."""
        self._withdraw((source,))

    def withdraw_server(self, server: str) -> None:
        """Remove all lists of the server, because another one has its place."""
        shown = {source for source in self._shown if source.server == server}
        self._withdraw(shown.union(*(lists.get(server, ()) for lists in self._lists.values())))

    def _withdraw(self, sources: Collection[Source]) -> None:
        # In one step: between two, clients would see a list that none saw before, and its collisions would be reported.
        self._shown.difference_update(sources)
        for kind in Kind:
            self._remove(sources, kind, narrowed=True)

    # The lists of one source

    def listed(self, source: Source, kind: Kind) -> tuple[Entry, ...] | None:
        """The list of a source; None if it has not listed the kind."""
        found = self._listed(source, kind)
        return None if found is None else found.entries

    def unfit(self, source: Source, kind: Kind) -> tuple[Entry, ...]:
        """The entries of a source that are hidden from clients of one era."""
        found = self._listed(source, kind)
        return () if found is None else found.unfit

    def entry(self, ref: EntryRef) -> Entry | None:
        """The entry, visible or hidden; None if its source does not list it."""
        found = self._listed(ref.source, ref.kind)
        return None if found is None else found.by_name.get(ref.name)

    def is_remembered(self, ref: EntryRef) -> bool:
        """Whether the list that would have the entry is the one of an earlier process. A resource may also be one of a
        template."""
        source = ref.source
        for kind in _WITH_TEMPLATES if ref.kind is RESOURCE else (ref.kind,):  # no generator: every call asks
            found = self._lists[kind].get(source.server, {}).get(source)  # as `_list`, for speed
            if found is not None and found.remembered:
                return True
        return False

    def _listed(self, source: Source, kind: Kind) -> SourceEntries | None:
        return None if (found := self._list(source, kind)) is None else found.listed

    def _list(self, source: Source, kind: Kind) -> _List | None:
        return self._lists[kind].get(source.server, {}).get(source)

    def _keep_list(self, source: Source, kind: Kind) -> _List:
        return self._lists[kind].setdefault(source.server, {}).setdefault(source, _List())

    def entries_of(self, server: str, kind: Kind) -> tuple[Entry, ...]:
        """The entries of all sources of a server, those of a stateless one first, as they are without a view. A name
        that several list counts once."""
        sources = sorted(self._lists[kind].get(server, ()), key=lambda source: source.era is not Era.STATELESS)
        found: dict[str, Entry] = {}
        for source in sources:
            if (listed := self._listed(source, kind)) is not None:
                part = listed.parts.get(EVERYBODY)
                found = {**listed.by_name, **({} if part is None else part.by_name), **found}
        return tuple(found.values())

    def has_param_headers(self, server: str | None, viewer: Viewer) -> bool:
        """Whether headers must repeat arguments of any tool of the server that the viewer sees."""
        part = self.snapshot(Kind.TOOL, viewer).parts.get(server or "")
        return part is not None and part.has_param_headers

    def hint(self, source: Source, kind: Kind) -> FreshnessHint | None:
        """Freshness of the source's list of this kind; None if it lists nothing of the kind."""
        return None if (found := self._list(source, kind)) is None else found.hint

    def expire_hint(self, source: Source, kind: Kind) -> None:
        """Drop the hint of how long the list stays fresh."""
        if (found := self._list(source, kind)) is not None and found.hint is not None:
            found.hint = structs.replace(found.hint, freshness=STALE)

    def renew_hint(self, source: Source, kind: Kind, hint: FreshnessHint) -> bool:
        """Put the hint of a list that was read again and is the same. False if the list is not kept any more."""
        if (found := self._list(source, kind)) is None or found.listed is None:
            return False
        found.hint = hint
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
        kept = self._keep_list(source, kind)
        if kept.holding is None:
            drop = partial(self._displace, source, kind)
            kept.holding = self.memory.hold(owner(source.server), Use.LISTS, drop=drop, firm=True)
        try:
            kept.holding.resize(self._copies * size)
        except OverBudget:
            return None
        kept.on_displaced = on_displaced
        return kept.holding

    def _displace(self, source: Source, kind: Kind) -> None:
        """Remove the list, because its memory is needed. Its source may list again."""
        former = self._lists[kind][source.server][source]
        was_due = self._forget(source, kind)
        self._keep_list(source, kind).is_unlisted = True
        if self._update_snapshots(kind, (source.server,), changed=True, narrowed=was_due) or former.listed is not None:
            self._notify_changed()
        former.on_displaced()

    def mark_unlisted(self, source: Source, kind: Kind, *, alone: bool) -> None:
        """Note that a list could not be read over the connection that serves the clients of the source. What it listed
        before stays; if that is nothing, they see nothing. `alone`: see `publish`."""
        kept = self._keep_list(source, kind)
        kept.is_unlisted = kept.listed is None
        if alone:
            for each in self._others(source, kind):
                self._forget(each, kind)
        if self._update_snapshots(kind, (source.server,), changed=True, narrowed=True):
            self._notify_changed()

    def _others(self, source: Source, kind: Kind) -> list[Source]:
        """The other sources of the server and login that have listed the kind, or could not."""
        return [
            each
            for each, kept in self._lists[kind].get(source.server, {}).items()
            if each != source and each.owner == source.owner and (kept.listed is not None or kept.is_unlisted)
        ]

    def _remove(self, sources: Collection[Source], kind: Kind, *, narrowed: bool) -> None:
        was_listed = any(self._listed(source, kind) is not None for source in sources)
        was_due = [self._forget(source, kind) for source in sources]
        servers = {source.server for source in sources}
        if self._update_snapshots(kind, servers, changed=True, narrowed=narrowed or any(was_due)) or was_listed:
            self._notify_changed()

    def _forget(self, source: Source, kind: Kind) -> bool:
        """Forget a list, and return whether it was to be evaluated again. The snapshots stay."""
        kept = self._lists[kind].get(source.server, {}).pop(source, None)
        if kept is not None and kept.holding is not None:
            kept.holding.release()
        return self._clear_due(source, kind)

    async def prepare_entries(
        self, source: Source, kind: Kind, definitions: Iterable[Definition], is_visible: IsVisible
    ) -> SourceEntries:
        """Prepare the entries of one kind of a source for `publish`."""
        former = self._listed(source, kind)
        known = {} if former is None else former.by_name
        entries: list[Entry] = []
        for definition in definitions:
            await pause()
            entry = known.get(definition.name)
            if entry is None or (entry.definition, entry.may_be_task) != (definition.raw, definition.may_be_task):
                entry = await _entry(EntryRef(source, kind, definition.name), definition, self._views[""].names)
            entries.append(entry)
        return await self._evaluated(source, kind, entries, is_visible, former)

    async def _evaluated(
        self,
        source: Source,
        kind: Kind,
        entries: Iterable[Entry],
        is_visible: IsVisible,
        former: SourceEntries | None,
    ) -> SourceEntries:
        """The entries of a source, as each audience sees them now. A part that is as in `former` is the same object."""
        views, audiences = self._views, self._audiences
        by_name = {entry.ref.name: entry for entry in entries}
        listed = tuple(by_name.values())
        unfit: list[Entry] = []
        usual: list[bool] = []
        for entry in listed:
            await pause()
            usual.append(is_visible(entry.ref, ""))
            if entry.misfit is not None and any(entry.misfit):
                unfit.append(entry)
        verdicts = {"": usual}
        for caller in dict.fromkeys(caller for _, caller in audiences if caller):
            found: list[bool] = []
            for entry in listed:
                await pause()
                found.append(is_visible(entry.ref, caller))
            verdicts[caller] = next((each for each in verdicts.values() if each == found), found)
        parts: dict[Audience, ServerEntries] = {}
        offered: dict[str, Sequence[Entry | None]] = {}
        made: dict[tuple[int, int, frozenset[str]], ServerEntries] = {}
        definitions: dict[Hashable, dict[int, tuple[bytes, bytes]]] | None = {} if len(audiences) > 1 else None
        for audience in audiences:
            name, caller = audience
            view = views[name]
            if not view.has_server(source.server):
                continue
            if name not in offered:
                is_same = former is not None and former.views.get(name) is view
                before = former.parts.get(audience) if former is not None and is_same else None
                offered[name] = await self._offered(view, kind, listed, before)
            key = id(offered[name]), id(verdicts[caller]), view.reserved
            if key not in made:
                known = by_name if offered[name] is listed else None
                part = await _part(source, kind, view, offered[name], verdicts[caller], definitions, known)
                made[key] = part
            parts[audience] = made[key]
            await pause()
            if former is not None and (before := former.parts.get(audience)) is not None and before.is_like(made[key]):
                parts[audience] = before
        return SourceEntries(source, listed, by_name, parts, views, tuple(unfit))

    async def _offered(
        self, view: CatalogView, kind: Kind, listed: tuple[Entry, ...], before: ServerEntries | None
    ) -> Sequence[Entry | None]:
        """The entries of a source as a view has them, with None in the place of each that it has not; the same object
        if it has all of them as they are. `before`: the former part of the same view, whose entries are kept."""
        server = listed[0].ref.server if listed else ""
        has_all, has_names = view.offers_all(server, kind), self._calls_alike(view, server, kind)
        overrides = view.overrides(server, kind)
        if has_all and has_names and not overrides:
            return listed
        found: list[Entry | None] = []
        for entry in listed:
            await pause()
            if not (has_all or view.offers_listed(server, kind, entry.ref.name)):
                found.append(None)
            elif has_names and entry.ref.name not in overrides:
                found.append(entry)
            else:
                known = None if before is None else before.by_name.get(entry.ref.name)
                found.append(await _in_view(entry, view.names, overrides.get(entry.ref.name), known))
        return found

    def _calls_alike(self, view: CatalogView, server: str, kind: Kind) -> bool:
        """Whether entries are called in a view as without one."""
        by_name = LIST_METHODS[kind].key == "name"
        return not by_name or view.names.style_of(server) == self._views[""].names.style_of(server)

    def publish(
        self,
        kind: Kind,
        entries: SourceEntries,
        hint: FreshnessHint | None = None,
        *,
        alone: bool = True,
        remembered: bool = False,
    ) -> bool:
        """Replace what a source lists of `kind`, in one step. The entries must have been prepared under the present
        policy. `alone`: the list of the other era ends, because the server has none with this login any more.
        `remembered`: see `is_remembered`. Returns whether anything changed; a change wakes all waiters."""
        source = entries.source
        was_due = self._clear_due(source, kind)
        kept = self._keep_list(source, kind)
        is_outdated = entries.views is not self._views  # a view has changed meanwhile
        if is_outdated:
            entries = entries.without(entries.parts.keys() - self._keeping(source.server, entries.views))
        before, kept.listed, kept.hint, kept.remembered = kept.listed, entries, hint, remembered
        kept.is_unlisted = False
        others = self._lists[kind][source.server].items()
        has_others = any(each != source and other.listed is not None for each, other in others)
        ended = self._others(source, kind) if alone else []
        if not ended and before is not None and entries.parts == before.parts:
            kept.listed = before
            changed = False
        else:
            self._former += () if before is None else before.parts.values()
            # An empty list differs from no list, but no client sees a difference.
            changed = before is not None or has_others or bool(entries.entries)
            for each in ended:
                was_due = self._forget(each, kind) or was_due
            narrowed = (was_due or bool(ended)) and changed
            self._update_snapshots(kind, (source.server,), changed=changed, narrowed=narrowed)
            if changed:
                self._notify_changed()
        if is_outdated:
            if self._wanting(source.server) - entries.parts.keys():
                self._due[kind][source] = object()
            self._begin_evaluation()
        return changed

    # Visibility

    def reevaluate(self, servers: Iterable[str]) -> None:
        """Evaluate the visibility of these servers' entries again, and wake the waiters if it changed. Long lists are
        left to `run`: see `wait_until_evaluated`."""
        wanted = frozenset(servers)
        for kind, lists in self._lists.items():
            marked = [lists[server].items() for server in wanted if server in lists]
            self._due[kind] |= {source: object() for of in marked for source, each in of if each.listed is not None}
        self._begin_evaluation()

    def _begin_evaluation(self) -> None:
        """Evaluate what is due, at once if that is short."""
        sizes = (len(self.listed(source, kind) or ()) for kind, due in self._due.items() for source in due)
        if sum(sizes) * len(self._audiences) <= MAX_INLINE_ENTRIES:
            for kind in Kind:
                run_now(self._evaluate_due(kind))
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
            await self._evaluate_due(kind)

    def is_evaluated(self, kind: Kind, server: str | None = None) -> bool:
        """Whether the snapshots show no hidden entry of this server (None: of any server)."""
        return not any(server in (None, source.server) for source in self._due[kind])

    async def wait_until_evaluated(self, kind: Kind, server: str | None = None) -> None:
        """Wait until `is_evaluated`. No checkpoint lies between that moment and the return."""
        while not self.is_evaluated(kind, server):
            await self._changed.park()

    async def _evaluate_due(self, kind: Kind) -> None:
        """Evaluate the marked lists of one kind and replace them in one step. Lists that are marked again meanwhile,
        because the policy changed, are evaluated again."""
        made: dict[Source, _Evaluated] = {}
        while (source := self._next_due(kind, made)) is not None:
            mark, before = self._due[kind][source], self._listed(source, kind)
            entries = () if before is None else before.entries
            after = await self._evaluated(source, kind, entries, self._is_visible, before)
            narrowed: set[Audience] = set()
            for audience, part in () if before is None else before.parts.items():
                await pause()
                now = after.parts.get(audience)
                if now is not part and (now is None or not part.by_outward.keys() <= now.by_outward.keys()):
                    narrowed.add(audience)
            made[source] = _Evaluated(mark, after, narrowed)
        self._swap(kind, [each for source, each in made.items() if source in self._due[kind]])
        made.clear()
        await self.free_former()

    def _next_due(self, kind: Kind, made: Mapping[Source, _Evaluated]) -> Source | None:
        """The source of a marked list that was not evaluated since it was marked."""
        for source, mark in self._due[kind].items():
            if source not in made or made[source].mark is not mark:
                return source
        return None

    def _swap(self, kind: Kind, evaluated: Sequence[_Evaluated]) -> None:
        servers, narrowed = set[str](), set[Audience]()
        for each in evaluated:
            source = each.entries.source
            kept = self._lists[kind][source.server][source]
            self._clear_due(source, kind)
            if kept.listed is not None and each.entries.parts != kept.listed.parts:
                self._former += kept.listed.parts.values()
                kept.listed = each.entries
                servers.add(source.server)
                narrowed |= each.narrowed
        if servers:
            self._update_snapshots(kind, servers, changed=True, narrowed=narrowed)
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
        self._order = dict.fromkeys(servers)
        self._shown = {source for source in self._shown if source.server in self._order}
        for kind, lists in self._lists.items():
            gone = [source for server, of in lists.items() if server not in self._order for source in of]
            narrowed = any(self._listed(source, kind) is not None for source in gone)
            for source in gone:
                self._forget(source, kind)
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

    def _update_snapshots(
        self, kind: Kind, servers: Iterable[str] | None = None, *, changed: bool, narrowed: _Narrowed = False
    ) -> bool:
        """Make the snapshots of a kind of its present lists. That of a viewer whose lists are the same stays. Returns
        whether there is a new one.

        Args:
            servers: those whose lists may be others; None for all, which may be in another order too.
            changed: the version grows.
            narrowed: former snapshots show entries that are hidden now, to all audiences or to these.
        """
        former, is_new = self._snapshots[kind], False
        wanted = self._order if servers is None else [server for server in servers if server in self._order]
        seen = {era: {server: self._seen(kind, era, server) for server in wanted} for era in Era}
        viewers: dict[tuple[ServerEntries, ...], tuple[_ByServer, list[Viewer]]] = {}
        merged: dict[Hashable, list[Viewer]] = {}
        for viewer, before in former.items():
            audience = viewer.view, viewer.caller
            now: _ByServer = {server: parts.get(audience) for server, parts in seen[viewer.era].items()}
            key = id(before), *now.values()
            if key not in merged:
                by_server = now if servers is None else {**self._order, **before.by_server, **now}
                merged[key] = viewers.setdefault(tuple(filter(None, by_server.values())), (by_server, []))[1]
            merged[key].append(viewer)
        reported: set[tuple[str, str, str, str]] | None = None
        for shown, (by_server, alike) in viewers.items():
            before = former[alike[0]]
            is_same = tuple(filter(None, before.by_server.values())) == shown
            if is_same and all(former[viewer] is before for viewer in alike):
                continue
            self._versions[kind] += changed and not is_new
            is_new = True
            last_narrowed = max(former[viewer].last_narrowed for viewer in alike)
            if narrowed is True or (narrowed and any((each.view, each.caller) in narrowed for each in alike)):
                last_narrowed = self._versions[kind]
            replaced = [each.get(server) for server in wanted for each in (before.by_server, by_server)]
            may_collide = servers is None or any(part is not None and part.may_collide for part in replaced)
            colliding = _colliding(shown) if may_collide else before.colliding
            snapshot = KindSnapshot(self._versions[kind], by_server, colliding, last_narrowed)
            if may_collide:
                if reported is None:
                    reported = {(viewer.view, *why) for viewer, each in former.items() for why in each.left_out()}
                view = alike[0].view
                for why, entry in snapshot.left_out().items():
                    # One report for all sources of a server, and for all views if it is left out without one too.
                    if not {("", *why), (view, *why)} & reported:
                        self._on_left_out(entry, view)
                    reported |= {(each.view, *why) for each in alike}
            former |= dict.fromkeys(alike, snapshot)
        return is_new

    async def free_former(self) -> None:
        """Free what was replaced, part by part: to free one of 10,000 entries takes half a millisecond."""
        while self._former:
            self._former.pop()
            await pause()


def _colliding(parts: Iterable[ServerEntries]) -> Mapping[EntryRef, Entry]:
    """The visible entries that are left out of the lists of all servers. A hidden entry collides with none."""
    colliding = [part for part in parts if part.may_collide]
    found = {entry.ref: entry for part in colliding for entry in part.left_out}
    # The longest one comes last: its names are looked up, and copied nowhere.
    sharing = sorted(colliding, key=lambda part: len(part.shared_names))
    once: set[str] = set()
    twice: set[str] = set()
    for part in sharing:
        twice |= once & part.shared_names
        if part is not sharing[-1]:
            once |= part.shared_names
    for part in colliding if twice else ():
        entries = [part.by_outward[name] for name in sorted(twice & part.shared_names)]
        found |= {entry.ref: entry for entry in entries}
    return MappingProxyType(found)


def _resize(holding: Holding, size: int) -> None:
    """Charge a list for another number of copies; without memory for it, it is dropped."""
    try:
        holding.resize(size)
    except OverBudget:
        if holding.drop is not None:
            holding.drop()


class _Evaluated(Struct, frozen=True):
    """A list that was evaluated again."""

    mark: object
    """The mark of the request for it."""
    entries: SourceEntries
    narrowed: set[Audience]
    """Those that see less of it than before."""


async def _part(
    source: Source,
    kind: Kind,
    view: CatalogView,
    offered: Sequence[Entry | None],
    verdicts: Sequence[bool],
    definitions: dict[Hashable, dict[int, tuple[bytes, bytes]]] | None,
    by_name: Mapping[str, Entry] | None,
) -> ServerEntries:
    """The part of a list of a source for one audience.

    Args:
        offered: its entries as the view has them, with None in the place of those that it has not.
        verdicts: whether each of them is visible.
        definitions: see `ServerEntries`.
        by_name: its entries by name, if the view has all of them as they are.
    """
    if by_name is None:
        by_name = {entry.ref.name: entry for entry in offered if entry is not None}
    has_param_headers = False
    shown: list[Entry] = []
    by_outward: dict[str, Entry] = {}
    hidden: dict[str, Entry] = {}
    shared: list[str] = []
    left_out: list[Entry] = []
    are_shared, are_uris = not view.names.shows_servers(kind), LIST_METHODS[kind].key != "name"
    for at, (entry, is_visible) in enumerate(zip(offered, verdicts, strict=True)):
        if at % SHORT_LOOKS == 0:
            await pause()
        if entry is None or entry.left_out:
            continue
        outward = entry.outward
        if entry.client_headers:
            has_param_headers = True
        if not is_visible:
            hidden[outward] = entry
            continue
        shown.append(entry)
        if (other := by_outward.get(outward)) is not None:
            left_out += (other, entry)
        by_outward[outward] = entry
        if outward in view.reserved:
            left_out.append(entry)
        elif are_shared or (are_uris and is_web(outward)):
            shared.append(outward)
    is_edited, inapplicable = bool(view.overrides(source.server, kind)), tuple[Entry, ...]()
    if is_edited:
        seen = (entry for entry, is_visible in zip(offered, verdicts, strict=True) if is_visible and entry is not None)
        inapplicable = tuple(entry for entry in seen if entry.left_out)
    return ServerEntries(
        source,
        tuple(shown),
        by_outward,
        hidden,
        by_name,
        _by_local(shown, hidden.values()) if is_edited else by_name,
        len(shown) == len(offered) and not is_edited,
        frozenset(shared),
        tuple(left_out),
        inapplicable,
        has_param_headers,
        definitions=definitions,
    )


def _by_local(shown: Iterable[Entry], hidden: Iterable[Entry]) -> Mapping[str, Entry]:
    """Entries by the name at the endpoint of their server. Visible ones of one such name are left out, and no hidden
    one is found under the name of another."""
    found: dict[str, Entry] = {}
    alike: set[str] = set()
    for entry in shown:
        if entry.local in found:
            alike.add(entry.local)
        found[entry.local] = entry
    for entry in hidden:
        found.setdefault(entry.local, entry)
    return {name: entry for name, entry in found.items() if name not in alike}


async def _in_view(entry: Entry, names: Names, override: Override | None, known: Entry | None) -> Entry:
    """An entry as a view calls it, and as its override changes it. `known`: what it was before in the same view."""
    if known is not None and (known.definition, known.may_be_task) == (entry.definition, entry.may_be_task):
        return known
    if override is None:
        outward = names.outward_name(entry.ref.server, entry.ref.name)
        if outward == entry.outward:
            return entry
        exported = _exported(entry.ref, outward, entry.definition, names)
        return structs.replace(entry, outward=outward, exported=exported)
    definition = Definition(entry.ref.name, entry.definition, entry.may_be_task)
    return await _entry(entry.ref, definition, names, override)


async def _find_misfit(kind: Kind, definition: bytes, uris: Sequence[str]) -> Misfit | None:
    """`misfit_of`, in another process if it may take more than a few milliseconds."""
    if is_short(definition):
        return misfit_of(kind, definition, uris)
    if not uris and not is_heavy(definition) and is_plain(kind, definition, look=False):
        return None
    return await in_worker(misfit_of, kind, definition, uris)


async def _entry(ref: EntryRef, definition: Definition, names: Names, override: Override | None = None) -> Entry:
    server, kind = ref.server, ref.kind
    local, edited, left_out = ref.name, Edited(definition.raw, None), ""
    if override is not None:
        try:
            edited = await edit_off_loop(kind, definition.raw, override)
            local = override.name or local
        except Inapplicable as problem:
            left_out = str(problem)
    rename = names.outward_name if LIST_METHODS[kind].key == "name" else names.outward_uri
    outward = rename(server, local)
    exported = _exported(ref, outward, edited.definition, names)
    uris = (local, outward) if kind is Kind.RESOURCE else ()
    misfit = await _find_misfit(kind, edited.definition, uris)
    entry = Entry(
        ref,
        local,
        outward,
        definition.raw,
        edited.definition,
        exported,
        edited.arguments,
        left_out,
        misfit=misfit,
    )
    if kind is not Kind.TOOL:
        return entry
    headers = _valid_param_headers(definition.raw)
    return structs.replace(
        entry,
        may_be_task=definition.may_be_task,
        support=task_support(definition.raw),
        param_headers=headers,
        client_headers=headers if edited.arguments is None else _valid_param_headers(edited.definition),
    )


def _exported(ref: EntryRef, outward: str, definition: bytes, names: Names) -> bytes:
    """A definition with its outward names."""
    found = members(definition)
    found[LIST_METHODS[ref.kind].key] = encode(outward)
    rename_page(found, partial(names.outward_uri, ref.server))
    return bytes(encode_object(found))


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
