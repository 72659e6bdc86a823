"""What an answer to our `server/discover` says of the server: how to go on with it. Only time is not judged here.

An error that only a stateless server answers with never leads to a handshake; any other answer that is no discovery
does.
That the server is out of reach, or does not let us in, says neither: that is no answer.

Source: 2026-07-28, "Versioning / Backward Compatibility" and "Transports / stdio".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Raw

from host.errors import HeaderMismatch, MissingAbility, UnsupportedVersion
from host.jsonrpc.raw import items, members, string
from host.protocol.negotiated import NegotiatedServer
from host.protocol.stateless import read_discovery
from host.protocol.versions import LEGACY, MAX_SHOWN, MODERN, SERVED, Revision

MAX_NAMES = 8
"""How many of a server's own words one sentence repeats."""


@dataclass(frozen=True, slots=True)
class Stateless:
    """It is met: every request says of itself what is needed."""

    negotiated: NegotiatedServer


@dataclass(frozen=True, slots=True)
class RetryWith:
    """It has to be asked once more, in this revision."""

    revision: Revision


@dataclass(frozen=True, slots=True)
class Handshake:
    """It wants an `initialize`."""


@dataclass(frozen=True, slots=True)
class Incompatible:
    """There is no way to speak with it. `why` is a sentence about the server."""

    why: str


Verdict: TypeAlias = Stateless | RetryWith | Handshake | Incompatible


def verdict_of_result(result: Raw) -> Verdict:
    """What a result means."""
    try:
        found = read_discovery(result)
    except ValueError:
        return Handshake()
    if found.negotiated is not None:
        return Stateless(found.negotiated)
    # One that names no version at all has said nothing; perhaps a handshake says more.
    return _without_envelope(found.versions) if found.versions else Handshake()


def verdict_of_error(code: int, data: Raw | None, *, asked: str, may_retry: bool = True) -> Verdict:
    """What an error means.

    Args:
        asked: the name of the revision in which it was asked. It is asked in that again only if it names no other.
        may_retry: it may be asked once more.
    """
    if code == UnsupportedVersion.code:
        versions = _supported(data)
        if versions is None:
            return Incompatible(f"it refuses {asked} and does not say which versions it speaks")
        shared = [name for name in SERVED if name in MODERN and name in versions]
        if not shared or (not may_retry and any(version in LEGACY for version in versions)):
            return _without_envelope(versions)
        if not may_retry:
            return Incompatible(f"it refuses {asked}, which it says it speaks")
        return RetryWith(MODERN[next((name for name in shared if name != asked), shared[0])])
    if code == HeaderMismatch.code:
        return Incompatible("it refuses the headers of a server/discover that are as they should be")
    if code == MissingAbility.code:
        return Incompatible(f"it refuses a server/discover that does not declare {_required(data)}")
    return Handshake()


def _without_envelope(versions: Sequence[str]) -> Verdict:
    """What remains with a server that shares no stateless revision with us."""
    if any(version in LEGACY for version in versions):
        return Handshake()
    return Incompatible(f"it speaks {_listed(versions)}, and Colonnade only {', '.join(SERVED)}")


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
