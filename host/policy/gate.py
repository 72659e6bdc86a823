"""The gate on the road of every call: it alone makes permits, and without one no request reaches a server."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import final

from config import ServerSpec, Trust
from host.exchange import Exchange
from host.policy.rules import Rules
from host.protocol.abilities import Abilities
from host.protocol.links import PAGE
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
        self._trust = {server: spec.trust for server, spec in servers.items()}

    def shows(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the entry may be listed."""
        if kind in (Kind.RESOURCE, Kind.TEMPLATE) and name[: len(PAGE)].lower() == PAGE and not self.shows_apps(server):
            return False
        return self._rules[server].allow(kind, name)

    def admit(self, exchange: Exchange, server: str, kind: Kind, name: str) -> Permit | None:
        """The permit to reach the entry, or None: then the answer must be the one for what does not exist."""
        return Permit(exchange, server, kind, name, _GATE) if self.shows(server, kind, name) else None

    def lets_ask(self, server: str, question: Question) -> bool:
        """Whether the server may ask clients for this. A form shows what is asked, and roots are names of folders; a
        model's work costs its owner, and a page may do anything: those only a trusted server may ask for. An untrusted
        one may ask for nothing, and neither may one that nobody configured."""
        trust = self._trust.get(server, Trust.UNTRUSTED)
        if trust is Trust.STANDARD:
            return question in (Question.FORM, Question.ROOTS)
        return trust is Trust.TRUSTED

    def shows_apps(self, server: str) -> bool:
        """Whether pages of the server's (MCP Apps) may be shown to whoever uses it: they run in the client."""
        return self._trusts_somewhat(server)

    def speaks(self, server: str) -> bool:
        """Whether the server's instructions are passed on: a model may take them for those of its user."""
        return self._trusts_somewhat(server)

    def askable(self, server: str, abilities: Abilities) -> Abilities:
        """What of a client's abilities the server may use."""
        return replace(
            abilities,
            roots=abilities.roots and self.lets_ask(server, Question.ROOTS),
            sampling=abilities.sampling and self.lets_ask(server, Question.SAMPLING),
            form=abilities.form and self.lets_ask(server, Question.FORM),
            url=abilities.url and self.lets_ask(server, Question.URL),
            apps=abilities.apps and self.shows_apps(server),
        )

    def _trusts_somewhat(self, server: str) -> bool:
        return self._trust.get(server, Trust.UNTRUSTED) is not Trust.UNTRUSTED
