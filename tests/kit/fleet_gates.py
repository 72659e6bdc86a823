"""Tests of what is above the store, over PostgreSQL: with COLONNADE_TEST_STORE=postgres. Each configuration of a state
directory is a fleet of one database, which all processes of a run share with their server."""

from __future__ import annotations

import atexit
import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from host.storage.postgres import PostgresStore, open_postgres
from host.storage.sql import Write
from host.storage.store import Revisions, StateError
from tests.kit.gates import Turn, run_here
from tests.kit.postgres import PostgresServer, programs, shared_server


@cache
def _database() -> tuple[PostgresServer, str]:
    """A database of this process."""
    if programs() is None:
        pytest.skip("PostgreSQL is not installed (PG_BIN)")
    stack = ExitStack()
    atexit.register(stack.close)
    run = Path(tempfile.gettempdir()) / f"colonnade-{os.environ.get('PYTEST_XDIST_TESTRUNUID', os.getpid())}"
    run.mkdir(exist_ok=True)
    server = stack.enter_context(shared_server(run))
    return server, stack.enter_context(server.database())


@contextmanager
def open_fleet_here(state: Path, source: Path, monotonic: Callable[[], float]) -> Iterator[PostgresStore]:
    """A store without threads but its own, as `open_store_here`."""
    server, database = _database()
    fleet = server.fleet(database, f"f{hashlib.sha256(f'{state.resolve()} {source}'.encode()).hexdigest()[:16]}")
    with ExitStack() as stack:
        server.execute(
            f"INSERT INTO colonnade.config VALUES ('{fleet.name}', 0, 0, 0, 0, NULL) ON CONFLICT DO NOTHING",
            database=database,
        )
        store = stack.enter_context(open_postgres(fleet, run_in_thread=run_here, monotonic=monotonic))
        poll, commit = store.poll, store._commit

        # The follower looks by a real clock: where that of a test jumps over minutes, it would have looked meanwhile.
        def look_and_poll() -> Revisions:
            with suppress(StateError):
                store.look()
            return poll()

        def look_and_commit(batch: Sequence[Write[Any]]) -> None:
            with suppress(StateError):
                store.look()
            commit(batch)

        store.poll = look_and_poll  # type: ignore[method-assign]
        store._commit = look_and_commit  # type: ignore[method-assign]
        store._turn = Turn()  # type: ignore[assignment]  # no lock of trio can be taken without a checkpoint
        yield store
