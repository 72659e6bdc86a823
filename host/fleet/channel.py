"""A connection to another process over TLS, for streams, or for HTTP/1.1 with one of an earlier version: without trio's
own TLS, which takes several passes of the event loop for each part."""

from __future__ import annotations

import socket
from collections.abc import Awaitable

import trio

from host.wire.buffered_tls import BufferedTls
from host.wire.http_connection import MAX_WRITE, NothingSent, PlainChannel


class MemberChannel:
    """Implements `http_connection.ByteChannel`. It owns the socket. `shake_hands` must be called first."""

    def __init__(self, sock: socket.socket, tls: BufferedTls) -> None:
        self._below = PlainChannel(sock)
        self._tls = tls

    async def shake_hands(self) -> str | None:
        """Returns the protocol that was agreed upon."""
        received, is_done = b"", False
        while not is_done:
            is_done = self._tls.shake_hands(received)
            await self._send_part(self._tls.take_output())
            if not is_done and not (received := await self._below.receive()):
                raise trio.BrokenResourceError("it ended in the handshake")
        return self._tls.protocol

    def send(self, data: bytes, more: bytes = b"") -> Awaitable[None] | None:
        if more or len(data) > MAX_WRITE:
            return self._send_parts(data, more)
        return self._below.send(self._tls.encrypt(data))

    async def _send_parts(self, data: bytes, more: bytes) -> None:
        for part in (data, more):
            for at in range(0, len(part), MAX_WRITE):
                await self._send_part(self._tls.encrypt(part[at : at + MAX_WRITE]))

    async def _send_part(self, encrypted: bytes) -> None:
        try:
            rest = self._below.send(encrypted)
        except NothingSent as problem:  # of these bytes; others may have been sent before
            raise trio.BrokenResourceError from problem
        if rest is not None:
            await rest

    async def receive(self, *, at_once: bool = False) -> bytes:
        while data := await self._below.receive(at_once=at_once):
            if (content := self._tls.decrypt(data)) or self._tls.has_ended:
                return content
            at_once = False
        return b""

    def is_quiet(self) -> bool:
        return self._below.is_quiet() and not self._tls.has_unread

    def close(self) -> None:
        self._below.close()
