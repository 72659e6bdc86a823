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
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, suppress
from functools import lru_cache, partial

import trio

from host.jsonrpc.glance import LongMessage
from host.jsonrpc.messages import (
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
from host.memory import HoldingFactory, uncharged
from host.protocol.methods import INITIALIZE, INITIALIZED, LIST_METHODS, REPEATABLE_METHODS
from host.protocol.versions import STATELESS, Revision
from host.wire.http_errors import MAX_RETRY_PAUSE, HttpRefused, Unreachable
from host.wire.http_pool import Headers
from host.wire.http_transport import (
    CLOSING_TIMEOUT,
    EVENT_STREAM,
    JSON,
    Authorization,
    HttpExchanges,
    HttpResponse,
    Origin,
    Transport,
    messages_of_event,
    open_origin,
)
from host.wire.link import Deliver, LinkLost, Parcel, ReceivedMessage, received_in
from host.wire.sse import MAX_EVENT, Event, EventParser
from host.wire.turns import Turns

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

_SESSION = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]+")
# Bytes as in sse.MAX_FIELD. A space at an end would be lost, because it does not belong to the value of a header (RFC
# 9110, "Field Values").
_RESUMABLE_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")

_UNANSWERED = "its event stream ended without the response"


class SessionEnded(LinkLost):
    """The server does not know our session any more; a new link opens another one.

    Args:
        nothing_begun: it said so instead of processing the request (2025-11-25, "Session Management").
    """

    ended_session = True

    def __init__(self, *, nothing_begun: bool = False) -> None:
        super().__init__("the server has ended the session (HTTP 404)")
        self.nothing_begun = nothing_begun


class _NotAResponse(LinkLost):
    """The server's HTTP response has no JSON-RPC response to the request."""

    answered = True
    remedy = "correct the path in its url"


class HttpLink:
    """A `Link` over Streamable HTTP. Made by `open_http`."""

    def __init__(self, origin: Origin, on_dropped: Callable[[str, str], None]) -> None:
        self._origin = origin
        self._on_dropped = on_dropped
        self._deliver: Deliver = _deliver_before_run
        self._began = trio.Event()
        self._exchanges = HttpExchanges(origin.abort)
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
                nursery.start_soon(self._origin.close_idle)
                await self._exchanges.closed.wait()
                nursery.cancel_scope.cancel()
        finally:
            if self._exchanges.lost is not None and self._exchanges.lost.ended_session:
                # Also if this is cancelled: a call that the server refused with the session can be sent again.
                with trio.move_on_after(LAST_ANSWERS_TIMEOUT, shield=True):
                    await self._exchanges.wait_left()
                self._origin.abort()
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
        if not self._began.is_set():  # nobody would take the response
            await self._began.wait()
        if not self._settled and isinstance(message, Request):
            self._stateless = bool(parcel.headers)  # until the era is settled, each request decides for itself
        if self._stateless and isinstance(message, Success | Failure):
            self._on_dropped("unexpected response", f"to {message.id!r:.80}, which a stateless server must not request")
            return
        with self._exchanges:
            repeatable = isinstance(message, Request) and message.method in REPEATABLE_METHODS
            try:
                answer = await self._origin.request(
                    "POST", self._headers_of(parcel), write(message), repeatable=repeatable
                )
            except Unreachable as lost:
                raise self._unreachable(lost, len(self._exchanges) - 1) from lost.__cause__
            try:
                if isinstance(message, Request):
                    await self._take_answer(answer, message)
                else:
                    await self._take_receipt(answer)
            except BaseException:  # otherwise its body has been read to the end
                await answer.aclose()
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
        if self._session is None or self._exchanges.lost is not None:
            return
        # Shielded, because most links end by being cancelled, and a session that nobody deletes stays at the server.
        with trio.move_on_after(CLOSING_TIMEOUT, shield=True), suppress(LinkLost):
            answer = await self._request("DELETE", self._headers())
            await answer.discard()  # a server that does not support this returns 405

    def _listen_when_ready(self) -> None:
        # A server may refuse the stream while it still waits for the end of the handshake.
        if self._settled and self._initialized and not self._stateless:
            self._may_listen.set()

    def _set_headers(self) -> None:
        """Make the headers that all POSTs share. Made once, because doing so for each POST is measurably slower."""
        self._post_headers = self._headers(
            ("Accept", f"{JSON}, {EVENT_STREAM}"),
            ("Content-Type", JSON),
        )
        self._with_fields = lru_cache(MAX_KEPT_HEADERS)(partial(_with_fields, self._post_headers))

    def _headers_of(self, parcel: Parcel) -> Headers:
        fields = parcel.headers
        if not fields:
            return self._post_headers
        if len(fields) > MAX_KEPT_FIELDS:
            return _with_fields(self._post_headers, fields)
        return self._with_fields(fields)

    def _headers(self, *ours: tuple[str, str]) -> Headers:
        headers = list(ours)
        if self._session is not None:
            headers.append(("Mcp-Session-Id", self._session))
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
        await answer.discard()
        if not answer.is_success:
            raise self._refusal(answer)

    async def _take_answer(self, answer: HttpResponse, request: Request) -> None:
        if not answer.is_success:
            await self._take_refusal(answer, request)
            return
        if request.method == INITIALIZE:  # before its response is delivered: what is sent then must name the session
            self._remember_session(answer)
        kind = answer.media_type
        if kind == JSON:
            body = await answer.body()
            self._turn.begin()
            messages = received_in(body, self._batches, request.id)
            answered = False
            for received in messages:
                self._deliver(received)
                answered = answered or _is_response_to(received.message, request.id)
                if len(messages) > 1:
                    await self._turn.yield_if_over()
            self._turn.account()
            if not answered:
                raise _NotAResponse("it responded with JSON that is not a response to the request")
        elif kind == EVENT_STREAM:
            await self._await_event(answer, request.id)
        else:
            await answer.discard()
            if kind == "text/html":
                raise _NotAResponse("it responded with a web page, and not with JSON or an event stream")
            raise _NotAResponse("it responded with neither JSON nor an event stream, or with a compressed body")

    async def _take_refusal(self, answer: HttpResponse, request: Request) -> None:
        """Deliver the JSON-RPC error in the body of an error status, or raise the refusal if there is none.

        Some servers send JSON-RPC errors with an error status, and stateless ones must (2026-07-28, "Transports /
        Streamable HTTP"). With the two statuses of that revision, 400 and 404, an error without an id counts as the
        response, because the POST had no other request.
        """
        refusal = self._refusal(answer)
        if refusal.ended_session:
            raise SessionEnded(nothing_begun=True)
        if isinstance(refusal, HttpRefused) and refusal.may_hold_answer and answer.media_type == JSON:
            with suppress(LinkLost):
                message = read(await answer.body())
                lenient = self._stateless and answer.status in (400, 404)
                if isinstance(message, Failure) and (
                    _is_response_to(message, request.id) or (lenient and message.id is None)
                ):
                    self._deliver(ReceivedMessage(Failure(message.error, request.id), request.id))
                    return
        else:
            await answer.discard()
        raise refusal

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
            raise HttpRefused(answer.status, "the server has no event stream there", "correct the path in its url")
        # A server without a standalone stream may return 404 for it in a live session; only a POST shows its end.
        raise (self._origin.refusal(answer) if stream.request_id is None else self._refusal(answer))

    async def _follow(self, answer: HttpResponse, stream: _Stream) -> None:
        """Deliver the messages of one connection of the stream, until it ends or the response has come.

        Raises:
            OverLimit: an event is over the limit and cannot be assigned to a request.
        """

        def take(event: Event | Malformed) -> Iterator[bool]:
            stream.event_count += 1
            if isinstance(event, Event) and event.event != "message":
                stream.events.useless_count += 1
                self._on_dropped("unexpected event", f"{event.event[:80]!r:.80}")
                return
            for received in messages_of_event(event, self._batches, stream.request_id):
                self._deliver(received)
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
                least = refusal.retry_after or 0.0
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

    @property
    def reconnect_delay(self) -> float:
        """Seconds before the next connection: the `retry` of the server, between MIN_RETRY_PAUSE and
        MAX_RETRY_PAUSE."""
        return min(max(self.events.retry or 0.0, MIN_RETRY_PAUSE), MAX_RETRY_PAUSE)


@asynccontextmanager
async def open_http(
    url: str,
    headers: Mapping[str, str],
    on_dropped: Callable[[str, str], None],
    *,
    transport: Transport | None = None,
    turns: Turns | None = None,
    max_message: int | None = None,
    hold: HoldingFactory = uncharged,
    authorization: Authorization | None = None,
) -> AsyncIterator[HttpLink]:
    """Open a link to the server at `url`. Nothing is sent until `send`; at the end the session, if there is one, is
    deleted, and all connections are closed.

    Args:
        headers, transport, turns, max_message, hold, authorization: see `open_origin`.
        on_dropped: called for each message or event that is ignored, as (what, detail). Must not wait.

    Raises:
        LinkLost: the URL or a header cannot be used.
    """
    async with open_origin(
        url, headers, transport, turns=turns, max_message=max_message, hold=hold, authorization=authorization
    ) as origin:
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
    if isinstance(message, LongMessage):
        return message.envelope.is_answer and type(message.envelope.id) is type(id) and message.envelope.id == id
    if isinstance(message, Malformed) and not message.answers:
        return False
    return isinstance(message, Success | Failure | Malformed) and type(message.id) is type(id) and message.id == id


async def fetch_json(url: str, headers: Mapping[str, str]) -> object | None:
    """GET a JSON document. None if the server cannot be reached, or the response is not JSON."""
    try:
        async with open_origin(url, headers) as origin:
            answer = await origin.request("GET", origin.headers([("Accept", JSON)]))
            data = await answer.body()
        return value(data) if answer.is_success and answer.media_type == JSON else None
    except (LinkLost, ValueError):
        return None
