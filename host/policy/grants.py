"""Grants: permissions that people gave for more than the moment of their answer.

A grant is bound to the caller, to the server's launch identity, to a definition, to the rule that asked, and to
arguments or conditions on them; a call must match all of these. Grants for a time and for always are stored, and shared
by several hosts. Grants for one call or one session are in memory only, so that no crash gives them a second use.

This module decides whether a call has a grant. It asks nobody; in doubt there is none.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Hashable
from enum import StrEnum
from math import inf

import msgspec
from msgspec import Struct

from config import Condition
from host.policy.conditions import conditions_hold
from host.source import EntryRef
from host.storage.sql import Store, Transaction
from host.storage.store import StateError, StoredGrant, uptime
from host.subject import Subject


class Scope(StrEnum):
    """How long a grant holds."""

    ONCE = "once"
    SESSION = "session"
    TIME = "time"
    ALWAYS = "always"


_STORED = (Scope.TIME, Scope.ALWAYS)
_BREADTH = {scope: at for at, scope in enumerate(Scope)}


class AccessRequest(Struct, frozen=True):
    """A call that grants are for, or a server request.

    `arguments`: decoded. `retry`: the call continues one that was sent before. `ref`: the entry by its source, whose
    definition has the fingerprint; None for a server request. `through`: see `Exchange.through`.
    """

    subject: Subject
    arguments: object
    retry: bool = False
    ref: EntryRef | None = None
    through: str = ""


class Grant(Struct, frozen=True):
    """A permission that a person gave for a subject.

    `when`: conditions on the arguments, if the subject is not bound to exact ones. `made` and `expires` are Unix time.
    `by`: the channel of the answer. A grant with `retry` is for continuing a call, not for beginning one.
    """

    id: str
    subject: Subject
    when: tuple[Condition, ...]
    scope: Scope
    made: float
    expires: float | None
    by: str
    retry: bool = False


def new_id() -> str:
    """A new unique id of a grant."""
    return secrets.token_hex(8)


class Grants:
    """The grants of one configuration.

    Args:
        store: for grants that outlive the process. The constructor reads it.
        wall: clock with Unix time.
        monotonic: clock that nobody can set back, and that goes on while the machine is suspended. A grant holds only
            while both clocks say so.

    Raises:
        StateError: the store cannot be read.
    """

    def __init__(
        self,
        store: Store,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = uptime,
    ) -> None:
        self._store = store
        self._wall = wall
        self._monotonic = monotonic
        self._own: dict[str, Grant] = {}
        """Grants in memory only."""
        self._stored: dict[str, Grant] = {}
        self._until: dict[str, float] = {}
        """Expiry of each grant by the monotonic clock, computed when this process first sees the grant."""
        self._reserved: set[str] = set()
        """Grants that are reserved for the one call that they were given to or found by."""
        self._gone: set[str] = set()
        """Grants that were revoked here. They do not hold in this process, stored or not."""
        self._unstored: set[str] = set()
        """Revoked grants that are still in the store."""
        self._seen = -1
        """Revision of the grants in `_stored`."""
        self._moved = False
        """Whether another process has granted or revoked something since the last call of `reread`."""
        self._unwritten: str | None = None
        self._take(*store.load_grants())
        self._moved = False

    @property
    def problem(self) -> str | None:
        """A sentence for people if stored grants do not hold because the store is unreliable, or if a revoked grant is
        still stored."""
        if self._store.problem is not None:
            return f"{self._store.problem}; no stored grant holds until then"
        if not self._store.is_reliable:
            return f"{self._store.trouble}; no stored grant holds while that is so"
        return self._unwritten

    def now(self) -> float:
        """The Unix time that counts for grants: that of the store, which is one for all processes of a fleet."""
        return self._wall()

    async def add(self, grant: Grant) -> None:
        """Add a grant. It holds when this returns, if both clocks agree. Waits only for one that is stored.

        Raises:
            ValueError: inconsistent scope: a grant for a session without session, for a time without end, or a lasting
                one bound to a session.
            StateError: it cannot be stored, and does not hold.
        """
        if grant.scope not in _STORED:
            self.keep(grant)
            return
        if grant.subject.session is not None:
            raise ValueError(f"a grant for {grant.scope} is of no session")
        if grant.scope is Scope.TIME and grant.expires is None:
            raise ValueError(f"a grant for {grant.scope} does not say for how long")
        await self._store_changes(grant)
        self._stored[grant.id] = grant
        self._until[grant.id] = self._end_of(grant)

    def keep(self, grant: Grant) -> None:
        """`add` for a grant for one call or session, which is in memory only."""
        if grant.scope is Scope.SESSION and grant.subject.session is None:
            raise ValueError(f"a grant for {grant.scope} does not say for how long")
        self._own[grant.id] = grant
        self._until[grant.id] = self._end_of(grant)

    def find(self, access: AccessRequest) -> Grant | None:
        """The narrowest grant that fits and holds: exact arguments before conditions before any arguments, and the
        shortest scope first."""
        self._refresh()
        fitting = [grant for grant in self.all() if grant.id not in self._reserved and self._fits(grant, access)]
        return min(fitting, key=_breadth, default=None)

    def reserve(self, grant: Grant) -> None:
        """Reserve a grant for one call, so that no other call finds it until it is used or released."""
        if grant.scope is Scope.ONCE:
            self._reserved.add(grant.id)

    def release(self, grant: Grant) -> None:
        """End the reservation of a grant, used or not."""
        self._reserved.discard(grant.id)

    def use(self, grant: Grant, access: AccessRequest) -> bool:
        """Spend the grant on the call, immediately before the call is sent. False if it is gone, expired, or does not
        fit: the call must not be sent."""
        self._refresh()
        if not self._fits(grant, access):
            return False
        if grant.scope is Scope.ONCE:
            del self._own[grant.id]
            self._reserved.discard(grant.id)
        return True

    def all(self) -> list[Grant]:
        """All grants that were not revoked, spent or removed, including expired ones."""
        stored = self._stored.values() if self._store.is_reliable else ()
        return [*self._own.values(), *stored]

    def why_unusable(self, grant: Grant) -> str | None:
        """The reason why the grant does not hold, as a sentence; None if it holds."""
        if self._own.get(grant.id, self._stored.get(grant.id)) != grant:
            return "it is not there any more"
        if grant.scope in _STORED and not self._store.is_reliable:
            return "the database that it is in cannot be relied on at the moment"
        now = self._wall()
        if not grant.made <= now + self._store.lag:
            return "it was made in the future: the clock of this machine was set back"
        if (grant.expires is not None and not now < grant.expires) or not self._monotonic() < self._until[grant.id]:
            return "its time is over"
        return None

    def withdraw(self, grant: Grant) -> None:
        """Remove an unused grant for one call or session."""
        self._own.pop(grant.id, None)

    async def revoke(self, id: str) -> bool:
        """Revoke a grant; False if there is none of that id. In this process it ends before this waits.

        Raises:
            StateError: it cannot be removed from the store: other processes, and this one after a restart, may still
                use it.
        """
        is_current = self._refresh()
        if self._own.pop(id, None) is not None:
            return True
        if id not in self._stored and not is_current:
            await self._read()  # another process may just have stored it
        if id not in self._stored:
            return False
        self._drop([id])
        await self.store_revocations()
        return True

    def end_session(self, session: Hashable) -> None:
        """Remove the grants of one session, which has ended."""
        self._own = {id: grant for id, grant in self._own.items() if grant.subject.session != session}

    def revoke_unless(self, keeps: Callable[[Grant], bool]) -> list[Grant]:
        """Revoke all grants that `keeps` rejects, and return them. `store_revocations` removes them from the store."""
        self._refresh()
        void = [grant for grant in self.all() if not keeps(grant)]
        for grant in void:
            self._own.pop(grant.id, None)
        self._drop([grant.id for grant in void if grant.id in self._stored])
        return void

    async def store_revocations(self) -> None:
        """Remove the grants that were revoked here from the store.

        Raises:
            StateError: the store cannot be written; the call can be repeated.
        """
        if self._unstored:
            await self._store_changes(None)

    async def _store_changes(self, grant: Grant | None) -> None:
        """Store this grant, and remove revoked and expired ones."""
        revoked, now = frozenset(self._unstored), self._wall()

        def change(transaction: Transaction) -> None:
            transaction.remove_grants(revoked, now)
            if grant is not None:
                transaction.put_grant(stored_form(grant))

        try:
            await self._store.write(change)
        except StateError as problem:
            if revoked:
                self._unwritten = f"{problem}; grants that were taken back are still stored"
            raise
        self._unstored -= revoked
        self._unwritten = None
        self._refresh()

    def reread(self) -> bool:
        """Read the grants that other processes have stored or revoked; return whether there were any since the last
        call. Costs next to nothing otherwise."""
        self._refresh()
        moved, self._moved = self._moved, False
        return moved

    def _refresh(self) -> bool:
        """Take over the stored grants. False if the store cannot be read at once: then the last read grants hold as
        long as `Store.is_reliable` says."""
        revision = self._store.poll().grants
        if revision != self._seen:
            try:
                self._take(self._store.read_grants(), revision)
            except StateError:
                return False
        return self._store.is_current

    async def _read(self) -> None:
        """Read the stored grants, waiting if another process has locked the store.

        Raises:
            StateError: the store cannot be read.
        """
        await self._store.write(
            lambda transaction: transaction.grants(), lambda grants, revisions: self._take(grants, revisions.grants)
        )

    def _take(self, stored: list[StoredGrant], revision: int) -> None:
        found = [_read(grant) for grant in stored]
        self._seen, self._moved = revision, True
        self._stored = {grant.id: grant for grant in found if grant is not None and grant.id not in self._gone}
        for id, grant in self._stored.items():
            if id not in self._until:
                self._until[id] = self._end_of(grant)

    # Matching a grant with a call

    def _fits(self, grant: Grant, access: AccessRequest) -> bool:
        return (
            grant.subject.covers(access.subject)
            and (access.retry or not grant.retry)
            and self.why_unusable(grant) is None
            and _true(grant.when, access.arguments)
        )

    def _end_of(self, grant: Grant) -> float:
        """Expiry by the monotonic clock. For a grant from another process, or from before a restart, the wall clock is
        trusted once."""
        left = inf if grant.expires is None else grant.expires - max(self._wall(), grant.made)
        return self._monotonic() + left

    def _drop(self, ids: list[str]) -> None:
        self._gone.update(ids)
        self._unstored.update(ids)
        for id in ids:
            del self._stored[id]


def _true(when: tuple[Condition, ...], arguments: object) -> bool:
    """Whether all conditions surely hold. A check of an unknown kind, stored by another version, does not."""
    try:
        return not when or conditions_hold(when, arguments) is True
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return False


def _breadth(grant: Grant) -> tuple[int, int, int, float, str]:
    bound = 0 if grant.subject.digest is not None else 1 if grant.when else 2
    return (bound, _BREADTH[grant.scope], -len(grant.when), grant.made, grant.id)


def _read(stored: StoredGrant) -> Grant | None:
    """The grant; None if this version does not understand it, so that it does not hold."""
    try:
        when = msgspec.json.decode(stored.conditions, type=tuple[Condition, ...])
        scope = Scope(stored.scope)
    except (msgspec.DecodeError, ValueError):
        return None
    grant = Grant(stored.id, stored.subject, when, scope, stored.made, stored.expires, stored.by, stored.retry)
    is_whole = grant.scope is Scope.ALWAYS or (grant.scope is Scope.TIME and grant.expires is not None)
    return grant if is_whole else None


def stored_form(grant: Grant) -> StoredGrant:
    """The grant as the store keeps it."""
    conditions = msgspec.json.encode(grant.when).decode()
    return StoredGrant(
        grant.id, grant.subject, conditions, grant.scope, grant.made, grant.expires, grant.by, grant.retry
    )
