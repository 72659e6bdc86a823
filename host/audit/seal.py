"""The forward-secure seal of the audit: a chain of keys, each of which is erased once the next one is made.

`colonnade audit init` makes the verification key K, shows it once and stores none of it. The keys of files follow from
it: k(0) = H(K), k(i+1) = H(k(i)). The keys of records follow from that of their file: m(0) = H(k(i)), m(n+1) = H(m(n)).
Each kind of key has a prefix of its own in the hash. Only k of the next file is on the disk, and only m of the next
record in memory. An intruder finds these and cannot go back: he can write anything from then on, but the holder of K
sees every change of an older record. (systemd's journal is sealed in the same way.)

    seal         the chain, and the index and key of the next file
    seal.lock    locked while a file takes its key
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Event

import msgspec

from host.storage.directory import replace_file

LOCK_LIMIT = 2.0
"""Seconds to wait for another process that takes a key, which takes milliseconds."""

MAX_INDEX = 10_000_000
"""Files that a chain can have: some seconds of computing keys."""

_INNER, _OUTER = (bytes(byte ^ pad for byte in range(256)) for pad in (0x36, 0x5C))
_INNER_END, _OUTER_END = 32 * b"\x36", 32 * b"\x5c"


class NoKey(ValueError):
    """The text is not a verification key. The exception's text is a sentence."""


class SealExists(Exception):
    """There is a chain already."""


class SealState(msgspec.Struct, frozen=True):
    """`seal`: `index` and `key` are of the next file. Other members, which former versions wrote, are ignored."""

    chain: str
    index: int
    key: str

    def advanced(self) -> SealState:
        """The state once the next file has taken its key."""
        return SealState(self.chain, self.index + 1, next_key(bytes.fromhex(self.key)).hex())


class FileSeal:
    """The seal of one file that is written: the key of its next record."""

    def __init__(self, chain: str, index: int, file_key: bytes) -> None:
        self.chain = chain
        self.index = index
        self._key = _derived(b"file", file_key)

    def mac(self, digest: str) -> str:
        """The `mac` of the next record, whose `hash` this is."""
        # As `hmac.digest` does, in half of its time: a key of 32 bytes is filled up with zeros to 64.
        inner = hashlib.sha256(self._key.translate(_INNER) + _INNER_END + digest.encode()).digest()
        return hashlib.sha256(self._key.translate(_OUTER) + _OUTER_END + inner).hexdigest()

    def advance(self) -> None:
        """The record is written: its key is gone."""
        self._key = _derived(b"record", self._key)


class ChainKeys:
    """The keys of all files of a chain, from its verification key."""

    def __init__(self, key: bytes) -> None:
        self.chain = chain_of(key)
        self.first_state = first_state(key)
        self._keys = [next_key(key)]

    def file_key(self, index: int) -> bytes:
        while len(self._keys) <= index:
            self._keys.append(next_key(self._keys[-1]))
        return self._keys[index]

    def seal(self, index: int) -> FileSeal:
        return FileSeal(self.chain, index, self.file_key(index))


def read_key(text: str) -> bytes:
    """The verification key that `colonnade audit init` printed.

    Raises:
        NoKey: the text is not a key.
    """
    with suppress(ValueError):
        key = bytes.fromhex(text.strip())
        if len(key) == 32:
            return key
    raise NoKey("expected the verification key that `colonnade audit init` printed: 64 hexadecimal digits")


def chain_of(key: bytes) -> str:
    """The name of the chain that begins with this key."""
    return _derived(b"chain", key).hex()[:16]


def next_key(key: bytes) -> bytes:
    """The key of the next file."""
    return _derived(b"next", key)


def first_state(key: bytes) -> SealState:
    """The state of a chain that no file has taken a key from."""
    return SealState(chain_of(key), 0, next_key(key).hex())


def _derived(purpose: bytes, key: bytes) -> bytes:
    return hashlib.sha256(b"colonnade audit " + purpose + b"\0" + key).digest()


def new_key() -> bytes:
    """A verification key for a new chain."""
    return secrets.token_bytes(32)


def begin_chain(folder: Path, key: bytes, *, again: bool) -> None:
    """Begin a chain with this verification key. The files from now on are sealed.

    Raises:
        SealExists: there is a chain, and it shall not be begun `again`.
        OSError: it cannot be written.
    """
    with locked(folder):
        if read_state(folder) is not None and not again:
            raise SealExists
        write_state(folder, first_state(key))


@contextmanager
def locked(folder: Path, *, wait: bool = True) -> Iterator[None]:
    """For the block, no other process takes a key or changes the state.

    Raises:
        BlockingIOError: another process holds it for LOCK_LIMIT, or, without `wait`, now.
        OSError: that cannot be had.
    """
    lock = os.open(folder / "seal.lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    try:
        deadline = time.monotonic() + LOCK_LIMIT
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if not wait or time.monotonic() >= deadline:
                    raise BlockingIOError(None, "another process holds seal.lock in the folder of the audit") from None
            Event().wait(0.005)
        yield
    finally:
        os.close(lock)


def read_state(folder: Path) -> SealState | None:
    """The state; None if the audit is not sealed.

    Raises:
        OSError: it cannot be read. Then no file is begun: unsealed, it would be one that anybody can write anew.
    """
    try:
        descriptor = os.open(folder / "seal", os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    with open(descriptor, "rb") as file:
        data = file.read()
    try:
        state = msgspec.json.decode(data, type=SealState)
        if len(bytes.fromhex(state.key)) == 32 and state.index >= 0:
            return state
    except (msgspec.DecodeError, ValueError):
        pass
    raise OSError(
        None, "the file `seal` in the folder of the audit is damaged; `colonnade audit init --again` makes one"
    )


def write_state(folder: Path, state: SealState) -> None:
    """Write the state to the disk in place of the former one."""
    replace_file(folder / "seal", msgspec.json.encode(state))
