"""The connections to one origin, for calls: kept open between requests, and the one used last is used first.

Written for speed, and measured (docs/dependencies.md): no task, timer or cancel scope for a request, nothing that looks
at all connections, one write for a request. Only the connection that was chosen is examined, by one look at its socket.
"""

from __future__ import annotations

import os
import re
import socket
import ssl
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from functools import cache

import certifi
import trio

from host.url import Url
from host.wire.http_connection import (
    MAX_WRITE,
    STREAM_ERRORS,
    ByteChannel,
    HttpConnection,
    PlainChannel,
    TlsChannel,
)
from host.wire.http_errors import (
    CONNECT_TIMEOUT,
    Broken,
    ProxyRefused,
    ProxyUnreachable,
    aborted,
    bad_authorities,
    bad_proxy,
    unreachable,
)
from host.wire.http_parser import BadResponse, ResponseParser
from host.wire.link import LinkLost
from host.wire.proxies import InvalidProxy, authorization_of, proxy_for
from host.wire.turns import Turns

MAX_IDLE = 100
"""Idle connections that are kept for `IDLE_EXPIRY` seconds at most; those beyond, which many calls at once have opened,
are closed after `BURST_EXPIRY` seconds without use. When they were closed at once, 900 calls at a time connected 0.63
times for each call."""
IDLE_EXPIRY = 60.0
BURST_EXPIRY = 2.0
MAX_HEADS = 64
"""Heads of requests that are kept."""
# Detects a vanished peer within a minute, also on a standalone stream, on which silence is normal.
_KEEPALIVE = {"TCP_KEEPIDLE": 30, "TCP_KEEPINTVL": 10, "TCP_KEEPCNT": 3}  # not every platform has all of them
SOCKET_OPTIONS = (
    (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
    *((socket.IPPROTO_TCP, getattr(socket, name), n) for name, n in _KEEPALIVE.items() if hasattr(socket, name)),
)

Headers = list[tuple[bytes, bytes]]

_FIELDS = re.compile(rb"(?:[A-Za-z0-9!#$%&'*+.^_`|~-]+: [^\x00-\x08\x0a-\x1f\x7f]*\r\n)*")


@cache
def tls_context() -> ssl.SSLContext:
    """Settings that trust the certificates that `SSL_CERT_FILE` or `SSL_CERT_DIR` name, otherwise those of Mozilla.

    Made once, because reading the certificates takes some twenty milliseconds.

    Raises:
        Unreachable: the file cannot be used.
    """
    file, folder = os.environ.get("SSL_CERT_FILE"), os.environ.get("SSL_CERT_DIR")
    try:
        context = ssl.create_default_context(
            cafile=file or (None if folder else certifi.where()), capath=None if file else folder
        )
    except OSError:  # OpenSSL's about what is in it, too
        raise bad_authorities() from None
    context.set_alpn_protocols(["http/1.1"])
    return context


class PooledResponse:
    """A response whose head has been read."""

    __slots__ = ("_connection", "_fields", "_pool", "_repeated", "status")

    def __init__(self, pool: Pool, connection: HttpConnection) -> None:
        parser = connection.parser
        self.status = parser.status
        self._fields = parser.fields
        self._repeated = parser.repeated
        self._pool = pool
        self._connection: HttpConnection | None = connection

    @property
    def has_length(self) -> bool:
        """Whether the end of the body can be told from a connection that broke."""
        return self._connection is None or self._connection.parser.has_length

    def header(self, name: str) -> str | None:
        """The value of a header field; those of several are joined with commas."""
        value = self._fields.get(name.encode())
        return None if value is None else value.decode("latin-1")

    @property
    def headers(self) -> Mapping[str, str]:
        """All header fields, by their names in lower case; the values of several are joined with commas."""
        return {name.decode("latin-1"): value.decode("latin-1") for name, value in self._fields.items()}

    def is_repeated(self, name: str) -> bool:
        """Whether there are several fields of this name."""
        return name.encode() in self._repeated

    def take_whole(self) -> bytes | None:
        """The body, if all of it came with the head. None if there is more to read."""
        if self._connection is None or not self._connection.parser.complete:
            return None
        body = self._connection.parser.take_body()
        self.close()
        return body

    async def read(self) -> bytes:
        """Wait for a piece of the body; none at its end, which frees the connection.

        Raises:
            Broken: the connection broke.
        """
        if self._connection is None:
            return b""
        piece = await self._connection.read()
        if not piece:
            self.close()
        return piece

    def close(self) -> None:
        """Give the connection back, or close it if there is more to read."""
        connection, self._connection = self._connection, None
        if connection is not None:
            self._pool.release(connection)


class Pool:
    """The connections to the origin of the URLs that are requested; it is the caller who keeps to one."""

    def __init__(self, turns: Turns, connect: Callable[[Url], Awaitable[ByteChannel]] | None = None) -> None:
        self._turns = turns
        self._connect = connect or open_channel
        self._now = trio.lowlevel.current_clock().current_time  # in fewer steps than trio.current_time
        self._idle: deque[HttpConnection] = deque()
        self._busy: set[HttpConnection] = set()
        self._connecting: set[trio.CancelScope] = set()
        self._may_expire = trio.Event()
        self._is_aborted = False
        self._heads: dict[int, tuple[Headers, Url, str, bytes]] = {}
        """By the id of their headers, which are kept with them, so that no others can have it."""

    async def request(
        self, method: str, url: Url, headers: Headers, body: bytes | None, *, repeatable: bool = False
    ) -> PooledResponse:
        """Send a request, and return its response with the body unread. The caller closes the response.

        A request is sent again only if a connection that had been idle turns out to be closed: if nothing of the
        request was written, or if it is `repeatable` and was not answered, and then only once.

        Raises:
            Unreachable: no connection could be made.
            Broken: the connection broke, or the response is not valid HTTP/1.1.
        """
        begin, rest = with_length(self._rendered(method, url, headers), body)
        connection, was_written = self._take_idle(), False
        while True:
            idle = connection is not None
            if connection is None:
                try:
                    connection = await self._open(url)
                    if self._is_aborted:  # since it was made, when there was no wait to cancel any more
                        connection.close()
                        raise aborted()
                except Broken as broken:
                    broken.unwritten = not was_written
                    raise
            self._busy.add(connection)
            try:
                await connection.exchange(begin, rest)
                return PooledResponse(self, connection)
            except Broken as broken:
                self.close(connection)
                if not idle or not (broken.unwritten or (broken.unanswered and repeatable)):
                    raise
                was_written = was_written or not broken.unwritten
                connection = self._take_idle() if broken.unwritten else None
            except BaseException:
                self.close(connection)
                raise

    def take(self) -> HttpConnection | None:
        """A connection that is there, for a caller that sends a whole request over its channel, takes a whole response
        from it or has `read` do so, and gives it back. None if there is none."""
        connection = self._take_idle()
        if connection is not None:
            self._busy.add(connection)
        return connection

    async def read(self, connection: HttpConnection) -> PooledResponse:
        """The response to what was sent over the channel of a connection, as that of `request`.

        Raises:
            Broken: as `request`.
        """
        connection.parser.begin()
        try:
            await connection.read_head()
        except BaseException:
            self.close(connection)
            raise
        return PooledResponse(self, connection)

    def release(self, connection: HttpConnection) -> None:
        """Take back a connection after its response, or after as much of it as was wanted."""
        if not connection.is_reusable or connection not in self._busy:
            self.close(connection)
            return
        self._busy.discard(connection)
        now, parser = self._now(), connection.parser
        said = parser.idle_time if b"keep-alive" in parser.fields else None
        # The server counts from another moment, so a connection is given up a second before the server does.
        connection.expires_at = now + (IDLE_EXPIRY if said is None else min(max(said - 1.0, 0.0), IDLE_EXPIRY))
        connection.idle_since = now
        self._idle.append(connection)
        if len(self._idle) == 1:
            self._may_expire.set()

    async def close_idle(self) -> None:
        """Close connections that have been idle for too long, until cancelled. Looks every `BURST_EXPIRY` seconds
        while there are idle ones."""
        while True:
            await self._may_expire.wait()
            await trio.sleep(BURST_EXPIRY)
            now = self._now()
            while self._idle and self._is_expired(self._idle[0], now):
                self._idle.popleft().close()
            if not self._idle:
                self._may_expire = trio.Event()

    def close_unused(self) -> None:
        """Close the idle connections: the other side is about to."""
        while self._idle:
            self._idle.pop().close()

    def abort(self) -> None:
        """Close all connections at once, also those in use: whatever waits at one raises Broken, and so does every
        further request."""
        self._is_aborted = True
        for scope in self._connecting:
            scope.cancel()
        self.close_unused()
        while self._busy:
            self._busy.pop().close()

    def _is_expired(self, longest: HttpConnection, now: float) -> bool:
        """Whether to close the connection that has been idle longest."""
        return longest.expires_at <= now or (len(self._idle) > MAX_IDLE and longest.idle_since + BURST_EXPIRY <= now)

    def close(self, connection: HttpConnection) -> None:
        """Close a connection in the middle of a request."""
        self._busy.discard(connection)
        connection.close()

    def _take_idle(self) -> HttpConnection | None:
        """The connection that was used last, if it is still open."""
        now = self._now()
        while self._idle:
            connection = self._idle.pop()
            if connection.expires_at > now and connection.is_quiet():
                return connection
            connection.close()
        return None

    async def _open(self, url: Url) -> HttpConnection:
        if self._is_aborted:
            raise aborted()
        try:
            with trio.fail_after(CONNECT_TIMEOUT) as timeout:
                self._connecting.add(timeout)
                try:
                    return HttpConnection(await self._connect(url), self._turns.turn())
                finally:
                    self._connecting.discard(timeout)
        except (*STREAM_ERRORS, trio.TooSlowError, UnicodeError) as problem:
            if self._is_aborted:
                raise aborted() from None
            raise unreachable(problem) from problem

    def _rendered(self, method: str, url: Url, headers: Headers) -> bytes:
        """`render_head`. Those of the last lists of headers are kept, because most requests have one of them; their
        receiver does not change them."""
        kept = self._heads.get(id(headers))
        if kept is not None and kept[0] is headers and kept[1] is url and kept[2] == method:
            return kept[3]
        head = render_head(method, url, headers)
        if len(self._heads) >= MAX_HEADS:
            self._heads.clear()
        self._heads[id(headers)] = headers, url, method, head
        return head


def render_head(method: str, url: Url, headers: Headers) -> bytes:
    """The head of a request, but for its length and its end; raises LinkLost."""
    fields = b"".join([b"%b: %b\r\n" % field for field in headers])
    if fields.count(b"\n") != len(headers) or not _FIELDS.fullmatch(fields):
        raise LinkLost("a header of the request has characters that it must not have")
    return f"{method} {url.target} HTTP/1.1\r\nHost: {url.authority}\r\n".encode("ascii") + fields


def with_length(head: bytes, body: bytes | None) -> tuple[bytes, bytes]:
    """A request with this head of `render_head`: its beginning, and the rest of a long one, which is not copied."""
    if body is None:
        return head + b"\r\n", b""
    begin = b"%bcontent-length: %d\r\n\r\n" % (head, len(body))
    return (begin + body, b"") if len(body) <= MAX_WRITE else (begin, body)


async def open_channel(url: Url) -> ByteChannel:
    """Connect to the origin of a URL, through the proxy that the environment names for it.

    Raises:
        OSError, trio.BrokenResourceError, UnicodeError: that failed; `http_errors.connect_failure` says why.
        Unreachable: the proxy, or SSL_CERT_FILE, cannot be used.
    """
    if url.scheme not in ("http", "https"):
        raise OSError("only http and https are supported")
    try:
        proxy = proxy_for(url, os.environ)
    except InvalidProxy:
        raise bad_proxy() from None
    first = proxy or url
    try:
        stream = await trio.open_tcp_stream(first.host, first.connect_port)
    except (OSError, UnicodeError) as problem:
        if proxy is None:
            raise
        raise ProxyUnreachable from problem
    try:
        sock = stream.socket
        for option in SOCKET_OPTIONS:
            sock.setsockopt(*option)
        if url.scheme == "http":
            return PlainChannel(socket.socket(fileno=sock.detach()))
        below: trio.abc.Stream = stream
        if proxy is not None:
            if proxy.scheme == "https":
                below = await _secure(below, proxy.host)
            await _open_tunnel(below, url, authorization_of(proxy))
        return TlsChannel(await _secure(below, url.host), sock)
    except BaseException:
        stream.socket.close()
        raise


async def _secure(stream: trio.abc.Stream, host: str) -> trio.SSLStream[trio.abc.Stream]:
    # Compatible: many servers close without the end of TLS. Its length or its chunks show whether a body is whole.
    secured = trio.SSLStream(stream, tls_context(), server_hostname=host, https_compatible=True)
    await secured.do_handshake()
    return secured


async def _open_tunnel(stream: trio.abc.Stream, url: Url, authorization: str | None) -> None:
    """Have a proxy connect to the origin of a URL (RFC 9110, "CONNECT")."""
    host = f"[{url.host}]" if ":" in url.host else url.host
    there = f"{host}:{url.connect_port}"
    lines = [f"CONNECT {there} HTTP/1.1", f"Host: {there}"]
    if authorization is not None:
        lines.append(f"Proxy-Authorization: {authorization}")
    await stream.send_all("\r\n".join([*lines, "", ""]).encode("ascii"))
    parser = ResponseParser()
    try:
        while not parser.head_done:
            data = bytes(await stream.receive_some(4096))
            if not data:
                raise ProxyRefused
            parser.feed(data)
    except BadResponse as problem:
        raise ProxyRefused from problem
    if not 200 <= parser.status < 300:
        raise ProxyRefused(parser.status)
