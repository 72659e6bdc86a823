"""The admin API over HTTP, as an ASGI app that both doors share: `web` lets in the page of the web console over TCP,
`socket` the command line over a Unix socket. Both have the same routes, but for a few that only one of them needs, and
the web console's own pages.

    GET  /api                                 the versions of the API
    GET  /api/v1/host                         which host this is
    GET  /api/v1/status                       its health: servers, what waits for a person, memory
    GET  /api/v1/state                        everything there is to see
    GET  /api/v1/state/servers …              one section of it
    GET  /api/v1/events                       the same as lines of JSON: everything, then the sections that change, as
                                              they change, and empty lines as signs of life; while it stands, somebody
                                              is there to answer
    POST /api/v1/confirmations/answer  /api/v1/definitions/decide  and others    see REQUESTS in schema.py
    POST /api/v1/servers/login                opens a login at a server (the web console only: `colonnade login` is one)
    POST /api/v1/console-links                an address that opens the web console once (the command line only)

A door decides who may come in, and puts an `AdminCaller` into the ASGI scope. docs/openapi.json describes all of it;
`openapi.py` makes that of `ROUTES`.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any

import msgspec
import trio
from msgspec import Struct, field

from config import Channel
from host.admin.paths import API_PATH, API_VERSION, EVENTS_PATH, PREFIX
from host.admin.schema import (
    HISTORY_REQUESTS,
    REQUESTS,
    SECTIONS,
    AdminApi,
    AdminError,
    AdminState,
    ApiError,
    ApiVersions,
    CallerView,
    ClientList,
    ConsoleLink,
    DefinitionList,
    Done,
    HistoryApi,
    HistoryList,
    HistoryRecords,
    HostInfo,
    HostStatus,
    LoginProposal,
    MalformedRequest,
    ServerLog,
    ServerTraffic,
    StateApi,
    StateSections,
    read_request,
)
from host.errors import INTERNAL_ERROR_MESSAGE
from host.policy.rows import Explanation
from host.slices import run_within
from host.version import VERSION
from host.wire.asgi import (
    BODY_TIMEOUT,
    HEARTBEAT_INTERVAL,
    NO_HEADERS,
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    Receive,
    Scope,
    Send,
    cancel_when,
    read_body,
    respond,
    send_body,
    start_response,
    until_disconnect,
)
from host.wire.descent import PeerProcess

MAX_REQUEST = 64 * 1024
"""Bytes of the body of a request."""
COALESCE_DELAY = 0.1
"""Seconds between two looks at what changed: what changes together is sent together."""

CALLER = "colonnade.admin_caller"

_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'none'; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_NO_FEATURES = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()"
BROWSER_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": _NO_FEATURES,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
"""Headers that keep a browser from using an answer for anything but the page of the web console."""
JSON_HEADERS = {**BROWSER_HEADERS, "content-type": "application/json"}
_NDJSON_HEADERS = {**BROWSER_HEADERS, "content-type": "application/x-ndjson", "x-accel-buffering": "no"}


class Route(Struct, frozen=True):
    """One method of one path.

    Args:
        results: the type of the answer with status 200; if it streams, those that its lines have.
        body: the key of REQUESTS whose type the body has; None for a request without a body.
        errors: the other statuses that the route itself may answer with, besides those of all routes (ANY_ERRORS).
        doors: by which doors it can be reached; by any other it is answered with 403.
    """

    method: str
    path: str
    summary: str
    results: Sequence[type]
    body: str | None = None
    errors: Collection[int] = ()
    doors: Sequence[Channel] = (Channel.CONSOLE, Channel.TERMINAL)
    streams: bool = False


ANY_ERRORS = (403, 500, 503)
"""Statuses that any request may be answered with."""
_BODY_ERRORS = (400, 408, 409, 413)

ROUTES = (
    Route("GET", API_PATH, "The versions of the admin API", [ApiVersions]),
    Route("GET", f"{PREFIX}host", "Which host this is", [HostInfo]),
    Route("GET", f"{PREFIX}status", "The health of the host", [HostStatus]),
    Route("GET", f"{PREFIX}clients", "The clients that are connected", [ClientList]),
    Route("GET", f"{PREFIX}state", "Everything there is to see", [AdminState]),
    *(Route("GET", f"{PREFIX}state/{name}", f"Of all there is to see: {name}", [StateSections]) for name in SECTIONS),
    Route(
        "GET",
        EVENTS_PATH,
        "Everything there is to see, then every section that changes, one JSON object a line; empty lines are signs of "
        "life. While this is read, somebody is there to answer confirmations",
        [AdminState, StateSections],
        errors=(429,),
        streams=True,
    ),
    *(
        Route("POST", f"{PREFIX}{path}", summary, [result], path, _BODY_ERRORS)
        for path, summary, result in (
            ("confirmations/answer", "Answer a confirmation", Done),
            ("confirmations/deny-all", "Deny all confirmations of a server that were shown", Done),
            ("definitions/list", "All definitions that a server offers, and its rules", DefinitionList),
            ("definitions/decide", "Approve, reject or revoke a definition", Done),
            ("servers/sandbox", "Choose whether a program is confined that ran before without", Done),
            ("definitions/decide-all", "Approve or reject all definitions of a server that were shown", Done),
            ("grants/revoke", "Revoke a grant", Done),
            ("explain", "Explain what would become of a call", Explanation),
            ("callers/view", "What a caller sees in a view", CallerView),
            ("servers/log", "The last lines of a server's standard error", ServerLog),
            ("servers/traffic", "What a server has done in the last hour and the last day", ServerTraffic),
            ("history/list", "Search the calls of the past", HistoryList),
            ("history/call", "A call of the past with its records of the audit", HistoryRecords),
            ("servers/control", "Restart, enable or disable a server, or install its packages again", Done),
            ("configuration/reload", "Read the configuration file again", Done),
        )
    ),
    Route(
        "POST",
        f"{PREFIX}servers/login",
        "Open a login at a server, and show what it will be for (the web console only)",
        [LoginProposal],
        "servers/login",
        _BODY_ERRORS,
        doors=(Channel.CONSOLE,),
    ),
    Route(
        "POST",
        f"{PREFIX}console-links",
        "An address that opens the web console once",
        [ConsoleLink],
        errors=(409,),
        doors=(Channel.TERMINAL,),
    ),
)


class Refused(Exception):
    """The HTTP answer is a refusal. `session_ended`: the web console's session is over, and its page shows that."""

    def __init__(
        self, status: int, why: str, *, session_ended: bool = False, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers
        self.body: ApiError = {"error": why, "over": True} if session_ended else {"error": why}

    async def respond(self, send: Send) -> None:
        await respond(send, self.status, {**JSON_HEADERS, **self.headers}, encode(self.body))


def method_not_allowed(*allowed: str) -> Refused:
    # RFC 9110, "405 Method Not Allowed": the answer must have the header Allow.
    return Refused(405, f"expected {' or '.join(allowed)}", headers={"allow": ", ".join(allowed)})


async def read_small_body(receive: Receive) -> bytes:
    """The body of a request.

    Raises:
        Refused: it is too long or too slow.
        ClientGone: it will not arrive.
    """
    try:
        return await read_body(receive, MAX_REQUEST)
    except BodyTooLarge:
        raise Refused(413, f"a request has at most {MAX_REQUEST} bytes") from None
    except BodyTooSlow:
        raise Refused(408, f"the body did not arrive within {BODY_TIMEOUT:.0f} s") from None


def _nothing() -> None:
    return


class AdminCaller(Struct, frozen=True):
    """Who sent a request, as the door that let it in knows it.

    Args:
        channel: the door: the web console's page, or a terminal.
        check: called when the body of a request has come, before it is carried out. Raises Refused if the caller may
            not send it any more.
        peer: the process that sent it, where the door knows that: it is recorded with what it decides.
        is_present: called with each sign of life that a stream sends.
        ends: events that end a stream of this caller.
        history: gives the calls of the past that the caller may see when the body of its request has come, or raises
            Refused. It may see nothing else, then, and decide nothing; None for the owner.
    """

    channel: Channel
    check: Callable[[], object]
    peer: PeerProcess | None = None
    is_present: Callable[[], None] = _nothing
    ends: Collection[trio.Event] = field(default=())
    history: Callable[[], HistoryApi] | None = None


class AdminApp:
    """The ASGI app. Its scope has an `AdminCaller` under CALLER.

    Args:
        on_crash: called with what is a mistake of ours; the caller gets 500.
    """

    def __init__(self, api: AdminApi, on_crash: Callable[[Exception], None]) -> None:
        self._api = api
        self._on_crash = on_crash
        self._turn = trio.Lock()
        """Held while a request of a caller that is not the owner is carried out: a search holds a thread, and the index
        that the owner searches too."""
        self._routes = {(route.method, route.path): route for route in ROUTES}
        self._views: dict[str, Callable[[], Awaitable[object]]] = {
            API_PATH: self._versions,
            f"{PREFIX}host": self._host_info,
            f"{PREFIX}status": api.reader.status,
            f"{PREFIX}clients": self._clients,
            f"{PREFIX}state": api.reader.state,
            **{f"{PREFIX}state/{name}": partial(api.reader.sections, [name]) for name in SECTIONS},
            f"{PREFIX}console-links": self._console_link,
        }

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        started = False

        async def note_start(event: dict[str, Any]) -> None:
            nonlocal started
            started = True
            await send(event)

        try:
            await self._serve(scope, receive, note_start)
        except Refused as refused:
            await refused.respond(send)
        except ClientGone:
            return
        except Exception as problem:
            self._on_crash(problem)
            if started:  # the listener breaks the connection, so that nobody takes this for the whole answer
                raise
            await Refused(500, INTERNAL_ERROR_MESSAGE).respond(send)

    async def _serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        caller: AdminCaller = scope[CALLER]
        path = scope["raw_path"].decode("latin-1")
        allowed = [route.method for route in ROUTES if route.path == path]
        if not allowed:
            raise Refused(404, f"unknown path of the admin API; GET {API_PATH} has its versions")
        route = self._routes.get((scope["method"], path))
        if route is None:
            raise method_not_allowed(*allowed)
        if caller.channel not in route.doors:
            raise Refused(403, f"only the {route.doors[0].value} may ask for this")
        if caller.history is not None and route.body not in HISTORY_REQUESTS:
            raise Refused(403, "only the owner of the host may ask for this")
        if route.streams:
            await self._stream(caller, receive, send)
            return
        try:
            result = await (self._views[path]() if route.body is None else self._carry_out(route.body, caller, receive))
        except MalformedRequest as problem:
            raise Refused(400, str(problem)) from problem
        except AdminError as problem:
            raise Refused(409, str(problem)) from problem
        await respond(send, 200, JSON_HEADERS, encode(result))

    async def _versions(self) -> ApiVersions:
        return {"colonnade": VERSION, "versions": [API_VERSION]}

    async def _host_info(self) -> HostInfo:
        return self._api.reader.host_info()

    async def _clients(self) -> ClientList:
        return self._api.reader.connected_clients()

    async def _console_link(self) -> ConsoleLink:
        return {"link": self._api.console_url()}

    async def _carry_out(self, path: str, caller: AdminCaller, receive: Receive) -> object:
        data = await read_small_body(receive)
        caller.check()
        if caller.history is not None:
            async with self._turn:
                return await read_request(HISTORY_REQUESTS, path, data).carry_out(caller.history(), caller.channel)
        work = read_request(REQUESTS, path, data).carry_out(self._api, caller.channel)
        return await (work if caller.peer is None else run_within(partial(self._api.attributing, caller.peer), work))

    async def _stream(self, caller: AdminCaller, receive: Receive, send: Send) -> None:
        await start_response(send, 200, _NDJSON_HEADERS)
        async with until_disconnect(receive) as nursery:
            for event in caller.ends:
                nursery.start_soon(cancel_when, event, nursery.cancel_scope)
            if not any(event.is_set() for event in caller.ends):
                with self._api.attach(caller.channel):
                    await self._send_changes(caller, send)
        await send_body(send, b"", more=False)

    async def _send_changes(self, caller: AdminCaller, send: Send) -> None:
        feed = StateFeed(self._api.reader)
        while True:
            line = b""  # a sign of life
            with trio.move_on_after(HEARTBEAT_INTERVAL):
                line = encode(await feed.next())
            caller.is_present()
            await send_body(send, line + b"\n", more=True)


class StateFeed:
    """The state for one reader: everything first, then the sections that changed."""

    def __init__(self, reader: StateApi) -> None:
        self._reader = reader
        self._seen: dict[str, int] | None = None

    async def next(self) -> AdminState | StateSections:
        """Wait for a change. What changes while nobody waits is in the next result; cancelled, nothing is lost."""
        if self._seen is None:
            await trio.lowlevel.checkpoint()
            seen = dict(self._reader.versions())  # as before the state: what changes meanwhile is sent once more
            full_state = await self._reader.state()
            self._seen = seen
            return full_state
        await trio.sleep(COALESCE_DELAY)
        versions = dict(await self._reader.wait_changed(self._seen))
        changed = [section for section in SECTIONS if versions[section] != self._seen.get(section)]
        sections = await self._reader.sections(changed)
        self._seen = versions
        return sections


def encode(value: object) -> bytes:
    """As one line of JSON. Text that is not Unicode (half a surrogate pair) goes out as an escape."""
    try:
        return msgspec.json.encode(value)
    except UnicodeEncodeError:
        return json.dumps(value).encode()
