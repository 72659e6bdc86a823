"""Grants: the answers of people that stand for more than the moment they were given in.

A grant is bound to whoever called, to the server as it is started, to a definition, to the rule that asked, and to
arguments or to conditions on them; it fits a call in all of these or not at all. Those for a time and for always are
kept in a store that several hosts share. Those for one call or one session are in memory only, so that nothing that
ends the process gives anybody a second use.

This file decides whether a call has a grant. It asks nobody, and where it cannot tell, there is none.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from enum import StrEnum
from math import inf

import msgspec

from config import Condition
from host.policy.conditions import conditions_hold
from host.slices import Steps, run_inline
from host.storage.store import StateError, Store, StoredGrant, Transaction


class Scope(StrEnum):
    """How long a grant is good for."""

    ONCE = "once"
    SESSION = "session"
    TIME = "time"
    ALWAYS = "always"


_STORED = (Scope.TIME, Scope.ALWAYS)
_BREADTH = {scope: at for at, scope in enumerate(Scope)}


@dataclass(frozen=True, slots=True)
class AccessRequest:
    """A call, as far as grants are about it.

    `caller` is the name of its token; callers without one are all one. `kind` is that of the entry, or of what the
    server asks for: `sampling`, `form`, `url`, `roots`. `digest` is that of the arguments, `arguments` are the decoded
    ones. `retry`: it goes on with a call that was sent to its server before.
    """

    caller: str | None
    session: Hashable | None
    server: str
    kind: str
    name: str
    fingerprint: str
    launch: str
    rule: str
    digest: str
    arguments: object
    retry: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """A permission that a person gave. Fields that an access request has too must be equal to those of the call.

    `session`: None, unless it is good in that one only. `digest`: None if it is not bound to exact arguments; `when`:
    conditions that they have to meet. `made` and `expires` are Unix time. `by`: where it was given. With `retry` it is
    good for going on with a call, and not for beginning one.
    """

    id: str
    caller: str | None
    session: Hashable | None
    server: str
    kind: str
    name: str
    fingerprint: str
    launch: str
    rule: str
    digest: str | None
    when: tuple[Condition, ...]
    scope: Scope
    made: float
    expires: float | None
    by: str
    retry: bool = False


def new_id() -> str:
    """A name for a grant that no other has."""
    return secrets.token_hex(8)


class Grants:
    """The grants of one configuration.

    Args:
        store: where those are that outlive the process. It is read here.
        wall: Unix time.
        monotonic: seconds that nobody can set back; both clocks have to say that a grant is not over.

    Raises:
        StateError: the store cannot be read.
    """

    def __init__(
        self,
        store: Store,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._store = store
        self._wall = wall
        self._monotonic = monotonic
        self._own: dict[str, Grant] = {}
        """In memory only."""
        self._stored: dict[str, Grant] = {}
        self._until: dict[str, float] = {}
        """When each is over by the monotonic clock, reckoned when it was first seen here."""
        self._reserved: set[str] = set()
        """On their way to the one call that they were given for, or found for."""
        self._gone: set[str] = set()
        """Grants that were revoked here. They do not hold in this process, stored or not."""
        self._unstored: set[str] = set()
        """Those of them that are in the store still."""
        self._seen = -1
        """The revision of the grants that `_stored` is of."""
        self._moved = False
        """Whether another process has granted or taken back something since this was last asked."""
        self._unwritten: str | None = None
        run_inline(self._read())
        self._moved = False

    @property
    def problem(self) -> str | None:
        """A sentence for people if stored grants do not hold since the store cannot be relied on, or if one that was
        taken back is stored still."""
        if self._store.problem is not None:
            return f"{self._store.problem}; no stored grant holds until then"
        if not self._store.is_reliable:
            return "the database is locked by another process; no stored grant holds while it is"
        return self._unwritten

    def add(self, grant: Grant) -> Steps[None]:
        """Add a grant. It holds when the steps end, if both clocks agree.

        Raises:
            ValueError: one for a session without a session, for a time without an end, or for longer than a session in
                one only.
            StateError: it cannot be stored, and does not hold.
        """
        if (grant.scope is Scope.SESSION and grant.session is None) or (
            grant.scope is Scope.TIME and grant.expires is None
        ):
            raise ValueError(f"a grant for {grant.scope} does not say for how long")
        if grant.scope in _STORED:
            if grant.session is not None:
                raise ValueError(f"a grant for {grant.scope} is of no session")
            yield from self._store_changes(grant)
            self._stored[grant.id] = grant
        else:
            self._own[grant.id] = grant
        self._until[grant.id] = self._end_of(grant)

    def find(self, access: AccessRequest) -> Grant | None:
        """The narrowest live grant that fits: exact arguments before conditions before any, and the shortest first."""
        self._refresh()
        fitting = [grant for grant in self.all() if grant.id not in self._reserved and self._fits(grant, access)]
        return min(fitting, key=_breadth, default=None)

    def reserve(self, grant: Grant) -> None:
        """One for a single call is on its way to it: nobody else finds it, until it is used or released."""
        if grant.scope is Scope.ONCE:
            self._reserved.add(grant.id)

    def release(self, grant: Grant) -> None:
        """End the reservation of a grant, used or not."""
        self._reserved.discard(grant.id)

    def use(self, grant: Grant, access: AccessRequest) -> bool:
        """Spend the grant on the call, right before it is sent. False if it is not there any more, not live, or not for
        this call: then the call is not to be sent."""
        self._refresh()
        if not self._fits(grant, access):
            return False
        if grant.scope is Scope.ONCE:
            del self._own[grant.id]
            self._reserved.discard(grant.id)
        return True

    def all(self) -> list[Grant]:
        """All that were not taken back, used up or cleared away, live or not."""
        stored = self._stored.values() if self._store.is_reliable else ()
        return [*self._own.values(), *stored]

    def why_unusable(self, grant: Grant) -> str | None:
        """Why the grant is not live, as a sentence; None if it is."""
        if self._own.get(grant.id, self._stored.get(grant.id)) != grant:
            return "it is not there any more"
        if grant.scope in _STORED and not self._store.is_reliable:
            return "the database that it is in cannot be relied on at the moment"
        now = self._wall()
        if not grant.made <= now:
            return "it was made in the future: the clock of this machine was set back"
        if (grant.expires is not None and not now < grant.expires) or not self._monotonic() < self._until[grant.id]:
            return "its time is over"
        return None

    def withdraw(self, grant: Grant) -> None:
        """A grant for one call or session, which nobody has used, is none any more."""
        self._own.pop(grant.id, None)

    def revoke(self, id: str) -> Steps[bool]:
        """Take a grant back; False if there is none of that id. In this process it does not hold from the first step.

        Raises:
            StateError: it cannot be taken out of the store: others may use it, and so may this one after a restart.
        """
        is_current = self._refresh()
        if self._own.pop(id, None) is not None:
            return True
        if id not in self._stored and not is_current:
            yield from self._read()  # another process may just have given it
        if id not in self._stored:
            return False
        self._drop([id])
        yield from self.store_revocations()
        return True

    def end_session(self, session: Hashable) -> None:
        """Remove the grants of one session, which has ended."""
        self._own = {id: grant for id, grant in self._own.items() if grant.session != session}

    def revoke_unless(self, keeps: Callable[[Grant], bool]) -> list[Grant]:
        """Take back all that are not to be kept; these. `store_revocations` takes them out of the store."""
        self._refresh()
        void = [grant for grant in self.all() if not keeps(grant)]
        for grant in void:
            self._own.pop(grant.id, None)
        self._drop([grant.id for grant in void if grant.id in self._stored])
        return void

    def store_revocations(self) -> Steps[None]:
        """Take out of the store what was taken back here and is still in it.

        Raises:
            StateError: that is not possible; it can be tried again.
        """
        if self._unstored:
            yield from self._store_changes(None)

    def _store_changes(self, grant: Grant | None) -> Steps[None]:
        """Store this grant, and take out what was taken back and what has expired."""
        revoked, now = frozenset(self._unstored), self._wall()

        def change(transaction: Transaction) -> None:
            transaction.remove_grants(revoked, now)
            if grant is not None:
                transaction.put_grant(_stored(grant))

        try:
            yield from self._store.write(change)
        except StateError as problem:
            if revoked:
                self._unwritten = f"{problem}; grants that were taken back are still stored"
            raise
        self._unstored -= revoked
        self._unwritten = None
        self._refresh()

    def reread(self) -> bool:
        """See what other processes have granted or taken back; whether they did since this was last asked. Costs next
        to nothing if not."""
        self._refresh()
        moved, self._moved = self._moved, False
        return moved

    def _refresh(self) -> bool:
        """Take up what is stored now; False if it cannot be read at once. Then what was read last holds as long as
        `Store.is_reliable` says."""
        revision = self._store.poll().grants
        if revision != self._seen:
            try:
                self._take(self._store.read_grants(), revision)
            except StateError:
                return False
        return self._store.is_current

    def _read(self) -> Steps[None]:
        """The same, waiting for whoever has the store locked.

        Raises:
            StateError: it cannot be read.
        """
        yield from self._store.write(
            lambda transaction: transaction.grants(), lambda grants, revisions: self._take(grants, revisions.grants)
        )

    def _take(self, stored: list[StoredGrant], revision: int) -> None:
        found = [_read(grant) for grant in stored]
        self._seen, self._moved = revision, True
        self._stored = {grant.id: grant for grant in found if grant is not None and grant.id not in self._gone}
        for id, grant in self._stored.items():
            if id not in self._until:
                self._until[id] = self._end_of(grant)

    # Whether a grant is one for this call

    def _fits(self, grant: Grant, access: AccessRequest) -> bool:
        return (
            (grant.server, grant.kind, grant.name) == (access.server, access.kind, access.name)
            and (grant.caller, grant.rule) == (access.caller, access.rule)
            and (grant.fingerprint, grant.launch) == (access.fingerprint, access.launch)
            and grant.session in (None, access.session)
            and (access.retry or not grant.retry)
            and grant.digest in (None, access.digest)
            and self.why_unusable(grant) is None
            and _true(grant.when, access.arguments)
        )

    def _end_of(self, grant: Grant) -> float:
        """By the monotonic clock. Where a grant comes from another process, or from before a start, the wall clock has
        to be believed once."""
        left = inf if grant.expires is None else grant.expires - max(self._wall(), grant.made)
        return self._monotonic() + left

    def _drop(self, ids: list[str]) -> None:
        self._gone.update(ids)
        self._unstored.update(ids)
        for id in ids:
            del self._stored[id]


def _true(when: tuple[Condition, ...], arguments: object) -> bool:
    """Whether conditions hold for sure. A check of an unknown kind, as another version may have stored, does not."""
    try:
        return not when or conditions_hold(when, arguments) is True
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return False


def _breadth(grant: Grant) -> tuple[int, int, int, float, str]:
    bound = 0 if grant.digest is not None else 1 if grant.when else 2
    return (bound, _BREADTH[grant.scope], -len(grant.when), grant.made, grant.id)


def _read(stored: StoredGrant) -> Grant | None:
    """The grant; None for one that this version does not understand: it does not hold."""
    fields = msgspec.structs.asdict(stored)
    try:
        when = msgspec.json.decode(fields.pop("conditions"), type=tuple[Condition, ...])
        grant = Grant(session=None, when=when, **{**fields, "scope": Scope(stored.scope)})
    except (msgspec.DecodeError, ValueError):
        return None
    is_whole = grant.scope is Scope.ALWAYS or (grant.scope is Scope.TIME and grant.expires is not None)
    return grant if is_whole else None


def _stored(grant: Grant) -> StoredGrant:
    conditions = msgspec.json.encode(grant.when).decode()
    return StoredGrant(
        conditions=conditions,
        **{name: getattr(grant, name) for name in StoredGrant.__struct_fields__ if name != "conditions"},
    )
