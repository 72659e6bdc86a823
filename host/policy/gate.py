"""The gate on the road of every call: it alone makes permits, and without one no request reaches a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import final

from config import Consent
from host.exchange import Exchange
from host.policy.rules import Rules
from host.protocol.methods import Kind

_GATE = object()


@final
@dataclass(frozen=True, slots=True)
class Permit:
    """Proof that this exchange may reach this entry of this server."""

    exchange: Exchange
    server: str
    kind: Kind
    target: str
    """The entry's own name or URI at the server."""
    made_by: object

    def __post_init__(self) -> None:
        if self.made_by is not _GATE:
            raise TypeError("only the gate makes permits")


class Gate:
    """Judges by the consent of each server. What it denies does not exist for whoever asks."""

    def __init__(self, consents: Mapping[str, Consent]) -> None:
        self._rules = {server: Rules(consent) for server, consent in consents.items()}

    def shows(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed."""
        return self._rules[server].allow(kind, name)

    def admit(self, exchange: Exchange, server: str, kind: Kind, name: str) -> Permit | None:
        """The permit to reach the entry, or None: then the answer must be the one for what does not exist."""
        return Permit(exchange, server, kind, name, _GATE) if self._rules[server].allow(kind, name) else None
