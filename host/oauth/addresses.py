"""The addresses that requests to an authorization server may go to.

A server names its authorization server, and a hostile one could name a machine that only this one can reach. So
public addresses are permitted, and beyond them only the zone in which the configured server itself is.
"""

from __future__ import annotations

from config import Zone, zone_of
from host.oauth.problem import OAuthProblem
from host.url import Url


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
