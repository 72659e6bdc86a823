"""Listening sockets: ports, and Unix sockets."""

from __future__ import annotations

import errno
import socket
from pathlib import Path

import pytest

from host.wire.port import bind, bind_unix, unix_address


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_whoever_connects_waits_until_somebody_takes_the_connection(host: str) -> None:
    with bind(host, 0) as bound:
        address = bound.getsockname()[:2]
        assert address[0] == host
        with socket.create_connection(address, timeout=5) as client:
            client.sendall(b"early")
            taken, _ = bound.accept()
            with taken:
                assert taken.recv(5) == b"early"


def test_a_port_in_use_is_an_error_that_names_it() -> None:
    with bind("127.0.0.1", 0) as bound:
        port = bound.getsockname()[1]
        with pytest.raises(OSError, match=f"cannot listen on 127.0.0.1 port {port}: Address already in use") as caught:
            bind("127.0.0.1", port)
        assert caught.value.errno == errno.EADDRINUSE


def test_an_address_that_is_not_ours_is_an_error_that_names_it() -> None:
    with pytest.raises(OSError, match=r"^\[Errno \d+\] cannot listen on 192\.0\.2\.1 port 0: "):
        bind("192.0.2.1", 0)


@pytest.mark.parametrize("folder", ["short", "long" * 30])
def test_a_unix_socket_is_for_the_user_alone_however_long_its_path_is(tmp_path: Path, folder: str) -> None:
    path = tmp_path / folder / "1.sock"
    path.parent.mkdir()
    with bind_unix(path) as bound, socket.socket(socket.AF_UNIX) as client:
        assert path.lstat().st_mode & 0o777 == 0o600
        assert [each.name for each in path.parent.iterdir()] == ["1.sock"]
        with unix_address(path) as address:
            client.connect(address)
        client.sendall(b"early")
        taken, _ = bound.accept()
        with taken:
            assert taken.recv(5) == b"early"


def test_a_unix_socket_that_cannot_be_leaves_nothing(tmp_path: Path) -> None:
    path = tmp_path / "1.sock"
    path.mkdir()
    (path / "something").touch()
    with pytest.raises(OSError, match="directory"):
        bind_unix(path)
    assert [each.name for each in tmp_path.iterdir()] == ["1.sock"]
