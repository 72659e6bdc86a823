"""HTTP/2 by hypercorn's protocol, hardened against hostile clients. For connections of `hypercorn_tls.py`.

Guarantees beyond those of hypercorn 0.18:
  - each request passes the checks of HTTP/1.1 (request_head.py), and there is no CONNECT and no WebSocket;
  - an app may respond without reading the body; the rest of it is discarded;
  - a body that the app does not read holds back its client, and nothing but other bodies of this connection;
  - a client that does not take a part of an answer within `write_timeout` loses that answer;
  - an answer that the app broke off is reset, and nothing of an ended stream is kept;
  - a client that sends frames without asking for anything, or resets its requests again and again, is disconnected.

Priorities are ignored (RFC 9113, "Prioritization", deprecates them).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, Protocol, cast

import h2.events
import h2.exceptions
import h2.settings
import trio
from h2.errors import ErrorCodes
from hypercorn.config import Config
from hypercorn.events import Closed, RawData, Updated
from hypercorn.events import Event as WireEvent
from hypercorn.protocol.events import Body, EndBody, Request, Response, StreamClosed
from hypercorn.protocol.events import Event as StreamEvent
from hypercorn.protocol.h2 import BUFFER_HIGH_WATER, BUFFER_LOW_WATER, BufferCompleteError, H2Protocol, StreamBuffer
from hypercorn.protocol.http_stream import ASGIHTTPState, HTTPStream
from hypercorn.trio.worker_context import WorkerContext
from hypercorn.typing import ConnectionState
from priority.priority import PriorityError

from .asgi import ASGIApp, Event, Scope
from .head import MAX_HEAD, HeadRefusal
from .request_head import INVALID, RequestHead, parse_head

MAX_STREAMS = 100
"""Requests at a time on one connection: the least that RFC 9113, "Defined Settings", recommends."""
PATIENCE = 1000
"""Frames without a request that a client may send at once. Another one costs 1, a reset request RESET."""
PATIENCE_A_SECOND = 10
RESET = 5
"""Cost of a reset request. It is one frame, but its app was started for nothing."""
PATIENCE_FOR_ANSWER = 10
"""Allowance that a completed answer gives back, for the frames that belong to it."""
PATIENCE_FOR_PART = 4
"""Allowance that a sent part of an answer gives back: the client acknowledges each."""

_SLICE = 2048
"""Bytes that are parsed at once: a few of them can be hundreds of frames."""
_LONGEST_STEP = 0.005
"""Seconds after which other tasks run before the next slice."""
_OF_CONNECTION = (b"connection", b"keep-alive", b"transfer-encoding", b"upgrade")
"""Headers that have no place in HTTP/2."""

_log = logging.getLogger("colonnade.listener")

Send = Callable[[Event | None], Awaitable[None]]


class Http2Connection(Protocol):
    """The connection below: it writes, closes, and runs tasks."""

    @property
    def ends_after_answer(self) -> bool: ...

    async def handle_event(self, event: WireEvent) -> None: ...

    def spawn(self, task: Callable[..., Awaitable[object]], *args: object) -> None: ...

    def extend(self, scope: Scope) -> None: ...


class _Impatient(Exception):
    """The client has sent too many frames without asking for anything."""


@dataclass
class _Exchange:
    """One request that is being answered."""

    inbox: _Http2Inbox
    begun: bool = False


@dataclass
class _Http2Inbox:
    """The events that one app gets from `receive()`. `on_taken` is called with the bytes of a part that it took."""

    on_taken: Callable[[int], Awaitable[None]]
    parts: list[tuple[Event, int]] = field(default_factory=list)
    ended: bool = False
    moved: trio.lowlevel.ParkingLot = field(default_factory=trio.lowlevel.ParkingLot)

    def put(self, event: Event, size: int) -> None:
        self.parts.append((event, size))
        self.moved.unpark_all()

    def end(self) -> None:
        self.ended = True
        self.moved.unpark_all()

    async def receive(self) -> Event:
        await trio.lowlevel.checkpoint()  # an app that reads part after part lets other tasks run
        while not self.parts and not self.ended:
            await self.moved.park()
        if not self.parts:
            return {"type": "http.disconnect"}
        event, size = self.parts.pop(0)
        await self.on_taken(size)
        return event


class _Buffer(StreamBuffer):
    """The part of an answer that waits for its client. Hypercorn's own has no limit if the client takes nothing."""

    async def push(self, data: bytes) -> None:
        if self._complete:
            raise BufferCompleteError
        self.buffer.extend(data)
        await self._is_empty.clear()
        await self._paused.clear()
        if len(self.buffer) >= BUFFER_HIGH_WATER:
            await self._paused.wait()

    async def pop(self, max_length: int) -> bytes:
        data = bytes(self.buffer[:max_length])
        del self.buffer[:max_length]
        if len(self.buffer) < BUFFER_LOW_WATER:
            await self._paused.set()
        if not self.buffer:
            await self._is_empty.set()
        return data


class Http2(H2Protocol):
    """One connection. The names of its methods are hypercorn's."""

    reads_heads = False
    has_begun_head = False

    def __init__(
        self,
        connection: Http2Connection,
        app: ASGIApp,
        config: Config,
        context: WorkerContext,
        write_timeout: float,
        client: tuple[str, int] | None,
        here: tuple[str, int] | None,
    ) -> None:
        # Hypercorn's annotations want its own app wrapper and task group; of the latter, only `spawn` is used.
        handed = cast(Any, connection)
        super().__init__(
            handed, config, context, handed, ConnectionState({}), True, client, here, connection.handle_event
        )
        self._below = connection
        self._app = app
        self._write_timeout = write_timeout
        self._exchanges: dict[int, _Exchange] = {}
        self._uploading: set[int] = set()
        """The streams whose body has not ended."""
        self._ending = False
        self._patience = float(PATIENCE)
        self._patience_at = trio.current_time()
        codes = h2.settings.SettingCodes
        # In place of the settings, not by `update_settings`, which h2 applies once the client has acknowledged them.
        self.connection.local_settings = h2.settings.Settings(
            client=False,
            initial_values={codes.MAX_CONCURRENT_STREAMS: MAX_STREAMS, codes.MAX_HEADER_LIST_SIZE: MAX_HEAD},
        )

    # What the connection below asks

    @property
    def has_whole_request(self) -> bool:
        return not self._uploading

    @property
    def is_receiving_body(self) -> bool:
        """Always: the input of a connection with HTTP/2 is read in portions, because small frames are much work."""
        return True

    @property
    def awaits_body(self) -> bool:
        """Whether no request is complete, and no response has begun."""
        return all(id in self._uploading and not each.begun for id, each in self._exchanges.items())

    # Input

    async def handle(self, event: WireEvent) -> None:
        try:
            if not isinstance(event, RawData):
                await super().handle(event)
                return
            began = time.perf_counter()
            for start in range(0, max(1, len(event.data)), _SLICE):
                await super().handle(RawData(event.data[start : start + _SLICE]))
                if time.perf_counter() - began > _LONGEST_STEP:
                    await trio.lowlevel.checkpoint()
                    began = time.perf_counter()
        except _Impatient:
            with suppress(h2.exceptions.ProtocolError):  # the connection is closed already
                self.connection.close_connection(ErrorCodes.ENHANCE_YOUR_CALM)
            await self._flush()
            await self.send(Closed())

    async def _handle_events(self, events: Iterable[h2.events.Event]) -> None:
        for event in events:
            if isinstance(event, h2.events.RequestReceived):
                await self._create_stream(event)
            elif isinstance(event, h2.events.DataReceived):
                await self._take_data(event)
            elif isinstance(event, h2.events.StreamEnded):
                await self._end_body(event.stream_id)
            elif isinstance(event, h2.events.StreamReset):
                self._spend(RESET)
                self._uploading.discard(event.stream_id)
                await self._close_stream(event.stream_id)
                await self._discard(event.stream_id)
            elif isinstance(event, h2.events.ConnectionTerminated):
                await self.send(Closed())
            else:
                self._spend(1)
                if isinstance(event, h2.events.WindowUpdated):
                    await self._window_updated(event.stream_id)
                elif isinstance(event, h2.events.RemoteSettingsChanged):
                    await self._window_updated(None)
        await self._flush()

    def _spend(self, cost: int) -> None:
        now = trio.current_time()
        self._patience = min(PATIENCE, self._patience + (now - self._patience_at) * PATIENCE_A_SECOND) - cost
        self._patience_at = now
        if self._patience < 0:
            raise _Impatient

    def _give_back(self, patience: int) -> None:
        self._patience = min(PATIENCE, self._patience + patience)

    async def _create_stream(self, request: h2.events.RequestReceived) -> None:
        id = request.stream_id
        if self.context.terminated.is_set() or self._ending:
            self.connection.reset_stream(id, ErrorCodes.REFUSED_STREAM)
            return
        head = _head_of(request.headers)
        if isinstance(head, HeadRefusal):
            self._respond(id, head.status, head.why.encode() + b"\n")
            self._spend(RESET)
            return
        if request.stream_ended is None:
            self._uploading.add(id)
        await self._below.handle_event(Updated(idle=False))
        self.stream_buffers[id] = _Buffer(self.context.event_class)
        self.priority.insert_stream(id)
        self.priority.block(id)
        stream = self.streams[id] = HTTPStream(
            cast(Any, self._app),
            self.config,
            self.context,
            cast(Any, _AppTask(self, id)),
            True,
            self.client,
            self.server,
            self.stream_send,
            id,
        )
        await stream.handle(
            Request(
                stream_id=id,
                headers=head.headers,
                http_version="2",
                method=head.method,
                raw_path=head.raw_path + (b"?" + head.query if head.query else b""),
                state=self.connection_state,
            )
        )

    def _respond(self, id: int, status: int, text: bytes) -> None:
        """Respond in place of the app."""
        headers = [(b":status", b"%d" % status), (b"content-type", b"text/plain")]
        headers += [(b"content-length", b"%d" % len(text)), *self.config.response_headers("h2")]
        with suppress(h2.exceptions.ProtocolError):  # the client has reset the stream, or takes no byte
            self.connection.send_headers(id, headers)
            self.connection.send_data(id, text, end_stream=True)

    async def _take_data(self, event: h2.events.DataReceived) -> None:
        id, data, size = event.stream_id, event.data or b"", event.flow_controlled_length or 0
        if not data:
            self._spend(1)
        exchange = self._exchanges.get(id)
        if exchange is None:  # it was answered without its body
            self.connection.acknowledge_received_data(size, id)
        else:
            exchange.inbox.put({"type": "http.request", "body": data, "more_body": True}, size)

    async def _end_body(self, id: int) -> None:
        self._uploading.discard(id)
        exchange = self._exchanges.get(id)
        if exchange is not None:
            exchange.inbox.put({"type": "http.request", "body": b"", "more_body": False}, 0)

    async def _close_stream(self, stream_id: int) -> None:
        """End a stream towards its app."""
        await super()._close_stream(stream_id)
        exchange = self._exchanges.get(stream_id)
        if exchange is not None:
            exchange.inbox.end()

    # Apps

    def start_app(self, id: int, scope: Scope, send: Send) -> None:
        async def acknowledge(size: int) -> None:
            if size and not self.closed:
                with suppress(h2.exceptions.ProtocolError):  # the stream has ended
                    self.connection.acknowledge_received_data(size, id)
                await self._flush()

        scope["extensions"] = {}
        self._below.extend(scope)
        self._exchanges[id] = _Exchange(_Http2Inbox(acknowledge))
        self._below.spawn(self._run_app, id, scope, send)

    async def _run_app(self, id: int, scope: Scope, send: Send) -> None:
        exchange = self._exchanges[id]

        async def send_in_time(event: Event) -> None:
            # An app that only sends is cancelled here, before its event has begun.
            await trio.lowlevel.checkpoint_if_cancelled()
            with trio.move_on_after(self._write_timeout) as waiting:
                await send(event)
            if waiting.cancelled_caught:
                await self._break_off(id, ErrorCodes.CANCEL)

        try:
            await self._app(scope, exchange.inbox.receive, send_in_time)
        except Exception:  # noqa: BLE001 - one request's failure is not the connection's
            _log.exception("the app failed on %s %r", scope["method"], scope["raw_path"])
        finally:
            del self._exchanges[id]
        with trio.move_on_after(self._write_timeout):  # the client may not take what ends the stream
            await self._finish(id, exchange)

    async def _finish(self, id: int, exchange: _Exchange) -> None:
        """Release what the app has left of its stream."""
        unread = sum(size for _, size in exchange.inbox.parts)
        if unread and not self.closed:  # their bytes count for the whole connection: other bodies would stall
            with suppress(h2.exceptions.ProtocolError):
                self.connection.acknowledge_received_data(unread, id)
        stream = self.streams.get(id)
        if isinstance(stream, HTTPStream) and stream.state is ASGIHTTPState.REQUEST:
            self._respond(id, 500, b"")
            await self._close_stream(id)
            await self.send(Updated(idle=self.idle))
        elif stream is not None:
            await self._break_off(id, ErrorCodes.INTERNAL_ERROR)
        buffer = self.stream_buffers.get(id)
        if buffer is not None and not buffer._complete:
            await self._discard(id)
        await self._flush()
        await self._end_if_idle()

    async def _break_off(self, id: int, code: ErrorCodes) -> None:
        self._uploading.discard(id)
        with suppress(h2.exceptions.ProtocolError):  # the client was faster
            self.connection.reset_stream(id, code)
        await self._close_stream(id)
        await self._discard(id)
        await self.send(Updated(idle=self.idle))
        await self._flush()

    # Output

    async def stream_send(self, event: StreamEvent) -> None:
        if isinstance(event, StreamClosed):
            await self._close_stream(event.stream_id)
            self._give_back(PATIENCE_FOR_ANSWER)
            await self.send(Updated(idle=self.idle))
            await self._end_if_idle()
            return
        if isinstance(event, Response):
            exchange = self._exchanges.get(event.stream_id)
            if exchange is not None:
                exchange.begun = True
            self._ending = self._ending or (b"connection", b"close") in event.headers
            headers = [each for each in event.headers if each[0] not in _OF_CONNECTION]
            event = Response(event.stream_id, headers, event.status_code)
        elif isinstance(event, Body | EndBody) and event.stream_id not in self.stream_buffers:
            return
        await super().stream_send(event)

    async def _send_data(self, stream_id: int) -> None:
        buffer = self.stream_buffers.get(stream_id)
        try:
            if buffer is None:
                raise KeyError(stream_id)
            room = min(self.connection.local_flow_control_window(stream_id), self.connection.max_outbound_frame_size)
            data = await buffer.pop(max(0, room))
            if data:
                self.connection.send_data(stream_id, data)
                self._give_back(PATIENCE_FOR_PART)
            else:
                self.priority.block(stream_id)
            if buffer.complete:
                self.connection.end_stream(stream_id)
                await self._discard(stream_id)
            await self._flush()
        except (KeyError, h2.exceptions.ProtocolError, PriorityError):  # the stream or the connection ended
            await self._discard(stream_id)
        await self._end_if_idle()

    async def _discard(self, id: int) -> None:
        """Forget what is kept for a stream, and wake who waits to send on it."""
        buffer = self.stream_buffers.pop(id, None)
        if buffer is not None:
            await buffer.close()
        with suppress(PriorityError):  # it was removed before
            self.priority.remove_stream(id)

    async def _end_if_idle(self) -> None:
        """End the connection after its last answer, if it is not to be used any more."""
        if self.streams or self.stream_buffers or self._exchanges or self.closed:
            return
        if self._ending or self.context.terminated.is_set() or self._below.ends_after_answer:
            with suppress(h2.exceptions.ProtocolError):
                self.connection.close_connection()
            await self._flush()
            await self.send(Closed())


class _AppTask:
    """The object that hypercorn takes for its task group, for one stream."""

    def __init__(self, protocol: Http2, id: int) -> None:
        self._protocol = protocol
        self._id = id

    async def spawn_app(
        self, _app: object, _config: Config, scope: Scope, send: Send
    ) -> Callable[[Event], Awaitable[None]]:
        self._protocol.start_app(self._id, scope, send)
        return self._put

    async def _put(self, event: Event) -> None:
        """Hypercorn's events for the app. Those of the body come another way."""


def _head_of(headers: list[tuple[bytes, bytes]]) -> RequestHead | HeadRefusal:
    """The head of a request as both judges of HTTP/1.1 read it."""
    pseudo = dict(each for each in headers if each[0].startswith(b":"))
    host = pseudo.get(b":authority")
    fields = [each for each in headers if not each[0].startswith(b":") and (each[0] != b"host" or host is None)]
    if host is not None:
        fields.insert(0, (b"host", host))
    line = b"%b %b HTTP/1.1\r\n" % (pseudo.get(b":method", b""), pseudo.get(b":path", b""))
    head = parse_head(line + b"".join(b"%b: %b\r\n" % each for each in fields) + b"\r\n")
    if isinstance(head, RequestHead) and head.headers != [(name, value.strip(b" \t")) for name, value in fields]:
        return INVALID
    return head
