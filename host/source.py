"""The identity of an entry, as values: what consent, pins, lists, grants and the audit are about.

    Source     where definitions come from: a server, over connections of one era, with one login.
    EntryRef   one entry of a source, by the server's own name.
    AspectRef  what is pinned of a source beside its entries.
    Viewer     the clients that see the same sources.
    Endpoint   the address that a client uses, with what narrows it there.

All are pure, frozen and hashable, so they key everything that is kept about entries. A further dimension of identity
is a further field here.
"""

from __future__ import annotations

from enum import StrEnum
from functools import lru_cache

from msgspec import Struct

from host.protocol.methods import Kind
from host.protocol.versions import Era
from host.subject import Item


class Source(Struct, frozen=True, cache_hash=True, gc=False):
    """Where definitions come from."""

    server: str
    """The id of the server in the configuration."""
    era: Era
    """The era of the connection that lists them: a server may list other definitions over a session than without."""
    owner: str = ""
    """Whose login the connection has; empty for everybody's."""

    def in_era(self, era: Era) -> Source:
        """The source of the same server and login in this era."""
        return Source(self.server, era, self.owner)


class Viewer(Struct, frozen=True, cache_hash=True, gc=False):
    """The clients that see the same sources; `Catalog` has a snapshot for each."""

    era: Era
    view: str = ""
    """The name of their view; empty for none."""
    caller: str = ""
    """The name that rules have for them; empty for none."""
    owner: str = ""
    """Whose logins they use; empty for everybody's."""


@lru_cache(maxsize=1000)
def viewer_of(era: Era, view: str = "", caller: str = "") -> Viewer:
    """The viewer with everybody's logins. Each request asks for it, so the value is made once."""
    return Viewer(era, view, caller)


class Endpoint(Struct, frozen=True, cache_hash=True, gc=False):
    """What a client addresses, and what it is offered there. Whatever outlives a request is bound to it: for clients at
    another endpoint it does not exist."""

    server: str | None = None
    """The server whose own endpoint it is; None for that of all servers."""
    view: str = ""
    """The view in effect; empty for none."""
    caller: str = ""
    """The name of the client in `callers`, if a rule names it; else empty."""

    def includes(self, server: str) -> bool:
        """Whether this server answers here."""
        return self.server is None or self.server == server


SHARED = Endpoint()
"""The endpoint of all servers."""


class EntryRef(Struct, frozen=True, cache_hash=True, gc=False):
    """One tool, resource, template or prompt of a source."""

    source: Source
    kind: Kind
    name: str
    """The server's own name or URI for it."""

    @property
    def server(self) -> str:
        return self.source.server

    @property
    def item(self) -> Item:
        """The entry as people know it."""
        return Item(self.source.server, self.kind, self.name)


class Aspect(StrEnum):
    """The parts of a server beside its entries that are pinned."""

    INSTRUCTIONS = "instructions"
    LAUNCH = "launch"
    """The program or URL that it is started from, which is one for all its sources: see `launch_ref`."""


class AspectRef(Struct, frozen=True, cache_hash=True, gc=False):
    """The instructions of a source, or the launch of its server."""

    source: Source
    kind: Aspect
    name: str = ""
    """Always empty: a source has one of each."""


@lru_cache(maxsize=1000)
def launch_ref(server: str) -> AspectRef:
    """The launch of a server. It belongs to no connection; it is kept with the session's, whether there is one or
    not. Each call asks for it, so the value is made once."""
    return AspectRef(Source(server, Era.SESSION), Aspect.LAUNCH)
