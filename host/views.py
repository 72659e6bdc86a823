"""Views, compiled: the entries that a caller is offered, and their names. Pure functions of the configuration.

A view can only narrow what consent allows, and consent knows nothing of it: rules, definitions, grants and records are
about the server and its own names. The patterns of a view are read as those of an allow list (`policy/rules.py`), in
every spelling of a URI.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from types import MappingProxyType

from config import Config, Consent, KindConsent, Rule, Search, ServerSpec
from config.views import ALL, NameStyle, Override, ViewServer, ViewSpec
from host.addresses import Addresses, addresses_of
from host.names import Names
from host.policy.rules import Rules, callers_in_rules
from host.protocol.methods import Kind
from host.protocol.search_tools import SEARCH_TOOL_NAMES
from host.protocol.stateless import Freshness
from host.source import Endpoint, EntryRef

EVERYTHING = ""
"""The name of the view of everything, for callers that have no other one."""


class View:
    """One view of one configuration.

    Attributes:
        names: the outward names of the entries in it.
        instructions: what its clients are told instead of the servers' instructions; None for those.
        reserved: outward names that no server's entry may have in it: those of the search tools, listed or not.
        renames: whether tools and prompts may have other names in it than without a view.
    """

    def __init__(
        self, name: str, spec: ViewSpec, servers: Mapping[str, ServerSpec], named: Mapping[str, _Naming] | None = None
    ) -> None:
        """`named`: `naming_of(servers)`, if that is known."""
        self.name = name
        self.spec = spec
        self.reserved = frozenset[str]() if spec.search is Search.OFF else SEARCH_TOOL_NAMES
        self.instructions = spec.instructions
        self.names = Names(servers, plain=spec.names.style is NameStyle.PLAIN, limit=spec.names.limit)
        self.renames = self.names.plain or spec.names.limit is not None
        self._overrides: dict[tuple[str, Kind], Mapping[str, Override]] = {}
        self._named = naming_of(servers) if named is None else named
        self._rules: dict[str, Rules] = {}
        """Those that were asked for; see `_part`."""

    def is_made_of(self, spec: ViewSpec, named: Mapping[str, _Naming]) -> bool:
        """Whether `View` would make the same of these."""
        return spec == self.spec and named == self._named

    def treats_alike(self, server: str, other: View) -> bool:
        """Whether both views make the same of the server's entries."""
        return self is other or self._treatment(server) == other._treatment(server)

    def _treatment(self, server: str) -> object:
        part = self.spec.part(server)
        overrides = self._named.get(server, _UNNAMED)[-1], self.spec.overrides.get(server)
        return part, self.names.style_of(server), overrides, self.reserved

    def has_server(self, server: str) -> bool:
        """Whether the view has anything of the server. The view of everything has each server, whether there is one
        or not."""
        return self.spec.servers is None or server in self.spec.servers

    def may_offer(self, server: str, kind: Kind) -> bool:
        """Whether the view may have an entry of this kind of the server."""
        return self.spec.servers is None or ((part := self._part(server)) is not None and part.of_kind[kind].may_show())

    def offers_all(self, server: str, kind: Kind) -> bool:
        """Whether the view has all entries of this kind of the server."""
        return self.spec.servers is None or ((part := self._part(server)) is not None and part.of_kind[kind].shows_all)

    def offers(self, server: str, kind: Kind, name: str) -> bool:
        """Whether the view has this entry. `name` is the server's own name, URI or URI template."""
        return self.spec.servers is None or ((part := self._part(server)) is not None and part.is_visible(kind, name))

    def offers_listed(self, server: str, kind: Kind, name: str) -> bool:
        """The cached result of `offers`, for whole lists; see `Rules.is_visible_cached`."""
        if self.spec.servers is None:
            return True
        return (part := self._part(server)) is not None and part.is_visible_cached(kind, name)

    def _part(self, server: str) -> Rules | None:
        """The part for a server, as rules; None for nothing. Rules are compiled when they are first needed: 100
        servers take some milliseconds."""
        found = self._rules.get(server)
        if found is None and (part := self.spec.part(server)) is not None:
            found = self._rules[server] = _rules(part)
        return found

    def own_overrides(self, server: str, kind: Kind) -> Mapping[str, Override]:
        """The changes of a server's tools or prompts that the view itself has, by own name. Those of the view of
        everything are the server's."""
        _, _, found = self._named.get(server, _UNNAMED)
        if self.name != EVERYTHING:
            found = self.spec.overrides.get(server, {})
        return {name: each for name, each in found.items() if each.kind.value == kind.value}

    def overrides(self, server: str, kind: Kind) -> Mapping[str, Override]:
        """The changes of a server's tools or prompts for clients of the view, by own name: those of the server, with
        the view's own on top."""
        if (known := self._overrides.get((server, kind))) is not None:
            return known
        _, _, below = self._named.get(server, _UNNAMED)
        own = self.spec.overrides.get(server, {})
        found = {**below, **{name: each.on(below.get(name)) for name, each in own.items()}}
        made = {name: each for name, each in found.items() if each.kind.value == kind.value}
        return self._overrides.setdefault((server, kind), made)


class Views:
    """The views of the configuration in effect, by name; EVERYTHING is that of everything.

    Attributes:
        names: the outward names of all entries, without a view. A resource is called the same in every view.
        addresses: which views each caller reaches.
    """

    def __init__(self, servers: Mapping[str, ServerSpec] = MappingProxyType({})) -> None:
        self._by_name: dict[str, View] = {}
        self._specs: Mapping[str, ViewSpec] = {}
        self.addresses = Addresses()
        self._callers: Collection[str] = ()
        self.replace_servers(servers)

    def replace(self, config: Config) -> None:
        """Put the views of a configuration into effect. One that stays as it was stays the same object."""
        self._specs, self.addresses, self._callers = config.views, addresses_of(config), config.callers.keys()
        self.replace_servers(config.servers)

    def replace_servers(self, servers: Mapping[str, ServerSpec]) -> None:
        """Take over other servers, with the same views."""
        former, self._by_name = self._by_name, {}
        named = naming_of(servers)
        for name, spec in {EVERYTHING: ViewSpec(), **self._specs}.items():
            known = former.get(name)
            unchanged = known is not None and known.is_made_of(spec, named)
            self._by_name[name] = known if known is not None and unchanged else View(name, spec, servers, named)
        self.names = self._by_name[EVERYTHING].names
        self._named_callers = callers_in_rules(spec.consent for spec in servers.values()) & set(self._callers)
        self._is_uniform = not (self._named_callers or any(view.callers for view in self._specs.values()))

    def __iter__(self) -> Iterator[View]:
        """All views, that of everything first."""
        return iter(self._by_name.values())

    def includes(self, endpoint: Endpoint, server: str) -> bool:
        """Whether this server answers at an endpoint, if it is configured."""
        return endpoint.includes(server) and self.view(endpoint.view).has_server(server)

    def offers(self, endpoint: Endpoint, ref: EntryRef) -> bool:
        """Whether the view of an endpoint has this entry."""
        return self.view(endpoint.view).offers(ref.server, ref.kind, ref.name)

    def view(self, name: str) -> View:
        """The view of this name. One that the configuration does not have has nothing."""
        return self._by_name.get(name, _NOTHING)

    def as_cacheable(self, freshness: Freshness) -> Freshness:
        """The freshness of a list or resource for clients. It is private where callers are offered different things at
        one address, which no cache can tell apart."""
        return freshness if self._is_uniform else Freshness(freshness.ttl_ms, public=False)

    def audiences(self) -> list[tuple[str, str]]:
        """Who may be offered something else than others: each view with each caller that rules name and that reaches
        it, and first with all other callers (an empty name)."""
        others = [(view.name, "") for view in self]
        return others + [
            (view, caller)
            for caller in sorted(self._named_callers)
            for view in self.addresses.reached(caller)
            if view in self._by_name
        ]


_Naming = tuple[str, int, Mapping[str, Override]]
_UNNAMED: _Naming = ("", 0, MappingProxyType({}))


def naming_of(servers: Mapping[str, ServerSpec]) -> Mapping[str, _Naming]:
    """The values that views take from each server: its prefix, the limit of its names, and its overrides."""
    return {id: (server.outward_prefix, server.longest_name, server.overrides) for id, server in servers.items()}


def _rules(part: ViewServer) -> Rules:
    """The part of a view for a server, as rules: an allow list for each kind."""

    def allowed(patterns: tuple[str, ...], everything: tuple[str, ...]) -> KindConsent:
        return KindConsent() if patterns == everything else KindConsent(allow=tuple(map(Rule, patterns)))

    return Rules(
        Consent(
            tools=allowed(part.tools, ALL.tools),
            resources=allowed(part.resources, ALL.resources),
            prompts=allowed(part.prompts, ALL.prompts),
        )
    )


_NOTHING = View("", ViewSpec(servers=MappingProxyType({})), {})
