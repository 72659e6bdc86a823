"""Sealed texts: data that a peer keeps and returns, and can neither read nor change nor make.

This module defines the format of a sealed text and its binding. It does not know the content, and gives no reason for
refusing a text. A text can be opened as long as its key is kept, also in another process.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import time
from collections.abc import Callable
from functools import cached_property
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

PREFIX = "c1."
"""Format of the text, which is authenticated with the rest."""
KEY_BYTES = 32

# The cipher takes 96 bits (RFC 8439, 2.8). Random nonces are safe for some 2**32 texts of one key, which would take
# days to make.
_NONCE_BYTES = 12
_TAG_BYTES = 16
_UNTIL = struct.Struct(">d")
_LENGTH = struct.Struct(">I")


class InvalidSeal(ValueError):
    """The text was not sealed here, is for another use or caller, or has expired. The error does not tell which."""

    def __init__(self) -> None:
        super().__init__("it is not valid, or not valid any more")


class Seal:
    """Seals content for a purpose and a `binding`. Both must be equal to open it; the text reveals neither.

    Args:
        key: KEY_BYTES secret bytes.
        now: clock with Unix time, which continues when the process ends.

    Raises:
        ValueError: the key has another length.
    """

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        if len(key) != KEY_BYTES:
            raise ValueError(f"expected {KEY_BYTES} bytes")
        self._key = key
        self._now = now

    @cached_property
    def _cipher(self) -> ChaCha20Poly1305:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # many hosts never seal anything

        return ChaCha20Poly1305(self._key)

    def seal(self, purpose: str, binding: bytes, content: bytes, lifetime: float) -> str:
        """The content as text that nobody else can read, change or make: visible ASCII without padding, a third longer
        plus some 50 characters. It can be opened for `lifetime` seconds."""
        expires_at = self._now() + lifetime
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, _UNTIL.pack(expires_at) + content, _context(purpose, binding))
        return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    def unseal(self, purpose: str, binding: bytes, text: str) -> bytes:
        """The content of a text that `seal` made for the same purpose and binding.

        Raises:
            InvalidSeal: for any other text, and after its lifetime.
        """
        sealed = _decode(text)
        if len(sealed) < _NONCE_BYTES + _UNTIL.size + _TAG_BYTES:
            raise InvalidSeal
        from cryptography.exceptions import InvalidTag

        nonce, rest = sealed[:_NONCE_BYTES], sealed[_NONCE_BYTES:]
        try:
            opened = self._cipher.decrypt(nonce, rest, _context(purpose, binding))
        except InvalidTag:
            raise InvalidSeal from None
        (until,) = _UNTIL.unpack_from(opened)
        if not self._now() < until:
            raise InvalidSeal
        return opened[_UNTIL.size :]


def derive_key(secret: bytes, use: bytes) -> bytes:
    """Derive a key for one use of a shared secret. A derived key reveals none of the others.

    Raises:
        ValueError: the secret does not have KEY_BYTES bytes.
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"expected {KEY_BYTES} bytes")
    return hashlib.blake2b(use, key=secret, digest_size=KEY_BYTES, person=b"colonnade seal").digest()


def _context(purpose: str, binding: bytes) -> bytes:
    """The associated data: authenticated, but not part of the text. The length of the first part keeps the parts
    apart."""
    named = purpose.encode()
    return PREFIX.encode("ascii") + _LENGTH.pack(len(named)) + named + binding


def _decode(text: str) -> bytes:
    """The bytes of a text; raises if it is not exactly the text that encodes them."""
    if not text.startswith(PREFIX):
        raise InvalidSeal
    try:
        written = text[len(PREFIX) :].encode("ascii")
        sealed = base64.urlsafe_b64decode(written + b"=" * (-len(written) % 4))
    except ValueError:
        raise InvalidSeal from None
    # The decoder ignores foreign characters, and bits beyond the last byte.
    if base64.urlsafe_b64encode(sealed).rstrip(b"=") != written:
        raise InvalidSeal
    return sealed
