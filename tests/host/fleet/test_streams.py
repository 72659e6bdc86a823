"""Streams of one connection: what they share, what they may send, and how they end."""

from __future__ import annotations

import math
import ssl
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager
from struct import pack

import pytest
import trio
from trio.testing import wait_all_tasks_blocked

from host.fleet.streams import CREDIT, DATA, END, MOST_QUEUED, UNUSED_EXPIRY, WINDOW, MemberStream, Streams
from host.wire.http_connection import NothingSent


class End:
    """One side of a connection. `writes` are those that it has made."""

    def __init__(self, accepts: bool = True, is_opener: bool = False) -> None:
        self.writes: list[bytes] = []
        self.accepted: list[MemberStream] = []
        self.other: End | None = None
        self.gate: trio.Event | None = None
        """The connection takes nothing until it is set."""
        self.problem: Exception | None = None
        """The reason why the connection takes nothing any more."""
        self._token = trio.lowlevel.current_trio_token()
        self._put, self._come = trio.open_memory_channel[bytes](math.inf)

        def accept(stream: MemberStream) -> bool:
            self.accepted.append(stream)
            return accepts

        self.streams = Streams(self.send, self._receive, None if is_opener else accept)

    def send(self, data: bytes) -> Awaitable[None] | None:
        if self.problem is not None:
            raise self.problem
        self.writes.append(data)
        if self.gate is not None:
            return self._send_later(self.gate, data)
        self._deliver(data)
        return None

    async def _send_later(self, gate: trio.Event, data: bytes) -> None:
        await gate.wait()
        self._deliver(data)

    def _deliver(self, data: bytes) -> None:
        if self.other is not None:  # later, as a socket does: no task may be woken here
            self._token.run_sync_soon(self.other.give, data)

    def give(self, data: bytes) -> None:
        self._put.send_nowait(data)

    async def _receive(self) -> bytes:
        return await self._come.receive()


@asynccontextmanager
async def open_ends(*, accepts: bool = True) -> AsyncIterator[tuple[End, End]]:
    """The side that opens streams, and the other one."""
    near, far = End(is_opener=True), End(accepts)
    near.other, far.other = far, near
    async with trio.open_nursery() as nursery:
        for end in (near, far):
            nursery.start_soon(end.streams.run)
        yield near, far
        nursery.cancel_scope.cancel()


def frame(kind: int, id: int, number: int, content: bytes = b"") -> bytes:
    return pack(">BII", kind, id, number) + content


async def sent(stream: MemberStream, data: bytes, more: bytes = b"") -> None:
    if (rest := stream.send(data, more)) is not None:
        await rest


async def read(stream: MemberStream, size: int) -> bytes:
    found = b""
    with trio.fail_after(5):
        while len(found) < size:
            found += await stream.receive()
    return found


async def test_what_all_streams_send_in_one_pass_is_one_write() -> None:
    async with open_ends() as (near, far):
        streams = [near.streams.open() for _ in range(3)]
        for number, stream in enumerate(streams):
            assert stream.send(b"to %d" % number) is None
        await wait_all_tasks_blocked()
        assert len(near.writes) == 1
        assert [await stream.receive() for stream in far.accepted] == [b"to 0", b"to 1", b"to 2"]
        for stream in far.accepted:
            assert stream.send(b"back") is None
        assert [await stream.receive() for stream in streams] == [b"back"] * 3
        assert len(far.writes) == 1


@pytest.mark.parametrize("size", [WINDOW - 1, WINDOW, WINDOW + 1, 5 * WINDOW])
async def test_a_stream_that_is_not_read_holds_back_its_sender_and_no_other(size: int) -> None:
    async with open_ends() as (near, far):
        long, short = near.streams.open(), near.streams.open()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sent, long, b"x" * size)
            await wait_all_tasks_blocked()
            nursery.start_soon(sent, short, b"y")
            await wait_all_tasks_blocked()
            slow, quick = far.accepted
            assert len(slow.received) == min(size, WINDOW)
            assert await quick.receive() == b"y"
            assert await read(slow, size) == b"x" * size
        assert not long.received
        assert long.is_quiet()


async def test_short_messages_without_end_need_no_more_than_their_window() -> None:
    async with open_ends() as (near, far):
        stream = near.streams.open()
        for _ in range(5):
            await sent(stream, b"x" * (WINDOW // 2), b"y" * 10)
            await wait_all_tasks_blocked()
            assert await read(far.accepted[0], WINDOW // 2 + 10)
        await wait_all_tasks_blocked()
        assert len(far.writes) == 5


async def test_the_end_comes_behind_what_was_sent_and_is_told_to_both() -> None:
    async with open_ends() as (near, far):
        stream = near.streams.open()
        assert stream.send(b"last") is None
        await wait_all_tasks_blocked()
        (there,) = far.accepted
        assert await there.receive() == b"last"
        assert there.send(b"answer") is None
        there.close()
        await wait_all_tasks_blocked()
        assert not stream.is_quiet()
        assert (await stream.receive(), await stream.receive()) == (b"answer", b"")
        with pytest.raises(NothingSent):
            stream.send(b"more")
        with pytest.raises(trio.ClosedResourceError):
            await read(there, 5)
        assert len(near.streams) == len(far.streams) == 0


async def test_who_waits_at_a_stream_that_is_closed_here_is_woken() -> None:
    async with open_ends() as (near, _), trio.open_nursery() as nursery:
        reading, writing = near.streams.open(), near.streams.open()

        async def read_closed() -> None:
            with pytest.raises(trio.ClosedResourceError):
                await reading.receive()

        async def write_closed() -> None:
            with pytest.raises(trio.BrokenResourceError):
                await sent(writing, b"x" * 2 * WINDOW)

        nursery.start_soon(read_closed)
        nursery.start_soon(write_closed)
        await wait_all_tasks_blocked()
        reading.close()
        writing.close()


@pytest.mark.parametrize("size", [5, 3 * WINDOW + 5])
@pytest.mark.parametrize("crosses", [False, True], ids=["all was taken", "more comes as it ends"])
async def test_who_waits_at_a_stream_that_ends_learns_whether_all_was_taken(size: int, crosses: bool) -> None:
    """Such as the request over a stream that the other side closes since it was idle."""
    async with open_ends() as (near, far), trio.open_nursery() as nursery:
        stream = near.streams.open()
        nursery.start_soon(sent, stream, b"x" * size)
        await wait_all_tasks_blocked()
        await read(far.accepted[0], size)
        await wait_all_tasks_blocked()
        far.accepted[0].close()
        if crosses:
            assert stream.send(b"next") is None
            with pytest.raises(NothingSent):
                await stream.receive()
        else:
            assert await stream.receive() == b""


async def test_a_refused_stream_tells_that_nothing_was_read() -> None:
    async with open_ends(accepts=False) as (near, far):
        stream = near.streams.open()
        assert stream.send(b"request") is None
        with pytest.raises(NothingSent):
            await stream.receive()
        assert far.writes == [frame(END, 1, 0)]


@pytest.mark.parametrize("problem", [NothingSent(), ssl.SSLError("it has failed"), OSError("no buffer is left")])
async def test_what_the_connection_did_not_take_was_not_sent_and_no_other_connection_ends(problem: Exception) -> None:
    async with open_ends() as (near, far), open_ends() as (beside, there):
        before, after = near.streams.open(), near.streams.open()
        assert before.send(b"x") is None
        await wait_all_tasks_blocked()
        near.problem = problem
        assert after.send(b"x") is None
        with trio.fail_after(5):
            with pytest.raises(NothingSent):
                await after.receive()
            assert await before.receive() == b""
        with pytest.raises(NothingSent):
            near.streams.open().send(b"x")
        assert len(far.accepted) == 1
        assert beside.streams.open().send(b"y") is None
        await wait_all_tasks_blocked()
        assert [stream.received for stream in there.accepted] == [b"y"]


async def test_what_waited_for_a_connection_that_ends_was_not_sent() -> None:
    """Neither what was queued last, nor what had no turn before."""
    async with open_ends() as (near, _), trio.open_nursery() as nursery:
        near.gate = trio.Event()
        sent_before, waits = near.streams.open(), near.streams.open()
        assert sent_before.send(b"x") is None
        await wait_all_tasks_blocked()

        async def ask() -> None:
            with pytest.raises(NothingSent):
                await sent(waits, b"x")
            assert await waits.receive() == b""

        with trio.fail_after(5):
            async with trio.open_nursery() as asking:
                asking.start_soon(ask)
                await wait_all_tasks_blocked()
                near.give(b"")
            assert await sent_before.receive() == b""
        nursery.cancel_scope.cancel()


async def test_a_connection_that_is_finished_ends_once_all_was_taken() -> None:
    near, far = End(is_opener=True), End()
    near.other, far.other = far, near
    async with trio.open_nursery() as nursery:
        nursery.start_soon(near.streams.run)
        stream = near.streams.open()
        assert stream.send(b"x") is None
        async with trio.open_nursery() as serving:
            serving.start_soon(far.streams.run)
            await wait_all_tasks_blocked()
            far.gate = gate = trio.Event()
            assert await far.accepted[0].receive() == b"x"
            assert far.accepted[0].send(b"begin") is None
            await wait_all_tasks_blocked()
            far.accepted[0].close()
            far.streams.finish()
            await wait_all_tasks_blocked()
            assert serving.child_tasks, "it waits"
            gate.set()
        assert (await stream.receive(), await stream.receive()) == (b"begin", b"")
        nursery.cancel_scope.cancel()


async def test_who_was_woken_in_vain_is_told_so_whatever_else_wakes_it() -> None:
    async with open_ends() as (near, _), trio.open_nursery() as nursery:
        stream, woken = near.streams.open(), list[bool]()

        async def wait() -> None:
            woken.append(await stream.may_receive.wait())

        for wakes in ([True, False], [False, True], [False], [True]):
            nursery.start_soon(wait)
            await wait_all_tasks_blocked()
            for in_vain in wakes:
                stream.may_receive.wake(in_vain=in_vain)
            await wait_all_tasks_blocked()
        assert woken == [False, False, True, False]


async def test_a_connection_that_takes_nothing_holds_back_all_and_goes_on() -> None:
    async with open_ends() as (near, far):
        near.gate = gate = trio.Event()
        streams = [near.streams.open() for _ in range(3)]
        assert streams[0].send(b"x") is None
        await wait_all_tasks_blocked()
        assert not streams[0].send_whole(b"y")
        near.gate = None
        async with trio.open_nursery() as nursery:
            for stream in streams[1:]:
                nursery.start_soon(sent, stream, b"y" * 2 * WINDOW)
            await wait_all_tasks_blocked()
            assert len(near.writes) == 1
            gate.set()
            await wait_all_tasks_blocked()
            for stream in far.accepted[1:]:
                nursery.start_soon(read, stream, 2 * WINDOW)
        await wait_all_tasks_blocked()
        assert streams[1].send_whole(b"z")


async def test_what_waits_for_the_end_of_a_pass_has_a_limit() -> None:
    async with open_ends() as (near, far):
        streams = [near.streams.open() for _ in range(2 * MOST_QUEUED // WINDOW)]
        async with trio.open_nursery() as nursery:
            for stream in streams:
                nursery.start_soon(sent, stream, b"x" * WINDOW)
        await wait_all_tasks_blocked()
        assert max(map(len, near.writes)) <= MOST_QUEUED + 2 * WINDOW
        assert len(far.accepted) == len(streams)


async def test_streams_that_send_much_have_their_turns_one_after_the_other() -> None:
    """None waits while another one sends again and again."""
    number, windows = 50, 20
    async with open_ends() as (near, far), trio.open_nursery() as nursery:
        for _ in range(number):
            nursery.start_soon(sent, near.streams.open(), b"x" * windows * WINDOW)
        taken = dict.fromkeys(range(1, number + 1), 0)
        with trio.fail_after(5):
            while sum(taken.values()) < 3 * number * WINDOW:
                for stream in far.accepted:
                    taken[stream.id] += len(stream.take())
                await trio.lowlevel.checkpoint()
        assert min(taken.values()) >= WINDOW
        nursery.cancel_scope.cancel()


async def test_a_task_that_does_not_wait_for_it_takes_what_comes_as_it_comes() -> None:
    async with open_ends() as (near, far):
        stream, taken = near.streams.open(), list[bytes]()

        def take(content: bytes) -> bool:
            taken.append(content)
            return content != b"not this"

        stream.on_data = take
        assert stream.send(b"x") is None
        await wait_all_tasks_blocked()
        for said in (b"this", b"not this", b"and this comes behind it"):
            assert far.accepted[0].send(said) is None
            await wait_all_tasks_blocked()
        assert taken == [b"this", b"not this"]
        assert await stream.receive() == b"not thisand this comes behind it"
        far.accepted[0].close()
        await wait_all_tasks_blocked()
        assert taken[2:] == [b""]


BAD = {
    "no such kind": frame(3, 1, 0),
    "a stream without a number": frame(DATA, 0, 1, b"x"),
    "a number that is not the next": frame(DATA, 3, 1, b"x"),
    "more than a window": frame(DATA, 1, WINDOW + 1),
    "more than may be sent": frame(DATA, 1, WINDOW, b"x" * WINDOW) + frame(DATA, 1, 1, b"x"),
    "the end of a stream that was not opened": frame(END, 1, 0),
    "credit of a stream that was not opened": frame(CREDIT, 2, 1),
    "more credit than was used": frame(DATA, 1, 1, b"x") + frame(CREDIT, 1, 1),
}


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
async def test_frames_against_the_rules_end_the_connection_and_all_its_streams(bad: bytes) -> None:
    end = End()
    end.give(bad)
    with trio.fail_after(5):
        await end.streams.run()
    assert end.streams.is_over
    assert all(stream.has_ended for stream in end.accepted)
    assert len(end.accepted) <= 1


async def test_the_side_that_opens_streams_is_given_none() -> None:
    end = End(is_opener=True)
    end.give(frame(DATA, 1, 1, b"x"))
    with trio.fail_after(5):
        await end.streams.run()
    assert end.streams.is_over


async def test_who_opens_streams_that_are_refused_and_reads_nothing_is_cut_off() -> None:
    end = End(accepts=False)
    end.give(b"".join(frame(DATA, id, 0) for id in range(1, MOST_QUEUED // 9 + 10)))
    with trio.fail_after(5):
        await end.streams.run()
    assert end.streams.is_over


async def test_frames_come_in_any_parts_and_late_ones_of_a_stream_that_has_ended_are_dropped() -> None:
    end = End()
    said = frame(DATA, 1, 3, b"abc") + frame(END, 1, 0) + frame(DATA, 1, 1, b"x") + frame(DATA, 2, 2, b"de")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(end.streams.run)
        for at in range(len(said)):
            end.give(said[at : at + 1])
        await wait_all_tasks_blocked()
        assert [stream.received for stream in end.accepted] == [b"abc", b"de"]
        nursery.cancel_scope.cancel()


async def test_a_connection_without_streams_is_used_again_for_a_while(autojump_clock: trio.testing.MockClock) -> None:
    async with open_ends() as (near, _):
        stream = near.streams.open()
        assert stream.send(b"x") is None
        await trio.sleep(2 * UNUSED_EXPIRY)
        assert near.streams.is_usable
        stream.close()
        await trio.sleep(UNUSED_EXPIRY - 1)
        assert near.streams.is_usable
        await trio.sleep(1)
        assert not near.streams.is_usable


async def test_what_is_queued_is_sent_when_the_connection_is_closed_and_nothing_after_it() -> None:
    async with open_ends() as (near, _):
        stream = near.streams.open()
        assert stream.send(b"x") is None
        near.streams.close()
        assert near.writes == [frame(DATA, 1, 1, b"x")]
        stream.close()
        near.streams.close()
        await wait_all_tasks_blocked()
        assert len(near.writes) == 1
