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
from msgspec import Raw

from host.attempts import Reason
from host.downstream.drain import STOPPING
from host.downstream.error_answers import errors_as_answers, params_of
from host.downstream.http.open_streams import OpenStream, StreamKind
from host.downstream.http.reopening import FULL, Reopening
from host.downstream.http.replies import STANDING_RETRY, EventStream, Reply, request_of_event
from host.downstream.http.request import JSON, HttpRequest, Rejected, read_message
from host.downstream.http.security import SESSION, Refusal, refuse_accept, refuse_revoked
from host.downstream.http.stateless import HttpParts, StatelessHttp
from host.downstream.sessions import Session, Sessions
from host.downstream.stored_sessions import StoredSessions
from host.errors import TOO_MANY_REQUESTS, ColonnadeError, Unavailable
from host.exchange import Caller, Exchange
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
from host.memory import client_owner
from host.protocol.era import era_over_http
from host.protocol.meta import META
from host.protocol.methods import INITIALIZE
from host.protocol.param_headers import VERSION_HEADER
from host.protocol.stateless import version_of
from host.protocol.versions import LEGACY, MODERN, Era
from host.storage.store import StateError
from host.wire.deadlines import CallScope

SWEEP_INTERVAL = 15.0
"""Seconds after which a session at the latest drops the finished streams beyond its limits."""
MAX_SESSION_ID = 128
"""Characters of a session id that may be somebody's; ours have 32."""
LOST_MESSAGE = (
    "what followed on this stream is not kept any more (Colonnade may have been started again): the answer of this "
    "request is lost, and it may have been carried out"
)
NOT_REMOVED = Refusal(
    503, "the session has ended here; this could not be stored, so after a crash of the host it might be found again"
)
_CALLS = (Request, Notification)
_SESSION_ERA, _STATELESS = Era.SESSION, Era.STATELESS  # for speed; see RESOURCE in protocol/methods.py


class StreamableHttp:
    """`sweep`, and `keep_stored` of its sessions, must run beside it. `stored`: the rows with which another process
    opens these anew; None if they end with this one."""

    def __init__(self, parts: HttpParts, most_sessions: int, stored: StoredSessions | None) -> None:
        self._parts = parts
        self._forwarding = parts.forwarding
        self._replies = replies = parts.replies
        self._stateless_http = StatelessHttp(parts)
        self.sessions = sessions = Sessions(parts.draft, most_sessions, stored)
        self._stored = stored
        self._reopening = None if stored is None else Reopening(sessions, stored, parts.clients, replies.start_soon)

    async def sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP_INTERVAL)
            self.sessions.sweep()

    def serve(self, http_request: HttpRequest) -> Awaitable[None]:
        if http_request.method == "POST":
            return self._post(http_request)
        if http_request.method == "GET":
            return self._get(http_request)
        if http_request.method == "DELETE":
            _check_method(http_request, "DELETE needs an Mcp-Session-Id header")
            return self._delete(http_request)
        raise Rejected(Refusal(405, "expected POST, GET or DELETE", {"allow": "POST, GET, DELETE, OPTIONS"}))

    # POST

    async def _post(self, http_request: HttpRequest) -> None:
        refusal = http_request.head.refused_post
        if refusal is not None:
            raise Rejected(refusal)
        received = await read_message(http_request, self._parts.reader)
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
        if isinstance(message, Request) and self._is_visit(http_request, message):
            await self._answer_visit(http_request, message)
            return
        of = message.id if isinstance(message, Request) else None
        session_id, session = self._session(http_request, of) or await self._reopened(http_request, of)
        if isinstance(message, Request):
            await self._answer(http_request, session, session_id, message)
        else:
            _deliver(session, message)
            await http_request.respond(202)

    def _answer_stateless(self, http_request: HttpRequest, message: Message | Malformed) -> Awaitable[None]:
        if isinstance(message, Request):
            work = None
            if self._forwarding is not None:
                serve = partial(self._stateless_http.serve, request=message)
                work = self._forwarding.of_request(http_request, message, serve, self._parts.streams)
            return work or self._stateless_http.serve(http_request, message)
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
        session_id, session = self._session(http_request, None) or await self._reopened(http_request, None)
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
        if self._parts.drain.noticed.is_set():
            refuse = partial(_refuse_opening, request.id)
            work = None if self._forwarding is None else self._forwarding.of_newcomer(http_request, request, refuse)
            await (work or refuse(http_request))
            return
        session_id, session = self.sessions.draft(http_request.endpoint, http_request.identity)
        answer = await session.open(request)
        headers = JSON
        if http_request.charge.revoked:  # while the servers were waited for
            session.end()
            raise Rejected(refuse_revoked(http_request.charge.revoked), id=request.id)
        if session.opening is not None:
            if not self.sessions.add(session_id, session):
                session.end()
                raise Rejected(FULL, TOO_MANY_REQUESTS, request.id)
            self._parts.clients.add(session, "http")
            headers = {**JSON, SESSION: session_id}
        await http_request.respond(200, headers, write(answer))

    async def _answer(self, http_request: HttpRequest, session: Session, session_id: str, request: Request) -> None:
        refusal = session.check_flood(request)  # requests whose clients have left count too
        if refusal is not None:
            await http_request.respond(200, {**JSON, SESSION: session_id}, write(refusal))
            return
        work = None
        if self._forwarding is not None:
            serve = partial(self._answer_here, session=session, session_id=session_id, request=request)
            work = self._forwarding.of_task(http_request, request, serve)
        if work is None:
            await self._answer_here(http_request, session, session_id, request)
        else:
            scope = session.begin(request)  # not to be entered: what is forwarded ends with its answer, or its client
            try:
                await work
            finally:
                session.serving.end(request.id, scope)
                session.touch()

    async def _answer_here(
        self, http_request: HttpRequest, session: Session, session_id: str, request: Request
    ) -> None:
        reply = self._replies.begin(http_request, {SESSION: session_id}, partial(session.begin_stream, request.id))
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

    def _is_visit(self, http_request: HttpRequest, request: Request) -> bool:
        return self._forwarding is not None and self._forwarding.is_visit(http_request, request)

    async def _answer_visit(self, http_request: HttpRequest, request: Request) -> None:
        """Answer what a session of another process asks about a task of this one. Only a client whose session is here
        can be asked what the task's server wants to know."""
        name = f"{http_request.identity or 'a client'}, of another process"
        caller = Caller(name, http_request.endpoint, http_request.identity)

        async def result(_: Request) -> Raw:
            params, at = params_of(request), http_request.address
            return await self._parts.stateless.tasks.answer_in_handshake(
                Exchange(request, params, caller, caller.client, address=at)
            )

        answer: Success | Failure | None = None
        with http_request.call_scope() as scope:
            http_request.charge.cancel_on_drop(scope)
            stream = partial(EventStream, None, self._parts.memory, client_owner(http_request.identity), primes=False)
            headers = {SESSION: http_request.head.session or ""}
            reply = self._replies.begin(http_request, headers, stream, leaving=scope)
            try:
                answer = await errors_as_answers(request, result, self._parts.journal, name)
            finally:
                self._replies.end(reply)
        if answer is None and http_request.charge.dropped:
            answer = http_request.charge.cancelled(request.id)
        if answer is None:
            reply.client_gone()
        else:
            await reply.finish(answer)

    # GET

    async def _get(self, http_request: HttpRequest) -> None:
        refusal = refuse_accept(http_request.headers, "text/event-stream")
        if refusal is not None:
            raise Rejected(refusal)
        _check_method(http_request, "GET needs an Mcp-Session-Id header: a stream belongs to a session")
        id, session = self._session(http_request, None) or await self._reopened(http_request, None)
        last_event_id = http_request.headers.one("last-event-id")
        found = None if last_event_id is None else session.history.resume(last_event_id)
        if found is None and last_event_id is not None and (of := request_of_event(last_event_id)) is not None:
            # Its client would wait for this answer without end.
            lost = session.history.begin(resumes=False, primes=False)
            lost.answer(Failure(ErrorBody(Unavailable.code, LOST_MESSAGE), of))
            lost.end()
            await http_request.go_on(lost.reader(http_request, {SESSION: id}, -1))
            return
        if found is None:  # no id, or one of a standing stream that is not kept: it begins anew
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
        if not await self.sessions.listen(id, scope, takes_over=after is not None):
            raise Rejected(Refusal(409, "this session already has a standing stream; close it first"))
        stream = session.standing_events
        if stream is None or after is None:
            after = -1
            stream = session.begin_stream(retry=STANDING_RETRY)
        stream.reopen()
        try:
            place = self._parts.streams.slot(
                StreamKind.STREAMABLE, http_request.endpoint, http_request.identity, stream.end
            )
        except Rejected:
            stream.end()
            if stream is not session.standing_events:
                session.history.forget(stream)
            self.sessions.stop_listening(id)
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
            with place, scope, session.listening(self._parts.stateless.announcements, stream.enqueue):
                await reader()
        finally:
            stream.end()
            stream.reader_gone()
            self.sessions.stop_listening(id)

    # DELETE

    async def _delete(self, http_request: HttpRequest) -> None:
        id, _ = self._session(http_request, None) or await self._reopened(http_request, None)
        self.sessions.end(id)
        if self._stored is not None:
            try:
                await self._stored.wait_removed(id)
            except StateError:
                raise Rejected(NOT_REMOVED) from None
        await http_request.respond(204)

    # Sessions

    async def _reopened(self, http_request: HttpRequest, id: Id | None) -> tuple[str, Session]:
        """The session that the request names and that is not open, opened anew."""
        session_id = http_request.head.session or ""  # without one, `_session` has raised
        is_foreign = self.sessions.is_open(session_id)
        if self._reopening is not None and not is_foreign:
            is_foreign = await self._reopening.open(http_request, session_id, id)
        found = self._session(http_request, id)
        if found is None:
            why = "Session not found; it may have expired. Send initialize to open a new session"
            raise Rejected(Refusal(404, why, attempt=Reason.SESSION if is_foreign else None), id=id)
        return found

    def _session(self, http_request: HttpRequest, id: Id | None) -> tuple[str, Session] | None:
        """The session that the request names; None if it is not open at this endpoint for this identity. It must have
        the revision that the request names."""
        head = http_request.head
        if (session_id := head.session) is None:
            stateless = (
                f"a stateless request, with its revision in MCP-Protocol-Version and _meta ({', '.join(MODERN)})"
            )
            why = f"expected one Mcp-Session-Id header: send initialize first, or {stateless}"
            raise Rejected(Refusal(400, why), id=id)
        session = self.sessions.find(session_id, http_request.endpoint, http_request.identity)
        if session is None or session.opening is None:
            if not session_id.isascii() or not session_id.isprintable() or len(session_id) > MAX_SESSION_ID:
                why = f"malformed Mcp-Session-Id header: expected 1 to {MAX_SESSION_ID} visible ASCII characters"
                raise Rejected(Refusal(400, why), id=id)
            return None
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
    method, params = (message.method, message.params_members) if isinstance(message, _CALLS) else (None, None)
    headers = http_request.head.era
    if headers.legacy and not (params and META in params):  # nothing contradicts the headers
        return _SESSION_ERA
    try:
        return era_over_http(method, headers, partial(version_of, params))
    except ColonnadeError as error:
        id = message.id if isinstance(message, Request) else None
        raise Rejected(Refusal(400, error.message), error.code, id, error.data) from None


async def _refuse_opening(id: Id, http_request: HttpRequest) -> None:
    raise Rejected(STOPPING, Unavailable.code, id)


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
