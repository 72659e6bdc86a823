"""Connections over TCP that are joined: bytes go both ways as they come, and so does the end of each direction.

A side that does not read stops the other one, by the buffers of the kernel. Sockets are those of the standard library,
and do not block. All tunnels of one host take turns with its other readers.
"""

from __future__ import annotations

import os
import socket
import struct
from contextlib import suppress

import trio

from host.wire.turns import Turns

CHUNK = 64 * 1024
HALF_CLOSED_TIMEOUT = 300.0
"""Seconds without a byte, after one direction has ended, until the other one ends too: a peer that is gone altogether
looks the same."""


async def connect(address: str, port: int) -> socket.socket:
    """A connection to exactly this IP address.

    Raises:
        OSError: it was refused, or the address cannot be reached.
    """
    made = socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_STREAM)
    try:
        made.setblocking(False)
        made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
        made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        with suppress(BlockingIOError):
            made.connect((address, port))
        await trio.lowlevel.wait_writable(made)
        if problem := made.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            raise OSError(problem, os.strerror(problem))
    except BaseException:
        made.close()
        raise
    return made


async def send_whole(target: socket.socket, data: bytes | memoryview) -> None:
    """Send all of it. Raises OSError if the connection has ended."""
    rest = memoryview(data)
    while rest:
        await trio.lowlevel.wait_writable(target)
        with suppress(BlockingIOError):
            rest = rest[target.send(rest) :]


async def receive(source: socket.socket) -> bytes:
    """The next bytes; none at the end. Raises OSError if the connection was reset."""
    while True:
        await trio.lowlevel.wait_readable(source)
        with suppress(BlockingIOError):
            return source.recv(CHUNK)


def reset(made: socket.socket) -> None:
    """Close a connection so that its peer sees that it broke."""
    with suppress(OSError):  # it is broken already
        made.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    made.close()


async def join(first: socket.socket, second: socket.socket, turns: Turns) -> None:
    """Copy both ways until both directions have ended. If one side breaks, the other one is reset. Closes neither
    otherwise."""
    joined = _Joined(turns)
    with joined.scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(joined.copy, first, second)
            nursery.start_soon(joined.copy, second, first)
    if joined.broken:
        reset(first)
        reset(second)


class _Joined:
    def __init__(self, turns: Turns) -> None:
        self.scope = trio.CancelScope()
        self.broken = False
        self._turns = turns
        self._half_closed = False

    async def copy(self, source: socket.socket, target: socket.socket) -> None:
        try:
            await self._copy(source, target)
            target.shutdown(socket.SHUT_WR)
        except OSError:
            self.broken = True
            self.scope.cancel()
            return
        self._half_closed = True
        self._renew()

    async def _copy(self, source: socket.socket, target: socket.socket) -> None:
        turn = self._turns.turn()
        while True:
            await trio.lowlevel.wait_readable(source)
            await turn.wait_for_share()
            turn.begin()
            try:
                data = source.recv(CHUNK)
            except BlockingIOError:
                continue
            if not data:
                return
            rest = memoryview(data)
            with suppress(BlockingIOError):
                rest = rest[target.send(rest) :]
            self._renew()
            turn.account()
            await send_whole(target, rest)
            self._renew()

    def _renew(self) -> None:
        if self._half_closed:
            self.scope.deadline = trio.current_time() + HALF_CLOSED_TIMEOUT
