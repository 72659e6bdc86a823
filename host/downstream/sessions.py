"""Sessions: the state that Colonnade shares with a handshake client between messages, over stdio or HTTP.

A session turns a request into an exchange, answers the requests of the hop itself (initialize, ping, cancellations),
sends server requests to its client, and notifies it when its view of the lists has changed. Streams and status codes
belong to the transports.
"""

from __future__ import annotations

import secrets
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from enum import IntEnum, auto
from functools import partial

import trio
from msgspec import Raw, Struct

from host.client_process import ClientProcess
from host.downstream.error_answers import HOPS, errors_as_answers, params_of
from host.downstream.http.replies import RETRY, EventStream, History
from host.downstream.list_changes import Announcements, ListChanges, Listener, track_changes
from host.downstream.stored_sessions import IDLE_TIMEOUT, SessionOpening, StoredSessions
from host.downstream.tasks import IN_HANDSHAKE, Tasks
from host.errors import (
    TOO_MANY_REQUESTS,
    AmbiguousMembers,
    ColonnadeError,
    InvalidRequest,
    MethodNotFound,
    TimedOut,
    Unavailable,
)
from host.exchange import Answered, Caller, Exchange, ProgressCallback, SearchChoice
from host.journal import Journal, excerpt
from host.jsonrpc.conversation import CANCELLED, Incoming, cancelled_reason
from host.jsonrpc.messages import (
    ErrorBody,
    Failure,
    Id,
    Malformed,
    Message,
    Notification,
    ParsedInput,
    Request,
    Success,
)
from host.jsonrpc.raw import EMPTY_OBJECT, encode, encode_object, members, string
from host.memory import Budget, Holding, OverBudget, Owner, Use, client_owner
from host.peer.outstanding import OutstandingRequests
from host.protocol.handshake import InitializeRequest, initialize_result, read_initialize
from host.protocol.log_levels import DEFAULT_LEVEL, is_at_least, level_of
from host.protocol.meta import prepare_for_next_hop
from host.protocol.methods import (
    INITIALIZE,
    INITIALIZED,
    LIST_METHOD_BY_NAME,
    LIST_METHODS,
    LOG_MESSAGE,
    PING,
    PROGRESS,
    RESOURCE_UPDATED,
    ROOTS_CHANGED,
    SET_LEVEL,
    SUBSCRIBE,
    TARGETED,
    TOOLS_CALL,
    UNSUBSCRIBE,
)
from host.protocol.negotiated import NegotiatedServer, declared_capabilities
from host.protocol.stateless import StatedEnvelope
from host.protocol.tasks import TASKS_RESULT, task_id_of, with_related_task
from host.router.router import Router
from host.source import Endpoint
from host.version import VERSION
from host.wire.deadlines import CallScope
from host.wire.link import LinkLost, Parcel

MAX_IN_FLIGHT = 1000
"""Requests of one session in flight."""
MAX_KEPT_NOTICES = 1000
"""Notifications kept for a client that does not listen at the moment; beyond that the oldest are dropped."""

Say = Callable[[Notification | Request], bool]
"""Puts a message on a client's stream without waiting; False if that stream is closed or full."""


class StandingStream:
    """Messages to a client outside any request: sent at once if the client listens. Notifications that only report a
    change are kept until it does, the newest of each.

    Args:
        memory, owner: what kept notifications are charged to, until `close`. When the memory is needed elsewhere, they
            are dropped.
    """

    def __init__(self, memory: Budget, owner: Owner) -> None:
        self._memory = memory
        self._owner = owner
        self._say: Say | None = None
        self._kept: dict[bytes, Notification] = {}
        self._held: Holding | None = None
        """None while nothing is kept: a client that holds no memory has no share of the budget."""
        self._closed = False

    def enqueue(self, message: Notification | Request) -> bool:
        """Send a message; returns False if the client does not listen."""
        return self._say is not None and self._say(message)

    def notify(self, notice: Notification) -> None:
        """Send a notification now or later; of several with the same subject only the newest is kept. Without memory
        for it, it is dropped, and an older one stays."""
        if self._closed or (not self._kept and self.enqueue(notice)):
            return
        key = _subject(notice)
        former = self._kept.get(key)
        try:
            self._charge(_size(key, notice) - (0 if former is None else _size(key, former)))
        except OverBudget:
            return
        self._kept.pop(key, None)
        self._kept[key] = notice
        while len(self._kept) > MAX_KEPT_NOTICES:
            self._forget(next(iter(self._kept)))
        self._flush()

    @contextmanager
    def attached(self, say: Say) -> Iterator[None]:
        """Attach the client's stream for the block; kept notifications are sent first."""
        self._say = say
        self._flush()
        try:
            yield
        finally:
            if self._say is say:  # the stream that a client resumes elsewhere may be attached already
                self._say = None

    def _flush(self) -> None:
        while self._kept:
            key, notice = next(iter(self._kept.items()))
            if not self.enqueue(notice):
                return
            self._forget(key)

    def close(self) -> None:
        """Drop everything that is kept, because the client is gone."""
        self._closed = True
        self._give_way()

    def _charge(self, more: int) -> None:
        if self._held is None:
            self._held = self._memory.hold(self._owner, Use.STREAMS, more, drop=self._give_way)
        else:
            self._held.grow(more)

    def _forget(self, key: bytes) -> None:
        notice = self._kept.pop(key, None)  # none: sending needed memory, for which all kept ones were dropped
        if notice is not None:
            self._charge(-_size(key, notice))
        if not self._kept:
            self._give_way()

    def _give_way(self) -> None:
        self._kept.clear()
        if self._held is not None:
            self._held.release()
            self._held = None


def _subject(notice: Notification) -> bytes:
    """The subject of a notification: a later one with the same subject replaces it. For updates of a resource it is the
    URI, whatever else a server adds."""
    about = notice.params or b""
    if notice.method == RESOURCE_UPDATED:
        about = members(about)["uri"]
    return notice.method.encode() + bytes(about)


def _size(key: bytes, notice: Notification) -> int:
    return len(key) + len(notice.params or b"")


class _RequestHandle(Struct, eq=False):
    """A handle of the session's client. Implements `host.exchange.ClientHandle`. `scope` holds the request that it is
    for; None if it is for none. `address`: where that request came from; see `Exchange.address`."""

    _session: Session
    _say: Say
    scope: CallScope | None
    address: str = ""
    task: str | None = None
    """The task whose result the request waits for; server requests sent meanwhile name it."""

    def notify(self, notice: Notification) -> None:
        standing = self.scope is None
        if self.scope is not None and self.scope.cancel_called:
            return  # the client has cancelled the request and wants nothing more of it
        if notice.method == LOG_MESSAGE:
            level = self._session.level
            # A client that never set a level gets the log messages of its own requests, and no others.
            if is_at_least(notice, level or DEFAULT_LEVEL) and (level is not None or not standing):
                self._say(notice)
        elif standing and notice.method == PROGRESS:  # progress of a task is not kept: the next report replaces it
            self._session.standing.enqueue(notice)
        elif standing:
            self._session.standing.notify(notice)
        else:
            self._say(notice)

    async def request(self, method: str, params: dict[str, Raw], report: ProgressCallback | None) -> Raw:
        asked = dict(params)
        if report is None:
            prepare_for_next_hop(asked, None)
            return await self._ask(method, asked)
        with self._session.asking.progress_token(report) as token:
            prepare_for_next_hop(asked, token)
            return await self._ask(method, asked)

    async def _ask(self, method: str, params: dict[str, Raw]) -> Raw:
        said = False

        async def send(parcel: Parcel) -> None:
            nonlocal said
            assert isinstance(parcel.message, Request)
            said = self._say(parcel.message)
            await trio.lowlevel.checkpoint()
            if not said:
                raise LinkLost("it does not listen")

        async def call_off(id: Id, notice: Notification) -> None:
            if said and not self._say(notice):
                self._session.send_anywhere(notice)

        asked = encode_object(params)
        if self.task is not None:
            asked = with_related_task(asked, self.task)
        return await self._session.asking.request(method, asked, send, call_off)


class Session:
    """One client at one endpoint. `opening` is its `initialize` request, None before; `identity` is the name of its
    token, the owner of everything here; `process` is the program that it is, None over HTTP; `is_sole`: the host has no
    other client."""

    # A dictionary of more than thirty attributes takes five times the room (CPython, SHARED_KEYS_MAX_SIZE).
    __slots__ = (
        "__weakref__",
        "_begun",
        "_caller",
        "_changes",
        "_declared",
        "_has_dedicated",
        "_initialized",
        "_journal",
        "_now",
        "_ready",
        "_router",
        "_streams",
        "_tasks",
        "_watching",
        "asking",
        "ended",
        "endpoint",
        "history",
        "identity",
        "is_sole",
        "last_used",
        "level",
        "mark",
        "memory",
        "name",
        "on_change",
        "on_end",
        "on_use",
        "opening",
        "process",
        "serving",
        "standing",
        "standing_events",
        "stated",
        "watched",
    )

    def __init__(
        self,
        name: str,
        endpoint: Endpoint,
        router: Router,
        journal: Journal,
        identity: str | None = None,
        tasks: Tasks | None = None,
        *,
        memory: Budget,
        process: ClientProcess | None = None,
        is_sole: bool = False,
    ) -> None:
        self.endpoint = endpoint
        self.identity = identity
        self.memory = memory
        self.opening: InitializeRequest | None = None
        self._declared: NegotiatedServer | None = None
        """The only server of the endpoint, as it was declared to the client; None if it was not known."""
        self.stated: StatedEnvelope | None = None
        """The statement of a client without a handshake in each of its requests, as in the last one."""
        self.serving: Incoming[CallScope] = Incoming()
        self.asking: OutstandingRequests[object] = _asking(may_go_on=process is not None and not is_sole)
        self.standing = StandingStream(memory, client_owner(identity))
        self.standing_events: EventStream | None = None
        """The standing stream over Streamable HTTP."""
        self.level: str | None = None
        """The log level that the client set."""
        self.watched: dict[str, None] | None = None
        """The URIs of the resources that the client has subscribed to; None before the first one."""
        self.on_change: Callable[[], object] | None = None
        """Called when another process would have to open the session in another way than before."""
        self.on_end: Callable[[Session], object] | None = None
        """Called once with the session when it ends."""
        self._has_dedicated = False
        self._watching: trio.CancelScope | None = None
        """Scope of `watch_again`."""
        self.history = History(memory, client_owner(identity))
        self.ended = trio.Event()
        self.on_use: Callable[[], object] | None = None
        """Called whenever a request begins or ends, or the session is used otherwise."""
        self._now = trio.lowlevel.current_clock().current_time  # in fewer steps than trio.current_time
        self.last_used = self._now()
        self.mark = object()
        """Identifies the client on every way that it sends requests; see `Caller.key`."""
        self.name = name
        self.process = process
        self.is_sole = is_sole
        self._caller = Caller(name, endpoint, identity, key=self.mark, process=process)
        self._router = router
        self._journal = journal
        self._tasks = tasks
        self._begun = False
        self._ready = trio.Event()
        self._initialized = trio.Event()
        self._changes: ListChanges | None = None
        self._streams: dict[CallScope, Say] = {}
        """Streams of the requests in flight, by scope."""

    def open(self, request: Request) -> Awaitable[Success | Failure]:
        """Begin to answer `initialize`, and return an awaitable of the response; the session is open if it succeeds.
        Requests that arrive from now on wait for it. It cannot be cancelled (2025-11-25, "Cancellation")."""
        begun: InitializeRequest | Exception
        try:
            begun = self._begin_opening(request)
        except Exception as problem:  # noqa: BLE001 - answered below, like any other failed request
            begun = problem

        async def initialize(_: Request) -> Raw:
            if isinstance(begun, Exception):
                raise begun
            return await self._initialize(begun)

        hop = HOPS["" if isinstance(begun, Exception) else begun.revision.name, self.process is not None]
        return errors_as_answers(request, initialize, self._journal, self.name, hop=hop)

    async def open_anew(self, opened: InitializeRequest, level: str | None, watched: Iterable[str]) -> None:
        """Open a session that another process had opened with this request, and that has this log level and these
        subscriptions. The client is notified of every list once, since it has missed what changed meanwhile.
        `watch_again` must follow."""
        self._begun = True
        # Ids that the client has of the former process must fit nothing of this one.
        self.asking = _asking(may_go_on=True)
        self.history.begin_elsewhere()
        changes = await self._begin(opened)
        declared = declared_capabilities(self._declared, self._router.lacking(self._caller))
        changes.mark_missed(kind for kind, row in LIST_METHODS.items() if row.capability in declared)
        self.watched = dict.fromkeys(watched)  # at once: its row may be written before the first is granted
        if level is not None:
            self.level = level
            self._router.log_levels.set_level(self._caller, level)
        # It may have ended before its client had said so. That one opens no stream before, and is told nothing else.
        self._initialized = _reached(self._initialized)

    async def watch_again(self) -> None:
        """Subscribe to the resources to which the client had subscribed at the former process, each as soon as its
        server is there, and notify the client of each: it may have changed meanwhile. One that is not offered any more
        is forgotten, as where a running host takes it away."""
        assert self.watched is not None
        caller, watched = self._caller, self.watched
        handle = _RequestHandle(self, self.standing.enqueue, None)
        left, delay = dict(watched), FIRST_WATCH_DELAY

        async def request(method: str, params: Raw) -> None:
            asked = Request(0, method, params)
            await self._router.answer(Exchange(asked, params_of(asked), caller, handle))

        try:
            with trio.CancelScope() as self._watching:
                while left and not self.ended.is_set():
                    for uri in list(left):
                        params = encode_object({"uri": encode(uri)})
                        try:
                            if uri in watched:
                                await request(SUBSCRIBE, params)
                                self.standing.notify(Notification(RESOURCE_UPDATED, params))
                            if uri not in watched:  # the client has unsubscribed meanwhile
                                await request(UNSUBSCRIBE, params)
                        except (Unavailable, TimedOut):
                            continue
                        except ColonnadeError:
                            watched.pop(uri, None)
                        del left[uri]
                    if left:
                        await trio.sleep(delay)
                        delay = min(2 * delay, MAX_WATCH_DELAY)
        finally:
            if self.ended.is_set():  # maybe since its last watch was granted
                self._router.forget(caller)

    def describe(self) -> SessionOpening | None:
        """The opening with which another process can open this session anew; None if it cannot: an instance that serves
        only this client has a state that would be lost in silence, or its client declares more than is kept."""
        opened, endpoint = self.opening, self.endpoint
        if self._has_dedicated or opened is None or opened.capabilities is None:
            return None
        return SessionOpening(
            opened.revision.name,
            opened.client,
            opened.capabilities,
            endpoint.server,
            endpoint.view,
            endpoint.caller,
            self.identity,
            self.level,
            tuple(self.watched or ()),
        )

    def _on_dedicated(self) -> None:
        if not self._has_dedicated:
            self._has_dedicated = True
            self._changed()

    def _changed(self) -> None:
        if self.on_change is not None:
            self.on_change()

    def belongs_to(self, endpoint: Endpoint, identity: str | None) -> bool:
        """Whether the endpoint and identity are the session's own; for all others it does not exist."""
        return self.endpoint == endpoint and self.identity == identity

    def skip_handshake(self) -> None:
        """Serve a client that sends a request without a handshake: it can be sent nothing but the response. A client
        with a token has the dedicated instances of that token."""
        self._begun = True
        self._ready = _reached(self._ready)
        self._caller = Caller(
            self.name, self.endpoint, self.identity, instance_key=self.identity, key=self.mark, process=self.process
        )

    def begin(self, request: Request, scope: CallScope | None = None) -> CallScope:
        """Register a request as soon as it is parsed, because its cancellation may be the next message. `answer` must
        follow, in the scope that is returned: a new one by default."""
        scope = scope or CallScope()
        self.serving.begin(request.id, scope)
        if self.on_use is not None:  # its last use is the end of the request
            self.on_use()
        if self.ended.is_set():
            scope.cancel("the client has ended its session")
        return scope

    async def answer(self, request: Request, scope: CallScope, say: Say, address: str = "") -> Success | Failure | None:
        """The response to a request that was begun; None if the client cancelled it, which gets no response. `say`
        sends the messages before the response on the request's own stream; `address`: see `Exchange.address`."""
        handle = _RequestHandle(self, say, scope, address)
        self._streams[scope] = say
        answer: Success | Failure | None = None
        try:
            with scope:
                if scope.cancel_called:  # before this task ran
                    await trio.lowlevel.checkpoint_if_cancelled()
                opening = self.opening
                hop = HOPS["" if opening is None else opening.revision.name, self.process is not None]
                work = partial(self._result, handle)
                answer = await errors_as_answers(request, work, self._journal, self.name, hop=hop)
            return answer
        finally:
            del self._streams[scope]
            self.serving.end(request.id, scope)
            self.touch()

    def touch(self) -> None:
        """Record that the session is used."""
        self.last_used = self._now()
        if self.on_use is not None:
            self.on_use()

    def send_anywhere(self, message: Notification | Request) -> None:
        """Send a message on any open stream of the client, if the stream it belongs to is gone."""
        for say in (self.standing.enqueue, *reversed(self._streams.values())):
            if say(message):
                return

    def begin_stream(self, request: Id | None = None, retry: int = RETRY) -> EventStream:
        """A stream for one reply, as the client's revision has them.

        Args:
            request: the id of the only request that is answered on it.
            retry: milliseconds after which the client should reconnect, if its revision is told that.
        """
        revision = self.opening.revision if self.opening is not None else None
        return self.history.begin(
            resumes=revision is not None and revision.resumes_streams,
            primes=revision is not None and revision.primes_streams,
            request=request,
            retry=retry,
        )

    @property
    def revision(self) -> str:
        """The name of the client's revision, in its own words if it makes no handshake; empty before it is known."""
        if self.opening is not None:
            return self.opening.revision.name
        return "" if self.stated is None else self.stated.version

    @property
    def sends_batches(self) -> bool:
        return self.opening is not None and self.opening.revision.has_batches

    def messages_in(self, received: ParsedInput) -> tuple[list[Message | Malformed], bool]:
        """The messages of a body, and whether they were a batch, which clients of only one revision may send."""
        if received.batch is not None and self.sends_batches:
            return received.batch, True
        return [received.message], False

    def check_flood(self, request: Request) -> Failure | None:
        """The refusal of a request beyond the session's limit; None if it may run."""
        if self.serving.count < MAX_IN_FLIGHT:
            return None
        return Failure(ErrorBody(TOO_MANY_REQUESTS, f"more than {MAX_IN_FLIGHT} requests at once"), request.id)

    def on_notification(self, notice: Notification) -> None:
        """Take a notification. Unknown ones are ignored."""
        self.touch()
        if notice.method == CANCELLED:
            scope = self.serving.cancelled_by(notice)
            if scope is not None:
                scope.cancel(cancelled_reason(notice))
        elif notice.method == PROGRESS:
            with suppress(ValueError):  # without a token it is about no request
                self.asking.on_progress(notice)
        elif notice.method == ROOTS_CHANGED:
            self._router.upstreams.roots_changed(self._caller)
        elif notice.method == INITIALIZED:
            self._initialized = _reached(self._initialized)

    def on_response(self, answer: Success | Failure | Malformed) -> None:
        """Take the client's response to a server request. A response that no request waits for is dropped; so is one
        with our id as text, which is accepted of servers only."""
        self.touch()
        if type(answer.id) is int:
            self.asking.on_response(answer)

    def end(self) -> None:
        """End the session: cancel what is in flight, and send nothing more."""
        self.ended.set()
        self.on_change = None
        if self.on_end is not None:
            self.on_end(self)
            self.on_end = None
        if self._watching is not None:
            self._watching.cancel("the client has ended its session")
        for scope in self.serving:
            scope.cancel("the client has ended its session")
        self.asking.fail_all(LinkLost("the client has ended its session"))
        self._router.forget(self._caller)
        # That caller refers to the session: many that have ended would wait for the garbage collector.
        self._caller = Caller(self.name, self.endpoint, self.identity, key=self.mark, process=self.process)
        if self.standing_events is not None:
            self.standing_events.end()
        # A reference to the session must not keep its memory alive.
        self.history.close()
        self.standing.close()
        self._changes = None

    @contextmanager
    def listening(self, announcements: Announcements, enqueue: Say) -> Iterator[None]:
        """Send the client what belongs to no request on this stream, for the block. It is notified of changed lists as
        soon as it has opened the session."""
        listener = Listener(self._list_changes, enqueue)
        announcements.add(listener)
        try:
            with self.standing.attached(enqueue):
                yield
        finally:
            announcements.remove(listener)

    async def _list_changes(self) -> ListChanges:
        await self._ready.wait()
        await self._initialized.wait()
        if self._changes is None:  # the session has ended, as its stream is about to
            await trio.sleep_forever()
        return await self._changes.begun()

    async def serve_single_client(self) -> None:
        """Serve the only client that there can be, once it is there."""
        await self._initialized.wait()
        await self._ready.wait()
        self._router.upstreams.serve_only(self._caller)

    def _begin_opening(self, request: Request) -> InitializeRequest:
        if self._begun:
            raise InvalidRequest("initialize was already sent in this session")
        found = read_initialize(request.params_members)
        self._begun = True
        return found

    async def _initialize(self, opened: InitializeRequest) -> Raw:
        await self._begin(opened)
        server = self._declared
        return initialize_result(
            opened.revision,
            VERSION,
            self._router.instructions(self._caller),
            server=server,
            apps=opened.abilities.apps and self._router.shows_apps(self.endpoint),
            tasks=self._tasks is not None and (server is None or server.runs_tasks),
            lists_tasks=self.identity is not None,
            lacking=self._router.lacking(self._caller),
        )

    async def _begin(self, opened: InitializeRequest) -> ListChanges:
        """Be the session of a client that has sent this request. Returns the changes that it is notified of."""
        # Hosts give a server up whose `initialize` takes a second.
        await self._router.upstreams.wait_recalled(self._caller)
        self._declared = self._router.server_for(self._caller)
        handle = _RequestHandle(self, self.standing.enqueue, None)
        self._caller = Caller(
            self.name,
            self.endpoint,
            self.identity,
            opened.abilities,
            self,
            handle,
            self.mark,
            session=self.mark,
            process=self.process,
            says=opened.client,
            search=SearchChoice(),
            on_dedicated=self._on_dedicated,
        )
        self._router.log_levels.set_none(self._caller)
        self._changes = changes = await track_changes(self._router, self._caller)
        self.opening = opened
        self.name = f"{self.name} ({excerpt(opened.client)})" if opened.client else self.name
        self._ready = _reached(self._ready)
        return changes

    def _is_undeclared(self, method: str) -> bool:
        """Whether the only server of the endpoint declares nothing for this method, neither now nor when the client was
        told what is declared: what it was told by then can be used."""
        return (
            self._declared is not None
            and self._declared.lacks(method)
            and self._router.is_undeclared(self._caller, method)
        )

    async def _result(self, handle: _RequestHandle, request: Request) -> Raw:
        if request.method == PING:
            return EMPTY_OBJECT
        if request.method == INITIALIZE:
            raise InvalidRequest("this session is already initialized; open a new one to initialize again")
        if not self._begun:
            raise InvalidRequest("send initialize first")
        if self.opening is None:
            # A client that does not wait for the response to initialize is served all the same
            await self._ready.wait()
        target, through = None, ""
        try:
            params: Mapping[str, Raw] = params_of(request)
            if request.method == TOOLS_CALL.name:
                params, through = self._router.tool_search.unwrap(self._caller, params)
        except AmbiguousMembers:
            self._router.record_ambiguous(request, self._caller, handle.address)
            raise
        if request.method in TARGETED:
            target = await self._router.resolver.resolve(self._caller, request.method, params)
        elif self._is_undeclared(request.method):
            raise MethodNotFound.of_method(request.method)
        exchange = Exchange(
            request,
            params,
            self._caller,
            handle,
            self.level,
            target=target,
            address=handle.address,
            through=through,
            scope=handle.scope,
        )
        if self._tasks is not None and self._caller.abilities.tasks:
            if request.method == TASKS_RESULT:
                handle.task = task_id_of(params)
            if request.method in IN_HANDSHAKE:
                return await self._tasks.answer_in_handshake(exchange)
            created = await self._tasks.start_if_requested(exchange)
            if created is not None:
                return created
        answer = await self._router.answer(exchange)
        assert isinstance(answer, Answered)
        if request.method in _REMEMBERED:
            self._remember(request.method, params)
        listing = LIST_METHOD_BY_NAME.get(request.method)
        if listing is not None and "cursor" not in params and self._changes is not None:
            self._changes.mark_listed(listing.kind)  # a cursor may show a former list
        return answer.result

    def _remember(self, method: str, params: Mapping[str, Raw]) -> None:
        """Note a request of _REMEMBERED that was answered with a result."""
        if method == SET_LEVEL:
            self.level = level_of(params)
        else:
            uri = string(params["uri"])
            if self.watched is None:
                self.watched = {}
            if (uri in self.watched) == (method == SUBSCRIBE):
                return
            if method == SUBSCRIBE:
                self.watched[uri] = None
            else:
                del self.watched[uri]
        self._changed()


_REACHED = trio.Event()
_REACHED.set()


def _reached(event: trio.Event) -> trio.Event:
    """Set an event. Returns one that is set, to be kept in its place: the same one for all of many sessions."""
    event.set()
    return _REACHED


def _asking(*, may_go_on: bool) -> OutstandingRequests[object]:
    """The requests to one client. `may_go_on`: it may answer one of a process that has ended: no request has that one's
    id, which is exact in JavaScript too."""
    return OutstandingRequests(last_id=secrets.randbelow(2**32) * 2**20 if may_go_on else 0)


_REMEMBERED = frozenset((SET_LEVEL, SUBSCRIBE, UNSUBSCRIBE))
"""Requests that change what must be done when the session is opened anew."""
FIRST_WATCH_DELAY, MAX_WATCH_DELAY = 1.0, 60.0
"""First and longest delay, in seconds, before a subscription of a session that was opened anew is requested again from
a server that is not there."""
OLD_STREAM_GRACE = 1.0
"""Seconds for which the former standing stream of a session may take to end when its client opens another."""


DraftSession = Callable[[str, Endpoint, str | None, str], tuple[str, Session]]
"""`draft_session` for one host."""


def draft_session(
    kind: str,
    endpoint: Endpoint,
    identity: str | None,
    id: str,
    *,
    router: Router,
    journal: Journal,
    tasks: Tasks,
    memory: Budget,
) -> tuple[str, Session]:
    """A session and its id; if that is empty, another one of 192 random bits. `kind` is for its name in the log."""
    id = id or secrets.token_urlsafe(24)
    name = f"{kind} {id[:6]}" if identity is None else f"{identity}, {kind} {id[:6]}"
    return id, Session(name, endpoint, router, journal, identity, tasks, memory=memory)


class _Use(IntEnum):  # of integers, because they are keys: see slots.py
    """The use of a session. Of one identity, those of a lesser use make room first."""

    IDLE = auto()
    LISTENING = auto()
    """Its standing stream is open."""
    ANSWERING = auto()
    """A request is in flight."""


class Sessions:
    """The open HTTP sessions by id, at most `limit`. An id has at least 144 random bits, and only its client knows it.
    `stored`: the rows with which another process opens them anew; None if they end with this one."""

    def __init__(self, draft: DraftSession, limit: int, stored: StoredSessions | None = None) -> None:
        self._stored = stored
        self._draft = draft
        self._limit = limit
        self._open: dict[str, Session] = {}
        self._uses: dict[str, _Use] = {}
        # For each identity and use, the ids of its sessions, the longest unused first: the one that makes room is found
        # without a look at all of them.
        self._held: dict[str | None, dict[_Use, OrderedDict[str, None]]] = {}
        self._listening: dict[str, tuple[trio.Event, trio.CancelScope]] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def draft(self, endpoint: Endpoint, identity: str | None, id: str = "") -> tuple[str, Session]:
        """A session that cannot be found by its id yet. `id`: that of a session that is opened anew."""
        if not id and self._stored is not None:
            id = self._stored.new_id()
        return self._draft("session", endpoint, identity, id)

    def add(self, id: str, session: Session) -> bool:
        """Register the session by its id. False if there are too many, and none can be removed for it."""
        if len(self._open) >= self._limit and not self._forget_one(session.identity):
            return False
        self._open[id] = session
        if session.identity not in self._held:
            self._held[session.identity] = {use: OrderedDict() for use in _Use}
        self._held[session.identity][_Use.IDLE][id] = None
        self._uses[id] = _Use.IDLE
        session.on_use = partial(self._on_use, id, session)
        if self._stored is not None:
            session.on_change = partial(self._stored.note, id)
            session.on_change()
        return True

    def find(self, id: str, endpoint: Endpoint, identity: str | None) -> Session | None:
        """The session with this id; None if it belongs to another endpoint or identity."""
        session = self._open.get(id)
        return session if session is not None and session.belongs_to(endpoint, identity) else None

    def get(self, id: str) -> Session | None:
        """The session with this id, of whichever endpoint and identity."""
        return self._open.get(id)

    def is_open(self, id: str) -> bool:
        """Whether there is a session with this id, of whichever endpoint and identity."""
        return id in self._open

    def end(self, id: str) -> None:
        """End a session for good."""
        if self._stored is not None:
            self._stored.end(id)
        self._remove(id)

    def give_up(self, id: str) -> None:
        """End a session here. Its client does not notice: the next process, or this one, opens it anew as long as its
        row holds."""
        session = self._open[id]
        if self._stored is not None:
            self._stored.give_up(id, session.describe(), self._used_at(id, session))
        self._remove(id)

    def drop(self, id: str) -> None:
        """End a session here that another process has by now. Its row is that one's."""
        if id in self._open:
            if self._stored is not None:
                self._stored.forget(id)
            self._remove(id)

    @property
    def ids(self) -> list[str]:
        return list(self._open)

    def _remove(self, id: str) -> None:
        session = self._open.pop(id)
        session.on_use = None
        held = self._held[session.identity]
        del held[self._uses.pop(id)][id]
        if not any(held.values()):
            del self._held[session.identity]
        session.end()

    def end_where(self, ends: Callable[[Endpoint, str | None], bool]) -> None:
        """End each session for whose endpoint and identity `ends` is true."""
        for id in [id for id, session in self._open.items() if ends(session.endpoint, session.identity)]:
            self.end(id)

    async def listen(self, id: str, scope: trio.CancelScope, *, takes_over: bool = False) -> bool:
        """Register the client's standing stream. False if there is one already; a former one that is about to end is
        waited for. `takes_over`: the client resumes that very stream, so the former reader is disconnected if it does
        not end by itself. `scope` holds the new one."""
        with trio.move_on_after(OLD_STREAM_GRACE):
            while id in self._listening:
                await self._listening[id][0].wait()
        while id in self._listening:
            if not takes_over:
                return False
            ended, former = self._listening[id]
            former.cancel("its client goes on elsewhere")
            await ended.wait()
        self._listening[id] = trio.Event(), scope
        if id in self._open:
            self._open[id].touch()
        return True

    def stop_listening(self, id: str) -> None:
        self._listening.pop(id)[0].set()
        if id in self._open:
            self._open[id].touch()

    def sweep(self) -> None:
        """Remove sessions that were idle for too long, and expired streams of the others."""
        for each, session in self._open.items():
            if session.history:
                session.history.sweep()
            if self._stored is not None:
                self._stored.touch(each, self._used_at(each, session))
        long_ago = trio.current_time() - IDLE_TIMEOUT
        for held in list(self._held.values()):
            while (id := next(iter(held[_Use.IDLE]), None)) is not None and self._open[id].last_used < long_ago:
                self.give_up(id)  # another process may have it, and use it; its row expires, too

    async def keep_stored(self) -> None:
        """Keep the rows of the sessions, until cancelled."""
        if self._stored is not None:
            await self._stored.run(self._describe, lambda: self._open)

    def _describe(self, id: str) -> tuple[SessionOpening | None, float] | None:
        session = self._open.get(id)
        return None if session is None else (session.describe(), self._used_at(id, session))

    def _used_at(self, id: str, session: Session) -> float:
        """When the session was used last, as Unix time: right now, if it is in use."""
        assert self._stored is not None
        unused = 0.0 if self._uses[id] is not _Use.IDLE else trio.current_time() - session.last_used
        return self._stored.now() - unused

    def _on_use(self, id: str, session: Session) -> None:
        use = _Use.ANSWERING if session.serving.count else _Use.LISTENING if id in self._listening else _Use.IDLE
        held, former = self._held[session.identity], self._uses[id]
        if use is former:
            held[use].move_to_end(id)
        else:
            del held[former][id]
            held[use][id] = None
            self._uses[id] = use

    def _count_of(self, identity: str | None) -> int:
        return sum(map(len, self._held.get(identity, {}).values()))

    def _forget_one(self, newcomer: str | None) -> bool:
        """Remove one session for one of `newcomer`: the oldest idle one of the identity with the most idle ones. An
        identity with fewer sessions than the newcomer loses none. If none is idle, one in use is removed if its
        identity has by far the most sessions, so that one identity's many sessions do not exclude others."""
        count = self._count_of(newcomer)
        idle = max(
            (held[_Use.IDLE] for identity, held in self._held.items() if self._count_of(identity) >= count),
            key=lambda ids: len(ids),
            default=None,
        )
        if idle:
            self.give_up(next(iter(idle)))
            return True
        most = max(self._held, key=self._count_of)
        if self._count_of(most) <= count + 1:  # two identities would otherwise remove each other's sessions in turns
            return False
        self.give_up(next(id for used in self._held[most].values() for id in used))
        return True
