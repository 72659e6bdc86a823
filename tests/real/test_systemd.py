"""The real host as a service: sockets that are passed to it, and what it says of itself. The tests stand for systemd.

Real clock: the host's own starts and ends are waited for, by what it says.
"""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .running import COLONNADE, ROOT, beside, serving, write_config

UNITS = ROOT / "examples" / "deploy" / "systemd"
ACTIVATOR = """
import os, sys
os.dup2(int(sys.argv[1]), 3)
os.environ.update(LISTEN_PID=str(os.getpid()), LISTEN_FDS="1")
os.execv(sys.argv[2], sys.argv[2:])
"""
"""Becomes the command after the number of a descriptor, which it gets as systemd passes one."""
OFF = {"off": {"command": ["true"], "disabled": True}}
REQUEST = b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"


@pytest.fixture
def endpoint() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as listening:
        yield listening


@pytest.fixture
def notify(tmp_path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiving:
        receiving.bind(str(tmp_path / "notify"))
        receiving.settimeout(30)
        yield receiving


def activated(endpoint: socket.socket) -> list[str]:
    return [sys.executable, "-c", ACTIVATOR, str(endpoint.fileno())]


def connected(endpoint: socket.socket) -> socket.socket:
    """A client that has sent its request, whether or not anybody accepts it yet."""
    client = socket.create_connection(endpoint.getsockname(), timeout=30)
    client.sendall(REQUEST)
    return client


def is_served(client: socket.socket) -> bool:
    with client:
        return client.recv(100).startswith(b"HTTP/1.1 200 ")


def says(notify: socket.socket, state: str) -> None:
    """Wait until the service says this. The watchdog's messages may come between."""
    while (said := notify.recv(4096).decode().split("\n"))[0] != state:
        assert said == ["WATCHDOG=1"], said


def test_no_client_is_refused_while_a_service_with_a_passed_socket_restarts(
    tmp_path: Path, endpoint: socket.socket
) -> None:
    file = write_config(tmp_path, OFF, listen={"address": f"127.0.0.1:{endpoint.getsockname()[1]}"})
    for _ in range(2):
        waiting = connected(endpoint)  # before the start of each, as for the first client of a service
        with serving(file, by=activated(endpoint), inherits=[endpoint.fileno()]) as host:
            assert is_served(waiting)
            assert str(endpoint.getsockname()[1]) in host.url


def test_a_service_says_what_it_does(tmp_path: Path, notify: socket.socket) -> None:
    variables = {"NOTIFY_SOCKET": notify.getsockname(), "WATCHDOG_USEC": "400000"}
    with serving(write_config(tmp_path, OFF), variables=variables, stop=False) as host:
        says(notify, "READY=1")
        says(notify, "WATCHDOG=1")
        says(notify, "WATCHDOG=1")
        host.process.send_signal(signal.SIGHUP)
        says(notify, "RELOADING=1")
        says(notify, "READY=1")
        host.process.send_signal(signal.SIGTERM)
        says(notify, "STOPPING=1")
        assert host.process.wait(30) == 0


def test_a_passed_socket_at_another_address_is_refused(tmp_path: Path, endpoint: socket.socket) -> None:
    """At an address that the file does not name, its rules about addresses would hold for none."""
    file = write_config(tmp_path, OFF)
    done = subprocess.run(
        [*activated(endpoint), COLONNADE, "serve", str(file)],
        env=beside(file),
        pass_fds=[endpoint.fileno()],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    port = endpoint.getsockname()[1]
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr == (
        f"colonnade: systemd passes a socket at 127.0.0.1 port {port}; expected an address of listen in the "
        "file; give ListenStream= of the socket unit the same address\n"
    )


@pytest.mark.skipif(shutil.which("systemd-analyze") is None, reason="systemd-analyze is not installed")
@pytest.mark.parametrize("unit", ["colonnade", "colonnade-programs", "user/colonnade"])
def test_systemd_reads_each_unit_without_a_complaint(unit: str, tmp_path: Path) -> None:
    program = "/opt/colonnade/bin/colonnade" if "/" not in unit else "%h/.local/bin/colonnade"
    text = (UNITS / f"{unit}.service").read_text()
    assert text.count(program) == 1
    service = tmp_path / "colonnade.service"
    service.write_text(text.replace(program, COLONNADE))
    shutil.copy((UNITS / unit).with_name("colonnade.socket"), tmp_path)
    done = subprocess.run(
        ["systemd-analyze", "verify", "--man=no", "--recursive-errors=no", str(service)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (done.returncode, done.stdout + done.stderr) == (0, "")
