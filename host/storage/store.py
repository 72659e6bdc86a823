"""The content of a store, as the policy reads and changes it; see `sql.py`."""

from __future__ import annotations

import math
import time
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from host.subject import Subject


def uptime() -> float:
    """Seconds that nobody can set back, with those in which the machine slept: what was read before counts no longer
    when it wakes. Neither `time.monotonic` nor the clock of trio has these: on Linux, CLOCK_MONOTONIC stands still
    meanwhile, and on macOS, where CLOCK_MONOTONIC goes on, both are mach_absolute_time, which does not. A virtual
    machine that its host stops may notice nothing by any clock."""
    return time.clock_gettime(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class StateError(Exception):
    """The state directory, or the database in it, cannot be used. The text is a sentence for the person who started
    the program."""


def not_installed(key: str, package: str, extra: str, problem: ImportError) -> StateError:
    """The error for a key of the configuration that needs a package which an extra of Colonnade brings."""
    return StateError(
        f"{key} needs the package {package} ({problem}): in a clone of Colonnade, "
        f".venv/bin/pip install -e '.[{extra}]' (or pipx install --force '.[{extra}]', or uv tool install "
        f"'.[{extra}]') installs it"
    )


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


class StoredConfirmation(NamedTuple):
    """A question to people. `sealed` and `answer` are for the holder of the key only; `home` is the id of the process
    whose call waits, `expires` the Unix time at which it is forgotten. `answer`: empty until one was given."""

    id: str
    home: str
    sealed: str
    answer: str
    expires: float


LOCKED_LIMIT = 2.0
"""Seconds for which what was read last holds while another process has the store locked."""
