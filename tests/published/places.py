"""A published server at one transport: what starts it, and the processes of those that listen."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import threading
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.published.install import command
from tests.published.servers import SERVERS, Server
from tests.real.running import Running, processes_with, until

READY = 120.0
"""Seconds in which servers must be there; imports of some take 30 on a busy machine."""
MARK = "PUBLISHED_RUN"
"""A variable of all servers, by which those are found that were left behind."""


@dataclass
class Place:
    """A server over one transport."""

    server: Server
    folder: Path
    port: int = 0

    @property
    def id(self) -> str:
        """Its name in a configuration."""
        return f"s{SERVERS.index(self.server)}" + ("-http" if self.port else "")

    def __str__(self) -> str:
        return self.server.package + (" over HTTP" if self.port else "")

    def words(self) -> list[str]:
        args = self.server.args if not self.port else self.server.http or ()
        return [*command(self.server), *map(self._filled, args)]

    def env(self, mark: str) -> dict[str, str]:
        named = {**self.server.env, **(self.server.http_env if self.port else {})}
        home = {"HOME": str(self.folder), "NO_COLOR": "1"}
        return {**home, **{name: self._filled(value) for name, value in named.items()}, MARK: mark}

    def call(self) -> tuple[str, Mapping[str, object]]:
        tool, arguments = self.server.call
        return tool, {key: self._filled(each) if isinstance(each, str) else each for key, each in arguments.items()}

    def url(self) -> str:
        return f"http://localhost:{self.port}{self.server.path}"

    def _filled(self, text: str) -> str:
        return text.replace("{folder}", str(self.folder)).replace("{port}", str(self.port))


@contextmanager
def listening_places(places: Sequence[Place], mark: str) -> Iterator[None]:
    """Those over HTTP, once they accept connections."""
    with ExitStack() as stack:
        for place in (each for each in places if each.port):
            log = stack.enter_context((place.folder / "http.log").open("w"))
            process = subprocess.Popen(
                place.words(),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                cwd=place.folder,
                env={"PATH": os.environ["PATH"], **place.env(mark)},
                start_new_session=True,
            )
            stack.callback(_kill, process)
        for place in (each for each in places if each.port):
            until(lambda: _accepts(place.port), f"{place} listens", READY)  # noqa: B023 - called at once
        yield


def _kill(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def _accepts(port: int) -> bool:
    for host in ("127.0.0.1", "::1"):
        with suppress(OSError), socket.create_connection((host, port), 1):
            return True
    return False


def wait_all_ready(host: Running, ids: Iterable[str]) -> dict[str, dict[str, Any]]:
    """Wait until all servers of a host are ready at once, or will not be soon. Returns the state of those that are not,
    by their ids."""
    wanted = set(ids)
    deadline = time.monotonic() + READY
    while True:
        states = host.status()
        waiting = {id: states[id] for id in wanted if states[id]["state"] != "ready"}
        if not waiting or time.monotonic() >= deadline:
            return waiting
        threading.Event().wait(0.2)


def left_behind(mark: str) -> list[str]:
    """The command lines of processes that have the mark."""
    return list(processes_with(f"{MARK}={mark}").values())
