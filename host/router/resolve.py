"""Resolution of the name or URI in a client's request to a server and its own name.

A name that does not exist is also resolved, and passed to the gate, so that denied and missing entries take the same
time and get the same response.
"""

from __future__ import annotations

from collections.abc import Mapping

import trio
from msgspec import Raw

from host.catalog import Entry, KindSnapshot
from host.errors import ColonnadeError, ResourceNotFound, Unavailable, UnknownEntry
from host.exchange import Caller, ResolvedName
from host.jsonrpc.raw import encode
from host.names import matching_templates
from host.protocol.methods import COMPLETION_COMPLETE, RESOURCE, Kind, target_of
from host.protocol.param_headers import ParamHeader
from host.router.prepare import READY, STARTING, UNRESOLVED, Known, Step, next_step
from host.source import EntryRef
from host.upstream.client import DEFINED_BY
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams
from host.views import View

WAIT_LISTED, REREAD = Step.WAIT_LISTED, Step.REREAD


class Resolver:
    """Names and URIs at every endpoint of the host."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams) -> None:
        self._catalog = runtime.catalog
        self._gate = runtime.gate
        self._definitions = runtime.gate.definitions
        self._views = runtime.gate.policies.views
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
        if target.by_listing and not self._catalog.is_evaluated(kind, None):
            since = trio.current_time()
            await self._catalog.wait_until_evaluated(
                kind, None
            )  # a list that the view lacks until then may have it too
            target = self.resolve_now(caller, kind, name, since)
        while True:
            known = self._look_at_lists(target, caller, method)
            step = next_step(known, past)
            if step is WAIT_LISTED:
                # A client without a session sends its first call at once, perhaps while the server starts.
                since = trio.current_time()
                await self._upstreams.wait_known(caller, _listing_server(target))
            elif step is REREAD:
                since = trio.current_time() if target.since is None else target.since
                missed = DEFINED_BY[kind] if known.is_missing else ()
                await self._upstreams.reread(caller, _listing_server(target), missed)
                if known.is_missing:  # until it is evaluated, a list is in no view that treats it otherwise by now
                    await self._catalog.wait_until_evaluated(kind, target.server)
            else:
                return target
            target, past = self.resolve_now(caller, kind, name, since), past.after(step)

    def _look_at_lists(self, target: ResolvedName, caller: Caller, method: str) -> Known:
        """The present knowledge of the lists that may have a name."""
        ref = target.ref
        if target.kind is not RESOURCE and (ref is not None or not self._may_be_of_any_server(target, caller)):
            connection = None if ref is None else self._upstreams.find(ref.source.server, caller)
            if connection is None:
                return READY  # no list can have it
            is_listed, is_old = connection.life.listed.is_set(), connection.has_old_lists
            if target.by_listing:  # a server that comes later may have the same name, and then neither is called
                is_listed = self._upstreams.are_listed(caller)
        else:
            server = _listing_server(target)
            is_listed, is_old = self._upstreams.are_listed(caller, server), self._upstreams.are_old(caller, server)
        is_missing = self._misses(target, method, caller) if target.kind is RESOURCE else not target.is_shown
        if is_listed and not is_old and not is_missing:
            return READY
        return Known(is_listed=is_listed, is_missing=is_missing, is_old=is_old)

    def look(self, target: ResolvedName, caller: Caller, *, may_log_in: bool) -> Known:
        """The present knowledge of the connection that serves the caller at the server of a name, and of the
        definition.

        Args:
            may_log_in: the caller may be offered a login.

        Raises:
            Unavailable: the server runs with another value of a variable than the caller's program has.
        """
        ref = target.ref
        if ref is None:
            return READY
        if caller.process is not None and (variable := caller.process.refused.get(ref.source.server)) is not None:
            id = ref.source.server
            raise Unavailable(
                id,
                f"{id} runs with another value of the environment variable {variable} than this client has: start the "
                "client with the same value, or serve it alone with colonnade serve --stdio --own",
            )
        if (server := self._upstreams.by_id.get(ref.source.server)) is not None and server.is_starting(caller):
            return STARTING
        if not self._catalog.is_remembered(ref) or not self.is_offered(target, caller):
            return READY
        connection = self._upstreams.find(ref.source.server, caller)
        return Known(is_unread=True, needs_login=may_log_in and connection is not None and connection.life.needs_login)

    def _may_be_of_any_server(self, target: ResolvedName, caller: Caller) -> bool:
        """Whether a name of no entry may be one of any server, since names show none in the caller's view."""
        view = self._views.view(caller.endpoint.view)
        return caller.endpoint.server is None and view.names.plain and target.asked not in view.reserved

    def _misses(self, resource: ResolvedName, method: str, caller: Caller) -> bool:
        """Whether a list might have the resource that does not show it. It need not be listed, if its URI names its
        server. Other entries must be: one that is hidden counts as missing, and must take the same time."""
        return resource.ref is None or (method == COMPLETION_COMPLETE and not self.is_offered(resource, caller))

    def resolve_now(self, caller: Caller, kind: Kind, name: str, since: float | None = None) -> ResolvedName:
        """Resolve a name without waiting. `since`: see `ResolvedName`."""
        view = self._views.view(caller.endpoint.view)
        if kind is not RESOURCE:
            snapshot, key = self._catalog.snapshot(kind, caller.viewer), (caller.endpoint.server, name)
            kept = snapshot.resolved.get(key)
            if kept is not None and kept[0] is view and since is None:
                return kept[1]  # type: ignore[no-any-return]
            server, inward, entry, is_plain = self._look_up(caller, kind, name, snapshot, view)
            if server is None:
                return ResolvedName(kind, name, None, since=since)
            # Made where there is an entry too, so that hidden and missing names take the same way.
            sought = EntryRef(self._upstreams.source(server, caller), kind, inward)
            ref = sought if entry is None else entry.ref
            is_shown = entry is not None and entry.outward not in snapshot.parts[server].hidden
            target = ResolvedName(kind, name, ref, entry, by_listing=is_plain, since=since, is_shown=is_shown)
            if is_shown and not is_plain and since is None:
                snapshot.resolved[key] = view, target
            return target
        named = self._server_in_uri(caller.endpoint.server, view, name)
        server, uri = named or self._owner_by_listing(name, caller) or (None, name)
        if server is None:
            return ResolvedName(kind, name, None, since=since)
        ref = EntryRef(self._upstreams.source(server, caller), kind, uri)
        outside = not view.offers(server, kind, uri)
        return ResolvedName(kind, name, ref, by_listing=named is None, since=since, outside=outside)

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

    def visible(self, target: ResolvedName, caller: Caller) -> Entry | None:
        """The entry under a resolved name, if the caller may see it."""
        ref = target.ref
        # Evaluated for entries that do not exist too, so that they take as long as denied ones.
        is_visible = ref is not None and self._definitions.is_visible(ref, self._gate.caller_name(caller))
        return target.entry if is_visible else None

    def is_offered(self, target: ResolvedName, caller: Caller) -> bool:
        """Whether the caller may know that the server offers what has this name."""
        if target.ref is None:
            return False
        exists = target.entry is not None
        if target.kind is RESOURCE:
            exists = self.is_listed(target.ref) and not target.outside
        return self._definitions.is_known(target.ref, self._gate.caller_name(caller)) and exists

    def param_headers(self, tool: ResolvedName, caller: Caller) -> tuple[ParamHeader, ...]:
        """The arguments that headers must repeat for a tool; none if the caller may not know the tool."""
        # Asked of the whole list, so that the time of the response tells nothing about one tool.
        if not self._catalog.has_param_headers(tool.server, caller.viewer):
            return ()
        entry = self.visible(tool, caller)
        return () if entry is None else entry.client_headers or ()

    def task_server(self, tool: ResolvedName, caller: Caller, *, declared: bool = False) -> str | None:
        """The server whose tool this is, if a call of it may become a task. `declared`: the call comes through a search
        tool, which declares that it supports tasks, whatever the tool itself does."""
        entry = self.visible(tool, caller)
        return entry.ref.server if entry is not None and (declared or entry.may_be_task) else None

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

    def _look_up(
        self, caller: Caller, kind: Kind, name: str, snapshot: KindSnapshot, view: View
    ) -> tuple[str | None, str, Entry | None, bool]:
        """The server, the server's own name, the entry listed under `name` at the endpoint, visible or not, and whether
        only lists tell the server. If there is no entry, the server and the name as the text has them."""
        if (only := caller.endpoint.server) is not None:
            return only, name, snapshot.entry(only, name), False
        if name in view.reserved:  # not even an entry that is held is found under it
            return None, name, None, False
        if view.names.plain:
            entry = self._find_plain(snapshot, caller, kind, name)
            return (None, name, None, True) if entry is None else (entry.ref.server, entry.ref.name, entry, True)
        server, inward = view.names.inward_name(name)
        if server is None or not view.has_server(server):
            return None, inward, None, False
        entry = snapshot.find(name, server)
        return (server, inward, None, False) if entry is None else (server, entry.ref.name, entry, False)

    def _find_plain(self, snapshot: KindSnapshot, caller: Caller, kind: Kind, name: str) -> Entry | None:
        """The entry under a name that shows no server, if the caller may know of it."""
        shown = [part.by_outward[name] for part in snapshot.parts.values() if name in part.by_outward]
        if shown:
            return None if shown[0].ref in snapshot.colliding else shown[0]
        # Each server is asked, whether it has the name or not, so that denied and missing names take the same time.
        of, known = self._gate.caller_name(caller), list[Entry]()
        for server in self._upstreams.at(caller.endpoint):
            entry = snapshot.parts[server].hidden.get(name) if server in snapshot.parts else None
            sought = EntryRef(self._upstreams.source(server, caller), kind, name)
            if self._definitions.is_known(sought if entry is None else entry.ref, of) and entry is not None:
                known.append(entry)
        return known[0] if len(known) == 1 else None

    def _server_in_uri(self, only: str | None, view: View, uri: str) -> tuple[str, str] | None:
        """The only server of the endpoint, or else the one of the view that the URI names, and the server's own URI."""
        if only is not None:
            return only, uri
        named = view.names.inward_uri(uri, self._upstreams)
        return named if named is not None and view.has_server(named[0]) else None

    def _owner_by_listing(self, uri: str, caller: Caller) -> tuple[str, str] | None:
        """The only server that lists a URI without a server's name, or has a template for it: a web URI, or one that a
        client took from a text. None if two servers do, because a guess could reach the wrong one."""
        for matches in (self._listing_owners(uri, caller), self._template_owners(uri, caller)):
            if matches:
                return (matches.pop(), uri) if len(matches) == 1 else None
        return None

    def _listing_owners(self, uri: str, caller: Caller) -> set[str]:
        kinds, name = (Kind.RESOURCE, Kind.TEMPLATE), self._gate.caller_name(caller)
        listed = {kind: self._catalog.snapshot(kind, caller.viewer) for kind in kinds}
        return {
            server
            for server in self._upstreams.at(caller.endpoint)
            for kind in kinds
            if self._definitions.is_known(EntryRef(self._upstreams.source(server, caller), kind, uri), name)
            and listed[kind].entry(server, uri) is not None
        }

    def _template_owners(self, uri: str, caller: Caller) -> set[str]:
        templates, name = self._catalog.snapshot(Kind.TEMPLATE, caller.viewer).parts, self._gate.caller_name(caller)
        known = {
            server: [entry.ref.name for entry in part.by_name.values() if self._definitions.is_known(entry.ref, name)]
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
