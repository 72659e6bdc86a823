"""Listening sockets. Imports only the standard library, so that the port is bound before the rest of the program is
loaded. The caller owns the socket.
"""

from __future__ import annotations

import os
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

BACKLOG = 1024
"""Connections that wait in the kernel: until the rest of the program is loaded, and while a listener is full."""
_SEND_BUFFER = 256 * 1024  # kernel memory for a client that does not read; by default it grows to megabytes
_LONGEST_ADDRESS = 100  # bytes of the address of a Unix socket; Linux accepts 107, other systems fewer
_USER_TIMEOUT = 10_000  # ms; ends a connection whose peer vanished while unsent data is only in the kernel


def bind(host: str, port: int) -> socket.socket:
    """A listening TCP socket. From now on the kernel holds new connections until they are accepted.

    Args:
        host: an IP address, not a name.
        port: 0 picks a free one.

    Raises:
        OSError: the address cannot be used; the text names it and says why.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        bound = socket.create_server((host, port), family=family, backlog=BACKLOG)
    except OSError as error:
        reason = os.strerror(error.errno) if error.errno else str(error)
        raise OSError(error.errno, f"cannot listen on {host} port {port}: {reason}") from error
    return prepare(bound)


def prepare(bound: socket.socket) -> socket.socket:
    """The same listening socket, with the options that those inherit which it accepts."""
    bound.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, _SEND_BUFFER)
    if hasattr(socket, "TCP_USER_TIMEOUT"):
        bound.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, _USER_TIMEOUT)
    return bound


def bind_unix(path: Path) -> socket.socket:
    """A listening Unix socket that only this user can connect to.

    The socket gets its name only when it accepts connections, because a socket that refuses them is taken for the
    leftover of a process that has ended.

    Raises:
        OSError: the socket cannot be created.
    """
    listening = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    temporary = path.with_suffix(".new")
    try:
        with unix_address(temporary) as address:
            listening.bind(address)
        temporary.chmod(0o600)
        listening.listen(BACKLOG)
        temporary.rename(path)
    except BaseException:
        listening.close()
        temporary.unlink(missing_ok=True)
        raise
    return listening


@contextmanager
def unix_address(path: Path) -> Iterator[str]:
    """The path of a Unix socket for bind and connect, which accept only short paths. A long one is replaced by a path
    through a descriptor of its folder."""
    if len(os.fsencode(path)) <= _LONGEST_ADDRESS or sys.platform != "linux":
        yield str(path)
        return
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)
