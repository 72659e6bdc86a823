"""The part of a session over Streamable HTTP that outlives its process: one row of the store, with which another
process opens the session anew.

A row is written behind the answers, by one task: soon after the session was opened or has changed, now and then while
it is used, and when the host stops. No call waits for the store. While the store cannot be written, sessions are served
as ever, but end with their process.

The id of a session is a secret of its client, so the store gets a keyed digest of it. The row is sealed, and bound to
that digest, to the endpoint and to the access token. Who can write to the database, but does not have the key, can make
no session; only end sessions, and for an hour put back one that has ended. An id that was not made with the key is
never looked up.
"""

from __future__ import annotations

import base64
import math
import secrets
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import suppress
from hmac import compare_digest
from itertools import islice
from typing import TYPE_CHECKING

import msgspec
import trio
from msgspec import Struct

from host.journal import Event, SessionsNotStored
from host.seal import InvalidSeal, Seal
from host.source import Endpoint
from host.storage.sql import Store, Transaction
from host.storage.store import StateError, StoredSession, TrimPlace

if TYPE_CHECKING:
    from host.fleet.tokens import Homes

IDLE_TIMEOUT = 3600.0
"""Seconds after which an unused session may be removed, here and in the store."""
TOUCH_INTERVAL = 300.0
"""Seconds of use after which the row of a session is written again, so that it does not expire. As long before its time
a session can be forgotten that its process did not end itself."""
ROWS_PER_SESSION = 2
"""Rows for each session that a process may have open: also those that it has given up, or not opened anew yet."""
MAX_OPENING = 64 * 1024
"""Bytes of what is stored of one session. One with more (it watches hundreds of resources) ends with its process."""
BATCH = 50
"""Rows that are sealed and written at once, in about a millisecond of the event loop."""
PAUSE = 0.02
"""Seconds between two batches: many sessions that are opened in a moment are few transactions, each with a sync."""
CHANGE_INTERVAL = 0.5
"""Seconds between two batches of rows that are written again because their sessions have changed: a client may change
its subscriptions without end."""
RETRY_INTERVAL = 5.0
"""Seconds after which is tried again what could not be stored."""
TRIM_INTERVAL = 60.0
"""Seconds between two removals of rows that have expired or are too many."""
FLUSH_TIMEOUT = 2.0
"""Longest time, in seconds, that a host which stops takes to store when its sessions were used last."""
MAX_READS = 2
"""Rows that are read at once. Each takes a worker thread, of which other work needs some."""
READ_PATIENCE = 3.0
"""Seconds that a request waits for its turn to read."""
READ_PAUSE = 1.0
"""Seconds after a failure in which nothing is read: one takes a second of those who wait, and of decisions."""

_PURPOSE, _ID_PURPOSE, _ROW_PURPOSE = "session", "session id", "session row"
_RANDOM_BYTES, _MARK_BYTES = 18, 6
_RANDOM_LENGTH, _ID_LENGTH = 24, 32


class SessionOpening(Struct, frozen=True, omit_defaults=True):
    """The statements of a client with which another process can open its session anew. A row of another version of
    Colonnade may have other members."""

    revision: str
    """The negotiated one."""
    client: str
    capabilities: str
    """The declared capabilities of the client, as JSON."""
    server: str | None = None
    view: str = ""
    caller: str = ""
    identity: str | None = None
    level: str | None = None
    watched: tuple[str, ...] = ()
    """The URIs of the resources that it has subscribed to, as it knows them."""
    token: str = ""
    """The fingerprint of its access token, which has the name `identity`."""

    def is_of(self, endpoint: Endpoint, identity: str | None) -> bool:
        """Whether the session is one of this endpoint and identity."""
        return Endpoint(self.server, self.view, self.caller) == endpoint and self.identity == identity


_decoder = msgspec.json.Decoder(SessionOpening)

Describe = Callable[[str], tuple[SessionOpening | None, float] | None]
"""The opening of a session, and the Unix time at which it was used last. The opening is None if no other process could
go on with the session; all is None if there is no such session any more."""


class StoredSessions:
    """The rows of the sessions of one configuration. `run` must run beside it.

    Args:
        seal: with a key that outlives the process.
        most_sessions: how many may be open at once.
        note: told once that rows cannot be stored, until they can.
        now: clock with Unix time: in a fleet that of the store, since a process removes the rows of all.
        homes: in a fleet, ids name the process that has made them.

    Attributes:
        fingerprint_of: the fingerprint of the access token that has a name now; empty if there is none.
        processes: how many processes store their sessions there.
    """

    def __init__(
        self,
        store: Store,
        seal: Seal,
        most_sessions: int,
        note: Callable[[Event], object],
        now: Callable[[], float] = time.time,
        homes: Homes | None = None,
    ) -> None:
        self._homes = homes
        self.fingerprint_of: Callable[[str | None], str] = lambda identity: ""
        self.processes: Callable[[], int] = lambda: 1
        self.now = now
        self._store = store
        self._seal = seal
        self._most = ROWS_PER_SESSION * most_sessions
        self._note = note
        self._touched: dict[str, float] = {}
        """The last use that the row of a session says, for each that has one as far as is known here."""
        self._writing: Mapping[str, StoredSession] = {}
        """The first rows of sessions that are being written."""
        self._renewing: Mapping[str, StoredSession] = {}
        """Later ones."""
        self._unsure: set[str] = set()
        """Sessions whose first row may be stored: no answer of the store came."""
        self._due: dict[str, None] = {}
        """Sessions whose rows are to be written."""
        self._changed: dict[str, None] = {}
        """Sessions with a row that have changed since; `_due` from `_changes_due_at` on."""
        self._changes_due_at = -math.inf
        self._left: dict[str, tuple[SessionOpening | None, float]] = {}
        """Sessions that were given up before their rows were written."""
        self._removed: dict[str, None] = {}
        """Digests of sessions that have ended for good and still may have a row."""
        self._some = trio.Event()
        self._reads = trio.Semaphore(MAX_READS)
        self._read_again_at = -math.inf
        self._trimmed_at = 0.0
        self._trimming: TrimPlace | None = None
        """The place of the next step of a removal; None between two of them."""
        self.is_failing = False
        """Whether rows could not be stored when that was tried last."""

    # Ids

    def new_id(self) -> str:
        """A new id: 144 random bits, and 48 that only the key can make of them."""
        random = base64.urlsafe_b64encode(secrets.token_bytes(_RANDOM_BYTES)).decode()
        id = random + next(self._marks(random))
        return id if self._homes is None else self._homes.name(id)

    def _marks(self, random: str) -> Iterator[str]:
        for digest in self._seal.digests(_ID_PURPOSE, random.encode()):
            yield base64.urlsafe_b64encode(digest[:_MARK_BYTES]).decode()

    def _is_made_with_key(self, id: str) -> bool:
        if self._homes is not None:
            found = self._homes.read(id)
            if found is None:
                return False
            id = found.token
        if len(id) != _ID_LENGTH or not id.isascii():
            return False
        random, mark = id[:_RANDOM_LENGTH], id[_RANDOM_LENGTH:]
        return any(compare_digest(each, mark) for each in self._marks(random))

    def digests(self, id: str) -> Iterator[str]:
        """The ids that the row of a session may have in the store, by the key in use first."""
        for digest in self._seal.digests(_ROW_PURPOSE, id.encode()):
            yield digest.hex()

    # Events of sessions; none of these waits

    def note(self, id: str) -> None:
        """The session was opened, or its opening has changed: its row is written soon."""
        if id in self._touched:
            self._changed[id] = None
            self._some.set()
        else:
            self._write_soon(id)

    def _write_soon(self, id: str) -> None:
        self._changed.pop(id, None)
        self._due[id] = None
        self._some.set()

    def touch(self, id: str, used: float) -> None:
        """The session was used last at this Unix time, which its row says soon if it says another one."""
        if used - self._touched.get(id, used) > TOUCH_INTERVAL:
            self.note(id)

    def take_over(self, id: str) -> None:
        """The session was opened anew."""
        if self._left.pop(id, None) is None:
            self._touched[id] = 0.0
        self._write_soon(id)

    def give_up(self, id: str, opening: SessionOpening | None, used: float) -> None:
        """The session has ended here, with this opening and last use. Its row stays, or is written soon: as long as it
        holds, the session can be opened anew."""
        if id in self._due or id in self._changed or used > self._touched.get(id, -math.inf):
            self._left[id] = self._with_token(opening), used
            self._write_soon(id)
        else:
            self._touched.pop(id, None)

    def has_row(self, id: str) -> bool:
        """Whether the session has a row, as far as is known here."""
        return id in self._touched and id not in self._writing

    def is_written(self, id: str) -> bool:
        """Whether the row of a session says what another process needs, as far as is known here."""
        waiting = self._due, self._changed, self._writing, self._renewing
        return id in self._touched and not any(id in each for each in waiting)

    def forget(self, id: str) -> None:
        """The session, and its row, are those of another process by now."""
        self._due.pop(id, None)
        self._changed.pop(id, None)
        self._touched.pop(id, None)
        self._unsure.discard(id)

    def end(self, id: str) -> None:
        """The session has ended for good: it cannot be opened anew from now on, and its row is removed soon."""
        self._due.pop(id, None)
        self._changed.pop(id, None)
        self._left.pop(id, None)
        if self._touched.pop(id, None) is not None or id in self._unsure:  # else there is no row
            self._unsure.discard(id)
            self._removed |= dict.fromkeys(self.digests(id))
            self._some.set()

    # Waiting for the store

    async def wait_removed(self, id: str) -> None:
        """Wait until a session that has ended for good has no row any more.

        Raises:
            StateError: its row cannot be removed now. It will be, unless this process ends before.
        """
        digests = [each for each in self.digests(id) if each in self._removed]
        if digests:
            await self._store.write(lambda transaction: transaction.remove_sessions(digests))
            for each in digests:
                self._removed.pop(each, None)

    async def find(self, id: str) -> SessionOpening | None:
        """The opening of a session that is not open here; None if there is none, or not for the access token that has
        its name now.

        Raises:
            StateError: the store cannot be read now.
        """
        if not self._is_made_with_key(id) or self._store.problem is not None:
            return None
        if id in self._left:
            return self._valid(self._left[id][0])
        for digest in self.digests(id):
            if digest in self._removed:
                return None
            row = await self._read(digest)
            if row is None:
                continue
            await self._seal.ready()
            try:
                opening = _decoder.decode(self._seal.unseal(_PURPOSE, digest.encode(), row.sealed))
            except (InvalidSeal, msgspec.DecodeError):
                return None
            return None if digest in self._removed else self._valid(opening)
        return None

    async def _read(self, digest: str) -> StoredSession | None:
        with trio.move_on_after(READ_PATIENCE) as waiting:
            await self._reads.acquire()
        if waiting.cancelled_caught:
            raise StateError("the store is read too slowly")
        try:
            if trio.current_time() < self._read_again_at:
                raise StateError("the store could not be read a moment ago")
            try:
                return await self._store.read_session(digest)
            except StateError:
                self._read_again_at = trio.current_time() + READ_PAUSE
                raise
        finally:
            self._reads.release()

    def _valid(self, opening: SessionOpening | None) -> SessionOpening | None:
        is_valid = opening is not None and opening.token == self.fingerprint_of(opening.identity)
        return opening if is_valid else None

    async def run(self, describe: Describe, ids: Callable[[], Iterable[str]]) -> None:
        """Write the rows, until cancelled; then those of all sessions that were used since they were written.

        Args:
            describe: describes a session by its id.
            ids: the ids of all sessions.
        """
        try:
            while True:
                with trio.move_on_at(self._changes_due_at if self._changed else math.inf):
                    await self._some.wait()
                self._some = trio.Event()
                if self._changed and trio.current_time() >= self._changes_due_at:
                    self._changes_due_at = trio.current_time() + CHANGE_INTERVAL
                    self._take_changes()
                await self._seal.ready()
                is_stored = await self._write(describe, list(islice(self._due, BATCH)))
                if is_stored:
                    await self._trim()
                if self._due or self._removed or self._trimming is not None:
                    self._some.set()
                await trio.sleep(PAUSE if is_stored else RETRY_INTERVAL)
        finally:
            with trio.move_on_after(FLUSH_TIMEOUT) as scope:
                scope.shield = True
                self._take_changes()
                await self._write(describe, list(ids()))

    def _take_changes(self) -> None:
        self._due |= self._changed
        self._changed = {}

    async def _write(self, describe: Describe, ids: Iterable[str]) -> bool:
        """Write the rows of these sessions, and remove what is to be removed. False if that cannot be stored now."""
        new, renewed = dict[str, StoredSession](), dict[str, StoredSession]()
        left, now = dict[str, tuple[SessionOpening | None, float]](), self.now()
        for id in ids:
            is_due = self._due.pop(id, "") is None
            if id in self._left:
                left[id] = self._left[id]
            if (described := left.get(id) or describe(id)) is None:
                continue
            opening, used = described
            if not is_due and used <= self._touched.get(id, -math.inf):
                continue
            row = self._row(id, opening if id in left else self._with_token(opening), used, now)
            if row is None:
                self.end(id)
                continue
            (renewed if id in self._touched else new)[id] = row
            self._touched[id] = used
        removed = list(self._removed)

        def change(transaction: Transaction) -> None:
            transaction.put_sessions(new.values())
            transaction.renew_sessions(renewed.values())
            transaction.remove_sessions(removed)

        if not (new or renewed or removed):
            return True
        is_stored, self._writing, self._renewing = False, new, renewed
        try:
            await self._store.write(change)
            is_stored, self.is_failing = True, False
        except StateError as problem:
            if not self.is_failing:
                self.is_failing = True
                self._note(SessionsNotStored(str(problem)))
            return False
        finally:
            self._writing = self._renewing = {}
            if not is_stored:
                for id in new:
                    if self._touched.pop(id, None) is not None:  # else it has ended, and its row is removed
                        self._unsure.add(id)
                self._due |= dict.fromkeys((*new, *renewed))
        self._unsure.difference_update(new)
        for each in removed:
            self._removed.pop(each, None)
        for id, described in left.items():
            if self._left.get(id) is described:  # else it was opened anew meanwhile, or ended for good
                del self._left[id]
                self._touched.pop(id, None)
        return True

    async def _trim(self) -> None:
        """Remove rows that have expired or are too many, now and then, step by step: alone, since a step may take too
        long, and what was stored stays stored."""
        now, place = self.now(), self._trimming
        if place is None:
            if 0 <= now - self._trimmed_at <= TRIM_INTERVAL:  # a clock may be set back
                return
            self._trimmed_at, place = now, TrimPlace()
        most, used_before, self._trimming = self._most * self.processes(), now - IDLE_TIMEOUT, None
        with suppress(StateError):
            self._trimming = await self._store.write(
                lambda transaction: transaction.trim_sessions(most, used_before, place)
            )

    def _row(self, id: str, opening: SessionOpening | None, used: float, now: float) -> StoredSession | None:
        """The row of a session; None if it can have none."""
        content = b"" if opening is None else msgspec.json.encode(opening)
        lifetime = used + IDLE_TIMEOUT - now
        if not 0 < len(content) <= MAX_OPENING or lifetime <= 0:
            return None
        digest = next(self.digests(id))
        return StoredSession(digest, self._seal.seal(_PURPOSE, digest.encode(), content, lifetime), used)

    def _with_token(self, opening: SessionOpening | None) -> SessionOpening | None:
        return opening and msgspec.structs.replace(opening, token=self.fingerprint_of(opening.identity))
