"""Messages that a server sends by itself: notifications, log messages, and server requests for its clients.

A server request is forwarded only if exactly one client can be its origin, on the stream of the request that it belongs
to; otherwise it is refused. The client is certain if the transport assigns the message to a request, or if the
connection serves one client alone, or if all requests that the server may be working on are from one client. A guess
could show one client's data to another one.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Hashable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import trio
from msgspec import Raw, Struct

from config import ServerSpec
from config.globs import MAX_LENGTH
from host.errors import UNCONFIRMED, ColonnadeError, InvalidParams
from host.exchange import Caller, ClientHandle
from host.journal import (
    Asking,
    InternalError,
    MessageDropped,
    RequestFailed,
    ServerRequestRefused,
    excerpt,
    observed_of,
    trace_id_of,
)
from host.jsonrpc.conversation import CANCELLED, cancelled_id
from host.jsonrpc.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ErrorBody,
    Failure,
    Id,
    Notification,
    Request,
    Success,
)
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, members, pick, string
from host.jsonrpc.twins import describe_twin
from host.peer.outstanding import ABANDONED_SECONDS, BrokenAnswer, PeerError
from host.peer.peer import InFlight, Peer, Work
from host.policy.server_requests import NOT_ALLOWED_MESSAGE
from host.protocol.abilities import NO_ABILITIES, Abilities
from host.protocol.known_members import PROGRESS_MEMBERS, twin_in_notification
from host.protocol.links import rename_in_result
from host.protocol.log_levels import with_server_name
from host.protocol.meta import PROGRESS_TOKEN, progress_token
from host.protocol.methods import (
    ELICITATION_COMPLETE,
    LIST_METHODS,
    LOG_MESSAGE,
    PING,
    PROGRESS,
    RESOURCE_UPDATED,
    Kind,
)
from host.protocol.mrtr import RETRIABLE_METHODS, elicitation_cancelled
from host.protocol.server_requests import (
    ELICIT,
    METHODS,
    SAMPLED_LINKS,
    ServerRequest,
    ServerRequestRejected,
    adapt,
    completed_elicitation_id,
    elicitation_complete,
    elicitation_id,
    refuse_unsupported,
    server_request_of,
    with_elicitation_id,
)
from host.protocol.subscriptions import ACKNOWLEDGED, without_subscription_id
from host.protocol.tasks import TASK_STATUS, TASKS_NOTIFICATION, related_task_of
from host.protocol.versions import LATEST_LEGACY, SESSION, STATELESS, Revision
from host.sanitize import quoted
from host.upstream.call import PendingServerRequest, UpstreamCall
from host.upstream.output import DroppedAnswers
from host.upstream.runtime import Runtime
from host.upstream.server_secrets import ServerSecrets
from host.wire.link import LinkLost
from host.wire.noise import (
    MAX_NEEDLESS_PER_SECOND,
    NEEDLESS_SECONDS,
    TooManyUselessMessages,
    UselessMessages,
)

ANSWER_TIMEOUT = 600.0
"""Seconds in which a client must respond to a server request."""
RETRY_ANSWER_TIMEOUT = ANSWER_TIMEOUT - 10
"""Seconds for a client that responds with a retry. Its call is kept for ANSWER_TIMEOUT, so that the server has time to
end it before."""
MAX_SERVER_REQUESTS = 8
"""Server requests that may be open for one call at once."""
MAX_ELICITATIONS = 1000
"""Elicitations in mode url that one connection remembers. For older ones, completion is not reported."""
MAX_UPDATE = 4096
"""Bytes of the params of a resource update; of larger ones only the URI is passed on. Updates wait for clients that
have no open stream, and only the URI has a meaning in them."""
MAX_LOGS_PER_SECOND = 200
LOG_SIZE = 1024
"""A log message that is sanitized counts as one more message for each so many bytes."""
NOISE_REASONS = frozenset(
    {
        "invalid message",
        "message too long",
        "notification too large",
        "request repeated",
        "request too large",
        "too many requests",
        "unexpected notification",
        "unknown id",
    }
)
"""Reasons for dropping a message that count as useless messages (`noise`)."""
NEEDLESS_REASONS = frozenset({"too many log messages", "unknown progress token"})
"""Reasons for dropping a message that count as needless messages (`noise`)."""
NEEDLESS_LIMIT = f"{MAX_NEEDLESS_PER_SECOND * NEEDLESS_SECONDS} needless messages in {NEEDLESS_SECONDS} seconds"
NOISE_SIZE = 32 * 1024
"""A useless message counts as one more for each so many bytes: reading them costs as much as handling a short one."""
READ_WEIGHT = 4
MAX_READ_SIZE = 900 * NOISE_SIZE
"""Text that is no message is read as a whole to find that out, and counts as so many times its size; never as so many
bytes that a single line ended a connection."""
NO_ROOTS = Raw(b'{"roots":[]}')
AMBIGUOUS_CALL = (
    "several requests are in flight, and it is not certain which one is meant (with isolation: per-call it would be)"
)


class UrlElicitations:
    """Elicitations in mode url: for each id of the server the clients that got it, with the id that each of them got. A
    server that several clients share may use one id for several of them. Clients that are gone are not kept."""

    def __init__(self) -> None:
        self._by_server_id: dict[str, WeakKeyDictionary[Caller, str]] = {}

    def make_client_id(self, caller: Caller, id: str) -> str:
        """The id for a client instead of the server's, because two servers may use the same id."""
        client_ids = self._by_server_id.get(id)
        if client_ids is None:
            while len(self._by_server_id) >= MAX_ELICITATIONS:
                del self._by_server_id[next(iter(self._by_server_id))]
            client_ids = self._by_server_id[id] = WeakKeyDictionary()
        return client_ids.setdefault(caller, secrets.token_urlsafe(12))

    def complete(self, id: str) -> list[tuple[Caller, str]]:
        """Remove an id of the server. Returns the clients that got it, with their own ids."""
        return list(self._by_server_id.pop(id, {}).items())


class Clients(Struct, frozen=True):
    """Whom a connection serves.

    Attributes:
        abilities: the most that any client of it may have.
        owner: returns the one client; None if there may be several.
        roots_change: whether the server will be notified of changed roots.
        caller: the caller whose log level and subscriptions it has; None: those of all callers.
        log_listeners: returns the callers that want log messages that belong to no request.
        waiting_calls: calls that wait until it is ready; it was opened for them.
    """

    abilities: Abilities
    owner: Callable[[], Caller | None]
    roots_change: bool
    caller: Caller | None = None
    log_listeners: Callable[[], Collection[Caller]] = tuple
    waiting_calls: Collection[UpstreamCall] = ()


class ChangeHandler(Protocol):
    """The change notifications of one stateless connection; see `change_stream.py`."""

    def handles(self, notice: Notification, in_flight: InFlight[UpstreamCall]) -> bool: ...

    def on_cancelled(self, id: Id, in_flight: InFlight[UpstreamCall]) -> None: ...


class ServerMessages:
    """Handles the messages of one connection of a server; the `Listener` of its peer.

    Args:
        secrets: the secrets of the server, which nobody else may see.
        on_resource_updated: called with the URI of a changed resource and the members of the notification that are
            passed on.
        on_lists_changed: called with the kinds whose lists may have changed; None if this connection does not read
            lists.
    """

    def __init__(
        self,
        spec: ServerSpec,
        runtime: Runtime,
        clients: Clients,
        secrets: ServerSecrets,
        on_resource_updated: Callable[[str, dict[str, Raw]], None],
        on_lists_changed: Callable[[list[Kind]], None] | None,
    ) -> None:
        self.clients = clients
        self.secrets = secrets
        self.on_lists_changed = on_lists_changed
        self.change_stream: ChangeHandler | None = None
        """The `subscriptions/listen` requests of a stateless connection."""
        self.revision: Revision = LATEST_LEGACY
        """The negotiated revision."""
        self.declares_roots = False
        """Whether roots were declared to the server, for the clients that have some."""
        self.elicitations = UrlElicitations()
        self.task_calls: dict[str, UpstreamCall] = {}
        """The calls of the server's tasks, by task id."""
        self.disconnect: Callable[[LinkLost], None] | None = None
        """Ends the connection."""
        self.dropped_answers = DroppedAnswers()
        self._noise = UselessMessages(trio.current_time())
        self._needless = UselessMessages(trio.current_time(), MAX_NEEDLESS_PER_SECOND, NEEDLESS_SECONDS)
        self._server = spec.id
        self.title = spec.title or spec.id
        self._gate = runtime.gate
        self._journal = runtime.journal
        self._on_resource_updated = on_resource_updated
        self._log_count = (0, 0)

    def owner_of(self, subject: UpstreamCall) -> Hashable:
        return None if subject.listens else subject.exchange.caller.key  # a server request never belongs to a listen

    def on_dropped(
        self, what: str, detail: str, size: int = 0, *, awaited: bool = False, answers: str = "", text: bytes = b""
    ) -> None:
        detail = self.redact(detail)
        said = quoted(text.decode(errors="replace"), self.redact) if text else ""
        self._journal.note(MessageDropped(self._server, what, f"{detail}: {said}" if said else detail))
        if answers:
            self.dropped_answers.add(answers, said or f"the last: {detail}")
        if what in NOISE_REASONS and not awaited:
            if what == "invalid message":
                size = min(READ_WEIGHT * size, MAX_READ_SIZE)
            self._charge_noise(1 + size // NOISE_SIZE)
        elif what in NEEDLESS_REASONS:
            self._charge_needless()

    def note_said(self, lost: LinkLost, call: UpstreamCall) -> None:
        """Tell people what the server says about a request that failed, if it says something."""
        if lost.said and (said := quoted(lost.said, self.redact, lost.speaker)):
            self._journal.note(RequestFailed(self._server, self.redact(str(lost)), said, *_whose([call])))

    def redact(self, text: str) -> str:
        """A text about the server without its secrets."""
        return self.secrets.redact(text)

    def _charge_noise(self, count: int = 1) -> None:
        if not self._noise.add(trio.current_time(), count) and self.disconnect is not None:
            self.disconnect(TooManyUselessMessages())

    def _charge_needless(self) -> None:
        if not self._needless.add(trio.current_time()) and self.disconnect is not None:
            self.disconnect(TooManyUselessMessages(NEEDLESS_LIMIT))

    # Notifications

    def on_notification(self, notice: Notification, in_flight: InFlight[UpstreamCall]) -> None:
        kinds = [listing.kind for listing in LIST_METHODS.values() if listing.list_changed == notice.method]
        change_stream = self.change_stream
        reports_change = bool(kinds) or notice.method in (RESOURCE_UPDATED, ACKNOWLEDGED)
        if notice.method != LOG_MESSAGE:  # these count beyond a limit of their own
            self._charge_needless()
        if (
            self.revision.era is STATELESS
            and reports_change
            and (change_stream is None or not change_stream.handles(notice, in_flight))
        ):
            return  # 2026-07-28, "Subscriptions": changes are sent for an open request only
        if (twin := twin_in_notification(notice)) is not None:
            self.on_dropped("invalid message", f"{notice.method}: {describe_twin(twin)}")
        elif notice.method == CANCELLED:
            id = cancelled_id(notice)
            if change_stream is not None and id is not None:
                change_stream.on_cancelled(id, in_flight)
        elif notice.method in (TASK_STATUS, TASKS_NOTIFICATION):
            return  # tasks are polled
        elif kinds:
            if self.on_lists_changed is not None:
                self.on_lists_changed(kinds)
        elif notice.method == RESOURCE_UPDATED:
            self._handle_updated(notice)
        elif notice.method == LOG_MESSAGE:
            self._handle_log(notice, in_flight)
        elif notice.method == ELICITATION_COMPLETE:
            self._handle_elicitation_complete(notice)
        else:
            self.on_dropped("unexpected notification", excerpt(notice.method))

    def _handle_updated(self, notice: Notification) -> None:
        params = notice.params or b""
        try:
            forwarded = (
                without_subscription_id(members(params))
                if len(params) <= MAX_UPDATE
                else pick(params, frozenset(("uri",)))
            )
            uri = string(forwarded["uri"])
        except (ValueError, KeyError):
            self.on_dropped("invalid message", f"{RESOURCE_UPDATED} without a uri")
            return
        if len(uri) > MAX_LENGTH:
            self.on_dropped("invalid message", f"{RESOURCE_UPDATED} with a uri of more than {MAX_LENGTH} characters")
            return
        self._on_resource_updated(uri, forwarded)

    def _handle_log(self, notice: Notification, in_flight: InFlight[UpstreamCall]) -> None:
        """Pass a log message on to the client of its request, or to all log listeners if it belongs to no request."""
        second, count = self._log_count
        now = int(trio.current_time())
        cost = 1
        if notice.params is not None and self._gate.policies.sanitizes(self._server):
            cost += len(notice.params) // LOG_SIZE
        self._log_count = now, count + cost if now == second else cost
        if self._log_count[1] > MAX_LOGS_PER_SECOND:
            self.on_dropped("too many log messages", f"more than {MAX_LOGS_PER_SECOND} in one second")
            return
        calls = self._possible_calls(in_flight, ignore_internal=True)
        if len(calls) > 1 and calls[-1].exchange.caller.era is STATELESS:
            return  # each request of a stateless client has a stream of its own, and the right one is not certain
        if calls:
            caller = calls[-1].exchange.caller
            self._send_log(self._sanitized(notice), caller, calls[-1].exchange.client)
            return
        owner = self.clients.owner()
        if owner is None and (in_flight.exact or self.revision.era is STATELESS):
            return  # it belongs to one request, which has ended or is not certain; other clients must not get it
        callers = list(self.clients.log_listeners()) if owner is None else [owner]
        if callers:
            notice = self._sanitized(notice)
        for caller in callers:
            self._send_log(notice, caller, caller.client)

    def _sanitized(self, notice: Notification) -> Notification:
        if notice.params is None:
            return notice
        return Notification(notice.method, self._gate.policies.sanitize(self._server, notice.params))

    def _send_log(self, notice: Notification, caller: Caller, client: ClientHandle) -> None:
        # At a server's own endpoint nothing is renamed.
        client.notify(with_server_name(notice, self._server) if caller.endpoint.server is None else notice)

    def _handle_elicitation_complete(self, notice: Notification) -> None:
        id = completed_elicitation_id(notice.params)
        params = self._sanitized(notice).params
        for caller, client_id in self.elicitations.complete(id) if id is not None else ():
            caller.client.notify(elicitation_complete(client_id, params))

    # Server requests

    def on_request(
        self, peer: Peer[UpstreamCall], request: Request, in_flight: InFlight[UpstreamCall]
    ) -> Work | Raw | ErrorBody:
        answer = self._begin_request(peer, request, in_flight)
        if isinstance(answer, Raw | ErrorBody):
            # A request that nobody is asked about costs its server nothing, so that it counts, and pings do too.
            self._charge_noise(1 + len(request.params or b"") // NOISE_SIZE)
        return answer

    def refuses(self, method: str) -> ErrorBody | None:
        if (unknown := self._refuses_method(method)) is not None:
            return unknown
        if not any(self._gate.server_requests.allows(self._server, kind, None) for kind in METHODS[method]):
            return ErrorBody(METHOD_NOT_FOUND, NOT_ALLOWED_MESSAGE)
        return None

    def _refuses_method(self, method: str) -> ErrorBody | None:
        """The error for a request that no client would answer, whatever the rules say."""
        if self.revision.era is STATELESS:
            # A stateless server puts its requests into results, whose client is certain.
            return ErrorBody(METHOD_NOT_FOUND, f"{self.revision.name} has no requests to clients")
        return None if method in METHODS else ErrorBody(METHOD_NOT_FOUND, "this client does not offer that method")

    def _begin_request(
        self, peer: Peer[UpstreamCall], request: Request, in_flight: InFlight[UpstreamCall]
    ) -> Work | Raw | ErrorBody:
        if request.method == PING:
            return EMPTY_OBJECT
        if (unknown := self._refuses_method(request.method)) is not None:
            return unknown
        try:
            parsed = server_request_of(request.method, request.params)
            assert parsed is not None
            server_request, params = parsed
            refuse_unsupported(server_request, self.revision)
            if not self._gate.server_requests.allows(self._server, server_request, None):
                code = INVALID_PARAMS if server_request is ServerRequest.URL else METHOD_NOT_FOUND
                calls = self._possible_calls(in_flight)
                raise self._journaled_rejection(server_request, code, NOT_ALLOWED_MESSAGE, calls)
            return self._route_request(peer, request, server_request, params, in_flight)
        except ServerRequestRejected as refusal:
            return ErrorBody(refusal.code, refusal.why)

    def _route_request(
        self,
        peer: Peer[UpstreamCall],
        request: Request,
        server_request: ServerRequest,
        params: dict[str, Raw],
        in_flight: InFlight[UpstreamCall],
    ) -> Work | Raw:
        """Find the client of a server request. From now on the server request ends with the calls it belongs to."""
        task_call = self.task_calls.get(related_task_of(request.params) or "")
        calls = self._possible_calls(in_flight) if task_call is None else [task_call]
        owner = self.clients.owner()
        if len(calls) > 1 and any(upstream_call.exchange.caller.era is STATELESS for upstream_call in calls):
            if server_request is ServerRequest.ROOTS:
                return NO_ROOTS
            # A stateless client gets the server request in the response to one of its requests. In the wrong one it
            # would appear under another tool's name and delay a call that it does not belong to.
            raise self._journaled_rejection(server_request, INVALID_PARAMS, AMBIGUOUS_CALL, calls)
        if calls:
            caller = calls[-1].exchange.caller
        elif server_request is ServerRequest.ROOTS and owner is not None and owner.abilities is NO_ABILITIES:
            return NO_ROOTS  # a client without a session gets no requests outside a call
        elif owner is not None and (
            server_request is ServerRequest.ROOTS or not (in_flight.abandoned_owners or in_flight.is_over)
        ):
            caller = owner  # but not if the server request may belong to a call that has ended or was just cancelled
        elif server_request is ServerRequest.ROOTS:
            return NO_ROOTS  # servers request roots right after the handshake, when there may be no client yet
        else:
            raise self._journaled_rejection(server_request, INVALID_PARAMS, self._why_uncertain(in_flight))
        if server_request is ServerRequest.ROOTS and self.declares_roots and not caller.abilities.roots:
            return NO_ROOTS  # what was declared for any client is kept for this one, which has none
        pending_requests = {open_request for call in calls for open_request in call.server_requests}
        if calls and len(pending_requests) >= MAX_SERVER_REQUESTS * len(calls):
            why = f"more than {MAX_SERVER_REQUESTS} open server requests for one call"
            raise self._journaled_rejection(server_request, INVALID_PARAMS, why, calls)
        try:
            adapted = self._adapt(server_request, params, caller)
            token = progress_token(params)
        except InvalidParams as problem:
            raise ServerRequestRejected(INVALID_PARAMS, problem.message) from None
        except ServerRequestRejected as refusal:
            if calls and caller.era is STATELESS and refusal.missing_capability is not None:
                calls[-1].note_lacked(refusal)
            raise
        if server_request is ServerRequest.URL:
            adapted = with_elicitation_id(adapted, self.elicitations.make_client_id(caller, elicitation_id(adapted)))
        retries = bool(calls) and _client_retries(calls[-1])
        asking = self._observe(request.method, params, request.id, calls[-1] if calls else None)

        def sender(pending: PendingServerRequest) -> Callable[[], Awaitable[Raw]]:
            method, about = request.method, in_flight.about
            send = partial(_request_client, peer, pending, method, adapted, token, about, retries, asking)
            return partial(self._admit_and_send, server_request, adapted, caller, send, asking)

        pending = PendingServerRequest(calls, caller.client)
        send_outside_call = None
        if (
            server_request is ServerRequest.ROOTS
            and calls
            and owner is not None
            and task_call is None
            and not in_flight.exact
        ):
            # Servers request roots at their start, beside a call that may end long before the response comes.
            send_outside_call = None if caller.era is STATELESS else sender(PendingServerRequest([], owner.client))
        work = partial(self._while_pending, pending, sender(pending), send_outside_call)
        return work if asking is None else partial(_observed, asking, work)

    def _observe(
        self, method: str, params: Mapping[str, Raw], id: Id | None, call: UpstreamCall | None
    ) -> Asking | None:
        """A request of the server as it is observed, if it is; see `Observer.asking`."""
        if (observer := self._journal.observer) is None:
            return None
        during = None if call is None else call.exchange.request
        return observer.asking(self._server, self.revision.name, method, params, id, during)

    def adapt_request(self, parsed: tuple[ServerRequest, dict[str, Raw]], call: UpstreamCall) -> dict[str, Raw]:
        """The params of an input request of a stateless server, adapted to the caller of the call.

        Raises:
            ServerRequestRejected: the caller does not support it, or consent does not permit it.
        """
        server_request, params = parsed
        caller = call.exchange.caller
        if not self._gate.server_requests.allows(self._server, server_request, caller):
            raise self._journaled_rejection(server_request, INVALID_PARAMS, NOT_ALLOWED_MESSAGE, [call])
        adapted = self._adapt(server_request, params, caller)
        if server_request is ServerRequest.URL and caller.era is SESSION:  # stateless revisions have no ids
            adapted = with_elicitation_id(adapted, secrets.token_urlsafe(12))
        return adapted

    async def admit(
        self, server_request: ServerRequest, method: str, params: dict[str, Raw], call: UpstreamCall
    ) -> dict[str, Raw]:
        """Wait until an adapted input request may be sent to the stateless caller of the call, whose response comes
        with its retry. Returns the params with which it is sent.

        Raises:
            ColonnadeError: it may not be sent; see `ServerRequests.admit`.
        """
        asking = self._observe(method, params, None, call)

        async def hand_on() -> Raw:
            nonlocal params
            admitted = self._gate.server_requests.admit(
                self._server, server_request, params, call.exchange.caller, asking
            )
            with self._gate.server_requests.dispatch(await admitted) as record:
                record.end("handed on")
            if asking is not None:
                params = asking.sent(params)
            return EMPTY_OBJECT

        await (hand_on() if asking is None else _observed(asking, hand_on))
        return params

    async def forward(
        self, call: UpstreamCall, server_request: ServerRequest, method: str, params: dict[str, Raw]
    ) -> Raw:
        """Send an adapted server request to the client of `call`, and return its response unchanged. The deadline of
        the call is paused meanwhile.

        Raises:
            PeerError: the client refused, or did not respond.
        """
        pending = PendingServerRequest([call], call.exchange.client)
        asking = self._observe(method, params, None, call)
        send = partial(_request_client, None, pending, method, params, None, None, _client_retries(call), asking)
        admit_and_send = partial(self._admit_and_send, server_request, params, call.exchange.caller, send, asking)
        work = partial(self._while_pending, pending, admit_and_send)
        return await (work() if asking is None else _observed(asking, work))

    async def _admit_and_send(
        self,
        server_request: ServerRequest,
        params: dict[str, Raw],
        caller: Caller,
        send: Callable[[], Awaitable[Raw]],
        asking: Asking | None,
    ) -> Raw:
        """Admit a server request, send it, and return the client's response; of roots, only those that the server may
        know."""
        try:
            with self._gate.server_requests.dispatch(
                await self._gate.server_requests.admit(self._server, server_request, params, caller, asking)
            ):
                answer = await send()
            return (
                answer
                if server_request is not ServerRequest.ROOTS
                else await self._gate.server_requests.filter_roots(self._server, answer, caller)
            )
        except ColonnadeError as refusal:
            self._charge_noise()
            self._journal.note(
                ServerRequestRefused(
                    self._server,
                    f"{server_request.value} request",
                    excerpt(refusal.message),
                    caller.name,
                    trace_id_of(asking),
                )
            )
            raise PeerError(ErrorBody(refusal.code, refusal.message, refusal.data)) from None

    def _adapt(self, server_request: ServerRequest, params: dict[str, Raw], caller: Caller) -> dict[str, Raw]:
        checked = self._gate.server_requests.check(self._server, server_request, params)
        adapted = adapt(server_request, checked, caller.abilities, self.title)
        if server_request is ServerRequest.SAMPLING and caller.endpoint.server is None:
            return self._with_outward_links(adapted)
        return adapted

    def _with_outward_links(self, params: dict[str, Raw]) -> dict[str, Raw]:
        """The params of a sampling request with outward URIs in its tool results, so that the client can use them."""
        outward = partial(self._gate.policies.views.names.outward_uri, self._server)
        sampled = encode_object(params)
        return members(rename_in_result(sampled, SAMPLED_LINKS, outward, sampled))

    def _possible_calls(
        self, in_flight: InFlight[UpstreamCall], *, ignore_internal: bool = False
    ) -> list[UpstreamCall]:
        """The calls in flight that a message may belong to, all of one client; none if the client is not certain.

        Args:
            ignore_internal: do not count requests of Colonnade's own. Their log messages have no client's data; a
                server request that belongs to one must be refused.
        """
        if in_flight.exact:
            return [upstream_call for upstream_call in in_flight.subjects if not upstream_call.is_internal]
        owner = self.clients.owner()
        if owner is not None:
            own = [origin for origin in in_flight.subjects if origin.exchange.caller.key == owner.key]
            return own or list(self.clients.waiting_calls)
        calls = [call for call in in_flight.subjects if not call.listens and not (ignore_internal and call.is_internal)]
        caller_keys = in_flight.abandoned_owners.union(call.exchange.caller.key for call in calls)
        return calls if len(caller_keys) == 1 and not any(origin.is_internal for origin in calls) else []

    def _why_uncertain(self, in_flight: InFlight[UpstreamCall]) -> str:
        if in_flight.exact:
            return "the request that it belongs to has ended"
        if not in_flight.subjects:
            return "no client's request is in flight"
        caller_keys = {call.exchange.caller.key for call in in_flight.subjects if not call.listens}
        if len(caller_keys) == 1 and in_flight.abandoned_owners - caller_keys:
            return (
                f"a call was given up less than {ABANDONED_SECONDS / 60:g} minutes ago, and the server may still mean "
                "that one (with isolation: per-client it would be certain)"
            )
        return "it is not certain which client is meant (with isolation: per-client it would be)"

    def _journaled_rejection(
        self, server_request: ServerRequest, code: int, why: str, calls: Sequence[UpstreamCall] = ()
    ) -> ServerRequestRejected:
        whose = _whose(calls)
        self._journal.note(ServerRequestRefused(self._server, f"{server_request.value} request", why, *whose))
        return ServerRequestRejected(code, why)

    async def _while_pending(
        self,
        pending: PendingServerRequest,
        send: Callable[[], Awaitable[Raw]],
        send_outside_call: Callable[[], Awaitable[Raw]] | None = None,
    ) -> Raw:
        """Send the server request and return the response, as long as a call is left that it may belong to.

        Args:
            send_outside_call: sends it outside any call, independently of their ends; tried first.
        """
        pending.pause_deadlines()
        try:
            if send_outside_call is not None:
                with suppress(LinkLost):
                    return await send_outside_call()
            with pending.asking_client():
                await trio.lowlevel.checkpoint_if_cancelled()  # not sent if its calls have already ended
                return await send()
            raise PeerError(ErrorBody(INTERNAL_ERROR, "the request that this belongs to has ended"))
        except PeerError:
            raise
        except (BrokenAnswer, LinkLost) as problem:
            raise PeerError(ErrorBody(INTERNAL_ERROR, f"the client did not respond: {problem}")) from None
        except Exception as problem:  # noqa: BLE001 - an error in one server request must not end the connection
            self._journal.note(InternalError(self._server, problem))
            raise PeerError(ErrorBody(INTERNAL_ERROR, "Internal error in Colonnade")) from None
        finally:
            pending.release()


def _whose(calls: Sequence[UpstreamCall]) -> tuple[str, str]:
    """The caller of these calls, all of one client, and the id of the newest one's trace; empty if there is none."""
    if not calls or calls[-1].is_internal:
        return "", ""
    exchange = calls[-1].exchange
    return exchange.caller.name, trace_id_of(observed_of(exchange.request))


async def _observed(asking: Asking, work: Work) -> Raw:
    answer: Success | Failure | None = None
    try:
        result = await work()
        answer = Success(0, result)
        return result
    except PeerError as refusal:
        answer = Failure(refusal.error, None)
        raise
    except ColonnadeError as refusal:
        answer = Failure(ErrorBody(refusal.code, refusal.message), None)
        raise
    finally:
        asking.end(answer)


def _client_retries(call: UpstreamCall) -> bool:
    """Whether the client of the call responds to server requests with a retry."""
    return call.exchange.caller.abilities.retries and call.exchange.request.method in RETRIABLE_METHODS


async def _request_client(
    peer: Peer[UpstreamCall] | None,
    pending: PendingServerRequest,
    method: str,
    params: dict[str, Raw],
    token: Id | None,
    about: Id | None,
    client_retries: bool,
    asking: Asking | None,
) -> Raw:
    """Send a server request to the client, and return its response.

    Args:
        client_retries: the client responds with a retry. If none comes in time, an elicitation counts as cancelled by
            the user: such a client cannot say that it gives up.
    """
    timeout = RETRY_ANSWER_TIMEOUT if client_retries else ANSWER_TIMEOUT
    timeout_cancels = client_retries and method == ELICIT
    if asking is not None:
        params = asking.sent(params)
    try:
        with trio.move_on_after(timeout):
            if token is None or peer is None:
                answer = await pending.client.request(method, params, None)
            else:
                answer = await _request_with_progress(peer, pending.client, method, params, token, about)
            if not is_object(answer):
                raise PeerError(ErrorBody(INTERNAL_ERROR, "the client's answer is not an object"))
            return answer
    except LinkLost:
        if not timeout_cancels:
            raise
    if timeout_cancels:
        return elicitation_cancelled()
    raise PeerError(ErrorBody(UNCONFIRMED, f"the client did not respond within {timeout:.0f} s"))


async def _request_with_progress(
    peer: Peer[UpstreamCall], client: ClientHandle, method: str, params: dict[str, Raw], token: Id, about: Id | None
) -> Raw:
    """Send a server request to the client, and pass its progress on to the server under the server's token. Of reports
    that come faster than they can be sent, only the newest is sent."""
    newest: dict[str, Raw] | None = None
    available = trio.Event()

    def report(progress: dict[str, Raw]) -> None:
        nonlocal newest
        if PROGRESS_MEMBERS.twin_in(progress) is not None:  # a server could take it for the progress of another request
            return
        newest = progress
        available.set()

    async def relay() -> None:
        nonlocal newest, available
        while True:
            await available.wait()
            available = trio.Event()
            progress, newest = newest, None
            if progress is not None:
                try:
                    await peer.notify(PROGRESS, encode_object({**progress, PROGRESS_TOKEN: encode(token)}), about)
                except LinkLost:
                    return  # the server is gone, or this report was lost, which does not matter

    answer: Raw | PeerError | BrokenAnswer | LinkLost
    async with trio.open_nursery() as nursery:
        nursery.start_soon(relay)
        try:
            answer = await client.request(method, params, report)
        except (PeerError, BrokenAnswer, LinkLost) as problem:
            answer = problem
        nursery.cancel_scope.cancel()
    if isinstance(answer, Exception):
        raise answer
    return answer
