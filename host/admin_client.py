"""The hosts of this user that run on this machine, for the command line: found by their control sockets.

Blocking, since nothing else goes on in such a command. What is said over the sockets: console/control.py.
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Generator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.console.control import SOCKET_SUFFIX, socket_address
from host.wire.descent import credentials

TIMEOUT = 10.0
"""Seconds in which a host must answer."""
_CHUNK = 64 * 1024
_INCOMPATIBLE = "the host does not speak as this program does; it may be of another version"


class AdminClientError(Exception):
    """A host could not be asked, or said no; the text is one sentence for people."""


class _HostGone(AdminClientError):
    """Its socket is left of it, or not even that."""


@dataclass(frozen=True, slots=True)
class RunningHost:
    """One host that runs. If it would not say who it is, `problem` has its reason, `config` and `version` are empty and
    `pid` is as its socket is named."""

    path: Path
    pid: int
    config: str = ""
    version: str = ""
    stdio: bool = False
    problem: str | None = None

    def request(self, verb: str, **args: object) -> Any:
        """What the host answers, decoded.

        Raises:
            AdminClientError: it refused, or cannot be reached any more.
        """
        with _connect(self.path) as connection:
            return _request(connection, verb, args)

    def follow(self) -> Generator[dict[str, Any], None, None]:
        """What is to be seen, then every section that changes, as long as this is read and the host runs. All that
        time the host counts on somebody to answer.

        Raises:
            AdminClientError: it refused, or was too slow to begin.
        """
        with _connect(self.path) as connection:
            lines = _lines(connection)
            _send_request(connection, "follow", {})
            first = next(lines, None)
            if first is None:
                raise AdminClientError("the host ended before it said anything")
            if "error" in first:
                raise AdminClientError(first["error"])
            yield first
            connection.settimeout(None)
            yield from lines


def find_hosts(state: Path) -> list[RunningHost]:
    """Every host of this user whose sockets are below this state directory, in the order of their start. Sockets at
    which nobody listens any more are removed."""
    hosts: list[tuple[float, RunningHost]] = []
    for path in (state / "run").glob(f"*{SOCKET_SUFFIX}"):
        pid = path.name.partition("-")[0]
        try:
            started = path.lstat().st_mtime
            with _connect(path) as connection:
                identity = _request(connection, "hello", {})
            host = RunningHost(path, identity["pid"], identity["config"], identity["colonnade"], identity["stdio"])
        except (_HostGone, FileNotFoundError):
            path.unlink(missing_ok=True)
            continue
        except (KeyError, TypeError):
            started, host = 0.0, RunningHost(path, _int_or_zero(pid), problem=_INCOMPATIBLE)
        except AdminClientError as problem:
            started, host = 0.0, RunningHost(path, _int_or_zero(pid), problem=str(problem))
        hosts.append((started, host))
    return [host for _, host in sorted(hosts, key=lambda each: (each[0], each[1].path))]


def _int_or_zero(text: str) -> int:
    return int(text) if text.isdecimal() else 0


@contextmanager
def _connect(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(TIMEOUT)
        try:
            with socket_address(path) as address:
                connection.connect(address)
            if credentials(connection)[1] != os.geteuid():
                raise AdminClientError(f"{path} is another user's")
            yield connection
        except (ConnectionRefusedError, FileNotFoundError) as problem:
            raise _HostGone("the host that was here has ended") from problem
        except OSError as problem:
            raise AdminClientError(f"the host at {path} does not answer: {problem.strerror or problem}") from problem


def _send_request(connection: socket.socket, verb: str, args: dict[str, object]) -> None:
    connection.sendall(json.dumps({**args, "verb": verb}).encode() + b"\n")


def _request(connection: socket.socket, verb: str, args: dict[str, object]) -> Any:
    _send_request(connection, verb, args)
    reply = next(_lines(connection), None)
    if reply is None:
        raise AdminClientError("the host ended before it answered")
    if "error" in reply:
        raise AdminClientError(reply["error"])
    return reply["ok"]


def _lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    data = bytearray()
    while True:
        end = data.find(b"\n")
        if end >= 0:
            line = bytes(data[:end])
            del data[: end + 1]
            try:
                reply = json.loads(line)
            except ValueError as problem:
                raise AdminClientError(_INCOMPATIBLE) from problem
            if not isinstance(reply, dict):
                raise AdminClientError(_INCOMPATIBLE)
            yield reply
            continue
        more = connection.recv(_CHUNK)
        if not more:
            return
        data += more
