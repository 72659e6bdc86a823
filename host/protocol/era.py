"""Which way a message goes that a client sends: through a session, or by itself.

Colonnade serves both at the same address and in the same process, and shuts neither door after the first message. On
HTTP the `MCP-Protocol-Version` header leads and the body must agree; on stdio there is the body alone.

Source: 2026-07-28, "Transports / Streamable HTTP" and "Versioning / Backward Compatibility".
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import Enum

from host.errors import HeaderMismatch, InvalidParams
from host.protocol.methods import INITIALIZE, PING
from host.protocol.versions import LEGACY, SERVED, unsupported_version


class Era(Enum):
    """What judges a message from here on."""

    SESSION = "session"
    """The session that it belongs to, or opens, or lacks."""
    STATELESS = "stateless"
    """What it says of itself."""


def era_over_http(
    method: str | None, versions: Sequence[str], *, session: bool, names_method: bool, envelope: str | None
) -> Era:
    """The way of a message that was posted.

    Args:
        method: that of a request or notification; None for a response.
        versions: all values of `MCP-Protocol-Version`.
        session: whether there is an `Mcp-Session-Id`.
        names_method: whether there is an `Mcp-Method`.
        envelope: the revision that the body says it is of, if it says so in text.

    Raises:
        HeaderMismatch: the headers contradict each other or the body, or the one that tells the revision is missing.
        UnsupportedVersion: they name a revision that is not served.
    """
    named = {version.strip(" \t") for version in versions}
    if not named:
        return _era_without_version(method, session, names_method, envelope)
    if named <= LEGACY.keys():
        if envelope is not None and named != {envelope}:
            raise HeaderMismatch("the body is of another protocol version than its MCP-Protocol-Version header")
        return Era.SESSION  # which also refuses two different ones
    if len(named) > 1:
        raise HeaderMismatch("expected one MCP-Protocol-Version header")
    (version,) = named
    if version not in SERVED:
        if envelope is not None and envelope != version:
            raise HeaderMismatch("the body is of another protocol version than its MCP-Protocol-Version header")
        raise unsupported_version(version)
    return Era.SESSION if _opens_session(method, envelope) else Era.STATELESS


def _era_without_version(method: str | None, session: bool, names_method: bool, envelope: str | None) -> Era:
    if session or _opens_session(method, envelope):
        return Era.SESSION
    if envelope is not None or names_method:
        raise HeaderMismatch("the MCP-Protocol-Version header is missing")
    return Era.SESSION


def _opens_session(method: str | None, envelope: str | None) -> bool:
    """An `initialize` with an envelope is a stateless request like any other, for a method that there is not."""
    return method == INITIALIZE and envelope is None


def era_over_stdio(method: str, *, envelope: bool, initialized: bool) -> Era:
    """The way of a request that came over stdio.

    Args:
        envelope: whether the body says of which revision it is.
        initialized: whether the handshake is done.

    Raises:
        InvalidParams: it says of no revision, and there was no handshake that would.
    """
    if method == INITIALIZE:
        return Era.SESSION
    if envelope:
        return Era.STATELESS
    if initialized or method == PING:
        return Era.SESSION
    raise InvalidParams(
        "send initialize first, or say in _meta of which protocol version the request is; "
        f"served are {', '.join(SERVED)}"
    )
