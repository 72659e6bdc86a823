"""The composition root. Parts are opened in the order below and closed in reverse.

Over HTTP: signals, audit, keeper, logins, upstreams, admin API, HTTP transports, console, relays, listener. In the
background: the same without the HTTP transports and the listener. Over stdio: signals, audit, keeper, logins,
upstreams, admin API, console, session.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from config import DEFAULT_CAPACITY, AuditDetail, Config, Switch, is_loopback
from host.addresses import addresses_of
from host.admin.host_admin import HostAdmin
from host.admin.login import ConsoleSessions
from host.admin.socket import RefusedPeers, open_admin_socket
from host.admin.status import status
from host.admin.web import allowed_hosts, console_app, console_url
from host.audit.retention import Retention
from host.audit.writer import Audit, keep_audit, open_audit
from host.catalog import Catalog, Entry
from host.client_process import ClientProcess
from host.downstream.call_store import CallStore, open_call_store
from host.downstream.connected_clients import ConnectedClients
from host.downstream.first_answers import Recording
from host.downstream.http.app import open_http_endpoint
from host.downstream.relays import RelayClaim, RelayClient, Relays, open_relay_claim
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless
from host.downstream.stateless_stdio import StatelessStdio
from host.downstream.stdio import own_stdout, serve_stdio
from host.downstream.tasks import Tasks
from host.errors import AuditUnavailable
from host.heap import collect, give_back, tune
from host.journal import ConsoleFailed, EntryOmitted, InternalError, Journal, excerpt
from host.live_config import LiveConfig
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
from host.storage.directory import State
from host.storage.sqlite import open_store
from host.storage.store import StateError, Store
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

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
LEARNING_TIMEOUT = 30.0
"""Seconds for which a host reads lists for the first time after its only client has left, or without a client."""
CLAIM_INTERVAL = 2.0
"""Seconds between two looks whether the host that serves the relays has ended."""
CONSOLE_CONNECTIONS = 128
"""Concurrent connections to a console with an address of its own."""


class ServesItself(Exception):
    """The file has a server that serves this file again, directly or through others."""


START_ERRORS = (StateError, AuditUnavailable, ServesItself, TooFewFiles)
"""Exceptions for which a host does not start, although its configuration is valid."""


@dataclass(frozen=True, eq=False)
class Host:
    """All parts below the transports."""

    live: LiveConfig
    runtime: Runtime
    upstreams: Upstreams
    router: Router
    calls: CallStore
    stateless: Stateless
    admin: HostAdmin
    memory: Budget
    console_sessions: ConsoleSessions
    clients: ConnectedClients
    trail: Trail
    first_answers: Recording
    records: Path
    """The folder of the host records."""

    def status(self, endpoint: Endpoint) -> bytes:
        return status(
            self.upstreams,
            self.runtime,
            endpoint,
            parked=self.calls.parked,
            tasks=self.calls.tasks,
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
    seal = _open_seal(state, config.source)
    memory = Budget(config.message_memory(config.capacity))
    trail = Trail(config.source, os.environ)
    async with (
        _open_consent(config, state, journal) as consent,
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
        admin = HostAdmin(
            live, runtime, upstreams, router, endpoint=endpoint, stdio=single_client, clients=clients.rows
        )
        stateless = Stateless(router, journal, calls, Tasks(router, calls), seal)
        console_sessions = ConsoleSessions(trio.current_time)
        first_answers = Recording(
            state,
            config.source,
            router,
            stateless,
            journal,
            memory,
            consent.store.poll,
            live.for_next_host,
        )
        host = Host(
            live,
            runtime,
            upstreams,
            router,
            calls,
            stateless,
            admin,
            memory,
            console_sessions,
            clients,
            trail,
            first_answers,
            state.hosts,
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


@asynccontextmanager
async def _open_consent(config: Config, state: State, journal: Journal) -> AsyncIterator[_Consent]:
    """The gate with the stored decisions and the audit of this configuration, for the block; raises as `open_host`
    does."""
    with (
        announce_host(state.hosts, config.source),  # longer than any server runs: no descendant of a host may decide
        open_audit(state.audit, full=config.audit.arguments is AuditDetail.FULL) as audit,
        open_store(state, config.source) as store,
        DecisionLog(audit, journal) as decision_log,
    ):
        trusts = {server: spec.trust for server, spec in config.servers.items()}
        pins = Pins(store, trusts, await store.read_definitions(), on_lost=decision_log.record_lost_definitions)
        config = settled(config, pins)
        gate = Gate(
            config.servers,
            config.callers,
            pins,
            ConfirmationQueue(Grants(store), config.ask, decision_log.record_confirmation),
            decision_log,
        )
        gate.policies.views.replace(config)
        decision_log.record_configuration("config", config.source)
        gate.authorizer.revoke_unruled()
        with suppress(StateError):  # as in `LiveConfig._take`
            await gate.authorizer.grants.store_revocations()
        yield _Consent(config, audit, store, gate)


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
        gate.policies.views,
        gate.policies.views.audiences(),
    )
    key = derive_key(state.key(), b"remembered servers")
    vault = open_vault(state, os.environ)
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
        runtime = Runtime(
            catalog,
            gate,
            journal,
            remembered,
            credentials=credentials,
            logins=logins,
            installations=Installations(directory, keeper, journal),
        )
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
        grace = _start_grace(config, endpoint)
        specs = config.servers
        if not starts:
            specs = {id: replace(spec, disabled=True) for id, spec in specs.items()}
        async with open_upstreams(specs, grace, open_upstream_link, runtime, single_client=single_client) as upstreams:
            yield runtime, upstreams, keeper


def _start_grace(config: Config, endpoint: str) -> float:
    """Seconds that lists wait for servers that were never seen. The client for which a process was started often waits
    for its first lists only a few seconds; a client over HTTP may come long after the start."""
    if config.start_grace is not None:
        return config.start_grace
    return 20.0 if endpoint else 4.0


def _open_seal(state: State, source: Path) -> Seal:
    """The seal of one configuration file: the same after a restart, and different from those of other files, whose
    servers and tokens may have the same names.

    Raises:
        StateError: its key cannot be stored.
    """
    secret = state.key()
    try:
        return Seal(derive_key(secret, os.fsencode(os.path.realpath(source))))
    except ValueError as problem:
        raise StateError(f"{state.path / 'key'} holds no key ({problem}); remove it to have another one made") from None


Announce = Callable[[str], object]
"""Takes a line for the person who started the host; None if there is none."""


def endpoint_limits(config: Config) -> ListenerLimits:
    """The limits of the endpoint over HTTP/1.1.

    Raises:
        TooFewFiles: the process may not open as many files as the connections need that the file sets.
    """
    connections = config.capacity.connections
    limits = replace(DEFAULT_LIMITS if config.listen.http2 is None else BESIDE_HTTP2, max_connections=connections)
    if connections != DEFAULT_CAPACITY.connections:  # with fewer files than the default needs, it is lower
        check_open_files(limits, "capacity.connections")
    return limits


async def serve(
    config: Config,
    state: State,
    bound: socket.socket,
    url: str,
    journal: Journal,
    announce: Announce | None,
    certificate: Certificate | None = None,
    serve_http2: Callable[..., Awaitable[None]] | None = None,
) -> None:
    """Serve over HTTP at the bound socket, whose URL is `url`, until a signal stops the host.

    Args:
        certificate: serve TLS with it.
        serve_http2: serves an app over HTTP/2 at another socket, until `stop` is set.
    """
    limits = endpoint_limits(config)
    async with (
        _open_signals() as signals,
        open_host(config, state, journal, endpoint=url, certificate=certificate) as host,
        _follow_reloads(host, signals),
        _open_own_console(host, bound, signals.stop, announce) as console,
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
            clients=host.clients,
            record_attempt=host.runtime.gate.decision_log.record_attempt,
            has_console=host.admin.new_console_url is not None,
            capacity=config.capacity,
        ) as app,
    ):
        host.live.follow(lambda config: app.change_access(config.listen, addresses_of(config)))
        async with _open_relays(host, config, state, None, journal, signals.stop), trio.open_nursery() as nursery:
            if serve_http2 is not None:
                nursery.start_soon(partial(serve_http2, app.serve, stop=signals.stop))
            await serve_http(app.serve, bound, certificate=certificate, stop=signals.stop, limits=limits)


async def serve_relays(
    config: Config,
    state: State,
    claim: RelayClaim,
    journal: Journal,
    on_started: Callable[[], object],
) -> None:
    """Serve relays until there was none for a while, or a signal stops the host.

    Args:
        on_started: called once the first relay can connect.
    """
    async with (
        _open_signals() as signals,
        open_host(config, state, journal) as host,
        _follow_reloads(host, signals),
        _open_own_console(host, None, signals.stop, None),
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
            yield RelayClient(session, StatelessStdio(host.router, host.stateless, session, stop))

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

    async with trio.open_nursery() as nursery:
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
            _open_signals() as signals,
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
            stateless = StatelessStdio(host.router, host.stateless, session, signals.stop)
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

    return console_app(
        host.admin,
        host.console_sessions,
        allowed_hosts(address, port),
        stop,
        on_crash,
        host.runtime.gate.decision_log.record_attempt,
        partial(trio.to_thread.run_sync, partial(refuse_sender, hosts=host.records)),
    )


# Signals


class _Signals:
    """`stop` is set by the first signal to stop; `reload` by each signal to read the configuration again."""

    def __init__(self) -> None:
        self.stop = trio.Event()
        self.reload = trio.Event()


@asynccontextmanager
async def _open_signals() -> AsyncIterator[_Signals]:
    """Handle signals for the block. The second signal to stop ends the process at once; the keeper then ends the
    children."""
    requested = _Signals()
    had_terminal = _has_terminal() and signal.getsignal(signal.SIGHUP) is not signal.SIG_IGN  # `nohup`

    async def watch(signals: AsyncIterator[int]) -> None:
        async for number in signals:
            # SIGHUP means a closed terminal if this process had one and has none now; otherwise a request to reload.
            if number == signal.SIGHUP and not (had_terminal and not _has_terminal()):
                requested.reload.set()
                continue
            if requested.stop.is_set():
                os._exit(0)
            requested.stop.set()

    with trio.open_signal_receiver(*STOP_SIGNALS, signal.SIGHUP) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            yield requested
            nursery.cancel_scope.cancel()


def _has_terminal() -> bool:
    """Whether this process has a controlling terminal."""
    try:
        os.close(os.open("/dev/tty", os.O_RDWR | os.O_NOCTTY))
    except OSError:
        return False
    return True


@asynccontextmanager
async def _follow_reloads(host: Host, signals: _Signals) -> AsyncIterator[None]:
    """Reload the configuration at each signal, and when one of its files is saved. Signals during a reload are
    combined."""

    async def reload(*, by_person: bool) -> None:
        try:
            await host.live.reload(by_person=by_person)
        except Exception as problem:  # noqa: BLE001 - a mistake of ours in this must not end what runs
            host.runtime.journal.note(InternalError("reading the configuration again", problem))

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
