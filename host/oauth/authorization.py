"""An authorization request, and the check of its answer: OAuth 2.1 with PKCE (RFC 7636), resource indicators (RFC 8707)
and the issuer in the answer (RFC 9207)."""

from __future__ import annotations

import hashlib
import secrets
from base64 import urlsafe_b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from hmac import compare_digest
from urllib.parse import parse_qsl, urlencode

from host.oauth.documents import Issuer, advice, known_error, said_about
from host.oauth.problem import OAuthProblem
from host.url import Url

CALLBACK_PATH = "/oauth/callback"
MAX_ANSWER = 8 * 1024
"""Characters of the query of an answer."""
OFFLINE_ACCESS = "offline_access"
"""The scope by which many issuers give a refresh token (OpenID Connect Core, 11)."""

_ANSWER_MEMBERS = ("code", "state", "iss", "error", "error_description")


class ForeignAnswer(OAuthProblem):
    """The answer does not belong to this request. It is not used up by it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AuthorizationRequest:
    """A request for an authorization code. `resource`: empty if none is named; `state` and `verifier` are good for one
    answer; `extra`: parameters of the configuration, which cannot replace others of ours than `prompt`."""

    issuer: Issuer
    client_id: str
    redirect_uri: str
    resource: str
    scopes: tuple[str, ...]
    extra: Mapping[str, str] = field(default_factory=dict)
    state: str = field(default_factory=partial(secrets.token_urlsafe, 32), repr=False)
    # 64 characters (RFC 7636, 4.1: 43 to 128)
    verifier: str = field(default_factory=partial(secrets.token_urlsafe, 48), repr=False)

    @property
    def url(self) -> str:
        """The address that a person opens in a browser."""
        endpoint = Url.parse(self.issuer.authorization_endpoint)
        parameters = dict(self.extra)
        if OFFLINE_ACCESS in self.scopes:
            parameters.setdefault("prompt", "consent")  # without it OpenID issuers ignore the scope (Core, 11)
        if not parameters.get("prompt"):
            parameters.pop("prompt", None)  # a page that a person may not consent at fails with it
        ours = {
            "response_type": "code",
            "client_id": self.client_id,
            "redirect_uri": self.redirect_uri,
            "state": self.state,
            "code_challenge": challenge_of(self.verifier),
            "code_challenge_method": "S256",
            **({"resource": self.resource} if self.resource else {}),
        }
        if self.scopes:
            ours["scope"] = " ".join(self.scopes)
        query = urlencode({**ours, **parameters, **ours})  # ours count, and come first
        return f"{endpoint}{'?' if endpoint.query is None else '&'}{query}"

    def read_answer(self, query: str) -> str:
        """The authorization code in the query with which the browser came back.

        Raises:
            ForeignAnswer: it is no answer to this request: its state is another one.
            OAuthProblem: it is of another issuer, an error, or invalid.
        """
        answer = _members(query)
        if not compare_digest(answer.get("state", "").encode(), self.state.encode()):
            raise ForeignAnswer("the answer does not belong to this login; begin again with colonnade login")
        self._check_issuer(answer.get("iss"))
        if (error := answer.get("error")) is not None:
            if error == "access_denied":
                raise OAuthProblem("the login was denied", answer.get("error_description", ""))
            known = known_error(error)
            why = f"the issuer refused the login ({known or 'for a reason of its own'}){advice(known)}"
            raise OAuthProblem(why, said_about(error, answer.get("error_description")))
        code = answer.get("code", "")
        if not code or not code.isascii() or not code.isprintable():
            raise OAuthProblem("the answer of the issuer has no authorization code")
        return code

    def _check_issuer(self, named: str | None) -> None:
        """RFC 9207, 2.4: compared character by character (2026-07-28, "Authorization Response Validation")."""
        if named is None and self.issuer.sends_iss:
            raise OAuthProblem("the answer does not name its issuer, although this issuer promises to: it is not used")
        if named is not None and named != self.issuer.id:
            raise OAuthProblem("the answer is of another issuer than the one that was asked: it is not used")


def challenge_of(verifier: str) -> str:
    """The S256 code challenge (RFC 7636, 4.2)."""
    return urlsafe_b64encode(hashlib.sha256(verifier.encode("ascii")).digest()).rstrip(b"=").decode("ascii")


def _members(query: str) -> dict[str, str]:
    if len(query) > MAX_ANSWER:
        raise ForeignAnswer("the answer is too long")
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=32, errors="strict")
    except ValueError:
        raise ForeignAnswer("the answer is no valid query") from None
    answer: dict[str, str] = {}
    for name, text in pairs:
        if name in _ANSWER_MEMBERS:
            if name in answer:  # RFC 6749, 3.1: no parameter more than once
                raise ForeignAnswer(f"the answer has the parameter {name} more than once")
            answer[name] = text
    return answer


def choose_scopes(
    configured: Sequence[str],
    challenged: Sequence[str],
    resource: Sequence[str] | None,
    issuer: Sequence[str],
    known: Sequence[str] = (),
) -> tuple[str, ...]:
    """The scopes to request (2026-07-28, "Scope Selection Strategy" and "Step-Up Authorization Flow").

    Args:
        configured: those of the configuration; if there are any, only they and `known` are requested.
        challenged: those of the server's challenge.
        resource: those of the resource metadata; None if these name none.
        issuer: those that the issuer offers. `offline_access` is added if it is one of them, for a refresh token.
        known: those of the present login, and those that the server found missing in it.
    """
    chosen = configured or challenged or resource or ()
    offline = (OFFLINE_ACCESS,) if OFFLINE_ACCESS in issuer and not configured else ()
    return tuple(dict.fromkeys((*known, *chosen, *offline)))
