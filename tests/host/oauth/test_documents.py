"""The documents of servers and issuers: what they must have, and everything in them that is refused."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from config import Zone
from host.oauth.documents import (
    MAX_LIFETIME,
    ClientRegistration,
    TokenRefused,
    Tokens,
    UnusableTokens,
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
    same_issuer,
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
    ("resource", "shown"),
    [
        ("https://other.example/v1/mcp", " (https://other.example/v1/mcp): set url to that one"),
        ("https://mcp.example/v1\x1b[2J", ": set url to that one"),
        ("https://other.example/" + "v" * 200, ": set url to that one"),
    ],
)
def test_the_resource_that_the_metadata_are_about_is_shown_if_it_is_a_plain_url(resource: str, shown: str) -> None:
    with pytest.raises(OAuthProblem) as caught:
        read_resource(dump({"resource": resource, "authorization_servers": [ISSUER]}), SERVER)
    assert f"than its url{shown}" in str(caught.value)


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


SPELLINGS = [
    ("https://a.example", "https://a.example/", True),
    ("http://a.example:8443/", "http://a.example:8443", True),
    ("https://a.example/t", "https://a.example/t/", False),
    ("https://a.example/", "https://a.example//", False),
    ("https://a.example", "https://a.example//", False),
    ("https://a.example/", "https://b.example/", False),
    ("https://a.example/", "http://a.example", False),
    ("https://a.example/", "https://a.example:443", False),
    ("https://a.example/", "https://A.example", False),
    ("https://a.example/", "", False),
]


@pytest.mark.parametrize(("one", "other", "is_same"), SPELLINGS)
def test_an_issuer_without_a_path_is_one_with_and_without_its_slash(one: str, other: str, *, is_same: bool) -> None:
    assert same_issuer(one, other) is same_issuer(other, one) is is_same


@pytest.mark.parametrize(("named", "written"), [("", "/"), ("/", ""), ("/", "/")])
def test_the_text_of_the_metadata_is_the_identifier(named: str, written: str) -> None:
    """Google's servers name an issuer with a slash that its metadata do not have."""
    metadata = dump({**METADATA, "issuer": f"https://login.example{written}"})
    assert read_issuer(metadata, f"https://login.example{named}", Zone.PUBLIC).id == f"https://login.example{written}"


@pytest.mark.parametrize("named", ["https://other.example/", "http://login.example/", "https://login.example/x/"])
def test_a_slash_makes_no_other_issuer_the_same(named: str) -> None:
    with pytest.raises(OAuthProblem, match="another issuer"):
        read_issuer(dump({**METADATA, "issuer": "https://login.example"}), named, Zone.PUBLIC)


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
    assert (public.client_secret, public.auth_method) == ("s", "none"), "kept, and not sent as long as none is taken"
    assert public.with_secret_in_form() == msgspec.structs.replace(public, auth_method="client_secret_post")
    assert found.with_secret_in_form() is None
    empty = read_registration(dump({"client_id": "c", "client_secret": ""}), REDIRECT, "none")
    assert empty.with_secret_in_form() is None, "the same request would be sent twice"
    text = read_registration(dump({"client_id": "c", "client_secret_expires_at": "5"}), REDIRECT, "none")
    assert text.secret_expires == 5
    assert read_registration(dump({"client_id": "c"}), REDIRECT, "client_secret_basic").auth_method == "none"
    more = {"client_id": "c", "redirect_uris": ["https://a.example/", REDIRECT, "http://localhost/"]}
    assert read_registration(dump(more), REDIRECT, "none").redirect_uri == REDIRECT
    fewer = read_registration(dump({"client_id": "c", "scope": "a"}), REDIRECT, "none", ("a", "b"))
    assert fewer.scopes == ("a", "b"), "another registration would get no more"


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"redirect_uris": ["https://evil.example/"]}, "another redirect"),
        ({"redirect_uris": [f"{REDIRECT}/", REDIRECT.replace("4711", "4712")]}, "another redirect"),
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


@pytest.mark.parametrize("kind", ["bearer", "Bearer", "BEARER", "user", "bot", "Bot"])
def test_types_of_tokens_that_are_sent_as_bearer(kind: str) -> None:
    """Slack has types of its own."""
    assert read_tokens(200, dump({"ok": True, "access_token": "t", "token_type": kind})).access_token == "t"


@pytest.mark.parametrize(
    ("document", "error"),
    [
        ({"error": "invalid_client"}, "invalid_client"),
        ({"error": "bad_refresh_token", "error_uri": "https://docs.example"}, "bad_refresh_token"),
        ({"ok": False, "error": "invalid_refresh_token"}, "invalid_refresh_token"),
        ({"ok": False}, ""),
        ({"error": {"code": 5}}, ""),
        ({"error": "tok3n"}, ""),
        ({"error": "invalid_grant", "access_token": "t", "token_type": "Bearer"}, "invalid_grant"),
        ({"ok": False, "access_token": "t", "token_type": "Bearer"}, ""),
    ],
)
def test_an_error_is_a_refusal_whatever_its_status(document: dict[str, object], error: str) -> None:
    """GitHub and Slack answer with HTTP 200. A token beside an error is not used."""
    for status in (200, 400, 401):
        with pytest.raises(TokenRefused) as caught:
            read_tokens(status, dump(document))
        assert caught.value.error == error


@pytest.mark.parametrize("nothing", [{"error": None}, {"error": ""}, {"ok": None}, {"ok": True}, {"ok": 0}])
def test_an_error_that_says_nothing_is_none(nothing: dict[str, object]) -> None:
    assert read_tokens(200, dump({"access_token": "t", "token_type": "Bearer", **nothing})).access_token == "t"


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ({"token_type": "DPoP"}, "another type"),
        ({"token_type": "mac"}, "another type"),
        ({"token_type": "N_A"}, "another type"),
        ({"token_type": "superuser"}, "another type"),
        ({"token_type": "user "}, "another type"),
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


@pytest.mark.parametrize(
    ("answer", "tokens"),
    [
        (b"access_token=t&scope=repo%2Cgist&token_type=bearer", Tokens("t", None, None, ("repo", "gist"))),
        (b"access_token=t&token_type=bearer&expires_in=60&refresh_token=r&scope=", Tokens("t", "r", 60, ())),
        (dump({"access_token": "t", "token_type": "user", "scope": "a,b c"}), Tokens("t", None, None, ("a,b", "c"))),
        (
            dump({"ok": True, "refresh_token": "r", "authed_user": {"access_token": "t", "token_type": "user"}}),
            Tokens("t", "r", None, None),
        ),
        (
            dump(
                {"access_token": "t", "token_type": "bot", "authed_user": {"access_token": "u", "refresh_token": "v"}}
            ),
            Tokens("t", None, None, None),
        ),
    ],
)
def test_tokens_in_the_form_of_a_product(answer: bytes, tokens: Tokens) -> None:
    """GitHub answers with a form and commas; Slack puts the token of a person one level deeper."""
    assert read_tokens(200, answer) == tokens


@pytest.mark.parametrize(
    "answer",
    [
        b"access_token=t&access_token=u&token_type=bearer",
        b"access_token=t%0d%0aX-Evil:1&token_type=bearer",
        b"access_token=t&token_type=mac",
        b"access_token=t",
        b"access_token=t;token_type=bearer",
        b"<p>access_token=t&token_type=bearer",
        b"&".join([b"access_token=t&token_type=bearer", *(b"%d=1" % n for n in range(100))]),
        dump({"authed_user": {"authed_user": {"access_token": "t", "token_type": "user"}}}),
        dump({"authed_user": {"access_token": "t", "token_type": "mac"}}),
    ],
)
def test_no_tokens_in_another_form(answer: bytes) -> None:
    with pytest.raises(OAuthProblem):
        read_tokens(200, answer)


@pytest.mark.parametrize(
    ("body", "is_about_client"),
    [
        (dump({"error": "invalid_client"}), True),
        (dump({"error": "unauthorized_client"}), True),
        (dump({"message": "Required parameter: client_secret"}), True),
        (dump({"error": "invalid_request", "error_description": "client_secret is missing"}), True),
        (dump({"error": "invalid_request"}), False),
        (dump({"error": "invalid_grant"}), False),
        (dump({"error": "invalid_scope"}), False),
    ],
)
def test_a_refusal_may_be_about_the_client(body: bytes, is_about_client: bool) -> None:
    assert TokenRefused(body).is_about_client is is_about_client


def test_an_error_in_a_form_is_one() -> None:
    with pytest.raises(TokenRefused) as caught:
        read_tokens(200, b"error=bad_refresh_token&error_description=no&access_token=t&token_type=bearer")
    assert caught.value.error == "bad_refresh_token"


@pytest.mark.parametrize(
    ("written", "named", "is_one"),
    [
        ("https://login.example/{tenantid}/v2.0", "https://login.example/common/v2.0", True),
        ("https://login.example/{tenantid}/v2.0", "https://login.example/a/b/v2.0", False),
        ("https://login.example/{tenantid}/v2.0", "https://login.example/common/v1.0", False),
        ("https://login.example/{tenantid}/v2.0", "https://evil.example/common/v2.0", False),
        ("https://{tenantid}/v2.0", "https://login.example/v2.0", False),
        ("{tenantid}", "https://login.example/common/v2.0", False),
        ("https://login.example/{tenantid}/{tenantid}", "https://login.example/a/b", False),
    ],
)
def test_a_tenant_that_only_the_login_decides(written: str, named: str, is_one: bool) -> None:
    """Entra's metadata of `common` have a literal {tenantid}. The name stays that by which they were found."""
    data = dump({**METADATA, "issuer": written})
    if is_one:
        assert read_issuer(data, named, Zone.PUBLIC).id == named
    else:
        with pytest.raises(OAuthProblem, match="those of another issuer"):
            read_issuer(data, named, Zone.PUBLIC)


@pytest.mark.parametrize(
    "data", [b"access_token=s3cret&access_token=s3cret", b'"s3cret"', b'{"access_token": "s3cret"}']
)
def test_an_answer_that_cannot_be_used_is_not_repeated(data: bytes) -> None:
    """It may hold a token."""
    with pytest.raises(UnusableTokens) as caught:
        read_tokens(200, data)
    assert "s3cret" not in str(caught.value) + caught.value.said


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
