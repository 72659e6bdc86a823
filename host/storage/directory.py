"""The directory where what people decided outlives the process: the database, the audit, the sockets of running hosts.

    DIR/
      colonnade.db                what was approved and allowed, for all configuration files
      configs/<16 hex digits>/    of each configuration file: file (its path), seen, first-answers (first_answers.py)
      audit/                      one file per process
      history.db                  the index of the audit; history-forgotten beside it (host/history/)
      run/                        one socket per process, store.lock; of each configuration file with relays
                                  <name>.relay, .lock, .relay.start and .log (relays.py, relay.py)
      hosts/                      one locked record per running host
      connections/                what was changed in files of desktop hosts (connections.py)
      containers/                 of each container that a running host has started: its id (containers.py)
      key                         32 random bytes

DIR is `--state`, else $COLONNADE_STATE, else $XDG_STATE_HOME/colonnade, else ~/.local/state/colonnade.

This file knows who may own it. Only the owner can read any of it; whoever runs as the owner is trusted with it.
"""

from __future__ import annotations

import hashlib
import os
import secrets
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import final

from msgspec import Struct

from host.relay import state_path
from host.storage.store import StateError


def state_directory(given: Path | None, environment: Mapping[str, str] = os.environ) -> Path:
    """The path of the state directory: see `state_path`."""
    return Path(state_path(None if given is None else str(given), environment))


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
        for each in (state.configs, state.audit, state.run, state.hosts, state.containers):
            each.mkdir(mode=0o700, exist_ok=True)
            _check(each)
    except OSError as problem:
        raise StateError(f"the state directory {path} cannot be used: {problem.strerror}") from problem
    return state


def _refuse_foreign_links(path: Path) -> None:
    """Refuse links of other users on the way: their owner decides where they lead."""
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
class State(Struct, frozen=True):
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

    @property
    def containers(self) -> Path:
        return self.path / "containers"

    def key(self) -> bytes:
        """Thirty-two secret bytes, the same as long as the directory exists.

        Raises:
            StateError: they cannot be read or made.
        """
        path = self.path / "key"
        try:
            if not path.exists():
                _write_once(path, secrets.token_bytes(32))
            return path.read_bytes()
        except OSError as problem:
            raise StateError(f"{path} cannot be used: {problem.strerror}") from problem

    def sources(self) -> list[Path]:
        """The configuration files that have stored state."""
        notes = sorted(self.configs.glob("*/file"))
        return [Path(os.fsdecode(note.read_bytes().removesuffix(b"\n"))) for note in notes]

    def for_config(self, path: Path) -> ConfigDirectory:
        """The directory of one configuration file, whatever path names the file.

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
                _write_once(note, os.fsencode(real) + b"\n")
        except OSError as problem:
            raise StateError(f"the state directory {own} cannot be used: {problem.strerror}") from problem
        return ConfigDirectory(own)


@final
class ConfigDirectory(Struct, frozen=True):
    """The directory of one configuration file. Made by `State.for_config` only."""

    path: Path

    @property
    def id(self) -> str:
        """The key of the configuration file in the database."""
        return self.path.name

    @property
    def state(self) -> Path:
        """The state directory."""
        return self.path.parent.parent

    def sandbox_of(self, server: str) -> Path:
        """The folder for what the confined program of a server keeps."""
        return self.path / "sandbox" / server

    @property
    def was_stored(self) -> bool:
        """Whether the database ever held this configuration: if it does not, it was deleted."""
        return os.path.lexists(self.path / "seen")

    def set_stored(self) -> None:
        """From now on, the database holds this configuration."""
        if not self.was_stored:
            os.close(os.open(self.path / "seen", os.O_WRONLY | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600))


def replace_file(path: Path, data: bytes) -> None:
    """Write a file of the owner's in the place of the former one, if any: one of both is there, whatever crashes."""
    new = path.with_name(f"{path.name}.new")
    new.unlink(missing_ok=True)
    write_new(new, data)
    os.replace(new, path)
    sync_folder(path.parent)


def sync_folder(folder: Path) -> None:
    """Put on the disk which files are in a folder."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _write_once(path: Path, data: bytes) -> None:
    """Make a file that is there whole or not at all, whatever crashes. Of two processes, the first one makes it."""
    new = path.with_name(f"{path.name}.{os.getpid()}.new")
    new.unlink(missing_ok=True)
    write_new(new, data)
    with suppress(FileExistsError):
        os.link(new, path)
    new.unlink()


def write_new(path: Path, data: bytes) -> None:
    """Write a file of the owner's where there is none, onto the disk.

    Raises:
        FileExistsError: there is one.
        OSError: it cannot be written.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    with open(descriptor, "wb") as file:
        file.write(data)
        file.flush()
        os.fsync(descriptor)
