"""TLS of one accepted connection, without its socket: the caller moves the bytes.

Two buffers of OpenSSL lie between, so nothing here waits, and a task that is cancelled cannot break a record: what was
encrypted is written whole, or the connection is closed, as bytes without TLS are.
"""

from __future__ import annotations

import ssl
from contextlib import suppress

OVERHEAD = 512
"""Bytes to read beyond those of the content that is wanted, so that a short body is one read: a record is longer than
its content (RFC 8446, 5.2: by up to 256, and 5 of its header)."""

_RECORD = 16 * 1024


class ServerTls:
    """The server's side of one connection.

    Raises:
        ssl.SSLError: in any method, what the client sent is no valid TLS; the connection must be closed.
    """

    __slots__ = ("_incoming", "_object", "_outgoing", "has_ended")

    def __init__(self, context: ssl.SSLContext) -> None:
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self.has_ended = False
        """The client has said that it sends nothing more."""

    def shake_hands(self, received: bytes) -> bool:
        """Take these bytes of the handshake. True when it is complete. Afterwards, `take_output` must be sent, also
        after an exception: it is the reason for the client."""
        self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        return True

    def decrypt(self, received: bytes) -> bytes:
        """The content of these bytes, as far as records are complete."""
        self._incoming.write(received)
        parts = []
        with suppress(ssl.SSLWantReadError):
            while (self._incoming.pending or self._object.pending()) and not self.has_ended:
                parts.append(self._object.read(_RECORD))
                self.has_ended = not parts[-1]
        return b"".join(parts)

    def encrypt(self, content: bytes | memoryview) -> bytes:
        """The bytes to send for this content, behind what OpenSSL had to say itself."""
        self._object.write(content)
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The bytes that OpenSSL has to say itself; usually none after the handshake."""
        return self._outgoing.read() if self._outgoing.pending else b""
