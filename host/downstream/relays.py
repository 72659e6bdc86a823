"""The clients behind relays (`colonnade serve --stdio`), and commands such as `colonnade call`: a Unix socket in the
state directory, for MCP only.

A relay sends one line about itself and gets one line. From then on the connection is like standard input and output
(stdio.py). Who it is, is the kernel's word (`wire/descent.py`), and never the relay's own.

A command is a client like a relay's. Its memory is hidden, and with that its folder: so it sends a descriptor of its
folder along, and nobody can name a folder that he cannot open.

One process of this user serves the relays of a configuration: the one that holds the lock beside the socket
(`RelayClaim`).
"""

from __future__ import annotations

import errno
import fcntl
import json
import math
import os
import socket
from array import array
from collections.abc import Callable, Iterator
from contextlib import AbstractAsyncContextManager, ExitStack, contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Literal, NamedTuple

import trio
from msgspec import DecodeError, Struct, field
from msgspec.json import decode

from config.naming import LONGEST_ID
from host.client_process import ClientProcess
from host.downstream.sessions import Session
from host.downstream.stateless_stdio import StatelessStdio
from host.downstream.stdio import serve_stdio
from host.relay import MAX_HELLO, socket_path
from host.sanitize import visible
from host.source import Endpoint
from host.storage.directory import State
from host.storage.store import StateError
from host.version import VERSION
from host.wire.client_program import find_client
from host.wire.descent import PeerProcess, Trail, examine_peer, relay_refusal, trail_refusal
from host.wire.port import bind_unix

MAX_CLIENTS = 256
"""Relays at a time: each is a desktop host, or a window of one."""
MAX_UNKNOWN = 16
"""Connections that have not said who they are. The oldest ends when another one comes: a relay speaks at once."""
HELLO_TIMEOUT = 5.0
"""Seconds in which a relay must send its first line."""
_BUSY_PAUSE = 1.0
"""Seconds until the next look whether calls without a client have ended."""
_LONGEST_PAUSE = 5.0
"""Seconds after which the time that a host stays without clients is looked up again."""
_FULL_PAUSE = 0.1
"""Seconds until the next look for a free descriptor."""
_NO_DESCRIPTOR = (errno.EMFILE, errno.ENFILE)
_CHUNK = 64 * 1024
_SEND_BUFFER = 256 * 1024  # kernel memory for a client that does not read


class Hello(Struct, frozen=True):
    """The first line of a relay.

    Args:
        colonnade: its version.
        config: the real path of its configuration.
        trail: the configurations of the hosts above it; None if it is below none.
        environment: the variables that it hands over.
        command: the command that it is, which is no relay.
        folder: the real path of the folder of that command. It counts if a descriptor of the same folder came along.
        view: the view that its client is to have; empty for none.
    """

    colonnade: str
    config: str
    trail: list[str] | None = None
    environment: dict[str, str] = field(default_factory=dict)
    command: Literal["", "list", "call", "read", "prompt"] = ""
    folder: str = ""
    view: str = ""


class RelayClient(NamedTuple):
    """A connected relay's client."""

    session: Session
    stateless_stdio: StatelessStdio


OpenClient = Callable[[str, Endpoint, ClientProcess], AbstractAsyncContextManager[RelayClient]]
"""Opens the session of a client for a block: its name for the log, its endpoint, and the program that it is."""


class RelayClaim:
    """The right to serve the relays of a configuration, which one process has."""

    def __init__(self, path: Path, lock: int) -> None:
        self._path = path
        self._lock = lock

    @contextmanager
    def listening(self) -> Iterator[socket.socket]:
        """The listening socket, for the block, after which another process may have this right. Raises StateError if
        there can be none."""
        try:
            self._path.with_suffix(".new").unlink(missing_ok=True)  # of a host that was killed
            bound = bind_unix(self._path)
        except OSError as problem:
            raise _unusable(problem.filename2 or problem.filename or self._path, problem) from problem
        bound.setblocking(False)
        try:
            yield bound
        finally:
            self._path.unlink(missing_ok=True)  # before the lock is free: the next host's has the same name
            bound.close()
            self.release()

    def release(self) -> None:
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


@contextmanager
def open_relay_claim(state: State, source: Path) -> Iterator[RelayClaim | None]:
    """The right to serve the relays of a configuration, for the block; None if another process has it. Raises
    StateError."""
    path = Path(socket_path(str(state.path), str(source)))
    lock_path = path.with_suffix(".lock")
    try:
        lock = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as problem:
        raise _unusable(lock_path, problem) from problem
    claim: RelayClaim | None = RelayClaim(path, lock)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(lock)
        claim = None
    try:
        yield claim
    finally:
        if claim is not None:
            claim.release()


def _unusable(path: object, problem: OSError) -> StateError:
    return StateError(f"{path} cannot be used: {problem.strerror}; no relay can be served unless it is removed")


class Relays:
    """The connected relays of one host.

    Args:
        hosts: the folder of the host records.
        trail: joined by those of the relays.
        endpoint_of: the endpoint of clients with this view; None if there is no such view.
        on_refused: called with a process that may not be a client, and why.
    """

    def __init__(
        self,
        source: Path,
        hosts: Path,
        trail: Trail,
        open_client: OpenClient,
        endpoint_of: Callable[[str], Endpoint | None],
        on_refused: Callable[[PeerProcess, str], None],
    ) -> None:
        self._source = os.path.realpath(source)
        self._hosts = hosts
        self._trail = trail
        self._open_client = open_client
        self._endpoint_of = endpoint_of
        self._on_refused = on_refused
        self._accepting = trio.CancelScope()
        self._served = 0
        self._unknown: dict[trio.CancelScope, None] = {}
        """The scopes of connections that have not said who they are, oldest first."""
        self._changed = trio.lowlevel.ParkingLot()
        self._quiet_until = math.inf
        self._left_at = -math.inf

    async def serve(self, claim: RelayClaim, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Serve relays until cancelled.

        Raises:
            StateError: there can be no socket.
        """
        listening = ExitStack()
        bound = listening.enter_context(claim.listening())  # outside of the nursery, which would make a group of it
        async with trio.open_nursery() as clients:
            with listening, self._accepting:
                task_status.started()
                await self._accept(trio.socket.from_stdlib_socket(bound), clients)
            # The next host may have the socket now; the connected relays stay.

    async def _accept(self, listening: trio.socket.SocketType, clients: trio.Nursery) -> None:
        while True:
            try:
                connection, _ = await listening.accept()
            except OSError as problem:
                if problem.errno in _NO_DESCRIPTOR:  # the connection stays in the backlog
                    await trio.sleep(_FULL_PAUSE)
                continue
            if len(self._unknown) >= MAX_UNKNOWN:
                oldest = next(iter(self._unknown))
                oldest.cancel("it has not said who it is, and others come")
                del self._unknown[oldest]
            admitting = trio.CancelScope(deadline=trio.current_time() + HELLO_TIMEOUT)
            self._unknown[admitting] = None
            clients.start_soon(self._serve, connection, admitting)

    def leave(self) -> None:
        """Take no new relay."""
        self._accepting.cancel("another host takes its place")
        self._changed.unpark_all()

    @property
    def is_leaving(self) -> bool:
        """Whether no new relay is taken, because another host takes the place of this one."""
        return self._accepting.cancel_called

    def ends_in(self) -> float | None:
        """Seconds until `wait_idle` returns if no relay comes; None if it does not then."""
        seconds = self._quiet_until - trio.current_time()
        return max(round(seconds, 1), 0.0) if math.isfinite(seconds) else None

    async def wait_idle(self, idle: Callable[[], float], is_busy: Callable[[], bool]) -> None:
        """Wait until there was no relay for as long as `idle` says, in seconds, and nothing else to do; or until the
        last one has left, if no new one is taken."""
        self._left_at = trio.current_time()
        while True:
            if self._served:
                self._quiet_until = math.inf
                await self._changed.park()
                continue
            now = trio.current_time()
            self._quiet_until = now if self.is_leaving else self._left_at + idle()
            if now >= self._quiet_until and not is_busy():
                return
            # Looked up anew now and then: a reload may have changed the time.
            pause = min(self._quiet_until - now, _LONGEST_PAUSE) if now < self._quiet_until else _BUSY_PAUSE
            with trio.move_on_after(pause):
                await self._changed.park()

    async def _serve(self, connection: trio.socket.SocketType, admitting: trio.CancelScope) -> None:
        with connection, suppress(OSError):  # it has left
            admitted = None
            try:
                with admitting:
                    connection.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
                    admitted = await self._admit(connection)
            finally:
                self._unknown.pop(admitting, None)
            if admitted is None:
                return
            hello, endpoint, peer, process = admitted
            self._served += 1
            self._changed.unpark_all()
            try:
                # Not before it counts: a host without clients may end at any moment.
                await _answer(connection, {"accepted": True, "process": os.getpid()})
                name = f"{process.program or 'relay'} ({process.pid or peer.pid})"
                # The trail comes first: the client's values can start a server.
                with self._trail.joined(hello.trail or ()):
                    async with self._open_client(name, endpoint, process) as client:
                        both_ways = connection.fileno()
                        await serve_stdio(client.session, client.stateless_stdio, both_ways, both_ways)
            finally:
                self._served -= 1
                self._left_at = trio.current_time()
                self._changed.unpark_all()

    async def _admit(
        self, connection: trio.socket.SocketType
    ) -> tuple[Hello, Endpoint, PeerProcess, ClientProcess] | None:
        """The first line of a new relay, which has not been told that it is accepted, its endpoint and process, and the
        program that it is a client for; None if it is refused, which it has been told."""
        peer = examine_peer(connection)
        # Before anything is read: a server of ours costs no more than this.
        if not await self._may_enter(connection, peer, relay_refusal(peer, self._hosts)):
            return None
        try:
            line, folder = await _first_line(connection)
            hello = decode(line, type=Hello)
        except (DecodeError, ValueError):
            return None
        if not await self._may_enter(connection, peer, trail_refusal(peer, self._source, hello.trail)):
            return None
        answer = self._judge(hello)
        if not isinstance(answer, dict):
            return hello, answer, peer, _client_of(hello, peer, folder)
        await _answer(connection, answer)
        if "leaves" in answer:
            self.leave()
        return None

    async def _may_enter(self, connection: trio.socket.SocketType, peer: PeerProcess, why: str | None) -> bool:
        """Whether there is no reason to refuse it; tells it the reason."""
        if why is not None:
            self._on_refused(peer, why)
            await _answer(connection, {"refused": why})
        return why is None

    def _judge(self, hello: Hello) -> dict[str, object] | Endpoint:
        """The answer to a relay that is not accepted; the endpoint of one that is."""
        if hello.config != self._source:
            return {"refused": f"this Colonnade serves {self._source}, not {hello.config}"}
        if (hello.colonnade != VERSION and not hello.command) or self.is_leaving:
            return {"leaves": True}
        if self._served >= MAX_CLIENTS:
            return {"refused": f"this Colonnade serves {MAX_CLIENTS} clients at a time, not more"}
        endpoint = self._endpoint_of(hello.view)
        if endpoint is None:
            view = visible(hello.view[:LONGEST_ID])
            return {"refused": f"this Colonnade has no view {view}; if the file has one by now, colonnade reload"}
        return endpoint


def _client_of(hello: Hello, peer: PeerProcess, folder: os.stat_result | None) -> ClientProcess:
    """The program behind a relay, or the command itself with the program that has started it."""
    found = replace(find_client(peer), environment=hello.environment)
    if not hello.command:
        return found
    program = f"colonnade {hello.command}" + (f" of {found.program}" if found.program else "")
    with suppress(OSError, ValueError):
        if folder is not None and os.path.samestat(folder, os.stat(hello.folder)):
            return replace(found, program=program, pid=peer.pid, folder=hello.folder, is_command=True)
    return replace(found, program=program, pid=peer.pid, folder="", is_command=True)


async def _first_line(connection: trio.socket.SocketType) -> tuple[bytes, os.stat_result | None]:
    """The bytes up to the first line end; what came if there are too many, or the connection ends. And the folder whose
    descriptor came with the first of them."""
    data, ancillary, *_ = await connection.recvmsg(_CHUNK, socket.CMSG_SPACE(array("i").itemsize))
    status = None
    for level, kind, content in ancillary:
        if (level, kind) == (socket.SOL_SOCKET, socket.SCM_RIGHTS):
            for descriptor in array("i", content):  # two may fit
                status = os.fstat(descriptor)
                os.close(descriptor)
    received = bytearray(data)
    while data and not received.endswith(b"\n") and len(received) <= MAX_HELLO:
        data = await connection.recv(_CHUNK)
        received += data
    return bytes(received), status


async def _answer(connection: trio.socket.SocketType, answer: dict[str, object]) -> None:
    await connection.send(json.dumps(answer).encode() + b"\n")  # short enough for an empty buffer
