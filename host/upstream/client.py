"""The client of one connected server: sends permitted calls in the server's dialect and returns their results."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import partial
from typing import Protocol

import trio
from msgspec import Raw

from config import ServerSpec
from host.catalog import Entry
from host.errors import (
    ColonnadeError,
    HeaderMismatch,
    Interrupted,
    LoginLost,
    MissingAbility,
    ProtocolViolation,
    ServerErrorResponse,
    SessionLost,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedVersion,
    UpstreamError,
    copy_of,
)
from host.exchange import Answer, Answered, Caller, ClientHandle, MrtrRound
from host.jsonrpc.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Id,
    Notification,
)
from host.jsonrpc.outline import outline_soon
from host.jsonrpc.raw import encode, encode_object, is_object, members
from host.jsonrpc.readable import why_unreadable_result
from host.memory import Holding, OverBudget
from host.peer.outstanding import AnswerTooLong, BrokenAnswer, PeerError
from host.peer.peer import Peer
from host.policy.gate import CallPermit, Gate
from host.policy.server_requests import holds_roots
from host.protocol.abilities import SHARED_ABILITIES, Abilities
from host.protocol.handshake import client_capabilities
from host.protocol.known_members import PROGRESS_MEMBERS
from host.protocol.log_levels import DEFAULT_LEVEL
from host.protocol.meta import PROGRESS_TOKEN, prepare_for_next_hop, progress_token
from host.protocol.methods import PROGRESS, TOOLS_CALL, Kind, with_target
from host.protocol.mrtr import RESPONSES, RETRIABLE_METHODS, STATE, with_retry
from host.protocol.negotiated import NegotiatedServer
from host.protocol.param_headers import headers_for
from host.protocol.server_requests import (
    URL_REQUIRED,
    ServerRequestRejected,
    adapt_url_elicitations,
    capability_names,
)
from host.protocol.stateless import (
    CACHEABLE,
    COMPLETE,
    INPUT_REQUIRED,
    STALE,
    TASK,
    freshness_of,
    result_type_of,
    strip_hop_fields,
    with_envelope,
)
from host.protocol.tasks import TASKS_CANCEL, Support, is_created, read_created, task_params, with_task
from host.protocol.versions import SESSION, STATELESS, Era
from host.sanitize import is_light, without_directories
from host.upstream.call import CallDeadline, UpstreamCall
from host.upstream.log_levels import LogLevelSync
from host.upstream.mrtr import MrtrDriver
from host.upstream.negotiate import check_still_handshake, check_still_stateless, era_change_in, internal_request
from host.upstream.results import prepare_at_once, prepare_result, with_text
from host.upstream.server_requests import ServerMessages
from host.upstream.tasks import TASK_TTL, SendTaskRequest, TaskCall, task_requested_in
from host.version import VERSION
from host.wire.http_errors import HttpRefused
from host.wire.link import LinkLost, NoMemory
from host.worker import WorkerTimeout, run_in_worker

REPORTS_PER_SECOND = 20.0
"""Progress reports that are passed on for one call, after the first REPORT_BURST; of more only the newest are."""
REPORT_BURST = 100.0
MAX_REPORT = 8 * 1024
"""Bytes of a report; of a longer one only the numbers are passed on."""
DEFINED_BY = {
    Kind.TOOL: (Kind.TOOL,),
    Kind.PROMPT: (Kind.PROMPT,),
    Kind.RESOURCE: (Kind.RESOURCE, Kind.TEMPLATE),
    Kind.TEMPLATE: (Kind.TEMPLATE,),
}
"""The lists that have the definition of an entry of this kind."""
ERA_CHECK_PAUSE = 5.0
"""Seconds between two checks of a server's era."""
ERA_DOUBT_CODES = (UnsupportedVersion.code, INVALID_REQUEST, -32000, -32001)
"""Errors of a stateless server that suggest another era: an unsupported version, and the errors by which handshake
servers refuse a request without a session."""
TASK_REQUIRED_CODES = (METHOD_NOT_FOUND, INVALID_REQUEST)
"""Errors of a server whose tool must be called as a task: 2025-11-25, "Tasks", names one for the tool and another one
for the type of request. Such a call was not executed."""


class ServerLists(Protocol):
    """The lists of a client's server, which the catalog keeps. Implemented by `source_lists.py`."""

    def tool(self, name: str) -> Entry | None: ...

    def refresh(self, kind: Kind) -> None: ...

    async def reread_tools(self) -> None: ...

    def are_read(self, kinds: Iterable[Kind]) -> bool: ...

    async def wait_until_read(self, kinds: Iterable[Kind]) -> None: ...

    def on_hearing_changed(self) -> None: ...

    def hold(self, drop: Callable[[], None]) -> Holding: ...


class Client:
    """The client of one connected server."""

    def __init__(
        self,
        peer: Peer[UpstreamCall],
        negotiated: NegotiatedServer,
        spec: ServerSpec,
        server_messages: ServerMessages,
        gate: Gate,
        lists: ServerLists,
    ) -> None:
        self.server = spec.id
        self.negotiated = negotiated
        self._is_stateless = negotiated.era is STATELESS
        self.peer = peer
        self._timeout, self._total, self._longest_wait = spec.timeout, spec.longest_call, spec.longest_wait
        self._asks_for_progress = spec.longest_call > spec.timeout
        """Whether progress makes a difference to a call of a tool whose client wants none: many servers report it only
        if they are asked."""
        self._task_ttl = max(TASK_TTL, int(spec.longest_call * 1000))
        self._server_messages = server_messages
        self._gate = gate
        self._lists = lists
        self._capabilities = self._capabilities_for(SHARED_ABILITIES, None)
        self._call_count = 0
        self._call_ended = trio.lowlevel.ParkingLot()
        self._now = trio.lowlevel.current_clock().current_time  # in fewer steps than trio.current_time
        self._last_used = self._now()
        self._orphans: list[Raw] = []
        self._orphaned = trio.Event()
        self.era_doubted = trio.Event()
        """Set when a response suggests that the server's era has changed: `detect_era_change` then checks it."""
        self._heard_lists: frozenset[str] = frozenset()
        self.log_level_sync: LogLevelSync | None = None
        """Keeps the log level of the connection; None if the server has none."""
        self.on_tool_error: Callable[[Raw], None] | None = None
        """Called with each result of a tool that says that the call failed."""

    @property
    def idle_seconds(self) -> float:
        """Seconds since the end of the last call; 0 while a call is in flight."""
        return 0.0 if self._call_count else trio.current_time() - self._last_used

    @property
    def heard_lists(self) -> frozenset[str]:
        """The notifications of changed lists that a stateless server sends to this connection now."""
        return self._heard_lists

    @heard_lists.setter
    def heard_lists(self, heard: frozenset[str]) -> None:
        if heard != self._heard_lists:
            self._heard_lists = heard
            self._lists.on_hearing_changed()

    def redact(self, text: str) -> str:
        """A text about the server without its secrets."""
        return self._server_messages.redact(text)

    async def wait_idle(self) -> None:
        """Wait until no call is in flight."""
        while self._call_count:
            await self._call_ended.park()

    async def detect_era_change(self) -> None:
        """Check the server's era when there is doubt, until cancelled. Ends the connection if the era has changed, and
        that of a stateless server that cannot be reached, but only when no call is in flight: the server may still
        respond to those."""
        while True:
            await self.era_doubted.wait()
            self.era_doubted = trio.Event()
            problem: LinkLost | None
            if self._is_stateless:
                problem = await check_still_stateless(self.peer, self._capabilities)
            else:
                problem = await check_still_handshake(self.peer)
            if problem is not None and (problem.answered or not self._call_count):
                self.peer.connection_lost(problem)
                return
            if problem is not None:
                self.era_doubted.set()
            await trio.sleep(ERA_CHECK_PAUSE)

    def _end_with_session(self, problem: LinkLost) -> None:
        """End the connection at once if the failure of a request shows that its session is over."""
        if problem.ended_session:
            lost = copy_of(problem)
            lost.nothing_begun = False  # this is not known of other requests
            self.peer.connection_lost(lost)

    def _doubt_era(self, problem: PeerError | BrokenAnswer | LinkLost) -> None:
        if _suggests_era_change(problem, self.negotiated.era):
            self.era_doubted.set()

    async def cancel_orphaned_tasks(self) -> None:
        """Cancel, until this is cancelled, the tasks that the server created for calls that had already been cancelled
        (2025-11-25, "Cancellation": a task is cancelled with `tasks/cancel`)."""
        while True:
            await self._orphaned.wait()
            self._orphaned = trio.Event()
            while self._orphans:
                with trio.move_on_after(self._longest_wait), suppress(PeerError, BrokenAnswer, LinkLost):
                    await self.internal_request(TASKS_CANCEL, self._orphans.pop())

    def _take_orphan(self, result: Raw) -> None:
        try:
            if is_created(result, extension=self._is_stateless) and self.negotiated.cancels_tasks:
                self._orphans.append(task_params(read_created(result, extension=self._is_stateless).id))
                self._orphaned.set()
        except ValueError:
            return  # not a task that can be cancelled

    async def wait_lost(self) -> None:
        """Wait until the connection has ended, and whoever keeps it has handled that."""
        await self.peer.ended.wait()
        await trio.lowlevel.checkpoint()  # others that waited for the event have run by then

    async def call(self, permit: CallPermit) -> Answer:
        """Send the permitted exchange to the server, and return its answer.

        Progress, log messages and server requests go to the exchange while the call runs. Progress extends the
        deadline, also if only we asked for it; a server request pauses it. Cancellation, and the deadline, cancel the
        request at the server.

        Raises:
            SessionLost: the server did not process the call, because it does not know the session.
            LoginLost: the server did not execute the call, because the login is over. The connection has ended.
            ServerErrorResponse, ProtocolViolation, TimedOut, Unavailable: the call failed; see host/errors.py.
            MissingAbility: the server passes on as its own error that this stateless caller lacks a capability.
            InvalidParams: the progress token or `_meta` is of the wrong type.
            StaleApproval, AuditUnavailable: the call may not be sent any more; see `CallPermit.dispatch`.
        """
        exchange = permit.exchange
        params = with_target(exchange.request.method, exchange.params, permit.ref.name)
        token = progress_token(params)
        if not self._lists.are_read(DEFINED_BY[permit.ref.kind]) and permit.depends_on_definition:
            with trio.move_on_after(self._longest_wait) as waiting:
                await self._lists.wait_until_read(DEFINED_BY[permit.ref.kind])
            if waiting.cancelled_caught:
                raise TimedOut(self.server, f"{self.server} did not return its changed list in time")
        if self.log_level_sync is not None:
            await self.log_level_sync.apply()
        upstream_call = UpstreamCall(exchange, CallDeadline(self._timeout, self._total, self._now(), exchange.scope))
        self._call_count += 1
        try:
            call = self._call_stateless if self._is_stateless else self._call_handshake
            with upstream_call.deadline:
                if token is None:
                    if not self._asks_for_progress or exchange.request.method != TOOLS_CALL.name:
                        return await call(permit, params, upstream_call, None)
                    own_token = self.peer.watch_progress(upstream_call.deadline.take_report)
                    try:
                        return await call(permit, params, upstream_call, own_token)
                    finally:
                        self.peer.unwatch_progress(own_token)
                with self._relaying_progress(token, upstream_call) as upstream_token:
                    return await call(permit, params, upstream_call, upstream_token)
            raise timed_out(self.server, trio.current_time() - upstream_call.deadline.began)
        finally:
            self._call_count -= 1
            if not self._call_count:
                self._last_used = self._now()
                if self._call_ended:
                    self._call_ended.unpark_all()
            if upstream_call.server_requests:
                await upstream_call.close()

    @contextmanager
    def _relaying_progress(self, token: Id, upstream_call: UpstreamCall) -> Iterator[Id]:
        """A progress token for this connection, whose progress goes to the caller within the block."""
        client, sanitize = upstream_call.exchange.client, partial(self._gate.policies.sanitize, self.server)
        relay = _ProgressRelay(token, client, upstream_call.deadline, sanitize)
        with self.peer.progress_token(relay.report) as upstream_token:
            yield upstream_token
        relay.flush()

    async def internal_request(self, method: str, params: Raw | None, subject: UpstreamCall | None = None) -> Raw:
        """Send a request of Colonnade's own, and return the result unchanged.

        Raises:
            PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
        """
        try:
            return await internal_request(
                self.peer, self.negotiated.revision, self._capabilities, method, params, subject=subject
            )
        except PeerError as refusal:
            self._doubt_era(refusal)
            raise
        except LinkLost as lost:
            self._end_with_session(lost)
            raise

    async def _call_handshake(
        self, permit: CallPermit, params: dict[str, Raw], upstream_call: UpstreamCall, token: Id | None
    ) -> Answered:
        """Call a handshake server."""
        method = permit.exchange.request.method
        prepare_for_next_hop(params, token)
        params.pop(RESPONSES, None)  # which only stateless revisions have
        params.pop(STATE, None)
        permit.dispatch()
        if method == TOOLS_CALL.name and self.negotiated.runs_tasks:
            result = await self._request_with_task(permit, params, upstream_call)
        else:
            result = await self._request(method, params, upstream_call)
        outlined, tool_error = upstream_call.look_at(result)
        if tool_error:
            if self.on_tool_error is not None:
                self.on_tool_error(result)
            if upstream_call.lacked:
                result, outlined = with_text(result, self._what_it_lacked(upstream_call)), None
        return Answered(result, STALE, outlined, tool_error)

    async def _request_with_task(self, permit: CallPermit, params: dict[str, Raw], upstream_call: UpstreamCall) -> Raw:
        """Call a tool of a handshake server with tasks: as a task if the tool requires one, or if the tool and the
        caller permit one."""
        method, tool = permit.exchange.request.method, self._lists.tool(permit.ref.name)
        support = Support.FORBIDDEN if tool is None else tool.support
        takes_task = upstream_call.exchange.on_task is not None
        if not (support is Support.REQUIRED or (support is Support.OPTIONAL and takes_task)):
            try:
                return await self._request(method, params, upstream_call)
            except ServerErrorResponse as refusal:
                if refusal.code not in TASK_REQUIRED_CODES:
                    raise
            permit.dispatch()
        wanted = task_requested_in(permit.exchange) if takes_task else None
        ttl = self._task_ttl if wanted is None else wanted.ttl_ms
        result = await self._request(method, with_task(params, ttl), upstream_call)
        if not is_created(result, extension=False):
            return result
        return await self._wait_for_task(
            result, upstream_call, lambda method, params: self._request(method, params, upstream_call)
        )

    async def _call_stateless(
        self, permit: CallPermit, params: dict[str, Raw], upstream_call: UpstreamCall, token: Id | None
    ) -> Answer:
        """Call a stateless server, through all MRTR rounds."""
        exchange, method, revision = permit.exchange, permit.exchange.request.method, self.negotiated.revision
        # A stateless client goes through the rounds itself, and nothing is kept here between them.
        mrtr_round = exchange.round
        answers = state = None
        if mrtr_round is not None:
            state = mrtr_round.state
            if mrtr_round.answers is not None:
                answers = await self._filter_answers(mrtr_round.answers, upstream_call)
        may_be_task = self.negotiated.runs_tasks and method == TOOLS_CALL.name
        capabilities = self._capabilities_for(exchange.caller.abilities, exchange.caller, tasks=may_be_task)
        level = exchange.level
        if level is None and exchange.caller.era is SESSION and self.negotiated.has_logging:
            level = DEFAULT_LEVEL  # a handshake client need not set one to get messages
        stateless_params = with_envelope(
            params, revision, capabilities, level=level, client_version=VERSION, token=token
        )
        result = await self._send(permit, stateless_params, upstream_call, answers, state)
        kind = result_type_of(result)
        if kind == INPUT_REQUIRED and method in RETRIABLE_METHODS:
            driver = MrtrDriver(self.server, self._server_messages, upstream_call)
            if mrtr_round is not None:
                return await driver.relay(result)
            resend = partial(self._send, permit, stateless_params, upstream_call)
            result = await driver.drive(result, resend)
            kind = result_type_of(result)
            mrtr_round = MrtrRound(self.server)  # the result counts as retried, so it is not fresh
        if kind == TASK and may_be_task:
            result = await self._wait_for_stateless_task(result, upstream_call, capabilities)
        elif kind != COMPLETE:
            raise ProtocolViolation(self.server, f"{self.server} sent a result whose resultType is not valid here")
        outlined, tool_error = upstream_call.look_at(result)
        if tool_error and self.on_tool_error is not None:
            self.on_tool_error(result)
        if kind == TASK:
            return Answered(result, tool_error=tool_error)
        is_fresh = method in CACHEABLE and not _is_retried(mrtr_round)
        freshness = freshness_of(result) if is_fresh else STALE
        return Answered(strip_hop_fields(result), freshness, outlined, tool_error)

    def _wait_for_stateless_task(
        self, created: Raw, upstream_call: UpstreamCall, capabilities: Mapping[str, object]
    ) -> Awaitable[Raw]:
        revision = self.negotiated.revision

        def send(method: str, params: dict[str, Raw]) -> Awaitable[Raw]:
            params = with_envelope(params, revision, capabilities, level=None, client_version=VERSION, token=None)
            return self._request(method, params, upstream_call, headers_for(method, params, revision))

        return self._wait_for_task(created, upstream_call, send)

    async def _filter_answers(self, given: Mapping[str, Raw], upstream_call: UpstreamCall) -> Mapping[str, Raw]:
        """The input responses of the caller, with only those roots that the server may know."""
        answers = dict(given)
        for key, answer in answers.items():
            if is_object(answer) and holds_roots(members(answer)):
                answers[key] = await self._gate.server_requests.filter_roots(
                    self.server, answer, upstream_call.exchange.caller
                )
        return answers

    async def _wait_for_task(self, created: Raw, upstream_call: UpstreamCall, send: SendTaskRequest) -> Raw:
        task_call = TaskCall(self.server, self.negotiated, self._server_messages, upstream_call, send)
        return await task_call.wait_for_result(created)

    async def _send(
        self,
        permit: CallPermit,
        params: dict[str, Raw],
        upstream_call: UpstreamCall,
        answers: Mapping[str, Raw] | None,
        state: str | None,
    ) -> Raw:
        """Send one round to a stateless server. If the server refuses a header, the tools are read
        again and the request is sent once more: the definition may have changed (2026-07-28, "Streamable HTTP / Custom
        Headers from Tool Parameters")."""
        method = permit.exchange.request.method
        params = with_retry(params, answers, state)
        permit.dispatch()
        try:
            return await self._request(method, params, upstream_call, self._headers(permit, params))
        except ServerErrorResponse as refusal:
            if refusal.code == INVALID_PARAMS:  # the server may not know the tool any more
                self._lists.refresh(Kind.TOOL)
            if refusal.code != HeaderMismatch.code or method != TOOLS_CALL.name:
                raise
        await self._lists.reread_tools()
        permit.dispatch()
        return await self._request(method, params, upstream_call, self._headers(permit, params))

    def _headers(self, permit: CallPermit, params: Mapping[str, Raw]) -> tuple[tuple[str, str], ...]:
        """The headers of a request, from the definition as it is now."""
        tool = self._lists.tool(permit.ref.name) if permit.ref.kind is Kind.TOOL else None
        param_headers = () if tool is None else tool.param_headers or ()
        return headers_for(permit.exchange.request.method, params, self.negotiated.revision, param_headers)

    def _capabilities_for(
        self, abilities: Abilities, caller: Caller | None, *, tasks: bool = False
    ) -> dict[str, object]:
        """The client capabilities to declare for a caller with these abilities, None: for any. Tasks are declared for
        every caller: for one that does not support them, Colonnade waits for the task."""
        asked = self._gate.server_requests.usable_abilities(self.server, abilities, caller)
        return client_capabilities(asked, roots_change=False, apps=asked.apps, tasks=tasks)

    async def _request(
        self,
        method: str,
        params: dict[str, Raw],
        upstream_call: UpstreamCall,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Raw:
        unasked = self.peer.unasked_count
        try:
            on_late_result = self._take_orphan if method == TOOLS_CALL.name and self.negotiated.runs_tasks else None
            sent = params if all(map(str.isascii, params)) else encode_object(params)
            result = await self.peer.request(
                method, sent, upstream_call, headers, on_late_result, upstream_call.keep_outline
            )
        except (PeerError, BrokenAnswer, LinkLost) as problem:
            if isinstance(problem, LinkLost) and problem.nothing_begun:
                # The call has begun if this is a request about its task. What the server sent meanwhile, but responses
                # to others, may have been about this request, if it knew the session then.
                is_call = method == upstream_call.exchange.request.method and not upstream_call.has_begun
                is_silent = self.peer.unasked_count == unasked or not problem.ended_session
                problem.nothing_begun = is_call and is_silent
                self._end_with_session(problem)
                if problem.nothing_begun and problem.ended_session:
                    raise SessionLost(self.server, f"{self.server} did not process the request: {problem}") from None
                if problem.nothing_begun and problem.lost_login:
                    await self.wait_lost()
                    raise LoginLost(self.server, f"{self.server} did not execute the request: {problem}") from None
            raise self._error(problem, method, upstream_call) from None
        upstream_call.has_begun = True
        if not is_object(result):
            raise ProtocolViolation(self.server, f"{self.server} sent a result that is not an object")
        sanitizes = self._gate.policies.sanitizes(self.server)
        kept = upstream_call.outlined
        outlined = kept[1] if kept is not None and kept[0] is result else outline_soon(result)
        found = prepare_at_once(result, outlined, sanitizes=sanitizes)
        why, prepared = await self._prepare_in_worker(result, sanitizes) if found is None else found
        if why is not None:
            raise ProtocolViolation(self.server, f"{self.server} sent a result that clients could not read: {why}")
        if prepared is not None:
            upstream_call.tool_error = None  # names of members may be other ones
            return Raw(prepared)
        upstream_call.outlined = result, outlined
        return result

    def _error(
        self, problem: PeerError | BrokenAnswer | LinkLost, method: str, upstream_call: UpstreamCall
    ) -> ColonnadeError:
        """The error for the client whose request failed with `problem`. Has the server's era checked if that suggests
        another one."""
        self._doubt_era(problem)
        error = as_upstream_error(self.server, problem, method)
        if isinstance(problem, LinkLost):
            self._server_messages.note_said(problem, upstream_call)
        if not isinstance(problem, PeerError):  # which came as a message, where only some secrets are withheld
            error.message = self.redact(error.message)
        error.message = self._gate.policies.sanitize_text(self.server, error.message)
        error.data = None if error.data is None else self._prepare_error_data(error.data)
        if upstream_call.lacked and isinstance(error, ServerErrorResponse):
            for refusal in upstream_call.lacked:
                if error.code == refusal.code and refusal.why in error.message:  # the server passes it on as its own
                    return _missing_ability(self.server, refusal)
            error.message = f"{error.message} ({self._what_it_lacked(upstream_call)})"
        if error.code == URL_REQUIRED:
            caller = upstream_call.exchange.caller
            # Stateless clients have no elicitation ids and get no notification of completion.
            rename = (
                str if caller.era is STATELESS else partial(self._server_messages.elicitations.make_client_id, caller)
            )
            error.data = adapt_url_elicitations(error.data, rename, self._server_messages.title)
        return error

    def _what_it_lacked(self, upstream_call: UpstreamCall) -> str:
        """A sentence that is added to a failure of the server. It never replaces one: a server may ask for more than
        it needs, and fail for another reason."""
        names = [name for each in upstream_call.lacked for name in capability_names(each.missing_capability or {})]
        return f"{self.server} asked for what this request does not declare: {', '.join(names)}"

    def _prepare_error_data(self, data: Raw) -> Raw | None:
        """The data of an error for the client; None if they are unreadable or too large to be sanitized here."""
        if why_unreadable_result(data) is not None or (
            self._gate.policies.sanitizes(self.server) and not is_light(bytes(data))
        ):
            return None
        return self._gate.policies.sanitize(self.server, data)

    async def _prepare_in_worker(self, result: Raw, sanitizes: bool) -> tuple[str | None, bytes | None]:
        """`prepare_result` of a heavy result in another process, charged to the server meanwhile.

        Raises:
            TooLarge: there is no memory for the result.
        """

        def drop() -> None:
            holding.release()
            checking.cancel("its memory is needed elsewhere")

        with suppress(OverBudget), trio.CancelScope() as checking, self._lists.hold(drop) as holding:
            holding.grow(len(result))
            try:
                return await run_in_worker(
                    partial(prepare_result, sanitizes=sanitizes), result, fall_back_to_thread=False
                )
            except WorkerTimeout:
                return "checking it took too long", None
        raise as_upstream_error(self.server, NoMemory())


def as_upstream_error(
    server: str, problem: PeerError | BrokenAnswer | LinkLost, method: str | None = None
) -> UpstreamError:
    """The error for a client whose request to a server failed with `problem`."""
    if isinstance(problem, PeerError):
        return ServerErrorResponse(server, problem.error.code, problem.error.message, problem.error.data)
    if isinstance(problem, AnswerTooLong) or (isinstance(problem, LinkLost) and problem.too_large):
        return TooLarge(server, f"{server} executed the request, but its response cannot be passed on: {problem}")
    if isinstance(problem, BrokenAnswer):
        return ProtocolViolation(server, f"{server} sent an invalid response: {problem}")
    why = without_directories(str(problem))
    if problem.nothing_begun:
        return Unavailable(server, f"{server} could not be reached: {why}")
    lost = f"the connection to {server} was lost during the request: {why}"
    if isinstance(problem, HttpRefused):
        lost = f"{server} failed during the request: {why}"
    if method == TOOLS_CALL.name:
        return Interrupted(server, f"{lost}; the tool may have run")
    return Unavailable(server, lost)


def timed_out(server: str, seconds: float) -> TimedOut:
    return TimedOut(server, f"{server} did not respond within {seconds:.0f} s")


def _suggests_era_change(problem: PeerError | BrokenAnswer | LinkLost, era: Era) -> bool:
    """Whether the server's era may have changed, or a stateless server is about to end. A check follows, because the
    response to one call must not end the connection of all clients."""
    if era is SESSION:
        return isinstance(problem, PeerError) and era_change_in(problem) is not None
    if isinstance(problem, PeerError):
        return problem.error.code in ERA_DOUBT_CODES
    return isinstance(problem, HttpRefused) or (
        isinstance(problem, LinkLost) and (problem.answered or problem.nothing_begun)
    )


def _missing_ability(server: str, refusal: ServerRequestRejected) -> MissingAbility:
    """The error for a stateless caller, which can repeat the request with the capability (2026-07-28, "Error
    Codes")."""
    missing = refusal.missing_capability or {}
    text = (
        f"{server} needs a client capability that the request does not declare: {', '.join(capability_names(missing))}"
    )
    return MissingAbility(text, data=encode({"requiredCapabilities": missing}))


def _is_retried(mrtr_round: MrtrRound | None) -> bool:
    return mrtr_round is not None and (
        mrtr_round.server is not None or mrtr_round.answers is not None or mrtr_round.state is not None
    )


class _ProgressRelay:
    """Passes the progress of one call on to its client, under the client's token, and extends the call's deadline."""

    def __init__(self, token: Id, client: ClientHandle, deadline: CallDeadline, sanitize: Callable[[Raw], Raw]) -> None:
        self._sanitize = sanitize
        self._token = encode(token)
        self._client = client
        self._deadline = deadline
        self._pending: dict[str, Raw] | None = None
        self._allowance = REPORT_BURST
        self._counted_at = trio.current_time()

    def report(self, params: dict[str, Raw]) -> None:
        """Handle one report."""
        if not self._deadline.take_report(params):
            return
        if PROGRESS_MEMBERS.twin_in(params) is not None:
            return
        if sum(map(len, params.values())) > MAX_REPORT:
            params = {name: params[name] for name in ("progress", "total") if name in params}
        now = trio.current_time()
        self._allowance = min(self._allowance + (now - self._counted_at) * REPORTS_PER_SECOND, REPORT_BURST)
        self._counted_at = now
        self._pending = params
        if self._allowance >= 1:
            self._allowance -= 1
            self.flush()

    def flush(self) -> None:
        """Pass on the newest report, if it is pending."""
        if self._pending is not None:
            params = self._sanitize(encode_object({**self._pending, PROGRESS_TOKEN: self._token}))
            self._client.notify(Notification(PROGRESS, params))
            self._pending = None
