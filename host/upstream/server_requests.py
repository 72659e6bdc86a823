"""What a server says by itself: notices, log messages, and questions for the client it is working for.

A question reaches the one client that it is certainly meant for, on the stream of the request it belongs to, or nobody.
Certain is: the transport says which request it came with; or the connection serves one client alone; or everything that
the server may be working on at that moment is from one client. Anything else would be a guess, and a wrong guess shows
one client's affairs to another.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Collection, Hashable
from contextlib import suppress
from functools import partial
from typing import Protocol
from weakref import WeakKeyDictionary

import trio
from msgspec import Raw

from config.globs import MAX_LENGTH
from host.errors import UNCONFIRMED, ColonnadeError, InvalidParams
from host.exchange import Caller, ClientHandle
from host.journal import InternalError, Journal, MessageDropped, ServerRequestRefused, excerpt
from host.jsonrpc.conversation import CANCELLED, cancelled_id
from host.jsonrpc.messages import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    METHOD_NOT_FOUND,
    ErrorBody,
    Id,
    Notification,
    Request,
)
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, is_object, members, pick, string
from host.names import outward_uri
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import InFlight, Peer
from host.policy.gate import Gate
from host.policy.server_requests import NOT_ALLOWED_MESSAGE
from host.protocol.abilities import NO_ABILITIES
from host.protocol.links import rename_in_result
from host.protocol.log_levels import with_server_name
from host.protocol.meta import PROGRESS_TOKEN, progress_token
from host.protocol.methods import LIST_METHODS, LOG_MESSAGE, PING, PROGRESS, RESOURCE_UPDATED, Kind
from host.protocol.mrtr import RETRIABLE_METHODS, elicitation_cancelled
from host.protocol.server_requests import (
    ELICIT,
    ELICITATION_COMPLETE,
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
from host.protocol.versions import LATEST_LEGACY, Revision
from host.upstream.call import PendingServerRequest, UpstreamCall
from host.wire.link import LinkLost
from host.wire.noise import TooManyUselessMessages, UselessMessages

ANSWER_TIMEOUT = 600.0
"""Seconds that a question waits for its answer."""
RETRY_ANSWER_TIMEOUT = ANSWER_TIMEOUT - 10
"""The same, of a client that answers by repeating its request. Its call is kept for as long as ANSWER_TIMEOUT: the
server shall have time to end it before."""
MAX_SERVER_REQUESTS = 8
"""Questions that may be open for one call at once."""
MAX_ELICITATIONS = 1000
"""Visits to pages that one connection remembers; of older ones nobody hears that they are done."""
MAX_UPDATE = 4096
"""Bytes of the params of a notice that a resource changed; of larger ones only the URI is passed on. Such notices wait
for clients that do not listen, and nothing but the URI has a meaning in them."""
MAX_LOGS_PER_SECOND = 200
LOG_SIZE = 1024
"""Bytes of a log message that is to be cleaned which count as one message more."""
NOISE_REASONS = frozenset(
    {"invalid message", "notification too large", "request too large", "unknown id", "unexpected notification"}
)
"""The reasons for dropping a message that count against the budget of the connection (`noise`)."""
NO_ROOTS = Raw(b'{"roots":[]}')
AMBIGUOUS_CALL = (
    "several requests are in flight, and it is not certain which one is meant (with isolation: per-call it would be)"
)


class UrlElicitations:
    """The visits to pages that users were asked for, by the server's id: who was asked, and under which id. A server
    to which all clients are one may send several of them to the same page. Clients that are gone are not kept."""

    def __init__(self) -> None:
        self._by_server_id: dict[str, WeakKeyDictionary[Caller, str]] = {}

    def make_client_id(self, caller: Caller, id: str) -> str:
        """The id that the client gets instead of the server's: two servers may use the same."""
        client_ids = self._by_server_id.get(id)
        if client_ids is None:
            while len(self._by_server_id) >= MAX_ELICITATIONS:
                del self._by_server_id[next(iter(self._by_server_id))]
            client_ids = self._by_server_id[id] = WeakKeyDictionary()
        return client_ids.setdefault(caller, secrets.token_urlsafe(12))

    def complete(self, id: str) -> list[tuple[Caller, str]]:
        """Whoever was asked under the server's id, and under which; known no more from now on."""
        return list(self._by_server_id.pop(id, {}).items())


class ChangeHandler(Protocol):
    """The requests of one connection that stand open for what changes; see `change_stream.py`."""

    def handles(self, notice: Notification, in_flight: InFlight[UpstreamCall]) -> bool: ...

    def on_cancelled(self, id: Id, in_flight: InFlight[UpstreamCall]) -> None: ...


class ServerMessages:
    """Hears one connection of a server.

    Args:
        title: what people call the server.
        owner: the one client that the connection serves, None as long as it may serve several.
        on_resource_updated: told of the URI of a resource that changed, with the members of the notice that are passed
        on. log_listeners: whoever wants log messages that belong to no request.
    """

    def __init__(
        self,
        server: str,
        title: str,
        gate: Gate,
        journal: Journal,
        *,
        owner: Callable[[], Caller | None],
        on_resource_updated: Callable[[str, dict[str, Raw]], None],
        log_listeners: Callable[[], Collection[Caller]] = tuple,
    ) -> None:
        self.on_lists_changed: Callable[[list[Kind]], None] | None = None
        """Told of the kinds whose lists may have changed; None where nobody lists over this connection."""
        self.change_stream: ChangeHandler | None = None
        """What a stateless server tells of changes, once it is listened to."""
        self.revision: Revision = LATEST_LEGACY
        """The revision settled with the server."""
        self.elicitations = UrlElicitations()
        self.task_calls: dict[str, UpstreamCall] = {}
        """What the tasks of the server's belong to, by their ids."""
        self.waiting_calls: list[UpstreamCall] = []
        """Exchanges that wait for this connection to be ready: it is opened on their behalf."""
        self.disconnect: Callable[[LinkLost], None] | None = None
        """Ends the connection."""
        self._noise = UselessMessages(trio.current_time())
        self._server = server
        self.title = title
        self._gate = gate
        self._journal = journal
        self._owner = owner
        self._on_resource_updated = on_resource_updated
        self._log_listeners = log_listeners
        self._log_count = (0, 0)

    def owner_of(self, subject: UpstreamCall) -> Hashable:
        return None if subject.listens else subject.exchange.caller.key  # nothing is worked on for who only listens

    def on_dropped(self, what: str, detail: str) -> None:
        self._journal.note(MessageDropped(self._server, what, detail))
        if what in NOISE_REASONS:
            self._charge_noise()

    def _charge_noise(self) -> None:
        if not self._noise.add(trio.current_time()) and self.disconnect is not None:
            self.disconnect(TooManyUselessMessages())

    # Notifications

    def on_notification(self, notice: Notification, in_flight: InFlight[UpstreamCall]) -> None:
        kinds = [listing.kind for listing in LIST_METHODS.values() if listing.list_changed == notice.method]
        change_stream = self.change_stream
        reports_change = bool(kinds) or notice.method in (RESOURCE_UPDATED, ACKNOWLEDGED)
        if (
            self.revision.stateless
            and reports_change
            and (change_stream is None or not change_stream.handles(notice, in_flight))
        ):
            return  # without a request that asked for it, a stateless server may say nothing of changes
        if notice.method == CANCELLED:
            id = cancelled_id(notice)
            if change_stream is not None and id is not None:
                change_stream.on_cancelled(id, in_flight)
        elif notice.method in (TASK_STATUS, TASKS_NOTIFICATION):
            return  # tasks are asked about
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
        """A log message goes where its request goes; one that belongs to none, to whoever asked for log messages."""
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
        if len(calls) > 1 and calls[-1].exchange.caller.abilities.retries:
            return  # each request of such a client has a stream of its own, and nothing says which one is meant
        if calls:
            caller = calls[-1].exchange.caller
            self._send_log(self._sanitized(notice), caller, calls[-1].exchange.client)
            return
        owner = self._owner()
        if owner is None and (in_flight.exact or self.revision.stateless):
            return  # it belongs to one request, which is over or cannot be told: nobody else's affair
        callers = list(self._log_listeners()) if owner is None else [owner]
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
        client.notify(with_server_name(notice, self._server) if caller.endpoint is None else notice)

    def _handle_elicitation_complete(self, notice: Notification) -> None:
        id = completed_elicitation_id(notice.params)
        params = self._sanitized(notice).params
        for caller, client_id in self.elicitations.complete(id) if id is not None else ():
            caller.client.notify(elicitation_complete(client_id, params))

    # Questions

    def on_request(
        self, peer: Peer[UpstreamCall], request: Request, in_flight: InFlight[UpstreamCall]
    ) -> Callable[[], Awaitable[Raw]]:
        if request.method == PING:
            return _pong
        if self.revision.stateless:
            self._charge_noise()
            # Its questions stand in its answers, where it is certain whose they are.
            return partial(
                _refuse, ServerRequestRejected(METHOD_NOT_FOUND, f"{self.revision.name} has no requests to clients")
            )
        try:
            parsed = server_request_of(request.method, request.params)
            if parsed is None:
                self._charge_noise()
                raise ServerRequestRejected(METHOD_NOT_FOUND, "this client does not offer that method")
            server_request, params = parsed
            refuse_unsupported(server_request, self.revision)
            if not self._gate.server_requests.allows(self._server, server_request):
                code = INVALID_PARAMS if server_request is ServerRequest.URL else METHOD_NOT_FOUND
                raise self._journaled_rejection(server_request, code, NOT_ALLOWED_MESSAGE)
            return self._route_request(peer, request, server_request, params, in_flight)
        except ServerRequestRejected as refusal:
            return partial(_refuse, refusal)

    def _route_request(
        self,
        peer: Peer[UpstreamCall],
        request: Request,
        server_request: ServerRequest,
        params: dict[str, Raw],
        in_flight: InFlight[UpstreamCall],
    ) -> Callable[[], Awaitable[Raw]]:
        """Find the client that is meant. From now on the question ends with what it belongs to."""
        task_call = self.task_calls.get(related_task_of(request.params) or "")
        calls = self._possible_calls(in_flight) if task_call is None else [task_call]
        owner = self._owner()
        if len(calls) > 1 and any(upstream_call.exchange.caller.abilities.retries for upstream_call in calls):
            if server_request is ServerRequest.ROOTS:
                return _no_roots
            # Such a client is asked by the answer to one of its requests: in that of another the question would be put
            # under the wrong name, and hold up a call that it has nothing to do with.
            raise self._journaled_rejection(server_request, INVALID_PARAMS, AMBIGUOUS_CALL)
        if calls:
            caller = calls[-1].exchange.caller
        elif server_request is ServerRequest.ROOTS and owner is not None and owner.abilities is NO_ABILITIES:
            return _no_roots  # there is nobody to be asked outside a request
        elif owner is not None and (
            server_request is ServerRequest.ROOTS or not (in_flight.abandoned_owners or in_flight.is_over)
        ):
            caller = owner  # it may be asked out of the blue, but not for a request that is over or just called off
        elif server_request is ServerRequest.ROOTS:
            return _no_roots  # servers ask as soon as they are greeted, when there is no client yet
        else:
            raise self._journaled_rejection(server_request, INVALID_PARAMS, self._why_uncertain(in_flight))
        pending_requests = {open_request for call in calls for open_request in call.server_requests}
        if calls and len(pending_requests) >= MAX_SERVER_REQUESTS * len(calls):
            raise self._journaled_rejection(
                server_request, INVALID_PARAMS, f"more than {MAX_SERVER_REQUESTS} server requests for one call"
            )
        try:
            adapted = self._adapt(server_request, params, caller)
            token = progress_token(params)
        except InvalidParams as problem:
            raise ServerRequestRejected(INVALID_PARAMS, problem.message) from None
        except ServerRequestRejected as refusal:
            if calls and caller.abilities.retries:
                calls[-1].missing_capabilities = refusal.missing_capability
            raise
        if server_request is ServerRequest.URL:
            adapted = with_elicitation_id(adapted, self.elicitations.make_client_id(caller, elicitation_id(adapted)))
        retries = bool(calls) and _client_retries(calls[-1])

        def sender(pending: PendingServerRequest) -> Callable[[], Awaitable[Raw]]:
            send = partial(_request_client, peer, pending, request.method, adapted, token, in_flight.about, retries)
            return partial(self._admit_and_send, server_request, adapted, caller, send)

        pending = PendingServerRequest(calls, caller.client)
        send_outside_call = None
        if (
            server_request is ServerRequest.ROOTS
            and calls
            and owner is not None
            and task_call is None
            and not in_flight.exact
        ):
            # Servers ask as they start, beside a call that may be over long before the answer comes.
            send_outside_call = None if caller.abilities.retries else sender(PendingServerRequest([], owner.client))
        return partial(self._while_pending, pending, sender(pending), send_outside_call)

    def adapt_request(self, parsed: tuple[ServerRequest, dict[str, Raw]], caller: Caller) -> dict[str, Raw]:
        """The params of a question in an unfinished answer, as the caller may get them.

        Raises:
            ServerRequestRejected: it may not be asked this.
        """
        server_request, params = parsed
        if not self._gate.server_requests.allows(self._server, server_request):
            raise self._journaled_rejection(server_request, INVALID_PARAMS, NOT_ALLOWED_MESSAGE)
        adapted = self._adapt(server_request, params, caller)
        if server_request is ServerRequest.URL and not caller.abilities.retries:  # who repeats requests knows no ids
            adapted = with_elicitation_id(adapted, secrets.token_urlsafe(12))
        return adapted

    async def admit(self, server_request: ServerRequest, params: dict[str, Raw], caller: Caller) -> None:
        """Return once a question in an unfinished answer, fitted for the caller, may be handed to it. What it answers
        does not come by here.

        Raises:
            ColonnadeError: it may not; see `ServerRequests.admit`.
        """
        with self._gate.server_requests.dispatch(
            await self._gate.server_requests.admit(self._server, server_request, params, caller)
        ) as record:
            record.end("handed on")

    async def forward(
        self, call: UpstreamCall, server_request: ServerRequest, method: str, params: dict[str, Raw]
    ) -> Raw:
        """Have the origin's client answer a question that was fitted for it: its answer as it came. While it is asked,
        the origin's clock stands still.

        Raises:
            PeerError: it refused, or did not answer.
        """
        pending = PendingServerRequest([call], call.exchange.client)
        send = partial(_request_client, None, pending, method, params, None, None, _client_retries(call))
        return await self._while_pending(
            pending, partial(self._admit_and_send, server_request, params, call.exchange.caller, send)
        )

    async def _admit_and_send(
        self, server_request: ServerRequest, params: dict[str, Raw], caller: Caller, send: Callable[[], Awaitable[Raw]]
    ) -> Raw:
        """The client's answer, once the question may be put to it: of its roots, those that the server may know."""
        try:
            with self._gate.server_requests.dispatch(
                await self._gate.server_requests.admit(self._server, server_request, params, caller)
            ):
                answer = await send()
            return (
                answer
                if server_request is not ServerRequest.ROOTS
                else await self._gate.server_requests.filter_roots(self._server, answer, caller)
            )
        except ColonnadeError as refusal:
            self._journal.note(
                ServerRequestRefused(self._server, f"{server_request.value} request", excerpt(refusal.message))
            )
            raise PeerError(ErrorBody(refusal.code, refusal.message, refusal.data)) from None

    def _adapt(self, server_request: ServerRequest, params: dict[str, Raw], caller: Caller) -> dict[str, Raw]:
        checked = self._gate.server_requests.check(self._server, server_request, params)
        adapted = adapt(server_request, checked, caller.abilities, self.title)
        if server_request is ServerRequest.SAMPLING and caller.endpoint is None:
            return _with_outward_links(adapted, self._server)
        return adapted

    def _possible_calls(
        self, in_flight: InFlight[UpstreamCall], *, ignore_internal: bool = False
    ) -> list[UpstreamCall]:
        """The exchanges in flight that a message may belong to, all of one client; none if that is not certain.
        `ignore_internal`: it is, even while something of our own is asked: what belongs to that is nobody's secret."""
        if in_flight.exact:
            return [upstream_call for upstream_call in in_flight.subjects if not upstream_call.is_internal]
        owner = self._owner()
        if owner is not None:
            return [
                origin for origin in in_flight.subjects if origin.exchange.caller.key == owner.key
            ] or self.waiting_calls
        calls = [call for call in in_flight.subjects if not call.listens and not (ignore_internal and call.is_internal)]
        caller_keys = in_flight.abandoned_owners.union(call.exchange.caller.key for call in calls)
        return calls if len(caller_keys) == 1 and not any(origin.is_internal for origin in calls) else []

    def _why_uncertain(self, in_flight: InFlight[UpstreamCall]) -> str:
        if in_flight.exact:
            return "the request that it belongs to is over"
        if not in_flight.subjects:
            return "no client's request is in flight"
        return "it is not certain which client is meant (with isolation: per-client it would be)"

    def _journaled_rejection(self, server_request: ServerRequest, code: int, why: str) -> ServerRequestRejected:
        self._journal.note(ServerRequestRefused(self._server, f"{server_request.value} request", why))
        return ServerRequestRejected(code, why)

    async def _while_pending(
        self,
        pending: PendingServerRequest,
        send: Callable[[], Awaitable[Raw]],
        send_outside_call: Callable[[], Awaitable[Raw]] | None = None,
    ) -> Raw:
        """The answer, as long as somebody is left whom the question may belong to. `send_outside_call` asks outside any
        request, whatever becomes of those; tried first, if there is a way to the client."""
        pending.pause_deadlines()
        try:
            if send_outside_call is not None:
                with suppress(LinkLost):
                    return await send_outside_call()
            with pending.asking_client():
                await trio.lowlevel.checkpoint_if_cancelled()  # what is over already is not even asked
                return await send()
            raise PeerError(ErrorBody(INTERNAL_ERROR, "the request that this belongs to is over"))
        except PeerError:
            raise
        except (BrokenAnswer, LinkLost) as problem:
            raise PeerError(ErrorBody(INTERNAL_ERROR, f"the client did not answer: {problem}")) from None
        except Exception as problem:  # noqa: BLE001 - one question's trouble must not end the connection
            self._journal.note(InternalError(self._server, problem))
            raise PeerError(ErrorBody(INTERNAL_ERROR, "Internal error in Colonnade")) from None
        finally:
            pending.release()


def _with_outward_links(params: dict[str, Raw], server: str) -> dict[str, Raw]:
    """The params of a sampling question whose tool results name resources as the client can bring them back."""
    renamed = rename_in_result(encode_object(params), SAMPLED_LINKS, lambda uri: outward_uri(server, uri))
    return members(renamed)


def _client_retries(call: UpstreamCall) -> bool:
    """Whether its client answers questions by repeating the request."""
    return call.exchange.caller.abilities.retries and call.exchange.request.method in RETRIABLE_METHODS


async def _pong() -> Raw:
    return EMPTY_OBJECT


async def _no_roots() -> Raw:
    return NO_ROOTS


async def _refuse(refusal: ServerRequestRejected) -> Raw:
    raise PeerError(ErrorBody(refusal.code, refusal.why))


async def _request_client(
    peer: Peer[UpstreamCall] | None,
    pending: PendingServerRequest,
    method: str,
    params: dict[str, Raw],
    token: Id | None,
    about: Id | None,
    client_retries: bool,
) -> Raw:
    """The client's answer. `client_retries`: it answers by repeating its request, or goes away without a word; then a
    question to its user is as good as closed."""
    timeout = RETRY_ANSWER_TIMEOUT if client_retries else ANSWER_TIMEOUT
    timeout_cancels = client_retries and method == ELICIT
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
    raise PeerError(ErrorBody(UNCONFIRMED, f"nobody answered within {timeout:.0f} s"))


async def _request_with_progress(
    peer: Peer[UpstreamCall], client: ClientHandle, method: str, params: dict[str, Raw], token: Id, about: Id | None
) -> Raw:
    """The same, while the client's progress goes to the server under the server's own token. Reports that come faster
    than they can be sent are one: the newest."""
    newest: dict[str, Raw] | None = None
    available = trio.Event()

    def report(progress: dict[str, Raw]) -> None:
        nonlocal newest
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
                    return  # the server is gone, or this one message was lost: it has nothing that anybody waits for

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
