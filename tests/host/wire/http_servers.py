"""HTTP servers that a test scripts: on real sockets, byte for byte, and in memory."""

from __future__ import annotations

import inspect
import json
import socket
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field

import httpx
import trio
from msgspec import Raw

from host.jsonrpc.messages import Id, Notification, Request, Success
from host.memory import HoldingFactory, uncharged
from host.url import Url
from host.wire.http_connection import ByteChannel, PlainChannel
from host.wire.http_pool import Pool
from host.wire.http_transport import HttpResponse
from host.wire.link import Parcel
from host.wire.sse import format_event
from host.wire.turns import Turns

SSE = "text/event-stream"
JSON = "application/json"
INITIALIZED = Parcel(Notification("notifications/initialized"))
NOTE = format_event(b'{"jsonrpc":"2.0","method":"notifications/tools/list_changed"}')


def ask(id: Id = 1, method: str = "tools/list") -> Parcel:
    return Parcel(Request(id, method))


def answer(id: Id = 1, result: str = "{}") -> bytes:
    return b'{"jsonrpc":"2.0","id":%s,"result":%s}' % (json.dumps(id).encode(), result.encode())


def success(id: Id = 1, result: str = "{}") -> Success:
    return Success(id, Raw(result.encode()))


async def until(true: Callable[[], object]) -> None:
    """Bytes come through the operating system, and when they do there is no event but the fact itself."""
    with trio.fail_after(5):
        while not true():  # noqa: ASYNC110
            await trio.sleep(0.001)


@dataclass
class Heard:
    """A request that reached a server."""

    method: str
    headers: dict[str, str]
    body: bytes = b""
    target: str = ""


class Wire:
    """The server's end of one connection."""

    def __init__(self, stream: trio.abc.Stream, number: int) -> None:
        self.number = number
        self._stream = stream
        self._buffer = b""

    async def hear(self) -> Heard | None:
        while b"\r\n\r\n" not in self._buffer:
            if not await self._more():
                return None
        head, _, self._buffer = self._buffer.partition(b"\r\n\r\n")
        first, *lines = head.decode().split("\r\n")
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)}
        length = int(headers.get("content-length", "0"))
        while len(self._buffer) < length:
            assert await self._more()
        body, self._buffer = self._buffer[:length], self._buffer[length:]
        method, target, _ = first.split(" ")
        return Heard(method, headers, body, target)

    async def say(self, status: int, body: bytes = b"", kind: str = JSON, **headers: str) -> None:
        lines = [f"HTTP/1.1 {status} X", f"content-length: {len(body)}"]
        lines += [f"content-type: {kind}"] if body else []
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.write("\r\n".join([*lines, "", ""]).encode() + body)

    async def begin(self, **headers: str) -> None:
        lines = ["HTTP/1.1 200 OK", f"content-type: {SSE}", "transfer-encoding: chunked"]
        lines += [f"{name.replace('_', '-')}: {value}" for name, value in headers.items()]
        await self.write("\r\n".join([*lines, "", ""]).encode())

    async def chunk(self, data: bytes) -> None:
        await self.write(b"%x\r\n%s\r\n" % (len(data), data))

    async def end(self) -> None:
        await self.write(b"0\r\n\r\n")

    async def write(self, data: bytes) -> None:
        await self._stream.send_all(data)

    async def wait_closed(self) -> None:
        while await self._more():
            pass

    async def close(self) -> None:
        await self._stream.aclose()

    async def _more(self) -> bool:
        try:
            data = bytes(await self._stream.receive_some(65536))
        except trio.BrokenResourceError:
            return False
        self._buffer += data
        return bool(data)


@asynccontextmanager
async def serving_tcp(serve: Callable[[trio.SocketStream], Awaitable[None]]) -> AsyncIterator[int]:
    """A server on a port of its own."""

    async def guarded(stream: trio.SocketStream) -> None:
        try:
            await serve(stream)
        except (trio.BrokenResourceError, trio.ClosedResourceError):
            return

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, guarded, 0)
        yield listeners[0].socket.getsockname()[1]
        nursery.cancel_scope.cancel()


def tunnelling(
    context: ssl.SSLContext,
    scheme: str,
    asked: list[Heard],
    serve: Callable[[trio.abc.Stream], Awaitable[None]],
) -> Callable[[trio.SocketStream], Awaitable[None]]:
    """A proxy, reached over `scheme`, that notes what it is asked and leads every tunnel to the server `serve`."""

    async def proxy(stream: trio.SocketStream) -> None:
        outer: trio.abc.Stream = stream
        if scheme == "https":
            outer = trio.SSLStream(stream, context, server_side=True, https_compatible=True)
        wire = Wire(outer, 1)
        request = await wire.hear()
        assert request is not None
        asked.append(request)
        await wire.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
        await serve(outer)

    return proxy


Responder = Callable[[httpx.Request], httpx.Response] | Callable[[httpx.Request], Coroutine[None, None, httpx.Response]]


def in_memory(respond: Responder) -> Pool:
    """Connections to a server in memory that answers as `respond` does."""
    return Pool(Turns(), _Memory(respond).connect)


async def answered(response: httpx.Response, hold: HoldingFactory = uncharged) -> HttpResponse:
    """This response, as it comes to the client."""
    response.headers["connection"] = "close"  # a connection of its own, which ends with it
    served = in_memory(lambda _: response)
    return HttpResponse(await served.request("GET", Url.parse("http://example.com/"), [], None), hold=hold)


class _MemoryChannel(PlainChannel):
    broken = False
    """The end of the connection is not one that the server meant."""

    async def receive(self, *, at_once: bool = False) -> bytes:
        data = await super().receive(at_once=at_once)
        if not data and self.broken:
            raise ConnectionResetError
        return data


class _Memory:
    """A server behind pairs of sockets, for which time does not pass by itself."""

    def __init__(self, respond: Responder) -> None:
        self._respond = respond

    async def connect(self, url: Url) -> ByteChannel:
        ours, theirs = socket.socketpair()
        channel = _MemoryChannel(ours)
        stream = trio.SocketStream(trio.socket.from_stdlib_socket(theirs))
        trio.lowlevel.spawn_system_task(self._serve, url, stream, channel)
        return channel

    async def _serve(self, url: Url, stream: trio.SocketStream, channel: _MemoryChannel) -> None:
        wire = Wire(stream, 1)
        async with stream:
            try:
                while (heard := await wire.hear()) is not None:
                    base = f"{url.scheme}://{heard.headers['host']}{heard.target}"
                    request = httpx.Request(heard.method, base, headers=heard.headers, content=heard.body)
                    response = self._respond(request)
                    await self._say(await response if inspect.isawaitable(response) else response, wire)
            except trio.BrokenResourceError:
                return  # the client left
            except httpx.ReadError:
                channel.broken = True

    async def _say(self, response: httpx.Response, wire: Wire) -> None:
        lines = [f"HTTP/1.1 {response.status_code} X"]
        lines += [f"{name}: {value}" for name, value in response.headers.multi_items()]
        chunked = "transfer-encoding" in response.headers
        if not chunked and "content-length" not in response.headers:
            lines.append("content-length: 0")
        await wire.write("\r\n".join([*lines, "", ""]).encode())
        assert isinstance(response.stream, httpx.AsyncByteStream)
        async for piece in response.stream:  # to its end, although nobody may listen any more
            with suppress(trio.BrokenResourceError):
                await (wire.chunk(piece) if chunked else wire.write(piece))
        if chunked:
            await wire.end()


Script = Callable[[Heard, Wire], Awaitable[None]]


@dataclass
class Server:
    url: str = ""
    heard: list[Heard] = field(default_factory=list)
    connections: int = 0

    @property
    def methods(self) -> list[str]:
        return [each.method for each in self.heard]


@asynccontextmanager
async def serving(script: Script) -> AsyncIterator[Server]:
    server = Server()

    async def serve(stream: trio.SocketStream) -> None:
        server.connections += 1
        wire = Wire(stream, server.connections)
        async with stream:
            try:
                while (heard := await wire.hear()) is not None:
                    server.heard.append(heard)
                    await script(heard, wire)
            except (trio.BrokenResourceError, trio.ClosedResourceError):
                return

    async with trio.open_nursery() as nursery:
        listeners = await nursery.start(trio.serve_tcp, serve, 0)
        server.url = f"http://127.0.0.1:{listeners[0].socket.getsockname()[1]}/mcp?key=secret"
        yield server
        nursery.cancel_scope.cancel()


def streaming(*parts: bytes | float, broken: bool = False) -> httpx.Response:
    """A stream of these bytes, with these pauses."""

    async def play() -> AsyncIterator[bytes]:
        for part in parts:
            if isinstance(part, bytes):
                yield part
            else:
                await trio.sleep(part)
        if broken:
            raise httpx.ReadError("10.0.0.1 is gone")

    return httpx.Response(200, headers={"content-type": SSE}, content=play())
