"""Writing whole lines to a pipe without waiting for the reader of it.

A line that fits into the pipe is written at once, in the caller's own task. What does not fit waits in order, and only
`run` writes it: a cancelled writer would leave half a line and glue the next message to it.
"""

from __future__ import annotations

import os
from collections import deque

import trio

MAX_BACKLOG = 16 * 1024 * 1024
STALL_TIMEOUT = 10.0
"""Seconds a reader may leave a full pipe unread before the link is given up."""


class PipeStalled(Exception):
    """The reader does not read, or is gone."""


class PipeClosed(PipeStalled):
    """The reader is gone."""


class LineWriter:
    """Owns nothing: the descriptor is non-blocking and belongs to whoever opened it. The reader may leave a full pipe
    unread for `timeout` seconds."""

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
            PipeStalled: the reader is gone, or too much waits already; nothing of the line was written.
        """
        if self._broken:
            raise PipeClosed("the pipe is closed")
        data = memoryview(line + b"\n")
        if self._is_too_much(len(data)):
            raise PipeStalled(f"more than {MAX_BACKLOG} bytes wait to be read")
        if not self._waiting:
            data = data[self._write(data) :]
            if not data:
                return
        self._waiting.append(data)
        self._size += len(data)
        self._wake.set()

    async def write_when_room(self, line: bytes) -> None:
        """Like `write_line`, but while too much waits already this waits too.

        Raises:
            PipeStalled: the reader is gone; nothing of the line was written.
        """
        while self._is_too_much(len(line) + 1) and not self._broken:
            await self._room.park()
        self.write_line(line)

    async def run(self) -> None:
        """Write what waits, until cancelled.

        Raises:
            PipeStalled: the reader is gone, or made no room for as long as the patience lasts.
        """
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            await self.flush()

    async def flush(self) -> None:
        """Write everything that waits; see `run` for what it raises."""
        while self._waiting:
            with trio.move_on_after(self._timeout) as patience:
                await trio.lowlevel.wait_writable(self._fd)
            if patience.cancelled_caught:
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

    def _write(self, data: memoryview) -> int:
        try:
            return os.write(self._fd, data)
        except BlockingIOError:
            return 0
        except OSError as problem:
            self._break()
            raise PipeClosed("the reader has closed the pipe") from problem

    def _is_too_much(self, size: int) -> bool:
        """A line that is longer than all that may wait is taken when nothing does."""
        return bool(self._waiting) and self._size + size > MAX_BACKLOG

    def _break(self) -> None:
        self._broken = True
        self._room.unpark_all()
