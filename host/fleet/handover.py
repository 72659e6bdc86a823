"""The hand-over at a drain: sessions of a process that is told to stop go to other processes while it is still there.

Once balancers have noticed the drain, each session is given away as soon as nothing of it is in flight here: its row
says so, and this process forgets it, which ends its standing stream. The process that gets the next request of its
client adopts it, as that of a process that is gone. Whoever believes that it is still here is told with 421.

What a client begins meanwhile in a session with something in flight waits until that has ended, and begins at the next
process. What belongs to that which is in flight is served: answers, cancellations, polls of a task. A session whose
client is being asked something takes new requests too, since the answer may need them. What a client begins without a
session goes to another process at once.

A session stays that nobody else could go on with (`Session.describe`), or whose row cannot be written or given away.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

import trio

from host.downstream.drain import Drain, Stage
from host.downstream.http.request import HttpRequest, not_charged, whole_body, with_body
from host.downstream.sessions import Session, Sessions
from host.downstream.stored_sessions import StoredSessions
from host.downstream.tasks import IN_HANDSHAKE
from host.fleet.members import DirectoryAway, FleetMember, Membership
from host.jsonrpc.messages import Request, receive_at_once
from host.protocol.methods import PING

LOOK = 0.05
"""Seconds between two looks for sessions with nothing in flight."""
SPREAD = 5.0
"""Seconds over which sessions are given away: their clients open streams at the others at once."""
MOST_IN_SECOND = 400
"""Sessions that are given away in a second, unless the drain is too short for that: each is a statement of the process
that adopts it, and those wait for each other."""
PART_OF_DRAIN = 0.8
"""The part of what is left of the drain in which each session has had its turn."""
RETRY_INTERVAL = 1.0
"""Seconds until the directory is asked again that did not answer."""
UNREAD_LIMIT = 2.0
"""Seconds for which the rest of a stream is kept for a client that lost its connection, and so its session is."""

_ALWAYS_SERVED = IN_HANDSHAKE | {PING}


class HandOver:
    """The hand-over of one process. `run` must run beside it once `begin` was called."""

    def __init__(self, boot: str, members: Membership) -> None:
        self.is_begun = False
        """Whether this process gives its sessions away."""
        self._boot = boot
        self._members = members
        self._sessions: Sessions
        self._stored: StoredSessions
        self._drain: Drain
        self._wanted: dict[str, None] = {}
        """Sessions for which requests wait."""
        self._giving: frozenset[str] = frozenset()
        """Sessions that are being given away."""
        self._given: set[str] = set()
        """Sessions that were given away."""
        self._failed = False
        self._turn = 0
        self._looked = trio.lowlevel.ParkingLot()

    def others(self) -> list[FleetMember]:
        """The processes that serve, and go on."""
        return [each for each in self._members.present if each.boot != self._boot and each.status == Stage.SERVING]

    def has_given(self, id: str) -> bool:
        """Whether this process has given a session away that was open here."""
        return id in self._given

    async def choose(self, refused: set[str]) -> FleetMember | None:
        """A process, in turns, for what needs no certain one; None if none serves but those that have refused it."""
        await trio.lowlevel.checkpoint()
        found = [each for each in self.others() if each.boot not in refused]
        self._turn += 1
        return found[self._turn % len(found)] if found else None

    async def run(self, sessions: Sessions, stored: StoredSessions, drain: Drain) -> None:
        """Hand over, until cancelled, since balancers have noticed the drain and others serve."""
        self._sessions, self._stored, self._drain = sessions, stored, drain
        self.is_begun = True
        drain.begins_elsewhere = lambda: bool(self.others())
        drain.is_handing_over = self._is_left
        spread = min(max(SPREAD, len(sessions) / MOST_IN_SECOND), PART_OF_DRAIN * drain.rest())
        at_once = max(1, math.ceil(len(sessions) * LOOK / spread))
        try:
            while True:
                await self._give_away(at_once)
                self._looked.unpark_all()
                await trio.sleep(RETRY_INTERVAL if self._failed else LOOK)
        finally:
            self.is_begun = False
            self._looked.unpark_all()

    def _is_left(self) -> bool:
        """Whether a session is still here that can go."""
        return not self._cannot and any(self._may_go(session) for session in self._sessions)

    @property
    def _cannot(self) -> bool:
        """Whether nothing can be given away at the moment, because the database is away."""
        return self._failed or self._stored.is_failing

    @staticmethod
    def _may_go(session: Session) -> bool:
        return session.describe() is not None

    def _is_in_flight(self, session: Session, awaited: Iterable[object]) -> bool:
        return (
            session.serving.count > 0
            or len(session.asking) > 0
            or session.mark in awaited
            or session.history.is_unread(UNREAD_LIMIT)
        )

    async def _give_away(self, at_once: int) -> None:
        """Give away sessions with nothing in flight, those first for which requests wait."""
        awaited = {call.client for call in self._drain.calls.awaited()}
        chosen = dict[str, Session]()
        for id in (*self._wanted, *self._sessions.ids):
            session = self._sessions.get(id)
            if session is None or self._is_in_flight(session, awaited) or not self._may_go(session):
                continue
            if self._stored.is_written(id):
                chosen[id] = session
            if len(chosen) >= max(at_once, len(self._wanted)):
                break
        if not chosen:
            return
        self._giving = frozenset(chosen)  # from now on nothing begins in them
        keys = {id: list(self._stored.digests(id)) for id in chosen}
        try:
            homes = await self._members.directory.release([key for each in keys.values() for key in each], self._boot)
            self._failed = False
            for id, each in keys.items():
                is_gone = bool({homes[key] for key in each if key in homes} - {"", self._boot})
                if is_gone and self._sessions.get(id) is chosen[id]:
                    self._sessions.drop(id)
                    self._given.add(id)
        except DirectoryAway:
            self._failed = True
        finally:
            self._giving = frozenset()

    async def wait_turn(self, id: str, http_request: HttpRequest) -> tuple[HttpRequest, bool]:
        """Wait as long as a request of a session that is open here may not begin. Returns the request, whose body may
        have been read, and whether it begins here.

        Raises:
            Rejected, ClientGone: as `read_charged_body`, or its memory is needed elsewhere.
        """
        begins = False
        if http_request.method == "POST":
            body = await whole_body(http_request)
            begins = _begins_something(body)
            http_request = with_body(http_request, body)
        try:
            with http_request.charge.droppable() as dropping:
                while self._may_not_begin(id, begins):
                    if begins:
                        self._wanted[id] = None
                    await self._looked.park()
        finally:
            self._wanted.pop(id, None)
        if dropping.cancelled_caught:
            raise not_charged(http_request.charge)
        session = self._sessions.get(id)
        return http_request, session is not None and not (begins and self._waits(session))

    def _may_not_begin(self, id: str, begins: bool) -> bool:
        session = self._sessions.get(id)
        if session is None or not self.is_begun or self._drain.over.is_set():
            return False
        return id in self._giving or (begins and self._waits(session))

    def _waits(self, session: Session) -> bool:
        """Whether what its client begins is to begin elsewhere."""
        return not self._cannot and not len(session.asking) and self._may_go(session)


def _begins_something(body: bytes) -> bool:
    """Whether a body has a request, but for one about a task. One that takes long to read counts as having one."""
    found = receive_at_once(body)
    if found is None or found.batch is not None:
        return True
    return isinstance(found.message, Request) and found.message.method not in _ALWAYS_SERVED
