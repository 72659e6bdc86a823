"""The sum over the processes of a program: of real ones, and of a program that has too much."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from config.sandbox import Means, Sandbox
from host.sandbox.watch import ALERT, CALM, Watch
from host.wire.keeper import children_of
from tests.host.sandbox.kit import PYTHON, confined
from tests.kit.kernel import needs_landlock_alone, needs_namespaces

MIB = 1024**2
pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="this is about /proc")


TREE = """
import os, signal, sys
count, common, own = map(int, sys.argv[1:])
shared = b"x" * common
for _ in range(count - 1):
    if not os.fork():
        break
mine = b"y" * own
os.write(1, b"x")
signal.pause()
"""


@contextmanager
def processes(count: int, *, common: int = 0, own: int = 0) -> Iterator[list[int]]:
    """So many processes, with MiB that they share and MiB of each. They begin as a program, so that they share nothing
    with this process, which may be large."""
    with subprocess.Popen(
        [*PYTHON, TREE, *map(str, (count, common * MIB, own * MIB))], stdout=subprocess.PIPE
    ) as parent:
        assert parent.stdout is not None
        try:
            for _ in range(count):
                parent.stdout.read(1)
            yield [parent.pid, *children_of(parent.pid)]
        finally:
            for pid in (*children_of(parent.pid), parent.pid):
                os.kill(pid, signal.SIGKILL)


def test_memory_of_all_is_added() -> None:
    with processes(3, own=60) as pids:
        assert Watch(300 * MIB, 64).find_excess(pids) == ""
        assert Watch(150 * MIB, 64).find_excess(pids) == "memory"
        assert Watch(2000 * MIB, 64).find_excess(pids) == ""


def test_memory_that_they_share_counts_once() -> None:
    with processes(4, common=200) as pids:
        assert Watch(400 * MIB, 64).find_excess(pids) == ""
        assert Watch(150 * MIB, 64).find_excess(pids) == "memory"


def test_processes_are_counted() -> None:
    with processes(3) as pids:
        assert Watch(2000 * MIB, 3).find_excess(pids) == ""
        assert Watch(2000 * MIB, 2).find_excess(pids) == "processes"


def test_it_looks_more_often_from_the_half_of_a_limit_on() -> None:
    with processes(3) as pids:
        for most, pause in ((5, ALERT), (6, CALM)):
            watch = Watch(4000 * MIB, most)
            watch.find_excess(pids)
            assert watch.pause == pause


def test_a_process_that_is_gone_has_nothing() -> None:
    assert Watch(1, 1).find_excess([2**22 + 1]) == ""


FORKS = "import os, time\nfor _ in range(4):\n if not os.fork():\n  kept = b'x' * (60 << 20)\n  break\ntime.sleep(60)"
THREADS = "import threading, time\nfor _ in range(30): threading.Thread(target=time.sleep, args=(60,)).start()"


@needs_namespaces
@pytest.mark.slow
async def test_a_program_with_too_much_memory_is_ended(tmp_path: Path) -> None:
    """No process has too much by itself."""
    async with confined(tmp_path, *PYTHON, FORKS, sandbox=Sandbox(memory=128 * MIB)) as child:
        assert await child.wait() == -signal.SIGKILL
        assert child.over == "memory"


@needs_landlock_alone
@pytest.mark.slow
async def test_too_many_threads_with_landlock_alone(tmp_path: Path) -> None:
    """No limit of the kernel holds them there; with namespaces, one does for users that are not 0."""
    sandbox = Sandbox(accept=Means.LANDLOCK, processes=16)
    async with confined(tmp_path, *PYTHON, THREADS, sandbox=sandbox) as child:
        await child.wait()
        assert child.over == "processes" or "Landlock" not in child.means.partition(";")[0].partition(",")[0]
