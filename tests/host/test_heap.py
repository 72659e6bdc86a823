"""The heap: settings that hold for all of a process, in a process of its own, and when garbage is collected."""

from __future__ import annotations

import gc
import subprocess
import sys

import pytest
import trio
from trio.testing import MockClock

from host import heap

SCRIPT = """
import ctypes, sys, trio
from host import heap
from host.memory import Budget, Use, client_owner

def resident():
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * 4096

if sys.argv[1] == "tuned":
    heap.tune()
memory = Budget()
held = memory.hold(client_owner(None), Use.REQUESTS, 96 << 20, lambda: None)
blocks = [bytes(48_000) for _ in range(2048)]
kept = blocks[::64]
peak = resident()
large = [b"x" * (8 << 20) for _ in range(4)]
del large
large = [b"x" * (8 << 20) for _ in range(4)]
del blocks, large
freed = resident()

async def main():
    with trio.move_on_after(20):
        async with trio.open_nursery() as nursery:
            nursery.start_soon(heap.give_back, memory)
            await trio.sleep(0.05)
            held.release()
            while resident() > peak - (60 << 20):
                await trio.sleep(0.05)
            nursery.cancel_scope.cancel()

trio.run(main)
print(peak >> 20, freed >> 20, resident() >> 20)
"""

needs_glibc = pytest.mark.skipif(heap._glibc() is None, reason="another C library")


@pytest.mark.slow
@needs_glibc
def test_memory_goes_back_after_a_peak() -> None:
    """Blocks of which one in 64 is kept: nothing at the top of the heap would go back by itself."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, "tuned"], capture_output=True, text=True, timeout=50, check=True
    )
    peak, freed, after = (int(number) for number in done.stdout.split())
    assert freed > peak - 20  # otherwise the test shows nothing
    assert after < peak - 60


@pytest.mark.slow
@needs_glibc
def test_the_library_takes_the_settings() -> None:
    script = "from host import heap; heap.tune(); print(heap._glibc().mallopt(-3, heap.LARGE))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    assert done.stdout == "1\n"


@pytest.mark.slow
def test_there_are_fewer_full_collections() -> None:
    script = (
        "import gc; gc.disable(); from host import heap; heap.spare_collections(); assert gc.isenabled();"
        "print(gc.get_threshold(), gc.get_freeze_count())"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=50, check=True)
    threshold, _, frozen = done.stdout.rpartition(" ")
    assert threshold == "(3000, 2, 69)"
    assert int(frozen) > 10_000


@pytest.mark.parametrize(("few", "survivors", "collections"), [(1000, 1, 3), (1000, 0, 0), (0, 1, 0)])
async def test_garbage_is_collected_while_few_tasks_run(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch, few: int, survivors: int, collections: int
) -> None:
    made: list[float] = []
    monkeypatch.setattr(heap, "FEW_TASKS", few)
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, survivors))
    monkeypatch.setattr(gc, "collect", lambda: made.append(trio.current_time()))
    with trio.move_on_after(3.5 * heap.COLLECT_EVERY):
        await heap.collect()
    assert len(made) == collections


async def test_what_a_start_of_many_servers_made_is_left_out_once_and_then_collected(
    autojump_clock: MockClock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside many tasks, a full collection takes a fifth of a second."""
    made: list[str] = []
    monkeypatch.setattr(heap, "FEW_TASKS", 0)
    monkeypatch.setattr(gc, "get_count", lambda: (0, 0, heap.MANY))
    monkeypatch.setattr(gc, "freeze", lambda: made.append("left out"))
    monkeypatch.setattr(gc, "collect", lambda: made.append("collected"))
    with trio.move_on_after(3.5 * heap.COLLECT_EVERY):
        await heap.collect()
    assert made == ["left out", "collected", "collected"]
    made.clear()
    monkeypatch.setattr(heap, "STARTING", 0.0)
    with trio.move_on_after(1.5 * heap.COLLECT_EVERY):
        await heap.collect()
    assert made == ["collected"]
