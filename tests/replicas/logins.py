"""Processes of a fleet that are killed while they refresh one login, whose issuer takes each refresh token once.

A process that is killed between the request and its answer takes the new token with it: once its lease is over, the
next one asks again with the former token, since nothing else is known. Any other second use is a fault.
"""

from __future__ import annotations

import json
import random
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx
import trio

from host.cli.admin_client import find_hosts
from host.upstream.credentials import LEASE
from tests.real.oauth.fixtures import login_command
from tests.real.running import SERVERS, listening

from .book import Book, Ending
from .clients import PATIENCE, Load, StatelessClient
from .fleet import CUT, ServedFleet, served_fleet
from .process import PAUSE, START, judge, until

KILLS = 60
EVERY = 5.0
"""Seconds from one kill to the next, at least."""
CALLERS = 6


class Caller(StatelessClient):
    """Calls what needs the login, on and on."""

    server = "guarded"
    patience = 3 * LEASE + PATIENCE  # a process that is killed has its lease, and so may the next one

    async def run(self) -> None:
        while await self.load.rest():
            await self.call("note", 0)


class Events:
    """The uses of refresh tokens, as the issuer wrote them down."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset = time.time() - trio.current_time()

    def all(self, what: str) -> list[float]:
        """When these came, by the clock of the run."""
        lines = [json.loads(line) for line in self._file.read_text().splitlines()] if self._file.exists() else []
        return [line["at"] - self._offset for line in lines if line["what"] == what]

    async def wait_next(self) -> None:
        """Wait until a process asks for another token."""
        known = len(self.all("begun"))
        await until(lambda: len(self.all("begun")) > known, "a token is refreshed", START)


async def logins(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is KILLS kills, half of them while a token is refreshed by one of the processes."""
    book, draw = Book(), random.Random(seed)
    events = Events(folder / "events")
    command = [sys.executable, str(SERVERS / "rotating.py"), str(folder / "events"), str(folder / "ledger"), "0"]
    with ExitStack() as stack:
        _, url = stack.enter_context(listening(*command, folder=folder))
        fleet = stack.enter_context(served_fleet(folder, {"guarded": {"url": url, "consent": {"tools": "allow"}}}))
        load = Load(fleet.url, book, draw, cut=CUT)
        await fleet.begin()
        await _log_in(fleet)
        async with httpx.AsyncClient(trust_env=False, timeout=Caller.patience) as http, trio.open_nursery() as nursery:
            for n in range(CALLERS):
                nursery.start_soon(Caller(f"caller{n}", load, http).run)
            for number in range(max(3, round(KILLS * size))):
                next_at = trio.current_time() + EVERY
                if number % 2:
                    await events.wait_next()
                    await trio.sleep(draw.random() / 2)
                await fleet.restart(load, draw.choice(fleet.processes), Ending.KILLED)
                await trio.sleep_until(next_at)
                if number % 10 == 9:
                    print(f"  {number + 1} kills, {len(book.attempts)} calls", flush=True)
            load.stopping = True
    judge(book, folder)
    _judge_tokens(book, events)
    return book


async def _log_in(fleet: ServedFleet) -> None:
    """Log in at one process, and wait until the server is ready at each."""

    def log_in() -> None:
        with login_command(fleet.processes[0].file, "guarded") as command:
            httpx.get(command.start_link(), follow_redirects=True, trust_env=False).raise_for_status()
            assert command.end() == 0, command.said

    def is_ready() -> bool:
        hosts = [host for process in fleet.processes for host in find_hosts(process.state)]
        servers = [server for host in hosts for server in host.get("status")["servers"]]
        return [each["state"] for each in servers if each["id"] == "guarded"] == ["ready"] * len(fleet.processes)

    await trio.to_thread.run_sync(log_in)
    await until(is_ready, "each process uses the login", START)


def _judge_tokens(book: Book, events: Events) -> None:
    refreshed, again, reused = (events.all(what) for what in ("refreshed", "asked again", "reused"))
    book.count["refresh tokens used"] = len(refreshed)
    book.count["refresh tokens of a killed process used again"] = len(again)
    if reused:
        book.count["refresh tokens reused"] = len(reused)
        book.blame(f"{len(reused)} refresh tokens were used although others had taken their place")
    for at in again:
        former = max(each for each in (*refreshed, *again) if each < at)
        if not any(former - PAUSE < outage.at < at for outage in book.outages):
            book.blame(f"a refresh token was used again after {at - former:.1f} s, and no process was killed meanwhile")
    if not refreshed:
        book.blame("no refresh token was used")
