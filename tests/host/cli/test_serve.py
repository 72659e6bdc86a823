"""The command `serve` before a host is opened. tests/real/test_cli.py has the rest."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from config import Secret, load
from host.cli import admin_client
from host.cli.admin_client import RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import WRONG
from host.cli.serve import _without_clients_values
from tests.real.running import recorder, write_config


def test_a_port_in_use_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With a sentence that names the port; no server was started."""
    log = tmp_path / "a.log"
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        file = write_config(tmp_path, {"a": recorder(log)}, listen={"address": f"127.0.0.1:{port}"})
        assert run(["serve", str(file), "--state", str(tmp_path / "state")]) == WRONG
    why = (
        f"cannot listen on 127.0.0.1 port {port}: Address already in use; choose another port (--port, listen.address)"
    )
    assert capsys.readouterr() == ("", f"colonnade: {why}\n")
    assert not log.exists()


def test_too_few_files_for_its_connections_are_exit_code_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it is said that the host serves."""
    monkeypatch.setattr("resource.getrlimit", lambda _: (1024, 1024))
    file = write_config(
        tmp_path, {"a": recorder(tmp_path / "a.log")}, memory="1024MiB", capacity={"connections": 20_000}
    )
    assert run(["serve", str(file), "--port", "0", "--state", str(tmp_path / "state")]) == WRONG
    said, complaint = capsys.readouterr()
    assert said == ""
    assert complaint.startswith("colonnade: capacity.connections: 20000 connections need 20304 open files, and this ")


def test_a_view_that_is_not_there_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text("servers: {a: {command: x}}\nviews: {coding: {}}\n")
    assert run(["serve", "--stdio", "--own", "--view", "codin", str(file)]) == 2
    assert "has no view codin; did you mean coding?" in capsys.readouterr().err
    assert run(["serve", "--view", "coding", str(file)]) == 2
    assert "--view goes with --stdio" in capsys.readouterr().err


def test_a_port_of_another_host_names_that_host(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        others = [
            RunningHost(Path("a.sock"), 4710, "/home/me/stdio.yaml", stdio=True),
            RunningHost(Path("b.sock"), 4711, "/home/me/other.yaml", endpoint=f"http://127.0.0.1:{port}/mcp"),
        ]
        monkeypatch.setattr(admin_client, "find_hosts", lambda state: others)
        file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}, listen={"address": f"127.0.0.1:{port}"})
        assert run(["serve", str(file), "--state", str(tmp_path / "state")]) == WRONG
    why = "Address already in use by your host of /home/me/other.yaml (process 4711); choose another port"
    assert why in capsys.readouterr().err


def test_a_state_directory_of_others_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the port is bound."""
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    tmp_path.chmod(0o755)
    assert run(["serve", str(file), "--state", str(tmp_path)]) == WRONG
    assert "open to others" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["--host", "0.0.0.0"], "0.0.0.0 (--host) is open to other machines, so it needs access tokens"),
        (["--host", "example.com"], "expected an IP address or localhost"),
    ],
)
def test_an_address_that_may_not_be_is_exit_code_2(
    words: list[str], why: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    assert run(["serve", str(file), *words, "--state", str(tmp_path / "state")]) == WRONG
    assert why in capsys.readouterr().err


def test_host_and_port_replace_those_of_the_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = write_config(tmp_path, {"a": recorder(tmp_path / "a.log")})
    with socket.create_server(("127.0.0.2", 0)) as bound:
        port = str(bound.getsockname()[1])
        words = ["--host", "127.0.0.2", "--port", port, "--state", str(tmp_path / "state")]
        assert run(["serve", str(file), *words]) == WRONG
    assert f"cannot listen on 127.0.0.2 port {port}" in capsys.readouterr().err


def test_values_for_servers_alone_leave_the_environment_of_a_host_in_the_background(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are those of a client, which another one may replace. What a rule names stays, and so does the home."""
    file = tmp_path / "c.yaml"
    file.write_text(
        'servers: {a: {command: docker, args: ["${env:A_WORD}", "${env:HOME}"], timeout: "${env:A_TIME}"}}\n'
    )
    values = {"A_WORD": "w", "A_TIME": "7s", "DOCKER_HOST": "d", "HOME": "/h", "OTHER_WORD": "o"}
    for name, value in values.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("DOCKER_CONTEXT", raising=False)
    read = load(file, in_background=True)
    made = _without_clients_values(read)
    assert made.handed_over == {"A_WORD": Secret("w"), "DOCKER_HOST": Secret("d")}
    assert {name for name in values if name in os.environ} == {"A_TIME", "HOME", "OTHER_WORD"}
    assert made.servers == read.servers == load(file, in_background=True, handed_over=made.handed_over).servers
