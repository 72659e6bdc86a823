"""The common part of shared and dedicated connections: how they begin, the tasks that keep them up to date, and the
reason for which they end."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from contextlib import AbstractAsyncContextManager, asynccontextmanager, suppress
from functools import partial

import trio
from msgspec import Struct

from config import Protocol, ServerSpec, StdioServer
from host.errors import first_exception
from host.journal import OutputRecord, excerpt
from host.peer.outstanding import BrokenAnswer, PeerError
from host.peer.peer import Peer, open_peer
from host.policy.fingerprint import Launch, launch_of
from host.policy.gate import Gate
from host.protocol.handshake import UnsupportedRevision, client_capabilities
from host.protocol.methods import PING
from host.protocol.versions import LATEST, STATELESS
from host.upstream.call import UpstreamCall
from host.upstream.change_stream import ChangeStream
from host.upstream.client import Client, ServerLists
from host.upstream.credentials import Credential
from host.upstream.log_levels import LogLevels, LogLevelSync
from host.upstream.negotiate import Dialect, era_change_in, handshake_refusal, negotiate
from host.upstream.output import DroppedAnswers, describe_silence
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import ServerMessages
from host.upstream.server_secrets import ServerSecrets
from host.wire.link import Link, LinkLost
from host.wire.stdio import StdioLink

_DATE = re.compile(r"[0-9]{4}-[0-9]{2}-[0-9]{2}")
PING_INTERVAL = 30.0
PING_TIMEOUT = 10.0


class UpstreamLease(Struct, frozen=True):
    """The right to use a connection for one exchange. The shared one needs no end, and is its own context manager."""

    client: Client
    watches: ResourceWatches

    async def __aenter__(self) -> UpstreamLease:
        return self

    async def __aexit__(self, *_: object) -> None:
        return


CONNECT_FAILURES = (LinkLost, PeerError, BrokenAnswer, UnsupportedRevision, trio.TooSlowError)
"""Exceptions that a server can cause when it is connected. Any other one is an error in Colonnade."""


def launch_in(runtime: Runtime, spec: ServerSpec) -> Launch:
    """The launch identity of a server at this moment."""
    return launch_of(spec) if runtime.installations is None else runtime.installations.launch(spec)


async def may_launch(spec: ServerSpec, runtime: Runtime) -> bool:
    """Look up the program of a server. Returns whether it is approved; a server at a URL has none."""
    launch, ran_before = launch_in(runtime, spec), spec.unconfined is not None
    return await runtime.gate.definitions.observe_launch(spec.id, launch, ran_before=ran_before)


@asynccontextmanager
async def open_client(
    spec: ServerSpec,
    link: AbstractAsyncContextManager[Link],
    server_messages: ServerMessages,
    gate: Gate,
    dialect: Dialect,
    lists: ServerLists,
) -> AsyncIterator[Client]:
    """Connect to the server behind `link`, and negotiate.

    Args:
        dialect: what is known about the server's era.

    Raises:
        CONNECT_FAILURES: the negotiation failed, or the connection ended.
    """
    clients = server_messages.clients
    usable = gate.server_requests.usable_abilities(spec.id, clients.abilities, None)
    server_messages.declares_roots = usable.roots
    capabilities = client_capabilities(
        usable,
        roots_change=clients.roots_change,
        apps=gate.policies.shows_apps(spec.id),
    )
    observer = gate.decision_log.journal.observer
    observe = None if observer is None else partial(observer.sending, spec)
    async with link as opened, open_peer(opened, server_messages, server_messages.secrets, observe) as peer:
        server_messages.disconnect = peer.connection_lost
        negotiated = await negotiate(opened, peer, capabilities, dialect, is_process=isinstance(spec, StdioServer))
        server_messages.revision, peer.revision = negotiated.revision, negotiated.revision.name
        client = Client(peer, negotiated, spec, server_messages, gate, lists)
        client.on_tool_error = opened.on_tool_error if isinstance(opened, StdioLink) else None
        yield client


def follow_changes(
    nursery: trio.Nursery,
    client: Client,
    server_messages: ServerMessages,
    log_levels: LogLevels,
    watches: ResourceWatches,
) -> None:
    """Start the tasks of a connection: keep-alive, era check, log level and subscriptions of its clients."""
    negotiated = client.negotiated
    nursery.start_soon(client.detect_era_change)
    if negotiated.runs_tasks:
        nursery.start_soon(client.cancel_orphaned_tasks)
    if negotiated.era is STATELESS:
        change_stream = server_messages.change_stream = ChangeStream(client, watches, server_messages.on_lists_changed)
        nursery.start_soon(change_stream.run)
        return
    nursery.start_soon(keep_alive, client.peer)
    if negotiated.has_logging:
        client.log_level_sync = LogLevelSync(log_levels, client.server, client.peer, server_messages.clients.caller)
        nursery.start_soon(client.log_level_sync.run)
    if negotiated.has_subscriptions:
        nursery.start_soon(watches.run, client.peer)


async def keep_alive(peer: Peer[UpstreamCall]) -> None:
    """Ping a silent server (2025-11-25, "Ping"), and end the connection if it does not respond. A server that works on
    a request is not pinged."""
    while True:
        before = peer.received_count
        await trio.sleep(PING_INTERVAL)
        if peer.outstanding_count or peer.received_count != before:
            continue
        with trio.move_on_after(PING_TIMEOUT):
            with suppress(BrokenAnswer):
                try:
                    await peer.request(PING)
                except PeerError as refusal:  # also a sign of life, but perhaps of another server at this URL
                    if (lost := era_change_in(refusal)) is not None:
                        peer.connection_lost(lost)
                        return
            continue
        peer.connection_lost(LinkLost(f"it did not respond to a ping within {PING_TIMEOUT:.0f} s"))
        return


class LoginChanged(LinkLost):
    """The connection was for another login than the present one."""

    lost_login = True


async def end_with_login(client: Client, credential: Credential | None, login_id: str) -> None:
    """End a connection when its login is another one, or over: it may be of another account."""
    if credential is not None:
        await credential.wait_changed(login_id)
        client.peer.connection_lost(LoginChanged("its login has changed"))


def failure_reason(
    spec: ServerSpec,
    group: BaseExceptionGroup[BaseException],
    output: list[OutputRecord] | None = None,
    dropped: DroppedAnswers | None = None,
) -> str:
    """The reason why a connection ended, without the configured secrets.

    Args:
        output: the lines that the server wrote since the connection began.
        dropped: what it sent as answers and Colonnade dropped.
    """
    return ServerSecrets(spec).redact(_reason(spec, first_exception(group), output or [], dropped))


def _reason(
    spec: ServerSpec, problem: BaseException, output: list[OutputRecord], dropped: DroppedAnswers | None
) -> str:
    if isinstance(problem, UnsupportedRevision):
        excluded = "remove protocol from its configuration, or " if spec.protocol is not Protocol.AUTO else ""
        # The sentence also names revisions of ours, and none of them is newer than LATEST.
        older = "Colonnade" if any(date > LATEST.name for date in _DATE.findall(str(problem))) else "the server"
        return f"no protocol revision in common: {excerpt(str(problem))}: {excluded}update {older}"
    if isinstance(problem, trio.TooSlowError):
        return f"it did not finish its start within {spec.start_timeout:g} s: {describe_silence(output, dropped)}"
    if isinstance(problem, PeerError):
        return handshake_refusal(problem)
    if isinstance(problem, LinkLost):
        return problem.with_remedy
    return f"its response to the handshake is invalid: {excerpt(str(problem))}"
