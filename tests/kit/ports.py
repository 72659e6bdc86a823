"""Ports for programs that do not tell which one they took."""

from __future__ import annotations

import random
import socket

_PORTS = range(20_000, 32_000)
"""Below those that Linux gives to whoever asks for any port (32768 to 60999, `net.ipv4.ip_local_port_range`): of these,
another test may be given the port that was found free before the program listens on it."""
_random = random.SystemRandom()  # those of other processes must differ, whatever seeds the usual one


def free_port() -> int:
    """A port of 127.0.0.1 on which nothing listens, and which the kernel gives to nobody else meanwhile."""
    while True:
        port = _random.choice(_PORTS)
        with socket.socket() as stream, socket.socket(type=socket.SOCK_DGRAM) as datagrams:
            try:
                stream.bind(("127.0.0.1", port))
                datagrams.bind(("127.0.0.1", port))  # a proxy with HTTP/3 needs it for both
            except OSError:
                continue
            return port


def answers_at(port: int) -> bool:
    """Whether something takes connections at this port of 127.0.0.1."""
    with socket.socket() as probe:
        probe.settimeout(1)  # where its queue is full, nobody answers for long
        return probe.connect_ex(("127.0.0.1", port)) == 0
