"""Bytes between two processes over TLS, against a real listener."""

from __future__ import annotations

import socket
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio

from host.fleet.channel import MemberChannel
from host.wire.asgi import Receive, Scope, Send, read_body, respond
from host.wire.buffered_tls import BufferedTls
from host.wire.certificate import Certificate
from tests.host.wire.sites import serving
from tests.kit.certificates import Authority

SIZE = 3_000_000
HEAD = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"


async def echo(scope: Scope, receive: Receive, send: Send) -> None:
    await respond(send, 200, {}, await read_body(receive, SIZE))


@asynccontextmanager
async def open_pair(folder: Path, shown: Certificate | None = None) -> AsyncIterator[MemberChannel]:
    authority = Authority(folder)
    certificate = Certificate(*authority.sign("member", "acme.internal"), authority.ca, name="a")
    context = (shown or certificate).outgoing
    assert context is not None
    async with serving(echo, certificate=certificate) as site:
        stream = await site.connect()
        channel = MemberChannel(trio_socket(stream), BufferedTls(context, member="a"))
        try:
            yield channel
        finally:
            channel.close()
        site.scope.cancel()


async def send(channel: MemberChannel, data: bytes, more: bytes = b"") -> None:
    if (rest := channel.send(data, more)) is not None:
        await rest


def trio_socket(stream: trio.SocketStream) -> socket.socket:
    return socket.socket(fileno=stream.socket.detach())


@pytest.mark.slow
async def test_long_and_short_messages_come_whole_and_an_idle_connection_is_quiet(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as channel:
        await channel.shake_hands()
        for body in (b"x", b"y" * SIZE, b"z"):
            received = b""
            async with trio.open_nursery() as nursery:
                nursery.start_soon(send, channel, HEAD % len(body), body)
                while not received.endswith(body) or b"\r\n\r\n" not in received:
                    received += await channel.receive()
            assert received.partition(b"\r\n\r\n")[2] == body
            assert channel.is_quiet()
        channel.close()
        assert not channel.is_quiet()
        with pytest.raises(trio.ClosedResourceError):
            await channel.receive()


async def test_the_end_of_the_other_side_is_seen_and_so_is_a_foreign_one(tmp_path: Path) -> None:
    async with open_pair(tmp_path) as channel:
        await channel.shake_hands()
        await send(channel, b"nonsense\r\n\r\n")
        while await channel.receive():
            pass
        assert not channel.is_quiet()
    foreign = Authority(tmp_path / "foreign")
    async with open_pair(tmp_path, Certificate(*foreign.sign("m", "acme.internal"), foreign.ca)) as channel:
        with pytest.raises(ssl.SSLError):
            await channel.shake_hands()
