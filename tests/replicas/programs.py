"""Clients of the official SDKs as they come, each in a program of its own, while one process is killed and told to end
in turns, and while processes of a fleet are. None may have to open a session anew.

What they make of a connection that breaks is their own: it is told, and no fault.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import ExitStack, asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import trio

from tests.real.running import ROOT

from .book import Attempt, Book, End, Ending
from .clients import Load
from .fleet import CUT, served_fleet
from .process import Served, ledger
from .restarts import end_amid_load

ENDS = 12
"""Ends of a process: of one alone, and then of those of a fleet."""
UP = 4.0
"""Seconds of load between two ends, at least."""
OPENS = 60.0
"""Seconds in which a client must have begun."""
PATIENCE = 20.0
"""Seconds after which a call of which a client says nothing is lost."""
PAUSE = 0.1
SILENT = "the client says nothing of it"
TARGET = "book__note", "book+memo://0"
OLD_SDK = ROOT / "build" / "mcp-1"
ERAS = ROOT / "build" / "eras"
"""Folder in which `make eras` has installed packages from npm."""


@dataclass
class Program:
    """One client. `did` counts what it did and heard beside its calls, `lost` what it said of those that failed."""

    name: str
    command: Sequence[str]
    mode: str
    environment: Mapping[str, str] = field(default_factory=dict)
    did: Counter[str] = field(default_factory=Counter)
    lost: Counter[str] = field(default_factory=Counter)
    ready: trio.Event = field(default_factory=trio.Event)
    is_over: bool = False
    """Whether it has said that it ends, or has."""

    def __post_init__(self) -> None:
        self._errors = Path(os.devnull)
        self._answers: dict[str, dict[str, Any]] = {}
        self._arrived = trio.Event()

    async def run(self, load: Load, folder: Path) -> None:
        """Call on and on, until the load ends, or the program. Its standard error goes to the folder."""
        self._errors = folder / f"{self.name}.stderr"
        with self._errors.open("w") as stderr:
            process = await trio.lowlevel.open_process(
                [*self.command, load.url, self.mode, *TARGET],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=stderr,
                env={**os.environ, **self.environment},
            )
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._read, process)
                await self.ready.wait()
                while not (load.stopping or self.is_over):
                    await self._call(load, process)
                    await trio.sleep(PAUSE)
                nursery.cancel_scope.cancel()
        finally:
            process.kill()
            with trio.CancelScope(shield=True):
                await process.wait()

    @property
    def last_words(self) -> str:
        """The last line of words that it wrote to standard error; empty if there is none."""
        lines = [line.strip("|+- ") for line in self._errors.read_text(errors="replace").splitlines()]
        return next((line for line in reversed(lines) if line), "")

    async def _read(self, process: trio.Process) -> None:
        assert process.stdout is not None
        rest = b""
        async for piece in process.stdout:
            *lines, rest = (rest + piece).split(b"\n")
            for line in lines:
                self._hear(json.loads(line))
        self.is_over = True
        self.did["ended as a program"] += 1
        self._wake()

    def _hear(self, said: dict[str, Any]) -> None:
        if "id" in said:
            self._answers[said["id"]] = said
        elif "ready" in said:
            self.ready.set()
        elif "opens" in said:
            self.did["initialize"] += 1
        elif "status" in said:
            self.did[f"HTTP {said['status']} to {said['to']}"] += 1
        elif "hears" in said:
            self.did[said["hears"]] += 1
        elif "closed" in said:
            self.is_over = True
            self.did["closed"] += 1
        self._wake()

    def _wake(self) -> None:
        self._arrived.set()
        self._arrived = trio.Event()

    async def _call(self, load: Load, process: trio.Process) -> None:
        id, begun = load.new_id("".join(self.name.split())), trio.current_time()
        assert process.stdin is not None
        try:
            await process.stdin.send_all(f"{id}\n".encode())
        except trio.BrokenResourceError:
            self.is_over = True
            return
        with trio.move_on_after(PATIENCE):
            while id not in self._answers and not self.is_over:
                await self._arrived.wait()
        answer = self._answers.pop(id, {"error": SILENT})
        self.is_over = self.is_over or answer.get("error") == SILENT  # the next calls of such a client fail, too
        end, said = End.DONE, str(answer.get("error") or answer.get("text"))
        if "error" in answer or answer["failed"]:
            is_refused = "ECONNREFUSED" in said or "ConnectError" in said
            end = End.REFUSED if is_refused else End.BROKEN if "error" in answer else End.TOLD
            self.lost[said[:90]] += 1
        elif said != id:
            load.book.blame(f"{self.name}: {id} got the result of {said}")
        else:
            self.did["calls"] += 1
        load.book.attempts.append(Attempt(id, self.name, begun, trio.current_time(), end, said))


def programs_here(where: str) -> list[Program]:
    """Those for which there is everything, as clients of what is named so."""
    caller = [sys.executable, str(Path(__file__).with_name("caller.py"))]
    found = [Program(f"{where}, Python 2 {mode}", caller, mode) for mode in ("legacy", "auto")]
    if not OLD_SDK.is_dir():
        command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
        subprocess.run([*command, "--target", str(OLD_SDK), "mcp<2"], check=False)
    if OLD_SDK.is_dir():
        found.append(Program(f"{where}, Python 1", caller, "1", {"PYTHONPATH": str(OLD_SDK)}))
    node = ERAS / "node_modules" / ".bin" / "node"
    if (ERAS / ".installed").is_file():
        script = ERAS / "caller.mjs"
        shutil.copy(ROOT / "tests" / "real" / "typescript" / "caller.mjs", script)
        program = [str(node) if node.exists() else "node", str(script)]
        found += [Program(f"{where}, TypeScript {mode}", program, mode) for mode in ("1", "legacy", "auto")]
    else:
        print("  the TypeScript SDKs are left out: `make eras` installs them", flush=True)
    return found


@asynccontextmanager
async def at_work(load: Load, programs: Sequence[Program], folder: Path) -> AsyncIterator[None]:
    """The programs, calling, for the block."""
    async with trio.open_nursery() as nursery:
        for each in programs:
            nursery.start_soon(each.run, load, folder)
        with trio.fail_after(OPENS):
            for each in programs:
                await each.ready.wait()
        yield
        load.stopping = True


async def programs(size: float, seed: int, folder: Path) -> Book:
    """`size` 1 is ENDS ends of each kind."""
    book, draw = Book(), random.Random(seed)
    ends = max(2, round(ENDS * size))
    of_one, of_fleet = folder / "one", folder / "fleet"
    of_one.mkdir()
    of_fleet.mkdir()
    await _restart_one(book, draw, of_one, ends)
    await _kill_in_fleet(book, draw, of_fleet, ends)
    book.judge([id for each in (of_one, of_fleet) for id in (each / "ledger").read_text().split()])
    return book


async def _restart_one(book: Book, draw: random.Random, folder: Path, ends: int) -> None:
    with ledger(folder) as server:
        host = Served(folder, {"book": server}, drain="20s", console="off")
        load, clients = Load(host.url, book, draw), programs_here("one process")
        host.start()
        try:
            await host.wait_listening()
            async with at_work(load, clients, folder):
                for number in range(ends):
                    await trio.sleep(UP)
                    outage = await end_amid_load(host, load, list(Ending)[number % 2])
                    host.start()
                    await host.wait_listening()
                    outage.back, load.quiet = trio.current_time() + PATIENCE, False
                    await _touch(server["url"])
        finally:
            host.close()
    _tell(book, clients)


async def _kill_in_fleet(book: Book, draw: random.Random, folder: Path, ends: int) -> None:
    with ExitStack() as stack:
        fleet = stack.enter_context(served_fleet(folder, {}))
        load, clients = Load(fleet.url, book, draw, cut=CUT), programs_here("fleet")
        await fleet.begin()
        async with at_work(load, clients, folder):
            for number in range(ends):
                await trio.sleep(UP)
                await fleet.restart(load, fleet.processes[number % len(fleet.processes)], Ending.KILLED)
                await _touch(fleet.server)
    _tell(book, clients)


async def _touch(server: str) -> None:
    """Have the server say that its resources were updated, once streams are open again."""
    await trio.sleep(UP)
    async with httpx.AsyncClient() as http:
        await http.post(server.replace("/mcp", "/touch"))


def _tell(book: Book, clients: Sequence[Program]) -> None:
    """Print what each client did. It must not have opened a session anew, nor been told that it has none."""
    for each in clients:
        if each.did["initialize"] > 1 or any(what.startswith("HTTP 404") for what in each.did):
            book.blame(f"{each.name} lost its session: {dict(each.did)}")
        did = ", ".join(f"{count} {what}" for what, count in sorted(each.did.items()))
        print(f"  {each.name}: {did}; {sum(each.lost.values())} lost", flush=True)
        for what, count in each.lost.most_common(4):
            print(f"    {count}: {what}", flush=True)
        if each.is_over:
            print(f"    no calls after that; its last words: {each.last_words}", flush=True)
