"""The state of one connection as it changes, and the waits for it.

connecting -> ready -> failed -> connecting ...        disabled        held -> installing -> connecting
ready -> stopped -> connecting                          needs login -> connecting
connecting -> needs folder -> connecting                ready or failed -> needs folder
stopped -> connecting -> absent -> ready or absent      (the session beside a stateless connection)

An absent session stays absent while it is tried again, because no request waits for it. It is connecting only if its
server was away and is connected again.
"""

from __future__ import annotations

from collections.abc import Callable

import trio

from config import ServerSpec, Trust
from host.errors import LoginNeeded, Unavailable
from host.sanitize import without_directories
from host.upstream.client import Client
from host.upstream.state import (
    Absent,
    Connecting,
    Failed,
    Held,
    Installing,
    NeedsFolder,
    NeedsLogin,
    Ready,
    State,
    Stopped,
    describe_state,
)

ABSENT_FOR = 60.0
"""Seconds after which a session that could not be had is tried again when a client could use it."""
RETRY_WAIT = 2.0
"""Seconds to the next attempt for which a call waits that is to be sent once more."""


class Lifecycle:
    """The present state of a connection.

    Args:
        on_change: called after each change.

    Attributes:
        is_starting: whether it is connecting, or will be once it is used. Calls look, so it is kept here.
        needs_login: whether it waits for a person to log in. Calls look.
        client: the client of a ready connection. Calls look.
        recalled: set when it was looked what is remembered of it; that takes no answer of the server.
        listed: set when its lists are known, from the store or from the server itself. One whose first attempt failed
            counts as listed.
        settled: set when the first attempt to connect has ended.
        started: set while it is not `is_starting`.
        is_due: whether it is absent, and to be tried again when a client could use it.
    """

    def __init__(self, state: State, on_change: Callable[[], None]) -> None:
        self.created_at = trio.current_time()
        self.is_starting = isinstance(state, Connecting | Stopped)
        self.needs_login = False
        self.client: Client | None = None
        self.recalled = trio.Event()
        self.listed = trio.Event()
        self.settled = trio.Event()
        self.started = trio.Event()
        self.is_due = False
        self._state = state
        self._on_change = on_change
        self._used = trio.Event()
        """Set when a connection is to be opened that is stopped, absent or without a folder, or has failed in one."""
        self._changed = trio.lowlevel.ParkingLot()
        if not self.is_starting:
            for event in (self.recalled, self.listed, self.settled, self.started):
                event.set()

    @property
    def state(self) -> State:
        return self._state

    @state.setter
    def state(self, state: State) -> None:
        self._state = state
        self.is_starting = isinstance(state, Connecting | Stopped)
        self.needs_login = isinstance(state, NeedsLogin)
        self.client = state.client if isinstance(state, Ready) else None
        if isinstance(state, Stopped | NeedsFolder | Failed | Absent):
            self._used = trio.Event()
        if not self.is_starting:
            self.recalled.set()
            self.listed.set()
            self.started.set()
        elif self.started.is_set():
            self.started = trio.Event()
        if not isinstance(state, Connecting | Installing):
            self.settled.set()
        self._on_change()
        self._changed.unpark_all()

    def use(self) -> None:
        """Have it opened, if it is stopped, absent or without a folder, or has failed in another folder."""
        self._used.set()

    def use_first(self) -> None:
        """Have it opened for the first time, if nobody has done so: its lists are waited for from now on."""
        if isinstance(self._state, Stopped) and not self._used.is_set():
            self.created_at = trio.current_time()
            self._used.set()

    async def wait_used(self) -> None:
        """Wait until it is used; an absent connection only from the time on at which it is due."""
        if isinstance(self._state, Absent):
            with trio.move_on_after(ABSENT_FOR):
                await self._used.wait()
            self.is_due = True
        await self._used.wait()
        self.is_due = False

    async def wait_started(self) -> None:
        """Wait while it is connecting; open it if it is stopped. Afterwards it is ready, or will not be soon."""
        while self.is_starting:
            if isinstance(self._state, Stopped):
                self._used.set()
            await self._changed.park()

    async def wait_logged_in(self) -> None:
        """Wait until it does not wait for a login."""
        while self.needs_login:
            await self._changed.park()

    async def wait_retried(self) -> None:
        """Wait while it has failed and is tried again within RETRY_WAIT."""
        while isinstance(state := self._state, Failed) and state.next_attempt <= trio.current_time() + RETRY_WAIT:
            await self._changed.park()

    def unavailable(self, spec: ServerSpec) -> Unavailable:
        """The error for a request of a server that is not connected: the text says why, and when the next attempt is.
        LoginNeeded if a person has to log in."""
        # The reason may contain text of the server, which only the owner of an untrusted server should see; one with a
        # problem of its configuration, or that waits for a person or its packages, has said nothing.
        has_said = not spec.problem and not isinstance(self._state, Held | Installing)
        is_hidden = spec.trust is Trust.UNTRUSTED and has_said
        why = "it is not connected" if is_hidden else without_directories(describe_state(self._state))
        unavailable = LoginNeeded if self.needs_login else Unavailable
        return unavailable(spec.id, f"{spec.id} is unavailable: {why}")
