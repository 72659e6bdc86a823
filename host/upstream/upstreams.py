"""All configured servers: each has its own supervisor, and dedicated instances if it is not shared."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Container, Hashable, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from functools import partial

import trio

from config import Isolation, ServerSpec
from host.errors import MethodNotFound, TimedOut, TooManyRequests, Unavailable
from host.exchange import Caller, Exchange
from host.policy.gate import WatchPermit
from host.protocol.era import SESSION, STATELESS, Era
from host.protocol.methods import RESOURCE, ROOTS_CHANGED, Kind
from host.protocol.negotiated import NegotiatedServer
from host.slices import Steps
from host.source import EntryRef, Source
from host.upstream.client import DEFINED_BY, Client
from host.upstream.connection import OpenLink, UpstreamLease
from host.upstream.instances import Instances
from host.upstream.negotiate import Dialect
from host.upstream.remembered import is_same_server
from host.upstream.resource_watches import NotifyWatcher
from host.upstream.runtime import Runtime
from host.upstream.state import Disabled, Ready
from host.upstream.supervisor import Upstream
from host.wire.link import Link, LinkLost

DRAIN_TIMEOUT = 10.0
"""Seconds in which the calls of a server must end before it is restarted or removed by a new configuration."""


MAX_WAITING_REQUESTS = 100
"""Requests of one owner that may wait at once for servers that are starting, or for logins."""
REREAD_WAIT = 1.0
"""Longest wait, in seconds, of a request for the reading of old or changed lists."""


class Upstreams:
    """The upstreams by id, in the order of the configuration.

    Args:
        start_grace: seconds for which requests for lists wait for a server that was never seen, from the moment at
            which it was first started.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec],
        start_grace: float,
        open_link: OpenLink,
        runtime: Runtime,
        nursery: trio.Nursery,
        *,
        single_client: bool,
    ) -> None:
        self._sole_caller: Caller | None = None
        self.by_id: Mapping[str, Upstream] = {}
        self.instances: Mapping[str, Instances] = {}
        self._start_grace = start_grace
        self._waiting = Counter[Hashable]()
        """Requests that wait for a starting server, by the owner of their caller."""
        self._open_link = open_link
        self._runtime = runtime
        self._nursery = nursery
        self._single_client = single_client
        self._ending: dict[str, trio.Event] = {}
        """By id: set when the last former server with this id has ended."""
        self._due: dict[str, None] = {}
        """Servers whose watches must be evaluated again."""
        self._wake = trio.Event()
        self._start_lock = trio.Lock()
        runtime.gate.definitions.subscribe(self.reevaluate)
        self.apply(servers, servers)

    def apply(self, servers: Mapping[str, ServerSpec], restarted: Container[str]) -> None:
        """Apply a configuration: the servers in their new order. Those in `restarted` are restarted, and those that are
        missing end; their calls have DRAIN_TIMEOUT seconds to end. The others continue."""
        former, former_instances = self.by_id, self.instances
        upstreams: dict[str, Upstream] = {}
        instances: dict[str, Instances] = {}
        for id, spec in servers.items():
            old = former.get(id)
            if old is not None and id not in restarted:
                old.spec = spec
                upstreams[id] = old
                if id in former_instances:
                    former_instances[id].spec = spec
                    instances[id] = former_instances[id]
                continue
            upstream = upstreams[id] = self._make_upstream(spec)
            if old is not None and is_same_server(old.spec, spec):
                upstream.take_over(old)
            elif old is not None:
                upstream.watches = old.watches  # the watches of clients continue
                self._runtime.catalog.withdraw_server(id)  # another owner of credentials may see other entries
            if spec.isolation is not Isolation.SHARED:
                instances[id] = self._make_instances(upstream)
            if old is not None:
                self._schedule_end(old, former_instances.get(id))
            self._nursery.start_soon(self._run, upstream, self._ending.get(id))
        self.by_id, self.instances = upstreams, instances
        for id, old in former.items():
            if id not in servers:
                self._schedule_end(old, former_instances.get(id))

    def _schedule_end(self, upstream: Upstream, instances: Instances | None) -> None:
        """End a server, after former ones with the same id."""
        id = upstream.spec.id
        upstream.retire()
        former_ended, self._ending[id] = self._ending.get(id), trio.Event()
        self._nursery.start_soon(self._end, upstream, instances, former_ended, self._ending[id])

    def _make_upstream(self, spec: ServerSpec) -> Upstream:
        upstream = Upstream(spec, self._runtime, lambda: self._sole_caller, single_client=self._single_client)
        if spec.disabled:
            upstream.state = Disabled()
        return upstream

    def _make_instances(self, upstream: Upstream) -> Instances:
        return Instances(
            upstream.spec,
            partial(_open_instance_link, self._open_link, upstream.spec),
            lambda caller: upstream.serving(caller.era),
            self._runtime,
            self._nursery,
        )

    async def _run(self, upstream: Upstream, former_ended: trio.Event | None) -> None:
        """Supervise one server, after the end of a former one with the same id."""
        try:
            if former_ended is not None:
                await former_ended.wait()
            if not upstream.spec.disabled:
                with upstream.supervision_scope:
                    async with self._start_lock:
                        pass  # one server begins in each pass: looking up and storing its launch takes 2 ms
                    await upstream.supervise(self._open_link)
        finally:
            for each in upstream.connections:
                if each.is_starting or each.needs_login:
                    each.state = Disabled()  # requests that wait for it look for its successor
            upstream.stopped.set()

    async def _end(
        self, upstream: Upstream, instances: Instances | None, former_ended: trio.Event | None, ended: trio.Event
    ) -> None:
        if former_ended is not None:
            await former_ended.wait()
        with trio.move_on_after(DRAIN_TIMEOUT):
            await upstream.wait_idle()
            if instances is not None:
                await instances.wait_idle()
        if instances is not None:
            instances.end()
        upstream.supervision_scope.cancel("the server was changed or removed in the configuration")
        await upstream.stopped.wait()
        ended.set()

    def __contains__(self, server: object) -> bool:
        return server in self.by_id

    def reevaluate(self, servers: Collection[str]) -> None:
        """Evaluate the lists and watches of these servers again, because the visibility of entries has changed."""
        self._runtime.catalog.reevaluate(servers)
        self._due.update(dict.fromkeys(servers))
        self._wake.set()

    async def run(self) -> None:
        """Evaluate the watches of servers that are due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._due:
                server, _ = self._due.popitem()
                await self._runtime.catalog.slices.run(self._reevaluate_server(server))

    def _reevaluate_server(self, server: str) -> Steps[None]:
        if server in self.by_id:
            for each in self.by_id[server].connections:
                yield from each.watches.drop_hidden()
        if server in self.instances:
            yield from self.instances[server].drop_hidden()

    def _serving(self, server: str, caller: Caller | None) -> Upstream:
        """The upstream that serves this caller (None: a stateless one) at a server; see `Upstream.serving`.

        Raises:
            Unavailable: a new configuration has removed the server.
        """
        if server not in self.by_id:
            raise Unavailable(server, f"{server} is not in the configuration any more")
        return self.by_id[server].serving(STATELESS if caller is None else caller.era)

    def ready_client(self, server: str, caller: Caller | None = None) -> Client:
        """The shared client of a server for this caller; raises Unavailable if it is not connected."""
        return self._serving(server, caller).ready_client()

    def lease(self, server: str, exchange: Exchange) -> AbstractAsyncContextManager[UpstreamLease]:
        """Lease a connection for an exchange: the shared one, or a dedicated one, by the isolation of the server.

        Raises, here or on entering:
            Unavailable: the server is not connected.
            TooManyResources: `max_instances` is reached.
        """
        upstream = self._serving(server, exchange.caller)
        if upstream.spec.isolation is Isolation.SHARED:
            return upstream.lease()
        if upstream.needs_login:
            upstream.ready_client()  # raises: an instance would be refused as well
        return self.instances[server].lease(exchange)

    def check_subscribable(self, server: str, caller: Caller) -> None:
        """Check that the server has resource subscriptions; for a server that is starting, that it had them.

        Raises:
            Unavailable: the server is not connected.
            MethodNotFound: the server has no subscriptions.
        """
        upstream = self._serving(server, caller)
        negotiated = upstream.negotiated if upstream.is_starting else None
        _check_subscribable(server, negotiated or upstream.ready_client().negotiated)

    async def watch(self, permit: WatchPermit, notify: NotifyWatcher) -> None:
        """Watch a resource for the caller of the permit, until it unwatches the resource or is gone. With `per-call`,
        the shared connection is used.

        Args:
            notify: called at each change.

        Raises:
            UpstreamError: the server did not agree, or cannot be reached.
            MethodNotFound: the server has no subscriptions.
        """
        caller = permit.exchange.caller
        server = permit.ref.server
        upstream = self._serving(server, caller)
        lasting = upstream.spec.isolation is not Isolation.PER_CALL and caller.instance_key is not None
        lease = self.lease(server, permit.exchange) if lasting else upstream.lease()
        async with lease as leased:
            _check_subscribable(server, leased.client.negotiated)
            await leased.watches.watch(permit, notify)

    def unwatch(self, server: str, uri: str, caller: Caller) -> None:
        if server in self.by_id:
            for each in self.by_id[server].connections:
                each.watches.unwatch(uri, caller)
        if server in self.instances:
            self.instances[server].unwatch(uri, caller)

    async def wait_listed(self, server: str | None, era: Era, *, at_most: float = math.inf) -> None:
        """Wait until the lists of the server (None: of all servers) are known, from the store or from the server, but
        for each no longer than `start_grace` after its first start. Waits for no server whose first attempt failed.

        Args:
            era: of the clients, whose lists of a server may be those of its session.
            at_most: seconds to wait for all of them together.
        """
        with trio.move_on_after(min(at_most, self._start_grace)):
            while (upstream := self._first_unlisted(server, era)) is not None:  # a new configuration may replace it
                with trio.move_on_at(upstream.created_at + self._start_grace):
                    await upstream.listed.wait()

    def _first_unlisted(self, server: str | None, era: Era) -> Upstream | None:
        """A server that lists wait for now, of all or only this one. Sessions that were never open are started."""
        waited: list[Upstream] = []
        for id in self.by_id if server is None else self.by_id.keys() & {server}:
            upstream = self.by_id[id].serving(era)
            upstream.begin()
            if not upstream.listed.is_set() and upstream.created_at + self._start_grace > trio.current_time():
                waited.append(upstream)
        return waited[0] if waited else None

    async def wait_known(self, server: str | None, caller: Caller) -> None:
        """Wait as `wait_listed` does for a request that names an entry of this server, or (None) of any server: no
        longer than a call of it may take.

        Raises:
            TooManyRequests: too many requests of this owner wait.
        """
        wanted = [each for each in self._upstreams_for(server, caller.era) if not each.listed.is_set()]
        if wanted:
            with self.waiting_request(caller):
                at_most = min(each.spec.timeout for each in wanted)
                await self.wait_listed(server, caller.era, at_most=at_most)

    def _upstreams_for(self, server: str | None, era: Era) -> list[Upstream]:
        """The connections that serve clients of an era at the server (None: at all servers)."""
        upstreams = self.by_id.values() if server is None else (self.by_id[server],) if server in self.by_id else ()
        return [each.serving(era) for each in upstreams]

    def are_listed(self, server: str | None, caller: Caller) -> bool:
        """Whether the lists of the server (None: of all servers) for this caller are known."""
        return all(upstream.listed.is_set() for upstream in self._upstreams_for(server, caller.era))

    def are_old(self, server: str | None, caller: Caller, kinds: Collection[Kind] = ()) -> bool:
        """Whether a list of the server (None: of any server) for this caller is old whose changes are not announced, or
        one of `kinds` has an announced change that was not read yet."""
        return any(
            upstream.has_old_lists or not upstream.lists.are_read(kinds)
            for upstream in self._upstreams_for(server, caller.era)
        )

    async def reread(
        self, server: str | None, caller: Caller, missed: Collection[Kind] = (), changed: Collection[Kind] = ()
    ) -> bool:
        """Have the old lists of the server (None: of all servers) for this caller read, and those in `missed`, in which
        a name is missing. Waits for that, and for announced changes of the lists in `missed` and `changed`, but no
        longer than REREAD_WAIT. Returns whether there was anything to wait for."""
        upstreams = self._upstreams_for(server, caller.era)
        kinds = {*missed, *changed}
        changing = [each for each in upstreams if not each.lists.are_read(kinds)]
        readings = [reading for each in upstreams if (reading := each.read_if_old(missed)) is not None]
        with trio.move_on_after(REREAD_WAIT):
            for each in changing:
                await each.lists.wait_for_changes(kinds, REREAD_WAIT)
            for reading in readings:
                await reading.wait()
        return bool(readings or changing)

    async def wait_read(self, server: str | None, kind: Kind, caller: Caller) -> None:
        """Wait until the lists with entries of this kind have been read over the connection that serves this caller."""
        if server is not None and (upstream := self.find(server, caller)) is not None:
            with trio.move_on_after(upstream.spec.timeout):
                await upstream.lists.wait_until_read(DEFINED_BY[kind])

    async def wait_started(self, server: str, caller: Caller, since: float | None = None) -> bool:
        """Wait until the server has started. Returns whether it had not: its lists may be other ones now.

        Args:
            since: when the request came; None: now.

        Raises:
            TimedOut: that took as long as its calls may take.
            TooManyRequests: too many requests of this owner wait.
        """
        if not self.is_starting(server, caller):
            return False
        timeout = self.by_id[server].spec.timeout
        with self.waiting_request(caller):
            with trio.move_on_at((trio.current_time() if since is None else since) + timeout) as waiting:
                while self.is_starting(server, caller):  # a new configuration may have replaced it
                    await self._serving(server, caller).wait_started()
        if waiting.cancelled_caught:
            raise TimedOut(server, f"{server} did not start within {timeout:.0f} s; the call was not sent")
        return True

    async def wait_retried(self, server: str, caller: Caller) -> None:
        """Wait while the server has failed and is tried again soon."""
        await self._serving(server, caller).wait_retried()

    @contextmanager
    def waiting_request(self, caller: Caller) -> Iterator[None]:
        """Count a request that waits for a server that is starting or needs a login, for the block.

        Raises:
            TooManyRequests: too many of this owner wait.
        """
        owner = caller.owner
        if self._waiting[owner] >= MAX_WAITING_REQUESTS:
            raise TooManyRequests(
                f"{MAX_WAITING_REQUESTS} requests wait for servers that are not ready; try again later"
            )
        self._waiting[owner] += 1
        try:
            yield
        finally:
            self._waiting[owner] -= 1
            if not self._waiting[owner]:
                del self._waiting[owner]

    def is_only_remembered(self, ref: EntryRef) -> bool:
        """Whether the source has not listed its entries of this kind to this host, which may be other ones by now."""
        catalog = self._runtime.catalog
        if ref.kind is RESOURCE and catalog.is_remembered(ref.source, Kind.TEMPLATE):
            return True
        return catalog.is_remembered(ref.source, ref.kind)

    def find(self, server: str, caller: Caller) -> Upstream | None:
        """The connection that serves this caller at the server, if there is one."""
        upstream = self.by_id.get(server)
        return upstream if upstream is None or caller.era is STATELESS else upstream.for_sessions

    def source(self, server: str, caller: Caller) -> Source:
        """What the server offers this caller comes from there, as far as is known. A server that is not configured, or
        was never connected, counts as one with sessions."""
        upstream = self.find(server, caller)
        return Source(server, SESSION) if upstream is None else upstream.source

    def unread(self, server: str, kind: Kind, caller: Caller) -> Unavailable:
        """The error for a request whose definition is only remembered: LoginNeeded if the server needs a login."""
        try:
            self.ready_client(server, caller)
        except Unavailable as away:
            return away
        return Unavailable(server, f"{server} is unavailable: its list of {kind.value}s could not be read")

    def is_starting(self, server: str, caller: Caller) -> bool:
        """Whether what serves this caller at the server is connecting, or will be once it is used."""
        upstream = self.find(server, caller)
        return upstream is not None and upstream.is_starting

    def refresh(self, server: str, kind: Kind, caller: Caller) -> None:
        """Have a list for this caller read again that may be outdated."""
        self._serving(server, caller).lists.refresh(kind)

    def serve_only(self, caller: Caller) -> None:
        """Set the only client of this host, which owns the shared connections. Servers that requested roots before it
        was there are told that roots have changed."""
        self._sole_caller = caller
        if caller.abilities.roots:
            self.roots_changed(caller)

    def roots_changed(self, caller: Caller) -> None:
        """Notify servers that the caller's roots have changed: only over connections that serve this caller alone."""
        clients = [instances.client_of(caller) for instances in self.instances.values()]
        if caller is self._sole_caller:
            upstreams = [each for upstream in self.by_id.values() for each in upstream.connections]
            clients += [each.state.client for each in upstreams if isinstance(each.state, Ready)]
        for client in clients:
            if client is not None and not client.negotiated.revision.stateless:
                self._nursery.start_soon(_notify_roots_changed, client)

    def release(self, caller: Caller) -> None:
        """Forget the watches and the log level of a caller. Its instances stay, because other callers of the same
        client may use them."""
        self._runtime.log_levels.forget(caller)
        for upstream in self.by_id.values():
            for each in upstream.connections:
                each.watches.forget(caller)
        for instances in self.instances.values():
            instances.release(caller)

    def forget(self, caller: Caller) -> None:
        """Forget everything of a caller that is gone, and end its instances."""
        self.release(caller)
        for instances in self.instances.values():
            instances.forget(caller)


def _open_instance_link(open_link: OpenLink, spec: ServerSpec, dialect: Dialect) -> AbstractAsyncContextManager[Link]:
    return open_link(spec, http_sse=dialect.http_sse)


async def _notify_roots_changed(client: Client) -> None:
    with suppress(LinkLost):
        await client.peer.notify(ROOTS_CHANGED)


def _check_subscribable(server: str, negotiated: NegotiatedServer) -> None:
    if not negotiated.has_subscriptions:
        raise MethodNotFound(f"{server} has no resource subscriptions")


@asynccontextmanager
async def open_upstreams(
    servers: Mapping[str, ServerSpec],
    start_grace: float,
    open_link: OpenLink,
    runtime: Runtime,
    *,
    single_client: bool = False,
) -> AsyncIterator[Upstreams]:
    """Supervise the servers for the block, and keep their visible entries in the catalog of the runtime. At the end all
    servers are stopped, concurrently.

    Args:
        single_client: there will be only one client (`Upstreams.serve_only`).
    """
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.catalog.run)
        try:
            upstreams = Upstreams(servers, start_grace, open_link, runtime, nursery, single_client=single_client)
            nursery.start_soon(upstreams.run)
            yield upstreams
        finally:
            nursery.cancel_scope.cancel()
