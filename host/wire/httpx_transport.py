"""HTTP requests over httpx: the other transport, for servers with `client: httpx`.

The only file that imports httpx, which takes 45 ms: it is imported when such a server is first connected. It uses
httpx's transports without its client: there are no cookies and no log lines with the URL.
"""

from __future__ import annotations

import logging
import os
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager

import httpcore
import httpx
import trio

from host.url import Url
from host.wire.http_errors import (
    CONNECT_TIMEOUT,
    CONNECTION_BROKE,
    NOT_HTTP,
    READS_NOTHING,
    TOO_MANY_INTERIM,
    WRITE_TIMEOUT,
    Broken,
    ProxyRefused,
    ProxyUnreachable,
    aborted,
    bad_proxy,
    causes_of,
    unreachable,
)
from host.wire.http_network import Backend, HttpcoreTooManyInterim
from host.wire.http_pool import IDLE_EXPIRY, SOCKET_OPTIONS, Headers, tls_context
from host.wire.proxies import InvalidProxy, credentials_of, proxy_for
from host.wire.turns import Turns

# Reading has no limit here: the caller decides how long a response may take.
_TIMEOUTS = {"timeout": {"connect": CONNECT_TIMEOUT, "write": WRITE_TIMEOUT, "read": None, "pool": None}}
# Few idle connections: at every request, the pool iterates over all of them for each request in it.
MAX_IDLE = 20

# At DEBUG, httpcore logs response headers, which contain session ids.
logging.getLogger("httpcore").setLevel(logging.WARNING)


class HttpxTransport:
    """The connections to one origin.

    Args:
        transport: instead of a pool of HTTP/1.1 connections whose input is handled in turns.
    """

    def __init__(self, turns: Turns, transport: httpx.AsyncBaseTransport | None = None) -> None:
        self._turns = turns
        self._transport = transport
        self._waits = _Waits()

    async def request(
        self, method: str, url: Url, headers: Headers, body: bytes | None, *, repeatable: bool = False
    ) -> HttpxResponse:
        """Send a request once; see `http_transport.Transport`. httpx does not tell whether a connection that broke was
        a new one, so nothing is repeated."""
        if self._waits.is_ended:
            raise aborted()
        if self._transport is None:
            self._transport = _Pool(url, self._turns)
        request = httpx.Request(method, str(url), headers=headers, content=body, extensions=_TIMEOUTS)
        try:
            with self._waits.begin():
                return HttpxResponse(await self._transport.handle_async_request(request), self._waits)
        except httpx.ProxyError as problem:
            raise unreachable(ProxyRefused()) from problem
        except (httpx.ConnectError, httpx.ConnectTimeout, httpx.UnsupportedProtocol, UnicodeError) as problem:
            has_proxy = isinstance(self._transport, _Pool) and self._transport.has_proxy
            raise unreachable(_connect_problem(problem, has_proxy=has_proxy)) from problem
        except httpx.HTTPError as problem:
            raise Broken(_broken_reason(problem)) from problem

    async def close_idle(self) -> None:
        """Return at once: httpx closes them when a later request begins."""

    def abort(self) -> None:
        self._waits.end()

    async def aclose(self) -> None:
        if self._transport is not None:
            await self._transport.aclose()


class _Waits:
    """The waits for responses, which httpx cannot end by closing their connections at once."""

    def __init__(self) -> None:
        self._scopes: set[trio.CancelScope] = set()
        self.is_ended = False

    @contextmanager
    def begin(self) -> Iterator[None]:
        """Wait within the block.

        Raises:
            Broken: `end` was called.
        """
        with trio.CancelScope() as scope:
            if self.is_ended:
                scope.cancel()  # inside the wait, which closes the generators of httpx
            self._scopes.add(scope)
            try:
                yield
            finally:
                self._scopes.discard(scope)
        if scope.cancelled_caught:
            raise Broken(CONNECTION_BROKE)

    def end(self) -> None:
        self.is_ended = True
        for scope in self._scopes:
            scope.cancel()


class HttpxResponse:
    """A response whose head has been read."""

    def __init__(self, response: httpx.Response, waits: _Waits) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._response = response
        self._waits = waits
        self._pieces: AsyncIterator[bytes] = aiter(response.stream)
        self.status = response.status_code
        self.has_length = (
            "content-length" in response.headers
            or "transfer-encoding" in response.headers
            or response.status_code in (204, 304)
        )

    def header(self, name: str) -> str | None:
        found: str | None = self._response.headers.get(name)
        return found

    def is_repeated(self, name: str) -> bool:
        return len(self._response.headers.get_list(name)) > 1

    def take_whole(self) -> None:
        """None: httpx does not tell whether the body came with the head."""

    async def read(self) -> bytes:
        try:
            with self._waits.begin():
                while not (piece := await anext(self._pieces)):
                    continue
                return piece
        except StopAsyncIteration:
            return b""
        except httpx.HTTPError as problem:
            raise Broken(_broken_reason(problem)) from problem

    async def aclose(self) -> None:
        await self._response.aclose()


class _Pool(httpx.AsyncHTTPTransport):
    """A pool of HTTP/1.1 connections to the origin of a URL."""

    def __init__(self, url: Url, turns: Turns) -> None:
        # Instead of the constructor of the base class, which only makes a pool and accepts no network backend.
        try:
            proxy = proxy_for(url, os.environ)
        except InvalidProxy:
            raise bad_proxy() from None
        self.has_proxy = proxy is not None
        self._pool = httpcore.AsyncConnectionPool(
            ssl_context=tls_context() if url.scheme == "https" else None,
            proxy=None if proxy is None else _proxy(proxy),
            max_connections=None,
            max_keepalive_connections=MAX_IDLE,
            keepalive_expiry=IDLE_EXPIRY,
            http2=False,
            socket_options=SOCKET_OPTIONS,
            network_backend=Backend(turns),
        )


def _proxy(proxy: Url) -> httpcore.Proxy:
    context = tls_context() if proxy.scheme == "https" else None
    return httpcore.Proxy(f"{proxy.scheme}://{proxy.authority}", auth=credentials_of(proxy), ssl_context=context)


def _connect_problem(problem: Exception, *, has_proxy: bool) -> Exception:
    """The problem for `unreachable`, of an exception that httpx raises when no connection could be made."""
    if isinstance(problem, httpx.ConnectTimeout):
        return trio.TooSlowError()
    if not has_proxy or any(isinstance(cause, ssl.SSLError) for cause in causes_of(problem)):
        return problem  # httpx does not tell whose TLS failed: hardly ever that of a proxy
    found = ProxyUnreachable()
    found.__cause__ = problem
    return found


def _broken_reason(problem: httpx.HTTPError) -> str:
    if isinstance(problem, httpx.WriteTimeout):
        return READS_NOTHING
    if isinstance(problem.__cause__, HttpcoreTooManyInterim):
        return TOO_MANY_INTERIM
    return NOT_HTTP if isinstance(problem, httpx.RemoteProtocolError) else CONNECTION_BROKE
