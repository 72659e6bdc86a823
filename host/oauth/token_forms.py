"""The forms that a client posts to an authorization server, with its authentication (RFC 6749, 2.3 and 4 to 6; RFC
7009; RFC 7523)."""

from __future__ import annotations

from base64 import b64encode
from collections.abc import Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote_plus, urlencode

from host.oauth.assertion import client_assertion
from host.oauth.authorization import AuthorizationRequest
from host.oauth.documents import ClientRegistration

_ASSERTION_TYPE = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"


class TokenClient(NamedTuple):
    """The client that posts a form to this issuer, at this Unix time."""

    client: ClientRegistration
    issuer: str
    now: float


class Form(NamedTuple):
    """The body of a POST, and the headers that belong to it."""

    headers: list[tuple[bytes, bytes]]
    body: bytes


def code_form(request: AuthorizationRequest, code: str, caller: TokenClient) -> Form:
    """Exchange an authorization code for tokens."""
    return _form(
        caller,
        {
            "grant_type": "authorization_code",
            "code": code,
            "redirect_uri": request.redirect_uri,
            "code_verifier": request.verifier,
            "resource": request.resource,
        },
    )


class RefreshForm(NamedTuple):
    """The optional members of a refresh. Without a scope it stays that of the login (RFC 6749, 6)."""

    has_scope: bool = False
    has_resource: bool = True

    def other(self, said: str, *, knows_scopes: bool) -> RefreshForm:
        """The form to try after this one was refused as invalid. Some issuers demand the scope (Entra); `resource` is
        kept unless the refusal speaks of it, or there is nothing else to change."""
        usual = RefreshForm()
        keeps_resource = knows_scopes and "resource" not in said.lower()
        return RefreshForm(knows_scopes, keeps_resource) if self == usual else usual


def refresh_form(
    refresh_token: str, resource: str, scopes: Sequence[str], form: RefreshForm, caller: TokenClient
) -> Form:
    """Exchange a refresh token.

    Args:
        scopes: those that the login asked for.
    """
    fields = {"grant_type": "refresh_token", "refresh_token": refresh_token}
    if form.has_resource:
        fields["resource"] = resource
    if form.has_scope and scopes:
        fields["scope"] = " ".join(scopes)
    return _form(caller, fields)


def client_credentials_form(resource: str, scopes: Sequence[str], caller: TokenClient) -> Form:
    """Request a token for the client itself (RFC 6749, 4.4)."""
    fields = {"grant_type": "client_credentials", "resource": resource}
    if scopes:
        fields["scope"] = " ".join(scopes)
    return _form(caller, fields)


def revocation_form(token: str, hint: str, caller: TokenClient) -> Form:
    """Revoke a token. `hint`: access_token or refresh_token."""
    return _form(caller, {"token": token, "token_type_hint": hint})


def _form(caller: TokenClient, fields: Mapping[str, str]) -> Form:
    """Empty members, such as a resource that is not to be named, are left out."""
    client = caller.client
    headers = [(b"Content-Type", b"application/x-www-form-urlencoded"), (b"Accept", b"application/json")]
    more = {"client_id": client.client_id}
    if client.client_secret is not None and client.auth_method == "client_secret_basic":
        # Both parts are encoded as in a form first (RFC 6749, 2.3.1).
        pair = f"{quote_plus(client.client_id)}:{quote_plus(client.client_secret)}"
        headers.append((b"Authorization", b"Basic " + b64encode(pair.encode("ascii"))))
        more = {}
    elif client.client_secret is not None and client.auth_method == "private_key_jwt":
        more["client_assertion_type"] = _ASSERTION_TYPE
        more["client_assertion"] = client_assertion(client.client_id, caller.issuer, client.client_secret, caller.now)
    elif client.client_secret is not None and client.auth_method == "client_secret_post":
        more["client_secret"] = client.client_secret
    return Form(headers, urlencode({name: text for name, text in {**fields, **more}.items() if text}).encode("ascii"))
