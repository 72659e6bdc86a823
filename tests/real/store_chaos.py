"""Three processes that decide in one fleet, while they are killed and stopped, and the database crashes.

    python -m tests.real.store_chaos [--seconds 300]

What was confirmed is stored whatever happens, and nothing is that nobody decided. Beside them an onlooker, as another
machine: what was taken back holds there no longer than LOCKED_LIMIT after it was confirmed.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import signal
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from random import Random

from config import Fleet, Secret
from host.storage.postgres import open_postgres
from host.storage.store import LOCKED_LIMIT, StateError
from tests.kit.postgres import PostgresServer, own_server
from tests.real import deciders

OWNERS = ("one", "two", "three")


class Onlooker:
    """Follows the grants of the fleet, and notes how long one that was taken back was still there."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._look)
        self.seen: dict[str, tuple[float, float]] = {}
        """By id of a grant: the times at which it held first and last."""

    @contextmanager
    def watching(self) -> Iterator[None]:
        self._thread.start()
        try:
            yield
        finally:
            self._over.set()
            self._thread.join()

    def _look(self) -> None:
        with open_postgres(self._fleet) as store:
            while not self._over.wait(0.002):
                store.poll()
                now = time.time()
                for grant in store.read_grants() if store.is_reliable else ():
                    first, _ = self.seen.get(grant.id, (now, now))
                    self.seen[grant.id] = (first, now)


class Chaos:
    def __init__(self, server: PostgresServer, folder: Path, seed: int) -> None:
        self.server = server
        self.folder = folder
        self.draw = Random(seed)
        self.known: deciders.Known = {}
        self.counts: Counter[str] = Counter()
        self.running: dict[str, tuple[ForkServerProcess, Path]] = {}
        self._context = multiprocessing.get_context("forkserver")
        self._context.set_forkserver_preload([deciders.__name__, "host.storage.postgres"])
        self.revoked: dict[str, float] = {}
        """Grants that were confirmed to be taken back, and when their process said so."""

    def start(self, owner: str) -> None:
        log = self.folder / f"{self.counts['starts']}-{owner}.log"
        self.counts["starts"] += 1
        own = {key: value for key, value in self.known.items() if key.startswith(owner)}
        told = (self.folder / "state", log, owner, own, self.draw.randrange(2**32))
        process = self._context.Process(target=decide_until_it_cannot, args=told)
        process.start()
        self.running[owner] = (process, log)

    def end(self, owner: str) -> None:
        """Kill a process, which may have ended by itself, and compare what it confirmed with what is stored."""
        process, log = self.running.pop(owner)
        process.kill()
        process.join()
        self.revoked |= revocations(log)
        count, step = deciders.outcome(log, self.known)
        self.counts["confirmed"] += count
        found = {
            key: value for key, value in deciders.stored(self.folder / "state", OWNERS).items() if key.startswith(owner)
        }
        if step is not None and found.get(step.key, False) == step.after:
            self.known[step.key] = step.after
            self.counts["under way and stored"] += 1
        expected = {k: value for k, value in self.known.items() if value is not False and k.startswith(owner)}
        differing = {key: (found.get(key), expected.get(key)) for key in found.keys() | expected.keys()}
        assert found == expected, (step, {key: each for key, each in differing.items() if each[0] != each[1]})

    def disturb(self) -> None:
        owner = self.draw.choice(OWNERS)
        process, _ = self.running[owner]
        what = self.draw.choices(["kill", "pause", "crash"], [6, 2, 1])[0]
        self.counts[what] += 1
        if what == "kill":
            self.end(owner)
            self.start(owner)
        elif what == "pause" and process.pid is not None and process.is_alive():
            os.kill(process.pid, signal.SIGSTOP)
            threading.Event().wait(self.draw.uniform(0.5, 4))
            os.kill(process.pid, signal.SIGCONT)
        elif what == "crash":
            self.server.stop("immediate")
            threading.Event().wait(self.draw.uniform(0, 3))
            self.server.start()
        for each in OWNERS:  # whoever could not store has ended
            if not self.running[each][0].is_alive():
                self.counts["ended without the database"] += 1
                self.end(each)
                self.start(each)


def revocations(log: Path) -> dict[str, float]:
    """The grants that were taken back, and when that was confirmed."""
    found, begun = dict[str, float](), ""
    for line in log.read_bytes().splitlines() if log.exists() else []:
        said = json.loads(line)
        if "begun" in said:
            begun = said["begun"]["key"] if said["begun"]["what"] == "revoke grant" else ""
        elif begun:
            found[begun] = said["done"]
    return found


def decide_until_it_cannot(state: Path, log: Path, owner: str, known: deciders.Known, seed: int) -> None:
    with suppress(StateError):
        deciders.decide_until_killed(state, log, owner, known, seed)


def run(seconds: float, seed: int) -> None:
    with own_server() as server, server.database() as name, tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        (folder / "state").mkdir(mode=0o700)
        (folder / "state" / "fleet").write_text(server.url(name))
        chaos = Chaos(server, folder, seed)
        onlooker = Onlooker(Fleet("acme", Secret(server.url(name)), (Secret("5a" * 32),)))
        with onlooker.watching():
            for owner in OWNERS:
                chaos.start(owner)
            until = time.monotonic() + seconds
            while time.monotonic() < until:
                threading.Event().wait(chaos.draw.uniform(0.5, 2.5))
                chaos.disturb()
            for owner in OWNERS:
                chaos.end(owner)
        late = [last - chaos.revoked[id] for id, (_, last) in onlooker.seen.items() if id in chaos.revoked]
        chaos.counts["grants taken back that the onlooker saw"] = len(late)
        assert not late or max(late) < LOCKED_LIMIT, max(late)
        for share in (0.5, 0.99, 1.0):
            at = sorted([0.0, *late])[min(len(late), int(share * len(late)))]
            chaos.counts[f"ms until gone, {share:.0%}"] = round(at * 1000)
        print(f"{seconds:g} s, no fault: {', '.join(f'{what} {count}' for what, count in chaos.counts.items())}")


if __name__ == "__main__":
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--seconds", type=float, default=300.0)
    arguments.add_argument("--seed", type=int, default=1)
    given = arguments.parse_args()
    run(given.seconds, given.seed)
