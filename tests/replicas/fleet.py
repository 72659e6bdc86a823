"""Three `colonnade serve` of a fleet on one PostgreSQL, behind haproxy in turns and without affinity."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import trio

from host.downstream.stored_sessions import CHANGE_INTERVAL
from tests.kit.balancer import balancing
from tests.kit.black_hole import Way, open_way
from tests.kit.postgres import PostgresServer, own_server, programs
from tests.kit.replicas import fleet_keys

from .book import Ending
from .clients import Load
from .process import PAUSE, START, Served, ledger
from .restarts import end_amid_load

REPLICAS = 3
CUT = frozenset({502})
"""The status with which haproxy says that the connection to a process broke."""
NOTICED = 0.5
"""Seconds in which haproxy sees that a process is ready."""


class ServedFleet:
    """The processes. `url` is where haproxy serves them, `server` where the ledger is behind them, and `way` leads to
    the database, if it was asked for."""

    def __init__(
        self, processes: list[Served], base: str, postgres: PostgresServer, database: str, way: Way | None, server: str
    ) -> None:
        self.processes = processes
        self.url = f"{base}/mcp"
        self.postgres = postgres
        self.database = database
        self.way = way
        self.server = server

    async def wait_ready(self, process: Served) -> None:
        """Wait until clients are sent to it."""
        async with httpx.AsyncClient(trust_env=False, timeout=START, headers={"host": "localhost"}) as http:
            with trio.fail_after(START):
                while True:
                    await process.wait_listening()
                    with suppress(httpx.TransportError):  # it may have begun to listen and not to serve
                        if (await http.get(f"{process.base}/readyz")).status_code == 200:
                            break
                    await trio.sleep(PAUSE)
        await trio.sleep(NOTICED)

    async def begin(self) -> None:
        for each in self.processes:
            each.start()
        for each in self.processes:
            await self.wait_ready(each)

    async def wait_stored(self, sessions: int) -> None:
        """Wait until the rows of so many sessions are there, and change no more: what a client has said in the last
        half second before a kill may be lost."""
        query, before = "SELECT count(*), sum(hashtext(sealed)::bigint) FROM colonnade.session", None
        with trio.fail_after(START):
            while True:
                ((count, digest),) = await trio.to_thread.run_sync(
                    lambda: self.postgres.execute(query, database=self.database)
                )
                if count >= sessions and digest == before:
                    return
                before = digest
                await trio.sleep(2 * CHANGE_INTERVAL)

    async def restart(self, load: Load, process: Served, how: Ending, *, is_next: bool = False) -> None:
        """End a process and start it again. The outage is over as soon as it has ended: the others serve. `is_next`: as
        the next version."""
        outage = await end_amid_load(process, load, how)
        outage.back = trio.current_time()
        load.quiet = False
        process.start(is_next=is_next)
        await self.wait_ready(process)


def missing() -> str:
    """What this machine does not have of what these scenarios need; empty if it has all."""
    found = [name for name, there in (("haproxy", shutil.which("haproxy")), ("PostgreSQL", programs())) if not there]
    assert not (found and os.environ.get("CI")), f"not installed: {found}"
    return " and ".join(found)


@contextmanager
def served_fleet(
    folder: Path, servers: Mapping[str, object], *, has_way: bool = False, **more: Any
) -> Iterator[ServedFleet]:
    """The fleet for the block, not yet begun, with the ledger `book` and these servers. Its processes are killed at
    the end.

    Args:
        has_way: whether its processes reach the database by a way through this process, which waits for its clients.
    """
    with ExitStack() as stack:
        server = stack.enter_context(ledger(folder))
        postgres = stack.enter_context(own_server())
        database = stack.enter_context(postgres.database())
        way = stack.enter_context(open_way(postgres.socket)) if has_way else None
        store = f"postgresql://postgres@127.0.0.1:{way.port}/{database}" if way else postgres.url(database)
        servers = {"book": server, **servers}
        processes = []
        for n, fleet in enumerate(fleet_keys(folder, store, REPLICAS)):
            own = folder / f"r{n}"
            own.mkdir()
            processes.append(Served(own, servers, fleet=fleet, console="off", **more))
            stack.callback(processes[-1].close)
        base = stack.enter_context(balancing(folder, [each.port for each in processes], ready=True))
        yield ServedFleet(processes, base, postgres, database, way, server["url"])
