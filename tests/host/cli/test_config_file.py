"""The commands `check` and `schema`, in one process. tests/real/test_cli.py has them as people use them."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from host.cli.command_line import run
from host.cli.exit_codes import DONE, WRONG


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
    assert "unconfined" in err


def test_every_problem_of_a_file_is_on_its_own_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "colonnade.yaml"
    file.write_text("servers:\n  a: {commnd: [x]}\nlistn: 1\n")
    assert run(["check", str(file)]) == WRONG
    out, err = capsys.readouterr()
    assert out == ""
    assert len(err.splitlines()) >= 2
    assert all(line.startswith(f"{file}:") for line in err.splitlines())


def test_the_schema_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["schema"]) == DONE
    assert "properties" in json.loads(capsys.readouterr().out)
