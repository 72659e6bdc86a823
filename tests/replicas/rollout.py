"""Processes of a fleet that are replaced one after the other, while clients use it through haproxy: none may notice.

The first rollout is one to the next version: the database gets the next schema under the processes of this one.
"""

from __future__ import annotations

import random
from contextlib import ExitStack
from pathlib import Path

import trio

from tests.kit.asgi import LATEST
from tests.real.running import BARE_PYTHON, SERVERS, listening

from .book import Book, Ending
from .clients import HANDSHAKE, GuestClient, HttpClient, Load, PatientClient, SdkClient, TaskClient
from .fleet import served_fleet
from .process import judge, person
from .restarts import all_hear, clients_at_work

ROLLOUTS = 2
UP = 2.0
"""Seconds of load between two ends."""
ANY = [*BARE_PYTHON, str(SERVERS / "any_revision.py"), "--transport", "http", "--revision"]

OTHERS: dict[str, type[SdkClient] | type[HttpClient]] = {f"guest{n}": GuestClient for n in range(4)}
OTHERS |= {f"worker{n}": TaskClient for n in range(2)} | {f"patient{n}": PatientClient for n in range(4)}


async def rollout(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is ROLLOUTS rollouts; there is one at least."""
    book, draw = Book(), random.Random(seed)
    with ExitStack() as stack:
        _, old = stack.enter_context(listening(*ANY, HANDSHAKE, folder=folder))
        _, new = stack.enter_context(listening(*ANY, LATEST, folder=folder))
        consent = {"tools": "allow", "sampling": "allow", "elicitation": "allow"}
        more = {"consent": consent, "limits": {"sampling": "1000/s", "sampling_tokens": "100000/s"}}
        servers = {"old": {"url": old, **more}, "new": {"url": new, **more}}
        fleet = stack.enter_context(served_fleet(folder, servers, drain="20s", ask={"timeout": "5s"}))
        load = Load(fleet.url, book, draw)
        await fleet.begin()
        for each in fleet.processes:
            stack.enter_context(person(each.state, book))
        async with clients_at_work(load, 12, 8, 4, OTHERS):
            await trio.to_thread.run_sync(fleet.postgres.upgrade, fleet.database)
            for _ in range(max(1, round(ROLLOUTS * size))):
                for process in fleet.processes:
                    await trio.sleep(UP)
                    await fleet.restart(load, process, Ending.TOLD, is_next=True)
                    await all_hear(load, fleet.server)
        for kind in ("calls in which a server asked", "tasks"):
            if not book.count[kind]:
                book.blame(f"there were no {kind}")
        if book.count["broken lists"]:
            book.blame(f"{book.count['broken lists']} lists were broken off")
    judge(book, folder)
    return book
