"""A way to a Unix socket by a port of loopback, which can become a black hole: nothing that is sent arrives, and
nothing says so. Packets are dropped by iptables if this process may do that, else the bytes are held in between."""

from __future__ import annotations

import shutil
import socket
import subprocess
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


class Way:
    """Made by `open_way`."""

    def __init__(self, target: Path) -> None:
        self._target = str(target)
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._ends = [self._listener]
        """All sockets that were opened."""
        self._passes = threading.Event()
        self._passes.set()
        self._threads: list[threading.Thread] = []
        self._start(self._accept)

    def _start(self, work: Callable[..., None], *arguments: object) -> None:
        thread = threading.Thread(target=work, args=arguments, daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        """Pass connections on, until closed."""
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.socket(socket.AF_UNIX)
                self._ends += near, far
                try:
                    far.connect(self._target)
                except OSError:
                    near.close()
                    continue
                for pair in ((near, far), (far, near)):
                    self._start(self._pump, *pair)

    def _pump(self, source: socket.socket, sink: socket.socket) -> None:
        with suppress(OSError):
            while data := source.recv(65536):
                self._passes.wait()
                sink.sendall(data)
        for each in (source, sink):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self._passes.set()
        for each in reversed(self._ends):
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)  # whoever reads it is woken
        for thread in self._threads:
            thread.join()
        for each in self._ends:
            each.close()

    @contextmanager
    def black_hole(self) -> Iterator[None]:
        """For the block, nothing gets through. How that is done is printed."""
        rules = [
            ["INPUT", "-i", "lo", "-p", "tcp", end, str(self.port), "-j", "DROP"] for end in ("--dport", "--sport")
        ]
        made = [rule for rule in rules if _iptables("-I", *rule)]
        if len(made) < len(rules):
            self._passes.clear()
        print(f"  packets are {'dropped by iptables' if len(made) == len(rules) else 'held by a relay'}", flush=True)
        try:
            yield
        finally:
            for rule in made:
                _iptables("-D", *rule)
            self._passes.set()


def _iptables(*words: str) -> bool:
    program = shutil.which("iptables")
    return program is not None and not subprocess.run([program, *words], capture_output=True, check=False).returncode


@contextmanager
def open_way(target: Path) -> Iterator[Way]:
    """The way, for the block."""
    way = Way(target)
    try:
        yield way
    finally:
        way.close()
