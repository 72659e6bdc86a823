"""Starts of a real host on a busy machine: whether its first lists are whole while servers still start.

    .venv/bin/python -m tests.real.first_lists [--starts 50] [--delay 10] [--only desktop]

Three rounds. `desktop`: `serve --stdio` with the published servers `time` and `git`, of which `git` sleeps before it
starts; clients with and without a handshake in turn. `transports`: every transport and era, with a server that is not
trusted and one that each client has for itself. `ten`: ten servers, of which by the second start one is slow, one
crashes in a loop, one is not installed any more, and one URL is dead.

With STDIO=relay, clients over stdio come in groups: the first of a group starts the host in the background, which has
ended before the next group comes.

The first start of each round makes the servers known and is not judged. Two programs that do nothing but count keep the
machine busy. Exits with 1 if a list was not whole, the host spent too much processor time on it, or a call was not
answered.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import trio

from tests.kit.ports import free_port
from tests.kit.processes import processor_time
from tests.kit.servers.offering import offer
from tests.matrix.clients import Client, StdioClient, over_http, over_sse, over_stdio
from tests.matrix.stateless import StatelessStdioClient, over_stateless_http

from .running import (
    BARE_PYTHON,
    BIN,
    COLONNADE,
    OVER_STDIO,
    SERVERS,
    STDIO,
    beside,
    colonnade,
    host_of,
    listening,
    pids_below,
    serving,
    until,
    write_config,
)

HANDSHAKE, STATELESS, OLDEST = "2025-11-25", "2026-07-28", "2024-11-05"
MAX_PROCESSOR = 0.2
"""Seconds of the host's processor time from `initialize` to the first list."""
AT_ONCE = 6
"""Hosts whose call still waits while others start."""
PATIENCE = 60.0
SLEEPING = ["sh", "-c", 'sleep "$(cat "$0")"; exec "$@"']
"""Starts a program as many seconds later as a file says."""
CRASHING = ["sh", "-c", 'exec 3<&0; "$@" <&3 & sleep "$(cat "$0")"; kill $!']
"""Ends a program after as many seconds as a file says."""


@dataclass
class Start:
    """What one client saw of one start."""

    round: str
    client: str
    expected: set[str]
    found: set[str] = field(default_factory=set)
    missing: list[str] = field(default_factory=list)
    """Servers that the list names as missing."""
    asleep: bool = True
    """Whether the delayed server still slept when the list was there."""
    since_start: float = 0.0
    since_initialize: float = 0.0
    processor: float | None = None
    called_after: float = 0.0
    """Seconds from the start to the answer of the delayed server."""
    problem: str = ""

    @property
    def problems(self) -> list[str]:
        found = [self.problem] if self.problem else []
        if self.found != self.expected:
            found.append(
                f"the list lacks {sorted(self.expected - self.found)}, adds {sorted(self.found - self.expected)}"
            )
        if self.processor is not None and self.processor > MAX_PROCESSOR:
            found.append(f"{self.processor:.2f} s of processor time")
        return found


# Clients


class _Timed:
    """The part of a client that measures its host from a moment at which it certainly reads what it is sent."""

    begun_at = 0.0
    begun_with = 0.0
    """Processor time of the host at that moment."""
    pid = 0

    def begins(self, program: trio.Process) -> None:
        self.pid, self.begun_at, self.begun_with = program.pid, time.monotonic(), processor_time(program.pid)


class TimedStdioClient(StdioClient, _Timed):
    """Its host has answered a ping before it gets `initialize`."""

    async def open(self) -> None:
        await self.ask("ping", {}, PATIENCE)
        self.begins(self._program)
        await super().open()


class TimedStatelessClient(StatelessStdioClient, _Timed):
    """Its host has answered once before it is asked again."""

    async def open(self) -> None:
        await super().open()
        self.begins(self._program)
        await self.ask("server/discover", {}, PATIENCE)


@asynccontextmanager
async def desktop_client(file: Path, revision: str) -> AsyncIterator[Client]:
    if STDIO == "relay":  # which answers at once, perhaps before its host runs
        kind = StatelessStdioClient if revision == STATELESS else StdioClient
    else:
        kind = TimedStatelessClient if revision == STATELESS else TimedStdioClient
    async with over_stdio("desktop", revision, [COLONNADE, "serve", *OVER_STDIO, str(file)], kind) as client:
        yield client


async def tools_of(client: Client) -> tuple[set[str], list[str]]:
    result = (await client.ask("tools/list", {}, PATIENCE))["result"]
    return {each["name"] for each in result["tools"]}, result.get("_meta", {}).get("colonnade/missingServers", [])


async def look(bench: Bench, start: Start, client: Client, began: float, host: int = 0) -> None:
    """List, and note what came and when. Without a `host`, it is that of the client over stdio."""
    start.found, start.missing = await tools_of(client)
    start.since_start = time.monotonic() - began
    if isinstance(client, _Timed):
        start.since_initialize = time.monotonic() - client.begun_at
        start.processor = processor_time(client.pid) - client.begun_with
        host = client.pid
    start.asleep = bench.is_asleep(host or host_of(bench.file))


async def call(start: Start, client: Client, began: float, name: str, arguments: Mapping[str, Any]) -> None:
    """Call the delayed server, whose answer must come once it is up."""
    answer = await client.ask("tools/call", {"name": name, "arguments": arguments}, PATIENCE)
    start.called_after = time.monotonic() - began
    if "error" in answer or answer["result"].get("isError"):
        start.problem = f"the call was not answered: {answer}"


# Rounds


class Bench:
    """A folder with the configuration of one round, and the file that says for how long a server sleeps."""

    def __init__(self, folder: Path, delay: float) -> None:
        self.folder = folder
        self.delay = delay
        folder.mkdir()
        self.delayed = ""
        """The last argument of the server that sleeps, which no other one has."""
        self.sleep = folder / "sleep"
        self.sleep.write_text("0")
        self.file = folder / "colonnade.yaml"
        os.environ["COLONNADE_STATE"] = beside(self.file)["COLONNADE_STATE"]

    def configure(self, servers: Mapping[str, object]) -> None:
        write_config(self.folder, servers)

    def later(self, *command: str) -> list[str]:
        self.delayed = command[-1]
        return [*SLEEPING, str(self.sleep), *command]

    def is_asleep(self, host: int) -> bool:
        """Whether the delayed server of this host is not there yet, but at most the shell that waits."""
        commands = pids_below(host).values() if host else ()
        return not any(self.delayed in each and "sleep" not in each for each in commands)

    def repository(self) -> Path:
        folder = self.folder / "repository"
        subprocess.run(["git", "init", "--quiet", str(folder)], check=True)
        return folder

    async def make_known(self, approve: str | None = None) -> set[str]:
        """The first start: all tools, once every server is up. `approve` is a server whose tools a person approves."""
        with serving(self.file) as host:
            host.wait_ready(*host.status())
            if approve is not None:
                await trio.to_thread.run_sync(self._approve, approve)
            async with over_http("first", HANDSHAKE, host.url) as client:
                found, _ = await tools_of(client)
                while approve is not None and not any(name.startswith(approve) for name in found):
                    await trio.sleep(0.1)  # the host looks every second for decisions of other processes
                    found, _ = await tools_of(client)
            if STDIO == "relay":
                await trio.to_thread.run_sync(self._wait_first_answers)
        self.sleep.write_text(f"{self.delay:g}")
        return found

    def _wait_first_answers(self) -> None:
        until(lambda: list(self.folder.glob("state/configs/*/first-answers")), "the host has left its answers")

    async def ended(self) -> None:
        """Wait for the end of a host in the background."""
        if STDIO == "relay":
            await trio.to_thread.run_sync(until, lambda: not host_of(self.file), "the host has ended")

    def _approve(self, server: str) -> None:
        options = ("--server", server, "--yes", "--config", str(self.file))
        state = os.environ["COLONNADE_STATE"]
        done = colonnade("definitions", "approve", *options, COLONNADE_STATE=state)
        assert done.returncode == 0, done.stdout + done.stderr


async def desktop(bench: Bench, starts: int) -> list[Start]:
    """`serve --stdio` again and again; calls of former starts still wait while the next ones are measured."""
    repository = bench.repository()
    git = bench.later(str(BIN / "mcp-server-git"), "--repository", str(repository))
    bench.configure({"time": {"command": [str(BIN / "mcp-server-time")]}, "git": {"command": git}})
    expected = await bench.make_known()
    measuring, open_hosts = trio.Lock(), trio.CapacityLimiter(AT_ONCE)
    done: list[Start] = []

    async def one(number: int) -> None:
        revision = STATELESS if number % 2 else HANDSHAKE
        start = Start("desktop", f"stdio {revision}", expected)
        done.append(start)
        async with open_hosts:
            await measuring.acquire()
            try:
                began = time.monotonic()
                async with desktop_client(bench.file, revision) as client:
                    await look(bench, start, client, began)
                    measuring.release()
                    await call(start, client, began, "git__git_status", {"repo_path": str(repository)})
            finally:
                if measuring.statistics().owner is trio.lowlevel.current_task():
                    measuring.release()

    together = AT_ONCE if STDIO == "relay" else starts
    for first in range(0, starts, together):
        async with trio.open_nursery() as nursery:
            for number in range(first, min(first + together, starts)):
                nursery.start_soon(one, number)
        await bench.ended()
    return done


async def transports(bench: Bench, starts: int) -> list[Start]:
    """Every transport and era, with a server that is not trusted and one that each client has for itself."""
    clock = {"command": [str(BIN / "mcp-server-time")]}
    late = bench.later(str(BIN / "mcp-server-time"), "--local-timezone", "Europe/Vienna")
    bench.configure(
        {
            "shy": {**clock, "trust": "untrusted", "sandbox": "off", "consent": {"tools": {"default": "allow"}}},
            "own": {"command": late, "isolation": "per-client"},
            "late": {"command": late},
        }
    )
    expected = await bench.make_known(approve="shy")
    ways: list[tuple[str, str, Callable[[str], Any]]] = [
        ("http", HANDSHAKE, partial(over_http, "http", HANDSHAKE)),
        ("http", STATELESS, partial(over_stateless_http, "http", STATELESS)),
        ("sse", OLDEST, lambda url: over_sse("sse", OLDEST, url.replace("/mcp", "/sse"))),
    ]
    done: list[Start] = []
    for _ in range(starts):
        for way, revision, opened in ways:
            start = Start("transports", f"{way} {revision}", expected)
            done.append(start)
            began = time.monotonic()
            with serving(bench.file) as host:
                host.status()  # its port is there before the rest of it is loaded
                used = processor_time(host.process.pid)
                async with opened(host.url) as client:
                    await look(bench, start, client, began, host.process.pid)
                    start.processor = processor_time(host.process.pid) - used
                    for server in ("late", "own"):
                        asked = {"timezone": "UTC"}
                        await call(start, client, began, f"{server}__get_current_time", asked)
        for revision in (HANDSHAKE, STATELESS):
            start = Start("transports", f"stdio {revision}", expected)
            done.append(start)
            began = time.monotonic()
            async with desktop_client(bench.file, revision) as client:
                await look(bench, start, client, began)
                await call(start, client, began, "late__get_current_time", {"timezone": "UTC"})
            await bench.ended()
    return done


async def ten(bench: Bench, starts: int) -> list[Start]:
    """Ten servers, of which four are not well from the second start on."""

    def offering(id: str) -> list[str]:
        script = bench.folder / f"{id}.json"
        offer(script, tools=[{"name": f"t{at}", "inputSchema": {"type": "object"}} for at in range(3)])
        return [*BARE_PYTHON, str(SERVERS / "offering.py"), str(script)]

    installed = bench.folder / "installed"
    installed.symlink_to(sys.executable)
    crash = bench.folder / "crash"
    crash.write_text("1000")
    servers: dict[str, Any] = {f"well{at}": {"command": offering(f"well{at}")} for at in range(6)}
    servers["slow"] = {"command": bench.later(*offering("slow"))}
    servers["crashing"] = {"command": [*CRASHING, str(crash), *offering("crashing")]}
    servers["gone"] = {"command": [str(installed), *offering("gone")[1:]]}
    with listening(sys.executable, str(SERVERS / "sdk_server.py"), "--http", str(free_port()), folder=bench.folder) as (
        _,
        url,
    ):
        servers["dead"] = {"url": url}
        bench.configure(servers)
        expected = await bench.make_known()
    installed.unlink()
    crash.write_text("0.3")
    done: list[Start] = []
    for number in range(starts):
        revision = STATELESS if number % 2 else HANDSHAKE
        start = Start("ten", f"stdio {revision}", expected)
        done.append(start)
        began = time.monotonic()
        async with desktop_client(bench.file, revision) as client:
            await look(bench, start, client, began)
            await call(start, client, began, "slow__t0", {})
        await bench.ended()
    return done


ROUNDS: dict[str, Callable[[Bench, int], Awaitable[list[Start]]]] = {
    "desktop": desktop,
    "transports": transports,
    "ten": ten,
}


@contextmanager
def busy_machine(programs: int) -> Iterator[None]:
    """Keep so many processors busy for the block."""
    command = [*BARE_PYTHON, "-c", "while True: pass"]
    counting = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(programs)]
    try:
        yield
    finally:
        for each in counting:
            each.send_signal(signal.SIGKILL)
            each.wait()


def play(name: str, folder: Path, starts: int, delay: float, busy: int = 2) -> list[Start]:
    """The starts of one round after the one that makes the servers known, beside so many programs that count."""
    bench = Bench(folder / name, delay)
    with busy_machine(busy):
        return trio.run(ROUNDS[name], bench, starts)


def table(done: list[Start]) -> str:
    """The figures of all starts, by round and client."""
    lines = [
        f"{'round':<11} {'client':<17} starts  whole  asleep  processor s        first list s       call answered s"
    ]
    for name, client in dict.fromkeys((each.round, each.client) for each in done):
        some = [each for each in done if (each.round, each.client) == (name, client)]
        whole, asleep = sum(each.found == each.expected for each in some), sum(each.asleep for each in some)
        cells = [
            spread([each.processor for each in some if each.processor is not None]),
            spread([each.since_start for each in some]),
            spread([each.called_after for each in some]),
        ]
        lines.append(
            f"{name:<11} {client:<17} {len(some):>6} {whole:>6} {asleep:>7}  "
            + "  ".join(f"{each:<17}" for each in cells)
        )
    return "\n".join(lines)


def spread(figures: list[float]) -> str:
    return f"{median(figures):.2f} (to {max(figures):.2f})" if figures else "-"


def main() -> int:
    parser = argparse.ArgumentParser(description="Whether the first lists of a host are whole.")
    parser.add_argument("--starts", type=int, default=50, help="starts of the desktop round; others have fewer")
    parser.add_argument("--delay", type=float, default=10.0, help="seconds that a server sleeps before it starts")
    parser.add_argument("--only", choices=list(ROUNDS), action="append", help="this round; may be repeated")
    chosen = parser.parse_args()
    counts = {"desktop": chosen.starts, "transports": max(chosen.starts // 25, 1), "ten": max(chosen.starts // 10, 2)}
    done: list[Start] = []
    with tempfile.TemporaryDirectory() as folder:
        for name in chosen.only or ROUNDS:
            done += play(name, Path(folder), counts[name], chosen.delay)
    print(table(done))
    problems = [f"{each.round}, {each.client}: {text}" for each in done for text in each.problems]
    if sum(each.asleep for each in done) < len(done) / 2:
        problems.append("the machine is too busy: few lists came while the delayed server still slept")
    print("\n".join(problems) or "every first list was whole")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
