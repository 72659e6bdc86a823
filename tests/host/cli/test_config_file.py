"""The commands `check` and `schema`, in one process. tests/real/test_cli.py has them as people use them."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, WRONG


def test_a_program_that_is_not_trusted_is_told_about(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "colonnade.yaml"
    servers = {
        "a": {"command": ["cat"], "trust": "untrusted"},
        "b": {"command": ["cat"], "trust": "untrusted", "disabled": True},
        "c": {"url": "http://127.0.0.1:9/mcp", "trust": "untrusted"},
    }
    file.write_text(json.dumps({"servers": servers}))
    assert run(["check", str(file)]) == DONE
    out, err = capsys.readouterr()
    assert [line.split(":")[0] for line in out.splitlines()] == ["a", "b", "c", str(file)]
    assert [line.split(":")[:2] for line in err.splitlines()] == [["a", " notice"]]
    assert "it is not trusted, so its program is confined (sandbox: strict); to start it unconfined, write" in err
    assert "if an older version ran it unconfined, that goes on until you choose: colonnade sandbox a says" in err
    servers["a"] = {"command": ["cat"], "trust": "untrusted", "cwd": "${client:folder}"}
    file.write_text(json.dumps({"servers": servers}))
    assert run(["check", str(file)]) == DONE
    assert capsys.readouterr().err.endswith("where it cannot be confined, so it is not started without sandbox: off\n")


def test_the_program_of_a_container_is_not_looked_for_and_its_client_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "podman").touch(mode=0o755)
    sandbox = {"image": f"sha256:{'0' * 64}"}
    servers = {id: {"command": "nowhere", "sandbox": {**sandbox, "with": id}} for id in ("podman", "docker")}
    (file := tmp_path / "colonnade.yaml").write_text(json.dumps({"servers": servers}))
    assert run(["check", str(file)]) == DONE
    (said,) = capsys.readouterr().err.splitlines()
    assert said.startswith('docker: notice: the program "docker" was not found on PATH')


def test_the_folder_of_a_client_is_not_looked_for(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "colonnade.yaml"
    servers = {"a": {"command": ["cat"], "cwd": "${client:folder}"}, "b": {"command": ["cat"], "cwd": "nowhere"}}
    file.write_text(json.dumps({"servers": servers}))
    assert run(["check", str(file)]) == DONE
    assert [line.split(":")[:2] for line in capsys.readouterr().err.splitlines()] == [["b", " notice"]]


def test_a_server_of_a_hosts_file_that_cannot_be_used_is_named_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tmp_path / ".cursor" / "mcp.json"
    file.parent.mkdir()
    file.write_text(json.dumps({"mcpServers": {"bad": {"command": "cat", "odd": 1}, "good": {"command": "cat"}}}))
    assert run(["check", str(file)]) == FAILED
    out, err = capsys.readouterr()
    bad, good, last = out.splitlines()
    assert bad.startswith("bad: cannot be used: ")
    assert "odd" in bad
    assert good.startswith("good: ")
    assert last == f"{file}: 2 servers; 1 cannot be used"
    assert "bad: notice" not in err


def test_views_are_said_with_whose_they_are(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text(
        "listen: {auth: {tokens: {ci: '${env:CI_TOKEN:-0123456789abcdef}'}}}\n"
        "callers: {ci: {token: ci}}\n"
        "views:\n"
        "  some: {callers: ci, servers: {a: all, b: {tools: x, prompts: []}, c: {prompts: []}}}\n"
        "  all: {}\n"
        "  none: {servers: {}}\n"
        "default_view: none\n"
        "servers: {a: {command: cat}, b: {command: cat}, c: {command: cat}}\n"
    )
    assert run(["check", str(file)]) == DONE
    assert [line for line in capsys.readouterr().out.splitlines() if line.startswith("@")] == [
        "@some: a, b (tools), c (nothing); for ci",
        "@all: everything; for whoever asks for it",
        "@none: nothing; for all that no view names",
    ]


def test_programs_and_folders_that_are_not_there_are_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """No error of the file, which may be for another machine: exit code 0."""
    file = tmp_path / "elsewhere.yaml"
    file.write_text(
        "servers:\n"
        "  a: {command: [no-such-program, secret]}\n"
        "  b: {command: [python3], cwd: /no/such}\n"
        "  c: {command: [/no/such/program, secret]}\n"
        "  d: {command: [./elsewhere.yaml, secret]}\n"
    )
    assert run(["check", str(file)]) == DONE
    assert capsys.readouterr().err.splitlines() == [
        'a: notice: the program "no-such-program" was not found on PATH: install it, or correct the command, or write '
        "its path",
        'b: notice: the program "python3" cannot be started in the folder "/no/such": make that folder, or name '
        "another one",
        'c: notice: the program "program" was not found at "/no/such/program": install it, or correct the command',
        'd: notice: the program "elsewhere.yaml" is not executable: make it so (chmod +x), or put its interpreter '
        "before it in the command",
    ]


def test_every_problem_of_a_file_is_on_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With its place: file, line and column."""
    file = tmp_path / "wrong.yaml"
    file.write_text("servers:\n  a:\n    command: [x]\n    timeuot: 5s\n    timeout: 60\n")
    assert run(["check", str(file)]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    first, second = err.splitlines()
    assert first == f'{file}:4:5: servers.a.timeuot: unknown key; did you mean "timeout"?'
    assert second.startswith(f"{file}:5:14: servers.a.timeout: ")


@pytest.mark.parametrize("command", [["check"], ["serve"], ["serve", "--stdio", "--own"], ["list", "--config"]])
def test_a_missing_file_is_said_by_every_command(
    command: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLONNADE_STATE", str(tmp_path / "state"))
    assert run([*command, str(tmp_path / "none.yaml")]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert "none.yaml" in err


def test_a_fleet_that_could_not_start_is_not_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its driver, or the files of its certificate."""
    file = tmp_path / "colonnade.yaml"
    files = {"cert": "inner.crt", "key": "inner.key", "ca": "ca.crt"}
    inner = {"listen": "127.0.0.1:0", "address": "127.0.0.1:8443", **files}
    fleet = {"name": "acme", "store": "postgresql://127.0.0.1:1/x", "keys": ["5a" * 32]}
    file.write_text(json.dumps({"servers": {"a": {"command": "cat"}}, "fleet": fleet | {"inner": inner}}))
    assert run(["check", str(file)]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert err.endswith(f"fleet.inner: {tmp_path}/inner.crt cannot be read: No such file or directory\n")
    file.write_text(json.dumps({"servers": {"a": {"command": "cat"}}, "fleet": fleet}))
    monkeypatch.setitem(sys.modules, "psycopg", None)
    assert run(["check", str(file)]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert "colonnade: fleet.store needs the package psycopg" in err


def test_metrics_that_could_not_be_served_are_not_ok(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text(json.dumps({"servers": {"a": {"command": "cat"}}, "listen": {"metrics": "127.0.0.1:9464"}}))
    assert run(["check", str(file)]) == DONE
    monkeypatch.setitem(sys.modules, "prometheus_client", None)
    capsys.readouterr()
    assert run(["check", str(file)]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert "colonnade: listen.metrics needs the package prometheus-client" in err


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == DONE
    assert "properties" in json.loads(capsys.readouterr().out)
