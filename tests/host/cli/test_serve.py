"""The command `serve` before a host is opened. tests/real/test_cli.py has the rest."""

from __future__ import annotations

import json
import socket
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import WRONG


def test_a_port_in_use_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "colonnade.yaml"
    with socket.create_server(("127.0.0.1", 0)) as bound:
        port = bound.getsockname()[1]
        servers = {"a": {"command": ["cat"], "disabled": True}}
        file.write_text(json.dumps({"listen": {"address": f"127.0.0.1:{port}"}, "servers": servers}))
        assert run(["serve", str(file), "--state", str(tmp_path / "state")]) == WRONG
    why = f"cannot listen on 127.0.0.1 port {port}: Address already in use; another port is set under listen.address"
    assert capsys.readouterr() == ("", f"colonnade: {why}\n")


def test_a_state_directory_of_others_is_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Before the port is bound."""
    file = tmp_path / "colonnade.yaml"
    file.write_text(json.dumps({"servers": {"a": {"command": ["cat"], "disabled": True}}}))
    tmp_path.chmod(0o755)
    assert run(["serve", str(file), "--state", str(tmp_path)]) == WRONG
    assert "open to others" in capsys.readouterr().err
