"""The dangers of relays: other users, planted files, hosts of another version, and every way to be ended.

Servers that come as clients: test_relay_peers.py. What is planted for the loop of the relay: tests/host/test_relay.py.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import pytest

from host.relay import log_path, socket_path
from host.wire.descent import running_hosts
from tests.real.clients import LineClient, initialize
from tests.real.running import BARE_PYTHON, COLONNADE, ROOT, beside, heard, heard_method, host_of, pids_below, until
from tests.real.test_relay import call, configured, relay

pytestmark = [pytest.mark.slow, pytest.mark.timeout(120)]

OLD = "import sys, host.version; host.version.VERSION = '0.0.0'; from host.__main__ import main; main()"
"""A Colonnade of another version."""


def run_file(file: Path, ending: str) -> Path:
    """A file of the relays of this configuration, in a state directory that is there."""
    path = Path(socket_path(str(file.parent / "state"), str(file)))
    for folder in (path.parent.parent, path.parent):
        folder.mkdir(mode=0o700, exist_ok=True)
    return path.with_suffix(ending)


@contextmanager
def started(command: list[str], file: Path) -> Iterator[subprocess.Popen[bytes]]:
    with (file.parent / "old.stderr").open("w") as stderr:
        process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=stderr, env=beside(file), cwd=ROOT
        )
    with process:
        try:
            yield process
        finally:
            process.kill()


PLANTED: dict[str, Callable[[Path], object]] = {
    "a folder": lambda path: path.mkdir(),
    "a named pipe": os.mkfifo,
    "a link": lambda path: path.symlink_to(path.parent.parent.parent / "precious"),
    "a file": lambda path: path.write_text("planted"),
}


@pytest.mark.parametrize("what", PLANTED)
def test_what_is_planted_is_replaced_or_named(tmp_path: Path, what: str) -> None:
    """And nothing is written to where a link leads. The other files: tests/host/downstream/test_relays.py, and for the
    right to start a host tests/host/test_relay.py."""
    precious = tmp_path / "precious"
    precious.write_text("precious")
    with configured(tmp_path) as file:
        path = run_file(file, ".log")
        PLANTED[what](path)
        with relay(file) as client:
            client.say(initialize("2025-11-25", id=0))
            answered = client.hear()
            if answered:
                assert "result" in json.loads(answered)
                client.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
                assert "result" in call(client, 1)
                assert client.leave() == 0
            else:
                assert client.process.wait(30) == 2
                assert str(path) in (tmp_path / "stdio.stderr").read_text()
                assert what != "a file"
        assert precious.read_text() == "precious"


def test_a_lock_that_another_process_holds_is_named(tmp_path: Path) -> None:
    """The relay waits as long for a host as it would for one that starts: what holds the lock may be one."""
    holder = """
import fcntl, sys
with open(sys.argv[1], "w") as file:
    fcntl.flock(file, fcntl.LOCK_EX)
    print(flush=True)
    sys.stdin.read()
"""
    with configured(tmp_path) as file:
        path = run_file(file, ".lock")
        with started([*BARE_PYTHON, "-c", holder, str(path)], file) as holding:
            assert holding.stdout is not None
            assert holding.stdout.readline() == b"\n"
            program = "import sys; from host import relay; relay.START_TIMEOUT = 4.0; sys.exit(relay.run(sys.argv[1:]))"
            done = subprocess.run(
                [sys.executable, "-c", program, "--stdio", str(file)],
                stdin=holding.stdout,
                capture_output=True,
                text=True,
                env=beside(file),
                cwd=ROOT,
                check=False,
            )
            assert (done.returncode, done.stderr) == (
                1,
                f"waiting for the Colonnade of {file}; perhaps another process holds {path}\n"
                f"no Colonnade could be started; perhaps another process holds {path}\n",
            )


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user")
def test_another_user_is_no_client_and_no_host(tmp_path: Path) -> None:
    with configured(tmp_path) as file, relay(file) as client:
        client.open()
        path = socket_path(str(tmp_path / "state"), str(file))
        opened = [*Path(path).parents][:-1]
        modes = [(each, each.stat().st_mode) for each in opened if each.stat().st_uid == 0]
        attempt = (
            "with socket.socket(socket.AF_UNIX) as connection:\n"
            "    connection.settimeout(20)\n"
            "    try: connection.connect(sys.argv[1])\n"
            "    except PermissionError: sys.exit('denied')\n"
            "    sys.exit(connection.recv(10000).decode())"
        )
        as_nobody = [
            *BARE_PYTHON,
            "-c",
            f"import os, socket, sys; os.setgroups([]); os.setgid(65534); os.setuid(65534)\n{attempt}",
            path,
        ]
        assert subprocess.run(as_nobody, capture_output=True, check=False).stderr == b"denied\n"
        try:
            for each, mode in modes:  # as if its owner had opened the way
                each.chmod(mode | 0o011)
            os.chmod(path, 0o666)
            said = subprocess.run(as_nobody, capture_output=True, check=False).stderr
        finally:
            for each, mode in modes:
                each.chmod(mode)
        assert "only the user who runs this host" in json.loads(said)["refused"]
        assert "result" in call(client, 1)
        assert client.leave() == 0


SOCKET = """
import os, socket, sys
if os.fork() == 0:  # below no keeper: its parent and the session's are gone
    os.setsid()
    if os.fork() == 0:
        with socket.socket(socket.AF_UNIX) as listening:
            os.path.exists(sys.argv[1]) and os.unlink(sys.argv[1])
            listening.bind(sys.argv[1])
            if len(sys.argv) > 2:
                import resource
                resource.setrlimit(10, (1, 1))  # of file locks
            listening.listen()
            print("bound", flush=True)
            connection, _ = listening.accept()
            open(sys.argv[1] + ".stolen", "wb").write(connection.recv(100000))
            os.read(0, 1)
    os._exit(0)
"""


def test_a_former_server_that_waits_at_the_socket_is_told_nothing(tmp_path: Path) -> None:
    """It is below no host any more. The limit that it had as a server stays with it."""
    with configured(tmp_path) as file:
        path = run_file(file, ".relay")
        with started([*BARE_PYTHON, "-c", SOCKET, str(path), "marked"], file) as planting:
            assert planting.stdout is not None
            assert planting.stdout.readline() == b"bound\n"
            with relay(file) as client:
                client.open()
                assert "result" in call(client, 1)
                assert client.leave() == 0
            assert planting.stdin is not None
            planting.stdin.close()
            stolen = path.with_suffix(".relay.stolen")
            assert not stolen.exists() or stolen.read_bytes() == b""


def test_a_host_of_another_version_makes_room_and_keeps_its_clients(tmp_path: Path) -> None:
    with configured(tmp_path) as file:
        old = [sys.executable, "-c", OLD, "serve"]
        with started([*old, "--daemon", str(file)], file) as host:
            path = socket_path(str(tmp_path / "state"), str(file))
            until(lambda: os.path.exists(path), "the old host serves")
            with started([*old, "--stdio", str(file)], file) as process:
                before = LineClient(process)
                before.open()
                assert "result" in call(before, 1)
                with relay(file) as after:
                    after.open()
                    assert "result" in call(after, 1)
                    assert "result" in call(before, 2)
                    hosts = {each.pid for each in running_hosts(tmp_path / "state" / "hosts")}
                    assert len(hosts) == 2
                    assert host.pid in hosts
                    assert before.leave() == 0
                    assert host.wait(20) == 0
                    assert "result" in call(after, 2)
                    assert after.leave() == 0


def by_interrupt(process: subprocess.Popen[bytes]) -> None:
    process.send_signal(signal.SIGINT)


def by_kill(process: subprocess.Popen[bytes]) -> None:
    process.kill()


def by_end_of_input(process: subprocess.Popen[bytes]) -> None:
    assert process.stdin is not None
    process.stdin.close()


def is_heard(log: Path, mark: bytes) -> bool:
    return any(mark in line for line in heard(log))


@pytest.mark.parametrize("end", [by_interrupt, by_kill, by_end_of_input])
def test_however_a_client_ends_nothing_stays_and_nothing_is_doubled(
    tmp_path: Path, end: Callable[[subprocess.Popen[bytes]], None]
) -> None:
    """At several moments of the start, and in the middle of a call. The first ends before a host is there."""
    call_line = b'{"jsonrpc":"2.0","id":%d,"method":"tools/call","params":{"name":"rec__hang","arguments":{"n":%d}}}'
    with configured(tmp_path) as file:
        hosts: set[int] = set()
        for number, seconds in enumerate((0.0, 0.1, None)):
            with relay(file) as client:
                client.say(initialize("2025-11-25", id=0))
                client.say(b'{"jsonrpc":"2.0","method":"notifications/initialized"}')
                client.say(call_line % (number + 1, number))
                if seconds is None:
                    mark = f'"n":{number}'.encode()
                    until(partial(is_heard, tmp_path / "server.log", mark), "the server has the call")
                else:
                    with suppress(subprocess.TimeoutExpired):
                        client.process.wait(seconds)
                end(client.process)
                client.process.wait(10)
            hosts.add(host_of(file))
        until(lambda: not host_of(file), "no host is left")
        called = [each["params"]["arguments"]["n"] for each in heard_method(tmp_path / "server.log", "tools/call")]
        assert len(called) == len(set(called)) > 0
        until(lambda: not any(str(tmp_path) in each for each in pids_below(1).values()), "nothing is left")


def test_the_host_has_none_of_the_descriptors_of_the_desktop_host(tmp_path: Path) -> None:
    """One that it kept open would keep another process from seeing an end."""
    reading, writing = os.pipe()
    with configured(tmp_path) as file:
        with subprocess.Popen(
            [COLONNADE, "serve", "--stdio", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=beside(file),
            pass_fds=[writing],
        ) as process:
            os.close(writing)
            client = LineClient(process)
            client.open()
            assert client.leave() == 0
        assert host_of(file)
        assert os.read(reading, 1) == b""
        os.close(reading)


def test_a_long_state_directory_and_a_desktop_host_that_ignores_its_children(tmp_path: Path) -> None:
    folder = tmp_path / ("long" * 30)
    folder.mkdir()
    with configured(folder) as file:
        with subprocess.Popen(
            [COLONNADE, "serve", "--stdio", str(file)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**beside(file), "VIRTUAL_ENV": "/home/\udcff"},
            preexec_fn=lambda: signal.signal(signal.SIGCHLD, signal.SIG_IGN) and None,
        ) as process:
            client = LineClient(process)
            client.open()
            assert "result" in call(client, 1)
            assert client.leave() == 0
        assert os.path.exists(log_path(str(folder / "state"), str(file)))
