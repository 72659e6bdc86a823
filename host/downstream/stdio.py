"""Colonnade as a stdio server: one client, one session, one JSON message a line (2025-11-25, "Transports / stdio").

Standard output belongs to the protocol: other output to descriptor 1 goes to standard error. When the client closes our
input, its calls are cancelled and the host stops.
"""

from __future__ import annotations

import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager, suppress

import trio

from host.downstream.duplex import DuplexSession
from host.downstream.reading import MessageReader, share_interpreter
from host.downstream.sessions import Session
from host.downstream.stateless_stdio import StatelessStdio
from host.jsonrpc.messages import Message, write
from host.jsonrpc.raw import one_line
from host.wire.framing import MAX_LINE, LineSplitter, LineTooLong
from host.wire.pipe import LineWriter, PipeStalled

CHUNK = 65536
DRAIN_TIMEOUT = 2.0
"""Seconds in which the client may still read what was written before the end."""


@contextmanager
def own_stdout() -> Iterator[int]:
    """A descriptor for the protocol on our standard output. Descriptor 1 is standard error meanwhile, so that no stray
    print gets between two messages."""
    protocol = os.dup(1)
    os.dup2(2, 1)
    try:
        yield protocol
    finally:
        os.dup2(protocol, 1)
        os.close(protocol)


async def serve_stdio(session: Session, stateless_stdio: StatelessStdio, stdin: int, stdout: int) -> None:
    """Serve the one client until it closes our input, or stops reading our output, or until
    `stateless_stdio` has ended."""
    async with _unblocked(stdin, stdout):
        # No timeout: a client that does not read delays only itself.
        stdio = _Stdio(LineWriter(stdout, timeout=math.inf))
        async with trio.open_nursery() as nursery:
            channel = DuplexSession(session, stdio.enqueue, stdio.send, nursery, stateless_stdio)
            nursery.start_soon(stdio.write, nursery.cancel_scope)
            if session.is_sole:
                nursery.start_soon(session.serve_single_client)
            nursery.start_soon(_run_stateless, stateless_stdio, nursery.cancel_scope)
            try:
                with session.listening(stateless_stdio.announcements, stdio.enqueue):
                    await _read(channel, stdin)
            finally:
                session.end()
                stateless_stdio.end()
            nursery.cancel_scope.cancel("the client closed its end")
        with trio.move_on_after(DRAIN_TIMEOUT):  # after the end of the task that wrote: two would mix their lines
            await stdio.flush()


async def _run_stateless(stateless_stdio: StatelessStdio, serving: trio.CancelScope) -> None:
    await stateless_stdio.run()
    serving.cancel("the host is stopping")


class _Stdio:
    def __init__(self, writer: LineWriter) -> None:
        self._writer = writer

    async def write(self, serving: trio.CancelScope) -> None:
        try:
            await self._writer.run()
        except PipeStalled:
            serving.cancel("the client does not read")

    async def flush(self) -> None:
        try:
            await self._writer.flush()
        except PipeStalled:
            return  # no one is left to read it

    async def send(self, message: Message) -> None:
        """Send a response or a notification of a change, which must not be lost; waits while the client does not
        read."""
        with suppress(PipeStalled):  # the client is gone; `write` sees the same end and stops the session
            await self._writer.write_when_room(one_line(write(message)))

    def enqueue(self, message: Message) -> bool:
        """Send a message without waiting (refusals, progress, server requests). A client that reads too slowly misses
        some."""
        try:
            self._writer.write_line(one_line(write(message)))
        except PipeStalled:
            return False
        return True


async def _read(channel: DuplexSession, stdin: int) -> None:
    """Take the client's messages in order, so that a cancellation never overtakes the large request that it names."""
    share_interpreter()
    reader = MessageReader()
    lines = LineSplitter()
    try:
        while data := await _receive(stdin):
            for line in lines.feed(data):
                channel.on_received(await reader.read(line, math.inf))
    except LineTooLong:
        channel.reject(f"a message of more than {MAX_LINE} bytes")
        return
    if last := lines.rest():
        channel.on_received(await reader.read(last, math.inf))


async def _receive(fd: int) -> bytes:
    """Read from `fd`; empty at its end. Waits for a pipe, socket or terminal; a file never blocks."""
    await trio.lowlevel.checkpoint()  # between two reads that need not wait, other tasks run
    while True:
        try:
            return os.read(fd, CHUNK)
        except BlockingIOError:
            await trio.lowlevel.wait_readable(fd)
        except OSError:  # a broken connection counts as the end
            return b""


@asynccontextmanager
async def _unblocked(*fds: int) -> AsyncIterator[None]:
    """Make the descriptors non-blocking for the block, and restore them: a terminal is shared with other processes."""
    before = [os.get_blocking(fd) for fd in fds]
    for fd in fds:
        os.set_blocking(fd, False)
    try:
        yield
    finally:
        for fd, blocking in zip(fds, before, strict=True):
            os.set_blocking(fd, blocking)
