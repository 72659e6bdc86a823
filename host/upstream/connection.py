"""What every connection to a server has in common, shared or dedicated: how it begins, what it is kept in step with,
and how it ends, in words."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import trio

from config import ServerSpec, StdioServer
from host.errors import first_exception
from host.exchange import Caller
from host.journal import excerpt
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import Peer, open_peer
from host.policy.gate import Gate
from host.protocol.abilities import Abilities
from host.protocol.handshake import UnsupportedRevision, client_capabilities
from host.protocol.methods import PING
from host.upstream.call import UpstreamCall
from host.upstream.change_stream import ChangeStream
from host.upstream.client import Client, ServerLists
from host.upstream.connect import redactor
from host.upstream.log_levels import LogLevels, LogLevelSync
from host.upstream.negotiate import Dialect, era_change_in, negotiate
from host.upstream.resource_watches import ResourceWatches
from host.upstream.server_requests import ServerMessages
from host.wire.link import Link, LinkLost


class OpenLink(Protocol):
    def __call__(self, spec: ServerSpec, *, http_sse: bool) -> AbstractAsyncContextManager[Link]:
        """A link to the configured server for a block; `http_sse`: over the transport of 2024-11-05.

        Raises:
            LinkLost: it cannot be had.
        """


PING_INTERVAL = 30.0
PING_TIMEOUT = 10.0


@dataclass(frozen=True, slots=True)
class UpstreamLease:
    """Where a request is carried out."""

    client: Client
    watches: ResourceWatches


CONNECT_FAILURES = (LinkLost, PeerError, BrokenAnswer, UnsupportedRevision, trio.TooSlowError)
"""What a server may do to its connection. Anything else is our own mistake."""


@asynccontextmanager
async def open_client(
    spec: ServerSpec,
    link: AbstractAsyncContextManager[Link],
    server_messages: ServerMessages,
    gate: Gate,
    dialect: Dialect,
    lists: ServerLists,
    client_abilities: Abilities,
    *,
    roots_change: bool,
) -> AsyncIterator[Client]:
    """A client of the server behind `link`, for the block, once they have come to terms in the `dialect` that is known.

    Args:
        client_abilities: what whoever is behind this connection may be asked for at the most.
        roots_change: the server hears when their roots do.

    Raises:
        CONNECT_FAILURES: it did not come to that, or the connection ended.
    """
    capabilities = client_capabilities(
        gate.server_requests.usable_abilities(spec.id, client_abilities),
        roots_change=roots_change,
        apps=gate.policies.shows_apps(spec.id),
    )
    async with link as opened, open_peer(opened, server_messages) as peer:
        server_messages.disconnect = peer.connection_lost
        negotiated = await negotiate(opened, peer, capabilities, dialect, is_process=isinstance(spec, StdioServer))
        server_messages.revision = negotiated.revision
        yield Client(spec.id, peer, negotiated, spec.timeout, server_messages, gate, lists)


def follow_changes(
    nursery: trio.Nursery,
    client: Client,
    server_messages: ServerMessages,
    log_levels: LogLevels,
    watches: ResourceWatches,
    caller: Caller | None,
) -> None:
    """Start what keeps a connection alive, and the server at what `caller`, or (None) everybody, wants of it."""
    negotiated = client.negotiated
    nursery.start_soon(client.detect_era_change)
    if negotiated.runs_tasks:
        nursery.start_soon(client.cancel_orphaned_tasks)
    if negotiated.revision.stateless:
        change_stream = server_messages.change_stream = ChangeStream(client, watches, server_messages.on_lists_changed)
        nursery.start_soon(change_stream.run)
        return
    nursery.start_soon(keep_alive, client.peer)
    if negotiated.has_logging:
        client.log_level_sync = LogLevelSync(log_levels, client.server, client.peer, caller)
        nursery.start_soon(client.log_level_sync.run)
    if negotiated.has_subscriptions:
        nursery.start_soon(watches.run, client.peer)


async def keep_alive(peer: Peer[UpstreamCall]) -> None:
    """Ask a silent server for a sign of life (2025-11-25, "Ping"). A server that works for us is not asked."""
    while True:
        await trio.sleep(PING_INTERVAL)
        if peer.outstanding_count or trio.current_time() - peer.last_received_at < PING_INTERVAL:
            continue
        with trio.move_on_after(PING_TIMEOUT):
            with suppress(BrokenAnswer):
                try:
                    await peer.request(PING)
                except PeerError as refusal:  # a sign of life too, but perhaps of another server by now
                    if (lost := era_change_in(refusal)) is not None:
                        peer.connection_lost(lost)
                        return
            continue
        peer.connection_lost(LinkLost(f"it did not answer a ping within {PING_TIMEOUT:.0f} s"))
        return


def failure_reason(spec: ServerSpec, group: BaseExceptionGroup[BaseException]) -> str:
    """Why a connection ended, in words that hold nothing secret."""
    return redactor(spec)(_reason(first_exception(group)))


def _reason(problem: BaseException) -> str:
    if isinstance(problem, UnsupportedRevision):
        return f"no protocol revision in common: {excerpt(str(problem))}"
    if isinstance(problem, trio.TooSlowError):
        return "it did not finish its start in time (start_timeout)"
    if isinstance(problem, PeerError):
        return f"it refused the handshake: {excerpt(str(problem))}"
    if isinstance(problem, LinkLost):
        return str(problem)
    return f"it answered the handshake with something else: {excerpt(str(problem))}"
