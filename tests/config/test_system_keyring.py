"""Secrets in the keyring of the system: a keyring in memory, one that is locked, and none."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from config.system_keyring import KeyringUnavailable, read_secret, store_secret
from tests.config.kit import lines, load_text, stdio
from tests.kit.keyring import MemoryKeyring, memory

__all__ = ["memory"]


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
    with pytest.raises(KeyringUnavailable, match=r"pip install keyring, .*uv tool install '\.\[keyring\]'"):
        read_secret("t")
