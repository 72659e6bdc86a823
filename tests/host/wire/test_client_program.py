"""The program behind a relay, with real processes."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from host.client_process import ClientProcess
from host.wire.client_program import find_client
from host.wire.descent import KEEPER_NAME, LINK_NAME, PeerProcess, Process, ancestry, examine_peer, this_process

RELAY = "import socket, sys; s = socket.socket(socket.AF_UNIX); s.connect(sys.argv[1]); s.recv(1)"
DESK = """
import os, subprocess, sys
script, folder, *command = sys.argv
os.chdir(folder)
subprocess.run(command)
"""


@pytest.fixture
def relay(tmp_path: Path) -> list[str]:
    """A command that connects to the socket in the folder of the test."""
    script = tmp_path / "colonnade"
    script.write_text(RELAY)
    return [sys.executable, "-I", "-S", str(script), str(tmp_path / "socket")]


@contextmanager
def connected(tmp_path: Path, command: list[str]) -> Iterator[tuple[PeerProcess, subprocess.Popen[bytes]]]:
    """The peer that a command brings to the socket, and the process of the command."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(tmp_path / "socket"))
        listening.listen()
        listening.settimeout(30)
        with subprocess.Popen(command) as process:
            try:
                connection, _ = listening.accept()
                with connection:
                    yield examine_peer(connection), process
            finally:
                process.kill()


@pytest.mark.parametrize(
    "launcher",
    [
        [],
        ["sh", "-c", '"$@"; true', "sh"],
        ["env", "A=b", "sh", "-c", '"$@"; true', "sh"],
        ["timeout", "60", "nohup", "sh", "-c", '"$@"; true', "sh"],
    ],
    ids=["direct", "shell", "env", "timeout"],
)
def test_shells_and_launchers_are_passed_over(tmp_path: Path, relay: list[str], launcher: list[str]) -> None:
    desk, work = tmp_path / "a-desk.py", tmp_path / "work"
    desk.write_text(DESK)
    work.mkdir()
    with connected(tmp_path, [sys.executable, "-I", "-S", str(desk), str(work), *launcher, *relay]) as (peer, process):
        assert find_client(peer) == ClientProcess("a-desk", process.pid, str(work))
        assert peer.pid != process.pid


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("node") is None, reason="Node.js is not installed")
def test_a_title_is_the_name(tmp_path: Path, relay: list[str]) -> None:
    code = "process.title = 'claude'; require('child_process').spawn(process.argv[1], process.argv.slice(2))"
    with connected(tmp_path, ["node", "-e", code, *relay]) as (peer, process):
        assert find_client(peer) == ClientProcess("claude", process.pid, os.getcwd())


def test_a_peer_that_is_no_relay_is_the_program_itself(tmp_path: Path) -> None:
    script = tmp_path / "agent.py"
    script.write_text(RELAY)
    with connected(tmp_path, [sys.executable, "-I", "-S", str(script), str(tmp_path / "socket")]) as (peer, process):
        assert find_client(peer) == ClientProcess("agent", process.pid, os.getcwd())


def test_a_folder_that_was_removed_is_unknown(tmp_path: Path, relay: list[str]) -> None:
    desk, work = tmp_path / "a-desk.py", tmp_path / "work"
    desk.write_text(DESK)
    work.mkdir()
    with connected(tmp_path, [sys.executable, "-I", "-S", str(desk), str(work), *relay]) as (peer, process):
        work.rmdir()
        assert find_client(peer) == ClientProcess("a-desk", process.pid, "")


def test_a_program_that_ended_and_one_whose_pid_was_used_again_are_not_taken() -> None:
    own = ancestry(os.getpid())[0]
    assert find_client(PeerProcess(own.pid, os.geteuid(), [own])).pid == own.pid
    reused = Process(own.pid, own.started - 1, own.name)
    assert find_client(PeerProcess(own.pid, os.geteuid(), [reused])) == ClientProcess()
    gone = subprocess.Popen(["true"])
    gone.wait()
    assert find_client(PeerProcess(gone.pid, os.geteuid(), [Process(gone.pid, 1, "x"), own])) == ClientProcess()
    assert find_client(PeerProcess(own.pid, os.geteuid())) == ClientProcess()


def test_an_orphan_has_no_program() -> None:
    own = ancestry(os.getpid())[0]
    for manager in ("systemd", "init"):
        above = Process(own.pid, own.started, manager)
        assert find_client(PeerProcess(9, os.geteuid(), [above, own])) == ClientProcess()


def test_the_client_behind_a_link_is_the_host_that_started_it(tmp_path: Path, relay: list[str]) -> None:
    """Otherwise it would be the program that started that host, which is another host's client."""
    with connected(tmp_path, ["sh", "-c", '"$@"; true', "sh", *relay]) as (peer, shell):
        own, started_by = peer.lineage[0], peer.lineage[1]
        assert started_by.pid == shell.pid
        helpers = [Process(3, 3, LINK_NAME), Process(2, 2, KEEPER_NAME)]
        host = PeerProcess(own.pid, peer.uid, [started_by, *helpers, own])
        assert find_client(host) == ClientProcess("colonnade", own.pid, os.getcwd())


def test_the_client_of_this_process_is_found_likewise() -> None:
    assert find_client(this_process()).program
