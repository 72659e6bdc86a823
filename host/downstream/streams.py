"""How an answer leaves over HTTP: as one JSON body, or as an event stream if anything came before it.

Which of the two is decided at the first byte, not before: the answer alone goes out as JSON; progress, or a sign of
life while a call takes long, opens the stream. Until then a reply costs no task.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping

import trio

from host.jsonrpc.messages import Failure, Notification, Success, write
from host.jsonrpc.raw import one_line
from host.wire.asgi import Send
from host.wire.sse import comment, event

HEARTBEAT = 15.0
"""Seconds of silence after which a stream gives a sign of life."""
MAX_WAITING = 1000
"""Notifications that wait for a slow reader; beyond that the oldest are dropped."""

STREAM_HEADERS = {
    "content-type": "text/event-stream",
    "cache-control": "no-cache, no-transform",
    "x-accel-buffering": "no",
}


async def start(send: Send, status: int, headers: Mapping[str, str]) -> None:
    raw = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})


async def body(send: Send, data: bytes, *, more: bool) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": more})


async def respond(send: Send, status: int, headers: Mapping[str, str], data: bytes = b"") -> None:
    """One whole HTTP answer."""
    await start(send, status, {**headers, "content-length": str(len(data))})
    await body(send, data, more=False)


class Replies:
    """The replies under way. Its nursery holds a task for each that has become a stream, and one heartbeat for all."""

    def __init__(self, nursery: trio.Nursery) -> None:
        self._nursery = nursery
        self._open: set[Reply] = set()

    def begin(self, send: Send, headers: Mapping[str, str]) -> Reply:
        reply = Reply(send, headers, self._nursery)
        self._open.add(reply)
        return reply

    def end(self, reply: Reply) -> None:
        self._open.discard(reply)

    async def beat(self) -> None:
        """Give every silent reply a sign of life, until cancelled."""
        while True:
            await trio.sleep(HEARTBEAT / 3)
            now = trio.current_time()
            for reply in list(self._open):
                if now - reply.last_sent >= HEARTBEAT:
                    reply.put(comment("working"))


class Reply:
    """The answer to one POST."""

    def __init__(self, send: Send, headers: Mapping[str, str], nursery: trio.Nursery) -> None:
        self._send = send
        self._headers = headers
        self._nursery = nursery
        self._waiting: deque[bytes] = deque()
        self._wake = trio.Event()
        self._streaming = False
        self._ending = False
        self._sent = trio.Event()
        self.last_sent = trio.current_time()

    def tell(self, notice: Notification) -> None:
        """Send a notification before the answer; after it, nothing. Never waits."""
        self.put(event(one_line(write(notice))))

    def put(self, data: bytes) -> None:
        if self._ending:
            return
        if len(self._waiting) >= MAX_WAITING:
            self._waiting.popleft()
        self._waiting.append(data)
        self._wake.set()
        if not self._streaming:
            self._streaming = True
            self._nursery.start_soon(self._stream)

    async def finish(self, answer: Success | Failure | None) -> None:
        """Send the answer and end. None: the client has called the request off and gets nothing more for it."""
        self._ending = True
        if answer is not None and not self._streaming:
            await respond(self._send, 200, {**self._headers, "content-type": "application/json"}, write(answer))
            return
        if answer is not None:
            self._waiting.append(event(one_line(write(answer))))
        self._wake.set()
        if not self._streaming:
            await self._stream()
        await self._sent.wait()

    async def _stream(self) -> None:
        try:
            await start(self._send, 200, {**self._headers, **STREAM_HEADERS})
            while self._waiting or not self._ending:
                await self._wake.wait()
                self._wake = trio.Event()
                while self._waiting:
                    await body(self._send, self._waiting.popleft(), more=True)
                    self.last_sent = trio.current_time()
            await body(self._send, b"", more=False)
        finally:
            self._sent.set()
