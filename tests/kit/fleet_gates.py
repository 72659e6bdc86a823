"""Tests of what is above the store, over PostgreSQL: with COLONNADE_TEST_STORE=postgres. Each configuration of a state
directory is a fleet of one database, which all processes of a run share with their server."""

from __future__ import annotations

import atexit
import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from host.storage.postgres import PostgresStore, open_postgres
from host.storage.sql import Write
from host.storage.store import Revisions, StateError
from tests.kit.gates import Turn, run_here
from tests.kit.postgres import PostgresServer, programs, shared_server


@cache
def _database() -> tuple[PostgresServer, str, psycopg.Connection[Any]]:
    """A database of this process, and a connection to it."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (PG_BIN)")
    stack = ExitStack()
    atexit.register(stack.close)
    run = Path(tempfile.gettempdir()) / f"colonnade-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    run.mkdir(exist_ok=True)
    server = stack.enter_context(shared_server(run))
    database = stack.enter_context(server.database())
    return server, database, stack.enter_context(psycopg.connect(server.url(database), autocommit=True))


@contextmanager
def open_fleet_here(
    state: Path, source: Path, monotonic: Callable[[], float], wall: Callable[[], float]
) -> Iterator[PostgresStore]:
    """A store without threads but its own, as `open_store_here`."""
    server, database, connection = _database()
    fleet = server.fleet(database, f"f{hashlib.sha256(f'{state.resolve()} {source}'.encode()).hexdigest()[:16]}")
    with ExitStack() as stack:
        insert = "INSERT INTO colonnade.config VALUES (%s, 0, 0, 0, 0, NULL) ON CONFLICT DO NOTHING"
        connection.execute(insert, (fleet.name,))
        store = stack.enter_context(open_postgres(fleet, run_in_thread=run_here, monotonic=monotonic))
        poll, commit = store.poll, store._commit

        # The follower looks by a real clock: where that of a test jumps over minutes, it would have looked meanwhile.
        def look() -> None:
            with suppress(StateError):
                store.look()

        def look_and_poll() -> Revisions:
            look()
            return poll()

        def look_and_commit(batch: Sequence[Write[Any]]) -> None:
            look()
            _let_leases_pass(connection, fleet.name, wall)
            commit(batch)

        store.poll = look_and_poll  # type: ignore[method-assign]
        store._commit = look_and_commit  # type: ignore[method-assign]
        store._turn = Turn()  # type: ignore[assignment]  # no lock of trio can be taken without a checkpoint
        yield store


_TIMES: dict[str, float] = {}
"""When each fleet was changed last, by a clock that its test sets."""


def _let_leases_pass(connection: psycopg.Connection[Any], fleet: str, wall: Callable[[], float]) -> None:
    """What a test has set its clock forward, leases are older by: they end by the clock of the database."""
    if wall is not time.time:
        before, _TIMES[fleet] = _TIMES.get(fleet, wall()), wall()
        if before != _TIMES[fleet]:
            query = "UPDATE colonnade.credential SET lease_until = lease_until - %s WHERE config = %s"
            connection.execute(query, (_TIMES[fleet] - before, fleet))
