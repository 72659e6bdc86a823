"""One connection to a server: requests in one piece, limits of time, and an end at every point."""

from __future__ import annotations

import socket
from collections.abc import AsyncIterator, Awaitable, Iterator
from contextlib import asynccontextmanager, contextmanager

import pytest
import trio
from trio.testing import MockClock

from host.wire.http_client import HttpLink, open_http
from host.wire.http_connection import LINE_ENDS, MAX_READ, HttpConnection, NothingSent, PlainChannel, some_lines
from host.wire.http_errors import Broken
from host.wire.http_parser import MAX_INTERIM, MAX_INTERIM_HEAD
from host.wire.http_pool import Pool
from host.wire.http_transport import open_origin
from host.wire.link import LinkLost, ReceivedMessage
from host.wire.noise import MAX_USELESS_PER_SECOND
from host.wire.turns import PASS_BUDGET, Turns
from tests.host.wire.http_servers import Heard, Script, Wire, answer, ask, serving

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
            assert connection._received == b"", "a kept connection holds no response"
            assert server.recv(100) == b"request %d" % number


async def test_a_request_is_written_in_one_piece() -> None:
    pieces: list[bytes] = []

    class Counted(PlainChannel):
        def send(self, data: bytes, more: bytes = b"") -> Awaitable[None] | None:
            pieces.append(data + more)
            return super().send(data, more)

    ours, theirs = socket.socketpair()
    with theirs:
        theirs.send(OK)
        connection = HttpConnection(Counted(ours), Turns().turn())
        await connection.exchange(b"head and body")
        connection.close()
    assert pieces == [b"head and body"]


@pytest.mark.parametrize("split", [0, 100, 4_000_000, 5_000_000])
async def test_a_request_longer_than_the_buffers_is_sent_as_the_server_reads_it(split: int) -> None:
    request = bytes(range(250)) * 20_000
    got = bytearray()
    with pair() as (connection, server):

        async def serve() -> None:
            while len(got) < len(request):
                await trio.lowlevel.wait_readable(server)
                got.extend(server.recv(1_000_000))
            server.send(OK)

        async with trio.open_nursery() as nursery:
            nursery.start_soon(serve)
            await connection.exchange(request[:split], request[split:])
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
        channel = connection.channel
        server.close()
        with pytest.raises(NothingSent):
            channel.send(b"x")


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


@pytest.mark.parametrize("here", [False, True])
async def test_a_connection_that_is_reset_or_closed_here_is_broken(here: bool) -> None:
    with pair() as (connection, server):
        async with exchanging(connection) as errors:
            await trio.testing.wait_all_tasks_blocked()
            for end in (connection, connection) if here else (server,):  # with a request unread: a reset
                end.close()
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


async def test_a_body_with_a_length_is_there_with_its_head() -> None:
    """Its lines are not counted, be the head the one before or another one."""
    with pair() as (connection, server):
        for length in (60_000, 60_000, 60_001):
            body = b"\r\n" * 30_000 + b"x" * (length % 2)
            server.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b" % (length, body))
            await connection.exchange(b"x")
            assert connection.parser.complete
            assert connection.parser.take_body() == body
            assert connection.is_reusable


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


# --- servers that send many useless bytes: over real sockets, with turns that count ---------------------------------


CONTINUE = b"HTTP/1.1 100 Continue\r\n\r\n"


class Dear(Turns):
    """Every piece of work uses the share of a pass up; `pauses` counts how often a reader gave way."""

    def __init__(self) -> None:
        super().__init__(self._expensive)
        self._now = 0.0
        self.pauses = 0

    def _expensive(self) -> float:
        self._now += 2 * PASS_BUDGET
        return self._now

    async def next_pass(self) -> None:
        self.pauses += 1
        await super().next_pass()


@asynccontextmanager
async def linked(script: Script, turns: Turns) -> AsyncIterator[tuple[HttpLink, list[ReceivedMessage]]]:
    arrived: list[ReceivedMessage] = []
    async with (
        serving(script) as server,
        open_origin(server.url, {}, Pool(turns), turns=turns) as origin,
        open_http(origin, lambda *_: None) as link,
    ):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(link.run, arrived.append)
            yield link, arrived
            nursery.cancel_scope.cancel()


def sending(data: bytes) -> Script:
    async def script(heard: Heard, wire: Wire) -> None:
        if heard.method == "POST":
            await wire.write(data)
        else:
            await wire.say(405)

    return script


@pytest.mark.parametrize(("count", "fits"), [(0, True), (1, True), (MAX_INTERIM, True), (MAX_INTERIM + 1, False)])
async def test_interim_responses_are_counted(count: int, fits: bool) -> None:
    body = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s" % (
        len(answer()),
        answer(),
    )
    async with linked(sending(CONTINUE * count + body), Dear()) as (link, arrived):
        for _ in range(2):  # each answer has a count of its own
            if fits:
                await link.send(ask())
            else:
                with pytest.raises(LinkLost, match=f"more than {MAX_INTERIM} interim responses"):
                    await link.send(ask())
        assert len(arrived) == (2 if fits else 0)


@pytest.mark.parametrize(
    "endless",
    [
        CONTINUE,
        b"HTTP/1.1 103 Early Hints\r\nlink: </a>; rel=preload\r\nx: y\r\n\r\n",
        b"HTTP/1.0 199 \n\n",
    ],
)
async def test_endless_interim_responses_fail_the_exchange_and_hold_up_nobody(endless: bytes) -> None:
    """Lines without CR are refused before they are counted."""
    why = "does not speak HTTP" if endless.endswith(b"\n\n") else "interim responses"
    sent = 0

    async def script(heard: Heard, wire: Wire) -> None:
        nonlocal sent
        if heard.method != "POST":
            await wire.say(405)
            return
        for byte in range(len(endless)):  # cut anywhere
            await wire.write(endless[byte : byte + 1])
        while sent < 200_000:
            await wire.write(endless * 100)
            sent += 100

    async with linked(script, Dear()) as (link, arrived):
        with trio.fail_after(20), pytest.raises(LinkLost, match=why):
            await link.send(ask())
        assert not arrived
        assert sent < 200_000


async def test_an_interim_response_without_an_end_fails_the_exchange() -> None:
    head = b"HTTP/1.1 100 Continue\r\n" + b"x: y\r\n" * MAX_INTERIM_HEAD
    async with linked(sending(head), Dear()) as (link, _):
        with trio.fail_after(20), pytest.raises(LinkLost, match="interim responses"):
            await link.send(ask())


@pytest.mark.parametrize(
    ("noise", "line_ends"),
    [
        (b"1\r\n\n\r\n", 5),  # chunks of one byte, which is an empty event
        (b"9\r\ndata: \n\n\n\r\n", 7),
        (b"3\r\n:\n\n\r\n", 6),
    ],
)
async def test_others_run_while_a_stream_of_nothing_is_read(noise: bytes, line_ends: int) -> None:
    """Each pass gives no more than LINE_ENDS of it, however much one read of the socket holds."""
    count = MAX_USELESS_PER_SECOND // 3
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    event = b"data: %s\n\n" % answer()
    last = b"%x\r\n%s\r\n0\r\n\r\n" % (len(event), event)
    turns = Dear()
    async with linked(sending(head + noise * count + last), turns) as (link, arrived):
        await link.send(ask())
        assert len(arrived) == 1
        assert turns.pauses >= count * line_ends // LINE_ENDS


def sending_first(data: bytes) -> Script:
    """Answers the first request with this and no end, and the second as it should be."""
    calls = 0

    async def script(heard: Heard, wire: Wire) -> None:
        nonlocal calls
        if heard.method != "POST":
            await wire.say(405)
            return
        calls += 1
        if calls > 1:
            await wire.say(200, answer(2))
        else:
            await wire.write(data)
            await wire.wait_closed()

    return script


@pytest.mark.parametrize("noise", [b"data:\n\n", b":\n", b"id: 1\n\n", b"retry: 1\n\n"])
async def test_a_stream_that_says_nothing_too_often_fails_its_request(noise: bytes) -> None:
    """Only that request fails; other requests use the connection."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"
    script = sending_first(head + noise * (2 * MAX_USELESS_PER_SECOND))
    async with linked(script, Dear()) as (link, arrived):
        with trio.fail_after(20), pytest.raises(LinkLost, match="useless messages"):
            await link.send(ask())
        await link.send(ask(2))
        assert len(arrived) == 1


async def test_a_large_body_takes_few_turns() -> None:
    body = answer(result='"%s"' % ("x" * 1_000_000))
    head = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(body)
    turns = Dear()
    async with linked(sending(head + body), turns) as (link, arrived):
        await link.send(ask())
        assert len(arrived) == 1
        assert turns.pauses < 300  # one for each read of the socket, which gives 64 KiB at best


async def test_a_cancelled_request_ends_in_the_middle_of_what_was_received() -> None:
    """The next request works."""
    head = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
    script = sending_first(head + b"1\r\nx\r\n" * 10_000)
    turns = Dear()
    async with linked(script, turns) as (link, arrived):
        with trio.CancelScope() as scope:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(link.send, ask())
                while turns.pauses < 50:
                    await trio.lowlevel.checkpoint()
                scope.cancel()
        assert turns.pauses < 500
        await link.send(ask(2))
        assert len(arrived) == 1
