"""What every connection to a server has in common, shared or dedicated: how it ends, in words, and how it is kept
awake."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress

import trio

from config import ServerSpec
from host.asking import BrokenAnswer, PeerError
from host.errors import first_of
from host.journal import sample
from host.peer import Peer
from host.protocol.handshake import WrongRevision
from host.protocol.methods import PING
from host.upstream.connect import redactor
from host.upstream.reverse import Origin
from host.wire.link import Link, LinkLost

OpenLink = Callable[[ServerSpec, bool], AbstractAsyncContextManager[Link]]
"""Opens a link to the configured server for a block; LinkLost if it cannot be had. True: over the transport of old."""

PING_EVERY = 30.0
PING_PATIENCE = 10.0

FAILURES = (LinkLost, PeerError, BrokenAnswer, ValueError, trio.TooSlowError)
"""What a server may do to its connection. Anything else is our own mistake."""


async def stay_awake(peer: Peer[Origin]) -> None:
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


def reason(spec: ServerSpec, group: BaseExceptionGroup[BaseException]) -> str:
    """Why a connection ended, in words that hold nothing secret."""
    return redactor(spec)(_reason(first_of(group)))


def _reason(problem: BaseException) -> str:
    if isinstance(problem, WrongRevision):
        return f"it speaks the protocol revision {sample(str(problem))}, which is not supported"
    if isinstance(problem, trio.TooSlowError):
        return "it did not finish its start in time (start_timeout)"
    if isinstance(problem, PeerError):
        return f"it refused the handshake: {sample(str(problem))}"
    if isinstance(problem, LinkLost):
        return str(problem)
    return f"it answered the handshake with something else: {sample(str(problem))}"
