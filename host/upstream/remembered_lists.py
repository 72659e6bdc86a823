"""The memory of one connection: which of its lists are to be stored, when they are, and what was stored."""

from __future__ import annotations

from contextlib import suppress
from typing import NamedTuple, Protocol

import trio

from config import ServerSpec
from host.journal import InternalError
from host.protocol.methods import Kind
from host.protocol.negotiated import NegotiatedServer
from host.slices import charged
from host.source import Source
from host.storage.store import StateError
from host.upstream.backoff import ReadingBudget
from host.upstream.connect import secrets_of
from host.upstream.remembered import Remembered
from host.upstream.runtime import Runtime

SAVE_INTERVAL = 5.0
"""Seconds between two times that the lists of a server are stored."""
LAST_SAVE_TIMEOUT = 1.0
"""Seconds that storing lists may take when the server is stopped: it must not delay that for long."""


class Offered(NamedTuple):
    """The offer of a connection: its server as it is configured now, and what that negotiated."""

    spec: ServerSpec
    source: Source
    negotiated: NegotiatedServer


class ListOwner(Protocol):
    """The connection that has lists."""

    def may_publish(self) -> bool:
        """Whether it is still the connection of its source."""

    def is_alone(self) -> bool:
        """Whether its server can have no other source; see `Catalog.publish`."""

    def is_ready(self) -> bool:
        """Whether it is connected and has read its lists."""

    def offered(self) -> Offered | None:
        """The offer that is to be remembered; None if nothing was negotiated, or another server has its place."""


class RememberedLists:
    """Stores the lists of one connection, and finds those that were stored.

    Args:
        budget: is charged for storing.
    """

    def __init__(self, runtime: Runtime, budget: ReadingBudget, owner: ListOwner) -> None:
        self._runtime = runtime
        self._budget = budget
        self._owner = owner
        self._unsaved: set[Kind] = set()
        self._is_due = trio.Event()

    def mark(self, kind: Kind) -> None:
        """Mark a list that was read, to be stored."""
        self._unsaved.add(kind)
        if self._owner.is_ready():
            self.save_soon()

    def save_soon(self) -> None:
        """Have the marked lists stored."""
        self._is_due.set()

    async def run(self) -> None:
        """Store the lists that were read, also of a connection that ended at once, until cancelled."""
        try:
            while True:
                await self._is_due.wait()
                if await self._save():
                    await trio.sleep(SAVE_INTERVAL)
        finally:
            # Shielded, because this is cancelled: what a server listed shortly before would not be remembered.
            with trio.move_on_after(LAST_SAVE_TIMEOUT, shield=True):
                await self._save()

    async def _save(self) -> bool:
        """Store the lists that are not stored yet; False if there are none."""
        remembered, offered = self._runtime.remembered, self._owner.offered()
        kinds, self._unsaved, self._is_due = self._unsaved, set(), trio.Event()
        if remembered is None or offered is None or not kinds:
            return False
        is_to_be_stored = True
        try:
            await charged(self._charge, remembered.save(*offered, kinds))
            is_to_be_stored = False
        except StateError:
            pass
        except Exception as problem:  # noqa: BLE001 - errors in Colonnade must not end other servers
            is_to_be_stored = False
            self._runtime.journal.note(InternalError(offered.spec.id, problem))
        finally:
            if is_to_be_stored:  # also if this is cancelled: a host may stop as soon as it has the first lists
                for kind in kinds:
                    self.mark(kind)
        return True

    def _charge(self, seconds: float) -> None:
        self._budget.charge(trio.current_time(), seconds)

    async def load(self, spec: ServerSpec, source: Source) -> Remembered | None:
        """The lists that are remembered of this connection, without the secrets of its server: an earlier version may
        have stored texts in which the server repeats one."""
        runtime = self._runtime
        withheld = secrets_of(spec, runtime.credentials, runtime.journal).withheld
        if withheld is not None:
            with suppress(StateError):
                await runtime.gate.definitions.pins.withhold(spec.id, withheld)
        if runtime.remembered is None:
            return None
        try:
            found = await runtime.remembered.load(spec, source)
        except StateError:
            return None
        return found if found is None or withheld is None else await found.without(withheld)
