"""Starts the real host with real servers, ends it in every way, and counts what is left of it.

    .venv/bin/python tests/real/left_behind.py [--starts 50] [--kills 20] [--at-once 4]

Each round is one host with three servers: one that behaves, one that forks itself out of sight and keeps making
orphans, and one that heeds neither the end of its input nor SIGTERM. A round ends by SIGTERM, by SIGKILL, by SIGKILL
for the host's whole process group, or by SIGKILL after the keeper and all subreapers were stopped, as any server can
stop them. What belongs to a round is known by a mark in its command line, or by having been seen below the host before
(number and start time). Exits with 1 if anything is left two seconds after the end of the host, if a zombie was seen,
or if SIGTERM did not end the host with status 0 in time.

Real clock: the kernel's and the servers' own time is what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import trio

from host.wire.descent import KEEPER_NAME

ROOT = Path(__file__).parents[2]
HOST = (str(ROOT / ".venv/bin/colonnade"),)
FORKER = ROOT / "tests/kit/servers/forker.py"
SERVERS = {"plain": [], "forking": ["fork"], "stubborn": ["fork", "stubborn"]}

READY_LIMIT = 60.0
TERM_LIMIT = 10.0
LEFT_AFTER = 2.0
RUNNING = 1.5
"""Seconds a host is watched for zombies between being ready and being ended."""
SAMPLE_EVERY = 0.05
ZOMBIE_AGE = 1.0
"""Seconds after which a zombie is one that nobody reaps. Every process is one for a moment, and while several hosts
start on two cores that moment may be some tenths of a second; one that nobody reaps stays to the end, which is longer.
"""


@dataclass(frozen=True)
class Ending:
    """A way to end a host."""

    number: signal.Signals
    group: bool = False
    stopped: bool = False

    def __str__(self) -> str:
        return self.number.name + (" for the group" if self.group else " with stopped keepers" if self.stopped else "")


BY_TERM, BY_KILL, BY_GROUP_KILL = Ending(signal.SIGTERM), Ending(signal.SIGKILL), Ending(signal.SIGKILL, group=True)
BY_STOPPED_KILL = Ending(signal.SIGKILL, stopped=True)
KILLS = (BY_KILL, BY_GROUP_KILL, BY_STOPPED_KILL)


@dataclass
class Round:
    """What came of one host. Times in seconds, `left` as command lines."""

    ending: Ending
    status: int | None = None
    took: float = 0.0
    left: list[str] = field(default_factory=list)
    zombies: int = 0

    def problems(self) -> list[str]:
        found = [f"left: {line}" for line in self.left]
        if self.zombies:
            found.append(f"{self.zombies} zombies")
        if self.ending == BY_TERM and self.status != 0:
            found.append(f"exit status {self.status} after {self.took:.1f} s")
        return found


@dataclass(frozen=True)
class Process:
    """A process; the start time tells it from a later one with the same number."""

    pid: int
    started: str


class Watch:
    """Sees the processes of one host come and go."""

    def __init__(self, host: int, mark: str) -> None:
        self._host = host
        self._mark = mark.encode()
        self._seen: set[Process] = set()
        self._zombies: dict[Process, float] = {}
        self._old_zombies: set[Process] = set()

    def look(self) -> None:
        """Note who is there below the host now."""
        table = _table()
        below = {self._host}
        while more := {pid for pid, (_, parent, _) in table.items() if parent in below} - below:
            below |= more
        now = trio.current_time()
        here = {Process(pid, table[pid][2]): table[pid][0] for pid in below - {self._host}}
        self._seen |= here.keys()
        self._zombies = {one: self._zombies.get(one, now) for one, state in here.items() if state == "Z"}
        self._old_zombies |= {one for one, since in self._zombies.items() if now - since > ZOMBIE_AGE}

    @property
    def zombies(self) -> int:
        """How many were seen that nobody had reaped for ZOMBIE_AGE."""
        return len(self._old_zombies)

    def stop_keepers(self) -> int:
        """Stop the keeper and the subreapers. Returns how many there were."""
        found = [one.pid for one in self._seen if _name(one.pid) == KEEPER_NAME]
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        return len(found)

    def left(self) -> list[Process]:
        """Whoever is there still, wherever in the tree of processes it went, the host itself and zombies left out."""
        return [
            Process(pid, started)
            for pid, (state, _, started) in _table().items()
            if pid != self._host and state != "Z" and (Process(pid, started) in self._seen or self._is_marked(pid))
        ]

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


def _table() -> dict[int, tuple[str, int, str]]:
    """State, parent and start time of every process (proc_pid_stat(5), fields 3, 4 and 22)."""
    table = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            with suppress(OSError):
                fields = Path(f"/proc/{name}/stat").read_text().rpartition(")")[2].split()
                table[int(name)] = (fields[0], int(fields[1]), fields[19])
    return table


async def play(ending: Ending, host: Sequence[str] = HOST) -> Round:
    """One host from its start to two seconds after its end; nothing of it is there when this returns.

    Args:
        host: the command that `serve FILE` is added to.

    Raises:
        RuntimeError: it did not come up.
    """
    mark = f"left-behind-{uuid.uuid4().hex}"
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "colonnade.yaml"
        file.write_text(json.dumps(_config(mark)))  # which is YAML as well
        process = await trio.lowlevel.open_process(
            [*host, "serve", str(file)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, "COLONNADE_STATE": f"{folder}/state"},
        )
        watch = Watch(process.pid, mark)
        try:
            await _until_ready(process)
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_keep_looking, watch)
                await trio.sleep(RUNNING)
                outcome = await _end(process, ending, watch)
                nursery.cancel_scope.cancel()
            outcome.zombies = watch.zombies
            outcome.left = [_command(one.pid) for one in await _still_there(watch)]
            return outcome
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            for one in watch.left():
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                await process.wait()


def _config(mark: str) -> dict[str, object]:
    python = [sys.executable, "-I", "-S"]
    servers = {id: {"command": [*python, str(FORKER), *words, mark]} for id, words in SERVERS.items()}
    return {"listen": {"address": "127.0.0.1:0"}, "servers": servers}


async def _until_ready(process: trio.Process) -> None:
    """Read the host's output until it has a line with the word `ready` for each server."""
    assert process.stdout is not None
    said = b""
    waiting = {id.encode() for id in SERVERS}
    with trio.move_on_after(READY_LIMIT):
        while waiting and (data := await process.stdout.receive_some()):
            said += data
            ready = [line.split() for line in said.split(b"\n") if b"ready" in line]
            waiting -= {id for id in waiting if any(id in words for words in ready)}
    if waiting:
        raise RuntimeError(f"not ready: {waiting}; the host said: {said.decode(errors='replace')}")


async def _keep_looking(watch: Watch) -> None:
    while True:
        watch.look()
        await trio.sleep(SAMPLE_EVERY)


async def _end(process: trio.Process, ending: Ending, watch: Watch) -> Round:
    if ending.stopped:
        assert watch.stop_keepers() == 1 + len(SERVERS)
    begun = trio.current_time()
    if ending.group:
        os.killpg(process.pid, ending.number)
    else:
        process.send_signal(ending.number)
    outcome = Round(ending)
    with trio.move_on_after(TERM_LIMIT):
        outcome.status = await process.wait()
    outcome.took = trio.current_time() - begun
    return outcome


async def _still_there(watch: Watch) -> list[Process]:
    deadline = trio.current_time() + LEFT_AFTER
    while True:
        left = watch.left()
        if not left or trio.current_time() >= deadline:
            return left
        await trio.sleep(SAMPLE_EVERY)


def _command(pid: int) -> str:
    try:
        return f"{pid} {Path(f'/proc/{pid}/cmdline').read_bytes().replace(bytes(1), b' ').decode(errors='replace')}"
    except OSError:
        return f"{pid}, which has just ended"


async def play_all(endings: Sequence[Ending], at_once: int, host: Sequence[str] = HOST) -> list[Round]:
    """A round for each of these endings, so many of them at the same time."""
    rounds: list[Round] = []
    places = trio.CapacityLimiter(at_once)

    async def one(ending: Ending) -> None:
        async with places:
            rounds.append(await play(ending, host))

    async with trio.open_nursery() as nursery:
        for ending in endings:
            nursery.start_soon(one, ending)
    return rounds


def summary(rounds: Sequence[Round]) -> str:
    """The closing line."""
    terms = [outcome for outcome in rounds if outcome.ending == BY_TERM]
    return (
        f"starts: {len(terms)} by SIGTERM, {len(rounds) - len(terms)} by SIGKILL;"
        f" processes left: {sum(len(outcome.left) for outcome in rounds)};"
        f" zombies seen: {sum(outcome.zombies for outcome in rounds)};"
        f" slowest SIGTERM exit: {max((outcome.took for outcome in terms), default=0.0):.1f} s"
    )


def main() -> int:
    parser = argparse.ArgumentParser(description="Count the processes that a host leaves behind.")
    parser.add_argument("--starts", type=int, default=50, help="hosts to end by SIGTERM")
    parser.add_argument("--kills", type=int, default=20, help="hosts to end by SIGKILL, in each way in turn")
    parser.add_argument("--at-once", type=int, default=4, help="hosts that run at the same time")
    wanted = parser.parse_args()
    endings = [BY_TERM] * wanted.starts + [KILLS[turn % len(KILLS)] for turn in range(wanted.kills)]
    rounds = trio.run(play_all, endings, wanted.at_once)
    failed = [(outcome, problem) for outcome in rounds for problem in outcome.problems()]
    for outcome, problem in failed:
        print(f"{outcome.ending}: {problem}", file=sys.stderr)
    print(summary(rounds))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
