"""Starts the real host with real servers, ends it in every way, and counts what is left of it.

    .venv/bin/python -m tests.real.left_behind [--starts 50] [--kills 20] [--at-once 4] [--confined | --with podman]

Each round is one host with three servers: one that behaves, one that forks itself out of sight and keeps making
orphans, and one that heeds neither the end of its input nor SIGTERM. A round ends by SIGTERM, by SIGKILL, by SIGKILL
for the host's whole process group, or by SIGKILL after the keeper and all subreapers were stopped, as any server can
stop them. What belongs to a round is known by a mark in its command line, or by having been seen below the host before
(number and start time). Exits with 1 if anything is left two seconds after the end of the host, if a zombie was seen,
or if SIGTERM did not end the host with status 0 in time.

With --confined, each server runs under `sandbox: strict`, one of them with a host that it may connect to. No mount may
be left then, and nothing in the folders where a root is put together.

With --with podman or --with docker, each server runs in a container of --image, which needs a python3 alone. No
container may be left seven seconds after the end of the host, in whatever state, though the host is not started again.
With --with stand-in, the clients are those of tests/kit/container_daemon.py: there, containers outlive their clients,
and have no namespace with which a process out of sight would end.

With STDIO=relay, a round is a relay and the host in the background that it starts. The relay is ended in these ways,
and the host ends by itself; only where its keepers are stopped, it is killed. Nothing may be left, the host included,
two seconds after the host should have ended.

Real clock: the kernel's and the servers' own time is what is measured.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import trio

from host.cli.admin_client import find_hosts
from host.wire.descent import KEEPER_NAME, SUBREAPER_NAME
from tests.kit.processes import all_states, descendants, is_running

from .clients import initialize
from .running import STDIO, command_line, host_of, until

ROOT = Path(__file__).parents[2]
HOST = (sys.executable, "-m", "host")
FORKER = ROOT / "tests/kit/servers/forker.py"
SERVERS = {"plain": [], "forking": ["fork"], "stubborn": ["fork", "stubborn"]}

READY_LIMIT = 60.0
TERM_LIMIT = 10.0
LEFT_AFTER = 2.0
CONTAINERS_LEFT_AFTER = 7.0
"""Seconds after the end of a host in which its containers must be removed."""
TAG = 8
"""Characters of a mark that the id of a server in a container ends with."""
LINGERING = 1.0
"""Seconds for which a host in the background stays without a client."""
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
    """The outcome of one host. Times in seconds, `left` as command lines, mounts and paths."""

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
    """Sees the processes of one host come and go.

    Args:
        ends: whether the host ends by itself, and is left if it does not.
    """

    def __init__(self, host: int, mark: str, *, ends: bool = False) -> None:
        self._host = host
        self._last = host if ends else 0
        self._mark = mark.encode()
        self._seen: set[Process] = set()
        self._zombies: dict[Process, float] = {}
        self._old_zombies: set[Process] = set()

    def look(self) -> None:
        """Note the processes that are below the host now."""
        states = all_states()
        now = trio.current_time()
        here = {Process(pid, states[pid].started): states[pid].state for pid in descendants(self._host, states)}
        self._seen |= here.keys()
        self._zombies = {one: self._zombies.get(one, now) for one, state in here.items() if state == "Z"}
        self._old_zombies |= {one for one, since in self._zombies.items() if now - since > ZOMBIE_AGE}

    @property
    def zombies(self) -> int:
        """How many were seen that nobody had reaped for ZOMBIE_AGE."""
        return len(self._old_zombies)

    def stop_keepers(self) -> int:
        """Stop the keeper, the subreapers, and the copies of these before confined programs. Returns how many there
        were."""
        found = [one.pid for one in self._seen if _name(one.pid) in (KEEPER_NAME, SUBREAPER_NAME)]
        for pid in found:
            os.kill(pid, signal.SIGSTOP)
        return len(found)

    def left(self) -> list[Process]:
        """The processes that are there still, wherever in the tree they went, without zombies, and without the host
        unless it ends by itself."""
        return [
            Process(pid, started)
            for pid, (state, _, started) in all_states().items()
            if state != "Z" and (pid == self._last or Process(pid, started) in self._seen or self._is_marked(pid))
        ]

    def unconfined(self) -> list[str]:
        """The servers' processes that share the host's namespace of processes."""
        own = os.readlink("/proc/self/ns/pid")
        found = []
        for pid in filter(self._is_marked, all_states()):
            with suppress(OSError):
                if os.readlink(f"/proc/{pid}/ns/pid") == own:
                    found.append(_command(pid))
        return found

    def _is_marked(self, pid: int) -> bool:
        try:
            return self._mark in Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")
        except OSError:
            return False


def _name(pid: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{pid}/comm").read_text().strip()
    return ""


class _Alone:
    """`serve FILE`."""

    options: Sequence[str] = ()
    stdin = subprocess.DEVNULL

    def __init__(self, process: trio.Process, file: Path, mark: str) -> None:
        self.process = process
        self._servers = json.loads(file.read_text())["servers"]
        self.watch = Watch(process.pid, mark)

    async def wait_ready(self) -> None:
        """Read the host's output until it has a line with the word `ready` for each server."""
        assert self.process.stdout is not None
        said = b""
        waiting = {id.encode() for id in self._servers}
        with trio.move_on_after(READY_LIMIT):
            while waiting and (data := await self.process.stdout.receive_some()):
                said += data
                ready = [line.split() for line in said.split(b"\n") if b"ready" in line]
                waiting -= {id for id in waiting if any(id in words for words in ready)}
        if waiting:
            raise RuntimeError(f"not ready: {waiting}; the host said: {said.decode(errors='replace')}")

    def kill_host(self) -> None:
        """It is the process that was killed."""

    async def wait_end(self) -> None:
        """It has ended."""


class _OverRelay:
    """`serve --stdio FILE`, and the host in the background."""

    options: Sequence[str] = ("--stdio",)
    stdin = subprocess.PIPE

    def __init__(self, process: trio.Process, file: Path, mark: str) -> None:
        self.process = process
        self._file = file
        self._mark = mark
        self._host = 0
        self.watch = Watch(-1, mark)

    async def wait_ready(self) -> None:
        """Open a session, and ask the admin API until each server is ready."""
        assert self.process.stdin is not None
        await self.process.stdin.send_all(initialize("2025-11-25") + b"\n")
        await trio.to_thread.run_sync(until, self._are_ready, "the servers are ready", READY_LIMIT)
        self._host = host_of(self._file)
        self.watch = Watch(self._host, self._mark, ends=True)

    def _are_ready(self) -> bool:
        for host in find_hosts(self._file.parent / "state"):
            if host.problem is None:
                servers = host.get("state/servers")["servers"]
                return all(server["state"] == "ready" for server in servers)
        return False

    def kill_host(self) -> None:
        """Its keepers are stopped: it could not end by itself."""
        os.kill(self._host, signal.SIGKILL)

    async def wait_end(self) -> None:
        with suppress(AssertionError):  # then it is left
            await trio.to_thread.run_sync(until, self._has_ended, "the host has ended", LINGERING + TERM_LIMIT)

    def _has_ended(self) -> bool:
        return not is_running(self._host)  # it may be a zombie: init may be slow


@dataclass(frozen=True)
class Clients:
    """Where servers run in containers.

    Attributes:
        name: the client program.
        image: the image.
        python: the python3 in it.
        environment: variables for the host and for the client program.
        holds: whether what a container forks ends with it.
    """

    name: str
    image: str
    python: str = "python3"
    environment: Mapping[str, str] = field(default_factory=dict)
    holds: bool = True

    def sandbox(self) -> dict[str, object]:
        """The `sandbox` of its servers in a file."""
        return {"with": self.name, "image": self.image, "files": {"read": [str(FORKER)]}}

    async def names(self, mark: str) -> list[str]:
        """The names of the containers of a round."""
        said = await self._run("ps", "--all", "--format={{.Names}}")
        return [name for name in said.split() if name.startswith("colonnade-") and mark[-TAG:] in name]

    async def remove(self, names: Sequence[str]) -> None:
        """Remove containers."""
        for name in names:
            await self._run("rm", "--force", name)

    async def left(self, mark: str) -> list[str]:
        """The names of the containers of a round that are not removed in time."""
        deadline = trio.current_time() + CONTAINERS_LEFT_AFTER
        while (names := await self.names(mark)) and trio.current_time() < deadline:  # noqa: ASYNC110 - others remove it
            await trio.sleep(SAMPLE_EVERY)
        return names

    async def _run(self, *words: str) -> str:
        # By its path: a program is looked up in this process's own PATH.
        program = shutil.which(self.name, path=self.environment.get("PATH")) or self.name
        done = await trio.run_process(
            [program, *words], env={**os.environ, **self.environment}, capture_stdout=True, check=False
        )
        return done.stdout.decode()


@contextmanager
def stand_in() -> Iterator[Clients]:
    """Clients that confine nothing, and whose containers outlive them."""
    with tempfile.TemporaryDirectory() as folder:
        daemon = subprocess.Popen(
            [sys.executable, "-m", "tests.kit.container_daemon", folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            cwd=ROOT,
        )
        assert daemon.stdout is not None
        try:
            environment = json.loads(daemon.stdout.readline())
            yield Clients("docker", "image", sys.executable, environment, holds=False)
        finally:
            daemon.communicate()


async def play(
    ending: Ending, host: Sequence[str] = HOST, *, confined: bool = False, clients: Clients | None = None
) -> Round:
    """One host from its start to two seconds after its end; nothing of it is there when this returns.

    Args:
        host: the command that `serve FILE` is added to.
        confined: whether its servers run in a sandbox.
        clients: those of the containers in which they run.

    Raises:
        RuntimeError: it did not come up.
    """
    mark = f"left-behind-{uuid.uuid4().hex}"
    kind = _OverRelay if STDIO == "relay" and host is HOST else _Alone
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "colonnade.yaml"
        file.write_text(json.dumps(_config(mark, confined=confined, clients=clients)))  # which is YAML as well
        process = await trio.lowlevel.open_process(
            [*host, "serve", str(file), *kind.options],
            stdin=kind.stdin,
            stdout=subprocess.PIPE,
            start_new_session=True,
            cwd=ROOT,
            env={**os.environ, **(clients.environment if clients else {}), "COLONNADE_STATE": f"{folder}/state"},
        )
        started = kind(process, file, mark)
        try:
            await started.wait_ready()
            watch = started.watch
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_keep_looking, watch)
                await trio.sleep(RUNNING)
                assert not (confined and watch.unconfined()), watch.unconfined()
                outcome = await _end(process, ending, watch)
                if ending.stopped:
                    started.kill_host()
                await started.wait_end()
                nursery.cancel_scope.cancel()
            outcome.zombies = watch.zombies
            containers = await clients.left(mark) if clients else []
            outcome.left = [_command(one.pid) for one in await _still_there(watch)] + files_left(folder) + containers
            return outcome
        finally:
            with suppress(ProcessLookupError):
                process.kill()
            for one in started.watch.left():
                with suppress(ProcessLookupError):
                    os.kill(one.pid, signal.SIGKILL)
            with trio.CancelScope(shield=True):
                if clients:
                    await clients.remove(await clients.names(mark))
                await process.wait()


def _config(mark: str, *, confined: bool, clients: Clients | None) -> dict[str, object]:
    python = [clients.python if clients else sys.executable, "-I", "-S"]
    # The name of a container has the id of its server, so these tell the rounds apart.
    servers: dict[str, dict[str, Any]] = {
        f"{id}-{mark[-TAG:]}" if clients else id: {"command": [*python, str(FORKER), *words, mark]}
        for id, words in SERVERS.items()
    }
    if clients and not clients.holds:
        for server in servers.values():
            server["command"] = [word for word in server["command"] if word != "fork"]
    daemon = {"idle": f"{LINGERING:g}s"}
    sandbox = {"defaults": {"sandbox": clients.sandbox() if clients else "strict"}} if clients or confined else {}
    if confined:
        servers["plain"]["sandbox"] = {"network": ["localhost:9"]}  # with a forwarder
    return {"listen": {"address": "127.0.0.1:0"}, "servers": servers, "daemon": daemon, **sandbox}


async def _keep_looking(watch: Watch) -> None:
    while True:
        watch.look()
        await trio.sleep(SAMPLE_EVERY)


async def _end(process: trio.Process, ending: Ending, watch: Watch) -> Round:
    if ending.stopped:
        assert watch.stop_keepers() >= 1 + len(SERVERS)
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


def files_left(folder: str) -> list[str]:
    """The mounts below this folder, and what is in the folders below it where a root is put together."""
    mounts = [line for line in Path("/proc/self/mountinfo").read_text().splitlines() if folder in line]
    return mounts + [str(each) for each in Path(folder).glob("state/configs/*/sandbox/*/root/*")]


def _command(pid: int) -> str:
    try:
        return f"{pid} {command_line(pid)}"
    except OSError:
        return f"{pid}, which has just ended"


async def play_all(
    endings: Sequence[Ending], at_once: int, *, confined: bool = False, clients: Clients | None = None
) -> list[Round]:
    """A round for each of these endings, so many of them at the same time."""
    rounds: list[Round] = []
    places = trio.CapacityLimiter(at_once)

    async def one(ending: Ending) -> None:
        async with places:
            rounds.append(await play(ending, confined=confined, clients=clients))

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
    parser.add_argument("--confined", action="store_true", help="servers in a sandbox")
    parser.add_argument("--with", dest="client", choices=["podman", "docker", "stand-in"], help="servers in containers")
    parser.add_argument("--image", default="", help="that has a python3")
    wanted = parser.parse_args()
    if wanted.client in ("podman", "docker") and not wanted.image:
        parser.error("--with needs --image")
    endings = [BY_TERM] * wanted.starts + [KILLS[turn % len(KILLS)] for turn in range(wanted.kills)]
    with stand_in() if wanted.client == "stand-in" else nullcontext() as clients:
        if wanted.image:
            clients = Clients(wanted.client, wanted.image)
        rounds = trio.run(partial(play_all, endings, wanted.at_once, confined=wanted.confined, clients=clients))
    failed = [(outcome, problem) for outcome in rounds for problem in outcome.problems()]
    for outcome, problem in failed:
        print(f"{outcome.ending}: {problem}", file=sys.stderr)
    print(summary(rounds))
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
