"""The tables of a fleet's database, and what a state directory has to give to a fleet: `colonnade migrate`.

The statements of each version of the schema are in `migrations/NNNN.sql`. A schema says which versions of hosts it
serves: a version only adds what former hosts do not miss, so that hosts are replaced one by one after it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from importlib.resources import files
from typing import NamedTuple

import psycopg
from psycopg import sql
from psycopg.conninfo import conninfo_to_dict

from config import Fleet, Secret
from host.storage.postgres import SCHEMA_VERSION, Macs, as_state_errors
from host.storage.sql import ITEM, Store, Transaction
from host.storage.store import CredentialKey, Revisions, StateError, StoredCredential

OWNER_VARIABLE = "COLONNADE_MIGRATE_STORE"
"""The environment variable with the URL of a role that may change the schema."""
_SERVES = 1
"""The oldest schema of a host that works with the present one."""
_BEGIN = """CREATE SCHEMA IF NOT EXISTS colonnade;
CREATE TABLE IF NOT EXISTS colonnade.schema_version (version INTEGER NOT NULL, serves INTEGER NOT NULL);
INSERT INTO colonnade.schema_version SELECT 0, 0 WHERE NOT EXISTS (SELECT 1 FROM colonnade.schema_version);"""
_FIRST = ("", "fleet", "keys")
"""The server, kind and name of a row of `item` that is of no server, and of a kind that no host reads."""
_LOCK = 0x436F6C6F
"""The advisory lock of whoever changes the schema."""
_LOCK_LIMIT = 0.4
"""Seconds to wait for a table that is in use: meanwhile all hosts wait behind this, each for `postgres.LOCK_LIMIT`."""
_PATIENCE = 30.0
"""Seconds in which that is tried again."""
_PAUSE = 0.2
_SERVING = "SELECT 1 FROM colonnade.member WHERE until > clock_timestamp() LIMIT 1"


class Migrated(NamedTuple):
    """The versions of the schema before and after, and whether the fleet is new."""

    before: int
    after: int
    is_new: bool


def migrate(fleet: Fleet, owner: Secret | None = None) -> Migrated:
    """Bring the schema up to date, and make the fleet known. `owner`: URL of a role that may change the schema, if the
    fleet's own may not; the latter is then given what a host needs.

    Hosts of a former version may serve meanwhile, and go on, if the new schema serves them.

    Raises:
        StateError: the database cannot be used, is of a newer version, or its tables are in use all the time; or hosts
            serve that the new schema does not.
    """
    deadline = time.monotonic() + _PATIENCE
    while True:
        try:
            return _migrate(fleet, owner)
        except _InUse:
            if time.monotonic() > deadline:
                raise StateError("the tables of the fleet's database are in use all the time; try again") from None
            time.sleep(_PAUSE)  # noqa: TID251 - no event loop runs here


def _migrate(fleet: Fleet, owner: Secret | None) -> Migrated:
    """Raises _InUse, too: nothing was changed."""
    with as_state_errors(fleet):
        user = conninfo_to_dict(fleet.store.reveal()).get("user")
    used, place = (fleet, "fleet.store") if owner is None else (replace(fleet, store=owner), OWNER_VARIABLE)
    with (
        as_state_errors(used, place),
        _as_owner(),
        _noting_use(),
        psycopg.connect(used.store.reveal(), connect_timeout=5) as connection,
    ):
        connection.execute("SELECT set_config('lock_timeout', %s, false)", (f"{_LOCK_LIMIT * 1000:.0f}ms",))
        connection.execute("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))
        connection.execute(_BEGIN)
        row = connection.execute("SELECT version FROM colonnade.schema_version").fetchone()
        assert row is not None
        before = int(row[0])
        if before > SCHEMA_VERSION:
            raise StateError(
                f"the fleet's database has schema {before}, and this version knows {SCHEMA_VERSION}: run a newer one"
            )
        if 0 < before < _SERVES and connection.execute(_SERVING).fetchone() is not None:
            raise StateError(
                f"schema {SCHEMA_VERSION} does not serve the processes that use this database, which are of a former "
                "version: stop them all, and then run colonnade migrate again"
            )
        for version in range(before + 1, SCHEMA_VERSION + 1):
            connection.execute((files("host.storage") / "migrations" / f"{version:04}.sql").read_bytes())
        connection.execute("UPDATE colonnade.schema_version SET version = %s, serves = %s", (SCHEMA_VERSION, _SERVES))
        made = connection.execute(
            "INSERT INTO colonnade.config VALUES (%s, 0, 0, 0, 0, NULL) ON CONFLICT DO NOTHING", (fleet.name,)
        )
        _sign_first(connection, fleet)
        if owner is not None and user is not None and user != connection.info.user:
            for statement in (
                "GRANT USAGE ON SCHEMA colonnade TO {}",
                "GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA colonnade TO {}",
                "REVOKE INSERT, UPDATE, DELETE ON colonnade.schema_version FROM {}",
                "GRANT USAGE ON ALL SEQUENCES IN SCHEMA colonnade TO {}",
            ):
                connection.execute(sql.SQL(statement).format(sql.Identifier(str(user))))
        return Migrated(before, SCHEMA_VERSION, made.rowcount == 1)


def _sign_first(connection: psycopg.Connection[tuple[object, ...]], fleet: Fleet) -> None:
    """Have the database of a fleet without any definition hold a row that its keys have signed: then a host with others
    is refused from the first start on (`PostgresStore.check_keys`). Whoever began with a wrong key migrates again."""
    nothing = "SELECT 1 FROM colonnade.item WHERE config = %s AND (server, kind, name) <> (%s, %s, %s) LIMIT 1"
    if connection.execute(nothing, (fleet.name, *_FIRST)).fetchone() is None:
        values = (*_FIRST, 1, *[None] * 8)
        query = f"""INSERT INTO colonnade.item (config, server, kind, name, revision, {ITEM}, approved_definition,
            offered_definition, mac) VALUES (%s, %s, %s, %s, 0, {", ".join(["%s"] * 10)})
            ON CONFLICT (config, server, kind, name) DO UPDATE SET mac = excluded.mac"""
        connection.execute(query, (fleet.name, *values, Macs(fleet).make("item", (fleet.name, *values))))


@contextmanager
def _as_owner() -> Iterator[None]:
    """Say which role is needed where this one may not."""
    try:
        yield
    except psycopg.errors.InsufficientPrivilege as problem:
        said = " ".join(str(problem).split())
        raise StateError(
            f"this role may not change the fleet's database ({said}): give the URL of the role that owns the database "
            f"in the environment variable {OWNER_VARIABLE}"
        ) from None


class _InUse(Exception):
    """A table is in use, and hosts must not wait behind us for it any longer."""


@contextmanager
def _noting_use() -> Iterator[None]:
    try:
        yield
    except (psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
        raise _InUse from None


class TakenOver(NamedTuple):
    """Numbers of what a fleet has taken over."""

    approvals: int
    grants: int
    logins: int


async def take_over(
    fleet: Store, former: Store, reseal: Callable[[CredentialKey, StoredCredential], StoredCredential | None]
) -> TakenOver:
    """Store in a new fleet what a state directory holds of one configuration, which stays as it is.

    Args:
        reseal: encrypts a login with the key of the fleet; None if it cannot be read.

    Raises:
        StateError: the fleet holds decisions already, or what was approved is lost.
    """
    found = former.load_definitions()
    if found.lost is not None:
        raise StateError(f"nothing is taken over: {found.lost}")
    grants, _ = former.load_grants()
    read = {key: reseal(key, stored) for key, stored in (await former.read_credentials()).items()}
    logins = {key: sealed for key, sealed in read.items() if sealed is not None}

    def change(transaction: Transaction) -> None:
        if transaction.revisions() != Revisions():
            raise StateError("nothing is taken over: the fleet holds decisions or logins of its own already")
        for (server, kind), items in found.items.items():
            transaction.put_items(server, kind, items)
        transaction.close_servers(found.closed_servers)
        for server, chosen in found.unconfined.items():
            transaction.put_unconfined(server, chosen)
        for grant in grants:
            transaction.put_grant(grant)
        for key, sealed in logins.items():
            transaction.put_credential(key, sealed)

    await fleet.write(change)
    approvals = sum(item.approved is not None for items in found.items.values() for item in items.values())
    return TakenOver(approvals, len(grants), len(logins))
