"""Joined connections: bytes and ends go both ways, and a side that does not read stops the other one."""

from __future__ import annotations

import errno
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import trio

from host.wire.tunnel import CHUNK, HALF_CLOSED_TIMEOUT, connect, join, receive, reset, send_whole
from host.wire.turns import Turns

pytestmark = pytest.mark.virtual_time


def tcp_pair() -> tuple[socket.socket, socket.socket]:
    """The two ends of a connection over loopback."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        near = socket.create_connection(listener.getsockname())
        far, _ = listener.accept()
    for each in (near, far):
        each.setblocking(False)
    return near, far


@asynccontextmanager
async def joined() -> AsyncIterator[tuple[socket.socket, socket.socket, trio.Event]]:
    """Two clients whose connections are joined, and what is set when the tunnel has ended."""
    (client, inside), (outside, server) = tcp_pair(), tcp_pair()
    ended = trio.Event()

    async def work() -> None:
        await join(inside, outside, Turns())
        ended.set()

    with client, inside, outside, server:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(work)
            yield client, server, ended
            nursery.cancel_scope.cancel()


async def whole(source: socket.socket) -> bytes:
    data = b""
    while piece := await receive(source):
        data += piece
    return data


async def test_bytes_go_both_ways() -> None:
    async with joined() as (client, server, _):
        await send_whole(client, b"there")
        assert await receive(server) == b"there"
        await send_whole(server, b"and back")
        assert await receive(client) == b"and back"


async def test_the_end_of_one_direction_leaves_the_other_one_open() -> None:
    async with joined() as (client, server, ended):
        await send_whole(client, b"question")
        client.shutdown(socket.SHUT_WR)
        assert await whole(server) == b"question"
        assert not ended.is_set()
        await send_whole(server, b"answer")
        server.shutdown(socket.SHUT_WR)
        assert await whole(client) == b"answer"
        await ended.wait()


async def test_a_side_that_does_not_read_stops_the_other_one() -> None:
    """The bytes on the way are in the buffers of the kernel, and one chunk."""
    sent = 0

    async def send_much() -> None:
        nonlocal sent
        while True:
            await send_whole(client, bytes(CHUNK))
            sent += CHUNK

    async with joined() as (client, server, _):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(send_much)
            before = -1
            while sent > before:
                before = sent
                await trio.sleep(1)
            nursery.cancel_scope.cancel()
        assert 0 < sent < 64 * 1024**2
        taken = 0
        with trio.move_on_after(1):
            while taken < sent:
                taken += len(await receive(server))
        assert taken >= sent


@pytest.mark.parametrize("which", ["client", "server"])
async def test_if_one_side_breaks_the_other_one_sees_it(which: str) -> None:
    async with joined() as (client, server, ended):
        await send_whole(client, b"x")
        await receive(server)
        broken, left = (client, server) if which == "client" else (server, client)
        reset(broken)
        with pytest.raises(ConnectionResetError):
            await receive(left)
        await ended.wait()


async def test_a_direction_that_is_left_over_ends_when_nothing_comes() -> None:
    async with joined() as (client, server, ended):
        client.shutdown(socket.SHUT_WR)
        assert await receive(server) == b""
        await trio.sleep(HALF_CLOSED_TIMEOUT - 1)
        await send_whole(server, b"x")
        assert await receive(client) == b"x"
        await trio.sleep(HALF_CLOSED_TIMEOUT - 1)
        assert not ended.is_set()
        await trio.sleep(2)
        assert ended.is_set()


async def test_an_open_tunnel_may_be_silent() -> None:
    async with joined() as (client, server, _):
        await trio.sleep(10 * HALF_CLOSED_TIMEOUT)
        await send_whole(client, b"x")
        assert await receive(server) == b"x"


async def test_a_connection_is_made_to_an_address() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        with await connect(*listener.getsockname()) as made:
            assert made.getpeername() == listener.getsockname()
        listener.accept()[0].close()
        address = listener.getsockname()
    with pytest.raises(ConnectionRefusedError) as refused:
        await connect(*address)
    assert refused.value.errno == errno.ECONNREFUSED
