"""The state of real hosts and commands under what happens to it: the locks of other processes, and a database that is
taken away."""

from __future__ import annotations

import fcntl
import json
import signal
import sqlite3
import subprocess
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import pytest
import trio

from host.cli.admin_client import AdminClientError, RunningHost, find_hosts
from tests.host.storage.test_sqlite import removed, renamed, replaced
from tests.kit.gates import locked
from tests.kit.servers.offering import offer
from tests.real.clients import by_hand
from tests.real.running import (
    BARE_PYTHON,
    SERVERS,
    Running,
    colonnade,
    serving,
    until,
    write_config,
)

TOOLS = 12


def tools(count: int) -> list[dict[str, Any]]:
    return [{"name": f"t{n}", "inputSchema": {}} for n in range(count)]


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A configuration with an untrusted server, whose tools are what `offered` says."""
    offer(tmp_path / "offered.json", tools=tools(TOOLS))
    server = {"command": [*BARE_PYTHON, str(SERVERS / "offering.py"), str(tmp_path / "offered.json")]}
    return write_config(
        tmp_path, {"s": {**server, "trust": "untrusted", "sandbox": "off", "consent": {"tools": "allow"}}}
    )


def state_of(file: Path) -> Path:
    return file.parent / "state"


def deciding(file: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return colonnade(*arguments, "--config", str(file), COLONNADE_STATE=str(state_of(file)))


def shown(file: Path) -> list[set[str]]:
    """The tools that each running host shows."""
    hosts = [host.get("state") for host in find_hosts(state_of(file))]
    return [{entry["name"] for entry in host["catalog"] if entry["shown"]} for host in hosts]


def held(file: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = until(lambda: find_hosts(state_of(file)), "a host runs")[0].get("state")["held"]
    return found


# The locks of others


@contextmanager
def reserved(state: Path) -> Iterator[None]:
    with closing(sqlite3.connect(state / "colonnade.db", isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        yield


@contextmanager
def pending(state: Path) -> Iterator[None]:
    """One that reads, and one that waits for it to commit: nobody else may begin to read."""
    path = state / "colonnade.db"
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as reader,
        closing(sqlite3.connect(path, isolation_level=None, timeout=0)) as writer,
    ):
        reader.execute("BEGIN")
        reader.execute("SELECT * FROM config").fetchall()
        writer.execute("BEGIN IMMEDIATE")
        writer.execute("UPDATE config SET definitions = definitions + 1")
        with pytest.raises(sqlite3.OperationalError, match="locked"):
            writer.execute("COMMIT")
        yield
        reader.execute("COMMIT")
        writer.execute("COMMIT")


@contextmanager
def setting_aside(state: Path) -> Iterator[None]:
    """As a host that found the database damaged, if the others did not hold this lock too."""
    with open(state / "run" / "store.lock", "r+") as lock:
        with pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield


@pytest.mark.parametrize("lock", [locked, reserved, pending, setting_aside])
def test_no_lock_of_another_process_holds_up_an_unrelated_session(
    lock: Callable[[Path], Any], file: Path, record_property: Callable[[str, object], None]
) -> None:
    """While a list changes and a person approves something, which waits for the lock, pings are answered: many before
    that is refused, and all before that process lets go."""
    answered: list[float] = []
    """Seconds that each ping took."""

    def approve(host: RunningHost, shown: dict[str, Any]) -> str:
        try:
            done: str = host.post("definitions/decide", **shown, decision="approve")["done"]
        except AdminClientError as problem:
            return str(problem)
        return done

    async def ping(running: Running) -> None:
        (host,) = find_hosts(state_of(file))
        waiting = {key: held(file)[0][key] for key in ("server", "kind", "name", "fingerprint")}
        async with by_hand(running.url) as client:
            with lock(state_of(file)):
                offer(file.parent / "offered.json", tools=tools(TOOLS + 1))
                decided = trio.Event()
                async with trio.open_nursery() as nursery:

                    async def decide() -> None:
                        told = await trio.to_thread.run_sync(approve, host, waiting)
                        if lock is setting_aside:
                            assert "approved" in told
                        else:
                            assert "another process has held" in told
                            assert len(answered) >= 10
                        decided.set()

                    nursery.start_soon(decide)
                    while not decided.is_set():
                        began = time.perf_counter()
                        assert (await client.ask("ping"))["result"] == {}
                        answered.append(time.perf_counter() - began)
                        await trio.sleep(0.005)

    with serving(file, "s") as running:
        until(lambda: len(held(file)) == TOOLS, "all is known")
        trio.run(ping, running)
        until(lambda: len(held(file)) + len(shown(file)[0]) == TOOLS + 1, "what came meanwhile is known")
        assert deciding(file, "definitions", "approve", "--server", "s", "--yes").returncode == 0
        assert len(shown(file)[0]) == TOOLS + 1
    figure = f"{lock.__name__}: {len(answered)} pings, the longest {max(answered, default=0.0) * 1000:.1f} ms"
    record_property("stall", figure)
    print(figure)


def test_a_locked_database_refuses_a_decision_with_a_remedy(file: Path) -> None:
    with serving(file, "s"):
        with locked(state_of(file)):
            refused = deciding(file, "definitions", "approve", "--server", "s", "--yes")
            assert refused.returncode == 1
            assert "another process has held" in refused.stderr
            assert shown(file) == [set()]
        assert deciding(file, "definitions", "approve", "--server", "s", "--yes").returncode == 0
        assert len(shown(file)[0]) == TOOLS


# A database that is taken away


@pytest.mark.parametrize("how", [removed, renamed, replaced])
def test_a_database_that_is_taken_away_leaves_nothing_approved(how: Callable[[Path], None], file: Path) -> None:
    """The host lists nothing, the console says why, and a decision is refused, until it is started again. Then the
    database that is there counts; if there is none, everything waits for a person."""
    with serving(file, "s") as running:
        assert deciding(file, "definitions", "approve", "--server", "s", "--yes").returncode == 0
        assert len(shown(file)[0]) == TOOLS
        how(state_of(file) / "colonnade.db")
        until(lambda: shown(file) == [set()], "nothing is approved")
        (problem, *_) = find_hosts(state_of(file))[0].get("state")["problems"]
        assert "was removed or replaced while this program ran; start it again" in problem
        each = held(file)[0]
        args = {key: each[key] for key in ("server", "kind", "name", "fingerprint")}
        with pytest.raises(AdminClientError, match="start it again"):
            find_hosts(state_of(file))[0].post("definitions/decide", **args, decision="approve")
        assert running.process.poll() is None
    if how is replaced:
        with serving(file, "s"):
            assert len(shown(file)[0]) == TOOLS, "the database that is there now holds it all"
        return
    with serving(file):
        # What is to be started is held back too: nobody knows any more what was.
        until(lambda: [each["kind"] for each in held(file)] == ["launch"], "nothing is started")
        assert "is gone" in find_hosts(state_of(file))[0].get("state")["problems"][0]
        assert [record["kind"] for record in audited(file)].count("lost") == 2
        for waiting in (1, TOOLS):
            until(lambda waiting=waiting: len(held(file)) == waiting, f"{waiting} wait")  # type: ignore[misc]
            assert deciding(file, "definitions", "approve", "--server", "s", "--yes").returncode == 0
        assert len(shown(file)[0]) == TOOLS
        assert find_hosts(state_of(file))[0].get("state")["problems"] == []


def audited(file: Path) -> Sequence[dict[str, Any]]:
    lines = [line for path in (state_of(file) / "audit").glob("*.jsonl") for line in path.read_bytes().splitlines()]
    return [json.loads(line) for line in lines]


def test_a_killed_host_leaves_a_database_that_the_next_one_opens(file: Path) -> None:
    with serving(file, "s", stop=False) as running:
        assert deciding(file, "definitions", "approve", "--server", "s", "--yes").returncode == 0
        running.process.send_signal(signal.SIGKILL)
        running.process.wait(20)
    with serving(file, "s"):
        until(lambda: len(shown(file)[0]) == TOOLS, "all is approved still")
