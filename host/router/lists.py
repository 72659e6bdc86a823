"""Lists and their pages, rendered from the catalog without asking servers.

A view is the list of one kind at one endpoint, in the form of the caller's revision. Callers with equal views share it.
A cursor names one version of one view, so that pages of different lists never mix.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple

import trio
from msgspec import Raw

from host.catalog import Entry, KindSnapshot, ServerEntries
from host.errors import InvalidParams
from host.exchange import Answered, Caller, Exchange
from host.jsonrpc.raw import encode, string
from host.protocol.definitions import adapt
from host.protocol.downgrade import downgrade_definition
from host.protocol.methods import Kind, ListMethod
from host.protocol.stateless import STALE, Freshness, common_freshness
from host.protocol.tasks import with_support
from host.protocol.versions import SESSION, STATELESS, Era
from host.seal import InvalidSeal, Seal
from host.slices import Steps, run_inline
from host.source import Viewer
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams

PAGE_SIZE = 2_000
"""Entries on one page of a list. Many clients read only the first page."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Bytes of the definitions on one page; a page has at least one."""
MISSING_SERVERS = "colonnade/missingServers"
"""Key in the `_meta` of a list: the ids of servers whose entries are not in it, because they are not known yet."""
MAX_INLINE_VIEW = 100
"""Entries of all servers up to which a view is rendered in one step."""
MAX_VIEW_ATTEMPTS = 3
"""Attempts to render a view, or to wait for one, before an older one is used."""
MAX_PAST_VIEWS = 4
"""Former views whose cursors still work."""
MAX_LIST_TTL = 60_000
"""Maximum of milliseconds for which a list may be called fresh, whatever the servers' hints."""
CURSOR_LIFE = 3600.0
"""Seconds for which a cursor can be used."""


@dataclass(frozen=True, slots=True)
class View:
    """The definitions of one kind that an endpoint shows, in order, and the version of their snapshot."""

    version: int
    definitions: tuple[bytes, ...]
    digest: bytes
    """Equal for equal lists of definitions."""


@dataclass(frozen=True, slots=True)
class _RenderedPart:
    """The entries of one server in a view."""

    entries: tuple[Entry, ...]
    definitions: tuple[bytes, ...]
    digest: bytes

    @property
    def pairs(self) -> Iterable[tuple[Entry, bytes]]:
        return zip(self.entries, self.definitions, strict=True)


class Lists:
    """The lists of all endpoints of the host."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams, seal: Seal) -> None:
        self._catalog = runtime.catalog
        self._definitions = runtime.gate.definitions
        self._upstreams = upstreams
        self._views: dict[_Key, deque[View]] = {}
        self._making: dict[_Key, trio.Event] = {}
        self._seal = seal
        self._lifetime_mark = os.urandom(16)
        """Mark of this process to which cursors are bound, since versions of views are its own."""

    async def answer(self, exchange: Exchange, listing: ListMethod) -> Answered:
        """One page of a list.

        Raises:
            InvalidParams: the cursor is malformed or expired, or its list has changed.
        """
        caller = exchange.caller
        await self._upstreams.wait_listed(caller.endpoint, caller)
        if "cursor" not in exchange.params and self._upstreams.are_old(caller.endpoint, caller, (listing.kind,)):
            await self._upstreams.reread(caller.endpoint, caller, changed=(listing.kind,))
        view, start = await self.view(caller, listing.kind), 0
        freshness = self._freshness(caller, listing.kind)
        if "cursor" in exchange.params:
            view, start, public = self._open_cursor(caller, listing.kind, exchange.params["cursor"])
            freshness = Freshness(freshness.ttl_ms, public)  # equal for all pages of one list
        definitions = _page(view.definitions, start)
        end = start + len(definitions)
        page = b'{"%b":[%b]' % (listing.member.encode(), b",".join(definitions))
        if end < len(view.definitions):
            cursor = self._cursor(caller, listing.kind, view.version, end, freshness.public)
            page += b',"nextCursor":"%b"' % cursor.encode()
        if missing := self._missing_servers(caller, listing.kind):
            page += b',"_meta":%b' % bytes(encode({MISSING_SERVERS: missing}))
        return Answered(Raw(page + b"}"), freshness)

    def _missing_servers(self, caller: Caller, kind: Kind) -> list[str]:
        """The servers whose lists of this kind are not known, as far as clients may know of them."""
        endpoint = caller.endpoint
        known = self._catalog.snapshot(kind, caller.viewer).parts
        return [
            server
            for server, upstream in self._upstreams.by_id.items()
            if endpoint in (None, server)
            and server not in known
            and not upstream.spec.disabled
            and self._definitions.may_show(self._upstreams.source(server, caller), kind)
        ]

    async def view(self, caller: Caller, kind: Kind) -> View:
        """The current view of `kind` for the caller.

        If the lists change faster than a view can be rendered, it is the newest one since an entry was last hidden: it
        may be out of date, but shows no hidden entry.
        """
        key = (caller.endpoint, kind, caller.viewer, _form(caller))
        views = self._views.setdefault(key, deque(maxlen=MAX_PAST_VIEWS))
        attempts = 0
        while True:
            await self._catalog.wait_until_evaluated(kind, caller.endpoint)
            snapshot = self._catalog.snapshot(kind, caller.viewer)
            least = snapshot.version if attempts < MAX_VIEW_ATTEMPTS else snapshot.last_narrowed
            if views and views[-1].version >= least:
                return views[-1]
            attempts += 1
            if (making := self._making.get(key)) is not None:
                await making.wait()
                continue
            if sum(len(part.visible) for part in snapshot.parts.values()) <= MAX_INLINE_VIEW:
                views.append(run_inline(self._build_view(snapshot, key)))
                continue
            self._making[key] = made = trio.Event()
            try:
                views.append(await self._catalog.slices.run(self._build_view(snapshot, key)))
            finally:
                del self._making[key]
                made.set()

    def last_view(self, caller: Caller, kind: Kind) -> View | None:
        """The newest view that was rendered for callers with the same endpoint and abilities."""
        views = self._views.get((caller.endpoint, kind, caller.viewer, _form(caller)))
        return views[-1] if views else None

    def _build_view(self, snapshot: KindSnapshot, key: _Key) -> Steps[View]:
        endpoint, kind, _, form = key
        definitions: list[bytes] = []
        digest = hashlib.sha256()
        for server, part in snapshot.parts.items():
            if endpoint not in (None, server):
                continue
            if (endpoint is None, form) not in part.rendered:
                part.rendered[endpoint is None, form] = yield from self._render_part(part, kind, form, endpoint is None)
            rendered_part: _RenderedPart = part.rendered[endpoint is None, form]
            left_out = _colliding(snapshot, part) if endpoint is None and snapshot.colliding else ()
            for name in sorted(left_out):
                digest.update(bytes(encode((server, name))))
            digest.update(rendered_part.digest)
            if left_out:
                definitions += (each for entry, each in rendered_part.pairs if entry.ref.name not in left_out)
            else:
                definitions += rendered_part.definitions
            yield None
        return View(snapshot.version, tuple(definitions), digest.digest())

    def _render_part(self, part: ServerEntries, kind: Kind, form: _Form, outward: bool) -> Steps[_RenderedPart]:
        entries: list[Entry] = []
        definitions: list[bytes] = []
        digest = hashlib.sha256()
        for entry in part.visible:
            yield None
            # 2026-07-28, "Custom Headers from Tool Parameters": clients leave out tools whose headers are invalid.
            if form.era is STATELESS and entry.param_headers is None:
                continue
            definition = entry.exported if outward else entry.definition
            if (misfit := entry.misfit) is not None:
                if (misfit.stateless if form.era is STATELESS else misfit.handshake) is not None:
                    continue
                definition = yield from adapt(kind, definition, form.era)
            definition = _render_definition(entry, definition, form)
            entries.append(entry)
            definitions.append(definition)
            digest.update(b"%d:" % len(definition))
            digest.update(definition)
        return _RenderedPart(tuple(entries), tuple(definitions), digest.digest())

    def _freshness(self, caller: Caller, kind: Kind) -> Freshness:
        """The shortest freshness that a server gave for its list; none if a server gave no hint or has not listed
        yet."""
        now, endpoint = trio.current_time(), caller.endpoint
        known = self._catalog.snapshot(kind, caller.viewer).parts
        hints: list[Freshness] = []
        whole = True
        for server in self._upstreams.by_id if endpoint is None else (endpoint,):
            upstream = self._upstreams.by_id.get(server)
            if upstream is None or upstream.spec.disabled:
                continue
            if server not in known:
                whole = False
                continue
            hint = self._catalog.hint(known[server].source, kind)
            if hint is None:
                continue
            hints.append(hint.remaining(now))
        common = common_freshness(hints) if whole else STALE
        return Freshness(min(common.ttl_ms, MAX_LIST_TTL), common.public)

    def _cursor(self, caller: Caller, kind: Kind, version: int, start: int, public: bool) -> str:
        place = b"%d.%d.%d" % (version, start, public)
        return self._seal.seal("cursor", self._cursor_binding(caller, kind), place, CURSOR_LIFE)

    def _cursor_binding(self, caller: Caller, kind: Kind) -> bytes:
        """The caller and the list that a cursor is bound to."""
        bound = [caller.endpoint, caller.identity, kind.value, _form(caller)]
        return self._lifetime_mark + bytes(encode(bound))

    def _open_cursor(self, caller: Caller, kind: Kind, cursor: Raw) -> tuple[View, int, bool]:
        """The view of a cursor, the position in it, and whether the list is public. A former view is served unchanged,
        or refused if an entry in it has been hidden since."""
        try:
            place = self._seal.unseal("cursor", self._cursor_binding(caller, kind), string(cursor))
        except (InvalidSeal, ValueError):
            raise InvalidParams("the cursor is not valid here; list again from the start") from None
        version, start, public = (int(part) for part in place.split(b"."))
        for view in self._views.get((caller.endpoint, kind, caller.viewer, _form(caller)), ()):
            snapshot = self._catalog.snapshot(kind, caller.viewer)
            if view.version == version >= snapshot.last_narrowed:
                return view, start, bool(public)
        raise InvalidParams("the list has changed since this cursor was given; list again from the start")


_Key = tuple[str | None, Kind, Viewer, "_Form"]
"""The key of a view: endpoint, kind, viewer and form."""


class _Form(NamedTuple):
    """The form of definitions that a caller can read."""

    structured: bool
    """With the schema of structured content."""
    icons: bool
    tasks: bool
    """With the support of tasks. A stateless caller declares tasks in each request, and its tools do not mention
    them."""
    era: Era
    """As clients of this era accept it, and without tools that cannot be called over stateless HTTP."""


def _form(caller: Caller) -> _Form:
    abilities, era = caller.abilities, caller.era
    return _Form(abilities.structured_content, abilities.icons, abilities.tasks and era is SESSION, era)


def _colliding(snapshot: KindSnapshot, part: ServerEntries) -> set[str]:
    """The own names of those entries of a list that are left out because of an equal outward name."""
    return {entry.ref.name for entry in part.visible if entry.ref in snapshot.colliding}


def _page(definitions: Sequence[bytes], start: int) -> Sequence[bytes]:
    """The definitions on the page that begins there."""
    end, size = start, 0
    for definition in islice(definitions, start, start + PAGE_SIZE):
        size += len(definition)
        if size > MAX_PAGE_BYTES and end > start:
            break
        end += 1
    return definitions[start:end]


def _render_definition(entry: Entry, definition: bytes, form: _Form) -> bytes:
    if entry.ref.kind is not Kind.TOOL:
        return downgrade_definition(definition, icons=form.icons)
    if form.tasks:  # Colonnade makes the task itself if only the server requires one
        definition = with_support(definition, optional=entry.may_be_task)
    return downgrade_definition(definition, icons=form.icons, structured=form.structured, tasks=form.tasks)
