"""Programs that the process tests start, and functions that observe them. Each has a token in its command line."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import trio

from tests.kit.processes import all_states, descendants

ROOT = Path(__file__).parents[3]
PYTHON = [sys.executable, "-I", "-S", "-c"]

FAMILY = """
import os, signal, sys, time
stubborn = "stubborn" in sys.argv
if stubborn:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)

def sit(ready):
    os.write(ready, b".")
    while True:
        time.sleep(60)

reading, ready = os.pipe()
if os.fork() == 0:                                     # a plain one
    sit(ready)
if os.fork() == 0:                                     # one in a session of its own
    os.setsid()
    sit(ready)
if os.fork() == 0:                                     # one forked twice, its parent is gone
    os.setsid()
    if os.fork() == 0:
        sit(ready)
    os._exit(0)
if os.fork() == 0:                                     # one that clears its environment
    os.setsid()
    if os.fork() == 0:
        os.set_inheritable(ready, True)
        code = "import os, sys, time; os.write(int(sys.argv[1]), b'.'); time.sleep(600)"
        os.execve(sys.executable, [sys.executable, "-I", "-S", "-c", code, str(ready), sys.argv[1]], {})
    os._exit(0)
for _ in range(4):
    os.read(reading, 1)
print("up", flush=True)
if "leaves" in sys.argv:                               # a launcher that daemonises
    os._exit(3)
while os.read(0, 1) or stubborn:
    if stubborn:
        time.sleep(0.05)
"""
"""A program that starts four others, each harder to find than the last, and ends with its input, unless stubborn."""
FAMILY_SIZE = 5

HOST = """
import sys, trio
from host.wire.process import become_subreaper, child_environment, open_keeper

async def main(family, token, *more):
    if "subreaper" in more:
        assert become_subreaper()
    async with open_keeper() as keeper:
        async with keeper.open_child(
            [sys.executable, "-I", "-S", "-c", family, token, *more], env=child_environment({}), cwd="/", grace=0.2
        ) as child:
            assert await child.stdout.receive_some() == b"up\\n"
            print(keeper.pid, child._subreaper, child.pid, flush=True)
            if "respawn" in more:
                await child.wait()
                async with keeper.open_child(["true"], env=child_environment({}), cwd="/") as another:
                    print("another", await another.wait(), flush=True)
            await trio.sleep_forever()

trio.run(main, *sys.argv[1:])
"""
"""A host as small as can be, with a family below it. Prints the pids of keeper, subreaper and program once all are
up."""


def new_token() -> str:
    """Something no other process has in its command line."""
    return f"token-{uuid.uuid4().hex}"


def carrying(token: str) -> list[int]:
    """The processes with this token among their arguments, zombies not included (they have none)."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and token.encode() in (entry / "cmdline").read_bytes().split(b"\0"):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def states_below(pid: int) -> dict[int, str]:
    """The state letter of every descendant of a process (proc(5): R, S, D, T, Z ...)."""
    states = all_states()
    return {child: states[child].state for child in descendants(pid, states)}


async def until(condition: Callable[[], bool], seconds: float) -> float:
    """Poll until it holds; how long that took. Real time: it is the kernel and other processes that are waited for."""
    start = trio.current_time()
    while not condition():
        if trio.current_time() - start > seconds:
            raise AssertionError(f"still not so after {seconds} s")
        await trio.sleep(0.01)
    return trio.current_time() - start


@contextmanager
def running_host(*words: str) -> Iterator[tuple[subprocess.Popen[bytes], str, list[int]]]:
    """A little host with a family below it, as (host, token of the family, [keeper, subreaper, program])."""
    token = new_token()
    with subprocess.Popen(
        [sys.executable, "-c", HOST, FAMILY, token, *words],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        start_new_session=True,
    ) as host:
        try:
            assert host.stdout is not None
            yield host, token, [int(word) for word in host.stdout.readline().split()]
        finally:
            host.kill()
            for pid in carrying(token):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
