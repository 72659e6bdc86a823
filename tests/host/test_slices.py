"""Long work in slices: all of it is done, everybody has a turn, and what is too long for the loop is done elsewhere."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Awaitable, Callable

import pytest
import trio

from host.slices import SLICE, Slices, Steps, Waiting, complete, in_worker, map_in_steps, run_inline


def counting(to: int, reached: list[int]) -> Steps[int]:
    for number in range(to):
        yield None
        reached.append(number)
    return to


class InThread(Waiting):
    def __init__(self, seen: list[threading.Thread]) -> None:
        self.seen = seen

    async def wait(self) -> None:
        await trio.to_thread.run_sync(self.block)

    def block(self) -> None:
        self.seen.append(threading.current_thread())


def heavy(seen: list[threading.Thread]) -> Steps[str]:
    yield InThread(seen)
    return "done"


def test_without_a_loop_it_is_done_at_once() -> None:
    reached: list[int] = []
    assert run_inline(counting(5, reached)) == 5
    assert reached == [0, 1, 2, 3, 4]
    seen: list[threading.Thread] = []
    assert run_inline(heavy(seen)) == "done"
    assert seen == [threading.current_thread()]


def test_what_is_changed_meanwhile_does_not_count() -> None:
    things = [1, 2, 3]
    steps = map_in_steps(str, things)
    next(steps)
    things.append(4)
    assert run_inline(steps) == ["1", "2", "3"]


@pytest.mark.parametrize("run", [Slices().run, complete])
async def test_what_waits_is_done_in_another_thread(run: Callable[[Steps[str]], Awaitable[str]]) -> None:
    seen: list[threading.Thread] = []
    assert await run(heavy(seen)) == "done"
    assert seen[0] is not threading.current_thread()


async def test_a_step_of_many_slices_is_followed_by_passes_without_one() -> None:
    passes: list[int] = [0]

    def long() -> Steps[int]:
        until = time.perf_counter() + 20 * SLICE
        while time.perf_counter() < until:
            pass
        before = passes[0]
        yield None
        return passes[0] - before

    async def count() -> None:
        while True:
            await trio.lowlevel.checkpoint()
            passes[0] += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        assert await Slices().run(long()) >= 19
        nursery.cancel_scope.cancel()


async def test_slices_of_all_take_turns_and_others_go_on() -> None:
    slices = Slices()
    finished: list[str] = []
    passes = 0

    def busy(slices_wanted: int) -> Steps[None]:
        for _ in range(slices_wanted):
            until = time.perf_counter() + SLICE
            while time.perf_counter() < until:
                pass
            yield None

    async def work(name: str, wanted: int) -> None:
        await slices.run(busy(wanted))
        finished.append(name)

    async def others() -> None:
        nonlocal passes
        while len(finished) < 3:
            passes += 1
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        for name, wanted in (("long", 40), ("middle", 20), ("short", 5)):
            nursery.start_soon(work, name, wanted)
        nursery.start_soon(others)
    assert finished == ["short", "middle", "long"], "whoever comes later does not wait for the whole of what is long"
    assert passes >= 65, "one slice in each pass of the loop, whoever it is for"


async def test_nothing_waits_between_the_end_and_the_return() -> None:
    """What was made is still so when it is taken."""
    order: list[str] = []

    def ending() -> Steps[None]:
        yield None
        order.append("made")

    async def run() -> None:
        await Slices().run(ending())
        order.append("taken")

    async def other() -> None:
        for _ in range(20):
            order.append("other")
            await trio.lowlevel.checkpoint()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run)
        nursery.start_soon(other)
    assert order[order.index("made") + 1] == "taken"


async def test_work_that_fails_frees_its_turn() -> None:
    slices = Slices()

    def failing() -> Steps[None]:
        yield None
        raise KeyError("x")

    for _ in range(2):
        try:
            await slices.run(failing())
        except KeyError:
            continue
    assert await slices.run(counting(3, [])) == 3
    with trio.CancelScope() as scope:
        scope.cancel()
        await slices.run(counting(3, []))
    assert await slices.run(counting(3, [])) == 3


def process_and_length(text: bytes) -> tuple[int, int]:
    return os.getpid(), len(text)


def heavier() -> Steps[tuple[int, int]]:
    yield None
    return (yield from in_worker(process_and_length, b"abc"))


def test_without_a_loop_it_is_done_in_this_process() -> None:
    assert run_inline(heavier()) == (os.getpid(), 3)


async def test_what_takes_the_interpreter_is_done_in_another_process() -> None:
    pid, length = await Slices().run(heavier())
    assert pid != os.getpid()
    assert length == 3
