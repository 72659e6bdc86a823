"""Bytes that go out in somebody else's hands and come back: nobody can read them there, or change them, or make others.

This file knows how a sealed text is made and what it is bound to. It refuses to know what is sealed, and tells nobody
why a text is refused. A text opens for as long as its key is kept, also in another process.
"""

from __future__ import annotations

import base64
import hashlib
import os
import struct
import time
from collections.abc import Callable

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

PREFIX = "c1."
"""Says the format of the text; it is authenticated with the rest."""
KEY_BYTES = 32

# Random nonces are safe up to some 2**32 texts of one key, which is days of making nothing else.
_NONCE_BYTES = 12
_TAG_BYTES = 16
_UNTIL = struct.Struct(">d")
_LENGTH = struct.Struct(">I")


class InvalidSeal(ValueError):
    """The text is not ours, not for this use, not for this caller, or too old: nobody is told which."""

    def __init__(self) -> None:
        super().__init__("it is not valid, or not valid any more")


class Seal:
    """Seals content to a purpose and to whatever else it is good for (`binding`); both must be the same to open it, and
    neither can be read off the text.

    Args:
        key: KEY_BYTES secret bytes.
        now: a clock, in seconds, that goes on when the process ends: Unix time.

    Raises:
        ValueError: the key is of another length.
    """

    def __init__(self, key: bytes, now: Callable[[], float] = time.time) -> None:
        self._cipher = ChaCha20Poly1305(key)
        self._now = now

    def seal(self, purpose: str, binding: bytes, content: bytes, lifetime: float) -> str:
        """The content as text that nobody else can read, change or make: visible ASCII, without padding, some 50
        characters and a third longer. It opens for `lifetime` seconds."""
        expires_at = self._now() + lifetime
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._cipher.encrypt(nonce, _UNTIL.pack(expires_at) + content, _context(purpose, binding))
        return PREFIX + base64.urlsafe_b64encode(sealed).rstrip(b"=").decode("ascii")

    def unseal(self, purpose: str, binding: bytes, text: str) -> bytes:
        """The content of a text that `seal` made for the same purpose and bound.

        Raises:
            InvalidSeal: of any other text, and once its lifetime is over.
        """
        sealed = _decode(text)
        if len(sealed) < _NONCE_BYTES + _UNTIL.size + _TAG_BYTES:
            raise InvalidSeal
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
    """A key for one use of a secret that has several: whoever has one of them knows none of the others.

    Raises:
        ValueError: the secret is not of KEY_BYTES bytes.
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"expected {KEY_BYTES} bytes")
    return hashlib.blake2b(use, key=secret, digest_size=KEY_BYTES, person=b"colonnade seal").digest()


def _context(purpose: str, binding: bytes) -> bytes:
    """The associated data: authenticated, not carried. Its parts cannot run into each other, since the first one's
    length is in it."""
    named = purpose.encode()
    return PREFIX.encode("ascii") + _LENGTH.pack(len(named)) + named + binding


def _decode(text: str) -> bytes:
    """The bytes that exactly this text stands for, and no other one."""
    if not text.startswith(PREFIX):
        raise InvalidSeal
    try:
        written = text[len(PREFIX) :].encode("ascii")
        sealed = base64.urlsafe_b64decode(written + b"=" * (-len(written) % 4))
    except ValueError:
        raise InvalidSeal from None
    # The decoder passes over foreign characters, and over bits beyond the last byte.
    if base64.urlsafe_b64encode(sealed).rstrip(b"=") != written:
        raise InvalidSeal
    return sealed
