"""Secrets that commands keep for a configuration: in the system's keyring, or in a folder beside the file.

A secret has a name, and a name that holds another secret already is left alone. `keep` gives the reference to write
into the configuration; nothing is stored before `save`.
"""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from pathlib import Path

from config.read import read_bytes
from config.references import MAX_SECRET_FILE_BYTES
from config.system_keyring import KeyringUnavailable, read_secret, store_secret
from host.cli.exit_codes import WRONG, CommandFailed
from host.sanitize import visible
from host.storage.directory import sync_folder, write_new

_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 100


class SecretStore(ABC):
    """A place for secrets."""

    def __init__(self) -> None:
        self.kept: dict[str, str] = {}
        """The secrets that are not stored yet, by name."""
        self.names: list[str] = []
        """All names that references were given for."""

    def __str__(self) -> str:
        """The place and all names, for people."""
        return f"{self.place}: {', '.join(map(visible, self.names))}"

    @property
    @abstractmethod
    def place(self) -> str:
        """Where the secrets go, for people."""

    @abstractmethod
    def reference(self, name: str) -> str:
        """The reference to a secret."""

    @abstractmethod
    def save(self) -> None:
        """Store all that was kept.

        Raises:
            CommandFailed: that is not possible.
        """

    @abstractmethod
    def _stored(self, name: str) -> str | None:
        """The secret of a name; None if there is none."""

    def keep(self, name: str, secret: str) -> str:
        """The reference to a secret, which `save` stores under this name or one like it."""
        wanted = _NOT_IN_NAMES.sub("-", name)[:_LONGEST_NAME].strip(".-") or "secret"
        free, number = wanted, 2
        while (present := self.kept.get(free) or self._stored(free)) not in (None, secret):
            free, number = f"{wanted}-{number}", number + 1
        if present is None:
            self.kept[free] = secret
        if free not in self.names:
            self.names.append(free)
        return self.reference(free)


class KeyringSecrets(SecretStore):
    """The keyring of the system."""

    place = "the system's keyring"

    def reference(self, name: str) -> str:
        return f"${{keyring:{name}}}"

    def save(self) -> None:
        try:
            for name, secret in self.kept.items():
                store_secret(name, secret)
        except KeyringUnavailable as problem:
            raise CommandFailed(f"the secrets cannot be stored: {problem}") from None
        self.kept.clear()

    def _stored(self, name: str) -> str | None:
        try:
            return read_secret(name)
        except KeyringUnavailable as problem:
            raise CommandFailed(f"the secrets cannot be stored: {problem}") from None


class FileSecrets(SecretStore):
    """A folder beside the configuration, with a file for each secret, which only the user can read."""

    def __init__(self, config: Path) -> None:
        super().__init__()
        self._base = config.parent
        self._folder = config.parent / f"{config.stem}.secrets"

    @property
    def place(self) -> str:
        return f"{self._folder.name}/"

    def reference(self, name: str) -> str:
        return f"${{file:{self._folder.name}/{name}}}"

    def save(self) -> None:
        if not self.kept:
            return
        try:
            self._make_folder()
            for name, secret in self.kept.items():
                # The reader takes one newline at the end away.
                _write_new(self._folder / name, f"{secret}\n" if secret.endswith("\n") else secret)
            sync_folder(self._folder)
        except OSError as problem:
            raise CommandFailed(f"the secrets cannot be stored in {self._folder}: {problem.strerror}", WRONG) from None
        self.kept.clear()

    def _stored(self, name: str) -> str | None:
        try:
            text = read_bytes(self._folder / name, MAX_SECRET_FILE_BYTES).decode()
        except FileNotFoundError:
            return None
        except (OSError, UnicodeDecodeError):
            return ""  # something that is no secret of ours
        return text.removesuffix("\n")

    def _make_folder(self) -> None:
        self._folder.mkdir(mode=0o700, exist_ok=True)
        state = self._folder.stat()
        if state.st_mode & 0o077 or state.st_uid != os.getuid() or self._folder.is_symlink():
            raise CommandFailed(
                f"the folder {self._folder} could be read or changed by others; chmod 700 it, or move it away", WRONG
            )
        ignored = self._folder / ".gitignore"
        if not ignored.exists():
            _write_new(ignored, "*\n")


def open_secrets(config: Path, wanted: str | None = None) -> SecretStore:
    """The keyring if it can be used, else files. `wanted` is one of the two.

    Raises:
        CommandFailed: the keyring is wanted, and it cannot be used.
    """
    if wanted != "file":
        try:
            read_secret("")
        except KeyringUnavailable as problem:
            if wanted is not None:
                raise CommandFailed(f"the keyring cannot be used: {problem}", WRONG) from None
        else:
            return KeyringSecrets()
    return FileSecrets(config)


def _write_new(path: Path, text: str) -> None:
    data = text.encode()
    if len(data) > MAX_SECRET_FILE_BYTES:
        raise CommandFailed(f"a secret is larger than {MAX_SECRET_FILE_BYTES // 1024} KiB", WRONG)
    write_new(path, data)
