"""The destinations of a confined program: where each one stands inside, and which addresses it may lead to outside.

In the program's network namespace, each permitted name is an address of the loopback interface, by its hosts file, and
so is each permitted address, which the interface is given. At each of them, and at that of a proxy, a socket of ours
listens; the forwarder outside (host/upstream/forwarder.py) decides by this file where it leads. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from ipaddress import IPv4Address, ip_address

from msgspec import Struct

from config.address_zones import Zone, zone_of
from config.sandbox import LOCALHOST, Destination

PROXY = ("127.64.0.1", 3128)
"""The address of the proxy inside, unless a destination has the same; then the next one with that port."""
_FIRST = int(IPv4Address(PROXY[0]))

Endpoint = tuple[str, int]
"""An IP address inside, and a port."""


class Inside(Struct, frozen=True):
    """The addresses of destinations inside. `hosts`: by name; `listeners`: in the order in which they are opened, that
    of the proxy first, which has no destination."""

    hosts: Mapping[str, str]
    listeners: Mapping[Endpoint, Destination | None]

    @property
    def proxy(self) -> Endpoint:
        return next(iter(self.listeners))


def place(destinations: Sequence[Destination]) -> Inside:
    """Give each destination an address inside. A wildcard has none: it is reached by the proxy alone."""
    taken = {each.host for each in destinations if each.is_address}
    free = _free(taken)
    proxy = next(free), PROXY[1]
    hosts: dict[str, str] = {}
    listeners: dict[Endpoint, Destination | None] = {proxy: None}
    for each in destinations:
        if each.is_wildcard:
            continue
        if each.is_address:
            address = each.host
        elif each.host == LOCALHOST:
            address = "127.0.0.1"
        else:
            address = hosts.get(each.host) or next(free)
            hosts[each.host] = address
        listeners.setdefault((address, each.port), each)
    return Inside(hosts, listeners)


def _free(taken: set[str]) -> Iterator[str]:
    number = _FIRST
    while True:
        if (text := str(IPv4Address(number))) not in taken:
            yield text
        number += 1


def find(destinations: Sequence[Destination], host: str, port: int) -> Destination | None:
    """The destination that permits a connection to this host, which is a name in lower case or an IP address; None if
    none does. One that names the host comes before a wildcard."""
    found = [each for each in destinations if each.port == port and _covers(each, host)]
    return min(found, key=lambda each: each.is_wildcard, default=None)


def _covers(destination: Destination, host: str) -> bool:
    if destination.is_wildcard:
        return host.endswith(destination.host[1:]) and not _is_address(host)
    return destination.host == host


def refused_zone(destination: Destination, address: str, destinations: Sequence[Destination]) -> Zone | None:
    """The zone of an address that a destination leads to, if nothing may be sent there; None if it may.

    Public addresses are permitted. A private one is if the destination says so; any one that the file itself names with
    the same port is, and of `localhost` those of loopback.

    Raises:
        ValueError: it is no IP address.
    """
    zone = zone_of(address)
    if zone is Zone.PUBLIC or (zone is Zone.PRIVATE and destination.private):
        return None
    if zone is Zone.LOOPBACK and destination.host == LOCALHOST:
        return None
    named = {each.host for each in destinations if each.is_address and each.port == destination.port}
    return None if address in named else zone


def _is_address(host: str) -> bool:
    try:
        ip_address(host)
    except ValueError:
        return False
    return True
