"""Connections to HTTP servers that send many useless bytes: over real sockets, with turns that count."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpcore
import pytest
import trio

from host.wire.http_client import HttpLink, open_http
from host.wire.http_connection import LINE_ENDS, MAX_WRITE
from host.wire.http_network import Stream
from host.wire.http_parser import MAX_INTERIM, MAX_INTERIM_HEAD
from host.wire.link import LinkLost, ReceivedMessage
from host.wire.noise import MAX_USELESS_PER_SECOND
from host.wire.turns import PASS_BUDGET, Turns
from tests.host.wire.http_servers import BOTH_CLIENTS, Heard, Script, Wire, answer, ask, only, serving, transport

pytestmark = BOTH_CLIENTS

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
        open_http(server.url, {}, lambda *_: None, transport=transport(turns), turns=turns) as link,
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


@only("httpx")
async def test_the_limit_of_time_for_writing_is_for_each_piece_of_a_long_request() -> None:
    written: list[tuple[int, float | None]] = []

    class Inner(httpcore.AsyncNetworkStream):
        async def write(self, buffer: bytes, timeout: float | None = None) -> None:
            written.append((len(buffer), timeout))

    await Stream(Inner(), Turns()).write(b"x" * (2 * MAX_WRITE + 1), 10.0)
    assert written == [(MAX_WRITE, 10.0), (MAX_WRITE, 10.0), (1, 10.0)]


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
async def test_endless_interim_responses_fail_the_exchange_and_hold_up_nobody(endless: bytes, client: str) -> None:
    """The built-in client refuses lines without CR before it counts."""
    why = "does not speak HTTP" if client == "built-in" and endless.endswith(b"\n\n") else "interim responses"
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
    """Cancelled in the innermost generator: no response is left half read, and the next request works."""
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
