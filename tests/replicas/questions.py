"""Questions of one process of a fleet to a person are shown and answered at another one: how long that takes, and that
of two answers at once one counts."""

from __future__ import annotations

import json
import os
import random
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import trio

from host.cli.admin_client import AdminClientError, RunningHost, find_hosts

from .book import Book, End
from .clients import Load, StatelessClient
from .fleet import served_fleet
from .process import judge, until

QUESTIONS = 300
SHOWN = 0.5
"""Seconds from a call to its question at the console of another process."""
GOES_ON = 0.5
"""Seconds from the answer to the result of the call."""
PATIENCE = 10.0


@dataclass
class Console:
    """A console of one process, which is watched by a thread."""

    host: RunningHost
    shown: dict[str, tuple[str, float]] = field(default_factory=dict)
    """By the id of a call, the id of its question, and when it was there."""

    def follow(self) -> None:
        with suppress(AdminClientError, OSError):  # the process has ended
            for told in self.host.follow():
                for asked in told.get("confirmations", ()):
                    self.shown.setdefault(_id_of(asked), (asked["id"], time.monotonic()))

    def answer(self, id: str, answer: str) -> bool:
        """Whether it counts."""
        try:
            self.host.post("confirmations/answer", id=self.shown[id][0], answer=answer)
        except AdminClientError:
            return False
        return True


def _id_of(asked: dict[str, Any]) -> str:
    return str(json.loads(asked["arguments"])["id"])


@contextmanager
def watched(state: Path) -> Iterator[Console]:
    (host,) = find_hosts(state)
    console = Console(host)
    threading.Thread(target=console.follow, daemon=True).start()
    yield console


class Asker(StatelessClient):
    """Calls at one process what needs a person, once."""

    async def ask_once(self, id: str) -> tuple[End, float]:
        self.book.asked.add(id)
        await self.call_as(id, "confirmed", 0)
        return self.book.attempts[-1].end, time.monotonic()


async def questions(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is QUESTIONS questions, each asked at one process and answered at the two others at once."""
    book, draw = Book(), random.Random(seed)
    shown, went_on = list[float](), list[float]()
    with ExitStack() as stack:
        fleet = stack.enter_context(served_fleet(folder, {}))
        await fleet.begin()
        consoles = [stack.enter_context(watched(process.state)) for process in fleet.processes]
        async with httpx.AsyncClient(trust_env=False, timeout=60) as http:
            for number in range(max(12, round(QUESTIONS * size))):
                at = number % len(consoles)
                others = [console for n, console in enumerate(consoles) if n != at]
                asker = Asker(f"asker{number}", Load(fleet.processes[at].url, book, draw), http)
                await _ask(asker, f"{number}", others, shown, went_on)
    judge(book, folder)
    for what, took, limit in (("shown at another process", shown, SHOWN), ("gone on", went_on, GOES_ON)):
        took.sort()
        late = took[min(len(took) - 1, int(0.99 * len(took)))]
        print(
            f"  {what} after {took[len(took) // 2] * 1000:.0f} ms, p99 {late * 1000:.0f}, at most {took[-1] * 1000:.0f}"
        )
        if late > limit and not os.environ.get("CI"):
            book.blame(f"{what} after {late:.2f} s (p99)")
    return book


async def _ask(asker: Asker, id: str, others: list[Console], shown: list[float], went_on: list[float]) -> None:
    """One question, a permission and a denial at once."""
    ended: list[tuple[End, float]] = []
    counts: dict[str, float] = {}

    async def call() -> None:
        ended.append(await asker.ask_once(id))

    async def answer(console: Console, given: str) -> None:
        if await trio.to_thread.run_sync(console.answer, id, given):
            counts[given] = time.monotonic()

    begun = time.monotonic()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(call)
        await until(lambda: all(id in console.shown for console in others), "each shows the question", PATIENCE)
        shown += [console.shown[id][1] - begun for console in others]
        asker.load.random.shuffle(others)
        async with trio.open_nursery() as answering:
            for console, given in zip(others, ("once", "deny"), strict=True):
                answering.start_soon(partial(answer, console, given))
    (end, at) = ended[0]
    if len(counts) != 1:
        asker.book.blame(f"{id}: of two answers these counted: {sorted(counts)}")
    if (end is End.DONE) != ("once" in counts):
        asker.book.blame(f"{id} was {end}, and the answer was {sorted(counts)}")
    if "once" in counts:
        asker.book.answered.add(id)
        went_on.append(at - counts["once"])
