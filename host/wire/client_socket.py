"""The connection of one client to a listener, below its protocol: the accepted socket, its TLS if it has one, and its
place among the others. listener.py speaks HTTP/1.1 over it, http2.py passes on HTTP/2.

Writes are whole, or break the connection: none takes longer than `write_timeout` for each 64 KiB, and none is shielded
from cancellation.
"""

from __future__ import annotations

import fcntl
import math
import socket
import ssl
import struct
import sys
import termios
import time
from abc import abstractmethod
from collections.abc import Callable, Coroutine, Hashable
from contextlib import suppress
from email.utils import formatdate
from functools import partial
from typing import Any, ClassVar, TypeAlias

import trio

from .acceptor import Acceptor, ListenerLimits
from .asgi import CLAIM, PEER, ASGIApp
from .buffered_tls import BufferedTls
from .certificate import Certificate
from .deadlines import Timed, clock_of_run
from .descent import examine_peer
from .portions import Portions
from .request_head import SharedHeads

CHUNK = 64 * 1024
"""Bytes for which a client has `write_timeout`, so that a long answer may take as long as its client needs."""
ALARMS_A_SECOND = 4
"""Moments in a second at which deadlines of connections are looked at: each is late by the time between two at most."""


class ListenerParts:
    """The parts that all connections of one listener share.

    Args:
        connection: serves each client.
        certificate: that of TLS; None for none.
        heads: see `listener.serve_http`.
    """

    def __init__(
        self,
        app: ASGIApp,
        limits: ListenerLimits,
        connection: type[ClientSocket],
        certificate: Certificate | None,
        heads: SharedHeads | None,
    ) -> None:
        def begin(accepted: socket.socket) -> ClientSocket:
            if certificate is None:
                return connection(self, accepted, None)
            context = certificate.contexts[connection.protocol]
            return connection(self, accepted, BufferedTls(context, certificate.accepts))

        self.acceptor: Acceptor[ClientSocket] = Acceptor(app, limits, begin)
        self.now = trio.lowlevel.current_clock().current_time  # as trio.current_time, which looks the clock up
        self.portions = Portions()
        self.heads = heads
        self._second = -1
        self._date = b""

    def date(self) -> bytes:
        """The present date, for the header of a response."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self._date = formatdate(second, usegmt=True).encode()
        return self._date


Buffer: TypeAlias = bytes | memoryview
Address: TypeAlias = tuple[str, int] | None
"""None for a Unix socket."""


class ClientSocket(Timed):
    """The connection of one client. A subclass serves a protocol in `run`.

    Args:
        accepted: its socket; None if a subclass moves the bytes in another way.

    Attributes:
        protocol: the protocol over TLS that the other side is offered, as a key of `Certificate.contexts`.
    """

    __slots__ = (
        "_client", "_closed", "_extensions", "_fd", "_here", "_socket", "_tls", "_writing", "is_writing", "scheme",
        "server",
    )  # fmt: skip

    protocol: ClassVar[str]

    def __init__(self, server: ListenerParts, accepted: socket.socket | None, tls: BufferedTls | None) -> None:
        super().__init__(clock_of_run(), trio.current_time() + server.acceptor.limits.head_timeout)
        self.server = server
        if accepted is not None:
            self._socket, self._fd = accepted, accepted.fileno()
        self._tls = tls
        self.scheme = "http" if tls is None else "https"
        self._writing = trio.Lock()
        self.is_writing = False
        """Whether the client has not taken all of what was written."""
        self._client: Address = None
        self._here: Address = None
        self._extensions: dict[str, object] = {}
        self._closed = False

    @abstractmethod
    async def run(self) -> None:
        """Serve the connection until it has ended. Begins with `open`, and sets `_extensions` to nothing at the end:
        they refer to this object, and no cycle is to be left to the garbage collector."""

    async def open(self) -> bytes | None:
        """Make the connection ready. Returns what came behind the handshake of TLS; None if it has ended."""
        sock = self._socket
        try:
            self._client, self._here = _address(sock, sock.getpeername()), _address(sock, sock.getsockname())
            if sock.family != socket.AF_UNIX:  # events are short writes, which the kernel would else hold back
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        except OSError:  # the connection was reset before it was accepted
            return None
        self._extensions[CLAIM] = self._claim
        if sock.family == socket.AF_UNIX:
            self._extensions[PEER] = partial(examine_peer, sock)
        return b"" if self._tls is None else await self._shake_hands(self._tls)

    def _claim(self, owner: Hashable, *, reserved: bool) -> bool:
        return self.server.acceptor.slots.claim(self, owner, self.server.now(), reserved=reserved)

    # TLS

    async def _shake_hands(self, tls: BufferedTls) -> bytes | None:
        """Returns what came behind the handshake; None if there is no TLS with this client."""
        is_done = False
        received = b""
        while not is_done and not self._closed:
            try:
                is_done = tls.shake_hands(received)
            except ssl.SSLError:
                self._write_now(tls.take_output())
                return None
            await self._write_rest(tls.take_output())
            if not is_done:
                try:
                    await trio.lowlevel.wait_readable(self._fd)
                    received = self._socket.recv(CHUNK)
                except BlockingIOError:
                    received = b""
                    continue
                except (trio.ClosedResourceError, OSError):
                    return None
                if not received:
                    return None
        if self._closed:
            return None
        self.deadline = trio.current_time() + self.server.acceptor.limits.head_timeout
        try:
            return self.decrypt(tls, b"")
        except ssl.SSLError:
            return None

    def decrypt(self, tls: BufferedTls, data: bytes) -> bytes:
        """The content of received bytes; none if a record is not complete. Raises OSError if they are no TLS."""
        content = tls.decrypt(data)
        # OpenSSL may have something to say, such as that it does not agree upon keys again. It waits for the next
        # content, unless that cannot be soon.
        said = b"" if content or self.is_writing else tls.take_output()
        if said and self._write_now(said) < len(said):
            self.abort()
        return content

    # Reading

    def unread(self) -> int:
        """Number of bytes that wait in the kernel."""
        if self._closed:
            return 0
        return int.from_bytes(fcntl.ioctl(self._fd, termios.FIONREAD, bytes(4)), sys.byteorder)

    # Writing

    async def write(self, data: Buffer) -> None:
        """Write all of the data, or break the connection. Nothing is written after an unfinished write, and nothing to
        a connection that is closed."""
        rest = self.begin_write(data)
        if rest is not None:
            await rest

    def begin_write(self, data: Buffer) -> Coroutine[Any, Any, None] | None:
        """Write what can be written now: nearly always all of it. Otherwise await what is returned, as for `write`.
        Raises nothing, since others than the task of the connection write, too: the clock of deadlines is one of them.
        """
        if self._tls is not None and not self._closed:
            try:
                data = self._tls.encrypt(data)
            except ssl.SSLError:
                self.abort()
                return None
        if self.is_writing:
            return self._write_rest(data)
        sent = self._write_now(data)
        return None if sent == len(data) else self._write_rest(data[sent:])

    def begin_write_of(self, head: bytes, body: bytes, moves: Callable[[], object]) -> Coroutine[Any, Any, None] | None:
        """`begin_write` of a head and a long body, of which no copy is made. `moves` is called when a part of what did
        not fit at once was taken."""
        sent = 0
        if self._tls is None and not self.is_writing:
            sent = self._write_now(head, body)
        return None if sent == len(head) + len(body) else self._write_parts(head, body, sent, moves)

    async def _write_parts(self, head: bytes, body: bytes, sent: int, moves: Callable[[], object]) -> None:
        for view in memoryview(head), memoryview(body):
            for start in range(min(sent, len(view)), len(view), CHUNK):
                await self.write(view[start : start + CHUNK])
                moves()
                await trio.lowlevel.cancel_shielded_checkpoint()  # lets other tasks run; `write` notices a cancellation
            sent = max(sent - len(view), 0)

    async def _write_rest(self, data: Buffer) -> None:
        written = False
        try:
            async with self._writing:
                self.is_writing = True
                view = memoryview(data)
                for start in range(0, len(data), CHUNK):
                    with trio.fail_after(self.server.acceptor.limits.write_timeout):
                        await self._write_all(view[start : start + CHUNK])
            written = True
        except (trio.TooSlowError, trio.ClosedResourceError):
            return
        finally:
            self.is_writing = self._writing.locked()  # by whoever waited for the end of this
            if not written:
                self.abort()

    async def _write_all(self, data: memoryview) -> None:
        while data:
            if self._closed:
                return
            await self._wait_writable()
            data = data[self._write_now(data) :]

    async def _wait_writable(self) -> None:
        await trio.lowlevel.wait_writable(self._fd)

    def _write_now(self, data: Buffer, more: bytes = b"") -> int:
        if self._closed:
            return len(data) + len(more)
        try:
            return self._socket.sendmsg((data, more)) if more else self._socket.send(data)
        except BlockingIOError:
            return 0
        except OSError:
            self.abort()
            return len(data) + len(more)

    # Making room, ending

    def alarm_at(self, deadline: float) -> float:
        """Together with others: a pass for each of a thousand idle connections takes the time of a hundred calls."""
        return math.ceil(deadline * ALARMS_A_SECOND) / ALARMS_A_SECOND

    @abstractmethod
    def waits_for_client(self) -> bool:
        """See `slots.ClosableConnection`."""

    @abstractmethod
    def close_if_idle(self) -> None:
        """See `acceptor.AcceptedConnection`."""

    def time_out(self) -> None:
        self.close()

    def abort(self) -> None:
        """Close the connection and discard the data that waits in the kernel, which the client does not read."""
        if not self._closed:
            with suppress(OSError):  # the connection is broken already
                self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.close()

    def wake_reader(self) -> None:
        """End the waiting of a task that reads. None waits at a closed socket, whose number another may have."""
        if not self._closed:
            trio.lowlevel.notify_closing(self._fd)

    def close(self) -> None:
        """Close the socket. Tasks that read or write on it wake up; the kernel still delivers what was written."""
        if not self._closed:
            self.wake_reader()
            self._closed = True
            self._socket.close()


def _address(sock: socket.socket, address: Any) -> Address:
    return None if sock.family == socket.AF_UNIX else address[:2]
