"""Two deciding processes on one state directory, killed at random moments, again and again.

    python -m tests.real.killed STATE KILLS SEED

Each writes down every decision before it makes it and once it is confirmed. After each round the database must hold
every confirmed decision, and none that nobody made: one that was begun may be stored or not. Prints what was done, and
exits with 1 and a list if something is wrong.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import threading
import time
import traceback
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import trio

from config import Trust
from host.policy.fingerprint import fingerprint
from host.policy.grants import Grant, Grants, Scope
from host.policy.pins import Pins
from host.slices import Steps, complete, run_inline
from host.storage.directory import open_state
from host.storage.sqlite import open_store

SOURCE = Path("/nowhere/colonnade.yaml")
TRUSTS = {"shared": Trust.UNTRUSTED, "standard": Trust.STANDARD}
ITEMS = 4
LONGEST_LIFE = 0.08
"""Seconds that a process lives at most after its first decision."""


class Standing(NamedTuple):
    """What is decided about an item: the fingerprints that were approved and rejected."""

    approved: str | None = None
    rejected: str | None = None


class Decider:
    """One process. `log` is where it writes what it does."""

    def __init__(self, pins: Pins, grants: Grants, name: str, log: int) -> None:
        self._pins = pins
        self._grants = grants
        self._name = name
        self._log = log
        self._random = random.Random(name)
        self._versions = {f"{name}-{number}": 0 for number in range(ITEMS)}
        self._standings = dict.fromkeys(self._versions, Standing())
        self._seen: dict[str, bytes] = {}
        self._granted: list[str] = []

    async def run(self) -> None:
        await self._offer()
        while True:
            await self._random.choice([self._change, self._decide, self._decide, self._see, self._grant])()

    async def _offer(self) -> None:
        offered = {name: definition(name, version) for name, version in self._versions.items()}
        await complete(self._pins.observe("shared", "tool", offered))

    async def _change(self) -> None:
        self._versions[self._random.choice(list(self._versions))] += 1
        await self._offer()

    async def _decide(self) -> None:
        name = self._random.choice(list(self._versions))
        shown = fingerprint(definition(name, self._versions[name]))
        standing = self._standings[name]
        if standing.approved == shown or self._random.random() < 0.2:
            if standing.approved is None:
                return
            after, steps = Standing(None, standing.rejected), self._pins.revoke("shared", "tool", name)
        elif self._random.random() < 0.3:
            after, steps = standing._replace(rejected=shown), self._pins.reject("shared", "tool", name, shown)
        else:
            after, steps = Standing(shown), self._pins.approve("shared", "tool", name, shown, "console")
        await self._confirm("decide", name, after, steps)
        self._standings[name] = after

    async def _see(self) -> None:
        """A list of a standard server with one more tool, which is approved by first sight."""
        name = f"{self._name}-seen-{len(self._seen)}"
        seen = {**self._seen, name: definition(name, 0)}
        await self._confirm("see", name, fingerprint(seen[name]), self._pins.observe("standard", "tool", seen))
        self._seen = seen

    async def _grant(self) -> None:
        if self._granted and self._random.random() < 0.4:
            id = self._granted.pop()
            await self._confirm("revoke", id, None, self._grants.revoke(id))
            return
        id = f"{self._name}-{self._random.getrandbits(32)}"
        grant = Grant(
            id, None, None, "shared", "tool", "x", "f", "", "r", None, (), Scope.ALWAYS, time.time(), None, "console"
        )
        await self._confirm("grant", id, None, self._grants.add(grant))
        self._granted.append(id)

    async def _confirm(self, what: str, name: str, after: object, steps: Steps[Any]) -> None:
        self._write("begun", what, name, after)
        await complete(steps)
        self._write("done", what, name, after)

    def _write(self, *words: object) -> None:
        os.write(self._log, json.dumps(words).encode() + b"\n")


def definition(name: str, version: int) -> bytes:
    return json.dumps({"name": name, "description": f"version {version} " + "x" * 500}).encode()


def decide(state: Path, name: str, log: int) -> None:
    async def run() -> None:
        with open_store(open_state(state), SOURCE) as store:
            await Decider(Pins(store, TRUSTS), Grants(store), name, log).run()

    trio.run(run)


class Expected:
    """What the logs of all rounds say that the database holds: of each thing one value, or one of two."""

    def __init__(self) -> None:
        self.items: dict[str, list[Standing]] = {}
        self.seen: dict[str, list[str | None]] = {}
        self.grants: dict[str, list[bool]] = {}
        self.confirmed = 0

    def read(self, log: Path) -> None:
        for line in log.read_bytes().splitlines():
            moment, what, name, after = json.loads(line)
            done = moment == "done"
            self.confirmed += done
            if what == "decide":
                standing = Standing(*after)
                self.items[name] = [standing] if done else [*self.items.get(name, [Standing()]), standing]
            elif what == "see":
                self.seen[name] = [after] if done else [None, after]
            else:
                self.grants[name] = [what == "grant"] if done else [what == "grant", what != "grant"]

    def differences(self, state: Path) -> list[str]:
        wrong: list[str] = []
        with open_store(open_state(state), SOURCE) as store:
            found = run_inline(store.read_definitions(0))
            if found.lost is not None:
                return [f"lost: {found.lost}"]
            items = {(server, name): item for server, _, name, item in found.items}
            granted = {grant.id for grant in store.read_grants()}
        for name, standings in self.items.items():
            item = items.get(("shared", name))
            approved = None if item is None or item.approved is None else item.approved.fingerprint
            standing = Standing(approved, None if item is None else item.rejected)
            if standing not in standings:
                wrong.append(f"{name}: {standing}, expected one of {standings}")
        for name, expected in self.seen.items():
            item = items.get(("standard", name))
            first = None if item is None or item.approved is None else item.approved.fingerprint
            if first not in expected:
                wrong.append(f"{name}: {first}, expected one of {expected}")
        wrong += [
            f"grant {id}: {id in granted}" for id, expected in self.grants.items() if (id in granted) not in expected
        ]
        wrong += [f"grant {id}: given by nobody" for id in granted - self.grants.keys()]
        for (server, name), item in items.items():
            decided = self.items if server == "shared" else self.seen
            if item.approved is not None and name not in decided:
                wrong.append(f"{server} {name}: approved by nobody")
        return wrong


def pause(seconds: float) -> None:
    threading.Event().wait(seconds)


def forked(run: Callable[[], None]) -> int:
    pid = os.fork()
    if pid == 0:
        try:
            run()
        except BaseException:  # noqa: BLE001 - it must not go on as its parent
            traceback.print_exc()
        finally:
            os._exit(1)
    return pid


def play(state: Path, kills: int, seed: int) -> tuple[Expected, list[str]]:
    chance = random.Random(seed)
    expected = Expected()
    logs = state.with_suffix(".logs")
    logs.mkdir()
    for number in range((kills + 1) // 2):
        pids, files = [], []
        for which in range(2):
            name = f"{seed}-{number}-{which}"
            files.append(logs / name)
            log = os.open(files[-1], os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            pids.append(forked(lambda name=name, log=log: decide(state, name, log)))  # type: ignore[misc]
            os.close(log)
        if chance.random() < 0.8:  # else it may be killed while it opens the database
            while not all(file.stat().st_size for file in files) and os.waitpid(-1, os.WNOHANG) == (0, 0):
                pause(0.001)
        for pid in chance.sample(pids, 2):
            pause(chance.random() * LONGEST_LIFE / 2)
            os.kill(pid, signal.SIGKILL)
            ended, status = os.waitpid(pid, 0)
            if os.waitstatus_to_exitcode(status) != -signal.SIGKILL:
                return expected, [f"round {number}: process {ended} had ended by itself: {status}"]
        for file in files:
            expected.read(file)
        wrong = expected.differences(state)
        if wrong:
            return expected, [f"round {number}: {each}" for each in wrong]
    return expected, []


def main() -> int:
    state, kills, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    expected, wrong = play(state, kills, seed)
    values: list[Sequence[object]] = [*expected.items.values(), *expected.seen.values(), *expected.grants.values()]
    in_doubt = sum(len(each) > 1 for each in values)
    print(*wrong, f"{kills} kills, {expected.confirmed} confirmed decisions, {in_doubt} in doubt", sep="\n")
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
