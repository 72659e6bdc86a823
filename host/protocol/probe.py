"""Era detection: the era of a server by its response to `server/discover`. Timeouts are the caller's.

An error that only stateless servers return never leads to a handshake; every other response that is not a discovery
does. An unreachable server and a refused login (401, 403) tell nothing about the era and are no response here.

Source: 2026-07-28, "Versioning / Backward Compatibility" and "Transports / stdio".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from msgspec import Raw, Struct

from host.errors import HeaderMismatch, MissingAbility, UnsupportedVersion
from host.jsonrpc.raw import items, members, string
from host.protocol.negotiated import NegotiatedServer
from host.protocol.stateless import read_discovery
from host.protocol.versions import LEGACY, MAX_SHOWN, MODERN, SERVED, Revision

MAX_NAMES = 8
"""Names from a server that one message repeats."""


class StatelessServer(Struct, frozen=True):
    """The server is stateless and shares a revision with Colonnade."""

    negotiated: NegotiatedServer


class RetryWith(Struct, frozen=True):
    """The server is stateless and has to be probed again in this revision."""

    revision: Revision


class Handshake(Struct, frozen=True):
    """The server needs `initialize`."""


class Incompatible(Struct, frozen=True):
    """The server shares no revision with Colonnade, or refuses valid requests. `why`: one sentence about the server."""

    why: str


Verdict: TypeAlias = StatelessServer | RetryWith | Handshake | Incompatible


def verdict_of_result(result: Raw) -> Verdict:
    """The verdict on a result of `server/discover`."""
    try:
        found = read_discovery(result)
    except ValueError:
        return Handshake()
    if found.negotiated is not None:
        return StatelessServer(found.negotiated)
    # A result without any version says nothing about the era: the handshake decides.
    return _without_envelope(found.versions) if found.versions else Handshake()


def verdict_of_error(code: int, data: Raw | None, *, asked: str, may_retry: bool = True) -> Verdict:
    """The verdict on an error response to `server/discover`.

    Args:
        asked: name of the revision of the probe. It is tried again only if the server names no other one.
        may_retry: the server may be probed once more.
    """
    if code == UnsupportedVersion.code:
        versions = _supported(data)
        if versions is None:
            return Incompatible(f"it refuses {asked} and does not name the versions that it supports")
        shared = [name for name in SERVED if name in MODERN and name in versions]
        if not shared or (not may_retry and any(version in LEGACY for version in versions)):
            return _without_envelope(versions)
        if not may_retry:
            return Incompatible(f"it refuses {asked}, which it names as supported")
        return RetryWith(MODERN[next((name for name in shared if name != asked), shared[0])])
    if code == HeaderMismatch.code:
        return Incompatible("it refuses the headers of a valid server/discover")
    if code == MissingAbility.code:
        return Incompatible(f"it refuses a server/discover that does not declare {_required(data)}")
    return Handshake()


def _without_envelope(versions: Sequence[str]) -> Verdict:
    """The verdict on a server that shares no stateless revision with Colonnade."""
    if any(version in LEGACY for version in versions):
        return Handshake()
    return Incompatible(f"it supports {_listed(versions)}, Colonnade only {', '.join(SERVED)}")


def _supported(data: Raw | None) -> tuple[str, ...] | None:
    try:
        return tuple(string(each) for each in items(members(data or b"")["supported"]))
    except (ValueError, KeyError):
        return None


def _required(data: Raw | None) -> str:
    try:
        return _listed(list(members(members(data or b"")["requiredCapabilities"])))
    except (ValueError, KeyError):
        return "some capability"


def _listed(names: Sequence[str]) -> str:
    shown = ", ".join(ascii(name[:MAX_SHOWN]) for name in names[:MAX_NAMES])
    return f"{shown} and more" if len(names) > MAX_NAMES else shown or "nothing"
