"""One HTTP/1.1 connection to a server: a request is sent in one piece, and the pieces of its response are read.

A plain connection uses its socket directly, first without waiting: trio's own `send` and `recv` cost a pass of the
event loop each. TLS is trio's. What a server sends is handled in fair turns (`turns`): a feed of the parser has at most
LINE_ENDS line ends, which measure the work well, because heads, chunks and events consist of lines.
"""

from __future__ import annotations

import re
import select
import socket
from collections.abc import Awaitable
from typing import Protocol

import trio

from host.wire.http_errors import CONNECTION_BROKE, NOT_HTTP, READS_NOTHING, TOO_MANY_INTERIM, WRITE_TIMEOUT, Broken
from host.wire.http_parser import BadResponse, ResponseParser, TooManyInterim
from host.wire.turns import Turn

LINE_ENDS = 128
"""Line ends in the bytes that are handled in one piece: 32 chunks, or two heads."""
LIGHT = 1024
"""Bytes of which the line ends are not counted."""
MAX_READ = 128 * 1024
"""Bytes of one read: a body of a hundred kibibytes mostly comes with its head, and then it is copied once."""
MAX_WRITE = 64 * 1024
"""Bytes for which a server has WRITE_TIMEOUT: a long request may take as long as its caller waits."""
STREAM_ERRORS = (OSError, trio.BrokenResourceError, trio.ClosedResourceError)

_HEAD = re.compile(rb"(?:[^\r\n]++\r\n){1,%d}+\r\n" % (LINE_ENDS // 2 - 1))
_LINES = re.compile(rb"(?:[^\r\n]*+[\r\n]){1,%d}+" % LINE_ENDS)


class NothingSent(Exception):
    """The connection is closed, and took nothing of what was to be sent."""


class ByteChannel(Protocol):
    """Bytes to and from one server. Its errors are STREAM_ERRORS."""

    def send(self, data: bytes, more: bytes = b"") -> Awaitable[None] | None:
        """Send all of the data, and what is `more` without a copy of it. None if that is done; otherwise await what is
        returned.

        Raises, here or then:
            NothingSent: the connection is closed. Also `receive` may say so.
            trio.TooSlowError: the server did not read it in time.
        """

    async def receive(self, *, at_once: bool = False) -> bytes:
        """Wait for bytes; none at the end.

        Args:
            at_once: they are likely to be there: if so, this does not wait.
        """

    def is_quiet(self) -> bool:
        """Whether an unused connection is still open, and the server has sent nothing."""

    def close(self) -> None:
        """Close at once, without waiting."""


class PlainChannel:
    """A channel over a socket, which it owns."""

    def __init__(self, sock: socket.socket) -> None:
        sock.setblocking(False)
        self._socket, self._fd = sock, sock.fileno()
        self._look = select.poll()  # cheaper than a read that finds nothing, which raises an exception
        self._look.register(sock, select.POLLIN)
        self._is_closed = False

    def send(self, data: bytes, more: bytes = b"") -> Awaitable[None] | None:
        try:
            sent = self._socket.sendmsg((data, more)) if more else self._socket.send(data)
        except BlockingIOError:
            sent = 0
        except OSError as problem:
            raise NothingSent from problem
        return None if sent == len(data) + len(more) else self._send_rest(data, more, sent)

    async def _send_rest(self, data: bytes, more: bytes, sent: int) -> None:
        for part in (data, more):
            rest = memoryview(part)[sent:]
            sent = max(sent - len(part), 0)
            while rest:
                with trio.fail_after(WRITE_TIMEOUT):
                    await trio.lowlevel.wait_writable(self._socket)
                try:
                    rest = rest[self._socket.send(rest) :]
                except BlockingIOError:
                    continue

    async def receive(self, *, at_once: bool = False) -> bytes:
        while True:
            if self._is_closed:  # trio must not get a descriptor of -1
                raise trio.ClosedResourceError
            if not at_once:
                await trio.lowlevel.wait_readable(self._fd)
            at_once = False
            try:
                return self._socket.recv(MAX_READ)
            except BlockingIOError:
                continue

    def is_quiet(self) -> bool:
        return not self._is_closed and not self._look.poll(0)

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            trio.lowlevel.notify_closing(self._socket)
            self._socket.close()


class TlsChannel:
    """A channel over TLS. `sock` is the socket under it."""

    def __init__(self, stream: trio.SSLStream[trio.abc.Stream], sock: trio.socket.SocketType) -> None:
        self._stream = stream
        self._socket = sock

    async def send(self, data: bytes, more: bytes = b"") -> None:
        for part in (data, more):
            for at in range(0, len(part), MAX_WRITE):
                with trio.fail_after(WRITE_TIMEOUT):
                    await self._stream.send_all(part[at : at + MAX_WRITE])

    async def receive(self, *, at_once: bool = False) -> bytes:
        return bytes(await self._stream.receive_some(MAX_READ))

    def is_quiet(self) -> bool:
        # Records that came with the end of the last response have left the socket already. trio tells of them nowhere,
        # and a read that finds none would wait.
        below: trio.abc.Stream = self._stream
        while isinstance(below, trio.SSLStream):  # two of them through a proxy that is reached over TLS
            if below._incoming.pending:
                return False
            below = below.transport_stream
        return not self._socket.is_readable()

    def close(self) -> None:
        self._socket.close()


class HttpConnection:
    """A connection that serves one request after another. After an exception it must be closed."""

    __slots__ = (
        "_given", "_received", "_turn", "_working", "channel", "expires_at", "idle_since", "is_quiet", "parser",
    )  # fmt: skip

    def __init__(self, channel: ByteChannel, turn: Turn) -> None:
        self.channel = channel
        self.is_quiet = channel.is_quiet
        self._turn = turn
        self._working = False
        self._received, self._given = b"", 0
        """The bytes last received, and how many of them the parser has got."""
        self.parser = ResponseParser()
        self.expires_at = 0.0
        self.idle_since = 0.0

    async def exchange(self, request: bytes, more: bytes = b"") -> None:
        """Send a request, and read its response up to the end of the head.

        Args:
            more: the rest of the request, of which no copy is made.

        Raises:
            Broken: the connection broke, or the response is not valid HTTP/1.1.
        """
        written = await self.send(request, more)
        try:
            await self.read_head()
        except Broken as broken:
            broken.unwritten = broken.unwritten or (broken.unanswered and not written)
            raise

    async def send(self, request: bytes, more: bytes = b"") -> bool:
        """Send a request, as `exchange`. False if nothing of it was sent: the connection is closed."""
        await trio.lowlevel.checkpoint_if_cancelled()  # sending has no checkpoint if the request fits into the socket
        self.parser.begin()
        self._working = False
        try:
            if (rest := self.channel.send(request, more)) is not None:
                await rest
        except trio.TooSlowError:
            raise Broken(READS_NOTHING) from None
        except NothingSent:
            return False
        except STREAM_ERRORS:
            pass  # the server may have refused the request before it read all of it
        return True

    async def read_head(self) -> None:
        """Read the response up to the end of the head; raises as `exchange` does."""
        while not self.parser.head_done:
            await self._fill()

    async def read(self) -> bytes:
        """Wait for a piece of the body; none at its end.

        Raises:
            Broken: as in `exchange`.
        """
        while not (piece := self.parser.take_body()) and not self.parser.complete:
            await self._fill()
        return piece

    async def _fill(self) -> None:
        """Give the parser the bytes that came, at most LINE_ENDS lines of them outside of a body with a length, or wait
        for more."""
        in_body = self.parser.left > 0
        if self._working:
            await self._turn.yield_if_over()
        if in_body or self._given < len(self._received):
            await trio.lowlevel.checkpoint_if_cancelled()
        if self._given == len(self._received):
            try:
                self._received = await self.channel.receive(at_once=in_body)
            except (*STREAM_ERRORS, NothingSent) as problem:
                self._received, self._given = b"", 0
                broken = Broken(CONNECTION_BROKE, unanswered=not self.parser.started)
                broken.unwritten = isinstance(problem, NothingSent)
                raise broken from problem
            self._given = 0
            if not self._received:
                if self.parser.end():
                    return
                raise Broken(NOT_HTTP, unanswered=not self.parser.started)
        self._working = True
        self._turn.begin()
        try:
            self._feed()
        except TooManyInterim:
            raise Broken(TOO_MANY_INTERIM) from None
        except BadResponse as problem:
            raise Broken(NOT_HTTP) from problem
        if self.parser.complete and self._given == len(self._received):
            self._received, self._given = b"", 0  # a kept connection holds no response

    def _feed(self) -> None:
        """Give the parser the next piece of what was received. A head goes first: if a body with a length follows, its
        lines need not be counted, which would take longer than all else that is done with it here."""
        parser, received, at = self.parser, self._received, self._given
        is_light = len(received) <= LIGHT
        if not (is_light or parser.head_done) and (head := _HEAD.match(received, at)) is not None:
            parser.feed(head[0])
            self._received, at = received[head.end() :], 0
            received = self._received
        self._given = len(received) if is_light or parser.left else some_lines(received, at)
        if at < self._given:
            parser.feed(received[at : self._given])  # no copy if that is all

    @property
    def is_reusable(self) -> bool:
        """Whether the response is complete, and another request may follow."""
        parser = self.parser
        # Bytes that follow the response belong to no request: the next one would get them for its response.
        return parser.complete and parser.reusable and self._given == len(self._received)

    def close(self) -> None:
        self.channel.close()


def some_lines(data: bytes, at: int) -> int:
    """The end of the piece of `data` that begins at `at` and has at most LINE_ENDS line ends."""
    if at == 0:
        # Takes a tenth of the time of `count`, which looks at each byte by itself.
        others = data.replace(b"\n", b"", LINE_ENDS + 1).replace(b"\r", b"", LINE_ENDS + 1)
        if len(data) - len(others) <= LINE_ENDS:
            return len(data)
    found = _LINES.match(data, at)
    return len(data) if found is None else found.end()
