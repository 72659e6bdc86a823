"""The home of a session: the process that its id names, and once that is gone, the one that has adopted it.

Of several processes that want to adopt a session, one does: the directory decides by one conditional statement. What it
needs is in the session's row (host/downstream/stored_sessions.py), so a session without one is unknown from then on.

A process that was stopped for a while, or cut off, finds on its return which of its sessions were adopted, and drops
them. Until then its client may be served by both, which carries out nothing twice: a request runs where it arrives.
"""

from __future__ import annotations

from host.downstream.http.request import Rejected
from host.downstream.http.security import Refusal
from host.downstream.sessions import Sessions
from host.downstream.stored_sessions import StoredSessions
from host.errors import Unavailable
from host.fleet.handover import HandOver
from host.fleet.members import NOBODY, DirectoryAway, FleetMember, Membership
from host.fleet.tokens import Homes

MAX_ADOPTED = 10_000
"""Adopted sessions of which is remembered who has them, in two megabytes; of others the directory is asked."""
CLAIMS = 3
"""Attempts to adopt a session whose adopters leave again and again."""
CHECKED_AT_ONCE = 500
"""Sessions of which the directory is asked at once whether they were adopted."""

AWAY = "the processes of this fleet cannot find each other at the moment; nothing was carried out, try again"


class Adoption:
    """The homes of the sessions of a fleet, as this process sees them.

    Attributes:
        stored: what is needed to adopt one; None if none can be.
    """

    def __init__(self, homes: Homes, members: Membership, handover: HandOver) -> None:
        self.sessions: Sessions | None = None
        self.stored: StoredSessions | None = None
        self._homes = homes
        self._members = members
        self._handover = handover
        self._adopted: dict[str, str] = {}
        """The processes that have adopted sessions, by the ids of these."""
        self._returns = 0

    def has(self, id: str) -> bool:
        return self.sessions is not None and self.sessions.is_open(id)

    def known_home(self, id: str, home: str) -> FleetMember | None:
        """`home_of`, if that is another process and nobody needs to be asked; otherwise None."""
        if self.has(id):
            return None
        adopter = self._adopted.get(id)
        found = (adopter and self._members.get(adopter)) or self._members.get(home)
        return None if found is None or found.boot == self._homes.boot else found

    async def find(self, home: str, refused: set[str]) -> FleetMember | None:
        try:
            return await self._members.find(home)
        except DirectoryAway:
            raise Rejected(Refusal(503, AWAY, {"retry-after": "1"}), Unavailable.code) from None

    async def home_of(self, id: str, home: str, is_forwarded: bool, refused: set[str]) -> FleetMember | None:
        """The process that has a session, which is not open here; None if this one is to serve it. If its home is gone,
        the session is adopted.

        Args:
            home: the process that its id names.
            is_forwarded: another process takes this one for its home.
        """
        if self.has(id):  # by now
            return None
        if is_forwarded:  # its home believed so, or whoever forwarded it has heard more
            chosen = await self._handover.choose(set()) if self._handover.is_begun else None
            if chosen is not None and not self._handover.has_given(id):
                await self._adopter(id, home, set())
            return chosen or await self._claim(id, home)
        kept = self._adopted.get(id)
        if kept is not None and kept not in refused and self._members.has(kept):
            return await self.find(kept, refused)
        if home not in (self._homes.boot, *refused) and (found := await self.find(home, refused)) is not None:
            return found
        if self._handover.is_begun and (chosen := await self._handover.choose(refused)) is not None:
            return await self._adopter(id, home, refused) or chosen
        return await self._claim(id, home)

    async def _adopter(self, id: str, home: str, refused: set[str]) -> FleetMember | None:
        """The process that has adopted a session, if it is there. A session of this process, which has ended here and
        is stored still, is given away: nobody could adopt it as long as this process is there."""
        if self.stored is None:
            return None
        keys, directory = list(self.stored.digests(id)), self._members.directory
        try:
            homes = set((await directory.adopters(keys)).values())
            if self._homes.boot in homes or (home == self._homes.boot and "" in homes):
                await directory.release(keys, self._homes.boot)
                return None
        except DirectoryAway:
            return None
        for by in homes - {"", NOBODY, self._homes.boot, *refused}:
            if (found := await self.find(by, refused)) is not None:
                self._remember(id, by)
                return found
        return None

    def _remember(self, id: str, by: str) -> None:
        while len(self._adopted) >= MAX_ADOPTED:
            del self._adopted[next(iter(self._adopted))]
        self._adopted[id] = by

    async def _claim(self, id: str, home: str) -> FleetMember | None:
        """Adopt a session, unless another process has done so, which is returned."""
        if self.stored is None:
            return None
        for _ in range(CLAIMS):
            try:
                by = await self._members.directory.claim(list(self.stored.digests(id)), home, self._homes.boot)
            except DirectoryAway:
                break
            if by is None or by == self._homes.boot:
                return None
            if (found := await self.find(by, set())) is not None:  # else it has left meanwhile
                self._remember(id, by)
                return found
        raise Rejected(Refusal(503, AWAY, {"retry-after": "1"}), Unavailable.code)

    async def drop_adopted(self) -> None:
        """Drop the sessions that others have adopted while this process had no lease, if it had none since the last
        time. Those are among them that have been ended there meanwhile, and so have no row any more."""
        if self._returns == self._members.returns:
            return
        returns, sessions, stored = self._members.returns, self.sessions, self.stored
        if sessions is not None and stored is not None:
            ids = [id for id in sessions.ids if stored.has_row(id)]
            for at in range(0, len(ids), CHECKED_AT_ONCE):
                keys = {id: list(stored.digests(id)) for id in ids[at : at + CHECKED_AT_ONCE]}
                try:
                    adopters = await self._members.directory.adopters([key for each in keys.values() for key in each])
                except DirectoryAway:
                    return  # after the next list
                for id, each in keys.items():
                    if not {adopters[key] for key in each if key in adopters} & {"", self._homes.boot}:
                        sessions.drop(id)
        self._returns = returns
