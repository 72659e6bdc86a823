"""The web console over HTTP, as an ASGI app: at the endpoint's own listener, or at one of its own.

    GET  /console  /console/console.js  /console/console.css     the page: the same for everybody, and holds nothing
    POST /console/open            {"code"}: opens a session with the code of a link; {"secret"} and a cookie
    GET  /console/state           everything there is to see
    GET  /console/events          the same as lines of JSON, then the sections that change, as they change
    POST /console/answer  /console/decide  /console/decide-all  /console/revoke  /console/explain     see requests.py
    POST /console/leave           ends the session

A link is `http://127.0.0.1:8808/console#CODE`: what is behind the `#` a browser sends to nobody, and the page takes it
out of the address at once.

Who may do anything but load the page: a request to our own name and port, that comes from our own page as far as a
browser says so (`Origin`, which a POST must have, and `Sec-Fetch-Site`), that is declared as JSON, which no form can
do, and that carries the cookie and the secret of one session. What changes something also has a number that grows, so
that no request counts twice. Tokens of /mcp mean nothing here. Answers to what may not come in are the same words
whatever was wrong.

The listener keeps slots for the console, so that a person reaches it while clients of /mcp hold all connections. A
request without a session loses its slot to the next request; one with a session keeps it.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Collection, Mapping
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
from msgspec import Struct

from config import Channel
from host.console.api import (
    MAX_REQUEST,
    REQUESTS,
    AdminApi,
    AdminError,
    MalformedRequest,
    StateFeed,
    carry_out,
    encode,
)
from host.console.login import COOKIE_PREFIX, SESSION_IDLE_TIMEOUT, ConsoleSession, ConsoleSessions, TooManyTries
from host.jsonrpc.raw import DECODE_ERRORS
from host.wire.asgi import (
    BODY_TIMEOUT,
    HEARTBEAT_INTERVAL,
    NO_CONNECTION_MESSAGE,
    NO_HEADERS,
    RETRY_AFTER,
    ASGIApp,
    BodyTooLarge,
    BodyTooSlow,
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    cancel_when,
    claim,
    read_body,
    respond,
    send_body,
    start_response,
    until_disconnect,
)

CONSOLE_PATH = "/console"
MAX_STREAMS = 8
"""Open pages of one session."""
SECRET_HEADER = "x-colonnade-console"
SEQUENCE_HEADER = "x-colonnade-sequence"

_STATIC = {
    CONSOLE_PATH: ("index.html", "text/html; charset=utf-8"),
    f"{CONSOLE_PATH}/console.js": ("console.js", "text/javascript; charset=utf-8"),
    f"{CONSOLE_PATH}/console.css": ("console.css", "text/css; charset=utf-8"),
}
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'none'; font-src 'none'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
_NO_FEATURES = "camera=(), display-capture=(), geolocation=(), microphone=(), payment=(), serial=(), usb=()"
_HEADERS = {
    "cache-control": "no-store",
    "content-security-policy": _POLICY,
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": _NO_FEATURES,
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
}
_JSON = {**_HEADERS, "content-type": "application/json"}
_NDJSON = {**_HEADERS, "content-type": "application/x-ndjson", "x-accel-buffering": "no"}

_FOREIGN_REQUEST = "the console takes requests of its own page only"
_NO_SESSION = "this console is not open (any more): `colonnade console` gives a new link"
_BAD_LINK = "this link was used already, or is too old: `colonnade console` gives a new one"

_NUMBER = re.compile(r"[1-9][0-9]{0,15}")
_T = TypeVar("_T")
_Handler = Callable[[ConsoleSession, Receive, Send], Awaitable[None]]


class _Refused(Exception):
    """The HTTP answer is a refusal. `session_ended`: the page has no session, and shall say so."""

    def __init__(
        self, status: int, why: str, *, session_ended: bool = False, headers: Mapping[str, str] = NO_HEADERS
    ) -> None:
        super().__init__(why)
        self.status = status
        self.headers = headers
        self.body = {"error": why, "over": True} if session_ended else {"error": why}


class _OpenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    code: str


class _LeaveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    pass


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """How a browser on this machine names what listens at this loopback address. Without a port if it is HTTP's own."""
    names = {"localhost", f"[{host}]" if ":" in host else host}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == 80 else set()))


def console_url(host: str, port: int, code: str) -> str:
    """The address that opens the console once."""
    name = f"[{host}]" if ":" in host else host
    return f"http://{name}:{port}{CONSOLE_PATH}#{code}"


def console_app(api: AdminApi, sessions: ConsoleSessions, hosts: Collection[str], stop: trio.Event) -> ASGIApp:
    """The app, which answers the paths of the console and nothing else.

    Args:
        hosts: what `Host` may be, as of `allowed_hosts`: the address it is served at, and no other.
        stop: ends the pages' streams, since nothing else would.
    """
    return ConsoleApp(api, sessions, frozenset(hosts), stop).serve


class ConsoleApp:
    def __init__(self, api: AdminApi, sessions: ConsoleSessions, hosts: frozenset[str], stop: trio.Event) -> None:
        self._api = api
        self._sessions = sessions
        self._hosts = hosts
        self._stop = stop
        self._streams: dict[trio.CancelScope, ConsoleSession] = {}
        folder = Path(__file__).parent / "static"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _STATIC.items()}
        self._get_handlers: dict[str, _Handler] = {
            f"{CONSOLE_PATH}/state": self._state,
            f"{CONSOLE_PATH}/events": self._events,
        }
        self._post_handlers: dict[str, _Handler] = {
            f"{CONSOLE_PATH}/{verb.replace('_', '-')}": self._request_handler(verb) for verb in REQUESTS
        }
        self._post_handlers[f"{CONSOLE_PATH}/leave"] = self._leave

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        try:
            await self._route(scope, receive, send)
        except _Refused as refused:
            await respond(send, refused.status, {**_JSON, **refused.headers}, encode(refused.body))
        except ClientGone:
            return

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["raw_path"].decode("latin-1"), scope["method"]
        if not claim(scope, None, reserved=True):
            raise _Refused(503, NO_CONNECTION_MESSAGE, headers={"retry-after": RETRY_AFTER})
        if path in self._files:
            if method != "GET":
                raise _Refused(405, "this is only to be read")
            data, kind = self._files[path]
            await respond(send, 200, {**_HEADERS, "content-type": kind}, data)
            return
        known = path in self._get_handlers or path in self._post_handlers or path == f"{CONSOLE_PATH}/open"
        if not known:
            raise _Refused(404, "there is nothing here")
        if method != ("GET" if path in self._get_handlers else "POST"):
            raise _Refused(405, "this is not how it is asked")
        headers = Headers(scope["headers"])
        self._check(headers, is_post=method == "POST")
        if path == f"{CONSOLE_PATH}/open":
            await self._open(receive, send)
            return
        session = self._sessions.authenticate(_cookies(headers), headers.one(SECRET_HEADER) or "")
        if session is None:
            raise _Refused(403, _NO_SESSION, session_ended=True)
        claim(scope, session, reserved=True)
        if path in self._get_handlers:
            await self._get_handlers[path](session, receive, send)
            return
        number = headers.one(SEQUENCE_HEADER) or ""
        if not (_NUMBER.fullmatch(number) and self._sessions.accept_sequence(session, int(number))):
            raise _Refused(403, _FOREIGN_REQUEST)
        await self._post_handlers[path](session, receive, send)

    def _check(self, headers: Headers, *, is_post: bool) -> None:
        """Hold the request against what our own page would send."""
        host, origins = (headers.one("host") or "").lower(), headers.all("origin")
        sites, kinds = headers.all("sec-fetch-site"), headers.all("content-type")
        fits = (
            host in self._hosts
            and (origins == [f"http://{host}"] or (not origins and not is_post))
            and sites in ([], ["same-origin"])
            and (not is_post or [kind.lower() for kind in kinds] == ["application/json"])
        )
        if not fits:
            raise _Refused(403, _FOREIGN_REQUEST)

    async def _open(self, receive: Receive, send: Send) -> None:
        try:
            opened = self._sessions.open(_decode(await _read_body(receive), _OpenRequest).code)
        except TooManyTries:
            raise _Refused(429, "too many links were tried; the next one may be tried in a minute") from None
        if opened is None:
            raise _Refused(403, _BAD_LINK, session_ended=True)
        self._end_streams()
        cookie = _set_cookie(opened.session, opened.cookie, int(SESSION_IDLE_TIMEOUT))
        await respond(send, 200, {**_JSON, "set-cookie": cookie}, encode({"secret": opened.secret}))

    async def _leave(self, session: ConsoleSession, receive: Receive, send: Send) -> None:
        _decode(await _read_body(receive), _LeaveRequest)
        self._sessions.end(session)
        self._end_streams()
        await respond(send, 200, {**_JSON, "set-cookie": _set_cookie(session, "", 0)}, b"{}")

    async def _state(self, session: ConsoleSession, receive: Receive, send: Send) -> None:
        await respond(send, 200, _JSON, encode(await self._api.state()))

    def _request_handler(self, verb: str) -> _Handler:
        async def serve(session: ConsoleSession, receive: Receive, send: Send) -> None:
            data = await _read_body(receive)
            if not self._sessions.is_open(session):  # it was ended while the body came
                raise _Refused(403, _NO_SESSION, session_ended=True)
            try:
                done = await self._api.run_steps(carry_out(self._api, verb, data, Channel.CONSOLE))
            except MalformedRequest as problem:
                raise _Refused(400, str(problem)) from problem
            except AdminError as problem:
                raise _Refused(409, str(problem)) from problem
            await respond(send, 200, _JSON, encode(done))

        return serve

    async def _events(self, session: ConsoleSession, receive: Receive, send: Send) -> None:
        if list(self._streams.values()).count(session) >= MAX_STREAMS:
            raise _Refused(429, f"this console is open in {MAX_STREAMS} pages already")
        await start_response(send, 200, _NDJSON)
        async with until_disconnect(receive) as nursery:
            scope = nursery.cancel_scope
            nursery.start_soon(cancel_when, self._stop, scope)
            self._streams[scope] = session
            try:
                if not self._sessions.is_open(session):  # it ended while this was begun
                    return
                with self._api.attach(Channel.CONSOLE):
                    await self._send_changes(session, send)
            finally:
                del self._streams[scope]
        await send_body(send, b"", more=False)

    async def _send_changes(self, session: ConsoleSession, send: Send) -> None:
        feed = StateFeed(self._api)
        while True:
            line = b""  # a sign of life
            with trio.move_on_after(HEARTBEAT_INTERVAL):
                line = encode(await feed.next())
            self._sessions.touch(session)
            await send_body(send, line + b"\n", more=True)

    def _end_streams(self) -> None:
        """Those of sessions that are over."""
        for scope, session in self._streams.items():
            if not self._sessions.is_open(session):
                scope.cancel("its session is over")


def _decode(data: bytes, kind: type[_T]) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except DECODE_ERRORS as problem:
        raise _Refused(400, "this is no request that is known here") from problem


async def _read_body(receive: Receive) -> bytes:
    """The whole body.

    Raises:
        _Refused: it is too long, or too slow.
        ClientGone: it will not come.
    """
    try:
        return await read_body(receive, MAX_REQUEST)
    except BodyTooLarge:
        raise _Refused(413, f"a request has at most {MAX_REQUEST} bytes") from None
    except BodyTooSlow:
        raise _Refused(408, f"the body did not come within {BODY_TIMEOUT:.0f} s") from None


def _cookies(headers: Headers) -> Mapping[str, str]:
    """Those of ours; of several with one name none counts."""
    pairs = [pair.strip().partition("=") for line in headers.all("cookie") for pair in line.split(";")]
    names = [name for name, _, _ in pairs]
    return {name: value for name, _, value in pairs if name.startswith(COOKIE_PREFIX) and names.count(name) == 1}


def _set_cookie(session: ConsoleSession, value: str, seconds: int) -> str:
    return f"{COOKIE_PREFIX}{session.name}={value}; Path={CONSOLE_PATH}; Max-Age={seconds}; HttpOnly; SameSite=Strict"
