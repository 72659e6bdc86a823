"""Checks of an HTTP request before its body is read: Origin, Host, token, media types. Pure functions of the headers.

A web page can make any browser send requests to a loopback port. Origin names the page's site; a page that points its
own name at 127.0.0.1 is recognized by Host. Both are compared with lists that are always on, and a body must be
declared as JSON, which a page cannot do without a preflight (2025-11-25, "Transports / Security Warning").

A token is accepted in the Authorization header only, never in the URL, because URLs end up in logs.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from functools import cached_property, lru_cache
from hashlib import sha256
from hmac import compare_digest
from ipaddress import ip_address

from msgspec import Struct, field

from config import Listen
from host.attempts import Reason
from host.downstream.charge import TOKEN_WITHDRAWN
from host.protocol.era import EraHeaders
from host.protocol.param_headers import METHOD_HEADER, VERSION_HEADER
from host.wire.asgi import Headers

SESSION = "mcp-session-id"
"""Header that names the session of a request."""
MAX_BODY = 4 * 1024 * 1024
"""Bytes of one message of a client."""
LOOPBACK = frozenset({"localhost", "127.0.0.1", "[::1]"})

_HOST = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_ORIGIN = re.compile(r"(https?)://(\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]+)(?::([0-9]{1,5}))?")
_LENGTH = re.compile(r"0*([0-9]+)")
_CREDENTIALS = re.compile(r"bearer +(.+)", re.IGNORECASE)
_ZERO_QUALITY = re.compile(r"q\s*=\s*0(\.0*)?")

ALLOWED_HEADERS = (
    "accept, authorization, content-type, last-event-id, mcp-method, mcp-name, mcp-protocol-version, mcp-session-id"
)
_PARAM_HEADER = re.compile(r"mcp-param-[!#$%&'*+.^_`|~0-9a-z-]+")
"""Headers that repeat a tool's arguments; the tools define which."""
ALLOWED_METHODS = "GET, POST, DELETE, OPTIONS"
EXPOSED_HEADERS = "mcp-session-id, mcp-protocol-version, www-authenticate"

CHALLENGE = 'Bearer realm="colonnade"'


class Refusal(Struct, frozen=True):
    """HTTP response that refuses a request."""

    status: int
    why: str
    headers: Mapping[str, str] = field(default_factory=dict)
    attempt: Reason | None = None
    """The reason for which the attempt is recorded; None if the request is merely not usable."""


class CheckedHead:
    """The headers of a request, and what the checks say about them.

    Args:
        cors_headers: headers for every response that let a page of a configured origin read it.
        refusal: that of every request with this Host and Origin; None if they pass.
        identity: the name of its access token; None if the endpoint requires none; or the refusal of its token.
    """

    def __init__(
        self,
        headers: Headers,
        cors_headers: Mapping[str, str],
        refusal: Refusal | None = None,
        identity: str | Refusal | None = None,
    ) -> None:
        self.headers = headers
        self.cors_headers = cors_headers
        self.refusal = refusal
        self.identity = identity
        self.forwarded: object = None
        """The head to forward that host/fleet/forwarding.py has made of it, for the next request with an equal one."""

    @cached_property
    def session(self) -> str | None:
        """The session that it names; None unless it names one."""
        return self.headers.one(SESSION)

    @cached_property
    def versions(self) -> list[str]:
        """The revisions that it names."""
        return self.headers.all(VERSION_HEADER)

    @cached_property
    def era(self) -> EraHeaders:
        """Those that tell the era of a message."""
        header = self.headers.all
        return EraHeaders(self.versions, session=bool(header(SESSION)), names_method=bool(header(METHOD_HEADER)))

    @cached_property
    def refused_post(self) -> Refusal | None:
        """Refusal of a message that is to be answered with JSON or an event stream; None if it passes."""
        return refuse_body(self.headers) or refuse_accept(self.headers, "application/json", "text/event-stream")


class RequestGuard:
    """Compares requests with the host's own addresses, the permitted origins and the access tokens."""

    def __init__(self, listen: Listen) -> None:
        own = {host for address in listen.addresses for host in _literal(address.host)}
        self._hosts = own | {host.lower() for host in listen.hosts}
        self._origins = frozenset(origin.lower() for origin in listen.origins)
        self._tokens = None if listen.auth is None else {name: _digest(t.reveal()) for name, t in listen.tokens.items()}
        """Digests by name; None if no token is needed. If all are withdrawn, nobody comes in."""

    def withdrawn_by(self, later: RequestGuard) -> list[str | None]:
        """The identities that this guard lets in, and the later one does not: names whose token is gone or has another
        value; None, for callers without a token, if one is needed now."""
        if self._tokens is None:
            return [] if later._tokens is None else [None]
        valid = later._tokens or {}
        return [name for name, digest in self._tokens.items() if valid.get(name) != digest]

    def fingerprint(self, identity: str | None) -> str:
        """The fingerprint of the token with this name; empty if there is none, which nobody has then."""
        return "" if identity is None or self._tokens is None else self._tokens.get(identity, b"").hex()

    def examine(self, headers: Headers) -> CheckedHead:
        """All of these checks."""
        return CheckedHead(headers, self.cross_origin(headers), self.check(headers), self.authenticate(headers))

    def check(self, headers: Headers) -> Refusal | None:
        """Refusal by Host and Origin, whatever the request is for; None if it passes."""
        return self._refuse_host(headers.all("host")) or self._refuse_origin(headers.all("origin"))

    def authenticate(self, headers: Headers) -> str | Refusal | None:
        """The name of the request's token; None if no tokens are configured.

        A refusal repeats nothing of the request (RFC 6750, 3). A preflight carries no token and needs none.
        """
        if self._tokens is None:
            return None
        given = headers.all("authorization")
        if len(given) > 1:
            return _unauthorized("expected one Authorization header", Reason.WRONG_TOKEN)
        found = _CREDENTIALS.fullmatch(given[0]) if given else None
        if found is None:
            why = "this endpoint expects Authorization: Bearer and a token of listen.auth.tokens"
            return _unauthorized(why, Reason.WRONG_TOKEN if given else Reason.NO_TOKEN)
        return self._name(found[1]) or _unauthorized(
            "this token is not known here", Reason.WRONG_TOKEN, ', error="invalid_token"'
        )

    def _name(self, token: str) -> str | None:
        # All digests are compared, even after a match: the time must not reveal anything about a token.
        digest = _digest(token)
        fitting = [name for name, known in (self._tokens or {}).items() if compare_digest(known, digest)]
        return fitting[0] if fitting else None

    def cross_origin(self, headers: Headers) -> dict[str, str]:
        """Headers that let a page of a configured origin read the response; empty for all others."""
        origin = headers.one("origin")
        if origin is None or origin.lower() not in self._origins:
            return {}
        return {
            "access-control-allow-origin": origin,
            "access-control-expose-headers": EXPOSED_HEADERS,
            "vary": "Origin",
        }

    def preflight(self, headers: Headers) -> dict[str, str] | Refusal:
        """Response to a preflight."""
        allowed = self.cross_origin(headers)
        if not allowed:
            return _foreign_origin()
        allowed["access-control-allow-methods"] = ALLOWED_METHODS
        wanted = (headers.one("access-control-request-headers") or "").lower().split(",")
        mirrors = [name for each in wanted if _PARAM_HEADER.fullmatch(name := each.strip())]
        allowed["access-control-allow-headers"] = ", ".join((ALLOWED_HEADERS, *mirrors))
        allowed["access-control-max-age"] = "600"
        if headers.one("access-control-request-private-network") == "true":
            allowed["access-control-allow-private-network"] = "true"
        return allowed

    def _refuse_host(self, hosts: list[str]) -> Refusal | None:
        found = _HOST.fullmatch(hosts[0]) if len(hosts) == 1 else None
        if found is None:
            why = "expected one Host header of the form name or name:port"
            return Refusal(400, why, attempt=Reason.HOST)
        name = found[1].lower()
        if name in LOOPBACK or name in self._hosts or hosts[0].lower() in self._hosts:
            return None
        return Refusal(421, "unknown Host; add names other than loopback to listen.hosts", attempt=Reason.HOST)

    def _refuse_origin(self, origins: list[str]) -> Refusal | None:
        if not origins:
            return None
        origin = origins[0].lower()
        found = _ORIGIN.fullmatch(origin) if len(origins) == 1 else None
        if len(origins) == 1 and (origin in self._origins or (found is not None and found[2] in LOOPBACK)):
            return None
        return _foreign_origin()


def _literal(host: str) -> Iterable[str]:
    """The listening address as a Host value; nothing if it stands for all addresses."""
    address = ip_address(host)
    if address.is_unspecified:
        return ()
    return (f"[{address}]", f"[{host.lower()}]") if address.version == 6 else (host,)


def _digest(token: str) -> bytes:
    return sha256(token.encode("latin-1")).digest()


def refuse_revoked(why: str) -> Refusal:
    """Refusal of a request that is no longer served; `why`: see `RequestCharge.revoked`."""
    if why == TOKEN_WITHDRAWN:
        return _unauthorized("this token is not known here any more", Reason.WRONG_TOKEN, ', error="invalid_token"')
    return Refusal(404, "what this address offers has changed (views); connect again")


def _foreign_origin() -> Refusal:
    return Refusal(403, "origin not allowed; add it to listen.origins", attempt=Reason.ORIGIN)


def _unauthorized(why: str, attempt: Reason, error: str = "") -> Refusal:
    return Refusal(401, why, {"www-authenticate": f"{CHALLENGE}{error}"}, attempt)


def refuse_body(headers: Headers) -> Refusal | None:
    """Refusal of a POST by its body's headers; None if the body may be read."""
    if not _is_json(headers.one("content-type")):
        return Refusal(415, "expected Content-Type: application/json")
    if any(coding.lower() != "identity" for coding in headers.all("content-encoding")):
        return Refusal(415, "compressed bodies are not accepted")
    # Only the first digits are converted: Python refuses to convert thousands of them.
    length = _LENGTH.fullmatch(headers.one("content-length") or "")
    if length is not None and int(length[1][:12]) > MAX_BODY:
        return Refusal(413, f"a message is at most {MAX_BODY} bytes")
    return None


def refuse_accept(headers: Headers, *wanted: str) -> Refusal | None:
    """Refusal if the client does not accept the response's media type. Without an Accept header it accepts all."""
    given = headers.all("accept")
    if not given or _accepts(tuple(given), wanted):
        return None
    return Refusal(406, f"expected Accept: {', '.join(wanted)}")


@lru_cache(maxsize=64)  # clients send the same few values with every message
def _accepts(given: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    taken = {kind: weighs for value in given for kind, weighs in _ranges(value)}
    return all(_accepts_type(taken, kind) for kind in wanted)


def _accepts_type(taken: Mapping[str, bool], kind: str) -> bool:
    """Whether a media type is accepted: its own entry takes precedence over wildcards (RFC 9110, 12.5.1)."""
    ranges = (kind, f"{kind.split('/')[0]}/*", "*/*")
    return next((taken[each] for each in ranges if each in taken), False)


def _ranges(value: str) -> Iterable[tuple[str, bool]]:
    for part in value.split(","):
        kind, *parameters = (piece.strip().lower() for piece in part.split(";"))
        if kind:
            yield kind, not any(_ZERO_QUALITY.fullmatch(parameter) for parameter in parameters)


@lru_cache(maxsize=64)
def _is_json(content_type: str | None) -> bool:
    if content_type is None:
        return False
    kind, *parameters = (piece.strip().lower() for piece in content_type.split(";"))
    charset = [parameter.partition("=")[2].strip(' "') for parameter in parameters if parameter.startswith("charset")]
    return kind == "application/json" and all(name in ("utf-8", "utf8") for name in charset)
