"""The composition root: what is opened first is used longest and stops last, so the nesting here is the stop order.

Over HTTP: signals, keeper, roster, HTTP face, listener. Over stdio: signals, keeper, roster, session.
"""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from functools import partial

import trio

from config import Config
from host.catalog import Catalog, Entry
from host.downstream.hosted import Hosted, open_hosted
from host.downstream.http import open_http_face
from host.downstream.parking import Lot, open_lot
from host.downstream.sessions import Session
from host.downstream.stateless import Stateless
from host.downstream.stateless_stdio import StatelessStdio
from host.downstream.status import status
from host.downstream.stdio import own_stdout, serve_stdio
from host.downstream.tasks import Tasks
from host.journal import Crashed, Journal, LeftOut, sample
from host.policy.gate import Gate
from host.router import Router
from host.upstream.connect import open_link
from host.upstream.roster import Roster, open_roster
from host.wire.listener import serve_http
from host.wire.process import become_subreaper, open_keeper

STOP_SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)


@dataclass(frozen=True, slots=True)
class Host:
    """Everything behind the faces."""

    catalog: Catalog
    journal: Journal
    roster: Roster
    router: Router
    lot: Lot
    hosted: Hosted
    stateless: Stateless

    def status(self) -> bytes:
        return status(self.roster, self.catalog, self.journal, parked=len(self.lot), tasks=len(self.hosted))


@asynccontextmanager
async def open_host(config: Config, journal: Journal, *, alone: bool = False) -> AsyncIterator[Host]:
    """All servers of the configuration, being connected, for the block; none is left when it ends. `alone`: they will
    have one client only."""

    def collided(entry: Entry) -> None:
        journal.note(
            LeftOut(entry.server, f"{sample(entry.outward)} is offered more than once; all of them are left out")
        )

    def crashed(what: str, problem: Exception) -> None:
        journal.note(Crashed(what, problem))

    gate = Gate(config.servers)
    catalog = Catalog(list(config.servers), gate.shows, collided)
    become_subreaper()
    async with open_keeper() as keeper:
        open_one = partial(open_link, keeper=keeper, journal=journal)
        async with open_roster(
            config.servers, config.start_grace, open_one, catalog, gate, journal, alone=alone
        ) as roster:
            router = Router(catalog, gate, roster)
            async with (
                open_lot(partial(crashed, "a call that may ask its client")) as lot,
                open_hosted(partial(crashed, "a task")) as hosted,
            ):
                stateless = Stateless(router, journal, lot, Tasks(router, hosted))
                yield Host(catalog, journal, roster, router, lot, hosted, stateless)


async def serve(config: Config, bound: socket.socket, journal: Journal) -> None:
    """Serve over HTTP, at the bound socket, until a signal says stop."""
    async with (
        _open_stop() as stop,
        open_host(config, journal) as opened,
        open_http_face(config.listen, opened.router, opened.stateless, journal, opened.status, stop) as app,
    ):
        await serve_http(app, bound, stop=stop)


async def serve_over_stdio(config: Config, journal: Journal) -> None:
    """Serve the one client on our standard input and output until it leaves or a signal says stop."""
    with own_stdout() as stdout:
        async with _open_stop() as stop, open_host(config, journal, alone=True) as opened:
            session = Session("stdio", None, opened.router, journal, tasks=opened.stateless.tasks)
            stateless = StatelessStdio(opened.router, opened.stateless, session, stop)
            await serve_stdio(session, stateless, 0, stdout)


@asynccontextmanager
async def _open_stop() -> AsyncIterator[trio.Event]:
    """An event that the first stop signal sets. The second ends the process at once: children end with their keeper."""
    stop = trio.Event()

    async def watch(signals: AsyncIterator[int]) -> None:
        async for _ in signals:
            if stop.is_set():
                os._exit(0)
            stop.set()

    with trio.open_signal_receiver(*STOP_SIGNALS) as signals:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(watch, signals)
            yield stop
            nursery.cancel_scope.cancel()
