"""PostgreSQL for tests: one server for all processes of a run, and a database for each test that needs its own."""

from __future__ import annotations

import fcntl
import os
import secrets
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path
from typing import Any

import psycopg
import pytest

from config import Fleet, Secret
from host.storage.migrate import migrate
from host.storage.postgres import SCHEMA_VERSION

KEY = Secret("5a" * 32)
DROPS = 5
"""Attempts to drop a database: PostgreSQL gives its backends 5 s to end, which one on a busy machine may not do."""
_TEMPLATE = "colonnade_template"
_SETTINGS = {
    "fsync": "off",  # what is tried here is killed, and the machine is not switched off
    "listen_addresses": "''",
    "max_connections": "300",
    "shared_buffers": "16MB",
    "unix_socket_permissions": "0777",
}


_NEXT_SCHEMA = f"""DO $$ DECLARE name TEXT; BEGIN
    FOR name IN SELECT tablename FROM pg_tables WHERE schemaname = 'colonnade' LOOP
        EXECUTE format('ALTER TABLE colonnade.%I ADD COLUMN added TEXT NOT NULL DEFAULT %L', name, '');
    END LOOP;
    CREATE TABLE colonnade.added (config TEXT NOT NULL, id TEXT NOT NULL, PRIMARY KEY (config, id));
    UPDATE colonnade.schema_version SET version = {SCHEMA_VERSION + 1};
END $$"""
"""The most that a next version may do to the tables while hosts of this one use them: add to each of them."""


@cache
def programs() -> Path | None:
    """The folder of initdb and pg_ctl: $PG_BIN, else the newest that Debian has, else that of the path."""
    if named := os.environ.get("PG_BIN"):
        return Path(named)
    found = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"), key=lambda each: int(each.parts[-3]))
    path = str(found[-1]) if found else shutil.which("initdb")
    return None if path is None else Path(path).parent


needs_postgres = pytest.mark.skipif(programs() is None, reason="PostgreSQL is not installed (PG_BIN)")


class PostgresServer:
    """A server with its data in a folder, reached by a Unix socket there. Its programs run as another user if this is
    root, as they demand."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def run(self, program: str, *words: str) -> None:
        folder = programs()
        assert folder is not None
        user: dict[str, Any] = {"user": "nobody", "extra_groups": ()} if os.geteuid() == 0 else {}
        done = subprocess.run(
            [folder / program, "-D", self.folder / "data", *words],
            **user,
            cwd="/",
            stdin=subprocess.DEVNULL,
            capture_output=program != "pg_ctl",  # the server would keep the pipes
            check=False,
        )
        assert done.returncode == 0, done.stderr

    def begin(self) -> None:
        """Make its data, start it, and make the template of `database`."""
        if os.geteuid() == 0:
            shutil.chown(self.folder, "nobody")
        self.run("initdb", "--auth=trust", "--username=postgres", "--encoding=UTF8", "--locale=C", "--no-sync")
        lines = [f"{name} = {value}" for name, value in _SETTINGS.items()]
        lines.append(f"unix_socket_directories = '{self.folder}'")
        with open(self.folder / "data" / "postgresql.auto.conf", "a") as settings:
            settings.write("\n".join(lines) + "\n")
        self.start()
        try:
            self.execute(f"CREATE DATABASE {_TEMPLATE}")
            migrate(self.fleet(_TEMPLATE))
        except BaseException:
            self.stop()
            raise

    def start(self) -> None:
        self.run("pg_ctl", "start", "--wait", "--silent", "--log", str(self.folder / "log"))

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "stop", "--silent", "--mode", mode)

    @contextmanager
    def crashed(self) -> Iterator[None]:
        """Without it for the block."""
        self.stop("immediate")
        try:
            yield
        finally:
            self.start()

    @contextmanager
    def paused(self) -> Iterator[None]:
        """All of its processes stand still for the block."""
        parent = int((self.folder / "data" / "postmaster.pid").read_text().splitlines()[0])
        children = [int(pid) for pid in Path(f"/proc/{parent}/task/{parent}/children").read_text().split()]
        for pid in (parent, *children):
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in (parent, *children):
                os.kill(pid, signal.SIGCONT)

    @property
    def socket(self) -> Path:
        return self.folder / ".s.PGSQL.5432"

    def url(self, database: str = "postgres", user: str = "postgres") -> str:
        return f"postgresql://{user}@/{database}?host={self.folder}"

    def execute(self, *statements: str, database: str = "postgres") -> list[Any]:
        """The rows of the last one."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            *before, last = statements
            for statement in before:
                connection.execute(statement)
            cursor = connection.execute(last)
            return cursor.fetchall() if cursor.description else []

    @contextmanager
    def database(self, *, template: str | None = _TEMPLATE) -> Iterator[str]:
        """A database for the block, with the tables of Colonnade and the fleet `acme`; an empty one without a
        template."""
        name = f"test_{secrets.token_hex(6)}"
        self.execute(f"CREATE DATABASE {name}" + (f" TEMPLATE {template}" if template else ""))
        try:
            yield name
        finally:
            for attempt in range(1, DROPS + 1):
                with suppress(*([psycopg.errors.ObjectInUse] if attempt < DROPS else [])):
                    self.execute(f"DROP DATABASE {name} WITH (FORCE)")
                    break

    def upgrade(self, database: str) -> None:
        """Give a database the next schema while hosts use it, as `migrate` does."""
        while True:
            with suppress(psycopg.errors.LockNotAvailable, psycopg.errors.DeadlockDetected):
                self.execute("SET lock_timeout = '400ms'", _NEXT_SCHEMA, database=database)
                return
            threading.Event().wait(0.2)

    def fleet(self, database: str, name: str = "acme", *keys: Secret) -> Fleet:
        return Fleet(name, Secret(self.url(database)), keys or (KEY,))


@contextmanager
def own_server() -> Iterator[PostgresServer]:
    """A server of its own, for a test that ends it."""
    with tempfile.TemporaryDirectory(prefix="pg") as made:
        server = PostgresServer(Path(made))
        server.begin()
        try:
            yield server
        finally:
            server.stop()


@contextmanager
def shared_server(run: Path) -> Iterator[PostgresServer]:
    """The server of all processes of a run, in whose folder they count themselves: the first one starts it, and the
    last one stops it."""
    users = run / "postgres.users"
    with _locked(run):
        if not users.exists():
            folder = Path(tempfile.mkdtemp(prefix="pg"))
            PostgresServer(folder).begin()
            users.write_text(f"{folder}\n")
        folder = Path(users.read_text().splitlines()[0])
        with users.open("a") as more:
            more.write("x\n")
    try:
        yield PostgresServer(folder)
    finally:
        with _locked(run):
            lines = users.read_text().splitlines()[:-1]
            users.write_text("\n".join(lines) + "\n")
            if len(lines) == 1:
                PostgresServer(folder).stop()
                shutil.rmtree(folder)
                users.unlink()


@contextmanager
def _locked(run: Path) -> Iterator[None]:
    with open(run / "postgres.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield
