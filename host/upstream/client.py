"""The client of one connected server, from the handshake to the end of the connection: what is asked of it goes through
`task_call`, and only with a permit."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial

import trio
from msgspec import Raw

from host.catalog import Entry
from host.errors import (
    ColonnadeError,
    HeaderMismatch,
    MissingAbility,
    ProtocolViolation,
    ServerErrorResponse,
    TimedOut,
    TooLarge,
    Unavailable,
    UnsupportedVersion,
    UpstreamError,
)
from host.exchange import Answer, Answered, ClientHandle, MrtrRound
from host.jsonrpc.messages import (
    INVALID_PARAMS,
    INVALID_REQUEST,
    METHOD_NOT_FOUND,
    Id,
    Notification,
)
from host.jsonrpc.raw import encode, encode_object, is_object, members, value
from host.jsonrpc.readable import why_unreadable_result
from host.memory import HoldingFactory, OverBudget
from host.peer.outstanding import AnswerTooLong, BrokenAnswer, PeerError
from host.peer.peer import Peer
from host.policy.gate import CallPermit, Gate
from host.protocol.abilities import ALL_ABILITIES, Abilities
from host.protocol.handshake import client_capabilities
from host.protocol.meta import PROGRESS_TOKEN, prepare_for_next_hop, progress_token
from host.protocol.methods import PROGRESS, TOOLS_CALL, Kind, with_target
from host.protocol.mrtr import RETRIABLE_METHODS, with_retry
from host.protocol.negotiated import NegotiatedServer
from host.protocol.param_headers import headers_for
from host.protocol.server_requests import URL_REQUIRED, adapt_url_elicitations
from host.protocol.stateless import (
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
from host.sanitize import is_light
from host.upstream.call import CallDeadline, UpstreamCall
from host.upstream.log_levels import LogLevelSync
from host.upstream.mrtr import MrtrDriver
from host.upstream.negotiate import check_still_handshake, check_still_stateless, era_change_in, internal_request
from host.upstream.results import is_heavy_result, prepare_result
from host.upstream.server_requests import ServerMessages
from host.upstream.tasks import TASK_TTL, SendTaskRequest, TaskCall
from host.version import VERSION
from host.wire.link import LinkLost, NoMemory
from host.worker import WorkerTimeout, run_in_worker

REPORTS_PER_SECOND = 20.0
"""Progress reports that are passed on for one call, after the first REPORT_BURST; a server that sends more is heard
less."""
REPORT_BURST = 100.0
MAX_REPORT = 8 * 1024
"""Bytes of a report; of a longer one only the numbers are passed on."""
DEFINED_BY = {
    Kind.TOOL: (Kind.TOOL,),
    Kind.PROMPT: (Kind.PROMPT,),
    Kind.RESOURCE: (Kind.RESOURCE, Kind.TEMPLATE),
    Kind.TEMPLATE: (Kind.TEMPLATE,),
}
"""The lists that have the definition of an entry."""
ERA_CHECK_PAUSE = 5.0
"""Seconds before a server may be doubted again."""
ERA_DOUBT_CODES = (UnsupportedVersion.code, INVALID_REQUEST, -32000, -32001)
"""What servers of sessions say to a request without one, besides what a stateless server says that has changed."""
TASK_REQUIRED_CODES = (METHOD_NOT_FOUND, INVALID_REQUEST)
"""What a server says whose tool must be called as a task (2025-11-25, "Tasks", which names the one for the tool and the
other for the type of request). Nothing was carried out then."""


@dataclass(frozen=True, slots=True)
class ServerLists:
    """What a client must know of the lists of its server: a `tool` by its own name. `mark_tools_changed` has the tools
    listed anew soon, since the server does not know one of them; `reread_tools` at once, since it wants other headers
    for one; `wait_until_read` waits while lists of these kinds are marked as changed, until they have been read. `hold`
    charges the server for what it sent."""

    tool: Callable[[str], Entry | None]
    mark_tools_changed: Callable[[], None]
    reread_tools: Callable[[], Awaitable[None]]
    wait_until_read: Callable[[Iterable[Kind]], Awaitable[None]]
    hold: HoldingFactory


class Client:
    """One connected server."""

    def __init__(
        self,
        server: str,
        peer: Peer[UpstreamCall],
        negotiated: NegotiatedServer,
        timeout: float,
        server_messages: ServerMessages,
        gate: Gate,
        lists: ServerLists,
    ) -> None:
        self.server = server
        self.negotiated = negotiated
        self.peer = peer
        self._timeout = timeout
        self._server_messages = server_messages
        self._gate = gate
        self._lists = lists
        self._capabilities = self._capabilities_for(ALL_ABILITIES)
        self._call_count = 0
        self._call_ended = trio.lowlevel.ParkingLot()
        self._orphans: list[Raw] = []
        self._orphaned = trio.Event()
        self.era_doubted = trio.Event()
        """Set when the server answers as one of the other kind would: it is then asked by ourselves."""
        self.log_level_sync: LogLevelSync | None = None
        """Of its log messages, where it has a level for the connection."""

    async def wait_idle(self) -> None:
        """Wait until it works on no request of anybody."""
        while self._call_count:
            await self._call_ended.park()

    async def detect_era_change(self) -> None:
        """Ask the server again who it is when there is doubt, until cancelled. One that has become another is lost; a
        stateless one that cannot be reached is, too, once it works on nothing: it may still answer what it has."""
        while True:
            await self.era_doubted.wait()
            self.era_doubted = trio.Event()
            problem: LinkLost | None
            if self.negotiated.revision.stateless:
                problem = await check_still_stateless(self.peer, self._capabilities)
            else:
                problem = await check_still_handshake(self.peer)
            if problem is not None and (problem.answered or not self._call_count):
                self.peer.connection_lost(problem)
                return
            if problem is not None:
                self.era_doubted.set()
            await trio.sleep(ERA_CHECK_PAUSE)

    async def cancel_orphaned_tasks(self) -> None:
        """Call off the tasks that the server made of calls which were called off before it named them, until cancelled
        (2025-11-25, "Cancellation": a task is cancelled as a task)."""
        while True:
            await self._orphaned.wait()
            self._orphaned = trio.Event()
            while self._orphans:
                with trio.move_on_after(self._timeout), suppress(PeerError, BrokenAnswer, LinkLost):
                    await self.internal_request(TASKS_CANCEL, self._orphans.pop())

    def _take_orphan(self, result: Raw) -> None:
        try:
            if is_created(result, extension=self.negotiated.revision.stateless) and self.negotiated.cancels_tasks:
                self._orphans.append(task_params(read_created(result, extension=self.negotiated.revision.stateless).id))
                self._orphaned.set()
        except ValueError:
            return  # no task that could be called off

    async def call(self, permit: CallPermit) -> Answer:
        """Have the server carry out the permitted exchange, and give what it answers.

        Progress, log messages and questions go to the exchange while the call runs; progress puts the deadline off, and
        a question stops it. Cancelling this, and the deadline, call the request off at the server.

        Raises:
            ServerErrorResponse, ProtocolViolation, TimedOut, Unavailable: what became of it; see host/errors.py.
            MissingAbility: the server had to ask what this caller, who can be told so, declares no capability for.
            InvalidParams: the progress token or `_meta` is of the wrong type.
            StaleApproval, AuditUnavailable: it may not be sent any more; see `CallPermit.dispatch`.
        """
        exchange = permit.exchange
        params = with_target(exchange.request.method, exchange.params, permit.target)
        token = progress_token(params)
        started = trio.current_time()
        if permit.depends_on_definition:
            with trio.move_on_after(self._timeout) as waiting:
                await self._lists.wait_until_read(DEFINED_BY[permit.kind])
            if waiting.cancelled_caught:
                raise TimedOut(self.server, f"{self.server} did not list anew what it says has changed")
        if self.log_level_sync is not None:
            await self.log_level_sync.apply()
        upstream_call = UpstreamCall(exchange, CallDeadline(self._timeout))
        self._call_count += 1
        try:
            with upstream_call.deadline.scope, self._relaying_progress(token, upstream_call) as upstream_token:
                if self.negotiated.revision.stateless:
                    return await self._call_stateless(permit, params, upstream_call, upstream_token)
                return await self._call_handshake(permit, params, upstream_call, upstream_token)
            raise timed_out(self.server, trio.current_time() - started)
        finally:
            self._call_count -= 1
            self._call_ended.unpark_all()
            await upstream_call.close()

    @contextmanager
    def _relaying_progress(self, token: Id | None, upstream_call: UpstreamCall) -> Iterator[Id | None]:
        """The token for this hop, under which the server's progress goes to the caller within the block; None if the
        caller gave none, and so wants none."""
        if token is None:
            yield None
            return
        client, sanitize = upstream_call.exchange.client, partial(self._gate.policies.sanitize, self.server)
        relay = _ProgressRelay(token, client, upstream_call.deadline, sanitize)
        with self.peer.progress_token(relay.report) as upstream_token:
            yield upstream_token
        relay.flush()

    async def internal_request(self, method: str, params: Raw | None, subject: UpstreamCall | None = None) -> Raw:
        """Ask for something on no client's behalf: the result as it came.

        Raises:
            PeerError, BrokenAnswer, LinkLost: see `Peer.request`.
        """
        return await internal_request(
            self.peer, self.negotiated.revision, self._capabilities, method, params, subject=subject
        )

    async def _call_handshake(
        self, permit: CallPermit, params: dict[str, Raw], upstream_call: UpstreamCall, token: Id | None
    ) -> Answered:
        """The answer of a handshake server."""
        method = permit.exchange.request.method
        prepare_for_next_hop(params, token)
        params = with_retry(params, None, None)  # what only stateless revisions know is not for this server
        permit.dispatch()
        if method == TOOLS_CALL.name and self.negotiated.runs_tasks:
            result = await self._request_with_task(permit, params, upstream_call)
        else:
            result = await self._request(method, params, upstream_call)
        if upstream_call.missing_capabilities is not None and _is_error(result):
            raise _missing_capability(self.server, upstream_call.missing_capabilities)
        return Answered(result)

    async def _request_with_task(self, permit: CallPermit, params: dict[str, Raw], upstream_call: UpstreamCall) -> Raw:
        """The result of a tool that was dispatched, by way of a task where the tool needs one, or its caller takes
        one."""
        method, tool = permit.exchange.request.method, self._lists.tool(permit.target)
        support = Support.FORBIDDEN if tool is None else tool.support
        takes_task = upstream_call.exchange.on_task_created is not None
        if not (support is Support.REQUIRED or (support is Support.OPTIONAL and takes_task)):
            try:
                return await self._request(method, params, upstream_call)
            except ServerErrorResponse as refusal:
                if refusal.code not in TASK_REQUIRED_CODES:
                    raise
            permit.redispatch()
        result = await self._request(method, with_task(params, TASK_TTL), upstream_call)
        if not is_created(result, extension=False):
            return result
        return await self._wait_for_task(
            result, upstream_call, lambda method, params: self._request(method, params, upstream_call)
        )

    async def _call_stateless(
        self, permit: CallPermit, params: dict[str, Raw], upstream_call: UpstreamCall, token: Id | None
    ) -> Answer:
        """The answer of a stateless server, over all rounds that it takes."""
        exchange, method, revision = permit.exchange, permit.exchange.request.method, self.negotiated.revision
        # Whoever repeats requests goes through the rounds alone, and nothing is kept here in between.
        mrtr_round = exchange.round
        answers = None if mrtr_round is None else await self._filter_answers(mrtr_round, upstream_call)
        state = None if mrtr_round is None else mrtr_round.state
        may_be_task = self.negotiated.runs_tasks and method == TOOLS_CALL.name
        capabilities = self._capabilities_for(exchange.caller.abilities, tasks=may_be_task)
        stateless_params = with_envelope(
            params, revision, capabilities, level=exchange.level, client_version=VERSION, token=token
        )
        result = await self._send(permit, permit.dispatch, stateless_params, upstream_call, answers, state)
        kind = result_type_of(result)
        if kind == INPUT_REQUIRED and method in RETRIABLE_METHODS:
            driver = MrtrDriver(self.server, self._server_messages, upstream_call)
            if mrtr_round is not None:
                return await driver.relay(result)
            resend = partial(self._send, permit, permit.redispatch, stateless_params, upstream_call)
            result = await driver.drive(result, resend)
            kind = result_type_of(result)
            mrtr_round = MrtrRound(self.server)  # as if the caller had gone through them
        if kind == TASK and may_be_task:

            def send(method: str, params: dict[str, Raw]) -> Awaitable[Raw]:
                params = with_envelope(params, revision, capabilities, level=None, client_version=VERSION, token=None)
                return self._request(method, params, upstream_call, tuple(headers_for(method, params, revision, ())))

            return Answered(await self._wait_for_task(result, upstream_call, send))
        if kind != COMPLETE:
            raise ProtocolViolation(self.server, f"{self.server} sent a result of a type that has no place here")
        return Answered(strip_hop_fields(result), STALE if _is_retried(mrtr_round) else freshness_of(result))

    async def _filter_answers(self, mrtr_round: MrtrRound, upstream_call: UpstreamCall) -> Mapping[str, Raw] | None:
        """The answers that the caller brings, with those of its roots that the server may know: nothing else that it is
        asked is answered with an object of that member."""
        if mrtr_round.answers is None:
            return None
        answers = dict(mrtr_round.answers)
        for key, answer in answers.items():
            if is_object(answer) and "roots" in members(answer):
                answers[key] = await self._gate.server_requests.filter_roots(
                    self.server, answer, upstream_call.exchange.caller
                )
        return answers

    async def _wait_for_task(self, created: Raw, upstream_call: UpstreamCall, send: SendTaskRequest) -> Raw:
        negotiated = self.negotiated
        extension, cancels = negotiated.revision.stateless, negotiated.cancels_tasks
        task_call = TaskCall(
            self.server, self._server_messages, upstream_call, send, extension=extension, can_cancel=cancels
        )
        return await task_call.wait_for_result(created)

    async def _send(
        self,
        permit: CallPermit,
        dispatch: Callable[[], None],
        params: dict[str, Raw],
        upstream_call: UpstreamCall,
        answers: Mapping[str, Raw] | None,
        state: str | None,
    ) -> Raw:
        """One round with a stateless server, which `dispatch` of the permit lets go. The server may say that a header
        is wrong: then our list of its tools is old."""
        method = permit.exchange.request.method
        params = with_retry(params, answers, state)
        dispatch()
        try:
            return await self._request(method, params, upstream_call, self._headers(permit, params))
        except ServerErrorResponse as refusal:
            if refusal.code == INVALID_PARAMS:  # it does not know what it is asked for: our list of it may be old
                self._lists.mark_tools_changed()
            if refusal.code != HeaderMismatch.code or method != TOOLS_CALL.name:
                raise
        await self._lists.reread_tools()
        permit.redispatch()
        return await self._request(method, params, upstream_call, self._headers(permit, params))

    def _headers(self, permit: CallPermit, params: Mapping[str, Raw]) -> tuple[tuple[str, str], ...]:
        """The headers of a request that is sent now, by the definition as it is now."""
        tool = self._lists.tool(permit.target) if permit.kind is Kind.TOOL else None
        param_headers = () if tool is None else tool.param_headers or ()
        return tuple(headers_for(permit.exchange.request.method, params, self.negotiated.revision, param_headers))

    def _capabilities_for(self, abilities: Abilities, *, tasks: bool = False) -> dict[str, object]:
        """What the server is told that a caller with these abilities can be asked. That a call may become a task is
        said for every caller: who takes none waits, and we look after it."""
        asked = self._gate.server_requests.usable_abilities(self.server, abilities)
        return client_capabilities(asked, roots_change=False, apps=asked.apps, tasks=tasks)

    async def _request(
        self,
        method: str,
        params: dict[str, Raw],
        upstream_call: UpstreamCall,
        headers: tuple[tuple[str, str], ...] = (),
    ) -> Raw:
        try:
            on_late_result = self._take_orphan if method == TOOLS_CALL.name and self.negotiated.runs_tasks else None
            result = await self.peer.request(method, encode_object(params), upstream_call, headers, on_late_result)
        except (PeerError, BrokenAnswer, LinkLost) as problem:
            if _suggests_era_change(problem, stateless=self.negotiated.revision.stateless):
                self.era_doubted.set()
            error = as_upstream_error(self.server, problem)
            error.message = self._gate.policies.sanitize_text(self.server, error.message)
            error.data = None if error.data is None else self._prepare_error_data(error.data)
            if upstream_call.missing_capabilities is not None and isinstance(error, ServerErrorResponse):
                raise _missing_capability(self.server, upstream_call.missing_capabilities) from None
            if error.code == URL_REQUIRED:
                caller = upstream_call.exchange.caller
                # Who repeats requests knows no ids: nothing is kept for the notice that a visit is done.
                rename = (
                    str
                    if caller.abilities.retries
                    else partial(self._server_messages.elicitations.make_client_id, caller)
                )
                error.data = adapt_url_elicitations(error.data, rename, self._server_messages.title)
            raise error from None
        if not is_object(result):
            raise ProtocolViolation(self.server, f"{self.server} sent a result that is not an object")
        return await self._prepare_result(result)

    def _prepare_error_data(self, data: Raw) -> Raw | None:
        """The data of an error, as they are passed on; None if they cannot be."""
        if why_unreadable_result(data) is not None or (
            self._gate.policies.sanitizes(self.server) and not is_light(bytes(data))
        ):
            return None
        return self._gate.policies.sanitize(self.server, data)

    async def _prepare_result(self, result: Raw) -> Raw:
        """The result as it is passed on. One that is heavy is looked through in another process, and charged to the
        server meanwhile.

        Raises:
            ProtocolViolation: clients could not read it.
            TooLarge: there is no memory for it.
        """
        sanitizes = self._gate.policies.sanitizes(self.server)
        if is_heavy_result(result, sanitizes=sanitizes):
            why, prepared = await self._prepare_in_worker(result, sanitizes)
        else:
            why, prepared = prepare_result(result, sanitizes=sanitizes)
        if why is not None:
            raise ProtocolViolation(self.server, f"{self.server} sent a result that clients could not read: {why}")
        return result if prepared is None else Raw(prepared)

    async def _prepare_in_worker(self, result: Raw, sanitizes: bool) -> tuple[str | None, bytes | None]:
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
                return "to look through it took too long", None
        raise as_upstream_error(self.server, NoMemory())


def as_upstream_error(server: str, problem: PeerError | BrokenAnswer | LinkLost) -> UpstreamError:
    """What became of a request to a server, for whoever asked."""
    if isinstance(problem, PeerError):
        return ServerErrorResponse(server, problem.error.code, problem.error.message, problem.error.data)
    if isinstance(problem, AnswerTooLong) or (isinstance(problem, LinkLost) and problem.too_large):
        return TooLarge(server, f"{server} carried this out, but its answer cannot be passed on: {problem}")
    if isinstance(problem, BrokenAnswer):
        return ProtocolViolation(server, f"{server} sent an answer that is none: {problem}")
    if problem.nothing_begun:
        return Unavailable(server, f"{server} could not be asked: {problem}")
    return Unavailable(server, f"{server} was lost while it worked on this: {problem}")


def timed_out(server: str, seconds: float) -> TimedOut:
    return TimedOut(server, f"{server} did not answer within {seconds:.0f} s")


def _suggests_era_change(problem: PeerError | BrokenAnswer | LinkLost, *, stateless: bool) -> bool:
    """Whether the server may have been replaced by one of the other kind, or a stateless one is about to end: then it
    is asked by ourselves, which costs little. The answer to a call alone must not end the connection of all clients."""
    if not stateless:
        return isinstance(problem, PeerError) and era_change_in(problem) is not None
    if isinstance(problem, PeerError):
        return problem.error.code in ERA_DOUBT_CODES
    return isinstance(problem, LinkLost) and (problem.answered or problem.nothing_begun)


def _missing_capability(server: str, missing: Mapping[str, object]) -> ColonnadeError:
    """For a caller that can say more of itself and try again (2026-07-28, "Error Codes")."""
    text = f"{server} had to ask the client, which the request declares no capability for: {', '.join(missing)}"
    return MissingAbility(text, data=encode({"requiredCapabilities": missing}))


def _is_error(result: Raw) -> bool:
    return bytes(members(result).get("isError", b"")).strip() == b"true"


def _is_retried(mrtr_round: MrtrRound | None) -> bool:
    return mrtr_round is not None and (
        mrtr_round.server is not None or mrtr_round.answers is not None or mrtr_round.state is not None
    )


class _ProgressRelay:
    """Hands a call's progress to whoever asked, under their own token, and puts the call's deadline off."""

    def __init__(self, token: Id, client: ClientHandle, deadline: CallDeadline, sanitize: Callable[[Raw], Raw]) -> None:
        self._sanitize = sanitize
        self._token = encode(token)
        self._client = client
        self._deadline = deadline
        self._last_progress: float | None = None
        self._pending: dict[str, Raw] | None = None
        self._allowance = REPORT_BURST
        self._counted_at = trio.current_time()

    def report(self, params: dict[str, Raw]) -> None:
        """One report. Those that do not increase are dropped (2025-11-25, "Progress Flow": the value MUST increase)."""
        try:
            progress = value(params["progress"])
        except (ValueError, KeyError):
            return
        if isinstance(progress, bool) or not isinstance(progress, int | float):
            return
        if self._last_progress is not None and progress <= self._last_progress:
            return
        self._last_progress = progress
        self._deadline.extend()
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
        """Pass on the newest report, if it was held back."""
        if self._pending is not None:
            params = self._sanitize(encode_object({**self._pending, PROGRESS_TOKEN: self._token}))
            self._client.notify(Notification(PROGRESS, params))
            self._pending = None
