"""The door of the web console: its page, its login, and the admin API for it, over TCP. It stands at the endpoint's own
listener, or at one of its own.

    GET  /                        leads to the page
    GET  /console  /console/console.js  /console/history.js  /console/console.css
                                  the page: the same for everybody, and holds nothing
    POST /console/open            {"code"}: opens a session with the code of a link; {"secret"} and a cookie; not for
                                  a process that a host started (wire/tcp_peer.py). {"token"}: one for a caller that
                                  sees calls of the past, with its access token; {"secret", "caller", "all"}
    POST /console/leave           ends the session
    /api and below                the admin API (api.py)

A link is `http://127.0.0.1:8808/console#CODE`: what is behind the `#` a browser sends to nobody, and the page takes it
out of the address at once. `console#confirmation=ID` names a confirmation, which an open page of the browser shows.

The page itself is for everybody. Any other request has to go to our own name and port; to come from our own page as far
as a browser says so (`Origin`, which a POST must have, and `Sec-Fetch-Site`); if it is a POST, to be declared as JSON,
which no form can do; and to carry the cookie and the secret of one session. A POST also has a number that grows, so
that no request counts twice. Tokens of /mcp mean nothing here but to open a session, if the configuration says of their
caller which calls of the past it sees: these, and nothing else, for as long as it says so and the token is valid.
Refusals have the same words whatever was wrong.

The listener keeps slots for the console, so that a person reaches it while clients of /mcp hold all connections. A
request without a session loses its slot to the next request, and so does one of a caller; one of the owner's session
keeps it.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Collection, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from hashlib import sha256
from pathlib import Path
from typing import TypeVar

import msgspec
import trio
from msgspec import Struct

from config import Channel
from host.admin.api import (
    BROWSER_HEADERS,
    CALLER,
    JSON_HEADERS,
    AdminApp,
    AdminCaller,
    Refused,
    encode,
    method_not_allowed,
    read_small_body,
)
from host.admin.login import COOKIE_PREFIX, SESSION_IDLE_TIMEOUT, ConsoleSession, ConsoleSessions, TooManyTries
from host.admin.paths import API_PATH, EVENTS_PATH
from host.admin.schema import AdminApi, HistoryApi
from host.admin.socket import RefusedPeers
from host.attempts import Attempt, Reason
from host.jsonrpc.raw import DECODE_ERRORS
from host.wire.asgi import (
    NO_CONNECTION_MESSAGE,
    RETRY_AFTER,
    ClientGone,
    Headers,
    Receive,
    Scope,
    Send,
    claim,
    client_address,
    respond,
)
from host.wire.descent import PeerProcess
from host.wire.tcp_peer import Address

CONSOLE_PATH = "/console"
_OPEN = f"{CONSOLE_PATH}/open"
MAX_STREAMS = 8
"""Open pages of one session."""
MAX_UNDER_WAY = 4
"""Requests of one access token at a time. They wait for each other, each with its connection, whether or not its client
is still there."""
SECRET_HEADER = "x-colonnade-console"
SEQUENCE_HEADER = "x-colonnade-sequence"

_STATIC = {
    CONSOLE_PATH: ("index.html", "text/html; charset=utf-8"),
    f"{CONSOLE_PATH}/console.js": ("console.js", "text/javascript; charset=utf-8"),
    f"{CONSOLE_PATH}/history.js": ("history.js", "text/javascript; charset=utf-8"),
    f"{CONSOLE_PATH}/console.css": ("console.css", "text/css; charset=utf-8"),
}
_FOREIGN_REQUEST = "the console takes requests of its own page only"
_NO_SESSION = "this console is not open (any more): `colonnade console` gives a new link"
_BAD_LINK = "this link was used already, or is too old: `colonnade console` gives a new one"
_BAD_TOKEN = "this is no access token whose caller sees calls of the past (callers in the configuration)"
_NO_REQUEST = "this is no request that is known here"

_NUMBER = re.compile(r"[1-9][0-9]{0,15}")
_T = TypeVar("_T")
RefuseSender = Callable[[Address | None, Address | None], Awaitable[tuple[PeerProcess, str] | None]]
"""Takes the addresses of the other end of a connection and of this one; see `tcp_peer.refuse_sender`."""


class _OpenRequest(Struct, frozen=True, forbid_unknown_fields=True):
    """Exactly one of both, which is not empty."""

    code: str = ""
    token: str = ""


class _LeaveRequest(Struct, frozen=True, forbid_unknown_fields=True):
    pass


def allowed_hosts(host: str, port: int) -> frozenset[str]:
    """The `Host` values by which a browser on this machine names a loopback address. Without a port if it is HTTP's
    default."""
    names = {"localhost", f"[{host}]" if ":" in host else host}
    return frozenset({f"{name}:{port}" for name in names} | (names if port == 80 else set()))


def console_url(host: str, port: int, code: str, confirmation: str = "") -> str:
    """The address that opens the console once, at the confirmation of this id if there is one."""
    name = f"[{host}]" if ":" in host else host
    place = f"&confirmation={confirmation}" if confirmation else ""
    return f"http://{name}:{port}{CONSOLE_PATH}#{code}{place}"


class WebDoor:
    """The app, which answers the paths of the console and nothing else.

    Args:
        hosts: what `Host` may be, as of `allowed_hosts`: the address it is served at, and no other.
        stop: ends the pages' streams, since nothing else would.
        on_crash: called with what is a mistake of ours.
        record_attempt: takes each request that its own page did not send, or whose link or session is not valid.
        refuse_sender: judges who opens a session.
    """

    def __init__(
        self,
        api: AdminApi,
        sessions: ConsoleSessions,
        hosts: Collection[str],
        stop: trio.Event,
        on_crash: Callable[[Exception], None],
        record_attempt: Callable[[Attempt], None],
        refuse_sender: RefuseSender,
    ) -> None:
        self._api = api
        self._refuse_sender = refuse_sender
        self._refusals = RefusedPeers(api.record_refused_peer)
        self._record_attempt = record_attempt
        self._app = AdminApp(api, on_crash)
        self._sessions = sessions
        self._hosts = hosts
        self._stop = stop
        self._streams: dict[trio.Event, ConsoleSession] = {}
        """The streams of the pages, by the events that end them."""
        self._under_way = Counter[bytes]()
        """The number of requests under way, by the access token."""
        folder = Path(__file__).parent / "static"
        self._files = {path: ((folder / name).read_bytes(), kind) for path, (name, kind) in _STATIC.items()}
        self._login = {_OPEN, f"{CONSOLE_PATH}/leave"}
        self._examining = trio.Lock()

    async def serve(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise RuntimeError(f"no {scope['type']} here")
        try:
            await self._route(scope, receive, send)
        except Refused as refused:
            path = scope["raw_path"].decode("latin-1")
            if refused.status == 403 or (path == _OPEN and refused.status == 429):
                self._record_attempt(Attempt(Reason.CONSOLE, "path", path, client_address(scope)))
            await refused.respond(send)
        except ClientGone:
            return

    async def _route(self, scope: Scope, receive: Receive, send: Send) -> None:
        path, method = scope["raw_path"].decode("latin-1"), scope["method"]
        if not claim(scope, None, reserved=True):
            raise Refused(503, NO_CONNECTION_MESSAGE, headers={"retry-after": RETRY_AFTER})
        if path in self._files:
            if method != "GET":
                raise method_not_allowed("GET")
            data, kind = self._files[path]
            await respond(send, 200, {**BROWSER_HEADERS, "content-type": kind}, data)
            return
        if path == "/" and method == "GET":
            await respond(send, 303, {**BROWSER_HEADERS, "location": CONSOLE_PATH})
            return
        if path not in self._login and not (path == API_PATH or path.startswith(f"{API_PATH}/")):
            raise Refused(404, "there is nothing here")
        if path in self._login and method != "POST":
            raise method_not_allowed("POST")
        headers = Headers(scope["headers"])
        self._check(headers, is_post=method == "POST")
        if path == _OPEN:
            await self._open(scope, receive, send)
            return
        session = self._sessions.authenticate(_cookies(headers), headers.one(SECRET_HEADER) or "")
        if session is None:
            raise Refused(403, _NO_SESSION, session_ended=True)
        if not session.token:
            claim(scope, session, reserved=True)
        if method == "POST":
            number = headers.one(SEQUENCE_HEADER) or ""
            if not (_NUMBER.fullmatch(number) and self._sessions.accept_sequence(session, int(number))):
                raise Refused(403, _FOREIGN_REQUEST)
        if path in self._login:
            await self._leave(session, receive, send)
        else:
            await self._let_in(session, scope, receive, send)

    def _check(self, headers: Headers, *, is_post: bool) -> None:
        """Compare the request with what our own page would send."""
        host, origins = (headers.one("host") or "").lower(), headers.all("origin")
        sites, kinds = headers.all("sec-fetch-site"), headers.all("content-type")
        fits = (
            host in self._hosts
            and (origins == [f"http://{host}"] or (not origins and not is_post))
            and sites in ([], ["same-origin"])
            and (not is_post or [kind.lower() for kind in kinds] == ["application/json"])
        )
        if not fits:
            raise Refused(403, _FOREIGN_REQUEST)

    async def _open(self, scope: Scope, receive: Receive, send: Send) -> None:
        request = await _read(receive, _OpenRequest)
        if bool(request.code) == bool(request.token):
            raise Refused(400, _NO_REQUEST)
        token = sha256(request.token.encode("utf-8", "replace")).digest() if request.token else b""
        reader = self._api.history_reader(token) if token else None
        try:
            if token and reader is None:
                self._sessions.count_failed_try()
                raise Refused(403, _BAD_TOKEN, session_ended=True)
            if not token and not self._sessions.spend(request.code):
                raise Refused(403, _BAD_LINK, session_ended=True)
        except TooManyTries:
            raise Refused(429, "too many were tried in vain; the next one may be tried in a minute") from None
        # After the code or token: whoever has none starts no search.
        with self._counted(token):
            async with self._examining if token else nullcontext():  # a token opens as often as its caller likes
                found = await self._refuse_sender(scope.get("client"), scope.get("server"))
        if found is not None:
            self._refusals.add(*found)
            raise Refused(403, found[1], session_ended=True)
        opened = self._sessions.open(token)
        self._end_streams()
        cookie = _set_cookie(opened.session, opened.cookie, int(SESSION_IDLE_TIMEOUT))
        who = {} if reader is None else {"caller": reader.caller, "all": reader.sees_all}
        await respond(send, 200, {**JSON_HEADERS, "set-cookie": cookie}, encode({"secret": opened.secret, **who}))

    async def _leave(self, session: ConsoleSession, receive: Receive, send: Send) -> None:
        await _read(receive, _LeaveRequest)
        self._sessions.end(session)
        self._end_streams()
        await respond(send, 200, {**JSON_HEADERS, "set-cookie": _set_cookie(session, "", 0)}, b"{}")

    async def _let_in(self, session: ConsoleSession, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request of a session to the admin API."""

        def check() -> None:
            if not self._sessions.is_open(session):  # it ended while the body came
                raise Refused(403, _NO_SESSION, session_ended=True)

        def history() -> HistoryApi:
            check()  # it may have waited for other callers
            reader = self._api.history_reader(session.token)
            if reader is None:  # the configuration has changed
                self._sessions.end(session)
                raise Refused(403, _NO_SESSION, session_ended=True)
            return reader.calls

        is_stream = scope["raw_path"].decode("latin-1") == EVENTS_PATH
        if is_stream and list(self._streams.values()).count(session) >= MAX_STREAMS:
            raise Refused(429, f"this console is open in {MAX_STREAMS} pages already")
        ended = trio.Event()
        caller = AdminCaller(
            Channel.CONSOLE,
            check,
            is_present=lambda: self._sessions.touch(session),
            ends=(self._stop, ended),
            history=history if session.token else None,
        )
        if is_stream:
            self._streams[ended] = session
        try:
            with self._counted(session.token):
                await self._app.serve({**scope, CALLER: caller}, receive, send)
        finally:
            self._streams.pop(ended, None)

    @contextmanager
    def _counted(self, token: bytes) -> Iterator[None]:
        """The block of a request of an access token, which may wait there for others; of the owner if it is empty.

        Raises:
            Refused: so many of the token do so already.
        """
        if token and self._under_way[token] >= MAX_UNDER_WAY:
            why = f"{MAX_UNDER_WAY} requests with this access token are under way; try again in a moment"
            raise Refused(503, why, headers={"retry-after": RETRY_AFTER})
        self._under_way[token] += 1
        try:
            yield
        finally:
            self._under_way[token] -= 1

    def _end_streams(self) -> None:
        """End the streams of sessions that are over."""
        for ended, session in self._streams.items():
            if not self._sessions.is_open(session):
                ended.set()


async def _read(receive: Receive, kind: type[_T]) -> _T:
    """The body of a login request.

    Raises:
        Refused: it is too long, too slow, or not such a request.
        ClientGone: it will not arrive.
    """
    try:
        return msgspec.json.decode(await read_small_body(receive), type=kind)
    except DECODE_ERRORS as problem:
        raise Refused(400, _NO_REQUEST) from problem


def _cookies(headers: Headers) -> Mapping[str, str]:
    """Colonnade's own cookies. A name that occurs more than once does not count."""
    pairs = [pair.strip().partition("=") for line in headers.all("cookie") for pair in line.split(";")]
    names = [name for name, _, _ in pairs]
    return {name: value for name, _, value in pairs if name.startswith(COOKIE_PREFIX) and names.count(name) == 1}


def _set_cookie(session: ConsoleSession, value: str, seconds: int) -> str:
    return f"{COOKIE_PREFIX}{session.name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict"
