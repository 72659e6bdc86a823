"""Passed sockets and notifications, held against a socket in the place of systemd's."""

from __future__ import annotations

import math
import os
import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from host import systemd
from host.systemd import NotOurs, ServiceManager, take_sockets

OWN = str(os.getpid())


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as bound:
        yield bound


@pytest.fixture
def passed(monkeypatch: pytest.MonkeyPatch) -> Callable[[socket.socket], dict[str, str]]:
    """The environment in which systemd passes a socket; the first descriptor is the one that the test has."""

    def pass_on(given: socket.socket) -> dict[str, str]:
        copy = os.dup(given.fileno())  # the code under test owns what it takes
        os.set_inheritable(copy, True)
        monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", copy)
        return {"LISTEN_PID": OWN, "LISTEN_FDS": "1", "LISTEN_FDNAMES": "colonnade.socket", "HOME": "/h"}

    return pass_on


def test_a_passed_socket_is_taken_and_no_child_gets_it(
    listening: socket.socket, passed: Callable[[socket.socket], dict[str, str]]
) -> None:
    environ = passed(listening)
    (found,) = take_sockets(environ)
    with found:
        assert found.getsockname() == listening.getsockname()
        assert not found.get_inheritable()
    assert environ == {"HOME": "/h"}
    assert take_sockets(environ) == []


@pytest.mark.parametrize(
    "environ",
    [
        {},
        {"LISTEN_FDS": "1"},
        {"LISTEN_PID": "1", "LISTEN_FDS": "1"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "0"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "-1"},
        {"LISTEN_PID": OWN, "LISTEN_FDS": "many"},
    ],
)
def test_descriptors_of_another_process_are_left_alone(environ: dict[str, str]) -> None:
    assert take_sockets(environ) == []
    assert environ == {}


def test_a_socket_of_another_kind_is_refused(passed: Callable[[socket.socket], dict[str, str]]) -> None:
    with socket.socket(socket.AF_UNIX) as unix, pytest.raises(NotOurs, match="AF_UNIX"):
        take_sockets(passed(unix))


def test_a_socket_that_does_not_listen_is_refused(passed: Callable[[socket.socket], dict[str, str]]) -> None:
    with socket.socket() as idle, pytest.raises(NotOurs, match="expected ListenStream="):
        take_sockets(passed(idle))


def test_a_descriptor_that_is_not_open_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(systemd, "FIRST_DESCRIPTOR", 9999)
    with pytest.raises(NotOurs, match="9999: Bad file descriptor"):
        take_sockets({"LISTEN_PID": OWN, "LISTEN_FDS": "1"})


@pytest.fixture(params=["path", "abstract"])
def heard(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[str, socket.socket]]:
    """The value of NOTIFY_SOCKET, and the socket that it names."""
    name = str(tmp_path / "notify") if request.param == "path" else f"@{tmp_path}"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(name.replace("@", "\0", 1))
        receiving.settimeout(5)
        yield name, receiving


def test_what_a_service_does_is_told(heard: tuple[str, socket.socket]) -> None:
    name, receiving = heard
    environ = {"NOTIFY_SOCKET": name}
    manager = ServiceManager(environ)
    assert environ == {}
    for say in (manager.ready, manager.reloading, lambda: manager.stopping(40.5), manager.alive):
        say()
    said = [receiving.recv(4096).decode().splitlines() for _ in range(4)]
    assert [each[0] for each in said] == ["READY=1", "RELOADING=1", "STOPPING=1", "WATCHDOG=1"]
    assert said[1][1].startswith("MONOTONIC_USEC=")
    assert said[2][1] == "EXTEND_TIMEOUT_USEC=40500000"


def test_without_systemd_nothing_is_said_and_nothing_fails(tmp_path: Path) -> None:
    ServiceManager({}).ready()
    ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "gone")}).ready()


@pytest.mark.parametrize(
    ("environ", "seconds"),
    [
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": OWN}, 30),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000"}, 30),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "30000000", "WATCHDOG_PID": "1"}, math.inf),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "0"}, math.inf),
        ({"NOTIFY_SOCKET": "/n", "WATCHDOG_USEC": "soon"}, math.inf),
        ({"WATCHDOG_USEC": "30000000"}, math.inf),
        ({}, math.inf),
    ],
)
def test_the_watchdog_is_that_of_this_process(environ: dict[str, str], seconds: float) -> None:
    assert ServiceManager(environ).watchdog == seconds
    assert "WATCHDOG_USEC" not in environ
