"""More than a thousand connections of clients that ask for nothing: everybody else is served."""

from __future__ import annotations

import json
import resource
import socket
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from .running import Running, recorder, serving, write_config

CONNECTIONS = 1100
TOKEN = "t" * 32
PATIENCE = 30.0
"""Less than the 75 s after which an idle connection ends by itself."""


@pytest.fixture(scope="module", params=["without tokens", "with tokens"])
def host(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder = tmp_path_factory.mktemp("full")
    listen: dict[str, object] = {"address": "127.0.0.1:0"}
    if request.param == "with tokens":
        listen["auth"] = {"tokens": {"laptop": TOKEN}}
    servers = {"a": recorder(folder / "a.log")}
    with serving(write_config(folder, servers, listen=listen), "a") as host:
        yield host


@pytest.fixture(autouse=True)
def many_files() -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


def address(host: Running) -> tuple[str, int]:
    name, _, port = host.url.removeprefix("http://").partition("/")[0].partition(":")
    return name, int(port)


@contextmanager
def attacked(host: Running) -> Iterator[list[socket.socket]]:
    """For the block, so many connections are open; most of them are idle after a request, which needs no token."""
    attack: list[socket.socket] = []
    try:
        for _ in range(CONNECTIONS):
            attack.append(socket.create_connection(address(host), PATIENCE))
            attack[-1].sendall(b"GET /healthz HTTP/1.1\r\nHost: localhost\r\n\r\n")
        yield attack
    finally:
        for each in attack:
            each.close()


def is_open(connection: socket.socket) -> bool:
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return True
    except ConnectionResetError:
        pass
    return False


def exchange(host: Running, method: str, path: str, body: bytes = b"") -> bytes:
    """One request on a connection of its own, and the head of its answer."""
    head = f"{method} {path} HTTP/1.1\r\nHost: localhost:{address(host)[1]}\r\nAuthorization: Bearer {TOKEN}\r\n"
    head += "Accept: application/json, text/event-stream\r\nConnection: close\r\n"
    if body:
        head += f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n"
    with socket.create_connection(address(host), PATIENCE) as connection:
        connection.settimeout(PATIENCE)
        connection.sendall(head.encode() + b"\r\n" + body)
        return connection.recv(4096)


def opening() -> bytes:
    info = {"protocolVersion": "2025-11-25", "capabilities": {}, "clientInfo": {"name": "t", "version": "1"}}
    return json.dumps({"jsonrpc": "2.0", "id": 1, "method": "initialize", "params": info}).encode()


def test_a_thousand_idle_connections_lock_nobody_out(host: Running) -> None:
    """Neither a client, nor the person at the console, nor whoever watches the process."""
    with attacked(host) as attack:
        for path, body in (("/mcp", opening()), ("/console", b""), ("/healthz", b"")) * 3:
            answer = exchange(host, "POST" if body else "GET", path, body)
            assert answer.startswith(b"HTTP/1.1 200"), (path, answer)
        assert sum(map(is_open, attack)) > 850, "nobody had to wait for them to end"
