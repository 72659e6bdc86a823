"""The admin API at its Unix socket, with real processes on both sides: who may ask, what is answered, and what is left
of it."""

from __future__ import annotations

import http.client
import json
import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from host.admin.socket import MAX_CONNECTIONS, MAX_REFUSALS_RECORDED, MAX_TERMINALS, SocketDoor
from host.wire.asgi import PEER
from host.wire.descent import PeerProcess, this_process
from host.wire.port import unix_address
from tests.kit.admin import FakeAdminApi, confirmation
from tests.kit.asgi import Connection
from tests.real.running import until

REFUSAL = (
    "processes that a Colonnade host started, such as its servers, may not decide; "
    "decide in a terminal or on a console that none of them started"
)
HOST = Path(__file__).with_name("socket_host.py")
ROOT = Path(__file__).parent.parent.parent.parent

# Connects to the one socket in a folder, asks for the state, and writes down the answer: {STATUS: BODY}.
CLIENT = """
import glob, json, os, socket, sys, time
def ask(folder, out):
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(glob.glob(folder + "/*.sock")[0])
    connection.sendall(b"GET /api/v1/state HTTP/1.1\\r\\nHost: localhost\\r\\nConnection: close\\r\\n\\r\\n")
    head, _, body = connection.makefile("rb").read().partition(b"\\r\\n\\r\\n")
    with open(out + ".new", "w") as heard:
        json.dump({head.split()[1].decode(): json.loads(body)}, heard)
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


Answer = tuple[int, Any]
"""A status, and what the body says."""


class UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: Path) -> None:
        super().__init__("localhost", timeout=15)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(15)
        with unix_address(self._path) as address:
            self.sock.connect(address)

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        self.request(method, path, data)
        response = self.getresponse()
        return response.status, json.loads(response.read())


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

    def connect(self) -> UnixConnection:
        connection = UnixConnection(self.path)
        connection.connect()
        return connection

    def ask(self, method: str, path: str, body: object = None) -> Answer:
        with closing(self.connect()) as connection:
            return connection.ask(method, path, body)


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


@pytest.mark.slow
def test_a_plain_client_is_answered(host: RunningHost) -> None:
    with closing(host.connect()) as connection:  # one request after the other
        assert connection.ask("GET", "/api/v1/host") == (
            200,
            {
                "colonnade": "0.1.0",
                "config": "/home/me/colonnade.yaml",
                "pid": 4711,
                "stdio": False,
                "endpoint": "http://127.0.0.1:8808/mcp",
                "audit": "files",
            },
        )
        status, state = connection.ask("GET", "/api/v1/state")
        assert status == 200
        assert {each["id"] for each in state["confirmations"]} >= {"q2"}
        assert "/console#" in connection.ask("POST", "/api/v1/console-links")[1]["link"]


@pytest.mark.slow
def test_the_socket_is_for_the_user_alone(host: RunningHost) -> None:
    assert host.path.lstat().st_mode & 0o777 == 0o600
    assert host.path.name.startswith(f"{host.process.pid}-")
    assert [each.name for each in host.path.parent.iterdir()] == [host.path.name]


@pytest.mark.slow
def test_decisions(host: RunningHost) -> None:
    answer = "/api/v1/confirmations/answer"
    assert host.ask("POST", answer, {"id": "q1", "answer": "time", "seconds": 60}) == (
        200,
        {"done": "time: create_issue"},
    )
    assert host.ask("POST", answer, {"id": "q1", "answer": "once"}) == (
        409,
        {"error": "this question is not open any more"},
    )
    assert host.ask("POST", "/api/v1/grants/revoke", {"id": "g-q1"})[1]["done"]
    asked = {"server": "github", "kind": "tool", "name": "x"}
    assert host.ask("POST", "/api/v1/explain", asked)[1]["verdict"] == "ask"


ANSWER, DECIDE_ALL = "/api/v1/confirmations/answer", "/api/v1/definitions/decide-all"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", ANSWER, b"not JSON", 400),
        ("POST", "/api/v1/start", b"{}", 404),
        ("GET", ANSWER, b"", 405),
    ],
)
def test_what_is_no_request_is_told_so_and_the_next_one_is_answered(
    host: RunningHost, method: str, path: str, body: bytes, status: int
) -> None:
    with closing(host.connect()) as connection:
        refused = connection.ask(method, path, body)
        assert (refused[0], refused[1].keys()) == (status, {"error"})
        assert connection.ask("GET", "/api/v1/host")[0] == 200


@pytest.mark.slow
def test_following(host: RunningHost) -> None:
    with closing(host.connect()) as connection:
        connection.request("GET", "/api/v1/events")
        stream = connection.getresponse()
        first = json.loads(stream.readline())
        assert first["config"] == "/home/me/colonnade.yaml"
        assert host.says() == "present terminal"
        host.hear("q9")
        news = json.loads(stream.readline())
        assert news.keys() == {"confirmations"}
        assert news["confirmations"][-1]["id"] == "q9"
    stream.close()
    assert host.says() == "present"


@pytest.mark.slow
def test_only_so_many_terminals(host: RunningHost) -> None:
    many = [host.connect() for _ in range(MAX_TERMINALS)]
    try:
        for each in many:
            each.request("GET", "/api/v1/events")
            assert each.getresponse().status == 200
            assert host.says().startswith("present terminal")
        assert host.ask("GET", "/api/v1/host")[0] == 503
    finally:
        for each in many:
            each.sock.shutdown(socket.SHUT_RDWR)
            each.close()
    while host.says() != "present":
        pass
    assert host.ask("GET", "/api/v1/host")[0] == 200


@pytest.mark.slow
def test_a_fault_of_ours_is_told_as_one(tmp_path: Path) -> None:
    with running_host(tmp_path) as host:
        host.hear("break")
        status, said = host.ask("POST", "/api/v1/grants/revoke", {"id": "g"})
        assert status == 500
        assert "Internal error" in said["error"]
        assert "secret" not in said["error"]
        assert "ZeroDivisionError" in host.says()


@pytest.mark.slow
def test_the_socket_is_removed_at_the_end_however_long_its_path_is(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with running_host(folder) as host:
        assert host.ask("GET", "/api/v1/host")[0] == 200
    assert list(folder.iterdir()) == []


# Who may ask


def heard(out: Path) -> Any:
    for _ in range(100):
        if out.exists():
            return json.loads(out.read_text())
        subprocess.run(["sleep", "0.1"], check=True)
    raise AssertionError("the client did not come to an end")


@pytest.mark.slow
@pytest.mark.parametrize("program", [AS_CHILD, AS_ORPHAN], ids=["a child", "a double-forked grandchild"])
def test_what_runs_below_the_keeper_is_refused(tmp_path: Path, program: str) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder, [program, str(folder), str(out)]) as host:
        assert heard(out) == {"403": {"error": REFUSAL}}
        assert host.ask("GET", "/api/v1/host")[0] == 200


@pytest.mark.slow
@pytest.mark.parametrize("program", [AS_CHILD, AS_ORPHAN], ids=["a child", "a double-forked grandchild"])
def test_the_same_programs_started_by_somebody_else_are_answered(tmp_path: Path, program: str) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder):
        subprocess.run([sys.executable, "-c", program, str(folder), str(out)], check=True)
        assert "200" in heard(out)


@pytest.mark.slow
def test_a_refused_attempt_is_told_with_its_process(tmp_path: Path) -> None:
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    with running_host(folder, [AS_CHILD, str(folder), str(out)]) as host:
        said = host.says()
        assert heard(out) == {"403": {"error": REFUSAL}}
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


def fail(problem: Exception) -> None:
    raise AssertionError("a mistake of ours") from problem


async def test_a_process_that_loses_its_right_while_its_body_comes_decides_nothing(tmp_path: Path) -> None:
    """Its parent has ended meanwhile, say: what the kernel says when the decision is made is what counts."""
    admin = FakeAdminApi(confirmations=[confirmation()])
    crashes: list[Exception] = []
    peers = [this_process(), PeerProcess(os.getpid(), os.geteuid())]
    async with trio.open_nursery() as nursery:
        connection = Connection(SocketDoor(admin, tmp_path, crashes.append).serve, nursery)
        connection.extensions[PEER] = lambda: peers.pop(0)
        answer = await connection.get("POST", ANSWER, {"id": "q1", "answer": "once"})
        assert answer.status == 403
        assert "descends" in json.loads(answer.body)["error"]
    assert (admin.requests, crashes, len(admin.refusals)) == ([], [], 1)


async def test_where_the_system_does_not_tell_who_asks_everybody_is_refused(tmp_path: Path) -> None:
    problem = OSError("this system does not report the process at the other end of a socket")

    def examine() -> PeerProcess:
        raise problem

    async with trio.open_nursery() as nursery:
        connection = Connection(SocketDoor(FakeAdminApi(), tmp_path, fail).serve, nursery)
        connection.extensions[PEER] = examine
        answer = await connection.get("GET", "/api/v1/state")
        assert (answer.status, json.loads(answer.body)) == (403, {"error": str(problem)})


async def test_no_header_says_who_asks(tmp_path: Path) -> None:
    """Nor can one take the place of what the listener says."""
    admin = FakeAdminApi(confirmations=[confirmation()])
    async with trio.open_nursery() as nursery:
        connection = Connection(SocketDoor(admin, tmp_path, fail).serve, nursery)
        connection.extensions[PEER] = lambda: PeerProcess(1, os.geteuid() + 1)
        claims = {"x-colonnade-peer": str(os.getpid()), "colonnade.peer": "1", "x-forwarded-for": "127.0.0.1"}
        answer = await connection.get("POST", ANSWER, {"id": "q1", "answer": "once"}, headers=claims)
        assert (answer.status, admin.requests) == (403, [])


FLOODING = """
import collections, glob, json, os, socket, sys
path = glob.glob(sys.argv[1] + "/*.sock")[0]
kept = collections.deque(maxlen=int(sys.argv[3]))
made = 0
while True:
    try:
        connection = socket.socket(socket.AF_UNIX)
        connection.connect(path)
        connection.sendall(b"GET /api/v1/state HTTP/1.1\\r\\nHost: localhost\\r\\n\\r\\n")
        status, told = None, connection.makefile("rb")
        while line := told.readline():
            status = status or line.split()[1].decode()
            if line == b"\\r\\n":
                body = json.loads(told.readline())
    except OSError:  # the host has ended
        break
    kept.append(connection)
    made += 1
    if made == kept.maxlen:
        with open(sys.argv[2] + ".new", "w") as out:
            json.dump({status: body}, out)
        os.rename(sys.argv[2] + ".new", sys.argv[2])
"""


@pytest.mark.slow
def test_refused_connections_keep_no_terminal_out(tmp_path: Path) -> None:
    """Each is told why."""
    folder, out = tmp_path / "run", tmp_path / "out"
    folder.mkdir()
    count = 2 * MAX_CONNECTIONS
    with running_host(folder, [FLOODING, str(folder), str(out), str(count)]) as host:
        assert heard(out) == {"403": {"error": REFUSAL}}
        for _ in range(5):
            assert host.ask("GET", "/api/v1/host")[0] == 200
