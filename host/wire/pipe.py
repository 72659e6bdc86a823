"""Writer of whole lines to a pipe that never waits for the reader of the pipe.

A line that fits into the pipe is written at once, in the caller's task. The rest waits in order and is written by `run`
only: a caller that is cancelled while it writes would leave half a line, and the next message would continue it.
"""

from __future__ import annotations

import os
from collections import deque

import trio

MAX_BACKLOG = 16 * 1024 * 1024
"""Bytes that may wait for the reader of a pipe. One longer line may wait alone."""
STALL_TIMEOUT = 10.0
"""Seconds in which the reader of a full pipe must read something."""


_LINE_END = memoryview(b"\n")


class PipeStalled(Exception):
    """The reader does not read, or has closed the pipe."""


class PipeClosed(PipeStalled):
    """The reader has closed the pipe."""


class LineWriter:
    """Writes lines to a non-blocking descriptor, which it does not own.

    Args:
        timeout: seconds in which the reader of a full pipe must read something.
    """

    def __init__(self, fd: int, timeout: float = STALL_TIMEOUT) -> None:
        self._fd = fd
        self._timeout = timeout
        self._waiting: deque[memoryview] = deque()
        self._size = 0
        self._wake = trio.Event()
        self._room = trio.lowlevel.ParkingLot()
        self._broken = False

    def write_line(self, line: bytes) -> None:
        """Write `line` and a line end, now or as soon as the reader makes room.

        Raises:
            PipeStalled: the pipe is closed, or MAX_BACKLOG is reached; nothing of the line was written.
        """
        if self._broken:
            raise PipeClosed("the pipe is closed")
        size = len(line) + 1
        written = 0
        if not self._waiting:
            written = self._write(line, b"\n")
            if written == size:
                return
        elif self._is_too_much(size):
            raise PipeStalled(f"more than {MAX_BACKLOG} bytes wait to be read")
        if written < len(line):
            self._waiting.append(memoryview(line)[written:])
        self._waiting.append(_LINE_END)
        self._size += size - written
        self._wake.set()

    async def write_when_room(self, line: bytes) -> None:
        """Like `write_line`, but waits while MAX_BACKLOG is reached.

        Raises:
            PipeStalled: the pipe is closed; nothing of the line was written.
        """
        while self._is_too_much(len(line) + 1) and not self._broken:
            await self._room.park()
        self.write_line(line)

    async def run(self) -> None:
        """Write waiting lines until cancelled.

        Raises:
            PipeStalled: the pipe is closed, or the reader read nothing for `timeout` seconds.
        """
        while True:
            await self._wake.wait()
            self._wake = trio.Event()  # before the writing, during which more may come
            await self.flush()

    async def flush(self) -> None:
        """Write all waiting lines. Raises as `run` does."""
        while self._waiting:
            with trio.move_on_after(self._timeout) as timeout:
                await trio.lowlevel.wait_writable(self._fd)
            if timeout.cancelled_caught:
                self._break()
                raise PipeStalled(f"nothing was read for {self._timeout:.0f} s")
            head = self._waiting[0]
            written = self._write(head)
            self._size -= written
            self._room.unpark_all()
            if written == len(head):
                self._waiting.popleft()
            else:
                self._waiting[0] = head[written:]

    def _write(self, *parts: bytes | memoryview) -> int:
        try:
            return os.writev(self._fd, parts)
        except BlockingIOError:
            return 0
        except OSError as problem:
            self._break()
            raise PipeClosed("the reader has closed the pipe") from problem

    def _is_too_much(self, size: int) -> bool:
        """Whether MAX_BACKLOG would be exceeded. A longer line is accepted if no other waits."""
        return bool(self._waiting) and self._size + size > MAX_BACKLOG

    def _break(self) -> None:
        self._broken = True
        self._room.unpark_all()
