"""The documents of servers and issuers: what they must have, and everything in them that is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Zone
from host.oauth.documents import (
    MAX_LIFETIME,
    ClientRegistration,
    TokenRefused,
    Tokens,
    canonical_resource,
    check_issuer_id,
    choose_auth_method,
    error_code,
    issuer_urls,
    read_issuer,
    read_registration,
    read_resource,
    read_tokens,
    registration_request,
    resource_urls,
)
from host.oauth.problem import OAuthProblem
from host.url import Url

SERVER = Url.parse("https://mcp.example/v1/mcp")
ISSUER = "https://login.example/tenant"
METADATA: dict[str, Any] = {
    "issuer": ISSUER,
    "authorization_endpoint": "https://login.example/authorize",
    "token_endpoint": "https://login.example/token",
    "code_challenge_methods_supported": ["plain", "S256"],
    "response_types_supported": ["code"],
}
REDIRECT = "http://127.0.0.1:4711/oauth/callback"


def dump(document: object) -> bytes:
    return json.dumps(document).encode()


# Protected resources


def test_the_named_metadata_are_the_only_ones() -> None:
    assert list(map(str, resource_urls(SERVER, "/metadata"))) == ["https://mcp.example/metadata"]


def test_without_a_name_the_path_comes_before_the_root() -> None:
    base = "https://mcp.example/.well-known/oauth-protected-resource"
    assert list(map(str, resource_urls(SERVER, ""))) == [f"{base}/v1/mcp", base]
    assert list(map(str, resource_urls(Url.parse("https://mcp.example"), ""))) == [base]


@pytest.mark.parametrize(
    "place",
    [
        "https://other.example/x",
        "http://mcp.example/x",
        "https://mcp.example:8443/x",
        "//other.example/x",
        "https://user@mcp.example/x",
        "http://169.254.169.254/",
        "file:///etc/passwd",
        "javascript:alert(1)",
        "https://[bad/",
    ],
)
def test_metadata_elsewhere_are_refused(place: str) -> None:
    """The server must not choose an address for us (rule 40)."""
    with pytest.raises(OAuthProblem, match="not at its own address"):
        list(resource_urls(SERVER, place))


@pytest.mark.parametrize(
    "resource", ["https://mcp.example/v1/mcp", "https://mcp.example/v1", "https://mcp.example/", "https://MCP.example"]
)
def test_the_resource_is_the_server_or_above_it(resource: str) -> None:
    document = {"resource": resource, "authorization_servers": [ISSUER], "scopes_supported": ["a", "b c"]}
    found = read_resource(dump(document), SERVER)
    assert (found.resource, found.issuers, found.scopes) == (resource, (ISSUER,), ("a", "b", "c"))


@pytest.mark.parametrize(
    "resource",
    [
        "https://mcp.example/v1/other",
        "https://mcp.example/v1/mcp/below",
        "https://mcp.example/v1/mc",
        "https://other.example/v1/mcp",
        "http://mcp.example/v1/mcp",
        "https://mcp.example:444/v1/mcp",
        "https://user@mcp.example/v1/mcp",
        "https://mcp.example/v1/mcp#x",
        "https://mcp.example/v1/mcp?tenant=2",
        "https://mcp.example/v1/../mcp",
        "https://mcp.example/v1\x1b[2J",
        "https://mcp.example/" + "v" * 3000,
        "mcp.example",
        "",
    ],
)
def test_a_foreign_resource_is_refused(resource: str) -> None:
    with pytest.raises(OAuthProblem, match="another resource"):
        read_resource(dump({"resource": resource, "authorization_servers": [ISSUER]}), SERVER)


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"resource": str(SERVER)}, "name no issuer"),
        ({"resource": str(SERVER), "authorization_servers": []}, "name no issuer"),
        ({"resource": str(SERVER), "authorization_servers": ["https://a b"]}, "no plain URL"),
        ({"resource": str(SERVER), "authorization_servers": "https://a.example"}, "invalid"),
        ({"authorization_servers": [ISSUER]}, "invalid"),
        ([], "invalid"),
    ],
)
def test_resource_metadata_that_are_refused(document: object, why: str) -> None:
    with pytest.raises(OAuthProblem, match=why):
        read_resource(dump(document), SERVER)


def test_a_resource_that_is_not_named_is_the_url_without_query() -> None:
    assert canonical_resource(Url.parse("https://u:p@MCP.example:443/a/?key=secret")) == "https://mcp.example/a/"
    assert canonical_resource(Url.parse("https://mcp.example/")) == "https://mcp.example"


# Issuers


@pytest.mark.parametrize(
    "issuer",
    [
        "https://a.example/x?y=z",
        "https://a.example/x#y",
        "https://user@a.example/",
        "javascript:alert(1)",
        "https://a.example/\x1b[2J",
        "https://a.example/ or click here",
        "https://a.example:99999",
        "https://a.example:b:c",
        "https://[::1",
        "https://:443/x",
        "https://" + "a" * 3000,
        "",
    ],
)
def test_an_issuer_is_a_plain_url(issuer: str) -> None:
    with pytest.raises(OAuthProblem, match="no plain URL"):
        check_issuer_id(issuer)


@given(st.from_regex(r"https?://[a0.:\[\]-]{1,9}(/[a%.;]{0,5})?", fullmatch=True))
def test_an_issuer_is_refused_or_can_be_asked(issuer: str) -> None:
    with suppress(OAuthProblem):
        assert list(issuer_urls(check_issuer_id(issuer)))


def test_metadata_are_looked_for_in_the_order_of_the_specification() -> None:
    assert list(map(str, issuer_urls(ISSUER))) == [
        "https://login.example/.well-known/oauth-authorization-server/tenant",
        "https://login.example/.well-known/openid-configuration/tenant",
        "https://login.example/tenant/.well-known/openid-configuration",
    ]
    assert list(map(str, issuer_urls("https://login.example"))) == [
        "https://login.example/.well-known/oauth-authorization-server",
        "https://login.example/.well-known/openid-configuration",
    ]


def test_what_an_issuer_offers() -> None:
    more = {
        "registration_endpoint": "https://login.example/register",
        "revocation_endpoint": "https://login.example/revoke",
        "authorization_response_iss_parameter_supported": True,
        "client_id_metadata_document_supported": True,
        "scopes_supported": ["openid", "offline_access"],
        "token_endpoint_auth_methods_supported": ["none"],
        "unknown": {"x": 1},
    }
    found = read_issuer(dump({**METADATA, **more}), ISSUER, Zone.PUBLIC)
    assert (found.id, found.token_endpoint) == (ISSUER, "https://login.example/token")
    assert (found.registration_endpoint, found.revocation_endpoint) == (
        more["registration_endpoint"],
        more["revocation_endpoint"],
    )
    assert (found.sends_iss, found.takes_client_urls) == (True, True)
    assert (found.scopes, found.token_auth_methods) == (("openid", "offline_access"), ("none",))


@pytest.mark.parametrize("nothing", [None, ""])
def test_what_an_issuer_does_not_say(nothing: str | None) -> None:
    more = {"scopes_supported": None, "registration_endpoint": nothing, "revocation_endpoint": nothing}
    found = read_issuer(dump({**METADATA, **more}), ISSUER, Zone.PUBLIC)
    assert (found.registration_endpoint, found.revocation_endpoint, found.scopes) == (None, None, ())
    assert (found.sends_iss, found.takes_client_urls) == (False, False)
    assert found.token_auth_methods == ("client_secret_basic",)  # RFC 8414, 2


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"issuer": "https://login.example/tenant/"}, "another issuer"),
        ({"issuer": "https://LOGIN.example/tenant"}, "another issuer"),
        ({"issuer": "https://login.example:443/tenant"}, "another issuer"),
        ({"issuer": "https://evil.example"}, "another issuer"),
        ({"issuer": None}, "invalid"),
        ({"code_challenge_methods_supported": None}, "PKCE"),
        ({"code_challenge_methods_supported": ["plain"]}, "PKCE"),
        ({"code_challenge_methods_supported": ["s256"]}, "PKCE"),
        ({"code_challenge_methods_supported": "S256"}, "invalid"),
        ({"response_types_supported": ["token"]}, "authorization code"),
        ({"authorization_endpoint": None}, "names no authorization"),
        ({"token_endpoint": ""}, "names no authorization"),
        ({"authorization_endpoint": "javascript:alert(1)"}, "invalid"),
        ({"authorization_endpoint": "http://login.example/authorize"}, "not https"),
        ({"authorization_endpoint": "https://login.example/authorize#x"}, "invalid"),
        ({"authorization_endpoint": "https://127.0.0.1/authorize"}, "loopback"),
        ({"token_endpoint": "http://login.example/token"}, "not https"),
        ({"token_endpoint": "https://169.254.169.254/token"}, "link-local, reserved"),
        ({"token_endpoint": "https://user:x@login.example/token"}, "user name"),
        ({"registration_endpoint": "https://10.0.0.1/register"}, "private"),
        ({"revocation_endpoint": "gopher://login.example/"}, "not https"),
        ({"token_endpoint": "https://login.example/" + "x" * 3000}, "invalid"),
    ],
)
def test_metadata_of_an_issuer_that_are_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(OAuthProblem, match=why):
        read_issuer(dump({**METADATA, **change}), ISSUER, Zone.PUBLIC)


# Registration


def test_a_registration_is_for_a_native_public_client_if_that_is_possible() -> None:
    request = registration_request(REDIRECT, ["a", "b"], ["client_secret_post", "none"])
    assert request["application_type"] == "native"
    assert request["redirect_uris"] == [REDIRECT]
    assert request["grant_types"] == ["authorization_code", "refresh_token"]
    assert (request["token_endpoint_auth_method"], request["scope"]) == ("none", "a b")
    assert "scope" not in registration_request(REDIRECT, [], ["none"])
    for methods, wanted in (
        (["client_secret_post"], "client_secret_post"),
        (["private_key_jwt"], "client_secret_basic"),
    ):
        assert registration_request(REDIRECT, [], methods)["token_endpoint_auth_method"] == wanted


def test_a_registration_is_read() -> None:
    answer = {"client_id": "c", "client_secret": "s", "client_secret_expires_at": 5, "redirect_uris": [REDIRECT]}
    found = read_registration(dump({**answer, "token_endpoint_auth_method": "client_secret_post"}), REDIRECT, "none")
    assert found == ClientRegistration("c", "s", "client_secret_post", REDIRECT, 5, is_dynamic=True, scopes=())
    public = read_registration(dump({"client_id": "c", "client_secret": "s"}), REDIRECT, "none")
    assert (public.client_secret, public.auth_method) == (None, "none")
    fewer = read_registration(dump({"client_id": "c", "scope": "a"}), REDIRECT, "none", ("a", "b"))
    assert fewer.scopes == ("a", "b"), "another registration would get no more"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"redirect_uris": ["https://evil.example/"]}, "another redirect"),
        ({"redirect_uris": [REDIRECT, "https://evil.example/"]}, "another redirect"),
        ({"redirect_uris": []}, "another redirect"),
        ({"client_id": ""}, "invalid"),
        ({"client_id": "a\nb"}, "invalid"),
        ({"client_id": 5}, "invalid"),
        ({"client_secret": "é", "token_endpoint_auth_method": "client_secret_basic"}, "invalid"),
        ({"token_endpoint_auth_method": "client_secret_basic"}, "gave none"),
        ({"token_endpoint_auth_method": "tls_client_auth"}, "not supported"),
    ],
)
def test_a_registration_that_is_refused(change: dict[str, object], why: str) -> None:
    with pytest.raises(OAuthProblem, match=why):
        read_registration(dump({"client_id": "c", **change}), REDIRECT, "none")


def test_the_best_common_authentication_is_used() -> None:
    assert choose_auth_method(["client_secret_post", "client_secret_basic"], has_secret=True) == "client_secret_basic"
    assert choose_auth_method(["client_secret_post"], has_secret=True) == "client_secret_post"
    assert choose_auth_method(["private_key_jwt"], has_secret=True) is None
    assert choose_auth_method(["client_secret_post"], has_secret=False) is None


# Tokens


@pytest.mark.parametrize(
    ("document", "tokens"),
    [
        ({}, Tokens("t", None, None, None)),
        ({"expires_in": 60, "refresh_token": "r", "scope": "a b"}, Tokens("t", "r", 60.0, ("a", "b"))),
        ({"expires_in": "60", "refresh_token": ""}, Tokens("t", None, 60.0, None)),
        ({"expires_in": "soon"}, Tokens("t", None, None, None)),
        ({"expires_in": 0}, Tokens("t", None, None, None)),
        ({"expires_in": -5}, Tokens("t", None, None, None)),
        ({"expires_in": 1e300, "scope": None}, Tokens("t", None, MAX_LIFETIME, None)),
        ({"expires_in": "nan"}, Tokens("t", None, None, None)),
    ],
)
def test_tokens_are_read(document: dict[str, object], tokens: Tokens) -> None:
    assert read_tokens(200, dump({"access_token": "t", "token_type": "bearer", **document})) == tokens


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"token_type": "DPoP"}, "another type"),
        ({"token_type": None}, "invalid"),
        ({"access_token": ""}, "invalid"),
        ({"access_token": "a b"}, "invalid"),
        ({"access_token": "a\r\nX-Evil: 1"}, "invalid"),
        ({"access_token": "x" * 20_000}, "invalid"),
        ({"refresh_token": "a\nb"}, "invalid"),
        ({"refresh_token": 5}, "invalid"),
    ],
)
def test_tokens_that_are_refused(document: dict[str, object], why: str) -> None:
    with pytest.raises(OAuthProblem, match=why) as caught:
        read_tokens(200, dump({"access_token": "t", "token_type": "Bearer", **document}))
    assert "Evil" not in str(caught.value)


def test_an_error_is_named_only_by_a_standard_code() -> None:
    with pytest.raises(TokenRefused) as caught:
        read_tokens(400, dump({"error": "invalid_grant", "error_description": "the token tok3n is bad"}))
    assert caught.value.error == "invalid_grant"
    assert "tok3n" not in str(caught.value)
    for body in (b"", b"[]", b"tok3n", dump({"error": "tok3n"}), dump({"error": 5}), b"[" * 100_000):
        assert error_code(body) == ""


@pytest.mark.parametrize("deep", [b"[" * 60_000, b'{"issuer":' * 6_000, b'{"x":' * 6_000 + b"1" + b"}" * 6_000])
def test_a_deep_document_is_refused(deep: bytes) -> None:
    for read in (
        lambda: read_resource(deep, SERVER),
        lambda: read_issuer(deep, ISSUER, Zone.PUBLIC),
        lambda: read_registration(deep, REDIRECT, "none"),
        lambda: read_tokens(200, deep),
    ):
        with pytest.raises(OAuthProblem, match="invalid"):
            read()


@given(st.binary())
def test_any_bytes_are_refused_in_our_own_words(data: bytes) -> None:
    for read in (
        lambda: read_resource(data, SERVER),
        lambda: read_issuer(data, ISSUER, Zone.PUBLIC),
        lambda: read_registration(data, REDIRECT, "none"),
        lambda: read_tokens(200, data),
        lambda: read_tokens(500, data),
    ):
        with pytest.raises(OAuthProblem):
            read()
