"""The ASGI app of everything that is served over HTTP: checks of each request, and routing.

    /mcp                          Streamable HTTP (streamable.py)
    /sse  /message                the transport of 2024-11-05 (sse.py)
    GET  /status                  the servers and their states
    .../<server>  .../@<view>     each of these for one server alone, or with the view of this name
    /console  /api                the web console, if it is served here; it has checks of its own and takes no token
    GET  /                        a page for browsers: what this is, and how to use it (front_page.py); needs no token
    GET  /healthz                 reports that this process serves; needs no token
    GET  /readyz                  reports whether balancers should send it new clients; needs no token

What is at these paths depends on the caller (host/addresses.py); what it may not reach is to it a path that does not
exist. An endpoint's path may end with a slash, as many clients write it: it is served without a redirect.

When all connections are in use, /healthz and /readyz still answer: a full host is alive, and a restart would not help.

Every request passes the same checks in the same order: Host and Origin, token, path, HTTP method; then those of its
transport.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Hashable
from contextlib import asynccontextmanager
from functools import partial
from typing import TYPE_CHECKING, TypeAlias

import trio

from config import DEFAULT_CAPACITY, Capacity, Listen
from host.addresses import VIEW_MARK, Addresses
from host.attempts import Attempt
from host.downstream.charge import TOKEN_WITHDRAWN, VIEW_CHANGED, RequestCharge
from host.downstream.connected_clients import ConnectedClients
from host.downstream.drain import Drain
from host.downstream.http import front_page
from host.downstream.http.open_streams import OpenStreams
from host.downstream.http.replies import Replies
from host.downstream.http.request import FORWARDED, JSON, HttpRequest, Rejected, refuse
from host.downstream.http.security import CheckedHead, Refusal, RequestGuard
from host.downstream.http.sse import HttpSse
from host.downstream.http.stateless import HttpParts
from host.downstream.http.streamable import StreamableHttp
from host.downstream.reading import MessageReader, share_interpreter
from host.downstream.sessions import draft_session
from host.downstream.stateless import Stateless
from host.downstream.stored_sessions import StoredSessions
from host.errors import TOO_MANY_REQUESTS
from host.exchange import Caller
from host.journal import InternalError, Journal
from host.memory import Budget, client_owner
from host.router.router import Router
from host.source import SHARED, Endpoint
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

if TYPE_CHECKING:
    from host.fleet.forwarding import Forwarding  # most hosts are in no fleet

CONSOLE_PREFIX, API_PREFIX = "/console", "/api"
STATUS = "/status"
NO_ENDPOINT = Refusal(404, "there is no such endpoint")
_UNRECORDED = "the audit cannot be written"

_Handler: TypeAlias = tuple[Callable[[HttpRequest], Awaitable[None]], Endpoint, str]
"""The function that serves a path, the endpoint, and what follows the path of the transport; see `Addresses.at`."""


@asynccontextmanager
async def open_http_endpoint(
    listen: Listen,
    addresses: Addresses,
    router: Router,
    stateless: Stateless,
    journal: Journal,
    status: Callable[[Endpoint], bytes],
    stop: trio.Event,
    console: ASGIApp | None = None,
    *,
    memory: Budget,
    drain: Drain,
    record_attempt: Callable[[Attempt], None],
    is_recorded: Callable[[], bool],
    clients: ConnectedClients,
    has_console: bool = False,
    capacity: Capacity = DEFAULT_CAPACITY,
    forwarding: Forwarding | None = None,
    stored: StoredSessions | None = None,
) -> AsyncIterator[HttpApp]:
    """The app, for the block. At the end no session, stream or call is left.

    Args:
        stop: ends the standing streams, which would not end otherwise; calls continue.
        console: answers paths below CONSOLE_PREFIX, and paths below API_PREFIX that are no endpoint.
        record_attempt: takes each request that is refused before its message is read.
        is_recorded: whether the audit can be written. Where it could not, it is tried anew.
        clients: takes each session that is opened.
        has_console: there is a console, here or at another address.
        forwarding: the way to the other processes of the fleet; None without one.
        stored: what of sessions over Streamable HTTP outlives the process; None if nothing does.
    """
    async with trio.open_nursery() as nursery:
        replies = Replies(nursery, lambda problem: journal.note(InternalError("an answer's event stream", problem)))
        streams = OpenStreams(capacity.most_streams)
        clients.streams = streams.count
        share_interpreter()
        reader = MessageReader(None if journal.observer is None else journal.observer.received)
        draft = partial(draft_session, router=router, journal=journal, tasks=stateless.tasks, memory=memory)
        shared = replies, streams, reader, memory, clients, draft, drain, forwarding
        parts = HttpParts(router, journal, stateless, *shared)
        streamable = StreamableHttp(parts, capacity.sessions, stored)
        http_sse = HttpSse(parts) if listen.sse else None
        nursery.start_soon(replies.run)
        nursery.start_soon(streamable.sweep)
        nursery.start_soon(streams.end_at, stop)
        try:
            told = record_attempt, is_recorded, status, console, has_console or console is not None
            app = HttpApp(listen, addresses, parts, streamable, http_sse, *told)
            if stored is not None:
                stored.fingerprint_of = app.fingerprint_of
            if forwarding is not None:
                forwarding.adoption.sessions, forwarding.adoption.stored = streamable.sessions, stored
                if stored is not None:
                    nursery.start_soon(forwarding.hand_over, streamable.sessions, stored, drain)
            nursery.start_soon(streamable.sessions.keep_stored)
            yield app
        finally:
            nursery.cancel_scope.cancel()


class HttpApp:
    def __init__(
        self,
        listen: Listen,
        addresses: Addresses,
        parts: HttpParts,
        streamable: StreamableHttp,
        http_sse: HttpSse | None,
        record_attempt: Callable[[Attempt], None],
        is_recorded: Callable[[], bool],
        status: Callable[[Endpoint], bytes],
        console: ASGIApp | None,
        has_console: bool,
    ) -> None:
        self._console = console
        self._has_console = has_console
        self._listen = listen
        self._parts = parts
        self._streamable = streamable
        self._addresses = addresses
        self._doors: dict[str, Callable[[HttpRequest], Awaitable[None]]] = {STATUS: self._serve_status}
        self._doors |= {listen.path: streamable.serve}
        if http_sse is not None:
            self._doors |= {"/sse": http_sse.serve_stream, "/message": http_sse.serve_message}
        if parts.forwarding is not None:
            self._doors |= parts.forwarding.doors(self._doors, parts.streams)
        self._guard = RequestGuard(listen)
        self._examine = partial(self._examined, self._guard)
        self._record_attempt = record_attempt
        self._is_recorded = is_recorded
        self._status = status

    def change_access(self, listen: Listen, addresses: Addresses) -> None:
        """Let in the access tokens of `listen`, at these addresses, from now on. What was opened with a token that is
        not valid any more, or at an address that leads to another endpoint or to none now, ends: sessions, streams,
        requests, parked calls and tasks. All others notice nothing. There is no checkpoint, so whatever is there was
        opened before."""
        former, self._guard, self._listen = self._guard, RequestGuard(listen), listen
        before, self._addresses = self._addresses, addresses
        self._examine = partial(self._examined, self._guard)  # another object: what was found before is forgotten
        if self._parts.forwarding is not None:
            self._parts.forwarding.forget()
        withdrawn = former.withdrawn_by(self._guard)

        def ends(endpoint: Endpoint, identity: str | None) -> bool:
            return identity in withdrawn or not before.keeps(addresses, identity, endpoint)

        def why_revoked(of: Hashable) -> str:
            if not isinstance(of, tuple) or not ends(*of):
                return ""
            return TOKEN_WITHDRAWN if of[1] in withdrawn else VIEW_CHANGED

        self._streamable.sessions.end_where(ends)
        self._parts.streams.end_where(ends)
        self._parts.memory.revoke(why_revoked)
        for identity in withdrawn:
            if identity is not None:  # stateless clients with a token share one dedicated instance
                self._parts.router.forget(Caller(identity, SHARED, identity, instance_key=identity))

    def fingerprint_of(self, identity: str | None) -> str:
        """The fingerprint of the access token that has this name now; empty if there is none."""
        return self._guard.fingerprint(identity)

    def _examined(self, guard: RequestGuard, scope: Scope) -> tuple[CheckedHead, str, str, _Handler | None]:
        """The checked head of a request, its path and query, and the handler of the path; None also if that depends on
        the servers that are there."""
        # The path as it was sent: a spelling that is equal only after decoding is a different path.
        path, query = scope["raw_path"].decode("latin-1"), scope.get("query_string", b"").decode("latin-1")
        head = guard.examine(Headers(scope["headers"]))
        handler = self._find_handler(path, head.identity)
        return head, path, query, None if handler is None or handler[1].server is not None else handler

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        head, path, query, handler = of_head(scope, self._examine)
        if handler is None:
            handler = self._find_handler(path, head.identity)
        # Not over HTTP/2, whose address other machines may reach though the console is on loopback.
        if handler is None and self._console is not None and scope["http_version"] != "2" and _is_of_console(path):
            await self._console(scope, receive, send)
            return
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
                serve, endpoint, suffix = handler
                charge = RequestCharge(self._parts.memory, client_owner(identity), (endpoint, identity))
                try:
                    method, at_once = scope["method"], immediate(scope)
                    is_forwarded = self._parts.forwarding is not None and FORWARDED in scope["extensions"]
                    where = endpoint, suffix, query, head, identity
                    request = HttpRequest(method, *where, receive, send, charge, at_once, address, is_forwarded)
                    await serve(request)
                finally:
                    charge.release()
        except Rejected as rejected:
            if rejected.refusal.attempt is not None:
                identity = head.identity if isinstance(head.identity, str) else ""
                self._record_attempt(Attempt(rejected.refusal.attempt, "path", path, address, identity))
            await refuse(send, head.cors_headers, rejected)
        except ClientGone:
            return

    async def _serve_page(self, scope: Scope, path: str, head: CheckedHead, send: Send) -> None:
        """Serve a path that is no endpoint."""
        is_read = scope["method"] in ("GET", "HEAD")
        if path == "/healthz" and is_read:
            await respond(send, 200, {"content-type": "text/plain"}, b"ok\n")
        elif path == "/readyz" and is_read:
            why = self._parts.drain.why_unready() or ("" if self._is_recorded() else _UNRECORDED)
            status = 503 if why else 200
            await respond(send, status, {"content-type": "text/plain"}, f"{why or 'ok'}\n".encode())
        elif path == "/" and is_read and _is_browser(head.headers):
            await respond(send, 200, front_page.HEADERS, self._front_page(head.headers))
        else:
            self._admit(scope, head)
            raise Rejected(NO_ENDPOINT)

    async def _serve_status(self, http_request: HttpRequest) -> None:
        if http_request.method not in ("GET", "HEAD"):
            raise Rejected(NO_ENDPOINT)
        headers = {**JSON, "cache-control": "no-store"}
        await http_request.respond(200, headers, self._status(http_request.endpoint))

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

    def _find_handler(self, path: str, identity: str | Refusal | None) -> _Handler | None:
        """The handler of a path that is an endpoint to this caller; None for any other path. One slash at the end is
        left out, but for that of the status."""
        if not path.startswith(f"{STATUS}/"):
            path = path.removesuffix("/")
        for base, serve in self._doors.items():
            suffix = path.removeprefix(f"{base}/") if path != base else ""
            if suffix == path or (path != base and not suffix):
                continue
            if isinstance(identity, Refusal):  # which is its answer
                endpoint: Endpoint | None = Endpoint(suffix or None) if not suffix.startswith(VIEW_MARK) else SHARED
            else:
                endpoint = self._addresses.at(identity, suffix)
            if endpoint is not None and (endpoint.server is None or self._parts.router.has_endpoint(endpoint.server)):
                return serve, endpoint, suffix
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
