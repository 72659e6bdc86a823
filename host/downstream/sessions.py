"""What a handshake client and Colonnade know of each other between two messages: a session, over stdio or HTTP alike.

A session turns a request into an exchange, answers what belongs to the hop itself (initialize, ping, cancels), and
tells its client when its own view of the lists has changed. It knows no transport: streams and status codes are for
the faces.
"""

from __future__ import annotations

import secrets
from collections.abc import Awaitable, Callable, Iterator

import trio
from msgspec import Raw

from host.downstream.streams import EventStream, History
from host.errors import ColonnadeError, InvalidParams, InvalidRequest
from host.exchange import Caller, Exchange
from host.journal import Crashed, Journal
from host.jsonrpc.conversation import CANCELLED, Serving, cancelled_reason
from host.jsonrpc.messages import INTERNAL_ERROR, ErrorBody, Failure, Notification, Request, Success
from host.jsonrpc.raw import EMPTY_OBJECT, members
from host.protocol.handshake import Opening, opening, opening_answer
from host.protocol.methods import INITIALIZE, INITIALIZED, LISTING_BY_METHOD, LISTINGS, PING, Kind
from host.router import Router
from host.version import VERSION

SPACING = 0.5
"""Seconds between two rounds of list_changed for one client; changes in between are one."""

Tell = Callable[[Notification], None]
Send = Callable[[Notification], Awaitable[None]]


class Session:
    """One client at one endpoint. `opening` is what it said in its handshake, None before."""

    def __init__(self, name: str, endpoint: str | None, router: Router, journal: Journal) -> None:
        self.endpoint = endpoint
        self.opening: Opening | None = None
        self.serving: Serving[trio.CancelScope] = Serving()
        self.history = History()
        self.ended = trio.Event()
        self.last_used = trio.current_time()
        self._caller = Caller(name, endpoint)
        self._router = router
        self._journal = journal
        self._begun = False
        self._ready = trio.Event()
        self._initialized = trio.Event()
        # What the client has been shown or told of each kind: it is told again only when its view differs from this.
        self._known: dict[Kind, tuple[bytes, ...]] = {}
        self._told: set[Kind] = set()

    async def open(self, request: Request) -> Success | Failure:
        """Answer `initialize`; the session is open if that succeeds. Never called off (2025-11-25, "Cancellation")."""
        return await self._guarded(request, self._initialize)

    def begin(self, request: Request) -> trio.CancelScope:
        """Note a request as soon as it is read: a cancel may be the next thing that is. `answer` must follow."""
        scope = trio.CancelScope()
        self.serving.begin(request.id, scope)
        return scope

    async def answer(self, request: Request, scope: trio.CancelScope, tell: Tell) -> Success | Failure | None:
        """The answer to a request that was begun; None if the client called it off, which is answered with nothing."""
        try:
            with scope:
                await trio.lowlevel.checkpoint_if_cancelled()
                return await self._guarded(request, lambda request: self._result(request, tell))
            return None
        finally:
            self.serving.end(request.id, scope)
            self.last_used = trio.current_time()

    def begin_stream(self) -> EventStream:
        """A stream for one reply, as the client's revision has them."""
        revision = self.opening.revision if self.opening is not None else None
        return self.history.begin(
            resumes=revision is not None and revision.resumes_streams,
            primes=revision is not None and revision.primes_streams,
        )

    def told(self, notice: Notification) -> None:
        """Take a notification. Unknown ones mean nothing to us."""
        if notice.method == CANCELLED:
            scope = self.serving.named_by(notice)
            if scope is not None:
                scope.cancel(cancelled_reason(notice))
        elif notice.method == INITIALIZED:
            self._initialized.set()

    def end(self) -> None:
        """The client is gone for good: nobody waits for what is in flight, and nothing more is said."""
        self.ended.set()
        for scope in self.serving:
            scope.cancel("the client has ended its session")

    async def tell_changes(self, send: Send) -> None:
        """Tell the client of every list that is no longer as it knows it, until cancelled."""
        await self._ready.wait()
        await self._initialized.wait()
        for kind in self._told:  # told on a stream that is no more, and never asked for since: perhaps it was not heard
            self._known.pop(kind, None)
        version = 0
        while True:
            version = await self._router.catalog.after(version)
            changed = self._changed()
            for method, views in changed.items():
                await send(Notification(method))
                self._known |= views  # only now: a client that leaves in between has not been told
                self._told |= views.keys()
            if changed:
                self.last_used = trio.current_time()
                await trio.sleep(SPACING)

    def _changed(self) -> dict[str, dict[Kind, tuple[bytes, ...]]]:
        """The notices that are due, and what the client knows once it has got them."""
        due: dict[str, dict[Kind, tuple[bytes, ...]]] = {}
        for kind, listing in LISTINGS.items():
            now = self._router.view(self.endpoint, kind).definitions
            if self._known.get(kind) != now:
                due.setdefault(listing.changed, {})[kind] = now
        return due

    async def _guarded(self, request: Request, work: Callable[[Request], Awaitable[Raw]]) -> Success | Failure:
        """The one place where whatever goes wrong becomes an answer."""
        try:
            return Success(request.id, await work(request))
        except ColonnadeError as error:
            return Failure(ErrorBody(error.code, error.message, error.data), request.id)
        except Exception as problem:  # noqa: BLE001 - one request's trouble must not reach any other
            self._journal.note(Crashed(f"{request.method[:80]} for {self._caller.name}", problem))
            return Failure(ErrorBody(INTERNAL_ERROR, "Internal error in Colonnade; its log says more"), request.id)

    async def _initialize(self, request: Request) -> Raw:
        if self._begun:
            raise InvalidRequest("initialize was sent already")
        opened = opening(request.params)
        self._begun = True
        instructions = await self._router.instructions(self.endpoint)
        for kind in Kind:
            self._known[kind] = self._router.view(self.endpoint, kind).definitions
        self.opening = opened
        self._ready.set()
        return opening_answer(opened.revision, VERSION, instructions)

    async def _result(self, request: Request, tell: Tell) -> Raw:
        if request.method == PING:
            return EMPTY_OBJECT
        if request.method == INITIALIZE:
            raise InvalidRequest("this session is initialized already")
        if not self._begun:
            raise InvalidRequest("send initialize first")
        if self.opening is None:
            await self._ready.wait()  # a client that does not wait for the answer to initialize is served all the same
        try:
            params = members(request.params) if request.params is not None else {}
        except ValueError:
            raise InvalidParams("params is not an object") from None
        result = await self._router.answer(Exchange(request, params, self._caller, tell))
        listing = LISTING_BY_METHOD.get(request.method)
        if listing is not None and "cursor" not in params:  # a cursor may show a list of the past
            self._known[listing.kind] = self._router.view(self.endpoint, listing.kind).definitions
            self._told.discard(listing.kind)
        return result


MAX_SESSIONS = 1000
OLD_STREAM = 1.0
"""Seconds in which the former stream of a session may still end when its client opens another."""
IDLE = 3600.0
"""Seconds after which a session that is not used any more may be forgotten."""


class Sessions:
    """The open HTTP sessions by id. An id is 192 random bits, known to nobody but its client."""

    def __init__(self, router: Router, journal: Journal) -> None:
        self._router = router
        self._journal = journal
        self._open: dict[str, Session] = {}
        self._listening: dict[str, trio.Event] = {}

    def __iter__(self) -> Iterator[Session]:
        return iter(list(self._open.values()))

    def __len__(self) -> int:
        return len(self._open)

    def draft(self, endpoint: str | None) -> tuple[str, Session]:
        """A session that is not yet known by its id."""
        id = secrets.token_urlsafe(24)
        return id, Session(f"session {id[:6]}", endpoint, self._router, self._journal)

    def keep(self, id: str, session: Session) -> bool:
        """Make the session known by its id. False if there are too many and none of them is idle."""
        if len(self._open) >= MAX_SESSIONS and not self._forget_one():
            return False
        self._open[id] = session
        return True

    def find(self, id: str, endpoint: str | None) -> Session | None:
        """The session with this id at this endpoint; an id of another endpoint is as good as none."""
        session = self._open.get(id)
        if session is None or session.endpoint != endpoint:
            return None
        session.last_used = trio.current_time()
        return session

    def end(self, id: str) -> None:
        self._open.pop(id).end()

    async def listen(self, id: str) -> bool:
        """Note that the client opens its stream for what we say unasked. False if it has one already: one whose end is
        only on its way to us is waited for."""
        with trio.move_on_after(OLD_STREAM):
            while id in self._listening:
                await self._listening[id].wait()
        if id in self._listening:
            return False
        self._listening[id] = trio.Event()
        return True

    def stop_listening(self, id: str) -> None:
        self._listening.pop(id).set()
        if id in self._open:
            self._open[id].last_used = trio.current_time()

    def sweep(self) -> None:
        """Forget the sessions that have been idle for too long, and of the others the streams nobody came back for."""
        for id, session in list(self._open.items()):
            session.history.sweep()
            if self._idle(id, session) and trio.current_time() - session.last_used > IDLE:
                self.end(id)

    def _idle(self, id: str, session: Session) -> bool:
        return not len(session.serving) and id not in self._listening

    def _forget_one(self) -> bool:
        idle = [(session.last_used, id) for id, session in self._open.items() if self._idle(id, session)]
        if not idle:
            return False
        self.end(min(idle)[1])
        return True
