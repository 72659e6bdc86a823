"""The directory where what people decided outlives the process: pins, grants, the audit, the sockets of running hosts.

    DIR/
      configs/<16 hex digits>/    of each configuration file: file (its path), lock, pins.json, grants.json
      audit/                      one file per process
      run/                        one socket per process
      hosts/                      one locked record per running host

DIR is `--state`, else $COLONNADE_STATE, else $XDG_STATE_HOME/colonnade, else ~/.local/state/colonnade.

Knows who may own it, and how several processes change one file without losing what another wrote or reading half of it.
Knows nothing of what the files say. Only the owner can read any of it; whoever runs as the owner is trusted with it.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
import stat
import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import final

import msgspec

LOCK_LIMIT = 1.0
"""Seconds to wait for another process's change; it takes milliseconds, unless that process was stopped in it."""
BROKEN = ".broken"
"""Put behind the name of a file that could not be read, when another takes its place."""
SEEN = ".seen"
"""Put behind the name of a file, for an empty one beside it that stays if the file is deleted."""

_RETRY = 0.005
_HEAD = b'{"check":"sha256:'
_MIDDLE = b'","content":'
_DIGEST = 64
_BODY_AT = len(_HEAD) + _DIGEST + len(_MIDDLE)

Identity = tuple[int, int, int, int, bytes]
"""What tells one version of a file from another."""


class StateError(Exception):
    """The state directory, or a file in it, cannot be used. The text is a sentence for whoever started the program."""


class Corrupt(StateError):
    """A file is not as this program wrote it: cut, edited, or of another version."""


def state_directory(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """Where the state is: what was given, or else what the environment says. Nothing is made or looked at."""
    if given is not None:
        return given.absolute()
    if named := environment.get("COLONNADE_STATE"):
        return Path(named).absolute()
    base = environment.get("XDG_STATE_HOME", "")
    # A relative one is to be ignored (XDG Base Directory Specification, "Basics").
    home = Path(base) if os.path.isabs(base) else Path("~/.local/state").expanduser()
    return home / "colonnade"


def open_state(directory: Path | None = None) -> State:
    """The state directory, made if it is not there.

    Raises:
        StateError: it cannot be made, or others could read or exchange what is in it.
    """
    path = state_directory(directory)
    try:
        _refuse_foreign_links(path)
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        _check(path)
        state = State(path)
        for each in (state.configs, state.audit, state.run, state.hosts):
            each.mkdir(mode=0o700, exist_ok=True)
            _check(each)
    except OSError as problem:
        raise StateError(f"the state directory {path} cannot be used: {problem.strerror}") from problem
    return state


def _refuse_foreign_links(path: Path) -> None:
    """Whoever owns a link on the way decides where it leads."""
    for each in (*reversed(path.parents), path):
        if each.is_symlink() and (owner := each.lstat().st_uid) not in (0, os.geteuid()):
            raise StateError(f"{each}, on the way to the state directory, is a link of another user ({owner})")


def _check(path: Path) -> None:
    found = path.stat()
    if not stat.S_ISDIR(found.st_mode):
        raise StateError(f"{path} is not a directory")
    if found.st_uid != os.geteuid():
        raise StateError(f"{path} belongs to another user ({found.st_uid}): it cannot hold this user's decisions")
    if found.st_mode & 0o077:
        mode = stat.S_IMODE(found.st_mode)
        raise StateError(f"{path} is open to others (mode {mode:04o}): look at what is in it, then `chmod 700 {path}`")


@final
@dataclass(frozen=True, slots=True)
class State:
    """A state directory that was checked. Made by `open_state` only."""

    path: Path

    @property
    def configs(self) -> Path:
        return self.path / "configs"

    @property
    def audit(self) -> Path:
        return self.path / "audit"

    @property
    def run(self) -> Path:
        return self.path / "run"

    @property
    def hosts(self) -> Path:
        return self.path / "hosts"

    def key(self) -> bytes:
        """Thirty-two bytes that nobody else knows, the same as long as the directory is there.

        Raises:
            StateError: they cannot be read or made.
        """
        path = self.path / "key"
        try:
            with suppress(FileExistsError):
                descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
                with open(descriptor, "wb") as file:
                    file.write(secrets.token_bytes(32))
            return path.read_bytes()
        except OSError as problem:
            raise StateError(f"{path} cannot be used: {problem.strerror}") from problem

    def sources(self) -> list[Path]:
        """The configuration files that something is kept for."""
        notes = sorted(self.configs.glob("*/file"))
        return [Path(os.fsdecode(note.read_bytes().removesuffix(b"\n"))) for note in notes]

    def for_config(self, path: Path) -> ConfigState:
        """What is kept for one configuration file, whatever way it is named.

        Raises:
            StateError: its directory cannot be made.
        """
        real = os.path.realpath(path)
        own = self.configs / hashlib.sha256(os.fsencode(real)).hexdigest()[:16]
        try:
            own.mkdir(mode=0o700, exist_ok=True)
            _check(own)
            note = own / "file"
            if not note.exists():
                _write(note, [os.fsencode(real) + b"\n"])
        except OSError as problem:
            raise StateError(f"the state directory {own} cannot be used: {problem.strerror}") from problem
        return ConfigState(own)


@final
@dataclass(frozen=True, slots=True)
class ConfigState:
    """The directory of one configuration file. Made by `State.for_config` only."""

    path: Path

    def file(self, name: str) -> Shared:
        """A file in it; it need not be there."""
        return Shared(self.path / name, self.path / "lock")


@final
class Update:
    """A file while nobody else can change it. Made by `Shared.updating` only."""

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.moved = shared.changed()
        """Whether another process wrote since this one last read or wrote."""

    def read(self) -> object | None:
        """As `Shared.read`."""
        return self._shared.read()

    def write(self, content: object) -> None:
        """Put this in the place of what was there: whoever reads sees the one or the other.

        Raises:
            StateError: it cannot be written; what was there is there still.
        """
        self._shared._replace(content)

    def set_aside(self) -> None:
        """Keep what is there, which could not be read, under a second name with BROKEN behind it, until the next one.
        It stays under its own as well until it is written over: there is no moment at which nothing is there."""
        self._shared._set_aside()


@final
class Shared:
    """A JSON file that several processes read and change.

    It holds one object: `content`, and `check`, the SHA-256 of the bytes of the content. The check is no secret: it
    finds what was cut or edited, not who did it on purpose and made a new one.

    Args:
        path: the file.
        lock: a file beside it, locked while one process changes this one; several files may have the same.
    """

    def __init__(self, path: Path, lock: Path) -> None:
        self.path = path
        self.seen: Identity | None = None
        """The version that was last read or written here."""
        self._lock = lock

    def read(self) -> object | None:
        """The content; None if the file is not there.

        Raises:
            Corrupt: it cannot be read, or is not as this program wrote it.
        """
        self.seen, found = self.load()
        if isinstance(found, Corrupt):
            raise found
        return found

    def load(self) -> tuple[Identity | None, object | Corrupt | None]:
        """Its version, and what `read` gives or raises. Changes nothing here, so that a worker thread may do it."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None, None
        except OSError as problem:
            return self.version(), Corrupt(f"{self.path} cannot be read: {problem.strerror}")
        try:
            with open(descriptor, "rb") as file:
                data = file.read()
                version = _identity(os.fstat(descriptor), data[:_BODY_AT])
        except OSError as problem:
            return self.version(), Corrupt(f"{self.path} cannot be read: {problem.strerror}")
        with suppress(OSError):  # the file may be of a version that made no mark, or from a backup
            self._set_mark()
        try:
            return version, self._content(data)
        except Corrupt as problem:
            return version, problem

    def _content(self, data: bytes) -> object:
        body = data[_BODY_AT:-2]
        if not data.startswith(_head([body])) or data[-2:] != b"}\n":
            raise Corrupt(f"{self.path} was cut or edited: it is not as Colonnade wrote it")
        try:
            content: object = msgspec.json.decode(body)
        except (msgspec.DecodeError, RecursionError) as problem:
            raise Corrupt(f"{self.path} holds no JSON") from problem
        return content

    @property
    def size(self) -> int:
        """Its bytes; 0 if it is not there."""
        try:
            return self.path.lstat().st_size
        except OSError:
            return 0

    def changed(self) -> bool:
        """Whether the file is another than was last read or written here. Costs some 10 µs."""
        return self.version() != self.seen

    def exchange(self, before: Identity | None, pieces: Iterable[bytes]) -> Identity | None:
        """Put content, as pieces of JSON text, in the place of the version `before`: the new version, or None if the
        file is another by now. Changes nothing here, so that a worker thread may do it.

        Raises:
            StateError: it cannot be written; what was there is there still.
        """
        encoded = list(pieces)
        with self.updating():
            if self.version() != before:
                return None
            self._put(encoded)
            return self.version()

    @property
    def was_there(self) -> bool:
        """Whether the file was ever read or written: if it is not there, it was deleted."""
        return os.path.lexists(self._mark)

    @property
    def _mark(self) -> Path:
        return self.path.with_name(self.path.name + SEEN)

    def _set_mark(self) -> None:
        if not self.was_there:
            os.close(os.open(self._mark, os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW, 0o600))

    @contextmanager
    def updating(self) -> Iterator[Update]:
        """A block in which no other process changes the file. Blocks for as long as another does, LOCK_LIMIT at most.

        Raises:
            StateError: the lock could not be had.
        """
        try:
            descriptor = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
        except OSError as problem:
            raise StateError(f"{self._lock} cannot be opened: {problem.strerror}") from problem
        try:
            self._wait_for(descriptor)
            yield Update(self)
        finally:
            os.close(descriptor)  # and the lock is free

    def _wait_for(self, descriptor: int) -> None:
        """A lock without a limit would be for ever where a command that holds it was stopped with Ctrl-Z."""
        until = time.monotonic() + LOCK_LIMIT
        while True:
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                if time.monotonic() >= until:
                    raise StateError(f"another process has held {self._lock} for {LOCK_LIMIT:g} s") from None
                threading.Event().wait(_RETRY)
            except OSError as problem:
                raise StateError(f"{self._lock} cannot be locked: {problem.strerror}") from problem
            else:
                return

    def _replace(self, content: object) -> None:
        try:
            body = msgspec.json.encode(content)
        except UnicodeEncodeError as problem:
            raise StateError(f"{self.path} cannot be written: {problem}") from problem
        self._put([body])
        self.seen = self.version()

    def _put(self, pieces: Iterable[bytes]) -> None:
        try:
            _write(self.path, _framed(pieces))
            self._set_mark()  # afterwards: a mark without a file says that it was deleted
        except OSError as problem:
            raise StateError(f"{self.path} cannot be written: {problem}") from problem

    def _set_aside(self) -> None:
        kept = self.path.with_name(self.path.name + BROKEN)
        try:
            if os.path.lexists(self.path):
                kept.unlink(missing_ok=True)
                os.link(self.path, kept, follow_symlinks=False)
        except OSError as problem:
            raise StateError(f"{self.path} cannot be kept as {kept.name}: {problem.strerror}") from problem

    def version(self) -> Identity | None:
        """The version of the file as it is now. Inodes are used again and times are coarse, so the check of
        the content is part of it."""
        try:
            descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        except OSError as problem:
            return (problem.errno or 0, 0, 0, 0, b"")
        try:
            return _identity(os.fstat(descriptor), os.read(descriptor, _BODY_AT))
        except OSError as problem:
            return (problem.errno or 0, 0, 0, 0, b"")
        finally:
            os.close(descriptor)


def _identity(found: os.stat_result, head: bytes) -> Identity:
    return (found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns, head)


def _framed(pieces: Iterable[bytes]) -> list[bytes]:
    return [_head(pieces), *pieces, b"}\n"]


def _head(pieces: Iterable[bytes]) -> bytes:
    digest = hashlib.sha256()
    for piece in pieces:
        digest.update(piece)
    return _HEAD + digest.hexdigest().encode("ascii") + _MIDDLE


def _write(path: Path, data: Iterable[bytes]) -> None:
    """The whole of a file, so that a crash or a power cut leaves the old or the new one. Only one process at a time."""
    new = path.with_name(path.name + ".new")
    new.unlink(missing_ok=True)
    descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o600)
    try:
        with open(descriptor, "wb") as file:
            file.writelines(data)
            file.flush()
            os.fsync(descriptor)
        os.replace(new, path)
    except OSError:
        new.unlink(missing_ok=True)
        raise
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
