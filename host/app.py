"""The composition root. Parts are opened in the order below and closed in reverse.

Over HTTP: signals, audit, keeper, logins, upstreams, admin API, HTTP transports, console, relays, listener. In the
background: the same without the HTTP transports and the listener. Over stdio: signals, audit, keeper, logins,
upstreams, admin API, console, session.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager, nullcontext, suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import trio
from msgspec import Struct, structs

from config import DEFAULT_CAPACITY, AuditPlace, Config, Switch, is_loopback
from host.addresses import addresses_of
from host.admin.host_admin import HostAdmin
from host.admin.login import ConsoleSessions
from host.admin.socket import RefusedPeers, open_admin_socket
from host.admin.status import status
from host.admin.web import WebDoor, allowed_hosts, console_url
from host.audit.retention import Retention
from host.audit.stream import unblocked
from host.audit.writer import Audit, keep_audit, open_audit
from host.catalog import Catalog, Entry
from host.client_process import ClientProcess
from host.downstream.call_store import CallStore, open_call_store
from host.downstream.connected_clients import ConnectedClients
from host.downstream.drain import Drain
from host.downstream.first_answers import Recording
from host.downstream.http.app import open_http_endpoint
from host.downstream.http.request import HttpRequest
from host.downstream.relays import RelayClaim, RelayClient, Relays, open_relay_claim
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless
from host.downstream.stateless_stdio import StatelessStdio
from host.downstream.stdio import own_stdout, serve_stdio
from host.downstream.stored_sessions import StoredSessions
from host.downstream.tasks import Tasks
from host.errors import AuditUnavailable
from host.fleet.entrance import open_fleet
from host.heap import collect, give_back, tune
from host.history.entrance import HostHistory
from host.journal import ConsoleFailed, EntryOmitted, InternalError, Journal, MetricsFailed, excerpt
from host.live_config import LiveConfig, record_contents
from host.memory import Budget
from host.notify.notices import Notifier, session_bus
from host.policy.confinement import settled
from host.policy.confirmations import ConfirmationQueue
from host.policy.decision_log import DecisionLog
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.router.router import Router
from host.seal import Seal, derive_key
from host.source import Endpoint
from host.storage.choice import keys_for, open_chosen_store
from host.storage.directory import State
from host.storage.sql import Store
from host.storage.store import Revisions, StateError
from host.systemd import ServiceManager
from host.telemetry.entrance import metrics_app, open_telemetry
from host.upstream.connect import open_link
from host.upstream.containers import Containers
from host.upstream.credentials import open_credentials
from host.upstream.installations import Installations
from host.upstream.open_logins import open_logins
from host.upstream.remembered import RememberedServers
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams, open_upstreams
from host.upstream.vault import open_vault
from host.watched_files import watch_files
from host.wire.acceptor import BESIDE_HTTP2, DEFAULT_LIMITS, ListenerLimits, TooFewFiles, check_open_files
from host.wire.asgi import ASGIApp, cancel_when
from host.wire.certificate import Certificate
from host.wire.client_program import find_client
from host.wire.descent import Trail, announce_host, is_served_above, this_process
from host.wire.listener import serve_http
from host.wire.port import bind
from host.wire.process import Keeper, become_subreaper, open_keeper
from host.wire.tcp_peer import refuse_sender
from host.wire.turns import Turns

if TYPE_CHECKING:
    from host.fleet.process import FleetProcess
    from host.telemetry.counts import HostCounts

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEARNING_TIMEOUT = 30.0
"""Seconds for which a host reads lists for the first time after its only client has left, or without a client."""
CLAIM_INTERVAL = 2.0
"""Seconds between two looks whether the host that serves the relays has ended."""
BESIDE_DRAIN = 10.0
"""Seconds that a host needs to end beside `drain` (docs/operations.md, "What is under way")."""
CONSOLE_CONNECTIONS = 128
"""Concurrent connections to a console with an address of its own."""
METRICS_CONNECTIONS = 16
"""Concurrent connections to the metrics: a few programs that ask every some seconds."""


class ServesItself(Exception):
    """The file has a server that serves this file again, directly or through others."""


START_ERRORS = (StateError, AuditUnavailable, ServesItself, TooFewFiles)
"""Exceptions for which a host does not start, although its configuration is valid."""


class Host(Struct, frozen=True, eq=False):
    """All parts below the transports."""

    live: LiveConfig
    runtime: Runtime
    audit: Audit
    store: Store
    upstreams: Upstreams
    router: Router
    calls: CallStore
    stateless: Stateless
    admin: HostAdmin
    memory: Budget
    console_sessions: ConsoleSessions
    clients: ConnectedClients
    drain: Drain
    trail: Trail
    first_answers: Recording
    records: Path
    """The folder of the host records."""
    stored_sessions: StoredSessions
    fleet: FleetProcess | None
    """This process as a member of a fleet; None without one."""

    def status(self, endpoint: Endpoint) -> bytes:
        return status(
            self.upstreams,
            self.runtime,
            endpoint,
            parked=self.calls.parked,
            tasks=self.calls.tasks,
            draining=self.drain.begun.is_set(),
            memory=self.memory,
        )


@asynccontextmanager
async def open_host(
    config: Config,
    state: State,
    journal: Journal,
    *,
    endpoint: str = "",
    single_client: bool = False,
    certificate: Certificate | None = None,
    starts: bool = True,
) -> AsyncIterator[Host]:
    """All servers of the configuration, connecting, for the block; at its end none is left.

    Args:
        endpoint: the URL of the endpoint, empty over stdio and in the background.
        single_client: there will be one client only.
        certificate: the certificate and key with which the endpoint serves TLS.
        starts: the servers are started; otherwise each is disabled until `Upstreams.apply` starts it.

    Raises:
        StateError, AuditUnavailable, OSError: decisions cannot be stored, events cannot be written to the audit, or the
            admin API cannot be opened.
        ServesItself: a host of this file has started this one. Each would start another, without end.
    """
    if is_served_above(config.source, state.hosts):
        name = config.source.name
        raise ServesItself(
            f"{name} has a server that serves {name} again, which would go on without end; remove that server from it"
        )

    def on_crash(what: str, problem: Exception) -> None:
        journal.note(InternalError(what, problem))

    tune()
    seal = _open_seal(config, state)
    memory = Budget(config.message_memory(config.capacity))
    trail = Trail(config.source, os.environ)
    async with (
        _open_consent(config, state, journal, endpoint) as consent,
        open_fleet(config, seal, consent.taken_over) if endpoint else nullcontext() as fleet,
        _open_servers(
            state,
            journal,
            consent,
            memory,
            trail,
            endpoint=endpoint,
            single_client=single_client,
            starts=starts,
        ) as servers,
        open_call_store(partial(on_crash, "a call that may outlive its request"), memory) as calls,
        trio.open_nursery() as nursery,
    ):
        runtime, upstreams, keeper = servers
        config = consent.config
        router = Router(runtime, upstreams, seal)
        live = LiveConfig(config, runtime, upstreams, memory, certificate=certificate, stdio=single_client)
        clients = ConnectedClients()
        drain = Drain(lambda: live.config.drain, memory, calls, runtime.gate.authorizer.confirmations.close)
        admin = HostAdmin(
            live, runtime, upstreams, router, endpoint=endpoint, stdio=single_client, clients=clients.rows
        )
        admin.reader.is_draining = drain.begun.is_set
        homes = None if fleet is None else fleet.seal.homes
        rows = consent.store, seal, config.capacity.sessions, journal.note
        stored_sessions = StoredSessions(*rows, now=consent.store.now, homes=homes)
        if fleet is not None:
            fleet.stage = lambda: drain.stage
            live.follow(fleet.follow)
            admin.reader.fleet = fleet.status
            nursery.start_soon(fleet.share_confirmations, runtime.gate.authorizer.confirmations, consent.store)
            consent.gate.policies.share(fleet.rates)
            nursery.start_soon(fleet.share_limits, consent.gate.policies)
            nursery.start_soon(fleet.follow_absences, consent.gate, admin.reader.follow_decisions)
            admin.spread_grants = fleet.spread_grants
            stored_sessions.processes = lambda: len(fleet.members.present)
            admin.spread_definitions = partial(fleet.spread_definitions, consent.store)
            admin.reader.wait_for_decisions = partial(fleet.wait_for_decisions, consent.store)
            fleet.on_unknown = partial(_record_unknown, consent.gate.decision_log)
        of_process = seal if fleet is None else fleet.seal
        stateless = Stateless(router, journal, calls, Tasks(router, calls, of_process), of_process)
        history = HostHistory(state, journal, nursery, has_files=consent.audit.has_files)
        history.follow(config)
        live.follow(history.follow)
        admin.reader.history = history
        console_sessions = ConsoleSessions(trio.current_time)
        first_answers = Recording(
            state,
            config.source,
            Stateless(router, journal.unobserved(), calls, stateless.tasks, of_process),
            memory,
            consent.store.poll,
            live.for_next_host,
        )
        host = Host(
            live,
            runtime,
            consent.audit,
            consent.store,
            upstreams,
            router,
            calls,
            stateless,
            admin,
            memory,
            console_sessions,
            clients,
            drain,
            trail,
            first_answers,
            state.hosts,
            stored_sessions,
            fleet,
        )
        nursery.start_soon(
            keep_audit,
            consent.audit,
            lambda: Retention(live.config.audit.keep, live.config.audit.max),
            partial(on_crash, "keeping the audit"),
        )
        nursery.start_soon(consent.gate.decision_log.keep_folded)
        nursery.start_soon(stateless.announcements.run)
        nursery.start_soon(admin.reader.run)
        nursery.start_soon(_open_notifier(admin, runtime, keeper, state).run)
        nursery.start_soon(give_back, memory)
        nursery.start_soon(collect)
        async with open_admin_socket(admin, state.run, state.hosts, partial(on_crash, "the admin socket")):
            yield host
        nursery.cancel_scope.cancel()


def _record_unknown(decision_log: DecisionLog, http_request: HttpRequest, home: str) -> None:
    """Record a request that another process of the fleet got, and of which nobody knows what became."""
    identity = http_request.identity or ""
    decision_log.record("forwarded", home=home, principal=identity, address=http_request.address, outcome="unknown")


def _open_notifier(admin: HostAdmin, runtime: Runtime, keeper: Keeper, state: State) -> Notifier:
    def new_link(confirmation: str, life: float) -> str | None:
        return None if admin.new_console_url is None else admin.new_console_url(confirmation, life)

    confirmations = runtime.gate.authorizer.confirmations
    bus = partial(session_bus, os.environ)
    return Notifier(confirmations, keeper, runtime.journal, state.hosts, state.run, new_link, bus)


class _Consent(NamedTuple):
    """The gate, and where its decisions are kept. `config`: with the sandboxes that these lead to."""

    config: Config
    audit: Audit
    store: Store
    gate: Gate

    def taken_over(self) -> Revisions:
        """The revisions up to which this process goes by nothing former. Each use of a grant looks at the store."""
        return self.store.poll()._replace(definitions=self.gate.definitions.taken_over)


@asynccontextmanager
async def _open_consent(config: Config, state: State, journal: Journal, endpoint: str) -> AsyncIterator[_Consent]:
    """The gate with the stored decisions and the audit of this configuration, for the block; raises as `open_host`
    does."""
    with (
        announce_host(state.hosts, config.source),  # longer than any server runs: no descendant of a host may decide
        _audit_stream(config, endpoint) as stream,
        open_audit(state.audit, stream=stream) as audit,
        open_chosen_store(config.fleet, state, config.source) as store,
        DecisionLog(audit, journal) as decision_log,
    ):
        trusts = {server: spec.trust for server, spec in config.servers.items()}
        found = await store.read_definitions()
        pins = Pins(store, trusts, found, on_lost=decision_log.record_lost_definitions, wall=store.now)
        config = settled(config, pins)
        gate = Gate(
            config.servers,
            config.callers,
            pins,
            ConfirmationQueue(Grants(store, wall=store.now), config.ask, decision_log.record_confirmation),
            decision_log,
        )
        gate.policies.views.replace(config)
        record_contents(decision_log, config)
        decision_log.record_configuration("config", config.source)
        gate.authorizer.revoke_unruled()
        with suppress(StateError):  # as in `LiveConfig._take`
            await gate.authorizer.grants.store_revocations()
        yield _Consent(config, audit, store, gate)


@contextmanager
def _audit_stream(config: Config, endpoint: str) -> Iterator[int | None]:
    """Our standard output for the audit alone, for the block, if the configuration has it there. That of a command
    without an endpoint is for its result."""
    if config.audit.to is AuditPlace.FILES or not endpoint:
        yield None
        return
    with own_stdout() as stdout, unblocked(stdout) as stream:
        yield stream


@asynccontextmanager
async def _open_servers(
    state: State,
    journal: Journal,
    consent: _Consent,
    memory: Budget,
    trail: Trail,
    *,
    endpoint: str,
    single_client: bool,
    starts: bool,
) -> AsyncIterator[tuple[Runtime, Upstreams, Keeper]]:
    """The servers with their logins and lists, connecting if this `starts` them, for the block; raises as `open_host`
    does."""

    def on_left_out(entry: Entry, view: str) -> None:
        where = f" in the view {view}" if view else ""
        text = f"{excerpt(entry.outward)} is offered more than once{where}; all of them are left out"
        if entry.left_out:
            of = f"the {entry.ref.kind} {excerpt(entry.ref.name)!r} is left out{where}"
            text = f"{of}, because its override cannot be applied exactly: {excerpt(entry.left_out)}"
        journal.note(EntryOmitted(entry.ref.server, text))

    config, store, gate = consent.config, consent.store, consent.gate
    catalog = Catalog(
        list(config.servers),
        gate.definitions.is_visible_cached,
        on_left_out,
        memory,
        views=gate.policies.views,
        audiences=gate.policies.views.audiences(),
    )
    key, *_ = keys_for(b"remembered servers", config.fleet, state)
    vault = open_vault(state, os.environ, config.fleet)
    await trio.lowlevel.checkpoint()  # each of the rules and the servers of a large file take some 10 ms
    become_subreaper()  # before there is a keeper that could be killed
    async with (
        open_keeper() as keeper,
        open_credentials(store, vault, journal.note) as credentials,
        open_logins(
            store,
            vault,
            credentials,
            gate.decision_log.record_login,
            journal.note,
            may_offer=not endpoint or config.listen.is_local,
        ) as logins,
    ):
        remembered = RememberedServers(store, key, catalog, gate.definitions.pins, credentials.name_of)
        directory = state.for_config(config.source)
        open_upstream_link = partial(
            open_link,
            keeper=keeper,
            journal=journal,
            turns=Turns(),
            memory=memory,
            credentials=credentials,
            trail=trail.tell,
            containers=Containers(state.containers, keeper),
            directory=directory,
        )
        runtime = Runtime(
            catalog,
            gate,
            journal,
            open_upstream_link,
            remembered,
            credentials=credentials,
            logins=logins,
            installations=Installations(directory, keeper, journal),
            single_client=single_client,
        )
        grace = _start_grace(config, endpoint)
        specs = config.servers
        if not starts:
            specs = {id: replace(spec, disabled=True) for id, spec in specs.items()}
        async with open_upstreams(specs, grace, runtime) as upstreams:
            yield runtime, upstreams, keeper


def _start_grace(config: Config, endpoint: str) -> float:
    """Seconds that lists wait for servers that were never seen. The client for which a process was started often waits
    for its first lists only a few seconds; a client over HTTP may come long after the start."""
    if config.start_grace is not None:
        return config.start_grace
    return 20.0 if endpoint else 4.0


def _open_seal(config: Config, state: State) -> Seal:
    """The seal of one configuration file: the same after a restart, and different from those of other files, whose
    servers and tokens may have the same names. In a fleet, that of all its processes.

    Raises:
        StateError: its key cannot be stored.
    """
    if config.fleet is not None:
        key, *former = keys_for(b"fleet", config.fleet, state)
        return Seal(key, former=former)
    secret = state.key()
    try:
        return Seal(derive_key(secret, os.fsencode(os.path.realpath(config.source))))
    except ValueError as problem:
        raise StateError(f"{state.path / 'key'} holds no key ({problem}); remove it to have another one made") from None


_AT_ONCE = 0.5
"""Seconds within which a host that nobody uses has stopped, so that nothing need be said."""
Announce = Callable[[str], object]
"""Takes a line for the person who started the host; None if there is none."""


def endpoint_limits(config: Config) -> ListenerLimits:
    """The limits of the endpoint over HTTP/1.1.

    Raises:
        TooFewFiles: the process may not open as many files as the connections need that the file sets.
    """
    connections = config.capacity.connections
    limits = structs.replace(
        DEFAULT_LIMITS if config.listen.http2 is None else BESIDE_HTTP2, max_connections=connections
    )
    if connections != DEFAULT_CAPACITY.connections:  # with fewer files than the default needs, it is lower
        check_open_files(limits, "capacity.connections")
    return limits


async def serve(
    config: Config,
    state: State,
    bound: socket.socket,
    url: str,
    journal: Journal,
    on_started: Callable[[], object],
    announce: Announce | None,
    manager: ServiceManager,
    certificate: Certificate | None = None,
    serve_http2: Callable[..., Awaitable[None]] | None = None,
    metrics: socket.socket | None = None,
) -> None:
    """Serve over HTTP at the bound socket, whose URL is `url`, until a signal stops the host and what is under way then
    has ended.

    Args:
        on_started: called once nothing is left for which the host would not start, before anything is announced.
        manager: is told what the host does.
        serve_http2: serves an app over HTTP/2 at another socket, until `stop` is set.
        metrics: the socket bound to `listen.metrics`; None if the configuration has none.
    """
    limits = endpoint_limits(config)
    async with (
        _open_signals() as signals,
        open_telemetry(config, journal) as counts,
        open_host(config, state, journal, endpoint=url, certificate=certificate) as host,
    ):
        on_started()
        async with (
            _report(manager, host),
            _follow_reloads(host, signals, manager),
            _drain_at(host, signals, _start_grace(config, url), announce),
            _open_own_console(host, bound, signals.stop, announce) as console,
            _open_metrics(host, counts, metrics, certificate, signals.stop),
            open_http_endpoint(
                config.listen,
                addresses_of(config),
                host.router,
                host.stateless,
                journal,
                host.status,
                signals.stop,
                console,
                memory=host.memory,
                drain=host.drain,
                clients=host.clients,
                record_attempt=host.runtime.gate.decision_log.record_attempt,
                is_recorded=host.runtime.gate.decision_log.is_recorded,
                has_console=host.admin.new_console_url is not None,
                capacity=config.capacity,
                stored=host.stored_sessions,
                forwarding=None if host.fleet is None else host.fleet.forwarding,
            ) as app,
        ):
            host.live.follow(lambda config: app.change_access(config.listen, addresses_of(config)))
            async with _open_relays(host, config, state, None, journal, signals.stop), trio.open_nursery() as nursery:
                leaving, stop, rest = host.drain.begun, signals.stop, host.drain.rest
                if serve_http2 is not None:
                    nursery.start_soon(partial(serve_http2, app.serve, leaving=leaving, stop=stop, grace=rest))
                if host.fleet is not None:
                    serve_inner = partial(host.fleet.serve, leaving=leaving, stop=stop, grace=rest, limits=limits)
                    nursery.start_soon(serve_inner, app.serve)
                await serve_http(
                    app.serve, bound, certificate=certificate, leaving=leaving, stop=stop, grace=rest, limits=limits
                )


async def serve_relays(
    config: Config,
    state: State,
    claim: RelayClaim,
    journal: Journal,
    on_started: Callable[[], object],
) -> None:
    """Serve relays until there was none for a while, or a signal stops the host, and what is under way then has ended.

    Args:
        on_started: called once the first relay can connect.
    """
    async with (
        _open_signals() as signals,
        open_telemetry(config, journal) as counts,
        open_host(config, state, journal) as host,
        _follow_reloads(host, signals),
        _drain_at(host, signals, _start_grace(config, "")),
        _open_own_console(host, None, signals.stop, None),
        _open_metrics(host, counts, None, None, signals.stop),
        _open_relays(host, config, state, claim, journal, signals.stop) as relays,
        trio.open_nursery() as nursery,
    ):
        are_listed = trio.Event()

        async def learn() -> None:
            await _learn_first_lists(host.upstreams, signals.stop)
            are_listed.set()

        def is_busy() -> bool:
            is_learning = not are_listed.is_set() and not relays.is_leaving  # the next host learns them itself
            return is_learning or host.calls.parked + host.calls.tasks > 0

        async def wait_idle() -> None:
            await relays.wait_idle(lambda: _lingering(host.live.config), is_busy)
            nursery.cancel_scope.cancel("nobody has used it for a while")

        host.admin.reader.ends_in = relays.ends_in
        on_started()
        nursery.start_soon(learn)
        nursery.start_soon(wait_idle)
        await signals.stop.wait()
        nursery.cancel_scope.cancel("a signal has stopped it")


def _lingering(config: Config) -> float:
    """Seconds for which a host in the background stays without a client."""
    return 0.0 if config.daemon is None else config.daemon.idle


@asynccontextmanager
async def _open_relays(
    host: Host, config: Config, state: State, claim: RelayClaim | None, journal: Journal, stop: trio.Event
) -> AsyncIterator[Relays]:
    """Serve the relays of the configuration, for the block; without a claim, as soon as no other process does."""

    @asynccontextmanager
    async def open_client(name: str, endpoint: Endpoint, process: ClientProcess) -> AsyncIterator[RelayClient]:
        if host.trail.has_grown():
            host.live.restart_links()
        async with host.live.adopt_environment(process):
            tasks = host.stateless.tasks
            session = Session(name, endpoint, host.router, journal, tasks=tasks, memory=host.memory, process=process)
            host.clients.add(session, "relay")
            yield RelayClient(session, StatelessStdio(host.stateless, session, stop))

    def endpoint_of(view: str) -> Endpoint | None:
        endpoint = addresses_of(host.live.config).own(view)
        if endpoint is not None:
            host.first_answers.views.add(view)
        return endpoint

    refused = RefusedPeers(host.admin.record_refused_peer)
    relays = Relays(config.source, state.hosts, host.trail, open_client, endpoint_of, refused.add)

    async def serve_when_free() -> None:
        is_taken = True
        while is_taken:
            with suppress(StateError), open_relay_claim(state, config.source) as free:
                if free is not None:
                    is_taken = False
                    nursery.start_soon(host.first_answers.keep)
                    await relays.serve(free)
            if is_taken:
                await trio.sleep(CLAIM_INTERVAL)

    async def leave_when_draining() -> None:
        await host.drain.begun.wait()
        relays.leave()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(leave_when_draining)
        if claim is None:
            nursery.start_soon(serve_when_free)
        else:
            await nursery.start(relays.serve, claim)
            nursery.start_soon(host.first_answers.keep)
        yield relays
        nursery.cancel_scope.cancel()


async def serve_over_stdio(
    config: Config, state: State, journal: Journal, announce: Announce | None, endpoint: Endpoint
) -> None:
    """Serve the one client on standard input and output, at this endpoint, until it leaves or a signal stops the
    host."""
    with own_stdout() as stdout:
        async with (
            _open_signals(drains=False) as signals,
            open_telemetry(config, journal, metrics=False),
            open_host(config, state, journal, single_client=True) as host,
            _follow_reloads(host, signals),
            _open_own_console(host, None, signals.stop, announce),
        ):
            session = Session(
                "stdio",
                endpoint,
                host.router,
                journal,
                tasks=host.stateless.tasks,
                memory=host.memory,
                process=find_client(this_process()),
                is_sole=True,
            )
            host.clients.add(session, "stdio")
            stateless = StatelessStdio(host.stateless, session, signals.stop)
            await serve_stdio(session, stateless, 0, stdout)
            await _learn_first_lists(host.upstreams, signals.stop)


async def _learn_first_lists(upstreams: Upstreams, stop: trio.Event) -> None:
    """Go on reading lists that were never read, so that the next host knows them: many clients leave before a server
    that is installed at its first start is there."""
    with trio.move_on_after(LEARNING_TIMEOUT):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(cancel_when, stop, nursery.cancel_scope)
            await upstreams.wait_first_lists()
            nursery.cancel_scope.cancel()


# The metrics


@asynccontextmanager
async def _open_metrics(
    host: Host,
    counts: HostCounts | None,
    bound: socket.socket | None,
    certificate: Certificate | None,
    stop: trio.Event,
) -> AsyncIterator[None]:
    """Serve the metrics at `listen.metrics` for the block, if there are counts. `bound`: its socket; if None, it is
    bound here, and if that fails, it is told, and the host serves without."""
    config = host.live.config
    address = config.listen.metrics
    if counts is None or address is None:
        yield
        return
    host.live.follow(lambda config: counts.follow(config.servers))
    try:
        bound = bind(*address) if bound is None else bound
        host.clients.on_end = counts.on_client_left
    except OSError as problem:
        host.runtime.journal.note(MetricsFailed(f"{problem.strerror}; another address is set under listen.metrics"))
        yield
        return
    app = metrics_app(
        counts,
        config,
        host.runtime,
        host.upstreams,
        host.memory,
        host.audit,
        host.store,
        host.runtime.gate.decision_log.record_attempt,
        sessions=host.clients.count,
        streams=lambda: host.clients.streams(),
        parked=lambda: host.calls.parked,
        tasks=lambda: host.calls.tasks,
    )
    # The certificate is for names of other machines.
    certificate = None if is_loopback(address.host) else certificate
    limits = ListenerLimits(METRICS_CONNECTIONS)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_http, app, bound, certificate=certificate, stop=stop, limits=limits))
        yield
        nursery.cancel_scope.cancel()


# The web console


@asynccontextmanager
async def _open_own_console(
    host: Host, bound: socket.socket | None, stop: trio.Event, announce: Announce | None
) -> AsyncIterator[ASGIApp | None]:
    """The web console, for the block: returned as an app if it is served at the endpoint's own address (a loopback
    address, and none other is configured); otherwise served at a loopback address of its own. If it cannot be opened,
    that is announced, and the host serves without."""
    spec = host.live.config.console
    host.runtime.gate.authorizer.confirmations.has_console = False
    if spec is None:
        yield None
        return
    listen = host.live.config.listen
    # Its cookies and links are for plain HTTP on loopback, which no other machine can read along.
    if bound is not None and spec.address is None and is_loopback(listen.address.host) and listen.tls is None:
        app = _console_at(host, bound, stop)
        if announce is not None:
            announce(f"The console is at {host.admin.console_url()} (this link opens it once)")
        yield app
        return
    try:
        own = bind(*(spec.address or ("127.0.0.1", 0)))
    except OSError as problem:
        why = f"its address cannot be had ({problem.strerror}); another is set under console.address"
        host.runtime.journal.note(ConsoleFailed(why))
        yield None
        return
    async with trio.open_nursery() as nursery:
        console = _console_at(host, own, stop)
        nursery.start_soon(partial(serve_http, console, own, stop=stop, limits=ListenerLimits(CONSOLE_CONNECTIONS)))
        if announce is not None:
            announce(f"The console is at {host.admin.console_url()} (this link opens it once)")
        yield None
        nursery.cancel_scope.cancel()


def _console_at(host: Host, bound: socket.socket, stop: trio.Event) -> ASGIApp:
    address, port = bound.getsockname()[:2]
    host.admin.new_console_url = lambda confirmation, life: console_url(
        address, port, host.console_sessions.new_code(life), confirmation
    )
    host.runtime.gate.authorizer.confirmations.has_console = True

    def on_crash(problem: Exception) -> None:
        host.runtime.journal.note(InternalError("the web console", problem))

    return WebDoor(
        host.admin,
        host.console_sessions,
        allowed_hosts(address, port),
        stop,
        on_crash,
        host.runtime.gate.decision_log.record_attempt,
        partial(trio.to_thread.run_sync, partial(refuse_sender, hosts=host.records)),
    ).serve


# Signals


class _Signals:
    """`drain` is set by the first signal to stop, which is `number`; `stop` when the host is to end; `reload` by each
    signal to read the configuration again."""

    def __init__(self) -> None:
        self.number = 0
        self.drain = trio.Event()
        self.stop = trio.Event()
        self.reload = trio.Event()


@asynccontextmanager
async def _open_signals(*, drains: bool = True) -> AsyncIterator[_Signals]:
    """Handle signals for the block. The second signal to stop ends the process at once; the keeper then ends the
    children.

    Args:
        drains: `_drain_at` sets `stop`. Otherwise the first signal does: it is from the only client, which started this
            process and waits for nothing any more.
    """
    requested = _Signals()
    had_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # `nohup`

    async def watch(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            # SIGHUP means a closed terminal if this process had one and has none now; otherwise a request to reload.
            if number == signal.SIGHUP and not (had_terminal and not _has_terminal()):
                requested.reload.set()
                continue
            if requested.drain.is_set():
                os._exit(0)
            requested.number = number
            requested.drain.set()
            if not drains:
                requested.stop.set()

    with trio.open_signal_receiver(*STOP_SIGNALS, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            yield requested
            nursery.cancel_scope.cancel()


@asynccontextmanager
async def _drain_at(
    host: Host, signals: _Signals, grace: float, announce: Announce | None = None
) -> AsyncIterator[None]:
    """Say that the host is ready, in the block, once each server's lists are known, or `grace` is over, for which a
    client would wait for them. Drain it at the first signal to stop, and have it end then. A person who waits for that
    is told so (`announce`)."""

    async def say_ready() -> None:
        with trio.move_on_after(grace):
            await host.upstreams.wait_first_lists()
        host.drain.ready.set()

    async def drain() -> None:
        await signals.drain.wait()
        if announce is not None:
            nursery.start_soon(say_drains, announce)
        await host.drain.run(by_person=signals.number != signal.SIGTERM)
        signals.stop.set()

    async def say_drains(announce: Announce) -> None:
        await trio.sleep(_AT_ONCE)
        announce(f"Stopping: what is under way has {host.live.config.drain:g} s to end; Ctrl-C again ends it now")

    async with trio.open_nursery() as nursery:
        nursery.start_soon(say_ready)
        nursery.start_soon(drain)
        yield
        nursery.cancel_scope.cancel()


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@asynccontextmanager
async def _report(manager: ServiceManager, host: Host) -> AsyncIterator[None]:
    """Tell systemd in the block when the host is ready, when it ends, and that its event loop is not stuck."""

    async def ready() -> None:
        await host.drain.ready.wait()
        manager.ready()

    async def stopping() -> None:
        await host.drain.begun.wait()
        manager.stopping(host.live.config.drain + BESIDE_DRAIN)

    async def alive() -> None:
        while True:
            manager.alive()
            await trio.sleep(manager.watchdog / 2)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(ready)
        nursery.start_soon(stopping)
        nursery.start_soon(alive)
        yield
        nursery.cancel_scope.cancel()


@asynccontextmanager
async def _follow_reloads(host: Host, signals: _Signals, manager: ServiceManager | None = None) -> AsyncIterator[None]:
    """Reload the configuration at each signal, and when one of its files is saved. Signals during a reload are
    combined."""

    async def reload(*, by_person: bool) -> None:
        # Before the host is ready, or once it ends, this would be taken for the end of its start.
        told = manager if host.drain.ready.is_set() and not host.drain.begun.is_set() else None
        if told is not None:
            told.reloading()
        try:
            await host.live.reload(by_person=by_person)
        except Exception as problem:  # noqa: BLE001 - a mistake of ours in this must not end what runs
            host.runtime.journal.note(InternalError("reading the configuration again", problem))
        if told is not None and not host.drain.begun.is_set():
            told.ready()

    async def follow() -> None:
        while True:
            await signals.reload.wait()
            signals.reload = trio.Event()
            await reload(by_person=True)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(follow)
        config = host.live.config
        if config.watch is Switch.ON:
            nursery.start_soon(watch_files, config.source, lambda: host.live.files, partial(reload, by_person=False))
        yield
        nursery.cancel_scope.cancel()
