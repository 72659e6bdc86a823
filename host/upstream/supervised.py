"""One supervised connection to a server: it is opened, its lists are read, it serves, it ends, and is opened again.

Every end becomes a state, with its reason and the time of the next attempt; no failure of a server goes beyond this
file. Its `Role` says what a connection is for: the connections of a server differ in nothing else.
"""

from __future__ import annotations

import math
import random
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable

import trio
from msgspec.structs import replace

from config import Isolation, ServerSpec
from host.errors import Unavailable, first_exception
from host.journal import InternalError, OutputRecord
from host.jsonrpc.readable import LONE_SURROGATE
from host.peer.outstanding import PeerError
from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer
from host.protocol.versions import SESSION, STATELESS
from host.sanitize import quoted
from host.source import EntryRef
from host.upstream.catalog_sync import CatalogSync
from host.upstream.client import DEFINED_BY, Client
from host.upstream.client_folder import in_folder
from host.upstream.connect import login_of, secrets_of
from host.upstream.connection import (
    CONNECT_FAILURES,
    UpstreamLease,
    end_with_login,
    failure_reason,
    follow_changes,
    open_client,
)
from host.upstream.credentials import Credential
from host.upstream.lifecycle import Lifecycle
from host.upstream.outcome import ConnectionEnd, Outcome, configured_dialect
from host.upstream.output import DroppedAnswers
from host.upstream.resource_watches import ResourceWatches
from host.upstream.runtime import Runtime
from host.upstream.server_requests import Clients, ServerMessages
from host.upstream.source_lists import SourceLists
from host.upstream.state import Absent, Connecting, Failed, NeedsFolder, NeedsLogin, Ready, State, Stopped
from host.wire.link import LinkLost
from host.wire.refusal_text import said_of


class Role(ABC):
    """The purpose of a connection: all that differs between the connection that a server always has, the session beside
    it, and its dedicated instances.

    Attributes:
        on_lists_changed: called when the server announces changed lists; None if the connection reads none.
        folder: the folder of clients in which its program starts (`cwd: "${client:folder}"`); None for that of the
            configuration.
    """

    clients: Clients
    folder: str | None = None
    on_lists_changed: Callable[[list[Kind]], None] | None = None

    def may_open_again(self) -> bool:
        """Whether it must be opened to have its lists read: it was open before, and is not now."""
        return False

    def on_change(self) -> None:
        """Called when its state or its source has changed."""
        return

    @abstractmethod
    async def prepare(self) -> None:
        """Wait until the next connection may be opened.

        Raises:
            LinkLost: it may not be.
        """

    def count_start(self) -> None:
        """Count an attempt, unless it is made because a person has logged in or out."""
        return

    def on_negotiated(self, negotiated: NegotiatedServer) -> None:
        """Called before the negotiated source is the connection's."""
        return

    async def open_lists(self, client: Client) -> CatalogSync | None:
        """Read the lists. Returns what keeps them up to date; None if the connection reads none."""
        return None

    @abstractmethod
    def on_ready(self, negotiated: NegotiatedServer, seconds: float) -> None:
        """Called when it is ready, so many seconds after the attempt began."""

    @abstractmethod
    def idle_pause(self, client: Client) -> float | None:
        """Seconds until it is to be looked whether it is idle; None if it is, and to be closed."""

    @abstractmethod
    def on_idle(self) -> State:
        """Called when it is closed because it is idle. Returns its next state."""

    @abstractmethod
    def outcome(self, end: ConnectionEnd) -> Outcome:
        """The state that follows its end."""


class UpstreamConnection:
    """One connection of a server, opened again and again.

    Attributes:
        source: what lists its entries: the server, in the era that was negotiated last; before the first connection, in
            the remembered one.
        lists: of a dedicated instance those of the shared connection.
        dialect, last_dialect: era and transport of the next connection, and of the last one.
        login_id: the login with which it began, or began at last; empty without one.
    """

    def __init__(
        self,
        spec: ServerSpec,
        runtime: Runtime,
        role: Role,
        lists: SourceLists,
        state: State | None = None,
    ) -> None:
        self.spec = spec
        self.role = role
        self.lists = lists
        self.life = Lifecycle(Connecting(trio.current_time(), None) if state is None else state, role.on_change)
        self.watches = ResourceWatches(spec.id, spec.longest_wait, self._is_visible)
        self.source = lists.source
        self.attempts = 0
        self.dialect = self.last_dialect = configured_dialect(spec)
        self.login_id = ""
        self._runtime = runtime
        self._negotiated: NegotiatedServer | None = None
        self._was_negotiated = False
        """The current connection was negotiated in this `dialect`."""
        self._end_is_handled = False
        """The state says already what follows the current connection."""
        self.dropped_answers = DroppedAnswers()
        """Those of the current connection."""

    @property
    def state(self) -> State:
        return self.life.state

    @property
    def negotiated(self) -> NegotiatedServer | None:
        """Revision and capabilities of the last connection, or those that are remembered."""
        return self._negotiated

    @negotiated.setter
    def negotiated(self, negotiated: NegotiatedServer | None) -> None:
        self._negotiated = negotiated
        self.source = self.source.in_era(SESSION if negotiated is None else negotiated.era)
        self.role.on_change()

    @property
    def is_stateless(self) -> bool:
        """Whether it is, or was at last, stateless."""
        return self.source.era is STATELESS

    @property
    def credential(self) -> Credential | None:
        """The login of its server."""
        return login_of(self.spec, self._runtime.credentials)

    def _is_visible(self, uri: str) -> bool:
        return self._runtime.gate.definitions.is_visible_to_any(EntryRef(self.source, Kind.RESOURCE, uri))

    # For the requests that it serves

    def ready_client(self) -> Client:
        """The connected client.

        Raises:
            Unavailable: see `Lifecycle.unavailable`.
        """
        if (client := self.life.client) is None:
            raise self.life.unavailable(self.spec)
        return client

    def lease(self) -> UpstreamLease:
        """A lease of the connection; raises as `ready_client` does."""
        return UpstreamLease(self.life.client or self.ready_client(), self.watches)

    def unread(self, kind: Kind) -> Unavailable:
        """The error for a request whose definition is only remembered: LoginNeeded if the server needs a login."""
        if self.life.client is None:
            return self.life.unavailable(self.spec)
        server = self.spec.id
        return Unavailable(server, f"{server} is unavailable: its list of {kind.value}s could not be read")

    async def wait_read(self, kind: Kind) -> None:
        """Wait until the lists with entries of this kind have been read."""
        with trio.move_on_after(self.spec.longest_wait):
            await self.lists.wait_until_read(DEFINED_BY[kind])

    @property
    def has_old_lists(self) -> bool:
        """Whether a list is old whose changes the server does not announce, or those of a session that is not open may
        be. Never of a server that is not connected."""
        sync = self.lists.sync
        return self.role.may_open_again() if sync is None else sync.old_at <= sync.now()

    def read_if_old(self, missed: Iterable[Kind] = ()) -> trio.Event | None:
        """Have old lists read; see `CatalogSync.read_if_old`. A session is opened for that."""
        if self.lists.sync is not None or not self.role.may_open_again():
            return self.lists.read_if_old(missed)
        self.life.use()
        return self.life.started

    @property
    def left_out(self) -> list[str]:
        """Descriptions of the instructions and definitions that clients could not parse."""
        is_left_out = self.negotiated is not None and self.negotiated.unreadable
        return ([f"its instructions ({LONE_SURROGATE})"] if is_left_out else []) + self.lists.left_out

    # Its life

    async def run(self) -> None:
        """Keep it connected until cancelled. Never raises."""
        while True:
            await self.run_once()

    async def _wait_for_next(self) -> None:
        """Wait until the next connection is to be opened."""
        state = self.state
        if isinstance(state, Stopped | NeedsFolder | Absent):
            await self.life.wait_used()
        elif isinstance(state, Failed | NeedsLogin):
            # A person who logs in at a failed server may have mended it.
            with trio.move_on_at(state.next_attempt if isinstance(state, Failed) else math.inf):
                await self._wait_mended()
        if not isinstance(state, Connecting | Absent):  # an absent one stays so: no request waits for it
            why, said = (state.why, state.said) if isinstance(state, Failed) else (None, "")
            self.life.state = Connecting(trio.current_time(), why, said)

    async def _wait_mended(self) -> None:
        """Wait for another login than that of the last connection; without logins, for another folder to start in."""
        if (credential := self.credential) is None:
            await self.life.wait_used()
        else:
            await credential.wait_changed(self.login_id)

    async def run_once(self) -> None:
        """Open the next connection when it is time, and run it to its end. The state then says what follows."""
        await self._wait_for_next()
        before, self._end_is_handled = self._runtime.journal.last_output, False
        self.dropped_answers = DroppedAnswers()
        try:
            await self.role.prepare()
            if isinstance(self.state, Stopped | NeedsFolder):
                await self._wait_for_next()
                await self.role.prepare()  # its program may have been replaced meanwhile
            self.attempts += 1
            credential, former = self.credential, self.login_id
            self.login_id = "" if credential is None else credential.login_id
            if self.attempts == 1 or self.login_id == former:  # otherwise a person has logged in or out
                self.role.count_start()
            with trio.CancelScope() as connected:
                await self._connect(connected)
            self._was_negotiated = False  # reached only after `_close_when_idle`
        except* CONNECT_FAILURES as group:
            self._end(
                first_exception(group),
                failure_reason(self.spec, group, self._output_since(before), self.dropped_answers),
            )
        except* Exception as group:  # noqa: BLE001 - errors in Colonnade must not end other connections either
            self._runtime.journal.note(InternalError(self.spec.id, group))
            self._end(group, "of an internal error")

    def _output_since(self, number: int) -> list[OutputRecord]:
        """The lines that the server wrote after the line of this number. Empty if it has other instances, whose lines
        may be about other clients."""
        has_others = self.spec.isolation is not Isolation.SHARED or self.spec.takes_client_folder
        return [] if has_others else self._runtime.journal.output(self.spec.id, number)

    async def _connect(self, connected: trio.CancelScope) -> None:
        """Run one connection from its beginning to its end. Always raises, unless `connected` is cancelled because it
        is idle."""
        spec, runtime, role, began = self.spec, self._runtime, self.role, trio.current_time()
        server_messages = ServerMessages(
            spec,
            runtime,
            role.clients,
            secrets_of(spec, runtime.credentials, runtime.journal),
            self.watches.on_updated,
            role.on_lists_changed,
        )
        self.dropped_answers = server_messages.dropped_answers
        launched = spec if role.folder is None else in_folder(spec, role.folder)
        link = runtime.open_link(launched, http_sse=self.dialect.http_sse)
        opening = open_client(spec, link, server_messages, runtime.gate, self.dialect, self.lists)
        with trio.fail_after(spec.start_timeout) as startup:
            async with opening as client:
                role.on_negotiated(client.negotiated)
                self._on_negotiated(client.negotiated)
                sync = await role.open_lists(client)
                startup.deadline = math.inf
                self.life.state = Ready(trio.current_time(), client)
                role.on_ready(client.negotiated, trio.current_time() - began)
                async with trio.open_nursery() as nursery:
                    if sync is not None:
                        nursery.start_soon(sync.run)
                    nursery.start_soon(self._close_when_idle, client, connected)
                    nursery.start_soon(end_with_login, client, self.credential, self.login_id)
                    follow_changes(nursery, client, server_messages, runtime.log_levels, self.watches)
                    await client.peer.ended.wait()
                    # Handled at once: ending the process may take seconds, and calls must not wait for it.
                    self._end(client.peer.lost, server_messages.redact(str(client.peer.lost)))
                    raise client.peer.lost

    def recall(self, negotiated: NegotiatedServer) -> None:
        """Take what is remembered of the last connection of a former host."""
        self.negotiated = negotiated
        self.dialect = self.dialect.after(negotiated)

    def _on_negotiated(self, negotiated: NegotiatedServer) -> None:
        former = self.negotiated
        if negotiated.refused_newer and former is not None and former.server != negotiated.server:
            # It has another name or version than the server that refused newer revisions: the next connection offers
            # them again.
            negotiated = replace(negotiated, refused_newer=not former.refused_newer)
        self.negotiated = negotiated
        self.watches.is_visible = self._is_visible  # they may be those of a former server, in another era
        # A slow stateless server may have got `initialize` and may still end because of it. The next connection does
        # not send it.
        stateless = self.is_stateless
        offers = configured_dialect(self.spec).after(negotiated).offers
        self.dialect = replace(
            self.dialect, may_be_stateless=stateless, initialize_on_silence=not stateless, offers=offers
        )
        self.last_dialect, self._was_negotiated = self.dialect, True

    async def _close_when_idle(self, client: Client, connected: trio.CancelScope) -> None:
        while (pause := self.role.idle_pause(client)) is not None:  # noqa: ASYNC110 - time passes
            await trio.sleep(pause)
        self.life.state = self.role.on_idle()  # at once: what is used from now on waits for the next connection
        connected.cancel("it was not used")

    def _said(self, problem: BaseException) -> str:
        """The words of the server or its issuer about a failure, quoted for people; empty if there are none."""
        if isinstance(problem, trio.TooSlowError):
            return self.dropped_answers.said
        if isinstance(problem, PeerError):
            said, speaker = said_of(problem.error), LinkLost.speaker
        elif isinstance(problem, LinkLost):
            said, speaker = problem.said, problem.speaker
        else:
            return ""
        secrets = secrets_of(self.spec, self._runtime.credentials, self._runtime.journal)
        return quoted(said, secrets.redact, speaker)

    def _end(self, problem: BaseException, why: str) -> None:
        """Set the state that follows the end of the connection. Later problems are consequences of the first one."""
        if self._end_is_handled:
            return
        self._end_is_handled = True
        outcome = self.role.outcome(
            ConnectionEnd(
                spec=self.spec,
                problem=problem,
                why=why,
                now=trio.current_time(),
                jitter=random.random(),
                state=self.state,
                dialect=self.dialect,
                was_negotiated=self._was_negotiated,
                is_watched=len(self.watches) > 0,
                credential=self.credential,
                login_id=self.login_id,
                said=self._said(problem),
            )
        )
        if outcome.event is not None:
            self._runtime.journal.note(outcome.event)
        if outcome.dialect is not None:
            self.dialect = outcome.dialect
        self.life.state = outcome.state
        self._was_negotiated = False
