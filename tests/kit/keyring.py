"""A keyring for one test, in the place of the one of the system."""

from __future__ import annotations

from collections.abc import Iterator

import keyring
import keyring.backend
import keyring.errors
import pytest


class MemoryKeyring(keyring.backend.KeyringBackend):
    """A keyring for one test."""

    priority = 1

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # the package leaves it bare
        self.kept: dict[tuple[str, str], str] = {}
        self.is_locked = False

    def get_password(self, service: str, username: str) -> str | None:
        if self.is_locked:
            raise keyring.errors.KeyringLocked("s3cr3t")
        return self.kept.get((service, username))

    def set_password(self, service: str, username: str, password: str) -> None:
        if self.is_locked:
            raise keyring.errors.PasswordSetError("s3cr3t")
        self.kept[service, username] = password


@pytest.fixture
def memory() -> Iterator[MemoryKeyring]:
    former = keyring.get_keyring()
    keyring.set_keyring(memory := MemoryKeyring())
    yield memory
    keyring.set_keyring(former)
