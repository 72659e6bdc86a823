"""Colonnade's own entry for each host: the command, the URL, and tokens."""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from config import load
from config.hosts import DesktopHost
from config.hosts.entry_form import ENTRY_FORMS
from config.hosts.gemini import GEMINI
from config.load import read_file
from host.cli.exit_codes import CommandFailed
from host.cli.host_entry import TOKEN_VARIABLE, OwnEntry, by_command, by_url
from host.storage.directory import open_state


def host(name: str) -> DesktopHost:
    """A host by its name alone; the entry depends on nothing else."""
    return DesktopHost(name, name.title(), GEMINI.files, ENTRY_FORMS[name].path, {})


def command(name: str, text: str, folder: Path, added: Mapping[str, object] = {}) -> OwnEntry:
    file = folder / "colonnade.yaml"
    file.write_text(text)
    return by_command(host(name), read_file(file)[0], file, open_state(folder / "state"), added)


def url(name: str, listen: str, folder: Path, token: str | None = None, *, write_token: bool = False) -> OwnEntry:
    file = folder / "colonnade.yaml"
    file.write_text(f"servers: {{a: {{command: x}}}}\nlisten: {listen}\n")
    environ = {"LAPTOP": "laptop-token-123456", "OTHER": "other-token-1234567"}
    config = load(file, environ)
    state = open_state(folder / "state")
    return by_url(host(name), config, read_file(file)[0], state, token, write_token=write_token)


TOKEN = "{auth: {tokens: {laptop: '${env:LAPTOP}'}}}"
TWO = "{auth: {tokens: {cursor: '${env:LAPTOP}', other: '<${env:OTHER}>'}}}"


def test_the_command_works_from_any_folder_and_path(tmp_path: Path) -> None:
    made = command("cursor", "servers: {a: {command: x}}\n", tmp_path)
    assert made.entry["args"] == [
        "serve",
        "--stdio",
        str(tmp_path / "colonnade.yaml"),
        "--state",
        str(tmp_path / "state"),
    ]
    program = str(made.entry["command"])
    assert os.path.isabs(program)
    assert os.path.realpath(program) == os.path.realpath(Path(sys.executable).with_name("colonnade"))
    assert made.notes == []


def test_the_usual_state_directory_is_not_written_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_STATE_HOME", raising=False)
    monkeypatch.delenv("COLONNADE_STATE", raising=False)
    file = tmp_path / "colonnade.yaml"
    file.write_text("servers: {a: {command: x}}\n")
    made = by_command(host("cursor"), read_file(file)[0], file, open_state())
    assert made.entry["args"] == ["serve", "--stdio", str(file)]


def test_variables_that_a_host_withholds(tmp_path: Path) -> None:
    text = "servers: {a: {command: [x, '${env:B}'], env: {K: '${env:A}', D: '${env:D:-}'}}}\n"
    assert "env" not in command("cursor", text, tmp_path).entry
    assert command("codex", text, tmp_path).entry["env_vars"] == ["A", "B"]
    assert command("roo", text, tmp_path).entry["env"] == {"A": "${env:A}", "B": "${env:B}"}
    assert command("cursor", text, tmp_path).notes == []
    for name in ("claude-desktop", "lm-studio", "zed"):
        (note,) = command(name, text, tmp_path).notes
        assert "passes on few variables, perhaps not A, B: use ${file:PATH} or ${keyring:NAME}" in note
    (note,) = command("zed", text, tmp_path, added={"env": {"A": "a"}}).notes
    assert "perhaps not B:" in note
    assert command("zed", text, tmp_path, added={"env": {"A": "a", "B": "b"}}).notes == []


def test_the_address_of_the_configuration(tmp_path: Path) -> None:
    made = url("cursor", "{address: '0.0.0.0:9000', path: /x, auth: {tokens: {laptop: '${env:LAPTOP}'}}}", tmp_path)
    assert made.entry["url"] == "http://127.0.0.1:9000/x"
    assert made.notes[0].startswith("it must run: colonnade serve ")
    assert url("cursor", "{address: '[::1]:9000'}", tmp_path).entry == {"url": "http://[::1]:9000/mcp"}
    with pytest.raises(CommandFailed, match="the port is another one at each start"):
        url("cursor", "{address: '127.0.0.1:0'}", tmp_path)
    with pytest.raises(CommandFailed, match="takes no URL"):
        url("claude-desktop", "{}", tmp_path)


@pytest.mark.parametrize("name", sorted(name for name, each in ENTRY_FORMS.items() if each.url is not None))
def test_no_token_is_written_unless_it_is_said(name: str, tmp_path: Path) -> None:
    """Hosts that fill in a variable get the one of the configuration; the others refuse."""
    if ENTRY_FORMS[name].reference:
        made = url(name, TOKEN, tmp_path)
        assert "LAPTOP" in str(made.entry)
        assert "laptop-token" not in str(made.entry)
        assert "needs the variable LAPTOP, with the token laptop" in made.notes[-1]
        assert made.secret == ""
    else:
        with pytest.raises(CommandFailed, match="--write-token"):
            url(name, TOKEN, tmp_path)
        made = url(name, TOKEN, tmp_path, write_token=True)
        assert made.entry["headers"] == {"Authorization": "Bearer laptop-token-123456"}
        assert made.secret == "laptop-token-123456"


def test_one_of_several_tokens(tmp_path: Path) -> None:
    assert "LAPTOP" in str(url("cursor", TWO, tmp_path).entry), "the token with the name of the host"
    with pytest.raises(CommandFailed, match="--token cursor or other"):
        url("roo", TWO, tmp_path)
    with pytest.raises(CommandFailed, match="--token cursor or other"):
        url("roo", TWO, tmp_path, "nobody")
    made = url("roo", TWO, tmp_path, "other")
    assert f"${{env:{TOKEN_VARIABLE}}}" in str(made.entry), "the variable holds only a part of the token"


def test_the_token_where_a_host_wants_the_variable_itself(tmp_path: Path) -> None:
    assert url("codex", TOKEN, tmp_path).entry["bearer_token_env_var"] == "LAPTOP"
    made = url("codex", TOKEN, tmp_path, write_token=True)
    assert made.entry["http_headers"] == {"Authorization": "Bearer laptop-token-123456"}
    assert "bearer_token_env_var" not in made.entry
    assert url("continue", TOKEN, tmp_path, write_token=True).entry["apiKey"] == "laptop-token-123456"
