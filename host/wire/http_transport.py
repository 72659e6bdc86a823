"""HTTP requests to one server, and their responses: the part that both HTTP links share.

Requests stay within the origin (scheme, host and port) of the server. Redirects within it are followed, unless a
login's token would go along; a redirect or an endpoint elsewhere is refused, and nothing is sent there. The connections
are those of `http_pool`.
"""

from __future__ import annotations

import re
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import partial
from io import BytesIO
from math import inf
from types import TracebackType
from typing import Any, Protocol

import trio

from config import is_protocol_header
from host.errors import copy_of
from host.jsonrpc.messages import Id, Malformed
from host.jsonrpc.raw import is_json
from host.memory import HoldingFactory, OverBudget, uncharged
from host.oauth.challenge import Challenge, bearer_challenge
from host.url import Url
from host.version import VERSION
from host.wire.content_coding import ResponseBody, UnreadableCoding, decoded
from host.wire.framing import DISCARD_WINDOW
from host.wire.http_errors import (
    HEADERS_REMEDY,
    LET_PASS,
    LOGIN_PAGE_REMEDY,
    MAX_RETRY_PAUSE,
    PATH_REMEDY,
    TLS_REMEDY,
    AuthNeeded,
    Broken,
    HttpRefused,
    OverLimit,
)
from host.wire.http_pool import MAX_HEADS, Headers, Pool, PooledResponse
from host.wire.link import ConnectStage, LinkLost, NoMemory, ReceivedMessage, received_in, unsent
from host.wire.noise import TooManyUselessMessages, UselessMessages
from host.wire.refusal_text import MAX_SAID, names_host, names_tls, readable_text, wants_browser, wants_login
from host.wire.sse import EventParser, EventTooLong, SseEvent
from host.wire.turns import Turns

MAX_BODY = 16 * 1024 * 1024
"""Bytes of a response in one piece; `limits.message` may set another number."""
LINGER = 0.02
"""Seconds in which a response that is not needed any more may end by itself, so that its connection can be used again.
"""
CLOSING_TIMEOUT = 2.0
"""Seconds for sending a cancellation, or for deleting the session. A cancelled task waits for both."""
SAID_TIMEOUT = 1.0
"""Seconds in which what a refusal says must come."""
MAX_REDIRECTS = 3

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

# Statuses that keep the method and the body, and those that lead to a GET: a GET follows both (RFC 9110, "Redirection
# 3xx").
_SAME_METHOD_REDIRECTS = (307, 308)
_GET_REDIRECTS = (301, 302, 303)

_SECONDS = re.compile(r"[0-9]{1,18}")
_OBJECT_OR_ARRAY = re.compile(rb"(?:\xef\xbb\xbf)?+[ \t\r\n]*+[{\[]")


Header = tuple[bytes, bytes]
TakeEvent = Callable[[SseEvent | Malformed], Iterator[bool]]
"""Handles an event in steps, one for each message of a batch, and gives out after each whether the stream has brought
all that was wanted."""


class Authorization(Protocol):
    """The token of a login, as the header that joins each request to the server. `remedy` is what a person does to log
    in."""

    @property
    def remedy(self) -> str: ...

    @property
    def is_absent(self) -> bool:
        """Whether there is no login, so that requests go without a token."""

    def current(self) -> Header | None:
        """The header, if it is there and valid for a while. Called for every request: never waits."""

    async def renew(self, refused: Header | None) -> Header | None:
        """Wait for the header, or (if the server refused one) for another one than the refused one. None if only a
        person can get one.

        Raises:
            LinkLost: it cannot be had now.
        """

    def note_missing(self, scopes: Sequence[str]) -> None:
        """Have the next login ask for these scopes too. Never waits."""


class HttpResponse:
    """A response whose body is unread. Its receiver must close it; the methods that read the body do so.

    `is_redirected`: it came from another address than the one that was asked. `lost_login`: its request found the login
    to be over. `unreadable`: why its body cannot be read, if it is compressed in another way than `content_coding`
    knows."""

    __slots__ = (
        "_body", "_hold", "_max_body", "_response", "_turns", "is_redirected", "lost_login", "status", "unreadable",
    )  # fmt: skip

    def __init__(
        self,
        response: PooledResponse,
        turns: Turns | None = None,
        max_body: int | None = None,
        hold: HoldingFactory = uncharged,
    ) -> None:
        self._hold = hold
        self._response = response
        self._body: ResponseBody = response
        self.unreadable: UnreadableCoding | None = None
        if (coding := response.header("content-encoding")) is not None:
            try:
                self._body = decoded(response, coding) or response
            except UnreadableCoding as problem:
                self.unreadable = problem
        self._turns = turns or Turns()
        self._max_body = max_body or MAX_BODY
        self.status = response.status
        self.is_redirected = False
        self.lost_login = False

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The media type in lower case; empty if the body is `unreadable`."""
        if self.unreadable is not None:
            return ""
        kind = self._response.header("content-type") or ""
        return kind if kind == JSON else kind.partition(";")[0].strip().lower()

    def header(self, name: str) -> str | None:
        return self._response.header(name)

    def location(self) -> str | None:
        """The target of a redirect; None if the response has no `Location` header, or several."""
        return None if self._response.is_repeated("location") else self._response.header("location")

    async def body(self) -> bytes:
        """Read the whole body, and close the response.

        Raises:
            OverLimit: the body is over the limit.
            NoMemory: there is no memory for the body.
            UnreadableCoding: the body is not what its `Content-Encoding` says.
            LinkLost: the connection broke, or the body had no length and is not complete JSON.
        """
        if (whole := self._body.take_whole()) is not None:
            # It came in one read and is handled at once: like a whole line over stdio it is not charged.
            if len(whole) > self._max_body:
                raise self._over_limit()
            return whole
        has_length = self._body.has_length
        # Not a list: its pieces would stay in the heap for a while, beside the whole. This gives its buffer away.
        received = BytesIO()
        size = 0
        no_memory = False

        def drop() -> None:
            nonlocal no_memory
            no_memory = True
            held.release()
            reading.cancel("its memory is needed elsewhere")

        try:
            with trio.CancelScope() as reading, self._hold(drop) as held:
                while chunk := await self._body.read():
                    size += len(chunk)
                    try:
                        held.grow(len(chunk))
                    except OverBudget:
                        drop()
                    if size > self._max_body:
                        break
                    if not no_memory:
                        received.write(chunk)
        finally:
            self._response.close()
        if no_memory:
            raise NoMemory
        if size > self._max_body:
            raise self._over_limit()
        body = received.getvalue()
        if not has_length and not _is_whole(body):
            raise Broken("it did not say how long its response is, and what came is not complete JSON")
        return body

    def _over_limit(self) -> OverLimit:
        return OverLimit(f"it sent more than {self._max_body} bytes in one response (limits.message)")

    async def read_events(self, events: EventParser, take: TakeEvent) -> None:
        """Pass each event of this stream to `take` until the stream ends, and close the response. A broken connection
        counts as the end. Once `take` has given out True, the stream is read for LINGER seconds more, so that it can
        end by itself. A message over the limit is passed as a `Malformed`.

        Raises:
            OverLimit: an event is over the limit and cannot be assigned to a request.
            NoMemory: there is no memory for an event.
            UnreadableCoding: the body is not what its `Content-Encoding` says.
            TooManyUselessMessages: too many comments, or events without data.
        """
        events.restart()
        if (whole := self._body.take_whole()) is not None:
            self._pass_events(whole, events, take)
            return
        noise, counted = UselessMessages(trio.current_time()), events.useless_count
        enough = lingering = False
        problem: LinkLost | None = None
        discarding = None
        turn = self._turns.turn()

        def stop(reason: LinkLost) -> None:
            nonlocal problem
            problem = problem or reason
            held.release()
            reading.cancel(str(reason))

        try:
            with (
                trio.CancelScope() as reading,
                self._hold(lambda: stop(NoMemory())) as held,
                suppress(Broken),
            ):
                while chunk := await self._body.read():
                    turn.begin()
                    try:
                        for event in events.feed(chunk):
                            for is_enough in take(event) if event is not None else (False,):
                                enough = is_enough or enough
                                await turn.yield_if_over()
                        held.resize(events.pending)
                    except OverBudget:
                        stop(NoMemory())
                    except EventTooLong as too_long:
                        stop(OverLimit(f"it sent {too_long} (limits.message)"))
                    if not noise.add(trio.current_time(), events.useless_count - counted):
                        stop(TooManyUselessMessages())
                    counted = events.useless_count
                    if enough and not lingering:
                        lingering, reading.deadline = True, trio.current_time() + LINGER
                    elif not enough and events.discarding is not discarding:
                        discarding = events.discarding
                        reading.deadline = inf if discarding is None else trio.current_time() + DISCARD_WINDOW
        finally:
            self._response.close()
        if reading.cancelled_caught and problem is None:
            problem = OverLimit("it sent an event over the limit (limits.message) and did not end it in time")
        if problem is not None and not enough:
            raise problem

    def _pass_events(self, stream: bytes, events: EventParser, take: TakeEvent) -> None:
        """Pass the events of a short stream that has ended. It needs no deadline, and no memory that lasts."""
        turn, enough = self._turns.turn(), False
        try:
            for event in events.feed(stream):
                if event is not None:
                    enough = any(list(take(event))) or enough
        except EventTooLong as too_long:
            if not enough:
                raise OverLimit(f"it sent {too_long} (limits.message)") from None
        finally:
            turn.account()

    async def discard(self) -> None:
        """Read the rest for at most LINGER seconds, so that the connection can be used again; then close."""
        try:
            with trio.move_on_after(LINGER), suppress(Broken):
                while await self._response.read():
                    pass
        finally:
            self._response.close()

    async def said(self) -> str:
        """Read what the body says, for people (`readable_text`), and close the response. One that does not end in
        SAID_TIMEOUT seconds counts as a longer one; an unreadable one says nothing. Never raises LinkLost."""
        body, whole = b"", False
        try:
            if self.unreadable is None:
                with trio.move_on_after(SAID_TIMEOUT), suppress(LinkLost):
                    while len(body) <= MAX_SAID and (piece := await self._body.read()):
                        body += piece
                    whole = len(body) <= MAX_SAID
        finally:
            self._response.close()
        return readable_text(body, whole=whole)

    def close(self) -> None:
        self._response.close()

    @property
    def challenge(self) -> Challenge | None:
        """The Bearer challenge, if there is one."""
        return bearer_challenge(self.header("www-authenticate") or "")

    @property
    def refuses_token(self) -> bool:
        """Whether the token was refused instead of the request: with 401, or with 400 or 403 and a challenge that says
        so, as from servers that check scopes first."""
        if self.status not in (400, 403):
            return self.status == 401
        challenge = self.challenge
        return challenge is not None and challenge.refuses_token

    def refusal(self) -> HttpRefused:
        """The error for a status other than 2xx, in words for people. What the body says is not among them: it may
        contain anything, and only people are shown it (`Origin.explain`). For 401 and 403, `Origin.refusal` knows
        more."""
        status = self.status
        if 300 <= status < 400:
            return HttpRefused(status, "the server redirects", "configure the URL that it redirects to")
        if status in (404, 405, 501):  # 501: the server has no POST at all (RFC 9110, "501 Not Implemented")
            return HttpRefused(status, "the server does not serve MCP there", PATH_REMEDY)
        if status == 407:
            what = "a proxy on the way to the server wants credentials of its own"
            return HttpRefused(status, what, "look at that proxy, or reach the server without it")
        if status == 421:
            what = "the server does not answer for the host name in its url"
            return HttpRefused(status, what, "correct the host there, or add the name at the server")
        if status == 429:
            return HttpRefused(status, "the server has too many requests", retry_after=self._retry_after())
        if status in (502, 504) or 520 <= status <= 530:  # the latter are those of Cloudflare
            what = "a gateway before the server got no valid response from it"
            return HttpRefused(status, what, "look whether the server runs behind it")
        what = "the server failed" if status >= 500 else "the server refused the request"
        return HttpRefused(status, what, retry_after=self._retry_after() if status == 503 else None)

    def _retry_after(self) -> float | None:
        """Seconds to wait (RFC 9110, "Retry-After": a number or a date), at most MAX_RETRY_PAUSE; None if not given."""
        header: str = (self._response.header("retry-after") or "").strip()
        if _SECONDS.fullmatch(header):
            seconds = float(header)
        else:
            try:
                when = parsedate_to_datetime(header)
                seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
            except (ValueError, OverflowError):
                return None
        return min(max(seconds, 0.0), MAX_RETRY_PAUSE)


class Origin:
    """One server: its URL, its configured headers, and the connections to it. Made by `open_origin`."""

    def __init__(
        self,
        url: Url,
        configured: Headers,
        pool: Pool,
        turns: Turns,
        max_message: int | None,
        hold: HoldingFactory,
    ) -> None:
        self._login: Authorization | None = None
        self._opened = partial(HttpResponse, turns=turns, max_body=max_message, hold=hold)
        self.turns = turns
        self.max_message = max_message
        self._url = url
        self._configured = configured
        self.pool = pool
        self._redirects: dict[tuple[str, Url | None], Url] = {}
        self.has_served = False
        """Whether the URL has answered as an MCP server does, so that its path is right."""
        self._may_want_tls = url.scheme == "http"
        """Whether the URL may have the wrong scheme: nothing at it has responded as an MCP server yet."""

    def headers(self, ours: list[tuple[str, str]]) -> Headers:
        """The headers of one request: the configured ones, and `ours`."""
        return [*self._configured, (b"Accept-Encoding", b"identity"), *((n.encode(), v.encode()) for n, v in ours)]

    def locate(self, reference: str, base: Url | None = None) -> Url | None:
        """Resolve a URL reference relative to `base` (by default the server's URL). None if it is invalid, or leads to
        another scheme, host, port or user."""
        base = base or self._url
        try:
            found = base.join(reference)
        except ValueError:
            return None
        return found if found.origin == base.origin and found.userinfo in ("", base.userinfo) else None

    async def request(
        self,
        method: str,
        headers: Headers,
        body: bytes | None = None,
        at: Url | None = None,
        *,
        repeatable: bool = False,
    ) -> HttpResponse:
        """Send one request to `at` (by default the server's URL), and return the response with the body unread. The
        caller closes the response.

        Redirects within the origin are followed, at most MAX_REDIRECTS, and their target is used from then on. Any
        other redirect is returned as the response.

        Args:
            repeatable: see `Pool.request`.

        Raises:
            Unreachable: no connection could be made.
            LinkLost: the connection broke.
        """
        asked = at or self._url
        address = (self._redirects.get((method, at)) if self._redirects else None) or asked
        hops = 0
        while True:
            try:
                response = await self.pool.request(method, address, headers, body, repeatable=repeatable)
            except Broken as broken:
                if self._may_want_tls:
                    broken.suspect_tls()
                raise
            answer = self._opened(response)
            if self._may_want_tls:
                # nginx and servers in Go respond so to plain HTTP where they expect TLS.
                self._may_want_tls = answer.status == 400 and answer.media_type != JSON
            is_redirect = 300 <= answer.status < 400
            if not is_redirect or hops == MAX_REDIRECTS:
                break
            if (further := self._redirect_target(method, address, answer)) is None:
                break
            await answer.discard()
            address = further
            hops += 1
        if hops and not is_redirect:
            self._redirects[method, at] = address
        answer.is_redirected = address is not asked
        return answer

    def refusal(self, answer: HttpResponse) -> HttpRefused:
        """The error for a response with a status other than 2xx, in words for people."""
        status = answer.status
        refuses_token = answer.refuses_token
        if status != 403 and not refuses_token:
            refused = answer.refusal()
            if self._may_want_tls:
                refused.remedy = TLS_REMEDY
            return refused
        challenge, login = answer.challenge, self._login
        if not refuses_token:
            if challenge is None or not challenge.lacks_scope:
                return AuthNeeded(403, "the server refuses access", HEADERS_REMEDY, challenge)
            if login is None:
                what = "the token under headers lacks a scope"
                return AuthNeeded(403, what, HEADERS_REMEDY, challenge)
            login.note_missing(challenge.scopes)
            return AuthNeeded(403, "the login lacks a scope", login.remedy, challenge, needs_login=True)
        if _has(self._configured, b"authorization"):
            wants_oauth = challenge is not None and challenge.resource_metadata
            what = "the server refused the configured Authorization" + (" and wants OAuth" if wants_oauth else "")
            return AuthNeeded(status, what, "correct it under headers", challenge)
        if login is not None and answer.is_redirected:
            what = "the server redirects to where it wants a login, and tokens go along no redirect"
            return AuthNeeded(status, what, "configure the URL that it redirects to", challenge)
        if login is None or (challenge is None and answer.header("www-authenticate")):
            return AuthNeeded(status, "the server wants credentials", "set them under headers", challenge)
        what, remedy = "the server wants a login", login.remedy
        if challenge is None or not challenge.resource_metadata:
            # So does a server of 2025-03-26 that wants a login, and one that wants a token of its own.
            what, remedy = "the server wants credentials", f"{login.remedy}, or set them under headers"
        return AuthNeeded(status, what, remedy, challenge, needs_login=True, lost_login=answer.lost_login)

    def explain(self, answer: HttpResponse, refused: LinkLost, text: str) -> None:
        """Keep what the body of a refusal says for people, and name the cause that the response shows, if it is not the
        usual one of its status. The words are ours."""
        refused.said, status = text, answer.status
        if not isinstance(refused, HttpRefused):
            return
        if self.has_served:
            refused.may_be_http_sse, refused.reached = False, ConnectStage.FURTHER
        if 300 <= status < 400:
            refused.said = _address_in(answer.location() or "") or text
            self._explain_redirect(answer, refused)
        elif status in (404, 405, 501) and self.has_served:
            refused.restate("the server refused the request", "")
        elif status in (403, 503) and (answer.header("cf-mitigated") or wants_browser(text)):
            what = "a firewall before the server wants a browser"
            refused.restate(what, LET_PASS)
        elif status == 403 and names_host(text):
            what = "the server does not answer for the host name in its url"
            refused.restate(what, "correct the host there, or add the name at the server")
        elif status == 403 and isinstance(refused, AuthNeeded) and not refused.needs_login and self._sends_token:
            assert self._login is not None
            refused.remedy = f"log in with an account that may use it: {self._login.remedy}"
        elif status == 403 and text and isinstance(refused, AuthNeeded) and refused.remedy == HEADERS_REMEDY:
            refused.remedy = f"see what it says, or {HEADERS_REMEDY}"
        elif refused.remedy == TLS_REMEDY and text and not names_tls(text):
            refused.remedy = ""

    @property
    def _sends_token(self) -> bool:
        return self._login is not None and not self._login.is_absent

    def _explain_redirect(self, answer: HttpResponse, refused: HttpRefused) -> None:
        try:
            target = self._url.join(answer.location() or "")
        except ValueError:
            refused.restate("the server redirects to no valid URL", "look at its configuration")
            return
        if (target.scheme, target.host) == ("https", self._url.host) and self._url.scheme == "http":
            refused.restate("the server redirects to TLS", "begin its url with https://")
        elif answer.status in _GET_REDIRECTS and wants_login(refused.said.replace("/", " ").replace("_", " ")):
            what = "the server redirects to a login page"
            refused.restate(what, LOGIN_PAGE_REMEDY)

    def _redirect_target(self, method: str, address: Url, answer: HttpResponse) -> Url | None:
        """The address that the response redirects to, or None if it is not followed."""
        followed = answer.status in _SAME_METHOD_REDIRECTS or (method == "GET" and answer.status in _GET_REDIRECTS)
        reference = answer.location() if followed else None
        return None if reference is None else self.locate(reference, address)


def _address_in(reference: str) -> str:
    """A URL reference of a server for people, without its query, which may hold a token or a session."""
    return reference.partition("?")[0].partition("#")[0]


def _is_whole(body: bytes) -> bool:
    """Whether a body is one JSON object or array, of which no part is one. None that is nested too deep to tell."""
    try:
        return _OBJECT_OR_ARRAY.match(body) is not None and is_json(body.removeprefix(BOM_UTF8))
    except RecursionError:
        return False


_OriginArguments = tuple[Url, Headers, Pool, Turns, int | None, HoldingFactory]


class LoginOrigin(Origin):
    """A server with a login, whose token joins the headers of each request. Made by `open_origin`."""

    def __init__(self, login: Authorization, *arguments: *_OriginArguments) -> None:
        super().__init__(*arguments)
        self._login: Authorization = login
        self._token: Header | None = None
        self._joined: dict[int, tuple[Headers, Headers]] = {}
        """Headers without and with the token, by the id of the former: the pool keeps what it makes of a list."""

    def request(
        self,
        method: str,
        headers: Headers,
        body: bytes | None = None,
        at: Url | None = None,
        *,
        repeatable: bool = False,
    ) -> Coroutine[Any, Any, HttpResponse]:
        """See `Origin.request`. A request whose token is refused was not executed: it is sent once more with another
        token, if there is one. A token does not go along a redirect, even within the origin: the path that the server
        names may be somebody else's.

        Raises:
            AuthNeeded: the login was found to be over; nothing was sent.
            LinkLost: as in `Origin.request`, or the token cannot be had now.
        """
        if self._login.is_absent:  # in no coroutine of its own: nearly every server is such a one
            return super().request(method, headers, body, at, repeatable=repeatable)
        return self._request_with_token(method, headers, body, at, repeatable=repeatable)

    async def _request_with_token(
        self, method: str, headers: Headers, body: bytes | None, at: Url | None, *, repeatable: bool
    ) -> HttpResponse:
        token = self._login.current() or await self._login.renew(None)
        if token is None:
            # The connection is about to end with its login: what was sent now could be lost on the way.
            raise AuthNeeded(401, "the login is over", self._login.remedy, needs_login=True, lost_login=True)
        address, send = at or self._url, partial(self.pool.request, repeatable=repeatable)
        answer = self._opened(await send(method, address, self._join(headers, token), body))
        if answer.status < 400 or not answer.refuses_token:
            return answer
        try:
            token = await self._login.renew(token)
        except BaseException:
            answer.close()
            raise
        if token is None:
            answer.lost_login = True
            return answer
        await answer.discard()
        return self._opened(await send(method, address, self._join(headers, token), body))

    def _join(self, headers: Headers, token: Header) -> Headers:
        if token is not self._token or len(self._joined) >= MAX_HEADS:
            self._token = token
            self._joined.clear()
        kept = self._joined.get(id(headers))
        if kept is None or kept[0] is not headers:
            kept = self._joined[id(headers)] = headers, [*headers, token]
        return kept[1]


class HttpExchanges:
    """Counts the exchanges of one link: each is a `with` block. When the link ends, `lost` is the reason, and `closed`
    is set. The exchanges that wait at a connection then break, and fail with that reason.

    Args:
        abort: see `Pool.abort`.
    """

    def __init__(self, abort: Callable[[], None]) -> None:
        self.lost: LinkLost | None = None
        self.closed = trio.Event()
        self._abort = abort
        self._count = 0
        self._left = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return self._count

    async def wait_left(self) -> None:
        """Wait until all exchanges of a link that has ended are over."""
        while self._count:
            await self._left.park()

    def __enter__(self) -> None:
        if self.lost is not None:
            raise unsent(self.lost)
        self._count += 1

    def __exit__(
        self, kind: type[BaseException] | None, problem: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._count -= 1
        if self.lost is not None:
            self._left.unpark_all()
            if isinstance(problem, Broken) and problem.unwritten:
                raise unsent(self.lost) from None
            if isinstance(problem, LinkLost) and not problem.nothing_begun:
                raise copy_of(self.lost) from None

    def connection_lost(self, lost: LinkLost, *, abort: bool = True) -> LinkLost:
        """End the link and its exchanges, unless it has already ended. Returns the reason for which it ended first.
        Without `abort`, exchanges in progress go on; the caller aborts the pool."""
        if self.lost is None:
            self.lost = lost
            self.closed.set()
            if abort:
                self._abort()
        return self.lost


@asynccontextmanager
async def open_origin(
    url: str,
    headers: Mapping[str, str],
    pool: Pool | None = None,
    *,
    turns: Turns | None = None,
    max_message: int | None = None,
    hold: HoldingFactory = uncharged,
    authorization: Authorization | None = None,
) -> AsyncIterator[Origin]:
    """The server at `url`, with connections that are closed at the end of the block. TLS trusts the certificates that
    `SSL_CERT_FILE` or `SSL_CERT_DIR` name, otherwise those of Mozilla.

    Args:
        headers: sent with every request. Headers that the protocol sets are left out.
        pool: its connections, instead of new ones. Closed at the end.
        turns: shared by all links of one host.
        max_message: bytes of one message, in a body or an event, instead of MAX_BODY and MAX_EVENT.
        hold: charges memory for the bodies and events that are being read.
        authorization: the token of a login, for a server without an `Authorization` of its own under headers.

    Raises:
        LinkLost: the URL or a header is invalid.
    """
    turns = turns or Turns()
    try:
        target = Url.parse(url)
        configured = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    except ValueError:
        raise LinkLost("its URL is invalid, or its headers are not ASCII") from None
    common = [(b"User-Agent", f"colonnade/{VERSION}".encode())] if not _has(configured, b"user-agent") else []
    common += [(name, value) for name, value in configured if not is_protocol_header(name.decode())]
    used = pool or Pool(turns)
    try:
        arguments = target, common, used, turns, max_message, hold
        yield Origin(*arguments) if authorization is None else LoginOrigin(authorization, *arguments)
    finally:
        used.abort()


def messages_of_event(event: SseEvent | Malformed, batches: bool, about: Id | None) -> Iterator[ReceivedMessage]:
    """The messages in the data of an event, or instead of it."""
    if isinstance(event, Malformed):
        yield ReceivedMessage(event, about, event.size)
    elif event.data:  # an event without data only sets the last event id
        yield from received_in(event.data, batches, about)


def _has(headers: Headers, wanted: bytes) -> bool:
    return any(name.lower() == wanted for name, _ in headers)
