"""The audit as lines on standard output, for whoever collects them there: a container's runtime, a service manager.

A record counts once the system has all of its line, as in a file. What a reader that is too slow, or gone, leaves
no room for is refused as on a full disk. No write waits for a reader for longer than PATIENCE.
"""

from __future__ import annotations

import fcntl
import os
import select
import socket
import stat
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from errno import EAGAIN

from host.audit.seal import FileSeal

PIPE_SIZE = 1024 * 1024
"""Bytes that a pipe to the reader is to hold, some 2,000 records; the most that Linux gives to any user by default."""
PATIENCE = 0.01
"""Seconds that a write waits for room, with everything else in the host. A reader that runs makes some meanwhile. After
a write that found none, the next ones do not wait, so that a reader that stands still delays the host once."""


class Stream:
    """Lines to a descriptor at which writing does not wait (`unblocked`), in the place of a file of the audit."""

    is_full = False
    former = None

    def __init__(self, descriptor: int) -> None:
        self.descriptor = os.dup(descriptor)
        self.name = _new_name()
        self.seal: FileSeal | None = None
        self.size = 0
        self.look_at = 0.0
        self._is_read = True
        """Whether the last line found room."""
        self._torn = False
        """Whether the last line has no end. It is ended before the next one, and is then no record."""
        self._room = select.poll()
        self._room.register(self.descriptor, select.POLLOUT)

    def append(self, line: bytes) -> None:
        """All of the line, or nothing that is a record.

        Raises:
            OSError: no record.
        """
        data = memoryview(b"\n" + line if self._torn else line)
        begin = len(data) - len(line)
        deadline = time.monotonic() + PATIENCE if self._is_read else 0.0
        written = 0
        self._is_read = False
        try:
            while written < len(data):
                written += self._write(data[written:], deadline)
        except OSError:
            # Without its line end alone, the line is a record already.
            if written < len(data) - 1:
                self._torn = written > begin or (self._torn and not written)
                raise
            self._torn = True
        else:
            self._torn, self._is_read = False, True
        self.size += len(line)

    def _write(self, data: memoryview, deadline: float) -> int:
        while True:
            try:
                return os.write(self.descriptor, data)
            except BlockingIOError:
                left = deadline - time.monotonic()
                if left <= 0:
                    raise OSError(EAGAIN, "nobody reads standard output as fast as it is written") from None
                self._room.poll(left * 1000)

    def empty(self) -> None:
        """Begin again: what was written stays, as a beginning that nothing follows."""
        self.name, self.size, self.seal = _new_name(), 0, None

    def discard(self) -> None:
        with suppress(OSError):
            os.close(self.descriptor)


def _new_name() -> str:
    """A name for the `start` of the lines. Machines and containers send theirs to one place, where many processes have
    the id 1."""
    stamp = datetime.now(UTC).strftime("%Y%m%dT%H%M%S.%fZ")
    return f"{stamp}-{socket.gethostname()}-{os.getpid()}"


@contextmanager
def unblocked(descriptor: int) -> Iterator[int]:
    """A descriptor for what this one writes to, at which writing does not wait, for the block."""
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):  # has no reader to wait for, and a place in it that a second opening would not share
        yield descriptor
        return
    if stat.S_ISFIFO(mode):
        with suppress(OSError, AttributeError):  # the user has too many pipes; the system has no such call
            fcntl.fcntl(descriptor, fcntl.F_SETPIPE_SZ, PIPE_SIZE)
    # Not blocking is a matter of the opening, which other processes and our standard error may share: have another one.
    try:
        own = os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC)
    except OSError:  # a socket, or the pipe of another user
        before = os.get_blocking(descriptor)
        os.set_blocking(descriptor, False)
        try:
            yield descriptor
        finally:
            os.set_blocking(descriptor, before)
        return
    try:
        yield own
    finally:
        os.close(own)
