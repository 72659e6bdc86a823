"""HTTP/2 at an address of its own: hypercorn reads the frames, by its public interface alone.

The connection is ours, with the slots, deadlines and TLS of all others. What a client sends after the first bytes of
HTTP/2 goes over a Unix socket to a server of hypercorn that is there for this connection only, since some frames end a
server of hypercorn 0.18: they end the connection of their sender and nothing else. HTTP/1.1, and the ways from it to
other protocols, never reach hypercorn.

Bounds that hypercorn does not have are kept here, from both sides of it:
  - each request passes the checks of HTTP/1.1 (request_head.py), and there is no WebSocket;
  - a client that sends frames without asking for anything, or resets its requests again and again, is disconnected;
  - an app waits while more than MAX_UNTAKEN bytes of answers wait for the client, and a client that takes nothing for
    `write_timeout` loses its connection;
  - an app may respond without reading the body: the rest of it is discarded before the response ends.

A response that cannot be completed ends its connection, with the other requests on it.
"""

from __future__ import annotations

import logging
import math
import socket
import struct
import tempfile
from contextlib import suppress
from functools import partial
from pathlib import Path

import trio
from hypercorn.config import Config
from hypercorn.trio import serve

from .acceptor import HTTP2_LIMITS, LINGER
from .asgi import BODY_TIMEOUT, ASGIApp, Event, Receive, Scope, Send
from .buffered_tls import OVERHEAD, BufferedTls
from .client_socket import CHUNK, ClientSocket, ListenerParts
from .head import MAX_HEAD, HeadRefusal
from .listener import serve_http
from .port import bind_unix, unix_address
from .request_head import INVALID, RequestHead, parse_head
from .response import response_head
from .slots import Phase

MAX_STREAMS = 100
"""Requests at a time on one connection: the least that RFC 9113, "Defined Settings", recommends."""
MAX_UNTAKEN = 256 * 1024
"""Bytes of bodies that wait inside hypercorn for the client of one connection. One part more may come."""
PATIENCE = 1000
"""Frames without a request that a client may send at once. Another one costs 1, a reset request RESET."""
PATIENCE_A_SECOND = 10
RESET = 5
"""Cost of a reset request. It is one frame, but its app was started for nothing."""
PATIENCE_FOR_ANSWER = 10
"""Allowance that a completed answer gives back, for the frames that belong to it."""
PATIENCE_FOR_PART = 4
"""Allowance that a sent part of an answer gives back: the client acknowledges each."""

_PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"  # RFC 9113, "HTTP/2 Connection Preface"
_FRAME = struct.Struct(">HBBBL")  # "Frame Format": the length in the first two, the type, the flags, the stream
_DATA, _HEADERS, _RST_STREAM, _GOAWAY = 0x00, 0x01, 0x03, 0x07
_END_STREAM = 0x01
_ENHANCE_YOUR_CALM = 0x0B
_SLICE = 2048
"""Bytes that are passed on at once: a few of them can be hundreds of frames."""
_OF_CONNECTION = (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade")
"""Headers that have no place in HTTP/2 (RFC 9113, "Connection-Specific Header Fields")."""
_NOT_HTTP2 = b"this address serves HTTP/2 only; HTTP/1.1 is served at listen.address\n"

_log = logging.getLogger("colonnade.listener")


def open_pair() -> tuple[int, trio.SocketStream]:
    """The descriptor of a listening socket, and a connection to it; there will be no other one."""
    # A folder that only this user may enter, for each connection: systems remove such folders after some days.
    with tempfile.TemporaryDirectory(prefix="colonnade-") as folder:
        path = Path(folder, "http2.sock")
        listening, ours = bind_unix(path), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            with unix_address(path) as address:
                ours.connect(address)
            ours.setblocking(False)
            return listening.detach(), trio.SocketStream(trio.socket.from_stdlib_socket(ours))
        except BaseException:
            ours.close()
            listening.close()
            raise


def _config(descriptor: int) -> Config:
    config = Config()
    config.bind = [f"fd://{descriptor}"]
    config.errorlog = config.accesslog = None
    config.include_server_header = False
    config.h2_max_concurrent_streams = MAX_STREAMS
    config.h2_max_header_list_size = MAX_HEAD
    config.keep_alive_max_requests = 2**62
    config.max_app_queue_size = 1  # parts of a body, which no budget counts
    config.keep_alive_timeout = config.graceful_timeout = math.inf  # the deadlines are ours
    return config


class Frames:
    """The heads of the frames in one direction of a connection."""

    def __init__(self) -> None:
        self._head = b""
        self._left = 0

    @property
    def is_between(self) -> bool:
        """Whether the last frame is complete."""
        return not self._head and not self._left

    def take(self, data: bytes) -> list[tuple[int, int, int, int]]:
        """The length, type, flags and stream of each frame whose head ends in these bytes."""
        frames = []
        at = 0
        while at < len(data):
            if self._left:
                step = min(self._left, len(data) - at)
                self._left -= step
            else:
                step = min(_FRAME.size - len(self._head), len(data) - at)
                self._head += data[at : at + step]
                if len(self._head) == _FRAME.size:
                    high, low, kind, flags, stream = _FRAME.unpack(self._head)
                    self._head, self._left = b"", high << 8 | low
                    frames.append((self._left, kind, flags, stream & 0x7FFFFFFF))
            at += step
        return frames


class Http2Connection(ClientSocket):
    """The connection of one client, between it and its server of hypercorn."""

    __slots__ = (
        "_answers", "_calls", "_ending", "_inner", "_last", "_moved", "_patience", "_patience_at", "_requests",
        "_serving", "_taken", "_waits", "ends", "has_left",
    )  # fmt: skip

    protocol = "h2"

    def __init__(self, server: ListenerParts, accepted: socket.socket, tls: BufferedTls | None) -> None:
        super().__init__(server, accepted, tls)
        self._inner: trio.SocketStream
        self._requests: dict[_Http2Request, None] = {}
        self._calls, self._answers = Frames(), Frames()
        self._taken: dict[int, int] = {}
        """Bytes of the body that the client has taken, of each stream that has not ended."""
        self._last = 0
        """The last stream that the client has opened."""
        self._waits = False
        """Whether the deadline is that of a client that has something to take."""
        self._moved = trio.lowlevel.ParkingLot()
        self._ending = trio.Event()
        """Hypercorn is to end. Set when there is no request: it would lose the end of a response."""
        self._serving = trio.CancelScope()
        self.ends = False
        """The connection is to be closed after the requests that it has."""
        self.has_left = False
        """Nothing comes from the client or from hypercorn any more."""
        self._patience = float(PATIENCE)
        self._patience_at = server.now()

    async def run(self) -> None:
        try:
            received = await self.open()
            begun = None if received is None else await self._read_preface(received)
            if begun is not None:
                await self._serve(begun)
        finally:
            self._extensions = {}

    async def _serve(self, begun: bytes) -> None:
        descriptor, self._inner = open_pair()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._run_hypercorn, descriptor)
                nursery.start_soon(self._pass_calls, begun)
                await self._pass_answers()
                self.close()
        finally:
            self._inner.socket.close()

    async def _run_hypercorn(self, descriptor: int) -> None:
        with self._serving:
            await serve(self._answer, _config(descriptor), shutdown_trigger=self._ending.wait, mode="asgi")  # type: ignore[arg-type]  # its types of events are dictionaries too

    # From the client

    async def _read_preface(self, received: bytes) -> bytes | None:
        """The first bytes of HTTP/2 and what follows them; None for a client that begins otherwise, and is refused."""
        while len(received) < len(_PREFACE) and _PREFACE.startswith(received):
            data = await self._receive()
            if not data:
                return None
            received += data
        if received.startswith(_PREFACE):
            return received
        lines = [b"content-type: text/plain\r\n", b"content-length: %d\r\n" % len(_NOT_HTTP2)]
        await self.write(response_head(505, lines, self.server.date(), b"close") + _NOT_HTTP2)
        return None

    async def _receive(self) -> bytes:
        """The next bytes; b"" at the end of input, or when the connection has ended."""
        while not self._closed:
            try:
                await trio.lowlevel.wait_readable(self._fd)
                data = self._socket.recv(await self.server.portions.acquire(self.unread) + OVERHEAD)
                if data and self._tls is not None:
                    data = self.decrypt(self._tls, data)
                    if not data and not self._tls.has_ended:
                        continue
                return data
            except BlockingIOError:
                continue
            except (trio.ClosedResourceError, OSError):
                self.close()
        return b""

    async def _pass_calls(self, received: bytes) -> None:
        """Pass on what the client sends, until it ends."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):  # hypercorn has ended the connection
            await self._inner.send_all(_PREFACE)
            received = received[len(_PREFACE) :] or await self._receive()
            while received:
                for at in range(0, len(received), _SLICE):
                    piece = received[at : at + _SLICE]
                    if not self._permits(self._calls.take(piece)):
                        await self._calm()
                        return
                    await self._inner.send_all(piece)
                received = await self._receive()
            self._leave()
            await self._inner.send_eof()

    def _permits(self, frames: list[tuple[int, int, int, int]]) -> bool:
        """Whether the client has asked for enough, in comparison with its frames."""
        now = self.server.now()
        self._patience = min(PATIENCE, self._patience + (now - self._patience_at) * PATIENCE_A_SECOND)
        self._patience_at = now
        for length, kind, _, stream in frames:
            if kind == _HEADERS and stream > self._last:
                self._last, self._taken[stream] = stream, 0
            elif kind == _RST_STREAM:
                self._taken.pop(stream, None)
                self._patience -= RESET
            elif kind != _HEADERS and not (kind == _DATA and length):
                self._patience -= 1
        return self._patience >= 0

    async def _calm(self) -> None:
        """Disconnect a client that was too busy, and tell it why if that does not stand in the middle of a frame."""
        if self._answers.is_between and not self.is_writing:
            await self.write(_FRAME.pack(0, 8, _GOAWAY, 0, 0) + struct.pack(">LL", 0, _ENHANCE_YOUR_CALM))
        self.close()
        await self._inner.send_eof()

    def _leave(self) -> None:
        """From now on, nothing comes from one of the sides."""
        self.has_left = True
        self._ending.set()
        for request in self._requests:
            request.give_up()

    # From hypercorn

    async def _pass_answers(self) -> None:
        """Pass on what hypercorn sends, until it ends."""
        with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
            while data := await self._inner.receive_some(CHUNK):
                frames = self._answers.take(data)
                await self.write(data)
                has_taken = False
                for length, kind, flags, stream in frames:
                    if kind == _DATA:
                        has_taken = has_taken or length > 0
                        if stream in self._taken:
                            self._taken[stream] += length
                        self._give_back(PATIENCE_FOR_PART)
                    if kind == _RST_STREAM or (kind in (_DATA, _HEADERS) and flags & _END_STREAM):
                        self._taken.pop(stream, None)
                        self._give_back(PATIENCE_FOR_ANSWER)
                self.move(has_taken=has_taken)
                self._end_if_idle()

    def _give_back(self, patience: int) -> None:
        self._patience = min(PATIENCE, self._patience + patience)

    @property
    def _untaken(self) -> int:
        """Bytes of bodies that apps have sent and the client has not taken."""
        return sum(each.sent for each in self._requests) - sum(self._taken.values())

    def move(self, *, has_taken: bool = False) -> None:
        """Set the deadline of the client, after something of the requests has moved on: anew if it has taken a part of
        a body. Nothing else that it does moves a deadline."""
        if self._requests:
            waits = self._untaken > 0
            if not waits:
                self.deadline = math.inf
            elif has_taken or not self._waits:
                self.deadline = self.server.now() + self.server.acceptor.limits.write_timeout
            self._waits = waits
        self._moved.unpark_all()

    async def wait_taken(self) -> None:
        """Wait until the client has taken enough of what apps have sent."""
        while self._untaken > MAX_UNTAKEN and not self._closed:
            await self._moved.park()

    # Requests

    async def _answer(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The app as hypercorn sees it."""
        if scope["type"] != "http":  # ASGI's lifespan is not used, as hypercorn learns from this
            await receive()  # of a WebSocket, hypercorn would wait for ever
            raise RuntimeError(f"no {scope['type']} here")
        acceptor = self.server.acceptor
        if not self._requests:
            acceptor.slots.set_phase(self, Phase.REQUEST, self.server.now())
        request = _Http2Request(self, scope, send)
        request.give_up()
        self._requests[request] = None
        self.move()
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(request.feed, receive)  # it ends after the response, since hypercorn says so
                await request.run(acceptor.app)
        finally:
            del self._requests[request]
            self.move()
            if not self._requests:
                now = self.server.now()
                self._waits = False
                self.deadline = now + acceptor.limits.idle_timeout
                acceptor.slots.set_phase(self, Phase.IDLE, now)
                self._end_if_idle()
                self._end_if_closed()

    def scope(self, head: RequestHead) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": "2",
            "method": head.method,
            "scheme": self.scheme,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client,
            "server": self._here,
            "extensions": dict(self._extensions),
        }

    # Making room, ending

    def waits_for_client(self) -> bool:
        return not self._closed and all(each.awaits_body for each in self._requests) and not self.unread()

    def close_if_idle(self) -> None:
        self.ends = True
        self._end_if_idle()

    def _end_if_idle(self) -> None:
        if self.ends and not self._requests and not self._taken:
            self._ending.set()

    def _end_if_closed(self) -> None:
        """Wait a moment longer for hypercorn, when it has nothing to do any more."""
        if self._closed and not self._requests:
            self._serving.deadline = self.server.now() + LINGER

    def time_out(self) -> None:
        if self._requests:
            self.abort()
        else:
            self.close()

    def close(self) -> None:
        super().close()
        self._moved.unpark_all()
        self._leave()
        self._end_if_closed()


class _Http2Request:
    """One request, between its app and hypercorn."""

    def __init__(self, connection: Http2Connection, scope: Scope, send: Send) -> None:
        self.sent = 0
        """Bytes of the body of the response that were given to hypercorn and may wait there."""
        self._connection = connection
        self._scope = scope
        self._pass_on = send
        self._passing = trio.CancelScope()
        self._into_app, self._from_client = trio.open_memory_channel[Event](0)
        self._has_come = trio.Event()
        self._has_left = False
        self._status = 0
        self._is_complete = False

    @property
    def awaits_body(self) -> bool:
        """Whether the body is not complete and its response has not begun."""
        return not self._has_come.is_set() and not self._status

    async def feed(self, receive: Receive) -> None:
        """Hand the parts of the body to the app, and discard them when it has responded."""
        while (event := await receive())["type"] != "http.disconnect":
            if not event["more_body"]:
                self._has_come.set()
            with suppress(trio.BrokenResourceError, trio.ClosedResourceError):
                await self._into_app.send(event)
        self._has_left = True
        self.sent = 0
        self.give_up()
        self._has_come.set()
        self._into_app.close()
        self._connection.move()

    def give_up(self) -> None:
        """At the end of a connection, wait no longer for the app to take a part of the body, nor, once hypercorn has
        said that the client left, for hypercorn to take a part of the response: they may never do it. Before the end,
        hypercorn would lose a part of another response."""
        if self._connection.has_left:
            self._into_app.close()
            if self._has_left:
                self._passing.cancel()

    async def run(self, app: ASGIApp) -> None:
        head = _head_of(self._scope)
        try:
            if isinstance(head, HeadRefusal):
                await self._respond(head.status, head.why.encode() + b"\n")
            else:
                await app(self._connection.scope(head), self._receive, self.send)
        except Exception:  # noqa: BLE001 - one request's failure is not the connection's
            _log.exception("the app failed on %s %r", self._scope["method"], self._scope["raw_path"])
        if not self._status and not self._has_left:
            await self._respond(500, b"")
        if not self._is_complete and not self._has_left:  # a client could take it for complete
            self._connection.abort()
        self._from_client.close()

    async def _respond(self, status: int, text: bytes) -> None:
        headers = [(b"content-type", b"text/plain"), (b"content-length", b"%d" % len(text))]
        await self.send({"type": "http.response.start", "status": status, "headers": headers})
        await self.send({"type": "http.response.body", "body": text})

    async def _receive(self) -> Event:
        try:
            return await self._from_client.receive()
        except trio.EndOfChannel:
            return {"type": "http.disconnect"}

    async def send(self, event: Event) -> None:
        # The only place where an app that only sends is cancelled: hypercorn must get an event whole.
        await trio.lowlevel.checkpoint()
        connection = self._connection
        if event["type"] == "http.response.start":
            self._status = event["status"]
            slots = connection.server.acceptor.slots
            if (b"connection", b"close") in event["headers"] or slots.ends_after_answer(connection):
                connection.ends = True
            headers = [each for each in event["headers"] if each[0].lower() not in _OF_CONNECTION]
            await self._hand_over({**event, "headers": headers})
            return
        is_last = not event.get("more_body", False)
        if is_last and not self._has_come.is_set():
            # Hypercorn takes a part of a body that comes after the response for its own mistake.
            self._from_client.close()
            with trio.move_on_after(BODY_TIMEOUT) as waiting:
                await self._has_come.wait()
            if waiting.cancelled_caught:
                connection.abort()
                return
        if not self._has_left and self._scope["method"] != "HEAD" and self._status not in (204, 304):
            self.sent += len(event.get("body", b""))
            connection.move()
        await self._hand_over(event)
        self._is_complete = is_last
        await connection.wait_taken()

    async def _hand_over(self, event: Event) -> None:
        if not self._has_left:
            with trio.CancelScope() as self._passing:
                await self._pass_on(event)


def _head_of(scope: Scope) -> RequestHead | HeadRefusal:
    """The head of a request as both judges of HTTP/1.1 read it."""
    fields: list[tuple[bytes, bytes]] = scope["headers"]
    query: bytes = scope["query_string"]
    line = b"%b %b HTTP/1.1\r\n" % (scope["method"].encode(), scope["raw_path"] + (b"?" + query if query else b""))
    head = parse_head(line + b"".join(b"%b: %b\r\n" % each for each in fields) + b"\r\n")
    if isinstance(head, RequestHead) and head.headers != [(name, value.strip(b" \t")) for name, value in fields]:
        return INVALID
    return head


serve_http2 = partial(serve_http, limits=HTTP2_LIMITS, connection=Http2Connection)
"""Serves an app as `serve_http` does, over HTTP/2 alone: with TLS if there is a certificate, else to clients that know
that it is HTTP/2. The scopes have the extension of `asgi.claim`."""
