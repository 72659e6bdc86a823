"""The places of destinations inside, and the addresses that they may lead to."""

from __future__ import annotations

from ipaddress import ip_address, ip_network

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config.address_zones import Zone, zone_of
from config.sandbox import Destination
from host.sandbox.destinations import PROXY, find, place, refused_zone


def made(*texts: str) -> tuple[Destination, ...]:
    return tuple(map(Destination, texts))


def test_a_name_has_one_address_and_a_socket_for_each_port() -> None:
    inside = place(made("a.com:443", "b.com:443", "a.com:80"))
    assert inside.hosts == {"a.com": "127.64.0.2", "b.com": "127.64.0.3"}
    assert [*inside.listeners] == [PROXY, ("127.64.0.2", 443), ("127.64.0.3", 443), ("127.64.0.2", 80)]
    assert [each and each.to for each in inside.listeners.values()] == [None, "a.com:443", "b.com:443", "a.com:80"]


def test_an_address_stands_for_itself_and_a_wildcard_nowhere() -> None:
    inside = place(made("10.0.0.5:5432", "[::1]:80", "*.a.com:443", "localhost:1"))
    assert inside.hosts == {}
    assert [*inside.listeners] == [PROXY, ("10.0.0.5", 5432), ("::1", 80), ("127.0.0.1", 1)]


def test_what_the_file_names_is_nobody_elses() -> None:
    inside = place(made("127.64.0.1:3128", "a.com:3128", "127.64.0.3:1", "b.com:1", "127.0.0.1:7", "localhost:7"))
    assert inside.proxy == ("127.64.0.2", 3128)
    assert inside.hosts == {"a.com": "127.64.0.4", "b.com": "127.64.0.5"}
    assert inside.listeners["127.64.0.1", 3128] == Destination("127.64.0.1:3128")
    assert inside.listeners["127.0.0.1", 7] == Destination("127.0.0.1:7")


_HOSTS = st.sampled_from(["a.com", "b.com", "*.a.com", "localhost", "10.0.0.5", "127.64.0.1", "127.64.0.3", "[::1]"])
_DESTINATIONS = st.lists(
    st.builds(lambda host, port: f"{host}:{port}", _HOSTS, st.sampled_from([80, 3128])), max_size=9
)


@given(_DESTINATIONS)
def test_no_two_hosts_share_a_socket(texts: list[str]) -> None:
    destinations = made(*texts)
    inside = place(destinations)
    addresses = [*inside.hosts.values(), inside.proxy[0]]
    assert len({*addresses}) == len(addresses)
    assert {*addresses}.isdisjoint(each.host for each in destinations if each.is_address)
    assert all(ip_address(each) in ip_network("127.0.0.0/8") for each in addresses)
    for each in destinations:
        found = [other for other in inside.listeners.values() if other == each]
        assert len(found) == (0 if each.is_wildcard else 1)


@pytest.mark.parametrize(
    ("host", "port", "found"),
    [
        ("a.com", 443, "a.com:443"),
        ("a.com", 80, None),
        ("b.a.com", 443, None),
        ("x.w.com", 443, "*.w.com:443"),
        ("x.y.w.com", 443, "*.w.com:443"),
        ("one.w.com", 443, "one.w.com:443"),
        ("w.com", 443, None),
        ("xw.com", 443, None),
        ("10.0.0.5", 5432, "10.0.0.5:5432"),
        ("10.0.0.6", 5432, None),
        ("::1", 80, "[::1]:80"),
        ("127.0.0.1", 1, None),
    ],
)
def test_what_permits_a_host(host: str, port: int, found: str | None) -> None:
    known = made("*.w.com:443", "a.com:443", "one.w.com:443", "10.0.0.5:5432", "[::1]:80", "localhost:1")
    each = find(known, host, port)
    assert (each and each.to) == found


@pytest.mark.parametrize(
    ("destination", "address", "zone"),
    [
        (Destination("a.com:443"), "93.184.215.14", None),
        (Destination("a.com:443"), "2606:2800::1", None),
        (Destination("a.com:443"), "10.0.0.5", Zone.PRIVATE),
        (Destination("a.com:5432"), "10.0.0.5", None),  # the file names it, with this port
        (Destination("a.com:443", private=True), "10.0.0.5", None),
        (Destination("a.com:443", private=True), "fd12::1", None),
        (Destination("a.com:443"), "127.0.0.1", Zone.LOOPBACK),
        (Destination("a.com:443", private=True), "127.0.0.1", Zone.LOOPBACK),
        (Destination("a.com:443", private=True), "::1", Zone.LOOPBACK),
        (Destination("localhost:1"), "127.0.0.1", None),
        (Destination("localhost:1"), "::1", None),
        (Destination("localhost:1"), "10.0.0.5", Zone.PRIVATE),
        (Destination("a.com:443", private=True), "169.254.169.254", Zone.SPECIAL),
        (Destination("a.com:80"), "169.254.169.254", None),  # the file names it
        (Destination("a.com:443", private=True), "fe80::1%eth0", Zone.SPECIAL),
        (Destination("a.com:443"), "::ffff:10.0.0.5", Zone.PRIVATE),
        (Destination("a.com:443"), "64:ff9b::a00:5", Zone.PRIVATE),
        (Destination("a.com:443"), "0.0.0.0", Zone.SPECIAL),
        (Destination("10.0.0.5:5432"), "10.0.0.5", None),
    ],
)
def test_what_a_destination_may_lead_to(destination: Destination, address: str, zone: Zone | None) -> None:
    known = (destination, *made("10.0.0.5:5432", "169.254.169.254:80"))
    assert refused_zone(destination, address, known) is zone


@given(st.ip_addresses().map(str), st.booleans())
def test_nothing_but_public_addresses_without_a_word_of_the_file(address: str, private: bool) -> None:
    destination = Destination("a.com:443", private=private)
    permitted = (Zone.PUBLIC, Zone.PRIVATE) if private else (Zone.PUBLIC,)
    assert (refused_zone(destination, address, (destination,)) is None) == (zone_of(address) in permitted)
