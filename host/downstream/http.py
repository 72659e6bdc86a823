"""The MCP endpoint over Streamable HTTP, as an ASGI app (2025-11-25, "Transports / Streamable HTTP").

    POST    /mcp  /mcp/<server>   one message; a request is answered here, as JSON or as an event stream
    GET     /mcp  /mcp/<server>   the stream for what we say unasked (one for each session)
    DELETE  /mcp  /mcp/<server>   the client ends its session
    GET     /status               the servers and their states, under the same guards
    GET     /healthz              says that this process serves

Every request passes the same checks in the same order: Host and Origin, path, HTTP method, content type and Accept,
size, JSON, session. Here a disconnect is not a cancel: a call whose client left goes on to its end.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import trio

from config import Listen
from host.downstream.security import MAX_BODY, Doorkeeper, Headers, Refusal, refuse_accept, refuse_body
from host.downstream.sessions import Session, Sessions
from host.downstream.streams import HEARTBEAT, STREAM_HEADERS, Replies, body, respond, start
from host.errors import LIMITED
from host.journal import Crashed, Journal
from host.jsonrpc.messages import (
    INVALID_REQUEST,
    PARSE_ERROR,
    ErrorBody,
    Failure,
    Id,
    Malformed,
    Notification,
    Request,
    read_strictly,
    write,
)
from host.protocol.methods import INITIALIZE
from host.protocol.versions import LEGACY
from host.router import Router
from host.wire.asgi import ASGIApp, Receive, Scope, Send
from host.wire.sse import comment, event

BODY_PATIENCE = 10.0
SWEEP = 60.0
SESSION = "mcp-session-id"
VERSION = "mcp-protocol-version"
JSON = {"content-type": "application/json"}
MAX_SESSION_ID = 128


@asynccontextmanager
async def open_http_face(
    listen: Listen, router: Router, journal: Journal, status: Callable[[], bytes], stop: trio.Event
) -> AsyncIterator[ASGIApp]:
    """The app, for the block. Afterwards no session, stream or call of it is left. When `stop` is set, the standing
    streams end, since nothing else would end them; calls go on."""
    async with trio.open_nursery() as nursery:
        replies = Replies(nursery, lambda problem: journal.note(Crashed("an answer's event stream", problem)))
        face = _Face(listen, router, journal, status, stop, replies)
        nursery.start_soon(face.replies.watch)
        nursery.start_soon(face.sweep)
        try:
            yield face.app
        finally:
            nursery.cancel_scope.cancel()


class _Rejected(Exception):
    """The HTTP answer is a refusal; `id` is echoed where there is one."""

    def __init__(self, refusal: Refusal, code: int = INVALID_REQUEST, id: Id | None = None) -> None:
        super().__init__(refusal.why)
        self.refusal = refusal
        self.code = code
        self.id = id


class _Gone(Exception):
    """The client left while it was sending its request."""


class _Face:
    def __init__(
        self,
        listen: Listen,
        router: Router,
        journal: Journal,
        status: Callable[[], bytes],
        stop: trio.Event,
        replies: Replies,
    ) -> None:
        self._path = listen.path
        self._door = Doorkeeper(listen)
        self._router = router
        self._status = status
        self._stop = stop
        self._sessions = Sessions(router, journal)
        self.replies = replies

    async def sweep(self) -> None:
        while True:
            await trio.sleep(SWEEP)
            self._sessions.sweep()

    async def app(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        headers = Headers(scope["headers"])
        allowed = self._door.cross_origin(headers)
        try:
            refusal = self._door.refuse(headers)
            if refusal is not None:
                raise _Rejected(refusal)
            await self._route(scope, headers, allowed, receive, send)
        except _Rejected as rejected:
            answer = Failure(ErrorBody(rejected.code, rejected.refusal.why), rejected.id)
            await respond(send, rejected.refusal.status, {**allowed, **JSON, **rejected.refusal.headers}, write(answer))
        except _Gone:
            return

    async def _route(
        self, scope: Scope, headers: Headers, allowed: dict[str, str], receive: Receive, send: Send
    ) -> None:
        # The path as it was sent: spellings that only mean the same after decoding are no path of ours.
        path = scope["raw_path"].decode("latin-1")
        method = scope["method"]
        if path == "/healthz" and method in ("GET", "HEAD"):
            await respond(send, 200, {"content-type": "text/plain"}, b"ok\n")
        elif path == "/status" and method in ("GET", "HEAD"):
            await respond(send, 200, {**allowed, **JSON, "cache-control": "no-store"}, self._status())
        elif path == self._path or path.startswith(self._path + "/"):
            endpoint = path[len(self._path) + 1 :] or None
            if path.endswith("/") or (endpoint is not None and not self._router.serves(endpoint)):
                raise _Rejected(Refusal(404, "there is no such endpoint"))
            await self._endpoint(method, endpoint, headers, allowed, receive, send)
        else:
            raise _Rejected(Refusal(404, "there is nothing here"))

    async def _endpoint(
        self,
        method: str,
        endpoint: str | None,
        headers: Headers,
        allowed: dict[str, str],
        receive: Receive,
        send: Send,
    ) -> None:
        if method == "POST":
            await self._post(endpoint, headers, allowed, receive, send)
        elif method == "GET":
            await self._get(endpoint, headers, allowed, receive, send)
        elif method == "DELETE":
            id, _ = self._session(headers, endpoint, None)
            self._sessions.end(id)
            await respond(send, 204, allowed)
        elif method == "OPTIONS":
            preflight = self._door.preflight(headers)
            if isinstance(preflight, Refusal):
                raise _Rejected(preflight)
            await respond(send, 204, preflight)
        else:
            raise _Rejected(Refusal(405, "expected POST, GET or DELETE", {"allow": "POST, GET, DELETE, OPTIONS"}))

    async def _post(
        self, endpoint: str | None, headers: Headers, allowed: dict[str, str], receive: Receive, send: Send
    ) -> None:
        refusal = refuse_body(headers) or refuse_accept(headers, "application/json", "text/event-stream")
        if refusal is not None:
            raise _Rejected(refusal)
        message = read_strictly(await _read(receive))
        if isinstance(message, Malformed) and not message.answers:
            raise _Rejected(Refusal(400, message.why), message.code, message.id)
        id = message.id if isinstance(message, Request) else None
        if isinstance(message, Request) and message.method == INITIALIZE and not headers.all(SESSION):
            await self._open(endpoint, message, headers, allowed, send)
            return
        session_id, session = self._session(headers, endpoint, id)
        if isinstance(message, Request):
            await self._answer(session, message, {**allowed, SESSION: session_id}, send)
            return
        if isinstance(message, Notification):
            session.told(message)
        # Anything else answers a question of ours; nobody was asked, so nobody waits for it.
        await respond(send, 202, allowed)

    async def _open(
        self, endpoint: str | None, request: Request, headers: Headers, allowed: dict[str, str], send: Send
    ) -> None:
        version = headers.one(VERSION)
        if version is not None and version not in LEGACY:
            raise _Rejected(_unserved(), id=request.id)
        session_id, session = self._sessions.draft(endpoint)
        answer = await session.open(request)
        if session.opening is not None:
            if not self._sessions.keep(session_id, session):
                raise _Rejected(Refusal(503, "too many sessions are open", {"retry-after": "5"}), LIMITED, request.id)
            allowed = {**allowed, SESSION: session_id}
        await respond(send, 200, {**allowed, **JSON}, write(answer))

    async def _answer(self, session: Session, request: Request, headers: dict[str, str], send: Send) -> None:
        reply = self.replies.begin(send, headers, session.begin_stream)
        try:
            answer = await session.answer(request, session.begin(request), reply.tell)
        finally:
            self.replies.end(reply)  # before it is sent: a client that is slow to take an answer is not waiting for one
        await reply.finish(answer)

    async def _get(
        self, endpoint: str | None, headers: Headers, allowed: dict[str, str], receive: Receive, send: Send
    ) -> None:
        refusal = refuse_accept(headers, "text/event-stream")
        if refusal is not None:
            raise _Rejected(refusal)
        if not headers.all(SESSION):
            raise _Rejected(Refusal(405, "a stream belongs to a session", {"allow": "POST"}))
        id, session = self._session(headers, endpoint, None)
        begun = {**allowed, **STREAM_HEADERS, SESSION: id}
        if headers.all("last-event-id"):
            await self._resume(session, headers, begun, receive, send)
        elif not await self._sessions.listen(id):
            raise _Rejected(Refusal(409, "this session has its stream already"))
        else:
            try:
                await self._stand(session, begun, receive, send)
            finally:
                self._sessions.stop_listening(id)

    async def _stand(self, session: Session, begun: dict[str, str], receive: Receive, send: Send) -> None:
        """The stream for what we say unasked. It keeps no history: whoever comes back is told what is different."""
        stream = _Standing(send)
        async with _until_gone(receive) as nursery:
            await start(send, 200, begun)
            await body(send, comment("listening"), more=True)
            nursery.start_soon(stream.beat)
            nursery.start_soon(session.tell_changes, stream.send)
            nursery.start_soon(_cancel_when, self._stop, nursery.cancel_scope)
            await session.ended.wait()
        await body(send, b"", more=False)

    async def _resume(
        self, session: Session, headers: Headers, begun: dict[str, str], receive: Receive, send: Send
    ) -> None:
        """The rest of a reply whose connection broke."""
        found = session.history.resume(headers.one("last-event-id") or "")
        if found is None:
            raise _Rejected(Refusal(400, "the stream of this event is not, or no longer, here"))
        stream, after = found
        async with _until_gone(receive):
            await start(send, 200, begun)
            await stream.pour(send, after)

    def _session(self, headers: Headers, endpoint: str | None, id: Id | None) -> tuple[str, Session]:
        """The session that the request names, which must be one of this endpoint and of the revision named with it."""
        session_id = headers.one(SESSION)
        if session_id is None:
            raise _Rejected(Refusal(400, "expected one Mcp-Session-Id header: send initialize first"), id=id)
        if not session_id.isascii() or not session_id.isprintable() or len(session_id) > MAX_SESSION_ID:
            raise _Rejected(Refusal(400, "this is no session id"), id=id)
        session = self._sessions.find(session_id, endpoint)
        if session is None or session.opening is None:
            raise _Rejected(Refusal(404, "this session is not known here; send initialize again"), id=id)
        versions = headers.all(VERSION)
        if versions and versions != [session.opening.revision.name]:
            if any(version not in LEGACY for version in versions):
                raise _Rejected(_unserved(), id=id)
            raise _Rejected(Refusal(400, "this session was opened with another protocol version"), id=id)
        return session_id, session


class _Standing:
    """A session's standing stream."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self._writing = trio.Lock()

    async def send(self, notice: Notification) -> None:
        await self._put(event(write(notice)))

    async def beat(self) -> None:
        while True:
            await trio.sleep(HEARTBEAT)
            await self._put(comment("listening"))

    async def _put(self, data: bytes) -> None:
        async with self._writing:
            await body(self._send, data, more=True)


async def _cancel_when(event: trio.Event, scope: trio.CancelScope) -> None:
    await event.wait()
    scope.cancel()


def _unserved() -> Refusal:
    return Refusal(400, f"this protocol version is not served; served are {', '.join(reversed(LEGACY))}")


async def _read(receive: Receive) -> bytes:
    """The whole body, within the limits of size and time."""
    parts: list[bytes] = []
    size = 0
    with trio.move_on_after(BODY_PATIENCE):
        while True:
            event = await receive()
            if event["type"] == "http.disconnect":
                raise _Gone
            parts.append(event.get("body", b""))
            size += len(parts[-1])
            if size > MAX_BODY:
                raise _Rejected(Refusal(413, f"a message is at most {MAX_BODY} bytes", {"connection": "close"}))
            if not event.get("more_body", False):
                return b"".join(parts)
    why = f"the body did not come within {BODY_PATIENCE:.0f} s"
    raise _Rejected(Refusal(408, why, {"connection": "close"}), PARSE_ERROR)


@asynccontextmanager
async def _until_gone(receive: Receive) -> AsyncIterator[trio.Nursery]:
    """The block ends when the client leaves, at the latest."""

    async def watch() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass
        nursery.cancel_scope.cancel()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(watch)
        yield nursery
        nursery.cancel_scope.cancel()
