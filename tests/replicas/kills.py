"""Processes of a fleet that are killed, one each five seconds, while clients use it through haproxy.

A part in which the machine gave no processor for so long that processes lose their leases, as they should, says nothing
about what looks like a lost lease. It is run again, once.
"""

from __future__ import annotations

import os
import random
from contextlib import ExitStack
from pathlib import Path

import trio

from .book import MOST_SHOWN, Book, Doubt, Ending
from .clients import Load
from .control import STARVED, Waits, controlled
from .fleet import CUT, served_fleet
from .process import judge, person
from .restarts import all_hear, clients_at_work

KILLS = 60
SESSIONS = 200
EVERY = 5.0
"""Seconds from one kill to the next, at least: a process that is killed has to be ready again."""
ANSWERS = 4.0
"""Seconds after a kill in which each client must have an answer again, if it has asked."""
USUAL = 1.0
"""Seconds in which who asks later must have one."""


async def kills(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is KILLS kills with SESSIONS sessions."""
    draw, sessions = random.Random(seed), max(12, round(SESSIONS * size))
    book, doubts = await _part(max(3, round(KILLS * size)), sessions, draw, folder / "first")
    if doubts:
        near = [each for each in book.outages if any(each.touches(at.begun - EVERY, at.ended) for at in doubts)]
        print(f"  inconclusive: {len(near)} of {len(book.outages)} kills are tried again; the machine gave")
        for each in doubts[:MOST_SHOWN]:
            print(f"    {each.text}", flush=True)
        again, book.inconclusive = await _part(max(3, len(near)), sessions, draw, folder / "again")
        book.add(again)
    return book


async def _part(number_of_kills: int, sessions: int, draw: random.Random, folder: Path) -> tuple[Book, list[Doubt]]:
    """So many kills, and what cannot be judged of them."""
    await trio.Path(folder).mkdir()
    with controlled(folder) as control:
        book = await _kill(number_of_kills, sessions, draw, folder)
    return book, book.settle(Waits(control.waits()).longest, STARVED)


async def _kill(number_of_kills: int, sessions: int, draw: random.Random, folder: Path) -> Book:
    book = Book()
    with ExitStack() as stack:
        fleet = stack.enter_context(served_fleet(folder, {}, ask={"timeout": "5s"}))
        load = Load(fleet.url, book, draw, pause=max(0.2, sessions / 50), cut=CUT)
        await fleet.begin()
        for each in fleet.processes:  # a question is on the console of each; one answer counts
            stack.enter_context(person(each.state, book))
        async with clients_at_work(load, sessions, max(8, sessions // 2), 4):
            await fleet.wait_stored(sessions)
            for number in range(number_of_kills):
                next_at = trio.current_time() + EVERY
                await fleet.restart(load, fleet.processes[number % len(fleet.processes)], Ending.KILLED)
                await all_hear(load, fleet.server)
                await trio.sleep_until(next_at)
                if number % 10 == 9:
                    print(f"  {number + 1} kills, {len(book.attempts)} calls", flush=True)
            await trio.sleep(ANSWERS + 2 * load.pause)  # two calls at least, of which one may be a list
    judge(book, folder)
    _judge_recovery(book, load)
    return book


def _judge_recovery(book: Book, load: Load) -> None:
    """Print how long clients were without an answer. In CI that is no failure: the machine may do something else."""
    slowest = []
    for outage in book.outages:
        again = book.answers_again(outage)
        took = [each.answered - each.asked for each in again.values() if each.asked < EVERY]
        slowest.append(max(took, default=float("inf")))
        late = {
            client: f"{each.answered:.1f} (asked {each.asked:.1f})"
            for client, each in again.items()
            if each.asked < EVERY and each.answered > max(ANSWERS, each.asked + USUAL)  # then others are killed
        }
        if late and not os.environ.get("CI"):
            book.doubt(f"had no answer {ANSWERS:g} s after a kill: {late}", outage.at, outage.at + ANSWERS)
        if deaf := book.deaf_after(outage, load.members):
            book.blame(f"had no answer any more after a kill: {sorted(deaf)}")
    ordered = sorted(slowest)
    print(
        f"  the slowest of the first answers after a kill took {ordered[len(ordered) // 2]:.1f} s, "
        f"at most {ordered[-1]:.1f} s"
    )
