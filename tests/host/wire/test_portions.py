"""Portions: the bytes that each task may read in each pass of the event loop, counted pass by pass."""

from __future__ import annotations

from itertools import pairwise

import pytest
import trio

from host.wire.deadlines import SystemClock
from host.wire.portions import MIN_PORTION, PASSES, PORTION, SMALL, SMALL_PARTS, Portions


class Reads(trio.abc.Instrument):
    """The reads of each pass: task and number of bytes."""

    def __init__(self) -> None:
        self.passes: list[list[tuple[str, int]]] = [[]]

    def before_io_wait(self, timeout: float) -> None:
        self.passes.append([])

    @property
    def done(self) -> list[tuple[str, int]]:
        return [each for one in self.passes for each in one]


@pytest.fixture
async def reads() -> Reads:
    found = Reads()
    trio.lowlevel.add_instrument(found)
    return found


async def read(portions: Portions, reads: Reads, who: str, available: int, times: int) -> None:
    for _ in range(times):
        await trio.lowlevel.checkpoint()  # as a wait for input does
        part = await portions.acquire(lambda: available)
        reads.passes[-1].append((who, min(part, available)))


@pytest.mark.parametrize("clock", [None, SystemClock()], ids=["no passes counted", "passes counted"])
@pytest.mark.parametrize("available", [1, SMALL, SMALL + 1, MIN_PORTION, PORTION, 10 * PORTION])
def test_two_hundred_connections_read_no_more_at_a_time_than_the_portion(
    available: int, clock: SystemClock | None
) -> None:
    reads = Reads()

    async def main() -> None:
        portions = Portions()
        async with trio.open_nursery() as nursery:
            for each in range(200):
                nursery.start_soon(read, portions, reads, str(each), available, 3)

    trio.run(main, clock=clock, instruments=[reads])
    assert len(reads.done) == 600
    for one in reads.passes:
        assert sum(size for _, size in one) < 2 * PORTION
        assert len(one) <= (SMALL_PARTS if available <= SMALL else PORTION // MIN_PORTION)
    if available > SMALL:
        busy = [at for at, one in enumerate(reads.passes) if one]
        assert min(later - at for at, later in pairwise(busy)) >= PASSES - 1  # the read comes a pass after its turn


@pytest.mark.parametrize("others", [0, 5])
def test_portions_that_last_are_renewed_by_whoever_comes_later(others: int) -> None:
    """Nothing is to run in a pass because of them, and none gives out more than its own."""
    size = PORTION // PASSES
    reads = Reads()

    async def read_slowly(portions: Portions) -> None:
        for _ in range(30):
            await trio.sleep(1e-4)
            queued = trio.lowlevel.current_statistics().run_sync_soon_queue_size
            part = await portions.acquire(lambda: size)
            reads.passes[-1].append(("", part))
            assert others or not queued

    async def main() -> None:
        portions = Portions()
        async with trio.open_nursery() as nursery:
            for _ in range(others + 1):
                nursery.start_soon(read_slowly, portions)

    trio.run(main, clock=SystemClock(), instruments=[reads])
    sizes = [sum(size for _, size in one) for one in reads.passes]
    assert max(sum(sizes[at : at + PASSES]) for at in range(len(sizes))) < 4 * PORTION
    assert sum(sizes) == (others + 1) * 30 * size


@pytest.mark.parametrize(
    ("others", "theirs", "mine", "times", "passes"),
    [(600, 1, PORTION, 48, PASSES * 48 + PASSES), (100, PORTION, 1, 10, 3 * 10)],
)
async def test_neither_single_bytes_nor_large_bodies_let_the_other_wait(
    reads: Reads, others: int, theirs: int, mine: int, times: int, passes: int
) -> None:
    portions = Portions()
    async with trio.open_nursery() as nursery:
        for each in range(others):
            nursery.start_soon(read, portions, reads, str(each), theirs, 1000)
        for _ in range(10):
            await trio.lowlevel.checkpoint()
        before = len(reads.passes)
        await read(portions, reads, "mine", mine, times)
        assert len(reads.passes) - before <= passes
        nursery.cancel_scope.cancel()


async def test_who_waits_longest_is_next_and_who_gave_up_is_left_out() -> None:
    portions = Portions()
    asked: list[str] = []
    served: list[str] = []
    third = trio.CancelScope()

    async def wait(who: str) -> None:
        asked.append(who)
        with third if len(asked) == 3 else trio.CancelScope():
            await portions.acquire(lambda: PORTION)
            served.append(who)

    async with trio.open_nursery() as nursery:
        await portions.acquire(lambda: PORTION)
        for each in "abcdef":
            nursery.start_soon(wait, each)
        await trio.lowlevel.cancel_shielded_checkpoint()
        third.cancel()
    assert served == asked[:2] + asked[3:]


async def test_how_much_there_is_counts_when_it_is_given() -> None:
    portions = Portions()
    available = PORTION
    asked = 0
    parts: list[int] = []

    async def wait() -> None:
        nonlocal available, asked
        asked += 1
        if asked == 3:
            available = 2 * MIN_PORTION
        parts.append(await portions.acquire(lambda: available))

    async with trio.open_nursery() as nursery:
        for _ in range(3):
            nursery.start_soon(wait)
    assert parts == [PORTION, 2 * MIN_PORTION, 2 * MIN_PORTION]
