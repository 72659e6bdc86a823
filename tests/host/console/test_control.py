"""The control socket, with real processes on both sides: who may ask, what is answered, and what is left of it."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from host.console import control
from host.console.control import MAX_CONNECTIONS, address_of, ancestry, peer_of, refuse
from host.console.requests import MAX_REQUEST

HOST = Path(__file__).with_name("control_host.py")
ROOT = Path(__file__).parent.parent.parent.parent

# Connects to the one socket in a folder, asks for the state, and writes down what it hears.
CLIENT = """
import glob, os, socket, sys, time
def ask(folder, out):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(glob.glob(folder + "/*.sock")[0])
    connection.sendall(b'{"verb": "state"}\\n')
    heard = connection.makefile().readline()
    open(out + ".new", "w").write(heard)
    os.rename(out + ".new", out)
"""
AS_CHILD = CLIENT + "ask(sys.argv[1], sys.argv[2])"
AS_ORPHAN = (
    CLIENT
    + """
if os.fork() == 0:
    os.setsid()
    parent = os.getpid()
    if os.fork() == 0:
        while os.getppid() == parent: time.sleep(0.01)  # until another has taken it over
        ask(sys.argv[1], sys.argv[2])
    os._exit(0)
os.wait()
"""
)


class RunningHost:
    def __init__(self, process: subprocess.Popen[bytes], path: Path) -> None:
        self.process = process
        self.path = path

    def says(self) -> str:
        assert self.process.stdout is not None
        return self.process.stdout.readline().decode().strip()

    def hear(self, words: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{words}\n".encode())
        self.process.stdin.flush()

    def connect(self) -> socket.socket:
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(15)
        with address_of(self.path) as address:
            connection.connect(address)
        return connection

    def ask(self, *requests: bytes | dict[str, Any]) -> list[Any]:
        with self.connect() as connection:
            for request in requests:
                connection.sendall(request if isinstance(request, bytes) else json.dumps(request).encode() + b"\n")
            return read(connection, len(requests))


def read(connection: socket.socket, count: int) -> list[Any]:
    """So many lines, or as many as come before the end."""
    data = b""
    while data.count(b"\n") < count and (more := connection.recv(65536)):
        data += more
    return [json.loads(line) for line in data.splitlines()]


@contextmanager
def running_host(folder: Path, programs: Sequence[str] = ()) -> Iterator[RunningHost]:
    process = subprocess.Popen(
        [sys.executable, str(HOST), str(folder), *programs],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert process.stdin is not None
    assert process.stdout is not None
    with process:
        try:
            word, path = process.stdout.readline().decode().split()
            assert word == "ready"
            yield RunningHost(process, Path(path))
        finally:
            process.stdin.close()
            try:
                process.wait(10)
            finally:
                process.kill()


@pytest.fixture(scope="module")
def host(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningHost]:
    with running_host(tmp_path_factory.mktemp("run")) as running:
        yield running


def test_a_plain_client_is_answered(host: RunningHost) -> None:
    hello, state, link = host.ask({"verb": "hello"}, {"verb": "state"}, {"verb": "link"})
    assert hello == {
        "ok": {
            "colonnade": "0.1.0",
            "config": "/home/me/colonnade.yaml",
            "pid": 4711,
            "stdio": False,
            "endpoint": "http://127.0.0.1:8808/mcp",
        }
    }
    assert {each["id"] for each in state["ok"]["questions"]} >= {"q2"}
    assert "/console#" in link["ok"]["link"]


def test_the_socket_is_for_the_user_alone(host: RunningHost) -> None:
    assert host.path.lstat().st_mode & 0o777 == 0o600
    assert host.path.name.startswith(f"{host.process.pid}-")
    assert [each.name for each in host.path.parent.iterdir()] == [host.path.name]


def test_decisions(host: RunningHost) -> None:
    said = host.ask(
        {"verb": "answer", "id": "q1", "answer": "time", "seconds": 60},
        {"verb": "answer", "id": "q1", "answer": "once"},
        {"verb": "revoke", "id": "g-q1"},
        {"verb": "explain", "server": "github", "kind": "tool", "name": "x"},
    )
    assert said[0] == {"ok": {"done": "time: create_issue"}}
    assert said[1] == {"error": "this question is not open any more"}
    assert said[2]["ok"]["done"]
    assert said[3]["ok"]["verdict"] == "ask"


@pytest.mark.parametrize(
    "line",
    [
        b"\n",
        b"[]\n",
        b"not JSON\n",
        b"\xff\n",
        b"{}\n",
        b'{"verb": 1}\n',
        b'{"verb": "start"}\n',
        b'{"verb": "reload", "command": ["sh"]}\n',
        b'{"verb": "answer", "id": "q2"}\n',
        b'{"verb": "answer", "id": "q2", "answer": "once", "command": "sh"}\n',
        b'{"verb": "decide_all", "server": "github", "fingerprints": []}\n',
    ],
)
def test_what_is_no_request_is_told_so_and_the_next_one_is_answered(host: RunningHost, line: bytes) -> None:
    refused, hello = host.ask(line, {"verb": "hello"})
    assert refused.keys() == {"error"}
    assert "ok" in hello


def test_a_request_has_only_so_many_bytes(host: RunningHost) -> None:
    assert host.ask(b" " * (MAX_REQUEST + 1)) == [{"error": f"a request has at most {MAX_REQUEST} bytes"}]


def test_following(host: RunningHost) -> None:
    with host.connect() as connection:
        connection.sendall(b'{"verb": "follow"}\n')
        (first,) = read(connection, 1)
        assert first["config"] == "/home/me/colonnade.yaml"
        assert host.says() == "present terminal"
        host.hear("q9")
        (news,) = read(connection, 1)
        assert news.keys() == {"questions"}
        assert news["questions"][-1]["id"] == "q9"
    assert host.says() == "present"


def test_only_so_many_connections(host: RunningHost) -> None:
    many = [host.connect() for _ in range(MAX_CONNECTIONS)]
    try:
        for each in many:
            each.sendall(b'{"verb": "hello"}\n')
            assert "ok" in read(each, 1)[0]
        with host.connect() as another:
            assert "error" in read(another, 1)[0]
    finally:
        for each in many:
            each.close()


def test_a_fault_of_ours_is_told_as_one(tmp_path: Path) -> None:
    with running_host(tmp_path) as host:
        host.hear("break")
        (said,) = host.ask({"verb": "revoke", "id": "g"})
        assert "Internal error" in said["error"]
        assert "secret" not in said["error"]
        assert "ZeroDivisionError" in host.says()


def test_the_socket_is_removed_at_the_end_however_long_its_path_is(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with running_host(folder) as host:
        assert "ok" in host.ask({"verb": "hello"})[0]
    assert list(folder.iterdir()) == []


# Who may ask


def heard(out: Path) -> Any:
    for _ in range(100):
        if out.exists():
            return json.loads(out.read_text())
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError("the client did not come to an end")


@pytest.mark.parametrize("program", [AS_CHILD, AS_ORPHAN], ids=["a child", "a double-forked grandchild"])
def test_what_runs_below_the_keeper_is_refused(tmp_path: Path, program: str) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder, [program, str(folder), str(out)]) as host:
        assert heard(out) == {"error": "what was started by this host may not decide here"}
        assert "ok" in host.ask({"verb": "hello"})[0]


@pytest.mark.parametrize("program", [AS_CHILD, AS_ORPHAN], ids=["a child", "a double-forked grandchild"])
def test_the_same_programs_started_by_somebody_else_are_answered(tmp_path: Path, program: str) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder):
        subprocess.run([sys.executable, "-c", program, str(folder), str(out)], check=True)
        assert "ok" in heard(out)


def test_the_descent_of_a_process() -> None:
    line = ancestry(os.getpid())
    assert [pid for pid, _ in line[:2]] == [os.getpid(), os.getppid()]
    assert refuse(os.getpid(), os.geteuid(), {0}) is None
    assert refuse(os.getpid(), os.geteuid(), {os.getpid()}) is not None
    assert refuse(os.getpid(), os.geteuid(), {os.getppid()}) is not None
    assert refuse(os.getpid(), os.geteuid() + 1, {0}) is not None


def test_whose_descent_cannot_be_read_is_refused() -> None:
    gone = subprocess.Popen(["true"])
    gone.wait()
    for pid in (gone.pid, 0, -1):
        why = refuse(pid, os.geteuid(), set())
        assert why is not None
        assert "cannot tell" in why


def test_a_line_that_does_not_hold_still_is_not_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A parent that ends while it is read, and whose number another gets, is a line that never was."""
    lines = iter([[(9, 1), (5, 1)], [(9, 1), (1, 0)], [(9, 1), (1, 0)]])
    monkeypatch.setattr(control, "_line", lambda pid: next(lines))
    assert ancestry(9) == [(9, 1), (1, 0)]
    restless = iter(range(100))
    monkeypatch.setattr(control, "_line", lambda pid: [(9, next(restless))])
    assert refuse(9, os.geteuid(), set()) is not None


def test_the_other_end_of_a_socket() -> None:
    one, other = socket.socketpair(socket.AF_UNIX)
    with one, other:
        assert peer_of(one) == (os.getpid(), os.geteuid())
