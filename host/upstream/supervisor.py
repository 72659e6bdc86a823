"""One configured server: its connections, and which of them serves whom. Only this file decides by era and isolation
which connection a caller gets.

A server always has its main connection. One that may be used in both eras has a session beside it, for handshake
clients: used if the main connection is stateless. The session begins stopped, and is `absent` while it cannot be had,
however it failed: the main connection then serves all clients. A server that is not shared has dedicated instances for
calls, beside the connections that list.

Entries of a server that is away stay in the catalog, so that a restart changes no client's list.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable, Collection
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from typing import ClassVar

import trio

from config import Eras, HttpServer, Isolation, Protocol, ServerSpec, Start, StdioServer
from host.errors import MethodNotFound, Unavailable
from host.exchange import Caller, Exchange
from host.journal import (
    InternalError,
    ServerFailed,
    ServerHeld,
    ServerReady,
    ServerStopped,
    SessionClosed,
    SessionOpened,
    excerpt,
)
from host.policy.gate import WatchPermit
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.methods import Kind, describe_counts
from host.protocol.negotiated import NegotiatedServer
from host.protocol.versions import SESSION, STATELESS
from host.source import Source
from host.upstream.backoff import ReadingBudget, Restarts
from host.upstream.catalog_sync import CatalogSync
from host.upstream.client import Client
from host.upstream.client_folder import is_folder, may_have_folder, no_folder
from host.upstream.connection import UpstreamLease, launch_in, may_launch
from host.upstream.instances import Instances
from host.upstream.outcome import ConnectionEnd, Outcome, server_outcome, session_outcome
from host.upstream.remembered_lists import Offered
from host.upstream.resource_watches import NotifyWatcher, ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import Clients
from host.upstream.source_lists import SourceLists
from host.upstream.state import (
    Absent,
    Connecting,
    Disabled,
    Failed,
    Held,
    Installing,
    NeedsFolder,
    Ready,
    State,
    Stopped,
)
from host.upstream.supervised import Role, UpstreamConnection

LAUNCH_CHECK_INTERVAL = 5.0
"""Seconds between two checks of the program of a held server."""
MIN_IDLE_CHECK = 1.0
"""Seconds between two looks at whether an idle server still has watched resources."""
SESSION_IDLE = 300.0
"""Seconds without use after which the session beside a stateless connection is closed, if `idle` does not say."""
SESSION_START_TIMEOUT = 10.0
"""Seconds in which a server at a URL must accept a session beside its stateless connection, which already answers."""


def _stopped(spec: ServerSpec) -> Stopped:
    return Stopped(trio.current_time(), at_url=isinstance(spec, HttpServer))


class _SharedRole(Role):
    """The common part of the roles of connections that serve all clients of an era."""

    _stopped_event: ClassVar[type[ServerStopped | SessionClosed]]
    """Noted when the connection is closed because it is idle."""

    def __init__(
        self, server: UpstreamServer, spec: ServerSpec, budget: ReadingBudget, restarts: Restarts, state: State
    ) -> None:
        self.restarts = restarts
        self._server = server
        self._runtime = server.runtime
        self.clients = Clients(
            SHARED_ABILITIES, server.sole_caller, self._runtime.single_client, log_listeners=self._log_listeners
        )
        self._lists = SourceLists(Source(spec.id, SESSION), server.runtime, budget, self)
        self.connection = UpstreamConnection(spec, server.runtime, self, self._lists, state)

    def _log_listeners(self) -> Collection[Caller]:
        callers = self._runtime.log_levels.callers(self.connection.spec.id)
        return callers if self.folder is None else self._runtime.client_folders.within(self.folder, callers)

    def on_change(self) -> None:
        self._lists.source = self.connection.source
        if not isinstance(self.connection.state, Connecting):
            self._lists.remembered.save_soon()
        self._server.choose_for_sessions()

    async def prepare(self) -> None:
        """Wait until the launch is approved; then publish what is remembered. Before its first connection, a lazy
        server whose lists are known is stopped, and one that runs in a folder of a client waits for that."""
        connection = self.connection
        spec, life = connection.spec, connection.life
        await self._wait_approved(spec)
        installations, definitions = self._runtime.installations, self._runtime.gate.definitions
        if installations is not None and isinstance(spec, StdioServer) and definitions.launch(spec.id).installs:
            life.state = Installing(trio.current_time())
            await installations.install(spec)
            await self._wait_approved(spec)
        if isinstance(life.state, Held | Installing):
            life.state = Connecting(trio.current_time(), None)
        if not self._lists.is_recalled:
            await self._server.recall(connection)
            if spec.start is Start.LAZY and life.listed.is_set() and not spec.takes_client_folder:
                life.state = _stopped(spec)
        if spec.takes_client_folder and self.folder is None:
            life.state = NeedsFolder(trio.current_time())

    async def _wait_approved(self, spec: ServerSpec) -> None:
        """Wait until the launch is approved; the state is *held* meanwhile, and stays so."""
        runtime, definitions = self._runtime, self._runtime.gate.definitions
        if await may_launch(spec, runtime):
            return
        self.connection.life.state = Held(trio.current_time(), definitions.why_held(spec.id))
        launch = launch_in(runtime, spec)
        runtime.journal.note(ServerHeld(spec.id, launch.program or "", spec.sandbox is not None, launch.installs))
        while not await may_launch(spec, runtime):
            with trio.move_on_after(LAUNCH_CHECK_INTERVAL):  # the approved program may be restored meanwhile
                await definitions.wait_until_launchable(spec.id)

    def count_start(self) -> None:
        self.restarts.on_start(trio.current_time())

    def on_lists_changed(self, kinds: list[Kind]) -> None:
        self._lists.on_announced(kinds)

    async def open_lists(self, client: Client) -> CatalogSync:
        return await self._lists.open(client)

    def idle_pause(self, client: Client) -> float | None:
        """A connection is idle that was not used for as long as `idle` says, and over which nothing is watched."""
        if self.connection.spec.idle is None:
            return math.inf
        left = self.connection.spec.idle - client.idle_seconds
        return max(left, MIN_IDLE_CHECK) if left > 0 or len(self.connection.watches) else None

    def on_idle(self) -> State:
        spec = self.connection.spec
        self._runtime.journal.note(self._stopped_event(spec.id, spec.idle or 0.0))
        self._lists.end_sync()
        if spec.takes_client_folder:
            self.folder = None
            return NeedsFolder(trio.current_time())
        return _stopped(spec)

    # For the lists

    @abstractmethod
    def may_publish(self) -> bool: ...

    @abstractmethod
    def is_alone(self) -> bool: ...

    def is_ready(self) -> bool:
        return isinstance(self.connection.state, Ready)

    def offered(self) -> Offered | None:
        connection, negotiated = self.connection, self.connection.negotiated
        if negotiated is None or not self._server.is_current:
            return None
        return Offered(connection.spec, connection.source, negotiated)


class _MainRole(_SharedRole):
    """The role of the main connection."""

    _stopped_event = ServerStopped
    _failed_in = frozenset[str]()
    """The folders of clients in which the last starts failed."""

    def may_take(self, folder: str) -> bool:
        """Whether it is to be opened in this folder of a client: it has none, or it could not be started in another
        one, where perhaps a file is missing that its command names."""
        if not isinstance(self.connection.state, Failed):
            return isinstance(self.connection.state, NeedsFolder)
        is_next = folder not in self._failed_in and len(self._failed_in) < self.connection.spec.max_instances
        return bool(self._failed_in) and is_next and not len(self.connection.watches)

    def take_folder(self, folder: str) -> None:
        """Have it opened in this folder of a client."""
        life, self.folder = self.connection.life, folder
        life.state = Connecting(trio.current_time(), None)
        life.use()

    def on_lists_changed(self, kinds: list[Kind]) -> None:
        super().on_lists_changed(kinds)
        session = self._server.session
        if session is not None and session.role.may_open_again():
            session.read_if_old()  # a session that is not open hears nothing, but its clients are to be notified

    def on_negotiated(self, negotiated: NegotiatedServer) -> None:
        if negotiated.era is STATELESS:
            self._server.on_stateless(was_stateless=self.connection.is_stateless)

    def on_ready(self, negotiated: NegotiatedServer, seconds: float) -> None:
        self._failed_in = frozenset()
        source = self.connection.source
        lists = ((kind, self._runtime.catalog.listed(source, kind)) for kind in Kind)
        counts = describe_counts((kind, len(entries or ())) for kind, entries in lists)
        self._runtime.journal.note(ServerReady(source.server, excerpt(negotiated.server), counts, seconds))

    def outcome(self, end: ConnectionEnd) -> Outcome:
        self._lists.close()
        outcome = server_outcome(end, self.restarts)
        if self.folder is not None and not isinstance(end.state, Ready):
            self._failed_in |= {self.folder}
        if self.folder is not None and not end.is_watched and not is_folder(self.folder):
            self.folder = None  # a client in another folder must not wait for this one
            return outcome._replace(state=NeedsFolder(end.now))
        return outcome

    def may_publish(self) -> bool:
        return self._server.is_current

    def is_alone(self) -> bool:
        return not (self.connection.is_stateless and self._server.session is not None)


class _SessionRole(_SharedRole):
    """The role of the session beside a stateless connection."""

    _stopped_event = SessionClosed

    def _log_listeners(self) -> Collection[Caller]:
        return [each for each in super()._log_listeners() if each.era is SESSION]

    def may_open_again(self) -> bool:
        """It was open, here or for a former host, and will be once it is used, because its server is connected."""
        connection = self.connection
        is_waiting = connection.negotiated is not None and connection.life.is_starting
        return is_waiting and self._lists.sync is None and isinstance(self._server.main.state, Ready)

    def on_ready(self, negotiated: NegotiatedServer, seconds: float) -> None:
        self._runtime.journal.note(SessionOpened(self.connection.spec.id, negotiated.revision.name))

    def outcome(self, end: ConnectionEnd) -> Outcome:
        self._lists.close()
        main = self._server.main
        outcome = session_outcome(end, self.restarts, is_connected=isinstance(main.state, Ready))
        if outcome.is_withdrawn:
            if isinstance(outcome.state, Absent) and not outcome.state.is_reached and main.life.client is not None:
                main.life.client.era_doubted.set()  # it may not have noticed that the server is away
            self.connection.negotiated = None
            if self.may_publish():
                self._runtime.catalog.withdraw(self.connection.source)
            self.connection.watches.move_to(main.watches)
        return outcome

    def may_publish(self) -> bool:
        # Otherwise the main connection is a session, too.
        return self._server.is_current and self._server.main.is_stateless

    def is_alone(self) -> bool:
        return False


class UpstreamServer:
    """One configured server, and its connections.

    Args:
        sole_caller: returns the only client, once it is there, if there is only one.

    Attributes:
        main: the connection that it always has.
        session: the connection for handshake clients, beside `main` if that is stateless; None if all clients are
            served over `main`.
        instances: those of single clients or calls, or of further folders of clients; None if all clients share
            `main`.
        in_folders: it runs once per folder of a client.
        for_sessions: the connection that serves handshake clients now: `session`, or `main`. Every call looks, so it is
            kept here.
        is_current: no other server has its place yet; otherwise it publishes and remembers nothing more.
        supervision_scope: cancel it to end the supervision; `stopped` is set when it has ended.
    """

    def __init__(
        self, spec: ServerSpec, runtime: Runtime, sole_caller: Callable[[], Caller | None], nursery: trio.Nursery
    ) -> None:
        self.runtime = runtime
        self.sole_caller = sole_caller
        self.is_current = True
        self.supervision_scope = trio.CancelScope()
        self.stopped = trio.Event()
        budget, now = ReadingBudget(), trio.current_time()
        self.in_folders = spec.takes_client_folder
        self._is_taking = False
        """A client that has requested lists is asked for its folder."""
        main = _MainRole(self, spec, budget, Restarts(), Disabled() if spec.disabled else Connecting(now, None))
        self._main_role = main
        self.main = self.for_sessions = main.connection
        self.session: UpstreamConnection | None = None
        if spec.may_use_both_eras:
            # A program is started for each of its connections. At a URL, a session that fails does not delay the other.
            restarts = main.restarts if isinstance(spec, StdioServer) else Restarts()
            self.session = _SessionRole(self, _session_spec(spec), budget, restarts, Stopped(now)).connection
        self._nursery = nursery
        self.instances: Instances | None = None
        if spec.isolation is not Isolation.SHARED or self.in_folders:
            self.instances = Instances(spec, self.serving, runtime, nursery)

    @property
    def spec(self) -> ServerSpec:
        return self.main.spec

    @spec.setter
    def spec(self, spec: ServerSpec) -> None:
        self.main.spec = spec
        if self.session is not None:
            self.session.spec = _session_spec(spec)
        if self.instances is not None:
            self.instances.spec = spec

    @property
    def connections(self) -> tuple[UpstreamConnection, ...]:
        """The main one, and its session if it may have one."""
        return (self.main,) if self.session is None else (self.main, self.session)

    def connection(self, caller: Caller) -> UpstreamConnection:
        """The shared connection that serves this caller: that of its own era, if the server has one."""
        return self.main if caller.era is STATELESS else self.for_sessions

    def serving(self, caller: Caller) -> UpstreamConnection:
        """`connection`, for a request. A session that is absent is tried again if it is due."""
        if caller.era is STATELESS:
            return self.main
        if self.session is not None and self.session.life.is_due and self.main.is_stateless:
            self.session.life.use()
        return self.for_sessions

    def offering(self, caller: Caller) -> UpstreamConnection:
        """The connection whose negotiation this caller is shown, which may be a remembered one. While the session was
        never open, its clients get what the stateless connection offers."""
        connection = self.serving(caller)
        return self.main if connection.negotiated is None else connection

    def choose_for_sessions(self) -> None:
        """Choose the connection for handshake clients: the session, while it is open, or may be opened and `main` does
        not show that the server is away."""
        main, session, chosen = self.main, self.session, self.main
        if session is not None and main.is_stateless and not isinstance(main.state, Disabled | Held):
            may_open = session.life.is_starting and isinstance(main.state, Ready | Stopped)
            if may_open or isinstance(session.state, Ready):
                chosen = session
        self.for_sessions = chosen
        if chosen is session and isinstance(session.state, Ready):
            self.show_session()  # also one that was opened while `main` was a session itself

    def begin(self, caller: Caller) -> UpstreamConnection:
        """`serving`, for lists: a session that was never open is opened, and a server that waits for a client's folder
        takes that of this caller."""
        connection = self.serving(caller)
        if connection is self.session and connection.negotiated is None:
            connection.life.use_first()
        elif self.in_folders and not self._is_taking and may_have_folder(caller) and self._may_take_folder(caller):
            is_unknown = connection.negotiated is None
            if is_unknown:  # the lists are waited for from now on
                connection.life.listed, connection.life.created_at = trio.Event(), trio.current_time()
            if is_unknown or self.spec.start is Start.EAGER:
                self._is_taking = True
                self._nursery.start_soon(self._try_folder, caller)
        return connection

    # For requests

    def shared_client(self, caller: Caller) -> tuple[Client | None, Source]:
        """The client of the shared connection that serves this caller, and the source of that connection. None in place
        of the client if it is not connected, or if instances may serve the caller. The client needs no lease, since it
        counts its calls itself, but another look after each wait: it may be another one, or none, by then."""
        connection = self.serving(caller)
        return None if self.instances is not None else connection.life.client, connection.source

    def lease(self, exchange: Exchange) -> AbstractAsyncContextManager[UpstreamLease]:
        """Lease a connection for an exchange: the shared one, or an instance, by the isolation of the server and the
        folder of the client.

        Raises, here or on entering:
            Unavailable: the server is not connected.
            TooManyResources: `max_instances` is reached.
        """
        connection = self.serving(exchange.caller)
        if self.instances is None:
            return connection.lease()
        if connection.life.needs_login or self.spec.problem:
            connection.ready_client()  # raises: an instance would be refused as well, or must not be started
        if not self.in_folders:
            return self.instances.lease(exchange)
        if not (folder := self.runtime.client_folders.known(exchange.caller)):
            raise no_folder(self.spec.id)
        if self.instances.is_shared and folder == self._main_role.folder:
            return connection.lease()
        return self.instances.lease(exchange, folder)

    def is_starting(self, caller: Caller) -> bool:
        """Whether the connection that serves this caller is being opened, or will be by `wait_started`; also if that
        must find out the caller's folder, or raises because there is none."""
        life = (self.main if caller.era is STATELESS else self.for_sessions).life  # as `connection`, for speed
        if life.is_starting or not self.in_folders:
            return life.is_starting
        return not self.runtime.client_folders.known(caller) or self._may_take_folder(caller)

    async def wait_started(self, caller: Caller) -> None:
        """Wait while the connection that serves this caller is being opened; open it if it is to be opened first.

        Raises:
            Unavailable: the server runs in the folder of its client, and this one has none.
        """
        if self.in_folders:
            await self._take_folder(caller)
        await self.serving(caller).life.wait_started()

    async def wait_settled(self, folder: str) -> None:
        """Wait until the first attempt to connect has ended. A server that runs in folders of clients makes it in this
        one, for which no client need be there."""
        life = self.main.life
        await life.settled.wait()
        if isinstance(life.state, NeedsFolder) and is_folder(folder):
            self._main_role.take_folder(folder)
            await life.wait_started()

    def _may_take_folder(self, caller: Caller) -> bool:
        """Whether the main connection is to be opened in the folder of this caller, which may not be known yet."""
        if not self.is_current:  # replaced while the caller was asked for its folder: it will not be opened again
            return False
        folder = self.runtime.client_folders.known(caller)
        if folder is not None and self.instances is not None and self.instances.has(caller, folder):
            return False
        return self._main_role.may_take(folder or "")

    async def _take_folder(self, caller: Caller) -> None:
        """Find out the folder of a caller, and have the main connection opened there if it is to be.

        Raises:
            Unavailable: it has none.
        """
        folder = await self.runtime.client_folders.settle(self.spec.id, caller)
        if self._may_take_folder(caller):
            self._main_role.take_folder(folder)

    async def _try_folder(self, caller: Caller) -> None:
        """`_take_folder` for lists, beside their request."""
        try:
            await self._take_folder(caller)
        except Unavailable:
            pass  # the client has left its folder meanwhile
        except Exception as problem:  # noqa: BLE001 - an error with one client must not end the host
            self.runtime.journal.note(InternalError(self.spec.id, problem))
        finally:
            self._is_taking = False
            if not self.main.life.is_starting:
                self.main.life.listed.set()  # lists of other clients try it with theirs

    def check_subscribable(self, caller: Caller) -> None:
        """Check that the server has resource subscriptions; for a server that is starting, that it had them.

        Raises:
            Unavailable: the server is not connected.
            MethodNotFound: the server has no subscriptions.
        """
        connection = self.serving(caller)
        negotiated = connection.negotiated if connection.life.is_starting else None
        _check_subscribable(self.spec.id, negotiated or connection.ready_client().negotiated)

    async def watch(self, permit: WatchPermit, notify: NotifyWatcher) -> None:
        """Watch a resource for the caller of the permit, until it unwatches the resource or is gone. With `per-call`,
        the shared connection is used.

        Args:
            notify: called at each change.

        Raises:
            UpstreamError: the server did not agree, or cannot be reached.
            MethodNotFound: the server has no subscriptions.
        """
        caller = permit.exchange.caller
        connection = self.serving(caller)
        is_shared = self.spec.isolation is Isolation.SHARED
        is_lasting = is_shared or (self.spec.isolation is Isolation.PER_CLIENT and caller.instance_key is not None)
        lease = self.lease(permit.exchange) if is_lasting else connection.lease()
        async with lease as leased:
            _check_subscribable(self.spec.id, leased.client.negotiated)
            await leased.watches.watch(permit, notify)

    def unwatch(self, uri: str, caller: Caller) -> None:
        """End the caller's watch of a resource."""
        for each in self._watches(caller):
            each.unwatch(uri, caller)

    async def drop_hidden(self) -> None:
        """End the watches of hidden resources."""
        for each in self._watches():
            await each.drop_hidden()

    def release(self, caller: Caller) -> None:
        """Forget the watches of a caller. Its instance stays: other callers of the same client may use it."""
        for each in self._watches(caller):
            each.forget(caller)

    def _watches(self, caller: Caller | None = None) -> list[ResourceWatches]:
        """The watches of all connections; of those that this caller may have used, if there is one."""
        shared = [each.watches for each in self.connections]
        return shared if self.instances is None else [*shared, *self.instances.watches(caller)]

    def forget(self, caller: Caller) -> None:
        """Forget a caller that is gone, and end its instance."""
        self.release(caller)
        if self.instances is not None:
            self.instances.forget(caller)

    def clients_of(self, caller: Caller) -> list[Client]:
        """The connected clients that serve this caller alone."""
        dedicated = None if self.instances is None else self.instances.client_of(caller)
        clients = [] if dedicated is None else [dedicated]
        if caller is self.sole_caller():
            clients += [each.life.client for each in self.connections if each.life.client is not None]
        return clients

    @property
    def list_problems(self) -> list[str]:
        """Sentences about lists of this server that could not be read, or have something wrong with their pages."""
        return list(dict.fromkeys(problem for each in self.connections for problem in each.lists.problems))

    # Its life

    async def supervise(self) -> None:
        """Keep the server connected until cancelled. Never raises."""
        spec = self.spec
        if spec.problem:
            self.main.life.state = Failed(trio.current_time(), spec.problem, math.inf)
            self.runtime.journal.note(ServerFailed(spec.id, spec.problem, math.inf))
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            for each in self.connections:
                nursery.start_soon(each.lists.remembered.run)
                nursery.start_soon(each.run)

    async def recall(self, connection: UpstreamConnection) -> None:
        """Publish what is remembered of a connection; with `main`, also of the session. Where nothing is remembered of
        the session, its clients see what is remembered of the stateless connection until the session is open."""
        connections = self.connections if connection is self.main else (connection,)
        known = [each for each in connections if await self._recall(each)]
        # While nothing is known of the session, its clients see the lists of `main`, so they need not wait for it.
        listed = connections if connection in known else known
        for each in listed:
            each.life.listed.set()
        for each in connections:
            each.lists.is_recalled = True
            each.life.recalled.set()

    async def _recall(self, connection: UpstreamConnection) -> bool:
        is_published = await connection.lists.recall(connection.spec, connection.recall)
        if is_published and connection is self.session:
            self.show_session()
        return is_published

    def show_session(self) -> None:
        """Show handshake clients what the session lists."""
        assert self.session is not None
        if self.is_current and self.main.is_stateless:
            self.runtime.catalog.show(self.session.source)

    def on_stateless(self, *, was_stateless: bool) -> None:
        """Note that `main` is connected and stateless. An absent session that could not be reached before is opened
        again. If `main` was a session before, the lists under the source of the session are those of `main`, so it is
        not known what the session will list."""
        if (session := self.session) is None:
            return
        life = session.life
        if isinstance(life.state, Absent) and not life.state.is_reached:
            life.state = Connecting(trio.current_time(), life.state.why, life.state.said)
            life.use()
        if not was_stateless and not isinstance(life.state, Ready):
            self.runtime.catalog.hide(session.source)
            session.negotiated = None
            if life.is_starting:
                life.listed = trio.Event()

    def take_over(self, former: UpstreamServer) -> None:
        """Continue a server that was restarted as it is: its lists stay."""
        self._main_role.folder = former._main_role.folder
        for mine, its in zip(self.connections, former.connections, strict=False):
            mine.watches, mine.negotiated = its.watches, its.negotiated
        for each in self.connections:
            lists = (self.runtime.catalog.listed(each.source, kind) for kind in Kind)
            if each.negotiated is not None and any(found is not None for found in lists):
                each.life.listed.set()
                each.lists.is_recalled = True
                each.life.recalled.set()

    def take_watches(self, former: UpstreamServer) -> None:
        """Continue the watches of clients in the place of a server that was another one, unless it runs in other
        folders."""
        if self.in_folders == former.in_folders:
            self._main_role.folder = former._main_role.folder
            self.main.watches = former.main.watches

    async def wait_idle(self) -> None:
        """Wait until no call is in flight."""
        for each in self.connections:
            if each.life.client is not None:
                await each.life.client.wait_idle()
        if self.instances is not None:
            await self.instances.wait_idle()

    def end(self) -> None:
        """End all its connections."""
        if self.instances is not None:
            self.instances.end()
        self.supervision_scope.cancel("the server was changed or removed in the configuration")

    def give_way(self) -> None:
        """Have requests that wait for it resolve again, and so find its successor."""
        for each in self.connections:
            if each.life.is_starting or each.life.needs_login:
                each.life.state = Disabled()


def _session_spec(spec: ServerSpec) -> ServerSpec:
    """The configuration of the session beside the stateless connection of a server."""
    timeout = spec.start_timeout
    if isinstance(spec, HttpServer):
        timeout = min(timeout, SESSION_START_TIMEOUT)
    idle = SESSION_IDLE if spec.idle is None else spec.idle
    return replace(spec, protocol=Protocol.LEGACY, eras=Eras.ONE, idle=idle, start_timeout=timeout)


def _check_subscribable(server: str, negotiated: NegotiatedServer) -> None:
    if not negotiated.has_subscriptions:
        raise MethodNotFound(f"{server} has no resource subscriptions")
