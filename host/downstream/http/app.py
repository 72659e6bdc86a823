"""The ASGI app of everything that is served over HTTP: checks of each request, and routing.

    /mcp  /mcp/<server>           Streamable HTTP (streamable.py)
    /sse  /message                the transport of 2024-11-05 (sse.py); for one server: /sse/<server>
    GET  /status                  the servers and their states
    /console  /api                the web console, if it is served here; it has checks of its own and takes no token
    GET  /                        a page for browsers: what this is, and how to use it (front_page.py); needs no token
    GET  /healthz                 reports that this process serves; needs no token

When all connections are in use, /healthz still answers: a full host is alive, and a restart would not help.

Every request passes the same checks in the same order: Host and Origin, token, path, HTTP method; then those of its
transport.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import TypeAlias

import trio

from config import Listen
from host.attempts import Attempt
from host.downstream.charge import RequestCharge
from host.downstream.http import front_page
from host.downstream.http.open_streams import OpenStreams
from host.downstream.http.replies import Replies
from host.downstream.http.request import JSON, HttpRequest, Rejected
from host.downstream.http.security import CheckedHead, Refusal, RequestGuard
from host.downstream.http.sse import HttpSse
from host.downstream.http.stateless import StatelessHttp
from host.downstream.http.streamable import StreamableHttp
from host.downstream.reading import MessageReader, share_interpreter
from host.downstream.stateless import Stateless
from host.errors import TOO_MANY_REQUESTS
from host.exchange import Caller
from host.journal import InternalError, Journal
from host.jsonrpc.messages import ErrorBody, Failure, write
from host.memory import Budget, client_owner
from host.router.router import Router
from host.wire.asgi import (
    NO_CONNECTION_MESSAGE,
    RETRY_AFTER,
    ASGIApp,
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    claim,
    client_address,
    immediate,
    of_head,
    respond,
)

CONSOLE_PREFIX, API_PREFIX = "/console", "/api"

_Handler: TypeAlias = tuple[Callable[[HttpRequest], Awaitable[None]], str | None]
"""The function that serves a path, and the server if it is one server's endpoint."""


@asynccontextmanager
async def open_http_endpoint(
    listen: Listen,
    router: Router,
    stateless: Stateless,
    journal: Journal,
    status: Callable[[], bytes],
    stop: trio.Event,
    console: ASGIApp | None = None,
    *,
    memory: Budget,
    record_attempt: Callable[[Attempt], None],
    has_console: bool = False,
) -> AsyncIterator[HttpApp]:
    """The app, for the block. At the end no session, stream or call is left.

    Args:
        stop: ends the standing streams, which would not end otherwise; calls continue.
        console: answers paths below CONSOLE_PREFIX, and paths below API_PREFIX that are no endpoint.
        record_attempt: takes each request that is refused before its message is read.
        has_console: there is a console, here or at another address.
    """
    async with trio.open_nursery() as nursery:
        replies = Replies(nursery, lambda problem: journal.note(InternalError("an answer's event stream", problem)))
        streams = OpenStreams()
        share_interpreter()
        reader = MessageReader()
        stateless_http = StatelessHttp(router, stateless, replies, stop, streams, memory)
        streamable = StreamableHttp(
            router, journal, stop, replies, stateless_http, stateless.tasks, streams, reader, memory
        )
        http_sse = HttpSse(router, journal, stop, stateless.tasks, streams, reader, memory) if listen.sse else None
        nursery.start_soon(replies.run)
        nursery.start_soon(streamable.sweep)
        try:
            has_console = has_console or console is not None
            yield HttpApp(
                listen, router, record_attempt, status, streamable, http_sse, streams, console, memory, has_console
            )
        finally:
            nursery.cancel_scope.cancel()


class HttpApp:
    def __init__(
        self,
        listen: Listen,
        router: Router,
        record_attempt: Callable[[Attempt], None],
        status: Callable[[], bytes],
        streamable: StreamableHttp,
        http_sse: HttpSse | None,
        streams: OpenStreams,
        console: ASGIApp | None,
        memory: Budget,
        has_console: bool,
    ) -> None:
        self._console = console
        self._has_console = has_console
        self._listen = listen
        self._memory = memory
        self._streamable = streamable
        self._streams = streams
        self._doors = {listen.path: streamable.serve}
        if http_sse is not None:
            self._doors |= {"/sse": http_sse.serve_stream, "/message": http_sse.serve_message}
        self._guard = RequestGuard(listen)
        self._router = router
        self._record_attempt = record_attempt
        self._status = status

    def change_tokens(self, listen: Listen) -> None:
        """Let in the access tokens of `listen` from now on. For each that is not valid any more, its sessions, streams,
        requests, parked calls and tasks end; those of others notice nothing. There is no checkpoint, so whatever is
        there of its identity was opened with the withdrawn token."""
        former, self._listen = self._guard, listen
        self._guard = RequestGuard(listen)
        for identity in former.withdrawn_by(self._guard):
            self._streamable.end_sessions(identity)
            self._streams.end_of(identity)
            self._memory.revoke(client_owner(identity))
            if identity is not None:  # stateless clients with a token share one dedicated instance
                self._router.forget(Caller(identity, None, identity, instance_key=identity))

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        # The path as it was sent: a spelling that is equal only after decoding is a different path.
        path = scope["raw_path"].decode("latin-1")
        handler = self._find_handler(path)
        if handler is None and self._console is not None and _is_of_console(path):
            await self._console(scope, receive, send)
            return
        head = of_head(scope, self._guard.examine_head)
        address = client_address(scope)
        try:
            if head.refusal is not None:
                raise Rejected(head.refusal)
            if scope["method"] == "OPTIONS":  # browsers send no token with a preflight
                await self._preflight(head.headers, send)
            elif handler is None:
                await self._serve_page(scope, path, head, send)
            else:
                identity = self._admit(scope, head)
                serve, endpoint = handler
                query = scope.get("query_string", b"").decode("latin-1")
                with RequestCharge(self._memory, client_owner(identity)) as charge:
                    at_once = immediate(scope)
                    await serve(
                        HttpRequest(
                            scope["method"], endpoint, query, head, identity, receive, send, charge, at_once, address
                        )
                    )
        except Rejected as rejected:
            if rejected.refusal.attempt is not None:
                identity = head.identity if isinstance(head.identity, str) else ""
                self._record_attempt(Attempt(rejected.refusal.attempt, "path", path, address, identity))
            answer = Failure(ErrorBody(rejected.code, rejected.refusal.why, rejected.data), rejected.id)
            headers = {**head.cors_headers, **JSON, **rejected.refusal.headers}
            await respond(send, rejected.refusal.status, headers, write(answer))
        except ClientGone:
            return

    async def _serve_page(self, scope: Scope, path: str, head: CheckedHead, send: Send) -> None:
        """Serve a path that is no endpoint."""
        is_read = scope["method"] in ("GET", "HEAD")
        if path == "/healthz" and is_read:
            await respond(send, 200, {"content-type": "text/plain"}, b"ok\n")
        elif path == "/" and is_read and _is_browser(head.headers):
            await respond(send, 200, front_page.HEADERS, self._front_page(head.headers))
        else:
            self._admit(scope, head)
            if path != "/status" or not is_read:
                raise Rejected(Refusal(404, "there is no such endpoint"))
            await respond(send, 200, {**head.cors_headers, **JSON, "cache-control": "no-store"}, self._status())

    def _admit(self, scope: Scope, head: CheckedHead) -> str | None:
        """The name of the request's token, if one is needed here.

        Raises:
            Rejected: the token is refused, or all connections are in use.
        """
        identity = head.identity
        if not claim(scope, None if isinstance(identity, Refusal) else identity):
            raise Rejected(Refusal(503, NO_CONNECTION_MESSAGE, {"retry-after": RETRY_AFTER}), TOO_MANY_REQUESTS)
        if isinstance(identity, Refusal):
            raise Rejected(identity)
        return identity

    def _front_page(self, headers: Headers) -> bytes:
        console = None if not self._has_console else CONSOLE_PREFIX if self._console is not None else ""
        return front_page.front_page(self._listen, headers.one("host") or "", console=console)

    def _find_handler(self, path: str) -> _Handler | None:
        """The handler of an endpoint's path, with the server if it is one server's endpoint; None if the path is no
        endpoint."""
        for base, serve in self._doors.items():
            if path == base:
                return serve, None
            endpoint = path.removeprefix(base + "/")
            if endpoint != path and self._router.has_endpoint(endpoint):
                return serve, endpoint
        return None

    async def _preflight(self, headers: Headers, send: Send) -> None:
        preflight = self._guard.preflight(headers)
        if isinstance(preflight, Refusal):
            raise Rejected(preflight)
        await respond(send, 204, preflight)


def _is_browser(headers: Headers) -> bool:
    """Whether the request is that of a person who looks: a client that takes anything is no browser."""
    return any("text/html" in each.lower() for each in headers.all("accept"))


def _is_of_console(path: str) -> bool:
    # `listen.path` may be /api or below it; then the endpoint has precedence.
    return _is_below(path, CONSOLE_PREFIX) or _is_below(path, API_PREFIX)


def _is_below(path: str, base: str) -> bool:
    return path == base or path.startswith(f"{base}/")
