"""The members of a fleet: the processes that share one store, and where each is reached.

Each process renews a lease in the directory, which is a table of the store, and takes over who else has one. The
engine's clock says when a lease is over; a process believes its own for a shorter time, by a clock of its own that goes
on while the machine is suspended, from the start of the last renewal that was answered. So nobody takes another process
for gone that still believes in its lease, as long as clocks run at nearly the same rate. Nothing here compares the
times of two machines.

While the directory is away, the members that were there last count as there: they go on serving their sessions, which
nobody can take over without the directory. So do they for one lease after it is back: all have lost theirs, and the
first process that renews it would take the others for gone, and cut off what it has forwarded to them.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from math import inf
from typing import Protocol

import trio
from msgspec import Struct
from msgspec.structs import replace

HEARTBEAT = 0.5
"""Seconds between the starts of two renewals."""
LEASE = 2.2
"""Seconds of a lease by the engine's clock, from the moment at which the engine renews it."""
MISSED = LEASE - 2 * HEARTBEAT
"""Seconds between two renewals, from which on others may have lost their leases for the same reason as this process
nearly did."""
OWN_LEASE = 2.0
"""Seconds for which a process believes its lease, from the start of a renewal. The rest is for different rates of the
clocks, and for what is in progress at the end."""
SOONEST = 0.15
"""Seconds between the starts of two renewals at least: each is a statement of the engine."""
TAKEN_OVER_LIMIT = 5.0
"""Seconds to wait until all processes have taken over a decision."""
PATIENCE = 2.0
"""Seconds to wait for a list that says whether a process is there."""
LEAVE_TIMEOUT = 2.0
"""Seconds that a process takes to say that it leaves. Otherwise its lease ends by itself."""
NOBODY = "-"
"""The home of a session that was given away: the id of no process, so that one is gone for any version."""
MAX_ABSENT = 10_000
"""Processes that are remembered as absent, in a few kilobytes; clients name them that come with old sessions."""


class DirectoryAway(Exception):
    """The directory does not answer."""


class FleetMember(Struct, frozen=True):
    """A process, as it describes itself to the others."""

    boot: str
    """The id of the process, which no other one has: `Seal.boot`."""
    address: str
    """host:port of its inner listener; empty if it has none."""
    definitions: int = 0
    grants: int = 0
    """The revisions of the decisions that it has taken over (host/storage/store.py)."""
    rules_digest: str = ""
    """Equal for processes with equal configurations."""
    version: str = ""
    status: str = "serving"
    """Its `Stage` (host/downstream/drain.py)."""
    attended: bool = False
    """Whether somebody is there who can answer confirmations."""
    left: float = LEASE
    """Seconds that were left of its lease when the list was read; none if it is over."""


class Directory(Protocol):
    """The table of members, and of the sessions that they have adopted. Its methods may wait for a network; `beat` and
    `leave` are called by one task at a time."""

    async def beat(self, own: FleetMember) -> Sequence[FleetMember]:
        """Renew the lease of this process, and return all members, with itself: `left` is what was left before.

        Raises:
            DirectoryAway: no answer came in time; the lease may have been renewed.
        """

    async def leave(self, boot: str) -> None:
        """Remove this process.

        Raises:
            DirectoryAway: as `beat`.
        """

    async def claim(self, keys: Sequence[str], home: str, by: str) -> str | None:
        """Adopt a session for the process `by`, unless its home has a lease. Of several that try, one does. Returns the
        home that it has then; None if no such session is stored. May be called beside the others.

        Args:
            keys: the names under which the session may be stored.
            home: the process that its id names.

        Raises:
            DirectoryAway: as `beat`; it may be adopted.
        """

    async def release(self, keys: Sequence[str], by: str) -> Mapping[str, str]:
        """Give sessions of the process `by` away: from now on whoever claims one has it, though this process has a
        lease. Returns the homes as `adopters` does; raises as `beat`: they may be given away."""

    async def adopters(self, keys: Sequence[str]) -> Mapping[str, str]:
        """The process that has adopted the session, for each of these names under which one is stored: empty for
        none, NOBODY if its last one has given it away. Raises as `beat`."""


class Membership:
    """The members as of the last list; see `open_members`."""

    def __init__(self, directory: Directory, own: Callable[[], FleetMember], now: Callable[[], float]) -> None:
        self.own = own
        self.directory = directory
        self._now = now
        self._begun = float("-inf")
        """The start of the last renewal that was answered."""
        self._returned = float("-inf")
        """When the last renewal after several missed ones was answered."""
        self._ends: Mapping[str, float] = {}
        """The times at which the leases of the members of the last list are over, by the clock of this process: not
        before lists have said so, whatever the engine's clock does. That of another machine may be ahead after a
        failover, or behind: no lease has more left than LEASE."""
        self._present: Mapping[str, FleetMember] = {}
        self._silent: Sequence[FleetMember] = ()
        """Those whose lease was over when the list was read, and that have not said that they leave."""
        self.place = (0, 1)
        """The place of this process among those present, in the order of their ids, and their number."""
        self._waiting = 0
        """Number of those who wait until all have taken over a decision, or for the end of a lease."""
        self._woken = trio.Event()
        self._absent: dict[str, None] = {}
        """Processes that were asked for, and that a later list did not have."""
        self._listed = trio.lowlevel.ParkingLot()
        self.returns = 0
        """How often this process was without a lease and has one again: others may have taken it for gone."""

    @property
    def is_current(self) -> bool:
        """Whether this process believes its lease: what it took over holds as long."""
        return self._now() < self._begun + OWN_LEASE

    @property
    def present(self) -> Sequence[FleetMember]:
        """Those that had a lease when the list was read, with this process."""
        return list(self._present.values())

    def get(self, boot: str) -> FleetMember | None:
        """The member, if the last list had it."""
        return self._present.get(boot)

    def has(self, boot: str) -> bool:
        """Whether the last list had this process."""
        return boot in self._present

    async def find(self, boot: str) -> FleetMember | None:
        """The member, as far as the last list says; None if it is gone. A process that no list had is waited for:
        it may have come after the last one.

        Raises:
            DirectoryAway: it is not known whether it is gone.
        """
        if (found := self._present.get(boot)) is not None:
            return found
        if not (boot in self._absent and self.is_current):
            await self.wait_list()
            if (found := self._present.get(boot)) is not None:
                return found
            while len(self._absent) >= MAX_ABSENT:
                del self._absent[next(iter(self._absent))]
            self._absent[boot] = None
        return None

    async def wait_list(self) -> None:
        """Wait for a list whose reading began from now on.

        Raises:
            DirectoryAway: none came within PATIENCE seconds.
        """
        asked = self._now()
        with trio.move_on_after(PATIENCE):
            while self._begun <= asked:
                await self._listed.park()
        if self._begun <= asked:
            raise DirectoryAway

    async def wait_gone(self, boot: str, seconds: float) -> None:
        """Wait until a list does not have this process any more, but no longer than so many seconds. Lists come sooner
        meanwhile: what its clients wait for is the end of its lease."""
        self._waiting += 1
        self.wake()
        try:
            with trio.move_on_after(seconds):
                while True:
                    await self._listed.park()
                    if not self.has(boot):
                        return
        finally:
            self._waiting -= 1

    async def wait_taken_over(
        self, *, grants: int = 0, definitions: int = 0, outlives_lease: float = 0.0
    ) -> Sequence[FleetMember]:
        """Wait until each process has taken over these revisions, or is gone: what was taken away by then holds
        nowhere. Returns those that are behind after TAKEN_OVER_LIMIT seconds.

        Args:
            outlives_lease: seconds for which a process that nobody hears of may still go by what it knew. The grants
                that it has in memory end with its lease.
        """

        def behind() -> Sequence[FleetMember]:
            own, over = self.own().boot, self._now() - self._begun - outlives_lease
            known = [*self._present.values(), *(each for each in self._silent if each.left > over)]
            return [
                each for each in known if each.boot != own and (each.grants < grants or each.definitions < definitions)
            ]

        asked = self._now()
        self._waiting += 1
        self.wake()
        try:
            with trio.move_on_after(TAKEN_OVER_LIMIT):
                while self._begun <= asked or behind():  # a process may have come after the last list
                    await self._listed.park()
        finally:
            self._waiting -= 1
        return behind()

    async def renew(self) -> None:
        """Renew the lease once; raises as `Directory.beat` does."""
        begun, said = self._now(), self.own()
        listed = await self.directory.beat(said)
        own, now = said.boot, self._now()
        was_over = any(each.boot == own and each.left <= 0 for each in listed)
        # By the own clock, too: the engine may have renewed it only just now.
        if self._present and (was_over or now - self._begun > OWN_LEASE):
            self.returns += 1
        if self._present and now - self._begun > MISSED:
            self._returned = now
        self._begun = begun
        ends = {each.boot: max(begun + min(each.left, LEASE), self._ends.get(each.boot, -inf)) for each in listed}
        ends[own] = now + LEASE
        self._ends = ends
        rows = [replace(each, left=max(each.left, ends[each.boot] - now)) for each in listed]
        former = self._present if now < self._returned + LEASE else {}
        self._present = {**former, **{each.boot: each for each in rows if each.left > 0}}
        self._silent = [each for each in rows if each.boot not in self._present]
        self.place = (sum(boot < own for boot in self._present), max(len(self._present), 1))
        for boot in self._present:
            self._absent.pop(boot, None)
        self._listed.unpark_all()

    async def run(self) -> None:
        """Renew the lease each HEARTBEAT seconds, until cancelled; sooner if somebody waits for others, or others may
        wait for this process, which has taken over something."""
        while True:
            begun, said = trio.current_time(), self._taken_over()
            with suppress(DirectoryAway):
                await self.renew()
            await trio.sleep_until(begun + SOONEST)
            with trio.move_on_at(begun + HEARTBEAT):
                while not self._waiting and said == self._taken_over():
                    self._woken = trio.Event()
                    await self._woken.wait()

    def wake(self) -> None:
        """This process may have taken over something."""
        self._woken.set()

    def _taken_over(self) -> tuple[int, int]:
        own = self.own()
        return own.definitions, own.grants


@asynccontextmanager
async def open_members(
    directory: Directory, own: Callable[[], FleetMember], now: Callable[[], float]
) -> AsyncIterator[Membership]:
    """Be a member for the block.

    Args:
        own: asked at each renewal.
        now: seconds of a clock that goes on while the machine is suspended.

    Raises:
        DirectoryAway: the first renewal fails. Nobody could find what this process would give out.
    """
    members = Membership(directory, own, now)
    await members.renew()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(members.run)
        try:
            yield members
        finally:
            nursery.cancel_scope.cancel()
    # Not after an exception: a lease that ends by itself is all that others need.
    with trio.move_on_after(LEAVE_TIMEOUT, shield=True), suppress(DirectoryAway):
        await directory.leave(own().boot)
