"""HTTP/1.1 server for an ASGI app on a TCP or Unix socket, hardened against hostile clients, and fast: the default one.

The task of a connection reads a head, runs the app, and writes the answer; there is no task, channel or timer for a
request. `receive` reads from the socket itself, in whichever task calls it, so an app that asks is told at once that
its client left, and one that does not ask costs nothing. Heads are read by request_head.py, bodies in chunks by
chunked.py; the app decides about access. There is no way to HTTP/2, WebSocket or another protocol.

Guarantees:
  - no write takes longer than `write_timeout`, and none is shielded from cancellation; an unfinished write breaks its
    connection, so half a message is never followed by another one;
  - the end of a connection reaches `receive` even while a pipelined request waits;
  - an app may respond without reading the body;
  - every request, and every read, lets other tasks run.

An answer of known length is written when its first bytes are known: a short one is one write. The head of any other
answer is written at once. The task of a request continues when its client leaves: the app finds `http.disconnect` in
`receive`, and what it still sends is dropped. A client that closes only its sending half counts as gone, but still gets
what is sent.
"""

from __future__ import annotations

import logging
import math
import random
import socket
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any

import trio

from .acceptor import (
    DEFAULT_LIMITS,
    GRACE,
    LAST_REQUEST,
    LINGER,
    MANY_CONNECTIONS,
    RESUME_SPREAD,
    ListenerLimits,
)
from .asgi import FINDINGS, IMMEDIATE, REPEAT, ASGIApp, Begin, Begun, Event, Scope
from .buffered_tls import OVERHEAD, BufferedTls
from .certificate import PROTOCOLS, Certificate
from .chunked import BadChunk, ChunkedBody
from .client_socket import CHUNK, ClientSocket, ListenerParts
from .deadlines import CallScope
from .head import MAX_HEAD, OF_CLIENTS, HeadRefusal
from .request_head import INVALID, LONGEST_KNOWN, KnownHead, RequestHead, SharedHeads, find_head, parse_head
from .response import ResponseEncoder, response_head
from .slots import INCOMPLETE_TIMEOUT, MANY_HEADS, Phase

_IDLE, _REQUEST = Phase.IDLE, Phase.REQUEST  # for speed; see RESOURCE in protocol/methods.py
_READ_AHEAD = MAX_HEAD
"""Bytes of the next requests that a connection keeps while one is answered. They are not charged, and a thousand
connections may have them."""
_CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"

_log = logging.getLogger("colonnade.listener")


async def serve_http(
    app: ASGIApp,
    bound: socket.socket,
    *,
    certificate: Certificate | None = None,
    leaving: trio.Event | None = None,
    stop: trio.Event | None = None,
    grace: Callable[[], float] = lambda: GRACE,
    limits: ListenerLimits = DEFAULT_LIMITS,
    heads: SharedHeads | None = None,
    connection: type[ClientSocket] | None = None,
    task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED,
) -> None:
    """Serve `app` until cancelled, or until `stop` is set; see `Acceptor.serve`. ASGI's lifespan is not used.

    Each scope has the extension of `asgi.claim`, by which the app names the owner of its request, and those of
    `asgi.immediate` and `asgi.of_head`. On a Unix socket it also has that of `asgi.examine_sender`. If the app fails
    before it has sent anything, the response is 500.

    Args:
        certificate: serve TLS. Each new connection gets the certificate of then.
        heads: remembers heads for all connections; by default, each remembers its last one.
        connection: serves each connection; by default it speaks HTTP/1.1.
    """
    server = ListenerParts(app, limits, connection or ClientConnection, certificate, heads)
    await server.acceptor.serve(bound, leaving, stop, grace, task_status)


class ClientConnection(ClientSocket):
    """The connection of one client."""

    __slots__ = ("_begun", "_busy", "_in_head", "_known", "_overfull", "_request", "_wakes", "buffer", "calls")

    protocol = PROTOCOLS[0]

    def __init__(self, server: ListenerParts, accepted: socket.socket | None, tls: BufferedTls | None) -> None:
        super().__init__(server, accepted, tls)
        self.buffer = b""
        """Bytes that were received and belong to no head or body yet."""
        self.calls = CallScope(stays=True)
        """The scope of what is done in the task of the connection for its requests."""
        self._request: ServedRequest | None = None
        self._begun: Begun | None = None
        """The work of others for the present request, while the task of the connection waits for its client."""
        self._known: KnownHead | None = None
        self._overfull: trio.Event | None = None
        self._wakes = 0
        """The number of times that a task that reads was to be woken."""
        self._in_head = True
        self._busy = False

    async def run(self) -> None:
        try:
            received = await self.open()
            if received is not None:
                await self.serve(received)
        finally:
            if self._begun is not None:
                self._begun.give_up()
            self.calls.close()
            self._extensions = {}

    async def serve(self, received: bytes) -> None:
        """Serve the requests of the connection, of which these bytes have come."""
        self.buffer = received
        while (head := await self._next_head()) is not None:
            answering = self._answer(head)
            del head  # see `go_on`
            if not await answering:
                break

    # Heads

    async def _next_head(self) -> RequestHead | None:
        """The head of the next request, or None if the connection has ended."""
        searched = 0
        if self.buffer:  # a pipelined request must not keep other tasks from running
            await trio.lowlevel.checkpoint()
        while not self._closed:
            if self.buffer:
                head = self._take_head(searched)
                if isinstance(head, RequestHead):
                    return head
                if head is not None:
                    await self._refuse(head)
                    return None
                searched = len(self.buffer)
                self._wait_for_rest_of_head()
            data = await self.receive()
            if self._request is not None:
                self.buffer += data
                if not await self._go_on(self._request):
                    return None
            elif not data:
                if self.buffer and not self._closed:
                    await self._refuse(INVALID)
                return None
            else:
                self.buffer += data
        return None

    def _take_head(self, searched: int) -> RequestHead | HeadRefusal | None:
        """The head at the start of the buffer, if it is complete, or why it is refused. `searched` bytes of it were
        here before."""
        known = None if self._known is None else self._known.take(self.buffer)
        if known is not None:
            self.buffer = self.buffer[known[1] :]
            return known[0]
        shared = self.server.heads
        size = find_head(self.buffer, searched, OF_CLIENTS if shared is None else shared.limits)
        if not isinstance(size, int):
            return size
        head = self.buffer[:size]
        parsed = parse_head(head) if shared is None else shared.parse(head)
        if isinstance(parsed, RequestHead):
            self.buffer = self.buffer[size:]
            if size <= LONGEST_KNOWN and shared is None:
                self._known = KnownHead(head, parsed)
        return parsed

    def _wait_for_rest_of_head(self) -> None:
        now = trio.current_time()
        slots, deadline = self.server.acceptor.slots, self.deadline
        slots.set_phase(self, Phase.HEAD, now)
        if not self._in_head:
            self._in_head = True
            deadline = now + self.server.acceptor.limits.head_timeout
        if slots.incomplete_heads > MANY_HEADS:
            deadline = min(deadline, now + INCOMPLETE_TIMEOUT)
        self.deadline = deadline

    async def _refuse(self, refusal: HeadRefusal) -> None:
        self._busy = True
        await self.send_refusal(refusal)
        await self._end(whole=False)

    async def send_refusal(self, refusal: HeadRefusal) -> None:
        text = refusal.why.encode() + b"\n"
        lines = [b"content-type: text/plain\r\n", b"content-length: %d\r\n" % len(text)]
        if refusal.status == 426:
            head = response_head(426, [*lines, b"upgrade: HTTP/1.1\r\n"], self.server.date(), b"upgrade, close")
        else:
            head = response_head(refusal.status, lines, self.server.date(), b"close")
        await self.write(head + text)

    # Requests

    async def _answer(self, head: RequestHead) -> bool:
        """Have the app answer a request. False if the connection has ended with it."""
        acceptor = self.server.acceptor
        self._busy, self._deadline = True, math.inf
        acceptor.slots.set_phase(self, _REQUEST, self.server.now())
        try:
            request = self._request = ServedRequest(self, head)
        except BadChunk:
            await self._refuse(INVALID)
            return False
        begin: Begin | None = head.findings.get(REPEAT)
        if begin is not None and self.begin(request, begin):
            return True
        method, path = head.method, head.raw_path
        try:
            await acceptor.app(self._scope(head, request), request.receive, request.send)
            if self._begun is not None:
                return True
            if request.going_on is not None:
                del head, begin
                self._known = None
                going_on, request.going_on = request.going_on(), None
                await going_on
        except Exception:  # noqa: BLE001 - one request's failure is not the connection's
            _log.exception("the app failed on %s %r", method, path)
        finally:
            if self._begun is None:
                request.end()
        return self._may_keep(request) or await self._end_after(request)

    def begin(self, request: ServedRequest, begin: Begin) -> bool:
        """See `asgi.Immediate.repeat`."""
        if not request.is_whole or request._given or self.buffer:
            return False
        self._begun = begin(request, request._content)
        request._given = self._begun is not None
        return request._given

    async def _go_on(self, request: ServedRequest) -> bool:
        """Go on with a request that was begun. False if the connection has ended with it."""
        begun, self._begun = self._begun, None
        try:
            if begun is not None:
                await begun.go_on()
        except Exception:  # noqa: BLE001 - as above
            _log.exception("the app failed on a request that it had begun")
        finally:
            request.end()
        return self._may_keep(request) or await self._end_after(request)

    def end_begun(self, request: ServedRequest, *, in_task: bool) -> None:
        """See `asgi.Immediate`."""
        if not in_task:
            self._begun = None
            request.end()
        if in_task or not self._may_keep(request):
            self.wake_reader()

    def _may_keep(self, request: ServedRequest) -> bool:
        """Whether another request may follow the one that has ended."""
        response = request.response
        if not (response.is_complete and request.keeps_alive) or self.server.acceptor.stopping or self._closed:
            return False
        self._request = None
        self._become_idle()
        return True

    async def _end_after(self, request: ServedRequest) -> bool:
        """End the connection after its last request."""
        self._request, response = None, request.response
        if request.is_refused:
            pass
        elif response.is_unsent:
            await self.write(response_head(500, [b"content-length: 0\r\n"], self.server.date(), b"close"))
        elif response.is_cut:
            self.abort()
        await self._end(whole=request.is_whole)
        return False

    def _scope(self, head: RequestHead, request: ServedRequest) -> Scope:
        return {
            "type": "http",
            "asgi": {"version": "3.0", "spec_version": "2.1"},
            "http_version": head.http_version,
            "method": head.method,
            "scheme": self.scheme,
            "path": head.path,
            "raw_path": head.raw_path,
            "query_string": head.query,
            "root_path": "",
            "headers": head.headers,
            "client": self._client,
            "server": self._here,
            "extensions": {**self._extensions, IMMEDIATE: request, FINDINGS: head.findings},
        }

    def _become_idle(self) -> None:
        acceptor = self.server.acceptor
        now = self.server.now()
        self._busy = False
        self._in_head = bool(self.buffer)
        if self._in_head:
            acceptor.slots.set_phase(self, Phase.HEAD, now)
            self.deadline = now + acceptor.limits.head_timeout
        else:
            acceptor.slots.set_phase(self, _IDLE, now)
            self.deadline = now + acceptor.limits.idle_timeout

    # Reading

    async def receive(self, request: ServedRequest | None = None) -> bytes:
        """The next bytes; b"" at the end of input, or when the connection or the request has ended. Lets other tasks
        run in any case.

        Args:
            request: they are for this request: for its body, or to notice that its client leaves.
        """
        wakes = self._wakes
        while not self._closed and self._wakes == wakes:  # also if a part of a record came at the same time
            try:
                if request is None:
                    size = _READ_AHEAD
                elif request.is_whole:
                    size = _READ_AHEAD - len(self.buffer)
                    if size <= 0:
                        self._overfull = trio.Event()
                        await self._overfull.wait()
                        return b""
                else:
                    size = request.wanted
                await trio.lowlevel.wait_readable(self._fd)
                if request is not None and not request.is_whole:
                    size = min(size, await self.server.portions.acquire(self.unread))
                if request is not None and request.leaves_unread:  # meanwhile
                    return b""
                if self._tls is None:
                    data = self._socket.recv(size)
                else:
                    data = self._socket.recv(size + OVERHEAD)
                    if data and not (data := self.decrypt(self._tls, data)) and not self._tls.has_ended:
                        continue
            except BlockingIOError:
                continue
            except trio.ClosedResourceError:  # also if the request has ended; see `wake_reader`
                return b""
            except OSError:
                self.close()
                return b""
            if not data and len(self.server.acceptor.slots) > MANY_CONNECTIONS:
                await trio.sleep(random.random() * RESUME_SPREAD)
            return data
        await trio.lowlevel.checkpoint()
        return b""

    def wake_reader(self) -> None:
        super().wake_reader()
        self._wakes += 1
        if self._overfull is not None:
            self._overfull.set()

    # Making room

    def waits_for_client(self) -> bool:
        """See `slots.ClosableConnection`."""
        if self._closed:
            return False
        if self._busy:
            return self._request is None or self._request.awaits_body
        return bool(self.buffer) or not self.unread()

    # Ending

    def time_out(self) -> None:
        if self._request is None or not self._request.end_silence():
            self.close()

    def close_if_idle(self) -> None:
        if self._busy:
            return
        if self._in_head or self.unread():
            self.deadline = min(self.deadline, self.server.now() + LAST_REQUEST)
        else:
            self.close()

    async def _end(self, *, whole: bool) -> None:
        """Close the connection. A client that has not finished its request, or sent another one, gets everything that
        was written: closing would reset that away, so its input is read for a moment.

        Args:
            whole: all of the last request has come.
        """
        if self._closed or (whole and not self.buffer and not self.unread()):
            self.close()
            return
        if self.is_writing:  # a task that the app left behind waits for the client to take its bytes
            self.abort()
            return
        self._busy = True
        self.server.acceptor.slots.set_phase(self, Phase.ENDING, trio.current_time())
        try:
            self._socket.shutdown(socket.SHUT_WR)
        except OSError:
            self.close()
        with trio.move_on_after(LINGER):
            while await self.receive():
                pass
        self.close()


class ServedRequest:
    """One request as its app sees it. One task at a time may call `receive`. Implements `asgi.Immediate`."""

    __slots__ = (
        "_chunked",
        "_connection",
        "_content",
        "_findings",
        "_given",
        "_has_left",
        "_is_sending",
        "_is_woken",
        "_later",
        "_left",
        "_reading",
        "_rest",
        "_sign",
        "_silence",
        "_waits_for_continue",
        "going_on",
        "is_ended",
        "is_refused",
        "is_whole",
        "keeps_alive",
        "response",
        "take_scope",
    )

    def __init__(self, connection: ClientConnection, head: RequestHead) -> None:
        self.response = ResponseEncoder(head.method, head.http_version)
        self.is_whole = False
        """All of the request has come."""
        self.is_refused = False
        """Its body was malformed, or ended too early."""
        self.is_ended = False
        self.going_on: Callable[[], Awaitable[None]] | None = None
        """See `asgi.Immediate.go_on`."""
        self.keeps_alive = head.keeps_alive
        """Another request may follow on the connection."""
        self.take_scope = connection.calls.take
        self._connection = connection
        self._findings = head.findings
        self._waits_for_continue = head.expects_continue
        self._chunked = ChunkedBody() if head.length is None else None
        self._left = head.length or 0  # bytes of a body of known length that have not come
        self._content = b""  # content that has come and that the app has not got
        self._given = False  # the app has got the whole body
        self._has_left = False  # nothing more comes from the client
        self._reading = False
        self._rest: Coroutine[Any, Any, None] | None = None
        """Sends the rest of a part of the response."""
        self._later = b""  # parts that follow that rest
        self._is_sending = False  # the client has not taken all of a whole response
        self._silence = math.inf  # seconds without a part after which `_sign` is sent in the present `wait_client`
        self._sign = b""
        self._is_woken = False  # so that the present or next `wait_client` ends
        self._take_body()

    @property
    def wanted(self) -> int:
        """The number of bytes to read at most while the body is not complete: little that follows it is read too."""
        return self._left if self._chunked is None else _READ_AHEAD

    @property
    def awaits_body(self) -> bool:
        """Whether the body is not complete and its response has not begun."""
        return not self.is_whole and not self.response.is_begun

    @property
    def leaves_unread(self) -> bool:
        """Whether what has come is left to the next request, or until a part is sent: OpenSSL may have to answer it,
        which must not come into the middle of the part."""
        return self.is_ended or self._rest is not None

    def end(self) -> None:
        """From now on, nothing is received or sent for this request. Tasks that the app left behind are told so."""
        self.is_ended = self._has_left = True
        if self._rest is not None:  # it was not sent, or was cancelled
            self._rest.close()
        if self._rest is not None or self._is_sending:
            self._connection.abort()
        if self._reading:
            self._connection.wake_reader()

    def repeat(self, begin: Begin) -> bool:
        """See `asgi.Immediate`."""
        self._findings[REPEAT] = begin
        return self._connection.begin(self, begin)

    def end_begun(self, *, in_task: bool = False) -> None:
        """See `asgi.Immediate`."""
        self._connection.end_begun(self, in_task=in_task)

    def take_body(self, limit: int) -> bytes | None:
        """See `asgi.Immediate`."""
        if not self.is_whole or self._given or self.is_ended or len(self._content) > limit:
            return None
        content, self._content, self._given = self._content, b"", True
        return content

    async def receive(self) -> Event:
        """ASGI's `receive`: the body in parts, then `http.disconnect`, again and again."""
        while not self._given and not self._has_left:
            if self._content or self.is_whole:
                content, self._content, self._given = self._content, b"", self.is_whole
                return {"type": "http.request", "body": content, "more_body": not self.is_whole}
            await self._read_body()
        while not self._has_left:
            await self._read()
        return {"type": "http.disconnect"}

    async def _read_body(self) -> None:
        """Receive more of the body. If no more will come, the request is refused, if it still can be."""
        if self._waits_for_continue and not self.response.is_begun:
            self._waits_for_continue = False
            await self._connection.write(_CONTINUE)
        await self._read()
        try:
            self._take_body()
        except BadChunk:
            self._has_left = True
        if self._has_left and not self.response.is_begun and not self.is_ended:
            self.is_refused = True
            await self._connection.send_refusal(INVALID)

    async def _read(self) -> None:
        """Receive more of the body, or of what follows it."""
        self._reading = True
        try:
            data = await self._connection.receive(self)
        finally:
            self._reading = False
        self._connection.buffer += data
        self._has_left = not data or self.is_ended

    def _take_body(self) -> None:
        """Take the content of the body from what was received.

        Raises:
            BadChunk: the body is malformed.
        """
        connection = self._connection
        if self._chunked is not None:
            content, connection.buffer = self._chunked.take(connection.buffer)
            self.is_whole = self._chunked.ended
        else:
            content, connection.buffer = connection.buffer[: self._left], connection.buffer[self._left :]
            self._left -= len(content)
            self.is_whole = not self._left
        self._content += content

    def _ends(self) -> bool:
        """Whether the connection is closed after the response, to make room for others or to stop, or since the request
        leaves it so. The response must tell its client."""
        acceptor = self._connection.server.acceptor
        is_last = acceptor.stopping or not (self.keeps_alive and self.is_whole)
        return is_last or acceptor.slots.ends_after_answer(self._connection)

    def begin_response(
        self, status: int, headers: tuple[tuple[str, str], ...], body: bytes, moves: Callable[[], object]
    ) -> Awaitable[None] | None:
        """See `asgi.Immediate`. Nothing is sent after the end of the request or of its connection."""
        if not self._may_begin():
            return None
        connection, ends = self._connection, not self.keeps_alive
        head, body = self.response.whole(status, headers, body, connection.server.date(), closes=ends)
        is_long = len(body) > CHUNK
        rest = connection.begin_write_of(head, body, moves) if is_long else connection.begin_write(head + body)
        self._is_sending = rest is not None
        return None if rest is None else self._end_sending(rest)

    def pass_on(self, response: bytes, size: int) -> Awaitable[None] | None:
        """See `asgi.Immediate`. Nothing is sent after the end of the request or of its connection."""
        if not self._may_begin():
            return None
        rest = self._connection.begin_write(self.response.passed_on(response, size, closes=not self.keeps_alive))
        self._is_sending = rest is not None
        return None if rest is None else self._end_sending(rest)

    def _may_begin(self) -> bool:
        """Whether a whole response is sent now; then `keeps_alive` is decided."""
        if self.is_ended or self.is_refused:
            return False
        if self.response.is_begun:
            raise RuntimeError("a response was begun already")
        self.keeps_alive = not self._ends()
        return True

    async def _end_sending(self, rest: Awaitable[None]) -> None:
        await rest
        self._is_sending = False

    def go_on(self, serve: Callable[[], Awaitable[None]]) -> None:
        """See `asgi.Immediate`."""
        self.going_on, self._findings = serve, {}

    def send_part(self, body: bytes) -> bool:
        """See `asgi.Immediate`. Nothing is sent after the end of the request or of its connection."""
        if self.is_ended or self.is_refused:
            return True
        connection, data = self._connection, self.response.part(body)
        if self._rest is not None:  # of the sign, of which the app does not know
            self._later += data
            self.wake()
            return False
        self._rest = rest = connection.begin_write(data)
        if rest is not None:
            self.wake()
        connection._deadline = connection.server.now() + self._silence  # later than it was, which needs no alarm
        return rest is None

    async def wait_client(self, seconds: float, sign: bytes) -> bool:
        """See `asgi.Immediate`."""
        if self._rest is not None:
            await self._send_rest()
            return True
        self._silence, self._sign = seconds, sign
        self._set_alarm()
        try:
            while not (self._is_woken or self._has_left):
                await self._read()
                self._drop_body()
        finally:
            self._silence = math.inf
            self._set_alarm()
            is_woken, self._is_woken = self._is_woken, False
        if is_woken:
            self._has_left = self.is_ended
        return is_woken

    def _drop_body(self) -> None:
        """Drop what came of a body that the app does not read: a client may send without end."""
        if self.is_whole:
            return
        try:
            self._take_body()
        except BadChunk:
            self._has_left, self._is_woken = True, False
        self._content = b""

    async def _send_rest(self) -> None:
        assert self._rest is not None
        await self._rest
        while self._later:
            data, self._later = self._later, b""
            await self._connection.write(data)
        self._rest = None

    def _set_alarm(self) -> None:
        self._connection.deadline = self._connection.server.now() + self._silence

    def wake(self) -> None:
        """See `asgi.Immediate`."""
        self._is_woken = True
        if self._reading:
            self._connection.wake_reader()

    def end_silence(self) -> bool:
        """Send the sign of an app that waits, and has sent nothing for as long as it said. False if none waits."""
        if self._silence == math.inf:
            return False
        if self._rest is None:
            self.send_part(self._sign)
        self._set_alarm()
        return True

    async def send(self, event: Event) -> None:
        """ASGI's `send`. Nothing is sent after the end of the request or of its connection."""
        # The only place where an app that only sends is cancelled: no write has begun, so nothing breaks.
        await trio.lowlevel.checkpoint_if_cancelled()
        if self._rest is not None:
            await self._send_rest()
        kind, response, connection = event["type"], self.response, self._connection
        if self.is_ended or self.is_refused:
            await trio.lowlevel.checkpoint()
        elif kind == "http.response.body" and response.is_begun and not response.is_complete:
            more = event.get("more_body", False)
            data = response.add(event.get("body", b""), more=more)
            if data:
                await connection.write(data)
            if more:  # so that an app that sends on and on lets other tasks run
                await trio.lowlevel.cancel_shielded_checkpoint()
        elif kind == "http.response.start" and not response.is_begun:
            date = connection.server.date()
            data = response.begin(event["status"], event["headers"], date, closes=self._ends())
            self.keeps_alive = not response.closes
            if data:
                await connection.write(data)
        else:
            raise RuntimeError(f"{kind} at the wrong moment")
