"""The interface of the store: definitions and grants of one configuration, as the policy reads and changes them.

A store holds definitions (of each item that a server offers: what is approved, what is offered) and grants. Several
processes share it. A change is one function that is given a `Transaction`: all of it is on disk when `Store.write`
returns, or none of it.

The event loop never waits for the disk or for the lock of another process: what is async waits in a worker thread, and
`poll` gives up at once where it would have to wait. Only `load_definitions` and `load_grants`, with which a command or
a host begins, wait where they are called.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from typing import NamedTuple, TypeVar

import msgspec

from host.subject import Subject

T = TypeVar("T")


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


class Transaction(ABC):
    """The store within one transaction, in which no other process can change it. All changes are undone if the change
    function raises."""

    @abstractmethod
    def revision(self) -> int:
        """The revision of the definitions."""

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
    def lease_credential(self, key: CredentialKey, holder: str, now: float, until: float) -> bool:
        """Let nobody else refresh the credentials until that Unix time. False if another holder has that right now, or
        there are no credentials."""

    @abstractmethod
    def end_lease(self, key: CredentialKey, holder: str) -> None:
        """Give the right back, if this holder has it."""

    @abstractmethod
    def remove_grants(self, ids: frozenset[str], expired_at: float) -> None:
        """Remove the grants with these ids, and those that expired before that Unix time."""


class Store(ABC):
    """The store of one configuration, shared with other processes.

    Attributes:
        problem: a sentence for people if the store cannot be relied on: it was removed, replaced or damaged. Then
            nothing in it holds, and every `write` is refused, until the host is started again.
        is_current: whether the last `poll` could read the store. Where it could not, another process has it locked, or
            was killed while it wrote; `read_definitions` waits for the one and puts the other right.
    """

    problem: str | None = None
    is_current: bool = True

    @abstractmethod
    def poll(self) -> Revisions:
        """The revisions now, or the last ones seen if they cannot be read at once. Some 10 µs; never waits."""

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
