"""The MCP endpoint over Streamable HTTP (2025-03-26 to 2025-11-25, "Transports / Streamable HTTP").

    POST    one message, or a batch if the revision has them; the response is JSON or an event stream
    GET     the standing stream for messages outside requests (one for each session), or the rest of a broken stream
    DELETE  ends the client's session

A disconnect does not cancel here: the call continues, and its result can be fetched.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

import trio

from host.attempts import Reason
from host.downstream.connected_clients import ConnectedClients
from host.downstream.http.open_streams import OpenStream, OpenStreams, StreamKind
from host.downstream.http.replies import EventStream, Replies, Reply
from host.downstream.http.request import JSON, HttpRequest, Rejected, read_message
from host.downstream.http.security import SESSION, Refusal, refuse_accept, refuse_revoked
from host.downstream.http.stateless import StatelessHttp
from host.downstream.list_changes import Announcements
from host.downstream.reading import MessageReader
from host.downstream.sessions import Session, Sessions
from host.downstream.tasks import Tasks
from host.errors import TOO_MANY_REQUESTS, ColonnadeError
from host.journal import Journal
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
    write,
)
from host.memory import Budget
from host.protocol.era import era_over_http
from host.protocol.methods import INITIALIZE
from host.protocol.param_headers import VERSION_HEADER
from host.protocol.stateless import version_of
from host.protocol.versions import LEGACY, MODERN, Era
from host.router.router import Router
from host.source import Endpoint
from host.wire.deadlines import CallScope

SWEEP_INTERVAL = 5.0
"""Seconds after which a session at the latest drops the finished streams beyond its limits."""
MAX_SESSION_ID = 128
"""Characters of a session id that may be somebody's; ours have 32."""
_STATELESS = Era.STATELESS  # for speed; see RESOURCE in protocol/methods.py


class StreamableHttp:
    """`sweep` must run beside it."""

    def __init__(
        self,
        router: Router,
        journal: Journal,
        replies: Replies,
        stateless_http: StatelessHttp,
        tasks: Tasks,
        announcements: Announcements,
        streams: OpenStreams,
        reader: MessageReader,
        memory: Budget,
        clients: ConnectedClients,
        most_sessions: int,
    ) -> None:
        self._announcements = announcements
        self._clients = clients
        self._reader = reader
        self._streams = streams
        self._stateless_http = stateless_http
        self._sessions = Sessions(router, journal, tasks, memory, most_sessions)
        self._replies = replies

    async def sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_INTERVAL)
            self._sessions.sweep()

    def serve(self, http_request: HttpRequest) -> Awaitable[None]:
        if http_request.method == "POST":
            return self._post(http_request)
        if http_request.method == "GET":
            return self._get(http_request)
        if http_request.method == "DELETE":
            _check_method(http_request, "DELETE needs an Mcp-Session-Id header")
            id, _ = self._session(http_request, None)
            self._sessions.end(id)
            return http_request.respond(204)
        raise Rejected(Refusal(405, "expected POST, GET or DELETE", {"allow": "POST, GET, DELETE, OPTIONS"}))

    def end_sessions(self, ends: Callable[[Endpoint, str | None], bool]) -> None:
        """End the sessions of each endpoint and identity for which `ends` is true, with their streams and what is in
        flight."""
        self._sessions.end_where(ends)

    # POST

    async def _post(self, http_request: HttpRequest) -> None:
        refusal = http_request.head.refused_post
        if refusal is not None:
            raise Rejected(refusal)
        received = await read_message(http_request, self._reader)
        message = received.message
        if _era_of(http_request, message) is _STATELESS:
            await self._answer_stateless(http_request, message)
            return
        if isinstance(message, Request) and message.method == INITIALIZE and not http_request.headers.all(SESSION):
            await self._open(http_request, message)
            return
        if isinstance(message, Malformed) and not message.answers:
            await self._take_batch(http_request, received, message)
            return
        session_id, session = self._session(http_request, message.id if isinstance(message, Request) else None)
        if isinstance(message, Request):
            await self._answer(http_request, session, session_id, message)
        else:
            _deliver(session, message)
            await http_request.respond(202)

    def _answer_stateless(self, http_request: HttpRequest, message: Message | Malformed) -> Awaitable[None]:
        if isinstance(message, Request):
            return self._stateless_http.serve(http_request, message)
        if isinstance(message, Notification):
            # There is no answer only if the call was cancelled: the client waits for nothing
            return http_request.respond(202)
        raise Rejected(Refusal(400, "unexpected response: no request of the server is open; send a request"))

    async def _take_batch(self, http_request: HttpRequest, received: ParsedInput, malformed: Malformed) -> None:
        """Serve a batch.

        Raises:
            Rejected: it is malformed, or batches may not be sent here.
        """
        if not http_request.headers.all(SESSION):
            raise _malformed(malformed)
        session_id, session = self._session(http_request, None)
        messages, batched = session.messages_in(received)
        if not batched:
            raise _malformed(malformed)
        if len(messages) == 1 and isinstance(messages[0], Malformed) and not messages[0].answers:
            raise _malformed(messages[0])
        requests, refusals = _accept_batch(session, messages)
        if not requests and not refusals:
            await http_request.respond(202)
            return
        reply = self._replies.begin(http_request, {SESSION: session_id}, session.begin_stream)
        self._replies.end(reply)  # a batch is a stream from the start
        reply.open()
        with http_request.charge.droppable() as dropping:
            async with trio.open_nursery() as nursery:
                for request, scope in requests:
                    nursery.start_soon(_answer_one, session, request, scope, reply, http_request.address)
                    # Evaluating rules takes milliseconds, so other tasks run between two requests. Each request must be
                    # started, so that it ends what `_accept_batch` began.
                    await trio.lowlevel.cancel_shielded_checkpoint()
                for refusal in refusals:
                    await reply.add(refusal)
        await reply.finish(http_request.charge.cancelled(None) if dropping.cancelled_caught else None)

    async def _open(self, http_request: HttpRequest, request: Request) -> None:
        if len(http_request.head.versions) > 1:
            raise Rejected(Refusal(400, "expected one MCP-Protocol-Version header"), id=request.id)
        session_id, session = self._sessions.draft(http_request.endpoint, http_request.identity)
        answer = await session.open(request)
        headers = JSON
        if http_request.charge.revoked:  # while the servers were waited for
            raise Rejected(refuse_revoked(http_request.charge.revoked), id=request.id)
        if session.opening is not None:
            if not self._sessions.add(session_id, session):
                raise Rejected(
                    Refusal(503, "too many sessions are open", {"retry-after": "5"}), TOO_MANY_REQUESTS, request.id
                )
            self._clients.add(session, "http")
            headers = {**JSON, SESSION: session_id}
        await http_request.respond(200, headers, write(answer))

    async def _answer(self, http_request: HttpRequest, session: Session, session_id: str, request: Request) -> None:
        refusal = session.check_flood(request)  # requests whose clients have left count too
        if refusal is not None:
            await http_request.respond(200, {**JSON, SESSION: session_id}, write(refusal))
            return
        reply = self._replies.begin(http_request, {SESSION: session_id}, session.begin_stream)
        scope = session.begin(request, http_request.call_scope())
        http_request.charge.cancel_on_drop(scope)
        try:
            answer = await session.answer(request, scope, reply.enqueue, http_request.address)
        finally:
            # Before it is sent: a client that reads an answer slowly is not waiting for one.
            self._replies.end(reply)
        if answer is None and http_request.charge.dropped:
            answer = http_request.charge.cancelled(request.id)
        finishing = reply.finish(answer)
        del answer  # while the client reads it, nothing else may keep the server's buffer
        await finishing

    # GET

    async def _get(self, http_request: HttpRequest) -> None:
        refusal = refuse_accept(http_request.headers, "text/event-stream")
        if refusal is not None:
            raise Rejected(refusal)
        _check_method(http_request, "GET needs an Mcp-Session-Id header: a stream belongs to a session")
        id, session = self._session(http_request, None)
        last_event_id = http_request.headers.one("last-event-id")
        found = None if last_event_id is None else session.history.resume(last_event_id)
        if found is None:  # no id, or one of a stream that is not kept: the standing stream begins anew
            await self._stand(http_request, session, id, None)
            return
        stream, after = found
        if stream is session.standing_events:
            stream.detach_reader()  # it detaches at the next event if it can; a stuck reader is disconnected
            await self._stand(http_request, session, id, after)
            return
        await http_request.go_on(stream.reader(http_request, {SESSION: id}, after))

    async def _stand(self, http_request: HttpRequest, session: Session, id: str, after: int | None) -> None:
        """Serve the standing stream: the former one from after an event on, or a new one (None)."""
        scope = trio.CancelScope()
        if not await self._sessions.listen(id, scope, takes_over=after is not None):
            raise Rejected(Refusal(409, "this session already has a standing stream; close it first"))
        stream = session.standing_events
        if stream is None or after is None:
            after = -1
            stream = session.begin_stream()
        stream.reopen()
        try:
            place = self._streams.slot(StreamKind.STREAMABLE, http_request.endpoint, http_request.identity, stream.end)
        except Rejected:
            stream.end()
            if stream is not session.standing_events:
                session.history.forget(stream)
            self._sessions.stop_listening(id)
            raise
        session.standing_events = stream
        if session.ended.is_set():  # while the former stream was waited for
            stream.end()
        reader = stream.reader(http_request, {SESSION: id}, after, "listening")
        await http_request.go_on(partial(self._serve_standing, session, id, stream, reader, scope, place))

    async def _serve_standing(
        self,
        session: Session,
        id: str,
        stream: EventStream,
        reader: Callable[[], Awaitable[None]],
        scope: trio.CancelScope,
        place: OpenStream,
    ) -> None:
        try:
            with place, scope, session.listening(self._announcements, stream.enqueue):
                await reader()
        finally:
            stream.end()
            stream.reader_gone()
            self._sessions.stop_listening(id)

    # Sessions

    def _session(self, http_request: HttpRequest, id: Id | None) -> tuple[str, Session]:
        """The session that the request names. It must belong to this endpoint and identity, and have the revision that
        the request names."""
        head = http_request.head
        if (session_id := head.session) is None:
            stateless = (
                f"a stateless request, with its revision in MCP-Protocol-Version and _meta ({', '.join(MODERN)})"
            )
            why = f"expected one Mcp-Session-Id header: send initialize first, or {stateless}"
            raise Rejected(Refusal(400, why), id=id)
        session = self._sessions.find(session_id, http_request.endpoint, http_request.identity)
        if session is None or session.opening is None:
            if not session_id.isascii() or not session_id.isprintable() or len(session_id) > MAX_SESSION_ID:
                why = f"malformed Mcp-Session-Id header: expected 1 to {MAX_SESSION_ID} visible ASCII characters"
                raise Rejected(Refusal(400, why), id=id)
            why = "Session not found; it may have expired. Send initialize to open a new session"
            foreign = Reason.SESSION if self._sessions.is_open(session_id) else None
            raise Rejected(Refusal(404, why, attempt=foreign), id=id)
        if head.versions and head.versions != [session.opening.revision.name]:
            raise Rejected(Refusal(400, "MCP-Protocol-Version is not the one that this session was opened with"), id=id)
        return session_id, session


def _era_of(http_request: HttpRequest, message: Message | Malformed) -> Era:
    """Whether the message belongs to a session or is stateless.

    Raises:
        Rejected: its headers contradict themselves or the body, or name a revision that is not served.
    """
    if isinstance(message, Malformed):
        # No session can have been opened with this header, so a session id beside it does not matter.
        if any(version not in LEGACY for version in http_request.head.versions):
            raise _malformed(message)
        return Era.SESSION
    method, params = (
        (None, None) if isinstance(message, Success | Failure) else (message.method, message.params_members)
    )
    try:
        return era_over_http(method, http_request.head.era, partial(version_of, params))
    except ColonnadeError as error:
        id = message.id if isinstance(message, Request) else None
        raise Rejected(Refusal(400, error.message), error.code, id, error.data) from None


def _check_method(http_request: HttpRequest, why: str) -> None:
    """Refuse GET and DELETE where they do not exist: in a stateless revision, or in none, without a session. In the
    handshake revisions they lack the session (2025-11-25, "Session Management"), which is not said here."""
    headers = http_request.headers
    if not headers.all(SESSION) and not any(version in LEGACY for version in headers.all(VERSION_HEADER)):
        raise Rejected(Refusal(405, why, {"allow": "POST"}))


def _deliver(session: Session, message: Message | Malformed) -> None:
    """Take a message that gets no answer: a notification, or the response to a server request."""
    if isinstance(message, Notification):
        session.on_notification(message)
    elif not isinstance(message, Request):
        session.on_response(message)


def _accept_batch(
    session: Session, messages: list[Message | Malformed]
) -> tuple[list[tuple[Request, CallScope]], list[Failure]]:
    """Take the messages of a batch in order, and return the requests to answer and the refusals."""
    requests: list[tuple[Request, CallScope]] = []
    refusals: list[Failure] = []
    for message in messages:
        if isinstance(message, Request):
            refusal = session.check_flood(message)
            if refusal is None:
                requests.append((message, session.begin(message)))
            else:
                refusals.append(refusal)
        elif isinstance(message, Malformed) and not message.answers:
            refusals.append(Failure(ErrorBody(message.code, message.why), message.id))
        else:
            _deliver(session, message)
    return requests, refusals


def _malformed(malformed: Malformed) -> Rejected:
    return Rejected(Refusal(400, malformed.why), malformed.code, malformed.id)


async def _answer_one(session: Session, request: Request, scope: CallScope, reply: Reply, address: str) -> None:
    """Answer one request of a batch."""
    answer = await session.answer(request, scope, reply.enqueue, address)
    if answer is not None:
        await reply.add(answer)
