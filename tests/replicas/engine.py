"""A fleet whose database is away for a minute: stopped, standing still, and behind a black hole. What rules
allow goes on; what is stored does not hold until it is back."""

from __future__ import annotations

import os
import random
import statistics
from collections.abc import Callable
from contextlib import AbstractContextManager, ExitStack
from pathlib import Path

import httpx
import trio

from host.cli.admin_client import find_hosts

from .book import Attempt, Book, End
from .clients import Load, StatelessClient
from .fleet import ServedFleet, served_fleet
from .process import judge, until
from .restarts import clients_at_work

AWAY = 60.0
"""Seconds; what was approved holds for longer (host/storage/postgres.py, GRACE)."""
UP = 5.0
"""Seconds of load before and after."""
HOLDS = 2.5
"""Seconds after which no stored grant holds any more."""
BACK = 2.0
"""Seconds within which it holds again everywhere."""
SLOWER = 2.0
"""The most that allowed calls may take meanwhile (p99), in times of what they take else."""
LOOK = 0.02


class Looks:
    """The longest time that `/healthz` of a process took: no pass of its loop was longer."""

    def __init__(self) -> None:
        self.longest = 0.0

    def take(self) -> float:
        """The longest one since it was asked last."""
        longest, self.longest = self.longest, 0.0
        return longest

    async def run(self, base: str, load: Load) -> None:
        async with httpx.AsyncClient(trust_env=False, timeout=60, headers={"host": "localhost"}) as http:
            while not load.stopping:
                begun = trio.current_time()
                await http.get(f"{base}/healthz")
                self.longest = max(self.longest, trio.current_time() - begun)
                await trio.sleep(LOOK)


class Asker(StatelessClient):
    """Calls what needs a grant, on and on."""

    async def run(self) -> None:
        while await self.load.rest():
            await self.call("confirmed", 0)


async def engine(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is AWAY seconds without the database, three times."""
    book, draw = Book(), random.Random(seed)
    seconds = max(3 * HOLDS, AWAY * size)
    absences: list[tuple[float, float]] = []
    with ExitStack() as stack:
        fleet = stack.enter_context(served_fleet(folder, {}, has_way=True))
        load = Load(fleet.url, book, draw)
        await fleet.begin()
        await _grant(fleet, load)
        assert fleet.way is not None
        looks = [Looks() for _ in fleet.processes]
        async with trio.open_nursery() as nursery:
            for each, process in zip(looks, fleet.processes, strict=True):
                nursery.start_soon(each.run, process.base, load)
            async with clients_at_work(load, 12, 8, 4, {f"asker{n}": Asker for n in range(4)}):
                await trio.sleep(UP)
                for each in looks:
                    each.take()
                for name, away in (
                    ("stopped", fleet.postgres.crashed),
                    ("standing still", fleet.postgres.paused),
                    ("behind a black hole", fleet.way.black_hole),
                ):
                    absences.append(await _without(away, seconds))
                    longest = max(each.take() for each in looks)
                    await trio.sleep(UP)
                    _tell(name, book, absences, max(each.take() for each in looks), longest)
    book.answered = {each.id for each in book.attempts if not any(_is_amid(each, absence) for absence in absences)}
    judge(book, folder)
    return book


async def _grant(fleet: ServedFleet, load: Load) -> None:
    """Have a person allow all calls of `confirmed` for good."""
    async with httpx.AsyncClient(trust_env=False) as http:
        await StatelessClient("first", load, http).call("confirmed", 0)
    (host,) = find_hosts(fleet.processes[0].state)
    await until(lambda: bool(host.get("state/confirmations")["confirmations"]), "the question is shown", UP)
    (asked,) = host.get("state/confirmations")["confirmations"]
    host.post("confirmations/answer", id=asked["id"], answer="always", arguments="any")
    hosts = [host for process in fleet.processes for host in find_hosts(process.state)]
    await until(lambda: all(each.get("state/grants")["grants"] for each in hosts), "each has the grant", UP)


async def _without(away: Callable[[], AbstractContextManager[None]], seconds: float) -> tuple[float, float]:
    """Take the database away for a time; when it was."""
    block = away()
    begun = trio.current_time()
    await trio.to_thread.run_sync(block.__enter__)
    await trio.sleep(seconds)
    await trio.to_thread.run_sync(block.__exit__, None, None, None)
    return begun, trio.current_time()


def _is_amid(attempt: Attempt, absence: tuple[float, float]) -> bool:
    """Whether no stored grant can have held for a call."""
    return attempt.begun > absence[0] + HOLDS and attempt.ended < absence[1]


def _tell(name: str, book: Book, absences: list[tuple[float, float]], usual: float, longest: float) -> None:
    """Print what the last absence cost, beside what is usual. In CI its seconds are no failure: the machine may do
    something else."""
    begun, back = absences[-1]
    took: dict[bool, list[float]] = {True: [], False: []}
    asked = [each for each in book.attempts if each.id in book.asked]
    for each in book.attempts:
        is_amid = begun < each.begun and each.ended < back
        is_usual = not any(start < each.ended and each.begun < end for start, end in absences)
        if each.end is End.DONE and each.id not in book.asked and (is_amid or is_usual):
            took[is_amid].append(each.ended - each.begun - each.worked)
    former, during = (statistics.quantiles(took[when], n=100)[98] * 1000 for when in (False, True))
    refused = [each for each in asked if each.end is End.UNSENT and _is_amid(each, absences[-1])]
    late = max((each.begun - back for each in asked if each.end is End.UNSENT and each.begun > back), default=0.0)
    calls = f"{len(took[True])} allowed calls, p99 {during:.0f} ms (else {former:.0f})"
    print(
        f"  {name} for {back - begun:.0f} s: {calls}\n"
        f"    {len(refused)} calls refused without their grant, the last one {late:.1f} s after its return\n"
        f"    no pass of a loop over {longest * 1000:.0f} ms (else {usual * 1000:.0f})",
        flush=True,
    )
    if not refused:
        book.blame(f"{name}: no call was refused for want of its grant")
    if not any(each.end is End.DONE and each.begun > back for each in asked):
        book.blame(f"{name}: no stored grant holds again")
    if during > SLOWER * former and not os.environ.get("CI"):
        book.blame(f"{name}: allowed calls took {during:.0f} ms (p99), and {former:.0f} else")
    if late > BACK and not os.environ.get("CI"):
        book.blame(f"{name}: a stored grant did not hold {late:.1f} s after the database was back")
