"""The documents of protected resources and authorization servers, read strictly: RFC 9728, RFC 8414 and OpenID Connect
Discovery, RFC 7591, and the answers of a token endpoint (RFC 6749, 5).

Members that are not needed are ignored. What is needed has to have the right type and content; otherwise the document
is refused as a whole, in our own words.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import TypeVar

import msgspec

from config import Zone
from host.oauth.addresses import check_url
from host.oauth.challenge import split_scopes
from host.oauth.problem import OAuthProblem
from host.url import Url

MAX_TOKEN = 16 * 1024
"""Characters of a token; longer ones fit into no header that servers accept."""
MAX_LIFETIME = 10 * 365 * 86400.0

_MAX_URL = 2048
_TOKEN = re.compile(r"[\x21-\x7e]+")
# An issuer has no query and no fragment (RFC 8414, 2), and it is shown to people.
_IDENTIFIER = re.compile(r"https?://[A-Za-z0-9.\-:\[\]]+(?:/[A-Za-z0-9._~%:@!$&'()*+,;=/-]*)?")
_ERRORS = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
        *("invalid_scope", "access_denied", "unsupported_response_type", "server_error", "temporarily_unavailable"),
        *("invalid_target", "invalid_redirect_uri", "invalid_client_metadata"),
        *("interaction_required", "login_required", "consent_required"),
    }
)
"""Codes of RFC 6749, RFC 7591, RFC 8707 and OpenID Connect; no other text of an issuer is repeated."""

_T = TypeVar("_T")


@dataclass(frozen=True, slots=True)
class ProtectedResource:
    """The metadata of a protected resource. `scopes`: None if it does not say which there are."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] | None


@dataclass(frozen=True, slots=True)
class Issuer:
    """The metadata of an authorization server, whose issuer identifier is `id`.

    `sends_iss`: each authorization answer names the issuer (RFC 9207, 3)."""

    id: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None
    revocation_endpoint: str | None
    token_auth_methods: tuple[str, ...]
    scopes: tuple[str, ...]
    sends_iss: bool
    takes_client_urls: bool


class ClientRegistration(msgspec.Struct, frozen=True):
    """A client as an authorization server knows it. `auth_method`: how it authenticates at the token endpoint;
    `client_secret`: its secret, or with private_key_jwt its private key; `secret_expires`: Unix time, 0 if it does not;
    `is_dynamic`: it was registered by Colonnade; `scopes`: those of its registration, None if they were not kept. Many
    issuers give a client no others (RFC 7591, 2)."""

    client_id: str
    client_secret: str | None = None
    auth_method: str = "none"
    redirect_uri: str = ""
    secret_expires: float = 0
    is_dynamic: bool = False
    scopes: tuple[str, ...] | None = None


@dataclass(frozen=True, slots=True)
class Tokens:
    """The answer of a token endpoint. `lifetime` in seconds and `scopes` are None where it does not say."""

    access_token: str
    refresh_token: str | None
    lifetime: float | None
    scopes: tuple[str, ...] | None


class TokenRefused(OAuthProblem):
    """The token endpoint refused the request. `error`: its code, empty if it is none of the standards'."""

    def __init__(self, error: str) -> None:
        why = error or "for a reason that it did not name"
        super().__init__(f"the issuer refused the request ({why}){advice(error)}")
        self.error = error


class _ResourceDocument(msgspec.Struct):
    resource: str
    authorization_servers: list[str] | None = None
    scopes_supported: list[str] | None = None


class _IssuerDocument(msgspec.Struct):
    issuer: str
    authorization_endpoint: str | None = None
    token_endpoint: str | None = None
    registration_endpoint: str | None = None
    revocation_endpoint: str | None = None
    response_types_supported: list[str] | None = None
    code_challenge_methods_supported: list[str] | None = None
    token_endpoint_auth_methods_supported: list[str] | None = None
    scopes_supported: list[str] | None = None
    authorization_response_iss_parameter_supported: bool | None = None
    client_id_metadata_document_supported: bool | None = None


class _RegistrationDocument(msgspec.Struct):
    client_id: str
    client_secret: str | None = None
    client_secret_expires_at: float | None = None
    token_endpoint_auth_method: str | None = None
    redirect_uris: list[str] | None = None


class _TokenDocument(msgspec.Struct):
    access_token: str
    token_type: str
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


class _ErrorDocument(msgspec.Struct):
    error: str


def resource_urls(server: Url, named: str) -> Iterator[Url]:
    """The places of a server's resource metadata, in the order in which to try them.

    Args:
        named: `resource_metadata` of the challenge. If it is given, there is no other place (2025-11-25, "Protected
            Resource Metadata Discovery Requirements").

    Raises:
        OAuthProblem: the named place is no URL, or not at the server's own origin. RFC 9728 has metadata there only.
    """
    if named:
        url = _same_origin(server, named)
        if url is None:
            raise OAuthProblem("the server names resource metadata that are not at its own address")
        yield url
        return
    base = "/.well-known/oauth-protected-resource"
    if server.path.strip("/"):
        yield server.join(base + server.path)
    yield server.join(base)


def _same_origin(server: Url, reference: str) -> Url | None:
    try:
        url = server.join(reference)
    except ValueError:
        return None
    return url if url.origin == server.origin and not url.userinfo else None


def read_resource(data: bytes, server: Url) -> ProtectedResource:
    """Read the metadata of a protected resource.

    Raises:
        OAuthProblem: they are invalid, name no issuer, or are about another resource than the server (RFC 9728, 3.3).
    """
    document = _decode(data, _ResourceDocument, "the server's resource metadata are invalid")
    if not covers(server, document.resource):
        raise OAuthProblem("the server's resource metadata are about another resource than its url")
    issuers = document.authorization_servers or []
    if not issuers:
        raise OAuthProblem("the server's resource metadata name no issuer")
    scopes = document.scopes_supported
    return ProtectedResource(
        document.resource,
        tuple(check_issuer_id(each) for each in issuers),
        None if scopes is None else split_scopes(" ".join(scopes)),
    )


def covers(server: Url, resource: str) -> bool:
    """Whether a resource identifier is that of the server, or of something above it at the same origin."""
    if not resource or len(resource) > _MAX_URL or "#" in resource:
        return False
    try:
        url = Url.parse(resource)
    except ValueError:
        return False
    within = f"{server.path}/".startswith(f"{url.path.rstrip('/')}/")
    return url.origin == server.origin and not url.userinfo and within and url.query in (None, server.query)


def canonical_resource(server: Url) -> str:
    """The resource identifier of a server that names none: its URL without user and query, and without a slash at the
    end if that is all of the path (2025-11-25, "Canonical Server URI")."""
    return f"{server.scheme}://{server.authority}{'' if server.path == '/' else server.path}"


def check_issuer_id(text: str) -> str:
    """An issuer identifier, if it is a plain URL.

    Raises:
        OAuthProblem: it is none.
    """
    if len(text) <= _MAX_URL and _IDENTIFIER.fullmatch(text):
        with suppress(ValueError):
            Url.parse(text)
            return text
    raise OAuthProblem("the issuer that the server names is no plain URL")


def issuer_urls(issuer: str) -> Iterator[Url]:
    """The places of an authorization server's metadata, in the order in which to try them (2025-11-25, "Authorization
    Server Metadata Discovery")."""
    url = Url.parse(issuer)
    path = url.path.rstrip("/")
    yield url.join(f"/.well-known/oauth-authorization-server{path}")
    yield url.join(f"/.well-known/openid-configuration{path}")
    if path:
        yield url.join(f"{path}/.well-known/openid-configuration")


def read_issuer(data: bytes, issuer: str, home: Zone) -> Issuer:
    """Read the metadata of an authorization server.

    Args:
        issuer: the identifier by which the metadata were found.
        home: the zone of the configured server.

    Raises:
        OAuthProblem: they are invalid, are of another issuer (RFC 8414, 3.3), have a URL that may not be used, or do
            not offer PKCE with S256 (2025-11-25, "Authorization Code Protection").
    """
    document = _decode(data, _IssuerDocument, f"the metadata of the issuer {issuer} are invalid")
    if document.issuer != issuer:
        raise OAuthProblem(f"the metadata at the issuer {issuer} are those of another issuer")
    if not document.authorization_endpoint or not document.token_endpoint:
        raise OAuthProblem(f"the issuer {issuer} names no authorization or no token endpoint")
    if "S256" not in (document.code_challenge_methods_supported or ()):
        raise OAuthProblem(f"the issuer {issuer} does not offer PKCE with S256, without which a login is not safe")
    if document.response_types_supported is not None and "code" not in document.response_types_supported:
        raise OAuthProblem(f"the issuer {issuer} does not offer the authorization code grant")
    return Issuer(
        issuer,
        _endpoint(document.authorization_endpoint, home),
        _endpoint(document.token_endpoint, home),
        _endpoint(document.registration_endpoint, home) if document.registration_endpoint else None,
        _endpoint(document.revocation_endpoint, home) if document.revocation_endpoint else None,
        tuple(document.token_endpoint_auth_methods_supported or ("client_secret_basic",)),
        split_scopes(" ".join(document.scopes_supported or ())),
        bool(document.authorization_response_iss_parameter_supported),
        bool(document.client_id_metadata_document_supported),
    )


def _endpoint(text: str, home: Zone) -> str:
    if len(text) > _MAX_URL or "#" in text:
        raise OAuthProblem("a URL of the issuer is invalid")
    try:
        url = Url.parse(text)
    except ValueError:
        raise OAuthProblem("a URL of the issuer is invalid") from None
    check_url(url, home)
    return str(url)


def registration_request(redirect_uri: str, scopes: Sequence[str], auth_methods: Sequence[str]) -> dict[str, object]:
    """The metadata with which Colonnade registers itself (RFC 7591, 2). It is a native application, which is the only
    kind that may have a redirect to loopback (2026-07-28, "Application Type and Redirect URI Constraints").

    Args:
        auth_methods: those of the token endpoint. A public client is registered unless there is no such method.
    """
    method = choose_auth_method(auth_methods, has_secret=False) or choose_auth_method(auth_methods, has_secret=True)
    request: dict[str, object] = {
        "client_name": "Colonnade",
        "application_type": "native",
        "redirect_uris": [redirect_uri],
        "grant_types": ["authorization_code", "refresh_token"],
        "response_types": ["code"],
        "token_endpoint_auth_method": method or "client_secret_basic",
    }
    if scopes:
        request["scope"] = " ".join(scopes)
    return request


def choose_auth_method(supported: Sequence[str], *, has_secret: bool) -> str | None:
    """The best method of client authentication that both sides have. None if there is none, or if it needs a secret
    that is not there yet."""
    if has_secret:
        known = ("client_secret_basic", "client_secret_post")
        return next((each for each in known if each in supported), None)
    return "none" if "none" in supported else None


def read_registration(
    data: bytes, redirect_uri: str, asked_method: str, scopes: tuple[str, ...] = ()
) -> ClientRegistration:
    """Read the answer of a registration endpoint.

    Args:
        scopes: those that were asked for. An issuer that registered fewer would do so again.

    Raises:
        OAuthProblem: it is invalid, or names other redirects than the one that was asked for.
    """
    what = "the issuer's answer to the registration is invalid"
    document = _decode(data, _RegistrationDocument, what)
    if document.redirect_uris is not None and document.redirect_uris != [redirect_uri]:
        raise OAuthProblem("the issuer registered another redirect than the one that was asked for")
    method = document.token_endpoint_auth_method or asked_method
    if method not in ("none", "client_secret_basic", "client_secret_post"):
        raise OAuthProblem("the issuer wants a way of authentication for its clients that is not supported")
    for text in (document.client_id, document.client_secret or "x"):
        if not text or len(text) > MAX_TOKEN or not text.isprintable() or not text.isascii():
            raise OAuthProblem(what)
    if method != "none" and document.client_secret is None:
        raise OAuthProblem("the issuer registered a client that needs a secret, and gave none")
    secret = None if method == "none" else document.client_secret
    expires = document.client_secret_expires_at or 0
    return ClientRegistration(document.client_id, secret, method, redirect_uri, expires, is_dynamic=True, scopes=scopes)


def read_tokens(status: int, data: bytes) -> Tokens:
    """Read the answer of a token endpoint.

    Raises:
        TokenRefused: it is an error.
        OAuthProblem: it is invalid, or the token is no bearer token.
    """
    if status != 200:
        raise TokenRefused(error_code(data))
    what = "the issuer's answer to the token request is invalid"
    document = _decode(data, _TokenDocument, what)
    if document.token_type.lower() != "bearer":
        raise OAuthProblem("the issuer gave a token of another type than Bearer")
    for token in (document.access_token, document.refresh_token or "x"):
        if len(token) > MAX_TOKEN or not _TOKEN.fullmatch(token):
            raise OAuthProblem(what)
    scopes = None if document.scope is None else split_scopes(document.scope)
    return Tokens(document.access_token, document.refresh_token or None, _lifetime(document.expires_in), scopes)


def _lifetime(expires_in: float | str | None) -> float | None:
    """Seconds; some issuers write them as text. What is no number is not known."""
    try:
        seconds = float(expires_in) if expires_in is not None else -1.0
    except ValueError:
        return None
    return min(seconds, MAX_LIFETIME) if seconds > 0 else None


def error_code(data: bytes) -> str:
    """The code in an error document (RFC 6749, 5.2); empty if there is none, or one of no standard."""
    try:
        return known_error(msgspec.json.decode(data, type=_ErrorDocument).error)
    except (ValueError, RecursionError):
        return ""


def known_error(code: str) -> str:
    """The code if it is one of the standards, else nothing."""
    return code if code in _ERRORS else ""


def advice(code: str) -> str:
    """The remedy of a person for an error code, as the end of a sentence; empty if none is known."""
    if code != "invalid_scope":
        return ""
    return (
        ": it does not give the client these scopes. Permit the client to have them there; or log out, set "
        "oauth.scopes to those that it may have, and log in"
    )


def _decode(data: bytes, kind: type[_T], what: str) -> _T:
    try:
        return msgspec.json.decode(data, type=kind)
    except (ValueError, RecursionError):  # msgspec's errors are ValueErrors, and quote the document
        raise OAuthProblem(what) from None
