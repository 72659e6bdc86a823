"""The hosts that run here, as the command line finds and asks them."""

from __future__ import annotations

import json
import os
import socket
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from host.cli.admin_client import AdminClientError, RunningHost, find_hosts
from tests.host.admin.test_socket import running_host


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "run").mkdir(0o700)
    return tmp_path / "run"


@contextmanager
def answering(path: Path, data: bytes) -> Iterator[None]:
    """Something at a socket that answers with these bytes, whatever it is asked, and hangs up."""
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(path))
        listening.listen()

        def answer() -> None:
            connection, _ = listening.accept()
            with connection:
                connection.recv(1000)
                connection.sendall(data)

        thread = threading.Thread(target=answer)
        thread.start()
        yield
        thread.join(10)


@pytest.mark.slow
def test_every_running_host_is_found(folder: Path) -> None:
    assert find_hosts(folder.parent) == []
    with running_host(folder) as one, running_host(folder) as other:
        found = find_hosts(folder.parent)
        assert [each.path for each in found] == [one.path, other.path]
        assert {(each.pid, each.config, each.version, each.problem) for each in found} == {
            (4711, "/home/me/colonnade.yaml", "0.1.0", None)
        }
    assert find_hosts(folder.parent) == []


@pytest.mark.slow
def test_asking(folder: Path) -> None:
    with running_host(folder):
        (found,) = find_hosts(folder.parent)
        assert found.post("confirmations/answer", id="q1", answer="deny") == {"done": "deny: create_issue"}
        with pytest.raises(AdminClientError, match="not open any more"):
            found.post("confirmations/answer", id="q1", answer="deny")
        assert [each["id"] for each in found.get("state")["confirmations"]] == ["q2"]
    with pytest.raises(AdminClientError, match="has ended"):
        found.get("state")


@pytest.mark.slow
def test_following(folder: Path) -> None:
    with running_host(folder) as host:
        (found,) = find_hosts(folder.parent)
        news = found.follow()
        assert "confirmations" in next(news)
        assert host.says() == "present terminal"
        host.hear("q9")
        assert next(news)["confirmations"][-1]["id"] == "q9"
        news.close()
        assert host.says() == "present"


@pytest.mark.slow
def test_the_end_of_a_host_ends_what_follows_it(folder: Path) -> None:
    with running_host(folder):
        news = find_hosts(folder.parent)[0].follow()
        next(news)
    assert list(news) == []


@pytest.mark.slow
def test_what_a_dead_host_left_is_removed(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(folder / "12-0011aabb.sock"))
    (folder / "13-0011aabb.sock").touch()
    (folder / "other").touch()
    with running_host(folder) as host:
        assert [each.path for each in find_hosts(folder.parent)] == [host.path]
        assert {each.name for each in folder.iterdir()} == {"other", host.path.name}


@pytest.mark.parametrize(
    ("facts", "background"), [({}, True), ({"stdio": True}, False), ({"endpoint": "http://127.0.0.1:9/mcp"}, False)]
)
def test_a_host_without_an_endpoint_runs_in_the_background(facts: dict[str, Any], background: bool) -> None:
    assert RunningHost(Path("x.sock"), 12, **facts).is_in_background == background


@pytest.mark.skipif(sys.platform != "linux", reason="the parent of a process is known on Linux alone")
def test_hosts_of_one_configuration_are_told_apart_by_the_program_that_started_each() -> None:
    mine = RunningHost(Path("x.sock"), os.getpid())
    parent = Path(f"/proc/{os.getppid()}/comm").read_text().strip()
    assert mine.process == f"process {os.getpid()}, started by {parent}"
    no_process = RunningHost(Path("x.sock"), 2**30)
    assert (no_process.process, no_process.starter) == (f"process {2**30}", "")


def http_answer(status: int, data: bytes) -> bytes:
    return b"HTTP/1.1 %d X\r\nContent-Length: %d\r\n\r\n" % (status, len(data)) + data


VERSIONS = http_answer(200, b'{"colonnade": "0.1.0", "versions": ["v1"]}')


def test_a_host_that_says_no_is_named_with_the_reason(folder: Path) -> None:
    path = folder / "12-0011aabb.sock"
    no = json.dumps({"error": "what was started by this host may not decide here"}).encode()
    with answering(path, http_answer(403, no)):
        assert find_hosts(folder.parent) == [
            RunningHost(path, 12, problem="what was started by this host may not decide here")
        ]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"no HTTP\n",
        b'{"error": "expected a JSON object with a verb"}\n',
        http_answer(200, b""),
        http_answer(200, b"no JSON\n"),
        http_answer(200, b"[]\n"),
        http_answer(200, b"{}\n"),
        http_answer(404, b"{}\n"),
        http_answer(200, b'{"colonnade": "1", "versions": 7}'),
        http_answer(200, b'{"colonnade": "0.1.0", "versions": ["v1"]}') + http_answer(200, b"{}"),
        http_answer(200, b'{"colonnade": "0.1.0", "versions": ["v1"]}')
        + b"HTTP/1.1 200 X\r\nContent-Length: 9\r\n\r\n{",
    ],
)
def test_what_speaks_otherwise_is_a_problem_and_no_crash(folder: Path, data: bytes) -> None:
    with answering(folder / "12-0011aabb.sock", data):
        (found,) = find_hosts(folder.parent)
    assert found.problem
    assert found.pid == 12


def test_a_host_whose_api_has_other_versions_is_named_with_them(folder: Path) -> None:
    path = folder / "12-0011aabb.sock"
    with answering(path, http_answer(200, b'{"colonnade": "9.0.0", "versions": ["v2", "v3"]}')):
        (found,) = find_hosts(folder.parent)
    assert found.problem == (
        "the host is Colonnade 9.0.0, whose admin API is v2, v3; this program knows v1: use the program of the host's "
        "version"
    )


def test_what_a_host_no_longer_answers(folder: Path) -> None:
    path = folder / f"{os.getpid()}-0011aabb.sock"
    with answering(path, http_answer(403, b'{"error": "no"}\n')), pytest.raises(AdminClientError, match="no"):
        next(RunningHost(path, 1).follow())
    path.unlink()
    with answering(path, b""), pytest.raises(AdminClientError, match="ended"):
        next(RunningHost(path, 1).follow())


def test_a_host_that_does_not_answer_in_time_is_told_with_its_problem(folder: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "4711-0.sock"))
        listening.listen()
        (found,) = find_hosts(folder.parent, timeout=0.05)
    assert found.pid == 4711
    assert found.problem is not None
    assert "does not answer: timed out" in found.problem
