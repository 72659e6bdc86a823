"""The inner listener: what other processes of the fleet send here for a session or call of this process.

It takes streams of one connection from each, and HTTP/1.1 from processes of an earlier version.

It serves the paths of MCP, and nothing else, to processes that show a certificate of the fleet (host/wire/certificate).
A forwarded request proves no more than that it was forwarded: the token of its client is examined again, and so are its
endpoint and its session. Only where its client is, which nobody can tell here, is taken from its header; it is for the
log. What comes in here goes no further: a request for another process is answered with 421 at once. One alone does, in
a session of this process about a task of another one (`Forwarding.of_task`).
"""

from __future__ import annotations

import math
import socket
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

import trio

from host.downstream.http.request import FORWARDED
from host.fleet.streams import MemberStream, Streams
from host.wire.asgi import CLAIM, ASGIApp, Headers, RawHeaders, Receive, Scope, Send, of_head, respond
from host.wire.buffered_tls import BufferedTls
from host.wire.certificate import STREAMS
from host.wire.client_socket import Address, Buffer, ListenerParts
from host.wire.listener import ClientConnection, ServedRequest
from host.wire.slots import Phase

HOP = "colonnade-hop"
"""Header with the id of the process that a forwarded request is for. In an answer with MISDIRECTED: the id of the
process that is here instead."""
CLIENT = "colonnade-client"
"""Header with the IP address of the client of a forwarded request."""
OWN_HEADERS = "colonnade-"
"""Beginning of the headers that processes of a fleet send each other; those of clients are dropped."""
MISDIRECTED = 421
"""RFC 9110, 15.5.20: nothing was done, and the request is for another process."""

_OWN, _HOST = OWN_HEADERS.encode(), b"host"


class _InnerRefusal(NamedTuple):
    """The answer to what is not served here."""

    status: int
    headers: Mapping[str, str]
    why: bytes


def inner_app(serve: ASGIApp, boot: str, paths: Collection[str]) -> ASGIApp:
    """The app of the inner listener of the process `boot`.

    Args:
        paths: those that are served, with what is below them.
    """
    served = tuple((path.encode(), f"{path}/".encode()) for path in paths)

    def examine(scope: Scope) -> _InnerRefusal | tuple[RawHeaders, str]:
        """The headers of the client's request, and its address."""
        headers, path = Headers(scope["headers"]), scope["raw_path"]
        if headers.all(HOP) != [boot]:
            return _InnerRefusal(MISDIRECTED, {HOP: boot}, b"this request is for another process\n")
        if not any(path == base or path.startswith(below) for base, below in served):
            return _InnerRefusal(404, {}, b"this is not served between processes\n")
        # The process that forwarded it has compared the Host with its own addresses, which are not those of this one.
        kept = [each for each in scope["headers"] if each[0] != _HOST and not each[0].startswith(_OWN)]
        return [(_HOST, b"localhost"), *kept], headers.one(CLIENT) or ""

    async def serve_inner(scope: Scope, receive: Receive, send: Send) -> None:
        found = of_head(scope, examine)
        if isinstance(found, _InnerRefusal):
            await respond(send, *found)
            return
        scope["headers"], scope["client"] = found[0], (found[1], 0)
        scope["extensions"][FORWARDED] = True
        await serve(scope, receive, send)

    return serve_inner


class MemberConnection(ClientConnection):
    """The connection of another member: of HTTP/1.1, as an earlier version speaks, or of streams."""

    __slots__ = ("_is_last", "_streams")

    protocol = STREAMS

    def __init__(self, server: ListenerParts, accepted: socket.socket, tls: BufferedTls | None) -> None:
        super().__init__(server, accepted, tls)
        self._streams: Streams | None = None
        self._is_last = False
        """Whether no further stream is accepted."""

    async def serve(self, received: bytes) -> None:
        if self._tls is None or self._tls.protocol != STREAMS:
            await super().serve(received)
            return
        acceptor = self.server.acceptor
        async with trio.open_nursery() as nursery:

            def accept(stream: MemberStream) -> bool:
                if self._is_last or (acceptor.slots.full and not acceptor.slots.make_room(self.server.now())):
                    return False
                self.deadline = math.inf
                acceptor.slots.set_phase(self, Phase.REQUEST, self.server.now())
                acceptor.begin(StreamConnection(self.server, stream, self._client, self.end_of_stream), nursery)
                return True

            self._streams = Streams(self.begin_write, self.receive, accept)
            await self._streams.run(received)
            await self._end(whole=False)  # closing would reset away what the other side has not read

    def end_of_stream(self) -> None:
        """Called after the end of each stream."""
        assert self._streams is not None, "which has had a stream"
        if self._streams:
            return
        if self._is_last:
            self._streams.finish()
        else:  # the other member closes it; one that has vanished does not
            self.deadline = self.server.now() + self.server.acceptor.limits.idle_timeout

    def close(self) -> None:
        if self._streams is not None:
            self._streams.close()
        super().close()

    def waits_for_client(self) -> bool:
        return self._streams is None and super().waits_for_client()

    def close_if_idle(self) -> None:
        if self._streams is None:
            super().close_if_idle()
        else:
            self._is_last = True
            self.end_of_stream()


class StreamConnection(ClientConnection):
    """The connection of HTTP/1.1 that one stream is: the stream is in the place of a socket."""

    __slots__ = ("_on_end", "_stream")

    def __init__(
        self, server: ListenerParts, stream: MemberStream, address: Address, on_end: Callable[[], None]
    ) -> None:
        super().__init__(server, None, None)
        self.scheme, self._client = "https", address
        self._stream, self._on_end = stream, on_end

    async def open(self) -> bytes:
        self._extensions[CLAIM] = self._claim
        await trio.lowlevel.checkpoint()
        return b""

    async def receive(self, request: ServedRequest | None = None) -> bytes:
        stream, is_whole = self._stream, request is not None and request.is_whole  # what comes then is left to the next
        if self._closed or stream.has_ended or (stream.received and not is_whole):
            await trio.lowlevel.checkpoint()
        while not (self._closed or stream.has_ended or (stream.received and not is_whole)):
            if not await stream.may_receive.wait():
                return b""
        return b"" if self._closed or is_whole else stream.take()

    def unread(self) -> int:
        return len(self._stream.received)

    def wake_reader(self) -> None:
        self._stream.may_receive.wake(in_vain=True)

    def _write_now(self, data: Buffer, more: bytes = b"") -> int:
        size = -1 if self._closed else self._stream.write(data)
        if size < 0:
            self.close()
            return len(data) + len(more)
        return size if size < len(data) or not more else size + self._write_now(more)

    async def _wait_writable(self) -> None:
        await self._stream.wait_writable()

    async def _end(self, *, whole: bool) -> None:
        await trio.lowlevel.checkpoint()
        self.close()  # what was sent before arrives

    def abort(self) -> None:
        self.close()

    def close(self) -> None:
        if not self._closed:
            self._closed = True
            self._stream.close()
            self._on_end()
