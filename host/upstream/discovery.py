"""Discovery of the authorization server of a configured server (2025-11-25, "Authorization Server Discovery"; for
servers of 2025-03-26, "Server Metadata Discovery")."""

from __future__ import annotations

from dataclasses import dataclass

from host.oauth.challenge import Challenge
from host.oauth.documents import (
    Issuer,
    ProtectedResource,
    canonical_resource,
    issuer_urls,
    read_issuer,
    read_resource,
    resource_urls,
)
from host.oauth.problem import OAuthProblem
from host.url import Url
from host.wire.issuer_http import IssuerHttp


@dataclass(frozen=True, slots=True)
class Discovered:
    """Resource and issuer of a login at a server. `scopes`: those of the resource metadata, None if they name none."""

    issuer: Issuer
    resource: str
    scopes: tuple[str, ...] | None


async def discover(server: Url, challenge: Challenge | None, http: IssuerHttp, known: str = "") -> Discovered:
    """Find the authorization server of a server.

    Args:
        challenge: that of the server's 401, if it has sent one.
        known: the issuer of the present login. It is used again if the server still names it; otherwise the first one
            is used.

    Raises:
        IssuerUnreachable: there was no answer.
        OAuthProblem: there is none, or it may not be used.
    """
    found = await _find_resource(server, "" if challenge is None else challenge.resource_metadata, http)
    if found is None:
        # Before 2025-06-18 a server was its own authorization server.
        issuer = f"{server.scheme}://{server.authority}"
        metadata = await find_issuer(issuer, http)
        return Discovered(metadata, canonical_resource(server), None)
    issuer = known if known in found.issuers else found.issuers[0]
    return Discovered(await find_issuer(issuer, http), found.resource, found.scopes)


async def _find_resource(server: Url, named: str, http: IssuerHttp) -> ProtectedResource | None:
    for url in resource_urls(server, named):
        if (data := await http.get(url)) is not None:
            return read_resource(data, server)
    if named:
        raise OAuthProblem("the resource metadata that the server names are not there")
    return None


async def find_issuer(issuer: str, http: IssuerHttp) -> Issuer:
    """The metadata of an issuer; raises as `discover` does."""
    for url in issuer_urls(issuer):
        if (data := await http.get(url)) is not None:
            return read_issuer(data, issuer, http.home)
    raise OAuthProblem(f"the issuer {issuer} has no metadata at the usual places")
