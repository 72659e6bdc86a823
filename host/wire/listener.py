"""HTTP/1.1 server for an ASGI app on a TCP or Unix socket, hardened against hostile clients. Uses hypercorn's parser
and request cycle.

Owns the listening socket, every connection with its deadlines, and one task per request. The app decides about access;
head.py refuses request heads. There is no way to HTTP/2, WebSocket or another protocol: hypercorn's `H11Protocol` is
used alone, without the part that switches protocols.

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

import errno
import fcntl
import logging
import math
import os
import random
import resource
import socket
import struct
import sys
import termios
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from functools import partial
from typing import Any, cast

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

from .asgi import CLAIM, PEER, ASGIApp, Event, Scope
from .descent import examine_peer
from .head import MAX_HEAD, Refusal, check_head, head_of
from .portions import Portions
from .slots import EXTRA, INCOMPLETE_TIMEOUT, MANY_HEADS, RESERVED, Phase, Slots

MAX_CONNECTIONS = 1000
"""Connections at a time, not counting the extra and reserved ones of slots.py."""
OTHER_DESCRIPTORS = 256
"""Open files that are left for the rest of the process."""
MIN_CONNECTIONS = 64
"""Connections at a time, even if the limit of open files is lower."""
HEAD_TIMEOUT = 5.0
"""Seconds from the first byte of a head, or from a new connection, until the head must be complete; INCOMPLETE_TIMEOUT
seconds while many heads are incomplete."""
IDLE_TIMEOUT = 75.0
"""Seconds that a connection stays open between two requests: longer than the keep-alive of common clients."""
WRITE_TIMEOUT = 5.0
"""Seconds in which a client must take the next 64 KiB."""
GRACE = 2.0

_LINGER = 1.0  # seconds to read from a refused client: closing with unread bytes would reset away the response
_CHUNK = 64 * 1024
_READ_AHEAD = MAX_HEAD
"""Bytes of pipelined requests that a connection keeps. They are not charged, and a thousand connections may have them.
"""
_BODY_QUEUE = 10  # parts of at most _CHUNK bytes
_FULL_PAUSE = 0.1
_MANY_CONNECTIONS = 64
_RESUME_SPREAD = 0.25
"""With more than _MANY_CONNECTIONS, the end of each is read after a random part of so many seconds, and the timeout of
many incomplete heads is longer by such a part: a thousand connections must not all be closed in one pass."""
_LONGEST_LINE = 64
"""Bytes of an incomplete line that are collected before the parser gets them."""
_ACCEPTED_AT_ONCE = 4  # with one per pass of a busy loop, a client would wait behind an attacker's connections
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)

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
    max_connections: int = MAX_CONNECTIONS,
    write_timeout: float = WRITE_TIMEOUT,
    head_timeout: float = HEAD_TIMEOUT,
    idle_timeout: float = IDLE_TIMEOUT,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until cancelled, or until `stop` is set. ASGI's lifespan is not used.

    Each scope has the extension of `asgi.claim`, by which the app names the owner of its request. On a Unix socket it
    also has that of `asgi.examine_sender`.

    On `stop` the listening socket and the idle connections are closed at once; requests in flight have `grace` seconds
    to end, then they are cancelled. If the caller is cancelled, everything ends at once. No exception of a connection
    or of the app is raised: those of the app are logged as `colonnade.listener`, and the response is 500 if nothing was
    sent yet.

    Args:
        bound: a listening socket, as from `port.bind` or `port.bind_unix`. It is closed on `stop`, or when this
        returns. max_connections, write_timeout, head_timeout, idle_timeout: see the constants of this module. There are
        fewer
            connections if the process may not open that many files.
    """
    max_connections = affordable_connections(max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    server = _Server(app, max_connections, write_timeout, head_timeout, idle_timeout)
    listener = trio.SocketListener(trio.socket.from_stdlib_socket(bound))
    async with listener, trio.open_nursery() as connections:
        async with trio.open_nursery() as accepting:
            accepting.start_soon(server.accept, listener, bound, connections)
            task_status.started()
            if stop is None:
                await trio.sleep_forever()
            else:
                await stop.wait()
            accepting.cancel_scope.cancel()
        listener.socket.close()
        connections.cancel_scope.deadline = trio.current_time() + grace
        await server.finish()


def affordable_connections(connections: int, files: float) -> int:
    """The number of connections, reduced if the process may not open that many files.

    Clients must not be able to use up the descriptors that servers and the audit need.
    """
    if files == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(MIN_CONNECTIONS, int(files) - OTHER_DESCRIPTORS - EXTRA - RESERVED))


class _Server:
    """State that all connections of one listener share."""

    def __init__(
        self, app: ASGIApp, max_connections: int, write_timeout: float, head_timeout: float, idle_timeout: float
    ) -> None:
        self.app = app
        self.write_timeout = write_timeout
        self.head_timeout = head_timeout
        self.idle_timeout = idle_timeout
        self.context = WorkerContext(None)
        self.config = _hypercorn_config()
        self.slots: Slots[_Connection] = Slots(max_connections)
        self.portions = Portions()
        self._room = trio.lowlevel.ParkingLot()
        self._complained = -math.inf

    async def accept(self, listener: trio.SocketListener, bound: socket.socket, nursery: trio.Nursery) -> None:
        """Accept connections until cancelled or until the listener, which uses the socket `bound`, is closed."""
        while True:
            try:
                await self._until_room(listener)
                stream = await listener.accept()
            except trio.ClosedResourceError:
                return
            except OSError as error:
                # EMFILE and similar: the connection stays in the backlog, so the next accept fails at once as well.
                self.log_limited(f"no connection can be accepted: {errno.errorcode.get(error.errno or 0, error)}")
                if error.errno not in _NO_DESCRIPTOR or not self.slots.make_room(trio.current_time()):
                    await trio.sleep(_FULL_PAUSE)
                continue
            self._begin(stream, nursery)
            with suppress(OSError):  # no connection waits, or the next `accept` fails in the same way
                for _ in range(_ACCEPTED_AT_ONCE - 1):
                    if self.slots.full:
                        break
                    accepted, _ = bound.accept()
                    self._begin(trio.SocketStream(trio.socket.from_stdlib_socket(accepted)), nursery)

    def _begin(self, stream: trio.SocketStream, nursery: trio.Nursery) -> None:
        connection = _Connection(self, stream)
        self.slots.add(connection, trio.current_time())
        nursery.start_soon(self._run, connection)

    async def _until_room(self, listener: trio.SocketListener) -> None:
        while self.slots.full:
            await trio.lowlevel.wait_readable(listener.socket)  # no connection is closed before its slot is needed
            if not self.slots.make_room(trio.current_time()):
                with trio.move_on_after(_FULL_PAUSE):  # later, an incomplete request may be closed
                    await self._room.park()

    async def finish(self) -> None:
        """Make every connection end after its current request, and close the idle ones."""
        await self.context.terminated.set()
        for connection in self.slots:
            connection.close_if_idle()

    def log_limited(self, text: str) -> None:
        """Log a warning, at most one per second, so that clients cannot fill the log."""
        now = trio.current_time()
        if now - self._complained >= 1:
            self._complained = now
            _log.warning("%s", text)

    async def _run(self, connection: _Connection) -> None:
        try:
            await connection.run()
        except* Exception as group:  # noqa: BLE001 - one connection's failure is not its siblings'
            self.log_limited(f"a connection was ended by {group.exceptions[0]!r}")
        finally:
            connection.close()
            self.slots.remove(connection)
            self._room.unpark_all()


def _hypercorn_config() -> Config:
    config = Config()
    config.errorlog = _log
    config.accesslog = None
    config.include_server_header = False
    config.h11_max_incomplete_size = MAX_HEAD
    config.keep_alive_max_requests = 2**62
    return config


class _ConnectionEnded(Exception):
    """No further request is read from this connection."""


class _Connection:
    """The connection of one client: reads and writes for hypercorn's protocol, and keeps the deadlines."""

    def __init__(self, server: _Server, stream: trio.SocketStream) -> None:
        self._server = server
        self._stream = stream
        self._writing = trio.Lock()
        self._nursery: trio.Nursery
        self._protocol: _Http1
        self._reading = trio.CancelScope()
        self._waiting_for_turn = trio.CancelScope()
        self._deadline = trio.current_time() + server.head_timeout
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
                self._protocol = _Http1(self, self._server, peer, here)
                await self._read()
        finally:
            del self._nursery, self._protocol  # they refer to this object: no cycle is left to the garbage collector

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
            self._server.log_limited(f"a connection was ended by {error!r}")
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
            self._head_begun = not self._busy
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
            except (OSError, trio.ClosedResourceError):
                self.close()
                return None
            if not self._busy:
                now = trio.current_time()
                self._server.slots.set_phase(self, Phase.HEAD, now)
                if not self._in_head:
                    self._in_head = True
                    self._deadline = now + self._server.head_timeout
                if self._server.slots.incomplete_heads > MANY_HEADS:
                    self._deadline = min(self._deadline, now + INCOMPLETE_TIMEOUT + random.random() * _RESUME_SPREAD)
            return None if self._half_closed else data
        if not self._half_closed:
            self.close()  # too slow, or idle for too long
        return None

    async def _receive_ready(self) -> bytes:
        # `SocketStream.receive_some` has a checkpoint after it has read the bytes. A connection that is closed at that
        # moment, because it looks idle, would lose a request that has arrived.
        while not self._is_closed():
            await trio.lowlevel.wait_readable(self._stream.socket)
            if len(self._server.slots) > _MANY_CONNECTIONS and not self._is_closed() and not self._unread():
                await trio.sleep(random.random() * _RESUME_SPREAD)
            if self._is_closed():
                break
            size = _CHUNK if self._busy else _READ_AHEAD
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

        Returns only after `resume`. After _READ_AHEAD bytes no more is read, and the end is not noticed.

        Raises:
            _ConnectionEnded: the client left, or the connection was closed here. Pipelined requests are not answered.
        """
        with trio.CancelScope() as self._waiting_for_turn:
            while not self._half_closed:
                if len(self._pipelined) >= _READ_AHEAD:
                    await trio.sleep_forever()
                try:
                    data = await self._stream.receive_some(_READ_AHEAD - len(self._pipelined))
                except (trio.BrokenResourceError, trio.ClosedResourceError):
                    self.close()
                    raise _ConnectionEnded from None
                if not data:
                    raise _ConnectionEnded
                self._pipelined += data
        if self._half_closed or self._closed:
            raise _ConnectionEnded

    def resume(self) -> None:
        self._waiting_for_turn.cancel()

    async def _linger(self) -> None:
        with trio.move_on_after(_LINGER), suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while await self._stream.receive_some(_CHUNK):
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
            phase, self._deadline = Phase.HEAD, now + self._server.head_timeout
        else:
            phase, self._deadline = Phase.IDLE, now + self._server.idle_timeout
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
                for start in range(0, len(data), _CHUNK):
                    with trio.fail_after(self._server.write_timeout):
                        await self._stream.send_all(view[start : start + _CHUNK])
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
        """See `slots.Connection`."""
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
            with suppress(OSError):
                self._stream.socket.shutdown(socket.SHUT_WR)
            self._reading.cancel()
            self._waiting_for_turn.cancel()

    def abort(self) -> None:
        """Close the connection and discard the data that waits in the kernel, which the client does not read."""
        if not self._closed:
            with suppress(OSError):
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
        def claim(owner: Hashable, *, reserved: bool) -> bool:
            return self._server.slots.claim(self, owner, trio.current_time(), reserved=reserved)

        scope["extensions"][CLAIM] = claim
        if self._stream.socket.family == socket.AF_UNIX:
            scope["extensions"][PEER] = partial(examine_peer, self._stream.socket)
        inbox = _Inbox()
        self._nursery.start_soon(self._answer, scope, inbox, send)
        return inbox.put

    async def _answer(self, scope: Scope, inbox: _Inbox, send: Callable[[Event | None], Awaitable[None]]) -> None:
        async def send_unless_cancelled(event: Event) -> None:
            # The only place where an app that only sends is cancelled: no write has begun, so nothing breaks.
            await trio.lowlevel.checkpoint_if_cancelled()
            await send(event)

        try:
            await self._server.app(scope, inbox.receive, send_unless_cancelled)
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


class _Http1(H11Protocol):
    """Hypercorn's HTTP/1.1 protocol, with the refusals of head.py and without a switch to another protocol."""

    def __init__(
        self,
        connection: _Connection,
        server: _Server,
        client: tuple[str, int] | None,
        here: tuple[str, int] | None,
    ) -> None:
        # Hypercorn's annotations want its own app wrapper and task group; of both, only `spawn_app` is used.
        handed = cast(Any, connection)
        super().__init__(
            handed,
            server.config,
            server.context,
            handed,
            ConnectionState({}),
            False,
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
        """Whether the body of a request is not complete."""
        return self._strict.their_state is h11.SEND_BODY

    @property
    def awaits_body(self) -> bool:
        """Whether the body of a request is not complete and its response has not begun."""
        return self._strict.their_state is h11.SEND_BODY and self._strict.our_state is h11.SEND_RESPONSE

    @property
    def has_begun_head(self) -> bool:
        """Whether bytes of the next request have arrived; for use between two requests."""
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
        refusal = self._strict.refusal or Refusal(status_code, _PARSER_REFUSALS.get(status_code, _PARSER_REFUSALS[400]))
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

    refusal: Refusal | None = None

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        if self.their_state is h11.IDLE:
            head = head_of(self.trailing_data[0])
            self.refusal = None if head is None else check_head(head)
            if self.refusal is not None:
                raise h11.RemoteProtocolError(self.refusal.why, error_status_hint=self.refusal.status)
        return super().next_event()


class _NextRequestEvent(EventWrapper):
    """Hypercorn's event for "the next pipelined request may be parsed". Its waiter keeps reading from the client."""

    def __init__(self, connection: _Connection) -> None:
        super().__init__()
        self._connection = connection

    async def wait(self) -> None:
        if not self.is_set():
            await self._connection.read_ahead()

    async def set(self) -> None:
        await super().set()
        self._connection.resume()
