"""The forms for a token endpoint, and the three ways of authentication in them."""

from __future__ import annotations

from base64 import b64decode
from urllib.parse import parse_qs

import pytest

from host.oauth.documents import ClientRegistration
from host.oauth.token_forms import (
    Form,
    RefreshForm,
    TokenClient,
    client_credentials_form,
    code_form,
    refresh_form,
    revocation_form,
)
from tests.host.oauth.test_assertion import EC, claims, pem
from tests.host.oauth.test_authorization import request
from tests.host.oauth.test_documents import ISSUER, REDIRECT

PUBLIC = TokenClient(ClientRegistration("client"), ISSUER, 5.0)
RESOURCE = "https://mcp.example/v1/mcp"


def fields(form: Form) -> dict[str, str]:
    assert (b"Content-Type", b"application/x-www-form-urlencoded") in form.headers
    return {name: text for name, (text,) in parse_qs(form.body.decode()).items()}


def test_a_code_goes_with_its_verifier_and_resource() -> None:
    made = request()
    assert fields(code_form(made, "c&d", PUBLIC)) == {
        "grant_type": "authorization_code",
        "code": "c&d",
        "redirect_uri": REDIRECT,
        "code_verifier": made.verifier,
        "resource": RESOURCE,
        "client_id": "client",
    }


@pytest.mark.parametrize(
    ("form", "scopes", "more"),
    [
        (RefreshForm(), ("a", "b"), {"resource": RESOURCE}),
        (RefreshForm(has_scope=True), ("a", "b"), {"resource": RESOURCE, "scope": "a b"}),
        (RefreshForm(has_scope=True), (), {"resource": RESOURCE}),
        (RefreshForm(has_scope=True, has_resource=False), ("a",), {"scope": "a"}),
    ],
)
def test_a_refresh_names_the_resource_and_the_scope_where_it_has_to(
    form: RefreshForm, scopes: tuple[str, ...], more: dict[str, str]
) -> None:
    usual = {"grant_type": "refresh_token", "refresh_token": "r", "client_id": "client"}
    assert fields(refresh_form("r", RESOURCE, scopes, form, PUBLIC)) == {**usual, **more}


def test_the_other_form_of_a_refresh() -> None:
    """`resource` is kept as long as nothing speaks against it: the token is bound to it."""
    usual = RefreshForm()
    others = {
        ("", True): RefreshForm(has_scope=True),
        ("scope is missing", True): RefreshForm(has_scope=True),
        ("Resource not allowed", True): RefreshForm(has_scope=True, has_resource=False),
        ("", False): RefreshForm(has_resource=False),
    }
    for (said, knows_scopes), other in others.items():
        assert usual.other(said, knows_scopes=knows_scopes) == other
        assert other.other(said, knows_scopes=knows_scopes) == usual


@pytest.mark.parametrize(("scopes", "sent"), [((), None), (("a", "b"), "a b")])
def test_a_client_asks_for_itself(scopes: tuple[str, ...], sent: str | None) -> None:
    form = fields(client_credentials_form(RESOURCE, scopes, PUBLIC))
    assert (form["grant_type"], form.get("scope")) == ("client_credentials", sent)


def test_a_revocation_says_what_it_is_about() -> None:
    assert fields(revocation_form("t", "refresh_token", PUBLIC)) == {
        "token": "t",
        "token_type_hint": "refresh_token",
        "client_id": "client",
    }


def test_a_secret_is_in_the_header_or_in_the_form() -> None:
    basic = refresh_form(
        "r",
        RESOURCE,
        (),
        RefreshForm(),
        TokenClient(ClientRegistration("a:b", "s&%", "client_secret_basic"), ISSUER, 5.0),
    )
    (pair,) = (value for name, value in basic.headers if name == b"Authorization")
    assert b64decode(pair.removeprefix(b"Basic ")) == b"a%3Ab:s%26%25"
    assert "client_id" not in fields(basic)
    post = refresh_form(
        "r",
        RESOURCE,
        (),
        RefreshForm(),
        TokenClient(ClientRegistration("a:b", "s&%", "client_secret_post"), ISSUER, 5.0),
    )
    assert (fields(post)["client_id"], fields(post)["client_secret"]) == ("a:b", "s&%")
    assert not [name for name, _ in post.headers if name == b"Authorization"]


def test_a_secret_of_a_client_without_authentication_stays_here() -> None:
    form = refresh_form(
        "r", RESOURCE, (), RefreshForm(), TokenClient(ClientRegistration("c", "s3cret", "none"), ISSUER, 5.0)
    )
    assert "s3cret" not in str(form)


def test_a_private_key_signs_an_assertion_and_stays_here() -> None:
    key = pem(EC)
    form = fields(
        refresh_form(
            "r", RESOURCE, (), RefreshForm(), TokenClient(ClientRegistration("c", key, "private_key_jwt"), ISSUER, 5.0)
        )
    )
    assert form["client_assertion_type"] == "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
    assert claims(form["client_assertion"])["aud"] == ISSUER
    assert (form["client_id"], "client_secret" in form) == ("c", False)
    assert "PRIVATE KEY" not in str(form)
