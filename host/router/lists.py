"""Lists and their pages, rendered from the catalog without asking servers.

A shown list is that of one kind at one endpoint, in the form of the caller's revision. Callers that are shown the same
share it. A cursor names one shown list by the digest of all its definitions, so that pages of different lists never
mix, and a list that is the same after a restart is gone on with.
"""

from __future__ import annotations

import hashlib
from collections import deque
from collections.abc import Hashable, Iterable, Mapping, Sequence
from itertools import compress, islice
from typing import NamedTuple

import trio
from msgspec import Raw, Struct

from config import Search
from config.globs import Globs
from host.catalog import Entry, KindSnapshot, ServerEntries
from host.errors import InvalidParams
from host.exchange import Answered, Caller, Exchange
from host.jsonrpc.raw import encode, encode_object, respelled, string
from host.protocol.deferring_clients import defers_tools
from host.protocol.definitions import adapted, is_short, model_tokens
from host.protocol.downgrade import downgrade_definition
from host.protocol.meta import OWN_PREFIX
from host.protocol.methods import Kind, ListMethod
from host.protocol.search_tools import search_definitions
from host.protocol.stateless import STALE, Freshness, common_freshness
from host.protocol.tasks import with_support
from host.protocol.versions import SESSION, STATELESS, Era
from host.seal import InvalidSeal, Seal
from host.slices import in_worker, pause
from host.source import Endpoint, Viewer
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams

PAGE_SIZE = 2_000
"""Entries on one page of a list. Many clients read only the first page."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""Bytes of the definitions on one page; a page has at least one."""
MISSING_SERVERS = f"{OWN_PREFIX}missingServers"
"""Key in the `_meta` of a list: the ids of servers whose entries are not in it, because they are not known yet."""
MAX_LIST_ATTEMPTS = 3
"""Attempts to render a list, or to wait for one, before an older one is used."""
MAX_PAST_LISTS = 4
"""Former lists whose cursors still work."""
MAX_LIST_TTL = 60_000
"""Maximum of milliseconds for which a list may be called fresh, whatever the servers' hints."""
CURSOR_LIFE = 3600.0
"""Seconds for which a cursor can be used."""

_DIGEST_BYTES = hashlib.sha256().digest_size


class ShownList(Struct, frozen=True):
    """The definitions of one kind that an endpoint shows, in order, and the version of their snapshot."""

    version: int
    definitions: tuple[bytes, ...]
    digest: bytes
    """Equal for equal lists of definitions."""


class _RenderedPart(Struct, frozen=True):
    """The entries of one server in a shown list."""

    entries: tuple[Entry, ...]
    definitions: tuple[bytes, ...]
    digests: tuple[bytes, ...]
    """One of each definition: equal lists may be parts of other servers."""


class Lists:
    """The lists of all endpoints of the host."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams, seal: Seal) -> None:
        self._catalog = runtime.catalog
        self._gate = runtime.gate
        self._definitions = runtime.gate.definitions
        self._views = runtime.gate.policies.views
        self._upstreams = upstreams
        self._shown: dict[_Key, deque[ShownList]] = {}
        self._making: dict[_Key, trio.Event] = {}
        self._seal = seal

    async def answer(self, exchange: Exchange, listing: ListMethod) -> Answered:
        """One page of a list.

        Raises:
            InvalidParams: the cursor is malformed or expired, or its list has changed.
        """
        caller = exchange.caller
        if "cursor" in exchange.params:
            await self._upstreams.wait_listed(caller)
        else:
            await self.wait_fresh(caller, listing.kind)
        if listing.kind is Kind.TOOL and caller.search is not None:
            caller.search.made = self.searches(caller)
        shown, start = await self.shown(caller, listing.kind), 0
        freshness = self._freshness(caller, listing.kind)
        if "cursor" in exchange.params:
            shown, start, public = self._open_cursor(caller, listing.kind, exchange.params["cursor"])
            # Equal for all pages of one list, unless callers are offered different things by now.
            freshness = self._views.as_cacheable(Freshness(freshness.ttl_ms, public))
        definitions = _page(shown.definitions, start)
        end = start + len(definitions)
        rest = b""
        if end < len(shown.definitions):
            await self._seal.ready()
            cursor = self._cursor(caller, listing.kind, shown, end, freshness.public)
            rest += b',"nextCursor":"%b"' % cursor.encode()
        if start == 0 and end == len(shown.definitions) and (beside := self._beside(caller, listing.kind, end)):
            rest += b"," + bytes(encode_object(beside))[1:-1]
        elif missing := self._missing_servers(caller, listing.kind):
            rest += b',"_meta":%b' % bytes(encode({MISSING_SERVERS: missing}))
        parts = list(definitions) or [b""]
        parts[0] = b'{"%b":[%b' % (listing.member.encode(), parts[0])
        parts[-1] += b"]%b}" % rest
        return Answered(Raw(b",".join(parts)), freshness)  # a page may be long, and is copied once

    async def wait_fresh(self, caller: Caller, kind: Kind) -> None:
        """Wait for lists that are not known yet, and for those of `kind` that may be old."""
        await self._upstreams.wait_listed(caller)
        if self._upstreams.are_old(caller, kinds=(kind,)):
            await self._upstreams.reread(caller, changed=(kind,))

    def searches(self, caller: Caller) -> bool:
        """Whether the caller gets the search tools in place of its tools, as its view says. With `search: auto`, what
        the tools cost decides, and whether the client defers them itself: for a session once, as soon as the lists of
        all servers are known or were answered. Without a session it is decided by view and caller alone, since such
        lists may be cached (2026-07-28, "Caching")."""
        endpoint = caller.endpoint
        if self._never_searches(endpoint):
            return False
        spec, choice = self._views.view(endpoint.view).spec, caller.search
        if spec.search is not Search.AUTO:
            return spec.search is Search.ON
        if choice is not None and choice.made is not None:
            return choice.made
        snapshot = self._catalog.snapshot(Kind.TOOL, caller.viewer)
        wanted = model_tokens(sum(_size(part) for part in snapshot.parts.values())) > spec.search_above
        if choice is None:
            return wanted
        wanted = wanted and not defers_tools(caller.says)
        if self._upstreams.are_listed(caller):
            choice.made = wanted
        return wanted

    def _never_searches(self, endpoint: Endpoint) -> bool:
        return endpoint.server is not None or not endpoint.view

    def depends_on_client(self, endpoint: Endpoint) -> bool:
        """Whether a session gets another list of tools at the endpoint if its client is another program."""
        return endpoint.server is None and self._views.view(endpoint.view).spec.search is Search.AUTO

    def audience(self, caller: Caller) -> Hashable:
        """Equal for callers that are shown equal lists at the moment."""
        return caller.endpoint, caller.viewer, self._form(caller, Kind.TOOL)

    def lasting_audience(self, caller: Caller) -> Hashable | None:
        """`audience(caller)` if it is always the same; else None."""
        return self.audience(caller) if self._never_searches(caller.endpoint) else None

    def _form(self, caller: Caller, kind: Kind) -> _Form:
        abilities, era = caller.abilities, caller.era
        pinned = None
        if kind is Kind.TOOL and self.searches(caller):
            pinned = self._views.view(caller.endpoint.view).spec.pinned
        return _Form(abilities.structured_content, abilities.icons, abilities.tasks and era is SESSION, era, pinned)

    async def definition(self, entry: Entry, caller: Caller) -> bytes:
        """The definition of an entry that is fit, as the caller would get it in a list at the shared endpoint."""
        form = self._form(caller, entry.ref.kind)
        return await _render_entry(entry, form, entry.exported)

    def _beside(self, caller: Caller, kind: Kind, shown: int) -> Mapping[str, Raw]:
        """The other members of the result of the only server of the endpoint, whose list is passed on whole. What a
        server says beside its definitions may name those that this caller is not shown, so these are none then; and
        none of an untrusted server, since no person approves them."""
        if self._gate.policies.sanitizes(caller.endpoint.server or ""):
            return {}
        part = self._catalog.snapshot(kind, caller.viewer).parts.get(caller.endpoint.server or "")
        hint = None if part is None else self._catalog.hint(part.source, kind)
        if part is None or hint is None or not part.is_whole or len(part.visible) != shown:
            return {}
        return hint.beside

    def _missing_servers(self, caller: Caller, kind: Kind) -> list[str]:
        """The servers whose lists of this kind are not known, as far as clients may know of them."""
        known = self._catalog.snapshot(kind, caller.viewer).parts
        return [
            server
            for server in self._offering(caller, kind)
            if server not in known
            and not self._upstreams.by_id[server].spec.disabled
            and self._definitions.may_show(self._upstreams.source(server, caller), kind, self._gate.caller_name(caller))
        ]

    async def shown(self, caller: Caller, kind: Kind) -> ShownList:
        """The current list of `kind` for the caller.

        If the lists change faster than one can be rendered, it is the newest one since an entry was last hidden: it
        may be out of date, but shows no hidden entry.
        """
        key = (caller.endpoint, kind, caller.viewer, self._form(caller, kind))
        if key not in self._shown:  # the lists of views that are no more are forgotten
            self._shown = {each: past for each, past in self._shown.items() if self._catalog.has_viewer(each[2])}
        past = self._shown.setdefault(key, deque(maxlen=MAX_PAST_LISTS))
        attempts = 0
        while True:
            await self._catalog.wait_until_evaluated(kind, caller.endpoint.server)
            snapshot = self._catalog.snapshot(kind, caller.viewer)
            least = snapshot.version if attempts < MAX_LIST_ATTEMPTS else snapshot.last_narrowed
            if past and past[-1].version >= least:
                return past[-1]
            attempts += 1
            if (making := self._making.get(key)) is not None:
                await making.wait()
                continue
            self._making[key] = made = trio.Event()
            try:
                past.append(await self._build(snapshot, key))
            finally:
                del self._making[key]
                made.set()

    def last_shown(self, caller: Caller, kind: Kind) -> ShownList | None:
        """The newest list that was rendered for callers with the same endpoint and abilities."""
        past = self._shown.get((caller.endpoint, kind, caller.viewer, self._form(caller, kind)))
        return past[-1] if past else None

    async def _build(self, snapshot: KindSnapshot, key: _Key) -> ShownList:
        endpoint, _, _, form = key
        outward = endpoint.server is None
        definitions = [] if form.pinned is None else _search_tools(snapshot, form)
        digest = hashlib.sha256(b"".join(map(_digest, definitions)))
        for server, part in snapshot.parts.items():
            if not endpoint.includes(server):
                continue
            if (outward, form) not in part.rendered:
                part.rendered[outward, form] = await _render_part(part, form, outward)
            rendered_part: _RenderedPart = part.rendered[outward, form]
            left_out = _colliding(snapshot, part, rendered_part, outward) if snapshot.colliding else ()
            digests: Iterable[bytes] = rendered_part.digests
            if left_out:
                kept = [entry.ref.name not in left_out for entry in rendered_part.entries]
                definitions += compress(rendered_part.definitions, kept)
                digests = compress(digests, kept)
            else:
                definitions += rendered_part.definitions
            digest.update(b"".join(digests))
            await pause()
        return ShownList(snapshot.version, tuple(definitions), digest.digest())

    def _freshness(self, caller: Caller, kind: Kind) -> Freshness:
        """The shortest freshness that a server gave for its list; none if a server gave no hint or has not listed
        yet."""
        now = trio.current_time()
        known = self._catalog.snapshot(kind, caller.viewer).parts
        hints: list[Freshness] = []
        whole = True
        for server in self._offering(caller, kind):
            if self._upstreams.by_id[server].spec.disabled:
                continue
            if server not in known:
                whole = False
                continue
            hint = self._catalog.hint(known[server].source, kind)
            if hint is None:
                continue
            hints.append(hint.remaining(now))
        common = common_freshness(hints) if whole else STALE
        return self._views.as_cacheable(Freshness(min(common.ttl_ms, MAX_LIST_TTL), common.public))

    def _offering(self, caller: Caller, kind: Kind) -> Iterable[str]:
        """The servers at the caller's endpoint that may have an entry of this kind in its view."""
        view = self._views.view(caller.endpoint.view)
        return (server for server in self._upstreams.at(caller.endpoint) if view.may_offer(server, kind))

    def _cursor(self, caller: Caller, kind: Kind, shown: ShownList, start: int, public: bool) -> str:
        place = shown.digest + b"%d.%d" % (start, public)
        return self._seal.seal("cursor", self._cursor_binding(caller, kind), place, CURSOR_LIFE)

    def _cursor_binding(self, caller: Caller, kind: Kind) -> bytes:
        """The caller and the list that a cursor is bound to."""
        return bytes(encode([caller.endpoint, caller.identity, kind.value, self._form(caller, kind)]))

    def _open_cursor(self, caller: Caller, kind: Kind, cursor: Raw) -> tuple[ShownList, int, bool]:
        """The list of a cursor, the position in it, and whether it is public. A former list is served unchanged,
        or refused if an entry in it has been hidden since. Cursors of a former process count: they are sealed with the
        same key, and the list is the same if its digest is."""
        try:
            place = self._seal.unseal("cursor", self._cursor_binding(caller, kind), string(cursor))
        except (InvalidSeal, ValueError):
            raise InvalidParams("the cursor is not valid here; list again from the start") from None
        digest, rest = place[:_DIGEST_BYTES], place[_DIGEST_BYTES:]
        start, public = (int(part) for part in rest.split(b"."))
        last_narrowed = self._catalog.snapshot(kind, caller.viewer).last_narrowed
        for shown in self._shown.get((caller.endpoint, kind, caller.viewer, self._form(caller, kind)), ()):
            if shown.digest == digest and shown.version >= last_narrowed:
                return shown, start, bool(public)
        raise InvalidParams("the list has changed since this cursor was given; list again from the start")


_Key = tuple[Endpoint, Kind, Viewer, "_Form"]
"""The key of a shown list: endpoint, kind, viewer and form."""


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
    pinned: tuple[str, ...] | None
    """With the search tools, and of the others those alone that one of these patterns matches; None for all others
    alone."""


def _colliding(snapshot: KindSnapshot, part: ServerEntries, rendered: _RenderedPart, outward: bool) -> set[str]:
    """The own names of those entries of a list that are left out because of an equal name at this endpoint."""
    if outward:
        return {entry.ref.name for entry in rendered.entries if entry.ref in snapshot.colliding}
    return {entry.ref.name for entry in part.left_out if part.by_local.get(entry.local) is not entry}


def _page(definitions: Sequence[bytes], start: int) -> Sequence[bytes]:
    """The definitions on the page that begins there."""
    end, size = start, 0
    for definition in islice(definitions, start, start + PAGE_SIZE):
        size += len(definition)
        if size > MAX_PAGE_BYTES and end > start:
            break
        end += 1
    return definitions[start:end]


def _search_tools(snapshot: KindSnapshot, form: _Form) -> list[bytes]:
    """The definitions of the search tools, which name the servers that have tools."""
    servers = tuple(server for server, part in snapshot.parts.items() if part.visible)
    return [
        downgrade_definition(each, icons=form.icons, structured=form.structured, tasks=form.tasks)
        for each in search_definitions(servers)
    ]


async def _render_part(part: ServerEntries, form: _Form, outward: bool) -> _RenderedPart:
    pinned = None if form.pinned is None else Globs(form.pinned, uris=False)
    entries: list[Entry] = []
    definitions: list[bytes] = []
    digests: list[bytes] = []
    shared = None if part.definitions is None else part.definitions.setdefault((outward, form), {})
    for entry in part.visible:
        await pause()
        if not is_fit(entry, form.era) or (pinned is not None and not pinned.matches(entry.outward)):
            continue
        made = None if shared is None else shared.get(id(entry))
        if made is None:
            definition = await _render_entry(entry, form, entry.exported if outward else entry.edited)
            made = definition, _digest(definition)
            if shared is not None:
                shared[id(entry)] = made
        entries.append(entry)
        definitions.append(made[0])
        digests.append(made[1])
    return _RenderedPart(tuple(entries), tuple(definitions), tuple(digests))


def is_fit(entry: Entry, era: Era) -> bool:
    """Whether clients of an era accept the entry, and can use it."""
    # 2026-07-28, "Custom Headers from Tool Parameters": clients leave out tools whose headers are invalid.
    if era is STATELESS and entry.client_headers is None:
        return False
    misfit = entry.misfit
    return misfit is None or (misfit.stateless if era is STATELESS else misfit.handshake) is None


async def _render_entry(entry: Entry, form: _Form, definition: bytes) -> bytes:
    """The definition of a fit entry as clients of this form get it."""
    kind = entry.ref.kind
    if entry.misfit is not None and is_short(definition):
        definition = adapted(kind, definition, form.era)
    elif entry.misfit is not None:
        definition = await in_worker(adapted, kind, definition, form.era)
    if kind is not Kind.TOOL:
        return downgrade_definition(definition, icons=form.icons)
    if form.tasks:  # Colonnade makes the task itself if only the server requires one
        definition = with_support(definition, optional=entry.may_be_task)
    return downgrade_definition(definition, icons=form.icons, structured=form.structured, tasks=form.tasks)


def _digest(definition: bytes) -> bytes:
    # However it is spelled: an edit that this client does not see may leave other spaces, and is no change of the list.
    return hashlib.sha256(respelled(definition) if is_short(definition) else definition).digest()


def _size(part: ServerEntries) -> int:
    """Bytes of the visible definitions, as `list` counts them."""
    if _SIZE not in part.rendered:
        part.rendered[_SIZE] = sum(len(entry.exported) for entry in part.visible)
    size: int = part.rendered[_SIZE]
    return size


_SIZE = "size"
"""The key of the size among what is rendered."""
