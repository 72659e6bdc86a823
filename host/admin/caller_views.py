"""Views for people: each view with its cost for a model, and the entries that one caller sees in one view."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple, cast

from msgspec import Raw

from config import ViewSpec
from config.globs import Globs
from host.admin.schema import CallerView, EntryCounts, HostControl, LeftOutRow, SeenRow, ViewRow
from host.catalog import Catalog, Entry
from host.exchange import Caller
from host.jsonrpc.raw import members, value
from host.policy.gate import Gate
from host.protocol.definitions import model_tokens
from host.protocol.methods import LIST_METHODS, Kind
from host.protocol.search_tools import search_definitions
from host.router.router import Router
from host.sanitize import visible
from host.slices import pause
from host.source import Endpoint
from host.subject import Item
from host.upstream.upstreams import Upstreams

LONGEST_EXCERPT = 500
"""Characters of a title or description in a row."""


class _Offered(NamedTuple):
    """The entries that a caller gets at the shared endpoint."""

    entries: list[Entry]
    counts: EntryCounts
    tokens: int
    left_out: list[LeftOutRow]


class CallerViews:
    """Reads the views of the configuration in effect, as clients with a session see them."""

    def __init__(
        self, control: HostControl, router: Router, upstreams: Upstreams, catalog: Catalog, gate: Gate
    ) -> None:
        self._control = control
        self._router = router
        self._upstreams = upstreams
        self._catalog = catalog
        self._gate = gate

    async def rows(self) -> list[ViewRow]:
        """All views that somebody can be in, that of everything first."""
        config = self._control.config
        rows: list[ViewRow] = []
        everything = {} if config.default_view is not None else {"": ViewSpec()}
        for name, spec in {**everything, **config.views}.items():
            caller = _caller_at(Endpoint(view=name))
            offered = await self._offered(caller)
            rows.append(
                {
                    "name": name,
                    "callers": list(spec.callers),
                    "is_default": name == (config.default_view or ""),
                    "search": spec.search.value,
                    "servers": list(self._upstreams.at(caller.endpoint)),
                    "entries": offered.counts,
                    "tokens": offered.tokens,
                    "left_out": offered.left_out,
                }
            )
        return rows

    async def see(self, endpoint: Endpoint, suffix: str | None) -> CallerView:
        """The entries at an endpoint. `suffix`: see `Addresses.at`; None for a client over stdio."""
        config, caller = self._control.config, _caller_at(endpoint)
        address = "" if suffix is None else f"{config.listen.path}/{suffix}".removesuffix("/")
        offered = await self._offered(caller)
        entries: list[SeenRow] = []
        for entry in offered.entries:
            await pause()
            if self._gate.policies.has_server(entry.ref.server):  # a reload may have removed it in a pause
                entries.append(self._seen_row(entry, endpoint))
        return {
            "address": address,
            "view": endpoint.view,
            "callers": list(config.callers),
            "search": config.views.get(endpoint.view, ViewSpec()).search.value,
            "servers": list(self._upstreams.at(endpoint)),
            "instructions": visible(self._router.instructions(caller), lines=True),
            "tokens": offered.tokens,
            "entries": entries,
            "left_out": offered.left_out,
        }

    def why_left_out(self, item: Item, endpoint: Endpoint) -> str:
        """Why an entry that the endpoint has is in none of its lists, for instance `more than one is called x here`;
        empty if it is in one. `item`: as people see it, with its name made visible."""
        left_out = self._catalog.snapshot(Kind(item.kind), _caller_at(endpoint).viewer).left_out()
        rows = map(_left_out_row, left_out.values())
        return next((row["why"] for row in rows if (row["server"], row["name"]) == (item.server, item.name)), "")

    async def _offered(self, caller: Caller) -> _Offered:
        counts: dict[str, int] = {}
        offered: list[Entry] = []
        left_out: list[LeftOutRow] = []
        for kind, listing in LIST_METHODS.items():
            snapshot = self._catalog.snapshot(kind, caller.viewer)
            entries = snapshot.entries
            counts[listing.member] = len(entries)
            offered += entries
            left_out += map(_left_out_row, snapshot.left_out().values())
            await pause()
        tokens = model_tokens(sum(map(len, self._listed(caller, offered))))
        return _Offered(offered, cast(EntryCounts, counts), tokens, left_out)

    def _listed(self, caller: Caller, offered: Iterable[Entry]) -> Iterator[bytes]:
        """The definitions in the lists of the caller, where the search tools may have the place of others."""
        pinned = None
        if self._router.lists.searches(caller):
            pinned = Globs(self._control.config.views[caller.endpoint.view].pinned, uris=False)
            servers = dict.fromkeys(each.ref.server for each in offered if each.ref.kind is Kind.TOOL)
            yield from search_definitions(tuple(servers))
        for each in offered:
            if pinned is None or each.ref.kind is not Kind.TOOL or pinned.matches(each.outward):
                yield each.exported

    def _seen_row(self, entry: Entry, endpoint: Endpoint) -> SeenRow:
        definition = members(entry.exported)
        decision = self._gate.definitions.evaluate(entry.ref, None, endpoint.caller)
        return {
            "server": entry.ref.server,
            "kind": entry.ref.kind.value,
            "name": visible(entry.ref.name),
            "outward": visible(entry.outward),
            "title": excerpt_of(definition.get("title")),
            "description": excerpt_of(definition.get("description")),
            "verdict": decision.verdict.value,
            "tokens": model_tokens(len(entry.exported)),
        }


def _caller_at(endpoint: Endpoint) -> Caller:
    return Caller("the admin API", endpoint)


def _left_out_row(entry: Entry) -> LeftOutRow:
    ref, why = entry.ref, f"more than one is called {entry.outward} here"
    if entry.left_out:
        why = f"its override cannot be applied exactly: {entry.left_out}"
    return {"server": ref.server, "kind": ref.kind.value, "name": visible(ref.name), "why": visible(why)}


def excerpt_of(raw: Raw | None) -> str:
    """The beginning of a text that a server wrote; empty if it is no text."""
    try:
        text = "" if raw is None else value(raw)
    except ValueError:
        text = ""
    return visible(text)[:LONGEST_EXCERPT] if isinstance(text, str) else ""
