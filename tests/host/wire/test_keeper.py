"""The keeper alone: messages on its sockets, without the host's side. Real processes, real clock."""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
import struct
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from host.wire import keeper
from host.wire.descent import KEEPER_NAME, LINK_NAME, SUBREAPER_NAME
from tests.kit.processes import is_running

from .processes import FAMILY, FAMILY_SIZE, PYTHON, carrying, new_token

KEEPER = str(Path(keeper.__file__))
ELSEWHERE = """
import runpy, sys
sys.platform = "darwin"
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs the keeper as where there is neither prctl nor a subreaper."""

AT_THE_LIMIT = """
import errno, os, runpy, sys
def fork():
    raise OSError(errno.EAGAIN, "no")
os.fork = fork  # a real limit does not hold for root
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@contextmanager
def running_keeper(*prefix: str) -> Iterator[tuple[socket.socket, subprocess.Popen[bytes]]]:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        names = KEEPER_NAME, SUBREAPER_NAME, LINK_NAME
        command = [sys.executable, "-I", "-S", *prefix, KEEPER, str(theirs.fileno()), *names]
        with subprocess.Popen(command, pass_fds=[theirs.fileno()], start_new_session=True, env={}) as process:
            theirs.close()
            yield ours, process
            ours.close()
            assert process.wait(timeout=3) == 0


class Subreaper:
    """The host's end of a control socket."""

    def __init__(self, host: socket.socket, sort: bytes = keeper.ORDINARY) -> None:
        self.control, far = socket.socketpair()
        self.control.settimeout(5)
        self.output, write = os.pipe()
        with far, open(os.devnull, "rb") as null:
            socket.send_fds(host, [sort], [far.fileno(), null.fileno(), write, write])
        os.close(write)
        self.lines = self.control.makefile("rb")

    def order(self, *argv: str, cwd: str = "/", env: dict[str, str] | None = None) -> None:
        body = json.dumps({"argv": argv, "env": env or {}, "cwd": cwd}).encode()
        self.control.sendall(struct.pack("!I", len(body)) + body)

    def says(self) -> dict[str, object] | None:
        """The next report; None at its end."""
        line = self.lines.readline()
        return dict(json.loads(line)) if line else None

    def close(self) -> None:
        self.lines.close()
        self.control.close()
        os.close(self.output)


@pytest.fixture(params=[(), ("-c", ELSEWHERE)], ids=["linux", "elsewhere"])
def host(request: pytest.FixtureRequest) -> Iterator[socket.socket]:
    with running_keeper(*request.param) as (ours, _):
        yield ours


@pytest.fixture
def subreaper(host: socket.socket) -> Iterator[Subreaper]:
    made = Subreaper(host)
    yield made
    made.close()


def test_a_program_is_reported_from_its_start_to_the_end_of_its_tree(subreaper: Subreaper) -> None:
    subreaper.order("/bin/sh", "-c", "exit 3")
    reports = [subreaper.says() for _ in range(5)]
    assert [next(iter(report)) if report else None for report in reports] == ["subreaper", "pid", "exit", "gone", None]
    assert reports[2] == {"exit": 3}


@pytest.mark.few(2)
@pytest.mark.parametrize(("word", "status"), [(keeper.TERM, -signal.SIGTERM), (keeper.KILL, -signal.SIGKILL)])
def test_one_byte_ends_a_program(subreaper: Subreaper, word: bytes, status: int) -> None:
    subreaper.order("/bin/sleep", "600")
    subreaper.says(), subreaper.says()
    subreaper.control.sendall(word)
    assert subreaper.says() == {"exit": status}
    assert subreaper.says() == {"gone": True}


def test_bytes_that_mean_nothing_do_nothing(subreaper: Subreaper) -> None:
    subreaper.order("/bin/sleep", "600")
    subreaper.says(), subreaper.says()
    subreaper.control.sendall(b"what?\n")
    subreaper.control.settimeout(0.1)
    with pytest.raises(TimeoutError):
        subreaper.control.recv(1)


def test_a_start_that_fails_is_the_last_it_says(subreaper: Subreaper) -> None:
    subreaper.order("/no/such/program")
    subreaper.says()
    assert subreaper.says() == {"error": "not found"}
    assert subreaper.says() is None


@pytest.mark.few(3)
@pytest.mark.parametrize("order", [b"", b"\0\0", b"\0\0\0\x09{", b"\0\0\0\x02no", b"\0\0\0\0"])
def test_a_broken_order_starts_nothing(subreaper: Subreaper, order: bytes) -> None:
    subreaper.control.sendall(order)
    subreaper.control.shutdown(socket.SHUT_WR)
    assert list(subreaper.says() or {}) == ["subreaper"]
    assert subreaper.says() is None


@pytest.mark.parametrize(
    ("sort", "name", "is_lower"), [(keeper.ORDINARY, SUBREAPER_NAME, True), (keeper.LINK, LINK_NAME, False)]
)
def test_a_subreaper_has_the_name_of_its_sort_and_only_an_ordinary_one_the_lower_limit(
    sort: bytes, name: str, is_lower: bool
) -> None:
    program = "import os, resource; print(open(f'/proc/{os.getppid()}/comm').read(), *resource.getrlimit(10))"
    with running_keeper() as (ours, _):
        subreaper = Subreaper(ours, sort)
        subreaper.order(sys.executable, "-I", "-S", "-c", program)
        said = ""
        while data := os.read(subreaper.output, 100):
            said += data.decode()
        assert said.split()[0] == name
        own = resource.getrlimit(10)[1]
        lower = keeper._MARK if own == resource.RLIM_INFINITY else own - 1
        assert int(said.split()[2]) == (lower if is_lower else own)
        subreaper.close()


def test_a_fork_that_fails_is_reported() -> None:
    """At the limit of processes the keeper cannot make a subreaper; it says so in the place of one."""
    with running_keeper("-c", AT_THE_LIMIT) as (host, _):
        made = Subreaper(host)
        assert made.says() == {"error": "Resource temporarily unavailable"}
        assert made.says() is None
        made.close()


def test_a_byte_without_descriptors_is_passed_over(host: socket.socket) -> None:
    host.sendall(b"s")
    socket.send_fds(host, [b"s"], [host.fileno()])
    made = Subreaper(host)
    made.order("/bin/true")
    assert list(made.says() or {}) == ["subreaper"]
    made.close()


@pytest.mark.slow
def test_the_end_of_the_control_socket_ends_a_program_that_heeds_no_signal(host: socket.socket) -> None:
    made = Subreaper(host)
    token = new_token()
    made.order(
        *PYTHON, "import signal, time\nsignal.signal(15, signal.SIG_IGN)\nprint(flush=True)\ntime.sleep(9)", token
    )
    made.says()
    pid = int(str((made.says() or {})["pid"]))
    assert os.read(made.output, 1) == b"\n"
    made.control.shutdown(socket.SHUT_WR)
    assert [made.says(), made.says(), made.says()] == [{"exit": -signal.SIGKILL}, {"gone": True}, None]
    assert not is_running(pid)
    made.close()


def test_it_ends_only_when_its_subreapers_have() -> None:
    with ExitStack() as stack:
        ours, process = stack.enter_context(running_keeper())
        made = Subreaper(ours)
        stack.callback(made.close)
        token = new_token()
        made.order(*PYTHON, FAMILY, token, "stubborn")
        made.says(), made.says()
        assert os.read(made.output, 3) == b"up\n"
        assert len(carrying(token)) == FAMILY_SIZE
        ours.close()
        with pytest.raises(subprocess.TimeoutExpired):
            process.wait(timeout=0.2)
        made.control.sendall(keeper.KILL)
        assert process.wait(timeout=1) == 0
        assert carrying(token) == []


def test_it_imports_the_standard_library_alone() -> None:
    code = (
        "import runpy, sys; before = set(sys.modules); runpy.run_path(sys.argv[1], run_name='keeper');"
        " sys.exit(bool({name.partition('.')[0] for name in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    assert subprocess.run([sys.executable, "-I", "-S", "-c", code, KEEPER], check=False).returncode == 0


def test_a_tree_is_listed_parents_first() -> None:
    with subprocess.Popen(
        ["/bin/sh", "-c", "sh -c 'sleep 600 & echo up; wait' & wait"], stdout=subprocess.PIPE
    ) as shell:
        assert shell.stdout is not None
        shell.stdout.readline()
        (inner,) = keeper.children_of(shell.pid)
        (sleeper,) = keeper.children_of(inner)
        assert keeper.tree_below(shell.pid) == [inner, sleeper]
        assert keeper.tree_below(shell.pid, lambda pid: pid != inner) == []
        assert {(inner, shell.pid), (sleeper, inner)} <= set(keeper._parents())
        keeper.kill_below(shell.pid)
        shell.wait()
        assert keeper.tree_below(shell.pid) == []
