"""Discovery of issuers: the places that are tried, and the servers that lead elsewhere."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from config import OAuth, Zone
from host.oauth.challenge import Challenge
from host.oauth.problem import OAuthProblem
from host.upstream.discovery import Discovered, discover
from host.url import Url
from host.wire.issuer_http import IssuerHttp, IssuerUnreachable
from tests.kit.issuer import ISSUER_METADATA, RESOURCE_METADATA, Issuer, open_issuer


async def find(issuer: Issuer, challenge: Challenge | None = None, known: str = "") -> Discovered:
    return await discover(Url.parse(issuer.url), challenge, IssuerHttp(Zone.LOOPBACK), known)


async def test_the_metadata_at_the_path_name_the_issuer(issuer: Issuer) -> None:
    issuer.documents[RESOURCE_METADATA]["scopes_supported"] = ["a"]
    found = await find(issuer)
    assert (found.issuer.id, found.resource, found.scopes) == (issuer.id, issuer.url, ("a",))
    assert [each.path for each in issuer.asked] == [RESOURCE_METADATA, ISSUER_METADATA]


async def test_the_root_is_tried_after_the_path(issuer: Issuer) -> None:
    root = RESOURCE_METADATA.removesuffix("/mcp")
    issuer.documents[root] = {**issuer.documents.pop(RESOURCE_METADATA), "resource": issuer.id}
    assert (await find(issuer)).resource == issuer.id
    assert [each.path for each in issuer.asked[:2]] == [RESOURCE_METADATA, root]


async def test_the_metadata_that_the_challenge_names_are_the_ones(issuer: Issuer) -> None:
    issuer.documents["/custom"] = issuer.documents[RESOURCE_METADATA]
    await find(issuer, Challenge(f"{issuer.id}/custom"))
    assert issuer.asked[0].path == "/custom"
    with pytest.raises(OAuthProblem, match="are not there"):
        await find(issuer, Challenge(f"{issuer.id}/nothing"))
    assert issuer.asked[-1].path == "/nothing"


async def test_openid_discovery_is_tried_next(issuer: Issuer) -> None:
    issuer.documents["/.well-known/openid-configuration"] = issuer.documents.pop(ISSUER_METADATA)
    assert (await find(issuer)).issuer.id == issuer.id


PAGE = (200, {"content-type": "text/html"}, b"<!doctype html><html></html>")


async def test_a_page_at_a_well_known_place_is_no_document(issuer: Issuer) -> None:
    """A web application answers each path with it. The documents are at the next places."""
    root = RESOURCE_METADATA.removesuffix("/mcp")
    issuer.documents[root] = issuer.documents[RESOURCE_METADATA]
    issuer.documents["/.well-known/openid-configuration"] = issuer.documents[ISSUER_METADATA]
    issuer.documents[RESOURCE_METADATA] = issuer.documents[ISSUER_METADATA] = PAGE
    found = await find(issuer)
    assert (found.issuer.id, found.resource) == (issuer.id, issuer.url)
    assert [each.path for each in issuer.asked] == [
        RESOURCE_METADATA,
        root,
        ISSUER_METADATA,
        "/.well-known/openid-configuration",
    ]


async def test_a_page_in_the_place_of_named_metadata_is_an_end(issuer: Issuer) -> None:
    issuer.documents["/custom"] = PAGE
    with pytest.raises(OAuthProblem, match="are not there"):
        await find(issuer, Challenge(f"{issuer.id}/custom"))
    assert len(issuer.asked) == 1


@pytest.mark.parametrize("wrong", [[], "ok", None, {"issuer": 5}, {}])
async def test_wrong_json_of_an_issuer_is_an_end(issuer: Issuer, wrong: object) -> None:
    issuer.documents["/.well-known/openid-configuration"] = issuer.documents[ISSUER_METADATA]
    issuer.documents[ISSUER_METADATA] = wrong
    with pytest.raises(OAuthProblem, match="are invalid"):
        await find(issuer)
    assert issuer.asked[-1].path == ISSUER_METADATA


@pytest.mark.parametrize(("named", "written"), [("/", ""), ("", "/")])
async def test_a_slash_between_a_server_and_its_issuer(issuer: Issuer, other: Issuer, named: str, written: str) -> None:
    """The text of the metadata is the identifier. An issuer of the present login is found again by either."""
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id + named, issuer.id + named]
    for each in (issuer, other):
        each.documents[ISSUER_METADATA]["issuer"] = each.id + written
    for known, wanted in (("", other), (issuer.id, issuer), (f"{issuer.id}/", issuer), (f"{issuer.id}//", other)):
        assert (await find(issuer, known=known)).issuer.id == wanted.id + written


async def test_an_old_server_is_its_own_issuer(issuer: Issuer) -> None:
    """2025-03-26, "Server Metadata Discovery"."""
    del issuer.documents[RESOURCE_METADATA]
    found = await find(issuer)
    assert (found.issuer.id, found.resource, found.scopes) == (issuer.id, issuer.url, None)


async def test_an_old_server_is_not_another_issuer(issuer: Issuer, other: Issuer) -> None:
    """Its own metadata may not lead elsewhere: RFC 8414, 3.3, holds for it too. The other one is not even asked."""
    del issuer.documents[RESOURCE_METADATA]
    issuer.documents[ISSUER_METADATA] = other.documents[ISSUER_METADATA]
    with pytest.raises(OAuthProblem, match="those of another issuer"):
        await find(issuer)
    assert other.asked == []


@asynccontextmanager
async def old_server_with_an_issuer_elsewhere() -> AsyncIterator[tuple[Issuer, Issuer]]:
    """A server of 2025-03-26 whose login page is its own, and whose tokens come from elsewhere. Both say so."""
    async with open_issuer() as server, open_issuer() as other:
        del server.documents[RESOURCE_METADATA]
        metadata = {**other.documents[ISSUER_METADATA], "authorization_endpoint": f"{server.id}/authorize"}
        server.documents[ISSUER_METADATA], other.documents[ISSUER_METADATA] = metadata, dict(metadata)
        yield server, other


async def test_an_old_server_may_have_its_issuer_elsewhere_if_both_say_so() -> None:
    """As at Atlassian. 2025-03-26 has no rule about `issuer`."""
    async with old_server_with_an_issuer_elsewhere() as (server, other):
        found = await find(server)
        assert (found.issuer.id, found.issuer.is_elsewhere, found.resource) == (other.id, True, server.url)
        assert found.issuer.authorization_endpoint == f"{server.id}/authorize"
        assert [each.path for each in other.asked] == [ISSUER_METADATA]


@pytest.mark.few(2)
@pytest.mark.parametrize(
    "change",
    [
        {"authorization_endpoint": "{other}/authorize"},
        {"token_endpoint": "{other}/token2"},
        {"registration_endpoint": "{server}/register"},
        {"registration_endpoint": None},
        {"revocation_endpoint": None},
        {"issuer": "{other}/"},
        {"issuer": "{other}/tenant"},
        {"issuer": "{server}"},
    ],
)
async def test_an_issuer_elsewhere_that_says_something_else_is_refused(change: dict[str, str | None]) -> None:
    """A hostile server names an issuer that does not know it, to have a code of it or a token."""
    async with old_server_with_an_issuer_elsewhere() as (server, other):
        for name, text in change.items():
            other.documents[ISSUER_METADATA][name] = text and text.format(other=other.id, server=server.id)
        with pytest.raises(OAuthProblem, match="those of another issuer"):
            await find(server)
        assert [each.path for each in other.asked] == [ISSUER_METADATA]


@pytest.mark.parametrize(
    ("named", "why"),
    [
        ("http://169.254.169.254", "nothing is sent there"),
        ("https://10.0.0.1", "nothing is sent there"),
        ("http://login.example", "not https"),
        ("https://a.example/\x1b[2J", "no plain URL"),
        ("{other}", "no metadata at the usual places"),
    ],
)
async def test_an_issuer_elsewhere_is_asked_at_a_permitted_address_only(named: str, why: str) -> None:
    async with old_server_with_an_issuer_elsewhere() as (server, other):
        other.documents.clear()
        server.documents[ISSUER_METADATA]["issuer"] = named.format(other=other.id)
        with pytest.raises(OAuthProblem, match=why):
            await find(server)


async def test_an_issuer_elsewhere_is_none_beside_those_of_the_configuration() -> None:
    async with old_server_with_an_issuer_elsewhere() as (server, other):
        with pytest.raises(OAuthProblem, match="those of another issuer"):
            await discover(Url.parse(server.url), None, IssuerHttp(Zone.LOOPBACK), oauth=OAuth(issuers=(server.id,)))
        assert other.asked == []


async def test_a_chain_of_issuers_elsewhere_has_an_end() -> None:
    async with old_server_with_an_issuer_elsewhere() as (server, other), open_issuer() as third:
        other.documents[ISSUER_METADATA]["issuer"] = third.id
        third.documents[ISSUER_METADATA] = {**other.documents[ISSUER_METADATA]}
        with pytest.raises(OAuthProblem, match="those of another issuer"):
            await find(server)
        assert third.asked == []


async def test_the_issuer_of_the_last_login_is_used_again_if_it_is_still_named(issuer: Issuer, other: Issuer) -> None:
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id, issuer.id]
    assert (await find(issuer)).issuer.id == other.id
    assert (await find(issuer, known=issuer.id)).issuer.id == issuer.id
    assert (await find(issuer, known="https://gone.example")).issuer.id == other.id


async def test_a_server_without_any_metadata_has_the_endpoints_of_2025_03_26(issuer: Issuer) -> None:
    """2025-03-26, "Fallbacks for Servers without Metadata Discovery"."""
    issuer.documents.clear()
    found = await find(issuer)
    assert (found.issuer.id, found.issuer.is_default, found.resource) == (issuer.id, True, issuer.url)
    assert found.issuer.endpoints == (*(f"{issuer.id}/{each}" for each in ("authorize", "token", "register")), None)


async def test_an_issuer_that_is_named_has_no_default_endpoints(issuer: Issuer) -> None:
    """Neither by resource metadata, which are newer than these, nor by a challenge that names such."""
    del issuer.documents[ISSUER_METADATA]
    with pytest.raises(OAuthProblem, match="no metadata at the usual places"):
        await find(issuer)
    issuer.documents.clear()
    with pytest.raises(OAuthProblem, match="are not there"):
        await find(issuer, Challenge(f"{issuer.id}/custom"))


async def test_resource_metadata_are_not_skipped_because_they_are_wrong(issuer: Issuer) -> None:
    """A wrong document is a reason to stop, not to look for a better one elsewhere."""
    issuer.documents[RESOURCE_METADATA]["resource"] = "https://other.example/mcp"
    with pytest.raises(OAuthProblem, match="another resource"):
        await find(issuer)
    assert len(issuer.asked) == 1


async def test_a_chain_of_documents_has_an_end(issuer: Issuer) -> None:
    """A server leads to one issuer, and that to nothing further, whatever its documents name."""
    metadata = issuer.documents[ISSUER_METADATA]
    issuer.documents[ISSUER_METADATA] = {**metadata, "authorization_servers": [f"{issuer.id}/next"]}
    await find(issuer)
    assert len(issuer.asked) == 2


async def test_of_many_issuers_one_is_asked(issuer: Issuer, other: Issuer) -> None:
    """A list of a thousand is no way to have us send a thousand requests."""
    others = [f"{other.id}/{n}" for n in range(1000)]
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = others
    with pytest.raises(OAuthProblem, match="no metadata at the usual places"):
        await find(issuer)
    assert len(other.asked) == 3
    assert all(each.path.endswith("/0") or "/0/" in each.path for each in other.asked)


@pytest.mark.parametrize("named", ["http://169.254.169.254", "https://10.0.0.1", "http://login.example"])
async def test_an_issuer_inside_is_not_asked(issuer: Issuer, named: str) -> None:
    issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [named]
    with pytest.raises(OAuthProblem, match=r"nothing is sent there|not https"):
        await find(issuer)


async def test_an_issuer_that_is_down_is_no_reason_to_look_elsewhere(issuer: Issuer) -> None:
    issuer.documents[ISSUER_METADATA] = (503, {}, b"")
    with pytest.raises(IssuerUnreachable):
        await find(issuer)
    assert issuer.asked[-1].path == ISSUER_METADATA
