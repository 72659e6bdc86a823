"""The command `serve` before a host is opened. tests/real/test_cli.py has the rest."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from host.cli import admin_client
from host.cli.admin_client import RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import WRONG
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
        (["--host", "0.0.0.0"], "an address beyond loopback needs access tokens"),
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
