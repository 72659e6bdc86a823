"""The Streamable HTTP link to a server, as a client of it (2025-03-26 to 2025-11-25, "Transports / Streamable HTTP").

Every message is a POST in its sender's own task; what the server says unasked comes on one GET stream, which `run`
keeps open. Three rules hold throughout:

- An exchange that breaks is its sender's failure. Only a server that cannot be reached, or that has ended the session,
  ends the link, and then every exchange with it.
- Nothing is sent twice: a broken answer may be asked for again by the id of its stream, the request itself never is.
- No text of the server gets into an error, and no text of the URL.

httpx is used by its transport alone, without its client: there are no cookies, no redirects, no proxies from the
environment, and no log lines that hold the URL. This is the only file that knows httpx.

Responses are read to their end or cancelled from within, never left half read: httpx stacks generators, and only an
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

import httpx
import trio

from config import is_protocol_header
from host.jsonrpc.messages import Failure, Id, Malformed, Message, Notification, Request, Success, read, write
from host.jsonrpc.raw import value
from host.protocol.methods import INITIALIZE, INITIALIZED, LISTINGS
from host.version import VERSION
from host.wire.link import Arrival, Deliver, LinkLost, Parcel
from host.wire.sse import EventParser, EventTooLong

MAX_BODY = 16 * 1024 * 1024
CONNECT_PATIENCE = 10.0
WRITE_PATIENCE = 10.0
LINGER = 0.02
"""Seconds in which a response that is of no more use may end by itself, which saves its connection for the next."""
FAREWELL = 2.0
"""Seconds for telling the server that a request is called off, or that the session is over."""
RESUMES = 5
"""Times in a row that a broken answer is asked for again without anything new coming."""
SHORTEST_PAUSE = 1.0
LONGEST_PAUSE = 60.0

# Reading has no limit here: how long an answer may take is for its caller to say.
_PATIENCE = {"timeout": {"connect": CONNECT_PATIENCE, "write": WRITE_PATIENCE, "read": None, "pool": None}}
# Few idle connections: the pool looks through all of them, for all requests in it, at every request.
_LIMITS = httpx.Limits(max_connections=None, max_keepalive_connections=20, keepalive_expiry=60.0)
# A peer that vanished without a word is found out within a minute, also on a stream where silence is normal.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # not every platform has all of them
_SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)),
)

_JSON = "application/json"
_EVENT_STREAM = "text/event-stream"
_SESSION = "mcp-session-id"
_SESSION_ID = re.compile(r"[\x21-\x7e]+")
_RESUMABLE_ID = re.compile(r"[\x21-\x7e](?:[\x20-\x7e]{0,1022}[\x21-\x7e])?")
_SECONDS = re.compile(r"[0-9]{1,18}")

_UNANSWERED = "its event stream ended: the answer did not come"

# At DEBUG it writes response headers, and with them session ids.
logging.getLogger("httpcore").setLevel(logging.WARNING)

_Headers = list[tuple[bytes, bytes]]


class HttpRefused(LinkLost):
    """The server answered with a status that is no answer. `retry_after`: seconds it asked for, at most 60, or None."""

    def __init__(self, status: int, what: str, remedy: str = "", retry_after: float | None = None) -> None:
        super().__init__(f"{what} (HTTP {status}): {remedy}" if remedy else f"{what} (HTTP {status})")
        self.status = status
        self.retry_after = retry_after

    @property
    def may_hold_answer(self) -> bool:
        """Whether servers answer a request with this status and an error of the request's own."""
        return 400 <= self.status < 500 and self.status not in (401, 403)

    @property
    def passing(self) -> bool:
        """Whether it may be otherwise in a while."""
        return self.status == 429 or self.status >= 500


class AuthNeeded(HttpRefused):
    """The server wants credentials, or other ones."""


class SessionEnded(LinkLost):
    """The server does not know our session any more; a new link begins a new one."""


class HttpLink:
    """See `open_http`. Implements `Link`."""

    def __init__(
        self,
        url: httpx.URL,
        headers: _Headers,
        dropped: Callable[[str, str], None],
        transport: httpx.AsyncBaseTransport,
    ) -> None:
        self._url = url
        self._configured = headers
        self._dropped = dropped
        self._transport = transport
        self._deliver: Deliver = _too_early
        self._began = trio.Event()
        self._over = trio.Event()
        self._lost: LinkLost | None = None
        self._exchanges: set[trio.CancelScope] = set()
        self._session: str | None = None
        self._revision: str | None = None
        self._settled = False
        self._initialized = False
        self._may_listen = trio.Event()
        self._set_headers()

    async def run(self, deliver: Deliver) -> None:
        """Carry messages for as long as the link is used; see `Link`.

        Raises:
            SessionEnded: the server does not know the session any more.
            LinkLost: the server cannot be reached.
        """
        self._deliver = deliver
        self._began.set()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._listen)
            await self._over.wait()
            nursery.cancel_scope.cancel()
        assert self._lost is not None
        raise self._lost

    async def send(self, parcel: Parcel) -> None:
        """POST one message, and see its exchange through: a request's answer is delivered when this returns.

        Raises:
            AuthNeeded, HttpRefused: the server's status was no answer.
            SessionEnded: it does not know the session any more; the link is over.
            LinkLost: it cannot be reached (then the link is over), or this exchange broke.
        """
        message = parcel.message
        if not self._began.is_set():
            await self._began.wait()
        with self._exchange():
            response = await self._ask("POST", self._post_headers, write(message))
            try:
                if isinstance(message, Request):
                    await self._take_answer(response, message)
                else:
                    await self._take_receipt(response)
            finally:
                await response.aclose()
        if isinstance(message, Notification) and message.method == INITIALIZED:
            self._initialized = True
            self._listen_when_ready()

    def settle(self, protocol_header: str | None) -> None:
        """The handshake is over. From now on everything names the revision, where it has a header for that; and the
        stream for what the server says unasked is opened, once `notifications/initialized` has been sent."""
        self._revision = protocol_header
        self._settled = True
        self._set_headers()
        self._listen_when_ready()

    async def call_off(self, id: Id, notice: Notification) -> None:
        with trio.move_on_after(FAREWELL), suppress(LinkLost):
            await self.send(Parcel(notice, id))

    async def end_session(self) -> None:
        """Tell the server that its session is not needed any more, if it has one. Bounded in time, never fails."""
        if self._session is None or self._lost is not None:
            return
        with trio.move_on_after(FAREWELL, shield=True), suppress(LinkLost):
            response = await self._ask("DELETE", self._headers())
            await _discard(response)  # a server that does not allow this says 405

    def _listen_when_ready(self) -> None:
        # A server may refuse the stream while it still waits for the end of the handshake.
        if self._settled and self._initialized:
            self._may_listen.set()

    @contextmanager
    def _exchange(self) -> Iterator[None]:
        """The block ends with the link."""
        if self._lost is not None:
            raise self._lost
        with trio.CancelScope() as scope:
            self._exchanges.add(scope)
            try:
                yield
            finally:
                self._exchanges.discard(scope)
        if scope.cancelled_caught:
            assert self._lost is not None
            raise self._lost

    def _lose(self, lost: LinkLost) -> LinkLost:
        """The link is over."""
        if self._lost is None:
            self._lost = lost
            self._over.set()
            for scope in self._exchanges:
                scope.cancel()
        return self._lost

    def _set_headers(self) -> None:
        """Those of a POST are made once: that is where the speed is."""
        self._post_headers = self._headers(
            ("Accept", f"{_JSON}, {_EVENT_STREAM}"),
            ("Content-Type", _JSON),
        )

    def _headers(self, *special: tuple[str, str]) -> _Headers:
        ours = [("Accept-Encoding", "identity"), *special]
        if self._session is not None:
            ours.append(("Mcp-Session-Id", self._session))
        if self._revision is not None:
            ours.append(("MCP-Protocol-Version", self._revision))
        return [*self._configured, *((name.encode(), value.encode()) for name, value in ours)]

    async def _ask(self, method: str, headers: _Headers, body: bytes | None = None) -> httpx.Response:
        """The head of the response. Whoever gets it closes it."""
        request = httpx.Request(method, self._url, headers=headers, content=body, extensions=_PATIENCE)
        try:
            return await self._transport.handle_async_request(request)
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, UnicodeError) as problem:
            lost = LinkLost(f"it cannot be reached: {_reason(problem)}")
            # A server that stops takes no connections any more, but may still answer on those it has.
            waiting = len(self._exchanges) - (method == "POST")
            raise (lost if waiting > 0 else self._lose(lost)) from problem
        except httpx.HTTPError as problem:
            raise LinkLost(_broken(problem)) from problem

    async def _take_receipt(self, response: httpx.Response) -> None:
        await _discard(response)
        if not response.is_success:
            raise self._refusal(response)

    async def _take_answer(self, response: httpx.Response, request: Request) -> None:
        if not response.is_success:
            await self._take_refusal(response, request)
            return
        if request.method == INITIALIZE:
            self._join(response)
        kind = _content_type(response)
        if kind == _JSON:
            if not self._take(await _body(response), request.id, request.id):
                raise LinkLost("it answered with something that is no answer to the request")
        elif kind == _EVENT_STREAM:
            await self._await_event(response, request.id)
        else:
            await _discard(response)
            raise LinkLost("it answered with neither plain JSON nor a plain event stream")

    async def _take_refusal(self, response: httpx.Response, request: Request) -> None:
        """Returns if the body holds the request's own error: some servers send those with a status that fits."""
        refusal = self._refusal(response)
        if isinstance(refusal, HttpRefused) and refusal.may_hold_answer and _content_type(response) == _JSON:
            with suppress(LinkLost):
                message = read(await _body(response))
                if isinstance(message, Failure) and _answers(message, request.id):
                    self._deliver(Arrival(message, request.id))
                    return
        else:
            await _discard(response)
        raise refusal

    def _refusal(self, response: httpx.Response) -> LinkLost:
        """What a status other than 2xx means. One of them ends the link."""
        if response.status_code == 404 and self._session is not None:
            return self._lose(SessionEnded("the server has ended the session (HTTP 404)"))
        return _refused(response)

    def _join(self, response: httpx.Response) -> None:
        """Remember the session (2025-11-25, "Session Management": visible ASCII)."""
        session = response.headers.get(_SESSION)
        if session is None:
            return
        if not _SESSION_ID.fullmatch(session):
            raise LinkLost("its session id holds something else than visible ASCII characters")
        self._session = session
        self._set_headers()

    def _take(self, data: bytes, about: Id | None, wanted: Id | None) -> bool:
        """Deliver what is in `data`; whether it answers the request `wanted`."""
        message = read(data)
        self._deliver(Arrival(message, about))
        return wanted is not None and _answers(message, wanted)

    async def _await_event(self, response: httpx.Response, id: Id) -> None:
        """Follow the stream of a request until its answer. A stream that broke is resumed where it can be
        (2025-11-25, "Resumability and Redelivery")."""
        stream = _Stream(id)
        await self._follow(response, stream)
        left = RESUMES
        while not stream.answered:
            if not stream.resumable or left == 0:
                raise LinkLost(_UNANSWERED)
            await trio.sleep(stream.pause)
            before = stream.position
            await self._resume(stream)
            left = left - 1 if stream.position == before else RESUMES

    async def _resume(self, stream: _Stream) -> None:
        try:
            response = await self._ask_stream(stream)
        except HttpRefused as refusal:
            raise LinkLost(_UNANSWERED) from refusal
        except LinkLost:
            if self._lost is not None:
                raise
            return  # it broke: that was one of the times
        await self._follow(response, stream)

    async def _ask_stream(self, stream: _Stream) -> httpx.Response:
        """The stream opened with a GET, from where it has got to. Whoever gets the response follows it.

        Raises:
            HttpRefused: the server has none.
            SessionEnded, LinkLost: as in `send`.
        """
        special = [("Accept", _EVENT_STREAM)]
        if stream.resumable:
            special.append(("Last-Event-ID", stream.events.last_id))
        response = await self._ask("GET", self._headers(*special))
        if response.is_success and _content_type(response) == _EVENT_STREAM:
            return response
        await _discard(response)
        if response.is_success:
            raise HttpRefused(response.status_code, "the server has no event stream")
        # A server without this stream may say 404 to it in the best of sessions: only a POST can tell that one ended.
        raise _refused(response) if stream.wanted is None else self._refusal(response)

    async def _follow(self, response: httpx.Response, stream: _Stream) -> None:
        """Deliver the messages of one connection of the stream, to its end or until the answer came.

        Raises:
            LinkLost: an event is too long.
        """
        stream.events.restart()
        too_long: EventTooLong | None = None
        try:
            with trio.CancelScope() as reading, suppress(httpx.HTTPError):  # a connection that breaks has ended
                async for chunk in _chunks(response):
                    try:
                        self._take_events(chunk, stream)
                    except EventTooLong as problem:
                        too_long = problem
                        reading.cancel()
                    if stream.answered and reading.deadline == float("inf"):
                        reading.deadline = trio.current_time() + LINGER
        finally:
            await response.aclose()
        if too_long is not None and not stream.answered:
            raise LinkLost(f"it sent {too_long}")

    def _take_events(self, chunk: bytes, stream: _Stream) -> None:
        for event in stream.events.feed(chunk):
            stream.heard += 1
            if event.event != "message":
                self._dropped("unexpected event", f"{event.event!r:.80}")
            elif event.data:  # without data it only gives the stream a position
                stream.answered = self._take(event.data, stream.wanted, stream.wanted) or stream.answered

    async def _listen(self) -> None:
        """Keep the stream open for what the server says unasked, if it has one; returns if it has none."""
        await self._may_listen.wait()
        stream = _Stream(None)
        failures = 0
        opened = False
        while True:
            least = 0.0
            before, began = stream.position, trio.current_time()
            try:
                response = await self._ask_stream(stream)
                if opened and not stream.resumable:
                    self._catch_up()
                opened = True
                await self._follow(response, stream)
            except HttpRefused as refusal:
                if not refusal.passing and not opened:
                    return
                least = refusal.retry_after or 0.0
            except LinkLost as lost:
                if self._lost is not None:
                    return
                self._dropped("event stream broken", str(lost))
            fruitful = stream.position != before or trio.current_time() - began >= LONGEST_PAUSE
            failures = 0 if fruitful else min(failures + 1, 7)
            await trio.sleep(max(least, min(stream.pause * 2.0 ** max(failures - 1, 0), LONGEST_PAUSE)))

    def _catch_up(self) -> None:
        """What the server said while the stream was broken is lost for good: any list may have changed."""
        for method in sorted({listing.changed for listing in LISTINGS.values()}):
            self._deliver(Arrival(Notification(method)))


class _Stream:
    """One event stream over all its connections. `wanted`: the request that it answers; None if it serves none."""

    def __init__(self, wanted: Id | None) -> None:
        self.wanted = wanted
        self.answered = False
        self.events = EventParser()
        self.heard = 0

    @property
    def position(self) -> tuple[int, str]:
        """Changes with whatever comes."""
        return self.heard, self.events.last_id

    @property
    def resumable(self) -> bool:
        """Whether there is an id to resume after that fits into a header."""
        return _RESUMABLE_ID.fullmatch(self.events.last_id) is not None

    @property
    def pause(self) -> float:
        """Seconds before the next connection: what the server asked for, within bounds."""
        return min(max(self.events.retry or 0.0, SHORTEST_PAUSE), LONGEST_PAUSE)


@asynccontextmanager
async def open_http(
    url: str,
    headers: Mapping[str, str],
    dropped: Callable[[str, str], None],
    *,
    transport: httpx.AsyncBaseTransport | None = None,
) -> AsyncIterator[HttpLink]:
    """A link to the server at `url` for the block. Nothing is sent until somebody sends; at the end the session, if the
    server gave one, is given back, and all connections are closed. TLS trusts what `SSL_CERT_FILE` or `SSL_CERT_DIR`
    name, else the certificates of Mozilla.

    Args:
        headers: sent with every request. Those that the protocol sets itself are left out.
        dropped: told of what was left unread, as (what, detail). Must not wait.
        transport: carries the requests; a plain HTTP/1.1 connection pool by default. Closed at the end.

    Raises:
        LinkLost: the URL or a header cannot be used.
    """
    try:
        target = httpx.URL(url)
        configured = [(name.encode("ascii"), value.encode("ascii")) for name, value in headers.items()]
    except (httpx.InvalidURL, UnicodeError):
        raise LinkLost("its URL or its headers cannot be used") from None
    common = [(b"User-Agent", f"colonnade/{VERSION}".encode())] if not _has(configured, b"user-agent") else []
    common += [(name, value) for name, value in configured if not is_protocol_header(name.decode())]
    async with transport or _transport() as used:
        link = HttpLink(target, common, dropped, used)
        try:
            yield link
        finally:
            await link.end_session()


def _has(headers: _Headers, wanted: bytes) -> bool:
    return any(name.lower() == wanted for name, _ in headers)


def _transport() -> httpx.AsyncHTTPTransport:
    return httpx.AsyncHTTPTransport(verify=_tls(), http2=False, limits=_LIMITS, socket_options=_SOCKET_OPTIONS)


@cache
def _tls() -> ssl.SSLContext:
    """One for all links: reading the certificates takes some twenty milliseconds."""
    return httpx.create_ssl_context()


def _too_early(arrival: Arrival) -> None:
    raise AssertionError("nothing can arrive before run")


def _answers(message: Message | Malformed, id: Id) -> bool:
    if isinstance(message, Malformed) and not message.answers:
        return False
    return isinstance(message, Success | Failure | Malformed) and type(message.id) is type(id) and message.id == id


def _content_type(response: httpx.Response) -> str:
    """The media type, or nothing if the body is compressed, which we asked it not to be."""
    if response.headers.get("content-encoding", "identity").strip().lower() != "identity":
        return ""
    said: str = response.headers.get("content-type", "")
    return said.partition(";")[0].strip().lower()


def _chunks(response: httpx.Response) -> httpx.AsyncByteStream:
    """The body as it comes."""
    assert isinstance(response.stream, httpx.AsyncByteStream)
    return response.stream


async def _body(response: httpx.Response) -> bytes:
    """All of it.

    Raises:
        LinkLost: it is too long, or broke off.
    """
    parts: list[bytes] = []
    size = 0
    try:
        with trio.CancelScope() as reading:
            async for chunk in _chunks(response):
                size += len(chunk)
                if size > MAX_BODY:
                    reading.cancel()
                else:
                    parts.append(chunk)
    except httpx.HTTPError as problem:
        raise LinkLost(_broken(problem)) from problem
    if size > MAX_BODY:
        raise LinkLost(f"it sent more than {MAX_BODY} bytes in one answer")
    return b"".join(parts)


async def _discard(response: httpx.Response) -> None:
    """Read what is left if that is quickly done, so that the connection can be used again; then close."""
    with trio.move_on_after(LINGER), suppress(httpx.HTTPError):
        async for _ in _chunks(response):
            pass
    await response.aclose()


def _refused(response: httpx.Response) -> HttpRefused:
    """What a status means for whoever reads the log. The body is not looked at: it may hold anything."""
    status = response.status_code
    if status in (401, 403):
        return AuthNeeded(status, "the server wants credentials", "give it the headers it asks for")
    if 300 <= status < 400:
        return HttpRefused(status, "the server redirects", "use the URL where that ends")
    if status in (404, 405):
        return HttpRefused(status, "the server does not serve MCP there", "check its URL")
    what = "the server is out of order" if status >= 500 else "the server refused the request"
    return HttpRefused(status, what, retry_after=_retry_after(response) if status in (429, 503) else None)


def _retry_after(response: httpx.Response) -> float | None:
    """Seconds (RFC 9110, "Retry-After": a number or a date), at most LONGEST_PAUSE."""
    said: str = response.headers.get("retry-after", "").strip()
    if _SECONDS.fullmatch(said):
        seconds = float(said)
    else:
        try:
            when = parsedate_to_datetime(said)
            seconds = (when.replace(tzinfo=when.tzinfo or UTC) - datetime.now(UTC)).total_seconds()
        except (ValueError, OverflowError):
            return None
    return min(max(seconds, 0.0), LONGEST_PAUSE)


def _broken(problem: httpx.HTTPError) -> str:
    if isinstance(problem, httpx.WriteTimeout):
        return f"it took no data for {WRITE_PATIENCE:.0f} s"
    if isinstance(problem, httpx.RemoteProtocolError):
        return "it broke off, or does not speak HTTP: the answer did not come"
    return "the connection broke: the answer did not come"


_MISNAMED = (62, 64)
"""What OpenSSL says of a certificate for another name or address (X509_V_ERR_HOSTNAME_MISMATCH, _IP_ADDRESS_)."""
_EXPIRED = 10


def _reason(problem: BaseException) -> str:
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
        return f"timed out after {CONNECT_PATIENCE:.0f} s"
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


async def fetch_json(url: str, headers: Mapping[str, str]) -> object | None:
    """What a plain GET of `url` answers, decoded; None if that is no JSON, or nobody answers."""
    async with _transport() as used:
        request = httpx.Request("GET", url, headers={**headers, "Accept": _JSON}, extensions=_PATIENCE)
        try:
            response = await used.handle_async_request(request)
            try:
                data = await _body(response)
            finally:
                await response.aclose()
            return value(data) if response.is_success and _content_type(response) == _JSON else None
        except (httpx.HTTPError, LinkLost, ValueError):
            return None
