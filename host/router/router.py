"""The router: answers an exchange, lists from the catalog and everything else through the gate by the server of the
entry.

Tools, resources and prompts share one path: resolve the name, pass the gate, call the server, rename the result. Hidden
and missing entries share it too, and get the same error. Sessions, transports and revisions belong to other modules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

from msgspec import Raw, structs
from msgspec.structs import replace

from config.globs import MAX_LENGTH
from host.attempts import Attempt, Reason
from host.catalog import Entry
from host.errors import (
    AmbiguousMembers,
    ColonnadeError,
    Forbidden,
    InvalidParams,
    InvalidRequest,
    LoginLost,
    LoginNeeded,
    MethodNotFound,
    MissingAbility,
    ProtocolViolation,
    ResourceNotFound,
    ServerErrorResponse,
    SessionLost,
    StaleApproval,
    TimedOut,
    TooManyRequests,
    TooManyResources,
    Unavailable,
    UnknownEntry,
    UnknownState,
    UpstreamError,
)
from host.exchange import Answer, Answered, Caller, Exchange, InputRequired, NoClient, ResolvedName
from host.journal import observed_of, waiting
from host.jsonrpc.messages import INTERNAL_ERROR, METHOD_NOT_FOUND, Notification, Request
from host.jsonrpc.outline import outline_soon
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, members, string
from host.policy.confirmations import stale_approval
from host.policy.gate import CallPermit, ConfirmationRequired, WatchPermit
from host.protocol.abilities import are_passed_on, lacks, object_members
from host.protocol.codes import as_relayed, means_not_found, required_capabilities, uri_in
from host.protocol.downgrade import downgrade_result
from host.protocol.links import rename_in_result
from host.protocol.log_levels import level_of
from host.protocol.methods import (
    COMPLETION_CAPABILITY,
    COMPLETION_COMPLETE,
    LIST_METHOD_BY_NAME,
    LIST_METHODS,
    LOGGING_CAPABILITY,
    RESOURCE,
    RESOURCE_UPDATED,
    SET_LEVEL,
    SUBSCRIBE,
    TARGETED,
    TOOLS_CALL,
    UNSUBSCRIBE,
    Kind,
    target_of,
)
from host.protocol.negotiated import ALL_CAPABILITIES, SUBSCRIPTION_FLAG, NegotiatedServer
from host.protocol.server_requests import URL_REQUIRED
from host.protocol.versions import SESSION, STATELESS
from host.router.instructions import merged_instructions
from host.router.lists import Lists
from host.router.login_needed import LoginOffers
from host.router.prepare import (
    LEASED,
    RESOLVED,
    UNLEASED,
    UNSENT,
    CallFailure,
    Reached,
    Recovery,
    Sending,
    Sent,
    Setback,
    Step,
    after_failure,
    next_sending,
    next_step,
)
from host.router.resolve import Resolver, not_found
from host.router.tool_search import ToolSearch
from host.router.url_required import admit_urls, url_input_required, url_required_error
from host.seal import Seal
from host.source import Endpoint, EntryRef, Source
from host.upstream.client import Client
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams

NO_COMPLETION = Raw(b'{"completion":{"values":[],"total":0,"hasMore":false}}')
ATTEMPT, LEASE, SEND = Step.ATTEMPT, Sending.LEASE, Sending.SEND


class Router:
    """Answers the exchanges of all clients. It keeps no state of callers, so any number of tasks may use it."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams, seal: Seal) -> None:
        self.catalog = runtime.catalog
        self._gate = runtime.gate
        self._views = runtime.gate.policies.views
        self.log_levels = runtime.log_levels
        self.upstreams = upstreams
        self._login_offers = LoginOffers(runtime, upstreams)
        self.resolver = Resolver(runtime, upstreams)
        self.lists = Lists(runtime, upstreams, seal)
        self.tool_search = ToolSearch(runtime, upstreams, self.resolver, self.lists)

    def has_endpoint(self, server: str) -> bool:
        """Whether this server has an endpoint of its own."""
        return server in self.upstreams

    async def answer(self, exchange: Exchange) -> Answer:
        """The result of an exchange; InputRequired only if the exchange has a round.

        Raises:
            ColonnadeError: the request failed.
        """
        if (absence := self._gate.absence) is not None and absence.is_behind():
            await absence.wait_returned()
        caller, method = exchange.caller, exchange.request.method
        if method not in TARGETED:
            return await self._answer_other(exchange)
        # The model can read and act on a server's failure or a person's denial, so for a tool they are results
        # (2025-11-25, "Tools / Error Handling"); an unknown tool and the server's own JSON-RPC error are errors.
        try:
            target = exchange.target or await self.resolver.resolve(caller, method, exchange.params)
            past, needed = RESOLVED, None
            while True:
                step = next_step(self.resolver.look(target, caller, may_log_in=True), past)
                if step is not ATTEMPT:
                    target = await self._carry_out(step, exchange, target, needed)
                    past, needed = past.after(step), None
                    continue
                try:
                    answer = await self._attempt(exchange, target)
                except LoginNeeded as problem:
                    past, needed = past.after_attempt(Setback.NO_LOGIN), problem
                else:
                    if answer is not None:
                        return answer
                    past = past.after_attempt(Setback.OTHER_ERA)
        except ServerErrorResponse:
            raise
        except (UnknownEntry, ResourceNotFound):
            self._record_attempt(exchange)
            raise
        except TooManyRequests as refusal:
            self._record_unsent(exchange, Reason.LIMITED, refusal)
            raise
        except UpstreamError as failure:
            if isinstance(failure, StaleApproval):
                self._record_attempt(exchange, is_stale=True)
            elif isinstance(failure, TooManyResources):
                self._record_unsent(exchange, Reason.LIMITED, failure)
            elif isinstance(failure, Unavailable | TimedOut):
                self._record_unsent(exchange, Reason.UNAVAILABLE, failure)
            if method != TOOLS_CALL.name:
                raise
            return failed_call(failure)

    async def _answer_other(self, exchange: Exchange) -> Answer:
        """`answer`, for a request whose method is not in TARGETED."""
        method = exchange.request.method
        if method in LIST_METHOD_BY_NAME:
            return await self.lists.answer(exchange, LIST_METHOD_BY_NAME[method])
        if method == COMPLETION_COMPLETE:
            try:
                return await self._complete(exchange)
            except AmbiguousMembers:
                self.record_ambiguous(exchange.request, exchange.caller, exchange.address)
                raise
            except UnknownEntry:
                self._record_attempt(exchange)
                raise
            except ResourceNotFound as error:  # what is completed is a parameter: "Completion / Error Handling"
                self._record_attempt(exchange)
                raise InvalidParams(error.message, data=error.data) from None
        if method in (SUBSCRIBE, UNSUBSCRIBE, SET_LEVEL) and isinstance(exchange.caller.client, NoClient):
            raise InvalidRequest("this method needs a session; open one at /mcp or /sse")
        if method in (SUBSCRIBE, UNSUBSCRIBE):
            try:
                return Answered(await self._watch(exchange))
            except ResourceNotFound:
                self._record_attempt(exchange)
                raise
            except StaleApproval:
                self._record_attempt(exchange, is_stale=True)
                raise
            except ConfirmationRequired:
                self._record_attempt(exchange, Reason.UNCONFIRMED)
                raise
        if method == SET_LEVEL:
            self.log_levels.set_level(exchange.caller, level_of(exchange.params))
            return Answered(EMPTY_OBJECT)
        raise MethodNotFound.of_method(method)

    def _record_attempt(self, exchange: Exchange, reason: Reason | None = None, *, is_stale: bool = False) -> None:
        """Record that the entry of this exchange was asked for in vain. The same is done whether the entry is denied or
        missing, so that the response takes the same time.

        Args:
            is_stale: it is there, and is held or has changed. Only a held entry counts as an attempt.
        """
        caller = exchange.caller
        kind, name = target_of(exchange.request.method, exchange.params)
        target = self.resolver.resolve_now(caller, kind, name)
        named = target.server or ""
        servers = list(self.upstreams.at(caller.endpoint)) if not named and self._shows_none(kind, caller) else [named]
        why = {server: self._why_hidden(target, server, caller) for server in servers}
        hiding = [server for server in servers if why[server] is not Reason.MISSING]  # a generator would stop early
        server = hiding[0] if hiding else named
        if is_stale and not hiding:
            return
        why_refused = reason or why.get(server, Reason.MISSING)
        self._count_attempt(why_refused, kind.value, name, server, caller, exchange.address)

    def _record_unsent(self, exchange: Exchange, reason: Reason, failure: ColonnadeError) -> None:
        """Record that a permitted request was not sent, unless the audit has its decision and outcome."""
        if not failure.is_recorded:
            failure.is_recorded = True
            self._record_attempt(exchange, reason)

    def _shows_none(self, kind: Kind, caller: Caller) -> bool:
        """Whether a name of this kind may show no server."""
        return kind is RESOURCE or self._views.view(caller.endpoint.view).names.plain

    def _why_hidden(self, target: ResolvedName, server: str, caller: Caller) -> Reason:
        """The reason why the caller does not get an entry of this server: the one of its name, or, for a URI that names
        no server, any that lists it."""
        ref = target.ref
        if ref is None:
            ref = EntryRef(self.upstreams.source(server, caller), target.kind, target.asked)
            exists = self.catalog.entry(ref) is not None
        else:
            exists = target.exists
        return self._gate.definitions.why_hidden(ref, self._gate.caller_name(caller), exists=exists)

    def record_ambiguous(self, request: Request, caller: Caller, address: str) -> None:
        """Record that a request was refused since some readers take one of its members for another one. The recorded
        name is the one that is spelled exactly, or the method if there is none. `address`: see `Exchange.address`."""
        row, params = TARGETED.get(request.method), request.params_members or {}
        try:
            name = "" if row is None else string(params[row.target])
        except (KeyError, ValueError):
            name = ""
        if row is None or not name:
            self._count_attempt(Reason.AMBIGUOUS, "request", request.method, "", caller, address)
        else:
            server = self.resolver.resolve_now(caller, row.kind, name).server or ""
            self._count_attempt(Reason.AMBIGUOUS, row.kind.value, name, server, caller, address)

    def _count_attempt(self, why: Reason, kind: str, name: str, server: str, caller: Caller, address: str) -> None:
        known = server if server in self.upstreams else ""
        attempt = Attempt(why, kind, name, address, caller.identity or "", caller.name, known)
        self._gate.decision_log.record_attempt(attempt)

    def may_park(self, caller: Caller, target: ResolvedName, through: str) -> bool:
        """Whether the client may have to answer something in the middle of a call of this entry, not only after its
        result: requests of its server, or a login that it needs. `through`: see `Exchange`."""
        ref = target.ref
        if ref is None and self.tool_search.offers(caller, target.asked):
            return False
        if ref is not None and self._gate.client_may_confirm(ref, caller, through):
            return True
        upstream = self.upstreams.find(target.server or "", caller)
        if upstream is not None and (upstream.life.needs_login or self._login_offers.may_come(upstream, caller)):
            return True
        negotiated = None if upstream is None else upstream.negotiated
        is_call = target.kind is Kind.TOOL
        return negotiated is None or negotiated.era is SESSION or (is_call and negotiated.runs_tasks)

    def forget(self, caller: Caller) -> None:
        """Forget a caller that is gone."""
        self.upstreams.forget(caller)
        self._gate.forget(caller)

    # Listing

    def lacking(self, caller: Caller) -> frozenset[str]:
        """The server capabilities, and `subscribe`, that no server of the caller's view offers it; none without a
        view. A server of which nothing is known may offer all."""
        endpoint = caller.endpoint
        if not endpoint.view:
            return frozenset()
        view, offered = self._views.view(endpoint.view), set[str]()
        for server in self.upstreams.at(endpoint):
            negotiated = self.upstreams[server].offering(caller).negotiated
            shown = {LIST_METHODS[kind].capability for kind in Kind if view.may_offer(server, kind)}
            offered |= shown if negotiated is None else shown & negotiated.capabilities
            if negotiated is None or negotiated.has_logging:
                offered.add(LOGGING_CAPABILITY)
            if shown - {LIST_METHODS[Kind.TOOL].capability} and (negotiated is None or negotiated.has_completions):
                offered.add(COMPLETION_CAPABILITY)
            if negotiated is None or negotiated.has_subscriptions:
                offered.add(SUBSCRIPTION_FLAG)
        return ALL_CAPABILITIES - offered

    def server_for(self, caller: Caller) -> NegotiatedServer | None:
        """The offer of the only server of the caller's endpoint, or the remembered one; None if that is not known, and
        at the endpoint of all servers. An untrusted one's has no other members: no person approves them. Nor has one
        of which the caller's view has a part: they may name the rest."""
        id = caller.endpoint.server or ""
        server = self.upstreams.by_id.get(id)
        found = None if server is None else server.offering(caller).negotiated
        view = self._views.view(caller.endpoint.view)
        is_whole = all(view.offers_all(id, kind) for kind in Kind) and not self._gate.policies.sanitizes(id)
        return found if found is None or is_whole else replace(found, beside="{}")

    def is_undeclared(self, caller: Caller, method: str) -> bool:
        """Whether the only server of the caller's endpoint does not declare what this method needs, so that a direct
        client would be told that there is no such method (2025-11-25, "Lifecycle / Capability Negotiation")."""
        server = self.server_for(caller)
        return server is not None and server.lacks(method)

    def shows_apps(self, endpoint: Endpoint) -> bool:
        """Whether clients of this endpoint may see pages of MCP Apps."""
        return endpoint.server is None or self._gate.policies.shows_apps(endpoint.server)

    def instructions(self, caller: Caller) -> str:
        """The instructions for this caller at its endpoint."""
        view = self._views.view(caller.endpoint.view)
        return merged_instructions(caller, view, self.upstreams, self._gate.definitions)

    # Requests to one entry

    async def _prepare(self, exchange: Exchange, target: ResolvedName) -> ResolvedName:
        """For requests that are offered no login: wait until one may be attempted; raises as `_carry_out` does. Returns
        its name as it is resolved then."""
        past = RESOLVED
        while (step := next_step(self.resolver.look(target, exchange.caller, may_log_in=False), past)) is not ATTEMPT:
            target, past = await self._carry_out(step, exchange, target), past.after(step)
        return target

    async def _carry_out(
        self, step: Step, exchange: Exchange, target: ResolvedName, needed: LoginNeeded | None = None
    ) -> ResolvedName:
        """Carry out a step of a resolved request before its attempt. Returns its name as it is resolved then.

        Args:
            needed: why the last attempt failed, if it needed a login.

        Raises:
            Unavailable: its definition is only remembered and could not be read, or its server keeps changing.
            TimedOut, TooManyRequests: see `Upstreams.wait_started`.
            ColonnadeError: see `LoginOffers.wait`.
        """
        server, caller, kind, upstreams = target.server or "", exchange.caller, target.kind, self.upstreams
        if step is Step.WAIT_STARTED:
            with waiting(observed_of(exchange.request), "server"):
                await upstreams.wait_started(server, caller, target.since)
        elif step is Step.WAIT_READ:
            if (connection := upstreams.find(server, caller)) is not None:
                await connection.wait_read(kind)
        elif step is Step.OFFER_LOGIN:
            problem = needed or upstreams[server].serving(caller).unread(kind)
            assert isinstance(problem, LoginNeeded)
            await self._login_offers.wait(exchange, problem)
        elif step is Step.REFUSE_UNREAD:
            raise upstreams[server].serving(caller).unread(kind)
        else:
            raise _keeps_changing(server)
        return self.resolver.resolve_now(caller, kind, target.asked)  # its time begins anew: a person may have had it

    async def _attempt(self, exchange: Exchange, target: ResolvedName) -> Answer | None:
        """One attempt at a server that has started. Gives the result outward names, and the form that the caller can
        read. None if the caller is served in the other era by now; then the server has processed nothing."""
        caller, method = exchange.caller, TARGETED[exchange.request.method]
        if target.ref is None and not exchange.through and self.tool_search.offers(caller, target.asked):
            return await self.tool_search.answer(exchange, target.asked)
        ref, kind, asked = self.resolver.reachable(target, caller), target.kind, target.asked
        server, exists, entry = ref.source.server, target.exists, target.entry
        if entry is not None and entry.arguments is not None:
            edited = self._with_override(exchange, target, entry.arguments.call)
            exchange, exists = (exchange, False) if edited is None else (edited, exists)
        permit = await self._gate.admit(exchange, ref, exists=exists)
        if permit is None:
            raise not_found(kind, asked) if kind is RESOURCE else self.resolver.not_listed(server, kind, asked, caller)
        async with permit:
            if permit.admission.access is not None and entry is not None:
                self._check_override(entry, caller)
            if exchange.round is not None and exchange.round.server not in (None, server):
                raise UnknownState  # the name belongs to another server by now
            try:
                answer = await self._send(permit)
            except ServerErrorResponse as refusal:
                raise self._translate_error(refusal, permit, asked) from None
            if answer is Sending.REFUSE_MISSING:
                raise not_found(kind, asked)
            if isinstance(answer, Sending):
                return None
            if isinstance(answer, InputRequired):
                return permit.renew_for_retry(answer)
            result = permit.accept(answer)
        outlined = outline_soon(result) if answer.outlined is None else answer.outlined
        try:
            if caller.endpoint.server is None:
                outward = partial(self._views.names.outward_uri, server)
                result = rename_in_result(result, method.links, outward, outlined)
        except ValueError:
            raise ProtocolViolation(server, f"{server} sent a result that cannot be read") from None
        freshness = self._views.as_cacheable(answer.freshness)
        return Answered(downgrade_result(method.name, result, caller.abilities, outlined), freshness)

    async def _send(self, permit: CallPermit, past: Sent = UNSENT) -> Answer | Sending:
        """Have the server answer an admitted request. It is sent once more if the server did not process it because it
        had forgotten the session (2025-11-25, "Session Management").

        Args:
            past: what was done for the request so far.

        Returns:
            The answer, or why the request was not processed: Sending.RESOLVE_AGAIN or Sending.REFUSE_MISSING.
        """
        server, exchange, upstreams = permit.ref.source.server, permit.exchange, self.upstreams
        client: Client | None = None
        try:
            while True:
                # The server may have been stopped or restarted, and its lists got old, while a person was asked.
                upstream = upstreams[server]
                client, source = upstream.shared_client(exchange.caller)
                step = next_sending(self._look_at_server(permit, client, source, past), past)
                if step is SEND and client is not None:
                    return await client.call(permit)
                if step is LEASE:
                    async with upstream.lease(exchange) as lease:
                        client, source = lease.client, upstreams.source(server, exchange.caller)
                        step = next_sending(self._look_at_connection(permit, client, source, past), past)
                        return await client.call(permit) if step is SEND else step
                if step is Sending.WAIT_STARTED:
                    await upstreams.wait_started(server, exchange.caller)
                elif step is Sending.REREAD:
                    await upstreams.reread(exchange.caller, server)
                elif step is Sending.REFUSE_CHANGING:
                    raise _keeps_changing(server)
                else:
                    return step
                past = past.after(step)
        except (SessionLost, LoginLost, ServerErrorResponse) as problem:
            assert client is not None, "only a call ends like this"
            answer = await self._recover(permit, client, problem, past.after(SEND))
            if answer is None:
                raise
            return answer

    async def _recover(
        self, permit: CallPermit, client: Client, problem: SessionLost | LoginLost | ServerErrorResponse, past: Sent
    ) -> Answer | Sending | None:
        """The answer or step that `_send` returns after a failure of its request; None to raise the failure itself."""
        exchange = permit.exchange
        failure = _failure_of(problem, exchange.request.method)
        recovery = after_failure(failure, past, retries=exchange.round is not None)
        if recovery is Recovery.REOPEN:
            await client.wait_lost()
            await self.upstreams[client.server].serving(exchange.caller).life.wait_retried()
            answer = await self._send(permit, past)
            if isinstance(answer, Sending):
                permit.fail(problem)
            return answer
        if recovery is Recovery.RENEW:
            permit.renew_unexecuted()
        if isinstance(problem, ServerErrorResponse):
            permit.fail(problem)
            if recovery in (Recovery.SHOW_PAGES, Recovery.REFUSE_PAGES):
                await admit_urls(self._gate.server_requests, problem, permit)
            if recovery is Recovery.SHOW_PAGES:
                return url_input_required(problem, permit)
        return None

    def _look_at_server(self, permit: CallPermit, client: Client | None, source: Source, past: Sent) -> Reached:
        """The present knowledge of the server of an admitted request. `client` and `source`: see
        `UpstreamServer.shared_client`."""
        exchange, server = permit.exchange, permit.ref.source.server
        is_starting = client is None and self.upstreams.is_starting(server, exchange.caller)
        was_asked = permit.admission.access is not None and exchange.request.method in TARGETED
        is_old = was_asked and self.upstreams.are_old(exchange.caller, server)
        if is_starting or is_old:
            return Reached(is_starting, is_old)
        return UNLEASED if client is None else self._look_at_connection(permit, client, source, past)

    def _look_at_connection(self, permit: CallPermit, client: Client, source: Source, past: Sent) -> Reached:
        """The present knowledge of the server of an admitted request, which offers the caller what is of `source`."""
        server, is_other_era = client.negotiated, source != permit.ref.source
        row = TARGETED.get(permit.exchange.request.method)
        if row is None:
            is_capable = server.has_completions
            is_other_era = is_other_era and past.times > 0  # no definition says how to complete, so either era will do
        else:
            is_capable = row.capability in server.capabilities
        if is_capable and not is_other_era:
            return LEASED
        return Reached(is_leased=True, is_other_era=is_other_era, is_incapable=not is_capable)

    async def _complete(self, exchange: Exchange) -> Answer:
        caller = exchange.caller
        target = await self.resolver.resolve(caller, COMPLETION_COMPLETE, exchange.params)
        target = await self._prepare(exchange, target)
        kind, name = target.kind, target.asked
        # Only listed resources can be completed, also those of a disconnected server.
        ref = target.ref if kind is Kind.RESOURCE else self.resolver.reachable(target, caller)
        if ref is None:
            raise not_found(kind, name)
        exists = target.entry is not None
        if kind is RESOURCE:
            exists = (target.by_listing or self.resolver.is_listed(ref)) and not target.outside
        if target.entry is not None and target.entry.arguments is not None:
            edited = self._with_override(exchange, target, target.entry.arguments.completion)
            exchange, exists = (exchange, False) if edited is None else (edited, exists)
        try:
            permit = self._gate.admit_without_confirmation(exchange, ref, exists=exists)
        except ConfirmationRequired:  # no person is asked about every letter that a user types
            return Answered(NO_COMPLETION)
        if permit is None:
            raise self.resolver.not_listed(ref.server, kind, name, caller)
        async with permit:
            try:
                answer = await self._send(permit)
            except ServerErrorResponse as refusal:
                if refusal.code == METHOD_NOT_FOUND:
                    if caller.endpoint.server is not None:
                        raise MethodNotFound.of_method(COMPLETION_COMPLETE) from None
                    return Answered(NO_COMPLETION)
                raise self._translate_error(refusal, permit, name) from None
            if isinstance(answer, Sending):  # the server cannot complete, or is of the other era by now
                return Answered(NO_COMPLETION)
            assert isinstance(answer, Answered), "nobody goes on with a completion"
            return Answered(permit.accept(answer), answer.freshness)

    def _with_override(
        self, exchange: Exchange, target: ResolvedName, edit: Callable[[Mapping[str, Raw]], Mapping[str, Raw]]
    ) -> Exchange | None:
        """The exchange with the params that the server gets: rules, people and records see these. None if the caller
        may not know the entry, which counts as missing then: what is refused would tell that there is one.

        Raises:
            InvalidParams: the client may not send these arguments.
        """
        if not self.resolver.is_offered(target, exchange.caller):
            return None
        return structs.replace(exchange, params=edit(exchange.params))

    def _check_override(self, entry: Entry, caller: Caller) -> None:
        """For a call that a person has confirmed, which may have taken minutes.

        Raises:
            StaleApproval: the call would be another one by the overrides of now.
        """
        part = self.catalog.snapshot(entry.ref.kind, caller.viewer).parts.get(entry.ref.server)
        now = None if part is None else part.by_name.get(entry.ref.name)
        if now is not None and (now.left_out or now.arguments != entry.arguments):
            raise stale_approval(entry.ref.item)

    def _translate_error(
        self, refusal: ServerErrorResponse, permit: CallPermit | WatchPermit, name: str
    ) -> ColonnadeError:
        """A server's error, in the terms of the caller and its revision."""
        caller = permit.exchange.caller
        ref = permit.ref
        if ref.kind is Kind.RESOURCE and means_not_found(refusal, ref.name):
            return not_found(ref.kind, name)
        if refusal.code == URL_REQUIRED:
            return url_required_error(self._gate.server_requests, refusal, permit)
        required = required_capabilities(refusal.data) if refusal.code == MissingAbility.code else None
        if required is not None and object_members(required) and not lacks(caller.abilities, required):
            # A client that is told to declare what it does declare would repeat its request in vain.
            return _not_passed_on(refusal, required)
        if caller.endpoint.server is None:
            data = self._with_outward_uri(refusal.data, permit, name)
            refusal = ServerErrorResponse(refusal.server, refusal.code, refusal.message, data)
        return refusal if caller.era is STATELESS else as_relayed(refusal)

    def _with_outward_uri(self, data: Raw | None, permit: CallPermit | WatchPermit, asked: str) -> Raw | None:
        """The data of a server's error, with its URI in the form that the client can use."""
        uri = uri_in(data)
        if data is None or uri is None:
            return data
        outward = asked if uri == permit.ref.name else self._views.names.outward_uri(permit.ref.server, uri)
        return encode_object({**members(data), "uri": encode(outward)})

    # Resource subscriptions

    async def _watch(self, exchange: Exchange) -> Raw:
        method = exchange.request.method
        _, name = target_of(method, exchange.params)
        if method == UNSUBSCRIBE:
            return self._unwatch(exchange, name)
        target = await self.resolver.resolve(exchange.caller, method, exchange.params)
        await self._prepare(exchange, target)
        permit = self._permit_to_watch(exchange, name)
        ref = permit.ref

        def changed(uri: str, notice: dict[str, Raw]) -> None:
            endpoint = exchange.caller.endpoint
            if uri != ref.name and not self._views.offers(endpoint, EntryRef(ref.source, RESOURCE, uri)):
                return
            at_all = endpoint.server is None
            outward = name if uri == ref.name else self._views.names.outward_uri(ref.server, uri) if at_all else uri
            said = self._gate.policies.sanitize(ref.server, encode_object({**notice, "uri": encode(outward)}))
            exchange.caller.client.notify(Notification(RESOURCE_UPDATED, said))

        try:
            async with self._gate.policies.meter(ref.server).slot():
                with permit.dispatch():
                    await self.upstreams[ref.server].watch(permit, changed)
        except ServerErrorResponse as refusal:
            raise self._translate_error(refusal, permit, name) from None
        return EMPTY_OBJECT

    def is_watchable(self, exchange: Exchange) -> bool:
        """Whether the server of the exchange's resource declares subscriptions."""
        try:
            self._permit_to_watch(exchange, target_of(SUBSCRIBE, exchange.params)[1])
        except ColonnadeError:
            return False
        return True

    def _permit_to_watch(self, exchange: Exchange, name: str) -> WatchPermit:
        target = self.resolver.resolve_now(exchange.caller, Kind.RESOURCE, name)
        ref = self.resolver.reachable(target, exchange.caller, may_start=True)
        # Before the gate is asked: otherwise denied and missing resources would get different responses.
        self.upstreams[ref.server].check_subscribable(exchange.caller)
        # No server sends updates for such a URI, whose subscription would hold memory.
        permit = None if len(ref.name) > MAX_LENGTH else self._gate.admit_watch(exchange, ref, exists=target.exists)
        if permit is None:
            raise not_found(Kind.RESOURCE, name)
        return permit

    def _unwatch(self, exchange: Exchange, name: str) -> Raw:
        """End the caller's subscription, even while its server is disconnected: no request is sent to the server
        here."""
        target = self.resolver.resolve_now(exchange.caller, Kind.RESOURCE, name)
        ref = target.ref if target.exists else None
        if ref is None or not self._gate.definitions.is_known(ref, self._gate.caller_name(exchange.caller)):
            raise not_found(Kind.RESOURCE, name)
        if (server := self.upstreams.by_id.get(ref.server)) is not None:
            server.unwatch(ref.name, exchange.caller)
        return EMPTY_OBJECT


def _keeps_changing(server: str) -> Unavailable:
    return Unavailable(server, f"{server} keeps changing; the call was not sent")


def _failure_of(problem: UpstreamError, method: str) -> CallFailure:
    """How a request of this method has failed."""
    if isinstance(problem, SessionLost):
        return CallFailure.SESSION_LOST
    if isinstance(problem, LoginLost):
        return CallFailure.LOGIN_LOST
    # No pages are shown for a completion.
    wants_pages = isinstance(problem, ServerErrorResponse) and problem.code == URL_REQUIRED and method in TARGETED
    return CallFailure.URL_REQUIRED if wants_pages else CallFailure.REFUSED


def _not_passed_on(refusal: ServerErrorResponse, required: Raw) -> UpstreamError:
    """The error for a client that declares what a server requires, which the server was not told."""
    server, said = refusal.server, f": {refusal.message}" if refusal.message else ""
    if are_passed_on(required):
        text = f"{server} needs to ask the client for something that it is not allowed to ask for"
        return Forbidden(server, text + said)
    text = f"{server} needs a client capability that Colonnade does not pass on"
    return ServerErrorResponse(server, INTERNAL_ERROR, text + said, refusal.data)


def failed_call(failure: UpstreamError) -> Answered:
    """A server's failure as the result of a tool, for the model to read."""
    return Answered(encode({"content": [{"type": "text", "text": failure.message}], "isError": True}))
