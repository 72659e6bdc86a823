"""The search tools, which a view with search lists in place of its tools (`protocol/search_tools.py`).

A call through call_tool or read_tool is rewritten to the call of the other tool before its name is resolved (`unwrap`),
and then takes the way of every call. The other two are answered here, from what the caller may see: no server gets
anything of them, and no rule decides about them.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from weakref import WeakValueDictionary

import trio
from msgspec import Raw

from config import ToolClaim
from host.catalog import Entry, KindSnapshot
from host.exchange import Answered, Caller, Exchange
from host.jsonrpc.raw import string
from host.memory import Holding, OverBudget, Use
from host.policy.claims import claims_hold
from host.protocol.downgrade import downgrade_result
from host.protocol.methods import TOOLS_CALL, Kind
from host.protocol.search_tools import (
    CALL_TOOL,
    DESCRIBE_TOOLS,
    READ_TOOL,
    SEARCH_TOOLS,
    FoundTool,
    InvalidArguments,
    Query,
    called_through,
    described_result,
    error_result,
    found_result,
    found_tool,
    names_of,
    query_of,
)
from host.router.lists import Lists, is_fit
from host.router.resolve import Resolver
from host.search.index import Index, ToolTexts
from host.slices import pause
from host.source import Viewer
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams

MAX_UPDATES = 3
"""Updates of an index that one search waits for, if the lists keep changing. What it finds then may be out of date, but
nothing is shown that the caller may not see."""
_READ_ONLY = (ToolClaim.READ_ONLY,)


BYTES_OF_A_WORD = 128
"""Memory of one word of a tool in an index (measured with words that other tools have, too)."""


class _ViewerIndex:
    """The tools that one viewer sees, as of a version of its snapshot.

    `holding` is charged for them; once it is dropped, no tool is added. Tools for which there is no memory are not
    found until the list changes.
    """

    def __init__(self, texts: ToolTexts, holding: Holding) -> None:
        self.tools = Index(texts, self._charge)
        self.holding = holding
        self.version = -1
        self.updated: trio.Event | None = None
        """Set at the end of the present update; None if there is none."""

    async def update(self, snapshot: KindSnapshot) -> None:
        await self.tools.update((entry.ref.server, entry.local, entry.edited) for entry in snapshot.entries)
        self.version = snapshot.version

    def _charge(self, words: int) -> bool:
        try:
            self.holding.grow(words * BYTES_OF_A_WORD)
        except OverBudget:
            return False
        return True


class ToolSearch:
    """Answers the search tools of all views."""

    def __init__(self, runtime: Runtime, upstreams: Upstreams, resolver: Resolver, lists: Lists) -> None:
        self._catalog = runtime.catalog
        self._definitions = runtime.gate.definitions
        self._views = runtime.gate.policies.views
        self._upstreams = upstreams
        self._resolver = resolver
        self._lists = lists
        self._texts: ToolTexts = WeakValueDictionary()
        self._indexes: dict[Viewer, _ViewerIndex] = {}

    def unwrap(self, caller: Caller, params: Mapping[str, Raw]) -> tuple[Mapping[str, Raw], str]:
        """The params of the call that a `tools/call` stands for, and the search tool that it comes through. The params
        themselves and an empty name for any other call, and for one that `answer` refuses.

        Raises:
            AmbiguousMembers: see `called_through`.
        """
        if not caller.endpoint.view:
            return params, ""
        try:
            name = string(params["name"])
            if name in (CALL_TOOL, READ_TOOL) and self.offers(caller, name):
                return called_through(params), name
        except (KeyError, ValueError, InvalidArguments):
            pass  # refused later, in words
        return params, ""

    def offers(self, caller: Caller, name: str) -> bool:
        """Whether this is the name of a search tool at the caller's endpoint, listed or not."""
        endpoint = caller.endpoint
        return endpoint.server is None and name in self._views.view(endpoint.view).reserved

    async def answer(self, exchange: Exchange, name: str) -> Answered:
        """The result of a search tool itself, which the caller is offered under this name."""
        caller, params = exchange.caller, exchange.params
        try:
            if name == SEARCH_TOOLS:
                result = await self._search(caller, query_of(params))
            elif name == DESCRIBE_TOOLS:
                result = await self._describe(caller, names_of(params))
            else:
                called_through(params)
                # A reload gave the view its search while the name was resolved: `unwrap` had no reason to rewrite this.
                raise InvalidArguments("the tools have changed meanwhile; send the request again")
        except InvalidArguments as problem:
            result = error_result(f"{name}: {problem}")
        return Answered(downgrade_result(TOOLS_CALL.name, result, caller.abilities, result))

    async def _search(self, caller: Caller, query: Query) -> Raw:
        await self._lists.wait_fresh(caller, Kind.TOOL)
        known = self._servers(self._catalog.snapshot(Kind.TOOL, caller.viewer))
        server = None if query.server is None else known.get(query.server)
        if query.server is not None and server is None:
            those = ", ".join(sorted(set(known.values()))) or "none"
            return error_result(f"{SEARCH_TOOLS}: no server {query.server[:80]!a} has tools here; known are: {those}")
        index = await self._index(caller.viewer)
        hits = await index.search(query.query, server, query.limit)
        snapshot = self._catalog.snapshot(Kind.TOOL, caller.viewer)
        entries = [part.by_local.get(hit.name) for hit in hits if (part := snapshot.parts.get(hit.server)) is not None]
        found = await self._found([entry for entry in entries if entry is not None])
        snapshot = self._catalog.snapshot(Kind.TOOL, caller.viewer)
        # Looked at now: what was found may be hidden by now.
        return found_result(each for entry, each in found if self._is_shown(entry, caller, snapshot))

    async def _found(self, entries: list[Entry]) -> list[tuple[Entry, FoundTool]]:
        """The result of a search about these tools."""
        found: list[tuple[Entry, FoundTool]] = []
        for entry in entries:
            await pause()  # a long definition takes some milliseconds
            reads = bool(claims_hold(_READ_ONLY, self._definitions.vouched_claims(entry.ref)))
            found.append((entry, found_tool(entry.outward, entry.ref.server, entry.exported, read_only=reads)))
        return found

    def _is_shown(self, entry: Entry, caller: Caller, snapshot: KindSnapshot) -> bool:
        if entry.ref in snapshot.colliding or snapshot.entry(entry.ref.server, entry.local) is None:
            return False
        return self._definitions.is_visible(entry.ref, caller.endpoint.caller) and is_fit(entry, caller.era)

    def _servers(self, snapshot: KindSnapshot) -> dict[str, str]:
        """The servers that have tools for these clients, by id and by the prefix of their names."""
        ids = [server for server, part in snapshot.parts.items() if part.visible and server in self._upstreams]
        prefixes = {self._upstreams[server].spec.outward_prefix: server for server in ids}
        return prefixes | {server: server for server in ids}

    async def _describe(self, caller: Caller, names: list[str]) -> Raw:
        await self._lists.wait_fresh(caller, Kind.TOOL)
        definitions: list[bytes] = []
        unknown: list[str] = []
        for name in names:
            # Hidden and missing names take the same way.
            entry = self._resolver.visible(self._resolver.resolve_now(caller, Kind.TOOL, name), caller)
            if entry is None or not is_fit(entry, caller.era):
                unknown.append(name)
            else:
                definitions.append(await self._lists.definition(entry, caller))
        return described_result(definitions, unknown)

    async def _index(self, viewer: Viewer) -> Index:
        """The index of what a viewer sees now."""
        if viewer not in self._indexes:
            for former in [each for each in self._indexes if not self._views.view(each.view).reserved]:
                if (gone := self._indexes.pop(former, None)) is not None:  # another search may give it up, too
                    gone.holding.release()  # at once: while the index is emptied, nothing may drop it
                    await gone.tools.update(())
        if viewer not in self._indexes:
            holding = self._catalog.memory.hold(("index", viewer), Use.LISTS, drop=partial(self._drop, viewer))
            self._indexes[viewer] = _ViewerIndex(self._texts, holding)
        index = self._indexes[viewer]
        for _ in range(MAX_UPDATES):
            await self._catalog.wait_until_evaluated(Kind.TOOL)
            snapshot = self._catalog.snapshot(Kind.TOOL, viewer)
            if index.version == snapshot.version:
                break
            if index.updated is not None:
                await index.updated.wait()
                continue
            index.updated = updated = trio.Event()
            try:
                await index.update(snapshot)
            finally:
                index.updated = None
                updated.set()
        return index.tools

    def _drop(self, viewer: Viewer) -> None:
        """Give up an index, because its memory is needed. The next search makes it anew."""
        self._indexes.pop(viewer).holding.release()
