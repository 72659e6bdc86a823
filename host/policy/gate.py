"""The gate on the road of every call: it alone makes permits, and without one no request reaches a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from config import ServerSpec, Trust
from host.exchange import Exchange
from host.policy.rules import Rules
from host.protocol.abilities import Abilities
from host.protocol.methods import Kind
from host.protocol.questions import Question

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

    def __init__(self, servers: Mapping[str, ServerSpec]) -> None:
        self._rules = {server: Rules(spec.consent) for server, spec in servers.items()}
        self._trusted = {server for server, spec in servers.items() if spec.trust is Trust.TRUSTED}

    def shows(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed."""
        return self._rules[server].allow(kind, name)

    def admit(self, exchange: Exchange, server: str, kind: Kind, name: str) -> Permit | None:
        """The permit to reach the entry, or None: then the answer must be the one for what does not exist."""
        return Permit(exchange, server, kind, name, _GATE) if self._rules[server].allow(kind, name) else None

    def lets_ask(self, server: str, question: Question) -> bool:
        """Whether the server may ask clients for this. A form shows what is asked, and roots are names of folders; a
        model's work costs its owner, and a page may do anything: those only a trusted server may ask for."""
        return server in self._trusted or question in (Question.FORM, Question.ROOTS)

    def askable(self, server: str, abilities: Abilities) -> Abilities:
        """What of a client's abilities the server may use."""
        return replace(
            abilities,
            sampling=abilities.sampling and self.lets_ask(server, Question.SAMPLING),
            url=abilities.url and self.lets_ask(server, Question.URL),
        )
