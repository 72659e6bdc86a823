"""One HTTP request over a connection of its own, by httpx: for requests that are rare, to issuers and to webhooks.

The only file that imports httpx, which takes 45 ms: its users import it in a function. The transport of httpx is used
without its client, which would log URLs, follow the environment and keep cookies. There are no redirects.
"""

from __future__ import annotations

import logging
import os
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

import httpx
import trio

from host.url import Url
from host.wire.content_coding import decoded
from host.wire.http_errors import (
    CONNECTION_BROKE,
    NOT_HTTP,
    Broken,
    ProxyRefused,
    ProxyUnreachable,
    bad_proxy,
    causes_of,
    unreachable,
)
from host.wire.http_pool import Headers, tls_context
from host.wire.proxies import InvalidProxy, authorization_of, proxy_for

_PIECES = 128
"""Pieces of a body that are handled at once: a chunk of one byte takes 20 µs."""
# Everything that one read gives is parsed at once, such as 2,600 interim responses in 64 KiB, for 26 ms. The buffer of
# the system limits it to a quarter of that.
_SOCKET_OPTIONS = [(socket.SOL_SOCKET, socket.SO_RCVBUF, 8 * 1024)]

logging.getLogger("httpcore").setLevel(logging.WARNING)  # below, it logs the headers of responses


class ReceivedAnswer(NamedTuple):
    """`has_length`: whether the end of the body can be told from a connection that broke."""

    status: int
    body: bytes
    has_length: bool


async def send(
    method: str, url: Url, headers: Headers, body: bytes | None, *, limit: int = -1, address: str | None = None
) -> ReceivedAnswer:
    """Send a request, and wait for its answer without a limit of time.

    Args:
        limit: bytes of the body of the answer; of a longer one, a little more is returned. -1: none is waited for.
        address: the address to connect to, in place of the name in the URL, which TLS still checks; there is no proxy
            then. None: the proxy that the environment names for the URL, or an address of the name.

    Raises:
        Unreachable: no connection could be made.
        LinkLost: the connection broke, or the body cannot be unpacked.
    """
    try:
        proxy = None if address is not None else proxy_for(url, os.environ)
    except InvalidProxy:
        raise bad_proxy() from None
    # The certificates of authorities are read for https alone.
    context = tls_context() if url.scheme == "https" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    async with (
        _closed_at_the_end() as trace,
        httpx.AsyncHTTPTransport(
            verify=context, proxy=_proxy(proxy), socket_options=_SOCKET_OPTIONS, trust_env=False
        ) as transport,
    ):
        try:
            request = _request(method, url, headers, body, address)
            request.extensions["trace"] = trace
            response = _Response(await transport.handle_async_request(request))
        except httpx.ProxyError as problem:
            # Its text is the status line of the proxy.
            raise unreachable(ProxyRefused(407 if str(problem).startswith("407 ") else 0)) from problem
        except (httpx.ConnectError, httpx.UnsupportedProtocol, httpx.InvalidURL, ssl.SSLError, ValueError) as problem:
            # The last two: of a name that TLS cannot have.
            raise unreachable(problem if proxy is None else _proxy_problem(problem)) from problem
        except httpx.HTTPError as problem:
            raise _broken(problem) from problem
        return ReceivedAnswer(response.status, await response.body(limit), response.has_length)


@asynccontextmanager
async def _closed_at_the_end() -> AsyncIterator[Callable[[str, dict[str, Any]], Awaitable[None]]]:
    """A trace for a request. The sockets that it opens are closed at the end of the block: httpx leaves one to the
    garbage collector when it is cancelled in a handshake of TLS."""
    opened: list[Any] = []

    async def trace(event: str, about: dict[str, Any]) -> None:
        if event == "connection.connect_tcp.complete":
            opened.append(about["return_value"].get_extra_info("socket"))

    try:
        yield trace
    finally:
        for each in opened:
            each.close()


def _request(method: str, url: Url, headers: Headers, body: bytes | None, address: str | None) -> httpx.Request:
    target, extensions = httpx.URL(str(url)), dict[str, object](timeout={})
    if address is not None:
        headers = [(b"Host", url.authority.encode()), *headers]
        target, extensions["sni_hostname"] = target.copy_with(host=address), url.host
    return httpx.Request(method, target, headers=headers, content=body, extensions=extensions)


class _Response:
    """A response whose head has been read. Implements `content_coding.ResponseBody`."""

    def __init__(self, response: httpx.Response) -> None:
        assert isinstance(response.stream, httpx.AsyncByteStream)
        self._pieces: AsyncIterator[bytes] = aiter(response.stream)
        self._coding: str | None = response.headers.get("content-encoding")
        self.status = response.status_code
        self.has_length = not response.headers.keys().isdisjoint(
            {"content-length", "transfer-encoding"}
        ) or self.status in (204, 304)

    async def body(self, limit: int) -> bytes:
        """Read the body, as far as it is wanted."""
        wanted = limit >= 0
        source = decoded(self, self._coding) if wanted and self._coding is not None else None
        data, count = bytearray(), 0
        # Generators nest in httpx, and only an exception from the innermost one closes them all: so the rest is not
        # left unread, but the reading of it cancelled.
        with trio.CancelScope() as reading:
            while True:
                if not wanted or len(data) > limit:
                    reading.cancel()
                piece = await (source or self).read()
                if not piece:
                    break
                data += piece if len(data) <= limit else b""
                count += 1
                if count % _PIECES == 0:
                    await trio.lowlevel.cancel_shielded_checkpoint()
        return bytes(data)

    def take_whole(self) -> None:
        """None: httpx does not tell whether the body came with the head."""

    async def read(self) -> bytes:
        try:
            return await anext(self._pieces, b"")
        except httpx.HTTPError as problem:
            raise _broken(problem) from problem


def _proxy(proxy: Url | None) -> httpx.Proxy | None:
    if proxy is None:
        return None
    authorization = authorization_of(proxy)
    return httpx.Proxy(
        f"{proxy.scheme}://{proxy.authority}",
        ssl_context=tls_context() if proxy.scheme == "https" else None,
        headers=None if authorization is None else {"Proxy-Authorization": authorization},
    )


def _proxy_problem(problem: Exception) -> Exception:
    if any(isinstance(cause, ssl.SSLError) for cause in causes_of(problem)):
        return problem  # httpx does not tell whose TLS failed: hardly ever that of a proxy
    found = ProxyUnreachable()
    found.__cause__ = problem
    return found


def _broken(problem: httpx.HTTPError) -> Broken:
    return Broken(NOT_HTTP if isinstance(problem, httpx.RemoteProtocolError) else CONNECTION_BROKE)
