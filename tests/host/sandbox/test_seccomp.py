"""The filter of system calls, in a child for each case."""

from __future__ import annotations

import errno
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from ctypes.util import find_library

import pytest

from host.sandbox.kernel import call
from host.sandbox.privileges import drop_all
from host.sandbox.seccomp import _rules, compile_filter, filter_calls
from tests.host.sandbox.forked import in_a_child
from tests.kit.kernel import NOT_HERE

needs_filter = pytest.mark.skipif(not find_library("seccomp"), reason=f"{NOT_HERE}libseccomp")


def filtered(work: Callable[[], object], *, alone: bool = False, network: bool = False) -> str:
    def run() -> object:
        drop_all()
        assert filter_calls(alone=alone, network=network)
        return work()

    return in_a_child(run)


def can_make(family: int) -> bool:
    try:
        socket.socket(family, socket.SOCK_DGRAM).close()
    except PermissionError:
        return False
    except OSError:  # this kernel has no such family
        return True
    return True


@needs_filter
@pytest.mark.parametrize(
    ("alone", "network", "given"),
    [
        (False, False, {socket.AF_UNIX, socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}),
        (True, False, {socket.AF_NETLINK}),
        (True, True, {socket.AF_INET, socket.AF_INET6, socket.AF_NETLINK}),
    ],
)
def test_sockets(alone: bool, network: bool, given: set[int]) -> None:
    """In pairs they lead nowhere else, so they are for all."""

    def work() -> list[int]:
        socket.socketpair()
        return [family for family in range(46) if can_make(family)]

    assert filtered(work, alone=alone, network=network) == str(sorted(map(int, given)))


@needs_filter
@pytest.mark.parametrize(
    ("name", "arguments", "number"),
    [
        ("unshare", (0x10000000,), errno.EPERM),
        ("unshare", (0x40000000,), errno.EPERM),
        ("mount", (b"none", b"/", b"tmpfs", 0, None), errno.EPERM),
        ("chroot", (b"/",), errno.EPERM),
        ("ioctl", (0, 0x5412, b"x"), errno.EPERM),
        ("ioctl", (0, 0x100005412, b"x"), errno.EPERM),
        ("syscall", (425, 1, None), errno.ENOSYS),
        ("syscall", (435, None, 0), errno.ENOSYS),
    ],
)
def test_what_is_refused(name: str, arguments: tuple[int | bytes | None, ...], number: int) -> None:
    def work() -> object:
        return call("a step", name, *arguments)

    assert filtered(work) == f"KernelRefused: [Errno {number}] {os.strerror(number)}"


@needs_filter
@pytest.mark.parametrize("alone", [False, True])
def test_what_programs_need_is_left(alone: bool) -> None:
    def work() -> list[object]:
        done: list[object] = []
        thread = threading.Thread(target=done.append, args=("thread",))
        thread.start()
        thread.join()
        done.append(subprocess.run(["sh", "-c", "echo a | cat"], capture_output=True, check=True).stdout)
        os.setpriority(os.PRIO_PROCESS, 0, 5)
        os.sched_getaffinity(0)
        return done

    assert filtered(work, alone=alone) == str(["thread", b"a\n"])


@needs_filter
def test_other_processes_are_not_for_it_where_it_sees_them() -> None:
    other = os.getppid()
    assert "PermissionError" in filtered(lambda: os.setpriority(os.PRIO_PROCESS, other, 5), alone=True)


def test_without_the_library_nothing_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(_: str) -> None:
        raise OSError

    monkeypatch.setattr("host.sandbox.seccomp._compiled", {})
    monkeypatch.setattr("ctypes.CDLL", fail)
    assert filter_calls(alone=False, network=True) is False


@needs_filter
def test_it_is_compiled_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Also for the processes that are forked then."""
    made = compile_filter(alone=False, network=True)
    monkeypatch.setattr("ctypes.CDLL", lambda _: pytest.fail("it was compiled again"))
    assert compile_filter(alone=False, network=True) is made
    assert "PermissionError" in filtered(lambda: socket.socket(socket.AF_VSOCK), network=True)


@needs_filter
def test_a_kernel_that_refuses_a_filter() -> None:
    """As a kernel without them does."""
    words = [sys.executable, "-c", "from host.sandbox.seccomp import *; print(filter_calls(alone=True, network=False))"]
    refusing = [sys.executable, "-m", "tests.sandbox.refusing", "filters", *words]
    assert subprocess.run(refusing, capture_output=True, text=True, check=True).stdout.strip() == "False"


@needs_filter
def test_every_call_has_a_name_that_the_library_knows() -> None:
    import ctypes

    library = ctypes.CDLL("libseccomp.so.2")
    unknown = {name for name, _, _ in _rules(alone=True, network=False) if not _is_known(library, name)}
    assert unknown == set()


def _is_known(library: object, name: str) -> bool:
    return bool(library.seccomp_syscall_resolve_name(name.encode()) != -1)  # type: ignore[attr-defined]
