"""One connection to a server: requests in one piece, limits of time, and an end at every point."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from trio.testing import MockClock

from host.wire.http_connection import LINE_ENDS, MAX_READ, HttpConnection, NothingSent, PlainChannel, some_lines
from host.wire.http_errors import Broken
from host.wire.turns import Turns

OK = b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc"


@contextmanager
def pair() -> Iterator[tuple[HttpConnection, socket.socket]]:
    """A connection, and the server's end of it."""
    ours, theirs = socket.socketpair()
    theirs.setblocking(False)
    connection = HttpConnection(PlainChannel(ours), Turns().turn())
    with theirs:
        yield connection, theirs
        connection.close()


@asynccontextmanager
async def exchanging(connection: HttpConnection, request: bytes = b"x") -> AsyncIterator[list[Broken]]:
    """An exchange in the background. It yields the errors of it."""
    errors: list[Broken] = []

    async def exchange() -> None:
        try:
            await connection.exchange(request)
            while await connection.read():
                pass
        except Broken as broken:
            errors.append(broken)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(exchange)
        yield errors


async def test_one_exchange_follows_another() -> None:
    with pair() as (connection, server):
        for number in range(3):
            server.send(OK)
            await connection.exchange(b"request %d" % number)
            assert await connection.read() == b"abc"
            assert await connection.read() == b""
            assert connection.is_reusable
            assert server.recv(100) == b"request %d" % number


async def test_a_request_is_written_in_one_piece() -> None:
    pieces: list[bytes] = []

    class Counted(PlainChannel):
        async def send(self, data: bytes) -> None:
            pieces.append(data)
            await super().send(data)

    ours, theirs = socket.socketpair()
    with theirs:
        theirs.send(OK)
        connection = HttpConnection(Counted(ours), Turns().turn())
        await connection.exchange(b"head and body")
        connection.close()
    assert pieces == [b"head and body"]


async def test_a_request_longer_than_the_buffers_is_sent_as_the_server_reads_it() -> None:
    request = b"x" * 5_000_000
    got = bytearray()
    with pair() as (connection, server):

        async def serve() -> None:
            while len(got) < len(request):
                await trio.lowlevel.wait_readable(server)
                got.extend(server.recv(1_000_000))
            server.send(OK)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await connection.exchange(request)
    assert got == request


async def test_a_server_that_does_not_read_is_given_up(autojump_clock: MockClock) -> None:
    with pair() as (connection, _):
        async with exchanging(connection, b"x" * 5_000_000) as errors:
            await trio.sleep(9)
            assert errors == []
            await trio.sleep(2)
    assert str(errors[0]) == "it read no data for 10 s"
    assert not errors[0].unanswered


async def test_a_server_that_reads_slowly_is_given_the_time_it_needs(autojump_clock: MockClock) -> None:
    got = 0
    with pair() as (connection, server):
        async with exchanging(connection, b"x" * 5_000_000) as errors:
            while got < 5_000_000:
                await trio.sleep(9)
                got += len(server.recv(1_000_000))
            server.send(OK)
        assert errors == []


async def test_a_server_that_refuses_before_it_has_read_all_is_heard() -> None:
    with pair() as (connection, server):
        async with exchanging(connection, b"x" * 5_000_000) as errors:
            await trio.testing.wait_all_tasks_blocked()
            server.send(b"HTTP/1.1 413 X\r\nContent-Length: 0\r\n\r\n")
            server.close()
        assert errors == []
        assert connection.parser.status == 413


async def test_nothing_can_be_sent_on_a_connection_that_the_server_closed() -> None:
    with pair() as (connection, server):
        server.close()
        with pytest.raises(Broken) as caught:
            await connection.exchange(b"x")
        assert (caught.value.unwritten, caught.value.unanswered) == (True, True)
    with pair() as (connection, server):
        channel = connection._channel
        server.close()
        with pytest.raises(NothingSent):
            await channel.send(b"x")


@pytest.mark.parametrize(("said", "unanswered"), [(b"", True), (b"H", False), (OK[:-1], False)])
async def test_a_connection_that_ends_tells_whether_anything_came(said: bytes, unanswered: bool) -> None:
    with pair() as (connection, server):
        async with exchanging(connection) as errors:
            await trio.testing.wait_all_tasks_blocked()
            server.recv(100)
            server.send(said)
            server.close()
        assert (errors[0].unanswered, errors[0].unwritten) == (unanswered, False)
        assert str(errors[0]) == "it closed the connection before the end of the response, or does not speak HTTP"
        assert not connection.is_reusable


async def test_a_connection_that_is_reset_is_broken() -> None:
    with pair() as (connection, server):
        async with exchanging(connection) as errors:
            await trio.testing.wait_all_tasks_blocked()
            server.close()  # with a request unread: a reset
        assert str(errors[0]) == "the connection broke before the end of the response"


async def test_an_exchange_ends_when_its_connection_is_closed_here() -> None:
    with pair() as (connection, _):
        async with exchanging(connection) as errors:
            await trio.testing.wait_all_tasks_blocked()
            connection.close()
            connection.close()
        assert str(errors[0]) == "the connection broke before the end of the response"


async def test_nothing_is_sent_once_cancelled() -> None:
    with pair() as (connection, server):
        with trio.CancelScope() as scope:
            scope.cancel()
            await connection.exchange(b"x")
        assert scope.cancelled_caught
        with pytest.raises(BlockingIOError):
            server.recv(1)


async def test_an_unused_connection_is_quiet_until_something_comes() -> None:
    with pair() as (connection, server):
        assert connection.is_quiet()
        server.send(b"x")
        assert not connection.is_quiet()
    with pair() as (connection, server):
        server.close()
        assert not connection.is_quiet()


async def test_bytes_after_a_response_end_the_connection() -> None:
    with pair() as (connection, server):
        server.send(OK + OK)
        await connection.exchange(b"x")
        assert await connection.read() == b"abc"
        assert not connection.is_reusable


async def test_a_long_body_comes_in_pieces_of_one_read() -> None:
    body = b"x" * 300_000
    pieces: list[int] = []
    with pair() as (connection, server):
        server.setblocking(True)

        async def serve() -> None:
            await trio.to_thread.run_sync(
                server.sendall, b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
            )

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await connection.exchange(b"x")
            while piece := await connection.read():
                pieces.append(len(piece))
    assert sum(pieces) == len(body)
    assert max(pieces) <= MAX_READ


@pytest.mark.parametrize(
    ("data", "sizes"),
    [
        (b"x" * 1000, [1000]),
        (b"x\n" * LINE_ENDS, [2 * LINE_ENDS]),
        (b"x\n" * LINE_ENDS + b"y", [2 * LINE_ENDS + 1]),
        (b"x\n" * (LINE_ENDS + 1) + b"y", [2 * LINE_ENDS, 2, 1]),
        (b"\r\n" * LINE_ENDS, [LINE_ENDS, LINE_ENDS]),
        (b"\r" * (2 * LINE_ENDS), [LINE_ENDS, LINE_ENDS]),
    ],
)
def test_a_read_gives_so_many_line_ends_at_the_most(data: bytes, sizes: list[int]) -> None:
    at, found = 0, list[int]()
    while at < len(data):
        end = some_lines(data, at)
        found.append(end - at)
        at = end
    assert found == sizes


def test_looking_for_line_ends_takes_linear_time() -> None:
    """Also with nearly enough line ends, in pairs."""
    for data in (b"\r\n" * (LINE_ENDS // 2) + b"x" * 60_000, b"\n" + b"\r" * LINE_ENDS, b"x" * 65536):
        assert some_lines(data, 0) > 0
        assert some_lines(data, 1) > 1
