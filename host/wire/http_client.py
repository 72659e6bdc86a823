"""The Streamable HTTP link to a server, as a client of it (2025-03-26 to 2026-07-28, "Transports / Streamable HTTP").

Every message is a POST in its sender's own task; what the server says unasked comes on one GET stream, which `run`
keeps open. A request with headers of its own is stateless (2026-07-28): it knows no session and no such stream, ends
with its POST, and is called off by closing that. Three rules hold throughout, beside those of `http_transport`, which
knows how to ask:

- An exchange that breaks is its sender's failure. Only a server that cannot be reached, or that has ended the session,
  ends the link, and then every exchange with it.
- Nothing is sent twice: a broken answer may be asked for again by the id of its stream, the request itself never is.
- A redirect is followed where the server moves within itself, which says that the request was not carried out.
"""

from __future__ import annotations

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from contextlib import asynccontextmanager, suppress

import trio

from host.jsonrpc.messages import (
    Failure,
    Id,
    Malformed,
    Message,
    Notification,
    Request,
    Success,
    read,
    read_each,
    write,
)
from host.jsonrpc.raw import value
from host.memory import HoldingFactory, uncharged
from host.protocol.methods import INITIALIZE, INITIALIZED, LIST_METHODS
from host.protocol.versions import Revision
from host.wire.http_transport import (
    CLOSING_TIMEOUT,
    EVENT_STREAM,
    JSON,
    MAX_RETRY_PAUSE,
    Headers,
    HttpExchanges,
    HttpRefused,
    HttpResponse,
    Origin,
    Transport,
    Unreachable,
    open_origin,
)
from host.wire.link import Deliver, LinkLost, Parcel, ReceivedMessage
from host.wire.sse import MAX_EVENT, Event, EventParser
from host.wire.turns import Turns

MAX_RESUMES = 5
"""Times in a row that a broken answer is asked for again without anything new coming."""
STREAM_GRACE = 0.5
"""Seconds that the first request after the handshake waits for the stream of what the server says unasked: servers drop
what they want to say while it is not open, questions included, and then wait for the answer."""
MIN_RETRY_PAUSE = 1.0

_SESSION = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]+")
_RESUMABLE_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")

_UNANSWERED = "its event stream ended: the answer did not come"


class SessionEnded(LinkLost):
    """The server does not know our session any more; a new link begins a new one."""

    ended_session = True


class _NotAResponse(LinkLost):
    """The server answered a request with something that is no answer."""

    answered = True


class HttpLink:
    """See `open_http`. Implements `Link`."""

    def __init__(self, origin: Origin, on_dropped: Callable[[str, str], None]) -> None:
        self._origin = origin
        self._on_dropped = on_dropped
        self._deliver: Deliver = _deliver_before_run
        self._began = trio.Event()
        self._exchanges = HttpExchanges()
        self._session: str | None = None
        self._revision: str | None = None
        self._batches = False
        self._stateless = False
        self._settled = False
        self._initialized = False
        self._may_listen = trio.Event()
        self._listen_attempted = trio.Event()
        self._set_headers()

    async def run(self, deliver: Deliver) -> None:
        """Carry messages for as long as the link is used; see `Link`.

        Raises:
            SessionEnded: the server does not know the session any more.
            LinkLost: the server cannot be reached.
        """
        self._deliver = deliver
        self._began.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            await self._exchanges.closed.wait()
            nursery.cancel_scope.cancel()
        assert self._exchanges.lost is not None
        raise self._exchanges.lost

    async def send(self, parcel: Parcel) -> None:
        """POST one message, and see its exchange through: a request's answer is delivered when this returns.

        A stateless server has nothing to ask, and its POST takes no answers: one is dropped.

        Raises:
            AuthNeeded, HttpRefused: the server's status was no answer.
            SessionEnded: it does not know the session any more; the link is over.
            LinkLost: it cannot be reached (then the link is over), or this exchange broke.
        """
        message = parcel.message
        if not self._began.is_set():
            await self._began.wait()
        if not self._settled and isinstance(message, Request):
            self._stateless = bool(parcel.headers)  # until it is settled, each request asks in its own way
        if self._stateless and isinstance(message, Success | Failure):
            self._on_dropped("unexpected answer", f"to {message.id!r:.80}, which a stateless server may not ask")
            return
        with self._exchanges.begin():
            answer = await self._request("POST", self._headers_of(parcel), write(message))
            try:
                if isinstance(message, Request):
                    await self._take_answer(answer, message)
                else:
                    await self._take_receipt(answer)
            finally:
                await answer.aclose()
        if isinstance(message, Notification) and message.method == INITIALIZED:
            self._initialized = True
            self._listen_when_ready()
            if self._may_listen.is_set():
                with trio.move_on_after(STREAM_GRACE):
                    await self._listen_attempted.wait()

    def settle(self, revision: Revision) -> None:
        """The handshake is over, or none is needed. From now on everything names the revision, where it has a header
        for that; and the stream for what the server says unasked is opened, once `notifications/initialized` has been
        sent. With a stateless revision there is neither that nor a session, and each request brings its headers."""
        self._stateless = revision.stateless
        self._revision = revision.name if revision.names_itself_in_http and not revision.stateless else None
        self._batches = revision.has_batches
        self._settled = True
        if revision.stateless:
            self._session = None
        self._set_headers()
        self._listen_when_ready()

    async def send_cancel(self, id: Id, notice: Notification) -> None:
        if self._stateless:
            return  # its POST was closed with whoever waited for it, and that says it
        with trio.move_on_after(CLOSING_TIMEOUT), suppress(LinkLost):
            await self.send(Parcel(notice, id))

    async def end_session(self) -> None:
        """Tell the server that its session is not needed any more, if it has one. Bounded in time, never fails."""
        if self._session is None or self._exchanges.lost is not None:
            return
        with trio.move_on_after(CLOSING_TIMEOUT, shield=True), suppress(LinkLost):
            answer = await self._request("DELETE", self._headers())
            await answer.discard()  # a server that does not allow this says 405

    def _listen_when_ready(self) -> None:
        # A server may refuse the stream while it still waits for the end of the handshake.
        if self._settled and self._initialized and not self._stateless:
            self._may_listen.set()

    def _set_headers(self) -> None:
        """Those of a POST are made once: that is where the speed is."""
        self._post_headers = self._headers(
            ("Accept", f"{JSON}, {EVENT_STREAM}"),
            ("Content-Type", JSON),
        )

    def _headers_of(self, parcel: Parcel) -> Headers:
        if not parcel.headers:
            return self._post_headers
        return [*self._post_headers, *((name.encode(), text.encode()) for name, text in parcel.headers)]

    def _headers(self, *ours: tuple[str, str]) -> Headers:
        said = list(ours)
        if self._session is not None:
            said.append(("Mcp-Session-Id", self._session))
        if self._revision is not None:
            said.append(("MCP-Protocol-Version", self._revision))
        return self._origin.headers(said)

    async def _request(self, method: str, headers: Headers, body: bytes | None = None) -> HttpResponse:
        """The head of the answer. Whoever gets it closes it."""
        try:
            return await self._origin.request(method, headers, body)
        except Unreachable as lost:
            # A server that stops takes no connections any more, but may still answer on those it has.
            if len(self._exchanges) > (method == "POST"):
                raise
            raise self._exchanges.connection_lost(lost) from lost.__cause__

    async def _take_receipt(self, answer: HttpResponse) -> None:
        await answer.discard()
        if not answer.is_success:
            raise self._refusal(answer)

    async def _take_answer(self, answer: HttpResponse, request: Request) -> None:
        if not answer.is_success:
            await self._take_refusal(answer, request)
            return
        if request.method == INITIALIZE:
            self._remember_session(answer)
        kind = answer.media_type
        if kind == JSON:
            body = await answer.body()
            turn = self._origin.turns.turn()
            answered = self._take(body, request.id, request.id)
            turn.account()
            if not answered:
                raise _NotAResponse("it answered with something that is no answer to the request")
        elif kind == EVENT_STREAM:
            await self._await_event(answer, request.id)
        else:
            await answer.discard()
            raise _NotAResponse("it answered with neither plain JSON nor a plain event stream")

    async def _take_refusal(self, answer: HttpResponse, request: Request) -> None:
        """Returns if the body holds the request's own error: some servers send those with a status that fits, and
        stateless ones must (2026-07-28, "Transports / Streamable HTTP"). With their two, 400 and 404, an error without
        an id is taken for one: nothing else was asked in that POST."""
        refusal = self._refusal(answer)
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
        """What a status other than 2xx means. One of them ends the link."""
        if answer.status == 404 and self._session is not None:
            return self._exchanges.connection_lost(SessionEnded("the server has ended the session (HTTP 404)"))
        return answer.refusal()

    def _remember_session(self, answer: HttpResponse) -> None:
        """Remember the session (2025-11-25, "Session Management": visible ASCII)."""
        session = answer.header(_SESSION)
        if session is None:
            return
        if not _SESSION_ID.fullmatch(session):
            raise LinkLost("its session id holds something else than visible ASCII characters")
        self._session = session
        self._set_headers()

    def _take(self, data: bytes, about: Id | None, wanted: Id | None) -> bool:
        """Deliver what is in `data`; whether it answers the request `request_id`."""
        return self._take_each(read_each(data, self._batches), about, wanted)

    def _take_each(self, messages: Iterable[Message | Malformed], about: Id | None, wanted: Id | None) -> bool:
        answered = False
        for message in messages:
            self._deliver(ReceivedMessage(message, about))
            answered = answered or (wanted is not None and _is_response_to(message, wanted))
        return answered

    async def _await_event(self, answer: HttpResponse, id: Id) -> None:
        """Follow the stream of a request until its answer. A stream that broke is resumed where it can be
        (2025-11-25, "Resumability and Redelivery"); that of a stateless request cannot, whatever its events say."""
        stream = self._stream(id)
        await self._follow(answer, stream)
        left = MAX_RESUMES
        while not stream.answered:
            if self._stateless or not stream.resumable or left == 0:
                raise LinkLost(_UNANSWERED)
            await trio.sleep(stream.reconnect_delay)
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
            return  # it broke: that was one of the times
        await self._follow(answer, stream)

    async def _open_stream(self, stream: _Stream) -> HttpResponse:
        """The stream opened with a GET, from where it has got to. Whoever gets the answer follows it.

        Raises:
            HttpRefused: the server has none.
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
            raise HttpRefused(answer.status, "the server has no event stream")
        # A server without this stream may say 404 to it in the best of sessions: only a POST can tell that one ended.
        raise answer.refusal() if stream.request_id is None else self._refusal(answer)

    async def _follow(self, answer: HttpResponse, stream: _Stream) -> None:
        """Deliver the messages of one connection of the stream, to its end or until the answer came.

        Raises:
            OverLimit: an event is too long, and cannot be assigned to a request.
        """

        def take(event: Event | Malformed) -> bool:
            stream.event_count += 1
            if isinstance(event, Malformed):
                stream.answered = self._take_each((event,), stream.request_id, stream.request_id) or stream.answered
            elif event.event != "message":
                self._on_dropped("unexpected event", f"{event.event[:80]!r:.80}")
            elif event.data:  # without data it only gives the stream a position
                stream.answered = self._take(event.data, stream.request_id, stream.request_id) or stream.answered
            return stream.answered

        await answer.read_events(stream.events, take)

    async def _listen(self) -> None:
        """Keep the stream open for what the server says unasked, if it has one; returns if it has none."""
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
                    return
                least = refusal.retry_after or 0.0
            except LinkLost as lost:
                if self._exchanges.lost is not None:
                    return
                self._on_dropped("event stream broken", str(lost))
            fruitful = stream.position != before or trio.current_time() - began >= MAX_RETRY_PAUSE
            failures = 0 if fruitful else min(failures + 1, 7)
            await trio.sleep(max(least, min(stream.reconnect_delay * 2.0 ** max(failures - 1, 0), MAX_RETRY_PAUSE)))

    def _report_missed_changes(self) -> None:
        """What the server said while the stream was broken is lost for good: any list may have changed."""
        for method in sorted({listing.list_changed for listing in LIST_METHODS.values()}):
            self._deliver(ReceivedMessage(Notification(method)))


class _Stream:
    """One event stream over all its connections. `request_id`: the request that it answers; None if it serves none."""

    def __init__(self, wanted: Id | None, events: EventParser) -> None:
        self.request_id = wanted
        self.answered = False
        self.events = events
        self.event_count = 0

    @property
    def position(self) -> tuple[int, str]:
        """Changes with whatever comes."""
        return self.event_count, self.events.last_id

    @property
    def resumable(self) -> bool:
        """Whether there is an id to resume after that fits into a header."""
        return _RESUMABLE_ID.fullmatch(self.events.last_id) is not None

    @property
    def reconnect_delay(self) -> float:
        """Seconds before the next connection: what the server asked for, within bounds."""
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
) -> AsyncIterator[HttpLink]:
    """A link to the server at `url` for the block. Nothing is sent until somebody sends; at the end the session, if the
    server gave one, is given back, and all connections are closed.

    Args:
        headers, transport, turns, max_message, hold: see `open_origin`.
        dropped: told of what was left unread, as (what, detail). Must not wait.

    Raises:
        LinkLost: the URL or a header cannot be used.
    """
    async with open_origin(url, headers, transport, turns=turns, max_message=max_message, hold=hold) as origin:
        link = HttpLink(origin, on_dropped)
        try:
            yield link
        finally:
            await link.end_session()


def _deliver_before_run(received: ReceivedMessage) -> None:
    raise AssertionError("nothing can arrive before run")


def _is_response_to(message: Message | Malformed, id: Id) -> bool:
    if isinstance(message, Malformed) and not message.answers:
        return False
    return isinstance(message, Success | Failure | Malformed) and type(message.id) is type(id) and message.id == id


async def fetch_json(url: str, headers: Mapping[str, str]) -> object | None:
    """What a plain GET of `url` answers, decoded; None if that is no JSON, or nobody answers."""
    try:
        async with open_origin(url, headers) as origin:
            answer = await origin.request("GET", origin.headers([("Accept", JSON)]))
            data = await answer.body()
        return value(data) if answer.is_success and answer.media_type == JSON else None
    except (LinkLost, ValueError):
        return None
