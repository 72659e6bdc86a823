"""The trial of servers: each is connected once before a host serves it, and its lists are remembered as by a host."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import trio
from msgspec import Struct, structs

from config import Config, ServerSpec, Start
from host.admin.decisions import PolicyAdmin
from host.app import Host, open_host
from host.journal import Journal
from host.policy.rows import DefinitionRow
from host.protocol.methods import Kind, describe_counts
from host.sanitize import with_said
from host.storage.directory import State
from host.upstream.connection import may_launch
from host.upstream.output import describe_silence
from host.upstream.state import Connecting, Failed, Held, Installing, NeedsLogin, describe_for_people
from host.upstream.supervisor import UpstreamServer

TRIAL_TIMEOUT = 30.0
"""Seconds in which a server must be ready."""


class Trial(Struct, frozen=True):
    """The outcome of the trial of one server.

    Attributes:
        offers: the numbers of its entries, in words; empty if it is not ready.
        problem: why it is not, and the remedy; empty if it is.
        has_failed: whether that is a failure. It is none that a person must log in, or approve another program.
        definitions: what it offers, without what its rules deny.
        is_known: whether its lists were remembered, so that it was not tried.
        info: the texts of its `serverInfo`, if it was connected.
    """

    server: str
    offers: str = ""
    problem: str = ""
    has_failed: bool = False
    definitions: tuple[DefinitionRow, ...] = ()
    is_known: bool = False
    info: tuple[tuple[str, str], ...] = ()


async def try_servers(
    config: Config,
    state: State,
    journal: Journal,
    servers: Iterable[str],
    may_try: Callable[[list[str]], bool],
    tell: Callable[[Trial], object],
    folder: str,
) -> None:
    """Connect these servers of the configuration, at the same time, and read their lists; then stop them.

    A server whose lists are remembered already is not tried. Definitions are approved or held as by a host that starts
    the servers, by their `trust`; nothing else is decided. A server whose program is held is not started. If every
    server of the configuration is known then, relays can answer for the next host while that starts.

    Args:
        may_try: asked whether these servers may be started; nothing is started before.
        tell: takes the outcome of each trial, as it comes, and what the servers offer that are known already.
        folder: where servers start that run in the folder of their client.

    Raises:
        START_ERRORS, OSError: no host of this configuration could start.
    """
    wanted = list(servers)
    async with open_host(config, state, journal, starts=False) as host:
        enabled = {id: spec for id, spec in host.live.config.servers.items() if not spec.disabled}
        known = {id for id, spec in enabled.items() if await _is_known(host, spec)}
        unknown = [id for id in wanted if id not in known]
        if unknown and not may_try(unknown):
            return
        specs = {id: each.spec for id, each in host.upstreams.by_id.items()}
        # The remembered lists of the others are shown, and none of them is started for that.
        specs |= {id: replace(enabled[id], start=Start.LAZY) for id in known}
        specs |= {id: enabled[id] for id in unknown}
        host.upstreams.apply(specs, [*known, *unknown])
        async with trio.open_nursery() as nursery:
            for id in known:
                nursery.start_soon(_recall, host, host.upstreams.by_id[id], tell if id in wanted else None)
            for id in unknown:
                nursery.start_soon(_follow, host, host.upstreams.by_id[id], folder, tell)
        if enabled.keys() == known.union(unknown):
            await host.first_answers.write()


async def _is_known(host: Host, spec: ServerSpec) -> bool:
    """Whether the lists of the server are remembered, for its present configuration, program and login."""
    if spec.problem or not await may_launch(spec, host.runtime):
        return False
    server = host.upstreams.by_id[spec.id].main
    return await server.lists.remembered.load(spec, server.source) is not None


async def _follow(host: Host, server: UpstreamServer, folder: str, tell: Callable[[Trial], object]) -> None:
    with trio.move_on_after(TRIAL_TIMEOUT):
        await server.wait_settled(folder)
    outcome = _outcome(host, server)
    tell(structs.replace(outcome, definitions=await _definitions(host, server)) if outcome.offers else outcome)


async def _recall(host: Host, server: UpstreamServer, tell: Callable[[Trial], object] | None) -> None:
    await server.main.life.recalled.wait()
    if tell is not None:
        tell(Trial(server.spec.id, is_known=True, definitions=await _definitions(host, server)))


async def _definitions(host: Host, server: UpstreamServer) -> tuple[DefinitionRow, ...]:
    runtime = host.runtime
    listed = await PolicyAdmin(runtime.gate).definitions(server.spec.id)
    return tuple(row for row in listed["definitions"] if not row["denied"])


def _outcome(host: Host, server: UpstreamServer) -> Trial:
    id, state, catalog, journal = server.spec.id, server.main.state, host.runtime.catalog, host.runtime.journal
    if isinstance(state, Connecting) and state.last_failure is None:
        waits = f"it is still starting after {TRIAL_TIMEOUT:.0f} s, and a host waits {server.spec.start_timeout:g} s"
        return Trial(
            id, problem=f"{waits}: {describe_silence(journal.output(id), server.main.dropped_answers)}", has_failed=True
        )
    if isinstance(state, Failed):
        # Nothing runs that could be restarted.
        why = state.why.removesuffix(f"; then colonnade restart {id}")
        return Trial(id, problem=with_said(why, state.said), has_failed=True)
    if isinstance(state, Held | Installing | NeedsLogin):
        return Trial(id, problem=describe_for_people(state))
    if server.main.life.client is None:
        return Trial(id, problem=describe_for_people(state), has_failed=True)
    lists = ((kind, catalog.listed(server.main.source, kind)) for kind in Kind)
    offers = describe_counts((kind, len(entries or ())) for kind, entries in lists)
    return Trial(id, offers=offers, info=server.main.life.client.negotiated.info)
