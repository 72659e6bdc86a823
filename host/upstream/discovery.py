"""Discovery of the authorization server of a configured server (2025-11-25, "Authorization Server Discovery"; for
servers of 2025-03-26, "Server Metadata Discovery")."""

from __future__ import annotations

from collections.abc import Collection

from msgspec import Struct
from msgspec.structs import replace

from config import OAuth
from host.oauth.challenge import Challenge
from host.oauth.documents import (
    PLAIN,
    Issuer,
    OtherIssuer,
    ProtectedResource,
    canonical_resource,
    check_issuer_id,
    default_issuer,
    issuer_urls,
    read_issuer,
    read_resource,
    resource_urls,
    same_issuer,
)
from host.oauth.problem import OAuthProblem
from host.url import Url
from host.wire.issuer_http import IssuerHttp


class Discovered(Struct, frozen=True):
    """Resource and issuer of a login at a server. `scopes`: those of the resource metadata, None if they name none."""

    issuer: Issuer
    resource: str
    scopes: tuple[str, ...] | None


async def discover(
    server: Url, challenge: Challenge | None, http: IssuerHttp, known: str = "", oauth: OAuth = PLAIN
) -> Discovered:
    """Find the authorization server of a server.

    Args:
        challenge: that of the server's 401, if it has sent one.
        known: the issuer of the present login. It is used again if the server still names it; otherwise the first one
            is used.
        oauth: the configuration of the login. If it has names of the issuer, the server may name no other.

    Raises:
        IssuerUnreachable: there was no answer.
        OAuthProblem: there is none, or it may not be used.
    """
    found = await _find_resource(server, "" if challenge is None else challenge.resource_metadata, http)
    if found is None:
        return Discovered(await _own_issuer(server, http, oauth), canonical_resource(server), None)
    named = [each for each in found.issuers if _is_permitted(each, oauth.issuers)]
    if not named:
        raise OAuthProblem(f"the server names the issuer {found.issuers[0]}, which is none of oauth.issuers")
    issuer = next((each for each in named if same_issuer(each, known, oauth.issuers)), named[0])
    return Discovered(await _find_issuer(issuer, http, oauth), found.resource, found.scopes)


def _is_permitted(issuer: str, names: Collection[str]) -> bool:
    return not names or any(same_issuer(issuer, name) for name in names)


async def _find_resource(server: Url, named: str, http: IssuerHttp) -> ProtectedResource | None:
    for url in resource_urls(server, named):
        if (data := await http.get(url)) is not None:
            return read_resource(data, server)
    if named:
        raise OAuthProblem("the resource metadata that the server names are not there")
    return None


async def _find_issuer(issuer: str, http: IssuerHttp, oauth: OAuth) -> Issuer:
    if (data := await _issuer_document(issuer, http)) is None:
        raise OAuthProblem(f"the issuer {issuer} has no metadata at the usual places")
    return read_issuer(data, issuer, http.home, oauth)


async def _issuer_document(issuer: str, http: IssuerHttp) -> bytes | None:
    for url in issuer_urls(issuer):
        if (data := await http.get(url)) is not None:
            return data
    return None


async def _own_issuer(server: Url, http: IssuerHttp, oauth: OAuth) -> Issuer:
    """The issuer of a server that has no resource metadata: before 2025-06-18 it was its own authorization server."""
    base = f"{server.scheme}://{server.authority}"
    if not _is_permitted(base, oauth.issuers):
        raise OAuthProblem(f"the server is its own issuer {base}, which is none of oauth.issuers")
    if (data := await _issuer_document(base, http)) is None:
        return default_issuer(server)
    try:
        return read_issuer(data, base, http.home, oauth)
    except OtherIssuer as problem:
        if oauth.issuers:
            raise
        return await _issuer_elsewhere(data, server, http, problem, oauth)


async def _issuer_elsewhere(data: bytes, server: Url, http: IssuerHttp, problem: OtherIssuer, oauth: OAuth) -> Issuer:
    """The issuer that the server's own metadata name, if the two belong together: the login page is at the server's
    origin, and the metadata of that issuer have the same endpoints. A server that repeats the metadata of a stranger
    cannot have both. Unless it has the first, the stranger is not even asked.

    Raises:
        OtherIssuer: they do not.
    """
    named = check_issuer_id(problem.named)
    repeated = read_issuer(data, named, http.home, oauth)
    if Url.parse(repeated.authorization_endpoint).origin != server.origin:
        raise problem
    found = await _find_issuer(named, http, oauth)
    if found.id != named or found.endpoints != repeated.endpoints:
        raise problem
    return replace(found, is_elsewhere=True)
