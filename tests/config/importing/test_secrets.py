"""Inputs and secrets of imported servers are kept elsewhere."""

from __future__ import annotations

from pathlib import Path

from config.importing.secrets import replace_inputs, replace_secrets
from tests.config.importing.kit import found, merged


def keep(name: str, secret: str) -> str:
    return f"${{keyring:{name}}}"


def test_an_answer_is_kept_and_named_in_its_place(tmp_path: Path) -> None:
    (server,) = merged(
        tmp_path, *found(tmp_path, {"a": {"command": "x", "env": {"K": "Bearer ${input:my-key}"}}})
    ).servers
    replace_inputs(server, {"my-key": "s3cr3t"}.get, keep)
    replace_secrets(server, keep, {})
    assert server.ours["env"] == {"K": "Bearer ${keyring:input.my-key}"}
    assert not server.problems


def test_without_an_answer_the_server_cannot_be_used(tmp_path: Path) -> None:
    servers = {"a": {"command": "x", "env": {"K": "${input:my-key}", "L": "${input:2}", "M": "$${input:x}"}}}
    (server,) = merged(tmp_path, *found(tmp_path, servers)).servers
    replace_inputs(server, lambda id: None, keep)
    assert server.ours["env"] == {"K": "${env:MY_KEY}", "L": "${env:INPUT_2}", "M": "$${input:x}"}
    assert server.problems[0].startswith("its host asks for the input my-key, for which there is no answer")


def test_nobody_is_asked_for_a_server_that_cannot_be_used(tmp_path: Path) -> None:
    (server,) = merged(
        tmp_path, *found(tmp_path, {"a": {"command": "x", "odd": 1, "env": {"K": "${input:k}"}}})
    ).servers
    asked: list[str] = []
    replace_inputs(server, lambda id: asked.append(id), keep)
    assert not asked
    assert server.ours["env"] == {"K": "${env:K}"}


def test_literal_secrets_and_those_of_files_are_kept(tmp_path: Path) -> None:
    (tmp_path / "vars").write_text("PLAIN=1\n")
    servers = {"a": {"command": "x", "envFile": str(tmp_path / "vars"), "env": {"TOKEN": "t", "DEBUG": "1"}}}
    (server,) = merged(tmp_path, *found(tmp_path, servers)).servers
    replace_secrets(server, keep, {})
    assert server.ours["env"] == {"PLAIN": "${keyring:a.PLAIN}", "TOKEN": "${keyring:a.TOKEN}", "DEBUG": "1"}
