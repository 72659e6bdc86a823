"""The Streamable HTTP link to a server, as its client (2025-03-26 to 2026-07-28, "Transports / Streamable HTTP").

Every message is a POST in its sender's task. Messages of the server that belong to no request come on one GET stream,
the *standalone stream*, which `run` keeps open. A request with headers of its own is stateless (2026-07-28): it has no
session and no standalone stream, ends with its POST, and is cancelled by closing it. Besides the rules of
`http_transport`, three rules hold:

- An exchange that breaks fails for its sender only. The link ends, with all its exchanges, only if the server cannot be
  reached or has ended the session.
- No request that may do something is sent twice, because the server may have executed it. Requests that only read are
  sent once more if the connection for it had been kept open and ends without a response. A broken response can be
  resumed by the id of its stream.
- A redirect within the server's origin is followed, unless a login's token would go along: it means that the request
  was not executed.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial

import trio
from msgspec import Raw

from host.jsonrpc.conversation import own_id
from host.jsonrpc.glance import LongMessage
from host.jsonrpc.messages import (
    METHOD_NOT_FOUND,
    Failure,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Success,
    read,
    write,
)
from host.jsonrpc.raw import value
from host.protocol.handshake import names_version, refuses_version
from host.protocol.methods import DISCOVER, INITIALIZE, INITIALIZED, LIST_METHODS, PING, REPEATABLE_METHODS
from host.protocol.versions import STATELESS, Revision
from host.wire.http_errors import (
    LET_PASS,
    LOGIN_PAGE_REMEDY,
    MAX_RETRY_PAUSE,
    PATH_REMEDY,
    AuthNeeded,
    HttpRefused,
    Unreachable,
)
from host.wire.http_pool import Headers
from host.wire.http_transport import (
    CLOSING_TIMEOUT,
    EVENT_STREAM,
    JSON,
    HttpExchanges,
    HttpResponse,
    Origin,
    messages_of_event,
    open_origin,
)
from host.wire.link import ConnectStage, Deliver, LinkLost, Parcel, ReceivedMessage, received_in
from host.wire.refusal_text import readable_text, said_of, wants_browser, wants_login
from host.wire.session_check import SessionCheck, speaks_of_session
from host.wire.sse import MAX_EVENT, EventParser, SseEvent

CONFLICT = 409
"""Status of a server that has not noticed the end of the former standalone stream yet."""
MAX_RESUMES = 5
"""Attempts in a row to resume a broken response that bring nothing new."""
STREAM_GRACE = 0.5
"""Seconds that `notifications/initialized` waits for the standalone stream to open. While it is not open, servers drop
the messages for it, server requests included, and then wait for the responses."""
STEADY_STREAM = 10.0
"""Seconds that a standalone stream that brought nothing must have been open for the next one to be opened at once."""
LAST_ANSWERS_TIMEOUT = 1.0
"""Seconds in which a server that has forgotten a session may refuse the other requests of that session."""
MIN_RETRY_PAUSE = 1.0
"""Seconds between two connections of one stream, also if the server asks for less with `retry`."""
MAX_KEPT_HEADERS = 64
"""Headers of stateless requests that are kept for the next request of the same method and name."""
MAX_KEPT_FIELDS = 3
"""Fields of a request whose headers are kept: revision, method and name. Values of arguments seldom come again."""

_POST_FIELDS = [("Accept", f"{JSON}, {EVENT_STREAM}"), ("Content-Type", JSON)]
_OPENING = (DISCOVER, INITIALIZE)
"""Requests to which a status of 500 with a JSON-RPC error is an answer: the server does not know, or refuses them."""
_SESSION = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]+")
# Bytes as in sse.MAX_FIELD. A space at an end would be lost, because it does not belong to the value of a header (RFC
# 9110, "Field Values").
_RESUMABLE_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")

_UNANSWERED = "its event stream ended without the response"


class SessionEnded(LinkLost):
    """The server does not know our session any more; a new link opens another one.

    Args:
        status: the one by which it said so.
        nothing_begun: it said so instead of processing the request (2025-11-25, "Session Management").
    """

    ended_session = True

    def __init__(self, status: int = 404, *, nothing_begun: bool = False) -> None:
        super().__init__(f"the server has ended the session (HTTP {status})")
        self.nothing_begun = nothing_begun


class _NotAResponse(LinkLost):
    """The server's HTTP response has no JSON-RPC response to the request."""

    answered = True
    reached = ConnectStage.NOTHING

    def __init__(self, what: str, said: str = "", remedy: str = "") -> None:
        super().__init__(what)
        self.said = said
        self.remedy = remedy


class HttpLink:
    """A `Link` over Streamable HTTP. Made by `open_http`."""

    def __init__(self, origin: Origin, on_dropped: Callable[[str, str], None]) -> None:
        self._origin = origin
        self._on_dropped = on_dropped
        self._deliver: Deliver = _deliver_before_run
        self._began = trio.Event()
        self._exchanges = HttpExchanges(origin.pool.abort)
        self._turn = origin.turns.turn()
        self._session: str | None = None
        self._revision: str | None = None
        self._batches = False
        self._stateless = False
        self._settled = False
        self._initialized = False
        self.hears_unasked = True
        self._may_listen = trio.Event()
        self._listen_attempted = trio.Event()
        self._check = SessionCheck(self._knows_session, self._opens_session)
        self._check_count = 0
        self._refused_with = 0
        self._initialize_params: Raw | None = None
        self._set_headers()

    async def run(self, deliver: Deliver) -> None:
        """Carry messages until cancelled; see `Link`.

        Raises:
            SessionEnded: the server does not know the session any more.
            LinkLost: the server cannot be reached.
        """
        self._deliver = deliver
        self._began.set()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._listen)
                nursery.start_soon(self._check_session)
                nursery.start_soon(self._origin.pool.close_idle)
                await self._exchanges.closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._exchanges.lost is not None and self._exchanges.lost.ended_session:
                # Also if this is cancelled: a call that the server refused with the session can be sent again.
                with trio.move_on_after(LAST_ANSWERS_TIMEOUT, shield=True):
                    await self._exchanges.wait_left()
                self._origin.pool.abort()
        assert self._exchanges.lost is not None
        raise self._exchanges.lost

    async def send(self, parcel: Parcel) -> None:
        """POST one message and finish its exchange: the response to a request has been delivered when this returns.

        A JSON-RPC response to a stateless server is dropped: such a server sends no requests (2026-07-28, "Streamable
        HTTP / Sending Messages").

        Raises:
            AuthNeeded, HttpRefused: the server returned an error status.
            SessionEnded: the server does not know the session any more; the link has ended.
            LinkLost: the server cannot be reached (the link has ended), or this exchange broke.
        """
        message = parcel.message
        if self._deliver is _deliver_before_run:  # nobody would take the response
            await self._began.wait()
        if not self._settled and isinstance(message, Request):
            self._stateless = bool(parcel.headers)  # until the era is settled, each request decides for itself
            if message.method == INITIALIZE and self._session is not None:
                self._session = None  # that of an `initialize` that was refused
                self._set_headers()
        if self._stateless and isinstance(message, Success | Failure):
            self._on_dropped("unexpected response", f"to {message.id!r:.80}, which a stateless server must not request")
            return
        with self._exchanges:
            repeatable = isinstance(message, Request) and message.method in REPEATABLE_METHODS
            try:
                headers = self._headers_of(parcel.headers) if parcel.headers else self._post_headers
                answer = await self._origin.request("POST", headers, write(message), repeatable=repeatable)
            except Unreachable as lost:
                raise self._unreachable(lost, len(self._exchanges) - 1) from lost.__cause__
            try:
                if isinstance(message, Request):
                    await self._take_answer(answer, message)
                else:
                    await self._take_receipt(answer)
            except BaseException as problem:  # otherwise its body has been read to the end
                if isinstance(problem, _NotAResponse) and self._session is not None and self._initialized:
                    self._check.doubt()
                answer.close()
                raise
        if isinstance(message, Notification) and message.method == INITIALIZED:
            self._initialized = True
            self._listen_when_ready()
            if self._may_listen.is_set():
                with trio.move_on_after(STREAM_GRACE):
                    await self._listen_attempted.wait()

    def settle(self, revision: Revision) -> None:
        """Set the revision. From now on every message names it, if it has a header for that, and the standalone stream
        is opened after `notifications/initialized`. A stateless revision has no session and no such stream; its
        requests bring their own headers."""
        self._stateless = revision.era is STATELESS
        self._revision = revision.name if revision.names_itself_in_http and not self._stateless else None
        self._batches = revision.has_batches
        self._settled = True
        if self._stateless:
            self._session = None
        self._set_headers()
        self._listen_when_ready()

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        if self._stateless:
            return  # the POST was closed, which cancels it (2026-07-28, "Streamable HTTP / Cancellation")
        with trio.move_on_after(CLOSING_TIMEOUT), suppress(LinkLost):
            await self.send(Parcel(notice, id))

    async def end_session(self) -> None:
        """Delete the session at the server, if there is one. Bounded in time, never fails."""
        if self._session is not None and self._exchanges.lost is None:
            await self._delete_session(self._session)

    async def _delete_session(self, session: str) -> None:
        # Shielded, because most links end by being cancelled, and a session that nobody deletes stays at the server.
        with trio.move_on_after(CLOSING_TIMEOUT, shield=True), suppress(LinkLost):
            answer = await self._request("DELETE", self._headers(session=session))
            await answer.discard()  # a server that does not support this returns 405

    def _listen_when_ready(self) -> None:
        # A server may refuse the stream while it still waits for the end of the handshake.
        if self._settled and self._initialized and not self._stateless:
            self._may_listen.set()

    def _set_headers(self) -> None:
        """Make the headers that all POSTs share. Made once, because doing so for each POST is measurably slower."""
        self._post_headers = self._headers(*_POST_FIELDS)
        self._with_fields = lru_cache(MAX_KEPT_HEADERS)(partial(_with_fields, self._post_headers))

    def _headers_of(self, fields: tuple[tuple[str, str], ...]) -> Headers:
        if len(fields) > MAX_KEPT_FIELDS:
            return _with_fields(self._post_headers, fields)
        return self._with_fields(fields)

    def _headers(self, *ours: tuple[str, str], session: str | None = None) -> Headers:
        """Headers of a request of this session, by default that of the link, if it has one."""
        headers = list(ours)
        if (session := session or self._session) is not None:
            headers.append(("Mcp-Session-Id", session))
        if self._revision is not None:
            headers.append(("MCP-Protocol-Version", self._revision))
        return self._origin.headers(headers)

    async def _request(self, method: str, headers: Headers) -> HttpResponse:
        """Send one HTTP request beside the exchanges, and return its response with the body unread. The caller closes
        the response."""
        try:
            return await self._origin.request(method, headers)
        except Unreachable as lost:
            raise self._unreachable(lost, len(self._exchanges)) from lost.__cause__

    def _unreachable(self, lost: Unreachable, exchanges: int) -> LinkLost:
        """The error for a server that no connection could be made to. It ends the link if there are no (other)
        exchanges: a server that stops accepts no connections any more, but may still respond on those it has."""
        return lost if exchanges else self._exchanges.connection_lost(lost)

    async def _take_receipt(self, answer: HttpResponse) -> None:
        if answer.is_success:
            await answer.discard()
            return
        refusal = self._refusal(answer)
        self._origin.explain(answer, refusal, await answer.said())
        if self._may_be_of_session(refusal):
            self._check.doubt()
        raise refusal

    async def _take_answer(self, answer: HttpResponse, request: Request) -> None:
        if not answer.is_success:
            await self._take_refusal(answer, request)
            return
        if request.method == INITIALIZE:  # before its response is delivered: what is sent then must name the session
            self._remember_session(answer)
            self._initialize_params = request.params
        kind = answer.media_type
        if kind == JSON:
            body = await answer.body()
            self._turn.begin()
            messages = received_in(body, self._batches, request.id)
            answered = False
            for received in messages:
                self._deliver(received)
                if isinstance(received.message, Failure):
                    self._doubt_session(received.message)
                answered = answered or _is_response_to(received.message, request.id)
                if len(messages) > 1:
                    await self._turn.yield_if_over()
            self._turn.account()
            if not answered:
                what, said = "it responded with JSON that is not a response to the request", readable_text(body)
                raise _NotAResponse(what, said, self._path_remedy)
        elif kind == EVENT_STREAM:
            await self._await_event(answer, request.id)
        else:
            text = await answer.said()
            if kind == "text/html":
                raise self._page(text)
            what = "it responded with neither JSON nor an event stream"
            said = ": ".join(filter(None, (kind, text)))
            raise answer.unreadable or _NotAResponse(what, said, self._path_remedy)
        if request.method != DISCOVER:  # which other transports may answer, too
            self._origin.has_served = True

    @property
    def _path_remedy(self) -> str:
        return "" if self._origin.has_served else PATH_REMEDY

    def _page(self, text: str) -> _NotAResponse:
        if wants_browser(text):
            what, remedy = "the web page of a firewall that wants a browser", LET_PASS
        elif wants_login(text):
            what, remedy = "a login page", LOGIN_PAGE_REMEDY
        else:
            what, remedy = "a web page", self._path_remedy
        return _NotAResponse(f"it responded with {what}, and not with JSON or an event stream", text, remedy)

    async def _take_refusal(self, answer: HttpResponse, request: Request) -> None:
        """Deliver the JSON-RPC error in the body of an error status, or raise the refusal if there is none.

        Some servers send JSON-RPC errors with an error status, and stateless ones must (2026-07-28, "Transports /
        Streamable HTTP"). With the two statuses of that revision, 400 and 404, an error without an id counts as the
        response, because the POST had no other request. Handshake servers that catch everything answer an unknown
        `server/discover` with 500 and such an error: that is an answer, and a bare 500 is an outage.

        With 400 and an error that speaks of the session, the request was not processed, if the session is over.
        """
        refusal = self._refusal(answer)
        if refusal.ended_session:
            raise SessionEnded(nothing_begun=True)
        status, failure = answer.status, await self._failure_in(answer, refusal, request)
        if self._may_be_of_session(refusal):
            assert isinstance(refusal, HttpRefused)
            if status == 400 and failure is not None and speaks_of_session(failure.error.message):
                if await self._check.finds_over():
                    raise SessionEnded(400, nothing_begun=True)
            else:
                self._check.doubt()
                refusal.nothing_begun = refusal.nothing_begun and status < 500
        if failure is not None:
            is_answer = failure.id is not None or (self._stateless and status in (400, 404)) or status >= 500
            if request.method == INITIALIZE:
                # It speaks JSON-RPC here; with 400 any refusal may be about the version.
                is_answer = is_answer or names_version(failure.error.message)
                refusal.may_be_http_sse = refusal.may_be_http_sse and not is_answer
                no_method = failure.error.code == METHOD_NOT_FOUND
                is_answer = is_answer and (status != 400 or refuses_version(failure.error) or no_method)
            elif status >= 500:
                refusal.answered, is_answer = True, False
            if is_answer:
                self._deliver(ReceivedMessage(Failure(failure.error, request.id), request.id))
                return
        raise refusal

    async def _failure_in(self, answer: HttpResponse, refusal: LinkLost, request: Request) -> Failure | None:
        """Read the body of an error status. Returns the JSON-RPC error in it, unless it is that of another request."""
        may_hold = isinstance(refusal, HttpRefused) and refusal.may_hold_answer
        # Go's `http.Error` sends JSON as text.
        is_text = answer.media_type == "text/plain" and answer.header("content-length") is not None
        is_json = answer.media_type == JSON or is_text
        if is_json and (may_hold or (answer.status >= 500 and request.method in _OPENING)):
            with suppress(LinkLost):
                body = await answer.body()
                message = read(body.removeprefix(BOM_UTF8))
                if isinstance(message, Failure) and (message.id is None or _is_response_to(message, request.id)):
                    refusal.said = said_of(message.error)
                    return message
                self._origin.explain(answer, refusal, readable_text(body))
            return None
        self._origin.explain(answer, refusal, await answer.said())
        return None

    def _doubt_session(self, failure: Failure) -> None:
        """Some servers say with status 200 that they do not know a session."""
        if self._session is not None and speaks_of_session(failure.error.message):
            self._check.doubt()

    def _may_be_of_session(self, refusal: LinkLost) -> bool:
        """Whether a refusal of a request of the session may mean that the session is over. Not while it begins, nor if
        the login is over or lacks a scope, or there are too many requests."""
        if self._session is None or not self._initialized or not isinstance(refusal, HttpRefused):
            return False
        is_of_login = isinstance(refusal, AuthNeeded) and (
            refusal.lost_login or (refusal.status == 403 and refusal.needs_login)
        )
        return refusal.status != 429 and not is_of_login

    async def _check_session(self) -> None:
        await self._check.run()
        if self._check.is_over:
            self._exchanges.connection_lost(SessionEnded(self._refused_with), abort=False)
        else:
            self._exchanges.connection_lost(LinkLost("it refuses its session, and opens no other one"))

    async def _knows_session(self) -> bool | None:
        """Send a `ping` in the session."""
        status, response, _ = await self._ask(PING, None, self._post_headers)
        if response is None and status in (0, 429):
            return None
        is_refused = response is None
        if isinstance(response, Failure):
            is_unknown_method = response.error.code == METHOD_NOT_FOUND
            is_refused = speaks_of_session(response.error.message) or (status >= 400 and not is_unknown_method)
        if is_refused:
            self._refused_with = status
        return not is_refused

    async def _opens_session(self) -> bool | None:
        """Send the `initialize` of this link once more, without the session, and delete the session that it opens: a
        new link opens its own, and negotiates."""
        _, response, opened = await self._ask(INITIALIZE, self._initialize_params, self._origin.headers(_POST_FIELDS))
        if not isinstance(response, Success):
            return False
        if _SESSION_ID.fullmatch(opened):
            await self._delete_session(opened)
        return True

    async def _ask(
        self, method: str, params: Raw | None, headers: Headers
    ) -> tuple[int, Success | Failure | None, str]:
        """Send a request of the check. Returns the status (0 without an answer), the response and the session in its
        header."""
        self._check_count += 1
        request = Request(f"check-{self._check_count}", method, params)
        try:
            answer = await self._origin.request("POST", headers, write(request))
            try:
                return answer.status, await self._response_in(answer, request.id), answer.header(_SESSION) or ""
            except BaseException:
                answer.close()
                raise
        except LinkLost:
            return 0, None, ""

    async def _response_in(self, answer: HttpResponse, id: Id) -> Success | Failure | None:
        found: list[Success | Failure] = []

        def take(messages: Iterable[ReceivedMessage]) -> Iterator[bool]:
            for received in messages:
                message = received.message
                if isinstance(message, LongMessage):
                    message = message.read()
                is_failure_without_id = isinstance(message, Failure) and message.id is None
                if isinstance(message, Success | Failure) and (is_failure_without_id or message.id == id):
                    found.append(message)
                yield bool(found)

        if answer.media_type == JSON:
            list(take(received_in(await answer.body(), self._batches, id)))
        elif answer.media_type == EVENT_STREAM and answer.is_success:
            events = EventParser(self._origin.max_message or MAX_EVENT)
            await answer.read_events(events, lambda event: take(messages_of_event(event, self._batches, id)))
            if not found:
                raise LinkLost(_UNANSWERED)  # a proxy may have ended it, which refuses nothing
        else:
            await answer.discard()
        return found[0] if found else None

    def _refusal(self, answer: HttpResponse) -> LinkLost:
        """The error for a status other than 2xx. 404 in a session ends the link."""
        if answer.status == 404 and self._session is not None:
            return self._exchanges.connection_lost(SessionEnded(), abort=False)
        return self._origin.refusal(answer)

    def _remember_session(self, answer: HttpResponse) -> None:
        """Take the session id from the response to `initialize` (2025-11-25, "Session Management": visible ASCII)."""
        session = answer.header(_SESSION)
        if session is None:
            return
        if not _SESSION_ID.fullmatch(session):
            raise LinkLost("its session id has characters other than visible ASCII")
        self._session = session
        self._set_headers()

    async def _await_event(self, answer: HttpResponse, id: Id) -> None:
        """Read the event stream of a request until its response. A broken stream is resumed if its events have ids
        (2025-11-25, "Resumability and Redelivery"), but never that of a stateless request (2026-07-28, "Streamable HTTP
        / Receiving Messages")."""
        stream = self._stream(id)
        await self._follow(answer, stream)
        left = MAX_RESUMES
        while not stream.answered:
            if self._stateless or not stream.resumable or left == 0:
                raise LinkLost(_UNANSWERED)
            with trio.move_on_after(stream.reconnect_delay):
                await self._exchanges.closed.wait()
            before = stream.position
            await self._resume(stream)
            left = left - 1 if stream.position == before else MAX_RESUMES

    def _stream(self, wanted: Id | None) -> _Stream:
        return _Stream(wanted, EventParser(self._origin.max_message or MAX_EVENT))

    async def _resume(self, stream: _Stream) -> None:
        try:
            answer = await self._open_stream(stream)
        except HttpRefused as refusal:
            raise LinkLost(_UNANSWERED) from refusal
        except LinkLost:
            if self._exchanges.lost is not None:
                raise
            return  # the attempt failed; the caller counts it
        await self._follow(answer, stream)

    async def _open_stream(self, stream: _Stream) -> HttpResponse:
        """Open an event stream with GET, from its last event id if it has one. The caller reads the response.

        Raises:
            HttpRefused: the server has no such stream.
            SessionEnded, LinkLost: as in `send`.
        """
        special = [("Accept", EVENT_STREAM)]
        if stream.resumable:
            special.append(("Last-Event-ID", stream.events.last_id))
        answer = await self._request("GET", self._headers(*special))
        if answer.is_success and answer.media_type == EVENT_STREAM:
            return answer
        await answer.discard()
        if answer.is_success:
            raise answer.unreadable or HttpRefused(answer.status, "the server has no event stream there", PATH_REMEDY)
        # A server without a standalone stream may return 404 for it in a live session; only a POST shows its end.
        raise (self._origin.refusal(answer) if stream.request_id is None else self._refusal(answer))

    async def _follow(self, answer: HttpResponse, stream: _Stream) -> None:
        """Deliver the messages of one connection of the stream, until it ends or the response has come.

        Raises:
            OverLimit: an event is over the limit and cannot be assigned to a request.
        """

        def take(event: SseEvent | Malformed) -> Iterator[bool]:
            stream.event_count += 1
            if isinstance(event, SseEvent) and event.event != "message":
                stream.events.useless_count += 1
                self._on_dropped("unexpected event", f"{event.event[:80]!r:.80}")
                return
            for received in messages_of_event(event, self._batches, stream.request_id):
                self._deliver(received)
                if isinstance(received.message, Failure):
                    self._doubt_session(received.message)
                if stream.request_id is not None:
                    stream.answered = stream.answered or _is_response_to(received.message, stream.request_id)
                yield stream.answered

        await answer.read_events(stream.events, take)

    async def _listen(self) -> None:
        """Keep the standalone stream open; return if the server has none."""
        await self._may_listen.wait()
        stream = self._stream(None)
        failures = 0
        opened = False
        while True:
            least = 0.0
            before, began = stream.position, trio.current_time()
            try:
                try:
                    answer = await self._open_stream(stream)
                finally:
                    self._listen_attempted.set()
                if opened and not stream.resumable:
                    self._report_missed_changes()
                opened = True
                await self._follow(answer, stream)
            except HttpRefused as refusal:
                if not refusal.is_transient and not opened:
                    self.hears_unasked = False
                    return
                if opened and self._may_be_of_session(refusal):
                    self._check.doubt()
                least = refusal.retry_after or 0.0
                if refusal.status != CONFLICT and (not refusal.is_transient or failures):
                    stream.forget_position()
            except LinkLost as lost:
                if self._exchanges.lost is not None:
                    return
                self._on_dropped("event stream broken", str(lost))
            # Proxies end streams without events after some seconds: the next one must not wait long, since changes that
            # the server announces meanwhile are heard of with its beginning.
            succeeded = stream.position != before or trio.current_time() - began >= STEADY_STREAM
            failures = 0 if succeeded else min(failures + 1, 7)  # 2 ** 6 times the shortest pause is over the longest
            await trio.sleep(max(least, min(stream.reconnect_delay * 2.0 ** max(failures - 1, 0), MAX_RETRY_PAUSE)))

    def _report_missed_changes(self) -> None:
        """Deliver a change notification for each list: notifications that the server sent while a stream without event
        ids was broken are lost."""
        for method in sorted({listing.list_changed for listing in LIST_METHODS.values()}):
            self._deliver(ReceivedMessage(Notification(method)))


class _Stream:
    """One event stream over all its connections. `request_id`: the request whose response it brings; None for the
    standalone stream."""

    def __init__(self, wanted: Id | None, events: EventParser) -> None:
        self.request_id = wanted
        self.answered = False
        self.events = events
        self.event_count = 0

    @property
    def position(self) -> tuple[int, str]:
        """A value that changes with every event."""
        return self.event_count, self.events.last_id

    @property
    def resumable(self) -> bool:
        """Whether the stream has a last event id that fits into a header."""
        return _RESUMABLE_ID.fullmatch(self.events.last_id) is not None

    def forget_position(self) -> None:
        """Begin anew with the next connection: the server does not know the last event any more."""
        self.events.last_id = ""

    @property
    def reconnect_delay(self) -> float:
        """Seconds before the next connection: the `retry` of the server, between MIN_RETRY_PAUSE and
        MAX_RETRY_PAUSE."""
        return min(max(self.events.retry or 0.0, MIN_RETRY_PAUSE), MAX_RETRY_PAUSE)


@asynccontextmanager
async def open_http(origin: Origin, on_dropped: Callable[[str, str], None]) -> AsyncIterator[HttpLink]:
    """Open a link to a server. Nothing is sent until `send`; at the end the session, if there is one, is deleted.

    Args:
        on_dropped: called for each message or event that is ignored, as (what, detail). Must not wait.
    """
    link = HttpLink(origin, on_dropped)
    try:
        yield link
    finally:
        await link.end_session()


def _deliver_before_run(received: ReceivedMessage) -> None:
    raise AssertionError("nothing can arrive before run")


def _with_fields(headers: Headers, fields: tuple[tuple[str, str], ...]) -> Headers:
    return [*headers, *((name.encode(), text.encode()) for name, text in fields)]


def _is_response_to(message: Message | Malformed | LongMessage, id: Id) -> bool:
    if type(message) is Success:  # a union of types takes as long to make as all of this
        return _means(message.id, id)
    if isinstance(message, LongMessage):
        return message.envelope.is_answer and _means(message.envelope.id, id)
    if isinstance(message, Malformed) and not message.answers:
        return False
    return isinstance(message, Success | Failure | Malformed) and _means(message.id, id)


def _means(found: Id | None, id: Id) -> bool:
    return (found == id and type(found) is type(id)) or own_id(found) == own_id(id) is not None


async def fetch_json(url: str, headers: Mapping[str, str]) -> object | None:
    """GET a JSON document. None if the server cannot be reached, or the response is not JSON."""
    try:
        async with open_origin(url, headers) as origin:
            answer = await origin.request("GET", origin.headers([("Accept", JSON)]))
            data = await answer.body()
        return value(data) if answer.is_success and answer.media_type == JSON else None
    except (LinkLost, ValueError):
        return None
