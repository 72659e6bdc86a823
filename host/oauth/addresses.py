"""The addresses that requests to an authorization server may go to.

A server names its authorization server, and a hostile one could name a machine that only this one can reach. So
public addresses are permitted, and beyond them only the zone in which the configured server itself is.
"""

from __future__ import annotations

import ipaddress
from enum import Enum

from host.oauth.problem import OAuthProblem
from host.url import Url

IpAddress = ipaddress.IPv4Address | ipaddress.IPv6Address

_NAT64 = (ipaddress.IPv6Network("64:ff9b::/96"), ipaddress.IPv6Network("64:ff9b:1::/48"))
_PRIVATE = tuple(
    map(ipaddress.ip_network, ("10.0.0.0/8", "172.16.0.0/12", "192.168.0.0/16", "100.64.0.0/10", "fc00::/7"))
)


class Zone(Enum):
    """The part of the network that an address belongs to. SPECIAL: link-local (where clouds have their metadata),
    multicast, reserved and the like, which no authorization server has."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"
    SPECIAL = "special"


def zone_of(text: str) -> Zone:
    """The zone of an IP address, which may be an IPv6 form of an IPv4 address.

    Raises:
        ValueError: the text is no IP address.
    """
    address = _unwrapped(ipaddress.ip_address(text.partition("%")[0]))
    if address.is_loopback:
        return Zone.LOOPBACK
    if any(address.version == network.version and address in network for network in _PRIVATE):
        return Zone.PRIVATE
    return Zone.PUBLIC if address.is_global and not address.is_multicast else Zone.SPECIAL


def _unwrapped(address: IpAddress) -> IpAddress:
    """The IPv4 address that an IPv6 address stands for: mapped, 6to4, or NAT64. A Teredo address stays what it is, a
    special one."""
    if isinstance(address, ipaddress.IPv4Address):
        return address
    if address.ipv4_mapped is not None:
        return address.ipv4_mapped
    if address.sixtofour is not None:
        return address.sixtofour
    if any(address in network for network in _NAT64):
        return ipaddress.IPv4Address(int(address) & 0xFFFFFFFF)
    return address


def literal_zone(host: str) -> Zone | None:
    """The zone of a host that is an address or a name of loopback; None for other names."""
    if host == "localhost" or host.endswith(".localhost"):
        return Zone.LOOPBACK
    try:
        return zone_of(host)
    except ValueError:
        return None


def check_url(url: Url, home: Zone) -> None:
    """Refuse a URL of an authorization server that nothing may be sent to, as far as the URL alone shows it.

    Args:
        home: the zone of the configured server.

    Raises:
        OAuthProblem: it is not https, except on loopback for a server that is there too; it has a user; or its
            address is in a zone that is not permitted.
    """
    zone = literal_zone(url.host)
    if url.userinfo:
        raise OAuthProblem("a URL of the issuer contains a user name or a password")
    if zone is not None:
        check_zone(zone, home)
    if url.scheme != "https" and not (url.scheme == "http" and zone is Zone.LOOPBACK):
        raise OAuthProblem("a URL of the issuer is not https")


def check_zone(zone: Zone, home: Zone) -> None:
    """Refuse an address outside the zones that are permitted for a server of this zone.

    Raises:
        OAuthProblem: it is not permitted.
    """
    if zone is Zone.PUBLIC or (zone is home and zone is not Zone.SPECIAL):
        return
    if zone is Zone.SPECIAL:
        raise OAuthProblem("an address of the issuer is link-local, reserved or the like: nothing is sent there")
    raise OAuthProblem(
        f"an address of the issuer is a {zone.value} one, and the server's own is not: nothing is sent there"
    )
