"""Answers an exchange: lists from the catalog, everything else through the gate to the one server that owns the entry.

One path for tools, resources and prompts alike: find the entry, ask the gate, call the server, give the answer outward
names. What the gate hides takes the same way as what does not exist, with the same words. This file knows names and
verdicts; it knows no sessions, no transports and no revisions.
"""

from __future__ import annotations

import hashlib
import os
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

import trio
from msgspec import Raw

from config import Verdict
from config.globs import MAX_LENGTH
from host.catalog import Entry, KindSnapshot, ServerEntries
from host.errors import (
    ColonnadeError,
    Forbidden,
    InvalidParams,
    InvalidRequest,
    MethodNotFound,
    MissingAbility,
    ProtocolViolation,
    ResourceNotFound,
    ServerErrorResponse,
    UnknownEntry,
    UpstreamError,
)
from host.exchange import Answer, Answered, Caller, Exchange, InputRequired, NoClient, ResolvedName
from host.jsonrpc.messages import METHOD_NOT_FOUND, Notification
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, members, string
from host.names import SEPARATOR, inward_uri, matching_templates, outward_uri, server_of_name
from host.policy.gate import CallPermit, ConfirmationRequired, NotVisible, WatchPermit
from host.protocol.abilities import Abilities, abilities_of
from host.protocol.codes import as_relayed, means_not_found, uri_in
from host.protocol.downgrade import downgrade_definition, downgrade_result
from host.protocol.links import rename_in_result, without_pages
from host.protocol.log_levels import level_of
from host.protocol.methods import (
    COMPLETION_COMPLETE,
    LIST_METHOD_BY_NAME,
    RESOURCE_UPDATED,
    SET_LEVEL,
    SUBSCRIBE,
    TARGETED,
    TOOLS_CALL,
    UNSUBSCRIBE,
    Kind,
    ListMethod,
    target_of,
)
from host.protocol.mrtr import MAX_KEYS
from host.protocol.param_headers import ParamHeader
from host.protocol.server_requests import (
    ELICIT,
    URL_REQUIRED,
    ServerRequest,
    capability_of,
    elicitation_params_of,
    urls_required,
)
from host.protocol.stateless import STALE, Freshness, common_freshness
from host.protocol.tasks import with_support
from host.protocol.versions import LATEST
from host.seal import InvalidSeal, Seal
from host.slices import Steps, run_inline
from host.upstream.mrtr import MAX_STATE
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams

PAGE_SIZE = 250
"""Entries on one page of a list."""
MAX_INLINE_VIEW = 100
"""Entries of all servers that a view is made of at once."""
MAX_VIEW_ATTEMPTS = 3
"""Times that a view is made, or waited for, before it may be one that the lists have left behind."""
MAX_PAST_VIEWS = 4
"""Former views whose cursors still work."""
MAX_INSTRUCTIONS = 2048
MAX_ALL_INSTRUCTIONS = 8192
MAX_LIST_TTL = 60_000
"""Milliseconds that a list of ours stays fresh at the most, whatever its servers say."""
CURSOR_LIFE = 3600.0
"""Seconds for which a cursor can be used."""
NO_COMPLETION = Raw(b'{"completion":{"values":[],"total":0,"hasMore":false}}')
EXPIRED_STATE_MESSAGE = "invalid or expired requestState: send the request again from the beginning"


@dataclass(frozen=True, slots=True)
class View:
    """The definitions of one kind that an endpoint shows, in order, and the version of their snapshot."""

    version: int
    definitions: tuple[bytes, ...]
    digest: bytes
    """Equal for equal definitions."""


@dataclass(frozen=True, slots=True)
class _RenderedPart:
    """The entries of one server in a view."""

    entries: tuple[Entry, ...]
    definitions: tuple[bytes, ...]
    digest: bytes

    @property
    def pairs(self) -> Iterable[tuple[Entry, bytes]]:
        return zip(self.entries, self.definitions, strict=True)


class Router:
    """One for the whole host; safe to use from any number of tasks, since it keeps nothing about who asks."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams, seal: Seal) -> None:
        self.catalog = runtime.catalog
        self._gate = runtime.gate
        self._log_levels = runtime.log_levels
        self._upstreams = upstreams
        self._views: dict[_Key, deque[View]] = {}
        self._making: dict[_Key, trio.Event] = {}
        self._seal = seal
        self._lifetime_mark = os.urandom(16)
        """The mark that cursors are bound to: versions of views belong to one router."""

    def has_endpoint(self, server: str) -> bool:
        """Whether there is an endpoint for this one server."""
        return server in self._upstreams

    async def answer(self, exchange: Exchange) -> Answer:
        """The answer to an exchange: InputRequired only if the exchange has a round.

        Raises:
            ColonnadeError: what became of it instead.
        """
        method = exchange.request.method
        if method in TARGETED:
            # For a tool, a server's failure is something the model can read and act on (2025-11-25, "Tools / Error
            # Handling"), and so is that a person did not allow it; an unknown tool and the server's own JSON-RPC error
            # are not.
            try:
                return await self._answer_targeted(exchange)
            except ServerErrorResponse:
                raise
            except UpstreamError as failure:
                if method != TOOLS_CALL.name:
                    raise
                return failed_call(failure)
        if method in LIST_METHOD_BY_NAME:
            return await self._list(exchange, LIST_METHOD_BY_NAME[method])
        if method == COMPLETION_COMPLETE:
            return await self._complete(exchange)
        if method in (SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL) and isinstance(exchange.caller.client, NoClient):
            raise InvalidRequest("this belongs to a session: open one at /mcp or /sse")
        if method in (SUBSCRIBE, UNSUBSCRIBE):
            return Answered(await self._watch(exchange))
        if method == SET_LEVEL:
            self._log_levels.set_level(exchange.caller, level_of(exchange.params))
            return Answered(EMPTY_OBJECT)
        raise MethodNotFound(f"there is no method {method[:80]!r} here")

    def roots_changed(self, caller: Caller) -> None:
        """The caller says that its roots are not what they were."""
        self._upstreams.roots_changed(caller)

    def serve_only(self, caller: Caller) -> None:
        """There is one client, and will be no other."""
        self._upstreams.serve_only(caller)

    def set_log_level(self, caller: Caller, level: str) -> None:
        """The caller wants the log messages of its requests, from this level on, until it is released."""
        self._log_levels.set_level(caller, level)

    def clear_log_level(self, caller: Caller) -> None:
        """The request that needed these is over."""
        self._log_levels.forget(caller)

    async def resolve(self, endpoint: str | None, method: str, params: Mapping[str, Raw]) -> ResolvedName:
        """Resolve the name in a request of `TARGETED` at this endpoint. Shortly after the start, waits for the server
        it is for.

        Raises:
            InvalidParams: the params name nothing.
        """
        kind, name = target_of(method, params)
        await self._wait_for_server(endpoint, kind, name)
        return self._resolve(endpoint, kind, name)

    def may_park(self, caller: Caller, target: ResolvedName) -> bool:
        """Whether the server that this is for may ask in the middle of it, and not only in its answer."""
        server = target.server
        if server is not None and self._gate.client_may_confirm(server, target.kind, target.inward, caller):
            return True
        upstream = self._upstreams.by_id.get(server or "")
        negotiated = None if upstream is None else upstream.negotiated
        is_call = target.kind is Kind.TOOL
        return negotiated is None or not negotiated.revision.stateless or (is_call and negotiated.runs_tasks)

    def release(self, caller: Caller) -> None:
        """Nothing is told to this caller any more."""
        self._upstreams.release(caller)

    def forget(self, caller: Caller) -> None:
        """The caller is gone."""
        self._upstreams.forget(caller)
        self._gate.forget(caller)

    def param_headers(self, tool: ResolvedName) -> tuple[ParamHeader, ...]:
        """The arguments that headers must repeat for a tool; none if the caller may not know the tool."""
        entry = self._visible(tool)
        return () if entry is None else entry.param_headers or ()

    def _visible(self, target: ResolvedName) -> Entry | None:
        """The entry that the name stands for, if it may be seen."""
        server, kind = target.server, target.kind
        # Asked of an entry that does not exist too, so that it takes as long as one that is denied.
        is_visible = server is not None and self._gate.definitions.is_visible(server, kind, target.inward)
        return target.entry if is_visible else None

    # Listing

    async def view(self, caller: Caller, kind: Kind) -> View:
        """The view of `kind` for the caller now. Nothing waits between the moment at which it is so and the return;
        only where the lists go on changing faster than they can be made, it is of a moment before, but shows nothing
        that may not be seen by now."""
        key = (caller.endpoint, kind, _tool_format(caller.abilities))
        views = self._views.setdefault(key, deque(maxlen=MAX_PAST_VIEWS))
        tries = 0
        while True:
            await self.catalog.wait_until_evaluated(kind, caller.endpoint)
            snapshot = self.catalog.snapshot(kind)
            least = snapshot.version if tries < MAX_VIEW_ATTEMPTS else snapshot.last_narrowed
            if views and views[-1].version >= least:
                return views[-1]
            tries += 1
            if (making := self._making.get(key)) is not None:
                await making.wait()
                continue
            if sum(len(part.visible) for part in snapshot.parts.values()) <= MAX_INLINE_VIEW:
                views.append(run_inline(self._build_view(snapshot, key)))
                continue
            self._making[key] = made = trio.Event()
            try:
                views.append(await self.catalog.slices.run(self._build_view(snapshot, key)))
            finally:
                del self._making[key]
                made.set()

    def last_view(self, caller: Caller, kind: Kind) -> View | None:
        """The newest view that was made for such callers."""
        views = self._views.get((caller.endpoint, kind, _tool_format(caller.abilities)))
        return views[-1] if views else None

    def _build_view(self, snapshot: KindSnapshot, key: _Key) -> Steps[View]:
        endpoint, kind, form = key
        definitions: list[bytes] = []
        digest = hashlib.sha256()
        for server, part in snapshot.parts.items():
            if endpoint not in (None, server):
                continue
            if (endpoint is None, form) not in part.rendered:
                part.rendered[endpoint is None, form] = yield from self._render_part(part, kind, form, endpoint is None)
            fitted: _RenderedPart = part.rendered[endpoint is None, form]
            left_out = snapshot.colliding & part.by_inward.keys() if endpoint is None and snapshot.colliding else ()
            for name in sorted(left_out):
                digest.update(bytes(encode(name)))
            digest.update(fitted.digest)
            if left_out:
                definitions += (each for entry, each in fitted.pairs if (server, entry.inward) not in left_out)
            else:
                definitions += fitted.definitions
            yield None
        return View(snapshot.version, tuple(definitions), digest.digest())

    def _render_part(self, part: ServerEntries, kind: Kind, form: _ToolFormat, outward: bool) -> Steps[_RenderedPart]:
        entries: list[Entry] = []
        definitions: list[bytes] = []
        digest = hashlib.sha256()
        for entry in part.visible:
            yield None
            definition = entry.exported if outward else entry.definition
            if kind is Kind.TOOL:
                if (
                    form[-1] and entry.param_headers is None
                ):  # such clients must leave out what they cannot call over HTTP
                    continue
                definition = self._render_definition(entry, definition, form)
            entries.append(entry)
            definitions.append(definition)
            digest.update(b"%d:" % len(definition))
            digest.update(definition)
        return _RenderedPart(tuple(entries), tuple(definitions), digest.digest())

    def _render_definition(self, entry: Entry, definition: bytes, form: _ToolFormat) -> bytes:
        structured, free, tasks, _ = form
        if tasks:  # whatever the server needs: a call that is no task is looked after here
            definition = with_support(definition, optional=entry.may_be_task)
        return downgrade_definition(definition, structured=structured, free=free, tasks=tasks)

    def task_server(self, tool: ResolvedName) -> str | None:
        """The server whose tool this is, if a call of it may become a task."""
        entry = self._visible(tool)
        return entry.server if entry is not None and entry.may_be_task else None

    async def wait_until_settled(self, endpoint: str | None) -> None:
        """Wait for servers that are still starting, shortly after the start."""
        await self._upstreams.wait_settled(endpoint)

    def instructions(self, endpoint: str | None) -> str:
        """The instructions of the servers, merged; on a server's own endpoint its own words as they are."""
        if endpoint is not None:
            return self._instructions_of(endpoint) or ""
        parts: list[str] = []
        for server, upstream in self._upstreams.by_id.items():
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
            return self._gate.definitions.instructions(
                server, self._upstreams.ready_client(server).negotiated.instructions
            )
        except UpstreamError:
            return None

    def _is_visible(self, entry: Entry) -> bool:
        return self._gate.definitions.is_visible(entry.server, entry.kind, entry.inward)

    async def _list(self, exchange: Exchange, listing: ListMethod) -> Answered:
        caller = exchange.caller
        await self._upstreams.wait_settled(caller.endpoint)
        view, start = await self.view(caller, listing.kind), 0
        freshness = self._freshness(caller.endpoint, listing.kind)
        if "cursor" in exchange.params:
            view, start, public = self._open_cursor(caller, listing.kind, exchange.params["cursor"])
            freshness = Freshness(freshness.ttl_ms, public)  # all pages of one list are for the same readers
        end = start + PAGE_SIZE
        page = b'{"%b":[%b]' % (listing.member.encode(), b",".join(view.definitions[start:end]))
        if end < len(view.definitions):
            cursor = self._cursor(caller, listing.kind, view.version, end, freshness.public)
            page += b',"nextCursor":"%b"' % cursor.encode()
        return Answered(Raw(page + b"}"), freshness)

    def _freshness(self, endpoint: str | None, kind: Kind) -> Freshness:
        """How long the list stays true: no longer than what any of its servers said of its own, and not at all where
        one said nothing, or may still come to have entries. Lists past their time are read again."""
        now = trio.current_time()
        hints: list[Freshness] = []
        whole = True
        for server in self._upstreams.by_id if endpoint is None else (endpoint,):
            upstream = self._upstreams.by_id.get(server)
            if upstream is None or upstream.spec.disabled:
                continue
            if server not in self.catalog.snapshot(kind).by_server:
                whole = False
                continue
            hint = self.catalog.hint(server, kind)
            if hint is None:
                continue
            left = hint.remaining(now)
            if not left.ttl_ms:
                upstream.on_hint_expired(kind)
            hints.append(left)
        common = common_freshness(hints) if whole else STALE
        return Freshness(min(common.ttl_ms, MAX_LIST_TTL), common.public)

    def _cursor(self, caller: Caller, kind: Kind, version: int, start: int, public: bool) -> str:
        place = b"%d.%d.%d" % (version, start, public)
        return self._seal.seal("cursor", self._cursor_binding(caller, kind), place, CURSOR_LIFE)

    def _cursor_binding(self, caller: Caller, kind: Kind) -> bytes:
        """Whose cursor it is, and what it is good for."""
        bound = [caller.endpoint, caller.identity, kind.value, _tool_format(caller.abilities)]
        return self._lifetime_mark + bytes(encode(bound))

    def _open_cursor(self, caller: Caller, kind: Kind, cursor: Raw) -> tuple[View, int, bool]:
        """The view a cursor belongs to, where in it, and for whom. An old view is served as it was, or not at all:
        pages of two different lists never make one list, and no page shows what may not be seen any more."""
        try:
            place = self._seal.unseal("cursor", self._cursor_binding(caller, kind), string(cursor))
        except (InvalidSeal, ValueError):
            raise InvalidParams("the cursor is not valid here; list again from the start") from None
        version, start, public = (int(part) for part in place.split(b"."))
        for view in self._views.get((caller.endpoint, kind, _tool_format(caller.abilities)), ()):
            if view.version == version >= self.catalog.snapshot(kind).last_narrowed:
                return view, start, bool(public)
        raise InvalidParams("the list has changed since this cursor was given; list again from the start")

    # Reaching one entry

    async def _answer_targeted(self, exchange: Exchange) -> Answer:
        """Have the server answer, and give the answer outward names and a form that the caller can read."""
        caller, method = exchange.caller, TARGETED[exchange.request.method]
        target = exchange.target or await self.resolve(caller.endpoint, method.name, exchange.params)
        server, kind, asked = self._reachable(target), target.kind, target.asked
        exists = kind is Kind.RESOURCE or target.entry is not None
        try:
            async with self._gate.passage(exchange, server, kind, target.inward, exists=exists) as permit:
                if exchange.round is not None and exchange.round.server not in (None, server):
                    raise InvalidParams(EXPIRED_STATE_MESSAGE)  # what is called so is another server's by now
                async with self._upstreams.lease(server, exchange) as lease:
                    if method.capability not in lease.client.negotiated.capabilities:
                        raise _not_found(kind, asked)
                    try:
                        answer = await lease.client.call(permit)
                    except ServerErrorResponse as refusal:
                        permit.fail(refusal)
                        if refusal.code == URL_REQUIRED:
                            await self._admit_urls(refusal, permit)
                        if refusal.code != URL_REQUIRED or exchange.round is None:
                            raise self._translate_error(refusal, permit, asked) from None
                        answer = self._url_input_required(refusal, permit)
                if isinstance(answer, InputRequired):
                    return permit.renew_for_retry(answer)
                result = permit.accept(answer)
        except NotVisible:
            if kind is Kind.RESOURCE:
                raise _not_found(kind, asked) from None
            raise self._refresh_and_not_found(server, kind, asked) from None
        try:
            if not self._gate.policies.shows_apps(server):
                result = without_pages(result, method.links)
            if caller.endpoint is None:
                result = rename_in_result(result, method.links, _outward(server))
        except ValueError:
            raise ProtocolViolation(server, f"{server} sent a result that cannot be read") from None
        return Answered(downgrade_result(method.name, result, caller.abilities), answer.freshness)

    async def _wait_for_server(self, endpoint: str | None, kind: Kind, name: str) -> None:
        """Wait for the server that is to be asked, shortly after the start: whoever has no session comes at once. A URI
        that names no server may be any server's."""
        server = self._server_by_text(endpoint, kind, name)
        if kind is Kind.RESOURCE or server in self._upstreams:
            await self._upstreams.wait_settled(server)

    async def _complete(self, exchange: Exchange) -> Answer:
        kind, name = target_of(COMPLETION_COMPLETE, exchange.params)
        await self._wait_for_server(exchange.caller.endpoint, kind, name)
        target = self._resolve(exchange.caller.endpoint, kind, name)
        # Of resources, only what some list names can be completed, and that of a server that is away, too.
        server = target.server if kind is Kind.RESOURCE else self._reachable(target)
        if server is None:
            raise _not_found(kind, name)
        inward = target.inward
        exists = (
            target.entry is not None or target.by_listing or (kind is Kind.RESOURCE and self._lists(server, inward))
        )
        try:
            async with (
                self._gate.passage(exchange, server, kind, inward, exists=exists, confirm=False) as permit,
                self._upstreams.lease(server, exchange) as lease,
            ):
                if not lease.client.negotiated.has_completions:
                    return Answered(NO_COMPLETION)
                try:
                    answer = await lease.client.call(permit)
                except ServerErrorResponse as refusal:
                    permit.fail(refusal)
                    if refusal.code == METHOD_NOT_FOUND:
                        return Answered(NO_COMPLETION)
                    raise self._translate_error(refusal, permit, name) from None
                assert isinstance(answer, Answered), "nobody goes on with a completion"
                return Answered(permit.accept(answer), answer.freshness)
        except ConfirmationRequired:  # nobody is asked about every letter that is typed
            return Answered(NO_COMPLETION)
        except NotVisible:
            raise self._refresh_and_not_found(server, kind, name) from None

    def _url_input_required(self, refusal: ServerErrorResponse, permit: CallPermit) -> InputRequired:
        """The user must visit pages, and then the caller sends its request again: the server itself demands that
        (2025-11-25, "URL Elicitation Required Error")."""
        pages = elicitation_params_of(refusal.data)
        if pages is None:
            raise ProtocolViolation(permit.server, f"{permit.server} wants pages to be visited and does not say which")
        if len(pages) > MAX_KEYS or len(refusal.data or b"") > MAX_STATE:  # the caller carries them for us
            raise ProtocolViolation(permit.server, f"{permit.server} wants too many pages to be visited at once")
        if not permit.exchange.caller.abilities.url:
            data = encode({"requiredCapabilities": capability_of(ServerRequest.URL)})
            raise MissingAbility(f"{permit.server} wants a web page to be visited first", data=data)
        questions = {f"page{at}": (ELICIT, page) for at, page in enumerate(pages)}
        return InputRequired(permit.server, questions, None, restarts=True)

    async def _admit_urls(self, refusal: ServerErrorResponse, permit: CallPermit) -> None:
        """The user may be sent to all of these pages.

        Raises:
            Forbidden, Unconfirmed, TooManyRequests, StaleApproval: not to all.
        """
        server, caller = permit.server, permit.exchange.caller
        for page in elicitation_params_of(refusal.data) or ():
            try:
                allowed = await self._gate.server_requests.admit(server, ServerRequest.URL, page, caller)
            except Forbidden:
                text = f"{server} wants a web page to be visited first, which it was not allowed to ask for"
                raise Forbidden(server, text) from None
            with self._gate.server_requests.dispatch(allowed) as record:
                record.end("handed on")

    def _translate_error(
        self, refusal: ServerErrorResponse, permit: CallPermit | WatchPermit, name: str
    ) -> ColonnadeError:
        """A server's refusal, in the terms of the caller and of its revision."""
        caller = permit.exchange.caller
        if permit.kind is Kind.RESOURCE and means_not_found(refusal, permit.target):
            return _not_found(permit.kind, name)
        if refusal.code == URL_REQUIRED:
            return self._url_required_error(refusal, permit)
        if refusal.code == MissingAbility.code and not _lacks_abilities(refusal.data, caller.abilities):
            # The caller can do it: it is us who do not let the server ask, and the caller could try for ever.
            text = f"{permit.server} needs to ask the client for something that it is not allowed to ask for"
            return Forbidden(permit.server, text)
        if caller.endpoint is None:
            data = _with_outward_uri(refusal.data, permit, name)
            refusal = ServerErrorResponse(refusal.server, refusal.code, refusal.message, data)
        return refusal if caller.abilities.retries else as_relayed(refusal)

    def _url_required_error(self, refusal: ServerErrorResponse, permit: CallPermit | WatchPermit) -> UpstreamError:
        """The user must visit pages first: for clients that can send them there."""
        server = permit.server
        asked = permit.exchange.request.method in TARGETED  # for anything else nobody is asked
        if not self._gate.server_requests.allows(server, ServerRequest.URL) or not (
            asked or self._are_urls_allowed(refusal, server)
        ):
            text = f"{server} wants a web page to be visited first, which it was not allowed to ask for"
            return Forbidden(server, text)
        # A subscription may be several clients': its pages have no ids that are the caller's own.
        if permit.exchange.caller.abilities.url and permit.exchange.request.method != SUBSCRIBE:
            return refusal
        pages = "; ".join(f"{message} {url}".strip() for message, url in urls_required(refusal.data))
        return Forbidden(server, f"{server} wants this to be visited first, then ask again: {pages or refusal.message}")

    def _are_urls_allowed(self, refusal: ServerErrorResponse, server: str) -> bool:
        """Whether the user may be sent to all of these pages without anybody being asked."""
        pages = [string(page["url"]) for page in elicitation_params_of(refusal.data) or ()]
        judged = [self._gate.server_requests.evaluate(server, ServerRequest.URL, url) for url in pages]
        return all(decision.verdict is Verdict.ALLOW for decision in judged)

    # Watching a resource

    async def _watch(self, exchange: Exchange) -> Raw:
        method = exchange.request.method
        _, name = target_of(method, exchange.params)
        if method == UNSUBSCRIBE:
            return self._unwatch(exchange, name)
        permit = self._permit_to_watch(exchange, name)

        def changed(uri: str, notice: dict[str, Raw]) -> None:
            at_all = exchange.caller.endpoint is None
            outward = name if uri == permit.target else outward_uri(permit.server, uri) if at_all else uri
            said = self._gate.policies.sanitize(permit.server, encode_object({**notice, "uri": encode(outward)}))
            exchange.caller.client.notify(Notification(RESOURCE_UPDATED, said))

        try:
            async with self._gate.policies.meter(permit.server).slot():
                with permit.dispatch():
                    await self._upstreams.watch(permit, changed)
        except ServerErrorResponse as refusal:
            raise self._translate_error(refusal, permit, name) from None
        return EMPTY_OBJECT

    def is_watchable(self, exchange: Exchange) -> bool:
        """Whether the server of the resource that the exchange names says that it tells of changes."""
        try:
            self._permit_to_watch(exchange, target_of(SUBSCRIBE, exchange.params)[1])
        except ColonnadeError:
            return False
        return True

    def _permit_to_watch(self, exchange: Exchange, name: str) -> WatchPermit:
        target = self._resolve(exchange.caller.endpoint, Kind.RESOURCE, name)
        server, inward = self._reachable(target), target.inward
        # Before the gate is asked: else a denied resource would be answered otherwise than a missing one.
        self._upstreams.check_subscribable(server)
        # No server is heard that tells of such a URI, which would be held as long as it is watched.
        too_long = len(inward) > MAX_LENGTH
        permit = None if too_long else self._gate.admit_watch(exchange, server, inward)
        if permit is None:
            raise _not_found(Kind.RESOURCE, name)
        return permit

    def _unwatch(self, exchange: Exchange, name: str) -> Raw:
        """The caller watches it no more, also while its server is away: nothing is asked of the server here."""
        found = self._server_in_uri(exchange.caller.endpoint, name) or self._owner_by_listing(name)
        if found is None or not self._gate.definitions.is_known(found[0], Kind.RESOURCE, found[1]):
            raise _not_found(Kind.RESOURCE, name)
        self._upstreams.unwatch(*found, exchange.caller)
        return EMPTY_OBJECT

    # Finding the entry

    def _resolve(self, endpoint: str | None, kind: Kind, name: str) -> ResolvedName:
        """Resolve `name` at the endpoint. A name that does not exist goes to the gate all the same: see
        `Gate.admit`."""
        if kind is not Kind.RESOURCE:
            return ResolvedName(kind, name, *self._look_up(endpoint, kind, name))
        named = self._server_in_uri(endpoint, name)
        server, inward = named or self._owner_by_listing(name) or (None, name)
        return ResolvedName(kind, name, server, inward, by_listing=named is None and server is not None)

    def _reachable(self, target: ResolvedName) -> str:
        """The server that is meant.

        Raises:
            UnknownEntry, ResourceNotFound: there is none.
            Unavailable: nobody can tell whether there is such a resource, since its server is away.
        """
        server = target.server
        if server is None or server not in self._upstreams:
            raise _not_found(target.kind, target.asked)
        if target.kind is Kind.RESOURCE and not target.by_listing:
            # Only the server can tell what it has. While it is away, what is denied must sound like what is not there.
            self._upstreams.ready_client(server)
        return server

    def _look_up(self, endpoint: str | None, kind: Kind, name: str) -> tuple[str | None, str, Entry | None]:
        """The entry listed under this name at the endpoint, visible or not: its server, its own name there, and the
        entry. If nothing is, the server and the name that the text tells."""
        snapshot = self.catalog.snapshot(kind)
        if endpoint is not None:
            return endpoint, name, snapshot.by_inward.get((endpoint, name))
        server, inward, entry = server_of_name(name), name.partition(SEPARATOR)[2], snapshot.by_outward.get(name)
        return (server, inward, None) if entry is None else (entry.server, entry.inward, entry)

    def _server_by_text(self, endpoint: str | None, kind: Kind, name: str) -> str | None:
        """The server that a name or URI itself names, or whose endpoint is asked. Of a name, there may be none such."""
        if kind is Kind.RESOURCE:
            server, _ = self._server_in_uri(endpoint, name) or (None, "")
            return server
        return server_of_name(name) if endpoint is None else endpoint

    def _refresh_and_not_found(self, server: str, kind: Kind, name: str) -> ColonnadeError:
        """The answer where a server lists nothing under a name, or nothing that may be known. Perhaps its list is old:
        it is read again, after this answer, so that the time it takes tells nothing.

        Raises:
            Unavailable: the server could never list.
        """
        if server not in self.catalog.snapshot(kind).by_server:
            self._upstreams.ready_client(server)
        self._upstreams.by_id[server].refresh(kind)
        return _not_found(kind, name)

    def _server_in_uri(self, endpoint: str | None, uri: str) -> tuple[str, str] | None:
        """The server that the URI itself names, or whose endpoint is asked, and its own URI."""
        return (endpoint, uri) if endpoint is not None else inward_uri(uri, self._upstreams)

    def _owner_by_listing(self, uri: str) -> tuple[str, str] | None:
        """The one server that lists the URI, or has the one template that makes it, as servers write their URIs: a web
        URI, or one that a client took from a text. Two owners are none: nobody is guessed at."""
        for matches in (self._listing_owners(uri), self._template_owners(uri)):
            if matches:
                return (matches.pop(), uri) if len(matches) == 1 else None
        return None

    def _lists(self, server: str, uri: str) -> bool:
        templates = self.catalog.snapshot(Kind.TEMPLATE)
        made_by = matching_templates([entry.inward for entry in templates.by_server.get(server, ())], (uri,))
        return (server, uri) in self.catalog.snapshot(Kind.RESOURCE).by_inward or made_by != []

    def _listing_owners(self, uri: str) -> set[str]:
        return {
            server
            for server in self._upstreams.by_id
            for kind in (Kind.RESOURCE, Kind.TEMPLATE)
            if self._gate.definitions.is_known(server, kind, uri)
            and (server, uri) in self.catalog.snapshot(kind).by_inward
        }

    def _template_owners(self, uri: str) -> set[str]:
        templates = self.catalog.snapshot(Kind.TEMPLATE).by_server
        known = {
            server: [
                entry.inward for entry in entries if self._gate.definitions.is_known(server, entry.kind, entry.inward)
            ]
            for server, entries in templates.items()
        }
        return {server for server, each in known.items() if matching_templates(each, (uri,)) != []}


_Key = tuple[str | None, Kind, "_ToolFormat"]
"""The key of a view: endpoint, kind and form."""

_ToolFormat = tuple[bool, bool, bool, bool]
"""Which definitions of tools somebody can read: with structured content, of any type; with tasks; and without those
that no stateless client may call."""


def _tool_format(abilities: Abilities) -> _ToolFormat:
    # A stateless caller says in each request that it takes tasks, and its tools say nothing of them.
    alone = abilities.retries
    return abilities.structured_content, abilities.free_structure, abilities.tasks and not alone, alone


def _lacks_abilities(data: Raw | None, abilities: Abilities) -> bool:
    """Whether the caller declares less than the capabilities that a server requires, by its error."""
    try:
        required = members(data or b"")["requiredCapabilities"]
    except (KeyError, ValueError):
        return True
    needed = abilities_of(LATEST, required)
    return any(
        getattr(needed, each) and not getattr(abilities, each)
        for each in ("roots", "sampling", "sampling_tools", "form", "url")
    )


def failed_call(failure: UpstreamError) -> Answered:
    """A server's failure as the result of a tool, which the model can read."""
    return Answered(encode({"content": [{"type": "text", "text": failure.message}], "isError": True}))


def _outward(server: str) -> Callable[[str], str]:
    return lambda uri: outward_uri(server, uri)


def _not_found(kind: Kind, name: str) -> UnknownEntry | ResourceNotFound:
    """The one answer for what is not there and for what must not be known."""
    if kind is Kind.RESOURCE:
        return ResourceNotFound("Resource not found", data=encode({"uri": name}))
    return UnknownEntry(f"Unknown {kind.value}: {name[:200]}")


def _with_outward_uri(data: Raw | None, permit: CallPermit | WatchPermit, asked: str) -> Raw | None:
    """The data of a server's error, with the URI in it as one that the client can bring back."""
    uri = uri_in(data)
    if data is None or uri is None:
        return data
    outward = asked if uri == permit.target else outward_uri(permit.server, uri)
    return encode_object({**members(data), "uri": encode(outward)})


def _cut(text: str, limit: int) -> str:
    return text if len(text) <= limit else text[: limit - 3] + "..."
