"""All configured servers, connected at once, each under its own supervisor, with their dedicated instances."""

from __future__ import annotations

from collections.abc import AsyncIterator, Container, Iterable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext, suppress
from functools import partial

import trio

from config import Isolation, ServerSpec
from host.catalog import Catalog
from host.errors import MethodNotFound, Unavailable
from host.exchange import Caller, Exchange
from host.journal import Journal
from host.policy.gate import Gate
from host.policy.permits import CallPermit
from host.protocol.methods import ROOTS_CHANGED
from host.slices import Steps
from host.upstream.begin import Manner
from host.upstream.client import Client
from host.upstream.connection import OpenLink, Seat
from host.upstream.instances import Instances
from host.upstream.levels import Levels
from host.upstream.supervisor import Disabled, Ready, Upstream
from host.upstream.watches import Tell
from host.wire.link import Link, LinkLost

DRAIN = 10.0
"""Seconds that the calls of a server have to end before it begins anew, or ends, for another configuration."""


class Roster:
    """The upstreams by id, in the order of the configuration; `levels` holds what callers want of their logs. Within
    `start_grace` after the start first answers may wait for servers that are still starting."""

    def __init__(
        self,
        servers: Mapping[str, ServerSpec],
        start_grace: float,
        open_link: OpenLink,
        catalog: Catalog,
        gate: Gate,
        journal: Journal,
        nursery: trio.Nursery,
        *,
        alone: bool,
    ) -> None:
        self._sole: Caller | None = None
        self.levels = Levels()
        self.upstreams: Mapping[str, Upstream] = {}
        self.instances: Mapping[str, Instances] = {}
        self._grace_ends = trio.current_time() + start_grace
        self._open_link = open_link
        self._catalog = catalog
        self._gate = gate
        self._journal = journal
        self._nursery = nursery
        self._alone = alone
        self._ending: dict[str, trio.Event] = {}
        """By id: set when the last one that was to end has ended."""
        self._due: dict[str, None] = {}
        """Servers of which it is to be judged anew what is watched."""
        self._wake = trio.Event()
        self._beginning = trio.Lock()
        self.apply(servers, servers)

    def apply(self, servers: Mapping[str, ServerSpec], anew: Container[str]) -> None:
        """Have these servers from now on, in this order. Those of them in `anew` begin anew; what they are used for
        until then, and what is not among them any more, has DRAIN seconds to come to its end. The others are not
        disturbed."""
        former, former_instances = self.upstreams, self.instances
        upstreams: dict[str, Upstream] = {}
        instances: dict[str, Instances] = {}
        for id, spec in servers.items():
            old = former.get(id)
            if old is not None and id not in anew:
                old.spec = spec
                upstreams[id] = old
                if id in former_instances:
                    former_instances[id].spec = spec
                    instances[id] = former_instances[id]
                continue
            upstream = upstreams[id] = self._made(spec)
            if old is not None:
                upstream.watches = old.watches  # whoever watches something of it goes on with that
            if spec.isolation is not Isolation.SHARED:
                instances[id] = self._instances_of(upstream)
            if old is not None:
                self._ends(old, former_instances.get(id))
            self._nursery.start_soon(self._run, upstream, self._ending.get(id))
        self.upstreams, self.instances = upstreams, instances
        for id, old in former.items():
            if id not in servers:
                self._ends(old, former_instances.get(id))

    def _ends(self, upstream: Upstream, instances: Instances | None) -> None:
        """Have it come to its end, after whatever had its name before."""
        id = upstream.spec.id
        before, self._ending[id] = self._ending.get(id), trio.Event()
        self._nursery.start_soon(self._end, upstream, instances, before, self._ending[id])

    def _made(self, spec: ServerSpec) -> Upstream:
        made = Upstream(
            spec, self._catalog, self._gate, self.levels, self._journal, lambda: self._sole, alone=self._alone
        )
        if spec.disabled:
            made.state = Disabled()
            made.settled.set()
        return made

    def _instances_of(self, upstream: Upstream) -> Instances:
        return Instances(
            upstream.spec,
            partial(_open_another, self._open_link, upstream.spec),
            partial(_manner_of, upstream),
            upstream.listed,
            self._gate,
            self.levels,
            self._journal,
            self._nursery,
        )

    async def _run(self, upstream: Upstream, former: trio.Event | None) -> None:
        """One server, once what had its name before is gone."""
        try:
            if former is not None:
                await former.wait()
            if not upstream.spec.disabled:
                with upstream.life:
                    async with self._beginning:
                        pass  # one begins in each pass: to look up and write down what it launches takes 2 ms
                    await upstream.supervise(self._open_link)
        finally:
            upstream.gone.set()

    async def _end(
        self, upstream: Upstream, instances: Instances | None, before: trio.Event | None, ended: trio.Event
    ) -> None:
        if before is not None:
            await before.wait()
        with trio.move_on_after(DRAIN):
            await upstream.idle()
            if instances is not None:
                await instances.idle()
        if instances is not None:
            instances.end()
        upstream.life.cancel("the configuration has another in its place, or none")
        await upstream.gone.wait()
        ended.set()

    def __contains__(self, server: object) -> bool:
        return server in self.upstreams

    def reconsider(self, servers: Iterable[str]) -> None:
        """Judge anew what is watched of these servers: they may show other entries than before."""
        self._due.update(dict.fromkeys(servers))
        self._wake.set()

    async def judge(self) -> None:
        """Judge anew what is to be, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._due:
                server, _ = self._due.popitem()
                await self._catalog.slices.run(self._judging(server))

    def _judging(self, server: str) -> Steps[None]:
        if server in self.upstreams:
            yield from self.upstreams[server].watches.keep_shown()
        if server in self.instances:
            yield from self.instances[server].keep_shown()

    def _upstream(self, server: str) -> Upstream:
        """Raises Unavailable for one that a new configuration took away meanwhile."""
        if server not in self.upstreams:
            raise Unavailable(server, f"{server} is not in the configuration any more")
        return self.upstreams[server]

    def ready(self, server: str) -> Client:
        """The client that keeps the server's lists; raises Unavailable if it is not connected."""
        return self._upstream(server).ready()

    def seat(self, server: str, exchange: Exchange) -> AbstractAsyncContextManager[Seat]:
        """Where the exchange is carried out, by the isolation of the server: the shared client, or a dedicated one.

        Raises, here or on entering:
            Unavailable: there is none now.
            TooMany: there are as many dedicated instances as may be.
        """
        upstream = self._upstream(server)
        if upstream.spec.isolation is Isolation.SHARED:
            return nullcontext(upstream.seat())
        return self.instances[server].seat(exchange)

    def check_subscribes(self, server: str) -> None:
        """Refuse where the server cannot be subscribed to.

        Raises:
            Unavailable: it is not connected.
            MethodNotFound: it does not offer subscriptions.
        """
        _check_subscribes(self.ready(server))

    async def watch(self, permit: CallPermit, tell: Tell) -> None:
        """Whoever has the permit hears of changes to its resource, through `tell`, until it unwatches it or is gone.
        Where every call has an instance of its own, the one that lists is watched.

        Raises:
            UpstreamError: the server did not agree, or cannot be asked.
            MethodNotFound: it does not offer this.
        """
        upstream = self._upstream(permit.server)
        lasting = upstream.spec.isolation is not Isolation.PER_CALL and permit.exchange.caller.instance_key is not None
        seat = self.seat(permit.server, permit.exchange) if lasting else nullcontext(upstream.seat())
        async with seat as found:
            _check_subscribes(found.client)
            await found.watches.watch(permit, tell)

    def unwatch(self, server: str, uri: str, caller: Caller) -> None:
        if server in self.upstreams:
            self.upstreams[server].watches.unwatch(uri, caller)
        if server in self.instances:
            self.instances[server].unwatch(uri, caller)

    async def wait_settled(self, server: str | None) -> None:
        """Wait until the server (None: every server) has been tried once, but never past the grace."""
        wanted = (
            self.upstreams.values() if server is None else [self.upstreams[server]] if server in self.upstreams else []
        )
        starting = [upstream for upstream in wanted if not upstream.settled.is_set()]
        if not starting or trio.current_time() >= self._grace_ends:
            return
        with trio.move_on_at(self._grace_ends):
            for upstream in starting:
                await upstream.settled.wait()

    def serve_only(self, caller: Caller) -> None:
        """There is one client, and will be no other: what is shared is its own. Servers that asked for roots before it
        was there are told to ask again."""
        self._sole = caller
        if caller.abilities.roots:
            self.roots_changed(caller)

    def roots_changed(self, caller: Caller) -> None:
        """The caller's roots are not what they were. Servers that it shares with others hear nothing of it."""
        clients = [instances.client_of(caller) for instances in self.instances.values()]
        if caller is self._sole:
            clients += [each.state.client for each in self.upstreams.values() if isinstance(each.state, Ready)]
        for client in clients:
            if client is not None and not client.offer.revision.stateless:
                self._nursery.start_soon(_tell_roots_changed, client)

    def release(self, caller: Caller) -> None:
        """Nothing is told to this caller any more. What serves others of the same client goes on."""
        self.levels.forget(caller)
        for upstream in self.upstreams.values():
            upstream.watches.forget(caller)
        for instances in self.instances.values():
            instances.release(caller)

    def forget(self, caller: Caller) -> None:
        """The caller is gone, with all that was kept for it."""
        self.release(caller)
        for instances in self.instances.values():
            instances.forget(caller)


def _open_another(open_link: OpenLink, spec: ServerSpec, manner: Manner) -> AbstractAsyncContextManager[Link]:
    return open_link(spec, older=manner.older)


def _manner_of(upstream: Upstream) -> Manner:
    return upstream.last_manner


async def _tell_roots_changed(client: Client) -> None:
    with suppress(LinkLost):
        await client.peer.notify(ROOTS_CHANGED)


def _check_subscribes(client: Client) -> None:
    if not client.offer.subscribes:
        raise MethodNotFound(f"{client.server} does not offer subscriptions to resources")


@asynccontextmanager
async def open_roster(
    servers: Mapping[str, ServerSpec],
    start_grace: float,
    open_link: OpenLink,
    catalog: Catalog,
    gate: Gate,
    journal: Journal,
    *,
    alone: bool = False,
) -> AsyncIterator[Roster]:
    """Supervise the servers for the block, and keep the catalog as the gate lets it be seen. When it ends, all are
    stopped, side by side, and gone when this returns. `alone`: there will be one client only (`Roster.serve_only`)."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(catalog.run)
        try:
            roster = Roster(servers, start_grace, open_link, catalog, gate, journal, nursery, alone=alone)
            nursery.start_soon(roster.judge)
            yield roster
        finally:
            nursery.cancel_scope.cancel()
