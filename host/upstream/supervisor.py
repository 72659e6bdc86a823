"""Supervision of one server: the loop that connects, waits for the end of the connection, and connects again.

    connecting -> ready -> failed -> connecting ...        disabled        held -> connecting
    ready -> stopped -> connecting                          needs login -> connecting

A server that may be used in both eras has a `Session` beside it, for handshake clients: used if the first connection is
stateless. It begins stopped, and is `absent` while it cannot be had, however it failed: the stateless connection then
serves all clients.

Every end of a connection becomes a state, with its reason and the time of the next attempt; no failure of a server goes
beyond this file. Entries of a server that is away stay in the catalog, so that a restart changes no client's list.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from typing import ClassVar

import trio

from config import Eras, HttpServer, Isolation, Protocol, ServerSpec, Start, StdioServer, Trust
from host.errors import LoginNeeded, Unavailable, first_exception
from host.exchange import Caller
from host.journal import (
    EntryOmitted,
    InternalError,
    OutputRecord,
    ServerFailed,
    ServerHeld,
    ServerReady,
    ServerStopped,
    SessionClosed,
    SessionOpened,
    excerpt,
)
from host.jsonrpc.readable import LONE_SURROGATE
from host.policy.fingerprint import launch_of
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.era import SESSION, STATELESS, Era
from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer
from host.sanitize import without_directories
from host.source import EntryRef, Source
from host.upstream.backoff import ReadingBudget, Restarts
from host.upstream.catalog_sync import CatalogSync
from host.upstream.client import Client
from host.upstream.connect import login_of, secrets_of
from host.upstream.connection import (
    CONNECT_FAILURES,
    OpenLink,
    UpstreamLease,
    end_with_login,
    failure_reason,
    follow_changes,
    open_client,
)
from host.upstream.credentials import Credential
from host.upstream.launch import may_launch, wait_until_launchable
from host.upstream.outcome import ConnectionEnd, Outcome, configured_dialect, server_outcome, session_outcome
from host.upstream.remembered_lists import RememberedLists
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import ServerMessages
from host.upstream.source_lists import SourceLists
from host.upstream.state import (
    Absent,
    Connecting,
    Disabled,
    Failed,
    Held,
    NeedsLogin,
    Ready,
    State,
    Stopped,
    describe_state,
)

MIN_IDLE_CHECK = 1.0
"""Seconds between two looks at whether an idle server still has watched resources."""
SESSION_IDLE = 300.0
"""Seconds without use after which the session beside a stateless connection is closed, if `idle` does not say."""
SESSION_START_TIMEOUT = 10.0
"""Seconds in which a server at a URL must accept a session beside its stateless connection, which already answers."""
ABSENT_FOR = 60.0
"""Seconds after which a session that could not be had is tried again when a client could use it."""
RETRY_WAIT = 2.0
"""Seconds to the next attempt for which a call waits that is to be sent once more."""


class Upstream:
    """One configured server.

    `listed` is set when its lists are known, from the store or from the server itself; `settled` when the first attempt
    to connect has ended. A server whose first attempt failed counts as listed.

    Args:
        sole_caller: returns the only client, once it is there, if there is only one.
        single_client: there can be only one client.

    Attributes:
        is_session: whether this is the session beside another one.
        session: the connection for handshake clients, beside this one if that is stateless; None if all clients are
            served over this one.
        for_sessions: the connection that serves handshake clients now: `session`, or this one. Every call looks, so
            it is kept here.
        is_stateless: whether the connection is, or was at last, stateless.
    """

    is_session: ClassVar[bool] = False
    _stopped_event: ClassVar[type[ServerStopped | SessionClosed]] = ServerStopped

    def __init__(
        self, spec: ServerSpec, runtime: Runtime, sole_caller: Callable[[], Caller | None], *, single_client: bool
    ) -> None:
        self._spec = spec
        self.attempts = 0
        self.supervision_scope = trio.CancelScope()
        """Cancel it to end the supervision; `stopped` is set when it has ended."""
        self.stopped = trio.Event()
        self.listed = trio.Event()
        self.settled = trio.Event()
        self.created_at = trio.current_time()
        self._state: State = Connecting(self.created_at, None)
        self.is_starting = True
        """Whether the server is connecting, or will be once it is used."""
        self.needs_login = False
        """Whether the server waits for a person to log in. Calls look, so it is kept here."""
        self._state_changed = trio.lowlevel.ParkingLot()
        self.watches = ResourceWatches(spec.id, spec.timeout, self._is_visible_resource)
        self.dialect = configured_dialect(spec)
        """Era and transport for the next connection."""
        self.last_dialect = self.dialect
        """Era and transport of the last connection."""
        self._negotiated: NegotiatedServer | None = None
        self.is_stateless = False
        self._runtime = runtime
        self._sole_caller = sole_caller
        self._single_client = single_client
        self._restarts = Restarts()
        self._reading_budget = ReadingBudget()
        self.lists = SourceLists(spec.id, runtime)
        self._remembered_lists = RememberedLists(runtime, self._reading_budget, self._offered, self._is_ready)
        self._login_id = ""
        """The login with which the current connection began; empty without one."""
        self._did_connect = False
        """The current connection was negotiated in this `dialect`."""
        self._has_ended = False
        """The state says already what follows the current connection."""
        self._is_remembered_read = False
        self._is_current = True
        self._used = trio.Event()
        """Set when a stopped server is to be started."""
        self._started = trio.Event()
        """Set while the server is not `is_starting`."""
        self.session = Session(self) if spec.may_use_both_eras else None
        self.for_sessions: Upstream = self

    @property
    def spec(self) -> ServerSpec:
        return self._spec

    @spec.setter
    def spec(self, spec: ServerSpec) -> None:
        self._spec = spec
        if self.session is not None:
            self.session.spec = _session_spec(spec)

    @property
    def connections(self) -> tuple[Upstream, ...]:
        """This one, and its session if it may have one."""
        return (self,) if self.session is None else (self, self.session)

    @property
    def negotiated(self) -> NegotiatedServer | None:
        """Revision and capabilities of the last connection, or those that are remembered."""
        return self._negotiated

    @negotiated.setter
    def negotiated(self, negotiated: NegotiatedServer | None) -> None:
        self._negotiated = negotiated
        self.is_stateless = negotiated is not None and negotiated.revision.stateless
        self.lists.source = Source(self.spec.id, Era.SESSION if negotiated is None else negotiated.era)
        self._choose_for_sessions()

    @property
    def source(self) -> Source:
        """Where the lists of the last connection come from, or those that are remembered."""
        return self.lists.source

    @property
    def has_login(self) -> bool:
        """Whether the connection is, or was at last, for a login."""
        return self._login_id != ""

    def _choose_for_sessions(self) -> None:
        """Choose the connection for handshake clients: the session beside this one, while it is open, or may be opened
        and this one does not show that the server is away."""
        session, chosen = self.session, self
        if session is not None and self.is_stateless and not isinstance(self._state, Disabled | Held):
            may_open = session.is_starting and isinstance(self._state, Ready | Stopped)
            if may_open or isinstance(session._state, Ready):
                chosen = session
        self.for_sessions = chosen

    def _is_visible_resource(self, uri: str) -> bool:
        return self._runtime.gate.definitions.is_visible(EntryRef(self.source, Kind.RESOURCE, uri))

    def _may_publish(self) -> bool:
        """Whether this is still the connection of its era."""
        return self._is_current

    def _is_alone(self) -> bool:
        """Whether the server can have no connection of the other era."""
        return not (self.is_stateless and self.session is not None)

    def serving(self, era: Era) -> Upstream:
        """The connection for clients of an era: that of their own era, if the server has one."""
        if era is STATELESS:
            return self
        if self.session is not None and self.session.is_due and self.is_stateless:
            self.session._used.set()
        return self.for_sessions

    def begin(self) -> None:
        """Start a session that was never open, because a client wants its lists."""

    def retire(self) -> None:
        """Publish and remember nothing more: another server has its place, or none."""
        for each in self.connections:
            each._is_current = False

    def take_over(self, former: Upstream) -> None:
        """Continue a server that was restarted as it is: its lists stay."""
        for mine, its in zip(self.connections, former.connections, strict=False):
            mine.watches, mine.negotiated = its.watches, its.negotiated
        for each in self.connections:
            lists = (self._runtime.catalog.listed(each.source, kind) for kind in Kind)
            if each.negotiated is not None and any(found is not None for found in lists):
                each.listed.set()
                each._is_remembered_read = True

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.is_starting = isinstance(state, Connecting | Stopped)
        self.needs_login = isinstance(state, NeedsLogin)
        self._choose_for_sessions()
        if not self.is_starting:
            self.listed.set()
            self._started.set()
        elif self._started.is_set():
            self._started = trio.Event()
        if not isinstance(state, Connecting):
            self.settled.set()
            self._remembered_lists.save_soon()
        self._state_changed.unpark_all()

    async def wait_started(self) -> None:
        """Wait while the server is connecting; start it if it is stopped. Afterwards it is ready, or will not be
        soon."""
        while self.is_starting:
            if isinstance(self._state, Stopped):
                self._used.set()
            await self._state_changed.park()

    async def wait_logged_in(self) -> None:
        """Wait until the server does not wait for a login."""
        while self.needs_login:
            await self._state_changed.park()

    async def wait_retried(self) -> None:
        """Wait while the server has failed and is tried again within RETRY_WAIT."""
        while isinstance(state := self._state, Failed) and state.next_attempt <= trio.current_time() + RETRY_WAIT:
            await self._state_changed.park()

    def ready_client(self) -> Client:
        """The connected client.

        Raises:
            Unavailable: the server is not connected; the text says why, and when the next attempt is. LoginNeeded if a
                person has to log in.
        """
        state = self._state
        if isinstance(state, Ready):
            return state.client
        # The reason may contain text of the server, which only the owner of an untrusted server should see.
        untrusted = self.spec.trust is Trust.UNTRUSTED
        why = "it is not connected" if untrusted else without_directories(describe_state(state))
        unavailable = LoginNeeded if self.needs_login else Unavailable
        raise unavailable(self.spec.id, f"{self.spec.id} is unavailable: {why}")

    async def wait_idle(self) -> None:
        """Wait until no call is in flight."""
        for each in self.connections:
            if isinstance(each.state, Ready):
                await each.state.client.wait_idle()

    def lease(self) -> UpstreamLease:
        """A lease of the shared connection; raises as `ready_client` does."""
        return UpstreamLease(self.ready_client(), self.watches)

    @property
    def left_out(self) -> list[str]:
        """Descriptions of the instructions and definitions that clients could not parse."""
        is_left_out = self.negotiated is not None and self.negotiated.unreadable
        return ([f"its instructions ({LONE_SURROGATE})"] if is_left_out else []) + self.lists.left_out

    @property
    def list_problems(self) -> list[str]:
        """Sentences about lists of this server that could not be read, or have something wrong with their pages."""
        return list(dict.fromkeys(problem for each in self.connections for problem in each.lists.problems))

    @property
    def has_old_lists(self) -> bool:
        """Whether a list is old whose changes the server does not announce, or those of a session that is not open may
        be. Never of a server that is not connected."""
        return self.lists.are_old

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        """Have old lists read; see `CatalogSync.read_if_old`. A session is opened for that."""
        return self.lists.read_if_old(missed)

    async def supervise(self, open_link: OpenLink) -> None:
        """Keep the server connected until cancelled. Never raises."""
        if self.spec.problem:
            self.state = Failed(trio.current_time(), self.spec.problem, math.inf)
            self._runtime.journal.note(ServerFailed(self.spec.id, self.spec.problem, math.inf))
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._remembered_lists.run)
            if self.session is not None:
                nursery.start_soon(self.session._remembered_lists.run)
                nursery.start_soon(self.session._keep_connected, open_link)
            await self._keep_connected(open_link)

    async def _keep_connected(self, open_link: OpenLink) -> None:
        while True:
            await self._run_connection(open_link)
            await self._wait_for_next()

    async def _run_connection(self, open_link: OpenLink) -> None:
        """Run one connection to its end. The state then says what follows."""
        before, self._has_ended = self._runtime.journal.last_output, False
        try:
            await self._wait_until_launchable()
            if not self._is_remembered_read:
                await self._recall()
                if self.spec.start is Start.LAZY and self.listed.is_set():
                    await self._stop_until_used()
            self.attempts += 1
            credential, former = self._credential, self._login_id
            self._login_id = "" if credential is None else credential.login_id
            if self.attempts == 1 or self._login_id == former:  # otherwise a person has logged in or out
                self._restarts.on_start(trio.current_time())
            with trio.CancelScope() as connected:
                await self._connect(open_link, connected)
            self._did_connect = False  # only an idle server gets here: its connection was closed
        except* CONNECT_FAILURES as group:
            self._end(first_exception(group), failure_reason(self.spec, group, self._output_since(before)))
        except* Exception as group:  # noqa: BLE001 - errors in Colonnade must not end other servers either
            self._runtime.journal.note(InternalError(self.spec.id, group))
            self._end(group, "of an internal error")

    def _end(self, problem: BaseException, why: str) -> None:
        """Set the state that follows the end of the connection. Later problems are consequences of the first one."""
        if self._has_ended:
            return
        self._has_ended = True
        self.lists.sync = None
        self.lists.expire_hints()
        outcome = self._outcome(
            ConnectionEnd(
                spec=self.spec,
                problem=problem,
                why=why,
                now=trio.current_time(),
                jitter=random.random(),
                state=self._state,
                restarts=self._restarts,
                dialect=self.dialect,
                was_negotiated=self._did_connect,
                is_watched=len(self.watches) > 0,
                credential=self._credential,
                login_id=self._login_id,
            )
        )
        if outcome.event is not None:
            self._runtime.journal.note(outcome.event)
        if outcome.dialect is not None:
            self.dialect = outcome.dialect
        if outcome.is_withdrawn:
            self._withdraw(outcome.state)
        if isinstance(outcome.state, Stopped):
            self._used = trio.Event()
        self.state = outcome.state
        self._did_connect = False

    def _outcome(self, end: ConnectionEnd) -> Outcome:
        return server_outcome(end)

    def _withdraw(self, state: State) -> None:
        """Have the clients of this connection served by another one, because it cannot be had."""

    async def _wait_for_next(self) -> None:
        """Wait until the next connection is to be made."""
        state = self._state
        if isinstance(state, Stopped):
            await self._used.wait()
        elif isinstance(state, Failed | NeedsLogin):
            # A person who logs in at a failed server may have mended it.
            with trio.move_on_at(state.next_attempt if isinstance(state, Failed) else math.inf):
                await self._wait_login_changed()
        if not isinstance(state, Connecting):
            self.state = Connecting(trio.current_time(), state.why if isinstance(state, Failed) else None)

    async def _wait_login_changed(self) -> None:
        """Wait for another login than that of the last connection: for ever if the server has none."""
        if (credential := self._credential) is None:
            await trio.sleep_forever()
        else:
            await credential.wait_changed(self._login_id)

    @property
    def _credential(self) -> Credential | None:
        return login_of(self.spec, self._runtime.credentials)

    def _output_since(self, number: int) -> list[OutputRecord]:
        """The lines that the server wrote after the line of this number. None if it has other instances, whose lines
        may be about other clients."""
        return self._runtime.journal.output(self.spec.id, number) if self.spec.isolation is Isolation.SHARED else []

    async def _stop_until_used(self) -> None:
        """Wait until the server is used."""
        self.state = self._stopped()
        await self._wait_for_next()

    def _stopped(self) -> Stopped:
        self._used = trio.Event()
        self.lists.sync = None
        return Stopped(trio.current_time())

    async def _close_when_idle(self, client: Client, connected: trio.CancelScope) -> None:
        """Close the connection when it was not used for as long as `idle` says."""
        if self.spec.idle is None:
            return
        while (left := self.spec.idle - client.idle_seconds) > 0 or len(self.watches):  # noqa: ASYNC110 - time passes
            await trio.sleep(max(left, MIN_IDLE_CHECK))
        self.state = self._stopped()  # at once: what is used from now on waits for the next connection
        self._runtime.journal.note(self._stopped_event(self.spec.id, self.spec.idle))
        connected.cancel("it was not used")

    async def _wait_until_launchable(self) -> None:
        definitions = self._runtime.gate.definitions
        if await may_launch(self.spec, definitions):
            return
        self.state = Held(trio.current_time())
        self._runtime.journal.note(ServerHeld(self.spec.id, launch_of(self.spec).program or ""))
        await wait_until_launchable(self.spec, definitions)
        self.state = Connecting(trio.current_time(), None)

    async def _connect(self, open_link: OpenLink, connected: trio.CancelScope) -> None:
        """Run one connection from its beginning to its end. Always raises, unless `connected` is cancelled because the
        server is idle."""
        started_at = trio.current_time()
        catalog_sync: CatalogSync | None = None

        def on_lists_changed(kinds: list[Kind]) -> None:
            if catalog_sync is not None:
                catalog_sync.mark_changed(kinds)
                if self.session is not None and self.session.may_open_again:
                    # A session that is not open hears nothing, but its clients are to be notified.
                    self.session.read_if_old()

        server_messages = ServerMessages(
            self.spec.id,
            self.spec.title or self.spec.id,
            self._runtime.gate,
            self._runtime.journal,
            owner=self._sole_caller,
            on_resource_updated=self.watches.on_updated,
            on_lists_changed=on_lists_changed,
            log_listeners=self._log_listeners,
            secrets=secrets_of(self.spec, self._runtime.credentials, self._runtime.journal),
        )
        opening = open_client(
            self.spec,
            open_link(self.spec, http_sse=self.dialect.http_sse),
            server_messages,
            self._runtime.gate,
            self.dialect,
            self.lists,
            SHARED_ABILITIES,
            roots_change=self._single_client,
        )
        with trio.fail_after(self.spec.start_timeout) as startup:
            async with opening as client:
                stateless = client.negotiated.revision.stateless
                if self.session is not None and stateless:
                    self.session.on_main_connected(was_stateless=self.is_stateless)
                self.negotiated = client.negotiated
                # A slow stateless server may have got `initialize` and may still end because of it. The next connection
                # does not send it.
                self.dialect = replace(self.dialect, may_be_stateless=stateless, initialize_on_silence=not stateless)
                self.last_dialect, self._did_connect = self.dialect, True
                if client.negotiated.unreadable:
                    text = f"its instructions are left out because clients could not parse them: {LONE_SURROGATE}"
                    self._runtime.journal.note(EntryOmitted(self.spec.id, text, "instructions"))
                instructions = client.negotiated.instructions
                observing = self._runtime.gate.definitions.observe_instructions(self.source, instructions)
                await self._runtime.catalog.slices.run(observing)
                catalog_sync = CatalogSync(
                    client,
                    self._runtime,
                    self._reading_budget,
                    self._remembered_lists.mark,
                    self._may_publish,
                    self._is_alone,
                )
                await catalog_sync.read_all()
                if client.peer.ended.is_set():
                    raise client.peer.lost
                catalog_sync.check_any_listed()
                startup.deadline = float("inf")
                self.lists.sync = catalog_sync
                self.state = Ready(trio.current_time(), client)
                self._on_ready(client.negotiated, trio.current_time() - started_at)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(catalog_sync.run)
                    nursery.start_soon(self._close_when_idle, client, connected)
                    nursery.start_soon(end_with_login, client, self._credential, self._login_id)
                    follow_changes(nursery, client, server_messages, self._runtime.log_levels, self.watches, None)
                    await client.peer.ended.wait()
                    # Handled at once: ending the process may take seconds, and calls must not wait for it.
                    self._end(client.peer.lost, server_messages.redact(str(client.peer.lost)))
                    raise client.peer.lost

    def _on_ready(self, negotiated: NegotiatedServer, seconds: float) -> None:
        lists = ((kind, self._runtime.catalog.listed(self.source, kind)) for kind in Kind)
        counts = describe_counts((kind, len(entries or ())) for kind, entries in lists)
        self._runtime.journal.note(ServerReady(self.spec.id, excerpt(negotiated.server), counts, seconds))

    async def _recall(self) -> None:
        """Publish what is remembered of the server. Where nothing is remembered of the session, its clients see what is
        remembered of the stateless connection until the session is open."""
        known = [each for each in self.connections if await each._publish_remembered()]
        for each in self.connections if self in known else known:
            each.listed.set()
        for each in self.connections:
            each._is_remembered_read = True

    async def _publish_remembered(self) -> bool:
        """Publish what is remembered of this connection, until it lists by itself. Returns whether there is any."""
        found = await self._remembered_lists.load(self.spec)
        if found is None:
            return False
        source = Source(self.spec.id, found.negotiated.era)
        observing = self._runtime.gate.definitions.observe_instructions(
            source, found.negotiated.instructions, remembered=True
        )
        await self._runtime.catalog.slices.run(observing)
        self.negotiated = found.negotiated
        await self._remembered_lists.publish(self.spec, found, self._may_publish, self._is_alone)
        return True

    def _log_listeners(self) -> Collection[Caller]:
        return self._runtime.log_levels.callers(self.spec.id)

    def _is_ready(self) -> bool:
        return isinstance(self._state, Ready)

    def _offered(self) -> tuple[ServerSpec, NegotiatedServer] | None:
        """What is to be remembered of this connection."""
        return (self.spec, self.negotiated) if self.negotiated is not None and self._is_current else None


class Session(Upstream):
    """The session beside the stateless connection of a server. `main` has that connection."""

    is_session = True
    _stopped_event = SessionClosed

    def __init__(self, main: Upstream) -> None:
        super().__init__(_session_spec(main.spec), main._runtime, main._sole_caller, single_client=main._single_client)
        self._main = main
        self.is_due = False
        """It is absent, and to be tried again when a client could use it."""
        self._state = Stopped(self.created_at)
        self._reading_budget = main._reading_budget
        self._remembered_lists = RememberedLists(main._runtime, self._reading_budget, self._offered, self._is_ready)
        # A program is started for each of its connections. At a URL, a session that fails does not delay the other one.
        if isinstance(main.spec, StdioServer):
            self._restarts = main._restarts

    def begin(self) -> None:
        if self._negotiated is None and isinstance(self._state, Stopped) and not self._used.is_set():
            self.created_at = trio.current_time()
            self._used.set()

    @property
    def may_open_again(self) -> bool:
        """Whether it was open, here or for a former host, and will be once it is used, because its server is
        connected."""
        return self._negotiated is not None and self.is_starting and isinstance(self._main.state, Ready)

    @property
    def has_old_lists(self) -> bool:
        return super().has_old_lists if self.lists.sync is not None else self.may_open_again

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        if self.lists.sync is not None or not self.may_open_again:
            return super().read_if_old(missed)
        if isinstance(self._state, Stopped):
            self._used.set()
        return self._started

    def on_main_connected(self, *, was_stateless: bool) -> None:
        """Open an absent session again if it could not be reached before. If the server had no stateless connection
        before, its lists were those of its only connection, so it is not known what the session will list."""
        if isinstance(self._state, Absent) and not self._state.is_reached:
            self.state = Connecting(trio.current_time(), self._state.why)
            self._used.set()
        if not was_stateless and not isinstance(self._state, Ready):
            self._runtime.catalog.hide(Source(self.spec.id, Era.SESSION))
            self.negotiated = None
            if self.is_starting:
                self.listed = trio.Event()

    def _choose_for_sessions(self) -> None:
        self._main._choose_for_sessions()

    def _may_publish(self) -> bool:
        return super()._may_publish() and self._main.is_stateless  # otherwise the first connection is a session, too

    def _is_alone(self) -> bool:
        return False

    async def _keep_connected(self, open_link: OpenLink) -> None:
        await self._wait_for_next()
        await super()._keep_connected(open_link)

    def _outcome(self, end: ConnectionEnd) -> Outcome:
        return session_outcome(end, is_connected=isinstance(self._main.state, Ready))

    def _withdraw(self, state: State) -> None:
        main = self._main
        if isinstance(state, Absent) and not state.is_reached and isinstance(main.state, Ready):
            main.state.client.era_doubted.set()  # it may not have noticed that the server is away
        self._used = trio.Event()
        self.negotiated = None
        if self._may_publish():
            self._runtime.catalog.withdraw(Source(self.spec.id, Era.SESSION))
        self.watches.move_to(main.watches)

    async def _wait_for_next(self) -> None:
        """Wait until it is to be opened. An absent one is tried again when a client uses the server, after
        ABSENT_FOR."""
        if not isinstance(self._state, Absent):
            await super()._wait_for_next()
            return
        with trio.move_on_after(ABSENT_FOR):
            await self._used.wait()
        self.is_due = True
        await self._used.wait()
        self.is_due = False

    def _on_ready(self, negotiated: NegotiatedServer, seconds: float) -> None:
        self._show()
        self._runtime.journal.note(SessionOpened(self.spec.id, negotiated.revision.name))

    async def _publish_remembered(self) -> bool:
        is_published = await super()._publish_remembered()
        if is_published:
            self._show()
        return is_published

    def _show(self) -> None:
        if self._may_publish():
            self._runtime.catalog.show(self.source)

    def _log_listeners(self) -> Collection[Caller]:
        return [each for each in super()._log_listeners() if each.era is SESSION]


def _session_spec(spec: ServerSpec) -> ServerSpec:
    """The configuration of the session beside the stateless connection of a server."""
    timeout = spec.start_timeout
    if isinstance(spec, HttpServer):
        timeout = min(timeout, SESSION_START_TIMEOUT)
    idle = SESSION_IDLE if spec.idle is None else spec.idle
    return replace(spec, protocol=Protocol.LEGACY, eras=Eras.ONE, idle=idle, start_timeout=timeout)


def describe_counts(counts: Iterable[tuple[Kind, int]]) -> str:
    """The numbers of entries of each kind, in words."""
    words = (f"{count} {kind.value}" + ("" if count == 1 else "s") for kind, count in counts if count)
    return ", ".join(words) or "no entries"
