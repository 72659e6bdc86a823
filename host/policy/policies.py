"""The configured policy of each server: its rules, its limits, its trust, and what that means for its texts.

`epoch` numbers the states of everything that decisions depend on. What was decided in one epoch holds in that one only;
whoever changes a rule or a definition ends it with `begin_epoch`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec import Raw

from config import ServerSpec, Trust
from host.policy.limits import Meter
from host.policy.rules import Rules
from host.policy.server_request_checks import MAX_TEXT
from host.sanitize import sanitize, sanitize_json


class Policies:
    """The policies of the servers of one configuration, by id.

    Attributes:
        epoch: the number of the present state.
        on_epoch: called after each beginning of an epoch.
    """

    def __init__(self, servers: Mapping[str, ServerSpec]) -> None:
        self.epoch = 0
        self.on_epoch: list[Callable[[], None]] = []
        self._specs: dict[str, ServerSpec] = {}
        self._rules: dict[str, Rules] = {}
        self._meters: dict[str, Meter] = {}
        self.replace(servers)

    def replace(self, servers: Mapping[str, ServerSpec]) -> list[str]:
        """Let these policies hold from now on; the servers whose rules are others than before. No epoch begins."""
        former = self._rules
        self._specs = dict(servers)
        self._rules = {server: _rules(spec, former.get(server)) for server, spec in servers.items()}
        meters, self._meters = self._meters, {}
        for server, meter in meters.items():
            if server in servers:
                self.meter(server).take_over(meter)
        return [server for server, rules in self._rules.items() if rules is not former.get(server)]

    def begin_epoch(self) -> None:
        """Something that decisions depend on has changed."""
        self.epoch += 1
        for listener in self.on_epoch:
            listener()

    def has_server(self, server: str) -> bool:
        """Whether the configuration has this server."""
        return server in self._rules

    def spec(self, server: str) -> ServerSpec | None:
        return self._specs.get(server)

    def rules(self, server: str) -> Rules:
        return self._rules[server]

    def rules_of(self, server: str) -> Rules | None:
        """The same; None for a server that the configuration does not have."""
        return self._rules.get(server)

    def meter(self, server: str) -> Meter:
        """The meter of a server, which exists from its first use on."""
        if server not in self._meters:
            spec = self._specs[server]
            self._meters[server] = Meter(server, spec.limits, spec.trust)
        return self._meters[server]

    def trust(self, server: str) -> Trust:
        """How far a server is trusted; one that nobody configured, not at all."""
        spec = self._specs.get(server)
        return Trust.UNTRUSTED if spec is None else spec.trust

    def describe_limits(self, server: str) -> dict[str, str | None]:
        """The limits of a server, in words; None where there is none."""
        found = self._specs[server].limits
        rates = {"calls": found.calls, "sampling": found.sampling, "sampling_tokens": found.sampling_tokens}
        told = {key: None if rate is None else f"{rate.count} in {rate.seconds:g} s" for key, rate in rates.items()}
        counts = {"concurrent": found.concurrent, "result": found.result}
        return told | {key: None if count is None else str(count) for key, count in counts.items()}

    def title(self, server: str) -> str:
        spec = self._specs.get(server)
        return server if spec is None or spec.title is None else spec.title

    def shows_apps(self, server: str) -> bool:
        """Whether pages of the server's (MCP Apps) may be shown to whoever uses it: they run in the client."""
        return self.trust(server) is not Trust.UNTRUSTED

    def sanitizes(self, server: str) -> bool:
        """Whether what the server says reaches models and terminals without what cannot be seen."""
        return self.trust(server) is Trust.UNTRUSTED

    def sanitize(self, server: str, raw: Raw) -> Raw:
        """A short text of a server as it may reach a model or a terminal."""
        return Raw(sanitize_json(bytes(raw))) if self.sanitizes(server) else raw

    def sanitize_text(self, server: str, text: str) -> str:
        """The same for a text that is not JSON."""
        return sanitize(text, limit=MAX_TEXT) if self.sanitizes(server) else text


def _rules(spec: ServerSpec, former: Rules | None) -> Rules:
    """The rules of a server: the former ones, with the verdicts that they remember, if they are the same."""
    if former is not None and former.compiled_from(spec.consent, spec.trust):
        return former
    return Rules(spec.consent, spec.trust)
