"""The command `sandbox` on what a stopped host left."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from config import load
from host.cli.exit_codes import DONE, FAILED
from host.policy.fingerprint import launch_of
from tests.kit.awaited import awaited

from .conftest import Stopped


@pytest.fixture
def former(stopped: Stopped) -> Stopped:
    """A host of a former version started the untrusted `fs` unconfined."""
    server = {"command": ["cat"], "sandbox": "off", "trust": "untrusted"}
    stopped.file.write_text(json.dumps({"servers": {"fs": server, "gh": {"url": "http://127.0.0.1:9/mcp"}}}))
    launch = launch_of(load(str(stopped.file)).servers["fs"])
    stopped.inside(lambda gate: awaited(gate.definitions.observe_launch("fs", launch)))
    with closing(sqlite3.connect(_database(stopped.file))) as other, other:
        other.execute("DROP TABLE unconfined")
        other.execute("DROP TABLE session")
        other.execute("PRAGMA user_version = 5")
    del server["sandbox"]
    stopped.file.write_text(json.dumps({"servers": {"fs": server, "gh": {"url": "http://127.0.0.1:9/mcp"}}}))
    return stopped


def _database(file: Path) -> Path:
    (found,) = file.parent.rglob("colonnade.db")
    return found


def test_a_person_keeps_a_program_as_it_was(former: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert former.run("sandbox", "fs") == DONE
    assert "as before, until you choose: colonnade sandbox fs strict, or off" in capsys.readouterr().out
    assert former.run("sandbox", "fs", "off") == DONE
    assert capsys.readouterr().out == "fs: it runs unconfined, until its command is another one.\n"
    assert former.run("sandbox", "fs") == DONE
    assert capsys.readouterr().out == "fs: off: it runs as your user, as a person chose for this command\n"
    assert former.run("sandbox", "fs", "strict") == FAILED
    assert "write sandbox: strict to have it confined" in capsys.readouterr().err


def test_a_person_has_it_confined(former: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert former.run("sandbox", "fs", "strict") == DONE
    assert capsys.readouterr().out == "fs: it is confined.\n"
    assert former.run("sandbox", "fs") == DONE
    assert capsys.readouterr().out.endswith("(strict, from trust: untrusted)\n")
    assert former.run("sandbox", "fs", "off") == FAILED
    assert "write sandbox: off to have it started without" in capsys.readouterr().err


def test_about_others_there_is_nothing_to_choose(stopped: Stopped, capsys: pytest.CaptureFixture[str]) -> None:
    assert stopped.run("sandbox", "gh") == DONE
    assert capsys.readouterr().out == "gh: it is no program\n"
    assert stopped.run("sandbox", "gh", "strict") == FAILED
    assert "about gh there is nothing to choose: it is no program" in capsys.readouterr().err
