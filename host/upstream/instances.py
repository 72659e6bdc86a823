"""Dedicated instances of one server, for one client (`isolation: per-client`) or for one call (`per-call`).

An instance is a connection of its own, and for a program a process of its own, so that no client sees what another one
does. The first call that needs an instance starts it. An instance of a client ends when the client leaves or does not
use it for a while. If it is lost, the next call, or a watch that is still wanted, starts another one. Their number is
limited. Instances do not read lists.
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
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.era import SESSION, STATELESS
from host.protocol.methods import Kind
from host.sanitize import without_directories
from host.slices import Steps
from host.source import EntryRef, Source
from host.upstream.backoff import MAX_STARTS, WINDOW, Restarts
from host.upstream.call import CallDeadline, UpstreamCall
from host.upstream.client import Client
from host.upstream.connect import login_of, secrets_of
from host.upstream.connection import (
    CONNECT_FAILURES,
    UpstreamLease,
    end_with_login,
    failure_reason,
    follow_changes,
    open_client,
)
from host.upstream.launch import may_launch
from host.upstream.negotiate import Dialect
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import ServerMessages
from host.upstream.supervisor import Upstream
from host.wire.link import Link, LinkLost

FAILURE_TTL = 120.0
"""Seconds after which failed starts do not count any more."""
END_TIMEOUT = 10.0
"""Seconds that a call waits for the end of another instance if `max_instances` is reached."""


class _Instance:
    watches: ResourceWatches

    def __init__(self, caller: Caller, key: Hashable | None) -> None:
        self.caller = caller
        self.key = key
        self.client: Client | None = None
        self.reason = ""
        """The reason why there is no client, once `attempted` is set."""
        self.attempted = trio.Event()
        self.restart_delay = 0.0
        """Seconds to wait before the instance is started again."""
        self.waiting_calls: list[UpstreamCall] = []
        self.last_used = trio.current_time()
        self.scope = trio.CancelScope()

    def idle_for(self) -> float:
        in_use = bool(self.waiting_calls) or len(self.watches) > 0
        return 0.0 if in_use else trio.current_time() - self.last_used


class _FailureRecord:
    """Failures of the instances of one caller. Only instances that failed count as starts, because `per-call` starts
    one for each call."""

    def __init__(self) -> None:
        self.restarts = Restarts()
        self.blocked_until = trio.current_time()


class Instances:
    """The instances of one server.

    Args:
        open_link: opens the link of an instance.
        serving: returns the shared connection that serves a caller. An instance for it is of the same era, and has the
            same lists.
        nursery: runs the tasks of the instances.
    """

    def __init__(
        self,
        spec: ServerSpec,
        open_link: Callable[[Dialect], AbstractAsyncContextManager[Link]],
        serving: Callable[[Caller], Upstream],
        runtime: Runtime,
        nursery: trio.Nursery,
    ) -> None:
        self.spec = spec
        self._open_link = open_link
        self._serving = serving
        self._runtime = runtime
        self._nursery = nursery
        self._by_key: dict[Hashable, _Instance] = {}
        """Instances of clients by `_key`; instances of calls have no key and are only in `_live`."""
        self._live: set[_Instance] = set()
        self._released = trio.lowlevel.ParkingLot()
        self._failure_records: dict[Hashable | None, _FailureRecord] = {}
        """Failures by `_blamed_key`."""
        self._failures: deque[float] = deque(maxlen=MAX_STARTS * spec.max_instances)
        """Times of failed starts, for any caller, since the last successful start."""

    def _is_visible(self, instance: _Instance, uri: str) -> bool:
        era = SESSION if instance.client is None else instance.client.negotiated.era
        return self._runtime.gate.definitions.is_visible(EntryRef(Source(self.spec.id, era), Kind.RESOURCE, uri))

    def __len__(self) -> int:
        return len(self._live)

    async def wait_idle(self) -> None:
        """Wait until no instance is used."""
        while any(instance.waiting_calls for instance in self._live):
            await self._released.park()

    def drop_hidden(self) -> Steps[None]:
        """End the watches of hidden resources at all instances."""
        for instance in list(self._live):
            yield from instance.watches.drop_hidden()

    def end(self) -> None:
        """End all instances."""
        for instance in self._live:
            instance.scope.cancel("the server was changed or removed in the configuration")

    @asynccontextmanager
    async def lease(self, exchange: Exchange) -> AsyncIterator[UpstreamLease]:
        """Lease the caller's instance, or one for this call, for the block. Starts it if there is none.

        Raises:
            TooManyResources: `max_instances` is reached.
            Unavailable: the instance cannot be started.
        """
        key = self._key(exchange.caller) if self.spec.isolation is Isolation.PER_CLIENT else None
        await self._wait_for_room(key)
        instance = self._by_key.get(key)
        if instance is None:
            instance = self._start(exchange.caller, key)
        # Server requests before the call is sent (many servers request roots at once) belong to the call that started
        # the instance.
        upstream_call = UpstreamCall(exchange, CallDeadline(float("inf")))
        instance.waiting_calls.append(upstream_call)
        try:
            await instance.attempted.wait()
            if instance.client is None:
                reason = without_directories(instance.reason)
                raise Unavailable(self.spec.id, f"{self.spec.id} is unavailable: {reason}")
            yield UpstreamLease(instance.client, instance.watches)
            if instance.client is not None:
                self._on_success(exchange.caller)
        finally:
            instance.waiting_calls.remove(upstream_call)
            self._released.unpark_all()
            await upstream_call.close()
            instance.last_used = trio.current_time()
            if key is None:
                instance.scope.cancel("its call has ended")

    def _key(self, caller: Caller) -> Hashable | None:
        """The key of the caller's instance: its client's, and the era in which it is served."""
        return None if caller.instance_key is None else (caller.instance_key, self._serving(caller).is_session)

    def _instances_of(self, caller: Caller) -> list[_Instance]:
        """The instances of the caller's client: one, or two while it is served in another era than before."""
        keys = ((caller.instance_key, is_session) for is_session in (False, True))
        return [self._by_key[key] for key in keys if key in self._by_key]

    def unwatch(self, uri: str, caller: Caller) -> None:
        """End the caller's watch of a resource at its instance, if there is one."""
        for instance in self._instances_of(caller):
            instance.watches.unwatch(uri, caller)

    def release(self, caller: Caller) -> None:
        """End all watches of the caller; its instance stays."""
        for instance in self._instances_of(caller):
            instance.watches.forget(caller)

    def forget(self, caller: Caller) -> None:
        """End the instance of a caller that is gone."""
        for instance in self._instances_of(caller):
            del self._by_key[instance.key]
            instance.watches.forget(caller)
            instance.scope.cancel("its client is gone")

    def _failure_record(self, caller: Caller) -> _FailureRecord:
        """The failures for this caller: a start that fails for one caller may work for another."""
        blamed = _blamed_key(caller)
        if blamed not in self._failure_records:
            now = trio.current_time()
            self._failure_records = {
                key: each for key, each in self._failure_records.items() if each.blocked_until + FAILURE_TTL > now
            }
            self._failure_records[blamed] = _FailureRecord()
        return self._failure_records[blamed]

    def _on_success(self, caller: Caller) -> None:
        """Permit the next start after an instance was used and did not fail, unless too many failed within WINDOW. With
        `per-call` this also ends a series of failures; an instance of a client must live for a while first."""
        record, now = self._failure_record(caller), trio.current_time()
        if self.spec.isolation is Isolation.PER_CALL:
            record.restarts.failures = 0
        if record.restarts.within_intensity(now):
            record.blocked_until = now

    def _all_failed_until(self) -> float:
        """The time until which no instance is started for any caller, because too many starts failed within WINDOW.
        Later failures do not count: a call may have caused them, and one caller must not stop the others."""
        full = len(self._failures) == self._failures.maxlen
        return self._failures[0] + WINDOW if full else 0.0

    def client_of(self, caller: Caller) -> Client | None:
        """The client of the caller's instance, if it is connected."""
        return next((each.client for each in self._instances_of(caller) if each.client is not None), None)

    async def _wait_for_room(self, key: Hashable | None) -> None:
        """Wait while `max_instances` is reached and an instance is ending."""
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
            text = f"{self.spec.id} is unavailable: its last instance failed; the next start is in {wait:.1f} s"
            raise Unavailable(self.spec.id, text)
        if len(self._live) >= self.spec.max_instances:
            text = f"{self.spec.id} has no free instance (max_instances: {len(self._live)})"
            self._runtime.journal.note(
                InstanceFailed(self.spec.id, "another one is needed, but max_instances is reached")
            )
            raise TooManyResources(self.spec.id, f"{text}; try again later")
        if record.restarts.failures >= MAX_STARTS:  # one attempt shows whether it works again
            record.blocked_until = now + WINDOW
        instance = _Instance(caller, key)
        instance.watches = ResourceWatches(self.spec.id, self.spec.timeout, partial(self._is_visible, instance))
        self._live.add(instance)
        if key is not None:
            self._by_key[key] = instance
        self._nursery.start_soon(self._run, instance)
        return instance

    async def _run(self, instance: _Instance) -> None:
        """Run one instance from its start to its end. If it is lost while a resource is watched, it is started
        again."""
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
        """Remove the instance, so that no call finds it, and fail the calls that wait for it."""
        if self._by_key.get(instance.key) is instance:
            del self._by_key[instance.key]
        self._mark_lost(instance, reason)

    def _mark_lost(self, instance: _Instance, reason: str) -> None:
        instance.client = None
        instance.reason = reason
        instance.attempted.set()

    async def _run_once(self, instance: _Instance) -> float:
        """Run one connection to its end. Returns the seconds to wait before the next one."""
        reason, instance.restart_delay = "the connection ended", 0.0
        try:
            await self._connect(instance)
        except* CONNECT_FAILURES as group:
            reason = failure_reason(self.spec, group)
        except* Exception as group:  # noqa: BLE001 - errors in Colonnade must not end other instances either
            self._runtime.journal.note(InternalError(self.spec.id, group))
            reason = "of an internal error"
        if not instance.restart_delay:  # set if the instance was lost while it was connected
            instance.restart_delay = self._on_failure(instance.caller, 0.0 if instance.attempted.is_set() else None)
        self._mark_lost(instance, reason)
        self._runtime.journal.note(InstanceFailed(self.spec.id, reason))
        return instance.restart_delay

    def _on_failure(self, caller: Caller, ready_for: float | None, *, misused: bool = False) -> float:
        """Count a failure. Returns the seconds to wait before the next start.

        Args:
            ready_for: seconds that the instance was connected; None if it never was.
            misused: another instance would end in the same way.
        """
        record, now = self._failure_record(caller), trio.current_time()
        record.restarts.on_start(now)
        if ready_for is None:
            self._failures.append(now)
        delay = record.restarts.on_failure(ready_for or 0.0, random.random(), now)
        # A single failure of a connected instance may be caused by its call; the next call is another one.
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
            waiting_calls=instance.waiting_calls,
            secrets=secrets_of(spec, self._runtime.credentials, self._runtime.journal),
        )
        if not await may_launch(spec, self._runtime.gate.definitions):
            raise LinkLost("its command resolves to another program than the approved one; see colonnade definitions")
        credential = login_of(spec, self._runtime.credentials)
        login_id = "" if credential is None else credential.login_id
        serving = self._serving(caller)
        dialect = serving.last_dialect
        opening = open_client(
            spec,
            self._open_link(dialect),
            server_messages,
            self._runtime.gate,
            dialect,
            serving.lists,
            # A stateless client declares its capabilities with each request: the next one may declare more.
            SHARED_ABILITIES if caller.era is STATELESS else caller.abilities,
            # An instance of a call ends before the roots can change.
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
                nursery.start_soon(end_with_login, client, credential, login_id)
                await client.peer.ended.wait()
                # Handled at once: ending the process may take seconds, and the next call must not wait for it.
                lost = client.peer.lost
                # Counted here: the loss also ends the instance's call, which cancels everything that follows.
                instance.restart_delay = self._on_failure(caller, trio.current_time() - ready, misused=lost.misused)
                if len(instance.watches):
                    self._mark_lost(instance, str(lost))
                else:
                    self._remove(instance, str(lost))
                raise lost

    async def _end_when_idle(self, instance: _Instance) -> None:
        """End the instance when it has not been used for `idle_timeout` seconds."""
        while True:
            await trio.sleep(max(self.spec.idle_timeout - instance.idle_for(), 0.01))
            if instance.idle_for() >= self.spec.idle_timeout:
                self._remove(instance, "it was not used")
                instance.scope.cancel("it was not used")


def _blamed_key(caller: Caller) -> Hashable | None:
    """The key under which the failures for a caller are counted: its access token, because a token may have any number
    of sessions; without a token its session; all callers without a session count together."""
    return caller.session if caller.identity is None else caller.identity
