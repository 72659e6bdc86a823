"""The loopback interface of a network namespace of a program's own, and sockets of the host that listen there."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import select
import socket
import struct
from collections.abc import Iterable

from host.sandbox.kernel import KernelRefused

BACKLOG = 128
_LOOKS, _PAUSE = 400, 0.005
"""Looks for a route, and seconds between two."""
_GET_FLAGS, _SET_FLAGS, _UP = 0x8913, 0x8914, 1
_NEW_ADDRESS, _REQUEST, _ACKNOWLEDGE, _CREATE = 20, 1, 4, 0x400
_OWN_ADDRESS, _LOCAL, _FLAGS = 1, 2, 8
_ERROR = 2
_NO_DAD, _NO_PREFIX_ROUTE = 2, 0x200
"""An address of IPv6 is there at once, without a question whether another machine has it; and without a route to its
network, by which connections go and are lost until the address has its own."""


def raise_loopback() -> None:
    """Turn on the loopback interface of a network namespace of our own."""
    with socket.socket() as any_socket:
        request = fcntl.ioctl(any_socket, _GET_FLAGS, struct.pack("16sH22x", b"lo", 0))
        flags = struct.unpack("16sH22x", request)[1] | _UP
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH22x", b"lo", flags))


def open_listeners(endpoints: Iterable[tuple[str, int]]) -> list[socket.socket]:
    """Sockets that listen at these IP addresses and ports of the loopback interface, which is given the addresses. This
    process must have all capabilities in its network namespace, whose loopback is on.

    Raises:
        KernelRefused: an address cannot be had, such as one of IPv6 where the kernel has none.
    """
    opened: list[socket.socket] = []
    known: set[str] = set()
    for address, port in endpoints:
        family = socket.AF_INET6 if ":" in address else socket.AF_INET
        try:
            if address not in known and not address.startswith("127.") and address != "::1":
                _add_address(family, address)
            known.add(address)
            opened.append(made := socket.socket(family, socket.SOCK_STREAM))
            made.bind((address, port))
            made.listen(BACKLOG)
            if family == socket.AF_INET6:
                _wait_for_route(address)
        except OSError as problem:
            for each in opened:
                each.close()
            raise KernelRefused(f"the address {address} in a network of its own", problem.errno or 0) from problem
    return opened


def _wait_for_route(address: str) -> None:
    """Wait until an address of IPv6 can be connected to: the kernel adds its route a moment later."""
    with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as any_socket:
        for _ in range(_LOOKS):
            with contextlib.suppress(OSError):
                return any_socket.connect((address, 9))  # sends nothing
            select.select([], [], [], _PAUSE)
    raise OSError(errno.ENETUNREACH, os.strerror(errno.ENETUNREACH))


def _add_address(family: int, address: str) -> None:
    """Give the loopback interface an address (rtnetlink(7))."""
    packed = socket.inet_pton(family, address)
    body = struct.pack("=BBBBI", family, 8 * len(packed), 0, 0, socket.if_nametoindex("lo"))
    for kind in (_LOCAL, _OWN_ADDRESS):
        body += struct.pack("=HH", 4 + len(packed), kind) + packed
    body += struct.pack("=HHI", 8, _FLAGS, _NO_DAD | _NO_PREFIX_ROUTE)
    head = struct.pack("=IHHII", 16 + len(body), _NEW_ADDRESS, _REQUEST | _ACKNOWLEDGE | _CREATE, 1, 0)
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 0) as kernel:
        kernel.sendto(head + body, (0, 0))
        answer = kernel.recv(4096)
    kind, number = struct.unpack_from("=H", answer, 4)[0], -struct.unpack_from("=i", answer, 16)[0]
    if kind != _ERROR or number not in (0, errno.EEXIST):
        raise OSError(number, os.strerror(number))
