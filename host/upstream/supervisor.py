"""One server, kept connected: the loop that connects, waits for the end, and tries again. Its failures are states.

    connecting -> ready -> failed -> connecting ...        disabled

Nothing a server does gets past this file: whatever ends a connection ends as a state, which says why and when the next
attempt is. Entries of a server that is away stay in the catalog, so that a restart changes no client's list.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass

import trio

from config import ServerSpec
from host.catalog import Catalog
from host.errors import Unavailable, first_of
from host.journal import Crashed, Journal, ServerFailed, ServerReady, sample
from host.peer import BrokenAnswer, Peer, PeerError, open_peer
from host.protocol.handshake import WrongRevision
from host.protocol.methods import PING, Kind
from host.upstream.backoff import Backoff
from host.upstream.client import Client, Voice, shake_hands
from host.upstream.connect import redactor
from host.upstream.listing import Lister
from host.wire.link import Link, LinkLost

OpenLink = Callable[[ServerSpec], AbstractAsyncContextManager[Link]]
"""Opens a link to the configured server for a block; LinkLost if it cannot be had."""

PING_EVERY = 30.0
PING_PATIENCE = 10.0


@dataclass(frozen=True, slots=True)
class Connecting:
    since: float
    last_failure: str | None


@dataclass(frozen=True, slots=True)
class Ready:
    since: float
    client: Client


@dataclass(frozen=True, slots=True)
class Failed:
    since: float
    why: str
    next_attempt: float


@dataclass(frozen=True, slots=True)
class Disabled:
    pass


State = Connecting | Ready | Failed | Disabled


class Upstream:
    """One configured server. `state` is what it is in now; `settled` is set once its first attempt has ended."""

    def __init__(self, spec: ServerSpec, catalog: Catalog, journal: Journal) -> None:
        self.spec = spec
        self.attempts = 0
        self.settled = trio.Event()
        self.state: State = Connecting(trio.current_time(), None)
        self._catalog = catalog
        self._journal = journal
        self._backoff = Backoff()
        self._lister: Lister | None = None

    def ready(self) -> Client:
        """The connected client.

        Raises:
            Unavailable: there is none now; says why and when the next attempt is.
        """
        state = self.state
        if isinstance(state, Ready):
            return state.client
        raise Unavailable(self.spec.id, f"{self.spec.id} is unavailable: {describe(state)}")

    def refresh(self, kind: Kind) -> None:
        """Somebody asked for an entry that is not listed: perhaps the list is old."""
        if self._lister is not None:
            self._lister.mark((kind,))

    async def supervise(self, open_link: OpenLink) -> None:
        """Keep the server connected until cancelled. Never raises."""
        while True:
            self.attempts += 1
            try:
                await self._connect(open_link)
            except* _EXPECTED as group:
                self._fall(redactor(self.spec)(_reason(group)))
            except* Exception as group:  # noqa: BLE001 - one server's trouble, our own mistakes included, stays with it
                self._journal.note(Crashed(self.spec.id, group))
                self._fall("of an internal error")
            failed = self._fall("the connection ended")
            await trio.sleep_until(failed.next_attempt)
            self.state = Connecting(trio.current_time(), failed.why)

    def _fall(self, why: str) -> Failed:
        """From now on the server counts as failed. The first reason holds: what comes after it comes of it."""
        state = self.state
        if isinstance(state, Failed):
            return state
        now = trio.current_time()
        delay = self._backoff.failed(now - state.since if isinstance(state, Ready) else 0.0, random.random())
        failed = self.state = Failed(now, why, now + delay)
        self._lister = None
        self.settled.set()
        self._journal.note(ServerFailed(self.spec.id, why, delay))
        return failed

    async def _connect(self, open_link: OpenLink) -> None:
        """One connection, from its beginning to its end, which is always an error."""
        began = trio.current_time()
        voice = Voice(self.spec.id, self._journal)
        with trio.fail_after(self.spec.start_timeout) as patience:
            async with open_link(self.spec) as link, open_peer(link, voice) as peer:
                offered = await shake_hands(link, peer)
                lister = Lister(self.spec.id, peer, offered, self._catalog, self._journal)
                voice.changed = lister.mark
                await lister.read_all()
                if peer.ended.is_set():
                    raise peer.lost
                patience.deadline = float("inf")
                self._lister = lister
                self.state = Ready(trio.current_time(), Client(self.spec.id, peer, offered, self.spec.timeout))
                self.settled.set()
                self._journal.note(
                    ServerReady(self.spec.id, sample(offered.server), self._counts(), trio.current_time() - began)
                )
                await self._stay(peer, lister)

    async def _stay(self, peer: Peer, lister: Lister) -> None:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(lister.run)
            nursery.start_soon(_watch, peer)
            await peer.ended.wait()
            # At once: to end what is left of a child may take seconds, and calls must not wait for that.
            self._fall(str(peer.lost))
            raise peer.lost

    def _counts(self) -> str:
        counted = ((kind, len(self._catalog.shelf(kind).by_server.get(self.spec.id, ()))) for kind in Kind)
        return counted_out(counted)


def counted_out(counts: Iterable[tuple[Kind, int]]) -> str:
    """How many entries of each kind, in words."""
    words = (f"{count} {kind.value}" + ("" if count == 1 else "s") for kind, count in counts if count)
    return ", ".join(words) or "nothing to offer"


_EXPECTED = (LinkLost, PeerError, BrokenAnswer, ValueError, trio.TooSlowError)


async def _watch(peer: Peer) -> None:
    """Ask a silent server for a sign of life (2025-11-25, "Ping"). A server that works for us is not asked."""
    while True:
        await trio.sleep(PING_EVERY)
        if peer.in_flight or trio.current_time() - peer.last_heard < PING_EVERY:
            continue
        with trio.move_on_after(PING_PATIENCE):
            with suppress(PeerError, BrokenAnswer):  # a refusal is a sign of life too
                await peer.request(PING)
            continue
        peer.lose(LinkLost(f"it did not answer a ping within {PING_PATIENCE:.0f} s"))
        return


def describe(state: State) -> str:
    """A state in words, as the end of a sentence about the server."""
    now = trio.current_time()
    if isinstance(state, Ready):
        return "ready"
    if isinstance(state, Disabled):
        return "it is disabled in the configuration"
    if isinstance(state, Failed):
        return f"{state.why}; next attempt in {max(state.next_attempt - now, 0):.1f} s"
    if state.last_failure is not None:
        return f"it is being connected again after it failed: {state.last_failure}"
    return "it is still starting"


def _reason(group: BaseExceptionGroup[BaseException]) -> str:
    """Why a connection ended, in words."""
    problem = first_of(group)
    if isinstance(problem, WrongRevision):
        return f"it speaks the protocol revision {sample(str(problem))}, which is not supported"
    if isinstance(problem, trio.TooSlowError):
        return "it did not finish its start in time (start_timeout)"
    if isinstance(problem, PeerError):
        return f"it refused the handshake: {sample(str(problem))}"
    if isinstance(problem, LinkLost):
        return str(problem)
    return f"it answered the handshake with something else: {sample(str(problem))}"
