"""The port we listen at, with nothing but the standard library: it is had before the rest of the program is loaded.

Owns nothing: the socket belongs to whoever asked for it.
"""

from __future__ import annotations

import os
import socket

BACKLOG = 1024
_SEND_BUFFER = 256 * 1024  # kernel memory for a client that does not read; grown by itself it reaches megabytes
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
