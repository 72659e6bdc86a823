"""Era of a client's message: whether it belongs to a session or is stateless.

Colonnade serves both eras at the same address and in the same process, also after the first message: a client whose
`server/discover` timed out may still send `initialize`. Over HTTP the `MCP-Protocol-Version` header decides, and the
body must agree; over stdio only the body decides.

Source: 2026-07-28, "Transports / Streamable HTTP" and "Versioning / Backward Compatibility".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from host.errors import HeaderMismatch, InvalidParams
from host.protocol.methods import INITIALIZE, PING
from host.protocol.versions import LEGACY, SERVED, SESSION, STATELESS, Era, unsupported_version


class EraHeaders:
    """The headers of a POST that tell its era.

    Args:
        versions: all values of `MCP-Protocol-Version`.
        session: whether there is an `Mcp-Session-Id` header.
        names_method: whether there is an `Mcp-Method` header.
    """

    def __init__(self, versions: Iterable[str], *, session: bool, names_method: bool) -> None:
        self.versions = frozenset(version.strip(" \t") for version in versions)
        self.legacy = bool(self.versions) and self.versions <= LEGACY.keys()
        """Whether they name revisions with sessions only."""
        self.session = session
        self.names_method = names_method


def era_over_http(method: str | None, headers: EraHeaders, envelope: Callable[[], str | None]) -> Era:
    """The era of a message that was sent with POST.

    Args:
        method: method of a request or notification; None for a response.
        envelope: reads the revision in the `_meta` of the body, and is called only where that decides; None if it is
            missing or not a string.

    Raises:
        HeaderMismatch: the headers contradict each other or the body, or `MCP-Protocol-Version` is missing.
        UnsupportedVersion: the headers name a revision that is not served.
    """
    named = headers.versions
    if not named:
        return _era_without_version(method, headers, envelope)
    if headers.legacy:
        _check_same(envelope(), named)
        return SESSION  # the session refuses a second, different header
    if len(named) > 1:
        raise HeaderMismatch("expected one MCP-Protocol-Version header")
    (version,) = named
    if version not in SERVED:
        _check_same(envelope(), named)
        raise unsupported_version(version)
    # An `initialize` with an envelope opens no session: it is a stateless request for a method that 2026-07-28 does not
    # have.
    return SESSION if method == INITIALIZE and envelope() is None else STATELESS


def _check_same(envelope: str | None, named: frozenset[str]) -> None:
    if envelope is not None and named != {envelope}:
        raise HeaderMismatch("the body names another protocol version than the MCP-Protocol-Version header")


def _era_without_version(method: str | None, headers: EraHeaders, envelope: Callable[[], str | None]) -> Era:
    if headers.session or (method == INITIALIZE and envelope() is None):
        return Era.SESSION
    if headers.names_method or envelope() is not None:
        raise HeaderMismatch("the MCP-Protocol-Version header is missing")
    return Era.SESSION


def era_over_stdio(method: str, *, envelope: bool, initialized: bool) -> Era:
    """The era of a request that came over stdio.

    Args:
        envelope: whether the `_meta` of the request names a revision.
        initialized: whether the handshake is done.

    Raises:
        InvalidParams: the request names no revision, and no handshake negotiated one.
    """
    if method == INITIALIZE:
        return Era.SESSION
    if envelope:
        return Era.STATELESS
    if initialized or method == PING:
        return Era.SESSION
    raise InvalidParams(
        f"send initialize first, or name the protocol version in _meta; supported versions: {', '.join(SERVED)}"
    )
