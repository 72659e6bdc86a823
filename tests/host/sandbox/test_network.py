"""Sockets in a network namespace of their own, in a child."""

from __future__ import annotations

import os
import socket

from host.sandbox.kernel import KernelRefused
from host.sandbox.namespaces import separate
from host.sandbox.network import open_listeners, raise_loopback
from tests.host.sandbox.forked import in_a_child
from tests.kit.kernel import needs_namespaces

pytestmark = needs_namespaces


def _in_a_network(work: list[tuple[str, int]]) -> list[str]:
    separate(network=False)
    raise_loopback()
    listeners = open_listeners(work)
    said = []
    for (address, port), listener in zip(work, listeners, strict=True):
        with socket.create_connection((address, port), 3), listener.accept()[0] as accepted:
            said.append(f"{accepted.getsockname()[0]} {port}")
    return said


def test_listeners_at_any_address_also_below_port_1024() -> None:
    work = [("127.64.0.2", 443), ("127.0.0.1", 80), ("10.0.0.5", 22), ("10.0.0.5", 23), ("8.8.8.8", 53)]
    assert in_a_child(lambda: _in_a_network(work)) == str([f"{address} {port}" for address, port in work])


def test_listeners_at_addresses_of_ipv6() -> None:
    work = [("::1", 80), ("2001:db8::5", 443)]
    assert in_a_child(lambda: _in_a_network(work)) == str([f"{address} {port}" for address, port in work])


def test_an_address_that_cannot_be_had() -> None:
    """The sockets before it are closed again."""

    def work() -> str:
        separate(network=False)
        raise_loopback()
        before = len(os.listdir("/proc/self/fd"))
        try:
            open_listeners([("127.0.0.1", 80), ("127.0.0.1", 80)])
        except KernelRefused as refused:
            return f"{refused.step}: {refused.strerror}; {len(os.listdir('/proc/self/fd')) - before} more open"
        return "opened"

    step = "the address 127.0.0.1 in a network of its own"
    assert in_a_child(work) == f"{step}: Address already in use; 0 more open"
