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
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import ClassVar, TypeGuard

import trio

from config import Eras, HttpServer, Isolation, Protocol, ServerSpec, Start, StdioServer, Trust
from host.catalog import Entry, FreshnessHint
from host.errors import LoginNeeded, Unavailable, first_exception
from host.exchange import Caller
from host.journal import (
    EntryOmitted,
    InternalError,
    OutputRecord,
    ServerFailed,
    ServerHeld,
    ServerNeedsLogin,
    ServerReady,
    ServerStopped,
    SessionAbsent,
    SessionClosed,
    SessionFailed,
    SessionOpened,
    excerpt,
)
from host.jsonrpc.readable import LONE_SURROGATE
from host.memory import Use, server_owner
from host.peer.outstanding import BrokenAnswer, PeerError
from host.policy.fingerprint import launch_of
from host.protocol.abilities import SHARED_ABILITIES
from host.protocol.era import Era
from host.protocol.handshake import UnsupportedRevision
from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer
from host.protocol.stateless import STALE
from host.sanitize import without_directories
from host.slices import complete
from host.source import EntryRef, Source
from host.storage.store import StateError
from host.upstream.backoff import HEALTHY_AFTER, RESTART_FACTOR, ReadingBudget, Restarts
from host.upstream.catalog_sync import CatalogSync, publish_list
from host.upstream.client import Client, ServerLists
from host.upstream.connect import login_of, secrets_of
from host.upstream.connection import (
    CONNECT_FAILURES,
    OpenLink,
    UpstreamLease,
    failure_reason,
    follow_changes,
    open_client,
)
from host.upstream.credentials import Credential
from host.upstream.negotiate import Dialect, HandshakeOnly, StatelessOnly
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import ServerMessages
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
from host.wire.http_errors import AuthNeeded, HttpRefused, Unreachable
from host.wire.link import LinkLost

MIN_IDLE_CHECK = 1.0
"""Seconds between two looks at whether an idle server still has watched resources."""
SAVE_INTERVAL = 5.0
"""Seconds between two times that the lists of a server are stored."""
LAST_SAVE_TIMEOUT = 1.0
"""Seconds that storing lists may take when the server is stopped."""
LASTING_DELAY = 15.0
MAX_LASTING_DELAY = 300.0
"""Seconds to the next attempt after the first failure that only a person can mend, and after many in a row."""
SESSION_IDLE = 300.0
"""Seconds without use after which the session beside a stateless connection is closed, if `idle` does not say."""
SESSION_START_TIMEOUT = 10.0
"""Seconds in which a server at a URL must accept a session beside its stateless connection, which already answers."""
ABSENT_FOR = 60.0
"""Seconds after which a session that could not be had is tried again when a client could use it."""
RETRY_WAIT = 2.0
"""Seconds to the next attempt for which a call waits that is to be sent once more."""
LAUNCH_CHECK_INTERVAL = 5.0
"""Seconds between two checks of the program of a held server."""


class LoginChanged(LinkLost):
    """The connection was for another login than the present one."""

    lost_login = True


async def end_with_login(client: Client, credential: Credential | None, login_id: str) -> None:
    """End a connection when its login is another one, or over: it may be of another account."""
    if credential is not None:
        await credential.wait_changed(login_id)
        client.peer.connection_lost(LoginChanged("its login has changed"))


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
        self.source = Source(spec.id, Era.SESSION)
        """Of the last connection."""
        self._runtime = runtime
        self._sole_caller = sole_caller
        self._single_client = single_client
        self._restarts = Restarts()
        self._reading_budget = ReadingBudget()
        self._catalog_sync: CatalogSync | None = None
        self._login_id = ""
        """The login with which the current connection began; empty without one."""
        self._did_connect = False
        """The current connection was negotiated in this `dialect`."""
        self._has_ended = False
        """The state says already what follows the current connection."""
        self._is_remembered_read = False
        self._is_current = True
        self._unsaved: set[Kind] = set()
        """Lists that are to be remembered."""
        self._has_unsaved = trio.Event()
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
        self.source = Source(self.spec.id, Era.SESSION if negotiated is None else negotiated.era)
        self._choose_for_sessions()

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
        return self._runtime.gate.definitions.is_visible(self.spec.id, Kind.RESOURCE, uri, self.is_stateless)

    def _may_publish(self) -> bool:
        """Whether this is still the connection of its era."""
        return self._is_current

    def _is_alone(self) -> bool:
        """Whether the server can have no connection of the other era."""
        return not (self.is_stateless and self.session is not None)

    def serving(self, *, stateless: bool) -> Upstream:
        """The connection for clients of an era: that of their own era, if the server has one."""
        if stateless:
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
            self._has_unsaved.set()
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
    def server_lists(self) -> ServerLists:
        """Access to the lists of this server, for all its connections."""
        mark_tools_changed = partial(self.refresh, Kind.TOOL)
        hold = partial(self._runtime.catalog.memory.hold, server_owner(self.spec.id), Use.MESSAGES, 0)
        return ServerLists(
            self._tool,
            mark_tools_changed,
            self._read_tools,
            self._are_read,
            self._wait_until_read,
            self._on_hearing_changed,
            hold,
        )

    def _tool(self, name: str) -> Entry | None:
        return self._runtime.catalog.entry(EntryRef(self.source, Kind.TOOL, name))

    async def _read_tools(self) -> None:
        if self._catalog_sync is not None:
            await self._catalog_sync.read(Kind.TOOL)

    def _on_hearing_changed(self) -> None:
        if self._catalog_sync is not None:
            self._catalog_sync.update_old_at()

    def _are_read(self, kinds: Iterable[Kind]) -> bool:
        return self._catalog_sync is None or self._catalog_sync.are_read(kinds)

    async def _wait_until_read(self, kinds: Iterable[Kind]) -> None:
        if self._catalog_sync is not None:
            await self._catalog_sync.wait_until_read(kinds)

    @property
    def left_out(self) -> list[str]:
        """Descriptions of the instructions and definitions that clients could not parse."""
        negotiated, catalog_sync = self.negotiated, self._catalog_sync
        instructions = (
            [f"its instructions ({LONE_SURROGATE})"] if negotiated is not None and negotiated.unreadable else []
        )
        return instructions + ([] if catalog_sync is None else catalog_sync.left_out)

    @property
    def list_problems(self) -> list[str]:
        """Sentences about lists of this server that could not be read, or have something wrong with their pages."""
        syncs = (each._catalog_sync for each in self.connections)
        return list(dict.fromkeys(problem for sync in syncs if sync is not None for problem in sync.problems))

    @property
    def has_old_lists(self) -> bool:
        """Whether a list is old whose changes the server does not announce, or those of a session that is not open may
        be. Never of a server that is not connected."""
        return self._catalog_sync is not None and self._catalog_sync.has_old_lists

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        """Have old lists read; see `CatalogSync.read_if_old`. A session is opened for that."""
        return None if self._catalog_sync is None else self._catalog_sync.read_if_old(missed)

    def has_changes(self, kinds: Iterable[Kind]) -> bool:
        """Whether a change of one of these lists was announced that was not read yet."""
        return self._catalog_sync is not None and not self._catalog_sync.are_read(kinds)

    async def wait_for_changes(self, kinds: Iterable[Kind], at_most: float) -> None:
        """See `CatalogSync.wait_for_changes`."""
        if self._catalog_sync is not None:
            await self._catalog_sync.wait_for_changes(kinds, at_most)

    def refresh(self, kind: Kind) -> None:
        """Have a list read again that may be outdated."""
        if self._catalog_sync is not None:
            self._catalog_sync.mark_changed((kind,))

    async def supervise(self, open_link: OpenLink) -> None:
        """Keep the server connected until cancelled. Never raises."""
        if self.spec.problem:
            self.state = Failed(trio.current_time(), self.spec.problem, math.inf)
            self._runtime.journal.note(ServerFailed(self.spec.id, self.spec.problem, math.inf))
            await trio.sleep_forever()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._keep_remembered)
            if self.session is not None:
                nursery.start_soon(self.session._keep_remembered)
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
        self._catalog_sync = None
        for kind in Kind:
            self._runtime.catalog.expire_hint(self.source, kind)
        self.state = self._state_after(problem, why)
        self._did_connect = False

    def _state_after(self, problem: BaseException, why: str) -> State:
        now, state = trio.current_time(), self._state
        if _lacks_login(problem):
            return self._state_without_login(problem)
        if isinstance(problem, LoginChanged):
            return Connecting(now, None)
        may_work_at_once = self._switch_dialect(problem)
        if may_work_at_once and self._restarts.may_start(now):
            return Connecting(now, why)
        ready_for = now - state.since if isinstance(state, Ready) else 0.0
        delay = self._restarts.on_failure(ready_for, random.random(), now)
        # After HTTP+SSE, Streamable HTTP is tried again: the server may support it by now.
        if not may_work_at_once and (not self._did_connect or self.dialect.http_sse):
            self.dialect = configured_dialect(self.spec)
        if isinstance(problem, LinkLost) and problem.ended_session and ready_for >= HEALTHY_AFTER:
            delay = 0.0  # a new one is opened at once, unless this happens often
        if _is_lasting(problem) and not isinstance(state, Ready):
            delay = max(delay, min(LASTING_DELAY * RESTART_FACTOR ** (self._restarts.failures - 1), MAX_LASTING_DELAY))
            if not (isinstance(problem, AuthNeeded) and problem.needs_login):  # a login is noticed by itself
                why = f"{why}; then colonnade restart {self.spec.id}"
        self._runtime.journal.note(ServerFailed(self.spec.id, why, delay))
        return Failed(now, why, now + delay)

    def _state_without_login(self, needed: AuthNeeded) -> State:
        credential, now = self._credential, trio.current_time()
        assert credential is not None  # otherwise its connection would not say that it needs one
        if credential.login_id != self._login_id:
            return Connecting(now, None)  # a person has logged in meanwhile
        why = f"{credential.problem}: {credential.remedy}" if credential.problem else str(needed)
        self._runtime.journal.note(ServerNeedsLogin(self.spec.id, why))
        return NeedsLogin(now, why)

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
        self._catalog_sync = None
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
        if await self._may_launch():
            return
        self.state = Held(trio.current_time())
        self._runtime.journal.note(ServerHeld(self.spec.id, launch_of(self.spec).program or ""))
        while not await self._may_launch():
            with trio.move_on_after(LAUNCH_CHECK_INTERVAL):  # the approved program may be restored meanwhile
                await self._runtime.gate.definitions.wait_until_launchable(self.spec.id)
        self.state = Connecting(trio.current_time(), None)

    async def _may_launch(self) -> bool:
        return await complete(self._runtime.gate.definitions.observe_launch(self.spec.id, launch_of(self.spec)))

    def _switch_dialect(self, problem: BaseException) -> bool:
        """Set another dialect if the failure shows which one the server needs. Returns whether it was changed."""
        if not isinstance(self.state, Connecting):
            return False
        if isinstance(problem, HandshakeOnly):
            self.dialect = replace(self.dialect, may_be_stateless=False)
            return True
        if isinstance(problem, StatelessOnly):
            self.dialect = replace(self.dialect, may_be_handshake=False)
            return True
        # HTTP+SSE (2025-11-25, "Transports / Backwards Compatibility").
        if self.dialect.http_sse or not (isinstance(problem, LinkLost) and problem.may_be_http_sse):
            return False
        self.dialect = Dialect(may_be_stateless=False, http_sse=True)
        return True

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
            self.server_lists,
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
                observing = self._runtime.gate.definitions.observe_instructions(
                    self.spec.id, client.negotiated.instructions, stateless=stateless
                )
                await self._runtime.catalog.slices.run(observing)
                catalog_sync = CatalogSync(
                    client, self._runtime, self._reading_budget, self._mark_unsaved, self._may_publish, self._is_alone
                )
                await catalog_sync.read_all()
                if client.peer.ended.is_set():
                    raise client.peer.lost
                catalog_sync.check_any_listed()
                startup.deadline = float("inf")
                self._catalog_sync = catalog_sync
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
        """Publish what is remembered of this connection, until it lists by itself. Returns whether there is any. An
        earlier version may have stored texts in which the server repeats a secret."""
        remembered, slices = self._runtime.remembered, self._runtime.catalog.slices
        withheld = secrets_of(self.spec, self._runtime.credentials, self._runtime.journal).withheld
        if withheld is not None:
            with suppress(StateError):
                await slices.run(self._runtime.gate.definitions.pins.withhold(self.spec.id, withheld))
        if remembered is None:
            return False
        try:
            found = await slices.run(remembered.load(self.spec))
        except StateError:
            return False
        if found is None:
            return False
        found = await slices.run(found.without(withheld)) if withheld is not None else found
        stateless = found.negotiated.revision.stateless
        observing = self._runtime.gate.definitions.observe_instructions(
            self.spec.id, found.negotiated.instructions, stateless=stateless, remembered=True
        )
        await slices.run(observing)
        self.negotiated = found.negotiated
        for kind, definitions in found.lists.items():
            hint = FreshnessHint(STALE, trio.current_time())
            await publish_list(
                self._runtime,
                self.source,
                kind,
                definitions,
                hint,
                lambda: None,
                self._may_publish,
                self._is_alone,
                remembered=True,
            )
        return True

    def _log_listeners(self) -> Collection[Caller]:
        return self._runtime.log_levels.callers(self.spec.id)

    def _mark_unsaved(self, kind: Kind) -> None:
        self._unsaved.add(kind)
        if isinstance(self.state, Ready):  # otherwise other lists follow, or the connection ends
            self._has_unsaved.set()

    def _charge_reading(self, seconds: float) -> None:
        self._reading_budget.charge(trio.current_time(), seconds)

    async def _keep_remembered(self) -> None:
        """Store the lists that were read, also of a connection that ended at once, until cancelled."""
        try:
            while True:
                await self._has_unsaved.wait()
                if await self._save_remembered():
                    await trio.sleep(SAVE_INTERVAL)
        finally:
            with trio.move_on_after(LAST_SAVE_TIMEOUT, shield=True):
                await self._save_remembered()

    async def _save_remembered(self) -> bool:
        """Store the lists that are not stored yet; False if there are none."""
        remembered, negotiated = self._runtime.remembered, self.negotiated
        kinds, self._unsaved, self._has_unsaved = self._unsaved, set(), trio.Event()
        if remembered is None or negotiated is None or not kinds or not self._is_current:
            return False
        try:
            await self._runtime.catalog.slices.run(remembered.save(self.spec, negotiated, kinds), self._charge_reading)
        except StateError:
            for kind in kinds:
                self._mark_unsaved(kind)
        except Exception as problem:  # noqa: BLE001 - errors in Colonnade must not end other servers
            self._runtime.journal.note(InternalError(self.spec.id, problem))
        return True


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
        return super().has_old_lists if self._catalog_sync is not None else self.may_open_again

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        if self._catalog_sync is not None or not self.may_open_again:
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

    def _switch_dialect(self, problem: BaseException) -> bool:
        return False

    def _state_after(self, problem: BaseException, why: str) -> State:
        """The state of a session that failed. One that was used is opened again at once, unless the one before failed
        early, too. One that lacks a login is opened when it is needed after the login, for which the first connection
        waits."""
        now, state, main = trio.current_time(), self._state, self._main
        if isinstance(problem, LoginChanged):
            return Connecting(now, None)
        journal, restarts, is_refused = self._runtime.journal, self._restarts, _is_refusal(problem)
        if isinstance(problem, trio.TooSlowError) and isinstance(self.spec, HttpServer):
            # A longer start_timeout would not help, because of SESSION_START_TIMEOUT.
            why = f"it was not open within {self.spec.start_timeout:g} s; with eras: one, none is opened"
        if isinstance(state, Ready) and not is_refused:
            ready_for = now - state.since
            restarts.on_failure(ready_for, random.random(), now)
            if restarts.failures == 1 and restarts.within_intensity(now):
                journal.note(SessionFailed(self.spec.id, why, reopens=True))
                was_used = state.client.idle_seconds < ready_for or len(self.watches)
                return Connecting(now, why) if was_used else self._stopped()
        lacks_login = _lacks_login(problem) and not isinstance(main.state, Ready)
        if not isinstance(state, Absent) and not lacks_login:
            journal.note(SessionAbsent(self.spec.id, why) if is_refused else SessionFailed(self.spec.id, why))
        is_reached = not (
            isinstance(problem, Unreachable) or (isinstance(problem, HttpRefused) and problem.status >= 500)
        )
        if not is_reached and isinstance(main.state, Ready):
            main.state.client.era_doubted.set()  # it may not have noticed that the server is away
        self._used = trio.Event()
        self.negotiated = None
        if self._may_publish():
            self._runtime.catalog.withdraw(Source(self.spec.id, Era.SESSION))
        self.watches.move_to(main.watches)
        if lacks_login:
            return self._stopped()
        return Absent(now, f"it accepts no session: {why}" if is_refused else f"its session failed: {why}", is_reached)

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
        return [each for each in super()._log_listeners() if not each.abilities.retries]


def _session_spec(spec: ServerSpec) -> ServerSpec:
    """The configuration of the session beside the stateless connection of a server."""
    timeout = spec.start_timeout
    if isinstance(spec, HttpServer):
        timeout = min(timeout, SESSION_START_TIMEOUT)
    idle = SESSION_IDLE if spec.idle is None else spec.idle
    return replace(spec, protocol=Protocol.LEGACY, eras=Eras.ONE, idle=idle, start_timeout=timeout)


def _is_refusal(problem: BaseException) -> bool:
    """Whether the server said by this that it accepts no session."""
    if isinstance(problem, LinkLost):
        return problem.answered
    return isinstance(problem, PeerError | BrokenAnswer | UnsupportedRevision)


def _lacks_login(problem: BaseException) -> TypeGuard[AuthNeeded]:
    return isinstance(problem, AuthNeeded) and problem.ends_connection


def _is_lasting(problem: BaseException) -> bool:
    return isinstance(problem, UnsupportedRevision) or (isinstance(problem, LinkLost) and problem.lasting)


def configured_dialect(spec: ServerSpec) -> Dialect:
    """The dialect that the configuration permits."""
    return Dialect(
        may_be_stateless=spec.protocol is not Protocol.LEGACY, may_be_handshake=spec.protocol is not Protocol.MODERN
    )


def describe_counts(counts: Iterable[tuple[Kind, int]]) -> str:
    """The numbers of entries of each kind, in words."""
    words = (f"{count} {kind.value}" + ("" if count == 1 else "s") for kind, count in counts if count)
    return ", ".join(words) or "no entries"
