"""Challenges in `WWW-Authenticate` headers (RFC 9110, 11.6.1), and the parameters of a Bearer challenge (RFC 6750, 3;
RFC 9728, 5.1)."""

from __future__ import annotations

import re

from msgspec import Struct

MAX_SCOPES = 64
"""Scopes of one challenge or document; more are refused, since a person has to read them."""
MAX_SCOPE = 200
"""Characters of one scope."""

_TOKEN = r"[!#$%&'*+.^_`|~0-9A-Za-z-]+"
# A parameter of the present challenge, or else the scheme of another one.
_PART = re.compile(rf'[\s,]*({_TOKEN})(?:\s*=\s*(?:"((?:[^"\\]|\\.)*)"|([^\s",]+)))?')
_ESCAPED = re.compile(r"\\(.)")
_SCOPE = re.compile(r"[\x21\x23-\x5b\x5d-\x7e]+")  # RFC 6749, 3.3


class Challenge(Struct, frozen=True):
    """A Bearer challenge. Parameters that are missing are empty."""

    resource_metadata: str = ""
    scopes: tuple[str, ...] = ()
    error: str = ""

    @property
    def lacks_scope(self) -> bool:
        return self.error == "insufficient_scope"

    @property
    def refuses_token(self) -> bool:
        """Whether the token is expired, revoked or invalid (RFC 6750, 3.1)."""
        return self.error == "invalid_token"


def bearer_challenge(header: str) -> Challenge | None:
    """The first Bearer challenge of a header, which may have several challenges; None if it has none."""
    parameters: dict[str, str] | None = None
    at = 0
    while found := _PART.match(header, at):
        at = found.end()
        name, quoted, plain = found[1].lower(), found[2], found[3]
        if quoted is None and plain is None:
            if parameters is not None:
                break
            parameters = {} if name == "bearer" else None
        elif parameters is not None:
            parameters.setdefault(name, plain if quoted is None else _ESCAPED.sub(r"\1", quoted))
    if parameters is None:
        return None
    return Challenge(
        parameters.get("resource_metadata", ""),
        split_scopes(parameters.get("scope", "")),
        parameters.get("error", ""),
    )


def split_scopes(text: str) -> tuple[str, ...]:
    """The valid scopes of a list (RFC 6749, 3.3), each once, at most MAX_SCOPES."""
    scopes = dict.fromkeys(text.split(" "))
    return tuple(scope for scope in scopes if len(scope) <= MAX_SCOPE and _SCOPE.fullmatch(scope))[:MAX_SCOPES]
