"""Functions that take long, run in processes beside this one, so that the event loop keeps its interpreter.

A worker thread is no help here: it shares the interpreter with the loop, which gives it up at every system call and has
to wait for it each time. Measured on two cores with four bodies of 4 MiB being checked in threads: 60 calls a second
instead of some 300, and a median of 1.5 s for whoever sends 125 a second.

The processes are started when they are first needed and kept until the loop ends. Each reads orders from its standard
input and writes what came of them to its standard output: a number of parts (4 bytes, big endian), their lengths (8
bytes each), and the parts. The first part is a pickle, the others are long texts that belong into it, of which no copy
is made here. The end of its input ends a process, which the kernel closes also for a host that was killed. They have no
environment, a low priority, and memory that no other process of the user can read.
"""

from __future__ import annotations

import os
import pickle
import struct
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, TypeVar

import trio
from msgspec import Raw

AT_ONCE = 4
"""Processes at the most."""
NICENESS = 10

_COUNT = struct.Struct(">I")
_LONG = 64 * 1024
"""Bytes of a text from which on it is sent by itself."""
_ROOT = str(Path(__file__).parents[1])
_COMMAND = (
    f"import sys; sys.path.insert(0, {_ROOT!r}); from host.cli import hide_memory; hide_memory(); "
    "from host.aside import serve; serve()"
)

T = TypeVar("T")


async def run_aside(function: Callable[..., T], *arguments: object) -> T:
    """Run a function, which must be found in its module by its name, in another process; its result, or its exception.
    Once it has begun it is not cancelled: the work is bounded, and a killed process would have to be started again."""
    processes = _processes.get(None)
    if processes is None:
        processes = _Processes()
        _processes.set(processes)
        trio.lowlevel.spawn_system_task(processes.hold)
    async with processes.limiter:
        with trio.CancelScope(shield=True):
            try:
                result, problem = await processes.run(_packed((function, tuple(map(_by_itself, arguments)))))
            except (OSError, trio.BrokenResourceError, EOFError):  # it was killed, or cannot be started
                return await trio.to_thread.run_sync(function, *arguments)
    if problem is not None:
        raise problem
    found: T = result
    return found


class _Processes:
    """Those of one event loop."""

    def __init__(self) -> None:
        self.limiter = trio.CapacityLimiter(AT_ONCE)
        self._idle: list[trio.Process] = []
        self._all: set[trio.Process] = set()

    async def hold(self) -> None:
        """Wait for the end of the loop, then end the processes."""
        try:
            await trio.sleep_forever()
        finally:
            with trio.CancelScope(shield=True):
                for process in list(self._all):
                    await self._end(process)

    async def run(self, order: list[bytes | memoryview]) -> tuple[Any, Exception | None]:
        process = self._idle.pop() if self._idle else await self._start()
        try:
            assert process.stdin is not None
            for part in order:
                await process.stdin.send_all(part)
            (count,) = _COUNT.unpack(await _exactly(process, _COUNT.size))
            sizes = struct.unpack(f">{count}Q", await _exactly(process, 8 * count))
            head, *parts = [await _exactly(process, size) for size in sizes]
            result, problem = pickle.loads(head, buffers=parts)
        except BaseException:
            await self._end(process)
            raise
        self._idle.append(process)
        return result, problem

    async def _start(self) -> trio.Process:
        process = await trio.lowlevel.open_process(
            [sys.executable, "-I", "-c", _COMMAND],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={},
            cwd="/",
            start_new_session=True,  # a signal for the terminal's processes is for the host, which ends these
        )
        self._all.add(process)
        return process

    async def _end(self, process: trio.Process) -> None:
        self._all.discard(process)
        process.kill()
        await process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                await stream.aclose()


_processes: trio.lowlevel.RunVar[_Processes | None] = trio.lowlevel.RunVar("processes beside the loop")


async def _exactly(process: trio.Process, size: int) -> bytes:
    """That many bytes of what it writes.

    Raises:
        EOFError: it ended before.
    """
    assert process.stdout is not None
    found = bytearray()
    while len(found) < size:
        data = await process.stdout.receive_some(size - len(found))
        if not data:
            raise EOFError
        found += data
    return bytes(found)


def _by_itself(argument: object) -> object:
    return pickle.PickleBuffer(argument) if isinstance(argument, bytes | Raw) and len(argument) >= _LONG else argument


def _packed(thing: object) -> list[bytes | memoryview]:
    """The parts to be written for a thing, in their order."""
    texts: list[memoryview] = []
    head = pickle.dumps(thing, pickle.HIGHEST_PROTOCOL, buffer_callback=lambda text: texts.append(text.raw()))
    sizes = [len(head), *map(len, texts)]
    return [_COUNT.pack(len(sizes)), struct.pack(f">{len(sizes)}Q", *sizes), head, *texts]


# In the other process


def serve() -> None:
    """Carry out orders until standard input ends."""
    os.nice(NICENESS)
    orders, results = sys.stdin.buffer, sys.stdout.buffer
    with suppress(KeyboardInterrupt, BrokenPipeError):
        while begun := orders.read(_COUNT.size):
            (count,) = _COUNT.unpack(begun)
            head, *parts = [orders.read(size) for size in struct.unpack(f">{count}Q", orders.read(8 * count))]
            function, arguments = pickle.loads(head, buffers=parts)
            for part in _packed(_outcome(function, arguments)):
                results.write(part)
            results.flush()


def _outcome(function: Callable[..., object], arguments: tuple[object, ...]) -> tuple[object, Exception | None]:
    try:
        return function(*arguments), None
    except Exception as problem:  # noqa: BLE001 - it is raised where somebody waits for it
        return None, problem
