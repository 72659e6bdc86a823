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

from host.console.control import SUFFIX, address_of
from host.wire.descent import credentials

PATIENCE = 10.0
"""Seconds in which a host must answer."""
_CHUNK = 64 * 1024
_OTHERWISE = "the host does not speak as this program does; it may be of another version"


class LocalError(Exception):
    """A host could not be asked, or said no; the text is one sentence for people."""


class _NobodyThere(LocalError):
    """Its socket is left of it, or not even that."""


@dataclass(frozen=True, slots=True)
class Running:
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
            LocalError: it refused, or cannot be reached any more.
        """
        with _connected(self.path) as connection:
            return _ask(connection, verb, args)

    def follow(self) -> Generator[dict[str, Any], None, None]:
        """What is to be seen, then every section that changes, as long as this is read and the host runs. All that
        time the host counts on somebody to answer.

        Raises:
            LocalError: it refused, or was too slow to begin.
        """
        with _connected(self.path) as connection:
            lines = _lines(connection)
            _say(connection, "follow", {})
            first = next(lines, None)
            if first is None:
                raise LocalError("the host ended before it said anything")
            if "error" in first:
                raise LocalError(first["error"])
            yield first
            connection.settimeout(None)
            yield from lines


def running(state: Path) -> list[Running]:
    """Every host of this user whose sockets are below this state directory, in the order of their start. Sockets at
    which nobody listens any more are removed."""
    found: list[tuple[float, Running]] = []
    for path in (state / "run").glob(f"*{SUFFIX}"):
        pid = path.name.partition("-")[0]
        try:
            began = path.lstat().st_mtime
            with _connected(path) as connection:
                said = _ask(connection, "hello", {})
            host = Running(path, said["pid"], said["config"], said["colonnade"], said["stdio"])
        except (_NobodyThere, FileNotFoundError):
            path.unlink(missing_ok=True)
            continue
        except (KeyError, TypeError):
            began, host = 0.0, Running(path, _number(pid), problem=_OTHERWISE)
        except LocalError as problem:
            began, host = 0.0, Running(path, _number(pid), problem=str(problem))
        found.append((began, host))
    return [host for _, host in sorted(found, key=lambda each: (each[0], each[1].path))]


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0


@contextmanager
def _connected(path: Path) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(PATIENCE)
        try:
            with address_of(path) as address:
                connection.connect(address)
            if credentials(connection)[1] != os.geteuid():
                raise LocalError(f"{path} is another user's")
            yield connection
        except (ConnectionRefusedError, FileNotFoundError) as problem:
            raise _NobodyThere("the host that was here has ended") from problem
        except OSError as problem:
            raise LocalError(f"the host at {path} does not answer: {problem.strerror or problem}") from problem


def _say(connection: socket.socket, verb: str, args: dict[str, object]) -> None:
    connection.sendall(json.dumps({**args, "verb": verb}).encode() + b"\n")


def _ask(connection: socket.socket, verb: str, args: dict[str, object]) -> Any:
    _say(connection, verb, args)
    said = next(_lines(connection), None)
    if said is None:
        raise LocalError("the host ended before it answered")
    if "error" in said:
        raise LocalError(said["error"])
    return said["ok"]


def _lines(connection: socket.socket) -> Iterator[dict[str, Any]]:
    data = bytearray()
    while True:
        end = data.find(b"\n")
        if end >= 0:
            line = bytes(data[:end])
            del data[: end + 1]
            try:
                said = json.loads(line)
            except ValueError as problem:
                raise LocalError(_OTHERWISE) from problem
            if not isinstance(said, dict):
                raise LocalError(_OTHERWISE)
            yield said
            continue
        more = connection.recv(_CHUNK)
        if not more:
            return
        data += more
