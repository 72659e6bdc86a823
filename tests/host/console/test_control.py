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

from host.console.api import MAX_REQUEST
from host.console.control import MAX_CONNECTIONS, MAX_LINGERING, MAX_REFUSALS_RECORDED, socket_address
from tests.real.running import until

REFUSAL = (
    "processes that a Colonnade host started, such as its servers, may not decide; "
    "decide in a terminal or on a console that none of them started"
)
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
        with socket_address(self.path) as address:
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


@pytest.mark.slow
def test_a_fault_of_ours_is_told_as_one(tmp_path: Path) -> None:
    with running_host(tmp_path) as host:
        host.hear("break")
        (said,) = host.ask({"verb": "revoke", "id": "g"})
        assert "Internal error" in said["error"]
        assert "secret" not in said["error"]
        assert "ZeroDivisionError" in host.says()


@pytest.mark.slow
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
        assert heard(out) == {"error": REFUSAL}
        assert "ok" in host.ask({"verb": "hello"})[0]


@pytest.mark.parametrize("program", [AS_CHILD, AS_ORPHAN], ids=["a child", "a double-forked grandchild"])
def test_the_same_programs_started_by_somebody_else_are_answered(tmp_path: Path, program: str) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder):
        subprocess.run([sys.executable, "-c", program, str(folder), str(out)], check=True)
        assert "ok" in heard(out)


@pytest.mark.slow
def test_a_refused_attempt_is_told_with_its_process(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder, [AS_CHILD, str(folder), str(out)]) as host:
        said = host.says()
        assert heard(out) == {"error": REFUSAL}
        word, name, pid, unrecorded = said.split()
        assert (word, unrecorded) == ("refused", "0")
        assert name.startswith("python")
        assert int(pid) > 0


@pytest.mark.slow
def test_refused_attempts_beyond_the_limit_are_counted(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    count = MAX_REFUSALS_RECORDED + 3
    many = CLIENT + f"for at in range({count}): ask(sys.argv[1], sys.argv[2])\nopen(sys.argv[2] + '.all', 'w').close()"
    with running_host(folder, [many, str(folder), str(out)]) as host:
        until(lambda: (tmp_path / "out.all").exists(), "all attempts were made")
        host.hear("refusals")
        told = []
        while (line := host.says()) != "refusals":
            told.append(line)
        assert sum(1 + int(line.split()[3]) for line in told) <= count
        assert len(told) >= MAX_REFUSALS_RECORDED


FLOODING = """
import collections, glob, os, socket, sys
path = glob.glob(sys.argv[1] + "/*.sock")[0]
kept = collections.deque(maxlen=int(sys.argv[3]))
made = 0
while True:
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        told = connection.makefile().readline()
    except OSError:  # the host has ended
        break
    kept.append(connection)
    made += 1
    if made == kept.maxlen:
        with open(sys.argv[2] + ".new", "w") as out:
            out.write(told)
        os.rename(sys.argv[2] + ".new", sys.argv[2])
"""


def test_refused_connections_keep_no_terminal_out(tmp_path: Path) -> None:
    """Each is told why, also beyond those that may linger."""
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    count = 2 * max(MAX_CONNECTIONS, MAX_LINGERING)
    with running_host(folder, [FLOODING, str(folder), str(out), str(count)]) as host:
        assert heard(out) == {"error": REFUSAL}
        for _ in range(5):
            assert "ok" in host.ask({"verb": "hello"})[0]
