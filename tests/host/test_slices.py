"""Long work in slices: all of it is done, everybody has a turn, and what is too long for the loop is done elsewhere."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
import trio

from host import slices
from host.slices import MAX_PASSES, SLICE, charged, in_worker, map_in_slices, pause, run_now, run_within
from tests.kit.awaited import Paused


class Passes(trio.abc.Instrument):
    """Counts the passes of the loop."""

    def __init__(self) -> None:
        self.count = 0
        trio.lowlevel.add_instrument(self)

    def before_io_wait(self, timeout: float) -> None:
        self.count += 1


class Clock:
    """Time passes only while `work` is done."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now

    def work(self, slices: float) -> None:
        self.now += slices * SLICE * 1.001


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(slices, "perf_counter", clock)
    monkeypatch.setattr(slices, "thread_time", clock)
    monkeypatch.setattr(slices, "_turns", slices._Turns())
    return clock


async def count_to(to: int, reached: list[int]) -> int:
    for number in range(to):
        await pause()
        reached.append(number)
    return to


def test_what_is_short_is_done_at_once_without_a_loop() -> None:
    reached: list[int] = []
    assert run_now(count_to(5, reached)) == 5
    assert reached == [0, 1, 2, 3, 4]


async def test_what_must_be_done_at_once_does_not_wait() -> None:
    with pytest.raises(RuntimeError, match="waits for something"):
        run_now(failing())
    assert run_now(count_to(3, [])) == 3


def test_what_is_changed_meanwhile_does_not_count() -> None:
    things = [1, 2, 3]
    mapping = Paused(map_in_slices(str, things))
    next(mapping)
    things.append(4)
    assert mapping.rest() == ["1", "2", "3"]


async def test_work_of_many_slices_is_followed_by_passes_without_it(clock: Clock) -> None:
    passes = Passes()
    await pause()
    clock.work(15)
    before = passes.count
    await pause()
    assert passes.count == before + 15
    clock.work(1000)  # the process may have been stopped in it
    await pause()
    assert passes.count == before + 15 + MAX_PASSES


@pytest.mark.parametrize("slices", [12, 1000])
async def test_work_after_a_wait_does_not_stand_back_for_the_time_of_the_wait(clock: Clock, slices: int) -> None:
    """As a connection does that has waited for its next request."""
    passes = Passes()
    await pause()
    await trio.lowlevel.checkpoint()
    clock.work(slices)
    before = passes.count
    await pause()
    assert passes.count == before


async def test_slices_of_all_take_turns_and_others_go_on(clock: Clock) -> None:
    finished: list[str] = []
    passes = Passes()

    async def work(name: str, count: int) -> None:
        for _ in range(count):
            clock.work(1)
            await pause()
        finished.append(name)

    async with trio.open_nursery() as nursery:
        for name, count in (("long", 40), ("middle", 20), ("short", 5)):
            nursery.start_soon(work, name, count)
    assert finished == ["short", "middle", "long"], "whoever comes later does not wait for the whole of what is long"
    assert passes.count >= 62, "one slice in each pass of the loop, whoever it is for"


@pytest.mark.parametrize("size", [1, 3, 9])
async def test_many_that_begin_in_one_pass_get_one_slice_after_the_other(clock: Clock, size: int) -> None:
    """Only the first one begins without waiting."""
    at: list[int] = []
    passes = Passes()

    async def work() -> None:
        await pause()
        at.append(passes.count)
        clock.work(size)

    async with trio.open_nursery() as nursery:
        for _ in range(10):
            nursery.start_soon(work)
    assert len(set(at)) == 10


async def test_short_work_beside_no_other_waits_for_nothing() -> None:
    with trio.CancelScope() as scope:
        scope.cancel()
        assert await count_to(3, []) == 3
    assert not scope.cancelled_caught


async def test_work_that_fails_or_is_cancelled_frees_its_turn(clock: Clock) -> None:
    async def fail() -> None:
        await pause()
        clock.work(1)
        await pause()
        raise KeyError("x")

    for _ in range(2):
        with pytest.raises(KeyError):
            await fail()
    with trio.CancelScope() as scope:
        scope.cancel()
        for _ in range(3):
            clock.work(1)
            await pause()
    assert scope.cancelled_caught
    assert await count_to(3, []) == 3


def process_and_length(text: bytes) -> tuple[int, int]:
    return os.getpid(), len(text)


async def heavier() -> tuple[int, int]:
    await pause()
    return await in_worker(process_and_length, b"abc")


def test_at_once_it_is_done_in_this_process() -> None:
    assert run_now(heavier()) == (os.getpid(), 3)


@pytest.mark.slow
async def test_what_takes_the_interpreter_is_done_in_another_process() -> None:
    pid, length = await heavier()
    assert pid != os.getpid()
    assert length == 3


async def test_only_its_own_work_is_charged(clock: Clock) -> None:
    """Also where it fails; not what others do while it waits."""
    seconds: list[float] = []

    async def work() -> str:
        clock.work(4)
        await trio.sleep(0.001)
        clock.work(4)
        return "done"

    async def others() -> None:
        clock.work(40)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(others)
        assert await charged(seconds.append, work()) == "done"
    assert len(seconds) >= 2
    assert sum(seconds) == pytest.approx(8 * SLICE, rel=0.01)
    assert await charged(None, count_to(2, [])) == 2


async def test_a_context_is_entered_whenever_the_work_goes_on() -> None:
    inside: list[None] = []
    entered: list[None] = []

    @contextmanager
    def context() -> Iterator[None]:
        inside.append(None)
        entered.append(None)
        try:
            yield
        finally:
            inside.clear()

    async def work() -> str:
        assert inside
        await trio.lowlevel.checkpoint()
        assert inside
        try:
            await trio.sleep_forever()
        except trio.Cancelled:
            assert inside
            raise
        raise AssertionError

    async with trio.open_nursery() as nursery:
        nursery.start_soon(run_within, context, work())
        for _ in range(3):
            await trio.lowlevel.checkpoint()
            assert not inside
        nursery.cancel_scope.cancel()
    assert len(entered) == 3
    with pytest.raises(KeyError):
        await run_within(context, failing())
    assert not inside


async def failing() -> None:
    await trio.lowlevel.checkpoint()
    raise KeyError("x")
