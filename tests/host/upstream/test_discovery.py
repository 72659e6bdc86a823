"""Discovery of issuers: the places that are tried, and the servers that lead elsewhere."""

from __future__ import annotations

import pytest

from config import Zone
from host.oauth.challenge import Challenge
from host.oauth.problem import OAuthProblem
from host.upstream.discovery import Discovered, discover
from host.url import Url
from host.wire.issuer_http import IssuerHttp, IssuerUnreachable
from tests.kit.issuer import ISSUER_METADATA, RESOURCE_METADATA, Issuer, open_issuer


async def find(issuer: Issuer, challenge: Challenge | None = None, known: str = "") -> Discovered:
    return await discover(Url.parse(issuer.url), challenge, IssuerHttp(Zone.LOOPBACK), known)


async def test_the_metadata_at_the_path_name_the_issuer() -> None:
    async with open_issuer() as issuer:
        issuer.documents[RESOURCE_METADATA]["scopes_supported"] = ["a"]
        found = await find(issuer)
        assert (found.issuer.id, found.resource, found.scopes) == (issuer.id, issuer.url, ("a",))
        assert [each.path for each in issuer.asked] == [RESOURCE_METADATA, ISSUER_METADATA]


async def test_the_root_is_tried_after_the_path() -> None:
    async with open_issuer() as issuer:
        root = RESOURCE_METADATA.removesuffix("/mcp")
        issuer.documents[root] = {**issuer.documents.pop(RESOURCE_METADATA), "resource": issuer.id}
        assert (await find(issuer)).resource == issuer.id
        assert [each.path for each in issuer.asked[:2]] == [RESOURCE_METADATA, root]


async def test_the_metadata_that_the_challenge_names_are_the_ones() -> None:
    async with open_issuer() as issuer:
        issuer.documents["/custom"] = issuer.documents[RESOURCE_METADATA]
        await find(issuer, Challenge(f"{issuer.id}/custom"))
        assert issuer.asked[0].path == "/custom"
        with pytest.raises(OAuthProblem, match="are not there"):
            await find(issuer, Challenge(f"{issuer.id}/nothing"))
        assert issuer.asked[-1].path == "/nothing"


async def test_openid_discovery_is_tried_next() -> None:
    async with open_issuer() as issuer:
        issuer.documents["/.well-known/openid-configuration"] = issuer.documents.pop(ISSUER_METADATA)
        assert (await find(issuer)).issuer.id == issuer.id


async def test_an_old_server_is_its_own_issuer() -> None:
    """2025-03-26, "Server Metadata Discovery"."""
    async with open_issuer() as issuer:
        del issuer.documents[RESOURCE_METADATA]
        found = await find(issuer)
        assert (found.issuer.id, found.resource, found.scopes) == (issuer.id, issuer.url, None)


async def test_an_old_server_is_not_another_issuer() -> None:
    """Its own metadata may not lead elsewhere: RFC 8414, 3.3, holds for it too. The other one is not even asked."""
    async with open_issuer() as issuer, open_issuer() as other:
        del issuer.documents[RESOURCE_METADATA]
        issuer.documents[ISSUER_METADATA] = other.documents[ISSUER_METADATA]
        with pytest.raises(OAuthProblem, match="those of another issuer"):
            await find(issuer)
        assert other.asked == []


async def test_the_issuer_of_the_last_login_is_used_again_if_it_is_still_named() -> None:
    async with open_issuer() as issuer, open_issuer() as other:
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [other.id, issuer.id]
        assert (await find(issuer)).issuer.id == other.id
        assert (await find(issuer, known=issuer.id)).issuer.id == issuer.id
        assert (await find(issuer, known="https://gone.example")).issuer.id == other.id


async def test_a_server_without_an_issuer() -> None:
    async with open_issuer() as issuer:
        issuer.documents.clear()
        with pytest.raises(OAuthProblem, match="no metadata at the usual places"):
            await find(issuer)


async def test_resource_metadata_are_not_skipped_because_they_are_wrong() -> None:
    """A wrong document is a reason to stop, not to look for a better one elsewhere."""
    async with open_issuer() as issuer:
        issuer.documents[RESOURCE_METADATA]["resource"] = "https://other.example/mcp"
        with pytest.raises(OAuthProblem, match="another resource"):
            await find(issuer)
        assert len(issuer.asked) == 1


async def test_a_chain_of_documents_has_an_end() -> None:
    """A server leads to one issuer, and that to nothing further, whatever its documents name."""
    async with open_issuer() as issuer:
        metadata = issuer.documents[ISSUER_METADATA]
        issuer.documents[ISSUER_METADATA] = {**metadata, "authorization_servers": [f"{issuer.id}/next"]}
        await find(issuer)
        assert len(issuer.asked) == 2


async def test_of_many_issuers_one_is_asked() -> None:
    """A list of a thousand is no way to have us send a thousand requests."""
    async with open_issuer() as issuer, open_issuer() as other:
        others = [f"{other.id}/{n}" for n in range(1000)]
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = others
        with pytest.raises(OAuthProblem, match="no metadata at the usual places"):
            await find(issuer)
        assert len(other.asked) == 3
        assert all(each.path.endswith("/0") or "/0/" in each.path for each in other.asked)


@pytest.mark.parametrize("named", ["http://169.254.169.254", "https://10.0.0.1", "http://login.example"])
async def test_an_issuer_inside_is_not_asked(named: str) -> None:
    async with open_issuer() as issuer:
        issuer.documents[RESOURCE_METADATA]["authorization_servers"] = [named]
        with pytest.raises(OAuthProblem, match=r"nothing is sent there|not https"):
            await find(issuer)


async def test_an_issuer_that_is_down_is_no_reason_to_look_elsewhere() -> None:
    async with open_issuer() as issuer:
        issuer.documents[ISSUER_METADATA] = (503, {}, b"")
        with pytest.raises(IssuerUnreachable):
            await find(issuer)
        assert issuer.asked[-1].path == ISSUER_METADATA
