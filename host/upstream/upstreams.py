"""All configured servers, the changes of their configuration, and the waits that concern several of them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import AsyncIterator, Collection, Container, Hashable, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from functools import partial

import trio

from config import ServerSpec
from host.errors import TimedOut, TooManyRequests, Unavailable
from host.exchange import Caller
from host.protocol.methods import ROOTS_CHANGED, Kind
from host.protocol.versions import SESSION
from host.source import Endpoint, Source
from host.upstream.client import Client
from host.upstream.remembered import is_same_server
from host.upstream.runtime import Runtime
from host.upstream.supervised import UpstreamConnection
from host.upstream.supervisor import UpstreamServer
from host.wire.link import LinkLost

DRAIN_TIMEOUT = 10.0
"""Seconds in which the calls of a server must end before it is restarted or removed by a new configuration."""


MAX_WAITING_REQUESTS = 100
"""Requests of one owner that may wait at once for servers that are starting, or for logins."""
RECALL_WAIT = 0.5
"""Longest wait, in seconds, of `initialize` and `server/discover` for the store, which another process may lock."""
REREAD_WAIT = 1.0
"""Longest wait, in seconds, of a request for the reading of old or changed lists."""


class Upstreams:
    """The servers by id, in the order of the configuration.

    Args:
        start_grace: seconds for which requests for lists wait for a server that was never seen, from the moment at
            which it was first started.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerSpec],
        start_grace: float,
        runtime: Runtime,
        nursery: trio.Nursery,
    ) -> None:
        self._sole_caller: Caller | None = None
        self.by_id: Mapping[str, UpstreamServer] = {}
        self._start_grace = start_grace
        self._waiting = Counter[Hashable]()
        """Requests that wait for a starting server, by the owner of their caller."""
        self._runtime = runtime
        self._nursery = nursery
        self._ending: dict[str, trio.Event] = {}
        """By id: set when the last former server with this id has ended."""
        self._due: dict[str, None] = {}
        """Servers whose watches must be evaluated again."""
        self._wake = trio.Event()
        self._start_lock = trio.Lock()
        """Lets servers begin one after another; see `_run`."""
        runtime.gate.definitions.subscribe(self.reevaluate)
        self.apply(servers, servers)

    def apply(self, servers: Mapping[str, ServerSpec], restarted: Container[str]) -> None:
        """Apply a configuration: the servers in their new order. Those in `restarted` are restarted, and those that are
        missing end; their calls have DRAIN_TIMEOUT seconds to end. The others continue."""
        former = self.by_id
        self.by_id = {id: self._take(spec, former.get(id), id in restarted) for id, spec in servers.items()}
        for id, old in former.items():
            if id not in servers:
                self._schedule_end(old)
        self._review_watches(servers)  # a view may have changed

    def _take(self, spec: ServerSpec, old: UpstreamServer | None, is_restarted: bool) -> UpstreamServer:
        """The server of this configuration: the one that runs, or another one in its place."""
        if old is not None and not is_restarted:
            old.spec = spec
            return old
        server = UpstreamServer(spec, self._runtime, partial(self._sole_caller_at, spec.id), self._nursery)
        if old is not None and is_same_server(old.spec, spec) and _has_same_names(old.spec, spec):
            server.take_over(old)
        elif old is not None:
            server.take_watches(old)
            # Another owner of credentials may see other entries, and entries are made with their names.
            self._runtime.catalog.withdraw_server(spec.id)
        if old is not None:
            self._schedule_end(old)
        self._nursery.start_soon(self._run, server, self._ending.get(spec.id))
        return server

    def _sole_caller_at(self, server: str) -> Caller | None:
        """The only client of this host, if there is one and its endpoint has this server: to any other server it is
        none."""
        caller = self._sole_caller
        return caller if caller is not None and server in self.at(caller.endpoint) else None

    def _schedule_end(self, server: UpstreamServer) -> None:
        """End a server, after former ones with the same id."""
        id = server.spec.id
        server.is_current = False
        former_ended, self._ending[id] = self._ending.get(id), trio.Event()
        self._nursery.start_soon(self._end, server, former_ended, self._ending[id])

    async def _run(self, server: UpstreamServer, former_ended: trio.Event | None) -> None:
        """Supervise one server, after the end of a former one with the same id."""
        try:
            if former_ended is not None:
                await former_ended.wait()
            if not server.spec.disabled:
                with server.supervision_scope:
                    async with self._start_lock:
                        pass  # one server begins in each pass: looking up and storing its launch takes 2 ms
                    await server.supervise()
        finally:
            server.give_way()
            server.stopped.set()

    async def _end(self, server: UpstreamServer, former_ended: trio.Event | None, ended: trio.Event) -> None:
        if former_ended is not None:
            await former_ended.wait()
        with trio.move_on_after(DRAIN_TIMEOUT):
            await server.wait_idle()
        server.end()
        await server.stopped.wait()
        ended.set()

    def __contains__(self, server: object) -> bool:
        return server in self.by_id

    def __getitem__(self, server: str) -> UpstreamServer:
        """A server.

        Raises:
            Unavailable: a new configuration has removed it.
        """
        if server not in self.by_id:
            raise Unavailable(server, f"{server} is not in the configuration any more")
        return self.by_id[server]

    def reevaluate(self, servers: Collection[str]) -> None:
        """Evaluate the lists and watches of these servers again, because the visibility of entries has changed."""
        self._runtime.catalog.reevaluate(servers)
        self._review_watches(servers)

    def _review_watches(self, servers: Iterable[str]) -> None:
        self._due.update(dict.fromkeys(servers))
        self._wake.set()

    async def run(self) -> None:
        """Evaluate the watches of servers that are due, until cancelled."""
        while True:
            await self._wake.wait()
            self._wake = trio.Event()
            while self._due:
                server, _ = self._due.popitem()
                if server in self.by_id:
                    await self.by_id[server].drop_hidden()

    def find(self, server: str, caller: Caller) -> UpstreamConnection | None:
        """The connection that serves this caller at the server; None if the server is not configured."""
        found = self.by_id.get(server)
        return None if found is None else found.connection(caller)

    def source(self, server: str, caller: Caller) -> Source:
        """The source of what the server offers this caller, as far as is known. A server that is not configured, or was
        never connected, counts as one with sessions."""
        found = self.by_id.get(server)
        return Source(server, SESSION) if found is None else found.connection(caller).source

    def at(self, endpoint: Endpoint) -> Iterable[str]:
        """The ids of the servers that answer at an endpoint."""
        ids = self.by_id if endpoint.server is None else self.by_id.keys() & {endpoint.server}
        view = self._runtime.gate.policies.views.view(endpoint.view)
        return [id for id in ids if view.has_server(id)] if endpoint.view else ids

    async def wait_recalled(self, caller: Caller) -> None:
        """Wait until it was looked what is remembered of the servers at the caller's endpoint, for RECALL_WAIT at most.
        No answer of a server is waited for; sessions that were never open are started, because lists will need
        them."""
        servers = [self.by_id[id] for id in self.at(caller.endpoint)]
        with trio.move_on_after(RECALL_WAIT):
            for each in servers:
                if not each.main.life.recalled.is_set():
                    await each.main.life.recalled.wait()
        for each in servers:
            each.begin(caller)

    async def wait_first_lists(self) -> None:
        """Wait until the lists of each server are known, from the store or from the server, or its first attempt to
        connect has failed."""
        for each in tuple(self.by_id.values()):
            await each.main.life.listed.wait()

    async def wait_listed(self, caller: Caller, server: str | None = None, *, at_most: float = math.inf) -> None:
        """Wait until the lists of the server (None: of all at the caller's endpoint) are known, from the store or from
        the server, but for each no longer than `start_grace` after its first start. Waits for no server whose first
        attempt failed.

        Args:
            at_most: seconds to wait for all of them together.
        """
        with trio.move_on_after(min(at_most, self._start_grace)):
            # A new configuration may replace it.
            while (connection := self._first_unlisted(caller, server)) is not None:
                with trio.move_on_at(connection.life.created_at + self._start_grace):
                    await connection.life.listed.wait()

    def _first_unlisted(self, caller: Caller, server: str | None) -> UpstreamConnection | None:
        """A connection that lists wait for now. Sessions that were never open are started."""
        waited: list[UpstreamConnection] = []
        for id in self._named_or_all(caller, server):
            connection = self.by_id[id].begin(caller)
            life = connection.life
            if not life.listed.is_set() and life.created_at + self._start_grace > trio.current_time():
                waited.append(connection)
        return waited[0] if waited else None

    async def wait_known(self, caller: Caller, server: str | None) -> None:
        """Wait as `wait_listed` does for a request that names an entry of this server, or (None) of any: no longer than
        a call of it may take.

        Raises:
            TooManyRequests: too many requests of this owner wait.
        """
        wanted = [each for each in self._serving_all(caller, server) if not each.life.listed.is_set()]
        if wanted:
            with self.waiting_request(caller):
                at_most = min(each.spec.longest_wait for each in wanted)
                await self.wait_listed(caller, server, at_most=at_most)

    def _named_or_all(self, caller: Caller, server: str | None) -> Iterable[str]:
        """This server, if it is configured; None: all at the caller's endpoint."""
        if server is None:
            return self.at(caller.endpoint)
        return (server,) if server in self.by_id else ()

    def _serving_all(self, caller: Caller, server: str | None) -> list[UpstreamConnection]:
        """The connections that serve this caller at the server (None: at all of its endpoint)."""
        return [self.by_id[id].serving(caller) for id in self._named_or_all(caller, server)]

    def are_listed(self, caller: Caller, server: str | None = None) -> bool:
        """Whether the lists of the server (None: of all at the caller's endpoint) for this caller are known."""
        return all(each.life.listed.is_set() for each in self._serving_all(caller, server))

    def are_old(self, caller: Caller, server: str | None = None, kinds: Collection[Kind] = ()) -> bool:
        """Whether a list of the server (None: of any at the caller's endpoint) for this caller is old whose changes are
        not announced, or one of `kinds` has an announced change that was not read yet."""
        return any(each.has_old_lists or not each.lists.are_read(kinds) for each in self._serving_all(caller, server))

    async def reread(
        self,
        caller: Caller,
        server: str | None = None,
        missed: Collection[Kind] = (),
        changed: Collection[Kind] = (),
    ) -> bool:
        """Have the old lists of the server (None: of all at the caller's endpoint) for this caller read, and those in
        `missed`, in which a name is missing. Waits for that, and for announced changes of the lists in `missed` and
        `changed`, but no longer than REREAD_WAIT. Returns whether there was anything to wait for."""
        connections = self._serving_all(caller, server)
        kinds = {*missed, *changed}
        changing = [each for each in connections if not each.lists.are_read(kinds)]
        readings = [reading for each in connections if (reading := each.read_if_old(missed)) is not None]
        with trio.move_on_after(REREAD_WAIT):
            for each in changing:
                await each.lists.wait_for_changes(kinds, REREAD_WAIT)
            for reading in readings:
                await reading.wait()
        return bool(readings or changing)

    async def wait_started(self, server: str, caller: Caller, since: float | None = None) -> bool:
        """Wait until the server has started. Returns whether it had not: its lists may be other ones now.

        Args:
            since: when the request came; None: now.

        Raises:
            TimedOut: that took as long as its calls may take.
            TooManyRequests: too many requests of this owner wait.
            Unavailable: see `UpstreamServer.wait_started`.
        """
        if not self.is_starting(server, caller):
            return False
        timeout = self.by_id[server].spec.longest_wait
        with self.waiting_request(caller):
            with trio.move_on_at((trio.current_time() if since is None else since) + timeout) as waiting:
                while self.is_starting(server, caller):  # a new configuration may have replaced it
                    await self[server].wait_started(caller)
        if waiting.cancelled_caught:
            raise TimedOut(server, f"{server} did not start within {timeout:.0f} s; the call was not sent")
        return True

    def is_starting(self, server: str, caller: Caller) -> bool:
        """Whether the server has to be waited for; see `UpstreamServer.is_starting`."""
        found = self.by_id.get(server)
        return found is not None and found.is_starting(caller)

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

    def serve_only(self, caller: Caller) -> None:
        """Set the only client of this host, which owns the shared connections. Servers that requested roots before it
        was there are told that roots have changed."""
        self._sole_caller = caller
        if caller.abilities.roots:
            self.roots_changed(caller)

    def roots_changed(self, caller: Caller) -> None:
        """Notify servers that the caller's roots have changed: only over connections that serve this caller alone."""
        for server in self.by_id.values():
            for client in server.clients_of(caller):
                if client.negotiated.era is SESSION:
                    self._nursery.start_soon(_notify_roots_changed, client)

    def release(self, caller: Caller) -> None:
        """Forget the watches and the log level of a caller. Its instances stay, because other callers of the same
        client may use them."""
        self._runtime.log_levels.forget(caller)
        for server in self.by_id.values():
            server.release(caller)

    def forget(self, caller: Caller) -> None:
        """Forget everything of a caller that is gone, and end its instances."""
        self._runtime.log_levels.forget(caller)
        for server in self.by_id.values():
            server.forget(caller)


def _has_same_names(old: ServerSpec, new: ServerSpec) -> bool:
    return (old.outward_prefix, old.longest_name) == (new.outward_prefix, new.longest_name)


async def _notify_roots_changed(client: Client) -> None:
    with suppress(LinkLost):
        await client.peer.notify(ROOTS_CHANGED)


@asynccontextmanager
async def open_upstreams(
    servers: Mapping[str, ServerSpec], start_grace: float, runtime: Runtime
) -> AsyncIterator[Upstreams]:
    """Supervise the servers for the block, and keep their visible entries in the catalog of the runtime. At the end all
    servers are stopped, concurrently."""
    async with trio.open_nursery() as nursery:
        nursery.start_soon(runtime.catalog.run)
        try:
            upstreams = Upstreams(servers, start_grace, runtime, nursery)
            nursery.start_soon(upstreams.run)
            yield upstreams
        finally:
            nursery.cancel_scope.cancel()
