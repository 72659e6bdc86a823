"""haproxy in front of several processes, in turns and without affinity: two requests of one connection go to two of
them. Where it is not installed, tests that need it are skipped."""

from __future__ import annotations

import shutil
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.real.running import free_port, until

needs_haproxy = pytest.mark.skipif(shutil.which("haproxy") is None, reason="haproxy is not installed")

_CONFIG = """
global
    maxconn 2000
    nbthread 1
defaults
    mode http
    balance roundrobin
    option redispatch 1
    retries 3
    retry-on conn-failure
    option abortonclose
    timeout connect 2s
    timeout client 10m
    timeout server 10m
    timeout http-keep-alive 10s
frontend clients
    bind 127.0.0.1:{port}
    default_backend replicas
backend replicas
    http-reuse never
"""
_READY = """\
    option httpchk
    http-check send meth GET uri /readyz ver HTTP/1.1 hdr Host localhost
"""


@contextmanager
def balancing(folder: Path, ports: Sequence[int], *, ready: bool = False) -> Iterator[str]:
    """haproxy for the block; the URL of what it serves. A process that does not answer is left out for a moment.

    Args:
        ready: a process whose `/readyz` says that it is not ready is left out too.
    """
    port = free_port()
    lines = [f"    server r{n} 127.0.0.1:{each} check inter 200ms fall 2 rise 1" for n, each in enumerate(ports)]
    file = folder / "haproxy.cfg"
    file.write_text(_CONFIG.format(port=port) + (_READY if ready else "") + "\n".join(lines) + "\n")
    with (folder / "haproxy.log").open("w") as log:
        process = subprocess.Popen(
            ["haproxy", "-db", "-f", str(file)], stdin=subprocess.DEVNULL, stderr=log, stdout=log
        )
    with process:
        try:
            until(lambda: is_open(port), "haproxy listens")
            yield f"http://127.0.0.1:{port}"
        finally:
            process.kill()


def is_open(port: int) -> bool:
    """Whether something takes connections at this port of 127.0.0.1."""
    try:
        socket.create_connection(("127.0.0.1", port), 1).close()
    except OSError:
        return False
    return True
