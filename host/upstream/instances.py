"""Instances of one server that serve one client alone (`isolation: per-client`), or one call alone (`per-call`).

An instance is a connection of its own, for a program also a process of its own: nothing that one client does there is
seen by another. It is started by the first call that needs it. One of a client lives until its client leaves or does
not use it for a while; if it is lost, the next call starts another, as does a watch that is still wanted. Their number
is bounded. The catalog is no business of theirs.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from functools import partial

import trio

from config import Isolation, ServerSpec
from host.errors import TooManyResources, Unavailable
from host.exchange import Caller, Exchange
from host.journal import InstanceFailed, InternalError
from host.policy.fingerprint import launch_of
from host.protocol.abilities import ALL_ABILITIES
from host.protocol.methods import Kind
from host.slices import Steps, complete
from host.upstream.backoff import MAX_STARTS, WINDOW, Restarts
from host.upstream.call import CallDeadline, UpstreamCall
from host.upstream.client import Client, ServerLists
from host.upstream.connection import CONNECT_FAILURES, UpstreamLease, failure_reason, follow_changes, open_client
from host.upstream.negotiate import Dialect
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import ServerMessages
from host.wire.link import Link, LinkLost

FAILURE_TTL = 120.0
"""Seconds after which failed starts count no more."""
END_TIMEOUT = 10.0
"""Seconds that a call waits for an instance that is ending, where there may be no more of them."""


class _Instance:
    def __init__(self, caller: Caller, key: Hashable | None, watches: ResourceWatches) -> None:
        self.caller = caller
        self.key = key
        self.watches = watches
        self.client: Client | None = None
        self.reason = ""
        """Why there is no client, once `attempted` is set."""
        self.attempted = trio.Event()
        self.restart_delay = 0.0
        """Seconds to wait before it is started again."""
        self.waiting_calls: list[UpstreamCall] = []
        self.last_used = trio.current_time()
        self.scope = trio.CancelScope()

    def idle_for(self) -> float:
        in_use = bool(self.waiting_calls) or len(self.watches) > 0
        return 0.0 if in_use else trio.current_time() - self.last_used


class _FailureRecord:
    """How the instances of one caller have failed. Only those that failed are counted as starts: of the others there
    may be as many as there are calls."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self.blocked_until = trio.current_time()


class Instances:
    """The instances of one server. `open_link` opens the link of one in a dialect; `dialect` is what is known of that
    now, and `lists` what is known of the server's lists; `nursery` holds their tasks."""

    def __init__(
        self,
        spec: ServerSpec,
        open_link: Callable[[Dialect], AbstractAsyncContextManager[Link]],
        dialect: Callable[[], Dialect],
        lists: ServerLists,
        runtime: Runtime,
        nursery: trio.Nursery,
    ) -> None:
        self.spec = spec
        self._open_link = open_link
        self._dialect = dialect
        self._lists = lists
        self._runtime = runtime
        self._is_visible = partial(runtime.gate.definitions.is_visible, spec.id, Kind.RESOURCE)
        self._nursery = nursery
        self._by_key: dict[Hashable, _Instance] = {}
        """By `Caller.instance_key`; those of one call, which have no key, are not in it."""
        self._live: set[_Instance] = set()
        self._released = trio.lowlevel.ParkingLot()
        self._failure_records: dict[Hashable | None, _FailureRecord] = {}
        """By `_blamed_key`."""
        self._failures: deque[float] = deque(maxlen=MAX_STARTS * spec.max_instances)
        """The times at which instances failed to come up, of any caller, since one last came up."""

    def __len__(self) -> int:
        return len(self._live)

    async def wait_idle(self) -> None:
        """Wait until no instance is used."""
        while any(instance.waiting_calls for instance in self._live):
            await self._released.park()

    def drop_hidden(self) -> Steps[None]:
        """Have nobody watch what may not be known any more, at any of them."""
        for instance in list(self._live):
            yield from instance.watches.drop_hidden()

    def end(self) -> None:
        """End all of them."""
        for instance in self._live:
            instance.scope.cancel("the configuration has another in its place, or none")

    @asynccontextmanager
    async def lease(self, exchange: Exchange) -> AsyncIterator[UpstreamLease]:
        """A lease for the exchange, for the block.

        Raises:
            TooManyResources: as many instances live as may.
            Unavailable: it cannot be started.
        """
        key = exchange.caller.instance_key if self.spec.isolation is Isolation.PER_CLIENT else None
        await self._wait_for_room(key)
        instance = self._by_key.get(key)
        if instance is None:
            instance = self._start(exchange.caller, key)
        # What it asks before the call is sent (many ask for roots at once) belongs to the call that it was started for.
        upstream_call = UpstreamCall(exchange, CallDeadline(float("inf")))
        instance.waiting_calls.append(upstream_call)
        try:
            await instance.attempted.wait()
            if instance.client is None:
                raise Unavailable(self.spec.id, f"{self.spec.id} is unavailable: {instance.reason}")
            yield UpstreamLease(instance.client, instance.watches)
            if instance.client is not None:
                self._on_success(exchange.caller)
        finally:
            instance.waiting_calls.remove(upstream_call)
            self._released.unpark_all()
            await upstream_call.close()
            instance.last_used = trio.current_time()
            if key is None:
                instance.scope.cancel("its call is over")

    def unwatch(self, uri: str, caller: Caller) -> None:
        """The caller watches this no more; its instance, if there is one, hears of it."""
        instance = self._by_key.get(caller.instance_key)
        if instance is not None:
            instance.watches.unwatch(uri, caller)

    def release(self, caller: Caller) -> None:
        """The caller watches nothing any more; its instance stays."""
        instance = self._by_key.get(caller.instance_key)
        if instance is not None:
            instance.watches.forget(caller)

    def forget(self, caller: Caller) -> None:
        """The caller is gone, and its instance with it."""
        instance = self._by_key.pop(caller.instance_key, None)
        if instance is not None:
            instance.watches.forget(caller)
            instance.scope.cancel("its client is gone")

    def _failure_record(self, caller: Caller) -> _FailureRecord:
        """How the starts for this caller went: what fails for one may work for another."""
        blamed = _blamed_key(caller)
        if blamed not in self._failure_records:
            now = trio.current_time()
            self._failure_records = {
                key: each for key, each in self._failure_records.items() if each.blocked_until + FAILURE_TTL > now
            }
            self._failure_records[blamed] = _FailureRecord()
        return self._failure_records[blamed]

    def _on_success(self, caller: Caller) -> None:
        """An instance was used and is still there: the next may be started, unless too many failed within WINDOW. Of
        single calls that makes up for those that failed; one of a client must live for a while first."""
        record, now = self._failure_record(caller), trio.current_time()
        if self.spec.isolation is Isolation.PER_CALL:
            record.restarts.failures = 0
        if record.restarts.within_intensity(now):
            record.blocked_until = now

    def _all_failed_until(self) -> float:
        """The time until which none is started for anybody, since so many did not come up within WINDOW. Those that
        failed later do not count: a call may have ended them, and one caller must not stop the others."""
        full = len(self._failures) == self._failures.maxlen
        return self._failures[0] + WINDOW if full else 0.0

    def client_of(self, caller: Caller) -> Client | None:
        """The caller's own, if it has one that is connected."""
        instance = self._by_key.get(caller.instance_key)
        return None if instance is None else instance.client

    async def _wait_for_room(self, key: Hashable | None) -> None:
        """Wait while there is no room for another instance, and one that is ending will soon make some."""
        with trio.move_on_after(END_TIMEOUT):
            while (
                len(self._live) >= self.spec.max_instances
                and key not in self._by_key
                and any(instance.scope.cancel_called for instance in self._live)
            ):
                await self._released.park()

    def _start(self, caller: Caller, key: Hashable | None) -> _Instance:
        record, now = self._failure_record(caller), trio.current_time()
        wait = max(record.blocked_until - now, self._all_failed_until() - now)
        if wait > 0:
            text = f"{self.spec.id} is unavailable: its last instance failed; the next may be started in {wait:.1f} s"
            raise Unavailable(self.spec.id, text)
        if len(self._live) >= self.spec.max_instances:
            text = f"{self.spec.id} serves as many clients of its own as it may (max_instances: {len(self._live)})"
            self._runtime.journal.note(InstanceFailed(self.spec.id, "one more is wanted than max_instances allows"))
            raise TooManyResources(self.spec.id, f"{text}; try again later")
        if record.restarts.failures >= MAX_STARTS:  # one attempt shows whether it works again
            record.blocked_until = now + WINDOW
        instance = _Instance(caller, key, ResourceWatches(self.spec.id, self.spec.timeout, self._is_visible))
        self._live.add(instance)
        if key is not None:
            self._by_key[key] = instance
        self._nursery.start_soon(self._run, instance)
        return instance

    async def _run(self, instance: _Instance) -> None:
        """One instance, from its start to its end. Lost while something is watched there, it is started again."""
        try:
            with instance.scope:
                while True:
                    delay = await self._run_once(instance)
                    if not len(instance.watches):
                        return
                    await trio.sleep(delay)
                    instance.attempted = trio.Event()
        finally:
            self._live.discard(instance)
            self._released.unpark_all()
            self._remove(instance, instance.reason or "its instance was stopped")

    def _remove(self, instance: _Instance, reason: str) -> None:
        """Nobody finds the instance any more; whoever waits for it waits in vain."""
        if self._by_key.get(instance.key) is instance:
            del self._by_key[instance.key]
        self._mark_lost(instance, reason)

    def _mark_lost(self, instance: _Instance, reason: str) -> None:
        instance.client = None
        instance.reason = reason
        instance.attempted.set()

    async def _run_once(self, instance: _Instance) -> float:
        """One connection, to its end. Seconds to wait before the next."""
        reason, instance.restart_delay = "the connection ended", 0.0
        try:
            await self._connect(instance)
        except* CONNECT_FAILURES as group:
            reason = failure_reason(self.spec, group)
        except* Exception as group:  # noqa: BLE001 - our own mistakes, too, stay with the one instance
            self._runtime.journal.note(InternalError(self.spec.id, group))
            reason = "of an internal error"
        if not instance.restart_delay:  # it was not lost while it was connected
            instance.restart_delay = self._on_failure(instance.caller, 0.0 if instance.attempted.is_set() else None)
        self._mark_lost(instance, reason)
        self._runtime.journal.note(InstanceFailed(self.spec.id, reason))
        return instance.restart_delay

    def _on_failure(self, caller: Caller, ready_for: float | None, *, misused: bool = False) -> float:
        """Count a failure; seconds to wait before the next start. `ready_for`: None if it never was; `misused`: another
        one would fare no better."""
        record, now = self._failure_record(caller), trio.current_time()
        record.restarts.on_start(now)
        if ready_for is None:
            self._failures.append(now)
        delay = record.restarts.on_failure(ready_for or 0.0, random.random(), now)
        # One that was connected may have failed by its call, and the next call is another. Several are a crash loop.
        is_crash_loop = record.restarts.failures > 1 or not record.restarts.within_intensity(now)
        if ready_for is None or misused or is_crash_loop:
            record.blocked_until = now + delay
        return delay

    async def _connect(self, instance: _Instance) -> None:
        spec, caller = self.spec, instance.caller
        server_messages = ServerMessages(
            spec.id,
            spec.title or spec.id,
            self._runtime.gate,
            self._runtime.journal,
            owner=lambda: caller,
            on_resource_updated=instance.watches.on_updated,
        )
        server_messages.waiting_calls = instance.waiting_calls
        if not await complete(self._runtime.gate.definitions.observe_launch(spec.id, launch_of(spec))):
            raise LinkLost(
                "its command stands for another program than the one that was approved (colonnade definitions)"
            )
        dialect = self._dialect()
        opening = open_client(
            spec,
            self._open_link(dialect),
            server_messages,
            self._runtime.gate,
            dialect,
            self._lists,
            # A stateless client declares what it can with each request: another may declare more.
            ALL_ABILITIES if caller.abilities.retries else caller.abilities,
            # One of a client hears when its roots change; one of a call is gone before.
            roots_change=instance.key is not None,
        )
        with trio.fail_after(spec.start_timeout) as startup:
            async with opening as client, trio.open_nursery() as nursery:
                startup.deadline = float("inf")
                follow_changes(nursery, client, server_messages, self._runtime.log_levels, instance.watches, caller)
                instance.client = client
                instance.attempted.set()
                self._failures.clear()
                ready = trio.current_time()
                nursery.start_soon(self._end_when_idle, instance)
                await client.peer.ended.wait()
                # At once: to end what is left of a child may take seconds, and the next call must not wait.
                lost = client.peer.lost
                # Counted here: the end of its call, which comes of this as well, cancels all that follows.
                instance.restart_delay = self._on_failure(caller, trio.current_time() - ready, misused=lost.misused)
                if len(instance.watches):
                    self._mark_lost(instance, str(lost))
                else:
                    self._remove(instance, str(lost))
                raise lost

    async def _end_when_idle(self, instance: _Instance) -> None:
        """End an instance that nobody has used for a while."""
        while True:
            await trio.sleep(max(self.spec.idle_timeout - instance.idle_for(), 0.01))
            if instance.idle_for() >= self.spec.idle_timeout:
                self._remove(instance, "nobody used it")
                instance.scope.cancel("nobody uses it")


def _blamed_key(caller: Caller) -> Hashable | None:
    """Who is held back when instances fail. A token may have any number of sessions; without one a session stands for
    itself, and all requests without a session count together."""
    return caller.session if caller.identity is None else caller.identity
