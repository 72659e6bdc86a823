"""The hosts of this user that run on this machine, for the command line: found by the sockets of their admin APIs.

Blocking, since nothing else goes on in such a command. The API: admin/api.py.
"""

from __future__ import annotations

import http.client
import json
import os
import socket
from collections.abc import Generator, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from host.admin.paths import API_PATH, API_VERSION, EVENTS_PATH, PREFIX, SOCKET_SUFFIX
from host.cli.exit_codes import CommandFailed
from host.cli.terminal import announced
from host.wire.descent import DescentUnknown, ancestry, credentials
from host.wire.port import unix_address

TIMEOUT = 10.0
"""Seconds in which a host must answer, unless a command is in a hurry."""
_UNKNOWN_PROTOCOL = "the host has no admin API that this program knows; it may be of another version"
_ENDED = "the host ended before it answered"


class AdminClientError(CommandFailed):
    """A host could not be asked, or refused."""


class _HostGone(AdminClientError):
    """The host has ended; at most its socket is left."""


@dataclass(frozen=True, slots=True)
class RunningHost:
    """One running host. If it did not say which it is, `problem` has the reason, `config` and `version` are empty and
    `pid` is the one in the name of its socket."""

    path: Path
    pid: int
    config: str = ""
    version: str = ""
    stdio: bool = False
    endpoint: str = ""
    audit: str = "files"
    problem: str | None = None
    timeout: float = TIMEOUT

    @property
    def starter(self) -> str:
        """The name of the program that started the host, as a desktop host does; empty if it cannot be determined."""
        from host.sanitize import visible

        try:
            _, parent, *_ = ancestry(self.pid)
        except (DescentUnknown, ValueError):
            return ""
        return visible(parent.name)

    @property
    def process(self) -> str:
        """The process of the host, with the program that started it: it tells hosts of one configuration apart."""
        return f"process {self.pid}" + (f", started by {self.starter}" if self.starter else "")

    @property
    def is_in_background(self) -> bool:
        """Whether a relay has started it: it serves no client but those of relays, and ends by itself."""
        return self.problem is None and not self.stdio and not self.endpoint

    def servers(self) -> Mapping[str, str]:
        """The ids of its servers, each with the prefix of its names."""
        return {str(server["id"]): str(server["prefix"]) for server in self.state()["servers"]}

    def state(self) -> Mapping[str, Any]:
        """The state as of the admin API."""
        state: Mapping[str, Any] = self.get("state")
        return state

    def get(self, path: str) -> Any:
        """Get what the admin API has at a path, which is relative to the version.

        Raises:
            AdminClientError: the host refused, or cannot be reached any more.
        """
        with _connect(self.path, self.timeout) as connection:
            return _request(connection, "GET", PREFIX + path)

    def post(self, path: str, **body: object) -> Any:
        """The result of a request to the admin API.

        Raises:
            AdminClientError: the host refused, or cannot be reached any more.
        """
        with _connect(self.path, self.timeout) as connection:
            return _request(connection, "POST", PREFIX + path, body)

    def follow(self) -> Generator[dict[str, Any], None, None]:
        """Everything there is to see, then every section that changes, while this is read and the host runs. All that
        time somebody is there to answer, as the host sees it.

        Raises:
            AdminClientError: the host refused, or was too slow to begin.
        """
        with _connect(self.path, self.timeout) as connection:
            response = _send(connection, "GET", EVENTS_PATH)
            stream = connection.sock
            if response.status != 200:
                _result(response.status, response.read())
            yield _object(_next_line(response))
            stream.settimeout(None)
            while line := _next_line(response):
                yield _object(line)


def socket_paths(state: Path) -> set[Path]:
    """The sockets of hosts below this state directory, also of those that have ended."""
    return set((state / "run").glob(f"*{SOCKET_SUFFIX}"))


def find_hosts(state: Path, timeout: float = TIMEOUT) -> list[RunningHost]:
    """Every host of this user whose socket is below this state directory, in the order of their start. Sockets at
    which nobody listens any more are removed. `timeout`: seconds in which a host must answer, now and later."""
    hosts: list[tuple[float, RunningHost]] = []
    for path in socket_paths(state):
        started = 0.0
        try:
            started = path.lstat().st_mtime
            host = _identify(path, timeout)
        except (_HostGone, FileNotFoundError):
            path.unlink(missing_ok=True)
            continue
        except AdminClientError as problem:
            pid = path.name.partition("-")[0]
            host = RunningHost(path, int(pid) if pid.isdecimal() else 0, problem=str(problem))
        hosts.append((started, host))
    return [host for _, host in sorted(hosts, key=lambda each: (each[0], each[1].path))]


def _identify(path: Path, timeout: float) -> RunningHost:
    with _connect(path, timeout) as connection:
        try:
            offered = _request(connection, "GET", API_PATH)
            version, versions = str(offered["colonnade"]), [str(each) for each in offered["versions"]]
            if API_VERSION not in versions:
                raise AdminClientError(
                    f"the host is Colonnade {version}, whose admin API is {', '.join(versions)}; this program knows "
                    f"{API_VERSION}: use the program of the host's version"
                )
            info = _request(connection, "GET", f"{PREFIX}host")
            return RunningHost(
                path,
                int(info["pid"]),
                str(info["config"]),
                version,
                bool(info["stdio"]),
                str(info["endpoint"]),
                str(info.get("audit", "files")),  # hosts of former versions do not say it
                timeout=timeout,
            )
        except (KeyError, TypeError, ValueError) as problem:
            raise AdminClientError(_UNKNOWN_PROTOCOL) from problem


class _UnixConnection(http.client.HTTPConnection):
    """A connection to a Unix socket of this user."""

    sock: socket.socket

    def __init__(self, path: Path, timeout: float) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        """Raises AdminClientError if the socket is another user's, and OSError."""
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        with unix_address(self._path) as address:
            self.sock.connect(address)
        if credentials(self.sock)[1] != os.geteuid():
            raise AdminClientError(f"{self._path} is another user's")


@contextmanager
def _connect(path: Path, timeout: float) -> Iterator[_UnixConnection]:
    connection = _UnixConnection(path, timeout)
    try:
        connection.connect()
        yield connection
    except (ConnectionRefusedError, FileNotFoundError) as problem:
        raise _HostGone("the host that was here has ended") from problem
    except (http.client.RemoteDisconnected, http.client.IncompleteRead, ConnectionError) as problem:
        raise AdminClientError(_ENDED) from problem
    except OSError as problem:
        raise AdminClientError(f"the host at {path} does not answer: {problem.strerror or problem}") from problem
    except http.client.HTTPException as problem:
        raise AdminClientError(_UNKNOWN_PROTOCOL) from problem
    finally:
        connection.close()


def _send(
    connection: _UnixConnection, method: str, path: str, body: dict[str, object] | None = None
) -> http.client.HTTPResponse:
    data = None if body is None else json.dumps(body)
    with announced("for a running host"):
        connection.request(method, path, data, {} if data is None else {"content-type": "application/json"})
        return connection.getresponse()


def _request(connection: _UnixConnection, method: str, path: str, body: dict[str, object] | None = None) -> Any:
    response = _send(connection, method, path, body)
    return _result(response.status, response.read())


def _result(status: int, data: bytes) -> Any:
    """The body of a response; raises AdminClientError with its sentence if it is a refusal."""
    answer = _object(data)
    if status == 200:
        return answer
    if isinstance(why := answer.get("error"), str):
        raise AdminClientError(why)
    raise AdminClientError(_UNKNOWN_PROTOCOL)


def _next_line(response: http.client.HTTPResponse) -> bytes:
    """The next line that is no sign of life; empty when the host has ended."""
    try:
        while line := response.readline():
            if line.strip():
                return line
    except (http.client.IncompleteRead, ConnectionError):
        pass
    return b""


def _object(data: bytes) -> dict[str, Any]:
    if not data:
        raise AdminClientError(_ENDED)
    try:
        answer = json.loads(data)
    except ValueError as problem:
        raise AdminClientError(_UNKNOWN_PROTOCOL) from problem
    if not isinstance(answer, dict):
        raise AdminClientError(_UNKNOWN_PROTOCOL)
    return answer
