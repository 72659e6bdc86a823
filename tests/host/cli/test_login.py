"""The commands about logins: what they print, and what they refuse."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli import targets
from host.cli.admin_client import RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, WRONG
from host.storage.directory import open_state
from host.storage.sqlite import open_store
from host.storage.store import CredentialKey
from host.upstream.vault import Login, open_vault
from tests.host.upstream.test_vault import LOGIN
from tests.kit.awaited import awaited

CONFIG = """servers:
  notes: {url: "https://mcp.example/mcp"}
  token: {url: "https://mcp.example/mcp", headers: {Authorization: "Bearer x"}}
  helped: {url: "https://mcp.example/mcp", headers_helper: [./token]}
  own: {url: "https://mcp.example/mcp", oauth: {grant: client_credentials, client_id: c, client_secret: s}}
  program: {command: [true]}
"""


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("COLONNADE_STATE", str(tmp_path / "state"))
    monkeypatch.delenv("COLONNADE_KEY", raising=False)
    file = tmp_path / "colonnade.yaml"
    file.write_text(CONFIG)
    return file


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Another folder, in which the commands run."""
    folder = tmp_path / "elsewhere"
    folder.mkdir()
    monkeypatch.chdir(folder)
    return folder


def store(file: Path, login: Login, server: str = "notes") -> None:
    state, key = open_state(file.parent / "state"), CredentialKey(server)
    sealed = open_vault(state, {}).close(key, login)
    with open_store(state, file) as opened:
        awaited(opened.write(lambda transaction: transaction.put_credential(key, sealed)))


def test_credentials_are_shown_without_a_secret(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store(file, LOGIN)
    assert run(["credentials", "--config", str(file)]) == DONE
    printed = capsys.readouterr().out
    assert printed.splitlines() == [
        "notes: logged in, refreshed by itself",
        "  issuer:    https://login.example",
        "  resource:  https://mcp.example/mcp",
        "  scopes:    a",
        "  expires:   1970-01-01T00:00:05Z",
        "  login:     1970-01-01T00:00:01Z",
    ]
    assert run(["credentials", "--config", str(file), "--json"]) == DONE
    as_json = capsys.readouterr().out
    assert json.loads(as_json)[0]["server"] == "notes"
    assert not [secret for secret in LOGIN.secrets() if secret in printed + as_json]


def test_without_a_login_there_is_a_sentence(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["credentials", "--config", str(file)]) == DONE
    assert capsys.readouterr().out == "There are no logins. colonnade login SERVER makes one.\n"
    assert run(["logout", "notes", "--config", str(file)]) == FAILED
    assert "there is no login for notes" in capsys.readouterr().err


def test_from_another_folder_the_known_configuration_is_used(
    file: Path, elsewhere: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """That of the running host, or of one that ran, if there is no other."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(elsewhere))
    assert run(["credentials"]) == WRONG
    assert "there is no configuration: name it with --config" in capsys.readouterr().err

    store(file, LOGIN)
    assert run(["credentials"]) == DONE
    printed = capsys.readouterr()
    assert printed.out.startswith("notes: logged in")
    assert printed.err == f"colonnade: the configuration is {file}\n"
    assert run(["login", "nots"]) == WRONG
    assert f"there is no server 'nots' in {file}; did you mean notes?" in capsys.readouterr().err

    other = tmp_path / "other.yaml"
    other.write_text(CONFIG)
    store(other, LOGIN)
    with monkeypatch.context() as patched:
        patched.setattr(targets, "find_hosts", lambda state: [RunningHost(Path("x.sock"), 4711, str(file))])
        assert run(["credentials"]) == DONE
    assert str(file) in capsys.readouterr().err
    assert run(["logout", "notes"]) == FAILED
    said = capsys.readouterr().err
    assert "say which configuration with --config FILE" in said
    assert all(str(each) in said for each in (file, other))
    (elsewhere / "colonnade.yaml").write_text(CONFIG)
    assert run(["credentials"]) == DONE
    assert "There are no logins" in capsys.readouterr().out


def test_a_server_of_another_known_configuration_is_found(
    file: Path, elsewhere: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A host that runs elsewhere says `colonnade login notes`, and this folder has a configuration of its own."""
    (elsewhere / "colonnade.yaml").write_text("servers: {other: {command: [true]}}")
    assert run(["login", "notes"]) == WRONG
    assert f"there is no server 'notes' in {elsewhere}" in capsys.readouterr().err
    store(file, LOGIN)
    assert run(["login", "nots"]) == WRONG
    assert f"there is no server 'nots' in {elsewhere}" in capsys.readouterr().err
    assert run(["logout", "program"]) == FAILED, "there is no login for it"
    assert f"colonnade: the configuration is {file}" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("server", "why"),
    [
        ("note", "did you mean notes?"),
        ("program", "program is a program"),
        ("token", "has its credentials in the configuration"),
        ("own", "own gets its token by itself"),
        ("helped", "has its credentials in the configuration"),
    ],
)
def test_servers_at_which_nobody_logs_in(file: Path, capsys: pytest.CaptureFixture[str], server: str, why: str) -> None:
    assert run(["login", server, "--config", str(file)]) == WRONG
    assert why in capsys.readouterr().err


def test_a_key_that_cannot_be_used_is_a_sentence(
    file: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_KEY", "short")
    assert run(["credentials", "--config", str(file)]) == WRONG
    assert "COLONNADE_KEY has 5 characters" in capsys.readouterr().err
