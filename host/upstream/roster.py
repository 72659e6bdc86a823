"""All configured servers, connected at once, each under its own supervisor."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping
from contextlib import asynccontextmanager

import trio

from config import ServerSpec
from host.catalog import Catalog
from host.journal import Journal
from host.upstream.client import Client
from host.upstream.supervisor import Disabled, OpenLink, Upstream


class Roster:
    """The upstreams by id, in the order of the configuration. `grace` ends at most `start_grace` after the start: until
    then first answers may wait for servers that are still starting."""

    def __init__(self, upstreams: Iterable[Upstream], grace_ends: float) -> None:
        self.upstreams: Mapping[str, Upstream] = {upstream.spec.id: upstream for upstream in upstreams}
        self._grace_ends = grace_ends

    def __contains__(self, server: object) -> bool:
        return server in self.upstreams

    def ready(self, server: str) -> Client:
        """The server's client; raises Unavailable if it is not connected."""
        return self.upstreams[server].ready()

    async def wait_settled(self, server: str | None) -> None:
        """Wait until the server (None: every server) has been tried once, but never past the grace."""
        wanted = self.upstreams.values() if server is None else (self.upstreams[server],)
        starting = [upstream for upstream in wanted if not upstream.settled.is_set()]
        if not starting or trio.current_time() >= self._grace_ends:
            return
        with trio.move_on_at(self._grace_ends):
            for upstream in starting:
                await upstream.settled.wait()


@asynccontextmanager
async def open_roster(
    servers: Mapping[str, ServerSpec], start_grace: float, open_link: OpenLink, catalog: Catalog, journal: Journal
) -> AsyncIterator[Roster]:
    """Supervise the servers for the block. When it ends, all are stopped, side by side, and gone when this returns."""
    roster = Roster((Upstream(spec, catalog, journal) for spec in servers.values()), trio.current_time() + start_grace)
    async with trio.open_nursery() as nursery:
        for upstream in roster.upstreams.values():
            if upstream.spec.disabled:
                upstream.state = Disabled()
                upstream.settled.set()
            else:
                nursery.start_soon(upstream.supervise, open_link)
        try:
            yield roster
        finally:
            nursery.cancel_scope.cancel()
