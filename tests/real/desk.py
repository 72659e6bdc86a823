"""Five desktop hosts at once on one configuration with eleven servers, in two folders, behind relays.

    .venv/bin/python -m tests.real.desk [--kills 500] [--seed N]

First part: two of the servers take the folder of the client, so thirteen programs run. Forms, roots and cancellations
must reach the host and the calls that they belong to, and Colonnade's own processes (relays, host, keeper, subreapers)
may have at most 1.8 times the memory (PSS) of one host by itself (`--own`).

Second part: all hosts call without end, while relays, Colonnade and desktop hosts are killed at random, and all but
Colonnade are ended as at a log-out. No call may reach a server twice, none may stay without an answer, no relay may end
by itself, all clients must go on after the last kill, and no process may be left when Colonnade has lingered.

Exits with 1 if something of this did not hold.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.kit.processes import state_of

from .running import BARE_PYTHON, COLONNADE, SERVERS, beside, host_of, pids_below, processes_with, until, write_config

HOSTS = 5
MAX_MEMORY = 1.8
KILLS = 500
CLIENT = str(Path(__file__).with_name("desktop_client.py"))
CLERK = str(SERVERS / "clerk.py")
PATIENCE = 60.0
MAX_SHOWN = 20
LOG_OUTS = 0.02
"""The share of log-outs among the kills."""
PAUSES = (0.05, 0.2, 0.5, 1.0)
"""Seconds between two kills."""
Process = tuple[int, str]
"""The id of a process, and the time of its start."""


@dataclass
class DesktopHost:
    """One of the desktop hosts, and its successors in the same place."""

    name: str
    folder: Path
    ledger: Path
    process: subprocess.Popen[str]
    events: list[list[str]] = field(default_factory=list)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def relay(self) -> int:
        """The process of its relay; 0 if there is none now."""
        return next((pid for pid, command in pids_below(self.process.pid).items() if "--stdio" in command), 0)

    def read(self) -> list[list[str]]:
        """All events so far."""
        with suppress(FileNotFoundError):
            lines = self.ledger.read_text().splitlines(keepends=True)
            self.events = [json.loads(line) for line in lines if line.endswith("\n")]
        return self.events


class Desk:
    """The desktop hosts on one configuration.

    Args:
        options: of `serve --stdio`.
    """

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.options = options
        self.calls = folder / "calls"
        clerk = {"command": [*BARE_PYTHON, CLERK, str(self.calls)], "trust": "trusted"}
        servers = {f"s{number}": clerk for number in range(9)}
        servers |= {f"s{number}": {**clerk, "cwd": "${client:folder}"} for number in (9, 10)}
        self.file = write_config(folder, servers, daemon={"idle": "1s"})
        self.hosts: list[DesktopHost] = []
        self.problems: list[str] = []
        self.seen: set[Process] = set()
        """Processes that Colonnade had started."""
        for name in ("one", "two"):
            (folder / name).mkdir()

    def start(self, at: int, count: int = 0) -> DesktopHost:
        """Start a desktop host at a place; `count`: how often it was started there."""
        name, folder = f"desk{at}", self.folder / ("one" if at % 2 else "two")
        command = [COLONNADE, "serve", "--stdio", *self.options, str(self.file)]
        ledger = self.folder / f"{name}.{count}"
        process = subprocess.Popen(
            [*BARE_PYTHON, CLIENT, name, str(ledger), *command],
            stdin=subprocess.PIPE,
            text=True,
            cwd=folder,
            env=beside(self.file),
        )
        return DesktopHost(name, folder, ledger, process)

    def colonnades(self) -> dict[int, str]:
        """Colonnade's own processes by their ids: the relays, and the host with its keeper and subreapers."""
        found: dict[int, str] = {}
        for host in self.hosts:
            found |= {pid: line for pid, line in pids_below(host.process.pid).items() if CLERK not in line}
        if pid := host_of(self.file):
            found |= {pid: "host"} | {pid: line for pid, line in pids_below(pid).items() if CLERK not in line}
        return found

    def note_processes(self) -> None:
        for pid in self.colonnades():
            if started := start_of(pid):
                self.seen.add((pid, started))

    def left(self) -> list[str]:
        """Processes of this desk, with their commands."""
        found = {pid: "a keeper or subreaper" for pid, started in self.seen if start_of(pid) == started}
        found |= processes_with(str(self.folder))
        return [f"{pid} {command}" for pid, command in found.items()]

    def counted(self, word: str = "called") -> Counter[str]:
        """How often the servers have noted this word with each nonce."""
        if not self.calls.exists():
            return Counter()
        lines = (line.split() for line in self.calls.read_text().splitlines())
        return Counter(nonce for said, nonce in lines if said == word)

    def blame(self, text: str) -> None:
        self.problems.append(text)

    def close(self) -> None:
        for host in self.hosts:
            assert host.process.stdin is not None
            host.process.stdin.close()
            host.process.wait(PATIENCE)
        with suppress(AssertionError):
            until(lambda: not self.left(), "nothing is left", 20)
        if left := self.left():
            self.blame(f"left behind: {left}")
            for line in left:
                with suppress(ProcessLookupError):
                    os.kill(int(line.split()[0]), signal.SIGKILL)


def start_of(pid: int) -> str:
    """The start time of a process; empty if there is none, or it is a zombie."""
    with suppress(OSError):
        found = state_of(pid)
        return "" if found.state == "Z" else found.started
    return ""


def memory_of(pids: dict[int, str]) -> int:
    """KiB of memory (PSS) of these processes."""
    total = 0
    for pid in pids:
        for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
            if line.startswith("Pss:"):
                total += int(line.split()[1])
    return total


# The first part


def share(desk: Desk, hosts: int) -> int:
    """Let so many desktop hosts work, and look where everything goes; the memory of Colonnade's own processes."""
    desk.hosts = [desk.start(at) for at in range(hosts)]
    expected: dict[str, tuple[DesktopHost, str]] = {}
    draw = random.Random(hosts)
    for tools in (("echo",), ("form", "roots"), ("hang",)):
        for number in range(11):
            for at, host in enumerate(desk.hosts):
                for tool in tools:
                    nonce = f"{draw.getrandbits(64):016x}"
                    expected[nonce] = host, tool
                    # One client at each server: only then it is certain whose call a question belongs to.
                    host.say(f"call s{(number + 2 * at) % 11} {tool} {nonce}")
            if tools == ("hang",):
                until(lambda: len(desk.counted()) == len(expected), "the calls are with their servers", PATIENCE)
                for nonce, (host, tool) in expected.items():
                    if tool == "hang":
                        host.say(f"cancel {nonce}")
                until(lambda: desk.counted("cancelled") == hanging(expected), "they are cancelled", PATIENCE)
            until(lambda: len(finished(desk)) == len(expected), f"calls {number} of {tools} are over", PATIENCE)
    events = finished(desk)
    calls, cancelled = desk.counted(), desk.counted("cancelled")
    for nonce, (host, tool) in expected.items():
        by, event, text = events[nonce]
        answer = {"echo": nonce, "form": f'"{host.name}"', "roots": f"file://{host.folder}"}.get(tool, "")
        if by is not host or event not in ("result", "cancelled") or answer not in text:
            desk.blame(f"{tool} of {host.name}: {event} {text!r} at {by.name}")
        if calls[nonce] != 1 or cancelled[nonce] != (tool == "hang"):
            desk.blame(f"{tool} of {host.name}: called {calls[nonce]} times, cancelled {cancelled[nonce]} times")
    for host in desk.hosts:
        for event, question, _ in host.read():
            if event == "asked" and not any(nonce in question and of is host for nonce, (of, _) in expected.items()):
                desk.blame(f"{host.name} was asked what is for another one: {question!r}")
    return memory_of(desk.colonnades())


def hanging(calls: dict[str, tuple[DesktopHost, str]]) -> Counter[str]:
    return Counter(nonce for nonce, (_, tool) in calls.items() if tool == "hang")


def finished(desk: Desk) -> dict[str, tuple[DesktopHost, str, str]]:
    """The last event of each call that is over."""
    return {
        nonce: (host, event, text)
        for host in desk.hosts
        for event, nonce, text in host.read()
        if event in ("result", "error", "cancelled", "stuck", "lost")
    }


def compare_memory(folder: Path) -> list[str]:
    """The first part; its problems."""
    figures: dict[str, int] = {}
    problems: list[str] = []
    for name, hosts, options in (("own", 1, ["--own"]), ("relays", HOSTS, [])):
        (folder / name).mkdir()
        desk = Desk(folder / name, *options)
        try:
            figures[name] = share(desk, hosts)
            programs = sum(CLERK in command for command in commands(desk))
            if programs != (13 if hosts > 1 else 11):
                desk.blame(f"{programs} programs")
            if name == "relays" and (console := consoles(desk)) != 1:
                desk.blame(f"{console} consoles")
        finally:
            desk.close()
        problems += [f"{name}: {text}" for text in desk.problems]
    ratio = figures["relays"] / figures["own"]
    print(f"KiB of memory: {figures['own']} of one host by itself, {figures['relays']} with {HOSTS} relays")
    print(f"{ratio:.2f} times, at most {MAX_MEMORY}")
    return problems + ([f"memory: {ratio:.2f} times"] if ratio > MAX_MEMORY else [])


def commands(desk: Desk) -> list[str]:
    pid = host_of(desk.file)
    return list(pids_below(pid).values()) if pid else list(pids_below(desk.hosts[0].process.pid).values())


def consoles(desk: Desk) -> int:
    """Listening TCP sockets of Colonnade's own processes."""
    listening = set()
    for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
        fields = line.split()
        if fields[3] == "0A":
            listening.add(f"socket:[{fields[9]}]")
    found = 0
    for pid in desk.colonnades():
        with suppress(OSError):
            found += sum(os.readlink(each) in listening for each in Path(f"/proc/{pid}/fd").iterdir())
    return found


# The second part


def kill(folder: Path, kills: int, seed: int) -> list[str]:
    """The second part; its problems."""
    desk, draw = Desk(folder), random.Random(seed)
    counts: Counter[str] = Counter()
    gone: list[DesktopHost] = []
    starts = Counter[int]()

    def replace(at: int) -> None:
        host = desk.hosts[at]
        host.process.wait()
        assert host.process.stdin is not None
        with suppress(BrokenPipeError):
            host.process.stdin.close()
        gone.append(host)
        starts[at] += 1
        desk.hosts[at] = begin(at)

    def begin(at: int) -> DesktopHost:
        host = desk.start(at, starts[at])
        for _ in range(2):
            host.say(f"loop {draw.getrandbits(32)}")
        return host

    desk.hosts = [begin(at) for at in range(HOSTS)]
    try:
        until(lambda: results(desk, {}), "the first calls went through", PATIENCE)
        while counts.total() < kills:
            threading.Event().wait(draw.choice(PAUSES) * draw.random())
            desk.note_processes()
            at = draw.randrange(HOSTS)
            if draw.random() < LOG_OUTS:
                log_out(desk)
                counts["log-out"] += 1
                for each in range(HOSTS):
                    replace(each)
                continue
            what = draw.choice(("relay", "host", "desktop host"))
            if what == "relay":
                pid = desk.hosts[at].relay()
            else:
                pid = host_of(desk.file) or starting_host(desk) if what == "host" else desk.hosts[at].process.pid
            if not pid:
                continue
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
                counts[what] += 1
            if what == "desktop host":
                replace(at)
        before = {host.name: count_results(host) for host in desk.hosts}
        with suppress(AssertionError):
            until(lambda: results(desk, before), "every client goes on", PATIENCE)
        for host in desk.hosts:
            if count_results(host) < before[host.name] + 3:
                desk.blame(f"{host.name} does not go on: {host.read()[-3:]}")
        desk.note_processes()
    finally:
        desk.close()
    judge(desk, [*gone, *desk.hosts], counts)
    return desk.problems


def count_results(host: DesktopHost) -> int:
    return sum(event == "result" for event, _, _ in host.read())


def results(desk: Desk, before: dict[str, int]) -> bool:
    return all(count_results(host) >= before.get(host.name, 0) + 3 for host in desk.hosts)


def starting_host(desk: Desk) -> int:
    """A host that has no record yet; 0 if there is none."""
    for entry in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0")
            if b"--daemon" in words and os.fsencode(desk.file) in words:
                return int(entry.name)
    return 0


def log_out(desk: Desk) -> None:
    """SIGHUP, then SIGTERM, to all but the host in the background."""
    pids = [pid for host in desk.hosts for pid in (host.relay(), host.process.pid) if pid]
    for number in (signal.SIGHUP, signal.SIGTERM):
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, number)


def judge(desk: Desk, hosts: list[DesktopHost], kills: Counter[str]) -> None:
    """Look at what the servers got and what the clients saw."""
    calls = desk.counted()
    outcomes: Counter[str] = Counter()
    for nonce, times in calls.items():
        if times > 1:
            desk.blame(f"{nonce} reached a server {times} times")
    for host in hosts:
        own = {nonce for event, nonce, _ in host.read() if event == "sent"}
        last_open = max((at for at, (event, _, _) in enumerate(host.events) if event == "open"), default=-1)
        for at, (event, nonce, text) in enumerate(host.events):
            outcomes[event if event != "error" else text[:70]] += 1
            if event == "stuck":
                desk.blame(f"{host.name}: without an answer: {text}")
            elif event == "ended" and text not in (("-9", "-1") if at < last_open else ("-9", "-1", "0")):
                desk.blame(f"{host.name}: the relay ended with {text}")
            elif event == "asked" and not any(each in nonce for each in own):
                desk.blame(f"{host.name} was asked what is for another one: {nonce!r}")
            elif event == "result" and nonce not in own:
                desk.blame(f"{host.name} has the result of another one")
    print(f"{kills.total()} kills {dict(kills)}; {len(calls)} calls reached a server; {dict(outcomes.most_common())}")


def main() -> int:
    parser = argparse.ArgumentParser(description="Five desktop hosts at once, and kills.")
    parser.add_argument("--kills", type=int, default=KILLS)
    parser.add_argument("--seed", type=int, default=None)
    chosen = parser.parse_args()
    seed = random.randrange(2**32) if chosen.seed is None else chosen.seed
    with tempfile.TemporaryDirectory() as folder:
        problems = compare_memory(Path(folder))
        print(f"seed {seed}")
        (Path(folder) / "kills").mkdir()
        problems += kill(Path(folder) / "kills", chosen.kills, seed)
    for problem in problems[:MAX_SHOWN]:
        print(problem)
    print(f"{len(problems)} problems" if problems else "everything held")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
