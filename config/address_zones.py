"""The zones of IP addresses, by a table of our own.

The `ipaddress` module of an interpreter is as old as the interpreter: Python 3.11.7 takes 192.0.0.192, fec0::/10 and
3fff::/20 for public. It also knows no platform of a cloud, whose services give any caller on a machine the rights of
that machine. A decision about where a request may go must not depend on either.
"""

from __future__ import annotations

from enum import Enum
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network

IpAddress = IPv4Address | IPv6Address
IpNetwork = IPv4Network | IPv6Network


class Zone(Enum):
    """The part of the network that an address belongs to. SPECIAL: link-local, services of a cloud's platform,
    multicast, documentation, reserved and the like, where no server of anybody is."""

    PUBLIC = "public"
    PRIVATE = "private"
    LOOPBACK = "loopback"
    SPECIAL = "special"


# As of the IANA registries of special-purpose addresses (RFC 6890, RFC 8190) of 9 October 2025.
TABLE: dict[Zone, tuple[IpNetwork, ...]] = {
    zone: tuple(map(ip_network, networks))
    for zone, networks in {
        # First: some of these lie within networks that are otherwise private or public.
        Zone.SPECIAL: (
            # Platforms of clouds: metadata, agents, names, time.
            "168.63.129.16/32",  # Azure
            "100.100.100.200/32",  # Alibaba Cloud
            "fd00:100::100:200/128",
            "fd00:ec2::/32",  # AWS
            "fd20:ce::254/128",  # Google Cloud
            "fd00:c1::a9fe:a9fe/128",  # Oracle Cloud; its older 192.0.0.192 is in 192.0.0.0/24
            "fd00:42::42/128",  # Scaleway
            "fd00:a9fe:a9fe::1/128",  # Akamai
            # IANA IPv4 Special-Purpose Address Registry, and multicast (RFC 5771).
            "0.0.0.0/8",  # this network
            "169.254.0.0/16",  # link-local; most clouds have their metadata there
            "192.0.0.0/24",  # IETF protocol assignments; two anycast addresses in it are reachable, but are no server's
            "192.0.2.0/24",  # documentation
            "192.88.99.0/24",  # 6to4 relays, deprecated
            "198.18.0.0/15",  # benchmarks
            "198.51.100.0/24",  # documentation
            "203.0.113.0/24",  # documentation
            "224.0.0.0/4",  # multicast
            "240.0.0.0/4",  # reserved, and the limited broadcast
            # IANA IPv6 Special-Purpose Address Registry: what is in global unicast.
            "2001::/23",  # IETF protocol assignments: Teredo, benchmarks, ORCHID, anycast
            "2001:db8::/32",  # documentation
            "3fff::/20",  # documentation
        ),
        Zone.LOOPBACK: ("127.0.0.0/8", "::1/128"),
        Zone.PRIVATE: ("10.0.0.0/8", "100.64.0.0/10", "172.16.0.0/12", "192.168.0.0/16", "fc00::/7"),
        # The only part of IPv6 that is assigned (RFC 4291, 2.4): unspecified, discard, SRv6, link-local, site-local and
        # multicast addresses lie outside, with all that is reserved.
        Zone.PUBLIC: ("2000::/3", "0.0.0.0/0"),
    }.items()
}
"""The first network that contains an address decides; an address in none of them is SPECIAL."""

_MAPPED, _COMPATIBLE = IPv6Network("::ffff:0:0/96"), IPv6Network("::/96")
_NAT64, _LOCAL_NAT64 = IPv6Network("64:ff9b::/96"), IPv6Network("64:ff9b:1::/48")
_6TO4 = IPv6Network("2002::/16")
_LOW = 0xFFFFFFFF
"""The bits of an IPv4 address that stands at the end of another number."""


def zone_of(text: str) -> Zone:
    """The zone of an IP address, which may be an IPv6 form of an IPv4 address.

    Raises:
        ValueError: the text is no IP address.
    """
    zones = {_own_zone(each) for each in readings(ip_address(text.partition("%")[0]))}
    # If an address can be read in several ways, it is public only if all of them are.
    return zones.pop() if len(zones) == 1 else Zone.SPECIAL


def _own_zone(address: IpAddress) -> Zone:
    for zone, networks in TABLE.items():
        if any(address in network for network in networks):
            return zone
    return Zone.SPECIAL


def readings(address: IpAddress) -> tuple[IpAddress, ...]:
    """The IPv4 addresses that an IPv6 address may stand for, since what is sent to it arrives there; the address itself
    if it stands for none.

    They are the mapped, the IPv4-compatible (RFC 4291, 2.5.5) and the 6to4 (RFC 3056) form, and those of NAT64 (RFC
    6052). A Teredo address (RFC 4380) stands for itself: it is SPECIAL, whatever it embeds.
    """
    if isinstance(address, IPv4Address):
        return (address,)
    value = int(address)
    if address in _MAPPED or address in _NAT64 or (address in _COMPATIBLE and value > 1):
        return (IPv4Address(value & _LOW),)
    if address in _6TO4:
        return (IPv4Address(value >> 80 & _LOW),)
    if address in _LOCAL_NAT64:
        return tuple(_nat64_readings(value))
    return (address,)


def _nat64_readings(value: int) -> list[IPv4Address]:
    """A network chooses the length of its own prefix (RFC 8215). Behind a shorter one, the eight bits from bit 64 on
    are left out of the IPv4 address, and all after it are zero (RFC 6052, 2.2)."""
    found = [IPv4Address(value & _LOW)]
    without_octet = value >> 64 << 56 | value & (1 << 56) - 1
    for prefix in (48, 56, 64):
        after = 120 - prefix - 32
        if without_octet & (1 << after) - 1 == 0:
            found.append(IPv4Address(without_octet >> after & _LOW))
    return found


def is_loopback(address: IpAddress | str) -> bool:
    """Whether an IP address, without brackets, is one that no other machine reaches. An IPv6 form of an IPv4 address is
    not taken for one.

    Raises:
        ValueError: the text is no IP address.
    """
    found = ip_address(address) if isinstance(address, str) else address
    return any(found in network for network in TABLE[Zone.LOOPBACK])
