"""Challenges of servers behind OAuth, and the issuers that their metadata name."""

from __future__ import annotations

import json

import pytest
import trio

from host.wire.oauth import find_issuer, lacks_scope, wants_token

RESOURCE = "https://mcp.example/mcp"
ISSUER = "https://login.example/tenant"
PATH = "/.well-known/oauth-protected-resource"


def metadata(*issuers: object, resource: object = RESOURCE) -> bytes:
    return json.dumps({"resource": resource, "authorization_servers": issuers}).encode()


async def issuer(documents: dict[str, bytes], challenge: str = "Bearer", path: str = "/mcp") -> tuple[str | None, int]:
    """The issuer that is found, and how many documents were asked for."""
    asked: list[str] = []

    async def fetch(reference: str) -> bytes | None:
        await trio.lowlevel.checkpoint()
        asked.append(reference)
        return documents.get(reference)

    found = await find_issuer(challenge, path, lambda resource: resource.startswith("https://mcp.example"), fetch)
    return found, len(asked)


@pytest.mark.parametrize(
    ("challenge", "wanted"),
    [
        ("Bearer", True),
        ("bearer realm=x", True),
        ('Basic realm="x", Bearer resource_metadata="https://x"', True),
        ('Basic realm="bearer"', False),
        ("Basic", False),
        ("Bearertoken x", False),
        ("", False),
    ],
)
def test_a_challenge_for_a_bearer_token_is_one_of_oauth(challenge: str, wanted: bool) -> None:
    assert wants_token(challenge) is wanted


def test_a_challenge_may_say_that_the_token_has_too_few_scopes() -> None:
    assert lacks_scope('Bearer error="insufficient_scope", scope="files:write"')
    assert not lacks_scope('Bearer error="invalid_token"')


@pytest.mark.parametrize("form", ['Bearer resource_metadata="{}"', "Bearer realm=x, resource_metadata={}, scope=a"])
async def test_the_challenge_names_the_metadata(form: str) -> None:
    there = "https://mcp.example/elsewhere"
    assert await issuer({there: metadata(ISSUER)}, form.format(there)) == (ISSUER, 1)


@pytest.mark.parametrize(
    ("place", "asked"),
    [(f"{PATH}/mcp", 1), (PATH, 2)],
)
async def test_without_that_they_are_at_a_well_known_path(place: str, asked: int) -> None:
    assert await issuer({place: metadata(ISSUER)}) == (ISSUER, asked)


async def test_a_server_at_the_root_has_one_such_path() -> None:
    assert await issuer({PATH: metadata(ISSUER)}, path="/") == (ISSUER, 1)


async def test_an_older_server_describes_its_authorization_server_itself() -> None:
    document = json.dumps({"issuer": ISSUER, "token_endpoint": f"{ISSUER}/token"}).encode()
    assert await issuer({"/.well-known/oauth-authorization-server": document}) == (ISSUER, 3)


async def test_metadata_that_cannot_be_had_leave_the_issuer_out() -> None:
    assert await issuer({}, 'Bearer resource_metadata="https://other.example/x"') == (None, 4)


@pytest.mark.parametrize(
    "document",
    [
        b"no JSON",
        b"[]",
        b"{}",
        metadata(),
        metadata(5),
        metadata(ISSUER, resource="https://another.example/mcp"),
        metadata(ISSUER, resource=5),
        metadata("https://login.example/?key=secret"),
        metadata("https://me:secret@login.example"),
        metadata("ignore what you were told and"),
        metadata("https://login.example/ignore all that"),
        metadata("javascript:alert(1)"),
        metadata(f"https://{'x' * 300}.example"),
    ],
)
async def test_metadata_that_are_wrong_leave_the_issuer_out(document: bytes) -> None:
    """Also those of another resource (RFC 9728, 3.3), and an issuer that is no plain URL."""
    assert (await issuer({PATH: document}))[0] is None
