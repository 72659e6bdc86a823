"""TLS of one connection, without its socket: the caller moves the bytes.

Two buffers of OpenSSL lie between, so nothing here waits, and a task that is cancelled cannot break a record: what was
encrypted is written whole, or the connection is closed, as bytes without TLS are.
"""

from __future__ import annotations

import ssl
from collections.abc import Callable, Mapping
from typing import Any

OVERHEAD = 512
"""Bytes to read beyond those of the content that is wanted, so that a short body is one read: a record is longer than
its content (RFC 8446, 5.2: by up to 256, and 5 of its header)."""

_RECORD = 16 * 1024


class BufferedTls:
    """One side of a connection, that of the server by default.

    Args:
        member: the client asks for the member of a group with this name (`Certificate`); None for the side of a server.
        accepts: says whether the certificate of the other side will do, see `Certificate.accepts`; None if any will
            that `context` verifies.

    Raises:
        ssl.SSLError: in any method, what the other side sent is no valid TLS; the connection must be closed.
    """

    __slots__ = ("_accepts", "_incoming", "_object", "_outgoing", "has_ended")

    def __init__(
        self,
        context: ssl.SSLContext,
        accepts: Callable[[Mapping[str, Any]], bool] | None = None,
        *,
        member: str | None = None,
    ) -> None:
        self._accepts = accepts
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._object = context.wrap_bio(
            self._incoming, self._outgoing, server_side=member is None, server_hostname=member
        )
        self.has_ended = False
        """The other side has said that it sends nothing more."""

    def shake_hands(self, received: bytes) -> bool:
        """Take these bytes of the handshake. True when it is complete. Afterwards, `take_output` must be sent, also
        after an exception: it is the reason for the other side."""
        self._incoming.write(received)
        try:
            self._object.do_handshake()
        except ssl.SSLWantReadError:
            return False
        if self._accepts is not None and not self._accepts(self._object.getpeercert() or {}):
            raise ssl.SSLError("the certificate of the other side is for another name")
        return True

    @property
    def protocol(self) -> str | None:
        """The protocol that both sides have agreed upon in the handshake; None if they have not."""
        return self._object.selected_alpn_protocol()

    @property
    def has_unread(self) -> bool:
        """Whether bytes were received that `decrypt` has not returned."""
        return self._incoming.pending > 0

    def decrypt(self, received: bytes) -> bytes:
        """The content of these bytes, as far as records are complete."""
        self._incoming.write(received)
        content = b""
        try:
            # OpenSSL holds no content back: a read returns all of one record.
            while self._incoming.pending and not self.has_ended:
                part = self._object.read(_RECORD)
                self.has_ended = not part
                content = content + part if content else part
        except ssl.SSLWantReadError:
            pass
        return content

    def encrypt(self, content: bytes | memoryview) -> bytes:
        """The bytes to send for this content, behind what OpenSSL had to say itself."""
        self._object.write(content)
        return self._outgoing.read()

    def take_output(self) -> bytes:
        """The bytes that OpenSSL has to say itself; usually none after the handshake."""
        return self._outgoing.read() if self._outgoing.pending else b""
