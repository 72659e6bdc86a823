"""The transport of 2024-11-05 ("Transports / HTTP with SSE"), for clients that support no later one.

    GET   /sse                         the one stream of a session: its first event names the URL for messages;
                                       every message of ours follows, including responses
    POST  /message?session_id=...      a message of the client; its response is sent on the stream
    POST  /message                     a request without a session; its response is the body

The stream is the session: its end ends the session and everything in flight.
"""

from __future__ import annotations

from collections import deque
from contextlib import suppress
from urllib.parse import parse_qs

import trio

from host.attempts import Reason
from host.downstream.charge import answer_too_large
from host.downstream.drain import STOPPING
from host.downstream.duplex import DuplexSession
from host.downstream.http.open_streams import StreamKind
from host.downstream.http.replies import MAX_KEPT, STREAM_HEADERS, send_answer
from host.downstream.http.request import HttpRequest, Rejected, read_message
from host.downstream.http.security import Refusal, refuse_accept, refuse_body
from host.downstream.http.stateless import HttpParts
from host.downstream.sessions import Session
from host.errors import Unavailable
from host.jsonrpc.messages import Failure, Malformed, Message, Request, Success, write
from host.memory import Budget, OverBudget, Use, client_owner
from host.protocol.methods import INITIALIZE
from host.wire.asgi import NO_HEADERS, Send, send_body, start_response, until_disconnect
from host.wire.sse import format_event

PING_INTERVAL = 30.0
"""Seconds between two events that keep a stream alive while nothing else is sent."""
SESSION = "session_id"


class HttpSse:
    def __init__(self, parts: HttpParts) -> None:
        self._parts = parts
        self._open: dict[str, tuple[Session, DuplexSession]] = {}

    async def serve_stream(self, http_request: HttpRequest) -> None:
        if http_request.method != "GET":
            raise Rejected(Refusal(405, "expected GET", {"allow": "GET, OPTIONS"}))
        refusal = refuse_accept(http_request.headers, "text/event-stream")
        if refusal is not None:
            raise Rejected(refusal)
        if self._parts.drain.noticed.is_set():
            raise Rejected(STOPPING, Unavailable.code)
        id = "" if self._parts.forwarding is None else self._parts.forwarding.new_id()
        id, session = self._parts.draft("sse session", http_request.endpoint, http_request.identity, id)
        ending = trio.CancelScope()
        try:
            with self._parts.streams.slot(
                StreamKind.SSE,
                http_request.endpoint,
                http_request.identity,
                ending.cancel,
                in_use=lambda: session.serving.count > 0,
            ):
                http_request.charge.release()  # from now on, it is a stream, and each message a request of its own
                await self._serve(http_request, id, session, ending)
        finally:
            session.end()
        await send_body(http_request.send, b"", more=False)

    async def _serve(self, http_request: HttpRequest, id: str, session: Session, ending: trio.CancelScope) -> None:
        there = f"/message/{http_request.suffix}" if http_request.suffix else "/message"
        with ending:
            async with until_disconnect(http_request.receive) as nursery:
                outgoing = _EventQueue(self._parts.memory, http_request.identity, nursery.cancel_scope)
                outgoing.enqueue_event(format_event(f"{there}?{SESSION}={id}".encode(), event="endpoint"))
                self._parts.clients.add(session, "sse")
                self._open[id] = session, DuplexSession(session, outgoing.enqueue, outgoing.send, nursery)
                try:
                    await start_response(http_request.send, 200, {**http_request.cors_headers, **STREAM_HEADERS})
                    nursery.start_soon(outgoing.ping)
                    with session.listening(self._parts.stateless.announcements, outgoing.enqueue):
                        await outgoing.write_events(http_request.send)
                finally:
                    del self._open[id]  # before its nursery is closed, which still takes messages
                    outgoing.held.release()

    async def serve_message(self, http_request: HttpRequest) -> None:
        if http_request.method != "POST":
            raise Rejected(Refusal(405, "expected POST", {"allow": "POST, OPTIONS"}))
        refusal = refuse_body(http_request.headers)
        if refusal is not None:
            raise Rejected(refusal)
        named = parse_qs(http_request.query, keep_blank_values=True).get(SESSION)
        if named is None:
            await self._answer_alone(http_request)
            return
        self._find(http_request, named)
        received = await read_message(http_request, self._parts.reader)
        session, channel = self._find(http_request, named)  # looked up again, because it may have ended meanwhile
        message = received.message
        if isinstance(message, Malformed) and not message.answers and not session.sends_batches:
            raise Rejected(Refusal(400, message.why), message.code, message.id)
        channel.on_received(received, http_request.address)
        await http_request.respond(202)

    def _find(self, http_request: HttpRequest, named: list[str]) -> tuple[Session, DuplexSession]:
        found = self._open.get(named[0]) if len(named) == 1 else None
        if found is None or not found[0].belongs_to(http_request.endpoint, http_request.identity):
            why = "Session not found; it may have expired. Open a session with GET /sse"
            raise Rejected(Refusal(404, why, attempt=None if found is None else Reason.SESSION))
        return found

    async def _answer_alone(self, http_request: HttpRequest) -> None:
        """Answer a message without a session. Its client can be sent nothing but the response, on this connection, so a
        disconnect cancels the request."""
        message = (await read_message(http_request, self._parts.reader)).message
        if isinstance(message, Malformed) and not message.answers:
            raise Rejected(Refusal(400, message.why), message.code, message.id)
        if not isinstance(message, Request):
            await http_request.respond(202)
            return
        name, parts = http_request.identity or "no session", self._parts
        session = Session(
            name, http_request.endpoint, parts.router, parts.journal, http_request.identity, memory=parts.memory
        )
        answer: Success | Failure | None = None
        async with until_disconnect(http_request.receive):
            with http_request.charge.droppable() as dropping:
                if message.method == INITIALIZE:
                    answer = await session.open(message)
                else:
                    session.skip_handshake()
                    answer = await session.answer(
                        message, session.begin(message), lambda message: False, http_request.address
                    )
            if dropping.cancelled_caught:
                answer = http_request.charge.cancelled(message.id)
        if answer is not None:
            await send_answer(http_request, NO_HEADERS, answer)


class _EventQueue:
    """Messages for a session's client to read. They are charged until they were taken; when their memory is needed
    elsewhere, the session ends.

    Args:
        scope: holds the session.
    """

    def __init__(self, memory: Budget, identity: str | None, scope: trio.CancelScope) -> None:
        self._waiting: deque[bytes] = deque()
        self._size = 0
        self._moved = trio.lowlevel.ParkingLot()
        self._scope = scope
        self.held = memory.hold(client_owner(identity), Use.STREAMS, drop=self._give_way)

    def enqueue_event(self, data: bytes) -> None:
        """Add one event.

        Raises:
            OverBudget: there is no memory for it.
        """
        self.held.grow(len(data))
        self._waiting.append(data)
        self._size += len(data)
        self._moved.unpark_all()

    def enqueue(self, message: Message) -> bool:
        """Add a message without waiting; dropped if the client reads too slowly."""
        if self._size > MAX_KEPT:
            return False
        try:
            self.enqueue_event(format_event(write(message), event="message"))
        except OverBudget:
            return False
        return True

    async def send(self, message: Message) -> None:
        """Add a message that must not be lost; waits while the client does not read. An answer without memory for it
        becomes an error that says so."""
        while self._size > MAX_KEPT:
            await self._moved.park()
        data = write(message)
        try:
            self.enqueue_event(format_event(data, event="message"))
        except OverBudget:
            instead = answer_too_large(message.id, len(data)) if isinstance(message, Success | Failure) else None
            if instead is None or not self.enqueue(instead):
                self._give_way()
        await trio.lowlevel.checkpoint()

    async def ping(self) -> None:
        """Send keep-alive events, for clients and proxies."""
        while True:
            await trio.sleep(PING_INTERVAL)
            if not self._waiting:
                with suppress(OverBudget):  # there may be memory for the next one
                    self.enqueue_event(format_event(b"{}", event="ping"))

    async def write_events(self, send: Send) -> None:
        while True:
            while self._waiting:
                data = self._waiting.popleft()
                self._size -= len(data)
                await send_body(send, data, more=True, moves=self.held.touch)
                self.held.grow(-len(data))
                self._moved.unpark_all()
            await self._moved.park()

    def _give_way(self) -> None:
        self.held.release()
        self._scope.cancel("the memory of the session is needed elsewhere")
