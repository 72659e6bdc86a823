"""The configured policy of each server: rules, limits, trust level, and the treatment of its texts.

`epoch` numbers the states of everything that decisions depend on. A decision holds in its epoch only; `begin_epoch`
must be called after each change of a rule or definition.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from msgspec import Raw

from config import CallerSpec, Consent, ServerSpec, Trust
from host.policy.limits import Meter, Shares
from host.policy.rules import Rules, callers_in_rules
from host.policy.server_request_checks import MAX_TEXT
from host.protocol.methods import Kind
from host.sanitize import sanitize, sanitize_json
from host.views import Views

_NO_RULES = Consent()
_UNTRUSTED = Trust.UNTRUSTED  # for speed; see RESOURCE in protocol/methods.py


class Policies:
    """The policies of the servers of one configuration, by id.

    Attributes:
        epoch: number of the present state.
        wanting_claims: the servers with a rule that wants claims of tools; each call asks.
        callers: those of the configuration, by name.
        caller_names: by access token, the name of its caller, if some rule names it; each call asks.
        views: what of the servers callers are offered, and under which names.
        on_epoch: called at the beginning of each epoch.
    """

    def __init__(self, servers: Mapping[str, ServerSpec], callers: Mapping[str, CallerSpec]) -> None:
        self.epoch = 0
        self.on_epoch: list[Callable[[], None]] = []
        self.views = Views()
        self._shares: Shares | None = None
        self._specs: dict[str, ServerSpec] = {}
        self._rules: dict[str, Rules] = {}
        self._meters: dict[str, Meter] = {}
        self.wanting_claims: frozenset[str] = frozenset()
        self.callers: Mapping[str, CallerSpec] = {}
        self.caller_names: Mapping[str | None, str] = {}
        self.replace(servers, callers)

    def replace(self, servers: Mapping[str, ServerSpec], callers: Mapping[str, CallerSpec]) -> list[str]:
        """Put these policies into effect; return the servers whose rules changed. Does not begin an epoch."""
        former = self._rules
        self._specs = dict(servers)
        self._trusted_texts = {server for server, spec in servers.items() if spec.trust is not _UNTRUSTED}
        self.views.replace_servers(servers)
        unruled: dict[Trust, Rules] = {}  # one for all servers without a rule: to make them takes 0.1 ms
        self._rules = {server: _rules(spec, former.get(server), unruled) for server, spec in servers.items()}
        self.wanting_claims = frozenset(
            server for server, rules in self._rules.items() if rules.of_kind[Kind.TOOL].reads_claims
        )
        named = callers_in_rules(spec.consent for spec in servers.values())
        self.callers = callers
        self.caller_names = {caller.token: name for name, caller in callers.items() if name in named}
        meters, self._meters = self._meters, {}
        for server, meter in meters.items():
            if server in servers:
                self.meter(server).take_over(meter)
        self.prepare_meters()
        return [server for server, rules in self._rules.items() if rules is not former.get(server)]

    def begin_epoch(self) -> None:
        """Begin a new epoch, because something that decisions depend on has changed."""
        self.epoch += 1
        for listener in self.on_epoch:
            listener()

    def has_server(self, server: str) -> bool:
        """Whether the configuration has this server."""
        return server in self._rules

    def servers(self) -> Collection[str]:
        """The ids of all servers of the configuration."""
        return self._rules.keys()

    def spec(self, server: str) -> ServerSpec | None:
        return self._specs.get(server)

    def rules(self, server: str) -> Rules:
        return self._rules[server]

    def rules_of(self, server: str) -> Rules | None:
        """The rules of a server; None if the configuration does not have it."""
        return self._rules.get(server)

    def callers_of(self, server: str) -> frozenset[str]:
        """The callers that rules of the server name. All others are offered the same of it."""
        rules = self._rules.get(server)
        return frozenset() if rules is None else rules.callers

    def meter(self, server: str) -> Meter:
        """The meter of a configured server, made at its first use."""
        if server not in self._meters:
            spec = self._specs[server]
            self._meters[server] = Meter(server, spec.limits, spec.trust, self._shares)
        return self._meters[server]

    def share(self, shares: Shares) -> None:
        """Have a part of the limits of all servers from now on. Must be called before the first use of a meter."""
        self._shares = shares
        self._meters.clear()
        self.prepare_meters()

    def prepare_meters(self) -> None:
        """Make the meters that lease ahead."""
        for server, spec in self._specs.items():
            if self._shares is not None and (spec.limits.calls or spec.limits.concurrent):
                self.meter(server)

    def admit_waiting(self) -> None:
        """Begin the waiting calls of all servers that may run by now."""
        for meter in self._meters.values():
            if meter.waiting:
                meter.admit_waiting()

    @property
    def meters(self) -> Mapping[str, Meter]:
        """The meters that were used, by server."""
        return self._meters

    def meter_of(self, server: str) -> Meter | None:
        """The meter of a server; None if the configuration does not have it."""
        found = self._meters.get(server)
        return self.meter(server) if found is None and server in self._specs else found

    def trust(self, server: str) -> Trust:
        """The trust level of a server; untrusted if it is not configured."""
        spec = self._specs.get(server)
        return _UNTRUSTED if spec is None else spec.trust

    def describe_limits(self, server: str) -> dict[str, str | None]:
        """The limits of a server, in words; None where there is none."""
        found = self._specs[server].limits
        rates = {"calls": found.calls, "sampling": found.sampling, "sampling_tokens": found.sampling_tokens}
        told = {key: None if rate is None else f"{rate.count} in {rate.seconds:g} s" for key, rate in rates.items()}
        counts = {"concurrent": found.concurrent, "result": found.result}
        return told | {key: None if count is None else str(count) for key, count in counts.items()}

    def shows_apps(self, server: str) -> bool:
        """Whether clients may see the server's pages (MCP Apps), which run in the client."""
        return server in self._trusted_texts

    def takes_client_folder(self, server: str) -> bool:
        """Whether the server runs once per folder of a client, so that only clients with a folder can use it."""
        spec = self._specs.get(server)
        return spec is not None and spec.takes_client_folder

    def sanitizes(self, server: str) -> bool:
        """Whether invisible characters are removed from the server's texts before models and terminals get them."""
        return server not in self._trusted_texts

    def sanitize(self, server: str, raw: Raw) -> Raw:
        """A short JSON text of a server as a model or terminal may get it."""
        return Raw(sanitize_json(bytes(raw))) if self.sanitizes(server) else raw

    def sanitize_text(self, server: str, text: str) -> str:
        """A plain text of a server as a model or terminal may get it."""
        return sanitize(text, limit=MAX_TEXT) if self.sanitizes(server) else text


def _rules(spec: ServerSpec, former: Rules | None, unruled: dict[Trust, Rules]) -> Rules:
    """The rules of a server; the former object, with its cached verdicts, if the rules are unchanged."""
    if former is not None and former.compiled_from(spec.consent, spec.trust):
        return former
    if spec.consent != _NO_RULES:
        return Rules(spec.consent, spec.trust)
    if spec.trust not in unruled:
        unruled[spec.trust] = Rules(spec.consent, spec.trust)
    return unruled[spec.trust]
