"""Two real hosts with state directories of their own, as on two machines, and one database: what a person decides at
one holds at both, and after a kill."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest

from host.cli.admin_client import find_hosts
from tests.kit.postgres import PostgresServer, needs_postgres
from tests.real.running import colonnade, recorder, serving, until, write_config

pytestmark = [needs_postgres, pytest.mark.slow]


def configured(folder: Path, url: str) -> Path:
    folder.mkdir()
    fleet = {"name": "acme", "store": url, "keys": ["5a" * 32]}
    # One command on all machines: a launch that differs is another one, and held.
    server = {**recorder(folder.parent / "log"), "trust": "untrusted", "sandbox": "off", "consent": {"tools": "allow"}}
    return write_config(folder, {"s": server}, fleet=fleet)


def shown(*files: Path) -> list[int]:
    """The number of tools that each host shows."""
    hosts = [host.get("state") for file in files for host in find_hosts(file.parent / "state")]
    return [sum(entry["shown"] for entry in host["catalog"]) for host in hosts]


def decide(file: Path, *words: str) -> None:
    done = colonnade(*words, "--config", str(file), COLONNADE_STATE=str(file.parent / "state"))
    assert done.returncode == 0, done.stderr


def test_decisions_at_one_machine_hold_at_the_other(tmp_path: Path, postgres: PostgresServer) -> None:
    with postgres.database(template=None) as name:
        one, other = (configured(tmp_path / each, postgres.url(name)) for each in ("one", "other"))
        refused = colonnade("serve", str(one), COLONNADE_STATE=str(one.parent / "state"))
        assert refused.returncode == 2
        assert "has no tables of Colonnade; run colonnade migrate" in refused.stderr
        assert refused.stdout == "", "it does not say that it serves"
        made = colonnade("migrate", str(one), COLONNADE_STATE=str(one.parent / "state"))
        assert made.returncode == 0, made.stderr
        with serving(one, "s", stop=False) as first, serving(other, "s"):
            until(lambda: shown(one, other) == [0, 0], "both hold what is untrusted")
            decide(one, "definitions", "approve", "--server", "s", "--yes")
            until(lambda: len(set(shown(one, other))) == 1 and shown(one, other)[0] > 0, "both show what one approved")
            count = shown(one)[0]
            tool = next(
                entry["name"]
                for host in find_hosts(one.parent / "state")
                for entry in host.get("state")["catalog"]
                if entry["kind"] == "tool"
            )
            decide(other, "definitions", "revoke", "s", "tool", tool)
            until(lambda: shown(one, other) == [count - 1] * 2, "both hold what the other one revoked")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
            with serving(one, "s"):
                until(lambda: shown(one, other) == [count - 1] * 2, "it was in the database")
        # Where no host runs, the command decides in the same database.
        decide(one, "definitions", "approve", "--server", "s", "--yes")
        with serving(other, "s"):
            until(lambda: shown(other) == [count], "the other machine finds it")
    assert not list(tmp_path.rglob("colonnade.db"))
