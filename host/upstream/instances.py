"""Instances of one server that serve one client alone (`isolation: per-client`), or one call alone (`per-call`).

An instance is a connection of its own, for a program also a process of its own: nothing that one client does there is
seen by another. It is started by the first call that needs it. One of a client lives until its client leaves or does
not use it for a while; if it is lost, the next call starts another, as does a watch that is still wanted. Their number
is bounded. The catalog is no business of theirs.
"""

from __future__ import annotations

import random
from collections.abc import AsyncIterator, Callable, Hashable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass

import trio

from config import Isolation, ServerSpec
from host.errors import TooMany, Unavailable
from host.exchange import Caller, Exchange
from host.journal import Crashed, InstanceFailed, Journal
from host.peer import open_peer
from host.policy.gate import Gate
from host.protocol.handshake import declared
from host.protocol.methods import ROOTS_CHANGED
from host.upstream.backoff import Backoff
from host.upstream.client import Client, shake_hands
from host.upstream.connection import FAILURES, reason, stay_awake
from host.upstream.levels import Levels
from host.upstream.reverse import Origin, Patience, Voice
from host.upstream.watches import Watches
from host.wire.link import Link, LinkLost


@dataclass(frozen=True, slots=True)
class Seat:
    """Where a request is carried out."""

    client: Client
    watches: Watches


class _Instance:
    def __init__(self, caller: Caller, key: Hashable | None, watches: Watches) -> None:
        self.caller = caller
        self.key = key
        self.watches = watches
        self.client: Client | None = None
        self.why = ""
        """Why there is no client, once `tried` is set."""
        self.tried = trio.Event()
        self.guests: list[Origin] = []
        self.last_used = trio.current_time()
        self.life = trio.CancelScope()

    def idle_for(self) -> float:
        in_use = bool(self.guests) or len(self.watches) > 0
        return 0.0 if in_use else trio.current_time() - self.last_used


class Instances:
    """The instances of one server. `open_link` opens the link of one; `nursery` holds their tasks."""

    def __init__(
        self,
        spec: ServerSpec,
        open_link: Callable[[], AbstractAsyncContextManager[Link]],
        gate: Gate,
        levels: Levels,
        journal: Journal,
        nursery: trio.Nursery,
    ) -> None:
        self._spec = spec
        self._open_link = open_link
        self._gate = gate
        self._levels = levels
        self._journal = journal
        self._nursery = nursery
        self._of_client: dict[Hashable, _Instance] = {}
        self._live: set[_Instance] = set()
        self._backoff = Backoff()
        self._not_before = 0.0

    def __len__(self) -> int:
        return len(self._live)

    @asynccontextmanager
    async def seat(self, exchange: Exchange) -> AsyncIterator[Seat]:
        """A seat for the exchange, for the block.

        Raises:
            TooMany: as many instances live as may.
            Unavailable: it cannot be started.
        """
        key = exchange.caller.instance if self._spec.isolation is Isolation.PER_CLIENT else None
        instance = self._of_client.get(key) if key is not None else None
        if instance is None:
            instance = self._start(exchange.caller, key)
        # What it asks before the call is sent (many ask for roots at once) belongs to the call that it was started for.
        guest = Origin(exchange, Patience(float("inf")))
        instance.guests.append(guest)
        try:
            await instance.tried.wait()
            if instance.client is None:
                raise Unavailable(self._spec.id, f"{self._spec.id} is unavailable: {instance.why}")
            yield Seat(instance.client, instance.watches)
        finally:
            guest.end()
            instance.guests.remove(guest)
            instance.last_used = trio.current_time()
            if key is None:
                instance.life.cancel("its call is over")

    def unwatch(self, uri: str, caller: Caller) -> None:
        """The caller watches this no more; its instance, if there is one, hears of it."""
        instance = self._of_client.get(caller.instance)
        if instance is not None:
            instance.watches.unwatch(uri, caller)

    def forget(self, caller: Caller) -> None:
        """The caller is gone, and its instance with it."""
        instance = self._of_client.pop(caller.instance, None) if caller.instance is not None else None
        if instance is not None:
            instance.watches.forget(caller)
            instance.life.cancel("its client is gone")

    async def roots_changed(self, caller: Caller) -> None:
        instance = self._of_client.get(caller.instance)
        if instance is not None and instance.client is not None:
            with suppress(LinkLost):
                await instance.client.peer.notify(ROOTS_CHANGED)

    def _start(self, caller: Caller, key: Hashable | None) -> _Instance:
        wait = self._not_before - trio.current_time()
        if wait > 0:
            text = f"{self._spec.id} is unavailable: its last instance failed; the next may be started in {wait:.1f} s"
            raise Unavailable(self._spec.id, text)
        if len(self._live) >= self._spec.max_instances:
            text = f"{self._spec.id} has {len(self._live)} instances already, which is its max_instances"
            raise TooMany(self._spec.id, f"{text}; try again later, or raise it")
        instance = _Instance(caller, key, Watches(self._spec.id, self._spec.timeout))
        self._live.add(instance)
        if key is not None:
            self._of_client[key] = instance
        self._nursery.start_soon(self._run, instance)
        return instance

    async def _run(self, instance: _Instance) -> None:
        """One instance, from its start to its end. Lost while something is watched there, it is started again."""
        try:
            with instance.life:
                while True:
                    delay = await self._live_once(instance)
                    if not len(instance.watches):
                        return
                    await trio.sleep(delay)
                    instance.tried = trio.Event()
        finally:
            self._live.discard(instance)
            self._part(instance, instance.why or "its instance was stopped")

    def _part(self, instance: _Instance, why: str) -> None:
        """Nobody finds the instance any more; whoever waits for it waits in vain."""
        if self._of_client.get(instance.key) is instance:
            del self._of_client[instance.key]
        self._lose(instance, why)

    def _lose(self, instance: _Instance, why: str) -> None:
        instance.client = None
        instance.why = why
        instance.tried.set()

    async def _live_once(self, instance: _Instance) -> float:
        """One connection, to its end. Seconds to wait before the next."""
        began = trio.current_time()
        why = "the connection ended"
        try:
            await self._connect(instance)
        except* FAILURES as group:
            why = reason(self._spec, group)
        except* Exception as group:  # noqa: BLE001 - our own mistakes, too, stay with the one instance
            self._journal.note(Crashed(self._spec.id, group))
            why = "of an internal error"
        came_up = instance.tried.is_set()
        delay = self._backoff.failed(trio.current_time() - began if came_up else 0.0, random.random())
        if not came_up:  # another one now would not come up either
            self._not_before = trio.current_time() + delay
        self._lose(instance, why)
        self._journal.note(InstanceFailed(self._spec.id, why))
        return delay

    async def _connect(self, instance: _Instance) -> None:
        spec, caller = self._spec, instance.caller
        voice = Voice(
            spec.id,
            spec.title or spec.id,
            self._gate,
            self._journal,
            owner=lambda: caller,
            updated=instance.watches.updated,
        )
        voice.guests = instance.guests
        asks = declared(self._gate.askable(spec.id, caller.abilities), roots_change=True)
        with trio.fail_after(spec.start_timeout) as patience:
            async with self._open_link() as link, open_peer(link, voice) as peer:
                offered = await shake_hands(link, peer, asks)
                patience.deadline = float("inf")
                instance.client = Client(spec.id, peer, offered, spec.timeout, voice)
                instance.tried.set()
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(stay_awake, peer)
                    nursery.start_soon(self._reap, instance)
                    if offered.logs:
                        nursery.start_soon(self._levels.tune, spec.id, peer, caller)
                    if offered.subscribes:
                        nursery.start_soon(instance.watches.run, peer)
                    await peer.ended.wait()
                    # At once: to end what is left of a child may take seconds, and the next call must not wait.
                    if len(instance.watches):
                        self._lose(instance, str(peer.lost))
                    else:
                        self._part(instance, str(peer.lost))
                    raise peer.lost

    async def _reap(self, instance: _Instance) -> None:
        """End an instance that nobody has used for a while."""
        while True:
            await trio.sleep(max(self._spec.idle_timeout - instance.idle_for(), 0.01))
            if instance.idle_for() >= self._spec.idle_timeout:
                self._part(instance, "nobody used it")
                instance.life.cancel("nobody uses it")
