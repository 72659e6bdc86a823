"""One call less than the limit passes, and the limit itself; one more does not, and says when it would."""

from __future__ import annotations

import math
from collections.abc import Callable
from contextlib import AsyncExitStack

import msgspec
import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from config import Limits, Rate, Trust
from host.errors import TooLarge, TooManyRequests
from host.policy.limits import DEFAULT_SAMPLING, MAX_QUEUE, QUEUE_TIMEOUT, Meter


def again(caught: pytest.ExceptionInfo[TooManyRequests]) -> int:
    """The milliseconds after which it may be tried again."""
    data = caught.value.data
    assert data is not None
    found = msgspec.json.decode(data, type=dict[str, int])
    assert found.keys() == {"retryAfterMs"}
    return found["retryAfterMs"]


async def once(meter: Meter) -> None:
    async with meter.slot():
        pass


async def refused(meter: Meter) -> int | None:
    """The milliseconds after which a call may be tried again; None if it passes now."""
    try:
        await once(meter)
    except TooManyRequests as problem:
        return msgspec.json.decode(problem.data or b"", type=dict[str, int])["retryAfterMs"]
    return None


async def held(meter: Meter, *, task_status: trio.TaskStatus[None]) -> None:
    async with meter.slot():
        task_status.started()
        await trio.sleep_forever()


async def waits(meter: Meter, nursery: trio.Nursery, work: Callable[[], object] = lambda: None) -> trio.CancelScope:
    """A call that has to wait; `work` is called when it gets its slot."""
    scope = trio.CancelScope()

    async def call() -> None:
        with scope:
            async with meter.slot():
                work()

    nursery.start_soon(call)
    await trio.testing.wait_all_tasks_blocked()
    return scope


async def test_without_limits_nothing_is_limited(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(), Trust.TRUSTED)
    async with AsyncExitStack() as calls:
        for _ in range(500):
            await calls.enter_async_context(meter.slot())
        assert meter.running == 500
    assert meter.running == 0
    for _ in range(500):
        meter.charge_sampling(None)
        meter.charge_sampling(10**9)
    meter.check_result_size(10_000_000)
    assert trio.current_time() == autojump_clock.current_time()


async def test_so_many_calls_in_a_time_and_no_more(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(calls=Rate(60, 60.0)))
    for _ in range(60):
        await once(meter)
    with pytest.raises(TooManyRequests) as caught:
        await once(meter)
    assert caught.value.code == 429
    assert caught.value.message == "gh may be called 60 times in 60 s; try again in 1 s"
    assert again(caught) == 1000
    await trio.sleep(0.999)
    with pytest.raises(TooManyRequests) as caught:
        await once(meter)
    assert again(caught) == 1
    await trio.sleep(0.001)
    await once(meter)
    with pytest.raises(TooManyRequests):
        await once(meter)
    await trio.sleep(3600)  # no more than the burst comes back
    for _ in range(60):
        await once(meter)
    with pytest.raises(TooManyRequests):
        await once(meter)


@pytest.mark.parametrize(("early", "passes"), [(1, False), (0, True)])
async def test_trying_again_when_told_to_helps(
    early: int, passes: bool, autojump_clock: trio.testing.MockClock
) -> None:
    meter = Meter("gh", Limits(calls=Rate(7, 3.0)))
    for _ in range(7):
        await once(meter)
    with pytest.raises(TooManyRequests) as caught:
        await once(meter)
    await trio.sleep((again(caught) - early) / 1000)
    if passes:
        await once(meter)
    else:
        with pytest.raises(TooManyRequests):
            await once(meter)


async def test_so_many_at_once_and_the_next_one_waits(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(concurrent=3))
    done: list[float] = []

    async def call() -> None:
        async with meter.slot():
            await trio.sleep(1)
        done.append(trio.current_time() - began)

    began = trio.current_time()
    async with trio.open_nursery() as nursery:
        for _ in range(7):
            nursery.start_soon(call)
        await trio.testing.wait_all_tasks_blocked()
        assert (meter.running, meter.waiting) == (3, 4)
    assert done == [1, 1, 1, 2, 2, 2, 3]
    assert (meter.running, meter.waiting) == (0, 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_queue_is_bounded(more: int, autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(concurrent=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(held, meter)
        for _ in range(MAX_QUEUE - 1):
            await waits(meter, nursery)
        if more >= 0:
            await waits(meter, nursery)
        if more > 0:
            with pytest.raises(TooManyRequests) as caught:
                await once(meter)
            assert again(caught) == 1000
            assert caught.value.message == (
                "gh runs as many calls at once as it may, and 32 more wait already; try again in 1 s"
            )
        assert meter.waiting == MAX_QUEUE + min(more, 0)
        nursery.cancel_scope.cancel()
    assert (meter.running, meter.waiting) == (0, 0)


async def test_nobody_waits_for_ever(autojump_clock: trio.testing.MockClock) -> None:
    """The deadline is one from the moment of coming, however often the queue moves."""
    meter = Meter("gh", Limits(concurrent=1))
    async with trio.open_nursery() as nursery:
        await nursery.start(held, meter)
        before = await waits(meter, nursery)
        began = trio.current_time()
        async with trio.open_nursery() as inner:

            @inner.start_soon
            async def move() -> None:
                await trio.sleep(QUEUE_TIMEOUT - 1)
                before.cancel()

            with pytest.raises(TooManyRequests) as caught:
                await once(meter)
        assert trio.current_time() - began == QUEUE_TIMEOUT
        assert again(caught) == 1000
        assert caught.value.message == (
            "gh runs as many calls at once as it may, and none ended in 30 s; try again in 1 s"
        )
        assert (meter.running, meter.waiting) == (1, 0)
        nursery.cancel_scope.cancel()


async def test_who_comes_first_is_called_first(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(concurrent=2))
    order: list[int] = []

    async def call(number: int) -> None:
        async with meter.slot():
            order.append(number)
            await trio.sleep(1 + number % 3)

    async with trio.open_nursery() as nursery:
        for number in range(20):
            nursery.start_soon(call, number)
            await trio.testing.wait_all_tasks_blocked()
    assert order == list(range(20))


async def test_nobody_overtakes_who_waits(autojump_clock: trio.testing.MockClock) -> None:
    """Who comes at the moment at which a slot becomes free does not get it."""
    meter = Meter("gh", Limits(concurrent=1))
    order: list[str] = []
    async with trio.open_nursery() as nursery:
        async with meter.slot():
            await waits(meter, nursery, lambda: order.append("first"))
        async with meter.slot():
            order.append("second")
    assert order == ["first", "second"]


async def test_a_cancelled_wait_leaves_no_trace(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(calls=Rate(3, 3000.0), concurrent=1))
    ran: list[str] = []
    async with trio.open_nursery() as nursery:
        async with meter.slot():
            first = await waits(meter, nursery, lambda: ran.append("first"))
            await waits(meter, nursery, lambda: ran.append("second"))
            with pytest.raises(TooManyRequests):  # those who wait will use what is left
                await once(meter)
            first.cancel()
            await trio.testing.wait_all_tasks_blocked()
            assert meter.waiting == 1
            await waits(meter, nursery, lambda: ran.append("third"))
    assert ran == ["second", "third"]
    assert (meter.running, meter.waiting) == (0, 0)
    with pytest.raises(TooManyRequests):
        await once(meter)


@pytest.mark.parametrize("cancel_first", [False, True])
async def test_called_up_and_cancelled_at_the_same_moment(
    cancel_first: bool, autojump_clock: trio.testing.MockClock
) -> None:
    meter = Meter("gh", Limits(calls=Rate(3, 3000.0), concurrent=1))
    ran: list[str] = []
    async with trio.open_nursery() as nursery:
        async with meter.slot():
            first = await waits(meter, nursery, lambda: ran.append("first"))
            await waits(meter, nursery, lambda: ran.append("second"))
            if cancel_first:
                first.cancel()
        first.cancel()
    assert ran == ["second"] if cancel_first else ran in (["first", "second"], ["second"])
    assert (meter.running, meter.waiting) == (0, 0)
    for _ in range(3 - 1 - len(ran)):
        await once(meter)
    with pytest.raises(TooManyRequests):
        await once(meter)


async def test_a_call_that_fails_frees_its_slot(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(concurrent=1))
    for _ in range(3):
        with pytest.raises(KeyError):
            async with meter.slot():
                raise KeyError
    assert meter.running == 0


@pytest.mark.parametrize("size", [9, 10, 11])
async def test_results_of_that_size_and_no_more(size: int) -> None:
    meter = Meter("gh", Limits(result=10))
    if size <= 10:
        meter.check_result_size(size)
        return
    with pytest.raises(TooLarge) as caught:
        meter.check_result_size(size)
    assert caught.value.code == 413
    assert caught.value.server == "gh"
    assert caught.value.message == "gh carried it out, but sent 11 bytes; limits.result lets it send 10 in one result"


async def test_questions_to_models_have_a_budget(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(sampling=Rate(2, 60.0)))
    meter.charge_sampling(100)
    meter.charge_sampling(None)
    with pytest.raises(TooManyRequests) as caught:
        meter.charge_sampling(1)
    assert caught.value.message == "gh may send 2 sampling requests in 60 s; try again in 30 s"
    assert again(caught) == 30_000
    await trio.sleep(30)
    meter.charge_sampling(1)


@pytest.mark.parametrize("trust", Trust)
async def test_servers_that_are_not_trusted_have_one_anyway(trust: Trust) -> None:
    meter = Meter("gh", Limits(), trust)
    for _ in range(DEFAULT_SAMPLING.count):
        meter.charge_sampling(10**6)
    if trust is Trust.TRUSTED:
        meter.charge_sampling(1)
    else:
        with pytest.raises(TooManyRequests):
            meter.charge_sampling(1)
    generous = Meter("gh", Limits(sampling=Rate(DEFAULT_SAMPLING.count + 1, DEFAULT_SAMPLING.seconds)), trust)
    for _ in range(DEFAULT_SAMPLING.count + 1):
        generous.charge_sampling(1)


async def test_tokens_have_a_budget_and_nothing_is_taken_by_halves(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(sampling=Rate(3, 3000.0), sampling_tokens=Rate(1000, 10.0)))
    meter.charge_sampling(900)
    for _ in range(5):  # no question is spent by these
        with pytest.raises(TooManyRequests) as caught:
            meter.charge_sampling(101)
        assert caught.value.message == "gh may ask models for 1000 tokens in 10 s; try again in 0.01 s"
        assert again(caught) == 10
    meter.charge_sampling(100)
    meter.charge_sampling(-5)  # gives nothing back
    await trio.sleep(10)
    for _ in range(5):  # and no token by these
        with pytest.raises(TooManyRequests, match="3 sampling requests in 3000 s"):
            meter.charge_sampling(1000)


async def test_a_question_that_can_never_be_is_told_so(autojump_clock: trio.testing.MockClock) -> None:
    meter = Meter("gh", Limits(sampling_tokens=Rate(1000, 10.0)))
    with pytest.raises(TooManyRequests) as caught:
        meter.charge_sampling(1001)
    assert caught.value.message == "gh may ask models for 1000 tokens in 10 s, and wants 1001 at once"
    assert caught.value.data is None
    meter.charge_sampling(None)  # takes them all
    with pytest.raises(TooManyRequests) as caught:
        meter.charge_sampling(1)
    assert again(caught) == 10


async def test_a_reload_keeps_what_runs_what_waits_and_what_was_spent(
    autojump_clock: trio.testing.MockClock,
) -> None:
    former = Meter("gh", Limits(calls=Rate(5, 5000.0), concurrent=1, sampling=Rate(2, 2000.0)))
    former.charge_sampling(1)
    ran: list[str] = []
    async with trio.open_nursery() as nursery:
        async with former.slot():
            await waits(former, nursery, lambda: ran.append("first"))
            await waits(former, nursery, lambda: ran.append("second"))
            meter = Meter("gh", Limits(calls=Rate(6, 6000.0), concurrent=2, sampling=Rate(2, 2000.0), result=3))
            meter.take_over(former)
            assert (meter.running, meter.waiting) == (2, 1)  # there is room for one more now
            await trio.testing.wait_all_tasks_blocked()
            assert ran == ["first", "second"]
            assert meter.running == former.running == 1
        assert meter.running == 0
    for _ in range(3):
        await once(meter)
    with pytest.raises(TooManyRequests, match="6 times in 6000 s"):
        await once(meter)
    meter.charge_sampling(1)
    with pytest.raises(TooManyRequests):
        meter.charge_sampling(1)
    with pytest.raises(TooLarge):
        meter.check_result_size(4)


async def test_a_reload_to_fewer_lets_those_that_run_end(autojump_clock: trio.testing.MockClock) -> None:
    former = Meter("gh", Limits())
    async with trio.open_nursery() as nursery:
        async with former.slot(), former.slot(), former.slot():
            meter = Meter("gh", Limits(concurrent=2, calls=Rate(10, 10.0)))
            meter.take_over(former)
            assert meter.running == 3
            ran: list[int] = []
            await waits(meter, nursery, lambda: ran.append(meter.running))
            assert meter.waiting == 1
        await trio.testing.wait_all_tasks_blocked()
    assert ran == [1]


async def test_more_than_the_new_limit_is_not_owed(autojump_clock: trio.testing.MockClock) -> None:
    former = Meter("gh", Limits(calls=Rate(1000, 3600.0)))
    for _ in range(1000):
        await once(former)
    meter = Meter("gh", Limits(calls=Rate(10, 60.0)))
    meter.take_over(former)
    with pytest.raises(TooManyRequests) as caught:
        await once(meter)
    assert again(caught) == 6000
    free = Meter("gh", Limits())
    free.take_over(meter)
    await once(free)


@given(
    st.integers(1, 20),
    st.sampled_from([0.1, 1.0, 3.0, 60.0, 3600.0]),
    st.lists(st.floats(0, 5), min_size=1, max_size=60),
)
def test_a_rate_in_general(count: int, seconds: float, gaps: list[float]) -> None:
    """In no stretch of time do more pass than the burst and what came back in it; whoever is refused passes after the
    time that was said, and not before."""

    async def run() -> None:
        meter = Meter("gh", Limits(calls=Rate(count, seconds)))
        passed: list[float] = []
        for gap in gaps:
            await trio.sleep(gap * seconds / count)
            if (wait := await refused(meter)) is not None:
                assert 0 < wait <= math.ceil(seconds / count * 1000)
                await trio.sleep(wait / 1000)
                await once(meter)
            passed.append(trio.current_time())
        for at, first in enumerate(passed):
            for behind, last in enumerate(passed[at:], 1):
                assert behind <= count + (last - first) * count / seconds + 1e-5

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.floats(0, 3), st.floats(0, 40), st.floats(0, 40)), min_size=1, max_size=50),
)
def test_slots_in_general(concurrent: int, calls: list[tuple[float, float, float]]) -> None:
    """Never more at once than may be, all in the order of coming; nobody waits while there is room, nothing stays."""

    async def run() -> None:
        meter = Meter("gh", Limits(concurrent=concurrent))
        order: list[tuple[float, int]] = []

        async def call(number: int, length: float, patience: float) -> None:
            began = trio.current_time()
            with trio.move_on_after(patience):
                try:
                    async with meter.slot():
                        order.append((trio.current_time(), number))
                        assert meter.running <= concurrent
                        assert trio.current_time() - began <= QUEUE_TIMEOUT
                        await trio.sleep(length)
                except TooManyRequests:
                    assert meter.running == concurrent
            assert meter.waiting <= MAX_QUEUE
            assert meter.running == concurrent or not meter.waiting

        async with trio.open_nursery() as nursery:
            for number, (gap, length, patience) in enumerate(calls):
                await trio.sleep(gap)
                nursery.start_soon(call, number, length, patience)
                await trio.lowlevel.checkpoint()
        # Those that are called up at one moment run in any order: trio shuffles them.
        assert [number for _, number in sorted(order)] == sorted(number for _, number in order)
        assert (meter.running, meter.waiting) == (0, 0)

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0))
