"""A fleet's database is made ready from the terminal, and takes over what a state directory holds."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from config import load
from host.cli.command_line import run
from host.cli.exit_codes import DONE, WRONG
from host.storage.directory import open_state
from host.storage.postgres import SCHEMA_VERSION, open_postgres
from host.storage.sqlite import open_store
from host.upstream.vault import Vault, open_vault
from tests.host.storage.test_sql import APPROVED, grant, puts, stored
from tests.host.upstream.test_vault import LOGIN
from tests.kit.awaited import awaited
from tests.kit.gates import run_here
from tests.kit.logins import NOTES
from tests.kit.postgres import PostgresServer, needs_postgres


def written(folder: Path, store: str) -> Path:
    file = folder / "colonnade.json"
    fleet = {"name": "acme", "store": store, "keys": ["${env:FLEET_KEY}"]}
    file.write_text(json.dumps({"fleet": fleet, "servers": {"a": {"command": "x"}}}))
    return file


@pytest.fixture(autouse=True)
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FLEET_KEY", "5a" * 32)


def test_a_file_without_a_fleet_has_nothing_to_migrate(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("servers: {a: {command: x}}")
    assert run(["migrate", str(file)]) == WRONG
    assert "has no fleet, whose database this command makes ready" in capsys.readouterr().err


def test_a_wrong_url_of_the_owner_is_told_without_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLONNADE_MIGRATE_STORE", "postgresql://owner:hidden@db.example/x")
    assert run(["migrate", str(written(tmp_path, "postgresql://127.0.0.1:1/x"))]) == WRONG
    said = capsys.readouterr().err
    assert "COLONNADE_MIGRATE_STORE: a database on another machine has to prove who it is" in said
    assert "hidden" not in said


@pytest.mark.parametrize("place", ["fleet.store", "COLONNADE_MIGRATE_STORE"])
def test_a_url_that_the_library_refuses_is_told_by_its_place_alone(
    place: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    refused, right = "postgresql://u:hidden@127.0.0.1:1/x?no_such=hidden", "postgresql://127.0.0.1:1/x"
    monkeypatch.setenv("COLONNADE_MIGRATE_STORE", right if place == "fleet.store" else refused)
    assert run(["migrate", str(written(tmp_path, refused if place == "fleet.store" else right))]) != DONE
    said = capsys.readouterr().err
    assert f"{place} is not a URL that PostgreSQL's own library understands" in said
    assert "hidden" not in said


@needs_postgres
@pytest.mark.slow
def test_a_fleet_is_made_and_takes_over_a_state_directory(
    tmp_path: Path, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres.database(template=None) as name:
        file = written(tmp_path, postgres.url(name))
        assert run(["migrate", str(file)]) == DONE
        schema = f"The database has schema {SCHEMA_VERSION}"
        assert capsys.readouterr().out == f"{schema} (it had none). The fleet acme is new.\n"
        folder = tmp_path / "state"
        assert run(["migrate", str(file), "--from", str(folder)]) == WRONG
        assert "is no state directory: it has no colonnade.db" in capsys.readouterr().err
        state = open_state(folder)
        with open_store(state, file, run_in_thread=run_here) as former:
            awaited(former.write(puts("x")))
            awaited(former.write(lambda transaction: transaction.put_grant(grant("g"))))
            for at, vault in {NOTES: open_vault(state, {}), NOTES._replace(server="lost"): Vault(bytes(32))}.items():
                sealed = vault.close(at, LOGIN)
                awaited(former.write(lambda change, at=at, sealed=sealed: change.put_credential(at, sealed)))  # type: ignore[misc]
        capsys.readouterr()
        assert run(["migrate", str(file), "--from", str(folder)]) == DONE
        said = capsys.readouterr().out.splitlines()
        assert said[0] == f"{schema} (which it had). The fleet acme is known."
        assert said[1].endswith(": 1 approval, 1 grant, 1 login.")
        assert said[2] == "The login at lost cannot be read with the key that it has there: colonnade login lost"
        fleet = load(file, os.environ).fleet
        assert fleet is not None
        with open_postgres(fleet, run_in_thread=run_here) as store:
            assert stored(store) == {"x": APPROVED}
            found = awaited(store.read_credentials())
            assert open_vault(open_state(tmp_path / "other"), {}, fleet).open(NOTES, found[NOTES]) == LOGIN
        text = file.read_text()
        file.write_text(text.replace('"${env:FLEET_KEY}"', f'"{"a5" * 32}", "${{env:FLEET_KEY}}"'))
        for signed in ("4 rows", "0 rows"):
            assert run(["migrate", str(file)]) == DONE
            assert f"Signed anew with the first key of the fleet: {signed}." in capsys.readouterr().out
        file.write_text(text.replace("${env:FLEET_KEY}", "a5" * 32))
        fleet = load(file, os.environ).fleet
        assert fleet is not None
        with open_postgres(fleet, run_in_thread=run_here) as store:
            assert (stored(store), store.read_grants()) == ({"x": APPROVED}, [grant("g")])
            found = awaited(store.read_credentials())
            assert open_vault(open_state(tmp_path / "other"), {}, fleet).open(NOTES, found[NOTES]) == LOGIN
        assert run(["migrate", str(file), "--from", str(folder)]) != DONE
        assert "holds decisions or logins of its own already" in capsys.readouterr().err


@pytest.mark.slow
@needs_postgres
def test_a_role_that_may_not_change_the_database_is_told_which_one_may(
    tmp_path: Path, postgres: PostgresServer, capsys: pytest.CaptureFixture[str]
) -> None:
    with postgres.database(template=None) as name:
        postgres.execute(f"CREATE ROLE {name} LOGIN")
        try:
            assert run(["migrate", str(written(tmp_path, postgres.url(name, name)))]) != DONE
        finally:
            postgres.execute(f"DROP ROLE {name}")
    said = capsys.readouterr().err
    assert f"this role may not change the fleet's database (permission denied for database {name})" in said
    assert "give the URL of the role that owns the database in the environment variable COLONNADE_MIGRATE_STORE" in said


@needs_postgres
@pytest.mark.slow
def test_commands_decide_in_the_fleet(
    tmp_path: Path, postgres: PostgresServer, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a running host: what one machine revokes, no other one holds."""
    monkeypatch.setenv("COLONNADE_STATE", str(tmp_path / "here"))
    with postgres.database() as name:
        file = written(tmp_path, postgres.url(name))
        fleet = load(file, os.environ).fleet
        assert fleet is not None
        with open_postgres(fleet, run_in_thread=run_here) as store:
            awaited(store.write(lambda transaction: transaction.put_grant(grant("g"))))
            assert run(["grants", "--config", str(file)]) == DONE
            assert "g" in capsys.readouterr().out
            known = store.poll()
            assert run(["grants", "revoke", "g", "--config", str(file)]) == DONE
            while store.poll() == known:
                pass
            assert store.read_grants() == []
    assert not (tmp_path / "here" / "colonnade.db").exists()
