"""HTTPS server: the connections of hypercorn_listener.py with TLS, over which clients choose HTTP/1.1 or HTTP/2
(hypercorn_http2.py)."""

from __future__ import annotations

import os
import random
import socket
from contextlib import suppress
from functools import partial

import trio
from hypercorn.events import Closed
from hypercorn.events import Event as WireEvent

from .acceptor import DEFAULT_LIMITS, GRACE, MANY_CONNECTIONS, RESUME_SPREAD, ListenerLimits
from .asgi import ASGIApp
from .certificate import Certificate
from .hypercorn_http2 import Http2
from .hypercorn_listener import CHUNK, READ_AHEAD, Http1, HttpProtocol, HypercornConnection, HypercornServer


async def serve_https(
    certificate: Certificate,
    app: ASGIApp,
    bound: socket.socket,
    *,
    stop: trio.Event | None = None,
    grace: float = GRACE,
    limits: ListenerLimits = DEFAULT_LIMITS,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` as `hypercorn_listener.serve_http` does. Each new connection gets the present certificate."""
    server = HypercornServer(app, limits, partial(_TlsConnection, certificate))
    await server.acceptor.serve(bound, stop, grace, task_status)


class _TlsConnection(HypercornConnection):
    """The connection of one client that speaks TLS. A task of its own writes: an app that is cancelled while it sends
    must not break the record that is being written, or the requests beside it."""

    def __init__(self, certificate: Certificate, server: HypercornServer, accepted: socket.socket) -> None:
        super().__init__(server, accepted)
        # Compatible: clients close without the end of TLS, and lengths show whether a request is whole.
        self._secure = trio.SSLStream(_Ready(self), certificate.context, server_side=True, https_compatible=True)
        self._out = bytearray()
        self._queued, self._written = trio.lowlevel.ParkingLot(), trio.lowlevel.ParkingLot()
        self._is_secure = False
        self._closing = False
        """The socket is closed when everything is written."""

    async def run(self) -> None:
        try:
            if not await self._shake_hands():
                return
            async with trio.open_nursery() as writing:
                writing.start_soon(self._write_queued)
                await super().run()
                await self._drain()
                writing.cancel_scope.cancel()
        finally:
            self._out.clear()  # nothing writes it any more
            del self._secure  # it refers to this object, as above

    async def _shake_hands(self) -> bool:
        with trio.move_on_after(self._server.limits.head_timeout):
            try:
                await self._secure.do_handshake()
            except (trio.BrokenResourceError, trio.ClosedResourceError):  # it speaks no TLS, or left
                return False
            self._is_secure = True
            self._deadline = trio.current_time() + self._server.limits.head_timeout
            return True
        return False

    def choose_protocol(self, peer: tuple[str, int] | None, here: tuple[str, int] | None) -> HttpProtocol:
        server = self._server
        if self._secure.selected_alpn_protocol() != "h2":
            return Http1(self, server, peer, here, secure=True)
        return Http2(self, server.acceptor.app, server.config, server.context, server.limits.write_timeout, peer, here)

    async def wait_to_read(self, size: int) -> bytes:
        """The next bytes of the socket, TLS not removed; b"" at the end. There is no checkpoint after the reading."""
        while not self._is_closed():
            await trio.lowlevel.wait_readable(self._stream.socket)
            if len(self._server.slots) > MANY_CONNECTIONS and not self._unread():
                await trio.sleep(random.random() * RESUME_SPREAD)
            if self._is_secure and self._protocol.is_receiving_body:
                size = min(size, await self._server.portions.acquire(self._unread))
            if self._is_closed():
                break
            with suppress(BlockingIOError):
                return os.read(self._stream.socket.fileno(), size)
        raise trio.ClosedResourceError

    async def _receive_ready(self) -> bytes:
        data = await self._receive_some(CHUNK if self._busy else READ_AHEAD)
        if self._is_closed():
            raise trio.ClosedResourceError
        return data

    async def _receive_some(self, size: int) -> bytes:
        return bytes(await self._secure.receive_some(size))

    async def _write(self, data: bytes) -> None:
        if not self._closed and not self._half_closed:
            self._out += data
            self._queued.unpark()
        await trio.lowlevel.cancel_shielded_checkpoint()
        while len(self._out) > CHUNK and not self._closed:
            await self._written.park()

    async def _write_queued(self) -> None:
        """Write what is queued, until cancelled or until the connection is closed."""
        while not self._is_closed():
            if not self._out:
                self._written.unpark_all()
                if self._closing:
                    super().close()
                    return
                await self._queued.park()
                continue
            data = bytes(self._out[:CHUNK])
            try:
                with trio.fail_after(self._server.limits.write_timeout):
                    await self._secure.send_all(data)
                del self._out[: len(data)]
            except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.abort()
            self._written.unpark_all()

    async def _drain(self) -> None:
        while self._out and not self._closed:
            await self._written.park()

    async def handle_event(self, event: WireEvent) -> None:
        if isinstance(event, Closed):
            await self._drain()
        await super().handle_event(event)

    def abort(self) -> None:
        self._out.clear()
        super().abort()

    def close(self) -> None:
        if self._out and not self._closed:
            self._closing = self._half_closed = True
            self._reading.cancel()
            return
        super().close()
        self._queued.unpark_all()
        self._written.unpark_all()


class _Ready(trio.abc.Stream):
    """The socket of a connection below its TLS."""

    def __init__(self, connection: _TlsConnection) -> None:
        self._connection = connection

    async def receive_some(self, max_bytes: int | None = None) -> bytes:
        try:
            return await self._connection.wait_to_read(max_bytes or READ_AHEAD)
        except OSError as error:
            raise trio.BrokenResourceError from error

    async def send_all(self, data: bytes | bytearray | memoryview) -> None:
        await self._connection._stream.send_all(data)

    async def wait_send_all_might_not_block(self) -> None:
        await self._connection._stream.wait_send_all_might_not_block()

    async def aclose(self) -> None:
        self._connection.close()
        await trio.lowlevel.checkpoint()
