"""The addresses of one configuration: what each caller finds at the paths of the endpoint. Pure functions.

A view that names callers is their boundary: they reach the views that name them and nothing else. `default_view` is the
boundary of all callers that no view names. Without a boundary a caller gets everything, and each view that it asks for.
An address that a caller may not reach does not exist for it.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import MappingProxyType

from config import CallerSpec, Config, ViewSpec
from host.policy.rules import callers_in_rules
from host.source import Endpoint

VIEW_MARK = "@"
"""Precedes the name of a view in an address. No id of a server begins with it."""


def suffix_of(view: str) -> str:
    """The end of the address of a view, or of all servers if it is empty; see `Addresses.at`."""
    return f"{VIEW_MARK}{view}" if view else ""


class Addresses:
    """The endpoints that each caller reaches.

    Args:
        views: in the order of the file.
        callers: by name.
        default_view: the boundary of callers that no view names; None for none.
        ruled: the callers that some rule names, so that they may see other entries than others.
    """

    def __init__(
        self,
        views: Mapping[str, ViewSpec] = MappingProxyType({}),
        callers: Mapping[str, CallerSpec] = MappingProxyType({}),
        default_view: str | None = None,
        ruled: Collection[str] = (),
    ) -> None:
        self._specs = views
        self._names = {spec.token: name for name, spec in callers.items()}
        self._ruled = ruled
        self._known: dict[tuple[str | None, str], Endpoint] = {}
        """Those of all servers that were looked up, for speed: each request does."""
        naming = {caller: tuple(name for name, spec in views.items() if caller in spec.callers) for caller in callers}
        self._bounds = {caller: bounds for caller, bounds in naming.items() if bounds}
        if default_view is None:
            self._usual: tuple[str, ...] = ("", *views)
        else:
            unnamed = (name for name, spec in views.items() if not spec.callers and name != default_view)
            self._usual = (default_view, *unnamed)

    def reached(self, caller: str) -> tuple[str, ...]:
        """The views that a caller reaches, by its name (empty: it has none), first the one at the address of all
        servers. An empty one is that of everything. There may be no view of the first name, where a person left out a
        part of the file: nothing is in it."""
        return self._bounds.get(caller, self._usual)

    def at(self, identity: str | None, suffix: str) -> Endpoint | None:
        """The endpoint at an address; None if there is none for this caller.

        Args:
            identity: the name of the caller's access token; None without one.
            suffix: what follows the path of a transport and its slash: nothing, the id of a server, or @ and the name
                of a view. Whether there is such a server is not looked at.
        """
        if (known := self._known.get((identity, suffix))) is not None:
            return known
        name = "" if identity is None else self._names.get(identity, "")
        reached = self.reached(name)
        view, ruled = reached[0], name if name in self._ruled else ""
        if suffix.startswith(VIEW_MARK):
            view = suffix[len(VIEW_MARK) :]
            if view not in reached or view not in self._specs:  # in this order one that is not there takes as long
                return None
        elif suffix:
            return Endpoint(suffix, view, ruled) if self._has(view, suffix) else None
        found = self._known[identity, suffix] = Endpoint(view=view, caller=ruled)
        return found

    def own(self, view: str) -> Endpoint | None:
        """The endpoint of a client of this user over stdio, for which a view is no boundary.

        Args:
            view: the one that it names; empty for none.

        Returns:
            None if there is no such view.
        """
        if view and view not in self._specs:
            return None
        return Endpoint(view=view or self._usual[0])

    def keeps(self, later: Addresses, identity: str | None, endpoint: Endpoint) -> bool:
        """Whether each address of this endpoint leads there in `later` too, for this caller."""
        known = {endpoint.server or "", f"{VIEW_MARK}{endpoint.view}"}
        return all(later.at(identity, each) == endpoint for each in known if self.at(identity, each) == endpoint)

    def _has(self, view: str, server: str) -> bool:
        return not view or (view in self._specs and self._specs[view].part(server) is not None)


def addresses_of(config: Config) -> Addresses:
    """The addresses of a configuration."""
    ruled = callers_in_rules(spec.consent for spec in config.servers.values())
    return Addresses(config.views, config.callers, config.default_view, ruled)
