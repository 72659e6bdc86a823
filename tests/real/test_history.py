"""A real host that keeps a history whose file cannot be written, is held, is damaged, or is behind after a kill: all
calls are answered, what is missing is said, and the index has what the audit has in the end."""

from __future__ import annotations

import json
import os
import re
import sqlite3
import subprocess
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import trio

from host.audit.records import files, parse
from host.audit.writer import open_audit
from host.cli.admin_client import AdminClientError, find_hosts
from tests.host.history.kit import call
from tests.real.clients import by_hand, eventually
from tests.real.running import COLONNADE, START, Running, beside, full_disk, recorder, serving, until, write_config

IMPORTED = re.compile(r"\| +(host\.history\.\w+)$", re.MULTILINE)
"""A line of PYTHONPROFILEIMPORTTIME."""


@dataclass
class Kept:
    """The configuration file, and what its host keeps beside it."""

    file: Path

    @property
    def state(self) -> Path:
        return self.file.parent / "state"

    @property
    def index(self) -> Path:
        return self.state / "history.db"

    def audited(self) -> dict[str, tuple[Any, Any]]:
        """The calls that the audit has: by the hash of the decision its tool, and the bytes of its result."""
        found: dict[str, tuple[Any, Any]] = {}
        for path in files(self.state / "audit"):
            records = [line.record for line in map(parse, path.read_bytes().splitlines()) if line is not None]
            sizes = {each["of"]: each["bytes"] for each in records if each["kind"] == "outcome"}
            for each in records:
                if each["kind"] == "decision":
                    found[str(each["hash"])[7:23]] = each["item"], sizes.get(each["seq"])
        return found

    def indexed(self) -> dict[str, tuple[Any, Any]]:
        """The calls that the index has, as `audited`; nothing while it is held or damaged."""
        try:
            with closing(sqlite3.connect(f"{self.index.absolute().as_uri()}?mode=ro", uri=True, timeout=0)) as database:
                rows = database.execute("SELECT hash, item, received FROM call").fetchall()
        except sqlite3.Error:
            return {}
        found = {decision: (item, received) for decision, item, received in rows}
        assert len(found) == len(rows), "no call is there twice"
        return found

    def is_whole(self) -> bool:
        return self.indexed() == self.audited()

    def searched(self) -> tuple[list[dict[str, Any]], list[str]]:
        """The calls of the host, as the console gets them, and what is said to be missing."""
        (host,) = find_hosts(self.state)
        try:
            answer = host.post("history/list", limit=500)
        except AdminClientError as problem:
            return [], [str(problem)]
        return answer["calls"], answer["missing"]

    def problems(self) -> list[str]:
        (host,) = find_hosts(self.state)
        found: list[str] = host.get("state")["problems"]
        return found

    def printed(self, *by: str) -> tuple[list[dict[str, Any]], str]:
        """What `colonnade history --json` prints of the host's calls, and says beside them."""
        command = [*by, COLONNADE, "history", "--json", "--limit", "500", "--config", str(self.file)]
        done = subprocess.run(command, capture_output=True, text=True, env=beside(self.file), timeout=START)
        assert (done.returncode == 0) or not done.stdout, done
        return [json.loads(line) for line in done.stdout.splitlines()], done.stderr


class Calls:
    """Calls that a client makes one after the other."""

    def __init__(self) -> None:
        self.answered = 0
        self._has_ended = False

    async def make(self, url: str, count: float = float("inf")) -> None:
        """Make so many calls, or until `end`. Each must be answered by the server."""
        async with by_hand(url) as client:
            while count > 0 and not self._has_ended:
                answer = await client.ask("tools/call", {"name": "a__echo", "arguments": {"n": self.answered}})
                assert "result" in answer, answer
                self.answered += 1
                count -= 1
                await trio.sleep(0.01)

    async def pass_by(self, count: int) -> None:
        """Wait until there are so many more."""
        wanted = self.answered + count

        async def are_there() -> bool:
            await trio.lowlevel.checkpoint()
            return self.answered >= wanted

        await eventually(are_there, START)

    @asynccontextmanager
    async def going_on(self, url: str) -> AsyncIterator[None]:
        """For the block, calls are made; the last one is answered at its end."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self.make, url)
            yield
            self._has_ended = True


@pytest.fixture
def kept(tmp_path: Path) -> Kept:
    return Kept(write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}, history={}))


async def become(condition: Callable[[], Any], what: str) -> None:
    """`until` beside tasks that go on."""
    await trio.to_thread.run_sync(until, condition, what)


async def is_made_up_for(kept: Kept, running: Running, calls: Calls) -> None:
    """Nothing is missing any more, of the calls that were answered and of the former ones."""
    await become(kept.is_whole, "the index has the calls of the audit")
    own = {each["id"] for each in kept.printed()[0]}
    assert len(own) == min(calls.answered, 500)
    assert kept.printed()[1] == ""
    rows, missing = kept.searched()
    assert ({each["id"] for each in rows}, missing) == (own, [])
    assert kept.problems() == []
    assert running.process.poll() is None


@contextmanager
def lock(path: Path) -> Iterator[None]:
    """For the block, this process holds the database, also against readers."""
    with closing(sqlite3.connect(path, isolation_level=None, timeout=START)) as holder:
        holder.execute("BEGIN EXCLUSIVE")
        yield


async def test_a_full_disk(kept: Kept) -> None:
    """The files of the host cannot become longer than the index is, which is longer than its part of the audit."""
    kept.state.mkdir(mode=0o700)
    with open_audit(kept.state / "audit") as audit:
        audit.write("config", file="/former.yaml", policy="")
        for number in range(2000):
            call(audit, f"former{number}")
    calls = Calls()
    with serving(kept.file, "a") as running:
        await become(kept.is_whole, "the former calls are there")
        assert len(kept.audited()) == 2000
        async with calls.going_on(running.url):
            await become(lambda: len(kept.indexed()) > 2000, "the first calls are there")
            size = kept.index.stat().st_size
            with full_disk(running.process.pid, kept.index):
                await become(kept.problems, "the host says what is missing")
                (problem,) = kept.problems()
                assert "history.db cannot be written" in problem
                assert "calls go on, and the history is made up for once there is room" in problem
                rows, missing = await trio.to_thread.run_sync(kept.searched)
                assert rows, "what was there before can be searched"
                assert problem in missing
                rows, said = await trio.to_thread.run_sync(kept.printed, "prlimit", f"--fsize={size}")
                assert rows
                assert f"the newest calls are missing: {problem}" in said
                await calls.pass_by(20)
            await become(lambda: not kept.problems(), "with room again, nothing is missing")
            await calls.pass_by(5)
        await is_made_up_for(kept, running, calls)
        assert running.errors.count("history.db cannot be written") == 1


async def test_a_lock_of_another_process(kept: Kept) -> None:
    """It holds the index against readers too: the searches say so."""
    calls = Calls()
    with serving(kept.file, "a") as running:
        await become(kept.is_whole, "the index is there")
        async with calls.going_on(running.url):
            await calls.pass_by(5)
            with lock(kept.index):
                await become(kept.problems, "the host says what is missing")
                held = "another process has held history.db for 1 s; calls go on, and the history is made up for later"
                assert kept.problems() == [held]
                assert await trio.to_thread.run_sync(kept.searched) == ([], [held])
                rows, said = await trio.to_thread.run_sync(kept.printed)
                assert rows == []
                assert held in said
                await calls.pass_by(20)
            await become(lambda: not kept.problems(), "nothing is missing")
            await calls.pass_by(5)
        await is_made_up_for(kept, running, calls)
        assert running.errors.count("another process has held") == 1


@pytest.mark.parametrize("begin", [0, 4096], ids=["all pages", "all but the first"])
async def test_garbage_in_the_file(begin: int, kept: Kept) -> None:
    """The host finds it itself. While the first page stands, its searches go on from its own copies of the pages, and
    the next command finds it."""
    calls = Calls()
    with serving(kept.file, "a") as running:
        async with calls.going_on(running.url):
            await calls.pass_by(20)
            await become(kept.indexed, "the index has some calls")
            with kept.index.open("r+b") as file:
                rest = file.seek(0, os.SEEK_END) - begin
                file.seek(begin)
                file.write(os.urandom(rest))
            if begin:
                rows, said = await trio.to_thread.run_sync(kept.printed)
                assert rows or "history.db was damaged, and is built again from the audit" in said
            else:
                said = "history: its index was damaged, and is built again from the audit"
                await become(lambda: said in running.errors, "the host says that it is damaged")
            await calls.pass_by(5)
        await is_made_up_for(kept, running, calls)


async def test_a_host_that_is_killed(kept: Kept) -> None:
    """At once after a call, when the index is behind, and when it has just been read."""
    calls = Calls()
    for life in range(4):
        with serving(kept.file, "a", stop=False) as running:
            await calls.make(running.url, 15)
            if life % 2:
                await become(kept.is_whole, "the index has what the audit has")
            running.process.kill()
            running.process.wait()
    assert len(kept.audited()) == calls.answered == 60
    with serving(kept.file, "a") as running:
        await calls.make(running.url, 5)
        await is_made_up_for(kept, running, calls)


@pytest.mark.parametrize("is_on", [False, True])
async def test_a_host_without_it_imports_its_entrance_alone(is_on: bool, tmp_path: Path) -> None:
    """Calls, a reload, and a search that is refused change nothing of it."""
    kept = Kept(write_config(tmp_path, {"a": recorder(tmp_path / "a.log")}, **({"history": {}} if is_on else {})))
    with serving(kept.file, "a", variables={"PYTHONPROFILEIMPORTTIME": "1"}) as running:
        await Calls().make(running.url, 3)
        (host,) = find_hosts(kept.state)
        host.post("configuration/reload")
        _, missing = kept.searched()
        assert bool(missing) == (not is_on)
        imported = set(IMPORTED.findall(running.errors))
    assert ("host.history.keeper" in imported) == is_on
    assert is_on or imported == {"host.history.entrance"}
