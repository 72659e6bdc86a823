"""Answers an exchange: lists from the catalog, everything else through the gate to the one server that owns the entry.

One path for tools, resources and prompts alike: find the entry, ask the gate, call the server, give the answer outward
names. What the gate hides takes the same way as what does not exist, with the same words. This file knows names and
verdicts; it knows no sessions, no transports and no revisions.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw

from host.catalog import Catalog, Entry
from host.errors import (
    BrokeProtocol,
    ColonnadeError,
    Forbidden,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    Refused,
    ResourceNotFound,
    UnknownEntry,
    UpstreamError,
)
from host.exchange import Caller, Exchange, Nobody
from host.jsonrpc.messages import METHOD_NOT_FOUND, Notification
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, members, string
from host.names import inward_uri, outward_uri, server_of_name, template_makes
from host.policy.gate import Gate, Permit
from host.protocol.codes import means_not_found, relayed, uri_in
from host.protocol.downgrade import fit_definition, fit_result
from host.protocol.levels import level_of
from host.protocol.links import rename_in_result
from host.protocol.methods import (
    CALL,
    COMPLETE,
    LISTING_BY_METHOD,
    SET_LEVEL,
    SUBSCRIBE,
    TARGETED,
    UNSUBSCRIBE,
    UPDATED,
    Kind,
    Listing,
    target_of,
)
from host.protocol.questions import URL_REQUIRED, Question, urls_required
from host.upstream.roster import Roster

PAGE = 250
"""Entries on one page of a list."""
PAST_VIEWS = 4
"""Former views whose cursors still work."""
MAX_INSTRUCTIONS = 2048
MAX_ALL_INSTRUCTIONS = 8192
NO_COMPLETION = Raw(b'{"completion":{"values":[],"total":0,"hasMore":false}}')


@dataclass(frozen=True, slots=True)
class View:
    """What one endpoint shows of one kind: the definitions in order, and the version of the shelf they are from."""

    version: int
    definitions: tuple[bytes, ...]


class Router:
    """One for the whole host; safe to use from any number of tasks, since it keeps nothing about who asks."""

    def __init__(self, catalog: Catalog, gate: Gate, roster: Roster) -> None:
        self.catalog = catalog
        self._gate = gate
        self._roster = roster
        self._views: dict[tuple[str | None, Kind, bool], deque[View]] = {}
        self._seal = secrets.token_bytes(32)

    def serves(self, server: str) -> bool:
        """Whether there is an endpoint for this one server."""
        return server in self._roster

    async def answer(self, exchange: Exchange) -> Raw:
        """The result of the exchange: a JSON object.

        Raises:
            ColonnadeError: what became of it instead.
        """
        method = exchange.request.method
        if method in TARGETED:
            return await self._reach(exchange)
        if method in LISTING_BY_METHOD:
            return await self._list(exchange, LISTING_BY_METHOD[method])
        if method == COMPLETE:
            return await self._complete(exchange)
        if method in (SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL) and isinstance(exchange.caller.outlet, Nobody):
            raise InvalidRequest("this belongs to a session: open one at /mcp or /sse")
        if method in (SUBSCRIBE, UNSUBSCRIBE):
            return await self._watch(exchange)
        if method == SET_LEVEL:
            self._roster.levels.want(exchange.caller, level_of(exchange.params))
            return EMPTY_OBJECT
        raise MethodNotFound(f"there is no method {method[:80]!r} here")

    def roots_changed(self, caller: Caller) -> None:
        """The caller says that its roots are not what they were."""
        self._roster.roots_changed(caller)

    def serve_only(self, caller: Caller) -> None:
        """There is one client, and will be no other."""
        self._roster.serve_only(caller)

    def forget(self, caller: Caller) -> None:
        """The caller is gone."""
        self._roster.forget(caller)

    # Listing

    def view(self, caller: Caller, kind: Kind) -> View:
        """What the caller is shown of `kind` now. Equal definitions mean that nothing it can see has changed."""
        endpoint, structured = caller.endpoint, caller.abilities.structured_content
        shelf = self.catalog.shelf(kind)
        views = self._views.setdefault((endpoint, kind, structured), deque(maxlen=PAST_VIEWS))
        if not views or views[-1].version != shelf.version:
            if endpoint is None:
                shown = [entry.exported for entry in shelf.entries]
            else:
                shown = [entry.definition for entry in shelf.by_server.get(endpoint, ()) if self._shows(entry)]
            if kind is Kind.TOOL:
                shown = [fit_definition(definition, structured=structured) for definition in shown]
            views.append(View(shelf.version, tuple(shown)))
        return views[-1]

    async def instructions(self, endpoint: str | None) -> str:
        """What the servers say about themselves, merged; on a server's own endpoint its own words as they are."""
        await self._roster.wait_settled(endpoint)
        if endpoint is not None:
            return self._instructions_of(endpoint) or ""
        parts: list[str] = []
        for server, upstream in self._roster.upstreams.items():
            text = self._instructions_of(server)
            if text:
                heading = f"## {server}" + (f" ({upstream.spec.title})" if upstream.spec.title else "")
                parts.append(f"{heading}\n{_cut(text, MAX_INSTRUCTIONS)}")
        preamble = (
            "Several servers answer here. Their tools and prompts are called <server>__<name> and their resources "
            "<server>+<URI>; where a server's own text below uses a bare name, put its prefix before it."
        )
        return _cut("\n\n".join([preamble, *parts]), MAX_ALL_INSTRUCTIONS)

    def _instructions_of(self, server: str) -> str | None:
        try:
            return self._roster.ready(server).offer.instructions
        except UpstreamError:
            return None

    def _shows(self, entry: Entry) -> bool:
        return self._gate.shows(entry.server, entry.kind, entry.inward)

    async def _list(self, exchange: Exchange, listing: Listing) -> Raw:
        caller = exchange.caller
        await self._roster.wait_settled(caller.endpoint)
        view = self.view(caller, listing.kind)
        start = 0
        if "cursor" in exchange.params:
            view, start = self._resume(caller, listing.kind, exchange.params["cursor"])
        end = start + PAGE
        page = b'{"%b":[%b]' % (listing.member.encode(), b",".join(view.definitions[start:end]))
        if end < len(view.definitions):
            page += b',"nextCursor":"%b"' % self._cursor(caller, listing.kind, view.version, end)
        return Raw(page + b"}")

    def _cursor(self, caller: Caller, kind: Kind, version: int, start: int) -> bytes:
        place = b"%d.%d" % (version, start)
        return base64.urlsafe_b64encode(self._signature(caller, kind, place) + place)

    def _resume(self, caller: Caller, kind: Kind, cursor: Raw) -> tuple[View, int]:
        """The view a cursor belongs to, and where in it. An old view is served as it was, or not at all: pages of two
        different lists never make one list."""
        try:
            sealed = base64.b64decode(string(cursor), altchars=b"-_", validate=True)
            signature, place = sealed[:16], sealed[16:]
            if not hmac.compare_digest(signature, self._signature(caller, kind, place)):
                raise ValueError("not one of ours")
            version, start = (int(part) for part in place.split(b"."))
        except (ValueError, binascii.Error):
            raise InvalidParams("the cursor is not valid here; list again from the start") from None
        for view in self._views.get((caller.endpoint, kind, caller.abilities.structured_content), ()):
            if view.version == version:
                return view, start
        raise InvalidParams("the list has changed since this cursor was given; list again from the start")

    def _signature(self, caller: Caller, kind: Kind, place: bytes) -> bytes:
        """What makes a cursor ours, for this endpoint, and for whoever it was given to."""
        said = encode([caller.endpoint, caller.identity, caller.abilities.structured_content, kind.value, place.hex()])
        return hashlib.blake2b(said, key=self._seal, digest_size=16).digest()

    # Reaching one entry

    async def _reach(self, exchange: Exchange) -> Raw:
        kind, name = target_of(exchange.request.method, exchange.params)
        if exchange.request.method != CALL.name:
            return await self._ask(exchange, self._find(exchange, kind, name), name)
        # For a tool, a server's failure is something the model can read and act on (2025-11-25, "Tools / Error
        # Handling"); an unknown tool and the server's own JSON-RPC error are not.
        try:
            return await self._ask(exchange, self._find(exchange, kind, name), name)
        except Refused:
            raise
        except UpstreamError as failure:
            return encode({"content": [{"type": "text", "text": failure.message}], "isError": True})

    async def _complete(self, exchange: Exchange) -> Raw:
        kind, name = target_of(COMPLETE, exchange.params)
        permit = self._find(exchange, kind, name, listed=True)
        async with self._roster.seat(permit.server, exchange) as seat:
            if not seat.client.offer.completes:
                return NO_COMPLETION
            try:
                return await seat.client.call(permit)
            except Refused as refusal:
                if refusal.code == METHOD_NOT_FOUND:
                    return NO_COMPLETION
                raise self._translated(refusal, permit, name) from None

    async def _ask(self, exchange: Exchange, permit: Permit, name: str) -> Raw:
        """Have the server answer, and give the answer outward names and a form that the caller can read."""
        method = TARGETED[exchange.request.method]
        async with self._roster.seat(permit.server, exchange) as seat:
            if method.capability not in seat.client.offer.capabilities:
                raise _missing(permit.kind, name)
            try:
                result = await seat.client.call(permit)
            except Refused as refusal:
                raise self._translated(refusal, permit, name) from None
        if exchange.caller.endpoint is None:
            try:
                result = rename_in_result(result, method.links, _outward(permit.server))
            except ValueError:
                raise BrokeProtocol(permit.server, f"{permit.server} sent a result that cannot be read") from None
        return fit_result(method.name, result, exchange.caller.abilities)

    def _translated(self, refusal: Refused, permit: Permit, name: str) -> ColonnadeError:
        """A server's refusal, in the terms of the caller and of its revision."""
        caller = permit.exchange.caller
        if permit.kind is Kind.RESOURCE and means_not_found(refusal, permit.target):
            return _missing(permit.kind, name)
        if refusal.code == URL_REQUIRED:
            return self._pages_needed(refusal, permit)
        if caller.endpoint is None:
            data = _with_outward_uri(refusal.data, permit, name)
            refusal = Refused(refusal.server, refusal.code, refusal.message, data)
        return relayed(refusal)

    def _pages_needed(self, refusal: Refused, permit: Permit) -> UpstreamError:
        """The user must visit pages first: for clients that can send them there, if the server may want that."""
        server = permit.server
        if not self._gate.lets_ask(server, Question.URL):
            text = f"{server} wants a web page to be visited first, which only a server with trust: trusted may ask for"
            return Forbidden(server, text)
        # A subscription may be several clients': its pages have no ids that are the caller's own.
        if permit.exchange.caller.abilities.url and permit.exchange.request.method != SUBSCRIBE:
            return refusal
        pages = "; ".join(f"{message} {url}".strip() for message, url in urls_required(refusal.data))
        return Forbidden(server, f"{server} wants this to be visited first, then ask again: {pages or refusal.message}")

    # Watching a resource

    async def _watch(self, exchange: Exchange) -> Raw:
        method = exchange.request.method
        _, name = target_of(method, exchange.params)
        if method == UNSUBSCRIBE:
            return self._unwatch(exchange, name)
        permit = self._find(exchange, Kind.RESOURCE, name)

        def changed(uri: str, notice: dict[str, Raw]) -> None:
            outward = name if uri == permit.target else self._outward_if_shown(permit, uri)
            if outward is not None:
                exchange.caller.outlet.tell(Notification(UPDATED, encode_object({**notice, "uri": encode(outward)})))

        try:
            await self._roster.watch(permit, changed)
        except Refused as refusal:
            raise self._translated(refusal, permit, name) from None
        return EMPTY_OBJECT

    def _unwatch(self, exchange: Exchange, name: str) -> Raw:
        """The caller watches it no more, also while its server is away: nothing is asked of the server here."""
        found = self._owner_by_text(exchange, name) or self._owner_of(name)
        permit = None if found is None else self._gate.admit(exchange, found[0], Kind.RESOURCE, found[1])
        if permit is None:
            raise _missing(Kind.RESOURCE, name)
        self._roster.unwatch(permit.server, permit.target, exchange.caller)
        return EMPTY_OBJECT

    def _outward_if_shown(self, permit: Permit, uri: str) -> str | None:
        if not self._gate.shows(permit.server, Kind.RESOURCE, uri):
            return None
        return uri if permit.exchange.caller.endpoint is not None else outward_uri(permit.server, uri)

    # Finding the entry

    def _find(self, exchange: Exchange, kind: Kind, name: str, *, listed: bool = False) -> Permit:
        """The permit for what `name` means at the caller's endpoint. With `listed`, only what some list names counts:
        otherwise a resource may also be one that no list names.

        Raises:
            UnknownEntry, ResourceNotFound: there is no such thing, or none that may be known.
            Unavailable: nobody can tell, since its server was never there.
        """
        uri = kind is Kind.RESOURCE
        found = self._find_uri(exchange, name, listed) if uri else self._find_name(exchange, kind, name)
        if found is None:
            raise _missing(kind, name)
        server, inward = found
        permit = self._gate.admit(exchange, server, kind, inward)
        if permit is None:
            raise _missing(kind, name)
        return permit

    def _find_name(self, exchange: Exchange, kind: Kind, name: str) -> tuple[str, str] | None:
        shelf = self.catalog.shelf(kind)
        endpoint = exchange.caller.endpoint
        entry = shelf.by_outward.get(name) if endpoint is None else shelf.by_inward.get((endpoint, name))
        if entry is not None:
            return entry.server, entry.inward
        server = server_of_name(name) if endpoint is None else endpoint
        if server is not None and server in self._roster:
            self._miss(server, kind)
        return None

    def _miss(self, server: str, kind: Kind) -> None:
        """Nothing is listed under a name of this server. If it never could list, say that instead; if it can, perhaps
        its list is old: it is read again, after this answer, so that the time it takes tells nothing."""
        if server not in self.catalog.shelf(kind).by_server:
            self._roster.ready(server)
        self._roster.upstreams[server].refresh(kind)

    def _find_uri(self, exchange: Exchange, uri: str, listed: bool) -> tuple[str, str] | None:
        found = self._owner_by_text(exchange, uri)
        if found is None:
            found = self._owner_of(uri)
        elif not listed:
            # Only the server can tell what it has. While it is away, what is denied must sound like what is not there.
            self._roster.ready(found[0])
        elif not self._lists(*found):
            self._miss(found[0], Kind.RESOURCE)
            return None
        return found

    def _owner_by_text(self, exchange: Exchange, uri: str) -> tuple[str, str] | None:
        """The server that the URI itself names, or whose endpoint is asked, and its own URI."""
        endpoint = exchange.caller.endpoint
        return (endpoint, uri) if endpoint is not None else inward_uri(uri, self._roster)

    def _owner_of(self, uri: str) -> tuple[str, str] | None:
        """The one server that lists the URI, or has the one template that makes it, as servers write their URIs: a web
        URI, or one that a client took from a text. Two owners are none: nobody is guessed at."""
        for matches in (self._listers_of(uri), self._makers_of(uri)):
            if matches:
                return (matches.pop(), uri) if len(matches) == 1 else None
        return None

    def _lists(self, server: str, uri: str) -> bool:
        if any((server, uri) in self.catalog.shelf(kind).by_inward for kind in (Kind.RESOURCE, Kind.TEMPLATE)):
            return True
        templates = self.catalog.shelf(Kind.TEMPLATE).by_server.get(server, ())
        return any(template_makes(entry.inward, uri) for entry in templates)

    def _listers_of(self, uri: str) -> set[str]:
        return {
            server
            for server in self._roster.upstreams
            for kind in (Kind.RESOURCE, Kind.TEMPLATE)
            if (server, uri) in self.catalog.shelf(kind).by_inward and self._gate.shows(server, kind, uri)
        }

    def _makers_of(self, uri: str) -> set[str]:
        templates = self.catalog.shelf(Kind.TEMPLATE).by_server
        return {
            entry.server
            for entries in templates.values()
            for entry in entries
            if self._shows(entry) and template_makes(entry.inward, uri)
        }


def _outward(server: str) -> Callable[[str], str]:
    return lambda uri: outward_uri(server, uri)


def _missing(kind: Kind, name: str) -> UnknownEntry | ResourceNotFound:
    """The one answer for what is not there and for what must not be known."""
    if kind is Kind.RESOURCE:
        return ResourceNotFound("Resource not found", data=encode({"uri": name}))
    return UnknownEntry(f"Unknown {kind.value}: {name[:200]}")


def _with_outward_uri(data: Raw | None, permit: Permit, asked: str) -> Raw | None:
    """The data of a server's error, with the URI in it as one that the client can bring back."""
    uri = uri_in(data)
    if data is None or uri is None:
        return data
    outward = asked if uri == permit.target else outward_uri(permit.server, uri)
    return encode_object({**members(data), "uri": encode(outward)})


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
