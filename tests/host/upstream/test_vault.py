"""Logins in the store: nobody reads or moves them without the key."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest

from host.oauth.documents import ClientRegistration
from host.oauth.problem import OAuthProblem
from host.storage.directory import open_state
from host.storage.store import CredentialKey, StateError
from host.upstream.vault import KEY_VARIABLE, Login, Vault, open_vault
from tests.kit.keyring import MemoryKeyring, memory

__all__ = ["memory"]

KEY = CredentialKey("notes")
LOGIN = Login(
    id="1",
    resource="https://mcp.example/mcp",
    issuer="https://login.example",
    client=ClientRegistration("client", "cl13nt-s3cret", "client_secret_basic"),
    token_endpoint="https://login.example/token",
    revocation_endpoint=None,
    scopes=("a",),
    began=1.0,
    access_token="acc3ss",
    refresh_token="r3fresh",
    expires=5.0,
)


def test_a_login_comes_back_whole() -> None:
    vault = Vault(bytes(32))
    stored = vault.close(KEY, LOGIN)
    assert vault.open(KEY, stored) == LOGIN
    assert (stored.resource, stored.issuer) == (LOGIN.resource, LOGIN.issuer)


def test_nothing_of_a_secret_is_seen() -> None:
    stored = Vault(bytes(32)).close(KEY, LOGIN)
    for secret in LOGIN.secrets():
        assert secret not in repr(stored) + repr(LOGIN)
    assert len(LOGIN.secrets()) == 3


def test_a_login_opens_in_its_own_place_and_with_its_own_key_only() -> None:
    vault = Vault(bytes(32))
    stored = vault.close(KEY, LOGIN)
    attempts = [
        (Vault(bytes(31) + b"x"), KEY, stored),
        (vault, CredentialKey("evil"), stored),
        (vault, CredentialKey("notes", "tess"), stored),
        (vault, KEY, stored._replace(issuer="https://evil.example")),
        (vault, KEY, stored._replace(resource="https://evil.example")),
        (vault, KEY, stored._replace(sealed=stored.sealed[:-4])),
        (vault, KEY, stored._replace(sealed="")),
    ]
    for other, key, changed in attempts:
        with pytest.raises(OAuthProblem, match="cannot be read with the present key") as caught:
            other.open(key, changed)
        assert caught.value.__context__ is None, "the error could hold pieces of the login"


@dataclass
class Same:
    one: Vault
    other: Vault

    def __bool__(self) -> bool:
        try:
            return self.other.open(KEY, self.one.close(KEY, LOGIN)) == LOGIN
        except OAuthProblem:
            return False


def test_the_key_is_that_of_the_environment_or_of_the_state(tmp_path: Path) -> None:
    one, two = open_state(tmp_path / "one"), open_state(tmp_path / "two")
    given, other = {KEY_VARIABLE: "k" * 32}, {KEY_VARIABLE: "l" * 32}
    assert Same(open_vault(one, {}), open_vault(one, {}))
    assert not Same(open_vault(one, {}), open_vault(two, {}))
    assert Same(open_vault(one, given), open_vault(two, given))
    assert not Same(open_vault(one, given), open_vault(one, other))
    assert not Same(open_vault(one, given), open_vault(one, {}))


def test_the_key_may_stand_in_a_file_or_in_the_keyring(tmp_path: Path, memory: MemoryKeyring) -> None:
    state, file = open_state(tmp_path / "state"), tmp_path / "key"
    file.write_text("k" * 32 + "\n")
    memory.kept["colonnade", "login-key"] = "k" * 32
    given = open_vault(state, {KEY_VARIABLE: "k" * 32})
    for reference in (f"${{file:{file}}}", "${keyring:login-key}", "${env:OTHER}"):
        assert Same(given, open_vault(state, {KEY_VARIABLE: reference, "OTHER": "k" * 32}))
    for reference in ("${file:/nowhere/key}", "${keyring:other}", "${env:MISSING}"):
        with pytest.raises(StateError, match=r"COLONNADE_KEY: "):
            open_vault(state, {KEY_VARIABLE: reference})


def test_a_key_may_be_any_bytes(tmp_path: Path) -> None:
    """An environment variable may hold what is no text: Python has it as surrogates."""
    state = open_state(tmp_path / "state")
    key = (b"\xff" * 40).decode("utf-8", "surrogateescape")
    assert Same(open_vault(state, {KEY_VARIABLE: key}), open_vault(state, {KEY_VARIABLE: key}))
    assert not Same(open_vault(state, {KEY_VARIABLE: key}), open_vault(state, {KEY_VARIABLE: key[1:]}))


def test_a_short_key_is_refused(tmp_path: Path) -> None:
    with pytest.raises(StateError, match="COLONNADE_KEY has 5 characters") as caught:
        open_vault(open_state(tmp_path / "state"), {KEY_VARIABLE: "short"})
    assert "short" not in str(caught.value)


def test_a_login_without_a_token_is_over() -> None:
    import msgspec

    assert not LOGIN.is_over
    assert msgspec.structs.replace(LOGIN, access_token=None).is_over
