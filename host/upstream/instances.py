"""Instances of one server beside its main connection: for one client (`isolation: per-client`), for one call
(`per-call`), or for all clients of one folder (`cwd: "${client:folder}"`).

An instance is a connection of its own, and for a program a process of its own, so that no client sees what another one
does; but one for a folder is shared by its clients as the main connection is. The first call that needs an instance
starts it. An instance of a client ends when the client leaves or does not use it for a while, one for a folder some
time after its last client. If it is lost, the next call, or a watch that is still wanted, starts another one. Their
number is limited. Instances do not read lists.
"""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Callable, Collection, Hashable
from contextlib import asynccontextmanager
from weakref import WeakSet

import trio

from config import Isolation, ServerSpec
from host.errors import TooManyResources, Unavailable
from host.exchange import Caller, Exchange
from host.journal import InstanceFailed
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.negotiated import NegotiatedServer
from host.protocol.versions import SESSION, STATELESS
from host.sanitize import with_said
from host.source import SHARED
from host.upstream.call import CallDeadline, UpstreamCall
from host.upstream.client import Client
from host.upstream.client_folder import is_folder
from host.upstream.connection import UpstreamLease, may_launch
from host.upstream.instance_failures import InstanceFailures
from host.upstream.outcome import ConnectionEnd, Outcome
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import Clients
from host.upstream.state import Connecting, Failed, Ready, State
from host.upstream.supervised import Role, UpstreamConnection
from host.wire.link import LinkLost

END_TIMEOUT = 10.0
"""Seconds that a call waits for the end of another instance if `max_instances` is reached."""
MIN_PAUSE = 0.01
"""Seconds between two looks at whether an instance is idle."""


class _Instance(Role):
    """The role of one instance: it serves one caller, or (`is_shared`) all callers in a folder, uses the lists of the
    shared connection that serves this caller, and is opened again only while a resource is watched."""

    def __init__(self, pool: Instances, caller: Caller, key: Hashable | None, folder: str | None) -> None:
        self.caller = caller
        self.key = key
        self.folder = folder
        self.waiting_calls: list[UpstreamCall] = []
        self.users: WeakSet[Caller] = WeakSet()
        """The callers with a session that have used it and are not gone, if it is shared."""
        if pool.is_shared:
            self.clients = Clients(
                SHARED_ABILITIES, lambda: None, roots_change=False, log_listeners=self._log_listeners
            )
        else:
            self.clients = Clients(
                # A stateless client declares its capabilities with each request: the next one may declare more.
                abilities=SHARED_ABILITIES if caller.era is STATELESS else caller.abilities,
                owner=lambda: caller,
                roots_change=key is not None,  # an instance of a call ends before the roots can change
                caller=caller,
                waiting_calls=self.waiting_calls,
            )
        self.scope = trio.CancelScope()
        self._pool = pool
        self.last_used = trio.current_time()
        shared = pool.serving(caller)
        self.connection = UpstreamConnection(pool.spec, pool.runtime, self, shared.lists)

    def _log_listeners(self) -> Collection[Caller]:
        runtime = self._pool.runtime
        return runtime.client_folders.within(self.folder, runtime.log_levels.callers(self._pool.spec.id))

    async def prepare(self) -> None:
        pool, connection = self._pool, self.connection
        connection.spec = pool.spec
        if not await may_launch(connection.spec, pool.runtime):
            why = pool.runtime.gate.definitions.why_held(connection.spec.id)
            raise LinkLost(f"its command {why}; see colonnade definitions")
        if self.folder is not None and not is_folder(self.folder):
            raise LinkLost("the folder of its client is gone")
        shared = pool.serving(self.caller)
        connection.dialect, connection.lists = shared.last_dialect, shared.lists

    def on_ready(self, negotiated: NegotiatedServer, seconds: float) -> None:
        self._pool.failures.on_ready()

    def idle_pause(self, client: Client) -> float | None:
        limit = self._pool.spec.idle_timeout
        is_used = bool(self.waiting_calls or self.users) or len(self.connection.watches) > 0
        left = limit if is_used else limit - (trio.current_time() - self.last_used)
        return max(left, MIN_PAUSE) if left > 0 else None

    def on_idle(self) -> State:
        why = "it was not used"
        self._pool.remove(self)
        self.scope.cancel(why)
        return _over(why)

    def outcome(self, end: ConnectionEnd) -> Outcome:
        is_ready, lost = isinstance(end.state, Ready), end.problem
        is_misused = is_ready and isinstance(lost, LinkLost) and lost.misused
        delay = self._pool.failures.on_failure(
            self.caller, end.ready_for if is_ready else None, end.jitter, end.now, is_misused=is_misused
        )
        # The text of a lost connection leaves the remedy out; for one that was never ready, it is in the text.
        remedy = lost.remedy if is_ready and isinstance(lost, LinkLost) else ""
        why = f"{end.why}: {remedy}" if remedy else end.why
        if not end.is_watched:
            self._pool.remove(self)
        return Outcome(Failed(end.now, why, end.now + delay, end.said))

    async def run(self) -> None:
        """Run it to its end. A failure that ends the call of a `per-call` instance is told by the response of that call
        only: the end of the call cancels what follows."""
        connection, journal = self.connection, self._pool.runtime.journal
        try:
            with self.scope:
                while True:
                    await connection.run_once()
                    if isinstance(failed := connection.state, Failed):
                        journal.note(InstanceFailed(connection.spec.id, with_said(failed.why, failed.said)))
                    if not len(connection.watches):
                        return
        finally:
            self._pool.discard(self)
            if not isinstance(state := connection.state, Failed):  # calls that wait for it must fail
                former = state.last_failure if isinstance(state, Connecting) else None
                connection.life.state = _over(former or "its instance was stopped")


def _over(why: str) -> Failed:
    """The state of an instance that is not opened again."""
    return Failed(trio.current_time(), why, math.inf)


class Instances:
    """The instances of one server.

    Args:
        serving: returns the shared connection that serves a caller. An instance for it is of the same era, and has the
            same lists.
        nursery: runs the tasks of the instances.
    """

    def __init__(
        self,
        spec: ServerSpec,
        serving: Callable[[Caller], UpstreamConnection],
        runtime: Runtime,
        nursery: trio.Nursery,
    ) -> None:
        self.spec = spec
        self.serving = serving
        self.runtime = runtime
        self.failures = InstanceFailures(spec.max_instances)
        self.is_shared = spec.isolation is Isolation.SHARED
        self._nursery = nursery
        self._by_key: dict[Hashable, _Instance] = {}
        """Instances of clients and folders by `_key`; instances of calls have no key and are only in `_live`."""
        self._live: set[_Instance] = set()
        self._released = trio.lowlevel.ParkingLot()

    def __len__(self) -> int:
        return len(self._live)

    async def wait_idle(self) -> None:
        """Wait until no instance is used."""
        while any(instance.waiting_calls for instance in self._live):
            await self._released.park()

    def end(self) -> None:
        """End all instances."""
        for instance in self._live:
            instance.scope.cancel("the server was changed or removed in the configuration")

    def has(self, caller: Caller, folder: str) -> bool:
        """Whether there is an instance for a caller in a folder."""
        return self._key(caller, folder) in self._by_key

    @asynccontextmanager
    async def lease(self, exchange: Exchange, folder: str | None = None) -> AsyncIterator[UpstreamLease]:
        """Lease the instance for the caller and its folder, or one for this call, for the block. Starts it if there is
        none.

        Raises:
            TooManyResources: `max_instances` is reached.
            Unavailable: the instance cannot be started.
        """
        caller, is_per_call = exchange.caller, self.spec.isolation is Isolation.PER_CALL
        key = None if is_per_call else self._key(caller, folder)
        if self.is_shared:
            # It outlives the client that starts it, and its failures are those of the folder.
            caller = Caller("clients of a folder", SHARED, session=folder)
        await self._wait_for_room(key)
        instance = self._by_key.get(key)
        if instance is None:
            instance = self._start(caller, key, folder)
        if self.is_shared and exchange.caller.session is not None and exchange.caller.era is SESSION:
            instance.users.add(exchange.caller)  # until its session ends; without one, no end is noticed
        # Server requests before the call is sent (many servers request roots at once) belong to the call that started
        # the instance.
        upstream_call = UpstreamCall(exchange, CallDeadline(math.inf))
        instance.waiting_calls.append(upstream_call)
        connection = instance.connection
        try:
            await connection.life.wait_started()
            yield connection.lease()
            if connection.life.client is not None:
                self.failures.on_success(caller, trio.current_time(), ends_series=is_per_call)
        finally:
            instance.waiting_calls.remove(upstream_call)
            instance.last_used = trio.current_time()
            self._released.unpark_all()
            await upstream_call.close()
            if key is None:
                instance.scope.cancel("its call has ended")

    def _key(self, caller: Caller, folder: str | None) -> Hashable | None:
        """The key of the caller's instance: that of its client, unless instances are shared, its folder, and the
        connection that serves it; None if each call has its own."""
        if self.is_shared:
            return folder
        return None if caller.instance_key is None else (caller.instance_key, folder, self.serving(caller))

    def _instances_of(self, caller: Caller) -> list[_Instance]:
        """The instances of the caller's client alone: one, or two while it is served in another era than before."""
        if self.is_shared:
            return []
        return [each for each in self._by_key.values() if each.caller.instance_key == caller.instance_key]

    def watches(self, caller: Caller | None = None) -> list[ResourceWatches]:
        """The watches of all instances; of those that this caller may have used, if there is one."""
        used = self._live if caller is None or self.is_shared else self._instances_of(caller)
        return [each.connection.watches for each in used]

    def forget(self, caller: Caller) -> None:
        """End the instance of a caller that is gone, whose watches have ended; one that is shared ends when it was not
        used for a while."""
        for instance in self._live if self.is_shared else ():
            if caller in instance.users:
                instance.users.discard(caller)
                instance.last_used = trio.current_time()
        for instance in self._instances_of(caller):
            self.remove(instance)
            instance.scope.cancel("its client is gone")

    def client_of(self, caller: Caller) -> Client | None:
        """The client of the caller's instance, if it is connected."""
        clients = (each.connection.life.client for each in self._instances_of(caller))
        return next((each for each in clients if each is not None), None)

    async def _wait_for_room(self, key: Hashable | None) -> None:
        """Wait while `max_instances` is reached and an instance is ending."""
        with trio.move_on_after(END_TIMEOUT):
            while (
                len(self._live) >= self.spec.max_instances
                and key not in self._by_key
                and any(instance.scope.cancel_called for instance in self._live)
            ):
                await self._released.park()

    def _start(self, caller: Caller, key: Hashable | None, folder: str | None) -> _Instance:
        server, now = self.spec.id, trio.current_time()
        wait = self.failures.wait(caller, now)
        if wait > 0:
            text = f"{server} is unavailable: its last instance failed; the next start is in {wait:.1f} s"
            raise Unavailable(server, text)
        if len(self._live) >= self.spec.max_instances:
            text = f"{server} has no free instance (max_instances: {len(self._live)})"
            self.runtime.journal.note(InstanceFailed(server, "another one is needed, but max_instances is reached"))
            raise TooManyResources(server, f"{text}; try again later")
        self.failures.on_start(caller, now)
        instance = _Instance(self, caller, key, folder)
        self._live.add(instance)
        if key is not None:
            self._by_key[key] = instance
            if caller.on_dedicated is not None:  # not for a shared one, whose caller is none of a client
                caller.on_dedicated()
        self._nursery.start_soon(instance.run)
        return instance

    def remove(self, instance: _Instance) -> None:
        """Remove an instance, so that no call finds it."""
        if self._by_key.get(instance.key) is instance:
            del self._by_key[instance.key]

    def discard(self, instance: _Instance) -> None:
        """Remove an instance that has ended."""
        self.remove(instance)
        self._live.discard(instance)
        self._released.unpark_all()
