"""The interface of the store: definitions and grants of one configuration, as the policy reads and changes them.

A store holds definitions (of each item that a server offers: what is approved, what is offered) and grants, and the
sessions that another process may go on with. Several processes share it. A change is one function that is given a
`Transaction`: all of it is on disk when `Store.write` returns, or none of it.

The event loop never waits for the disk or for the lock of another process: what is async waits in a worker thread, and
`poll` gives up at once where it would have to wait. Only `load_definitions` and `load_grants`, with which a command or
a host begins, wait where they are called.
"""

from __future__ import annotations

import math
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from host.subject import Subject

T = TypeVar("T")


def uptime() -> float:
    """Seconds that nobody can set back, with those in which the machine slept: what was read before counts no longer
    when it wakes. Neither `time.monotonic` nor the clock of trio has these: on Linux, CLOCK_MONOTONIC stands still
    meanwhile, and on macOS, where CLOCK_MONOTONIC goes on, both are mach_absolute_time, which does not. A virtual
    machine that its host stops may notice nothing by any clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StateError(Exception):
    """The state directory, or the database in it, cannot be used. The text is a sentence for the person who started
    the program."""


# Many of these are held, and none is part of a cycle: the garbage collector, which stops everything, need not look at
# them. None stands for a definition that was not kept, since it is too long.


class ApprovedDefinition(msgspec.Struct, frozen=True, gc=False):
    """The definition that was approved: JSON text in UTF-8, Unix time, and by whom."""

    fingerprint: str
    definition: bytes | None
    at: float
    by: str


class OfferedDefinition(msgspec.Struct, frozen=True, gc=False):
    """A definition that is offered, but not approved: JSON text in UTF-8, and since when, as Unix time."""

    fingerprint: str
    definition: bytes | None
    since: float


class StoredItem(msgspec.Struct, frozen=True, gc=False):
    """The state of one item (a tool, a prompt, ...) of a server."""

    approved: ApprovedDefinition | None = None
    offered: OfferedDefinition | None = None
    """The definition on offer, where that is not the approved one."""
    rejected: str | None = None
    """The fingerprint that a person rejected."""
    closed: bool = False
    """Nothing of this item is approved by first sight or trust: a person rejected it, or what was known is lost."""

    @property
    def is_spare(self) -> bool:
        """Whether no person ever decided about it. It may then be forgotten while it is not offered."""
        return self.approved is None and not self.closed

    @property
    def last(self) -> str | None:
        """The fingerprint that was offered last, as far as the store knows."""
        known = self.offered or self.approved
        return None if known is None else known.fingerprint


class StoredGrant(msgspec.Struct, frozen=True, gc=False):
    """A grant that outlives the process; its fields are those of `host.policy.grants.Grant`. `conditions` is JSON. The
    subject is of no session."""

    id: str
    subject: Subject
    conditions: str
    scope: str
    made: float
    expires: float | None
    by: str
    retry: bool


class Revisions(NamedTuple):
    """The number of changes of a configuration's definitions, of its grants, and of its credentials."""

    definitions: int = 0
    grants: int = 0
    credentials: int = 0


class CredentialKey(NamedTuple):
    """Identifies the credentials for one server. `owner`: the person whose they are; empty for those of the host
    itself, which serve all clients."""

    server: str
    owner: str = ""


class StoredCredential(NamedTuple):
    """The credentials for one server, from one issuer for one resource. `sealed` is for the holder of the key only;
    `revision` grows with each change."""

    resource: str
    issuer: str
    sealed: str
    revision: int = 0


class StoredDefinitions(NamedTuple):
    """Definitions as of a revision."""

    revision: int
    complete: bool
    """Whether `items` are all there are. If not, they are those that changed since the revision that was asked for."""
    items: dict[tuple[str, str], dict[str, StoredItem]]
    """By server and kind, then by name."""
    lost: str | None
    """Why what was approved is not known any more, as a sentence: then nothing is approved, until a person approves or
    rejects something."""
    closed_servers: frozenset[str]
    """Servers of which what was approved was once lost: for them there is no first sight any more."""
    unconfined: Mapping[str, bool]
    """Servers whose launch was approved before untrusted programs were confined; whether a person chose that they stay
    as they were."""


class RememberedServer(NamedTuple):
    """What a server said of itself when it was last connected."""

    identity: str
    """Identifies the configuration, launch and credentials with which it was connected."""
    negotiated: str
    """Its revision, capabilities and instructions, as JSON."""
    lists: Mapping[str, bytes]
    """Its lists by kind, in the writer's own form."""


class StoredSession(NamedTuple):
    """The opening of a session, with which another process goes on. The store can open nothing of it.

    `id` is a keyed digest of the session's id, which is a secret of its client; `sealed` is for the holder of the key
    only, and bound to `id`; `touched` is the Unix time at which the session was used, as far as this is noted.
    """

    id: str
    sealed: str
    touched: float


class TrimPlace(NamedTuple):
    """The place that a removal of sessions has come to: so many were looked at that stay, the last of which was used at
    that Unix time."""

    kept: int = 0
    used: float = math.inf


class Transaction(ABC):
    """The store within one transaction, in which no other process can change it. All changes are undone if the change
    function raises."""

    @abstractmethod
    def revision(self) -> int:
        """The revision of the definitions."""

    @abstractmethod
    def revisions(self) -> Revisions:
        """All revisions."""

    @abstractmethod
    def changed_since(self, revision: int, server: str, kind: str) -> bool:
        """Whether items of this kind were changed after that revision."""

    @abstractmethod
    def item(self, server: str, kind: str, name: str) -> StoredItem | None:
        """One item as it is stored."""

    @abstractmethod
    def put_items(self, server: str, kind: str, items: Mapping[str, StoredItem | None]) -> None:
        """Store these items by their names; None takes one out."""

    @abstractmethod
    def clear_lost(self) -> None:
        """Record that a person has seen that the approvals are lost, and decides again."""

    @abstractmethod
    def close_servers(self, servers: Iterable[str]) -> None:
        """End first sight for these servers."""

    @abstractmethod
    def put_unconfined(self, server: str, chosen: bool | None) -> None:
        """Store whether a person chose that a server stays unconfined; None: it is not among `unconfined` any more."""

    @abstractmethod
    def put_remembered(self, server: str, remembered: RememberedServer) -> None:
        """Store what a server said. Lists of kinds that are not among these stay as they are stored under its identity.
        Only the few identities of a server that were stored last are kept."""

    @abstractmethod
    def grants(self) -> list[StoredGrant]:
        """All grants."""

    @abstractmethod
    def put_grant(self, grant: StoredGrant) -> None:
        """Store this grant."""

    @abstractmethod
    def credential(self, key: CredentialKey) -> StoredCredential | None:
        """The credentials as they are stored."""

    @abstractmethod
    def put_credential(self, key: CredentialKey, credential: StoredCredential) -> StoredCredential:
        """Store credentials in the place of all that this key had, without a lease; gives them with their revision."""

    @abstractmethod
    def remove_credential(self, key: CredentialKey) -> None:
        """Remove the credentials of this key."""

    @abstractmethod
    def lease_credential(self, key: CredentialKey, holder: str, seconds: float) -> bool:
        """Let nobody else refresh the credentials for so long, by the clock of the store. False if another holder has
        that right now, or there are no credentials."""

    @abstractmethod
    def end_lease(self, key: CredentialKey, holder: str) -> None:
        """Give the right back, if this holder has it."""

    @abstractmethod
    def remove_grants(self, ids: frozenset[str], expired_at: float) -> None:
        """Remove the grants with these ids, and those that expired before that Unix time."""

    @abstractmethod
    def put_sessions(self, sessions: Iterable[StoredSession]) -> None:
        """Store these sessions, but none that is stored with a later use: another process has it by now. No revision
        grows by what becomes of sessions."""

    @abstractmethod
    def renew_sessions(self, sessions: Iterable[StoredSession]) -> None:
        """As `put_sessions`, of those that are stored: a session that another process has removed stays removed."""

    @abstractmethod
    def remove_sessions(self, ids: Iterable[str]) -> None:
        """Remove the sessions with these ids."""

    @abstractmethod
    def trim_sessions(self, most: int, used_before: float, place: TrimPlace) -> TrimPlace | None:
        """A step of the removal of sessions that were not used since that Unix time, and of the longest unused ones
        beyond `most`: it removes and looks at a bounded number. Returns the place of the next step, which is to be
        another transaction; None after the last one. Others may store sessions meanwhile."""


class StoredConfirmation(NamedTuple):
    """A question to people. `sealed` and `answer` are for the holder of the key only; `home` is the id of the process
    whose call waits, `expires` the Unix time at which it is forgotten. `answer`: empty until one was given."""

    id: str
    home: str
    sealed: str
    answer: str
    expires: float


class FleetTransaction(Transaction):
    """With the questions to people that the processes of a fleet share. What becomes of them moves the revision of the
    grants, so that each process hears of it."""

    @abstractmethod
    def put_confirmation(self, confirmation: StoredConfirmation) -> None:
        """Store a question in the place of that with its id; without effect if this has an answer."""

    @abstractmethod
    def answer_confirmation(self, id: str, answer: str) -> bool:
        """Answer a question. False if it has an answer, or is gone: of two answers one counts."""

    @abstractmethod
    def claim_confirmation(self, id: str) -> bool:
        """Remove a question that has an answer, which is then this process's to apply. False if another one has it."""

    @abstractmethod
    def withdraw_confirmation(self, id: str) -> bool:
        """Remove a question that has no answer. False if it has one, or is gone."""

    @abstractmethod
    def confirmations(self) -> list[StoredConfirmation]:
        """All questions. Those that are to be forgotten are removed."""


class Store(ABC):
    """The store of one configuration, shared with other processes.

    Attributes:
        problem: a sentence for people if the store cannot be relied on: it was removed, replaced or damaged. Then
            nothing in it holds, and every `write` is refused, until the host is started again; or, if `problem_ends`,
            until it can be read again.
        is_current: whether the last `poll` saw all that is stored. Where it could not, another process has the store
            locked, or was killed while it wrote; `read_definitions` waits for the one and puts the other right.
        trouble: the reason, as a part of a sentence, if the store is not reliable and there is no `problem`.
        lag: the most seconds by which `now` is behind the clock of the store. What another process has stored may have
            been made so much later than now, by the clock that both share.
        commits, commit_seconds: transactions of this process that were to change something, and the time that they
            took together.
    """

    problem: str | None = None
    problem_ends: bool = False
    is_current: bool = True
    trouble: str = "the database is locked by another process"
    lag: float = 0.0
    commits: int = 0
    commit_seconds: float = 0.0

    @abstractmethod
    def poll(self) -> Revisions:
        """The revisions now, or the last ones seen if they cannot be read at once. Some 10 µs; never waits."""

    @abstractmethod
    def now(self) -> float:
        """Unix time by the clock of the store, which all its processes share."""

    @property
    @abstractmethod
    def is_reliable(self) -> bool:
        """Whether what was read last still counts: False if there is a `problem`, or if no `poll` could read the store
        for `LOCKED_LIMIT` seconds."""

    @abstractmethod
    async def read_definitions(self, known: Callable[[], int] = lambda: -1) -> StoredDefinitions | None:
        """The definitions that changed after the known revision; all of them without one, and after 0. None if it is
        the present one, which costs next to nothing where this process stores nothing.

        `known` is called once all that this process has stored is announced (`write`), and no more of it is until
        this has returned. So what it stores itself is not read again, if `known` follows the revisions.

        Raises:
            StateError: they cannot be read.
        """

    @abstractmethod
    def load_definitions(self) -> StoredDefinitions:
        """All definitions, when a command begins: this thread waits. Raises as `read_definitions` does."""

    @abstractmethod
    async def read_remembered(self, server: str, identity: str) -> RememberedServer | None:
        """The lists and capabilities that are remembered of this server under this identity; None if there are none.

        Raises:
            StateError: it cannot be read.
        """

    @abstractmethod
    async def read_credentials(self) -> dict[CredentialKey, StoredCredential]:
        """All credentials.

        Raises:
            StateError: they cannot be read.
        """

    @abstractmethod
    async def read_session(self, id: str) -> StoredSession | None:
        """The session with this id; None if there is none.

        Raises:
            StateError: it cannot be read.
        """

    @abstractmethod
    def read_grants(self) -> list[StoredGrant]:
        """All grants. Never waits.

        Raises:
            StateError: they cannot be read now.
        """

    @abstractmethod
    def load_grants(self) -> tuple[list[StoredGrant], int]:
        """All grants and their revision, when a process begins: this thread waits.

        Raises:
            StateError: they cannot be read.
        """

    @abstractmethod
    async def write(
        self, change: Callable[[Transaction], T], on_commit: Callable[[T, Revisions], object] | None = None
    ) -> T:
        """Carry out the change, and give what it returned once it is on disk.

        `change` may run in a worker thread. `on_commit` is called with what it returned and the revisions that it led
        to, in the order in which changes were stored, before anything else happens in the event loop.

        Raises:
            StateError: it cannot be stored; nothing has changed.
            Exception: whatever `change` raised; nothing has changed.
        """


LOCKED_LIMIT = 2.0
"""Seconds for which what was read last holds while another process has the store locked."""
