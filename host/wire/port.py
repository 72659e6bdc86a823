"""Listening sockets, with nothing but the standard library: a port is bound before the rest of the program is loaded.

Owns nothing: the socket belongs to whoever asked for it.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BACKLOG = 1024
_SEND_BUFFER = 256 * 1024  # kernel memory for a client that does not read; grown by itself it reaches megabytes
_LONGEST_ADDRESS = 100  # bytes of the address of a Unix socket; Linux takes 107, others less
_USER_TIMEOUT = 10_000  # ms; also ends a peer that vanished while data for it lies in the kernel only


def bind(host: str, port: int) -> socket.socket:
    """A listening socket at an address (not a name). From now on connections wait until somebody takes them.

    Args:
        port: 0 picks a free one.

    Raises:
        OSError: the address cannot be had; the text says which and why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {reason}") from error
    # Accepted sockets inherit these.
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)
    return bound


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can connect to. It appears under its name once it can be connected
    to: one that cannot is taken for that of a process that has ended.

    Raises:
        OSError: there can be no socket.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    coming = path.with_suffix(".new")
    try:
        with unix_address(coming) as address:
            listening.bind(address)
        coming.chmod(0o600)
        listening.listen(BACKLOG)
        coming.rename(path)
    except BaseException:
        listening.close()
        coming.unlink(missing_ok=True)
        raise
    return listening


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """The path of a Unix socket as bind and connect take it: they take short ones only."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
