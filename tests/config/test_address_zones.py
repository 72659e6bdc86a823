"""The zones of addresses, in all the forms in which an address can be written."""

from __future__ import annotations

from collections.abc import Iterator
from ipaddress import IPv4Address, IPv6Address, ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.address_zones import TABLE, IpAddress, Zone, is_loopback, readings, zone_of

SPECIAL = [
    *("0.0.0.0", "169.254.169.254", "192.0.0.9", "192.0.2.1", "192.88.99.1", "198.18.0.1", "198.51.100.1"),
    *("203.0.113.1", "224.0.0.1", "240.0.0.1", "255.255.255.255"),
    *("::", "100::1", "100:0:0:1::1", "2001:1::1", "2001:2::1", "2001:10::1", "2001:20::1", "2001:db8::1", "3fff::1"),
    *("4000::1", "5f00::1", "fe80::1", "fe80::1%eth0", "fec0::1", "ff02::1", "::ffff:0:5db8:d822"),
]
PLATFORMS = [
    *("168.63.129.16", "192.0.0.192", "100.100.100.200", "fd00:ec2::254", "fd00:ec2::23", "fd20:ce::254"),
    *("fd00:c1::a9fe:a9fe", "fd00:42::42", "fd00:a9fe:a9fe::1", "fd00:100::100:200"),
]
TEREDO = [
    "2001:0:4136:e378:8000:63bf:5601:5601",  # for 169.254.169.254
    "2001:0:4136:e378:8000:63bf:a247:27dd",  # for 93.184.216.34
]


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        *((each, Zone.PUBLIC) for each in ("93.184.216.34", "2606:2800:220:1:248:1893:25c8:1946", "172.32.0.1")),
        *((each, Zone.LOOPBACK) for each in ("127.0.0.1", "127.9.9.9", "::1")),
        *((each, Zone.PRIVATE) for each in ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1")),
        *((each, Zone.PRIVATE) for each in ("fd00::1", "fc00::1")),
        *((each, Zone.SPECIAL) for each in SPECIAL + PLATFORMS + TEREDO),
    ],
)
def test_an_address_is_in_its_zone(address: str, zone: Zone) -> None:
    assert zone_of(address) is zone


def forms(address: IPv4Address) -> Iterator[str]:
    """The IPv6 addresses that embed an IPv4 address at a place of its own."""
    number = int(address)
    yield f"::ffff:{address}"
    yield str(IPv6Address(int(IPv6Address("64:ff9b::")) + number))
    yield str(IPv6Address(int(IPv6Address("64:ff9b:1:2:3:4::")) + number))
    yield str(IPv6Address(int(IPv6Address("2002::1")) + (number << 80)))
    if number > 1:
        yield f"::{address}"


@given(st.ip_addresses(v=4))
def test_a_form_of_an_address_is_in_its_zone(address: IPv4Address) -> None:
    expected = zone_of(str(address))
    ambiguous = int(address) & 0xFFFFFF == 0  # as the end of a local NAT64 address: the prefix may be a shorter one
    for form in forms(address):
        local = form.startswith("64:ff9b:1:")
        assert zone_of(form) is expected or (local and ambiguous and zone_of(form) is Zone.SPECIAL), form


@pytest.mark.parametrize(
    "form",
    [
        "64:ff9b:1:a9fe:a9:fe00::",  # /48, 169.254.169.254
        "64:ff9b:1:a9:fe:a9fe::",  # /56
        "64:ff9b:1:0:a9:fea9:fe00:0",  # /64
        "64:ff9b:1:0:a:102:300:0",  # /64, 10.1.2.3; at its end, 3.0.0.0
        "64:ff9b:1:0:7f:0:100:0",  # /64, 127.0.0.1
    ],
)
def test_no_address_is_public_behind_a_prefix_of_some_length_only(form: str) -> None:
    assert zone_of(form) is Zone.SPECIAL


def test_a_form_of_loopback_is_not_loopback_where_the_address_itself_counts() -> None:
    assert [is_loopback(each) for each in ("127.0.0.1", "::1", "::ffff:127.0.0.1", "0.0.0.0")] == [
        True,
        True,
        False,
        False,
    ]


# The interpreter's own table

DIFFERENT = {
    "168.63.129.16/32": "a cloud's platform, in public space",
    "192.0.0.0/24": "older interpreters know a part of it; newer ones take two anycast addresses for public",
    "192.88.99.0/24": "relays of 6to4 are deprecated",
    "2001::/23": "newer interpreters take anycast, AMT and ORCHID for public",
    "2002::/16": "judged by what it embeds",
    "3fff::/20": "documentation since 2024",
    "::ffff:0:0/96": "judged by what it embeds",
    "::/96": "judged by what it embeds",
    "64:ff9b::/96": "judged by what it embeds",
    "64:ff9b:1::/48": "judged by what it embeds",
    **dict.fromkeys(
        ("::/3", "4000::/2", "8000::/2", "c000::/3", "e000::/4", "f000::/5", "f800::/6", "fe00::/7"),
        "not assigned to anybody, site-local included",
    ),
}
"""Networks about which this table and some interpreter differ, and why."""


def boundaries() -> Iterator[IpAddress]:
    """The first and last address of each network of the table, and those beside them."""
    for network in [*(each for networks in TABLE.values() for each in networks), *map(ip_network, DIFFERENT)]:
        for edge in (int(network[0]), int(network[-1])):
            for number in (edge - 1, edge, edge + 1):
                if 0 <= number < 1 << network.max_prefixlen:
                    yield IPv4Address(number) if network.version == 4 else IPv6Address(number)


@given(st.sampled_from(sorted({str(each) for each in boundaries()})) | st.ip_addresses().map(str))
def test_elsewhere_the_table_agrees_with_the_interpreter(text: str) -> None:
    address = ip_address(text)
    if any(address.version == network.version and address in network for network in map(ip_network, DIFFERENT)):
        return
    assert (zone_of(text) is Zone.PUBLIC) == (address.is_global and not address.is_multicast)


@given(st.sampled_from(sorted({str(each) for each in boundaries()})) | st.ip_addresses().map(str))
def test_what_is_not_a_form_of_an_ipv4_address_is_never_more_public_than_for_the_interpreter(text: str) -> None:
    address = ip_address(text)
    if zone_of(text) is Zone.PUBLIC and readings(address) == (address,):
        assert address.is_global
