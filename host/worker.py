"""Long-running functions in worker processes, so that the event loop keeps its interpreter.

A worker thread would not help: it shares the interpreter with the loop, which releases it at every system call and must
wait to get it back. Measured on two cores with four bodies of 4 MiB being checked in threads: 60 calls a second instead
of some 300, and a median of 1.5 s for a client that sends 125 a second.

The processes are started when first needed and kept until the loop ends. Each reads orders from a socket, its standard
input, and writes the results there: a number of parts (4 bytes, big endian), their lengths (8 bytes each), and the
parts. The first part is a pickle, the others are its long texts, of which no copy is made here. The processes have no
environment, a low priority, and memory that no other process of the user can read.

Any process of the user can stop or kill them. A caller therefore waits at most WORK_TIMEOUT, or CANCEL_GRACE once it is
cancelled, and then kills the process, which also ends a stopped one. No process outlives the host: on Linux the kernel
kills it with the thread that started it; elsewhere the socket closes, whose end it notices unless it is stopped.
"""

from __future__ import annotations

import math
import os
import pickle
import socket
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO, TypeVar

import trio
from msgspec import Raw

MAX_WORKERS = 4
"""Maximum number of processes."""
NICENESS = 10
"""The lower priority of the processes: the loop must not wait for a processor because of them."""
WORK_TIMEOUT = 30.0
"""Seconds that one piece of work may take, including the start of its process (some tenths of a second, many times that
on a busy machine). A process that needs more was stopped, or gets no processor time."""
CANCEL_GRACE = 2.0
"""Seconds for which work may continue after its caller was cancelled, because a killed process must be started again. A
program has as long to react to the end of its input (connect.py)."""
KILL_LIMIT = 1.0
"""Seconds to wait for a process after SIGKILL."""

PACE_PER_BYTE = 8e-9
"""Seconds between two results for each byte of the order. After a result the caller processes the order's text in the
event loop, some 4 ns for each byte; four results may be ready at once."""

_KILLED_EVERY = 0.01
_COUNT = struct.Struct(">I")
_LONG = 64 * 1024
"""Bytes from which on a text is sent as a part of its own."""
_CHUNK = 128 * 1024
"""Bytes that are received at once; for more, the system would have to map memory each time (heap.py)."""
_ROOT = str(Path(__file__).parents[1])
_COMMAND = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from host.cli.start import die_with_parent, hide_memory; "
    "die_with_parent(); hide_memory(); from host.worker import serve; serve()"
)

T = TypeVar("T")


class WorkerTimeout(Exception):
    """A process did not end its work within WORK_TIMEOUT seconds."""


async def run_in_worker(function: Callable[..., T], *arguments: object, fall_back_to_thread: bool = True) -> T:
    """Run a function, which must be importable by its name, in another process. Returns its result or raises its
    exception.

    A worker thread does the work if the process was killed, or needed more than WORK_TIMEOUT seconds; the thread cannot
    be cancelled. A process whose work is cancelled is kept if it finishes within CANCEL_GRACE seconds.

    Args:
        fall_back_to_thread: whether a thread repeats work that took a process too long. It blocks the interpreter as
            long.

    Raises:
        WorkerTimeout: the work took too long, and no thread repeats it.
    """
    processes = _worker_pool.get(None)
    if processes is None:
        processes = _WorkerPool()
        _worker_pool.set(processes)
        trio.lowlevel.spawn_system_task(processes.close_at_exit)
    async with processes.limiter:
        order = _pack((function, _out_of_band(arguments)))
        try:
            answer = await processes.run(order)
        except WorkerTimeout:
            if not fall_back_to_thread:
                raise
            answer = None
        if answer is None:
            return await trio.to_thread.run_sync(function, *arguments)
    await processes.pace(sum(map(len, order)))
    result, problem = pickle.loads(answer[0], buffers=answer[1:])
    if problem is not None:
        raise problem
    found: T = result
    return found


class _Worker:
    """One worker process.

    Raises:
        OSError: it cannot be started.
    """

    def __init__(self) -> None:
        ours, theirs = socket.socketpair()
        with theirs:
            try:
                # From the thread of the loop, which waits for some milliseconds: the process dies with the thread that
                # starts it, and a worker thread ends when it has been idle for a while.
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-c", _COMMAND],
                    stdin=theirs.fileno(),
                    stdout=subprocess.DEVNULL,
                    env={},
                    cwd="/",
                    start_new_session=True,  # a signal for the terminal's processes is for the host, which ends these
                )
            except BaseException:
                ours.close()
                raise
        self._stream = trio.SocketStream(trio.socket.from_stdlib_socket(ours))

    async def run(self, order: list[bytes | memoryview]) -> list[bytes] | None:
        """The parts of the result of an order; None if the process ended first."""
        try:
            for part in order:
                await self._stream.send_all(part)
            (count,) = _COUNT.unpack(await self._receive(_COUNT.size))
            sizes = struct.unpack(f">{count}Q", await self._receive(8 * count))
            return [await self._receive(size) for size in sizes]
        except (trio.BrokenResourceError, EOFError):
            return None

    async def _receive(self, size: int) -> bytes:
        parts: list[bytes] = []
        while size > 0:
            data = await self._stream.receive_some(min(size, _CHUNK))
            if not data:
                raise EOFError
            parts.append(data)
            size -= len(data)
        return b"".join(parts)

    def kill(self) -> None:
        self._process.kill()
        self._stream.socket.close()

    async def wait(self) -> None:
        """Wait for the end of a killed process, and take its exit status. Shielded and bounded."""
        with trio.move_on_after(KILL_LIMIT, shield=True):
            while self._process.poll() is None:  # noqa: ASYNC110 - nobody tells
                await trio.sleep(_KILLED_EVERY)

    def reap(self) -> None:
        """Like `wait`, without the loop, which is about to end."""
        with suppress(subprocess.TimeoutExpired):
            self._process.wait(KILL_LIMIT)


class _WorkerPool:
    """The worker processes of one event loop."""

    def __init__(self) -> None:
        self.limiter = trio.CapacityLimiter(MAX_WORKERS)
        self._idle: list[_Worker] = []
        self._all: set[_Worker] = set()
        self._free_at = -math.inf

    async def close_at_exit(self) -> None:
        """Wait for the end of the loop, then end the processes."""
        try:
            await trio.sleep_forever()
        finally:
            for process in self._all:
                process.kill()
            for process in self._all:
                process.reap()

    async def pace(self, size: int) -> None:
        """Wait until the previous results have been processed."""
        at = max(trio.current_time(), self._free_at)
        self._free_at = at + size * PACE_PER_BYTE
        await trio.sleep_until(at)

    async def run(self, order: list[bytes | memoryview]) -> list[bytes] | None:
        """The parts of the result of an order; None if no process could carry it out.

        Raises:
            WorkerTimeout: the work took more than WORK_TIMEOUT seconds, and its process was killed.
        """
        try:
            process = self._idle.pop() if self._idle else self._start()
        except OSError:
            return None
        answer = None
        try:
            async with trio.open_nursery() as nursery:
                with trio.move_on_after(WORK_TIMEOUT, shield=True) as work:
                    nursery.start_soon(_limit_once_cancelled, work)
                    answer = await process.run(order)
                nursery.cancel_scope.cancel()
            if work.cancelled_caught:
                raise WorkerTimeout
        finally:
            if answer is not None:
                self._idle.append(process)
            else:
                process.kill()
                await process.wait()
                self._all.discard(process)
        return answer

    def _start(self) -> _Worker:
        process = _Worker()
        self._all.add(process)
        return process


_worker_pool: trio.lowlevel.RunVar[_WorkerPool | None] = trio.lowlevel.RunVar("processes beside the loop")


async def _limit_once_cancelled(work: trio.CancelScope) -> None:
    """Wait to be cancelled, and leave the shielded work CANCEL_GRACE seconds from then on."""
    try:
        await trio.sleep_forever()
    finally:
        work.deadline = min(work.deadline, trio.current_time() + CANCEL_GRACE)


def _out_of_band(thing: object) -> object:
    """The value, with its long texts, also in lists and tuples, as separate parts. They arrive as bytes."""
    if isinstance(thing, bytes | Raw):
        return pickle.PickleBuffer(thing) if len(thing) >= _LONG else thing
    if type(thing) is list:
        return list(map(_out_of_band, thing))
    return tuple(map(_out_of_band, thing)) if type(thing) is tuple else thing


def _pack(thing: object) -> list[bytes | memoryview]:
    """The parts to write for a value, in order."""
    texts: list[memoryview] = []
    head = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda text: texts.append(text.raw()))
    sizes = [len(head), *map(len, texts)]
    return [_COUNT.pack(len(sizes)), struct.pack(f">{len(sizes)}Q", *sizes), head, *texts]


# In the worker process


def serve() -> None:
    """Carry out orders until the host or the socket ends."""
    os.nice(NICENESS)
    with socket.socket(fileno=sys.stdin.fileno()) as host, suppress(KeyboardInterrupt, EOFError, ConnectionError):
        orders = host.makefile("rb")
        while True:
            (count,) = _COUNT.unpack(_read(orders, _COUNT.size))
            sizes = struct.unpack(f">{count}Q", _read(orders, 8 * count))
            head, *parts = [_read(orders, size) for size in sizes]
            function, arguments = pickle.loads(head, buffers=parts)
            for part in _pack(_outcome(function, arguments)):
                host.sendall(part)


def _read(orders: BinaryIO, size: int) -> bytes:
    data = orders.read(size)
    if len(data) < size:  # the host is gone, perhaps in the middle of an order
        raise EOFError
    return data


def _outcome(function: Callable[..., object], arguments: tuple[object, ...]) -> tuple[object, Exception | None]:
    try:
        return _out_of_band(function(*arguments)), None
    except Exception as problem:  # noqa: BLE001 - it is raised where somebody waits for it
        return None, problem
