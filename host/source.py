"""The identity of an entry, as values: what consent, pins, lists, grants and the audit are about.

    Source    where definitions come from: a server, over connections of one era, with one login.
    EntryRef  one entry of a source, by the server's own name.

Both are pure, frozen and hashable, so they key everything that is kept about entries. A further dimension of identity
is a further field here.
"""

from __future__ import annotations

from msgspec import Struct

from host.protocol.era import Era
from host.protocol.methods import Kind


class Source(Struct, frozen=True, cache_hash=True, gc=False):
    """Where definitions come from."""

    server: str
    """The id of the server in the configuration."""
    era: Era
    """The era of the connection that lists them: a server may list other definitions over a session than without."""
    owner: str = ""
    """Whose login the connection has; empty for everybody's."""


class EntryRef(Struct, frozen=True, cache_hash=True, gc=False):
    """One tool, resource, template or prompt of a source."""

    source: Source
    kind: Kind
    name: str
    """The server's own name or URI for it."""

    @property
    def server(self) -> str:
        return self.source.server
