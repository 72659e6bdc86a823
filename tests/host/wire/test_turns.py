"""Turns: the work of all readers in one pass of the event loop, counted pass by pass with a clock of the test."""

from __future__ import annotations

import pytest
import trio

from host.wire.turns import PASS_BUDGET, Turns


class Work:
    """A clock that goes on only when somebody works; and what was worked in each pass."""

    def __init__(self) -> None:
        self.now = 0.0
        self.passes: list[list[tuple[str, float]]] = [[]]

    def __call__(self) -> float:
        return self.now

    def do(self, who: str, seconds: float) -> None:
        self.now += seconds
        self.passes[-1].append((who, seconds))

    def before_io_wait(self, timeout: float) -> None:
        """The event loop begins another pass (`trio.abc.Instrument`)."""
        self.passes.append([])


class Passes(trio.abc.Instrument):
    def __init__(self, work: Work) -> None:
        self._work = work

    def before_io_wait(self, timeout: float) -> None:
        self._work.before_io_wait(timeout)


async def read(turns: Turns, work: Work, who: str, chunks: int, messages: int, seconds: float) -> None:
    turn = turns.turn()
    for _ in range(chunks):
        await trio.lowlevel.checkpoint()  # as a read does
        turn.begin()
        for _ in range(messages):
            work.do(who, seconds)
            await turn.yield_if_over()


@pytest.mark.few(2)
@pytest.mark.parametrize("readers", [1, 4, 20])
@pytest.mark.parametrize("seconds", [0.0001, 0.0007, 0.005])
async def test_all_readers_together_do_no_more_in_one_pass_than_the_share_and_one_message_each(
    readers: int, seconds: float
) -> None:
    work = Work()
    turns = Turns(work)
    instrument = Passes(work)
    trio.lowlevel.add_instrument(instrument)
    async with trio.open_nursery() as nursery:
        for each in range(readers):
            nursery.start_soon(read, turns, work, str(each), 5, 60, seconds)
    trio.lowlevel.remove_instrument(instrument)
    done = [each for each in work.passes if each]
    assert sum(map(len, done)) == readers * 5 * 60
    for one in done:
        assert sum(took for _, took in one) <= PASS_BUDGET + readers * seconds + 1e-9


async def test_noisy_readers_do_not_delay_a_quiet_one() -> None:
    """The message of the quiet reader is handled in the pass in which it arrives."""
    work = Work()
    turns = Turns(work)
    async with trio.open_nursery() as nursery:
        for each in range(4):
            nursery.start_soon(read, turns, work, f"noisy {each}", 100, 200, 0.0005)
        for _ in range(50):
            await trio.lowlevel.checkpoint()
            before = work.now
            await read(turns, work, "quiet", 1, 1, 0.00001)
            assert work.now - before <= 3 * (PASS_BUDGET + 5 * 0.0005)
        nursery.cancel_scope.cancel()


async def test_a_reader_with_little_to_do_never_waits() -> None:
    work = Work()
    turns = Turns(work)
    turn = turns.turn()
    steps = 0

    async def count() -> None:
        nonlocal steps
        while True:
            await trio.lowlevel.checkpoint()
            steps += 1

    async with trio.open_nursery() as nursery:
        nursery.start_soon(count)
        for _ in range(19):
            turn.begin()
            work.do("a", PASS_BUDGET / 20)
            await turn.yield_if_over()
        assert steps == 0
        nursery.cancel_scope.cancel()


async def test_a_reader_that_gives_way_can_be_cancelled() -> None:
    work = Work()
    turns = Turns(work)
    turn = turns.turn()
    with trio.CancelScope() as scope:
        scope.cancel()
        work.do("a", 1.0)
        await turn.yield_if_over()
        raise AssertionError("it went on")
    assert scope.cancelled_caught


@pytest.mark.parametrize("readers", [1, 20])
async def test_readers_that_wait_for_their_share_exceed_the_budget_by_one_message_together(readers: int) -> None:
    """And each of them gets on."""
    work = Work()
    turns = Turns(work)
    instrument = Passes(work)
    trio.lowlevel.add_instrument(instrument)

    async def copy(who: str) -> None:
        turn = turns.turn()
        for _ in range(30):
            await trio.lowlevel.checkpoint()
            await turn.wait_for_share()
            turn.begin()
            work.do(who, 0.0002)
            turn.account()

    async with trio.open_nursery() as nursery:
        for each in range(readers):
            nursery.start_soon(copy, str(each))
    trio.lowlevel.remove_instrument(instrument)
    assert max(sum(seconds for _, seconds in each) for each in work.passes) <= PASS_BUDGET + 0.0002 + 1e-9
    assert sum(map(len, work.passes)) == 30 * readers
