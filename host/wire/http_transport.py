"""What the two HTTP clients share: asking one server, reading what it answers, and saying what went wrong.

This is the only file that knows httpx, and it uses httpx by its transport alone, without its client: there are no
cookies, no proxies from the environment, and no log lines that hold the URL. Three rules hold throughout:

- What is asked of a server stays within its origin (scheme, host and port). It may redirect there; what would lead
  elsewhere is refused, and nothing is sent.
- No text of the server gets into an error, and no text of the URL.
- Responses are read to their end or cancelled from within, never left half read: httpx stacks generators, and only an
  exception from the innermost one ends them all at once.
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
from host.wire.sse import Event, EventParser, EventTooLong
from host.wire.turns import Turns

MAX_BODY = 16 * 1024 * 1024
CONNECT_TIMEOUT = 10.0
WRITE_TIMEOUT = 10.0
LINGER = 0.02
"""Seconds in which a response that is of no more use may end by itself, which saves its connection for the next."""
CLOSING_TIMEOUT = 2.0
"""Seconds for telling the server that a request is called off, or that the session is over."""
MAX_REDIRECTS = 3
MAX_RETRY_PAUSE = 60.0

JSON = "application/json"
EVENT_STREAM = "text/event-stream"

# Reading has no limit here: how long an answer may take is for its caller to say.
_TIMEOUTS = {"timeout": {"connect": CONNECT_TIMEOUT, "write": WRITE_TIMEOUT, "read": None, "pool": None}}
# Few idle connections: the pool looks through all of them, for all requests in it, at every request.
MAX_IDLE = 20
IDLE_EXPIRY = 60.0
# A peer that vanished without a word is found out within a minute, also on a stream where silence is normal.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # not every platform has all of them
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)),
)

# What keeps the method and the body, and what makes a GET of it: a GET may follow both (RFC 9110, "Redirection 3xx").
_SAME_METHOD_REDIRECTS = (307, 308)
_GET_REDIRECTS = (301, 302, 303)

_SECONDS = re.compile(r"[0-9]{1,18}")

# At DEBUG it writes response headers, and with them session ids.
logging.getLogger("httpcore").setLevel(logging.WARNING)

Headers: TypeAlias = list[tuple[bytes, bytes]]
Transport: TypeAlias = httpx.AsyncBaseTransport
Address: TypeAlias = httpx.URL


class Unreachable(LinkLost):
    """No connection to the server could be made; nothing was sent."""

    nothing_begun = True


class HttpRefused(LinkLost):
    """The server answered with a status that is no answer. `retry_after`: seconds it asked for, at most 60, or None."""

    nothing_begun = True

    def __init__(self, status: int, what: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{what} (HTTP {status}): {remedy}" if remedy else f"{what} (HTTP {status})")
        self.status = status
        self.retry_after = retry_after
        # 2025-11-25, "Transports / Backwards Compatibility" names 400, 404 and 405; the revisions before it, any 4xx.
        self.may_be_http_sse = 400 <= status < 500 and status not in (401, 403, 429)
        self.answered = self.may_be_http_sse

    @property
    def may_hold_answer(self) -> bool:
        """Whether servers answer a request with this status and an error of the request's own."""
        return 400 <= self.status < 500 and self.status not in (401, 403)

    @property
    def is_transient(self) -> bool:
        """Whether it may be otherwise in a while."""
        return self.status == 429 or self.status >= 500


class OverLimit(LinkLost):
    """The server answered with more than it may."""

    too_large = True


class AuthNeeded(HttpRefused):
    """The server wants credentials, or other ones."""


class HttpResponse:
    """The head of a response, with its body still to be read. Whoever gets it closes it; all that read it do."""

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
        """The media type, or nothing if the body is compressed, which we asked it not to be."""
        if self._response.headers.get("content-encoding", "identity").strip().lower() != "identity":
            return ""
        said: str = self._response.headers.get("content-type", "")
        return said.partition(";")[0].strip().lower()

    def header(self, name: str) -> str | None:
        found: str | None = self._response.headers.get(name)
        return found

    def location(self) -> str | None:
        """Where it redirects to; None if it does not say so once and clearly."""
        said = self._response.headers.get_list("location")
        return said[0] if len(said) == 1 else None

    async def body(self) -> bytes:
        """All of it.

        Raises:
            OverLimit: it is over the limit.
            LinkLost: it broke off.
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
            raise OverLimit(f"it sent more than {self._max_body} bytes in one answer (limits.message)")
        return b"".join(parts)

    async def read_events(self, events: EventParser, take: Callable[[Event | Malformed], bool]) -> None:
        """Give the events of this stream to `take` as they come, to the stream's end; a connection that breaks has
        ended. Once `take` has returned true, nothing more is wanted, and what still comes soon is given all the same.
        A message over the limit is given as a `Malformed`.

        Raises:
            OverLimit: an event is too long, and cannot be assigned to a request.
            NoMemory: there is no memory for an event.
            TooNoisy: too many comments came, or events without data.
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
                                break  # the next read is cancelled, from within
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
            problem = OverLimit("it sent an event that is too long (limits.message), and did not end it in time")
        if problem is not None and not enough:
            raise problem

    async def discard(self) -> None:
        """Read what is left if that is quickly done, so that the connection can be used again; then close."""
        with trio.move_on_after(LINGER), suppress(httpx.HTTPError):
            async for _ in self._chunks():
                pass
        await self._response.aclose()

    async def aclose(self) -> None:
        await self._response.aclose()

    def refusal(self) -> HttpRefused:
        """What a status other than 2xx means for whoever reads the log. The body is not looked at: it may hold
        anything."""
        status = self.status
        if status in (401, 403):
            return AuthNeeded(status, "the server wants credentials", "give it the headers it asks for")
        if 300 <= status < 400:
            return HttpRefused(status, "the server redirects", "use the URL where that ends")
        if status in (404, 405):
            return HttpRefused(status, "the server does not serve MCP there", "check its URL")
        what = "the server is out of order" if status >= 500 else "the server refused the request"
        return HttpRefused(status, what, retry_after=self._retry_after() if status in (429, 503) else None)

    def _retry_after(self) -> float | None:
        """Seconds (RFC 9110, "Retry-After": a number or a date), at most MAX_RETRY_PAUSE."""
        said: str = self._response.headers.get("retry-after", "").strip()
        if _SECONDS.fullmatch(said):
            seconds = float(said)
        else:
            try:
                when = parsedate_to_datetime(said)
                seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
            except (ValueError, OverflowError):
                return None
        return min(max(seconds, 0.0), MAX_RETRY_PAUSE)

    def _chunks(self) -> httpx.AsyncByteStream:
        """The body as it comes."""
        assert isinstance(self._response.stream, httpx.AsyncByteStream)
        return self._response.stream


class Origin:
    """One server: its URL, what the configuration has us send along, and the connections to it. See `open_origin`."""

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

    def headers(self, ours: list[tuple[str, str]]) -> Headers:
        """Those of the configuration, and ours."""
        return [*self._configured, (b"Accept-Encoding", b"identity"), *((n.encode(), v.encode()) for n, v in ours)]

    def locate(self, reference: str, base: Address | None = None) -> Address | None:
        """The address that `reference` means, absolute or relative to `base` (the server's URL, if left out). None if
        it is none, or leads out of this origin: to another scheme, host, port or user."""
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
        """Send one request to `at` (the server's URL, if left out), and give the head of the answer.

        Redirects within the origin are followed, at most MAX_REDIRECTS, and their end is remembered. Others are the
        answer. Whoever gets the answer closes it.

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

    def _redirect_target(self, method: str, address: Address, answer: HttpResponse) -> Address | None:
        """Where the answer sends us, if we go there."""
        followed = answer.status in _SAME_METHOD_REDIRECTS or (method == "GET" and answer.status in _GET_REDIRECTS)
        reference = answer.location() if followed else None
        return None if reference is None else self.locate(reference, address)

    async def _request_once(self, method: str, address: Address, headers: Headers, body: bytes | None) -> HttpResponse:
        request = httpx.Request(method, address, headers=headers, content=body, extensions=_TIMEOUTS)
        try:
            response = await self._transport.handle_async_request(request)
            return HttpResponse(response, self.turns, self.max_message, self._hold)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, UnicodeError) as problem:
            raise Unreachable(f"it cannot be reached: {_connect_failure(problem)}") from problem
        except httpx.HTTPError as problem:
            raise LinkLost(_broken_reason(problem)) from problem


class HttpExchanges:
    """The exchanges of one link, which all end with it. `lost` then says why, and `closed` is set."""

    def __init__(self) -> None:
        self.lost: LinkLost | None = None
        self.closed = trio.Event()
        self._scopes: set[trio.CancelScope] = set()

    def __len__(self) -> int:
        return len(self._scopes)

    @contextmanager
    def begin(self) -> Iterator[None]:
        """The block is one of them.

        Raises:
            LinkLost: the link is over.
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
        """The link is over, if it was not: why it is."""
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
    """The server at `url` for the block; all connections to it are closed at the end. TLS trusts what `SSL_CERT_FILE`
    or `SSL_CERT_DIR` name, else the certificates of Mozilla.

    Args:
        headers: sent with every request. Those that the protocol sets itself are left out.
        transport: carries the requests; a plain HTTP/1.1 connection pool by default. Closed at the end.
        turns: shared by all links of one host.
        max_message: bytes of one message, in a body or an event, instead of MAX_BODY and MAX_EVENT.
        hold: charges the bodies and events that are being read.

    Raises:
        LinkLost: the URL or a header cannot be used.
    """
    turns = turns or Turns()
    try:
        target = httpx.URL(url)
        configured = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    except (httpx.InvalidURL, UnicodeError):
        raise LinkLost("its URL or its headers cannot be used") from None
    common = [(b"User-Agent", f"colonnade/{VERSION}".encode())] if not _has(configured, b"user-agent") else []
    common += [(name, value) for name, value in configured if not is_protocol_header(name.decode())]
    async with transport or _Pool(turns) as used:
        yield Origin(target, common, used, turns, max_message, hold)


class _Pool(httpx.AsyncHTTPTransport):
    """A plain pool of HTTP/1.1 connections whose input comes in turns."""

    def __init__(self, turns: Turns) -> None:
        # That of the base class makes nothing but a pool, and takes no network backend for it.
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
    """One for all links: reading the certificates takes some twenty milliseconds."""
    return httpx.create_ssl_context()


def _broken_reason(problem: httpx.HTTPError) -> str:
    if isinstance(problem, httpx.WriteTimeout):
        return f"it took no data for {WRITE_TIMEOUT:.0f} s"
    if isinstance(problem.__cause__, TooManyInterim):
        return f"it sent more than {MAX_INTERIM} interim responses (1xx), or an endless one: the answer did not come"
    if isinstance(problem, httpx.RemoteProtocolError):
        return "it broke off, or does not speak HTTP: the answer did not come"
    return "the connection broke: the answer did not come"


_MISNAMED = (62, 64)
"""What OpenSSL says of a certificate for another name or address (X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_)."""
_EXPIRED = 10


def _connect_failure(problem: BaseException) -> str:
    """Why a connection could not be made, as one of few sentences: addresses stay out of it."""
    causes = list(_causes(problem))
    for cause in causes:
        if isinstance(cause, ssl.SSLCertVerificationError):
            if cause.verify_code in _MISNAMED:
                return "TLS: the certificate is for another name"
            return "TLS: certificate expired" if cause.verify_code == _EXPIRED else "TLS: certificate not trusted"
        if isinstance(cause, ssl.SSLError):
            return "TLS: no common ground in the handshake"
        if isinstance(cause, socket.gaierror | UnicodeError):
            return "name not found"
    if isinstance(problem, httpx.ConnectTimeout):
        return f"timed out after {CONNECT_TIMEOUT:.0f} s"
    if any(isinstance(cause, ConnectionRefusedError) for cause in causes):
        return "connection refused"
    return "no connection"


def _causes(problem: BaseException) -> Iterator[BaseException]:
    """The exception and everything it was raised from."""
    yield problem
    if isinstance(problem, BaseExceptionGroup):
        for each in problem.exceptions:
            yield from _causes(each)
    if (cause := problem.__cause__ or problem.__context__) is not None:
        yield from _causes(cause)
