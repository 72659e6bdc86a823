"""HTTP server for an ASGI app on a TCP or Unix socket, hardened against hostile clients. Uses hypercorn's parser and
request cycle: HTTP/1.1 without TLS; hypercorn_tls.py adds TLS and HTTP/2.

Owns every connection with its deadlines, and one task per request; acceptor.py accepts the connections. The app decides
about access; head.py refuses request heads. There is no way to HTTP/2, WebSocket or another protocol: hypercorn's
`H11Protocol` is used alone, without the part that switches protocols.

Guarantees beyond those of hypercorn 0.18:
  - a connection that fails, in whatever way, ends alone;
  - no write takes longer than `write_timeout`, and none is shielded from cancellation; an unfinished write breaks its
    connection, so half a message is never followed by another one;
  - the end of a connection reaches `receive()` even while a pipelined request waits;
  - an app may respond without reading the body;
  - a full listener makes room; slots.py decides which connection is closed.

The task of a request continues when its client leaves: the app finds `http.disconnect` in `receive()`, and what it
still sends is dropped. A client that closes only its sending half counts as gone, but still gets what is sent.
"""

from __future__ import annotations

import fcntl
import logging
import math
import os
import random
import socket
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, Protocol, cast

import h11
import trio
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as WireEvent
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.events import Response
from hypercorn.protocol.h11 import H11Protocol
from hypercorn.trio.worker_context import EventWrapper, WorkerContext
from hypercorn.typing import ConnectionState
from hypercorn.utils import parse_socket_addr

from .acceptor import DEFAULT_LIMITS, GRACE, LINGER, MANY_CONNECTIONS, RESUME_SPREAD, Acceptor, ListenerLimits
from .asgi import CLAIM, PEER, ASGIApp, Event, Scope
from .descent import examine_peer
from .head import MAX_HEAD, HeadRefusal, check_head, head_end
from .portions import Portions
from .slots import INCOMPLETE_TIMEOUT, MANY_HEADS, Phase

CHUNK = 64 * 1024
"""Bytes for which a client has `write_timeout`, and of one read of a body."""
READ_AHEAD = MAX_HEAD
"""Bytes of pipelined requests that a connection keeps. They are not charged, and a thousand connections may have them.
"""
_BODY_QUEUE = 10  # parts of at most CHUNK bytes
_LONGEST_LINE = 64
"""Bytes of an incomplete line that are collected before the parser gets them."""

_PARSER_REFUSALS = {
    400: "the request is not valid HTTP/1.1",
    431: f"the request head has more than {MAX_HEAD} bytes",
    501: "the only supported transfer encoding is chunked",
}
"""Texts of the responses to requests that the parser itself refuses."""

_log = logging.getLogger("colonnade.listener")


async def serve_http(
    app: ASGIApp,
    bound: socket.socket,
    *,
    stop: trio.Event | None = None,
    grace: float = GRACE,
    limits: ListenerLimits = DEFAULT_LIMITS,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until cancelled, or until `stop` is set; see `Acceptor.serve`. ASGI's lifespan is not used.

    Each scope has the extension of `asgi.claim`, by which the app names the owner of its request. On a Unix socket it
    also has that of `asgi.examine_sender`. If the app fails before it has sent anything, the response is 500.
    """
    await HypercornServer(app, limits, HypercornConnection).acceptor.serve(bound, stop, grace, task_status)


class HypercornServer:
    """The parts that all connections of one listener share.

    Args:
        connect: makes a connection of an accepted socket.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ListenerLimits,
        connect: Callable[[HypercornServer, socket.socket], HypercornConnection],
    ) -> None:
        self.acceptor = Acceptor(app, limits, partial(connect, self))
        self.limits = limits
        self.slots = self.acceptor.slots
        self.context = WorkerContext(None)
        self.context.terminated = _Stopping(self.acceptor)
        self.config = _hypercorn_config()
        self.portions = Portions()


def _hypercorn_config() -> Config:
    config = Config()
    config.errorlog = _log
    config.accesslog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEAD
    config.keep_alive_max_requests = 2**62  # by default, hypercorn closes a connection after 1,000
    return config


class HttpProtocol(Protocol):
    """A protocol of hypercorn, as a connection drives it."""

    reads_heads: bool
    """Its input between two requests is a head, line by line."""

    @property
    def has_whole_request(self) -> bool: ...

    @property
    def is_receiving_body(self) -> bool:
        """Whether the body of a request is not complete."""

    @property
    def awaits_body(self) -> bool:
        """Whether the body of a request is not complete and its response has not begun."""

    @property
    def has_begun_head(self) -> bool:
        """Whether bytes of the next request have arrived; for use between two requests."""

    async def initiate(self) -> None: ...

    async def handle(self, event: WireEvent) -> None: ...


class _ConnectionEnded(Exception):
    """No further request is read from this connection."""


class HypercornConnection:
    """The connection of one client: reads and writes for hypercorn's protocol, and keeps the deadlines."""

    def __init__(self, server: HypercornServer, accepted: socket.socket) -> None:
        self._server = server
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(accepted))
        self._writing = trio.Lock()
        self._nursery: trio.Nursery
        self._protocol: HttpProtocol
        self._reading = trio.CancelScope()
        self._waiting_for_turn = trio.CancelScope()
        self._deadline = trio.current_time() + server.limits.head_timeout
        self._in_head = True
        self._head_begun = False
        """A part of a head has come, and more of it must follow."""
        self._line = b""
        """The incomplete line of this head that the parser has not got yet."""
        self._busy = False
        self._pipelined = bytearray()
        self._half_closed = False
        self._closed = False
        self._read_all = False

    async def run(self) -> None:
        """Serve the connection until it and all its requests have ended."""
        sock = self._stream.socket
        try:
            peer = parse_socket_addr(sock.family, sock.getpeername())
            here = parse_socket_addr(sock.family, sock.getsockname())
        except OSError:  # the connection was reset before it was accepted
            return
        try:
            async with trio.open_nursery() as self._nursery:
                self._protocol = self.choose_protocol(peer, here)
                await self._protocol.initiate()
                await self._read()
        finally:
            del self._nursery, self._protocol  # they refer to this object: no cycle is left to the garbage collector

    def choose_protocol(self, peer: tuple[str, int] | None, here: tuple[str, int] | None) -> HttpProtocol:
        return Http1(self, self._server, peer, here, secure=False)

    # Reading

    async def _read(self) -> None:
        """Pass all received bytes to the protocol. Its exceptions end the connection, but not the app tasks."""
        try:
            with suppress(_ConnectionEnded):
                await self._feed()
            await self._protocol.handle(Closed())
            if self._half_closed:
                await self._linger()
        except Exception as error:  # noqa: BLE001 - the parser met something it was not written for
            self._server.acceptor.log_limited(f"a connection was ended by {error!r}")
            self.abort()
            await self._protocol.handle(Closed())
        self._read_all = True
        if self._half_closed or not self._busy:
            self.close()

    async def _feed(self) -> None:
        while not self._half_closed:
            data = await self._receive()
            if data is None:
                return
            await self._protocol.handle(RawData(data))
            self._head_begun = self._protocol.reads_heads and not self._busy
            if not data:
                return

    async def _receive(self) -> bytes | None:
        """The next bytes; b"" at the end of input; None if the protocol gets no more input."""
        if self._pipelined:
            data, self._pipelined = bytes(self._pipelined), bytearray()
            return data
        with trio.CancelScope(deadline=self._deadline) as self._reading:
            try:
                data = await self._receive_ready()
            except (OSError, trio.BrokenResourceError, trio.ClosedResourceError):
                self.close()
                return None
            if not self._busy and self._protocol.reads_heads:
                now = trio.current_time()
                self._server.slots.set_phase(self, Phase.HEAD, now)
                if not self._in_head:
                    self._in_head = True
                    self._deadline = now + self._server.limits.head_timeout
                if self._server.slots.incomplete_heads > MANY_HEADS:
                    self._deadline = min(self._deadline, now + INCOMPLETE_TIMEOUT + random.random() * RESUME_SPREAD)
            return None if self._half_closed else data
        if not self._half_closed:
            self.close()  # too slow, or idle for too long
        return None

    async def _receive_ready(self) -> bytes:
        # `SocketStream.receive_some` has a checkpoint after it has read the bytes. A connection that is closed at that
        # moment, because it looks idle, would lose a request that has arrived.
        while not self._is_closed():
            await trio.lowlevel.wait_readable(self._stream.socket)
            if len(self._server.slots) > MANY_CONNECTIONS and not self._is_closed() and not self._unread():
                await trio.sleep(random.random() * RESUME_SPREAD)
            if self._is_closed():
                break
            size = CHUNK if self._busy else READ_AHEAD
            if self._protocol.is_receiving_body:
                size = await self._server.portions.acquire(self._unread)
                if self._is_closed():
                    break
            try:
                data = os.read(self._stream.socket.fileno(), size)
            except BlockingIOError:
                continue
            self._line += data
            # The parser cannot use a part of a line, and a thousand connections may send one byte each at once.
            if not data or not self._head_begun or b"\n" in data or len(self._line) >= _LONGEST_LINE:
                data, self._line = self._line, b""
                return data
        raise trio.ClosedResourceError

    def _is_closed(self) -> bool:
        """Whether the connection was closed, which other tasks may do while this one waits."""
        return self._closed

    async def read_ahead(self) -> None:
        """Keep reading while a pipelined request waits, so that the end of the connection is noticed.

        Returns only after `resume`. After READ_AHEAD bytes no more is read, and the end is not noticed.

        Raises:
            _ConnectionEnded: the client left, or the connection was closed here. Pipelined requests are not answered.
        """
        with trio.CancelScope() as self._waiting_for_turn:
            while not self._half_closed:
                if len(self._pipelined) >= READ_AHEAD:
                    await trio.sleep_forever()
                try:
                    data = await self._receive_some(READ_AHEAD - len(self._pipelined))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self.close()
                    raise _ConnectionEnded from None
                if not data:
                    raise _ConnectionEnded
                self._pipelined += data
        if self._half_closed or self._closed:
            raise _ConnectionEnded

    async def _receive_some(self, size: int) -> bytes:
        return bytes(await self._stream.receive_some(size))

    def resume(self) -> None:
        self._waiting_for_turn.cancel()

    async def _linger(self) -> None:
        with trio.move_on_after(LINGER), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self._stream.receive_some(CHUNK):
                pass

    # Writing

    async def handle_event(self, event: WireEvent) -> None:
        """Carry out an event of the protocol: write, close, or change between busy and idle."""
        if isinstance(event, RawData):
            if event.data:  # the end of a body of known length has no bytes
                await self._write(event.data)
        elif isinstance(event, Closed):
            self._half_close()
            await self._protocol.handle(event)
        elif isinstance(event, Updated):
            self._set_idle(idle=event.idle)

    def _set_idle(self, *, idle: bool) -> None:
        self._busy = not idle
        self._in_head = idle and (self._protocol.has_begun_head or bool(self._pipelined))
        now = trio.current_time()
        if not idle:
            phase, self._deadline = Phase.REQUEST, math.inf
        elif self._in_head:
            phase, self._deadline = Phase.HEAD, now + self._server.limits.head_timeout
        else:
            phase, self._deadline = Phase.IDLE, now + self._server.limits.idle_timeout
        self._server.slots.set_phase(self, phase, now)
        self._reading.deadline = self._deadline
        if idle and self._read_all:
            self.close()

    async def _write(self, data: bytes) -> None:
        """Write all of the data, or break the connection. Nothing is written after an unfinished write."""
        if not self._writing.locked():
            # Without a checkpoint, cancellation cannot come between the protocol's new state and its bytes. Nearly
            # always this writes all of them.
            data = data[self._write_nowait(data) :]
        if not data or self._closed or self._half_closed:
            await trio.lowlevel.cancel_shielded_checkpoint()
            return
        written = False
        try:
            async with self._writing:
                view = memoryview(data)
                for start in range(0, len(data), CHUNK):
                    with trio.fail_after(self._server.limits.write_timeout):
                        await self._stream.send_all(view[start : start + CHUNK])
            written = True
        except (trio.TooSlowError, trio.BrokenResourceError, trio.ClosedResourceError):
            return
        finally:
            if not written:
                self.abort()

    def _write_nowait(self, data: bytes) -> int:
        if self._closed or self._half_closed:
            return len(data)
        try:
            return os.write(self._stream.socket.fileno(), data)
        except BlockingIOError:
            return 0
        except OSError:
            self.abort()
            return len(data)

    # Making room

    @property
    def has_unread_input(self) -> bool:
        """Whether bytes that the parser has not got wait here or in the kernel."""
        if self._closed or self._pipelined:
            return bool(self._pipelined)
        return self._unread() > 0

    def _unread(self) -> int:
        """Number of bytes that wait in the kernel."""
        if self._closed:
            return 0
        return int.from_bytes(fcntl.ioctl(self._stream.socket.fileno(), termios.FIONREAD, bytes(4)), sys.byteorder)

    def waits_for_client(self) -> bool:
        """See `slots.ClosableConnection`."""
        if self._closed or (self._busy and not self._half_closed and not self._protocol.awaits_body):
            return False
        return self._half_closed or self._head_begun or not self.has_unread_input

    @property
    def ends_after_answer(self) -> bool:
        """Whether the connection is closed after the current response, to make room for others."""
        return self._server.slots.ends_after_answer(self)

    # Ending

    def close_if_idle(self) -> None:
        if not self._busy:
            self.close()

    def _half_close(self) -> None:
        """Stop sending. The client gets what was sent before, even if it has not finished its request."""
        if self._closed or self._half_closed:
            return
        if self._writing.locked():
            self.abort()
        elif self._read_all or (self._protocol.has_whole_request and not self.has_unread_input):
            self.close()
        else:
            self._half_closed = True
            self._server.slots.set_phase(self, Phase.ENDING, trio.current_time())
            with suppress(OSError):  # the connection is broken already
                self._stream.socket.shutdown(socket.SHUT_WR)
            self._reading.cancel()
            self._waiting_for_turn.cancel()

    def abort(self) -> None:
        """Close the connection and discard the data that waits in the kernel, which the client does not read."""
        if not self._closed:
            with suppress(OSError):  # the connection is broken already
                self._stream.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def close(self) -> None:
        """Close the socket. Tasks that read or write on it wake up; the kernel still delivers what was written."""
        self._closed = True
        self._stream.socket.close()

    # App tasks. Hypercorn calls `spawn_app` as it would call its own task group.

    async def spawn_app(
        self, _app: object, _config: Config, scope: Scope, send: Callable[[Event | None], Awaitable[None]]
    ) -> Callable[[Event], Awaitable[None]]:
        self.extend(scope)
        inbox = _Inbox()
        self._nursery.start_soon(self._answer, scope, inbox, send)
        return inbox.put

    def spawn(self, task: Callable[..., Awaitable[object]], *args: object) -> None:
        self._nursery.start_soon(task, *args)

    def extend(self, scope: Scope) -> None:
        """Add our extensions to the scope of a request."""

        def claim(owner: Hashable, *, reserved: bool) -> bool:
            return self._server.slots.claim(self, owner, trio.current_time(), reserved=reserved)

        scope["extensions"][CLAIM] = claim
        if self._stream.socket.family == socket.AF_UNIX:
            scope["extensions"][PEER] = partial(examine_peer, self._stream.socket)

    async def _answer(self, scope: Scope, inbox: _Inbox, send: Callable[[Event | None], Awaitable[None]]) -> None:
        async def send_unless_cancelled(event: Event) -> None:
            # The only place where an app that only sends is cancelled: no write has begun, so nothing breaks.
            await trio.lowlevel.checkpoint_if_cancelled()
            await send(event)

        try:
            await self._server.acceptor.app(scope, inbox.receive, send_unless_cancelled)
        except Exception:  # noqa: BLE001 - one request's failure is not the connection's
            _log.exception("the app failed on %s %r", scope["method"], scope["raw_path"])
        finally:
            inbox.abandon()
        if self._closed:
            return
        try:
            await send(None)
        except h11.LocalProtocolError:  # the app promised more than it sent
            self.abort()


class _Inbox:
    """The events that one app gets from `receive()`: the body, then `http.disconnect`, again and again."""

    def __init__(self) -> None:
        self._in, self._out = trio.open_memory_channel[Event](_BODY_QUEUE)

    async def put(self, event: Event) -> None:
        """Add an event; wait while the queue is full. Returns at once after `abandon`."""
        if event["type"] == "http.disconnect":
            self._in.close()
            return
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            await self._in.send(event)

    async def receive(self) -> Event:
        try:
            return await self._out.receive()
        except (trio.EndOfChannel, trio.ClosedResourceError):
            return {"type": "http.disconnect"}

    def abandon(self) -> None:
        self._out.close()


class Http1(H11Protocol):
    """Hypercorn's HTTP/1.1 protocol, with the refusals of head.py and without a switch to another protocol."""

    reads_heads = True

    def __init__(
        self,
        connection: HypercornConnection,
        server: HypercornServer,
        client: tuple[str, int] | None,
        here: tuple[str, int] | None,
        *,
        secure: bool,
    ) -> None:
        # Hypercorn's annotations want its own app wrapper and task group; of both, only `spawn_app` is used.
        handed = cast(Any, connection)
        super().__init__(
            handed,
            server.config,
            server.context,
            handed,
            ConnectionState({}),
            secure,
            client,
            here,
            connection.handle_event,
        )
        self._connection = connection
        self._strict = _StrictConnection(h11.SERVER, max_incomplete_event_size=MAX_HEAD)
        self.connection = self._strict
        self.can_read = _NextRequestEvent(connection)

    @property
    def has_whole_request(self) -> bool:
        return self._strict.their_state in (h11.DONE, h11.MUST_CLOSE, h11.CLOSED)

    @property
    def is_receiving_body(self) -> bool:
        return self._strict.their_state is h11.SEND_BODY

    @property
    def awaits_body(self) -> bool:
        return self._strict.their_state is h11.SEND_BODY and self._strict.our_state is h11.SEND_RESPONSE

    @property
    def has_begun_head(self) -> bool:
        return bool(self._strict.trailing_data[0])

    async def stream_send(self, event: StreamEvent) -> None:
        # The client must know with this response that the connection will be closed (see `_maybe_recycle`).
        if isinstance(event, Response) and (
            self.context.terminated.is_set() or not self.has_whole_request or self._connection.ends_after_answer
        ):
            event = Response(event.stream_id, [*event.headers, (b"connection", b"close")], event.status_code)
        await super().stream_send(event)

    async def _check_protocol(self, event: h11.Request) -> None:
        """Never switch: a request for another protocol was refused with its head."""

    async def _send_error_response(self, status_code: int) -> None:
        refusal = self._strict.refusal or HeadRefusal(
            status_code, _PARSER_REFUSALS.get(status_code, _PARSER_REFUSALS[400])
        )
        text = refusal.why.encode() + b"\n"
        headers = [(b"content-type", b"text/plain"), (b"content-length", str(len(text)).encode())]
        if refusal.status == 426:
            headers += [(b"upgrade", b"HTTP/1.1"), (b"connection", b"upgrade, close")]
        else:
            headers += [(b"connection", b"close")]
        headers += self.config.response_headers("h11")
        await self._send_h11_event(h11.Response(status_code=refusal.status, headers=headers))
        await self._send_h11_event(h11.Data(data=text))
        await self._send_h11_event(h11.EndOfMessage())


class _StrictConnection(h11.Connection):
    """h11 with a check of each head before it is parsed."""

    refusal: HeadRefusal | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            received = self.trailing_data[0]
            end = head_end(received)
            self.refusal = None if end is None else check_head(received[:end])
            if self.refusal is not None:
                raise h11.RemoteProtocolError(self.refusal.why, error_status_hint=self.refusal.status)
        return super().next_event()


class _Stopping(EventWrapper):
    """Hypercorn's event for "connections end with their current response"."""

    def __init__(self, acceptor: Acceptor[HypercornConnection]) -> None:
        super().__init__()
        self._acceptor = acceptor

    def is_set(self) -> bool:
        return self._acceptor.stopping


class _NextRequestEvent(EventWrapper):
    """Hypercorn's event for "the next pipelined request may be parsed". Its waiter keeps reading from the client."""

    def __init__(self, connection: HypercornConnection) -> None:
        super().__init__()
        self._connection = connection

    async def wait(self) -> None:
        if not self.is_set():
            await self._connection.read_ahead()

    async def set(self) -> None:
        await super().set()
        self._connection.resume()
