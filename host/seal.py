"""Sealed texts: data that a peer keeps and returns, and can neither read nor change nor make.

This module defines the format of a sealed text and its binding. It does not know the content, and gives no reason for
refusing a text. A text can be opened as long as its key is kept, also in another process.
"""

from __future__ import annotations

import base64
import hashlib
import os
import secrets
import struct
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cached_property
from importlib import import_module
from typing import TYPE_CHECKING

import trio

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305

    from config import Fleet

PREFIX = "c1."
"""Format of the text, which is authenticated with the rest."""
KEY_BYTES = 32
CIPHERS = "cryptography.hazmat.primitives.ciphers.aead"
BOOT_BYTES = 8

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
        former: keys that seal nothing, and open what was sealed with them: those before a change of the key, or the
            next one, until all processes that share it have it.

    Raises:
        ValueError: a key has another length.
    """

    def __init__(self, key: bytes, now: Callable[[], float] = time.time, former: Sequence[bytes] = ()) -> None:
        if any(len(each) != KEY_BYTES for each in (key, *former)):
            raise ValueError(f"expected {KEY_BYTES} bytes")
        self._keys = (key, *former)
        self._now = now
        self.boot = secrets.token_hex(BOOT_BYTES)
        """Id of this process among those that have the keys, one after the other or at once. Sealed content may name
        it, where only the process that sealed it can make use of it."""

    @cached_property
    def _ciphers(self) -> tuple[ChaCha20Poly1305, ...]:
        from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305  # many hosts never seal anything

        return tuple(map(ChaCha20Poly1305, self._keys))

    async def ready(self) -> None:
        """Load the cipher, if `seal` would do so, in a thread: it would hold the event loop for some 20 ms."""
        if CIPHERS not in sys.modules:
            await trio.to_thread.run_sync(import_module, CIPHERS)

    def has_ended(self, boot: str) -> bool:
        """Whether a process that had the keys has ended, by its id: as far as is known here, each but this one."""
        return boot != self.boot

    def seal(self, purpose: str, binding: bytes, content: bytes, lifetime: float) -> str:
        """The content as text that nobody else can read, change or make: visible ASCII without padding, a third longer
        plus some 50 characters. It can be opened for `lifetime` seconds."""
        expires_at = self._now() + lifetime
        nonce = os.urandom(_NONCE_BYTES)
        sealed = nonce + self._ciphers[0].encrypt(nonce, _UNTIL.pack(expires_at) + content, _context(purpose, binding))
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
        for cipher in self._ciphers:
            with suppress(InvalidTag):
                opened = cipher.decrypt(nonce, rest, _context(purpose, binding))
                break
        else:
            raise InvalidSeal
        (until,) = _UNTIL.unpack_from(opened)
        if not self._now() < until:
            raise InvalidSeal
        return opened[_UNTIL.size :]

    def digests(self, purpose: str, content: bytes) -> Iterator[bytes]:
        """KEY_BYTES bytes for each key, the present one first, that only its holders can compute: equal for an equal
        purpose and content."""
        for key in self._keys:
            digest = hashlib.blake2b(key=key, digest_size=KEY_BYTES, person=b"colonnade digest")
            digest.update(_context(purpose, content))
            yield digest.digest()


def derive_key(secret: bytes, use: bytes) -> bytes:
    """Derive a key for one use of a shared secret. A derived key reveals none of the others.

    Raises:
        ValueError: the secret does not have KEY_BYTES bytes.
    """
    if len(secret) != KEY_BYTES:
        raise ValueError(f"expected {KEY_BYTES} bytes")
    return hashlib.blake2b(use, key=secret, digest_size=KEY_BYTES, person=b"colonnade seal").digest()


def fleet_keys(use: bytes, fleet: Fleet) -> tuple[bytes, ...]:
    """The keys of a fleet for one use; the first one is for what is made from now on."""
    return tuple(derive_key(secret, use + b" " + fleet.name.encode()) for secret in fleet.secrets)


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
