"""The zones of addresses, in all the forms in which an address can be written."""

from __future__ import annotations

import pytest

from host.oauth.addresses import Zone, check_url, check_zone, literal_zone, zone_of
from host.oauth.problem import OAuthProblem
from host.url import Url


@pytest.mark.parametrize(
    ("address", "zone"),
    [
        ("93.184.216.34", Zone.PUBLIC),
        ("2606:2800:220:1:248:1893:25c8:1946", Zone.PUBLIC),
        *((each, Zone.LOOPBACK) for each in ("127.0.0.1", "127.9.9.9", "::1", "::ffff:127.0.0.1", "64:ff9b::7f00:1")),
        *((each, Zone.PRIVATE) for each in ("10.0.0.1", "172.16.0.1", "172.31.255.255", "192.168.1.1", "100.64.0.1")),
        *((each, Zone.PRIVATE) for each in ("fd00::1", "::ffff:10.0.0.1", "2002:0a00:0001::1", "64:ff9b::a00:1")),
        *((each, Zone.SPECIAL) for each in ("169.254.169.254", "0.0.0.0", "224.0.0.1", "255.255.255.255", "192.0.2.1")),
        *((each, Zone.SPECIAL) for each in ("fe80::1", "fe80::1%eth0", "::", "ff02::1", "::ffff:169.254.169.254")),
        *((each, Zone.SPECIAL) for each in ("2002:a9fe:a9fe::1", "64:ff9b::a9fe:a9fe", "64:ff9b:1::a9fe:a9fe")),
        ("2001:0:4136:e378:8000:63bf:5601:5601", Zone.SPECIAL),  # Teredo, for 169.254.169.254
        ("2001:0:4136:e378:8000:63bf:a247:27dd", Zone.SPECIAL),  # Teredo, for 93.184.216.34
        ("240.0.0.1", Zone.SPECIAL),
    ],
)
def test_an_address_is_in_its_zone(address: str, zone: Zone) -> None:
    assert zone_of(address) is zone


@pytest.mark.parametrize(("host", "zone"), [("localhost", Zone.LOOPBACK), ("a.localhost", Zone.LOOPBACK)])
def test_the_names_of_loopback_are_there(host: str, zone: Zone) -> None:
    assert literal_zone(host) is zone


def test_other_names_have_no_zone() -> None:
    assert literal_zone("localhost.example.com") is None


@pytest.mark.parametrize("home", Zone)
def test_public_addresses_and_those_of_the_server_s_own_zone_are_permitted(home: Zone) -> None:
    permitted = {Zone.PUBLIC, home} - {Zone.SPECIAL}
    for zone in Zone:
        if zone in permitted:
            check_zone(zone, home)
        else:
            with pytest.raises(OAuthProblem, match="nothing is sent there"):
                check_zone(zone, home)


@pytest.mark.parametrize(
    ("url", "home"),
    [
        ("https://login.example/x", Zone.PUBLIC),
        ("https://login.example/x", Zone.LOOPBACK),
        ("http://127.0.0.1:9/x", Zone.LOOPBACK),
        ("http://localhost:9/x", Zone.LOOPBACK),
        ("http://[::1]:9/x", Zone.LOOPBACK),
        ("https://10.0.0.1/x", Zone.PRIVATE),
    ],
)
def test_urls_that_may_be_used(url: str, home: Zone) -> None:
    check_url(Url.parse(url), home)


@pytest.mark.parametrize(
    ("url", "home", "why"),
    [
        ("http://login.example/x", Zone.PUBLIC, "not https"),
        ("http://login.example/x", Zone.LOOPBACK, "not https"),
        ("http://10.0.0.1/x", Zone.PRIVATE, "not https"),
        ("ftp://login.example/x", Zone.PUBLIC, "not https"),
        ("https://user@login.example/x", Zone.PUBLIC, "user name"),
        ("https://user:secret@login.example/x", Zone.PUBLIC, "user name"),
        ("https://127.0.0.1/x", Zone.PUBLIC, "loopback"),
        ("https://localhost/x", Zone.PRIVATE, "loopback"),
        ("https://[::ffff:127.0.0.1]/x", Zone.PUBLIC, "loopback"),
        ("https://10.0.0.1/x", Zone.PUBLIC, "private"),
        ("https://10.0.0.1/x", Zone.LOOPBACK, "private"),
        ("https://169.254.169.254/latest/meta-data", Zone.PUBLIC, "link-local, reserved"),
        ("https://169.254.169.254/latest/meta-data", Zone.SPECIAL, "link-local, reserved"),
        ("https://0.0.0.0/x", Zone.LOOPBACK, "link-local, reserved"),
    ],
)
def test_urls_that_may_not_be_used(url: str, home: Zone, why: str) -> None:
    with pytest.raises(OAuthProblem, match=why) as caught:
        check_url(Url.parse(url), home)
    assert "secret" not in str(caught.value)
