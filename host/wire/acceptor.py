"""Acceptance of connections at one listening socket, and the end of all of them: the part that both HTTP servers share,
`listener.py` and `http2.py`.

Owns the listening socket and one task per connection. Each connection has a slot; slots.py decides which one is closed
when a full listener makes room. A connection that fails, in whatever way, ends alone.
"""

from __future__ import annotations

import errno
import logging
import math
import resource
import socket
from collections.abc import Callable
from contextlib import suppress
from typing import Generic, Protocol, TypeVar

import trio
from msgspec import Struct

from host.errors import first_exception

from .asgi import ASGIApp
from .slots import EXTRA, RESERVED, ClosableConnection, Slots

MAX_CONNECTIONS = 1000
"""Connections at a time, not counting the extra and reserved ones of slots.py."""
OTHER_DESCRIPTORS = 256
"""Open files that are left for the rest of the process."""
MIN_CONNECTIONS = 64
"""Connections at a time, even if the limit of open files is lower."""
HEAD_TIMEOUT = 5.0
"""Seconds from the first byte of a head, or from a new connection, until the head must be complete; INCOMPLETE_TIMEOUT
seconds while many heads are incomplete."""
IDLE_TIMEOUT = 75.0
"""Seconds that a connection stays open between two requests: longer than the keep-alive of common clients."""
WRITE_TIMEOUT = 5.0
"""Seconds in which a client must take the next 64 KiB."""
GRACE = 2.0
"""Seconds that requests in flight have to end when the listener stops."""
LAST_REQUEST = 0.5
"""Seconds for one more request on each connection when the listener stops, if one was used within LATELY seconds. A
client that sends one as its idle connection is closed can only say that the server disconnected; the answer of a
listener that stops tells it to connect elsewhere. One that is busy would otherwise do so once in a few restarts."""
LATELY = 2.0
LINGER = 1.0
"""Seconds to read from a client that is refused while it sends: closing with unread bytes would reset away the
response."""
MANY_CONNECTIONS = 64
RESUME_SPREAD = 0.25
"""With more than MANY_CONNECTIONS, the end of each is read after a random part of so many seconds: a thousand
connections that end together must not all be closed in one pass. For those that time out together, the clock of their
deadlines takes care of that."""

_FULL_PAUSE = 0.1
"""Seconds until the next look for room or for a free descriptor. Time alone can make room: an incomplete request may be
closed after INCOMPLETE_TIMEOUT."""
_ACCEPTED_AT_ONCE = 4
"""With one in each pass of a busy loop, a client would wait behind an attacker's connections. With 16, the first bytes
of 1,100 slow heads made one pass of 173 ms; with four, the longest took 77 ms."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_LOST = (errno.EPERM, errno.ECONNABORTED, errno.EPROTO)
"""Errors of one connection that ended before it was accepted, or that a packet filter refuses."""

_log = logging.getLogger("colonnade.listener")


class ListenerLimits(Struct, frozen=True):
    """The limits of one listener: see the constants of this module."""

    max_connections: int = MAX_CONNECTIONS
    write_timeout: float = WRITE_TIMEOUT
    head_timeout: float = HEAD_TIMEOUT
    idle_timeout: float = IDLE_TIMEOUT
    other_descriptors: int = OTHER_DESCRIPTORS


DEFAULT_LIMITS = ListenerLimits()
HTTP2_LIMITS = ListenerLimits(max_connections=64)
"""Those of HTTP/2. Each connection takes four descriptors (http2.py)."""
BESIDE_HTTP2 = ListenerLimits(
    other_descriptors=OTHER_DESCRIPTORS + 4 * (HTTP2_LIMITS.max_connections + EXTRA + RESERVED)
)
"""Those of HTTP/1.1 in a process that serves HTTP/2 too."""


class AcceptedConnection(ClosableConnection, Protocol):
    async def run(self) -> None:
        """Serve the connection until it and all its requests have ended."""

    def close_if_idle(self) -> None:
        """Close the connection unless a request is being received or answered."""


C = TypeVar("C", bound=AcceptedConnection)


class Acceptor(Generic[C]):
    """The connections of one listener, and what they share.

    Args:
        connect: makes a connection of an accepted socket, which does not block.
    """

    def __init__(self, app: ASGIApp, limits: ListenerLimits, connect: Callable[[socket.socket], C]) -> None:
        self.app = app
        self.limits = limits
        self.stopping = False
        """Whether each connection ends with its current response."""
        self.slots: Slots[C] = Slots(
            affordable_connections(
                limits.max_connections, resource.getrlimit(resource.RLIMIT_NOFILE)[0], limits.other_descriptors
            )
        )
        self._connect = connect
        self._room = trio.lowlevel.ParkingLot()
        self._complained = -math.inf

    async def serve(
        self,
        bound: socket.socket,
        leaving: trio.Event | None,
        stop: trio.Event | None,
        grace: Callable[[], float],
        task_status: trio.TaskStatus[None],
    ) -> None:
        """Serve until cancelled, or until `stop` is set.

        On `leaving` each connection ends with its present or next response, so that its client connects elsewhere. On
        `stop` the listening socket and the idle connections are closed, unless one was used lately: then LAST_REQUEST
        seconds later; one that has just come has as long. Requests in flight have as many seconds to end as `grace`
        says then, and are cancelled. If the caller is cancelled, everything ends at once. No exception of a connection
        or of the app is raised: those of the app are logged as `colonnade.listener`.

        Args:
            bound: a listening socket, as from `port.bind` or `port.bind_unix`. It is closed on `stop`, or when this
                returns.
        """
        bound.setblocking(False)
        try:
            async with trio.open_nursery() as connections:
                async with trio.open_nursery() as accepting:
                    accepting.start_soon(self._accept, bound, connections)
                    if leaving is not None:
                        accepting.start_soon(self._leave_at, leaving)
                    task_status.started()
                    if stop is None:
                        await trio.sleep_forever()
                    else:
                        await stop.wait()
                        self.stopping = True
                        await self._retire()
                    accepting.cancel_scope.cancel()
                with suppress(OSError):  # those that the kernel has accepted already would be reset
                    while not self.slots.full:
                        self._begin(bound, connections)
                bound.close()  # nothing is accepted any more: the loop below reaches all connections
                connections.cancel_scope.deadline = trio.current_time() + grace()
                for connection in self.slots:
                    connection.close_if_idle()
        finally:
            bound.close()

    async def _retire(self) -> None:
        """Wait until no connection that was used lately is idle, for LAST_REQUEST seconds at most."""
        with trio.move_on_after(LAST_REQUEST):
            while self.slots.idle_since(trio.current_time() - LATELY):
                await self._room.park()

    async def _leave_at(self, leaving: trio.Event) -> None:
        await leaving.wait()
        self.stopping = True

    async def _accept(self, bound: socket.socket, nursery: trio.Nursery) -> None:
        """Accept connections until cancelled."""
        while True:
            try:
                await trio.lowlevel.wait_readable(bound)
                await self._until_room()
                self._begin(bound, nursery)
            except OSError as error:
                if isinstance(error, BlockingIOError) or error.errno in _LOST:
                    continue
                # EMFILE and similar: the connection stays in the backlog, so the next accept fails at once as well.
                self.log_limited(f"no connection can be accepted: {errno.errorcode.get(error.errno or 0, error)}")
                if error.errno not in _NO_DESCRIPTOR or not self.slots.make_room(trio.current_time()):
                    await trio.sleep(_FULL_PAUSE)
                continue
            with suppress(OSError):  # no connection waits, or the next `accept` fails in the same way
                for _ in range(_ACCEPTED_AT_ONCE - 1):
                    if self.slots.full:
                        break
                    self._begin(bound, nursery)

    def _begin(self, bound: socket.socket, nursery: trio.Nursery) -> None:
        accepted, _ = bound.accept()
        accepted.setblocking(False)
        self.begin(self._connect(accepted), nursery)

    def begin(self, connection: C, nursery: trio.Nursery) -> None:
        """Serve a connection for which there is a slot."""
        self.slots.add(connection, trio.current_time())
        nursery.start_soon(self._run, connection)

    async def _until_room(self) -> None:
        """Wait until there is a slot for a connection that waits to be accepted: none is closed before its slot is
        needed."""
        while self.slots.full and not self.slots.make_room(trio.current_time()):
            with trio.move_on_after(_FULL_PAUSE):  # later, an incomplete request may be closed
                await self._room.park()

    def log_limited(self, text: str) -> None:
        """Log a warning, at most one per second, so that clients cannot fill the log."""
        now = trio.current_time()
        if now - self._complained >= 1:
            self._complained = now
            _log.warning("%s", text)

    async def _run(self, connection: C) -> None:
        try:
            await connection.run()
        except* Exception as group:  # noqa: BLE001 - one connection's failure is not its siblings'
            self.log_limited(f"a connection was ended by {first_exception(group)!r}")
        finally:
            connection.close()
            self.slots.remove(connection)
            self._room.unpark_all()


class TooFewFiles(Exception):
    """The process may not open as many files as its connections need."""


def check_open_files(limits: ListenerLimits, key: str) -> None:
    """Check that all connections can be open at once. `key` is where their number is set.

    Raises:
        TooFewFiles: they cannot.
    """
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if affordable_connections(limits.max_connections, files, limits.other_descriptors) < limits.max_connections:
        needed = limits.max_connections + limits.other_descriptors + EXTRA + RESERVED
        raise TooFewFiles(
            f"{key}: {limits.max_connections} connections need {needed} open files, and this process may open {files}; "
            f"raise that limit to {needed} (ulimit -n in a shell, LimitNOFILE= in a systemd unit, --ulimit nofile= for "
            "a container), or set a smaller number"
        )


def affordable_connections(connections: int, files: float, others: int = OTHER_DESCRIPTORS) -> int:
    """The number of connections, reduced if the process may not open that many files.

    Clients must not be able to use up the descriptors that servers and the audit need.
    """
    if files == resource.RLIM_INFINITY:
        return connections
    return min(connections, max(MIN_CONNECTIONS, int(files) - others - EXTRA - RESERVED))
