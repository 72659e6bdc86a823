"""Grants: the answers of people that stand for more than the moment they were given in.

A grant is bound to whoever called, to the server as it is started, to a definition, to the rule that asked, and to
arguments or to conditions on them; it fits a call in all of these or not at all. Those for a time and for always are
kept in a file that several hosts share. Those for one call or one session are in memory only, so that nothing that ends
the process gives anybody a second use.

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
from host.state import Corrupt, Shared, StateError

_VERSION = 1


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
    """What a person allowed. The fields that a wish has too must be the same in it.

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


class _Stored(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A grant in the file; it has no session."""

    id: str
    caller: str | None
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
    retry: bool


class _Content(msgspec.Struct, forbid_unknown_fields=True):
    version: int = _VERSION
    grants: list[_Stored] = []


class Grants:
    """The grants of one configuration.

    Args:
        file: where those are that outlive the process. It is read here.
        wall: Unix time.
        monotonic: seconds that nobody can set back; both clocks have to say that a grant is not over.
    """

    def __init__(
        self,
        file: Shared,
        *,
        wall: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._file = file
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
        """What was taken back here; it does not come back with a file that could not be written."""
        self._moved = False
        """Whether another process has changed the file since somebody asked."""
        self._broken: str | None = None
        self._unwritten: str | None = None
        self._take(file.read)

    @property
    def problem(self) -> str | None:
        """A sentence for people if the file cannot be read (then no grant holds) or written (then one that was taken
        back is in it still)."""
        return self._broken or self._unwritten

    def add(self, grant: Grant) -> None:
        """From now on it holds, if both clocks agree. For a file that cannot be read this begins a new one; the
        broken one is kept beside it.

        Raises:
            ValueError: one for a session without a session, for a time without an end, or for longer than a session in
                one only.
            StateError: it cannot be written down, and does not hold.
        """
        if (grant.scope is Scope.SESSION and grant.session is None) or (
            grant.scope is Scope.TIME and grant.expires is None
        ):
            raise ValueError(f"a grant for {grant.scope} does not say for how long")
        if grant.scope not in _STORED:
            self._own[grant.id] = grant
        elif grant.session is not None:
            raise ValueError(f"a grant for {grant.scope} is of no session")
        else:
            self._change(lambda grants: {**grants, grant.id: grant}, mend=True)
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
        """What it was reserved for did not come to use it, or did."""
        self._reserved.discard(grant.id)

    def use(self, grant: Grant, access: AccessRequest) -> bool:
        """Spend the grant on the call, right before it is sent. False if it is not there any more, not live, or not for
        this call: then the call is not to be sent."""
        self._refresh()
        if self._own.get(grant.id, self._stored.get(grant.id)) != grant or not self._fits(grant, access):
            return False
        if grant.scope is Scope.ONCE:
            del self._own[grant.id]
            self._reserved.discard(grant.id)
        return True

    def all(self) -> list[Grant]:
        """All that were not taken back, used up or cleared away, live or not."""
        return [*self._own.values(), *self._stored.values()]

    def why_unusable(self, grant: Grant) -> str | None:
        """Why the grant is not live, as a sentence; None if it is."""
        if self._own.get(grant.id, self._stored.get(grant.id)) != grant:
            return "it is not there any more"
        now = self._wall()
        if not grant.made <= now:
            return "it was made in the future: the clock of this machine was set back"
        if (grant.expires is not None and not now < grant.expires) or not self._monotonic() < self._until[grant.id]:
            return "its time is over"
        return None

    def revoke(self, id: str) -> bool:
        """Take a grant back; False if there is none of that id.

        Raises:
            StateError: it cannot be taken out of the file. It holds in this process no longer, but others may use it.
        """
        self._refresh()
        if self._own.pop(id, None) is not None:
            return True
        if id not in self._stored:
            return False
        self._drop([id])
        return True

    def end_session(self, session: Hashable) -> None:
        """Whatever was good in this session only is over."""
        self._own = {id: grant for id, grant in self._own.items() if grant.session != session}

    def revoke_unless(self, keeps: Callable[[Grant], bool]) -> list[Grant]:
        """Take back all that are not to be kept; these. What cannot be taken out of the file makes a `problem`."""
        self._refresh()
        void = [grant for grant in self.all() if not keeps(grant)]
        for grant in void:
            self._own.pop(grant.id, None)
        try:
            self._drop([grant.id for grant in void if grant.id in self._stored])
        except StateError as problem:
            self._unwritten = str(problem)
        return void

    def reread(self) -> bool:
        """See what other processes have granted or taken back; whether they did since this was last asked. Costs next
        to nothing if not."""
        self._refresh()
        moved, self._moved = self._moved, False
        return moved

    def _refresh(self) -> None:
        if self._file.changed():
            self._take(self._file.read)
            self._moved = True

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

    # The file

    def _take(self, read: Callable[[], object | None]) -> None:
        try:
            self._stored = {id: grant for id, grant in _read(read()).items() if id not in self._gone}
            self._broken = None
        except Corrupt as problem:
            if self._broken is None:
                self._own.clear()
            self._stored = {}
            self._broken = f"{problem}; no grant holds any more"
        for id, grant in self._stored.items():
            if id not in self._until:
                self._until[id] = self._end_of(grant)

    def _drop(self, ids: list[str]) -> None:
        if not ids:
            return
        self._gone.update(ids)
        for id in ids:
            del self._stored[id]
        self._change(lambda grants: {id: grant for id, grant in grants.items() if id not in self._gone})

    def _change(self, change: Callable[[dict[str, Grant]], dict[str, Grant]], *, mend: bool = False) -> None:
        """Write the file anew, without those whose time is over."""
        with self._file.updating() as update:
            if update.moved:
                self._take(update.read)
            if self._broken is not None:
                if not mend:
                    raise Corrupt(self._broken)
                update.set_aside()
            now = self._wall()
            changed = {
                id: grant for id, grant in change(self._stored).items() if grant.expires is None or now < grant.expires
            }
            update.write(_Content(grants=[_stored(grant) for grant in changed.values()]))
            self._stored = changed
            self._broken = self._unwritten = None


def _true(when: tuple[Condition, ...], arguments: object) -> bool:
    """Whether conditions hold for sure. A check of an unknown kind, as another version may have stored, does not."""
    try:
        return not when or conditions_hold(when, arguments) is True
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError, RecursionError):
        return False


def _breadth(grant: Grant) -> tuple[int, int, int, float, str]:
    bound = 0 if grant.digest is not None else 1 if grant.when else 2
    return (bound, _BREADTH[grant.scope], -len(grant.when), grant.made, grant.id)


def _read(found: object | None) -> dict[str, Grant]:
    """The grants in the file. Raises Corrupt if it has another form."""
    try:
        content = _Content() if found is None else msgspec.convert(found, _Content)
    except msgspec.ValidationError as problem:
        raise Corrupt(f"the file with the grants has another form: {problem}") from problem
    if content.version != _VERSION:
        raise Corrupt(f"the file with the grants is of version {content.version}, which is not known here")
    if any(
        grant.scope not in _STORED or (grant.scope is Scope.TIME and grant.expires is None) for grant in content.grants
    ):
        raise Corrupt("the file with the grants holds one that does not say for how long")
    return {grant.id: Grant(session=None, **msgspec.structs.asdict(grant)) for grant in content.grants}


def _stored(grant: Grant) -> _Stored:
    return _Stored(**{name: getattr(grant, name) for name in _Stored.__struct_fields__})
