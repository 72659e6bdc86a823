"""Streams: many connections between two processes of a fleet as one, so that requests that are in flight together share
system calls, records of TLS and passes of the event loop.

Each stream is a connection of HTTP/1.1, and outlives its requests as such. What all streams send in one pass of the
event loop goes out together before the loop waits. A frame is nine bytes and, with DATA, its content:

    kind (1 byte) │ stream (4 bytes) │ number (4 bytes, big endian): bytes of the content, or of the window

The side that has connected opens streams, numbered from 1, by their first DATA. A side may send WINDOW bytes that the
other has not taken, of each stream. END ends both directions, and its number is how many bytes its sender has taken in
all: a request whose end was not taken was not carried out, such as one that comes as the other side closes an idle
stream, or of a stream that is refused. What breaks these rules ends the connection.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable
from struct import Struct

import trio

from host.wire.http_connection import STREAM_ERRORS, NothingSent
from host.wire.http_errors import WRITE_TIMEOUT

WINDOW = 64 * 1024
"""Bytes of a stream that may be under way, or unread at the other side."""
MOST_QUEUED = 256 * 1024
"""Bytes of frames that wait for the end of a pass, beyond which no more content is added to them."""
WOKEN_AT_ONCE = 2
"""Streams that have their turn in one pass: what they send, and those of the pass before, has room in MOST_QUEUED."""
UNUSED_EXPIRY = 60.0
"""Seconds without a stream after which a connection is not used again. The other side closes it after IDLE_TIMEOUT."""
_HEAD = Struct(">BII")
_SIZE = _HEAD.size
_LAST = 2**32 - 1

DATA, CREDIT, END = range(3)


class BrokenFrames(Exception):
    """The other side does not keep to the rules."""


class Streams:
    """The streams of one connection. `run` must run beside them, and whoever runs it closes the connection after it.

    Args:
        send: sends bytes as `ByteChannel.send` does, or loses them as `ClientSocket.begin_write`, which `receive`
            notices.
        receive: waits for bytes; none at the end.
        accept: takes a stream that the other side opens; False if it is refused. None at the side that opens them.
    """

    def __init__(
        self,
        send: Callable[[bytes], Awaitable[None] | None],
        receive: Callable[[], Awaitable[bytes]],
        accept: Callable[[MemberStream], bool] | None = None,
    ) -> None:
        self._send = send
        self._receive = receive
        self._accept = accept
        self._open: dict[int, MemberStream] = {}
        self._last = 0
        """The number of the stream that was opened last."""
        self._queued: list[bytes] = []
        self._size = 0
        self._unsent: Awaitable[None] | None = None
        """Sends what the connection has not taken of what was sent last."""
        self._failure: Exception | None = None
        """The reason why nothing more can be sent."""
        self._is_last = False
        """Whether the connection ends once what is queued was sent."""
        self.held_back: deque[MemberStream] = deque()
        """The streams that wait until content may be sent, in the order of their turns."""
        self._may_go_on = trio.Event()
        self._passes = _passes_of_run()
        self._now = trio.lowlevel.current_clock().current_time
        self._unused_since = self._now()
        self.is_over = False

    def __len__(self) -> int:
        return len(self._open)

    @property
    def is_usable(self) -> bool:
        """Whether the other side still takes new streams: it closes a connection that has had none for a while."""
        is_kept = bool(self._open) or self._now() < self._unused_since + UNUSED_EXPIRY
        return is_kept and not self.is_over and self._last < _LAST

    def open(self) -> MemberStream:
        """A new stream, of which the other side learns by what is sent over it."""
        return MemberStream(self)

    def number(self, stream: MemberStream) -> None:
        """Give a stream the next number as it sends its first bytes: those must come in the order of their numbers."""
        self._last = stream.id = self._last + 1
        self._open[self._last] = stream

    async def run(self, received: bytes = b"") -> None:
        """Serve until the connection ends, or breaks the rules. All streams have ended then.

        Args:
            received: bytes that have come already.
        """
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._send_rest, nursery.cancel_scope)
                try:
                    while True:
                        received = self._take(received)
                        if not (more := await self._receive()):
                            break
                        received = received + more if received else more
                finally:
                    self._end()
                nursery.cancel_scope.cancel()
        except* (*STREAM_ERRORS, trio.TooSlowError, NothingSent, BrokenFrames):
            pass

    def _end(self) -> None:
        """End all streams, in one step: none is left that waits for a connection without a reader."""
        self.is_over = True
        queued, self._queued = self._queued, []
        # The end of a request of which a part is queued still has reached nobody.
        unsent = {id for kind, id, _ in map(_HEAD.unpack_from, queued) if kind == DATA}
        for stream in (*self._open.values(), *self.held_back):
            stream.end(was_refused=stream.id in unsent)

    # Receiving

    def _take(self, received: bytes) -> bytes:
        """Take all whole frames. Returns what is left.

        Raises:
            BrokenFrames: one is against the rules.
        """
        at, end = 0, len(received)
        while end - at >= _SIZE:
            kind, id, number = _HEAD.unpack_from(received, at)
            begin = at + _SIZE
            if kind == DATA:
                if number > WINDOW:
                    raise BrokenFrames
                if begin + number > end:
                    break
                at = begin + number
                stream = self._open.get(id) or self._opened(id)
                if stream is not None:
                    stream.add(received[begin:at])
            else:
                at = begin
                self._control(kind, id, number)
        return received[at:]

    def _opened(self, id: int) -> MemberStream | None:
        """A stream that begins with this number; None if it has ended here already, or is refused."""
        if id == 0 or id > self._last + (self._accept is not None):
            raise BrokenFrames
        if id <= self._last:
            return None
        assert self._accept is not None, "as above"
        stream = self.open()
        self.number(stream)
        if self._accept(stream):
            return stream
        if self._size > MOST_QUEUED:  # it opens streams, and reads no answer
            raise BrokenFrames
        self.forget(stream)
        return None

    def _control(self, kind: int, id: int, number: int) -> None:
        if kind > END or id > self._last:
            raise BrokenFrames
        stream = self._open.get(id)
        if stream is None:
            return
        if kind == CREDIT:
            stream.add_credit(number)
        else:
            self._remove(id)
            stream.end(was_refused=number != stream.sent & _LAST)

    # Sending

    @property
    def is_blocked(self) -> bool:
        """Whether no content is to be sent now."""
        return self._unsent is not None or self._size > MOST_QUEUED

    def queue(self, kind: int, id: int, number: int, content: bytes | memoryview = b"") -> None:
        """Send a frame before the event loop waits."""
        if not self._queued:
            self._passes.due.append(self)
        self._queued.append(_HEAD.pack(kind, id, number) + content)
        self._size += _SIZE + len(content)

    def flush(self) -> bool:
        """Send what is queued. False if tasks are to go on after it, or were woken by it."""
        if self._unsent is not None or not self._queued:
            return True
        is_much, queued = self.is_blocked, self._queued
        self._queued, self._size = [], 0
        try:
            self._unsent = self._send(b"".join(queued))
        except Exception as problem:  # noqa: BLE001 - trio drops an instrument that raises: nothing would be sent again
            self._queued, self._failure = queued, problem
        ends = self._failure is not None or self._is_last or self.is_over  # by `_send`
        if is_much or ends or self._unsent is not None:
            self._may_go_on.set()
            return False
        return True

    async def _send_rest(self, scope: trio.CancelScope) -> None:
        while True:
            await self._may_go_on.wait()
            self._may_go_on = trio.Event()
            if self._failure is not None:
                raise self._failure
            if self._unsent is not None:
                await self._unsent
                self._unsent = None
            if self._queued:
                self._passes.due.append(self)
            elif self._is_last:
                scope.cancel()
            # In turns, since each has so many seconds for what it sends: of all that are woken at once, some would come
            # too late again and again.
            while self.held_back and not self.is_blocked:
                for _ in range(min(len(self.held_back), WOKEN_AT_ONCE)):
                    stream = self.held_back.popleft()
                    stream.was_called = True
                    stream.may_send.wake()
                await trio.lowlevel.checkpoint()

    def finish(self) -> None:
        """End the connection once the other side has taken what is queued."""
        self._is_last = True
        self._may_go_on.set()

    def close(self) -> None:
        """Send what can be sent at once of what is queued, and nothing after it."""
        if not self.is_over:
            self.is_over = True
            self.flush()

    def forget(self, stream: MemberStream) -> None:
        """End a stream, and tell the other side."""
        if self._remove(stream.id) and not self.is_over:
            self.queue(END, stream.id, stream.taken & _LAST)

    def _remove(self, id: int) -> bool:
        was_open = self._open.pop(id, None) is not None
        if was_open and not self._open:
            self._unused_since = self._now()
        return was_open


class MemberStream:
    """One stream. Implements `http_connection.ByteChannel`. One task at a time may wait for each of `may_receive` and
    `may_send`.

    Attributes:
        received: what has come and was not taken.
        was_called: it is its turn to send.
        was_refused: the other side has not taken the end of what was sent.
        has_ended: nothing more comes than what is there.
    """

    __slots__ = (
        "_credit", "_given", "_got", "_streams", "_taken", "has_ended", "id", "is_closed", "may_receive", "may_send",
        "on_data", "received", "was_called", "was_refused",
    )  # fmt: skip

    def __init__(self, streams: Streams) -> None:
        self.id = 0
        self.may_receive, self.may_send = _Wait(), _Wait()
        self.on_data: Callable[[bytes], bool] | None = None
        """Takes what comes, if it likes it, before it is kept for `receive`."""
        self.was_called = self.was_refused = self.has_ended = self.is_closed = False
        self._streams = streams
        self.received = b""
        self._credit = WINDOW
        self._got = 0
        """All that was added to the window."""
        self._taken = 0
        """Bytes that were taken and that the other side may not send anew yet."""
        self._given = 0
        """Bytes that were taken and that it may send anew."""

    # Receiving

    @property
    def taken(self) -> int:
        """Bytes that were taken in all."""
        return self._given + self._taken

    def add(self, content: bytes) -> None:
        """Add what has come from the other side.

        Raises:
            BrokenFrames: it is more than it may send.
        """
        if len(self.received) + len(content) + self._taken > WINDOW:
            raise BrokenFrames
        if self.on_data is not None and not self.received and self.on_data(content):
            self._taken += len(content)
            if self._taken >= WINDOW // 2:
                self._give_credit()
            return
        self.received += content
        self.may_receive.wake()

    def take(self) -> bytes:
        """All that has come; none if nothing has."""
        received, self.received = self.received, b""
        self._taken += len(received)
        if self._taken >= WINDOW // 2:
            self._give_credit()
        return received

    def _give_credit(self) -> None:
        if not self.has_ended:
            self._streams.queue(CREDIT, self.id, self._taken)
            self._given += self._taken
            self._taken = 0

    async def receive(self, *, at_once: bool = False) -> bytes:
        """See `ByteChannel`; raises NothingSent too, if the other side has not taken the end of what was sent."""
        if self.received and not at_once:
            await trio.lowlevel.checkpoint()
        while not self.received:
            if self.is_closed:
                raise trio.ClosedResourceError
            if self.was_refused:
                raise NothingSent
            if self.has_ended or self._streams.is_over:  # one of which nothing was sent is not ended
                await trio.lowlevel.checkpoint()
                return b""
            await self.may_receive.wait()
        return self.take()

    # Sending

    @property
    def sent(self) -> int:
        """Bytes that were sent in all."""
        return self._got + WINDOW - self._credit

    def write(self, data: bytes | memoryview) -> int:
        """Send as much as may be sent now. Returns how much that is; -1 if the stream has ended."""
        if self.has_ended or self._streams.is_over:
            return -1
        size = min(len(data), self._credit) if self._has_turn else 0
        if size:
            self.was_called = False
            if not self.id:
                self._streams.number(self)
            self._credit -= size
            self._streams.queue(DATA, self.id, size, data[:size])
        return size

    @property
    def _has_turn(self) -> bool:
        """Whether it may send something now, as far as its window permits."""
        streams = self._streams  # as `is_blocked`, without a call
        return not streams._unsent and streams._size <= MOST_QUEUED and (self.was_called or not streams.held_back)

    def send_whole(self, data: bytes) -> bool:
        """Send all of the data over a stream that was used before, or nothing if it cannot be sent now."""
        streams = self._streams  # as `is_blocked`, without a call
        if not self.id or self.has_ended or len(data) > self._credit or streams._unsent or streams._size > MOST_QUEUED:
            return False
        self._credit -= len(data)
        streams.queue(DATA, self.id, len(data), data)
        return True

    def send(self, data: bytes, more: bytes = b"") -> Awaitable[None] | None:
        """See `ByteChannel`."""
        if (sent := self.write(data)) < 0:
            raise NothingSent
        return None if sent == len(data) and not more else self._send_rest(data, more, sent)

    async def _send_rest(self, data: bytes, more: bytes, sent: int) -> None:
        for part in (data, more):
            rest = memoryview(part)[sent:]
            sent = 0
            while rest:
                if (size := self.write(rest)) < 0:
                    raise trio.BrokenResourceError if self.id else NothingSent
                rest = rest[size:]
                if not size:
                    with trio.fail_after(WRITE_TIMEOUT):
                        await self.wait_writable()

    async def wait_writable(self) -> None:
        """Wait until something may be sent, or the stream has ended."""
        if self.has_ended or (self._credit and self._has_turn):
            await trio.lowlevel.checkpoint()
            return
        if self._credit:
            self._streams.held_back.append(self)
        await self.may_send.wait()

    def is_quiet(self) -> bool:
        """See `ByteChannel`."""
        return not (self.has_ended or self.received)

    # Its end

    def add_credit(self, size: int) -> None:
        self._credit += size
        self._got += size
        if self._credit > WINDOW:
            raise BrokenFrames
        self.may_send.wake()

    def end(self, *, was_refused: bool = False) -> None:
        """Nothing more comes, and nothing more is sent. Whoever waits for it is told so."""
        self.was_refused, self.has_ended = was_refused, True
        if self.on_data is not None:
            self.on_data(b"")
        self.may_receive.wake()
        self.may_send.wake()

    def close(self) -> None:
        """See `ByteChannel`."""
        if not self.is_closed:
            self.is_closed = True
            self._streams.forget(self)
            self.end()


class _Wait:
    """The wait of one task for another."""

    __slots__ = ("_is_in_vain", "_task")

    def __init__(self) -> None:
        self._task: trio.lowlevel.Task | None = None
        self._is_in_vain = False

    async def wait(self) -> bool:
        """Whether what was waited for may have come."""
        self._is_in_vain = False
        self._task = trio.lowlevel.current_task()
        await trio.lowlevel.wait_task_rescheduled(self._abort)
        return not self._is_in_vain

    def wake(self, *, in_vain: bool = False) -> None:
        # A task that was woken twice before it runs finds both reasons.
        task, self._task, self._is_in_vain = self._task, None, self._is_in_vain or in_vain
        if task is not None:
            trio.lowlevel.reschedule(task)

    def _abort(self, raise_cancel: object) -> trio.lowlevel.Abort:
        self._task = None
        return trio.lowlevel.Abort.SUCCEEDED


class _Passes(trio.abc.Instrument):
    """Flushes what tasks have queued in a pass of the event loop, before the loop waits."""

    def __init__(self) -> None:
        self.due: list[Streams] = []
        self._token = trio.lowlevel.current_trio_token()

    def before_io_wait(self, timeout: float) -> None:
        if not self.due:
            return
        due, self.due = self.due, []
        # The loop knows already how long it waits: tasks that are woken here would wait as long.
        is_awake = False
        for each in due:
            is_awake = not each.flush() or is_awake
        if is_awake:
            self._token.run_sync_soon(lambda: None)


_PASSES: trio.lowlevel.RunVar[_Passes] = trio.lowlevel.RunVar("passes with streams")


def _passes_of_run() -> _Passes:
    try:
        return _PASSES.get()
    except LookupError:
        passes = _Passes()
        _PASSES.set(passes)
        trio.lowlevel.add_instrument(passes)
        return passes
