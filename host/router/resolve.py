"""Resolution of the name or URI in a client's request to a server and its own name.

A name that does not exist is also resolved, and passed to the gate, so that denied and missing entries take the same
time and get the same response.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio
from msgspec import Raw

from host.catalog import Entry
from host.errors import ColonnadeError, ResourceNotFound, UnknownEntry
from host.exchange import Caller, ResolvedName
from host.jsonrpc.raw import encode
from host.names import inward_uri, matching_templates, split_name
from host.protocol.methods import COMPLETION_COMPLETE, RESOURCE, Kind, target_of
from host.protocol.param_headers import ParamHeader
from host.router.prepare import READY, STARTING, UNRESOLVED, Known, Step, next_step
from host.source import EntryRef
from host.upstream.client import DEFINED_BY
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams

WAIT_LISTED, REREAD = Step.WAIT_LISTED, Step.REREAD


class Resolver:
    """Names and URIs at every endpoint of the host."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams) -> None:
        self._catalog = runtime.catalog
        self._definitions = runtime.gate.definitions
        self._upstreams = upstreams

    async def resolve(self, caller: Caller, method: str, params: Mapping[str, Raw]) -> ResolvedName:
        """Resolve the name in the params of a request of `method`. Waits for the lists of its server, if they are not
        known yet (`Upstreams.wait_known`) or may be old, or if the name is in none of them (`Upstreams.reread`).

        Raises:
            InvalidParams: the params name nothing.
            TooManyRequests: too many requests of this owner wait.
        """
        kind, name = target_of(method, params)
        target, past = self.resolve_now(caller, kind, name), UNRESOLVED
        while True:
            known = self._look_at_lists(target, caller, method)
            step = next_step(known, past)
            if step is WAIT_LISTED:
                # A client without a session sends its first call at once, perhaps while the server starts.
                since = trio.current_time()
                await self._upstreams.wait_known(_listing_server(target), caller)
            elif step is REREAD:
                since = trio.current_time() if target.since is None else target.since
                missed = DEFINED_BY[kind] if known.is_missing else ()
                await self._upstreams.reread(_listing_server(target), caller, missed)
            else:
                return target
            target, past = self.resolve_now(caller, kind, name, since), past.after(step)

    def _look_at_lists(self, target: ResolvedName, caller: Caller, method: str) -> Known:
        """The present knowledge of the lists that may have a name."""
        if target.kind is not RESOURCE:
            ref = target.ref
            connection = None if ref is None else self._upstreams.find(ref.source.server, caller)
            if connection is None:
                return READY  # no list can have it
            is_listed, is_old = connection.life.listed.is_set(), connection.has_old_lists
        else:
            server = _listing_server(target)
            is_listed, is_old = self._upstreams.are_listed(server, caller), self._upstreams.are_old(server, caller)
        is_missing = self._is_missing(target, method, caller)
        if is_listed and not is_old and not is_missing:
            return READY
        return Known(is_listed=is_listed, is_missing=is_missing, is_old=is_old)

    def look(self, target: ResolvedName, caller: Caller, *, may_log_in: bool) -> Known:
        """The present knowledge of the connection that serves the caller at the server of a name, and of the
        definition.

        Args:
            may_log_in: the caller may be offered a login.
        """
        ref = target.ref
        if ref is None:
            return READY
        connection = self._upstreams.find(ref.source.server, caller)
        if connection is not None and connection.life.is_starting:
            return STARTING
        if not self._catalog.is_remembered(ref) or not self.is_offered(target):
            return READY
        return Known(is_unread=True, needs_login=may_log_in and connection is not None and connection.life.needs_login)

    def _is_missing(self, target: ResolvedName, method: str, caller: Caller) -> bool:
        """Whether a list might have the name that does not show it: it lacks the name, or hides it, which must take the
        same time. A resource need not be listed, if its URI names its server."""
        entry, ref = target.entry, target.ref
        if target.kind is RESOURCE:
            return ref is None or (method == COMPLETION_COMPLETE and not self.is_offered(target))
        parts = self._catalog.snapshot(target.kind, caller.viewer).parts
        return entry is None or entry.outward in parts[entry.ref.source.server].hidden

    def resolve_now(self, caller: Caller, kind: Kind, name: str, since: float | None = None) -> ResolvedName:
        """Resolve a name without waiting. `since`: see `ResolvedName`."""
        if kind is not RESOURCE:
            server, inward, entry = self._look_up(caller, kind, name)
            if server is None:
                return ResolvedName(kind, name, None, since=since)
            # Made where there is an entry too, so that hidden and missing names take the same way.
            sought = EntryRef(self._upstreams.source(server, caller), kind, inward)
            return ResolvedName(kind, name, sought if entry is None else entry.ref, entry, since=since)
        named = self._server_in_uri(caller.endpoint, name)
        server, uri = named or self._owner_by_listing(name, caller) or (None, name)
        ref = None if server is None else EntryRef(self._upstreams.source(server, caller), kind, uri)
        return ResolvedName(kind, name, ref, by_listing=named is None and ref is not None, since=since)

    def reachable(self, target: ResolvedName, caller: Caller, *, may_start: bool = False) -> EntryRef:
        """The entry under a resolved name, at a configured server. With `may_start`, a server that is starting is none
        that is away.

        Raises:
            UnknownEntry, ResourceNotFound: no server has this name.
            Unavailable: the server is away, and only it can tell whether it has the resource.
        """
        ref = target.ref
        if ref is None or ref.source.server not in self._upstreams.by_id:
            raise not_found(target.kind, target.asked)
        if may_start and self._upstreams.is_starting(ref.server, caller):
            return ref
        if target.kind is RESOURCE and not target.by_listing:
            # While the server is away, a denied resource gets the same answer as one that does not exist.
            self._upstreams[ref.server].serving(caller).ready_client()
        return ref

    def visible(self, target: ResolvedName) -> Entry | None:
        """The entry under a resolved name, if the caller may see it."""
        ref = target.ref
        # Evaluated for entries that do not exist too, so that they take as long as denied ones.
        is_visible = ref is not None and self._definitions.is_visible(ref)
        return target.entry if is_visible else None

    def is_offered(self, target: ResolvedName) -> bool:
        """Whether the caller may know that the server offers what has this name."""
        if target.ref is None:
            return False
        exists = self.is_listed(target.ref) if target.kind is Kind.RESOURCE else target.entry is not None
        return self._definitions.is_known(target.ref) and exists

    def param_headers(self, tool: ResolvedName, caller: Caller) -> tuple[ParamHeader, ...]:
        """The arguments that headers must repeat for a tool; none if the caller may not know the tool."""
        # Asked of the whole list, so that the time of the response tells nothing about one tool.
        if not self._catalog.has_param_headers(tool.server, caller.viewer):
            return ()
        entry = self.visible(tool)
        return () if entry is None else entry.param_headers or ()

    def task_server(self, tool: ResolvedName) -> str | None:
        """The server whose tool this is, if a call of it may become a task."""
        entry = self.visible(tool)
        return entry.ref.server if entry is not None and entry.may_be_task else None

    def not_listed(self, server: str, kind: Kind, name: str, caller: Caller) -> ColonnadeError:
        """The error for a name under which a server lists nothing that the caller may know.

        Raises:
            Unavailable: the server's list could never be read.
        """
        if server not in self._catalog.snapshot(kind, caller.viewer).parts:
            self._upstreams[server].serving(caller).ready_client()
        return not_found(kind, name)

    def is_listed(self, resource: EntryRef) -> bool:
        """Whether its source lists the resource, or a template of its URI."""
        templates = self._catalog.listed(resource.source, Kind.TEMPLATE) or ()
        made_by = matching_templates([entry.ref.name for entry in templates], (resource.name,))
        return self._catalog.entry(resource) is not None or made_by != []

    def _look_up(self, caller: Caller, kind: Kind, name: str) -> tuple[str | None, str, Entry | None]:
        """The server, the server's own name, and the entry listed under `name` at the endpoint, visible or not. If
        there is no entry, the server and the name as the text has them."""
        snapshot, endpoint = self._catalog.snapshot(kind, caller.viewer), caller.endpoint
        if endpoint is not None:
            return endpoint, name, snapshot.entry(endpoint, name)
        (server, inward), entry = split_name(name), snapshot.by_outward.get(name)
        return (server, inward, None) if entry is None else (entry.ref.source.server, entry.ref.name, entry)

    def _server_in_uri(self, endpoint: str | None, uri: str) -> tuple[str, str] | None:
        """The server named by the endpoint, or else by the URI, and the server's own URI."""
        return (endpoint, uri) if endpoint is not None else inward_uri(uri, self._upstreams)

    def _owner_by_listing(self, uri: str, caller: Caller) -> tuple[str, str] | None:
        """The only server that lists a URI without a server's name, or has a template for it: a web URI, or one that a
        client took from a text. None if two servers do, because a guess could reach the wrong one."""
        for matches in (self._listing_owners(uri, caller), self._template_owners(uri, caller)):
            if matches:
                return (matches.pop(), uri) if len(matches) == 1 else None
        return None

    def _listing_owners(self, uri: str, caller: Caller) -> set[str]:
        kinds = (Kind.RESOURCE, Kind.TEMPLATE)
        listed = {kind: self._catalog.snapshot(kind, caller.viewer) for kind in kinds}
        return {
            server
            for server in self._upstreams.by_id
            for kind in kinds
            if self._definitions.is_known(EntryRef(self._upstreams.source(server, caller), kind, uri))
            and listed[kind].entry(server, uri) is not None
        }

    def _template_owners(self, uri: str, caller: Caller) -> set[str]:
        templates = self._catalog.snapshot(Kind.TEMPLATE, caller.viewer).parts
        known = {
            server: [entry.ref.name for entry in part.entries if self._definitions.is_known(entry.ref)]
            for server, part in templates.items()
        }
        return {server for server, each in known.items() if matching_templates(each, (uri,)) != []}


def _listing_server(target: ResolvedName) -> str | None:
    """The server whose lists may have a name; None for a URI that names no server, which may be of any."""
    return None if target.by_listing else target.server


def not_found(kind: Kind, name: str) -> UnknownEntry | ResourceNotFound:
    """The one error for an entry that does not exist and for one that the caller may not know."""
    if kind is Kind.RESOURCE:
        return ResourceNotFound("Resource not found", data=encode({"uri": name}))
    return UnknownEntry(f"Unknown {kind.value}: {name[:200]}")
