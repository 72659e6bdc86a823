"""Limits that all processes of a fleet share: never more in all, whoever comes, goes, pauses or hears nothing."""

from __future__ import annotations

import math
from collections.abc import AsyncIterator, Awaitable, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest
import trio
from hypothesis import given
from hypothesis import strategies as st

from config import Limits, Rate, Trust
from host.errors import TooManyRequests
from host.fleet.directory import PostgresDirectory
from host.fleet.members import DirectoryAway
from host.fleet.rates import LIFE, LOOK, OWN_LIFE, PLACES, RENEWAL, Account, Leased, LeasedBudget, Rates, Wish, settle
from host.policy.limits import QUEUE_TIMEOUT, Meter
from tests.host.fleet.conftest import StoredFleet
from tests.kit.postgres import needs_postgres

MEMBERS = 3


class MemoryLedger:
    """Implements `host.fleet.rates.Ledger`."""

    def __init__(self) -> None:
        self.is_away = False
        self.accounts: dict[tuple[str, str], dict[str, Account]] = {}
        self.asked = 0

    async def lease(self, wishes: Sequence[Wish], boot: str) -> Sequence[Leased]:
        await trio.sleep(0.01)
        if self.is_away:
            raise DirectoryAway
        self.asked += 1
        return [self.settle(each, boot, trio.current_time()) for each in wishes]

    def settle(self, wish: Wish, boot: str, now: float) -> Leased:
        key = wish.server, wish.kind
        self.accounts[key] = after = settle(wish, boot, self.accounts.get(key, {}), now)
        held = after.get(boot)
        return Leased(0 if held is None else int(held.amount), after[""].amount)


class Process:
    """A process without its loop: what it asks, and when it hears the answer, is up to the test."""

    def __init__(self, boot: str, rate: Rate, kind: str, clock: list[float]) -> None:
        self.boot = boot
        self.rates = Rates(MemoryLedger(), boot, lambda: (0, MEMBERS), lambda: clock[0])
        self.budget: LeasedBudget = self.rates.budget("gh", kind, rate)
        self.answer: tuple[Wish, int, Leased, float] | None = None

    def hear(self) -> None:
        if self.answer is not None:
            self.budget.settle(*self.answer)
            self.answer = None


PART = st.integers(0, MEMBERS - 1)
STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.5, 3.0, OWN_LIFE, LIFE, 40.0]), st.just(0)),
    st.tuples(st.just("use"), PART, st.integers(1, 6)),
    st.tuples(st.just("ask"), PART, st.just(0)),
    st.tuples(st.just("hear"), PART, st.just(0)),
    st.tuples(st.just("miss"), PART, st.just(0)),
    st.tuples(st.just("restart"), PART, st.just(0)),
)


@given(
    st.integers(1, 40),
    st.sampled_from([1.0, 10.0, 60.0]),
    st.sampled_from(["calls", "tokens"]),
    st.lists(STEPS, max_size=60),
)
def test_all_together_never_use_more_than_one_alone_could(
    count: int, seconds: float, kind: str, steps: list[tuple[str, Any, int]]
) -> None:
    """In each stretch of time. Answers come late or never, processes pause, end without a word and come anew."""
    clock, ledger, rate = [0.0], MemoryLedger(), Rate(count, seconds)
    processes = [Process(str(n), rate, kind, clock) for n in range(MEMBERS)]
    used: list[float] = []
    for number, (step, what, amount) in enumerate(steps):
        if step == "wait":
            clock[0] += what
            continue
        process = processes[what]
        if step == "use":
            if process.budget.seconds_until(amount) == 0:
                process.budget.take(amount)
                used += [clock[0]] * amount
        elif step == "ask" and process.answer is None:
            wish, before = process.budget.wish()
            process.answer = wish, before, ledger.settle(wish, process.boot, clock[0]), clock[0] + OWN_LIFE
        elif step == "hear":
            process.hear()
        elif step == "miss" and process.answer is not None:
            process.answer = None
            process.budget.fail()
        elif step == "restart":
            processes[what] = Process(f"new {number}", rate, kind, clock)
    for first, begin in enumerate(used):
        for last in range(first, len(used)):
            assert last - first + 1 <= count + (used[last] - begin) * count / seconds + 1e-3


class Places:
    """The places of one process, whose calls and answers are up to the test."""

    def __init__(self, boot: str, count: int, clock: list[float]) -> None:
        self.boot, self.running, self.place = boot, 0, (0, 1)
        self.rates = Rates(MemoryLedger(), boot, lambda: self.place, lambda: clock[0])
        self.places = self.rates.places("gh", count, lambda: self.running)
        self.answer: tuple[Wish, int, Leased, float] | None = None


PLACES_STEPS = st.one_of(
    st.tuples(st.just("wait"), st.sampled_from([0.01, 0.5, OWN_LIFE, LIFE]), st.just(0)),
    st.tuples(st.sampled_from(["begin", "end"]), PART, st.integers(1, 6)),
    st.tuples(st.sampled_from(["ask", "hear", "miss", "restart"]), PART, st.just(0)),
    st.tuples(st.just("sees"), PART, st.sampled_from([(0, 1), (0, 2), (1, 2), (0, 3), (1, 3), (2, 3)])),
)


@given(st.integers(1, 12), st.lists(PLACES_STEPS, max_size=80))
def test_no_more_calls_run_at_once_than_one_process_would_let_run(
    count: int, steps: list[tuple[str, Any, Any]]
) -> None:
    """Whatever each believes of the others. A call of a process that is gone, or has no lease, counts no longer."""
    clock, ledger = [0.0], MemoryLedger()
    processes = [Places(str(n), count, clock) for n in range(MEMBERS)]
    for number, (step, what, more) in enumerate(steps):
        if step == "wait":
            clock[0] += what
            for each in processes:
                each.running = min(each.running, each.places.held) if each.places.held else 0
            continue
        process = processes[what]
        if step == "begin" and process.running + more <= process.places.held:
            process.running += more
        elif step == "end":
            process.running = max(process.running - more, 0)
        elif step == "sees":
            process.place = more
        elif step == "ask" and process.answer is None:
            wish, before = process.places.wish()
            process.answer = wish, before, ledger.settle(wish, process.boot, clock[0]), clock[0] + OWN_LIFE
        elif step == "hear" and process.answer is not None:
            process.places.settle(*process.answer)
            process.answer = None
        elif step == "miss":
            process.answer = None
        elif step == "restart":
            processes[what] = Places(f"new {number}", count, clock)
        assert sum(each.running for each in processes) <= count


def test_what_is_not_used_can_be_had_again() -> None:
    """By whoever asks, once a lease is given back, or is over; and a spent budget comes back with time."""
    wish = Wish("gh", "tokens", Rate(10, 10.0), 0, 10, is_whole=True)
    accounts = settle(wish, "a", {}, 0.0)
    assert accounts == {"": Account(0.0, 0.0), "a": Account(10, LIFE)}
    assert "b" not in settle(wish, "b", accounts, LIFE - 0.1)
    back = settle(Wish("gh", "tokens", Rate(10, 10.0), 10, 0), "a", accounts, 1.0)
    assert settle(wish, "b", back, 1.0)["b"].amount == 10
    lost = settle(wish, "b", accounts, LIFE)
    assert set(lost) == {""}
    assert settle(wish, "b", lost, LIFE + 10)["b"].amount == 10


@asynccontextmanager
async def leasing(ledger: MemoryLedger, *boots: str) -> AsyncIterator[list[Rates]]:
    """Processes with these ids, for the block."""
    made = [Rates(ledger, boot, lambda n=n: (n, len(boots)), trio.current_time) for n, boot in enumerate(boots)]  # type: ignore[misc]
    async with trio.open_nursery() as nursery:
        for each in made:
            nursery.start_soon(each.run)
        yield made
        nursery.cancel_scope.cancel()


def meter_of(rates: Rates, limits: Limits) -> Meter:
    meter = Meter("gh", limits, Trust.TRUSTED, rates)
    rates.on_leased = meter.admit_waiting
    return meter


async def passes(meter: Meter, calls: int, gap: float = 0.0) -> int:
    """How many of so many calls were let pass."""
    count = 0
    for _ in range(calls):
        try:
            waiting = meter.begin_call()
        except TooManyRequests:
            pass
        else:
            assert waiting is None
            meter.end_call()
            count += 1
        await trio.sleep(gap)
    return count


@pytest.mark.virtual_time
async def test_a_busy_process_gets_what_idle_ones_do_not_need_and_no_call_waits() -> None:
    ledger = MemoryLedger()
    async with leasing(ledger, "a", "b", "c") as (a, b, _):
        busy, idle = meter_of(a, Limits(calls=Rate(60, 60.0))), meter_of(b, Limits(calls=Rate(60, 60.0)))
        await trio.sleep(1)
        assert await passes(busy, 100, 0.05) in range(45, 56), "60, and 5 that came back, less what the other has ahead"
        assert await passes(idle, 10) == 10, "it was leased ahead"
        assert await passes(busy, 100, 0.6) in range(45, 66), "one comes back in a second"
        asked = ledger.asked
        await trio.sleep(10 * RENEWAL)
        assert ledger.asked - asked <= 30, "who has what it needs asks seldom"


@pytest.mark.virtual_time
async def test_without_the_store_there_is_what_was_leased_and_then_a_refusal() -> None:
    ledger = MemoryLedger()
    async with leasing(ledger, "a", "b", "c") as (a, _, _):
        meter = meter_of(a, Limits(calls=Rate(60, 60.0)))
        await trio.sleep(1)
        ledger.is_away = True
        assert await passes(meter, 30, 0.1) == 10
        with pytest.raises(TooManyRequests, match=r"gh may be called 60 times in 60 s; try again in .* s"):
            meter.begin_call()
        ledger.is_away = False
        await trio.sleep(2)
        assert await passes(meter, 5) == 5
        ledger.is_away = True
        await trio.sleep(OWN_LIFE)
        assert await passes(meter, 5) == 0, "the others may have it by now"


@pytest.mark.virtual_time
async def test_what_a_server_asks_waits_for_its_lease_and_may_be_the_whole() -> None:
    ledger, limits = MemoryLedger(), Limits(sampling=Rate(3, 3000.0), sampling_tokens=Rate(1000, 1000.0))
    async with leasing(ledger, "a", "b") as made:
        of_a, of_b = (meter_of(each, limits) for each in made)
        await of_a.prepare_sampling(900)
        of_a.charge_sampling(900)
        await of_b.prepare_sampling(200)
        with pytest.raises(TooManyRequests, match="1000 tokens in 1000 s"):
            of_b.charge_sampling(200)
        await trio.sleep(200)
        await of_b.prepare_sampling(200)
        of_b.charge_sampling(200)
        await trio.sleep(1000)
        await of_a.prepare_sampling(None)
        of_a.charge_sampling(None)
        ledger.is_away = True
        asked = trio.current_time()
        await of_b.prepare_sampling(1)
        assert trio.current_time() - asked <= 1
        with pytest.raises(TooManyRequests):
            of_b.charge_sampling(1)


@pytest.mark.virtual_time
async def test_requests_of_servers_at_once_all_have_their_part() -> None:
    ledger, limits = MemoryLedger(), Limits(sampling=Rate(1000, 1.0), sampling_tokens=Rate(10_000, 1.0))
    async with leasing(ledger, "a", "b") as made, trio.open_nursery() as nursery:
        for meter in (meter_of(each, limits) for each in made):

            async def ask(meter: Meter = meter) -> None:
                await meter.prepare_sampling(10)
                meter.charge_sampling(10)

            for _ in range(6):
                nursery.start_soon(ask)


@pytest.mark.virtual_time
@pytest.mark.parametrize(("count", "places"), [(8, [3, 3, 2]), (3, [1, 1, 1]), (2, [1, 1, 0]), (1, [1, 0, 0])])
async def test_calls_at_once_are_divided(count: int, places: list[int]) -> None:
    """Where there are more processes, the first ones have one each. The others refuse instead of waiting in vain."""
    async with leasing(MemoryLedger(), "a", "b", "c") as made:
        meters = [meter_of(rates, Limits(concurrent=count)) for rates in made]
        await trio.sleep(2 * LOOK)
        for meter, expected in zip(meters, places, strict=True):
            for _ in range(expected):
                assert meter.begin_call() is None
            if expected:
                assert meter.running == expected
                waiting = meter.begin_call()
                assert waiting is not None
                with trio.move_on_after(1) as scope:
                    await waiting
                assert scope.cancelled_caught
            else:
                with pytest.raises(TooManyRequests, match="none of them at this process of the fleet"):
                    meter.begin_call()


@pytest.mark.virtual_time
async def test_a_process_that_comes_runs_calls_as_those_end_of_the_others() -> None:
    """And has its part from then on. What one that is gone has had is free once its lease is over."""
    ledger, there = MemoryLedger(), ["a"]
    a, b = (
        Rates(ledger, boot, lambda boot=boot: (there.index(boot), len(there)), trio.current_time)  # type: ignore[misc]
        for boot in "ab"
    )
    of_a, of_b = (meter_of(each, Limits(concurrent=4)) for each in (a, b))
    life = trio.CancelScope()

    async def live() -> None:
        with life:
            await a.run()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(live)
        await trio.sleep(2 * LOOK)
        assert [of_a.begin_call() for _ in range(4)] == [None] * 4
        there.append("b")
        nursery.start_soon(b.run)
        for _ in range(4):
            waiting = of_b.begin_call()
            assert waiting is not None
            nursery.start_soon(_wait, waiting)
        found = []
        for _ in range(3):
            await trio.sleep(QUEUE_TIMEOUT / 6)
            found.append((of_a.running, of_b.running))
            of_a.end_call()
        assert found == [(4, 0), (3, 1), (2, 2)]
        life.cancel()
        there.remove("a")
        await trio.sleep(LIFE - RENEWAL - 2 * LOOK)
        assert of_b.running == 2
        await trio.sleep(RENEWAL + 4 * LOOK)
        assert of_b.running == 4
        nursery.cancel_scope.cancel()


async def _wait(waiting: Awaitable[None]) -> None:
    await waiting


@needs_postgres
@pytest.mark.slow
async def test_leases_that_race_in_the_database_never_give_more(stored_fleet: StoredFleet) -> None:
    """Three processes ask at once, for budgets of several servers; one of them goes and comes as another one."""
    directories = [PostgresDirectory(stored_fleet.of_process()) for _ in range(MEMBERS)]
    rates = {"gh": Rate(50, 10.0), "fs": Rate(7, 1.0)}
    used = dict.fromkeys(rates, 0)
    begun = trio.current_time()

    async def work(directory: PostgresDirectory, boot: str) -> None:
        held = dict.fromkeys(rates, 0)
        for turn in range(25):
            wishes = [Wish(server, "calls", rate, held[server], 5) for server, rate in sorted(rates.items())]
            for wish, each in zip(wishes, await directory.lease(wishes, boot), strict=True):
                used[wish.server] += each.held  # all of it
                held[wish.server] = 0
            if turn == 12:
                boot += " anew"

    try:
        async with trio.open_nursery() as nursery:
            for n, directory in enumerate(directories):
                nursery.start_soon(work, directory, f"boot {n}")
        lasted = trio.current_time() - begun
        for server, rate in rates.items():
            assert rate.count <= used[server] <= rate.count + math.ceil(lasted * rate.count / rate.seconds)
    finally:
        for directory in directories:
            await directory.aclose()


@needs_postgres
@pytest.mark.slow
async def test_who_leaves_gives_its_places_back(stored_fleet: StoredFleet) -> None:
    directory = PostgresDirectory(stored_fleet.of_process())
    calls, rate = Wish("gh", "calls", Rate(4, 1000.0), 0, 4), Rate(4, 1e-9)
    try:
        (held,) = await directory.lease([Wish("gh", PLACES, rate, 0, 3)], "a")
        (rest,) = await directory.lease([Wish("gh", PLACES, rate, 0, 4)], "b")
        assert (held.held, rest.held) == (3, 1)
        await directory.lease([calls], "a")
        await directory.leave("a")
        (rest,) = await directory.lease([Wish("gh", PLACES, rate, 1, 4)], "b")
        assert rest.held == 4
        (spent,) = await directory.lease([calls], "b")
        assert spent.held == 0, "its calls may have been made"
    finally:
        await directory.aclose()
