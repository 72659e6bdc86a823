"""The URLs and addresses that requests to an issuer may go to."""

from __future__ import annotations

import pytest

from config import Zone
from host.oauth.addresses import check_url, check_zone, literal_zone
from host.oauth.problem import OAuthProblem
from host.url import Url


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
