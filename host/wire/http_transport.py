"""HTTP requests to one server, their responses and their errors: the part that both HTTP links share.

This is the only file that imports httpx. It uses httpx's transports without its client: there are no cookies, no
proxies from the environment, and no log lines with the URL. Three rules hold:

- Requests stay within the origin (scheme, host and port) of the server. Redirects within it are followed; a redirect or
  an endpoint elsewhere is refused, and nothing is sent there.
- Errors contain no text from the server and no part of the URL. The one exception is the issuer that a server behind
  OAuth names, if it is a plain URL (`oauth`).
- Responses are read to their end or cancelled inside the innermost generator, never left half read: httpx nests
  generators, and only an exception from the innermost one closes them all at once.
"""

from __future__ import annotations

import logging
import re
import socket
import ssl
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from functools import cache
from math import inf
from typing import TypeAlias

import httpcore
import httpx
import trio

from config import is_protocol_header
from host.errors import copy_of
from host.jsonrpc.messages import Malformed
from host.memory import HoldingFactory, OverBudget, uncharged
from host.version import VERSION
from host.wire.framing import DISCARD_WINDOW
from host.wire.http_network import MAX_INTERIM, Backend, TooManyInterim
from host.wire.link import LinkLost, NoMemory
from host.wire.noise import TooManyUselessMessages, UselessMessages
from host.wire.oauth import FIND_TIMEOUT, MAX_METADATA, find_issuer, lacks_scope, wants_token
from host.wire.sse import Event, EventParser, EventTooLong
from host.wire.turns import Turns

MAX_BODY = 16 * 1024 * 1024
CONNECT_TIMEOUT = 10.0
WRITE_TIMEOUT = 10.0
LINGER = 0.02
"""Seconds in which a response that is not needed any more may end by itself, so that its connection can be used again.
"""
CLOSING_TIMEOUT = 2.0
"""Seconds for sending a cancellation, or for deleting the session."""
MAX_REDIRECTS = 3
MAX_RETRY_PAUSE = 60.0

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

# Reading has no limit here: the caller decides how long a response may take.
_TIMEOUTS = {"timeout": {"connect": CONNECT_TIMEOUT, "write": WRITE_TIMEOUT, "read": None, "pool": None}}
# Few idle connections: at every request, the pool iterates over all of them for each request in it.
MAX_IDLE = 20
IDLE_EXPIRY = 60.0
# Detects a vanished peer within a minute, also on a standalone stream, on which silence is normal.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # not every platform has all of them
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)),
)

# Statuses that keep the method and the body, and those that lead to a GET: a GET follows both (RFC 9110, "Redirection
# 3xx").
_SAME_METHOD_REDIRECTS = (307, 308)
_GET_REDIRECTS = (301, 302, 303)

_SECONDS = re.compile(r"[0-9]{1,18}")

# At DEBUG, httpcore logs response headers, which contain session ids.
logging.getLogger("httpcore").setLevel(logging.WARNING)

Headers: TypeAlias = list[tuple[bytes, bytes]]
Transport: TypeAlias = httpx.AsyncBaseTransport
Address: TypeAlias = httpx.URL


class Unreachable(LinkLost):
    """A connection to the server could not be made; nothing was sent."""

    nothing_begun = True

    def __init__(self, why: str, remedy: str = "") -> None:
        super().__init__(why)
        self.remedy = remedy


class HttpRefused(LinkLost):
    """The server returned an error status. `retry_after`: seconds from its header, at most MAX_RETRY_PAUSE, or None."""

    nothing_begun = True

    def __init__(self, status: int, what: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{what} (HTTP {status}): {remedy}" if remedy else f"{what} (HTTP {status})")
        self.status = status
        self.retry_after = retry_after
        # 2025-11-25, "Transports / Backwards Compatibility" names 400, 404 and 405; the revisions before it, any 4xx.
        self.may_be_http_sse = 400 <= status < 500 and status not in (401, 403, 429)
        self.answered = self.may_be_http_sse
        self.remedy = "its own log says more" if status >= 500 else ""
        self.lasting = 300 <= status < 400 or status in (401, 403, 404, 405)

    @property
    def may_hold_answer(self) -> bool:
        """Whether servers use this status together with a JSON-RPC error response."""
        return 400 <= self.status < 500 and self.status not in (401, 403)

    @property
    def is_transient(self) -> bool:
        """Whether the same request may succeed later."""
        return self.status == 429 or self.status >= 500


class OverLimit(LinkLost):
    """The server's response is over a limit."""

    too_large = True


class AuthNeeded(HttpRefused):
    """The server needs credentials, or refused the configured ones."""

    def __init__(self, status: int, what: str, remedy: str = "") -> None:
        super().__init__(status, what)
        self.remedy = remedy


class HttpResponse:
    """A response whose body is unread. Its receiver must close it; the methods that read the body do so."""

    __slots__ = ("_hold", "_max_body", "_response", "_turns", "status")

    def __init__(
        self,
        response: httpx.Response,
        turns: Turns | None = None,
        max_body: int | None = None,
        hold: HoldingFactory = uncharged,
    ) -> None:
        self._hold = hold
        self._response = response
        self._turns = turns or Turns()
        self._max_body = max_body or MAX_BODY
        self.status = response.status_code

    @property
    def is_success(self) -> bool:
        return 200 <= self.status < 300

    @property
    def media_type(self) -> str:
        """The media type in lower case; empty if the body is compressed although `Accept-Encoding` excludes it."""
        if self._response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            return ""
        content_type: str = self._response.headers.get("content-type", "")
        return content_type.partition(";")[0].strip().lower()

    def header(self, name: str) -> str | None:
        found: str | None = self._response.headers.get(name)
        return found

    def location(self) -> str | None:
        """The target of a redirect; None if the response has no `Location` header, or several."""
        values = self._response.headers.get_list("location")
        return values[0] if len(values) == 1 else None

    async def body(self) -> bytes:
        """Read the whole body, and close the response.

        Raises:
            OverLimit: the body is over the limit.
            NoMemory: there is no memory for the body.
            LinkLost: the connection broke.
        """
        parts: list[bytes] = []
        size = 0
        no_memory = False

        def drop() -> None:
            nonlocal no_memory
            no_memory = True
            held.release()
            reading.cancel("its memory is needed elsewhere")

        try:
            with trio.CancelScope() as reading, self._hold(drop) as held:
                async for chunk in self._chunks():
                    size += len(chunk)
                    try:
                        held.grow(len(chunk))
                    except OverBudget:
                        drop()
                    if size > self._max_body:
                        reading.cancel()
                    elif not no_memory:
                        parts.append(chunk)
        except httpx.HTTPError as problem:
            raise LinkLost(_broken_reason(problem)) from problem
        finally:
            await self._response.aclose()
        if no_memory:
            raise NoMemory
        if size > self._max_body:
            raise OverLimit(f"it sent more than {self._max_body} bytes in one response (limits.message)")
        return b"".join(parts)

    async def read_events(self, events: EventParser, take: Callable[[Event | Malformed], bool]) -> None:
        """Pass each event of this stream to `take` until the stream ends, and close the response. A broken connection
        counts as the end. Once `take` has returned True, the stream is read for LINGER seconds more, so that it can end
        by itself. A message over the limit is passed as a `Malformed`.

        Raises:
            OverLimit: an event is over the limit and cannot be assigned to a request.
            NoMemory: there is no memory for an event.
            TooManyUselessMessages: too many comments, or events without data.
        """
        events.restart()
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
                suppress(httpx.HTTPError),
            ):
                async for chunk in self._chunks():
                    turn.begin()
                    try:
                        for event in events.feed(chunk):
                            if event is not None:
                                enough = take(event) or enough
                            elif not await turn.yield_if_over_shielded():
                                break  # cancelled: the next read raises inside the innermost generator
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
            await self._response.aclose()
        if reading.cancelled_caught and problem is None:
            problem = OverLimit("it sent an event over the limit (limits.message) and did not end it in time")
        if problem is not None and not enough:
            raise problem

    async def discard(self) -> None:
        """Read the rest for at most LINGER seconds, so that the connection can be used again; then close."""
        with trio.move_on_after(LINGER), suppress(httpx.HTTPError):
            async for _ in self._chunks():
                pass
        await self._response.aclose()

    async def aclose(self) -> None:
        await self._response.aclose()

    def refusal(self) -> HttpRefused:
        """The error for a status other than 2xx, in words for people. The body is not used: it may contain anything.
        For 401 and 403, `Origin.refusal` knows more."""
        status = self.status
        if 300 <= status < 400:
            return HttpRefused(status, "the server redirects", "configure the URL that it redirects to")
        if status in (404, 405):
            return HttpRefused(status, "the server does not serve MCP there", "correct the path in its url")
        if status == 429:
            return HttpRefused(status, "the server has too many requests", retry_after=self._retry_after())
        what = "the server failed" if status >= 500 else "the server refused the request"
        return HttpRefused(status, what, retry_after=self._retry_after() if status == 503 else None)

    def _retry_after(self) -> float | None:
        """Seconds to wait (RFC 9110, "Retry-After": a number or a date), at most MAX_RETRY_PAUSE; None if not given."""
        header: str = self._response.headers.get("retry-after", "").strip()
        if _SECONDS.fullmatch(header):
            seconds = float(header)
        else:
            try:
                when = parsedate_to_datetime(header)
                seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
            except (ValueError, OverflowError):
                return None
        return min(max(seconds, 0.0), MAX_RETRY_PAUSE)

    def _chunks(self) -> httpx.AsyncByteStream:
        """The body in the pieces in which it arrives."""
        assert isinstance(self._response.stream, httpx.AsyncByteStream)
        return self._response.stream


class Origin:
    """One server: its URL, its configured headers, and the connections to it. Made by `open_origin`."""

    def __init__(
        self,
        url: Address,
        configured: Headers,
        transport: Transport,
        turns: Turns,
        max_message: int | None,
        hold: HoldingFactory,
    ) -> None:
        self._hold = hold
        self.turns = turns
        self.max_message = max_message
        self._url = url
        self._configured = configured
        self._transport = transport
        self._redirects: dict[tuple[str, Address | None], Address] = {}
        self._issuer: str | None = None
        self._did_find_issuer = False

    def headers(self, ours: list[tuple[str, str]]) -> Headers:
        """The headers of one request: the configured ones, and `ours`."""
        return [*self._configured, (b"Accept-Encoding", b"identity"), *((n.encode(), v.encode()) for n, v in ours)]

    def locate(self, reference: str, base: Address | None = None) -> Address | None:
        """Resolve a URL reference relative to `base` (by default the server's URL). None if it is invalid, or leads to
        another scheme, host, port or user."""
        base = base or self._url
        try:
            found = base.join(reference)
        except (httpx.InvalidURL, ValueError):
            return None
        inside = (found.scheme, found.raw_host, found.port) == (base.scheme, base.raw_host, base.port)
        return found if inside and found.userinfo in (b"", base.userinfo) else None

    async def request(
        self, method: str, headers: Headers, body: bytes | None = None, at: Address | None = None
    ) -> HttpResponse:
        """Send one request to `at` (by default the server's URL), and return the response with the body unread. The
        caller closes the response.

        Redirects within the origin are followed, at most MAX_REDIRECTS, and their target is used from then on. Any
        other redirect is returned as the response.

        Raises:
            Unreachable: no connection could be made.
            LinkLost: the connection broke.
        """
        address = (self._redirects.get((method, at)) if self._redirects else None) or at or self._url
        hops = 0
        while True:
            answer = await self._request_once(method, address, headers, body)
            further = self._redirect_target(method, address, answer) if hops < MAX_REDIRECTS else None
            if further is None:
                break
            await answer.discard()
            address = further
            hops += 1
        if hops and not 300 <= answer.status < 400:
            self._redirects[method, at] = address
        return answer

    async def refusal(self, answer: HttpResponse) -> HttpRefused:
        """The error for a response with a status other than 2xx, in words for people. For a login with OAuth it waits
        FIND_TIMEOUT seconds at most for the metadata of the server, once."""
        if answer.status not in (401, 403):
            return answer.refusal()
        challenge = answer.header("www-authenticate") or ""
        has_token = _has(self._configured, b"authorization")
        if answer.status == 403:
            what = "the token under headers lacks a scope" if lacks_scope(challenge) else "the server refuses access"
            return AuthNeeded(403, what, "set headers that may use it")
        refused = "the server refused the configured Authorization" if has_token else "the server"
        if not wants_token(challenge):
            what = refused if has_token else "the server wants credentials"
            return AuthNeeded(401, what, "set them under headers")
        issuer = await self._find_issuer(challenge)
        what = f"{refused}{' and' if has_token else ''} wants OAuth" + (f", issuer {issuer}" if issuer else "")
        return AuthNeeded(401, what, "get a token there and set headers: {Authorization: Bearer TOKEN}")

    async def _find_issuer(self, challenge: str) -> str | None:
        if not self._did_find_issuer:
            with trio.move_on_after(FIND_TIMEOUT):
                self._issuer = await find_issuer(challenge, self._url.path, self._is_covered_by, self._fetch_metadata)
            self._did_find_issuer = True
        return self._issuer

    def _is_covered_by(self, resource: str) -> bool:
        """Whether this resource identifier is that of the server, or of something above it."""
        address = self.locate(resource)
        return address is not None and f"{self._url.path}/".startswith(f"{address.path.rstrip('/')}/")

    async def _fetch_metadata(self, reference: str) -> bytes | None:
        """A JSON document of this origin, without the configured headers and without following redirects."""
        address = self.locate(reference)
        if address is None:
            return None
        headers = [(b"Accept", JSON.encode()), (b"Accept-Encoding", b"identity")]
        try:
            answer = await self._request_once("GET", address, headers, None, MAX_METADATA)
            if answer.status == 200 and answer.media_type == JSON:
                return await answer.body()
            await answer.discard()
        except LinkLost:
            pass
        return None

    def _redirect_target(self, method: str, address: Address, answer: HttpResponse) -> Address | None:
        """The address that the response redirects to, or None if it is not followed."""
        followed = answer.status in _SAME_METHOD_REDIRECTS or (method == "GET" and answer.status in _GET_REDIRECTS)
        reference = answer.location() if followed else None
        return None if reference is None else self.locate(reference, address)

    async def _request_once(
        self, method: str, address: Address, headers: Headers, body: bytes | None, max_body: int | None = None
    ) -> HttpResponse:
        request = httpx.Request(method, address, headers=headers, content=body, extensions=_TIMEOUTS)
        try:
            response = await self._transport.handle_async_request(request)
            return HttpResponse(response, self.turns, max_body or self.max_message, self._hold)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, UnicodeError) as problem:
            why, remedy = _connect_failure(problem)
            raise Unreachable(f"it cannot be reached: {why}", remedy) from problem
        except httpx.HTTPError as problem:
            raise LinkLost(_broken_reason(problem)) from problem


class HttpExchanges:
    """The exchanges of one link. When the link ends, all of them end, `lost` is the reason, and `closed` is set."""

    def __init__(self) -> None:
        self.lost: LinkLost | None = None
        self.closed = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Count the block as an exchange, and end it with the link.

        Raises:
            LinkLost: the link has ended.
        """
        if self.lost is not None:
            raise copy_of(self.lost)
        with trio.CancelScope() as scope:
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            assert self.lost is not None
            raise copy_of(self.lost)

    def connection_lost(self, lost: LinkLost) -> LinkLost:
        """End the link and its exchanges, unless it has already ended. Returns the reason for which it ended first."""
        if self.lost is None:
            self.lost = lost
            self.closed.set()
            for scope in self._scopes:
                scope.cancel()
        return self.lost


@asynccontextmanager
async def open_origin(
    url: str,
    headers: Mapping[str, str],
    transport: Transport | None = None,
    *,
    turns: Turns | None = None,
    max_message: int | None = None,
    hold: HoldingFactory = uncharged,
) -> AsyncIterator[Origin]:
    """The server at `url`, with connections that are closed at the end of the block. TLS trusts the certificates that
    `SSL_CERT_FILE` or `SSL_CERT_DIR` name, otherwise those of Mozilla.

    Args:
        headers: sent with every request. Headers that the protocol sets are left out.
        transport: carries the requests, by default an HTTP/1.1 connection pool. Closed at the end.
        turns: shared by all links of one host.
        max_message: bytes of one message, in a body or an event, instead of MAX_BODY and MAX_EVENT.
        hold: charges memory for the bodies and events that are being read.

    Raises:
        LinkLost: the URL or a header is invalid.
    """
    turns = turns or Turns()
    try:
        target = httpx.URL(url)
        configured = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    except (httpx.InvalidURL, UnicodeError):
        raise LinkLost("its URL is invalid, or its headers are not ASCII") from None
    common = [(b"User-Agent", f"colonnade/{VERSION}".encode())] if not _has(configured, b"user-agent") else []
    common += [(name, value) for name, value in configured if not is_protocol_header(name.decode())]
    async with transport or _Pool(turns) as used:
        yield Origin(target, common, used, turns, max_message, hold)


class _Pool(httpx.AsyncHTTPTransport):
    """A pool of HTTP/1.1 connections whose input is handled in turns."""

    def __init__(self, turns: Turns) -> None:
        # Instead of the constructor of the base class, which only makes a pool and accepts no network backend.
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=_tls(),
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_EXPIRY,
            http2=False,
            socket_options=_SOCKET_OPTIONS,
            network_backend=Backend(turns),
        )


def _has(headers: Headers, wanted: bytes) -> bool:
    return any(name.lower() == wanted for name, _ in headers)


@cache
def _tls() -> ssl.SSLContext:
    """The TLS settings of all links. Made once, because reading the certificates takes some twenty milliseconds."""
    return httpx.create_ssl_context()


def _broken_reason(problem: httpx.HTTPError) -> str:
    if isinstance(problem, httpx.WriteTimeout):
        return f"it read no data for {WRITE_TIMEOUT:.0f} s"
    if isinstance(problem.__cause__, TooManyInterim):
        return f"it sent more than {MAX_INTERIM} interim responses (1xx), or an endless one, instead of the response"
    if isinstance(problem, httpx.RemoteProtocolError):
        return "it closed the connection before the end of the response, or does not speak HTTP"
    return "the connection broke before the end of the response"


_MISNAMED = (62, 64)
"""OpenSSL's codes for a certificate of another name or address (X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_MISMATCH)."""
_EXPIRED = 10


_START_OR_CORRECT = "start the server, or correct its url"


def _connect_failure(problem: BaseException) -> tuple[str, str]:
    """The reason why a connection could not be made, and what to do, in fixed words, so that they contain no
    address."""
    causes = list(_causes(problem))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _MISNAMED:
                return "TLS: the certificate is for another name", "correct the host in its url"
            if cause.verify_code == _EXPIRED:
                return "TLS: certificate expired", "renew it at the server, and look at this machine's clock"
            return "TLS: certificate not trusted", "name the certificate of its authority with SSL_CERT_FILE"
        if isinstance(cause, ssl.SSLError):
            return "TLS: the handshake failed", "if the server speaks no TLS, begin its url with http://"
        if isinstance(cause, socket.gaierror | UnicodeError):
            return "name not found", "correct the host in its url, or look at the network"
    if isinstance(problem, httpx.ConnectTimeout):
        return f"timed out after {CONNECT_TIMEOUT:.0f} s", _START_OR_CORRECT
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "connection refused", _START_OR_CORRECT
    return "no connection", _START_OR_CORRECT


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """The exception and everything it was raised from."""
    yield problem
    if isinstance(problem, BaseExceptionGroup):
        for each in problem.exceptions:
            yield from _causes(each)
    if (cause := problem.__cause__ or problem.__context__) is not None:
        yield from _causes(cause)
