"""Stores of several processes, for what holds of each kind."""

from __future__ import annotations

import sqlite3
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import trio

from host.storage.directory import open_state
from host.storage.postgres import PostgresStore, open_postgres
from host.storage.sql import RunInThread, Store
from host.storage.sqlite import open_store
from host.storage.store import Revisions
from tests.kit.gates import SOURCE, Turn, run_here
from tests.kit.postgres import PostgresServer


class Stores(ABC):
    """One place for decisions, which several processes open."""

    @contextmanager
    def opened(self, name: str = "c") -> Iterator[Store]:
        """The store of one more host, for the block; whatever waits is done in this thread."""
        with contextmanager(self._open)(name, threads=False) as store:
            store._turn = Turn()  # type: ignore[assignment]  # no lock of trio can be taken without a checkpoint
            yield store

    @contextmanager
    def threaded(self) -> Iterator[Store]:
        """The store as a host has it: with threads."""
        with contextmanager(self._open)("c", threads=True) as store:
            yield store

    @abstractmethod
    def _open(self, name: str, *, threads: bool) -> Iterator[Store]: ...

    @abstractmethod
    def execute(self, statement: str) -> None:
        """Change the database behind the back of all hosts."""

    def settle(self, *stores: Store) -> None:
        """Wait until each of them has taken over what all have stored: at once with SQLite."""
        for store in stores:
            store.poll()


class SqliteStores(Stores):
    def __init__(self, state: Path) -> None:
        self._state = state

    def _open(self, name: str, *, threads: bool) -> Iterator[Store]:
        source = SOURCE.with_name(f"{name}.yaml")
        run: RunInThread = trio.to_thread.run_sync if threads else run_here
        with open_store(open_state(self._state), source, run_in_thread=run) as store:
            yield store

    def execute(self, statement: str) -> None:
        with closing(sqlite3.connect(self._state / "colonnade.db")) as other, other:
            other.execute(statement)


class FleetStores(Stores):
    """Several fleets in one database."""

    def __init__(self, server: PostgresServer, database: str) -> None:
        self._server = server
        self._database = database

    def _open(self, name: str, *, threads: bool) -> Iterator[Store]:
        fleet = self._server.fleet(self._database, f"fleet-{name}")
        self.execute(f"INSERT INTO colonnade.config VALUES ('{fleet.name}', 0, 0, 0, 0, NULL) ON CONFLICT DO NOTHING")
        run: RunInThread = trio.to_thread.run_sync if threads else run_here
        with open_postgres(fleet, run_in_thread=run) as store:
            yield store

    def execute(self, statement: str) -> None:
        self._server.execute("SET search_path TO colonnade", statement, database=self._database)

    def settle(self, *stores: Store) -> None:
        deadline = time.monotonic() + 10
        while any(store.poll() != self._stored(store) for store in stores):
            assert time.monotonic() < deadline
            threading.Event().wait(0.001)

    def _stored(self, store: Store) -> object:
        assert isinstance(store, PostgresStore)
        statement = f"SELECT definitions, grants, credentials FROM colonnade.config WHERE id = '{store._config}'"
        return Revisions(*self._server.execute(statement, database=self._database)[0])
