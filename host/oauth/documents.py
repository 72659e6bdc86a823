"""The documents of protected resources and authorization servers, read strictly: RFC 9728, RFC 8414 and OpenID Connect
Discovery, RFC 7591, and the answers of a token endpoint (RFC 6749, 5).

Members that are not needed are ignored. What is needed has to have the right type and content; otherwise the document
is refused as a whole, in our own words.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Sequence
from contextlib import suppress
from typing import TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from config import OAuth, Pkce, Zone
from host.oauth.addresses import check_url
from host.oauth.challenge import split_scopes
from host.oauth.problem import OAuthProblem
from host.url import Url

MAX_TOKEN = 16 * 1024
"""Characters of a token; longer ones fit into no header that servers accept."""
MAX_LIFETIME = 10 * 365 * 86400.0

_MAX_URL = 2048
_MAX_SHOWN = 200
_TOKEN = re.compile(r"[\x21-\x7e]+")
# An issuer has no query and no fragment (RFC 8414, 2), and it is shown to people.
_IDENTIFIER = re.compile(r"https?://[A-Za-z0-9.\-:\[\]]+(?:/[A-Za-z0-9._~%:@!$&'()*+,;=/-]*)?")
_ERRORS = frozenset(
    {
        *("invalid_request", "invalid_client", "invalid_grant", "unauthorized_client", "unsupported_grant_type"),
        *("invalid_scope", "access_denied", "unsupported_response_type", "server_error", "temporarily_unavailable"),
        *("invalid_target", "invalid_redirect_uri", "invalid_client_metadata"),
        *("interaction_required", "login_required", "consent_required"),
        # Codes of GitHub and Slack, which answer with HTTP 200.
        *("bad_refresh_token", "bad_verification_code", "incorrect_client_credentials", "redirect_uri_mismatch"),
        *("invalid_refresh_token", "refresh_token_expired", "token_expired", "token_revoked"),
        *("invalid_code", "bad_client_secret", "invalid_client_id", "bad_redirect_uri"),
    }
)
"""Codes of RFC 6749, RFC 7591, RFC 8707 and OpenID Connect, and of two products."""
CLIENT_GONE = ("invalid_client", "incorrect_client_credentials", "invalid_client_id", "bad_client_secret")
"""Errors of a token endpoint that does not take the client (RFC 6749, 5.2; GitHub; Slack)."""
_BEARER_TYPES = frozenset({"bearer", "user", "bot"})
"""Types of tokens that are sent as Bearer. Slack has the last two (its documentation of `oauth.v2.user.access`)."""

PLAIN = OAuth()
"""The configuration of a login that has none."""

_T = TypeVar("_T")


class ProtectedResource(Struct, frozen=True):
    """The metadata of a protected resource. `scopes`: None if it does not say which there are."""

    resource: str
    issuers: tuple[str, ...]
    scopes: tuple[str, ...] | None


class Issuer(Struct, frozen=True):
    """The metadata of an authorization server, whose issuer identifier is `id`.

    `sends_iss`: each authorization answer names the issuer (RFC 9207, 3). `is_default`: it has no metadata, and its
    endpoints are those of 2025-03-26. `is_elsewhere`: it was found in the metadata of a server of 2025-03-26, which is
    another issuer by its address; no client of the configuration is used there."""

    id: str
    authorization_endpoint: str
    token_endpoint: str
    registration_endpoint: str | None
    revocation_endpoint: str | None
    token_auth_methods: tuple[str, ...]
    scopes: tuple[str, ...]
    sends_iss: bool
    takes_client_urls: bool
    is_default: bool = False
    is_elsewhere: bool = False

    @property
    def endpoints(self) -> tuple[str | None, ...]:
        return self.authorization_endpoint, self.token_endpoint, self.registration_endpoint, self.revocation_endpoint


class OtherIssuer(OAuthProblem):
    """The metadata at an issuer are those of another one. `named`: its identifier."""

    def __init__(self, issuer: str, named: str) -> None:
        super().__init__(f"the metadata at the issuer {issuer} are those of another issuer")
        self.named = named


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

    def with_secret_in_form(self) -> ClientRegistration | None:
        """The client that sends its secret as a member of the form (`client_secret_post`); None if it does so already,
        or has none. Figma gives a secret beside `none` and demands it; HubSpot takes one only there."""
        if not self.client_secret or self.auth_method not in ("none", "client_secret_basic"):
            return None
        return msgspec.structs.replace(self, auth_method="client_secret_post")


class Tokens(Struct, frozen=True):
    """The answer of a token endpoint. `lifetime` in seconds and `scopes` are None where it does not say."""

    access_token: str
    refresh_token: str | None
    lifetime: float | None
    scopes: tuple[str, ...] | None


class TokenRefused(OAuthProblem):
    """The token endpoint refused the request, with this body. `error`: its code, empty if it is an unknown one."""

    def __init__(self, body: bytes) -> None:
        self.error = error_code(body)
        why = self.error or "for a reason of its own"
        super().__init__(f"the issuer refused the request ({why}){advice(self.error)}", said_in(body))

    @property
    def is_about_client(self) -> bool:
        """Whether it may be about how the client authenticates. The Python SDK calls that unauthorized_client, and
        Supabase names the missing member in an error of its own."""
        return self.error in (*CLIENT_GONE, "unauthorized_client", "") or "client_secret" in self.said


class UnusableTokens(OAuthProblem):
    """The token endpoint answered with something else than an error, and nothing can be made of it. It is not repeated:
    it may hold a token."""


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
    client_secret_expires_at: float | str | None = None
    token_endpoint_auth_method: str | None = None
    redirect_uris: list[str] | None = None


class _TokenMembers(msgspec.Struct):
    access_token: str | None = None
    token_type: str = ""
    expires_in: float | str | None = None
    refresh_token: str | None = None
    scope: str | None = None


class _TokenDocument(_TokenMembers):
    """`authed_user`: where Slack puts the token of a person at the login."""

    authed_user: _TokenMembers | None = None


class _ErrorDocument(msgspec.Struct):
    """`ok`: false in an error of Slack."""

    error: object = None
    error_description: object = None
    ok: object = None


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
            raise OAuthProblem(
                f"the server names resource metadata that are not at its own address{_plain_url(named)}: tell it, or "
                "the proxy before it, the URL at which it is reached from here"
            )
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
        raise OAuthProblem(
            f"the server's resource metadata are about another resource than its url{_plain_url(document.resource)}: "
            "set url to that one if it is the server that you mean, or have the server name the url"
        )
    issuers = document.authorization_servers or []
    if not issuers:
        raise OAuthProblem("the server's resource metadata name no issuer")
    scopes = document.scopes_supported
    return ProtectedResource(
        document.resource,
        tuple(check_issuer_id(each) for each in issuers),
        None if scopes is None else split_scopes(" ".join(scopes)),
    )


def _plain_url(text: str) -> str:
    """A URL that the other side wrote, for a sentence: in brackets, or nothing if it is none that can be shown."""
    return f" ({text})" if len(text) <= _MAX_SHOWN and _IDENTIFIER.fullmatch(text) else ""


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


def same_issuer(one: str, other: str, names: Collection[str] = ()) -> bool:
    """Whether both name one issuer: they are equal, or differ in a slash that is the whole path (RFC 3986, 6.2.3), or
    both are among the names that a person says are those of one issuer.

    This holds between what a server names and the issuer's metadata, of which the text is the identifier then. `iss` of
    an answer is compared with that text exactly.
    """
    one, other = _without_empty_path(one), _without_empty_path(other)
    return one == other or {one, other} <= {*map(_without_empty_path, names)}


def _without_empty_path(issuer: str) -> str:
    return issuer[:-1] if issuer.endswith("/") and issuer.count("/") == 3 else issuer


def issuer_urls(issuer: str) -> Iterator[Url]:
    """The places of an authorization server's metadata, in the order in which to try them (2025-11-25, "Authorization
    Server Metadata Discovery")."""
    url = Url.parse(issuer)
    path = url.path.rstrip("/")
    yield url.join(f"/.well-known/oauth-authorization-server{path}")
    yield url.join(f"/.well-known/openid-configuration{path}")
    if path:
        yield url.join(f"{path}/.well-known/openid-configuration")


def read_issuer(data: bytes, issuer: str, home: Zone, oauth: OAuth = PLAIN) -> Issuer:
    """Read the metadata of an authorization server.

    Args:
        issuer: the identifier by which the metadata were found; see `same_issuer`.
        home: the zone of the configured server.
        oauth: the configuration of the login.

    Raises:
        OtherIssuer: they are of another issuer (RFC 8414, 3.3).
        OAuthProblem: they are invalid, have a URL that may not be used, or do not offer PKCE with S256 (2025-11-25,
            "Authorization Code Protection").
    """
    document = _decode(data, _IssuerDocument, f"the metadata of the issuer {issuer} are invalid")
    name = _of_tenant(document.issuer, issuer)
    if not same_issuer(name, issuer, oauth.issuers):
        raise OtherIssuer(issuer, document.issuer)
    if not document.authorization_endpoint or not document.token_endpoint:
        raise OAuthProblem(f"the issuer {issuer} names no authorization or no token endpoint")
    methods = document.code_challenge_methods_supported
    if not methods and oauth.pkce is Pkce.ASSUME:
        methods = ["S256"]
    if "S256" not in (methods or ()):
        remedy = "" if methods else "; if it knows PKCE and does not say so, set oauth.pkce: assume"
        raise OAuthProblem(
            f"the issuer {issuer} does not offer PKCE with S256, without which a login is not safe{remedy}"
        )
    if document.response_types_supported is not None and "code" not in document.response_types_supported:
        raise OAuthProblem(f"the issuer {issuer} does not offer the authorization code grant")
    return Issuer(
        name,
        _endpoint(document.authorization_endpoint, home),
        _endpoint(document.token_endpoint, home),
        _endpoint(document.registration_endpoint, home) if document.registration_endpoint else None,
        _endpoint(document.revocation_endpoint, home) if document.revocation_endpoint else None,
        tuple(document.token_endpoint_auth_methods_supported or ("client_secret_basic",)),
        split_scopes(" ".join(document.scopes_supported or ())),
        bool(document.authorization_response_iss_parameter_supported),
        bool(document.client_id_metadata_document_supported),
    )


def _of_tenant(written: str, issuer: str) -> str:
    """The name in an issuer's metadata. Entra writes `{tenantid}` there for a tenant that only the login decides, where
    the issuer has the segment `common`; it stands for no more than that segment."""
    before, found, after = written.partition("{tenantid}")
    tenant = issuer.removeprefix(before).removesuffix(after)
    is_segment = before.endswith("/") and before.count("/") > 2 and "/" not in tenant
    return issuer if found and is_segment and issuer == f"{before}{tenant}{after}" else written


def default_issuer(server: Url) -> Issuer:
    """The issuer that a server without any metadata is (2025-03-26, "Fallbacks for Servers without Metadata
    Discovery"): at its own origin. PKCE is a must in that revision ("OAuth Grant Types" and "Security")."""
    base = f"{server.scheme}://{server.authority}"
    methods = ("none", "client_secret_basic")
    return Issuer(
        base, f"{base}/authorize", f"{base}/token", f"{base}/register", None, methods, (), False, False, is_default=True
    )  # fmt: skip


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
        OAuthProblem: it is invalid, or the redirect that was asked for is not among those that it names.
    """
    what = "the issuer's answer to the registration is invalid"
    document = _decode(data, _RegistrationDocument, what)
    if document.redirect_uris is not None and redirect_uri not in document.redirect_uris:
        raise OAuthProblem("the issuer registered another redirect than the one that was asked for")
    # The default of the metadata is `client_secret_basic` (RFC 8414, 2); without a secret, the client is a public one.
    method = document.token_endpoint_auth_method or (asked_method if document.client_secret else "none")
    if method not in ("none", "client_secret_basic", "client_secret_post"):
        raise OAuthProblem("the issuer wants a way of authentication for its clients that is not supported")
    for text in (document.client_id, document.client_secret or "x"):
        if not text or len(text) > MAX_TOKEN or not text.isprintable() or not text.isascii():
            raise OAuthProblem(what)
    if method != "none" and document.client_secret is None:
        raise OAuthProblem("the issuer registered a client that needs a secret, and gave none")
    # A secret beside `none` is not sent, until the issuer refuses the client without it.
    expires = _number(document.client_secret_expires_at) or 0
    return ClientRegistration(
        document.client_id, document.client_secret, method, redirect_uri, expires, is_dynamic=True, scopes=scopes
    )


def read_tokens(status: int, data: bytes) -> Tokens:
    """Read the answer of a token endpoint. One with an error is a refusal, whatever its status and its other members.

    Raises:
        TokenRefused: it is an error.
        UnusableTokens: it is invalid, or the token is no bearer token.
    """
    data = _from_form(data)
    if status not in (200, 201) or _is_error(data):  # Supabase creates tokens
        raise TokenRefused(data)
    try:
        return _tokens(data)
    except OAuthProblem as problem:
        raise UnusableTokens(str(problem)) from None


def _tokens(data: bytes) -> Tokens:
    what = "the issuer's answer to the token request is invalid"
    document = _decode(data, _TokenDocument, what)
    token = document if document.access_token is not None or document.authed_user is None else document.authed_user
    access, refresh = token.access_token, token.refresh_token or document.refresh_token
    if access is None:
        raise OAuthProblem(what)
    if token.token_type.lower() not in _BEARER_TYPES:
        raise OAuthProblem("the issuer gave a token of another type than Bearer")
    for each in (access, refresh or "x"):
        if len(each) > MAX_TOKEN or not _TOKEN.fullmatch(each):
            raise OAuthProblem(what)
    return Tokens(access, refresh or None, _lifetime(token.expires_in), _granted(token.scope))


def _from_form(data: bytes) -> bytes:
    """An answer as JSON, if it is a form with each member once: GitHub and Facebook answer so."""
    if data.lstrip()[:1] in (b"{", b"<", b""):
        return data
    try:
        pairs = parse_qsl(data.decode("ascii"), keep_blank_values=True, strict_parsing=True, max_num_fields=64)
    except ValueError:
        return data
    members = dict(pairs)
    is_answer = len(members) == len(pairs) and not members.keys().isdisjoint(("access_token", "error"))
    return msgspec.json.encode(members) if is_answer else data


def _granted(scope: str | None) -> tuple[str, ...] | None:
    """The scopes of an answer. GitHub and Slack separate them with commas."""
    if scope is None:
        return None
    return split_scopes(scope if " " in scope else scope.replace(",", " "))


def _lifetime(expires_in: float | str | None) -> float | None:
    seconds = _number(expires_in)
    return None if seconds is None else min(seconds, MAX_LIFETIME)


def _number(written: float | str | None) -> float | None:
    """Seconds above zero; some issuers write them as text. What is no number is not known."""
    try:
        seconds = float(written) if written is not None else -1.0
    except ValueError:
        return None
    return seconds if seconds > 0 else None


def _is_error(data: bytes) -> bool:
    found = _error(data)
    return bool(found.error) or found.ok is False


def error_code(data: bytes) -> str:
    """The code in an error document (RFC 6749, 5.2); empty if there is none, or an unknown one."""
    code = _error(data).error
    return known_error(code) if isinstance(code, str) else ""


def said_in(body: bytes) -> str:
    """The words for a person in an issuer's error: its description, and its code if that is an unknown one; or all of
    a plain text."""
    found = _error(body)
    said = said_about(found.error, found.error_description)
    return said if said or body.lstrip()[:1] in (b"{", b"[", b"<", b'"') else body.decode(errors="replace")


def said_about(error: object, description: object) -> str:
    """The code of an error, if it is an unknown one, and its description; members that are no text are left out."""
    code = "" if isinstance(error, str) and known_error(error) else error
    return ": ".join(each for each in (code, description) if isinstance(each, str) and each)


def _error(data: bytes) -> _ErrorDocument:
    try:
        return msgspec.json.decode(data, type=_ErrorDocument)
    except (ValueError, RecursionError):
        return _ErrorDocument()


def known_error(code: str) -> str:
    """The code if it is a known one, else nothing."""
    return code if code in _ERRORS else ""


def advice(code: str) -> str:
    """The remedy of a person for an error code, as the end of a sentence; empty if none is known."""
    if code == "invalid_target":
        return ": it does not take the resource. Set oauth.resource to one that it knows, or to none, and log in again"
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
