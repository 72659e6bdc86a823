"""The composition root. Parts are opened in the order below and closed in reverse.

Over HTTP: signals, audit, keeper, logins, upstreams, admin API, HTTP transports, console, listener. Over stdio:
signals, audit, keeper, logins, upstreams, admin API, console, session.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

import trio

from config import AuditDetail, Config, Switch, is_loopback
from host.admin.login import ConsoleSessions
from host.admin.socket import open_admin_socket
from host.admin.state import HostAdmin
from host.admin.status import status
from host.admin.web import allowed_hosts, console_app, console_url
from host.audit.retention import Retention
from host.audit.writer import Audit, keep_audit, open_audit
from host.catalog import Catalog, Entry
from host.downstream.call_store import CallStore, open_call_store
from host.downstream.http.app import open_http_endpoint
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
from host.policy.confirmations import ConfirmationQueue
from host.policy.decision_log import DecisionLog
from host.policy.gate import Gate
from host.policy.grants import Grants
from host.policy.pins import Pins
from host.router.router import Router
from host.seal import Seal, derive_key
from host.slices import complete
from host.storage.directory import State
from host.storage.sqlite import open_store
from host.storage.store import StateError, Store
from host.upstream.connect import open_link
from host.upstream.credentials import open_credentials
from host.upstream.open_logins import open_logins
from host.upstream.remembered import RememberedServers
from host.upstream.runtime import Runtime
from host.upstream.upstreams import Upstreams, open_upstreams
from host.upstream.vault import open_vault
from host.watched_files import watch_files
from host.wire.acceptor import ListenerLimits, ServeHttp
from host.wire.asgi import ASGIApp
from host.wire.certificate import Certificate
from host.wire.descent import announce_host, is_served_above
from host.wire.port import bind
from host.wire.process import become_subreaper, open_keeper
from host.wire.turns import Turns

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT)
CONSOLE_CONNECTIONS = 128
"""Concurrent connections to a console with an address of its own."""


class ServesItself(Exception):
    """The file has a server that serves this file again, directly or through others."""


START_ERRORS = (StateError, AuditUnavailable, ServesItself)
"""Exceptions for which a host does not start, although its configuration is valid."""


@dataclass(frozen=True, slots=True)
class HttpServers:
    """The servers of what the host serves over HTTP."""

    plain: ServeHttp
    endpoint: ServeHttp
    """With TLS, if there is a certificate."""
    certificate: Certificate | None = None


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

    def status(self) -> bytes:
        return status(
            self.upstreams,
            self.runtime.catalog,
            self.runtime.journal,
            parked=self.calls.parked,
            tasks=self.calls.tasks,
            memory=self.memory,
        )


@asynccontextmanager
async def open_host(
    config: Config,
    state: State,
    journal: Journal,
    serve_http: ServeHttp,
    *,
    endpoint: str = "",
    single_client: bool = False,
    certificate: Certificate | None = None,
) -> AsyncIterator[Host]:
    """All servers of the configuration, connecting, for the block; at its end none is left.

    Args:
        serve_http: serves everything that the host serves over HTTP.
        endpoint: the URL of the endpoint, empty over stdio.
        single_client: there will be one client only.
        certificate: the certificate and key with which the endpoint serves TLS.

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
    memory = Budget(config.memory)
    async with (
        _open_consent(config, state, journal) as consent,
        _open_servers(config, state, journal, consent, memory, serve_http, single_client=single_client) as servers,
        open_call_store(partial(on_crash, "a call that may outlive its request"), memory) as calls,
        trio.open_nursery() as nursery,
    ):
        runtime, upstreams = servers
        router = Router(runtime, upstreams, seal)
        live = LiveConfig(config, runtime, upstreams, memory, certificate=certificate, stdio=single_client)
        admin = HostAdmin(live, runtime, upstreams, endpoint=endpoint, stdio=single_client)
        stateless = Stateless(router, journal, calls, Tasks(router, calls), seal)
        console_sessions = ConsoleSessions(trio.current_time)
        host = Host(live, runtime, upstreams, router, calls, stateless, admin, memory, console_sessions)
        nursery.start_soon(
            keep_audit,
            consent.audit,
            lambda: Retention(live.config.audit.keep, live.config.audit.max),
            partial(on_crash, "keeping the audit"),
        )
        nursery.start_soon(consent.gate.decision_log.keep_folded)
        nursery.start_soon(admin.run)
        nursery.start_soon(give_back, memory)
        nursery.start_soon(collect)
        async with open_admin_socket(admin, state.run, state.hosts, partial(on_crash, "the admin socket"), serve_http):
            yield host
        nursery.cancel_scope.cancel()


class _Consent(NamedTuple):
    """The gate, and where its decisions are kept."""

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
        gate = Gate(
            config.servers,
            Pins(store, trusts, on_lost=decision_log.record_lost_definitions),
            ConfirmationQueue(Grants(store), config.ask, decision_log.record_confirmation),
            decision_log,
        )
        decision_log.record_configuration("config", config.source)
        gate.authorizer.revoke_unruled()
        with suppress(StateError):  # as in `LiveConfig._take`
            await complete(gate.authorizer.grants.store_revocations())
        yield _Consent(audit, store, gate)


@asynccontextmanager
async def _open_servers(
    config: Config,
    state: State,
    journal: Journal,
    consent: _Consent,
    memory: Budget,
    serve_http: ServeHttp,
    *,
    single_client: bool,
) -> AsyncIterator[tuple[Runtime, Upstreams]]:
    """The servers with their logins and lists, connecting, for the block; raises as `open_host` does."""

    def on_collision(entry: Entry) -> None:
        journal.note(
            EntryOmitted(
                entry.ref.server, f"{excerpt(entry.outward)} is offered more than once; all of them are left out"
            )
        )

    store, gate = consent.store, consent.gate
    catalog = Catalog(
        list(config.servers),
        gate.definitions.is_visible_cached,
        on_collision,
        memory,
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
            serve_http,
            gate.decision_log.record_login,
            journal.note,
            may_offer=single_client or is_loopback(config.listen.address.host),
        ) as logins,
    ):
        remembered = RememberedServers(store, key, catalog, gate.definitions.pins, credentials.name_of)
        runtime = Runtime(catalog, gate, journal, remembered, credentials=credentials, logins=logins)
        open_upstream_link = partial(
            open_link, keeper=keeper, journal=journal, turns=Turns(), memory=memory, credentials=credentials
        )
        grace = _start_grace(config, single_client=single_client)
        async with open_upstreams(
            config.servers, grace, open_upstream_link, runtime, single_client=single_client
        ) as upstreams:
            yield runtime, upstreams


def _start_grace(config: Config, *, single_client: bool) -> float:
    """Seconds that lists wait for servers that were never seen. The client of a stdio process often waits for its first
    lists only a few seconds; a client over HTTP may come long after the start."""
    if config.start_grace is not None:
        return config.start_grace
    return 4.0 if single_client else 20.0


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


async def serve(
    config: Config,
    state: State,
    bound: socket.socket,
    url: str,
    journal: Journal,
    announce: Announce | None,
    servers: HttpServers,
) -> None:
    """Serve over HTTP at the bound socket, whose URL is `url`, until a signal stops the host."""
    async with (
        _open_signals() as signals,
        open_host(config, state, journal, servers.plain, endpoint=url, certificate=servers.certificate) as host,
        _follow_reloads(host, signals),
        _open_own_console(host, bound, signals.stop, announce, servers.plain) as console,
        open_http_endpoint(
            config.listen,
            host.router,
            host.stateless,
            journal,
            host.status,
            signals.stop,
            console,
            memory=host.memory,
            record_attempt=host.runtime.gate.decision_log.record_attempt,
            has_console=host.admin.new_console_url is not None,
        ) as app,
    ):
        host.live.follow_listen(app.change_tokens)
        await servers.endpoint(app.serve, bound, stop=signals.stop)


async def serve_over_stdio(
    config: Config, state: State, journal: Journal, announce: Announce | None, serve_http: ServeHttp
) -> None:
    """Serve the one client on standard input and output until it leaves or a signal stops the host."""
    with own_stdout() as stdout:
        async with (
            _open_signals() as signals,
            open_host(config, state, journal, serve_http, single_client=True) as host,
            _follow_reloads(host, signals),
            _open_own_console(host, None, signals.stop, announce, serve_http),
        ):
            session = Session("stdio", None, host.router, journal, tasks=host.stateless.tasks, memory=host.memory)
            stateless = StatelessStdio(host.router, host.stateless, session, signals.stop)
            await serve_stdio(session, stateless, 0, stdout)


# The web console


@asynccontextmanager
async def _open_own_console(
    host: Host, bound: socket.socket | None, stop: trio.Event, announce: Announce | None, serve_http: ServeHttp
) -> AsyncIterator[ASGIApp | None]:
    """The web console, for the block: returned as an app if it is served at the endpoint's own address (a loopback
    address, and none other is configured); otherwise served at a loopback address of its own. If it cannot be opened,
    that is announced, and the host serves without."""
    spec = host.live.config.console
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
    host.admin.new_console_url = lambda: console_url(address, port, host.console_sessions.new_code())

    def on_crash(problem: Exception) -> None:
        host.runtime.journal.note(InternalError("the web console", problem))

    record_attempt = host.runtime.gate.decision_log.record_attempt
    return console_app(host.admin, host.console_sessions, allowed_hosts(address, port), stop, on_crash, record_attempt)


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
