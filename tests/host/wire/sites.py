"""A listener at a port of its own, its clients, and small apps for it: over real sockets and the real clock, because
the kernel's part in a connection matters.
"""

from __future__ import annotations

import gc
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import trio

from host.wire import listener
from host.wire.acceptor import GRACE, ListenerLimits
from host.wire.asgi import ASGIApp, Receive, Scope, Send
from host.wire.certificate import Certificate
from host.wire.listener import ClientConnection
from host.wire.port import bind

GET = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
BIG = b"x" * 65536
SOON = 10.0
"""Seconds: far below the timeouts that a test must not depend on, far above what a busy machine takes."""


class Site:
    """A listener that serves, and how it is stopped."""

    def __init__(self, port: int, scope: trio.CancelScope) -> None:
        self.port = port
        self.scope = scope
        self.leaving = trio.Event()
        self.stop = trio.Event()
        self.ended = trio.Event()

    async def connect(self) -> trio.SocketStream:
        return await trio.open_tcp_stream("127.0.0.1", self.port)


@asynccontextmanager
async def serving(
    app: ASGIApp,
    serve: Callable[..., Awaitable[None]] = listener.serve_http,
    *,
    certificate: Certificate | None = None,
    grace: float = GRACE,
    **limits: Any,
) -> AsyncIterator[Site]:
    """A listener for the block. The limits are those of `ListenerLimits`."""
    bound = bind("127.0.0.1", 0)
    async with trio.open_nursery() as nursery:
        site = Site(bound.getsockname()[1], nursery.cancel_scope)

        async def run(task_status: trio.TaskStatus[None]) -> None:
            given = ListenerLimits(**limits)
            await serve(
                *(app, bound),
                certificate=certificate,
                leaving=site.leaving,
                stop=site.stop,
                grace=lambda: grace,
                limits=given,
                task_status=task_status,
            )
            site.ended.set()

        await nursery.start(run)
        yield site
        nursery.cancel_scope.cancel()


async def hello(scope: Scope, receive: Receive, send: Send) -> None:
    """Reads the body, answers with its size."""
    size = 0
    while True:
        event = await receive()
        if event["type"] == "http.disconnect":
            return
        size += len(event["body"])
        if not event["more_body"]:
            break
    answer = b"got %4d" % size
    length = str(len(answer)).encode()
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
    await send({"type": "http.response.body", "body": answer})


async def begin(send: Send) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/event-stream")]})


async def part(send: Send, data: bytes) -> None:
    await send({"type": "http.response.body", "body": data, "more_body": True})


async def finish(send: Send, data: bytes = b"done") -> None:
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"4")]})
    await send({"type": "http.response.body", "body": data})


async def until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


async def everything(stream: trio.SocketStream, patience: float = SOON) -> bytes:
    """All that comes until the server closes; a reset ends it as well."""
    received = b""
    with trio.fail_after(patience):
        try:
            while data := await stream.receive_some():
                received += data
        except trio.BrokenResourceError:
            pass
    return received


async def read_to(stream: trio.SocketStream, end: bytes) -> bytes:
    received = b""
    with trio.fail_after(5):
        while end not in received:
            data = await stream.receive_some()
            assert data, received
            received += data
    return received


async def ask(site: Site, request: bytes, patience: float = SOON) -> bytes:
    async with await site.connect() as stream:
        await stream.send_all(request)
        return await everything(stream, patience)


async def lives_on(site: Site) -> None:
    answer = await ask(site, b"POST / HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Length: 5\r\n\r\n12345")
    assert answer.startswith(b"HTTP/1.1 200"), answer
    assert answer.endswith(b"got    5")


def reset(stream: trio.SocketStream) -> None:
    stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    stream.socket.close()


def connections_of() -> dict[int, ClientConnection]:
    """The objects of all connections, also of former tests."""
    return {id(each): each for each in gc.get_objects() if type(each) is ClientConnection}


def connection_beside(others: dict[int, ClientConnection]) -> ClientConnection:
    """The only connection that is none of these."""
    (connection,) = (each for id, each in connections_of().items() if id not in others)
    return connection


def leaves_with_fin(stream: trio.SocketStream) -> None:
    stream.socket.close()


def half_closes(stream: trio.SocketStream) -> None:
    stream.socket.shutdown(socket.SHUT_WR)


class Flood:
    """An app that sends until it is stuck, and says so."""

    def __init__(self) -> None:
        self.sent = 0
        self.gone = trio.Event()
        self.ended = trio.Event()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] != "/flood":
            await hello(scope, receive, send)
            return
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._watch, receive, nursery.cancel_scope)
                await begin(send)
                while True:
                    await part(send, BIG)
                    self.sent += 1
        finally:
            self.ended.set()

    async def _watch(self, receive: Receive, scope: trio.CancelScope) -> None:
        await until_gone(receive)
        self.gone.set()
        scope.cancel()

    async def stuck(self) -> None:
        """Wait until no more goes into the buffers of the kernel."""
        with trio.fail_after(5):
            sent = -1
            while sent < self.sent:
                sent = self.sent
                await trio.sleep(0.1)  # the kernel moves bytes between two sockets in its own time


FLOOD = b"GET /flood HTTP/1.1\r\nHost: localhost\r\n\r\n"


def get(target: str) -> bytes:
    return f"GET {target} HTTP/1.1\r\nHost: a\r\n\r\n".encode()


@asynccontextmanager
async def clients(site: Site) -> AsyncIterator[Callable[..., Awaitable[trio.SocketStream]]]:
    """Opens connections, and closes them at the end of the block. What one sends is answered before it is given."""
    async with AsyncExitStack() as stack:

        async def connect(request: bytes = b"", answer: bytes = b"got    0") -> trio.SocketStream:
            stream = await stack.enter_async_context(await site.connect())
            if request:
                await stream.send_all(request)
                await read_to(stream, answer)
            return stream

        yield connect
