"""Secrets in the keyring of the system: a keyring in memory, one that is locked, and none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import keyring
import keyring.backend
import keyring.errors
import pytest

from config.system_keyring import KeyringUnavailable, read_secret, store_secret
from tests.config.kit import lines, load_text, stdio


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


def test_a_stored_secret_is_read_by_its_reference(tmp_path: Path, memory: MemoryKeyring) -> None:
    store_secret("gh-token", "s3cr3t")
    assert memory.kept == {("colonnade", "gh-token"): "s3cr3t"}
    made = load_text(tmp_path, "servers: {a: {command: x, env: {T: 'Bearer ${keyring:gh-token}'}}}\n")
    assert stdio(made, "a").env["T"].reveal() == "Bearer s3cr3t"
    assert "s3cr3t" not in repr(made)


def test_a_missing_secret_names_the_command_that_stores_it(tmp_path: Path, memory: MemoryKeyring) -> None:
    assert read_secret("none") is None
    text = "servers: {a: {command: x, env: {T: '${keyring:none}', U: '${keyring:}'}}}\n"
    missing, empty = lines(tmp_path, text)
    assert "${keyring:none} is not in the keyring; store it with: keyring set colonnade none" in missing
    assert "${keyring:} names no secret" in empty


def test_a_locked_keyring_is_a_problem_of_the_reference(tmp_path: Path, memory: MemoryKeyring) -> None:
    memory.is_locked = True
    (found,) = lines(tmp_path, "servers: {a: {command: x, env: {T: '${keyring:t}'}}}\n")
    assert "${keyring:t} cannot be read: the system has no keyring that can be used here, or it is locked" in found
    with pytest.raises(KeyringUnavailable) as caught:
        store_secret("t", "x")
    assert "s3cr3t" not in str(caught.value)


def test_the_package_is_optional(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "keyring.errors", None)
    with pytest.raises(KeyringUnavailable, match=r"install colonnade\[keyring\]"):
        read_secret("t")
