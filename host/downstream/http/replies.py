"""Replies over HTTP: one JSON body, or an event stream if other messages come before the answer.

The form is decided at the first byte: an answer alone is sent as JSON; progress, or a call that takes longer than a
moment, opens the stream. Until then a reply has no task.

A stream outlives its connection. Its events carry ids and are kept for a while, so that a client whose connection broke
can resume it (2025-11-25, "Resumability and Redelivery"); the newest reader replaces the former one.
"""

from __future__ import annotations

import base64
import math
import secrets
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import islice

import msgspec
import trio
from msgspec import Struct

from host.downstream.charge import answer_too_large
from host.downstream.http.request import JSON, HttpRequest
from host.jsonrpc.messages import Failure, Id, Notification, Request, Success, write
from host.memory import Budget, OverBudget, Owner, Use
from host.wire.asgi import (
    CHUNK,
    HEARTBEAT_INTERVAL,
    NO_HEADERS,
    Immediate,
    Send,
    send_body,
    start_response,
    until_disconnect,
    wait_disconnected,
)
from host.wire.deadlines import CallScope
from host.wire.sse import format_comment, format_event, format_numbered, format_priming

STREAM_DELAY = 0.5
"""Seconds of silence after which a reply becomes a stream, and can be resumed from then on."""
STREAM_DEADLINE = 10.0
"""Seconds of silence after which a reply becomes a stream that cannot be resumed. As late as a first byte may come:
until then an error can still have an HTTP status of its own."""
RETRY = 1000
"""Milliseconds after which a client should reconnect to a broken stream."""
STANDING_RETRY = 5000
"""The same for a standing stream. The official SDKs try once or twice, and never again (mcp 2.3.0 for Python,
MAX_RECONNECTION_ATTEMPTS; @modelcontextprotocol/sdk for TypeScript, maxRetries): a host that starts again needs longer
than one second to be there."""
KEEP_FINISHED = 300.0
"""Seconds for which a finished stream can be resumed."""
MAX_KEPT = 1024 * 1024
"""Bytes that one stream keeps at most, dropping its oldest events; and that the finished streams of one session keep
together, dropping the oldest streams."""
MAX_FINISHED = 100
"""Finished streams that one session keeps at most."""
MAX_SHARED = 1024
"""Bytes of an event that is made once for all streams."""

_HEARTBEAT = format_comment("working")

STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}
"""By the last two, proxies that would compress the events, and nginx, pass each of them on at once."""


async def send_answer(
    http_request: HttpRequest, headers: Mapping[str, str], answer: Success | Failure, status: int = 200
) -> None:
    """Send one answer as the whole body. If there is no memory for it, an error replaces it. A client that does not
    read it is disconnected when its memory is needed elsewhere."""
    data = write(answer)
    try:
        http_request.charge.set_answer_size(len(data))
    except OverBudget:
        data = write(answer_too_large(answer.id, len(data)))
    del answer  # the answer holds the server's buffer
    rest = http_request.begin_response(status, {**headers, **JSON}, data)
    if rest is not None:
        with http_request.charge.droppable():
            await rest


_ids: msgspec.json.Decoder[Id] = msgspec.json.Decoder(Id)


class _IdleReader:
    """A reader that waits for the next event. `sending`: number and size of an event of which it has taken a part."""

    __slots__ = ("listener", "sending")

    def __init__(self, listener: Immediate) -> None:
        self.listener = listener
        self.sending: tuple[int, int] | None = None


class EventStream:
    """The events of one reply, numbered from 0. `name` is None if the client's revision has no resuming: such a stream
    has one reader, and drops events once they are read.

    `size`: bytes kept; `unread`: those among them that the present or next reader has not taken yet. An event is
    charged while it is kept, and until the last reader that takes it has all of it.

    Args:
        memory, owner: what the events are charged to, until `close`.
    """

    def __init__(self, name: str | None, memory: Budget, owner: Owner, *, primes: bool, retry: int = RETRY) -> None:
        self.size = 0
        self._held = memory.hold(owner, Use.STREAMS, drop=self._drop_for_memory)
        self._primed = primes and name is not None
        self._pouring: set[trio.CancelScope] = set()
        self._in_flight: dict[int, int] = {}  # number of an event -> readers that are taking it
        self._closed = False
        self.unread = 0
        self.ended_at: float | None = None
        self._mark = None if name is None else f"{name}-".encode()
        """The beginning of the ids of events; None if they have none."""
        self._events: list[bytes] = []  # no deque: most are empty, and that takes 0.7 KB
        self._first = 0
        self._at = 0
        self._moved = trio.lowlevel.ParkingLot()
        self._readers = 0
        self._idle_reader: _IdleReader | None = None
        """The reader, if it has every event and takes the next one at once."""
        if self._primed:
            self._keep(format_priming(f"{name}-0", retry))
            self.unread = self.size

    def add(self, data: bytes) -> None:
        """Add one message.

        Raises:
            OverBudget: there is no memory for it.
        """
        number = self._first + len(self._events)
        self._add(_event(data, self._mark, number), number)

    def _add(self, event: bytes, number: int) -> None:
        idle, size = self._idle_reader, len(event)
        if idle is None or size > CHUNK:
            self._held.grow(size)
            self._keep(event)
            self.unread += size
            self.wake()
            return
        if self._mark is None:  # nobody else will take it
            self._first += 1
        else:
            self._held.grow(size)
            self._keep(event)
        self._at = number + 1
        if not idle.listener.send_part(event):
            self._take_idle(idle, number, size)

    def _take_idle(self, idle: _IdleReader, number: int, size: int) -> None:
        """Have the reader that waited take the rest of an event, which its client has not taken whole."""
        idle.sending, self._idle_reader = (number, size), None
        self._in_flight[number] = self._in_flight.get(number, 0) + 1
        if number < self._first:
            try:
                self._held.grow(size)
            except OverBudget:
                self.discard()

    def _keep(self, written: bytes) -> None:
        self._events.append(written)
        self.size += len(written)
        while self.size > MAX_KEPT and len(self._events) > 1:
            self.forget_one()

    def has_room(self, size: int) -> bool:
        """Whether `size` bytes can be added without dropping unread events."""
        return not self.unread or self.unread + size <= MAX_KEPT

    def enqueue(self, message: Notification | Request) -> bool:
        """Add a message that may be missed; returns False without adding it if the reader is far behind or there is no
        memory."""
        if self.ended_at is not None or self.unread > MAX_KEPT // 2:
            return False
        number = self._first + len(self._events)
        try:
            self._add(_last_event.of(message, self._mark, number), number)
        except OverBudget:
            return False
        return True

    def answer(self, answer: Success | Failure) -> None:
        """Add an answer, or, if there is no memory for it, an error that says so."""
        data = write(answer)
        try:
            self.add(data)
        except OverBudget:
            try:
                self.add(write(answer_too_large(answer.id, len(data))))
            except OverBudget:
                self.discard()  # the client sees the stream break off

    async def wait_activity(self) -> None:
        """Wait until something is added or taken, or `wake` is called."""
        await self._moved.park()

    def wake(self) -> None:
        """Wake the waiters. Until the reader has run, it takes nothing at once: it may have a long event to send."""
        self._moved.unpark_all()
        idle, self._idle_reader = self._idle_reader, None
        if idle is not None:
            idle.listener.wake()

    def end(self) -> None:
        """End the stream, once its reader has every event."""
        self.ended_at = trio.current_time()
        self._mark_idle()
        self.wake()

    def _mark_idle(self) -> None:
        """Mark a finished stream of which the reader has everything: it is kept only in case that it is resumed."""
        self._held.idle = self.ended_at is not None and self.is_read

    @property
    def is_read(self) -> bool:
        """Whether a reader has taken every event whole, as far as is known: a connection may break behind it."""
        return not self.unread and not self._in_flight

    def detach_reader(self) -> None:
        """Detach the present reader; another one will follow."""
        self._readers += 1
        self.wake()

    def reopen(self) -> None:
        """Record that the client has resumed the stream."""
        self.ended_at = None
        self._held.idle = False

    def has_after(self, number: int) -> bool:
        """Whether every event after event `number` is still kept."""
        return self._first - 1 <= number < self._first + len(self._events)

    def forget_one(self) -> None:
        """Drop the oldest event. It stays charged while a reader is taking it."""
        data, number = self._events.pop(0), self._first
        self.size -= len(data)
        self._first += 1
        if self._at < self._first:
            self._at = self._first
            self.unread -= len(data)
        if number not in self._in_flight:
            self._uncharge(number, len(data))

    def _uncharge(self, number: int, size: int) -> None:
        if number or not self._primed:  # a stream can always be begun, so its priming event is not charged
            self._held.grow(-size)

    def forget_read(self) -> None:
        """Drop the events that a reader has taken whole, which only resuming would need."""
        first_needed = min([self._at, *self._in_flight])
        while self._events and self._first < first_needed:
            self.forget_one()

    def discard(self) -> None:
        """Drop all events, and disconnect the readers."""
        while self._events:
            self.forget_one()
        self._in_flight.clear()
        self._held.resize(0)
        for scope in self._pouring:
            scope.cancel("the memory of the stream is needed elsewhere")

    def close(self) -> None:
        """End resuming: from now on the stream is charged only while a client reads it."""
        self._closed = True
        if not self._pouring:
            self._events.clear()
            self._held.release()

    def reader_gone(self) -> None:
        """Record that the reader is gone; one can follow only if the stream can be resumed."""
        if self._mark is None:
            self.close()

    def _drop_for_memory(self) -> None:
        """Release memory: events that are kept for resuming, or else those that the reader does not take."""
        before = self._held.size
        self.forget_read()
        if self._held.size > before // 2:
            self.discard()

    def reader(
        self, http_request: HttpRequest, headers: Mapping[str, str], after: int, comment: str = ""
    ) -> Callable[[], Awaitable[None]]:
        """The function that sends a whole response with these headers: a comment, if it is not empty, and events as
        `write_events` does, until the client leaves at the latest."""
        send, receive, at_once = http_request.send, http_request.receive, http_request.at_once
        headers = {**http_request.cors_headers, **STREAM_HEADERS, **headers}

        async def serve() -> None:
            nonlocal headers
            await start_response(send, 200, headers)
            headers = NO_HEADERS
            if comment:
                await send_body(send, format_comment(comment), more=True)
            if at_once is not None:
                await self.write_events(send, after, at_once)
                return
            async with until_disconnect(receive):
                await self.write_events(send, after)

        return serve

    async def write_events(self, send: Send, after: int, at_once: Immediate | None = None) -> None:
        """Send every event after `after`, and those still to come, until the end of the stream or until another reader
        takes over. After `discard` the reader's response is cut off, so that the client notices.

        Args:
            at_once: ends this too when the client leaves, and takes single events without a wait.
        """
        with trio.CancelScope() as scope:
            self._pouring.add(scope)
            try:
                await self._pour(send, after, at_once)
            finally:
                self._pouring.remove(scope)
                if self._closed:
                    self.close()

    async def _pour(self, send: Send, after: int, at_once: Immediate | None) -> None:
        self.detach_reader()
        turn = self._readers
        self._at = max(after + 1, self._first)
        self.unread = sum(len(each) for each in islice(self._events, self._at - self._first, None))
        while turn == self._readers:
            while turn == self._readers and self._at < self._first + len(self._events):
                with self._taking() as data:
                    last = self.ended_at is not None and self._at == self._first + len(self._events)
                    await send_body(send, data, more=not last, moves=self._held.touch)
                self._mark_idle()
                if last:  # in one write with the end of the response
                    return
            if self.ended_at is not None or turn != self._readers:
                break
            if not await self._wait_moved(send, at_once):
                return
        await send_body(send, b"", more=False)

    async def _wait_moved(self, send: Send, at_once: Immediate | None) -> bool:
        """Wait for something that a reader of all events has to do. False if the client has left."""
        if at_once is None:
            with trio.move_on_after(HEARTBEAT_INTERVAL) as silence:
                await self._moved.park()
            if silence.cancelled_caught:
                await send_body(send, _HEARTBEAT, more=True)
            return True
        await trio.lowlevel.checkpoint_if_cancelled()  # by `discard`: what is added now would follow a gap
        self._idle_reader = idle = _IdleReader(at_once)
        try:
            is_there = await at_once.wait_client(HEARTBEAT_INTERVAL, _HEARTBEAT)
            if idle.sending is not None:  # an event that its client has not taken whole has ended the wait
                await at_once.wait_client(HEARTBEAT_INTERVAL, _HEARTBEAT)
            return is_there
        finally:
            if self._idle_reader is idle:  # it was not woken, and no other one has taken over
                self._idle_reader = None
            if idle.sending is not None:
                self._end_taking(*idle.sending)

    @contextmanager
    def _taking(self) -> Iterator[bytes]:
        """The next event, in flight until the end of the block."""
        number, data = self._at, self._events[self._at - self._first]
        self._at += 1
        self.unread -= len(data)
        self._in_flight[number] = self._in_flight.get(number, 0) + 1
        if self._mark is None:
            self.forget_one()  # it cannot be resumed
        self._moved.unpark_all()
        try:
            yield data
        finally:
            self._end_taking(number, len(data))

    def _end_taking(self, number: int, size: int) -> None:
        if number in self._in_flight:  # not discarded
            self._in_flight[number] -= 1
            if not self._in_flight[number]:
                del self._in_flight[number]
                if number < self._first:
                    self._uncharge(number, size)


def _event(data: bytes, mark: bytes | None, number: int) -> bytes:
    return format_event(data) if mark is None else format_numbered(data, mark, number)


class _LastEvent:
    """The last event that was made of a message for any stream: many streams get the same one in turn. A long event is
    not kept."""

    __slots__ = ("_event", "_mark", "_message", "_number")

    def __init__(self) -> None:
        self._message: Notification | Request | None = None
        self._mark: bytes | None = None
        self._number = 0
        self._event = b""

    def of(self, message: Notification | Request, mark: bytes | None, number: int) -> bytes:
        """The event of this message."""
        if message is not self._message or number != self._number or mark != self._mark:
            event = _event(write(message), mark, number)
            if len(event) > MAX_SHARED:
                return event
            self._message, self._mark, self._number, self._event = message, mark, number, event
        return self._event


_last_event = _LastEvent()


class History:
    """The resumable streams of one session."""

    def __init__(self, memory: Budget, owner: Owner) -> None:
        self._memory = memory
        self._owner = owner
        self._streams: dict[str, EventStream] = {}
        self._last = 0
        self._closed = False

    def __len__(self) -> int:
        return len(self._streams)

    def begin(self, *, resumes: bool, primes: bool, request: Id | None = None, retry: int = RETRY) -> EventStream:
        if not resumes or self._closed:
            return EventStream(None, self._memory, self._owner, primes=False)
        self.sweep()
        self._last += 1
        name = str(self._last) if request is None else f"{self._last}.{_marked(request)}"
        stream = self._streams[name] = EventStream(name, self._memory, self._owner, primes=primes, retry=retry)
        return stream

    def is_unread(self, within: float) -> bool:
        """Whether a stream that ended so many seconds ago at most has something that its client has not taken."""
        since = trio.current_time() - within
        return any((each.ended_at or -math.inf) > since and not each.is_read for each in self._streams.values())

    def begin_elsewhere(self) -> None:
        """Give the streams from now on names that none of another process of the session is likely to have."""
        self._last = secrets.randbelow(10**9)

    def forget(self, stream: EventStream) -> None:
        """Forget a stream that was begun in vain."""
        self._streams = {name: each for name, each in self._streams.items() if each is not stream}
        stream.close()

    def close(self) -> None:
        """End resuming for all streams, because the session is over."""
        self._closed = True
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()

    def resume(self, last_event_id: str) -> tuple[EventStream, int] | None:
        """The stream of an event id, and the number of that event; None if they are not kept (any more)."""
        name, _, number = last_event_id.rpartition("-")
        stream = self._streams.get(name)
        if stream is None or not (number.isascii() and number.isdigit() and len(number) < 10):
            return None
        return (stream, int(number)) if stream.has_after(int(number)) else None

    def sweep(self) -> None:
        """Drop finished streams: expired ones, and the oldest while there are too many or too large ones."""
        now = trio.current_time()
        finished = [(name, stream) for name, stream in self._streams.items() if stream.ended_at is not None]
        size = sum(stream.size for _, stream in finished)
        for left, (name, stream) in zip(range(len(finished), 0, -1), finished, strict=True):
            assert stream.ended_at is not None
            if now - stream.ended_at > KEEP_FINISHED or size > MAX_KEPT or left > MAX_FINISHED:
                size -= stream.size
                self._streams.pop(name).close()


def _marked(request: Id) -> str:
    """The id of a request, as a part of a stream's name."""
    return base64.urlsafe_b64encode(msgspec.json.encode(request)).rstrip(b"=").decode().replace("-", ".")


def request_of_event(event_id: str) -> Id | None:
    """The id of the only request that is answered on the stream of an event; None if there is none. The event need not
    be one of this process, nor be kept."""
    _, _, marked = event_id.rpartition("-")[0].partition(".")
    padded = marked.replace(".", "-") + "=" * (-len(marked) % 4)
    try:
        return _ids.decode(base64.urlsafe_b64decode(padded)) if marked else None
    except (ValueError, msgspec.DecodeError):
        return None


class Replies:
    """The replies in progress. Its nursery holds a task for each that has become a stream, and one clock for all."""

    def __init__(self, nursery: trio.Nursery, crashed: Callable[[Exception], None]) -> None:
        self._nursery = nursery
        self._crashed = crashed
        self._due: dict[Reply, float] = {}
        self._some = trio.Event()
        self._now = trio.lowlevel.current_clock().current_time  # as trio.current_time, which looks the clock up

    def begin(
        self,
        http_request: HttpRequest,
        headers: Mapping[str, str],
        begin_stream: Callable[[], EventStream],
        open_after: float = STREAM_DELAY,
        leaving: CallScope | None = None,
    ) -> Reply:
        """A reply that becomes a stream after so many seconds of silence.

        Args:
            headers: those of the response, beside the ones of every response to this client.
            leaving: cancelled when the client disconnects. It is watched from the first tick of the clock or the first
                message on: most replies are over before that, and need no task.
        """
        reply = Reply(http_request, headers, begin_stream, self.start_soon, leaving)
        if not self._due:
            self._some.set()
        self._due[reply] = self._now() + open_after
        return reply

    def end(self, reply: Reply) -> None:
        """Watch for the client's disconnect no longer, nor for silence."""
        self._due.pop(reply, None)
        reply.leaving = None
        if reply.watching is not None:
            reply.watching.cancel()

    def start_soon(self, work: Callable[[], Awaitable[None]]) -> None:
        """Start a task, whose errors concern nothing else."""
        self._nursery.start_soon(self._guarded, work)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as problem:  # noqa: BLE001 - an error in one reply must not affect any other.
            self._crashed(problem)

    async def run(self) -> None:
        """Turn every reply that was silent for too long into a stream, and watch for disconnects, until cancelled."""
        while True:
            if not self._due:
                self._some = trio.Event()
                await self._some.wait()
            await trio.sleep(STREAM_DELAY / 2)
            now = trio.current_time()
            for reply in self._due:
                reply.watch_client()
            for reply in [reply for reply, due in self._due.items() if due <= now]:
                reply.open()
                del self._due[reply]


class Reply(Struct, eq=False):
    """The answer to one POST."""

    _http_request: HttpRequest
    _headers: Mapping[str, str]
    _begin_stream: Callable[[], EventStream]
    _start_soon: Callable[[Callable[[], Awaitable[None]]], None]
    leaving: CallScope | None = None
    """Cancelled when the client disconnects, once that is watched for; None from then on, and at the end."""
    watching: trio.CancelScope | None = None
    """Scope around the watch for the client's disconnect; None while there is none."""
    _stream: EventStream | None = None
    _pouring: trio.CancelScope = None  # type: ignore[assignment]  # made with the stream, as the next is: few have one
    """Scope around the sending of its stream."""
    _sent: trio.Event = None  # type: ignore[assignment]
    """Set when its stream was sent."""
    _ended: bool = False

    def enqueue(self, message: Notification | Request) -> bool:
        """Send a message before the answer; returns False after the answer. Never waits. A message that would displace
        unread ones is refused, and a server that sent it gets an error."""
        if self._ended:
            return False
        stream, data = self.open(), write(message)
        kept_free = MAX_KEPT // 2 if isinstance(message, Notification) else 0  # the kept half is for server requests
        if not stream.has_room(kept_free + len(data)):
            return False
        try:
            stream.add(data)
        except OverBudget:
            return False
        return True

    async def add(self, answer: Success | Failure) -> None:
        """Add one of several answers of a batch. Waits while the client has much to read."""
        stream, size = self.open(), len(write(answer))
        while not self._sent.is_set() and not stream.has_room(size):
            await stream.wait_activity()
        stream.answer(answer)

    def open(self) -> EventStream:
        """Make the reply a stream, if it is not one yet."""
        if self._stream is None:
            self._stream = self._begin_stream()
            self._pouring, self._sent = trio.CancelScope(), trio.Event()
            self._start_soon(partial(self._write_stream, self._stream))
            self.watch_client()
        return self._stream

    def watch_client(self) -> None:
        """Watch for the client's disconnect from now on."""
        leaving, self.leaving = self.leaving, None
        if leaving is not None:
            self.watching = trio.CancelScope()
            self._start_soon(partial(self._watch, leaving, self.watching))

    async def _watch(self, leaving: CallScope, watching: trio.CancelScope) -> None:
        with watching:
            await wait_disconnected(self._http_request.receive)
            if not watching.cancel_called:  # otherwise the scope is that of the connection's next request by now
                leaving.cancel("the client left")

    def finish(self, answer: Success | Failure | None, status: int = 200) -> Awaitable[None]:
        """Send the answer and end the reply. None: there is no (further) answer, for instance because the client
        cancelled its request. `status` is for an answer without earlier messages. A client that does not read it is
        disconnected when its memory is needed elsewhere."""
        self._ended = True
        if answer is not None and self._stream is None:
            return send_answer(self._http_request, self._headers, answer, status)
        stream = self.open()
        if answer is not None:
            stream.answer(answer)
        stream.end()
        return self._sent.wait()

    def client_gone(self) -> None:
        """Drop everything that the client has not read, since it is gone, and send nothing more."""
        self._ended = True
        if self._stream is not None:
            self._pouring.cancel("its client has left")

    async def _write_stream(self, stream: EventStream) -> None:
        try:
            with self._pouring:
                send, cors_headers = self._http_request.send, self._http_request.cors_headers
                await start_response(send, 200, {**cors_headers, **self._headers, **STREAM_HEADERS})
                await stream.write_events(send, -1)
        finally:
            self._sent.set()
            stream.wake()
            stream.reader_gone()
