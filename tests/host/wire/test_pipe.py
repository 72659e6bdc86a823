"""Whole lines into a real pipe: nobody waits, nothing interleaves, and a reader that is gone or stuck is noticed."""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator
from dataclasses import dataclass
from functools import partial

import pytest
import trio
import trio.testing

from host.wire.pipe import MAX_BACKLOG, STALL_TIMEOUT, LineWriter, PipeStalled


@dataclass
class Pipe:
    reader: int
    writer: int
    room: int = 0
    """Bytes it takes before it is full."""

    def read(self, count: int = 1 << 20) -> bytes:
        try:
            return os.read(self.reader, count)
        except BlockingIOError:
            return b""

    def close_reader(self) -> None:
        os.close(self.reader)
        self.reader = -1


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    reader, writer = os.pipe()
    os.set_blocking(reader, False)
    os.set_blocking(writer, False)
    made = Pipe(reader, writer)
    made.room = os.write(writer, bytes(1 << 20))
    assert len(os.read(reader, 1 << 20)) == made.room
    yield made
    for fd in (made.reader, made.writer):
        if fd >= 0:
            os.close(fd)


async def read_all(pipe: Pipe, size: int) -> bytes:
    got = b""
    while len(got) < size:
        await trio.lowlevel.wait_readable(pipe.reader)
        got += pipe.read(1000)
    return got


def test_a_line_that_fits_is_written_at_once(pipe: Pipe) -> None:
    """Without any loop running: it takes no task and no wait."""

    async def write() -> None:
        writer = LineWriter(pipe.writer)
        writer.write_line(b"one")
        writer.write_line(b"")

    trio.run(write)
    assert pipe.read() == b"one\n\n"


async def test_lines_longer_than_the_pipe_come_out_whole_and_in_order(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    sent = [bytes([65 + number]) * (pipe.room // 3 * 2 + number) for number in range(8)]
    for line in sent[:4]:
        writer.write_line(line)
    nursery.start_soon(writer.run)
    await trio.testing.wait_all_tasks_blocked()
    for line in sent[4:]:
        writer.write_line(line)
    expected = b"".join(line + b"\n" for line in sent)
    assert await read_all(pipe, len(expected)) == expected


async def test_a_line_for_a_pipe_that_is_just_full_waits_whole(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    writer.write_line(b"x" * (pipe.room - 1))
    writer.write_line(b"next")
    assert pipe.read() == b"x" * (pipe.room - 1) + b"\n"
    nursery.start_soon(writer.run)
    assert await read_all(pipe, 5) == b"next\n"


async def test_a_line_written_while_others_wait_does_not_overtake_them(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    long = b"x" * (pipe.room + 10)
    writer.write_line(long)
    first = pipe.read()
    writer.write_line(b"short")
    assert pipe.read() == b"", "there is room, but it is not its turn"
    nursery.start_soon(writer.run)
    rest = await read_all(pipe, len(long) + 1 + 6 - len(first))
    assert first + rest == long + b"\nshort\n"


async def test_many_writers_never_interleave(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    nursery.start_soon(writer.run)

    async def write(mark: bytes) -> None:
        for size in (1, 700, pipe.room + 1, 3):
            writer.write_line(mark * size)
            await trio.lowlevel.checkpoint()

    for mark in b"abcdef":
        nursery.start_soon(write, bytes([mark]))
    size = 6 * (1 + 700 + pipe.room + 1 + 3 + 4)
    lines = (await read_all(pipe, size)).split(b"\n")
    assert all(len(set(line)) <= 1 for line in lines)
    assert len(lines) == 25


async def test_a_cancelled_writer_leaves_no_half_line(pipe: Pipe, nursery: trio.Nursery) -> None:
    """The next writer finishes the incomplete line."""
    writer = LineWriter(pipe.writer)
    long = b"x" * (pipe.room * 2)
    writer.write_line(long)
    with trio.CancelScope() as scope:
        scope.cancel()
        await writer.run()
    writer.write_line(b"next")
    nursery.start_soon(writer.flush)
    assert await read_all(pipe, len(long) + 6) == long + b"\nnext\n"


async def test_a_reader_that_reads_nothing_is_given_up_after_a_while(
    pipe: Pipe, autojump_clock: trio.testing.MockClock
) -> None:
    writer = LineWriter(pipe.writer)
    writer.write_line(b"x" * (pipe.room * 2))
    begun = trio.current_time()
    with pytest.raises(PipeStalled, match="nothing was read for 10 s"):
        await writer.run()
    assert trio.current_time() - begun == pytest.approx(STALL_TIMEOUT)
    with pytest.raises(PipeStalled, match="closed"):
        writer.write_line(b"later")
    assert pipe.read() == b"x" * pipe.room, "nothing was glued to the half line"


async def test_a_slow_reader_is_not_given_up(pipe: Pipe, autojump_clock: trio.testing.MockClock) -> None:
    writer = LineWriter(pipe.writer)
    long = b"x" * (pipe.room * 4)
    writer.write_line(long)
    got = b""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(writer.flush)
        for _ in range(5):
            await trio.sleep(STALL_TIMEOUT * 0.9)
            got += pipe.read()
    assert got == long + b"\n"


def test_a_reader_that_is_gone_is_noticed_at_once(pipe: Pipe) -> None:
    async def write() -> None:
        writer = LineWriter(pipe.writer)
        pipe.close_reader()
        for _ in range(2):
            with pytest.raises(PipeStalled, match="closed"):
                writer.write_line(b"x")

    trio.run(write)


async def test_a_reader_that_goes_while_lines_wait_is_noticed(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    writer.write_line(b"x" * (pipe.room * 2))

    async def run() -> None:
        with pytest.raises(PipeStalled, match="closed"):
            await writer.run()
        nursery.cancel_scope.cancel()

    nursery.start_soon(run)
    await trio.testing.wait_all_tasks_blocked()
    pipe.close_reader()
    await trio.sleep_forever()


@pytest.mark.parametrize("waiting", [1, 2])
async def test_a_line_beyond_the_backlog_is_refused_whole(pipe: Pipe, nursery: trio.Nursery, waiting: int) -> None:
    """No byte of it is written, because the next line would continue it."""
    writer = LineWriter(pipe.writer)
    long = b"x" * pipe.room * 2
    for _ in range(waiting):
        writer.write_line(long)
    with pytest.raises(PipeStalled, match="wait to be read"):
        writer.write_line(b"y" * MAX_BACKLOG)
    writer.write_line(b"z")
    nursery.start_soon(writer.run)
    expected = (long + b"\n") * waiting + b"z\n"
    assert await read_all(pipe, len(expected)) == expected


async def read_much(pipe: Pipe, size: int) -> bytes:
    parts = []
    while size > 0:
        await trio.lowlevel.wait_readable(pipe.reader)
        parts.append(pipe.read())
        size -= len(parts[-1])
    return b"".join(parts)


async def test_a_line_longer_than_the_backlog_is_taken_when_nothing_waits(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    writer.write_line(b"y" * (MAX_BACKLOG + 10))
    nursery.start_soon(writer.run)
    assert len(await read_much(pipe, MAX_BACKLOG + 11)) == MAX_BACKLOG + 11


async def test_writing_in_turn_waits_for_room_and_loses_nothing(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    nursery.start_soon(writer.run)
    lines = [bytes([letter]) * (MAX_BACKLOG // 2) for letter in b"abcd"]
    for line in lines:
        nursery.start_soon(writer.write_when_room, line)
    await trio.testing.wait_all_tasks_blocked()
    got = await read_much(pipe, sum(map(len, lines)) + len(lines))
    assert sorted(got.split()) == lines


async def test_whoever_waits_for_room_learns_that_the_reader_is_gone(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    writer.write_line(b"x" * MAX_BACKLOG)

    async def fail(work: Callable[[], Awaitable[None]]) -> None:
        with pytest.raises(PipeStalled):
            await work()

    nursery.start_soon(fail, writer.run)
    nursery.start_soon(fail, partial(writer.write_when_room, b"y" * pipe.room * 2))
    await trio.testing.wait_all_tasks_blocked()
    pipe.close_reader()


async def test_the_backlog_is_given_back_as_it_is_read(pipe: Pipe, nursery: trio.Nursery) -> None:
    writer = LineWriter(pipe.writer)
    nursery.start_soon(writer.run)
    for _ in range(3):
        line = b"x" * (MAX_BACKLOG - 1)
        writer.write_line(line)
        got = 0
        while got < MAX_BACKLOG:
            await trio.lowlevel.wait_readable(pipe.reader)
            got += len(pipe.read())
