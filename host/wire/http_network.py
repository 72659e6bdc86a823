"""Network backend for httpcore: TCP connections to HTTP servers, whose input is handled in fair turns (`turns`).

An HTTP client handles everything within one read without a checkpoint, and a read of 64 KiB can hold 2,600 interim
responses, 10,000 chunks of one byte or 30,000 empty events. A read therefore returns at most LINE_ENDS line ends. They
measure the work well: heads, chunks and events consist of lines, and a large JSON body has few.

Interim responses (1xx) are counted here, because httpcore reads any number of them without returning.
"""

from __future__ import annotations

import re
import ssl
from collections.abc import Iterable
from typing import Any

import httpcore
import trio

from host.wire.http_connection import MAX_WRITE, some_lines
from host.wire.http_parser import MAX_INTERIM, MAX_INTERIM_HEAD
from host.wire.turns import Turns

_INTERIM = re.compile(rb"HTTP/[0-9]\.[0-9] 1(?!01)[0-9]{2}[^\n]*\n(?:[^\r\n][^\n]*\n)*+\r?\n")
_MAY_BE_INTERIM = re.compile(rb"HTTP/[0-9]\.[0-9] 1(?!01)")
_SHORTEST = len(b"HTTP/1.1 100")


class HttpcoreTooManyInterim(httpcore.RemoteProtocolError):
    """The server sent too many interim responses, or one that is too long. One of httpcore, since httpx
    turns only these into errors of its own."""


class Backend(httpcore.TrioBackend):
    """Opens connections that share the turns of all links of one host."""

    def __init__(self, turns: Turns) -> None:
        self._turns = turns

    async def connect_tcp(
        self,
        host: str,
        port: int,
        timeout: float | None = None,
        local_address: str | None = None,
        socket_options: Iterable[httpcore.SOCKET_OPTION] | None = None,
    ) -> httpcore.AsyncNetworkStream:
        return Stream(await super().connect_tcp(host, port, timeout, local_address, socket_options), self._turns)


class Stream(httpcore.AsyncNetworkStream):
    """One connection. The time between two reads is accounted for as work on the bytes of the first one."""

    def __init__(self, inner: httpcore.AsyncNetworkStream, turns: Turns) -> None:
        self._inner = inner
        self._turns = turns
        self._turn = turns.turn()
        self._working = False
        self._received, self._given = b"", 0
        """The bytes last received from the network, and how many of them have been returned."""
        self._head: bytes | None = b""
        """The beginning of the response while it may be an interim one; None after that."""
        self._interim = 0

    async def read(self, max_bytes: int, timeout: float | None = None) -> bytes:
        if self._working:
            await self._turn.yield_if_over()
        if self._given < len(self._received):
            await trio.lowlevel.checkpoint_if_cancelled()
        else:
            self._received, self._given = await self._inner.read(max_bytes, timeout), 0
            self._count_interim(self._received)
        self._working = True
        self._turn.begin()
        begin, self._given = self._given, some_lines(self._received, self._given)
        return self._received[begin : self._given]

    async def write(self, buffer: bytes, timeout: float | None = None) -> None:
        # Another request begins: the time since the last response was not spent on its bytes.
        self._working, self._head, self._interim = False, b"", 0
        for at in range(0, len(buffer), MAX_WRITE):  # the timeout is for each, not for a long request
            await self._inner.write(buffer[at : at + MAX_WRITE], timeout)

    async def aclose(self) -> None:
        await self._inner.aclose()

    async def start_tls(
        self, ssl_context: ssl.SSLContext, server_hostname: str | None = None, timeout: float | None = None
    ) -> httpcore.AsyncNetworkStream:
        return Stream(await self._inner.start_tls(ssl_context, server_hostname, timeout), self._turns)

    def get_extra_info(self, info: str) -> Any:
        if info == "is_readable" and self._given < len(self._received):
            return True
        return self._inner.get_extra_info(info)

    def _count_interim(self, data: bytes) -> None:
        if self._head is None:
            return
        head, at = self._head + data, 0
        while found := _INTERIM.match(head, at):
            at = found.end()
            self._interim += 1
            if self._interim > MAX_INTERIM:
                raise HttpcoreTooManyInterim("too many interim responses")
        rest = head[at:]
        undecided = len(rest) < _SHORTEST or _MAY_BE_INTERIM.match(rest) is not None
        self._head = rest if undecided and data else None
        if undecided and len(rest) > MAX_INTERIM_HEAD:
            raise HttpcoreTooManyInterim("an interim response is too long")
