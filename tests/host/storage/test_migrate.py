"""The schema of a fleet's database, and what a state directory gives to a new fleet."""

from __future__ import annotations

from pathlib import Path

import psycopg
import pytest

from config import Fleet, Secret
from host.storage import migrate as migrate_module
from host.storage.migrate import Migrated, TakenOver, migrate, take_over
from host.storage.postgres import SCHEMA_VERSION, open_postgres
from host.storage.sql import Store
from host.storage.store import CredentialKey, StateError, StoredCredential
from tests.host.storage.test_sql import APPROVED, NOTES, SEALED, grant, puts, stored
from tests.kit.awaited import awaited
from tests.kit.gates import run_here, store_opener
from tests.kit.postgres import KEY, PostgresServer, needs_postgres

pytestmark = [needs_postgres, pytest.mark.slow]
FILES = CredentialKey("files", "tess")


def test_a_database_is_made_ready_once_and_for_each_fleet(postgres: PostgresServer) -> None:
    with postgres.database(template=None) as name:
        one, other = postgres.fleet(name), postgres.fleet(name, "other")
        with pytest.raises(StateError, match="has no tables of Colonnade; run colonnade migrate"), open_postgres(one):
            pass
        assert migrate(one) == Migrated(0, SCHEMA_VERSION, is_new=True)
        assert migrate(one) == Migrated(SCHEMA_VERSION, SCHEMA_VERSION, is_new=False)
        with pytest.raises(StateError, match="holds no fleet other; colonnade migrate makes it"), open_postgres(other):
            pass
        assert migrate(other) == Migrated(SCHEMA_VERSION, SCHEMA_VERSION, is_new=True)
        with open_postgres(other):
            pass


@pytest.mark.parametrize(
    ("version", "serves", "said"),
    [
        (0, 0, f"has schema 0, and this version of Colonnade needs {SCHEMA_VERSION}; run colonnade migrate"),
        (9, 8, f"schema 9, which serves versions of Colonnade with schema 8 or newer; this one knows {SCHEMA_VERSION}"),
        (9, 1, None),
    ],
)
def test_a_host_starts_with_the_schemas_that_serve_it(
    postgres: PostgresServer, version: int, serves: int, said: str | None
) -> None:
    with postgres.database() as name:
        postgres.execute(f"UPDATE colonnade.schema_version SET version = {version}, serves = {serves}", database=name)
        fleet = postgres.fleet(name)
        if said is None:
            with open_postgres(fleet):
                pass
            with pytest.raises(
                StateError, match=f"has schema 9, and this version knows {SCHEMA_VERSION}: run a newer one"
            ):
                migrate(fleet)
        else:
            with pytest.raises(StateError, match=said), open_postgres(fleet):
                pass


def test_a_schema_that_does_not_serve_the_hosts_that_run_waits_for_their_end(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease = "INSERT INTO colonnade.member VALUES ('acme', 'a', '', clock_timestamp() + interval '{}', 0, 0, '', '', '')"
    with postgres.database(template=None) as name:
        fleet = postgres.fleet(name)
        with monkeypatch.context() as former:
            former.setattr(migrate_module, "SCHEMA_VERSION", SCHEMA_VERSION - 1)
            assert migrate(fleet) == Migrated(0, SCHEMA_VERSION - 1, is_new=True)
        postgres.execute(lease.format("1 hour"), database=name)
        monkeypatch.setattr(migrate_module, "_SERVES", SCHEMA_VERSION)
        said = f"schema {SCHEMA_VERSION} does not serve the processes that use this database.*: stop them all"
        with pytest.raises(StateError, match=said):
            migrate(fleet)
        postgres.execute("UPDATE colonnade.member SET until = clock_timestamp()", database=name)
        assert migrate(fleet) == Migrated(SCHEMA_VERSION - 1, SCHEMA_VERSION, is_new=False)


def test_a_migration_has_no_hosts_wait_behind_it(postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """It gives its place up where a table is in use, and tries again."""
    with postgres.database() as name, psycopg.connect(postgres.url(name)) as other:
        other.execute("SELECT * FROM colonnade.schema_version FOR UPDATE")
        monkeypatch.setattr(migrate_module, "_PATIENCE", 0.0)
        with pytest.raises(StateError, match="are in use all the time; try again"):
            migrate(postgres.fleet(name))
        pauses: list[float] = []

        def sleep(seconds: float) -> None:
            pauses.append(seconds)
            other.rollback()

        monkeypatch.setattr(migrate_module, "_PATIENCE", 60.0)
        monkeypatch.setattr("host.storage.migrate.time.sleep", sleep)
        assert migrate(postgres.fleet(name)).after == SCHEMA_VERSION
        assert len(pauses) == 1


def test_a_host_needs_no_role_that_may_change_the_schema(postgres: PostgresServer) -> None:
    with postgres.database(template=None) as name:
        role = f"role_{name}"
        postgres.execute(f"CREATE ROLE {role} LOGIN")
        try:
            fleet = Fleet("acme", Secret(postgres.url(name, role)), (KEY,))
            with pytest.raises(StateError, match=r"may not change the fleet.s database .permission denied"):
                migrate(fleet)
            assert migrate(fleet, Secret(postgres.url(name))).is_new
            with open_postgres(fleet, run_in_thread=run_here) as store:
                awaited(store.write(puts("x")))
                awaited(store.write(lambda transaction: transaction.put_grant(grant("g"))))
                assert stored(store) == {"x": APPROVED}
                with pytest.raises(StateError, match="permission denied"):
                    migrate(fleet)
        finally:
            postgres.execute(f"DROP OWNED BY {role}", database=name)
            postgres.execute(f"DROP ROLE {role}")


def resealed(key: CredentialKey, stored: StoredCredential) -> StoredCredential | None:
    return None if key == FILES else stored._replace(sealed="anew")


def test_a_new_fleet_takes_over_what_a_state_directory_holds(postgres: PostgresServer, tmp_path: Path) -> None:
    with store_opener(tmp_path / "state") as open_one, postgres.database() as name:
        former = open_one()
        awaited(former.write(puts("x")))
        awaited(former.write(lambda transaction: transaction.put_grant(grant("g"))))
        awaited(former.write(lambda transaction: transaction.close_servers(["b"])))
        awaited(former.write(lambda transaction: transaction.put_unconfined("c", True)))
        for key in (NOTES, FILES):
            awaited(former.write(lambda transaction, key=key: transaction.put_credential(key, SEALED)))  # type: ignore[misc]
        fleet = postgres.fleet(name)
        with open_postgres(fleet, run_in_thread=run_here) as store:
            assert awaited(take_over(store, former, resealed)) == TakenOver(1, 1, 1)
        with open_postgres(fleet, run_in_thread=run_here) as store:
            assert held(store) == held(former)
            assert store.read_grants() == [grant("g")]
            ((key, credential),) = awaited(store.read_credentials()).items()
            assert (key, credential.sealed) == (NOTES, "anew")
            with pytest.raises(StateError, match="the fleet holds decisions or logins of its own already"):
                awaited(take_over(store, former, resealed))


def held(store: Store) -> object:
    found = store.load_definitions()
    return found.items, found.closed_servers, found.unconfined, found.lost


def test_nothing_is_taken_over_where_the_approvals_are_lost(postgres: PostgresServer, tmp_path: Path) -> None:
    state = tmp_path / "state"
    with store_opener(state) as open_one:
        open_one()
    (state / "colonnade.db").unlink()
    with (
        store_opener(state) as open_one,
        postgres.database() as name,
        open_postgres(postgres.fleet(name), run_in_thread=run_here) as store,
        pytest.raises(StateError, match="nothing is taken over: the database that held"),
    ):
        awaited(take_over(store, open_one(), resealed))
