"""The command `stop`: which hosts it ends, and what it says."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from host.cli import stop as module
from host.cli import targets
from host.cli.admin_client import RunningHost
from host.cli.command_line import run
from host.cli.exit_codes import DONE, FAILED, UNREACHED
from host.storage.directory import open_state

URL = "http://127.0.0.1:9/mcp"
HOST = """
import signal, sys, threading
from pathlib import Path
from host.wire.descent import announce_host
ended = threading.Event()
signal.signal(signal.SIGTERM, lambda *_: ended.set() if sys.argv[3] == "ends" else None)
with announce_host(Path(sys.argv[1]), Path(sys.argv[2])):
    print("here", flush=True)
    while not ended.wait(0.05):
        pass
"""


@dataclass(frozen=True, slots=True)
class FoundHost(RunningHost):
    """A host with two clients."""

    def get(self, path: str) -> Any:
        return {"clients": 2, "drain": 0.0}


Hosts = Callable[..., subprocess.Popen[str]]


@pytest.fixture
def state(tmp_path: Path) -> str:
    return str(open_state(tmp_path / "state").path)


@pytest.fixture
def hosts(state: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hosts]:
    """Starts a process that has the record of a host, and is found as one."""
    found: list[RunningHost] = []
    monkeypatch.setattr(targets, "find_hosts", lambda state: found)
    with ExitStack() as stack:

        def start(config: str, how: str = "ends", **facts: Any) -> subprocess.Popen[str]:
            command = [sys.executable, "-c", HOST, str(Path(state, "hosts")), config, how]
            process = stack.enter_context(subprocess.Popen(command, stdout=subprocess.PIPE, text=True))
            stack.callback(process.kill)
            assert process.stdout is not None
            assert process.stdout.readline() == "here\n"
            found.append(FoundHost(Path("x.sock"), process.pid, config, **facts))
            return process

        yield start


@pytest.mark.slow
def test_a_host_in_the_background_is_ended(hosts: Hosts, state: str, capsys: pytest.CaptureFixture[str]) -> None:
    """That of a person stays, also if it has the same configuration."""
    mine, other = hosts("/c/a.yaml"), hosts("/c/a.yaml", endpoint=URL)
    assert run(["stop", "--state", state]) == DONE
    assert mine.wait(10) == 0
    said = f"/c/a.yaml: process {mine.pid} has ended; the relays of 2 clients start another one\n"
    assert capsys.readouterr().out == said
    assert other.poll() is None


@pytest.mark.slow
@pytest.mark.parametrize("facts", [{"endpoint": URL}, {"stdio": True}])
def test_a_host_that_no_relay_started_needs_a_yes(
    facts: dict[str, Any],
    hosts: Hosts,
    state: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = hosts("/c/a.yaml", **facts)
    assert run(["stop", "--state", state]) == FAILED
    said = capsys.readouterr().err
    assert f"/c/a.yaml: no relay started this host (process {process.pid}" in said
    assert "--yes ends it" in said
    monkeypatch.setattr("sys.stdin.isatty", lambda: True)
    monkeypatch.setattr(module, "is_confirmed", lambda question: False)
    assert run(["stop", "--state", state]) == FAILED
    assert process.poll() is None
    assert run(["stop", "--yes", "--state", state]) == DONE
    assert process.wait(10) == 0


@pytest.mark.slow
def test_one_of_several_configurations_is_to_be_named(
    hosts: Hosts, state: str, capsys: pytest.CaptureFixture[str]
) -> None:
    one, two = hosts("/c/a.yaml"), hosts("/c/b.yaml")
    assert run(["stop", "--state", state]) == FAILED
    assert "say which one with --config FILE: /c/a.yaml; /c/b.yaml" in capsys.readouterr().err
    assert run(["stop", "--config", "/c/b.yaml", "--state", state]) == DONE
    assert two.wait(10) == 0
    assert one.poll() is None
    assert run(["stop", "--config", "/c/c.yaml", "--state", state]) == UNREACHED


def test_a_host_that_does_not_end_is_said(
    hosts: Hosts, state: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "STOP_TIMEOUT", 0.2)
    process = hosts("/c/a.yaml", "stays")
    assert run(["stop", "--state", state]) == FAILED
    assert f"/c/a.yaml: process {process.pid} has not ended" in capsys.readouterr().err
