"""Clients that take their time: theirs is lost, nobody else's."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import trio

from .clients import HandClient, by_hand
from .running import Running, recorder, serving, write_config

SIZE = 7 * 1024 * 1024
"""More than the kernel takes off our hands."""


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("slow-readers")
    with serving(write_config(folder, {"a": recorder(folder / "a.log")}), "a") as host:
        yield host


@contextmanager
def asked_for_much(client: HandClient) -> Iterator[socket.socket]:
    """A connection on which a large answer waits to be read."""
    params = {"name": "a__much", "arguments": {"size": SIZE}}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    address, _, path = client.url.removeprefix("http://").partition("/")
    name, _, port = address.partition(":")
    headers = {**client.headers, "host": address, "content-length": str(len(body)), "connection": "close"}
    head = f"POST /{path} HTTP/1.1\r\n" + "".join(f"{name}: {value}\r\n" for name, value in headers.items())
    with socket.socket() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 64 * 1024)
        connection.settimeout(10)
        connection.connect((name, int(port)))
        connection.sendall(head.encode() + b"\r\n" + body)
        yield connection


async def test_an_answer_that_is_read_late_is_whole_and_holds_up_nobody(host: Running) -> None:
    """A client that begins to read a large answer after a while gets all of it; others are served meanwhile."""
    async with by_hand(host.url) as client:
        with asked_for_much(client) as connection:
            for _ in range(12):  # beyond the moment after which a silent answer becomes a stream
                await trio.sleep(0.1)
                assert "result" in await client.ask("ping")
            answer = bytearray()
            while data := await trio.to_thread.run_sync(connection.recv, 1024 * 1024):
                answer += data
        assert answer.startswith(b"HTTP/1.1 200")
        assert sum(map(len, re.findall(rb"m{8,}", answer))) == SIZE  # in one chunk or several
        assert "result" in await client.ask("ping")


async def test_sigterm_is_obeyed_while_nobody_reads(tmp_path: Path) -> None:
    """Three clients that never read their large answer do not keep the host from ending."""
    with serving(write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}), "a", stop=False) as host:
        async with by_hand(host.url) as client:
            with asked_for_much(client), asked_for_much(client), asked_for_much(client):
                await client.ask("tools/call", {"name": "a__echo"})  # the server has written the large answers before
                await trio.to_thread.run_sync(host.stop)
