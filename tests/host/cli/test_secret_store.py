"""Secrets go to the keyring or to files that only the user can read, and never over another one."""

from __future__ import annotations

import os
import stat
from pathlib import Path

import pytest

from config.references import Expander
from host.cli.exit_codes import CommandFailed
from host.cli.secret_store import FileSecrets, KeyringSecrets, open_secrets
from tests.kit.keyring import MemoryKeyring, memory

__all__ = ["memory"]


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


@pytest.mark.parametrize("secret", ["s3cr3t", "", "two\nlines\n", "\r\n", "ü${x}", "end\r"])
def test_a_file_gives_back_what_was_kept(tmp_path: Path, secret: str) -> None:
    store = FileSecrets(tmp_path / "colonnade.yaml")
    reference = store.keep("gh.TOKEN", secret)
    assert not (tmp_path / "colonnade.secrets").exists()
    store.save()
    assert Expander({}, tmp_path).expand(reference).text == secret
    assert reference == "${file:colonnade.secrets/gh.TOKEN}"


def test_only_the_user_can_read_the_files(tmp_path: Path) -> None:
    former = os.umask(0)
    try:
        store = FileSecrets(tmp_path / "c.yaml")
        store.keep("a", "1")
        store.save()
    finally:
        os.umask(former)
    folder = tmp_path / "c.secrets"
    assert (mode(folder), mode(folder / "a")) == (0o700, 0o600)
    assert (folder / ".gitignore").read_text() == "*\n"


def test_a_folder_that_others_can_use_is_refused(tmp_path: Path) -> None:
    (tmp_path / "c.secrets").mkdir(mode=0o755)
    store = FileSecrets(tmp_path / "c.yaml")
    store.keep("a", "1")
    with pytest.raises(CommandFailed, match="could be read or changed by others; chmod 700"):
        store.save()


def test_a_link_in_the_place_of_the_folder_is_refused(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    (tmp_path / "c.secrets").symlink_to(tmp_path / "elsewhere")
    store = FileSecrets(tmp_path / "c.yaml")
    store.keep("a", "1")
    with pytest.raises(CommandFailed):
        store.save()
    assert not list((tmp_path / "elsewhere").iterdir())


def test_another_secret_of_the_same_name_is_left_alone(tmp_path: Path) -> None:
    for secret, reference in (("1", "a"), ("2", "a-2"), ("1", "a"), ("3", "a-3")):
        store = FileSecrets(tmp_path / "c.yaml")
        assert store.keep("a", secret) == f"${{file:c.secrets/{reference}}}"
        store.save()
    assert (tmp_path / "c.secrets" / "a").read_text() == "1"


def test_names_are_fit_for_files_and_references(tmp_path: Path) -> None:
    store = FileSecrets(tmp_path / "c.yaml")
    assert store.keep("../x/y}z", "1") == "${file:c.secrets/x-y-z}"
    assert store.keep("..", "1") == "${file:c.secrets/secret}"
    assert store.names == ["x-y-z", "secret"]


def test_the_keyring_is_used_if_it_can_be(tmp_path: Path, memory: MemoryKeyring) -> None:
    store = open_secrets(tmp_path / "c.yaml")
    assert isinstance(store, KeyringSecrets)
    memory.kept["colonnade", "a"] = "other"
    assert store.keep("a", "s3cr3t") == "${keyring:a-2}"
    assert len(memory.kept) == 1
    store.save()
    assert memory.kept["colonnade", "a-2"] == "s3cr3t"
    assert isinstance(open_secrets(tmp_path / "c.yaml", "file"), FileSecrets)


def test_without_a_keyring_files_are_used(tmp_path: Path, memory: MemoryKeyring) -> None:
    memory.is_locked = True
    assert isinstance(open_secrets(tmp_path / "c.yaml"), FileSecrets)
    with pytest.raises(CommandFailed, match="the keyring cannot be used: the system has no keyring"):
        open_secrets(tmp_path / "c.yaml", "keyring")


def test_a_keyring_that_is_locked_meanwhile_is_a_sentence(tmp_path: Path, memory: MemoryKeyring) -> None:
    store = open_secrets(tmp_path / "c.yaml")
    store.keep("a", "s3cr3t")
    memory.is_locked = True
    for act in (store.save, lambda: store.keep("b", "x")):
        with pytest.raises(CommandFailed, match="the secrets cannot be stored: the system has no keyring") as caught:
            act()
        assert "s3cr3t" not in repr(caught.value)


def test_a_secret_that_no_reference_could_give_is_refused(tmp_path: Path) -> None:
    store = FileSecrets(tmp_path / "c.yaml")
    store.keep("a", "x" * 65537)
    with pytest.raises(CommandFailed, match="larger than 64 KiB"):
        store.save()


@pytest.mark.parametrize("in_the_way", ["pipe", "link"])
def test_nothing_in_the_place_of_a_secret_holds_a_command_up_or_is_written_through(
    tmp_path: Path, in_the_way: str
) -> None:
    folder = tmp_path / "colonnade.secrets"
    folder.mkdir(mode=0o700)
    if in_the_way == "pipe":
        os.mkfifo(folder / "TOKEN")
    else:
        (folder / "TOKEN").symlink_to("/dev/zero")
    store = FileSecrets(tmp_path / "colonnade.yaml")
    assert store.keep("TOKEN", "new") == "${file:colonnade.secrets/TOKEN-2}"
    store.save()
    assert (folder / "TOKEN-2").read_text() == "new"
