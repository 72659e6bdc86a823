"""Records of the changes that `colonnade connect` made to files of desktop hosts, for `colonnade disconnect`.

    DIR/connections/
      lock                      locked while a command changes files
      <16 hex digits>.json      of each connected file: its path, and the change with the former content
      <16 hex digits>-<name>    the former content once more, for people
      <16 hex digits>-edited-<name>
                                the content with the entry of Colonnade that a person had edited, before that was
                                written anew or taken out

DIR is the state directory. A record holds the secrets of the file, so only the owner can read it. It is written before
the host's file is, and removed after that was given back; the content for people stays if a part was not given back.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
from msgspec import Struct

from config.desktop.connecting import FileChange
from host.storage.directory import State, replace_file
from host.storage.store import StateError

_ID_LENGTH = 16


class Record(Struct, frozen=True):
    """A connected file.

    Attributes:
        file: The path of the file, by which its host knows it; it may be a link.
        config: The configuration that is served.
        folders: The folders that were made for it, the innermost first.
        project: The folder of the project that the file belongs to; empty for the user's own.
    """

    host: str
    file: str
    config: str
    change: FileChange
    folders: tuple[str, ...] = ()
    project: str = ""


class Connections:
    """The records of a state directory."""

    def __init__(self, state: State) -> None:
        self._folder = state.path / "connections"

    @contextmanager
    def lock(self) -> Iterator[None]:
        """Keep other commands from changing files.

        Raises:
            StateError: another one does already, or the folder cannot be used.
        """
        try:
            self._folder.mkdir(mode=0o700, exist_ok=True)
            descriptor = os.open(self._folder / "lock", os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
        except OSError as problem:
            raise StateError(f"{self._folder} cannot be used: {problem.strerror}") from problem
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            yield
        except BlockingIOError:
            raise StateError("another colonnade connect or disconnect is running; wait until it has ended") from None
        finally:
            os.close(descriptor)

    def get(self, file: Path) -> Record | None:
        """The record of a file, by its path.

        Raises:
            StateError: it cannot be read.
        """
        return self._read(self._path(file))

    def all(self) -> list[Record]:
        """All records.

        Raises:
            StateError: one cannot be read.
        """
        found = (self._read(path) for path in sorted(self._folder.glob(f"{'?' * _ID_LENGTH}.json")))
        return [record for record in found if record is not None]

    def keep(self, record: Record) -> Path | None:
        """Store a record in the place of the file's former one; gives the path of the former content, if any.

        Raises:
            StateError: it cannot be written.
        """
        file, original = Path(record.file), record.change.original
        try:
            if original is not None:
                replace_file(self._backup(file), original)
            replace_file(self._path(file), msgspec.json.encode(record))
        except OSError as problem:
            raise StateError(f"{self._folder} cannot be written: {problem.strerror}") from problem
        return None if original is None else self._backup(file)

    def keep_edited(self, file: Path, data: bytes) -> Path:
        """Keep the content with an entry that a person edited; gives the path of the copy.

        Raises:
            StateError: it cannot be written.
        """
        copy = self._folder / f"{_id(file)}-edited-{file.name}"
        try:
            replace_file(copy, data)
        except OSError as problem:
            raise StateError(f"{self._folder} cannot be written: {problem.strerror}") from problem
        return copy

    def forget(self, file: Path) -> None:
        """Remove the record of a file."""
        self._path(file).unlink(missing_ok=True)
        self._backup(file).unlink(missing_ok=True)

    def set_aside(self, file: Path) -> Path:
        """Remove the record of a file, but keep the former content for people; gives its path."""
        self._path(file).unlink(missing_ok=True)
        return self._backup(file)

    def _path(self, file: Path) -> Path:
        return self._folder / f"{_id(file)}.json"

    def _backup(self, file: Path) -> Path:
        return self._folder / f"{_id(file)}-{file.name}"

    def _read(self, path: Path) -> Record | None:
        try:
            return msgspec.json.decode(path.read_bytes(), type=Record)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.DecodeError, RecursionError):
            problem = StateError(f"{path} cannot be read; it holds the former content of a file of a desktop host")
        # Not within the handler: the error could hold pieces of the file.
        raise problem


def _id(file: Path) -> str:
    return hashlib.sha256(os.fsencode(file)).hexdigest()[:_ID_LENGTH]
