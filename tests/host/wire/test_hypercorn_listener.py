"""Hypercorn's part: that it never changes the protocol, and that its parser is spared parts of lines.

All else that this server promises is checked, beside the default server, in test_listener.py and test_acceptor.py.
"""

from __future__ import annotations

import pytest
import trio
import trio.testing
from hypercorn.protocol.h11 import H11Protocol

from host.wire import hypercorn_listener
from host.wire.asgi import Receive, Scope, Send

from .sites import GET, ask, hello, read_to, serve_at_port

UPGRADES = (
    b"Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
    b"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\n"
    b"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
)


@pytest.mark.parametrize("fields", UPGRADES)
async def test_no_request_leads_to_another_protocol(fields: bytes) -> None:
    """Hypercorn alone would answer 101 to both."""
    seen: list[str] = []

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.append(scope["type"])
        await hello(scope, receive, send)

    async with serve_at_port(hypercorn_listener.serve_http, app) as site:
        assert (await ask(site, GET[:-2] + fields + b"\r\n")).startswith(b"HTTP/1.1 426 ")
    assert seen == []


async def test_the_parser_gets_whole_lines_of_a_head_that_comes_byte_by_byte(monkeypatch: pytest.MonkeyPatch) -> None:
    fed = 0

    class Counting(hypercorn_listener.Http1):
        async def handle(self, event: object) -> None:
            nonlocal fed
            fed += 1
            await H11Protocol.handle(self, event)  # type: ignore[arg-type]  # it is one of hypercorn's

    monkeypatch.setattr(hypercorn_listener, "Http1", Counting)
    async with serve_at_port(hypercorn_listener.serve_http, hello) as site, await site.connect() as stream:
        for byte in GET:
            await stream.send_all(bytes([byte]))
            await trio.testing.wait_all_tasks_blocked(0.001)
        await read_to(stream, b"got    0")
        assert 3 <= fed <= 8
